"""A device that fails for a reason of its own says so: nobody has to wait out its patience and blame silence."""

import numpy as np
import pytest

from conformesh import Network
from conformesh.peer import frames
from conformesh.peer.device import Device
from conformesh.peer.frames import FINISHED, HELLO, READY, WANT, Frame
from conformesh.peer.interface import PeerSetup
from conformesh.peer.journal import MemoryJournal
from conformesh.peer.json_bodies import LONGEST, Hello, News, error_text, pack_rows, unpack_rows
from conformesh.peer.loopback import LinkFaults, Pause, run_loopback
from conformesh.peer.memory import ENDED
from conformesh.peer.settings import PeerError, Settings
from conformesh.protocols.messages import Max, Pool

ODD = 2
CHAIN = Network.chain(5)


class UnspeakableError(Exception):
    """An error that cannot even be shown."""

    def __str__(self):
        raise RuntimeError("no words")


def starter(network, when="", error=None, settings=None, kind=Device, rounds=6):
    """Return a starter of devices that count how many they are; the odd one raises at some moment."""

    def start(k, journal):
        def make(net, row):
            if k == ODD and when == "make":
                raise error
            return protocol(net)

        def protocol(net):
            values = np.zeros((1, network.devices), dtype=np.int64)
            values[0, k] = 1
            for number in range(rounds):
                if k == ODD and when == f"round {number}":
                    raise error
                if k == ODD and when == "question":
                    yield Pool(values[0], np.array([0, values.size]))
                values = yield Max(values)
            if k == ODD and when == "end":
                raise error
            return int(values.sum())

        return kind(PeerSetup(k, network, {}, make, journal, settings or Settings()))

    return start


def ends(network, start, faults=None, limit=100.0):
    return run_loopback(network, start, faults or LinkFaults(), np.random.default_rng(0), limit)


@pytest.mark.parametrize("when", ["make", "round 0", "round 3", "end"])
@pytest.mark.parametrize("network", [CHAIN, Network.complete(4), Network.star(5)])
def test_a_protocol_that_raises_ends_everybody_with_its_name_and_reason(network, when):
    played = ends(network, starter(network, when, ValueError("no luck")))
    for device in played.devices:
        assert str(device.error).startswith("2 could not go on: ValueError: no luck")
        assert ("2 says so" in str(device.error)) == (device.row != ODD)
        assert device.error.code == ("protocol" if device.row == ODD else "refused")
        assert (device.phase, device.result) == ("failed", None)
        assert device.membership.closed_at < 0.5  # and not after the patience of 30 s
    assert isinstance(played.devices[ODD].error.__cause__, ValueError)


def test_a_question_that_a_mesh_cannot_answer_is_told_like_any_error():
    for device in ends(CHAIN, starter(CHAIN, "question")).devices:
        assert str(device.error).startswith("2 could not go on: TypeError: a mesh has no server to answer ")


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (ValueError("two\nlines and \x1b[31mred"), "2 could not go on: ValueError: two lines and [31mred"),
        (ValueError("x" * 10_000), "2 could not go on: ValueError: xxx"),
        (KeyError(), "2 could not go on: KeyError"),
        (UnspeakableError(), "2 could not go on: UnspeakableError"),
    ],
)
def test_reasons_are_one_printable_line_of_bounded_length(error, words):
    for device in ends(CHAIN, starter(CHAIN, "round 3", error)).devices:
        assert str(device.error).startswith(words)
        assert str(device.error).isprintable()
        assert len(str(device.error)) < LONGEST + 100


def test_others_that_may_go_on_do_so_at_once():
    network, settings = Network.complete(4), Settings(on_lost="continue")
    played = ends(network, starter(network, "round 3", ValueError("no luck"), settings))
    for device in played.devices:
        if device.row == ODD:
            assert str(device.error).startswith("2 could not go on: ValueError: no luck")
        else:
            assert (device.phase, device.survivors, device.result) == ("finished", (0, 1, 3), 3)
            assert device.membership.closed_at < 0.5


def test_an_error_while_the_journal_is_replayed_is_told_too():
    broken = starter(CHAIN, "round 3", ValueError("no luck"), rounds=40)
    sound = starter(CHAIN, rounds=40)
    boots = []

    def start(k, journal):
        boots.append(k)
        return (broken if boots.count(ODD) > 1 else sound)(k, journal)

    played = ends(CHAIN, start, LinkFaults(pauses=(Pause(ODD, 0.06, 0.3, crash=True),)))
    for device in played.devices:
        assert str(device.error).startswith("2 could not go on: ValueError: no luck")
        assert device.membership.closed_at < 1.0


