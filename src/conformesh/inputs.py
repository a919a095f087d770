"""What users hand over, in the one form that calibration needs: scores by device, and a network.

Every function that calibrates takes the same: arrays in the order of the network's devices, a table with one row each,
a dict by device name, or a frame with the columns `device` and `score` (of pandas, polars or Arrow, a structured array,
a dict of columns, a list of records); and a `Network`, the name of a topology, or a NetworkX graph.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from typing import Any

import numpy as np
from numpy.typing import NDArray

from conformesh.graph.network import Network
from conformesh.graph.topologies import TOPOLOGIES
from conformesh.io.arrays import as_array, check_index, columns_of, note_alike, note_duplicates
from conformesh.io.memberships import Memberships
from conformesh.kernels.ranks import CHOSEN_MIXTURES
from conformesh.kernels.weighted_scores import WeightedScores
from conformesh.names import device_name, natural_order, unknown
from conformesh.notes import note
from conformesh.scores import Score

DEVICE, SCORE, ID = "device", "score", "id"  # the columns of a long frame
Held = WeightedScores | NDArray[Any] | list[Any] | dict[str, Any]


def as_held(devices: Any, column: str = SCORE, what: str = "devices") -> Held:
    """Return what devices hold: `WeightedScores`, a table with a row each, a list with an array each, or a dict by name.

    `column` says which column of a long frame is meant, and `what` which argument, for errors.
    """
    if isinstance(devices, WeightedScores):
        return devices
    devices = as_frame(devices, column)
    if isinstance(devices, list | tuple):
        return _by_device([*devices], what)
    names = columns_of(devices)
    if names is not None:
        return _of_frame(devices, names, column)
    if isinstance(devices, Mapping):
        named = {device_name(name): own for name, own in devices.items()}
        if len(named) < len(devices):
            raise ValueError("two devices of the dict have the same name once written as text; rename one of them")
        note_alike(named, "devices")
        return named
    if isinstance(devices, str | bytes) or not (hasattr(devices, "__iter__") or hasattr(devices, "__getitem__")):
        raise TypeError(f"{_allowed(what)}, got {type(devices).__name__} {str(devices)[:40]!r}")
    return devices if isinstance(devices, np.ndarray) and devices.ndim > 1 else _by_device([*devices], what)


# What the first argument of a public function is called, and what it holds; other arguments stand beside it.
_FIRST = {"devices": "scores", "data": "values"}


def _allowed(what: str) -> str:
    """Return the forms in which an argument may be given."""
    if what in _FIRST:
        return (
            f"{what} must be one array of {_FIRST[what]} per device, a dict by device name, or a frame with the "
            f"columns {DEVICE!r} and {SCORE!r}"
        )
    return f"{what} must be one array per device in the order of the scores, or a dict by device name"


def as_frame(devices: Any, column: str) -> Any:
    """Return columns as a frame, what is grouped or labelled by device as a dict, and the rest as it is."""
    if isinstance(devices, Mapping) and {DEVICE, column} <= {*devices}:  # a frame as a dict of columns
        return _Columns(devices)
    if isinstance(devices, list | tuple) and devices and all(isinstance(row, Mapping) for row in devices):
        return _Columns({name: [row.get(name) for row in devices] for name in devices[0]})
    if hasattr(devices, "collect") and hasattr(devices, "explain"):
        raise TypeError("devices are a lazy frame, which holds no scores yet; pass frame.collect()")
    if hasattr(devices, "ngroups"):  # a pandas frame or column, grouped
        return {name: part if columns_of(part) is None else part[column] for name, part in devices}
    if hasattr(devices, "nnz") and hasattr(devices, "toarray"):
        raise TypeError(
            "devices are a sparse matrix, which does not say which of its zeros are scores; pass matrix.toarray(), a "
            "row for each device, or one array per device"
        )
    if isinstance(devices, Set):
        raise TypeError("devices are a set, which has no order; give a dict of device -> scores")
    if hasattr(devices, "coords") and hasattr(devices, "dims"):  # of xarray
        names = getattr(devices.coords.get(devices.dims[0]), "values", None) if devices.dims else None
        rows = as_array(devices, "devices")
        return rows if names is None else dict(zip(np.asarray(names).tolist(), rows, strict=True))
    if hasattr(devices, "index") and hasattr(devices, "groupby") and columns_of(devices) is None:  # a pandas column
        return _of_column(devices)
    return devices


def _of_column(series: Any) -> dict[Any, Any]:
    """Return the scores of a pandas column whose index names the device of each, or of each array in it."""
    if type(series.index).__name__ == "RangeIndex" and as_array(series, "devices").dtype != np.dtype(object):
        raise TypeError(
            "devices are one column of numbers, whose index does not name their devices; give a frame with the columns "
            f"{DEVICE!r} and {SCORE!r}, or set_index({DEVICE!r})"
        )
    if as_array(series, "devices").dtype == np.dtype(object) and series.index.is_unique:
        return dict(series.items())
    return dict([*series.groupby(level=0)])


def _by_device(devices: list[Any], what: str) -> list[Any]:
    """Return one array for each device, refusing a flat list of values, which does not say whose they are."""
    flat = devices and all(
        isinstance(own, int | float | str | np.generic) or getattr(own, "shape", None) == () for own in devices
    )
    if flat and what not in _FIRST:
        raise ValueError(
            f"{_allowed(what)}, got {len(devices)} values in a row, which do not say whose they are; split them as the "
            f"scores are split, or give scores in a frame and name a column: {what}='...'"
        )
    if flat:
        raise ValueError(
            f"{what} must be one array of {_FIRST[what]} per device, got {len(devices)} numbers in a row, which do not "
            f"say whose they are; for a single device pass [{_FIRST[what]}], else a frame with the columns {DEVICE!r} "
            f"and {SCORE!r}"
        )
    return devices


class _Columns:
    """A frame made of columns."""

    def __init__(self, held: Mapping[Any, Any]) -> None:
        self.held, self.columns = held, [*held]

    def __getitem__(self, name: str) -> Any:
        return self.held[name]


def as_target(devices: Any, target: Any) -> Any:
    """Return a target as `make_requirement` takes it: the shares of a frame's column by device, or as it is."""
    devices = as_frame(devices, SCORE)
    columns = columns_of(devices)
    if columns is None or not isinstance(target, str) or target in CHOSEN_MIXTURES or target not in columns:
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
    frame = as_frame(devices, column)
    names = columns_of(frame)
    if names is None:
        raise TypeError(
            f"{what}={column!r} names a column, so scores must be a frame with it, got {type(devices).__name__}; give "
            "one array per device instead"
        )
    return _of_frame(frame, names, column)


