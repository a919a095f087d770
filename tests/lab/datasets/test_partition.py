"""Who holds which row: blocks of classes, uneven shares, equal shares; and how rows are put aside."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from conformesh.lab.datasets.partition import PARTITIONS, partition, split_calibration_rows

some_labels = st.lists(st.integers(0, 8), min_size=9, max_size=200).map(np.array)


@pytest.mark.parametrize("kind", PARTITIONS)
@given(labels=some_labels, devices=st.integers(1, 9), seed=st.integers(0, 3))
def test_every_row_is_at_one_device(kind, labels, devices, seed):
    home = partition(labels, devices, kind, seed=seed, classes=9)
    assert home.shape == labels.shape
    assert home.dtype == np.int64
    assert home.min() >= 0
    assert home.max() < devices
    assert np.array_equal(home, partition(labels, devices, kind, seed=seed, classes=9))


def test_a_hundred_classes_at_twenty_devices():
    labels = np.arange(100)
    assert np.array_equal(partition(labels, 20), labels // 5)


def test_the_last_devices_hold_what_is_left():
    assert partition(np.arange(9), 8).tolist() == [0, 1, 2, 3, 4, 5, 6, 7, 7]
    assert partition(np.arange(10), 4).tolist() == [0, 0, 1, 1, 2, 2, 2, 3, 3, 3]


@given(classes=st.integers(1, 60), data=st.data())
def test_blocks_are_consecutive_and_nearly_equal(classes, data):
    devices = data.draw(st.integers(1, classes))
    home = partition(np.arange(classes), devices)
    sizes = np.bincount(home, minlength=devices)
    assert (np.diff(home) >= 0).all()
    assert (np.diff(sizes) >= 0).all()
    assert sizes.max() - sizes.min() <= 1


def test_a_class_that_nobody_has_keeps_its_place():
    assert partition([0, 3], 2, classes=4).tolist() == [0, 1]
    assert partition([0, 1], 2, classes=4).tolist() == [0, 0]


@given(rows=st.integers(1, 200), data=st.data())
def test_equal_shares_differ_by_at_most_a_row(rows, data):
    devices = data.draw(st.integers(1, rows))
    sizes = np.bincount(partition(np.zeros(rows, int), devices, "iid"), minlength=devices)
    assert sizes.max() - sizes.min() <= 1


def test_a_smaller_concentration_is_more_uneven():
    """The largest share of a class, averaged over 40 classes: near a tenth for 1000, nearly all for 0.01."""
    labels = np.repeat(np.arange(40), 200)

    def largest(concentration):
        home = partition(labels, 10, "dirichlet", concentration=concentration)
        return np.mean([np.bincount(home[labels == k], minlength=10).max() / 200 for k in range(40)])

    shares = [largest(concentration) for concentration in (1000.0, 0.5, 0.01)]
    assert shares == sorted(shares)
    assert shares[0] < 0.2
    assert shares[-1] > 0.9


@pytest.mark.parametrize("kind", ["dirichlet", "iid"])
def test_seeds_differ(kind):
    labels = np.arange(100) % 10
    assert not np.array_equal(partition(labels, 5, kind, seed=0), partition(labels, 5, kind, seed=1))


@given(labels=some_labels, data=st.data(), seed=st.integers(0, 3))
def test_rows_are_put_aside_in_proportion(labels, data, seed):
    home = partition(labels, 4, "dirichlet", seed=seed, classes=9)
    rows = data.draw(st.integers(1, len(home)))
    calibration, test = split_calibration_rows(home, rows, seed=seed)
    assert len(calibration) == rows
    assert np.array_equal(np.sort(np.concatenate([calibration, test])), np.arange(len(home)))
    assert (np.diff(calibration) > 0).all()
    share = np.bincount(home, minlength=4) * rows / len(home)
    assert (np.abs(np.bincount(home[calibration], minlength=4) - share) <= 1).all()


def test_every_row_of_a_device_is_as_likely():
    """Of 8 rows 2 are drawn, 4000 times: each about 1000 times, five standard deviations are 137."""
    drawn = np.concatenate([split_calibration_rows(np.repeat([0, 1], 4), 2, seed=seed)[0] for seed in range(4000)])
    assert np.abs(np.bincount(drawn) - 1000).max() < 137


BAD = {
    "kind": (([0, 1], 2, "clas"), {}, ValueError, "unknown partition 'clas', did you mean 'class'"),
    "devices": (([0, 1], 0), {}, ValueError, "devices must be at least 1, got 0"),
    "half a device": (([0, 1], 1.5), {}, TypeError, "devices must be an integer, got 1.5"),
    "more devices than classes": (([0, 1], 3), {}, ValueError, "3 devices need as many classes, got 2; use fewer"),
    "more devices than rows": (([0, 1], 3, "iid"), {}, ValueError, "3 devices need as many rows, got 2"),
    "concentration": (([0], 1, "dirichlet"), {"concentration": 0.0}, ValueError, "concentration must be a positive"),
    "classes": (([0, 5], 2), {"classes": 5}, ValueError, "labels between 0 and 4 for 5 classes, got 5"),
    "negative": (([0, -1], 2), {}, ValueError, "labels of 0 or more, got -1"),
    "text": ((["a"], 1), {}, TypeError, "integer labels"),
    "shape": (([[0]], 1), {}, ValueError, r"shape \(rows,\)"),
    "nothing": (([], 1), {}, ValueError, "at least one row"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_partitions(case):
    arguments, more, error, problem = BAD[case]
    with pytest.raises(error, match=problem):
        partition(*arguments, **more)


@pytest.mark.parametrize("rows", [0, 5])
def test_a_split_needs_rows(rows):
    with pytest.raises(ValueError, match=f"calibration needs 1 to 4 rows, got {rows}"):
        split_calibration_rows(np.zeros(4, np.int64), rows)
