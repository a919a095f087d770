"""Mistakes in arguments: the error names the argument, says what is allowed and what to do instead."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression, Ridge

from conformesh import (
    Network,
    Samples,
    calibrate,
    calibrate_batch,
    calibrate_several,
    calibrate_shifted,
    calibrate_sides,
    control,
    detect,
    losses,
    p_values,
)
from conformesh.comparing import compare, fronts
from conformesh.online import online
from conformesh.planning.planner import plan
from conformesh.sklearn import MeshClassifier, MeshRegressor

RNG = np.random.default_rng(0)
NETWORK = Network.cycle(4)
SCORES = [RNG.random(25) for _ in range(4)]
X, Y = RNG.normal(size=(80, 2)), RNG.integers(0, 3, 80)
STEPS = [losses.Steps.on_grid([0, 1], [[1.0, 0.0]] * 25) for _ in range(4)]


def classifier(**given):
    return MeshClassifier(LogisticRegression().fit(X[:40], Y[:40]), **given)


# --- confidence: 1 - alpha, or over the draw of the calibration scores ------------------------------------------------

WITH_CONFIDENCE = {
    "calibrate": lambda **given: calibrate(SCORES, NETWORK, **given),
    "calibrate_several": lambda **given: calibrate_several(SCORES, NETWORK, **given),
    "calibrate_shifted": lambda **given: calibrate_shifted(
        SCORES, NETWORK, weight=[np.ones(25)] * 4, weight_bound=1, **given
    ),
    "calibrate_sides": lambda **given: calibrate_sides([RNG.random((9, 2))] * 4, NETWORK, **given),
    "calibrate_batch": lambda **given: calibrate_batch(Samples.of(SCORES), NETWORK, [0.1], "e-dcp", **given),
    "control": lambda **given: control(STEPS, NETWORK, **given),
    "detect": lambda **given: detect(SCORES, NETWORK, SCORES, **given),
    "p_values": lambda **given: p_values(SCORES, NETWORK, [0.5], **given),
    "compare": lambda **given: compare(SCORES, [NETWORK], **given),
    "fronts": lambda **given: fronts(SCORES, [NETWORK], **given),
    "plan": lambda **given: plan(NETWORK, **given),
    "online": lambda **given: online(np.ones((4, 9)), NETWORK, **given),
    "MeshClassifier": classifier,
    "MeshClassifier options": lambda **given: classifier(options=given).calibrate(X[40:], Y[40:]),
    "predict_set": lambda **given: classifier().calibrate(X[40:], Y[40:]).predict_set(X[:2], **given),
    "evaluate": lambda **given: classifier().calibrate(X[40:], Y[40:]).evaluate(X[:2], Y[:2], **given),
    "MeshRegressor": lambda **given: MeshRegressor(Ridge(), **given),
    "predict_interval": lambda **given: (
        MeshRegressor(Ridge().fit(X, Y)).calibrate(X, Y * 1.0).predict_interval(X[:2], **given)
    ),
}


@pytest.mark.parametrize("name", WITH_CONFIDENCE)
def test_confidence_is_explained(name):
    with pytest.raises(TypeError, match=r"confidence=0.9 .*1 - alpha.*use alpha=0.1 .* or pac_confidence=0.9"):
        WITH_CONFIDENCE[name](confidence=0.9)
    with pytest.raises(TypeError, match=r"confidence=95 .*use alpha for that, or pac_confidence for"):
        WITH_CONFIDENCE[name](confidence=95)
