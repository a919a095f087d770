"""A simulator whose network loses messages: who hears what, who pays, and what is refused."""

import numpy as np
import pytest

from conformesh import Faults, Network
from conformesh.engines import Simulator
from conformesh.engines.faulty import MessageLoss
from conformesh.engines.ordering import breadth_first_order
from conformesh.protocols.messages import Each, Max, Min, Packets, Pool, Sum, Tell

NETWORK = Network.torus(5, 4)


def heard_by(network, faults, rounds=1, order=None, observer=None, speakers=None):
    """Return who heard whom in each round when everybody (or only some) speak, and the cost."""
    K = network.devices

    def protocol():
        rows = np.arange(K) if order is None else order
        seen = []
        for _ in range(rounds):
            said = rows.astype(np.float64)
            answer = yield Each(said, np.ones(K, dtype=bool) if speakers is None else speakers)
            assert np.array_equal(answer.values, answer.sender)
            assert np.array_equal(answer.said_by(answer.receiver, answer.sender), answer.sender)
            seen.append((answer.receiver.tolist(), answer.sender.tolist()))
        return seen

    return Simulator(network, observer, order).run(protocol(), 1, faults)


def test_a_fault_is_as_frequent_as_it_says():
    """2000 rounds of 80 messages: binomial, false alarm 1e-6 at five deviations; power .99 against 1.5 points off."""
    weather = MessageLoss(NETWORK, Faults(loss=0.3, activation=0.4, links=0.8, seed=3))
    rounds = range(1, 2001)
    arrived = np.mean([weather.arriving(t) for t in rounds])
    active = np.mean([weather.active(t) for t in rounds])
    links = 2000 * NETWORK.edges  # both ways share one draw: as many independent ones as links
    assert abs(arrived - 0.7 * 0.8) < 5 * np.sqrt(0.25 / links)
    assert abs(active - 0.4) < 5 * np.sqrt(0.24 / (2000 * 20))


def test_a_link_is_down_both_ways_and_a_loss_goes_one_way():
    def asymmetric(faults):
        weather, counts = MessageLoss(NETWORK, faults), 0
        for t in range(1, 51):
            up = np.zeros((20, 20), dtype=bool)
            up[weather.receiver, weather.sender] = weather.arriving(t)
            counts += int((up != up.T).sum())
        return counts

    assert asymmetric(Faults(links=0.5)) == 0
    assert asymmetric(Faults(loss=0.5)) > 0


def test_draws_depend_on_seed_and_round_and_on_nothing_else():
    faults = Faults(loss=0.4, activation=0.7, links=0.6, seed=5)
    first, _ = heard_by(NETWORK, faults, 4)
    again, _ = heard_by(NETWORK, faults, 4)
    other, _ = heard_by(NETWORK, Faults(loss=0.4, activation=0.7, links=0.6, seed=6), 4)
    assert first == again != other
    assert first[0] != first[1]
    some = np.zeros(20, dtype=bool)
    some[[3, 7]] = True
    few, _ = heard_by(NETWORK, faults, 4, speakers=some)
    for (receivers, senders), all_of_them in zip(few, first, strict=True):
        expected = [(r, s) for r, s in zip(*all_of_them, strict=True) if s in (3, 7)]
        assert list(zip(receivers, senders, strict=True)) == expected


def test_the_order_in_memory_and_an_observer_change_nothing():
    faults, seen = Faults(loss=0.4, activation=0.7, seed=5), []
    plain, cost = heard_by(NETWORK, faults, 3)
    turned, same = heard_by(NETWORK, faults, 3, order=breadth_first_order(NETWORK))
    watched, _ = heard_by(NETWORK, faults, 3, observer=lambda *event: seen.append(event))
    assert plain == turned == watched
    assert len(seen) == 3
    assert cost.numbers.tolist() == same.numbers.tolist()


def test_who_is_inactive_pays_nothing_and_who_speaks_pays_though_it_is_lost():
    faults = Faults(loss=0.9, activation=0.5, seed=1)
    _, cost = heard_by(NETWORK, faults, 30)
    weather = MessageLoss(NETWORK, faults)
    assert cost.numbers.tolist() == sum(weather.active(t).astype(int) for t in range(1, 31)).tolist()
    assert cost.rounds == 30


def test_bytes_are_lost_like_numbers():
    faults = Faults(loss=0.5, activation=0.8, seed=2)
    words = [bytes([k] * 8) for k in range(20)]

    def protocol():
        told = yield Tell(Packets.of(words), np.arange(20), np.ones(20, dtype=np.int64))
        assert [told.packets[i][0] for i in range(len(told.sender))] == told.sender.tolist()
        some = told.said_by(told.receiver[:3], told.sender[:3])
        assert [some[i] for i in range(3)] == [words[k] for k in told.sender[:3]]
        numbers = told.floats(np.zeros(len(told.sender), dtype=np.int64))
        assert numbers.tobytes() == told.packets.values.tobytes()
        return told.receiver.tolist(), told.sender.tolist()

    found, cost = Simulator(NETWORK).run(protocol(), 1, faults)
    assert [found] == heard_by(NETWORK, faults)[0]
    assert cost.numbers.sum() == MessageLoss(NETWORK, faults).active(1).sum()


def test_what_was_lost_cannot_be_asked_for():
    def protocol():
        heard = yield Each(np.arange(20.0), np.ones(20, dtype=bool))
        heard.said_by(NETWORK.receivers, NETWORK.indices.astype(np.int64))

    with pytest.raises(ValueError, match="has heard nothing from it"):
        Simulator(NETWORK).run(protocol(), 1, Faults(loss=0.5))


@pytest.mark.parametrize("message", [Sum, Max, Min, lambda x: Pool(x, np.arange(21))])
def test_what_needs_every_message_is_refused(message):
    def protocol():
        yield message(np.arange(20.0))

    with pytest.raises(ValueError, match="cannot answer"):
        Simulator(NETWORK).run(protocol(), 1, Faults(loss=0.1))


def test_no_faults_lose_nothing():
    plain, cost = heard_by(NETWORK, None, 2)
    none, same = heard_by(NETWORK, Faults(), 2)
    assert plain == none
    assert cost.numbers.tolist() == same.numbers.tolist()
