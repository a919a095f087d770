"""The table, the recommendation, links and wire."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from conformesh import METHODS, Network
from conformesh.graph.topologies import sketch
from conformesh.kernels.ranks import exact_alpha
from conformesh.methods import Way
from conformesh.peer import frames
from conformesh.peer.device import EVERYBODY, Device
from conformesh.peer.loopback import Faults, play
from conformesh.planning.link import Link
from conformesh.planning.planner import plan, predict
from conformesh.planning.sending import (
    SILENT,
    TRANSPORT,
    bytes_on_the_wire,
    frame_bytes,
    mesh_seconds_on,
    on_a_mesh,
    seconds_on,
)
from conformesh.planning.simulation import Speed
from conformesh.planning.terrain import Terrain, terrain_of
from conformesh.protocols.aggregate.tree import tree_setup, tree_stretches, tree_total
from conformesh.protocols.messages import Each, Max, Packets, Tell
from conformesh.protocols.predicting import Stretch
from conformesh.protocols.site import Site
from tests.peer.devices import starter

LINK = Link.parse("100ms,1Mbit")
SAME = Speed()


def torus(**options):
    return plan(Network.torus(5, 4), 50, 0.1, LINK, speed=SAME, **options)


def test_every_method_is_in_the_table_once_per_way():
    found = torus()
    ways = [row.way for row in found.rows]
    assert {way.method for way in ways} == {*METHODS}
    assert len(ways) == len({*ways}) == 4 + 4 + 9
    assert not found.refused


def test_nothing_with_less_of_a_guarantee_is_recommended_over_more():
    """`local` and servers are cheaper by far, `average` has no guarantee at all."""
    for sort in ("time", "bytes", "rounds"):
        found = torus(sort=sort)
        best = found.recommended
        assert (best.guarantee, best.needs, best.assumption) == ("counted", "neighbours", "")
        assert best.price(sort) == min(row.price(sort) for row in found.rows if row.tier == 0)
        assert [row.tier for row in found.rows] == sorted(row.tier for row in found.rows)
    assert torus(methods=["average", "local", "fcp"]).recommended.way == Way("fcp")
    assert torus(methods=["average", "q-dcp"]).recommended.way == Way("q-dcp")
    assert torus(methods=["average"]).recommended.way == Way("average")


def test_the_recommendation_depends_on_the_link():
    """Rounds decide where latency is long, bytes where bandwidth is narrow."""
    long = plan(Network.torus(5, 4), 50, 0.1, "1s,1Gbit", speed=SAME).recommended
    narrow = plan(Network.torus(5, 4), 50, 0.1, "1us,1kbit", speed=SAME).recommended
    assert long.rounds < narrow.rounds
    assert narrow.bits < long.bits


def test_a_guarantee_can_be_asked_for():
    assert {row.guarantee for row in torus(guarantee="counted").rows} == {"counted"}
    assert "none" not in {row.guarantee for row in torus(guarantee="assumed").rows}
    with pytest.raises(ValueError, match="did you mean 'counted'"):
        torus(guarantee="conted")
    with pytest.raises(ValueError, match="sort must be one of"):
        torus(sort="beauty")
    with pytest.raises(ValueError, match="did you mean 'normal'"):
        torus(shape="norml")


def test_options_go_to_the_methods_that_have_them():
    found = torus(options={"aggregate": "tree", "bins": 10, "range": (0.0, 1.0)})
    assert [row.way for row in found.rows if row.way.method == "e-dcp"] == [
        Way("e-dcp", schedule) for schedule in ("top-k", "auto", "window", "count")
    ]
    histogram = next(row for row in found.rows if row.way == Way("h-dcp", "finite-time"))
    assert histogram.numbers == 8 * 10  # eight distinct eigenvalues


def test_too_few_scores_is_said_and_nothing_recommended():
    found = plan(Network.torus(5, 4), 4, 0.01, LINK, speed=SAME)
    assert found.required_rank > found.terrain.n
    assert found.reason().startswith("None yet")


def test_what_cannot_run_has_its_reason():
    network = Network.of("random-regular", 4000)
    for aggregate, reason in (("flood", "3,000 devices"), ("finite-time", "1,500 devices")):
        given = {"schedule": "count", "aggregate": aggregate}
        found = plan(network, 10, 0.1, LINK, methods=["e-dcp"], options=given, speed=SAME)
        assert reason in found.refused[Way("e-dcp", "count")]


def test_a_method_that_nobody_predicts_is_refused_with_a_hint(monkeypatch):
    monkeypatch.setitem(METHODS, "quiet", replace(METHODS["local"], predict=None))
    found = torus(methods=["quiet", "local"])
    assert found.refused == {Way("quiet"): "nobody has said what it sends; give its line in METHODS a `predict`"}
    assert [row.way for row in found.rows] == [Way("local")]


def test_a_plan_is_json():
    found = torus().to_dict()
    again = json.loads(json.dumps(found, allow_nan=False))
    assert again["recommended"]["method"] == found["recommended"]["method"]
    exact = next(row for row in again["rows"] if row["method"] == "fcp")
    assert (exact["rounds"], exact["bytes_per_device"], exact["certainty"]) == (2, 400, "exact")
    search = next(row for row in again["rows"] if row["variant"] == "top-k")
    assert search["likely_rounds"][0] == search["rounds"] == search["likely_rounds"][1] == 4
    assert search["at_most"]["rounds"] == 8
    by_stages = torus(methods=["e-dcp"], options={"schedule": "count", "aggregate": "finite-time"}).to_dict()["rows"][0]
    low, high = by_stages["likely_rounds"]
    assert low < by_stages["rounds"] < high < by_stages["at_most"]["rounds"]


def test_a_plan_refuses_impossible_scores():
    with pytest.raises(ValueError, match="at least 1 score"):
        Terrain.of(Network.torus(5, 4), 0)
    with pytest.raises(ValueError, match="plan with the network"):
        Terrain.of(sketch("chain", 20), 5)
    with pytest.raises(ValueError, match="one per device"):
        Terrain.of(Network.torus(5, 4), [1, 2, 3])


# --- time and bytes ---------------------------------------------------------------------------------------------------


def test_a_round_takes_the_latency_and_a_copy_for_each_neighbour():
    """Ten rounds of 100 numbers of 32 bits to four neighbours: 10 x (0.1 s + 4 x 3200 bit / 1 Mbit/s)."""
    stretches = [Stretch("gossip", 10, 100, 32)]
    assert seconds_on(LINK, stretches, 4) == pytest.approx(10 * (0.1 + 4 * 3200 / 1e6))
    server = [Stretch("upload", 2, 100, 32, 1, 1, server=True)]
    assert seconds_on(LINK, server, 4) == pytest.approx(2 * 0.1 + 3200 / 1e6)


def test_the_slowest_device_of_a_tree_counts_in_every_round():
    """On a star the leaves speak up to one neighbour, the middle down to all."""
    tree = next(row for row in plan(Network.star(11), 50, 0.1, LINK, speed=SAME).rows if row.way.variant == "window")
    down = next(stretch for stretch in tree.stretches if stretch.what == "the root's word")
    assert down.copies / down.rounds == pytest.approx(10)
    up = next(stretch for stretch in tree.stretches if stretch.what == "replies")
    assert 1 < up.copies / up.rounds < 3  # the longest reply of a round, each to one neighbour


def test_frames_on_the_wire_are_those_of_the_mesh():
    values = np.zeros((3, 1), np.int16)
    body = frames.pack_array("max", values)
    frame = frames.encode(frames.Frame(frames.DATA, 1, 2, 3, 0, body))
    assert frame_bytes(Stretch("a stage", 1, 3, 16)) == len(frame) == 16 + 4 + 6


def test_silence_costs_frames_on_the_wire_but_no_numbers():
    """A device speaks once in ten rounds; to five neighbours it sends ten frames each."""
    stretch = Stretch("up", 10, 1, 64, spoken=1, most=1, copies=20)
    spoken, silent = frame_bytes(stretch) + TRANSPORT, SILENT + TRANSPORT
    assert bytes_on_the_wire([stretch], 5.0, 20) == pytest.approx(5 * (spoken + 9 * silent))
    assert mesh_seconds_on(LINK, [stretch], 5, 20) > seconds_on(LINK, [stretch], 5)


@pytest.mark.parametrize(("devices", "rounds"), [(128, 127), (129, 128), (300, 500)])
def test_rows_and_rounds_beyond_127_take_more_bytes(devices, rounds):
    """Every row speaks in every round, to two neighbours: against the frames themselves."""
    body = frames.pack_array("sum", np.zeros(3))
    sizes = [
        len(frames.encode(frames.Frame(frames.DATA, 1, row, round_, 0, body)))
        for row in range(devices)
        for round_ in range(1, rounds + 1)
    ]
    stretch = Stretch("a stage", rounds, 3, 64)
    predicted = bytes_on_the_wire([stretch], 2.0, devices) - 2 * rounds * TRANSPORT
    assert predicted == pytest.approx(2 * sum(sizes) / devices, rel=1e-12)


class Counting(Device):
    """A device that adds up the bytes of what it says in rounds, repetitions left out."""

    def outbox(self):
        out = super().outbox()
        for to, data in out:
            frame = frames.decode(data)
            if frame.kind == frames.DATA:
                for j in self.neighbours if to == EVERYBODY else (to,):
                    self.__dict__.setdefault("sizes", {})[j, frame.round] = len(data)
        return out


def test_a_device_says_frames_as_long_as_predicted():
    """An array of three, a string of five bytes, and silence, on a chain of two of which the second is silent."""

    def make(network, row):
        speakers = np.flatnonzero([row == 0])
        yield Max(np.zeros((1, 3, 1), np.int16))
        yield Each(np.zeros((1, 3, 1), np.int16), speakers)
        yield Tell(Packets.of([b"12345"][: len(speakers)]), speakers, np.full(len(speakers), 3))

    network = Network.chain(2)
    played = play(
        network, lambda row, journal: Counting(row, network, {}, make, journal), Faults(), np.random.default_rng(0)
    )
    first, second = ([size for _, size in sorted(device.sizes.items())] for device in played.devices)
    array, told = Stretch("a stage", 1, 3, 16), Stretch("a stage", 1, 5, 8, told=True)
    assert first == [frame_bytes(array), frame_bytes(array), frame_bytes(told)]
    assert second == [frame_bytes(array), SILENT, SILENT]


WAYS = [("h-dcp", "finite-time"), ("h-dcp", "gossip"), ("fcp",), ("wfcp",), ("fedcp-qq",), ("local",)]


@pytest.mark.parametrize("way", [Way(*way) for way in WAYS])
def test_frames_of_a_whole_run_are_as_predicted(way):
    """On the loopback engine, whose devices are those of a real mesh; all but the transport's own bytes."""
    network = Network.torus(3, 3)
    rng = np.random.default_rng(0)
    options = {"bins": 7, "range": (0.0, 1.0)} if way.method in ("h-dcp", "wfcp") else {}  # maxima would vary
    if way.variant is not None:
        options["consensus"] = way.variant
    start = starter(network, [rng.random(12) for _ in range(9)], way.method, device=Counting, **options)
    played = play(network, start, Faults(), np.random.default_rng(1))
    sent = [sum(device.sizes.values()) for device in played.devices]
    terrain = Terrain.of(network, 12)
    stretches = on_a_mesh(predict(way, terrain, exact_alpha("0.1"), options).stretches, terrain)
    rounds = sum(stretch.rounds for stretch in stretches)
    assert {max(round_ for _, round_ in device.sizes) for device in played.devices} == {rounds}
    without_transport = bytes_on_the_wire(stretches, 4.0, 9) - rounds * 4 * TRANSPORT
    assert without_transport == pytest.approx(np.mean(sent), rel=1e-12)


