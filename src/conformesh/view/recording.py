"""Recording: turn a run in progress into steps that can be shown, without slowing it down.

A `Recorder` is an observer of engines. In a round it notes the senders, and copies the progress that the protocol
shows (`Block.progress`); it makes steps of that when somebody looks, after the run or in a thread that serves a page.
The first rounds are all noted; later ones are the more seldom the longer a run takes, so that a run of any length has
some hundreds of steps. And a recorder that was given a share of the run's time leaves out what it has no time for.
"""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from itertools import islice
from typing import Any, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from conformesh.common.quantities import pluralize
from conformesh.engines.faulty import MessageLoss
from conformesh.engines.observers import RunObserver
from conformesh.files.json_numbers import as_json_value
from conformesh.methods import get_method, make_options
from conformesh.protocols.block import Block
from conformesh.protocols.faults import Faults
from conformesh.protocols.messages import Message, Pool, Sum, Tell
from conformesh.results.result import Result
from conformesh.view.trace import (
    Column,
    CoverageOfAll,
    Fact,
    FieldValue,
    SentBits,
    Step,
    Trace,
    TracedRun,
    TraceHeading,
    require_drawable_network,
)

# Rounds that are all recorded. From there every second one is, from twice as many on every fourth, and so on: a run of
# any length has some hundreds of steps.
DENSE_ROUNDS = 128
MAX_NUMBERS = 2**21  # recorded of a run before rounds are left out: 16 MB
LIVE_SHARE = 0.01  # of the time of a run that recording may take while a page follows it
MAX_STEPS = 50_000  # of a recording, a bound on memory: beyond it the oldest steps become one
_CERTIFIED_KINDS = ("counted", "bounded")  # certificates without an unchecked assumption
Ints = NDArray[np.int64]


class RecordedState:
    """What is known at a step: all steps up to it, merged into one."""

    def __init__(self, devices: int) -> None:
        self.devices = devices
        self.fields: dict[str, list[FieldValue]] = {}
        self.bracket: tuple[FieldValue, FieldValue, int | None, int | None] | None = None
        self.everybody: CoverageOfAll | None = None
        self.at = 0.0

    def take(self, step: Step) -> None:
        """Apply the next step."""
        self.at, self.bracket = step.at, step.bracket or self.bracket
        self.everybody = step.everybody or self.everybody
        for name, column in step.devices.items():
            if column.rows is None:
                self.fields[name] = [*column.values]
                continue
            values = self.fields.setdefault(name, [None] * self.devices)
            for row, value in zip(column.rows, column.values, strict=True):
                values[row] = value

    def as_step(self) -> Step:
        """Return everything as one step, with which a run may start."""
        columns = {name: Column([*values]) for name, values in self.fields.items()}
        return Step(at=self.at, devices=columns, bracket=self.bracket, everybody=self.everybody)

    def changes(self, fields: dict[str, list[FieldValue]]) -> dict[str, Column]:
        """Return the changes in these fields, which have a value for every device."""
        found = {}
        for name, values in fields.items():
            old = self.fields.get(name, [None] * self.devices)
            rows = [row for row, (was, now) in enumerate(zip(old, values, strict=True)) if was != now]
            if rows:
                found[name] = Column([values[row] for row in rows], rows)
        return found


