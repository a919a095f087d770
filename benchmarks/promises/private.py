"""What privacy costs in coverage, labels and spread: P-DCP beside the exact threshold and beside trusted curators.

python benchmarks/promises/private.py DATA             2,000 draws of PathMNIST (NPZ of logits and labels in the folder
                                                       DATA) and of the digits that come with scikit-learn; writes
                                                       private.csv, private.png and the tables of ../README.md
python benchmarks/promises/private.py DATA --draws 5   a try; writes nothing
python benchmarks/promises/private.py --draw           tables and picture again, from private.csv

The rows of a data set are the population. A draw gives 20 devices n of them, with replacement; devices hold different
classes. Coverage is exact for each draw: over all rows, each device weighted by its number of scores (mixture `sizes`)
or equally (`equal`). *Spread* is the standard deviation of coverage over draws, *error* the standard error of its mean.
An infinite threshold covers everything, with all labels.

Score (`lac`), grid and the rule for the number of cells were chosen on CIFAR-100 and on drawn scores, and not changed
after PathMNIST and digits were measured. Known before were the quantiles of both, and five draws of the digits with an
evenly spaced logit grid, which covered .912 at n = 2,000 and epsilon 1; they made us try other spacings on CIFAR-100.

A release is drawn as the devices of P-DCP would make it, noise included, but without masks and messages; a test
compares it with the method itself. The curators of `rivals.py` see all scores.
"""

from __future__ import annotations

import argparse
import math
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import rivals
from numpy.typing import NDArray

from conformesh.kernels.ranks import make_requirement
from conformesh.lab.datasets.digits import load_digits_on_devices
from conformesh.privacy.histogram import HistogramPlan, Release
from conformesh.protocols.p_dcp import PDCP

HERE = Path(__file__).parent
README, TABLE, PICTURE = HERE.parent / "README.md", HERE / "private.csv", HERE / "private.png"
START, END = "<!-- private -->", "<!-- end of private -->"

ALPHA, DEVICES, DRAWS = Fraction(1, 10), 20, 2000
SIZES, EPSILONS = (2000, 10_000), (1.0, 0.5, 0.1)
LEVELS = (Fraction(1, 20), Fraction(1, 10), Fraction(1, 5))  # answered together, from one release
GROUPS = (1000, 200, 50)  # scores of each group
EPOCH_SIZE, WINDOWS = 500, (1, 8, 64)  # scores of an epoch, and epochs that are added up
FILLS = (50, 80)  # scores that a device counts for, with the mixture `equal`: of about 100, half (the default) and most
CAP, MANY_DEVICES = 50, (60, 100, 200, 400)  # scores and numbers of devices, with whole devices as unit
DELTA = 1e-6  # of P-COQS, where it is not pure
REPLACED = 1.8  # epsilons that P-DCP loses if a score is replaced: .9 in the cell that it leaves, .9 in the new one

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Rng = np.random.Generator
Draw = list[Floats]  # sorted scores of each device
EQUALLY = np.full((1, DEVICES), 1 / DEVICES)  # shares of devices in coverage, for all draws
EXACT, OURS, OURS_REPLACED = "exact", "P-DCP", "P-DCP, replacing"
SEARCHED, SEARCHED_WEAKLY, SEARCHED_PURELY = "P-COQS, zCDP", "P-COQS, rho = epsilon^2/2", "P-COQS, Laplace"
CURATORS = (SEARCHED, SEARCHED_PURELY, SEARCHED_WEAKLY, "DPCP", "EXPONQ")


@dataclass(frozen=True, eq=False)
class Population:
    """A data set whose rows are drawn with replacement: scores of all labels, true labels, and the rows' devices."""

    name: str
    table: Floats
    labels: Ints
    owner: Ints

    @classmethod
    def of(cls, name: str, probabilities: Floats, labels: Ints) -> Population:
        """Share out the rows among the devices by their labels, so that devices are unlike."""
        owner = np.empty(len(labels), dtype=np.int64)
        owner[np.argsort(labels, kind="stable")] = np.arange(len(labels)) * DEVICES // len(labels)
        return cls(name, 1 - probabilities, labels, owner)

    @property
    def true(self) -> Floats:
        """The score of every row's true label."""
        return self.table[np.arange(len(self.labels)), self.labels]

    def draw(self, n: int, rng: Rng) -> Draw:
        """Return n scores, at their devices."""
        rows = rng.integers(len(self.labels), size=n)
        scores = self.true[rows]
        return [np.sort(scores[self.owner[rows] == k]) for k in range(DEVICES)]

    def coverage(self, thresholds: Floats, shares: Floats) -> Floats:
        """Return the coverage of each draw's threshold, with devices weighted by the draw's shares (draws, devices)."""
        true = self.true
        known = [np.sort(true[self.owner == k]) for k in range(DEVICES)]
        covered = [np.searchsorted(own, thresholds, side="right") / len(own) for own in known]
        return np.asarray((np.stack(covered, axis=1) * shares).sum(axis=1))

    def set_sizes(self, thresholds: Floats) -> Floats:
        """Return the mean number of labels in a set, for each draw."""
        return np.asarray(np.searchsorted(np.sort(self.table.ravel()), thresholds, side="right") / len(self.labels))


