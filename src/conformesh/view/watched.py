"""One device of a mesh that is watched: what it said last, what its silence means, and how its process is."""

from __future__ import annotations

import errno
import math
import os
import time
from collections import deque
from concurrent.futures import Future
from typing import Any

from msgspec import convert

from conformesh.mesh.http.client import Client, NodeError
from conformesh.mesh.node.status import DeviceStatus, NodeStatus, OnlineStatus, hide_private
from conformesh.mesh.processes import Watched as Launched
from conformesh.view.statuses import (
    DOWN,
    FAILED,
    SILENT,
    Words,
    certified_fields,
    fields_of,
    hearsay_fields,
    news_of,
)
from conformesh.view.trace import Value

LATER = 10.0  # seconds after which a node that does not learn is asked again
NO_LEARNER = (404, 501)  # what a node says that does not learn, or is of a version that could not
LINES = 200  # of the log that are kept
GONE = tuple(map(os.strerror, (errno.ECONNREFUSED, errno.ENOENT)))  # nobody listens: surely not running
STARTING: dict[str, Value] = {"health": "unknown", "phase": "starting"}
STRANGE: dict[str, Value] = {
    "health": "unknown",
    "problem": "what it answers is not understood; is it of this version?",
}


class WatchedDevice:
    """What is known of a device; methods say what is worth a line in the log.

    Attributes
    ----------
    client
        Where it answers; None where nobody here can ask it.
    status, fields
        What it answered last, and what is shown of it.
    learnt
        What it said last of what it learns online; None where it does not.
    slow
        Whether it did not answer in time; others do not wait for it.
    process, over
        Its process, where it was started here; whether that has ended, so that nobody needs to be asked.
    """

    def __init__(self, name: str, address: str | None, patience: float, private: bool = False) -> None:
        self.name, self.address, self._private = name, address, private
        self.client = None if address is None else Client(address, timeout=patience)
        self.status: NodeStatus | None = None
        self.fields: dict[str, Value] = {"health": "unknown"}
        self.learnt: OnlineStatus | None = None
        self.pending: Future[tuple[NodeStatus, OnlineStatus | None]] | None = None
        self.slow = self.over = False
        self.process: Launched | None = None
        self.log: deque[tuple[float, str, str]] = deque(maxlen=LINES)
        self._hearsay: dict[str, Value] = {}
        self._refused = -math.inf  # when it said that it does not learn

    def ask(self) -> tuple[NodeStatus, OnlineStatus | None]:
        """Ask it how it is, and what it has learnt; who has said that it does not learn is asked that again later."""
        assert self.client is not None  # else nobody can ask it
        status, now = convert(self.client.status(), NodeStatus), time.monotonic()
        if self._private:  # a view may be open to others than the owner
            status = hide_private(status)
        if now < self._refused + LATER:
            return status, None
        try:
            return status, convert(self.client.online(), OnlineStatus)
        except NodeError as problem:
            if problem.status not in NO_LEARNER:  # it has much to do: what it said before is about right
                return status, self.learnt
            self._refused = now
            return status, None

    def answered(self, status: NodeStatus, learnt: OnlineStatus | None = None) -> list[Words]:
        """Take an answer."""
        news = news_of(self.status, status)
        self.status, self.slow, self.fields, self.learnt = status, False, fields_of(status), learnt
        return news

    def misunderstood(self) -> None:
        """Take an answer that is not the status of a node of this version."""
        self.fields = {**self.fields, **STRANGE}

    def unanswered(self, problem: NodeError) -> list[Words]:
        """Take that there was no answer, and why."""
        words, self._refused = str(problem), -math.inf  # who comes back may learn
        gone = any(why in words for why in GONE)
        if gone and self.process is not None:  # it has not come so far, or is about to end
            self.fields = STARTING if self.status is None else self.fields
            return []
        if not gone and not self.slow and "timed out" not in words:
            self.slow = True  # it broke off in the middle: the next answer, or none, says more
            return []
        self.slow = not gone
        if gone and self.status is None and self._hearsay:  # it runs on another machine
            self.fields = self._hearsay
            return []
        last = DOWN if gone else SILENT
        first = self.status is not None and self.fields["health"] != "silent"
        self.fields = {**self.fields, **last}
        return [("error", last["problem"])] if first else []

    def heard_of(self, record: DeviceStatus) -> None:
        """Take what others have heard of it; that counts for as long as it has never answered itself."""
        if self.status is None:
            self._hearsay = hearsay_fields(record)
            self.fields = self._hearsay if self.client is None else self.fields

    def attend(self) -> list[Words]:
        """Take what its process has said, and how it has ended."""
        process, news = self.process, list[Words]()
        if process is None or self.over:
            return news
        self.over = process.over  # before the lines: then they are all there
        while process.lines:
            news.append(process.lines.popleft())
        if not self.over:
            return news
        if process.result is None:
            self.fields = {**self.fields, "health": "silent", "phase": FAILED, "problem": process.state}
            return [*news, ("error", process.state)]
        survivors, lost = process.result["roster"], process.result["lost"]
        self.fields = {**self.fields, **certified_fields(process.calibration, survivors, lost)}
        return [*news, ("info", "certified; its process has ended")]


def details_in_words(problem: str, log: list[tuple[float, str, str]]) -> dict[str, Any]:
    """Return what the page of a device shows where it cannot be asked."""
    return {"facts": [("problem", problem)], "neighbours": [], "log": log, "certificate": None}
