"""Prediction sets and intervals of a node, for local programs.

Where scores adapt to the rows of a device, sets are those of this device: it predicts with the shared window and the
rows that it calibrated with, which it still has, or reads again after a start. A digest in its result tells whether
they are the same.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from msgspec import UNSET

from conformesh.files.json_numbers import as_json_value
from conformesh.mesh.http.messages import IntervalsReply, PredictRequest, SetsReply
from conformesh.mesh.http.request_bodies import parse_object, parse_table, refuse_unknown
from conformesh.mesh.node.certified_result import CertifiedResult
from conformesh.scores import SCORES, Score, get_score

if TYPE_CHECKING:
    from collections.abc import Callable

    from conformesh.results.adapted import DevicePredictor, DeviceRows

_TABLES = ("probabilities", "outputs")  # what a request may call its table
_OF_ROWS = ("alpha", "groups", "weight")  # which of several thresholds the rows need, as in `Result.predict`
WAITS_FOR_A_RUN = (
    "a device that has not taken part in a run cannot predict with adapted scores, since its rows are not among the "
    "shared ones: it predicts after its first run"
)


class MissingRowsError(LookupError):
    """The rows that a device calibrated with are not there, so that it cannot predict with adapted scores now."""


class AdaptedPredictions:
    """Makes the predictor of a node with adapted scores, and keeps it until another result is certified.

    Parameters
    ----------
    device
        The name of the device.
    read_rows
        Returns the labelled outputs of the device as they were read last; None where they cannot be read.
    """

    def __init__(self, device: str, read_rows: Callable[[], DeviceRows | None]) -> None:
        self._device, self._read_rows = device, read_rows
        self._made: tuple[CertifiedResult, DevicePredictor] | None = None

    def predictor(self, found: CertifiedResult) -> DevicePredictor:
        """Return what predicts with a certified result; `MissingRowsError` without the rows that it was made with."""
        made = self._made  # read once: another thread may replace it
        if made is None or made[0] is not found:
            made = self._made = found, self._make(found)
        return made[1]

    def _make(self, found: CertifiedResult) -> DevicePredictor:
        from conformesh.results.adapted import DevicePredictor

        result, name = found.calibration, self._device
        facts = result.adapted
        if facts is None or name not in facts.hidden:
            raise MissingRowsError(WAITS_FOR_A_RUN)
        rows = result.rows.get(name)
        if rows is None:  # the result is from before the start of this process
            rows = self._read_rows()
            if rows is None:
                raise MissingRowsError(
                    "the labelled outputs of this device are not read, and adapted scores predict with them; /health "
                    "says what is wrong"
                )
            if rows.digest != facts.digests[name]:
                raise MissingRowsError(
                    f"the labelled outputs of this device are not those that it calibrated with in run {found.run} "
                    f"(their digest is {rows.digest[:12]}..., and was {facts.digests[name][:12]}...): put the file of "
                    "that run back, in the same order, or wait for the next run"
                )
        predictor = DevicePredictor(result, name, rows)
        predictor.is_quiet = True  # replies have the note
        return predictor


def predict(found: CertifiedResult, adapted: AdaptedPredictions | None, body: bytes) -> SetsReply | IntervalsReply:
    """Return the sets or intervals for the outputs in a body."""
    request = parse_object(body)
    refuse_unknown(request, PredictRequest)
    table, rows = _table_in(request), _of_rows(request)
    as_names = request.get("as_names", False)
    if not isinstance(as_names, bool):
        raise ValueError(f"'as_names' must be true or false, got {as_names!r:.40}")
    result = found.calibration
    if result.guarantee.adapt is not None:
        if adapted is None:
            raise MissingRowsError("this node was started without its labelled outputs, and cannot predict")
        return _adapted_reply(found, adapted.predictor(found), request, table, rows, as_names)
    score = _score(result.score, request.get("score"))
    view = result.at(rows.pop("alpha", None))
    predicted = view.predict(as_model_outputs(score.task, table), score=score, **rows)
    threshold = as_json_value(view.threshold) if len(view) == 1 else UNSET
    if score.task == "regression":
        _refuse_names(as_names)
        return IntervalsReply(found.run, as_json_value(predicted.tolist()), threshold)
    if as_names:
        raise ValueError("'as_names' needs the names of the classes, which only a mesh with adapt is configured with")
    return _sets_reply(found, predicted, threshold)


def _adapted_reply(
    found: CertifiedResult,
    predictor: DevicePredictor,
    request: dict[str, Any],
    table: Any,
    rows: dict[str, Any],
    as_names: bool,
) -> SetsReply | IntervalsReply:
    for name in ("score", "weight"):
        if request.get(name) is not None:
            raise ValueError(f"{name!r} does not go with adapted scores; leave it out")
    alpha, task = rows.pop("alpha", None), predictor.adapt.task
    if alpha is None and len(found.calibration.alphas) > 1:
        levels = ", ".join(f"{level:g}" for level in found.calibration.alphas)
        raise ValueError(f"'alpha' must say which level: {levels}")
    predicted = predictor.predict(as_model_outputs(task, table), alpha=alpha, groups=rows.get("groups"))
    if task == "regression":
        _refuse_names(as_names)
        return IntervalsReply(found.run, as_json_value(predicted.tolist()))
    reply = _sets_reply(found, predicted, UNSET)  # each label has a limit of its own
    classes = found.calibration.classes
    if as_names and classes is not None:
        reply.names = [[str(classes[column]) for column in members] for members in reply.sets]
    if unseen := predictor.unseen_classes:
        reply.unseen = [*unseen]
    return reply


def _sets_reply(found: CertifiedResult, predicted: Any, threshold: Any) -> SetsReply:
    sets = [np.flatnonzero(row).tolist() for row in predicted]
    return SetsReply(found.run, sets, [len(members) for members in sets], threshold)


def _refuse_names(as_names: bool) -> None:
    if as_names:
        raise ValueError("'as_names' is for sets of classes, and this mesh has intervals; leave it out")


def _table_in(request: dict[str, Any]) -> Any:
    names = [name for name in _TABLES if name in request]
    if len(names) != 1:
        raise ValueError(f"needed one of 'probabilities' and 'outputs', got {', '.join(names) or 'neither'}")
    return parse_table(names[0], request[names[0]])


def as_model_outputs(task: str, table: Any) -> Any:
    """Return a table as the model has it: a single column of predictions may come as a list of numbers."""
    return table[:, 0] if task == "regression" and table.ndim == 2 and table.shape[1] == 1 else table


def _of_rows(request: dict[str, Any]) -> dict[str, Any]:
    """Return which of several thresholds the rows of a request need, checked for their types."""
    rows = {name: request[name] for name in _OF_ROWS if name in request}
    if "alpha" in rows and not _is_number(rows["alpha"]):
        raise ValueError(f"'alpha' must be a number, got {rows['alpha']!r:.40}")
    if "groups" in rows and not (isinstance(rows["groups"], list) and all(map(_is_group, rows["groups"]))):
        raise ValueError("'groups' must be a list with the group of each row, or a list of its groups")
    if "weight" in rows and not all(map(_is_number, np.atleast_1d(np.array(rows["weight"], dtype=object)).tolist())):
        raise ValueError("'weight' must be a number, or a list with one for each row")
    return rows


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_group(value: Any) -> bool:
    return isinstance(value, str) or (isinstance(value, list) and all(isinstance(name, str) for name in value))


def _score(calibrated: Score | None, named: Any) -> Score:
    if named is None:
        if calibrated is None:
            raise ValueError(f"the calibration does not name its score: add 'score', one of {', '.join(SCORES)}")
        return calibrated
    options = dict(named) if isinstance(named, dict) else {"name": named}
    name = options.pop("name", None)
    if not isinstance(name, str):
        raise ValueError("'score' must be a name, or an object with 'name' and the score's options")
    score = get_score(name, **options)
    if calibrated is not None and score != calibrated:
        raise ValueError(f"the node was calibrated with {calibrated!r}, got {score!r}; leave 'score' out")
    return score
