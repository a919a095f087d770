"""Mistakes in arguments: the error names the argument, says what is allowed and what to do instead."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression, Ridge

from conformesh import (
    CalibrationNote,
    Network,
    Samples,
    calibrate,
    calibrate_batch,
    calibrate_local,
    calibrate_several,
    calibrate_shifted,
    calibrate_sides,
    choose_centres,
    conformal_threshold,
    control,
    detect,
    losses,
    p_values,
)
from conformesh.comparing import compare, fronts
from conformesh.online import online
from conformesh.planning.planner import plan
from conformesh.privacy.exposure import exposure_of
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


# --- alpha above 1/2: the coverage given instead of the miscoverage ---------------------------------------------------

INPUTS = [RNG.random(25) for _ in range(4)]
WITH_ALPHA = {
    "calibrate": lambda alpha: calibrate(SCORES, NETWORK, alpha),
    "calibrate, q-dcp": lambda alpha: calibrate(SCORES, NETWORK, alpha, "q-dcp"),
    "calibrate_several": lambda alpha: calibrate_several(SCORES, NETWORK, [0.1, alpha]),
    "calibrate_several, overlapping groups": lambda alpha: calibrate_several(
        SCORES, NETWORK, [alpha], groups=[[["a"], ["a", "b"]] * 12 + [["b"]]] * 4
    ),
    "calibrate_shifted": lambda alpha: calibrate_shifted(
        SCORES, NETWORK, [alpha], weight=[np.ones(25)] * 4, weight_bound=1
    ),
    "calibrate_sides": lambda alpha: calibrate_sides([RNG.random((25, 2))] * 4, NETWORK, alpha),
    "calibrate_batch": lambda alpha: calibrate_batch(Samples.of(SCORES), NETWORK, [alpha], "e-dcp"),
    "calibrate_local": lambda alpha: calibrate_local(
        SCORES, NETWORK, alpha, inputs=INPUTS, centres=choose_centres(RNG.random(99), 2)
    ),
    "conformal_threshold": lambda alpha: conformal_threshold(SCORES[0], alpha),
    "PValues.sets": lambda alpha: p_values(SCORES, NETWORK, [[0.5, 0.2]]).sets(alpha),
    "plan": lambda alpha: plan(NETWORK, alpha=alpha, methods=["fcp"]),
    "fronts": lambda alpha: fronts(SCORES, [NETWORK], alpha),
    "exposure_of": lambda alpha: exposure_of("e-dcp", NETWORK, alpha=alpha),
    "online": lambda alpha: online(np.ones((4, 9)), NETWORK, alpha),
    "MeshClassifier": lambda alpha: classifier(alpha=alpha).calibrate(X[40:], Y[40:]),
    "predict_set": lambda alpha: classifier().calibrate(X[40:], Y[40:]).predict_set(X[:2], alpha=alpha),
}


@pytest.mark.parametrize("name", WITH_ALPHA)
@pytest.mark.filterwarnings("ignore:q-dcp:conformesh.CalibrationNote")
def test_alpha_above_a_half_gets_a_note(name):
    with pytest.warns(CalibrationNote, match=r"alpha=0.9 .* coverage of only 10 %; did you mean alpha=0.1") as notes:
        WITH_ALPHA[name](0.9)
    assert {Path(note.filename).name for note in notes} <= {"test_arguments.py"}  # where the user's mistake is
    WITH_ALPHA[name](0.5)  # which says nothing


def test_a_risk_above_a_half_gets_no_note():
    control([losses.Steps.on_grid([0, 1], [[1.0, 0.0]] * 25) for _ in range(4)], NETWORK, 0.6)
