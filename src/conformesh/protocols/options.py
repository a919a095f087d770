"""Options of methods: dataclass fields that carry their own help, from which the command line is made."""

from __future__ import annotations

from dataclasses import field
from typing import Any


def option(default: Any, help: str) -> Any:
    """Declare a dataclass field with its default and one line of help."""
    return field(default=default, metadata={"help": help})


def check_choice(name: str, value: str, known: tuple[str, ...]) -> None:
    """Refuse a word that is none of the known ones."""
    if value not in known:
        raise ValueError(f"{name} must be {' or '.join(map(repr, known))}, got {value!r}")
