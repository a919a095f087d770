"""R-DCP: the trimmed certificate, what is heard and what is not, and what Byzantine devices can and cannot do."""

import json
import math
import warnings
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest

from conformesh import METHODS, CalibrationNote, Network, Result, TooFewScores, calibrate
from conformesh.kernels.ranks import make_requirement
from conformesh.methods import make_options
from conformesh.protocols.attacks import ATTACKS
from conformesh.protocols.histogram_reports import Report, decode_reports, encode_ends, encode_reports
from conformesh.protocols.r_dcp import HEARD_ASSUMPTION, UNSIGNED_ASSUMPTION, most_tolerable
from tests.protocols.byzantine import Hearing, driven, has_rank, honestly

ALPHA = Fraction(1, 10)


@pytest.fixture
def twenty():
    rng = np.random.default_rng(20)
    return [rng.beta(2, 2 + k / 4, size=rng.integers(35, 68)) for k in range(20)]


def worst_by_hand(scores, alpha, f, thresholds):
    """The smallest threshold at which the K - f smallest c_j - (1 - alpha) n_j add up to 1, one by one."""
    for tau in sorted(thresholds):
        each = sorted(int((own <= tau).sum()) - (1 - alpha) * len(own) for own in scores)
        if sum(each[: len(each) - f]) >= 1:
            return tau
    return math.inf


@pytest.mark.parametrize("f", [0, 1, 2, 5])
def test_the_threshold_is_the_first_edge_with_the_trimmed_sum(twenty, f):
    result = calibrate(twenty, Network.torus(5, 4), 0.1, "r-dcp", byzantine=f, range=(0, 1), bins=500)
    assert result.threshold == worst_by_hand(twenty, ALPHA, f, np.arange(1, 501) / 500)
    certificate = result.certificate
    assert certificate.kind == "counted"
    assert certificate.byzantine == f
    assert certificate.counted_rank >= certificate.required_rank


def test_without_byzantine_devices_it_asks_for_the_rank_of_e_dcp(twenty):
    net = Network.torus(5, 4)
    robust, exact = calibrate(twenty, net, 0.1, "r-dcp", byzantine=0), calibrate(twenty, net, 0.1, rank_rule="swap")
    assert robust.certificate.required_rank == exact.certificate.required_rank
    assert 0 <= robust.threshold - exact.threshold <= (max(map(max, twenty)) - min(map(min, twenty))) / 4096


@pytest.mark.parametrize("attack", ATTACKS)
@pytest.mark.parametrize("target", ["sizes", "paper", "equal"])
def test_the_honest_have_the_rank_whatever_byzantine_devices_do(twenty, attack, target):
    """Adaptive Byzantine devices, with every target: the rank of the honest is counted again from their true scores."""
    byzantine, tau = (3, 11), None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CalibrationNote)
        faults = {"byzantine": byzantine, "attack": attack}
        tau = calibrate(twenty, Network.cycle(20), 0.2, "r-dcp", byzantine=2, mixture=target, faults=faults).threshold
    honest = [k for k in range(20) if k not in byzantine]
    assert has_rank(twenty, honest, tau, Fraction(1, 5), target)
    assert (tau < math.inf) or attack == "size-high"


@pytest.mark.parametrize("attack", ["all-high", "noise", "mimicry"])
def test_byzantine_devices_cannot_make_a_bearable_threshold_infinite(attack):
    """Below alpha K / (1 + alpha) of devices with equally many scores: finite whatever they say."""
    rng = np.random.default_rng(1)
    scores = [rng.random(100) for _ in range(25)]
    most = most_tolerable(25, Fraction(1, 5))
    assert most == 4
    faults = {"byzantine": tuple(range(most)), "attack": attack}
    assert calibrate(scores, Network.cycle(25), 0.2, "r-dcp", byzantine=most, faults=faults).threshold <= 1


def test_more_byzantine_devices_than_any_rule_bears_are_explained():
    scores = [np.linspace(0, 1, 100)] * 25
    faults = {"byzantine": tuple(range(5)), "attack": "all-high"}
    with pytest.warns(
        CalibrationNote, match="no rule that holds for all honest devices bears more than 4 Byzantine devices of 25"
    ):
        result = calibrate(scores, Network.cycle(25), 0.2, "r-dcp", byzantine=5, faults=faults)
    assert result.threshold == math.inf
    assert result.certificate.counted_rank < result.certificate.required_rank <= result.certificate.weight


