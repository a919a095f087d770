"""How many anomalies are found, and how many flags are wrong: thinned, plain and by Benjamini and Yekutieli's factor.

Synthetic, seed 0: 20 devices hold 50 scores each, normal with device means spread evenly over [-1/2, 1/2]; 200 test
points a draw, each an anomaly with probability 0.15, which scores 3.5 higher; devices of test points drawn alike.
"""

from __future__ import annotations

import time
from fractions import Fraction

import numpy as np
from harness import Row, Series
from numpy.typing import NDArray

from conformesh import Network
from conformesh.common.random_streams import random_stream
from conformesh.engines import Simulator
from conformesh.kernels.ranks import Requirement
from conformesh.kernels.weighted_scores import WeightedScores
from conformesh.pipeline.detection import default_sample_size, draw_sample_sizes, no_redraw_chance
from conformesh.protocols.block import Block
from conformesh.protocols.e_dcp import EDCP
from conformesh.protocols.rank_counts import benjamini_hochberg

DEVICES, SCORES, TESTS, PART, LIFT = 20, 50, 200, 0.15, 3.5
FDR = Fraction(1, 10)
NETWORK = Network.torus(5, 4)


Draws = tuple[NDArray[np.float64], NDArray[np.int64], NDArray[np.float64], NDArray[np.bool_]]


def drawn(draws: int, seed: int = 0) -> Draws:
    """Return scores (draws, devices, scores), and of every test point device, score and whether it is an anomaly."""
    rng = random_stream(seed, "detection")
    means = np.linspace(-0.5, 0.5, DEVICES)
    scores = rng.normal(size=(draws, DEVICES, SCORES)) + means[:, None]
    device = rng.integers(DEVICES, size=(draws, TESTS))
    anomaly = rng.random((draws, TESTS)) < PART
    return scores, device, rng.normal(size=(draws, TESTS)) + means[device] + LIFT * anomaly, anomaly


def measured(
    data: Draws, kept: NDArray[np.int64], level: Fraction, requirement: Requirement
) -> tuple[float, float, str]:
    """Run the rule on every draw at once; return seconds, the mean part of wrong flags, and all that was found."""
    scores, device, tests, anomaly = data
    draws = len(scores)
    samples = WeightedScores.of_trials([[own[: kept[d, k]] for k, own in enumerate(scores[d])] for d in range(draws)])
    held = WeightedScores.of_trials([[tests[d][device[d] == k] for k in range(DEVICES)] for d in range(draws)])
    block = Block(NETWORK, np.arange(DEVICES), samples.sizes, requirement)
    started = time.perf_counter()
    found, _ = Simulator(NETWORK).run(benjamini_hochberg(block, samples, held, level, EDCP()), draws)
    seconds = time.perf_counter() - started
    flagged = tests > np.where(found.flagged > 0, found.thresholds, np.inf)[:, None]
    wrong = (flagged & ~anomaly).sum(axis=1) / np.maximum(flagged.sum(axis=1), 1)
    power = (flagged & anomaly).sum(axis=1) / np.maximum(anomaly.sum(axis=1), 1)
    both = (f"{part.mean():.3f} +- {part.std() / np.sqrt(draws):.3f}" for part in (power, wrong))
    sizes = f"level {float(level):.4f}, {found.steps.mean():.1f} steps"
    words = "power {}, false discovery rate {}, ".format(*both) + sizes
    return seconds, float(wrong.mean()), words


def bench(quick: bool = False) -> tuple[list[Row], list[Series]]:
    """Anomalies among 200 test points on 20 devices with 1,000 scores: power and false discovery rate at 0.1."""
    draws = 20 if quick else 4000
    data = drawn(draws)
    sizes, shares = np.full(DEVICES, SCORES), [Fraction(1, DEVICES)] * DEVICES
    yekutieli = FDR / sum(Fraction(1, i) for i in range(1, TESTS + 1))
    rules: list[tuple[str, int, Fraction]] = [("all scores, plain (assumed)", 0, FDR)]
    rules.append(("all scores, Benjamini-Yekutieli", 0, yekutieli))
    for n in (400, 600, default_sample_size(sizes, shares)):
        rules.append((f"thinned, n' = {n}", n, FDR * Fraction(no_redraw_chance(sizes, shares, n))))
    rows = []
    for name, n, level in rules:
        kept, requirement = np.full((draws, DEVICES), SCORES), Requirement()
        if n:  # scores come in random order: the first so many are as good as any
            kept = np.array([draw_sample_sizes(sizes, shares, n, seed) for seed in range(draws)])
            requirement = Requirement("exchangeable")
        seconds, wrong, words = measured(data, kept, level, requirement)
        met = None if quick else wrong <= FDR
        rows.append(Row(f"{draws:,} draws at once, {name}", seconds, target="at most 0.1 wrong", met=met, note=words))
    return rows, []
