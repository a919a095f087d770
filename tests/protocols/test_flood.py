"""Flooding and maxima say only news: the same answers, each thing said once, and costs as predicted."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from conformesh import Network
from conformesh.engines import Simulator
from conformesh.kernels import varints
from conformesh.protocols.block import Block
from conformesh.protocols.consensus import agreed_maximum, agreed_minimum
from conformesh.protocols.flood import flood_numbers, flood_strings
from conformesh.protocols.messages import PacketDeliveries, Packets, Tell
from tests.reference import distances
from tests.strategies import networks


def nobody(network, here=None):
    return Block(
        network, np.arange(network.devices) if here is None else here, np.zeros((network.devices, 1), np.int64)
    )


def in_blocks(network, owners, protocols):
    """Drive one protocol per block: what `Tell` says goes along the edges, and nothing else does."""
    answers = [None] * len(protocols)
    while True:
        messages, results = [], []
        for protocol, answer in zip(protocols, answers, strict=True):
            try:
                messages.append(protocol.send(answer))
            except StopIteration as end:
                results.append(end.value)
        if results:
            assert not messages
            return results
        said = {}
        for block, message in enumerate(messages):
            assert isinstance(message, Tell)
            rows = np.flatnonzero(owners == block)[message.speakers].tolist()
            said |= {row: message.packets[i] for i, row in enumerate(rows)}
        answers = []
        for block in range(len(protocols)):
            here = np.flatnonzero(owners == block).tolist()
            pairs = [(k, int(j)) for k in here for j in network.neighbours(k) if int(j) in said]
            receiver, sender = np.array(pairs, dtype=np.int64).reshape(-1, 2).T
            answers.append(PacketDeliveries(receiver, sender, Packets.of([said[j] for _, j in pairs])))


@given(networks(), st.integers(0, 2**32 - 1), st.integers(1, 5))
def test_every_block_learns_every_string(network, seed, blocks):
    """One block, a few, or one for each device: whatever is hosted where, the strings are the same."""
    rng = np.random.default_rng(seed)
    strings = [rng.bytes(int(size)) for size in rng.choice([0, 1, 5, 130], network.devices)]
    numbers = np.array([len(string) for string in strings])
    for owners in (np.zeros(network.devices, int), np.arange(network.devices), np.arange(network.devices) % blocks):
        hosts = [np.flatnonzero(owners == block) for block in range(owners.max() + 1)]
        protocols = [
            flood_strings(nobody(network, here), Packets.of([strings[k] for k in here]), numbers) for here in hosts
        ]
        for found in in_blocks(network, owners, protocols):
            assert [found[k] for k in range(network.devices)] == strings


@given(networks(), st.integers(0, 2**32 - 1))
def test_each_entry_is_passed_on_once_and_the_cost_is_known_beforehand(network, seed):
    rng = np.random.default_rng(seed)
    mine = rng.integers(0, 300, (network.devices, 2))
    found, cost = Simulator(network).run(flood_numbers(nobody(network), mine))
    assert found.tolist() == mine.tolist()
    near = np.array([levels < network.diameter for levels in distances(network, np.arange(network.devices))])
    assert cost.rounds == network.diameter
    assert cost.numbers.tolist() == (2 * near.sum(axis=1)).tolist()
    each = varints.varint_lengths(mine).sum(axis=1)
    entries = (
        varints.varint_lengths(np.arange(network.devices)) + varints.varint_lengths(each) + each
    )  # owner, length, bytes
    assert cost.bits.tolist() == [8 * int(entries[row].sum()) for row in near]


@pytest.mark.parametrize("said", [b"\xff", b"\x09\x01a", b"\x01\x05a", b"\x01"])
def test_what_is_no_entry_is_refused_by_the_name_of_who_said_it(said):
    protocol = flood_strings(nobody(Network.chain(3), np.array([0])), Packets.of([b"x"]), np.ones(3, np.int64))
    next(protocol)
    with pytest.raises(ValueError, match="one of devices 1 passed on what is no entry"):
        protocol.send(PacketDeliveries(np.array([0]), np.array([1]), Packets.of([said]), 1))


def test_who_heard_too_little_says_so():
    protocol = flood_strings(nobody(Network.chain(3), np.array([0])), Packets.of([b"x"]), np.ones(3, np.int64))
    next(protocol)
    nothing = PacketDeliveries(np.empty(0, np.int64), np.empty(0, np.int64), Packets.of([]), 1)
    protocol.send(nothing)
    with pytest.raises(ValueError, match="device 0 has heard nothing of device 1"):
        protocol.send(nothing)


@pytest.mark.parametrize(
    ("said", "of"),
    [
        (b"\x00\x01y\x01\x01z", "a"),  # back to who said it
        (b"\x00\x02xx\x01\x01z", "a"),
        (b"\x01\x01z\x01\x01w", "b"),  # twice at once
    ],
)
def test_who_passes_on_something_else_is_found_out_by_who_told_it(said, of):
    network = Network.from_pairs(["a", "b", "c"], [("a", "b"), ("b", "c")])
    protocol = flood_strings(nobody(network, np.array([0])), Packets.of([b"x"]), np.ones(3, np.int64))
    next(protocol)
    with pytest.raises(ValueError, match=f"round 1: device b says something else of device {of} than was heard before"):
        protocol.send(PacketDeliveries(np.array([0]), np.array([1]), Packets.of([said]), 1))


def test_what_is_passed_on_as_it_was_heard_is_taken():
    protocol = flood_strings(nobody(Network.chain(3), np.array([0])), Packets.of([b"x"]), np.ones(3, np.int64))
    next(protocol)
    protocol.send(PacketDeliveries(np.array([0]), np.array([1]), Packets.of([b"\x01\x02zz\x00\x01x"]), 1))
    with pytest.raises(StopIteration) as end:
        protocol.send(PacketDeliveries(np.array([0]), np.array([1]), Packets.of([b"\x02\x00\x01\x02zz"]), 2))
    assert [end.value.value[k] for k in range(3)] == [b"x", b"zz", b""]


@pytest.mark.parametrize(
    ("strings", "words"), [([b"\x05", b"\x05\x06"], "1 did"), ([b"\x05\x06\x07", b"\x05"], "3 did")]
)
def test_so_many_numbers_must_come_of_each_device(strings, words):
    """Also where all of them together are as many as they should be."""
    block = nobody(Network.complete(3), np.array([0]))
    protocol = flood_numbers(block, np.array([[1, 2]]))
    next(protocol)
    told = Packets.of([bytes([k + 1, len(string)]) + string for k, string in enumerate(strings)])
    with pytest.raises(ValueError, match=f"2 numbers of device 1 should have come, and {words}"):
        protocol.send(PacketDeliveries(np.array([0, 0]), np.array([1, 2]), told, 1))


@given(st.lists(st.integers(0, 2**63 - 1)))
def test_whole_numbers_come_back(numbers):
    written = varints.encode_varints(np.array(numbers, dtype=np.int64))
    assert varints.decode_varints(written).tolist() == numbers
    assert varints.varint_lengths(np.array(numbers, dtype=np.int64)).sum() == len(written)


def test_cut_off_numbers_are_refused():
    for data in (b"\x80", b"\x01\xff", b"\xff" * 10 + b"\x01"):
        with pytest.raises(ValueError, match="cut off or longer"):
            varints.decode_varints(np.frombuffer(data, np.uint8))
    with pytest.raises(ValueError, match="not be negative"):
        varints.encode_varints(np.array([-1]))


# --- maxima -----------------------------------------------------------------------------------------------------------


@given(networks(), st.integers(0, 2**32 - 1), st.sampled_from(["f8", "f4", "i8", "i2"]))
def test_only_news_are_said(network, seed, kind):
    """Every device speaks first if it has anything, then once for each time it hears something better."""
    rng = np.random.default_rng(seed)
    x = rng.integers(0, 99, (network.devices, 2)).astype(kind)
    none = rng.random(network.devices) < 0.3
    x[none] = -np.inf if kind[0] == "f" else np.iinfo(kind).min
    found, cost = Simulator(network).run(agreed_maximum(x, nobody(network)))
    assert found.dtype == x.dtype
    assert (found == x.max(axis=0)).all()
    spoken = np.zeros(network.devices, int)
    now, news = x, ~none
    for _ in range(network.diameter):
        spoken += news
        new = np.array([now[[k, *network.neighbours(k)]].max(axis=0) for k in range(network.devices)])
        news, now = (new != now).any(axis=1), new
    assert cost.rounds == network.diameter
    assert cost.numbers.tolist() == (2 * spoken).tolist()
    if kind[0] == "f":
        low, same = Simulator(network).run(agreed_minimum(-x, nobody(network)))
        assert (low == -found).all()
        assert same.numbers.tolist() == cost.numbers.tolist()
