"""Figure 3: Q-DCP against the coverage level with an s0 far off and a small epsilon0.

Reproduces  [Wen2025] Section 6.2, Figure 3:
            Q-DCP (T = 1500) with s0 = -8 - 20 alpha and epsilon0 = 1e-4, where Assumption 4.1 is false
Data        CIFAR-100 outputs, K = 20 devices with 5 classes each, 10 draws
Cost        about 6 s a case on 2 cores
Expected    coverage below the level on star, torus and complete graph, for the larger levels
Departures  that s0 is a logit; with confidences (1 - alpha) / 2 plays its part
"""

from __future__ import annotations

from conformesh.experiments.core.experiment import LEVELS, TOPOLOGIES, Case, Experiment, Finding
from conformesh.experiments.core.findings import covers, misses
from conformesh.experiments.core.points import Point
from conformesh.experiments.core.remarks import WRITTEN_Q


def points(case: Case) -> list[Point]:
    """Lay out a run per topology and level: each level has its own s0."""
    setting = case.setting("cifar100", 20)
    levels = case.thinned(LEVELS)
    alphas = tuple(round(1 - level, 2) for level in levels)
    grid = [
        case.point(
            setting,
            topology,
            "q-dcp",
            {"rounds": 1500, "epsilon0": 1e-4, "s0": _far_off(case, alpha)},
            topology=topology,
            alphas=(alpha,),
        )
        for topology in TOPOLOGIES
        for alpha in alphas
    ]
    return grid + case.references(setting, alphas)


def _far_off(case: Case, alpha: float) -> float:
    return -8 - 20 * alpha if case.scores == "logits" else (1 - alpha) / 2


EXPERIMENT = Experiment(
    name="q-dcp-alpha-bad",
    item="Figure 3",
    title="Q-DCP against the coverage level, Assumption 4.1 not satisfied",
    data="cifar100",
    about="Q-DCP, T = 1500, κ = μ = 2000, ε₀ = 0.0001, s₀ = -8 - 20α (with confidences (1 - α)/2); K = 20.",
    points=points,
    findings=(
        Finding(
            "Q-DCP can fail to reach 1 - α, in particular on graphs with stronger connectivity.",
            misses("star", "torus", "complete"),
        ),
        Finding("The chain, which converges least, still covers.", covers("chain")),
    ),
    remarks={
        "as-written": WRITTEN_Q,
        "as-written, confidences": "scores in [0, 1] leave even the chain little way to go: it settles near s₀ too",
    },
)
