"""One device of a watched mesh: its last answer, what its silence means, and its process if it was started here."""

from __future__ import annotations

import errno
import math
import os
import time
from collections import deque
from concurrent.futures import Future
from typing import Any

from msgspec import ValidationError, convert

from conformesh.mesh.http.client import Client, NodeError
from conformesh.mesh.node.status import DeviceStatus, NodeStatus, OnlineStatus, Phase, hide_private
from conformesh.mesh.processes import DeviceProcess as Launched
from conformesh.view.statuses import (
    DOWN_FIELDS,
    SILENT_FIELDS,
    LogLine,
    log_lines,
    relayed_fields,
    result_fields,
    status_fields,
)
from conformesh.view.trace import FieldValue

_RETRY_LEARNING = 10.0  # seconds after which a node that does not learn is asked again: it may have been restarted
_NOT_LEARNING = (404, 501)  # HTTP status of a node that does not learn, or whose version cannot
_LOG_LINES = 200  # that are kept: as many as the page of a device shows
# Errors of a connection that show that no process listens: the node is certainly not running.
_NOT_RUNNING = tuple(map(os.strerror, (errno.ECONNREFUSED, errno.ENOENT)))
_STARTING_FIELDS: dict[str, FieldValue] = {"health": "unknown", "phase": "starting"}
_UNREADABLE_FIELDS: dict[str, FieldValue] = {
    "health": "unknown",
    "problem": "what it answers is not understood; is it of this version?",
}

Answer = tuple[NodeStatus | None, OnlineStatus | None]  # no status: the answer cannot be read; no learning: none


class WatchedDevice:
    """What is known of a device. Methods return new lines for the log.

    Attributes
    ----------
    client
        Client of its node; None if it cannot be asked from here.
    status, fields
        Its last answer, and what is shown of it.
    learnt
        Its last answer about online learning; None if it does not learn.
    slow
        Whether its last answer did not come in time; then the watch no longer waits for it.
    process, over
        Its process, if it was started here; whether that has ended, so that it need not be asked.
    """

    def __init__(self, name: str, address: str | None, patience: float, private: bool = False) -> None:
        self.name, self.address, self._private = name, address, private
        self.client = None if address is None else Client(address, timeout=patience)
        self.status: NodeStatus | None = None
        self.fields: dict[str, FieldValue] = {"health": "unknown"}
        self.learnt: OnlineStatus | None = None
        self.pending: Future[Answer] | None = None
        self.slow = self.over = False
        self.process: Launched | None = None
        self.log: deque[tuple[float, str, str]] = deque(maxlen=_LOG_LINES)
        self._relayed: dict[str, FieldValue] = {}
        self._refused = -math.inf  # when it answered that it does not learn

    def ask(self) -> Answer:
        """Ask for its status, and what it has learnt unless it answered recently that it does not learn."""
        assert self.client is not None  # only such devices are asked
        raw, now = self.client.status(), time.monotonic()
        try:
            status = convert(raw, NodeStatus)
            if self._private:  # a view may be open to others than the owner
                status = hide_private(status)
            return status, self._ask_learning(now)
        except ValidationError:
            return None, None

    def _ask_learning(self, now: float) -> OnlineStatus | None:
        assert self.client is not None
        if now < self._refused + _RETRY_LEARNING:
            return None
        try:
            return convert(self.client.online(), OnlineStatus)
        except NodeError as problem:
            if problem.status not in _NOT_LEARNING:  # busy: its previous answer is about right
                return self.learnt
            self._refused = now
            return None

    def answered(self, answer: Answer) -> list[LogLine]:
        """Take an answer."""
        status, learnt = answer
        if status is None:
            self.fields = {**self.fields, **_UNREADABLE_FIELDS}
            return []
        lines = log_lines(self.status, status)
        self.status, self.learnt, self.slow, self.fields = status, learnt, False, status_fields(status)
        return lines

    def unanswered(self, problem: NodeError) -> list[LogLine]:
        """Take that there was no answer, for this reason."""
        words, self._refused = str(problem), -math.inf  # after a restart it may learn
        is_down = any(why in words for why in _NOT_RUNNING)
        if is_down and self.process is not None:  # its process is still starting, or about to end
            self.fields = _STARTING_FIELDS if self.status is None else self.fields
            return []
        if not is_down and not self.slow and "timed out" not in words:
            self.slow = True  # the connection broke off: wait for the next attempt before calling it silent
            return []
        self.slow = not is_down
        if is_down and self.status is None and self._relayed:  # it runs on another machine
            self.fields = self._relayed
            return []
        last = DOWN_FIELDS if is_down else SILENT_FIELDS
        first = self.status is not None and self.fields["health"] != "silent"
        self.fields = {**self.fields, **last}
        return [("error", last["problem"])] if first else []

    def take_relayed(self, status: DeviceStatus) -> None:
        """Take what another node knows about it; used until it answers itself for the first time."""
        if self.status is None:
            self._relayed = relayed_fields(status)
            self.fields = self._relayed if self.client is None else self.fields

    def follow_process(self) -> list[LogLine]:
        """Take new log lines of its process, and how it has ended."""
        process, lines = self.process, list[LogLine]()
        if process is None or self.over:
            return lines
        self.over = process.over  # before the lines are read, so that none can follow
        while process.lines:
            lines.append(process.lines.popleft())
        if not self.over:
            return lines
        if process.result is None:
            self.fields = {**self.fields, "health": "silent", "phase": Phase.FAILED.value, "problem": process.state}
            return [*lines, ("error", process.state)]
        survivors, lost = process.result["roster"], process.result["lost"]
        self.fields = {**self.fields, **result_fields(process.calibration, survivors, lost)}
        return [*lines, ("info", "certified; its process has ended")]


def problem_details(problem: str, log: list[tuple[float, str, str]]) -> dict[str, Any]:
    """Return what the page of a device shows if the device gives no details."""
    return {"facts": [("problem", problem)], "neighbours": [], "log": log, "certificate": None}
