"""Maxima that spread by what has changed: bit for bit the passes over everybody."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from conformesh import Network
from conformesh.engines import Simulator, simulator
from conformesh.kernels.neighbours import equal_is_same, max_over_neighbours, min_over_neighbours
from conformesh.kernels.spreading import Spreading
from conformesh.protocols.messages import Max, Min
from tests.strategies import networks

pytestmark = pytest.mark.usefixtures("way")

BEST = {True: max_over_neighbours, False: min_over_neighbours}


@given(networks(), st.integers(0, 2**32 - 1), st.booleans(), st.sampled_from([np.float64, np.int64]))
def test_every_round_equals_a_pass_over_everybody(network, seed, upward, dtype):
    x = np.random.default_rng(seed).integers(-9, 9, (network.devices, 2, 3)).astype(dtype) + dtype(0)
    assert equal_is_same(x)
    spreading = Spreading(network.indptr, network.indices, x, upward)
    found = spreading.values
    for _ in range(network.diameter + 2):
        x = BEST[upward](network.indptr, network.indices, x)
        assert found.tobytes() == x.tobytes()
        found = spreading.round()


def test_what_has_equal_values_with_other_bits_does_not_spread():
    assert equal_is_same(np.array([-0.0, 1.0, -np.inf]))
    assert equal_is_same(np.array([0.0, 1.0]))
    assert not equal_is_same(np.array([-0.0, 0.0]))
    assert not equal_is_same(np.array([np.nan]))
    assert not equal_is_same(np.zeros(2, dtype=np.float32))


@pytest.mark.parametrize("kind", [Max, Min])
@pytest.mark.parametrize(
    "values", [[3.0, 0.0, -0.0, np.nan, 1.0], [3.0, 0.0, -0.0, 2.0, 1.0], [5.0, 1.0, 2.0, 4.0, 3.0]]
)
def test_brief_questions_have_the_same_answers(kind, values, monkeypatch):
    """A large network's short cuts, with what they must refuse among the values."""
    monkeypatch.setattr(simulator, "REMEMBERED", 0)

    def rounds(brief):
        x, seen = np.array(values), []
        for _ in range(6):
            x = yield kind(x, brief=brief)
            seen.append(x.tobytes())
        return seen

    net = Network.chain(5)
    assert Simulator(net).run(rounds(True))[0] == Simulator(net).run(rounds(False))[0]


def test_an_answer_that_is_changed_is_refused_and_another_array_starts_anew(monkeypatch):
    """The short cut holds only for the very values it handed out, which therefore cannot be written to."""
    monkeypatch.setattr(simulator, "REMEMBERED", 0)

    def protocol():
        x = yield Max(np.array([1.0, 2.0, 3.0]), brief=True)
        with pytest.raises(ValueError, match="read-only"):
            x[0] = 9.0
        x = yield Max(x + np.array([9.0, 0.0, 0.0]), brief=True)
        return x.tolist()

    assert Simulator(Network.chain(3)).run(protocol())[0] == [11.0, 11.0, 3.0]
