"""What became of the runs of a node since it started: how many were certified or failed, why, and how long it took."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from typing import Any

from conformesh.peer.settings import FAILURES

BUCKETS = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0)  # seconds


class StatusHistory:
    """Counts the runs of one node; only those that ended here, with a threshold or with a failure."""

    def __init__(self) -> None:
        self.certified = 0
        self.failed: Counter[str] = Counter(dict.fromkeys(FAILURES, 0))
        self.rounds: int | None = None
        self.seconds = 0.0
        self._lasted = [0] * (len(BUCKETS) + 1)  # the last is for what took longer than all of them

    def succeed(self, seconds: float, rounds: int) -> None:
        """Count a run that ended with a threshold, after so many seconds and rounds."""
        self.certified += 1
        self.rounds = rounds
        self.seconds += seconds
        self._lasted[bisect_left(BUCKETS, seconds)] += 1

    def fail(self, code: str) -> None:
        """Count a run that ended without one, by the word for why."""
        self.failed[code if code in FAILURES else "other"] += 1

    def shown(self) -> dict[str, Any]:
        """Return everything as JSON; `lasted` has how many runs took up to each of `BUCKETS`, and how many longer."""
        return {
            "certified": self.certified,
            "failed": dict(self.failed),
            "rounds": self.rounds,
            "seconds": self.seconds,
            "lasted": [*self._lasted],
        }
