"""Figure 8: Q-DCP with 100 devices, one class each.

Reproduces  [Wen2025] Appendix B.3, Figure 8:
            Q-DCP (T = 3000, kappa = mu = 2000, epsilon0 = 0.5) for 1 - alpha = 0.1 ... 0.9
Data        CIFAR-100 outputs, K = 100 devices with one class each, 10 draws of 1000 calibration rows
Cost        about 60 s a case on 2 cores
Expected    near CP on the well-connected graphs; full sets on the chain. n_k is 10 on average, so that K/n = 0.1
"""

from __future__ import annotations

from conformesh.experiments.core.experiment import Case, Experiment, Finding
from conformesh.experiments.core.findings import covers, ranks_suffice
from conformesh.experiments.core.grids import over_levels
from conformesh.experiments.core.points import Point
from conformesh.experiments.core.remarks import ANCHORED, FULL_SETS, for_confidences


def points(case: Case) -> list[Point]:
    """Lay out one run per topology, all levels at once."""
    return over_levels(case, "cifar100", 100, "q-dcp", {"rounds": case.rounds(3000), "epsilon0": 0.5})


EXPERIMENT = Experiment(
    name="q-dcp-large",
    item="Figure 8",
    title="Q-DCP with 100 devices",
    data="cifar100",
    about="Q-DCP, T = 3000, κ = μ = 2000, ε₀ = 0.5, s₀ the average of the local quantiles; K = 100, one class each.",
    points=points,
    findings=(
        Finding("Q-DCP covers on a larger network.", covers()),
        Finding("Assumption 4.1 is satisfied, so that no threshold falls below the required rank.", ranks_suffice()),
    ),
    remarks={"as-written": ANCHORED, "as-released": ANCHORED, **for_confidences(FULL_SETS)},
)
