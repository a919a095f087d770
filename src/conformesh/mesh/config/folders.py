"""The folders of a mesh: made, enlarged, reduced and renewed by the person who keeps the authority.

ROOT/ca/                 the authority; ca.key never leaves it
ROOT/roster.json         who is in, numbered and signed: handed to any device that runs it reaches all of them
ROOT/device-00/          what is copied to device-00: device.toml, roster.json, ca.pem, device.pem, device.key,
                         scores.csv
ROOT/revoked/            folders of devices that were taken out
ROOT/README.md           what to copy where, in plain words
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from conformesh.graph.network import DisconnectedError, Network
from conformesh.io.files import PRIVATE, make_folder, write_file
from conformesh.mesh.config.certificate_names import WINDOW, check_device_name
from conformesh.mesh.config.certificates import CERT, Identity, issued, make_authority, read_certificate, sign_device
from conformesh.mesh.config.checking import Problem, check_folder, compare_agreements
from conformesh.mesh.config.device_config import map_of
from conformesh.mesh.config.device_toml import FILE, DeviceConfig, read_device, write_device
from conformesh.mesh.config.endpoints import (
    BASE_PORT,
    Endpoint,
    listen_at,
    local_endpoints,
    next_port,
    parse_endpoint,
    read_hosts,
    roster_names,
)
from conformesh.mesh.config.own_scores import EMPTY, scatter_scores
from conformesh.mesh.config.readme import readme
from conformesh.mesh.config.roster import FILE as ROSTER
from conformesh.mesh.config.roster import Earlier, Revoked, Roster
from conformesh.mesh.config.signing import document_of
from conformesh.names import unknown
from conformesh.promises import PLAIN, Promise, check_alpha

__all__ = [
    "Problem",
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


def init_mesh(
    root: Path,
    network: Network,
    *,
    hosts: Path | None = None,
    base_port: int = BASE_PORT,
    mode: Literal["rounds", "anytime"] = "rounds",
    method: str = "e-dcp",
    alpha: str = "0.1",
    promise: Promise = PLAIN,
    options: dict[str, Any] | None = None,
    score: str | None = None,
    score_options: dict[str, Any] | None = None,
    model: str | None = None,
    patience: float = 30.0,
    on_lost: Literal["fail", "continue"] = "fail",
    quorum: int | None = None,
    pulse: float = 1.0,
    online: dict[str, float] | None = None,
    insecure: bool = False,
    days: int = 365,
    sizes: dict[str, int] | None = None,
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
    promise
        Whom the threshold is to be about, by the ids of the network.
    mode, method, alpha, options, score, score_options, model, patience, on_lost, quorum, pulse, online
        As in `DeviceConfig`.
    """
    root = Path(root)
    if root.exists() and (not root.is_dir() or any(root.iterdir())):
        raise ValueError(f"{root}: a mesh needs a new or an empty folder, and this one is not; choose another name")
    check_alpha(alpha)
    names = roster_names(network.ids)
    for name in names:
        check_device_name(name)
    reached = local_endpoints(names, base_port) if hosts is None else read_hosts(Path(hosts), names, base_port)
    mesh = secrets.token_hex(8)
    first = DeviceConfig(
        mesh=mesh,
        name=names[0],
        listen=str(listen_at(reached[names[0]])),
        devices=names,
        edges=tuple(
            (names[a], names[b]) for a, b in zip(network.receivers.tolist(), network.indices.tolist(), strict=True)
        ),
        endpoints={name: str(endpoint) for name, endpoint in reached.items()},
        mode=mode,
        method=method,
        alpha=alpha,
        target=promise.target,
        rank=promise.rule,
        pac_confidence=None if promise.pac_confidence is None else str(promise.pac_confidence),
        shares={to: str(promise.shares[name]) for name, to in zip(network.ids, names, strict=True)}
        if promise.shares is not None
        else {},
        options=options or {},
        score=score,
        score_options=score_options or {},
        model=model,
        patience=patience,
        on_lost=on_lost,
        quorum=quorum,
        pulse=pulse,
        online=online or {},
        insecure=insecure,
    )
    called = dict(zip(network.ids, names, strict=True))
    limits = {called[name]: most for name, most in (sizes or {}).items()}
    roster = Roster(1, mesh, names, first.edges, first.endpoints, sizes=limits)
    first = first.under(roster)
    make_folder(root)
    if not insecure:
        make_authority(root / "ca", mesh)
    configs = [replace(first, name=name, listen=str(listen_at(reached[name]))) for name in names]
    for config in configs:
        _make_device(root, config, days)
    _write_mesh(root, configs, roster)
    return [root / name for name in names]


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
    root, configs = Path(root), _read_mesh(Path(root))
    known = configs[0]
    check_device_name(name)
    if name in known.devices:
        raise ValueError(f"device name {name!r} is taken; the mesh has {len(known.devices)} devices, choose another")
    if name in known.revoked:
        raise ValueError(f"device name {name!r} was revoked, and its old certificate still bears it; choose another")
    if (root / name).exists():
        raise ValueError(f"{root / name}: a new device needs a new folder, and this one is there; move it away")
    if not neighbours:
        raise ValueError(f"device {name!r} needs at least one neighbour among the devices of the mesh, got none")
    for other in neighbours:
        if other not in known.devices:
            raise ValueError(unknown("neighbour", other, known.devices))
    taken = [parse_endpoint(endpoint) for endpoint in known.endpoints.values()]
    bare = parse_endpoint(host, "host", port=1)
    endpoint: Endpoint = parse_endpoint(host, "host", port=next_port(taken, bare.host))
    if endpoint in taken:
        raise ValueError(f"{endpoint} belongs to another device already; give {name!r} another port")
    before = _roster_of(known)
    roster = _next(
        before,
        settled,
        devices=(*known.devices, name),
        edges=(*known.edges, *((other, name) for other in neighbours)),
        endpoints={**before.endpoints, name: str(endpoint)},
        sizes=before.sizes | ({} if size is None else {name: size}),
    )
    changed = [config.under(roster) for config in configs]
    new = replace(
        known, **map_of(roster), roster=roster, name=name, listen=str(listen_at(endpoint)), scores="scores.csv"
    )
    _make_device(root, new, days)
    _write_mesh(root, [*changed, new], roster)
    return root / name


