"""Figure 11: Q-DCP on growing random graphs, epsilon0 = 0.1.

Reproduces  [Wen2025] Appendix B.3, Figure 11:
            Q-DCP (T = 3000, epsilon0 = 0.1) at alpha = 0.1 on Erdos-Renyi graphs, p = 0.5, against K = 20 ... 80
Data        CIFAR-100 outputs, the 100 classes divided almost equally among K devices, 10 draws, each with its own graph
Cost        about 10 s a case on 2 cores
Expected    coverage falls below 0.9 as K grows; the mean spectral gap rises from 0.44 to 0.68
"""

from __future__ import annotations

from conformesh.experiments.core.experiment import Axis, Case, Experiment, Finding
from conformesh.experiments.core.findings import gap_rises, misses, ranks_fall_short, size_falls
from conformesh.experiments.core.grids import over_random_graphs
from conformesh.experiments.core.points import Point
from conformesh.experiments.core.remarks import ANCHORED, FULL_SETS, for_confidences

RANDOM = f"{ANCHORED}. Coverage comes close to 0.9 without crossing it, because the K/n in the level grows with K"


def points(case: Case) -> list[Point]:
    """Lay out a run per number of devices and draw: every draw has its own graph."""
    return over_random_graphs(case, "cifar100", {"rounds": case.rounds(3000), "epsilon0": 0.1})


EXPERIMENT = Experiment(
    name="erdos-renyi-narrow",
    item="Figure 11",
    title="Q-DCP on Erdős-Rényi graphs, ε₀ = 0.1",
    data="cifar100",
    about="Q-DCP, α = 0.1, T = 3000, κ = μ = 2000, ε₀ = 0.1; Erdős-Rényi graphs with p = 0.5, one per draw.",
    points=points,
    axis=Axis("devices K"),
    findings=(
        Finding("The average spectral gap increases from 0.44 to 0.68.", gap_rises(0.44, 0.68)),
        Finding("The set size decreases as connectivity increases.", size_falls("Q-DCP")),
        Finding("With ε₀ = 0.1 coverage misses 0.9 as K grows.", misses("Q-DCP")),
        Finding("With ε₀ = 0.1 Assumption 4.1 is violated as K grows larger.", ranks_fall_short("Q-DCP")),
    ),
    remarks={"as-written": RANDOM, "as-released": RANDOM, **for_confidences(FULL_SETS)},
)
