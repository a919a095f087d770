"""What the schedules of E-DCP send: by each preference, beside every schedule by hand, and how that grows.

python benchmarks/schedules.py DATA             everything, with CIFAR-100 logits (NPZ of logits and labels) in the
                                                folder DATA; writes schedules.csv
python benchmarks/schedules.py DATA PICTURE     draws the front of rounds against bits on torus and chain, for the page
                                                about costs (docs/images/front.png), from the first draw
run.py takes the folder from CONFORMESH_DATA.

Twenty draws of CIFAR-100 scores on 20 devices with five classes each: as float32 numbers (1 - logit), as confidences
(1 - softmax in float64), and as float64 numbers (logits with noise below every gap). Then many scores, and many
devices, with drawn scores. Sizes are known to all; trees, roots and windows are counted. Every threshold is compared
with the pooled sort. What is balanced is rounds times bits.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from harness import Row, Series
from numpy.typing import NDArray

from conformesh import Network
from conformesh.kernels.weighted_scores import WeightedScores
from conformesh.pipeline.solver import solve_draws

Floats = NDArray[np.float64]
Devices = list[Floats]  # the scores of each
ALPHA, DRAWS, DEVICES, SCORES = 0.1, 20, 20, 1000
NETWORKS = ("chain", "cycle", "star", "torus", "complete")
LARGE = ("torus", "geometric", "random-regular", "scale-free")
PREFERENCES = ("rounds", "numbers", "bits", "balanced")
BY_HAND: dict[str, dict[str, str]] = {
    "top-k flood": {"schedule": "top-k", "aggregate": "flood"},
    "top-k tree": {"schedule": "top-k", "aggregate": "tree"},
    "window": {"schedule": "window"},
    "count": {"schedule": "count"},
}
NEAR = 1.5  # times the best by hand, at most
LIMITS: dict[str, dict[str, Sequence[float]]] = {  # by preference: of each figure, network by network
    "rounds": {"rounds": (19, 10, 2, 4, 1), "numbers": (260,) * 5},
    "numbers": {"numbers": (24, 24, 12, 16, 12)},
    "bits": {"bits": (560, 560, 210, 340, 210)},
    "balanced": {"rounds": (55, 55, 6, 22, 6), "bits": (700,) * 5},
}
LONGER = {"logits": 1.0, "confidences": 1.6, "float64": 1.7}  # how many more bits scores of each kind may take


@dataclass(frozen=True)
class Line:
    """One line of schedules.csv: means over the draws, and the most of any."""

    part: str
    data: str
    network: str
    devices: int
    scores: int
    way: str
    schedule: str
    passes: str
    draws: int
    rounds: float
    numbers: float
    bits: float
    most_rounds: float
    most_numbers: float
    most_bits: float

    @property
    def balanced(self) -> float:
        """Rounds times bits."""
        return self.rounds * self.bits


# --- scores -----------------------------------------------------------------------------------------------------------


def real(folder: Path, kind: str, draws: int) -> list[Devices]:
    """Return draws of CIFAR-100 scores, every device with five classes of its own."""
    data = np.load(folder / "cifar100_logits.npz")
    logits, labels = data["logits"].astype(np.float32), data["labels"].astype(int).ravel()
    own = np.arange(len(labels)), labels
    if kind == "confidences":
        shares = np.exp(logits.astype(np.float64) - logits.max(axis=1, keepdims=True))
        scores = 1 - shares[own] / shares.sum(axis=1)
    else:
        scores = (np.float32(1) - logits[own]).astype(np.float64)
    found = []
    for seed in range(draws):
        rng = np.random.default_rng(seed)
        rows = rng.permutation(len(labels))[:SCORES]
        drawn = scores[rows]
        if kind == "float64":
            gaps = np.diff(np.unique(drawn))
            drawn = drawn + rng.random(SCORES) * gaps.min() / 2
        found.append([drawn[labels[rows] * DEVICES // 100 == k] for k in range(DEVICES)])
    return found


def normal(devices: int, each: int, shift: float) -> Devices:
    """Return normal scores; the last device's are larger by `shift` standard deviations than the first one's."""
    rng = np.random.default_rng(devices + each)
    return [rng.normal(shift * k / max(devices - 1, 1), size=each) for k in range(devices)]


# --- runs -------------------------------------------------------------------------------------------------------------


def sent(part: str, data: str, network: Network, draws: Sequence[Devices], way: str, options: dict[str, str]) -> Line:
    """Run one way on every draw, compare each threshold with the pooled sort, and return what was sent."""
    costs, schedules, passes = [], [], []
    for scores in draws:
        batch = solve_draws(WeightedScores.of(scores), network, (ALPHA,), "e-dcp", **options)
        rank = batch.outcome.certificates[0][0].required_rank
        expected = np.sort(np.concatenate(scores))[rank - 1]
        if not (batch.outcome.thresholds == expected).all():
            raise AssertionError(f"{way} on {network.name}: not the pooled sort's {expected}")
        facts = batch.outcome.facts
        costs.append((batch.cost.rounds, batch.cost.numbers_per_device, batch.cost.bits_per_device))
        schedules.append(f"{facts['schedule']} {facts['over']}")
        passes.append(facts.get("passes", "1"))
    mean, most = np.mean(costs, axis=0).round(2).tolist(), np.max(costs, axis=0).round(2).tolist()
    n = sum(map(len, draws[0]))
    described = _often(schedules), _often(passes)
    return Line(part, data, network.name, network.devices, n, way, *described, len(draws), *mean, *most)


def _often(values: Sequence[str]) -> str:
    """Return what was used, and how often where it differed from draw to draw."""
    counts = {value: values.count(value) for value in sorted({*values})}
    return next(iter(counts)) if len(counts) == 1 else ", ".join(f"{value} ({many}x)" for value, many in counts.items())


def automatic(part: str, data: str, network: Network, draws: Sequence[Devices]) -> list[Line]:
    """Run E-DCP by every preference."""
    return [sent(part, data, network, draws, f"prefer {one}", {"prefer": one}) for one in PREFERENCES]


def beside_hand(part: str, data: str, network: Network, scores: Devices) -> list[Line]:
    """Run E-DCP by every preference and every schedule by hand."""
    lines = automatic(part, data, network, [scores])
    flooded = next((line for line in lines if line.schedule == "top-k flood"), None)
    for way, options in BY_HAND.items():
        if way == "top-k flood" and flooded is not None:  # the same run, and a long one
            lines.append(Line(**{**asdict(flooded), "way": way}))
        else:
            lines.append(sent(part, data, network, [scores], way, options))
    return lines


# --- what is shown ----------------------------------------------------------------------------------------------------


def judged(kind: str, prefer: str, lines: Sequence[Line]) -> Row:
    """Return the row of a preference on one kind of scores, all networks beside their limits."""
    missed, asked = [], []
    for figure, limits in LIMITS[prefer].items():
        allowed = [limit * (LONGER[kind] if prefer == "bits" else 1) for limit in limits]
        shown = [f"{limit:.0f}" for limit in allowed]
        asked.append(f"at most {' / '.join(shown[: 1 if len({*shown}) == 1 else None])} {figure}")
        for line, limit in zip(lines, allowed, strict=True):
            if (value := getattr(line, figure)) > limit:
                missed.append(f"{line.network.split()[0]} {value:g} {figure}, not {limit:.0f}")
    figures = "; ".join(
        f"{name} {line.rounds:g} / {line.numbers:.1f} / {line.bits:.0f} ({line.schedule.split()[0]})"
        for name, line in zip(NETWORKS, lines, strict=True)
    )
    note = f"rounds / numbers / bits: {figures}" + (f". Missed: {'; '.join(missed)}" if missed else "")
    what = f"CIFAR-100 {kind}, K=20, n=1000, {lines[0].draws} draws: prefer {prefer}"
    return Row(what, target=", ".join(asked), met=not missed, note=note)


def ratios(lines: Sequence[Line]) -> dict[str, tuple[float, str]]:
    """Return, by preference, how many times the best by hand its own measure is, and which schedule that best is."""
    found = {}
    for prefer in PREFERENCES:
        own = next(line for line in lines if line.way == f"prefer {prefer}")
        best = min((line for line in lines if line.way in BY_HAND), key=lambda line: getattr(line, prefer))
        found[prefer] = (getattr(own, prefer) / getattr(best, prefer), best.way)
    return found


def beside(lines: Sequence[Line]) -> Row:
    """Return the row of a network: every preference beside the best by hand."""
    found = ratios(lines)
    words = ", ".join(f"{prefer} {ratio:.2f} ({way})" for prefer, (ratio, way) in found.items())
    one = lines[0]
    return Row(
        f"{one.part}, {one.data}, {one.network}: automatic / best by hand",
        target=f"each at most {NEAR} times the best by hand",
        met=max(ratio for ratio, _ in found.values()) <= NEAR,
        note=words,
    )


def law(what: str, x: Sequence[float], lines: Sequence[Line]) -> Row:
    """Return the row of a law of growth: exponents, and what is sent at both ends."""
    words = []
    for figure in ("rounds", "numbers", "bits"):
        y = [getattr(line, figure) for line in lines]
        exponent = np.polyfit(np.log(x), np.log(y), 1)[0]
        words.append(f"{figure} {y[0]:g} to {y[-1]:g}, exponent {exponent:.2f}")
    return Row(f"{what} {x[0]:,} to {x[-1]:,}: {lines[0].way}", note="; ".join(words))


def grown(what: str, sizes: Iterable[int], network: Callable[[int], Network], each: Callable[[int], int]) -> Any:
    """Yield the lines of a growing case by each preference, with its row."""
    by_way: dict[str, list[tuple[int, Line]]] = {}
    for size in sizes:
        built = network(size)
        scores = normal(built.devices, each(size), 0.0)
        for prefer in PREFERENCES:
            if prefer == "rounds" and built.devices * built.diameter > FLOODED:
                continue  # a flood of so many scores takes minutes
            line = sent(what, "normal", built, [scores], f"prefer {prefer}", {"prefer": prefer})
            by_way.setdefault(prefer, []).append((size, line))
    for found in by_way.values():
        yield law(what, [size for size, _ in found], [line for _, line in found]), [line for _, line in found]


FLOODED = 12_000  # devices times diameter up to which a flood is run to see how it grows


def measured(folder: Path | None, quick: bool) -> Iterator[tuple[Row, list[Line]]]:
    """Yield every row with the lines behind it."""
    draws = 1 if quick else DRAWS
    for kind in LONGER if folder is not None else ():
        scores = real(folder, kind, draws)
        lines = [automatic("K=20, n=1000", kind, Network.of(name, DEVICES), scores) for name in NETWORKS]
        for prefer, of_one in zip(PREFERENCES, zip(*lines, strict=True), strict=True):
            yield judged(kind, prefer, of_one), [*of_one]
    each, devices = (100, 30) if quick else (10_000, 1000)
    for data, shift in (("normal", 0.0), ("normal, shifted by device", 4.0)):
        for name in NETWORKS:
            what = f"K=20, n={DEVICES * each:,}"
            lines_ = beside_hand(what, data, Network.of(name, DEVICES), normal(DEVICES, each, shift))
            yield beside(lines_), lines_
    for name in LARGE:
        lines_ = beside_hand(f"K={devices:,}, 50 each", "normal", Network.of(name, devices), normal(devices, 50, 0.0))
        yield beside(lines_), lines_
    top = 1 if quick else 3
    cases = (
        ("torus, 50 each, devices K", (20, 100, 1000, 10_000)[: top + 1], Network.torus, lambda K: 50),
        ("torus of 20, scores n", (1000, 10_000, 100_000, 1_000_000)[: top + 1], _torus, lambda n: n // 20),
        ("chain, 50 each, devices K", (10, 32, 100, 316, 1000)[: top + 2], Network.chain, lambda K: 50),
    )
    for case in cases:
        yield from grown(*case)


def _torus(_: int) -> Network:
    return Network.torus(5, 4)


def bench(quick: bool = False) -> tuple[list[Row], list[Series]]:
    """Rounds, numbers and bits by each preference and schedule, exact every time, and how they grow."""
    named = os.environ.get("CONFORMESH_DATA")
    folder = Path(named) if named and (Path(named) / "cifar100_logits.npz").exists() else None
    found = [*measured(folder, quick)]
    if not quick and folder is not None:
        keep([line for _, lines in found for line in lines])
    rows = [row for row, _ in found]
    if folder is None:
        rows.insert(0, Row("CIFAR-100", note="not measured: CONFORMESH_DATA names no folder with cifar100_logits.npz"))
    return rows, []


def keep(lines: Sequence[Line]) -> None:
    """Write schedules.csv."""
    import polars as pl

    pl.DataFrame([asdict(line) for line in lines]).write_csv(Path(__file__).with_suffix(".csv"))


def draw(folder: Path, picture: Path) -> None:
    """Draw rounds against bits."""
    from conformesh.lab.comparison import cost_fronts
    from conformesh.lab.comparison_plots import draw_cost_fronts

    [scores] = real(folder, "logits", 1)
    draw_cost_fronts(picture, cost_fronts(scores, [Network.torus(5, 4), Network.chain(DEVICES)], ALPHA))


def main(folder: Path) -> None:
    """Measure everything, show it, and keep it."""
    kept: list[Line] = []
    for row, lines in measured(folder, quick=False):
        print(f"{row.what}: {row.note}" + ("" if row.met is None else f" [{'met' if row.met else 'NOT MET'}]"))
        kept += lines
    keep(kept)


if __name__ == "__main__":
    draw(Path(sys.argv[1]), Path(sys.argv[2])) if sys.argv[2:] else main(Path(sys.argv[1]))
