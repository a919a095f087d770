r"""Quantile regression over groups: the largest fit for a point that is exchanged for another, exactly.

A fit gives atom c the value :math:`u_c = \sum_{g \ni c} \beta_g` and minimises a sum of convex, piecewise linear
functions of these values, one per atom, that bend at the atom's scores:

.. math:: \sum_c f_c(u_c) - \sum_c e_c u_c, \qquad f_c' = M \, |\{S_i \le u_c\}| - Q n_c \quad \text{right of } u_c

With :math:`M = m (n + 1)` and :math:`Q = (m - p)(n + 1) - 1` for :math:`\alpha = p / m` this is the pinball loss at the
level Q/M, just below :math:`1 - \alpha`, in whole numbers. A pull e on some atoms stands for a score that is added at
infinity or taken away. Among the optima a vertex passes through as many scores as there are independent groups, its
*basis*; the tableau says how the other atoms' values depend on those of the basis. A simplex method moves one score of
the basis at a time as long as the objective falls. Many problems that differ in their pulls alone are solved at once.

Reference: Koenker and Bassett (1978) for the vertices; [Gibbs2025] for regression over groups.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from conformesh.common.array_types import Bools, Floats, Ints

_SMALLEST_ENTRY = 1e-9  # smaller entries of a tableau are round-off: the others are ratios of small determinants
_SLOPE_SLACK = 0.01  # smaller slopes are round-off: the others are whole numbers over such determinants
_MOST_PIVOTS = 100_000  # pivots of one batch of problems, far more than any needs: ends the loop in any case


@dataclass(frozen=True, eq=False)
class Bends:
    """Where the functions of the atoms bend, and their slopes in between.

    Attributes
    ----------
    at
        (atoms, width): -inf, then the atom's scores in ascending order, each once, then +inf.
    slopes
        (atoms, width): slope k holds where k of the scores are at or below the value.
    """

    at: Floats
    slopes: Floats


@dataclass(eq=False)
class Vertices:
    """A vertex for each of some problems.

    `tableau` (problems, atoms, rank) says how values depend on those of the `basis` (problems, rank), whose atoms stand
    at their bend `bend`; `place` (problems, atoms) counts the bends at or below every other value; `values` (problems,
    atoms). Where a problem has no least value, it is not `bounded`.
    """

    tableau: Floats
    basis: Ints
    bend: Ints
    place: Ints
    values: Floats
    bounded: Bools

    def repeated(self, rows: Ints) -> Vertices:
        """Return copies of some of the vertices, to start others from."""
        return Vertices(*(getattr(self, name)[rows] for name in self.__dataclass_fields__))


def first_vertex(members: Bools, bends: Bends, masses: Ints) -> Vertices:
    """Return a vertex to start from: independent atoms at their own quantiles; `members` is (groups, atoms)."""
    order = np.argsort(-masses, kind="stable")
    reduced, pivots = _reduced(members[:, order].astype(np.float64))
    tableau = np.empty((1, len(masses), len(pivots)))
    tableau[0, order] = reduced.T
    basis = order[pivots][None]
    enough = (bends.slopes >= 0).argmax(axis=1)  # the bend at which each atom's own slope turns
    last = np.isfinite(bends.at).sum(axis=1)
    bend = np.clip(enough, 1, last)[basis]
    values = np.einsum("pcj,pj->pc", tableau, bends.at[basis, bend])
    place = (bends.at[None] <= values[:, :, None]).sum(axis=2) - 1
    return Vertices(tableau, basis, bend, place, values, np.ones(1, dtype=bool))


def improved(bends: Bends, start: Vertices, pulls: Floats) -> Vertices:
    """Return an optimal vertex for every row of `pulls` (problems, atoms), from vertices to start at, one for each."""
    found = replace(start, bounded=np.ones(len(pulls), dtype=bool))
    rows = np.arange(len(pulls))
    for _ in range(_MOST_PIVOTS):
        up, down = _violations(bends, found, pulls, rows)
        column = np.maximum(up, down).argmax(axis=1)
        each = np.arange(len(rows))
        rises, fall = up[each, column] >= down[each, column], np.maximum(up, down)[each, column]
        left = (fall > _SLOPE_SLACK) & found.bounded[rows]
        rows = rows[left]
        if not len(rows):
            return found
        _step(bends, found, rows, column[left], np.where(rises[left], 1.0, -1.0), fall[left])
    raise ArithmeticError("the fit over groups did not end; use group_rule='seq', which needs none")


def _violations(bends: Bends, at: Vertices, pulls: Floats, rows: Ints) -> tuple[Floats, Floats]:
    """Return by how much the objective falls when a score of the basis moves up, and when it moves down."""
    lean, basis, bend = leaning(bends, at, pulls, rows), at.basis[rows], at.bend[rows]
    return -(lean + bends.slopes[basis, bend]), lean + bends.slopes[basis, bend - 1]


def leaning(bends: Bends, at: Vertices, pulls: Floats, rows: Ints) -> Floats:
    """Return the slope of the objective along each score of the basis, without that score's own bend."""
    slopes = bends.slopes[np.arange(at.place.shape[1]), at.place[rows]]
    np.put_along_axis(slopes, at.basis[rows], 0.0, axis=1)
    return np.asarray(np.einsum("pcj,pc->pj", at.tableau[rows], slopes - pulls[rows]))


