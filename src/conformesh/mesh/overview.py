"""How a mesh is, as seen from one place: what the nodes that can be asked here have heard of everybody."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from conformesh.common.names import listed
from conformesh.mesh.config.device_config import DeviceConfig, Neighbour
from conformesh.mesh.config.device_toml import DEVICE_FILE, read_device
from conformesh.mesh.config.reach import reach_device
from conformesh.mesh.http.client import Client, NodeError

FINE, WRONG, NOBODY = 0, 1, 3  # codes for scripts: all is well; something is not; there was nobody to ask
ANSWER_TIMEOUT = 5.0  # seconds for an answer: a process that is stopped accepts a connection, and says nothing
AT_ONCE = 16
Row = dict[str, Any]


@dataclass(frozen=True)
class Overview:
    """What is known of a mesh.

    Attributes
    ----------
    rows, edges
        A row for each device, as ``/mesh`` has them, with `probe` where its endpoint was tried; pairs of names.
    asked
        The nodes that answered.
    links_down
        Pairs of names: links over which the first device hears nothing from the second.
    code
        0 if all devices are healthy, have one threshold and hear their neighbours; 1 if not; 3 if nobody was there to
        ask.
    words
        The same in a sentence.
    """

    rows: list[Row]
    edges: list[list[str]]
    asked: list[str]
    links_down: list[list[str]]
    code: int
    words: str

    def to_dict(self) -> dict[str, Any]:
        """Return everything as JSON."""
        about = {"ok": self.code == FINE, "code": self.code, "words": self.words, "asked": self.asked}
        return {**about, "devices": self.rows, "edges": self.edges, "links_down": self.links_down}


def overview(where: str | os.PathLike[str]) -> Overview:
    """Ask all nodes that can be asked from here.

    Parameters
    ----------
    where
        A device's folder, the folder of a mesh, a socket, or "127.0.0.1:port". With a folder, the endpoints of devices
        of which nobody knows, or which are silent, are tried from here.
    """
    folders = _folders(Path(where))
    answers = _asked(folders or [where])
    configs = [config for folder in folders if (config := _config(folder)) is not None]
    rows, edges = _merged(answers, configs)
    _probe(rows, configs)
    asked = [answer["device"] for answer in answers]
    if not asked:
        words = f"nobody could be asked: no node answers at {os.fspath(where)}; is `conformesh node` running?"
        return Overview(rows, edges, asked, [], NOBODY, words)
    links_down = [[answer["device"], name] for answer in answers for name in answer["links_down"]]
    return Overview(rows, edges, asked, links_down, *_judged(rows, links_down))


def _folders(where: Path) -> list[Path]:
    """A device's folder itself, or those inside the folder of a mesh; none where it is an address."""
    if (where / DEVICE_FILE).exists():
        return [where]
    return sorted(path.parent for path in where.glob(f"*/{DEVICE_FILE}")) if where.is_dir() else []


def _config(folder: Path) -> DeviceConfig | None:
    try:
        return read_device(folder)
    except ValueError:  # `mesh check` says what is wrong with it
        return None


def _asked(addresses: Sequence[str | os.PathLike[str]]) -> list[dict[str, Any]]:
    def ask(address: str | os.PathLike[str]) -> dict[str, Any] | None:
        try:
            return Client(address, timeout=ANSWER_TIMEOUT).mesh()
        except NodeError:
            return None

    with ThreadPoolExecutor(min(AT_ONCE, len(addresses))) as pool:
        return [answer for answer in pool.map(ask, addresses) if answer is not None]


def _merged(answers: Sequence[dict[str, Any]], configs: Sequence[DeviceConfig]) -> tuple[list[Row], list[list[str]]]:
    """Return what is known best of everybody in the newest roster that anybody is under."""
    if not answers:
        if not configs:
            return [], []
        newest = max(configs, key=lambda config: config.roster_number)
        return [_unheard(name, newest) for name in newest.devices], [[*edge] for edge in newest.edges]
    base = max(answers, key=lambda answer: int(_own(answer)["roster"] or 0))
    best = {row["name"]: row for row in base["devices"]}
    for row in (row for answer in answers for row in answer["devices"]):
        if row["name"] in best and _worth(row) < _worth(best[row["name"]]):
            best[row["name"]] = row
    return [dict(row) for row in best.values()], base["edges"]