def test_byzantine_devices_cannot_stretch_the_grid(twenty):
    """They say that their scores reach to 1e300, and the threshold is as fine as without them."""
    plain = calibrate(twenty, Network.cycle(20), 0.1, "r-dcp")
    faults = {"byzantine": (0,), "attack": "copy"}
    lied = calibrate(twenty, Network.cycle(20), 0.1, "r-dcp", faults=faults)
    assert abs(plain.threshold - lied.threshold) < 0.1
    edges = [calibrate(twenty, Network.cycle(20), a, "r-dcp", faults=faults).threshold for a in (0.1, 0.2, 0.3)]
    assert len({*edges}) == 3


def test_who_says_two_things_is_left_out_and_spent(twenty):
    with pytest.warns(CalibrationNote, match=r"devices \{7\} are proven to lie"):
        found = calibrate(twenty, Network.cycle(20), 0.1, "r-dcp", faults={"byzantine": (7,), "attack": "two-faced"})
    without = [own for k, own in enumerate(twenty) if k != 7]
    alone = calibrate(without, Network.cycle(19), 0.1, "r-dcp", byzantine=0)
    assert found.certificate.required_rank == alone.certificate.required_rank
    assert found.certificate.counted_rank == alone.certificate.counted_rank


def test_a_cap_catches_lies_about_sizes(twenty):
    """Without one, a device that claims very many and very high scores makes the threshold infinite."""
    faults = {"byzantine": (2,), "attack": "size-high"}
    with pytest.warns(CalibrationNote, match="give a cap"):
        assert calibrate(twenty, Network.cycle(20), 0.1, "r-dcp", faults=faults).threshold == math.inf
    with pytest.warns(CalibrationNote, match=r"\{2\} are proven to lie"):
        capped = calibrate(twenty, Network.cycle(20), 0.1, "r-dcp", cap=100, faults=faults)
    assert capped.threshold < 1
    rows = tuple(len(own) for own in twenty)
    with pytest.warns(CalibrationNote, match="proven"):
        by_row = calibrate(twenty, Network.cycle(20), 0.1, "r-dcp", caps=rows, faults=faults)
    assert by_row.threshold == capped.threshold


def test_more_proven_byzantine_devices_than_granted_is_an_error(twenty):
    with pytest.raises(ValueError, match="are proven to lie and byzantine=1, so that nothing holds"):
        calibrate(twenty, Network.cycle(20), 0.1, "r-dcp", faults={"byzantine": (1, 2), "attack": "two-faced"})


def test_signed_nonsense_stops_nobody(twenty):
    def says(stage, row, own):
        return b"nonsense" if row == 4 else own

    outcome = driven(twenty, ALPHA, Hearing(says, np.zeros(20, dtype=bool)))
    assert outcome.thresholds[0, 0, 0] < 1
    assert "{4} are proven to lie" in outcome.notes[0]


def unheard(*rows, stage=2):
    return lambda at, row, own: None if row in rows and at >= stage else own


def test_an_unheard_device_counts_nothing_of_as_many_scores_as_it_may_hold(twenty):
    """At alpha = .5 one missing device is bearable: about everybody, counted; 0 of its scores are."""
    hearing = Hearing(unheard(6), np.zeros(20, dtype=bool))
    outcome = driven(twenty, Fraction(1, 2), hearing, cap=80)
    certificate = outcome.certificates[0][0]
    assert (certificate.kind, certificate.heard) == ("counted", ())
    tau = outcome.thresholds[0, 0, 0]
    missing = [np.full(80, math.inf) if k == 6 else own for k, own in enumerate(twenty)]
    assert has_rank(missing, range(20), tau, Fraction(1, 2))
    assert has_rank(twenty, range(20), tau, Fraction(1, 2))


def test_where_nobody_knows_a_size_the_promise_is_about_the_heard(twenty):
    hearing = Hearing(unheard(6, stage=1), np.zeros(20, dtype=bool))
    certificate = driven(twenty, ALPHA, hearing).certificates[0][0]
    assert (certificate.kind, certificate.assumption) == ("assumed", HEARD_ASSUMPTION)
    assert certificate.heard == tuple(str(k) for k in range(20) if k != 6)
    equal = driven(twenty, Fraction(1, 2), Hearing(unheard(6), np.zeros(20, dtype=bool)), target="equal")
    assert equal.certificates[0][0].heard == ()  # a share of 1 / K, however many scores it holds


