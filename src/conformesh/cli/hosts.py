"""Where the devices of a command run: in this process, or in all ranks that were started with it.

A command calls `start_job` with the name of an engine, `job.load` to read its file and make the engine, and prints only
where `job.first`. The engine's entry in `ENGINES` says which kind of job it needs.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from conformesh.cli import console
from conformesh.common.names import natural_order
from conformesh.engines import Engine, get_driver
from conformesh.engines.observers import rounds_on_a_bar
from conformesh.files.score_files import ScoreFile, read_scores
from conformesh.files.tables import STDIN, FileLayout
from conformesh.graph.network import Network
from conformesh.scores.losses import StepLosses
from conformesh.table import Table

if TYPE_CHECKING:
    from conformesh.files.score_folders import ScoreFolder

_MakeNetwork = Callable[[Sequence[str], str], Network]  # of the devices that have scores, and where these come from
_MakeEngine = Callable[..., Engine]
_Read = Callable[..., Any]  # (source, layout=) -> a ScoreFile, or a file of losses


@dataclass(frozen=True)
class _SingleProcess:
    """One process hosts every device; it is also the first, which prints."""

    make: _MakeEngine
    first: bool = True

    def load(
        self, source: str, layout: FileLayout, network: _MakeNetwork, read: _Read = read_scores
    ) -> tuple[Any, Engine]:
        """Read a file, by default of scores; `network` makes the network, once it is known who is there."""
        with console.warnings_in_one_line():
            file = read(source, layout=layout)
            return file, self.make(network(file.devices, file.name))


class _Ranks:
    """Each rank hosts a block of devices and reads its own part of the scores."""

    def __init__(self, make: _MakeEngine, comm: Any) -> None:
        self.make, self.comm = make, comm
        self.first = comm.rank == 0

    def load(
        self, source: str, layout: FileLayout, network: _MakeNetwork, read: _Read = read_scores
    ) -> tuple[Any, Engine]:
        """Read the rows of the devices of this rank; of a single file every rank reads all and keeps its part."""
        with console.warnings_in_one_line():
            return self._load(source, layout, network, read)

    def _load(self, source: str, layout: FileLayout, network: _MakeNetwork, read: _Read) -> tuple[Any, Engine]:
        if read is read_scores and source != STDIN and Path(source).is_dir():
            from conformesh.files.score_folders import ScoreFolder

            folder = ScoreFolder.open(source)
            return (self._by_file if folder.per_rank else self._by_device)(folder, layout, network)
        file = read(source, layout=layout) if self.first or source != STDIN else None
        if source == STDIN:  # only the first rank has a standard input
            file = self.comm.bcast(file)
        assert file is not None
        return file, self.make(network(file.devices, file.name), comm=self.comm)

    def _by_device(self, folder: ScoreFolder, layout: FileLayout, network: _MakeNetwork) -> tuple[ScoreFile, Engine]:
        """Agree on the devices, assign them to ranks, and read the files of this rank's devices."""
        roster = self.comm.bcast(folder.roster(layout) if self.first else None)
        found = network(roster.devices, str(folder.path))
        engine = self.make(found, comm=self.comm)
        return folder.read_for(roster, [found.ids[row] for row in engine.rows], layout), engine

    def _by_file(self, folder: ScoreFolder, layout: FileLayout, network: _MakeNetwork) -> tuple[ScoreFile, Engine]:
        """Host the devices of this rank's file."""
        if len(folder.files) != self.comm.size:
            raise ValueError(
                f"{folder.path}: has {len(folder.files)} NPZ files for {self.comm.size} ranks; one for each rank is "
                f"needed: start {len(folder.files)} ranks, or use Parquet files, which any number of ranks can share"
            )
        file = folder.read_file(self.comm.rank, layout)
        owner: dict[str, int] = {}
        for rank, names in enumerate(self.comm.allgather(file.devices)):
            for name in names:
                if owner.setdefault(name, rank) != rank:
                    files = f"{folder.files[owner[name]].name} and {folder.files[rank].name}"
                    raise ValueError(f"{folder.path}: device {name!r} has scores in {files}; keep them in one")
        found = network(natural_order(owner), str(folder.path))
        from conformesh.engines.mpi.partition import assign_missing_devices

        hosts = assign_missing_devices(np.array([owner.get(name, -1) for name in found.ids]), found)
        return file, self.make(found, comm=self.comm, owners=hosts)


@contextmanager
def start_job(name: str) -> Iterator[_SingleProcess | _Ranks]:
    """Start the job that the engine needs. Only its first rank prints, and an error in one rank ends all ranks."""
    driver = get_driver(name)
    if driver.job is None:
        yield _SingleProcess(driver.make)
        return
    with driver.job() as comm:
        ranks = _Ranks(driver.make, comm)
        if not ranks.first:
            sys.stdout = sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 - until the process ends
        if comm.size == 1:
            again = f"{driver.start} conformesh calibrate SCORES --engine {name} ..."
            console.print_note(f"one rank hosts all devices; for more: {again}")
        yield ranks


def table_of_devices(file: ScoreFile, ids: Sequence[str]) -> Table:
    """Return the scores in a file as a table of these devices, in this order."""
    return select_devices(Table(**{column.name: getattr(file.rows, column.name) for column in fields(file.rows)}), ids)


def select_devices(table: Table, ids: Sequence[str]) -> Table:
    """Return the rows of these devices, in this order; none where a device is not in the table."""
    names = table.names or ()
    if tuple(ids) == names:
        return table
    place = {name: k for k, name in enumerate(names)}
    more = [name for name in ids if name not in place]
    place |= {name: len(names) + k for k, name in enumerate(more)}
    ends = np.append(table.offsets, np.full(len(more), table.offsets[-1]))
    losses = None if table.losses is None else (*table.losses, *(StepLosses.none() for _ in more))
    whole = replace(table, names=(*names, *more), offsets=ends, losses=losses)
    return whole.take([place[name] for name in ids])


@contextmanager
def show_progress(engine: Engine, what: str, recorder: Any = None) -> Iterator[None]:
    """Show how far the run inside the block is, and its warnings after it."""
    with rounds_on_a_bar(f"{what} on {engine.network.name}", recorder) as observer, console.warnings_in_one_line():
        engine.observer = observer
        yield
