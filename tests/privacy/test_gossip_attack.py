"""The attack on gossip: one curious device recovers everybody's exact histogram, and from masked sums nobody's."""

from __future__ import annotations

import numpy as np
import pytest

from conformesh import TOPOLOGIES, Network, calibrate
from conformesh.graph.network import subtree_weights
from conformesh.graph.weights import WEIGHTS
from conformesh.privacy.gossip_attack import (
    Eavesdropper,
    observable_devices,
    recover_counts,
    recover_histograms,
    tree_attack_coefficients,
    with_neighbours,
)
from conformesh.protocols.messages import Each

BINS, ROUNDS = 100, 40
SEEN_FROM_0 = {  # of 20 devices, the listener among them, by exact elimination: what the page says
    **dict.fromkeys(TOPOLOGIES, 20),
    "torus": 12,  # 5 x 4: its symmetries leave eight devices in pairs
    "star": 20,  # from the middle; a leaf sees itself and the middle
    "geometric": 16,  # devices with the same neighbours look alike from everywhere
}


def overheard(scores, network, rows, **options):
    ear = Eavesdropper(network, rows)
    calibrate(
        scores, network, 0.1, "h-dcp", bins=BINS, range=(0.0, 1.0), rounds=ROUNDS, strict=False, observer=ear, **options
    )
    return ear


def histograms(scores):
    edges = np.arange(1, BINS + 1) / BINS
    return np.array([np.searchsorted(np.sort(own), edges, side="right") for own in scores])


@pytest.mark.filterwarnings("ignore:h-dcp")
@pytest.mark.parametrize("name", TOPOLOGIES)
def test_one_listener_recovers_every_histogram_that_the_graph_lets_it_see(name, twenty_devices):
    network = Network.of(name, 20, seed=1)
    ear = overheard(twenty_devices, network, [0])
    found = recover_histograms(network, WEIGHTS["best-constant"](network), ear, [*map(len, twenty_devices)])
    seen, _ = observable_devices(network, [0])
    right = (found.counts == histograms(twenty_devices)).all(axis=1)
    assert np.flatnonzero(found.certain).tolist() == seen.tolist()
    assert right[found.certain].all()  # what is certain is right
    assert len(found) == len(seen) == SEEN_FROM_0[name]
    assert right.sum() == len(seen)  # and nobody else's is guessed


@pytest.mark.filterwarnings("ignore:h-dcp")
def test_a_leaf_of_a_star_sees_the_middle_and_two_places_see_a_torus(twenty_devices):
    assert observable_devices(Network.star(20), [7])[0].tolist() == [0, 7]
    torus = Network.torus(5, 4)
    assert len(observable_devices(torus, [0])[0]) == 12
    assert len(observable_devices(torus, [0, 1])[0]) == 20
    ear = overheard(twenty_devices, torus, [0, 1], weights="metropolis")
    found = recover_histograms(torus, WEIGHTS["metropolis"](torus), ear, [*map(len, twenty_devices)])
    assert len(found) == 20
    assert (found.counts == histograms(twenty_devices)).all()


@pytest.mark.filterwarnings("ignore:h-dcp")
def test_the_rounds_that_are_needed_are_those_after_which_nothing_new_is_said(twenty_devices):
    network, weights = Network.cycle(20), WEIGHTS["best-constant"](Network.cycle(20))
    ear, sizes = overheard(twenty_devices, network, [3]), [*map(len, twenty_devices)]
    seen, rounds = observable_devices(network, [3])
    assert (len(seen), rounds) == (20, 10)  # half-way round, where both directions meet
    assert len(recover_histograms(network, weights, ear, sizes, rounds=rounds)) == 20
    fewer = recover_histograms(network, weights, ear, sizes, rounds=rounds - 1)
    assert np.flatnonzero(fewer.certain).tolist() == observable_devices(network, [3], rounds - 1)[0].tolist()
    assert len(fewer) < 20


@pytest.mark.filterwarnings("ignore:h-dcp")
@pytest.mark.parametrize("options", [{"eta": 0.5}, {"weights": "metropolis"}])
def test_weights_and_rates_that_everybody_knows_do_not_help(options, twenty_devices):
    network = Network.of("small-world", 20, seed=1)
    ear = overheard(twenty_devices, network, [5], **options)
    weights = WEIGHTS[options.get("weights", "best-constant")](network)
    found = recover_histograms(network, weights, ear, [*map(len, twenty_devices)], eta=options.get("eta", 1.0))
    assert (found.counts == histograms(twenty_devices)).all()


