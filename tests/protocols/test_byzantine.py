"""What no Byzantine device can do: exact risks of the honest on small tables, random attacks, and coverage."""

import itertools
import math
import warnings
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest

from conformesh import CalibrationNote, Network
from conformesh.kernels.ranks import Requirement, make_requirement
from conformesh.kernels.weighted_scores import WeightedScores
from conformesh.pipeline.solver import solve_draws
from conformesh.protocols.attacks import ATTACKS, scores_from_report
from conformesh.protocols.histogram_reports import Report, decode_reports, encode_ends, encode_reports
from conformesh.protocols.trimming import TrimmedSearch
from tests.pipeline.test_enumeration import as_trials, random_table
from tests.protocols.byzantine import SHARES, Hearing, driven, has_rank
from tests.statistics import assert_coverage, power_against

ALPHAS = (Fraction(1, 10), Fraction(1, 5), Fraction(1, 3), Fraction(3, 5))
GRID = {"range": (0.0, 128.0), "bins": 128}  # tables hold whole numbers: nothing is rounded


# --- every table ------------------------------------------------------------------------------------------------------


def honest_risks(table, byzantine, attack, target, rank="auto", alphas=ALPHAS, granted=None):
    """The exact risk of the honest devices, all choices of their hidden items summed; the last devices lie."""
    devices = len(table)
    samples, hidden, _ = as_trials([table])
    faults = {"byzantine": tuple(range(devices - byzantine, devices)), "attack": attack}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CalibrationNote)
        batch = solve_draws(
            samples,
            Network.complete(devices),
            alphas,
            "r-dcp",
            requirement=make_requirement(target, rank),
            faults=faults,
            byzantine=byzantine if granted is None else granted,
            **GRID,
        )
    honest = range(devices - byzantine)
    shares = [Fraction(SHARES[target](len(table[k]) - 1)) for k in honest]
    if not sum(shares):
        return []
    missed = (hidden[:, :, None] > batch.outcome.thresholds[0][:, None, :]).mean(axis=0)
    ways = math.prod(map(len, table))
    counts = np.rint(missed * ways).astype(int).tolist()
    return [
        sum((share * row[a] for share, row in zip(shares, counts, strict=False)), Fraction(0)) / ways / sum(shares)
        for a in range(len(alphas))
    ]


def worst_of(tables, seed, limit, attacks, targets=("sizes", "paper", "equal"), rank="auto", **options):
    """The largest risk / alpha of so many tables with one or two Byzantine devices."""
    rng, worst = np.random.default_rng(seed), Fraction(0)
    for number in range(tables):
        byzantine = int(rng.integers(1, 3))
        honest = random_table(rng, int(rng.integers(byzantine + 1, 5)), limit)
        table = [*honest, *(np.array([5, 5]) for _ in range(byzantine))]  # what Byzantine devices hold does not matter
        attack, target = attacks[number % len(attacks)], targets[number % len(targets)]
        for alpha, risk in zip(ALPHAS, honest_risks(table, byzantine, attack, target, rank, **options), strict=False):
            worst = max(worst, risk / alpha)
    return worst


def test_theorem_the_trimmed_certificate_covers_the_honest_on_every_table():
    """The lie that lowers thresholds most is to claim many low scores: all targets, four alphas, 30 tables."""
    worst = worst_of(30, 651978631, 12, ["size-lie"])
    assert Fraction(1, 2) < worst <= 1


def test_theorem_the_trimmed_certificate_covers_with_imagined_scores():
    assert Fraction(1, 4) < worst_of(8, 3, 12, ["size-lie"], ("paper",), "ghost") <= 1


@pytest.mark.slow
def test_theorem_the_trimmed_certificate_covers_the_honest_on_very_many_tables():
    """All attacks, 400 tables."""
    attacks = [name for name in ATTACKS if name != "two-faced"]
    assert Fraction(3, 4) < worst_of(400, 5, 30, [*attacks, "size-lie"]) <= 1


def test_one_byzantine_device_more_than_granted_is_caught():
    """The test goes red where one Byzantine device fewer is granted than there are."""
    assert worst_of(6, 651978631, 12, ["size-lie"], granted=0) > 1


def test_a_certificate_without_slack_is_caught(monkeypatch):
    """The test goes red without the weight of the score that is exchanged."""
    proven = Requirement.device_ranks
    monkeypatch.setattr(Requirement, "device_ranks", lambda *given: replace(proven(*given), slack=Fraction(0)))
    assert worst_of(8, 651978631, 12, ["size-lie"]) > 1


