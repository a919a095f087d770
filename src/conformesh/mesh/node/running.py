"""A node: one device of a mesh from its folder to a certified threshold."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Generator
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from conformesh.graph.network import Network
from conformesh.mesh.config.device_config import DeviceConfig
from conformesh.mesh.link import drive, opened
from conformesh.methods import get_method, make_options
from conformesh.peer.device import Device
from conformesh.peer.journal import FileJournal, Journal
from conformesh.peer.settings import PeerError
from conformesh.promises import exact_alpha
from conformesh.protocols.joint import joint
from conformesh.protocols.messages import Message
from conformesh.result.calibration import Calibration
from conformesh.samples import Samples

JOURNAL = "journal.bin"


def make_device(
    config: DeviceConfig, scores: NDArray[np.float64], journal: Journal, log: Callable[[str], None] = lambda words: None
) -> Device:
    """Return the device of a folder, which holds these scores."""
    entry, chosen = get_method(config.method), make_options(config.method, config.options)
    levels = (exact_alpha(config.alpha),)
    samples = Samples.of([scores], (config.name,))

    def make(network: Network, row: int) -> Generator[Message, Any, Any]:
        return joint(network, row, samples, lambda site, mine: entry.protocol(site, mine, levels, chosen))

    return Device(
        config.row,
        config.network,
        config.agreement(),
        make,
        journal,
        config.settings,
        scores=hashlib.sha256(np.sort(scores).tobytes()).hexdigest()[:16],
        log=log,
    )


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


def calibrate_once(
    config: DeviceConfig, scores: NDArray[np.float64], log: Callable[[str], None] = lambda words: None
) -> tuple[Calibration, tuple[str, ...]]:
    """Calibrate with the neighbours; return this device's result and who is in it, or raise `PeerError`."""
    started = time.perf_counter()
    journal = FileJournal(config.folder / JOURNAL)
    try:
        device = make_device(config, scores, journal, log)
        with opened(config) as transport:
            drive(device, transport, lambda: device.over)
        if device.error is not None:
            raise device.error
        if device.result is None:
            raise PeerError(f"{config.name} ended in phase {device.phase} without a result")
        roster = tuple(config.devices[k] for k in device.survivors)
        return calibration_of(config, device, time.perf_counter() - started), roster
    finally:
        journal.close()
