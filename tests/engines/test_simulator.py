import numpy as np
import pytest

from conformesh import Network
from conformesh.engines import Simulator
from conformesh.protocols.messages import Deliveries, Each, Max, Min, PacketDeliveries, Packets, Pool, Sum, Tell


def once(message):
    answer = yield message
    return answer


def test_sum_adds_the_neighbours_only():
    answer, cost = Simulator(Network.chain(3)).run(once(Sum(np.array([1.0, 10.0, 100.0]))))
    assert answer.tolist() == [10.0, 101.0, 10.0]
    assert (cost.rounds, cost.numbers.tolist(), cost.bits.tolist()) == (1, [1] * 3, [64] * 3)


def test_weighted_sum_uses_the_receivers_weights():
    net = Network.chain(3)
    answer, _ = Simulator(net).run(once(Sum(np.array([1.0, 10.0, 100.0]), np.array([0.5, 2.0, 3.0, 0.1]))))
    assert answer.tolist() == [5.0, 302.0, 1.0]


@pytest.mark.parametrize(("kind", "expected"), [(Max, [10, 100, 100]), (Min, [1, 1, 10])])
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, np.int32])
def test_extremes_include_oneself_and_keep_the_type(kind, expected, dtype):
    answer, cost = Simulator(Network.chain(3)).run(once(kind(np.array([1, 10, 100], dtype=dtype))))
    assert answer.tolist() == expected
    assert answer.dtype == dtype
    assert cost.bits_per_device == 8 * np.dtype(dtype).itemsize


def test_each_costs_only_the_speakers():
    net = Network.star(4)
    heard, cost = Simulator(net).run(once(Each(np.arange(4.0), np.array([True, False, True, False]))))
    said = list(zip(heard.receiver.tolist(), heard.sender.tolist(), heard.values.tolist(), strict=True))
    assert said == [(0, 2, 2.0), (1, 0, 0.0), (2, 0, 0.0), (3, 0, 0.0)]
    assert cost.numbers.tolist() == [1, 0, 1, 0]


def test_nobody_speaking_is_free():
    heard, cost = Simulator(Network.star(4)).run(once(Each(np.arange(4.0), np.zeros(4, dtype=bool))))
    assert len(heard.values) == 0
    assert cost.rounds == 1
    assert cost.bits_per_device == 0


def test_those_who_tell_pay_for_their_bytes_and_numbers():
    """A string without bytes is heard, and costs what it stands for; the runs that ride along share the bill."""
    message = Tell(Packets.of([b"hub", b""]), np.array([0, 2]), np.array([5, 1]))
    told, cost = Simulator(Network.star(4)).run(once(message), runs=2)
    said = [*zip(told.receiver.tolist(), told.sender.tolist(), [told.packets[i] for i in range(4)], strict=True)]
    assert said == [(0, 2, b""), (1, 0, b"hub"), (2, 0, b"hub"), (3, 0, b"hub")]
    assert (cost.rounds, cost.numbers.tolist(), cost.bits.tolist()) == (1, [2.5, 0, 0.5, 0], [12, 0, 0, 0])


def test_nobody_telling_is_free():
    nothing = np.empty(0, dtype=np.int64)
    told, cost = Simulator(Network.star(4)).run(once(Tell(Packets.of([]), nothing, nothing)))
    assert (len(told.packets), told.receiver.tolist(), told.sender.tolist()) == (0, [], [])
    assert (cost.rounds, cost.bits_per_device, cost.numbers_per_device) == (1, 0, 0)


def test_what_is_told_adds_to_what_is_said():
    """One ledger for all kinds: 8 bits a byte, besides the numbers of other rounds."""

    def protocol():
        yield Sum(np.ones((4, 3), dtype=np.int16))
        yield Tell(Packets.of([b"ab"]), np.array([1]), np.array([7]))
        yield Tell(Packets.of([b"a", b"abc"]), np.array([1, 3]), np.array([1, 1]))

    _, cost = Simulator(Network.star(4)).run(protocol())
    assert (cost.numbers.tolist(), cost.bits.tolist()) == ([3, 11, 3, 4], [48, 48 + 24, 48, 48 + 24])


def test_observers_see_what_was_told():
    seen = []
    message = Tell(Packets.of([b"hub", b""]), np.array([0, 2]), np.array([5, 1]))
    told, _ = Simulator(Network.star(4), lambda *event: seen.append(event)).run(once(message))
    assert [(round_, type(answer)) for round_, _, answer in seen] == [(1, PacketDeliveries)]
    assert seen[0][2] is told
    assert [told.packets[i] for i in range(4)] == [b"", b"hub", b"hub", b"hub"]
    assert told.said_by(np.array([3, 0]), np.array([0, 2]))[0] == b"hub"


