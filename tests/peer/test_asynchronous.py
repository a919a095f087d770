"""Devices without rounds: at no instant a false certificate, in the end the threshold of the pooled scores."""

import numpy as np
import pytest

from conformesh import Network
from conformesh.peer import frames
from conformesh.peer.async_device import AsyncDevice
from conformesh.peer.entries import REASON, entry_key, pack_entries
from conformesh.peer.entry_exchange import AT_ONCE, EntryExchange
from conformesh.peer.frames import ENTRIES, HELLO, Frame
from conformesh.peer.interface import PeerSetup
from conformesh.peer.journal import MemoryJournal
from conformesh.peer.json_bodies import Hello
from conformesh.peer.loopback import ChangingLinks, Cut, LinkFaults, Pause, run_loopback
from conformesh.peer.settings import Settings
from conformesh.protocols.messages import Gather, Packets
from tests.campaigns import campaign_seeds
from tests.peer.devices import expected, in_device
from tests.peer.heard import Judge, drawn, starter, storm

GRAPHS = [Network.complete(4), Network.chain(5), Network.star(5), Network.cycle(6), Network.torus(3, 3)]


def wrong(graph, seeds):
    """Return the seeds whose schedule hangs; a false certificate raises."""
    bad = {}
    for seed in seeds:
        network = GRAPHS[graph]
        scores = drawn(network, seed)
        judge = Judge(network, scores)
        played = storm(network, starter(network, scores, caps=bool(seed % 2)), seed, judge)
        if not all(device.final for device in played.devices):
            bad[seed] = [(device.phase, device.number, device.survivors) for device in played.devices]
        assert judge.looks > network.devices
    return bad


@pytest.mark.parametrize("graph", range(len(GRAPHS)))
def test_twelve_storms_hold_no_false_certificate_and_end(graph):
    assert wrong(graph, range(12)) == {}


@pytest.mark.slow
@pytest.mark.parametrize("graph", range(len(GRAPHS)))
def test_many_storms(graph):
    assert wrong(graph, campaign_seeds(200, 12)) == {}


@pytest.mark.parametrize("target", ["paper", "equal"])
def test_other_targets_end_with_the_simulators_threshold(target):
    network = Network.cycle(5)
    scores = drawn(network, 3, low=1)
    played = storm(network, starter(network, scores, target=target, caps=False), 5)
    right = expected(network, scores, "e-dcp", requirement=requirement(target))
    assert [device.result.thresholds[0, 0, 0].tobytes() for device in played.devices] == right


def requirement(target):
    from conformesh.kernels.ranks import make_requirement

    return make_requirement(target)


def test_nobody_waits_for_a_device_that_is_away():
    """The others certify about themselves, and name each other; when it comes, about everybody."""
    network = Network.complete(4)
    scores = drawn(network, 0, low=20, high=40)
    seen = []

    def check(devices):
        judge(devices)
        seen.append(devices[0].result.certificates[0][0].heard)

    judge = Judge(network, scores)
    faults = LinkFaults(late={3: 20.0})
    played = run_loopback(network, starter(network, scores), faults, np.random.default_rng(0), check=check)
    assert all(device.final for device in played.devices)
    assert ("0", "1", "2") in seen
    assert seen[-1] == ()


def test_who_never_comes_leaves_a_certificate_about_the_heard():
    network = Network.chain(4)
    scores = drawn(network, 1, low=20, high=40)
    faults = LinkFaults(late={3: 1e9})
    settings = Settings(patience=5.0)
    played = run_loopback(
        network, starter(network, scores, settings=settings), faults, np.random.default_rng(0), limit=60.0
    )
    for device in played.devices[:3]:
        certificate = device.result.certificates[0][0]
        assert (certificate.heard, device.final) == (("0", "1", "2"), False)
        assert device.over  # after as long as its patience without anything new


def test_parts_that_do_not_hear_each_other_never_both_certify_about_everybody():
    """With caps two halves of a complete graph could only if each held enough of all scores; they do not."""
    network = Network.complete(4)
    scores = drawn(network, 2, low=30, high=31)
    seen = []

    def check(devices):
        judge(devices)
        seen.extend(device.result.about_all for device in devices)

    judge = Judge(network, scores)
    faults = LinkFaults(cuts=(Cut(0.0, 1e9, frozenset({0, 1})),))
    run_loopback(network, starter(network, scores), faults, np.random.default_rng(0), limit=20.0, check=check)
    assert seen
    assert all(np.isinf(one.thresholds[0, 0, 0]) for one in seen)


def test_links_of_which_a_fifth_is_up_are_enough():
    network = Network.torus(3, 3)
    scores = drawn(network, 7, low=5)
    judge = Judge(network, scores)
    faults = LinkFaults(loss=0.3, links=ChangingLinks(0.2, 0.1))
    played = run_loopback(network, starter(network, scores), faults, np.random.default_rng(1), check=judge)
    assert all(device.final for device in played.devices)


# --- runs and memory --------------------------------------------------------------------------------------------------


