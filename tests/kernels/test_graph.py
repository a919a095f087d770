"""Graph walks against NetworkX and against what the picture shows."""

import networkx as nx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from conformesh.kernels.graph import (
    attach_by_degree,
    breadth_first,
    components,
    eccentricities,
    is_bipartite,
    match_senders,
    mean_memory_distance,
    message_pairs,
    reorder_neighbours,
    rows_with_children,
    two_core,
)
from tests.strategies import networks

pytestmark = pytest.mark.usefixtures("way")

PATH_AND_PAIR = (np.array([0, 1, 3, 4, 5, 6]), np.array([1, 0, 2, 1, 4, 3], dtype=np.int32))  # 0 - 1 - 2   3 - 4


def levels_from(indptr, indices, source):
    levels, queue = np.empty(len(indptr) - 1, np.int64), np.empty(len(indptr) - 1, np.int64)
    reached = breadth_first(indptr, indices, source, levels, queue)
    return levels, queue[:reached]


@given(networks())
def test_levels_are_shortest_path_lengths(network):
    graph = network.to_networkx()
    for source in range(network.devices):
        levels, queue = levels_from(network.indptr, network.indices, source)
        hops = nx.single_source_shortest_path_length(graph, network.ids[source])
        assert [hops[name] for name in network.ids] == levels.tolist()
        assert sorted(queue.tolist()) == [*range(network.devices)]
        assert (np.diff(levels[queue]) >= 0).all()


def test_levels_mark_what_is_out_of_reach():
    levels, queue = levels_from(*PATH_AND_PAIR, 0)
    assert levels.tolist() == [0, 1, 2, -1, -1]
    assert queue.tolist() == [0, 1, 2]


def test_components_are_numbered_by_their_lowest_row():
    assert components(*PATH_AND_PAIR).tolist() == [0, 0, 0, 1, 1]
    assert components(np.zeros(4, np.int64), np.empty(0, np.int32)).tolist() == [0, 1, 2]


@given(networks())
def test_eccentricities_equal_networkx(network):
    expected = nx.eccentricity(network.to_networkx())
    assert eccentricities(network.indptr, network.indices).tolist() == [expected[name] for name in network.ids]


@pytest.mark.parametrize("links", [1, 2, 4])
@pytest.mark.parametrize("parts", [1, 3, 40])
def test_who_joins_by_degree_is_the_same_in_parts(links, parts):
    """As many chances at a time as there are: the same ends as by counting degrees, for the same chances."""
    chances = np.random.default_rng(links).random(2000)
    ends = np.zeros(2 * links * 60, np.int64)
    ends[:links], ends[links : 2 * links] = np.arange(links), links
    device, given_out, left = links + 1, 0, np.empty(0)
    while device < 60 + links:
        more = chances[given_out : given_out + 2000 // parts]
        given_out += len(more)
        left = np.concatenate([left, more])
        device, used = attach_by_degree(ends, links, device, left)
        left = left[used:]
    slow = [*range(links), *[links] * links]
    tries = iter(chances)
    for new in range(links + 1, 60 + links):
        joined: list[int] = []
        while len(joined) < links:
            one = slow[int(next(tries) * 2 * links * (new - links))]
            joined += [one] * (one not in joined)
        slow += joined + [new] * links
    assert ends.tolist() == slow


@given(networks())
def test_bipartite_equals_networkx(network):
    assert is_bipartite(network.indptr, network.indices) == nx.is_bipartite(network.to_networkx())


@given(networks())
def test_cutting_leaves_keeps_the_two_core(network):
    stays = two_core(network.indptr, network.indices)
    core = set(nx.k_core(network.to_networkx(), 2))
    assert {network.ids[k] for k in np.flatnonzero(stays)} == core


def test_cutting_leaves_passes_over_a_diagonal():
    matrix = nx.laplacian_matrix(nx.lollipop_graph(4, 3)).tocsr()
    stays = two_core(matrix.indptr.astype(np.int64), matrix.indices.astype(np.int32))
    assert stays.tolist() == [True] * 4 + [False] * 3


@given(networks(), st.integers(0, 2**32 - 1))
def test_who_was_heard_is_a_neighbour_that_speaks(network, seed):
    """Of all pairs, also with rows that do not exist, the first that is no edge from a speaker is found."""
    rng, K = np.random.default_rng(seed), network.devices
    speakers = rng.permutation(K)[: rng.integers(0, K + 1)]
    receivers, senders = rng.integers(0, K, 12), rng.integers(-1, K + 1, 12)
    numbers = np.zeros(K, np.int64)
    which, strange = match_senders(network.indptr, network.indices, speakers, receivers, senders, numbers)
    pairs = [*zip(receivers.tolist(), senders.tolist(), strict=True)]
    known = [j in speakers and j in network.neighbours(k) for k, j in pairs]
    assert strange == (-1 if all(known) else known.index(False))
    heard = slice(None, None if strange < 0 else strange)
    assert speakers[which[heard]].tolist() == senders[heard].tolist()
    assert not numbers.any()


@given(networks())
def test_the_walk_visits_in_order_of_discovery(network):
    """First in, first out, neighbours ascending: the order in which devices may lie in memory."""
    order, found = [0], {0}
    for k in order:
        new = [j for j in network.neighbours(k).tolist() if j not in found]
        order += new
        found |= {*new}
    assert levels_from(network.indptr, network.indices, 0)[1].tolist() == order


@given(networks())
def test_parents_are_the_lowest_neighbours_one_level_up(network):
    levels, _ = levels_from(network.indptr, network.indices, 0)
    parents = {
        next(j for j in network.neighbours(k).tolist() if levels[j] == levels[k] - 1) for k in range(1, network.devices)
    }
    assert set(np.flatnonzero(rows_with_children(network.indptr, network.indices, levels)).tolist()) == parents


@given(networks(), st.randoms())
def test_another_order_keeps_every_row(network, random):
    order = np.array(random.sample(range(network.devices), network.devices))
    place = np.argsort(order)
    starts = np.concatenate([[0], np.cumsum(network.degree[order])])
    rows = reorder_neighbours(network.indptr, network.indices, order, place, starts)
    assert rows.dtype == np.int32
    for i, k in enumerate(order):
        assert rows[starts[i] : starts[i + 1]].tolist() == place[network.neighbours(k)].tolist()
    gaps = [abs(int(place[k]) - int(place[j])) for k in range(network.devices) for j in network.neighbours(k)]
    assert mean_memory_distance(network.indptr, network.indices, place) == sum(gaps) / max(len(gaps), 1)


@given(networks(), st.data())
def test_messages_come_by_receiver_then_by_sender(network, data):
    speakers = sorted(data.draw(st.sets(st.integers(0, network.devices - 1))))
    expected = [(k, j) for k in range(network.devices) for j in network.neighbours(k).tolist() if j in speakers]
    scratch = np.zeros((2, network.devices), dtype=bool)
    receiver, sender = message_pairs(network.indptr, network.indices, np.array(speakers, dtype=np.int64), *scratch)
    assert [*zip(receiver.tolist(), sender.tolist(), strict=True)] == expected
    assert not scratch.any()
