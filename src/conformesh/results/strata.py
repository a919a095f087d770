"""Coverage of parts of the data: rows whose sets have a size, rows with a feature, and the slab where it is worst."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import ArrayLike, NDArray

from conformesh.common.array_types import Bools, Floats
from conformesh.common.arrays import as_array
from conformesh.results.evaluation import Coverage
from conformesh.scores.draws import Rng, as_generator

SIZE_LIMITS = (1, 3, 10, 100, 1000)  # of label sets, the largest of each stratum: those of [Angelopoulos2021]
_STRATA = 5  # strata of a numerical feature by default, with about equally many rows each
_MOST_PRINTED = 6  # components of a direction that are printed
_FEW_VALUES = 20  # different numbers; up to this many are strata of their own, such as years or grades
_NUMBERS_AT_ONCE = 2**21  # numbers in memory at a time: 16 MB of float64


def coverage_by_stratum(
    hits: Bools, values: ArrayLike, what: str, bins: int | Sequence[float] | None = None
) -> dict[str, Coverage]:
    """Return the coverage of the rows of each stratum, those without rows left out.

    `bins` are the largest values of all strata but the last, ascending, or how many strata of about equally many rows
    there are to be; None makes each value one of its own, or of many numbers some strata.

    >>> found = coverage_by_stratum(np.array([True, False, True]), ["a", "b", "a"], "sites")
    >>> {name: part.rate for name, part in found.items()}
    {'a': 1.0, 'b': 0.0}
    """
    array = as_array(values, what)
    if array.shape != hits.shape:
        raise ValueError(f"{what} must be one for each of {len(hits)} rows, got shape {array.shape}")
    if bins is None and (array.dtype.kind not in "fiu" or len(np.unique(array)) <= _FEW_VALUES):
        named = array.tolist()
        if gaps := [i for i, value in enumerate(named) if value is None or value != value]:  # noqa: PLR0124 - NaN
            raise ValueError(f"{what}: row {gaps[0]} has no value; leave these rows out or name them")
        return {str(each): Coverage.of(hits[array == each]) for each in np.unique(array).tolist()}
    if array.dtype.kind not in "fiub":
        raise TypeError(f"{what} must be numbers to be put into bins, got dtype {array.dtype}; leave bins out")
    numbers = array.astype(np.float64)
    if np.isnan(numbers).any():
        raise ValueError(f"{what}: row {int(np.isnan(numbers).argmax())} is NaN; leave these rows out")
    edges = _edges(numbers, _STRATA if bins is None else bins)
    places = np.searchsorted(edges, numbers)
    names = _names(edges, whole=array.dtype.kind in "iub")
    return {names[k]: Coverage.of(hits[places == k]) for k in np.unique(places).tolist()}


def _edges(numbers: Floats, bins: int | Sequence[float]) -> Floats:
    """Return the largest value of every stratum but the last."""
    if isinstance(bins, int):
        if bins < 1:
            raise ValueError(f"bins must be at least 1, or the largest values of strata, got {bins}")
        ranks = (np.arange(1, bins) * len(numbers)) // bins - 1
        return np.unique(np.sort(numbers)[ranks[ranks >= 0]])
    edges = np.asarray(bins, dtype=np.float64)
    if edges.ndim != 1 or not (np.diff(edges) > 0).all():
        raise ValueError(f"bins must be a number, or the largest values of strata in ascending order, got {bins}")
    return edges


def _names(edges: Floats, whole: bool) -> list[str]:
    """Return what strata are called: whole numbers by the first and the last of them."""
    ends = [f"{edge:.6g}" for edge in edges]
    if not ends:
        return ["all"]
    after = [f"{edge + 1:.6g}" for edge in edges] if whole else ends
    first = f"at most {ends[0]}"
    if whole:
        between = [low if low == high else f"{low} to {high}" for low, high in zip(after, ends[1:], strict=False)]
        return [first, *between, f"{after[-1]} or more"]
    return [first, *(f"{low} to {high}" for low, high in pairwise(ends)), f"above {ends[-1]}"]


@dataclass(frozen=True, repr=False)
class Slab:
    r"""The rows between two parallel planes, :math:`a \le v^\top x \le b`, in which coverage is worst.

    Attributes
    ----------
    coverage
        Of the rows in the slab that had no part in finding it: an honest estimate.
    mass
        Which fraction of these rows lies in the slab.
    found
        Coverage of the rows by which it was found, which is lower than the truth: it was the lowest of very many.
    direction, low, high
        v, a and b above.
    """

    coverage: Coverage
    mass: float
    found: Coverage
    direction: tuple[float, ...]
    low: float
    high: float

    def facts(self) -> list[tuple[str, str]]:
        """Return names and words of what a person wants to know first."""
        more = f", ... ({len(self.direction):,} features)" if len(self.direction) > _MOST_PRINTED else ""
        v = ", ".join(f"{part:.3g}" for part in self.direction[:_MOST_PRINTED])
        return [
            ("coverage", f"{self.coverage}, which had no part in finding it"),
            ("mass", f"{self.mass:.1%} of these rows"),
            ("found by", f"{self.found}, lower than the truth: the lowest of many"),
            ("between", f"{self.low:.4g} and {self.high:.4g} along ({v}{more})"),
        ]

    def _repr_html_(self) -> str:
        from conformesh.plots import html

        return html.html_card("Worst slab", rows=self.facts())

    def __repr__(self) -> str:
        return f"Slab({self})"

    def __str__(self) -> str:
        return f"worst slab: coverage {self.coverage}, {self.mass:.1%} of all"


def worst_slab(
    hits: Bools,
    features: ArrayLike,
    *,
    mass: float = 0.1,
    directions: int = 1000,
    held_out: float = 0.75,
    rng: Rng | None = None,
) -> Slab:
    """Return the slab with the lowest coverage among those with at least `mass` of the rows.

    Parameters
    ----------
    hits
        Whether each row is covered.
    features
        What is known of each row, (rows,) or (rows, features); each is divided by its standard deviation first.
    mass
        The least fraction of rows in a slab.
    directions
        How many directions are drawn. All slabs of a direction are looked at.
    held_out
        The fraction of rows that have no part in finding the slab, and on which its coverage is measured.
    rng
        A generator or its seed, for the directions and for who is held out.

    Reference: [Cauchois2021], worst-slab coverage.
    Departures: the slab is found on other rows than its coverage is measured on; rows with equal projections are in or
    out together.
    """
    table = _table(features, len(hits))
    if not 0 < mass <= 1 or not 0 < held_out < 1 or directions < 1:
        raise ValueError(
            "worst_slab needs mass in (0, 1], held_out in (0, 1) and at least one direction, got "
            f"mass={mass}, held_out={held_out}, directions={directions}"
        )
    generator = as_generator(rng)
    order = generator.permutation(len(hits))
    cut = round((1 - held_out) * len(hits))
    if not 0 < cut < len(hits):
        raise ValueError(f"worst_slab needs rows to look for a slab and others to measure it on, got {len(hits)} rows")
    seen, kept = order[:cut], order[cut:]
    spread = table.std(axis=0)
    drawn = generator.normal(size=(1 if table.shape[1] == 1 else directions, table.shape[1]))
    units = drawn / np.linalg.norm(drawn, axis=1, keepdims=True)
    vectors = np.where(spread > 0, units / np.where(spread > 0, spread, 1.0), 0.0)
    v, low, high = _lowest(hits[seen], table[seen], vectors, max(1, int(np.ceil(mass * len(seen)))))

    def within(rows: NDArray[np.int64]) -> Bools:
        along = table[rows] @ v
        return np.asarray((along >= low) & (along <= high))

    inside = within(kept)
    return Slab(
        coverage=Coverage.of(hits[kept][inside]),
        mass=float(inside.mean()),
        found=Coverage.of(hits[seen][within(seen)]),
        direction=tuple(v.tolist()),
        low=low,
        high=high,
    )


def _table(features: ArrayLike, rows: int) -> Floats:
    array = as_array(features, "features")
    if array.ndim == 1:
        array = array[:, None]
    if array.ndim != 2 or len(array) != rows or array.shape[1] == 0:
        raise ValueError(f"features must be one row for each of {rows} rows, got shape {array.shape}")
    if array.dtype.kind not in "fiub":
        raise TypeError(f"features must be numbers for slabs, got dtype {array.dtype}; encode categories first")
    if not np.isfinite(table := array.astype(np.float64)).all():
        raise ValueError(f"features must be finite, row {int(np.argwhere(~np.isfinite(table))[0][0])} is not")
    return table


def _lowest(hits: Bools, table: Floats, vectors: Floats, least: int) -> tuple[Floats, float, float]:
    """Return the direction and the two ends of the slab of at least `least` rows whose coverage is lowest.

    Of several equally low ones the first found, and the largest. Dinkelbach's method, in integers: with the lowest
    ratio h / m so far, a slab of c covered rows out of r is lower if m c - h r < 0; the most negative one is next.
    """
    n, best = len(hits), (int(hits.sum()), len(hits))
    answer = vectors[0], -np.inf, np.inf
    for start in range(0, len(vectors), max(1, _NUMBERS_AT_ONCE // n)):
        part = vectors[start : start + max(1, _NUMBERS_AT_ONCE // n)]
        along = np.stack([table @ v for v in part])  # one product each, as the caller forms it: the same bits
        order = np.argsort(along, axis=1, kind="stable")
        z = np.take_along_axis(along, order, axis=1)
        covered = np.cumsum(np.pad(hits[order].astype(np.int64), ((0, 0), (1, 0))), axis=1)
        new = np.ones((len(part), n + 1), dtype=bool)  # where a run of equal projections may begin or end
        new[:, 1:-1] = z[:, 1:] > z[:, :-1]
        while True:
            h, m = best
            gain = m * covered - h * np.arange(n + 1)
            begins = np.maximum.accumulate(np.where(new, gain, np.iinfo(np.int64).min // 2), axis=1)
            drop = np.where(new[:, least:], gain[:, least:] - begins[:, : n + 1 - least], 0)
            d, e = np.unravel_index(int(drop.argmin()), drop.shape)
            if drop[d, e] >= 0:
                break
            last = int(e) + least
            allowed = np.where(new[d, : last + 1 - least], gain[d, : last + 1 - least], np.iinfo(np.int64).min // 2)
            first = int(allowed.argmax())
            best = int(covered[d, last] - covered[d, first]), last - first
            answer = part[d], float(z[d, first]), float(z[d, last - 1])
    return answer
