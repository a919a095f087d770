"""Options of methods: dataclass fields that carry their own help, from which the command line is made."""

from __future__ import annotations

import types
from collections.abc import Callable, Iterable
from dataclasses import Field, field
from typing import Any, Literal, Union, get_args, get_origin

import msgspec
import numpy as np

_WORDS = {bool: "true or false", int: "a whole number", float: "a number", str: "text", types.NoneType: "None"}


def option(default: Any, help: str, choices: Callable[[], Iterable[str]] | None = None) -> Any:
    """Declare a dataclass field with its default and one line of help; `choices` lists the names of a table."""
    return field(default=default, metadata={"help": help, **({} if choices is None else {"choices": choices})})


def choices_of(given: Field[Any], hint: Any) -> tuple[str, ...]:
    """Return the words that an option with this type takes, where they can be listed."""
    if "choices" in given.metadata:
        return tuple(given.metadata["choices"]())
    return tuple(map(str, get_args(hint))) if get_origin(hint) is Literal else ()


def check_choice(name: str, value: str, known: Iterable[str]) -> None:
    """Refuse a word that is none of the known ones."""
    if value not in known:
        raise ValueError(f"{name} must be {' or '.join(map(repr, known))}, got {value!r}")


def convert_option(value: Any, hint: Any, what: str) -> Any:
    """Return a value in the type of an option, or say what is needed; 10 may stand for 10.0 and the other way round.

    >>> convert_option(10, float, "kappa")
    10.0
    >>> convert_option("10", int, "rounds")
    Traceback (most recent call last):
    ValueError: rounds must be a whole number, got '10'
    """
    kinds = get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)
    objects = tuple(_class_of(kind) for kind in kinds if not _is_plain(kind))
    if objects and isinstance(value, objects):
        return value
    plain = [kind for kind in kinds if _is_plain(kind)]
    raw = value.tolist() if isinstance(value, np.generic | np.ndarray) else value
    if isinstance(raw, float) and raw.is_integer() and int in plain and float not in plain:
        raw = int(raw)  # 10.0 for 10, as a table or a division gives it
    try:
        return msgspec.convert(raw, Union[tuple(plain)])  # noqa: UP007 - made here
    except msgspec.ValidationError:
        needed = " or ".join(map(_needed, kinds))
        raise ValueError(f"{what} must be {needed}, got {value!r}") from None


def parse_option(text: Any, hint: Any, what: str) -> Any:
    """Turn text into what an option holds: a bool, an int, a float, one of several words, a tuple of these, or text.

    >>> parse_option("10", int, "rounds")
    10
    """
    if get_origin(hint) is tuple:
        return tuple(parse_option(one, wanted, what) for one, wanted in zip(text, get_args(hint), strict=True))
    if get_origin(hint) is Literal and text not in (allowed := get_args(hint)):
        raise ValueError(f"{what} must be {' or '.join(map(str, allowed))}, got {text!r}")
    if hint is bool:
        if text.lower() in ("true", "yes", "1", "false", "no", "0"):
            return text.lower() in ("true", "yes", "1")
        raise ValueError(f"{what} must be true or false, got {text!r}")
    if hint not in (int, float):
        return text
    try:
        return hint(text)
    except ValueError:
        needed = "an integer" if hint is int else "a number"
        raise ValueError(f"{what} must be {needed}, got {text!r}") from None


def _is_plain(kind: Any) -> bool:
    return kind in _WORDS or get_origin(kind) in (Literal, tuple)


def _needed(kind: Any) -> str:
    if get_origin(kind) is Literal:
        return " or ".join(map(repr, get_args(kind)))
    if get_origin(kind) is tuple:
        each = dict.fromkeys(_WORDS[one] for one in get_args(kind))
        return f"{len(get_args(kind))} values, {' and '.join(each)} each"
    return _WORDS[kind] if kind in _WORDS else _class_of(kind).__name__


def _class_of(kind: Any) -> type:
    """Return the class behind a type: of ``NDArray[...]``, which from NumPy 2.5 on is an alias with a name, ndarray."""
    found = get_origin(kind) or kind
    while hasattr(found, "__value__"):
        found = get_origin(found.__value__) or found.__value__
    return found  # type: ignore[no-any-return]
