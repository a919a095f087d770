"""`calibrate`: from the devices' scores to a certified threshold."""

from __future__ import annotations

import time
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from conformesh.calibration import Calibration
from conformesh.certificate import Cost
from conformesh.engines.ordering import inverse, memory_order
from conformesh.engines.simulator import Observer, Simulator
from conformesh.methods import get_method, make_options
from conformesh.network import Network
from conformesh.protocols.site import Outcome, Site
from conformesh.ranks import Alpha, exact_alpha
from conformesh.samples import Samples
from conformesh.scores import Score


class TooFewScores(ValueError, UserWarning):  # noqa: N818 - a warning by default, an error on request
    """The required rank exceeds the number of scores, so the threshold is +inf and every set is full."""


class CalibrationNote(UserWarning):
    """Something a user should know about a result that is valid as it stands."""


def calibrate(
    devices: Iterable[ArrayLike] | Samples,
    network: Network,
    alpha: Alpha = 0.1,
    method: str = "e-dcp",
    *,
    score: Score | None = None,
    strict: bool = False,
    observer: Observer | None = None,
    **options: Any,
) -> Calibration:
    """Agree on a threshold whose prediction sets hold the truth with probability at least 1 - alpha.

    Parameters
    ----------
    devices
        One array of calibration scores per device, in the order of ``network.ids``; any of them may be empty. Or a
        table with one row per device, or `Samples`: a million devices are better kept in one flat array
        (`Samples.from_flat`).
    network
        Who talks to whom.
    alpha
        Tolerated miscoverage, strictly between 0 and 1, taken as the decimal written.
    method
        A name of `METHODS`.
    score
        The nonconformity score the numbers come from, so that the result can build prediction sets by itself.
    strict
        Raise `TooFewScores` instead of warning when only +inf keeps the promise.
    observer
        Called after every round with (round, message, answer).
    **options
        The method's own options, see `METHODS[method].options`.

    Examples
    --------
    >>> import numpy as np
    >>> from conformesh import Network, calibrate
    >>> rng = np.random.default_rng(0)
    >>> result = calibrate([rng.random(50) for _ in range(20)], Network.torus(5, 4), alpha=0.1)
    >>> result.certificate.kind, result.certificate.required_rank
    ('counted', 918)
    """
    started = time.perf_counter()
    samples = devices if isinstance(devices, Samples) else Samples.of(devices, network.ids)
    if samples.trials > 1:
        raise ValueError(f"calibrate takes one trial, got samples of {samples.trials}; use calibrate_batch")
    batch = calibrate_batch(samples, network, (alpha,), method, observer=observer, **options)
    n, required = int(samples.sizes.sum()), batch.outcome.certificates[0][0].required_rank
    if isinstance(required, int) and required > n:
        words = (
            f"alpha={alpha} needs rank {required} but there are only {n} scores: the threshold is +inf and every "
            "prediction set holds all labels; use more scores or a larger alpha"
        )
        if strict:
            raise TooFewScores(words)
        warnings.warn(words, TooFewScores, stacklevel=2)
    for note in batch.outcome.notes:
        warnings.warn(note, CalibrationNote, stacklevel=2)
    return one_result(batch, samples, network, method, alpha, 0, 0, score, time.perf_counter() - started)


@dataclass(frozen=True, eq=False)
class Batch:
    """Many calibrations from one run: every trial and every alpha, with the cost of one of them."""

    outcome: Outcome
    cost: Cost
    options: dict[str, Any]


def calibrate_batch(
    samples: Samples,
    network: Network,
    alphas: Sequence[Alpha],
    method: str,
    *,
    observer: Observer | None = None,
    joint: bool = False,
    **options: Any,
) -> Batch:
    """Calibrate every trial of `samples` at every alpha in one run of the simulator.

    Returns thresholds of shape (devices, trials, alphas), ``certificates[trial][alpha]`` and the cost of a single run,
    as if each trial had been run alone; a search with stages counts those of the slowest. With `joint` the cost is that
    of the whole: the trials are groups of one network that are calibrated together.
    """
    levels: tuple[Fraction, ...] = tuple(exact_alpha(alpha) for alpha in alphas)
    if not levels:
        raise ValueError("calibration needs at least one alpha, got none")
    if samples.devices != network.devices:
        raise ValueError(
            f"the network {network.name!r} has {network.devices} devices but scores came for {samples.devices}; "
            "pass one array per device (empty where a device has none)"
        )
    entry, chosen = get_method(method), make_options(method, options)
    runs = 1 if joint else samples.trials * (len(levels) if entry.per_alpha else 1)
    order = memory_order(network) if observer is None else None
    if order is None:
        site, mine = Site.everywhere(network, samples.sizes), samples
    else:
        site, mine = Site(network, order, samples.sizes), samples.taken(order)
    outcome, cost = Simulator(network, observer, order).run(entry.protocol(site, mine, levels, chosen), runs)
    if order is not None:
        outcome = _by_row(outcome, inverse(order))
    named = {name: getattr(chosen, name) for name in entry.option_names()}
    return Batch(outcome, cost, {name: _plain(value) for name, value in named.items()})


def _by_row(outcome: Outcome, place: NDArray[np.int64]) -> Outcome:
    """Return an outcome in the order of the network's rows; ``place[k]`` says where row k stood."""

    def of_row(ranks: int | tuple[int, ...] | None) -> int | tuple[int, ...] | None:
        return tuple(ranks[i] for i in place) if isinstance(ranks, tuple) else ranks

    certificates = [
        [replace(c, required_rank=of_row(c.required_rank), counted_rank=of_row(c.counted_rank)) for c in row]
        for row in outcome.certificates
    ]
    estimates = None if outcome.estimates is None else outcome.estimates[place]
    return replace(outcome, thresholds=outcome.thresholds[place], certificates=certificates, estimates=estimates)


def one_result(
    batch: Batch,
    samples: Samples,
    network: Network,
    method: str,
    alpha: Alpha,
    trial: int,
    level: int,
    score: Score | None,
    seconds: float,
) -> Calibration:
    """Take one (trial, level) out of a batch."""
    outcome = batch.outcome
    thresholds = outcome.thresholds[:, trial, level]
    bracket = None
    if outcome.brackets is not None and np.isfinite(thresholds).all():
        with np.errstate(over="ignore"):  # wider than what was found, so that no end of it is a score
            reach = 1.5 * float(np.abs(outcome.brackets[:, trial, level] - thresholds[0]).max())
            around = (float(thresholds[0]) - reach, float(thresholds[0]) + reach)
        bracket = around if np.isfinite(around).all() else None
    return Calibration(
        method=method,
        alpha=float(exact_alpha(alpha)),
        thresholds=thresholds,
        device_ids=network.ids,
        scores=int(samples.sizes[:, trial].sum()),
        certificate=outcome.certificates[trial][level],
        cost=batch.cost,
        estimate=None if outcome.estimates is None else float(outcome.estimates[:, trial, level].max()),
        seconds=seconds,
        network=network.name,
        options={**batch.options, **outcome.facts},
        score=score,
        notes=outcome.notes,
        bracket=bracket,
    )


def _plain(option: Any) -> Any:
    """Return an option as it may stand in a JSON file: one's own matrix or weights by name only."""
    if option is None or isinstance(option, str | bool | int | float | tuple):
        return option
    return getattr(option, "name", "matrix")


def counted_ranks(samples: Samples, thresholds: ArrayLike, trial: int = 0) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Count all scores at or below each threshold: the truth a certificate speaks of, for checks and reports."""
    return np.searchsorted(np.sort(samples.pooled(trial)), np.asarray(thresholds), side="right")
