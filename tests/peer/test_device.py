"""One device, moved by hand: what it says, to whom, when, and what it makes of what it hears."""

import numpy as np
import pytest

from conformesh import Network
from conformesh.peer import frames
from conformesh.peer.device import Device
from conformesh.peer.frames import DATA, FAILED, FINISHED, HELLO, READY, SILENT, WANT, Frame
from conformesh.peer.interface import EVERYBODY, PeerSetup
from conformesh.peer.journal import MemoryJournal
from conformesh.peer.json_bodies import Hello, News, pack_rows, unpack_rows
from conformesh.peer.memory import ENDED, REPORTED, Heading, unpack_round
from conformesh.peer.settings import Settings
from conformesh.protocols.messages import Each, Max, Packets, Tell

CHAIN = Network.chain(3)
ALL = {0, 1, 2}


class Hand:
    """The middle of a chain of three, by default, with its neighbours in our hands."""

    def __init__(
        self, network=CHAIN, row=1, rounds=2, agreement=None, journal=None, scores="", stored_run=0, **settings
    ):
        def make(net, at):
            value = np.full((1, 2), row)
            for _ in range(rounds):
                value = yield Max(value)
            return value[0].tolist()

        self.log, self.journal = [], journal or MemoryJournal()
        self.device = Device(
            PeerSetup(
                row,
                network,
                agreement or {},
                make,
                self.journal,
                Settings(**settings),
                scores,
                self.log.append,
                stored_run=stored_run,
            ),
        )

    def start(self, now=0.0):
        self.device.start(now)
        return self

    def hear(self, kind, sender, now, body=b"", round=0, flags=0, run=None):
        run = self.device.run if run is None else run
        self.device.receive(frames.encode_frame(Frame(kind, run, sender, round, flags, body)), sender, now)
        return self

    def hello(self, sender, now, run=1, lost=(), flags=0, agreement=None):
        words = Hello(self.device.agreement if agreement is None else agreement, run, frozenset(lost))
        return self.hear(HELLO, sender, now, words.pack(), 0, flags, run=0)

    def ready(self, sender, now, rows, flags=0):
        return self.hear(READY, sender, now, pack_rows(rows), 0, flags)

    def done(self, sender, now, rows, flags=0, round=2):
        return self.hear(FINISHED, sender, now, pack_rows(rows), round, flags)

    def data(self, sender, now, round, value=0, flags=0):
        return self.hear(DATA, sender, now, frames.pack_array("max", np.full(2, value)), round, flags)

    def running(self, now=0.0):
        """Let everybody be ready."""
        self.start(now)
        for j in self.device.neighbours:
            self.hello(j, now)
            self.ready(j, now, {*range(self.device.network.devices)} - {self.device.row})
        self.device.outbox()
        return self

    def said(self):
        """What was said since: to whom, the kind of frame, its round, and whether it wants an answer."""
        out = [(to, frames.decode_frame(data)) for to, data in self.device.outbox()]
        assert all(frame.sender == self.device.row for _, frame in out)
        self.bodies = [frame.body for _, frame in out]
        return [(to, frame.kind, frame.round, frame.flags) for to, frame in out]

    @property
    def state(self):
        return self.device.phase, self.device.number, self.device.round, {*self.device.survivors}


# --- greeting ---------------------------------------------------------------------------------------------------------


def test_hellos_are_repeated_and_ask_for_an_answer_until_there_is_one():
    hand = Hand(retry=0.25).start(3.0)
    assert hand.said() == [(0, HELLO, 0, WANT), (2, HELLO, 0, WANT)]
    assert Hello.of(hand.bodies[0], 3) == Hello(hand.device.agreement, 1, frozenset())
    assert hand.device.wake == 3.25
    hand.device.tick(3.24)
    assert hand.said() == []
    hand.hello(0, 3.24)
    assert hand.said() == []  # it agrees, and has not asked
    hand.device.tick(3.25)
    assert hand.said() == [(0, HELLO, 0, 0), (2, HELLO, 0, WANT)]
    assert hand.device.wake == 3.5
    hand.hello(2, 3.3, flags=WANT)
    assert hand.said() == [(2, HELLO, 0, 0), (EVERYBODY, READY, 0, 0)]
    assert unpack_rows(hand.bodies[1], 3) == {1}
    assert hand.state == ("greeting", 1, 0, ALL)


def test_a_device_that_has_not_begun_owes_nothing():
    ledger = Hand().start().device.ledger
    assert (ledger.rounds, ledger.devices, ledger.everyone) == (0, 1, [0, 0])
    ledger = Hand().running().device.ledger
    assert (ledger.rounds, ledger.devices, ledger.everyone) == (1, 1, [2, 128])  # its first message


