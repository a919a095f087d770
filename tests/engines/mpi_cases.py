"""What is run on MPI and on the simulator to be compared. No MPI in here: the tests are named by it."""

from conformesh import METHODS, Network
from conformesh.protocols.aggregate import AGGREGATORS

OPTIONS = {
    "e-dcp": [{"aggregate": name, "width": 2} for name in AGGREGATORS] + [{}, {"prefer": "rounds"}],
    "q-dcp": [
        {"rounds": 20},
        {"rounds": 20, "s0": "min", "wire": 32},
        {"rounds": 5, "bound": "paper", "spectrum": "estimated"},
        {"rounds": 20, "averaging": 5, "continuation": 2},
        *({"rounds": 5, "averaging": 5, "certify": True, "aggregate": name} for name in AGGREGATORS),
    ],
    "h-dcp": [
        {"bins": 20},
        {"bins": 20, "rounds": 3},  # too few: devices differ, some notes are one rank's only
        {"bins": 20, "rounds": 25, "weights": "metropolis", "wire": 16},
        {"bins": 5, "spectrum": "estimated"},
        {"bins": 20, "consensus": "chebyshev", "bound": "row"},
        {"bins": 20, "consensus": "finite-time"},
    ],
    "wfcp": [{"bins": 30}, {"bins": 30, "noise": 0.001}],
    "fedcp-qq": [{}, {"wire": 16}],
    "average": [{}, {"spectrum": "estimated"}],
}
CASES = [(method, options) for method in METHODS for options in OPTIONS.get(method, [{}])]
NETWORKS = {
    "star": Network.star(8),
    "torus": Network.torus(4, 3),
    "random": Network.of("erdos-renyi", 14, seed=3, p=0.5),
}


def name_of(where, method, options):
    """Name a case."""
    return "-".join([where, method, *(f"{key}={value}" for key, value in options.items())])


NAMES = [name_of(where, method, options) for where in NETWORKS for method, options in CASES]

# By number of ranks, what is looked at: the bits on all, the rest where it can differ. More ranks than cores are slow.
PARTS = {
    1: ("bits", "messages", "error"),
    2: ("bits", "results", "error"),
    3: ("bits", "messages"),
    4: ("bits",),
    7: ("bits", "messages", "results", "error"),
}
