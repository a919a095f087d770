"""How good sets are on labelled data: coverage and size, overall, per class, per device, and of any part."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from conformesh.io.json_numbers import in_json
from conformesh.names import natural_order
from conformesh.quantities import several
from conformesh.scores import Score
from conformesh.scores.base import labels_of
from conformesh.scores.draws import Rng

if TYPE_CHECKING:
    from conformesh.result.strata import Slab


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

    def __str__(self) -> str:
        return f"{self.rate:.4f} [{self.low:.4f}, {self.high:.4f}] on {several(self.rows, 'row')}"

    def misses(self, target: float | None) -> bool:
        """Say whether even the upper end of the interval is below a target."""
        return target is not None and self.rows > 0 and self.high < target

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON object."""
        return {"rate": self.rate, "low": self.low, "high": self.high, "covered": self.covered, "rows": self.rows}

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
        Coverage by true label, by device and by group (where rows named their devices or groups). Labels are columns
        of the outputs; in an evaluation of a `MeshClassifier` they are its classes.
    sizes
        How many sets have so many labels; empty for intervals.
    target
        What was asked for, 1 - alpha, where that is known.
    classes
        The classes of the columns, where they are known.
    row_hits, row_sizes
        Of every row whether it is covered, and how many labels its set has or how wide its interval is. From these come
        `by_size`, `by_feature` and `worst_slab`.
    """

    coverage: Coverage
    mean_size: float
    empty: float
    singleton: float | None = None
    per_class: dict[Any, Coverage] = field(default_factory=dict)
    per_device: dict[str, Coverage] = field(default_factory=dict)
    per_group: dict[str, Coverage] = field(default_factory=dict)
    sizes: dict[int, int] = field(default_factory=dict)
    target: float | None = None
    classes: tuple[Any, ...] | None = None
    row_hits: NDArray[np.bool_] = field(default_factory=lambda: np.zeros(0, np.bool_), repr=False, compare=False)
    row_sizes: NDArray[Any] = field(default_factory=lambda: np.zeros(0), repr=False, compare=False)

    def by_size(self, bins: int | Sequence[float] | None = None) -> dict[str, Coverage]:
        """Return size-stratified coverage: of the rows whose sets are about equally large.

        `bins` are the largest sizes of all strata but the last, or how many strata of about equally many rows there
        are; by default 1, 3, 10, 100 and 1000 labels, or five strata of intervals. The smallest rate is what is often
        reported ([Angelopoulos2021], size-stratified coverage).
        """
        from conformesh.result.strata import SIZES, STRATA, by_strata

        return by_strata(self.row_hits, self.row_sizes, "sizes", bins or (STRATA if self.singleton is None else SIZES))

    def by_feature(self, values: ArrayLike, bins: int | Sequence[float] | None = None) -> dict[str, Coverage]:
        """Return feature-stratified coverage: of the rows with each value of a feature, one value per row.

        Many numbers are put into five strata of about equally many rows, or into `bins` as in `by_size`.
        """
        from conformesh.result.strata import by_strata

        return by_strata(self.row_hits, values, "values", bins)

    def worst_slab(
        self,
        features: ArrayLike,
        *,
        mass: float = 0.1,
        directions: int = 1000,
        held_out: float = 0.75,
        rng: Rng | None = None,
    ) -> Slab:
        """Return the slab of features in which coverage is worst [Cauchois2021], measured on rows held out.

        `mass` is the least fraction of rows in a slab; see `result.strata.worst_slab` for the rest.
        """
        from conformesh.result.strata import worst_slab

        return worst_slab(self.row_hits, features, mass=mass, directions=directions, held_out=held_out, rng=rng)

    @property
    def parts(self) -> dict[str, dict[str, Coverage]]:
        """Coverage by device, by group and by class, each where it is known, by name; of what has rows."""
        names = dict(enumerate(self.classes or ()))
        classes = {str(names.get(c, c)): part for c, part in self.per_class.items()}
        devices = {name: self.per_device[name] for name in natural_order(self.per_device)}
        found = {"device": devices, "group": self.per_group, "class": classes}
        some = {what: {name: part for name, part in parts.items() if part.rows} for what, parts in found.items()}
        return {what: parts for what, parts in some.items() if parts}

    def named(self, classes: Sequence[Any] | None) -> Evaluation:
        """Return the same with these classes."""
        return replace(self, classes=None if classes is None else tuple(classes))

    def plot(self, ax: Any = None, path: str | os.PathLike[str] | None = None, by: str | None = None) -> Any:
        """Draw coverage by device, group and class with the target, and how large sets are; returns the figure.

        With `ax` or `by` (`device`, `group`, `class`, `size`) one panel alone; `path` also writes .png, .pdf or .svg.
        """
        from conformesh.plots.results import draw_evaluation

        return draw_evaluation(self, ax, path, by)

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON object; classes go by their names."""
        parts = {f"per_{what}": {n: c.to_dict() for n, c in parts.items()} for what, parts in self.parts.items()}
        clean: dict[str, Any] = in_json(
            {
                "target": self.target,
                "coverage": self.coverage.to_dict(),
                "mean_size": self.mean_size,
                "empty": self.empty,
                "singleton": self.singleton,
                "sizes": {str(size): count for size, count in self.sizes.items()},
                **parts,
            }
        )
        return clean

    def facts(self) -> list[tuple[str, str]]:
        """Return names and words of what a person wants to know first."""
        asked = "" if self.target is None else f"; asked for {self.target:.6g}"
        lines = [("coverage", f"{self.coverage}{asked}")]
        if self.singleton is None:
            lines.append(("mean width", f"{self.mean_size:.4g}; empty {self.empty:.1%}"))
        else:
            sizes = f"{self.mean_size:.4g} labels; empty {self.empty:.1%}, one label {self.singleton:.1%}"
            lines.append(("mean size", sizes))
        for what, parts in self.parts.items():
            lowest = min(parts, key=lambda name: parts[name].rate)
            below = sum(part.misses(self.target) for part in parts.values())
            less = f"; {below:,} of {len(parts):,} below what was asked for, by the whole interval" if below else ""
            lines.append((f"by {what}", f"least {parts[lowest].rate:.4f} ({lowest}){less}"))
        return lines

    def _repr_html_(self) -> str:
        from conformesh import cards

        charts = [
            cards.marks(
                {name: cards.Mark(c.rate, c.low, c.high, c.misses(self.target)) for name, c in parts.items()},
                "coverage",
                what,
                self.target,
                top=1.0,
            )
            for what, parts in self.parts.items()
        ]
        sizes = [cards.bars(self.sizes, "labels in a set")] if self.sizes else []
        return cards.card("Evaluation", rows=self.facts(), parts=[*charts, *sizes])

    def __repr__(self) -> str:
        return f"Evaluation({self})"

    def __str__(self) -> str:
        one = "" if self.singleton is None else f", one label {self.singleton:.1%}"
        return f"coverage {self.coverage}, mean size {self.mean_size:.4g}, empty {self.empty:.1%}{one}"


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
    _same_length(outputs, labels, devices)
    return evaluation_of(score.sets(outputs, threshold, **(draws or {})), labels, score.name, devices, groups)


