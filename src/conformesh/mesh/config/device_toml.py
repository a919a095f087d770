"""``device.toml``: one readable file with what is a device's own and what was agreed on; the map is in its roster.

A folder without a roster, of an earlier version, has the map in ``device.toml`` too. Beside a roster,
``[map.endpoints]``
says where this device reaches others that the roster has elsewhere, behind a router for instance.
"""

from __future__ import annotations

import json
import tomllib
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from conformesh.common.names import unknown_name
from conformesh.files.atomic_writes import write_file
from conformesh.files.schemas import validate
from conformesh.mesh.config.device_config import DeviceConfig, MeshMap, Neighbour
from conformesh.mesh.config.roster import ROSTER_FILE, Roster, read_roster_file
from conformesh.mesh.config.settings import SECTIONS, SETTINGS

__all__ = ["DEVICE_FILE", "DeviceConfig", "Neighbour", "read_device", "reload_config", "write_device"]

DEVICE_FILE = "device.toml"


def read_device(folder: str | Path) -> DeviceConfig:
    """Read the ``device.toml`` of a folder, and the roster beside it, whose signature is for others to verify.

    Every mistake is an error that says what to change.
    """
    folder = Path(folder)
    path = folder / DEVICE_FILE
    try:
        raw = tomllib.loads(path.read_bytes().decode("utf-8-sig"))
    except FileNotFoundError:
        raise ValueError(
            f"{folder}: a device's folder has a {DEVICE_FILE}, and this one has none; make folders with `conformesh "
            "mesh init`"
        ) from None
    except OSError as problem:
        raise ValueError(f"{path}: cannot read the file: {problem.strerror}; check its permissions") from problem
    except UnicodeDecodeError as problem:
        raise ValueError(f"{path}: must be UTF-8 text, byte {problem.start} is not") from problem
    except tomllib.TOMLDecodeError as problem:
        raise ValueError(f"{path}: not valid TOML: {problem}") from None
    _check_keys(raw, path)
    document = read_roster_file(folder)
    if document is not None:
        raw["map"] = _map_of_roster(document.roster, raw, folder)
    found = validate(raw, DeviceConfig, str(path))
    return replace(found, folder=folder, roster=None if document is None else document.roster)


def _check_keys(raw: dict[str, Any], path: Path) -> None:
    """Refuse keys that nothing reads: a typing error would otherwise silently mean the default."""
    known = [one.name for one in fields(DeviceConfig) if one.name not in ("folder", "roster")]
    for key, value in raw.items():
        if key not in known:
            raise ValueError(f"{path}: {unknown_name('key', key, known)}")
        kind = MeshMap if key == "map" else SECTIONS.get(key)
        if kind is None or not isinstance(value, dict):
            continue
        inside = [one.name for one in fields(kind)]
        for one in value:
            if one not in inside:
                raise ValueError(f"{path}: {unknown_name(f'key in [{key}]', one, inside)}")


