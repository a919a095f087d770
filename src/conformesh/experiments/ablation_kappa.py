"""Figure 12: what the smoothness kappa of Q-DCP does.

Reproduces  [Wen2025] Appendix B.4, Figure 12:
            Q-DCP (T = 1000, mu = 2000, epsilon0 = 0.1, s0 the average) on the torus at alpha = 0.1, against kappa
Data        CIFAR-100 outputs, K = 20 devices with 5 classes each, 10 draws
Cost        about 2 s a case on 2 cores
Expected    larger sets for small kappa (a blurred loss) and for large kappa (slow convergence)
"""

from __future__ import annotations

from conformesh.experiments.core.experiment import Axis, Case, Experiment, Finding
from conformesh.experiments.core.findings import is_u_shaped
from conformesh.experiments.core.grids import STEPS, over_values
from conformesh.experiments.core.points import Point
from conformesh.experiments.core.remarks import FULL_SETS, WRITTEN_Q, for_confidences

KAPPAS = (1.0, 2.0, 5.0, *STEPS)


def points(case: Case) -> list[Point]:
    """Lay out a run per kappa."""
    return over_values(
        case,
        "cifar100",
        20,
        "q-dcp",
        {"rounds": 1000, "epsilon0": 0.1},
        "kappa",
        case.thinned(KAPPAS, keep=4),
        ("torus",),
    )


EXPERIMENT = Experiment(
    name="ablation-kappa",
    item="Figure 12",
    title="Q-DCP against its smoothness κ",
    data="cifar100",
    about="Torus, α = 0.1, T = 1000, μ = 2000, ε₀ = 0.1, s₀ the average of the local quantiles.",
    points=points,
    axis=Axis("smoothness κ", log=True),
    findings=(Finding("Small κ and large κ both lead to inefficient sets.", is_u_shaped("torus")),),
    remarks={"as-written": WRITTEN_Q, **for_confidences(FULL_SETS)},
)