def test_too_few_heard_for_a_grid_is_infinity_and_says_so(twenty):
    outcome = driven(twenty, ALPHA, Hearing(unheard(*range(5), stage=1), np.zeros(20, dtype=bool)))
    assert (outcome.thresholds == math.inf).all()
    assert "15 of 20 devices were heard" in outcome.notes[0]


def test_without_rounds_a_device_says_the_same_whoever_was_heard_before(twenty):
    """Two strings would prove it a Byzantine device; so its grid is its own, and there is nothing to wait for."""
    said, options = {}, METHODS["r-dcp"].async_mode.options(make_options("r-dcp", {"byzantine": 2}))
    assert options.grid == "own"
    for missing in ((), (4,), range(1, 20)):

        def says(stage, row, own, missing=missing):
            assert stage == 1
            assert said.setdefault(row, own) == own
            return None if row in missing else own

        outcome = driven(twenty, ALPHA, Hearing(says, np.zeros(20, dtype=bool)), byzantine=2, grid=options.grid)
        assert has_rank(twenty, [k for k in range(20) if k not in missing], outcome.thresholds[0, 0, 0], ALPHA)
    given = make_options("r-dcp", {"range": (0, 1)})
    assert METHODS["r-dcp"].async_mode.options(given) == given


def test_own_grids_are_as_fine_in_one_flood(twenty):
    net = Network.torus(5, 4)
    agreed, own = (calibrate(twenty, net, 0.1, "r-dcp", grid=grid) for grid in ("agreed", "own"))
    assert abs(own.threshold - agreed.threshold) < 2 / 4096
    assert own.cost.rounds == agreed.cost.rounds / 2 == net.diameter


def test_words_that_nobody_signed_are_an_assumption(twenty):
    certificate = driven(twenty, ALPHA, honestly(20, sealed=False)).certificates[0][0]
    assert (certificate.kind, certificate.assumption) == ("assumed", UNSIGNED_ASSUMPTION)


def test_a_report_on_another_grid_counts_as_far_as_it_goes(twenty):
    """Device 0 heard of other ends: its report is coarser for the others, and nothing counts twice."""

    def says(stage, row, own):
        if row or stage == 1:
            return own
        return encode_reports([Report.of(np.sort(twenty[0]), -1.0, 3.0, 7)])

    plain, mixed = (driven(twenty, ALPHA, h) for h in (honestly(20), Hearing(says, np.zeros(20, dtype=bool))))
    assert plain.thresholds[0, 0, 0] <= mixed.thresholds[0, 0, 0] < 1
    assert has_rank(twenty, range(20), mixed.thresholds[0, 0, 0], ALPHA)


def test_scores_beyond_the_grid_and_infinite_ones():
    """Scores beyond a grid are said with the largest of them; infinite ones are only said to be there."""
    scores = [np.array([1.0, 2.0, 3.0, 100.0]), np.array([1.0, 2.0, 3.0, 200.0]), *[np.array([1.0, 2.0, 3.0, 4.0])] * 3]

    def threshold(alpha, byzantine=0, held=scores):
        return calibrate(held, Network.complete(5), alpha, "r-dcp", byzantine=byzantine, range=(0, 4), bins=4).threshold

    assert [threshold(alpha) for alpha in (0.5, 0.2, 0.1, 0.06)] == [3.0, 4.0, 100.0, 200.0]  # ranks 11, 17, 19, 20
    many = [np.append(own, [math.inf, -math.inf]) for own in scores]
    assert threshold(0.3, held=many) == 4.0  # ceil(.7 * 30) + 1 = 22, and 23 lie at or below 4
    with pytest.warns(TooFewScores, match="needs rank 17 but there are only scores that weigh 16"):
        assert threshold(0.06, byzantine=1) == math.inf


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"byzantine": 4}, "byzantine must be fewer than the devices, 4, got 4"),
        ({"byzantine": -1}, "byzantine must be at least 0"),
        ({"bins": 70_000}, "bins must be at most 65536"),
        ({"cap": -1}, "a cap must be at least 0"),
        ({"caps": (1, 2)}, "one entry for each of 4 devices"),
        ({"rank_rule": "ghost"}, "no proof for rank_rule 'ghost' with mixture 'sizes'; use 'paper'"),
        ({"pac_confidence": 0.9}, "no proof for pac_confidence"),
    ],
)
def test_what_cannot_be_kept_is_refused(given, words):
    with pytest.raises(ValueError, match=words):
        calibrate([[0.1, 0.2]] * 4, Network.cycle(4), 0.1, "r-dcp", **given)


