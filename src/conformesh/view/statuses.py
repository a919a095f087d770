"""From the status of a node (``GET /status``) to what a step shows of it: fields, links, brackets, words.

Nothing here asks anybody, and nothing here judges health: that is done by the rule of the node (`judge_health`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from conformesh.common.names import listed
from conformesh.common.quantities import in_bytes, in_time, pluralize
from conformesh.files.json_numbers import in_json
from conformesh.mesh.node.health import judge_health
from conformesh.mesh.node.status import CertifiedStatus, DeviceStatus, NodeStatus, Phase
from conformesh.results.result import Result
from conformesh.view.trace import Value

Words = tuple[str, str]  # level and words, as in a log

# What becomes of the last word of a node that does not answer any more.
DOWN: dict[str, str] = {
    "health": "silent",
    "phase": "down",
    "problem": "nobody answers at its address: it is not running",
}
SILENT: dict[str, str] = {"health": "silent", "phase": "silent", "problem": "it is running, and does not answer"}
CALIBRATING, FAILED = Phase.CALIBRATING.value, Phase.FAILED.value


def fields_of(status: NodeStatus) -> dict[str, Value]:
    """Return what a step shows of a device that has answered, but for who calls it a Byzantine device."""
    certified, gathering = status.certified, status.gathering
    return {
        "health": "healthy" if judge_health(status).healthy else "unhealthy",
        "phase": status.phase.value,
        "threshold": None if certified is None else certified.threshold,
        "kind": None if certified is None else certified.kind,
        "about": None if certified is None else _about(status, certified),
        "run": status.run,
        "round": status.round,
        "heard": None if gathering is None else len(gathering.reported),
        "roster": status.roster.number,
        "sent": status.sent.bytes,
        "problem": "; ".join(_problems(status)) or None,
    }


def certified_fields(result: Result, survivors: Sequence[str], lost: Sequence[str]) -> dict[str, Value]:
    """Return what a step shows of a device that has calibrated once and ended well; of several answers the first."""
    first = result.answers[0]
    heard = first.certificate.heard
    return {
        "health": "healthy",
        "phase": "certified",
        "problem": None,
        "threshold": in_json(first.threshold),
        "kind": first.certificate.kind,
        "about": f"{len(heard)} heard" if heard else _about_survivors(survivors, lost),
        "round": result.cost.rounds,
    }


def _problems(status: NodeStatus) -> Iterable[str]:
    return dict.fromkeys([*status.troubles.values(), *filter(None, [status.last_error])])


def _about(status: NodeStatus, certified: CertifiedStatus) -> str:
    """Return which devices a threshold is about, and what else to know before it is trusted."""
    words = _about_survivors(certified.survivors, certified.lost)
    if certified.about == "reported":
        reported = certified.reported or []
        of = "" if status.gathering is None else f" of {status.gathering.devices}"
        words = f"{len(reported)}{of} heard: {listed(reported)}"
    if certified.restored:
        words += f", from before the last start (run {certified.run})"
    if certified.roster_number != status.roster.number:
        words += f", of roster {certified.roster_number}"
    return words


def _first_of(certified: CertifiedStatus) -> str:
    """Return the threshold that is shown, and of several which it is."""
    if certified.answers == 1:
        return str(certified.threshold)
    which = ", ".join([*certified.part, f"alpha {certified.alpha}"])
    return f"{certified.threshold} ({which}; the first of {certified.answers})"


def _about_survivors(survivors: Sequence[str], lost: Sequence[str]) -> str:
    return f"{len(survivors)} of {len(survivors) + len(lost)}, without {listed(lost)}" if lost else "everybody"


def hearsay_fields(device: DeviceStatus) -> dict[str, Value]:
    """Return what a step shows of a device that only others have heard of (``GET /mesh``)."""
    return {
        "health": device.health,
        "phase": None if device.phase is None else device.phase.value,
        "threshold": device.threshold,
        "run": device.run,
        "round": device.round,
        "roster": device.roster,
        "about": None if device.about is None else f"{device.about} devices",
    }


def byzantine_of(statuses: Mapping[str, NodeStatus]) -> dict[str, str]:
    """Return which devices are called Byzantine, and by whom."""
    callers: dict[str, list[str]] = {}
    for name, status in statuses.items():
        for byzantine in [] if status.gathering is None else status.gathering.byzantine:
            callers.setdefault(byzantine, []).append(name)
    return {byzantine: f"has contradicted itself, say {listed(names)}" for byzantine, names in callers.items()}


def received(status: NodeStatus) -> dict[str, int]:
    """Return how many bytes a device has received, by neighbour."""
    return {name: neighbour.bytes_received for name, neighbour in status.neighbours.items()}


def bracket_of(statuses: Iterable[NodeStatus]) -> tuple[Value, Value, int | None, int | None] | None:
    """Return the bracket of the threshold in the node that is furthest in the newest run; None if no node has one."""
    searching = [(status.run, status.round, status.search) for status in statuses if status.search is not None]
    if not searching:
        return None
    _, _, search = max(searching, key=lambda one: one[:2])
    return search.low, search.high, search.below, search.upto


def news_of(before: NodeStatus | None, now: NodeStatus) -> list[Words]:
    """Return what is worth a line in the log."""
    news = []
    if before is None or (now.phase, now.run) != (before.phase, before.run):
        level = "error" if now.phase is Phase.FAILED else "info"
        news.append((level, f"{now.phase.value}, run {now.run}"))
    known = () if before is None else {*_problems(before)}
    news += [("warning", words) for words in _problems(now) if words not in known]
    if before is not None and now.roster.number != before.roster.number:
        news.append(("info", f"roster {now.roster.number} is in force"))
    return news


def details_of(status: NodeStatus, rows: Mapping[str, int]) -> dict[str, Any]:
    """Return what the page of a device shows besides what is recorded; rows by name."""
    sent, certified = status.sent, status.certified
    facts = [
        ("state", f"{status.phase.value} for {in_time(status.seconds_in_phase)}"),
        ("run, round", f"{status.run}, {status.round}"),
        ("roster", str(status.roster.number)),
        ("sent", f"{in_bytes(sent.bytes)} in {pluralize(sent.frames, 'frame')}"),
        ("sent again", pluralize(sent.resent_frames, "frame")),
    ]
    if status.refused:
        facts.append(("refused", "; ".join(f"{reason}: {count}" for reason, count in status.refused.items())))
    if certified is not None:
        facts += [
            ("threshold", _first_of(certified)),
            ("about", _about(status, certified)),
            ("method", f"{certified.method}, alpha {certified.alpha}"),
            ("made", f"{certified.made} in run {certified.run}"),
        ]
    facts += [("problem", words) for words in _problems(status)]
    neighbours = [
        {
            "row": rows.get(name, -1),
            "name": name,
            "last_heard_seconds_ago": neighbour.last_heard_seconds_ago,
            "round": neighbour.round,
            "frames_received": neighbour.frames_received,
            "bytes_received": neighbour.bytes_received,
        }
        for name, neighbour in status.neighbours.items()
    ]
    return {"facts": facts, "neighbours": neighbours}
