"""What users hand over, in the one form that calibration needs: scores by device, and a network.

Every function that calibrates takes the same: arrays in the order of the network's devices, a table with one row each,
a dict by device name, or a frame with the columns `device` and `score`; and a `Network`, the name of a topology, or a
NetworkX graph.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from conformesh.graph.network import Network
from conformesh.graph.topologies import TOPOLOGIES
from conformesh.io.arrays import as_array
from conformesh.io.memberships import Memberships
from conformesh.names import device_name, natural_order, unknown
from conformesh.promises import CHOSEN
from conformesh.samples import Samples

DEVICE, SCORE = "device", "score"  # the columns of a long frame
Held = Samples | NDArray[Any] | list[Any] | dict[str, Any]


def as_held(devices: Any, column: str = SCORE) -> Held:
    """Return what devices hold: `Samples`, a table with a row each, a list with an array each, or a dict by name.

    `column` says which column of a long frame is meant.
    """
    if isinstance(devices, Samples):
        return devices
    if isinstance(devices, list | tuple):
        return [*devices]
    names = columns_of(devices)
    if names is not None:
        return _of_frame(devices, names, column)
    if isinstance(devices, Mapping):
        named = {device_name(name): own for name, own in devices.items()}
        if len(named) < len(devices):
            raise ValueError("two devices of the dict have the same name once written as text; rename one of them")
        return named
    if isinstance(devices, str | bytes) or not (hasattr(devices, "__iter__") or hasattr(devices, "__getitem__")):
        raise TypeError(
            f"devices must be one array of scores per device, a dict by device name, or a frame with the columns "
            f"{DEVICE!r} and {SCORE!r}, got {type(devices).__name__} {str(devices)[:40]!r}"
        )
    return devices if isinstance(devices, np.ndarray) else [*devices]


def as_target(devices: Any, target: Any) -> Any:
    """Return a target as `make_promise` takes it: the shares of a frame's column by device, or as it is."""
    columns = columns_of(devices)
    if columns is None or not isinstance(target, str) or target in CHOSEN or target not in columns:
        return target
    return shares_in(_of_frame(devices, columns, target), f"column {target!r}")


def shares_in(held: Mapping[str, Any], what: str) -> dict[str, Any]:
    """Return the one share of every device, from a column that repeats it in each of its rows."""
    shares = {}
    for name, own in held.items():
        each = {*np.asarray(own).tolist()}
        if len(each) != 1:
            raise ValueError(f"{what}: device {name} must have the same share in all its rows, got {sorted(each)[:3]}")
        shares[name] = each.pop()
    return shares


def held_column(devices: Any, column: str, what: str) -> dict[str, Any]:
    """Return what devices hold in a column of a long frame; `what` the column is for, should there be no frame."""
    names = columns_of(devices)
    if names is None:
        raise TypeError(
            f"{what}={column!r} names a column, so scores must be a frame with it, got {type(devices).__name__}; give "
            "one array per device instead"
        )
    return _of_frame(devices, names, column)


def in_rows_of(held: Held, ids: Sequence[str], here: Sequence[str], what: str = "scores") -> Any:
    """Return what devices hold in the order of `ids`, or of those `here`; only a dict has names to be ordered by.

    >>> in_rows_of({"b": [2.0], "a": [1.0]}, ["a", "b"], ["a", "b"])
    [[1.0], [2.0]]
    """
    if not isinstance(held, dict):
        return held
    wanted = here if len(here) < len(ids) and {*held} <= {*here} else ids
    if strange := natural_order({*held} - {*wanted}):
        raise ValueError(f"{what} are given for device {strange[0]!r}, which the network does not have: {_known(ids)}")
    if missing := natural_order({*wanted} - {*held}):
        raise ValueError(
            f"no {what} are given for device {missing[0]!r} of the network; give an empty list if it has none"
        )
    return [held[name] for name in wanted]


def as_network(network: Any, held: Held) -> Network:
    """Return the network that was meant; a topology's name makes one of as many devices as hold scores."""
    if isinstance(network, Network):
        return network
    if isinstance(network, str):
        if network not in TOPOLOGIES:
            raise ValueError(unknown("topology", network, TOPOLOGIES))
        built = Network.of(network, held.devices if isinstance(held, Samples) else len(held))
        return built.relabelled(natural_order(held)) if isinstance(held, dict) else built
    if hasattr(network, "is_directed") and hasattr(network, "adj"):  # a NetworkX graph, without importing it
        return Network.from_networkx(network)
    raise TypeError(
        "network must be a Network, the name of a topology such as 'torus', or a NetworkX graph, got "
        f"{type(network).__name__} {str(network)[:40]!r}"
    )


def labels_by_device(groups: Sequence[Any], here: Sequence[str]) -> list[NDArray[Any]]:
    """Return group labels as text, refusing those that are missing."""
    found = []
    for name, own in zip(here, groups, strict=True):
        labels = as_array(own, f"device {name}, group labels")
        gaps = [i for i, label in enumerate(labels.tolist()) if label is None or label != label]  # noqa: PLR0124 - NaN
        if gaps:
            raise ValueError(
                f"device {name}: group label {gaps[0]} is missing ({labels.tolist()[gaps[0]]}); drop these scores or "
                "name their group"
            )
        found.append(labels.astype(str))
    return found


def as_groups(devices: Any, groups: Any) -> Held:
    """Return the groups of what devices hold: by order or name as given, or from one or several columns of a frame."""
    columns = columns_of(devices)
    if isinstance(groups, str):
        return as_held(devices, groups)
    if columns is not None and isinstance(groups, list | tuple) and all(isinstance(name, str) for name in groups):
        each = {name: _of_frame(devices, columns, name) for name in groups}
        return {
            owner: Memberships.of_columns({name: held[owner] for name, held in each.items()}, f"device {owner}")
            for owner in _of_frame(devices, columns, SCORE)
        }
    return as_held(groups)


def columns_of(devices: Any) -> list[str] | None:
    """Return the names of the columns of a frame or a structured array; None for anything else."""
    if isinstance(devices, np.ndarray):
        return None if devices.dtype.names is None else [*devices.dtype.names]
    columns = getattr(devices, "columns", None)
    return None if columns is None or isinstance(devices, Mapping) or callable(columns) else [str(c) for c in columns]


def _of_frame(frame: Any, columns: list[str], column: str) -> dict[str, Any]:
    """Return what devices hold in a column of a long frame, whose columns are these, by device name."""
    if DEVICE not in columns or column not in columns:
        raise ValueError(
            f"a frame of scores must have the columns {DEVICE!r} and {column!r}, a row for each score, got "
            f"{', '.join(columns[:8])}; rename its columns, or give a dict of device -> scores"
        )
    owners = as_array(frame[DEVICE], f"column {DEVICE!r}")
    gaps = [i for i, owner in enumerate(owners.tolist()) if owner is None or owner != owner]  # noqa: PLR0124 - NaN
    if gaps:
        raise ValueError(f"column {DEVICE!r}: row {gaps[0]} names no device; drop this row or name it")
    values = as_array(frame[column], f"column {column!r}")
    names = np.array([device_name(owner) for owner in owners.tolist()], dtype=str)
    order = np.argsort(names, kind="stable")
    each, starts = np.unique(names[order], return_index=True)
    return {str(name): part for name, part in zip(each, np.split(values[order], starts[1:]), strict=True)}


def _known(ids: Sequence[str]) -> str:
    return ", ".join(ids[:8]) + (", ..." if len(ids) > 8 else "")
