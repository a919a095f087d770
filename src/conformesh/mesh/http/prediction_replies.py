"""Prediction sets and intervals of a node, for local programs.

Where scores adapt to the rows of a device, sets are those of this device: it predicts with the shared window and the
rows that it calibrated with. After a start it reads them again, and a digest in its result tells whether they are the
same.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from msgspec import UNSET

from conformesh.common.names import unknown_name
from conformesh.files.json_numbers import as_json_value, as_number
from conformesh.mesh.http.messages import EvaluateRequest, IntervalsReply, PredictRequest, SetsReply
from conformesh.mesh.http.request_bodies import parse_object, parse_table, refuse_unknown
from conformesh.mesh.node.certified_result import CertifiedResult
from conformesh.mesh.node.status import CoverageStatus
from conformesh.scores import SCORES, Score, get_score

if TYPE_CHECKING:
    from collections.abc import Callable

    from conformesh.results.adapted import DevicePredictor
    from conformesh.results.adapted_facts import DeviceRows
    from conformesh.results.result import Result

_TABLES = ("probabilities", "outputs")  # what a request may call its table
_ROW_FIELDS = ("alpha", "groups", "weight")  # which of several thresholds the rows need, as in `Result.predict`
WAITS_FOR_A_RUN = (
    "a device that has not taken part in a run cannot predict with adapted scores, because its rows are not among the "
    "shared ones: wait for its first run"
)


class MissingRowsError(LookupError):
    """A node with adapted scores cannot predict, because it lacks the rows that it calibrated with."""


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
                    "the labelled outputs of this device cannot be read, and adapted scores need them to predict; "
                    "/health says what is wrong"
                )
            if words := found.explain_other_rows(name, rows):
                raise MissingRowsError(words)
        predictor = DevicePredictor(result, name, rows)
        predictor.is_quiet = True  # replies have the note
        return predictor


def predict(found: CertifiedResult, adapted: AdaptedPredictions | None, body: bytes) -> SetsReply | IntervalsReply:
    """Return the sets or intervals for the outputs in a body."""
    request = parse_object(body)
    refuse_unknown(request, PredictRequest)
    as_names = request.get("as_names", False)
    if not isinstance(as_names, bool):
        raise ValueError(f"'as_names' must be true or false, got {as_names!r:.40}")
    made = _predict_rows(found, adapted, request)
    threshold = as_json_value(made.view.threshold) if len(made.view) == 1 and made.predictor is None else UNSET
    if made.task == "regression":
        if as_names:
            raise ValueError("'as_names' is for sets of classes, and this mesh has intervals; leave it out")
        return IntervalsReply(found.run, as_json_value(made.values.tolist()), threshold)
    sets = [np.flatnonzero(row).tolist() for row in made.values]
    reply = SetsReply(found.run, sets, [len(members) for members in sets], threshold)
    if as_names:
        if (classes := made.view.classes) is None:
            raise ValueError(
                "'as_names' needs the names of the classes, and only a mesh with adapt knows them; leave it out"
            )
        reply.names = [[str(classes[column]) for column in members] for members in sets]
    if made.predictor is not None and (unseen := made.predictor.unseen_classes):
        reply.unseen = [*unseen]
    return reply


def evaluate(found: CertifiedResult, adapted: AdaptedPredictions | None, body: bytes) -> CoverageStatus:
    """Return how often the sets or intervals for the outputs in a body hold the labels in it."""
    request = parse_object(body)
    refuse_unknown(request, EvaluateRequest)
    labels = request.pop("labels", None)
    if not isinstance(labels, list) or not labels:
        raise ValueError("'labels' must be a list with the true label of each example, at least one")
    made = _predict_rows(found, adapted, request)
    values = made.values
    if len(labels) != len(values):
        raise ValueError(f"'labels' must have one label for each of {len(values)} rows of outputs, got {len(labels)}")
    if made.task == "regression":
        truth = np.array([as_number(label, "a label") for label in labels])
        covered = (values[:, 0] <= truth) & (truth <= values[:, 1])
        sizes = np.maximum(values[:, 1] - values[:, 0], 0.0)
        empty = values[:, 0] > values[:, 1]
    else:
        columns = np.array([_column(label, made.view.classes, values.shape[1]) for label in labels])
        covered = values[np.arange(len(columns)), columns]
        sizes = values.sum(axis=1)
        empty = sizes == 0
    return CoverageStatus.of(
        float(made.view.alpha), found.run, len(labels), int(covered.sum()), float(sizes.sum()), int(empty.sum())
    )


def _column(label: Any, classes: tuple[Any, ...] | None, columns: int) -> int:
    """Return the column of a label: its number, or the name of a class where names are known."""
    names = [*map(str, classes or ())]
    if isinstance(label, str):
        if label not in names:
            raise ValueError(
                unknown_name("label", label, names) if names else f"a label must be a number, got {label!r}"
            )
        return names.index(label)
    if not _is_number(label) or not 0 <= label < columns or label != int(label):
        raise ValueError(f"a label must be the number of a class, from 0 to {columns - 1}, got {label!r:.40}")
    return int(label)


class _Prediction(NamedTuple):
    """Sets (rows x labels, boolean) or intervals (rows x 2), the level they are of, and what made adapted ones."""

    values: Any
    view: Result
    task: str
    predictor: DevicePredictor | None


def _predict_rows(found: CertifiedResult, adapted: AdaptedPredictions | None, request: dict[str, Any]) -> _Prediction:
    table, rows, result = _table_in(request), _row_options(request), found.calibration
    if result.guarantee.adapt is None:
        score = _score(result.score, request.get("score"))
        view = result.at(rows.pop("alpha", None))
        return _Prediction(view.predict(_as_outputs(score.task, table), score=score, **rows), view, score.task, None)
    if adapted is None:
        raise MissingRowsError("this node was started without its labelled outputs, and cannot predict")
    predictor = adapted.predictor(found)
    for name in ("score", "weight"):
        if request.get(name) is not None:
            raise ValueError(f"{name!r} does not go with adapted scores; leave it out")
    alpha, task = rows.pop("alpha", None), predictor.adapt.task
    if alpha is None and len(result.alphas) > 1:
        raise ValueError(f"'alpha' must say which level: {', '.join(f'{level:g}' for level in result.alphas)}")
    values = predictor.predict(_as_outputs(task, table), alpha=alpha, groups=rows.get("groups"))
    return _Prediction(values, result.at(alpha), task, predictor)


def _table_in(request: dict[str, Any]) -> Any:
    names = [name for name in _TABLES if name in request]
    if len(names) != 1:
        raise ValueError(f"needed one of 'probabilities' and 'outputs', got {', '.join(names) or 'neither'}")
    return parse_table(names[0], request[names[0]])


def _as_outputs(task: str, table: Any) -> Any:
    """Return a table as the model has it: predictions may come as lists of one number."""
    return table[:, 0] if task == "regression" and table.ndim == 2 and table.shape[1] == 1 else table


def _row_options(request: dict[str, Any]) -> dict[str, Any]:
    """Return which of several thresholds the rows of a request need, checked for their types."""
    rows = {name: request[name] for name in _ROW_FIELDS if name in request}
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
