"""What `mesh status` makes of what several nodes know: the best of it, a code and a sentence."""

import json
from contextlib import ExitStack, contextmanager

import pytest
from click.testing import CliRunner
from msgspec import convert

from conformesh import Network
from conformesh.cli import app
from conformesh.cli.mesh_status import _COLUMNS
from conformesh.mesh.http.replies import NodeInterface
from conformesh.mesh.http.server import Service
from conformesh.mesh.node.status import MeshStatus
from conformesh.mesh.overview import ask_mesh
from tests.mesh.nodes import short_folder, state
from tests.mesh.real import make_mesh

NAMES = ("device-00", "device-01", "device-02")


class Known:
    """A node that knows what it is told to know."""

    def __init__(self, name, rows, roster=1, links_down=()):
        self.name, self.rows, self.roster, self.links_down = name, rows, roster, [*links_down]

    def mesh_status(self):
        edges = [["device-00", "device-01"]]
        return convert(
            {"device": self.name, "devices": self.rows, "edges": edges, "links_down": self.links_down}, MeshStatus
        )


def known(name, health="healthy", ago=0.5, via="neighbour", **more):
    facts = {"phase": "certified", "reasons": [], "alarms": [], "run": 3, "round": 9, "roster": 1, "certified_run": 3}
    facts |= {"threshold": 0.25, "common": True, "about": 3, "devices": 3}
    row = {"name": name, "health": health, "via": via, "heard_seconds_ago": ago, **facts}
    if health == "unknown":
        row |= dict.fromkeys(facts) | {
            "reasons": [],
            "alarms": [],
            "devices": 3,
            "heard_seconds_ago": None,
            "via": "nobody",
        }
    return row | more


def own(name, **more):
    return known(name, ago=0.0, via="itself", **more)


@contextmanager
def answering(*nodes):
    """The folder of a mesh, insecure, in which these nodes answer."""
    with short_folder() as root, ExitStack() as stack:
        folders, _ = make_mesh(root / "m", Network.chain(3), insecure=True)
        for node in nodes:
            folder = next(folder for folder in folders if folder.name == node.name)
            stack.enter_context(Service(NodeInterface(state(), heartbeat=node), folder))
        yield root / "m"


def status(*words):
    return CliRunner().invoke(app, ["mesh", "status", *map(str, words)])


def test_all_is_well():
    with answering(
        Known("device-00", [own("device-00"), known("device-01"), known("device-02", via="hearsay")])
    ) as root:
        found = status(root)
        assert found.exit_code == 0
        lines = found.stdout.splitlines()
        assert lines[0].split() == [*_COLUMNS]
        assert lines[-1] == "3 devices, all healthy; threshold 0.25 of run 3, about 3 of 3 devices"
        shown = json.loads(status(root, "--json").stdout)
        assert (shown["ok"], shown["code"], shown["asked"]) == (True, 0, ["device-00"])
        assert shown["edges"] == [["device-00", "device-01"]]


def test_the_best_of_what_is_known_is_shown():
    first = Known("device-00", [own("device-00"), known("device-01", "silent", 9.0), known("device-02", "unknown")])
    second = Known("device-01", [known("device-00", "silent", 5.0), own("device-01"), known("device-02", ago=0.7)])
    with answering(first, second) as root:
        found = ask_mesh(root)
    assert [(device.name, device.health, device.via) for device in found.devices] == [
        ("device-00", "healthy", "itself"),
        ("device-01", "healthy", "itself"),
        ("device-02", "healthy", "neighbour"),
    ]
    assert (found.code, found.asked) == (0, ["device-00", "device-01"])


def test_the_newest_roster_says_who_is_there():
    old = Known("device-00", [own("device-00"), known("device-01"), known("device-02")])
    new = Known("device-01", [own("device-01", roster=2), known("device-02")])
    with answering(old, new) as root:
        assert [device.name for device in ask_mesh(root).devices] == ["device-01", "device-02"]


@pytest.mark.parametrize(
    ("row", "words"),
    [
        (known("device-02", "silent", 8.0), "3 devices, 2 healthy; device-02 is silent; threshold 0.25"),
        (known("device-02", "unknown"), "3 devices, 2 healthy; device-02 is unknown"),
        (known("device-02", "unhealthy", reasons=["scores"]), "device-02 is unhealthy"),
        (
            known("device-02", threshold=0.5),
            "all healthy; thresholds of run 3 differ: 0.25 on {device-00, device-01}, 0.5 on {device-02}",
        ),
    ],
    ids=["silent", "unknown", "unhealthy", "differing"],
)
def test_what_is_wrong_ends_with_1_and_is_named(row, words):
    with answering(Known("device-00", [own("device-00"), known("device-01"), row])) as root:
        found = status(root)
        assert found.exit_code == 1
        assert words in found.stdout.splitlines()[-1]
        assert ", ".join(row["reasons"]) in found.stdout
        if row["health"] in ("silent", "unknown"):
            assert "nobody listens" in " ".join(found.stdout.split())


def test_links_that_are_down_are_named_once_and_end_with_1():
    """Both ends of a link say so; all devices are healthy, since others have heard of them."""
    rows = [own("device-00"), known("device-01"), known("device-02")]
    other = [known("device-00"), own("device-01"), known("device-02")]
    nodes = Known("device-00", rows, links_down=["device-01"]), Known("device-01", other, links_down=["device-00"])
    with answering(*nodes) as root:
        found = status(root)
        assert found.exit_code == 1
        assert "3 devices, all healthy; links down: device-00 - device-01; threshold" in found.stdout.splitlines()[-1]
        shown = ask_mesh(root).to_dict()
        assert shown["links_down"] == [["device-00", "device-01"], ["device-01", "device-00"]]


def test_thresholds_that_may_differ_and_those_of_other_runs_are_no_alarm():
    with answering(
        Known(
            "device-00",
            [
                own("device-00"),
                known("device-01", threshold=0.5, common=False),
                known("device-02", certified_run=2, threshold=7),
            ],
        )
    ) as root:
        found = ask_mesh(root)
    assert (found.code, found.words) == (0, "3 devices, all healthy; thresholds of runs 2, 3")


def test_nobody_to_ask_is_3():
    with answering() as root:
        found = status(root)
        assert found.exit_code == 3
        assert found.stdout.count("unknown") == 3
        assert "nobody could be asked: no node answers at" in found.stdout.splitlines()[-1]
        found = status(root / "device-00" / "node.sock", "--json")
        assert (found.exit_code, json.loads(found.stdout)["devices"]) == (3, [])


def test_a_folder_that_cannot_be_read_hides_nobody():
    with answering(Known("device-00", [own("device-00"), known("device-01"), known("device-02")])) as root:
        (root / "device-01" / "device.toml").write_text("nonsense")
        assert status(root).exit_code == 0


def test_a_mistake_is_one_line():
    found = status("10.0.0.1:80")
    assert found.exit_code == 2
    assert "only programs on its own device" in found.stderr
    assert len(found.stderr.splitlines()) == 1


def test_watching_looks_again_until_it_is_interrupted(monkeypatch):
    looks = []

    def sleep(seconds):
        looks.append(seconds)
        if len(looks) == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr("conformesh.cli.mesh_status.time.sleep", sleep)
    with answering(Known("device-00", [own("device-00"), known("device-01"), known("device-02", "silent")])) as root:
        found = status(root, "--watch")
    assert found.exit_code == 1
    assert found.stdout.count("device-02 is silent") == 3
