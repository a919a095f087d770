"""The search with noise: as many stages whatever the scores are, the rule by its words, and coverage all the same."""

import warnings
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from scipy import stats

from conformesh import Network, Samples, calibrate, calibrate_batch, calibrate_several
from conformesh.privacy.inflation import Inflation
from conformesh.privacy.noise import law
from conformesh.promises import PLAIN, make_promise
from conformesh.protocols.noisy import Plan
from conformesh.protocols.p_dcp import PDCP
from tests.protocols.alone import Transcript, made, secrets_of, thresholds, together
from tests.statistics import assert_coverage, power_against

pytestmark = pytest.mark.filterwarnings("ignore:p-dcp. noise asks for:conformesh.CalibrationNote")

TENTH = (Fraction(1, 10),)
NOISY = {"grid": "logit", "epsilon": 2.0, "width": 3, "stages": 2}


def plan_of(devices=6, promise=PLAIN, alphas=TENTH, **options):
    return Plan.of(devices, promise, alphas, PDCP(**NOISY | options))


def first_accepted(plan, level, cells):
    """The first threshold with alpha below - (1 - alpha) above >= slack + I, word by word."""
    alpha = plan.alphas[level]
    for at in range(len(cells) - 1):
        below, above = sum(cells[: at + 1]), sum(cells[at + 1 :])
        if alpha * below - (1 - alpha) * above >= plan.slack[level] + plan.costs[level].value:
            return at
    return len(cells) - 1


@pytest.mark.parametrize("target", ["sizes", "paper"])
def test_what_is_accepted_is_what_the_rule_says(target):
    """Noisy cells may be negative; where the rule holds with equality it holds."""
    plan, rng = (
        plan_of(promise=make_promise(target), alphas=(Fraction(1, 10), Fraction(1, 3))),
        np.random.default_rng(1),
    )
    assert plan.slack == ((1, 1) if target == "sizes" else (Fraction(27, 5), 4))
    seen = set()
    for _ in range(400):
        cells = (rng.integers(-30, 200, 4) * rng.choice([0, 1, 5], 4)).tolist()
        for level in (0, 1):
            assert plan.accepted(level, cells) == first_accepted(plan, level, cells)
            seen.add(plan.accepted(level, cells))
    assert seen == {0, 1, 2, 3}
    needed = plan.slack[0] + plan.costs[0].value  # all scores below the first threshold: alpha n
    enough = needed / plan.alphas[0]
    assert enough.denominator == 1
    assert plan.accepted(0, [int(enough), 0, 0, 0]) == 0
    assert plan.accepted(0, [int(enough) - 1, 0, 0, 0]) == 3


def test_a_search_without_noise_to_speak_of_ends_where_counting_does():
    """At the largest epsilon: the first point of the grid with D >= 1 + I, found by looking at all of them."""
    rng = np.random.default_rng(6)
    table = [rng.random(300) for _ in range(6)]
    result = calibrate(table, Network.cycle(6), 0.1, "p-dcp", grid="logit", epsilon=100.0, floor=300)
    plan = Plan.of(6, PLAIN, TENTH, PDCP(grid="logit", epsilon=100.0, floor=300))
    below = np.searchsorted(np.sort(np.concatenate(table)), plan.grid, side="right")
    enough = [c - Fraction(9, 10) * 1800 >= 1 + plan.costs[0].value for c in below.tolist()]
    assert result.threshold == plan.grid[enough.index(True)]


def test_stages_and_frames_are_the_same_whatever_the_scores_are():
    """Many scores or one each, low, high or infinite: as many rounds, frames and bytes on every device."""
    rng, network, shapes = np.random.default_rng(2), Network.chain(4), []
    for table in (
        [[0.5]] * 4,
        [rng.random(5000), [0.1], [0.9] * 40, [0.2, 0.3]],
        [[-np.inf] * 7, [np.inf], [1e300], [0.0]],
    ):
        said = Transcript()
        together(network, made(network, table, **NOISY), said=said)
        shapes.append([(*one[:4], len(one[4])) for one in said])
    assert shapes[0] == shapes[1] == shapes[2]


