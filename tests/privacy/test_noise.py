"""Shares of noise: their law in exact arithmetic, what is drawn from bytes, and what H of them add up to."""

import hashlib
import math
from decimal import Decimal, localcontext
from fractions import Fraction

import numpy as np
import pytest
from scipy import stats

from conformesh.privacy import noise
from conformesh.privacy.noise import NoiseShares, noise_law

EPSILONS = (0.01, 0.05, 0.5, 1, 3, 20)


def keystream(seed):
    """Bytes without end, as a caller supplies them."""
    state = hashlib.shake_256(seed.encode())
    at = 0

    def take(n):
        nonlocal at
        at += n
        return state.digest(at)[-n:] if n else b""

    return take


def exact_chances(epsilon, shape, most):
    """P(X = k), k < most, of NB(shape, exp(-epsilon)) as decimals of 120 digits, by the definition."""
    with localcontext() as context:
        context.prec = 120
        p = (-Decimal(str(epsilon))).exp()
        r = Decimal(shape.numerator) / Decimal(shape.denominator)
        chances = [(1 - p) ** r]
        for k in range(most - 1):
            chances.append(chances[-1] * (r + k) / (k + 1) * p)
        return chances


@pytest.mark.parametrize("honest", [1, 3, 19])
@pytest.mark.parametrize("epsilon", EPSILONS)
def test_tables_are_within_the_stated_distance_of_the_law(epsilon, honest):
    """Total variation, in exact arithmetic: of one number below 2^-98, of the difference of two below twice that."""
    ends = NoiseShares(epsilon, honest)._ends
    drawn = np.diff([0, *ends, 2**128]).tolist()
    assert min(drawn) >= 0
    true = exact_chances(epsilon, Fraction(1, honest), len(drawn))
    with localcontext() as context:
        context.prec = 120
        inside = sum(abs(Decimal(d) / 2**128 - t) for d, t in zip(drawn, true, strict=True))
        distance = (inside + (1 - sum(true))) / 2
        assert 2 * distance < Decimal(2) ** -97
        assert 2 * float(distance) < noise.SAMPLING_DISTANCE


@pytest.mark.parametrize("honest", [1, 2, 7, 19])
@pytest.mark.parametrize("epsilon", EPSILONS)
def test_theorem_honest_shares_add_up_to_the_discrete_laplace_law(epsilon, honest):
    """H shares, each as it is drawn, folded H times by the Fourier transform, against the closed form."""
    ends = NoiseShares(epsilon, honest)._ends
    one = np.diff([0.0, *(end / 2**128 for end in ends), 1.0])
    size = 1 << math.ceil(math.log2(4 * (len(one) + 40 / epsilon)))
    folded = np.abs(np.fft.fft(one, size)) ** (2 * honest)  # of X - Y: |f|^2
    found = np.fft.ifft(folded).real
    d = np.minimum(np.arange(size), size - np.arange(size))
    p = math.exp(-epsilon)
    closed = (1 - p) / (1 + p) * p**d
    assert np.abs(found - closed).max() < 1e-13
    shares = noise_law(Fraction(str(epsilon)), Fraction(1))
    there = np.abs(np.arange(-shares.reach, shares.reach + 1))
    np.testing.assert_allclose(shares.chances, (1 - p) / (1 + p) * p**there, rtol=1e-9, atol=shares.cut)


@pytest.mark.parametrize("shape", [Fraction(1, 19), Fraction(20, 19), Fraction(3)])
@pytest.mark.parametrize("epsilon", EPSILONS)
def test_the_law_of_a_sum_is_within_what_it_says(epsilon, shape):
    found = noise_law(Fraction(str(epsilon)), shape)
    assert 1 - 2 * found.cut - 1e-9 <= found.chances.sum() <= 1 + 1e-9
    assert found.cut < 1e-20
    p = math.exp(-epsilon)
    d = np.arange(-found.reach, found.reach + 1)
    assert found.chances @ d**2 == pytest.approx(2 * float(shape) * p / (1 - p) ** 2, rel=1e-9)
    assert found.chances @ d == pytest.approx(0, abs=1e-9)


