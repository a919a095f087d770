"""Check folders of devices before they start, each alone and several for agreement. Nothing is sent."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Literal

from conformesh.files.atomic_writes import readable_by_others
from conformesh.mesh.config.authority import describe_interruption
from conformesh.mesh.config.certificates import CA_KEY, read_certificate
from conformesh.mesh.config.device_toml import DEVICE_FILE, DeviceConfig, read_device
from conformesh.mesh.config.endpoints import HIGHEST_PORT, parse_endpoint
from conformesh.mesh.config.key_pair import check_key_pair, name_problems
from conformesh.mesh.config.local_scores import read_local_scores
from conformesh.mesh.config.roster import ROSTER_FILE, read_roster_file
from conformesh.mesh.config.signing import verify_document
from conformesh.methods import get_method

SERVER_WARNING = "needs a server and a mesh has none: what it would send there floods the network; e-dcp needs neither"
_SOON = timedelta(days=30)  # before a certificate expires a warning begins; a choice

Level = Literal["fine", "warning", "error"]
Code = Literal["", "unreadable", "silent"]


@dataclass(frozen=True)
class ConfigError:
    """One finding of a check, also a good one: the device, what was checked, its level, and what to do.

    `code` is for programs: `unreadable` for a configuration that cannot be read, `silent` for a neighbour that does not
    answer. The text may change, the codes do not.
    """

    device: str
    what: str
    level: Level
    text: str
    code: Code = ""


def check_folder(folder: Path, now: datetime | None = None) -> list[ConfigError]:
    """Return what is wrong in one device's folder, or soon will be, without using the network."""
    return [found for found in examine_folder(folder, now) if found.level != "fine"]


def examine_folder(folder: Path, now: datetime | None = None) -> list[ConfigError]:
    """Return all findings about one device's folder, also what is fine."""
    folder = Path(folder)
    try:
        config = read_device(folder)
    except ValueError as problem:
        return [ConfigError(folder.name, DEVICE_FILE, "error", str(problem), "unreadable")]
    moment = now or datetime.now(UTC)
    return [
        *_check_method(config),
        *_check_roster(config),
        *_check_certificate(config, moment),
        *_check_port(config),
        *_check_scores(config),
    ]


def examine_folders(
    folders: Sequence[Path], roots: Sequence[Path] = ()
) -> tuple[list[ConfigError], dict[str, dict[str, list[str]]]]:
    """Look at several folders of devices and at the authorities in `roots`; return findings, and what differs."""
    found = [finding for root in roots for finding in examine_authority(root)]
    found += [finding for folder in folders for finding in examine_folder(folder)]
    unreadable = {finding.device for finding in found if finding.code == "unreadable"}
    readable = [folder for folder in folders if folder.name not in unreadable]
    differing = compare_agreements(readable)
    found += [
        ConfigError(_first_names(names), f"agree on {field}", "error", value)
        for field, values in differing.items()
        for value, names in values.items()
    ]
    return found + compare_maps(readable), differing


def compare_agreements(folders: Sequence[Path]) -> dict[str, dict[str, list[str]]]:
    """Return what differs between folders of one mesh: field -> value -> the devices that have it."""
    configs = [read_device(folder) for folder in folders]
    found_values: dict[str, dict[str, list[str]]] = {}
    for config in configs:
        for field, value in config.agreement().items():
            found_values.setdefault(field, {}).setdefault(value, []).append(config.name)
    everyone = len(configs)
    for field, values in found_values.items():  # a method without that option says nothing about it
        devices_with_field = {name for names in values.values() for name in names}
        if len(devices_with_field) < everyone:
            values["no such option"] = [config.name for config in configs if field not in config.agreement()]
    return {field: values for field, values in found_values.items() if len(values) > 1}


def compare_maps(folders: Sequence[Path]) -> list[ConfigError]:
    """Return where maps of folders differ in what is not part of the agreement.

    Two devices may reach a third at different addresses, behind a router for instance, so that is a warning. An
    authority or a list of revoked devices of its own means that a folder was not copied again.
    """
    configs = [read_device(folder) for folder in folders]
    found_values: dict[tuple[str, Level], dict[str, list[str]]] = {}
    for config in configs:
        revoked = ", ".join(sorted(config.revoked)) or "nobody"
        facts: dict[tuple[str, Level], str] = {("revoked", "error"): revoked, **_authority_serial(config)}
        facts |= {(f"endpoint of {name}", "warning"): at for name, at in config.endpoints.items()}
        for key, value in facts.items():
            found_values.setdefault(key, {}).setdefault(value, []).append(config.name)
    return [
        ConfigError(_first_names(names), f"same {what}", level, value)
        for (what, level), values in found_values.items()
        if len(values) > 1
        for value, names in values.items()
    ]


def _first_names(names: Sequence[str]) -> str:
    """Return the first three names."""
    return ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")


def _authority_serial(config: DeviceConfig) -> dict[tuple[str, Level], str]:
    try:
        return (
            {}
            if config.security.insecure
            else {("authority", "error"): f"serial {read_certificate(config.path('ca')).serial}"}
        )
    except ValueError:  # devices_with_field elsewhere
        return {}


