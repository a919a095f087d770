"""Guarantees of the core around a model: groups, classes, levels, weights, centres, sides, losses.

Every answer is compared with `calibrate` or `control` of the same scores by hand.
"""

import pickle
from fractions import Fraction

import numpy as np
import polars as pl
import pytest
from sklearn.base import clone
from sklearn.datasets import load_diabetes, load_iris
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.multiclass import OneVsRestClassifier

from conformesh import Result, Table, calibrate, choose_centres, control, estimate_ratios, p_values
from conformesh.scores import LAC, AbsoluteResidual, losses
from conformesh.sklearn import MeshClassifier, MeshRegressor

RNG = np.random.default_rng(3)
X, Y = load_iris(return_X_y=True)
X = X + RNG.normal(0, 0.8, X.shape)  # a model that is not always right
TRAIN, REST = np.arange(150) % 3 == 0, np.arange(150) % 3 > 0
SITES = np.array(["north", "south", "west", "east"])[np.arange(100) % 4]
NAMES = tuple(sorted({*SITES}))
GROUPS = np.where(np.arange(150) % 5 < 3, "old", "young")
WEIGHTS = 1 + np.arange(150) % 3
MODEL = LogisticRegression(max_iter=1000).fit(X[TRAIN], Y[TRAIN])
P = MODEL.predict_proba(X)
SCORES = LAC()(P[REST], Y[REST])

DX, DY = load_diabetes(return_X_y=True)
RIDGE = Ridge().fit(DX[:150], DY[:150])


def by_site(values):
    return {name: values[name == SITES] for name in NAMES}


def mesh_of(model=MODEL, **params):
    return MeshClassifier(model, alpha=0.2, **params)


def calibrated(params=None, **given):
    return mesh_of(**(params or {})).calibrate(X[REST], Y[REST], devices=SITES, **given)


def by_hand(alpha=0.2, **given):
    return calibrate(by_site(SCORES), None, alpha, score="lac", classes=[0, 1, 2], **given)


def test_the_network_is_that_of_calibrate():
    """One default everywhere: a torus, or a cycle where the number of devices has no two factors."""
    assert calibrated().result_.network == by_hand().network
    prime = mesh_of().calibrate(X[REST], Y[REST], devices=np.arange(100) % 5)
    assert prime.result_.network == calibrate([np.arange(20.0)] * 5).network


# --- groups -----------------------------------------------------------------------------------------------------------


def test_every_group_has_its_threshold():
    mesh = calibrated(groups=GROUPS[REST])
    wanted = by_hand(groups=by_site(GROUPS[REST]))
    assert mesh.result_.groups == ("old", "young")
    for name in ("old", "young"):
        assert mesh.result_[name].threshold == wanted[name].threshold
        assert mesh.result_[name].examples == wanted[name].examples
    np.testing.assert_array_equal(mesh.predict_set(X, groups=GROUPS), wanted.predict(P, groups=GROUPS))
    report = mesh.evaluate(X, Y, groups=GROUPS)
    assert {name: own.rows for name, own in report.per_group.items()} == {"old": 90, "young": 60}
    with pytest.raises(ValueError, match=r"predict_set needs groups=, those of each row"):
        mesh.predict_set(X)
    with pytest.raises(ValueError, match=r"needs the groups of each of 150 rows, got groups of 3"):
        mesh.predict_set(X, groups=["old"] * 3)
    with pytest.raises(ValueError, match=r"no threshold for group 'middle'"):
        mesh.predict_set(X, groups=["middle"] * 150)
    with pytest.raises(ValueError, match=r"groups= is for a calibration with groups"):
        calibrated().predict_set(X, groups=GROUPS)


