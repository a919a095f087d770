"""How everybody is, by hearsay: what nodes tell each other beside their runs. No clock, no network, no thread.

Beat        a node says how it is now and then, under a stamp that only grows: when it started, and how often it has
            spoken since
Hearsay     it passes on to its neighbours what is newer than what it has told them, with how old that is by now
Newest      of two records of one device the one with the greater stamp counts, in whatever order they come. Only where
            what is known has gone silent does any record count that is not: a clock may have been set back
Neighbours  what a neighbour says of itself, on its own link, counts before all that others say of it while it is heard.
            So a Byzantine device can lie about devices far away, and about none that is a neighbour
Silence     a device of which nothing new was heard for two beats is silent; what it said last stays to be seen

A pulse that is malformed, too large or of a stranger is refused and counted; it changes nothing. Rows are those of the
roster; of a neighbour under another roster only what it says of itself counts.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Annotated, Any, Final, Literal, NamedTuple

import msgspec
from msgspec import Meta, Struct

from conformesh.files.json_numbers import in_json
from conformesh.mesh.node.health import CODES
from conformesh.mesh.node.status import Phase

VERSION: Final = 1
LARGEST = 2**17  # bytes of a pulse; more than 1,000 devices need
MOST = 400  # records in one pulse; the others follow with the next
BUDGET = 4000.0  # bytes a second of hearsay to each neighbour, about: in a large mesh all but news waits for its turn
SIZE = 40  # bytes of a record, about
BEATS = 2.0  # of silence after which a device counts as silent
SHORTEST = 1.5  # seconds of it at least
PHASES = tuple(Phase)  # the order is that of numbers in a pulse
HEALTH = ("healthy", "unhealthy", "silent", "unknown")  # of a device, as another one knows it
ALARMS = ("device", "fleet")  # whose drift alarm is raised; the order is that of bits in a pulse
VIA = ("itself", "neighbour", "hearsay", "nobody")  # from whom that is known

_Count = Annotated[int, Meta(ge=0, lt=2**53)]


class Vitals(Struct, array_like=True, frozen=True):
    """How one device is.

    Attributes
    ----------
    phase, codes
        A place in `PHASES`; bits of `CODES`, which say why it is not healthy.
    interval
        Tenths of a second between two beats of it.
    certified
        The run of its threshold; None where it has none.
    threshold, about, common
        The threshold, where others may know it; how many devices it is about; whether all devices of that run must have
        the very same.
    alarms
        Bits of `ALARMS`.
    """

    phase: Annotated[int, Meta(ge=0, lt=len(PHASES))]
    healthy: bool
    codes: Annotated[int, Meta(ge=0, lt=2**32)]
    run: _Count
    round: _Count
    roster: _Count
    interval: Annotated[int, Meta(ge=1, le=36_000)]
    certified: _Count | None = None
    threshold: float | None = None
    about: _Count = 0
    common: bool = False
    alarms: Annotated[int, Meta(ge=0, lt=2**32)] = 0

    @property
    def news(self) -> Vitals:
        """What of this is worth telling at once: all but the round."""
        return msgspec.structs.replace(self, round=0)


class HeartbeatRecord(Struct, array_like=True, frozen=True):
    """What is said of the device in a row: its stamp, how many milliseconds ago it said so, and how it is."""

    row: _Count
    start: _Count
    beat: _Count
    age: _Count
    vitals: Vitals


class Pulse(Struct, array_like=True, frozen=True):
    """What one node tells its neighbours: under which roster, of itself, and of others."""

    version: Literal[1]
    roster: _Count
    own: HeartbeatRecord
    others: list[HeartbeatRecord]


class _RefusedError(ValueError):
    """Why a pulse does not count; few different ones, since they are counted apart."""


class _Held(NamedTuple):
    """A record as it is kept: when it was said and when it came, on the clock of this node, and from whom."""

    stamp: tuple[int, int]
    said: float
    came: float
    vitals: Vitals
    via: str


_ENCODER, _DECODER = msgspec.msgpack.Encoder(), msgspec.msgpack.Decoder(Pulse)


class Pulses:
    """What one node knows of everybody, and what it says of it.

    Parameters
    ----------
    name
        This device.
    interval
        Seconds between two beats.
    start
        A number that is greater with every start, as seconds since 1970.

    Attributes
    ----------
    window
        Seconds for which news waits for more, before it is passed on.
    counts, refused
        Pulses and bytes that were sent and heard; pulses refused, by reason.
    """

    def __init__(self, name: str, interval: float, start: int) -> None:
        self.name, self.interval, self.start = name, interval, start
        self.window = min(max(interval / 4, 0.05), 0.25)
        self.counts: Counter[str] = Counter(sent=0, sent_bytes=0, heard=0, heard_bytes=0)
        self.refused: Counter[str] = Counter()
        self._beat = 0
        self._own: Vitals | None = None
        self._beat_at = self._told_all_at = -math.inf
        self._direct: dict[str, _Held] = {}  # what neighbours say of themselves
        self._told: dict[str, _Held] = {}  # what others say of a device
        self._passed: dict[str, tuple[float, Vitals]] = {}  # when it was last passed on, and what
        self._due: dict[str, None] = {}  # who is to be passed on, in order
        self.under((name,), (), 0)

    def under(self, devices: Sequence[str], neighbours: Iterable[str], roster: int) -> None:
        """Go on under another roster; what is known of devices that stay is kept."""
        self.devices, self.roster = tuple(devices), roster
        self.neighbours = frozenset(neighbours)
        self._row = {name: row for row, name in enumerate(self.devices)}
        self._direct = {name: held for name, held in self._direct.items() if name in self.neighbours}
        self._told = {name: held for name, held in self._told.items() if name in self._row}
        self._due = {name: None for name in self._due if name in self._row}
        self._passed = {}
        # What only says that all is as it was, is passed on as often as the budget allows, and not oftener than heard.
        self._period = max(self.interval, SIZE * len(self.devices) / BUDGET)
        self._travel = self.window * len(self.devices)  # seconds that news may take along the longest path

    # --- what is heard ------------------------------------------------------------------------------------------------

    def hear(self, sender: str, data: bytes, now: float) -> None:
        """Take bytes that came from a neighbour on its own link; never raises, whatever they are."""
        try:
            pulse = self._read(sender, data)
        except _RefusedError as problem:
            self.refused[str(problem)] += 1
            return
        self.counts.update(heard=1, heard_bytes=len(data))
        self._take_own(sender, pulse.own, now)
        for record in pulse.others if pulse.roster == self.roster else ():
            self._take_told(sender, record, now)

    def interval_of(self, neighbour: str) -> float | None:
        """Return the seconds between two heartbeats of a neighbour, as it says itself; None if it has sent none."""
        held = self._direct.get(neighbour)
        return None if held is None else held.vitals.interval / 10

    def _read(self, sender: str, data: bytes) -> Pulse:
        if sender not in self.neighbours:
            raise _RefusedError("a stranger")
        if len(data) > LARGEST:
            raise _RefusedError("too large")
        try:
            pulse = _DECODER.decode(data)
        except (msgspec.MsgspecError, ValueError, RecursionError):
            raise _RefusedError("malformed") from None
        if any(_is_nan(one.vitals.threshold) for one in (pulse.own, *pulse.others)):
            raise _RefusedError("malformed")
        if pulse.roster == self.roster:
            if pulse.own.row != self._row[sender]:
                raise _RefusedError("the name of another device")
            if any(one.row >= len(self.devices) for one in pulse.others):
                raise _RefusedError("a row that is not in the roster")
        return pulse

    def _take_own(self, sender: str, record: HeartbeatRecord, now: float) -> None:
        before = self._direct.get(sender)
        held = _held(record, now, "neighbour")
        if not self._counts(before, held, now):
            return
        if before is None or before.stamp[0] != record.start:
            self._tell_all(now)  # it has started, and knows of nobody
        self._direct[sender] = held
        self._pass_on(sender, record.vitals, now)

    def _take_told(self, sender: str, record: HeartbeatRecord, now: float) -> None:
        name = self.devices[record.row]
        if name in (self.name, sender):
            return
        before, held = self._told.get(name), _held(record, now, "hearsay")
        if not self._counts(before, held, now):
            return
        self._told[name] = held
        if self._known(name, now) is held:
            self._pass_on(name, record.vitals, now)

    def _counts(self, before: _Held | None, held: _Held, now: float) -> bool:
        """Whether a record takes the place of what was known: it is newer, or that has gone silent and this has not."""
        if before is None or held.stamp > before.stamp:
            return True
        if held.stamp == before.stamp:  # nearly always: the same words, by another way
            return False
        return self._is_silent(before, now) and not self._is_silent(held, now)

    def _is_silent(self, held: _Held, now: float) -> bool:
        """Whether nothing new was heard for too long; the time that news may take to come here is no silence."""
        pace = held.vitals.interval / 10
        limit = max(SHORTEST, BEATS * (pace if held.via == "neighbour" else max(pace, self._period)))
        late = max(held.came - held.said - self._travel, 0.0)
        return now - held.came + late > limit

    # --- what is said -------------------------------------------------------------------------------------------------

    def say(self, own: Vitals, now: float) -> bytes | None:
        """Return what to tell all neighbours now; None where there is nothing new."""
        beat = now >= self._beat_at + self.interval - self.window / 2
        if beat or self._own is None or own.news != self._own.news:
            self._beat, self._beat_at, self._own = self._beat + 1, now, own
        elif not self._due:
            return None
        names = [*self._due][:MOST]
        for name in names:
            del self._due[name]
        others = [self._record(name, now) for name in names]
        mine = HeartbeatRecord(self._row[self.name], self.start, self._beat, _ms(now - self._beat_at), self._own)
        data = _ENCODER.encode(Pulse(VERSION, self.roster, mine, others))
        self.counts.update(sent=1, sent_bytes=len(data))
        return data

    def _record(self, name: str, now: float) -> HeartbeatRecord:
        held = self._known(name, now)
        assert held is not None  # else it is not due
        self._passed[name] = now, held.vitals.news
        return HeartbeatRecord(self._row[name], *held.stamp, _ms(now - held.said), held.vitals)

    def _pass_on(self, name: str, vitals: Vitals, now: float) -> None:
        """Have it told to the neighbours: what is news at once, and that all is as it was now and then."""
        when, what = self._passed.get(name, (-math.inf, None))
        if vitals.news != what or now >= when + self._period / 2:
            self._due[name] = None

    def _tell_all(self, now: float) -> None:
        """Have everything told, for a neighbour that knows nothing yet; not too often, whatever it says."""
        if now >= self._told_all_at + self._period:
            self._told_all_at = now
            self._due |= dict.fromkeys([*self._direct, *self._told])

    # --- what is shown ------------------------------------------------------------------------------------------------

    def _known(self, name: str, now: float) -> _Held | None:
        """Return what counts of a device."""
        direct, told = self._direct.get(name), self._told.get(name)
        if direct is None or told is None:
            return direct or told
        # Others may have heard a neighbour that this device no longer hears; that they heard what it did is no news.
        later = told.said > direct.said + self.window
        return told if later and self._is_silent(direct, now) else direct

    def shown(self, own: Vitals, now: float) -> list[dict[str, Any]]:
        """Return a row for each device of the roster, as JSON."""
        mine = _Held((self.start, self._beat), now, now, own, "itself")
        known = {name: mine if name == self.name else self._known(name, now) for name in self.devices}
        return [{"name": name, **self._row_of(held, now)} for name, held in known.items()]

    def _row_of(self, held: _Held | None, now: float) -> dict[str, Any]:
        if held is None:
            return {**_NOTHING, "devices": len(self.devices)}
        vitals = held.vitals
        health = "silent" if self._is_silent(held, now) else "healthy" if vitals.healthy else "unhealthy"
        return {
            "health": health,
            "via": held.via,
            "heard_seconds_ago": round(now - held.said, 3),
            "phase": PHASES[vitals.phase].value,
            "reasons": [code for bit, code in enumerate(CODES) if vitals.codes >> bit & 1],
            "run": vitals.run,
            "round": vitals.round,
            "roster": vitals.roster,
            "certified_run": vitals.certified,
            "threshold": in_json(vitals.threshold),
            "common": vitals.common,
            "about": None if vitals.certified is None else vitals.about,
            "devices": len(self.devices),
            "alarms": [whose for bit, whose in enumerate(ALARMS) if vitals.alarms >> bit & 1],
        }


_NOTHING: dict[str, Any] = {
    "health": "unknown",
    "via": "nobody",
    "heard_seconds_ago": None,
    "phase": None,
    "reasons": [],
    "run": None,
    "round": None,
    "roster": None,
    "certified_run": None,
    "threshold": None,
    "common": None,
    "about": None,
    "alarms": [],
}


def _held(record: HeartbeatRecord, now: float, via: str) -> _Held:
    return _Held((record.start, record.beat), now - record.age / 1000, now, record.vitals, via)


def _is_nan(threshold: float | None) -> bool:
    return threshold is not None and math.isnan(threshold)


def _ms(seconds: float) -> int:
    return max(int(seconds * 1000), 0)
