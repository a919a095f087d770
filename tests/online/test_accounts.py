"""Accounts: shares, bounds that are never rounded down, and words."""

import math

import pytest

from conformesh.online import MissAccount, MissGap


def test_an_account_in_words():
    assert str(MissAccount(0.1, 1000, 103, MissGap(20.1, 20.9))) == "so far 0.103, guaranteed within 0.021 of 0.1"
    assert str(MissAccount(0.1, 1000, 103, MissGap(20.1, 21.00001))) == "so far 0.103, guaranteed within 0.022 of 0.1"
    assert str(MissAccount(0.1, 0, 0, MissGap(1, 1))) == "no labels so far"
    assert (
        str(MissAccount(0.1, 10, 2, None, "no bound is known for DtACI"))
        == "so far 0.200 for 0.1, no bound is known for DtACI"
    )


def test_a_bound_is_never_more_than_any_share_can_be_off():
    account = MissAccount(0.1, 10, 1, MissGap(100, 100))
    assert (account.lowest, account.highest, account.bound) == (0.0, 1.0, 0.9)
    assert MissAccount(0.1, 10, 1, None).bound == 0.9
    assert math.isnan(MissAccount(0.1, 0, 0, None).rate)


def test_the_bound_is_the_larger_side():
    account = MissAccount(0.1, 100, 10, MissGap(2, 5))
    assert account.lowest == pytest.approx(0.08)
    assert account.highest == pytest.approx(0.15)
    assert account.bound == pytest.approx(0.05)


@pytest.mark.parametrize(("misses", "kept"), [(8, True), (15, True), (7, False), (16, False)])
def test_a_broken_guarantee_is_noticed(misses, kept):
    assert MissAccount(0.1, 100, misses, MissGap(2, 5)).is_kept is kept