def test_a_device_that_starts_again_goes_on_from_its_journal():
    network = Network.chain(3)
    scores = drawn(network, 4, low=5)
    start, journal = starter(network, scores), MemoryJournal()
    first = start(1, journal)
    first.start(0.0)
    other = start(0, MemoryJournal())
    other.start(0.0)
    deliver(other, first, 0.1)
    again = start(1, journal)
    again.start(1.0)
    assert again.store.entries == first.store.entries
    assert (again.number, again.survivors) == (1, (0, 1))


def deliver(sender, to, now):
    for row, data in sender.outbox():
        if row == to.row:
            to.receive(data, sender.row, now)


def with_other_scores(network, scores, others, faults, seed=0, device=AsyncDevice, keeps_journal=True):
    """Play a schedule in which device 0 starts again with other scores; return the devices."""
    held, boots = [*scores], []
    start = starter(network, held, device=device, caps=False)

    def begin(k, journal):
        if k == 0:
            boots.append(k)
            held[0] = others if len(boots) > 1 else scores[0]
            if len(boots) > 1 and not keeps_journal:
                journal.data.clear()
        return start(k, journal)

    played = run_loopback(network, begin, faults, np.random.default_rng(seed), limit=40.0)
    return played.devices


@pytest.mark.parametrize("keeps_journal", [True, False], ids=["journal", "no journal"])
@pytest.mark.parametrize("seed", range(6))
def test_other_scores_after_a_restart_make_a_new_run_that_all_agree_on(keeps_journal, seed):
    """Also where the journal is lost with the old scores: then others have heard other words in the same entries."""
    network = GRAPHS[seed % 5]
    scores = drawn(network, seed, low=6)
    others = scores[0] - 1.5
    faults = LinkFaults(loss=0.2, pauses=(Pause(0, 0.1 * (1 + seed), 0.1 * (1 + seed) + 0.4, crash=True),))
    devices = with_other_scores(network, scores, others, faults, seed, keeps_journal=keeps_journal)
    right = Judge(network, [others, *scores[1:]]).right
    assert {device.result.thresholds[0, 0, 0] for device in devices} == {right}
    assert {device.final for device in devices} == {True}


def test_a_new_run_is_asked_for_at_most_every_linger_seconds():
    network = Network.complete(3)
    scores = drawn(network, 9, low=5)
    asks = tuple((k, 5.0 + 0.01 * i) for i in range(50) for k in range(3))
    settings = Settings(linger=2.0)
    played = run_loopback(
        network,
        starter(network, scores, settings=settings),
        LinkFaults(requests=asks),
        np.random.default_rng(0),
        limit=20.0,
        stay=True,
    )
    assert {device.number for device in played.devices} <= {2, 3}
    assert all(device.final for device in played.devices)


# --- neighbours that differ, fail or babble ---------------------------------------------------------------------------


def one_device(**how):
    device = starter(Network.chain(2), drawn(Network.chain(2), 5, low=5), **how)(0, MemoryJournal())
    device.start(0.0)
    device.outbox()
    return device


def test_a_neighbour_with_other_settings_is_told_and_not_listened_to():
    device = one_device()
    hello = Hello({**device.agreement, "alpha": "1/5"}, 1, frozenset())
    device.receive(frames.encode_frame(Frame(HELLO, 0, 1, 0, frames.WANT, hello.pack())), 1, 1.0)
    assert device.disagreements == {1: "alpha: 'nothing' at 0, '1/5' at 1"}
    answers = [frames.decode_frame(data) for _, data in device.outbox()]
    assert HELLO in {frame.kind for frame in answers}
    assert device.phase == "running"
    assert device.counts.refused["a hello of a device that does not agree"] == 1


def test_a_later_run_is_joined_and_an_earlier_one_is_told():
    device = one_device()
    later = Hello(device.agreement, 4, frozenset())
    device.receive(frames.encode_frame(Frame(HELLO, 0, 1, 0, 0, later.pack())), 1, 1.0)
    assert device.number == 4
    device.outbox()
    device.receive(frames.encode_frame(Frame(ENTRIES, 12345, 1, 0, 0, b"")), 1, 2.0)
    assert [frames.decode_frame(data).kind for _, data in device.outbox()][:1] == [HELLO]
    device.receive(
        frames.encode_frame(Frame(HELLO, 0, 1, 0, 0, Hello(device.agreement, 2, frozenset()).pack())), 1, 3.0
    )
    assert device.number == 4


def test_a_reason_travels_and_others_go_on():
    """Device 2 of a chain cannot read its scores: both sides learn why, and certify about the others."""
    network = Network.chain(5)
    scores = drawn(network, 11, low=20, high=30)
    start = starter(network, scores, settings=Settings(patience=5.0))

    def begin(k, journal):
        device = start(k, journal)
        if k == 2:
            device.refuse("its file of scores cannot be read", 0.0)
        return device

    played = run_loopback(network, begin, LinkFaults(loss=0.3), np.random.default_rng(0), limit=60.0)
    for device in played.devices:
        if device.row != 2:
            assert device.reasons == {2: "2 cannot take part: its file of scores cannot be read"}
            assert device.survivors == (0, 1, 3, 4)
            assert device.result.certificates[0][0].heard == ("0", "1", "3", "4")


