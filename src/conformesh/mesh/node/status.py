"""Node status: what a node reports about itself, about the mesh and about online learning, as typed Structs.

These Structs are the only definition of that data. ``GET /status``, ``/mesh`` and ``/online`` return their encoding,
OpenAPI gets its schemas from them, and health, metrics and the view read their fields. Replies may gain fields in later
versions, so readers ignore fields that they do not know.

JSON has no infinity: an infinite number is the text "inf" or "-inf" here as well (`JsonNumber`).
"""

from __future__ import annotations

from bisect import bisect_left
from enum import Enum
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta, Struct

from conformesh.files.json_numbers import as_json_value
from conformesh.peer.settings import FAILURES, Failure

Count = Annotated[int, Meta(ge=0)]
JsonNumber = float | Literal["inf", "-inf"]
Moment = Annotated[str, Meta(extra_json_schema={"format": "date-time"})]
CertificateFields = Annotated[
    dict[str, Any], Meta(description="Why a threshold may be trusted.", extra_json_schema={"required": ["kind"]})
]
Source = Literal["itself", "neighbour", "hearsay", "nobody"]
DeviceHealth = Literal["healthy", "unhealthy", "silent", "unknown"]
AlarmScope = Literal["device", "fleet"]

# Upper bounds, in seconds, of the histogram of run durations. A choice: from a run on one machine (0.1 s) to one over
# slow links (10 minutes), about a factor of two apart, as Prometheus recommends.
DURATION_BUCKETS = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0)
OTHER: Final = "other"
WITHHELD = "only the operator of this device is told"
# Failures whose cause every device can see: silence, and messages between devices. Others may depend on scores.
_PUBLIC_FAILURES = ("lost", "disagreement", "refused", "roster")


class Phase(Enum):
    """What the node is doing."""

    STARTING = "starting"
    WAITING = "waiting for neighbours"
    CALIBRATING = "calibrating"
    CERTIFIED = "certified"
    FAILED = "failed"


class Trouble(Enum):
    """What may be wrong on the device itself."""

    SCORES = "scores"
    CERTIFICATE = "certificate"
    ROSTER = "roster"
    DISK = "disk"


class RosterStatus(Struct):
    """The roster in force; all rosters before the floor are out of use."""

    number: Count = 0
    floor: Count = 0


class RequestStatus(Struct):
    """The requested run that has not succeeded yet."""

    seconds_ago: float
    failed: Annotated[str | None, Meta(description="Why the last attempt failed, if one did.")]
    overdue: Annotated[bool, Meta(description="Whether it has not advanced for longer than the patience.")]
    patience: float


class NeighbourStatus(Struct):
    """What arrived from one neighbour."""

    last_heard_seconds_ago: float | None
    round: Count | None
    frames_received: Count
    bytes_received: Count
    refused: dict[str, Count]
    up: Annotated[bool, Meta(description="Whether something has arrived within the patience.")]


class SentStatus(Struct):
    """What this node has sent; resent frames count in `frames` and `bytes` too."""

    frames: Count = 0
    bytes: Count = 0
    resent_frames: Count = 0


class RunCounts(Struct):
    """Runs that ended on this node since it started, with a threshold or with a failure."""

    certified: Count = 0
    failed: dict[str, Count] = msgspec.field(default_factory=lambda: dict.fromkeys(FAILURES, 0))
    rounds: Annotated[Count | None, Meta(description="Rounds of the last certified run.")] = None
    seconds: Annotated[float, Meta(description="Duration of all certified runs together.")] = 0.0
    durations: Annotated[
        list[Count],
        Meta(
            description=f"Certified runs by duration: up to {', '.join(map(str, DURATION_BUCKETS))} s, and longer.",
            min_length=len(DURATION_BUCKETS) + 1,
            max_length=len(DURATION_BUCKETS) + 1,
        ),
    ] = msgspec.field(default_factory=lambda: [0] * (len(DURATION_BUCKETS) + 1))

    def count_success(self, seconds: float, rounds: int) -> None:
        """Count a run that ended with a threshold."""
        self.certified += 1
        self.rounds = rounds
        self.seconds += seconds
        self.durations[bisect_left(DURATION_BUCKETS, seconds)] += 1

    def count_failure(self, code: str) -> None:
        """Count a run that ended without a threshold; codes that are not in `FAILURES` count as "other"."""
        self.failed[code if code in FAILURES else OTHER] += 1

    def copy(self) -> RunCounts:
        """Return a copy that later runs do not change."""
        return msgspec.structs.replace(self, failed=dict(self.failed), durations=[*self.durations])


