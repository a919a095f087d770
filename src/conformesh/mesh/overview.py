"""The status of a whole mesh, collected from the nodes that can be asked from here; for ``mesh status``.

Health is not judged here: each node applies the health rule to itself, and reports what it knows about the others.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from msgspec import ValidationError, convert, to_builtins

from conformesh.common.names import list_names
from conformesh.mesh.config.device_config import DeviceConfig, Neighbour
from conformesh.mesh.config.device_toml import DEVICE_FILE, read_device
from conformesh.mesh.config.reach import reach_device
from conformesh.mesh.http.client import Client, NodeError
from conformesh.mesh.node.status import DeviceStatus, MeshStatus

# Exit codes for scripts: everything is well; something is not; no node could be asked.
FINE, WRONG, NOBODY = 0, 1, 3
_OVERVIEW_TIMEOUT = 5.0  # seconds; a process that is stopped (SIGSTOP) accepts a connection and never answers
_ASK_AT_ONCE = 16  # threads; they only wait, so the number bounds open files rather than work
_MOST_NAMED = 5  # devices or links that the sentence names; `--json` has all


@dataclass(frozen=True)
class Overview:
    """The status of a mesh as it was collected.

    Attributes
    ----------
    devices, edges
        The status of each device, with `probe` if its endpoint was tried; pairs of names.
    asked
        The nodes that answered.
    links_down
        Pairs of names: links over which the first device receives nothing from the second.
    code
        0 if all devices are healthy, have one threshold and hear their neighbours; 1 if not; 3 if no node answered.
    words
        The same in a sentence.
    """

    devices: list[DeviceStatus]
    edges: list[list[str]]
    asked: list[str]
    links_down: list[list[str]]
    code: int
    words: str

    def to_dict(self) -> dict[str, Any]:
        """Return everything as JSON."""
        about = {"ok": self.code == FINE, "code": self.code, "words": self.words, "asked": self.asked}
        return {**about, "devices": to_builtins(self.devices), "edges": self.edges, "links_down": self.links_down}


def ask_mesh(where: str | os.PathLike[str]) -> Overview:
    """Ask all nodes that can be asked from here.

    Parameters
    ----------
    where
        A device's folder, the folder of a mesh, a socket, or "127.0.0.1:port". With a folder, the endpoints of devices
        that are silent or unknown are tried from here.
    """
    folders = _device_folders(Path(where))
    answers = _ask(folders or [where])
    configs = [config for folder in folders if (config := _read_config(folder)) is not None]
    devices, edges = _merge(answers, configs)
    _probe(devices, configs)
    asked = [answer.device for answer in answers]
    if not asked:
        words = f"nobody could be asked: no node answers at {os.fspath(where)}; is `conformesh node` running?"
        return Overview(devices, edges, asked, [], NOBODY, words)
    links_down = [[answer.device, name] for answer in answers for name in answer.links_down]
    return Overview(devices, edges, asked, links_down, *_summarise(devices, links_down))


def _device_folders(where: Path) -> list[Path]:
    """Return a device's folder itself, or those inside the folder of a mesh; none for an address."""
    if (where / DEVICE_FILE).exists():
        return [where]
    return sorted(path.parent for path in where.glob(f"*/{DEVICE_FILE}")) if where.is_dir() else []


def _read_config(folder: Path) -> DeviceConfig | None:
    try:
        return read_device(folder)
    except ValueError:  # `mesh check` says what is wrong with it
        return None


def _ask(addresses: Sequence[str | os.PathLike[str]]) -> list[MeshStatus]:
    def ask(address: str | os.PathLike[str]) -> MeshStatus | None:
        try:
            return convert(Client(address, timeout=_OVERVIEW_TIMEOUT).mesh(), MeshStatus)
        except (NodeError, ValidationError):  # not running, or of another version
            return None

    with ThreadPoolExecutor(min(_ASK_AT_ONCE, len(addresses))) as pool:
        return [answer for answer in pool.map(ask, addresses) if answer is not None]


def _merge(
    answers: Sequence[MeshStatus], configs: Sequence[DeviceConfig]
) -> tuple[list[DeviceStatus], list[list[str]]]:
    """Return the best known status of every device in the newest roster that any node is under."""
    if not answers:
        if not configs:
            return [], []
        newest = max(configs, key=lambda config: config.roster_number)
        unknown = [DeviceStatus.unknown(name, len(newest.devices)) for name in newest.devices]
        return unknown, [[*edge] for edge in newest.edges]
    base = max(answers, key=_roster_of)
    best = {device.name: device for device in base.devices}
    for device in (device for answer in answers for device in answer.devices):
        if device.name in best and _distance(device) < _distance(best[device.name]):
            best[device.name] = device
    return [*best.values()], base.edges


