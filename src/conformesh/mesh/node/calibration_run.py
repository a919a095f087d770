"""From a device's folder to its part in a run, and from a finished run to its result."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, replace
from secrets import randbits, token_bytes
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from conformesh.graph.network import Network
from conformesh.guarantee import Guarantee
from conformesh.kernels.weighted_scores import WeightedScores
from conformesh.mesh.config.device_config import DeviceConfig
from conformesh.mesh.config.epochs import EpochClock
from conformesh.mesh.config.local_scores import NO_SCORES, LocalScores
from conformesh.mesh.node.certified_result import CertifiedResult
from conformesh.mesh.node.status import CalibrationCoverage
from conformesh.methods import async_protocol, get_method, make_options
from conformesh.peer.async_device import AsyncDevice
from conformesh.peer.device import Device
from conformesh.peer.entries import Seal
from conformesh.peer.interface import Make, PeerSetup
from conformesh.peer.journal import Journal
from conformesh.peer.rosters import Rosters
from conformesh.pipeline.assembly import add_answers_to_result
from conformesh.pipeline.problems import Problem
from conformesh.pipeline.solver import MethodRun, solve_on_device
from conformesh.protocols.block import Answers, SearchProgress
from conformesh.results.result import Result
from conformesh.table import Table

if TYPE_CHECKING:
    from conformesh.privacy.account import Account
    from conformesh.protocols.masks import Secrets

JOURNAL = "journal.bin"


@dataclass(frozen=True, eq=False)
class PrivatePart:
    """What a private device looks up anew for every attempt, and how it starts.

    Attributes
    ----------
    scores
        Returns the latest scores: a changed file starts nothing, and counts from the next attempt on.
    epochs
        Which epoch has closed last.
    idle
        Whether it waits until somebody asks for a run.
    """

    scores: Callable[[], LocalScores]
    epochs: EpochClock
    idle: bool = False


@dataclass(frozen=True, eq=False)
class RunContext:
    """What a node gives its device besides configuration, scores and journal.

    Attributes
    ----------
    log
        Takes lines for the log of the node.
    rosters
        The rosters of the node; None without any.
    search
        Where the protocol reports how far its search is.
    stored_run
        The run whose result is on the disk and is reported if it was not yet; 0 asks for a new run.
    """

    log: Callable[[str], None] = lambda words: None
    rosters: Rosters | None = None
    search: SearchProgress | None = None
    stored_run: int = 0


def make_device(
    config: DeviceConfig,
    scores: LocalScores,
    journal: Journal,
    options: RunContext | None = None,
    private: PrivatePart | None = None,
) -> Device | AsyncDevice:
    """Return the device of a folder with these scores; a private device takes them from `private`, if it is given."""
    options = options or RunContext()
    part = private or PrivatePart(lambda: scores, EpochClock(config))
    setup = PeerSetup(
        config.row,
        config.network,
        config.agreement(),
        private_protocol(config, part, options.log)
        if config.is_private
        else local_protocol(config, scores, options.search),
        journal,
        config.peer_settings,
        scores="" if config.is_private else scores.digest,  # a change of private scores starts no run
        log=options.log,
        rosters=options.rosters,
        private=config.is_private,
        stored_run=options.stored_run,
        idle=config.is_private and part.idle,
    )
    if config.run.mode == "asynchronous" and not config.is_private:
        return AsyncDevice(setup, entry_seal(config))
    return Device(setup)


def entry_seal(config: DeviceConfig) -> Seal | None:
    """Return what signs the entries of a device, where its method asks for that."""
    if not get_method(config.run.method).signs_entries:
        return None
    from conformesh.mesh.config.seal import CertificateSeal  # which takes cryptography into memory

    return CertificateSeal(config)


def _caps(config: DeviceConfig) -> NDArray[np.int64] | None:
    """Return how many scores every device may hold, where the roster says so of all of them."""
    sizes = {} if config.roster is None else config.roster.sizes
    if not all(name in sizes for name in config.devices):
        return None
    return np.array([sizes[name] for name in config.devices], dtype=np.int64)


def device_account(config: DeviceConfig, epoch: int) -> Account:
    """Return the account of a private device, as it is on the disk now."""
    from conformesh.privacy.account import ACCOUNT_FILE, Account

    options = make_options(config.run.method, config.run.options)
    ahead = None if options.epoch_seconds is None else 1
    return Account(
        config.folder / ACCOUNT_FILE, epoch=epoch, window=options.window, releases=options.releases, most_ahead=ahead
    )


def private_protocol(config: DeviceConfig, part: PrivatePart, log: Callable[[str], None] = lambda words: None) -> Make:
    """Return what makes a private device's part of an attempt, for a network, a row in it, and the attempt's digest.

    All it reads is read when an attempt begins, before anything is sent in it.
    """
    run, guarantee = MethodRun(config.run.method, config.run.options, config.chosen_score), config.chosen_guarantee
    _ = get_method(config.run.method).protocol  # loaded now, and not in a run

    def make(network: Network, row: int, context: bytes) -> Generator[Any, Any, Any]:
        scores, epoch = part.scores(), part.epochs.last_closed()
        secrets = attempt_secrets(config, scores, epoch, context, log)
        if guarantee.adapt is not None:
            return solve_on_device(
                network, row, local_table(config, scores), guarantee, with_fresh_seed(run, guarantee), secrets=secrets
            )
        # With epsilon the protocol asks for the scores of the epoch that all devices settle on.
        own = np.empty(0) if config.has_epsilon else scores.up_to_epoch(epoch)
        table = Table.from_flat(own, [len(own)], names=(config.name,))
        return solve_on_device(network, row, table, guarantee, run, secrets=secrets)

    return make


def attempt_secrets(
    config: DeviceConfig, scores: LocalScores, epoch: int, context: bytes, log: Callable[[str], None]
) -> Secrets:
    """Return fresh secrets for one attempt. They live in memory only."""
    from conformesh.mesh.config.seal import CertificateSeal  # which takes cryptography into memory
    from conformesh.protocols.masks import KEY_BYTES, Secrets

    seal, account = CertificateSeal(config), device_account(config, epoch)
    if account.problem:
        log(f"{account.problem}: this device takes part without its scores until the file is repaired or removed")

    def scores_of(released: int) -> WeightedScores:
        found = (NO_SCORES if account.problem else scores).in_epoch(released)
        if not len(found):
            log(f"this device has no scores of epoch {released}")  # in its own log, and nowhere else
        # They were checked and sorted when they were read: doing so now would take time that tells their number.
        return WeightedScores(found, np.array([0, len(found)]))

    def genuine(name: str, message: bytes, proof: bytes) -> bool:
        return seal.genuine(config.devices.index(name), message, proof)

    return Secrets((token_bytes(KEY_BYTES),), context, seal.sign, genuine, account, scores_of)


def local_protocol(config: DeviceConfig, scores: LocalScores, search: SearchProgress | None = None) -> Make:
    """Return what makes this device's part of a run, for a network and a row in it."""
    _ = get_method(config.run.method).protocol  # loaded now, and not in a run
    guarantee, score = config.chosen_guarantee, config.chosen_score
    if config.run.mode == "asynchronous":
        chosen = make_options(config.run.method, config.run.options, score)
        samples, caps = WeightedScores.of([scores.values], (config.name,)), _caps(config)
        alphas, requirement = guarantee.alphas, config.requirement

        def gathering(network: Network, row: int) -> Generator[Any, Any, Any]:
            if search is not None:
                search.clear()
            return async_protocol(config.run.method, network, row, samples, alphas, chosen, requirement, caps)

        return gathering
    run, table = MethodRun(config.run.method, config.run.options, score), local_table(config, scores)

    def make(network: Network, row: int) -> Generator[Any, Any, Any]:
        if search is not None:
            search.clear()
        return solve_on_device(network, row, table, guarantee, with_fresh_seed(run, guarantee), progress=search)

    return make


