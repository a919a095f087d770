"""The state of a device that learns online, as records from which everything else follows. No clock, no file.

A record is written before its reply is sent, and the same code applies it when it is made and when it is read again: a
device that was killed continues with exactly the same numbers.

PredictionRecord   an example got a number and the threshold of that moment, by which its label will be judged
LabelRecord        its label arrived: the score, counted once. The same label again gets the same reply
ObservationRecord  both at once, for a label that is there with its outputs
OriginRecord       the common starting threshold: the certified one; with a local scale, in units of it
ScaleRecord        the starting value of the local scale: the mean of the calibration scores
AlarmRecord        when the drift alarm was raised
ReportedRecord     the counters of other devices, stored now and then
LifeRecord         the device counts as a new life: its journal is lost, or others know more about it than its journal
StateRecord        the whole state, in place of all records before it

Numbers are kept for `LABEL_WINDOW` predictions; a label that arrives later is refused, and counts as missing.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import msgspec
from msgspec import Struct

from conformesh.common.random_streams import random_stream
from conformesh.mesh.node.drift_alarm import DriftAlarm
from conformesh.online.bounds import MissAccount
from conformesh.online.counters import Counters, CountingLearner, CoverageCounts, Life

LABEL_WINDOW = 4096  # predictions, from the last one back, whose labels may still come; bounds the memory


class PredictionRecord(Struct, tag="predicted", array_like=True, frozen=True):
    """An example without its label."""

    threshold: float


class LabelRecord(Struct, tag="labelled", array_like=True, frozen=True):
    """The label of an example."""

    number: int
    score: float


class ObservationRecord(Struct, tag="observed", array_like=True, frozen=True):
    """An example with its label."""

    threshold: float
    score: float


class OriginRecord(Struct, tag="pinned", array_like=True, frozen=True):
    """The threshold with which all devices start."""

    origin: float


class ScaleRecord(Struct, tag="scaled", array_like=True, frozen=True):
    """The starting value of the local scale, and of how many scores it is the mean."""

    scale: float
    taken: int


class AlarmRecord(Struct, tag="raised", array_like=True, frozen=True):
    """When the drift alarm was raised, in seconds since 1970."""

    when: float


class ReportedRecord(Struct, tag="heard", array_like=True, frozen=True):
    """Encoded counters of all known devices."""

    counters: bytes


class LifeRecord(Struct, tag="began", array_like=True, frozen=True):
    """A new life, and its counts so far."""

    life: int
    tally: CoverageCounts = CoverageCounts()


class StateRecord(Struct, tag="kept", array_like=True, frozen=True):
    """The whole state. Fields with a default may be missing at the end of a record that an earlier version wrote."""

    rule: str
    life: int
    own: CoverageCounts
    next: int
    pending: dict[int, float]
    labelled: dict[int, tuple[float, float]]
    without: dict[int, int]
    counters: bytes
    origin: float | None = None
    scale: float = 1.0
    taken: int = 0
    seed: int = 0
    alarm: bytes = b""
    raised: float | None = None


Record = (
    PredictionRecord
    | LabelRecord
    | ObservationRecord
    | OriginRecord
    | ScaleRecord
    | AlarmRecord
    | ReportedRecord
    | LifeRecord
    | StateRecord
)
_ENCODER, _DECODER = msgspec.msgpack.Encoder(), msgspec.msgpack.Decoder(Record)
encode_record = _ENCODER.encode


class PredictedExample(NamedTuple):
    """A prediction: its id, and its threshold."""

    id: str
    threshold: float


class JudgedObservation(NamedTuple):
    """The judgement of a label: the threshold that applied, its score, and whether it had been counted before."""

    id: str
    threshold: float
    score: float
    repeated: bool

    @property
    def missed(self) -> bool:
        """Whether the set did not contain the label."""
        return self.score > self.threshold


class Observations:
    """The state of one device; only `apply` and `merge_counters` change it.

    Parameters
    ----------
    name, rule
        This device, and how it learns.
    fresh
        A random number that identifies this journal.
    seed
        Seed of the drift alarm, secret: whoever chooses scores must not be able to predict its draws.

    Attributes
    ----------
    counters
        Counters of all known devices, this one included.
    own
        Counts of this life of the device.
    pending, labelled
        Thresholds of examples without a label, and thresholds and scores of those with one, by number.
    scale, taken
        The running scale of the device's scores, and of how many.
    drift, raised
        The drift alarm, where there is one, and when it was raised.
    """

    def __init__(self, name: str, rule: CountingLearner, fresh: int, seed: int = 0) -> None:
        self.name, self.rule = name, rule
        self.scale, self.taken = 1.0, 0
        self.drift: DriftAlarm | None = None
        self.raised: float | None = None
        self._seed = seed
        self.counters = Counters({})
        self.pending: dict[int, float] = {}
        self.labelled: dict[int, tuple[float, float]] = {}
        self._without: dict[int, int] = {}  # labels of earlier examples that came after it was predicted
        self._next = 0
        self._begin(fresh, CoverageCounts())

    def read(self, records: list[bytes]) -> None:
        """Apply the records of a journal, oldest first."""
        for data in records:
            try:
                self.apply(_DECODER.decode(data))
            except (msgspec.MsgspecError, KeyError):
                raise ValueError("it is not what a device writes") from None
        self._loaded = self.own

    @property
    def threshold(self) -> float:
        """The threshold for the next example."""
        return self.rule.threshold(self.counters, self.own, self.scale)

    @property
    def lacks_alarm_time(self) -> bool:
        """Whether the alarm is raised and no record has its time."""
        return self.drift is not None and self.drift.raised_at > 0 and self.raised is None

    @property
    def tallies(self) -> dict[Life, CoverageCounts]:
        """Counts of all known lives. This one is added, because `Counters` drops the smallest of too many lives."""
        return {**self.counters.tallies, self._life: self.own}

    def accounts(self) -> tuple[MissAccount, MissAccount]:
        """Return the misses and guarantees of this life of the device, and of all known devices together.

        The first is certain. The second rests on what other devices report, also about earlier lives of this one.
        """
        return self.rule.account(self.own), self.rule.account(*self.tallies.values())

    # --- new records --------------------------------------------------------------------------------------------------

    def judge(self, score: float, id: str | None) -> tuple[JudgedObservation, LabelRecord | ObservationRecord | None]:
        """Return the judgement of a label, and its record; None if the label was counted before."""
        if self.rule.scale and not 0 <= score < math.inf:
            raise ValueError(f"a score must be a finite number from 0 on, got {score!r}; nothing is counted")
        if not self.rule.scale and not 0 <= score <= self.rule.bound:
            raise ValueError(
                f"a score must lie from 0 to bound = {self.rule.bound:g} in device.toml, for which misses are bounded, "
                f"got {score!r}; nothing is counted"
            )
        if id is None:
            threshold = self.threshold
            return JudgedObservation(self._id(self._next), threshold, score, False), ObservationRecord(threshold, score)
        number = self._number(id)
        if number in self.labelled:
            return JudgedObservation(id, *self.labelled[number], True), None
        return JudgedObservation(id, self.pending[number], score, False), LabelRecord(number, score)

    def predict(self) -> tuple[PredictedExample, PredictionRecord]:
        """Return the next example and its record."""
        threshold = self.threshold
        return PredictedExample(self._id(self._next), threshold), PredictionRecord(threshold)

    def merge_counters(self, received: Counters, fresh: int) -> list[Record]:
        """Merge counters of other devices; return records of a new life if they know more of this one than its journal.

        Then the journal is an old copy. What was counted since it was read becomes the counts of a new life. Their
        excess can be that of the old copy and of the time since together, so twice the bound applies.
        """
        merged = self.counters.merge(received)
        if merged == self.counters:  # the usual case: nothing new
            return []
        self.counters = merged
        own, old = self.own, self._loaded
        if received.tallies.get(self._life, CoverageCounts()).counted <= own.counted:
            return []
        parts = own.parts * (2 if old.steps else 1)
        since = CoverageCounts(own.steps - old.steps, own.misses - old.misses, own.late, parts)
        return [ReportedRecord(self.counters.encode(self.rule)), LifeRecord(fresh, since)]

    def to_record(self) -> StateRecord:
        """Return the whole state as one record."""
        return StateRecord(
            str(self.rule),
            self._life.number,
            self.own,
            self._next,
            dict(self.pending),
            dict(self.labelled),
            dict(self._without),
            self.counters.encode(self.rule),
            self.counters.origin,
            self.scale,
            self.taken,
            *((0, b"", None) if self.drift is None else (self._seed, self.drift.to_bytes(), self.raised)),
        )

    # --- applying records ---------------------------------------------------------------------------------------------

    def apply(self, record: Record) -> None:
        """Apply a record."""
        match record:
            case PredictionRecord(threshold):
                self._add_prediction(threshold)
            case LabelRecord(number, score):
                self._count_label(number, score)
            case ObservationRecord(threshold, score):
                self._add_prediction(threshold)
                self._count_label(self._next - 1, score)
            case OriginRecord(origin):
                self.counters = self.counters.merge(Counters({}, origin))
            case ScaleRecord(scale, taken):
                self.scale, self.taken = scale, taken
            case AlarmRecord(when):
                # With another level in device.toml the alarm may not be raised any more.
                self.raised = when if self.lacks_alarm_time else self.raised
            case ReportedRecord(counters):
                self.counters = self.counters.merge(Counters.decode(counters, self.rule))
            case LifeRecord(life, tally):
                self._begin(life, tally)
            case StateRecord():
                self._restore(record)

    def _begin(self, life: int, tally: CoverageCounts) -> None:
        self._life, self.own, self._loaded = Life(self.name, life), tally, CoverageCounts()
        # A new seed for each life, so that no two of them draw the same numbers.
        self._seed = int(random_stream(self._seed, "life", life).integers(2**62))
        self._set_alarm(None)
        for table in (self.pending, self.labelled, self._without):
            table.clear()  # another copy of the journal may have given out the same numbers
        self.counters = self.counters.merge(Counters({self._life: self.own}))

    def _restore(self, record: StateRecord) -> None:
        if record.rule != str(self.rule):
            raise ValueError(f"it was made under {record.rule}, and device.toml says {self.rule}")
        self._life, self.own, self._next = Life(self.name, record.life), record.own, record.next
        self.pending, self.labelled, self._without = dict(record.pending), dict(record.labelled), dict(record.without)
        self.counters = Counters.decode(record.counters, self.rule).merge(Counters({}, record.origin))
        self.scale, self.taken = record.scale, record.taken
        self._seed, self.raised = record.seed or self._seed, record.raised
        self._set_alarm(DriftAlarm.restore(self.rule, self._seed, record.alarm) if self.rule.alarm else None)
        self.counters = self.counters.merge(Counters({self._life: self.own}))

    def _set_alarm(self, drift: DriftAlarm | None) -> None:
        """Set the alarm, or start a new one if the rule has a level; each start is counted."""
        begins = drift is None and self.rule.alarm > 0
        self.drift = DriftAlarm(self.rule, self._seed) if begins else drift
        if self.drift is None or self.drift.raised_at == 0:
            self.raised = None
        self.own = self._with_alarm(self.own, self.own.alarms + begins)

    def _with_alarm(self, tally: CoverageCounts, alarms: int) -> CoverageCounts:
        evidence = 0.0 if self.drift is None else self.drift.largest
        return msgspec.structs.replace(tally, alarms=alarms, evidence=evidence)

    def _add_prediction(self, threshold: float) -> None:
        self.pending[self._next], self._without[self._next] = threshold, 0
        self._next += 1
        for table in (self.pending, self.labelled, self._without):
            table.pop(self._next - 1 - LABEL_WINDOW, None)

    def _count_label(self, number: int, score: float) -> None:
        threshold = self.pending.pop(number)
        self.labelled[number] = threshold, score
        own, late = self.own, self._without[number]
        for after in range(number + 1, self._next):  # these were predicted without this label
            self._without[after] += 1
            if after in self.labelled:
                late = max(late, self._without[after])
        if self.rule.scale:
            self.scale, self.taken = self.rule.scaled(self.scale, self.taken, score), self.taken + 1
        if self.drift is not None:
            self.drift.observe(score)
        tally = CoverageCounts(own.steps + 1, own.misses + (score > threshold), max(own.late, late), own.parts)
        self.own = self._with_alarm(tally, own.alarms)
        self.counters = self.counters.merge(Counters({self._life: self.own}))

    def _id(self, number: int) -> str:
        return f"{self._life.number:016x}-{number}"

    def _number(self, id: str) -> int:
        digits = id.rpartition("-")[2]
        number = int(digits) if digits.isascii() and digits.isdecimal() and len(digits) < 19 else -1
        if id != self._id(number) or number >= self._next:
            raise LookupError(f"example {id[:80]!r} is none that this device predicted; nothing is counted")
        if number not in self.pending and number not in self.labelled:
            raise LookupError(f"example {id!r} is more than {LABEL_WINDOW} predictions ago; nothing is counted now")
        return number