def _roster_of(answer: MeshStatus) -> int:
    """Return the roster that the answering node itself is under."""
    own = next(device for device in answer.devices if device.name == answer.device)
    return own.roster or 0


def _distance(device: DeviceStatus) -> tuple[bool, float]:
    """Order reports by how good they are: first a device's own, then the most recent."""
    ago = device.heard_seconds_ago
    return device.via != "itself", float("inf") if ago is None else ago


def _probe(devices: Iterable[DeviceStatus], configs: Sequence[DeviceConfig]) -> None:
    """Try the endpoints of devices that are silent or unknown; as one of their neighbours if its folder is here."""
    quiet = [device for device in devices if device.health in ("silent", "unknown")]

    def probe(device: DeviceStatus) -> None:
        name = device.name
        others = [config for config in configs if config.name != name and name in config.endpoints]
        if others:
            near = [config for config in others if name in (neighbour.name for neighbour in config.neighbours)]
            config = (near or others)[0]
            device.probe = reach_device(config, Neighbour(name, config.endpoints[name])).text

    if quiet and configs:
        with ThreadPoolExecutor(min(_ASK_AT_ONCE, len(quiet))) as pool:
            [*pool.map(probe, quiet)]


def _summarise(devices: Sequence[DeviceStatus], links_down: Sequence[Sequence[str]] = ()) -> tuple[int, str]:
    """Return the exit code and the sentence."""
    count = f"{len(devices)} device{'s' * (len(devices) != 1)}"
    sick = [f"{device.name} is {device.health}" for device in devices if device.health != "healthy"]
    differing = _differing_thresholds(devices)
    health = (
        f"{count}, all healthy"
        if not sick
        else f"{count}, {len(devices) - len(sick)} healthy; " + _name_first(sick, "more are not")
    )
    pairs = [*dict.fromkeys(" - ".join(sorted(pair)) for pair in links_down)]  # both ends may report one link
    down = f"links down: {_name_first(pairs, 'more')}" if pairs else ""
    words = [health, down, _raised_alarms(devices), differing or _common_threshold(devices)]
    return (WRONG if sick or differing or pairs else FINE), "; ".join(filter(None, words))


def _raised_alarms(devices: Sequence[DeviceStatus]) -> str:
    """Return where drift alarms are raised: the data has changed, so no device is unhealthy because of it."""
    at = [device.name for device in devices if "device" in device.alarms]
    fleet = ["of the fleet"] if any("fleet" in device.alarms for device in devices) else []
    raised = [*fleet, *([f"of {list_names(at)}"] if at else [])]
    return f"drift alarm {' and '.join(raised)}" if raised else ""


def _name_first(words: Sequence[str], rest: str) -> str:
    more = f" and {len(words) - _MOST_NAMED} {rest}" if len(words) > _MOST_NAMED else ""
    return ", ".join(words[:_MOST_NAMED]) + more


def _differing_thresholds(devices: Sequence[DeviceStatus]) -> str:
    """Return where devices have different thresholds of one run, though they must have the same."""
    by_run: dict[int, dict[float, list[str]]] = {}
    for device in devices:
        if device.common and device.certified_run is not None and device.threshold is not None:
            by_run.setdefault(device.certified_run, {}).setdefault(float(device.threshold), []).append(device.name)
    differing = [
        f"thresholds of run {run} differ: "
        + ", ".join(f"{threshold} on {list_names(names)}" for threshold, names in by_threshold.items())
        for run, by_threshold in sorted(by_run.items())
        if len(by_threshold) > 1
    ]
    return "; ".join(differing)


def _common_threshold(devices: Sequence[DeviceStatus]) -> str:
    """Return the threshold and how many devices it is about; if there are several, their runs."""
    found = {(one.certified_run or 0, one.threshold, one.about, one.devices) for one in devices if one.common}
    if len(found) != 1:
        runs = sorted({run for run, *_ in found})
        return f"thresholds of runs {', '.join(map(str, runs))}" if len(runs) > 1 else ""
    ((run, threshold, about, count),) = found
    return f"threshold {threshold} of run {run}, about {about} of {count} devices"
