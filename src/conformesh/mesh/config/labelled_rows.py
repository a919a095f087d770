"""The labelled outputs of a device whose scores adapt to them: reading them, and splitting one file over a mesh.

A file has the column of labels and the columns of outputs that the configuration names; a heading alone means no rows.
Rows never leave the device: it calibrates and predicts with them, and its result has a digest of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from conformesh.common.names import list_names, natural_order
from conformesh.files.atomic_writes import PRIVATE
from conformesh.files.labelled import LABELLED_FILE, extract_labelled
from conformesh.files.labels import LABEL_COLUMNS
from conformesh.files.memberships import Memberships
from conformesh.files.output_files import OutputFile, holds_arrays
from conformesh.files.score_files import COLUMN_SYNONYMS
from conformesh.files.table_writers import write_columns
from conformesh.files.tables import FileColumns, FileLayout, quote_column_names, read_table
from conformesh.mesh.config.device_config import DeviceConfig
from conformesh.mesh.config.endpoints import find_device_name
from conformesh.mesh.config.local_scores import check_group_names
from conformesh.results.adapted_facts import DeviceRows
from conformesh.scores.adapt import Bag


def empty_file(config: DeviceConfig) -> str:
    """Return a file of labelled outputs without rows, as text: its heading."""
    cells = ["device", config.scores.label_column, *_group_columns(config), *config.scores.output_columns]
    return ",".join(f'"{cell}"' if {*cell} & {*',;"\n'} else cell for cell in cells) + "\n"


def output_columns(source: str, label: str, groups: Sequence[str]) -> tuple[str, ...]:
    """Return which columns of a file are outputs: all but device, label, id and groups."""
    table = read_table(source, LABELLED_FILE)
    if holds_arrays(table):
        raise ValueError(
            f"{source}: arrays do not name their columns; give them with --set scores.output_columns=NAME,NAME,..."
        )
    apart = {label, "id", _device_column(table, ()), *groups}
    return tuple(name for name in table.columns if name not in apart)


def row_owners(source: str) -> tuple[str, ...]:
    """Return the names of the devices that have rows in a file."""
    table = read_table(source, LABELLED_FILE)
    return natural_order(table.names(_named_device_column(table))[0])


def read_device_rows(config: DeviceConfig, source: str, data: bytes | None = None) -> DeviceRows:
    """Read the labelled outputs of this device; `data` is the content of the source, if it was read already."""
    table = read_table(source, LABELLED_FILE, may_be_empty=True, data=data)
    device = _check_columns(table, config)
    if not len(table) and not holds_arrays(table):
        return no_rows(config)
    found, truth = _extract(table, config, device)
    strange = [
        name for name in dict.fromkeys(found.devices or ()) if find_device_name(name, config.devices) != config.name
    ]
    if strange:
        raise ValueError(
            f"{source}: holds rows of {list_names(strange)} and belongs to {config.name!r}; a device keeps only its own"
        )
    check_group_names(source, found.groups, config)
    return DeviceRows(config.adaptation.read(_as_table(found, config), truth, source), found.groups)


class RowsOfDevices(NamedTuple):
    """Labelled outputs of all devices of a mesh, from one file, with the owner of each row."""

    outputs: OutputFile
    labels: Any
    owners: NDArray[np.str_]


def read_all_rows(config: DeviceConfig, source: str) -> RowsOfDevices:
    """Read the labelled outputs of all devices of a mesh, and check them as each device will."""
    table = read_table(source, LABELLED_FILE)
    _check_columns(table, config)
    found, truth = _extract(table, config, _named_device_column(table))
    devices = found.devices or []
    owners = {name: find_device_name(name, config.devices) for name in dict.fromkeys(devices)}
    if strange := [name for name, owner in owners.items() if owner is None]:
        raise ValueError(
            f"{source}: {list_names(strange)} have rows and are none of the devices {list_names(config.devices)}"
        )
    check_group_names(source, found.groups, config)
    _ = config.adaptation.read(_as_table(found, config), truth, source)  # says what is wrong with them
    return RowsOfDevices(found, truth, np.array([owners[name] for name in devices]))


def scatter_rows(configs: Sequence[DeviceConfig], source: str | Path) -> dict[str, int]:
    """Split a file of labelled outputs by device into the folders of a mesh; return how many rows each device got."""
    found, truth, owners = read_all_rows(configs[0], str(source))
    counts = {}
    for config in configs:
        own = np.flatnonzero(owners == config.name)
        labels: Any = truth[own] if config.classes is None else np.array(config.classes)[truth[own]]
        columns = {"device": owners[own], config.scores.label_column: labels}
        if found.groups is not None:
            names = [", ".join(found.groups.atoms[code]) for code in found.groups.codes[own].tolist()]
            columns[config.scores.group_column] = np.array(names, dtype=str)
        columns |= {name: found.values[own, i] for i, name in enumerate(config.scores.output_columns)}
        write_columns(config.path("scores"), columns, PRIVATE)
        counts[config.name] = len(own)
    return counts


def _extract(table: FileColumns, config: DeviceConfig, device: str | None) -> tuple[OutputFile, Any]:
    """Return outputs and labels: column numbers, or numbers for regression."""
    label, columns = config.scores.label_column, config.scores.output_columns
    # Arrays of labels may also be called labels or y, if no other name is configured.
    named = None if holds_arrays(table) and label == LABEL_COLUMNS[0] else label
    layout = FileLayout(device=device, label=named, groups=_group_columns(config))
    if not holds_arrays(table):  # other columns are not read
        kept = [name for name in (device, label, *layout.groups, *columns) if name is not None]
        table = replace(table, columns={name: table.columns[name] for name in kept})
    wanted: dict[str, Any] = {"columns": columns} if config.classes is None else {"classes": columns}
    return extract_labelled(table, None, layout, **wanted)


def _check_columns(table: FileColumns, config: DeviceConfig) -> str | None:
    """Refuse a table that lacks a column; return the column of devices, if there is one."""
    label, outputs = config.scores.label_column, config.scores.output_columns
    if not holds_arrays(table) and (lacking := [one for one in (label, *outputs) if one not in table.columns]):
        raise ValueError(
            f"{table.name}: adapt = {config.guarantee.adapt!r} needs labelled outputs, the columns {label!r} and "
            f"{quote_column_names(outputs)}; it lacks {quote_column_names(lacking)}, and has {_column_names(table)}"
        )
    return _device_column(table, (label, *outputs))


def _device_column(table: FileColumns, taken: Sequence[str]) -> str | None:
    meant = ("device", *COLUMN_SYNONYMS["device"])
    return next((name for name in table.columns if name.lower() in meant and name not in taken), None)


def _named_device_column(table: FileColumns) -> str:
    if (found := _device_column(table, ())) is None:
        raise ValueError(
            f"{table.name}: needs a column 'device' with the device of each row, and has {_column_names(table)}; "
            "rename the one that has it"
        )
    return found


def _group_columns(config: DeviceConfig) -> tuple[str, ...]:
    return (config.scores.group_column,) if config.guarantee.groups else ()


def _as_table(found: OutputFile, config: DeviceConfig) -> Any:
    return found.values[:, 0] if len(config.scores.output_columns) == 1 else found.values


def _column_names(table: FileColumns) -> str:
    return quote_column_names([*table.columns])


def no_rows(config: DeviceConfig) -> DeviceRows:
    """Return the rows of a device that has none."""
    columns = len(config.scores.output_columns)
    outputs = np.zeros((0, columns)) if columns > 1 else np.zeros(0)
    labels = np.zeros(0) if config.classes is None else np.zeros(0, dtype=np.int64)
    nobody = Memberships((), np.zeros(0, dtype=np.int64), overlapping=False) if config.guarantee.groups else None
    return DeviceRows(Bag(outputs, labels), nobody)
