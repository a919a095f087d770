"""A confidence at all looks: exact chances of failure over all looks, simulated devices, and the public functions."""

import json
import math
from fractions import Fraction

import numpy as np
import pytest
from scipy import stats

from conformesh import CalibrationNote, Network, Result, Table, TooFewScores, calibrate, update
from conformesh.kernels.ranks import make_requirement
from conformesh.kernels.time_uniform import least_scores, time_uniform_rank
from conformesh.kernels.weighted_scores import WeightedScores
from conformesh.pipeline.solver import solve_draws
from tests.statistics import assert_coverage, power_against

TENTH, DELTA = Fraction(1, 10), Fraction(1, 20)
ASKED = {"mixture": "equal", "pac_confidence": 0.95, "time_uniform": True}


def fixed_rank(n, alpha):
    """Return the rank of one calibration that was chosen in advance: the ablation."""
    requirement = make_requirement(pac_confidence=1 - DELTA)
    return requirement.demand(np.array([n]), (alpha,)).required(requirement, alpha, 0, 0, n, 0)


def at_all_looks(n, alpha):
    return time_uniform_rank(n, alpha, DELTA)


def chance_of_failure(rank, chances, steps, alpha, first=1):
    """Return the chance that some look fails, exactly but for float64 sums: looks after each of `steps` steps.

    In a step device k contributes one score, below the quantile with probability `chances[k]`. A threshold covers too
    little if as many scores as its rank lie below the quantile.
    """
    one = np.array([1.0])
    for chance in chances:
        one = np.convolve(one, [1 - chance, chance])
    alive, failed = np.array([1.0]), 0.0
    for m in range(1, steps + 1):
        alive = np.convolve(alive, one)
        n = m * len(chances)
        if m >= first:
            limit = rank(n, alpha)
            failed += alive[limit:].sum()
            alive = alive.copy()
            alive[limit:] = 0.0
    return failed


# --- the theorem, exactly ---------------------------------------------------------------------------------------------


def test_theorem_confidence_at_all_looks():
    """A look after each of 1,000 scores of devices alike; fixed ranks fail in 26 % of runs, and in 29 % up to 2,000."""
    assert 0.02 < chance_of_failure(at_all_looks, [0.9], 1000, TENTH) <= 0.05
    assert chance_of_failure(fixed_rank, [0.9], 1000, TENTH, first=50) > 0.24
    assert chance_of_failure(fixed_rank, [0.9], 2000, TENTH, first=50) == pytest.approx(0.295, abs=0.001)


@pytest.mark.parametrize("alpha", ["0.01", "0.05", "0.3", "0.5"])
def test_theorem_confidence_at_all_looks_for_other_levels(alpha):
    level = Fraction(alpha)
    assert 0.005 < chance_of_failure(at_all_looks, [1 - float(level)], 1500, level) <= 0.05
    assert chance_of_failure(fixed_rank, [1 - float(level)], 1500, level) > 0.12


def test_theorem_confidence_at_all_looks_in_whole_numbers():
    """The same chance without floats: 200 looks, chances in units of 10^-n."""
    alive, failed = [1], Fraction(0)
    for n in range(1, 201):
        alive = [9 * (alive[k - 1] if k else 0) + (alive[k] if k < len(alive) else 0) for k in range(len(alive) + 1)]
        limit = at_all_looks(n, TENTH)
        failed += Fraction(sum(alive[limit:]), 10**n)
        alive = alive[:limit]
    assert 0 < failed <= DELTA
    assert float(failed) == pytest.approx(chance_of_failure(at_all_looks, [0.9], 200, TENTH), rel=1e-9)


