"""Local coverage on heteroscedastic regression: thresholds near centres beside one threshold for all.

    python benchmarks/promises/local.py                 60 draws; writes local.csv beside this file
    python benchmarks/promises/local.py --draws 5       a try; writes nothing
    python benchmarks/promises/local.py --picture FILE  also draws coverage by place

Twenty devices whose inputs lie in unlike places hold 1000 scores together; noise is 0.3 to 2 standard deviations, by
place. Coverage near a place is that of the nearest of 20 cells, over all draws. *Pooled* is one site with all scores,
which needs no room for an exchange between devices; its thresholds are what could be had at best.
"""

from __future__ import annotations

import argparse
import csv
import warnings
from pathlib import Path

import numpy as np

from conformesh import Network, Result, calibrate, choose_centres, scores
from conformesh.results.evaluation import Coverage, Evaluation, coverage_by_centre

DEVICES, ALPHA, CENTRES = 20, 0.1, 20
SCORE = scores.AbsoluteResidual()


def examples(rng: np.random.Generator, rows: int) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Return inputs and outcomes of every device; the model, which knows the mean, predicts 0."""
    shapes = [(1 + k % 4, 4 - k % 4) for k in range(DEVICES)]
    inputs = [rng.beta(a, b, rows) for a, b in shapes]
    return inputs, [rng.normal(size=rows) * (0.3 + 1.7 * np.sin(2 * np.pi * x) ** 2) for x in inputs]


def measured(n: int, draws: int, seed: int = 0) -> dict[str, Evaluation]:
    """Return what thresholds are worth that were calibrated on n scores, over fresh draws of everything."""
    rng = np.random.default_rng([seed, n])
    public = np.concatenate(examples(rng, 200)[0])
    centres, cells = choose_centres(public, min(CENTRES, n // 50)), choose_centres(public, 20)
    network, one = Network.torus(5, 4), Network.complete(1)
    hits: dict[str, list[np.ndarray]] = {}
    widths: dict[str, list[np.ndarray]] = {}
    places = []
    for _ in range(draws):
        x, y = examples(rng, n // DEVICES)
        held, pooled = [np.abs(own) for own in y], [np.abs(np.concatenate(y))]
        common = {"alpha": ALPHA, "score": SCORE}
        found: dict[str, Result] = {
            "one threshold": calibrate(held, network, **common),
            "near centres": calibrate(held, network, inputs=x, centres=centres, **common),
            "near centres, pooled": calibrate(pooled, one, inputs=[np.concatenate(x)], centres=centres, **common),
        }
        new, truth = (np.concatenate(part) for part in examples(rng, 100))
        places.append(new)
        for name, result in found.items():
            more = {} if result.guarantee.centres is None else {"inputs": new, "rng": rng}
            sets = result.predict(np.zeros(len(new)), **more)
            hits.setdefault(name, []).append((sets[:, 0] <= truth) & (truth <= sets[:, 1]))
            widths.setdefault(name, []).append(sets[:, 1] - sets[:, 0])
    where = np.concatenate(places)
    return {
        name: Evaluation(
            Coverage.of(np.concatenate(own)),
            float(np.concatenate(widths[name]).mean()),
            0.0,
            nominal=1 - ALPHA,
            per_centre=coverage_by_centre(np.concatenate(own), where, cells),
        )
        for name, own in hits.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--draws", type=int, default=60)
    parser.add_argument("--picture", type=Path)
    asked = parser.parse_args()
    warnings.simplefilter("ignore")
    rows = []
    for n in (1000, 5000):
        found = measured(n, asked.draws)
        for name, one in found.items():
            rate, size = one.coverage.rate, one.mean_size
            least = min(cell.rate for cell in one.per_centre.values())
            rows.append((n, name, f"{rate:.4f}", f"{one.gap:.4f}", f"{least:.3f}", f"{size:.3f}"))
            print(*rows[-1], sep="\t", flush=True)
        if asked.picture is not None and n == 1000:
            from conformesh.plots.local import draw_local

            cells = choose_centres(np.concatenate(examples(np.random.default_rng([0, n]), 200)[0]), 20)
            shown = {name: one for name, one in found.items() if "pooled" not in name}
            draw_local(asked.picture, shown, cells, "input")
    if asked.draws >= 60:
        with Path(__file__).with_suffix(".csv").open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(("scores", "sets", "coverage", "mean_local_gap", "least_local_coverage", "mean_width"))
            writer.writerows(rows)


if __name__ == "__main__":
    main()