def evaluation_of(
    sets: NDArray[np.bool_],
    labels: NDArray[Any],
    who: str,
    devices: ArrayLike | None = None,
    groups: Mapping[str, NDArray[np.bool_]] | None = None,
) -> Evaluation:
    """Evaluate label sets that are there already, (rows, classes); `who` made them, for errors."""
    labels = labels_of(who, sets, labels)
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
        sizes={int(size): int(count) for size, count in zip(*np.unique(sizes, return_counts=True), strict=True)},
        row_hits=hits,
        row_sizes=sizes,
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
    _same_length(outputs, labels, devices)
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
        row_hits=hits,
        row_sizes=np.maximum(widths, 0.0),
    )


def _per_device(hits: NDArray[np.bool_], devices: ArrayLike | None) -> dict[str, Coverage]:
    if devices is None:
        return {}
    names = np.asarray(devices).astype(str)
    return {str(name): Coverage.of(hits[names == name]) for name in dict.fromkeys(names.tolist())}


def _same_length(outputs: NDArray[Any], labels: NDArray[Any], devices: ArrayLike | None) -> None:
    rows = {"outputs": len(outputs), "labels": len(labels)}
    if devices is not None:
        rows["devices"] = len(np.asarray(devices))
    if len(set(rows.values())) > 1:
        raise ValueError("evaluate needs one label (and device) per row, got " + str(rows))


def _mean(values: NDArray[Any]) -> float:
    return float(values.mean()) if len(values) else float("nan")