class FullDisk(MemoryJournal):
    def append(self, record):
        raise OSError(28, "No space left on device")


def test_a_journal_that_cannot_be_written_is_told_too():
    start = starter(CHAIN)
    for device in ends(CHAIN, lambda k, journal: start(k, FullDisk() if k == ODD else journal)).devices:
        assert str(device.error).startswith("2 could not go on: OSError: [Errno 28] No space left on device")
        assert device.error.code == ("journal" if device.row == ODD else "refused")
        assert device.membership.closed_at < 0.5


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (
            OSError(28, "No space left on device", "device-02/journal.bin"),
            "OSError: [Errno 28] No space left on device",
        ),
        (OSError(13, "/var/lib/x/journal.bin: cannot write"), "PermissionError: [Errno 13] Permission denied"),
        (OSError("/var/lib/x is gone"), "OSError"),
        (ImportError("no x in (/opt/my program/x.py)"), "ImportError: no x in [path]"),
        (ValueError("'/home/a b/x.csv': 1/2 of 3 / 4"), "ValueError: [path]: 1/2 of 3 / 4"),
        (ValueError(r"C:\data\x.csv: bad, and/or worse"), "ValueError: [path]: bad, and/or worse"),
    ],
)
def test_a_reason_that_travels_names_no_file(error, told):
    """The device itself says all of it."""
    for device in ends(CHAIN, starter(CHAIN, "round 3", error)).devices:
        if device.row == ODD:
            assert error_text(error) in str(device.error)
        else:
            assert str(device.error).startswith(f"2 could not go on: {told} (2 says so")


def test_others_go_on_without_a_full_disk_and_where_they_cannot_all_know_why():
    """Under `continue`: four of five go on at once; a chain falls into parts, and both ends say what the reason is."""
    network, settings = Network.complete(5), Settings(on_lost="continue")

    def ended(network):
        start = starter(network, settings=settings)
        return ends(network, lambda k, journal: start(k, FullDisk() if k == ODD else journal)).devices

    assert [device.phase for device in ended(network)] == ["finished", "finished", "failed", "finished", "finished"]
    for device in ended(CHAIN):
        assert device.error.code == ("journal" if device.row == ODD else "refused")
        assert "2 could not go on: OSError: [Errno 28] No space left on device" in str(device.error)
        assert device.membership.closed_at < 0.5


# --- devices that cannot take part ------------------------------------------------------------------------------------


def refusing(start, reason="scores.csv: line 3 is no number"):
    def chosen(k, journal):
        device = start(k, journal)
        if k == ODD:
            device.refuse(reason, 0.0)
        return device

    return chosen


@pytest.mark.parametrize("number", [1, 7])
def test_who_waits_for_a_device_that_cannot_take_part_is_told_why(number):
    """Also where the others are in another run: they ask, and are answered in theirs."""
    start = refusing(starter(CHAIN, "make", AssertionError("its protocol is never made")))

    def later(k, journal):
        device = start(k, journal)
        if k != ODD:
            device.membership.number = number
            device.membership.enter_greeting()
        return device

    for device in ends(CHAIN, later).devices:
        assert str(device.error).startswith("2 cannot take part: scores.csv: line 3 is no number")
        assert device.membership.closed_at < 0.5


def test_who_cannot_go_on_without_a_device_that_cannot_take_part_knows_why():
    """Under `continue`, also at the ends of a chain, which are not its neighbours."""
    start = refusing(starter(CHAIN, settings=Settings(on_lost="continue")), "device.pem expired on 2001-01-01")
    for device in ends(CHAIN, start).devices:
        assert "2 cannot take part: device.pem expired on 2001-01-01" in str(device.error)
        assert device.membership.closed_at < 0.5


def test_who_may_go_on_without_a_device_that_cannot_take_part_does_so_at_once():
    network = Network.complete(5)
    played = ends(network, refusing(starter(network, settings=Settings(on_lost="continue"))))
    assert [device.phase for device in played.devices] == ["finished", "finished", "failed", "finished", "finished"]
    assert all(device.membership.closed_at < 0.5 for device in played.devices)


@pytest.mark.parametrize("on_lost", ["fail", "continue"])
def test_who_holds_a_result_is_left_alone_by_a_device_that_cannot_take_part(on_lost):
    network, settings = Network.complete(4), Settings(on_lost=on_lost)
    devices = ends(network, starter(network, settings=settings)).devices
    journal = MemoryJournal()
    odd = starter(network, settings=settings)(ODD, journal)
    odd.refuse("no scores", 50.0)
    odd.start(50.0)
    assert isinstance(odd.error, PeerError)
    assert journal.records() == []  # what it knows of earlier runs stays
    for now in (50.0, 50.5, 51.0):
        odd.tick(now)
        for to, data in odd.outbox():
            devices[to].receive(data, ODD, now)
    assert {device.phase for device in devices if device.row != ODD} == {"finished"}
    odd.tick(53.0)
    assert odd.over


