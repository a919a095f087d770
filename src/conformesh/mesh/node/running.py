"""From a device's folder to its part in a run, and from a finished run to its result."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Generator
from dataclasses import replace
from secrets import token_bytes
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from conformesh.graph.network import Network
from conformesh.mesh.config.device_config import DeviceConfig
from conformesh.mesh.config.own_scores import OwnScores
from conformesh.methods import get_method, make_options, promised_alone, promised_heard, suited_options
from conformesh.peer.anytime import Anytime
from conformesh.peer.device import Device
from conformesh.peer.journal import Journal
from conformesh.peer.linked import Make
from conformesh.peer.rosters import Rosters
from conformesh.peer.settings import OwnError
from conformesh.peer.shelf import Seal
from conformesh.peer.vault import SIZE, Vault
from conformesh.promises import exact_alpha
from conformesh.protocols.site import Outcome, Shown
from conformesh.result.calibration import Calibration
from conformesh.samples import Samples

if TYPE_CHECKING:
    from conformesh.protocols.masks import Secrets

JOURNAL = "journal.bin"


def make_device(
    config: DeviceConfig,
    scores: OwnScores,
    journal: Journal,
    log: Callable[[str], None] = lambda words: None,
    rosters: Rosters | None = None,
    shown: Shown | None = None,
    stored_run: int = 0,
) -> Device | Anytime:
    """Return the device of a folder, which holds these scores; `shown` is where it may be seen how far it is.

    `stored_run` is the run whose result is on disk and is to be reported if it was not yet; 0 asks for a new run.
    """
    own: dict[str, Any] = {"scores": scores.digest, "log": log, "rosters": rosters}
    vault = Vault(lambda: token_bytes(SIZE)) if get_method(config.method).private else None
    make = protocol_of(config, scores, shown, vault)
    parts = config.row, config.network, config.agreement(), make, journal, config.settings
    if config.mode == "anytime":
        return Anytime(*parts, **own, seal=seal_of(config))
    return Device(*parts, **own, vault=vault, stored_run=stored_run)


def seal_of(config: DeviceConfig) -> Seal | None:
    """Return what signs the entries of a device, where its method asks for that."""
    if not get_method(config.method).signed:
        return None
    from conformesh.mesh.config.seal import CertificateSeal  # which takes cryptography into memory

    return CertificateSeal(config)


def _caps(config: DeviceConfig) -> NDArray[np.int64] | None:
    """Return how many scores every device may hold, where the roster says so of all of them."""
    sizes = {} if config.roster is None else config.roster.sizes
    if not all(name in sizes for name in config.devices):
        return None
    return np.array([sizes[name] for name in config.devices], dtype=np.int64)


def secrets_of(config: DeviceConfig, scores: OwnScores, vault: Vault, names: tuple[str, ...]) -> Secrets:
    """Return what a device keeps to itself in the run that its vault knows of, with these devices."""
    from conformesh.mesh.config.seal import CertificateSeal  # which takes cryptography into memory
    from conformesh.privacy.spent import FILE, PrivacyRefused, Run, Spent
    from conformesh.protocols.masks import Secrets

    seal, options = CertificateSeal(config), make_options(config.method, config.options)
    run = hashlib.sha256(vault.context + vault.secret).hexdigest()

    account = Spent(config.folder / FILE)
    may = {"hidden": options.coalition + 2, "budget": options.budget, "unit": options.unit}

    def permit(epsilon: float | None, charge: bool = True) -> None:
        told = Run(run, [*names], scores.digest, epsilon)
        try:
            (account.enter if charge else account.charged)(told, scores.values, **may)
        except PrivacyRefused as refusal:
            raise OwnError(str(refusal), "privacy") from None

    def genuine(name: str, said: bytes, proof: bytes) -> bool:
        return seal.genuine(config.devices.index(name), said, proof)

    permit(options.epsilon, charge=False)  # who will refuse does so before its key is out, and nobody pays for it
    return Secrets((vault.secret,), vault.context, seal.sign, genuine, permit)


def protocol_of(
    config: DeviceConfig, scores: OwnScores, shown: Shown | None = None, vault: Vault | None = None
) -> Make:
    """Return what makes this device's part of a run, for a network and a row in it."""
    chosen = make_options(config.method, suited_options(config.method, config.options, config.chosen_score))
    levels = (exact_alpha(config.alpha),)
    _ = get_method(config.method).protocol  # loaded now, and not in a run
    samples, caps = Samples.of([scores.values], (config.name,)), _caps(config)

    def make(network: Network, row: int) -> Generator[Any, Any, Any]:
        if shown is not None:
            shown.clear()
        if config.mode == "anytime":
            return promised_heard(config.method, network, row, samples, levels, chosen, config.promise, caps)
        secrets = None if vault is None else secrets_of(config, scores, vault, network.ids)
        return promised_alone(
            config.method, network, row, samples, levels, chosen, config.promise, shown=shown, secrets=secrets
        )

    return make


def calibration_of(
    config: DeviceConfig, device: Device | Anytime, seconds: float, outcome: Outcome | None = None
) -> Calibration:
    """Return a device's result, by default its last: its own threshold, with its reason and what it cost."""
    outcome = device.result if outcome is None else outcome
    assert outcome is not None
    sent = device.cost if isinstance(device, Anytime) else device.ledger.cost()
    cost = sent if outcome.cost is None else replace(outcome.cost, sent=sent)
    return Calibration.of(
        outcome,
        cost,
        method=config.method,
        alpha=config.alpha,
        device_ids=(config.name,),
        scores=0 if outcome.sizes is None else int(outcome.sizes.sum()),
        network=config.network.name,
        options=config.options,
        score=config.chosen_score,
        seconds=seconds,
    )