def test_data_begins_when_everybody_is_known_to_be_ready():
    hand = Hand().start()
    hand.ready(0, 0.1, {0})  # before its hello: passed on all the same
    assert (EVERYBODY, READY, 0, 0) in hand.said()
    assert hand.state[0] == "greeting"
    hand.hello(0, 0.1).hello(2, 0.1).said()
    hand.device.tick(0.3)
    assert hand.said() == [(0, HELLO, 0, 0), (0, READY, 0, WANT), (2, HELLO, 0, 0), (2, READY, 0, WANT)]
    assert {unpack_rows(body, 3) for body in hand.bodies[1::2]} == {frozenset({0, 1})}
    hand.ready(2, 0.4, {0}, WANT)  # nothing new, but it asks
    assert hand.said() == [(2, READY, 0, 0)]
    assert hand.journal.records() == []
    hand.ready(2, 0.5, {2})
    assert hand.said() == [(EVERYBODY, READY, 0, 0), (EVERYBODY, DATA, 1, 0)]
    assert unpack_rows(hand.bodies[0], 3) == ALL
    assert hand.state == ("running", 1, 1, ALL)
    (heading,) = hand.journal.records()
    assert Heading.of(heading) == Heading(1, frozenset(), hand.device.run, "")
    hand.ready(0, 0.6, {0}, WANT)  # it missed the last of it
    assert hand.said() == [(0, READY, 0 + 1, 0)]


def test_data_that_comes_while_we_greet_is_used_later():
    hand = Hand().start()
    hand.hello(0, 0.1).hello(2, 0.1).said()
    hand.data(0, 0.1, 1, value=7)
    assert hand.said() == [(0, HELLO, 0, WANT)]
    assert hand.state[0] == "greeting"
    hand.ready(0, 0.2, ALL)
    assert hand.state == ("running", 1, 1, ALL)
    assert {*hand.device.rounds.received} == {0}
    assert hand.device.missing == 1


@pytest.mark.parametrize(
    ("mine", "theirs", "differ"),
    [
        ({"alpha": "0.1", "same": "x"}, {"alpha": "0.2", "same": "x"}, "alpha: '0.1' at 1, '0.2' at 2. N"),
        ({"a": "1", "b": "2"}, {"b": "3", "a": "0"}, "a: '1' at 1, '0' at 2; b: '2' at 1, '3' at 2. N"),
        ({"a": "1"}, {}, "a: '1' at 1, 'nothing' at 2. N"),
        ({}, {"a": "1"}, "a: 'nothing' at 1, '1' at 2. N"),
    ],
)
@pytest.mark.parametrize("on_lost", ["fail", "continue"])
def test_all_that_differs_is_named_and_ends_everybody(mine, theirs, differ, on_lost):
    hand = Hand(agreement=mine, on_lost=on_lost).start()
    hand.said()
    common = {name: text for name, text in hand.device.agreement.items() if name not in mine}
    hand.hello(2, 0.1, agreement=theirs | common)
    words = f"1 and 2 do not agree; {differ}othing was sent; make all folders the same"
    assert (hand.device.phase, str(hand.device.error)) == ("failed", words)
    assert hand.device.error.code == "disagreement"
    assert hand.said() == [(2, HELLO, 0, 0), (0, HELLO, 0, 0), (0, FAILED, 0, 0), (2, HELLO, 0, 0), (2, FAILED, 0, 0)]
    assert News.of(hand.bodies[2], 3) == News(1, words, ends=True)


# --- rounds -----------------------------------------------------------------------------------------------------------


def test_what_is_missing_is_asked_for_by_repeating_what_one_said():
    hand = Hand(retry=0.2).running(1.0)
    assert hand.state == ("running", 1, 1, ALL)
    assert hand.device.missing == 2
    hand.device.tick(1.1)
    assert hand.said() == []
    hand.device.tick(1.2)
    assert hand.said() == [(0, DATA, 1, WANT), (2, DATA, 1, WANT)]
    assert hand.device.counts.resent == 2
    hand.data(0, 1.3, 1, value=5)
    assert (hand.said(), hand.device.missing) == ([], 1)
    hand.device.tick(1.4)
    assert hand.said() == [(2, DATA, 1, WANT)]
    hand.data(2, 1.5, 1, value=3)
    assert hand.said() == [(EVERYBODY, DATA, 2, 0)]
    assert frames.unpack_array(hand.bodies[0]).tolist() == [5, 5]
    assert hand.device.wake == 1.7
    assert [
        {j: frames.unpack_array(said.body)[0] for j, said in unpack_round(record)}
        for record in hand.journal.records()[1:]
    ] == [{0: 5, 2: 3}]


def test_a_neighbour_that_asks_gets_the_frame_of_its_round_or_where_we_are():
    hand = Hand(rounds=3).running()
    hand.data(0, 0.1, 1).data(2, 0.1, 1).said()  # now in round 2
    resent = hand.device.counts.resent
    hand.data(0, 0.2, 1, flags=WANT)
    assert hand.said() == [(0, DATA, 1, 0)]
    hand.data(0, 0.2, 2, flags=WANT)
    assert hand.said() == [(0, DATA, 2, 0)]
    hand.data(2, 0.3, 3, flags=WANT)  # a round ahead: it hears where we are
    assert hand.said() == [(2, DATA, 2, 0)]
    assert hand.device.counts.resent == resent + 3
    hand.data(2, 0.4, 2)  # round 3 came early, and is used at once
    assert hand.state == ("running", 1, 3, ALL)
    assert {*hand.device.rounds.received} == {2}
    hand.said()
    hand.data(0, 0.5, 1, flags=WANT)  # two frames are remembered: now those of rounds 2 and 3
    assert hand.said() == [(0, DATA, 3, 0)]