def _map_of_roster(roster: Roster, raw: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Return the map of a roster, with the endpoints of the file, which are what this device reaches elsewhere."""
    where = folder / ROSTER_FILE
    if raw.get("mesh") != roster.mesh:
        raise ValueError(f"{where}: it is of mesh {roster.mesh}, and {DEVICE_FILE} beside it is of {raw.get('mesh')}")
    if raw.get("name") not in roster.devices:
        raise ValueError(f"{where}: {raw.get('name')} was removed by roster {roster.number} or an earlier one")
    given = raw.get("map")
    endpoints = given.get("endpoints") if isinstance(given, dict) else None
    found = MeshMap.of_roster(roster, endpoints if isinstance(endpoints, dict) else {})
    return {one.name: getattr(found, one.name) for one in fields(found)}


# What a device may change alone while it runs: its own files and how long it waits; and `listen` and endpoints.
RELOADABLE = ("file", "patience", "retry", "ca", "cert", "key")


def reload_config(now: DeviceConfig, fresh: DeviceConfig) -> tuple[DeviceConfig, list[str]]:
    """Return a configuration with what was read again and may change, and the names of what changes only by a restart.

    The roster stays the one in force: a newer one in the folder is for its signature to decide.
    """
    others = {} if now.roster is None else now.roster.endpoints
    local = {name: at for name, at in fresh.endpoint_overrides().items() if name in now.devices}
    before, after = _values(now), _values(fresh)
    later = [
        SETTINGS[name].path if name in SETTINGS else name
        for name in dict.fromkeys((*before, *after))
        if name not in RELOADABLE and before.get(name) != after.get(name)
    ]
    changed = replace(now, listen=fresh.listen, map=replace(now.map, endpoints={**others, **local}))
    return changed.with_settings(**{name: after[name] for name in RELOADABLE}), later


def _values(config: DeviceConfig) -> dict[str, Any]:
    """Return what is fixed until a restart, and every setting by its name."""
    found: dict[str, Any] = {"mesh": config.mesh, "name": config.name}
    for name, one in SETTINGS.items():
        if (section := getattr(config, one.section)) is not None:
            found[name] = getattr(section, name)
    return found


def write_device(folder: str | Path, config: DeviceConfig) -> None:
    """Write the ``device.toml`` of a folder, whole or not at all; what `read_device` reads."""
    write_file(Path(folder) / DEVICE_FILE, device_text(config))


def device_text(config: DeviceConfig) -> str:
    """Return the file as text, with a comment at every value."""
    lines = [
        f"# Device {config.name} of a mesh of {len(config.devices)}. `conformesh mesh check` says if it is right.",
        "# `conformesh mesh settings` lists every setting with its default.",
        "",
        "# The id of the mesh, the same on every device; this device, and where it listens.",
        *(f"{name} = {_value(getattr(config, name))}" for name in ("mesh", "name", "listen")),
    ]
    for section, kind in SECTIONS.items():
        if (values := getattr(config, section)) is not None:
            lines += ["", f"# {kind.__doc__}", f"[{section}]", *_section_lines(section, values)]
    return "\n".join([*lines, *_map_lines(config)]) + "\n"


def _section_lines(section: str, values: Any) -> list[str]:
    """Return the values of a section, then its tables, which TOML wants last."""
    plain, tables = [], []
    for one in fields(values):
        value, comment = getattr(values, one.name), f"# {SETTINGS[one.name].help}"
        if value is None or value in ({}, ()):
            continue
        if isinstance(value, dict):
            tables += ["", comment, *_table_lines(f"{section}.{one.name}", value)]
        else:
            plain += [comment, f"{one.name} = {_value(value)}"]
    return [*plain, *tables]


def _map_lines(config: DeviceConfig) -> list[str]:
    """Return the map where there is no roster, else only what this device reaches elsewhere."""
    lines: list[str] = []
    if config.roster is None:
        lines += ["", "# The map: every device in row order, every edge, certificates that are no longer trusted."]
        lines += ["[map]", f"revoked = {_value(config.revoked)}"]
        for name in ("devices", "edges"):
            lines += [f"{name} = [", *(f"    {_value(item)}," for item in getattr(config, name)), "]"]
    if local := config.endpoint_overrides():
        comment = "# Where each device is reached; beside a roster, those that this device reaches elsewhere."
        lines += ["", comment, *_table_lines("map.endpoints", local)]
    return lines


def _table_lines(name: str, table: dict[str, Any]) -> list[str]:
    return [f"[{name}]", *_entries(table)]


def _entries(table: dict[str, Any]) -> list[str]:
    return [f"{_text(key)} = {_value(item)}" for key, item in table.items() if item is not None]


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, tuple | list):
        return "[" + ", ".join(map(_value, value)) + "]"
    if isinstance(value, dict):  # an option that has options of its own, such as the base of `adapt = "even"`
        return (
            "{" + ", ".join(f"{_text(key)} = {_value(item)}" for key, item in value.items() if item is not None) + "}"
        )
    raise TypeError(
        f"device.toml holds texts, numbers, true, false, and lists and tables of them, got {type(value).__name__}"
    )


def _text(text: str) -> str:
    """TOML's basic strings escape what JSON's do, and the delete character besides."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
