"""Estimates the spectral gap without a map: extreme eigenvalues of the Laplacian by power iteration over messages.

The paper asks only for the gap and points to distributed estimation ([Wen2025] Section 5.2, [Muniraju2020]). Here every
device knows the roster (so K) and its own neighbours, nothing else of the graph.

Each round is one step of three power iterations at once. With B = I - L / (2 d_max):
    v <- B v      decays slowest along the eigenvector of l_min; the constant part is harmless, since we look at L v
    u <- L u      grows fastest along the eigenvector of l_max
    q <- (D+A) q  stays positive, so max_k ((D+A) q)_k / q_k is at least its largest eigenvalue (Collatz-Wielandt)
Every phase ends with one maximum over all devices, which normalises the vectors and lets all see the same ratios;
phases double until the estimates settle.

Assumes     graph connected, smallest id 0 of the roster present
Guarantees  an estimate: power iteration approaches l_min from above and l_max from below, at a rate nobody knows.
            `signless` alone is a true upper bound. A certificate that rests on the others says so.
Message     three numbers per round, nine per round of a maximum; one or two integers per round at the beginning,
            while the devices learn how far apart they are
"""

from __future__ import annotations

import numpy as np

from conformesh.common.array_types import Floats
from conformesh.common.names import unknown_name
from conformesh.common.random_streams import random_stream
from conformesh.graph.network import Network
from conformesh.graph.spectrum import Spectrum
from conformesh.graph.weights import WEIGHTS, Weights, best_constant, constant_weights, weights_from_matrix
from conformesh.protocols.block import Block
from conformesh.protocols.messages import Max, Min, Protocol, Sum

_MAX_ROUNDS = 200_000  # then the estimate is given up: a network with so small a gap needs the map
_FIRST_PHASE = 8  # rounds; phases double, so the start matters little
# A phase that shrinks v by more than this is long enough: v holds the constant part too, and the rest would sink into
# its round-off.
_LOST_DIGITS = 1e-5
_DIVISION_GUARD = 1e-300  # avoids a division by zero where a vector has died out


def agree_on_weights(block: Block, name: str | Weights | Floats, source: str) -> Protocol[Weights]:
    """Return the consensus matrix, its eigenvalues from the map or estimated by message passing.

    `name` is a key of `WEIGHTS`, ready `Weights`, or one's own matrix, which is checked.
    """
    spectrum = (yield from estimate_spectrum(block)) if source == "estimated" and isinstance(name, str) else None
    return known_weights(block.network, name, spectrum)


def known_weights(network: Network, name: str | Weights | Floats, spectrum: Spectrum | None) -> Weights:
    """Return the consensus matrix on a network; with a given spectrum, or the map's."""
    if isinstance(name, Weights):
        return name
    if not isinstance(name, str):
        return weights_from_matrix(network, name)
    return WEIGHTS[name](network) if spectrum is None else constant_weights(network, spectrum)


def check_consensus_weights(name: str | Weights | Floats, source: str) -> None:
    """Refuse an unknown name, and estimated eigenvalues for a matrix that they do not determine."""
    if not isinstance(name, str):
        return
    if name not in WEIGHTS:
        raise ValueError(unknown_name("weights", name, WEIGHTS))
    if source == "estimated" and WEIGHTS[name] is not best_constant:
        raise ValueError(f"spectrum='estimated' goes with weights='best-constant', got {name!r}")


def estimate_spectrum(block: Block, tolerance: float = 1e-3, seed: int = 0) -> Protocol[Spectrum]:
    """Estimate l_max, l_min and the largest eigenvalue of D+A, each changing by less than `tolerance` over a doubling.

    l_min and l_max are then widened by four times `tolerance` in the careful direction: l_min down, l_max up.
    """
    if block.devices == 1:
        return Spectrum(largest=0.0, smallest=0.0, signless=0.0, source="estimated")
    reach, top = yield from _bound_diameter(block)
    noise = np.array([random_stream(seed, "spectral", int(k)).standard_normal(2) for k in block.rows])
    x = np.concatenate([noise, np.ones((len(block.rows), 1))], axis=1)  # columns v, u, q
    scale = np.array([2.0 * top, 2.0 * top, 2.0 * top])  # of B, then of L and D+A: their last estimates

    rounds, phase = 0, _FIRST_PHASE
    previous = np.zeros(3)
    while rounds < _MAX_ROUNDS:
        x, facts = yield from _power_iterations(x, block, phase, scale)
        for _ in range(reach):
            facts = yield Max(facts, shared=True)
        old_v, old_u, new_v, new_u, signless, v_top, minus_v_bottom, u_top, q_top = facts[0]
        shrink = new_v / old_v if old_v > 0 else 0.0
        estimates = np.array([scale[0] * (1 - shrink), scale[1] * new_u / old_u, signless])
        rounds += phase + reach
        if (np.abs(estimates - previous) <= tolerance * estimates).all():
            low = float(estimates[0]) * (1 - 4 * tolerance)
            high = min(float(estimates[1]) * (1 + 4 * tolerance), 2.0 * top)
            return Spectrum(largest=max(low, high), smallest=low, signless=float(signless), source="estimated")
        previous = estimates
        scale[1:] = estimates[1:]
        x[:, 0] = (x[:, 0] - (v_top - minus_v_bottom) / 2) / max((v_top + minus_v_bottom) / 2, _DIVISION_GUARD)
        x[:, 1:] /= np.array([u_top, q_top])
        if shrink**phase > _LOST_DIGITS:
            phase *= 2
    raise RuntimeError(f"the spectral gap did not settle within {_MAX_ROUNDS:,} rounds; use the map (spectrum='map')")


def _power_iterations(x: Floats, block: Block, rounds: int, scale: Floats) -> Protocol[tuple[Floats, Floats]]:
    """Run the three power iterations for some rounds; return the vectors and what one maximum must agree on."""
    degree = block.degree[:, None]
    sign = np.array([-1.0, -1.0, 1.0])  # L v, L u, (D+A) q
    last = image = before = x
    for _ in range(rounds):
        neighbours = yield Sum(x, shared=True)
        before, image, last = image, degree * x + sign * neighbours, x
        x = np.column_stack([x[:, 0] - image[:, 0] / scale[0], image[:, 1:] / scale[1:]])
    ratio = image[:, 2] / last[:, 2]
    facts = [np.abs(before[:, :2]), np.abs(image[:, :2]), ratio[:, None], x[:, :1], -x[:, :1], np.abs(x[:, 1:])]
    return x, np.concatenate(facts, axis=1)


def _bound_diameter(block: Block) -> Protocol[tuple[int, int]]:
    """Learn an upper bound of the diameter and the largest degree, from the roster alone.

    Distances to the first device of the roster spread in at most K - 1 rounds; twice the largest bounds the diameter.
    """
    far = block.devices  # more than any distance
    distance = np.where(block.rows == 0, 0, far).astype(np.int64)
    for _ in range(block.devices - 1):
        heard = yield Min(distance, shared=True)
        distance = np.minimum(distance, heard + 1)
    facts = np.stack([distance, block.degree.astype(np.int64)], axis=1)
    for _ in range(block.devices - 1):
        facts = yield Max(facts, shared=True)
    return min(2 * int(facts[0, 0]), block.devices - 1), int(facts[0, 1])
