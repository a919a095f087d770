"""Recording of streams: turn a run of `conformesh.online.online` into steps that can be shown.

An `OnlineRecorder` is an observer of such a run. At no more than some thousand moments it notes how many labels and
misses all devices have had, bounds on the coverage so far, and the spread of the devices. With many devices, those of
single devices are recorded less often, so that a trace stays small.

Scores are not recorded. Thresholds are means over the last steps, in four digits: with some rules the exact threshold
of each step would reveal single scores.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from conformesh.common.array_types import Ints
from conformesh.graph.network import Network
from conformesh.online.bounds import MissAccount
from conformesh.online.result import OnlineObserver, OnlineResult, RunningCounts
from conformesh.view.recording import Recording
from conformesh.view.trace import (
    SPREAD_SHARES,
    Column,
    CoverageOfAll,
    Fact,
    FieldValue,
    Step,
    Trace,
    TraceHeading,
    require_drawable_network,
    round_bound_up,
)

MAX_POINTS = 1200  # points of a curve: as many as the page draws
MAX_DEVICE_NUMBERS = 2**19  # numbers recorded of single devices in a run, approximately: 4 MB
_NUMBERS_PER_POINT = 5  # numbers of a device: labels, misses, recent coverage, threshold, bound
Floats = NDArray[np.float64]


class _PointRecord(NamedTuple):
    """Coverage of all devices together at one point."""

    at: int
    everybody: CoverageOfAll


class _DevicesRecord(NamedTuple):
    """Counts, recent coverage and thresholds of single devices at one point, (devices,) each."""

    at: int
    labels: Ints
    misses: Ints
    lately: Floats
    thresholds: Floats


class OnlineRecorder(OnlineObserver):
    """An observer that records a run over streams, for a view, a trace or a report.

    >>> import numpy as np
    >>> from conformesh.online import online
    >>> network, recorder = Network.cycle(4), OnlineRecorder(Network.cycle(4))
    >>> found = online(np.random.default_rng(0).random((4, 1000)), network, observer=recorder)
    >>> recorder.finish([("misses", str(found))])
    >>> [run] = recorder.trace().runs
    >>> last = run.steps[-1].everybody
    >>> (last.labels, last.misses) == (found.account().labels, found.account().misses)
    True

    Parameters
    ----------
    network
        The network of the run.
    name
        The name of the run.
    window
        Steps over which coverage and thresholds are averaged; more if points are further apart.

    Attributes
    ----------
    recordings
        The run, once it has begun.
    """

    def __init__(self, network: Network, name: str = "online", window: int = 200) -> None:
        require_drawable_network(network)
        self.network, self.name, self.window = network, name, window
        self.recordings: list[Recording] = []
        self._noted: deque[_PointRecord] = deque()
        self._devices: deque[_DevicesRecord] = deque()
        self._alarms: deque[tuple[int, int, str]] = deque()

    def begin(self, found: OnlineResult) -> None:
        """Start to record. The result fills up while the run continues."""
        self._counts = RunningCounts(found)
        self._stride, self._window = _strides(found.steps, self.window)
        at_most = max(MAX_DEVICE_NUMBERS // (_NUMBERS_PER_POINT * len(found.ids)), 4)
        self._own = self._stride * math.ceil(found.steps / self._stride / at_most)
        self._lately = _WindowSums(self._window // self._stride)
        self._owns = _WindowSums(math.ceil(self.window / self._own))
        self._means = _MeanThresholds(found, self._owns.many)
        maker = _StepMaker(self, found)
        self.recordings = [Recording(maker.heading, maker.steps)]

    def __call__(self, done: int) -> None:
        """Record the points up to this step that are not recorded yet."""
        found, before = self._counts.result, self._counts.done
        points = np.arange(before - before % self._stride + self._stride, done + 1, self._stride)
        if done == found.steps and done % self._stride:
            points = np.append(points, done)
        if len(points) == 0:
            return
        labels, misses = self._counts.advance(points)
        own = (points % self._own == 0) | (points == found.steps)
        if own.any():  # first, since another thread may take a point as soon as it is added
            self._devices.extend(self._device_records(points[own], labels[:, own], misses[:, own]))
        for at, everybody in zip(points.tolist(), self._coverage_of_all(points, labels, misses), strict=True):
            self._noted.append(_PointRecord(at, everybody))

    def _coverage_of_all(self, points: Ints, labels: Ints, misses: Ints) -> Iterator[CoverageOfAll]:
        """Yield the coverage of all devices together at each point."""
        alpha, recent = self._counts.result.alpha, self._lately.of(labels, misses)
        lately = _covered(*(counts.sum(axis=0) for counts in recent))
        spread = _spread(_covered(*recent))
        each = labels.T.copy(), misses.T.copy()
        for place, (at, own_labels, own_misses) in enumerate(zip(points.tolist(), *each, strict=True)):
            account = self._counts.account(at, own_labels, own_misses)
            yield CoverageOfAll(
                alpha=alpha,
                labels=account.labels,
                misses=account.misses,
                window=self._window,
                own=self._owns.many * self._own,
                lately=_rounded(lately[place]),
                within=online_coverage_bounds(account),
                spread=spread[place],
            )

    def _device_records(self, points: Ints, labels: Ints, misses: Ints) -> list[_DevicesRecord]:
        """Return records of single devices at some points."""
        lately, means = _covered(*self._owns.of(labels, misses)), self._means.up_to(points)
        columns = [np.ascontiguousarray(each.T) for each in (labels, misses, lately, means)]
        return [_DevicesRecord(at, *each) for at, *each in zip(points.tolist(), *columns, strict=True)]

    def alarm(self, row: int, at: int, words: str) -> None:
        """Record that a device raised the drift alarm in this step. Call it before the step is recorded."""
        self._alarms.append((at, row, words))

    def finish(self, facts: Sequence[Fact]) -> None:
        """Record how it ended."""
        self.recordings[-1].end(facts)

    def fail(self, words: str) -> None:
        """Record why the run, if it has started, has no result."""
        if self.recordings and self.recordings[-1].result is None:
            self.recordings[-1].end([("failed", words)])

    def trace(self) -> Trace:
        """Return all that was recorded."""
        return Trace.of(recording.run() for recording in self.recordings)


def _strides(steps: int, window: int) -> tuple[int, int]:
    """Return the steps between two points, and the steps to average: `window` if it is a multiple of some distance."""
    least = math.ceil(steps / MAX_POINTS)
    fitting = [stride for stride in range(least, window + 1) if window % stride == 0]
    return (fitting[0], window) if fitting else (least, least)


def online_coverage_bounds(account: MissAccount) -> tuple[float, float] | None:
    """Return bounds on the coverage so far, whatever the scores; None if nothing is guaranteed."""
    known = account.gap is not None and account.labels > 0 and (account.lowest > 0 or account.highest < 1)
    return (1 - account.highest, 1 - account.lowest) if known else None


class _WindowSums:
    """Turns running sums at points into sums over the last `many` points, or since the first step."""

    def __init__(self, many: int) -> None:
        self.many = many
        self._before: tuple[NDArray[Any], ...] = ()

    def of(self, *sums: NDArray[Any]) -> list[NDArray[Any]]:
        """Go on by some points; sums are (devices, points)."""
        before = self._before or tuple(np.zeros((len(each), self.many), each.dtype) for each in sums)
        whole = [np.concatenate([old, new], axis=1) for old, new in zip(before, sums, strict=True)]
        self._before = tuple(each[:, -self.many :].copy() for each in whole)
        return [each[:, self.many :] - each[:, : -self.many] for each in whole]


class _MeanThresholds:
    """Mean thresholds over the last `many` points; infinite ones are left out."""

    def __init__(self, found: OnlineResult, many: int) -> None:
        self._found, self._done, self._lately = found, 0, _WindowSums(many)
        self._sums, self._counts = (np.zeros((len(found.ids), 1)) for _ in range(2))

    def up_to(self, points: Ints) -> Floats:
        """Go on to these steps, and return the mean of each device, (devices, points); not a number without any."""
        begins = np.concatenate([[self._done], points[:-1]]) - self._done
        piece = self._found.thresholds[:, self._done : points[-1]]
        sums = np.add.reduceat(piece, begins, axis=1)
        counts = np.broadcast_to(np.diff(points, prepend=self._done).astype(float), sums.shape)
        if not np.isfinite(sums).all():
            there = np.isfinite(piece)
            sums = np.add.reduceat(np.where(there, piece, 0.0), begins, axis=1)
            counts = np.add.reduceat(there, begins, axis=1, dtype=np.float64)
        sums, counts = self._sums + np.cumsum(sums, axis=1), self._counts + np.cumsum(counts, axis=1)
        self._sums, self._counts, self._done = sums[:, -1:], counts[:, -1:], int(points[-1])
        total, many = self._lately.of(sums, counts)
        return np.where(many > 0, total / np.maximum(many, 1), np.nan)


def _covered(labels: Ints, misses: Ints) -> Floats:
    """Return covered shares; not a number where there were no labels."""
    return np.where(labels > 0, 1 - misses / np.maximum(labels, 1), np.nan)


def _spread(covered: Floats) -> list[Any]:
    """Return at every point the least, the quartiles and the greatest of the devices' shares; None without any."""
    ordered = np.sort(np.ascontiguousarray(covered.T), axis=1)  # what is not a number comes last
    many = ordered.shape[1] - np.count_nonzero(np.isnan(ordered), axis=1)
    places = np.rint(np.outer(np.maximum(many - 1, 0), SPREAD_SHARES)).astype(np.int64)
    found = np.round(np.take_along_axis(ordered, places, axis=1), 4).tolist()
    return [tuple(values) if count else None for values, count in zip(found, many.tolist(), strict=True)]


