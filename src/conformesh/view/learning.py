"""From the online status of nodes (``GET /online``) to what a step shows of it. Nothing here asks anybody.

A node tells how many labels and misses it has had; what was covered lately follows from successive answers.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Any

from conformesh.common.quantities import pluralize
from conformesh.mesh.node.status import AlarmStatus, DeviceCounts, OnlineAccount, OnlineStatus
from conformesh.view.trace import SHARES, Everybody, Value, rounded_up

WINDOW = 200  # labels of a device over which coverage lately is taken
ANSWERS = 4096  # that are kept of a window; beyond that it is shorter


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

    def fields(self, name: str, learnt: OnlineStatus | None, reported: DeviceCounts | None = None) -> dict[str, Value]:
        """Return what a step shows of a device that learns; of one that does not answer, what others have counted."""
        counts = reported if learnt is None else learnt.device
        if counts is None:
            return {}
        lately = self._own.setdefault(name, Lately(WINDOW)).take(counts.steps, counts.misses)
        found: dict[str, Value] = {"labels": counts.steps, "misses": counts.misses, "lately": lately}
        if learnt is None:
            return found
        within = None if is_vacuous(learnt.device) else rounded_up(learnt.device.within)
        alarm = "raised" if is_raised(learnt.alarm) else None
        return {**found, "threshold": learnt.threshold, "within": within, "alarm": alarm}

    def everybody(self, answers: Iterable[OnlineStatus], shares: Iterable[Value]) -> Everybody | None:
        """Return what all have covered, by the node that has heard most; None if no node learns."""
        accounts = [answer.everybody for answer in answers]
        if not accounts:
            return None
        best = max(accounts, key=lambda account: account.steps)
        alpha, labels, misses = best.alpha, best.steps, best.misses
        known = sorted(float(share) for share in shares if share is not None)
        self._all.window = WINDOW * max(len(known), 1)
        within = None if is_vacuous(best) else best.within
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


def is_vacuous(account: OnlineAccount) -> bool:
    """Whether an account guarantees nothing, because any share of misses would be within it."""
    return not account.steps or account.within >= max(account.alpha, 1 - account.alpha)


def is_raised(alarm: AlarmStatus | None) -> bool:
    """Whether the drift alarm of the device or of the fleet is raised."""
    return alarm is not None and bool(alarm.raised.raised())


def reported_counts(name: str, answers: Iterable[OnlineStatus]) -> DeviceCounts | None:
    """Return the labels and misses of a device that does not answer here, by the node that has heard most of it."""
    reports = [answer.reported[name] for answer in answers if name in answer.reported]
    return max(reports, key=lambda counts: counts.steps, default=None)


def details_of_learning(learnt: OnlineStatus) -> list[tuple[str, str]]:
    """Return what the page of a device shows of what it learns, besides what is recorded."""
    facts = [("misses", learnt.device.words), ("of everybody", learnt.everybody.words)]
    facts.append(("awaited", pluralize(learnt.pending, "label")))
    if alarm := learnt.alarm:
        state = f"raised for the {' and the '.join(alarm.raised.raised())}" if is_raised(alarm) else "not raised"
        evidence = f"evidence {alarm.evidence.device} of the device and {alarm.evidence.fleet} of the fleet"
        facts.append(("drift alarm", f"{state}, {evidence}, chance of a false one {alarm.level}"))
    return facts


def _spread(shares: list[float]) -> Any:
    """Return the least, the quartiles and the greatest of shares in order; None without any."""
    return tuple(shares[round(part * (len(shares) - 1))] for part in SHARES) if shares else None
