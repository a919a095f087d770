"""When to repeat something to one neighbour in asynchronous mode: when its answer is late, and more and more rarely.

The time that answers take is measured as TCP does it: a running mean, and only of entries that were sent once, since
nobody knows to which of two frames an answer belongs (Karn's rule). An answer is late after the mean, while TCP adds a
margin: a frame that was not needed costs less here than waiting does.
"""

from __future__ import annotations

import math

from conformesh.peer.entries import ascending_keys

# Choices: no guarantee depends on these values, only how soon and at what cost a lost frame is repeated.
STEP = 0.25  # share of a new measurement in the mean: a few answers are enough to follow a link that has become slower
SHORTEST = 0.02  # seconds between two attempts, also on a link that answers faster: it must not be flooded
# After so many attempts without an answer the neighbour is down rather than the frames lost, and the pause grows by
# this factor with every further attempt, up to `longest`.
ATTEMPTS, GROWTH = 20, 1.1
SELDOM = 1.5  # growth of the pause between two requests for what this device lacks, while nothing new comes
TOGETHER = 0.25  # share of an answer's time: what there is to send within it goes in one frame
# Attempts and requests that still make the pause grow: it is beyond any `longest` then, and powers of floats must not
# overflow, as they would after a neighbour was down for some hours.
_MOST_ATTEMPTS, _MOST_REQUESTS = 1000, 30


class NeighbourTimer:
    """What one neighbour has, what it was sent and when, and whether it waits for an answer.

    Attributes
    ----------
    has
        The keys in its last frame: the entries that it has.
    owes_answer
        Whether this device is to send it a frame, whatever is in it.
    awaits_answer
        Whether it has sent nothing since this device last sent it a frame.
    """

    def __init__(self, first: float, longest: float) -> None:
        self.first, self.longest = first, max(longest, first)
        self.mean: float | None = None
        self.clear()

    def clear(self) -> None:
        """Forget what was exchanged in an earlier run; how long answers take stays known."""
        self.has = 0
        self.owes_answer = True  # the first frame says which entries this device has, even if there are none
        self.awaits_answer = True
        self._sent: dict[int, tuple[float, int]] = {}  # by key: when last, and how often
        self._sent_at = -math.inf  # the last frame to the neighbour
        self._received_at = -math.inf  # the last frame from it
        self._attempts = self._requests = 0  # frames without an answer; requests since something new came
        self._greeted_at = self._forgotten_at = -math.inf

    @property
    def pause(self) -> float:
        """How long an answer may take before it counts as late."""
        usual = self.first if self.mean is None else self.mean
        grown = max(usual, SHORTEST) * GROWTH ** min(max(self._attempts - ATTEMPTS, 0), _MOST_ATTEMPTS)
        return min(grown, max(self.longest, usual))  # a link that is slower than `longest` keeps its own time

    @property
    def quiet_from(self) -> float:
        """When a device that is done may stop answering.

        The neighbour would have repeated a frame after one pause; the second one is for a repetition that was lost.
        """
        return max(self._sent_at, self._received_at) + 2 * self.pause

    def note_received(self, keys: int, now: float) -> None:
        """Take a frame of the neighbour, which names the entries that it has; others it may have lost again."""
        for key in [key for key in self._sent if keys >> key & 1]:
            when, times = self._sent.pop(key)
            if times == 1:
                self._measure(now - when)
        self.has, self.awaits_answer, self._received_at, self._attempts = keys, False, now, 0

    def forget(self, now: float) -> None:
        """Take it that the neighbour has nothing, so that it is sent all entries again; at most once in a pause."""
        if now >= self._forgotten_at + self.pause:
            self.has, self._forgotten_at = 0, now

    def _measure(self, took: float) -> None:
        self.mean = took if self.mean is None else self.mean + STEP * (took - self.mean)

    @property
    def _next_frame(self) -> float:
        """When the next frame may go: a little after the last, so that what comes in between goes together."""
        return self._sent_at + TOGETHER * (self.first / 2 if self.mean is None else self.mean)

    def may_send(self, now: float) -> bool:
        """Return whether a frame may go now."""
        return now >= self._next_frame

    def is_due(self, key: int, now: float) -> bool:
        """Return whether an entry that the neighbour lacks is to be sent: for the first time, or again."""
        return key not in self._sent or now >= self._again(self._sent[key][0])

    def _again(self, when: float) -> float:
        """Return when to repeat an entry that was sent at `when`."""
        # A frame that came an answer's time later and does not name the entry: it was lost, so there is no more to wait
        # for. An earlier frame may have crossed it.
        if self.mean is not None and self._received_at >= when + self.mean:
            return self._received_at
        return when + self.pause

    def is_request_due(self, now: float, complete: bool) -> bool:
        """Return whether to ask the neighbour for what this device lacks, and note that it is asked."""
        if complete or now < self._next_request:
            return False
        self._requests += 1
        return True

    @property
    def _next_request(self) -> float:
        """When to ask: nothing new may come for days, so more and more rarely, until something does."""
        pause = max(self.first, self.pause) * SELDOM ** min(self._requests, _MOST_REQUESTS)
        return max(self._sent_at, self._received_at) + min(pause, max(self.longest, self.pause))

    def note_news(self) -> None:
        """Note that something new came from any neighbour: there may be more."""
        self._requests = 0

    def note_sent(self, keys: list[int], now: float) -> int:
        """Note that a frame with these entries is under way; return 1 if one of them was sent before."""
        again = False
        for key in keys:
            times = self._sent[key][1] if key in self._sent else 0
            self._sent[key] = now, times + 1
            again |= times > 0
        if self.awaits_answer:
            self._attempts += 1
        self._sent_at, self.owes_answer, self.awaits_answer = now, False, True
        return int(again)

    def wake_time(self, lacks: int, complete: bool) -> float:
        """Return when there is something to do about this neighbour; `lacks` are the keys it is not known to have."""
        soon = self._next_frame
        if self.owes_answer or (lacks and any(key not in self._sent for key in ascending_keys(lacks))):
            return soon
        times = [self._again(when) for key, (when, _) in self._sent.items() if lacks >> key & 1]
        if not complete:
            times.append(self._next_request)
        return max(min(times, default=math.inf), soon)

    def may_greet(self, now: float) -> bool:
        """Return whether to greet a neighbour in another run again, and note that it is done.

        It may send many frames before the greeting arrives, and one answer is enough for them.
        """
        if now < self._greeted_at + min(self.pause, self.first):
            return False
        self._greeted_at = now
        return True
