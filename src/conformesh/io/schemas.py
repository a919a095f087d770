"""What a file must look like, as msgspec Structs: checked here, refused in words that name the file and the field."""

from __future__ import annotations

import re
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

import msgspec

from conformesh.io.json_numbers import INFINITIES

T = TypeVar("T")
Number = float | Literal["inf", "-inf"]  # a number of JSON, see json_numbers

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


def checked(raw: Any, kind: type[T], where: str) -> T:
    """Return `raw`, as read from a file, as the Struct it must be, or say which field is wrong and how.

    >>> class Point(msgspec.Struct):
    ...     x: float
    >>> checked({"x": "left"}, Point, "points.toml")
    Traceback (most recent call last):
    ValueError: points.toml: x must be a number, got 'left'
    """
    try:
        return msgspec.convert(raw, kind)
    except msgspec.ValidationError as error:
        raise ValueError(f"{where}: {_in_words(str(error), raw, kind)}") from None


def _in_words(message: str, raw: Any, kind: Any) -> str:
    what, _, place = message.partition(" - at `$")
    path = place.removesuffix("`").lstrip(".")
    if found := re.fullmatch(r"Object (missing required|contains unknown) field `(.*)`", what):
        name = f"{path}.{found[2]}" if path else found[2]
        return f"it lacks {name}" if found[1].startswith("missing") else f"it has an unknown field {name}"
    got, needed = _at(raw, path), what
    words = _choices(kind, path)
    if {*words} == {*INFINITIES}:
        needed = "a number, 'inf' or '-inf'"
    elif what.startswith("Invalid enum value"):
        needed = " or ".join(map(repr, words)) or "one of the words it knows"
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
        if step == "..." or not isinstance(raw, dict | list):
            return raw
        raw = raw[int(step)] if isinstance(raw, list) else raw[step]
    return raw


def _choices(kind: Any, path: str) -> list[str]:
    """Return the words that the field at a path may be."""
    for step in _steps(path):
        if step.isdigit() or step == "...":
            kind = get_args(kind)[-1]
        else:
            kind = next(
                (get_type_hints(k)[step] for k in (kind, *get_args(kind)) if hasattr(k, "__struct_fields__")), kind
            )
    return [word for k in (kind, *get_args(kind)) if get_origin(k) is Literal for word in get_args(k)]


def _shortened(value: Any, most: int = 60) -> str:
    text = repr(value)
    return text if len(text) <= most else f"{text[: most - 3]}..."
