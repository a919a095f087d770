"""Figure 17: H-DCP on PathMNIST.

Reproduces  [Wen2025] Appendix B.6, Figure 17:
            H-DCP (T = 80, M = 100) for 1 - alpha = 0.1 ... 0.9
Data        PathMNIST outputs, K = 8 devices: classes 0 to 6 one each, 7 and 8 together; 10 draws of a tenth of the rows
Cost        about 2 s a case on 2 cores
Expected    coverage at least 1 - alpha, about .914 at 0.9 on the well-connected graphs
"""

from __future__ import annotations

from conformesh.experiments.core.experiment import Case, Experiment, Finding
from conformesh.experiments.core.findings import covers, ranks_suffice
from conformesh.experiments.core.grids import over_levels
from conformesh.experiments.core.points import Point


def points(case: Case) -> list[Point]:
    """Lay out one run per topology, all levels at once."""
    return over_levels(case, "pathmnist", 8, "h-dcp", {"rounds": 80, "bins": 100})


EXPERIMENT = Experiment(
    name="pathmnist-h-dcp",
    item="Figure 17",
    title="H-DCP on PathMNIST",
    data="pathmnist",
    about="H-DCP, T = 80, M = 100, η = 1; K = 8.",
    points=points,
    findings=(
        Finding("H-DCP is confirmed on PathMNIST: it covers.", covers()),
        Finding("No threshold falls below the required rank.", ranks_suffice()),
    ),
    remarks={
        "as-written": "the code's 100 levels span the range of the outputs, which is wider than that of the scores, "
        "and test outputs are rounded up: its sets are larger",
    },
)
