r"""The local step of Q-DCP: the root of a sum of sigmoids plus a line.

Every device solves, in every round, for its own s ([Wen2025] Algorithm 1, Eq. (12), first line of the loop)

.. math:: F(s) + \text{slope} \cdot s = \text{rhs}, \qquad F(s) = \sum_i \sigma(\kappa (s - S_i)).

F lies between 0 and n_k and increases, so the root lies in [(rhs - n_k)/slope, rhs/slope] and is unique. On sorted
scores only those within REACH/kappa of s are not saturated to 0 or 1 in float64, so two binary searches and a short
window replace the sum over all scores. Where that window is crowded (many scores per 1/kappa) F is replaced, near the
point where the iteration has settled, by its Chebyshev interpolant of DEGREE: sigma is analytic up to i pi, which makes
the interpolant on +-1/kappa exact to about 1e-13 per score. So a device with a million scores costs about as much per
round as one with fifty.

The steps are written once and problem by problem: Python runs this source as it is, Numba compiles it
(`kernels.compiled.pinball`), and both have the same bits because every exponential is the C library's, which NumPy's
own need not equal. Only `_interpolate`, where NumPy is quicker than Python, has a compiled twin of its own.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from typing import Any

import numpy as np

from conformesh.common.array_types import Floats, Ints
from conformesh.kernels.compilation import has_compiled_twin

REACH = 37.0  # sigma(-37) = 8.5e-17: below half an ulp of the 1 it is compared with
DEGREE = 16  # Bernstein ellipse of rho = pi + sqrt(pi^2 + 1) = 6.4: 6.4^-16 = 1e-13
CROWDED = 24  # scores in the window from which building an interpolant pays
NEWTON_STEPS = 200  # three halvings for each of the 64 bits of a float64 at the very most, in practice 3 to 6 steps
_PRECISION = 4e-16  # of x: below two units in its last place nothing moves any more

# Chebyshev nodes and what the interpolant needs at them. Exponentials are those of `math` everywhere in this module.
_NODE_COUNT = DEGREE + 1
_CHEBYSHEV_NODES = np.cos(np.pi * (np.arange(_NODE_COUNT) + 0.5) / _NODE_COUNT)
GROWTH = np.array([math.exp(-node) for node in _CHEBYSHEV_NODES])
COSINES = np.array(
    [[math.cos(math.pi * k * (j + 0.5) / _NODE_COUNT) for j in range(_NODE_COUNT)] for k in range(_NODE_COUNT)]
)


class RootFinder:
    """Finds the roots of the local problems of some devices round by round, each from its own last one.

    Parameters
    ----------
    values, offsets
        Sorted scores; problem p is about those of segment ``p // repeats``.
    repeats
        How many problems share the scores of a segment: the levels.
    kappa
        The sharpness of every problem.
    roots
        Where to start; holds the roots, which change in place.
    """

    def __init__(self, values: Floats, offsets: Ints, repeats: int, kappa: Floats, roots: Floats) -> None:
        self._values, self._offsets, self._repeats, self._kappa = values, offsets, repeats, kappa
        self.roots = roots
        # NaN: no interpolant yet. Behind the coefficients stands the number of scores to the left of the window.
        self._interpolants = np.full((len(roots), 1), np.nan), np.zeros((len(roots), DEGREE + 2))

    def solve(self, slope: Floats, rhs: Floats) -> None:
        """Move every root to the solution of ``F(s) + slope s = rhs``."""
        terms = (self._kappa, slope, rhs)
        find_roots(self._values, self._offsets, self._repeats, terms, self.roots, self._interpolants)


def minimise_pinball(values: Floats, kappa: float, target: float, mu: float, s0: float) -> float:
    """Return the minimiser of the smoothed, regularised pinball loss of sorted scores ([Wen2025] Eq. (9)).

    It solves ``sum_i sigma(kappa (s - S_i)) - target + mu (s - s0) = 0``, with target = gamma n: the optimality
    condition of quantile regression ([Wen2025] Eq. (5), Eq. (6), Eq. (7)) after smoothing.
    """
    finder = RootFinder(values, np.array([0, len(values)]), 1, np.array([float(kappa)]), np.array([float(s0)]))
    finder.solve(np.array([float(mu)]), np.array([float(target + mu * s0)]))
    return float(finder.roots[0])


@has_compiled_twin("pinball", work=lambda values, offsets, repeats, terms, roots, interpolants: len(roots))
def find_roots(
    values: Floats,
    offsets: Ints,
    repeats: int,
    terms: tuple[Floats, Floats, Floats],
    roots: Floats,
    interpolants: tuple[Floats, Floats],
) -> None:
    """Find all roots in place; `terms` are kappa, slope and right side, each with one number per problem."""
    # Python reads lists and memory views several times as fast as arrays, and calculates with the same float64 numbers.
    scores, ends, places = memoryview(values), offsets.tolist(), memoryview(roots)  # type: ignore[arg-type]
    kappa, slope, rhs = (term.tolist() for term in terms)
    find_roots_from(scores, ends, repeats, 0, (kappa, slope, rhs), places, interpolants)


# --- compiled as it is written ----------------------------------------------------------------------------------------


def find_roots_from(
    values: Any, offsets: Any, repeats: int, first: int, terms: Any, roots: Any, interpolants: Any
) -> None:
    """Find the roots of problems first, first + 1, ...; all arrays after `first` hold these problems only."""
    kappa, slope, rhs = terms
    centres, coefficients = interpolants
    for p in range(len(roots)):
        segment = (first + p) // repeats
        start, stop = offsets[segment], offsets[segment + 1]
        own = kappa[p], slope[p], rhs[p]
        roots[p] = find_root(values, start, stop, own, roots[p], (centres[p], coefficients[p]))


def loop_values(array: Any) -> Any:
    """Return numbers in the form that is quickest to read one by one: a list; compiled code reads arrays."""
    return array.tolist()


def sum_window(values: Any, first: int, last: int, s: float, kappa: float) -> tuple[float, float]:
    """Sum sigma and its derivative in s over the window: the slope of the smoothed loss ([Wen2025] Eq. (8))."""
    total = slope = 0.0
    for value in loop_values(values[first:last]):
        x = kappa * (s - value)
        e = math.exp(-abs(x))
        p = 1.0 / (1.0 + e)
        total += p if x >= 0 else e * p
        slope += e * p * p
    return total, kappa * slope


def fit_chebyshev(values: Any, first: int, last: int, centre: float, kappa: float, coefficients: Any) -> None:
    """Fill the Chebyshev coefficients of F on [centre - 1/kappa, centre + 1/kappa], window sum only.

    In NumPy, which is quicker here than Python; the compiled twin has the same bits.
    """
    e = np.array([math.exp(-kappa * (centre - value)) for value in values[first:last].tolist()])
    at_nodes = np.add.reduce(1.0 / (1.0 + e[:, None] * GROWTH), axis=0, initial=0.0).tolist()  # score after score
    for k, row in enumerate(COSINES.tolist()):
        c = 0.0
        for value, cosine in zip(at_nodes, row, strict=True):
            c += value * cosine
        coefficients[k] = c * (1.0 if k == 0 else 2.0) / _NODE_COUNT


def evaluate_chebyshev(coefficients: Any, t: float) -> tuple[float, float]:
    """Evaluate the interpolant and its derivative in t by Clenshaw's recurrence."""
    b1 = b2 = d1 = d2 = 0.0
    for k in range(DEGREE, 0, -1):
        d1, d2 = 2.0 * b1 + 2.0 * t * d1 - d2, d1
        b1, b2 = coefficients[k] + 2.0 * t * b1 - b2, b1
    return coefficients[0] + t * b1 - b2, b1 + t * d1 - d2


