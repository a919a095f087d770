"""The replies of a node to local programs: from its state to JSON, without any network.

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
from typing import TYPE_CHECKING, Any, TypeVar

from msgspec import UNSET, Struct, to_builtins
from msgspec.structs import asdict, replace

from conformesh.files.json_numbers import as_json_value
from conformesh.mesh.http.messages import (
    AcceptedReply,
    CalibrationReply,
    CertificateReply,
    EvaluateReply,
    HealthReply,
    PartThreshold,
    ThresholdReply,
)
from conformesh.mesh.http.online_replies import observe, predict_next
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
from conformesh.mesh.http.prediction_replies import (
    WAITS_FOR_A_RUN,
    AdaptedPredictions,
    MissingRowsError,
    evaluate,
    predict,
)
from conformesh.mesh.node.certified_result import CertifiedResult, certificate_fields
from conformesh.mesh.node.health import explain_missing_threshold, judge_health
from conformesh.mesh.node.state import NodeState
from conformesh.mesh.node.status import NodeStatus

if TYPE_CHECKING:
    from conformesh.mesh.http.metrics import Exposition, Snapshot
    from conformesh.mesh.node.heartbeat import Heartbeat
    from conformesh.mesh.node.online import OnlineLearning
    from conformesh.results.adapted_facts import DeviceRows

LOG = logging.getLogger("conformesh.node")
Headers = tuple[tuple[str, str], ...]
_T = TypeVar("_T")


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


@dataclass(frozen=True, eq=False)
class NodeInterface:
    """The parts of a node that local programs can reach; what needs a missing part is answered with 501.

    Attributes
    ----------
    state
        What the node reports about itself.
    recalibrate
        Requests a new run, returns when the request is on the disk, and says what becomes of it. Its RuntimeError is
        answered with 409, its OSError with 503.
    accept_roster
        Takes a newer roster and says what becomes of it; its ValueError is answered with 409.
    heartbeat
        Knows the status of all devices.
    online
        Learns from labels.
    read_rows
        With adapted scores: returns the labelled outputs of the device as they were read last, None where they cannot
        be read.
    """

    state: NodeState
    recalibrate: Callable[[], str | None] | None = None
    accept_roster: Callable[[bytes], str] | None = None
    heartbeat: Heartbeat | None = None
    online: OnlineLearning | None = None
    read_rows: Callable[[], DeviceRows | None] | None = None


class HttpReplies:
    """The routes of the service.

    Parameters
    ----------
    node
        The node that answers.
    shared
        Whether others than the owner may ask, as at a port: about a private node they learn nothing that depends on its
        scores.
    """

    def __init__(self, node: NodeInterface, *, shared: bool = False) -> None:
        self.node, self._shared = node, shared
        # Memory and time of a process depend on its scores.
        self._hides_rows = shared and node.state.private
        self._about_process = not self._hides_rows
        self._adapted = None if node.read_rows is None else AdaptedPredictions(node.state.device, node.read_rows)
        self._exposition: Exposition | None = None  # made for the first request: most nodes are never asked
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
            EVALUATE: self._evaluate,
            RECALIBRATE: self._recalibrate,
            ROSTER: self._roster,
            ONLINE: lambda _: HttpReply.of(self._learning().status()),
            OBSERVE: partial(self._learn, observe),
            PREDICT_NEXT: partial(self._learn, predict_next),
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
        state = self.node.state
        return state.shared_status() if self._shared else state.status()

    def _certified(self) -> CertifiedResult:
        found = self.node.state.certified
        if found is None:
            raise Refused(HTTPStatus.SERVICE_UNAVAILABLE, explain_missing_threshold(self._status()))
        return found

    def _threshold(self, _: bytes) -> HttpReply:
        found = self._certified()
        answers, method = _answers(found), found.calibration.method
        reply = ThresholdReply(**asdict(found.facts()), method=method, answers=answers)
        if len(answers) == 1:  # of several, nobody is to take the first by mistake
            (answer,) = answers
            reply.threshold, reply.alpha, reply.certificate = answer.threshold, answer.alpha, answer.certificate
        return HttpReply.of(reply)

    def _certificate(self, _: bytes) -> HttpReply:
        found = self._certified()
        answers = _answers(found)
        for one, answer in zip(answers, found.calibration.answers, strict=True):
            one.words = str(answer.certificate)
        reply = CertificateReply(**asdict(found.facts()), answers=answers)
        if len(answers) == 1:
            reply.certificate, reply.words = answers[0].certificate, answers[0].words
        return HttpReply.of(reply)

    def _calibration(self, _: bytes) -> HttpReply:
        found = self._certified()
        result = found.calibration
        if self._hides_rows and result.adapted is not None:  # a digest lets others test guesses about rows
            nothing, unknown = dict.fromkeys(result.adapted.hidden, -1), dict.fromkeys(result.adapted.digests, "")
            result = replace(result, adapted=replace(result.adapted, hidden=nothing, digests=unknown))
        return HttpReply.of(CalibrationReply(**asdict(found.facts()), calibration=result.to_dict()))

    def _health(self, _: bytes) -> HttpReply:
        status = self._status()
        health = judge_health(status)
        alarm = UNSET if status.alarm is None else status.alarm.raised
        reply = HealthReply(health.healthy, status.phase, health.words, health.links_down, alarm)
        return HttpReply.of(reply, HTTPStatus.OK if health.healthy else HTTPStatus.SERVICE_UNAVAILABLE)

    def _metrics(self, accept: str, _: bytes) -> HttpReply:
        if self._exposition is None:
            from conformesh.mesh.http.metrics import Exposition

            try:
                self._exposition = Exposition(self._snapshot, self._about_process)
            except ImportError:
                words = "metrics need prometheus-client: pip install 'conformesh[mesh]'"
                raise Refused(HTTPStatus.NOT_IMPLEMENTED, words) from None
        body, content_type = self._exposition.text(accept)
        return HttpReply(HTTPStatus.OK, body, content_type)

    def _snapshot(self) -> Snapshot:
        """Return what metrics are made of."""
        from conformesh.mesh.http.metrics import Snapshot

        status, heartbeat, online = self._status(), self.node.heartbeat, self.node.online
        return Snapshot(
            status,
            judge_health(status).healthy,
            None if heartbeat is None else heartbeat.mesh_status(),
            None if heartbeat is None else heartbeat.counts(),
            None if online is None else online.status(),
        )

    def _mesh(self, _: bytes) -> HttpReply:
        if self.node.heartbeat is None:
            raise Refused(HTTPStatus.NOT_IMPLEMENTED, "this node was started alone, and hears of nobody")
        return HttpReply.of(self.node.heartbeat.mesh_status())

    def _recalibrate(self, _: bytes) -> HttpReply:
        if self.node.recalibrate is None:
            raise Refused(HTTPStatus.NOT_IMPLEMENTED, "this node was started without a way to calibrate again")
        try:
            became = self.node.recalibrate()
        except RuntimeError as error:
            raise Refused(HTTPStatus.CONFLICT, f"no new run: {error}") from None
        except OSError as error:  # only a request that is on the disk is acknowledged
            raise Refused(HTTPStatus.SERVICE_UNAVAILABLE, f"the request cannot be stored: {error}") from None
        LOG.info("a local program asked for a new run: %s", became or "accepted")
        return HttpReply.of(AcceptedReply(True, run=UNSET if became is None else became), HTTPStatus.ACCEPTED)

    def _roster(self, body: bytes) -> HttpReply:
        if self.node.accept_roster is None:
            raise Refused(HTTPStatus.NOT_IMPLEMENTED, "this node was started without a way to take rosters")
        try:
            became = self.node.accept_roster(body)
        except ValueError as error:
            self.node.state.count_refused(None, "a roster that is refused")
            raise Refused(HTTPStatus.CONFLICT, f"refused: {error}") from None
        LOG.info("a local program handed over a roster: %s", became)
        return HttpReply.of(AcceptedReply(True, roster=became), HTTPStatus.ACCEPTED)

    def _predict(self, body: bytes) -> HttpReply:
        found = self._certified_to_predict()
        if self._hides_rows and found.calibration.guarantee.adapt is not None:
            words = (
                "sets with adapted scores depend on the rows of this device, which is private: ask at its socket, "
                "which only its owner may open"
            )
            raise Refused(HTTPStatus.NOT_IMPLEMENTED, words)
        return HttpReply.of(self._refuse_in_words(lambda: predict(found, self._adapted, body)))

    def _evaluate(self, body: bytes) -> HttpReply:
        state = self.node.state
        if state.private:
            words = "a private node does not measure its own coverage, which depends on its own examples alone"
            raise Refused(HTTPStatus.NOT_IMPLEMENTED, words)
        found = self._certified_to_predict()
        batch = self._refuse_in_words(lambda: evaluate(found, self._adapted, body))
        coverage = state.count_coverage(found, batch)
        if coverage is None:
            raise Refused(
                HTTPStatus.CONFLICT, "another result was certified meanwhile; nothing was counted: send it again"
            )
        return HttpReply.of(EvaluateReply(batch, coverage))

    def _certified_to_predict(self) -> CertifiedResult:
        try:
            return self._certified()
        except Refused as refusal:
            more = "" if self._adapted is None or self._status().last_error else f"; {WAITS_FOR_A_RUN}"
            raise Refused(refusal.status, f"{refusal}{more}") from None

    def _refuse_in_words(self, reply: Callable[[], _T]) -> _T:
        try:
            return reply()
        except MissingRowsError as error:
            raise Refused(HTTPStatus.SERVICE_UNAVAILABLE, str(error)) from None
        except (ValueError, TypeError, OverflowError, RecursionError) as error:
            raise Refused(HTTPStatus.BAD_REQUEST, str(error)) from None

    def _learning(self) -> OnlineLearning:
        if self.node.online is None:
            raise Refused(HTTPStatus.NOT_IMPLEMENTED, "this node does not learn online: device.toml has no [online]")
        return self.node.online

    def _learn(self, reply: Callable[[OnlineLearning, bytes], Struct], body: bytes) -> HttpReply:
        online = self._learning()
        try:
            return HttpReply.of(reply(online, body))
        except OSError as error:
            raise Refused(HTTPStatus.SERVICE_UNAVAILABLE, str(error)) from None
        except LookupError as error:
            raise Refused(HTTPStatus.CONFLICT, str(error.args[0])) from None
        except (ValueError, TypeError, OverflowError, RecursionError) as error:
            raise Refused(HTTPStatus.BAD_REQUEST, str(error)) from None


def _answers(found: CertifiedResult) -> list[PartThreshold]:
    """Return the threshold of every part and level with its certificate."""
    return [
        PartThreshold(
            part=list(answer.part),
            alpha=float(answer.alpha),
            threshold=as_json_value(answer.threshold),
            certificate=certificate_fields(answer.certificate),
        )
        for answer in found.calibration.answers
    ]


def _described(_: bytes) -> HttpReply:
    from conformesh.mesh.http.openapi import describe_service  # which few programs ask for

    return HttpReply.of(describe_service())
