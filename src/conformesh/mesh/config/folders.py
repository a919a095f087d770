"""The folders of a mesh: made, enlarged, reduced and renewed by the person who keeps the authority.

ROOT/ca/                 the authority; ca.key never leaves it
ROOT/authority.json      the last roster that was signed, and a change that is under way: see `authority`
ROOT/roster.json         who is in, numbered and signed: handed to any device that runs it reaches all of them
ROOT/device-00/          what is copied to device-00: device.toml, roster.json, ca.pem, device.pem, device.key,
                         scores.csv
ROOT/revoked/            folders of devices that were taken out
ROOT/README.md           what to copy where, in plain words
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from conformesh.common.names import unknown_name
from conformesh.files.atomic_writes import make_folder
from conformesh.graph.network import DisconnectedError, Network
from conformesh.kernels.ranks import check_alpha
from conformesh.mesh.config.authority import (
    AUTHORITY_FILE,
    AUTHORITY_LOCK,
    REVOKED_FOLDER,
    Authority,
    Change,
    describe_interruption,
    open_authority,
    read_authority_record,
)
from conformesh.mesh.config.certificate_names import ACCEPTED_NUMBERS, check_device_name
from conformesh.mesh.config.certificates import (
    CERT,
    Identity,
    issued_certificates,
    issued_path,
    make_authority,
    read_certificate,
    sign_device,
)
from conformesh.mesh.config.checks import ConfigError, check_folder, compare_agreements
from conformesh.mesh.config.device_config import MeshMap
from conformesh.mesh.config.device_toml import DEVICE_FILE, DeviceConfig, device_text, read_device
from conformesh.mesh.config.endpoints import (
    BASE_PORT,
    Endpoint,
    listening_endpoint,
    local_endpoints,
    next_port,
    parse_endpoint,
    read_hosts,
    roster_names,
)
from conformesh.mesh.config.local_scores import scatter_scores
from conformesh.mesh.config.roster import EarlierRoster, Revoked, Roster, check_roster_size
from conformesh.mesh.config.settings import OUTPUTS_FILE, SECTIONS, SETTINGS, OnlineSettings, change_sections
from conformesh.mesh.config.signing import signed_document

__all__ = [
    "ConfigError",
    "add_device",
    "check_folder",
    "compare_agreements",
    "device_folders",
    "init_mesh",
    "reissue_device",
    "renew_device",
    "revoke_device",
    "scatter_scores",
]


# Every section that has defaults; `online` has none, devices learn from labels only where that is configured.
_DEFAULTS = {name: kind() for name, kind in SECTIONS.items() if kind is not OnlineSettings}


def init_mesh(
    root: Path,
    network: Network,
    *,
    hosts: Path | None = None,
    base_port: int = BASE_PORT,
    insecure: bool = False,
    days: int = 365,
    sizes: dict[str, int] | None = None,
    check: Callable[[DeviceConfig], None] | None = None,
    **settings: Any,
) -> list[Path]:
    """Make the folders of a new mesh and return those of the devices, in row order.

    Parameters
    ----------
    root
        A new or empty folder.
    network
        The graph. Devices whose ids are plain numbers are called ``device-00``, ``device-01``, ...
    hosts, base_port
        A file with ``device host[:port]`` a line, or None for consecutive ports of this machine from `base_port` on.
    insecure
        True for links without certificates; then nothing is signed.
    days
        How long the devices' certificates are valid.
    sizes
        The most scores that devices may claim, by their ids in the network; who is not named may claim any number.
    check
        Called with the configuration of the first device before anything is written; it raises what is wrong.
    settings
        Settings by the names of `SETTINGS`, for instance ``method="e-dcp", alpha="0.1", patience=10.0``; shares by the
        ids of the network.
    """
    root = Path(root)
    _check_new_folder(root)
    check_alpha(settings.get("alpha", SETTINGS["alpha"].default))  # warns above a half
    names = roster_names(network.ids)
    for name in names:
        check_device_name(name)
    reached = local_endpoints(names, base_port) if hosts is None else read_hosts(Path(hosts), names, base_port)
    mesh = secrets.token_hex(8)
    called = dict(zip(network.ids, names, strict=True))
    if settings.get("shares"):
        settings["shares"] = {called[name]: share for name, share in settings["shares"].items()}
    pairs = zip(network.receivers.tolist(), network.indices.tolist(), strict=True)
    everyone = MeshMap(
        devices=names,
        edges=tuple((names[a], names[b]) for a, b in pairs),
        endpoints={name: str(endpoint) for name, endpoint in reached.items()},
    )
    sections = change_sections({**settings, "insecure": insecure}, _DEFAULTS)
    first = DeviceConfig(mesh, names[0], str(listening_endpoint(reached[names[0]])), everyone, **sections)
    limits = {called[name]: most for name, most in (sizes or {}).items()}
    roster = Roster(1, mesh, names, first.edges, first.endpoints, sizes=limits)
    first = first.with_roster(roster)
    if check is not None:
        check(first)
    make_folder(root)
    with open_authority(root, new=True) as authority:
        if authority.finished_request or authority.roster is not None:
            raise ValueError(
                f"{root}: `conformesh mesh init` was interrupted here, and its mesh is whole now; use it, or delete "
                "the folder and run this again"
            )
        if not insecure:
            make_authority(root / "ca", mesh)
        change = _roster_change({"command": "init", "device": str(root)}, root, roster, insecure)
        for name in names:
            _add_folder(change, root, replace(first, name=name, listen=str(listening_endpoint(reached[name]))), days)
        authority.commit(change)
    return [root / name for name in names]


def _check_new_folder(root: Path) -> None:
    """Refuse a folder that is in use, and say what to do about one that an interrupted `mesh init` has left."""
    if not root.exists() or (root.is_dir() and {path.name for path in root.iterdir()} <= {AUTHORITY_LOCK}):
        return
    if root.is_dir() and (record := read_authority_record(root)) is not None:
        if record.change is not None and record.change.request.get("command") == "init":
            return  # which is finished first
        raise ValueError(
            f"{root}: a mesh needs a new or an empty folder, and this one has a mesh already; use that, or choose "
            "another name"
        )
    if root.is_dir() and all(path.name in (AUTHORITY_LOCK, "ca") or path.suffix == ".tmp" for path in root.iterdir()):
        raise ValueError(
            f"{root}: `conformesh mesh init` was interrupted here before it made any device; delete the folder and run "
            "this again"
        )
    raise ValueError(f"{root}: a mesh needs a new or an empty folder, and this one is not; choose another name")


def add_device(
    root: Path,
    name: str,
    neighbours: Sequence[str],
    host: str = "127.0.0.1",
    *,
    days: int = 365,
    size: int | None = None,
    settled: int | None = None,
) -> Path:
    """Add a device at ``host[:port]`` with edges to `neighbours`: a new folder, and a new roster for everybody.

    `size` is the most scores that it may claim; for `settled` see `revoke_device`.
    """
    root = Path(root)
    request: dict[str, Any] = {"command": "add", "device": name, "neighbours": [*neighbours], "host": host}
    request |= {"days": days, "size": size, "settled": settled}
    with open_authority(root) as authority:
        if authority.finished_request == request:
            return root / name
        configs = _read_mesh(root)
        known = configs[0]
        check_device_name(name)
        if name in known.devices:
            raise ValueError(
                f"device name {name!r} is taken; the mesh has {len(known.devices)} devices, choose another"
            )
        if name in known.revoked:
            raise ValueError(
                f"device name {name!r} was revoked, and its old certificate still bears it; choose another"
            )
        if (root / name).exists():
            raise ValueError(f"{root / name}: a new device needs a new folder, and this one is there; move it away")
        if not neighbours:
            raise ValueError(f"device {name!r} needs at least one neighbour among the devices of the mesh, got none")
        for other in neighbours:
            if other not in known.devices:
                raise ValueError(unknown_name("neighbour", other, known.devices))
        taken = [parse_endpoint(endpoint) for endpoint in known.endpoints.values()]
        bare = parse_endpoint(host, "host", port=1)
        endpoint: Endpoint = parse_endpoint(host, "host", port=next_port(taken, bare.host))
        if endpoint in taken:
            raise ValueError(f"{endpoint} belongs to another device already; give {name!r} another port")
        before = _last_roster(authority, known)
        roster = _next_roster(
            before,
            settled,
            devices=(*known.devices, name),
            edges=(*known.edges, *((other, name) for other in neighbours)),
            endpoints={**before.endpoints, name: str(endpoint)},
            sizes=before.sizes | ({} if size is None else {name: size}),
        )
        for config in configs:
            config.with_roster(roster)  # raises in words if it cannot be
        change = _roster_change(request, root, roster, known.security.insecure)
        new = replace(
            known,
            name=name,
            listen=str(listening_endpoint(endpoint)),
            map=MeshMap.of_roster(roster),
            roster=roster,
        ).with_settings(file=SETTINGS["file"].default if known.guarantee.adapt is None else OUTPUTS_FILE)
        _add_folder(change, root, new, days)
        authority.commit(change)
    return root / name


def revoke_device(root: Path, name: str, *, settled: int | None = None, forget: bool = False) -> str:
    """Take a device out of the roster and the graph, and list its certificates as revoked; return the last serial.

    Its folder moves to ``ROOT/revoked``. Where the others would fall into parts without it, nothing is changed; nor is
    it where they are less than half of an earlier roster, whose devices might go on by themselves. `settled` is the
    number of a roster under which a result was certified: the ones before it are out of use. `forget` is the word of
    whoever runs the mesh that all devices that were taken out are off for good.
    """
    root = Path(root)
    request = {"command": "revoke", "device": name, "settled": settled, "forget": forget}
    with open_authority(root) as authority:
        if authority.finished_request == request:
            given = issued_certificates(root / "ca", name)
            return given[-1].serial if given else ""
        configs = _read_mesh(root)
        known = configs[0]
        if name not in known.devices:
            raise ValueError(unknown_name("device", name, known.devices))
        if len(known.devices) == 1:
            raise ValueError(f"device {name!r} is the only one of its mesh; delete the folder {root} instead")
        _check_can_move(root, name)
        signed = [] if known.security.insecure else _issued(root, name)
        before = _last_roster(authority, known)
        roster = _next_roster(
            before,
            settled,
            forget,
            devices=tuple(other for other in known.devices if other != name),
            edges=tuple(edge for edge in known.edges if name not in edge),
            endpoints=_without(name, before.endpoints),
            revoked=_with_revoked(before, name, signed) if signed else (*before.revoked, Revoked(name)),
            lowest=_without(name, before.lowest),
            sizes=_without(name, before.sizes),
        )
        try:
            for config in configs:
                if config.name != name:
                    config.with_roster(roster)
        except DisconnectedError as problem:
            raise ValueError(
                f"without {name!r} the mesh falls into {problem.parts}; add a device between them first, "
                f"then revoke {name!r}"
            ) from None
        change = _roster_change(request, root, roster, known.security.insecure)
        change.removed = name
        authority.commit(change)
    return signed[-1].serial if signed else ""


def _check_can_move(root: Path, name: str) -> None:
    """Refuse to revoke a device whose folder could not move to ``revoked/``, before anything is changed."""
    target = root / REVOKED_FOLDER / name
    if os.path.lexists(target):
        raise ValueError(f"{target}: the folder of {name!r} moves there, and the name is taken; move that away first")
    if os.path.lexists(target.parent) and not target.parent.is_dir():
        raise ValueError(f"{target.parent}: the folder of {name!r} moves into it, and it is a file; move it away first")


def renew_device(root: Path, name: str, *, days: int = 365) -> Identity:
    """Make a new key and certificate for a device whose old one expires; the roster stays as it is.

    The old certificate stays good until it expires: against a stolen key `reissue_device` helps. Of every device 16
    numbers of certificates are let in; beyond these a new roster is made, which lets in the next.
    """
    return _issue_again(Path(root), {"command": "renew", "device": name, "days": days})


def reissue_device(root: Path, name: str, *, days: int = 365, settled: int | None = None) -> Identity:
    """Make a new key and certificate for a device, and a roster that lets in none of the older ones.

    For a stolen key: the device stays, under its name. Its new files must be there before the roster is, or it is shut
    out too until they are.
    """
    request = {"command": "revoke --certificate", "device": name, "days": days, "settled": settled}
    return _issue_again(Path(root), request, shut_out=True)


def _issue_again(root: Path, request: dict[str, Any], shut_out: bool = False) -> Identity:
    """Make a new certificate for a device; `shut_out` revokes the older ones."""
    name = request["device"]
    with open_authority(root) as authority:
        if authority.finished_request == request:
            return _issued(root, name)[-1]
        configs = _read_mesh(root)
        config = _config_with_certificate(root, configs, name)
        before, old = _last_roster(authority, config), _issued(root, name)
        found, texts = sign_device(root / "ca", name, _hosts_of(config), request["days"], renew=True)
        roster = None
        if shut_out:
            lowest = {**before.lowest, name: found.number}
            roster = _next_roster(before, request["settled"], revoked=_with_revoked(before, name, old), lowest=lowest)
        elif found.number >= config.lowest_certificate(name) + ACCEPTED_NUMBERS:
            roster = _next_roster(before, None, lowest={**before.lowest, name: found.number - ACCEPTED_NUMBERS + 1})
        change = _roster_change(request, root, roster, config.security.insecure)
        _add_certificate(change, found, name, texts)
        authority.commit(change)
    return found


def current_roster(root: Path) -> int:
    """Return the number of a mesh's last roster; 0 where the map is still in every ``device.toml``."""
    record = read_authority_record(Path(root))
    latest = None if record is None else record.latest
    return _read_mesh(Path(root))[0].roster_number if latest is None else latest.number