CHAINS = [Network.chain(K) for K in (2, 3, 7, 10)]
ROUND = [Network.cycle(3), Network.cycle(9), Network.star(6), Network.complete(5)]


@pytest.mark.parametrize("network", [*CHAINS, *ROUND, Network.torus(3, 4), Network.grid(4, 5)], ids=str)
def test_frames_of_sums_over_a_tree_are_as_predicted(network):
    """Who is silent for a while says so once: the frames that are left, to a byte, and the same of a sketch."""

    def make(net, row):
        site = Site(net, np.array([row]), np.ones((net.devices, 1), np.int64))
        total = yield from tree_total(site)
        for x in (3, 5):
            yield from total(np.array([[x]]), 100)

    start = lambda row, journal: Counting(row, network, {}, make, journal)  # noqa: E731
    played = play(network, start, Faults(), np.random.default_rng(1))
    assert {device.phase for device in played.devices} == {"finished"}
    each = [sum(device.sizes.values()) / len(device.neighbours) for device in played.devices]
    terrain = Terrain.of(network, 12)
    stretches = [*tree_setup(terrain), *2 * tree_stretches(terrain, "a sum", 1, 100)]
    frames_sent = sum(sum(stretch.frames) for stretch in stretches)
    predicted = bytes_on_the_wire(stretches, 1.0, network.devices) - frames_sent * TRANSPORT
    assert predicted == pytest.approx(np.mean(each), rel=1e-12)
    kind = network.name.split()[0]
    if kind not in ("torus", "grid"):  # whose sketches estimate the tree
        drawn = terrain_of(kind, network.devices, 12)
        assert drawn.tree.ends == pytest.approx(terrain.tree.ends)