def test_what_is_observable_is_what_the_row_space_holds():
    """Against dense linear algebra in float64, on a weighted graph too."""
    for name in ("geometric", "tree", "torus", "scale-free"):
        network = Network.of(name, 12, seed=3)
        for weights in (None, WEIGHTS["metropolis"](network)):
            near = with_neighbours(network, [4])
            matrix = (weights or WEIGHTS["best-constant"](network)).matrix(network).toarray()
            blocks = [np.linalg.matrix_power(matrix, t)[near] for t in range(14)]
            vt = np.linalg.svd(np.concatenate(blocks))[2]
            rank = np.linalg.matrix_rank(np.concatenate(blocks), tol=1e-10)
            inside = np.linalg.norm(vt[:rank], axis=0) > 1 - 1e-4
            assert observable_devices(network, [4], weights=weights)[0].tolist() == np.flatnonzero(inside).tolist()


@pytest.mark.parametrize("network", [Network.torus(5, 4), Network.cycle(9), Network.complete(6)])
def test_from_every_place_of_a_graph_that_looks_the_same_from_all_one_sees_as_much(network):
    found = {
        (len(seen), rounds) for seen, rounds in (observable_devices(network, [row]) for row in range(network.devices))
    }
    assert len(found) == 1


@pytest.mark.parametrize("epsilon", [None, 1.0])
@pytest.mark.parametrize("row", range(20))
def test_histogram_attack_recovers_nothing_from_masked_sums(twenty_devices, row, epsilon):
    """A listener anywhere that hears all frames of its neighbours in a real run: 0 of 19 others' counts.

    The frames are those of sums over a tree, in the first stage, or with epsilon those of the masked sum less those of
    the reveal. Without masks the same frames tell it of a neighbour that is a leaf.
    """
    network, heard = Network.torus(5, 4), []
    parent, _ = subtree_weights(network, np.ones(20, dtype=np.int64))
    near = [k for k in with_neighbours(network, [row]).tolist() if parent[k] >= 0]

    def ear(round_, message, answer):
        if isinstance(message, Each) and message.values.dtype == np.int32 and message.values[0].size > 1:
            heard.append((message.mask.copy(), message.values.copy()))

    calibrate(twenty_devices, network, 0.1, "p-dcp", grid="logit", epsilon=epsilon, observer=ear)
    depth = int(network.centre_depth)
    assert len(heard) >= 4 * depth

    def rising(start):
        """What every device near the listener says on the way up the tree, of all below it."""
        stage = heard[start : start + depth]
        return np.array([next(values[k] for mask, values in stage if mask[k]) for k in near])

    said = rising(0)
    if epsilon is not None:
        said = said - rising(2 * depth)  # modulo 2^32, as the devices do
    rows, sizes = tree_attack_coefficients(parent, np.array(near)), np.array([*map(len, twenty_devices)])
    found = recover_counts(rows, said[:, 1:].astype(np.float64), 0.0, sizes)
    others = np.arange(20) != row
    assert not (found.counts[:, 0] == sizes)[others].any()
    assert not found.certain[others].any()
    assert np.abs(said[:, 1].astype(np.int64)).min() > 1000  # sums below a device of at most 20 times 50 scores


def test_nothing_is_certain_of_sums_that_are_masked(twenty_devices):
    """The same attack on words with masks that cancel over all devices: 0 of 20. Without them: who stands alone."""
    network, q = Network.torus(5, 4), 32
    parent, _ = subtree_weights(network, np.ones(20, dtype=np.int64))
    counts, sizes = histograms(twenty_devices), np.array([*map(len, twenty_devices)])
    near = with_neighbours(network, [10])
    rows = tree_attack_coefficients(parent, near)
    plain = recover_counts(rows, rows @ counts, 0.0, sizes)
    assert len(plain) >= 4
    assert (plain.counts == counts)[plain.certain].all()
    masks = np.random.default_rng(0).integers(0, 2**q, size=counts.shape)
    masks[10] = 0  # the listener knows its own
    masks[0] -= masks.sum(axis=0)
    said = ((rows @ (counts + masks).astype(object)) % 2**q).astype(np.float64)
    masked = recover_counts(rows, said, 0.0, sizes)
    others = np.arange(20) != 10
    assert not masked.certain[others].any()
    assert not (masked.counts == counts)[others].all(axis=1).any()


def test_a_run_without_sums_is_refused_in_words(twenty_devices):
    network = Network.cycle(20)
    with pytest.raises(ValueError, match="no sum was heard"):
        recover_histograms(network, WEIGHTS["best-constant"](network), Eavesdropper(network, [0]), [1] * 20)
    with pytest.raises(ValueError, match="up to 400 devices"):
        observable_devices(Network.cycle(401), [0])