class ThresholdForAll(Struct):
    """The threshold that is certain for all devices while some have not reported: "inf" if there is none."""

    threshold: JsonNumber
    certificate: CertificateFields | None


class CertifiedFacts(Struct, kw_only=True, omit_defaults=True):
    """What every reply about a certified result contains besides its numbers."""

    scores: Annotated[
        Count | None, Meta(description="Scores behind the threshold, on all devices; null if noise hides it.")
    ]
    devices: Annotated[Count, Meta(description="How many devices the threshold is about.")]
    made: Moment
    run: Count
    restored: Annotated[bool, Meta(description="Whether it was read from disk after a start, rather than made since.")]
    final: Annotated[bool, Meta(description="Whether it is the result of its run, the same on all its devices.")]
    about: Literal["everybody", "reported", "survivors"]
    roster_number: Count
    survivors: Annotated[list[str], Meta(description="The devices that the threshold is about.")]
    lost: Annotated[list[str], Meta(description="Devices of the roster that the survivors went on without.")]
    reported: Annotated[
        list[str] | None, Meta(description="With about = reported: the devices whose reports have arrived.")
    ] = None
    everybody: ThresholdForAll | None = None
    adapt: Annotated[
        str | None,
        Meta(
            description="How scores adapt: thresholds are those of pooled adapted scores, and only /predict makes sets."
        ),
    ] = None


class CertifiedStatus(CertifiedFacts, kw_only=True, omit_defaults=True):
    """The certified result in a status: its first threshold, and how many there are."""

    threshold: JsonNumber
    alpha: float
    part: list[str]
    answers: Annotated[Count, Meta(description="How many thresholds there are; this is the first.")]
    method: str
    kind: str
    made_seconds: Annotated[float, Meta(description="The same as `made`, in seconds since 1970.")]


class Gathering(Struct):
    """In asynchronous mode: which devices have reported in this run."""

    reported: list[str]
    devices: Annotated[Count, Meta(description="How many devices there are in the roster.")]
    missing: list[str]
    reasons: Annotated[dict[str, str], Meta(description="Why a device takes no part, by name.")]
    not_agreeing: Annotated[dict[str, str], Meta(description="On what a device does not agree, by name.")]
    byzantine: Annotated[list[str], Meta(description="Devices that have contradicted themselves.")]


class SearchStatus(Struct, kw_only=True, omit_defaults=True):
    """In a run under way: the bracket that holds the threshold, or this device's estimate of it."""

    low: JsonNumber | None = None
    high: JsonNumber | None = None
    below: Annotated[int | None, Meta(description="Scores below the bracket, if they were counted.")] = None
    upto: Annotated[int | None, Meta(description="Scores up to the end of the bracket, if they were counted.")] = None
    estimate: JsonNumber | None = None


class AlarmFlags(Struct):
    """Which drift alarm is raised: that of this device, or that of the whole fleet. A node stays healthy."""

    device: bool
    fleet: bool

    def raised(self) -> list[AlarmScope]:
        """Return the scopes whose alarm is raised."""
        scopes: tuple[tuple[AlarmScope, bool], ...] = (("device", self.device), ("fleet", self.fleet))
        return [scope for scope, is_raised in scopes if is_raised]


class AlarmEvidence(Struct):
    """The largest evidence so far; an alarm is raised at 1 / level."""

    device: JsonNumber
    fleet: JsonNumber


class AlarmStatus(Struct):
    """The drift alarm."""

    level: Annotated[float, Meta(description="The largest chance of a false alarm, at whichever moment one looks.")]
    evidence: AlarmEvidence
    raised: AlarmFlags
    now: Annotated[JsonNumber, Meta(description="The evidence of this device now.")]
    steps: Annotated[Count, Meta(description="Labels since the alarm began.")]
    raised_at: Annotated[Count | None, Meta(description="The label at which the alarm of this device was raised.")]
    raised_time: Moment | None
    counted: Annotated[
        Count, Meta(description="Alarms that the fleet's evidence is divided by: at least one per device.")
    ]