def test_theorem_no_climb_of_unlike_devices_leads_above_delta():
    """Two to five unlike devices, any chances with mean 0.9 or below: the hardest found fails less often than delta."""
    rng = np.random.default_rng(3)
    for devices in (2, 3, 5):
        best, chances = 0.0, np.full(devices, 0.9)
        for _ in range(60):
            moved = np.clip(chances + rng.normal(0, 0.04, devices) * rng.integers(0, 2, devices), 0, 1)
            moved = np.clip(moved * min(1, 0.9 / moved.mean()), 0, 1)
            found = chance_of_failure(at_all_looks, moved.tolist(), 300 // devices, TENTH)
            if found > best:
                best, chances = found, moved
        assert 0.005 < best <= 0.05


def test_lower_ranks_are_caught():
    """Power of the exact chance: ranks lower by one standard deviation of the count fail too often."""

    def lower(n, alpha):
        return at_all_looks(n, alpha) - math.ceil(math.sqrt(n * 0.09))

    assert chance_of_failure(lower, [0.9], 1000, TENTH, first=64) > 0.1


# --- simulated devices ------------------------------------------------------------------------------------------------

UNLIKE = {
    "alike": np.zeros(8),
    "shifted": np.array([0.0, 0.0, 0.0, 0.1, 0.1, 0.2, 0.3, 0.5]),
    "one far away": np.array([0.0] * 7 + [0.05]),
}


def failures(shift, runs, looks, rank, seed):
    """Return in how many runs some look has a threshold that covers too little.

    Device k has uniform scores plus shift[k]; after m scores of each device there is a look.
    """
    rng = np.random.default_rng(seed)
    low, high = 0.0, 2.0
    for _ in range(60):  # the quantile of the mixture
        middle = (low + high) / 2
        low, high = (low, middle) if np.clip(middle - shift, 0, 1).mean() >= 0.9 else (middle, high)
    ranks = np.array([rank(len(shift) * m, TENTH) for m in range(1, looks + 1)])
    failed = 0
    for start in range(0, runs, 500):
        drawn = rng.random((min(500, runs - start), looks, len(shift))) + shift
        below = np.cumsum((drawn < high).sum(axis=2), axis=1)
        failed += int((below >= ranks).any(axis=1).sum())
    return failed


@pytest.mark.parametrize("name", UNLIKE)
def test_simulated_looks_fail_at_most_as_often_as_allowed(name):
    """4,000 runs of 250 looks at 8 to 2,000 scores. False alarm below 1e-6; power above 0.99 against 8 % failures.

    The ranks of one calibration fail in 20 to 29 % of the same runs.
    """
    assert power_against(4000, 0.95, 0.92) > 0.99
    found = failures(UNLIKE[name], 4000, 250, at_all_looks, 7)
    assert_coverage(4000 - found, 4000, 0.95)
    fixed = failures(UNLIKE[name], 4000, 250, fixed_rank, 7)
    assert stats.binom.sf(fixed - 1, 4000, 0.05) < 1e-6


def test_theorem_confidence_at_all_looks_through_the_calibration():
    """1,500 draws of eight unlike devices, ten looks each: false alarm below 1e-6, power above 0.9 against 9 %."""
    assert power_against(1500, 0.95, 0.91) > 0.9
    shift, draws = UNLIKE["shifted"], 1500
    drawn = np.random.default_rng(5).random((8, draws, 100)) + shift[:, None, None]
    failed = np.zeros(draws, dtype=bool)
    requirement = make_requirement("equal", pac_confidence="0.95", time_uniform=True)
    for m in range(10, 101, 10):
        first = np.ascontiguousarray(drawn[:, :, :m])
        samples = WeightedScores.from_flat(first.ravel(), np.full(8 * draws, m), draws)
        batch = solve_draws(samples, Network.complete(8), [TENTH], "e-dcp", requirement=requirement)
        covers = np.clip(batch.outcome.thresholds[0, :, 0, None] - shift, 0, 1).mean(axis=1)
        failed |= covers < 0.9 - 1e-12
    assert_coverage(int((~failed).sum()), draws, 0.95)


# --- the public functions ---------------------------------------------------------------------------------------------


def growing(looks=6, seed=2):
    """Return the scores of five devices at several looks; each device has its own pace."""
    rng = np.random.default_rng(seed)
    every = {f"d{k}": rng.normal(k / 3, size=400) for k in range(5)}
    held = dict.fromkeys(every, 20)
    for _ in range(looks):
        held = {name: n + int(rng.integers(5, 60)) for name, n in held.items()}
        yield {name: scores[: held[name]] for name, scores in every.items()}


def expected(held, per_step, alpha, problems=1):
    """Return the rank and the threshold of the pooled first scores."""
    steps = min(len(held[name]) // many for name, many in per_step.items() if many)
    pooled = np.sort(np.concatenate([held[name][: steps * many] for name, many in per_step.items()]))
    rank = time_uniform_rank(len(pooled), alpha, DELTA / problems)
    return len(pooled), rank, pooled[rank - 1]


@pytest.mark.parametrize("method", ["e-dcp", "h-dcp"])
def test_each_look_has_the_rank_of_the_rule_and_counts_the_first_scores(method):
    for held in growing():
        result = calibrate(held, "cycle", 0.1, method, **ASKED)
        n, rank, threshold = expected(held, dict.fromkeys(held, 1), TENTH)
        assert (result.examples, result.certificate.required_rank) == (n, rank)
        assert result.threshold == threshold if method == "e-dcp" else result.threshold >= threshold
        assert result.options["unused_rows"] == sum(map(len, held.values())) - n


def test_shares_decide_how_many_scores_a_device_contributes():
    shares = {"d0": 0.5, "d1": "0.25", "d2": 0.25, "d3": 0.5, "d4": 0}
    for held in growing():
        result = calibrate(held, "complete", 0.1, **{**ASKED, "mixture": shares})
        n, rank, threshold = expected(held, {"d0": 2, "d1": 1, "d2": 1, "d3": 2, "d4": 0}, TENTH)
        assert (result.examples, result.certificate.required_rank, result.threshold) == (n, rank, threshold)


def test_shares_may_be_a_column_of_a_frame():
    held = next(iter(growing(1)))
    frame = {
        "device": np.concatenate([[name] * len(own) for name, own in held.items()]),
        "score": np.concatenate([*held.values()]),
        "beds": np.concatenate([[2 if name == "d0" else 1] * len(own) for name, own in held.items()]),
    }
    found = calibrate(frame, "cycle", 0.1, **{**ASKED, "mixture": "beds"})
    shares = {name: 2 if name == "d0" else 1 for name in held}
    assert found.certificate == calibrate(held, "cycle", 0.1, **{**ASKED, "mixture": shares}).certificate
    assert found.threshold == expected(held, shares, TENTH)[2]


def test_levels_and_sides_share_the_probability_of_failure():
    held = list(growing())[-1]
    each = dict.fromkeys(held, 1)
    levels = calibrate(held, "cycle", [0.1, 0.2], **ASKED)
    for alpha in (0.1, 0.2):
        one = levels.at(alpha=alpha)
        assert (one.examples, one.certificate.required_rank, one.threshold) == expected(
            held, each, Fraction(str(alpha)), problems=2
        )
    both = {name: np.column_stack([own, own[::-1]]) for name, own in held.items()}
    sides = calibrate(both, "cycle", 0.2, symmetric=False, **ASKED)
    for side, column in (("lower", 0), ("upper", 1)):
        first = {name: own[:, column] for name, own in both.items()}
        assert sides[side].threshold == expected(first, each, TENTH, problems=2)[2]


def test_one_device_needs_no_mixture():
    """With one device every mixture is fixed."""
    scores = np.random.default_rng(0).random(100)
    for mixture in ("sizes", "equal", "paper"):
        result = calibrate([scores], Network.chain(1), 0.1, **{**ASKED, "mixture": mixture})
        assert result.certificate.required_rank == time_uniform_rank(100, TENTH, DELTA)
        assert result.options["unused_rows"] == 0


def test_changed_files_are_refused():
    """Among others a result of one calibration that says it holds at all looks, and a larger confidence."""
    rng = np.random.default_rng(0)
    scores = [rng.random(50), rng.random(50)]
    once = calibrate(scores, None, 0.1, mixture="equal", pac_confidence=0.95).to_dict()
    looks = calibrate(scores, None, 0.1, **ASKED).to_dict()

    def refused(raw, words, guarantee=(), **certificate):
        raw = json.loads(json.dumps(raw))
        assert Result.from_dict(raw).to_dict() == raw
        raw["guarantee"] |= dict(guarantee)
        raw["answers"][0]["certificate"] |= certificate
        with pytest.raises(ValueError, match=words):
            Result.from_dict(raw)

    always = {"time_uniform": True}
    refused(once, "agree whether pac_confidence holds at all looks", always)
    refused(once, "agree whether pac_confidence holds at all looks", always, **always)
    refused(
        once,
        "required_rank must be at least 98 for 100 examples at all looks, got 96",
        always,
        rule="time-uniform",
        **always,
    )
    refused(looks, "at least 100 for 100 examples at all looks, got 98", {"pac_confidence": 0.99}, pac_confidence=0.99)
    refused(looks, "the pac_confidence of its guarantee, 99/100, got 0.95", {"pac_confidence": 0.99})
    refused(looks, "pac_confidence must lie strictly between 0 and 1", {"pac_confidence": 1.5})


def test_an_update_looks_at_the_same_mixture_with_the_same_levels():
    """A device that joins changes the mixture `equal`; other levels divide the probability of failure otherwise."""
    rng = np.random.default_rng(6)
    scores = {name: rng.random(40) for name in "abc"}
    more = {name: np.append(own, rng.random(5)) for name, own in scores.items()}
    first = calibrate(scores, None, 0.1, **ASKED)
    assert update(first, more, None).answer.examples == 135
    with pytest.raises(ValueError, match=r"devices changed from \{a, b, c\} to \{a, b, c, d\}"):
        update(first, more | {"d": rng.random(45)}, None)
    for changed in ({"mixture": {"a": 1, "b": 1, "c": 2}}, {"pac_confidence": 0.9}):
        with pytest.raises(ValueError, match="the mixture, levels, sides or pac_confidence changed"):
            update(first, more, None, **changed)
    pairs, longer = ({name: np.stack([own, own], axis=1) for name, own in each.items()} for each in (scores, more))
    sides = calibrate(pairs, None, 0.2, symmetric=False, **ASKED)
    assert update(sides, longer, None).guarantee == sides.guarantee
    two = calibrate(scores, None, [0.1, 0.2], **ASKED)
    with pytest.raises(ValueError, match="the mixture, levels, sides or pac_confidence changed"):
        update(two.at(alpha=0.1), more, None)
    with pytest.warns(CalibrationNote, match="probabilities of failure add up"):
        update(first, more | {"d": rng.random(45)}, None, time_uniform=False)


def test_ties_are_covered():
    """Only scores strictly below the quantile are evidence: a threshold on the atom itself covers it.

    Scores are 0 with a probability just below 0.9 and else 1, so that a threshold of 0 covers too little. It needs as
    many zeros as the rank, which is the event of the theorem: exact chance, looks after each of 600 scores.
    """
    assert chance_of_failure(at_all_looks, [0.9 - 1e-9], 600, TENTH) <= 0.05
    rank = time_uniform_rank(200, TENTH, DELTA)
    for zeros in (rank - 1, rank):
        scores = np.repeat([0.0, 1.0], [zeros, 200 - zeros])
        held = np.random.default_rng(1).permutation(scores).reshape(4, 50)
        assert calibrate(held, "cycle", 0.1, **ASKED).threshold == (0.0 if zeros >= rank else 1.0)


def test_the_certificate_says_that_it_holds_at_all_looks_and_what_it_assumes(tmp_path):
    held = list(growing())[-1]
    result = calibrate(held, "cycle", 0.1, **ASKED)
    certificate = result.certificate
    assert (certificate.kind, certificate.rule, certificate.time_uniform) == ("counted", "time-uniform", True)
    for words in (
        "with probability 0.95 for all calibrations together, over the draw of the scores",
        "all calibrations have the same devices, and scores arrive in an order that does not depend on their values",
    ):
        assert words in str(certificate)
    assert "more wait until every device has its share" in result._repr_html_()
    assert "0.95 for all calibrations together" in result._repr_html_()
    result.save(tmp_path / "result.json")
    again = Result.load(tmp_path / "result.json")
    assert (again.certificate, again.guarantee) == (certificate, result.guarantee)
    plain = calibrate(held, "cycle", 0.1, mixture="equal", pac_confidence=0.95)
    assert "looks" not in str(plain.certificate)


@pytest.mark.parametrize("devices", [1, 5])
def test_too_few_scores_say_how_many_a_look_needs(devices):
    needed = -(-least_scores(TENTH, DELTA) // devices) * devices
    scores = np.random.default_rng(0).random((devices, needed // devices))
    assert math.isfinite(calibrate(scores, "complete", 0.1, **ASKED).threshold)
    with pytest.warns(
        TooFewScores, match=rf"and time_uniform needs at least {needed} scores, .* of {needed - 1} count"
    ):
        result = calibrate([scores[0][:-1], *scores[1:]], "complete", 0.1, **ASKED)
    assert result.threshold == math.inf


def test_shares_too_fine_for_the_scores_count_none():
    """A step of shares like 0.333 takes hundreds of scores of each device; the warning says how many."""
    held = {"a": np.arange(50.0) % 7, "b": np.arange(50.0) % 7}
    with pytest.warns(TooFewScores, match="needs at least 1,000 scores, .* 0 of 100 count"):
        result = calibrate(held, "chain", 0.1, **{**ASKED, "mixture": {"a": 0.333, "b": 0.667}})
    assert result.threshold == math.inf


def test_sorted_scores_are_refused_where_only_some_count():
    """The first scores of a sorted file are the lowest. Where all count, or nearly all are ties, order is harmless."""
    rng = np.random.default_rng(4)
    few, many = rng.random(60), np.sort(rng.random(100))
    for scores, end in ((many, "lowest"), (many[::-1], "highest")):
        words = f"device b: scores must be in the order in which they arrived, .* the first 60 of 100, .* the {end}$"
        with pytest.raises(ValueError, match=words):
            calibrate({"a": few, "b": scores}, "chain", 0.1, **ASKED)
        sides = {"a": np.column_stack([few, few]), "b": np.column_stack([rng.permutation(scores), scores])}
        with pytest.raises(ValueError, match=words):
            calibrate(sides, "chain", 0.1, symmetric=False, **ASKED)
    together = calibrate({"a": np.sort(many[:60]), "b": few}, "chain", 0.1, **ASKED)
    assert together.threshold == calibrate({"a": rng.permutation(many[:60]), "b": few}, "chain", 0.1, **ASKED).threshold
    calibrate({"a": few, "b": np.repeat([0.1, 0.2, 0.3], [40, 30, 30])}, "chain", 0.1, **ASKED)


def test_a_table_that_runs_may_reorder_is_refused():
    table = Table.from_flat(np.random.default_rng(0).random(200), [100, 100], copy=False)
    with pytest.raises(
        ValueError, match=r"Table.from_flat\(..., copy=False\) lets runs reorder them; leave copy=False"
    ):
        calibrate(table, "chain", 0.1, **ASKED)


@pytest.mark.parametrize("given", [1, "yes", None])
def test_time_uniform_is_true_or_false(given):
    with pytest.raises(TypeError, match="time_uniform must be True or False, got"):
        calibrate([[1.0], [2.0]], "chain", 0.5, pac_confidence=0.9, time_uniform=given)
