"""TOP-K by flooding says what a slow twin says that keeps a list for every device: the same bytes in every round."""

import time
from types import SimpleNamespace

import numpy as np
import pytest

from conformesh import Network, calibrate
from conformesh.engines import Simulator
from conformesh.kernels.keys import from_keys, to_keys
from conformesh.kernels.replies import LOWEST
from conformesh.kernels.weighted_scores import WeightedScores
from conformesh.protocols import merged_scores as known
from conformesh.protocols import top_k
from conformesh.protocols.block import Block
from conformesh.protocols.messages import PacketDeliveries, Packets
from tests.protocols.test_flood import in_blocks
from tests.protocols.test_schedules import pooled, shapes_of
from tests.reference import FloodedList, flooded_lists

FLOOD = {"schedule": "top-k", "aggregate": "flood"}


def drawn_case(seed):
    """Scores of a few trials on a connected graph, with weights or without, and the ranks asked for."""
    rng = np.random.default_rng([91, seed])
    k = int(rng.integers(1, 13))
    pairs = {(int(rng.integers(max(i - 2, 0), i)), i) for i in range(1, k)}
    network = Network.from_pairs(k, sorted(pairs), name="drawn")
    shapes, trials = shapes_of(rng), []
    for _ in range(int(rng.integers(1, 3))):
        shape = shapes[rng.integers(len(shapes))]
        sizes = rng.integers(0, 30, k) * (rng.random(k) < 0.8)
        held = [np.asarray(shape(int(n)), float) for n in sizes]
        if rng.random() < 0.4:  # one device holds the largest
            held = np.split(np.sort(np.concatenate(held)), np.cumsum(sizes)[:-1])
        trials.append(held)
    most = int(rng.choice([1, 1, 4, 10**6]))
    weights = [[rng.integers(1, most + 1, len(own)) for own in trial] for trial in trials]
    n = np.array([sum(int(own.sum()) for own in trial) for trial in weights])
    ranks = np.array([[int(rng.integers(0, total + 2)) for _ in range(2)] for total in n])
    sizes = np.array([[len(own) for own in trial] for trial in trials]).T
    return SimpleNamespace(
        network=network, trials=trials, weights=weights, n=n, ranks=ranks, sizes=sizes, plain=most == 1
    )


def protocol_of(case, here):
    """The protocol of a block of devices."""
    values = [[trial[row] for row in here] for trial in case.trials]
    weights = [[trial[row] for row in here] for trial in case.weights]
    samples = WeightedScores.of_trials(values) if case.plain else WeightedScores.weighted(values, weights)
    block = Block(case.network, np.asarray(here), case.sizes)
    return top_k.search_by_flooding(block, samples, case.ranks, case.n)


def said_by_the_twin(case):
    """What every device says in every round."""
    lists, _ = top_k.wanted_lists(case.ranks, case.n)
    if not lists:
        return []
    devices = []
    for row in range(case.network.devices):
        devices.append([])
        for wanted in lists:
            values, weights = case.trials[wanted.trial][row], case.weights[wanted.trial][row]
            own = {}
            for key, weight in zip(to_keys(values).tolist(), weights.tolist(), strict=True):
                signed = -key if wanted.smallest else key
                own[signed] = own.get(signed, 0) + weight
            scores = int(case.sizes[:, wanted.trial].sum())
            likely = wanted.likely(int(weights.sum()), int(case.n[wanted.trial]), scores)
            devices[-1].append(FloodedList(wanted.k, wanted.smallest, row, own, likely))
    neighbours = [case.network.neighbours(row).tolist() for row in range(case.network.devices)]
    bits = max(case.network.devices - 1, 1).bit_length()
    return flooded_lists(neighbours, case.network.diameter, devices, bits)


def said_in(case, order=None):
    """What every device says in every round of a simulation, and what is found."""
    rounds = []

    def watch(_, message, __):
        rows = np.asarray(here)[message.speakers].tolist()
        numbers = message.numbers.tolist()
        rounds.append({row: (message.packets[i], numbers[i]) for i, row in enumerate(rows)})

    engine = Simulator(case.network, watch, order)
    here = engine.rows
    return rounds, engine.run(protocol_of(case, here))[0]


def assert_is_right(case, found):
    asked = case.ranks.shape[1]
    for problem, (key, counted) in found.items():
        t, rank = problem // asked, case.ranks.ravel()[problem]
        assert (from_keys([key])[0], counted) == pooled(case.trials[t], case.weights[t], rank)
    assert sorted(found) == np.flatnonzero((case.ranks > 0) & (case.ranks <= case.n[:, None])).tolist()


def say_little(patch):
    """Have most devices say so little at first that they must say more later."""
    patch.setattr(top_k, "LIKELY", 1)
    patch.setattr(top_k, "SPARE", 0)


def check(seeds):
    """Compare with the twin; return how often devices had to say more."""
    again = 0
    for seed in seeds:
        case = drawn_case(seed)
        rounds, found = said_in(case)
        assert rounds == said_by_the_twin(case), seed
        assert_is_right(case, found)
        again += len(rounds) > case.network.diameter
    return again


@pytest.fixture
def many_tables(monkeypatch):
    """A device or two to a table, which reads what it hears from the others; and little written at a time."""
    monkeypatch.setattr(top_k, "LARGEST_TABLE_BITS", 100)
    monkeypatch.setattr(top_k, "SCORES_AT_ONCE", 20)
    monkeypatch.setattr(known, "WEIGHTS_AT_ONCE", 200)


def test_every_packet_is_the_twins(monkeypatch):
    check(range(40))
    say_little(monkeypatch)
    assert check(range(40)) > 5


