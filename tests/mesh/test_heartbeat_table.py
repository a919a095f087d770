"""Heartbeats: everybody hears of everybody, the newest counts, and a Byzantine device cannot speak for a neighbour."""

import math

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from conformesh import Network
from conformesh.mesh.node.health import HEALTH_CODES
from conformesh.mesh.node.heartbeat import share_status
from conformesh.mesh.node.heartbeat_table import (
    LARGEST_HEARTBEAT,
    MOST_RELAYED_RECORDS,
    PHASES,
    HeartbeatMessage,
    HeartbeatRecord,
    SharedStatus,
    StatusTable,
)
from conformesh.mesh.node.state import NodeState
from conformesh.mesh.node.status import Trouble
from conformesh.peer.settings import FAILURES

from .heartbeats import CALM, World, statuses
from .nodes import calibration, state

SLOW = pytest.mark.slow
SICK = msgspec.structs.replace(CALM, healthy=False, codes=1)
NAMES = ("a", "b", "c", "d")


def chain():
    """The first of a-b-c-d, which hears b alone."""
    one = StatusTable("a", 1.0, 7)
    one.set_roster(NAMES, ["b"], 1)
    return one


def record(name, start=5, beat=1, age=0, status=CALM):
    return HeartbeatRecord(NAMES.index(name), start, beat, age, status)


def packed(own, *others, roster=1):
    return msgspec.msgpack.encode(HeartbeatMessage(1, roster, own, list(others)))


def row(one, name, now):
    return {row["name"]: row for row in statuses(one, CALM, now)}[name]


# --- how news travels -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("network", [Network.chain(10), Network.torus(4, 5), Network.star(8)], ids=lambda n: n.name)
def test_everybody_hears_of_everybody_and_soon(network):
    world = World(network)
    world.pass_by(world.window * (network.diameter + 2))
    for name in network.ids:
        shown = world.shown(name)
        assert {row["health"] for row in shown.values()} == {"healthy"}
        assert shown[name]["via"] == "itself"
        near = world.devices[name].neighbours
        assert {other for other, row in shown.items() if row["via"] == "neighbour"} == {*near}
        assert all(row["heard_seconds_ago"] <= world.window * (network.diameter + 2) for row in shown.values())


@pytest.mark.parametrize("network", [Network.chain(6), Network.torus(4, 5)], ids=lambda n: n.name)
def test_who_stops_is_silent_everywhere_after_two_beats_and_nobody_else_is(network):
    world = World(network)
    world.pass_by(5.0)
    gone = network.ids[2]
    world.down.add(gone)
    others = [name for name in network.ids if name != gone and name in network.ids[:2]]  # the part that can be heard
    world.pass_by(0.9)
    assert {world.health(name, gone) for name in others} == {"healthy"}
    world.pass_by(1.2 + world.window * network.diameter)
    assert {world.health(name, gone) for name in others} == {"silent"}
    assert world.shown(others[0])[gone]["threshold"] == 0.5  # what it said last
    assert {world.health(others[0], name) for name in others} == {"healthy"}


def test_nobody_is_silent_while_all_beat():
    """Sixty devices on a chain, where news goes a long way: whoever is asked, and whenever."""
    world = World(Network.chain(60))
    world.pass_by(20.0)
    for _ in range(20):
        world.pass_by(0.3)
        for name in (world.network.ids[0], world.network.ids[30]):
            assert {row["health"] for row in world.shown(name).values()} == {"healthy"}


def test_trouble_travels_at_once_and_not_with_the_next_beat():
    world = World(Network.chain(5))
    world.pass_by(5.0)
    world.vitals["4"] = SICK
    world.pass_by(world.window * 6)
    shown = world.shown("0")["4"]
    assert (shown["health"], shown["via"], shown["reasons"]) == ("unhealthy", "hearsay", [HEALTH_CODES[0]])


def test_a_device_that_starts_again_counts_at_once_and_hears_what_others_know():
    world = World(Network.chain(4))
    world.pass_by(5.0)
    world.down.update({"0", "3"})
    world.pass_by(5.0)
    world.vitals["0"] = SICK
    world.restart("0", start=8)
    world.pass_by(1.0)
    assert world.health("2", "0") == "unhealthy"
    assert world.health("0", "3") == "silent"  # it died before this one was there


