"""The status of every device as one node knows it from heartbeats. No clock, no network, no thread.

- A device numbers its heartbeats: the time of its start, and how many it has sent since. Of two records of one device
  the one with the greater number counts, in whatever order they arrive. An older number counts only if the known record
  has gone silent and the new one has not: a clock may have been set back.
- A node relays to its neighbours what is newer than what it has relayed before, with the age of that record.
- What a neighbour reports about itself, on its own link, takes precedence over what others relay about it for as long
  as it is heard. So a Byzantine device can lie about distant devices, but not about neighbours of this node.
- A device from which nothing new has arrived for two intervals is silent; its last status stays visible.

A malformed or oversized message, or one from a stranger, is refused and counted; it changes nothing. The table has a
row for each device of the roster; from a neighbour under another roster only its own status counts.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Annotated, Final, Literal, NamedTuple

import msgspec
from msgspec import Meta, Struct

from conformesh.files.json_numbers import as_json_value
from conformesh.mesh.node.health import HEALTH_CODES
from conformesh.mesh.node.status import AlarmScope, DeviceStatus, Phase, Source

HEARTBEAT_VERSION: Final = 1  # of the message; raised when nodes of two versions could misunderstand each other
LARGEST_HEARTBEAT = 2**17  # bytes; more than 1,000 devices need (tested), and little enough to decode at every arrival
MOST_RELAYED_RECORDS = 400  # records relayed in one message; the others follow with the next
# Bytes per second of relayed records to each neighbour, about. A choice: negligible on any link, and a change is
# relayed at once anyway; in a large mesh only the repetitions "still as before" wait for their turn.
_RELAY_BUDGET = 4000.0
_RECORD_SIZE = 40  # bytes of an encoded record, about: measured, and only used to divide the budget
_SILENT_INTERVALS = 2.0  # intervals without news after which a device counts as silent: one heartbeat may be lost
_SHORTEST_SILENCE = 1.5  # seconds; with short intervals a pause of the system would otherwise look like a silence
# Positions in these tuples are numbers and bits of the wire format: new entries go to the end.
PHASES = tuple(Phase)
ALARM_SCOPES: tuple[AlarmScope, ...] = ("device", "fleet")

_Count = Annotated[int, Meta(ge=0, lt=2**53)]  # a float holds every such integer exactly, as JSON readers need


class SharedStatus(Struct, array_like=True, frozen=True):
    """The part of a node's status that heartbeats carry.

    Attributes
    ----------
    phase, codes
        A position in `PHASES`; bits of `HEALTH_CODES`, which say why it is not healthy.
    interval
        Tenths of a second between two of its heartbeats.
    certified
        The run of its threshold; None if it has none.
    threshold, about, common
        The threshold, if others may know it; how many devices it is about; whether all devices of that run must have
        exactly this one.
    alarms
        Bits of `ALARM_SCOPES`.
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
    def news(self) -> SharedStatus:
        """The part whose change is sent at once: all but the round, which changes all the time."""
        return msgspec.structs.replace(self, round=0)


class HeartbeatRecord(Struct, array_like=True, frozen=True):
    """The status of the device in a row of the roster: its number (start, beat), its age (ms), the status."""

    row: _Count
    start: _Count
    beat: _Count
    age: _Count
    status: SharedStatus


class HeartbeatMessage(Struct, array_like=True, frozen=True):
    """What one node sends its neighbours: its roster, its own status, and records about others."""

    version: Literal[1]
    roster: _Count
    own: HeartbeatRecord
    others: list[HeartbeatRecord]


class HeartbeatCounts(Struct):
    """Heartbeat messages and bytes that were sent and received, and messages refused, by reason."""

    sent: int = 0
    sent_bytes: int = 0
    received: int = 0
    received_bytes: int = 0
    refused: dict[str, int] = msgspec.field(default_factory=dict)

    def copy(self) -> HeartbeatCounts:
        """Return a copy that later messages do not change."""
        return msgspec.structs.replace(self, refused=dict(self.refused))


class _RefusedError(ValueError):
    """Why a message does not count; there are few different reasons, because each is counted separately."""


class _Entry(NamedTuple):
    """A record as it is stored: when it was sent and received, on the clock of this node, and from whom."""

    stamp: tuple[int, int]
    sent_at: float
    received_at: float
    status: SharedStatus
    via: Source


_ENCODER, _DECODER = msgspec.msgpack.Encoder(), msgspec.msgpack.Decoder(HeartbeatMessage)


