"""`calibrate_sides`: a threshold for each side of intervals, in one run (asymmetric CQR, and of residuals)."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
from msgspec import structs
from numpy.typing import ArrayLike, NDArray

from conformesh.calibrating import Place, collected, running, solve_draws
from conformesh.engines import Engine
from conformesh.engines.base import Observer, held_here, ids_here
from conformesh.graph.network import Network
from conformesh.inputs import as_frame, as_held, as_network, as_target, held_column, in_rows_of
from conformesh.io.arrays import as_array, columns_of
from conformesh.kernels.ranks import AUTO, Alpha, check_alpha, check_pac_confidence, exact_alpha, make_requirement
from conformesh.kernels.weighted_scores import WeightedScores
from conformesh.methods import check_keywords
from conformesh.progress import rounds_on_a_bar
from conformesh.result.calibration import Calibration
from conformesh.result.sides import Sides, two_sided
from conformesh.scores import Function, Score, as_score

LOWER, UPPER = "lower", "upper"  # the columns of a long frame


def calibrate_sides(
    devices: Iterable[ArrayLike] | Mapping[Any, ArrayLike],
    network: Network | str | Any,
    alpha: Alpha | tuple[Alpha, Alpha] = 0.1,
    method: str = "e-dcp",
    *,
    target: str | Mapping[Any, Any] = "sizes",
    rank: str = AUTO,
    pac_confidence: Alpha | None = None,
    score: Score | str | Function | None = None,
    strict: bool = False,
    observer: Observer | None = None,
    progress: bool = False,
    engine: str | Engine = "simulator",
    **options: Any,
) -> Sides:
    """Agree on how far intervals reach below a band and how far above it, in one run.

    With `CQR` this is asymmetric conformalised quantile regression [Romano2019], Theorem 2. Its intervals are a little
    longer than those of one threshold where errors are alike on both sides, and each side keeps its own promise.

    Parameters
    ----------
    devices
        What ``score.sides(outputs, labels)`` returns, one table of two columns per device; or a dict by device name, or
        a frame with the columns `device`, `lower` and `upper`.
    alpha
        How often intervals may miss in all, of which each side has half; or a pair, for the lower and the upper side.
    pac_confidence
        As in `calibrate`; it holds for both sides together.
    network, method, target, rank, score, strict, observer, progress, engine, **options
        As in `calibrate`.

    Examples
    --------
    >>> import numpy as np
    >>> from conformesh import Network, calibrate_sides, scores
    >>> rng, cqr = np.random.default_rng(0), scores.CQR()
    >>> band = np.tile([-1.0, 1.0], (50, 1))  # what a model predicts, whose errors are larger above
    >>> held = [cqr.sides(band, rng.exponential(size=50) * 2 - 1) for _ in range(8)]
    >>> result = calibrate_sides(held, Network.cycle(8), alpha=0.1, score=cqr)
    >>> result.lower.threshold < 0 < result.upper.threshold, result.certificate.kind
    (True, 'counted')
    """
    started = time.perf_counter()
    check_keywords("calibrate_sides", method, options)
    kind = as_score(score)
    if kind is not None:
        two_sided(kind)
    lower, upper = _levels(alpha)
    held = _held(devices)
    network = as_network(network, held)
    levels = [lower] if lower == upper else [lower, upper]
    sure = None if pac_confidence is None else check_pac_confidence(pac_confidence)
    if sure is not None and len(levels) == 1:  # several levels share what may fail; two sides of one level do it here
        sure = (1 + sure) / 2
    requirement = replace(make_requirement(as_target(devices, target), rank), pac_confidence=sure)
    with (
        rounds_on_a_bar(f"{method} on {network.name}", observer, progress) as watching,
        running(engine, network, watching) as host,
    ):
        mine = ids_here(host)
        own = held_here(host, in_rows_of(held, network, mine))
        tables = [_two_columns(table, name) for name, table in zip(mine, own, strict=True)]
        samples = WeightedScores.of_trials([[table[:, side] for table in tables] for side in (0, 1)], mine)
        batch = solve_draws(
            samples, network, levels, method, requirement=requirement, joint=True, engine=host, **options
        )
    n = batch.sizes.sum(axis=0)
    places = [
        Place(LOWER, lower, int(n[0]), 0, 0),
        Place(UPPER, upper, int(n[1]), 1, len(levels) - 1),
    ]
    both = collected(batch, places, network, method, kind, strict, started)
    return Sides(*(_both_sure(both.get(float(place.alpha), place.group), pac_confidence) for place in places))


def _levels(alpha: Any) -> tuple[Fraction, Fraction]:
    """Return what the lower and the upper side may miss."""
    if not isinstance(alpha, tuple | list):
        half = check_alpha(alpha) / 2
        return half, half
    if len(alpha) != 2:
        raise ValueError(f"alpha must be one number, or a pair for the lower and the upper side, got {len(alpha)}")
    lower, upper = (
        exact_alpha(one, f"alpha of the {side} side") for one, side in zip(alpha, (LOWER, UPPER), strict=True)
    )
    if lower + upper >= 1:
        raise ValueError(f"the alphas of both sides must add up to less than 1, got {alpha[0]} + {alpha[1]}")
    check_alpha(lower + upper)
    return lower, upper


def _held(devices: Any) -> Any:
    """Return the sides by device: two columns of a frame side by side, or as `as_held` does."""
    devices = as_frame(devices, LOWER)
    if columns_of(devices) is not None:
        each = [held_column(devices, name, name) for name in (LOWER, UPPER)]
        return {name: np.stack([each[0][name], each[1][name]], axis=1) for name in each[0]}
    held = as_held(devices)
    if isinstance(held, WeightedScores):
        raise TypeError(
            "calibrate_sides takes one table of two columns per device, a dict or a frame, got WeightedScores"
        )
    return held


def _two_columns(table: Any, name: str) -> NDArray[Any]:
    array = as_array(table, f"device {name}")
    if array.shape == (0,):
        return array.reshape(0, 2)
    if array.ndim != 2 or array.shape[1] != 2:
        raise ValueError(
            f"device {name}: sides must have two columns, how far labels lie below and above, got shape {array.shape}; "
            "score.sides(outputs, labels) returns them"
        )
    return array


def _both_sure(side: Calibration, pac_confidence: Alpha | None) -> Calibration:
    """Return a side whose certificate says with which probability both hold."""
    if pac_confidence is None or side.certificate.pac_confidence is None:
        return side
    return replace(
        side, certificate=structs.replace(side.certificate, pac_confidence=float(exact_alpha(pac_confidence)))
    )
