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
MOST_RECORDS = 4096  # in the journal before it begins anew; bounds the disk space, and the time of a start
SHARE_WINDOW = 0.1  # seconds between two looks at messages that have arrived, and at least between two sent
RESEND_INTERVAL = 1.0  # seconds after which all is sent again without news: messages may get lost
# Bytes per second to each neighbour, about: after a long message the next one waits, also with news.
SHARE_BUDGET = 50_000.0
LARGEST_LOG = 700.0  # exp overflows a float at 709.8; larger evidence is shown as infinite
STORE_INTERVAL = 10.0  # seconds between two records of others' counters, which they would send again anyway


class OnlineLearning:
    """The online part of one node, safe to use from any thread.

    Parameters
    ----------
    config
        Of a device that learns online.
    state
        Knows the certified threshold, which all begin with, and is told how the drift alarm is.
    """

    def __init__(self, config: DeviceConfig, state: NodeState) -> None:
        rule = config.learner
        assert rule is not None  # else there is nothing to learn by
        self.rule, self.score, self._config = rule, config.chosen_score, config
        self._path, self._state = config.folder / JOURNAL_FILE, state
        # Of the journal and the observations. Readers take no lock: `_publish` replaces what they read.
        self._lock = threading.Lock()
        self._journal: FileJournal | None = None
        self._known = self._made(config.name)
        self._since = 0  # records since the journal began
        self._written = -math.inf, Counters({})  # when others' counters were stored last, and which
        self.refused: Counter[str] = Counter()
        self.set_roster(config)

    def _made(self, name: str) -> Observations:
        return Observations(name, self.rule, _fresh(), _fresh())

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
            example, record = self._known.predict()
            self._write(record)
            return example

    def observe(self, score: float, id: str | None = None) -> JudgedObservation:
        """Count a label: of the example with this id, or of one that is predicted now.

        ValueError for a score out of range, LookupError for an unknown id, OSError if it cannot be stored; then nothing
        is counted.
        """
        with self._writing():
            judged, record = self._known.judge(score, id)
            if record is not None:
                self._write(record)
                if self._known.undated:  # the label is counted in any case; the time may be stored later
                    with suppress(OSError):
                        self._write(AlarmRecord(time.time()))
            return judged

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """Let one thread at a time work, with an open journal and the common starting threshold."""
        with self._lock:
            self._open()
            certified = self._state.certified
            if self.rule.scale and not self._known.taken and (scaled := self._calibrated()) is not None:
                self._write(scaled)
            known = self._known
            if known.counters.origin is None and certified is not None and (known.taken or not self.rule.scale):
                origin = certified.calibration.threshold / known.scale
                self._write(OriginRecord(min(max(origin, 0.0), self.rule.bound)))
            yield

    def _calibrated(self) -> ScaleRecord | None:
        """Return what the own scale begins with: the mean of the device's calibration scores, if it has any."""
        try:
            scores = read_local_scores(self._config).values
        except (ValueError, OSError):  # the node says so; the scale begins with the first label
            return None
        mean = float(np.mean(scores)) if len(scores) else 0.0
        return ScaleRecord(mean, len(scores)) if 0 < mean < math.inf else None

    def status(self) -> OnlineStatus:
        """Return what the device has learnt, as of the last record."""
        return replace(self._status, refused=dict(self.refused))

    def _take_status(self) -> OnlineStatus:
        known, rule = self._known, self.rule
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
        known, drift = self._known, self._known.drift
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
        """Make what is known now visible to readers, who take no lock."""
        self._status, self._counters = self._take_status(), self._known.counters
        self._state.set_alarm(self._status.alarm)

    # --- the journal --------------------------------------------------------------------------------------------------

    def open(self) -> None:
        """Read the journal; a problem with it is logged, and comes again with the first observation."""
        with self._lock:
            try:
                self._open()
            except OSError as problem:
                LOG.warning("%s: the node cannot learn: %s", self._path, problem)
            else:
                LOG.info("online: threshold %.6g, %s", self._known.threshold, self._status.everybody.words)

    def close(self) -> None:
        """Store others' counters, and close the journal."""
        with suppress(OSError):
            self.keep(math.inf)
        with self._lock:
            self._shut()

    def _open(self) -> None:
        """Open the journal, if it is not; it always begins with all that was known."""
        if self._journal is not None:
            return
        known = self._made(self._known.name)
        journal = FileJournal(self._path, durable=True)
        try:
            try:
                known.read(journal.records())
            except ValueError as problem:  # it is of another rule, or none at all
                move_path(self._path, self._path.with_name(EARLIER_JOURNAL_FILE))
                old = EARLIER_JOURNAL_FILE
                LOG.warning("%s: the device counts anew: %s; the old journal is %s", self._path, problem, old)
                known = self._made(known.name)
            if known.undated:
                known.take(AlarmRecord(time.time()))
            known.counters = known.counters.merge(self._known.counters.of_devices(self._names - {known.name}))
            journal.begin(encode_record(known.kept()))
        except OSError:
            with suppress(OSError):
                journal.close()
            raise
        self._known, self._journal, self._since = known, journal, 0
        self._publish()

    def _write(self, *records: Record) -> None:
        """Write records, and apply them only then: a record that could not be written has no effect."""
        self._open()  # again, where it could not be made shorter just now
        assert self._journal is not None
        size = self._path.stat().st_size
        try:
            for record in records:
                self._journal.append(encode_record(record))
            for record in records:
                self._known.take(record)
        except OSError as problem:
            # Half a record may be at the end; the journal would be read up to there and no further.
            with suppress(OSError):
                os.truncate(self._path, size)
            self._shut()
            raise OSError(f"{self._path}: the journal cannot be written: {problem}; nothing is counted") from None
        self._since += len(records)
        if self._since >= MOST_RECORDS:
            self._compact()
        self._publish()

    def _compact(self) -> None:
        assert self._journal is not None
        try:
            self._journal.begin(encode_record(self._known.kept()))
        except OSError as problem:  # the long one is as good
            LOG.warning("%s: the journal cannot be made shorter: %s", self._path, problem)
            self._shut()
        self._since = 0

    def _shut(self) -> None:
        """Close the journal; it is read anew when it is next needed."""
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
        said, said_at, due = Counters({}), -math.inf, -math.inf
        while not stop.wait(SHARE_WINDOW):
            try:
                for _, data, _ in transport.receive_side_messages(COUNTERS):
                    self.hear(data)
                now, counters = time.monotonic(), self._counters
                self.keep(now)
                if now >= due and (counters is not said or now >= said_at + RESEND_INTERVAL):
                    message = counters.encode(self.rule)
                    transport.send_side_message(COUNTERS, message)
                    said, said_at, due = counters, now, now + len(message) / SHARE_BUDGET
            except Exception:  # whatever it is, it is no reason to end
                LOG.warning("counters could not be shared", exc_info=True)

    def hear(self, data: bytes) -> None:
        """Merge the counters that a neighbour has sent; malformed ones are refused and counted."""
        try:
            heard = Counters.decode(data, self.rule)
        except ValueError as problem:
            self.refused[str(problem)] += 1
            return
        known = {*self._names, *(life.device for life in self._counters.tallies)}
        with self._lock:
            if self._journal is None:
                return  # without its journal the device does not know its own counts, and could not compare them
            before = self._known.counters
            records = self._known.hear(heard.of_devices(known), _fresh())
            if self._known.counters is not before:
                self._write(*records)

    def keep(self, now: float) -> None:
        """Store others' counters now and then: devices that have left by the next start would not send them again."""
        with self._lock:
            when, what = self._written
            if self._journal is not None and self._known.counters is not what and now >= when + STORE_INTERVAL:
                self._write(ReportedRecord(self._known.counters.encode(self.rule)))
                self._written = now, self._known.counters


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


def _fresh() -> int:
    return secrets.randbits(62)
