"""What privacy costs in coverage and labels: P-DCP with and without noise beside the exact threshold.

python benchmarks/promises/private.py DATA   draws of PathMNIST (NPZ of logits and labels in the folder DATA) and of the
                                             digits that come with scikit-learn; writes private.csv

Rows of a data set are the population: every draw gives 20 devices n of them, drawn with replacement, each device rows
of its own classes, and coverage is measured over all rows, each device weighted by its scores.
Score, grid and stages are the defaults for `lac`, chosen on drawn scores and CIFAR-100. That 2 stages of 15 thresholds,
tried first, cover .9064 of the digits with n = 10,000 was known when they were chosen.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from conformesh import Network, Samples, calibrate_batch
from conformesh.data.digits import load_digits_at
from conformesh.methods import suited_options
from conformesh.promises import Promise
from conformesh.scores import LAC

ALPHA, DEVICES, DRAWS = 0.1, 20, 200
SIZES, EPSILONS = (1000, 2000, 10_000), (0.5, 1.0, 2.0)
Floats = NDArray[np.float64]
GHOST = Promise("paper", "ghost")


def pathmnist(folder: Path) -> tuple[Floats, NDArray[np.int64], NDArray[np.int64]]:
    """Return scores of all labels, the labels, and whose row each is: devices share out the classes."""
    data = np.load(folder / "pathmnist_logits.npz")
    logits, labels = data["logits"].astype(np.float64), data["labels"].astype(np.int64).ravel()
    chances = np.exp(logits - logits.max(axis=1, keepdims=True))
    order = np.argsort(labels, kind="stable")
    owner = np.empty(len(labels), dtype=np.int64)
    owner[order] = np.arange(len(labels)) * DEVICES // len(labels)
    return 1 - chances / chances.sum(axis=1, keepdims=True), labels, owner


def digits() -> tuple[Floats, NDArray[np.int64], NDArray[np.int64]]:
    """Return the same of the digits of the demo."""
    held = load_digits_at(devices=DEVICES, seed=0)
    labels = np.asarray(held.labels, dtype=np.int64)
    order = np.argsort(labels, kind="stable")
    owner = np.empty(len(labels), dtype=np.int64)
    owner[order] = np.arange(len(labels)) * DEVICES // len(labels)
    return 1 - held.probabilities, labels, owner


def drawn(true: Floats, owner: NDArray[np.int64], n: int) -> Samples:
    """Return draws of n scores, with replacement."""
    trials = []
    for seed in range(DRAWS):
        rows = np.random.default_rng(seed).integers(len(true), size=n)
        trials.append([true[rows[owner[rows] == k]] for k in range(DEVICES)])
    return Samples.of_trials(trials)


def measured(data: str, table: Floats, labels: NDArray[np.int64], owner: NDArray[np.int64]) -> Iterator[dict[str, Any]]:
    """Yield a line for each way."""
    true = table[np.arange(len(labels)), labels]
    known = [np.sort(true[owner == k]) for k in range(DEVICES)]
    every = np.sort(table.ravel())
    for n in SIZES:
        samples = drawn(true, owner, n)
        shares = samples.sizes / n  # (devices, draws)
        for name, method, promise, options in ways():
            chosen = suited_options(method, options, LAC())
            found = calibrate_batch(
                samples, Network.torus(5, 4), [ALPHA], method, promise=promise, joint=True, **chosen
            )
            at = found.outcome.thresholds[0, :, 0]
            covered = [(np.searchsorted(own, at, side="right") / len(own)) for own in known]
            coverage = (np.array(covered) * shares).sum(axis=0)
            sizes = np.searchsorted(every, at, side="right") / len(labels)
            error = coverage.std(ddof=1) / np.sqrt(DRAWS)
            noise = found.outcome.certificates[0][0].noise
            yield {
                "data": data,
                "n": n,
                "way": name,
                "coverage": coverage.mean(),
                "error": error,
                "labels": sizes.mean(),
                "inflation": None if noise is None else noise.inflation,
                "infinite": int(np.isinf(at).sum()),
            }


def ways() -> Iterator[tuple[str, str, Promise, dict[str, Any]]]:
    """Yield what is compared: a name, the method, its promise and options."""
    yield "e-dcp", "e-dcp", Promise(), {}
    yield "p-dcp", "p-dcp", Promise(), {}
    for epsilon in EPSILONS:
        yield f"p-dcp, epsilon {epsilon:g}", "p-dcp", Promise(), {"epsilon": epsilon}
    yield "p-dcp, epsilon 1, ghost rank", "p-dcp", GHOST, {"epsilon": 1.0}


if __name__ == "__main__":
    sets = {"digits": digits()}
    if len(sys.argv) > 1:
        sets = {"pathmnist": pathmnist(Path(sys.argv[1])), **sets}
    lines = pl.DataFrame([line for name, parts in sets.items() for line in measured(name, *parts)])
    lines.write_csv(Path(__file__).with_suffix(".csv"), float_precision=5)
    with pl.Config(tbl_rows=-1, tbl_cols=-1, tbl_width_chars=160):
        print(lines)
