"""AVERAGING_SCHEMES: four ways to average a histogram, each with the error bounds that hold for it.

gossip       the paper's consensus, any W, any eta, any width on the wire
chebyshev    the same messages, accelerated: about the square root of the rounds
finite-time  exact after one round per distinct non-zero Laplacian eigenvalue
projection   any messages in any order: every device tracks of whom its numbers are
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any, ClassVar

import numpy as np

from conformesh.common.array_types import Floats, Ints
from conformesh.graph.network import Network
from conformesh.graph.weights import Weights
from conformesh.protocols.block import Block
from conformesh.protocols.bounds.histogram import (
    UNIT_ROUNDOFF,
    MixingRates,
    arithmetic_epsilon,
    h_dcp_chebyshev_epsilon,
    h_dcp_cumulative_epsilon,
    h_dcp_paper_epsilon,
    h_dcp_row_epsilon,
    start_radius,
)
from conformesh.protocols.consensus import gossip, rate_at, rounds_to_shrink
from conformesh.protocols.messages import Protocol, Sum
from conformesh.protocols.projection_gossip import check_memory, default_gossip_rounds
from conformesh.protocols.wire_format import WireFormat

LARGEST_DENSE = 1500  # devices up to which all eigenvalues are computed: K x K matrices, which take a few seconds
# Eigenvalues nearer than this, relative to the largest, count as one. They are computed to about 1e-14; a wrong
# decision costs a round or precision, and both are part of the error bound.
_DISTINCT = 1e-9


class GossipScheme:
    """Linear consensus with W_eta, as the paper prints it. `options` are those of H-DCP.

    `as_printed` says whether the paper's bound, eta and the bound for rounded messages hold for it, and `tracked`
    whether devices track weights instead of knowing a matrix.
    """

    as_printed: ClassVar[bool] = True
    tracked: ClassVar[bool] = False

    def __init__(self, block: Block, weights: Weights, options: Any) -> None:
        self.block, self.weights, self.options = block, weights, options
        if options.bound == "row" and block.devices > LARGEST_DENSE:
            raise ValueError(f"bound='row' needs a K x K matrix, up to {LARGEST_DENSE:,} devices; use 'cumulative'")

    def run(self, y: Floats, rounds: int, wire: WireFormat) -> Protocol[Floats]:
        """Average for some rounds."""
        return (yield from gossip(y, self.block, self.weights, rounds, self.options.eta, wire))

    def start(self, sizes: Ints) -> float:
        """Return the bound before the first round; for equal sizes it grows as the square root of their number."""
        if self.options.bound == "paper":
            return h_dcp_paper_epsilon(sizes, self.options.bins, self.weights.gap, self.options.eta, 0)
        return start_radius(sizes)

    def rounds_for(self, start: float, target: float) -> int:
        """Return the fewest rounds that bring the bound from `start` to `target`; the row bound is never larger."""
        eta = self.options.eta
        if self.options.bound == "paper":
            return rounds_to_shrink(1 - eta * self.weights.gap, target / start)
        return rounds_to_shrink(rate_at(self.weights, eta), target / start)

    def epsilon(self, sizes: Ints, rounds: int, wire: WireFormat) -> tuple[float, float]:
        """Return the consensus error bound and what finite precision adds to it."""
        eta = self.options.eta
        if self.options.bound == "paper":
            consensus = h_dcp_paper_epsilon(sizes, self.options.bins, self.weights.gap, eta, rounds)
        elif self.options.bound == "row":
            consensus = h_dcp_row_epsilon(sizes, self._rest(lambda mode: (1 - eta * (1 - mode)) ** rounds))
        else:
            consensus = h_dcp_cumulative_epsilon(sizes, rate_at(self.weights, eta), rounds)
        return consensus, self._precision(sizes, rounds, wire)

    def _precision(self, sizes: Ints, rounds: int, wire: WireFormat) -> float:
        eta = self.options.eta
        mixing = MixingRates(
            second=1 - eta * (1 - self.weights.second),
            smallest=1 - eta * (1 - self.weights.smallest),
            degree=self.block.network.largest_degree,
            strength=eta * self.weights.reach(self.block.network),
        )
        return arithmetic_epsilon(sizes, mixing, rounds, wire)

    def _rest(self, polynomial: Any) -> Floats:
        """Return p(W) - J, from the eigenvectors of W; the constant vector keeps its place."""
        w = self.weights.matrix(self.block.network).toarray()
        k = len(w)
        modes, vectors = np.linalg.eigh(w - 1 / k)  # takes the constant vector out: its eigenvalue becomes 0
        shares = polynomial(modes)
        constant = np.full(k, 1 / math.sqrt(k))
        rest = (vectors * shares) @ vectors.T
        return np.asarray(rest - polynomial(np.zeros(1))[0] * np.outer(constant, constant))


class _Chebyshev(GossipScheme):
    """Chebyshev-accelerated gossip; the same number of messages a round."""

    as_printed = False

    def __init__(self, block: Block, weights: Weights, options: Any) -> None:
        super().__init__(block, weights, options)
        if not isinstance(weights.edge, float):
            raise ValueError("consensus='chebyshev' goes with one weight for all edges: best-constant or max-degree")

    def run(self, y: Floats, rounds: int, wire: WireFormat) -> Protocol[Floats]:
        """Average for some rounds."""
        return (yield from chebyshev(y, self.block, float(self.weights.edge), self.weights.rate, rounds))

    def rounds_for(self, start: float, target: float) -> int:
        """Return the fewest rounds that bring the bound from `start` to `target`."""
        return chebyshev_rounds(self.weights.rate, target / start)

    def epsilon(self, sizes: Ints, rounds: int, wire: WireFormat) -> tuple[float, float]:
        """Return the bound; round-off enters every later round through a polynomial that grows at most linearly."""
        rate = self.weights.rate
        consensus = h_dcp_chebyshev_epsilon(sizes, rate, rounds)
        if self.options.bound == "row" and 0 < rate < 1:
            consensus = h_dcp_row_epsilon(sizes, self._rest(lambda mode: _chebyshev_share(mode, rate, rounds)))
        return consensus, 2 * (rounds + 2) * self._precision(sizes, rounds, wire)


class _FiniteTime(GossipScheme):
    """Averaging that ends: one round per distinct non-zero eigenvalue of the Laplacian."""

    as_printed = False

    def __init__(self, block: Block, weights: Weights, options: Any) -> None:
        super().__init__(block, weights, options)
        self.roots, self.relative = finite_time_plan(block.network)
        if options.rounds not in (None, len(self.roots)):
            raise ValueError(
                f"consensus='finite-time' takes {len(self.roots)} rounds on this network, no more and no fewer, got "
                f"{options.rounds}; leave rounds out"
            )

    def run(self, y: Floats, rounds: int, wire: WireFormat) -> Protocol[Floats]:
        """Take the eigenvalues out, one a round."""
        return (yield from finite_time(y, self.block, self.roots))

    def rounds_for(self, start: float, target: float) -> int:
        """Return the number of distinct non-zero eigenvalues."""
        return len(self.roots)

    def epsilon(self, sizes: Ints, rounds: int, wire: WireFormat) -> tuple[float, float]:
        """Return what round-off and inexact eigenvalues may leave; consensus itself leaves nothing."""
        c = sizes * (len(sizes) / float(sizes.sum()))
        return self.relative * float(np.linalg.norm(c)) + 8 * UNIT_ROUNDOFF, 4 * UNIT_ROUNDOFF * float(
            np.linalg.norm(c)
        )


class _Projection(GossipScheme):
    """Projection gossip (`projection_gossip`): what it needs to know of the network is how long to go on."""

    as_printed = False
    tracked = True

    def __init__(self, block: Block, weights: Weights, options: Any) -> None:
        super().__init__(block, weights, options)
        check_memory(block.devices, block.devices, options.bins, 1)

    def rounds_for(self, start: float, target: float) -> int:
        """Return rounds after which counts are usually exact."""
        return default_gossip_rounds(self.block)


def _chebyshev_share(modes: Floats, rate: float, rounds: int) -> Floats:
    """Return T_T(mode / rate) / T_T(1 / rate), which never leaves [-1, 1] on the modes of W."""
    inside = np.clip(modes / rate, -1.0, 1.0)
    return np.asarray(np.cos(rounds * np.arccos(inside)) / math.cosh(min(rounds * math.acosh(1 / rate), 700.0)))


# --- Chebyshev-accelerated gossip: p = T_T(l / rate) / T_T(1 / rate) --------------------------------------------------
# Disagreement shrinks as 1 / cosh(T arccosh(1 / rate)).


def chebyshev_rounds(rate: float, factor: float) -> int:
    """Return the fewest rounds after which disagreement is at most `factor` of what it was."""
    if factor >= 1:
        return 0
    if rate <= 1e-12:
        return 1
    return max(1, math.ceil(math.acosh(1 / factor) / math.acosh(1 / rate)))


def chebyshev(x: Floats, block: Block, edge: float, rate: float, rounds: int) -> Protocol[Floats]:
    """Run p_T(W) x with W = I - edge L; `rate` bounds every other eigenvalue of W in magnitude."""
    degree = block.degree.reshape(-1, *[1] * (x.ndim - 1))
    if rounds == 0:
        return x

    def mixed(x: Floats, neighbours: Floats) -> Floats:
        return x + edge * (neighbours - degree * x)

    before, now = x, mixed(x, (yield Sum(x)))
    omega = 2.0  # of round 1 in the recurrence omega <- 1 / (1 - rate^2 omega / 4)
    for _ in range(rounds - 1):
        omega = 1 / (1 - rate * rate * omega / 4)
        after = omega * (mixed(now, (yield Sum(now))) - before) + before
        before, now = now, after
    return now


# --- averaging that ends: p = prod over distinct non-zero Laplacian eigenvalues of (1 - L / l_i) ----------------------
# That is zero on every eigenvector but the constant one, after as many rounds as there are such eigenvalues.


def finite_time(x: Floats, block: Block, roots: Floats) -> Protocol[Floats]:
    """Take the eigenvalues in `roots` out of x, one a round: what is left is the mean."""
    degree = block.degree.reshape(-1, *[1] * (x.ndim - 1))
    for root in roots:
        x = x - (degree * x - (yield Sum(x))) / root
    return x


@lru_cache(maxsize=64)  # networks are immutable and compared by identity
def finite_time_plan(network: Network) -> tuple[Floats, float]:
    """Return the eigenvalues in Leja order and a bound on the relative error: ``|x_k - mean| <= bound * ||x(0)||``.

    With factors f_t(l) = 1 - l / l_t the round-off of round t is multiplied by the later factors and is relative to
    what the earlier ones left, both at their worst over the spectrum; eigenvalues themselves are known to about 1e-14
    of the largest, which leaves of eigenvector j the product of its other factors times that error.
    """
    if network.devices == 1:
        return np.zeros(0), 0.0
    if network.devices > LARGEST_DENSE:
        raise ValueError(f"finite-time needs all eigenvalues, computed up to {LARGEST_DENSE:,} devices only")
    laplacian = np.diag(network.degree.astype(np.float64))
    laplacian[network.receivers, network.indices] = -1.0
    eigenvalues = np.linalg.eigvalsh(laplacian)[1:]
    new = np.concatenate([[True], np.diff(eigenvalues) > _DISTINCT * eigenvalues[-1]])
    groups = np.split(eigenvalues, np.flatnonzero(new)[1:])
    distinct = np.array([group.mean() for group in groups])
    roots = leja_order(distinct)
    factors = np.abs(1 - eigenvalues[None, :] / roots[:, None])  # (rounds, eigenvalues)
    known = 1e-14 * eigenvalues[-1] / eigenvalues  # relative error of an eigenvalue, generously
    factors = np.maximum(factors, known[None, :])
    ones = np.ones((1, len(eigenvalues)))
    before = np.concatenate([ones, np.cumprod(factors, axis=0)]).max(axis=1)
    after = np.concatenate([np.cumprod(factors[::-1], axis=0)[::-1], ones]).max(axis=1)
    left = np.prod(factors, axis=0).max()
    growth = 1 + 2 * network.degree.max() / roots
    noise = (
        (int(network.degree.max()) + 6)
        * UNIT_ROUNDOFF
        * growth
        * np.maximum(before[:-1], 1.0)
        * np.maximum(after[1:], 1.0)
    )
    roots.flags.writeable = False  # shared by whoever asks
    return roots, float(left + noise.sum())


def leja_order(points: Floats) -> Floats:
    """Order points so that each next one is farthest from those before, in the product of distances."""
    left = np.ones(len(points), dtype=bool)
    order = [int(np.argmax(points))]
    left[order[0]] = False
    distance = np.zeros(len(points))
    while left.any():
        with np.errstate(divide="ignore"):
            distance += np.log(np.abs(points - points[order[-1]]))
        nearest = int(np.argmax(np.where(left, distance, -np.inf)))
        order.append(nearest)
        left[nearest] = False
    return points[order]


AVERAGING_SCHEMES: dict[str, type[GossipScheme]] = {
    "gossip": GossipScheme,
    "chebyshev": _Chebyshev,
    "finite-time": _FiniteTime,
    "projection": _Projection,
}