def test_a_neighbour_two_rounds_ahead_means_that_we_forgot_and_starts_a_new_run():
    for speak in (lambda hand: hand.data(0, 0.1, 3), lambda hand: hand.done(0, 0.1, {0}, round=3)):
        hand = Hand(rounds=5).running()
        speak(hand)
        assert hand.state == ("greeting", 2, 0, ALL)
        assert hand.said() == [(0, HELLO, 0, WANT), (2, HELLO, 0, WANT)]
        assert Hello.of(hand.bodies[0], 3).run == 2
    hand = Hand(rounds=5).running()
    hand.data(0, 0.1, 2).done(2, 0.1, {2}, round=2)
    assert hand.state == ("running", 1, 1, ALL)


def test_what_is_sent_and_heard_is_counted():
    hand = Hand(retry=0.2)
    sent, heard = [], {0: [], 2: []}
    receive, outbox = hand.device.receive, hand.device.outbox

    def listen(data, sender, now):
        heard[sender].append(len(data))
        receive(data, sender, now)

    def speak():
        out = outbox()
        sent.extend(len(data) for to, data in out for _ in range(2 if to == EVERYBODY else 1))
        return out

    hand.device.receive, hand.device.outbox = listen, speak
    hand.running()
    hand.data(0, 0.1, 1)
    hand.device.tick(0.3)
    hand.data(2, 0.4, 1).data(0, 0.5, 2).data(2, 0.5, 2)
    hand.device.outbox()
    counts = hand.device.counts
    assert (counts.sent, counts.sent_bytes) == (len(sent), sum(sent))
    assert counts.received == {j: len(sizes) for j, sizes in heard.items()}
    assert counts.received_bytes == {j: sum(sizes) for j, sizes in heard.items()}
    assert (counts.resent, counts.refused.total()) == (1, 0)
    hand.device.receive(b"x" * 50, 0, 0.6)  # what is refused is not heard
    assert (counts.received[0], counts.refused.total()) == (len(heard[0]) - 1, 1)


def opened(make):
    """A protocol in its first round, of which the middle of a chain has said its part and heard nothing."""
    hand = Hand()
    hand.device.membership.make = make
    hand.start()
    for j in (0, 2):
        hand.hello(j, 0.0).ready(j, 0.0, {j})
    return hand


def test_silence_is_said_in_few_bytes_and_heard_as_silence():
    """A device that has nothing to say in a round says only that; who answers silently is left out of the answer."""

    def make(net, row):
        heard = yield Each(np.array([[7.0, 8.0]]), np.array([], dtype=np.int64))
        return heard.sender.tolist(), heard.values.tolist()

    hand = opened(make)
    assert hand.said()[-1] == (EVERYBODY, DATA, 1, SILENT)
    assert hand.bodies[-1] == bytes([4])
    hand.hear(DATA, 0, 0.1, bytes([4]), 1, SILENT)
    hand.hear(DATA, 2, 0.1, frames.pack_array("each", np.array([1.0, 2.0])), 1)
    assert (hand.device.phase, hand.device.result) == ("finishing", ([2], [[1.0, 2.0]]))
    record = hand.journal.records()[-1]
    assert [(j, said.flags) for j, said in unpack_round(record)] == [(0, SILENT), (2, 0)]


def telling(net, row):
    """Tell something, then nothing in a string without bytes, then stay silent."""
    heard = []
    for strings in ([b"mine"], [b""], []):
        speakers = np.arange(len(strings))
        told = yield Tell(Packets.of(strings), speakers, np.ones(len(strings), dtype=np.int64))
        assert told.receiver.tolist() == [row] * len(told.packets)
        heard.append({j: told.packets[i] for i, j in enumerate(told.sender.tolist())})
    return heard


def test_what_is_told_travels_as_it_is_and_a_string_without_bytes_is_no_silence():
    """A body is the question and the bytes; a device that starts again hears all of it from its journal."""
    hand = opened(telling)
    assert (hand.said()[-1], hand.bodies[-1]) == ((EVERYBODY, DATA, 1, 0), b"\5mine")
    hand.hear(DATA, 0, 0.1, b"\5", 1).hear(DATA, 2, 0.1, b"\5" + bytes(range(256)), 1)
    assert (hand.said()[-1], hand.bodies[-1]) == ((EVERYBODY, DATA, 2, 0), b"\5")
    hand.hear(DATA, 0, 0.2, b"\5", 2, SILENT).hear(DATA, 2, 0.2, b"\5\5", 2)
    assert (hand.said()[-1], hand.bodies[-1]) == ((EVERYBODY, DATA, 3, SILENT), b"\5")
    hand.hear(DATA, 0, 0.3, b"\5", 3, SILENT).hear(DATA, 2, 0.3, b"\5", 3, SILENT)
    heard = [{0: b"", 2: bytes(range(256))}, {2: b"\5"}, {}]
    assert (hand.device.phase, hand.device.result) == ("finishing", heard)
    cost = hand.device.ledger.cost()
    assert (cost.rounds, cost.numbers.tolist(), cost.bits.tolist()) == (3, [2.0], [32.0])
    again = Hand(journal=hand.journal)
    again.device.membership.make = telling
    again.start(5.0)
    assert (again.device.phase, again.device.result) == ("finishing", heard)


@pytest.mark.parametrize(
    ("body", "flags", "words"),
    [
        (b"", 0, "begins with nothing, which is no question"),
        (b"", SILENT, "begins with nothing, which is no question"),
        (b"\6abc", 0, "begins with 06, which is no question"),
        (b"\4", SILENT, "asks for the each where this device asks for the tell"),
        (frames.pack_array("max", np.zeros(2)), 0, "asks for the max where this device asks for the tell"),
        (b"\5abc", SILENT, "a silent frame that says 3 bytes"),
    ],
)
def test_a_frame_that_lies_about_what_it_tells_is_refused(body, flags, words):
    hand = opened(telling).hear(DATA, 0, 0.1, body, 1, flags)
    assert hand.device.rounds.received == {}
    assert [words in reason for reason in hand.device.counts.refused] == [True]