def test_noise_is_the_same_in_a_run_that_is_repeated_and_another_in_another_run():
    network, table = Network.chain(4), [np.linspace(0, 1, 400)] * 4
    runs = []
    for run in (0, 0, 1):
        own = [secrets_of(network, row, run) for row in range(4)]
        outcomes = together(network, made(network, table, secrets=lambda _, row, own=own: own[row], **NOISY))
        assert len({*thresholds(outcomes)}) == 1
        runs.append(outcomes[0].facts["revealed_cells"])
    assert runs[0] == runs[1] != runs[2]


def test_the_noise_of_totals_has_the_law_that_was_said(monkeypatch):
    """All devices' shares, in 1,500 runs of two stages: chi-square with a false alarm of 1e-6, and no two stages alike.

    Power above .99 if it were that of H shares, and not of K: 6 devices of which 3 are honest.
    """
    seen, real = [], Plan.accepted
    monkeypatch.setattr(Plan, "accepted", lambda plan, level, cells: seen.append(cells) or real(plan, level, cells))
    samples = Samples.from_flat(np.full(6 * 1500 * 50, -np.inf), np.full(6 * 1500, 50), 1500)  # all in the first cell
    calibrate_batch(samples, Network.star(6), TENTH, "p-dcp", **NOISY, honest=3)
    noise = np.array(seen).reshape(2, 1500, 4) - [300, 0, 0, 0]
    assert abs(np.corrcoef(noise[0].ravel(), noise[1].ravel())[0, 1]) < 5 / np.sqrt(6000)

    def chances(shape):
        known = law(Fraction(1), shape)
        whole = np.clip(np.arange(-known.reach, known.reach + 1), -6, 6)
        return np.bincount(whole + 6, known.chances, minlength=13)

    right, limit = 12_000 * chances(Fraction(2)), stats.chi2.isf(1e-6, 12)
    observed = np.bincount(np.clip(noise.ravel(), -6, 6) + 6, minlength=13)
    assert ((observed - right) ** 2 / right).sum() < limit
    other = 12_000 * chances(Fraction(1))
    assert stats.ncx2.sf(limit, 12, ((other - right) ** 2 / right).sum()) > 0.99


def test_a_certificate_says_how_much_noise_there_was_and_what_it_cost():
    rng = np.random.default_rng(6)
    table = [rng.random(100) for _ in range(8)]
    result = calibrate(table, Network.cycle(8), 0.1, "p-dcp", epsilon=2, honest=5, floor=50, stages=2, grid="logit")
    said, plan = (
        result.certificate.noise,
        Plan.of(8, PLAIN, TENTH, PDCP(epsilon=2, honest=5, floor=50, stages=2, grid="logit")),
    )
    assert result.certificate.kind == "counted with noise"
    assert (said.epsilon, said.unit, said.honest, said.devices, said.stages) == (2, "score", 5, 8, 2)
    assert (said.floor, said.cap) == (50, None)
    assert said.inflation == float(plan.costs[0].value) > 0
    assert result.certificate.required_rank is None
    assert (result.certificate.target, result.certificate.rule) == ("sizes", "swap")
    assert plan.shares.epsilon == 1  # of a stage
    assert plan.shares.honest == 5
    assert result.threshold in plan.grid


def test_fewer_honest_devices_mean_more_noise_and_cost_more():
    costs = [float(plan_of(20, honest=honest).costs[0].value) for honest in (20, 19, 10, 2)]
    assert costs == sorted(costs)
    assert costs[3] > 2 * costs[0]
    assert float(plan_of(1000, honest=1).costs[0].value) > 20 * float(plan_of(1000).costs[0].value)
    for honest in (0, 7):
        with pytest.raises(ValueError, match=f"honest must be a number from 1 to the 6 devices, got {honest}"):
            plan_of(honest=honest)


def test_several_levels_are_refused_with_epsilon():
    """Each would count every score again, and spend it anew."""
    with pytest.raises(ValueError, match="spends epsilon on every level, got 2 levels; calibrate one at a time"):
        calibrate_several([[0.5] * 20] * 6, Network.cycle(6), (0.1, 0.2), "p-dcp", **NOISY)
    one = calibrate_several([[0.5] * 20] * 6, Network.cycle(6), (0.1,), "p-dcp", **NOISY)
    assert {item.scores for item in one.items.values()} == {0}  # how many there are is not told


