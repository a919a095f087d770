"""What one authenticated member of a mesh can do to the others, and what it cannot: the table in docs/networks.md.

Each sentence of that table has a test here, in `tests/mesh/test_one_member.py` or in the file that it names.
"""

import numpy as np
import pytest

from conformesh import Network
from conformesh.peer import entry_store, frames
from conformesh.peer.async_device import AsyncDevice
from conformesh.peer.device import Device
from conformesh.peer.entries import REASON, attach_signature, entry_key, pack_entries
from conformesh.peer.frames import DATA, ENTRIES, FAILED, HELLO, Frame
from conformesh.peer.interface import EVERYBODY, PeerSetup
from conformesh.peer.journal import MemoryJournal
from conformesh.peer.json_bodies import MOST_AHEAD, MOST_RUNS, Hello, News
from conformesh.peer.loopback import Cut, LinkFaults, Pause, run_loopback
from conformesh.peer.membership import Membership
from conformesh.peer.memory import ENDED, Heading
from conformesh.peer.run_membership import RunLimit
from conformesh.peer.settings import Settings
from conformesh.protocols.messages import Gather, Max, Packets
from tests.peer.devices import in_device
from tests.peer.heard import drawn
from tests.peer.test_async_byzantine import Secret, robust, said
from tests.peer.test_device import Hand

FOUR = Network.complete(4)
OLD_END = 2**48 - 1  # the last run number that devices accepted before numbers were bounded by steps
KINDS = [Device, AsyncDevice]
MALLORY = 1  # the row of the member that misbehaves


class CountingJournal(MemoryJournal):
    """Counts how often the file would be rewritten."""

    def __init__(self):
        super().__init__()
        self.rewrites = 0

    def begin(self, record):
        self.rewrites += 1
        super().begin(record)


def starter(network=FOUR, kinds=None, kind=Device, log=None, **settings):
    """Return what starts devices that count each other in a few rounds, or without rounds."""

    def start(k, journal):
        def rounds(net, row):
            values = np.zeros((1, network.devices), dtype=np.int64)
            values[0, k] = 1
            for _ in range(3):
                values = yield Max(values)
            return int(values.sum())

        def entries(net, row):
            told = yield Gather(Packets.of([b"1"]))
            return int(told.heard.sum())

        make = entries if issubclass(kind, AsyncDevice) else rounds
        chosen = (kinds or {}).get(k, kind)
        said = (lambda words: None) if log is None else log
        return chosen(PeerSetup(k, network, {}, make, journal, Settings(**settings), log=said))

    return start


def one(kind, log=None, journal=None, **settings):
    """Return a device that has started, with its neighbours in our hands."""
    device = starter(kind=kind, log=log, **settings)(0, MemoryJournal() if journal is None else journal)
    device.start(0.0)
    device.outbox()
    return device


def greet(device, now, run, lost=(), sender=MALLORY):
    body = Hello(device.agreement, run, frozenset(lost)).pack()
    device.receive(frames.encode_frame(Frame(HELLO, 0, sender, 0, 0, body)), sender, now)


def ends(start, faults=None, limit=60.0, **how):
    return run_loopback(FOUR, start, faults or LinkFaults(), np.random.default_rng(0), limit, **how).devices


# --- run numbers ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("run", [OLD_END, MOST_RUNS - 1])
@pytest.mark.parametrize("kind", KINDS)
def test_a_greeting_moves_a_device_by_a_bounded_step(kind, run):
    device = one(kind)
    greet(device, 1.0, run)
    assert device.number == 1 + MOST_AHEAD


@pytest.mark.parametrize("kind", KINDS)
def test_greetings_move_a_device_once_in_a_while_however_many_there_are(kind):
    """With this bound a member needs MOST_RUNS / MOST_AHEAD steps of 0.2 s, about 50,000 years, to use up all runs."""
    log = []
    journal = CountingJournal()
    device = one(kind, log.append, journal)
    before = len(log), journal.rewrites
    for i in range(500):
        greet(device, 1.0 + i / 500, 10 + i)
    moves = round(1 / device.setup.settings.retry) + 1
    assert len(log) - before[0] <= 2 * moves
    assert journal.rewrites - before[1] <= moves
    for i in range(1000):
        greet(device, 2.0 + i / 100, MOST_RUNS - 1)
    assert device.number < 600 + MOST_AHEAD * (10 / device.setup.settings.retry + 2)
    assert MOST_RUNS / MOST_AHEAD * device.setup.settings.retry / (365.25 * 86400) > 50_000  # years


def planter(kind, greetings=30):
    """Return a kind of device whose first greetings name a run near the end."""

    class Planter(Membership if kind is Device else AsyncDevice):
        left = greetings

        def hello(self, flags=0):
            honest = super().hello(flags)
            if self.left <= 0:
                return honest
            self.left -= 1
            return honest._replace(body=Hello(self.agreement, OLD_END, self.lost).pack())

    return in_device("membership")(Planter) if kind is Device else Planter