def test_where_an_array_is_awaited_nothing_else_is_taken():
    for body, flags, words in [
        (b"\5abc", 0, "asks for the tell where this device asks for the max"),
        (b"\2", 0, "an array takes at least 4 bytes, got 1"),
        (b"\2", SILENT, "a silent frame where everybody speaks"),
        (
            frames.pack_array("max", np.zeros((2, 1), np.int64)),
            0,
            "holds 2 int64 in another shape, this device int64 of",
        ),
        (frames.pack_array("max", np.zeros(3, np.int64)), 0, "holds 3 int64, this device int64 of shape (2,)"),
        (frames.pack_array("max", np.zeros(2)), 0, "holds 2 float64, this device int64 of shape (2,)"),
    ]:
        hand = Hand().running().hear(DATA, 0, 0.1, body, 1, flags)
        assert hand.device.rounds.received == {}
        assert [words in reason for reason in hand.device.counts.refused] == [True], hand.device.counts.refused


def test_a_device_that_starts_again_hears_its_journal_and_goes_on():
    hand = Hand(rounds=3, scores="mine").running()
    hand.data(0, 0.1, 1, value=9).data(2, 0.1, 1)
    again = Hand(rounds=3, scores="mine", journal=hand.journal).start(5.0)
    assert again.state == ("running", 1, 2, ALL)
    assert again.device.run == hand.device.run
    assert again.said() == [(0, DATA, 2, WANT), (2, DATA, 2, WANT)]
    assert frames.unpack_array(again.bodies[0]).tolist() == [9, 9]
    again.ready(0, 5.1, {0}, WANT)
    assert (again.said(), unpack_rows(again.bodies[0], 3)) == ([(0, READY, 2, 0)], ALL)
    other = Hand(rounds=3, scores="others", journal=hand.journal).start(5.0)
    assert other.state == ("greeting", 2, 0, ALL)  # the record is of no use, but the number is taken
    unreadable = MemoryJournal()
    unreadable.append(b"what?")
    assert Hand(journal=unreadable).start().state == ("greeting", 1, 0, ALL)


def test_a_journal_that_ends_before_the_end_says_so_at_once():
    hand = Hand(rounds=1).running()
    hand.data(0, 0.1, 1).data(2, 0.1, 1)
    assert hand.state[0] == "finishing"
    again = Hand(rounds=1, journal=hand.journal).start(5.0)
    assert again.state[0] == "finishing"
    assert (EVERYBODY, FINISHED, 1, 0) in again.said()
    again.done(0, 5.1, {0, 2}, round=1)
    assert (again.state[0], again.journal.records()[-1]) == ("finished", ENDED)
    assert Hand(rounds=1, journal=hand.journal).start(9.0).state == ("greeting", 2, 0, ALL)


def finished_and_killed(**more):
    """Return the journal of a device that was killed after its run had finished, before it reported the result."""
    hand = Hand(rounds=1, **more).running()
    hand.data(0, 0.1, 1).data(2, 0.1, 1).done(0, 0.2, {0, 2}, round=1)
    assert hand.state[0] == "finished"
    return hand.journal


def test_a_stored_result_that_was_not_reported_ends_the_run_without_neighbours():
    """It answers neighbours that do not know yet that all have finished, and waits for none of them."""
    again = Hand(rounds=1, journal=finished_and_killed(), stored_run=1, patience=60.0, linger=2.0).start(5.0)
    assert again.state == ("finished", 1, 1, ALL)
    again.done(0, 5.1, {0}, WANT, round=1)
    assert (again.said(), unpack_rows(again.bodies[0], 3)) == ([(0, FINISHED, 1, 0)], ALL)
    again.device.tick(6.9)
    assert not again.device.over
    again.device.tick(7.1)
    assert again.device.over
    assert again.device.error is None


@pytest.mark.parametrize(
    ("reported", "more"),
    [(True, {"stored_run": 1}), (False, {}), (False, {"stored_run": 2}), (False, {"stored_run": 1, "scores": "new"})],
    ids=["reported", "no result", "result of another run", "other scores"],
)
def test_a_new_run_is_asked_for_unless_an_unreported_result_is_there(reported, more):
    journal = finished_and_killed()
    if reported:
        Hand(rounds=1, journal=journal, stored_run=1).start(5.0).device.note_reported()
    assert Hand(rounds=1, journal=journal, **more).start(9.0).state == ("greeting", 2, 0, ALL)


def test_a_failed_run_is_never_reported_as_finished():
    """The result on disk is that of an earlier run."""
    hand = Hand(rounds=1, journal=finished_and_killed(), patience=2.0).start(5.0)
    hand.device.tick(7.5)
    assert hand.state[:2] == ("failed", 2)
    assert Hand(rounds=1, journal=hand.journal, stored_run=1).start(9.0).state == ("greeting", 3, 0, ALL)


# --- the end ----------------------------------------------------------------------------------------------------------


def finishing(**settings):
    hand = Hand(rounds=1, **settings).running()
    hand.data(0, 0.1, 1).data(2, 0.1, 1).said()
    assert hand.state[0] == "finishing"
    return hand


