"""What the methods that average would send: H-DCP, Q-DCP and the naive average."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from functools import lru_cache
from typing import cast

import numpy as np
from numpy.typing import NDArray

from conformesh.engines.simulator import Simulator
from conformesh.graph.network import Network
from conformesh.graph.spectrum import Spectrum
from conformesh.graph.weights import WEIGHTS, Weights, constant_weights
from conformesh.planning.e_dcp import mixed_stages
from conformesh.planning.phases import Phase
from conformesh.planning.prediction import Prediction, hops
from conformesh.planning.sums import EVERYTHING, USES, setting_up, sum_by
from conformesh.planning.terrain import Terrain
from conformesh.promises import conformal_rank
from conformesh.protocols.anchor import ANCHORS, averaging_rounds
from conformesh.protocols.averages import WAYS, Gossip
from conformesh.protocols.baselines import Averaged
from conformesh.protocols.e_dcp import ways_to_add
from conformesh.protocols.h_dcp import HDCP, consensus_rounds
from conformesh.protocols.q_dcp import QDCP, rounds_of_a_run
from conformesh.protocols.site import Site
from conformesh.protocols.spectral import estimate_spectrum
from conformesh.protocols.wire import Wire
from conformesh.result.certificate import Cost, Kind

ESTIMATED_UP_TO = 3000  # devices: estimating the spectrum does not depend on scores, so it is run; beyond, that is long
AVERAGING = frozenset({"hops", "spectrum"})


def predict_h_dcp(terrain: Terrain, alpha: Fraction, options: HDCP, shape: str = "any") -> Prediction:
    """Predict the phases of `protocols.h_dcp.h_dcp`: no score matters, but the range must be finite."""
    before, spectrum = _spectrum(terrain, options.spectrum)
    way: Gossip = WAYS[options.consensus](terrain.site, _weights(terrain, options, spectrum), options)
    start = _of_all(terrain, way.start)
    rounds, _ = consensus_rounds(way, options, [(start, terrain.n)])
    phases = list(before)
    if options.range is None:
        phases.append(hops(terrain, "agree on a range", 2, options.wire, 2))
    phases.append(Phase("average the histogram", rounds, options.bins, options.wire, dimensions=2))
    kind, loose = _h_dcp_claim(terrain, alpha, options, way, rounds)
    words = ""
    if options.spectrum == "estimated":
        kind, words = "assumed", "the spectral gap estimated by message passing is not larger than the true one"
    return Prediction(tuple(phases), kind, words, AVERAGING, useful=not loose, notes=loose)


def _h_dcp_claim(
    terrain: Terrain, alpha: Fraction, options: HDCP, way: Gossip, rounds: int
) -> tuple[Kind, tuple[str, ...]]:
    """Say whether the counts would be exact, and whether the bound says anything."""
    n = terrain.n
    rank = conformal_rank(n, alpha, terrain.devices)
    if rank > n:
        return "counted", ()
    wire = Wire(options.wire)
    epsilon = _of_all(terrain, lambda sizes: sum(way.epsilon(sizes, rounds, wire)))
    if options.rounding and n * epsilon < 0.5:
        return "counted", ()
    if rank + n * epsilon > n:
        return "bounded", (f"the error bound would be {epsilon:.2g}, so loose that sets hold all calibration scores",)
    return "bounded", ()


def _of_all(terrain: Terrain, bound: Callable[[NDArray[np.int64]], float]) -> float:
    """Return an error bound for all devices; for equal ones it grows as the square root of their number."""
    if terrain.sizes is not None:
        return bound(terrain.sizes)
    return bound(np.array([terrain.most])) * math.sqrt(terrain.devices)


def predict_average(terrain: Terrain, alpha: Fraction, options: Averaged, shape: str = "any") -> Prediction:
    """Predict the phases of `protocols.baselines.average`."""
    before, spectrum = _spectrum(terrain, options.spectrum)
    phases = [*before, *_agreed_mean(terrain, spectrum, options.averaging, options.wire, "average the quantiles")]
    return Prediction(tuple(phases), "none", "an average of quantiles is not a quantile", AVERAGING)


def predict_q_dcp(terrain: Terrain, alpha: Fraction, options: QDCP, shape: str = "any") -> Prediction:
    """Predict the phases of `protocols.q_dcp.q_dcp`."""
    before, spectrum = _spectrum(terrain, options.spectrum)
    phases, wire = list(before), options.wire
    uses = AVERAGING
    if str(options.s0) == "min":
        phases.append(hops(terrain, "agree on s0", 1, wire, 2))
    elif str(options.s0) in ANCHORS:
        phases += _agreed_mean(terrain, spectrum, options.averaging, wire, "average s0")
    if options.continuation:
        phases.append(hops(terrain, "agree on the spread", 2, wire, 3))
    run = [Phase("ADMM", rounds_of_a_run(options), 1, wire, dimensions=2)]
    run += _agreed_mean(terrain, spectrum, options.averaging, wire, "average the result")
    phases += [phase.times(max(options.continuation, 1)) for phase in run]
    if not (options.certify or options.continuation):
        words = f"|s0 - s*| <= epsilon0 = {options.epsilon0:g}, which nobody checks"
        return Prediction(tuple(phases), "assumed" if wire == 64 else "none", words, uses)
    return _certified(terrain, alpha, options, phases, shape)


def _certified(terrain: Terrain, alpha: Fraction, options: QDCP, phases: list[Phase], shape: str) -> Prediction:
    """Add the count of the estimate's rank; it falls short in about half of all runs, and a search goes on upward."""
    name = ways_to_add(terrain.site, options.aggregate, "balanced", 1)[0]
    total, n = sum_by(name, terrain), terrain.n
    rank = conformal_rank(n, alpha, terrain.devices)
    uses, facts = AVERAGING | USES.get(name, EVERYTHING), {"sums_by": name}
    phases += setting_up(name, terrain)
    if rank > n:
        return Prediction(tuple(phases), "counted", uses=uses, facts=facts)
    phases += total("count the estimate", 1, n)
    found = mixed_stages(terrain, rank, 1, shape)
    half = [hops(terrain, "agree on the ends", 2, 64, 2), hops(terrain, "name the answer", 1, 64)]
    half += [phase.times(float(found.stages.mean())) for phase in total("a stage", 1, n)]
    phases += [phase.times(0.5) for phase in half]
    return Prediction(tuple(phases), "counted", uses=uses, varies=True, facts=facts)


