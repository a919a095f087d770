"""From what a node reports about online learning (``GET /online``) to what a step shows. Nothing here asks a node.

A node reports how many labels and misses it has had; recent coverage follows from successive reports.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Any

from conformesh.common.quantities import pluralize
from conformesh.mesh.node.status import AlarmStatus, DeviceCounts, OnlineAccount, OnlineStatus
from conformesh.view.trace import SPREAD_SHARES, CoverageOfAll, FieldValue, round_bound_up

_RECENT_LABELS = 200  # labels of a device over which recent coverage is averaged: a standard error of 2 % at 90 %
_MOST_REPORTS = 4096  # of a window that are kept, about 17 minutes of four a second; with more the window is shorter


class RecentCoverage:
    """Share of covered examples among the last labels, from counts that grow.

    >>> recent = RecentCoverage(100)
    >>> [recent.update(*counts) for counts in [(0, 0), (50, 5), (100, 5), (200, 25)]]
    [None, 0.9, 0.95, 0.8]

    Parameters
    ----------
    window
        How many labels count, at least, once so many have arrived while watching.
    """

    def __init__(self, window: int) -> None:
        self.window = window
        self._counts: deque[tuple[int, int]] = deque(maxlen=_MOST_REPORTS)

    def update(self, labels: int, misses: int) -> float | None:
        """Take these counts; return the share, None if no label has arrived while watching."""
        counts = self._counts
        if counts and (labels < counts[-1][0] or misses < counts[-1][1]):  # the node lost its journal: start again
            counts.clear()
        if not counts:
            # All labels so far are recent if they fit into the window; otherwise it is unknown when they arrived.
            counts.append((0, 0) if labels <= self.window else (labels, misses))
        if labels > counts[-1][0]:
            counts.append((labels, misses))
        while len(counts) > 1 and counts[1][0] <= labels - self.window:
            counts.popleft()
        many = labels - counts[0][0]
        return None if many == 0 else round(1 - (misses - counts[0][1]) / many, 4)


class LearningHistory:
    """What the nodes of a mesh have learnt, as steps show it."""

    def __init__(self) -> None:
        self._by_device: dict[str, RecentCoverage] = {}
        self._all = RecentCoverage(_RECENT_LABELS)

    def fields(
        self, name: str, status: OnlineStatus | None, reported: DeviceCounts | None = None
    ) -> dict[str, FieldValue]:
        """Return what a step shows of a device that learns; without its own status only counts that others know."""
        counts = reported if status is None else status.device
        if counts is None:
            return {}
        recent = self._by_device.setdefault(name, RecentCoverage(_RECENT_LABELS)).update(counts.steps, counts.misses)
        fields: dict[str, FieldValue] = {"labels": counts.steps, "misses": counts.misses, "lately": recent}
        if status is None:
            return fields
        within = round_bound_up(status.device.within) if _is_informative(status.device) else None
        return {
            **fields,
            "threshold": status.threshold,
            "within": within,
            "alarm": "raised" if is_alarm_raised(status.alarm) else None,
        }

    def of_all(self, statuses: Iterable[OnlineStatus], shares: Iterable[FieldValue]) -> CoverageOfAll | None:
        """Return the coverage of all devices, as the node knows it that has most reports; None if no node learns."""
        best = max((status.everybody for status in statuses), key=lambda account: account.steps, default=None)
        if best is None:
            return None
        known = sorted(float(share) for share in shares if share is not None)
        self._all.window = _RECENT_LABELS * max(len(known), 1)
        alpha, within = best.alpha, best.within
        return CoverageOfAll(
            alpha=alpha,
            labels=best.steps,
            misses=best.misses,
            window=self._all.window,
            own=_RECENT_LABELS,
            lately=self._all.update(best.steps, best.misses),
            within=(max(0.0, 1 - alpha - within), min(1.0, 1 - alpha + within)) if _is_informative(best) else None,
            spread=_spread(known),
        )


def _is_informative(account: OnlineAccount) -> bool:
    """Whether an account excludes any share of misses."""
    return account.steps > 0 and account.within < max(account.alpha, 1 - account.alpha)


def is_alarm_raised(alarm: AlarmStatus | None) -> bool:
    """Whether the drift alarm of the device or of the fleet is raised."""
    return alarm is not None and bool(alarm.raised.raised())


def reported_online_counts(name: str, statuses: Iterable[OnlineStatus]) -> DeviceCounts | None:
    """Return the counts of a device that does not answer here, from the node that knows most of them."""
    reports = [status.reported[name] for status in statuses if name in status.reported]
    return max(reports, key=lambda counts: counts.steps, default=None)


def online_learning_details(status: OnlineStatus) -> list[tuple[str, str]]:
    """Return what the page of a device shows of its learning, besides recorded fields."""
    facts = [("misses", status.device.words), ("of everybody", status.everybody.words)]
    facts.append(("awaited", pluralize(status.pending, "label")))
    if alarm := status.alarm:
        state = f"raised for the {' and the '.join(alarm.raised.raised())}" if is_alarm_raised(alarm) else "not raised"
        evidence = f"evidence {alarm.evidence.device} of the device and {alarm.evidence.fleet} of the fleet"
        facts.append(("drift alarm", f"{state}, {evidence}, chance of a false one {alarm.level}"))
    return facts


def _spread(shares: list[float]) -> Any:
    """Return the least, the quartiles and the greatest of sorted shares; None without any."""
    return tuple(shares[round(part * (len(shares) - 1))] for part in SPREAD_SHARES) if shares else None
