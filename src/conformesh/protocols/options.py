"""Options of methods: dataclass fields that carry their own help, from which the command line is made."""

from __future__ import annotations

import types
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import Field, field
from typing import Any, Literal, Union, get_args, get_origin

import msgspec
import numpy as np

_WORDS = {bool: "true or false", int: "a whole number", float: "a number", str: "text", types.NoneType: "None"}
_TRUTH = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}  # as words of a command line


def option(default: Any, help: str, choices: Callable[[], Iterable[str]] | None = None) -> Any:
    """Declare a dataclass field with its default and one line of help; `choices` lists the names of a table."""
    return field(default=default, metadata={"help": help, **({} if choices is None else {"choices": choices})})


def option_choices(given: Field[Any], hint: Any) -> tuple[str, ...]:
    """Return the words that an option with this type takes, where they can be listed."""
    if "choices" in given.metadata:
        return tuple(given.metadata["choices"]())
    return tuple(map(str, get_args(hint))) if get_origin(hint) is Literal else ()


def check_option_choice(name: str, value: str, known: Iterable[str]) -> None:
    """Refuse a word that is none of the known ones."""
    if value not in known:
        raise ValueError(f"{name} must be {' or '.join(map(repr, known))}, got {value!r}")


def convert_option(value: Any, hint: Any, what: str, *, is_text: bool = False) -> Any:
    """Return a value in the type of an option, or say what is needed; 10 may stand for 10.0 and the other way round.

    The only converter of options: those of methods in Python, in ``device.toml`` and, with `is_text`, those of the
    command line, where everything is text.

    >>> convert_option(10, float, "kappa"), convert_option("10", int, "rounds", is_text=True)
    (10.0, 10)
    >>> convert_option("10", int, "rounds")
    Traceback (most recent call last):
    ValueError: rounds must be a whole number, got '10'
    """
    if is_text:
        return _option_from_text(value, without_none(hint), what)
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


def _option_from_text(text: Any, hint: Any, what: str) -> Any:
    """Read a word of the command line, or several for a tuple; a word that cannot be read is refused as text."""
    if get_origin(hint) is tuple:
        return tuple(_option_from_text(one, kind, what) for one, kind in zip(text, get_args(hint), strict=True))
    value = text
    if isinstance(text, str) and hint is bool:
        value = _TRUTH.get(text.lower(), text)
    elif isinstance(text, str) and hint in (int, float):
        with suppress(ValueError):
            value = hint(text)
    # An object, such as a dictionary of weights, has no text form: the function that uses it checks what was given.
    return convert_option(value, hint, what) if _is_plain(hint) else value


def without_none(hint: Any) -> Any:
    """Return the type that an optional value has when it is given; text where it may be of several types.

    >>> without_none(int | None), without_none(float | str)
    (<class 'int'>, <class 'str'>)
    """
    if get_origin(hint) in (Union, types.UnionType):
        given = [kind for kind in get_args(hint) if kind is not types.NoneType]
        return given[0] if len(given) == 1 else str
    return hint


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
