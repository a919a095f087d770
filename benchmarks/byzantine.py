"""Byzantine devices: coverage of the honest devices and size of their sets, by attack and by rule.

python benchmarks/byzantine.py DATA everything, with CIFAR-100 logits (NPZ of logits and labels) in the folder DATA;
                                    writes byzantine.csv
run.py takes the folder from CONFORMESH_DATA, and makes outputs of its own where there is none.

A draw gives 50 calibration rows a device, on average, to devices with classes of their own; which of them lie is drawn
anew. Coverage and labels are measured on all other rows of the honest devices. Plain is what all exact methods come to
with what was said (e-dcp), trimmed is r-dcp; each by the swap rank (target `sizes`) and by the published one with an
imagined score per device (target `paper`). Beside them, the quantile of quantiles (fedcp-qq), which asks for devices
that are alike. Byzantine devices know every report. A cell holds with the noise of its draws: three standard errors.
"""

from __future__ import annotations

import math
import os
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path

import numpy as np
from harness import Row, Series
from numpy.typing import NDArray

from conformesh import Network
from conformesh.kernels.ranks import Requirement, conformal_threshold
from conformesh.kernels.weighted_scores import WeightedScores
from conformesh.pipeline.solver import solve_draws
from conformesh.protocols.attacks import ATTACKS, AttackerView, scores_from_report
from conformesh.protocols.bounds.quantile_of_quantiles import best_ranks
from conformesh.protocols.histogram_reports import Report

Floats = NDArray[np.float64]
ALPHA, EACH, BINS = 0.1, 50, 4096
DRAWS = {20: 60, 100: 20}  # by number of devices
NOTHING, TWICE = "no attack", "two-faced"  # two words of one device are no scores that plain rules could count
SETTINGS = {20: (1, 2, 3, 4, 5), 100: (1, 3, 5, 8, 10)}  # Byzantine devices by number of devices
MANY = (20, 30, 40)  # of 100: what [Kang2024] tries, besides 10
KINDS = ("all-low", "all-high", "noise")  # that it tries them with
RANK_RULES = ("plain ghost", "plain swap", "trimmed ghost", "trimmed swap", "quantile of quantiles")


@dataclass(frozen=True)
class Cell:
    """Line of byzantine.csv: means of draws; labels are infinite where a threshold is, in `endless` of the draws."""

    data: str
    devices: int
    byzantine: int
    attack: str
    rule: str
    draws: int
    coverage: float
    error: float
    labels: float
    endless: float


@dataclass(frozen=True, eq=False)
class Draw:
    """What every device holds: calibration scores, scores of true labels of new rows, and of all their labels."""

    held: list[Floats]
    true: list[Floats]
    every: list[Floats]


def outputs(folder: Path | None) -> tuple[str, Floats, NDArray[np.int64]]:
    """Return logits and labels, by name."""
    if folder is not None:
        data = np.load(folder / "cifar100_logits.npz")
        return "CIFAR-100", data["logits"].astype(np.float64), data["labels"].astype(np.int64).ravel()
    rng = np.random.default_rng(0)
    labels = np.arange(10_000) % 100
    return "made", rng.normal(size=(10_000, 100)) + 3 * (labels[:, None] == np.arange(100)), labels


