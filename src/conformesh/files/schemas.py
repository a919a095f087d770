"""Validation of files against msgspec Structs, with errors that name the file, the field, and what is allowed."""

from __future__ import annotations

import re
from dataclasses import is_dataclass
from types import UnionType
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

import msgspec

from conformesh.common.names import unknown_name
from conformesh.files.json_numbers import INFINITIES

T = TypeVar("T")
if TYPE_CHECKING:
    Number = float
else:
    Number = float | Literal["inf", "-inf"]  # a number of JSON, see json_numbers; the Struct replaces the words

_WORDS = {
    "int": "a whole number",
    "float": "a number",
    "str": "text",
    "bool": "true or false",
    "array": "a list",
    "object": "an object",
    "null": "nothing",
}
_SIGNS = {">=": "at least", "<=": "at most", ">": "more than", "<": "less than"}


def validate(raw: Any, kind: type[T], where: str) -> T:
    """Return `raw`, as read from a file, as the Struct or dataclass it must be, or say which field is wrong and how.

    >>> class Point(msgspec.Struct):
    ...     x: float
    >>> validate({"x": "left"}, Point, "points.toml")
    Traceback (most recent call last):
    ValueError: points.toml: x must be a number, got 'left'
    """
    try:
        return msgspec.convert(raw, kind)
    except msgspec.ValidationError as error:
        own = error.__cause__  # what the type itself refused, in its own words
        raise ValueError(f"{where}: {own or describe_error(str(error), raw, kind)}") from None


def describe_error(message: str, raw: Any, kind: Any) -> str:
    """Return what a message of msgspec says of `raw`, which should have been a `kind`, in words for users."""
    what, _, place = message.partition(" - at `$")
    path = place.removesuffix("`").lstrip(".")
    if found := re.fullmatch(r"Object (missing required|contains unknown) field `(.*)`", what):
        name = f"{path}.{found[2]}" if path else found[2]
        table = _kind_at(kind, raw, path)
        if found[1].startswith("missing"):
            return f"it lacks {name}{_meaning(table, found[2])}"
        known = [name for k in _parts(table) for name in getattr(k, "__struct_fields__", ())]  # it may also be None
        return (f"{path}: " if path else "") + unknown_name("field", found[2], known)
    got, needed = _at(raw, path), what
    words = _choices(_kind_at(kind, raw, path))
    if {*words} == {*INFINITIES}:
        needed = "a number, 'inf' or '-inf'"
    elif what.startswith("Invalid enum value"):
        needed = " or ".join(map(repr, words)) or "one of the words it knows"
    elif what.startswith("Invalid value"):  # of the field that says which Struct it is
        above = path.rpartition(".")[0]
        needed = _tags(_kind_at(kind, raw, above, chosen=False))
    elif what.startswith("Expected `str` of length >= 1"):
        needed = "text that is not empty"
    elif found := re.match(r"Expected `(.*?)`(?: of length (>=|<=)?\s?(\d+))?(?: ([<>]=?) (\S+))?", what):
        names, fewer, entries, sign, bound = found.groups()
        needed = " or ".join(dict.fromkeys(_WORDS.get(name, name) for name in names.split(" | ")))
        needed += f" of {_SIGNS.get(fewer, '')} {entries} entries".replace("  ", " ") if entries else ""
        needed += f", {_SIGNS[sign]} {float(bound):g}" if sign else ""
    return f"{path or 'the whole'} must be {needed}, got {_shortened(got)}"


def _steps(path: str) -> list[str]:
    return re.findall(r"[^.\[\]]+|\.\.\.", path)


def _at(raw: Any, path: str) -> Any:
    """Return what stands at a path; where the path does not say which entry of a table, the table."""
    for step in _steps(path):
        if step == "..." or not isinstance(raw, dict | list | tuple):
            return raw
        raw = raw[step] if isinstance(raw, dict) else raw[int(step)]
    return raw


def _kind_at(kind: Any, raw: Any, path: str, chosen: bool = True) -> Any:
    """Return the type of what stands at a path; of several Structs the one that is meant, if it is to be chosen."""
    steps = _steps(path)
    for i, step in enumerate(steps):
        structs = [k for k in _parts(kind) if hasattr(k, "__struct_fields__") or is_dataclass(k)]
        if step.isdigit() or step == "...":
            inside = [get_args(k) for k in _parts(kind) if get_origin(k) in (list, tuple, dict)]
            kind = next(k for k in reversed(inside[0]) if k is not ...)
        elif structs:
            names = [get_type_hints(k, include_extras=True) for k in structs]
            kind = next((hints[step] for hints in names if step in hints), structs[0])
        if chosen or i + 1 < len(steps):
            here = _at(raw, ".".join(steps[: i + 1]))
            kind = next((k for k in _parts(kind) if _is_meant(k, here)), kind)
    return kind


def _parts(kind: Any) -> list[Any]:
    """Return a type, and the members of what may be several."""
    if get_origin(kind) is Annotated:
        return _parts(get_args(kind)[0])
    return [part for k in get_args(kind) for part in _parts(k)] if get_origin(kind) in (Union, UnionType) else [kind]


def _is_meant(kind: Any, raw: Any) -> bool:
    config = getattr(kind, "__struct_config__", None)
    return (
        config is not None
        and config.tag is not None
        and isinstance(raw, dict)
        and raw.get(config.tag_field) == config.tag
    )


def _tags(kind: Any) -> str:
    return " or ".join(repr(k.__struct_config__.tag) for k in _parts(kind) if hasattr(k, "__struct_config__"))


def _meaning(table: Any, name: str) -> str:
    """Return what a missing field says, where its type tells."""
    hints = [get_type_hints(k, include_extras=True).get(name) for k in _parts(table) if hasattr(k, "__struct_fields__")]
    metas = [meta for hint in hints for meta in get_args(hint) if isinstance(meta, msgspec.Meta)]
    said = [meta.description for meta in metas if meta.description]
    return f", {said[0]}" if said else f", {_tags(table)}" if hints == [None] * len(hints) else ""


def _choices(kind: Any) -> list[str]:
    """Return the words that a field may be."""
    return [word for k in _parts(kind) if get_origin(k) is Literal for word in get_args(k)]


def _shortened(value: Any, most: int = 60) -> str:
    text = repr(value)
    return text if len(text) <= most else f"{text[: most - 3]}..."
