"""Q-DCP over links that lose messages: relaxed ADMM with a variable for each directed edge ([Bastianello2021]).

A device holds one number z for each of its neighbours. It minimises its local problem for x with their sum, and sends
neighbour j the number 2 rho x - z_j. A neighbour that receives it moves its own number for that edge towards it; one
that does not keeps what it had. So a lost message costs time and nothing else. The order in which devices wake is free,
as in asynchronous ADMM ([WeiOzdaglar2013]).

Assumes     graph connected, its map known; K and every n_k known
Guarantees  nothing by itself: an estimate whose rank `loss_tolerant_count` counts
Message     one number for each neighbour, and three besides that `loss_tolerant_count` needs
Departures  - f_k is the smoothed pinball loss, and its regulariser pulls towards the device's own last estimate instead
              of an agreed s0: re-centred `_RECENTRINGS` times, as the proximal point method does, it leaves no bias
            - a message to each neighbour is one broadcast that holds them all: whoever hears it finds its own
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from conformesh.common.array_types import Floats, Ints
from conformesh.kernels.compilation import expect_work
from conformesh.kernels.pinball import RootFinder
from conformesh.kernels.weighted_scores import WeightedScores
from conformesh.protocols.block import Block
from conformesh.protocols.loss_tolerant_count import LossTolerantCount
from conformesh.protocols.messages import Packets, Protocol, Tell
from conformesh.protocols.quantile_average import local_quantiles

# How far a number moves towards a received one. [Bastianello2021] prove convergence under losses for any value below 1.
_RELAXATION = 0.5
# How often the regulariser is centred at the current estimate, evenly over the rounds: the same number of runs that is
# recommended for the option `continuation` of Q-DCP.
_RECENTRINGS = 5
# Final weight of the regulariser as a share of an average device's scores; each centring divides the weight by the same
# factor. What bias it leaves is then moved by one twentieth of a device at most, and the rank is counted anyway.
_FINAL_WEIGHT = 0.05


@dataclass(frozen=True, eq=False)
class _Edges:
    """The directed edges to the devices here, by device and then by neighbour.

    Attributes
    ----------
    owner
        Which device here each belongs to.
    starts
        Where the edges of each device begin, and where the last ends.
    keys, order
        Receiver and sender as one number, ascending, and which edge each of them is.
    place
        Where the device stands among the neighbours of its neighbour.
    """

    owner: Ints
    starts: Ints
    keys: Ints
    order: Ints
    place: Ints

    @classmethod
    def of(cls, block: Block) -> _Edges:
        """Read them off the map."""
        network, K = block.network, block.devices
        degree = network.degree[block.rows].astype(np.int64)
        owner = np.repeat(np.arange(len(block.rows)), degree)
        receiver, sender = block.rows[owner], network.indices[block.edge_rows].astype(np.int64)
        keys = receiver * K + sender
        order = np.argsort(keys)
        return cls(
            owner,
            np.concatenate([[0], np.cumsum(degree)]),
            keys[order],
            order,
            _positions_at_neighbours(block, receiver, sender),
        )

    def of_messages(self, receiver: Ints, sender: Ints, devices: int) -> Ints:
        """Return the edge along which each message came."""
        return self.order[np.searchsorted(self.keys, receiver * devices + sender)]


def _positions_at_neighbours(block: Block, receiver: Ints, sender: Ints) -> Ints:
    """Return where each receiver stands among the neighbours of its sender."""
    network = block.network
    if len(block.rows) == block.devices:
        everybody = network.receivers * block.devices + network.indices
        return np.asarray(np.searchsorted(everybody, sender * block.devices + receiver) - network.indptr[sender])
    near = [network.indices[network.indptr[j] : network.indptr[j + 1]] for j in sender.tolist()]
    return np.array([np.searchsorted(row, k) for row, k in zip(near, receiver, strict=True)], dtype=np.int64)


def relaxed_admm(
    block: Block,
    samples: WeightedScores,
    gamma: Floats,
    s0: float | None,
    kappa: float,
    mu: float,
    penalty: float | None,
    rounds: int,
    counting: LossTolerantCount,
) -> Protocol[Floats]:
    """Return each device's estimate, (devices here, problems), for levels gamma (trials, alphas).

    The regulariser begins at `s0`, or at the device's own quantile; where it has none it does not pull.
    """
    edges, steps = _Edges.of(block), _LocalProblems(block, samples, gamma, s0, kappa, mu, penalty)
    weaker = (mu / _final_regulariser(block, mu)) ** (1 / (_RECENTRINGS - 1))
    many = gamma.size
    z = np.zeros((len(edges.owner), many))
    for t in range(rounds):
        if t and t % -(-rounds // _RECENTRINGS) == 0:
            steps.centre(weaker)
        x = steps.solve(_sum_by_device(z, edges))
        told = yield _message(2 * steps.rho * x[edges.owner] - z, edges, counting)
        receiver, sender = np.asarray(told.receiver), np.asarray(told.sender)
        at = edges.of_messages(receiver, sender, block.devices)
        first = counting.width + edges.place[at] * many
        said = told.floats(first[:, None] + np.arange(many))
        z[at] += _RELAXATION * (said - z[at])
        counting.hear_ends(told)
    return steps.solve(_sum_by_device(z, edges))


class _LocalProblems:
    """The local problems of the devices here: F(x) + (mu + rho d) x = gamma n + mu s0 + sum of z."""

    def __init__(
        self,
        block: Block,
        samples: WeightedScores,
        gamma: Floats,
        s0: float | None,
        kappa: float,
        mu: float,
        rho: float | None,
    ) -> None:
        here, degree = len(block.rows), block.degree[:, None]
        mine = local_quantiles(samples, gamma).reshape(here, -1)
        held = np.repeat(samples.sizes, gamma.shape[1], axis=1) > 0
        centred = held & np.isfinite(mine) if s0 is None else np.ones_like(held)
        self.mu = np.where(centred | (degree == 0), mu, 0.0)
        self.s = np.where(centred, mine if s0 is None else s0, 0.0)
        self.rho = _penalty(block, mu) if rho is None else rho
        self.level = (gamma * samples.sizes[:, :, None]).reshape(here, -1)
        self._finder = RootFinder(
            samples.values, samples.offsets, gamma.shape[1], np.full(self.s.size, kappa), self.s.ravel()
        )
        expect_work("pinball", float(self.s.size))
        self._degree = degree
        self.centre()

    def centre(self, weaker: float = 1.0) -> None:
        """Let the regulariser pull towards where each device is now, and less than before."""
        self.mu = self.mu / weaker
        self.slope = self.mu + self.rho * self._degree
        self.fixed = self.level + self.mu * self.s

    def solve(self, pulls: Floats) -> Floats:
        """Return the minimisers, and go on from them next time."""
        self._finder.solve(self.slope.ravel(), (self.fixed + pulls).ravel())
        return self.s


def _final_regulariser(block: Block, mu: float) -> float:
    """Return the weight of the regulariser in the end: little beside the scores of a device."""
    return min(mu, _FINAL_WEIGHT * max(float(block.totals.max(initial=0)), 1.0) / block.devices)


def _penalty(block: Block, mu: float) -> float:
    """Return a penalty that moves a device about as much as its own loss does: known to all beforehand."""
    mean = max(float(block.network.degree.mean()), 1.0)
    return (_final_regulariser(block, mu) + max(float(block.totals.max(initial=0)), 1.0) / block.devices) / mean


def _sum_by_device(z: Floats, edges: _Edges) -> Floats:
    """Add up the numbers of each device, by ascending neighbour."""
    here = len(edges.starts) - 1
    return np.stack([np.bincount(edges.owner, column, here) for column in z.T], axis=1)


def _message(numbers: Floats, edges: _Edges, counting: LossTolerantCount) -> Tell:
    """Return what all devices here say: what the count needs, and then one number per problem for each neighbour."""
    here, many, width = len(edges.starts) - 1, numbers.shape[1], counting.width
    lengths = width + many * np.diff(edges.starts)
    flat = np.empty(int(lengths.sum()))
    starts = np.cumsum(lengths) - lengths
    flat[starts[:, None] + np.arange(width)] = counting.ends_said()
    first = starts[edges.owner] + width + many * (np.arange(len(edges.owner)) - edges.starts[edges.owner])
    flat[first[:, None] + np.arange(many)] = numbers
    offsets = np.concatenate([[0], 8 * np.cumsum(lengths)])
    return Tell(Packets(flat.view(np.uint8), offsets), np.arange(here), lengths, _check_message)


def _check_message(said: bytes) -> Any:
    if len(said) % 8:
        raise ValueError(f"numbers take 8 bytes each, got {len(said)} bytes")
