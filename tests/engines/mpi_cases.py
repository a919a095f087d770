"""What is run on MPI and on the simulator to be compared. No MPI in here: the tests are named by it."""

import json

import msgspec
import numpy as np

from conformesh import METHODS, Network, adapt
from conformesh.protocols.aggregate import AGGREGATORS
from conformesh.scores.losses import StepLosses

OPTIONS = {
    "e-dcp": [
        {},
        {"prefer": "rounds"},
        *({"aggregate": name, "width": 2} for name in AGGREGATORS),
        {"schedule": "top-k", "aggregate": "flood"},
        {"schedule": "count", "aggregate": "flood", "width": 2},
        {"schedule": "top-k", "aggregate": "tree"},
        {"schedule": "window"},
        {"schedule": "count"},
    ],
    "q-dcp": [
        {"rounds": 20},
        {"rounds": 20, "s0": "min", "wire": 32},
        {"rounds": 5, "bound": "paper", "spectrum": "estimated"},
        {"rounds": 20, "averaging": 5, "continuation": 2},
        {"rounds": 10, "asynchronous": True, "counting": 30},
        *({"rounds": 5, "averaging": 5, "certify": True, "aggregate": name} for name in AGGREGATORS),
    ],
    "h-dcp": [
        {"bins": 20},
        {"bins": 20, "rounds": 3},  # too few: devices differ, some notes are one rank's only
        {"bins": 20, "rounds": 25, "weights": "metropolis", "wire": 16},
        {"bins": 5, "spectrum": "estimated"},
        {"bins": 20, "consensus": "chebyshev", "bound": "row"},
        {"bins": 20, "consensus": "finite-time"},
        {"bins": 20, "consensus": "projection", "rounds": 20},
    ],
    "r-dcp": [{"bins": 30}, {"grid": "own"}, {"byzantine": 2, "range": (-1.0, 2.0)}],
    "p-dcp": [
        {},
        {"aggregate": "flood", "grid": "linear", "range": (-2.0, 3.0)},
        {"epsilon": 20.0, "cells": 32},
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


EVERYWHERE = (Network.cycle(8), Network.star(6))  # on every engine, so small
ALPHAS = (0.3, 0.5)


def scores_of(network, trials=1):
    """Unequal scores, other ones in each trial; some devices have none."""
    rng = np.random.default_rng(4)
    sizes = rng.integers(0, 12, network.devices)
    return [[rng.normal(k / 9, size=n) for k, n in enumerate(sizes)] for _ in range(trials)]


def losses_of(network):
    """Unequally many items with losses in thirds that fall at one to three breakpoints."""
    rng = np.random.default_rng(5)
    grids = [np.sort(rng.random((rng.integers(1, 9), 3)), axis=1) for _ in range(network.devices)]
    return [StepLosses.of([(points, [2 / 3, 1 / 3, 0]) for points in own]) for own in grids]


def adapted_cases(network):
    """Labelled outputs by device, new outputs, and what is asked: adaptations, mixtures and groups."""
    rng, names, classes = np.random.default_rng(6), network.ids, 4
    sizes = rng.integers(2, 30, network.devices).tolist()
    shares = {name: 1 + k for k, name in enumerate(names)}
    labelled = {
        name: (rng.dirichlet(np.ones(classes), n), rng.choice([k % classes, (k + 1) % classes], n))
        for k, (name, n) in enumerate(zip(names, sizes, strict=True))
    }
    numbers = {
        name: (rng.normal(size=n), rng.normal(k / 3, 1 + k / 4, n))
        for k, (name, n) in enumerate(zip(names, sizes, strict=True))
    }
    new = rng.dirichlet(np.ones(classes), 5)
    groups = {name: [*rng.choice(["a", "b"], n)] for name, n in zip(names, sizes, strict=True)}
    return [
        (labelled, network, new, {"adapt": "prior"}),
        (labelled, network, new, {"adapt": adapt.Prior(strength=1, temperature=1, window="full"), "mixture": "equal"}),
        (labelled, network, new, {"adapt": "even", "mixture": "equal"}),
        (labelled, network, new, {"adapt": "prior", "mixture": "own"}),
        (labelled, network, new, {"adapt": "prior", "groups": groups}),
        (numbers, network, rng.normal(size=5), {"adapt": "scale", "mixture": shares}),
    ]


def record(outcome, cost):
    """All that must be the same on every engine, to the last bit, as JSON can hold it."""
    certificates = json.loads(json.dumps([[msgspec.to_builtins(each) for each in row] for row in outcome.certificates]))
    return {
        "thresholds": outcome.thresholds.astype(">f8").tobytes().hex(),
        "estimates": None if outcome.estimates is None else outcome.estimates.astype(">f8").tobytes().hex(),
        "certificates": certificates,
        "notes": [*outcome.notes],
        "facts": outcome.facts,
        "rounds": cost.rounds,
        "numbers": cost.numbers.tolist(),
        "bits": cost.bits.tolist(),
    }


def name_of(where, method, options):
    """Name a case."""
    return "-".join([where, method, *(f"{key}={value}" for key, value in options.items())])


# By number of ranks, what is looked at: the bits of every case on all of these networks or one, for two ranks as
# records of other networks, and the rest where it can differ. Ranks wait by spinning: every round more is dear.
PARTS = {
    1: (*NETWORKS, "messages", "error"),
    2: ("records", "strict", "results", "error"),
    3: ("messages",),  # every method: on 2 in test_equivalence, on 4 and 7 with the long tests
    4: (*NETWORKS,),
    7: (*NETWORKS, "messages", "results", "error"),
}
