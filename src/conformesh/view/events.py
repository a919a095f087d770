"""Server-sent events of a page: everything so far, then what is new, the same for every client.

While there are clients, recordings are checked many times a second, and new steps are encoded once for all. A client
has a position and no queue: a slow one delays no other, and one that stays behind for long gets the current state as
one step instead of all that it has missed.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import msgspec

from conformesh.view.recording import Recording
from conformesh.view.trace import Step, TracedRun, TraceHeading

LOG = logging.getLogger("conformesh.view")
_CHECK_INTERVAL = 0.02  # seconds between two checks of the recordings, at least
_EVENT_INTERVAL = 0.1  # seconds between events on average: a faster page looks the same
# An event may come this much before its turn, in seconds: a source of the same rate must not miss every other one.
_EARLY_SECONDS = 0.06
# The run that is shown may share this process, whose threads take turns. So a check that took some time is followed by
# a pause that is this many times as long (4 % of a processor), and a run that has just started is left alone for a
# moment.
PAUSE_FACTOR, START_DELAY = 25, 0.1
LOOK_BUDGET, MAX_PAUSE = 0.002, 0.25  # seconds of processor time for one check, and of a pause at most
_MAX_SHARED_STEPS = 1000  # new steps that are encoded for all; more than that are encoded per client, on demand
EVENT_BYTES = 2**17  # bytes of an event; a larger step is an event of its own
_KEPT_EVENTS = 32  # events of a run that are kept for all clients; earlier ones are encoded again when needed
# A client that is this many steps and seconds behind skips what it has missed.
SKIP_STEPS, SKIP_SECONDS = 256, 5.0
RETRY_SECONDS = 1.0  # seconds until the next check after one that has failed
_KEEP_ALIVE_SECONDS = 10.0  # seconds of silence after which a comment is sent so that connections do not time out
# Fields of single devices that a private run never shows, whatever a recording has.
PRIVATE_FIELDS = frozenset(
    {"threshold", "certified", "labels", "misses", "lately", "within", "alarm", "kind", "about", "heard", "known"}
)

Recordings = Callable[[], Sequence[Recording]]


def _server_sent_event(name: str, **data: Any) -> bytes:
    """Return one server-sent event."""
    return b"event: %s\ndata: %s\n\n" % (name.encode(), msgspec.json.encode(data))


def visible_step(step: Step, heading: TraceHeading) -> Step:
    """Return the part of a step that may be shown: nothing about single devices if the run is private."""
    if not heading.private:
        return step
    devices = {name: column for name, column in step.devices.items() if name not in PRIVATE_FIELDS}
    log = [line for line in step.log if line[0] < 0 or line[1] != "info"]
    return msgspec.structs.replace(step, devices=devices, bracket=None, everybody=None, log=log)


def visible_run(recording: Recording) -> TracedRun:
    """Return the part of a recording so far that may be shown."""
    run = recording.run()
    return msgspec.structs.replace(run, steps=[visible_step(step, run.heading) for step in run.steps])


class _EncodedRun:
    """A recording, and the events with its steps."""

    def __init__(self, number: int, recording: Recording) -> None:
        self.number, self.recording = number, recording
        self.begun = _server_sent_event("run", run=number, heading=recording.heading)
        self.ended = b""
        self.place = 0
        self._kept: deque[tuple[int, int, bytes]] = deque(maxlen=_KEPT_EVENTS)

    def encode_new(self) -> bool:
        """Encode new steps; return whether there were any."""
        if self.ended:
            return False
        result = self.recording.result  # before the steps are read: after a result there are no more
        before = self.place
        steps, end = self.recording.since(self.place, LOOK_BUDGET if result is None else math.inf)
        if len(steps) > _MAX_SHARED_STEPS:  # too many to keep: `piece` encodes them for each client
            steps = []
        while steps:
            data, count = self._encoded(steps, end - len(steps))
            self._kept.append((end - len(steps), end - len(steps) + count, data))
            steps = steps[count:]
        self.place = end
        if result is not None:
            self.ended = _server_sent_event("end", run=self.number, result=result)
        return end > before or bool(self.ended)

    def piece(self, place: int) -> tuple[bytes, int]:
        """Return an event with the steps from a place on, as many as fit into one, and the place after them."""
        for first, after, data in self._kept:
            if first == place:
                return data, after
        steps, end = self.recording.since(place)
        data, count = self._encoded(steps, end - len(steps))
        return data, end - len(steps) + count

    def latest(self) -> tuple[bytes, int]:
        """Return an event with the current state, and the place after it."""
        step, end = self.recording.latest()
        return self._encoded([step], end - 1)[0], end

    def _encoded(self, steps: Sequence[Step], first: int) -> tuple[bytes, int]:
        found: list[msgspec.Raw] = []
        size = 0
        for step in steps:
            raw = msgspec.json.encode(visible_step(step, self.recording.heading))
            if found and size + len(raw) > EVENT_BYTES:
                break
            found.append(msgspec.Raw(raw))
            size += len(raw)
        return _server_sent_event("steps", run=self.number, **{"from": first}, steps=found, sent=time.time()), len(
            found
        )


class _ClientPosition:
    """The position of a client in one run."""

    def __init__(self, shown: _EncodedRun) -> None:
        self.shown, self.place, self.ended = shown, 0, False
        self.current: float | None = None  # when it last had everything; None if it never had

    def next(self) -> bytes:
        """Return the next event, or nothing where there is none."""
        shown, now = self.shown, time.monotonic()
        if self.place < shown.place:
            late = (
                self.current is not None and now - self.current > SKIP_SECONDS and shown.place - self.place > SKIP_STEPS
            )
            data, self.place = shown.latest() if late else shown.piece(self.place)
            return data
        self.current = now
        if shown.ended and not self.ended:
            self.ended = True
            return shown.ended
        return b""


class EventFeed:
    """Sends the steps of recordings to any number of clients, in one event loop.

    Parameters
    ----------
    recordings
        Returns the recordings. One that replaces another starts again for all clients.
    """

    def __init__(self, recordings: Recordings) -> None:
        self.recordings = recordings
        self.clients = 0
        self._runs: list[_EncodedRun] = []
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="view-feed")
        self._news = asyncio.Event()
        self._looking: asyncio.Task[None] | None = None
        self._stopping = False
        self._took = 0.0
        self._newest: tuple[Recording, float] | None = None  # the newest run, and when it was first seen

    async def stream(self) -> AsyncIterator[bytes]:
        """Yield the events of one client, until it leaves or the server stops."""
        places: dict[int, _ClientPosition] = {}
        self.clients += 1
        if self._looking is None:
            self._looking = asyncio.create_task(self._look())
        try:
            yield b"retry: 1000\n\n"
            while True:
                news, last = self._news, self._stopping
                if last:
                    with suppress(Exception):  # which was logged before
                        await self._in_pool(self._find_news)
                while data := await self._in_pool(self._next, places):
                    for start in range(0, len(data), EVENT_BYTES):  # in parts: a heading may be long, and a client slow
                        yield data[start : start + EVENT_BYTES]
                if last:
                    return
                try:
                    await asyncio.wait_for(news.wait(), _KEEP_ALIVE_SECONDS)
                except TimeoutError:
                    yield b": still here\n\n"
        finally:
            self.clients -= 1

    def stop(self) -> None:
        """End all streams after the remaining events. Call it in the event loop."""
        self._stopping = True
        self._news.set()

    def close(self) -> None:
        """End the thread. Call it after the event loop."""
        self._pool.shutdown(wait=False)

    def _in_pool(self, work: Callable[..., Any], *words: Any) -> asyncio.Future[Any]:
        """Run work that may take a while in a thread, so that the server keeps answering."""
        return asyncio.get_running_loop().run_in_executor(self._pool, work, *words)

    def _next(self, places: dict[int, _ClientPosition]) -> bytes:
        for shown in [*self._runs]:
            place = places.get(shown.number)
            if place is None or place.shown is not shown:
                places[shown.number] = _ClientPosition(shown)
                return shown.begun
            if data := place.next():
                return data
        return b""

    async def _look(self) -> None:
        """Check the recordings while there are clients."""
        clock, turn = asyncio.get_running_loop().time, 0.0
        while self.clients and not self._stopping:
            try:
                new, took = await self._in_pool(self._look_once)
            except Exception:
                if not self._stopping:
                    LOG.exception("what is recorded cannot be shown")
                    await asyncio.sleep(RETRY_SECONDS)
                continue
            if new:
                self._news.set()
                self._news = asyncio.Event()
                turn = max(turn, clock()) + _EVENT_INTERVAL
            await asyncio.sleep(
                max(turn - _EARLY_SECONDS - clock(), _CHECK_INTERVAL, min(PAUSE_FACTOR * took, MAX_PAUSE))
            )
        self._looking = None

    def _look_once(self) -> tuple[bool, float]:
        """Return whether there is anything new, and the processor time in seconds that it took.

        Work that is done once, such as a heading, does not count: the pause after it would delay a new client.
        """
        self._took = 0.0
        return self._find_news(), self._took

    def _find_news(self) -> bool:
        """Encode what is new in all runs, including those that have just started."""
        new = False
        for number, recording in enumerate([*self.recordings()]):
            fresh = number == len(self._runs) or self._runs[number].recording is not recording
            if fresh:
                if not self._has_begun(recording):
                    return new
                self._runs[number : number + 1] = [_EncodedRun(number, recording)]
            before = time.thread_time()
            new |= self._runs[number].encode_new() or fresh
            self._took += 0.0 if fresh else time.thread_time() - before
        return new

    def _has_begun(self, recording: Recording) -> bool:
        """Whether a run has started some moments ago, or is over."""
        if self._newest is None or self._newest[0] is not recording:
            self._newest = recording, time.monotonic()
        return self._stopping or recording.result is not None or time.monotonic() - self._newest[1] > START_DELAY
