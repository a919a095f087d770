"""What drives a protocol: engines move the bytes and do the waiting."""

from collections.abc import Callable

from conformesh.engines.base import Engine, Observer
from conformesh.engines.mpi.engine import Mpi
from conformesh.engines.simulator import Simulator
from conformesh.graph.network import Network
from conformesh.names import unknown

ENGINES: dict[str, Callable[..., Engine]] = {"simulator": Simulator.in_memory_order, "mpi": Mpi}

__all__ = ["ENGINES", "Engine", "Mpi", "Simulator", "make_engine"]


def make_engine(name: str, network: Network, observer: Observer | None = None) -> Engine:
    """Make an engine by name, or say what there is."""
    if name not in ENGINES:
        raise ValueError(unknown("engine", name, ENGINES))
    return ENGINES[name](network, observer=observer)
