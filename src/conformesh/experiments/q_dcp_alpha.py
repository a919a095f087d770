"""Figure 2: Q-DCP against the coverage level, on five graphs, with the paper's s0 and epsilon0.

Reproduces  [Wen2025] Section 6.2, Figure 2:
            coverage and set size of Q-DCP (T = 1500, kappa = mu = 2000, epsilon0 = 0.1, s0 the average of the local
            quantiles) for 1 - alpha = 0.1 ... 0.9
Data        CIFAR-100 outputs, K = 20 devices with 5 classes each, 10 draws of 1000 calibration rows
Cost        about 5 s a case on 2 cores
Expected    as released, at 0.9: 98.1 / 18.1 / 10.9 / 10.9 / 10.9 labels on chain / cycle / star / torus / complete;
            as written 29.9 / 10.7 / 10.5 / 10.5 / 10.5
"""

from __future__ import annotations

from conformesh.experiments.core.experiment import Case, Experiment, Finding
from conformesh.experiments.core.findings import covers, denser_graphs_are_smaller, is_close_to, ranks_suffice
from conformesh.experiments.core.grids import over_levels
from conformesh.experiments.core.points import Point
from conformesh.experiments.core.remarks import FULL_SETS, WRITTEN_Q, for_confidences


def points(case: Case) -> list[Point]:
    """Lay out one run per topology, all levels at once."""
    return over_levels(case, "cifar100", 20, "q-dcp", {"rounds": 1500, "epsilon0": 0.1})


EXPERIMENT = Experiment(
    name="q-dcp-alpha",
    item="Figure 2",
    title="Q-DCP against the coverage level, Assumption 4.1 taken as satisfied",
    data="cifar100",
    about="Q-DCP, T = 1500, κ = μ = 2000, ε₀ = 0.1, s₀ the average of the local quantiles; K = 20.",
    points=points,
    findings=(
        Finding("Q-DCP provides coverage guarantees.", covers()),
        Finding("Sets are more conservative over graphs with lower connectivity.", denser_graphs_are_smaller()),
        Finding("On the complete graph the set size is that of centralized CP.", is_close_to("complete", "CP", 0.1)),
        Finding("Assumption 4.1 is satisfied, so that no threshold falls below the required rank.", ranks_suffice()),
    ),
    remarks={"as-written": WRITTEN_Q, **for_confidences(FULL_SETS)},
)
