"""How good sets are on labelled data: coverage and size, overall, per class and per device."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from conformesh.scores import Score
from conformesh.scores.base import labels_of


@dataclass(frozen=True)
class Coverage:
    """Covered rows out of all rows, with a Wilson interval."""

    covered: int
    rows: int
    low: float
    high: float

    @property
    def rate(self) -> float:
        """The fraction covered; nan without rows."""
        return self.covered / self.rows if self.rows else float("nan")

    @classmethod
    def of(cls, hits: NDArray[np.bool_], confidence: float = 0.95) -> Coverage:
        """Count hits and enclose their rate."""
        covered, rows = int(np.count_nonzero(hits)), len(hits)
        return cls(covered, rows, *wilson(covered, rows, confidence))


def wilson(hits: int, rows: int, confidence: float = 0.95) -> tuple[float, float]:
    """Return the Wilson score interval of a proportion.

    >>> low, high = wilson(90, 100)
    >>> round(low, 4), round(high, 4)
    (0.8256, 0.9448)
    """
    if rows == 0:
        return 0.0, 1.0
    from statistics import NormalDist  # a node never evaluates, and need not hold it in memory

    z = NormalDist().inv_cdf(0.5 + confidence / 2)
    p = hits / rows
    centre = (p + z * z / (2 * rows)) / (1 + z * z / rows)
    half = z / (1 + z * z / rows) * np.sqrt(p * (1 - p) / rows + z * z / (4 * rows * rows))
    low = 0.0 if hits == 0 else float(centre - half)  # exact ends, where round-off would leave 1e-17
    high = 1.0 if hits == rows else float(centre + half)
    return low, high


@dataclass(frozen=True)
class Evaluation:
    """What the sets do on labelled data.

    Attributes
    ----------
    coverage
        Overall, with a 95 % Wilson interval.
    mean_size
        Labels per set, or the mean width of intervals.
    empty, singleton
        Fractions of sets with no label and with exactly one; `singleton` is None for intervals.
    per_class, per_device, per_group
        Coverage by true label, by device and by group (where rows named their devices or groups).
    """

    coverage: Coverage
    mean_size: float
    empty: float
    singleton: float | None = None
    per_class: dict[int, Coverage] = field(default_factory=dict)
    per_device: dict[str, Coverage] = field(default_factory=dict)
    per_group: dict[str, Coverage] = field(default_factory=dict)

    def __str__(self) -> str:
        c = self.coverage
        one = "" if self.singleton is None else f", one label {self.singleton:.1%}"
        return (
            f"coverage {c.rate:.4f} [{c.low:.4f}, {c.high:.4f}] on {c.rows:,} rows, mean size {self.mean_size:.4g}, "
            f"empty {self.empty:.1%}{one}"
        )


def evaluate_sets(
    score: Score,
    outputs: NDArray[Any],
    labels: NDArray[Any],
    threshold: float | NDArray[np.float64],
    devices: ArrayLike | None = None,
    draws: Mapping[str, NDArray[np.float64]] | None = None,
    groups: Mapping[str, NDArray[np.bool_]] | None = None,
) -> Evaluation:
    """Evaluate label sets; the set and the coverage come from the same table, and so from the same draws."""
    same_length(outputs, labels, devices)
    sets = score.sets(outputs, threshold, **(draws or {}))
    labels = labels_of(score.name, sets, labels)
    hits = sets[np.arange(len(labels)), labels]
    sizes = sets.sum(axis=1)
    return Evaluation(
        coverage=Coverage.of(hits),
        mean_size=_mean(sizes),
        empty=_mean(sizes == 0),
        singleton=_mean(sizes == 1),
        per_class={int(c): Coverage.of(hits[labels == c]) for c in np.unique(labels)},
        per_device=_per_device(hits, devices),
        per_group={name: Coverage.of(hits[rows]) for name, rows in (groups or {}).items()},
    )


def evaluate_intervals(
    score: Score,
    outputs: NDArray[Any],
    labels: NDArray[Any],
    threshold: float | NDArray[np.float64],
    devices: ArrayLike | None = None,
    groups: Mapping[str, NDArray[np.bool_]] | None = None,
) -> Evaluation:
    """Evaluate intervals; coverage is by the score itself, width by the interval."""
    same_length(outputs, labels, devices)
    return of_intervals(score.covers(outputs, labels, threshold), score.intervals(outputs, threshold), devices, groups)


def of_intervals(
    hits: NDArray[np.bool_],
    intervals: NDArray[np.float64],
    devices: ArrayLike | None = None,
    groups: Mapping[str, NDArray[np.bool_]] | None = None,
) -> Evaluation:
    """Evaluate intervals of which is known whom they cover."""
    widths = intervals[:, 1] - intervals[:, 0]
    return Evaluation(
        coverage=Coverage.of(hits),
        mean_size=_mean(np.maximum(widths, 0.0)),
        empty=_mean(widths < 0),
        per_device=_per_device(hits, devices),
        per_group={name: Coverage.of(hits[rows]) for name, rows in (groups or {}).items()},
    )


def _per_device(hits: NDArray[np.bool_], devices: ArrayLike | None) -> dict[str, Coverage]:
    if devices is None:
        return {}
    names = np.asarray(devices).astype(str)
    return {str(name): Coverage.of(hits[names == name]) for name in dict.fromkeys(names.tolist())}


def same_length(outputs: NDArray[Any], labels: NDArray[Any], devices: ArrayLike | None) -> None:
    """Refuse labels, or devices, that are not one per row."""
    rows = {"outputs": len(outputs), "labels": len(labels)}
    if devices is not None:
        rows["devices"] = len(np.asarray(devices))
    if len(set(rows.values())) > 1:
        raise ValueError("evaluate needs one label (and device) per row, got " + str(rows))


def _mean(values: NDArray[Any]) -> float:
    return float(values.mean()) if len(values) else float("nan")