def device_folders(root: Path) -> list[Path]:
    """Return the folders of a mesh's devices, in row order; all of them must be there and tell the same story."""
    return [Path(root) / config.name for config in _read_mesh(Path(root))]


def _read_mesh(root: Path) -> list[DeviceConfig]:
    found = sorted(path.parent for path in root.glob(f"*/{DEVICE_FILE}")) if root.is_dir() else []
    if not found:
        raise ValueError(f"{root}: no folder of a device is in there; make a mesh with `conformesh mesh init {root}`")
    if words := describe_interruption(root):
        raise ValueError(words)
    roster = read_device(found[0]).devices
    missing = [name for name in roster if not (root / name / DEVICE_FILE).is_file()]
    if missing:
        raise ValueError(f"{root}: the folder of {missing[0]!r} is missing, with its {DEVICE_FILE}; put it back")
    differing = compare_agreements([root / name for name in roster])
    if differing:
        field, values = next(iter(differing.items()))
        words = "; ".join(f"{value} on {', '.join(names[:3])}" for value, names in values.items())
        raise ValueError(f"{root}: the devices differ in {field}: {words}; mend their {DEVICE_FILE} first")
    return [read_device(root / name) for name in roster]


def _roster_change(request: dict[str, Any], root: Path, roster: Roster | None, insecure: bool) -> Change:
    """Return a change to a roster, signed if the mesh has an authority; None leaves the roster as it is."""
    if roster is None:
        return Change(request)
    document = signed_document(roster, root, insecure)
    check_roster_size(document)
    return Change(request, document.bytes().decode("ascii"))


