"""Scores as plain functions: as good as the built-in ones, if they are pure; and an impure one is found out."""

import numpy as np
import pytest

from conformesh import Network, Result, calibrate, scores
from conformesh.scores import LAC, AbsoluteResidual, as_score, score_from_function

RNG = np.random.default_rng(0)
P = RNG.dirichlet(np.ones(4), size=50)
Y = RNG.integers(0, 4, 50)
NETWORK = Network.cycle(5)


def one_minus(p, y):
    return 1.0 - p[np.arange(len(y)), y]


def distance(prediction, y):
    return np.abs(y - prediction)


def around(prediction, t):
    return prediction - t, prediction + t


def calls():
    """A score with a counter: another answer each time."""
    state = {"calls": 0}

    def counting(p, y):
        state["calls"] += 1
        return one_minus(p, y) + state["calls"]

    return counting


def in_place(p, y):
    p *= 2
    return one_minus(p, y)


def relabelling(p, y):
    y[:] = 0
    return one_minus(p, y)


def drawn(p, y):
    return one_minus(p, y) + np.random.default_rng().random(len(y))


def normalised(p, y):
    return one_minus(p / p.sum(axis=0), y)


def test_a_function_is_the_score_it_computes():
    mine, lac = score_from_function(one_minus), LAC()
    np.testing.assert_array_equal(mine(P, Y), lac(P, Y))
    np.testing.assert_array_equal(mine.of_all_labels(P), lac.of_all_labels(P))
    for tau in (0.5, np.inf, -np.inf, mine(P, Y)):
        np.testing.assert_array_equal(mine.sets(P, tau), lac.sets(P, tau))
        np.testing.assert_array_equal(mine.covers(P, Y, tau), lac.covers(P, Y, tau))
    assert mine([], []).shape == (0,)
    assert as_score(one_minus) == mine
    assert as_score(mine) is mine


def test_calibrate_takes_a_function(tmp_path):
    held = np.split(one_minus(P, Y), 5)
    mine, built_in = calibrate(held, NETWORK, 0.2, score=one_minus), calibrate(held, NETWORK, 0.2, score="lac")
    np.testing.assert_array_equal(mine.predict(P), built_in.predict(P))
    assert mine.evaluate(P, Y) == built_in.evaluate(P, Y)
    mine.save(tmp_path / "r.json")
    again = Result.load(tmp_path / "r.json")
    assert again.score.called == "one_minus"
    with pytest.raises(
        ValueError, match=r"the function 'one_minus', which no file can hold: give it again, as in pred"
    ):
        again.predict(P)
    np.testing.assert_array_equal(again.predict(P, score=one_minus), mine.predict(P))
    several = calibrate(held, NETWORK, (0.2,), groups=[y.astype(str) for y in np.split(Y, 5)], score=one_minus)
    assert several.predict(P).shape == P.shape


def test_a_result_refuses_another_function(tmp_path):
    def other(p, y):
        return 2 * one_minus(p, y)

    made = calibrate(np.split(one_minus(P, Y), 5), NETWORK, 0.2, score=one_minus)
    np.testing.assert_array_equal(made.predict(P, score=one_minus), made.predict(P))
    for named in (other, "lac"):
        with pytest.raises(
            ValueError, match=r"calibrated with FunctionScore\(called='one_minus'\), got .*leave score out"
        ):
            made.predict(P, score=named)


def test_regression_needs_the_inverse_too(tmp_path):
    x, y = RNG.normal(size=40), RNG.normal(size=40)
    mine, built_in = score_from_function(distance, intervals=around, name="mine"), AbsoluteResidual()
    np.testing.assert_array_equal(mine(x, y), built_in(x, y))
    np.testing.assert_allclose(mine.intervals(x, 0.5), built_in.intervals(x, 0.5), atol=1e-14)
    own = mine.intervals(x, mine(x, y))
    assert ((own[:, 0] <= y) & (y <= own[:, 1])).all()
    np.testing.assert_array_equal(mine.intervals([1.0], np.inf), [[-np.inf, np.inf]])
    assert mine.intervals([], 1.0).shape == (0, 2)
    result = calibrate(np.split(mine(x, y), 5), NETWORK, 0.2, score=mine)
    assert result.evaluate(x, y).coverage.rate >= 0.8
    result.save(tmp_path / "r.json")
    with pytest.raises(ValueError, match="the function 'mine'"):
        Result.load(tmp_path / "r.json").predict(x)
    plain = calibrate(np.split(mine(x, y), 5), NETWORK, 0.2, score=distance)
    with pytest.raises(ValueError, match=r"got shape \(40,\); for regression say what lies within .* intervals="):
        plain.predict(x)


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (calls(), "'calls.<locals>.counting' must be a pure function, but gave two answers to the same question"),
        (drawn, "two answers to the same question: .* keep nothing between calls"),
        (normalised, "same number whatever rows are beside it: row 0 has .* among 50 rows and .* alone"),
        (in_place, "'in_place' must leave its inputs as they are, but changed them; let it work on copies"),
        (relabelling, "'relabelling' must leave its inputs as they are"),
        (lambda p, y: p, r"must return one number for each of 50 rows, got float64 of shape \(50, 4\)"),
        (lambda p, y: [str(c) for c in y], "must return one number for each of 50 rows"),
        (lambda p, y: np.log(one_minus(p, y) - 1), "must return numbers, got NaN in row 0"),
    ],
    ids=range(8),
)
@pytest.mark.filterwarnings("ignore:invalid value")
def test_what_is_not_pure_is_found_out(function, words):
    before = P.copy(), Y.copy()
    for call in (lambda score: score(P, Y), lambda score: score.sets(P, 0.5)):
        with pytest.raises(ValueError, match=words):
            call(score_from_function(function))
    np.testing.assert_array_equal(P, before[0])
    np.testing.assert_array_equal(Y, before[1])


@pytest.mark.parametrize(
    ("inverse", "words"),
    [
        (lambda x, t: (x - t / 2, x + t / 2), "must hold every label that scores at most the threshold: label"),
        (lambda x, t: x, r"a lower and an upper end for each of 2 rows, got shape \(2,\)"),
        (lambda x, t: (x * np.nan, x), "for each of 2 rows, got NaN"),
    ],
    ids=range(3),
)
def test_an_inverse_that_is_none_is_found_out(inverse, words):
    with pytest.raises(ValueError, match=words):
        score_from_function(distance, intervals=inverse)([0.0, 1.0], [3.0, 4.0])


def test_what_is_no_function_is_refused():
    with pytest.raises(
        TypeError, match="score_from_function: function must be a function of outputs and labels, got int"
    ):
        score_from_function(3)
    with pytest.raises(TypeError, match="intervals must be a function"):
        score_from_function(distance, intervals=3)
    assert "function" not in scores.SCORES
