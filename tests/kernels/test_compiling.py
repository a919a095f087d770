"""Loops are the same interpreted and compiled, and Numba is loaded when one is long."""

import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from conformesh import Network
from conformesh.kernels import graph, segments
from conformesh.kernels.compiling import Loop, njit
from conformesh.samples import Samples

CODE = """
import sys
from conformesh import Network
from conformesh.kernels.compiling import Loop
Network.cycle({devices}).diameter
Network.from_pairs(range({devices}), [(k, k + 1) for k in range({devices} - 1)]).diameter
print("numba" in sys.modules)
"""


@pytest.mark.parametrize(("devices", "loads"), [(20, False), (5000, True)])
def test_numba_is_loaded_by_the_first_long_loop(devices, loads):
    code = CODE.format(devices=devices)
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert out.split() == [str(loads)]


def both(loop, *args):
    """What a loop returns, and what it leaves in its arguments, both ways."""
    function = loop.py_func
    first, second = ([np.copy(a) if isinstance(a, np.ndarray) else a for a in args] for _ in range(2))
    return (function(*first), first), (loop(*second), second)


def assert_same(one, other):
    if isinstance(one, list | tuple):
        assert len(one) == len(other)
        for a, b in zip(one, other, strict=True):
            assert_same(a, b)
    elif isinstance(one, np.ndarray):
        assert one.dtype == other.dtype
        np.testing.assert_array_equal(one, other, strict=True)
    else:
        assert one == other


@given(st.integers(3, 30), st.integers(0, 10**6))
def test_walks_are_the_same_interpreted(devices, seed):
    network = Network.of("erdos-renyi", devices, seed=seed, p=0.4)
    rows = network.indptr, network.indices
    empty = np.empty(devices, np.int64)
    assert_same(*both(graph.breadth_first, *rows, seed % devices, empty, empty.copy()))
    for name in ("components", "eccentricities", "is_bipartite", "without_branches"):
        assert_same(*both(getattr(graph, name), *rows))


@given(st.lists(st.lists(st.floats(allow_nan=False), max_size=12), min_size=1, max_size=5), st.data())
def test_counts_are_the_same_interpreted(held, data):
    samples = Samples.of(held)
    asked = np.sort(np.array([data.draw(st.lists(st.floats(allow_nan=False), min_size=1, max_size=30))]))
    trial = np.zeros(1, np.int64)
    where = samples.values, samples.offsets
    assert_same(*both(segments._count_at_most, *where, asked, 1, np.zeros((samples.devices, asked.size, 1), np.int64)))
    counts = np.zeros((samples.devices, asked.size, 1), np.int32)
    assert_same(*both(segments._count_problems, *where, 1, trial, asked, counts))
    assert_same(*both(segments.scores_inside, *where, 1, trial, asked[:, 0], asked[:, -1]))
    for finite in (False, True):
        assert_same(*both(segments.segment_extremes, *where, finite))


def test_a_system_that_is_read_only_compiles_at_every_start(monkeypatch):
    def refuse(*_):
        raise RuntimeError("cannot cache function: no locator available")

    monkeypatch.setattr("numba.core.registry.CPUDispatcher.enable_caching", refuse)
    loop = Loop(lambda n: n + 1, {"cache": True})
    assert loop(1) == 2


@njit(cache=False)
def _down(n):
    return 0 if n <= 0 else 1 + _down(n - 1)


def test_a_loop_may_call_itself_and_keeps_its_name():
    assert isinstance(_down, Loop)
    assert _down.__name__ == "_down"
    assert _down(5) == 5