def test_the_rule_does_not_depend_on_what_is_said():
    """`auto` may take the smaller of two ranks where sizes are known; Byzantine devices would choose by theirs."""
    assert make_requirement("paper").device_ranks(np.array([5, 5, 5])).rule == "swap"
    assert make_requirement("paper", "ghost").device_ranks(np.array([5, 6])).slack == 0


def test_groups_are_covered_apart():
    rng = np.random.default_rng(5)
    scores = [rng.random(60) for _ in range(8)]
    groups = [np.where(np.arange(60) < 30, "a", "b") for _ in range(8)]
    found = calibrate(scores, Network.cycle(8), (0.3,), "r-dcp", groups=groups)
    for name, part in (("a", slice(0, 30)), ("b", slice(30, 60))):
        mine = [own[part] for own in scores]
        assert has_rank(mine, range(8), found[name].threshold, Fraction(3, 10))
    with pytest.raises(ValueError, match="no proof for groups with mixture 'equal'"):
        calibrate(scores, Network.cycle(8), (0.3,), "r-dcp", groups=groups, mixture="equal")


def test_other_methods_refuse_byzantine_devices_and_name_r_dcp(twenty):
    with pytest.raises(ValueError, match=r"byzantine=\(1,\); use r-dcp"):
        calibrate(twenty, Network.cycle(20), faults={"byzantine": (1,), "attack": "all-low"})


def test_people_are_told_how_many_byzantine_devices_it_bears(twenty):
    result = calibrate(twenty, Network.cycle(20), 0.1, "r-dcp", byzantine=2)
    assert ("byzantine", "about the others, whatever up to 2 devices may have said") in result.facts()
    assert "whatever up to 2 devices may have said" in str(result.certificate)


def test_a_saved_result_is_checked(twenty, tmp_path):
    path = tmp_path / "robust.json"
    calibrate(twenty, Network.cycle(20), 0.1, "r-dcp", byzantine=2).save(path)
    assert Result.load(path).certificate.byzantine == 2
    changes = {
        "byzantine must be fewer": {"byzantine": 20},
        "must say their weight": {"weight": None},
        "counted_rank must be at least": {"counted_rank": 5},
        "required_rank must be at least": {"required_rank": 5, "counted_rank": 5},
        "must be among device_ids": {"heard": ["nobody"]},
    }
    for words, change in changes.items():
        raw = json.loads(path.read_text())
        raw["answers"][0]["certificate"].update(change)
        other = tmp_path / "other.json"
        other.write_text(json.dumps(raw))
        with pytest.raises(ValueError, match=words):
            Result.load(other)


def test_huge_claims_are_added_up_without_overflow():
    """Sizes up to what anybody may say, and alphas with many digits: Python's integers take over."""
    scores = [np.linspace(0, 1, 40)] * 6
    huge = 2**52 // 6

    def says(stage, row, own):
        if row or stage == 1:
            return own
        (mine,) = decode_reports(own, 1, 2**52)
        return encode_reports([replace(mine, size=huge, places=np.array([0]), counts=np.array([huge]))])

    for target in ("sizes", "paper", "equal"):
        alpha = Fraction("0.31234567890123")
        outcome = driven(scores, alpha, Hearing(says, np.zeros(6, dtype=bool)), target=target)
        assert has_rank(scores, range(1, 6), outcome.thresholds[0, 0, 0], alpha, target)
        assert outcome.thresholds[0, 0, 0] < 1


def test_ends_of_byzantine_devices_need_not_make_sense(twenty):
    def says(stage, row, own):
        return encode_ends(np.array([math.inf]), np.array([-5.0])) if row == 3 and stage == 1 else own

    assert driven(twenty, ALPHA, Hearing(says, np.zeros(20, dtype=bool))).thresholds[0, 0, 0] < 1
