"""What `plan` says that the schedules of E-DCP send, beside what they send: means of runs on scores drawn afresh.

python benchmarks/planned.py            everything, half an hour on a quiet core; writes planned.csv
python benchmarks/planned.py K=20       the parts whose names begin so; writes nothing

Every schedule by hand and by every preference; normal, uniform and lognormal scores, of which the planner is told
nothing. Plans go by runs on draws of the planner's own where these are cheap, else by a law; `sketched` are plans for
networks that the planner did not build. An error is planned / run - 1.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
from harness import Row, Series
from numpy.typing import NDArray
from schedules import BY_HAND, LARGE, NETWORKS

from conformesh import Network
from conformesh.kernels.ranks import exact_alpha
from conformesh.kernels.weighted_scores import WeightedScores
from conformesh.methods import Way
from conformesh.planning.planner import predict
from conformesh.planning.sending import Sent
from conformesh.planning.terrain import Terrain, terrain_of
from conformesh.solver import solve_draws

Floats = NDArray[np.float64]
DRAWN: dict[str, Callable[[np.random.Generator, int], Floats]] = {
    "normal": lambda rng, many: rng.normal(size=many),
    "uniform": lambda rng, many: rng.random(many),
    "lognormal": lambda rng, many: rng.lognormal(size=many),
}
FIGURES = ("rounds", "numbers", "bits")
WAYS: dict[str, dict[str, str]] = {
    **BY_HAND,
    **{f"prefer {one}": {"prefer": one} for one in ("rounds", "numbers", "bits", "balanced")},
}
OVER_TREE = tuple(way for way in WAYS if way not in ("top-k flood", "prefer rounds"))
BRIEF = tuple(way for way in OVER_TREE if way != "window")
SEARCHED = ("window", "count", "prefer numbers", "prefer balanced")
ALPHAS = ("0.05", "0.1", "0.3")
CLOSE = 0.2  # by how much a plan may be off
FIRST = 7001  # seed of the first draw; the planner's own draws have others


@dataclass(frozen=True)
class Case:
    """Runs of several schedules on one network: which, at which levels, and on how many draws of each shape."""

    part: str
    topology: str
    devices: int
    each: int
    draws: int
    alphas: Sequence[str] = ("0.1",)
    ways: Sequence[str] = tuple(WAYS)
    shapes: Sequence[str] = tuple(DRAWN)


@dataclass(frozen=True)
class Line:
    """One line of planned.csv: means of runs, and of the plan."""

    part: str
    network: str
    devices: int
    scores: int
    alpha: str
    way: str
    data: str
    draws: int
    by: str
    rounds: float
    numbers: float
    bits: float
    planned_rounds: float
    planned_numbers: float
    planned_bits: float

    def error(self, figure: str) -> float:
        """Return by which part of the runs' mean the plan is off."""
        return float(getattr(self, f"planned_{figure}") / getattr(self, figure) - 1)

    @property
    def worst(self) -> tuple[float, str]:
        """The largest error of all figures, and which it is of."""
        return max(((self.error(figure), figure) for figure in FIGURES), key=lambda one: abs(one[0]))


CASES = (
    *(Case("K=20, n=1,000", name, 20, 50, 4, ALPHAS) for name in NETWORKS),
    *(Case("K=20, n=200,000", name, 20, 10_000, 12, ways=BRIEF) for name in NETWORKS),
    *(Case("K=20, n=200,000", name, 20, 10_000, 40, ways=("window",)) for name in NETWORKS),  # now and then a wide one
    *(Case("K=20, n=200,000, flood", name, 20, 10_000, 1, ways=("top-k flood",)) for name in NETWORKS),
    *(Case("K=1,000, 50 each", name, 1000, 50, 2, ALPHAS, OVER_TREE) for name in LARGE),
    Case("K=200, 50 each, flood", "torus", 200, 50, 1, ways=("top-k flood",)),
    Case("K=10,000, 50 each", "torus", 10_000, 50, 3, ways=OVER_TREE),
    *(Case("K=100,000, 50 each", name, 100_000, 50, 1, ways=SEARCHED) for name in ("torus", "geometric")),
)
TINY = (
    Case("K=20, n=200", "torus", 20, 10, 2, ways=("window", "top-k flood")),
    Case("K=2,000, 5 each", "torus", 2000, 5, 1, ways=("window",), shapes=("normal",)),
)


