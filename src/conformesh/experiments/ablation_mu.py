"""Figure 13: what the regulariser mu of Q-DCP does, with the paper's s0 and epsilon0.

Reproduces  [Wen2025] Appendix B.4, Figure 13:
            Q-DCP (T = 1000, kappa = 2000, epsilon0 = 0.1, s0 the average) on the torus at alpha = 0.1, against mu
Data        CIFAR-100 outputs, K = 20 devices with 5 classes each, 10 draws
Cost        about 2 s a case on 2 cores
Expected    larger sets for small mu, for which T = 1000 is too few
"""

from __future__ import annotations

from conformesh.experiments.core.experiment import Axis, Case, Experiment, Finding
from conformesh.experiments.core.findings import size_falls
from conformesh.experiments.core.grids import STEPS, over_values
from conformesh.experiments.core.points import Point
from conformesh.experiments.core.remarks import FULL_SETS, WRITTEN_Q, for_confidences


def points(case: Case) -> list[Point]:
    """Lay out a run per mu."""
    return over_values(
        case, "cifar100", 20, "q-dcp", {"rounds": 1000, "epsilon0": 0.1}, "mu", case.thinned(STEPS, keep=4), ("torus",)
    )


EXPERIMENT = Experiment(
    name="ablation-mu",
    item="Figure 13",
    title="Q-DCP against its regulariser μ",
    data="cifar100",
    about="Torus, α = 0.1, T = 1000, κ = 2000, ε₀ = 0.1, s₀ the average of the local quantiles.",
    points=points,
    axis=Axis("regulariser μ", log=True),
    findings=(Finding("A small μ converges slowly, which makes the sets conservative.", size_falls("torus")),),
    remarks={"as-written": WRITTEN_Q, **for_confidences(FULL_SETS)},
)