def pathmnist(folder: Path) -> Population:
    """Return PathMNIST, as a small network sees it."""
    data = np.load(folder / "pathmnist_logits.npz")
    logits, labels = data["logits"].astype(np.float64), data["labels"].astype(np.int64).ravel()
    chances = np.exp(logits - logits.max(axis=1, keepdims=True))
    return Population.of("pathmnist", chances / chances.sum(axis=1, keepdims=True), labels)


def digits() -> Population:
    """Return the digits of the demo."""
    held = load_digits_on_devices(devices=DEVICES, seed=0)
    return Population.of("digits", held.probabilities, np.asarray(held.labels, dtype=np.int64))


# --- releases ---------------------------------------------------------------------------------------------------------


def make_plan(n: int, epsilon: float, devices: int = DEVICES, target: str = "sizes", **options: Any) -> HistogramPlan:
    """Return the plan of P-DCP for `lac`, if devices are told that they may expect n scores together."""
    expected = max(round(n / devices), 1)
    return PDCP(grid="logit", epsilon=epsilon, expected_scores=expected, **options).plan(
        devices, make_requirement(target)
    )


def release_of(plan: HistogramPlan, held: Draw, rng: Rng) -> Release:
    """Return the release of these devices, each with its own share of noise.

    For the mixture `sizes` counts of devices just add up, so all scores are counted at once.
    """
    if plan.mixture == "sizes" and plan.cap is None:
        totals = plan.count(np.sort(np.concatenate(held)), 0, rng.bytes)
    else:
        totals = sum(plan.count(own, k, rng.bytes) for k, own in enumerate(held))
    return plan.release(totals + sum(plan.draw_noise(rng.bytes) for _ in range(plan.devices)))


def exact_threshold(held: Draw) -> float:
    """Return the threshold of the swap rank with nothing hidden."""
    scores = np.sort(np.concatenate(held))
    rank = math.ceil((1 - ALPHA) * len(scores)) + 1
    return float(scores[rank - 1]) if rank <= len(scores) else math.inf


# --- measurements -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Measured:
    """What a way answers in one draw, and what is public of it beforehand."""

    threshold: float
    cells: int | None = None
    inflation: float | None = None
    expected_spread: float | None = None

    @classmethod
    def of(cls, release: Release, alpha: Fraction = ALPHA) -> Measured:
        """Read a release at its last crossing."""
        answer = release.answer(alpha)
        return cls(answer.threshold, release.cells, float(answer.inflation.value), answer.spread)


Way = Callable[[Draw, Rng], Measured]


@dataclass(frozen=True)
class Case:
    """What a line of the table is about; `detail` is a number that its words name (epochs, devices, fill)."""

    what: str
    n: int
    epsilon: float | None
    detail: int | None = None
    alpha: Fraction = ALPHA


def line_of(
    population: Population, case: Case, way: str, measured: Sequence[Measured], shares: Floats
) -> dict[str, Any]:
    """Return the line of a way; `shares` (draws, devices) weight the coverage of devices."""
    at = np.array([one.threshold for one in measured])
    coverage, sizes = population.coverage(at, shares), population.set_sizes(at)
    spreads = [one.expected_spread for one in measured if one.expected_spread is not None]
    return {
        "what": case.what,
        "data": population.name,
        "n": case.n,
        "epsilon": case.epsilon,
        "detail": case.detail,
        "level": float(1 - case.alpha),
        "way": way,
        "draws": len(at),
        "coverage": coverage.mean(),
        "error": coverage.std(ddof=1) / math.sqrt(len(at)),
        "spread": coverage.std(ddof=1),
        "expected_spread": float(np.mean(spreads)) if spreads else None,
        "labels": sizes.mean(),
        "labels_error": sizes.std(ddof=1) / math.sqrt(len(at)),
        "infinite": float(np.isinf(at).mean()),
        "cells": measured[0].cells,
        "inflation": measured[0].inflation,
    }


