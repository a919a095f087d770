"""From what a node says of itself (``GET /status``) to what a step shows of it: fields, links, brackets, words.

Nothing here asks anybody. A node of another version may leave something out, which is then unknown.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from msgspec import ValidationError, convert

from conformesh.common.names import listed
from conformesh.common.quantities import in_bytes, in_time, pluralize
from conformesh.files.json_numbers import in_json
from conformesh.mesh.node.health import judge_health
from conformesh.mesh.node.status import NodeStatus
from conformesh.results.result import Result
from conformesh.view.trace import Value

Status = Mapping[str, Any]
Words = tuple[str, str]  # level and words, as in a log

# What becomes of the last word of a node that does not answer any more.
DOWN: dict[str, str] = {
    "health": "silent",
    "phase": "down",
    "problem": "nobody answers at its address: it is not running",
}
SILENT: dict[str, str] = {"health": "silent", "phase": "silent", "problem": "it is running, and does not answer"}
CALIBRATING, FAILED = "calibrating", "failed"


def fields_of(status: Status) -> dict[str, Value]:
    """Return what a step shows of a device that has answered, but for who calls it a Byzantine device."""
    certified, gathering = status.get("certified") or {}, status.get("gathering") or {}
    return {
        "health": "healthy" if is_healthy(status) else "unhealthy",
        "phase": status.get("phase"),
        "threshold": certified.get("threshold"),
        "kind": certified.get("kind"),
        "about": _about(status) if certified else None,
        "run": status.get("run"),
        "round": status.get("round"),
        "heard": len(gathering["reported"]) if "reported" in gathering else None,
        "roster": (status.get("roster") or {}).get("number"),
        "sent": (status.get("sent") or {}).get("bytes"),
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


def is_healthy(status: Status) -> bool:
    """Apply the health rule of the node itself to its status."""
    try:
        return judge_health(convert(status, NodeStatus)).healthy
    except ValidationError:  # another version: nothing shows that it is healthy
        return False


def _problems(status: Status) -> Iterable[str]:
    return dict.fromkeys([*(status.get("troubles") or {}).values(), *filter(None, [status.get("last_error")])])


def _about(status: Status) -> str:
    """Say whom a threshold is about, and what else to know before it is trusted."""
    certified = status["certified"]
    words = _about_survivors(certified.get("survivors") or (), certified.get("lost") or ())
    if certified.get("about") == "reported":
        heard = certified.get("reported") or []
        of = (status.get("gathering") or {}).get("devices")
        words = f"{len(heard)}{'' if of is None else f' of {of}'} heard: {listed(heard)}"
    if certified.get("restored"):
        words += f", from before the last start (run {certified.get('run')})"
    under = (status.get("roster") or {}).get("number")
    if certified.get("roster_number") != under:
        words += f", of roster {certified.get('roster_number')}"
    return words


def _first_of(certified: Status) -> str:
    """Return the threshold that is shown, and of several which it is."""
    many = certified.get("answers") or 1
    if many == 1:
        return str(certified.get("threshold"))
    which = ", ".join([*(certified.get("part") or []), f"alpha {certified.get('alpha')}"])
    return f"{certified.get('threshold')} ({which}; the first of {many})"


def _about_survivors(survivors: Sequence[str], lost: Sequence[str]) -> str:
    return f"{len(survivors)} of {len(survivors) + len(lost)}, without {listed(lost)}" if lost else "everybody"


def hearsay_fields(record: Status) -> dict[str, Value]:
    """Return what a step shows of a device that only others have heard of (``GET /mesh``)."""
    names = ("health", "phase", "threshold", "run", "round", "roster")
    found: dict[str, Value] = {name: record.get(name) for name in names}
    about = record.get("about")
    return {**found, "about": about if about is None or isinstance(about, str) else f"{about} devices"}


def byzantine_of(statuses: Mapping[str, Status]) -> dict[str, str]:
    """Return whom devices call Byzantine devices, and who does so."""
    callers: dict[str, list[str]] = {}
    for name, status in statuses.items():
        for byzantine in (status.get("gathering") or {}).get("byzantine") or ():
            callers.setdefault(byzantine, []).append(name)
    return {byzantine: f"has contradicted itself, say {listed(names)}" for byzantine, names in callers.items()}


def received(status: Status) -> dict[str, int]:
    """Return how many bytes a device has received, by neighbour."""
    return {name: int(one.get("bytes_received") or 0) for name, one in (status.get("neighbours") or {}).items()}


def bracket_of(statuses: Iterable[Status]) -> tuple[Value, Value, int | None, int | None] | None:
    """Return where the threshold is looked for, as who is furthest in the newest run says; None where nobody does."""
    told = [status for status in statuses if status.get("search")]
    if not told:
        return None
    found = max(told, key=lambda status: (status.get("run") or 0, status.get("round") or 0))["search"]
    return found.get("low"), found.get("high"), found.get("below"), found.get("upto")


def news_of(before: Status | None, now: Status) -> list[Words]:
    """Return what is worth a line in the log."""
    found = []
    old: Status = before or {}
    if now.get("phase") != old.get("phase") or now.get("run") != old.get("run"):
        level = "error" if now.get("phase") == FAILED else "info"
        found.append((level, f"{now.get('phase')}, run {now.get('run')}"))
    known = {*_problems(old)}
    found += [("warning", words) for words in _problems(now) if words not in known]
    number = (now.get("roster") or {}).get("number")
    if before is not None and number != (old.get("roster") or {}).get("number"):
        found.append(("info", f"roster {number} is in force"))
    return found


def details_of(status: Status, rows: Mapping[str, int]) -> dict[str, Any]:
    """Return what the page of a device shows besides what is recorded; rows by name."""
    sent, certified = status.get("sent") or {}, status.get("certified")
    facts = [
        ("state", f"{status.get('phase')} for {in_time(float(status.get('seconds_in_phase') or 0))}"),
        ("run, round", f"{status.get('run')}, {status.get('round')}"),
        ("roster", str((status.get("roster") or {}).get("number"))),
        ("sent", f"{in_bytes(sent.get('bytes') or 0)} in {pluralize(sent.get('frames') or 0, 'frame')}"),
        ("sent again", pluralize(sent.get("resent_frames") or 0, "frame")),
    ]
    refused = status.get("refused") or {}
    if refused:
        facts.append(("refused", "; ".join(f"{reason}: {count}" for reason, count in refused.items())))
    if certified:
        facts += [
            ("threshold", _first_of(certified)),
            ("about", _about(status)),
            ("method", f"{certified.get('method')}, alpha {certified.get('alpha')}"),
            ("made", f"{certified.get('made')} in run {certified.get('run')}"),
        ]
    facts += [("problem", words) for words in _problems(status)]
    shown = ("last_heard_seconds_ago", "round", "frames_received", "bytes_received")
    neighbours = [
        {"row": rows.get(name, -1), "name": name, **{key: one.get(key) for key in shown}}
        for name, one in (status.get("neighbours") or {}).items()
    ]
    return {"facts": facts, "neighbours": neighbours}