def test_a_device_whose_clock_was_set_back_counts_once_its_old_self_is_silent():
    world = World(Network.chain(4))
    world.pass_by(5.0)
    world.vitals["0"] = SICK
    world.restart("0", start=3)
    world.pass_by(1.0)
    assert world.shown("1")["0"]["health"] == "healthy"  # what it said before
    world.pass_by(6.0)
    assert {world.health(name, "0") for name in world.network.ids} == {"unhealthy"}


def test_a_neighbour_behind_a_broken_link_is_known_by_hearsay():
    world = World(Network.of("cycle", 5))
    world.pass_by(5.0)
    world.cut.add(frozenset(("0", "1")))
    world.pass_by(4.0)
    assert (world.health("0", "1"), world.shown("0")["1"]["via"]) == ("healthy", "hearsay")
    world.cut.clear()
    world.pass_by(2.0)
    assert world.shown("0")["1"]["via"] == "neighbour"


@pytest.mark.parametrize(
    ("devices", "most"), [(20, 1000), pytest.param(100, 5000, marks=SLOW), pytest.param(400, 7000, marks=SLOW)]
)
def test_a_heartbeat_takes_few_bytes(devices, most):
    """Bytes a second to each neighbour, of the device that sends most; the docs have these figures."""
    world = World(Network.of("torus", devices))
    world.pass_by(20.0)
    before = dict(world.sent)
    world.pass_by(20.0)
    assert max(world.sent[name] - before[name] for name in world.sent) / 20 < most
    assert {row["health"] for row in world.shown("0").values()} == {"healthy"}


# --- what counts ------------------------------------------------------------------------------------------------------

stamps = st.tuples(st.integers(1, 3), st.integers(0, 5))


