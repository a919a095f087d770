"""Columns that belong together: their index, and rows that are there twice."""

from __future__ import annotations

import warnings

import numpy as np
import pandas as pd
import pytest

from conformesh import CalibrationNote, Table
from conformesh.common.arrays import check_index
from conformesh.files.score_files import read_scores


def test_an_index_of_mixed_types_is_compared():
    rows = pd.Series([1.0, 2.0, 3.0], index=["a", 1, (2, "b")])
    with pytest.raises(ValueError, match="labels have the index of outputs in another order"):
        check_index(rows, rows.iloc[::-1], "labels", "outputs")
    with pytest.warns(CalibrationNote, match="another index"):
        check_index(rows, rows.set_axis(["a", 1, 2]), "labels", "outputs")


@pytest.mark.parametrize(
    "ids", [[0, 1, 0, 1], ["", "", None, " "], [np.nan, np.nan, None, None], [0, None, np.nan, ""]], ids=str
)
def test_ids_may_count_per_device_or_be_missing(tmp_path, ids):
    frame = pd.DataFrame({"device": ["a", "a", "b", "b"], "score": [0.1, 0.2, 0.3, 0.4], "id": ids})
    frame.to_csv(tmp_path / "s.csv", index=False)
    with warnings.catch_warnings():
        warnings.simplefilter("error", CalibrationNote)
        Table.of(frame)
        read_scores(str(tmp_path / "s.csv"))


def test_an_id_that_a_device_has_twice_gets_a_note(tmp_path):
    frame = pd.DataFrame({"device": ["a", "a", "b"], "score": [0.1, 0.2, 0.3], "id": ["x", "x", "x"]})
    frame.to_csv(tmp_path / "s.csv", index=False)
    with pytest.warns(CalibrationNote, match="id 'x' is there 2 times"):
        Table.of(frame)
    with pytest.warns(CalibrationNote, match="id 'x' is there 2 times"):
        read_scores(str(tmp_path / "s.csv"))
