"""Scores of labels and the sets they induce, one pass over a table of model outputs.

Every kernel validates while it reads: it returns the first row it cannot accept, or -1, and the caller finds the words.
Tables are C-ordered float32 or float64; each entry becomes a float64 before anything is computed with it.

The adaptive kernels add probabilities in fixed point, as whole numbers of `UNIT` = 2**-50. Integer sums do not depend
on their order, so a calibration that never sorts and a prediction that does agree to the last bit; below 2**53 units
(probability 8) the sum is also a float64 without rounding.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from conformesh.common.array_types import Array, Bools, Floats, Ints
from conformesh.kernels.compilation import has_compiled_twin

ONE = 2**50  # probability 1 in units: sums of a row stay below 2^53, where float64 holds every integer
UNIT = 2.0**-50
LARGEST = 1.0 + 1e-6  # a softmax in float32 may end a few roundings above one
SLACK = ONE // 1000  # in units: largest distance of a row's sum from 1, as `SUM_SLACK` of files


@has_compiled_twin("label_scores", work=lambda outputs, labels, *_: labels.size)
def one_minus_scores(outputs: Array, labels: Ints, low: float, high: float, scores: Floats) -> int:
    """Fill ``scores[i] = 1 - outputs[i, labels[i]]``; an entry outside [low, high] or NaN makes a row bad."""
    p: Floats = outputs[np.arange(len(labels)), labels].astype(np.float64)
    np.subtract(1.0, p, out=scores)
    return _first((p >= low) & (p <= high))


@has_compiled_twin("label_scores", work=lambda outputs, *_: outputs.size)
def one_minus_sets(outputs: Array, thresholds: Floats, low: float, high: float, sets: Bools) -> int:
    """Fill ``sets[i, j] = 1 - outputs[i, j] <= thresholds[i]``; entries outside [low, high] or NaN make a row bad."""
    p = outputs.astype(np.float64)
    np.less_equal(1.0 - p, thresholds[:, None], out=sets)
    return _first(((p >= low) & (p <= high)).all(axis=1))


@has_compiled_twin("label_scores", work=lambda outputs, *_: outputs.size)
def margin_scores(outputs: Array, labels: Ints, scores: Floats) -> int:
    """Fill ``scores[i]`` with the best other label's probability minus the label's own."""
    p = outputs.astype(np.float64)
    rows = np.arange(len(labels))
    own = p[rows, labels]
    bad = _first(_probable(p))
    p[rows, labels] = -1.0
    np.subtract(p.max(axis=1, initial=-1.0), own, out=scores)
    return bad


@has_compiled_twin("label_scores", work=lambda outputs, *_: outputs.size)
def margin_sets(outputs: Array, thresholds: Floats, sets: Bools) -> int:
    """Fill ``sets`` with the labels whose margin score is at most their row's threshold."""
    p = outputs.astype(np.float64)
    padded = np.concatenate([p, np.full((len(p), 2), -1.0)], axis=1)  # a row may have one label, or none
    best = np.partition(padded, -2, axis=1)
    rival = np.where(p == best[:, -1:], best[:, -2:-1], best[:, -1:])  # a tie at the top makes both the same number
    np.less_equal(rival - p, thresholds[:, None], out=sets)
    return _first(_probable(p))


@has_compiled_twin("label_scores", work=lambda outputs, *_: outputs.size)
def adaptive_scores(outputs: Array, labels: Ints, u: Floats, penalty: tuple[float, int], scores: Floats) -> int:
    """Fill ``scores[i]`` without sorting: add up what comes before the label, equal probabilities by smaller class.

    `penalty` is the price of each rank and how many ranks are free of it, here as in `adaptive_sets`.
    """
    p, units, bad = _units(outputs)
    own = p[np.arange(len(labels)), labels][:, None]
    before = (p > own) | ((p == own) & (np.arange(p.shape[1]) < labels[:, None]))
    above = np.where(before, units, 0).sum(axis=1)
    mine = units[np.arange(len(labels)), labels]
    scores[:] = _adaptive(above, mine, before.sum(axis=1), u, penalty)
    return bad


@has_compiled_twin("label_scores", work=lambda outputs, *_: 4 * outputs.size)
def adaptive_sets(outputs: Array, thresholds: Floats, u: Floats, penalty: tuple[float, int], sets: Bools) -> int:
    """Fill ``sets`` with the labels whose adaptive score is at most their row's threshold.

    Scores never fall along the order of decreasing probability (u <= 1, penalty >= 0, and rounding is monotone), so a
    set is a prefix of that order; the compiled loop looks for its end and sorts next to nothing.
    """
    p, units, bad = _units(outputs)
    order = np.argsort(-p, axis=1, kind="stable")
    own = np.take_along_axis(units, order, axis=1)
    above = np.cumsum(own, axis=1) - own
    scores = _adaptive(above, own, np.arange(p.shape[1]), u[:, None], penalty)
    np.put_along_axis(sets, order, scores <= thresholds[:, None], axis=1)
    return bad


