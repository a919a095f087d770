"""Whether a node is healthy, and why not: in words for its operator, and in codes that may travel to other devices.

This is the only place that decides. A node is healthy if

- it has a certified threshold,
- nothing is wrong on the device itself (`Trouble`), and
- the latest requested run has succeeded, or is in progress within its patience and no attempt has failed.

An attempt that fails keeps the node unhealthy until a run succeeds, however often it is tried again. Links that are
down are named; they do not make a node unhealthy by themselves, since its threshold stays valid and under
`on_lost = "continue"` runs succeed without them.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from conformesh.common.names import listed
from conformesh.peer.settings import FAILURES

UNCERTIFIED, OVERDUE = "uncertified", "overdue"
# Why a device is not healthy, as others hear it. Words may quote files, and stay on the device. The order is that of
# bits in a heartbeat: new codes go to the end.
_LATER = ("privacy",)
CODES: tuple[str, ...] = (*(code for code in FAILURES if code not in _LATER), UNCERTIFIED, *_LATER, "disk", OVERDUE)


class Health(NamedTuple):
    """Whether a node is healthy; what there is to know, in words and in codes; which neighbours are not heard."""

    healthy: bool
    words: list[str]
    codes: list[str]
    links_down: list[str]


def judged(now: dict[str, Any]) -> Health:
    """Judge a snapshot of `NodeState`. Words may be there for a healthy node too, codes only for one that is not."""
    found, links_down = now["certified"], down(now)
    words = [f"{what}: {problem}" for what, problem in now["troubles"].items()]
    if found is None:
        words.append(nothing_yet(now))
    elif found["restored"]:
        words.append(f"the threshold is the one of run {found['run']}, from before the last start")
    elif found["about"] == "the heard":
        words.append(f"the threshold is about the {found['devices']} devices heard so far")
    elif found["lost"]:
        of = found["devices"] + len(found["lost"])
        words.append(f"the threshold is about {found['devices']} of {of} devices, without {listed(found['lost'])}")
    words += [f"drift alarm of the {whose}" for whose in alarms(now)]
    if found is not None and found["roster_number"] < now["roster"]["number"]:
        at, under = found["roster_number"], now["roster"]["number"]
        words.append(f"the threshold is of roster {at}, and roster {under} is in force")
    words += _about_request(now)
    if links_down:
        words.append(f"no message from {listed(links_down)}: the device or the link to it is down")
    codes = _codes(now)
    return Health(not codes, words, codes, links_down)


def alarms(now: dict[str, Any]) -> list[str]:
    """Return whose drift alarm is raised: a change of the data is no fault of the device, which stays healthy."""
    return [whose for whose, on in now.get("alarm", {}).get("raised", {}).items() if on]


def down(now: dict[str, Any]) -> list[str]:
    """Return the neighbours from which nothing has arrived for too long."""
    return [name for name, one in now["neighbours"].items() if not one["up"]]


def _codes(now: dict[str, Any]) -> list[str]:
    """Return why the node is not healthy; nothing where it is."""
    codes, request = [*now["troubles"]], now["request"]
    if request is not None and request["failed"] is not None:
        codes.append(now["failure"] or "other")
    elif request is not None and request["overdue"]:
        codes.append(OVERDUE)
    if now["certified"] is None:
        codes.append(UNCERTIFIED)
    return [*dict.fromkeys(codes)]


def _about_request(now: dict[str, Any]) -> list[str]:
    """Say what is wrong with the requested run, or else the last thing that went wrong."""
    request, error = now["request"], now["last_error"]
    failed = None if request is None else request["failed"]
    words = []
    if failed is not None and failed not in now["troubles"].values():
        words.append(f"the last calibration failed: {failed or 'no reason was given'}")
    elif failed is None and request is not None and request["overdue"]:
        missing = now.get("gathering", {}).get("missing", [])
        waits = f"; not heard in this run: {listed(missing)}" if missing else ""
        ago, patience = request["seconds_ago"], request["patience"]
        words.append(f"a run was requested {ago:.0f} s ago and has not advanced for {patience:g} s{waits}")
    if error and error != failed:
        words.append(f"last error: {error}")
    return words


def nothing_yet(now: dict[str, Any]) -> str:
    """Return why there is no threshold to show."""
    why = f": {now['last_error']}" if now["last_error"] else ""
    return f"no threshold is certified yet ({now['phase']}, run {now['run']}, round {now['round']}){why}"