def private_way(epsilon: float, n: int) -> Way:
    """Return P-DCP's way."""
    plan = make_plan(n, epsilon)
    return lambda held, rng: Measured.of(release_of(plan, held, rng))


def curator_way(name: str, epsilon: float) -> Way:
    """Return the way of a trusted curator, who pools the scores."""
    alpha, steps = float(ALPHA), rivals.search_steps()
    noise: dict[str, Callable[[Rng], Floats]] = {
        SEARCHED: lambda rng: rivals.gaussian_counts(rivals.rho_of(epsilon, DELTA), steps, rng),
        SEARCHED_WEAKLY: lambda rng: rivals.gaussian_counts(epsilon**2 / 2, steps, rng),
        SEARCHED_PURELY: lambda rng: rivals.laplace_counts(epsilon, steps, rng),
    }
    exponential = {"DPCP": rivals.dpcp, "EXPONQ": rivals.exponq}

    def way(held: Draw, rng: Rng) -> Measured:
        scores = np.sort(np.concatenate(held))
        if name in exponential:
            return Measured(exponential[name](scores, alpha, epsilon, rng))
        return Measured(rivals.p_coqs(scores, alpha, noise[name](rng)))

    return way


def rng_of(*words: object) -> Rng:
    """Return a generator of its own for each line, the same in every run."""
    return np.random.default_rng(zlib.crc32(repr(words).encode()))


def shares_of(draws: Sequence[Draw]) -> Floats:
    """Return each device's part of the scores, (draws, devices)."""
    sizes = np.array([[len(own) for own in held] for held in draws], dtype=np.float64)
    return np.asarray(sizes / sizes.sum(axis=1, keepdims=True))


def compared(population: Population, count: int) -> Iterator[dict[str, Any]]:
    """Yield the main comparison: all ways at each size and epsilon, on the same draws."""
    for n in SIZES:
        rng = rng_of(population.name, n)
        draws = [population.draw(n, rng) for _ in range(count)]
        shares = shares_of(draws)
        exact = [Measured(exact_threshold(held)) for held in draws]
        yield line_of(population, Case("compared", n, None), EXACT, exact, shares)
        for epsilon in EPSILONS:
            ways = {OURS: private_way(epsilon, n), OURS_REPLACED: private_way(round(epsilon / REPLACED, 6), n)}
            ways |= {name: curator_way(name, epsilon) for name in CURATORS}
            for name, way in ways.items():
                rng = rng_of(population.name, n, epsilon, name)
                answers = [way(held, rng) for held in draws]
                yield line_of(population, Case("compared", n, epsilon), name, answers, shares)


def several_levels(population: Population, count: int) -> Iterator[dict[str, Any]]:
    """Yield the levels of one release."""
    n, rng = SIZES[0], rng_of(population.name, "levels")
    plan = make_plan(n, 1.0)
    draws = [population.draw(n, rng) for _ in range(count)]
    releases = [release_of(plan, held, rng) for held in draws]
    for alpha in LEVELS:
        answers = [Measured.of(release, alpha) for release in releases]
        yield line_of(population, Case("levels", n, 1.0, alpha=alpha), OURS, answers, shares_of(draws))


def groups(population: Population, count: int) -> Iterator[dict[str, Any]]:
    """Yield disjoint groups of one run: each has a histogram with full epsilon, and the cells of the run."""
    plan = make_plan(sum(GROUPS), 1.0)
    for n in GROUPS:
        rng = rng_of(population.name, "group", n)
        draws = [population.draw(n, rng) for _ in range(count)]
        answers = [Measured.of(release_of(plan, held, rng)) for held in draws]
        yield line_of(population, Case("groups", n, 1.0), OURS, answers, shares_of(draws))


