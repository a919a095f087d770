r"""An attack on gossip: a curious device recovers the histograms of all devices from the messages it receives.

Gossip mixes with a public matrix, so every value that a neighbour sends is a known linear combination of the histograms
that all devices started with. In round t device j sends row j of :math:`W^t x(0)`. After some rounds a listener has as
many equations as unknowns, and since counts are whole numbers, round-off in the last digits does no harm.

Whether the equations have one answer is a matter of the graph alone, by the observability of linear systems: devices
that look alike from where one listens (leaves of a star, to another leaf) are known by their sum only
(`observable_devices`).

Assumes     the map and the weights known, as they are to every device; messages of 64 bits, or `unit` of fewer
Guarantees  what is `certain` is right, if messages are what gossip says: a bound on all errors stays below half a count
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from conformesh.common.array_types import Floats, Ints
from conformesh.graph.network import Network
from conformesh.graph.weights import Weights

_UNIT_ROUNDOFF = 2.0**-53  # relative error of a number on a wire of 64 bits
_PRIME = 2**31 - 1  # products of two remainders fit into 63 bits
# Relative cuts of singular values that are tried. A small cut keeps more equations and amplifies noise more; for each
# device the cut with the smallest error bound counts.
_CUTS = 10.0 ** -np.arange(6, 16)
MOST_SOLVED_DEVICES = 400  # devices; exact elimination takes time of the third power of their number


class _Overheard(NamedTuple):
    """What the neighbours of a listener said in one round: who spoke, and the values of each, or its bytes."""

    round: int
    kind: str
    senders: Ints
    values: Any


class Eavesdropper:
    """An observer of the simulator that keeps what some devices of a mesh receive.

    On a mesh a device sends every message to all its neighbours, also where only one of them needs it.

    Parameters
    ----------
    network
        Who may talk to whom.
    rows
        Who listens. What these say themselves is kept as well: they know it.

    Attributes
    ----------
    near
        Rows of the listeners and of their neighbours, ascending.
    heard
        What was said, one entry for each round in which any of these spoke.
    """

    def __init__(self, network: Network, rows: Sequence[int]) -> None:
        self.near = with_neighbours(network, rows)
        self.heard: list[_Overheard] = []

    def __call__(self, round_: int, message: Any, answer: Any) -> None:
        """Take note of a round; what goes to a server is heard by nobody else."""
        if (kind := type(message).__name__.lower()) == "pool":
            return
        speakers = getattr(message, "speakers", None)
        everybody = np.arange(len(message.values)) if speakers is None else message.places
        which = np.flatnonzero(np.isin(everybody, self.near))
        if len(which):
            packets = getattr(message, "packets", None)
            said: Any = (
                np.array(message.values[everybody[which]]) if packets is None else [packets[i] for i in which.tolist()]
            )
            self.heard.append(_Overheard(round_, kind, everybody[which], said))


def with_neighbours(network: Network, rows: Sequence[int]) -> Ints:
    """Return these devices and their neighbours, ascending: whose words the devices know."""
    near = [network.neighbours(row).astype(np.int64) for row in rows]
    return np.unique(np.concatenate([np.asarray(rows, dtype=np.int64), *near]))


@dataclass(frozen=True, eq=False)
class _Recovered:
    """What an attack found out.

    Attributes
    ----------
    counts
        The counts of every device as far as they can be guessed, (devices, numbers).
    certain
        Of whom they are exact, (devices,).
    errors
        By how much a count of each device may be off, (devices,).
    """

    counts: Ints
    certain: NDArray[np.bool_]
    errors: Floats

    def __len__(self) -> int:
        return int(self.certain.sum())


def recover_counts(coefficients: Floats, values: Floats, noise: ArrayLike, sizes: Ints) -> _Recovered:
    """Solve for the counts at ascending thresholds of all devices, from linear combinations of them.

    Parameters
    ----------
    coefficients
        Of each equation, (equations, devices).
    values
        What the combinations are, (equations, numbers).
    noise
        By how much each of them may be off: one number, or one for each equation.
    sizes
        How many scores every device holds, or may hold at most: counts lie between 0 and that, and ascend. Where they
        do not, the equations are not what was said: nothing is certain then.
    """
    u, s, vt = np.linalg.svd(coefficients, full_matrices=False)
    # Error of the decomposition itself: as if coefficients were that far off.
    own = 8 * _UNIT_ROUNDOFF * s[0] * float(np.linalg.norm(sizes))
    noises = np.broadcast_to(np.asarray(noise, dtype=np.float64), len(coefficients)) + own
    devices = coefficients.shape[1]
    counts, errors = np.zeros((devices, values.shape[1])), np.full(devices, np.inf)
    for cut in _CUTS:  # what is left out leaks, and what is kept lets errors grow: for each device the better of these
        kept = s > cut * s[0]
        inverse = (vt[kept].T / s[kept]) @ u[:, kept].T
        leak = np.abs(vt[kept].T @ vt[kept] - np.eye(devices)) @ sizes
        bound = leak + np.abs(inverse) @ noises
        better = bound < errors
        counts[better], errors[better] = (inverse @ values)[better], bound[better]
    whole = np.rint(counts)
    near = (np.abs(counts - whole) <= np.minimum(errors, 0.5)[:, None]).all(axis=1)
    ascending = (np.diff(whole, axis=1) >= 0).all(axis=1) & (whole[:, 0] >= 0) & (whole[:, -1] <= sizes)
    return _Recovered(whole.astype(np.int64), near & ascending & (errors < 0.5), errors)


def recover_histograms(
    network: Network,
    weights: Weights,
    ear: Eavesdropper,
    sizes: ArrayLike,
    *,
    eta: float = 1.0,
    rounds: int | None = None,
    unit: float = _UNIT_ROUNDOFF,
) -> _Recovered:
    """Recover everybody's cumulative histogram from what a listener heard of H-DCP by plain gossip.

    Parameters
    ----------
    network, weights, eta
        What everybody knows: the map, the consensus matrix and the update rate.
    ear
        What was heard; of it the sums of histograms are used, the last messages of their length.
    sizes
        How many scores every device holds, which is flooded before a run.
    rounds
        Use so many rounds only; by default all.
    unit
        The relative error of a number on the wire.
    """
    held = np.asarray(sizes, dtype=np.int64)
    said = [one.values.reshape(len(one.values), -1) for one in ear.heard if one.kind == "sum"]
    said = [one for one in said if one.shape == said[-1].shape][:rounds]
    if not said:
        raise ValueError("no sum was heard: recover_histograms needs a run of h-dcp with consensus 'gossip'")
    values = np.concatenate(said) * (held.sum() / network.devices)  # of counts again: y is K / n times these
    rows = np.concatenate([*_gossip_rows(network, weights, ear.near, len(said), eta)])
    largest = np.abs(values).max()
    each = unit * largest * (network.largest_degree + 8)  # of one round: sums over neighbours, a product, a difference
    noise = each * np.repeat(np.arange(1, len(said) + 1), len(ear.near)) * 2  # as much again for the coefficients
    return recover_counts(rows, values, noise, held)


def _gossip_rows(network: Network, weights: Weights, near: Ints, rounds: int, eta: float = 1.0) -> Iterator[Floats]:
    """Yield, round by round, with which coefficients everybody's first value is in what these devices say."""
    matrix = (1 - eta) * np.eye(network.devices) + eta * weights.matrix(network).toarray()
    power = np.eye(network.devices)
    for _ in range(rounds):
        yield power[near]
        power = power @ matrix


