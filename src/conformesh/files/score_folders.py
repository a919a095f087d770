"""Scores in many files, so that a rank of an MPI job reads only its own.

    scores/device=sensor-1/part.parquet     one folder per device; the file has the column `score`
    scores/part-000.parquet                 any Parquet files with the columns `device` and `score`
    scores/rank-0.npz, scores/rank-1.npz    one NPZ for each rank, with the arrays `device` and `score`

Who is there is known from folder names, or from the column `device` alone; no score is read for that.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import unquote

import numpy as np

from conformesh.common.names import natural_order
from conformesh.files.memberships import Memberships
from conformesh.files.score_files import (
    SCORE_FILE,
    SIDE_COLUMNS,
    ScoreFile,
    ScoreRows,
    common_score,
    extract_scores,
    order_by_device,
    read_scores,
)
from conformesh.files.tables import CLASSES, SCORE_FUNCTION, FileColumns, FileLayout, quote_column_names

if TYPE_CHECKING:
    import polars as pl

_HIVE = "device="


@dataclass(frozen=True, eq=False)
class ScoreFolder:
    """A folder of Parquet files, or one of NPZ files.

    Attributes
    ----------
    path
        The folder.
    files
        The files in it, in natural order of their names.
    per_rank
        Whether these are NPZ files, of which each rank reads one whole.
    """

    path: Path
    files: tuple[Path, ...]
    per_rank: bool

    @classmethod
    def open(cls, path: str | Path) -> ScoreFolder:
        """List the files of a folder, without reading them."""
        folder = Path(path)
        found = {ending: [*folder.rglob(f"*{ending}")] for ending in (".parquet", ".pq", ".npz")}
        parquet, arrays = found[".parquet"] + found[".pq"], found[".npz"]
        if bool(parquet) == bool(arrays):
            got = "both" if parquet else "neither"
            raise ValueError(f"{folder}: a folder of scores holds Parquet files or NPZ files, this one has {got}")
        by_name = {str(file.relative_to(folder)): file for file in parquet or arrays}
        return cls(folder, tuple(by_name[name] for name in natural_order(by_name)), not parquet)

    @property
    def hive(self) -> bool:
        """Whether folders are named ``device=NAME``, so that the device of each file is known."""
        return all(_device_of(file) is not None for file in self.files)

    def roster(self, layout: FileLayout | None = None) -> _Roster:
        """Return the devices with scores here, without reading a score."""
        if self.per_rank:
            raise ValueError(f"{self.path}: NPZ files must be read to know whose scores they hold")
        if self.hive:
            return _Roster(natural_order({str(_device_of(file)) for file in self.files}), None)
        device = _column("device", layout)
        distinct = self._scan(layout).select(device).unique(maintain_order=True).collect()[device]
        names, index = FileColumns({device: distinct}, str(self.path)).names(device)
        return _Roster(natural_order(names), (distinct, np.array(names)[index].tolist()))

    def read(self, devices: Collection[str] | None = None, layout: FileLayout | None = None) -> ScoreFile:
        """Read the scores of some devices, by default of all."""
        if self.per_rank:
            return concatenate_files([self.read_file(at, layout) for at in range(len(self.files))], str(self.path))
        return self.read_for(self.roster(layout), devices, layout)

    def read_for(
        self, roster: _Roster, devices: Collection[str] | None = None, layout: FileLayout | None = None
    ) -> ScoreFile:
        """Read the scores of some devices of a roster: only their files, or only their rows."""
        import polars as pl

        layout = layout or FileLayout()
        wanted = {*(roster.devices if devices is None else devices)}
        device = _column("device", layout)
        columns = [*_score_columns(layout), *layout.beside]
        try:
            if roster.raw is None:
                mine = [(file, name) for file in self.files if (name := _device_of(file)) in wanted]
                frames = [
                    pl.scan_parquet(file, hive_partitioning=False)
                    .select(*columns, *self._about_all(pl.read_parquet_schema(file)))
                    .collect()
                    .with_columns(pl.lit(name).alias(device))
                    for file, name in mine
                ]
                frame = pl.concat(frames, how="diagonal") if frames else None
            else:
                values, names = roster.raw
                keep = values.filter(pl.Series([name in wanted for name in names], dtype=pl.Boolean))
                scan = self._scan(layout)
                columns += self._about_all(scan.collect_schema())
                frame = scan.select(device, *columns).filter(pl.col(device).is_in(keep.implode())).collect()
        except (pl.exceptions.PolarsError, pl.exceptions.PanicException, OSError) as problem:
            raise self._unreadable(problem) from None
        if frame is None or not len(frame):
            return _nothing(layout, str(self.path))
        table = FileColumns({column.name: column for column in frame.get_columns()}, str(self.path))
        return extract_scores(table, replace(layout, device=device, score=None if layout.sides else columns[0]))

    def read_file(self, at: int, layout: FileLayout | None = None) -> ScoreFile:
        """Read one of the files whole."""
        return read_scores(str(self.files[at]), layout=layout)

    def _scan(self, layout: FileLayout | None) -> pl.LazyFrame:
        import polars as pl

        frame = pl.scan_parquet([*self.files], hive_partitioning=False)
        try:
            titles = frame.collect_schema().names()
        except (pl.exceptions.PolarsError, pl.exceptions.PanicException, OSError) as problem:
            raise self._unreadable(problem) from None
        if not {_column("device", layout), *_score_columns(layout or FileLayout())} <= {*titles}:
            raise ValueError(
                f"{self.path}: needed {SCORE_FILE}; or a folder device=NAME for each; "
                f"found {quote_column_names(titles)}; "
                "other names are given with --device-column and --score-column"
            )
        return frame

    @staticmethod
    def _about_all(schema: Mapping[str, Any]) -> list[str]:
        """Return the columns that say something about a whole file: its classes, and which score made it."""
        return [name for name in (CLASSES, SCORE_FUNCTION) if name in schema]

    def _unreadable(self, problem: BaseException) -> ValueError:
        return ValueError(f"{self.path}: cannot be read as Parquet: {(str(problem).splitlines() or ['damaged'])[0]}")


@dataclass(frozen=True, eq=False)
class _Roster:
    """Whose scores a folder holds: names in natural order, and how the files spell them, where they do."""

    devices: tuple[str, ...]
    raw: tuple[Any, list[str]] | None


def concatenate_files(parts: Sequence[ScoreFile], name: str) -> ScoreFile:
    """Return several files as one; a device in two of them is an error."""
    seen: dict[str, str] = {}
    for part in parts:
        for device in part.devices:
            if device in seen:
                raise ValueError(f"device {device!r} has scores in {seen[device]} and in {part.name}; keep them in one")
            seen[device] = part.name
    known = {part.classes for part in parts}
    if len(known - {None}) > 1:
        raise ValueError(f"{name}: its files name different classes; keep scores of one model in a folder")
    made_by = common_score((part.made_by for part in parts), name)
    every = [part.rows for part in parts]
    sizes = np.concatenate([np.diff(rows.offsets) for rows in every])
    devices, offsets, order = order_by_device([*seen], np.repeat(np.arange(len(sizes)), sizes))

    def column(which: str) -> Any:
        values = [getattr(rows, which) for rows in every]
        if values[0] is None:
            return None
        return Memberships.concatenate(values).take(order) if which == "groups" else np.concatenate(values)[order]

    columns = {which: column(which) for which in ("score", "groups", "weight", "inputs", "labels")}
    whole = ScoreRows(devices, offsets, group_column=every[0].group_column, **columns)
    return ScoreFile(whole, name, max(known, key=bool, default=None), made_by)


def _nothing(layout: FileLayout, name: str) -> ScoreFile:
    """Return a file without rows that has the columns which were asked for: this rank hosts no device with scores."""
    rows = ScoreRows(
        (),
        np.zeros(1, dtype=np.int64),
        np.empty((0, 2)) if layout.sides else np.empty(0),
        groups=Memberships((), np.zeros(0, dtype=np.int64), overlapping=False) if layout.groups else None,
        weight=None if layout.weight is None else np.empty(0),
        inputs=np.empty((0, len(layout.inputs))) if layout.inputs else None,
        labels=None if layout.label is None else np.empty(0, dtype=str),
    )
    return ScoreFile(rows, name)


def _score_columns(layout: FileLayout) -> tuple[str, ...]:
    return SIDE_COLUMNS if layout.sides else (_column("score", layout),)


def _column(word: Literal["device", "score"], layout: FileLayout | None) -> str:
    """Return the name of a column; synonyms are not tried in folders."""
    return (layout and getattr(layout, word)) or word


def _device_of(file: Path) -> str | None:
    """Return the device that a file's folder names, as in ``device=sensor-1``."""
    for part in reversed(file.parts[:-1]):
        if part.startswith(_HIVE):
            return unquote(part.removeprefix(_HIVE)).strip()
    return None
