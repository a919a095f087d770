"""Scores from files arrive bit by bit, device by device."""

from __future__ import annotations

import io

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from conformesh import CalibrationNote
from conformesh.cli.hosts import table_of_devices
from conformesh.files.score_files import read_scores


def from_text(text: str):
    return read_scores("-", io.BytesIO(text.encode()))


@given(st.lists(st.tuples(st.sampled_from("abcde"), st.floats(allow_nan=False)), min_size=1, max_size=40))
def test_numbers_survive_csv_to_the_last_bit(rows):
    found = from_text("device,score\n" + "".join(f"{device},{score!r}\n" for device, score in rows))
    assert found.devices == tuple(sorted({device for device, _ in rows}))
    for device, scores in zip(found.devices, found.scores, strict=True):
        expected = np.array([score for other, score in rows if other == device])
        assert scores.tobytes() == expected.tobytes()


def test_spaces_quotes_and_other_columns_are_no_trouble():
    found = from_text('\ufeffid, score ,device\n1, 0.5 ,"north, left"\n2,1e-3, 7 \n3,inf,7\n\n')
    assert found.devices == ("7", "north, left")
    assert [scores.tolist() for scores in found.scores] == [[0.001, np.inf], [0.5]]


def test_leading_zeros_make_another_device():
    with pytest.warns(CalibrationNote, match="devices '07' and '7' differ only in white space, case or leading zeros"):
        assert from_text("device,score\n07,1\n7,2\n").devices == ("07", "7")


@pytest.mark.parametrize("device", [np.array([2, 10, 2]), np.array([2.0, 10.0, 2.0]), np.array(["2", "10", "2"])])
def test_devices_may_be_numbers(tmp_path, device):
    np.savez(tmp_path / "s.npz", device=device, score=np.array([1, 2, 3]))
    pl.DataFrame({"device": device, "score": [1, 2, 3]}).write_parquet(tmp_path / "s.parquet")
    for name in ("s.npz", "s.parquet"):
        found = read_scores(str(tmp_path / name))
        assert found.devices == ("2", "10")
        assert [scores.tolist() for scores in found.scores] == [[1.0, 3.0], [2.0]]


def test_categories_are_names(tmp_path):
    frame = pl.DataFrame({"device": ["x", "y", "x"], "score": [1.0, 2.0, 3.0]})
    frame.with_columns(pl.col("device").cast(pl.Categorical)).write_parquet(tmp_path / "s.parquet")
    assert read_scores(str(tmp_path / "s.parquet")).devices == ("x", "y")


def test_devices_without_rows_are_empty():
    found = table_of_devices(from_text("device,score\nb,1\nc,2\n"), ("c", "a", "b"))
    assert (found.names, found.sizes.tolist(), found.score.tolist()) == (("c", "a", "b"), [1, 0, 1], [2.0, 1.0])


def test_a_million_rows_take_seconds(tmp_path):
    rng = np.random.default_rng(0)
    np.savez(tmp_path / "s.npz", device=rng.integers(0, 1000, 1_000_000).astype(str), score=rng.random(1_000_000))
    found = read_scores(str(tmp_path / "s.npz"))
    assert len(found.devices) == 1000
    assert sum(map(len, found.scores)) == 1_000_000
