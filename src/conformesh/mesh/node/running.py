"""From a device's folder to its part in a run, and from a finished run to its result."""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import replace
from typing import Any

from conformesh.graph.network import Network
from conformesh.mesh.config.device_config import DeviceConfig
from conformesh.mesh.config.own_scores import OwnScores
from conformesh.methods import get_method, make_options, promised_alone
from conformesh.peer.device import Device
from conformesh.peer.journal import Journal
from conformesh.peer.rosters import Rosters
from conformesh.peer.rounds import Make
from conformesh.promises import exact_alpha
from conformesh.protocols.messages import Message
from conformesh.result.calibration import Calibration
from conformesh.samples import Samples

JOURNAL = "journal.bin"


def make_device(
    config: DeviceConfig,
    scores: OwnScores,
    journal: Journal,
    log: Callable[[str], None] = lambda words: None,
    rosters: Rosters | None = None,
) -> Device:
    """Return the device of a folder, which holds these scores."""
    return Device(
        config.row,
        config.network,
        config.agreement(),
        protocol_of(config, scores),
        journal,
        config.settings,
        scores=scores.digest,
        log=log,
        rosters=rosters,
    )


def protocol_of(config: DeviceConfig, scores: OwnScores) -> Make:
    """Return what makes this device's part of a run, for a network and a row in it."""
    chosen = make_options(config.method, config.options)
    levels = (exact_alpha(config.alpha),)
    _ = get_method(config.method).protocol  # loaded now, and not in a run
    samples = Samples.of([scores.values], (config.name,))

    def make(network: Network, row: int) -> Generator[Message, Any, Any]:
        return promised_alone(config.method, network, row, samples, levels, chosen, config.promise)

    return make


def calibration_of(config: DeviceConfig, device: Device, seconds: float) -> Calibration:
    """Return a finished device's result: its own threshold, with its reason and what it cost."""
    outcome = device.result
    return Calibration.of(
        outcome,
        replace(outcome.cost, sent=device.ledger.cost()),
        method=config.method,
        alpha=config.alpha,
        device_ids=(config.name,),
        scores=int(outcome.sizes.sum()),
        network=config.network.name,
        options=config.options,
        score=config.chosen_score,
        seconds=seconds,
    )