@lru_cache(maxsize=2)
def _network(topology: str, devices: int) -> Network:
    return Network.of(topology, devices)


def _run(network: Network, scores: Floats, alpha: str, way: str) -> tuple[float, float, float]:
    samples = WeightedScores.from_flat(scores, np.full(network.devices, len(scores) // network.devices))
    cost = solve_draws(samples, network, (alpha,), "e-dcp", **WAYS[way]).cost
    return float(cost.rounds), float(cost.numbers_per_device), float(cost.bits_per_device)


def _planned(terrain: Terrain, alpha: str, way: str) -> Sent:
    options = {"schedule": "auto", **WAYS[way]}
    found = predict(Way("e-dcp", options["schedule"]), terrain, exact_alpha(alpha), options)
    return Sent.of(found.stretches)


def compared(case: Case) -> Iterator[Line]:
    """Run and plan everything of a case."""
    network = _network(case.topology, case.devices)
    grounds = {"built": terrain_of(case.topology, case.devices, case.each)}
    sketched = terrain_of(case.topology, case.devices, case.each, build=False)
    if sketched.built is None:
        grounds["sketched"] = sketched
    n = case.devices * case.each
    for alpha in case.alphas:
        for way in case.ways:
            plans = {}
            for name, terrain in grounds.items():
                try:
                    plans[name] = _planned(terrain, alpha, way)
                except ValueError:  # the planner says why: nothing is planned
                    continue
            for shape in case.shapes:
                rng = np.random.default_rng([FIRST, n, [*DRAWN].index(shape)])
                runs = [_run(network, DRAWN[shape](rng, n), alpha, way) for _ in range(case.draws)]
                mean = np.mean(runs, axis=0).round(2).tolist()
                for by, sent in plans.items():
                    planned = [round(x, 2) for x in (sent.rounds, sent.numbers, sent.bits)]
                    described = case.part, network.name, case.devices, n, alpha, way, shape, case.draws, by
                    yield Line(*described, *mean, *planned)


def beside(part: str, lines: Sequence[Line]) -> Row:
    """Return the row of a part: the largest errors of every figure, and what is beyond 20 %."""
    words = []
    for figure in FIGURES:
        errors = np.array([line.error(figure) for line in lines])
        words.append(f"{figure} {errors.min():+.0%} to {errors.max():+.0%}")
    far = [line for line in lines if abs(line.worst[0]) > CLOSE]
    named = "; ".join(
        f"{line.network}, alpha {line.alpha}, {line.way}, {line.data}, {line.by}: {line.worst[1]} {line.worst[0]:+.0%}"
        for line in far
    )
    note = f"{len(lines)} plans: {', '.join(words)}" + (f". Farther off: {named}" if far else "")
    return Row(part, target=f"each within {CLOSE:.0%} of the mean of runs", met=not far, note=note)


def bench(quick: bool = False) -> tuple[list[Row], list[Series]]:
    """Rounds, numbers and bits of every schedule as planned, beside runs."""
    found = [line for case in (TINY if quick else CASES) for line in compared(case)]
    if not quick:
        keep(found)
    parts = dict.fromkeys(line.part for line in found)
    return [beside(part, [line for line in found if line.part == part]) for part in parts], []


def keep(lines: Sequence[Line]) -> None:
    """Write planned.csv."""
    import polars as pl

    pl.DataFrame([asdict(line) for line in lines]).write_csv(Path(__file__).with_suffix(".csv"))


def main(begins: str = "") -> None:
    """Measure, and show every line."""
    kept = []
    for case in CASES:
        if not case.part.startswith(begins):
            continue
        began = time.perf_counter()
        for line in compared(case):
            kept.append(line)
            errors = " ".join(f"{figure} {line.error(figure):+.1%}" for figure in FIGURES)
            print(f"{line.part} | {line.network} | {line.alpha} | {line.way} | {line.data} | {line.by} | {errors}")
        print(f"-- {time.perf_counter() - began:.1f} s", flush=True)
    if not begins:
        keep(kept)


if __name__ == "__main__":
    main(*sys.argv[1:2])
