"""A cell of a sweep: one method on one network over some draws and all alphas, named by all that decides its rows.

Draws and alphas ride along in one run of the simulator wherever the rows are then the same, bit for bit, as those of
single calibrations; where a row would show what the company did to it, each of them runs alone.
"""

from __future__ import annotations

import hashlib
import json
import os
import socket
import time
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

from conformesh.graph.network import Network
from conformesh.kernels.ranks import requirement_in
from conformesh.kernels.weighted_scores import WeightedScores
from conformesh.methods import get_method, make_options
from conformesh.solver import counted_ranks, solve_draws
from conformesh.sweeping.config import Config, MethodSpec, NetworkSpec, ScoreSpec
from conformesh.sweeping.provenance import NUMBERS, digest_of_code
from conformesh.sweeping.sources import Draw, draw_of, network_of, samples_of

DECIDING = (*NUMBERS, "scores/**/*.py", "data/*.py", "sweeping/*.py")
OF_COMPANY = {"certificate", "rounds", "bits"}  # what shows it


@dataclass(frozen=True)
class Cell:
    """What to run: see `Config` for the fields; `draws` are the numbers of some draws."""

    network: NetworkSpec
    method: MethodSpec
    scores: ScoreSpec
    alphas: tuple[float, ...]
    draws: tuple[int, ...]
    seed: int
    record: tuple[str, ...]

    def key(self) -> str:
        """Return what names this cell's rows: its fields, the files it reads and the code that computes it."""
        said = asdict(self)
        read = {"graph": self.network.graph, **{n: v for n, v in self.scores.settings if n in ("file", "labels")}}
        said["network"].pop("graph")
        said["scores"]["settings"] = [pair for pair in self.scores.settings if pair[0] not in read]
        files = {name: digest_of_file(path) for name, path in read.items() if path is not None}
        words = json.dumps([said, files, code_digest()], sort_keys=True)
        return hashlib.sha256(words.encode()).hexdigest()[:24]

    def __str__(self) -> str:
        where = self.network.topology or Path(self.network.graph or "").name
        return f"{self.method.name} on {where}"


@cache
def digest_of_file(path: str) -> str:
    """Return the digest of a file's content."""
    return hashlib.sha256(Path(path).read_bytes()).hexdigest()[:16]


@cache
def code_digest() -> str:
    """Return a digest of every file that decides rows."""
    return digest_of_code(DECIDING)


def rides_along(method: MethodSpec, record: tuple[str, ...]) -> bool:
    """Whether draws and alphas may share a run without any recorded value showing it."""
    entry = get_method(method.name)
    if entry.apart(make_options(method.name, requirement_in(dict(method.options))[1])):
        return True
    drawn = "seed" in entry.option_names()  # then every draw has its own seed
    return not drawn and not OF_COMPANY & {*record}


def cells_of(config: Config) -> list[Cell]:
    """Lay out the grid: networks, then methods, then draws, in blocks that ride along."""
    common = (config.scores, config.alphas)
    cells = []
    for network in config.networks:
        for method in config.methods:
            alone = network.redraw or not rides_along(method, config.record)
            size = 1 if alone else config.batch
            blocks = [tuple(range(config.draws))[start : start + size] for start in range(0, config.draws, size)]
            cells += [Cell(network, method, *common, block, config.seed, config.record) for block in blocks]
    return cells


def compute(cell: Cell, batched: bool = True) -> list[dict[str, Any]]:
    """Run a cell: one row per draw and alpha. Unbatched, every draw and alpha runs alone, with the same rows."""
    rows = []
    together = batched and rides_along(cell.method, cell.record)
    blocks = [cell.draws] if together else [(draw,) for draw in cell.draws]
    levels = [cell.alphas] if together else [(alpha,) for alpha in cell.alphas]
    for block in blocks:
        graph_seed = cell.network.seed + (block[0] if cell.network.redraw else 0)
        network = network_of(cell.network, cell.scores, graph_seed)
        draws = [draw_of(cell.scores, cell.network, network.devices, cell.seed, draw) for draw in block]
        samples = samples_of(draws)
        for alphas in levels:
            rows += _run(cell, network, graph_seed, block, alphas, draws, samples)
    return rows


def _run(
    cell: Cell,
    network: Network,
    graph_seed: int,
    block: tuple[int, ...],
    alphas: tuple[float, ...],
    draws: list[Draw],
    samples: WeightedScores,
) -> list[dict[str, Any]]:
    requirement, options = requirement_in(dict(cell.method.options))
    if "seed" in get_method(cell.method.name).option_names():
        options["seed"] = cell.seed + block[0]
    started = time.perf_counter()
    try:
        batch = solve_draws(samples, network, alphas, cell.method.name, requirement=requirement, **options)
        refused = None
    except (ValueError, ArithmeticError) as reason:  # this method cannot work here: a row that says so, not a number
        batch, refused = None, str(reason)
    seconds = (time.perf_counter() - started) / (len(block) * len(alphas))
    rows = []
    for t, draw in enumerate(block):
        for a, alpha in enumerate(alphas):
            row = _named(cell, network, graph_seed, draw, alpha, int(draws[t].sizes.sum()))
            row |= dict.fromkeys(_COLUMNS_OF, None) | {"refused": refused}
            if batch is not None:
                row |= _measured(cell.record, batch, draws[t], samples, t, a, seconds)
            rows.append(row)
    return rows


def _named(cell: Cell, network: Network, graph_seed: int, draw: int, alpha: float, scores: int) -> dict[str, Any]:
    return {
        "network": network.name,
        "devices": network.devices,
        "edges": network.edges,
        "graph_seed": graph_seed,
        "redraw": cell.network.redraw,
        "topology_options": json.dumps(dict(cell.network.options)),
        "method": cell.method.name,
        "options": json.dumps(dict(cell.method.options)),
        "alpha": alpha,
        "draw": draw,
        "seed": cell.seed + draw,
        "scores": scores,
        "worker": f"{socket.gethostname()}:{os.getpid()}",
    }


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
}


def _measured(
    record: tuple[str, ...], batch: Any, draw: Draw, samples: WeightedScores, t: int, a: int, seconds: float
) -> dict[str, Any]:
    thresholds = batch.outcome.thresholds[:, t, a]
    certificate = batch.outcome.certificates[t][a]
    required = certificate.required_rank
    smallest = float(thresholds.min())
    found: dict[str, Any] = {
        "threshold": float(thresholds.max()),
        "smallest_threshold": smallest,
        "required_rank": required if isinstance(required, int) else None,
        "certificate": certificate.kind,
        "rounds": batch.cost.rounds,
        "bits": float(batch.cost.bits_per_device),
        "seconds": seconds,
    }
    if "rank" in record:
        counted = certificate.counted_rank  # of weights, where scores have them
        found["counted_rank"] = int(counted_ranks(samples, smallest, t)) if certificate.weight is None else counted
    if {"covered", "size"} & {*record}:
        found["covered"], found["size"] = draw.measure(thresholds, "size" in record)
    return {name: value for name, value in found.items() if _COLUMNS_OF[name] in record}


def schema() -> dict[str, Any]:
    """Return the types of columns whose values may be missing."""
    import polars as pl

    whole = dict.fromkeys(("required_rank", "counted_rank", "rounds"), pl.Int64)
    words = dict.fromkeys(("certificate", "refused"), pl.String)
    real = dict.fromkeys(("threshold", "smallest_threshold", "covered", "size", "bits", "seconds"), pl.Float64)
    return {**whole, **words, **real}
