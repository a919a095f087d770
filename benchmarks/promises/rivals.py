"""Private calibration by one trusted curator, as three papers describe it: what `private.py` compares P-DCP with.

Only the calibration step is here, the private quantile of calibration scores in [0, 1]; models are trained elsewhere.
A curator holds all scores in one place, and everybody must trust it; P-DCP has none. The number of scores n is public
and privacy means that *replacing* one score changes chances by a factor of at most exp(epsilon).

Sources: abstracts and openings of the papers, and the code that the authors of P-COQS and EXPONQ have published, read
for its parameters; none of it is copied. The remaining sections of the papers could not be consulted.

P-COQS      Romanus and Molinari, "Differentially private conformal prediction via quantile binary search",
            arXiv 2507.12497: a binary search in [0, 1] with a noisy count at every step. By its authors' package: the
            search ends at a width of 1e-10, so 34 steps; the rank asked for is ceil((1 - alpha)(n + 1)); counts are
            rounded down, and not below 0; the answer is the middle of the last interval. The package also rounds the
            answer to two decimals, left out here as too coarse near 1. The paper states privacy as rho-zCDP
            with Gaussian noise, and its experiments take rho = epsilon^2/2, which pure epsilon implies but which does
            not imply it. Our additions: the rho that implies (epsilon, delta), and Laplace noise for pure epsilon.
DPCP        Wu et al., "Differentially private conformal prediction", arXiv 2604.14621: private training, then a private
            quantile by the exponential mechanism. Of its text only the abstract and summaries could be consulted, so
            the mechanism is the usual one for a quantile (Smith, STOC 2011): the density at q is proportional to
            exp(-epsilon/2 |number of scores up to q - rank|) on [0, 1]. The rank, ceil((1 - alpha)(n + 1)), is our
            choice. Coverage is proved under regularity conditions only.
EXPONQ      Angelopoulos, Bates, Zrnic and Jordan, "Private prediction sets", arXiv 2102.06202, on which both build:
            the exponential mechanism over m equal bins at a raised level, with coverage proved for finite n. The share
            gamma is the best for its formula. The number of bins m is the best for uniform scores, of 9 from 10,000 to
            1,000,000: the range of the authors' code, which tries 50. The criterion, the mean answer, is ours: they
            take one random answer. Penalties are divided by their sensitivity 1/(1 - q), without which the mechanism
            would not be epsilon-private; the authors' code leaves this out.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from conformesh.kernels.ranks import conformal_rank

Floats = NDArray[np.float64]
Rng = np.random.Generator
WIDTH = 1e-10  # of the last interval of P-COQS: the default of its authors' package
TRIES = 5  # draws of uniform scores by which EXPONQ's bins are chosen
BINS = tuple(np.logspace(4, 6, 9).astype(int).tolist())  # that are tried
LARGEST_LEVEL = 1 - 1e-12  # of EXPONQ, where its formula asks for more than everything


# --- P-COQS -----------------------------------------------------------------------------------------------------------


def search_steps(width: float = WIDTH) -> int:
    """Return how many halvings of [0, 1] end at this width."""
    return math.ceil(math.log2(1 / width))


def gaussian_counts(rho: float, steps: int, rng: Rng) -> Floats:
    """Return the noise of `steps` counts which together are rho-zCDP: one score changes each count by at most 1."""
    return rng.normal(scale=math.sqrt(steps / (2 * rho)), size=steps)


def laplace_counts(epsilon: float, steps: int, rng: Rng) -> Floats:
    """Return the noise of `steps` counts which together are epsilon-private."""
    return rng.laplace(scale=steps / epsilon, size=steps)


def p_coqs(scores: Floats, alpha: float, noise: Floats, width: float = WIDTH) -> float:
    """Return P-COQS's threshold of sorted scores in [0, 1]; `noise` has one number for each step."""
    low, high = 0.0, 1.0
    rank = conformal_rank(len(scores), alpha)
    for error in noise:
        middle = (low + high) / 2
        counted = math.floor(np.searchsorted(scores, middle, side="right") + error)
        if max(counted, 0) < rank:
            low = middle + width
        else:
            high = middle
    return (low + high) / 2


