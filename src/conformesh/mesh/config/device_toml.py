"""``device.toml``: one readable file with everything a device of a mesh knows."""

from __future__ import annotations

import json
import tomllib
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any

from conformesh.io.files import write_file
from conformesh.mesh.config.device_config import DeviceConfig, Neighbour
from conformesh.names import unknown

__all__ = ["FILE", "DeviceConfig", "Neighbour", "read_device", "write_device"]

FILE = "device.toml"
_TEXT, _TEXTS, _TABLE = "a text in quotes", "a list of texts", "a table"
_NUMBER, _WHOLE = "a number", "a whole number"
_PAIRS, _TEXT_TABLE, _BOOL = "a list of pairs of device names", "a table of texts", "true or false"
KINDS = {
    "mesh": _TEXT,
    "name": _TEXT,
    "listen": _TEXT,
    "method": _TEXT,
    "alpha": _TEXT,
    "score": _TEXT,
    "model": _TEXT,
    "on_lost": _TEXT,
    "quorum": _WHOLE,
    "scores": _TEXT,
    "patience": _NUMBER,
    "retry": _NUMBER,
    "insecure": _BOOL,
    "ca": _TEXT,
    "cert": _TEXT,
    "key": _TEXT,
    "revoked": _TEXTS,
    "devices": _TEXTS,
    "edges": _PAIRS,
    "options": _TABLE,
    "score_options": _TABLE,
    "endpoints": _TEXT_TABLE,
}
_SECTIONS: tuple[tuple[str, tuple[str, ...]], ...] = (  # the order and the comments of the file
    (
        "Who this device is and where it listens. The id is that of the mesh, the same on every device.",
        ("mesh", "name", "listen"),
    ),
    (
        "What the devices agree on: from here to on_lost and quorum, and [options], the same on every device.",
        ("method", "alpha", "score", "model", "on_lost", "quorum"),
    ),
    ("This device's own scores, a file beside this one; the file stays here.", ("scores",)),
    ("Seconds to wait for a neighbour before giving up, and between two attempts.", ("patience", "retry")),
    (
        "Who this device is to the others. The key stays here; insecure = true does without all three.",
        ("insecure", "ca", "cert", "key"),
    ),
    ("Names and serials of certificates that are no longer trusted.", ("revoked",)),
    ("The map: every device in row order, and every edge.", ("devices", "edges")),
    ("Options of the method; what is not said has its default.", ("options",)),
    ("Options of the score.", ("score_options",)),
    ("Where each device is reached.", ("endpoints",)),
)


def read_device(folder: str | Path) -> DeviceConfig:
    """Read the ``device.toml`` of a folder; every mistake in it is an error that says what to change."""
    folder = Path(folder)
    path = folder / FILE
    try:
        raw = tomllib.loads(path.read_bytes().decode("utf-8-sig"))
    except FileNotFoundError:
        raise ValueError(
            f"{folder}: a device's folder has a {FILE}, and this one has none; make folders with `conformesh mesh init`"
        ) from None
    except OSError as problem:
        raise ValueError(f"{path}: cannot read the file: {problem.strerror}; check its permissions") from problem
    except UnicodeDecodeError as problem:
        raise ValueError(f"{path}: must be UTF-8 text, byte {problem.start} is not") from problem
    except tomllib.TOMLDecodeError as problem:
        raise ValueError(f"{path}: not valid TOML: {problem}") from None
    values = {}
    for key, value in raw.items():
        if key not in KINDS:
            raise ValueError(f"{path}: {unknown('key', key, KINDS)}")
        values[key] = _checked(value, KINDS[key], f"{path}: {key}")
    needed = [f.name for f in fields(DeviceConfig) if f.default is MISSING and f.default_factory is MISSING]
    missing = [name for name in needed if name not in values]
    if missing:
        raise ValueError(f"{path}: lacks {', '.join(missing)}; write it by hand or with `conformesh mesh init`")
    try:
        return DeviceConfig(**values, folder=folder)
    except (ValueError, TypeError) as problem:
        raise ValueError(f"{path}: {problem}") from problem


def _checked(value: Any, kind: str, what: str) -> Any:
    if kind == _NUMBER and type(value) in (int, float):
        return float(value)
    if kind == _PAIRS and isinstance(value, list):
        pairs = [tuple(pair) for pair in value if _is_texts(pair) and len(pair) == 2]
        if len(pairs) == len(value):
            return tuple(pairs)
    good = {
        _TEXT: isinstance(value, str),
        _WHOLE: type(value) is int,
        _BOOL: isinstance(value, bool),
        _TEXTS: _is_texts(value),
        _TABLE: isinstance(value, dict),
        _TEXT_TABLE: isinstance(value, dict) and _is_texts([*value.values()]),
    }
    if not good.get(kind, False):
        raise ValueError(f"{what} must be {kind}, got {value!r}")
    return tuple(value) if kind == _TEXTS else value


def _is_texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(item, str) for item in value)


def write_device(folder: str | Path, config: DeviceConfig) -> None:
    """Write the ``device.toml`` of a folder, whole or not at all; what `read_device` reads."""
    write_file(Path(folder) / FILE, device_text(config))


def device_text(config: DeviceConfig) -> str:
    """Return the file as text, with comments for whoever opens it."""
    lines = [f"# Device {config.name} of a mesh of {len(config.devices)}. `conformesh mesh check` says if it is right."]
    for comment, names in _SECTIONS:
        chosen = [(name, getattr(config, name)) for name in names]
        if all(value is None or value in ({}, ()) for _, value in chosen) and names != ("devices", "edges"):
            continue
        lines += ["", f"# {comment}"]
        for name, value in chosen:
            if isinstance(value, dict):
                lines += [
                    f"[{name}]",
                    *(f"{_text(key)} = {_value(item)}" for key, item in value.items() if item is not None),
                ]
            elif name in ("devices", "edges"):
                lines += [f"{name} = [", *(f"    {_value(item)}," for item in value), "]"]
            elif value is not None:
                lines.append(f"{name} = {_value(value)}")
    return "\n".join(lines) + "\n"


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, tuple | list):
        return "[" + ", ".join(map(_value, value)) + "]"
    raise TypeError(f"device.toml holds texts, numbers, true, false and lists of them, got {type(value).__name__}")


def _text(text: str) -> str:
    """TOML's basic strings escape what JSON's do, and the delete character besides."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
