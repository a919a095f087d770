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

from conformesh import CalibrationNote, Network, Quantiles, Table, quantiles
from conformesh.kernels.weighted_scores import WeightedScores
from conformesh.pipeline.quantiles import quantile_rank
from conformesh.results.quantiles import parse_release

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


@pytest.mark.parametrize("options", [{"aggregate": "flood"}, {"schedule": "top-k"}, {"prefer": "rounds"}], ids=str)
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
    for data in (held, np.stack([*held.values()]), Table.from_flat(np.concatenate([*held.values()]), [9] * 4)):
        found = quantiles(data, network)
        assert (found.values.tolist(), found.column) == (want, "")


def test_a_decimal_is_taken_as_written():
    """29 of 100 values lie at or below q = 0.29, where 0.29 * 100 in floats is 28.999999999999996."""
    assert quantile_rank(Fraction("0.29"), 100) == 29
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


# --- with epsilon -----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def ages():
    rng = np.random.default_rng(4)
    return [rng.integers(18, 95, rng.integers(0, 200)) for _ in range(20)]


@pytest.fixture(scope="module")
def private(ages):
    return quantiles(ages, Network.torus(5, 4), [0.1, 0.5, 0.9], epsilon=2, range=(0, 120))


def test_private_quantiles_of_a_run_are_within_their_rank_error(ages, private):
    """All three ranks of one run: wrong with a chance below .01 at confidence .99 (measured on releases: far below).

    Power: values that ignore the data, such as those of other quantiles, are off by 400 ranks and more.
    """
    found, pooled = private.with_q(private.q, 0.99), np.sort(np.concatenate(ages))
    ranks = np.searchsorted(pooled, np.asarray(found), side="right")
    assert (np.abs(ranks - np.array(found.q) * len(pooled)) <= found.rank_error).all()
    assert found.rank_error.max() < 150
    assert abs(found.n - len(pooled)) < 100  # noise of epsilon .2: beyond 100 with a chance below 1e-8
    assert np.isin(found.values, parse_release(found.release).pivots).all()  # points of the public grid, no true values


def test_other_quantiles_of_a_release_cost_nothing(private):
    other = private.with_q([0.25, 0.5])
    assert other.cost is None
    assert other.q == (0.25, 0.5)
    assert other[1] == private[1]
    assert other.release == private.release
    assert other.privacy == private.privacy
    assert other.rank_error[1] < private.rank_error[1]  # two share the risk of 1 - confidence, and not three
    assert private.with_q(0.5, 0.5).rank_error[0] < private.with_q(0.5, 0.999).rank_error[0]
    with pytest.raises(ValueError, match="exact and hold no release"):
        quantiles(HELD, "chain").with_q(0.5)


def test_a_private_result_says_what_it_claims_and_that_a_simulation_protects_nothing(private, tmp_path):
    assert "with probability 0.95 over the noise, for all 3 quantiles at once" in str(private)
    assert "none: this was a simulation" in private.privacy
    assert "epsilon 2 for each value if 19 of 20 devices keep their noise secret" in private.privacy
    assert repr(private).splitlines()[0].startswith("Quantiles(about ")
    assert "counted with noise" in private._repr_html_()
    private.save(tmp_path / "private.json")
    again = Quantiles.load(tmp_path / "private.json")
    assert [*again.with_q([0.3])] == [*private.with_q([0.3])]


def test_what_makes_a_quantile_useless_is_noted(ages):
    """The notes depend on noise: at these numbers other words are rarer than 1e-6."""
    network = Network.torus(5, 4)
    with pytest.warns(CalibrationNote, match="because many values lie in one cell of the grid; give range="):
        quantiles([own + 10_000 for own in ages], network, 0.5, epsilon=2)
    with pytest.warns(CalibrationNote, match="because of the noise; use more values"):
        quantiles([own[:5] for own in ages], network, 0.5, epsilon=0.2, range=(0, 120))


def test_whole_devices_are_protected_if_asked_for(ages):
    """The noise has no seed: with epsilon 20 the note was missing in 2 of 150 runs, with 10 and 5 in none."""
    with pytest.warns(CalibrationNote, match="because of the noise"):
        found = quantiles(ages, Network.torus(5, 4), 0.5, epsilon=5, range=(0, 120), unit="device", cap=50)
    assert "for each device, of which at most 50 values count, if 19 of 20" in found.privacy


HELD = [[1.0, 2.0], [3.0]]


def private_of(**given):
    return quantiles([[1.0, 2.0], [3.0], [4.0]], "chain", **{"epsilon": 1, **given})


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
    "trials": (
        lambda: quantiles(WeightedScores.of_trials([HELD, HELD]), "chain"),
        "one array of values per device.*got WeightedScores",
    ),
    "a range without epsilon": (
        lambda: quantiles(HELD, "chain", range=(0, 1)),
        "must not come from the data: give eps",
    ),
    "a range upside down": (lambda: private_of(range=(1, 0)), "LO below HI"),
    "a range that is none": (lambda: private_of(range=5), "range must be 2 values"),
    "no epsilon": (lambda: private_of(epsilon=0), "epsilon must be above 0"),
    "the largest value": (lambda: private_of(q=[0.5, 1]), "strictly between 0 and 1, got 1: .*one record"),
    "a confidence in percent": (lambda: private_of(confidence=95), "confidence must lie strictly between 0 and 1"),
    "sums with errors": (lambda: private_of(aggregate="gossip"), "aggregate must be 'tree' or 'flood'"),
    "an option of another method": (lambda: quantiles(HELD, "chain", bins=3), "no option 'bins'"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_explained(name):
    call, said = MISTAKES[name]
    with pytest.raises((TypeError, ValueError), match=said):
        call()