class Recording:
    """One run, which may be in progress. Safe to read while another thread adds to it.

    Parameters
    ----------
    heading
        The heading, or a function that makes it when it is first needed: the layout of devices takes time.
    fill
        Called before reading, for steps that are made only on demand.

    Attributes
    ----------
    result
        How it ended, as pairs of a name and a text; None before the end.
    """

    def __init__(
        self, heading: TraceHeading | Callable[[], TraceHeading], fill: Callable[[], Iterable[Step]] = tuple
    ) -> None:
        self._make, self._fill = heading, fill
        self._lock = threading.RLock()
        self._steps: deque[Step] = deque()
        self._dropped = 0  # steps that were folded into the first one
        self.result: list[Fact] | None = None

    @cached_property
    def heading(self) -> TraceHeading:
        """The heading of the run."""
        return self._make if isinstance(self._make, TraceHeading) else self._make()

    @cached_property
    def known(self) -> RecordedState:
        """What is known at the last step."""
        return RecordedState(len(self.heading.devices))

    def add(self, step: Step) -> None:
        """Add a step; beyond `MAX_STEPS` the two oldest become one."""
        with self._lock:
            self.known.take(step)
            self._steps.append(step)
            if len(self._steps) > MAX_STEPS:
                first = RecordedState(len(self.heading.devices))
                first.take(self._steps.popleft())
                first.take(self._steps[0])
                self._steps[0] = first.as_step()
                self._dropped += 1

    def end(self, result: Sequence[Fact]) -> None:
        """Record how it ended."""
        with self._lock:
            self._pull()
            self.result = [*result]

    def _pull(self, budget: float = math.inf) -> None:
        until = time.thread_time() + budget
        for step in self._fill():
            self.add(step)
            if time.thread_time() > until:
                return

    def since(self, place: int, budget: float = math.inf) -> tuple[list[Step], int]:
        """Return the steps from a place on, and the place after the last.

        With a `budget`, in seconds of processor time, steps that are not made by then are left for the next call.
        """
        with self._lock:
            self._pull(budget)
            end = self._dropped + len(self._steps)
            return [*islice(self._steps, max(place - self._dropped, 0), None)], end

    def latest(self) -> tuple[Step, int]:
        """Return everything known now as one step, for clients that cannot follow each, and the place after it."""
        with self._lock:
            _, end = self.since(self._dropped + len(self._steps))
            return self.known.as_step(), end

    def run(self) -> TracedRun:
        """Return the run as it is now."""
        with self._lock:
            steps, _ = self.since(0)
            return TracedRun(self.heading, steps, self.result)


def recording_of_run(run: TracedRun) -> Recording:
    """Return a run of a trace as a finished recording."""
    found = Recording(msgspec.structs.replace(run.heading, live=False))
    for step in run.steps:
        found.add(step)
    found.end(run.result or [])
    return found


class _RoundRecord(NamedTuple):
    """Record of a round: senders (None: all), their bits, and the progress shown by the protocol."""

    round: int
    speakers: Ints | None
    bits: Any
    estimates: NDArray[np.float64] | None
    heard: tuple[str, Ints] | None
    bracket: tuple[Any, ...] | None


