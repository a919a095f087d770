"""The Python client of a node."""

import math
import socket
import subprocess
import sys
import threading

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from conformesh.mesh.http.client import Client, NodeError
from conformesh.mesh.node.state import NodeState
from conformesh.scores import APS, CQR, LAC, RAPS, AbsoluteResidual, Logit, Margin, NormalisedResidual

from .nodes import calibration, serving, state


@pytest.fixture(scope="module")
def node():
    return NodeState("a")


@pytest.fixture(scope="module")
def client(node):
    with serving(node) as service:
        yield Client(service.address.path.parent)


PROBABILITIES = [LAC(), Margin(), APS(), RAPS(k_reg=1), APS(randomised=True, seed=4)]
thresholds = st.one_of(st.floats(0, 2), st.just(math.inf), st.floats(-1, 0))


@st.composite
def tables(draw):
    weights = draw(arrays.arrays(np.float64, st.tuples(st.integers(1, 6), st.integers(2, 6)), elements=st.floats(0, 1)))
    table = weights + 1e-3
    table /= table.sum(axis=1, keepdims=True)
    return table.astype(draw(st.sampled_from([np.float64, np.float32])))


@settings(max_examples=150)
@given(table=tables(), threshold=thresholds, score=st.sampled_from(PROBABILITIES))
def test_sets_equal_those_of_the_calibration(node, client, table, threshold, score):
    made = calibration(threshold, score)
    node.certify(made)
    sets = client.predict(table)
    np.testing.assert_array_equal(sets, made.predict(table), strict=True)
    np.testing.assert_array_equal(client.predict(table.astype(float).tolist()), sets)


@settings(max_examples=50)
@given(
    table=arrays.arrays(
        np.float64, st.tuples(st.integers(1, 5), st.integers(1, 5)), elements=st.floats(allow_nan=False)
    ),
    threshold=st.floats(allow_nan=False),
)
def test_logits_may_be_infinite(node, client, table, threshold):
    made = calibration(threshold, Logit())
    node.certify(made)
    np.testing.assert_array_equal(client.predict(table), made.predict(table), strict=True)
    assert client.threshold() == threshold


@settings(max_examples=50)
@given(
    rows=arrays.arrays(np.float64, st.tuples(st.integers(0, 5), st.just(2)), elements=st.floats(-1e6, 1e6)),
    threshold=thresholds,
    score=st.sampled_from([AbsoluteResidual(), NormalisedResidual(), CQR()]),
)
def test_intervals_equal_those_of_the_calibration(node, client, rows, threshold, score):
    made = calibration(threshold, score)
    node.certify(made)
    outputs = rows[:, 0] if score.name == "absolute-residual" else np.sort(np.abs(rows) + 1.0, axis=1)
    if len(outputs):
        np.testing.assert_array_equal(client.predict(outputs), made.predict(outputs), strict=True)
    if score.name == "absolute-residual":
        np.testing.assert_array_equal(client.predict(outputs[:, None]), made.predict(outputs), strict=True)


def test_no_rows_are_no_sets(node, client):
    node.certify(calibration())
    assert client.predict([]).shape == (0, 0)
    assert client.predict(np.empty((0, 4))).shape == (0, 4)


def test_a_large_table(node, client):
    made = calibration(0.9)
    node.certify(made)
    table = np.random.default_rng(0).dirichlet(np.ones(100), size=3000)
    np.testing.assert_array_equal(client.predict(table), made.predict(table))
    with pytest.raises(NodeError, match="send fewer rows at a time") as refused:
        client.predict(np.tile(table, (4, 1)))
    assert refused.value.status == 413


def test_the_score_may_be_named_where_the_calibration_does_not(node, client):
    made = calibration(0.75, None)
    node.certify(made)
    table = [[0.5, 0.3, 0.2]]
    with pytest.raises(NodeError, match="add 'score', one of lac, logit") as refused:
        client.predict(table)
    assert refused.value.status == 400
    for score in (LAC(), RAPS(penalty=0.1)):
        named = {"name": score.name, **score.options()}
        np.testing.assert_array_equal(client.predict(table, score=named), made.predict(table, score=score))
    np.testing.assert_array_equal(client.predict(table, score="lac"), made.predict(table, score=LAC()))


@pytest.mark.parametrize("threshold", [0.1 + 0.2, math.inf, -math.inf])
def test_the_result_comes_back_whole(node, client, threshold):
    made = calibration(threshold)
    node.certify(made)
    assert client.threshold() == threshold
    assert client.certificate() == made.certificate
    assert client.calibration().to_dict() == made.to_dict()
    assert client.status()["certified"]["method"] == "e-dcp"
    assert "conformesh_threshold" in client.metrics()
    assert repr(client).endswith("node.sock')")


def test_what_is_no_table_of_numbers_is_refused_before_it_is_sent():
    client = Client("127.0.0.1:1")
    with pytest.raises(ValueError, match="NaN"):
        client.predict([[math.nan, 1.0]])
    with pytest.raises(TypeError, match="needs numbers"):
        client.predict([["a"]])
    with pytest.raises(ValueError, match="unequal length"):
        client.predict([[0.5, 0.5], [1.0]])


def test_a_node_without_a_threshold_says_so():
    called = threading.Event()
    with serving(state(certified=False), where="tcp", recalibrate=called.set) as service:
        client = Client(str(service.address))
        with pytest.raises(NodeError, match=r"says: no threshold is certified yet \(calibrating") as refused:
            client.threshold()
        assert refused.value.status == 503
        assert client.health()["healthy"] is False
        client.recalibrate()
        assert called.is_set()


def test_the_environment_names_the_node(monkeypatch):
    with serving() as service:
        monkeypatch.setenv("CONFORMESH_NODE", str(service.address))
        assert Client().threshold() == 0.75
        assert Client().health()["healthy"] is True


def test_nobody_there_is_said_in_words(tmp_path, monkeypatch):
    monkeypatch.delenv("CONFORMESH_NODE", raising=False)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(NodeError, match=r"no node answers at node.sock: is `conformesh node` running\?") as nobody:
        Client().threshold()
    assert nobody.value.status is None


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (b"", "broke off"),
        (b"SSH-2.0-OpenSSH\r\n", "broke off"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello", "not a conformesh node"),
        (b"HTTP/1.1 404 Not Found\r\nContent-Length: 2\r\n\r\n{}", "not a conformesh node"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 500\r\n\r\n{", "broke off"),
    ],
)
def test_somebody_else_there_is_said_in_words(answer, words):
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def once():
            connection, _ = listener.accept()
            with connection:
                connection.recv(1000)
                connection.sendall(answer)

        thread = threading.Thread(target=once)
        thread.start()
        with pytest.raises(NodeError, match=words):
            Client(f"127.0.0.1:{listener.getsockname()[1]}").threshold()
        thread.join()


def test_importing_the_client_is_light():
    code = "import sys, conformesh.mesh.http.client; print(' '.join(sys.modules))"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert not {"numpy", "scipy", "numba", "http.client", "ssl", "conformesh.results.calibration"} & {*loaded}
