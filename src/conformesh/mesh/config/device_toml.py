"""``device.toml``: one readable file with what is a device's own and what was agreed on; the map is in its roster.

A folder without a roster, of an earlier version, has the map in ``device.toml`` too. Beside a roster, ``[endpoints]``
says where this device reaches others that the roster has elsewhere, behind a router for instance.
"""

from __future__ import annotations

import json
import tomllib
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from conformesh.common.names import unknown
from conformesh.files.files import write_file
from conformesh.files.schemas import checked
from conformesh.mesh.config.device_config import DeviceConfig, Neighbour, map_of
from conformesh.mesh.config.roster import FILE as ROSTER
from conformesh.mesh.config.roster import Roster, read_roster_file

__all__ = ["FILE", "DeviceConfig", "Neighbour", "read_device", "reloaded", "write_device"]

FILE = "device.toml"
_IN_ROSTER = ("revoked", "devices", "edges")  # not in this file where there is a roster
_SECTIONS: tuple[tuple[str, tuple[str, ...]], ...] = (  # the order and the comments of the file
    (
        "Who this device is and where it listens. The id is that of the mesh, the same on every device.",
        ("mesh", "name", "listen"),
    ),
    (
        "What the devices agree on: from here to on_lost and quorum, [options] and [online], the same on every device.",
        (
            *("mode", "method", "alpha", "alphas", "mixture", "rank_rule", "pac_confidence", "groups", "lower_share"),
            *("weight_bound", "score", "model", "on_lost", "quorum"),
        ),
    ),
    (
        "This device's own scores, a file beside this one; the file stays here. Its columns of groups and weights.",
        ("scores", "group_column", "weight_column"),
    ),
    ("Seconds to wait for a neighbour before giving up, and between two attempts.", ("patience", "retry")),
    ("Seconds between two pulses, which tell the others how this device is; 0 for none.", ("pulse",)),
    (
        "Who this device is to the others. The key stays here; insecure = true does without all three.",
        ("insecure", "ca", "cert", "key"),
    ),
    ("Names and serials of certificates that are no longer trusted.", ("revoked",)),
    ("The map: every device in row order, and every edge.", ("devices", "edges")),
    ('Shares of new examples by device, for mixture = "given".', ("shares",)),
    ("Options of the method; what is not said has its default.", ("options",)),
    ("Options of the score.", ("score_options",)),
    (
        "Learning from labels that come later: how far a miss moves all, and this device; scores are at most bound.\n"
        "# With scale, all three are in units of its running scale. alarm bounds the chance of a false drift alarm.",
        ("online",),
    ),
    ("Where each device is reached; beside a roster, those that this one reaches elsewhere.", ("endpoints",)),
)


def read_device(folder: str | Path) -> DeviceConfig:
    """Read the ``device.toml`` of a folder, and the roster beside it, whose signature is for others to verify.

    Every mistake is an error that says what to change.
    """
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
    known = [field.name for field in fields(DeviceConfig) if field.name not in ("folder", "roster")]
    for key in raw:
        if key not in known:
            raise ValueError(f"{path}: {unknown('key', key, known)}")
    document = read_roster_file(folder)
    if document is not None:
        raw |= _told_by(document.roster, raw, folder)
    found = checked(raw, DeviceConfig, str(path))
    return replace(found, folder=folder, roster=None if document is None else document.roster)


# What a device may change alone while it runs: its own files, how it is reached and reaches others, how long it waits.
RELOADABLE = ("listen", "scores", "patience", "retry", "ca", "cert", "key", "endpoints")


def reloaded(now: DeviceConfig, fresh: DeviceConfig) -> tuple[DeviceConfig, list[str]]:
    """Return a configuration with what was read again and may change, and the names of what changes only by a restart.

    The roster stays the one in force: a newer one in the folder is for its signature to decide.
    """
    told = {} if now.roster is None else now.roster.endpoints
    own = {name: at for name, at in fresh.own_endpoints().items() if name in now.devices}
    changes = {name: getattr(fresh, name) for name in RELOADABLE} | {"endpoints": {**told, **own}}
    kept = ("folder", "roster", "devices", "edges", "revoked", *RELOADABLE)
    names = [one.name for one in fields(DeviceConfig) if one.name not in kept]
    later = [name for name in names if getattr(fresh, name) != getattr(now, name)]
    return replace(now, **changes), later


def _told_by(roster: Roster, raw: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Return what a roster says instead of the file; endpoints of the file are those of this device's own view."""
    where = folder / ROSTER
    if raw.get("mesh") != roster.mesh:
        raise ValueError(f"{where}: it is of mesh {roster.mesh}, and {FILE} beside it is of {raw.get('mesh')}")
    if raw.get("name") not in roster.devices:
        raise ValueError(f"{where}: {raw.get('name')} was removed by roster {roster.number} or an earlier one")
    own = raw.get("endpoints")
    own = {name: at for name, at in own.items() if name in roster.devices} if isinstance(own, dict) else {}
    return {**map_of(roster), "endpoints": {**roster.endpoints, **own}}


def write_device(folder: str | Path, config: DeviceConfig) -> None:
    """Write the ``device.toml`` of a folder, whole or not at all; what `read_device` reads."""
    write_file(Path(folder) / FILE, device_text(config))


def device_text(config: DeviceConfig) -> str:
    """Return the file as text, with comments for whoever opens it."""
    lines = [f"# Device {config.name} of a mesh of {len(config.devices)}. `conformesh mesh check` says if it is right."]
    for comment, names in _SECTIONS:
        chosen = [(name, _written(config, name)) for name in names]
        if config.roster is not None and names[0] in _IN_ROSTER:
            continue
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
            elif value is not None and value != ():
                lines.append(f"{name} = {_value(value)}")
    return "\n".join(lines) + "\n"


def _written(config: DeviceConfig, name: str) -> Any:
    if name == "group_column" and not config.groups:
        return None
    return config.own_endpoints() if name == "endpoints" else getattr(config, name)


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
