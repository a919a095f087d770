import numpy as np
import pytest

from conformesh import CalibrationNote, Network, calibrate
from conformesh.engines import Simulator
from conformesh.kernels.weighted_scores import WeightedScores
from conformesh.protocols.block import Block
from conformesh.protocols.quantiser import agree_on_edges, check_quantiser, crowding_note
from conformesh.protocols.wire_format import WireFormat


def agree(scores, bins=4, range_=None, wire=64):
    network, samples = Network.chain(len(scores)), WeightedScores.of(scores)
    block = Block.everywhere(network, samples.sizes)
    return Simulator(network).run(agree_on_edges(block, samples, bins, range_, WireFormat(wire)))


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
    assert (cost.rounds, cost.numbers_per_device) == (2, 2)  # each of two devices once, and who has heard both


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


UNIFORM = [*np.random.default_rng(0).random((20, 50))]  # 1000 scores; the paper's rank is 918
PUBLISHED = {"mixture": "paper", "rank_rule": "ghost"}
OUTLIER = [np.append(UNIFORM[0], 1e6), *UNIFORM[1:]]


@pytest.mark.parametrize("method", ["h-dcp", "wfcp"])
@pytest.mark.parametrize(
    ("held", "options", "words"),
    [
        (UNIFORM, {"range": (0.0, 0.5)}, "fewer than the required 918 scores lie at or below 0.5, .* widen the range"),
        (UNIFORM, {"range": (0.99, 2.0)}, "990 scores lie in the first of 1,000 bins, whose upper end 0.99101 is"),
        (
            UNIFORM,
            {"range": (-1e6, 1e6)},
            "1,000 scores lie in one of 1,000 bins, .* 1,000 scores are covered where 918",
        ),
        (UNIFORM, {"bins": 5}, "in one of 5 bins.*or more bins, or use e-dcp"),
        (OUTLIER, {}, "1,000 scores lie in the first of 1,000 bins, .* give a range LO HI"),
    ],
)
def test_a_histogram_that_cannot_tell_scores_apart_says_so(method, held, options, words):
    with pytest.warns(CalibrationNote, match=f"{method}: .*{words}"):
        result = calibrate(held, Network.torus(5, 4), 0.1, method, **PUBLISHED, **options)
    assert result.certificate.kind == "counted"
    assert len(result.notes) == 1


@pytest.mark.parametrize("method", ["h-dcp", "wfcp"])
def test_a_histogram_that_can_is_silent(method, recwarn):
    for held, alpha in ((UNIFORM, 0.1), (UNIFORM, 0.5), ([own * 1e9 for own in UNIFORM], 0.1)):
        assert calibrate(held, Network.torus(5, 4), alpha, method).notes == ()
    infinite = [np.append(own, [np.inf] * 10) for own in UNIFORM]  # +inf is the right answer, and e-dcp's
    assert calibrate(infinite, Network.torus(5, 4), 0.1, method).notes == ()
    assert not recwarn.list


@pytest.mark.parametrize("rounds", [40, 60])
def test_a_bounded_histogram_says_so_too(rounds):
    with pytest.warns(CalibrationNote, match="are covered where 918 are required"):
        result = calibrate(
            UNIFORM, Network.torus(5, 4), 0.1, "h-dcp", rounds=rounds, rounding=False, range=(-1e6, 1e6), **PUBLISHED
        )
    assert result.certificate.kind == "bounded"
    with pytest.warns(CalibrationNote, match="widen the range"):
        calibrate(UNIFORM, Network.torus(5, 4), 0.1, "h-dcp", rounds=rounds, rounding=False, range=(0.0, 0.5))


def test_the_note_begins_where_a_quarter_of_alpha_is_given_away():
    """Of alpha (n + K) = 100 points that may be missed, 25 too many are silent and 26 are said; one always is."""
    edges = np.array([1.0, 2.0, 3.0])

    def said(counts, may_miss=100.0):
        return crowding_note("m", edges, np.array(counts), 900, may_miss, False)

    assert said([0, 925, 1000]) is None
    share, words = said([0, 926, 1000])
    assert share == 0.26
    assert "926 scores lie in one of 3 bins, whose upper end 2 is the threshold" in words
    assert said([0, 901, 1000], may_miss=1.0) is None
    assert said([0, 902, 1000], may_miss=1.0) is not None
    assert said([0, 0, 899]) is None
    assert crowding_note("m", edges, np.array([0, 0, 899]), 900, 100.0, True)[0] == np.inf
