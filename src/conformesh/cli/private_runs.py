"""Private runs in words: what one has protected and what it cost, what one would cost, and what an account allows.

Each function returns an `Explanation`: names with sentences for people, a table, and the same as data for JSON.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from msgspec import structs

from conformesh.cli import console
from conformesh.cli.results import PrivateRelease, SavedRun, releases_by_group
from conformesh.common.quantities import format_bits, format_count, pluralize
from conformesh.kernels.ranks import DEFAULT_REQUIREMENT
from conformesh.methods import MethodVariant, make_options
from conformesh.privacy.account import ACCOUNT_FILE, EXACT_RUN, Account, AccountFields, read_account
from conformesh.privacy.histogram import HistogramPlan, Release
from conformesh.results.certificate import Noise

if TYPE_CHECKING:
    from conformesh.graph.network import Network
    from conformesh.mesh.config.device_config import DeviceConfig

_USUAL = (Fraction(1, 20), Fraction(1, 10), Fraction(1, 5))  # levels that are shown where none is asked for
_MOST_EPOCHS_PRINTED = 20  # of an account that are listed, the latest ones


@dataclass(frozen=True)
class Explanation:
    """What is said of a private run: for people in facts and a table, for programs as data."""

    title: str
    facts: list[tuple[str, str]]
    data: dict[str, Any]
    columns: tuple[str, ...] = ()
    rows: list[tuple[str, ...]] = field(default_factory=list)

    def show(self) -> None:
        """Print it."""
        if not sys.stdout.isatty():
            print(f"{self.title}\n")
        console.print_facts(self.title, self.facts)
        if self.rows:
            print()
            console.print_table(self.columns, self.rows, right=[name for name in self.columns if name != "group"])


# --- a run that was made ----------------------------------------------------------------------------------------------


def explain_private_result(saved: SavedRun, alphas: Sequence[Fraction] = ()) -> Explanation | None:
    """Say what a private run has protected, what it cost, and thresholds at other levels; None without epsilon."""
    releases = releases_by_group(saved)
    if not releases:
        if alphas:
            raise ValueError(
                f"{saved.name} was made without epsilon and holds no noisy histogram, from which --alpha could read "
                "another level; calibrate again with the other alpha"
            )
        return None
    result, first = saved.result, float(saved.result.answers[0].alpha)
    (release, noise), *_ = releases.values()
    own = {answer.alpha for answer in result.answers}
    levels = sorted(alphas or {*own, *_USUAL})
    table = [(group, alpha, private.release.answer(alpha)) for group, private in releases.items() for alpha in levels]
    grouped = [*releases] != [None]
    rows = [
        (
            *((str(group),) if grouped else ()),
            f"{float(alpha):g}",
            f"{answer.threshold:.6g}",
            f"{float(answer.inflation.value) / release.slack:.3g}",
            f"{answer.spread:.2g}",
        )
        for group, alpha, answer in table
    ]
    facts = [
        ("protects", _protects(noise)),
        ("condition", _condition(noise)),
        ("devices", _survivors(noise, saved.devices)),
        ("released", _release_in_words(releases)),
        ("guarantee", _guarantee(first, noise.spread, " in each group" if grouped else "")),
        ("price", _price(release, noise.inflation, first)),
        ("levels", "the table below is read from the same release: other levels cost no further epsilon"),
    ]
    return Explanation(
        f"{result.method} with epsilon {noise.epsilon:g}: what this run means",
        facts,
        {
            **structs.asdict(noise),
            "grid": release.grid,
            "number": release.number if release.items is None else None,
            "items": release.items,
            "roster": saved.devices,
            "levels": [
                {
                    **({"group": group} if grouped else {}),
                    "alpha": float(alpha),
                    "threshold": answer.threshold,
                    "inflation": float(answer.inflation.value) / release.slack,
                    "spread": answer.spread,
                }
                for group, alpha, answer in table
            ],
        },
        (*(("group",) if grouped else ()), "alpha", "threshold", "price in scores", "spread"),
        rows,
    )


def _protects(noise: Noise) -> str:
    unit = "each score" if noise.unit == "score" else "each device with all its scores"
    capped = "" if noise.cap is None else f" (at most {noise.cap:,} of its scores count)"
    words = (
        f"{unit}{capped}: with it or without it, whatever others observe has nearly the same probability, up to a "
        f"factor of exp({noise.epsilon:g}) = {math.exp(min(noise.epsilon, 700)):.3g}"
    )
    if noise.simulated:
        return f"nothing: this was a simulation, and one program saw all scores. On a mesh it would protect {words}"
    return words


def _condition(noise: Noise) -> str:
    return f"at least {noise.honest} of {noise.devices} devices keep their noise secret, and all follow the protocol"


def _survivors(noise: Noise, roster: int) -> str:
    if noise.devices == roster:
        return f"all {roster} took part"
    return f"{noise.devices} of {roster} took part; the others were lost before the release, and are not counted"


def _release_in_words(releases: dict[str | None, PrivateRelease]) -> str:
    (release, noise), *_ = releases.values()
    what = f"counts with noise in {release.cells:,} cells of the public grid {release.grid!r}"
    number = f"a number with noise (about {max(release.number, 0):,} scores) and " if release.items is None else ""
    each = "" if [*releases] == [None] else f", for each of {pluralize(len(releases), 'group')}"
    epochs = ", ".join(map(str, noise.epochs))
    about = f"epoch {epochs}" if len(noise.epochs) == 1 else f"epochs {epochs} added up"
    return f"{number}{what}{each}, of {about}; nothing else can be read"


def _guarantee(alpha: float, spread: float, where: str = "") -> str:
    return (
        f"coverage of at least {1 - alpha:g}{where}, on average over calibration scores, the new example and the "
        f"noise; the coverage of one run varies around that average with a standard deviation of about {spread:.2g}"
    )


def _price(release: Release, inflation: float, alpha: float) -> str:
    missed = alpha * max(release.number, 0) / release.slack
    above = f"about {missed:,.0f} that may lie above the threshold at alpha {alpha:g}"
    if inflation >= missed:
        return f"{inflation:.3g} scores, and these are more than the {above}"
    return f"{inflation:.3g} scores: the noise takes so many of the {above}"


# --- a run to come ----------------------------------------------------------------------------------------------------


def explain_private_plan(network: Network, alpha: Fraction, given: dict[str, Any]) -> Explanation:
    """Say what a private run with these options of p-dcp would protect and cost, from public numbers alone."""
    options: Any = make_options("p-dcp", given)
    K, held = network.devices, options.expected_scores
    plan: HistogramPlan = options.plan(K, DEFAULT_REQUIREMENT)
    needed = plan.devices_needed(alpha) if plan.unit == "device" else None
    refused = needed is not None and needed > K
    price = plan.inflation(alpha)
    release = _expected_release(plan, min(held, plan.cap or held), options.window)
    answer = release.answer(alpha)
    n = release.number
    noise = Noise(
        plan.epsilon, plan.unit, plan.honest, K, plan.cells, float(answer.inflation.value), answer.spread, cap=plan.cap
    )
    facts = [("protects", _protects(noise)), ("condition", _condition(noise))]
    why = "as --cells says" if options.cells is not None else "chosen from expected scores and epsilon, never from data"
    facts.append(("cells", f"{plan.cells:,}, {why}; --expected-scores {held:,} for each of {K} devices"))
    facts.append(("price", _price(release, float(answer.inflation.value), float(alpha))))
    facts.append(
        (
            "scores needed",
            f"about {answer.inflation.number_needed:,} in all, counted with noise; with fewer the threshold is +inf",
        )
    )
    if answer.threshold == math.inf:
        facts.append(("guarantee", f"of no use: {n:,} expected scores are too few, and the threshold would be +inf"))
    else:
        facts.append(("guarantee", f"{_guarantee(float(alpha), answer.spread)}, if scores fill all cells evenly"))
    if needed is None:
        whole, words = _for_whole_devices(plan, alpha, held)
        facts.append(("whole devices", words))
    else:
        whole = needed
        enough = f"{K:,} are too few, and the run would be refused" if refused else f"{K:,} are enough"
        facts.append(("devices needed", f"{needed:,} to protect whole devices; {enough}"))
    rounds, bits = _sent(network, alpha, given) if not refused else (None, None)
    if rounds is not None and bits is not None:
        facts.append(("cost", f"{format_count(rounds)} rounds, each device sends {format_bits(bits)} with its key"))
    facts += [
        (
            "lost devices",
            "an attempt that fails before the masks are revealed costs no epsilon and starts again with the others; "
            f"one that fails later costs epsilon {plan.epsilon:g} like a release",
        ),
        ("budget", _budget(options.releases, plan.epsilon, plan.unit)),
    ]
    data = {
        **{key: value for key, value in structs.asdict(noise).items() if key not in ("epochs", "simulated")},
        "alpha": float(alpha),
        "grid": plan.grid,
        "expected_number": n,
        "number_needed": price.number_needed,
        "inflation": float(answer.inflation.value),
        "spread": None if answer.threshold == math.inf else answer.spread,
        "rounds": rounds,
        "bits_per_device": bits,
        "devices_needed_for_unit_device": whole,
        "refused": refused,
        "lifetime_epsilon": options.releases * plan.epsilon,
    }
    return Explanation(f"p-dcp with epsilon {plan.epsilon:g} on {network.name}: what a run would mean", facts, data)


def _expected_release(plan: HistogramPlan, held: int, window: int) -> Release:
    """Return the release of expected numbers: so many scores on each device, spread evenly over the cells."""
    n = plan.devices * held
    totals = np.concatenate([[n], np.full(plan.cells - 1, round(n / plan.cells))])
    return Release.summed([plan.release(totals, (epoch,)) for epoch in range(1, window + 1)])


def _for_whole_devices(plan: HistogramPlan, alpha: Fraction, held: int) -> tuple[int | None, str]:
    """Return how many devices it takes to protect each of them with all its scores."""
    how = f"--unit device --cap {held}"
    try:
        needed = replace(plan, unit="device", cap=held).devices_needed(alpha)
    except ValueError:  # noise of so small an epsilon has no table
        return None, f"not protected, only single scores; {how} would need a larger epsilon"
    return needed, f"not protected, only single scores; {how} would need at least {needed:,} devices"


def _sent(network: Network, alpha: Fraction, given: dict[str, Any]) -> tuple[float, float] | tuple[None, None]:
    """Simulate a release and return its rounds and the bits that a device sends; nothing where that takes too long.

    A release sends the same whatever the scores are, so one score on each device will do.
    """
    from conformesh.lab.planning.measurement import RunTooLong, draw_scores, measure_way

    scores = draw_scores(np.ones(network.devices, dtype=np.int64), "uniform")[0]
    try:
        cost = measure_way(MethodVariant("p-dcp"), network, scores, alpha, DEFAULT_REQUIREMENT, given)[1]
    except RunTooLong:
        return None, None
    return cost.rounds, cost.bits


def _budget(releases: int, epsilon: float, unit: str) -> str:
    """Say what is lost over a lifetime: a score is in one epoch, a device may have scores in all of them."""
    released = f"each epoch may be released {pluralize(releases, 'time')} at epsilon {epsilon:g}"
    if unit == "device":
        return f"{released}: a device loses at most {releases * epsilon:g} for every epoch in which it has scores"
    return f"{released}: a score loses at most {releases * epsilon:g} in its lifetime"


# --- the account of a device ------------------------------------------------------------------------------------------


def explain_privacy_account(path: Path) -> Explanation:
    """Say what a device has released so far, what it may still release, and what it would refuse, and why."""
    folder = path if path.is_dir() else path.parent
    config = _config(folder)
    file = path if path.is_file() else folder / ACCOUNT_FILE
    if config is None and not file.exists():
        raise ValueError(
            f"{path}: needed a device's folder (with device.toml) or its {ACCOUNT_FILE}; found neither. A whole mesh "
            "has one folder for each device"
        )
    if config is not None and not config.is_private and not file.exists():
        raise ValueError(f"{folder}: method {config.run.method!r} is not private, so the device has no account")
    rules = _Rules.of(folder, config)
    try:
        fields, problem = read_account(file), ""
    except (OSError, ValueError) as error:
        fields, problem = AccountFields(), " ".join(str(error).split())
    account = Account(file, epoch=rules.epoch, window=rules.window, releases=rules.releases)
    refusal = "" if rules.exact else account.refusal()
    facts = [("account", str(file)), ("budget", rules.budget), ("epochs", rules.words)]
    if problem:
        facts += [
            ("problem", f"{problem}; repair or restore the file"),
            ("next run", "takes part without scores, because nobody knows how often they were released"),
        ]
    else:
        facts += [
            ("exact runs", _exact_runs(fields)),
            ("next run", f"refused: {refusal}" if refusal else _next(fields, rules)),
        ]
    if config is not None:
        facts.append(("next epoch", _next_epoch(folder, rules)))
    lines = (
        []
        if problem
        else [_epoch_line(fields, epoch, rules.releases) for epoch in _epochs_to_show(fields, rules.epoch)]
    )
    return Explanation(
        "privacy account" if config is None else f"privacy account of {config.name}",
        facts,
        {
            "file": str(file),
            "device": None if config is None else config.name,
            "epsilon": rules.epsilon,
            "releases_allowed": rules.releases,
            "window": rules.window,
            "epoch": rules.epoch,
            "epoch_seconds": rules.seconds,
            "problem": problem,
            "refusal": refusal,
            "used_up": fields.used_up,
            "exact_until": fields.exact_until,
            "exact_runs": [run.devices for run in fields.exact_runs],
            "epochs": [
                {"epoch": epoch, "releases": None if used == EXACT_RUN else used, "left": left, "devices": devices}
                for epoch, used, left, devices in lines
            ],
        },
        ("epoch", "releases", "left", "devices"),
        [
            (str(epoch), "without noise" if used == EXACT_RUN else str(used), str(left), str(devices or ""))
            for epoch, used, left, devices in lines
        ],
    )


@dataclass(frozen=True)
class _Rules:
    """What decides about runs besides the account: the last closed epoch, and options of the mesh."""

    epoch: int
    releases: int
    window: int
    epsilon: float | None
    seconds: float | None
    exact: bool
    words: str
    unit: str = "score"

    @property
    def budget(self) -> str:
        """How much a score may lose."""
        if self.epsilon is not None:
            return _budget(self.releases, self.epsilon, self.unit)
        if not self.exact:
            return "not known without device.toml; one release of each epoch is assumed"
        return "not limited: runs of this mesh have no epsilon and are exact"

    @classmethod
    def of(cls, folder: Path, config: DeviceConfig | None) -> _Rules:
        from conformesh.mesh.config.epochs import EpochClock, read_epoch

        if config is None or not config.is_private:
            epoch = read_epoch(folder)
            words = f"epoch {epoch} was closed last, as far as is known: there is no device.toml with options"
            return cls(epoch, 1, 1, None, None, False, words)
        options: Any = make_options(config.run.method, config.run.options)
        epochs = EpochClock(config)
        epoch = epochs.last_closed()
        how = "declared by the operator"
        if options.epoch_seconds is not None:
            how = f"by the clock, every {options.epoch_seconds:g} s"
        words = f"epoch {epoch} was closed last, {how}"
        if epochs.problem:
            words += f"; {epochs.problem}"
        exact = options.epsilon is None
        seconds, unit = options.epoch_seconds, options.unit
        return cls(epoch, options.releases, options.window, options.epsilon, seconds, exact, words, unit)


def _config(folder: Path) -> DeviceConfig | None:
    from conformesh.mesh.config.device_toml import DEVICE_FILE, read_device

    return read_device(folder) if (folder / DEVICE_FILE).exists() else None


def _next_epoch(folder: Path, rules: _Rules) -> str:
    number = rules.epoch + 1
    if rules.seconds is None:
        return f"conformesh mesh epoch {folder} {number}, on every device, when all scores of epoch {number} are there"
    closes = datetime.fromtimestamp((number + 1) * rules.seconds, UTC)
    return f"{number} closes by the clock at {closes:%Y-%m-%d %H:%M:%S} UTC"


def _exact_runs(fields: AccountFields) -> str:
    if not fields.exact_runs and not fields.exact_until:
        return "none"
    rosters = pluralize(len(fields.exact_runs), "roster")
    return (
        f"with {rosters}, of all scores up to epoch {fields.exact_until}; no run with epsilon may release these epochs "
        "any more"
    )


def _next(fields: AccountFields, rules: _Rules) -> str:
    if rules.exact:
        return (
            "exact; refused if the scores of this device have changed since the last exact run, or if rosters differ "
            "by so few devices that the difference of two sums would tell of them"
        )
    left = rules.releases - fields.releases(rules.epoch)
    return f"may release epoch {rules.epoch} ({pluralize(left, 'release')} left), unless other devices know of more"


def _epochs_to_show(fields: AccountFields, last: int) -> list[int]:
    """Return the epochs to list: those with an entry, and the last closed one."""
    return sorted({*(one.epoch for one in fields.epochs), *([last] if last > 0 else [])})[-_MOST_EPOCHS_PRINTED:]


def _epoch_line(fields: AccountFields, epoch: int, allowed: int) -> tuple[int, int, int, int]:
    """Return an epoch, how often it was released, how often it still may be, and the devices of the last release."""
    used, record = fields.releases(epoch), fields.record(epoch)
    left = 0 if epoch <= fields.used_up else max(allowed - used, 0)
    return epoch, used, left, 0 if record is None else record.devices