def test_groups_have_no_proof_with_noise():
    rng = np.random.default_rng(6)
    table, labels = [rng.random(100) for _ in range(6)], [rng.choice(["a", "b"], 100) for _ in range(6)]
    with pytest.raises(ValueError, match="with epsilon without groups"):
        calibrate_several(table, Network.cycle(6), (0.1,), "p-dcp", groups=labels, **NOISY)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"floor": 20}, "device 2 holds fewer or more scores than the 20 to"),
        (
            {"unit": "device", "cap": 39, "epsilon": 90.0, "stages": 1},
            "device 0 holds fewer or more scores than the 1 to 39 that p-dcp takes here",
        ),
    ],
)
def test_a_device_with_too_few_or_too_many_scores_takes_no_part(options, words):
    table = [[0.5] * 40, [0.5] * 30, [0.5] * 19, [0.5] * 20]
    with pytest.raises(ValueError, match=words):
        calibrate(table, Network.cycle(4), 0.1, "p-dcp", **NOISY | options)


def test_a_device_without_scores_takes_part_only_below_a_floor_of_one():
    table = [[0.5] * 40, [], [0.5] * 19, [0.5] * 20]
    with pytest.raises(ValueError, match="device 1 holds fewer or more scores than the 1 to"):
        calibrate(table, Network.cycle(4), 0.1, "p-dcp", **NOISY)
    result = calibrate(table, Network.cycle(4), 0.1, "p-dcp", **NOISY, floor=0)
    assert result.certificate.noise.floor == 0
    assert result.certificate.noise.inflation > plan_of(4).costs[0].value  # there may be a single score


@pytest.mark.parametrize("epsilon", [0.002, 100.0])
def test_the_smallest_and_the_largest_epsilon_work(epsilon):
    options = NOISY | {"epsilon": epsilon}
    result = calibrate([np.linspace(0, 1, 50)] * 4, Network.cycle(4), 0.2, "p-dcp", **options)
    assert (result.threshold == np.inf) == (epsilon < 1)


@pytest.mark.parametrize("epsilon", [0.0019, 101.0])
def test_an_epsilon_beyond_them_is_refused(epsilon):
    with pytest.raises(ValueError, match="epsilon per stage must be a number between"):
        plan_of(epsilon=epsilon)


def test_whole_devices_are_hidden_among_enough_of_them_and_the_number_is_said():
    """One less than said is refused with the same number; as many are taken."""
    options = {"unit": "device", "cap": 20, "floor": 20, "epsilon": 4.0}
    words = r"hide whole devices at epsilon 4 and alpha 0\.1 takes at least \d+ devices, got 20"
    with pytest.raises(ValueError, match=words) as refused:
        plan_of(20, **options)
    needed = int(str(refused.value).split("at least ")[1].split(" ")[0])
    with pytest.raises(ValueError, match=f"at least {needed} devices, got {needed - 1}"):
        plan_of(needed - 1, **options)
    plan = plan_of(needed, **options)
    assert plan.shares.epsilon == Fraction(4, 2 * 20)
    assert 4 * plan.costs[0].value <= Fraction(1, 10) * 20 * needed


def test_grids_too_fine_or_too_narrow_are_refused():
    with pytest.raises(ValueError, match="16 cells in 6 stages make a grid of 16,777,215 points"):
        plan_of(width=15, stages=6)
    with pytest.raises(ValueError, match=r"holds fewer than 255 floats; use a wider one"):
        plan_of(grid="linear", range=(1.0, 1.00000000000001), width=15)


# --- coverage ---------------------------------------------------------------------------------------------------------


def free(plan):
    """The same plan without what noise costs."""
    return replace(plan, costs=tuple(Inflation(Fraction(0), "none") for _ in plan.costs))


@pytest.fixture
def for_nothing(monkeypatch):
    """Noise costs nothing: the safeguard switched off."""
    real = Plan.accepted
    monkeypatch.setattr(Plan, "accepted", lambda plan, level, cells: real(free(plan), level, cells))


def covered_above(target, trials, devices=3, each=1):
    """How many of so many runs cover, where all scores lie above the grid: only +inf does."""
    table = np.full(devices * trials * each, 9.0)
    samples = Samples.from_flat(table, np.full(devices * trials, each), trials)
    options = {"grid": "logit", "epsilon": 1.0, "width": 7, "floor": each}
    found = calibrate_batch(samples, Network.star(devices), TENTH, "p-dcp", promise=make_promise(target), **options)
    return int(np.isinf(found.outcome.thresholds[0, :, 0]).sum())