def test_every_packet_is_the_twins_by_many_tables(monkeypatch, many_tables):
    check(range(40, 50))
    say_little(monkeypatch)
    assert check(range(40, 50)) > 2


def say_what_no_longer_matters(patch):
    """News are passed on although k larger scores are known."""
    patch.setattr(known, "rows_marked_from", lambda first, words: ~np.zeros((len(first), words), np.uint64))


def drop_a_score_too_many(patch):
    """What is heard of the smallest scores that matter is dropped."""
    true = known.MergedScores._drop

    def wrong(self):
        true(self)
        self._floor += self._floor > LOWEST

    patch.setattr(known.MergedScores, "_drop", wrong)


def leave_marks_where_they_were(patch):
    """Scores get columns between others, and nobody's marks move."""
    true = known.move_columns
    patch.setattr(known, "move_columns", lambda bits, to, words: true(bits, np.arange(len(to)), words))


MISTAKES = [
    say_what_no_longer_matters,
    drop_a_score_too_many,
    leave_marks_where_they_were,
]


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda mistake: mistake.__name__)
def test_a_planted_mistake_is_noticed(monkeypatch, mistake, many_tables):
    mistake(monkeypatch)
    with pytest.raises((AssertionError, ValueError, IndexError)):
        check(range(200))


def test_blocks_in_any_order_say_and_find_the_same(monkeypatch):
    rng = np.random.default_rng(92)
    for seed in range(12):
        if seed == 6:
            say_little(monkeypatch)
        case = drawn_case(seed)
        devices = case.network.devices
        rounds, found = said_in(case)
        assert said_in(case, rng.permutation(devices)) == (rounds, found)
        for names in (np.arange(devices), np.sort(rng.integers(0, 3, devices)), rng.integers(0, 3, devices)):
            owners = np.unique(names, return_inverse=True)[1]
            hosts = [np.flatnonzero(owners == block) for block in range(owners.max() + 1)]
            if rounds:
                protocols = [protocol_of(case, here) for here in hosts]
                assert in_blocks(case.network, owners, protocols) == [found] * len(hosts)


def test_bytes_are_read_where_they_are_not_what_a_device_here_has_said():
    """A table knows by columns what its own devices say; whatever else comes under their names is read as it is."""
    case = SimpleNamespace(
        network=Network.chain(3), trials=[[np.array([1.0]), np.array([2.0]), np.array([3.0])]],
        weights=[[np.ones(1, int)] * 3], n=np.array([3]), ranks=np.array([[3]]), sizes=np.ones((3, 1), int), plain=True,
    )  # fmt: skip
    protocol = protocol_of(case, range(3))
    message = next(protocol)
    edges = np.array([0, 1, 1, 2]), np.array([1, 0, 2, 1])
    told = [message.packets[i] for i in edges[1]]
    for strange in (b"", b"\xff\x00"):
        other = protocol_of(case, range(3))
        next(other)
        with pytest.raises(ValueError, match=r"device 1 says \d bytes that are no list of scores"):
            other.send(PacketDeliveries(*edges, Packets.of([strange, *told[1:3], strange]), 1))
    protocol.send(
        PacketDeliveries(*edges, Packets.of([told[2], *told[1:3], told[2]]), 1)
    )  # device 1 says what device 2 does
    with pytest.raises(StopIteration) as end:
        protocol.send(PacketDeliveries(np.empty(0, int), np.empty(0, int), Packets.of([]), 2))
    assert end.value.value == {0: (int(to_keys([3.0])[0]), 3)}


def test_who_knows_little_is_told_of_scores_below_all_columns():
    """One of two devices knows as many as it needs, and scores get columns before those of the other."""
    runs = known.ScoreRuns(np.array([1]), np.array([5]), np.ones(1, int))
    both = known.MergedScores(2, False, np.array([0, 1]), runs, np.array([2, 2]))
    first, listeners, senders = np.array([0]), np.array([[0], [1]]), np.array([2])
    for listener, keys, news in ((0, [1, 6, 7], [6, 7]), (1, [3], [3]), (1, [2, 4], [4]), (0, [6], [])):
        ones = np.ones(len(keys), int)
        said = known.ScoreReport(np.array(keys), 2 * ones, ones, LOWEST)
        both.hear(listeners[listener], first, senders, [said])
        assert both.said(listeners[listener]).keys.tolist() == news
    assert both.of_first.keys.tolist() == [6, 7]


def test_weights_too_large_to_add_up_end_in_words_or_numbers():
    """Nobody honest says so, and the places looked at stay within the list."""
    rows, runs = np.arange(1), known.ScoreRuns(np.zeros(2, int), np.array([3, 5]), np.ones(2, int))
    one = known.MergedScores(2**62, False, rows, runs, np.array([2]))
    for _ in range(3):
        many = np.arange(70)
        said = known.ScoreReport(many, many % 3, np.full(70, 2**62), -7)
        one.hear(np.array([0]), np.array([0]), np.array([1]), [said])
        assert len(one.of_first.keys) <= 72


@pytest.mark.slow
@pytest.mark.parametrize("name", ["torus", "scale-free"])
def test_a_thousand_devices_take_no_longer_than_sorting_what_they_say_a_few_times(name):
    """Processor time; every device's list was once sorted in every round, which took ten to twenty times as long."""
    rng = np.random.default_rng(0)
    scores, network = [rng.normal(size=50) for _ in range(1000)], Network.of(name, 1000)
    began = time.process_time()
    cost = calibrate(scores, network, 0.1, **FLOOD).cost
    took = time.process_time() - began
    keys, owners = rng.integers(0, 2**60, (2, round(cost.numbers_per_device)))
    began = time.process_time()
    for _ in range(1000):
        np.lexsort((owners, keys))
    assert took < 4 * (time.process_time() - began)