@pytest.mark.parametrize("form", ["lists", "mask", "columns"])
def test_groups_may_overlap(form):
    night = np.arange(150) % 2 == 0
    old = GROUPS == "old"
    lists = [["old"] * int(a) + ["night"] * int(b) for a, b in zip(old, night, strict=True)]
    given = {"lists": lists, "mask": {"old": old, "night": night}, "columns": ["old", "night"]}[form]
    rows, kept = X, [given[i] for i in np.flatnonzero(REST)] if form == "lists" else given
    names = ["a", "b", "c", "d"]
    model = MODEL
    if form == "mask":
        kept = {name: own[REST] for name, own in given.items()}
    if form == "columns":
        rows = pl.DataFrame(X, schema=names).with_columns(old=old, night=night)
        model = LogisticRegression(max_iter=1000).fit(rows[names].filter(TRAIN), Y[TRAIN])
    part = rows.filter(REST) if form == "columns" else rows[REST]
    mesh = mesh_of(model).calibrate(part, Y[REST], devices=SITES, groups=kept, group_rule="max")
    own = [lists[i] for i in np.flatnonzero(REST)]
    wanted = by_hand(groups={name: [own[i] for i in np.flatnonzero(name == SITES)] for name in NAMES}, group_rule="max")
    assert mesh.result_.parts == wanted.parts
    for group in wanted.groups:
        assert mesh.result_[group].threshold == pytest.approx(wanted[group].threshold, rel=1e-12)
    np.testing.assert_array_equal(mesh.predict_set(rows, groups=given), wanted.predict(P, groups=lists))
    with pytest.raises(ValueError, match=r"there are no p-values of groups that overlap"):
        mesh.predict_p(rows, groups=given)


def test_a_column_names_groups_and_weights():
    names = ["a", "b", "c", "d"]
    frame = pl.DataFrame(X, schema=names).with_columns(
        site=pl.Series(np.resize(SITES, 150)), age=pl.Series(GROUPS), weight=pl.Series(WEIGHTS)
    )
    model = LogisticRegression(max_iter=1000).fit(frame[names].filter(TRAIN), Y[TRAIN])
    kept = frame.filter(REST)
    mesh = mesh_of(model).calibrate(
        kept, Y[REST], devices="site", groups="age", sample_weight="weight", weight_bound=3, test_weights=[1]
    )
    wanted = mesh_of(model).calibrate(
        kept[names], Y[REST], devices=kept["site"], groups=kept["age"], sample_weight=kept["weight"], weight_bound=3,
        test_weights=[1],
    )  # fmt: skip
    assert (
        mesh.result_["age=old", "weight at most 1.0"].threshold == wanted.result_["old", "weight at most 1.0"].threshold
    )
    sets = mesh.predict_set(frame.drop("site"), groups="age", sample_weight="weight")
    np.testing.assert_array_equal(sets, wanted.predict_set(frame[names], groups=GROUPS, sample_weight=WEIGHTS))
    with pytest.raises(ValueError, match=r"groups: unknown column 'ages', did you mean 'age'"):
        mesh.calibrate(kept, Y[REST], devices="site", groups="ages")


def test_rows_by_device_have_groups_by_device():
    wanted = calibrated(groups=GROUPS[REST], sample_weight=WEIGHTS[REST], weight_bound=3)
    own = np.flatnonzero(REST)
    rows = {name: (X[own[name == SITES]], Y[own[name == SITES]]) for name in NAMES}
    given = {"groups": by_site(GROUPS[REST]), "sample_weight": by_site(WEIGHTS[REST])}
    mesh = mesh_of().calibrate(rows, **given, weight_bound=3)
    assert [a.threshold for a in mesh.result_.answers] == pytest.approx(
        [a.threshold for a in wanted.result_.answers], rel=1e-12
    )
    in_order = mesh_of().calibrate([*rows.values()], groups=[*given["groups"].values()])
    assert in_order.result_.groups == ("old", "young")
    with pytest.raises(
        ValueError, match=r"groups must come by device as the rows do, .* each of 4 devices, got ndarray"
    ):
        mesh_of().calibrate(rows, groups=GROUPS[REST])