class Recorder(RunObserver):
    """An observer that records runs, for a view, a trace or a report.

    >>> from conformesh import Network, calibrate
    >>> recorder = Recorder()
    >>> result = calibrate([[0.1, 0.5], [0.2], [0.7, 0.9]], Network.chain(3), alpha=0.5, observer=recorder)
    >>> recorder.finish(result)
    >>> [run] = recorder.trace().runs
    >>> run.heading.name, run.steps[-1].devices["threshold"].values == [result.threshold] * 3
    ('e-dcp on chain 3', True)

    Parameters
    ----------
    share
        The most of a run's time that may go into noting rounds, such as `SHARE`; rounds beyond that are left out. None:
        whatever it takes, so that the same run gives the same trace.
    clock
        Seconds that only move forward.

    Attributes
    ----------
    recordings
        The runs so far, one for each calibration that this object observed.
    label
        What the next runs are called; by default their method's name.
    """

    keeps_messages = False  # only copies of parts of them

    def __init__(self, share: float | None = None, clock: Callable[[], float] = time.perf_counter) -> None:
        self.share, self.clock = share, clock
        self.recordings: list[Recording] = []
        self.label = ""
        self._noted: deque[_RoundRecord] = deque()
        self._due = self._stride = self._sparser = 0
        self._spent = self._begun = 0.0

    def begin(self, block: Block, method: str, faults: Faults | None) -> None:
        """Start to record another run; called before its first round."""
        if len(block.rows) < block.devices:
            raise ValueError(
                "a view shows runs that one process hosts, and here several share the devices; use the engine "
                "'simulator', or look at the result alone"
            )
        require_drawable_network(block.network)
        self._shown, self._noted = block.progress, deque()
        self._private = get_method(method).private
        self._spent, self._begun = 0.0, self.clock()
        self._due, self._stride, self._sparser = 0, 1, max(min(DENSE_ROUNDS, MAX_NUMBERS // block.devices), 4)
        maker = _StepMaker(block, method, self.label or method, faults, self._noted)
        self.recordings.append(Recording(maker.heading, maker.steps))

    def __call__(self, round_: int, message: Message, answer: object) -> None:
        """Record a round, unless it is skipped or there is no time for it."""
        if round_ < self._due:
            return
        if self.share is None:
            self._record(round_, message)
            return
        now = self.clock()
        if self._spent <= self.share * (now - self._begun):
            self._record(round_, message)
            self._spent += self.clock() - now

    def _record(self, round_: int, message: Message) -> None:
        if round_ >= self._sparser:
            self._stride, self._sparser = 2 * self._stride, 2 * self._sparser
        self._due = round_ + self._stride
        shown, kind = self._shown, type(message)
        estimates = heard = None
        if kind is Tell:
            speakers, bits = message.speakers, message.packets.offsets  # type: ignore[union-attr]
        elif kind is Pool:
            speakers, bits = None, message.offsets * (8 * message.values.itemsize)  # type: ignore[union-attr]
        else:
            values: NDArray[Any] = message.values
            speakers, bits = None, 8 * values.nbytes // len(values)
            if kind is not Sum:
                speakers = message.places  # type: ignore[union-attr]
            elif shown.estimates is not None and not self._private:
                estimates = shown.estimates(values).astype(np.float64)  # a copy: the values may change in place
        if shown.heard is not None and not self._private:
            heard = shown.heard[0], shown.heard[1]().copy()
        bracket = None if self._private else shown.bracket
        self._noted.append(_RoundRecord(round_, speakers, bits, estimates, heard, bracket))

    def finish(self, result: Result) -> None:
        """Record how the last run ended; of several thresholds the first is shown."""
        first = next(iter(result))
        facts = first.facts()
        if len(result) > 1:
            facts.insert(0, ("shown", f"the first of {pluralize(len(result), 'result')}"))
        answer = first.answer
        about = dict(answer.certificate.facts(answer.examples)).get("about", "")
        self.conclude(answer.thresholds, answer.certificate.kind, facts, rounds=result.cost.rounds, about=about)

    def conclude(
        self, thresholds: NDArray[np.float64], kind: str, facts: Sequence[Fact], *, rounds: int, about: str = ""
    ) -> None:
        """Record the thresholds, by row, with which the last run ended, and what they rest on."""
        recording, many = self.recordings[-1], len(thresholds)
        fields = {
            "phase": ["certified" if kind in _CERTIFIED_KINDS else "not certified"] * many,
            "threshold": as_json_value(thresholds.tolist()),
            "kind": [kind] * many,
            "about": [about or None] * many,
        }
        recording.since(0)  # make the steps of recorded rounds before the last one
        at, bracket = (
            max(float(rounds), recording.known.at),
            _bracket_field(None if self._private else self._shown.bracket),
        )
        recording.add(Step(at=at, devices={name: Column(values) for name, values in fields.items()}, bracket=bracket))
        recording.end(facts)

    def fail(self, words: str) -> None:
        """Record why the last run, if any, has no result."""
        if self.recordings and self.recordings[-1].result is None:
            recording = self.recordings[-1]
            recording.since(0)
            many = len(recording.heading.devices)
            step = Step(at=recording.known.at, devices={"phase": Column(["failed"] * many)}, log=[(-1, "error", words)])
            recording.add(step)
            recording.end([("failed", words)])

    def trace(self) -> Trace:
        """Return all that was recorded."""
        return Trace.of(recording.run() for recording in self.recordings)


class _StepMaker:
    """Makes steps from the recorded rounds of a run."""

    def __init__(
        self, block: Block, method: str, label: str, faults: Faults | None, noted: deque[_RoundRecord]
    ) -> None:
        self.block, self.method, self.label, self.faults, self.noted = block, method, label, faults, noted
        self._weather = MessageLoss(block.network, faults) if faults is not None and faults.loses else None
        self._begun = False
        self._last: tuple[Any, ...] | None = None
        self._known = RecordedState(block.devices)

    def heading(self) -> TraceHeading:
        block = self.block
        alphas = ", ".join(f"{float(alpha):g}" for alpha in block.alphas)
        facts = [("method", self.method), ("network", block.network.name), ("alpha", alphas)]
        if self.faults is not None:
            wrong = [f"{name} {getattr(self.faults, name)}" for name in sorted(self.faults.names)]
            facts.append(("faults", ", ".join(wrong)))
        entry = get_method(self.method)
        reported = (
            entry.weights(make_options(self.method, {})) == "reported"
        )  # then the rank is known only once all have arrived
        ranks = block.ranks() if block.knows_totals and block.alphas and not reported else None
        return TraceHeading.of(
            f"{self.label} on {block.network.name}",
            block.network,
            facts=facts,
            rank=None if ranks is None else int(ranks[0, 0]),
            scores=int(block.totals[0]),
            private=entry.private,
        )

    def steps(self) -> Iterator[Step]:
        """Yield steps of the rounds recorded since the last call; rounds that are not taken stay."""
        if not self._begun:
            self._begun = True
            yield self._first()
        while self.noted:
            yield self._step(self.noted.popleft())

    def _first(self) -> Step:
        many = self.block.devices
        devices = {"phase": Column(["calibrating"] * many)}
        if self.faults is not None and self.faults.byzantine:
            devices["byzantine"] = Column([self.faults.attack] * len(self.faults.byzantine), [*self.faults.byzantine])
        return Step(at=0, devices=devices)

    def _step(self, noted: _RoundRecord) -> Step:
        fields: dict[str, list[FieldValue]] = {}
        if noted.estimates is not None:
            fields["threshold"] = _plain(self._by_row(noted.estimates))
        if noted.heard is not None:
            fields[noted.heard[0]] = self._by_row(noted.heard[1]).tolist()
        changes = self._known.changes(fields)
        bracket = _bracket_field(None if noted.bracket is self._last else noted.bracket)
        self._last = noted.bracket
        said = self._sent_bits(noted)
        step = Step(
            at=noted.round, devices=changes, said=said, bracket=bracket, lost=self._lost_links(noted.round, said)
        )
        self._known.take(step)
        return step

    def _by_row(self, values: NDArray[Any]) -> NDArray[Any]:
        whole = np.empty_like(values)
        whole[self.block.rows] = values
        return whole

    def _sent_bits(self, noted: _RoundRecord) -> SentBits:
        rows = None if noted.speakers is None else self.block.rows[noted.speakers].tolist()
        if np.ndim(noted.bits) == 0:
            return SentBits([int(noted.bits)], rows)
        if rows is None:  # uploads: of pieces, by device
            each = np.diff(noted.bits).reshape(self.block.devices, -1).sum(axis=1)
            return SentBits(self._by_row(each).tolist())
        return SentBits((8 * np.diff(noted.bits)).tolist(), rows)

    @cached_property
    def _links(self) -> Ints:
        """The link, as in `Flow`, of every directed edge, in the order of `Network.indices`."""
        network = self.block.network
        receiver, sender = network.receivers, network.indices.astype(np.int64)
        K = network.devices
        pairs = np.minimum(receiver, sender) * K + np.maximum(receiver, sender)
        number = np.searchsorted(np.unique(pairs), pairs)
        return np.asarray(2 * number + (sender > receiver))

    def _lost_links(self, round_: int, said: SentBits) -> list[int]:
        """Return the links on which a message was lost, from the same draws as in the run."""
        if self._weather is None:
            return []
        spoke = np.zeros(self.block.devices, dtype=np.bool_)
        spoke[slice(None) if said.rows is None else said.rows] = True
        gone = ~self._weather.arriving(round_) & spoke[self._weather.sender]
        return sorted(self._links[gone].tolist())


def _bracket_field(bracket: tuple[Any, ...] | None) -> Any:
    """Return a bracket in the form of a step."""
    return None if bracket is None else (*_plain(np.array(bracket[:2])), *bracket[2:])


def _plain(values: NDArray[np.float64]) -> list[FieldValue]:
    """Return numbers as JSON can hold them; NaN becomes None."""
    return [None if math.isnan(value) else as_json_value(value) for value in values.tolist()]
