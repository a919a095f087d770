"""Synthetic streams on which the recommended rule was chosen, so that real data is left to report on."""

import numpy as np

ALPHA, DEVICES, STEPS = 0.1, 24, 2000


def streams(name, seed=0):
    """Scores of one setting, (devices, steps)."""
    rng = np.random.default_rng([seed, sorted(SETTINGS).index(name)])
    return SETTINGS[name](rng)


def _alike(rng):
    return 0.1 * np.abs(rng.standard_normal((DEVICES, STEPS)))


def _shift(rng):
    return _alike(rng) * np.where(np.arange(STEPS) < STEPS // 2, 1.0, 2.0)


def _unlike(rng):
    return _alike(rng) * rng.permutation(np.linspace(0.2, 3, DEVICES))[:, None]


def _drift(rng):
    return _alike(rng) * (1 + 0.5 * np.sin(np.arange(STEPS) / 200))


def _heavy(rng):
    return 0.07 * np.abs(rng.standard_t(3, (DEVICES, STEPS)))


SETTINGS = {"alike": _alike, "shift": _shift, "unlike": _unlike, "drift": _drift, "heavy": _heavy}


def measured(result):
    """Mean width, worst and best device, coverage of the first 20 steps."""
    covered = 1 - result.rates
    width = 2 * np.maximum(result.thresholds, 0).mean()
    return width, covered.min(), covered.max(), (result.misses[:, :20] == 0).mean()