class CoverageStatus(Struct):
    """How often this device's sets have covered the true label, of labelled examples that a local program has sent."""

    alpha: Annotated[float, Meta(description="The level of the sets.")]
    run: Annotated[Count, Meta(description="The run whose result made them: a new result begins anew.")]
    rows: Annotated[Count, Meta(description="Labelled examples so far; each should be sent once.")]
    covered: Count
    coverage: float
    low: Annotated[float, Meta(description="The exact (Clopper-Pearson) 95 % interval, for one look at it.")]
    high: float
    mean_size: Annotated[JsonNumber, Meta(description="Labels per set, or the mean width of intervals.")]
    empty: Annotated[Count, Meta(description="Sets without any label.")]

    @classmethod
    def of(cls, alpha: float, run: int, rows: int, covered: int, size: float, empty: int) -> CoverageStatus:
        """Return the coverage of so many examples, at least one; `size` is the sum of their sizes."""
        from conformesh.kernels.proportions import exact_intervals  # which loads SciPy

        low, high = exact_intervals([covered], [rows])
        rate = covered / rows
        return cls(alpha, run, rows, covered, rate, float(low[0]), float(high[0]), as_json_value(size / rows), empty)

    def merge(self, other: CoverageStatus) -> CoverageStatus:
        """Return the coverage of the examples of both."""
        size = sum(float(one.mean_size) * one.rows for one in (self, other))
        rows, covered = self.rows + other.rows, self.covered + other.covered
        return self.of(self.alpha, self.run, rows, covered, size, self.empty + other.empty)


class CalibrationCoverage(Struct):
    """With adapted scores: the share of this device's own calibration rows whose leave-one-out score is covered.

    There is no interval, because these rows have set the threshold themselves: a share that is far below 1 - alpha says
    that this device is covered less than others.
    """

    alpha: float
    run: Count
    rows: Count
    covered: Count
    coverage: float | None


class NodeStatus(Struct, kw_only=True, omit_defaults=True):
    """Everything that a node reports about itself, taken at one moment."""

    device: str
    phase: Phase
    since: Moment
    seconds_in_phase: float
    run: Count
    round: Count
    roster: RosterStatus
    request: RequestStatus | None
    neighbours: dict[str, NeighbourStatus]
    refused: Annotated[dict[str, Count], Meta(description="Refused frames that belong to no neighbour, by reason.")]
    sent: SentStatus
    certified: CertifiedStatus | None
    troubles: Annotated[
        dict[Trouble, str], Meta(extra_json_schema={"propertyNames": {"$ref": "#/components/schemas/Trouble"}})
    ]
    last_error: str | None
    failure: Annotated[Failure | None, Meta(description="Why the requested run failed, if it did.")]
    runs: RunCounts
    certificate_expires: Annotated[float | None, Meta(description="In seconds since 1970.")]
    scores_read_failures: Count
    scores_waiting: Annotated[str | None, Meta(description="Why a changed score file is not read yet.")]
    gathering: Gathering | None = None
    search: SearchStatus | None = None
    alarm: AlarmStatus | None = None
    coverage: Annotated[
        list[CoverageStatus], Meta(description="Of this device alone, at each level; see POST /evaluate.")
    ] = []
    calibration_coverage: list[CalibrationCoverage] = []

    def raised_alarms(self) -> list[AlarmScope]:
        """Return the scopes whose drift alarm is raised: a change of the data is no fault of the device."""
        return [] if self.alarm is None else self.alarm.raised.raised()

    def links_down(self) -> list[str]:
        """Return the neighbours from which nothing has arrived for too long."""
        return [name for name, neighbour in self.neighbours.items() if not neighbour.up]


