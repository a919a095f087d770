"""The simulator and MPI ranks are as strict as a mesh: what a device could not say or know is refused by all alike."""

import re

import numpy as np
import pytest

from conformesh import Network, calibrate
from conformesh.engines import Simulator, simulator
from conformesh.engines.ordering import breadth_first_order
from conformesh.peer import combine, frames
from conformesh.peer.device import Device
from conformesh.peer.interface import PeerSetup
from conformesh.peer.journal import MemoryJournal
from conformesh.peer.loopback import LinkFaults, run_loopback
from conformesh.protocols import ledger, messages, waves
from conformesh.protocols.block import Block
from conformesh.protocols.ledger import Ledger
from conformesh.protocols.message_checks import MessageChecks
from conformesh.protocols.messages import (
    MESSAGE_KINDS,
    Deliveries,
    Each,
    Max,
    MessageKind,
    PacketDeliveries,
    Packets,
    Pool,
    Sum,
    Tell,
)
from tests.engines.mpi import job
from tests.engines.mpi_cases import PARTS
from tests.engines.strictness import (
    BAD,
    MORE,
    NETWORK,
    POOLS,
    STRANGE,
    asks,
    childless_tree,
    once,
    rows_said,
    saying,
)
from tests.peer.devices import starter

MPI = pytest.mark.xdist_group("mpi")
QUESTIONS = pytest.mark.parametrize("question", ["each", "tell"])


def on_ranks(name):
    """What two ranks said to the same mistakes."""
    return job(2, "everything", *PARTS[2])["strict"][name]


@pytest.fixture(params=["small", "large", "reordered"])
def make(request, monkeypatch):
    """Make a simulator: one that remembers, one that does not, and one that hosts devices in another order."""
    if request.param == "large":
        monkeypatch.setattr(simulator, "MOST_REMEMBERED_DEVICES", 0)
    return lambda network: Simulator(
        network, order=breadth_first_order(network) if request.param == "reordered" else None
    )


@pytest.mark.parametrize("name", [*BAD, *MORE, *POOLS])
def test_a_message_that_no_device_could_send_is_refused_by_the_simulator(name):
    message, error, words = {**BAD, **MORE, **POOLS}[name]
    with pytest.raises(error, match=words):
        Simulator(NETWORK).run(once(message(np.arange(6))))


@pytest.mark.parametrize("name", BAD)
@pytest.mark.parametrize("row", [0, 5])
def test_and_by_a_device(name, row):
    """A block of one has the same rules."""
    message, error, words = BAD[name]
    with pytest.raises(error, match=words):
        MessageChecks(NETWORK, np.array([row])).check(message(np.array([row])), 1)


def test_a_device_holds_its_protocol_to_the_rules():
    """A device alone speaks at once, so that what it would say is refused before it is packed."""
    network = Network.from_pairs(1, [])
    device = Device(PeerSetup(0, network, {}, lambda *_: once(Sum(np.ones(1, dtype=bool))), MemoryJournal()))
    device.start(0.0)
    device.tick(1.0)
    assert device.phase == "failed"
    assert "booleans cannot be added up" in str(device.error)


@MPI
@pytest.mark.parametrize("name", [*BAD, *MORE, *POOLS])
def test_and_by_mpi_ranks(name):
    _, error, words = {**BAD, **MORE, **POOLS}[name]
    kind, said = on_ranks("messages")[name]
    assert kind == error.__name__
    assert re.search(words, said)


def test_errors_say_the_round_and_the_question():
    def protocol():
        yield Max(np.ones(6))
        yield Sum(np.ones(7))

    with pytest.raises(
        ValueError, match=r"round 2, sum: values need one row for each of the 6 devices here, got \(7,\)"
    ):
        Simulator(NETWORK).run(protocol())


