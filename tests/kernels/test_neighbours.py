"""Neighbour sums, maxima and minima: bit for bit the obvious loops, on one thread, on many, and in a forked child."""

import multiprocessing
import os
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from conformesh import Network
from conformesh.kernels import threads
from conformesh.kernels.neighbours import max_over_neighbours, min_over_neighbours, sum_over_neighbours
from tests.kernels.conftest import assert_same_bits
from tests.strategies import networks

pytestmark = pytest.mark.usefixtures("way")

DTYPES = [np.float64, np.float32, np.float16, np.int64, np.int32, np.int8, np.uint16, np.bool_]


def slow_sum(network, x, weights=None):
    """Neighbours in ascending row, starting from zero."""
    wide = x.astype(np.float64 if weights is not None or x.dtype.kind == "f" else np.int64)
    out = np.zeros_like(wide)
    for k in range(network.devices):
        for p in range(network.indptr[k], network.indptr[k + 1]):
            message = wide[network.indices[p]]
            with np.errstate(over="ignore"):  # integers wrap around
                out[k] = out[k] + (message if weights is None else weights[p] * message)
    return out


def slow_extreme(network, x, better):
    wide = x.astype(np.float64 if x.dtype.kind == "f" else np.int64)
    out = wide.copy()
    for k in range(network.devices):
        for j in network.neighbours(k):
            out[k] = np.where(better(wide[j], out[k]) | np.isnan(wide[j]), wide[j], out[k])
    return out


@st.composite
def exchanges(draw):
    network = draw(networks())
    shape = (network.devices, *draw(st.sampled_from([(), (1,), (3,), (2, 2), (0,)])))
    values = {"allow_nan": False, "allow_infinity": False}
    dtype = draw(st.sampled_from(DTYPES))
    elements = values if np.issubdtype(dtype, np.floating) else None
    return network, draw(hnp.arrays(dtype, shape, elements=elements and st.floats(-60, 60, width=16)))


@given(exchanges())
def test_sums_equal_the_obvious_loop(case):
    network, x = case
    assert_same_bits(sum_over_neighbours(network.indptr, network.indices, x), slow_sum(network, x))


@given(exchanges(), st.integers(0, 2**32 - 1))
def test_weighted_sums_equal_the_obvious_loop(case, seed):
    network, x = case
    weights = np.random.default_rng(seed).standard_normal(2 * network.edges)
    assert_same_bits(
        sum_over_neighbours(network.indptr, network.indices, x, weights=weights), slow_sum(network, x, weights)
    )


@given(exchanges())
def test_extremes_equal_the_obvious_loop(case):
    network, x = case
    assert_same_bits(max_over_neighbours(network.indptr, network.indices, x), slow_extreme(network, x, np.greater))
    assert_same_bits(min_over_neighbours(network.indptr, network.indices, x), slow_extreme(network, x, np.less))


def test_one_device_hears_nothing_and_keeps_its_own():
    net = Network.chain(1)
    x = np.array([[2.5, -1.0]])
    assert_same_bits(sum_over_neighbours(net.indptr, net.indices, x), np.zeros((1, 2)))
    assert_same_bits(max_over_neighbours(net.indptr, net.indices, x), x)
    assert_same_bits(min_over_neighbours(net.indptr, net.indices, x), x)


def test_nan_is_not_lost_on_the_way():
    net = Network.chain(3)
    x = np.array([1.0, np.nan, 3.0])
    assert np.isnan(max_over_neighbours(net.indptr, net.indices, x)).all()
    assert np.isnan(min_over_neighbours(net.indptr, net.indices, x)).all()


def test_infinities_travel():
    net = Network.chain(3)
    x = np.array([-np.inf, 0.0, np.inf], dtype=np.float16)
    assert max_over_neighbours(net.indptr, net.indices, x).tolist() == [0, np.inf, np.inf]
    assert min_over_neighbours(net.indptr, net.indices, x).tolist() == [-np.inf, -np.inf, 0]