def revoke_device(root: Path, name: str, *, settled: int | None = None, forget: bool = False) -> str:
    """Take a device out of the roster and the graph, and list its certificates as revoked; return the last serial.

    Its folder moves to ``ROOT/revoked``. Where the others would fall into parts without it, nothing is changed; nor is
    it where they are less than half of an earlier roster, whose devices might go on by themselves. `settled` is the
    number of a roster under which a result was certified: the ones before it are out of use. `forget` is the word of
    whoever runs the mesh that all devices that were taken out are off for good.
    """
    root, configs = Path(root), _read_mesh(Path(root))
    known = configs[0]
    if name not in known.devices:
        raise ValueError(unknown("device", name, known.devices))
    if len(known.devices) == 1:
        raise ValueError(f"device {name!r} is the only one of its mesh; delete the folder {root} instead")
    signed = [] if known.insecure else _issued(root, name)
    before = _roster_of(known)
    roster = _next(
        before,
        settled,
        forget,
        devices=tuple(other for other in known.devices if other != name),
        edges=tuple(edge for edge in known.edges if name not in edge),
        endpoints=_without(name, before.endpoints),
        revoked=_revoking(before, name, signed) if signed else (*before.revoked, Revoked(name)),
        lowest=_without(name, before.lowest),
        sizes=_without(name, before.sizes),
    )
    try:
        changed = [config.under(roster) for config in configs if config.name != name]
    except DisconnectedError as problem:
        raise ValueError(
            f"without {name!r} the mesh falls into {problem.parts}; add a device between them first, "
            f"then revoke {name!r}"
        ) from None
    _write_mesh(root, changed, roster)
    make_folder(root / "revoked", 0o700)
    (root / name).rename(root / "revoked" / name)
    return signed[-1].serial if signed else ""


def renew_device(root: Path, name: str, *, days: int = 365) -> Identity:
    """Make a new key and certificate for a device whose old one expires; the roster stays as it is.

    The old certificate stays good until it expires: against a stolen key `reissue_device` helps. Of every device 16
    numbers of certificates are let in; beyond these a new roster is made, which lets in the next.
    """
    root, configs = Path(root), _read_mesh(Path(root))
    config = _with_certificate(root, configs, name)
    found = sign_device(root / "ca", root / name, name, _hosts_of(config), days, renew=True)
    if found.number >= config.lowest(name) + WINDOW:
        before = _roster_of(config)
        _change(root, configs, _next(before, None, lowest={**before.lowest, name: found.number - WINDOW + 1}))
    return found


def reissue_device(root: Path, name: str, *, days: int = 365, settled: int | None = None) -> Identity:
    """Make a new key and certificate for a device, and a roster that lets in none of the older ones.

    For a stolen key: the device stays, under its name. Its new files must be there before the roster is, or it is shut
    out too until they are.
    """
    root, configs = Path(root), _read_mesh(Path(root))
    config = _with_certificate(root, configs, name)
    before, old = _roster_of(config), _issued(root, name)
    found = sign_device(root / "ca", root / name, name, _hosts_of(config), days, renew=True)
    lowest = {**before.lowest, name: found.number}
    _change(root, configs, _next(before, settled, revoked=_revoking(before, name, old), lowest=lowest))
    return found


