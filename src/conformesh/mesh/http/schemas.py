"""What JSON a node takes and gives, as JSON Schema: the named parts of its OpenAPI description.

Answers may have more fields than are said here, since a later version may know more; requests may not.
"""

from __future__ import annotations

from typing import Any

from conformesh.mesh.node.health import CODES
from conformesh.mesh.node.heartbeat_table import ALARMS, HEALTH, VIA
from conformesh.mesh.node.history import BUCKETS
from conformesh.mesh.node.state import Phase, Trouble
from conformesh.peer.settings import FAILURES

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
    "about": {"enum": ["everybody", "the heard", "the survivors"]},
    "roster_number": COUNT,
    "survivors": {**TEXTS, "description": "The devices that the threshold is about."},
    "lost": {**TEXTS, "description": "Devices of the roster without which the survivors have gone on."},
}
_HEARD: dict[str, Schema] = {
    "heard": TEXTS,
    "everybody": _object({"threshold": ref("Number"), "certificate": _or_null(ref("Certificate"))}),
}
_RAISED = _object(dict.fromkeys(ALARMS, FLAG), words="Whose drift alarm is raised; a node stays healthy.")
_ALARM = _object(
    {
        "level": {**SECONDS, "description": "The largest chance of a false alarm, at whichever moment one looks."},
        "evidence": _object(
            dict.fromkeys(ALARMS, ref("Number")), words="The largest so far; the alarm is raised at 1 / level."
        ),
        "raised": _RAISED,
        "now": {**ref("Number"), "description": "The evidence of this device now."},
        "steps": {**COUNT, "description": "Labels since the alarm began."},
        "raised_at": {**_or_null(COUNT), "description": "At which of them the device's own was raised."},
        "raised_time": _or_null({**TEXT, "format": "date-time"}),
        "counted": {**COUNT, "description": "Alarms that the fleet's evidence is divided by: at least one a device."},
    },
    words="The drift alarm.",
)
_ROWS = {"type": "array", "items": {"anyOf": [ref("Number"), _list(ref("Number"))]}}
_ONE = {"description": "The outputs for one example.", "anyOf": [ref("Number"), _list(ref("Number"))]}
_LINKS_DOWN = {**TEXTS, "description": "Neighbours from which nothing has arrived for longer than the patience."}
_NEIGHBOUR = _object(
    {
        "up": {**FLAG, "description": "Whether something has arrived within the patience."},
        "last_heard_seconds_ago": _or_null(SECONDS),
        "round": _or_null(COUNT),
        "frames_received": COUNT,
        "bytes_received": COUNT,
        "refused": COUNTS,
    }
)
_RUNS = _object(
    {
        "certified": COUNT,
        "failed": {"type": "object", "properties": dict.fromkeys(FAILURES, COUNT), "required": [*FAILURES]},
        "rounds": _or_null(COUNT),
        "seconds": SECONDS,
        "lasted": {**_list(COUNT), "minItems": len(BUCKETS) + 1, "maxItems": len(BUCKETS) + 1},
    }
)

