"""`Result` gives what the classes that it replaces give; deleted together with them."""

import numpy as np
import pytest

from conformesh import (
    Centres,
    Network,
    calibrate,
    calibrate_local,
    calibrate_several,
    calibrate_shifted,
    calibrate_sides,
    control,
    control_several,
    losses,
    scores,
)
from conformesh.result.result import Result
from tests.result.converting import converted

RNG = np.random.default_rng(0)
NETWORK = Network.cycle(5)
P = RNG.dirichlet(np.ones(4), 500)
Y = np.array([RNG.choice(4, p=row) for row in P])
DEVICE = RNG.integers(0, 5, 500)
X = RNG.random(500)
LAC, APS = scores.LAC(), scores.APS(randomised=True, seed=None)
NEW = RNG.dirichlet(np.ones(4), 60)
NEW_Y, NEW_X, NEW_DEVICE = RNG.integers(0, 4, 60), RNG.random(60), RNG.integers(0, 5, 60)
BAND = np.sort(RNG.normal(size=(500, 2)), axis=1)
TRUTH = BAND.mean(axis=1) + RNG.exponential(size=500)
NEW_BAND, NEW_TRUTH = np.sort(RNG.normal(size=(60, 2)), axis=1), RNG.normal(size=60)


def by_device(values):
    return [values[k == DEVICE] for k in range(5)]


def round_trip(new):
    again = Result.from_dict(new.to_dict())
    assert again.to_dict() == new.to_dict()
    return again


@pytest.mark.parametrize("name", ["e-dcp", "local", "h-dcp", "average"])
def test_one_threshold(name):
    old = calibrate(by_device(LAC(P, Y)), NETWORK, 0.2, name, score=LAC)
    new = round_trip(converted(old))
    assert (new.threshold, new.alpha, new.examples) == (old.threshold, old.alpha, old.scores)
    assert new.facts() == old.facts()
    assert new.title() == old.title()
    assert new.certificate == old.certificate
    for whose in (None, 3, NEW_DEVICE, NEW_DEVICE.astype(str).tolist()):
        np.testing.assert_array_equal(new.predict(NEW, device=whose), old.predict(NEW, device=whose))
        assert new.evaluate(NEW, NEW_Y, device=whose) == old.evaluate(NEW, NEW_Y, device=whose)
        np.testing.assert_array_equal(new.thresholds_for(whose), old.thresholds_for(whose))


def test_draws_are_the_same():
    old = calibrate(by_device(LAC(P, Y)), NETWORK, 0.2, score=APS)
    new = converted(old)
    for how in ({"rng": 7}, {"keys": range(60)}):
        np.testing.assert_array_equal(new.predict(NEW, **how), old.predict(NEW, **how))
        assert new.evaluate(NEW, NEW_Y, **how) == old.evaluate(NEW, NEW_Y, **how)


def test_levels_and_classes():
    old = calibrate_several(by_device(LAC(P, Y)), NETWORK, (0.1, 0.3), groups=by_device(Y), score=LAC)
    new = round_trip(converted(old))
    for alpha in (0.1, 0.3):
        np.testing.assert_array_equal(new.predict(NEW, alpha=alpha), old.predict(NEW, alpha=alpha))
        groups = NEW_Y.astype(str)
        np.testing.assert_array_equal(
            new.predict(NEW, alpha=alpha, groups=groups), old.predict(NEW, alpha=alpha, groups=groups)
        )
        assert new.evaluate(NEW, NEW_Y, alpha=alpha) == old.evaluate(NEW, NEW_Y, alpha=alpha)
        assert new.evaluate(NEW, NEW_Y, alpha=alpha, groups=groups) == old.evaluate(
            NEW, NEW_Y, alpha=alpha, groups=groups
        )
        assert new.threshold_for(["2"], alpha) == old.threshold(["2"], alpha)


@pytest.mark.parametrize("rule", ["atoms", "max", "seq", "regression"])
def test_overlapping_groups(rule):
    names = np.array(["young", "north", "night"])
    lists = [[*names[RNG.random(3) < 0.5]] for _ in range(500)]
    lists = [[name for name in row if not (name == "night" and "north" in row)] for row in lists]  # one never occurs
    held = [[row for row, k in zip(lists, DEVICE, strict=True) if k == j] for j in range(5)]
    old = calibrate_several(by_device(LAC(P, Y)), NETWORK, (0.2, 0.3), groups=held, group_rule=rule, score=LAC)
    new = round_trip(converted(old))
    new_groups = [[*names[RNG.random(3) < 0.5]] for _ in range(60)]
    for alpha in (0.2, 0.3):
        np.testing.assert_array_equal(
            new.predict(NEW, groups=new_groups, alpha=alpha), old.predict(NEW, groups=new_groups, alpha=alpha)
        )
        assert new.evaluate(NEW, NEW_Y, groups=new_groups, alpha=alpha) == old.evaluate(
            NEW, NEW_Y, groups=new_groups, alpha=alpha
        )
        for group in new.groups:
            assert new.certificate_of(group, alpha) == old.certificate(group, alpha)
        for row in ([], ["night", "north"], ["everyone", "young"]):
            assert new.threshold_for(row, alpha) == old.threshold(row, alpha)
    never = new.threshold_for(["night", "north"], 0.2)
    assert (never == np.inf) == (rule in ("atoms", "regression"))