def _own(answer: Mapping[str, Any]) -> Row:
    return next(row for row in answer["devices"] if row["name"] == answer["device"])


def _worth(row: Row) -> tuple[bool, float]:
    """Less is better: what a device says itself, then what was said last."""
    ago = row["heard_seconds_ago"]
    return row["via"] != "itself", float("inf") if ago is None else float(ago)


def _unheard(name: str, config: DeviceConfig) -> Row:
    known = ("heard_seconds_ago", "phase", "run", "round", "roster", "certified_run", "threshold", "common", "about")
    nothing: Row = dict.fromkeys(known)
    return {
        "name": name,
        "health": "unknown",
        "via": "nobody",
        "reasons": [],
        "alarms": [],
        **nothing,
        "devices": len(config.devices),
    }


def _probe(rows: Iterable[Row], configs: Sequence[DeviceConfig]) -> None:
    """Try the endpoints of devices that are silent or unknown; as a neighbour of it, if its folder is here."""
    quiet = [row for row in rows if row["health"] in ("silent", "unknown")]

    def probe(row: Row) -> None:
        name = row["name"]
        others = [config for config in configs if config.name != name and name in config.endpoints]
        if others:
            near = [config for config in others if name in (one.name for one in config.neighbours)]
            config = (near or others)[0]
            row["probe"] = reach_device(config, Neighbour(name, config.endpoints[name])).text

    if quiet and configs:
        with ThreadPoolExecutor(min(AT_ONCE, len(quiet))) as pool:
            [*pool.map(probe, quiet)]


def _judged(rows: Sequence[Row], links_down: Sequence[Sequence[str]] = ()) -> tuple[int, str]:
    """Return the code and the sentence."""
    count = f"{len(rows)} device{'s' * (len(rows) != 1)}"
    sick = [f"{row['name']} is {row['health']}" for row in rows if row["health"] != "healthy"]
    differing = _differing(rows)
    health = (
        f"{count}, all healthy"
        if not sick
        else f"{count}, {len(rows) - len(sick)} healthy; " + _few(sick, "more are not")
    )
    pairs = [*dict.fromkeys(" - ".join(sorted(pair)) for pair in links_down)]  # both ends may say so
    down = f"links down: {_few(pairs, 'more')}" if pairs else ""
    words = [health, down, _drifting(rows), differing or _threshold(rows)]
    return (WRONG if sick or differing or pairs else FINE), "; ".join(filter(None, words))


def _drifting(rows: Sequence[Row]) -> str:
    """Say where drift alarms are raised: what has changed is the data, so nothing is wrong with a device."""
    alarms = {row["name"]: row.get("alarms", ()) for row in rows}  # an earlier version has none
    at = [name for name, whose in alarms.items() if "device" in whose]
    fleet = ["of the fleet"] if any("fleet" in whose for whose in alarms.values()) else []
    found = [*fleet, *([f"of {listed(at)}"] if at else [])]
    return f"drift alarm {' and '.join(found)}" if found else ""


def _few(words: Sequence[str], rest: str, most: int = 5) -> str:
    more = f" and {len(words) - most} {rest}" if len(words) > most else ""
    return ", ".join(words[:most]) + more


def _differing(rows: Sequence[Row]) -> str:
    """Say where devices have different thresholds of one run, though they must have the same."""
    by_run: dict[int, dict[Any, list[str]]] = {}
    for row in rows:
        if row["common"]:
            by_run.setdefault(row["certified_run"], {}).setdefault(row["threshold"], []).append(row["name"])
    found = [
        f"thresholds of run {run} differ: "
        + ", ".join(f"{threshold} on {listed(names)}" for threshold, names in by_threshold.items())
        for run, by_threshold in sorted(by_run.items())
        if len(by_threshold) > 1
    ]
    return "; ".join(found)


def _threshold(rows: Sequence[Row]) -> str:
    """Say which threshold there is, and about whom; where there are several, how many."""
    found = {(row["certified_run"], row["threshold"], row["about"], row["devices"]) for row in rows if row["common"]}
    if len(found) != 1:
        runs = sorted({run for run, *_ in found})
        return f"thresholds of runs {', '.join(map(str, runs))}" if len(runs) > 1 else ""
    ((run, threshold, about, devices),) = found
    return f"threshold {threshold} of run {run}, about {about} of {devices} devices"
