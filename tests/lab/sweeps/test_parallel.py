"""Backends really run tasks at the same time, in processes of their own: two tasks that wait for each other end."""

import os
import time

import pytest
from polars.testing import assert_frame_equal

from conformesh import sweep
from conformesh.lab.sweeps.parallel import joblib_backend, run_in_parallel
from tests.lab.sweeps.test_sweep import CHANGING, SMALL

SECONDS = 60  # how long a task waits for the other before it gives up


def meeting(folder):
    """Two tasks; each leaves its process id and waits for the other's. One after the other they would never end."""

    def meet():
        mine = os.getpid()
        (folder / str(mine)).touch()
        end = time.monotonic() + SECONDS
        while len([*folder.iterdir()]) < 2:
            if time.monotonic() > end:
                raise TimeoutError("nobody else came")
            time.sleep(0.01)
        return mine

    return [meet, meet]  # a closure: sent by value, so that no worker needs to import the tests


@pytest.mark.parametrize(
    "name", ["loky", "dask", pytest.param("ray", marks=pytest.mark.slow)], ids=["loky", "dask", "ray"]
)
@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::DeprecationWarning", "ignore::FutureWarning")
def test_two_tasks_meet_in_two_processes(name, tmp_path):
    if name != "loky":
        pytest.importorskip(
            {"dask": "dask.distributed", "ray": "ray.util.joblib"}[name],
            reason=f"needs {name}: pip install 'conformesh[{name}]'",
        )
    with joblib_backend(name, 2) as workers:
        found = dict(run_in_parallel(meeting(tmp_path), workers))
        if name == "dask":  # the whole sweep, while the cluster is there
            rows = sweep(SMALL, jobs=1)
            assert_frame_equal(rows.drop(CHANGING), _through_dask().drop(CHANGING), check_exact=True)
    assert {*found} == {0, 1}
    assert len({*found.values(), os.getpid()}) == 3


def _through_dask():
    from dask.distributed import get_client

    return sweep(SMALL, jobs=2, backend="dask", address=get_client().scheduler.address)


def test_one_worker_stays_in_this_process():
    assert dict(run_in_parallel([os.getpid] * 3, 1)) == dict.fromkeys(range(3), os.getpid())


def test_wrong_backends_are_refused():
    with pytest.raises(ValueError, match="unknown backend 'dusk', did you mean 'dask'"), joblib_backend("dusk"):
        pass
    with (
        pytest.raises(ValueError, match="'loky' runs on this machine and has no address"),
        joblib_backend("loky", 2, "tcp://x"),
    ):
        pass
    with pytest.raises(ValueError, match="jobs must be at least 1, got 0"):
        sweep(SMALL, jobs=0)
