"""Scores of labels and the sets they induce: see `kernels.label_scores` for what each must return."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from conformesh.common.array_types import Array, Bools, Floats, Ints
from conformesh.common.arrays import LARGEST_PROBABILITY
from conformesh.kernels.compiled import loop
from conformesh.kernels.label_scores import ONE_IN_UNITS, PROBABILITY_UNIT, SLACK_IN_UNITS

_FEW_LABELS = 8  # labels; up to this many are sorted rather than halved once more. 4 to 16 measured alike


class _Terms(NamedTuple):
    """What turns a label's place in its row into an adaptive score; `u` belongs to the row."""

    u: float
    penalty: float
    k_reg: int


@loop
def _within(p: float, low: float, high: float) -> bool:
    """Whether p is in [low, high]; NaN is not. Without a branch, so that the loops around it vectorise."""
    return (p >= low) & (p <= high)


@loop
def one_minus_scores_compiled(outputs: Array, labels: Ints, low: float, high: float, scores: Floats) -> int:
    """Fill ``scores[i] = 1 - outputs[i, labels[i]]``; an entry outside [low, high] or NaN makes a row bad.

    Rows are independent and nothing branches on what was read, so that many of the scattered reads are under way at
    once: that, not arithmetic, is what this costs.
    """
    inside = True
    for i in range(len(labels)):
        p = np.float64(outputs[i, labels[i]])
        inside &= _within(p, low, high)
        scores[i] = 1.0 - p
    if not inside:
        for i in range(len(labels)):
            if not _within(np.float64(outputs[i, labels[i]]), low, high):
                return i
    return -1


@loop
def one_minus_sets_compiled(outputs: Array, thresholds: Floats, low: float, high: float, sets: Bools) -> int:
    """Fill ``sets[i, j] = 1 - outputs[i, j] <= thresholds[i]``; entries outside [low, high] or NaN make a row bad."""
    rows, classes = outputs.shape
    for i in range(rows):
        inside = True
        for j in range(classes):
            p = np.float64(outputs[i, j])
            inside &= _within(p, low, high)
            sets[i, j] = 1.0 - p <= thresholds[i]
        if not inside:
            return i
    return -1


@loop
def margin_scores_compiled(outputs: Array, labels: Ints, scores: Floats) -> int:
    """Fill ``scores[i]`` with the best other label's probability minus the label's own."""
    rows, classes = outputs.shape
    for i in range(rows):
        inside = True
        rival = -1.0
        for j in range(classes):
            p = np.float64(outputs[i, j])
            inside &= _within(p, 0.0, LARGEST_PROBABILITY)
            rival = max(rival, -1.0 if j == labels[i] else p)
        if not inside:
            return i
        scores[i] = rival - np.float64(outputs[i, labels[i]])
    return -1


@loop
def margin_sets_compiled(outputs: Array, thresholds: Floats, sets: Bools) -> int:
    """Fill ``sets`` with the labels whose margin score is at most their row's threshold."""
    rows, classes = outputs.shape
    for i in range(rows):
        inside = True
        top = -1.0
        second = -1.0
        for j in range(classes):
            p = np.float64(outputs[i, j])
            inside &= _within(p, 0.0, LARGEST_PROBABILITY)
            second = max(second, min(top, p))
            top = max(top, p)
        if not inside:
            return i
        for j in range(classes):
            p = np.float64(outputs[i, j])
            rival = second if p == top else top  # a tie at the top makes both the same number
            sets[i, j] = rival - p <= thresholds[i]
    return -1


@loop
def _units(p: float) -> int:
    """Return a probability in whole units; scaling by a power of two is exact, so only `rint` rounds."""
    return np.int64(np.rint(p * ONE_IN_UNITS))  # type: ignore[return-value]


@loop
def _adaptive_score(above: int, own: int, ahead: int, terms: _Terms) -> float:
    """The one formula behind calibration and sets: `ahead` labels of mass `above` come before one of mass `own`."""
    return (
        above * PROBABILITY_UNIT + terms.u * (own * PROBABILITY_UNIT) + terms.penalty * max(0, ahead + 1 - terms.k_reg)
    )


@loop
def adaptive_scores_compiled(
    outputs: Array, labels: Ints, u: Floats, penalty: tuple[float, int], scores: Floats
) -> int:
    """Fill ``scores[i]`` without sorting: add up what comes before the label, equal probabilities by smaller class.

    `penalty` is the price of each rank and how many ranks are free of it, here as in `adaptive_sets`.
    """
    rows, classes = outputs.shape
    for i in range(rows):
        inside = True
        total = above = ahead = 0
        label = labels[i]
        own = np.float64(outputs[i, label])
        for j in range(label):
            p = np.float64(outputs[i, j])
            inside &= _within(p, 0.0, LARGEST_PROBABILITY)
            total += _units(p)
            if p >= own:
                above += _units(p)
                ahead += 1
        for j in range(label, classes):
            p = np.float64(outputs[i, j])
            inside &= _within(p, 0.0, LARGEST_PROBABILITY)
            total += _units(p)
            if p > own:
                above += _units(p)
                ahead += 1
        if not inside or abs(total - ONE_IN_UNITS) > SLACK_IN_UNITS:
            return i
        scores[i] = _adaptive_score(above, _units(own), ahead, _Terms(u[i], penalty[0], penalty[1]))
    return -1


