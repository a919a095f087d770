"""JSON with infinities, for files and for HTTP: an infinite number is the word "inf" or "-inf"; NaN is refused.

Python's float() undoes the words. They stand for numbers only where a number is expected: a device may be named "inf".
"""

from __future__ import annotations

import json
import math
import re
from typing import Any

import msgspec

INFINITIES = {"inf": math.inf, "-inf": -math.inf}


def as_json_value(value: Any) -> Any:
    """Return a value, however nested, as JSON can hold it; tuples become lists.

    >>> as_json_value({"threshold": math.inf, "pair": (0.5, -math.inf)})
    {'threshold': 'inf', 'pair': [0.5, '-inf']}
    """
    if isinstance(value, dict):
        return {key: as_json_value(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [as_json_value(item) for item in value]
    if not isinstance(value, float) or math.isfinite(value):
        return value
    if math.isnan(value):
        raise ValueError("JSON has no NaN, and neither has a result; got one where a number was needed")
    return "inf" if value > 0 else "-inf"


def dump_json(value: Any, indent: int | None = None) -> str:
    """Return a value as JSON text: on one line, or indented and with a line end as a file wants it."""
    text = json.dumps(as_json_value(value), allow_nan=False, indent=indent)
    return text if indent is None else text + "\n"


def parse_json(text: str | bytes, where: str) -> Any:
    """Return what a JSON text says, infinities still as words; `where` names the source in an error.

    >>> parse_json('{"alpha": 0.1', "result.json")
    Traceback (most recent call last):
    ValueError: result.json: needed JSON, but it ends too early
    """
    try:
        return msgspec.json.decode(text)
    except msgspec.DecodeError as error:
        place = re.search(r"\(byte (\d+)\)", str(error))
        what = "it ends too early" if "truncated" in str(error) else "it does not parse"
        raise ValueError(f"{where}: needed JSON, but {what}" + (f" at byte {place[1]}" if place else "")) from None
    except UnicodeError:
        raise ValueError(f"{where}: needed JSON in UTF-8, but it is not text in UTF-8") from None
    except RecursionError:
        raise ValueError(f"{where}: needed JSON, but its lists are too deep to read") from None


def as_number(value: Any, what: str = "a value") -> float:
    """Return a number read from JSON, which may be the word "inf" or "-inf".

    >>> as_number(0.5), as_number("-inf")
    (0.5, -inf)
    """
    if isinstance(value, str) and value in INFINITIES:
        return INFINITIES[value]
    # A bool is an int in Python, but true is no number in JSON.
    if isinstance(value, bool) or not isinstance(value, int | float) or math.isnan(value):
        raise ValueError(f"{what} must be a number, 'inf' or '-inf', got {value!r}")
    return float(value)


def restore_infinities(value: Any) -> Any:
    """Return nested lists of numbers with the words for infinity replaced; other words stay as they are."""
    if isinstance(value, list):
        return [restore_infinities(item) for item in value]
    return INFINITIES.get(value, value) if isinstance(value, str) else value
