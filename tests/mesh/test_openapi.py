"""The description of a node's service is what the service does: every answer is checked against it."""

import json
import math

import pytest
from hypothesis import HealthCheck, Phase, seed, settings

from conformesh.mesh.http.openapi import OPERATIONS, SCHEMAS, describe_service
from conformesh.mesh.http.paths import VERBS
from conformesh.mesh.node.heartbeat import Heartbeat
from conformesh.mesh.node.online import OnlineLearning
from conformesh.scores import AbsoluteResidual
from tests.campaigns import LONG

from .meshes import config
from .nodes import asked, serving, short_folder, state

schemathesis = pytest.importorskip("schemathesis", reason="needs schemathesis, of the extra test")
from schemathesis.config import SchemathesisConfig  # noqa: E402

# A table may be right by the schema and wrong for the model: other columns, or numbers that are no probabilities. And a
# roster that is an object may be none of this mesh.
REFUSALS = [200, 202, 400, 409, 415, 501, 503]
CONFIG = SchemathesisConfig.from_dict(
    {
        "checks": {
            "not_a_server_error": {"expected-statuses": ["2xx", "4xx", 501, 503]},  # nothing certified, or no way to
            "positive_data_acceptance": {"expected-statuses": REFUSALS},
            "negative_data_rejection": {"expected-statuses": [code for code in REFUSALS if code >= 400]},
        }
    }
)
API = schemathesis.openapi.from_dict(describe_service(), config=CONFIG)
NODES = {
    "certified": state,
    "intervals": lambda: state(score=AbsoluteResidual()),
    "infinite": lambda: state(threshold=math.inf),
    "uncertified": lambda: state(certified=False),
}


def hand(body):
    raise ValueError("no roster of this mesh")


@pytest.fixture(scope="module", params=NODES)
def service(request):
    node = NODES[request.param]()
    heartbeat = Heartbeat(config(), node)
    with short_folder() as folder:
        scale = {"scale": 0.05} if request.param == "infinite" else {}
        learning = {"learning": 0.1, "local": 0.05, "bound": 1.0, "alarm": 0.05, **scale}
        online = OnlineLearning(config(folder=folder, score="lac", online=learning), node)
        more = {"recalibrate": lambda: "started", "accept_roster": hand, "heartbeat": heartbeat, "online": online}
        with serving(node, where="tcp", **more) as service:
            yield service
        online.close()


def bounded(examples):
    """As many examples as said for each operation, the same ones every time."""
    return lambda test: seed(15)(
        settings(
            max_examples=examples,
            deadline=None,
            database=None,
            derandomize=False,
            phases=[Phase.explicit, Phase.generate],
            suppress_health_check=[*HealthCheck],
        )(test)
    )


@API.parametrize()
@bounded(15)
def test_answers_are_as_described(case, service):
    case.call_and_validate(base_url=f"http://{service.address}")


@pytest.mark.slow
@API.parametrize()
@bounded(200 * LONG)
def test_answers_are_as_described_at_length(case, service):
    case.call_and_validate(base_url=f"http://{service.address}")


def test_an_answer_that_is_not_as_described_is_seen():
    """The check itself: a description that asks for more than a node says goes red."""
    wrong = json.loads(json.dumps(describe_service()))
    wrong["components"]["schemas"]["HealthReply"]["required"].append("mood")
    case = schemathesis.openapi.from_dict(wrong)["/health"]["GET"].Case()
    with serving(where="tcp") as service, pytest.raises(BaseExceptionGroup, match='"mood" is a required property'):
        case.call_and_validate(base_url=f"http://{service.address}")


def test_every_route_is_described_and_nothing_else():
    assert {*OPERATIONS} == {*VERBS}
    paths = describe_service()["paths"]
    assert {(path, verb.upper()) for path, verbs in paths.items() for verb in verbs} == {*VERBS.items()}


def test_the_node_serves_it():
    with serving() as service:
        assert asked(service, "GET", "/openapi.json") == (200, json.loads(json.dumps(describe_service())))


def test_every_schema_is_used():
    text = json.dumps(describe_service())
    assert [name for name in SCHEMAS if f'"#/components/schemas/{name}"' not in text] == []