@given(st.lists(stamps, min_size=1, max_size=12), st.randoms())
def test_the_newest_counts_in_whatever_order_and_however_often(heard, random):
    one = chain()
    for start, beat in heard + random.sample(heard, len(heard) // 2):
        vitals = msgspec.structs.replace(CALM, run=10 * start + beat)
        one.update("b", packed(record("b", 0, 0), record("c", start, beat, status=vitals)), 100.0)
        one.update("b", packed(record("b", start, beat, status=vitals)), 100.0)
    start, beat = max(heard)
    assert row(one, "b", 100.0)["run"] == row(one, "c", 100.0)["run"] == 10 * start + beat


@settings(max_examples=200)
@given(st.lists(st.tuples(stamps, st.integers(0, 10**6), st.booleans()), max_size=20), st.integers(0, 2**50))
def test_a_byzantine_device_cannot_speak_for_a_neighbour(lies, far):
    """b is a neighbour and says of itself that it is well; d is a neighbour too, and says anything of b and of a."""
    one = StatusTable("a", 1.0, 7)
    one.set_roster(NAMES, ["b", "d"], 1)
    one.update("b", packed(record("b", 2, 2)), 100.0)
    for (start, beat), age, sick in [*lies, ((far, far), 0, True)]:
        said = SICK if sick else CALM
        lie = (record("b", start, beat, age, said), record("a", start, beat, age, said))
        one.update("d", packed(record("d", 1, 1), *lie), 100.5)
    shown = row(one, "b", 101.0)
    assert (shown["health"], shown["via"], shown["heard_seconds_ago"]) == ("healthy", "neighbour", 1.0)
    assert row(one, "a", 101.0)["via"] == "itself"
    said = msgspec.msgpack.decode(one.encode_if_due(CALM, 101.0), type=HeartbeatMessage)
    assert {(other.start, other.beat) for other in said.others if other.row == 1} <= {(2, 2)}


def test_a_heartbeat_under_the_name_of_another_is_refused():
    one = chain()
    one.update("b", packed(record("c")), 100.0)
    assert one.counts.refused == {"the name of another device": 1}
    assert row(one, "c", 100.0)["health"] == "unknown"


def test_what_was_said_long_ago_is_silent_when_it_is_first_heard():
    one = chain()
    one.update("b", packed(record("b"), record("c", age=60_000)), 100.0)
    assert row(one, "c", 100.0) | {"run": 4} == row(one, "c", 100.0)
    assert (row(one, "c", 100.0)["health"], row(one, "c", 100.0)["heard_seconds_ago"]) == ("silent", 60.0)


def test_silence_is_measured_by_the_beat_of_who_is_silent():
    one = chain()
    slow = msgspec.structs.replace(CALM, interval=50)
    one.update("b", packed(record("b", status=slow), record("c")), 100.0)
    assert [row(one, name, 103.0)["health"] for name in "bc"] == ["healthy", "silent"]
    assert row(one, "b", 111.0)["health"] == "silent"


def test_of_a_neighbour_under_another_roster_its_own_words_count_and_no_hearsay():
    one = chain()
    one.update("b", packed(record("d", status=SICK), record("c"), roster=2), 100.0)
    assert (row(one, "b", 100.0)["health"], row(one, "c", 100.0)["health"]) == ("unhealthy", "unknown")


def test_another_roster_keeps_what_is_known_of_those_who_stay():
    one = chain()
    one.update("b", packed(record("b"), record("c"), record("d")), 100.0)
    one.set_roster(("d", "a", "b"), ["b"], 2)
    assert {row["name"]: row["health"] for row in statuses(one, CALM, 100.0)} == dict.fromkeys("dab", "healthy")
    said = msgspec.msgpack.decode(one.encode_if_due(CALM, 100.0), type=HeartbeatMessage)
    assert (said.roster, said.own.row) == (2, 1)


# --- what is refused --------------------------------------------------------------------------------------------------


def good():
    return packed(record("b"), record("c"))


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "malformed"),
        (b"\x93\x01\x01", "malformed"),
        (b"\x91" * 5000, "malformed"),
        (good() + b"\x00", "malformed"),
        (good()[:-1], "malformed"),
        (b"\xc1" * 100, "malformed"),
        (msgspec.msgpack.encode({"version": 1}), "malformed"),
        (msgspec.msgpack.encode([2, 1, record("b"), []]), "malformed"),
        (packed(record("b", status=msgspec.structs.replace(CALM, run=-1))), "malformed"),
        (packed(record("b", status=msgspec.structs.replace(CALM, phase=len(PHASES)))), "malformed"),
        (packed(record("b", status=msgspec.structs.replace(CALM, interval=0))), "malformed"),
        (packed(record("b", start=2**60)), "malformed"),
        (packed(record("b", age=-5)), "malformed"),
        (packed(HeartbeatRecord(9, 1, 1, 0, CALM)), "the name of another device"),
        (packed(record("b"), HeartbeatRecord(4, 1, 1, 0, CALM)), "a row that is not in the roster"),
        (b"\x00" * (LARGEST_HEARTBEAT + 1), "too large"),
    ],
)
def test_what_is_no_heartbeat_is_refused_and_changes_nothing(data, reason):
    one = chain()
    one.update("b", good(), 100.0)
    before = statuses(one, CALM, 100.0)
    one.update("b", data, 100.0)
    assert one.counts.refused == {reason: 1}
    assert statuses(one, CALM, 100.0) == before
    assert one.counts.received == 1


def test_a_threshold_that_is_no_number_is_refused():
    data = packed(record("b", status=msgspec.structs.replace(CALM, threshold=1.5)))
    nan = data.replace(msgspec.msgpack.encode(1.5), msgspec.msgpack.encode(math.nan))
    assert nan != data
    one = chain()
    one.update("b", nan, 100.0)
    assert one.counts.refused == {"malformed": 1}


def test_a_stranger_is_refused():
    one = chain()
    one.update("c", packed(record("c")), 100.0)
    assert one.counts.refused == {"a stranger": 1}


@given(st.binary(max_size=200))
def test_any_bytes_do_no_harm(data):
    one = chain()
    one.update("b", data, 100.0)
    assert sum(one.counts.refused.values()) + one.counts.received == 1


@given(st.integers(0, len(good()) - 1), st.integers(1, 255))
def test_bytes_that_were_changed_do_no_harm(place, change):
    data = bytearray(good())
    data[place] ^= change
    one = chain()
    one.update("b", bytes(data), 100.0)
    for shown in statuses(one, CALM, 100.0):
        assert shown["health"] in ("healthy", "unhealthy", "silent", "unknown")
    assert one.encode_if_due(CALM, 100.0)


