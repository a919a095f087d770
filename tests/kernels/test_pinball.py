import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scipy.optimize import brentq
from scipy.special import expit

from conformesh.kernels import compilation as compiling
from conformesh.kernels.pinball import DEGREE, RootFinder, find_root, minimise_pinball
from tests.reference import loss_gradient, smoothed_loss

pytestmark = pytest.mark.usefixtures("way")


def slow_root(values, kappa, slope, rhs):
    return brentq(
        lambda s: expit(kappa * (s - values)).sum() + slope * s - rhs,
        (rhs - len(values)) / slope - 1,
        rhs / slope + 1,
        xtol=1e-15,
        rtol=1e-15,
    )


def drawn(kind, rng, n):
    x = rng.normal(size=n)
    return np.sort({"normal": x, "ties": np.round(x), "tight": x / 1e3}[kind])


@settings(max_examples=200)
@given(
    st.integers(0, 2**32 - 1),
    st.integers(0, 300),
    st.sampled_from([1.0, 30.0, 2000.0, 1e5]),
    st.sampled_from([1e-3, 1.0, 2000.0, 1e6]),
    st.floats(-1, 2),
    st.sampled_from(["normal", "ties", "tight"]),
)
@example(471306793, 122, 30.0, 1e-3, 0.0, "ties")  # Newton's method alone jumps between two plateaus for ever
@example(2390318880, 299, 1e5, 2000.0, 0.0, "normal")
@example(2624521507, 2, 1e5, 1.0, 1.2816372905797557, "normal")
def test_root_equals_a_root_finder(seed, n, kappa, slope, level, kind):
    """Both solve F(s) + slope s = rhs, which rises everywhere; roots agree to about a billionth.

    The examples are such that a bracketed Newton's method without a rule on its steps fails them.
    """
    rng = np.random.default_rng(seed)
    values = drawn(kind, rng, n)
    rhs = level * n + slope * rng.normal()
    root = find_root(memoryview(values), 0, n, (kappa, slope, rhs), 0.0, (np.full(1, np.nan), np.zeros(DEGREE + 2)))
    assert root == pytest.approx(slow_root(values, kappa, slope, rhs), rel=1e-9, abs=1e-9)


def test_the_interpolant_gives_the_same_root_as_the_sum():
    """A crowded window (20,000 scores in a few 1/kappa) switches to Chebyshev: 1e-13 a score, 2e-9 counts in all."""
    rng = np.random.default_rng(5)
    values = np.sort(rng.normal(size=20_000) / 100)
    centre, coefficients = np.full(1, np.nan), np.zeros(DEGREE + 2)
    x = 0.0
    used = False
    for rhs in np.linspace(9_000, 9_100, 40):  # a slowly moving problem, as ADMM poses it
        x = find_root(memoryview(values), 0, len(values), (2000.0, 500.0, rhs), x, (centre, coefficients))
        used |= bool(np.isfinite(centre[0]))
        assert x == pytest.approx(slow_root(values, 2000.0, 500.0, rhs), abs=1e-12)
    assert used


def test_infinite_scores_count_as_saturated():
    values = np.array([-np.inf, 0.0, np.inf])
    assert minimise_pinball(values, 2000.0, 1.5, 1.0, 0.0) == pytest.approx(0.0, abs=1e-12)


def test_minimise_finds_the_minimum_of_the_loss():
    rng = np.random.default_rng(2)
    scores = np.sort(rng.normal(size=200))
    gamma, kappa, mu, s0 = 0.9, 50.0, 3.0, 0.2
    s = minimise_pinball(scores, kappa, gamma * len(scores), mu, s0)
    assert abs(loss_gradient(s, scores, gamma, kappa, mu, s0)) < 1e-9
    best = smoothed_loss(s, scores, gamma, kappa, mu, s0)
    assert all(best <= smoothed_loss(s + d, scores, gamma, kappa, mu, s0) + 1e-9 for d in (-1e-3, 1e-3, -0.1, 0.1))


def test_gradient_is_the_derivative_of_the_loss():
    scores, h = np.array([0.3, -0.2, 1.0]), 1e-6
    for s in (-0.5, 0.29, 0.8):
        args = (scores, 0.8, 40.0, 2.0, 0.1)
        slope = (smoothed_loss(s + h, *args) - smoothed_loss(s - h, *args)) / (2 * h)
        assert loss_gradient(s, *args) == pytest.approx(slope, rel=1e-5, abs=1e-6)


def roots_of(values, offsets, repeats, rng, monkeypatch, loading):
    """The roots of three rounds, from random places."""
    monkeypatch.setattr(compiling, "_loaded", {})
    monkeypatch.setattr(compiling, "LOADING", loading)
    problems = (len(offsets) - 1) * repeats
    finder = RootFinder(values, offsets, repeats, np.full(problems, 2000.0), rng.random(problems))
    found = []
    for _ in range(3):
        finder.solve(np.full(problems, 500.0), 60 * rng.random(problems))
        found.append(finder.roots.tobytes())
    return found


@pytest.mark.parametrize("spread", [1.0, 1e-2, 1e-4])  # the last two crowd into one window and are interpolated
@pytest.mark.parametrize("seed", range(5))
def test_interpreted_roots_have_the_bits_of_compiled_ones(seed, spread, monkeypatch):
    rng = np.random.default_rng(seed)
    sizes = np.array([0, 1, 40, 300])
    values = np.concatenate([np.sort(0.5 + spread * rng.normal(size=n)) for n in sizes])
    values[-1] = np.inf
    offsets = np.concatenate([[0], np.cumsum(sizes)])
    both = [
        roots_of(values, offsets, 2, np.random.default_rng(seed), monkeypatch, loading) for loading in (np.inf, -1.0)
    ]
    assert both[0] == both[1]