@pytest.mark.parametrize("kind", KINDS)
def test_planted_greetings_do_not_end_later_runs_also_after_restarts(kind):
    """All but Mallory crash and start again after its greetings; then one more run is asked for, and it is finished."""
    crashes = tuple(Pause(k, 5.0, 6.0, crash=True) for k in (0, 2, 3))
    faults = LinkFaults(pauses=crashes, requests=((0, 12.0),))
    devices = ends(starter(kind=kind, kinds={MALLORY: planter(kind)}), faults, limit=30.0, stay=True)
    assert {device.phase for device in devices} == {"finished"}
    assert {device.result for device in devices} == {4}
    (number,) = {device.number for device in devices}
    assert 1 + MOST_AHEAD < number < OLD_END


@pytest.mark.parametrize("kind", KINDS)
def test_journals_that_hold_a_number_at_the_old_end_go_on_with_the_next(kind):
    """Numbers never fall, also in recovery: that no run has two results rests on it (`peer.view`)."""

    def start(k, journal):
        if not journal.data:
            device = starter(kind=kind)(k, journal)
            journal.begin(
                Heading(OLD_END, frozenset(), Hello(device.agreement, OLD_END, frozenset()).digest(), "").pack()
            )
            if kind is Device:
                journal.append(ENDED)
        return starter(kind=kind)(k, journal)

    devices = ends(start, LinkFaults(requests=((0, 10.0),)), limit=20.0, stay=True)
    assert {(device.phase, device.result) for device in devices} == {("finished", 4)}
    assert {device.number for device in devices} == {OLD_END + (2 if kind is Device else 1)}


@pytest.mark.parametrize("kind", KINDS)
def test_a_device_that_was_away_for_very_long_catches_up_in_steps(kind):
    ahead = 5 * MOST_AHEAD

    def start(k, journal):
        if k and not journal.data:
            journal.begin(Heading(ahead, frozenset(), 0, "").pack())
        return starter(kind=kind)(k, journal)

    devices = ends(start)
    assert {(device.phase, device.result, device.number) for device in devices} == {("finished", 4, ahead + 1)}


@pytest.mark.parametrize("kind", KINDS)
def test_a_device_far_behind_goes_at_once_to_where_all_its_neighbours_are(kind):
    """Step by step it would hold up the others for longer than their patience, again and again."""
    ahead = 600 * MOST_AHEAD

    def start(k, journal):
        if k and not journal.data:
            journal.begin(Heading(ahead, frozenset(), 0, "").pack())
        return starter(kind=kind, patience=5.0)(k, journal)

    devices = ends(start, limit=20.0)
    assert {(device.phase, device.result, device.number) for device in devices} == {("finished", 4, ahead + 1)}


def test_the_lowest_number_of_all_neighbours_bounds_a_step():
    limit, number = RunLimit(neighbours=3, pause=0.2), 1
    for sender in (0, 1):
        limit.bound(sender, MOST_RUNS - 1, number)
    assert limit.bound(0, MOST_RUNS - 1, number) == number + MOST_AHEAD
    limit.bound(2, 7 * MOST_AHEAD, number)
    assert limit.bound(0, MOST_RUNS - 1, number) == 7 * MOST_AHEAD


# --- who counts -------------------------------------------------------------------------------------------------------


@in_device("membership")
class Excluder(Membership):
    """Says in every greeting that it has lost device 3, which is well."""

    def hello(self, flags=0):
        return super().hello(flags)._replace(body=Hello(self.agreement, self.number, self.lost | {3}).pack())


def test_under_continue_a_member_can_leave_out_as_many_as_the_quorum_allows():
    """Known and stated: a link that is lost looks like one that is only said to be. The result names who counts."""
    devices = ends(starter(kinds={MALLORY: Excluder}, on_lost="continue", patience=2.0), limit=20.0)
    assert [device.survivors for device in devices[:3]] == [(0, 1, 2)] * 3
    assert [device.result for device in devices[:3]] == [3] * 3


@pytest.mark.parametrize(("settings", "lost"), [({"on_lost": "continue"}, {2, 3}), ({}, {3})])
def test_a_member_cannot_leave_out_more_than_the_quorum_allows_and_nobody_under_fail(settings, lost):
    device = one(Device, **settings)
    greet(device, 1.0, 1, lost)
    assert device.lost == frozenset()
    assert device.counts.refused == {"a hello that leaves out more devices than was agreed on": 1}


