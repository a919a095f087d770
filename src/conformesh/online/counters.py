r"""Counters: how many examples each device of a fleet has labelled and missed, as far as one device knows.

The `counted` coupling with a local integrator. Device k predicts with

.. math:: q_k = g_k + \gamma (E_k - \alpha N_k), \qquad g_k = \text{clip}(q_1 + h (E - \alpha N), 0, B)

where :math:`N_k, E_k` are its own steps and misses, and N, E those of all devices in the counters it has received.

Guarantees  scores in [0, B]: for every sequence, and whatever the other devices report, also if it is false or missing,
            -B / local - alpha (late + 1) <= E_k - alpha N_k <= B / local + (1 - alpha) (late + 1). *Proof*: above B /
            local + (1 - alpha) late, what the device knows of its own sum is above B / local, so its threshold is above
            g + B >= B and nothing is missed: the sum only falls. Below, everything is missed, and it only rises
Late        the largest number of labels of earlier predictions that had not arrived when a prediction was made
Everybody   the sums of all devices add up, and so do their bounds, if their reports are true. Devices that leave stay
            in both sums; devices that join add theirs
Lives       a device that has lost its journal starts new counts, as another life, which adds one more bound
Merging     of two tallies of one life the greater counts, so counters may arrive late, twice, or in any order
Scale       if there is one, a level is a multiple of the running scale of the device's scores, as in `couplings.Rule`.
            From B on the threshold is infinite and covers any score: B bounds levels, scores need no bound, and the
            proof holds
Evidence    the largest that a device's drift alarm had (`alarm.AlarmState`) travels in its tally. It only grows with
            the steps of a life, unless the alarm starts again, which is counted

Departures  a sharper bound for the counters alone would need their delay, which no device can know.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass
from fractions import Fraction
from itertools import groupby
from typing import Annotated, Final, Literal, NamedTuple

import msgspec
from msgspec import Meta, Struct

from conformesh.online.bounds import SMALLEST_SCALE, MissAccount, MissGap

_VERSION: Final = 1  # of the message
MAX_MESSAGE_BYTES = 2**20  # bytes of encoded counters; a longer message is rejected before it is parsed
# Lives of one device whose tallies are kept, those with most steps. It bounds memory and messages: a device that loses
# its journal repeatedly adds one life each time.
MAX_LIVES = 16

_Count = Annotated[int, Meta(ge=0, lt=2**53)]  # exact in floating point too


class CoverageCounts(Struct, array_like=True, frozen=True, order=True):
    """What one life of a device has counted.

    Attributes
    ----------
    steps, misses
        Examples whose label came, and how many of them had a score above the threshold.
    late
        The largest number of labels that were missing at one of its predictions.
    parts
        How many bounds add up: one, and one more each time it continued from an old journal.
    alarms, evidence
        How often its drift alarm started, 0 without an alarm; the largest logarithm of its evidence since.
    """

    steps: _Count = 0
    misses: _Count = 0
    late: _Count = 0
    parts: Annotated[int, Meta(ge=1, lt=2**32)] = 1
    alarms: Annotated[int, Meta(ge=0, lt=2**32)] = 0
    evidence: Annotated[float, Meta(ge=0, le=2.0**53)] = 0.0

    @property
    def counted(self) -> tuple[int, int, int, int]:
        """The tally without the alarm's fields."""
        return self.steps, self.misses, self.late, self.parts


class Life(NamedTuple):
    """A device, and the random number of one of its journals."""

    device: str
    number: int


class _Row(Struct, array_like=True, frozen=True):
    device: Annotated[str, Meta(max_length=256)]
    number: Annotated[int, Meta(ge=0, lt=2**62)]
    tally: CoverageCounts


class _Message(Struct, array_like=True, frozen=True):
    version: Literal[1]
    rule: str
    origin: float | None
    rows: list[_Row]


_ENCODER, _DECODER = msgspec.msgpack.Encoder(), msgspec.msgpack.Decoder(_Message)


@dataclass(frozen=True)
class Counters:
    """The tallies of all known lives. Immutable: merging returns a new object.

    Attributes
    ----------
    tallies
        By life.
    origin
        The threshold at which all devices started, if there was one: the largest start of any device. With a scale it
        is local, a multiple of the device's scale, and is not sent.
    """

    tallies: dict[Life, CoverageCounts]
    origin: float | None = None

    @property
    def steps(self) -> int:
        """Labelled examples of all devices."""
        return sum(tally.steps for tally in self.tallies.values())

    @property
    def misses(self) -> int:
        """Misses of all devices."""
        return sum(tally.misses for tally in self.tallies.values())

    def merge(self, other: Counters) -> Counters:
        """Return the combined counters; order and repetition of merges do not matter."""
        tallies = dict(self.tallies)
        for life, tally in other.tallies.items():
            local = tallies.get(life)
            tallies[life] = tally if local is None else max(local, tally)
        origins = [one.origin for one in (self, other) if one.origin is not None]
        return Counters(_bounded(tallies), max(origins, default=None))

    def of_devices(self, devices: Collection[str]) -> Counters:
        """Return the counters of these devices."""
        return Counters({life: tally for life, tally in self.tallies.items() if life.device in devices}, self.origin)

    def encode(self, rule: CountingLearner) -> bytes:
        """Return the bytes of a message; equal states have equal bytes."""
        rows = [_Row(*life, tally) for life, tally in sorted(self.tallies.items())]
        return _ENCODER.encode(_Message(_VERSION, str(rule), None if rule.scale else self.origin, rows))

    @classmethod
    def decode(cls, data: bytes, rule: CountingLearner) -> Counters:
        """Return the counters of an untrusted message; anything invalid raises a ValueError with one of a few texts."""
        if len(data) > MAX_MESSAGE_BYTES:
            raise ValueError("too large")
        try:
            message = _DECODER.decode(data)
        except (msgspec.MsgspecError, ValueError, RecursionError):
            raise ValueError("malformed") from None
        if message.rule != str(rule):
            raise ValueError("another rule")
        tallies = {Life(row.device, row.number): row.tally for row in message.rows}
        wrong = any(tally.misses > tally.steps for tally in tallies.values())
        origin = message.origin
        if wrong or len(tallies) < len(message.rows) or not (origin is None or 0 <= origin <= rule.bound):
            raise ValueError("malformed")
        return cls(_bounded(tallies), None if rule.scale else origin)