def _add_folder(change: Change, root: Path, config: DeviceConfig, days: int) -> None:
    """Add the folder of a new device to a change."""
    if not config.security.insecure:
        found, texts = sign_device(root / "ca", config.name, _hosts_of(config), days)
        _add_certificate(change, found, config.name, texts)
    change.files[f"{config.name}/{DEVICE_FILE}"] = device_text(config)
    change.scores.append(f"{config.name}/{config.scores.file}")
    if config.guarantee.adapt is not None:
        from conformesh.mesh.config.labelled_rows import empty_file

        change.heading = empty_file(config)


def _add_certificate(change: Change, found: Identity, name: str, texts: dict[str, str]) -> None:
    """Add the files of a new certificate to a change, and the authority's own copy."""
    change.files |= {f"{name}/{file}": text for file, text in texts.items()}
    change.files[f"ca/{issued_path(found.name)}"] = texts[CERT]


def _last_roster(authority: Authority, config: DeviceConfig) -> Roster:
    """Return the last roster that was signed, which is that of the folders; refuse folders that have another one."""
    in_folders, latest = _roster_of(config), authority.roster
    if latest is not None and latest != in_folders:
        raise ValueError(
            f"{authority.root}: roster {latest.number} ({latest.digest[:16]}) was signed last, as {AUTHORITY_FILE} "
            f"says, and the folders have roster {in_folders.number} ({in_folders.digest[:16]}); put back the newest "
            "copy of both, as they were together"
        )
    return in_folders


