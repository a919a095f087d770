"""What a device that learns online has predicted and seen: as records, from which all else follows. No clock, no file.

A record is written down before anybody is told of it, and taken up by the same lines when it is made and when it is
read again: a device that was killed goes on with the very same numbers.

Predicted  an example got a number and the threshold of that moment, by which its label will be judged
Labelled   its label came: the score, counted once. The same label again is answered as before
Observed   both at once, for a label that is there with its outputs
Pinned     what all begin with: the certified threshold of that moment
Heard      what others have counted, which is only written down now and then
Began      the device counts as a new life: without a journal; or others have heard more of it than its journal knows
Kept       everything, in place of all records before it

Numbers are kept for a while (`WINDOW`); a label that comes later than that is refused, and counts as missing.
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec
from msgspec import Struct

from conformesh.online.accounts import Account
from conformesh.online.counters import Counters, Counting, Life, Tally

WINDOW = 4096  # predictions, from the last one back, whose labels may still come


class Predicted(Struct, tag="predicted", array_like=True, frozen=True):
    """An example without its label."""

    threshold: float


class Labelled(Struct, tag="labelled", array_like=True, frozen=True):
    """The label of an example."""

    number: int
    score: float


class Observed(Struct, tag="observed", array_like=True, frozen=True):
    """An example with its label."""

    threshold: float
    score: float


class Pinned(Struct, tag="pinned", array_like=True, frozen=True):
    """What all begin with."""

    origin: float


class Heard(Struct, tag="heard", array_like=True, frozen=True):
    """Counters of everybody."""

    counters: bytes


class Began(Struct, tag="began", array_like=True, frozen=True):
    """A new life, and what it has counted already."""

    life: int
    tally: Tally = Tally()


class Kept(Struct, tag="kept", array_like=True, frozen=True):
    """Everything there is to know."""

    rule: str
    life: int
    own: Tally
    next: int
    pending: dict[int, float]
    labelled: dict[int, tuple[float, float]]
    without: dict[int, int]
    counters: bytes


Record = Predicted | Labelled | Observed | Pinned | Heard | Began | Kept
_ENCODER, _DECODER = msgspec.msgpack.Encoder(), msgspec.msgpack.Decoder(Record)
encode = _ENCODER.encode


class Example(NamedTuple):
    """A prediction: its id, and its threshold."""

    id: str
    threshold: float


class Judged(NamedTuple):
    """What became of a label: the threshold it was judged by, its score, and whether it had been counted before."""

    id: str
    threshold: float
    score: float
    repeated: bool

    @property
    def missed(self) -> bool:
        """Whether the set did not have the label."""
        return self.score > self.threshold


class Observations:
    """The state of one device; `take` is all that changes it.

    Parameters
    ----------
    name, rule
        This device, and how it learns.
    fresh
        A number that no other journal has.

    Attributes
    ----------
    counters
        Of everybody who was heard of, itself among them.
    own
        What this life of the device has counted.
    pending, labelled
        Thresholds of examples without a label, and thresholds and scores of those with one, by number.
    """

    def __init__(self, name: str, rule: Counting, fresh: int) -> None:
        self.name, self.rule = name, rule
        self.counters = Counters({})
        self.pending: dict[int, float] = {}
        self.labelled: dict[int, tuple[float, float]] = {}
        self._without: dict[int, int] = {}  # labels of earlier examples that came after it was predicted
        self._next = 0
        self._begin(fresh, Tally())

    def read(self, records: list[bytes]) -> None:
        """Go on from what was written down, oldest first."""
        for data in records:
            try:
                self.take(_DECODER.decode(data))
            except (msgspec.MsgspecError, KeyError):
                raise ValueError("it is not what a device writes") from None
        self._loaded = self.own

    @property
    def threshold(self) -> float:
        """The threshold for an example that comes now."""
        return self.rule.threshold(self.counters, self.own)

    def accounts(self) -> tuple[Account, Account]:
        """Return what is guaranteed of this device, in this life, and of everybody who was heard of.

        The first is certain. Of earlier lives others have told, and what they told may be wrong: it is in the second.
        """
        # Of too many lives this one may not be among the kept.
        known = {**self.counters.tallies, self._life: self.own}
        return self.rule.account(self.own), self.rule.account(*known.values())

    # --- what is to be written down -----------------------------------------------------------------------------------

    def judge(self, score: float, id: str | None) -> tuple[Judged, Labelled | Observed | None]:
        """Return what becomes of a label, and the record of it; None where it was counted before."""
        if not 0 <= score <= self.rule.bound:
            raise ValueError(
                f"a score must lie from 0 to bound = {self.rule.bound:g} in device.toml, for which misses are bounded, "
                f"got {score!r}; nothing is counted"
            )
        if id is None:
            threshold = self.threshold
            return Judged(self._id(self._next), threshold, score, False), Observed(threshold, score)
        number = self._number(id)
        if number in self.labelled:
            return Judged(id, *self.labelled[number], True), None
        return Judged(id, self.pending[number], score, False), Labelled(number, score)

    def predict(self) -> tuple[Example, Predicted]:
        """Return the next example, and the record of it."""
        threshold = self.threshold
        return Example(self._id(self._next), threshold), Predicted(threshold)

    def hear(self, heard: Counters, fresh: int) -> list[Record]:
        """Merge what others say; return the records of a new life, where they know more of this one than its journal.

        The journal is an old one then, and what was counted since it was read is told apart as the new life's. Those
        sums can be as large as that of before and the one of now together: twice the bound.
        """
        merged = self.counters.merge(heard)
        if merged == self.counters:  # nearly always: the same words again
            return []
        self.counters = merged
        own, old = self.own, self._loaded
        if heard.tallies.get(self._life, Tally()) <= own:
            return []
        parts = own.parts * (2 if old.steps else 1)
        since = Tally(own.steps - old.steps, own.misses - old.misses, own.late, parts)
        return [Heard(self.counters.encode(self.rule)), Began(fresh, since)]

    def kept(self) -> Kept:
        """Return everything as one record."""
        return Kept(
            str(self.rule),
            self._life.number,
            self.own,
            self._next,
            dict(self.pending),
            dict(self.labelled),
            dict(self._without),
            self.counters.encode(self.rule),
        )

    # --- what was written down ----------------------------------------------------------------------------------------

    def take(self, record: Record) -> None:
        """Take up a record."""
        match record:
            case Predicted(threshold):
                self._predicted(threshold)
            case Labelled(number, score):
                self._counted(number, score)
            case Observed(threshold, score):
                self._predicted(threshold)
                self._counted(self._next - 1, score)
            case Pinned(origin):
                self.counters = self.counters.merge(Counters({}, origin))
            case Heard(counters):
                self.counters = self.counters.merge(Counters.decode(counters, self.rule))
            case Began(life, tally):
                self._begin(life, tally)
            case Kept():
                self._restore(record)

    def _begin(self, life: int, tally: Tally) -> None:
        self._life, self.own, self._loaded = Life(self.name, life), tally, Tally()
        for table in (self.pending, self.labelled, self._without):
            table.clear()  # their numbers may have been given twice
        self.counters = self.counters.merge(Counters({self._life: tally}))

    def _restore(self, kept: Kept) -> None:
        if kept.rule != str(self.rule):
            raise ValueError(f"it was made under {kept.rule}, and device.toml says {self.rule}")
        self._life, self.own, self._next = Life(self.name, kept.life), kept.own, kept.next
        self.pending, self.labelled, self._without = dict(kept.pending), dict(kept.labelled), dict(kept.without)
        self.counters = Counters.decode(kept.counters, self.rule)

    def _predicted(self, threshold: float) -> None:
        self.pending[self._next], self._without[self._next] = threshold, 0
        self._next += 1
        for table in (self.pending, self.labelled, self._without):
            table.pop(self._next - 1 - WINDOW, None)

    def _counted(self, number: int, score: float) -> None:
        threshold = self.pending.pop(number)
        self.labelled[number] = threshold, score
        own, late = self.own, self._without[number]
        for after in range(number + 1, self._next):  # which were predicted without this label
            self._without[after] += 1
            if after in self.labelled:
                late = max(late, self._without[after])
        self.own = Tally(own.steps + 1, own.misses + (score > threshold), max(own.late, late), own.parts)
        self.counters = self.counters.merge(Counters({self._life: self.own}))

    def _id(self, number: int) -> str:
        return f"{self._life.number:016x}-{number}"

    def _number(self, id: str) -> int:
        digits = id.rpartition("-")[2]
        number = int(digits) if digits.isascii() and digits.isdecimal() and len(digits) < 19 else -1
        if id != self._id(number) or number >= self._next:
            raise LookupError(f"example {id[:80]!r} is none that this device predicted; nothing is counted")
        if number not in self.pending and number not in self.labelled:
            raise LookupError(f"example {id!r} is more than {WINDOW} predictions ago; nothing is counted now")
        return number
