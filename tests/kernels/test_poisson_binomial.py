"""How many of m events happen: bit for bit the obvious recursion, and the binomial distribution where chances agree."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from scipy.stats import binom

from conformesh.kernels.poisson_binomial import poisson_binomial_cdf
from tests.kernels.conftest import assert_same_bits

pytestmark = pytest.mark.usefixtures("way")


def slow(chances):
    """P(fewer than k), k = 1..m, adding one event after the other."""
    exactly = [1.0]
    for p in chances:
        before, after = [0.0, *exactly], [*exactly, 0.0]
        exactly = [stay * (1.0 - p) + come * p for come, stay in zip(before, after, strict=True)]
    total, out = 0.0, []
    for mass in exactly[:-1]:
        total += mass
        out.append(min(total, 1.0))
    return out


@given(hnp.arrays(np.float64, st.tuples(st.integers(1, 9), st.integers(1, 4)), elements=st.floats(0, 1)))
def test_bits_of_the_obvious_recursion(chance):
    assert_same_bits(poisson_binomial_cdf(chance), np.array([slow(column) for column in chance.T]).T)


def test_equal_chances_are_binomial():
    found = poisson_binomial_cdf(np.full((30, 2), [0.2, 0.7]))
    np.testing.assert_allclose(found, binom.cdf(np.arange(30)[:, None], 30, [0.2, 0.7]), rtol=1e-12)
