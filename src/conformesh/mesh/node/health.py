"""Whether a node is healthy, and why not: in words for its operator, and in codes that may travel."""

from __future__ import annotations

from typing import Any, NamedTuple

from conformesh.mesh.node.state import Phase
from conformesh.names import listed
from conformesh.peer.settings import FAILURES

UNCERTIFIED = "uncertified"
# Why a device is not healthy, as others hear it. Words may quote files, and stay on the device. The order is that of
# bits in a pulse: what is new goes to the end.
_LATER = ("privacy",)
CODES: tuple[str, ...] = (*(code for code in FAILURES if code not in _LATER), UNCERTIFIED, *_LATER)


class Health(NamedTuple):
    """Whether a node has a certified threshold and nothing is wrong; what there is to know, in words and in codes."""

    healthy: bool
    words: list[str]
    codes: list[str]


def judged(now: dict[str, Any]) -> Health:
    """Judge a snapshot of `NodeState`. Words may be there for a healthy node too, codes only for one that is not."""
    failing, found = now["phase"] == Phase.FAILED.value, now["certified"]
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
    error = now["last_error"]
    if failing and error not in now["troubles"].values():
        words.append(f"the last calibration failed: {error or 'nobody said why'}")
    elif error and not failing:
        words.append(f"last error: {error}")
    healthy = found is not None and not failing and not now["troubles"]
    return Health(healthy, words, [] if healthy else _codes(now))


def alarms(now: dict[str, Any]) -> list[str]:
    """Return whose drift alarm is raised: a change of the data is no fault of the device, which stays healthy."""
    return [whose for whose, on in now.get("alarm", {}).get("raised", {}).items() if on]


def _codes(now: dict[str, Any]) -> list[str]:
    codes = [*now["troubles"]]
    if now["phase"] == Phase.FAILED.value:
        codes.append(now["failure"] or "other")
    if now["certified"] is None:
        codes.append(UNCERTIFIED)
    return [*dict.fromkeys(codes)]


def nothing_yet(now: dict[str, Any]) -> str:
    """Return why there is no threshold to show."""
    why = f": {now['last_error']}" if now["last_error"] else ""
    return f"no threshold is certified yet ({now['phase']}, run {now['run']}, round {now['round']}){why}"
