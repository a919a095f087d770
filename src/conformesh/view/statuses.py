"""From the status of a node (``GET /status``, ``GET /mesh``) to what a step shows of it: fields, links, brackets, log.

Everything is derived from the typed Structs of `mesh.node.status`, and health is judged by `mesh.node.health`: the view
has no rule of its own. Nothing here asks a node.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from conformesh.common.names import list_names
from conformesh.common.quantities import format_bytes, format_time, pluralize
from conformesh.files.json_numbers import as_json_value
from conformesh.mesh.node.health import judge_health
from conformesh.mesh.node.status import CertifiedStatus, DeviceStatus, NodeStatus, Phase
from conformesh.results.result import Result
from conformesh.view.trace import FieldValue

LogLine = tuple[str, str]  # level and text

# What replaces the last fields of a node that no longer answers: because its process is gone, or for unknown reasons.
DOWN_FIELDS: dict[str, str] = {
    "health": "silent",
    "phase": "down",
    "problem": "nobody answers at its address: it is not running",
}
SILENT_FIELDS: dict[str, str] = {
    "health": "silent",
    "phase": "silent",
    "problem": "it is running, and does not answer",
}


def status_fields(status: NodeStatus) -> dict[str, FieldValue]:
    """Return what a step shows of a device that has answered, except whether others call it Byzantine."""
    certified, gathering = status.certified, status.gathering
    return {
        "health": "healthy" if judge_health(status).healthy else "unhealthy",
        "phase": status.phase.value,
        "threshold": None if certified is None else certified.threshold,
        "kind": None if certified is None else certified.kind,
        "about": None if certified is None else _describe_scope(status, certified),
        "run": status.run,
        "round": status.round,
        "heard": None if gathering is None else len(gathering.reported),
        "roster": status.roster.number,
        "sent": status.sent.bytes,
        "problem": "; ".join(_problems(status)) or None,
    }


def result_fields(result: Result, survivors: Sequence[str], lost: Sequence[str]) -> dict[str, FieldValue]:
    """Return what a step shows of a device whose process ended with a result; of several thresholds the first."""
    first = result.answers[0]
    reported = first.certificate.heard
    return {
        "health": "healthy",
        "phase": Phase.CERTIFIED.value,
        "problem": None,
        "threshold": as_json_value(first.threshold),
        "kind": first.certificate.kind,
        "about": f"{len(reported)} heard" if reported else _describe_survivors(survivors, lost),
        "round": result.cost.rounds,
    }


def relayed_fields(status: DeviceStatus) -> dict[str, FieldValue]:
    """Return what a step shows of a device that only another node knows about (``GET /mesh``)."""
    return {
        "health": status.health,
        "phase": None if status.phase is None else status.phase.value,
        "threshold": status.threshold,
        "run": status.run,
        "round": status.round,
        "roster": status.roster,
        "about": None if status.about is None else f"{status.about} devices",
    }


def _problems(status: NodeStatus) -> list[str]:
    """Return the problems of a node, each once: the last error often repeats one of the others."""
    return [*dict.fromkeys([*status.troubles.values(), *filter(None, [status.last_error])])]


def _describe_scope(status: NodeStatus, certified: CertifiedStatus) -> str:
    """Return which devices a threshold is about, and whether it is from an earlier start or roster."""
    words = _describe_survivors(certified.survivors, certified.lost)
    if certified.about == "reported":
        reported = certified.reported or []
        of = "" if status.gathering is None else f" of {status.gathering.devices}"
        words = f"{len(reported)}{of} heard: {list_names(reported)}"
    if certified.restored:
        words += f", from before the last start (run {certified.run})"
    if certified.roster_number != status.roster.number:
        words += f", of roster {certified.roster_number}"
    return words


def _describe_survivors(survivors: Sequence[str], lost: Sequence[str]) -> str:
    return f"{len(survivors)} of {len(survivors) + len(lost)}, without {list_names(lost)}" if lost else "everybody"


def _describe_threshold(certified: CertifiedStatus) -> str:
    """Return the threshold that is shown and, if there are several, which one it is."""
    if certified.answers <= 1:
        return str(certified.threshold)
    which = ", ".join([*certified.part, f"alpha {certified.alpha}"])
    return f"{certified.threshold} ({which}; the first of {certified.answers})"


def byzantine_reasons(statuses: Mapping[str, NodeStatus]) -> dict[str, str]:
    """Return the devices that others call Byzantine, each with the names of those others."""
    callers: dict[str, list[str]] = {}
    for name, status in statuses.items():
        for byzantine in [] if status.gathering is None else status.gathering.byzantine:
            callers.setdefault(byzantine, []).append(name)
    return {byzantine: f"has contradicted itself, say {list_names(names)}" for byzantine, names in callers.items()}


def bytes_received(status: NodeStatus) -> dict[str, int]:
    """Return how many bytes a device has received from each neighbour."""
    return {name: neighbour.bytes_received for name, neighbour in status.neighbours.items()}


def search_bracket(statuses: Iterable[NodeStatus]) -> tuple[FieldValue, FieldValue, int | None, int | None] | None:
    """Return the bracket of the device that is furthest in the newest run; None if no device searches."""
    searching = [status for status in statuses if status.search is not None]
    furthest = max(searching, key=lambda status: (status.run, status.round), default=None)
    if furthest is None or furthest.search is None:
        return None
    search = furthest.search
    return search.low, search.high, search.below, search.upto


def log_lines(before: NodeStatus | None, now: NodeStatus) -> list[LogLine]:
    """Return log lines for what has changed between two statuses of a node."""
    lines = []
    if before is None or (now.phase, now.run) != (before.phase, before.run):
        level = "error" if now.phase is Phase.FAILED else "info"
        lines.append((level, f"{now.phase.value}, run {now.run}"))
    known = [] if before is None else _problems(before)
    lines += [("warning", problem) for problem in _problems(now) if problem not in known]
    if before is not None and now.roster.number != before.roster.number:
        lines.append(("info", f"roster {now.roster.number} is in force"))
    return lines


def device_details(status: NodeStatus, rows: Mapping[str, int]) -> dict[str, Any]:
    """Return what the page of a device shows besides recorded fields; `rows` are those of the devices, by name."""
    sent, certified = status.sent, status.certified
    facts = [
        ("state", f"{status.phase.value} for {format_time(status.seconds_in_phase)}"),
        ("run, round", f"{status.run}, {status.round}"),
        ("roster", str(status.roster.number)),
        ("sent", f"{format_bytes(sent.bytes)} in {pluralize(sent.frames, 'frame')}"),
        ("sent again", pluralize(sent.resent_frames, "frame")),
    ]
    if status.refused:
        facts.append(("refused", "; ".join(f"{reason}: {count}" for reason, count in status.refused.items())))
    if certified is not None:
        facts += [
            ("threshold", _describe_threshold(certified)),
            ("about", _describe_scope(status, certified)),
            ("method", f"{certified.method}, alpha {certified.alpha}"),
            ("made", f"{certified.made} in run {certified.run}"),
        ]
    facts += [("problem", problem) for problem in _problems(status)]
    neighbours = [
        {
            "row": rows.get(name, -1),  # -1: not in the roster that is shown
            "name": name,
            "last_heard_seconds_ago": neighbour.last_heard_seconds_ago,
            "round": neighbour.round,
            "frames_received": neighbour.frames_received,
            "bytes_received": neighbour.bytes_received,
        }
        for name, neighbour in status.neighbours.items()
    ]
    return {"facts": facts, "neighbours": neighbours}
