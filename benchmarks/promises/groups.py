"""Rules for overlapping groups beside each other and beside pooled scores: coverage, worst group, labels, numbers sent.

PathMNIST with five overlapping windows of the model's largest probability, and CIFAR-100 whose groups are the coarse
classes of the model's first two guesses. Classes are spread unevenly over devices, so that these are unlike. A group's
coverage is that over all draws; the worst is the smallest of them, which lies a little below its expectation because it
is the smallest of several.

``CONFORMESH_DATA=... python benchmarks/promises/groups.py`` writes groups.csv beside it; ``--quick`` tries everything
once, small. Half an hour on two cores. The level is alpha = 0.1, scores are -log p.
"""

from __future__ import annotations

import csv
import os
import sys
import time
import warnings
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from conformesh import Network, TooFewScores, calibrate
from conformesh.files.memberships import Memberships
from conformesh.kernels.group_fit import first_vertex, improved
from conformesh.protocols.group_regression import PinballLevel, ScoreCells, ScoreInterval, determined_atoms

ALPHA = 0.1
RULES = ("atoms", "max", "seq", "regression")
POOLED = "pooled, nothing hidden"  # [Gibbs2025] on all scores in one place, whose proof needs K = 1
WINDOWS = ((0.0, 0.6), (0.5, 0.8), (0.7, 0.92), (0.85, 0.99), (0.97, 1.0))
COARSE = (  # of the hundred classes in the order of their names
    "4 1 14 8 0 6 7 7 18 3 3 14 9 18 7 11 3 9 7 11 6 11 5 10 7 "
    "6 13 15 3 15 0 11 1 10 12 14 16 9 11 5 5 19 8 8 15 13 14 17 18 10 "
    "16 4 17 4 2 0 17 4 18 17 10 3 2 12 12 16 12 1 9 19 2 10 0 1 16 "
    "12 9 13 15 13 16 19 2 4 6 19 5 5 8 19 18 1 2 15 6 0 17 8 14 13"
)
Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class Case:
    """One data set on one network, with so many calibration scores and draws by rule."""

    name: str
    devices: int
    scores: int
    draws: dict[str, int]
    losses: Floats
    truth: NDArray[np.int64]
    within: Bools
    named: list[tuple[str, ...]]

    @property
    def network(self) -> Network:
        """The devices' network."""
        return Network.cycle(self.devices) if self.devices < 10 else Network.torus(self.devices // 5, 5)


def probabilities(name: str) -> tuple[Floats, NDArray[np.int64]]:
    """Return a model's probabilities and the labels."""
    with np.load(Path(os.environ["CONFORMESH_DATA"]) / f"{name}_logits.npz") as file:
        logits, labels = file["logits"].astype(np.float64), file["labels"].astype(np.int64)
    odds = np.exp(logits - logits.max(axis=1, keepdims=True))
    return odds / odds.sum(axis=1, keepdims=True), labels


def windows(p: Floats) -> tuple[Bools, list[tuple[str, ...]]]:
    """Return which windows hold the largest probability."""
    top = p.max(axis=1)
    within = np.stack([(top >= low) & (top <= high) for low, high in WINDOWS], axis=1)
    return within, [*Memberships.of(within, "windows").atoms]


def coarse_classes(p: Floats) -> tuple[Bools, list[tuple[str, ...]]]:
    """Return the coarse classes of the first two guesses, and every pair of them that may occur."""
    coarse = np.array(COARSE.split(), dtype=np.int64)
    guesses = coarse[np.argsort(-p, axis=1)[:, :2]]
    within = np.zeros((len(p), 20), dtype=bool)
    np.put_along_axis(within, guesses, True, axis=1)
    return within, [(str(i),) for i in range(20)] + [(str(j), str(i)) for i in range(20) for j in range(i)]


def cases(quick: bool) -> list[Case]:
    """Return what is measured."""
    found = []
    for data, groups, sizes in (
        ("pathmnist", windows, ((5, 4090, 60, 60), (50, 1000, 60, 60))),
        ("cifar100", coarse_classes, ((5, 5000, 40, 20), (50, 3000, 40, 20))),
    ):
        p, labels = probabilities(data)
        within, named = groups(p)
        losses = -np.log(np.maximum(p, 1e-300))
        for devices, scores, many, few in sizes:
            draws = {rule: 1 if quick else few if rule == "regression" else many for rule in (*RULES, POOLED)}
            wanted = 500 if quick else scores
            found.append(Case(data, devices, wanted, draws, losses, labels, within, named))
    return found


def pools(case: Case) -> list[NDArray[np.int64]]:
    """Return the rows of each device: equally many, of few classes each."""
    rng = np.random.default_rng(0)
    order = np.argsort(case.truth + rng.normal(size=len(case.truth)) * 2, kind="stable")
    return [*np.array_split(order[: len(order) // case.devices * case.devices], case.devices)]


def one_draw(case: Case, rule: str, seed: int) -> dict[str, Any]:
    """Calibrate on a part of every device's rows and look at the others."""
    rng = np.random.default_rng([seed, 1])
    mine = [rng.permutation(rows) for rows in pools(case)]
    n = case.scores // case.devices
    held, test = [rows[:n] for rows in mine], np.concatenate([rows[n:] for rows in mine])
    own = [case.losses[rows, case.truth[rows]] for rows in held]
    tables = [case.within[rows] for rows in held]
    started, cost, facts = time.perf_counter(), None, {}
    if rule == POOLED:
        thresholds = pooled(np.concatenate(own), np.concatenate(tables), case.within[test])
    else:
        several = calibrate(own, case.network, (ALPHA,), groups=tables, group_rule=rule, group_atoms=case.named)
        thresholds, cost = several.thresholds_for(groups=case.within[test]), several.cost
        facts = {**several.options, **several.answers[0].facts}
    hits = case.losses[test, case.truth[test]] <= thresholds
    return {
        "covered": hits.mean(),
        "groups": np.array([[hits[rows].sum(), rows.sum()] for rows in case.within[test].T]),
        "labels": (case.losses[test] <= thresholds[:, None]).sum(axis=1).mean(),
        "infinite": np.isinf(thresholds).mean(),
        "rounds": np.nan if cost is None else cost.rounds,
        "numbers": np.nan if cost is None else cost.numbers_per_device,
        "bytes": np.nan if cost is None else cost.bits_per_device / 8,
        "exchanges": float(facts.get("exchanges", "nan")),
        "seconds": time.perf_counter() - started,
    }


def pooled(values: Floats, within: Bools, asked: Bools) -> Floats:
    """Return thresholds of rows by [Gibbs2025] on scores in one place: a new score at infinity, none hidden."""
    whole = Memberships.of(np.concatenate([within, asked]), "rows")
    codes, new = whole.codes[: len(values)], whole.codes[len(values) :]
    names = sorted({name for atom in whole.atoms for name in atom})
    members = np.array([[name in atom for atom in whole.atoms] for name in names] + [[True] * len(whole.atoms)])
    counts = np.bincount(codes, minlength=len(whole.atoms))
    fitted = determined_atoms(members, counts > 0)
    cells = []
    for a in fitted:
        each, many = np.unique(values[codes == a], return_counts=True)
        cells.append([ScoreInterval(v, v, c, tight=True) for v, c in zip(each.tolist(), many.tolist(), strict=True)])
    level = PinballLevel.of(Fraction(str(ALPHA)), len(values))
    bends, _ = ScoreCells(cells, fitted).bends(level)
    base = improved(bends, first_vertex(members[:, fitted], bends, counts[fitted]), np.zeros((1, len(fitted))))
    pulls = np.eye(len(fitted)) * level.pull
    found = improved(bends, base.repeated(np.zeros(len(fitted), dtype=np.int64)), pulls)
    table = np.full(len(whole.atoms), np.inf)
    table[fitted] = np.where(found.bounded, np.diagonal(found.values), np.inf)
    return table[new]


def measure(case: Case, rule: str) -> dict[str, Any]:
    """Return one row: means over draws."""
    draws = [one_draw(case, rule, seed) for seed in range(case.draws[rule])]
    mean = {key: float(np.mean([draw[key] for draw in draws])) for key in draws[0] if key != "groups"}
    groups = np.sum([draw["groups"] for draw in draws], axis=0)
    return {
        "data": case.name,
        "devices": case.devices,
        "scores": case.scores,
        "rule": rule,
        "draws": len(draws),
        "covered": f"{mean['covered']:.4f}",
        "worst group": f"{(groups[:, 0] / groups[:, 1]).min():.4f}",
        "labels": f"{mean['labels']:.3f}",
        "infinite": f"{mean['infinite']:.4f}",
        "rounds": f"{mean['rounds']:.0f}",
        "numbers": f"{mean['numbers']:.0f}",
        "bytes": f"{mean['bytes']:.0f}",
        "exchanges": f"{mean['exchanges']:.0f}",
        "seconds": f"{mean['seconds']:.2f}",
    }


def main() -> None:
    """Measure everything; write the table unless only trying."""
    quick = "--quick" in sys.argv
    warnings.simplefilter("ignore", TooFewScores)
    rows = []
    for case in cases(quick):
        for rule in (*RULES, POOLED):
            rows.append(measure(case, rule))
            print(*rows[-1].values(), sep="\t", flush=True)
    if quick:
        return
    with open(Path(__file__).with_name("groups.csv"), "w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, fieldnames=[*rows[0]], lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


if __name__ == "__main__":
    main()