@has_compiled_twin("label_scores", work=lambda outputs, *_: outputs.size)
def ordinal_scores(outputs: Array, labels: Ints, u: Floats, scores: Floats) -> int:
    """Fill ``scores[i]`` with what a run of neighbouring labels weighs once it has grown to the label.

    It begins with the most probable label and takes the more probable of its two neighbours, the left one of equals.
    """
    p, units, bad = _units(outputs)
    order, rows = growth_order(p), np.arange(len(labels))
    places = (order == labels[:, None]).argmax(axis=1) if p.size else labels
    own = np.take_along_axis(units, order, axis=1)
    above = np.cumsum(own, axis=1) - own
    scores[:] = _adaptive(above[rows, places], own[rows, places], 0, u, (0.0, 0))
    return bad


@has_compiled_twin("label_scores", work=lambda outputs, *_: outputs.size)
def ordinal_sets(outputs: Array, thresholds: Floats, u: Floats, sets: Bools) -> int:
    """Fill ``sets`` with the labels whose ordinal score is at most their row's threshold: neighbours, if any."""
    p, units, bad = _units(outputs)
    order = growth_order(p)
    own = np.take_along_axis(units, order, axis=1)
    scores = _adaptive(np.cumsum(own, axis=1) - own, own, 0, u[:, None], (0.0, 0))
    np.put_along_axis(sets, order, scores <= thresholds[:, None], axis=1)
    return bad


def growth_order(p: Floats) -> Ints:
    """Return the labels of each row in the order in which a run of neighbours grows to hold them."""
    rows, classes = p.shape
    order = np.zeros((rows, classes), np.int64)
    if not p.size:
        return order
    at = np.arange(rows)
    fenced = np.full((rows, classes + 2), -1.0)  # a fence at either end, which never grows
    fenced[:, 1:-1] = p
    order[:, 0] = p.argmax(axis=1)
    left, right = order[:, 0] - 1, order[:, 0] + 1
    for step in range(1, classes):
        leftwards = fenced[at, left + 1] >= fenced[at, right + 1]
        order[:, step] = np.where(leftwards, left, right)
        left, right = left - leftwards, right + ~leftwards
    return order


@has_compiled_twin("label_scores", work=lambda outputs, *_: outputs.size)
def ranked_scores(outputs: Array, labels: Ints, u: Floats, penalty: float, by_rank: bool, scores: Floats) -> int:
    """Fill ``scores[i]`` with what the label's rank costs: the largest probability, and a penalty for each rank after.

    With `by_rank` one stands in place of the largest probability. Equal probabilities are ranked by smaller class.
    """
    p = outputs.astype(np.float64)
    own = p[np.arange(len(labels)), labels][:, None]
    ahead = ((p > own) | ((p == own) & (np.arange(p.shape[1]) < labels[:, None]))).sum(axis=1)
    scores[:] = ranked_score(ahead, _tops(p, by_rank), u, penalty)
    return _first(_probable(p))


@has_compiled_twin("label_scores", work=lambda outputs, *_: 4 * outputs.size)
def ranked_sets(outputs: Array, thresholds: Floats, u: Floats, penalty: float, by_rank: bool, sets: Bools) -> int:
    """Fill ``sets`` with the labels whose ranked score is at most their row's threshold: the most probable ones."""
    p = outputs.astype(np.float64)
    order = np.argsort(-p, axis=1, kind="stable")
    scores = ranked_score(np.arange(p.shape[1]), _tops(p, by_rank)[:, None], u[:, None], penalty)
    np.put_along_axis(sets, order, scores <= thresholds[:, None], axis=1)
    return _first(_probable(p))


def ranked_score(ahead: Any, top: Any, u: Any, penalty: float) -> Any:
    """The one formula behind calibration and sets: `ahead` labels come before this one."""
    return np.where(ahead == 0, u * top, top + penalty * (ahead - 1 + u))


def _tops(p: Floats, by_rank: bool) -> Floats:
    return np.ones(len(p)) if by_rank else p.max(axis=1, initial=0.0)


def _adaptive(above: Any, own: Any, ahead: Any, u: Any, penalty: tuple[float, int]) -> Any:
    """The one formula behind calibration and sets: `ahead` labels of mass `above` come before one of mass `own`."""
    return above * UNIT + u * (own * UNIT) + penalty[0] * np.maximum(0, ahead + 1 - penalty[1])


def _units(outputs: Array) -> tuple[Floats, Ints, int]:
    """Return the probabilities, the same as whole numbers of `UNIT`, and the first row that does not sum to one."""
    p = outputs.astype(np.float64)
    inside = _probable(p)
    with np.errstate(invalid="ignore"):
        units = np.rint(np.where(inside[:, None], p, 0.0) * ONE).astype(np.int64)
    return p, units, _first(inside & (np.abs(units.sum(axis=1) - ONE) <= SLACK))


def _probable(p: Floats) -> Bools:
    """Mark the rows that hold probabilities; NaN is none."""
    return np.asarray(((p >= 0.0) & (p <= LARGEST)).all(axis=1))


def _first(good: Any) -> int:
    """Return the first row that is not good, or -1."""
    return -1 if good.all() else int(good.argmin())
