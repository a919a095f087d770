"""Silence that is announced: nobody waits for it, frames are saved, and nothing else changes, whatever goes wrong."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from conformesh import Network
from conformesh.engines import Simulator
from conformesh.peer import frames
from conformesh.peer.device import Device
from conformesh.peer.frames import DATA, SILENT, WANT, Frame
from conformesh.peer.interface import EVERYBODY, PeerSetup
from conformesh.peer.journal import MemoryJournal
from conformesh.peer.loopback import LinkFaults, run_loopback
from conformesh.peer.membership import Membership
from conformesh.peer.round_exchange import RoundExchange
from conformesh.protocols.messages import Each, Packets, Silence, Sum, Tell
from tests.campaigns import campaign_seeds
from tests.peer.devices import Tapped, in_device, schedule
from tests.peer.test_device import Hand
from tests.strategies import networks

ROUNDS = 14


def table(devices, seed):
    """Who speaks in which round, which rounds are sums, and for how long everybody announces its silence."""
    rng = np.random.default_rng([5, seed])
    speaks = rng.random((ROUNDS + 2, devices)) < rng.choice([0.1, 0.3, 0.7])
    sums = rng.random(ROUNDS + 2) < 0.1
    speaks[sums] = True
    speaks[ROUNDS + 1] = True
    quiet = np.zeros((ROUNDS + 2, devices), dtype=np.int64)
    for t in reversed(range(ROUNDS + 1)):
        quiet[t] = np.where(speaks[t + 1], 0, quiet[t + 1] + 1)
    said_less = rng.random(quiet.shape) < 0.3  # a device may also announce less than it knows, or nothing
    return speaks, sums, np.where(said_less, quiet // 2, quiet)


def talk(devices, here, seed, hints=True):
    """A conversation by such a table; what is said depends on what was heard. Return all that was heard, by device."""
    speaks, sums, quiet = table(devices, seed)
    mixed = np.arange(1, 1 + devices)[here]
    heard = [[] for _ in here]
    for t in range(1, ROUNDS + 1):
        if sums[t]:
            mixed = mixed + (yield Sum(mixed[:, None]))[:, 0] % 1000
            continue
        places = np.flatnonzero(speaks[t][here])
        told = Silence(np.arange(len(here)), quiet[t][here]) if hints else None
        if t % 3:
            strings = [b"%d" % mixed[k] * (1 + t % 2) for k in places]
            answer = yield Tell(Packets.of(strings), places, np.ones(len(places), np.int64), quiet=told)
            said = [int(answer.packets[i]) for i in range(len(answer.packets))]
        else:
            answer = yield Each(mixed[:, None], places, told)
            said = answer.values[:, 0].tolist()
        for receiver, sender, number in zip(answer.receiver.tolist(), answer.sender.tolist(), said, strict=True):
            k = int(np.flatnonzero(here == receiver)[0])
            heard[k].append((t, sender, number))
            mixed[k] = (mixed[k] * 31 + number + sender) % 10_000
    return [(int(mixed[k]), heard[k]) for k in range(len(here))]


def maker(network, seed, kind=Device, hints=True):
    def start(row, journal):
        return kind(PeerSetup(row, network, {}, lambda net, k: talk(net.devices, np.array([k]), seed, hints), journal))

    return start


def right(network, seed):
    return Simulator(network).run(talk(network.devices, np.arange(network.devices), seed))[0]


@given(networks(least=2, most=7), st.integers(0, 2**32 - 1), st.integers(0, 2**32 - 1))
def test_devices_hear_what_the_simulator_says(network, seed, faults):
    """Over lost, late and repeated frames, cuts, and devices that freeze, crash and start again from their journals."""
    played = schedule(network, maker(network, seed), faults)
    assert [device.phase for device in played.devices] == ["finished"] * network.devices
    assert [device.result[0] for device in played.devices] == right(network, seed)


def play_seeds(network, seeds, key):
    for seed in seeds:
        played = schedule(network, maker(network, seed), seed, key=key)
        assert [device.phase for device in played.devices] == ["finished"] * network.devices, seed
        assert [device.result[0] for device in played.devices] == right(network, seed), seed


def test_schedules_on_a_ring():
    play_seeds(Network.cycle(6), range(10), key=21)


@pytest.mark.slow
@pytest.mark.parametrize("network", [Network.cycle(6), Network.chain(5), Network.star(5), Network.torus(3, 3)], ids=str)
def test_many_schedules(network):
    play_seeds(network, campaign_seeds(200), key=22)


@in_device("rounds")
class KeepsTwoFrames(RoundExchange):
    """As if nobody were ever more than a round ahead."""

    def _advance(self, given):
        super()._advance(given)
        self._sent = {t: frame for t, frame in self._sent.items() if t >= self.round - 1}


@in_device("membership")
class ForgetsWhatCameEarly(Membership):
    """Keeps frames of the next round only, and takes those of a later one as a loss of its journal."""

    def take_data(self, frame):
        rounds = self._rounds
        before, rounds.spoken_for = rounds.spoken_for, min(rounds.spoken_for, rounds.round)
        super().take_data(frame)
        rounds.spoken_for = max(before, rounds.spoken_for) if self.phase == "running" else rounds.spoken_for


@pytest.mark.parametrize("bug", [KeepsTwoFrames, ForgetsWhatCameEarly])
def test_schedules_notice(bug):
    network = Network.chain(5)

    def ends(kind, seed):
        played = schedule(network, maker(network, seed, kind), seed, key=23, limit=60)
        return {(device.phase, device.number) for device in played.devices}

    noticed = next((seed for seed in range(30) if ends(bug, seed) != {("finished", 1)}), None)
    assert noticed is not None
    assert ends(Device, noticed) == {("finished", 1)}


def test_who_is_quiet_sends_nothing():
    """Every frame but those of announced rounds, on a network that loses nothing."""
    network, seed = Network.torus(3, 3), 4
    speaks, sums, quiet = table(9, seed)
    quiet[sums] = 0  # a sum has no room for it
    played = run_loopback(network, maker(network, seed, Tapped), LinkFaults(), np.random.default_rng(0))
    for k, device in enumerate(played.devices):
        expected, until = [], 0
        for t in range(1, ROUNDS + 1):
            if t > until:
                expected.append((t, not speaks[t, k], int(quiet[t, k])))
                until = t + int(quiet[t, k])
        data = [frame for frame in device.said if frame.kind == DATA]
        assert [(frame.round, frame.silent, frame.quiet) for frame in data] == expected
    with_hints = sum(len(device.said) for device in played.devices)
    without = run_loopback(network, maker(network, seed, Tapped, hints=False), LinkFaults(), np.random.default_rng(0))
    assert with_hints < sum(len(device.said) for device in without.devices)
    assert [device.result for device in without.devices] == [device.result for device in played.devices]


# --- by hand ----------------------------------------------------------------------------------------------------------


def listening(rounds=6, quiet=0):
    """The middle of a chain of three tells nothing for some rounds, and announces so in the first."""

    def make(network, row):
        heard, nobody = [], np.empty(0, np.int64)
        for t in range(1, rounds + 1):
            hint = Silence(np.zeros(1, np.int64), np.array([quiet])) if t == 1 else None
            told = yield Tell(Packets.of([]), nobody, nobody, quiet=hint)
            heard += [(t, j, told.packets[i]) for i, j in enumerate(told.sender.tolist())]
        return heard

    hand = Hand(journal=MemoryJournal())
    hand.device.membership.make = make
    return hand.running(), make


def tell(hand, sender, now, round_, said=None, quiet=0, flags=0):
    """A neighbour tells something or nothing."""
    flags, body = (flags | SILENT, b"\5") if said is None else (flags, b"\5" + said)
    frame = Frame(DATA, hand.device.run, sender, round_, flags, body, quiet)
    hand.device.receive(frames.encode_frame(frame), sender, now)


def test_nobody_waits_for_a_neighbour_that_is_quiet():
    hand, _ = listening()
    tell(hand, 0, 0.1, 1, quiet=3)
    for t in (1, 2, 3):
        tell(hand, 2, 0.1, t, b"x%d" % t)
        assert hand.device.round == t + 1
        assert hand.device.missing == 1
    tell(hand, 2, 0.1, 4)
    assert hand.device.round == 5
    assert hand.device.rounds.received == {}
    tell(hand, 2, 0.1, 5)
    assert {*hand.device.rounds.received} == {2}
    hand.device.tick(100.0)  # only the one that it waits for can be lost
    assert "0 has not spoken in round 5" in str(hand.device.error)


def test_two_quiet_neighbours_let_a_device_go_on_by_itself():
    hand, _ = listening()
    tell(hand, 0, 0.1, 1, quiet=5)
    tell(hand, 2, 0.1, 1, b"last", quiet=5)
    assert (hand.device.phase, hand.device.result) == ("finishing", [(1, 2, b"last")])


def test_a_quiet_device_keeps_what_comes_early_and_asks_in_rounds_that_it_does_not_speak_in():
    hand, _ = listening(quiet=5)
    hand.said()
    for t in (3, 2, 6):
        tell(hand, 0, 0.1, t, b"early%d" % t)
    assert hand.device.round == 1
    tell(hand, 0, 0.1, 1)
    for t in (1, 2, 3):
        tell(hand, 2, 0.1, t)
    assert hand.device.round == 4
    assert hand.said() == []
    hand.device.tick(hand.device.wake)
    assert hand.said() == [(0, DATA, 4, SILENT | WANT), (2, DATA, 4, SILENT | WANT)]
    for t in (4, 5, 6):
        tell(hand, 2, 0.2, t)
        tell(hand, 0, 0.2, t)
    assert hand.device.result == [(t, 0, b"early%d" % t) for t in (2, 3, 6)]


def test_who_is_ahead_of_all_that_was_announced_means_a_lost_journal():
    hand, _ = listening(quiet=3)
    tell(hand, 0, 0.1, 5, b"just early enough")
    assert hand.state[:3] == ("running", 1, 1)
    tell(hand, 0, 0.1, 6, b"impossible")
    assert hand.state[:3] == ("greeting", 2, 0)


def test_a_neighbour_that_is_behind_gets_every_frame_since_its_last():
    hand, _ = listening()
    tell(hand, 0, 0.1, 1, quiet=3)
    for t in (1, 2, 3, 4):
        tell(hand, 2, 0.1, t)
    assert hand.device.round == 5
    hand.said()
    for t in (1, 2, 3, 4):
        tell(hand, 0, 0.2, t, flags=WANT)
        assert hand.said() == [(0, DATA, t, SILENT)]
    tell(hand, 0, 0.3, 5)
    tell(hand, 2, 0.3, 5)
    assert sorted(hand.device.rounds._sent) == [5, 6]  # now both have spoken in round 5, and have heard all before


def test_who_speaks_though_it_announced_silence_is_refused():
    hand, _ = listening()
    tell(hand, 0, 0.1, 1, quiet=3)
    tell(hand, 2, 0.1, 1)
    before = hand.device.counts.refused.total()
    tell(hand, 0, 0.1, 2)  # a repetition of its silence, as when it asks for something
    assert hand.device.counts.refused.total() == before
    tell(hand, 0, 0.1, 2, b"after all")
    assert hand.device.counts.refused.total() == before + 1
    assert "announced to be quiet" in hand.log[-1]
    for t in (2, 3, 4, 5, 6):
        tell(hand, 2, 0.1, t)
        tell(hand, 0, 0.1, t)
    assert (hand.device.phase, hand.device.result) == ("finishing", [])


def test_silence_is_announced_for_rounds_in_which_silence_is_an_answer():
    """A neighbour that announces more than that is waited for all the same."""

    def make(network, row):
        yield Tell(Packets.of([]), np.empty(0, np.int64), np.empty(0, np.int64))
        return (yield Sum(np.array([[1]])))

    hand = Hand()
    hand.device.membership.make = make
    hand.running()
    for j in (0, 2):
        tell(hand, j, 0.1, 1, quiet=7)
    assert (hand.device.round, hand.device.rounds.received) == (2, {})
    for j in (0, 2):
        hand.hear(DATA, j, 0.2, frames.pack_array("sum", np.array([5])), 2)
    assert hand.device.result.tolist() == [[10]]


@pytest.mark.parametrize("heard", [0, 1])
def test_a_journal_knows_who_is_quiet(heard):
    """A device starts again while one neighbour, or both, are quiet; where both are it goes on to the end by itself."""
    hand, make = listening()
    tell(hand, 0, 0.1, 1, quiet=5)
    tell(hand, 2, 0.1, 1, b"said", quiet=5 * heard)
    again = Hand(journal=hand.journal)
    again.device.membership.make = make
    again.start(1.0)
    if heard:
        assert (again.device.phase, again.device.result) == ("finishing", [(1, 2, b"said")])
        return
    assert (again.device.round, {*again.device.rounds.received}) == (2, {0})
    for t in (2, 3, 4, 5, 6):
        tell(again, 2, 1.1, t)
    assert (again.device.phase, again.device.result) == ("finishing", [(1, 2, b"said")])


def test_a_first_frame_announces():
    _, make = listening(quiet=5)
    other = Hand(journal=MemoryJournal())
    other.device.membership.make = make
    other.start()
    for j in (0, 2):
        other.hello(j, 0.0)
        other.ready(j, 0.0, {0, 2})
    (frame,) = [
        frames.decode_frame(data)
        for to, data in other.device.outbox()
        if to == EVERYBODY and frames.decode_frame(data).kind == DATA
    ]
    assert (frame.round, frame.silent, frame.quiet) == (1, True, 5)


# --- promises ---------------------------------------------------------------------------------------------------------


def breaking(first, then):
    """Two devices: the second announces two quiet rounds with a first message."""

    def protocol(here):
        nobody, all_here = np.empty(0, np.int64), np.arange(len(here))
        second = np.flatnonzero(here == 1)
        hint = Silence(second, np.full(len(second), 2))
        yield Tell(Packets.of([]), nobody, nobody, quiet=hint)
        if then == "waits":
            yield Tell(Packets.of([]), nobody, nobody)
            yield Tell(Packets.of([]), nobody, nobody)
        if then == "sum":
            return (yield Sum(np.ones((len(here), 1), np.int64)))
        return (yield Each(np.ones((len(here), 1), np.int64), second if first else all_here))

    return protocol


@pytest.mark.parametrize(
    ("first", "then", "fine"), [(1, "speaks", 0), (0, "speaks", 0), (1, "sum", 0), (1, "waits", 1)]
)
def test_every_engine_holds_devices_to_their_word(first, then, fine):
    network, protocol = Network.chain(2), breaking(first, then)
    words = "round 2, .*: device 1 here has announced to say nothing up to round 3, and speaks"
    if fine:
        Simulator(network).run(protocol(np.arange(2)))
    else:
        with pytest.raises(ValueError, match=words):
            Simulator(network).run(protocol(np.arange(2)))
    start = lambda row, journal: Device(PeerSetup(row, network, {}, lambda net, k: protocol(np.array([k])), journal))  # noqa: E731
    played = run_loopback(network, start, LinkFaults(), np.random.default_rng(0))
    assert {device.phase for device in played.devices} == {"finished" if fine else "failed"}
    if not fine:
        assert "device 0 here has announced to say nothing up to round 3" in str(played.devices[1].error)


@pytest.mark.parametrize(
    ("quiet", "words"),
    [
        (Silence(np.array([0, 0]), np.array([1, 1])), "ascending"),
        (Silence(np.array([5]), np.array([1])), "places from 0 to 1"),
        (Silence(np.array([0]), np.array([1, 2])), "rounds of 1 quiet devices must be int64"),
        (Silence(np.array([0]), np.array([1.0])), "rounds of 1 quiet devices must be int64"),
        (Silence(np.array([0]), np.array([-1])), "nobody can be quiet for -1 rounds"),
    ],
)
def test_what_is_no_announcement_is_refused(quiet, words):
    def protocol():
        yield Each(np.zeros((2, 1)), np.empty(0, np.int64), quiet)

    with pytest.raises(ValueError, match=words):
        Simulator(Network.chain(2)).run(protocol())


def test_an_engine_forgets_promises_with_their_protocol():
    engine = Simulator(Network.chain(2))

    def quiet_to_its_end():
        yield Each(np.zeros((2, 1)), np.empty(0, np.int64), Silence(np.arange(2), np.full(2, 9)))

    engine.run(quiet_to_its_end())
    engine.run(quiet_to_its_end())
    assert engine.run(breaking(0, "waits")(np.arange(2)))[0].values.tolist() == [[1], [1]]
