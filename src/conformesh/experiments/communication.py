"""Figure 5: what a bit buys. Coverage and set size against the bits each device sends, on the torus.

Reproduces  [Wen2025] Section 6.4, Figure 5:
            Q-DCP with hyper-parameters 1 (epsilon0 = 0.1, s0 the average) and 2 (epsilon0 = 1e-4, s0 = -10), and H-DCP
            (M = 1000), with f = 16, 32 and 64 bits a number; the load is T C with C = f for Q-DCP and M f for H-DCP
Data        CIFAR-100 outputs, K = 20 devices with 5 classes each, 10 draws, alpha = 0.1
Cost        about 15 s a case on 2 cores
Expected    Q-DCP setting 1 is efficient from some 10^4 bits on, setting 2 stays below 0.9; H-DCP covers at every load
            and needs 10^6 bits to be efficient; E-DCP is exact at the load where it stands, and by the swap
            rank, for the same promise, its sets are smaller than all others that cover
Departures  Q-DCP runs end at 32,000 rounds, long after it has converged. With confidences, setting 2 has s0 = 0.45
"""

from __future__ import annotations

from typing import Any

from conformesh.experiments.core.experiment import Axis, Case, Experiment, Finding
from conformesh.experiments.core.findings import covers, is_smaller, misses
from conformesh.experiments.core.points import Point
from conformesh.experiments.core.remarks import FULL_SETS, WRITTEN_Q, for_confidences

LOADS = tuple(4_000 * 2**i for i in range(12))  # bits: 4 kbit ... 8.2 Mbit
BINS = 1000
MOST_ROUNDS = 32_000
WIDTHS = (16, 32, 64)


def points(case: Case) -> list[Point]:
    """Lay out a run per method, width and load that makes at least one round."""
    setting = case.setting("cifar100", 20)
    far_off = -10.0 if case.scores == "logits" else 0.45
    ways: dict[str, tuple[str, dict[str, Any], int]] = {
        "Q-DCP 1": ("q-dcp", {"epsilon0": 0.1}, 1),
        "Q-DCP 2": ("q-dcp", {"epsilon0": 1e-4, "s0": far_off}, 1),
        "H-DCP": ("h-dcp", {"bins": BINS}, BINS),
    }
    grid = []
    for name, (method, options, numbers) in ways.items():
        for width in case.thinned(WIDTHS):
            for load in case.thinned(LOADS, keep=6):
                rounds = load // (numbers * width)
                if 1 <= rounds <= (MOST_ROUNDS // 10 if case.quick else MOST_ROUNDS):
                    run = {**options, "rounds": rounds, "wire": width}
                    grid.append(case.point(setting, f"{name}, f = {width}", method, run, x=load))
    pooled = [point for point in case.references(setting, (0.1,)) if point.line != "E-DCP"]
    swap = {"target": "paper", "rank": "swap"}
    exact = [
        case.point(setting, line, "e-dcp", asked, x="bits") for line, asked in (("E-DCP", {}), ("swap rank", swap))
    ]
    return [*grid, *pooled, *exact]


EXPERIMENT = Experiment(
    name="communication",
    item="Figure 5",
    title="Coverage and set size against the communication load",
    data="cifar100",
    about="Torus, α = 0.1; Q-DCP 1: ε₀ = 0.1, s₀ the average; Q-DCP 2: ε₀ = 0.0001, s₀ = -10 (with confidences 0.45); "
    "H-DCP: M = 1000. Load = rounds x bits a device sends in a round.",
    points=points,
    axis=Axis("bits sent by each device, T·C", log=True),
    findings=(
        Finding("With well-chosen hyper-parameters Q-DCP meets 0.9.", covers("Q-DCP 1, f = 32", "Q-DCP 1, f = 64")),
        Finding("Then its sets are smaller than H-DCP's.", is_smaller("Q-DCP 1, f = 64", "H-DCP, f = 64")),
        Finding("With poorly chosen ones it misses 0.9, even at high precision.", misses("Q-DCP 2, f = 64")),
        Finding("H-DCP covers at every load.", covers("H-DCP, f = 16", "H-DCP, f = 32", "H-DCP, f = 64")),
    ),
    remarks={"as-written": WRITTEN_Q, **for_confidences(FULL_SETS)},
)
