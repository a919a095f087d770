"""Partitions: ways to spread labelled examples over devices.

A partition is a function from a `_Spread` to the device of each row, and a line in `PARTITIONS`.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from conformesh.common.array_types import Ints
from conformesh.common.names import unknown_name
from conformesh.common.random_streams import Rng, random_stream, resolve_seed


class _Spread(NamedTuple):
    """What a partition starts from."""

    labels: Ints
    devices: int
    classes: int
    concentration: float
    rng: np.random.Generator


class _Partition(NamedTuple):
    """A way to spread rows: the function, and one line for help pages."""

    spread: Callable[[_Spread], Ints]
    summary: str


def partition(
    labels: ArrayLike,
    devices: int,
    kind: str = "class",
    *,
    seed: int = 0,
    rng: Rng | None = None,
    concentration: float = 0.5,
    classes: int | None = None,
) -> Ints:
    """Return the device of each row, 0 to devices - 1.

    Parameters
    ----------
    labels
        The class of each row, 0 to classes - 1.
    devices
        How many devices share the rows.
    kind
        A key of `PARTITIONS`.
    seed, rng
        Of what is drawn: a seed, or a generator to draw it from; "class" draws nothing.
    concentration
        Of the Dirichlet draws; smaller is more uneven.
    classes
        How many classes there are; by default one more than the largest label.

    Examples
    --------
    >>> partition([0, 1, 2, 3, 4], devices=2)
    array([0, 0, 1, 1, 1])
    """
    if kind not in PARTITIONS:
        raise ValueError(unknown_name("partition", kind, PARTITIONS))
    checked = _labels(labels)
    number = _at_least("devices", devices, 1)
    found = int(checked.max()) + 1
    known = found if classes is None else _at_least("classes", classes, 1)
    if found > known:
        raise ValueError(f"partition needs labels between 0 and {known - 1} for {known} classes, got {found - 1}")
    if not 0.0 < concentration < np.inf:
        raise ValueError(f"concentration must be a positive finite number, got {concentration}")
    drawing = random_stream(resolve_seed(rng, seed), f"partition {kind}")
    return PARTITIONS[kind].spread(_Spread(checked, number, known, concentration, drawing))


def split_calibration_rows(home: Ints, rows: int, *, seed: int = 0, rng: Rng | None = None) -> tuple[Ints, Ints]:
    """Draw so many rows to calibrate with, and return them and the others, both in ascending order.

    Every device gives the same share of its rows, to within one row, chosen at random, so that the rows of a device
    stay exchangeable.

    Examples
    --------
    >>> calibration, test = split_calibration_rows(partition([0, 1] * 50, devices=2), 10)
    >>> len(calibration), len(test), (calibration % 2).sum()
    (10, 90, np.int64(5))
    """
    if not 1 <= rows <= len(home):
        raise ValueError(f"calibration needs 1 to {len(home)} rows, got {rows}")
    drawn = random_stream(resolve_seed(rng, seed), "calibration rows").permutation(len(home))
    drawn = drawn[np.argsort(home[drawn], kind="stable")]  # device by device, each in random order
    sizes = np.bincount(home)
    place = np.arange(len(home)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    turn = np.argsort((place + 0.5) / np.repeat(sizes, sizes), kind="stable")
    return np.sort(drawn[turn[:rows]]), np.sort(drawn[turn[rows:]])


def _labels(labels: ArrayLike) -> Ints:
    array = np.asarray(labels)
    if array.ndim != 1 or not array.size:
        raise ValueError(f"partition needs labels of shape (rows,) and at least one row, got shape {array.shape}")
    if array.dtype.kind not in "iu":
        raise TypeError(f"partition needs integer labels, got dtype {array.dtype}; use labels.astype(int)")
    if array.min() < 0:
        raise ValueError(f"partition needs labels of 0 or more, got {array.min()}")
    return array.astype(np.int64)


def _at_least(what: str, number: int, least: int) -> int:
    try:
        whole = operator.index(number)
    except TypeError:
        raise TypeError(f"{what} must be an integer, got {number!r}") from None
    if whole < least:
        raise ValueError(f"{what} must be at least {least}, got {whole}")
    return whole


def _by_class(given: _Spread) -> Ints:
    """Give every device a block of consecutive classes; where blocks differ in size, the last devices have more."""
    if given.devices > given.classes:
        raise ValueError(
            f"partition 'class' gives every device a class of its own: {given.devices} devices need as many classes, "
            f"got {given.classes}; use fewer devices, or 'dirichlet' or 'iid'"
        )
    size, more = divmod(given.classes, given.devices)
    sizes = np.full(given.devices, size)
    sizes[given.devices - more :] += 1
    home: Ints = np.repeat(np.arange(given.devices), sizes)[given.labels]
    return home


def _dirichlet(given: _Spread) -> Ints:
    """Deal out every class by shares of its own, drawn from a symmetric Dirichlet distribution."""
    shares = given.rng.dirichlet(np.full(given.devices, given.concentration), size=given.classes)
    home = np.empty(len(given.labels), np.int64)
    for label, share in enumerate(shares):
        of_label = np.flatnonzero(given.labels == label)
        home[of_label] = given.rng.choice(given.devices, size=len(of_label), p=share)
    return home


def _iid(given: _Spread) -> Ints:
    """Deal out shuffled rows in turn, so that sizes differ by at most one."""
    rows = len(given.labels)
    if given.devices > rows:
        raise ValueError(
            f"partition 'iid' gives every device a row: {given.devices} devices need as many rows, got {rows}"
        )
    home = np.empty(rows, np.int64)
    home[given.rng.permutation(rows)] = np.arange(rows) % given.devices
    return home


PARTITIONS: dict[str, _Partition] = {
    "class": _Partition(_by_class, "every device holds a block of consecutive classes"),
    "dirichlet": _Partition(_dirichlet, "every class is dealt out by random shares; a small concentration is uneven"),
    "iid": _Partition(_iid, "every device holds as many rows, drawn at random"),
}
