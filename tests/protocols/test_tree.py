"""The spanning tree: grown from the centre, as deep as must be, and the same wherever the devices are."""

import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from conformesh import Network
from conformesh.engines import Simulator
from conformesh.graph.network import subtree_weights
from conformesh.protocols.block import Block
from conformesh.protocols.messages import Deliveries
from conformesh.protocols.tree import grow_tree
from conformesh.protocols.waves import mean_depth
from tests.strategies import networks


def site_of(network, here):
    return Block(network, here, np.ones((network.devices, 1), dtype=np.int64))


def in_blocks(network, blocks):
    """Grow the tree on blocks that exchange what their devices say: what MPI ranks do, without MPI."""
    running = [grow_tree(site_of(network, here)) for here in blocks]
    answers, finished = [None] * len(blocks), []
    while not finished:
        said = {}
        for here, protocol, answer in zip(blocks, running, answers, strict=True):
            try:
                message = protocol.send(answer)
            except StopIteration as stop:
                finished.append(stop.value)
                continue
            said |= {int(here[place]): message.values[place] for place in message.places}
        answers = [heard_by(network, here, said) for here in blocks]
    assert len(finished) == len(blocks)  # all wait for as many rounds
    return finished


def heard_by(network, here, said):
    pairs = [(int(k), int(j)) for k in sorted(here) for j in network.neighbours(k) if int(j) in said]
    receiver, sender = np.array(pairs, dtype=np.int64).reshape(-1, 2).T
    return Deliveries(receiver, sender, np.array([said[j] for _, j in pairs]))


def assert_is_grown(network, levels):
    """Every device on the level of its distance to the centre, below its smallest neighbour one level up."""
    hops = nx.single_source_shortest_path_length(network.to_networkx(), network.ids[network.centre])
    depth = np.array([hops[name] for name in network.ids])
    parents = parents_of(levels)
    assert sorted(parents) == list(range(network.devices))
    for row, (level, parent) in parents.items():
        assert level == depth[row]
        above = [int(j) for j in network.neighbours(row) if depth[j] == level - 1]
        assert parent == min(above, default=-1)


def parents_of(levels):
    """The level and the parent of every device in these levels, by row."""
    return {
        int(row): (number, int(parent))
        for number, level in enumerate(levels)
        for row, parent in zip(level.rows, level.above, strict=True)
    }


@settings(max_examples=60)
@given(network=networks(least=2, most=20), seed=st.integers(0, 2**32 - 1), parts=st.integers(1, 5))
def test_theorem_blocks_grow_the_tree_of_the_simulator(network, seed, parts):
    """Wherever devices are hosted, in rows or in another order, alone or with others."""
    rng = np.random.default_rng(seed)
    levels, cost = Simulator(network).run(grow_tree(site_of(network, np.arange(network.devices))))
    assert_is_grown(network, levels)
    assert cost.rounds == len(levels) == network.centre_depth + 1
    owner = rng.integers(0, parts, network.devices)
    blocks = [np.flatnonzero(owner == part) for part in range(parts) if (owner == part).any()]
    grown = in_blocks(network, blocks)
    joined = {row: where for one in grown for row, where in parents_of(one).items()}
    assert joined == parents_of(levels)
    order = rng.permutation(network.devices)
    shuffled, _ = Simulator(network, order=order).run(grow_tree(site_of(network, order)))
    assert parents_of(shuffled) == parents_of(levels)
    for together, apart in zip(levels, zip(*grown, strict=True), strict=True):  # and parents know their children
        known = {(int(c), int(p)) for one in apart for c, p in zip(one.children, one.parent_rows, strict=True)}
        assert known == {(int(c), int(p)) for c, p in zip(together.children, together.parent_rows, strict=True)}


def test_nobody_alone_has_to_grow():
    levels, cost = Simulator(Network.chain(1)).run(grow_tree(site_of(Network.chain(1), np.arange(1))))
    assert [level.rows.tolist() for level in levels] == [[0]]
    assert cost.rounds == 0


@pytest.mark.parametrize(("devices", "bits"), [(2, 8), (127, 8), (128, 16), (32_767, 16), (32_768, 32)])
def test_a_parent_is_named_in_as_few_bits_as_hold_all_rows(devices, bits):
    network = Network.star(devices)
    levels, cost = Simulator(network).run(grow_tree(site_of(network, np.arange(devices))))
    assert (cost.bits == bits).all()
    assert (levels[1].above == 0).all()
    assert levels[1].rows.tolist() == list(range(1, devices))


def test_the_mean_subtree_has_one_device_more_than_the_mean_depth(topology):
    """Everybody is counted once in the subtree of each device above it, and in its own."""
    block = site_of(topology, np.arange(20))
    levels, _ = Simulator(topology).run(grow_tree(site_of(topology, np.arange(20))))
    below = np.ones(20)
    for level in levels[:0:-1]:
        np.add.at(below, level.above, below[level.rows])
    assert below[topology.centre] == 20
    assert mean_depth(block) + 1 == pytest.approx(below.mean())
    parent, weights = subtree_weights(topology, np.ones(20, dtype=np.int64))
    assert weights.tolist() == below.tolist()
    assert parent[topology.centre] == -1
