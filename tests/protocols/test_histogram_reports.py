"""Reports: what is said is read as it was said, all else is refused, and nothing is counted that is not there."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from conformesh.protocols.histogram_reports import (
    MOST_BINS,
    Report,
    decode_ends,
    decode_reports,
    encode_ends,
    encode_reports,
)

MOST = 2**40


def same(one, other):
    plain = ("size", "low", "high", "bins", "above", "top")
    return all(getattr(one, name) == getattr(other, name) for name in plain) and all(
        np.array_equal(getattr(one, name), getattr(other, name)) for name in ("places", "counts")
    )


drawn = st.lists(st.floats(allow_nan=False, width=32), max_size=20)


@given(drawn, st.floats(-5, 5), st.floats(0, 5), st.integers(1, 40))
def test_a_report_counts_no_score_that_lies_above(scores, low, width, bins):
    """At every threshold that it names, as many scores as it says lie at or below; at the last, all finite ones."""
    own = np.sort(np.array(scores, dtype=np.float64))
    report = Report.of(own, low, low + width, bins)
    where, more = report.points
    assert (np.diff(where) > 0).all()
    for at, count in zip(where, np.cumsum(more), strict=True):
        assert count == (own <= at).sum()
    below = int((own == -np.inf).sum())
    assert int(more.sum()) == int(np.isfinite(own).sum()) + below
    assert report.size == len(own)


@given(st.lists(drawn, min_size=1, max_size=3), st.integers(1, 300))
def test_what_is_said_is_read(trials, bins):
    reports = [Report.of(np.sort(np.array(own, dtype=np.float64)), -1.0, 2.0, bins) for own in trials]
    said = encode_reports(reports)
    found = decode_reports(said, len(trials), MOST)
    assert all(map(same, found, reports))
    for wrong in (said[:-1], said + b"\x05", b"\x01" + said[1:], said[:9]):
        with pytest.raises(ValueError, match=r"report|whole number|grid|hold|bins|ends"):
            decode_reports(wrong, len(trials), MOST)


@given(st.binary(max_size=80), st.integers(1, 2))
def test_any_bytes_are_a_report_or_refused(said, trials):
    for lead in (b"", b"\x02" + bytes(24 * trials)):
        try:
            found = decode_reports(lead + said, trials, MOST)
        except ValueError:
            continue
        for one in found:
            where, more = one.points
            assert (np.diff(where) >= 0).all()
            assert (more > 0).all()
            assert int(more.sum()) <= one.size <= MOST


def planted(**change):
    return Report(
        **{
            "size": 5,
            "low": 0.0,
            "high": 1.0,
            "bins": 4,
            "places": np.array([0, 2]),
            "counts": np.array([2, 3]),
            "above": 0,
            "top": 1.0,
            **change,
        }
    )


@pytest.mark.parametrize(
    "change",
    [
        {"size": 4},
        {"size": 2**41},
        {"low": float("nan")},
        {"high": float("inf")},
        {"low": 2.0},
        {"top": 0.5},
        {"above": 1, "size": 6},
        {"bins": 2},
        {"bins": 0},
        {"bins": MOST_BINS + 1},
        {"counts": np.array([0, 3])},
        {"counts": np.array([2**62, 2**62])},
    ],
    ids=str,
)
def test_what_nobody_could_say_is_refused(change):
    decode_reports(encode_reports([planted()]), 1, MOST)
    with pytest.raises(ValueError, match=r"must|grid|hold"):
        decode_reports(encode_reports([planted(**change)]), 1, MOST)


def test_ends():
    low, high = np.array([0.5, np.inf]), np.array([2.0, -np.inf])
    found = decode_ends(encode_ends(low, high), 2)
    assert np.array_equal(found, [low, high])
    for wrong in (encode_ends(low, high)[:-1], b"\x02" + encode_ends(low, high)[1:], encode_ends(low * np.nan, high)):
        with pytest.raises(ValueError, match=r"no ends|NaN"):
            decode_ends(wrong, 2)