class DeviceStatus(Struct, kw_only=True, omit_defaults=True):
    """What a node knows about one device of the roster, from heartbeats."""

    name: str
    health: DeviceHealth
    via: Annotated[Source, Meta(description="Where this is known from.")]
    heard_seconds_ago: Annotated[float, Meta(ge=0)] | None
    phase: Phase | None
    reasons: Annotated[list[str], Meta(description="Codes for why it is not healthy.")]
    run: Count | None
    round: Count | None
    roster: Count | None
    certified_run: Count | None
    threshold: JsonNumber | None
    common: Annotated[bool | None, Meta(description="Whether all devices of that run have this very threshold.")]
    about: Annotated[Count | None, Meta(description="How many devices the threshold is about.")]
    devices: Annotated[Count, Meta(description="How many devices there are in the roster.")]
    alarms: Annotated[list[AlarmScope], Meta(description="Which drift alarms are raised, as that device knows.")]
    probe: Annotated[str | None, Meta(description="What became of a connection to its endpoint, if one was tried.")] = (
        None
    )

    @classmethod
    def unknown(cls, name: str, devices: int) -> DeviceStatus:
        """Return the status of a device about which nothing is known."""
        nothing = dict.fromkeys(
            ("heard_seconds_ago", "phase", "run", "round", "roster", "certified_run", "threshold", "common", "about")
        )
        return cls(name=name, health="unknown", via="nobody", reasons=[], alarms=[], devices=devices, **nothing)


class MeshStatus(Struct):
    """What a node knows about every device of the roster."""

    device: str
    devices: list[DeviceStatus]
    edges: list[Annotated[list[str], Meta(min_length=2, max_length=2)]]
    links_down: Annotated[
        list[str], Meta(description="Neighbours from which nothing has arrived for longer than the patience.")
    ]


class OnlineAccount(Struct):
    """How many labels and misses there were, and what is guaranteed about the rate of misses."""

    alpha: float
    steps: Count
    misses: Count
    rate: float | None
    within: Annotated[float, Meta(description="How far from alpha the rate of misses can be at most.")]
    words: str


class ScaleStatus(Struct):
    """The scale of this device's scores: the weight of one score in it, its value, and the number of scores."""

    weight: float
    now: float
    scores: Count


class DeviceCounts(Struct):
    """What one device has reported; it counts as a new life where its journal was lost."""

    steps: Count = 0
    misses: Count = 0
    lives: Count = 0


class OnlineStatus(Struct):
    """What a node has learnt online."""

    alpha: float
    learning: float
    local: float
    bound: float
    scale: ScaleStatus | None
    origin: Annotated[
        float | None,
        Meta(description="The threshold that all devices began with, in units of a scale if there is one."),
    ]
    threshold: JsonNumber
    device: Annotated[OnlineAccount, Meta(description="Of this device, since its journal began.")]
    everybody: Annotated[OnlineAccount, Meta(description="Of all devices that have reported, including this one.")]
    late: Annotated[Count, Meta(description="The most labels that one prediction was made without.")]
    pending: Annotated[Count, Meta(description="Predictions whose labels may still come.")]
    reported: dict[str, DeviceCounts]
    alarm: AlarmStatus | None
    refused: dict[str, Count]


def public_code(code: Failure) -> Failure:
    """Return the failure code of a private device that others may see: one code for all local causes."""
    return code if code in _PUBLIC_FAILURES else OTHER


def hide_private(status: NodeStatus) -> NodeStatus:
    """Return the status of a private node without what depends on its own files, for readers other than its owner.

    Error texts stay with the owner too: they may quote anything. The threshold is public, and so are counts of frames,
    because neither their number nor their size depends on scores.
    """
    request, runs = status.request, status.runs.copy()
    runs.failed = dict.fromkeys(runs.failed, 0)
    for code, count in status.runs.failed.items():
        runs.failed[code if code in _PUBLIC_FAILURES else OTHER] += count
    if request is not None and request.failed:
        request = msgspec.structs.replace(request, failed=WITHHELD)
    return msgspec.structs.replace(
        status,
        last_error=None,
        coverage=[],
        calibration_coverage=[],
        scores_read_failures=0,
        scores_waiting=None,
        request=request,
        troubles={trouble: WITHHELD for trouble in status.troubles if trouble is not Trouble.SCORES},
        failure=None if status.failure is None else public_code(status.failure),
        runs=runs,
    )