def with_fresh_seed(run: MethodRun, guarantee: Guarantee) -> MethodRun:
    """Return a run in which a device with adapted scores hides one of its rows by fresh chance, whatever is in them."""
    return run if guarantee.adapt is None else replace(run, seed=randbits(63))


def local_table(config: DeviceConfig, scores: LocalScores) -> Table:
    """Return the rows of a device as calibration takes them."""
    rows = scores.rows
    if rows is None and config.guarantee.adapt is not None:  # no file, or an unreadable one
        from conformesh.mesh.config.labelled_rows import no_rows  # which other devices need not hold in memory

        rows = no_rows(config)
    if rows is not None:
        offsets = np.array([0, len(scores)], dtype=np.int64)
        return Table((config.name,), offsets, outputs=rows.bag.outputs, truth=rows.bag.labels, groups=rows.groups)
    table = Table.from_flat(scores.values, [len(scores)], names=(config.name,))
    column = config.scores.group_column if config.guarantee.groups else ""
    return replace(table, groups=scores.groups, group_column=column, weight=scores.weights)


def calibration_coverage(config: DeviceConfig, found: CertifiedResult) -> Iterator[CalibrationCoverage]:
    """Yield for each level how many of this device's own rows a result with adapted scores covers."""
    result = found.calibration
    predictor = result.on(config.name)
    for alpha in result.alphas:
        hits = predictor.calibration_hits(result.at(alpha))
        rows, covered = len(hits), int(hits.sum())
        yield CalibrationCoverage(alpha, found.run, rows, covered, covered / rows if rows else None)


def device_result(
    config: DeviceConfig, device: Device | AsyncDevice, seconds: float, outcome: Answers | None = None
) -> Result:
    """Return a device's result, by default its last: its own threshold, with its reason and what it cost."""
    outcome = device.result if outcome is None else outcome
    assert outcome is not None
    cost = device.cost if outcome.cost is None else replace(outcome.cost, sent=device.cost)
    guarantee, problems = config.chosen_guarantee, outcome.problems
    if not problems:  # in asynchronous mode there is one column, and one level
        examples = 0 if outcome.sizes is None else int(outcome.sizes.sum())
        problems = (Problem((), guarantee.alphas[0], 0, 0, examples),)
    blank = Result(
        guarantee=guarantee,
        answers=(),
        cost=cost,
        method=config.run.method,
        device_ids=(config.name,),
        network=config.network.name,
        options=config.run.options,
        score=config.chosen_score,
        classes=config.classes,
        adapted=outcome.adapted,
        rows=outcome.device_rows,
        seconds=seconds,
    )
    return add_answers_to_result(blank, outcome, problems)
