"""Tasks in parallel through joblib: processes on this machine (loky), or a dask or ray cluster, really in parallel.

dask runs joblib's tasks only once a `Client` exists, and ray only after `register_ray` and with ``n_jobs=-1``; without
these both silently run everything in one process. `joblib_backend` does what each of them needs.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, TypeVar

from conformesh.common.names import unknown_name

T = TypeVar("T")
BACKENDS = ("loky", "dask", "ray")  # the first is the default
# Tasks per worker in one call, for backends that return all results at once: few, so that little is lost when a run
# stops; more than one, so that workers do not wait for the slowest.
_TASKS_PER_WORKER = 4


@contextmanager
def joblib_backend(name: str = "loky", workers: int = 2, address: str | None = None) -> Iterator[int]:
    """Run joblib's tasks inside the block in `workers` processes of a backend; yields the ``n_jobs`` to pass to joblib.

    Parameters
    ----------
    name
        One of `BACKENDS`.
    workers
        How many processes to start; a cluster at `address` has its own.
    address
        Of a dask scheduler or ray cluster that runs already; its workers must find files under the same paths.
    """
    if name not in BACKENDS:
        raise ValueError(unknown_name("backend", name, BACKENDS))
    if name == "loky" and address is not None:
        raise ValueError(f"backend 'loky' runs on this machine and has no address, got {address!r}; use dask or ray")
    from joblib import parallel_config

    with ExitStack() as stack:
        if name == "loky":
            stack.enter_context(parallel_config("loky"))
        elif name == "dask":
            _dask(stack, workers, address)
            stack.enter_context(parallel_config("dask"))
        else:
            _ray(stack, workers, address)
            stack.enter_context(parallel_config("ray", n_jobs=-1))
        yield workers if name == "loky" else -1  # all workers of the cluster


def _dask(stack: ExitStack, workers: int, address: str | None) -> None:
    try:
        from dask.distributed import Client
    except ImportError:
        raise ValueError("backend 'dask' needs dask: pip install 'conformesh[dask]'") from None
    if address is not None:
        stack.enter_context(Client(address))
        return
    quiet: dict[str, Any] = {"dashboard_address": None, "processes": True, "silence_logs": 50}
    env = {"NUMBA_NUM_THREADS": str(max(1, (os.cpu_count() or 1) // workers))}  # as loky does for its workers
    stack.enter_context(Client(n_workers=workers, threads_per_worker=1, env=env, **quiet))


def _ray(stack: ExitStack, workers: int, address: str | None) -> None:
    try:
        import ray
        from ray.util.joblib import register_ray
    except ImportError:
        raise ValueError("backend 'ray' needs ray: pip install 'conformesh[ray]'") from None
    if not ray.is_initialized():
        local: dict[str, Any] = {"num_cpus": workers, "include_dashboard": False} if address is None else {}
        ray.init(address=address, log_to_driver=False, logging_level="error", **local)
        stack.callback(ray.shutdown)
    register_ray()


def run_in_parallel(tasks: Sequence[Callable[[], T]], workers: int = 2) -> Iterator[tuple[int, T]]:
    """Yield the number of each task with its result as soon as it is done, in any order.

    The caller chooses the joblib backend: `joblib_backend`, or ``joblib.parallel_config`` around this call. With
    ``workers=1`` all tasks run in this process.
    """
    from joblib import Parallel, delayed

    if workers == 1 or len(tasks) < 2:
        yield from ((number, task()) for number, task in enumerate(tasks))
        return
    calls = [delayed(_numbered)(number, task) for number, task in enumerate(tasks)]
    try:
        parallel = Parallel(n_jobs=workers, return_as="generator_unordered", batch_size=1)
    except ValueError:  # a backend that returns all results at once, such as ray's: give it a few tasks at a time
        size = _TASKS_PER_WORKER * (workers if workers > 0 else os.cpu_count() or 1)
        for start in range(0, len(calls), size):
            yield from Parallel(n_jobs=workers, batch_size=1)(calls[start : start + size])
        return
    yield from parallel(calls)


def _numbered(number: int, task: Callable[[], T]) -> tuple[int, T]:
    return number, task()
