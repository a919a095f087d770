"""Ends of the spectrum against closed forms, the dense solver, and each other; always on the safe side."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given

from conformesh.graph.network import ClosedForms, Network
from conformesh.graph.spectrum import (
    Spectrum,
    _closed_in_from_above,
    _rayleigh,
    _start,
    _top,
    dense_extremes,
    extremes_of,
    lanczos_extremes,
    spectrum_of,
)
from conformesh.graph.topologies import TOPOLOGIES
from tests.strategies import networks


def bare(network):
    """The same network with nothing known in closed form."""
    return dataclasses.replace(network, known=ClosedForms())


def comb(teeth):
    """A path with a leaf at every device: the top of its spectrum is crowded and far below the degree bound."""
    i = np.arange(teeth)
    return Network.from_pairs(2 * teeth, np.concatenate([np.c_[i[:-1], i[1:]], np.c_[i, i + teeth]]))


def lollipop(blob, tail):
    """An expander with a long tail: neither narrow nor well connected."""
    pairs = Network.random_regular(blob)._pairs()
    handle = np.c_[np.arange(blob - 1, blob + tail - 1), np.arange(blob, blob + tail)]
    return Network.from_pairs(blob + tail, np.concatenate([pairs, handle]))


def eigenvalues(network):
    return np.linalg.eigvalsh(network.laplacian().toarray())


@pytest.mark.parametrize(
    ("network", "smallest", "largest", "signless"),
    [
        (Network.chain(30), 2 - 2 * np.cos(np.pi / 30), 2 - 2 * np.cos(29 * np.pi / 30), 2 + 2 * np.cos(np.pi / 30)),
        (Network.cycle(30), 2 - 2 * np.cos(2 * np.pi / 30), 4, 4),
        (Network.cycle(31), 2 - 2 * np.cos(2 * np.pi / 31), 2 - 2 * np.cos(30 * np.pi / 31), 4),
        (Network.star(30), 1, 30, 30),
        (Network.complete(30), 30, 30, 58),
        (Network.torus(6, 5), 2 - 2 * np.cos(2 * np.pi / 6), 6 - 2 * np.cos(4 * np.pi / 5), 8),
        (Network.torus(4, 2), 2, 6, 6),
        (Network.grid(6, 5), 2 - 2 * np.cos(np.pi / 6), 4 + 2 * np.cos(np.pi / 6) + 2 * np.cos(np.pi / 5), None),
        (Network.grid(1, 5), 2 - 2 * np.cos(np.pi / 5), 2 + 2 * np.cos(np.pi / 5), None),
        (Network.chain(2), 2, 2, 2),
        (Network.star(2), 2, 2, 2),
    ],
)
def test_closed_forms(network, smallest, largest, signless):
    for found in (network.spectrum, bare(network).spectrum):
        assert found.smallest == pytest.approx(smallest, rel=1e-12)
        assert found.largest == pytest.approx(largest, rel=1e-12)
        assert found.signless == pytest.approx(largest if signless is None else signless, rel=1e-12)
    assert network.spectrum.source == "closed-form"
    assert bare(network).spectrum.source == "dense"


def test_one_device_has_no_spectrum():
    assert Network.chain(1).spectrum == Network.star(1).spectrum == Spectrum(0.0, 0.0, 0.0, "closed-form")


@given(networks(least=2))
def test_dense_ends_are_the_ends(network):
    values = eigenvalues(network)
    found = network.spectrum
    assert found.smallest == pytest.approx(values[1], rel=1e-9)
    assert found.largest == pytest.approx(values[-1], rel=1e-12)
    signless = np.linalg.eigvalsh(abs(network.laplacian()).toarray())[-1]
    assert found.signless == pytest.approx(signless, rel=1e-12)


LARGE = {
    **{name: (lambda k, name=name: Network.of(name, k, seed=3)) for name in TOPOLOGIES if name != "complete"},
    "small-world 0.01": lambda k: Network.small_world(k, rewire=0.01, seed=3),
    "comb": lambda k: comb(k // 2),
    "lollipop": lambda k: lollipop(k - 100, 100),
    "dense erdos-renyi": lambda k: Network.erdos_renyi(k, p=0.3, seed=3),
}


@pytest.mark.parametrize("devices", [600, pytest.param(1800, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", LARGE)
def test_lanczos_agrees_with_the_dense_solver(name, devices):
    """To 1e-8, or where the smallest eigenvalue is tiny beside the largest, to what rounding leaves of it."""
    network = LARGE[name](devices)
    laplacian = network.laplacian()
    dense, lanczos = dense_extremes(laplacian.toarray()), lanczos_extremes(laplacian)
    noise = 3e-14 * dense.largest * (1 + np.sqrt(network.degree.max()))
    assert lanczos.smallest == pytest.approx(dense.smallest, rel=1e-8, abs=noise)
    assert lanczos.largest == pytest.approx(dense.largest, rel=1e-8)
    assert lanczos.source == "lanczos"
    assert lanczos.smallest <= dense.smallest + noise
    assert lanczos.largest >= dense.largest - noise


@pytest.mark.parametrize("name", ["geometric", "small-world", "erdos-renyi"])
def test_signless_by_lanczos_agrees_with_the_dense_solver(name):
    network = Network.of(name, 1600, seed=3)
    found = spectrum_of(network)
    expected = np.linalg.eigvalsh(abs(network.laplacian()).toarray())[-1]
    assert found.source == "lanczos"
    assert found.signless == pytest.approx(expected, rel=1e-8)
    assert found.signless >= expected * (1 - 1e-14)


@pytest.mark.parametrize("network", [Network.chain(20_000), Network.torus(200, 100), Network.grid(200, 100)])
def test_crowded_ends_of_large_meshes(network):
    """The closed form is 1e-9 or more below the next eigenvalue's; plain Lanczos would not tell them apart."""
    found = extremes_of(network)
    smallest, largest = network.known.eigenvalues
    assert found.smallest == pytest.approx(smallest, rel=1e-6)
    assert found.largest == pytest.approx(largest, rel=1e-8)
    assert found.smallest <= smallest * (1 + 1e-12)
    assert found.largest >= largest * (1 - 1e-12)


def test_a_large_star_counts_its_rounding():
    """A row with thousands of terms adds rounding that must not push the bounds inside."""
    found = extremes_of(Network.star(30_000))
    assert 30_000 <= found.largest <= 30_000 * (1 + 1e-10)
    assert 1 - 1e-8 <= found.smallest <= 1


def test_shifts_that_start_too_low_are_raised():
    """Closing in works from any bound, even one that lies inside the spectrum of the first guess."""
    laplacian = comb(2000).laplacian()
    expected = dense_extremes(comb(700).laplacian().toarray()).largest
    value, residual = _rayleigh(laplacian, _closed_in_from_above(laplacian, _start(laplacian), 6.0))
    assert residual < 1e-8
    assert value == pytest.approx(expected, rel=1e-5)


def test_the_same_bits_every_time():
    network = Network.random_regular(3000)
    assert spectrum_of(network) == spectrum_of(network)


def test_what_does_not_converge_is_an_error(monkeypatch):
    """The safeguard is the residual: with too few steps the answer is refused, not returned."""
    import conformesh.graph.spectrum as module

    real = module._lanczos
    monkeypatch.setattr(module, "_lanczos", lambda apply, start, end, most=5: real(apply, start, end, most=5))
    with pytest.raises(RuntimeError, match=r"did not converge; give your own estimate.*residual"):
        _top(Network.random_regular(3000).laplacian())
    with pytest.raises(RuntimeError, match="did not converge"):
        lanczos_extremes(Network.small_world(3000).laplacian())