def _bounded(tallies: dict[Life, CoverageCounts]) -> dict[Life, CoverageCounts]:
    """Drop lives without a step, and the smallest lives of a device with too many.

    The largest in one total order remain, so that the order of merges still does not matter.
    """
    tallies = {life: tally for life, tally in tallies.items() if tally.steps}
    if max(Counter(life.device for life in tallies).values(), default=0) <= MAX_LIVES:
        return tallies
    remaining: dict[Life, CoverageCounts] = {}
    for _, lives in groupby(sorted(tallies), key=lambda life: life.device):
        remaining |= {
            life: tallies[life] for life in sorted(lives, key=lambda life: (tallies[life], life))[-MAX_LIVES:]
        }
    return remaining


@dataclass(frozen=True)
class CountingLearner:
    """How devices learn; the same on all of them.

    Attributes
    ----------
    alpha
        The share of examples that may be missed.
    learning, local
        How far one miss moves the threshold of everybody, and that of its own device.
    bound
        Scores lie between 0 and this; with a scale levels do, and scores are anything from 0 on.
    scale
        How much the newest score weighs in the device's running scale, by which scores are divided; 0 for none.
        Learning, local and bound are then in units of that scale, about a mean score.
    alarm
        The level of the drift alarm; 0 for none. It moves no threshold, so devices may differ.
    """

    alpha: Fraction
    learning: float
    local: float
    bound: float
    scale: float = 0.0
    alarm: float = 0.0

    def __post_init__(self) -> None:
        for name in ("local", "bound"):
            value = getattr(self, name)
            if not 0 < value < math.inf:
                raise ValueError(f"online {name} must be a positive number, got {value}: without it nothing is bounded")
        if not 0 <= self.learning < math.inf:
            raise ValueError(f"online learning must be 0 or a positive number, got {self.learning}")
        if not 0 <= self.scale <= 1:
            raise ValueError(f"online scale must be 0 for none, or the weight of a score up to 1, got {self.scale}")
        if not 0 <= self.alarm < 1:
            raise ValueError(f"online alarm must be 0 for none, or a chance of false alarm below 1, got {self.alarm}")

    def __str__(self) -> str:
        scale = f", scale {self.scale!r}" if self.scale else ""
        return f"alpha {self.alpha}, learning {self.learning!r}, local {self.local!r}, bound {self.bound!r}{scale}"

    @property
    def words(self) -> str:
        """The learner as text, including the alarm, on which devices may differ."""
        return f"{self}, alarm {self.alarm!r}" if self.alarm else str(self)

    def threshold(self, counters: Counters, own: CoverageCounts, scale: float = 1.0) -> float:
        """Return the threshold for the next example of a device with this tally and running scale.

        Without an origin, or from a level of `bound` on, every example is covered.
        """
        origin = self.bound if counters.origin is None else counters.origin
        shared = origin + self.learning * self._excess_misses(counters.steps, counters.misses)
        level = min(max(shared, 0.0), self.bound) + self.local * self._excess_misses(own.steps, own.misses)
        if not self.scale:
            return level
        return math.inf if level >= self.bound else level * scale

    def scaled(self, scale: float, taken: int, score: float) -> float:
        """Return the running scale after one more score, the next after `taken`, as in `couplings.Rule`."""
        weight = max(self.scale, 1 / (taken + 1))
        return max(scale + weight * (score - scale), SMALLEST_SCALE)

    def _excess_misses(self, steps: int, misses: int) -> float:
        return float(misses - self.alpha * steps)

    def account(self, *tallies: CoverageCounts) -> MissAccount:
        """Return the misses of these tallies together, with their guarantee."""
        alpha, reach = float(self.alpha), self.bound / self.local
        begun = [tally for tally in tallies if tally.steps]
        down = sum(tally.parts * (reach + alpha * (tally.late + 1)) for tally in begun)
        up = sum(tally.parts * (reach + (1 - alpha) * (tally.late + 1)) for tally in begun)
        labels, misses = sum(tally.steps for tally in begun), sum(tally.misses for tally in begun)
        return MissAccount(alpha, labels, misses, MissGap(down, up))
