"""The root finder of `kernels.pinball`, compiled from the same source, and its interpolation as a loop."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable
from typing import Any

import numpy as np
from numba.extending import overload, register_jitable

from conformesh.common.array_types import Floats, Ints
from conformesh.kernels import pinball as source
from conformesh.kernels.compiled import loop, segments
from conformesh.kernels.pinball import COSINES, DEGREE, GROWTH
from conformesh.kernels.threads import fits_one_thread, run_in_blocks

for _function in (source.sum_window, source.evaluate_chebyshev, source.find_root):
    register_jitable(_function)
_find_roots_from = loop(source.find_roots_from)


def find_roots_compiled(
    values: Floats, offsets: Ints, repeats: int, terms: Any, roots: Floats, interpolants: Any
) -> None:
    """Find the roots in blocks of problems, see `kernels.pinball.find_roots`."""
    work = 200 * len(roots)  # additions: a few Newton steps with a few exponentials each
    if fits_one_thread(work):  # a small network takes thousands of such steps: no slices, no closure
        _find_roots_from(values, offsets, repeats, 0, terms, roots, interpolants)
        return

    def block(a: int, b: int) -> None:
        own_terms = tuple(term[a:b] for term in terms)
        own_interpolants = tuple(part[a:b] for part in interpolants)
        _find_roots_from(values, offsets, repeats, a, own_terms, roots[a:b], own_interpolants)

    run_in_blocks(block, len(roots), work)


@overload(source.loop_values)
def _loop_values(array: Any) -> Callable[..., Any]:
    # Numba compares the signature of what is returned with this one, annotations included.
    def as_it_is(array: Any) -> Any:
        return array

    return as_it_is


@overload(bisect_right)
def _bisect_right(values: Any, x: float, lo: int, hi: int) -> Callable[..., int]:
    def search(values: Any, x: float, lo: int, hi: int) -> int:
        return segments.bisect_right(values, lo, hi, x)

    return search


@overload(source.fit_chebyshev)
def _fit_chebyshev(
    values: Any,
    first: int,
    last: int,
    centre: float,
    kappa: float,
    coefficients: Any,
) -> Callable[..., None]:
    def walk(values: Any, first: int, last: int, centre: float, kappa: float, coefficients: Any) -> None:
        n = DEGREE + 1
        at_nodes = np.zeros(n)
        for i in range(first, last):
            # |x| <= 38 in the window, so exp cannot overflow: one exp serves all nodes
            e = math.exp(-kappa * (centre - values[i]))
            for j in range(n):
                at_nodes[j] += 1.0 / (1.0 + e * GROWTH[j])
        for k in range(n):
            c = 0.0
            for j in range(n):
                c += at_nodes[j] * COSINES[k, j]
            coefficients[k] = c * (1.0 if k == 0 else 2.0) / n

    return walk


def compile_all() -> None:
    """Compile for the types of a calibration, scores that may be written to or not."""
    values, offsets, one = np.zeros(1), np.array([0, 1]), np.ones(1)
    for _ in range(2):
        interpolants = np.full((1, 1), np.nan), np.zeros((1, DEGREE + 2))
        _find_roots_from(values, offsets, 1, 0, (one, one, one), one.copy(), interpolants)
        values.setflags(write=False)
