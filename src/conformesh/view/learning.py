"""From what nodes say of what they learn (``GET /online``) to what a step shows of it. Nothing here asks anybody.

A node tells how many labels and misses it has had; what was covered lately follows from successive answers.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from typing import Any

from conformesh.common.quantities import pluralize
from conformesh.view.trace import SHARES, Everybody, Value, rounded_up

WINDOW = 200  # labels of a device over which coverage lately is taken
ANSWERS = 4096  # that are kept of a window; beyond that it is shorter
Learnt = Mapping[str, Any]


class Lately:
    """What was covered of the last labels, from counts that grow.

    >>> lately = Lately(100)
    >>> [lately.take(*counts) for counts in [(0, 0), (50, 5), (100, 5), (200, 25)]]
    [None, 0.9, 0.95, 0.8]

    Parameters
    ----------
    window
        How many labels, at least, as soon as so many have come since it began to look.
    """

    def __init__(self, window: int) -> None:
        self.window = window
        self._counts: deque[tuple[int, int]] = deque(maxlen=ANSWERS)

    def take(self, labels: int, misses: int) -> float | None:
        """Go on to these counts; return the share, None where no label has come since it began to look."""
        counts = self._counts
        if counts and (labels < counts[-1][0] or misses < counts[-1][1]):  # the node counts anew
            counts.clear()
        if not counts:
            counts.append((0, 0) if labels <= self.window else (labels, misses))
        if labels > counts[-1][0]:
            counts.append((labels, misses))
        while len(counts) > 1 and counts[1][0] <= labels - self.window:
            counts.popleft()
        many = labels - counts[0][0]
        return None if many == 0 else round(1 - (misses - counts[0][1]) / many, 4)


class Lessons:
    """What the nodes of a mesh have learnt, as steps show it."""

    def __init__(self) -> None:
        self._own: dict[str, Lately] = {}
        self._all = Lately(WINDOW)

    def fields(self, name: str, learnt: Learnt | None, heard: Learnt | None = None) -> dict[str, Value]:
        """Return what a step shows of a device that learns; of one that others have heard of, what they counted."""
        counts = heard if learnt is None else learnt["device"]
        if counts is None:
            return {}
        labels, misses = int(counts["steps"]), int(counts["misses"])
        lately = self._own.setdefault(name, Lately(WINDOW)).take(labels, misses)
        found: dict[str, Value] = {"labels": labels, "misses": misses, "lately": lately}
        if learnt is None:
            return found
        own = learnt["device"]
        within = None if says_nothing(own) else rounded_up(float(own["within"]))
        return {**found, "threshold": learnt["threshold"], "within": within, "alarm": alarm_of(learnt)}

    def everybody(self, answers: Iterable[Learnt], shares: Iterable[Value]) -> Everybody | None:
        """Return what all have covered, as who has heard most says it; None where nobody learns."""
        told = [answer["everybody"] for answer in answers]
        if not told:
            return None
        best = max(told, key=lambda account: int(account["steps"]))
        alpha, labels, misses = float(best["alpha"]), int(best["steps"]), int(best["misses"])
        known = sorted(float(share) for share in shares if share is not None)
        self._all.window = WINDOW * max(len(known), 1)
        within = None if says_nothing(best) else float(best["within"])
        ends = None if within is None else (max(0.0, 1 - alpha - within), min(1.0, 1 - alpha + within))
        return Everybody(
            alpha=alpha,
            labels=labels,
            misses=misses,
            window=self._all.window,
            own=WINDOW,
            lately=self._all.take(labels, misses),
            within=ends,
            spread=_spread(known),
        )


def check(learnt: Learnt) -> None:
    """Raise an error where an answer is not what a node says of what it learns."""
    for account in (learnt["device"], learnt["everybody"]):
        says_nothing(account)
        int(account["steps"]), int(account["misses"])
    if not isinstance(learnt["threshold"], float | int | str):
        raise TypeError("a threshold is a number")
    for counts in dict(learnt.get("reported") or {}).values():
        int(counts["steps"]), int(counts["misses"])
    dict(learnt.get("alarm") or {})


def says_nothing(account: Learnt) -> bool:
    """Say whether an account guarantees nothing, as any share of misses would be within it."""
    alpha = float(account["alpha"])
    return not account["steps"] or float(account["within"]) >= max(alpha, 1 - alpha)


def alarm_of(learnt: Learnt) -> str | None:
    """Return that the drift alarm was raised; None where it was not, or the node has none."""
    return "raised" if (learnt.get("alarm") or {}).get("raised") else None


def heard_of(name: str, answers: Iterable[Learnt]) -> Learnt | None:
    """Return the labels and misses of a device that does not answer here, as who has heard most of it says."""
    told = [answer["reported"][name] for answer in answers if name in (answer.get("reported") or {})]
    return max(told, key=lambda counts: int(counts["steps"]), default=None)


def details_of_learning(learnt: Learnt) -> list[tuple[str, str]]:
    """Return what the page of a device shows of what it learns, besides what is recorded."""
    facts = [("misses", str(learnt["device"].get("words"))), ("of everybody", str(learnt["everybody"].get("words")))]
    facts.append(("awaited", pluralize(int(learnt.get("pending") or 0), "label")))
    if alarm := learnt.get("alarm"):
        state = "raised" if alarm.get("raised") else "not raised"
        facts.append(
            ("drift alarm", f"{state}, evidence {alarm.get('evidence')}, chance of a false one {alarm.get('level')}")
        )
    return facts


def _spread(shares: list[float]) -> Any:
    """Return the least, the quartiles and the greatest of shares in order; None without any."""
    return tuple(shares[round(part * (len(shares) - 1))] for part in SHARES) if shares else None
