"""Who hosts whom, and what a rank must hear from the others: plain arrays, no MPI."""

import builtins

import numpy as np
import pytest

from conformesh import Network
from conformesh.engines.mpi.halo import Halo
from conformesh.engines.mpi.partition import PARTITIONS, assign_missing_devices, partition_devices
from conformesh.kernels.neighbours import max_over_neighbours, sum_over_neighbours

NETWORKS = [Network.of(name, 30, seed=2) for name in ("chain", "star", "torus", "complete", "geometric", "tree")]
by_name = pytest.mark.parametrize("network", NETWORKS, ids=lambda network: network.name)


@pytest.fixture(params=PARTITIONS)
def by(request):
    if request.param == "metis":
        pytest.importorskip("pymetis")
    return request.param


@by_name
@pytest.mark.parametrize("ranks", [1, 2, 3, 7, 30])
def test_every_device_has_a_rank_and_every_rank_a_device(network, ranks, by):
    owners = partition_devices(network, ranks, by)
    assert owners.shape == (network.devices,)
    assert set(owners.tolist()) == set(range(ranks))
    np.testing.assert_array_equal(owners, partition_devices(network, ranks, by))


def test_parts_are_even_and_few_edges_cross(by):
    network = Network.torus(30, 30)
    owners = partition_devices(network, 4, by)
    sizes = np.bincount(owners)
    assert sizes.max() <= 1.1 * sizes.mean()
    crossing = np.count_nonzero(owners[network.receivers] != owners[network.indices]) / 2
    assert crossing <= network.edges / 5  # METIS cuts about a tenth, RCM a sixth; random parts three edges of four


def test_more_ranks_than_devices_is_an_error():
    with pytest.raises(ValueError, match="9 ranks are too many for the 8 devices of chain 8.*start at most 8"):  # noqa: RUF043
        partition_devices(Network.chain(8), 9)


def test_an_unknown_partition_names_the_known_ones():
    with pytest.raises(ValueError, match="unknown partition 'mets', did you mean 'metis'"):
        partition_devices(Network.chain(8), 2, "mets")


def test_without_metis_the_extra_is_named_and_auto_takes_rcm(monkeypatch):
    real = builtins.__import__

    def absent(name, *rest):
        if name == "pymetis":
            raise ImportError(name)
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", absent)
    network = Network.torus(5, 4)
    np.testing.assert_array_equal(partition_devices(network, 3), partition_devices(network, 3, "rcm"))
    with pytest.raises(ValueError, match=r"pip install 'conformesh\[metis\]'"):
        partition_devices(network, 3, "metis")


def test_devices_without_a_file_go_to_a_neighbours_rank():
    owners = assign_missing_devices(np.array([0, -1, -1, 1, -1]), Network.chain(5))
    assert owners.tolist() == [0, 0, 0, 1, 1]


@by_name
@pytest.mark.parametrize("ranks", [1, 2, 3, 7])
def test_what_one_sends_is_what_the_other_expects(network, ranks, by):
    owners = partition_devices(network, ranks, by)
    halos = [Halo.of(network, owners, rank) for rank in range(ranks)]
    for rank, halo in enumerate(halos):
        for at, peer in enumerate(halo.peers):
            other = halos[peer]
            back = other.sends[other.peers.index(rank)]
            expected = halo.ghosts[halo.cuts[at] : halo.cuts[at + 1]]
            np.testing.assert_array_equal(other.rows[back], expected)


@by_name
@pytest.mark.parametrize("ranks", [1, 2, 3, 7])
@pytest.mark.parametrize("kernel", [sum_over_neighbours, max_over_neighbours])
def test_inner_and_border_rows_together_are_the_whole(network, ranks, by, kernel):
    """Bit for bit: neighbours are combined in ascending global row on both sides of the cut."""
    x = np.random.default_rng(1).normal(size=(network.devices, 3)) * 10.0 ** np.arange(3)
    whole = kernel(network.indptr, network.indices, x)
    owners = partition_devices(network, ranks, by)
    for rank in range(ranks):
        halo = Halo.of(network, owners, rank)
        found = kernel(halo.inner.indptr, halo.inner.indices, x[halo.rows])
        near = x[np.concatenate([halo.rows[halo.near], halo.ghosts])]
        found[halo.border] = kernel(halo.outer.indptr, halo.outer.indices, near)
        assert found.tobytes() == whole[halo.rows].tobytes()


@by_name
def test_a_route_lists_who_hears_whom_in_order(network, by):
    owners = partition_devices(network, 3, by)
    speaking = np.random.default_rng(0).random(network.devices) < 0.4
    for rank in range(3):
        halo = Halo.of(network, owners, rank)
        columns = np.flatnonzero(speaking[halo.columns])
        receiver, which = halo.route(columns)
        found = list(zip(halo.rows[receiver].tolist(), halo.columns[columns[which]].tolist(), strict=True))
        assert found == [(int(k), int(j)) for k in halo.rows for j in network.neighbours(k) if speaking[j]]
