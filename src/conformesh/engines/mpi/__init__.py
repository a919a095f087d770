"""Many devices per rank, many ranks per job: the simulator's protocols and the simulator's bits over MPI."""

from conformesh.engines.mpi.engine import Mpi

__all__ = ["Mpi"]
