"""Saving and loading: every result class is a Struct that defines its own file, and this module reads and writes it.

JSON has no infinities, fractions or arrays, so a file has the words "inf" and "-inf", a number or "1/3", and lists. Of
a cost it has the means over the devices. A file cannot be checked against the scores, which it does not hold; but
whatever it says twice must agree (`contradictions` of each class).
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from fractions import Fraction
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self, get_args, get_origin

import msgspec
import numpy as np
from msgspec import Struct
from msgspec.structs import force_setattr
from numpy.typing import NDArray

from conformesh.common.names import unknown_name
from conformesh.files.atomic_writes import write_file
from conformesh.files.json_numbers import as_json_value, as_number, parse_json, restore_infinities
from conformesh.files.schemas import describe_error
from conformesh.results.certificate import Amount, Cost, Count
from conformesh.scores import Score, saved_score
from conformesh.scores.losses import Loss, get_loss

# Digits of a numerator or a denominator in a file. No level has more: a float64 as a decimal has at most about 330. A
# hostile file with millions of them would take long to read.
_MOST_DIGITS = 400


class _CostFields(Struct, frozen=True, forbid_unknown_fields=True):
    """A `Cost` in a file: means over the devices; of a mesh also of everything sent."""

    rounds: Count
    numbers_per_device: Amount
    bits_per_device: Amount
    sent: _CostFields | None = None

    def over(self, devices: int) -> Cost:
        """Return the cost in which every device has the mean."""
        means = self.numbers_per_device, self.bits_per_device
        numbers, bits = (np.broadcast_to(np.float64(mean), (devices,)) for mean in means)  # takes no room
        return Cost(self.rounds, numbers, bits, None if self.sent is None else self.sent.over(devices))


# What a field is, and what it is right after a file was read, before `_revive` has seen it.
if TYPE_CHECKING:
    SavedCost = Cost
    SavedScore = Score
else:
    SavedCost = _CostFields
    SavedScore = dict[str, Any]


class SavedResult(Struct, frozen=True, eq=False, forbid_unknown_fields=True):
    """What all results share: a table, a JSON object, and files. The tag of a class is the format of its file.

    A class has `columns`, its table; `contradictions`, what cannot be so in a file; and `devices`, how many there are.
    """

    noun: ClassVar[str] = "a result"  # what the class is called in errors
    derived: ClassVar[tuple[str, ...]] = ()  # properties that a file also has, for people who read it
    unsaved: ClassVar[tuple[str, ...]] = ()  # fields that no file has: what stays in memory

    def columns(self) -> dict[str, NDArray[Any]]:
        """Return the result as a table: an array for each column."""
        raise NotImplementedError

    def contradictions(self) -> Iterable[str]:
        """Return what cannot be so in this result."""
        return ()

    def to_frame(self) -> Any:
        """Return the table as a Polars frame; see `columns`."""
        import polars as pl

        return pl.DataFrame(self.columns())

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON object; infinity is the string "inf"."""
        return {
            "format": self.__struct_config__.tag,
            **_plain(self),
            **{name: _plain(getattr(self, name)) for name in self.derived},
        }

    def to_json(self) -> str:
        """Return the JSON object on one line."""
        return msgspec.json.encode(self.to_dict()).decode()

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the result as JSON, or its table as CSV, Parquet or NPZ, by the ending of the name; whole or not."""
        from conformesh.files.table_writers import (  # a node writes no tables
            TABLE_ENDINGS,
            check_file_ending,
            write_columns,
        )

        path = Path(path)
        if path.suffix:
            check_file_ending(path, (".json", *TABLE_ENDINGS))
        if path.suffix.lower() in TABLE_ENDINGS:
            write_columns(path, self.columns())
        else:
            write_file(path, msgspec.json.format(msgspec.json.encode(self.to_dict()), indent=2) + b"\n")

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Read what `save` wrote as JSON, and check that it fits together. Of the cost it knows the means."""
        return cls.from_dict(parse_json(Path(path).read_bytes(), str(path)), str(path))

    @classmethod
    def from_dict(cls, raw: Any, where: str = "result") -> Self:
        """Rebuild a result from its JSON object, and check that it fits together; `where` names it in an error."""
        wanted, got = cls.__struct_config__.tag, raw.get("format") if isinstance(raw, dict) else type(raw).__name__
        if got != wanted:
            old = "; files of other versions are not read: calibrate again" if "conformesh" in str(got) else ""
            raise ValueError(f"{where}: needed {cls.noun} ({wanted}), got {got!r:.60}{old}")
        try:
            if present := [name for name in cls.unsaved if name in raw]:
                raise ValueError(f"unknown field {present[0]!r}")
            told = {name: value for name, value in raw.items() if name not in cls.derived}
            found = msgspec.convert(told, cls, dec_hook=_decode, str_keys=True)
            _revive(found)
        except msgspec.ValidationError as error:
            raise ValueError(f"{where}: {_complaint(error, raw, cls)}") from None
        except (OverflowError, RecursionError, TypeError, ValueError) as error:
            raise ValueError(f"{where}: {error}") from None
        twice = (name for name in cls.derived if name in raw and raw[name] != _plain(getattr(found, name)))
        # Lazily: what is derived may rely on names that only now turn out to be unknown.
        for problem in chain(found.contradictions(), (f"{name} must follow from the rest" for name in twice)):
            raise ValueError(f"{where}: {problem}; it was changed or damaged since it was written: calibrate again")
        return found


