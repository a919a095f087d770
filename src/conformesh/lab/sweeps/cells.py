"""Cells: one method on one network over some draws and all alphas, with a key made of everything that decides its rows.

Sweeps and the reproduced figures are lists of cells. Where `together` is set, draws and alphas share one run of the
simulator; a sweep sets it wherever the rows are then the same, bit for bit, as those of single calibrations. Every
finished cell is a Parquet file, so that a run that was stopped continues where it was.
"""

from __future__ import annotations

import hashlib
import json
import os
import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from conformesh import __version__
from conformesh.graph.network import Network
from conformesh.graph.weights import constant_weights
from conformesh.kernels.ranks import split_requirement
from conformesh.kernels.weighted_scores import WeightedScores
from conformesh.lab.sweeps.parallel import run_in_parallel
from conformesh.lab.sweeps.provenance import CALIBRATION_SOURCES, describe_machine, digest_package_files
from conformesh.lab.sweeps.sources import NetworkSpec, Options, ScoreDraw, ScoreSource, build_cell_network, stack_draws
from conformesh.methods import get_method, make_options
from conformesh.pipeline.solver import count_at_or_below, solve_draws
from conformesh.protocols.block import Answers
from conformesh.results.certificate import Cost

if TYPE_CHECKING:
    import polars as pl

OnPoint = Callable[[int, int, str], None]  # cells done, cells in all, and the name of the last one ("" at first)
CELL_SOURCES = (*CALIBRATION_SOURCES, "lab/sweeps/*.py")  # files whose content is part of every cell's key
# Recorded values that can change when draws and alphas share a run; thresholds do not.
_SHARED_RUN_VALUES = {"certificate", "epsilon", "rounds", "bits"}


class CellMethod(Protocol):
    """What computes the thresholds of a cell: a frozen dataclass, so that it can be sent to any process."""

    @property
    def name(self) -> str:
        """Its name in the rows."""

    @property
    def options(self) -> Options:
        """Its options, sorted by name."""

    def solve(
        self,
        samples: WeightedScores,
        draws: Sequence[ScoreDraw],
        network: Network,
        alphas: tuple[float, ...],
        seed: int,
    ) -> tuple[Answers, Cost]:
        """Return thresholds and certificates of every draw and alpha, from one run, and the cost of one of them."""


@dataclass(frozen=True)
class MethodSpec:
    """A method of `METHODS` with its options, mixture and rank rule."""

    name: str
    options: Options

    def solve(
        self,
        samples: WeightedScores,
        draws: Sequence[ScoreDraw],
        network: Network,
        alphas: tuple[float, ...],
        seed: int,
    ) -> tuple[Answers, Cost]:
        """Calibrate every draw at every alpha; the seed goes to methods that draw random numbers."""
        requirement, options = split_requirement(dict(self.options))
        if "seed" in get_method(self.name).option_names():
            options["seed"] = seed
        batch = solve_draws(samples, network, alphas, self.name, requirement=requirement, **options)
        return batch.outcome, batch.cost

    def can_share_run(self, record: tuple[str, ...]) -> bool:
        """Whether draws and alphas may share a run without changing any recorded value."""
        entry = get_method(self.name)
        if entry.execution.has_independent_draws(make_options(self.name, split_requirement(dict(self.options))[1])):
            return True
        takes_seed = "seed" in entry.option_names()  # a run has one seed, but every draw needs its own
        return not takes_seed and not _SHARED_RUN_VALUES & {*record}


@dataclass(frozen=True)
class SweepCell:
    """What to run: see `SweepConfig` for the fields; `draws` are the numbers of some draws."""

    network: NetworkSpec
    method: CellMethod
    scores: ScoreSource
    alphas: tuple[float, ...]
    draws: tuple[int, ...]
    seed: int
    record: tuple[str, ...]
    together: bool

    def key(self) -> str:
        """Return a digest of the cell's fields, the files it reads and the code that computes it."""
        parts = (type(self.method), type(self.scores))
        parts_of_key = {
            "network": self.network.identity(),
            "method": [parts[0].__name__, self.method.name, self.method.options],
            "scores": [parts[1].__name__, self.scores.identity()],
            "plain": [self.alphas, self.draws, self.seed, self.record, self.together],
            "code": digest_cell_code(*(part.__module__ for part in parts)),
        }
        return hashlib.sha256(json.dumps(parts_of_key, sort_keys=True).encode()).hexdigest()[:24]

    def __str__(self) -> str:
        where = self.network.topology or Path(self.network.graph or "").name
        return f"{self.method.name} on {where}"


@cache
def digest_cell_code(*modules: str) -> str:
    """Return a digest of every file that decides rows: those of all cells, and the modules of this cell's classes."""
    return digest_package_files((*CELL_SOURCES, *(f"{'/'.join(module.split('.')[1:])}.py" for module in modules)))


