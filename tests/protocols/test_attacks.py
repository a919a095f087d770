"""Attacks: each says what its line says, from one seed, and nobody else's words change."""

import numpy as np
import pytest

from conformesh import Network, calibrate
from conformesh.kernels.weighted_scores import WeightedScores
from conformesh.protocols.attacks import ATTACKS, FARTHEST_SCORE, make_attack, scores_from_report
from conformesh.protocols.block import Block
from conformesh.protocols.faults import Faults
from conformesh.protocols.histogram_reports import Report, decode_ends, decode_reports, encode_ends, encode_reports
from conformesh.protocols.messages import Gather, Packets

RNG = np.random.default_rng(4)
SCORES = [np.sort(RNG.normal(k, size=20 + k)) for k in range(5)]


def words(attack, byzantine=(1,), seed=0, order=None):
    """What everybody says of its scores, by row, and who says two things."""
    here = np.arange(5) if order is None else np.array(order)
    block = Block(Network.cycle(5), here, WeightedScores.of(SCORES).sizes)
    said = [encode_reports([Report.of(SCORES[row], -2.0, 7.0, 50)]) for row in here.tolist()]
    found = make_attack(Faults(byzantine=byzantine, attack=attack, seed=seed))(
        Gather(Packets.of(said), sealed=True), block
    )
    place = block.local(np.arange(5)).tolist()
    return [decode_reports(found.packets[at], 1, 2**50)[0] for at in place], found.twice[place]


@pytest.mark.parametrize("attack", ATTACKS)
def test_only_byzantine_devices_lie_and_one_seed_gives_one_lie(attack):
    before = [encode_reports([Report.of(own, -2.0, 7.0, 50)]) for own in SCORES]
    (first, twice), (second, _) = words(attack), words(attack, order=[3, 1, 4, 0, 2])
    for row in range(5):
        assert encode_reports([first[row]]) == encode_reports([second[row]])
        assert (encode_reports([first[row]]) == before[row]) == (row != 1 or attack == "two-faced")
    assert twice.tolist() == [row == 1 and attack == "two-faced" for row in range(5)]


def test_what_byzantine_devices_say():
    low, high = words("all-low")[0][1], words("all-high")[0][1]
    assert (scores_from_report(low) <= -1.8).all()
    assert len(scores_from_report(low)) == 21
    assert (scores_from_report(high) == np.inf).all()
    assert words("size-lie")[0][1].size == words("size-high")[0][1].size == 21_000
    noisy = scores_from_report(words("noise")[0][1])
    assert np.ptp(noisy[np.isfinite(noisy)]) > np.ptp(SCORES[1])
    copied = encode_reports([words("copy")[0][1]])
    assert copied in [encode_reports([words("copy")[0][row]]) for row in (0, 2, 3, 4)]


def test_mimicry_is_as_low_as_the_honest_and_no_lower():
    """At every edge its share is the largest of the honest, rounded down to whole scores."""
    reports = words("mimicry", byzantine=(4,))[0]
    for edge in np.linspace(-2, 7, 51)[1:]:
        shares = [(scores_from_report(reports[row]) <= edge).mean() for row in range(4)]
        mine = (scores_from_report(reports[4]) <= edge).sum()
        assert mine == int(max(shares) * 24 + 1e-9)


def test_byzantine_devices_say_that_their_scores_reach_far():
    block = Block(Network.cycle(5), np.arange(5), WeightedScores.of(SCORES).sizes)
    said = Packets.of([encode_ends(np.array([own[0]]), np.array([own[-1]])) for own in SCORES])
    found = make_attack(Faults(byzantine=(2,), attack="all-low"))(Gather(said), block)
    assert [float(end[0]) for end in decode_ends(found.packets[2], 1)] == [-FARTHEST_SCORE, FARTHEST_SCORE]
    assert found.packets[0] == said[0]


def test_unknown_attacks_and_byzantine_devices_are_refused():
    with pytest.raises(ValueError, match="unknown attack 'all-lo', did you mean 'all-low'"):
        calibrate(SCORES, Network.cycle(5), 0.3, "r-dcp", faults={"byzantine": (1,), "attack": "all-lo"})
    with pytest.raises(ValueError, match="Byzantine devices are rows of the network, from 0 to 4, got 5"):
        calibrate(SCORES, Network.cycle(5), 0.3, "r-dcp", faults={"byzantine": (5,), "attack": "all-low"})


def test_every_attack_has_its_line_of_help():
    lines = [attack.__doc__.splitlines()[0] for attack in ATTACKS.values()]
    assert all(lines)
    assert len({*lines}) == len(ATTACKS)