def test_draws_follow_the_law():
    """Chi-square of the sums of 5 shares: false alarm 1e-6; power above .99 if p were off by a twentieth."""
    honest, epsilon, count = 5, 0.5, 40_000
    shares = NoiseShares(epsilon, honest)
    sums = sum(shares.draw(keystream(f"device {k}"), count) for k in range(honest))
    edges = np.arange(-8, 9)
    observed = np.bincount(np.clip(sums, -8, 8) + 8, minlength=17)

    def expected(eps):
        p = math.exp(-eps)
        inner = (1 - p) / (1 + p) * p ** np.abs(edges[1:-1])
        tail = p**8 / (1 + p)
        return np.concatenate([[tail], inner, [tail]])

    chance = expected(epsilon)
    statistic = float(((observed - count * chance) ** 2 / (count * chance)).sum())
    limit = stats.chi2.isf(1e-6, 16)
    assert statistic < limit
    other = expected(epsilon - math.log1p(0.05))  # p larger by a twentieth
    shift = count * float(((other - chance) ** 2 / chance).sum())
    assert stats.ncx2.sf(limit, 16, shift) > 0.99


def test_the_same_bytes_give_the_same_noise_and_others_do_not():
    shares = NoiseShares(Fraction(1, 2), 19)
    first, again, other = (shares.draw(keystream(seed), 5000) for seed in ("a", "a", "b"))
    assert first.dtype == np.int64
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)
    assert hashlib.sha256(first.astype("<i8").tobytes()).hexdigest()[:16] == "c8456c604cac684c"


def test_bytes_are_read_in_order_whatever_is_drawn_at_once():
    one, many = keystream("c"), keystream("c")
    shares = NoiseShares(0.1, 3)
    assert np.array_equal(np.concatenate([shares.draw(one, n) for n in (1, 7, 0, 92)]), shares.draw(many, 100))


def test_bits_beyond_the_first_64_decide_ties():
    shares = NoiseShares(0.5, 3)
    for k, end in enumerate(shares._ends[:20]):
        low, high = (number.to_bytes(16, "big") for number in (end - 1, end))
        zero = bytes(16)
        assert shares.draw(lambda n, b=low + zero: b, 1).tolist() == [k]
        assert shares.draw(lambda n, b=high + zero: b, 1).tolist() == [k + 1]
    assert shares.draw(lambda n: b"\xff" * 16 + bytes(16), 1).tolist() == [len(shares._ends)]


def test_theorem_one_score_more_changes_no_chance_by_more_than_epsilon():
    """Noise of all shares on one cell: log P(d)/P(d + 1) is at most epsilon, and reaches it."""
    for epsilon in EPSILONS:
        true = noise_law(Fraction(str(epsilon)), Fraction(1)).chances
        kept = true[true > 1e-12]
        steps = np.abs(np.diff(np.log(kept)))
        assert steps.max() == pytest.approx(epsilon, rel=1e-9)


def test_too_few_shares_are_less_private_than_said():
    """18 of 19 shares: the chance of a count changes by more than epsilon, so all H are needed."""
    chances = noise_law(Fraction(1, 2), Fraction(18, 19)).chances
    assert np.abs(np.diff(np.log(chances[chances > 1e-12]))).max() > 0.5 * 1.001


@pytest.mark.parametrize("epsilon", [0, -1, math.nan, math.inf, 1e-4, 51, "much"])
def test_an_epsilon_that_is_none_is_refused(epsilon):
    with pytest.raises(ValueError, match=r"epsilon of one count must be a number between 0\.001 and 50"):
        NoiseShares(epsilon, 3)


def test_nobody_honest_is_refused():
    with pytest.raises(ValueError, match="at least 1 honest device, got 0"):
        NoiseShares(1, 0)


def test_noise_of_a_thousand_times_too_many_shares_has_a_law_too():
    """Its first chance is below any float and products overflow, where they are formed from there."""
    found, p, shape = noise_law(Fraction(1, 2), Fraction(1000)), math.exp(-0.5), 1000
    assert found.chances.sum() == pytest.approx(1, abs=1e-9)
    d = np.arange(-found.reach, found.reach + 1)
    assert found.chances @ d**2 == pytest.approx(2 * shape * p / (1 - p) ** 2, rel=1e-9)