@pytest.mark.parametrize("largest", [np.iinfo(np.int64).max // 5, -(np.iinfo(np.int64).max // 5)])
def test_the_largest_sum_that_fits_is_right(largest):
    total, _ = Simulator(NETWORK).run(once(Sum(np.full(6, largest))))
    assert total[0] == 5 * largest


# --- what was said ----------------------------------------------------------------------------------------------------


@QUESTIONS
@pytest.mark.parametrize("name", STRANGE)
def test_what_was_not_said_to_a_device_is_not_known(make, question, name):
    speakers, receivers, senders, words = STRANGE[name]
    engine = make(NETWORK)
    with pytest.raises(ValueError, match=f"round 1: {words}, but has heard nothing from it"):
        engine.run(asks(question, speakers, receivers, senders)(engine.rows))


@QUESTIONS
@pytest.mark.parametrize("name", STRANGE)
def test_nor_on_a_mesh(question, name):
    speakers, receivers, senders, words = STRANGE[name]
    row = int(words.split()[1])
    said = {j: str(j).encode() if question == "tell" else np.float64(j) for j in speakers}
    heard = {j: said.get(j) for j in NETWORK.neighbours(row).tolist()}
    answer = combine.combine_neighbour_messages(saying(question, np.array([row]), []), row, heard, 1)
    mine = [at for at, receiver in enumerate(receivers) if receiver == row]
    with pytest.raises(ValueError, match=f"round 1: {words}"):
        answer.said_by(np.array(receivers)[mine], np.array(senders)[mine])


@MPI
@QUESTIONS
@pytest.mark.parametrize("name", STRANGE)
def test_nor_on_mpi_ranks(question, name):
    assert any(f"round 1: {STRANGE[name][3]}" in said for said in on_ranks("said")[question][name])


@QUESTIONS
def test_what_was_said_is_known(make, question):
    engine = make(NETWORK)
    said, _ = engine.run(asks(question, [0, 2, 4], [3, 0, 0, 1], [0, 4, 2, 0])(engine.rows))
    assert said == [0.0, 4.0, 2.0, 0.0]


@QUESTIONS
@pytest.mark.parametrize("network", [Network.torus(5, 4), Network.complete(7), Network.of("geometric", 40, seed=3)])
def test_every_pair_is_answered_as_the_list_of_messages_says(make, network, question):
    """The slow version: for each (receiver, sender) look whether there is a message; speakers of all shares."""
    engine, rng = make(network), np.random.default_rng(0)
    pairs = np.stack(np.meshgrid(np.arange(network.devices), np.arange(network.devices)), -1).reshape(-1, 2)
    for share in (0.0, 0.2, 1.0):
        speakers = np.flatnonzero(rng.random(network.devices) < share)
        heard, _ = engine.run(once(saying(question, engine.rows, speakers)))
        known = {(k, j) for j in speakers.tolist() for k in network.neighbours(j).tolist()}
        assert {*zip(heard.receiver.tolist(), heard.sender.tolist(), strict=True)} == known
        for k, j in pairs.tolist():
            one = np.array([k]), np.array([j])
            if (k, j) in known:
                assert rows_said(heard, *one) == [j]
            else:
                with pytest.raises(ValueError, match=f"device {k} asks what device {j} said"):
                    heard.said_by(*one)


def test_receivers_and_senders_go_in_pairs():
    answers = (
        Deliveries(np.array([0]), np.array([1]), np.ones(1)),
        PacketDeliveries(np.array([0]), np.array([1]), Packets.of([b"x"])),
    )
    for answer in answers:
        with pytest.raises(ValueError, match="a receiver for each sender"):
            answer.said_by(np.array([0, 0]), np.array([1]))


def test_what_was_said_stays_said(make):
    """On a mesh the words have left the device: changing one's memory afterwards does not change them."""

    def protocol(here):
        x = here.astype(np.float64)
        heard = yield Each(x, np.ones(6, dtype=bool))
        x[:] = -1
        return heard.said_by(np.array([0]), np.array([4])).tolist(), sorted(heard.values.tolist())

    engine = make(NETWORK)
    assert engine.run(protocol(engine.rows))[0] == ([4.0], [0.0] * 5 + [1.0, 2.0, 3.0, 4.0, 5.0])


def test_what_was_told_stays_told(make):
    def protocol(here):
        strings = Packets(here.astype(np.uint8), np.arange(7))
        told = yield Tell(strings, np.arange(6), np.ones(6, dtype=np.int64))
        strings.values[:], strings.offsets[:] = 9, 0
        return told.said_by(np.array([0]), np.array([4]))[0], sorted(told.packets.values.tolist())

    engine = make(NETWORK)
    assert engine.run(protocol(engine.rows))[0] == (b"\4", [0] * 5 + [1, 2, 3, 4, 5])


def test_nobody_writes_into_what_others_will_hear():
    engine, message = Simulator(NETWORK), Each(np.ones(6), np.ones(6, dtype=bool))
    heard, _ = engine.run(once(message))
    for rows in (heard.receiver, heard.sender):
        with pytest.raises(ValueError, match="read-only"):
            rows.sort()


def test_nobodys_scores_change_by_way_of_the_server():
    scores = np.arange(6.0)
    answer, _ = Simulator(NETWORK).run(once(Pool(scores, np.arange(7))))
    with pytest.raises(ValueError, match="read-only"):
        answer.values.sort()


def test_a_block_has_no_place_for_the_devices_of_others():
    block = Block(NETWORK, np.array([1, 3]), np.ones((6, 1), dtype=np.int64))
    assert block.local(np.array([3, 1, 3])).tolist() == [1, 0, 1]
    for strange in (0, 2, 5):
        with pytest.raises(ValueError, match="not all hosted here"):
            block.local(np.array([1, strange]))


@pytest.mark.parametrize("engine", ["simulator", "loopback", pytest.param("mpi", marks=MPI)])
def test_a_parent_that_stays_silent_is_found_out_on_every_engine(engine, monkeypatch):
    """Planted bug: `has_child` is never set. The simulator used to read the total where nobody had said it."""
    scores = [[0.1 * k, 0.5] for k in range(6)]
    words = r"round (\d+): device \d asks what device \d said, but has heard nothing from it"
    if engine == "mpi":
        assert re.search(words, " ".join(on_ranks("planted")))
        return
    monkeypatch.setattr(waves, "explore_tree", childless_tree())
    if engine == "simulator":
        with pytest.raises(ValueError, match=words):
            calibrate(scores, NETWORK, 0.3, aggregate="tree")
        return
    start = starter(NETWORK, scores, "e-dcp", 0.3, aggregate="tree")
    played = run_loopback(NETWORK, start, LinkFaults(), np.random.default_rng(0))
    assert all(re.search(words, str(device.error)) for device in played.devices)


# --- one table of kinds -----------------------------------------------------------------------------------------------


def unknown_to():
    """Name, for every part that must know all kinds of messages, those that it does not know."""
    neighbours = {kind for kind, entry in MESSAGE_KINDS.items() if entry.code is not None}
    parts = {
        "simulator": {*MESSAGE_KINDS} - {*Simulator(NETWORK)._answers},
        "peers": neighbours - {*combine.COMBINERS},
        "frames": {
            kind for kind in neighbours if frames.QUESTIONS.get(MESSAGE_KINDS[kind].name) != MESSAGE_KINDS[kind].code
        },
        "ledger": {kind for kind, entry in MESSAGE_KINDS.items() if entry.payers not in ledger.CHARGES},
        "protocols": {*MESSAGE_KINDS} ^ {*messages.Message.__args__},
    }
    return {name: missing for name, missing in parts.items() if missing}


def test_every_part_knows_every_kind():
    assert unknown_to() == {}


@MPI
def test_mpi_ranks_know_every_kind():
    assert on_ranks("kinds") == sorted(entry.name for entry in MESSAGE_KINDS.values())


def test_names_and_codes_are_different_and_fit_a_byte():
    names, codes = (
        [entry.name for entry in MESSAGE_KINDS.values()],
        [entry.code for entry in MESSAGE_KINDS.values() if entry.code],
    )
    assert len({*names}) == len(names)
    assert len({*codes}) == len(codes)
    assert all(0 < code < 256 for code in codes)


def test_a_kind_that_somebody_does_not_know_is_found(monkeypatch):
    """Add a kind to the table and to nothing else."""

    class Median(Max):
        pass

    monkeypatch.setitem(MESSAGE_KINDS, Median, MessageKind("median", 9, "voters"))
    assert unknown_to() == {part: {Median} for part in ("simulator", "peers", "frames", "ledger", "protocols")}
    with pytest.raises(TypeError, match="this engine has no answer to 'median'"):
        Simulator(NETWORK).run(once(Median(np.ones(6))))
    with pytest.raises(TypeError, match="a device has no answer to 'median'"):
        combine.question_name(Median(np.ones(1)))
    with pytest.raises(TypeError, match="the ledger cannot charge 'voters' for 'median'"):
        Ledger(6).enter(Median(np.ones(6)))
