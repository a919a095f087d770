import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from conformesh.kernels.weighted_scores import WeightedScores
from tests.strategies import device_scores


@given(device_scores(5), st.lists(st.floats(-3, 3), min_size=1, max_size=60))
def test_counts_equal_a_plain_comparison(scores, thresholds):
    thresholds = np.sort(thresholds)
    counts = WeightedScores.of(scores).counts(thresholds[None, :])
    expected = [[sum(s <= t for s in mine) for t in thresholds] for mine in scores]
    np.testing.assert_array_equal(counts[:, :, 0], expected)


@given(device_scores(4), device_scores(4))
def test_trials_keep_devices_apart(first, second):
    samples = WeightedScores.of_trials([first, second])
    for k in range(4):
        for t, trial in enumerate((first, second)):
            np.testing.assert_array_equal(samples.segment(k, t), np.sort(trial[k]))
            assert samples.sizes[k, t] == len(trial[k])
    np.testing.assert_array_equal(np.sort(samples.pooled(1)), np.sort(np.concatenate(second)))


@given(device_scores(3), st.integers(-1, 32))
def test_order_statistics(scores, rank):
    got = WeightedScores.of(scores).at_rank(np.full((3, 1), rank)).ravel()
    for k, mine in enumerate(scores):
        expected = -np.inf if rank < 1 else np.inf if rank > len(mine) else np.sort(mine)[rank - 1]
        assert got[k] == expected


@given(device_scores(3))
def test_extremes(scores):
    low, high = (x.ravel() for x in WeightedScores.of(scores).extremes())
    finite_low, finite_high = (x.ravel() for x in WeightedScores.of(scores).extremes(finite=True))
    for k, mine in enumerate(scores):
        assert (low[k], high[k]) == ((min(mine), max(mine)) if len(mine) else (np.inf, -np.inf))
        inside = mine[np.isfinite(mine)]
        assert (finite_low[k], finite_high[k]) == ((min(inside), max(inside)) if len(inside) else (np.inf, -np.inf))


def test_the_callers_arrays_stay_as_they_were():
    mine = np.array([3.0, 1.0, 2.0])
    WeightedScores.of([mine])
    WeightedScores.from_flat(mine, np.array([3]))
    assert mine.tolist() == [3.0, 1.0, 2.0]


@pytest.mark.parametrize(
    ("devices", "error", "message"),
    [
        ([[0.1, float("nan")]], ValueError, "device 0: scores must be numbers, got NaN"),
        ([[0.1], ["text"]], TypeError, "device 1: scores must be numbers"),
        ([[[0.1]]], ValueError, "device 0: scores must be one-dimensional"),
        ([], ValueError, "at least one device"),
    ],
)
def test_bad_scores_name_the_device(devices, error, message):
    with pytest.raises(error, match=message):
        WeightedScores.of(devices)


def test_names_are_used_where_given():
    with pytest.raises(ValueError, match="device hospital-b"):
        WeightedScores.of([[0.1], [np.nan]], ["hospital-a", "hospital-b"])
    with pytest.raises(ValueError, match=r"device 1: .* NaN"):
        WeightedScores.from_flat(np.array([1.0, 2.0, np.nan]), np.array([2, 1]))


def test_trials_must_list_the_same_devices():
    with pytest.raises(ValueError, match="same devices"):
        WeightedScores.of_trials([[[0.1]], [[0.1], [0.2]]])


def test_a_table_is_one_row_per_device():
    table = np.array([[3.0, 1.0], [2.0, 5.0]])
    assert WeightedScores.of(table).values.tolist() == WeightedScores.of(list(table)).values.tolist()
    with pytest.raises(ValueError, match="device b"):
        WeightedScores.of(np.array([[1.0], [np.nan]]), ["a", "b"])


def test_flat_scores_may_be_handed_over():
    mine = np.array([3.0, 1.0, 2.0])
    samples = WeightedScores.from_flat(mine, np.array([2, 1]), copy=False)
    assert samples.values is mine
    assert mine.tolist() == [1.0, 3.0, 2.0]
    for values, sizes in ((mine, [2, 2]), (mine[:, None], [2, 1]), (mine[::2], [2, 1])):
        with pytest.raises(ValueError, match="as many scores as `sizes` add up to"):
            WeightedScores.from_flat(values, np.array(sizes), copy=False)


@given(device_scores(4), device_scores(4))
def test_devices_can_be_taken_in_another_order(first, second):
    samples, order = WeightedScores.of_trials([first, second]), np.array([2, 0, 3, 1])
    taken = samples.take(order)
    for at, k in enumerate(order):
        for trial in range(2):
            np.testing.assert_array_equal(taken.segment(at, trial), samples.segment(k, trial))


@given(device_scores(3), st.lists(st.floats(-3, 3), min_size=1, max_size=30))
def test_counts_of_thresholds_in_any_order(scores, thresholds):
    counts = WeightedScores.of(scores).counts_of(np.zeros(1, dtype=np.int64), np.array([thresholds]))
    expected = [[sum(s <= t for s in mine) for t in thresholds] for mine in scores]
    np.testing.assert_array_equal(counts[:, :, 0], expected)
