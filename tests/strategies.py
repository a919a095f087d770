"""Hypothesis strategies: connected graphs, ragged scores with ties, alphas as people write them."""

from fractions import Fraction

import numpy as np
from hypothesis import strategies as st

from conformesh import Network

alphas = st.sampled_from([0.01, 0.05, 0.1, 0.18, 0.2, 0.25, 0.3, 0.5, 0.7, 0.9, 0.99])


@st.composite
def networks(draw, least=1, most=12):
    """A connected graph: a random tree plus random extra edges."""
    k = draw(st.integers(least, most))
    pairs = {(draw(st.integers(0, i - 1)), i) for i in range(1, k)}
    if k > 2:
        extra = draw(st.lists(st.tuples(st.integers(0, k - 1), st.integers(0, k - 1)), max_size=2 * k))
        pairs |= {(min(a, b), max(a, b)) for a, b in extra if a != b}
    return Network.from_pairs(k, sorted(pairs), name="drawn")


@st.composite
def device_scores(draw, devices, most=30, infinite=True):
    """One array per device, unequal and possibly empty; seeded draws of several kinds, ties included."""
    seed = draw(st.integers(0, 2**32 - 1))
    kind = draw(st.sampled_from(["normal", "uniform", "coarse", "heavy", "constant", "wide"]))
    sizes = draw(st.lists(st.integers(0, most), min_size=devices, max_size=devices))
    rng = np.random.default_rng(seed)
    scores = []
    for n in sizes:
        if kind == "coarse":
            x = rng.integers(0, 4, n) / 4
        elif kind == "heavy":
            x = rng.standard_cauchy(n)
        elif kind == "constant":
            x = np.full(n, 0.1)
        elif kind == "wide":
            x = rng.normal(size=n) * 10.0 ** rng.integers(-5, 4)
        else:
            x = rng.normal(size=n) if kind == "normal" else rng.random(n)
        if infinite and n and draw(st.booleans()):
            x[rng.integers(n)] = draw(st.sampled_from([np.inf, -np.inf, x[0]]))
        scores.append(x)
    return scores


def exact_rank(n: int, alpha: float, devices: int) -> int:
    """The rank by whole numbers, written differently from the library."""
    a = Fraction(str(alpha))
    need = (a.denominator - a.numerator) * (n + devices)
    return -(-need // a.denominator)


def promised_rank(scores, alpha: float) -> int:
    """The rank of the default promise, written differently from the library: new examples as the scores are spread."""
    sizes = [len(own) for own in scores if len(own)]
    a, n = Fraction(str(alpha)), sum(sizes)
    swap = n - (n * a.numerator) // a.denominator + 1  # floor(alpha n) may lie above, and one score is exchanged
    return min(swap, exact_rank(n, alpha, len(sizes))) if len({*sizes}) == 1 else swap
