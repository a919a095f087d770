"""Nothing is compiled in small work, everything in large work, and nothing at all within a node's run."""

import subprocess
import sys
import types

import numpy as np
import pytest

from conformesh import Network, calibrate
from conformesh.kernels import compilation as compiling
from conformesh.kernels.pinball import RootFinder
from conformesh.methods import METHODS

HEAVY = ("numba", "scipy", "networkx", "sklearn", "matplotlib", "polars")
NEEDED = {"fedcp-qq": {"scipy"}}  # the incomplete beta function
SMALL = """
import sys, warnings
import numpy as np
from conformesh import Network, calibrate
warnings.simplefilter("ignore")
network = Network.of({topology!r}, {devices})
rng = np.random.default_rng(0)
scores = [rng.random({each}) for _ in range({devices})]
for method in {methods!r}:
    calibrate(scores, network, method=method)
    print(method, *({{name.split(".")[0] for name in sys.modules}} & {{*{heavy!r}}}))
"""


def loaded_by(*methods, topology="torus", devices=20, each=50):
    """Return which heavy libraries a process has loaded after it has calibrated with each method in turn."""
    code = SMALL.format(methods=methods, topology=topology, devices=devices, each=each, heavy=HEAVY)
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    return {method: {*libraries} for method, *libraries in map(str.split, out.splitlines())}


def test_small_work_loads_no_compiler():
    """In one process for all methods, those that need a library last: what is loaded stays loaded."""
    found = loaded_by(*sorted(METHODS, key=lambda method: method in NEEDED))
    assert found == {method: NEEDED.get(method, set()) for method in METHODS}


@pytest.mark.parametrize("topology", ["erdos-renyi", "geometric", "tree"])
def test_small_networks_need_no_library(topology):
    assert loaded_by("h-dcp", topology=topology) == {"h-dcp": set()}


@pytest.mark.slow
@pytest.mark.parametrize("method", ["e-dcp", "cp", "fcp", "wfcp", "local", "average"])
def test_a_thousand_devices_need_no_compiler(method):
    assert loaded_by(method, topology="random-regular", devices=1000, each=100) == {method: set()}


@pytest.fixture
def account(monkeypatch):
    """An account of its own, in which a unit of work loses a second; loading notes which kernel and loads nothing."""
    loads = []

    def note(name):
        loads.append(name.rpartition(".")[2])
        return types.SimpleNamespace(compile_all=lambda: loads.append("compiled"))

    monkeypatch.setattr(compiling, "import_module", note)
    monkeypatch.setattr(compiling, "_loaded", {})
    monkeypatch.setattr(compiling, "_lost", {"graph": 0.0, "pinball": 0.0})
    monkeypatch.setattr(compiling, "LOSS", {"graph": 1.0, "pinball": 1.0})
    monkeypatch.setattr(compiling, "LOADING", 10.0)
    monkeypatch.setattr(compiling, "CALL", 0.0)
    monkeypatch.delitem(sys.modules, "numba", raising=False)
    return loads


def test_one_large_call_is_compiled_at_once(account):
    assert compiling.compiled_loops("graph", 9.0) is None
    assert compiling.compiled_loops("pinball", 10.0) is not None
    assert account == ["pinball"]


def test_many_small_calls_are_compiled_in_the_end_and_stay_so(account):
    answers = [compiling.compiled_loops("graph", 3.0) for _ in range(5)]
    assert [answer is not None for answer in answers] == [False, False, False, True, True]
    assert compiling.compiled_loops("graph", 0.0) is answers[-1]
    assert account == ["graph"]


def test_calls_count_however_small(account, monkeypatch):
    monkeypatch.setattr(compiling, "CALL", 5.0)
    assert [compiling.compiled_loops("graph", 0.0) is not None for _ in range(3)] == [False, True, True]


def test_work_that_is_announced_is_compiled_before_it_begins(account):
    compiling.expect_work("graph", 9.0)
    assert compiling.compiled_loops("graph", 1.0) is None
    compiling.expect_work("graph", 10.0)
    assert compiling.compiled_loops("graph", 0.0) is not None
    with compiling.compiled_beforehand([], 0.0):
        compiling.expect_work("pinball", 1000.0)
    assert account == ["graph"]


def test_with_numba_at_hand_a_tenth_of_the_loss_is_enough(account, monkeypatch):
    monkeypatch.setitem(sys.modules, "numba", types.ModuleType("numba"))
    assert compiling.compiled_loops("graph", 0.9) is None
    assert compiling.compiled_loops("graph", 0.1) is not None


def test_a_run_begins_with_everything_compiled_and_compiles_nothing(account):
    with compiling.compiled_beforehand(["pinball"], 1.0):
        assert account == ["pinball", "compiled"]
        assert compiling.compiled_loops("pinball", 1.0) is not None
        assert compiling.compiled_loops("graph", 1000.0) is None
    assert account == ["pinball", "compiled"]
    assert compiling.compiled_loops("graph", 10.0) is not None


def test_a_small_run_prepares_nothing(account):
    with compiling.compiled_beforehand(["pinball"], 0.9):
        assert compiling.compiled_loops("pinball", 1000.0) is None
    assert account == []


def test_a_method_names_kernels_that_exist():
    assert {kernel for method in METHODS.values() for kernel in method.execution.kernels} <= set(compiling.LOSS)


def test_what_was_compiled_beforehand_serves_a_run(monkeypatch):
    """A prepared run of Q-DCP meets no types that are new to the compiled loops, whether or not scores are frozen."""
    monkeypatch.setattr(compiling, "_loaded", {})
    compiling.compile_kernel("pinball")
    steps = compiling.load_loops("pinball")._find_roots_from
    known = list(steps.signatures)
    for frozen in (False, True):
        values = np.sort(np.random.default_rng(0).random(50))
        values.setflags(write=not frozen)
        finder = RootFinder(values, np.array([0, 50]), 1, np.ones(1), np.ones(1))
        finder.solve(np.ones(1), np.ones(1))
    assert list(steps.signatures) == known


@pytest.mark.parametrize("method", ["e-dcp", "h-dcp", "average", "q-dcp"])
@pytest.mark.parametrize("topology", ["torus", "erdos-renyi", "star"])
def test_results_are_the_same_both_ways(method, topology, monkeypatch):
    rng = np.random.default_rng(3)
    network = Network.of(topology, 12, seed=1)
    devices = [np.round(rng.normal(size=n), 2) for n in rng.integers(30, 60, 12)]
    options = {"rounds": 40} if method == "q-dcp" else {}
    results = []
    for loading in (np.inf, -1.0):
        monkeypatch.setattr(compiling, "_loaded", {})
        monkeypatch.setattr(compiling, "LOADING", loading)
        results.append(calibrate(devices, network, method=method, **options))
    one, other = results
    assert one.thresholds.tobytes() == other.thresholds.tobytes()
    assert one.certificate == other.certificate
    assert one.estimate == other.estimate
    assert one.cost.rounds == other.cost.rounds


def test_a_system_that_is_read_only_compiles_at_every_start(monkeypatch):
    def refuse(*_):
        raise RuntimeError("cannot cache function: no locator available")

    from conformesh.kernels.compiled import loop

    monkeypatch.setattr("numba.core.registry.CPUDispatcher.enable_caching", refuse)
    assert loop(lambda n: n + 1)(1) == 2