class ArrayResult(SavedResult, frozen=True, eq=False):
    """A result that behaves like an array: its length, its entries, and `np.asarray`."""

    @property
    def array(self) -> NDArray[Any]:
        """The array that the result stands for."""
        raise NotImplementedError

    def __len__(self) -> int:
        return len(self.array)

    def __iter__(self) -> Iterator[Any]:
        return iter(self.array.tolist())

    def __getitem__(self, place: Any) -> Any:
        return self.array[place]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        return np.asarray(self.array, dtype) if copy is None else np.array(self.array, dtype, copy=copy)


def align_columns(lines: Sequence[Sequence[str]], left: int = 0) -> list[str]:
    """Return the rows of a table as text, columns flush right but for the first `left` ones.

    >>> align_columns([["name", "n"], ["a", "10"]], left=1)
    ['name   n', 'a     10']
    """
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    flush = [str.ljust] * left + [str.rjust] * (len(widths) - left)
    return [
        "  ".join(f(cell, wide) for f, cell, wide in zip(flush, row, widths, strict=True)).rstrip() for row in lines
    ]


# --- writing ----------------------------------------------------------------------------------------------------------


def _plain(value: Any) -> Any:
    """Return a value, however nested, as JSON can hold it."""
    if isinstance(value, Cost):
        return value.to_dict()
    if isinstance(value, Score | Loss) or _is_adaptation(value):
        return {"name": value.name, **_plain(value.options())}
    if isinstance(value, Struct):
        return {name: _plain(getattr(value, name)) for name in value.__struct_fields__ if name not in _unsaved(value)}
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: _plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, Mapping):
        return {_key(key): _plain(item) for key, item in value.items()}
    return _listed(value) if isinstance(value, np.ndarray | list | tuple) else _single(value)


def _is_adaptation(value: Any) -> bool:
    known = sys.modules.get("conformesh.scores.adapt")  # without it there is none: a node need not hold it in memory
    return known is not None and isinstance(value, known.Adaptation)


def _unsaved(value: Struct) -> tuple[str, ...]:
    found: tuple[str, ...] = getattr(type(value), "unsaved", ())
    return found


def _single(value: Any) -> Any:
    if isinstance(value, Fraction):
        near = float(value)
        return near if Fraction(repr(near)) == value else str(value)
    return as_json_value(value.item() if isinstance(value, np.generic) else value)


def _key(key: Any) -> str:
    return repr(float(key)) if isinstance(key, float) else str(key)


def _listed(value: Any) -> list[Any]:
    if not isinstance(value, np.ndarray):  # names of a million devices need no visit each
        return [*value] if {*map(type, value)} == {str} else [_plain(item) for item in value]
    whole = value.dtype.kind != "f" or bool(np.isfinite(value).all())
    rows: list[Any] = value.tolist()
    return rows if whole else [*as_json_value(rows)]


# --- reading ----------------------------------------------------------------------------------------------------------


def _decode(kind: Any, value: Any) -> Any:
    if kind is Fraction:
        return _fraction(value)
    if get_origin(kind) is np.ndarray:
        (dtype,) = get_args(get_args(kind)[1])
        if dtype is Any:  # whole numbers or others, as they come
            dtype = np.int64 if isinstance(value, list) and {*map(type, value)} == {int} else np.float64
        return _array(value, np.dtype(dtype))
    raise NotImplementedError(kind)


