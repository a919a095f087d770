"""The root of a sum of sigmoids plus a line: see `kernels.pinball`, where the same steps stand interpreted."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from conformesh.kernels.compiled import loop
from conformesh.kernels.compiled.segments import bisect_right
from conformesh.kernels.pinball import COSINES, CROWDED, DEGREE, GROWTH, NEWTON_STEPS, REACH


@loop
def _window(values: Any, start: int, stop: int, s: float, reach: float) -> Any:
    """Return [first, last): the scores within `reach` of s; with REACH / kappa all others are 0 or 1 in float64."""
    first = bisect_right(values, start, stop, s - reach)
    last = bisect_right(values, first, stop, s + reach)
    return first, last


@loop
def _direct(values: Any, first: int, last: int, s: float, kappa: float) -> Any:
    """Sum sigma and its derivative in s over the window: the slope of the smoothed loss ([Wen2025] Eq. (8))."""
    total = 0.0
    slope = 0.0
    for i in range(first, last):
        x = kappa * (s - values[i])
        e = math.exp(-abs(x))
        p = 1.0 / (1.0 + e)
        total += p if x >= 0 else e * p
        slope += e * p * p
    return total, kappa * slope


@loop
def _interpolate(values: Any, first: int, last: int, centre: float, kappa: float, coefficients: Any) -> None:
    """Fill the Chebyshev coefficients of F on [centre - 1/kappa, centre + 1/kappa], window sum only."""
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


@loop
def _chebyshev(coefficients: Any, t: float) -> Any:
    """Evaluate the interpolant and its derivative in t by Clenshaw's recurrence."""
    b1 = b2 = d1 = d2 = 0.0
    for k in range(DEGREE, 0, -1):
        d1, d2 = 2.0 * b1 + 2.0 * t * d1 - d2, d1
        b1, b2 = coefficients[k] + 2.0 * t * b1 - b2, b1
    return coefficients[0] + t * b1 - b2, b1 + t * d1 - d2


@loop
def solve(
    values: Any, start: int, stop: int, kappa: float, slope: float, rhs: float, x: float, centre: Any, coefficients: Any
) -> float:
    """Find the root by Newton's method from x, kept inside a shrinking bracket.

    Between two plateaus Newton's method can jump back and forth for ever, inside the bracket: so a step must be at most
    half of the one before, or the bracket is halved instead.
    """
    low = (rhs - (stop - start)) / slope
    high = rhs / slope
    x = max(x, low)
    x = min(x, high)
    before = np.inf
    for _ in range(NEWTON_STEPS):
        t = kappa * (x - centre[0])
        if abs(t) <= 1.0:  # False when there is no interpolant: the centre is nan
            inside, rise = _chebyshev(coefficients, t)
            f = inside + coefficients[DEGREE + 1]
            df = kappa * rise
        else:
            first, last = _window(values, start, stop, x, REACH / kappa)
            inside, df = _direct(values, first, last, x, kappa)
            f = inside + (first - start)
            if last - first > CROWDED and abs(f + slope * x - rhs) * kappa < 0.5 * (df + slope):
                # settled: the next evaluations will be near here. The interpolant reaches 1/kappa beyond x, so does
                # its window
                first, last = _window(values, start, stop, x, (REACH + 1.0) / kappa)
                _interpolate(values, first, last, x, kappa, coefficients)
                coefficients[DEGREE + 1] = first - start
                centre[0] = x
        g = f + slope * x - rhs
        if g > 0:
            high = min(high, x)
        elif x > low:
            low = x
        new = x - g / (df + slope)
        if not (low <= new <= high) or abs(new - x) > 0.5 * before:
            new = 0.5 * (low + high)
        moved = abs(new - x)
        before = moved
        x = new
        if moved <= 4e-16 * abs(x) or g == 0.0:
            break
    return x


@loop
def admm_steps(
    values: Any,
    offsets: Any,
    repeats: int,
    first: int,
    kappa: Any,
    slope: Any,
    half_c: Any,
    degree: Any,
    fixed: Any,
    own: Any,
    neighbours: Any,
    duals: Any,
    s: Any,
    centres: Any,
    coefficients: Any,
) -> None:
    """Take the steps of problems first, first + 1, ...; all arrays after `first` hold these problems only."""
    for p in range(len(s)):
        duals[p] += half_c[p] * (degree[p] * own[p] - neighbours[p])
        rhs = fixed[p] - duals[p] + half_c[p] * (degree[p] * own[p] + neighbours[p])
        segment = (first + p) // repeats
        start = offsets[segment]
        stop = offsets[segment + 1]
        s[p] = solve(values, start, stop, kappa[p], slope[p], rhs, s[p], centres[p], coefficients[p])


def compile_all() -> None:
    """Compile for the types of a calibration, scores that may be written to or not."""
    values, offsets = np.zeros(1), np.array([0, 1])
    for _ in range(2):
        per_problem: Any = (*np.ones((9, 1)), np.full((1, 1), np.nan), np.zeros((1, DEGREE + 2)))
        admm_steps(values, offsets, 1, 0, *per_problem)
        values.setflags(write=False)
