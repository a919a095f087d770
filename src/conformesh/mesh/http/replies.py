"""What a node answers local programs: from its state to JSON, without any network.

Infinity in JSON is the string "inf" or "-inf", in answers and in requests, as in every file the library writes;
Python's float() undoes it. Every refusal is {"error": "one line of words"}.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from msgspec import Struct, to_builtins

from conformesh.common.names import unknown
from conformesh.files.json_numbers import in_json
from conformesh.mesh.http.online_replies import Learns, observed, predicted
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
from conformesh.mesh.http.request_bodies import parsed, table_of
from conformesh.mesh.node.certified_result import Certified
from conformesh.mesh.node.health import explain_missing_threshold, judge_health
from conformesh.mesh.node.state import NodeState
from conformesh.mesh.node.status import NodeStatus
from conformesh.scores import SCORES, Score, get_score

if TYPE_CHECKING:
    from conformesh.mesh.http.metrics import Exposition

LOG = logging.getLogger("conformesh.node")
Headers = tuple[tuple[str, str], ...]
TABLES = ("probabilities", "outputs")  # what a request may call its table
OF_ROWS = ("alpha", "groups", "weight")  # which of several thresholds the rows need, as in `Result.predict`


class Refused(Exception):  # noqa: N818 - a proper answer, only not the wished one
    """An answer that is not what was asked for: a status and one line of words."""

    def __init__(self, status: HTTPStatus, words: str, headers: Headers = ()) -> None:
        super().__init__(" ".join(words.split()))
        self.status = status
        self.headers = headers


@dataclass(frozen=True)
class HttpReply:
    """A status and a body, ready to send."""

    status: HTTPStatus
    body: bytes
    content_type: str = JSON
    headers: Headers = ()

    @classmethod
    def of(
        cls, content: dict[str, Any] | Struct, status: HTTPStatus = HTTPStatus.OK, headers: Headers = ()
    ) -> HttpReply:
        """Return a JSON answer."""
        return cls(status, (json.dumps(to_builtins(content), allow_nan=False) + "\n").encode(), headers=headers)


Reply = Callable[[bytes], HttpReply]


class ReceivedBody(Protocol):
    """What knows of everybody."""

    def mesh(self) -> dict[str, Any]:
        """Return what was heard of everybody, as JSON."""

    def measured(self) -> dict[str, Any]:
        """Return the same as numbers, for metrics."""


class HttpReplies:
    """The routes of the service.

    Parameters
    ----------
    state
        What the engine's thread updates.
    recalibrate
        Asks the engine for a new run, returns when the request is on the disk, and says what became of it. A
        RuntimeError of it is answered with 409 and its words, an OSError with 503.
    hand
        Takes a roster, and says what becomes of it; a ValueError of it is answered with 409 and its words.
    beating
        Knows what was heard of everybody; without it ``/mesh`` answers 501.
    online
        Learns from labels; without it what belongs to that answers 501.
    shared
        Whether others than the owner may ask, as at a port: of a private node they learn nothing about its scores.
    """

    def __init__(
        self,
        state: NodeState,
        recalibrate: Callable[[], str | None] | None = None,
        hand: Callable[[bytes], str] | None = None,
        beating: ReceivedBody | None = None,
        online: Learns | None = None,
        shared: bool = False,
    ) -> None:
        self.state, self._shared = state, shared
        self._about_process = not (shared and state.private)  # memory and time of the process depend on its scores
        self.recalibrate, self.hand, self.beating, self.online = recalibrate, hand, beating, online
        self._exposition: Exposition | None = None  # made when it is first asked for: most nodes are never
        self.routes: dict[str, Reply] = {
            THRESHOLD: self._threshold,
            CERTIFICATE: self._certificate,
            CALIBRATION: self._calibration,
            HEALTH: self._health,
            STATUS: lambda _: HttpReply.of(self._status()),
            MESH: self._mesh,
            METRICS: partial(self._metrics, ""),
            OPENAPI: _described,
            PREDICT: self._predict,
            RECALIBRATE: self._recalibrate,
            ROSTER: self._roster,
            ONLINE: lambda _: HttpReply.of(self._learning().shown()),
            OBSERVE: partial(self._learns, observed),
            PREDICT_NEXT: partial(self._learns, predicted),
        }

    def route(self, method: str, path: str, accept: str = "") -> Reply:
        """Return what answers this request, or refuse with what exists; metrics come in the form it accepts."""
        if path not in self.routes:
            known = ", ".join(f"{verb} {name}" for name, verb in VERBS.items())
            raise Refused(HTTPStatus.NOT_FOUND, f"there is no {path[:100]!r}; there are: {known}")
        verb = VERBS[path]
        if method != verb:
            words = f"{path} takes {verb}, got {method[:20]}"
            raise Refused(HTTPStatus.METHOD_NOT_ALLOWED, words, (("Allow", verb),))
        return partial(self._metrics, accept) if path == METRICS else self.routes[path]

    def _status(self) -> NodeStatus:
        return self.state.shared_status() if self._shared else self.state.status()

    def _certified(self) -> Certified:
        found = self.state.certified
        if found is None:
            raise Refused(HTTPStatus.SERVICE_UNAVAILABLE, explain_missing_threshold(self._status()))
        return found

    def _threshold(self, _: bytes) -> HttpReply:
        found = self._certified()
        answers = found.answers()
        about = {"method": found.calibration.method, "answers": answers} | found.facts()
        return HttpReply.of(_only(answers, "threshold", "alpha", "certificate") | about)

    def _certificate(self, _: bytes) -> HttpReply:
        found = self._certified()
        answers = found.answers()
        for one, answer in zip(answers, found.calibration.answers, strict=True):
            one["words"] = str(answer.certificate)
        return HttpReply.of(_only(answers, "certificate", "words") | {"answers": answers} | found.facts())

    def _calibration(self, _: bytes) -> HttpReply:
        found = self._certified()
        return HttpReply.of({"calibration": found.calibration.to_dict()} | found.facts())

    def _health(self, _: bytes) -> HttpReply:
        status = self._status()
        health = judge_health(status)
        content: dict[str, Any] = {"healthy": health.healthy, "phase": status.phase, "reasons": health.words}
        content |= {"links_down": health.links_down}
        content |= {} if status.alarm is None else {"alarm": status.alarm.raised}
        return HttpReply.of(content, HTTPStatus.OK if health.healthy else HTTPStatus.SERVICE_UNAVAILABLE)

    def _metrics(self, accept: str, _: bytes) -> HttpReply:
        if self._exposition is None:
            from conformesh.mesh.http.metrics import Exposition

            try:
                self._exposition = Exposition(self._now, self._about_process)
            except ImportError:
                words = "metrics need prometheus-client: pip install 'conformesh[mesh]'"
                raise Refused(HTTPStatus.NOT_IMPLEMENTED, words) from None
        body, content_type = self._exposition.text(accept)
        return HttpReply(HTTPStatus.OK, body, content_type)

    def _now(self) -> dict[str, Any]:
        """Return what metrics are made of."""
        status = self._status()
        mesh = None if self.beating is None else self.beating.measured()
        online = None if self.online is None else self.online.shown()
        about = {"healthy": judge_health(status).healthy, "mesh": mesh, "online": online}
        return {**to_builtins(status), **about}

    def _mesh(self, _: bytes) -> HttpReply:
        if self.beating is None:
            raise Refused(HTTPStatus.NOT_IMPLEMENTED, "this node was started alone, and hears of nobody")
        return HttpReply.of(self.beating.mesh())

    def _recalibrate(self, _: bytes) -> HttpReply:
        if self.recalibrate is None:
            raise Refused(HTTPStatus.NOT_IMPLEMENTED, "this node was started without a way to calibrate again")
        try:
            became = self.recalibrate()
        except RuntimeError as error:
            raise Refused(HTTPStatus.CONFLICT, f"no new run: {error}") from None
        except OSError as error:  # only a request that is on the disk is acknowledged
            raise Refused(HTTPStatus.SERVICE_UNAVAILABLE, f"the request cannot be stored: {error}") from None
        LOG.info("a local program asked for a new run: %s", became or "accepted")
        return HttpReply.of({"accepted": True} | ({} if became is None else {"run": became}), HTTPStatus.ACCEPTED)

    def _roster(self, body: bytes) -> HttpReply:
        if self.hand is None:
            raise Refused(HTTPStatus.NOT_IMPLEMENTED, "this node was started without a way to take rosters")
        try:
            became = self.hand(body)
        except ValueError as error:
            self.state.refused(None, "a roster that is refused")
            raise Refused(HTTPStatus.CONFLICT, f"refused: {error}") from None
        LOG.info("a local program handed over a roster: %s", became)
        return HttpReply.of({"accepted": True, "roster": became}, HTTPStatus.ACCEPTED)

    def _predict(self, body: bytes) -> HttpReply:
        found = self._certified()
        try:
            return HttpReply.of(_prediction(found, body))
        except (ValueError, TypeError, OverflowError, RecursionError) as error:
            raise Refused(HTTPStatus.BAD_REQUEST, str(error)) from None

    def _learning(self) -> Learns:
        if self.online is None:
            raise Refused(HTTPStatus.NOT_IMPLEMENTED, "this node does not learn online: device.toml has no [online]")
        return self.online

    def _learns(self, reply: Callable[[Learns, bytes], dict[str, Any]], body: bytes) -> HttpReply:
        online = self._learning()
        try:
            return HttpReply.of(reply(online, body))
        except OSError as error:
            raise Refused(HTTPStatus.SERVICE_UNAVAILABLE, str(error)) from None
        except LookupError as error:
            raise Refused(HTTPStatus.CONFLICT, str(error.args[0])) from None
        except (ValueError, TypeError, OverflowError, RecursionError) as error:
            raise Refused(HTTPStatus.BAD_REQUEST, str(error)) from None


def _only(answers: list[dict[str, Any]], *names: str) -> dict[str, Any]:
    """Return fields of the answer of a result that has only one: of several, nobody is to take the first by mistake."""
    return {name: answers[0][name] for name in names} if len(answers) == 1 else {}


def _described(_: bytes) -> HttpReply:
    from conformesh.mesh.http.openapi import description  # which few programs ask for

    return HttpReply.of(description())


# --- predictions ------------------------------------------------------------------------------------------------------


def _prediction(found: Certified, body: bytes) -> dict[str, Any]:
    request = parsed(body)
    names = [name for name in TABLES if name in request]
    if len(names) != 1:
        raise ValueError(f"needed one of 'probabilities' and 'outputs', got {', '.join(names) or 'neither'}")
    for name in request:
        if name not in (*TABLES, "score", *OF_ROWS):
            raise ValueError(unknown("field", name, (*TABLES, "score", *OF_ROWS)))
    score = _score(found.calibration.score, request.get("score"))
    table = table_of(names[0], request[names[0]])
    if score.task == "regression" and table.ndim == 2 and table.shape[1] == 1:
        table = table[:, 0]
    rows = _of_rows(request)
    result = found.calibration.at(rows.pop("alpha", None))
    predicted = result.predict(table, score=score, **rows)
    about: dict[str, Any] = {"run": found.run}
    if len(result) == 1:
        about = {"threshold": in_json(result.threshold), **about}
    if score.task == "regression":
        return {"intervals": in_json(predicted.tolist()), **about}
    sets = [np.flatnonzero(row).tolist() for row in predicted]
    return {"sets": sets, "sizes": [len(members) for members in sets], **about}


def _of_rows(request: dict[str, Any]) -> dict[str, Any]:
    """Return which of several thresholds the rows of a request need, checked for their types."""
    rows = {name: request[name] for name in OF_ROWS if name in request}
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