def drawn(table: Floats, labels: NDArray[np.int64], devices: int, seed: int) -> Draw:
    """Return a draw; the classes go to devices in an order of its own, so that the first devices may be any."""
    rng = np.random.default_rng(seed)
    classes = table.shape[1]
    owner = (rng.permutation(devices)[np.arange(classes) * devices // classes])[labels]
    rows = rng.permutation(len(labels))
    held, rest = rows[: EACH * devices], rows[EACH * devices :]
    true = table[np.arange(len(labels)), labels]
    return Draw(
        [true[held[owner[held] == k]] for k in range(devices)],
        [true[rest[owner[rest] == k]] for k in range(devices)],
        [table[rest[owner[rest] == k]].ravel() for k in range(devices)],
    )


# --- what is said, and what rules make of it --------------------------------------------------------------------------


def said(draw: Draw, byzantine: int, attack: str, seed: int) -> list[Floats]:
    """Return the scores that everybody says it holds; the first devices lie."""
    if attack in (NOTHING, TWICE) or not byzantine:
        return draw.held
    pooled = np.concatenate(draw.held)
    low, high = float(pooled.min()), float(pooled.max())
    reports = [Report.of(np.sort(own), low, high, BINS) for own in draw.held]
    scene = AttackerView(reports[byzantine:], np.random.default_rng([seed, 1]))
    return [*(scores_from_report(ATTACKS[attack](own, scene)) for own in reports[:byzantine]), *draw.held[byzantine:]]


@cache
def _ranks(sizes: tuple[int, ...]) -> tuple[tuple[int, ...], int]:
    found = best_ranks(np.array(sizes), 1 - ALPHA)
    return ((), 0) if found is None else (found.local, found.server)


def of_quantiles(words: Sequence[Floats]) -> float:
    """Return the quantile of quantiles."""
    some = [own for own in words if len(own)]
    local, server = _ranks(tuple(map(len, some)))
    if not server:
        return math.inf
    return float(np.sort([np.sort(own)[rank - 1] for own, rank in zip(some, local, strict=True)])[server - 1])


def plain_swap(words: Sequence[Floats]) -> float:
    """Return the threshold of rank ceil((1 - alpha) n) + 1 of all scores."""
    pooled = np.sort(np.concatenate(words))
    rank = math.ceil(round((1 - ALPHA) * len(pooled), 6)) + 1
    return float(pooled[rank - 1]) if rank <= len(pooled) else math.inf


DEFAULT: dict[str, Callable[[Sequence[Floats]], float]] = {
    "plain ghost": lambda words: conformal_threshold(np.concatenate(words), ALPHA, len(words)),
    "plain swap": plain_swap,
    "quantile of quantiles": of_quantiles,
}
TRIMMED = {"trimmed ghost": Requirement("paper", "ghost"), "trimmed swap": Requirement("sizes", "swap")}


def thresholds(draws: Sequence[Draw], byzantine: int, attack: str, rule: str) -> Floats:
    """Return the threshold of every draw by a rule."""
    if rule in DEFAULT:
        return np.array([DEFAULT[rule](said(draw, byzantine, attack, seed)) for seed, draw in enumerate(draws)])
    faults = None if attack == NOTHING else {"byzantine": tuple(range(byzantine)), "attack": attack}
    network = Network.complete(len(draws[0].held))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        batch = solve_draws(
            WeightedScores.of_trials([draw.held for draw in draws]),
            network,
            [ALPHA],
            "r-dcp",
            requirement=TRIMMED[rule],
            byzantine=byzantine,
            bins=BINS,
            faults=faults,
        )
    return np.asarray(batch.outcome.thresholds[0, :, 0])


def measured(data: str, draws: Sequence[Draw], byzantine: int, attack: str, rule: str, labels: int) -> Cell:
    """Return coverage and labels of the honest, as the rule's target weighs devices."""
    found, rows = thresholds(draws, byzantine, attack, rule), []
    for draw, tau in zip(draws, found.tolist(), strict=True):
        honest = [k for k in range(byzantine, len(draw.held)) if len(draw.true[k])]
        extra = 1 if rule.endswith("ghost") else 0
        shares = np.array([len(draw.held[k]) + extra for k in honest], dtype=np.float64)
        covered = np.array([(draw.true[k] <= tau).mean() for k in honest])
        size = np.array([(draw.every[k] <= tau).mean() * labels for k in honest])
        rows.append((covered @ shares / shares.sum(), size @ shares / shares.sum()))
    coverage, sizes = np.array(rows).T
    endless = float(np.isinf(found).mean())
    error = float(coverage.std(ddof=1) / math.sqrt(len(rows))) if len(rows) > 1 else 0.0
    mean = math.inf if endless == 1 else float(sizes.mean())
    figures = round(float(coverage.mean()), 4), round(error, 5), round(mean, 2), round(endless, 3)
    return Cell(data, len(draws[0].held), byzantine, attack, rule, len(draws), *figures)


# --- what is shown ----------------------------------------------------------------------------------------------------


def holds(cell: Cell) -> bool:
    """Say whether the honest are covered, within three standard errors."""
    return cell.coverage + 3 * cell.error >= 1 - ALPHA


def shown(cells: Sequence[Cell], rule: str) -> str:
    """Return what a rule comes to, for people: coverage and labels."""
    (cell,) = (one for one in cells if one.rule == rule)
    some = f", infinite in {cell.endless:.0%}" if 0 < cell.endless < 1 else ""
    return f"{cell.coverage:.3f}/{'inf' if cell.endless == 1 else f'{cell.labels:.1f}'}{some}"


def judged(cells: Sequence[Cell]) -> Row:
    """Return a row of the table: by attack plain, trimmed and of quantiles, and whether the trimmed ones hold."""
    words = []
    for attack in dict.fromkeys(cell.attack for cell in cells):
        here = [cell for cell in cells if cell.attack == attack]
        there = {cell.rule for cell in here}
        rules = [
            rule for rule in ("plain swap", "trimmed swap", "trimmed ghost", "quantile of quantiles") if rule in there
        ]
        words.append(f"**{attack}** " + ", ".join(f"{_SHORT[rule]} {shown(here, rule)}" for rule in rules))
    trimmed = [cell for cell in cells if cell.rule in TRIMMED]
    error = max(cell.error for cell in trimmed)
    one = cells[0]
    return Row(
        f"{one.data}, K={one.devices}, {one.byzantine} lie, {one.draws} draws",
        target=f"trimmed: honest coverage at least {1 - ALPHA:g}, within 3 standard errors (at most {error:.4f} each)",
        met=all(map(holds, trimmed)),
        note="coverage/labels: " + "; ".join(words),
    )


_SHORT = {
    "plain swap": "plain",
    "trimmed swap": "trimmed",
    "trimmed ghost": "with ghosts",
    "quantile of quantiles": "quantiles",
}


def by_byzantine(cells: Sequence[Cell]) -> list[list[Cell]]:
    """Return the cells of each number of devices and Byzantine devices."""
    keys = dict.fromkeys((cell.data, cell.devices, cell.byzantine) for cell in cells)
    return [[cell for cell in cells if (cell.data, cell.devices, cell.byzantine) == key] for key in keys]


def asks(rule: str, attack: str) -> bool:
    """Say whether a rule is measured: ranks of quantiles take long to choose for sizes a thousand times apart."""
    return rule in TRIMMED or (attack != TWICE and (rule != "quantile of quantiles" or not attack.startswith("size")))


def cases(quick: bool) -> Iterator[tuple[int, int, str, tuple[str, ...]]]:
    """Yield devices, Byzantine devices, attack and rules."""
    every = [NOTHING, *ATTACKS]
    if quick:
        yield from ((20, 1, attack, tuple(rule for rule in RANK_RULES if asks(rule, attack))) for attack in every)
        return
    for devices, numbers in SETTINGS.items():
        for byzantine in numbers:
            for attack in every:
                yield devices, byzantine, attack, tuple(rule for rule in RANK_RULES if asks(rule, attack))
    for byzantine in MANY:
        yield from ((100, byzantine, attack, RANK_RULES) for attack in KINDS)


def everything(folder: Path | None, quick: bool) -> Iterator[list[Cell]]:
    """Yield the cells of every case."""
    data, logits, labels = outputs(folder)
    draws = {
        devices: [drawn(1 - logits, labels, devices, seed) for seed in range(2 if quick else DRAWS[devices])]
        for devices in ((20,) if quick else SETTINGS)
    }
    for devices, byzantine, attack, rules in cases(quick):
        yield [measured(data, draws[devices], byzantine, attack, rule, logits.shape[1]) for rule in rules]


def keep(cells: Sequence[Cell]) -> None:
    """Write byzantine.csv."""
    import polars as pl

    pl.DataFrame([asdict(cell) for cell in cells]).write_csv(Path(__file__).with_suffix(".csv"))


def bench(quick: bool = False) -> tuple[list[Row], list[Series]]:
    """Coverage of the honest and labels in a set, whatever some devices say."""
    named = os.environ.get("CONFORMESH_DATA")
    folder = Path(named) if named and (Path(named) / "cifar100_logits.npz").exists() else None
    found = [cell for cells in everything(folder, quick) for cell in cells]
    if not quick and folder is not None:
        keep(found)
    return [*map(judged, by_byzantine(found))], []


def main(folder: Path) -> None:
    """Measure everything, show it, and keep it."""
    kept: list[Cell] = []
    for cells in everything(folder, quick=False):
        print(judged(cells).what, judged(cells).note, flush=True)
        kept += cells
    keep(kept)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