class StatusTable:
    """What one node knows about every device, and what it sends about it.

    Parameters
    ----------
    name
        This device.
    interval
        Seconds between two heartbeats.
    started
        A number that is greater with every start, such as seconds since 1970. It tells a restarted node from an old
        message that arrives late.

    Attributes
    ----------
    window
        Seconds for which news waits for more, before it is relayed.
    counts
        Messages that were sent, received and refused.
    """

    def __init__(self, name: str, interval: float, started: int) -> None:
        self.name, self.interval, self.started = name, interval, started
        # A quarter of an interval: news crosses several links within one interval. At most four messages a second.
        self.window = min(max(interval / 4, 0.05), 0.25)
        self.counts = HeartbeatCounts()
        self._beat = 0
        self._status: SharedStatus | None = None  # of this device, as it was sent last
        self._beat_at = self._relayed_all_at = -math.inf
        self._direct: dict[str, _Entry] = {}  # what neighbours report about themselves
        self._relayed: dict[str, _Entry] = {}  # what others report about a device
        self._passed: dict[str, tuple[float, SharedStatus]] = {}  # when a device was last relayed, and its news then
        self._due: dict[str, None] = {}  # devices to be relayed, in order
        self.set_roster((name,), (), 0)

    def set_roster(self, devices: Sequence[str], neighbours: Iterable[str], number: int) -> None:
        """Continue under another roster; what is known about devices that stay is kept."""
        self.devices, self.roster = tuple(devices), number
        self.neighbours = frozenset(neighbours)
        self._row = {name: row for row, name in enumerate(self.devices)}
        self._direct = {name: entry for name, entry in self._direct.items() if name in self.neighbours}
        self._relayed = {name: entry for name, entry in self._relayed.items() if name in self._row}
        self._due = {name: None for name in self._due if name in self._row}
        self._passed = {}
        # A record without news is relayed as often as the budget allows, and not more often than it arrives.
        self._period = max(self.interval, _RECORD_SIZE * len(self.devices) / _RELAY_BUDGET)
        self._travel = self.window * len(self.devices)  # seconds that news may take along the longest path

    # --- receiving ----------------------------------------------------------------------------------------------------

    def update(self, sender: str, payload: bytes, now: float) -> None:
        """Process a message that arrived from a neighbour on its own link; never raises, whatever the bytes are."""
        try:
            message = self._decode(sender, payload)
        except _RefusedError as problem:
            self.counts.refused[str(problem)] = self.counts.refused.get(str(problem), 0) + 1
            return
        self.counts.received += 1
        self.counts.received_bytes += len(payload)
        self._update_direct(sender, message.own, now)
        for record in message.others if message.roster == self.roster else ():
            self._update_relayed(sender, record, now)

    def interval_of(self, neighbour: str) -> float | None:
        """Return the seconds between two heartbeats of a neighbour, as it reports them; None if it has sent none."""
        entry = self._direct.get(neighbour)
        return None if entry is None else entry.status.interval / 10

    def _decode(self, sender: str, payload: bytes) -> HeartbeatMessage:
        if sender not in self.neighbours:
            raise _RefusedError("a stranger")
        if len(payload) > LARGEST_HEARTBEAT:
            raise _RefusedError("too large")
        try:
            message = _DECODER.decode(payload)
        except (msgspec.MsgspecError, ValueError, RecursionError):
            raise _RefusedError("malformed") from None
        if any(_is_nan(record.status.threshold) for record in (message.own, *message.others)):
            raise _RefusedError("malformed")
        if message.roster == self.roster:
            if message.own.row != self._row[sender]:
                raise _RefusedError("the name of another device")
            if any(record.row >= len(self.devices) for record in message.others):
                raise _RefusedError("a row that is not in the roster")
        return message

    def _update_direct(self, sender: str, record: HeartbeatRecord, now: float) -> None:
        known = self._direct.get(sender)
        entry = _entry(record, now, "neighbour")
        if not self._replaces(known, entry, now):
            return
        if known is None or known.stamp[0] != record.start:
            self._relay_all(now)  # it has just started and knows nobody
        self._direct[sender] = entry
        self._relay(sender, record.status, now)

    def _update_relayed(self, sender: str, record: HeartbeatRecord, now: float) -> None:
        name = self.devices[record.row]
        if name in (self.name, sender):  # about itself only the sender's own record counts
            return
        known, entry = self._relayed.get(name), _entry(record, now, "hearsay")
        if not self._replaces(known, entry, now):
            return
        self._relayed[name] = entry
        if self._latest(name, now) is entry:
            self._relay(name, record.status, now)

    def _replaces(self, known: _Entry | None, entry: _Entry, now: float) -> bool:
        """Whether a record replaces the known one: it is newer, or the known one has gone silent and it has not."""
        if known is None or entry.stamp > known.stamp:
            return True
        if entry.stamp == known.stamp:  # nearly always: the same record by another path
            return False
        return self._is_silent(known, now) and not self._is_silent(entry, now)

    def _is_silent(self, entry: _Entry, now: float) -> bool:
        """Whether nothing new has arrived for too long; the time that news needs to travel here is no silence."""
        pace = entry.status.interval / 10
        limit = max(
            _SHORTEST_SILENCE, _SILENT_INTERVALS * (pace if entry.via == "neighbour" else max(pace, self._period))
        )
        late = max(entry.received_at - entry.sent_at - self._travel, 0.0)
        return now - entry.received_at + late > limit

    # --- sending ------------------------------------------------------------------------------------------------------

    def encode_if_due(self, status: SharedStatus, now: float) -> bytes | None:
        """Return the message for all neighbours; None if there is nothing new and the next heartbeat is not due."""
        # Half a window early: the caller asks once per window, so that the mean interval is the one that was set.
        is_due = now >= self._beat_at + self.interval - self.window / 2
        if is_due or self._status is None or status.news != self._status.news:
            self._beat, self._beat_at, self._status = self._beat + 1, now, status
        elif not self._due:
            return None
        names = [*self._due][:MOST_RELAYED_RECORDS]
        for name in names:
            del self._due[name]
        others = [self._record(name, now) for name in names]
        age = _milliseconds(now - self._beat_at)
        own = HeartbeatRecord(self._row[self.name], self.started, self._beat, age, self._status)
        payload = _ENCODER.encode(HeartbeatMessage(HEARTBEAT_VERSION, self.roster, own, others))
        self.counts.sent += 1
        self.counts.sent_bytes += len(payload)
        return payload

    def _record(self, name: str, now: float) -> HeartbeatRecord:
        entry = self._latest(name, now)
        assert entry is not None  # else it is not due
        self._passed[name] = now, entry.status.news
        return HeartbeatRecord(self._row[name], *entry.stamp, _milliseconds(now - entry.sent_at), entry.status)

    def _relay(self, name: str, status: SharedStatus, now: float) -> None:
        """Relay a device with the next message: at once if it has news, else once in a period."""
        passed_at, news = self._passed.get(name, (-math.inf, None))
        if status.news != news or now >= passed_at + self._period / 2:
            self._due[name] = None

    def _relay_all(self, now: float) -> None:
        """Relay everything, for a neighbour that has just started; at most once in a period, whatever it claims."""
        if now >= self._relayed_all_at + self._period:
            self._relayed_all_at = now
            self._due |= dict.fromkeys([*self._direct, *self._relayed])

    # --- reading ------------------------------------------------------------------------------------------------------

    def _latest(self, name: str, now: float) -> _Entry | None:
        """Return the entry that counts for a device."""
        direct, relayed = self._direct.get(name), self._relayed.get(name)
        if direct is None or relayed is None:
            return direct or relayed
        # Others may have heard a neighbour that this node no longer hears. Without the window, an echo of what this
        # node has heard itself would count as later news.
        is_later = relayed.sent_at > direct.sent_at + self.window
        return relayed if is_later and self._is_silent(direct, now) else direct

    def snapshot(self, status: SharedStatus, now: float) -> list[DeviceStatus]:
        """Return the latest known status of every device of the roster; `status` is that of this device."""
        own = _Entry((self.started, self._beat), now, now, status, "itself")
        return [
            self._device_status(name, own if name == self.name else self._latest(name, now), now) for name in self._row
        ]

    def _device_status(self, name: str, entry: _Entry | None, now: float) -> DeviceStatus:
        if entry is None:
            return DeviceStatus.unknown(name, len(self.devices))
        status = entry.status
        return DeviceStatus(
            name=name,
            health="silent" if self._is_silent(entry, now) else "healthy" if status.healthy else "unhealthy",
            via=entry.via,
            heard_seconds_ago=round(now - entry.sent_at, 3),
            phase=PHASES[status.phase],
            reasons=[code for bit, code in enumerate(HEALTH_CODES) if status.codes >> bit & 1],
            run=status.run,
            round=status.round,
            roster=status.roster,
            certified_run=status.certified,
            threshold=as_json_value(status.threshold),
            common=status.common,
            about=None if status.certified is None else status.about,
            devices=len(self.devices),
            alarms=[scope for bit, scope in enumerate(ALARM_SCOPES) if status.alarms >> bit & 1],
        )


def _entry(record: HeartbeatRecord, now: float, via: Source) -> _Entry:
    return _Entry((record.start, record.beat), now - record.age / 1000, now, record.status, via)


def _is_nan(threshold: float | None) -> bool:
    return threshold is not None and math.isnan(threshold)


def _milliseconds(seconds: float) -> int:
    return max(int(seconds * 1000), 0)