def test_old_news_does_not_end_the_next_attempt():
    """A device that failed because of somebody else, and lingers, must not end who has started again already."""
    network = Network.chain(3)
    start = starter(network, "round 1", ValueError("no luck"))
    (failed, *_) = ends(network, start).devices
    again = starter(network)(1, MemoryJournal())
    again.membership.number = 2
    again.membership.enter_greeting()
    again.start(60.0)
    failed.clock.now = 60.0
    for to, data in again.outbox():
        if to == 0:
            failed.receive(data, 1, 60.0)
    answers = [data for to, data in failed.outbox() if to == 1]
    assert answers
    for data in answers:
        again.receive(data, 0, 60.0)
    assert again.phase == "greeting"


# --- versions and roll calls ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [2, 6])
def test_a_neighbour_of_another_version_is_named_with_both(version):
    device = starter(Network.chain(2), settings=Settings(patience=2.0))(0, MemoryJournal())
    device.start(0.0)
    hello = frames.encode_frame(Frame(HELLO, 0, 1, 0, WANT, Hello(device.agreement, 1, frozenset()).pack()))
    for now in np.arange(0.2, 3.0, 0.2):
        device.receive(hello[:4] + bytes([version]) + hello[5:], 1, now)
        device.tick(now)
    wanted = "1 has not said hello within 2 s (what 1 says cannot be read: frame of version "
    assert str(device.error).startswith(f"{wanted}{version}, this device speaks 5; update the older one)")


def done_middle():
    """The middle of a chain of three, which has its result; its neighbours are moved by hand."""
    journal = MemoryJournal()
    device = starter(Network.chain(3), rounds=0)(1, journal)
    device.start(0.0)
    for j in (0, 2):
        hello = Frame(HELLO, 0, j, 0, 0, Hello(device.agreement, 1, frozenset()).pack())
        device.receive(frames.encode_frame(hello), j, 0.1)
        device.outbox()
        device.receive(frames.encode_frame(Frame(READY, device.run, j, 0, 0, pack_rows({j}))), j, 0.2)
    return device, journal


def roll_calls(device):
    said = [frames.decode_frame(data) for _, data in device.outbox()]
    return [unpack_rows(frame.body, 3) for frame in said if frame.kind == FINISHED]


def test_a_result_counts_when_everybody_has_one_and_not_before():
    device, journal = done_middle()
    assert (device.phase, roll_calls(device)) == ("finishing", [{1}])
    device.receive(frames.encode_frame(Frame(FINISHED, device.run, 0, 0, 0, pack_rows({0}))), 0, 0.3)
    assert (device.phase, roll_calls(device)) == ("finishing", [{0, 1}])
    assert journal.records()[-1] != ENDED
    device.receive(frames.encode_frame(Frame(FINISHED, device.run, 0, 0, 0, pack_rows({0}))), 0, 0.4)
    assert (device.phase, roll_calls(device)) == ("finishing", [])  # nothing new
    device.receive(frames.encode_frame(Frame(FINISHED, device.run, 2, 0, 0, pack_rows({2}))), 2, 0.5)
    assert (device.phase, roll_calls(device)) == ("finished", [{0, 1, 2}])
    assert journal.records().count(ENDED) == 1
    assert not device.over  # a neighbour may have missed that all are done
    for j in (0, 2):
        device.receive(frames.encode_frame(Frame(FINISHED, device.run, j, 0, WANT, pack_rows({0, 1, 2}))), j, 0.6)
    assert roll_calls(device) == [{0, 1, 2}] * 2
    assert device.over
    assert journal.records().count(ENDED) == 1


def test_a_result_lingers_from_when_it_counts():
    device, _ = done_middle()
    for j, now in ((0, 5.0), (2, 9.0)):
        device.receive(frames.encode_frame(Frame(FINISHED, device.run, j, 0, 0, pack_rows({j}))), j, now)
    assert device.phase == "finished"
    device.tick(10.9)
    assert not device.over
    device.tick(11.0)
    assert device.over


def test_news_survive_the_wire():
    news = News(3, "it rains", ends=True)
    assert News.of(news.pack(), 4) == news
    assert News.of(News(0, "a\tb\n").pack(), 4) == News(0, "a b")
    assert News.of(News(0, "").pack(), 4).why == "no reason was given"
