"""When to say something again to one neighbour: about when its answer is late, and more and more seldom.

The time that answers take is measured, as TCP does it: a running mean, and only of what was sent once, as nobody knows
to which of two frames an answer belongs. An answer is late after the mean: a frame that was not needed costs less than
waiting does.
"""

from __future__ import annotations

import math

from conformesh.peer.entries import ascending_keys

_NEW_SHARE = 0.25  # weight of a new measurement in the running mean; a choice (TCP takes 1/8)
_SHORTEST_PAUSE = 0.02  # seconds between two attempts at least, on links that answer faster too
_ATTEMPTS, _PAUSE_GROWTH = 20, 1.1  # attempts without answer; each further one makes the pause longer by this factor
_QUESTION_PAUSE = 1.5  # growth factor of the pause between two requests for missing entries, while nothing new arrives
_COLLECTING_SHARE = 0.25  # share of the time that an answer takes; entries that arrive within it are sent in one frame


class NeighbourTimer:
    """What one neighbour has, what it was sent and when, and whether it waits for an answer.

    Attributes
    ----------
    has
        The keys that it last said it has.
    answer
        Whether it is to be sent a frame, whatever is in it.
    asks
        Whether it has said nothing since this device last spoke to it.
    """

    def __init__(self, first: float, longest: float) -> None:
        self.first, self.longest = first, max(longest, first)
        self.mean: float | None = None
        self.clear()

    def clear(self) -> None:
        """Forget what was said in an earlier run; how long answers take stays known."""
        self.has = 0
        self.answer = True
        self.asks = True
        self._sent: dict[int, tuple[float, int]] = {}  # by key: when last, and how often
        self._spoke = -math.inf
        self._heard = -math.inf
        self._tries = self._pokes = 0
        self._greeted = self._forgotten = -math.inf

    @property
    def pause(self) -> float:
        """How long an answer may take before it counts as late."""
        usual = self.first if self.mean is None else self.mean
        grown = max(usual, _SHORTEST_PAUSE) * _PAUSE_GROWTH ** max(self._tries - _ATTEMPTS, 0)
        return min(grown, max(self.longest, usual))

    @property
    def rest(self) -> float:
        """Until when a device that is done stays to answer."""
        return max(self._spoke, self._heard) + 2 * self.pause

    def heard(self, keys: int, now: float) -> None:
        """Take what the neighbour says that it has."""
        for key in [key for key in self._sent if keys >> key & 1]:
            when, times = self._sent.pop(key)
            if times == 1:
                self._measure(now - when)
        self.has, self.asks, self._heard, self._tries = keys, False, now, 0

    def forget(self, now: float) -> None:
        """Take it that the neighbour has nothing, so that it is sent everything again; not too often."""
        if now >= self._forgotten + self.pause:
            self.has, self._forgotten = 0, now

    def _measure(self, took: float) -> None:
        self.mean = took if self.mean is None else self.mean + _NEW_SHARE * (took - self.mean)

    @property
    def _next_frame(self) -> float:
        """When the next frame may go: a little after the last, so that what comes in between goes together."""
        return self._spoke + _COLLECTING_SHARE * (self.first / 2 if self.mean is None else self.mean)

    def may_speak(self, now: float) -> bool:
        """Return whether a frame may go now."""
        return now >= self._next_frame

    def is_due(self, key: int, now: float) -> bool:
        """Return whether an entry that the neighbour lacks is to be sent: for the first time, or again."""
        return key not in self._sent or now >= self._again(self._sent[key][0])

    def _again(self, when: float) -> float:
        """Return when to repeat what was sent then: the answer is late, or came and does not know of it."""
        if self.mean is not None and self._heard >= when + self.mean:
            return self._heard
        return when + self.pause

    def pokes(self, now: float, complete: bool) -> bool:
        """Return whether the neighbour is to be asked for what this device lacks: nothing was said for a while."""
        if complete or now < self._next_poke:
            return False
        self._pokes += 1
        return True

    @property
    def _next_poke(self) -> float:
        """When to ask: there may be nothing to hear for days, so more and more seldom, until there is something new."""
        pause = max(self.first, self.pause) * _QUESTION_PAUSE ** min(self._pokes, 30)
        return max(self._spoke, self._heard) + min(pause, max(self.longest, self.pause))

    def news(self) -> None:
        """Note that something new was heard, from whomever: there may be more."""
        self._pokes = 0

    def sent(self, keys: list[int], now: float) -> int:
        """Note that a frame with these entries is under way; return 1 if some of it was sent before."""
        again = False
        for key in keys:
            times = self._sent[key][1] if key in self._sent else 0
            self._sent[key] = now, times + 1
            again |= times > 0
        if self.asks:
            self._tries += 1
        self._spoke, self.answer, self.asks = now, False, True
        return int(again)

    def next(self, lacks: int, complete: bool) -> float:
        """Return when there is something to do about this neighbour; `lacks` are the keys it is not known to have."""
        soon = self._next_frame
        if self.answer or (lacks and any(key not in self._sent for key in ascending_keys(lacks))):
            return soon
        times = [self._again(when) for key, (when, _) in self._sent.items() if lacks >> key & 1]
        if not complete:
            times.append(self._next_poke)
        return max(min(times, default=math.inf), soon)

    def may_greet(self, now: float) -> bool:
        """Return whether a neighbour in another run may be told so again, and note that it was."""
        if now < self._greeted + min(self.pause, self.first):
            return False
        self._greeted = now
        return True
