"""Classification scores: fast against slow, and sets that agree with calibration to the last bit."""

from __future__ import annotations

import doctest
import json
from functools import reduce
from operator import add

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from conformesh import scores
from conformesh.scores import (
    APS,
    CQR,
    LAC,
    RAPS,
    SAPS,
    SCORES,
    Logit,
    Margin,
    OrdinalAPS,
    Rank,
    classification,
    get_score,
)
from tests.kernels.conftest import way  # noqa: F401 - every test runs in NumPy and compiled

from . import reference

pytestmark = pytest.mark.usefixtures("way")

FAST = settings(max_examples=settings.default.max_examples // 2, deadline=None)
HARSH = RAPS(penalty=0.1, k_reg=1)
DRAWN = RAPS(penalty=0.03, k_reg=2, randomised=True, seed=5)
RANKED = [SAPS(), SAPS(penalty=0.3, randomised=True, seed=4), Rank(), Rank(randomised=True, seed=5)]
ORDINAL = [OrdinalAPS(), OrdinalAPS(randomised=True, seed=6)]
EVERY = [LAC(), Logit(), Margin(), APS(), APS(randomised=True, seed=3), RAPS(), HARSH, DRAWN, *RANKED, *ORDINAL]


@st.composite
def tables(draw):
    """Probabilities with ties, zeros of both signs, repeated rows, peaked and flat rows, in float32 or float64."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    rows, columns = draw(st.integers(1, 4)), draw(st.integers(2, 24))
    kind = draw(st.sampled_from(["softmax", "ties", "flat", "one-hot"]))
    if kind == "softmax":
        p = np.exp(rng.normal(scale=draw(st.sampled_from([0.1, 1.0, 5.0, 30.0])), size=(rows, columns)))
    elif kind == "ties":
        p = rng.integers(0, 4, size=(rows, columns)) + (np.arange(columns) == 0.0)
    elif kind == "flat":
        p = np.ones((rows, columns))
    else:
        p = np.eye(columns)[rng.integers(0, columns, rows)]
    p = (p / p.sum(axis=1, keepdims=True)).astype(draw(st.sampled_from([np.float32, np.float64])))
    p[(p == 0.0) & (rng.random(p.shape) < 0.5)] = -0.0
    return p[rng.integers(0, rows, rows)]


def slow(score, table, *, prediction=True):
    """The slow twin's score of every label, with the same uniforms."""
    if isinstance(score, LAC | Logit):
        return reference.of_all_labels(reference.one_minus, table)
    if isinstance(score, Margin):
        return reference.of_all_labels(reference.margin, table)
    u = score.draws(table).get("u")
    u = u if score.randomised else np.ones(len(table))
    extra = {name: value for name, value in score.options().items() if name in ("penalty", "k_reg")}
    if isinstance(score, SAPS | Rank):
        return reference.of_all_labels(reference.ranked, table, u, by_rank=isinstance(score, Rank), **extra)
    twin = reference.ordinal if isinstance(score, OrdinalAPS) else reference.adaptive
    return reference.of_all_labels(twin, table, u, **extra)


def calibrated(score, table, *, prediction):
    """Every label's score through the calibration path, one label at a time."""
    if not getattr(score, "randomised", False):
        return np.stack([score(table, np.full(len(table), j)) for j in range(table.shape[1])], axis=1)
    u = score.draws(table)["u"]
    return np.stack([score(table, np.full(len(table), j), u) for j in range(table.shape[1])], axis=1)


@pytest.mark.parametrize("score", EVERY, ids=repr)
@FAST
@given(table=tables(), data=st.data())
def test_fast_equals_slow(score, table, data):
    expected = slow(score, table, prediction=False)
    labels = np.array(data.draw(st.lists(st.integers(0, table.shape[1] - 1), min_size=len(table), max_size=len(table))))
    got = score(table, labels)
    assert got.dtype == np.float64
    np.testing.assert_array_equal(got, expected[np.arange(len(table)), labels])
    np.testing.assert_array_equal(score.of_all_labels(table), slow(score, table))


@pytest.mark.parametrize("score", EVERY, ids=repr)
@FAST
@given(table=tables(), data=st.data())
def test_a_label_is_in_the_set_exactly_when_it_scores_at_most_the_threshold(score, table, data):
    """Thresholds are scores themselves, their float neighbours, anything between, or infinite; one or one per row."""
    every = calibrated(score, table, prediction=True)
    finite = st.sampled_from(sorted(set(every.ravel().tolist())))
    near = st.builds(np.nextafter, finite, st.sampled_from([-np.inf, np.inf])).map(float)
    threshold = st.one_of(finite, near, st.floats(-0.5, 2.5), st.sampled_from([np.inf, -np.inf, 0.0, -0.0, 1.0]))
    tau = data.draw(st.one_of(threshold, st.lists(threshold, min_size=len(table), max_size=len(table)).map(np.array)))
    sets = score.sets(table, tau)
    assert sets.dtype == np.bool_
    np.testing.assert_array_equal(sets, every <= np.broadcast_to(tau, len(table))[:, None])
    for label in (0, table.shape[1] - 1):
        np.testing.assert_array_equal(score.covers(table, np.full(len(table), label), tau), sets[:, label])


@pytest.mark.parametrize("score", [APS(), HARSH, DRAWN, *RANKED, *ORDINAL], ids=repr)
@pytest.mark.parametrize("scale", [0.0, 1.0, 6.0, 200.0])
@pytest.mark.filterwarnings("ignore:.*in the order of the columns:conformesh.CalibrationNote")
def test_adaptive_sets_of_wide_rows(score, scale):
    """Rows long enough for many halvings, a threshold at each score in turn; scale 200 reaches subnormal numbers."""
    rng = np.random.default_rng(11)
    z = rng.normal(scale=scale, size=(1, 700))
    p = np.exp(z - z.max())
    p = np.repeat(p / p.sum(), 700, axis=0)
    u = np.full(700, 0.37) if score.randomised else None
    every = score.of_all_labels(p, u)
    taus = np.sort(every[0])
    np.testing.assert_array_equal(score.sets(p, taus, u), every <= taus[:, None])
    np.testing.assert_array_equal(score(p, np.arange(700), u), every[0])


@pytest.mark.parametrize("score", EVERY, ids=repr)
def test_infinite_thresholds_take_every_label_or_none(score):
    table = np.array([[0.0, 1.0, 0.0], [0.2, 0.3, 0.5]])
    assert score.sets(table, np.inf).all()
    assert not score.sets(table, -np.inf).any()
    np.testing.assert_array_equal(score.sets(table, [np.inf, -np.inf]), [[True] * 3, [False] * 3])


@pytest.mark.parametrize("score", EVERY, ids=repr)
@pytest.mark.parametrize("empty", [[], np.empty((0, 4)), np.empty((0, 4), np.float32)], ids=["list", "f8", "f4"])
def test_no_rows_give_no_scores(score, empty):
    classes = np.shape(empty)[1] if np.ndim(empty) == 2 else 0
    assert score(empty, []).shape == (0,)
    assert score.covers(empty, [], 0.5).shape == (0,)
    assert score.sets(empty, 0.5).shape == (0, classes)
    assert score.of_all_labels(empty).shape == (0, classes)


@pytest.mark.parametrize("score", EVERY, ids=repr)
def test_layout_and_dtype_do_not_matter(score):
    table = np.array([[0.5, 0.25, 0.25], [0.125, 0.75, 0.125], [0.0, 0.0, 1.0]])
    labels = np.array([0, 2, 1])
    read_only = table.copy()
    read_only.flags.writeable = False
    padded = np.zeros((6, 6))
    padded[::2, ::2] = table
    for same in (
        table.tolist(),
        np.asfortranarray(table),
        padded[::2, ::2],
        table.astype(">f8"),
        table.astype("f2"),
        read_only,
    ):
        for these in (labels, labels.tolist(), labels.astype(np.int16), labels.astype(np.uint64)):
            np.testing.assert_array_equal(score(same, these), score(table, labels))
        np.testing.assert_array_equal(score.sets(same, 0.5), score.sets(table, 0.5))


def test_known_values():
    """By hand: rank 1, 2, 3 hold 0.5, 0.25 (class 1, the smaller index) and 0.25 (class 2)."""
    row = np.array([[0.5, 0.25, 0.25]])
    np.testing.assert_array_equal(LAC().of_all_labels(row), [[0.5, 0.75, 0.75]])
    np.testing.assert_array_equal(Logit().of_all_labels(row * 8), [[-3.0, -1.0, -1.0]])
    np.testing.assert_array_equal(Margin().of_all_labels(row), [[-0.25, 0.25, 0.25]])
    np.testing.assert_array_equal(APS().of_all_labels(row), [[0.5, 0.75, 1.0]])
    np.testing.assert_array_equal(APS(randomised=True).of_all_labels(row, [0.5]), [[0.25, 0.625, 0.875]])
    np.testing.assert_array_equal(RAPS(penalty=0.5, k_reg=1).of_all_labels(row), [[0.5, 1.25, 2.0]])
    np.testing.assert_array_equal(SAPS(penalty=0.5).of_all_labels(row), [[0.5, 1.0, 1.5]])
    np.testing.assert_array_equal(SAPS(penalty=0.5, randomised=True).of_all_labels(row, [0.5]), [[0.25, 0.75, 1.25]])
    np.testing.assert_array_equal(Rank().of_all_labels(row), [[1.0, 2.0, 3.0]])
    np.testing.assert_array_equal(Rank(randomised=True).of_all_labels(row, [0.25]), [[0.25, 1.25, 2.25]])
    np.testing.assert_array_equal(OrdinalAPS().of_all_labels(row[:, ::-1]), [[1.0, 0.75, 0.5]])


@FAST
@given(table=tables(), tau=st.floats(0.0, 1.1))
def test_ordinal_sets_are_runs(table, tau):
    for inside in OrdinalAPS().sets(table, tau):
        members = np.flatnonzero(inside)
        assert len(members) == 0 or np.ptp(members) == len(members) - 1


def test_a_float_sum_would_not_do():
    """The reason for fixed point: float sums depend on their order, which calibration never learns."""
    row = [0.1, 0.2, 0.3, 0.4]
    by_class, by_size = reduce(add, row), reduce(add, reversed(row))  # `sum` is compensated from Python 3.12 on
    assert by_class > by_size
    threshold = APS()([row], [0])
    assert threshold == 1.0
    assert APS().sets([row], threshold).all()


def test_logit_takes_any_number():
    z = np.array([[-np.inf, 3e5, np.inf]])
    np.testing.assert_array_equal(Logit().of_all_labels(z), [[np.inf, 1 - 3e5, -np.inf]])
    np.testing.assert_array_equal(Logit().sets(z, 0.0), [[False, True, True]])
    assert Logit().sets(z, np.inf).all()


def test_randomised_scores_lie_between_the_mass_above_and_the_full_score():
    rng = np.random.default_rng(0)
    p = rng.dirichlet(np.ones(10), size=200)
    labels = rng.integers(0, 10, 200)
    full, drawn = APS()(p, labels), APS(randomised=True)(p, labels)
    own = p[np.arange(200), labels]
    assert (drawn <= full).all()
    assert (drawn >= full - own - 1e-12).all()
    np.testing.assert_array_equal(APS(randomised=True)(p, labels, np.ones(200)), full)
    np.testing.assert_array_equal(APS(randomised=True).sets(p, 0.8, np.ones(200)), APS().sets(p, 0.8))


@pytest.mark.parametrize("classes", [1, 2, 16, 300])
def test_a_uniform_of_zero_makes_the_best_label_free(classes):
    """Score 0 at threshold 0: the first of equal labels is in, the others are not."""
    row = np.full((1, classes), 1.0 / classes)
    np.testing.assert_array_equal(np.flatnonzero(APS(randomised=True).sets(row, 0.0, 0.0)), [0])


SOFTMAX = r"use score 'logit' or apply softmax"


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (
            lambda: LAC()([0.5, 0.5], [0, 1]),
            ValueError,
            r"needs outputs of shape \(rows, classes\), got shape \(2,\); for a single row pass outputs\[None, :\]",
        ),
        (lambda: LAC()(np.ones((1, 2, 2)), [0]), ValueError, r"got shape \(1, 2, 2\)$"),
        (
            lambda: LAC()(np.empty((2, 0)), [0, 0]),
            ValueError,
            r"needs at least one class, got outputs of shape \(2, 0\)",
        ),
        (
            lambda: LAC()([[0.5, 0.5], [1.0]], [0, 0]),
            ValueError,
            "outputs as one rectangular array, got rows of unequal length",
        ),
        (
            lambda: LAC()([["a", "b"]], [0]),
            TypeError,
            "'lac' needs outputs as real numbers, got dtype <U1; convert them to float",
        ),
        (
            lambda: LAC()([[0.5, 0.5]], ["b"]),
            TypeError,
            "'lac' needs labels as column numbers from 0, got 'b'; look names up",
        ),
        (
            lambda: LAC()([[0.5, 0.5]], [0, 1]),
            ValueError,
            r"one label for each row of outputs: got 1 rows and labels of shape \(2,\)",
        ),
        (lambda: LAC()([[0.5, 0.5]], [[0]]), ValueError, r"got 1 rows and labels of shape \(1, 1\)"),
        (
            lambda: LAC()([[0.5, 0.5]], [1.0]),
            TypeError,
            r"needs integer labels, got dtype float64; use labels.astype\(int\)",
        ),
        (
            lambda: LAC()([[0.5, 0.5]], [2]),
            ValueError,
            "needs labels between 0 and 1, one for each column of outputs, got 2",
        ),
        (lambda: Margin()([[0.5, 0.5]], [-1]), ValueError, "'margin' needs labels between 0 and 1, .* got -1"),
        (lambda: APS()([[0.5, 0.5]], np.array([2**64 - 1], np.uint64)), ValueError, "got 18446744073709551615"),
        (
            lambda: LAC()([[0.5, 0.5], [np.nan, 1.0]], [0, 0]),
            ValueError,
            "'lac' cannot use NaN, found in row 1 of outputs; drop the row",
        ),
        (lambda: Logit()([[np.nan, 0.0]], [0]), ValueError, "'logit' cannot use NaN, found in row 0"),
        (lambda: Logit().sets([[np.nan, 0.0]], 0.0), ValueError, "'logit' cannot use NaN, found in row 0"),
        (lambda: Logit().of_all_labels([[np.nan, 0.0]]), ValueError, "'logit' cannot use NaN, found in row 0"),
        (
            lambda: LAC()([[0.5, 0.5], [3.5, 1.0]], [0, 0]),
            ValueError,
            f"between 0 and 1, got 3.5 in row 1 of outputs; these look like logits: {SOFTMAX}",
        ),
        (
            lambda: LAC().sets([[0.5, 0.5], [0.5, -0.1]], 0.5),
            ValueError,
            f"got -0.1 in row 1 of outputs; these look like logits: {SOFTMAX}",
        ),
        (lambda: LAC().of_all_labels([[0.5, -0.1]]), ValueError, "got -0.1 in row 0"),
        (lambda: Margin()([[0.5, 7.0]], [0]), ValueError, f"'margin' needs probabilities .* 7 in row 0 .*: {SOFTMAX}"),
        (lambda: Margin().sets([[0.5, np.nan]], 0.0), ValueError, "'margin' cannot use NaN"),
        (
            lambda: Margin()([[1.0]], [0]),
            ValueError,
            "'margin' needs at least 2 classes to compare, got 1; .* 1 - p and p",
        ),
        (
            lambda: APS()([[0.5, 0.5], [0.5, 0.25]], [0, 0]),
            ValueError,
            f"'aps' needs probabilities that sum to 1 .*row 1 of outputs sums to 0.75; these look like .*: {SOFTMAX}",
        ),
        (
            lambda: APS()([[2.0, -1.0]], [0]),
            ValueError,
            f"'aps' .* got 2 in row 0 of outputs; these look like logits: {SOFTMAX}",
        ),
        (lambda: APS()([[np.nan, 1.0]], [0]), ValueError, "'aps' cannot use NaN"),
        (lambda: SAPS()([[np.nan, 1.0]], [0]), ValueError, "'saps' cannot use NaN"),
        (lambda: Rank().sets([[0.5, 2.0]], 1), ValueError, "'rank' needs probabilities between 0 and 1, got 2"),
        (lambda: OrdinalAPS()([[0.5, 0.25]], [0]), ValueError, "'ordinal-aps' .*row 0 of outputs sums to 0.75"),
        (lambda: OrdinalAPS().sets([[np.nan, 0.25]], 0.5), ValueError, "'ordinal-aps' cannot use NaN"),
        (lambda: SAPS(penalty=-1), ValueError, "'saps' needs a finite penalty of 0 or more, got -1"),
        (lambda: SAPS(penalty="x"), TypeError, "'saps' needs a number for penalty, got 'x'"),
        (lambda: RAPS().sets([[0.5, 0.25]], 0.5), ValueError, "'raps' .*row 0 of outputs sums to 0.75"),
        (lambda: RAPS().sets([[np.nan, 0.25]], 0.5), ValueError, "'raps' cannot use NaN"),
        (lambda: RAPS().of_all_labels([[0.5, 0.25]]), ValueError, "'raps' .*row 0 of outputs sums to 0.75"),
        (
            lambda: LAC().sets([[0.5, 0.5]], np.nan),
            ValueError,
            "'lac' needs a number for threshold, got NaN; use inf for 'no limit'",
        ),
        (
            lambda: LAC().sets([[0.5, 0.5]], [0.1, 0.2]),
            ValueError,
            r"threshold as one number or shape \(1,\), got shape \(2,\)",
        ),
        (lambda: LAC().covers([[0.5, 0.5]], [0], [[0.1]]), ValueError, r"shape \(1,\), got shape \(1, 1\)"),
        (lambda: LAC().sets([[0.5, 0.5]], "low"), TypeError, "'lac' needs threshold as real numbers"),
        (lambda: APS()([[0.5, 0.5]], [0], [0.5]), ValueError, "'aps' takes uniforms u only with randomised=True"),
        (
            lambda: APS(randomised=True).sets([[0.5, 0.5]], 0.5, [1.5]),
            ValueError,
            "uniforms u between 0 and 1, got 1.5",
        ),
        (
            lambda: APS(randomised=True)([[0.5, 0.5]], [0], [0.1, 0.2]),
            ValueError,
            r"needs u as one number or shape \(1,\)",
        ),
        (lambda: APS(seed=-1), ValueError, "'aps' needs a seed of 0 or more, got -1"),
        (lambda: APS(seed="x"), TypeError, "'aps' needs an integer seed, got 'x'"),
        (lambda: RAPS(penalty=-0.1), ValueError, "'raps' needs a finite penalty of 0 or more, got -0.1"),
        (lambda: RAPS(penalty=np.nan), ValueError, "finite penalty of 0 or more, got nan"),
        (lambda: RAPS(k_reg=-1), ValueError, "'raps' needs a k_reg of 0 or more, got -1"),
        (lambda: RAPS(k_reg=1.5), TypeError, "a number for penalty and an integer for k_reg, got 0.01 and 1.5"),
        (
            lambda: LAC().intervals([[0.5, 0.5]], 0.5),
            TypeError,
            r"'lac' is for classification and has no intervals; use sets\(",
        ),
        (
            lambda: get_score("lca"),
            ValueError,
            r"^unknown score 'lca', did you mean 'lac'\? known: lac, logit, margin, aps, raps, ",
        ),
        (lambda: get_score("APS"), ValueError, r"unknown score 'APS', did you mean 'aps'\?"),
        (lambda: get_score("zzzz"), ValueError, "^unknown score 'zzzz'; known: lac, "),
        (
            lambda: get_score("raps", penality=1),
            TypeError,
            r"option of score 'raps' 'penality', did you mean 'penalty'\? known: penalty, k_reg, randomised, seed",
        ),
        (lambda: get_score("lac", seed=1), TypeError, "option of score 'lac' 'seed'; known: none"),
    ],
)
def test_errors_say_what_to_do(call, error, message):
    with pytest.raises(error, match=message):
        call()


