"""Memberships: which groups each row belongs to, in whichever form users have it.

One label per row; a list of labels per row; several columns of labels, whose values are groups ``column=value``; or a
table of truth values with a row for each row and a column for each group. Groups may overlap; rows that lie in the same
groups form an *atom*.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from conformesh.common.arrays import as_array
from conformesh.common.names import natural_order

EVERYONE = "everyone"  # the group of all rows, which is always there where groups overlap
_SEPARATORS = ";|"  # between the groups of one cell of text
Atom = tuple[str, ...]


@dataclass(frozen=True, eq=False)
class Memberships:
    """Which groups rows belong to: row i to all of ``atoms[codes[i]]``.

    Attributes
    ----------
    atoms
        The sets of groups that occur, each in natural order.
    codes
        Which of them each row has.
    overlapping
        Whether a row may belong to several groups, or to none: not so where each has one label.
    """

    atoms: tuple[Atom, ...]
    codes: NDArray[np.int64]
    overlapping: bool

    def __len__(self) -> int:
        return len(self.codes)

    @classmethod
    def of(cls, given: Any, who: str) -> Memberships:
        """Read the memberships of one device's rows, or of the rows of a table."""
        if isinstance(given, Memberships):
            return given
        names: Any = given if isinstance(given, Mapping) else getattr(given, "columns", None)
        if names is not None and not callable(names):
            return cls.of_columns({str(name): given[name] for name in names}, who)
        rows = given.to_list() if hasattr(given, "to_list") else given
        if _holds_lists(rows):
            return cls.of_lists(rows, who)
        labels = as_array(given, f"{who}, group labels")
        if labels.ndim == 2:
            return cls.of_columns({str(j): labels[:, j] for j in range(labels.shape[1])}, who)
        if labels.ndim != 1:
            raise ValueError(f"{who}: groups must be a label, a list or a row of truth values each, got {labels.shape}")
        _refuse_missing(labels, who)
        names = [*map(str, labels.tolist())]
        place = {name: i for i, name in enumerate(dict.fromkeys(names))}
        codes = np.fromiter(map(place.__getitem__, names), np.int64, len(names))
        return cls(tuple((name,) for name in place), codes, overlapping=False)

    @classmethod
    def of_lists(cls, rows: Iterable[Any], who: str) -> Memberships:
        """Read a list of group names for every row; it may be empty."""
        sets = []
        for i, row in enumerate(rows):
            if isinstance(row, str) or not isinstance(row, Iterable):
                raise ValueError(f"{who}: groups of row {i} must be a list as those of other rows are, got {row!r}")
            sets.append(natural_order({str(name) for name in row}))
        return cls._distinct(sets, overlapping=True)

    @classmethod
    def of_columns(cls, columns: Mapping[str, Any], who: str) -> Memberships:
        """Read several columns: truth values say who is in the group of that name, labels name ``column=value``."""
        lists: list[list[str]] = []
        for name, given in columns.items():
            values = as_array(given, f"{who}, group {name}")
            if not lists:
                lists = [[] for _ in range(len(values))]
            if len(values) != len(lists):
                raise ValueError(f"{who}: columns of groups must be equally long, {name!r} has {len(values)} rows")
            is_in = _truth(values)
            for row, value in zip(lists, values.tolist() if is_in is None else is_in.tolist(), strict=True):
                if is_in is not None:
                    row.extend([name] * value)
                elif not _is_missing(value) and str(value).strip():
                    row.append(f"{name}={value}")
        return cls.of_lists(lists, who)

    @classmethod
    def of_cells(cls, columns: Mapping[str, Sequence[str]]) -> Memberships:
        """Read columns of text, whose cells may list several groups apart by ``;`` or ``|``."""
        alone = len(columns) == 1
        rows = zip(*columns.values(), strict=True)
        sets = [
            natural_order(
                {
                    label if alone else f"{name}={label}"
                    for name, cell in zip(columns, row, strict=True)
                    for label in _labels_in(cell)
                }
            )
            for row in rows
        ]
        several = any(mark in cell for cells in columns.values() for cell in cells for mark in _SEPARATORS)
        return cls._distinct(sets, overlapping=not alone or several)

    @classmethod
    def _distinct(cls, sets: Sequence[Atom], overlapping: bool) -> Memberships:
        place: dict[Atom, int] = {}
        codes = np.fromiter((place.setdefault(one, len(place)) for one in sets), np.int64, len(sets))
        return cls((*place,), codes, overlapping)

    @classmethod
    def concatenate(cls, parts: Sequence[Memberships]) -> Memberships:
        """Return the memberships of all rows, those of one part after those of the other."""
        if len(parts) == 1:
            return parts[0]
        place: dict[Atom, int] = {}
        codes = [np.empty(0, dtype=np.int64)]
        for part in parts:
            own = [place.setdefault(atom, len(place)) for atom in part.atoms]
            codes.append(np.array(own, dtype=np.int64)[part.codes])
        return cls((*place,), np.concatenate(codes), any(part.overlapping for part in parts))

    def take(self, rows: Any) -> Memberships:
        """Return the memberships of some rows."""
        return Memberships(self.atoms, self.codes[rows], self.overlapping)

    def is_in(self, group: str) -> NDArray[np.bool_]:
        """Mark the rows of a group; all are in `EVERYONE`."""
        within = np.array([group == EVERYONE or group in atom for atom in self.atoms], dtype=bool)
        return within[self.codes] if len(within) else np.zeros(0, dtype=bool)


def atom_name(atom: Atom) -> str:
    """Return what an atom is called.

    >>> atom_name(("night", "north")), atom_name(())
    ('night & north', 'only everyone')
    """
    return " & ".join(atom) or f"only {EVERYONE}"


def _labels_in(cell: str) -> list[str]:
    for mark in _SEPARATORS[1:]:
        cell = cell.replace(mark, _SEPARATORS[0])
    return [label.strip() for label in cell.split(_SEPARATORS[0]) if label.strip()]


def _holds_lists(rows: Any) -> bool:
    """Tell whether some row is itself a list, set or array of labels; a table of numbers is not meant."""
    if isinstance(rows, np.ndarray) and rows.dtype != object:
        return False
    return isinstance(rows, Sequence | np.ndarray) and any(
        isinstance(row, list | tuple | set | frozenset | np.ndarray) and not _is_row_of_truth(row) for row in rows
    )


def _is_row_of_truth(row: Any) -> bool:
    return not isinstance(row, set | frozenset) and len(row) > 0 and all(isinstance(c, bool | np.bool_) for c in row)


def _truth(values: NDArray[Any]) -> NDArray[np.bool_] | None:
    """Return truth values, also where they are written as 0 and 1; None where a column holds labels."""
    if values.dtype.kind == "b":
        return values
    if values.dtype.kind in "iuf" and np.isin(values, (0, 1)).all():
        return values.astype(bool)
    return None


def _is_missing(label: Any) -> bool:
    return label is None or label != label  # noqa: PLR0124 - NaN


def _refuse_missing(labels: NDArray[Any], who: str) -> None:
    if labels.dtype.kind in "iubUS":  # which have no missing values
        return
    cells = labels.tolist()
    if gaps := [i for i, label in enumerate(cells) if _is_missing(label)]:
        raise ValueError(
            f"{who}: group label {gaps[0]} is missing ({cells[gaps[0]]}); drop these scores or name their group"
        )
