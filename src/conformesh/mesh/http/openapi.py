"""The OpenAPI description of a node's local service: one table, from which ``/openapi.json`` and the docs are made."""

from __future__ import annotations

from typing import Any, NamedTuple

from conformesh import __version__
from conformesh.mesh.http.paths import (
    CALIBRATION,
    CERTIFICATE,
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
from conformesh.mesh.http.schemas import SCHEMAS, TEXT, Schema, ref

METRIC_FORMS = ("text/plain", "application/openmetrics-text")


class Operation(NamedTuple):
    """What one path does: in words, what it answers by status (words and the name of a schema), and what it takes."""

    summary: str
    answers: dict[int, tuple[str, str]]
    body: str = ""


_NOTHING_YET = {503: ("No threshold is certified yet; the words say how far it is.", "Error")}
_FULL = {503: ("The node is at work for many programs already, or nothing is certified yet.", "Error")}
_NOT_LEARNING = {501: ("This node does not learn online.", "Error")}
_UNWRITTEN = {503: ("The node is at work for many programs already, or its journal cannot be written.", "Error")}
_COMMON = {  # what any request may hear
    400: ("The request is malformed.", "Error"),
    403: ("On a port: web pages are kept out, by their Origin or Host.", "Error"),
    408: ("The head or the body did not arrive in time.", "Error"),
    411: ("A body must come whole, with its length.", "Error"),
    413: ("The body is too large.", "Error"),
    415: (f"A body must be {JSON}.", "Error"),
    431: ("The head is too large.", "Error"),
    500: ("Something went wrong here; the log of the node has the details.", "Error"),
    503: ("All places for connections or for large bodies are taken; try again after Retry-After.", "Error"),
}

OPERATIONS: dict[str, Operation] = {
    THRESHOLD: Operation(
        "The certified threshold, and about whom it is", {200: ("The threshold.", "Threshold"), **_NOTHING_YET}
    ),
    CERTIFICATE: Operation(
        "Why the threshold may be trusted", {200: ("The certificate, also in words.", "Certified"), **_NOTHING_YET}
    ),
    CALIBRATION: Operation(
        "The whole certified result, as `Result.save` writes it",
        {200: ("The calibration.", "Calibration"), **_NOTHING_YET},
    ),
    HEALTH: Operation(
        "Whether a threshold is certified, nothing is wrong, and the latest requested run succeeded or goes on",
        {200: ("The node is healthy.", "Health"), 503: ("It is not, and says why.", "Health")},
    ),
    STATUS: Operation("Everything the node shows of itself", {200: ("Its state at one moment.", "NodeStatus")}),
    MESH: Operation(
        "What this node has heard of everybody, by their pulses",
        {
            200: ("A row for each device of the roster, and the edges.", "MeshStatus"),
            501: ("This node was started alone.", "Error"),
        },
    ),
    METRICS: Operation(
        "The state as metrics for Prometheus, as text or as OpenMetrics",
        {200: ("The metrics.", ""), 501: ("prometheus-client is not installed.", "Error")},
    ),
    OPENAPI: Operation("This description", {200: ("An OpenAPI document.", "")}),
    PREDICT: Operation(
        "Prediction sets or intervals for outputs of the model",
        {200: ("A set or an interval for each example.", "Sets"), **_FULL},
        "Outputs",
    ),
    RECALIBRATE: Operation(
        "Ask for a new run",
        {
            202: ("What becomes of it: it is started, joins one, or waits.", "Accepted"),
            409: ("There can be none now.", "Error"),
            501: ("This node was started without a way to calibrate again.", "Error"),
            503: ("The node is at work for many programs already, or the request cannot be written down.", "Error"),
        },
    ),
    ROSTER: Operation(
        "Hand a newer roster to the node, which passes it on",
        {
            202: ("It is in force, or was already.", "Accepted"),
            409: ("It is refused, and why.", "Error"),
            501: ("This node was started without a way to take rosters.", "Error"),
            **_FULL,
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
            200: ("What became of it, and what is predicted next if asked; it survives any end of the node.", "Judged"),
            409: ("The id is of no prediction here, or of one too long ago; nothing is counted.", "Error"),
            **_NOT_LEARNING,
            **_UNWRITTEN,
        },
        "Observation",
    ),
    PREDICT_NEXT: Operation(
        "The set or interval for the next outputs, with an id for its label",
        {200: ("The id, the threshold, and the set or interval.", "Predicted"), **_NOT_LEARNING, **_UNWRITTEN},
        "Next",
    ),
}


def description() -> dict[str, Any]:
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
        made["requestBody"] = {"required": True, "content": {JSON: {"schema": ref(operation.body)}}}
    return made


def _answer(path: str, words: str, name: str) -> Schema:
    if path == METRICS and not name:
        return {"description": words, "content": {form: {"schema": TEXT} for form in METRIC_FORMS}}
    return {"description": words, "content": {JSON: {"schema": ref(name) if name else {"type": "object"}}}}
