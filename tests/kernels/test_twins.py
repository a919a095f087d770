"""Every function with a compiled twin: the same arguments and, to the last bit, the same results and side effects."""

import inspect
from copy import deepcopy
from importlib import import_module

import numpy as np
import pytest

from conformesh import Network
from conformesh.kernels import compilation
from conformesh.kernels import graph as kernels_graph
from conformesh.kernels.compilation import LOSS, TWINS
from conformesh.kernels.neighbours import as_unsigned
from conformesh.kernels.pinball import DEGREE

MODULES = ("gossip", "graph", "label_scores", "neighbours", "pinball", "poisson_binomial", "segments", "spreading")
for _module in MODULES:
    import_module(f"conformesh.kernels.{_module}")

ROWS, CLASSES = 30, 7


def outputs(rng):
    return {
        "outputs": rng.dirichlet(np.ones(CLASSES), ROWS),
        "labels": rng.integers(0, CLASSES, ROWS),
        "thresholds": rng.random(ROWS),
        "u": rng.random(ROWS),
        "low": 0.0,
        "high": 1.0,
        "by_rank": bool(rng.integers(2)),
        "scores": np.empty(ROWS),
        "sets": np.empty((ROWS, CLASSES), dtype=bool),
    }


def graph(rng):
    network = Network.of("erdos-renyi", ROWS, seed=int(rng.integers(100)))
    indptr, indices = np.array(network.indptr), np.array(network.indices)
    order = rng.permutation(ROWS)
    place = np.argsort(order)
    levels = np.empty(ROWS, np.int64)
    kernels_graph.breadth_first(indptr, indices, 0, levels, np.empty_like(levels))
    speakers = np.sort(rng.choice(ROWS, 9, replace=False))
    nobody = np.zeros(ROWS, dtype=bool)
    receivers, senders = kernels_graph.message_pairs(indptr, indices, speakers, nobody, nobody.copy())
    return {
        "indptr": indptr,
        "indices": indices,
        "source": 3,
        "levels": levels,
        "queue": np.zeros(ROWS, np.int64),
        "order": order,
        "place": place,
        "starts": np.concatenate([[0], np.cumsum(np.diff(indptr)[order])]),
        "speakers": speakers,
        "speaking": np.zeros(ROWS, dtype=bool),
        "near": np.zeros(ROWS, dtype=bool),
        "receivers": receivers,
        "senders": senders,
        "numbers": np.zeros(ROWS, np.int64),
        "x": rng.normal(size=(ROWS, 3)),
        "out": np.empty((ROWS, 3)),
        "weights": rng.random(len(indices)) if rng.integers(2) else None,
        "upward": bool(rng.integers(2)),
    }


def segments(rng):
    sizes = rng.integers(0, 9, 12)
    offsets = np.concatenate([[0], np.cumsum(sizes)])
    values = np.concatenate([np.sort(np.round(rng.normal(size=n), 1)) for n in sizes])
    return {
        "values": values,
        "offsets": offsets,
        "trials": 2,
        "trial_of": np.array([1, 0]),
        "thresholds": np.sort(rng.normal(size=(2, 5))),
        "starts": offsets[[3, 0, 3]],
        "cuts": np.concatenate([[0], np.cumsum(sizes[[3, 0, 3]])]),
    }


def spread_values(rng):
    case = graph(rng)
    indptr, indices = as_unsigned(case["indptr"], case["indices"])
    x, speakers = np.round(case["x"]), case["speakers"]
    scratch = np.zeros(ROWS, dtype=bool), np.empty(ROWS, dtype=np.uint32)
    return [indptr, indices, x, x[speakers] + 1, speakers, case["upward"], scratch]


def find_roots(rng):
    case = segments(rng)
    problems = 2 * (len(case["offsets"]) - 1)
    terms = np.full(problems, 50.0), np.full(problems, 2.0), rng.random(problems)
    interpolants = np.full((problems, 1), np.nan), np.zeros((problems, DEGREE + 2))
    return [case["values"], case["offsets"], 2, terms, rng.random(problems), interpolants]


def attach_by_degree(rng):
    ends = np.zeros(2 * 2 * 20, np.int64)
    ends[:4] = [0, 1, 2, 2]
    return [ends, 2, 3, rng.random(100)]


SPECIAL = {
    "spread_values": spread_values,
    "find_roots": find_roots,
    "attach_by_degree": attach_by_degree,
    "poisson_binomial_cdf": lambda rng: [rng.random((6, 4))],
    "add_rows": lambda rng: [np.zeros((4, 3)), rng.integers(0, 4, 9), rng.random((9, 3))],
    "move_rows": lambda rng: [rng.random((5, 3)), rng.random((5, 3)), rng.random((5, 3)), rng.random(5), 0.5],
}
ARGUMENTS = {"graph": graph, "neighbours": graph, "label_scores": outputs, "segments": segments}


def arguments(name, rng):
    """Return arguments for a function: its own, or by the names of its parameters."""
    if name in SPECIAL:
        return SPECIAL[name](rng)
    case = ARGUMENTS[TWINS[name].kernel](rng)
    case["penalty"] = 0.1 if name.startswith("ranked") else (0.1, 2)
    return [case[parameter] for parameter in inspect.signature(TWINS[name].numpy).parameters]


def flat(value):
    """Return everything in nested results as a list of types and bytes."""
    if isinstance(value, tuple | list):
        return [part for item in value for part in flat(item)]
    array = np.asarray(value)
    return [(array.dtype, array.shape, array.tobytes())]


@pytest.mark.parametrize("name", TWINS)
def test_twins_agree_to_the_last_bit(name):
    numpy, compiled = TWINS[name].numpy, TWINS[name].compiled
    for seed in range(20):
        both = []
        for function in (numpy, compiled):
            given = arguments(name, np.random.default_rng(seed))
            both.append(flat([function(*given), deepcopy(given if name not in SCRATCH else given[:-1])]))
        assert both[0] == both[1], seed


SCRATCH = ("spread_values",)  # its last argument is memory that only the compiled twin uses


@pytest.mark.parametrize("name", TWINS)
def test_twins_have_the_same_parameters(name):
    numpy, compiled = TWINS[name].numpy, TWINS[name].compiled
    compiled = getattr(compiled, "py_func", compiled)
    assert [*inspect.signature(numpy).parameters] == [*inspect.signature(compiled).parameters]


def test_every_compiled_twin_is_chosen_by_the_decorator():
    loaded = {name for kernel in LOSS for name in vars(compilation.load_loops(kernel)) if name.endswith("_compiled")}
    assert loaded == {f"{name}_compiled" for name in TWINS}
