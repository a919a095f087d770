"""Model outputs from files."""

from __future__ import annotations

import io

import numpy as np
import polars as pl
import pytest

from conformesh.files.output_files import read_outputs
from conformesh.files.tables import FileLayout


def test_header_names_the_labels_and_device_is_none():
    found = read_outputs("-", stdin=io.BytesIO(b"cat,device,dog\n0.25,a,0.75\n0.5,b,0.5\n"))
    assert found.labels == ("cat", "dog")
    assert found.devices == ["a", "b"]
    assert found.values.tolist() == [[0.25, 0.75], [0.5, 0.5]]


def test_another_column_may_name_the_device(tmp_path):
    pl.DataFrame({"where": [1, 2], "cat": [0.5, 1.0]}).write_parquet(tmp_path / "p.parquet")
    found = read_outputs(str(tmp_path / "p.parquet"), FileLayout("where"))
    assert (found.labels, found.devices) == (("cat",), ["1", "2"])


def test_arrays_by_name(tmp_path):
    table = np.arange(6.0).reshape(2, 3)
    np.savez(tmp_path / "p.npz", logits=table, probabilities=-table)
    assert np.array_equal(read_outputs(str(tmp_path / "p.npz")).values, -table)
    assert np.array_equal(read_outputs(str(tmp_path / "p.npz"), logits=True).values, table)
    np.save(tmp_path / "p.npy", table[:, 0])
    found = read_outputs(str(tmp_path / "p.npy"))
    assert found.values.shape == (2, 1)
    assert found.labels == ("0",)


def test_no_rows(tmp_path):
    np.save(tmp_path / "p.npy", np.empty((0, 3)))
    with pytest.raises(ValueError, match=r"p\.npy has no rows"):
        read_outputs(str(tmp_path / "p.npy"))
