"""The paper's two methods against slow twins that follow the formulas device by device (`tests/reference.py`)."""

from __future__ import annotations

import warnings

import numpy as np
from harness import Row, Series, compared, times_of
from tests.reference import consensus_loop, q_dcp_by_fsolve, weight_matrix

from conformesh import Network, calibrate
from conformesh.graph.weights import WEIGHTS
from conformesh.kernels.weighted_scores import WeightedScores
from conformesh.pipeline.solver import solve_draws


def bench(quick: bool = False) -> tuple[list[Row], list[Series]]:
    """Q-DCP and H-DCP beside loops over devices, and Q-DCP with a thousand times more scores a device."""
    repeats = 2 if quick else 5
    return [_q_dcp(quick), _h_dcp(repeats, quick), *_many_scores(repeats, quick)], []


def _q_dcp(quick: bool) -> Row:
    rng, network = np.random.default_rng(1), Network.torus(5, 4)
    mine = [3 * rng.normal(size=50) for _ in range(20)]
    rounds = 20 if quick else 1500
    options = {"s0": 3.8, "start": "zeros", "averaging": 0, "rounds": rounds}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # fsolve complains about staircases now and then, and arrives all the same
        slow = q_dcp_by_fsolve(mine, network, 0.918, 2000.0, 2000.0, 3.8, rounds)
        times = times_of(
            {
                "ours": lambda: calibrate(mine, network, 0.1, "q-dcp", **options),
                "twin": lambda: q_dcp_by_fsolve(mine, network, 0.918, 2000.0, 2000.0, 3.8, rounds // 10),
            },
            2 if quick else 5,
        )
    found = calibrate(mine, network, 0.1, "q-dcp", **options).estimate
    if not quick and abs(slow.mean() - found) > 1e-6:
        raise AssertionError(f"the twin ends at {slow.mean()}, we at {found}")
    what = f"Q-DCP, K=20, n=1000, T={rounds}"
    twin = [10 * t for t in times["twin"]]  # of a tenth of the rounds, which are all alike
    return compared(what, times["ours"], twin, "SciPy fsolve per device", "at least 100 times as fast", 100.0)


def _h_dcp(repeats: int, quick: bool) -> Row:
    rng, network = np.random.default_rng(1), Network.torus(5, 4)
    mine = [3 * rng.normal(size=50) for _ in range(20)]
    rounds = 10 if quick else 150
    matrix = weight_matrix(network, WEIGHTS["best-constant"](network))
    x = np.array([np.histogram(m, 1000, (-12, 12))[0] * 20 / 1000 for m in mine])
    options = {"rounds": rounds, "bins": 1000, "range": (-12.0, 12.0)}
    times = times_of(
        {
            "ours": lambda: calibrate(mine, network, 0.1, "h-dcp", **options),
            "loop": lambda: consensus_loop(x, matrix, 1.0, rounds),
        },
        repeats,
    )
    what = f"H-DCP, K=20, M=1000, T={rounds}"
    return compared(what, times["ours"], times["loop"], "Python loop per device", "at least 30 times as fast", 30.0)


def _many_scores(repeats: int, quick: bool) -> list[Row]:
    rng, network = np.random.default_rng(2), Network.torus(5, 4)
    many = 500 if quick else 50_000
    few, lots = ([3 * rng.normal(size=n) for _ in range(20)] for n in (50, many))
    held = WeightedScores.of(few), WeightedScores.of(lots)
    times = times_of(
        {
            "few": lambda: solve_draws(held[0], network, [0.1], "q-dcp"),
            "lots": lambda: solve_draws(held[1], network, [0.1], "q-dcp"),
            "few, sorting": lambda: calibrate(few, network, 0.1, "q-dcp"),
            "lots, sorting": lambda: calibrate(lots, network, 0.1, "q-dcp"),
        },
        repeats,
    )
    what, target = f"Q-DCP rounds, n_k = {many:,}", "at most twice as long"
    return [
        compared(what, times["lots"], times["few"], "n_k = 50", target, 0.5),
        compared(f"Q-DCP with sorting, n_k = {many:,}", times["lots, sorting"], times["few, sorting"], "n_k = 50"),
    ]
