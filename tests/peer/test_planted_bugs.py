"""Every safeguard of a device, switched off on purpose: some schedule must notice, or the schedules are worth little."""  # noqa: E501

from dataclasses import replace

import numpy as np
import pytest

from conformesh import Network
from conformesh.engines import Simulator
from conformesh.peer import frames
from conformesh.peer.combine import combine_neighbour_messages
from conformesh.peer.device import Device
from conformesh.peer.frames import DATA, HELLO, READY, WANT, Frame
from conformesh.peer.interface import PeerSetup
from conformesh.peer.journal import MemoryJournal
from conformesh.peer.json_bodies import Hello, pack_rows
from conformesh.peer.loopback import LinkFaults, Pause, draw_link_faults, run_loopback
from conformesh.peer.membership import Membership
from conformesh.peer.memory import ENDED, RunJournal, SentMessages
from conformesh.peer.round_exchange import RoundExchange
from conformesh.peer.settings import Settings
from conformesh.protocols.messages import Max, Sum
from tests.peer.devices import drawn_scores, expected, in_device, schedule, starter, thresholds

SEEDS = range(12)


@in_device("membership")
class IgnoresRounds(Membership):
    def take_data(self, frame):
        super().take_data(frame._replace(round=self._rounds.round) if self.phase == "running" else frame)


@in_device("membership")
class IgnoresRuns(Membership):
    def check_run(self, frame):
        super().check_run(frame._replace(run=self.run))


@in_device("run_journal")
class KeepsNoJournal(RunJournal):
    def write_round(self, messages):
        pass


@in_device("run_journal")
class WritesAfterSpeaking(RunJournal):
    """The last record is not written yet when the device crashes."""

    def write_round(self, messages):
        kept, later = self._journal, MemoryJournal()
        self._journal = later
        super().write_round(messages)
        self._journal = kept
        if hasattr(self, "_late"):
            kept.append(self._late)
        (self._late,) = later.records()


@in_device("membership")
class NeverHelps(Membership):
    def _resend(self, frame):
        pass


@in_device("rounds")
class AddsInOrderOfArrival(RoundExchange):
    def _answer(self):
        order = list(self.received)
        weights = self.message.weights
        if weights is not None:
            weights = weights[[self._links.neighbours.index(j) for j in order]]
        received = dict(enumerate(self.received.values()))
        self._advance(combine_neighbour_messages(replace(self.message, weights=weights), self._links.row, received))


@in_device("rounds")
class KeepsOneFrame(RoundExchange):
    def _advance(self, given):
        super()._advance(given)
        self._sent = {self.round: self._sent[self.round]} if self.round in self._sent else {}


@in_device("rounds")
class CountsFrames(RoundExchange):
    _count = 0

    def _advance(self, given):
        self._count = 0
        super()._advance(given)

    def receive(self, frame):
        if self.is_running and frame.round == self.round:
            self.received[frame.sender] = self._value(frame)
            self._messages[frame.sender] = SentMessages(0, frame.body)
            self._count += 1

    @property
    def is_complete(self):
        return self.is_running and self._count >= len(self.neighbours)


@in_device("membership")
class _EndsAtOnce(Membership):
    def call_done(self):
        self.close("finished")
        self._journal.end(ENDED)


class LeavesAtOnce(_EndsAtOnce):
    def receive(self, data, sender, now):
        if self.phase != "finished":
            super().receive(data, sender, now)


@in_device("membership")
class AgreesWithEverybody(Membership):
    def take_hello(self, frame):
        theirs = Hello.of(frame.body, self.network.devices)
        super().take_hello(frame._replace(body=theirs._replace(agreement=self.agreement).pack()))


@in_device("rounds")
class _TimesRounds(RoundExchange):
    since = 0.0

    def _advance(self, given):
        super()._advance(given)
        self.since = self._clock.now


class CountsSilenceInTheRound(_TimesRounds):
    def tick(self, now):
        self.clock.advance(now)
        late = self.phase == "running" and self.clock.now - self.rounds.since > self.setup.settings.patience
        gone = [j for j in self.neighbours if late and j not in self.rounds.received]
        if gone:
            self._lose(gone)


@in_device("rounds")
class TakesAnything(RoundExchange):
    def _value(self, frame):
        return frames.unpack_array(frame.body)


def goes_wrong(play_one, right):
    """Whether a schedule ends otherwise than it should: other thresholds, a failure, a hang or an exception."""
    try:
        return thresholds(play_one().devices) != right
    except Exception:  # a bug may break anything
        return True