def check_same_form(scores: Held, others: Held, what: str) -> None:
    """Refuse scores by device name beside `others` in a list, or the reverse: they could not be matched."""
    if isinstance(scores, dict) != isinstance(others, dict):
        raise TypeError(f"scores and {what} must both go by device name or both by order, got one of each")


def check_rows(scores: Sequence[Any], others: Sequence[Any], names: Sequence[str], what: str) -> None:
    """Compare the index of each device's scores with that of its `others`, where both are of pandas."""
    for name, own, other in zip(names, scores, others, strict=True):
        check_index(own, other, f"{what}[{name!r}]", f"scores[{name!r}]")


def in_rows_of(held: Held, network: Network, here: Sequence[str], what: str = "scores") -> Any:
    """Return what devices hold in the order of the network's rows, or of the devices `here`.

    A dict is put in that order by name. Anything else must be in it already; where the network cannot tell which order
    its user has in mind, it is refused.

    >>> in_rows_of({"b": [2.0], "a": [1.0]}, Network.from_pairs(["a", "b"], [("a", "b")]), ["a", "b"])
    [[1.0], [2.0]]
    """
    if not isinstance(held, dict):
        network.check_list(what)
        return held
    ids = network.ids
    wanted = here if len(here) < len(ids) and {*held} <= {*here} else ids
    if strange := natural_order({*held} - {*wanted}):
        raise ValueError(f"{what} are given for device {strange[0]!r}, which the network does not have: {_known(ids)}")
    if missing := natural_order({*wanted} - {*held}):
        raise ValueError(
            f"no {what} are given for device {missing[0]!r} of the network; give an empty list if it has none"
        )
    return [held[name] for name in wanted]