@loop
def adaptive_sets_compiled(
    outputs: Array, thresholds: Floats, u: Floats, penalty: tuple[float, int], sets: Bools
) -> int:
    """Fill ``sets`` with the labels whose adaptive score is at most their row's threshold.

    Scores never fall along the order of decreasing probability (u <= 1, penalty >= 0, and rounding is monotone), so a
    set is a prefix of that order and one cut has to be found. The labels in doubt are halved by value until
    `_FEW_LABELS` are left: linear in the classes, at most 62 halvings whatever the row, and no sort of labels that are
    clearly in or out.
    """
    rows, classes = outputs.shape
    names = np.empty(classes, np.int64)
    values = np.empty(classes + 1, np.float64)  # the last slot belongs to `_cut`
    for i in range(rows):
        inside = True
        total = 0
        for j in range(classes):
            p = np.float64(outputs[i, j])
            inside &= _within(p, 0.0, LARGEST_PROBABILITY)
            total += _units(p)
            sets[i, j] = False
        if not inside or abs(total - ONE_IN_UNITS) > SLACK_IN_UNITS:
            return i
        terms = _Terms(u[i], penalty[0], penalty[1])
        if thresholds[i] >= _adaptive_score(total, 0, classes - 1, terms):  # no label can score more
            sets[i] = True
        elif thresholds[i] >= 0.0:
            size = _in_doubt(outputs[i], total, thresholds[i], names, values)
            _cut(names[:size], values, thresholds[i], terms, sets[i])
    return -1