@lru_cache
def rho_of(epsilon: float, delta: float) -> float:
    """Return the largest rho with which Gaussian counts are (epsilon, delta)-private.

    All counts together are one Gaussian mechanism with mu = sensitivity/deviation = sqrt(2 rho). Its delta is that
    of Balle and Wang (2018). The usual bound rho + 2 sqrt(rho log(1/delta)) would grant P-COQS less.
    """
    from scipy.optimize import brentq
    from scipy.special import log_ndtr, ndtr

    def excess(mu: float) -> float:
        return float(ndtr(mu / 2 - epsilon / mu) - math.exp(epsilon + log_ndtr(-mu / 2 - epsilon / mu))) - delta

    return float(brentq(excess, 1e-6, 10.0, xtol=1e-12)) ** 2 / 2


# --- exponential mechanisms -------------------------------------------------------------------------------------------


def gap_chances(scores: Floats, alpha: float, epsilon: float) -> tuple[Floats, Floats]:
    """Return the ends of the gaps between sorted scores in [0, 1], and the chance of each gap to have DPCP's answer."""
    edges = np.concatenate([[0.0], scores, [1.0]])
    below = np.arange(len(scores) + 1)  # scores up to a point of each gap
    distance = np.abs(below - conformal_rank(len(scores), alpha))
    chances = np.diff(edges) * np.exp(-epsilon / 2 * (distance - distance.min()))
    return edges, chances / chances.sum()


def dpcp(scores: Floats, alpha: float, epsilon: float, rng: Rng) -> float:
    """Return the exponential mechanism's quantile of sorted scores in [0, 1], as DPCP calibrates."""
    edges, chances = gap_chances(scores, alpha, epsilon)
    gap = rng.choice(len(chances), p=chances)
    return float(rng.uniform(edges[gap], edges[gap + 1]))


def raised_level(n: int, alpha: float, epsilon: float, bins: int) -> float:
    """Return EXPONQ's level, with the share gamma for which it is smallest.

    The derivative of (n + 1)(1 - alpha)/(n (1 - gamma alpha)) + 2/(epsilon n) log(bins/(gamma alpha)) vanishes at the
    smaller root of alpha^2 gamma^2 - (2 alpha + alpha epsilon (n + 1)(1 - alpha)/2) gamma + 1.
    """
    half = alpha + alpha * epsilon * (n + 1) * (1 - alpha) / 4
    gamma = min(1 / (half + math.sqrt(half**2 - alpha**2)), 1 - 1e-12)  # of the root's two forms the one that is stable
    level = (n + 1) * (1 - alpha) / (n * (1 - gamma * alpha)) + 2 / (epsilon * n) * math.log(bins / (gamma * alpha))
    return min(level, LARGEST_LEVEL)


def bin_chances(scores: Floats, alpha: float, epsilon: float, bins: int) -> tuple[Floats, Floats]:
    """Return the right ends of EXPONQ's bins, and the chance of each to be the threshold of sorted scores in [0, 1].

    A bin's penalty is the larger of (scores left of it)(1 - q)/q and (scores right of it). One score changes it by at
    most 1 where the level q is at least 1/2.
    """
    ends = np.arange(1, bins + 1) / bins
    q = raised_level(len(scores), alpha, epsilon, bins)
    upto = np.searchsorted(scores, ends, side="right")
    left = np.concatenate([[0], upto[:-1]])
    penalty = np.maximum(left * (1 - q) / q, len(scores) - upto)
    chances = np.exp(-epsilon / 2 * (penalty - penalty.min()))
    return ends, chances / chances.sum()


def exponq(scores: Floats, alpha: float, epsilon: float, rng: Rng) -> float:
    """Return EXPONQ's threshold of sorted scores in [0, 1], with as many bins as suit uniform scores."""
    ends, chances = bin_chances(scores, alpha, epsilon, chosen_bins(len(scores), alpha, epsilon))
    return float(rng.choice(ends, p=chances))


@lru_cache
def chosen_bins(n: int, alpha: float, epsilon: float) -> int:
    """Return the number of bins whose mean answer is smallest for uniform scores: public, and before the data."""
    rng = np.random.default_rng(0)
    draws = [np.sort(rng.random(n)) for _ in range(TRIES)]

    def mean_answer(bins: int) -> float:
        return float(
            np.mean([ends @ chances for ends, chances in (bin_chances(s, alpha, epsilon, bins) for s in draws)])
        )

    return min(BINS, key=mean_answer)
