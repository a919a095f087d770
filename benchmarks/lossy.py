"""Networks that lose messages: rounds until projection gossip is right, and Q-DCP with 100,000 devices.

Error bounds of tracked weights depend on who heard whom and on how many scores devices hold, never on the scores.
"""

from __future__ import annotations

import resource
import time
from fractions import Fraction

import numpy as np
from harness import Row, Series

from conformesh import Faults, Network, Table, calibrate
from conformesh.engines import Simulator
from conformesh.graph.weights import metropolis
from conformesh.kernels.weighted_scores import WeightedScores
from conformesh.protocols.block import Block
from conformesh.protocols.bounds.tracked_weights import tracked_epsilon
from conformesh.protocols.messages import Protocol
from conformesh.protocols.projection_gossip import ProjectionGossip

N = 1000  # scores, on 20 devices
AIMS = (0.01, 1 / (2 * N))  # of the error bound: one in a hundred, and half a score
MOST = 1000  # rounds
MIXTURES = {"chain": (94, 126), "cycle": (51, 83), "star": (15, 27), "torus": (19, 30), "complete": (4, 7)}


def _sizes(devices: int, draw: int) -> np.ndarray:
    rng = np.random.default_rng([7, draw])
    return rng.multinomial(N, rng.dirichlet(np.full(devices, 30.0)))


def _until(errors: list[float]) -> list[float]:
    """Return after how many rounds each aim is reached."""
    return [next((t for t, error in enumerate(errors, 1) if error < aim), np.nan) for aim in AIMS]


def _projection(network: Network, sizes: np.ndarray, faults: Faults) -> list[float]:
    samples = WeightedScores.from_flat(np.random.default_rng(0).random(N), sizes)
    block = Block(network, np.arange(network.devices), sizes[:, None], alphas=(Fraction(1, 10),))
    errors: list[float] = []

    def protocol() -> Protocol[None]:
        devices = ProjectionGossip(block, samples, 1, (0.0, 1.0))
        while (not errors or errors[-1] >= AIMS[1]) and len(errors) < MOST:
            devices.hear((yield devices.message()))
            errors.append(float(devices.epsilons(0).max()))

    Simulator(network).run(protocol(), 1, faults)
    return _until(errors)


def _synchronous(network: Network, sizes: np.ndarray) -> list[float]:
    """Metropolis gossip that loses nothing, with weights tracked: rows of the powers of W."""
    w = metropolis(network).matrix(network).toarray() if network.devices > 1 else np.ones((1, 1))
    rows, errors = np.eye(network.devices), []
    while (not errors or errors[-1] >= AIMS[1]) and len(errors) < 3 * MOST:
        rows = w @ rows
        scaled = network.devices * rows
        errors.append(float(tracked_epsilon(scaled, 0 * scaled, np.zeros(len(rows)), sizes.astype(float)).max()))
    return _until(errors)


def _said(rounds: np.ndarray) -> str:
    return "/".join(f"{value:g}" for value in np.median(rounds, axis=0))


def _rounds(name: str, draws: int) -> Row:
    network = Network.torus(5, 4) if name == "torus" else Network.of(name, 20)
    start = time.perf_counter()
    found = np.array([_projection(network, _sizes(20, d), Faults(loss=0.3, seed=d)) for d in range(draws)])
    took = (time.perf_counter() - start) / draws
    whole = np.array([_projection(network, _sizes(20, d), Faults()) for d in range(draws)])
    tracked = np.array([_synchronous(network, _sizes(20, d)) for d in range(min(draws, 3))])
    low, high = MIXTURES[name]
    return Row(
        f"projection, {name} of 20, 30 % lost",
        ours=took,
        target=f"at most {low}/{high} rounds",
        met=bool((np.median(found, axis=0) <= MIXTURES[name]).all()),
        note=f"rounds to 1 % / half a score: {_said(found)} (slowest {found.max(axis=0)[1]:g}); nothing lost "
        f"{_said(whole)}; synchronous Metropolis with tracked weights {_said(tracked)}",
    )


def _many(devices: int, rounds: int) -> Row:
    network = Network.random_regular(devices, degree=6, seed=1)
    scores = Table.from_flat(np.random.default_rng(0).random(5 * devices), np.full(devices, 5))
    start = time.perf_counter()
    faults = {"loss": 0.3, "seed": 1}
    found = calibrate(scores, network, 0.1, "q-dcp", asynchronous=True, rounds=rounds, faults=faults)
    took = time.perf_counter() - start
    certificate, peak = found.certificate, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    return Row(
        f"asynchronous q-dcp, {devices:,} devices, 30 % lost",
        ours=took,
        note=f"{found.cost.rounds:,} rounds, {certificate.kind} {certificate.counted_rank:,} where "
        f"{certificate.required_rank:,} of {5 * devices:,} are required, {np.isinf(found.thresholds).sum()} devices "
        f"without an answer; peak of the process {peak:.2g} GB",
    )


def bench(quick: bool = False) -> tuple[list[Row], list[Series]]:
    """Rounds of projection gossip at 30 % loss; Q-DCP over lossy links with many devices."""
    names = ("complete",) if quick else MIXTURES
    rows = [_rounds(name, 2 if quick else 20) for name in names]
    return [*rows, _many(200 if quick else 100_000, 20 if quick else 300)], []
