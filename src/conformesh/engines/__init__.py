"""What drives a protocol: engines move the bytes and do the waiting."""

from collections.abc import Callable

from conformesh.engines.base import Engine, Observer
from conformesh.engines.mpi import Mpi
from conformesh.engines.simulator import Simulator
from conformesh.names import unknown
from conformesh.network import Network

ENGINES: dict[str, Callable[..., Engine]] = {"simulator": Simulator.in_memory_order, "mpi": Mpi}

__all__ = ["ENGINES", "Engine", "Mpi", "Simulator", "make_engine"]


def make_engine(name: str, network: Network, observer: Observer | None = None) -> Engine:
    """Make an engine by name, or say what there is."""
    if name not in ENGINES:
        raise ValueError(unknown("engine", name, ENGINES))
    return ENGINES[name](network, observer=observer)
