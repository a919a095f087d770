"""Streams on disk: times by number or as text, gaps, and rows that cannot be."""

import numpy as np
import pytest

from conformesh.io.stream_files import read_streams


def written(tmp_path, *rows, head="time,device,score"):
    path = tmp_path / "s.csv"
    path.write_text("\n".join([head, *rows]))
    return str(path)


def test_numbers_are_ordered_as_numbers(tmp_path):
    found = read_streams(written(tmp_path, "10,b,0.5", "9,b,0.25", "9,a,1"))
    assert found.devices == ("a", "b")
    assert found.times.tolist() == [9, 10]
    assert np.array_equal(found.scores, [[1, np.nan], [0.25, 0.5]], equal_nan=True)


def test_text_is_ordered_as_text(tmp_path):
    found = read_streams(written(tmp_path, "2026-11-02T00:30,x,2", "2026-11-01T00:30,x,1"))
    assert found.scores.tolist() == [[1, 2]]
    assert found.times.tolist() == ["2026-11-01T00:30", "2026-11-02T00:30"]


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
