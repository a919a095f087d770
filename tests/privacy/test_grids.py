"""Public grids: ascending, the same bits everywhere, fine enough where scores crowd."""

import hashlib
import math

import numpy as np
import pytest

from conformesh import Network, calibrate
from conformesh.privacy.grids import LOGIT_TOP, check_grid, grid_points
from conformesh.scores import SCORES, get_score

EQUAL = pytest.mark.filterwarnings("ignore:p-dcp. .* more than required:conformesh.CalibrationNote")
CASES = [("linear", None), ("linear", (-3.0, 5.0)), ("powers", None), ("powers", (1e-3, 40.0)), ("logit", None)]


@pytest.mark.parametrize(("name", "ends"), CASES)
@pytest.mark.parametrize("count", [1, 2, 3, 255, 4095, 2**14])
def test_a_grid_ascends_and_ends_where_it_should(name, ends, count):
    grid = grid_points(name, count, ends)
    assert grid.shape == (count,)
    assert np.isfinite(grid).all()
    assert (np.diff(grid) > 0).all()
    if name == "logit":
        assert grid[-1] == LOGIT_TOP
    elif name == "linear" or ends:
        assert grid[-1] == (ends or (0.0, 1.0))[1]
    if ends:
        assert grid[0] > ends[0]


def raised(at):
    """A power of two as the docstring has it, by plain floats of Python, one operation at a time."""
    return math.ldexp(1.0 + (at - math.floor(at)), math.floor(at))


def odds_of(i, count):
    """Odds i of a logit grid, likewise."""
    u = 2.0 * (i / count) - 1.0
    return raised(17 * ((u + u * u * u) / 2.0))


def test_points_are_made_by_arithmetic_that_is_the_same_everywhere():
    """By operations that IEEE 754 fixes to the bit: as plain floats give them, and as they were when this was written."""  # noqa: E501
    count = 1000
    linear = [-3.0 + 8.0 * (i / count) for i in range(1, count)] + [5.0]
    assert grid_points("linear", count, (-3.0, 5.0)).tolist() == linear
    odds = [odds_of(i, count) for i in range(1, count + 1)]
    assert grid_points("logit", count).tolist() == [o / (1.0 + o) for o in odds[:-1]] + [LOGIT_TOP]
    above = [raised(-16 + 32 * (i / 500)) for i in range(1, 501)]
    assert grid_points("powers", count).tolist() == [-x for x in reversed(above)] + above
    digest = hashlib.sha256()
    for name, ends in CASES:
        digest.update(grid_points(name, 2**14, ends).astype("<f8").tobytes())
    assert digest.hexdigest()[:16] == "a52c4118f05a13f3"


def test_a_logit_grid_tells_confident_scores_apart_and_a_uniform_one_does_not():
    """The .9 quantile of confident scores is near .997: of 128 equal steps none lies between it and 1."""
    logit, linear = grid_points("logit", 2**14), grid_points("linear", 128)
    assert ((logit > 0.997) & (logit < 0.998)).sum() > 200
    assert ((linear > 0.9922) & (linear < 1)).sum() <= 1


@pytest.mark.parametrize(
    ("name", "ends", "words"),
    [
        ("logit", (0.0, 1.0), "name the grid"),
        ("auto", (0.0, 1.0), "name the grid"),
        ("linear", (1.0, 1.0), "LO below HI"),
        ("linear", (0.0, math.inf), "LO below HI"),
        ("linear", (math.nan, 1.0), "LO below HI"),
        ("linear", (-1e308, 1e308), "LO below HI"),
        ("powers", (0.0, 1.0), "above 0"),
    ],
)
def test_a_range_that_is_none_is_refused(name, ends, words):
    with pytest.raises(ValueError, match=words):
        check_grid(name, ends)
    with pytest.raises(ValueError, match=words):
        calibrate([[0.5] * 9] * 4, Network.cycle(4), 0.2, "p-dcp", grid=name, range=ends)


@EQUAL
def test_sums_of_probabilities_a_little_above_one_have_a_threshold():
    """As APS has them for the least likely label: +inf would be said where every label is in the set anyway."""
    result = calibrate([[1.0000000000000009] * 20] * 4, Network.cycle(4), 0.1, "p-dcp", grid="logit")
    assert result.threshold == LOGIT_TOP


def of_table(name):
    rng = np.random.default_rng(3)
    table = rng.dirichlet(np.ones(5), size=300)
    return get_score(name)(table, rng.integers(0, 5, 300))


@EQUAL
def test_the_kind_of_the_score_decides_on_the_grid():
    """Scores that say they lie between 0 and 1 do, and get the logit grid unless another is named."""
    marked = {name for name in SCORES if get_score(name).bounds == (0.0, 1.0)}
    assert {"lac", "aps"} <= marked
    for name in marked:
        scores = of_table(name)
        assert 0 <= scores.min() <= scores.max() <= LOGIT_TOP
        result = calibrate(np.array_split(scores, 6), Network.cycle(6), 0.1, "p-dcp", score=name)
        assert result.options["grid"] == "logit"
        assert result.threshold in grid_points("logit", 2**14)
    own = np.array_split(of_table("lac"), 6)
    assert calibrate(own, Network.cycle(6), 0.1, "p-dcp").options["grid"] == "powers"
    assert calibrate(own, Network.cycle(6), 0.1, "p-dcp", score="lac", grid="linear").options["grid"] == "linear"
    rng = np.random.default_rng(0)
    wide = calibrate(
        [rng.exponential(30, 50) for _ in range(6)], Network.cycle(6), 0.1, "p-dcp", score="absolute-residual"
    )
    assert wide.options["grid"] == "powers"
