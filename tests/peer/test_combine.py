import numpy as np
import pytest

from conformesh import Network
from conformesh.engines import Simulator
from conformesh.peer.combine import combine_neighbour_messages, question_name
from conformesh.protocols.messages import WIRE_TYPES, Each, Max, Min, Packets, Pool, Sum, Tell

NETWORKS = [Network.torus(4, 3), Network.star(6), Network.chain(5), Network.complete(5)]
NUMBERS = [name for name in WIRE_TYPES if name != "|b1"]


def once(message):
    return (yield message)


def drawn(network, name, shape, seed=0):
    rng, dtype = np.random.default_rng(seed), np.dtype(name)
    if dtype.kind == "f":
        values = rng.normal(size=(network.devices, *shape)) * 10.0 ** rng.integers(-3, 4, (network.devices, *shape))
        return values.astype(dtype)
    info = np.iinfo(dtype)
    low, high = max(info.min, -(2**40)), min(info.max, 2**40)
    return rng.integers(low, high, (network.devices, *shape), endpoint=True).astype(dtype)


def per_device(network, messages):
    """What every device makes of its neighbours' messages, told in a jumbled order."""
    for k in range(network.devices):
        near = network.neighbours(k).tolist()
        heard = {j: messages[j].values[0] for j in reversed(near)}
        silent = [j for j in near if isinstance(messages[j], Each) and not messages[j].mask[0]]
        yield combine_neighbour_messages(messages[k], k, {**heard, **dict.fromkeys(silent)})


def same(found, right):
    return found.dtype == right.dtype and found.shape == right.shape and found.tobytes() == right.tobytes()


@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize("name", NUMBERS)
@pytest.mark.parametrize("shape", [(), (3,), (2, 4)])
@pytest.mark.parametrize("kind", [Sum, Max, Min])
def test_the_same_bits_as_in_the_simulator(network, name, shape, kind):
    x = drawn(network, name, shape)
    right, _ = Simulator(network).run(once(kind(x)))
    found = [*per_device(network, [kind(x[[k]]) for k in range(network.devices)])]
    assert all(same(found[k], right[[k]]) for k in range(network.devices))


@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize("name", ["<f2", "<f4", "<f8"])
@pytest.mark.parametrize("shape", [(), (3,), (2, 4)])
def test_weighted_sums_have_the_same_bits(network, name, shape):
    x = drawn(network, name, shape)
    weights = np.random.default_rng(1).normal(size=len(network.indices))
    right, _ = Simulator(network).run(once(Sum(x, weights)))
    messages = [Sum(x[[k]], weights[network.indptr[k] : network.indptr[k + 1]]) for k in range(network.devices)]
    found = [*per_device(network, messages)]
    assert all(same(found[k], right[[k]]) for k in range(network.devices))


@pytest.mark.parametrize("kind", [Max, Min])
def test_extremes_of_infinities_and_signed_zeros(kind):
    network = Network.complete(5)
    x = np.array([[np.inf, 0.0], [-np.inf, -0.0], [1.0, 0.0], [2.0, -0.0], [3.0, 0.0]])
    right, _ = Simulator(network).run(once(kind(x)))
    found = [*per_device(network, [kind(x[[k]]) for k in range(5)])]
    assert all(np.array_equal(found[k], right[[k]]) for k in range(5))


@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize("name", NUMBERS)
@pytest.mark.parametrize("shape", [(), (3,), (2, 2)])
@pytest.mark.parametrize("share", [0.0, 0.5, 1.0])
def test_each_brings_the_same_messages(network, name, shape, share):
    x = drawn(network, name, shape)
    speakers = np.random.default_rng(2).random(network.devices) < share
    right, _ = Simulator(network).run(once(Each(x, speakers)))
    messages = [Each(x[[k]], speakers[[k]]) for k in range(network.devices)]
    for k, found in enumerate(per_device(network, messages)):
        mine = right.receiver == k
        assert found.receiver.tolist() == right.receiver[mine].tolist()
        assert found.sender.tolist() == right.sender[mine].tolist()
        assert same(found.values, right.values[mine])


@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize("longest", [0, 1, 50])
@pytest.mark.parametrize("share", [0.0, 0.5, 1.0])
def test_what_each_tells_is_the_same(network, longest, share):
    rng = np.random.default_rng(3)
    speakers = np.flatnonzero(rng.random(network.devices) < share)
    said = {int(j): rng.bytes(rng.integers(longest, endpoint=True)) for j in speakers}
    right, _ = Simulator(network).run(once(Tell(Packets.of([*said.values()]), speakers, np.ones_like(speakers))))
    silent = Tell(Packets.of([]), np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64))
    for k in range(network.devices):
        mine = np.flatnonzero(right.receiver == k)
        found = combine_neighbour_messages(
            silent, k, {j: said.get(j) for j in reversed(network.neighbours(k).tolist())}
        )
        assert found.receiver.tolist() == right.receiver[mine].tolist()
        assert found.sender.tolist() == right.sender[mine].tolist()
        expected = right.packets.take(mine)
        assert same(found.packets.values, expected.values)
        assert same(found.packets.offsets, expected.offsets)


def test_nobody_answers_what_only_a_server_can():
    assert [question_name(kind(np.ones(1))) for kind in (Sum, Max, Min)] == ["sum", "max", "min"]
    with pytest.raises(TypeError, match="server"):
        question_name(Pool(np.ones(1), np.array([0, 1])))