def windows(population: Population, count: int) -> Iterator[dict[str, Any]]:
    """Yield windows of epochs, each epoch released once with epsilon 1: sums of 1, 8 and 64 releases."""
    for window in WINDOWS:
        rng = rng_of(population.name, "window", window)
        plan = make_plan(EPOCH_SIZE, 1.0, window=window)
        draws, answers = [], []
        for _ in range(max(count // max(window // 16, 1), 2)):  # for 64 epochs a quarter of the draws
            epochs = [population.draw(EPOCH_SIZE, rng) for _ in range(window)]
            answers.append(Measured.of(Release.summed([release_of(plan, held, rng) for held in epochs])))
            draws.append([np.concatenate(own) for own in zip(*epochs, strict=True)])
        yield line_of(population, Case("windows", window * EPOCH_SIZE, 1.0, window), OURS, answers, shares_of(draws))


def equal_mixture(population: Population, count: int) -> Iterator[dict[str, Any]]:
    """Yield coverage where the new example is as likely to come from one device as from another."""
    n, rng = SIZES[0], rng_of(population.name, "equal")
    draws = [population.draw(n, rng) for _ in range(count)]
    for epsilon, fill in product(EPSILONS, FILLS):
        plan = make_plan(n, epsilon, target="equal", fill=fill)
        answers = [Measured.of(release_of(plan, held, rng)) for held in draws]
        yield line_of(population, Case("equal", n, epsilon, fill), OURS, answers, EQUALLY)


def whole_devices(population: Population, count: int) -> Iterator[dict[str, Any]]:
    """Yield thresholds that protect all scores of a device together, by the number of devices.

    Every device has CAP scores of one of the 20 blocks of classes. One device moves a cell by up to CAP, so noise is
    that of epsilon/CAP for a score.
    """
    blocks = [population.true[population.owner == k] for k in range(DEVICES)]
    for devices in MANY_DEVICES:
        rng, n = rng_of(population.name, "devices", devices), devices * CAP
        plan = make_plan(n, 1.0, devices, unit="device", cap=CAP)
        answers = []
        for _ in range(count):
            held = [np.sort(rng.choice(blocks[k % DEVICES], CAP)) for k in range(devices)]
            answers.append(Measured.of(release_of(plan, held, rng)))
        yield line_of(population, Case("devices", n, 1.0, devices), OURS, answers, EQUALLY)


MEASUREMENTS = (compared, several_levels, groups, windows, equal_mixture, whole_devices)


# --- tables and picture -----------------------------------------------------------------------------------------------

NAMES = {"pathmnist": "PathMNIST", "digits": "digits"}
WORDS = {
    EXACT: "nothing hidden",
    OURS: "**P-DCP**, no curator",
    OURS_REPLACED: "P-DCP, epsilon for replacing a score",
    SEARCHED_PURELY: "P-COQS, pure epsilon (Laplace noise)",
    SEARCHED: "P-COQS, (epsilon, 1e-6) by zCDP",
    SEARCHED_WEAKLY: "P-COQS, rho = epsilon²/2, weaker",
    "DPCP": "DPCP",
    "EXPONQ": "Private prediction sets",
}


LINE_WORDS = {
    "levels": "level {level:g} of three from one release, n = {n:,}",
    "groups": "a group with {n:,} scores, of three groups in one run",
    "windows": "sum of {detail} epochs with 500 scores each (lifetime epsilon)",
    "equal": "mixture `equal`, n = {n:,}, fill {detail}",
    "devices": "whole devices as unit: {detail} devices with 50 scores each",
}


def cell_of(line: dict[str, Any]) -> str:
    """Return coverage ± spread / labels, and how often there was no threshold."""
    digits = f"{line['coverage']:.4f} ± {line['spread']:.4f}".replace("0.", ".")
    lost = "" if line["infinite"] < 0.0005 else f", {line['infinite']:.1%} infinite"
    return f"{digits} / {line['labels']:.3f}{lost}"


def markdown(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)


def text_of(table: pl.DataFrame) -> str:
    """Return what stands between the marks of README.md."""
    parts = []
    main = table.filter(pl.col("what") == "compared")
    for (data, n), lines in main.group_by("data", "n", maintain_order=True):
        rows = []
        for way, words in WORDS.items():
            own = lines.filter(pl.col("way") == way).to_dicts()
            cells = [cell_of(line) for line in own]
            rows.append([words, *(cells * len(EPSILONS) if way == EXACT else cells)])
        head = [f"{NAMES[str(data)]}, n = {n:,}", *(f"epsilon {epsilon:g}" for epsilon in EPSILONS)]
        parts.append(markdown(head, rows))
    parts.append(f"![Coverage and labels at equal epsilon](promises/{PICTURE.name})")
    rest = table.filter(pl.col("what") != "compared")
    rows = []
    for (what, detail, n, level, epsilon), lines in rest.group_by(
        "what", "detail", "n", "level", "epsilon", maintain_order=True
    ):
        words = LINE_WORDS[str(what)].format(detail=detail, n=n, level=level)
        by_data = {line["data"]: cell_of(line) for line in lines.to_dicts()}
        cells = str(lines["cells"][0])
        rows.append([words, f"{epsilon:g}", cells, *(by_data[data] for data in NAMES)])
    parts.append(markdown(["P-DCP", "epsilon", "cells", *NAMES.values()], rows))
    return "\n\n".join(parts)


def readme_of(table: pl.DataFrame, text: str) -> str:
    """Return README.md with its tables made anew."""
    before, rest = text.split(START)
    return before + START + "\n\n" + text_of(table) + "\n\n" + END + rest.split(END)[1]


COLOURS = {
    EXACT: "#555555",
    OURS: "#3b0f70",
    SEARCHED: "#e0a320",
    SEARCHED_PURELY: "#b5402f",
    "DPCP": "#1b8a8f",
    "EXPONQ": "#8c2981",
}
PICTURED = {
    EXACT: "nothing hidden",
    OURS: "P-DCP",
    "EXPONQ": "private prediction sets",
    SEARCHED_PURELY: "P-COQS, pure epsilon",
    SEARCHED: "P-COQS, (epsilon, 1e-6)",
    "DPCP": "DPCP",
}


def draw_picture(table: pl.DataFrame, file: Path) -> None:
    """Draw coverage with its spread at the smaller size, a row for each way, and its labels beside it.

    Labels against coverage would put all points on one curve, most of them upon each other.
    """
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    lines = table.filter((pl.col("what") == "compared") & (pl.col("n") == SIZES[0]))
    figure, axes = plt.subplots(
        len(NAMES), len(EPSILONS), figsize=(10.6, 4.9), sharex=True, sharey=True, layout="constrained"
    )
    for (row, data), (column, epsilon) in product(enumerate(NAMES), enumerate(EPSILONS)):
        axis = axes[row, column]
        own = lines.filter((pl.col("data") == data) & (pl.col("epsilon").is_null() | (pl.col("epsilon") == epsilon)))
        by_way = {line["way"]: line for line in own.to_dicts()}
        for place, way in enumerate(reversed(PICTURED)):
            line = by_way[way]
            low, high = line["coverage"] - line["spread"], min(line["coverage"] + line["spread"], 1.0)
            width = 5 if way == OURS else 3
            axis.plot(
                [low, high], [place, place], color=COLOURS[way], linewidth=width, alpha=0.45, solid_capstyle="butt"
            )
            axis.plot(line["coverage"], place, "o", color=COLOURS[way], markersize=6)
            axis.text(1.045, place, f"{line['labels']:.2f}", ha="right", va="center", fontsize=8)
        axis.axvline(float(1 - ALPHA), color="black", linewidth=0.8, linestyle=":")
        axis.set_title(f"{NAMES[data]}, epsilon {epsilon:g}", fontsize=9)
        axis.text(1.045, len(PICTURED) - 0.35, "labels", ha="right", fontsize=7.5, color="#555555")
        axis.tick_params(labelsize=8)
        axis.grid(alpha=0.25, linewidth=0.5, axis="x")
    axes[0, 0].set(xlim=(0.76, 1.05), ylim=(-0.6, len(PICTURED)), xticks=(0.8, 0.85, 0.9, 0.95, 1.0))
    axes[0, 0].set_yticks(range(len(PICTURED)), [*reversed(PICTURED.values())], fontsize=8)
    figure.supxlabel("coverage; bars are one standard deviation over draws to either side", fontsize=8.5)
    figure.suptitle(f"Private calibration with {SIZES[0]:,} scores; only P-DCP needs no trusted curator", fontsize=10)
    figure.savefig(file, dpi=110, metadata={"Software": None})
    plt.close(figure)


def main() -> None:
    """Measure, or draw what was measured."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", nargs="?", type=Path, help="folder with pathmnist_logits.npz; without it only digits")
    parser.add_argument("--draws", type=int, help="so many draws; writes nothing")
    parser.add_argument("--draw", action="store_true", help="tables and picture again, from private.csv")
    given = parser.parse_args()
    if not given.draw:
        populations = [*([pathmnist(given.data)] if given.data else []), digits()]
        lines = []
        for population in populations:
            for measure in MEASUREMENTS:
                for line in measure(population, given.draws or DRAWS):
                    print(
                        population.name,
                        line["what"],
                        line["n"],
                        line["epsilon"],
                        line["way"],
                        cell_of(line),
                        flush=True,
                    )
                    lines.append(line)
        if given.draws:
            return
        pl.DataFrame(lines, infer_schema_length=None).write_csv(TABLE, float_precision=6)
    table = pl.read_csv(TABLE)
    README.write_text(readme_of(table, README.read_text(encoding="utf-8")), encoding="utf-8")
    draw_picture(table, PICTURE)


if __name__ == "__main__":
    main()