def check_scores(
    score: Score | None, samples: WeightedScores, held: Held | Sequence[Any], names: Sequence[str]
) -> None:
    """Refuse scores that the score which was named cannot give; say whose they are and where they stand in `held`."""
    if score is None or not (outside := score.outside(samples.values)).any():
        return
    first = int(outside.argmax())
    k = int(np.searchsorted(samples.offsets, first, side="right") - 1) // samples.trials
    values: Any = ()  # in the order in which the user has them, where that is known
    if isinstance(held, dict):
        values = held[names[k]]
    elif not isinstance(held, WeightedScores) and len(held) == len(names):
        values = held[k]
    values = np.asarray(as_array(values, "scores"), dtype=np.float64)
    if values.ndim == 1:
        score.check_range(values, f"device {names[k]}")
    score.check_range(samples.values[first : first + 1], f"device {names[k]}", ordered=False)


def as_network(network: Any, held: Held) -> Network:
    """Return the network that was meant; a topology's name makes one of as many devices as hold scores."""
    if isinstance(network, Network):
        return network
    if isinstance(network, str):
        if network not in TOPOLOGIES:
            raise ValueError(unknown("topology", network, TOPOLOGIES))
        if isinstance(held, np.ndarray) and held.ndim == 2 and len(held) > held.shape[1]:
            note(
                f"a table of shape {held.shape} is read as {len(held)} devices with {held.shape[1]} scores each, a row "
                "per device; pass table.T if its columns are the devices"
            )
        built = Network.of(network, held.devices if isinstance(held, WeightedScores) else len(held))
        return built.relabelled(natural_order(held)) if isinstance(held, dict) else built
    if hasattr(network, "is_directed") and hasattr(network, "adj"):  # a NetworkX graph, without importing it
        return Network.from_networkx(network)
    raise TypeError(
        "network must be a Network, the name of a topology such as 'torus', or a NetworkX graph, got "
        f"{type(network).__name__} {str(network)[:40]!r}; Network.from_pairs takes pairs of devices"
    )


def as_classes(classes: Any) -> tuple[str | bool | int | float, ...] | None:
    """Return classes: names, numbers and truth values as given, all else as written; or the columns of a frame.

    >>> as_classes(["cat", "dog"]), as_classes(np.array([3, 5]))
    (('cat', 'dog'), (3, 5))
    """
    if classes is None:
        return None
    columns = columns_of(classes)
    if isinstance(classes, str | bytes) or (columns is None and not hasattr(classes, "__iter__")):
        raise TypeError(
            f"classes must be the names of the columns of outputs, got {type(classes).__name__} {classes!r:.40}"
        )
    given = [*columns] if columns is not None else as_array(classes, "classes").tolist()
    names = tuple(name if isinstance(name, bool | int | float) else str(name) for name in given)
    if len({*names}) < max(2, len(names)):
        raise ValueError(f"classes must be at least 2 different names, got {', '.join(map(str, names[:8]))}")
    return names


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
    devices = as_frame(devices, SCORE)
    columns = columns_of(devices)
    if isinstance(groups, str):
        return held_column(devices, groups, "groups")
    numbered = type(getattr(groups, "index", None)).__name__ == "RangeIndex"  # a pandas column that names no device
    if columns is not None and (numbered or isinstance(groups, list | tuple | np.ndarray)):
        if numbered or not all(isinstance(name, str) for name in groups) or isinstance(groups, np.ndarray):
            raise TypeError(
                "groups must be the name of a column, or a list of names, where scores are a frame, got "
                f"{type(groups).__name__}; put the labels into a column of the frame"
            )
        if strange := next((name for name in groups if name not in columns), None):
            raise ValueError(
                f"groups: {unknown('column', strange, columns)}; where scores are a frame, groups are names of columns"
            )
        each = {name: _of_frame(devices, columns, name) for name in groups}
        return {
            owner: Memberships.of_columns({name: held[owner] for name, held in each.items()}, f"device {owner}")
            for owner in _of_frame(devices, columns, SCORE)
        }
    return as_held(groups, what="groups")


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
    if len(values) != len(owners):
        raise ValueError(f"columns {DEVICE!r} and {column!r} must be equally long, got {len(owners)} and {len(values)}")
    names = np.array([device_name(owner) for owner in owners.tolist()], dtype=str)
    order = np.argsort(names, kind="stable")
    each, starts = np.unique(names[order], return_index=True)
    note_alike(each.tolist(), "devices")
    if ID in columns:
        note_duplicates(as_array(frame[ID], f"column {ID!r}").tolist(), "the frame", names.tolist())
    return {str(name): part for name, part in zip(each, np.split(values[order], starts[1:]), strict=True)}


def _known(ids: Sequence[str]) -> str:
    return ", ".join(ids[:8]) + (", ..." if len(ids) > 8 else "")