def test_fit_keeps_groups_for_calibration():
    mesh = MeshClassifier(LogisticRegression(max_iter=1000), calibration_size=0.4, random_state=0)
    mesh.fit(X, Y, devices=np.resize(SITES, 150), groups=GROUPS)
    assert mesh.result_.groups == ("old", "young")
    assert sum(answer.examples for answer in mesh.result_.answers) == len(mesh.table_)
    with pytest.raises(ValueError, match=r"groups are for calibration; set calibration_size"):
        mesh.set_params(calibration_size=None).fit(X, Y, groups=GROUPS)


@pytest.mark.parametrize("names", [(0, 1, 2), (3, 5, 8), ("setosa", "versicolor", "virginica"), (1.0, 2.0, 4.0)])
def test_sets_may_be_class_conditional(names):
    labels = np.array(names)[Y]
    model = LogisticRegression(max_iter=1000).fit(X[TRAIN], labels[TRAIN])
    mesh = mesh_of(model, class_conditional=True).calibrate(X[REST], labels[REST], devices=SITES)
    wanted = by_hand(groups=by_site(Y[REST]))
    assert mesh.result_.groups == tuple(map(str, names))
    np.testing.assert_array_equal(mesh.predict_set(X), wanted.predict(P))
    np.testing.assert_array_equal(mesh.predict_p(X) > 0.1234, mesh.predict_set(X, alpha=0.1234))
    assert mesh.evaluate(X, labels).coverage.covered == wanted.evaluate(P, Y).coverage.covered
    assert mesh.predict_set(X[:1], as_names=True)[0] <= tuple(names)
    few = mesh_of(model, class_conditional=True).calibrate(X[REST][Y[REST] > 0], labels[REST][Y[REST] > 0])
    assert few.predict_set(X)[:, 0].all()  # a class without calibration rows is in every set


def test_a_group_that_is_called_as_a_class_is_none():
    """Without groups= the threshold of cohort 1 would be taken for that of class 1."""
    cohort = np.arange(150) // 7 % 3
    mesh = calibrated(groups=cohort[REST])
    for predict in (mesh.predict_set, mesh.predict_p):
        assert predict(X, groups=cohort).shape == (150, 3)
        with pytest.raises(ValueError, match=r"needs groups=, those of each row"):
            predict(X)
    with pytest.raises(ValueError, match=r"evaluate needs groups=, those of each row"):
        mesh.evaluate(X, Y)
    by_class = calibrated({"class_conditional": True})
    for predict in (by_class.predict_set, by_class.predict_p, calibrated(class_weights=[1, 2, 3]).predict_set):
        with pytest.raises(ValueError, match=r"groups= is for a calibration with groups"):
            predict(X, groups=cohort)
    with pytest.raises(ValueError, match=r"class_conditional=True has the classes as groups"):
        calibrated({"class_conditional": True}, groups=cohort[REST])


# --- levels -----------------------------------------------------------------------------------------------------------


def test_several_levels_are_one_run():
    mesh = MeshClassifier(MODEL, alpha=[0.1, 0.2]).calibrate(X[REST], Y[REST], devices=SITES)
    same = MeshClassifier(MODEL, confidence_level=[0.9, 0.8]).calibrate(X[REST], Y[REST], devices=SITES)
    assert mesh.result_.alphas == same.result_.alphas == (0.1, 0.2)
    for alpha in (0.1, 0.2):
        assert mesh.result_.at(alpha).threshold == by_hand(alpha).threshold
        np.testing.assert_array_equal(mesh.predict_set(X, alpha=alpha), by_hand(alpha).predict(P))
        assert mesh.evaluate(X, Y, alpha=alpha).nominal == pytest.approx(1 - alpha)
    np.testing.assert_array_equal(mesh.predict_set(X, alpha=0.3), by_hand(0.3).predict(P))  # one more run
    assert mesh.result_.alphas == (0.1, 0.2)
    with pytest.raises(ValueError, match=r"say which alpha: 0.1, 0.2, got None"):
        mesh.predict_set(X)
    with pytest.raises(ValueError, match=r"2 alphas have no one pair of quantiles; give quantiles="):
        MeshRegressor(Ridge(), nonconformity="cqr", alpha=[0.1, 0.2]).fit(X, Y)


