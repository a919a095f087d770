"""Slow, obvious scores: one row and one label at a time, sums in fractions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction

import numpy as np


def one_minus(row: Sequence[float], label: int) -> float:
    return 1.0 - float(row[label])


def margin(row: Sequence[float], label: int) -> float:
    return max(float(p) for j, p in enumerate(row) if j != label) - float(row[label])


def on_grid(p: float) -> Fraction:
    """The multiple of 2**-50 nearest to p, ties to even."""
    return Fraction(round(Fraction(float(p)) * 2**50), 2**50)


def adaptive(row: Sequence[float], label: int, u: float = 1.0, penalty: float = 0.0, k_reg: int = 0) -> float:
    order = sorted(range(len(row)), key=lambda j: (-float(row[j]), j))
    rank = order.index(label) + 1
    above = sum((on_grid(row[j]) for j in order[: rank - 1]), Fraction(0))
    assert float(above) == above, "the sum must be a float64 without rounding"
    return float(above) + u * float(on_grid(row[label])) + penalty * max(0, rank - k_reg)


def ranked(row: Sequence[float], label: int, u: float = 1.0, penalty: float = 1.0, by_rank: bool = False) -> float:
    rank = sorted(range(len(row)), key=lambda j: (-float(row[j]), j)).index(label) + 1
    top = 1.0 if by_rank else max(float(p) for p in row)
    return u * top if rank == 1 else top + penalty * (rank - 2 + u)


def ordinal(row: Sequence[float], label: int, u: float = 1.0) -> float:
    first = last = max(range(len(row)), key=lambda j: (float(row[j]), -j))
    run, newest = [first], first
    while label not in run:
        beside = [j for j in (first - 1, last + 1) if 0 <= j < len(row)]
        newest = max(beside, key=lambda j: float(row[j]))  # the first of equals: the left one
        run.append(newest)
        first, last = min(run), max(run)
    above = sum((on_grid(row[j]) for j in run if j != newest), Fraction(0))
    return float(above) + u * float(on_grid(row[label]))


def of_all_labels(score: Callable[..., float], table: np.ndarray, *per_row: np.ndarray, **options: float) -> np.ndarray:
    """Apply a slow score to every row and label; extra arguments have one entry per row."""
    return np.array(
        [
            [score(row, label, *(float(v[i]) for v in per_row), **options) for label in range(table.shape[1])]
            for i, row in enumerate(table)
        ]
    ).reshape(table.shape)