def test_who_is_done_repeats_it_until_all_are():
    hand = finishing(retry=0.2)
    hand.device.tick(0.35)
    assert hand.said() == [(0, FINISHED, 1, WANT), (2, FINISHED, 1, WANT)]
    hand.done(0, 0.4, {0}, round=1)
    assert hand.said() == [(EVERYBODY, FINISHED, 1, 0)]
    hand.done(0, 0.45, {0}, flags=WANT, round=1)
    assert hand.said() == [(0, FINISHED, 1, 0)]
    assert unpack_rows(hand.bodies[0], 3) == {0, 1}
    hand.done(2, 0.5, {2}, round=1)
    assert (hand.state[0], hand.device.result) == ("finished", [1, 1])
    hand.said()
    hand.device.tick(0.8)
    assert hand.said() == []  # who misses it asks
    hand.data(0, 0.9, 1, flags=WANT)
    assert hand.said() == [(0, DATA, 1, 0)]


def test_who_is_not_done_helps_who_is():
    hand = Hand(rounds=2).running()
    hand.done(0, 0.1, {0}, round=1)
    assert hand.said() == []
    hand.done(0, 0.1, {0}, round=1, flags=WANT)
    assert hand.said() == [(0, DATA, 1, 0)]
    assert hand.state == ("running", 1, 1, ALL)


def test_a_result_is_over_when_all_neighbours_know_of_all_or_after_a_while():
    hand = finishing(linger=2.0)
    hand.done(0, 0.5, {0, 2}, round=1).done(0, 0.6, ALL, round=1)
    assert (hand.state[0], hand.device.over) == ("finished", False)
    hand.done(2, 0.7, ALL, round=1)
    assert hand.device.over
    hand.device.recalibrate(0.8)
    assert not hand.device.over  # a run was asked for
    hand.device.tick(2.4)
    assert hand.state == ("finished", 1, 1, ALL)
    hand.device.tick(2.6)  # the result has stood for two seconds
    assert hand.state == ("greeting", 2, 0, ALL)


# --- loss and failure -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("hand", "heard", "words"),
    [
        (lambda **s: Hand(**s).start(), [], "0, 2 have not said hello within 2 s"),
        (lambda **s: Hand(**s).start(), [0], "2 has not said hello within 2 s"),
        (lambda **s: Hand(**s).running(), [], "0, 2 have not spoken in round 1 within 2 s"),
        (finishing, [2], "0 has not finished within 2 s"),
    ],
)
def test_who_is_silent_for_longer_than_the_patience_is_named(hand, heard, words):
    hand = hand(patience=2.0)
    for j in heard:
        hand.hello(j, 1.0)
    hand.device.tick(2.0)
    assert hand.device.error is None
    hand.device.tick(2.25)
    link = "; start again what has stopped or check the link, or use --on-lost continue"
    assert str(hand.device.error) == words + link
    assert hand.device.result is None


def test_who_has_spoken_in_a_round_is_not_waited_for():
    hand = Hand(patience=2.0).running()
    hand.data(0, 0.1, 1)
    hand.device.tick(2.25)
    assert str(hand.device.error).startswith("2 has not spoken in round 1 within 2 s;")


@pytest.mark.parametrize(
    ("say", "words"),
    [
        (
            lambda hand, now: hand.hear(DATA, 0, now, frames.pack_array("max", np.zeros(3)), 2),
            "a frame holds 3 float64",
        ),
        (lambda hand, now: hand.done(0, now, {0}, round=1), "it has finished after round 1"),
    ],
)
def test_who_says_again_and_again_what_is_of_no_use_is_not_waited_for(say, words):
    """Though it is heard; until it says something else, as after a frame that was somebody else's."""
    hand = Hand(patience=2.0, rounds=3).running()
    hand.data(0, 0.1, 1).data(2, 0.1, 1).data(2, 0.2, 2)
    for now in (1.0, 1.5, 2.0, 2.5, 3.0):
        say(hand, now)
        hand.device.tick(now)
        assert hand.device.error is None
    right = Hand(patience=2.0, rounds=3).running()
    right.data(0, 0.1, 1).data(2, 0.1, 1)
    say(right, 1.0)
    right.data(0, 2.9, 2).data(2, 2.9, 2)
    right.device.tick(4.8)
    assert (right.device.error, right.device.round) == (None, 3)
    say(hand, 3.25)
    hand.device.tick(3.25)
    said = f"0 has not spoken in round 2 within 2 s (what 0 says cannot be used: {words}"
    assert str(hand.device.error).startswith(said)


def test_who_is_ahead_again_and_again_has_not_met_a_lost_journal():
    hand = Hand(rounds=9).running()
    for number in (1, 2, 3):
        assert hand.device.number == number
        hand.data(2, 0.1, 7)
        for j in (0, 2):
            hand.hello(j, 0.2, run=number + 1)
            hand.ready(j, 0.2, {0, 2})
        assert hand.state[:3] == ("running", number + 1, 1)
    hand.data(2, 0.3, 7)
    said = "2 is in round 7 of run 4, and 1 is in round 1, without which it cannot be there; look which of them"
    assert str(hand.device.error).startswith(said)
    assert hand.device.error.code == "protocol"


