"""A cell of a sweep: one method on one network over some draws and all alphas, named by all that decides its rows.

Sweeps and the reproduced figures are lists of cells. Where `together` is set, draws and alphas share one run of the
simulator; a sweep sets it wherever the rows are then the same, bit for bit, as those of single calibrations.
"""

from __future__ import annotations

import hashlib
import json
import os
import socket
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Protocol

from conformesh.graph.network import Network
from conformesh.graph.weights import constant_weights
from conformesh.kernels.ranks import requirement_in
from conformesh.kernels.weighted_scores import WeightedScores
from conformesh.lab.sweeps.provenance import NUMBERS, digest_of_code
from conformesh.lab.sweeps.sources import Draw, NetworkSpec, Options, Scores, network_of, samples_of
from conformesh.methods import get_method, make_options
from conformesh.pipeline.solver import counted_ranks, solve_draws
from conformesh.protocols.block import Answers
from conformesh.results.certificate import Cost

DECIDING = (*NUMBERS, "lab/sweeps/*.py")
_OF_COMPANY = {"certificate", "epsilon", "rounds", "bits"}  # what shows it


class Solver(Protocol):
    """What computes thresholds: a frozen dataclass, which any process can use."""

    @property
    def name(self) -> str:
        """What rows call it."""

    @property
    def options(self) -> Options:
        """Its options, sorted by name."""

    def solve(
        self, samples: WeightedScores, draws: Sequence[Draw], network: Network, alphas: tuple[float, ...], seed: int
    ) -> tuple[Answers, Cost]:
        """Return thresholds and certificates of every draw and alpha, from one run, and the cost of one of them."""


@dataclass(frozen=True)
class MethodSpec:
    """A method of `METHODS` with its options, and its mixture and rank_rule."""

    name: str
    options: Options

    def solve(
        self, samples: WeightedScores, draws: Sequence[Draw], network: Network, alphas: tuple[float, ...], seed: int
    ) -> tuple[Answers, Cost]:
        """Calibrate every draw at every alpha; a method that draws random numbers takes the seed."""
        requirement, options = requirement_in(dict(self.options))
        if "seed" in get_method(self.name).option_names():
            options["seed"] = seed
        batch = solve_draws(samples, network, alphas, self.name, requirement=requirement, **options)
        return batch.outcome, batch.cost

    def rides_along(self, record: tuple[str, ...]) -> bool:
        """Whether draws and alphas may share a run without any recorded value showing it."""
        entry = get_method(self.name)
        if entry.execution.has_independent_draws(make_options(self.name, requirement_in(dict(self.options))[1])):
            return True
        drawn = "seed" in entry.option_names()  # then every draw has its own seed
        return not drawn and not _OF_COMPANY & {*record}


@dataclass(frozen=True)
class SweepCell:
    """What to run: see `Config` for the fields; `draws` are the numbers of some draws."""

    network: NetworkSpec
    method: Solver
    scores: Scores
    alphas: tuple[float, ...]
    draws: tuple[int, ...]
    seed: int
    record: tuple[str, ...]
    together: bool

    def key(self) -> str:
        """Return what names this cell's rows: its fields, the files it reads and the code that computes it."""
        parts = (type(self.method), type(self.scores))
        said = {
            "network": self.network.identity(),
            "method": [parts[0].__name__, self.method.name, self.method.options],
            "scores": [parts[1].__name__, self.scores.identity()],
            "plain": [self.alphas, self.draws, self.seed, self.record, self.together],
            "code": code_digest(*(part.__module__ for part in parts)),
        }
        return hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()[:24]

    def __str__(self) -> str:
        where = self.network.topology or Path(self.network.graph or "").name
        return f"{self.method.name} on {where}"


@cache
def code_digest(*modules: str) -> str:
    """Return a digest of every file that decides rows: those of all cells, and the modules that hold a cell's parts."""
    return digest_of_code((*DECIDING, *(f"{'/'.join(module.split('.')[1:])}.py" for module in modules)))


@dataclass(frozen=True, eq=False)
class _Block:
    """Draws that run on one graph: their numbers, their scores, and the same scores as samples."""

    network: Network
    graph_seed: int
    numbers: tuple[int, ...]
    draws: Sequence[Draw]
    samples: WeightedScores


