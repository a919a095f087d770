"""A point: one run of the simulator, over all its draws and alphas at once, named by all that decides its numbers."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, field
from functools import cache
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from conformesh.engines.simulator import Simulator
from conformesh.experiments.core.conventions import CONVENTIONS, Conditions
from conformesh.experiments.core.settings import Draws, Setting, Source, draws_of
from conformesh.graph.network import Network
from conformesh.graph.weights import constant_weights
from conformesh.kernels.ranks import exact_alpha, requirement_in
from conformesh.methods import PUBLISHED, get_method
from conformesh.protocols.site import Site
from conformesh.solver import solve_draws
from conformesh.sweeping.provenance import NUMBERS, digest_of_code

Floats = NDArray[np.float64]
Variant = Literal["as-written", "as-released"]
VARIANTS: tuple[Variant, ...] = ("as-written", "as-released")
DECIMALS = 1  # the code behind the figures rounds the mean set size of a draw to a tenth of a label


@dataclass(frozen=True)
class Point:
    """One run of one method in one setting.

    Attributes
    ----------
    experiment, variant
        What it belongs to.
    setting
        Data, devices and draws.
    line
        The line of the figure, as in its legend.
    method, options
        A method of the library or one of `conventions`, with its options, and a target and a rank where these are not
        the published ones.
    topology
        The graph; a torus of K devices is (K/4) x 4.
    alphas
        All levels of the run.
    x
        Where it stands on the axis: "bits" for what each device sent, None for the coverage level 1 - alpha.
    draws
        Which draws of the setting; by default all.
    graph_seed
        Of a random graph.
    """

    experiment: str
    variant: Variant
    setting: Setting
    line: str
    method: str
    options: dict[str, Any] = field(default_factory=dict)
    topology: str = "torus"
    alphas: tuple[float, ...] = (0.1,)
    x: float | Literal["bits"] | None = None
    draws: tuple[int, ...] | None = None
    graph_seed: int = 0

    def key(self, data_digest: str) -> str:
        """Return what names this point's numbers: its fields, the data and the code that computes them."""
        words = json.dumps([asdict(self), data_digest, code_digest()], sort_keys=True)
        return hashlib.sha256(words.encode()).hexdigest()[:20]


DECIDING = (  # the files of the package that numbers depend on, beside what a point says itself
    *NUMBERS,
    "experiments/core/conventions.py",
    "experiments/core/points.py",
    "experiments/core/settings.py",
)


@cache
def code_digest() -> str:
    """Return a digest of every file that decides numbers, so that a changed method never meets old results."""
    return digest_of_code(DECIDING)


def network_of(point: Point) -> Network:
    """Return the graph of a point."""
    K = point.setting.devices
    if point.topology == "torus":
        if K % 4:
            raise ValueError(f"the paper's torus has (K/4) x 4 devices, got K = {K}")
        return Network.torus(K // 4, 4)
    options: dict[str, Any] = {"p": 0.5} if point.topology == "erdos-renyi" else {}
    return Network.of(point.topology, K, seed=point.graph_seed, **options)


def compute(point: Point, source: Source) -> list[dict[str, Any]]:
    """Run a point and measure its thresholds on the test rows: one row per draw and alpha."""
    draws = draws_of(source, point.setting)
    network = network_of(point)
    result = _run(point, draws, network)
    coverage, size = draws.measure(result["thresholds"], point.draws)
    margin = draws.rank_margin(result["thresholds"], point.alphas, point.draws)
    if point.variant == "as-released" and point.method in CONVENTIONS:
        size = np.round(size, DECIMALS)
    gap = constant_weights(network, network.spectrum).gap
    which = range(point.setting.draws) if point.draws is None else point.draws
    return [
        {
            "line": point.line,
            "x": _place(point, alpha, result["bits"]),
            "alpha": float(alpha),
            "draw": draw,
            "coverage": float(coverage[t, a]),
            "size": float(size[t, a]),
            "classes": draws.classes,
            "threshold": float(result["thresholds"][:, t, a].max()),
            "epsilon": None if result["epsilon"] is None else float(result["epsilon"][t, a]),
            "rank_margin": int(margin[t, a]),
            "certificate": result["certificates"][t][a],
            "rounds": result["rounds"],
            "bits": result["bits"],
            "gap": gap,
        }
        for t, draw in enumerate(which)
        for a, alpha in enumerate(point.alphas)
    ]


def _place(point: Point, alpha: float, bits: float) -> float:
    if point.x is None:
        return float(1 - exact_alpha(alpha))
    return bits if point.x == "bits" else float(point.x)


def _run(point: Point, draws: Draws, network: Network) -> dict[str, Any]:
    """Return thresholds (devices, draws, alphas), epsilon, the kinds of certificate, and what a device sent."""
    samples = draws.samples(point.draws)
    convention = CONVENTIONS.get(point.method)
    if convention is None:
        requirement, options = requirement_in(point.options, get_method(point.method).requirement or PUBLISHED)
        batch = solve_draws(samples, network, point.alphas, point.method, requirement=requirement, **options)
        certificates = batch.outcome.certificates
        missing = any(c.epsilon is None for row in certificates for c in row)
        epsilon = None if missing else np.array([[c.epsilon for c in row] for row in certificates])
        kinds = [[c.kind for c in row] for row in certificates]
        bits = float(batch.cost.bits.mean())
        return _result(batch.outcome.thresholds, epsilon, kinds, batch.cost.rounds, bits)
    site = Site.everywhere(network, samples.sizes)
    given = Conditions(tuple(map(exact_alpha, point.alphas)), draws.output_ranges(point.draws))
    kinds = [["none"] * len(point.alphas)] * samples.trials
    if not convention.talks:
        printed = convention.run(site, samples, given, **point.options)
        return _result(printed.thresholds, printed.epsilon, kinds, 0, 0.0)
    runs = samples.trials * (len(point.alphas) if convention.each_alpha else 1)
    printed, cost = Simulator(network).run(convention.run(site, samples, given, **point.options), runs)
    return _result(printed.thresholds, printed.epsilon, kinds, cost.rounds, float(cost.bits.mean()))


def _result(thresholds: Floats, epsilon: Any, certificates: Any, rounds: int, bits: float) -> dict[str, Any]:
    return {
        "thresholds": thresholds,
        "epsilon": epsilon,
        "certificates": certificates,
        "rounds": rounds,
        "bits": bits,
    }
