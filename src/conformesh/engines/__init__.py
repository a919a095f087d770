"""What drives a protocol: engines move the bytes and do the waiting."""

from conformesh.engines.simulator import Simulator

ENGINES = {"simulator": Simulator}

__all__ = ["ENGINES", "Simulator"]