def test_another_level_has_the_same_groups_and_weights():
    given = {"groups": GROUPS[REST], "sample_weight": WEIGHTS[REST], "weight_bound": 3, "mixture": "equal"}
    mesh = calibrated(**given)
    assert mesh.result_.guarantee.mixture.kind == "equal"
    other = mesh_of().set_params(alpha=0.4).calibrate(X[REST], Y[REST], devices=SITES, **given)
    np.testing.assert_array_equal(mesh.predict_set(X, alpha=0.4, groups=GROUPS), other.predict_set(X, groups=GROUPS))


def test_another_level_is_found_as_the_first_one_was():
    """Parameters that were set since are for the next calibration."""
    plain = MeshRegressor(RIDGE, symmetric=False).calibrate(DX[150:300], DY[150:300], devices=np.arange(150) % 6)
    wanted = plain.predict_interval(DX[300:], alpha=0.3)
    plain.set_params(symmetric=True, method="local", mixture="equal")
    np.testing.assert_array_equal(plain.predict_interval(DX[300:], alpha=0.3), wanted)
    mesh = calibrated()
    sets = mesh.predict_set(X, alpha=0.3)
    np.testing.assert_array_equal(mesh.set_params(loss="class-cost").predict_set(X, alpha=0.3), sets)


def test_parameters_of_the_rank():
    params = {"pac_confidence": 0.9, "rank_rule": "swap", "mixture": "equal"}
    mesh = calibrated(params)
    wanted = by_hand(**params)
    assert str(mesh.result_.certificate) == str(wanted.certificate)
    assert mesh.result_.threshold == wanted.threshold
    assert mesh.result_.certificate.pac_confidence == 0.9


def test_a_confidence_at_all_looks_is_a_parameter():
    params = {"pac_confidence": 0.9, "time_uniform": True, "mixture": "equal"}
    mesh, wanted = calibrated(params), by_hand(**params)
    assert str(mesh.result_.certificate) == str(wanted.certificate)
    assert (mesh.result_.certificate.time_uniform, mesh.result_.threshold) == (True, wanted.threshold)
    with pytest.raises(ValueError, match="time_uniform=True needs pac_confidence"):
        calibrated({"time_uniform": True})


# --- shift and centres ------------------------------------------------------------------------------------------------


def heavier(rows):
    return 1 + 2 * (rows[:, 0] > 6)


def test_weights_of_rows():
    weight = heavier(X)
    wanted = by_hand(weight=by_site(weight[REST]), weight_bound=3, test_weights=[1])
    for given in (weight[REST], heavier):
        mesh = calibrated(sample_weight=given, weight_bound=3, test_weights=[1])
        assert mesh.result_["weight at most 1.0"].threshold == wanted["weight at most 1.0"].threshold
        assert mesh.result_["weight at most 3.0"].threshold == wanted["weight at most 3.0"].threshold
        for own in (weight, heavier):
            np.testing.assert_array_equal(mesh.predict_set(X, sample_weight=own), wanted.predict(P, weight=weight))
        assert mesh.evaluate(X, Y, sample_weight=heavier).coverage.rows == 150
        p = p_values(by_site(SCORES), None, 1 - P, weight=by_site(weight[REST]), weight_bound=3)
        np.testing.assert_array_equal(mesh.predict_p(X), p.values)
    with pytest.raises(ValueError, match=r"weight_bound and test_weights go with sample_weight="):
        calibrated(weight_bound=3)
    with pytest.raises(ValueError, match=r"weight needs weight_bound="):
        calibrated(sample_weight=weight[REST])
    with pytest.raises(
        ValueError, match=r"sample_weight to be a number for each of 100 rows, got int64 of shape \(7,\)"
    ):
        calibrated(sample_weight=weight[:7], weight_bound=3)
    with pytest.raises(ValueError, match=r"predict_set needs sample_weight=, one per row"):
        mesh.predict_set(X)