def all_reports(most, values):
    """Every report of up to `most` scores with these values, or infinite."""
    for size in range(most + 1):
        for scores in itertools.combinations_with_replacement([*values, math.inf], size):
            yield Report.of(np.array(scores), 0.0, 128.0, 128)


@pytest.mark.parametrize("target", ["sizes", "paper", "equal"])
def test_theorem_no_word_of_a_byzantine_device_leads_below_the_honest_threshold(target):
    """Every report of up to four scores with four values: the threshold is never below that of the honest alone."""
    rng = np.random.default_rng(11)
    said = [*all_reports(4, (0, 2, 5, 9))]
    requirement, closest = make_requirement(target), 0
    for _ in range(3):
        honest = [np.sort(rng.integers(0, 10, rng.integers(1, 6))).astype(float) for _ in range(3)]
        reports = [Report.of(own, 0.0, 128.0, 128) for own in honest]
        for alpha in (Fraction(1, 3), Fraction(3, 5)):
            found = []
            for lie in said:
                sizes = np.array([*map(len, honest), lie.size])
                found.append(
                    TrimmedSearch([*reports, lie], sizes, requirement.device_ranks(sizes), 1).at(alpha).threshold
                )
                assert has_rank(honest, range(3), found[-1], alpha, target)
            alone = TrimmedSearch(reports, sizes[:3], requirement.device_ranks(sizes[:3]), 0).at(alpha).threshold
            assert min(found) >= alone
            closest += min(found) == alone < math.inf
    assert closest >= 2  # and a lie leads there


# --- ten thousand attacks ---------------------------------------------------------------------------------------------


def random_report(rng, most):
    """A report that somebody could make, of anything."""
    size = int(rng.choice([0, 1, 5, 30, most]))
    scores = np.sort(rng.choice([rng.normal(size=40) * 10, np.full(40, np.inf), np.full(40, -50.0)], axis=0))[:size]
    low = float(rng.normal())
    report = Report.of(scores, low, low + float(rng.exponential() + 1e-3), int(rng.integers(1, 200)))
    return replace(report, size=max(size, len(scores)))


def random_lie(rng, own, stage, most):
    """What a Byzantine device says: anything that is said here, nonsense, or nothing."""
    kind = rng.integers(6)
    if kind == 0:
        return None
    if kind == 1:
        return rng.bytes(int(rng.integers(0, 60)))
    if kind == 2:  # what it would have said, with one byte changed
        at = int(rng.integers(len(own)))
        return own[:at] + bytes([int(rng.integers(256))]) + own[at + 1 :]
    if stage == 1:
        return encode_ends(*rng.choice([-1e300, -1.0, 0.0, 5.0, 1e300, np.inf, -np.inf], size=(2, 1)))
    return encode_reports([random_report(rng, most)])


def attacked_once(seed):
    """One random network, promise and attack; return whether there was a finite threshold that the honest do have."""
    rng = np.random.default_rng([7, seed])
    devices = int(rng.integers(1, 10))
    spread, shift = rng.choice([0.0, 1.0, 8.0]), rng.choice([0.0, 3.0])
    scores = [
        np.sort(np.round(rng.normal(shift * rng.normal(), 1 + spread, size=rng.integers(0, 25)), rng.integers(0, 4)))
        for _ in range(devices)
    ]
    f = int(rng.integers(0, devices))
    byzantine = {*rng.permutation(devices)[: rng.integers(0, f + 1)].tolist()}
    target = [*SHARES, {str(k): int(rng.integers(0, 5)) + (k == 0) for k in range(devices)}][rng.integers(4)]
    rank = "ghost" if target == "paper" and rng.random() < 0.5 else "auto"
    alpha = Fraction(int(rng.integers(1, 40)), 50)
    capped, missing = rng.random() < 0.5, rng.random() * 0.3 if rng.random() < 0.5 else 0.0
    disputed = np.array([k in byzantine and rng.random() < 0.2 for k in range(devices)])
    lie = rng.choice([*ATTACKS, "anything"])
    absent = {k for k in range(devices) if rng.random() < missing}

    def says(stage, row, own):
        if row in absent:
            return None
        if row not in byzantine:
            return own
        if lie == "anything" or (stage == 1 and not {*options} & {"range", "grid"}):
            return random_lie(rng, own, stage, 1000)
        scene = type("AttackerView", (), {"honest": [], "chance": rng})
        return encode_reports([ATTACKS[lie](decode_reports(own, 1, 2**50)[0], scene)])

    options = {"byzantine": f, "bins": int(rng.integers(1, 300))}
    options |= {"caps": tuple(len(own) + int(rng.integers(3)) for own in scores)} if capped else {}
    options |= [{}, {"range": (-3.0, 3.0)}, {"grid": "own"}][rng.integers(3)]
    outcome = driven(scores, alpha, Hearing(says, disputed), target, rank, **options)
    tau, certificate = outcome.thresholds[0, 0, 0], outcome.certificates[0][0]
    about = [k for k in range(devices) if k not in byzantine and (not certificate.heard or str(k) in certificate.heard)]
    true = has_rank(scores, about, tau, alpha, target, rank)
    assert true, f"seed {seed}: {devices} devices, Byzantine {byzantine} of {f}, {target}, {rank}, alpha {alpha}: {tau}"
    return tau < math.inf