def _roster_of(config: DeviceConfig) -> Roster:
    """Return the roster of a mesh; of one whose map is in device.toml, as if it had number 0."""
    if config.roster is not None:
        return config.roster
    gone = tuple(Revoked(text) for text in config.revoked)
    return Roster(0, config.mesh, config.devices, config.edges, config.endpoints, gone, settled=0)


def _next_roster(before: Roster, settled: int | None = None, forget: bool = False, **changes: Any) -> Roster:
    """Return the roster after another one; refuse one whose devices could never outvote those of an earlier one."""
    number = before.number + 1
    if settled is not None and not before.settled <= settled < number:
        raise ValueError(
            f"--settled must be the number of a roster with a certified result, from {before.settled} to "
            f"{before.number}, got {settled}"
        )
    since = number if forget else max(before.settled, settled or 0)
    known = (*before.earlier, EarlierRoster(before.number, before.devices))
    earlier = tuple(one for one in known if one.number >= since)
    roster = replace(before, number=number, settled=since, earlier=earlier, **changes)
    if lacking := roster.lacks(roster.devices):
        raise ValueError(
            f"roster {number} would have no result: {lacking}. If a later one has a certified result (its number is in "
            "/status), say --settled NUMBER; if the devices that were taken out are off for good, --forget"
        )
    return roster


def _with_revoked(before: Roster, name: str, old: Sequence[Identity]) -> tuple[Revoked, ...]:
    return tuple(dict.fromkeys([*before.revoked, *(Revoked(name, one.number, one.fingerprint) for one in old)]))


def _without(name: str, table: dict[str, Any]) -> dict[str, Any]:
    return {other: value for other, value in table.items() if other != name}


def _config_with_certificate(root: Path, configs: Sequence[DeviceConfig], name: str) -> DeviceConfig:
    config = next((one for one in configs if one.name == name), None)
    if config is None:
        raise ValueError(unknown_name("device", name, [one.name for one in configs]))
    if config.security.insecure:
        raise ValueError(f"{root}: this mesh is insecure, its devices have no certificates to renew")
    return config


def _hosts_of(config: DeviceConfig) -> tuple[str, ...]:
    return (parse_endpoint(config.endpoints[config.name]).host,)


def _issued(root: Path, name: str) -> list[Identity]:
    return issued_certificates(root / "ca", name) or [read_certificate(root / name / CERT)]