def examine_authority(root: Path) -> list[ConfigError]:
    """Look at the authority in the folder of a whole mesh, if there is one."""
    words = describe_interruption(Path(root))
    found = [ConfigError("ca", "authority", "error", words)] if words else []
    key = Path(root) / "ca" / CA_KEY
    if not key.is_file():
        return found
    if readable_by_others(key):
        words = f"{CA_KEY} can be read by others, and whoever has it can make devices; run: chmod 600 {key}"
        return [*found, ConfigError("ca", "authority", "error", words)]
    return [*found, ConfigError("ca", "authority", "fine", f"{CA_KEY} can be read by its owner alone")]


def _check_method(config: DeviceConfig) -> list[ConfigError]:
    if get_method(config.run.method).description.needs == "server":
        return [ConfigError(config.name, DEVICE_FILE, "warning", f"method {config.run.method!r} {SERVER_WARNING}")]
    count = len(config.neighbours)
    words = (
        f"{config.run.method}, {_guarantee_in_words(config)}, {len(config.devices)} devices, {count} of them neighbours"
    )
    return [ConfigError(config.name, DEVICE_FILE, "fine", words)]


def _guarantee_in_words(config: DeviceConfig) -> str:
    guarantee = config.chosen_guarantee
    words = [f"alpha {', '.join(f'{float(alpha):g}' for alpha in guarantee.alphas)}"]
    if guarantee.groups is not None:
        words.append(f"{len(guarantee.groups.names)} groups")
    if guarantee.sides is not None:
        words.append("two sides")
    if config.guarantee.adapt is not None:
        words.append(f"scores adapted by {config.guarantee.adapt}")
    if guarantee.weighting is not None:
        words.append(f"weights of at most {guarantee.weighting.bound:g}")
    return ", ".join(words)


def _check_roster(config: DeviceConfig) -> list[ConfigError]:
    document = read_roster_file(config.folder)
    if document is None:
        words = f"none: the map is in {DEVICE_FILE}, and changes are copied by hand; `conformesh mesh add` makes one"
        return [ConfigError(config.name, ROSTER_FILE, "warning", words)]
    roster = document.roster
    words = f"number {roster.number}, {len(roster.devices)} devices, digest {roster.digest[:16]}"
    if config.security.insecure:
        return [ConfigError(config.name, ROSTER_FILE, "warning", f"{words}; not signed: anybody can hand out another")]
    try:
        verify_document(document, config.path("ca"))
    except ValueError as problem:
        return [
            ConfigError(config.name, ROSTER_FILE, "error", f"{problem}; copy it from the folder with the authority")
        ]
    return [ConfigError(config.name, ROSTER_FILE, "fine", f"{words}, signed by the authority")]


def _check_certificate(config: DeviceConfig, now: datetime) -> list[ConfigError]:
    def of(level: Level, text: str) -> ConfigError:
        return ConfigError(config.name, "certificate", level, text)

    if config.security.insecure:
        return [of("warning", "none: links are not encrypted and anybody can take part (insecure = true)")]
    cert, ca = config.path("cert"), config.path("ca")
    file = config.security.cert
    found = [of("error", words) for words in check_key_pair(cert, config.path("key"), ca, now=now)]
    if (config.folder / CA_KEY).exists():
        found.append(
            of("error", f"{CA_KEY} must never be in a device's folder; delete it here, it stays with the authority")
        )
    try:
        own, root = read_certificate(cert), read_certificate(ca)
    except ValueError:
        return found
    found += [
        of("error", words)
        for words in name_problems(cert, own.name, config.name, config.lowest_certificate(config.name))
    ]
    if {own.serial, own.fingerprint, config.name} & {*config.revoked}:
        found.append(of("error", f"{file} is revoked (serial {own.serial}); this device is out of the mesh"))
    host = parse_endpoint(config.endpoints[config.name]).host
    if host not in own.hosts:
        at = ", ".join(own.hosts) or "no host"
        found.append(of("error", f"{file} is for {at}, but neighbours reach this device at {host}; renew it"))
    for identity, name in ((own, config.security.cert), (root, config.security.ca)):
        if now <= identity.not_after <= now + _SOON:
            left = (identity.not_after - now).days
            found.append(of("warning", f"{name} expires on {identity.not_after:%Y-%m-%d}, in {left} days; renew it"))
    which = f"number {own.number}, serial {own.serial}"
    return found or [of("fine", f"{which}, until {own.not_after:%Y-%m-%d}, by {own.issuer}")]


def _check_port(config: DeviceConfig) -> list[ConfigError]:
    listen, reached = parse_endpoint(config.listen), parse_endpoint(config.endpoints[config.name])
    words = f"listens on {listen}, reached at {reached}"
    if listen.port > HIGHEST_PORT:
        words += f"; ports above {HIGHEST_PORT} may be taken by outgoing connections, choose a lower one"
        return [ConfigError(config.name, "port", "warning", words)]
    if listen.port != reached.port:
        words += "; the ports differ, which is right only where something forwards one to the other"
        return [ConfigError(config.name, "port", "warning", words)]
    return [ConfigError(config.name, "port", "fine", words)]


def _check_scores(config: DeviceConfig) -> list[ConfigError]:
    try:
        found = read_local_scores(config)
    except ValueError as problem:
        return [ConfigError(config.name, "scores", "error", str(problem))]
    n = len(found)
    if found.problem:
        return [ConfigError(config.name, "scores", "warning", found.problem)]
    if not n:
        what = "scores" if found.rows is None else "labelled rows"
        words = f"{config.scores.file} holds no {what}; the device takes part without"
        return [ConfigError(config.name, "scores", "warning", words)]
    return [ConfigError(config.name, "scores", "fine", f"n = {n:,} in {config.scores.file}")]
