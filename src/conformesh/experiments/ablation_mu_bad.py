"""Figure 14: what the regulariser mu of Q-DCP does, with a poor s0.

Reproduces  [Wen2025] Appendix B.4, Figure 14:
            Q-DCP (T = 1000, kappa = 2000, epsilon0 = 1e-4, s0 the least local quantile) on the torus at alpha = 0.1
Data        CIFAR-100 outputs, K = 20 devices with 5 classes each, 10 draws
Cost        about 2 s a case on 2 cores
Expected    coverage holds for small mu and is lost for large mu, where the estimate hardly leaves s0
"""

from __future__ import annotations

from conformesh.experiments.core.experiment import Axis, Case, Experiment, Finding
from conformesh.experiments.core.findings import covers_at_first_only
from conformesh.experiments.core.grids import STEPS, over_values
from conformesh.experiments.core.points import Point


def points(case: Case) -> list[Point]:
    """Lay out a run per mu."""
    return over_values(
        case,
        "cifar100",
        20,
        "q-dcp",
        {"rounds": 1000, "epsilon0": 1e-4, "s0": "min"},
        "mu",
        case.thinned(STEPS, keep=4),
        ("torus",),
    )


EXPERIMENT = Experiment(
    name="ablation-mu-bad",
    item="Figure 14",
    title="Q-DCP against its regulariser μ, poor s₀ and ε₀",
    data="cifar100",
    about="Torus, α = 0.1, T = 1000, κ = 2000, ε₀ = 0.0001, s₀ the least of the local quantiles.",
    points=points,
    axis=Axis("regulariser μ", log=True),
    findings=(
        Finding("Small μ covers, large μ keeps the solution at s₀ and does not.", covers_at_first_only("torus")),
    ),
)