def find_root(values: Any, start: int, stop: int, terms: Any, x: float, interpolant: Any) -> float:
    """Find the root by Newton's method from x, kept inside a shrinking bracket.

    Between two plateaus Newton's method can jump back and forth for ever, inside the bracket: so a step must be at most
    half of the one before, or the bracket is halved instead.
    """
    kappa, slope, rhs = terms
    centre, coefficients = interpolant
    low = (rhs - (stop - start)) / slope
    high = rhs / slope
    x = max(x, low)
    x = min(x, high)
    before = math.inf
    middle, shape = float(centre[0]), loop_values(coefficients)
    for _ in range(NEWTON_STEPS):
        t = kappa * (x - middle)
        if abs(t) <= 1.0:  # False when there is no interpolant: the centre is nan
            inside, rise = evaluate_chebyshev(shape, t)
            f = inside + shape[DEGREE + 1]
            df = kappa * rise
        else:
            first = bisect_right(values, x - REACH / kappa, start, stop)
            last = bisect_right(values, x + REACH / kappa, first, stop)
            inside, df = sum_window(values, first, last, x, kappa)
            f = inside + (first - start)
            if last - first > CROWDED and abs(f + slope * x - rhs) * kappa < 0.5 * (df + slope):
                # Settled: the next evaluations will be near here. The interpolant reaches 1/kappa beyond x, and so does
                # its window.
                first = bisect_right(values, x - (REACH + 1.0) / kappa, start, stop)
                last = bisect_right(values, x + (REACH + 1.0) / kappa, first, stop)
                fit_chebyshev(values, first, last, x, kappa, coefficients)
                coefficients[DEGREE + 1] = first - start
                centre[0] = middle = x
                shape = loop_values(coefficients)
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
        if moved <= _PRECISION * abs(x) or g == 0.0:
            break
    return x