def test_estimated_weights_are_an_assumption():
    ratios = estimate_ratios(X[REST], X[X[:, 0] > 5.5], rng=0)
    mesh = calibrated(sample_weight=ratios)
    assert mesh.result_.certificate.kind == "assumed"
    assert "estimated by a classifier" in str(mesh.result_.certificate)
    wanted = by_hand(weight=ratios, inputs=by_site(X[REST]))
    assert mesh.result_.threshold == wanted.threshold


@pytest.mark.parametrize("given", [{0: 1.0, 1: 2.0, 2: 0.5}, [1.0, 2.0, 0.5]])
def test_weights_of_classes(given):
    mesh = calibrated(class_weights=given)
    wanted = by_hand(class_weights={0: 1.0, 1: 2.0, 2: 0.5}, labels=by_site(Y[REST]))
    np.testing.assert_array_equal(mesh.predict_set(X), wanted.predict(P))
    np.testing.assert_array_equal(mesh.predict_set(X, alpha=0.4).sum() < mesh.predict_set(X).sum(), True)
    with pytest.raises(ValueError, match=r"there are no p-values with class_weights"):
        mesh.predict_p(X)


def test_coverage_near_centres():
    centres = choose_centres(X[TRAIN], 3, rng=0)
    mesh = calibrated(centres=centres)
    wanted = by_hand(centres=centres, inputs=by_site(X[REST]))
    assert [answer.threshold for answer in mesh.result_.answers] == [answer.threshold for answer in wanted.answers]
    np.testing.assert_array_equal(mesh.predict_set(X, rng=5), wanted.predict(P, inputs=X, rng=5))
    assert len(mesh.evaluate(X, Y, rng=5).per_centre) == 3
    one = choose_centres(X[TRAIN][:, :1], 2, rng=0)
    chosen = calibrated(centres=one, inputs=X[REST][:, 0])
    assert chosen.predict_set(X, inputs=X[:, 0], rng=1).shape == (150, 3)
    with pytest.raises(ValueError, match=r"there are no p-values with centres"):
        mesh.predict_p(X)


# --- p-values ---------------------------------------------------------------------------------------------------------


LEVELS = (0.1234, 0.2071, 0.3519)  # no p-value equals these, which would be rounded up


def test_p_values_by_group_are_above_alpha_in_the_sets():
    mesh = calibrated(groups=GROUPS[REST])
    p = mesh.predict_p(X, groups=GROUPS)
    for alpha in LEVELS:
        np.testing.assert_array_equal(p > alpha, mesh.predict_set(X, alpha=alpha, groups=GROUPS))
    np.testing.assert_array_equal(mesh.predict_p(X, Y, groups=GROUPS), p[np.arange(150), Y])
    with pytest.raises(ValueError, match=r"predict_p needs groups=, those of each row"):
        mesh.predict_p(X)
    with pytest.raises(ValueError, match=r"unknown group 'middle'"):
        mesh.predict_p(X[:1], groups=["middle"])
    with pytest.raises(ValueError, match=r"groups= is for a calibration with groups"):
        calibrated().predict_p(X, groups=GROUPS)


@pytest.mark.parametrize("share", [None, 0.8, Fraction(1, 3)])
@pytest.mark.parametrize("groups", [False, True])
def test_intervals_with_two_sides_hold_the_numbers_with_large_p_values(share, groups):
    cohort = np.arange(442) % 2
    mesh = MeshRegressor(RIDGE, symmetric=False, options={} if share is None else {"lower_share": share})
    more = {"groups": cohort[150:300]} if groups else {}
    mesh.calibrate(DX[150:300], DY[150:300], devices=np.arange(150) % 6, **more)
    new = {"groups": cohort[300:]} if groups else {}
    p = mesh.predict_p(DX[300:], DY[300:], **new)
    assert p.max() <= 1
    for alpha in LEVELS:
        low, high = mesh.predict_interval(DX[300:], alpha=alpha, **new).T
        np.testing.assert_array_equal(p > alpha, (low <= DY[300:]) & (DY[300:] <= high))
    if share is None and not groups:
        sides = AbsoluteResidual().sides(RIDGE.predict(DX[300:]), DY[300:])
        owners = np.repeat(mesh.table_.names, mesh.table_.sizes)
        tables = [Table.from_rows(owners, score=mesh.table_.score[:, k]) for k in (0, 1)]
        each = [p_values(table, None, sides[:, k]).values for k, table in enumerate(tables)]
        np.testing.assert_array_equal(p, np.minimum(1, 2 * np.minimum(*each)))