def test_sides():
    cqr = scores.CQR()
    old = calibrate_sides(by_device(cqr.sides(BAND, TRUTH)), NETWORK, (0.05, 0.15), "local", score=cqr)
    new = round_trip(converted(old))
    assert sorted(new.facts()) == sorted(old.facts())
    assert (new.title(), new.certificate, new.alpha) == (old.title(), old.certificate, 0.2)
    assert [new["lower"].threshold, new["upper"].threshold] == [*old.thresholds]
    for whose in (None, 2, NEW_DEVICE):
        np.testing.assert_array_equal(new.predict(NEW_BAND, device=whose), old.predict(NEW_BAND, device=whose))
        np.testing.assert_array_equal(new.interval(NEW_BAND, device=whose), old.predict(NEW_BAND, device=whose))
        assert new.evaluate(NEW_BAND, NEW_TRUTH, device=whose) == old.evaluate(NEW_BAND, NEW_TRUTH, device=whose)


def test_weights_of_new_examples_and_of_classes():
    weights = by_device(3 * X)
    old = calibrate_shifted(
        by_device(LAC(P, Y)), NETWORK, (0.2, 0.3), weight=weights, weight_bound=4, test_weights=[1.0, 2.5], score=LAC
    )
    new = round_trip(converted(old))
    each = RNG.random(60) * 4
    for given in (each, 2.0):
        np.testing.assert_array_equal(
            new.predict(NEW, weight=given, alpha=0.3), old.predict(NEW, weight=given, alpha=0.3)
        )
    old = calibrate_shifted(
        by_device(LAC(P, Y)), NETWORK, class_weights={0: 1, 1: 2, 2: 0.5, 3: 1}, labels=by_device(Y), score=LAC
    )
    new = round_trip(converted(old))
    np.testing.assert_array_equal(new.predict(NEW), old.predict(NEW))
    np.testing.assert_array_equal(new.predict(NEW, groups=NEW_Y), old.predict(NEW, groups=NEW_Y))
    assert new.evaluate(NEW, NEW_Y) == old.evaluate(NEW, NEW_Y)
    one = calibrate(by_device(LAC(P, Y)), NETWORK, 0.2, weight=weights, weight_bound=4, score=LAC)
    assert round_trip(converted(one)).facts() == one.facts()


def test_centres():
    centres = Centres.at([0.0, 0.5, 1.0], 0.3)
    old = calibrate_local(by_device(LAC(P, Y)), NETWORK, 0.2, inputs=by_device(X), centres=centres, score=LAC)
    new = round_trip(converted(old))
    for how in ({"rng": 3}, {"keys": range(60)}):
        np.testing.assert_array_equal(new.predict(NEW, inputs=NEW_X, **how), old.predict(NEW, NEW_X, **how))
        mine, theirs = new.evaluate(NEW, NEW_Y, inputs=NEW_X, **how), old.evaluate(NEW, NEW_Y, NEW_X, **how)
        assert mine.per_centre == theirs.cells
        assert mine.gap == pytest.approx(theirs.gap)
        assert mine.coverage == theirs.overall.coverage
    assert new[1].threshold == new["centre 1"].threshold == old.get(1).threshold


def test_risks():
    fnr = losses.FalseNegativeRate()
    table = RNG.random((500, 6))
    truth = RNG.random((500, 6)) < table
    steps = [fnr(table[k == DEVICE], truth[k == DEVICE]) for k in range(5)]
    old = control(steps, NETWORK, 0.1, loss=fnr)
    new = round_trip(converted(old))
    assert new.facts() == old.facts()
    assert (new.title(), new.mean_losses) == (old.title(), old.mean_losses)
    np.testing.assert_array_equal(new.predict(table[:40]), old.predict(table[:40]))
    mine, theirs = (one.evaluate(table[:60], truth[:60], device=NEW_DEVICE) for one in (new, old))
    assert mine.to_dict() == theirs.to_dict()
    several = control_several(steps, NETWORK, (0.1, 0.2), loss=fnr)
    more = round_trip(converted(several))
    np.testing.assert_array_equal(more.predict(table, alpha=0.2), several.predict(table, alpha=0.2))
