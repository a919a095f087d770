"""Engines run a protocol to its end: they deliver its messages, charge them, and show every round to an observer.

`simulator` has all devices in one process, and `faulty` loses messages for it; `mpi` spreads the devices over the
processes of a job. `ENGINES` lists them by name, `base` says what every engine must do, `observers` what may watch.
All have the same bits. Devices that talk over a network are not here but in `peer` and `mesh`, and what is sent is
decided in `protocols`. This package imports `protocols` and what lies below it, never `peer` or `pipeline`.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import wraps
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from conformesh.common.names import unknown_name
from conformesh.engines.base import Engine
from conformesh.engines.observers import Observer
from conformesh.engines.simulator import Simulator
from conformesh.graph.network import Network

if TYPE_CHECKING:
    from conformesh.engines.mpi.engine import Mpi

__all__ = ["ENGINES", "Driver", "Engine", "Mpi", "Simulator", "engine_on", "fail_together", "get_driver"]

P = ParamSpec("P")
R = TypeVar("R")


@dataclass(frozen=True)
class Driver:
    """How an engine is made, and which processes compute the devices of a command with it.

    Attributes
    ----------
    make
        Called with a network and the keyword `observer`; where there is a `job` also with its communicator (`comm`)
        and, where each process brings its own devices, the rank of every device (`owners`).
    summary
        One sentence.
    job
        None where one process has all devices. Else a context whose communicator (`rank`, `size`, `bcast`,
        `allgather`) joins the processes that were started; an error of one of them ends them all.
    start
        How such processes are started, as one would type it before the command.
    extra
        The extra of the package that it needs: ``pip install 'conformesh[extra]'``.
    """

    make: Callable[..., Engine]
    summary: str
    job: Callable[[], AbstractContextManager[Any]] | None = None
    start: str = ""
    extra: str = ""


def __getattr__(name: str) -> Any:
    """Load the MPI engine when it is first used: most runs do without, and `mpi4py` may not be installed."""
    if name == "Mpi":
        from conformesh.engines.mpi.engine import Mpi

        return Mpi
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def _mpi(network: Network, **how: Any) -> Engine:
    from conformesh.engines.mpi.engine import Mpi

    return Mpi(network, **how)


def _world() -> AbstractContextManager[Any]:
    from conformesh.engines.mpi.job import mpi_world

    return mpi_world()


ENGINES: dict[str, Driver] = {
    "simulator": Driver(Simulator.in_memory_order, "one process for all devices"),
    "mpi": Driver(_mpi, "as many processes as mpiexec started", _world, "mpiexec -n 8", "mpi"),
}


def get_driver(name: str) -> Driver:
    """Return the driver of an engine by name; an unknown name is an error that lists the engines."""
    if name not in ENGINES:
        raise ValueError(unknown_name("engine", name, ENGINES))
    return ENGINES[name]


@contextmanager
def engine_on(network: Network, engine: str | Engine, observer: Observer | None = None) -> Iterator[Engine]:
    """Enter with an engine for this network: the given one, or a new one of that name that is closed afterwards."""
    if observer is not None and not callable(observer):
        raise TypeError(
            f"observer must be a function of round, message and answer, got {type(observer).__name__} {observer!r:.40}"
        )
    if isinstance(engine, str):
        made = get_driver(engine).make(network, observer=observer)
        with made.together():
            yield made
        made.close()
        return
    if not hasattr(engine, "network"):
        raise TypeError(
            f"engine must be the name of one ({', '.join(ENGINES)}) or an engine made for this network, got "
            f"{type(engine).__name__} {str(engine)[:40]!r}"
        )
    if observer is not None:
        raise ValueError("an engine that is made already has its own observer; give the observer to the engine")
    if engine.network is not network:
        raise ValueError(f"the engine was made for {engine.network!r}, not for {network!r}; make one for each")
    with engine.together():
        yield engine


def fail_together(function: Callable[P, R]) -> Callable[P, R]:
    """Decorate a function so that an error in one process of a job ends them all: others would wait for it for ever.

    For public functions with the keyword `engine`. Each process reads its own data, so reading may fail in only one.
    """

    @wraps(function)
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        engine: Any = kwargs.get("engine", "simulator")
        if isinstance(engine, str):
            job = ENGINES[engine].job if engine in ENGINES else None  # an unknown name is refused later, in words
            with nullcontext() if job is None else job():
                return function(*args, **kwargs)
        with engine.together() if hasattr(engine, "together") else nullcontext():
            return function(*args, **kwargs)

    return run
