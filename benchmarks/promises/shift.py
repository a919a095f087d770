"""Covariate shift with a known likelihood ratio of at most 5: weighted thresholds beside others.

    python benchmarks/promises/shift.py                 400 draws; writes shift.csv beside this file
    python benchmarks/promises/shift.py --draws 5       a try; writes nothing

Twenty unlike devices; inputs are uniform, new ones have the density 5x^4, noise grows with x and by device. *Pooled* is
weighted split conformal prediction on all scores in one place, with the weight of each new example (Tibshirani et al.
2019): valid if devices were alike, and what could be had at best. *Ghosts* has one imagined score of the largest
weight per device. Coverage is over new examples of all draws; its standard error counts draws, not examples.
"""

from __future__ import annotations

import argparse
import csv
import warnings
from pathlib import Path

import numpy as np

from conformesh import Network, calibrate

DEVICES, ALPHA, BOUND, NEW = 20, 0.1, 5.0, 50
LEVELS = tuple(np.linspace(0, BOUND, 21)[:-1].tolist())


def ratio(x: np.ndarray) -> np.ndarray:
    """Return the density of new inputs over that of calibration inputs."""
    return BOUND * x**4


def noise(rng: np.random.Generator, x: np.ndarray, device: int) -> np.ndarray:
    """Return scores of a device: residuals of a model that knows the mean."""
    return np.abs(rng.normal(size=x.shape)) * (0.2 + x) * (0.7 + 0.6 * device / DEVICES)


def pooled(values: np.ndarray, weights: np.ndarray, needed: np.ndarray) -> np.ndarray:
    """Return the smallest value at which weights reach what is needed."""
    order = np.argsort(values)
    places = np.searchsorted(np.cumsum(weights[order]), needed)
    return np.append(values[order], np.inf)[places]


def one_draw(rng: np.random.Generator, n: int) -> dict[str, np.ndarray]:
    """Return which new examples are covered, and where thresholds are infinite, by each rule."""
    x = [rng.random(n // DEVICES) for _ in range(DEVICES)]
    held = [noise(rng, own, k) for k, own in enumerate(x)]
    network = Network.torus(5, 4)
    common = {"weight": ratio, "inputs": x, "weight_bound": BOUND}
    new = rng.beta(5, 1, (DEVICES, NEW))
    truth = np.stack([noise(rng, own, k) for k, own in enumerate(new)])
    several = calibrate(held, network, (ALPHA,), test_weights=LEVELS, **common)
    levels = np.array(several.guarantee.weighting.test_weights)
    by_weight = np.array([answer.threshold for answer in several.answers])
    values, weights = np.concatenate(held), ratio(np.concatenate(x))
    ghosts = pooled(values, weights, (1 - ALPHA) * np.array([weights.sum() + DEVICES * BOUND]))
    thresholds = {
        "no weights": calibrate(held, network, ALPHA).threshold,
        "by test weight": by_weight[np.searchsorted(levels, ratio(new))],
        "one threshold": calibrate(held, network, ALPHA, **common).threshold,
        "pooled": pooled(values, weights, (1 - ALPHA) * (weights.sum() + ratio(new))),
        "ghosts": ghosts[0],
    }
    return {
        name: np.stack([truth <= one, np.broadcast_to(one, truth.shape), np.isinf(one) + np.zeros(truth.shape)])
        for name, one in thresholds.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--draws", type=int, default=400)
    asked = parser.parse_args()
    warnings.simplefilter("ignore")
    rows = []
    for n in (1000, 200):
        rng = np.random.default_rng([1, n])
        draws = [one_draw(rng, n) for _ in range(asked.draws)]
        for name in draws[0]:
            covered = np.array([draw[name][0].mean() for draw in draws])
            sizes = np.array([draw[name][1].mean() for draw in draws])
            infinite = np.mean([draw[name][2].mean() for draw in draws])
            error = covered.std(ddof=1) / len(covered) ** 0.5
            size = "inf" if infinite else f"{sizes.mean():.3f}"
            rows.append((n, name, f"{covered.mean():.4f}", f"{error:.4f}", size, f"{infinite:.3f}"))
            print(*rows[-1], sep="\t", flush=True)
    if asked.draws >= 400:
        with Path(__file__).with_suffix(".csv").open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(("scores", "rule", "coverage", "standard_error", "mean_threshold", "infinite"))
            writer.writerows(rows)


if __name__ == "__main__":
    main()