def _rounded(value: float) -> float | None:
    return None if math.isnan(value) else round(float(value), 4)


class _StepMaker:
    """Makes steps from records, on demand."""

    def __init__(self, recorder: OnlineRecorder, found: OnlineResult) -> None:
        self._recorder, self._found = recorder, found
        self._noted, self._devices, self._alarms = recorder._noted, recorder._devices, recorder._alarms
        self._begun = False

    def heading(self) -> TraceHeading:
        rule, network = self._found.rule, self._recorder.network
        facts = [("learner", type(rule.learner).__name__), ("coupling", rule.coupling), ("network", network.name)]
        facts.append(("alpha", f"{self._found.alpha:g}"))
        return TraceHeading.of(f"{self._recorder.name} on {network.name}", network, unit="steps", facts=facts)

    def steps(self) -> Iterator[Step]:
        """Yield steps of the records since the last call; records that are not taken stay."""
        if not self._begun:
            self._begun = True
            yield Step(at=0, devices={"phase": Column(["learning"] * len(self._found.ids))})
        while self._noted:
            yield self._step(self._noted.popleft())

    def _step(self, noted: _PointRecord) -> Step:
        devices: dict[str, Column] = {}
        if self._devices and self._devices[0].at == noted.at:
            devices = self._columns(self._devices.popleft())
        raised = []
        while self._alarms and self._alarms[0][0] <= noted.at:
            raised.append(self._alarms.popleft()[1:])
        if raised:
            devices["alarm"] = Column([words for _, words in raised], [row for row, _ in raised])
        log = [(row, "warning", f"drift alarm {words}") for row, words in raised]
        return Step(at=noted.at, devices=devices, everybody=noted.everybody, log=log)

    def _columns(self, seen: _DevicesRecord) -> dict[str, Column]:
        within = self._within(seen.at, seen.labels, seen.misses)
        found = {
            "threshold": Column(_digits(seen.thresholds)),
            "labels": Column(seen.labels.tolist()),
            "misses": Column(seen.misses.tolist()),
            "lately": Column(_plain(np.round(seen.lately, 4))),
        }
        return found if within.count(None) == len(within) else {**found, "within": Column(within)}

    def _within(self, at: int, labels: Ints, misses: Ints) -> list[FieldValue]:
        """Return how far from alpha the misses of each device can be; None where nothing is guaranteed."""
        past, rule, alpha = self._found.trail.past(at, labels), self._found.rule, self._found.alpha
        most, known = max(alpha, 1 - alpha), dict[tuple[float, ...], FieldValue]()
        keys = zip(past.starts.tolist(), past.members.tolist(), labels.tolist(), strict=True)
        found: list[FieldValue] = []
        for row, key in enumerate(keys):
            if key not in known:  # bounds depend on nothing else of a device
                bound = MissAccount(alpha, int(labels[row]), int(misses[row]), rule.device_gap(past, row)).bound
                known[key] = round_bound_up(bound) if bound < most else None
            found.append(known[key])
        return found


def _digits(values: Floats) -> list[FieldValue]:
    """Return numbers in four digits, as JSON can hold them; None for those that are none."""
    known = np.isfinite(values) & (values != 0)
    size = np.floor(np.log10(np.abs(values), where=known, out=np.zeros(len(values))))
    scale = 10.0 ** (3 - size)
    return _plain(np.round(values * scale) / scale)


def _plain(values: Floats) -> list[FieldValue]:
    """Return numbers as JSON can hold them; None for those that are none."""
    finite = np.isfinite(values)
    if finite.all():
        return list(values.tolist())
    return [value if known else None for value, known in zip(values.tolist(), finite.tolist(), strict=True)]