@pytest.mark.parametrize("strings", [[], [b""], [b"a"], [b"", b"ab", b"", b"cde"]])
def test_packets_give_back_their_strings(strings):
    packets = Packets.of(strings)
    assert (len(packets), [packets[i] for i in range(len(packets))]) == (len(strings), strings)
    assert (packets.values.dtype, packets.offsets.dtype) == (np.uint8, np.int64)
    backwards = packets.take(np.arange(len(strings))[::-1])
    assert [backwards[i] for i in range(len(strings))] == strings[::-1]
    twice = packets.take(np.repeat(np.arange(len(strings)), 2))
    assert [twice[i] for i in range(len(twice))] == [each for each in strings for _ in range(2)]
    assert len(packets.take(np.empty(0, dtype=np.int64))) == 0


def test_pool_costs_what_each_device_uploads_and_an_oracle_nothing():
    net, values, offsets = Network.chain(2), np.array([1.0, 2.0, 3.0]), np.array([0, 2, 3])
    _, cost = Simulator(net).run(once(Pool(values, offsets)))
    assert (cost.rounds, cost.numbers.tolist()) == (2, [2, 1])
    _, cost = Simulator(net).run(once(Pool(values, offsets, oracle=True)))
    assert (cost.rounds, cost.bits_per_device) == (0, 0)


def test_runs_that_ride_along_share_the_bill():
    net, x = Network.chain(2), np.zeros((2, 3, 5))
    assert Simulator(net).run(once(Sum(x)), runs=5)[1].numbers_per_device == 3
    assert Simulator(net).run(once(Sum(x, shared=True)), runs=5)[1].numbers_per_device == 15


def test_observers_see_every_round():
    seen = []
    net = Network.chain(2)

    def twice():
        first = yield Sum(np.array([1.0, 2.0]))
        yield Max(first)

    Simulator(net, lambda *event: seen.append(event)).run(twice())
    assert [round_ for round_, _, _ in seen] == [1, 2]
    assert [type(message) for _, message, _ in seen] == [Sum, Max]


def test_each_takes_places_for_a_mask():
    """Few of many speak: their places say the same as a mask, to every engine."""
    net, x = Network.star(4), np.arange(8.0).reshape(4, 2)
    masked, placed = Each(x, np.array([True, False, True, False])), Each(x, np.array([0, 2]))
    assert placed.mask.tolist() == masked.mask.tolist()
    assert placed.places.tolist() == masked.places.tolist()
    (one, cost), (other, same) = Simulator(net).run(once(masked)), Simulator(net).run(once(placed))
    assert one.receiver.tolist() == other.receiver.tolist()
    assert one.sender.tolist() == other.sender.tolist()
    assert one.values.tolist() == other.values.tolist()
    assert cost.numbers.tolist() == same.numbers.tolist()


def test_what_a_sender_said_is_the_same_worked_out_or_looked_up():
    net, x = Network.star(4), np.arange(8.0).reshape(4, 2)
    heard, _ = Simulator(net).run(once(Each(x, np.array([0, 2]))))
    hearing, asked = np.array([0, 1, 3]), np.array([2, 0, 0])
    assert heard.said_by(hearing, asked).tolist() == x[asked].tolist()
    assert Deliveries(heard.receiver, heard.sender, heard.values).said_by(hearing, asked).tolist() == x[asked].tolist()


def test_observers_may_keep_what_they_see(monkeypatch):
    """Brief answers share memory from round to round, but not under somebody's eyes."""
    monkeypatch.setattr("conformesh.engines.simulator.MOST_REMEMBERED_DEVICES", 0)
    seen = []

    def protocol():
        x = np.array([1.0, 2.0])
        for _ in range(3):
            x = 1 + (yield Sum(x, brief=True))
        for _ in range(3):
            x = yield Max(x, brief=True)

    Simulator(Network.chain(2), lambda _, __, answer: seen.append(answer)).run(protocol())
    assert [answer.tolist() for answer in seen[:3]] == [[2.0, 1.0], [2.0, 3.0], [4.0, 3.0]]
    assert len({id(answer) for answer in seen}) == 6


def test_a_brief_sum_never_writes_where_it_reads(monkeypatch):
    monkeypatch.setattr("conformesh.engines.simulator.MOST_REMEMBERED_DEVICES", 0)

    def again():
        x = np.array([1.0, 10.0, 100.0])
        for _ in range(2):
            x = yield Sum(x, brief=True)
        return x.tolist()

    assert Simulator(Network.chain(3)).run(again())[0] == [101.0, 20.0, 101.0]