# --- risk control -----------------------------------------------------------------------------------------------------

MANY = np.stack([Y == 0, Y > 0, X[:, 0] > 5.8, X[:, 1] > 3], axis=1)  # several labels may be true
FNR = losses.FalseNegativeRate()


@pytest.mark.parametrize("kind", ["one table", "a table per label"])
def test_a_share_of_the_true_labels(kind):
    model = RandomForestClassifier(20, max_depth=3, random_state=0)
    if kind == "one table":
        model = OneVsRestClassifier(LogisticRegression(max_iter=1000))
    mesh = MeshClassifier(model, loss="false-negative-rate", risk=0.2).fit(X[TRAIN], MANY[TRAIN].astype(int))
    mesh.calibrate(X[REST], MANY[REST], devices=SITES)
    p = mesh.estimator_.predict_proba(X)
    p = np.stack([own[:, 1] for own in p], axis=1) if isinstance(p, list) else p
    steps = {name: FNR(p[REST][name == SITES], MANY[REST][name == SITES]) for name in NAMES}
    wanted = control(steps, None, 0.2, loss=FNR)
    assert mesh.result_.threshold == wanted.threshold
    assert mesh.result_.mean_losses == wanted.mean_losses
    sets = mesh.predict_set(X)
    np.testing.assert_array_equal(sets, wanted.predict(p))
    assert mesh.predict_set(X, alpha=0.05).sum() > sets.sum()
    assert mesh.predict_set(X[:1], as_names=True) == [tuple(np.flatnonzero(sets[0]))]
    report = mesh.evaluate(X, MANY, devices=np.resize(SITES, 150))
    missed = (MANY & ~sets).sum(axis=1) / np.maximum(MANY.sum(axis=1), 1)
    assert report.row_losses.mean() == pytest.approx(missed.mean())
    assert {*report.per_device} == {*NAMES}
    again = pickle.loads(pickle.dumps(mesh))
    np.testing.assert_array_equal(again.predict_set(X), sets)
    with pytest.raises(ValueError, match=r"a loss has no p-values"):
        mesh.predict_p(X)


def test_risk_by_group_and_at_several_levels(tmp_path):
    model = OneVsRestClassifier(LogisticRegression(max_iter=1000)).fit(X[TRAIN], MANY[TRAIN].astype(int))
    mesh = MeshClassifier(model, loss=losses.FalseNegativeRate, risk=[0.1, 0.3])
    mesh.calibrate(X[REST], MANY[REST], devices=SITES, groups=GROUPS[REST])
    assert mesh.result_.alphas == (0.1, 0.3)
    p = model.predict_proba(X)
    steps = {name: FNR(p[REST][name == SITES], MANY[REST][name == SITES]) for name in NAMES}
    wanted = control(steps, None, [0.1, 0.3], loss=FNR, groups=by_site(GROUPS[REST]))
    assert [answer.threshold for answer in mesh.result_.answers] == [answer.threshold for answer in wanted.answers]
    sets = mesh.predict_set(X, alpha=0.3, groups=GROUPS)
    np.testing.assert_array_equal(sets, wanted.predict(p, alpha=0.3, groups=GROUPS))
    mesh.result_.save(tmp_path / "risk.json")
    np.testing.assert_array_equal(Result.load(tmp_path / "risk.json").predict(p, alpha=0.3, groups=GROUPS), sets)