def test_calibration_reads_only_what_it_needs():
    """LAC's promise to stay cheap: an odd entry elsewhere in the row is found by `sets`, not by calibration."""
    assert LAC()([[0.5, 7.0]], [0]) == 0.5


def test_rows_may_sum_to_one_within_a_thousandth():
    nearly = [[0.5, 0.4995]]
    threshold = APS()(nearly, [1])
    assert threshold == pytest.approx(0.9995)
    assert APS().sets(nearly, threshold).all()
    with pytest.raises(ValueError, match=r"sums to 0\.9985"):
        APS()([[0.5, 0.4985]], [1])


@pytest.mark.parametrize("score", [*EVERY, scores.AbsoluteResidual(), scores.NormalisedResidual(), CQR()], ids=repr)
def test_options_rebuild_the_score_from_json(score):
    again = get_score(score.name, **json.loads(json.dumps(score.options())))
    assert again == score
    assert hash(again) == hash(score)


def test_options_become_plain_numbers():
    score = RAPS(penalty=np.float32(0.5), k_reg=np.int64(2), randomised=np.True_, seed=np.uint8(7))
    assert json.loads(json.dumps(score.options())) == {"penalty": 0.5, "k_reg": 2, "randomised": True, "seed": 7}


def test_the_table_of_scores_is_complete():
    assert list(SCORES) == [
        "lac",
        "logit",
        "margin",
        "aps",
        "raps",
        "saps",
        "rank",
        "ordinal-aps",
        "absolute-residual",
        "normalised-residual",
        "cqr",
    ]
    for name, cls in SCORES.items():
        assert cls.name == name
        assert cls.task in ("classification", "regression")
        assert cls.summary
        assert "\n" not in cls.summary
        assert ">>>" in (cls.__doc__ or "")


@pytest.mark.parametrize("module", [scores, classification, scores.base], ids=lambda m: m.__name__)
def test_examples_run(module):
    assert doctest.testmod(module).failed == 0


@pytest.mark.parametrize("name", ["lac", "margin", "aps", "raps", "saps", "rank", "ordinal-aps"])
def test_a_softmax_in_single_precision_may_end_just_above_one(name):
    p = np.array([[1.0000001, 0.0], [0.25, 0.75]], dtype=np.float32)
    score = get_score(name)
    found = score(p, [0, 1])
    np.testing.assert_array_equal(score.sets(p, found)[[0, 1], [0, 1]], True)
    with pytest.raises(ValueError, match="between 0 and 1"):
        score(p + np.float32(0.01), [0, 0])
