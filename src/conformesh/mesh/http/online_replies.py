"""What programs on a device that learns online send and get: labels that came, and sets for the next outputs.

A prediction has an id; its label, whenever it comes, names it, and is judged by the threshold of that prediction. The
same label sent again, by a program that did not hear the answer, is counted once. A label without an id is judged by
the threshold of the moment.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from msgspec import UNSET
from numpy.typing import NDArray

from conformesh.files.json_numbers import as_json_value, as_number
from conformesh.mesh.http.messages import ObserveReply, ObserveRequest, PredictNextReply, PredictNextRequest
from conformesh.mesh.http.request_bodies import parse_object, parse_table, refuse_unknown
from conformesh.scores import Score

if TYPE_CHECKING:
    from conformesh.mesh.node.online import OnlineLearning


def observe(online: OnlineLearning, body: bytes) -> ObserveReply:
    """Count the label in a body; say what became of it and, where asked, what is predicted next."""
    request = parse_object(body)
    refuse_unknown(request, ObserveRequest)
    example = request.get("example")
    if not isinstance(example, str | None):
        raise ValueError(f"'example' must be the id of a prediction, a text, got {type(example).__name__}")
    score, asked = _score_in(online, request), request.get("next")
    table = None if asked is None else _next_table(online, asked)  # refused before anything is counted
    judged = online.observe(score, example)
    now = online.status()
    return ObserveReply(
        example=judged.id,
        score=judged.score,
        threshold=as_json_value(judged.threshold),
        missed=judged.missed,
        repeated=judged.repeated,
        device=now.device,
        everybody=now.everybody,
        threshold_now=now.threshold,
        next=UNSET if asked is None else _predict_next(online, table),
    )


def predict_next(online: OnlineLearning, body: bytes) -> PredictNextReply:
    """Give the next example an id and a threshold, and a set or an interval where its outputs are in the body."""
    return _predict_next(online, _next_table(online, parse_object(body)))


def _predict_next(online: OnlineLearning, table: NDArray[Any] | None) -> PredictNextReply:
    example = online.predict()
    reply = PredictNextReply(example.id, as_json_value(example.threshold))
    if table is not None:
        _add_region(reply, _score_of(online), table, example.threshold)
    return reply


def _add_region(reply: PredictNextReply, score: Score, table: NDArray[Any], threshold: float) -> None:
    if score.task == "regression":
        reply.interval = as_json_value(score.intervals(table, threshold)[0].tolist())
    else:
        members = np.flatnonzero(score.sets(table, threshold)[0]).tolist()
        reply.set, reply.size = members, len(members)


def _next_table(online: OnlineLearning, request: Any) -> NDArray[Any] | None:
    """Return the outputs of the next example, after trying them; None where there are none."""
    if not isinstance(request, dict):
        raise ValueError(f"'next' must be an object, which may have 'outputs', got {type(request).__name__}")
    refuse_unknown(request, PredictNextRequest)
    if request.get("outputs") is None:
        return None
    score = _score_of(online)
    table = _row(score, request["outputs"])
    _add_region(PredictNextReply("", 0.0), score, table, 0.0)  # raises for a table that does not fit the score
    return table


def _score_in(online: OnlineLearning, request: dict[str, Any]) -> float:
    """Return the score that a request tells, or that of its label."""
    labelled = "outputs" in request or "label" in request
    if ("score" in request) == labelled or ("outputs" in request) != ("label" in request):
        got = ", ".join(name for name in ("score", "outputs", "label") if name in request) or "none"
        raise ValueError(f"needed 'score', or 'outputs' with their 'label', got {got}")
    if not labelled:
        return as_number(request["score"], "'score'")
    score = _score_of(online)
    label = as_number(request["label"], "'label'")
    if score.task == "classification":
        if not label.is_integer():
            raise ValueError(f"'label' must be the number of a class, got {request['label']!r}")
        return float(score(_row(score, request["outputs"]), [int(label)])[0])
    return float(score(_row(score, request["outputs"]), [label])[0])


def _row(score: Score, outputs: Any) -> NDArray[Any]:
    """Return the outputs of one example as a table of one row."""
    table = parse_table("outputs", [outputs if isinstance(outputs, list) else [outputs]])
    if table.ndim != 2:
        raise ValueError("'outputs' must be those of one example: a number, or a list of numbers")
    return table[:, 0] if score.task == "regression" and table.shape[1] == 1 else table


def _score_of(online: OnlineLearning) -> Score:
    score = online.score
    if score is None:
        raise ValueError("device.toml names no score: send 'score', the score itself, in place of outputs and label")
    if getattr(score, "randomised", False) and getattr(score, "seed", None) is None:
        raise ValueError(f"score {score.name!r} draws anew each time, so a set and its label differ; give it a seed")
    return score