def _agreed_mean(terrain: Terrain, spectrum: Spectrum, given: int | None, wire: int, what: str) -> list[Phase]:
    rounds = averaging_rounds(terrain.site, spectrum, given)
    return [Phase(what, rounds, 1, wire, dimensions=2), hops(terrain, what, 1, wire, 2)]


def _weights(terrain: Terrain, options: HDCP, spectrum: Spectrum) -> Weights:
    """Return the consensus matrix, of a sketch only its eigenvalues."""
    if isinstance(options.weights, Weights):
        return options.weights
    if isinstance(terrain.map, Network) and isinstance(options.weights, str):
        if options.spectrum == "estimated":
            return constant_weights(terrain.map, spectrum)
        return WEIGHTS[options.weights](terrain.map)
    if options.weights == "best-constant":
        step = 2 / (spectrum.largest + spectrum.smallest)
    elif options.weights == "max-degree":
        step = 1 / (terrain.map.largest_degree + 1)
    else:
        raise ValueError(f"the eigenvalues of {options.weights} weights need the network itself; it is too large")
    second, smallest = 1 - step * spectrum.smallest, 1 - step * spectrum.largest
    return Weights(str(options.weights), step, np.zeros(0), second, smallest, spectrum.source)


def _spectrum(terrain: Terrain, source: str) -> tuple[list[Phase], Spectrum]:
    """Return the spectrum as the devices would know it, and what they would send for it."""
    if source == "map":
        return [], terrain.site.network.spectrum
    if terrain.built is None or terrain.devices > ESTIMATED_UP_TO:
        raise ValueError(
            f"what estimating the spectrum sends is known by running it, up to {ESTIMATED_UP_TO:,} devices; use the map"
        )
    spectrum, cost = _estimated(terrain.built)
    numbers = cost.numbers_per_device / cost.rounds if cost.rounds else 0.0
    return [Phase("estimate the spectrum", cost.rounds, numbers, 64)], spectrum


@lru_cache(maxsize=8)
def _estimated(network: Network) -> tuple[Spectrum, Cost]:
    site = Site.everywhere(network, np.zeros((network.devices, 1), dtype=np.int64))
    return cast(tuple[Spectrum, Cost], Simulator(network).run(estimate_spectrum(site)))
