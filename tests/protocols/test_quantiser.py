import numpy as np
import pytest

from conformesh import Network, Samples
from conformesh.engines import Simulator
from conformesh.protocols.quantiser import agree_on_edges, check_quantiser
from conformesh.protocols.site import Site
from conformesh.protocols.wire import Wire


def agree(scores, bins=4, range_=None, wire=64):
    network, samples = Network.chain(len(scores)), Samples.of(scores)
    site = Site.everywhere(network, samples.sizes)
    return Simulator(network).run(agree_on_edges(site, samples, bins, range_, Wire(wire)))


def test_a_given_range_costs_nothing_and_may_be_exceeded():
    found, cost = agree([[0.5], [9.0]], range_=(0.0, 1.0))
    assert found.edges.tolist() == [[0.25, 0.5, 0.75, 1.0]]
    assert not found.complete.any()
    assert cost.rounds == 0


def test_an_agreed_range_ends_exactly_at_the_largest_score():
    found, cost = agree([[0.1, 0.3], [], [0.7]])
    assert found.edges[0, -1] == 0.7
    assert found.edges[0, 0] == pytest.approx(0.25)
    assert found.complete.all()
    assert (cost.rounds, cost.numbers_per_device) == (2, 4)


def test_infinite_scores_are_left_out_of_the_range_and_said_so():
    found, cost = agree([[0.0, np.inf], [1.0, -np.inf]])
    assert found.edges.tolist() == [[0.25, 0.5, 0.75, 1.0]]
    assert not found.complete.any()
    assert cost.rounds == 2  # once with, once without the infinities
    below, _ = agree([[0.0], [1.0, -np.inf]])
    assert below.complete.all()  # -inf lies in the first bin like anything else that is small


@pytest.mark.parametrize("wire", [16, 32])
def test_rounded_ends_still_enclose_every_score(wire):
    """The lower end itself is below the first edge; everything counts at the last."""
    rng = np.random.default_rng(0)
    for _ in range(50):
        scores = rng.normal(size=(3, 5))
        found, _ = agree(scores, bins=1, wire=wire)
        assert found.edges[0, -1] >= scores.max()
        assert found.edges[0, -1] == np.array(found.edges[0, -1], dtype=f"float{wire}").astype(float)


def test_one_value_and_nothing_at_all():
    assert agree([[0.3], [0.3]])[0].edges.tolist() == [[0.3] * 4]
    assert np.isfinite(agree([[], []])[0].edges).all()
    assert np.isfinite(agree([[1.7e308], [-1.7e308]])[0].edges).all()


@pytest.mark.parametrize(("bins", "range_"), [(0, None), (3, (1.0, 0.0)), (3, (0.0, float("nan")))])
def test_nonsense_is_refused(bins, range_):
    with pytest.raises(ValueError, match="must be"):
        check_quantiser(bins, range_)