def compute(cell: SweepCell) -> list[dict[str, Any]]:
    """Run a cell: one row per draw and alpha."""
    rows = []
    apart = cell.network.redraw or not cell.together  # a graph of its own for every draw, or company that would show
    levels = [cell.alphas] if cell.together else [(alpha,) for alpha in cell.alphas]
    for numbers in [(draw,) for draw in cell.draws] if apart else [cell.draws]:
        graph_seed = cell.network.seed + (numbers[0] if cell.network.redraw else 0)
        network = network_of(cell.network, cell.scores, graph_seed)
        draws = [cell.scores.draw(cell.network, network.devices, cell.seed, number) for number in numbers]
        block = _Block(network, graph_seed, numbers, draws, samples_of(draws))
        for alphas in levels:
            rows += _run(cell, block, alphas)
    return rows


def _run(cell: SweepCell, block: _Block, alphas: tuple[float, ...]) -> list[dict[str, Any]]:
    started = time.perf_counter()
    try:
        solved = cell.method.solve(block.samples, block.draws, block.network, alphas, cell.seed + block.numbers[0])
        refused = None
    except (ValueError, ArithmeticError) as reason:  # this method cannot work here: a row that says so, not a number
        solved, refused = None, str(reason)
    seconds = (time.perf_counter() - started) / (len(block.numbers) * len(alphas))
    named, gap = _named(cell, block), _gap(block.network) if "gap" in cell.record else None
    rows = []
    for t, draw in enumerate(block.numbers):
        for a, alpha in enumerate(alphas):
            own = {"alpha": alpha, "draw": draw, "seed": cell.seed + draw, "scores": int(block.draws[t].sizes.sum())}
            row = named | own | dict.fromkeys(_COLUMNS_OF, None) | {"refused": refused}
            if solved is not None:
                row |= _measured(cell.record, block, solved, t, a) | {"gap": gap}
                row["seconds"] = seconds if "seconds" in cell.record else None
            rows.append(row)
    return rows


def _named(cell: SweepCell, block: _Block) -> dict[str, Any]:
    return {
        "network": block.network.name,
        "devices": block.network.devices,
        "edges": block.network.edges,
        "graph_seed": block.graph_seed,
        "redraw": cell.network.redraw,
        "topology_options": json.dumps(dict(cell.network.options)),
        "method": cell.method.name,
        "options": json.dumps(dict(cell.method.options)),
        "worker": f"{socket.gethostname()}:{os.getpid()}",
    }


def _gap(network: Network) -> float:
    return constant_weights(network, network.spectrum).gap


_COLUMNS_OF = {  # recorded column -> the word in `record` that asks for it
    "threshold": "threshold",
    "smallest_threshold": "threshold",
    "required_rank": "rank",
    "counted_rank": "rank",
    "certificate": "certificate",
    "covered": "covered",
    "size": "size",
    "rounds": "rounds",
    "bits": "bits",
    "seconds": "seconds",
    "count": "count",
    "epsilon": "epsilon",
    "gap": "gap",
}


def _measured(record: tuple[str, ...], block: _Block, solved: tuple[Answers, Cost], t: int, a: int) -> dict[str, Any]:
    outcome, cost = solved
    thresholds, certificate = outcome.thresholds[:, t, a], outcome.certificates[t][a]
    required = certificate.required_rank
    smallest = float(thresholds.min())
    found: dict[str, Any] = {
        "threshold": float(thresholds.max()),
        "smallest_threshold": smallest,
        "required_rank": required if isinstance(required, int) else None,
        "certificate": certificate.kind,
        "rounds": cost.rounds,
        "bits": float(cost.bits_per_device),
        "epsilon": certificate.epsilon,
    }
    if {"rank", "count"} & {*record}:
        found["count"] = int(counted_ranks(block.samples, smallest, t))
        counted = certificate.counted_rank  # of weights, where scores have them
        found["counted_rank"] = found["count"] if certificate.weight is None else counted
    if {"covered", "size"} & {*record}:
        found["covered"], found["size"] = block.draws[t].measure(thresholds, "size" in record)
    return {name: value for name, value in found.items() if _COLUMNS_OF[name] in record}


def schema() -> dict[str, Any]:
    """Return the types of columns whose values may be missing."""
    import polars as pl

    whole = {"required_rank", "counted_rank", "rounds", "count"}
    words = {"certificate", "refused"}
    real = {*_COLUMNS_OF} - whole - words
    return {
        **dict.fromkeys(whole, pl.Int64),
        **dict.fromkeys(words, pl.String),
        **dict.fromkeys(real, pl.Float64),
    }
