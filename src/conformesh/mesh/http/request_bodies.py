"""Parses the body of a request: an object, and tables of numbers in it."""

from __future__ import annotations

import json
from typing import Any, NoReturn

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from conformesh.common.names import unknown_name
from conformesh.files.json_numbers import restore_infinities


def parse_object(body: bytes) -> dict[str, Any]:
    """Return the object in a body; a ValueError says what is wrong with it."""

    def refuse(word: str) -> NoReturn:
        raise ValueError(f"JSON has no {word}; write infinity as the string 'inf', and drop rows with NaN")

    try:
        request = json.loads(body, parse_constant=refuse)
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"the body must be a JSON object, but it does not parse: {error}") from None
    except RecursionError:
        raise ValueError("the body must be a JSON object with a table of numbers, got lists too deep to read") from None
    if not isinstance(request, dict):
        raise ValueError(f"the body must be a JSON object, got {type(request).__name__}")
    return request


def refuse_unknown(request: dict[str, Any], kind: type[Struct]) -> None:
    """Refuse fields that a request does not have."""
    for name in request:
        if name not in kind.__struct_fields__:
            raise ValueError(unknown_name("field", name, kind.__struct_fields__))


def parse_table(name: str, rows: Any) -> NDArray[Any]:
    """Return a list of rows as an array of numbers; "inf" and "-inf" become infinities."""
    if not isinstance(rows, list):
        raise ValueError(f"{name!r} must be a list with a row for each example, got {type(rows).__name__}")
    try:
        table = np.asarray(rows)
        if table.dtype.kind == "U":
            table = np.asarray(restore_infinities(rows))
    except ValueError:
        raise ValueError(f"{name!r} must have rows of equal length, each a list of numbers") from None
    # NumPy takes true among numbers for 1
    if table.dtype.kind not in "fiu" or any(type(x) is bool for row in rows if isinstance(row, list) for x in row):
        raise ValueError(f"{name!r} must hold numbers only, in rows of equal length; infinity is the string 'inf'")
    return table
