"""Risk control: what new examples lose and how large sets are, beside other rules, and MAPIE on one device.

The data are made here. Every device has a model of its own quality, so that pooled items are a mixture; new examples
come from devices in proportion to their items. *Ghosts* is the rule with one imagined item of the largest loss per
device, *pooled* ordinary risk control of all items on one server, which is proven for one device only. Ours must end at
the lambda of the pooled weighted rule, and on one device at MAPIE's.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from fractions import Fraction

import numpy as np
from harness import Row, Series, compared, times_of
from numpy.typing import NDArray

from conformesh import Network, control
from conformesh.scores.losses import FalseNegativeRate, StepLosses

Floats = NDArray[np.float64]
Drawn = tuple[Floats, NDArray[np.bool_]]  # outputs and which of them are true
DEVICES, RISK, LABELS, SIDE = 20, 0.1, 20, 20
FNR = FalseNegativeRate()


def multilabel(rng: np.random.Generator, device: int, items: int) -> Drawn:
    """Return items with a few of twenty labels; a later device sees labels through more noise, and has more of them."""
    truth = rng.normal(-1.2 + 0.8 * device / DEVICES, 1.5, (items, LABELS))
    seen = truth + rng.normal(0, 0.3 + 2.2 * device / DEVICES, truth.shape)
    return 1 / (1 + np.exp(-seen)), rng.random(truth.shape) < 1 / (1 + np.exp(-2 * truth))


def segmentation(rng: np.random.Generator, device: int, items: int) -> Drawn:
    """Return images of a blurred disc; a later device's are noisier."""
    y, x = np.mgrid[:SIDE, :SIDE] + 0.5
    centre, radius = rng.uniform(6, SIDE - 6, (items, 2, 1, 1)), rng.uniform(2, 6, (items, 1, 1))
    inside = radius - np.hypot(y - centre[:, 0], x - centre[:, 1])
    seen = inside + rng.normal(0, 0.5 + 4 * device / DEVICES, inside.shape)
    return 1 / (1 + np.exp(-seen)), inside > 0


def pooled_lambda(steps: list[StepLosses], allowed: Fraction) -> float:
    """Return the smallest lambda at which all items together lose at most `allowed`, by sorting everything."""
    points = np.concatenate([each.lambdas for each in steps])
    falls = np.concatenate([_falls(each) for each in steps])
    order = np.argsort(points, kind="stable")
    left = sum(float(each.starts.sum()) for each in steps) - np.cumsum(falls[order])
    enough = np.flatnonzero(left <= float(allowed) + 1e-9)
    return float(points[order][enough[0]]) if len(enough) else math.inf


def _falls(steps: StepLosses) -> Floats:
    before = np.roll(steps.values, 1)
    some = np.diff(steps.offsets) > 0
    before[steps.offsets[:-1][some]] = steps.starts[some]
    return np.asarray(before - steps.values)


def rules(steps: list[StepLosses], network: Network) -> dict[str, float]:
    """Return lambda by each rule."""
    n, alpha = sum(map(len, steps)), Fraction(str(RISK))
    found = {
        "swap": control(steps, network, RISK).threshold,
        "ghosts": control(steps, network, RISK, mixture="paper", rank_rule="ghost").threshold,
        "pooled": pooled_lambda(steps, alpha * (n + 1) - 1),
    }
    if abs(found["swap"] - pooled_lambda(steps, alpha * n - 1)) > 1e-12:
        raise AssertionError(f"lambda is {found['swap']}, of the pooled rule {pooled_lambda(steps, alpha * n - 1)}")
    return found


def measured(draw: Callable[..., Drawn], per_device: int, draws: int, tests: int) -> dict[str, str]:
    """Return, by rule, the mean loss of new examples with its standard error over draws, and the size of sets."""
    network = Network.torus(5, 4)
    lost: dict[str, list[float]] = {}
    size: dict[str, list[float]] = {}
    for seed in range(draws):
        rng = np.random.default_rng([8, seed])
        steps = [FNR(*draw(rng, k, per_device)) for k in range(DEVICES)]
        fresh = [draw(rng, k, tests // DEVICES) for k in range(DEVICES)]
        outputs, truth = (np.concatenate([each[i] for each in fresh]) for i in (0, 1))
        new = FNR(outputs, truth)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = rules(steps, network)
        for name, lam in found.items():
            lost.setdefault(name, []).append(float(new.at(lam).mean()))
            size.setdefault(name, []).append(float(FNR.sets(outputs, lam).reshape(len(outputs), -1).sum(axis=1).mean()))
    return {
        name: f"loses {np.mean(lost[name]):.4f} ± {np.std(lost[name], ddof=1) / math.sqrt(draws):.4f}, "
        f"sets of {np.mean(size[name]):.4g}"
        for name in lost
    }


def _beside_mapie(items: int, repeats: int) -> Row:
    """One device: MAPIE controls the recall, 1 minus our loss, on its grid of a hundred thresholds of probability."""
    what = f"risk control on one device, n={items:,}, {LABELS} labels"
    try:
        from mapie.risk_control import MultiLabelClassificationController
    except ImportError as problem:
        return Row(what, note=f"not measured: {problem}; pip install mapie")
    outputs, truth = multilabel(np.random.default_rng(9), 10, items)
    truth[:, 0] |= ~truth.any(axis=1)  # MAPIE asks for a label each

    def theirs() -> float:
        controller = MultiLabelClassificationController(lambda table: table, risk="recall", target_level=1 - RISK)
        return float(1 - controller.calibrate(outputs, truth.astype(int)).best_predict_param[0])

    network = Network.chain(1)
    times = times_of({"ours": lambda: control([FNR(outputs, truth)], network, RISK), "theirs": theirs}, repeats)
    ours, other = control([FNR(outputs, truth)], network, RISK).threshold, theirs()
    if not ours - 1e-9 <= other <= ours + 0.01:  # the next point of a grid of hundredths
        raise AssertionError(f"lambda is {ours}, by MAPIE {other}")
    words = f"lambda {ours:.4f}, on MAPIE's grid {other:.4f}"
    return compared(what, times["ours"], times["theirs"], "MAPIE", note=words)


def bench(quick: bool = False) -> tuple[list[Row], list[Series]]:
    """Mean loss and size of sets by each rule, and MAPIE on one device."""
    draws, tests = (2, 200) if quick else (60, 10_000)
    rows = []
    cases = {
        f"false negatives of {LABELS} labels, K=20, n=1000": (multilabel, 50),
        f"false negatives of {LABELS} labels, K=20, n=200": (multilabel, 10),
        f"false negatives of {SIDE}x{SIDE} pixels, K=20, n=1000": (segmentation, 50),
    }
    for what, (draw, per_device) in cases.items():
        for name, words in measured(draw, per_device, draws, tests // (10 if draw is segmentation else 1)).items():
            rows.append(Row(f"{what}: {name}", note=words))
    rows.append(_beside_mapie(200 if quick else 2000, 2 if quick else 5))
    return rows, []
