"""Requests to a node and its replies as typed Structs: the only definition of that JSON besides `mesh.node.status`.

Replies are made from these Structs, the names of request fields are read from them, and OpenAPI gets its schemas from
them. Replies may gain fields in later versions; requests with unknown fields are refused.

The values in a request are checked where they are used (`request_bodies`), because an error there can name the row.
"""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import UNSET, Meta, Struct, UnsetType

from conformesh.mesh.node.status import (
    AlarmFlags,
    CertificateFields,
    CertifiedFacts,
    Count,
    CoverageStatus,
    JsonNumber,
    OnlineAccount,
    Phase,
)

Interval = Annotated[list[JsonNumber], Meta(min_length=2, max_length=2)]
ExampleOutputs = Annotated[JsonNumber | list[JsonNumber], Meta(description="The outputs for one example.")]
OutputRows = list[JsonNumber | list[JsonNumber]]


# --- replies ----------------------------------------------------------------------------------------------------------


class ErrorReply(Struct):
    """Why a request was refused, in one line."""

    error: str


class PartThreshold(Struct, kw_only=True):
    """The threshold of one part (a group, a side) at one level."""

    part: list[str]
    alpha: float
    threshold: JsonNumber
    certificate: CertificateFields
    words: str | UnsetType = UNSET


class ThresholdReply(CertifiedFacts, kw_only=True, omit_defaults=True):
    """If there is only one answer, its threshold, alpha and certificate are here too."""

    method: str
    answers: list[PartThreshold]
    threshold: JsonNumber | UnsetType = UNSET
    alpha: float | UnsetType = UNSET
    certificate: CertificateFields | UnsetType = UNSET


class CertificateReply(CertifiedFacts, kw_only=True, omit_defaults=True):
    """If there is only one answer, its certificate is here too."""

    answers: list[PartThreshold]
    certificate: CertificateFields | UnsetType = UNSET
    words: str | UnsetType = UNSET


class CalibrationReply(CertifiedFacts, kw_only=True, omit_defaults=True):
    """The whole certified result."""

    calibration: Annotated[dict[str, Any], Meta(description="As `Result.save` writes it.")]


class HealthReply(Struct):
    """Whether the node is healthy, remarks in words, and the drift alarms if it has any."""

    healthy: bool
    phase: Phase
    reasons: list[str]
    links_down: Annotated[
        list[str], Meta(description="Neighbours from which nothing has arrived for longer than the patience.")
    ]
    alarm: AlarmFlags | UnsetType = UNSET


class SetsReply(Struct):
    """A list of labels for each example."""

    run: Count
    sets: list[list[Count]]
    sizes: list[Count]
    threshold: Annotated[JsonNumber, Meta(description="Not with adapted scores.")] | UnsetType = UNSET
    names: Annotated[list[list[str]], Meta(description="With as_names: the same sets by name.")] | UnsetType = UNSET
    unseen: (
        Annotated[
            list[str],
            Meta(description="Classes of which this device has no calibration row: adapted sets rarely have them."),
        ]
        | UnsetType
    ) = UNSET


class EvaluateReply(Struct):
    """How often the sets of these examples cover, and of all examples since the result was certified."""

    batch: CoverageStatus
    coverage: CoverageStatus


class IntervalsReply(Struct):
    """An interval for each example."""

    run: Count
    intervals: list[Interval]
    threshold: JsonNumber | UnsetType = UNSET


class PredictNextReply(Struct):
    """The id and the threshold of the next example, and its set or interval if its outputs were given."""

    example: str
    threshold: JsonNumber
    set: list[Count] | UnsetType = UNSET
    size: Count | UnsetType = UNSET
    interval: Interval | UnsetType = UNSET


class ObserveReply(Struct):
    """What became of a label."""

    example: str
    score: float
    threshold: Annotated[JsonNumber, Meta(description="By which it was judged: that of its prediction.")]
    missed: bool
    repeated: Annotated[bool, Meta(description="Whether it had been counted before; it is counted once.")]
    device: OnlineAccount
    everybody: OnlineAccount
    threshold_now: JsonNumber
    next: PredictNextReply | UnsetType = UNSET


class AcceptedReply(Struct):
    """What becomes of what was asked for."""

    accepted: bool
    run: str | UnsetType = UNSET
    roster: str | UnsetType = UNSET


# --- requests ---------------------------------------------------------------------------------------------------------


class ScoreChoice(Struct):
    """A score by name, with its options as further fields."""

    name: str


class PredictRequest(Struct, forbid_unknown_fields=True):
    """Outputs of the model, and which of several thresholds they need."""

    probabilities: (
        Annotated[OutputRows, Meta(description="A row of probabilities or other outputs for each example.")] | UnsetType
    ) = UNSET
    outputs: Annotated[OutputRows, Meta(description="The same, by another name.")] | UnsetType = UNSET
    score: Annotated[str | ScoreChoice | None, Meta(description="The score, if the calibration does not name it.")] = (
        None
    )
    alpha: Annotated[float, Meta(description="Which level, if there are several.")] | UnsetType = UNSET
    groups: (
        Annotated[list[str | list[str]], Meta(description="The group of each row, if groups have thresholds.")]
        | UnsetType
    ) = UNSET
    weight: (
        Annotated[float | list[float], Meta(description="The weight of each row, if there are thresholds for weights.")]
        | UnsetType
    ) = UNSET
    as_names: Annotated[bool, Meta(description="Whether to name the classes too, with adapted scores.")] = False


class EvaluateRequest(Struct, forbid_unknown_fields=True):
    """What a prediction needs, and the true label of each example: the number of a column, a class, or a number."""

    labels: list[float | str]
    probabilities: OutputRows | UnsetType = UNSET
    outputs: OutputRows | UnsetType = UNSET
    score: str | ScoreChoice | None = None
    alpha: float | UnsetType = UNSET
    groups: list[str | list[str]] | UnsetType = UNSET
    weight: float | list[float] | UnsetType = UNSET


class PredictNextRequest(Struct, forbid_unknown_fields=True):
    """The outputs for one example; without them there is only an id and a threshold."""

    outputs: ExampleOutputs | None = None


class ObserveRequest(Struct, forbid_unknown_fields=True):
    """The label of an example with its outputs, or its score; and outputs of the next example."""

    score: JsonNumber | UnsetType = UNSET
    outputs: ExampleOutputs | UnsetType = UNSET
    label: float | UnsetType = UNSET
    example: Annotated[str | None, Meta(description="The id of the prediction that it belongs to.")] = None
    next: PredictNextRequest | None = None
