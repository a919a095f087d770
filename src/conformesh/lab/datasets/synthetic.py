r"""Synthetic model outputs, about as difficult as those of a real model: for trying things out without real data.

The model is a linear classifier of features. Class j has a unit vector w_j, more like those of the classes in its
group of about five, and a bias b_j; an example i of class y has the features and logits

.. math:: x_i = g_i w_y + \sigma e_i, \quad z_{ij} = c\, a_i\, w_j \cdot x_i + b_j, \quad
          g_i \sim N(1 + h_y, \tau^2), \quad \log a_i \sim U(-\theta, \theta)

with standard normal noise e. So an example is hard because it is far from its class, because its class is hard (h),
because noise points to a similar class, or because the model is unsure of everything (a small a). The constants were
searched so that accuracy, scores, set sizes and the differences between devices come near those of a small network on
CIFAR-100 and, with 9 classes, on PathMNIST; nothing else here comes from real data.
"""

from __future__ import annotations

import operator
from typing import NamedTuple

import numpy as np

from conformesh.common.array_types import Floats
from conformesh.common.random_streams import Rng, random_stream, resolve_seed
from conformesh.files.model_outputs import ModelOutputs

_MODEL = 7  # seed of the classes, arbitrary: every seed of examples uses the same model
_FEATURES = 24  # dimension of the features; searched with the constants below
_GROUP = 5  # classes that are alike
# Logits are rounded to multiples of 1 / _GRID, about the precision of float32: results do not depend on the order in
# which a machine adds.
_GRID = 2.0**20


class _Difficulty(NamedTuple):
    """The constants of a model; the symbols are those of the module's docstring."""

    scale: float  # c
    similarity: float  # share of the group in a class's vector
    class_spread: float  # standard deviation of h
    example_spread: float  # tau
    noise: float  # sigma
    certainty_spread: float  # theta
    bias_spread: float  # standard deviation of b


_DIFFICULTIES = {  # by number of classes; in between, interpolated in its logarithm
    9: _Difficulty(22.2, 0.01, 0.042, 0.15, 0.288, 0.06, 4.5),
    100: _Difficulty(16.5, 0.21, 0.067, 0.16, 0.306, 0.40, 1.32),
}


def synthetic_outputs(rows: int = 10_000, classes: int = 100, seed: int = 0, *, rng: Rng | None = None) -> ModelOutputs:
    """Return logits and labels of a synthetic model, every class as often as any other.

    The seed, or one drawn from `rng`, draws the examples; the model depends on the number of classes alone.

    >>> outputs = synthetic_outputs(rows=2000, classes=9)
    >>> outputs.values.shape, outputs.name, 0.75 < outputs.accuracy < 0.88
    ((2000, 9), 'synthetic (9 classes)', True)
    """
    for what, number, least in (("rows", rows, 1), ("classes", classes, 2)):
        if operator.index(number) < least:
            raise ValueError(f"synthetic outputs need at least {least} {what}, got {number}")
    return _drawn(rows, classes, resolve_seed(rng, seed), interpolate_difficulty(classes))


def interpolate_difficulty(classes: int) -> _Difficulty:
    """Return the constants for a number of classes; beyond the ends of the table those of its nearest entry."""
    known, constants = np.log([*_DIFFICULTIES]), zip(*_DIFFICULTIES.values(), strict=True)
    return _Difficulty(*(float(np.interp(np.log(classes), known, values)) for values in constants))


def _drawn(rows: int, classes: int, seed: int, hard: _Difficulty) -> ModelOutputs:
    model = random_stream(_MODEL, "synthetic model", classes)
    vectors = _class_vectors(model, classes, hard.similarity)
    pull = 1.0 + hard.class_spread * model.standard_normal(classes)
    bias = hard.bias_spread * model.standard_normal(classes)
    draw = random_stream(seed, "synthetic examples", classes)
    labels = draw.permutation(np.arange(rows) % classes)
    closeness = np.maximum(0.0, pull[labels] + hard.example_spread * draw.standard_normal(rows))
    certainty = np.exp(hard.certainty_spread * draw.uniform(-1.0, 1.0, rows))
    features = closeness[:, None] * vectors[labels] + hard.noise * draw.standard_normal((rows, _FEATURES))
    logits = hard.scale * certainty[:, None] * (features @ vectors.T) + bias
    names = tuple(map(str, range(classes)))
    values = np.rint(logits * _GRID) / _GRID
    return ModelOutputs(values, labels, "logits", f"synthetic ({classes} classes)", names, synthetic=True)


def _class_vectors(rng: np.random.Generator, classes: int, similarity: float) -> Floats:
    groups = -(-classes // _GROUP)
    common = rng.standard_normal((groups, _FEATURES))[np.arange(classes) % groups]
    vectors = np.sqrt(similarity) * common + np.sqrt(1.0 - similarity) * rng.standard_normal((classes, _FEATURES))
    unit: Floats = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    return unit
