"""The client of a running node, for programs on the device that need its threshold and prediction sets.

>>> from conformesh.mesh.http.client import Client
>>> node = Client("device-07")                     # its folder, its socket, or "127.0.0.1:port"
>>> node.threshold(), node.predict(probabilities)  # doctest: +SKIP

Importing it is fast; NumPy is loaded by the first prediction.
"""

from __future__ import annotations

import json
import os
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from conformesh.mesh.http.address import Address, fallback_paths, find_address, is_private
from conformesh.mesh.http.paths import (
    CALIBRATION,
    EVALUATE,
    HEALTH,
    JSON,
    MESH,
    METRICS,
    OBSERVE,
    ONLINE,
    PREDICT,
    PREDICT_NEXT,
    RECALIBRATE,
    ROSTER,
    STATUS,
    THRESHOLD,
    VERBS,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from http.client import HTTPConnection

    from numpy.typing import ArrayLike

    from conformesh.results.certificate import Certificate
    from conformesh.results.result import Result

__all__ = ["Client", "NodeError"]


class NodeError(RuntimeError):
    """A node did not answer, or refused the request.

    Attributes
    ----------
    status
        The HTTP status of a refusal: 400 for a bad request, 503 while nothing is certified; None without an answer.
    """

    def __init__(self, words: str, status: int | None = None) -> None:
        super().__init__(words)
        self.status = status


class Client:
    """Asks one node; safe to share between threads, since every call has its own connection.

    Parameters
    ----------
    address
        The device's folder, its socket, or "127.0.0.1:port". By default the environment variable CONFORMESH_NODE, and
        without that `node.sock` in the working directory.
    timeout
        Seconds to wait for an answer.
    """

    def __init__(self, address: str | os.PathLike[str] | None = None, *, timeout: float = 30.0) -> None:
        self._address = find_address(address)
        self.timeout = timeout

    def __repr__(self) -> str:
        return f"Client({str(self._address)!r})"

    def threshold(self) -> float:
        """Return the certified threshold, which may be inf; of several choose one with ``calibration()[...]``."""
        answer = self._ask(THRESHOLD)
        if "threshold" not in answer:
            return float(self.calibration().threshold)  # raises an error that lists the thresholds
        return float(answer["threshold"])

    def certificate(self) -> Certificate:
        """Return the certificate: what the threshold guarantees, and what that rests on."""
        return self.calibration().answer.certificate

    def calibration(self) -> Result:
        """Return the whole certified result, to predict with where the node cannot be reached."""
        from conformesh.results.result import Result

        return Result.from_dict(self._ask(CALIBRATION)["calibration"], f"the node at {self._address}")

    def predict(
        self,
        outputs: ArrayLike,
        *,
        score: str | Mapping[str, Any] | None = None,
        alpha: float | None = None,
        groups: Sequence[Any] | None = None,
        weight: Sequence[float] | float | None = None,
        as_names: bool = False,
    ) -> Any:
        """Return prediction sets (rows x labels, boolean) or intervals (rows x 2), as `Result.predict` does.

        Parameters
        ----------
        outputs
            Probabilities, logits or predictions: lists, or anything NumPy takes for a table.
        score
            The score's name, or its name and options, where the calibration does not name it.
        alpha, groups, weight
            Which of several thresholds: the level, and the group and the weight of each row, as in `Result.predict`.
        as_names
            Return a tuple of the names of the classes for each row instead, where scores adapt to the device.
        """
        import numpy as np

        from conformesh.files.json_numbers import as_json_value

        try:
            table = np.asarray(outputs)
        except ValueError:
            raise ValueError("predict needs numbers in rows of equal length, got rows of unequal length") from None
        if table.dtype.kind not in "fiub":
            raise TypeError(f"predict needs numbers in rows of equal length, got dtype {table.dtype}")
        table = table.astype(np.float64)
        if np.isnan(table).any():
            raise ValueError("predict cannot use NaN; drop these rows or repair the model")
        request: dict[str, Any] = {"outputs": as_json_value(table.tolist())}
        if score is not None:
            request["score"] = score if isinstance(score, str) else dict(score)
        given = {"alpha": alpha, "groups": groups, "weight": weight}
        request |= {name: np.asarray(value).tolist() for name, value in given.items() if value is not None}
        if as_names:
            request["as_names"] = True
        answer = self._ask(PREDICT, request)
        if as_names:
            return [tuple(names) for names in answer["names"]]
        if "intervals" in answer:
            return np.array([[float(end) for end in row] for row in answer["intervals"]]).reshape(-1, 2)
        sets = np.zeros(table.shape if table.ndim == 2 else (0, 0), np.bool_)
        for row, members in zip(sets, answer["sets"], strict=True):
            row[members] = True
        return sets

    def evaluate(self, outputs: ArrayLike, labels: Sequence[Any], **rows: Any) -> dict[str, Any]:
        """Have the node measure how often its sets hold these labels; return that, and the same of all so far.

        Parameters
        ----------
        outputs
            As in `predict`.
        labels
            The true label of each row: the number of a column or the name of a class, or for regression a number.
        **rows
            `score`, `alpha`, `groups` and `weight`, as in `predict`.

        Returns
        -------
        dict
            ``{"batch": ..., "coverage": ...}``: rows, covered, coverage with its exact 95 % interval, mean size.
        """
        import numpy as np

        from conformesh.files.json_numbers import as_json_value

        given = {name: np.asarray(value).tolist() for name, value in rows.items() if value is not None}
        request = {"outputs": as_json_value(np.asarray(outputs).tolist()), "labels": np.asarray(labels).tolist()}
        return dict(self._ask(EVALUATE, request | given))

    def predict_next(self, outputs: ArrayLike | None = None) -> dict[str, Any]:
        """Return {"example", "threshold"} for the next example of a node that learns online.

        With its outputs also {"set", "size"} or {"interval"}. Report its label by `observe`, with this id.
        """
        return self._ask(PREDICT_NEXT, _outputs_field(outputs))

    def observe(
        self,
        score: float | None = None,
        *,
        outputs: ArrayLike | None = None,
        label: float | None = None,
        example: str | None = None,
        then: ArrayLike | None = None,
    ) -> dict[str, Any]:
        """Report the label of an example to a node that learns online; return its judgement and the counts so far.

        With an id the report may be repeated, for instance after a timeout: it is counted once.

        Parameters
        ----------
        score
            The score of the label; or `outputs` of the model for this one example, and its `label`.
        example
            The id of the prediction that the label belongs to; by default the current threshold judges it.
        then
            Outputs for the next example; the reply then has its set or interval under "next".
        """
        request: dict[str, Any] = {} if score is None else {"score": float(score)}
        request |= {} if outputs is None else _outputs_field(outputs)
        request |= {} if label is None else {"label": float(label)}
        request |= {} if example is None else {"example": example}
        request |= {} if then is None else {"next": _outputs_field(then)}
        return self._ask(OBSERVE, request)

    def online(self) -> dict[str, Any]:
        """Return what the node has learnt online: steps, misses, bounds, and the counts of each device."""
        return self._ask(ONLINE)

    def health(self) -> dict[str, Any]:
        """Return {"healthy", "phase", "reasons", "links_down"}, and "alarm" if the node has a drift alarm."""
        return self._ask(HEALTH, expected=(200, 503))  # 503: it answers, and is unhealthy

    def status(self) -> dict[str, Any]:
        """Return everything that the node reports about itself."""
        return self._ask(STATUS)

    def mesh(self) -> dict[str, Any]:
        """Return what the node knows about all devices: {"device", "devices", "edges", "links_down"}."""
        return self._ask(MESH)

    def metrics(self) -> str:
        """Return the metrics in the text format of Prometheus."""
        return self._exchange(METRICS, None)[1].decode()

    def recalibrate(self) -> str:
        """Request a new run; return what happens: it starts, joins a requested one, or waits for the one under way."""
        return str(self._ask(RECALIBRATE, expected=(202,)).get("run", "accepted"))

    def submit_roster(self, roster: bytes) -> str:
        """Give the node a newer roster, the content of ``roster.json``; return what the node does with it."""
        return str(self._ask(ROSTER, roster, expected=(202,)).get("roster", "accepted"))

    def _ask(
        self, path: str, request: dict[str, Any] | bytes | None = None, expected: tuple[int, ...] = (200,)
    ) -> dict[str, Any]:
        body = json.dumps(request, allow_nan=False).encode() if isinstance(request, dict) else request
        status, text = self._exchange(path, body)
        try:
            answer = json.loads(text)
        except ValueError:
            answer = None
        if not isinstance(answer, dict) or (status not in expected and "error" not in answer):
            raise NodeError(f"what answers at {self._address} is not a conformesh node (status {status})", status)
        if "error" in answer:
            raise NodeError(f"the node at {self._address} says: {answer['error']}", status)
        return answer

    def _exchange(self, path: str, body: bytes | None) -> tuple[int, bytes]:
        from http.client import HTTPException

        connection = _connection(self._address, self.timeout)
        try:
            try:
                connection.connect()
            except OSError as error:
                raise NodeError(
                    f"no node answers at {self._address}: is `conformesh node` running? ({error.strerror or error})"
                ) from None
            with suppress(BrokenPipeError):  # the node may refuse a request half-way; its reply says why
                connection.request(VERBS[path], path, body, {} if body is None else {"Content-Type": JSON})
            answer = connection.getresponse()
            return answer.status, answer.read()
        except (OSError, HTTPException) as error:
            raise NodeError(f"the node at {self._address} broke off: {str(error) or type(error).__name__}") from None
        finally:
            connection.close()


def _outputs_field(outputs: ArrayLike | None) -> dict[str, Any]:
    """Return the field of a request with the outputs of one example, or nothing."""
    if outputs is None:
        return {}
    import numpy as np

    from conformesh.files.json_numbers import as_json_value

    return {"outputs": as_json_value(np.asarray(outputs, dtype=np.float64).tolist())}


def _connection(address: Address, timeout: float) -> HTTPConnection:
    from http.client import HTTPConnection

    class LocalConnection(HTTPConnection):
        def connect(self) -> None:
            try:
                self._connect_to(address)
            except (FileNotFoundError, ConnectionRefusedError):
                for other in fallback_paths(address):  # where a node listens that started on a read-only or full disk
                    if is_private(other.parent) and other.exists():
                        with suppress(FileNotFoundError, ConnectionRefusedError):
                            self._connect_to(Address(path=other))
                            return
                raise

        def _connect_to(self, target: Address) -> None:
            self.close()
            self.sock = target.new_socket()
            self.sock.settimeout(timeout)
            self.sock.connect(target.target())

    return LocalConnection("localhost")
