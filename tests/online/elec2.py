"""ELEC2: half-hourly demand in New South Wales, forecast by that of a day before; scores are absolute errors."""

import gzip
import os
from pathlib import Path

import numpy as np
import polars as pl
import pytest


def demand():
    """All values in the order of time, in [0, 1]."""
    folder = Path(os.environ.get("CONFORMESH_DATA", Path(__file__).parents[3] / "shared" / "data"))
    path = folder / "elec2.csv.gz"
    if not path.exists():
        pytest.skip("elec2.csv.gz is not here; set CONFORMESH_DATA to the folder that holds it")
    return pl.read_csv(gzip.decompress(path.read_bytes()))["nswdemand"].to_numpy()


def stream():
    """Scores as one stream."""
    y = demand()
    return np.abs(y[48:] - y[:-48])


def by_hour():
    """Scores of 24 devices, one for each hour of the day, 1886 steps each."""
    y = demand().reshape(-1, 24, 2).transpose(1, 0, 2).reshape(24, -1)
    return np.abs(y[:, 2:] - y[:, :-2])