def test_a_result_shows_that_journals_are_kept_again():
    hand = Hand(rounds=2).running()
    for number in range(1, 7):
        hand.data(2, number, 4)  # a journal is lost, and the next run ends well
        for j in (0, 2):
            hand.hello(j, number, run=2 * number)
            hand.ready(j, number, {0, 2})
        for round_ in (1, 2):
            hand.data(0, number, round_).data(2, number, round_)
        hand.done(0, number, {0}).done(2, number, {2})
        assert hand.state[:2] == ("finished", 2 * number)
        for j in (0, 2):
            hand.hello(j, number, run=2 * number + 1)
            hand.ready(j, number, {0, 2})


def test_a_wait_begins_anew_with_every_round():
    hand = Hand(patience=2.0, rounds=3).running()
    hand.data(0, 1.9, 1).data(2, 1.9, 1)
    hand.device.tick(3.8)
    assert hand.device.error is None
    hand.device.tick(4.1)
    assert str(hand.device.error).startswith("0, 2 have not spoken in round 2 within 2 s;")
    assert hand.device.error.code == "lost"


def test_a_failure_is_told_at_once_and_again_while_the_device_lingers():
    hand = Hand(patience=2.0, retry=0.5, linger=2.0).running()
    hand.device.tick(2.5)
    told = [(0, HELLO, 0, 0), (0, FAILED, 1, 0), (2, HELLO, 0, 0), (2, FAILED, 1, 0)]
    assert hand.said() == told * 2  # when it fails, and in the same tick again
    assert News.of(hand.bodies[1], 3) == News(1, str(hand.device.error))
    assert hand.journal.records()[-1] == REPORTED
    hand.device.tick(3.0)
    assert hand.said() == told
    hand.data(0, 3.1, 1)
    assert hand.said() == []  # it has not asked
    hand.data(0, 3.1, 1, flags=WANT)
    assert hand.said() == told[:2]
    hand.device.tick(4.4)
    assert (hand.said(), hand.device.over) == (told, False)
    hand.device.tick(4.5)
    assert hand.device.over
    hand.device.tick(9.0)
    assert hand.said() == []


def test_a_failure_before_a_run_began_takes_its_number():
    """The journal may know of an earlier run only, and the next attempt must not be mixed up with this one."""
    hand = Hand(patience=2.0).start()
    hand.device.tick(2.5)
    heading, end = hand.journal.records()
    assert (Heading.of(heading).run, end) == (1, REPORTED)
    assert Hand(journal=hand.journal).start(5.0).state == ("greeting", 2, 0, ALL)


def test_a_run_that_failed_has_no_result_even_if_one_of_its_number_is_stored():
    """The stored result is of an earlier run with this number, whose journal was deleted."""
    hand = Hand(patience=2.0, stored_run=1).start()
    hand.device.tick(2.5)
    assert hand.state[0] == "failed"
    assert Hand(journal=hand.journal, stored_run=1).start(9.0).state == ("greeting", 2, 0, ALL)


def test_a_hello_that_leaves_too_few_ends_a_device_which_says_so_once():
    hand = Hand(Network.chain(5), row=2, on_lost="continue", quorum=4).start()
    hand.hello(1, 0.1, lost={0})
    assert hand.state == ("greeting", 1, 0, {1, 2, 3, 4})
    hand.said()
    hand.hello(3, 0.2, lost={4}, flags=WANT)
    assert str(hand.device.error).startswith("the devices fall into parts; without {0, 4} 3 of 5 devices are left")
    assert hand.device.error.code == "lost"
    assert hand.said() == [(1, HELLO, 0, 0), (1, FAILED, 0, 0), (3, HELLO, 0, 0), (3, FAILED, 0, 0)]


def test_news_of_a_failure_end_who_waits_and_not_who_is_done():
    news = News(0, "the disk is full")
    hand = Hand().running()
    hand.hear(FAILED, 2, 0.1, news.pack())
    passed_on = "0 says so, as 2 passes on, which is not verified"
    assert str(hand.device.error) == f"the disk is full ({passed_on}; no threshold was agreed on)"
    assert hand.device.error.code == "refused"
    assert hand.said() == [(0, HELLO, 0, 0), (0, FAILED, 1, 0), (2, HELLO, 0, 0), (2, FAILED, 1, 0)]
    assert News.of(hand.bodies[1], 3) == news  # passed on as it was said
    other = Hand().running()
    other.hear(FAILED, 2, 0.1, news.pack(), run=other.device.run ^ 1)
    assert (other.state[0], other.device.counts.refused.total()) == ("running", 1)
    done = finishing()
    done.done(0, 0.5, {0, 2}, round=1)
    done.hear(FAILED, 2, 0.6, news.pack())
    assert done.state[0] == "finished"


def test_a_device_that_refuses_says_why_without_a_hello():
    """It has nothing to agree on; who asks is answered in its own run."""
    hand = Hand()
    hand.device.refuse("no scores", 1.0)
    assert hand.said() == [(0, FAILED, 0, 0), (2, FAILED, 0, 0)]
    assert News.of(hand.bodies[0], 3) == News(1, "1 cannot take part: no scores")
    early = Hand(linger=2.0)
    early.device.refuse("no scores", 0.0)
    early.device.tick(2.0)
    assert early.device.over
    hand.device.refuse("another reason", 2.0)
    assert str(hand.device.error) == "1 cannot take part: no scores"
    hand.start(2.0)
    assert hand.said() == []
    body = Hello(hand.device.agreement, 7, frozenset()).pack()
    hand.hello(0, 2.1, run=7, flags=WANT)
    answer = frames.decode_frame(hand.device.outbox()[0][1])
    twin = Hand().start()
    twin.hello(0, 0.0, run=7)
    assert (answer.kind, answer.run) == (FAILED, twin.device.run)
    assert twin.device.membership.greeting.pack() == body
    hand.ready(0, 2.2, {0}, WANT)
    assert hand.said() == [(0, FAILED, 0, 0)]