@pytest.mark.parametrize("bug", [IgnoresRounds, NeverHelps, KeepsOneFrame, CountsFrames, LeavesAtOnce])
@pytest.mark.parametrize("network", [Network.complete(4), pytest.param(Network.chain(4), marks=pytest.mark.slow)])
def test_schedules_notice(bug, network):
    scores = drawn_scores(network)
    right = expected(network, scores)
    sound, broken = (starter(network, scores, device=kind) for kind in (Device, bug))
    noticed = next((s for s in SEEDS if goes_wrong(lambda s=s: schedule(network, broken, s, limit=60), right)), None)
    assert noticed is not None
    assert not goes_wrong(lambda: schedule(network, sound, noticed), right)


def rescored(kind, seed):
    """Device 1 crashes early and comes back with other scores."""
    network, rng = Network.chain(4), np.random.default_rng([11, seed])
    old = drawn_scores(network)
    new = [scores + 3 if k == 1 else scores for k, scores in enumerate(old)]
    first, second = (starter(network, scores, device=kind) for scores in (old, new))
    crash = float(rng.uniform(0.4, 0.8))  # while the run is under way: none of these ends before 0.87 s
    faults = LinkFaults(
        loss=0.1, duplication=0.3, delay=(0.001, 0.05), pauses=(Pause(1, crash, crash + 0.3, crash=True),)
    )
    boots = []

    def start(k, journal):
        boots.append(k)
        return (second if boots.count(1) > 1 else first)(k, journal)

    return run_loopback(network, start, faults, rng, limit=60), new


def test_schedules_notice_frames_of_other_runs():
    right = expected(Network.chain(4), rescored(Device, 0)[1])
    sound = [rescored(Device, s)[0].devices for s in SEEDS]
    assert all(thresholds(devices) == right for devices in sound)
    assert {device.number for devices in sound for device in devices} == {2}
    broken = [rescored(IgnoresRuns, s)[0].devices for s in SEEDS]
    assert any(thresholds(devices) != right or max(d.number for d in devices) > 2 for devices in broken)


def test_numbers_of_another_run_are_refused():
    for kind, taken in ((Device, 0), (IgnoresRuns, 1)):
        device = hand_fed(kind)
        frame = Frame(DATA, device.run ^ 1, 0, 1, 0, frames.pack_array("max", np.full(2, 9)))
        device.receive(frames.encode_frame(frame), 0, 0.2)
        assert len(device.rounds.received) == taken


def early_crash(kind, seed):
    network, rng = Network.chain(4), np.random.default_rng([12, seed])
    crash = float(rng.uniform(0.25, 0.55))  # under way: all have begun by 0.21 s, and none ends before 0.59 s
    faults = LinkFaults(loss=0.1, delay=(0.001, 0.03), pauses=(Pause(1, crash, crash + 0.4, crash=True),))
    return run_loopback(network, starter(network, drawn_scores(network), device=kind), faults, rng, limit=60)


@pytest.mark.parametrize("bug", [KeepsNoJournal, WritesAfterSpeaking])
def test_schedules_notice_a_journal_that_is_not_kept(bug):
    """A protocol is deterministic, so what is left of the run is thrown away: a second run, and that is noticed."""
    right = expected(Network.chain(4), drawn_scores(Network.chain(4)))
    sound = [early_crash(Device, s) for s in SEEDS]
    assert all(thresholds(played.devices) == right for played in sound)
    assert {device.number for played in sound for device in played.devices} == {1}
    broken = [early_crash(bug, s) for s in SEEDS]
    assert max(device.number for played in broken for device in played.devices) > 1


def averaging(network, x, rounds=8):
    """Add up neighbours' floats, whose order shows in the last bits."""

    def protocol(values, weights):
        for _ in range(rounds):
            values = 0.2 * values + (yield Sum(values, weights))
        return values

    weights = np.random.default_rng(2).uniform(0.1, 0.2, len(network.indices))

    def mine(net, row):
        return protocol(x[[row]], weights[net.indptr[row] : net.indptr[row + 1]])

    return mine, Simulator(network).run(protocol(x, weights))[0]


def test_schedules_notice_sums_in_order_of_arrival():
    network = Network.torus(3, 3)
    make, right = averaging(network, np.random.default_rng(1).normal(size=(9, 3)))

    def ends(kind, seed):
        rng = np.random.default_rng([13, seed])
        faults = draw_link_faults(network, rng, crashes=False)
        devices = run_loopback(
            network, lambda k, j: kind(PeerSetup(k, network, {}, make, j)), faults, rng, limit=60
        ).devices
        return [device.result.tobytes() for device in devices]

    want = [right[[k]].tobytes() for k in range(9)]
    assert all(ends(Device, s) == want for s in range(10))
    assert any(ends(AddsInOrderOfArrival, s) != want for s in range(10))


