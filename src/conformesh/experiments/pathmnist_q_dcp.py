"""Figure 16: Q-DCP on PathMNIST.

Reproduces  [Wen2025] Appendix B.6, Figure 16:
            Q-DCP (T = 8000, kappa = mu = 2000, epsilon0 = 0.1) for 1 - alpha = 0.1 ... 0.9
Data        PathMNIST outputs, K = 8 devices: classes 0 to 6 one each, 7 and 8 together; 10 draws of a tenth of the rows
Cost        about 25 s a case on 2 cores
Expected    coverage **below** 1 - alpha: .858 at 0.9. s0, the average of the local quantiles, is far below the quantile
"""

from __future__ import annotations

from conformesh.experiments.core.experiment import Case, Experiment, Finding
from conformesh.experiments.core.findings import covers, ranks_suffice
from conformesh.experiments.core.grids import over_levels
from conformesh.experiments.core.points import Point
from conformesh.experiments.core.remarks import ANCHORED


def points(case: Case) -> list[Point]:
    """Lay out one run per topology, all levels at once."""
    return over_levels(case, "pathmnist", 8, "q-dcp", {"rounds": case.rounds(8000), "epsilon0": 0.1})


EXPERIMENT = Experiment(
    name="pathmnist-q-dcp",
    item="Figure 16",
    title="Q-DCP on PathMNIST",
    data="pathmnist",
    about="Q-DCP, T = 8000, κ = μ = 2000, ε₀ = 0.1, s₀ the average of the local quantiles; K = 8.",
    points=points,
    findings=(
        Finding("Q-DCP is confirmed on PathMNIST: it covers.", covers()),
        Finding("Assumption 4.1 is satisfied, so that no threshold falls below the required rank.", ranks_suffice()),
    ),
    remarks={"as-written": ANCHORED, "as-released": ANCHORED},
)
