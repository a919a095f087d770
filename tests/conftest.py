"""Fixtures that iterate over the tables, and the real data where it is there."""

import math
import os
import signal
import sys

# Several workers with a thread for every core wait for each other, spinning: dense spectra took ten times as long.
# Before NumPy is loaded, and for the commands that tests start as well.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
# The last bits of iterated floats depend on the kernels that OpenBLAS chooses for the processor. The recorded answers
# were made with those of AVX2, which every x86 machine of the last ten years has; elsewhere the name is ignored.
os.environ.setdefault("OPENBLAS_CORETYPE", "Haswell")
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, settings

from conformesh import METHODS, TOPOLOGIES, Network
from conformesh.kernels import compilation as compiling
from tests.compiled import loaded

settings.register_profile("default", deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True)
settings.register_profile("quick", settings.get_profile("default"), max_examples=25)  # of 100 with the long tests
settings.register_profile("nightly", deadline=None, suppress_health_check=[HealthCheck.too_slow], max_examples=2000)
settings.register_profile(  # that a test fails is enough: no time for the smallest example
    "mutants", settings.get_profile("default"), phases=[Phase.explicit, Phase.generate], report_multiple_bugs=False
)
MUTANTS = "CONFORMESH_MUTANTS" in os.environ


def pytest_configure(config):
    """Choose how many examples Hypothesis draws, before tests that ask for a multiple of them are read."""
    usual = "mutants" if MUTANTS else "quick" if config.option.markexpr == "not slow" else "default"
    settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", usual))


def pytest_itemcollected(item):
    """Give tests with many processes to one worker where there are several: two at a time overload a small machine."""
    if item.get_closest_marker("meshes"):
        item.add_marker(pytest.mark.xdist_group("meshes"))


if MUTANTS:
    compiling.LOADING = math.inf  # what is changed are the loops as they are written, which nobody can compile then

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call():
        """End a mutant that loops: no test of `make mutants` takes a minute of the processor."""
        signal.setitimer(signal.ITIMER_PROF, 60.0)
        try:
            return (yield)
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0.0)


@pytest.fixture(scope="session", autouse=True)
def one_worker_compiles():
    """Let workers that need the same long loops wait for the one that compiles them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compiling, "import_module", loaded)
        yield


@pytest.fixture(params=list(METHODS))
def method(request):
    """Every method of the table."""
    return request.param


@pytest.fixture(params=list(TOPOLOGIES))
def topology(request):
    """Every topology of the table, on 20 devices."""
    return Network.of(request.param, 20, seed=1)


@pytest.fixture(params=["chain", "cycle", "star", "torus", "complete"])
def paper_network(request):
    """The five graphs of the paper, on 20 devices."""
    return Network.of(request.param, 20)


@pytest.fixture(scope="module")
def bench():
    """A function that imports one of the scripts in benchmarks/, which import each other by plain names."""
    before = [*sys.path]
    sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))
    yield import_module
    sys.path[:] = before


@pytest.fixture
def twenty_devices():
    """Unequal, non-identical scores on 20 devices."""
    rng = np.random.default_rng(20)
    return [rng.beta(2, 2 + k / 4, size=rng.integers(20, 80)) for k in range(20)]


@pytest.fixture(scope="session")
def real_data():
    """A function that loads real model outputs by name, or skips where they are absent."""
    folder = Path(os.environ.get("CONFORMESH_DATA", Path(__file__).parents[2] / "shared" / "data"))

    def load(name):
        path = folder / name
        if not path.exists():
            pytest.skip(f"{name} is not here; set CONFORMESH_DATA to the folder that holds it")
        return np.load(path)

    return load