def _fraction(value: Any) -> Fraction:
    words = f"must be a number or a fraction such as '1/3', got {value!r:.60}"
    if isinstance(value, str) and re.fullmatch(rf"[0-9]{{1,{_MOST_DIGITS}}}(/[0-9]{{1,{_MOST_DIGITS}}})?", value):
        top, _, bottom = value.partition("/")
        if int(bottom or 1):
            return Fraction(int(top), int(bottom or 1))
    elif isinstance(value, int | float) and not isinstance(value, bool):
        return Fraction(repr(value))  # the decimal that was written
    raise ValueError(words)


def _array(value: Any, dtype: np.dtype[Any]) -> NDArray[Any]:
    if not isinstance(value, list):
        raise ValueError(f"must be a list, got {value!r:.60}")
    kinds, numbers = {*map(type, value)}, {float, int} if dtype.kind == "f" else {int}
    try:
        if list in kinds:  # a table: every row is checked like a single array
            return np.stack([_array(row, dtype) for row in value])
        if kinds <= (numbers if dtype.kind in "fi" else {bool}):
            return np.array(value, dtype=dtype)
        if dtype.kind == "f":
            return np.array([as_number(each, f"[{i}]") for i, each in enumerate(value)])
    except (OverflowError, TypeError, ValueError) as problem:
        raise ValueError(str(problem)) from None
    allowed = "whole numbers" if dtype.kind == "i" else "true or false"
    raise ValueError(f"must be {allowed}, got {value!r:.60}")


def _complaint(error: msgspec.ValidationError, raw: Any, kind: type) -> str:
    """Return what is wrong, and where in the file."""
    own = error.__cause__  # what a class or `_decode` refused, in its own words
    if own is None:
        return describe_error(str(error), raw, kind)
    path = str(error).partition(" - at `$")[2].removesuffix("`").lstrip(".")
    text = str(own)
    if text.startswith("["):
        return f"{path}{text}"
    return f"{path} {text}" if text.startswith("must ") else f"{path}: {text}" if path else text


def _revive(found: Any) -> None:
    """Turn names and means of a file back into scores, losses and costs, and words into infinities."""
    for name in found.__struct_fields__:
        value = getattr(found, name)
        if isinstance(value, _CostFields):
            force_setattr(found, name, value.over(found.devices))
        elif name == "score" and isinstance(value, dict):
            force_setattr(found, name, _named(value, "score", lambda name, options: saved_score(str(name), options)))
        elif name == "loss" and isinstance(value, dict):
            force_setattr(found, name, _named(value, "loss", lambda name, options: get_loss(str(name), **options)))
        elif name in ("options", "facts"):
            force_setattr(found, name, {key: restore_infinities(item) for key, item in value.items()})
        elif name == "answers":
            for answer in value:
                _revive(answer)
    guarantee = getattr(found, "guarantee", None)
    adapt = getattr(guarantee, "adapt", None)
    if guarantee is not None and adapt is not None:
        from conformesh.scores.adapt import ADAPTATIONS, get_adaptation

        if not isinstance(adapt, dict):
            raise ValueError(f"adapt: must be an object with a name, got {adapt!r:.60}")
        if (name := str(adapt.get("name"))) not in ADAPTATIONS:
            raise ValueError(
                f"adapt: {unknown_name('adaptation', name, ADAPTATIONS)}; if it is your own, set "
                f"conformesh.adapt.ADAPTATIONS[{name!r}] to its class before reading the file"
            )
        options = {key: restore_infinities(item) for key, item in adapt.items()}
        force_setattr(
            guarantee, "adapt", _named(options, "adapt", lambda name, options: get_adaptation(str(name), **options))
        )
    bounded = getattr(guarantee, "loss", None)
    if bounded is not None and isinstance(bounded.loss, dict):
        force_setattr(
            bounded, "loss", _named(bounded.loss, "loss", lambda name, options: get_loss(str(name), **options))
        )


def _named(raw: dict[str, Any], what: str, make: Any) -> Any:
    options = {**raw}
    try:
        return make(options.pop("name", None), options)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{what}: {error}") from None