def tree_attack_coefficients(parent: Ints, near: Ints) -> Floats:
    """Return of whom the sums are that these devices say on the way up a tree: everybody below each, and itself."""
    below = np.zeros((len(parent), len(parent)))
    for row in range(len(parent)):
        at = row
        while at >= 0:
            below[at, row] = 1.0
            at = int(parent[at])
    return below[near]


def observable_devices(
    network: Network, rows: Sequence[int], rounds: int | None = None, weights: Weights | None = None
) -> tuple[Ints, int]:
    """Return whose first values follow from what these devices hear of gossip, and after how many rounds.

    Exact, by elimination modulo a prime: what is said of W holds for every averaging by the same graph Laplacian
    (accelerated, or in rounds that end), since all of them say polynomials of it. Without `weights` all edges weigh
    alike. Devices that are not returned are known by sums only.
    """
    if network.devices > MOST_SOLVED_DEVICES:
        raise ValueError(
            f"what can be observed is worked out up to {MOST_SOLVED_DEVICES} devices, got {network.devices:,}"
        )
    step, basis = _mixing(network, weights), _Basis(network.devices)
    news = [np.eye(1, network.devices, row, dtype=np.int64)[0] for row in with_neighbours(network, rows).tolist()]
    used = 0
    while news and (rounds is None or used < rounds):
        added = [vector for vector in map(basis.add, news) if vector is not None]
        used += bool(added)
        news = [(step * vector % _PRIME).sum(axis=1) % _PRIME for vector in added]  # a sum of products would overflow
    return basis.units(), used


def _mixing(network: Network, weights: Weights | None) -> Ints:
    """Return the weighted Laplacian, I - W up to a factor, modulo the prime."""
    if weights is None or isinstance(weights.edge, float):
        edge = np.ones(len(network.indices), dtype=np.int64)
    elif weights.name == "metropolis":
        largest = np.maximum(network.degree[network.receivers], network.degree[network.indices])
        edge = np.array([pow(int(1 + d), -1, _PRIME) for d in largest], dtype=np.int64)
    else:  # every float is a whole number over a power of two
        ratios = [float(w).as_integer_ratio() for w in weights.edge]
        edge = np.array([a * pow(b, -1, _PRIME) % _PRIME for a, b in ratios], dtype=np.int64)
    laplacian = np.zeros((network.devices, network.devices), dtype=np.int64)
    laplacian[network.receivers, network.indices] = (_PRIME - edge) % _PRIME
    laplacian[np.diag_indices(network.devices)] = (_PRIME - laplacian.sum(axis=1)) % _PRIME
    return laplacian


class _Basis:
    """Independent vectors modulo the prime, each with a 1 where all others have a 0: its pivot."""

    def __init__(self, size: int) -> None:
        self.vectors, self.pivots = np.zeros((0, size), dtype=np.int64), np.zeros(0, dtype=np.int64)

    def add(self, vector: Ints) -> Ints | None:
        """Take a vector in; return what is new in it, None if nothing is."""
        known = (vector[self.pivots, None] * self.vectors % _PRIME).sum(axis=0)  # no vector has another's pivot
        vector = (vector - known) % _PRIME
        places = np.flatnonzero(vector)
        if not len(places):
            return None
        pivot = int(places[0])
        vector = vector * pow(int(vector[pivot]), -1, _PRIME) % _PRIME
        self.vectors = (self.vectors - self.vectors[:, pivot, None] * vector) % _PRIME
        self.vectors, self.pivots = np.vstack([self.vectors, vector]), np.append(self.pivots, pivot)
        return vector

    def units(self) -> Ints:
        """Return which unit vectors are combinations of these: those that stand in the basis as they are."""
        alone = np.count_nonzero(self.vectors, axis=1) == 1
        return np.sort(self.pivots[alone])