SCHEMAS: dict[str, Schema] = {
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
        {**_HEARD, "threshold": ref("Number"), "alpha": SECONDS, "certificate": ref("Certificate")},
        "Where there is only one answer, its threshold, alpha and certificate stand here too.",
    ),
    "Certified": _object(
        {"answers": _list(ref("Answer")), **_FACTS},
        {**_HEARD, "certificate": ref("Certificate"), "words": TEXT},
        "Where there is only one answer, its certificate stands here too.",
    ),
    "Calibration": _object({"calibration": {"type": "object"}, **_FACTS}, _HEARD),
    "Health": _object(
        {"healthy": FLAG, "phase": ref("Phase"), "reasons": TEXTS, "links_down": _LINKS_DOWN}, {"alarm": _RAISED}
    ),
    "Phase": {"enum": [phase.value for phase in Phase]},
    "Status": _object(
        {
            "device": TEXT,
            "phase": ref("Phase"),
            "since": {**TEXT, "format": "date-time"},
            "seconds_in_phase": SECONDS,
            "run": COUNT,
            "round": COUNT,
            "request": _or_null(
                _object(
                    {
                        "seconds_ago": SECONDS,
                        "failed": _or_null({**TEXT, "description": "Why the last attempt failed, if one did."}),
                        "overdue": {**FLAG, "description": "Whether it has not advanced for longer than the patience."},
                        "patience": SECONDS,
                    },
                    words="The requested run that has not succeeded yet.",
                )
            ),
            "roster": _object({"number": COUNT, "floor": COUNT}),
            "neighbours": {"type": "object", "additionalProperties": _NEIGHBOUR},
            "refused": COUNTS,
            "sent": _object({"frames": COUNT, "bytes": COUNT, "resent_frames": COUNT}),
            "certified": _or_null(
                _object(
                    {
                        **{"threshold": ref("Number"), "alpha": SECONDS, "part": TEXTS, "method": TEXT, "kind": TEXT},
                        "answers": {**COUNT, "description": "How many thresholds there are; the first is shown."},
                        **_FACTS,
                    },
                    _HEARD,
                )
            ),
            "troubles": {"type": "object", "properties": {trouble.value: TEXT for trouble in Trouble}},
            "last_error": _or_null(TEXT),
            "failure": _or_null({"enum": [*FAILURES]}),
            "runs": _RUNS,
            "certificate_expires": _or_null(SECONDS),
            "scores_read_failures": COUNT,
            "scores_waiting": _or_null(TEXT),
        },
        {
            "gathering": {"type": "object", "description": "Without rounds: who was heard in this run."},
            "search": {"type": "object", "description": "In a run under way: where the threshold is looked for."},
            "alarm": _ALARM,
        },
    ),
    "Mesh": _object(
        {
            "device": TEXT,
            "devices": _list(ref("Device")),
            "edges": _list({**TEXTS, "minItems": 2, "maxItems": 2}),
            "links_down": _LINKS_DOWN,
        },
        words="What this node has heard of everybody.",
    ),
    "Device": _object(
        {
            "name": TEXT,
            "health": {"enum": [*HEALTH]},
            "via": {"enum": [*VIA]},
            "heard_seconds_ago": _or_null({**SECONDS, "minimum": 0}),
            "phase": _or_null(ref("Phase")),
            "reasons": _list({"enum": [*CODES]}),
            "run": _or_null(COUNT),
            "round": _or_null(COUNT),
            "roster": _or_null(COUNT),
            "certified_run": _or_null(COUNT),
            "threshold": _or_null(ref("Number")),
            "common": _or_null({**FLAG, "description": "Whether all devices of that run have this very threshold."}),
            "about": _or_null({**COUNT, "description": "How many devices the threshold is about."}),
            "devices": {**COUNT, "description": "How many devices there are in the roster."},
            "alarms": {
                **_list({"enum": [*ALARMS]}),
                "description": "Whose drift alarm is raised, as that device knows.",
            },
        }
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
    "Account": _object(
        {
            "alpha": SECONDS,
            "steps": COUNT,
            "misses": COUNT,
            "rate": _or_null(SECONDS),
            "within": {**SECONDS, "description": "How far from alpha the rate of misses can be at most."},
            "words": TEXT,
        }
    ),
    "Online": _object(
        {
            **dict.fromkeys(("alpha", "learning", "local", "bound"), SECONDS),
            "origin": {**_or_null(SECONDS), "description": "What all began with, if there is one; with a scale, it."},
            "scale": {
                **_or_null(_object({"weight": SECONDS, "now": SECONDS, "scores": COUNT})),
                "description": "The own scale: the weight of a score in it, what it is, and of how many scores.",
            },
            "threshold": ref("Number"),
            "device": {**ref("Account"), "description": "Of this device, since its journal began."},
            "everybody": {**ref("Account"), "description": "Of all devices that were heard of, this one among them."},
            "late": {**COUNT, "description": "The most labels that one prediction was made without."},
            "pending": {**COUNT, "description": "Predictions whose labels may still come."},
            "heard": {
                "type": "object",
                "additionalProperties": _object({"steps": COUNT, "misses": COUNT, "lives": COUNT}),
            },
            "alarm": _or_null(_ALARM),
            "refused": COUNTS,
        },
        words="What was learnt online.",
    ),
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
            "device": ref("Account"),
            "everybody": ref("Account"),
            "threshold_now": ref("Number"),
        },
        {"next": ref("Predicted")},
    ),
    "Roster": {"type": "object", "description": "A roster and its signature, as the file roster.json has it."},
    "Accepted": _object({"accepted": FLAG}, {"run": TEXT, "roster": TEXT}, "What becomes of what was asked for."),
}
