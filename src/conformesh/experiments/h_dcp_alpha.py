"""Figure 4: H-DCP against the coverage level, on five graphs.

Reproduces  [Wen2025] Section 6.3, Figure 4:
            coverage and set size of H-DCP (T = 150, M = 1000, eta = 1) for 1 - alpha = 0.1 ... 0.9
Data        CIFAR-100 outputs, K = 20 devices with 5 classes each, 10 draws
Cost        about 2 s a case on 2 cores
Expected    as released, at 0.9: 100 / 100 / 12.1 / 12.1 / 12.1 labels on chain / cycle / star / torus / complete
"""

from __future__ import annotations

from conformesh.experiments.core.experiment import Case, Experiment, Finding
from conformesh.experiments.core.findings import covers, denser_graphs_are_smaller, ranks_suffice
from conformesh.experiments.core.grids import over_levels
from conformesh.experiments.core.points import Point
from conformesh.experiments.core.remarks import COARSE, WRITTEN_H, for_confidences


def points(case: Case) -> list[Point]:
    """Lay out one run per topology, all levels at once."""
    return over_levels(case, "cifar100", 20, "h-dcp", {"rounds": 150, "bins": 1000})


EXPERIMENT = Experiment(
    name="h-dcp-alpha",
    item="Figure 4",
    title="H-DCP against the coverage level",
    data="cifar100",
    about="H-DCP, T = 150, M = 1000, η = 1, best constant weights; K = 20.",
    points=points,
    findings=(
        Finding("H-DCP guarantees coverage without any tuning.", covers()),
        Finding("No threshold falls below the required rank.", ranks_suffice()),
        Finding("Sets are more conservative over graphs with lower connectivity.", denser_graphs_are_smaller()),
    ),
    remarks={"as-written": WRITTEN_H, **for_confidences(COARSE)},
)