def test_a_thousand_devices_fit_and_wait_for_their_turn():
    names = tuple(f"device-{k:04d}" for k in range(1000))
    one = StatusTable(names[0], 1.0, 7)
    one.set_roster(names, names[1:2], 1)
    vitals = msgspec.structs.replace(CALM, run=10**6, round=10**6, roster=10**6, certified=10**6, about=1000)
    others = [HeartbeatRecord(k, 2**40, 2**40, 10**6, vitals) for k in range(2, 1000)]
    one.update(names[1], packed(HeartbeatRecord(1, 1, 1, 0, vitals), *others), 100.0)
    sizes, told = [], set()
    for step in range(5):
        data = one.encode_if_due(CALM, 100.0 + step / 4)
        sizes.append(len(data or b""))
        told |= {other.row for other in msgspec.msgpack.decode(data, type=HeartbeatMessage).others} if data else set()
    assert max(sizes) < LARGEST_HEARTBEAT
    assert told == set(range(1, 1000))
    assert MOST_RELAYED_RECORDS < 1000


def test_a_neighbour_that_seems_to_start_again_and_again_gets_no_more_than_its_share():
    one = StatusTable("a", 1.0, 7)
    one.set_roster(NAMES, ["b", "c"], 1)
    one.update("c", packed(record("c"), record("d")), 100.0)
    told = 0
    for step in range(40):
        now = 100.0 + step / 4
        one.update("b", packed(record("b", start=step)), now)
        said = one.encode_if_due(CALM, now)
        told += (
            sum(other.row == 3 for other in msgspec.msgpack.decode(said, type=HeartbeatMessage).others) if said else 0
        )
    assert told <= 12  # once a second


# --- what a node says of itself ---------------------------------------------------------------------------------------


def test_what_is_wrong_travels_as_codes_and_never_as_words():
    node = state()
    node.set_trouble(Trouble.SCORES, "/home/somebody/scores.csv, line 3: got 'secret'")
    vitals = share_status(node.status(), 1.0)
    data = packed(record("a", status=vitals))
    assert b"secret" not in data
    one = StatusTable("b", 1.0, 1)
    one.set_roster(NAMES, ["a"], 1)
    one.update("a", data, 100.0)
    assert row(one, "a", 100.0)["reasons"] == ["scores"]
    assert row(one, "a", 100.0)["health"] == "unhealthy"


def test_a_failure_and_a_missing_threshold_have_codes():
    node = state(certified=False)
    assert share_status(node.status(), 1.0).codes == 1 << HEALTH_CODES.index("uncertified")
    node.fail("b is gone", "lost")
    vitals = share_status(node.status(), 1.0)
    assert [code for bit, code in enumerate(HEALTH_CODES) if vitals.codes >> bit & 1] == ["lost", "uncertified"]
    assert (vitals.certified, vitals.threshold, vitals.common) == (None, None, False)


def test_a_threshold_from_own_scores_alone_is_not_told():
    node = state(certified=False)
    node.certify(calibration(method="local"))
    vitals = share_status(node.status(), 1.0)
    assert (vitals.certified, vitals.threshold, vitals.common) == (3, None, False)
    node.certify(calibration())
    assert share_status(node.status(), 1.0).threshold == 0.75


@pytest.mark.parametrize("threshold", [math.inf, -math.inf, 0.25])
def test_infinite_thresholds_travel(threshold):
    node = NodeState("b")
    node.certify(calibration(threshold))
    one = chain()
    one.update("b", packed(record("b", status=share_status(node.status(), 1.0))), 100.0)
    assert float(row(one, "b", 100.0)["threshold"]) == threshold


def test_every_field_of_vitals_has_its_place():
    """Positions are the format: what is new goes to the end."""
    assert SharedStatus.__struct_fields__ == (
        *("phase", "healthy", "codes", "run", "round", "roster", "interval"),
        *("certified", "threshold", "about", "common", "alarms"),
    )
    assert HEALTH_CODES[:3] == ("lost", "disagreement", "refused")
    assert [phase.name for phase in PHASES] == ["STARTING", "WAITING", "CALIBRATING", "CERTIFIED", "FAILED"]


def test_codes_keep_their_bits_whatever_failures_there_are_later():
    """Nodes of two versions hear each other: a code has the bit that it had when it was new."""
    first = "lost disagreement refused scores certificate roster journal links protocol other uncertified privacy"
    assert HEALTH_CODES[:14] == (*first.split(), "disk", "overdue")
    assert {*HEALTH_CODES} == {*FAILURES, "uncertified", "disk", "overdue"}
