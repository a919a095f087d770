"""Figure 9: H-DCP with 100 devices, one class each.

Reproduces  [Wen2025] Appendix B.3, Figure 9:
            H-DCP (T = 3000, M = 1000) for 1 - alpha = 0.1 ... 0.9
Data        CIFAR-100 outputs, K = 100 devices with one class each, 10 draws of 1000 calibration rows
Cost        about 60 s a case on 2 cores
Expected    the exact FCP sets, but on the chain, where 3000 rounds are not enough
"""

from __future__ import annotations

from conformesh.experiments.core.experiment import Case, Experiment, Finding
from conformesh.experiments.core.findings import covers, is_close_to, ranks_suffice
from conformesh.experiments.core.grids import over_levels
from conformesh.experiments.core.points import Point
from conformesh.experiments.core.remarks import COARSE, WRITTEN_H, for_confidences


def points(case: Case) -> list[Point]:
    """Lay out one run per topology, all levels at once."""
    return over_levels(case, "cifar100", 100, "h-dcp", {"rounds": case.rounds(3000), "bins": 1000})


EXPERIMENT = Experiment(
    name="h-dcp-large",
    item="Figure 9",
    title="H-DCP with 100 devices",
    data="cifar100",
    about="H-DCP, T = 3000, M = 1000, η = 1; K = 100, one class each.",
    points=points,
    findings=(
        Finding("H-DCP covers on a larger network.", covers()),
        Finding("No threshold falls below the required rank.", ranks_suffice()),
        Finding("On the complete graph the sets are those of the exact FCP.", is_close_to("complete", "FCP", 0.1)),
    ),
    remarks={
        "as-written": WRITTEN_H,
        **for_confidences(f"{COARSE}, and with K/n = 0.1 the required level is 0.99"),
    },
)