@pytest.mark.parametrize("loss", ["class-cost", "wrong-and-answered", losses.ClassCost(costs=[1.0, 5.0, 2.0])])
def test_losses_of_one_class(loss):
    names = np.array(["setosa", "versicolor", "virginica"])
    model = LogisticRegression(max_iter=1000).fit(X[TRAIN], names[Y[TRAIN]])
    mesh = MeshClassifier(model, loss=loss, risk=0.15).calibrate(X[REST], names[Y[REST]], devices=SITES)
    kind = losses.as_loss(loss)
    wanted = control(
        {name: kind(P[REST][name == SITES], Y[REST][name == SITES]) for name in NAMES}, None, 0.15, loss=kind
    )
    assert mesh.result_.threshold == wanted.threshold
    np.testing.assert_array_equal(mesh.evaluate(X, names[Y]).row_losses, wanted.evaluate(P, Y).row_losses)
    assert {*mesh.predict_set(X[:1], as_names=True)[0]} <= {*names}


def test_mixtures_that_are_not_known():
    """Estimators hand them to `calibrate`; rows of a device get its own threshold."""
    for asked in ({"mixture": "own"}, {"mixture": "any"}, {"mixture_bound": 2}):
        mesh, wanted = calibrated(asked), by_hand(**asked)
        assert mesh.result_.thresholds.tolist() == wanted.thresholds.tolist()
        assert mesh.result_.certificate == wanted.certificate
        np.testing.assert_array_equal(mesh.predict_set(X[REST], devices=SITES), wanted.predict(P[REST], device=SITES))
        with pytest.raises(ValueError, match="p-values are for one mixture of devices"):
            mesh.predict_p(X)
    assert len({*calibrated({"mixture": "own"}).result_.thresholds.tolist()}) > 1


def test_what_does_not_go_with_a_loss():
    many = MANY[REST]
    for words, params in {
        r"risk is the largest mean loss: give loss=": {"risk": 0.2},
        r"with a loss, give risk= instead of alpha": {"loss": FNR, "alpha": 0.2},
        r"a loss has a score of its own": {"loss": FNR, "nonconformity": "aps"},
    }.items():
        with pytest.raises(ValueError, match=words):
            MeshClassifier(MODEL, **params).calibrate(X[REST], Y[REST])
    with pytest.raises(ValueError, match=r"need one class for each row, got several"):
        MeshClassifier(MODEL, loss=FNR, class_conditional=True).calibrate(X[REST], many[:, :3])
    with pytest.raises(ValueError, match=r"y should be a 1d array"):
        MeshClassifier(MODEL).calibrate(X[REST], many)
    with pytest.raises(ValueError, match="leave pac_confidence out, or test a grid of lambdas"):
        MeshClassifier(MODEL, loss=FNR, pac_confidence=0.9).calibrate(X[REST], many[:, :3])


def test_options_of_calibrate():
    mesh = calibrated(strict=True, prefer="bits")
    assert mesh.result_.options["prefer"] == "bits"
    for words, given in {
        r"'alpha' is a parameter of MeshClassifier; write MeshClassifier\(..., alpha=0.3\)": {"alpha": 0.3},
        r"'weight' follows from 'sample_weight'": {"weight": WEIGHTS},
        r"'score' follows from 'nonconformity'": {"score": "lac"},
        r"'columns' belongs to rows": {"columns": {"device": "site"}},
    }.items():
        with pytest.raises(TypeError, match=words):
            calibrated(**given)
    with pytest.raises(TypeError, match=r"'groups' belongs to rows; give it to calibrate"):
        calibrated({"options": {"groups": GROUPS[REST]}})


def test_clones_and_copies_keep_everything():
    mesh = calibrated({"class_conditional": True, "pac_confidence": None}, sample_weight=heavier, weight_bound=3)
    again = clone(mesh)
    assert again.get_params()["class_conditional"] is True
    copy = pickle.loads(pickle.dumps(mesh))
    np.testing.assert_array_equal(copy.predict_set(X, alpha=0.3), mesh.predict_set(X, alpha=0.3))
    np.testing.assert_array_equal(copy.predict_p(X), mesh.predict_p(X))
