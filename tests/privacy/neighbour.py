"""What one curious device sees of private runs, for many runs at once.

The device (row 0) hears every message of the others, as the hub of a star does, and subtracts what it knows: its own
numbers, its noise, and the masks that it shares with others. What is left of a message is a word modulo 2^32. Words
that a mask hides are uniform; a small one is readable.

Counts and noise are those of `HistogramPlan`; masks are drawn from NumPy, since uniform words are all that matters.
`tests/privacy/test_empirical_epsilon.py` compares this model with the protocol itself.
"""

from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np
from conformesh.privacy.histogram import HistogramPlan

from conformesh.privacy.noise import Shares

SMALL = 500  # words beyond +-SMALL are no counts here: they are told apart by their first four bits only
CURIOUS = 0  # row of the device that listens


@dataclass(frozen=True)
class Attempt:
    """One attempt: the rows that take part, and how far it comes before a device is lost, or to its end."""

    rows: tuple[int, ...]
    until: Literal["masked", "revealed"] = "revealed"


@dataclass(frozen=True)
class Neighbour:
    """A curious device, and what is wrong with the devices that it listens to.

    Attributes
    ----------
    plan
        The public plan of an attempt in which all devices take part.
    attempts
        What is tried, in order. After a revealed attempt the account refuses all others.
    leaks
        Names of planted leaks, see `planted` in the tests.
    """

    plan: HistogramPlan
    attempts: tuple[Attempt, ...]
    leaks: frozenset[str] = field(default_factory=frozenset)

    def views(self, scores, runs, rng):
        """Return what the device sees in so many runs over these scores (by row), whole numbers (runs, columns)."""
        parts, charged = [], False
        refused = "floor" in self.leaks and any(not len(scores[row]) for row in range(1, self.plan.devices))
        for attempt in self.attempts:
            refused |= charged
            parts.append(np.full((runs, 1), refused))
            parts.append(self._seen(attempt, scores, 0 if refused else runs, runs, rng))
            charged |= attempt.until == "revealed" and "charge after reveal" not in self.leaks
        return np.concatenate(parts, axis=1).astype(np.int64)

    def _seen(self, attempt, scores, said, runs, rng):
        """Return the words of one attempt; a refused one (nothing `said`) has words as well, all of them 0."""
        honest = [row for row in attempt.rows if row != CURIOUS]
        plan = replace(self.plan, devices=len(attempt.rows), honest=max(len(attempt.rows) - 1, 1), copies=None)
        size = len(honest), runs, plan.numbers
        own = np.stack([self._noisy(plan, scores[row], attempt.rows.index(row), runs, rng) for row in honest])
        selves = rng.integers(0, 2**32, size, dtype=np.uint32)
        if "no self-mask" in self.leaks:
            selves[:] = 0
        masks = np.zeros(size, dtype=np.uint32)
        for i in range(len(honest)):
            for j in range(i + 1, len(honest)):
                if "sparse masks" in self.leaks and i == 0:
                    continue  # its mask neighbours are all curious
                drawn = rng.integers(0, 2**32, size[1:], dtype=np.uint32)
                masks[i] += drawn
                masks[j] -= drawn
        hidden = own.astype(np.uint32) + masks + selves
        revealed = selves if attempt.until == "revealed" else np.zeros_like(selves)
        words = [
            *hidden,
            *revealed,
            *(hidden - revealed),
            *(array.sum(axis=0, dtype=np.uint32) for array in (hidden, revealed, hidden - revealed)),
        ]
        seen = np.concatenate([_readable(word) for word in words], axis=1)
        return seen if said else np.zeros_like(seen)

    def _noisy(self, plan, scores, row, runs, rng):
        """Return the counts of a device plus its share of the noise in each run."""
        counts = plan.count(np.sort(scores), row, rng.bytes)
        if "no noise" in self.leaks:
            return np.repeat(counts[None], runs, axis=0)
        cells, number = plan.noise
        if "single noise" in self.leaks:
            cells = Shares(2 * cells.epsilon, cells.honest)
        if "noise of a larger set" in self.leaks:
            cells, number = (one and Shares(one.epsilon, 2 * one.honest) for one in (cells, number))
        noise = cells.draw(rng.bytes, runs * (plan.cells - 1)).reshape(runs, -1)
        if number is not None:
            noise = np.concatenate([number.draw(rng.bytes, runs)[:, None], noise], axis=1)
        return counts + noise


def _readable(words):
    """Return small words as they are, and the first four bits of others, shifted out of their way."""
    signed = words.view(np.int32).astype(np.int64)
    return np.where(np.abs(signed) <= SMALL, signed, SMALL + 1 + (words >> 28).astype(np.int64))