def mixed(kind):
    network = Network.chain(2)
    scores = drawn_scores(network)
    starts = [starter(network, scores, "h-dcp", alpha=alpha, device=kind, rounds=20) for alpha in (0.1, 0.4)]
    return run_loopback(network, lambda k, j: starts[k](k, j), LinkFaults(), np.random.default_rng(0), limit=60).devices


def test_a_difference_is_noticed():
    assert [device.phase for device in mixed(Device)] == ["failed", "failed"]
    assert "failed" not in [device.phase for device in mixed(AgreesWithEverybody)]


def hand_fed(kind, **settings):
    """The middle of a chain of three, in round 1, with hand-made neighbours."""

    def make(net, row):
        yield Max(np.zeros((1, 2), dtype=np.int64))

    device = kind(PeerSetup(1, Network.chain(3), {}, make, MemoryJournal(), Settings(**settings)))
    device.start(0.0)
    for j in (0, 2):
        device.receive(frames.encode_frame(hello(device, j)), j, 0.1)
        ready = Frame(READY, device.run, j, 0, 0, pack_rows({j}))
        device.receive(frames.encode_frame(ready), j, 0.1)
    assert (device.phase, device.round) == ("running", 1)
    device.outbox()
    return device


def hello(device, sender, flags=0):
    return Frame(HELLO, 0, sender, 0, flags, Hello(device.agreement, 1, frozenset()).pack())


def test_a_neighbour_that_waits_itself_is_not_lost():
    """It says hello again and again, so it lives, but cannot go on: somebody behind it is slow."""
    found = {}
    for kind in (Device, CountsSilenceInTheRound):
        device = hand_fed(kind, patience=3.0, on_lost="continue")
        for step in range(1, 60):
            now = 0.1 + 0.2 * step
            for j in (0, 2):
                device.receive(frames.encode_frame(hello(device, j, WANT)), j, now)
            device.tick(now)
        found[kind] = device.survivors, device.phase
    assert found[Device] == ((0, 1, 2), "running")
    assert found[CountsSilenceInTheRound] != found[Device]


@pytest.mark.parametrize(
    ("question", "values"),
    [
        ("max", np.zeros(2)),
        ("max", np.zeros(2, dtype=np.int32)),
        ("max", np.zeros(3, dtype=np.int64)),
        ("max", np.zeros((2, 1), dtype=np.int64)),
        ("max", np.int64(0)),
        ("sum", np.zeros(2, dtype=np.int64)),
        ("min", np.zeros(2, dtype=np.int64)),
        ("each", np.zeros(2, dtype=np.int64)),
        ("tell", np.zeros(2, dtype=np.int64)),
    ],
)
def test_numbers_of_another_type_shape_or_question_are_refused(question, values):
    for kind, taken in ((Device, 0), (TakesAnything, 1)):
        device = hand_fed(kind)
        frame = Frame(DATA, device.run, 0, 1, 0, frames.pack_array(question, np.asarray(values)))
        device.receive(frames.encode_frame(frame), 0, 0.2)
        assert len(device.rounds.received) == taken
        assert device.counts.refused.total() == 1 - taken


def test_silence_is_refused_where_everybody_speaks():
    device = hand_fed(Device)
    body = bytes([frames.QUESTIONS["max"]])
    device.receive(frames.encode_frame(Frame(DATA, device.run, 0, 1, frames.SILENT, body)), 0, 0.2)
    assert device.counts.refused == {"a silent frame where everybody speaks": 1}
    assert device.rounds.received == {}


@pytest.mark.parametrize(
    ("sender", "changes"),
    [(0, {"run": 5}), (0, {"sender": 2}), (0, {"sender": 77}), (1, {"sender": 1}), (7, {"sender": 7})],
)
def test_strangers_and_other_runs_are_refused_and_change_nothing(sender, changes):
    device = hand_fed(Device)
    frame = Frame(DATA, device.run, 0, 1, 0, frames.pack_array("max", np.zeros(2, dtype=np.int64)))
    device.receive(frames.encode_frame(frame._replace(**changes)), sender, 0.2)
    assert device.counts.refused.total() == 1
    assert device.rounds.received == {}
    assert device.outbox() == []


def test_a_repetition_counts_once():
    device = hand_fed(Device)
    for _ in range(5):
        frame = Frame(DATA, device.run, 0, 1, 0, frames.pack_array("max", np.zeros(2, dtype=np.int64)))
        device.receive(frames.encode_frame(frame), 0, 0.2)
    assert (device.round, device.phase, set(device.rounds.received)) == (1, "running", {0})
