"""Mistakes in arguments: the error names the argument, says what is allowed and what to do instead."""

from __future__ import annotations

from pathlib import Path

import networkx as nx
import numpy as np
import pandas as pd
import pytest
from sklearn.linear_model import LogisticRegression, Ridge

from conformesh import (
    CalibrationNote,
    Network,
    calibrate,
    choose_centres,
    conformal_threshold,
    control,
    detect,
    estimate_ratios,
    p_values,
    quantiles,
    scores,
)
from conformesh.kernels.weighted_scores import WeightedScores
from conformesh.lab.comparison import MethodVariant, compare, cost_fronts
from conformesh.lab.planning.planner import plan
from conformesh.methods import exposure_of_method
from conformesh.online import ACI, online
from conformesh.pipeline.solver import solve_draws
from conformesh.scores import losses
from conformesh.sklearn import MeshClassifier, MeshRegressor

RNG = np.random.default_rng(0)
NETWORK = Network.cycle(4)
SCORES = [RNG.random(25) for _ in range(4)]
X, Y = RNG.normal(size=(80, 2)), RNG.integers(0, 3, 80)
STEPS = [losses.StepLosses.on_grid([0, 1], [[1.0, 0.0]] * 25) for _ in range(4)]


def classifier(**given):
    return MeshClassifier(LogisticRegression().fit(X[:40], Y[:40]), **given)


# --- confidence: 1 - alpha, or over the draw of the calibration scores ------------------------------------------------

