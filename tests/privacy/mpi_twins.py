"""A private run on neighbouring data over MPI: ``mpiexec -n 2 python -m tests.privacy.mpi_twins``.

Rank 0 prints, by data set, rounds, numbers and bits of all devices, as one JSON object.
"""

import json

import numpy as np
from mpi4py import MPI

from conformesh import Network
from conformesh.engines import Mpi
from conformesh.kernels.weighted_scores import WeightedScores
from conformesh.pipeline.solver import solve_draws
from tests.privacy.neighbouring import NEIGHBOURING, OPTIONS, drawn_scores

if __name__ == "__main__":
    network = Network.torus(4, 3)
    engine = Mpi(network)
    found = {}
    for name, change in {"base": lambda scores: scores, **NEIGHBOURING}.items():
        scores = change(drawn_scores(network))
        local = WeightedScores.of([np.asarray(scores[row], dtype=float) for row in engine.rows])
        cost = solve_draws(local, network, [0.1], "p-dcp", engine=engine, **OPTIONS).cost
        found[name] = [cost.rounds, cost.numbers.tolist(), cost.bits.tolist()]
    engine.close()
    if MPI.COMM_WORLD.rank == 0:
        print(json.dumps(found))
