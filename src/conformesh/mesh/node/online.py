"""Online learning of a node: takes labels from local programs, and shares with its neighbours what it has counted.

Every reply to a program is written to the journal and flushed to the disk first, each record by itself: neither a kill
nor a power cut loses an acknowledged observation, and its id makes sure that none is counted twice. After some thousand
records the journal begins anew with one record of the whole state.

Counters are side messages of their own and not part of heartbeats: predictions depend on them, they are needed where
heartbeats are switched off, and they are larger. All known counters go to all neighbours, soon after a change and
periodically: lost messages are repeated, and a message that arrives twice changes nothing.
"""

from __future__ import annotations

import logging
import math
import os
import secrets
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import numpy as np
from msgspec.structs import replace

from conformesh.files.atomic_writes import move_path
from conformesh.files.json_numbers import as_json_value
from conformesh.mesh.config.device_config import DeviceConfig
from conformesh.mesh.config.local_scores import read_local_scores
from conformesh.mesh.link import COUNTERS, Transport, background_thread
from conformesh.mesh.node.certified_result import utc_text
from conformesh.mesh.node.drift_alarm import fleet_alarm
from conformesh.mesh.node.online_records import (
    AlarmRecord,
    JudgedObservation,
    Observations,
    OriginRecord,
    PredictedExample,
    Record,
    ReportedRecord,
    ScaleRecord,
    encode_record,
)
from conformesh.mesh.node.state import NodeState
from conformesh.mesh.node.status import (
    AlarmEvidence,
    AlarmFlags,
    AlarmStatus,
    DeviceCounts,
    OnlineAccount,
    OnlineStatus,
    ScaleStatus,
)
from conformesh.online.bounds import MissAccount
from conformesh.online.counters import Counters
from conformesh.peer.journal import FileJournal

LOG = logging.getLogger("conformesh.node")
JOURNAL_FILE, EARLIER_JOURNAL_FILE = "online.bin", "online-before.bin"
MOST_JOURNAL_RECORDS = 4096  # records in the journal before it is rewritten: bounds its size and the time of a start
SHARE_WINDOW = 0.1  # seconds between two checks for received messages, and at least between two sent ones
RESEND_INTERVAL = 1.0  # seconds after which unchanged counters are sent again, because messages may get lost
# Approximate bytes per second to each neighbour: after a long message the next one waits, even if counters changed.
SHARE_BUDGET = 50_000.0
LARGEST_LOG = 700.0  # exp overflows a float at 709.8; larger evidence is shown as infinite
STORE_INTERVAL = 10.0  # seconds between two records of other devices' counters; they usually send them again anyway


