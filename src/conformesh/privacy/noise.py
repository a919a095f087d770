r"""Shares of discrete Laplace noise: the shares of H honest devices together make a count private.

With :math:`p = e^{-\epsilon}`, the discrete Laplace law :math:`P(d) = \frac{1 - p}{1 + p}\, p^{|d|}` is that of the
difference of two geometric numbers, and a geometric number is a sum of H independent ones of the negative binomial law
NB(1/H, p): the shares. Its generating function is :math:`((1 - p)/(1 - p z))^{1/H}`.

A share is drawn from random bytes that the caller supplies, by comparing whole numbers: no float decides what is
private. Laws of sums of shares are computed in floats, for what noise costs (`inflation`) and for tests.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable
from decimal import Decimal, localcontext
from fractions import Fraction
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from conformesh.common.array_types import Floats
from conformesh.kernels.ranks import exact_number

ByteStream = Callable[[int], bytes]

# Limits of epsilon for one count: the table of its law has 70,000 numbers at the lower one and two at the upper one.
_SMALLEST_COUNT_EPSILON, LARGEST_COUNT_EPSILON = Fraction(1, 1000), Fraction(50)
_RANDOM_BITS = 128  # bits of uniform randomness for one negative binomial number
SAMPLING_DISTANCE = 2.0**-90  # total variation distance between the drawn numbers and the law; proven and tested
_TABLE_END = Decimal(2) ** -100  # chance that is left beyond the end of a table, at most
_DECIMAL_DIGITS = 80  # of intermediate results: 128 bits are 39 digits, the rest is margin for round-off
_LAW_TAIL = 50.0  # tables of laws end where a chance of about exp(-50) is left
_FFT_LENGTH = 8192  # numbers; longer products are formed by the fast Fourier transform
FOURIER_ERROR = 1e-11  # absolute error of a tail of a law formed by that transform: 10^5 numbers, each below 1e-16
ROUNDOFF_FACTOR = 1 + 1e-9  # exceeds the relative round-off of sums of 10^6 positive numbers (10^6 * 2^-53 = 1.1e-10)


class NoiseShares:
    """What one of `honest` devices adds to each count: differences of two NB(1/honest, exp(-epsilon)) numbers.

    Parameters
    ----------
    epsilon
        Privacy of a count that changes by one, between 0.001 and 50; a float is the decimal that it prints.
    honest
        So many devices must add their share for the sum to be private; if more do, there is more noise.

    Examples
    --------
    >>> import hashlib
    >>> stream = lambda n: hashlib.shake_256(b"a keystream, in earnest").digest(n)
    >>> NoiseShares(0.5, honest=3).draw(stream, 12)
    array([ 0,  0,  0,  5,  0,  0, -2,  0,  0,  1,  0,  0])
    """

    def __init__(self, epsilon: Fraction | float, honest: int) -> None:
        self.epsilon = exact_epsilon(epsilon)
        if honest < 1:
            raise ValueError(f"shares of noise need at least 1 honest device, got {honest}")
        self.honest = int(honest)
        self._ends = _table_ends(self.epsilon, self.honest)
        self._leading = np.array([end >> 64 for end in self._ends], dtype=np.uint64)

    def draw(self, stream: ByteStream, count: int) -> NDArray[np.int64]:
        """Return `count` shares, from 32 bytes of `stream` each; within 2^-90 of the law, in total variation."""
        words = np.frombuffer(stream(2 * count * _RANDOM_BITS // 8), dtype=">u8").reshape(2 * count, 2)
        first = words[:, 0].astype(np.uint64)
        numbers = np.searchsorted(self._leading, first, side="right")
        for i in np.flatnonzero(numbers != np.searchsorted(self._leading, first)):  # the first 64 bits do not decide
            numbers[i] = bisect_right(self._ends, int(words[i, 0]) << 64 | int(words[i, 1]))
        pairs = numbers.astype(np.int64).reshape(count, 2)
        return pairs[:, 0] - pairs[:, 1]


def exact_epsilon(epsilon: Any) -> Fraction:
    """Return the epsilon of one count as the decimal the user wrote, or raise an error that says what is allowed."""
    limits = f"{float(_SMALLEST_COUNT_EPSILON)} and {LARGEST_COUNT_EPSILON}"
    needed = f"epsilon of one count must be a number between {limits}"
    value = exact_number(epsilon, f"{needed}, got {epsilon!r}")
    if not _SMALLEST_COUNT_EPSILON <= value <= LARGEST_COUNT_EPSILON:
        raise ValueError(
            f"{needed}, got {float(value):g}; change epsilon, or what one unit may change: cap, fill, copies"
        )
    return value


@lru_cache(maxsize=32)
def _table_ends(epsilon: Fraction, honest: int) -> list[int]:
    """Return floor(2^128 P(X <= k)) for k = 0, 1, .. of NB(1/honest, exp(-epsilon)), up to where 2^-100 is left.

    A uniform number of 128 bits is X if X of the ends are at or below it. Each end is rounded by less than 2^-128 and
    the arithmetic of 80 digits by far less: the distance in total variation is below 2^-100 and 2^-127 per entry.
    """
    with localcontext() as context:
        context.prec = _DECIMAL_DIGITS
        p = (-_decimal(epsilon)).exp()
        shape = _decimal(Fraction(1, honest))
        chance = (shape * (1 - p).ln()).exp()
        below, k, ends = chance, 0, []
        # the ratio of one chance to the last is p (k + shape)/(k + 1) <= p: what is left is less than chance p/(1 - p)
        while chance * p > _TABLE_END * (1 - p):
            ends.append(int(below * 2**_RANDOM_BITS))
            chance = chance * p * (k + shape) / (k + 1)
            below, k = below + chance, k + 1
        return ends


def _decimal(number: Fraction) -> Decimal:
    return Decimal(number.numerator) / Decimal(number.denominator)


def rounded_exp(epsilon: Fraction) -> float:
    """Return exp(-epsilon), correctly rounded: `math.exp` need not be the same on every machine."""
    with localcontext() as context:
        context.prec = 40  # a float has 17 digits
        return float((-_decimal(epsilon)).exp())


def noise_variance(epsilon: Fraction) -> float:
    """Return the variance of noise of shape 1; it is proportional to the shape."""
    p = rounded_exp(epsilon)
    return 2 * p / (1 - p) ** 2


class _NegativeBinomial(NamedTuple):
    """Chances of 0, 1, .. of NB(shape, p) up to a last number.

    Attributes
    ----------
    chances
        With a relative error below 1e-9.
    cut
        P(N > last), at most.
    spill
        E(N - last)^+, at most.
    """

    chances: Floats
    cut: float
    spill: float


def negative_binomial(epsilon: Fraction, shape: Fraction) -> _NegativeBinomial:
    """Return the law of a sum of shares, before the difference: NB(shape, exp(-epsilon)).

    >>> negative_binomial(Fraction(1), Fraction(1)).chances[:3].round(4)  # geometric
    array([0.6321, 0.2325, 0.0855])
    """
    p, r = rounded_exp(exact_epsilon(epsilon)), float(shape)
    if r <= 0:
        raise ValueError(f"the shape of noise must be positive, got {shape}")
    # A gamma number of shape r exceeds r + sqrt(2 r t) + t with a chance below exp(-t), and NB(r, p) is about 1/epsilon
    # of it. The guess only decides on the length: `cut` says what is really left.
    wide = r + math.sqrt(2 * r * _LAW_TAIL) + _LAW_TAIL
    most = math.ceil(wide / float(epsilon)) + 2
    k = np.arange(most)
    ratio = p * (k + r) / (k + 1)  # of one chance to the one before it
    top = int(np.argmax(ratio <= 1))  # from the likeliest number outwards, where no product can overflow
    chances = np.concatenate([np.cumprod(1 / ratio[:top][::-1])[::-1], [1.0], np.cumprod(ratio[top:])])
    chances /= np.cumsum(chances)[-1]  # all there is, but for `cut`
    last = p * max(1.0, (most + r) / (most + 1))  # the largest ratio from here on
    cut = float(chances[-1] * last / (1 - last))
    return _NegativeBinomial(chances, cut, cut / (1 - last))


class _Law(NamedTuple):
    """Chances of whole numbers -B..B; each, and what lies beyond, is at most `cut` larger than said."""

    chances: Floats
    cut: float

    @property
    def reach(self) -> int:
        """B."""
        return len(self.chances) // 2


@lru_cache(maxsize=32)
def noise_law(epsilon: Fraction, shape: Fraction) -> _Law:
    """Return the law of NB(shape, p) - NB(shape, p): of m shares of H devices with shape m/H, in floats.

    Sums of products of positive numbers, so no relative error above 1e-9, besides what `cut` says.

    >>> noise = noise_law(Fraction(1, 2), Fraction(1))                      # discrete Laplace
    >>> round(float(noise.chances[noise.reach + 3] / noise.chances[noise.reach]), 6)  # exp(-3/2)
    0.22313
    """
    each, cut, _ = negative_binomial(epsilon, shape)
    if len(each) <= _FFT_LENGTH:
        return _Law(np.correlate(each, each, mode="full"), cut)
    size = 1 << (2 * len(each) - 1).bit_length()
    wave = np.fft.rfft(each, size)
    both = np.fft.irfft(wave * wave.conj(), size)
    folded = np.concatenate([both[size - len(each) + 1 :], both[: len(each)]])
    return _Law(np.maximum(folded, 0.0), cut + 1e-15)  # round-off, which is not relative here
