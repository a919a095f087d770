"""The loops of `kernels.replies`, compiled: the same source, so that a packet has the same bits."""

from __future__ import annotations

from types import FunctionType
from typing import Any

import numpy as np

from conformesh.kernels import replies as written
from conformesh.kernels.compiled import loop
from conformesh.kernels.replies import between  # compiled below, under the same name

SEARCHED = ("add_sources", "between_all", "ascending")  # in NumPy there, walks here
FEW_SOURCES = 6  # more are sorted sooner than merged

globals().update({name: value for name, value in vars(written).items() if not name.startswith("__")})
for _name, _value in vars(written).items():
    if isinstance(_value, FunctionType) and _value.__module__ == written.__name__ and _name not in SEARCHED:
        globals()[_name] = loop(FunctionType(_value.__code__, globals(), _name))  # calls find the compiled ones here


@loop
def add_sources(
    x: Any, c: Any, slopes: Any, ends: Any, masses: Any, sources: int, knots: Any, left: Any, right: Any
) -> None:
    """Add every source's value just below and at each knot, in one walk for each source."""
    for s in range(sources):
        a, b = ends[s], ends[s + 1]
        if a == b:
            continue
        upto, below = a, a  # the first knot above, and the first at or above
        for i in range(len(knots)):
            v = knots[i]
            while upto < b and x[upto] <= v:
                upto += 1
            while below < b and x[below] < v:
                below += 1
            if upto == b:
                right[i] += masses[s]
            elif upto > a:
                at = between(x, c, slopes, upto, v)
                right[i] += at
                if below == upto:  # no knot of its own here: the same on both sides
                    left[i] += at
                    continue
            if below == b:
                left[i] += masses[s]
            elif below > a:
                left[i] += between(x, c, slopes, below, v)


@loop
def ascending(x: Any, ends: Any, sources: int, knots: Any) -> None:
    """Merge the knots of all sources, each of which ascend already: of few, by looking at the next one of each."""
    total = ends[sources] - ends[0]
    if sources > FEW_SOURCES:
        knots[:total] = np.sort(x[ends[0] : ends[sources]])
        return
    at = ends[:sources].copy()
    for i in range(total):
        best = -1
        for s in range(sources):
            if at[s] < ends[s + 1] and (best < 0 or x[at[s]] < x[at[best]]):
                best = s
        knots[i] = x[at[best]]
        at[best] += 1
