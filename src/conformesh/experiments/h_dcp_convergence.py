"""Figure 7: convergence of H-DCP. Coverage and set size against the rounds T, on five graphs.

Reproduces  [Wen2025] Appendix B.2, Figure 7:
            H-DCP (M = 1000, eta = 1) at alpha = 0.1
Data        CIFAR-100 outputs, K = 20 devices with 5 classes each, 10 draws
Cost        about 5 s a case on 2 cores
Expected    full sets until the bound falls below alpha: a few rounds on the complete graph, hundreds on the chain
"""

from __future__ import annotations

from conformesh.experiments.core.experiment import Axis, Case, Experiment, Finding
from conformesh.experiments.core.findings import converges_sooner, covers, is_close_to
from conformesh.experiments.core.grids import decades, over_values
from conformesh.experiments.core.points import Point
from conformesh.experiments.core.remarks import COARSE, WRITTEN_H, for_confidences

ROUNDS = decades(1, 10_000)  # the range of the published axis


def points(case: Case) -> list[Point]:
    """Lay out a run per topology and number of rounds."""
    return over_values(case, "cifar100", 20, "h-dcp", {"bins": 1000}, "rounds", case.grid_of_rounds(ROUNDS))


EXPERIMENT = Experiment(
    name="h-dcp-convergence",
    item="Figure 7",
    title="Convergence of H-DCP",
    data="cifar100",
    about="H-DCP, α = 0.1, M = 1000, η = 1; K = 20.",
    points=points,
    axis=Axis("rounds T", log=True),
    findings=(
        Finding("Coverage is guaranteed for any number of rounds.", covers()),
        Finding("Graphs with weaker connectivity need more rounds.", converges_sooner()),
        Finding("H-DCP ends close to the exact FCP.", is_close_to("complete", "FCP", 0.1)),
    ),
    remarks={"as-written": WRITTEN_H, **for_confidences(COARSE)},
)