def test_a_frame_that_is_too_large_has_no_time_on_a_mesh():
    found = plan(terrain_of("star", 10**8, 50), alpha=0.1, link=LINK, methods=["e-dcp"], speed=SAME)
    assert {row.to_dict()["mesh_seconds"] for row in found.rows} == {None}


# --- sizes that nobody builds -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("topology", ["chain", "cycle", "star", "torus", "grid", "complete"])
def test_a_billion_devices_are_planned_in_closed_form(topology):
    terrain = terrain_of(topology, 10**9, 50)
    assert terrain.built is None
    found = plan(terrain, alpha=0.1, link=LINK, methods=["e-dcp", "h-dcp", "fcp"], speed=SAME)
    tree = next(row for row in found.rows if row.way == Way("e-dcp", "window"))
    assert tree.guarantee == "counted"
    assert tree.rounds > 2 * terrain.map.diameter
    assert found.terrain.n == 50 * 10**9


def test_a_sketch_and_its_network_have_one_plan():
    """Where all is closed form, all but e-dcp is exact, and equal."""
    built, drawn = Network.cycle(1600), sketch("cycle", 1600)
    others = [name for name in METHODS if name != "e-dcp"]  # whose schedules are run where there is a network
    one, other = (plan(where, 20, 0.1, LINK, methods=others, speed=SAME) for where in (built, drawn))
    assert [row.way for row in one.rows] == [row.way for row in other.rows]
    for mine, theirs in zip(one.rows, other.rows, strict=True):
        assert mine.rounds == pytest.approx(theirs.rounds, rel=1e-9), mine.way
        depends = any(one.expected for one in mine.stretches)  # on values: a law of growth says how rings grow
        assert mine.bits == pytest.approx(theirs.bits, rel=0.02 if depends else 1e-9), mine.way
        assert (mine.certainty, mine.guarantee) == (theirs.certainty, theirs.guarantee)


def test_own_networks_beyond_all_laws_are_planned_without_eigenvalues(monkeypatch):
    monkeypatch.setattr("conformesh.planning.terrain.OWN_SPECTRUM_UP_TO", 1600)
    found = plan(Network.of("geometric", 1700), 50, 0.1, LINK, speed=SAME)
    assert "eigenvalues" in found.refused[Way("average")]
    assert Way("e-dcp", "window") in {row.way for row in found.rows}
