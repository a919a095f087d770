"""Streams on disk: times as numbers and dates, gaps, and rows that cannot be."""

import re

import numpy as np
import polars as pl
import pytest

from conformesh.files.stream_files import read_streams


def written(tmp_path, *rows, head="time,device,score"):
    path = tmp_path / "s.csv"
    path.write_text("\n".join([head, *rows]))
    return str(path)


def test_numbers_are_ordered_as_numbers(tmp_path):
    found = read_streams(written(tmp_path, "10,b,0.5", "9,b,0.25", "9,a,1"))
    assert found.devices == ("a", "b")
    assert found.times.tolist() == [9, 10]
    assert np.array_equal(found.scores, [[1, np.nan], [0.25, 0.5]], equal_nan=True)


def test_dates_are_ordered_as_dates(tmp_path):
    found = read_streams(written(tmp_path, "2026-11-02T00:30,x,2", "2026-11-01T00:30,x,1"))
    assert found.scores.tolist() == [[1, 2]]
    assert found.times.tolist() == ["2026-11-01T00:30", "2026-11-02T00:30"]


@pytest.mark.parametrize(
    "ascending",
    [
        ["2024-01-31", "2024-02-01"],
        ["2024/1/31", "2024/02/01", "2024/10/01"],
        ["31.01.2024", "01.02.2024", "01.02.2024 9:00", "01.02.2024 10:00"],
        ["03/04/2024", "31/05/2024"],  # a day above 12 shows that days come first: 3 April
        ["03/04/2024 11:59 PM", "05/31/2024 12:01 AM", "05/31/2024 9:00 AM", "05/31/2024 1:00 pm"],
        ["31-01-2024", "01-02-2024"],
        ["31 Jan 2024", "1 February 2024", "Mar 1, 2024 08:00"],
        ["2024-01-31T23:30:00+01:00", "2024-01-31T22:45:00Z", "2024-01-31T23:30:00-0100"],
        ["20240131T080000Z", "2024-01-31T08:00:00.25Z", "2024-01-31 08:00:00.250000001 UTC"],
    ],
)
@pytest.mark.parametrize("turn", [1, -1])
def test_common_formats_are_read(tmp_path, ascending, turn):
    rows = [f'"{time}",x,{place}' for place, time in enumerate(ascending)][::turn]
    found = read_streams(written(tmp_path, *rows))
    assert found.scores.tolist() == [[*range(len(ascending))]]
    assert found.times.tolist() == ascending


def test_one_instant_in_two_zones_is_one_step(tmp_path):
    found = read_streams(written(tmp_path, "2024-01-31T10:00Z,x,1", "2024-01-31T11:00+01:00,y,2"))
    assert found.scores.tolist() == [[1], [2]]


def test_dates_that_a_file_has_as_such(tmp_path):
    times = np.array(["2024-02-01", "2024-01-31"], dtype="datetime64[D]")
    np.savez(tmp_path / "s.npz", time=times, device=np.array(["x", "x"]), score=np.array([1.0, 2.0]))
    pl.DataFrame({"time": times, "device": ["x", "x"], "score": [1.0, 2.0]}).write_parquet(tmp_path / "s.parquet")
    for ending in ("npz", "parquet"):
        found = read_streams(str(tmp_path / f"s.{ending}"))
        assert found.scores.tolist() == [[2.0, 1.0]]
        assert found.times[0].startswith("2024-01-31")


@pytest.mark.parametrize(
    ("times", "words"),
    [
        (["t0", "t1", "t10"], "line 2: time: got 't0', which is no time that can be read; understood are numbers"),
        (["0", "t1"], "line 2: time: got '0'"),
        (["monday", "tuesday"], "'monday', which is no time"),
        (["08:00", "23:50"], "'08:00', which is no time"),  # of which day?
        (["01/02/2024", "03/04/2024"], "'01/02/2024', where the day may come first or second; write 2024-01-31"),
        (["31/01/2024", "01/31/2024"], "in one the day comes second, in the other first"),
        (["31.01.24", "01.02.24"], "which is no date"),
        (["2024-02-30"], "'2024-02-30', which is no date: day is out of range"),
        (["2024-01-31T08:00Z", "2024-01-31T08:00"], "line 3: time: has no zone, and others have one"),
        (["1", "nan"], "line 3: time must be a finite number"),
    ],
)
def test_times_that_cannot_be_ordered_are_refused(tmp_path, times, words):
    with pytest.raises(ValueError, match=re.escape(words)):
        read_streams(written(tmp_path, *[f"{time},x,{place}" for place, time in enumerate(times)]))


@pytest.mark.parametrize(
    ("rows", "head", "words"),
    [
        (["1,a,0.5", "1,a,0.6"], "time,device,score", "line 3: device 'a' has two scores at 1"),
        (["1,a,nan"], "time,device,score", "line 2: score must be a number"),
        (["1,a,half"], "time,device,score", "line 2: score must be a number"),
        (["1,a,0.5"], "t,device,score", "needs a column 'time'"),
        ([], "time,device,score", "no rows"),
    ],
)
def test_rows_that_cannot_be(tmp_path, rows, head, words):
    with pytest.raises(ValueError, match=words):
        read_streams(written(tmp_path, *rows, head=head))
