"""Lower confidence bounds on epsilon, from samples of what an adversary sees on two neighbouring data sets.

If a mechanism is epsilon-differentially private, P(view in E) <= exp(epsilon) P(view in E | the neighbour) for every
event E. So for any event, a lower confidence bound on the one chance over an upper one on the other bounds epsilon from
below. Events are chosen on one half of the sample and judged on the other: the choice costs no confidence, however
clever it is. A union bound pays for judging several.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from scipy import stats

CONFIDENCE = 0.99  # of all events of one comparison together
EVENTS = 20  # that are judged, each at level (1 - CONFIDENCE) / EVENTS
RARE = 1e-3  # p-value of a column on the training half, below which it has a say in the choice of events
SMOOTHING = 0.5  # added to each count of the training half: a value seen on one side only has a finite ratio


class Event(NamedTuple):
    """A set of views: a lower bound on epsilon is that on log P(one side) / P(the other)."""

    name: str
    contains: Callable[[Any], Any]
    swapped: bool  # whether the first data set is the one on which it should be rare

    def bound(self, one, other, alpha):
        """Return a lower confidence bound on epsilon, wrong with a chance of at most alpha."""
        likely, rare = self.contains(one), self.contains(other)
        return bound_of(*((rare, likely) if self.swapped else (likely, rare)), alpha)


class Bound(NamedTuple):
    """A lower confidence bound on epsilon, and the event that shows it."""

    epsilon: float
    event: str


def lower_bound(one, other, confidence=CONFIDENCE):
    """Return the largest lower bound that `EVENTS` events show, with this confidence for all of them together.

    `one` and `other` are views: whole numbers, (runs, columns), each column a part of what the adversary sees. With n
    runs on the judging half the bound cannot exceed about log(n / 8).
    """
    half = len(one) // 2
    chosen = choose_events(one[:half], other[:half])
    alpha = (1 - confidence) / max(len(chosen), 1)
    found = [Bound(event.bound(one[half:], other[half:], alpha), event.name) for event in chosen]
    return max(found, default=Bound(-np.inf, "no event tells the sides apart"))


def bound_of(likely, rare, alpha):
    """Return a lower bound on log(P / Q) from the runs in which an event happened: Clopper and Pearson, both tails."""
    k, m = int(likely.sum()), int(rare.sum())
    low = stats.beta.ppf(alpha / 2, k, len(likely) - k + 1) if k else 0.0
    high = stats.beta.ppf(1 - alpha / 2, m + 1, len(rare) - m) if m < len(rare) else 1.0
    return float(np.log(low / high)) if low else -np.inf


def choose_events(one, other):
    """Return the most telling events of the training half, in both directions.

    The sum of the log ratios of all telling columns is the log-likelihood ratio where columns are independent; where
    they are not it is a statistic like any other.
    """
    tables = _telling_columns(one, other)
    if not tables:
        return []

    def score(view):
        return sum(_look_up(view[:, column], *table) for column, table in tables)

    levels = np.unique(np.quantile(np.concatenate([score(one), score(other)]), np.linspace(0.002, 0.998, 150)))
    sets = [(f"log ratio >= {level:.3f}", lambda view, level=level: score(view) >= level) for level in levels]
    sets += [(f"log ratio <= {level:.3f}", lambda view, level=level: score(view) <= level) for level in levels]
    for column, (values, ratios) in tables:
        for value in values[np.argsort(-np.abs(ratios))][:5].tolist():
            sets.append((f"column {column} is {value}", lambda view, c=column, v=value: view[:, c] == v))
    events = [Event(*each, swapped) for each in sets for swapped in (False, True)]
    return sorted(events, key=lambda event: -event.bound(one, other, 0.01))[:EVENTS]


def _telling_columns(one, other):
    """Return, by column whose law seems to differ, its values and the log ratio of their chances."""
    found = []
    for column in range(one.shape[1]):
        values, where = np.unique(np.concatenate([one[:, column], other[:, column]]), return_inverse=True)
        a, b = (np.bincount(half, minlength=len(values)) for half in np.split(where, [len(one)]))
        if len(values) > 1 and _is_telling(a, b):
            found.append((column, (values, np.log((a + SMOOTHING) / (b + SMOOTHING)))))
    return found


def _is_telling(a, b):
    """Whether two equally large samples differ: chi-square, rare values pooled."""
    many = a + b >= 10
    pooled = [np.append(each[many], each[~many].sum()) for each in (a, b)]
    total = pooled[0] + pooled[1]
    kept = total > 0
    statistic = float(((pooled[0] - pooled[1])[kept] ** 2 / total[kept]).sum())
    return stats.chi2.sf(statistic, max(int(kept.sum()) - 1, 1)) < RARE


def _look_up(column, values, ratios):
    """Return the log ratio of each value, 0 for one that was never seen."""
    at = np.minimum(np.searchsorted(values, column), len(values) - 1)
    return np.where(values[at] == column, ratios[at], 0.0)
