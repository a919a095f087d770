"""The loops of `kernels.replies`, compiled: the same source, so that a packet has the same bits."""

from __future__ import annotations

from types import FunctionType
from typing import Any

from conformesh.kernels import replies as written
from conformesh.kernels.compiled import loop
from conformesh.kernels.replies import between  # compiled below, under the same name

SEARCHED = ("add_sources", "between_all")  # in NumPy there, walks here

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
                right[i] += between(x, c, slopes, upto, v)
            if below == b:
                left[i] += masses[s]
            elif below > a:
                left[i] += between(x, c, slopes, below, v)
