"""The health rule: whether a node is healthy, and why not.

This is the only place that decides: the node, its neighbours (by heartbeat), ``mesh status`` and the view all use it.
A node is healthy if

- it has a certified threshold,
- nothing is wrong on the device itself (`Trouble`), and
- the latest requested run has succeeded, or is in progress within its patience and no attempt has failed.

An attempt that fails keeps the node unhealthy until a run succeeds, however often it is tried again. Links that are
down are named; they do not make a node unhealthy by themselves, since its threshold stays valid and under
`on_lost = "continue"` runs succeed without them.
"""

from __future__ import annotations

from typing import NamedTuple

from conformesh.common.names import list_names
from conformesh.mesh.node.status import CertifiedStatus, NodeStatus
from conformesh.peer.settings import FAILURES

_UNCERTIFIED, _OVERDUE = "uncertified", "overdue"
# Why a device is not healthy, as others are told. Texts may quote files, and stay on the device. The order is that of
# bits in a heartbeat: a new code goes to the end, otherwise nodes of two versions would misread each other.
_LATER = ("privacy",)
_EARLIER = (code for code in FAILURES if code not in _LATER)
HEALTH_CODES: tuple[str, ...] = (*_EARLIER, _UNCERTIFIED, *_LATER, "disk", _OVERDUE)


class Health(NamedTuple):
    """Whether a node is healthy; remarks in words; codes that say why it is not; neighbours that are silent."""

    healthy: bool
    words: list[str]
    codes: list[str]
    links_down: list[str]


def judge_health(status: NodeStatus) -> Health:
    """Apply the rule. A healthy node may have remarks too; it never has codes."""
    certified, links_down = status.certified, status.links_down()
    words = [f"{trouble.value}: {problem}" for trouble, problem in status.troubles.items()]
    words.append(explain_missing_threshold(status) if certified is None else _describe_threshold(certified))
    words += [f"drift alarm of the {scope}" for scope in status.raised_alarms()]
    if certified is not None and certified.roster_number < status.roster.number:
        at, under = certified.roster_number, status.roster.number
        words.append(f"the threshold is of roster {at}, and roster {under} is in force")
    words += _describe_request(status)
    if links_down:
        words.append(f"no message from {list_names(links_down)}: the device or the link to it is down")
    codes = _list_codes(status)
    return Health(not codes, [*filter(None, words)], codes, links_down)


def _describe_threshold(certified: CertifiedStatus) -> str:
    """Return what to know before the threshold is trusted; nothing if it is new and about all devices."""
    if certified.restored:
        return f"the threshold is the one of run {certified.run}, from before the last start"
    if certified.about == "reported":
        return f"the threshold is about the {certified.devices} devices that have reported so far"
    if certified.lost:
        devices = certified.devices + len(certified.lost)
        return f"the threshold is about {certified.devices} of {devices} devices, without {list_names(certified.lost)}"
    return ""


def _list_codes(status: NodeStatus) -> list[str]:
    """Return why the node is not healthy; nothing if it is."""
    codes, request = [trouble.value for trouble in status.troubles], status.request
    if request is not None and request.failed is not None:
        codes.append(status.failure or "other")
    elif request is not None and request.overdue:
        codes.append(_OVERDUE)
    if status.certified is None:
        codes.append(_UNCERTIFIED)
    return [*dict.fromkeys(codes)]


def _describe_request(status: NodeStatus) -> list[str]:
    """Return what is wrong with the requested run, or else the last error."""
    request, error = status.request, status.last_error
    failed = None if request is None else request.failed
    words = []
    if failed is not None and failed not in status.troubles.values():
        words.append(f"the last calibration failed: {failed or 'no reason was given'}")
    elif failed is None and request is not None and request.overdue:
        missing = [] if status.gathering is None else status.gathering.missing
        waits = f"; no report in this run from {list_names(missing)}" if missing else ""
        ago, patience = request.seconds_ago, request.patience
        words.append(f"a run was requested {ago:.0f} s ago and has not advanced for {patience:g} s{waits}")
    if error and error != failed:
        words.append(f"last error: {error}")
    return words


def explain_missing_threshold(status: NodeStatus) -> str:
    """Return why no threshold is certified yet."""
    why = f": {status.last_error}" if status.last_error else ""
    where = f"{status.phase.value}, run {status.run}, round {status.round}"
    return f"no threshold is certified yet ({where}){why}"