@pytest.mark.parametrize("ends_all", [False, True])
def test_a_reason_in_anothers_name_is_marked_and_leaves_out_the_sender_alone(ends_all):
    """Links prove who sends; a member may make up that device 3 has failed, and for what reason."""
    device = one(Device, on_lost="continue")
    news = News(3, "3 cannot take part: its disk is full", ends=ends_all).pack()
    device.receive(frames.encode_frame(Frame(FAILED, device.run, MALLORY, 0, 0, news)), MALLORY, 1.0)
    if ends_all:
        assert "3 says so, as 1 passes on, which is not verified" in str(device.error)
    else:
        assert device.lost == {MALLORY}


@pytest.mark.parametrize("on_lost", ["fail", "continue"])
def test_a_member_can_end_a_run_under_way_and_not_take_back_a_result(on_lost):
    """Known and stated: one that says that nobody may go on ends everybody, as one with other settings does."""
    news = News(MALLORY, "enough", ends=True).pack()
    device = one(Device, on_lost=on_lost)
    device.receive(frames.encode_frame(Frame(FAILED, device.run, MALLORY, 0, 0, news)), MALLORY, 1.0)
    assert (device.phase, str(device.error)) == ("failed", "enough (1 says so; no threshold was agreed on)")
    done = ends(starter(on_lost=on_lost))[0]
    done.receive(frames.encode_frame(Frame(FAILED, done.run, MALLORY, 0, 0, news)), MALLORY, done.clock.now)
    assert (done.phase, done.result) == ("finished", 4)


# --- what is said in rounds -------------------------------------------------------------------------------------------


class TwoFaced(Device):
    """Tells each neighbour another number, as large as it is."""

    def outbox(self):
        changed = []
        for to, data in super().outbox():
            for j in self.neighbours if to == EVERYBODY else (to,):
                frame = frames.decode_frame(data)
                if frame.kind == DATA:
                    values = frames.unpack_array(frame.body)
                    frame = frame._replace(body=frames.pack_array("max", np.full_like(values, 100 + j)))
                changed.append((j, frames.encode_frame(frame)))
        return changed


def test_in_rounds_a_member_can_say_two_things_and_devices_then_certify_two_thresholds():
    """Known and stated: numbers in rounds are not signed, and whoever is between two devices may change them."""
    chain = Network.chain(3)
    played = run_loopback(chain, starter(chain, {1: TwoFaced}), LinkFaults(), np.random.default_rng(0), 20.0)
    assert [device.phase for device in played.devices] == ["finished"] * 3
    assert played.devices[0].number == played.devices[2].number
    assert (played.devices[0].result, played.devices[2].result) == (300, 306)


def test_in_rounds_a_member_can_say_that_others_are_ready_or_done():
    """Known and stated: roll calls are passed on, and not signed. Device 2 has said nothing of either."""
    hand = Hand().start()
    for j in (0, 2):
        hand.hello(j, 0.0)
    hand.ready(0, 0.0, {0, 2})
    assert hand.device.phase == "running"
    for round_ in (1, 2):
        hand.data(0, 0.1, round_).data(2, 0.1, round_)
    hand.done(0, 0.2, {0, 1, 2})
    assert hand.device.phase == "finished"


# --- signed entries ---------------------------------------------------------------------------------------------------


def signing_device(row=0, run=1, **options):
    network = Network.complete(3)
    device = robust(network, drawn(network, 5, low=8), byzantine=0)(row, MemoryJournal())
    device.agreement |= options
    device.number = run
    device._clear()
    device.start(0.0)
    device.outbox()
    return device


@pytest.mark.parametrize("other", [{"mesh": "another"}, {"roster": "2, ab"}, {"option bins": "7"}, {"run": 2}])
def test_an_entry_signed_in_another_context_does_not_count_though_its_run_digest_is_the_same(other):
    """8 bytes name a run in frames. Whoever finds another context with the same ones must gain nothing."""
    device, elsewhere = signing_device(), signing_device(2, **other)
    elsewhere.run = device.run  # as if the digests had collided
    key = entry_key(2, 0)
    text = b"words"
    said(device, key, attach_signature(Secret(2).sign(elsewhere.store.signed_text(key, text)), text))
    assert device.counts.refused == {"an entry that its owner has not signed": 1}
    assert key not in device.store.entries


# --- an honest device without its journal -----------------------------------------------------------------------------


def forgetful(network, scores, others, old=None):
    """Start r-dcp; device 2 starts again with other scores and without its journal, or with one from a backup."""
    boots = []

    def start(k, journal):
        if k == 2:
            boots.append(k)
            if len(boots) == 2:
                journal.data[:] = old or b""
                return robust(network, others)(k, journal)
        return robust(network, scores)(k, journal)

    return start