WITH_CONFIDENCE = {
    "calibrate": lambda **given: calibrate(SCORES, NETWORK, **given),
    "calibrate, several levels": lambda **given: calibrate(SCORES, NETWORK, [0.1, 0.2], **given),
    "calibrate, groups": lambda **given: calibrate(SCORES, NETWORK, groups=[["a"] * 25] * 4, **given),
    "calibrate, weights": lambda **given: calibrate(SCORES, NETWORK, weight=[np.ones(25)] * 4, weight_bound=1, **given),
    "calibrate, sides": lambda **given: calibrate([RNG.random((9, 2))] * 4, NETWORK, **given, symmetric=False),
    "solve_draws": lambda **given: solve_draws(WeightedScores.of(SCORES), NETWORK, [0.1], "e-dcp", **given),
    "control": lambda **given: control(STEPS, NETWORK, **given),
    "detect": lambda **given: detect(SCORES, NETWORK, SCORES, **given),
    "p_values": lambda **given: p_values(SCORES, NETWORK, [0.5], **given),
    "compare": lambda **given: compare(SCORES, [NETWORK], **given),
    "cost_fronts": lambda **given: cost_fronts(SCORES, [NETWORK], **given),
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
    "calibrate, several levels": lambda alpha: calibrate(SCORES, NETWORK, [0.1, alpha]),
    "calibrate, overlapping groups": lambda alpha: calibrate(
        SCORES, NETWORK, [alpha], groups=[[["a"], ["a", "b"]] * 12 + [["b"]]] * 4
    ),
    "calibrate, weights": lambda alpha: calibrate(SCORES, NETWORK, [alpha], weight=[np.ones(25)] * 4, weight_bound=1),
    "calibrate, sides": lambda alpha: calibrate([RNG.random((25, 2))] * 4, NETWORK, alpha, symmetric=False),
    "calibrate, centres": lambda alpha: calibrate(
        SCORES, NETWORK, alpha, inputs=INPUTS, centres=choose_centres(RNG.random(99), 2)
    ),
    "conformal_threshold": lambda alpha: conformal_threshold(SCORES[0], alpha),
    "PValues.sets": lambda alpha: p_values(SCORES, NETWORK, [[0.5, 0.2]]).sets(alpha),
    "plan": lambda alpha: plan(NETWORK, alpha=alpha, methods=["fcp"]),
    "compare": lambda alpha: compare(SCORES, [NETWORK], alpha, [MethodVariant("fcp")]),
    "cost_fronts": lambda alpha: cost_fronts(SCORES, [NETWORK], alpha),
    "exposure_of_method": lambda alpha: exposure_of_method("e-dcp", NETWORK, alpha=alpha),
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
    control([losses.StepLosses.on_grid([0, 1], [[1.0, 0.0]] * 25) for _ in range(4)], NETWORK, 0.6)


# --- the right argument is named, with what is allowed and what to do -------------------------------------------------

GROUPS = [np.arange(25) % 2 for _ in range(4)]
FRAME = pd.DataFrame(
    {"device": np.repeat([*"abcd"], 25), "score": np.concatenate(SCORES), "site": np.tile(["x", "y"], 50)}
)
TESTS = [RNG.random(5) for _ in range(4)]
STREAMS = np.abs(RNG.normal(size=(4, 30)))
CENTRES = choose_centres(np.linspace(0, 1, 50), 2)
RATIOS = estimate_ratios(np.linspace(0, 1, 50), np.linspace(0.2, 1.2, 50))
PROBABILITIES = RNG.dirichlet(np.ones(3), 80)
LOOPED = nx.cycle_graph(4)
LOOPED.add_edge(1, 1)

MISTAKES = {
    # keywords of another function, or of another name
    "alphas in calibrate": (
        lambda: calibrate(SCORES, NETWORK, alphas=[0.1, 0.2]),
        TypeError,
        r"calibrate has no argument 'alphas'; it takes alpha=, one number or a list such as alpha=\[0.05, 0.1\]",
    ),
    "group in calibrate": (
        lambda: calibrate(SCORES, NETWORK, group=GROUPS),
        TypeError,
        "no argument 'group'; did you mean 'groups'",
    ),
    "risk in calibrate": (
        lambda: calibrate(SCORES, NETWORK, risk=0.1),
        TypeError,
        "calibrate has no argument 'risk'; it takes alpha=",
    ),
    "rank in calibrate": (
        lambda: calibrate(SCORES, NETWORK, rank="ghost"),
        TypeError,
        "calibrate has no argument 'rank'; did you mean 'rank_rule'",
    ),
    "alpha in control": (lambda: control(STEPS, NETWORK, alpha=0.1), TypeError, "it takes risk=, one number"),
    "risks in control": (
        lambda: control(STEPS, NETWORK, risks=[0.1]),
        TypeError,
        r"it takes risk=, one number or a list such as risk=\[0.05, 0.1\]",
    ),
    "alphas in control": (
        lambda: control(STEPS, NETWORK, alphas=[0.1]),
        TypeError,
        r"it takes risk=, one number or a list such as risk=\[0.05, 0.1\]",
    ),
    "class_weights in control": (
        lambda: control(STEPS, NETWORK, class_weights={0: 1}),
        TypeError,
        r"control has no argument 'class_weights'; use calibrate\(..., class_weights=...\)",
    ),
    "pac_confidence in control": (
        lambda: control(STEPS, NETWORK, pac_confidence=0.9),
        ValueError,
        r"leave pac_confidence out, or test a grid of lambdas with control\(..., monotone=False\)",
    ),
    "alpha in detect": (
        lambda: detect(SCORES, NETWORK, TESTS, alpha=0.1),
        TypeError,
        "detect has no argument 'alpha'; it takes fdr=",
    ),
    "alpha in p_values": (lambda: p_values(SCORES, NETWORK, [0.5], alpha=0.1), TypeError, r"\.sets\(alpha\)"),
    "alpha in quantiles": (
        lambda: quantiles(SCORES, NETWORK, alpha=0.1),
        TypeError,
        r"quantiles has no argument 'alpha'; it takes q=",
    ),
    "pac_confidence in p_values": (
        lambda: p_values(SCORES, NETWORK, [0.5], pac_confidence=0.9),
        TypeError,
        r"use calibrate\(..., pac_confidence=...\)",
    ),
    "groups in p_values": (
        lambda: p_values(SCORES, NETWORK, [0.5], groups=GROUPS),
        TypeError,
        r"p_values has no argument 'groups'; use calibrate\(..., groups=...\) or control\(..., groups=...\)",
    ),
    "an option of another method": (  # as before
        lambda: calibrate(SCORES, NETWORK, rounds=3),
        ValueError,
        "method 'e-dcp' has no option 'rounds': it belongs to",
    ),
    # one number where several are expected, and none
    "one alpha in solve_draws": (
        lambda: solve_draws(WeightedScores.of(SCORES), NETWORK, 0.1, "e-dcp"),
        TypeError,
        "alphas must be a list",
    ),
    "no alpha": (lambda: calibrate(SCORES, NETWORK, []), ValueError, "at least one alpha, got none"),
    "no risk": (lambda: control(STEPS, NETWORK, []), ValueError, "at least one risk, got none"),
    "a text that is no alpha": (
        lambda: calibrate(SCORES, NETWORK, "ten"),
        ValueError,
        "alpha must be a number strictly between 0 and 1, got 'ten'",
    ),
    "a wrong alpha among several": (
        lambda: calibrate(SCORES, NETWORK, [0.1, 1.5]),
        ValueError,
        "alpha must lie strictly between 0 and 1, got 1.5",
    ),
    "one test weight": (
        lambda: calibrate(SCORES, NETWORK, weight=SCORES, weight_bound=1, test_weights=0.5),
        TypeError,
        r"test_weights must be a list of numbers, got 0.5",
    ),
    # groups, labels, weights, inputs and test scores
    "groups in a row": (
        lambda: calibrate(SCORES, NETWORK, groups=np.concatenate(GROUPS)),
        ValueError,
        "groups must be one array per device .* got 100 values in a row",
    ),
    "names of groups in a row": (
        lambda: calibrate(SCORES, NETWORK, groups=["x", "y"] * 50),
        ValueError,
        "groups must be one array per device .* got 100 values in a row",
    ),
    "groups of a frame as an array": (
        lambda: calibrate(FRAME, "cycle", groups=FRAME["site"].to_numpy()),
        TypeError,
        "groups must be the name of a column.* got ndarray",
    ),
    "groups of a frame as a column": (
        lambda: calibrate(FRAME, "cycle", groups=FRAME["site"]),
        TypeError,
        "groups must be the name of a column.* got Series",
    ),
    "groups of a frame as a list": (
        lambda: calibrate(FRAME, "cycle", groups=FRAME["site"].tolist()),
        ValueError,
        "groups: unknown column 'x'.* groups are names of columns",
    ),
    "a column of groups without a frame": (
        lambda: calibrate(SCORES, NETWORK, groups="site"),
        TypeError,
        "groups='site' names a column, so scores must be a frame",
    ),
    "groups as a number": (lambda: calibrate(SCORES, NETWORK, groups=3), TypeError, "groups must be one array"),
    "groups of too few devices": (
        lambda: calibrate(SCORES, NETWORK, groups=GROUPS[:3]),
        ValueError,
        "scores came for 4 devices but groups for 3",
    ),
    "group_atoms as a number": (
        lambda: calibrate(SCORES, NETWORK, groups=GROUPS, group_atoms=3),
        TypeError,
        "group_atoms must be combinations of groups",
    ),
    "labels in a row": (
        lambda: p_values(SCORES, NETWORK, [0.5], labels=np.concatenate(GROUPS), test_labels=[0]),
        ValueError,
        "labels must be one array per device",
    ),
    "a column of labels without a frame": (
        lambda: p_values(SCORES, NETWORK, [0.5], labels="y", test_labels=[0]),
        TypeError,
        "labels='y' names a column, so scores must be a frame",
    ),
    "labels of a shift in a row": (
        lambda: calibrate(SCORES, NETWORK, class_weights=[1, 2], labels=np.concatenate(GROUPS)),
        ValueError,
        "labels must be one array per device",
    ),
    "one class weight": (
        lambda: calibrate(SCORES, NETWORK, class_weights=2.0, labels=GROUPS),
        TypeError,
        "class_weights must be a dict by class, or a list",
    ),
    "Ratios without inputs": (
        lambda: calibrate(SCORES, NETWORK, weight=RATIOS),
        ValueError,
        r"weight=LikelihoodRatios .* needs inputs=, the inputs of each device",
    ),
    "inputs in a row": (
        lambda: calibrate(SCORES, NETWORK, weight=RATIOS, inputs=np.concatenate(INPUTS)),
        ValueError,
        "inputs must be one array per device",
    ),
    "weights in a row": (
        lambda: calibrate(SCORES, NETWORK, weight=np.ones(100), weight_bound=5),
        ValueError,
        "weight must be one array per device",
    ),
    "one weight": (
        lambda: calibrate(SCORES, NETWORK, weight=3, weight_bound=5),
        TypeError,
        "weight must be one array per device",
    ),
    "inputs of text": (
        lambda: estimate_ratios([["a"]] * 5, [["b"]] * 5),
        TypeError,
        "source inputs must be numbers",
    ),
    "test scores in a row": (
        lambda: detect(SCORES, NETWORK, np.concatenate(TESTS)),
        ValueError,
        "test_scores must be one array per device",
    ),
    "test scores of too few devices": (
        lambda: detect(SCORES, NETWORK, TESTS[:3]),
        ValueError,
        "has 4 devices but test scores came for 3",
    ),
    "test scores that are ragged": (
        lambda: p_values(SCORES, NETWORK, [[0.1], [0.2, 0.3]]),
        ValueError,
        "test scores: .* rows of different lengths",
    ),
    "a number of classes": (
        lambda: p_values(SCORES, NETWORK, [[0.5, 0.3]], classes=2),
        TypeError,
        "classes must be the names of the columns",
    ),
    "draws of p_values as a number": (
        lambda: p_values(SCORES, NETWORK, PROBABILITIES, score="aps", draws=3),
        TypeError,
        "draws must be a dict",
    ),
    "sample_size of detect as text": (
        lambda: detect(SCORES, NETWORK, TESTS, sample_size="a"),
        TypeError,
        "sample_size must be a whole number",
    ),
    # roles of columns, sides and what goes together
    "a role that there is not": (
        lambda: calibrate(FRAME, "cycle", columns={"divice": "device"}),
        ValueError,
        "columns: unknown role 'divice', did you mean 'device'",
    ),
    "columns as text": (
        lambda: calibrate(FRAME, "cycle", columns="score"),
        TypeError,
        r"columns must be a dict such as \{'device': 'hospital', 'score': 's'\}, got str",
    ),
    "a column that the frame lacks": (
        lambda: calibrate(FRAME, "cycle", columns={"device": "hospital"}),
        ValueError,
        "must have the columns 'hospital' and 'score', .* got device, score, site",
    ),
    "lower_share without sides": (
        lambda: calibrate(SCORES, NETWORK, lower_share=0.3),
        ValueError,
        "lower_share says how two sides share alpha; use it with symmetric=False",
    ),
    "lower_share of everything": (
        lambda: calibrate([RNG.random((25, 2))] * 4, NETWORK, symmetric=False, lower_share=1),
        ValueError,
        "lower_share must lie strictly between 0 and 1, got 1",
    ),
    "one column for two sides": (
        lambda: calibrate(SCORES, NETWORK, symmetric=False),
        ValueError,
        r"device 0: sides must have two columns, how far labels lie below and above, got shape \(25,\)",
    ),
    "centres without inputs": (
        lambda: calibrate(SCORES, NETWORK, centres=CENTRES),
        ValueError,
        "centres need inputs=, the features of every score",
    ),
    "inputs without centres": (
        lambda: calibrate(SCORES, NETWORK, inputs=INPUTS),
        ValueError,
        "inputs go with a weight that is a function of them, or with centres=; neither was given",
    ),
    "a group rule without groups": (
        lambda: calibrate(SCORES, NETWORK, group_rule="max"),
        ValueError,
        "group_rule, group_order and group_atoms say how groups are covered; name them with groups=",
    ),
    "no test scores": (lambda: p_values(SCORES, NETWORK), TypeError, "p_values needs test_scores="),
    "nothing to detect": (lambda: detect(SCORES, NETWORK), TypeError, "detect needs test_scores="),
    "centres as a number": (
        lambda: calibrate(SCORES, NETWORK, inputs=INPUTS, centres=3),
        TypeError,
        "centres must come from choose_centres",
    ),
    "a number of centres as text": (
        lambda: choose_centres(np.linspace(0, 1, 50), "3"),
        TypeError,
        "number of centres must be a whole number, got '3'",
    ),
    # losses
    "arrays for losses": (
        lambda: control([RNG.random((25, 10))] * 4, NETWORK),
        ValueError,
        r"device 0: losses must be StepLosses.*got an array of shape \(25, 10\).*StepLosses.on_grid\(lambdas, table\)",
    ),
    "scores for losses": (lambda: control(SCORES, NETWORK), ValueError, r"got an array of shape \(25,\)"),
    "losses of one device": (lambda: control(STEPS[0], NETWORK), TypeError, "losses are the StepLosses of one device"),
    "numbers for losses": (lambda: control([1.0, 2.0, 3.0, 4.0], NETWORK), ValueError, "losses must be one"),
    # engines, observers, faults, samples
    "an engine that is a network": (
        lambda: calibrate(SCORES, NETWORK, engine=NETWORK.ids),
        TypeError,
        "engine must be the name of one",
    ),
    "an observer that is a number": (
        lambda: calibrate(SCORES, NETWORK, observer=3),
        TypeError,
        "observer must be a function of round, message and answer",
    ),
    "faults as text": (
        lambda: calibrate(SCORES, NETWORK, faults="loss"),
        TypeError,
        "faults must be a Faults or a dict",
    ),
    "arrays for samples": (
        lambda: solve_draws(SCORES, NETWORK, [0.1], "e-dcp"),
        TypeError,
        "samples must be WeightedScores",
    ),
    "a name for the network of a batch": (
        lambda: solve_draws(WeightedScores.of(SCORES), "cycle", [0.1], "e-dcp"),
        TypeError,
        "network must be a Network",
    ),
    # comparing and planning
    "one network to compare": (lambda: compare(SCORES, NETWORK), TypeError, "networks must be a list"),
    "one name to compare": (lambda: compare(SCORES, "cycle"), TypeError, r"networks must be a list.*\['cycle'\]"),
    "names for ways": (
        lambda: compare(SCORES, [NETWORK], 0.1, ["e-dcp"]),
        TypeError,
        r"ways must be a list of MethodVariant.*compared_ways\(\['e-dcp'\]\)",
    ),
    "two trials to compare": (
        lambda: compare(WeightedScores.of_trials([SCORES, SCORES]), [NETWORK], 0.1, []),
        TypeError,
        "data must be one array of scores per device.* got WeightedScores",
    ),
    "a plan for a number": (lambda: plan(20), TypeError, r"where must be a Network.*Network.of\('torus', 20\)"),
    "a plan for a name": (lambda: plan("cycle"), TypeError, "where must be a Network"),
    "a plan for a graph of NetworkX": (
        lambda: plan(nx.cycle_graph(4)),
        TypeError,
        r"where must be a Network.*Network.from_networkx",
    ),
    "half a score": (
        lambda: plan(NETWORK, 1.5),
        TypeError,
        "scores_per_device must be a whole number, or one per device, got 1.5",
    ),
    "scores instead of their number": (
        lambda: plan(NETWORK, SCORES),
        TypeError,
        "scores_per_device must be a whole number, or one per device",
    ),
    "a link as a number": (lambda: plan(NETWORK, link=100), TypeError, "link must be a Link or a text such as"),
    "one method to plan": (lambda: plan(NETWORK, methods="e-dcp"), TypeError, r"methods must be a list.*\['e-dcp'\]"),
    "an option that no method has": (
        lambda: plan(NETWORK, options={"foo": 1}),
        ValueError,
        "options: none of the methods has 'foo'",
    ),
    "options as text": (lambda: plan(NETWORK, options="a"), TypeError, "options must be a dict"),
    # online
    "streams that are ragged": (
        lambda: online([[1.0, 2.0], [1.0], [1.0], [1.0]], NETWORK),
        ValueError,
        "streams must be a table of numbers, .* rows of different lengths",
    ),
    "streams of text": (lambda: online([["a"]] * 4, NETWORK), TypeError, "streams must be a table of numbers"),
    "a long frame for streams": (lambda: online(FRAME, NETWORK), TypeError, "streams must be a table of numbers"),
    "streams of other devices": (
        lambda: online(dict(zip("abcd", STREAMS, strict=True)), NETWORK),
        ValueError,
        "streams are given for device 'a', which the network does not have",
    ),
    "a number for the network of streams": (lambda: online(STREAMS, 4), TypeError, "network must be a Network"),
    "delays of another shape": (
        lambda: online(STREAMS, NETWORK, delays=[1, 2]),
        ValueError,
        r"delays must be one number or have shape \(4, 30\), got shape \(2,\)",
    ),
    "present of another shape": (
        lambda: online(STREAMS, NETWORK, present=[True, False]),
        ValueError,
        r"present must be one value or have shape \(4, 30\), got shape \(2,\)",
    ),
    "largest as text": (lambda: online(STREAMS, NETWORK, largest="a"), TypeError, "largest must be a number"),
    "local as text": (lambda: online(STREAMS, NETWORK, local="a"), TypeError, "local and scale must be numbers"),
    "a class of learners": (
        lambda: online(STREAMS, NETWORK, 0.1, ACI),
        TypeError,
        "learner must be a name.* or a learner such as ACI",
    ),
    # networks
    "a self-loop": (
        lambda: calibrate(SCORES, LOOPED),
        ValueError,
        r"Network.from_networkx\(graph, self_loops='drop'\)",
    ),
    "pairs that are none": (
        lambda: Network.from_pairs(range(3), [0, 1, 2]),
        TypeError,
        r"edges must be pairs of devices, such as \('0', '1'\), got 0",
    ),
    "pairs of three": (lambda: Network.from_pairs(range(3), [(0, 1, 2)]), TypeError, r"edges must be pairs of devices"),
    # scores
    "percentages": (
        lambda: scores.LAC()(100 * PROBABILITIES, Y),
        ValueError,
        "these look like percentages: divide them by 100",
    ),
    "rounded percentages": (
        lambda: scores.APS()(np.array([[33.3, 33.3, 33.3]]), [0]),
        ValueError,
        "these look like percentages: divide them by 100",
    ),
    "logits": (lambda: scores.LAC()(np.array([[3.0, -1.0]]), [0]), ValueError, "these look like logits"),
    # estimators
    "a regressor to classify": (
        lambda: MeshClassifier(Ridge().fit(X, Y)).calibrate(X, Y),
        TypeError,
        "MeshClassifier needs a classifier, got Ridge, which is a regressor; use MeshRegressor",
    ),
    "a regressor to train": (
        lambda: MeshClassifier(Ridge(), calibration_size=0.5).fit(X, Y),
        TypeError,
        "MeshClassifier needs a classifier, got Ridge",
    ),
    "a classifier for numbers": (
        lambda: MeshRegressor(LogisticRegression().fit(X, Y)).calibrate(X, Y),
        TypeError,
        "MeshRegressor needs a regressor, got LogisticRegression, which is a classifier; use MeshClassifier",
    ),
    "a class of estimators": (
        lambda: MeshClassifier(LogisticRegression).calibrate(X, Y),
        TypeError,
        r"estimator must be an estimator, got the class LogisticRegression; write LogisticRegression\(\)",
    ),
    "no estimator": (
        lambda: MeshClassifier(None).calibrate(X, Y),
        TypeError,
        "estimator must have predict_proba or decision_function, got NoneType",
    ),
    "options as a list": (
        lambda: classifier(options=["a"]).calibrate(X, Y),
        TypeError,
        "options must be a dict, got list",
    ),
    "alpha among options": (
        lambda: classifier(options={"alpha": 0.2}).calibrate(X, Y),
        TypeError,
        r"options: 'alpha' is a parameter of MeshClassifier; write MeshClassifier\(..., alpha=0.2\)",
    ),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_named(name):
    mistake, error, words = MISTAKES[name]
    with pytest.raises(error, match=words):
        mistake()


def test_streams_by_device_name_are_in_the_order_of_the_network():
    names = NETWORK.relabelled(["b", "a", "d", "c"])
    by_name = dict(zip(names.ids, STREAMS, strict=True))
    expected = online(STREAMS, names).thresholds
    np.testing.assert_array_equal(online(dict(sorted(by_name.items())), names).thresholds, expected)


def test_what_a_self_loop_says_to_do_works():
    found = calibrate(SCORES, Network.from_networkx(LOOPED, self_loops="drop"))
    assert found.threshold == calibrate(SCORES, NETWORK).threshold


def test_a_seed_is_refused_with_the_reason():
    held = [[0.1, 0.2, 0.3, 0.4]] * 3
    with pytest.raises(TypeError, match="detect takes rng="):
        detect(held, "chain", held, seed=3)
    with pytest.raises(ValueError, match="'p-dcp' has no seed"):
        calibrate(held, "chain", 0.3, "p-dcp", seed=3)


def test_levels_that_are_probably_meant_the_other_way_get_a_note():
    held = [np.linspace(0, 1, 40)] * 3
    sides = [np.column_stack([own, own]) for own in held]
    words = "pac_confidence=0.05 lets 95 % of calibrations miss their coverage; did you mean pac_confidence=0.95?"
    for run in (
        lambda: calibrate(held, "chain", 0.3, pac_confidence=0.05),
        lambda: calibrate(sides, "chain", 0.4, pac_confidence=0.05, symmetric=False),
    ):
        with pytest.warns(CalibrationNote) as notes:
            run()
        assert [str(each.message) for each in notes].count(words) == 1
    with pytest.warns(CalibrationNote, match="fdr=0.9 lets 90 % of the flagged points be wrong; did you mean fdr=0.1"):
        detect(held, "chain", held, 0.9)
