r"""The local step of Q-DCP: the root of a sum of sigmoids plus a line.

Every device solves, in every round, for its own s ([Wen2025] Algorithm 1, Eq. (12), first line of the loop)

.. math:: F(s) + \text{slope} \cdot s = \text{rhs}, \qquad F(s) = \sum_i \sigma(\kappa (s - S_i)).

F lies between 0 and n_k and increases, so the root lies in [(rhs - n_k)/slope, rhs/slope] and is unique. On sorted
scores only those within REACH/kappa of s are not saturated to 0 or 1 in float64, so two binary searches and a short
window replace the sum over all scores. Where that window is crowded (many scores per 1/kappa) F is replaced, near the
point where the iteration has settled, by its Chebyshev interpolant of DEGREE: sigma is analytic up to i pi, which makes
the interpolant on +-1/kappa exact to about 1e-13 per score. So a device with a million scores costs about as much per
round as one with fifty.

Without a compiler the same steps are interpreted, problem by problem and with the same bits: every exponential is the C
library's, which NumPy's own need not equal.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from typing import Any

import numpy as np
from numpy.typing import NDArray

from conformesh.kernels.compilation import compiled
from conformesh.kernels.threads import alone, in_blocks

REACH = 37.0  # sigma(-37) = 8.5e-17: below half an ulp of the 1 it is compared with
DEGREE = 16  # Bernstein ellipse of rho = pi + sqrt(pi^2 + 1) = 6.4: 6.4^-16 = 1e-13
CROWDED = 24  # scores in the window from which building an interpolant pays
NEWTON_STEPS = 200  # two halvings for each bit of a float64 at the very most, in practice 3 to 6

_N = DEGREE + 1
_NODES = np.cos(np.pi * (np.arange(_N) + 0.5) / _N)
GROWTH = np.array([math.exp(-node) for node in _NODES])
COSINES = np.array([[math.cos(math.pi * k * (j + 0.5) / _N) for j in range(_N)] for k in range(_N)])


def admm_step(
    values: Any,
    offsets: Any,
    repeats: int,
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
    """Take one ADMM step of every local problem, in place: duals first, then s from its own last value.

    Problem p uses the segment ``p // repeats`` (the trailing axis of alphas shares a device's scores); all other arrays
    are flat over problems. `own` is what the device sent and `neighbours` the sum of what it heard. `centres`
    (problems, 1) and `coefficients` (problems, DEGREE + 2) remember the interpolants between rounds; start with
    centres = nan. Problems are solved on their own, in blocks on several threads where there are many.
    """
    per_problem = (kappa, slope, half_c, degree, fixed, own, neighbours, duals, s, centres, coefficients)
    loops = compiled("pinball", len(s))
    if loops is None:
        _interpreted(values, offsets, repeats, *per_problem)
        return
    work = 200 * len(s)  # a few Newton steps with a few exponentials each
    if alone(work):  # a small network takes thousands of such steps: no slices, no closure
        loops.admm_steps(values, offsets, repeats, 0, *per_problem)
        return

    def block(first: int, last: int) -> None:
        loops.admm_steps(values, offsets, repeats, first, *(part[first:last] for part in per_problem))

    in_blocks(block, len(s), work)


def minimise(values: NDArray[np.float64], kappa: float, target: float, mu: float, s0: float) -> float:
    """Return the minimiser of the smoothed, regularised pinball loss of sorted scores ([Wen2025] Eq. (9)).

    It solves ``sum_i sigma(kappa (s - S_i)) - target + mu (s - s0) = 0``, with target = gamma n: the optimality
    condition of quantile regression ([Wen2025] Eq. (5), Eq. (6), Eq. (7)) after smoothing.
    """
    centre, coefficients = np.full(1, np.nan), np.zeros(DEGREE + 2)
    return solve(values, 0, len(values), kappa, mu, target + mu * s0, s0, centre, coefficients)


def solve(
    values: NDArray[np.float64],
    start: int,
    stop: int,
    kappa: float,
    slope: float,
    rhs: float,
    x: float,
    centre: NDArray[np.float64],
    coefficients: NDArray[np.float64],
) -> float:
    """Find one root, from x, among the scores ``values[start:stop]``; the last two remember an interpolant."""
    loops = compiled("pinball", 1 + (stop - start) / 1000)
    if loops is not None:
        return float(loops.solve(values, start, stop, kappa, slope, rhs, x, centre, coefficients))
    scores = memoryview(values)  # type: ignore[arg-type]  # an array is a buffer
    return _solve(scores, start, stop, float(kappa), float(slope), float(rhs), float(x), centre, coefficients)


# --- interpreted ------------------------------------------------------------------------------------------------------


def _interpreted(values: Any, offsets: Any, repeats: int, *per_problem: Any) -> None:
    kappa, slope, half_c, degree, fixed, own, neighbours, duals, s, centres, coefficients = per_problem
    duals += half_c * (degree * own - neighbours)
    rhs = (fixed - duals + half_c * (degree * own + neighbours)).tolist()
    scores, ends = memoryview(values), offsets.tolist()
    starts = s.tolist()
    for p, (k, c) in enumerate(zip(kappa.tolist(), slope.tolist(), strict=True)):
        first, last = ends[p // repeats], ends[p // repeats + 1]
        s[p] = _solve(scores, first, last, k, c, rhs[p], starts[p], centres[p], coefficients[p])


def _direct(values: Any, first: int, last: int, s: float, kappa: float) -> tuple[float, float]:
    """Sum sigma and its derivative in s over the window: the slope of the smoothed loss ([Wen2025] Eq. (8))."""
    total = slope = 0.0
    for value in values[first:last].tolist():
        x = kappa * (s - value)
        e = math.exp(-abs(x))
        p = 1.0 / (1.0 + e)
        total += p if x >= 0 else e * p
        slope += e * p * p
    return total, kappa * slope


def _interpolate(values: Any, first: int, last: int, centre: float, kappa: float, coefficients: Any) -> None:
    """Fill the Chebyshev coefficients of F on [centre - 1/kappa, centre + 1/kappa], window sum only."""
    e = np.array([math.exp(-kappa * (centre - value)) for value in values[first:last].tolist()])
    at_nodes = np.add.reduce(1.0 / (1.0 + e[:, None] * GROWTH), axis=0, initial=0.0).tolist()  # score after score
    for k, row in enumerate(COSINES.tolist()):
        c = 0.0
        for value, cosine in zip(at_nodes, row, strict=True):
            c += value * cosine
        coefficients[k] = c * (1.0 if k == 0 else 2.0) / _N


def _chebyshev(coefficients: list[float], t: float) -> tuple[float, float]:
    """Evaluate the interpolant and its derivative in t by Clenshaw's recurrence."""
    b1 = b2 = d1 = d2 = 0.0
    for k in range(DEGREE, 0, -1):
        d1, d2 = 2.0 * b1 + 2.0 * t * d1 - d2, d1
        b1, b2 = coefficients[k] + 2.0 * t * b1 - b2, b1
    return coefficients[0] + t * b1 - b2, b1 + t * d1 - d2


def _solve(
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
    before = math.inf
    middle, shape = float(centre[0]), coefficients.tolist()
    for _ in range(NEWTON_STEPS):
        t = kappa * (x - middle)
        if abs(t) <= 1.0:  # False when there is no interpolant: the centre is nan
            inside, rise = _chebyshev(shape, t)
            f = inside + shape[DEGREE + 1]
            df = kappa * rise
        else:
            first = bisect_right(values, x - REACH / kappa, start, stop)
            last = bisect_right(values, x + REACH / kappa, first, stop)
            inside, df = _direct(values, first, last, x, kappa)
            f = inside + (first - start)
            if last - first > CROWDED and abs(f + slope * x - rhs) * kappa < 0.5 * (df + slope):
                # settled: the next evaluations will be near here. The interpolant reaches 1/kappa beyond x, so does
                # its window
                first = bisect_right(values, x - (REACH + 1.0) / kappa, start, stop)
                last = bisect_right(values, x + (REACH + 1.0) / kappa, first, stop)
                _interpolate(values, first, last, x, kappa, coefficients)
                coefficients[DEGREE + 1] = first - start
                centre[0] = middle = x
                shape = coefficients.tolist()
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
