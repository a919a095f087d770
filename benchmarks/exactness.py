"""The exact threshold: without pooling against pooling and sorting everything, and from scores in hand."""

from __future__ import annotations

import numpy as np
from harness import Row, Series, compared, times_of

from conformesh import Network, calibrate, conformal_rank, conformal_threshold
from conformesh.kernels.weighted_scores import WeightedScores
from conformesh.methods import PAPER_REQUIREMENT
from conformesh.pipeline.solver import solve_draws


def _without_pooling(n: int, repeats: int) -> list[Row]:
    """E-DCP on a torus of 20 devices beside one sort of everything; the thresholds must be equal."""
    network = Network.torus(5, 4)
    values = np.random.default_rng(3).normal(size=n)
    sizes, rank = np.full(20, n // 20), conformal_rank(n, 0.1, 20)
    held = WeightedScores.from_flat(values, sizes)
    times = times_of(
        {
            "ours": lambda: solve_draws(
                WeightedScores.from_flat(values, sizes), network, [0.1], "e-dcp", requirement=PAPER_REQUIREMENT
            ),
            "held": lambda: solve_draws(held, network, [0.1], "e-dcp", requirement=PAPER_REQUIREMENT),
            "sort": lambda: np.sort(np.concatenate(np.split(values, 20)))[rank - 1],
        },
        repeats,
    )
    found = calibrate(np.split(values, 20), network, 0.1, mixture="paper", rank_rule="ghost").threshold
    if found != np.sort(values)[rank - 1]:
        raise AssertionError(f"E-DCP ends at {found}, the pooled sort at {np.sort(values)[rank - 1]}")
    small = {"target": "under 5 ms", "least": 0.0} if n == 1000 else {}
    first = compared(f"E-DCP, K=20, n={n:,}, torus", times["ours"], times["sort"], "pooling and sorting", **small)  # type: ignore[arg-type]
    if small:
        first = Row(**{**first.to_dict(), "met": first.ours is not None and first.ours < 5e-3})
    later = compared(f"the same, scores sorted before, n={n:,}", times["held"], times["sort"], "pooling and sorting")
    return [first, later]


def _in_hand(n: int, repeats: int) -> list[Row]:
    """The threshold of pooled scores beside NumPy's partition at the same rank."""
    values = np.random.default_rng(4).normal(size=n)
    rank = conformal_rank(n, 0.1)
    network, parts = Network.torus(5, 4), np.split(values, 20)
    times = times_of(
        {
            "ours": lambda: conformal_threshold(values, 0.1),
            "partition": lambda: np.partition(values, rank - 1)[rank - 1],
            "fcp": lambda: calibrate(parts, network, 0.1, "fcp"),
        },
        repeats,
    )
    if conformal_threshold(values, 0.1) != np.partition(values, rank - 1)[rank - 1]:
        raise AssertionError("the threshold in hand differs from the partition")
    what = f"threshold of {n:,} scores in hand"
    target = "at most 1.5 times NumPy's partition"
    return [
        compared(what, times["ours"], times["partition"], "np.partition", target, 1 / 1.5),
        compared(
            f"`calibrate`, fcp, K=20, n={n:,}",
            times["fcp"],
            times["partition"],
            "np.partition",
            note="sorts per device",
        ),
    ]


def bench(quick: bool = False) -> tuple[list[Row], list[Series]]:
    """E-DCP beside the pooled sort it must equal; thresholds from 1e6 scores beside np.partition."""
    rows: list[Row] = []
    for n in (1000, 2000) if quick else (1000, 100_000, 1_000_000, 10_000_000):
        rows += _without_pooling(n, 2 if quick else 5)
    rows += _in_hand(2000 if quick else 1_000_000, 2 if quick else 9)
    return rows, []
