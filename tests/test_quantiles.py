"""`quantiles`: the order statistics of the pooled data, from data that stays on its devices."""

from __future__ import annotations

import json
import math
from fractions import Fraction

import numpy as np
import pandas as pd
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from conformesh import Network, Quantiles, Samples, quantiles
from conformesh.quantile import rank_of

PARTS = st.lists(st.integers(0, 100).map(lambda percent: Fraction(percent, 100)), min_size=1, max_size=5)
VALUES = st.one_of(st.integers(-3, 3).map(float), st.floats(allow_nan=False))  # few integers: many ties


def expected(devices, parts):
    """Sort the pooled values, and take rank ceil(q n), at least 1."""
    pooled = np.sort(np.concatenate([np.empty(0), *map(np.asarray, devices)]))
    return [float(pooled[max(1, math.ceil(Fraction(str(part)) * len(pooled))) - 1]) for part in parts]


@settings(max_examples=60, deadline=None)
@given(st.lists(st.lists(VALUES, max_size=12), min_size=2, max_size=7), PARTS)
def test_exact_quantiles_are_the_order_statistics_of_the_pooled_values(devices, parts):
    if not any(devices):
        with pytest.raises(ValueError, match="at least one value"):
            quantiles(devices, "cycle", parts)
        return
    found = quantiles(devices, "cycle", parts)
    assert found.values.tolist() == expected(devices, [f"{float(part):.2f}" for part in parts])
    assert found.n == sum(map(len, devices))
    assert found.rank_error.tolist() == [0.0] * len(parts)


@pytest.mark.parametrize("options", [{"aggregate": "gossip"}, {"schedule": "top-k"}, {"prefer": "rounds"}], ids=str)
def test_options_of_e_dcp_change_the_cost_and_not_the_values(options):
    rng = np.random.default_rng(1)
    devices = [rng.integers(0, 30, rng.integers(0, 60)) for _ in range(12)]
    plain, other = (quantiles(devices, Network.torus(4, 3), [0.1, 0.5, 0.9], **one) for one in ({}, options))
    assert plain.values.tolist() == other.values.tolist() == expected(devices, ["0.1", "0.5", "0.9"])
    assert plain.cost.numbers_per_device != other.cost.numbers_per_device


def test_every_form_of_data_gives_the_same_quantiles():
    rng = np.random.default_rng(2)
    held = {name: rng.random(9) for name in "abcd"}
    columns = {"device": np.repeat([*held], 9), "age": np.concatenate([*held.values()])}
    network = Network.cycle(4).relabelled([*"abcd"])
    want = expected(held.values(), ["0.25", "0.5", "0.75"])
    for data in (pd.DataFrame(columns), pl.DataFrame(columns), columns):
        found = quantiles(data, network, column="age")
        assert (found.values.tolist(), found.column) == (want, "age")
    for data in (held, np.stack([*held.values()]), Samples.of(held.values())):
        found = quantiles(data, network)
        assert (found.values.tolist(), found.column) == (want, "")


def test_a_decimal_is_taken_as_written():
    """29 of 100 values lie at or below q = 0.29, where 0.29 * 100 in floats is 28.999999999999996."""
    assert rank_of(Fraction("0.29"), 100) == 29
    assert [*quantiles([np.arange(100.0)], "chain", 0.29)] == [28.0]
    assert [*quantiles([np.arange(100.0)], "chain", 0.28)] == [27.0]


def test_a_result_behaves_like_its_values():
    found = quantiles([[3.0, 1.0], [2.0]], "chain", [0.5, 1])
    assert (len(found), [*found], found[1], found[-1]) == (2, [2.0, 3.0], 3.0, 3.0)
    assert np.asarray(found).tolist() == (np.asarray(found) + 0).tolist() == [2.0, 3.0]
    assert np.asarray(found, dtype=int).dtype == int
    assert found.to_frame().to_dict(as_series=False) == {"q": [0.5, 1.0], "value": [2.0, 3.0], "rank_error": [0.0, 0.0]}
    assert repr(found).splitlines()[1:] == ["  q  value", "0.5      2", "  1      3"]
    assert repr(found).startswith("Quantiles(3 values on 2 devices, counted; ")
    assert "exactly as if the data were pooled" in str(found)


def test_a_saved_result_is_read_again(tmp_path):
    found = quantiles({"device": [1, 1, 2], "age": [30, 40, np.inf]}, "chain", [0.5, 1], column="age")
    found.save(tmp_path / "quantiles.json")
    again = Quantiles.load(tmp_path / "quantiles.json")
    assert json.loads(again.to_json()) == json.loads(found.to_json())
    assert [*again] == [40.0, math.inf]
    found.save(tmp_path / "quantiles.csv")
    assert pl.read_csv(tmp_path / "quantiles.csv").columns == ["q", "value", "rank_error"]
    with pytest.raises(ValueError, match=r"must end in \.json or"):
        found.save(tmp_path / "quantiles.txt")


HELD = [[1.0, 2.0], [3.0]]
FRAME = {"device": ["a", "a", "b"], "age": [1.0, 2.0, 3.0]}
MISTAKES = {
    "a percentile": (lambda: quantiles(HELD, "chain", 50), "from 0 to 1, got 50; for the percentile 50 write 0.5"),
    "a negative part": (lambda: quantiles(HELD, "chain", [-0.1]), "from 0 to 1, got -0.1"),
    "no part": (lambda: quantiles(HELD, "chain", []), "at least one quantile, such as q="),
    "a word": (lambda: quantiles(HELD, "chain", "median"), "number from 0 to 1, got 'median'"),
    "alpha": (lambda: quantiles(HELD, "chain", alpha=0.1), "no argument 'alpha'; it takes q="),
    "a missing column": (lambda: quantiles(FRAME, "chain", column="agee"), "did you mean 'age'.*with column="),
    "a frame without scores": (lambda: quantiles(pd.DataFrame(FRAME), "chain"), "column 'score'.*with column="),
    "a flat list": (lambda: quantiles([1.0, 2.0], "chain"), r"data must be one array of values per device.*\[values\]"),
    "a number": (lambda: quantiles(5, "chain"), "data must be one array of values per device.*got int '5'"),
    "no value": (lambda: quantiles([[], []], "chain"), "at least one value, got none on any device"),
    "trials": (lambda: quantiles(Samples.of_trials([HELD, HELD]), "chain"), "one trial without weights"),
    "an option of another method": (lambda: quantiles(HELD, "chain", bins=3), "no option 'bins'"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_explained(name):
    call, said = MISTAKES[name]
    with pytest.raises((TypeError, ValueError), match=said):
        call()
