"""From what a node says of itself to what a page shows of it."""

from msgspec.structs import replace

from conformesh.mesh.node.status import DeviceStatus, Gathering, Phase, SearchStatus
from conformesh.view.statuses import (
    byzantine_reasons,
    device_details,
    log_lines,
    relayed_fields,
    search_bracket,
    status_fields,
)
from tests.mesh.nodes import Clock, calibration, state

ALL = ("a", "b", "c")


def test_a_certified_node():
    fields = status_fields(state().status())
    assert fields == {
        "health": "healthy",
        "phase": "certified",
        "threshold": 0.75,
        "kind": "counted",
        "about": "everybody",
        "run": 3,
        "round": 0,
        "heard": None,
        "roster": 0,
        "sent": 0,
        "problem": None,
    }


def test_a_node_without_a_threshold_shows_none():
    node = state(certified=False)
    node.count_sent(size=70)
    fields = status_fields(node.status())
    assert (fields["health"], fields["phase"], fields["sent"]) == ("unhealthy", "calibrating", 70)
    assert [fields[name] for name in ("threshold", "kind", "about")] == [None] * 3


def test_infinity_is_the_word_for_it():
    assert status_fields(state(threshold=float("inf")).status())["threshold"] == "inf"


def test_what_is_wrong_is_said_once():
    node = state()
    node.fail("b is lost")
    node.note_error("b is lost")
    fields = status_fields(node.status())
    assert (fields["health"], fields["phase"], fields["problem"]) == ("unhealthy", "failed", "b is lost")
    assert fields["threshold"] == 0.75  # the last one stays


def test_health_is_that_of_the_node_itself():
    from conformesh.mesh.http.replies import HttpReplies, NodeInterface

    broken = state()
    broken.fail("b is lost")
    for node in (state(), state(certified=False), broken):
        is_healthy = HttpReplies(NodeInterface(node))._health(b"").status == 200
        assert status_fields(node.status())["health"] == ("healthy" if is_healthy else "unhealthy")


def test_whom_a_threshold_is_about():
    """Never everybody where it is not, nor as if it were of now where it is of before."""
    now = state().status()
    now.certified.about, now.certified.reported = "reported", ["a", "b"]
    now.gathering = Gathering(["a", "b"], 20, [], {}, {}, [])
    fields = status_fields(now)
    assert (fields["about"], fields["heard"]) == ("2 of 20 heard: {a, b}", 2)
    now.certified.reported = [f"device-{k}" for k in range(12)]
    assert status_fields(now)["about"] == (
        "12 of 20 heard: {device-0, device-1, device-2, device-3, device-4, ... device-11} (12 devices)"
    )
    old = state().status()
    old.certified.restored = True
    old.roster.number = 2
    lost = replace(old.certified, about="survivors", survivors=["a", "b"], lost=["c"])
    assert status_fields(replace(old, certified=lost))["about"].startswith("2 of 3, without {c}")
    assert status_fields(old)["about"] == "everybody, from before the last start (run 3), of roster 0"


def test_byzantine_devices_and_who_calls_them_so():
    quiet = state().status()
    caller = replace(quiet, gathering=Gathering([], 3, [], {}, {}, ["c"]))
    assert byzantine_reasons({"a": caller, "b": caller, "c": quiet}) == {"c": "has contradicted itself, say {a, b}"}


def test_the_bracket_is_that_of_who_is_furthest():
    def search(run, round_, low):
        bracket = SearchStatus(low=low, high="inf", below=3, estimate=1.0)
        return replace(state().status(), run=run, round=round_, search=bracket)

    idle = replace(state().status(), run=9)
    assert search_bracket([search(2, 5, 0.1), search(2, 9, 0.2), search(1, 50, 0.3), idle]) == (0.2, "inf", 3, None)
    assert search_bracket([idle, idle]) is None


def test_the_log_has_what_is_new():
    node = state(certified=False)
    first = node.status()
    assert log_lines(None, first) == [("info", "calibrating, run 3")]
    assert log_lines(first, first) == []
    node.certify(calibration())
    node.note_error("a frame was refused")
    second = node.status()
    assert log_lines(first, second) == [("info", "certified, run 3"), ("warning", "a frame was refused")]
    node.set_roster(2, 1)
    node.fail("b is lost")
    third = node.status()
    assert log_lines(second, third) == [
        ("error", "failed, run 3"),
        ("warning", "b is lost"),
        ("info", "roster 2 is in force"),
    ]


def test_details_name_rows_of_neighbours():
    clock = Clock()
    node = state(clock=clock)
    node.count_received("b", size=300, round=2, frames=3)
    node.count_refused(None, "a frame of another run", 2)
    clock.pass_by(5.0)
    found = device_details(node.status(), {"a": 0, "b": 7})
    assert found["neighbours"][0] == {
        "row": 7,
        "name": "b",
        "last_heard_seconds_ago": 5.0,
        "round": 2,
        "frames_received": 3,
        "bytes_received": 300,
    }
    assert found["neighbours"][1]["row"] == -1
    facts = dict(found["facts"])
    assert facts["state"] == "certified for 5 s"
    assert facts["refused"] == "a frame of another run: 2"
    assert facts["threshold"] == "0.75"


def test_hearsay():
    record = {"health": "silent", "phase": Phase.CERTIFIED, "run": 4, "round": 9, "threshold": 0.5, "about": 20}
    record |= {"roster": 1, "heard_seconds_ago": 3.0, "via": "hearsay"}
    fields = relayed_fields(replace(DeviceStatus.unknown("b", 20), **record))
    assert fields == {
        "health": "silent",
        "phase": "certified",
        "threshold": 0.5,
        "run": 4,
        "round": 9,
        "roster": 1,
        "about": "20 devices",
    }