class OnlineLearning:
    """The online part of one node, safe to use from any thread.

    Parameters
    ----------
    config
        Configuration of a device that learns online.
    state
        Has the certified threshold, with which all devices start; receives the state of the drift alarm.
    """

    def __init__(self, config: DeviceConfig, state: NodeState) -> None:
        rule = config.learner
        assert rule is not None  # the caller creates this object only if [online] is configured
        self.rule, self.score, self._config = rule, config.chosen_score, config
        self._path, self._state = config.folder / JOURNAL_FILE, state
        # Guards the journal and the observations; taken before the lock of `NodeState`, never after it. Readers need no
        # lock: `_publish` replaces the objects that they read.
        self._lock = threading.Lock()
        self._journal: FileJournal | None = None
        self._observations = self._new_observations(config.name)
        self._since = 0  # records in the journal after its first
        self._last_stored = -math.inf, Counters({})  # when counters were last stored, and which
        self.refused: Counter[str] = Counter()
        self.set_roster(config)

    def _new_observations(self, name: str) -> Observations:
        return Observations(name, self.rule, _random_number(), _random_number())

    def set_roster(self, config: DeviceConfig) -> None:
        """Continue under another roster; counters of devices that neither it nor an earlier one names are ignored."""
        gone = () if config.roster is None else (one.name for one in config.roster.revoked)
        with self._lock:
            self._config, self._names = config, {*config.devices, *gone}
            self._publish()

    # --- requests of local programs -----------------------------------------------------------------------------------

    def predict(self) -> PredictedExample:
        """Give the next example an id and a threshold; OSError if it cannot be stored."""
        with self._writing():
            example, record = self._observations.predict()
            self._write(record)
            return example

    def observe(self, score: float, id: str | None = None) -> JudgedObservation:
        """Count a label: of the example with this id, or of one that is predicted now.

        ValueError for a score out of range, LookupError for an unknown id, OSError if it cannot be stored; then nothing
        is counted.
        """
        with self._writing():
            judged, record = self._observations.judge(score, id)
            if record is not None:
                self._write(record)
                if self._observations.lacks_alarm_time:  # its time may also be stored later
                    with suppress(OSError):
                        self._write(AlarmRecord(time.time()))
            return judged

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """Hold the lock, with an open journal and, once a threshold is certified, the common starting threshold."""
        with self._lock:
            self._open()
            certified = self._state.certified
            if self.rule.scale and not self._observations.taken and (scaled := self._initial_scale()) is not None:
                self._write(scaled)
            known = self._observations
            if known.counters.origin is None and certified is not None and (known.taken or not self.rule.scale):
                origin = certified.calibration.threshold / known.scale
                self._write(OriginRecord(min(max(origin, 0.0), self.rule.bound)))
            yield

    def _initial_scale(self) -> ScaleRecord | None:
        """Return the starting value of the local scale, the mean of the calibration scores; None without scores."""
        try:
            scores = read_local_scores(self._config).values
        except (ValueError, OSError):  # the node reports the file; the scale starts with the first label
            return None
        mean = float(np.mean(scores)) if len(scores) else 0.0
        return ScaleRecord(mean, len(scores)) if 0 < mean < math.inf else None

    def status(self) -> OnlineStatus:
        """Return the state of online learning after the last record."""
        return replace(self._status, refused=dict(self.refused))

    def _make_status(self) -> OnlineStatus:
        known, rule = self._observations, self.rule
        device, everybody = known.accounts()
        reported: dict[str, DeviceCounts] = {}
        for life, tally in known.counters.tallies.items():
            counts = reported.setdefault(life.device, DeviceCounts())
            counts.steps += tally.steps
            counts.misses += tally.misses
            counts.lives += 1
        return OnlineStatus(
            alpha=float(rule.alpha),
            learning=rule.learning,
            local=rule.local,
            bound=rule.bound,
            scale=ScaleStatus(rule.scale, known.scale, known.taken) if rule.scale else None,
            origin=known.counters.origin,
            threshold=as_json_value(known.threshold),
            device=_account_status(device),
            everybody=_account_status(everybody),
            late=known.own.late,
            pending=len(known.pending),
            reported=reported,
            alarm=self._alarm_status(),
            refused={},
        )

    def _alarm_status(self) -> AlarmStatus | None:
        known, drift = self._observations, self._observations.drift
        if drift is None:
            return None
        fleet, counted = fleet_alarm(known.tallies, self._names)
        return AlarmStatus(
            level=self.rule.alarm,
            evidence=AlarmEvidence(as_json_value(_exp(drift.largest)), as_json_value(_exp(fleet))),
            raised=AlarmFlags(drift.raised_at > 0, fleet >= -math.log(self.rule.alarm)),
            now=as_json_value(_exp(drift.now)),
            steps=drift.steps,
            raised_at=drift.raised_at or None,
            raised_time=None if known.raised is None else utc_text(known.raised),
            counted=counted,
        )

    def _publish(self) -> None:
        """Replace the objects that readers get: they take no lock, so these are never changed in place."""
        self._status, self._counters = self._make_status(), self._observations.counters
        self._state.set_alarm(self._status.alarm)

    # --- the journal --------------------------------------------------------------------------------------------------

    def open(self) -> None:
        """Open the journal; log an error, which the first observation raises again."""
        with self._lock:
            try:
                self._open()
            except OSError as problem:
                LOG.warning("%s: the node cannot learn: %s", self._path, problem)
            else:
                LOG.info("online: threshold %.6g, %s", self._observations.threshold, self._status.everybody.words)

    def close(self) -> None:
        """Store others' counters, and close the journal."""
        with suppress(OSError):
            self.store_reported(math.inf)
        with self._lock:
            self._close_journal()

    def _open(self) -> None:
        """Open the journal unless it is open, and start it anew with one record of the whole state."""
        if self._journal is not None:
            return
        known = self._new_observations(self._observations.name)
        journal = FileJournal(self._path, durable=True)
        try:
            try:
                known.read(journal.records())
            except ValueError as problem:  # of another rule, or damaged
                move_path(self._path, self._path.with_name(EARLIER_JOURNAL_FILE))
                old = EARLIER_JOURNAL_FILE
                LOG.warning("%s: the device counts anew: %s; the old journal is %s", self._path, problem, old)
                known = self._new_observations(known.name)
            if known.lacks_alarm_time:
                known.apply(AlarmRecord(time.time()))
            known.counters = known.counters.merge(self._observations.counters.of_devices(self._names - {known.name}))
            journal.begin(encode_record(known.to_record()))
        except OSError:
            with suppress(OSError):
                journal.close()
            raise
        self._observations, self._journal, self._since = known, journal, 0
        self._publish()

    def _write(self, *records: Record) -> None:
        """Write records, then apply them: a record that could not be written must have no effect."""
        self._open()  # `_compact` closes the journal if it fails
        assert self._journal is not None
        size = self._path.stat().st_size
        try:
            for record in records:
                self._journal.append(encode_record(record))
            for record in records:
                self._observations.apply(record)
        except OSError as problem:
            # The file may end in half a record, and reading stops there: later records would be lost.
            with suppress(OSError):
                os.truncate(self._path, size)
            self._close_journal()
            raise OSError(f"{self._path}: the journal cannot be written: {problem}; nothing is counted") from None
        self._since += len(records)
        if self._since >= MOST_JOURNAL_RECORDS:
            self._compact()
        self._publish()

    def _compact(self) -> None:
        assert self._journal is not None
        try:
            self._journal.begin(encode_record(self._observations.to_record()))
        except OSError as problem:  # the long journal remains valid
            LOG.warning("%s: the journal cannot be made shorter: %s", self._path, problem)
            self._close_journal()
        self._since = 0

    def _close_journal(self) -> None:
        """Close the journal; the next use reads it again."""
        if self._journal is not None:
            with suppress(OSError):
                self._journal.close()
            self._journal = None

    # --- counters of neighbours ---------------------------------------------------------------------------------------

    @contextmanager
    def running(self, transport: Transport) -> Iterator[None]:
        """Share counters over these links for as long as they are open."""
        with background_thread("counters", lambda stop: self._loop(transport, stop)):
            yield

    def _loop(self, transport: Transport, stop: threading.Event) -> None:
        sent, sent_at, due = Counters({}), -math.inf, -math.inf
        while not stop.wait(SHARE_WINDOW):
            try:
                for _, data, _ in transport.receive_side_messages(COUNTERS):
                    self.merge_counters(data)
                now, counters = time.monotonic(), self._counters
                self.store_reported(now)
                if now >= due and (counters is not sent or now >= sent_at + RESEND_INTERVAL):
                    message = counters.encode(self.rule)
                    transport.send_side_message(COUNTERS, message)
                    sent, sent_at, due = counters, now, now + len(message) / SHARE_BUDGET
            except Exception:  # no error may end the thread: the next exchange may succeed
                LOG.warning("counters could not be shared", exc_info=True)

    def merge_counters(self, data: bytes) -> None:
        """Merge the counters that a neighbour has sent; malformed ones are refused and counted."""
        try:
            received = Counters.decode(data, self.rule)
        except ValueError as problem:
            self.refused[str(problem)] += 1
            return
        devices = {*self._names, *(life.device for life in self._counters.tallies)}
        with self._lock:
            if self._journal is None:
                return  # the device's own counts are in the journal; without them it could not compare
            before = self._observations.counters
            records = self._observations.merge_counters(received.of_devices(devices), _random_number())
            if self._observations.counters is not before:
                self._write(*records)

    def store_reported(self, now: float) -> None:
        """Store other devices' counters periodically: a device that leaves before the next start cannot resend them."""
        with self._lock:
            when, what = self._last_stored
            if self._journal is not None and self._observations.counters is not what and now >= when + STORE_INTERVAL:
                self._write(ReportedRecord(self._observations.counters.encode(self.rule)))
                self._last_stored = now, self._observations.counters


def _account_status(account: MissAccount) -> OnlineAccount:
    return OnlineAccount(
        alpha=account.alpha,
        steps=account.labels,
        misses=account.misses,
        rate=account.rate if account.labels else None,
        within=account.bound,
        words=str(account),
    )


def _exp(log: float) -> float:
    return math.exp(log) if log < LARGEST_LOG else math.inf


def _random_number() -> int:
    return secrets.randbits(62)
