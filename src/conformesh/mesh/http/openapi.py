"""The OpenAPI description of a node's local service, from which ``/openapi.json`` and the docs are made.

Paths and replies are one table here; the schemas are derived from the Structs in `messages` and `mesh.node.status`.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec

from conformesh import __version__
from conformesh.mesh.http.messages import (
    AcceptedReply,
    CalibrationReply,
    CertificateReply,
    ErrorReply,
    EvaluateReply,
    EvaluateRequest,
    HealthReply,
    IntervalsReply,
    ObserveReply,
    ObserveRequest,
    PredictNextReply,
    PredictNextRequest,
    PredictRequest,
    SetsReply,
    ThresholdReply,
)
from conformesh.mesh.http.paths import (
    CALIBRATION,
    CERTIFICATE,
    EVALUATE,
    HEALTH,
    JSON,
    MESH,
    METRICS,
    OBSERVE,
    ONLINE,
    OPENAPI,
    PREDICT,
    PREDICT_NEXT,
    RECALIBRATE,
    ROSTER,
    STATUS,
    THRESHOLD,
    VERBS,
)
from conformesh.mesh.node.status import MeshStatus, NodeStatus, OnlineStatus

Schema = dict[str, Any]
_COMPONENT = "#/components/schemas/{name}"
METRIC_FORMS = ("text/plain", "application/openmetrics-text")


class Operation(NamedTuple):
    """What one path does: in words, what it answers by status (words and the name of a schema), and what it takes."""

    summary: str
    answers: dict[int, tuple[str, str]]
    body: str = ""


# Replies besides 200, as HTTP status -> (when, schema).
_NOTHING_YET = {503: ("No threshold is certified yet; the words say how far it is.", "ErrorReply")}
_BUSY = {503: ("The node is at work for many programs already, or nothing is certified yet.", "ErrorReply")}
_NOT_LEARNING = {501: ("This node does not learn online.", "ErrorReply")}
_UNWRITTEN = {503: ("The node is at work for many programs already, or its journal cannot be written.", "ErrorReply")}
_COMMON = {  # replies that any request may get
    400: ("The request is malformed.", "ErrorReply"),
    403: ("On a port: web pages are kept out, by their Origin or Host.", "ErrorReply"),
    408: ("The head or the body did not arrive in time.", "ErrorReply"),
    411: ("A body must come whole, with its length.", "ErrorReply"),
    413: ("The body is too large.", "ErrorReply"),
    415: (f"A body must be {JSON}.", "ErrorReply"),
    431: ("The head is too large.", "ErrorReply"),
    500: ("Something went wrong here; the log of the node has the details.", "ErrorReply"),
    503: ("All places for connections or for large bodies are taken; try again after Retry-After.", "ErrorReply"),
}

OPERATIONS: dict[str, Operation] = {
    THRESHOLD: Operation(
        "The certified threshold, and about whom it is", {200: ("The threshold.", "ThresholdReply"), **_NOTHING_YET}
    ),
    CERTIFICATE: Operation(
        "Why the threshold may be trusted",
        {200: ("The certificate, also in words.", "CertificateReply"), **_NOTHING_YET},
    ),
    CALIBRATION: Operation(
        "The whole certified result, as `Result.save` writes it",
        {200: ("The calibration.", "CalibrationReply"), **_NOTHING_YET},
    ),
    HEALTH: Operation(
        "Whether a threshold is certified, nothing is wrong, and the latest requested run succeeded or goes on",
        {200: ("The node is healthy.", "HealthReply"), 503: ("It is not, and says why.", "HealthReply")},
    ),
    STATUS: Operation("Everything the node shows of itself", {200: ("Its state at one moment.", "NodeStatus")}),
    MESH: Operation(
        "What this node knows about all devices, from their heartbeats",
        {
            200: ("A row for each device of the roster, and the edges.", "MeshStatus"),
            501: ("This node was started alone.", "ErrorReply"),
        },
    ),
    METRICS: Operation(
        "The state as metrics for Prometheus, as text or as OpenMetrics",
        {200: ("The metrics.", ""), 501: ("prometheus-client is not installed.", "ErrorReply")},
    ),
    OPENAPI: Operation("This description", {200: ("An OpenAPI document.", "")}),
    PREDICT: Operation(
        "Prediction sets or intervals for outputs of the model",
        {
            200: ("A set or an interval for each example.", "PredictReply"),
            501: ("On a port: adapted sets of a private node, which depend on its rows.", "ErrorReply"),
            **_BUSY,
        },
        "PredictRequest",
    ),
    EVALUATE: Operation(
        "Measure how often the sets of this device cover, on labelled examples",
        {
            200: ("The coverage of these examples, and of all since the result was certified.", "EvaluateReply"),
            409: ("Another result was certified meanwhile; nothing is counted.", "ErrorReply"),
            501: ("A private node does not measure its own coverage.", "ErrorReply"),
            **_BUSY,
        },
        "EvaluateRequest",
    ),
    RECALIBRATE: Operation(
        "Ask for a new run",
        {
            202: ("What becomes of it: it is started, joins one, or waits.", "AcceptedReply"),
            409: ("There can be none now.", "ErrorReply"),
            501: ("This node was started without a way to calibrate again.", "ErrorReply"),
            503: (
                "The node is at work for many programs already, or the request cannot be written down.",
                "ErrorReply",
            ),
        },
    ),
    ROSTER: Operation(
        "Hand a newer roster to the node, which passes it on",
        {
            202: ("It is in force, or was already.", "AcceptedReply"),
            409: ("It is refused, and why.", "ErrorReply"),
            501: ("This node was started without a way to take rosters.", "ErrorReply"),
            **_BUSY,
        },
        "Roster",
    ),
    ONLINE: Operation(
        "What was learnt online, and what is guaranteed of it",
        {200: ("Steps, misses and bounds, and the devices that have reported.", "OnlineStatus"), **_NOT_LEARNING},
    ),
    OBSERVE: Operation(
        "Tell the label of an example, or its score, once it is known",
        {
            200: (
                "What became of it, and what is predicted next if asked; it survives any end of the node.",
                "ObserveReply",
            ),
            409: ("The id is of no prediction here, or of one too long ago; nothing is counted.", "ErrorReply"),
            **_NOT_LEARNING,
            **_UNWRITTEN,
        },
        "ObserveRequest",
    ),
    PREDICT_NEXT: Operation(
        "The set or interval for the next outputs, with an id for its label",
        {200: ("The id, the threshold, and the set or interval.", "PredictNextReply"), **_NOT_LEARNING, **_UNWRITTEN},
        "PredictNextRequest",
    ),
}


def _derive_schemas() -> dict[str, Schema]:
    types = (
        *(NodeStatus, MeshStatus, OnlineStatus),
        *(ErrorReply, ThresholdReply, CertificateReply, CalibrationReply, HealthReply, SetsReply, IntervalsReply),
        *(PredictNextReply, ObserveReply, AcceptedReply, PredictRequest, PredictNextRequest, ObserveRequest),
        *(EvaluateReply, EvaluateRequest),
    )
    _, schemas = msgspec.json.schema_components(types, ref_template=_COMPONENT)
    # By hand: a Struct cannot say that exactly one of several fields is needed, ...
    for name in ("PredictRequest", "EvaluateRequest"):
        schemas[name]["oneOf"] = [{"required": ["probabilities"]}, {"required": ["outputs"]}]
    schemas["ObserveRequest"]["oneOf"] = [
        {"required": ["score"], "not": {"anyOf": [{"required": ["outputs"]}, {"required": ["label"]}]}},
        {"required": ["outputs", "label"], "not": {"required": ["score"]}},
    ]
    # ... msgspec allows no union of Structs without a tag field, and a roster is read as its file is: signed bytes.
    schemas["PredictReply"] = {"oneOf": [_ref("SetsReply"), _ref("IntervalsReply")]}
    schemas["Roster"] = {
        "type": "object",
        "description": "A roster and its signature, as the file roster.json has it.",
    }
    return schemas


def _ref(name: str) -> Schema:
    return {"$ref": _COMPONENT.format(name=name)}


SCHEMAS = _derive_schemas()


def describe_service() -> dict[str, Any]:
    """Return the description, OpenAPI 3.1, as one JSON object."""
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "conformesh node",
            "version": __version__,
            "summary": "What a node of a mesh answers programs on its own device.",
            "description": "On a Unix socket that only the user of the node may open, or on a loopback port. Every "
            "refusal is one line of words. Infinity is the text inf.",
            "license": {"name": "BSD-3-Clause", "identifier": "BSD-3-Clause"},
        },
        "servers": [{"url": "http://localhost"}],
        "paths": {path: {VERBS[path].lower(): _operation(path)} for path in VERBS},
        "components": {"schemas": SCHEMAS},
    }


def _operation(path: str) -> Schema:
    operation = OPERATIONS[path]
    answers = dict(sorted({**_COMMON, **operation.answers}.items()))
    made: Schema = {
        "operationId": path.strip("/").partition(".")[0],
        "summary": operation.summary,
        "responses": {str(status): _answer(path, words, name) for status, (words, name) in answers.items()},
    }
    if operation.body:
        made["requestBody"] = {"required": True, "content": {JSON: {"schema": _ref(operation.body)}}}
    return made


def _answer(path: str, words: str, name: str) -> Schema:
    if path == METRICS and not name:
        return {"description": words, "content": {form: {"schema": {"type": "string"}} for form in METRIC_FORMS}}
    return {"description": words, "content": {JSON: {"schema": _ref(name) if name else {"type": "object"}}}}
