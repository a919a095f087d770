"""The demo's devices: unequal, reproducible, and split as the guarantee speaks of."""

from __future__ import annotations

import numpy as np
import pytest

from conformesh.lab.datasets.digits import LEAST_IMAGES, load_digits_on_devices, split_digits


@pytest.fixture(scope="module")
def digits():
    return load_digits_on_devices(20, seed=0)


def test_every_image_is_at_one_device(digits):
    rows = np.concatenate(digits.rows)
    assert np.array_equal(np.sort(rows), np.arange(len(digits.labels)))
    assert np.allclose(digits.probabilities.sum(axis=1), 1)
    assert digits.probabilities.shape == (len(digits.labels), 10)
    assert 0.8 < digits.accuracy < 0.95  # good, and wrong often enough to need sets


def test_devices_are_unequal_in_size_and_in_mix(digits):
    sizes = np.array([len(rows) for rows in digits.rows])
    assert sizes.min() >= LEAST_IMAGES
    assert sizes.max() > 3 * sizes.min()
    mixes = np.array([np.bincount(digits.labels[rows], minlength=10) / len(rows) for rows in digits.rows])
    assert mixes.max(axis=1).mean() > 0.25  # a tenth each would be equal


def test_a_test_row_is_at_a_device_in_proportion_to_its_scores_plus_one(digits):
    one = split_digits(digits, 0, 5)
    sizes = np.array([len(rows) for rows in one.calibration])
    assert np.array_equal(np.bincount(one.device, minlength=20), sizes + 1)
    for device, rows in enumerate(one.calibration):
        tested = one.test[one.device == device]
        both = np.concatenate([rows, tested])
        assert len({*both.tolist()}) == len(both)
        assert {*both.tolist()} <= {*digits.rows[device].tolist()}


def test_splits_differ_and_repeat(digits):
    assert np.array_equal(split_digits(digits, 0, 1).test, split_digits(digits, 0, 1).test)
    assert not np.array_equal(split_digits(digits, 0, 1).test, split_digits(digits, 0, 2).test)


def test_many_devices_still_have_something(digits):
    crowded = load_digits_on_devices(500, seed=1)
    assert min(len(rows) for rows in crowded.rows) >= LEAST_IMAGES
    assert min(len(rows) for rows in split_digits(crowded, 1, 0).calibration) >= 1