def test_a_block_reads_its_halo():
    """Rows 0 and 1 live here; rows 2 and 3 are copies of neighbours elsewhere."""
    indptr, indices = np.array([0, 2, 3]), np.array([1, 3, 2], dtype=np.int32)
    x = np.array([1.0, 20.0, 300.0, 4000.0])
    assert sum_over_neighbours(indptr, indices, x).tolist() == [4020, 300]
    assert max_over_neighbours(indptr, indices, x).tolist() == [4000, 300]


@pytest.mark.parametrize("columns", [1, 3])
def test_sums_start_at_plus_zero(columns):
    """Many neighbours, few, one: minus zeros add up to what the obvious loop gives, with its sign."""
    for network in (Network.complete(9), Network.star(6), Network.chain(3)):
        x = np.full((network.devices, columns), -0.0)
        assert_same_bits(sum_over_neighbours(network.indptr, network.indices, x), slow_sum(network, x))


def test_big_integers_stay_exact():
    net = Network.chain(3)
    x = np.array([2**62 + 1, 5, 2**61 + 1])
    assert sum_over_neighbours(net.indptr, net.indices, x)[1] == 2**62 + 2**61 + 2


@pytest.fixture
def four_threads(monkeypatch):
    monkeypatch.setattr(threads, "THREADS", 4)
    monkeypatch.setattr(threads, "PARALLEL_ABOVE", 0)
    threads._pool.cache_clear()
    yield
    threads._pool().shutdown()
    threads._pool.cache_clear()


@pytest.mark.parametrize("network", [Network.star(50), Network.erdos_renyi(50, seed=3), Network.chain(2)])
@pytest.mark.parametrize("columns", [1, 7])
def test_threads_give_the_same_bits(network, columns, four_threads):
    rng = np.random.default_rng(columns)
    x = rng.standard_normal((network.devices, columns)) * 10.0 ** rng.integers(-8, 8, (network.devices, columns))
    weights = rng.random(2 * network.edges)
    args = network.indptr, network.indices, x
    assert_same_bits(sum_over_neighbours(*args), slow_sum(network, x))
    assert_same_bits(sum_over_neighbours(*args, weights=weights), slow_sum(network, x, weights))
    assert_same_bits(max_over_neighbours(*args), slow_extreme(network, x, np.greater))
    assert_same_bits(min_over_neighbours(*args), slow_extreme(network, x, np.less))


def test_many_threads_may_ask_at_once(four_threads):
    """Numba's workqueue layer would abort the process here."""
    net = Network.torus(30, 30)
    x = np.random.default_rng(0).random((900, 4))
    expected = slow_sum(net, x)
    with ThreadPoolExecutor(4) as callers:
        for answer in callers.map(lambda _: sum_over_neighbours(net.indptr, net.indices, x), range(100)):
            assert_same_bits(answer, expected)


def _sum_in_child(net, x, queue):
    queue.put(sum_over_neighbours(net.indptr, net.indices, x).tobytes())


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.skipif(sys.version_info >= (3, 12), reason="Python warns about any fork of a process with threads")
def test_a_forked_child_makes_its_own_threads(four_threads):
    """Numba's OpenMP layer would kill the child here."""
    net = Network.torus(30, 30)
    x = np.random.default_rng(0).random((900, 4))
    here = sum_over_neighbours(net.indptr, net.indices, x)
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    child = context.Process(target=_sum_in_child, args=(net, x, queue))
    child.start()
    assert queue.get(timeout=30) == here.tobytes()
    child.join(30)
    assert child.exitcode == 0


@pytest.mark.parametrize(
    ("x", "weights", "error", "says"),
    [
        (np.zeros(2), None, ValueError, "one row for each of the 3 devices"),
        (np.zeros(()), None, ValueError, "got shape ()"),
        (np.zeros(3, complex), None, TypeError, "complex128"),
        (np.zeros(3), np.ones(3), ValueError, r"shape \(4,\), got \(3,\)"),
    ],
)
def test_messages_are_checked(x, weights, error, says):
    net = Network.chain(3)
    with pytest.raises(error, match=says):
        sum_over_neighbours(net.indptr, net.indices, x, weights)
