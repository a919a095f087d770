"""``device.toml``: one readable file with everything a device of a mesh knows."""

from __future__ import annotations

import json
import tomllib
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from conformesh.io.files import write_file
from conformesh.io.schemas import checked
from conformesh.mesh.config.device_config import DeviceConfig, Neighbour
from conformesh.names import unknown

__all__ = ["FILE", "DeviceConfig", "Neighbour", "read_device", "write_device"]

FILE = "device.toml"
_SECTIONS: tuple[tuple[str, tuple[str, ...]], ...] = (  # the order and the comments of the file
    (
        "Who this device is and where it listens. The id is that of the mesh, the same on every device.",
        ("mesh", "name", "listen"),
    ),
    (
        "What the devices agree on: from here to on_lost and quorum, and [options], the same on every device.",
        ("mode", "method", "alpha", "target", "rank", "confidence", "score", "model", "on_lost", "quorum"),
    ),
    ("This device's own scores, a file beside this one; the file stays here.", ("scores",)),
    ("Seconds to wait for a neighbour before giving up, and between two attempts.", ("patience", "retry")),
    (
        "Who this device is to the others. The key stays here; insecure = true does without all three.",
        ("insecure", "ca", "cert", "key"),
    ),
    ("Names and serials of certificates that are no longer trusted.", ("revoked",)),
    ("The map: every device in row order, and every edge.", ("devices", "edges")),
    ('Shares of new examples by device, for target = "given".', ("shares",)),
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
    known = [field.name for field in fields(DeviceConfig) if field.name != "folder"]
    for key in raw:
        if key not in known:
            raise ValueError(f"{path}: {unknown('key', key, known)}")
    return replace(checked(raw, DeviceConfig, str(path)), folder=folder)


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