class Full(MemoryJournal):
    """A disk on which nothing more fits after the first records."""

    left = 3

    def append(self, record):
        self.left -= 1
        if self.left < 0:
            raise OSError(28, "No space left on device", "/var/lib/conformesh/journal.bin")
        super().append(record)


def test_a_full_disk_is_told_to_the_others_who_go_on():
    network = Network.complete(4)
    scores = drawn(network, 12, low=20, high=30)
    start = starter(network, scores, settings=Settings(patience=4.0))

    def begin(k, journal):
        return start(k, Full() if k == 1 else journal)

    played = run_loopback(network, begin, LinkFaults(loss=0.2), np.random.default_rng(2), limit=40.0)
    assert played.devices[1].error.code == "journal"
    assert "journal.bin" in str(played.devices[1].error)
    for device in (one for one in played.devices if one.row != 1):
        assert device.phase != "failed"
        told = device.store.text(entry_key(1, REASON))
        assert told.startswith("1 could not go on: OSError")
        assert "No space left" in told
        assert "journal.bin" not in told


@pytest.mark.parametrize(
    "body",
    [b"", b"\0" * 8, b"\0" * 9 + b"\1", b"\0" * 9 + b"\xff\xff\xff\xff\xff\xff", b"\0" * 9 + b"\1\x7fab"],
)
def test_bodies_that_are_no_entries_are_refused_and_change_nothing(body):
    device = one_device()
    before = dict(device.store.entries)
    device.receive(frames.encode_frame(Frame(ENTRIES, device.run, 1, 0, 0, body)), 1, 1.0)
    assert device.store.entries == before
    assert sum(device.counts.refused.values()) == 1


def test_an_entry_that_nobody_could_say_counts_as_never_heard():
    """Order statistics that do not ascend; the neighbour may say them again and again."""
    device = one_device()
    other = one_device()
    bad = b"\2" + np.array([2.0, 1.0]).tobytes()
    body = frames_body(device, other, bad)
    for now in (1.0, 2.0):
        device.receive(frames.encode_frame(Frame(ENTRIES, device.run, 1, 0, 0, body)), 1, now)
        assert device.result.certificates[0][0].heard == ("0",)
    assert device.phase == "running"


@in_device("exchange", AsyncDevice)
class Babbles(EntryExchange):
    """Says what nobody could say."""

    def add_local(self, key, text):
        super().add_local(key, b"\2" + np.array([2.0, 1.0]).tobytes())


def test_one_that_babbles_is_left_out_by_all_and_costs_no_run():
    """Whoever has noticed and whoever has not yet have the same entries, and do not count each other as Byzantine."""
    network = Network.complete(4)
    scores = drawn(network, 6, low=20, high=30)
    kinds = {2: Babbles}

    def start(k, journal):
        how = {"device": kinds.get(k, AsyncDevice), "settings": Settings(patience=4.0)}
        return starter(network, scores, **how)(k, journal)

    played = run_loopback(network, start, LinkFaults(loss=0.2), np.random.default_rng(3), limit=40.0)
    for device in (one for one in played.devices if one.row != 2):
        assert device.result.certificates[0][0].heard == ("0", "1", "3")
        assert device.number == 1


def frames_body(device, other, entry):
    from conformesh.peer.entries import entry_key, pack_entries

    return pack_entries(2, 1 << entry_key(1, 0), 0, [(entry_key(1, 0), entry)])


def test_one_seed_gives_one_trace():
    network = Network.cycle(5)
    scores = drawn(network, 2)
    traces = {storm(network, starter(network, scores), seed).trace for seed in (3, 3, 4)}
    assert len(traces) == 2


def test_a_large_entry_travels_in_a_frame_of_its_own():
    """With others in the same frame it would not fit, and the device would fail."""
    network = Network.complete(4)

    def make(net, row):
        told = yield Gather(Packets.of([b"own"]))
        return int(told.heard.sum())

    device = AsyncDevice(PeerSetup(0, network, {}, make, MemoryJournal(), Settings()))
    device.start(0.0)
    device.outbox()
    for k, size in ((1, 150_000), (2, 2**24)):
        body = pack_entries(4, 0, 0, [(entry_key(k, 0), b"x" * size)])
        device.receive(frames.encode_frame(Frame(ENTRIES, device.run, k, 0, 0, body)), k, 0.01)
    device.tick(0.5)
    lengths = [len(data) for _, data in device.outbox()]
    known = 1 << entry_key(0, 0) | 1 << entry_key(1, 0)  # what neighbour 3 has then
    device.receive(frames.encode_frame(Frame(ENTRIES, device.run, 3, 0, 0, pack_entries(4, known, 0, []))), 3, 0.6)
    device.tick(3.0)
    lengths += [len(data) for _, data in device.outbox()]
    assert device.error is None
    assert any(length > 2**24 for length in lengths)
    assert all(length < AT_ONCE or 2**24 < length < 2**24 + 1000 for length in lengths)
