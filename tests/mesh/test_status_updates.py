"""What a device counts reaches the node's state, as differences and not too often."""

from types import SimpleNamespace

import pytest
from msgspec import to_builtins

from conformesh import Network
from conformesh.mesh.node.state import NodeState
from conformesh.mesh.node.status_updates import CONTACT_SECONDS, UPDATE_INTERVAL, StatusFeed
from conformesh.peer.settings import Counts

NAMES = ("device-00", "device-01", "device-02")


def device(**changes):
    """The middle of a chain of three, with counts that a test moves."""
    network = Network.chain(3).relabelled(NAMES)
    facts = {
        "phase": "running",
        "number": 4,
        "round": 1,
        "lost": frozenset(),
        "counts": Counts(),
        "row": 1,
        "idle": False,
    }
    return SimpleNamespace(**{**facts, "network": network, **changes})


@pytest.fixture
def state():
    return NodeState("device-01", NAMES[::2])


def hear(one, row, frames, size):
    one.counts.received[row] += frames
    one.counts.received_bytes[row] += size


def test_of_an_idle_device_only_counts_are_told(state):
    one = device(idle=True, phase="greeting")
    feed = StatusFeed(state, one)
    hear(one, 0, 2, 100)
    assert feed.update(10.0)
    assert not feed.update(10.0 + UPDATE_INTERVAL / 2)
    shown = to_builtins(state.status())
    assert (shown["run"], shown["phase"], shown["request"]) == (0, "starting", None)
    assert shown["neighbours"]["device-00"]["frames_received"] == 2


def test_differences_reach_the_state(state):
    one = device()
    feed = StatusFeed(state, one)
    hear(one, 0, 2, 100)
    one.counts.sent, one.counts.sent_bytes, one.counts.resent = 5, 300, 1
    one.counts.refused["a frame of another run"] = 2
    assert feed.update(10.0)
    hear(one, 0, 1, 40)
    one.counts.refused["a frame of another run"] += 1
    one.round = 9
    assert feed.update(11.0)
    shown = to_builtins(state.status())
    assert (shown["run"], shown["round"], shown["phase"]) == (4, 9, "calibrating")
    heard = shown["neighbours"]["device-00"]
    assert (heard["frames_received"], heard["bytes_received"], heard["round"]) == (3, 140, 8)
    assert shown["neighbours"]["device-02"]["frames_received"] == 0
    assert shown["sent"] == {"frames": 5, "bytes": 300, "resent_frames": 1}
    assert shown["refused"] == {"a frame of another run": 3}


def test_the_counts_of_a_device_that_takes_no_part_leave_the_phase(state):
    one = device(phase="greeting")
    feed = StatusFeed(state, one)
    state.fail("the scores cannot be read")
    hear(one, 0, 2, 100)
    feed.update_counts(10.0)
    hear(one, 0, 1, 40)
    feed.update_counts(10.0 + UPDATE_INTERVAL / 2)
    shown = to_builtins(state.status())
    assert (shown["run"], shown["phase"]) == (0, "failed")
    assert shown["neighbours"]["device-00"]["frames_received"] == 2


def test_another_device_adds_to_what_the_node_has_counted(state):
    for _ in range(2):
        one = device()
        hear(one, 2, 3, 96)
        StatusFeed(state, one).update(5.0)
    assert to_builtins(state.status())["neighbours"]["device-02"]["frames_received"] == 6


def test_it_looks_when_time_has_passed_or_the_phase_or_the_run_has_changed(state):
    one = device()
    feed = StatusFeed(state, one)
    assert feed.update(10.0)
    one.round = 7
    assert not feed.update(10.0 + UPDATE_INTERVAL / 2)
    assert to_builtins(state.status())["round"] == 1
    one.phase = "finishing"
    assert feed.update(10.0 + UPDATE_INTERVAL / 2)
    one.phase, one.number = "greeting", 5
    assert feed.update(10.0 + UPDATE_INTERVAL / 2)
    assert to_builtins(state.status())["phase"] == "waiting for neighbours"
    assert not feed.update(10.0 + UPDATE_INTERVAL)
    assert feed.update(10.0 + 2 * UPDATE_INTERVAL)


def test_progress_tells_who_is_silent(state):
    one = device()
    feed = StatusFeed(state, one)
    hear(one, 0, 1, 50)
    hear(one, 2, 1, 60)
    feed.update(1.0)
    assert (feed.progress(1.0).heard, feed.progress(1.0).expected, feed.progress(1.0).received) == (2, 2, 110)
    hear(one, 0, 1, 50)
    feed.update(1.5 + CONTACT_SECONDS)
    assert (feed.progress(1.5 + CONTACT_SECONDS).heard, feed.progress(1.5 + CONTACT_SECONDS).expected) == (1, 2)
    one.lost = frozenset({2})
    assert (feed.progress(1.5 + CONTACT_SECONDS).heard, feed.progress(1.5 + CONTACT_SECONDS).expected) == (1, 1)
