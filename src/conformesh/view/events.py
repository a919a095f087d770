"""What a page is told, as server-sent events: everything so far, and then what is new, the same for every client.

A recording is looked at a few times a second, while anybody watches, and what is new is encoded once for all. A client
has a place in it and no queue: one that reads slowly holds up nobody, and one that has stayed behind for long is told
what is known by then as one step, instead of all that it has missed.
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
LOOK_INTERVAL = 0.02  # seconds between two looks at the recordings
EVENT_INTERVAL = 0.1  # seconds from news to news on average: ten times a second is enough for any eye
EARLY_SECONDS = (
    0.06  # seconds that news may come before their turn: who updates as often must not wait for the next one
)
# A run that is looked at may go on in this very process, whose threads take turns. So a look that took some time is
# followed by a pause that is so many times as long, and a run that has just begun is left alone for a moment.
PAUSE_FACTOR, START_DELAY = 25, 0.1
LOOK_BUDGET, MAX_PAUSE = 0.002, 0.25  # seconds of a processor for one look, and of a pause at most
MAX_SHARED_STEPS = 1000  # steps that are encoded for all
EVENT_BYTES = 2**17  # bytes of an event; a step that is larger makes one alone
KEPT_EVENTS = 32  # events of a run that are kept for all clients; who needs an earlier one has it made anew
SKIP_STEPS, SKIP_SECONDS = (
    256,
    5.0,
)  # steps and seconds behind what is current, after which a client skips what it has missed
RETRY_SECONDS = 1.0  # seconds after a look that has failed
KEEP_ALIVE_SECONDS = 10.0  # seconds of silence after which a client is told that the server is still there
# What single devices of a private run know is nobody's affair, whatever a recording has.
PRIVATE_FIELDS = frozenset(
    {"threshold", "certified", "labels", "misses", "lately", "within", "alarm", "kind", "about", "heard", "known"}
)

Recordings = Callable[[], Sequence[Recording]]


def server_sent_event(name: str, **data: Any) -> bytes:
    """Return one server-sent event."""
    return b"event: %s\ndata: %s\n\n" % (name.encode(), msgspec.json.encode(data))


def visible_step(step: Step, heading: TraceHeading) -> Step:
    """Return what of a step may be shown: nothing about single devices where the run is private."""
    if not heading.private:
        return step
    devices = {name: column for name, column in step.devices.items() if name not in PRIVATE_FIELDS}
    log = [line for line in step.log if line[0] < 0 or line[1] != "info"]
    return msgspec.structs.replace(step, devices=devices, bracket=None, everybody=None, log=log)


def visible_run(recording: Recording) -> TracedRun:
    """Return what may be shown of a recording by now."""
    run = recording.run()
    return msgspec.structs.replace(run, steps=[visible_step(step, run.heading) for step in run.steps])


class _Shown:
    """A recording, as far as anybody could be told of it."""

    def __init__(self, number: int, recording: Recording) -> None:
        self.number, self.recording = number, recording
        self.begun = server_sent_event("run", run=number, heading=recording.heading)
        self.ended = b""
        self.place = 0
        self._kept: deque[tuple[int, int, bytes]] = deque(maxlen=KEPT_EVENTS)

    def look(self) -> bool:
        """Go on to what is current, and say whether there was anything new."""
        if self.ended:
            return False
        result = self.recording.result  # before the steps: then they are all there
        before = self.place
        steps, end = self.recording.since(self.place, LOOK_BUDGET if result is None else math.inf)
        if len(steps) > MAX_SHARED_STEPS:  # more than could be kept: each client has its own made
            steps = []
        while steps:
            data, count = self._encoded(steps, end - len(steps))
            self._kept.append((end - len(steps), end - len(steps) + count, data))
            steps = steps[count:]
        self.place = end
        if result is not None:
            self.ended = server_sent_event("end", run=self.number, result=result)
        return end > before or bool(self.ended)

    def piece(self, place: int) -> tuple[bytes, int]:
        """Return an event with the steps from a place on, as many as go into one, and the place after them."""
        for first, after, data in self._kept:
            if first == place:
                return data, after
        steps, end = self.recording.since(place)
        data, count = self._encoded(steps, end - len(steps))
        return data, end - len(steps) + count

    def latest(self) -> tuple[bytes, int]:
        """Return an event with all that is known, and the place after it."""
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
        return server_sent_event("steps", run=self.number, **{"from": first}, steps=found, sent=time.time()), len(found)


class _Place:
    """How far a client is in one run."""

    def __init__(self, shown: _Shown) -> None:
        self.shown, self.place, self.ended = shown, 0, False
        self.current: float | None = None  # when it last had everything; None before it ever had

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
    """Tells any number of clients what is in some recordings; for one event loop.

    Parameters
    ----------
    recordings
        Gives the recordings; one that takes the place of another begins anew for all clients.
    """

    def __init__(self, recordings: Recordings) -> None:
        self.recordings = recordings
        self.clients = 0
        self._runs: list[_Shown] = []
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="view-feed")
        self._news = asyncio.Event()
        self._looking: asyncio.Task[None] | None = None
        self._stopping = False
        self._took = 0.0
        self._met: tuple[Recording, float] | None = None  # the run that was seen first last, and when

    async def stream(self) -> AsyncIterator[bytes]:
        """Yield what one client is told, until it leaves; or to the end, where the server stops."""
        places: dict[int, _Place] = {}
        self.clients += 1
        if self._looking is None:
            self._looking = asyncio.create_task(self._look())
        try:
            yield b"retry: 1000\n\n"
            while True:
                news, last = self._news, self._stopping
                if last:
                    with suppress(Exception):  # which was said before
                        await self._in_pool(self._find_news)
                while data := await self._in_pool(self._next, places):
                    for start in range(0, len(data), EVENT_BYTES):  # a heading may be long, and a client slow
                        yield data[start : start + EVENT_BYTES]
                if last:
                    return
                try:
                    await asyncio.wait_for(news.wait(), KEEP_ALIVE_SECONDS)
                except TimeoutError:
                    yield b": still here\n\n"
        finally:
            self.clients -= 1

    def stop(self) -> None:
        """Let every client go, once it was told the rest; in the event loop."""
        self._stopping = True
        self._news.set()

    def close(self) -> None:
        """End the thread, after the event loop."""
        self._pool.shutdown(wait=False)

    def _in_pool(self, work: Callable[..., Any], *words: Any) -> asyncio.Future[Any]:
        """Let a thread of its own do what may take a while: the server goes on answering."""
        return asyncio.get_running_loop().run_in_executor(self._pool, work, *words)

    def _next(self, places: dict[int, _Place]) -> bytes:
        for shown in [*self._runs]:
            place = places.get(shown.number)
            if place is None or place.shown is not shown:
                places[shown.number] = _Place(shown)
                return shown.begun
            if data := place.next():
                return data
        return b""

    async def _look(self) -> None:
        """Look at the recordings for as long as anybody watches."""
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
                turn = max(turn, clock()) + EVENT_INTERVAL
            await asyncio.sleep(max(turn - EARLY_SECONDS - clock(), LOOK_INTERVAL, min(PAUSE_FACTOR * took, MAX_PAUSE)))
        self._looking = None

    def _look_once(self) -> tuple[bool, float]:
        """Say whether there is anything new, and what it took to find out, in seconds of a processor.

        What is made once, as a heading, does not count: who has just come would wait for all that follows.
        """
        self._took = 0.0
        return self._find_news(), self._took

    def _find_news(self) -> bool:
        """Go on in all runs, also in those that have just begun."""
        new = False
        for number, recording in enumerate([*self.recordings()]):
            fresh = number == len(self._runs) or self._runs[number].recording is not recording
            if fresh:
                if not self._has_begun(recording):
                    return new
                self._runs[number : number + 1] = [_Shown(number, recording)]
            before = time.thread_time()
            new |= self._runs[number].look() or fresh
            self._took += 0.0 if fresh else time.thread_time() - before
        return new

    def _has_begun(self, recording: Recording) -> bool:
        """Say whether a run is some moments old, or over."""
        if self._met is None or self._met[0] is not recording:
            self._met = recording, time.monotonic()
        return self._stopping or recording.result is not None or time.monotonic() - self._met[1] > START_DELAY