@pytest.mark.parametrize("backup", [False, True])
@pytest.mark.parametrize("seed", range(3))
def test_an_honest_device_that_lost_its_journal_is_not_taken_for_a_byzantine_device(seed, backup):
    """It asks before it signs whether its neighbours have something of its own, and if so asks for a new run."""
    network = Network.complete(12)
    scores = drawn(network, seed, low=20, high=30)
    others = [*scores]
    others[2] = scores[2] + 0.5  # as many as before, which the caps allow
    old = None
    if backup:  # of an earlier run than that of its neighbours
        journal = MemoryJournal()
        journal.begin(Heading(1, frozenset(), 7, "other scores").pack())
        old = bytes(journal.data)
    faults = LinkFaults(loss=0.2, pauses=(Pause(2, 3.0, 4.0, crash=True),), requests=((0, 2.5),) if backup else ())
    played = run_loopback(
        network, forgetful(network, scores, others, old), faults, np.random.default_rng(seed), 60.0, stay=True
    )
    assert {device.byzantine for device in played.devices} == {()}
    assert {(device.final, len(device.survivors)) for device in played.devices} == {(True, 12)}
    held = np.sort(np.concatenate([own for k, own in enumerate(others) if k != 5]))
    assert all((held <= device.result.thresholds[0, 0, 0]).mean() >= 0.9 for device in played.devices)


def test_without_an_answer_a_device_that_lost_its_journal_speaks_after_a_while_and_may_count_as_byzantine():
    """Known and stated: neighbours may be gone for good, so it does not wait for ever. Here they come back at 8 s."""
    network = Network.complete(12)
    scores = drawn(network, 0, low=20, high=30)
    others = [*scores]
    others[2] = scores[2] + 0.5
    faults = LinkFaults(pauses=(Pause(2, 3.0, 4.0, crash=True),), cuts=(Cut(3.5, 8.0, frozenset({2})),))
    start, rng = forgetful(network, scores, others), np.random.default_rng(0)
    assert run_loopback(network, start, faults, rng, 7.5, stay=True).devices[2].survivors == (2,)
    played = run_loopback(network, forgetful(network, scores, others), faults, rng, 30.0, stay=True)
    assert {device.byzantine for device in played.devices if device.row != 2} == {(2,)}


# --- memory -----------------------------------------------------------------------------------------------------------


def test_frames_of_later_rounds_are_kept_up_to_the_size_of_the_largest_frame(monkeypatch):
    """A device that is quiet for many rounds hears its neighbours' frames of all these rounds in advance."""
    hand = Hand(rounds=5).running()
    monkeypatch.setattr(frames, "LARGEST_FRAME_BODY", 50)
    hand.device.rounds.spoken_for = 4  # as if it had announced to be quiet until then
    for round_ in (2, 3, 3, 4, 5):  # 20 bytes each
        hand.data(0, 0.1, round_)
    assert [*hand.device.rounds.early] == [(0, 2), (0, 3)]
    assert hand.device.counts.refused == {"a frame of a later round, of which more wait already than fit": 2}


def test_entries_are_kept_up_to_a_size(monkeypatch):
    """Where entries are not signed a neighbour may make up those of all devices."""
    device = one(AsyncDevice)
    monkeypatch.setattr(entry_store, "MOST_KEPT", 100)
    for k in (1, 2, 3):
        body = pack_entries(4, 0, 0, [(entry_key(k, 1), b"x" * 45)])
        device.receive(frames.encode_frame(Frame(ENTRIES, device.run, MALLORY, 0, 0, body)), MALLORY, 1.0)
    assert sum(map(len, device.store.entries.values())) == device.store.size <= 100
    assert device.counts.refused == {"an entry for which there is no room: all together may have 100 bytes": 1}


def test_a_reason_has_a_bounded_length():
    device = one(AsyncDevice)
    body = pack_entries(4, 0, 0, [(entry_key(2, REASON), b"x" * 10_000)])
    device.receive(frames.encode_frame(Frame(ENTRIES, device.run, MALLORY, 0, 0, body)), MALLORY, 1.0)
    assert device.reasons == {}
    assert device.counts.refused == {"a reason of 10000 bytes, where 8192 are the most": 1}


def test_what_a_neighbour_says_is_shown_in_part():
    log = []
    device = one(Device, log.append)
    body = Hello({"mesh": "m" * 100_000, "n" * 1000: "x"}, 1, frozenset()).pack()
    device.receive(frames.encode_frame(Frame(HELLO, 0, MALLORY, 0, 0, body)), MALLORY, 1.0)
    assert "(100000 characters)" in str(device.error)
    assert max(map(len, [str(device.error), *log, *device.counts.refused])) < 1200


def test_a_neighbour_that_makes_others_leave_somebody_out_is_named():
    log = []
    device = one(Device, log.append, on_lost="continue")
    greet(device, 1.0, 1, {3})
    assert "1 says that it has lost {3}" in log