def current_roster(root: Path) -> int:
    """Return the number of a mesh's roster; 0 where the map is still in every ``device.toml``."""
    return _read_mesh(Path(root))[0].roster_number


def device_folders(root: Path) -> list[Path]:
    """Return the folders of a mesh's devices, in row order; all of them must be there and tell the same story."""
    return [Path(root) / config.name for config in _read_mesh(Path(root))]


def _read_mesh(root: Path) -> list[DeviceConfig]:
    found = sorted(path.parent for path in root.glob(f"*/{FILE}")) if root.is_dir() else []
    if not found:
        raise ValueError(f"{root}: no folder of a device is in there; make a mesh with `conformesh mesh init {root}`")
    roster = read_device(found[0]).devices
    missing = [name for name in roster if not (root / name / FILE).is_file()]
    if missing:
        raise ValueError(f"{root}: the folder of {missing[0]!r} is missing, with its {FILE}; put it back")
    differing = compare_agreements([root / name for name in roster])
    if differing:
        field, values = next(iter(differing.items()))
        told = "; ".join(f"{value} on {', '.join(names[:3])}" for value, names in values.items())
        raise ValueError(f"{root}: the devices differ in {field}: {told}; mend their {FILE} first")
    return [read_device(root / name) for name in roster]


def _make_device(root: Path, config: DeviceConfig, days: int) -> None:
    folder = root / config.name
    make_folder(folder, 0o700)
    if not config.insecure:
        sign_device(root / "ca", folder, config.name, _hosts_of(config), days)
    write_file(folder / config.scores, EMPTY, PRIVATE)


def _change(root: Path, configs: Sequence[DeviceConfig], roster: Roster) -> None:
    _write_mesh(root, [config.under(roster) for config in configs], roster)


def _write_mesh(root: Path, configs: Sequence[DeviceConfig], roster: Roster) -> None:
    """Give everybody a new roster, which a device that runs in its folder here will notice."""
    document = document_of(roster, root, configs[0].insecure).bytes()
    write_file(root / ROSTER, document)
    for config in configs:
        write_file(root / config.name / ROSTER, document)
        write_device(root / config.name, config)
    write_file(root / "README.md", readme(configs[0]))


def _roster_of(config: DeviceConfig) -> Roster:
    """Return the roster of a mesh; of one whose map is in device.toml, as if it had number 0."""
    if config.roster is not None:
        return config.roster
    gone = tuple(Revoked(text) for text in config.revoked)
    return Roster(0, config.mesh, config.devices, config.edges, config.endpoints, gone, settled=0)


def _next(before: Roster, settled: int | None = None, forget: bool = False, **changes: Any) -> Roster:
    """Return the roster after another one; refuse one whose devices could never outvote those of an earlier one."""
    number = before.number + 1
    if settled is not None and not before.settled <= settled < number:
        raise ValueError(
            f"--settled must be the number of a roster with a certified result, from {before.settled} to "
            f"{before.number}, got {settled}"
        )
    since = number if forget else max(before.settled, settled or 0)
    known = (*before.earlier, Earlier(before.number, before.devices))
    earlier = tuple(one for one in known if one.number >= since)
    roster = replace(before, number=number, settled=since, earlier=earlier, **changes)
    if lacking := roster.lacks(roster.devices):
        raise ValueError(
            f"roster {number} would have no result: {lacking}. If a later one has a certified result (its number is in "
            "/status), say --settled NUMBER; if the devices that were taken out are off for good, --forget"
        )
    return roster


def _revoking(before: Roster, name: str, old: Sequence[Identity]) -> tuple[Revoked, ...]:
    return tuple(dict.fromkeys([*before.revoked, *(Revoked(name, one.number, one.fingerprint) for one in old)]))


def _without(name: str, table: dict[str, Any]) -> dict[str, Any]:
    return {other: value for other, value in table.items() if other != name}


def _with_certificate(root: Path, configs: Sequence[DeviceConfig], name: str) -> DeviceConfig:
    config = next((one for one in configs if one.name == name), None)
    if config is None:
        raise ValueError(unknown("device", name, [one.name for one in configs]))
    if config.insecure:
        raise ValueError(f"{root}: this mesh is insecure, its devices have no certificates to renew")
    return config


def _hosts_of(config: DeviceConfig) -> tuple[str, ...]:
    return (parse_endpoint(config.endpoints[config.name]).host,)


def _issued(root: Path, name: str) -> list[Identity]:
    return issued(root / "ca", name) or [read_certificate(root / name / CERT)]