# --- going on without, and coming back --------------------------------------------------------------------------------


def without_two(now=0.0, **settings):
    """The middle one goes on with its left neighbour alone."""
    hand = Hand(on_lost="continue", patience=2.0, linger=1.0, **settings).start(now)
    hand.hello(0, now + 1.0)
    hand.device.tick(now + 2.5)
    return hand


def test_who_may_go_on_greets_who_is_left_and_tries_the_lost_now_and_then():
    hand = without_two(0.0, retry=0.5)
    assert hand.state == ("greeting", 1, 0, {0, 1})
    assert hand.device.neighbours == (0,)
    said = hand.said()
    assert said[:2] == [(0, HELLO, 0, WANT), (2, HELLO, 0, WANT)]  # of its start
    assert said[2:] == [(0, HELLO, 0, WANT), (2, HELLO, 0, WANT), (0, HELLO, 0, WANT)]
    assert Hello.of(hand.bodies[-1], 3).lost == {2}
    hand.device.tick(3.0)
    assert hand.said() == [(0, HELLO, 0, WANT)]
    hand.device.tick(3.5)  # a second after the last try
    assert hand.said() == [(0, HELLO, 0, WANT), (2, HELLO, 0, WANT)]


def test_a_loss_in_the_first_second_is_tried_again_like_any_other():
    hand = Hand(on_lost="continue", patience=0.5, retry=0.25).start()
    hand.hello(0, 0.4).said()
    hand.device.tick(0.75)
    assert hand.state == ("greeting", 1, 0, {0, 1})
    assert hand.said()[:2] == [(0, HELLO, 0, WANT), (2, HELLO, 0, WANT)]


def test_too_few_are_named_with_how_many_are_needed():
    hand = Hand(on_lost="continue", patience=2.0).start()
    hand.device.tick(2.5)
    assert str(hand.device.error) == (
        "0, 2 have not said hello within 2 s; without {0, 2} 1 of 3 devices is left, and 2 are needed to go on; start "
        "again what has stopped or check the links"
    )
    five = Hand(Network.chain(5), row=2, on_lost="continue", quorum=4, patience=2.0).start()
    five.hello(1, 1.0)
    five.device.tick(2.5)
    assert "without {3, 4} 3 of 5 devices are left, and 4 are needed" in str(five.device.error)


def test_the_run_of_who_is_left_goes_frame_by_frame_and_on_their_map():
    hand = without_two()
    hand.said()
    networks = []
    make = hand.device.membership.make
    hand.device.membership.make = lambda net, at: networks.append((net.ids, net.edges, at)) or make(net, at)
    hand.hello(0, 2.6, lost={2})
    assert hand.said() == [(0, READY, 0, 0)]
    hand.ready(0, 2.7, {0})
    assert hand.said() == [(0, READY, 0, 0), (0, DATA, 1, 0)]
    assert networks == [(("0", "1"), 1, 1)]
    hand.data(0, 2.8, 1, value=4).data(0, 2.9, 2)
    hand.done(0, 3.0, {0})
    assert (hand.state, hand.device.result) == (("finished", 1, 2, {0, 1}), [4, 4])


def test_a_lost_device_that_is_back_is_asked_into_the_next_run_when_the_result_has_stood():
    hand = without_two()
    hand.hello(0, 2.6, lost={2}).ready(0, 2.7, {0}).data(0, 2.8, 1).data(0, 2.9, 2).done(0, 3.0, {0})
    assert hand.state == ("finished", 1, 2, {0, 1})
    hand.said()
    hand.hello(2, 3.5, run=4, flags=WANT)
    assert hand.said() == [(2, HELLO, 0, 0)]
    hand.hello(2, 4.4, run=4)
    assert hand.state == ("finished", 1, 2, {0, 1})  # back for less than a second
    hand.hello(2, 4.6, run=4)
    assert hand.state == ("greeting", 5, 0, ALL)  # above the number that it knows of


def test_data_of_a_lost_device_is_refused_and_it_is_told():
    hand = without_two()
    hand.said()
    hand.data(2, 3.0, 1)
    assert hand.said() == [(2, HELLO, 0, 0)]
    assert hand.device.counts.refused == {"a frame of a device that was left out": 1}


def test_a_device_that_others_left_out_waits_for_the_next_run_and_keeps_a_result():
    settings = {"on_lost": "continue", "linger": 1.0}
    hand = Hand(**settings).running()
    hand.hello(0, 0.5, lost={1})  # in the middle of this run
    assert hand.state == ("greeting", 2, 0, ALL)
    hand = Hand(**settings).start()
    hand.hello(0, 0.5, lost={1})  # before it has begun
    assert hand.state == ("greeting", 1, 0, ALL)
    hand.hello(0, 0.6, run=3, lost={1})
    assert hand.state == ("greeting", 3, 0, ALL)
    done = finishing(**settings)
    done.done(0, 0.5, {0, 2}, round=1)
    done.hello(0, 0.6, run=2, lost={1})
    assert done.state == ("finished", 1, 1, ALL)


