"""How good sets are on labelled data: coverage and size, overall, per class, per device, and of any part."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from msgspec import Struct, field, structs
from numpy.typing import ArrayLike, NDArray

from conformesh.common.names import natural_order
from conformesh.common.quantities import pluralize
from conformesh.files.json_numbers import as_json_value, as_number
from conformesh.files.schemas import Number
from conformesh.kernels.proportions import (
    CONFIDENCE,
    FAMILY_WISE_ERROR,
    exact_intervals,
    rejected_by_holm,
    shortfall_p_values,
)
from conformesh.results.certificate import Count
from conformesh.results.encoding import ArrayResult
from conformesh.scores import Score
from conformesh.scores.base import as_label_indices
from conformesh.scores.centres import Centres
from conformesh.scores.draws import Rng

if TYPE_CHECKING:
    from conformesh.results.sites import Sites
    from conformesh.results.strata import Slab


class Coverage(Struct, frozen=True):
    """Covered rows out of all rows, with an exact (Clopper-Pearson) interval."""

    covered: Count
    rows: Count
    low: float
    high: float

    @property
    def rate(self) -> float:
        """The fraction covered; nan without rows."""
        return self.covered / self.rows if self.rows else float("nan")

    def __str__(self) -> str:
        return f"{self.rate:.4f} [{self.low:.4f}, {self.high:.4f}] on {pluralize(self.rows, 'row')}"

    def report(self) -> dict[str, Any]:
        """Return a JSON object for people, with the rate, which is None without rows."""
        rate = self.rate if self.rows else None
        return {"rate": rate, "low": self.low, "high": self.high, "covered": self.covered, "rows": self.rows}

    @classmethod
    def of(cls, hits: NDArray[np.bool_], confidence: float = CONFIDENCE) -> Coverage:
        """Count hits and enclose their rate."""
        return cls.counted(int(np.count_nonzero(hits)), len(hits), confidence)

    @classmethod
    def counted(cls, covered: int, rows: int, confidence: float = CONFIDENCE) -> Coverage:
        """Enclose the rate of so many covered rows."""
        return cls.each([covered], [rows], confidence)[0]

    @classmethod
    def each(cls, covered: ArrayLike, rows: ArrayLike, confidence: float = CONFIDENCE) -> list[Coverage]:
        """Enclose several rates, each by itself."""
        columns = (np.asarray(covered), np.asarray(rows), *exact_intervals(covered, rows, confidence))
        return [Coverage(*one) for one in zip(*(column.tolist() for column in columns), strict=True)]


class DeviceCoverage(Coverage, frozen=True):
    """Coverage on one device, and how large its sets are.

    Attributes
    ----------
    mean_size
        Labels per set, or the mean width of intervals; None without rows, and where sizes are not known.
    empty
        Fraction of empty sets; None likewise.
    per_class
        Coverage by true label, of the labels that the device has; empty for intervals.
    """

    mean_size: Number | None = None
    empty: float | None = None
    per_class: dict[int | str, Coverage] = field(default_factory=dict)

    def __post_init__(self) -> None:
        size: Any = self.mean_size
        if isinstance(size, str):  # a file has words for infinities
            structs.force_setattr(self, "mean_size", as_number(size, "mean_size"))

    def report(self) -> dict[str, Any]:
        """Return a JSON object for people, with the rate, which is None without rows."""
        return {**super().report(), "mean_size": self.mean_size, "empty": self.empty}


def under_covered(parts: Mapping[str, Coverage], nominal: float | None, error: float = FAMILY_WISE_ERROR) -> set[str]:
    """Return the names of parts that cover less than `nominal`, by exact tests that all hold together; see `Sites`."""
    if nominal is None or not parts:
        return set()
    tested = {name: part for name, part in parts.items() if part.rows}
    covered, rows = [part.covered for part in tested.values()], [part.rows for part in tested.values()]
    below = rejected_by_holm(shortfall_p_values(covered, rows, nominal), error)
    return {name for name, is_below in zip(tested, below.tolist(), strict=True) if is_below}


def coverage_contradictions(
    parts: Mapping[str, Coverage], whole: Coverage | None = None, what: str = "parts"
) -> Iterator[str]:
    """Yield what cannot be so in coverages by name: counts, 95 % intervals, and sums, where they have all of `whole`.

    `what` is the name of all parts together.
    """
    if wrong := next((name for name, part in parts.items() if part.covered > part.rows), None):
        yield f"{wrong} must have at most as many covered rows as rows"
        return
    counts = np.array([(part.covered, part.rows) for part in parts.values()], dtype=np.int64).reshape(-1, 2)
    if whole is not None and parts and (sums := tuple(counts.sum(axis=0).tolist())) != (whole.covered, whole.rows):
        yield f"{what} must have all {whole.rows} rows, {whole.covered} of them covered, got {sums[1]} and {sums[0]}"
    ends = np.array([(part.low, part.high) for part in parts.values()]).reshape(-1, 2)
    # Other versions of SciPy may have other last digits.
    same = np.isclose(ends, np.stack(exact_intervals(*counts.T), axis=1), rtol=0, atol=1e-9).all(axis=1)
    if not same.all():
        name, part = [*parts.items()][int(same.argmin())]
        got = f"{part.low} to {part.high}"
        yield f"{name} must have the exact interval of {part.covered} of {part.rows} rows, got {got}"
    for name, part in parts.items():
        if isinstance(part, DeviceCoverage):
            if not (0 <= (part.empty or 0.0) <= 1 and (part.mean_size or 0.0) >= 0):
                yield f"{name} must have a mean size of at least 0, and a share of empty sets between 0 and 1"
            named = {f"{name}, class {label}": one for label, one in part.per_class.items()}
            yield from coverage_contradictions(named, part, f"classes of {name}")


class Evaluation(ArrayResult, frozen=True, eq=False, tag_field="format", tag="conformesh-evaluation/1"):
    """What the sets do on labelled data.

    As an array it says of every row whether it is covered.

    Attributes
    ----------
    coverage
        Overall, with an exact (Clopper-Pearson) 95 % interval.
    mean_size
        Labels per set, or the mean width of intervals.
    empty, singleton
        Fractions of empty sets and of sets with exactly one label; `singleton` is None for intervals.
    per_class, per_device, per_group, per_centre
        Coverage by true label, by device, by group and by nearest centre (where rows named these). Labels are columns
        of the outputs; in an evaluation of a `MeshClassifier` they are its classes. What is known of a device is a
        `DeviceCoverage`, with its sizes and classes; `sites` lists and tests them.
    sizes
        How many sets have so many labels; empty for intervals.
    nominal
        What was asked for, 1 - alpha, where that is known.
    classes
        The classes of the columns, where they are known.
    row_hits, row_sizes
        Of every row whether it is covered, and how many labels its set has or how wide its interval is. From these come
        `by_size`, `by_feature` and `worst_slab`.
    """

    coverage: Coverage
    mean_size: Number
    empty: float
    singleton: float | None = None
    per_class: dict[int | str, Coverage] = field(default_factory=dict)
    per_device: dict[str, DeviceCoverage] = field(default_factory=dict)
    per_group: dict[str, Coverage] = field(default_factory=dict)
    sizes: dict[int, int] = field(default_factory=dict)
    nominal: float | None = None
    classes: tuple[str | bool | int | float, ...] | None = None
    row_hits: NDArray[np.bool_] = field(default_factory=lambda: np.zeros(0, np.bool_))
    row_sizes: NDArray[Any] = field(default_factory=lambda: np.zeros(0))
    per_centre: dict[int, Coverage] = field(default_factory=dict)

    noun: ClassVar[str] = "an evaluation"

    def __post_init__(self) -> None:
        size: Any = self.mean_size
        if isinstance(size, str):  # a file has words for infinities
            structs.force_setattr(self, "mean_size", as_number(size, "mean_size"))

    @property
    def array(self) -> NDArray[np.bool_]:
        """Whether each row is covered."""
        return self.row_hits

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Evaluation) and self.report() == other.report()

    __hash__ = None  # type: ignore[assignment] # it compares by content

    @property
    def gap(self) -> float:
        """The mean of ``|coverage near the centre - nominal|`` over all rows; nan where it is not known."""
        if self.nominal is None or not self.per_centre:
            return float("nan")
        rows = sum(cell.rows for cell in self.per_centre.values())
        off = sum(cell.rows * abs(cell.rate - self.nominal) for cell in self.per_centre.values() if cell.rows)
        return off / max(rows, 1)

    def sites(self, family_wise_error: float = FAMILY_WISE_ERROR, nominal: float | None = None) -> Sites:
        """Return a table of the devices, with a flag for those that cover too little; see `Sites`.

        `nominal` is the coverage to test against, by default what was asked for.
        """
        from conformesh.results.sites import Sites

        if not self.per_device:
            raise ValueError(
                "this evaluation does not know which device its rows are from: evaluate with device=, a name for each "
                "row"
            )
        nominal = self.nominal if nominal is None else nominal
        return Sites(self.per_device, nominal, family_wise_error=family_wise_error, classes=self.classes)

    def by_size(self, bins: int | Sequence[float] | None = None) -> dict[str, Coverage]:
        """Return size-stratified coverage: of the rows whose sets are about equally large.

        `bins` are the largest sizes of all strata but the last, or how many strata of about equally many rows there
        are; by default 1, 3, 10, 100 and 1000 labels, or five strata of intervals. The smallest rate is what is often
        reported ([Angelopoulos2021], size-stratified coverage).
        """
        from conformesh.results.strata import _STRATA, SIZE_LIMITS, coverage_by_stratum

        return coverage_by_stratum(
            self.row_hits, self.row_sizes, "sizes", bins or (_STRATA if self.singleton is None else SIZE_LIMITS)
        )

    def by_feature(self, values: ArrayLike, bins: int | Sequence[float] | None = None) -> dict[str, Coverage]:
        """Return feature-stratified coverage: of the rows with each value of a feature, one value per row.

        Many numbers are put into five strata of about equally many rows, or into `bins` as in `by_size`.
        """
        from conformesh.results.strata import coverage_by_stratum

        return coverage_by_stratum(self.row_hits, values, "values", bins)

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
        from conformesh.results.strata import worst_slab

        return worst_slab(self.row_hits, features, mass=mass, directions=directions, held_out=held_out, rng=rng)

    @property
    def parts(self) -> dict[str, dict[str, Coverage]]:
        """Coverage by device, group, class and centre, each where it is known, by name; of what has rows."""
        names: dict[Any, Any] = dict(enumerate(self.classes or ()))
        classes = {str(names.get(c, c)): part for c, part in self.per_class.items()}
        devices = {name: self.per_device[name] for name in natural_order(self.per_device)}
        centres = {str(cell): part for cell, part in self.per_centre.items()}
        found: dict[str, Mapping[str, Coverage]] = {
            "device": devices,
            "group": self.per_group,
            "class": classes,
            "centre": centres,
        }
        some = {what: {name: part for name, part in parts.items() if part.rows} for what, parts in found.items()}
        return {what: parts for what, parts in some.items() if parts}

    def named(self, classes: Sequence[Any] | None) -> Evaluation:
        """Return the same with these classes."""
        return structs.replace(self, classes=None if classes is None else tuple(classes))

    def plot(self, ax: Any = None, path: str | os.PathLike[str] | None = None, by: str | None = None) -> Any:
        """Draw coverage by device, group, class and centre, and how large sets are; returns the figure.

        With `ax` or `by` (`device`, `group`, `class`, `centre`, `size`) one panel alone; `path` also writes a file.
        """
        from conformesh.plots.results import draw_evaluation

        return draw_evaluation(self, ax, path, by)

    def columns(self) -> dict[str, NDArray[Any]]:
        """Return a table of coverages: of all rows, then of each device, group, class and centre."""
        return _columns(self.coverage, self.parts, ("rate", "low", "high", "covered", "rows"))

    def contradictions(self) -> Iterator[str]:
        """Yield what cannot be so."""
        yield from coverage_contradictions({"coverage": self.coverage})
        for what, parts in (("device", self.per_device), ("class", self.per_class)):
            named = {f"{what} {name}": part for name, part in parts.items()}
            yield from coverage_contradictions(named, self.coverage, f"coverages by {what}")
        for what, some in (("group", self.per_group), ("centre", self.per_centre)):  # groups may overlap
            yield from coverage_contradictions({f"{what} {name}": part for name, part in some.items()})
        if self.nominal is not None and not 0 < self.nominal < 1:
            yield f"nominal must lie strictly between 0 and 1, got {self.nominal}"
        if self.sizes and sum(self.sizes.values()) != self.coverage.rows:
            yield f"sizes must be those of {self.coverage.rows} sets, got {sum(self.sizes.values())}"
        if any(not 0 <= share <= 1 for share in (self.empty, self.singleton or 0.0)) and self.coverage.rows:
            yield f"empty and singleton must be shares between 0 and 1, got {self.empty} and {self.singleton}"
        if len(self.row_sizes) and not np.isclose(self.row_sizes.mean(), self.mean_size):
            yield f"mean_size must be that of row_sizes, {self.row_sizes.mean():g}, got {self.mean_size:g}"
        if len(self.row_hits) and len(self.row_hits) != self.coverage.rows:
            yield f"row_hits must be one for each of {self.coverage.rows} rows, got {len(self.row_hits)}"
        elif len(self.row_hits) and int(self.row_hits.sum()) != self.coverage.covered:
            yield f"row_hits must have {self.coverage.covered} covered rows, got {int(self.row_hits.sum())}"

    def report(self) -> dict[str, Any]:
        """Return a JSON object for people: rates, classes by their names, and nothing of single rows."""
        parts = {f"per_{what}": {n: c.report() for n, c in parts.items()} for what, parts in self.parts.items()}
        clean: dict[str, Any] = as_json_value(
            {
                "nominal": self.nominal,
                "coverage": self.coverage.report(),
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
        asked = "" if self.nominal is None else f"; asked for {self.nominal:.6g}"
        lines = [("coverage", f"{self.coverage}{asked}")]
        if self.singleton is None:
            lines.append(("mean width", f"{self.mean_size:.4g}; empty {self.empty:.1%}"))
        else:
            sizes = f"{self.mean_size:.4g} labels; empty {self.empty:.1%}, one label {self.singleton:.1%}"
            lines.append(("mean size", sizes))
        for what, parts in self.parts.items():
            lowest = min(parts, key=lambda name: parts[name].rate)
            below = len(under_covered(parts, self.nominal))
            error = f"chance of a false alarm at most {FAMILY_WISE_ERROR:g}"
            less = f"; {below:,} of {len(parts):,} below what was asked for ({error})" if below else ""
            lines.append((f"by {what}", f"least {parts[lowest].rate:.4f} ({lowest}){less}"))
        if self.nominal is not None and self.per_centre:
            lines.append((f"mean |coverage near a centre - {self.nominal:g}|", f"{self.gap:.4f}"))
        return lines

    def _repr_html_(self) -> str:
        from conformesh.plots import html

        below = {what: under_covered(parts, self.nominal) for what, parts in self.parts.items()}
        charts = [
            html.interval_chart(
                {name: html.IntervalMark(c.rate, c.low, c.high, name in below[what]) for name, c in parts.items()},
                "coverage",
                what,
                self.nominal,
                top=1.0,
            )
            for what, parts in self.parts.items()
        ]
        sizes = [html.bar_chart(self.sizes, "labels in a set")] if self.sizes else []
        return html.html_card("Evaluation", rows=self.facts(), parts=[*charts, *sizes])

    def __repr__(self) -> str:
        return f"Evaluation({self})"

    def __str__(self) -> str:
        one = "" if self.singleton is None else f", one label {self.singleton:.1%}"
        return f"coverage {self.coverage}, mean size {self.mean_size:.4g}, empty {self.empty:.1%}{one}"


def _evaluate_sets(
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
    return evaluate_label_sets(score.sets(outputs, threshold, **(draws or {})), labels, score.name, devices, groups)


def evaluate_label_sets(
    sets: NDArray[np.bool_],
    labels: NDArray[Any],
    who: str,
    devices: ArrayLike | None = None,
    groups: Mapping[str, NDArray[np.bool_]] | None = None,
) -> Evaluation:
    """Evaluate label sets that are there already, (rows, classes); `who` made them, for errors."""
    labels = as_label_indices(who, sets, labels)
    hits = sets[np.arange(len(labels)), labels]
    sizes = sets.sum(axis=1)
    return Evaluation(
        coverage=Coverage.of(hits),
        mean_size=_mean(sizes),
        empty=_mean(sizes == 0),
        singleton=_mean(sizes == 1),
        per_class=_per_class(hits, labels),
        per_device=coverage_by_device(hits, devices, labels, (sizes, sizes == 0)),
        per_group={name: Coverage.of(hits[rows]) for name, rows in (groups or {}).items()},
        sizes={int(size): int(count) for size, count in zip(*np.unique(sizes, return_counts=True), strict=True)},
        row_hits=hits,
        row_sizes=sizes,
    )


def _evaluate_intervals(
    score: Score,
    outputs: NDArray[Any],
    labels: NDArray[Any],
    threshold: float | NDArray[np.float64],
    devices: ArrayLike | None = None,
    groups: Mapping[str, NDArray[np.bool_]] | None = None,
) -> Evaluation:
    """Evaluate intervals; coverage is by the score itself, width by the interval."""
    _same_length(outputs, labels, devices)
    return evaluate_intervals(
        score.covers(outputs, labels, threshold), score.intervals(outputs, threshold), devices, groups
    )


def evaluate_intervals(
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
        per_device=coverage_by_device(hits, devices, None, (np.maximum(widths, 0.0), widths < 0)),
        per_group={name: Coverage.of(hits[rows]) for name, rows in (groups or {}).items()},
        row_hits=hits,
        row_sizes=np.maximum(widths, 0.0),
    )


def coverage_by_centre(covered: ArrayLike, inputs: ArrayLike, cells: Centres) -> dict[int, Coverage]:
    """Return the coverage of the rows nearest to each centre; of any sets, to compare."""
    hits, where = np.asarray(covered, dtype=bool), cells.nearest(inputs)
    if hits.shape != where.shape:
        raise ValueError(f"covered must say it for each of {len(where)} inputs, got shape {hits.shape}")
    return {int(cell): Coverage.of(hits[where == cell]) for cell in np.unique(where)}


def _per_class(hits: NDArray[np.bool_], labels: NDArray[Any]) -> dict[int | str, Coverage]:
    classes, codes = np.unique(labels, return_inverse=True)
    found = Coverage.each(np.bincount(codes, hits).astype(np.int64), np.bincount(codes))
    return dict(zip(map(int, classes.tolist()), found, strict=True))


def coverage_by_device(
    hits: NDArray[np.bool_],
    devices: ArrayLike | None,
    labels: NDArray[Any] | None = None,
    sizes: tuple[NDArray[Any], NDArray[np.bool_]] | None = None,
) -> dict[str, DeviceCoverage]:
    """Return coverage on each device, in the order in which they come.

    `sizes` are those of the sets, and which are empty; `labels` are columns.
    """
    if devices is None:
        return {}
    names, first, codes = np.unique(np.asarray(devices).astype(str), return_index=True, return_inverse=True)
    rows, covered = np.bincount(codes), np.bincount(codes, hits).astype(np.int64)
    means = [np.bincount(codes, each) / rows for each in sizes or ()]
    columns = [column.tolist() for column in (covered, rows, *exact_intervals(covered, rows), *means)]
    known = [DeviceCoverage(*each) for each in zip(*columns, strict=True)]
    for (device, label), part in _coverage_by_device_and_class(hits, codes, labels).items():
        known[device].per_class[label] = part
    return {str(names[k]): known[k] for k in np.argsort(first).tolist()}


def _coverage_by_device_and_class(
    hits: NDArray[np.bool_], codes: NDArray[np.int64], labels: NDArray[Any] | None
) -> dict[tuple[int, int], Coverage]:
    """Return the coverage of each label on each device that has it, devices by their places."""
    if labels is None or not len(labels):
        return {}
    labels = np.asarray(labels, dtype=np.int64)
    many = int(labels.max()) + 1
    pairs, places = np.unique(codes * many + labels, return_inverse=True)
    found = Coverage.each(np.bincount(places, hits).astype(np.int64), np.bincount(places))
    return {(pair // many, pair % many): part for pair, part in zip(pairs.tolist(), found, strict=True)}


def _same_length(outputs: NDArray[Any], labels: NDArray[Any], devices: ArrayLike | None) -> None:
    rows = {"outputs": len(outputs), "labels": len(labels)}
    if devices is not None:
        rows["devices"] = len(np.asarray(devices))
    if len(set(rows.values())) > 1:
        raise ValueError("evaluate needs one label (and device) per row, got " + str(rows))


class _MeanLoss(Struct, frozen=True):
    """The mean of some losses, with a 95 % interval.

    The interval is that of a normal mean, for which an imagined loss of 0 and one of the bound widen the spread: so
    it says something also where all losses are equal.
    """

    mean: float
    rows: int
    low: float
    high: float

    @classmethod
    def of(cls, losses: NDArray[np.float64], bound: float) -> _MeanLoss:
        """Return the mean of losses between 0 and `bound`."""
        n = len(losses)
        if not n:
            return cls(float("nan"), 0, 0.0, bound)
        from statistics import NormalDist

        mean = float(losses.mean())
        spread = float(((losses - mean) ** 2).sum()) + mean**2 + (bound - mean) ** 2
        half = NormalDist().inv_cdf(0.975) * (spread / (n + 1) / n) ** 0.5
        return cls(mean, n, max(0.0, mean - half), min(bound, mean + half))


class RiskEvaluation(ArrayResult, frozen=True, eq=False, tag_field="format", tag="conformesh-risk-evaluation/1"):
    """What sets lose on labelled data.

    Attributes
    ----------
    loss
        Mean over all rows, with a 95 % interval.
    mean_size
        Labels, or pixels, in a set.
    empty
        Fraction of sets with nothing in them.
    per_device, per_group
        Mean loss by device and by group, where rows named theirs.
    nominal
        The risk that was asked for, where that is known.
    row_losses
        The loss of every row: what the evaluation is as an array.
    """

    loss: _MeanLoss
    mean_size: float
    empty: float
    per_device: dict[str, _MeanLoss] = field(default_factory=dict)
    per_group: dict[str, _MeanLoss] = field(default_factory=dict)
    nominal: float | None = None
    row_losses: NDArray[np.float64] = field(default_factory=lambda: np.zeros(0))

    noun: ClassVar[str] = "an evaluation of risk control"

    @property
    def array(self) -> NDArray[np.float64]:
        """The loss of each row."""
        return self.row_losses

    def columns(self) -> dict[str, NDArray[Any]]:
        """Return a table of mean losses: of all rows, then of each device and group."""
        parts = {"device": self.per_device, "group": self.per_group}
        return _columns(self.loss, parts, ("mean", "low", "high", "rows"))

    def _repr_html_(self) -> str:
        from conformesh.plots import html

        one = self.loss
        rows = [
            ("mean loss", f"{one.mean:.4f} [{one.low:.4f}, {one.high:.4f}] on {one.rows:,} rows"),
            ("mean size", f"{self.mean_size:.4g}; empty {self.empty:.1%}"),
        ]
        line = one.mean if self.nominal is None else self.nominal
        parts = [
            html.interval_chart(
                {n: html.IntervalMark(c.mean, c.low, c.high) for n, c in each.items()}, "mean loss", what, line
            )
            for what, each in (("device", self.per_device), ("group", self.per_group))
            if each
        ]
        return html.html_card("RiskEvaluation", rows=rows, parts=parts)

    def __repr__(self) -> str:
        return f"RiskEvaluation({self})"

    def __str__(self) -> str:
        one = self.loss
        return (
            f"mean loss {one.mean:.4f} [{one.low:.4f}, {one.high:.4f}] on {one.rows:,} rows, mean size "
            f"{self.mean_size:.4g}, empty {self.empty:.1%}"
        )


def evaluate_risk(
    losses: NDArray[np.float64],
    sets: NDArray[np.bool_],
    bound: float,
    nominal: float | None = None,
    devices: NDArray[np.str_] | None = None,
    groups: Mapping[str, NDArray[np.bool_]] | None = None,
) -> RiskEvaluation:
    """Evaluate sets whose losses, between 0 and `bound`, are known."""
    sizes = sets.reshape(len(sets), -1).sum(axis=1)
    within = {} if devices is None else {name: devices == name for name in dict.fromkeys(devices.tolist())}
    return RiskEvaluation(
        _MeanLoss.of(losses, bound),
        _mean(sizes),
        _mean(sizes == 0),
        {name: _MeanLoss.of(losses[rows], bound) for name, rows in within.items()},
        {name: _MeanLoss.of(losses[rows], bound) for name, rows in (groups or {}).items()},
        nominal,
        losses,
    )


def _columns(whole: Any, parts: Mapping[str, Mapping[str, Any]], names: Sequence[str]) -> dict[str, NDArray[Any]]:
    """Return a table of measurements with these attributes: of the whole, then of each part."""
    lines = [("all", "", whole), *((by, name, part) for by, each in parts.items() for name, part in each.items())]
    heads = {"by": np.array([by for by, _, _ in lines]), "name": np.array([name for _, name, _ in lines])}
    return {**heads, **{name: np.array([getattr(part, name) for _, _, part in lines]) for name in names}}


def _mean(values: NDArray[Any]) -> float:
    return float(values.mean()) if len(values) else float("nan")
