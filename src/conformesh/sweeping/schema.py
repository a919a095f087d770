"""Checks of a configuration: every wrong key is an error that says where it stands, what was needed and what came."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from conformesh.names import unknown


@dataclass(frozen=True)
class Kind:
    """What a value must be: words for an error, and a function that returns the value or raises `ValueError`."""

    words: str
    read: Callable[[Any], Any]


@dataclass(frozen=True)
class Key:
    """A key of a table: its kind, its meaning for the docs, and what holds where it is left out."""

    kind: Kind
    help: str
    default: Any = None
    needed: bool = False


def read_keys(given: Any, keys: Mapping[str, Key], where: str) -> dict[str, Any]:
    """Return a value for every key of a table, or say what is wrong with the first that cannot be used."""
    if not isinstance(given, Mapping):
        raise ValueError(f"{where}: must be a table of keys and values, got {given!r}")
    for key in given:
        if key not in keys:
            raise ValueError(f"{where}: {unknown('key', str(key), keys)}")
    missing = [name for name, key in keys.items() if key.needed and name not in given]
    if missing:
        raise ValueError(f"{where}: lacks {missing[0]!r}, {keys[missing[0]].help}")
    return {
        name: _read(given[name], key, f"{where}: {name}") if name in given else key.default
        for name, key in keys.items()
    }


def _read(value: Any, key: Key, where: str) -> Any:
    try:
        return key.kind.read(value)
    except _WrongKind:
        raise ValueError(f"{where} must be {key.kind.words}, got {value!r}") from None
    except ValueError as problem:
        raise ValueError(f"{where}: {problem}") from None


class _WrongKind(ValueError):  # noqa: N818 - never leaves this file
    """A value of another kind: the words of the kind are enough to say so."""


def _needs(holds: bool) -> None:
    if not holds:
        raise _WrongKind


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def whole(least: int) -> Kind:
    """Return the kind of whole numbers from `least` on."""

    def read(value: Any) -> int:
        _needs(_is_whole(value) and value >= least)
        return int(value)

    return Kind(f"a whole number of at least {least}", read)


def wholes(least: int) -> Kind:
    """Return the kind of one whole number, or a list of different ones."""

    def read(value: Any) -> tuple[int, ...]:
        listed = value if isinstance(value, list | tuple) else [value]
        _needs(len(listed) > 0 and all(_is_whole(one) and one >= least for one in listed))
        _needs(len({*listed}) == len(listed))
        return tuple(listed)

    return Kind(f"a whole number of at least {least}, or a list of different ones", read)


def number(words: str, holds: Callable[[float], bool]) -> Kind:
    """Return the kind of numbers for which something holds."""

    def read(value: Any) -> float:
        _needs(isinstance(value, int | float) and not isinstance(value, bool) and holds(float(value)))
        return float(value)

    return Kind(words, read)


def choice(*words: str) -> Kind:
    """Return the kind that is one of these words."""

    def read(value: Any) -> str:
        _needs(value in words)
        return str(value)

    return Kind(" or ".join(map(repr, words)), read)


def _text(value: Any) -> str:
    _needs(isinstance(value, str) and bool(value))
    return str(value)


def _flag(value: Any) -> bool:
    _needs(isinstance(value, bool))
    return bool(value)


def _table(value: Any) -> dict[str, Any]:
    _needs(isinstance(value, Mapping))
    return {str(name): frozen(inner) for name, inner in value.items()}


def _grid(value: Any) -> dict[str, tuple[Any, ...]]:
    _needs(isinstance(value, Mapping) and all(isinstance(v, list | tuple) and len(v) > 0 for v in value.values()))
    return {str(name): tuple(map(frozen, values)) for name, values in value.items()}


def _tables(value: Any) -> list[Any]:
    _needs(isinstance(value, list | tuple) and len(value) > 0)
    return [*value]


def frozen(value: Any) -> Any:
    """Return a value with tuples for lists, as options hold them."""
    return tuple(map(frozen, value)) if isinstance(value, list | tuple) else value


TEXT = Kind("a text in quotes", _text)
FLAG = Kind("true or false", _flag)
TABLE = Kind("a table of options", _table)
GRID = Kind("a table with a list of values for each option", _grid)
TABLES = Kind("a list of tables, at least one", _tables)