def test_a_hello_that_leaves_out_too_many_is_refused():
    hand = Hand(on_lost="continue").start()
    hand.hello(0, 0.1, lost={1, 2})
    assert hand.device.counts.refused == {"a hello that leaves out more devices than was agreed on": 1}
    strict = Hand().start()
    strict.hello(0, 0.1, lost={2})  # nobody may be left out
    assert strict.device.counts.refused.total() == 1


@pytest.mark.parametrize("origin", [0, 1, 2])
def test_news_of_a_failure_leave_out_who_sends_them_and_nobody_else(origin):
    """Who sends them has ended; that another one has ended as well may be made up. Too few left: the reason stays."""
    hand = Hand(on_lost="continue").running()
    hand.hear(FAILED, 2, 0.1, News(origin, "the disk is full").pack())
    assert hand.state == ("greeting", 1, 0, {0, 1})
    few = Hand(on_lost="continue", quorum=3).running()
    few.hear(FAILED, 2, 0.1, News(2, "the disk is full").pack())
    assert str(few.device.error) == "the disk is full (2 says so; no threshold was agreed on)"
    ends = Hand(on_lost="continue").running()
    ends.hear(FAILED, 2, 0.1, News(2, "it differs", ends=True).pack())
    assert str(ends.device.error) == "it differs (2 says so; no threshold was agreed on)"


def test_an_error_of_ones_own_is_told_without_a_hello_and_in_few_words():
    def make(net, row):
        raise KeyError

    hand = Hand()
    hand.device.membership.make = make
    hand.start()
    for j in (0, 2):
        hand.hello(j, 0.0).ready(j, 0.0, {0, 2})
    assert str(hand.device.error) == "1 could not go on: KeyError"
    assert isinstance(hand.device.error.__cause__, KeyError)
    assert hand.said()[-2:] == [(0, FAILED, 0, 0), (2, FAILED, 0, 0)]


def test_who_is_done_takes_a_new_number_when_somebody_is_lost():
    """It has said that it is done, which counts for one set of devices only."""
    hand = finishing(on_lost="continue", patience=2.0)
    hand.done(0, 1.5, {0}, round=1)
    hand.device.tick(2.5)
    assert hand.state == ("greeting", 2, 0, {0, 1})


def alone_with_left(hand, now, number):
    """Finish a run with the left neighbour."""
    hand.hello(0, now, run=number, lost={2}).ready(0, now, {0}).data(0, now, 1).data(0, now, 2).done(0, now, {0})
    assert hand.state == ("finished", number, 2, {0, 1})


def test_a_device_that_is_lost_twice_in_a_row_waits_twice_as_long():
    hand = without_two()
    alone_with_left(hand, 3.0, 1)
    hand.hello(2, 3.5).hello(2, 4.5)
    assert hand.state == ("greeting", 2, 0, ALL)
    hand.hello(0, 5.5, run=2)
    hand.device.tick(7.0)
    assert hand.state == ("greeting", 2, 0, {0, 1})  # lost again
    alone_with_left(hand, 7.0, 2)
    hand.hello(2, 8.0).hello(2, 9.75)
    assert hand.state == ("finished", 2, 2, {0, 1})
    hand.hello(2, 10.0)
    assert hand.state == ("greeting", 3, 0, ALL)


def test_who_was_back_and_fails_or_falls_silent_is_not_back():
    hand = without_two()
    alone_with_left(hand, 3.0, 1)
    hand.hear(FAILED, 2, 3.1, News(2, "no luck").pack())
    assert hand.state[0] == "finished"
    hand.hello(2, 3.5)
    hand.hear(FAILED, 2, 4.0, News(2, "no luck").pack())
    hand.hello(2, 4.75)
    assert hand.state[0] == "finished"  # back since just now
    hand.hello(2, 7.0)  # and again, after a silence longer than the patience
    assert hand.state[0] == "finished"
    hand.hello(2, 8.0)
    assert hand.state == ("greeting", 2, 0, ALL)


def test_two_that_have_lost_each_other_are_back_for_each_other():
    hand = without_two()
    alone_with_left(hand, 3.0, 1)
    hand.hello(2, 3.5, lost={1}).hello(2, 4.5, lost={1})
    assert hand.state == ("greeting", 2, 0, ALL)


def test_a_run_that_was_asked_for_has_only_who_was_heard_lately():
    hand = without_two()
    alone_with_left(hand, 3.0, 1)
    hand.hello(2, 3.25)
    hand.device.recalibrate(5.25)  # heard two seconds ago, which is its patience
    assert hand.state == ("greeting", 2, 0, ALL)
    hand = without_two()
    alone_with_left(hand, 3.0, 1)
    hand.hello(2, 3.25)
    hand.device.recalibrate(5.5)
    assert hand.state == ("greeting", 2, 0, {0, 1})


def test_time_never_goes_back():
    hand = Hand(patience=2.0).start(5.0)
    hand.device.tick(6.0)
    hand.hello(0, 3.0)
    hand.device.tick(4.0)
    assert hand.device.clock.now == 6.0
    hand.device.recalibrate(1.0)
    hand.device.refuse("no scores", 1.0)
    assert (hand.device.clock.now, hand.device.membership.closed_at) == (6.0, 6.0)
