"""What JSON a node takes and gives, as JSON Schema: the named parts of its OpenAPI description.

Answers may have more fields than are said here, since a later version may know more; requests may not.
"""

from __future__ import annotations

from typing import Any

import msgspec

from conformesh.mesh.node.status import MeshStatus, NodeStatus, OnlineStatus

Schema = dict[str, Any]
TEXT: Schema = {"type": "string"}
FLAG: Schema = {"type": "boolean"}
COUNT: Schema = {"type": "integer", "minimum": 0}
SECONDS: Schema = {"type": "number"}
TEXTS: Schema = {"type": "array", "items": TEXT}
COUNTS: Schema = {"type": "object", "additionalProperties": COUNT}


def ref(name: str) -> Schema:
    """Return a reference to a named schema."""
    return {"$ref": f"#/components/schemas/{name}"}


def _or_null(schema: Schema) -> Schema:
    return {"anyOf": [schema, {"type": "null"}]}


def _object(needed: dict[str, Schema], perhaps: dict[str, Schema] | None = None, words: str = "") -> Schema:
    made = {"type": "object", "required": [*needed], "properties": {**needed, **(perhaps or {})}}
    return made | ({"description": words} if words else {})


def _list(item: Schema) -> Schema:
    return {"type": "array", "items": item}


_FACTS: dict[str, Schema] = {  # what every answer about a certified result says
    "scores": _or_null(
        {**COUNT, "description": "Scores behind the threshold, on all devices; null where nobody knows."}
    ),
    "devices": {**COUNT, "description": "How many devices the threshold is about."},
    "made": {**TEXT, "format": "date-time"},
    "run": COUNT,
    "restored": {**FLAG, "description": "Whether it was read from disk after a start, rather than made since."},
    "final": {**FLAG, "description": "Whether it is the result of its run, the same on all its devices."},
    "about": {"enum": ["everybody", "reported", "survivors"]},
    "roster_number": COUNT,
    "survivors": {**TEXTS, "description": "The devices that the threshold is about."},
    "lost": {**TEXTS, "description": "Devices of the roster without which the survivors have gone on."},
}
_REPORTED: dict[str, Schema] = {
    "reported": TEXTS,
    "everybody": _object({"threshold": ref("Number"), "certificate": _or_null(ref("Certificate"))}),
}
_ROWS = {"type": "array", "items": {"anyOf": [ref("Number"), _list(ref("Number"))]}}
_ONE = {"description": "The outputs for one example.", "anyOf": [ref("Number"), _list(ref("Number"))]}
_LINKS_DOWN = {**TEXTS, "description": "Neighbours from which nothing has arrived for longer than the patience."}
_, _STATUS_SCHEMAS = msgspec.json.schema_components(
    (NodeStatus, MeshStatus, OnlineStatus), ref_template="#/components/schemas/{name}"
)

SCHEMAS: dict[str, Schema] = {
    **_STATUS_SCHEMAS,
    "Error": _object({"error": TEXT}, words="Why a request was refused, in one line."),
    "Number": {
        "description": 'A number; JSON has no infinity, which is the text "inf".',
        "anyOf": [{"type": "number"}, {"enum": ["inf", "-inf"]}],
    },
    "Certificate": _object({"kind": TEXT}, words="Why a threshold may be trusted."),
    "Answer": _object(
        {"part": TEXTS, "alpha": SECONDS, "threshold": ref("Number"), "certificate": ref("Certificate")},
        {"words": TEXT},
        "The threshold of one part (a group, a side) at one level.",
    ),
    "Threshold": _object(
        {"method": TEXT, "answers": _list(ref("Answer")), **_FACTS},
        {**_REPORTED, "threshold": ref("Number"), "alpha": SECONDS, "certificate": ref("Certificate")},
        "Where there is only one answer, its threshold, alpha and certificate stand here too.",
    ),
    "Certified": _object(
        {"answers": _list(ref("Answer")), **_FACTS},
        {**_REPORTED, "certificate": ref("Certificate"), "words": TEXT},
        "Where there is only one answer, its certificate stands here too.",
    ),
    "Calibration": _object({"calibration": {"type": "object"}, **_FACTS}, _REPORTED),
    "Health": _object(
        {"healthy": FLAG, "phase": ref("Phase"), "reasons": TEXTS, "links_down": _LINKS_DOWN},
        {"alarm": ref("AlarmFlags")},
    ),
    "Outputs": {
        "type": "object",
        "additionalProperties": False,
        "properties": {
            "probabilities": {**_ROWS, "description": "A row of probabilities or other outputs for each example."},
            "outputs": {**_ROWS, "description": "The same, by another name."},
            "score": {
                "description": "The score, where the calibration does not name it.",
                "anyOf": [
                    TEXT,
                    {"type": "object", "required": ["name"], "properties": {"name": TEXT}},
                    {"type": "null"},
                ],
            },
            "alpha": {**SECONDS, "description": "Which level, where there are several."},
            "groups": {
                **_list({"anyOf": [TEXT, TEXTS]}),
                "description": "The group of each row, where groups have thresholds.",
            },
            "weight": {
                "anyOf": [SECONDS, _list(SECONDS)],
                "description": "The weight of each row, where there are thresholds for weights.",
            },
        },
        "oneOf": [{"required": ["probabilities"]}, {"required": ["outputs"]}],
    },
    "Sets": _object({"run": COUNT}, {"threshold": ref("Number")})
    | {
        "description": "A list of labels for each example, or an interval.",
        "oneOf": [
            _object({"sets": _list(_list(COUNT)), "sizes": _list(COUNT)}),
            _object({"intervals": _list({**_list(ref("Number")), "minItems": 2, "maxItems": 2})}),
        ],
    },
    "Observation": {
        "type": "object",
        "additionalProperties": False,
        "properties": {
            "score": ref("Number"),
            "outputs": _ONE,
            "label": {"type": "number"},
            "example": {**_or_null(TEXT), "description": "The id of the prediction that it belongs to."},
            "next": _or_null(ref("Next")),
        },
        "oneOf": [
            {"required": ["score"], "not": {"anyOf": [{"required": ["outputs"]}, {"required": ["label"]}]}},
            {"required": ["outputs", "label"], "not": {"required": ["score"]}},
        ],
    },
    "Next": {
        "type": "object",
        "additionalProperties": False,
        "properties": {"outputs": _or_null(_ONE)},
        "description": "The outputs for one example; without any there is only an id and a threshold.",
    },
    "Predicted": _object(
        {"example": TEXT, "threshold": ref("Number")},
        {"set": _list(COUNT), "size": COUNT, "interval": {**_list(ref("Number")), "minItems": 2, "maxItems": 2}},
    ),
    "Judged": _object(
        {
            "example": TEXT,
            "score": SECONDS,
            "threshold": {**ref("Number"), "description": "By which it was judged: that of its prediction."},
            "missed": FLAG,
            "repeated": {**FLAG, "description": "Whether it had been counted before; it is counted once."},
            "device": ref("OnlineAccount"),
            "everybody": ref("OnlineAccount"),
            "threshold_now": ref("Number"),
        },
        {"next": ref("Predicted")},
    ),
    "Roster": {"type": "object", "description": "A roster and its signature, as the file roster.json has it."},
    "Accepted": _object({"accepted": FLAG}, {"run": TEXT, "roster": TEXT}, "What becomes of what was asked for."),
}