@loop
def _in_doubt(row: Array, total: int, threshold: float, names: Ints, values: Floats) -> int:
    """Copy the labels that may be in the set, in class order, and return how many.

    A label of q units and those after it weigh at most ``classes * q``. Where that is less than ``total - threshold``,
    what comes before the label already exceeds the threshold, so it is out.
    """
    floor = -1.0
    if threshold * ONE_IN_UNITS < total:
        # one unit lower than the argument needs, because p itself is compared and not its rounded q
        floor = ((total - np.int64(np.floor(threshold * ONE_IN_UNITS))) // len(row) - 1) * PROBABILITY_UNIT
    size = 0
    for j in range(len(row)):
        p = np.float64(row[j])
        names[size] = j
        values[size] = p + 0.0  # -0.0 becomes 0.0: `_cut` needs the sign bit clear
        size += int(p >= floor)
    return size


@loop
def _cut(names: Ints, values: Floats, threshold: float, terms: _Terms, chosen: Bools) -> None:
    """Mark in `chosen` which of the named labels score at most the threshold; all other labels come after them.

    Non-negative floats are ordered as their bit patterns are, so values are compared and halved as integers: that
    splits small probabilities by exponent, and the 62 bits of a number up to one allow no more than 62 halvings.
    Invariant: `ahead` labels of mass `above` are already in, all larger than those left; everything else is out.
    """
    bits = values.view(np.int64)
    size = len(names)
    above = ahead = 0
    low, high = bits[:size].min(), bits[:size].max()
    while size > _FEW_LABELS and low < high:
        middle = low + (high - low + 1) // 2
        mass = many = kept = 0
        least, most = high, low  # the smallest value of the upper half, the largest of the lower
        for s in range(size):
            upper = bits[s] >= middle
            mass += _units(values[s]) if upper else 0
            many += upper
            least = min(least, bits[s] if upper else high)
            most = max(most, low if upper else bits[s])
        bits[-1] = least
        last = _units(values[-1])
        if _adaptive_score(above + mass - last, last, ahead + many - 1, terms) <= threshold:
            for s in range(size):  # the whole upper half is in: go on with the lower
                upper = bits[s] >= middle
                chosen[names[s]] = upper
                names[kept], bits[kept] = names[s], bits[s]
                kept += not upper
            above += mass
            ahead += many
            high = most
        else:
            for s in range(size):  # its last label is out, and so is the whole lower half
                names[kept], bits[kept] = names[s], bits[s]
                kept += bits[s] >= middle
            low = least
        size = kept
    _sort_descending(names, values, size)
    for s in range(size):
        own = _units(values[s])
        if _adaptive_score(above, own, ahead, terms) > threshold:
            break
        chosen[names[s]] = True
        above += own
        ahead += 1


@loop
def _sort_descending(names: Ints, values: Floats, size: int) -> None:
    """Stable insertion sort: for `_FEW_LABELS`, or for any number of equal ones, which it leaves alone in one pass."""
    for s in range(1, size):
        name, value = names[s], values[s]
        t = s
        while t > 0 and values[t - 1] < value:
            names[t], values[t] = names[t - 1], values[t - 1]
            t -= 1
        names[t], values[t] = name, value


@loop
def ordinal_scores_compiled(outputs: Array, labels: Ints, u: Floats, scores: Floats) -> int:
    """Fill ``scores[i]`` with what a run of neighbouring labels weighs once it has grown to the label."""
    for i in range(len(labels)):
        first, total = _start(outputs[i])
        if first < 0 or abs(total - ONE_IN_UNITS) > SLACK_IN_UNITS:
            return i
        above = 0
        label, left, right = first, first - 1, first + 1
        while label != labels[i]:
            above += _units(np.float64(outputs[i, label]))
            label, left, right = _grow(outputs[i], left, right)
        own = _units(np.float64(outputs[i, label]))
        scores[i] = _adaptive_score(above, own, 0, _Terms(u[i], 0.0, 0))
    return -1


@loop
def ordinal_sets_compiled(outputs: Array, thresholds: Floats, u: Floats, sets: Bools) -> int:
    """Fill ``sets`` with the labels whose ordinal score is at most their row's threshold: neighbours, if any."""
    rows, classes = outputs.shape
    for i in range(rows):
        first, total = _start(outputs[i])
        if first < 0 or abs(total - ONE_IN_UNITS) > SLACK_IN_UNITS:
            return i
        sets[i] = False
        above = 0
        label, left, right = first, first - 1, first + 1
        for _ in range(classes):
            own = _units(np.float64(outputs[i, label]))
            if _adaptive_score(above, own, 0, _Terms(u[i], 0.0, 0)) > thresholds[i]:
                break
            sets[i, label] = True
            above += own
            if left >= 0 or right < classes:
                label, left, right = _grow(outputs[i], left, right)
    return -1


@loop
def _start(row: Array) -> tuple[int, int]:
    """Return the most probable label, or -1 where an entry is no probability, and what the row weighs."""
    inside = True
    first = total = 0
    for j in range(len(row)):
        p = np.float64(row[j])
        inside &= _within(p, 0.0, LARGEST_PROBABILITY)
        total += _units(p) if inside else 0
        if p > np.float64(row[first]):
            first = j
    return first if inside else -1, total


@loop
def _grow(row: Array, left: int, right: int) -> tuple[int, int, int]:
    """Return the label that joins a run between two others, the more probable of both, and who is beside it now."""
    if right >= len(row) or (left >= 0 and row[left] >= row[right]):
        return left, left - 1, right
    return right, left, right + 1


@loop
def _ranked_score(ahead: int, top: float, u: float, penalty: float) -> float:
    return u * top if ahead == 0 else top + penalty * (ahead - 1 + u)


@loop
def ranked_scores_compiled(
    outputs: Array, labels: Ints, u: Floats, penalty: float, by_rank: bool, scores: Floats
) -> int:
    """Fill ``scores[i]`` with what the label's rank costs, without sorting."""
    rows, classes = outputs.shape
    for i in range(rows):
        inside = True
        top = 0.0
        ahead = 0
        own = np.float64(outputs[i, labels[i]])
        for j in range(classes):
            p = np.float64(outputs[i, j])
            inside &= _within(p, 0.0, LARGEST_PROBABILITY)
            top = max(top, p)
            ahead += (p > own) | ((p == own) & (j < labels[i]))
        if not inside:
            return i
        scores[i] = _ranked_score(ahead, 1.0 if by_rank else top, u[i], penalty)
    return -1


@loop
def ranked_sets_compiled(
    outputs: Array, thresholds: Floats, u: Floats, penalty: float, by_rank: bool, sets: Bools
) -> int:
    """Fill ``sets`` with the labels whose ranked score is at most their row's threshold.

    Scores never fall along the order of decreasing probability, so the number of labels is found first; then the row is
    sorted, unless it is all of them or none.
    """
    rows, classes = outputs.shape
    values = np.empty(classes, np.float64)
    for i in range(rows):
        inside = True
        top = 0.0
        for j in range(classes):
            p = np.float64(outputs[i, j])
            inside &= _within(p, 0.0, LARGEST_PROBABILITY)
            top = max(top, p)
            values[j] = -p
        if not inside:
            return i
        if by_rank:
            top = 1.0
        many = 0
        while many < classes and _ranked_score(many, top, u[i], penalty) <= thresholds[i]:
            many += 1
        sets[i] = many == classes
        if 0 < many < classes:
            order = np.argsort(values, kind="mergesort")  # stable: equal ones by smaller class
            for s in range(many):
                sets[i, order[s]] = True
    return -1
