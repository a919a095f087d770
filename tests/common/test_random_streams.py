"""Functions that draw take `rng` as SPEC 7 says: the same number, the same draws."""

import inspect

import numpy as np
import pytest

import conformesh
from conformesh import Network, calibrate, choose_centres, detect, estimate_ratios
from conformesh.common.random_streams import SEED_RANGE, hash_numbers, recorded_seed, resolve_seed
from conformesh.graph.topologies import TOPOLOGIES
from conformesh.lab.comparison import build_networks, compare, compared_ways, cost_fronts
from conformesh.lab.datasets.digits import load_digits_on_devices, split_digits
from conformesh.lab.datasets.partition import partition, split_calibration_rows
from conformesh.lab.datasets.synthetic import synthetic_outputs

RANDOM = [name for name, topology in TOPOLOGIES.items() if topology.random]
INPUTS = np.random.default_rng(5).normal(size=(200, 2))
HELD = [np.random.default_rng(k).random(40) for k in range(5)]
DRAWN = [0, 1] * 50


def edges(network):
    return network.indices.tolist()


DRAWERS = {  # what draws, as something that can be compared
    **{f"Network.of {name}": lambda name=name, **how: edges(Network.of(name, 30, **how)) for name in RANDOM},
    **{name: lambda name=name, **how: edges(TOPOLOGIES[name].build(30, **how)) for name in RANDOM},
    "positions": lambda **how: Network.from_pairs(4, [(0, 1), (1, 2), (2, 3)]).positions(**how).tolist(),
    "build_networks": lambda **how: edges(build_networks(["erdos-renyi"], [*"abcdefgh"], **how)[0][0]),
    "choose_centres": lambda **how: choose_centres(INPUTS, 5, **how).points.tolist(),
    "partition": lambda **how: partition(DRAWN, 5, "dirichlet", **how).tolist(),
    "split_calibration_rows": lambda **how: split_calibration_rows(partition(DRAWN, 2), 20, **how)[0].tolist(),
    "synthetic_outputs": lambda **how: synthetic_outputs(50, 5, **how).values.tolist(),
    "load_digits_on_devices": lambda **how: [own.tolist() for own in load_digits_on_devices(4, **how).rows],
    "split_digits": lambda **how: split_digits(load_digits_on_devices(4), number=0, **how).test.tolist(),
}
MEASURERS = {  # what takes a seed for methods that draw, or for a model without chance
    "estimate_ratios": lambda **how: estimate_ratios(INPUTS, INPUTS, **how),
    "compare": lambda **how: compare(HELD, [Network.cycle(5)], 0.1, compared_ways(["fcp"]), **how),
    "cost_fronts": lambda **how: cost_fronts(HELD, [Network.cycle(5)], **how),
}


@pytest.mark.parametrize("draw", DRAWERS.values(), ids=DRAWERS)
def test_a_whole_number_is_a_seed_and_a_generator_goes_on(draw):
    assert draw(rng=7) == draw(seed=7) == draw(rng=np.int64(7))
    assert draw(rng=None) == draw() == draw(seed=0)
    one, other = np.random.default_rng(1), np.random.default_rng(1)
    first, second = draw(rng=one), draw(rng=one)
    assert [first, second] == [draw(rng=other), draw(rng=other)]
    assert first != second


@pytest.mark.parametrize("call", [*DRAWERS.values(), *MEASURERS.values()], ids=[*DRAWERS, *MEASURERS])
@pytest.mark.parametrize(
    ("how", "kind", "words"),
    [
        ({"rng": 1, "seed": 2}, TypeError, "give rng or seed, not both: got rng=1 and seed=2"),
        ({"rng": "dice"}, TypeError, "rng must be a numpy.random.Generator or a whole number, got str 'dice'"),
        ({"rng": True}, TypeError, "got bool True"),
        ({"rng": -1}, ValueError, "a whole number from 0 on, got -1"),
    ],
)
def test_what_is_no_rng_is_refused(call, how, kind, words):
    with pytest.raises(kind, match=words):
        call(**how)


def test_a_drawn_seed_is_one_that_every_library_takes():
    rng = np.random.default_rng(0)
    assert all(0 <= resolve_seed(rng) < SEED_RANGE == 2**32 for _ in range(1000))


def test_every_public_function_with_a_seed_takes_an_rng():
    public = {name: getattr(conformesh, name) for name in conformesh.__all__}
    functions = [*filter(inspect.isfunction, public.values()), *(TOPOLOGIES[name].build for name in TOPOLOGIES)]
    seeded = [each for each in functions if "seed" in inspect.signature(each).parameters]
    assert len(seeded) >= 3
    for each in seeded:
        assert "rng" in inspect.signature(each).parameters, each.__name__


@pytest.mark.parametrize("how", [{"rng": "dice"}, {"rng": True}, {"rng": -1}], ids=str)
def test_what_is_no_rng_is_refused_where_the_default_is_fresh(how):
    with pytest.raises((TypeError, ValueError), match="rng must be a numpy"):
        detect(HELD, "cycle", [[0.5]] * 5, **how)
    with pytest.raises((TypeError, ValueError), match="rng must be a numpy"):
        calibrate(HELD, "cycle", **how)


def test_a_seed_that_a_guarantee_averages_over_is_fresh_and_fits_a_json_number():
    drawn = {recorded_seed(None) for _ in range(1000)}
    assert len(drawn) == 1000
    assert all(0 <= seed < 2**53 for seed in drawn)
    assert recorded_seed(5) == recorded_seed(np.int64(5)) == 5
    assert recorded_seed(np.random.default_rng(1)) == recorded_seed(np.random.default_rng(1))


def test_a_digest_is_of_the_values():
    assert hash_numbers(np.array([0.0, 1.0])) == hash_numbers(np.array([-0.0, 1.0])) == hash_numbers(np.array([0, 1]))
    assert hash_numbers(np.array([0.0, 1.0])) != hash_numbers(np.array([1.0, 0.0]))