@dataclass(frozen=True, eq=False)
class _Block:
    """Draws that run on one graph: their numbers, their scores, and the same scores as samples."""

    network: Network
    graph_seed: int
    numbers: tuple[int, ...]
    draws: Sequence[ScoreDraw]
    samples: WeightedScores


def compute_cell(cell: SweepCell) -> list[dict[str, Any]]:
    """Run a cell: one row per draw and alpha."""
    rows = []
    separate = (
        cell.network.redraw or not cell.together
    )  # every draw has its own graph, or sharing a run would change a recorded value
    levels = [cell.alphas] if cell.together else [(alpha,) for alpha in cell.alphas]
    for numbers in [(draw,) for draw in cell.draws] if separate else [cell.draws]:
        graph_seed = cell.network.seed + (numbers[0] if cell.network.redraw else 0)
        network = build_cell_network(cell.network, cell.scores, graph_seed)
        draws = [cell.scores.draw(cell.network, network.devices, cell.seed, number) for number in numbers]
        block = _Block(network, graph_seed, numbers, draws, stack_draws(draws))
        for alphas in levels:
            rows += _run(cell, block, alphas)
    return rows


def _run(cell: SweepCell, block: _Block, alphas: tuple[float, ...]) -> list[dict[str, Any]]:
    started = time.perf_counter()
    try:
        solved = cell.method.solve(block.samples, block.draws, block.network, alphas, cell.seed + block.numbers[0])
        refused = None
    except (ValueError, ArithmeticError) as reason:  # the method cannot run here: record the reason instead of numbers
        solved, refused = None, str(reason)
    seconds = (time.perf_counter() - started) / (len(block.numbers) * len(alphas))
    named, gap = _named(cell, block), _gap(block.network) if "gap" in cell.record else None
    rows = []
    for t, draw in enumerate(block.numbers):
        for a, alpha in enumerate(alphas):
            of_draw = {
                "alpha": alpha,
                "draw": draw,
                "seed": cell.seed + draw,
                "scores": int(block.draws[t].sizes.sum()),
            }
            row = named | of_draw | dict.fromkeys(_RECORDED_BY, None) | {"refused": refused}
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


_RECORDED_BY = {  # column -> the word in `record` that requests it
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
        found["count"] = int(count_at_or_below(block.samples, smallest, t))
        counted = certificate.counted_rank  # with weighted scores, a sum of weights instead of a count
        found["counted_rank"] = found["count"] if certificate.weight is None else counted
    if {"covered", "size"} & {*record}:
        found["covered"], found["size"] = block.draws[t].measure(thresholds, "size" in record)
    return {name: value for name, value in found.items() if _RECORDED_BY[name] in record}


def row_types() -> dict[str, Any]:
    """Return the types of columns whose values may be missing."""
    import polars as pl

    whole = {"required_rank", "counted_rank", "rounds", "count"}
    words = {"certificate", "refused"}
    real = {*_RECORDED_BY} - whole - words
    return {
        **dict.fromkeys(whole, pl.Int64),
        **dict.fromkeys(words, pl.String),
        **dict.fromkeys(real, pl.Float64),
    }


def cell_file(cell: SweepCell, folder: Path) -> Path:
    """Return the file with the rows of a cell; its name is the cell's key."""
    return folder / f"{cell.key()}.parquet"


def run_cells(
    cells: Sequence[SweepCell],
    folder: Path,
    workers: int = 2,
    on_point: OnPoint | None = None,
    name_of: Callable[[SweepCell], str] = str,
) -> list[pl.DataFrame]:
    """Compute the cells that have no file in `folder` yet, and return the rows of every cell.

    `name_of` returns the name of a cell in a progress bar.
    """
    import polars as pl

    files = [cell_file(cell, folder) for cell in cells]
    missing = [number for number, file in enumerate(files) if not file.exists()]
    done = len(cells) - len(missing)
    if on_point is not None:
        on_point(done, len(cells), "")
    for task, rows in run_in_parallel([partial(compute_cell, cells[number]) for number in missing], workers):
        number = missing[task]
        _write(files[number], rows)
        done += 1
        if on_point is not None:
            on_point(done, len(cells), name_of(cells[number]))
    return [pl.read_parquet(file) for file in files]


def _write(file: Path, rows: list[dict[str, Any]]) -> None:
    """Write a cell's rows with their provenance; the file is renamed when complete, so it is never there in part."""
    import polars as pl

    made = datetime.now(UTC).isoformat(timespec="seconds")
    facts = {"version": __version__, "machine": describe_machine(), "made": made}
    frame = pl.DataFrame(rows, schema_overrides=row_types()).with_columns(
        **{name: pl.lit(v) for name, v in facts.items()}
    )
    file.parent.mkdir(parents=True, exist_ok=True)
    unfinished = file.with_suffix(f".{os.getpid()}.part")
    frame.write_parquet(unfinished)
    unfinished.replace(file)