def test_theorem_random_attacks_get_no_false_certificate():
    """200 attacks; at least a fifth of them leave a finite threshold, so that there is something to be false."""
    assert sum(map(attacked_once, range(200))) > 40


@pytest.mark.slow
def test_theorem_ten_thousand_random_attacks_get_no_false_certificate():
    assert sum(map(attacked_once, range(1000, 11_000))) > 2000


# --- coverage ---------------------------------------------------------------------------------------------------------

DEVICES, BYZANTINE, EACH, ALPHA = 8, 2, 10, 0.3


def lied_to(attack, trials, seed, byzantine=BYZANTINE):
    """How often a new example of an honest device is covered: unlike devices, the last ones lie."""
    rng = np.random.default_rng(seed)
    shift = np.arange(DEVICES)
    scores = rng.normal(size=(trials, DEVICES, EACH)) * (1 + shift[:, None] / 3) + shift[:, None]
    device = rng.integers(DEVICES - BYZANTINE, size=trials)
    test = rng.normal(size=trials) * (1 + device / 3) + device
    faults = {"byzantine": tuple(range(DEVICES - BYZANTINE, DEVICES)), "attack": attack, "seed": seed}
    batch = solve_draws(
        WeightedScores.of_trials(scores),
        Network.cycle(DEVICES),
        [ALPHA],
        "r-dcp",
        faults=faults,
        byzantine=byzantine,
        bins=200,
    )
    return int((test <= batch.outcome.thresholds[0, :, 0]).sum())


@pytest.mark.parametrize("attack", ["size-lie", "mimicry"])
def test_the_honest_are_covered(attack):
    """False alarm < 1e-6, power above 0.9 against coverage 0.54, with 350 trials."""
    assert power_against(350, 1 - ALPHA, 0.54) > 0.9
    assert_coverage(lied_to(attack, 350, 651978631), 350, 1 - ALPHA)


@pytest.mark.slow
@pytest.mark.parametrize("attack", [name for name in ATTACKS if name != "two-faced"])
def test_the_honest_are_covered_for_long(attack):
    """False alarm < 1e-6, power above 0.9 against coverage 0.65, with 4,000 trials."""
    assert power_against(4000, 1 - ALPHA, 0.65) > 0.9
    assert_coverage(lied_to(attack, 4000, 5), 4000, 1 - ALPHA)


def test_without_trimming_the_honest_are_not_covered():
    """Two devices claim a thousand times as many scores, all low: nobody else counts, and the coverage test says so."""
    with pytest.raises(AssertionError, match="if valid"):
        assert_coverage(lied_to("size-lie", 100, 651978631, byzantine=0), 100, 1 - ALPHA)


def test_what_one_byzantine_device_does_to_a_plain_method():
    """One of three devices says that all its scores are very low, and is believed: the honest are covered too seldom.

    Rank 109 of 120 is rank 69 of the 80 honest scores, which covers 69/81 = 0.85.
    """
    rng = np.random.default_rng(3)
    trials = 1000
    scores, test = rng.random((trials, 3, 40)), rng.random(trials)
    scores[:, 2] = -1.0
    plain = solve_draws(WeightedScores.of_trials(scores), Network.chain(3), [0.1], "cp").outcome.thresholds[0, :, 0]
    with pytest.raises(AssertionError, match="if valid"):
        assert_coverage(int((test <= plain).sum()), trials, 0.9, false_alarm=1e-3)


def test_a_report_says_no_more_than_its_scores():
    """The scores that stand for a report give it again: what plain methods are lied to with."""
    own = np.array([0.1, 0.4, 2.0, math.inf])
    report = Report.of(own, 0.0, 1.0, 10)
    assert scores_from_report(report).tolist() == pytest.approx([0.1, 0.4, 2.0, math.inf])