def _step(bends: Bends, at: Vertices, rows: Ints, column: Ints, sign: Floats, fall: Floats) -> None:
    """Move one score of each basis until the objective would rise; the atom whose score stops it takes its place."""
    many, every = np.arange(len(rows)), np.arange(at.place.shape[1])
    leaving = at.basis[rows, column]
    move = sign[:, None] * at.tableau[rows, :, column]
    move[np.abs(move) < _SMALLEST_ENTRY] = 0.0
    upward = move > 0
    place, values = at.place[rows], at.values[rows]
    place[many, leaving] = at.bend[rows, column] - (sign < 0)
    ahead = place + upward
    with np.errstate(divide="ignore", invalid="ignore"):
        times = np.where(move != 0, (bends.at[every, ahead] - values) / move, np.inf)
    times = np.maximum(times, 0.0)
    slope, open_ = -fall, np.ones(len(rows), dtype=bool)
    stop, when = np.zeros(len(rows), dtype=np.int64), np.zeros(len(rows))
    while open_.any():
        p = np.flatnonzero(open_)
        c = times[p].argmin(axis=1)
        reached = times[p, c]
        endless = ~np.isfinite(reached)
        k = ahead[p, c]
        slope[p] += np.where(endless, np.inf, np.abs(move[p, c]) * (bends.slopes[c, k] - bends.slopes[c, k - 1]))
        stop[p], when[p] = c, reached
        open_[p] = slope[p] < -_SLOPE_SLACK
        p, c = p[open_[p]], c[open_[p]]
        way = np.where(upward[p, c], 1, -1)
        place[p, c] += way
        ahead[p, c] += way
        times[p, c] = np.maximum((bends.at[c, ahead[p, c]] - values[p, c]) / move[p, c], when[p])
    endless = ~np.isfinite(when)
    at.bounded[rows[endless]] = False
    keep = np.flatnonzero(~endless)
    rows, column, stop, many = rows[keep], column[keep], stop[keep], keep
    at.values[rows] = values[many] + when[many, None] * move[many]
    at.place[rows] = place[many]
    at.bend[rows, column] = ahead[many, stop]
    at.values[rows, stop] = bends.at[stop, ahead[many, stop]]
    swap = stop != leaving[many]
    _exchange(at, rows[swap], column[swap], stop[swap])


def _exchange(at: Vertices, rows: Ints, column: Ints, entering: Ints) -> None:
    """Let an atom enter the basis in place of another."""
    many = np.arange(len(rows))
    own = at.tableau[rows]
    row = own[many, entering]
    lead = own[many, :, column] / row[many, column][:, None]
    row[many, column] = 0.0
    own -= lead[:, :, None] * row[:, None, :]
    own[many, :, column] = lead
    own[many, entering] = 0.0
    own[many, entering, column] = 1.0
    own[np.abs(own) < _SMALLEST_ENTRY] = 0.0
    at.tableau[rows] = own
    at.basis[rows, column] = entering


def _reduced(table: Floats) -> tuple[Floats, Ints]:
    """Return the reduced row echelon form without its rows of zeros, and its pivot columns."""
    table = table.copy()
    pivots: list[int] = []
    for column in range(table.shape[1]):
        row = len(pivots)
        if row == len(table):
            break
        best = row + int(np.abs(table[row:, column]).argmax())
        if abs(table[best, column]) < _SMALLEST_ENTRY:
            continue
        table[[row, best]] = table[[best, row]]
        table[row] /= table[row, column]
        others = np.arange(len(table)) != row
        table[others] -= table[others, column][:, None] * table[row]
        pivots.append(column)
    return table[: len(pivots)], np.array(pivots, dtype=np.int64)
