"""Tasks in parallel through joblib: processes on this machine (loky), or a dask or ray cluster, really in parallel.

dask runs joblib's tasks only once a `Client` exists, and ray only after `register_ray` and with ``n_jobs=-1``; without
these both quietly work through everything in one process. `backend` does what each of them needs.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, TypeVar

from conformesh.common.names import unknown

T = TypeVar("T")
BACKENDS = ("loky", "dask", "ray")
AT_ONCE = 4  # tasks per worker between two results, where a backend returns nothing before all are done


@contextmanager
def backend(name: str = "loky", workers: int = 2, address: str | None = None) -> Iterator[int]:
    """Send what joblib runs inside to `workers` processes of a backend; gives the ``n_jobs`` to ask joblib for.

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
        raise ValueError(unknown("backend", name, BACKENDS))
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
        yield workers if name == "loky" else -1  # all that the cluster has


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
        own: dict[str, Any] = {"num_cpus": workers, "include_dashboard": False} if address is None else {}
        ray.init(address=address, log_to_driver=False, logging_level="error", **own)
        stack.callback(ray.shutdown)
    register_ray()


def in_parallel(tasks: Sequence[Callable[[], T]], workers: int = 2) -> Iterator[tuple[int, T]]:
    """Yield the number of each task with its result as soon as it is done, in any order.

    The joblib backend is the caller's choice: `backend`, or ``joblib.parallel_config`` around this call. ``workers=1``
    stays in this process.
    """
    from joblib import Parallel, delayed

    if workers == 1 or len(tasks) < 2:
        yield from ((number, task()) for number, task in enumerate(tasks))
        return
    calls = [delayed(_numbered)(number, task) for number, task in enumerate(tasks)]
    try:
        parallel = Parallel(n_jobs=workers, return_as="generator_unordered", batch_size=1)
    except ValueError:  # a backend that hands results back all at once, as ray's: give it a few at a time
        size = AT_ONCE * (workers if workers > 0 else os.cpu_count() or 1)
        for start in range(0, len(calls), size):
            yield from Parallel(n_jobs=workers, batch_size=1)(calls[start : start + size])
        return
    yield from parallel(calls)


def _numbered(number: int, task: Callable[[], T]) -> tuple[int, T]:
    return number, task()
