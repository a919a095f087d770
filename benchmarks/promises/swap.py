"""Sets by the swap rank beside those by the published one: coverage of the target, and labels in a set.

python benchmarks/promises/swap.py DATA      60 draws of CIFAR-100 and PathMNIST (NPZ of logits and labels in the folder
                                             DATA), and of the digits that come with scikit-learn; writes swap.csv

A draw gives every device the calibration rows of its own classes. Coverage is measured on all other rows, device by
device, and weighted by the shares of the target that the line is about. `fcp` is what every valid method of the paper
comes to with exact counts. The oracle knows all other rows: the smallest threshold that covers 1 - alpha of them.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import polars as pl
from numpy.typing import NDArray

from conformesh import Network
from conformesh.kernels.ranks import Requirement
from conformesh.kernels.weighted_scores import WeightedScores
from conformesh.lab.datasets.digits import load_digits_on_devices, split_digits
from conformesh.methods import PAPER_REQUIREMENT
from conformesh.pipeline.solver import solve_draws
from conformesh.results.certificate import Certificate

ALPHA, DRAWS = 0.1, 60
Floats = NDArray[np.float64]
RANK_RULES = {  # what is shown: the method, its promise, and the target that coverage is measured for
    "published (fcp)": ("fcp", PAPER_REQUIREMENT, "paper"),
    "swap, target paper": ("e-dcp", Requirement("paper", "swap"), "paper"),
    "swap, target sizes": ("e-dcp", Requirement("sizes", "swap"), "sizes"),
    "swap, target equal": ("e-dcp", Requirement("equal", "swap"), "equal"),
    "oracle, target sizes": ("", Requirement(), "sizes"),
}
Draw = tuple[list[Floats], list[Floats], list[Floats]]  # by device: calibration, true test, and all test scores


def outputs_at(path: Path, kind: str, devices: int, n: int) -> Iterator[Draw]:
    """Yield draws of n rows of stored logits, every device with classes of its own."""
    data = np.load(path)
    logits, labels = data["logits"].astype(np.float64), data["labels"].astype(int).ravel()
    if kind == "confidences":
        logits = np.exp(logits - logits.max(axis=1, keepdims=True))
        logits /= logits.sum(axis=1, keepdims=True)
    table, classes = 1 - logits, logits.shape[1]
    owner = np.minimum(labels * devices // classes, devices - 1)
    true = table[np.arange(len(labels)), labels]
    for seed in range(DRAWS):
        rows = np.random.default_rng(seed).permutation(len(labels))
        held, rest = rows[:n], rows[n:]
        yield (
            [true[held[owner[held] == k]] for k in range(devices)],
            [true[rest[owner[rest] == k]] for k in range(devices)],
            [table[rest[owner[rest] == k]].ravel() for k in range(devices)],
        )


def digits_at(devices: int) -> Iterator[Draw]:
    """Yield draws of the digits of the demo, in unequal mixes and numbers."""
    digits = load_digits_on_devices(devices=devices, seed=0)
    table, labels = 1 - digits.probabilities, np.asarray(digits.labels)
    true = table[np.arange(len(labels)), labels]
    for number in range(DRAWS):
        rows = split_digits(digits, seed=0, number=number)
        tested = np.asarray(rows.test)  # drawn from the devices together, so that each stands for all of them
        yield (
            [true[own] for own in rows.calibration],
            [true[tested]] * devices,
            [table[tested].ravel()] * devices,
        )


def measured(data: str, draws: list[Draw], labels: int) -> Iterator[dict[str, object]]:
    """Yield a line for each rule."""
    samples = WeightedScores.of_trials([held for held, _, _ in draws])
    network = Network.of("chain", samples.devices)
    sizes = samples.sizes.T
    for rule, (method, requirement, target) in RANK_RULES.items():
        found = solve_draws(samples, network, [ALPHA], method or "e-dcp", requirement=requirement)
        shares = {"paper": sizes + 1.0, "sizes": sizes * 1.0, "equal": np.ones(sizes.shape)}[target]
        shares /= shares.sum(axis=1, keepdims=True)
        rows = []
        for t, (_, true, every) in enumerate(draws):
            of = [(part, s, e) for part, s, e in zip(shares[t], true, every, strict=True) if len(s)]
            weight = sum(part for part, _, _ in of)
            tau = found.outcome.thresholds[0, t, 0] if method else _oracle([(part, s) for part, s, _ in of])
            covered = sum(part * (s <= tau).mean() for part, s, _ in of) / weight
            size = sum(part * (e <= tau).mean() * labels for part, _, e in of) / weight
            rows.append((covered, size))
        coverage, size = np.array(rows).T
        yield {
            "data": data,
            "rule": rule,
            "required": _required(found.outcome.certificates, sizes) if method else None,
            "coverage": round(float(coverage.mean()), 4),
            "se": round(float(coverage.std(ddof=1) / np.sqrt(len(rows))), 4),
            "labels": round(float(size.mean()), 3),
        }


def _oracle(tests: list[tuple[float, Floats]]) -> float:
    """Return the smallest threshold that covers 1 - alpha of the target on the test rows themselves."""
    values = np.concatenate([scores for _, scores in tests])
    weights = np.concatenate([np.full(len(scores), part / len(scores)) for part, scores in tests])
    order = np.argsort(values)
    return float(values[order][np.searchsorted(np.cumsum(weights[order]), (1 - ALPHA) * weights.sum())])


def _required(certificates: list[list[Certificate]], sizes: NDArray[np.int64]) -> float:
    """Return which part of all scores, or of their weight, must be covered, on average over the draws."""
    parts = [
        row[0].required_rank / (row[0].weight or n) for row, n in zip(certificates, sizes.sum(axis=1), strict=True)
    ]
    return round(float(np.mean(parts)), 4)


def main(folder: Path) -> None:
    """Measure everything, and keep it."""
    lines: list[dict[str, object]] = []
    for kind in ("logits", "confidences"):
        for n in (1000, 200):
            draws = [*outputs_at(folder / "cifar100_logits.npz", kind, 20, n)]
            lines += measured(f"CIFAR-100 {kind}, K=20, n={n}", draws, 100)
    draws = [*outputs_at(folder / "pathmnist_logits.npz", "logits", 9, 500)]
    lines += measured("PathMNIST logits, K=9, n=500", draws, 9)
    lines += measured("digits, K=20", [*digits_at(20)], 10)
    table = pl.DataFrame(lines)
    table.write_csv(Path(__file__).with_suffix(".csv"))
    with pl.Config(tbl_rows=-1, tbl_width_chars=120, fmt_str_lengths=60):
        print(table)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
