"""What a node knows about itself."""

import json
import math
import threading

import pytest
from msgspec import to_builtins

from conformesh.mesh.node.certified_result import CertifiedResult
from conformesh.mesh.node.neighbour_table import MOST_REASONS
from conformesh.mesh.node.state import NodeState
from conformesh.mesh.node.status import OTHER, Phase

from .nodes import Clock, calibration, state


def test_a_fresh_node_is_starting_and_knows_its_neighbours():
    shown = to_builtins(NodeState("a", ("b",)).status())
    assert shown["phase"] == "starting"
    assert shown["certified"] is None
    assert shown["last_error"] is None
    assert shown["neighbours"]["b"] == {
        "last_heard_seconds_ago": None,
        "round": None,
        "frames_received": 0,
        "bytes_received": 0,
        "refused": {},
        "up": True,
    }


def test_a_phase_keeps_its_start_until_it_changes():
    clock = Clock()
    node = state(certified=False, clock=clock)
    clock.pass_by(5)
    node.enter_phase(Phase.CALIBRATING)
    assert to_builtins(node.status())["seconds_in_phase"] == 5
    node.enter_phase(Phase.WAITING)
    shown = to_builtins(node.status())
    assert (shown["phase"], shown["seconds_in_phase"]) == ("waiting for neighbours", 0)
    assert shown["since"] == "2023-11-14T22:13:25.000Z"


def test_traffic_is_counted_per_neighbour():
    clock = Clock()
    node = state(certified=False, clock=clock)
    node.count_received("b", size=100, round=4)
    node.count_received("b", size=50)
    node.count_refused("b", "old round")
    node.count_refused("b", "old round")
    node.count_refused("nobody", "unknown device")
    node.count_refused(None, "not a frame")
    node.count_sent(size=70, frames=2)
    node.count_sent(size=30, again=1)
    node.set_round(5)
    clock.pass_by(2.5)
    shown = to_builtins(node.status())
    assert shown["neighbours"]["b"] == {
        "last_heard_seconds_ago": 2.5,
        "round": 4,
        "frames_received": 2,
        "bytes_received": 150,
        "refused": {"old round": 2},
        "up": True,
    }
    assert shown["refused"] == {"unknown device": 1, "not a frame": 1}
    assert shown["sent"] == {"frames": 3, "bytes": 100, "resent_frames": 1}
    assert (shown["run"], shown["round"]) == (3, 5)
    node.begin_run(4)
    shown = to_builtins(node.status())
    assert (shown["run"], shown["round"], shown["neighbours"]["b"]["round"]) == (4, 0, None)


def test_reasons_stay_few_whatever_strangers_send():
    node = state(certified=False)
    for i in range(10 * MOST_REASONS):
        node.count_refused(None, f"reason {i}")
    reasons = to_builtins(node.status())["refused"]
    assert len(reasons) == MOST_REASONS + 1
    assert reasons[OTHER] == 9 * MOST_REASONS


def test_certifying_forgets_the_error_and_failing_keeps_the_threshold():
    node = state(certified=False)
    node.note_error("b was late")
    assert node.phase is Phase.CALIBRATING
    made = node.certify(calibration(), roster=("a", "b"), run=7)
    shown = to_builtins(node.status())
    assert (made.run, made.roster, made.made, made.restored) == (7, ("a", "b"), 1_700_000_000.0, False)
    assert shown["last_error"] is None
    assert shown["certified"]["devices"] == 2
    assert shown["run"] == 7
    node.fail("two lines\nof words")
    shown = to_builtins(node.status())
    assert (shown["phase"], shown["last_error"]) == ("failed", "two lines of words")
    assert node.certified is made


def test_a_restored_result_leaves_the_phase_alone():
    node = NodeState("a")
    node.restore(CertifiedResult(calibration(), 5, ("a",), 1.0, restored=True))
    shown = to_builtins(node.status())
    assert (shown["phase"], shown["run"], shown["certified"]["restored"]) == ("starting", 5, True)


def test_infinity_is_text_and_nan_is_refused():
    node = state(certified=False)
    node.certify(calibration(math.inf))
    assert json.loads(json.dumps(to_builtins(node.status()), allow_nan=False))["certified"]["threshold"] == "inf"
    with pytest.raises(ValueError, match="got NaN"):
        node.certify(calibration(math.nan))
    with pytest.raises(ValueError, match="got NaN"):
        node.restore(CertifiedResult(calibration(math.nan), 5, ("a",), 1.0))


def test_many_threads_lose_no_count():
    node = state(certified=False)
    ready = threading.Barrier(8)

    def work(name):
        ready.wait()
        for i in range(300):
            node.count_received(name, size=2, round=i)
            node.count_sent(size=1)
            node.count_refused(name, "late")
            to_builtins(node.status())

    threads = [threading.Thread(target=work, args=("bc"[i % 2],)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    shown = to_builtins(node.status())
    assert [shown["neighbours"][name]["frames_received"] for name in "bc"] == [1200, 1200]
    assert [shown["neighbours"][name]["refused"]["late"] for name in "bc"] == [1200, 1200]
    assert shown["sent"]["bytes"] == 2400
