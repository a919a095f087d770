"""Figure 15: what the number of levels M of H-DCP does.

Reproduces  [Wen2025] Appendix B.5, Figure 15:
            H-DCP (T = 150) on five graphs at alpha = 0.1, against M
Data        CIFAR-100 outputs, K = 20 devices with 5 classes each, 10 draws
Cost        about 5 s a case on 2 cores
Expected    smaller sets with more levels on well-connected graphs; full sets with more levels where the bound is loose
"""

from __future__ import annotations

from conformesh.experiments.core.experiment import Axis, Case, Experiment, Finding
from conformesh.experiments.core.findings import covers, finer_helps_where_connected
from conformesh.experiments.core.grids import over_values
from conformesh.experiments.core.points import Point
from conformesh.experiments.core.remarks import COARSE, WRITTEN_H, for_confidences

BINS = (10, 20, 50, 100, 200, 500, 1000, 2000, 5000)


def points(case: Case) -> list[Point]:
    """Lay out a run per topology and number of levels."""
    return over_values(case, "cifar100", 20, "h-dcp", {"rounds": 150}, "bins", case.thinned(BINS, keep=4))


EXPERIMENT = Experiment(
    name="ablation-bins",
    item="Figure 15",
    title="H-DCP against its quantisation levels M",
    data="cifar100",
    about="α = 0.1, T = 150, η = 1; K = 20.",
    points=points,
    axis=Axis("quantisation levels M", log=True),
    findings=(
        Finding("H-DCP covers for every M.", covers()),
        Finding(
            "More levels help on well-connected graphs and cost efficiency on poorly connected ones.",
            finer_helps_where_connected(),
        ),
    ),
    remarks={"as-written": WRITTEN_H, **for_confidences(COARSE)},
)