@pytest.mark.parametrize("target", ["sizes", "paper"])
def test_noise_does_not_cost_coverage_on_a_hostile_table(target):
    """Few scores, all above the grid; false alarm 1e-6, power above .99 against a coverage of .8."""
    assert_coverage(covered_above(target, 1000), 1000, 0.9)
    assert power_against(1000, 0.9, 0.8) > 0.99


def test_without_the_inflation_coverage_is_lost(for_nothing):
    assert covered_above("sizes", 300) < 150


def missed(below, trials, seed, devices=10, each=20):
    """The mean miss, and its standard error, on a table of 10 devices of whose 210 scores so many lie below the grid.

    Each device hides one of its 21 scores, as likely each; a new example is a hidden one. Those above the grid are
    missed where the threshold is finite.
    """
    rng = np.random.default_rng([seed, below])
    own = below // devices + (np.arange(devices)[:, None] < below % devices)
    hidden_above = rng.random((devices, trials)) >= own / (each + 1)
    low = own - ~hidden_above
    values = np.where(np.arange(each) < low[:, :, None], -9.0, 9.0)
    samples = Samples.from_flat(values.ravel(), np.full(devices * trials, each), trials)
    options = {"grid": "logit", "epsilon": 0.5, "floor": each}
    found = calibrate_batch(samples, Network.star(devices), TENTH, "p-dcp", **options).outcome
    misses = hidden_above.mean(axis=0) * np.isfinite(found.thresholds[0, :, 0])
    return float(misses.mean()), float(misses.std() / np.sqrt(trials))


@pytest.mark.slow
def test_noise_does_not_cost_coverage_on_the_worst_of_many_tables():
    """At epsilon .5: five standard errors, a false alarm of 3e-7 for each of the tables; and with very few scores."""
    for below in (168, 180, 186, 192):
        mean, error = missed(below, 3000, 1)
        print(f"{below} of 210 below: miss {mean:.4f} +- {error:.4f}")
        assert mean < 0.1 + 5 * error
    for target, devices, each in (("sizes", 3, 1), ("paper", 3, 1), ("sizes", 5, 3)):
        assert_coverage(covered_above(target, 20_000, devices, each), 20_000, 0.9)


@pytest.mark.slow
def test_without_the_inflation_a_table_of_two_hundred_scores_is_missed_too_often(for_nothing):
    """By more than five standard errors."""
    mean, error = missed(183, 6000, 1)
    print(f"miss {mean:.4f} +- {error:.4f} without the inflation")
    assert mean > 0.1 + 5 * error


def test_the_search_ends_at_a_point_that_its_last_totals_accept():
    """Read off what was told: the accepted cell of each stage is where the next one looks."""
    rng = np.random.default_rng(9)
    table = [rng.random(200) for _ in range(6)]
    result = calibrate(table, Network.cycle(6), 0.1, "p-dcp", grid="logit", epsilon=2.0, width=7, stages=3)
    plan = Plan.of(6, PLAIN, TENTH, PDCP(grid="logit", epsilon=2.0, width=7, stages=3))
    told = [[*map(int, row.split(","))] for row in result.options["revealed_cells"].strip("[]").split("], [")]
    assert len(told) == 3
    assert all(len(row) == 8 for row in told)
    place = 0
    for stage, row in enumerate(told):
        place += 8 ** (2 - stage) * first_accepted(plan, 0, row)
    assert result.threshold == np.append(plan.grid, np.inf)[place]


@pytest.mark.parametrize(("each", "dear"), [(10, True), (500, False)])
def test_noise_that_takes_most_of_what_may_be_missed_is_said(each, dear):
    """At epsilon 1 some sixteen scores: of 80 far too many, of 4000 few."""
    rng = np.random.default_rng(3)
    held = [rng.random(each) for _ in range(8)]
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        calibrate(held, Network.cycle(8), 0.1, "p-dcp", grid="logit", epsilon=1.0)
    assert any("noise asks for" in str(one.message) for one in said) == dear
