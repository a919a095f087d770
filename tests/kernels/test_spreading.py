"""Maxima that spread by what has changed: bit for bit the passes over everybody."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from conformesh import Network
from conformesh.engines import Simulator
from conformesh.kernels.neighbours import equal_values_have_equal_bits, max_over_neighbours, min_over_neighbours
from conformesh.kernels.spreading import Spreading
from conformesh.protocols.messages import WIRE_TYPES, Max, Min
from tests.strategies import networks

pytestmark = pytest.mark.usefixtures("way")

BEST = {True: max_over_neighbours, False: min_over_neighbours}


def after_one_round(network, x, speakers, upward, order=None):
    """One device after the other, its neighbours by ascending id: of equals the first stays, and NaN wins."""
    order = np.arange(network.devices) if order is None else order
    place = np.argsort(order)
    new = x.copy()
    for k, row in enumerate(order.tolist()):
        for j in network.neighbours(row).tolist():
            if place[j] in speakers:
                said = x[place[j]]
                better = (said > new[k] if upward else said < new[k]) | (np.isnan(said) & ~np.isnan(new[k]))
                new[k] = np.where(better, said, new[k])
    return new


@given(networks(), st.integers(0, 2**32 - 1), st.booleans(), st.sampled_from([np.float64, np.int64, np.float32]))
def test_only_news_ends_every_round_where_everybody_speaking_does(network, seed, upward, dtype):
    x = np.random.default_rng(seed).integers(-9, 9, (network.devices, 2, 3)).astype(dtype) + dtype(0)
    spreading = Spreading(network.indptr, network.indices, x, upward)
    changed = np.arange(network.devices)
    for _ in range(network.diameter + 2):
        before, x = x, BEST[upward](network.indptr, network.indices, x).astype(dtype)
        changed = spreading.round(changed)
        assert spreading.values.dtype == dtype
        assert spreading.values.tobytes() == x.tobytes()
        assert changed.tolist() == np.flatnonzero((x != before).any(axis=(1, 2))).tolist()


@given(networks(), st.integers(0, 2**32 - 1), st.booleans(), st.sampled_from(WIRE_TYPES[:-1]), st.booleans())
def test_any_speakers_are_heard_and_only_they(network, seed, upward, name, shuffled):
    """Zeros of both signs and NaN among them, rows in any order in memory, over a few rounds."""
    rng = np.random.default_rng(seed)
    dtype = np.dtype(name)
    x = rng.integers(0, 3, (network.devices, 2)).astype(dtype)
    if dtype.kind == "f":
        x *= rng.choice([-1, 1], x.shape).astype(dtype)
        x[rng.random(x.shape) < 0.1] = np.nan
    order = rng.permutation(network.devices) if shuffled else None
    simulator, kind = Simulator(network, order=order), Max if upward else Min

    def rounds():
        found = x
        for _ in range(3):
            speakers = rng.random(network.devices) < 0.5
            given = speakers if rng.random() < 0.5 else np.flatnonzero(speakers)
            right = after_one_round(network, found.copy(), set(np.flatnonzero(speakers)), upward, order)
            before = found.copy()
            heard = yield kind(found, brief=True, speakers=given)
            assert heard.values.dtype == dtype
            assert np.array_equal(np.signbit(heard.values), np.signbit(right)) if dtype.kind == "f" else True
            assert np.array_equal(heard.values, right, equal_nan=dtype.kind == "f")
            news = ~((before == right) | (np.isnan(before) & np.isnan(right))).all(axis=1)
            assert heard.changed.tolist() == np.flatnonzero(news).tolist()
            found = heard.values
        return True

    assert simulator.run(rounds())[0]


def test_what_has_equal_values_with_other_bits_is_told_apart():
    assert equal_values_have_equal_bits(np.array([-0.0, 1.0, -np.inf]))
    assert equal_values_have_equal_bits(np.array([0.0, 1.0]))
    assert not equal_values_have_equal_bits(np.array([-0.0, 0.0]))
    assert not equal_values_have_equal_bits(np.array([np.nan]))
    assert not equal_values_have_equal_bits(np.zeros(2, dtype=np.float32))


def test_an_answer_cannot_be_changed_and_another_array_starts_anew():
    """Rounds go on in the same memory only for the very values that were handed out."""
    everybody = np.arange(3)

    def protocol():
        x = (yield Max(np.array([1.0, 2.0, 3.0]), brief=True, speakers=everybody)).values
        with pytest.raises(ValueError, match="read-only"):
            x[0] = 9.0
        x = yield Max(x + np.array([9.0, 0.0, 0.0]), brief=True, speakers=everybody)
        return x.values.tolist()

    assert Simulator(Network.chain(3)).run(protocol())[0] == [11.0, 11.0, 3.0]


def test_what_is_not_brief_lasts():
    def protocol():
        first = yield Max(np.array([1.0, 2.0, 3.0]), speakers=np.arange(3))
        second = yield Max(first.values, speakers=first.changed)
        return first.values.tolist(), second.values.tolist()

    assert Simulator(Network.chain(3)).run(protocol())[0] == ([2.0, 3.0, 3.0], [3.0, 3.0, 3.0])
