"""`control(monotone=False)`: exact error rates through the public function, engines, forms of input, misuse, files."""

import itertools
import json
import math
import re
from fractions import Fraction

import numpy as np
import polars as pl
import pytest
from msgspec import structs

from conformesh import CalibrationNote, LambdaTests, Network, TooFewScores, control, update
from conformesh.guarantee import Guarantee
from conformesh.kernels.ranks import LOSS_UNITS
from conformesh.kernels.tail_bounds import hoeffding_bentkus
from conformesh.peer.device import Device
from conformesh.peer.interface import PeerSetup
from conformesh.peer.loopback import LinkFaults, run_loopback
from conformesh.peer.settings import Settings
from conformesh.pipeline.lambda_tests import Grid, _check_agreement
from conformesh.pipeline.solver import MethodRun
from conformesh.protocols.aggregate import AGGREGATORS, sum_over_devices
from conformesh.protocols.block import Block
from conformesh.scores.losses import ErrorAmongAnswered, StepLosses, ratio_losses, sums_of_table

pytestmark = pytest.mark.filterwarnings("ignore::conformesh.CalibrationNote")  # most of it certifies nothing
GRID = [0.9, 0.7, 0.5, 0.3]
ASKED = {"monotone": False, "pac_confidence": 0.9}


def tables(seed=0, devices=6, most=40):
    """Losses that fall and rise over the grid, unequally many and unlike from device to device."""
    rng = np.random.default_rng(seed)
    risks = np.array([0.2, 0.05, 0.1, 0.4])
    return [rng.random((int(rng.integers(10, most)), 4)) * 2 * risks * (0.7 + 0.1 * (k % 6)) for k in range(devices)]


def good(*columns):
    """Many items; columns 1 and 2 have risks of about 0.05 and 0.1, column 0 and 3 about 0.2 and 0.4."""
    return [own[:, columns] for own in tables(3, most=200)]


# --- p-values and errors, exactly -------------------------------------------------------------------------------------


def test_p_values_are_those_of_the_pooled_losses_rounded_up():
    given = tables()
    found = control(given, "cycle", 0.2, grid=GRID, **ASKED)
    pooled = np.concatenate(given)
    for i, total in enumerate(found.risks["risk"].totals):
        exact = sum(Fraction(x) for x in pooled[:, i].tolist()) * LOSS_UNITS
        assert exact <= total < exact + len(pooled)
        assert found.p_values[i] == hoeffding_bentkus(total, LOSS_UNITS, len(pooled), Fraction(1, 5))
    np.testing.assert_allclose(found.mean_losses["risk"], pooled.mean(axis=0), atol=2 / LOSS_UNITS)


def test_sums_do_not_depend_on_the_order_of_items_and_devices():
    given = tables(1)
    right = control(given, "complete", 0.2, grid=GRID, **ASKED).risks["risk"].totals
    rng = np.random.default_rng(0)
    mixed = [rng.permutation(own) for own in given[::-1]]
    assert control(mixed, "star", 0.2, grid=GRID, **ASKED).risks["risk"].totals == right


def test_sums_of_steps_are_those_of_their_losses_at_each_lambda():
    """Steps that rise and fall, begin at -inf, lie on and off the grid, twice at one lambda; grids in any order."""
    rng = np.random.default_rng(2)
    for _ in range(60):
        bound, points = float(rng.choice([1.0, 3.0])), np.array([-np.inf, 0.1, 0.25, 0.3, 0.5, 0.8, 2.0])
        steps = StepLosses.of(
            [
                (np.sort(rng.choice(points, many)), rng.integers(0, 8, many) / 7 * bound)
                for many in rng.integers(0, 6, rng.integers(0, 30))
            ],
            bound,
        )
        grid = rng.permutation([0.05, 0.1, 0.25, 0.4, 0.8, 5.0])[: rng.integers(1, 7)]
        table = np.array([steps.at(lam) for lam in grid.tolist()]).T.reshape(len(steps), len(grid))
        exact = np.array([[math.ceil(Fraction(round(7 * x / bound), 7) * LOSS_UNITS) for x in row] for row in table])
        found = steps.sums(grid, LOSS_UNITS, "a device").tolist()
        assert found == exact.reshape(table.shape).sum(axis=0).tolist()
        assert found == sums_of_table(table, bound, LOSS_UNITS, "a device").tolist()


@pytest.mark.parametrize("testing", ["fixed-sequence", "holm"])
@pytest.mark.parametrize("mixture", ["sizes", "equal"])
def test_theorem_a_wrong_lambda_is_certified_at_most_with_probability_delta(testing, mixture):
    """Every outcome of two unlike devices with two items and one, at two lambdas, through the public function.

    Losses are 0, 1/2 or 1 with probabilities in eighths. The level is the risk at one lambda, so that this one must not
    be certified. Delta is large, because few items certify little: with four items all lose nothing often enough.
    """
    halves = [0.0, 0.5, 1.0]
    laws = {0: ([3, 3, 2], [1, 2, 5]), 1: ([6, 0, 2], [0, 2, 6])}  # by lambda, of each device
    sizes = [2, 1]
    shares = [Fraction(2, 3), Fraction(1, 3)] if mixture == "sizes" else [Fraction(1, 2)] * 2
    means = {
        lam: [sum(Fraction(w, 8) * Fraction(x) for w, x in zip(law, halves, strict=True)) for law in each]
        for lam, each in laws.items()
    }
    risks = {lam: sum(s * m for s, m in zip(shares, each, strict=True)) for lam, each in means.items()}
    confidence, worst = Fraction(1, 4), Fraction(0)
    for lam, level in risks.items():
        wrong = [other for other in risks if risks[other] >= level]
        error = Fraction(0)
        for outcome in itertools.product(range(3), repeat=6):
            cells = np.array(outcome).reshape(3, 2)  # three items at two lambdas, drawn apart
            owner = [0, 0, 1]
            chance = Fraction(1)
            for item, device in enumerate(owner):
                for i in (0, 1):
                    chance *= Fraction(laws[i][device][cells[item, i]], 8)
            if not chance:
                continue
            losses = np.array(halves)[cells]
            certified = certified_by_control(losses, sizes, level, testing, mixture, confidence)
            error += chance * any(certified[i] for i in wrong)
        assert error <= 1 - confidence, lam
        worst = max(worst, error)
    assert worst > 0  # something wrong is certified now and then: the bound is put to the test


CERTIFIED = {}


def certified_by_control(losses, sizes, level, testing, mixture, confidence):
    """Certified lambdas of an outcome; equal sums have equal answers, and are computed once."""
    parts = np.split(losses, np.cumsum(sizes)[:-1])
    key = (tuple(part.sum(axis=0).tobytes() for part in parts), level, testing, mixture)
    if key not in CERTIFIED:
        CERTIFIED[key] = control(
            parts,
            "chain",
            level,
            monotone=False,
            pac_confidence=confidence,
            grid=[1, 2],
            testing=testing,
            mixture=mixture,
        ).certified.tolist()
    return CERTIFIED[key]


def test_the_search_of_monotone_losses_picks_lambdas_that_lose_too_much():
    """What `monotone=False` is for: the smallest lambda whose items lose little, among ten that are drawn apart.

    Four items lose 0 or 1 with probability 1/2 at each lambda, and nothing at +inf. One device may keep a risk of 0.4
    if they lose at most (4 + 1) * 0.4 - 1 = 1 in all; some of ten lambdas does so with probability 1 - (11/16)^10.
    Monotone `control` refuses such losses, and the tests of lambdas certify one of them with probability at most delta.
    """
    lucky = 1 - Fraction(11, 16) ** 10
    assert lucky * Fraction(1, 2) > Fraction(4, 10)  # the risk of that search
    rng = np.random.default_rng(0)
    drawn = rng.integers(0, 2, (4, 10)).astype(float)
    steps = StepLosses.on_grid(range(10), drawn)
    with pytest.raises(ValueError, match=r"the loss rises .* test a grid of lambdas with monotone=False"):
        control([steps], risk=0.4)
    delta, p = Fraction(1, 10), [hoeffding_bentkus(s, 1, 4, Fraction(4, 10)) for s in range(5)]
    chance = sum(Fraction(c, 16) for s, c in enumerate([1, 4, 6, 4, 1]) if Fraction(p[s]) <= delta / 10)
    assert 1 - (1 - chance) ** 10 <= delta


# --- several risks, several parameters, what is chosen ----------------------------------------------------------------


def test_of_several_risks_the_largest_p_value_counts():
    given = tables(2, most=200)
    other = [own[:, ::-1] * 0.9 + 0.1 for own in given]
    both = control({"a": given, "b": other}, "cycle", {"a": 0.2, "b": 0.4}, grid=GRID, testing="holm", **ASKED)
    alone = {
        "a": control(given, "cycle", 0.2, grid=GRID, **ASKED).p_values,
        "b": control(other, "cycle", 0.4, grid=GRID, **ASKED).p_values,
    }
    assert {name: risk.p_values.tolist() for name, risk in both.risks.items()} == {
        name: p.tolist() for name, p in alone.items()
    }
    assert both.p_values.tolist() == np.maximum(alone["a"], alone["b"]).tolist()
    assert "the risk 'a' is at most 0.2 and the risk 'b' is at most 0.4" in both.certificate
    assert {*both.columns()} >= {"mean_loss_a", "p_b", "p", "certified", "chosen"}


def test_the_last_certified_lambda_is_chosen_or_the_one_with_the_smallest_objective():
    given = good(1, 2, 0, 3)
    found = control(given, "cycle", 0.2, grid=[0.7, 0.5, 0.9, 0.3], **ASKED)
    assert found.certified.tolist() == [True, True, False, False]
    assert (found.chosen, found.threshold) == (1, 0.5)
    by = {"grid": [0.7, 0.5, 0.9, 0.3], **ASKED}
    assert control(given, "cycle", 0.2, objective=[1.0, 2.0, 0.0, 0.0], **by).threshold == 0.7
    assert control(given, "cycle", 0.2, objective=[1.0, 1.0, 0.0, 0.0], **by).threshold == 0.5  # the last of equals
    found = control(given, "cycle", 0.2, testing="holm", **by)
    assert found.certified.tolist() == [True, True, False, False]


def test_a_path_through_several_parameters():
    given = tables(4, most=200)
    path = [(0.7, 1), (0.5, 1), (0.5, 2), (0.3, 2)]
    found = control([own[:, [1, 2, 1, 3]] for own in given], "cycle", 0.2, grid=path, **ASKED)
    assert found.threshold == (0.5, 2.0)
    assert found.columns()["lambda_1"].tolist() == [1, 1, 2, 2]
    assert LambdaTests.from_dict(json.loads(found.to_json())).threshold == (0.5, 2.0)
    with pytest.raises(ValueError, match="has one lambda, and this grid has 2 parameters"):
        found.predict([[0.5, 0.5]], loss="wrong-and-answered")


def test_nothing_certified_is_said_and_is_no_number():
    given = [np.full((20, 4), 0.5)] * 3
    with pytest.warns(
        CalibrationNote, match=r"no lambda of the grid is certified; the smallest p-value is 1 at lambda"
    ):
        found = control(given, "cycle", 0.2, grid=GRID, **ASKED)
    assert (found.threshold, found.chosen, found.kind) == (None, None, "none")
    assert found.certificate.startswith("none: no lambda of the grid is certified")
    assert found.notes == (found.failure,)
    with pytest.raises(TooFewScores, match="no lambda of the grid is certified"):
        control(given, "cycle", 0.2, grid=GRID, strict=True, **ASKED)
    with pytest.raises(ValueError, match="there is no lambda to predict with: no lambda of the grid"):
        found.predict([[0.5, 0.5]], loss="wrong-and-answered")


def test_too_few_items_are_named():
    zero = [np.zeros((7, 4))] * 3
    with pytest.warns(CalibrationNote, match=r"21 items cannot certify a risk of 0.1: .* 0.109 even without any loss"):
        found = control(zero, "cycle", 0.1, grid=GRID, **ASKED)
    assert found.failure.endswith("at least 22 items are needed")
    enough = [np.zeros((7, 4)), np.zeros((7, 4)), np.zeros((8, 4))]
    assert control(enough, "cycle", 0.1, grid=GRID, **ASKED).certified.all()


def test_items_that_are_needed_depend_on_the_shares():
    """With a tenth of the items a device has half of the mixture: so many items without any loss are just enough."""
    asked = {"grid": [1.0], "mixture": {"a": 1, "b": 1}, **ASKED}

    def failure(n):
        return control({"a": np.zeros((n // 10, 1)), "b": np.zeros((n - n // 10, 1))}, None, 0.1, **asked).failure

    words = failure(50)
    enough = int(re.search(r"at least ([\d,]+) items are needed", words)[1])
    assert enough > 22  # which items of equal weight need
    assert failure(enough // 10 * 10 + 10) == ""
    assert "even without any loss" in failure(enough // 10 * 10 - 10)
    absent = control({"a": np.zeros((500, 1)), "b": np.zeros((0, 1))}, None, 0.1, **asked)
    assert "devices without items have 0.5 of the mixture and may lose everything" in absent.failure


def test_a_grid_that_begins_badly_is_named():
    given = good(3, 2, 1)
    with pytest.warns(CalibrationNote, match=r"stopped at its first lambda, 0.3, whose p-value is 1; begin with"):
        control(given, "cycle", 0.2, grid=[0.3, 0.5, 0.7], **ASKED)
    assert control(given, "cycle", 0.2, grid=[0.3, 0.5, 0.7], testing="holm", **ASKED).certified.any()


# --- mixtures ---------------------------------------------------------------------------------------------------------


def test_other_mixtures_weigh_devices():
    """Weights, the level and missing shares by hand: 2 and 4 items, shares 1/2, 1/4 and, without items, 1/4."""
    given = {"a": np.array([[0.0], [0.25]]), "b": np.full((4, 1), 0.5), "c": np.zeros((0, 1))}
    shares = {"a": 2, "b": 1, "c": 1}
    found = control(given, "cycle", 0.6, mixture=shares, grid=[1], **ASKED)
    # u = 1/4 and 1/16: weights 4 and 1; together 8 + 4, and 4 missing. S = (4 * 0.25 + 1 * 2) / 4 of 6 items.
    weights = found.weights
    assert (weights.items, weights.heaviest, weights.mass, weights.missing) == (6, 4, 16, 4)
    assert found.p_values[0] == hoeffding_bentkus(3, 4, 6, (Fraction(6, 10) * 16 - 4) / 24)
    assert found.mean_losses["risk"][0] == pytest.approx(0.5 * 0.125 + 0.25 * 0.5 + 0.25)
    assert control(given, "cycle", 0.2, mixture=shares, grid=[1], **ASKED).p_values[0] == 1.0  # c alone may lose more


def test_weights_without_a_small_common_factor_are_rounded_up():
    """Shares of large primes: no item counts less than its share, and p-values are no smaller than exact ones."""
    rng = np.random.default_rng(4)
    given = {name: rng.integers(0, 2, (n, 1)).astype(float) for name, n in (("a", 7), ("b", 11), ("c", 13), ("d", 5))}
    shares = {"a": 1_000_003, "b": 999_983, "c": 37, "d": 0}
    found = control(given, None, 0.7, mixture=shares, grid=[1], **ASKED)
    each = [Fraction(share, len(given[name]) * sum(shares.values())) for name, share in shares.items()]
    assert found.weights.items == 7 + 11 + 13  # d has no share
    exact = sum(u * int(own.sum()) for u, own in zip(each, given.values(), strict=True))
    total, heaviest = found.risks["risk"].totals[0], found.weights.heaviest
    assert exact * found.weights.mass * LOSS_UNITS <= total < exact * found.weights.mass * LOSS_UNITS * (1 + 1e-4)
    # Exact weights as parts of the heaviest: S = exact / max u, of 31 items, with the level 0.7 / (31 max u).
    sum_of_terms, level = exact / max(each), Fraction(7, 10) / (31 * max(each))
    least = hoeffding_bentkus(sum_of_terms.numerator, sum_of_terms.denominator, 31, level)
    assert least <= found.p_values[0] <= least * 1.01
    assert found.weights.mass / heaviest <= 1 / max(each)  # the level is rounded down


def test_processes_that_ask_for_different_things_are_refused():
    class Processes:
        """An engine of two processes; the other one has computed another digest."""

        def share(self, own):
            return [own, "another"]

    with pytest.raises(ValueError, match="all processes must give the same grid, risks, pac_confidence"):
        _check_agreement(
            Processes(), Grid.of([1, 2]), {"risk": Fraction(1, 10)}, Guarantee(alphas=(Fraction(1, 10),)), MethodRun()
        )


def test_a_column_of_a_frame_has_shares():
    frame = as_frame(good(1, 2), [2, 1]).with_columns(
        beds=pl.col("device").replace_strict({f"d{k}": k + 1 for k in range(6)})
    )
    asked = {"grid": [2, 1], **ASKED}
    right = control(frame, None, 0.2, mixture={f"d{k}": k + 1 for k in range(6)}, **asked)
    assert right.weights.heaviest > 1
    for how in ({"mixture": "beds"}, {"columns": {"share": "beds"}}):
        found = control(frame, None, 0.2, **how, **asked)
        assert (found.mixture, found.p_values.tolist()) == (right.mixture, right.p_values.tolist())
    with pytest.raises(ValueError, match="unknown mixture 'rooms'"):
        control(frame, None, 0.2, mixture="rooms", **asked)


def test_equal_sizes_make_all_mixtures_alike():
    given = [own[:10] for own in tables(5)]
    found = [control(given, "cycle", 0.25, mixture=m, grid=GRID, **ASKED) for m in ("sizes", "equal", "paper")]
    assert len({tuple(one.p_values.tolist()) for one in found}) == 1


# --- engines and cost -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("aggregate", ["auto", *AGGREGATORS])
def test_every_device_of_a_loopback_run_has_the_simulators_totals(aggregate):
    given, network = tables(6), Network.of("erdos-renyi", 6, seed=1, p=0.5)
    right = control(given, network, 0.2, grid=GRID, aggregate=aggregate, **ASKED).risks["risk"].totals
    sizes = np.array([[len(own)] for own in given])
    sums = [sums_of_table(own, 1.0, LOSS_UNITS, "a device") for own in given]

    def start(k, journal):
        def make(net, row):
            block = Block(net, np.array([row]), sizes)
            return sum_over_devices(block, sums[row][None], LOSS_UNITS * int(sizes.sum()), aggregate)

        return Device(PeerSetup(k, network, {"m": "sums"}, make, journal, Settings(), scores=str(k)))

    rng = np.random.default_rng(0)
    played = run_loopback(network, start, LinkFaults(), rng, limit=300.0)
    assert [tuple(device.result.tolist()) for device in played.devices] == [right] * 6


def test_one_sum_over_the_tree_is_all_that_is_sent():
    network = Network.torus(5, 4)
    found = control(tables(0, 20), network, 0.2, grid=GRID, **ASKED)
    depth = network.centre_depth
    assert found.cost.rounds == 3 * depth + 1  # grow the tree, add up, pass the total on
    assert found.cost.numbers.max() <= 2 * len(GRID) + 1
    assert found.options == {"aggregate": "auto"}


# --- forms of input ---------------------------------------------------------------------------------------------------


def as_frame(given, grid=GRID):
    return pl.DataFrame(
        [
            (f"d{k}", f"i{i}", lam, value)
            for k, own in enumerate(given)
            for i, row in enumerate(own.tolist())
            for lam, value in zip(grid, row, strict=True)
        ],
        schema=["device", "item", "lambda", "loss"],
        orient="row",
    )


def test_frames_dicts_arrays_and_steps_have_one_answer():
    given = tables(7, most=100)
    network = Network.cycle(6).relabelled([f"d{k}" for k in range(6)])
    named = {f"d{k}": own for k, own in enumerate(given)}
    frame = as_frame(given).sample(fraction=1, shuffle=True, seed=1)
    steps = {
        name: StepLosses.on_grid(GRID[::-1], own[:, ::-1]) for name, own in named.items()
    }  # breakpoints ascend, the grid need not
    right = control(given, network, 0.2, grid=GRID, **ASKED)
    forms = [named, dict(reversed([*named.items()])), frame, frame.to_dict(), steps, frame.to_dicts()]
    for form in forms:
        assert control(form, network, 0.2, grid=GRID, **ASKED).risks["risk"].totals == right.risks["risk"].totals
    words = control(frame, network, 0.2, grid="descending", **ASKED)
    assert words.lambdas.tolist() == GRID
    assert words.p_values.tolist() == right.p_values.tolist()
    assert control(frame, network, 0.2, grid="ascending", testing="holm", **ASKED).lambdas.tolist() == GRID[::-1]


def test_a_frame_has_a_column_for_each_risk():
    frame = as_frame(tables(8)).with_columns(silent=1 - pl.col("loss")).rename({"loss": "wrong"})
    found = control(frame, None, {"wrong": 0.2, "silent": 0.95}, grid=GRID, **ASKED)
    assert {*found.risks} == {"wrong", "silent"}


def test_bounds_scale_losses():
    given = tables(9, most=100)
    right = control(given, "cycle", 0.2, grid=GRID, **ASKED)
    scaled = control([own * 4 for own in given], "cycle", 0.8, grid=GRID, bound=4, **ASKED)
    assert scaled.p_values.tolist() == right.p_values.tolist()
    np.testing.assert_allclose(scaled.mean_losses["risk"], 4 * right.mean_losses["risk"])


def test_an_empty_device_is_allowed():
    given = [*tables(10, most=100), np.zeros((0, 4))]
    found = control(given, "cycle", 0.2, grid=GRID, **ASKED)
    assert found.p_values.tolist() == control(given[:-1], "cycle", 0.2, grid=GRID, **ASKED).p_values.tolist()
    assert control([*given[:-1], []], "cycle", 0.2, grid=GRID, **ASKED).examples == found.examples


# --- losses in linear form --------------------------------------------------------------------------------------------


def test_errors_among_answers_are_a_ratio_in_linear_form():
    rng = np.random.default_rng(0)
    p = rng.dirichlet([0.5] * 3, 4000)
    y = np.array([rng.choice(3, p=row) for row in p])
    kind = ErrorAmongAnswered(level=0.2)
    for lam in (0.4, 0.6, 0.9):
        answered = p.max(axis=1) > lam
        wrong = answered & (p.argmax(axis=1) != y)
        losses = kind(p, y).at(lam)
        assert losses.tolist() == ratio_losses(wrong[:, None], answered[:, None], 0.2)[:, 0].tolist()
        assert (losses.mean() <= 0.2) == (wrong.sum() <= 0.2 * answered.sum())
    with pytest.raises(ValueError, match=r"loss 'error-among-answered' is not monotone in lambda: .*monotone=False"):
        control([kind(p, y)], risk=0.2, loss=kind)
    with pytest.raises(ValueError, match=r"was made for level=0\.2, and risk is 0\.1"):
        control([kind(p, y)], risk=0.1, loss=kind, grid=[0.5], **ASKED)


def test_sets_of_the_chosen_lambda_keep_the_error_among_answers():
    rng = np.random.default_rng(1)
    p = rng.dirichlet([0.5] * 3, 12_000)
    y = np.array([rng.choice(3, p=row) for row in p])
    kind = ErrorAmongAnswered(level=0.2)
    steps = [kind(p[k::4], y[k::4]) for k in range(3)]
    found = control(steps, "cycle", 0.2, grid=np.arange(0.8, 0.3, -0.05).round(2), loss=kind, **ASKED)
    sets = found.predict(p[3::4])
    answered = sets.sum(axis=1) == 1
    assert (p[3::4].max(axis=1) > found.threshold).tolist() == answered.tolist()
    wrong = answered & ~sets[np.arange(3000), y[3::4]]
    # 3,000 new rows: the error among some 2,000 answers has a standard error below 0.01; far from it by chance 1e-4
    assert wrong.sum() <= 0.235 * answered.sum()
    assert answered.mean() > 0.4


def test_ratios_say_what_is_wrong():
    with pytest.raises(ValueError, match="each numerator must be from 0 to its denominator"):
        ratio_losses([[2]], [[1]], 0.1, largest=4)
    with pytest.raises(ValueError, match="each denominator at most largest=1"):
        ratio_losses([[2]], [[4]], 0.1)
    with pytest.raises(ValueError, match="must have one shape"):
        ratio_losses([[2]], [4, 4], 0.1, largest=4)
    with pytest.raises(ValueError, match="level must lie strictly between 0 and 1"):
        ratio_losses([[2]], [[4]], 1.5, largest=4)


def test_linear_forms_have_the_sign_of_the_ratio():
    """Mean at most the level if and only if the ratio of means is, in fractions."""
    rng = np.random.default_rng(2)
    for _ in range(50):
        kept = rng.integers(0, 5, (6, 1))
        wrong = rng.integers(0, kept + 1)
        losses = ratio_losses(wrong, kept, 0.25, largest=4)
        mean = sum(Fraction(x) for x in losses[:, 0].tolist()) / 6
        assert (mean <= Fraction(1, 4)) == (4 * wrong.sum() <= kept.sum())
        assert losses.min() >= 0
        assert losses.max() <= 1


# --- misuse -----------------------------------------------------------------------------------------------------------

GOOD = tables()
BAD = {
    "no pac_confidence": (lambda: control(GOOD, monotone=False, grid=GRID), "needs pac_confidence="),
    "no grid": (lambda: control(GOOD, **ASKED), "monotone=False needs grid="),
    "a loss above the bound": (
        lambda: control([GOOD[0], GOOD[1] * 9], grid=GRID, **ASKED),
        r"device 1, item \d+, lambda number \d of the grid: losses must lie between 0 and 1, got .* bound=",
    ),
    "a loss below 0": (lambda: control([GOOD[0] - 0.5], grid=GRID, **ASKED), "must lie between 0 and 1, got -"),
    "NaN": (lambda: control([np.full((3, 4), np.nan)], grid=GRID, **ASKED), "must lie between 0 and 1, got nan"),
    "another grid on a device": (
        lambda: control([GOOD[0], GOOD[1][:, :3]], grid=GRID, **ASKED),
        r"device 1: losses must be numbers with a row for each item and a column for each lambda .* 4, got shape",
    ),
    "items without lambdas": (lambda: control([np.zeros((5, 0))], grid=GRID, **ASKED), r"got shape \(5, 0\)"),
    "bounds that differ": (
        lambda: control([StepLosses.on_grid(GRID[::-1], GOOD[0], bound=b) for b in (1, 2)], grid=GRID, **ASKED),
        "all devices must know the same largest loss",
    ),
    "an item without a lambda": (
        lambda: control(as_frame(GOOD).slice(1), grid=GRID, **ASKED),
        "device d0, item i0: column 'loss' has no row for lambda 0.9",
    ),
    "NaN in a frame": (
        lambda: control(as_frame([np.full((2, 4), np.nan)] * 2), grid=GRID, **ASKED),
        "device d0, item i0, lambda 0.3: losses must lie between 0 and 1, got nan",
    ),
    "no losses at all": (lambda: control([None, [[1, 2]]], grid=[1, 2], **ASKED), "device 0: losses must be numbers"),
    "steps that do not ascend": (
        lambda: control([StepLosses.of([([0.7, 0.2], [0.0, 1.0])] * 100)], None, grid=[0.5], **ASKED),
        "device 0, item 0: breakpoints must ascend, got 0.7 before 0.2",
    ),
    "a step at NaN": (
        lambda: control([StepLosses.of([([np.nan, 0.2], [0.0, 1.0])] * 100)], None, grid=[0.5], **ASKED),
        "device 0, item 0: lambda must be a number, got NaN",
    ),
    "no items": (lambda: control([[], []], grid=GRID, **ASKED), "at least one item, got none on any device"),
    "no devices": (lambda: control([], grid=GRID, **ASKED), "at least one device, got none"),
    "a level above the bound": (
        lambda: control(GOOD, risk=1.5, grid=GRID, **ASKED),
        "risk must be a number strictly between 0 and the largest possible loss, 1, got 1.5",
    ),
    "several levels": (lambda: control(GOOD, risk=[0.1, 0.2], grid=GRID, **ASKED), "one level of a risk, got 2"),
    "names of risks without losses": (
        lambda: control(GOOD, risk={"a": 0.1, "b": 0.2}, grid=GRID, **ASKED),
        "several risks need losses for each of them: a dict with the keys 'a', 'b'",
    ),
    "risks with other items": (
        lambda: control({"a": GOOD, "b": [own[1:] for own in GOOD]}, None, {"a": 0.1, "b": 0.2}, grid=GRID, **ASKED),
        "device .*: all risks must have the same items",
    ),
    "a dict of risks for monotone losses": (
        lambda: control(GOOD, risk={"a": 0.1}),
        "risk is a dict, for several risks that hold at the same lambda, which needs monotone=False",
    ),
    "grid for monotone losses": (lambda: control(GOOD, grid=GRID), "grid= is for losses that may rise"),
    "testing for monotone losses": (lambda: control(GOOD, testing="holm"), "testing= is for losses that may rise"),
    "pac_confidence for monotone losses": (
        lambda: control([StepLosses.on_grid([0, 1], [[1.0, 0.0]])] * 2, pac_confidence=0.9),
        r"leave pac_confidence out, or test a grid of lambdas with control\(..., monotone=False\)",
    ),
    "an unknown testing": (lambda: control(GOOD, grid=GRID, testing="bonferroni", **ASKED), "unknown testing"),
    "a repeated lambda": (lambda: control(GOOD, grid=[1, 2, 2, 3], **ASKED), "grid must hold each lambda once"),
    "an infinite lambda": (lambda: control(GOOD, grid=[1, 2, 3, np.inf], **ASKED), "finite number"),
    "lambdas of unlike length": (lambda: control(GOOD, grid=[(1, 2), 3], **ASKED), "grid must be numbers, or tuples"),
    "words for arrays": (lambda: control(GOOD, grid="ascending", **ASKED), "is for frames with a column 'lambda'"),
    "an unknown word": (lambda: control(GOOD, grid="up", **ASKED), "unknown grid 'up'"),
    "an objective of another length": (
        lambda: control(GOOD, grid=GRID, objective=[1, 2], **ASKED),
        r"objective must have one number for each of the 4 lambdas of the grid, got shape \(2,\)",
    ),
    "options of a search": (
        lambda: control(GOOD, grid=GRID, schedule="count", **ASKED),
        "option 'schedule' is for the search of a threshold",
    ),
    "an unknown mixture": (lambda: control(GOOD, grid=GRID, mixture="beds", **ASKED), "unknown mixture 'beds'"),
    "each device by itself": (
        lambda: control(GOOD, grid=GRID, mixture="own", **ASKED),
        "tests the risk of one mixture",
    ),
    "too few losses for the network": (
        lambda: control(GOOD, Network.cycle(4), grid=GRID, **ASKED),
        "has 4 devices but losses came for 6",
    ),
    "pac_confidence above 1": (
        lambda: control(GOOD, grid=GRID, monotone=False, pac_confidence=90),
        "pac_confidence must lie strictly between 0 and 1",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_misuse_is_named(name):
    call, words = BAD[name]
    with pytest.raises((ValueError, TypeError), match=words):
        call()


def test_an_update_says_what_to_call():
    found = control(good(1), "cycle", 0.2, grid=[0.7], **ASKED)
    with pytest.raises(TypeError, match="call control"):
        update(found, GOOD, "cycle")


# --- files, words, pictures -------------------------------------------------------------------------------------------


def test_a_saved_result_is_the_same_and_is_checked(tmp_path):
    kind = ErrorAmongAnswered(level=0.2)
    found = control(good(1, 2), "cycle", 0.2, grid=[0.7, 0.5], objective=[1, 2], loss=kind, **ASKED)
    found.save(tmp_path / "tests.json")
    again = LambdaTests.load(tmp_path / "tests.json")
    assert again.to_dict() == found.to_dict()
    assert (again.threshold, again.loss) == (0.7, kind)
    raw = found.to_dict()
    for change, words in (
        (lambda r: r["risks"]["risk"]["p_values"].__setitem__(0, 0.0), r"p_values\[0\] must follow from totals\[0\]"),
        (lambda r: r["risks"]["risk"]["totals"].__setitem__(1, 0), r"p_values\[1\] must follow"),
        (lambda r: r["certified"].__setitem__(1, False), "certified must follow from the rest"),
        (lambda r: r.__setitem__("testing", "mine"), "unknown testing 'mine'"),
        (lambda r: r.__setitem__("objective", [1.0]), "objective must have one number"),
        (lambda r: r.__setitem__("chosen", 1), "chosen must follow from the rest"),
        (lambda r: r["loss"].__setitem__("level", 0.1), "loss.level must be the level of a risk, got 0.1"),
        (lambda r: r["mixture"].__setitem__("bound", 2), "mixture must be one mixture of all devices"),
        (lambda r: r["mixture"].__setitem__("kind", "any"), "mixture must be one mixture of all devices"),
        (lambda r: r["mixture"].__setitem__("kind", "given"), "must have shares if it is 'given'"),
    ):
        broken = json.loads(json.dumps(raw))
        change(broken)
        with pytest.raises(ValueError, match=words):
            LambdaTests.from_dict(broken)
    assert structs.replace(found, objective=None).threshold == 0.5


def test_tables_words_and_pictures(tmp_path):
    found = control(good(1, 2, 3), "cycle", 0.2, grid=[0.7, 0.5, 0.3], **ASKED)
    frame = found.to_frame()
    assert frame.columns == ["lambda", "mean_loss", "p", "certified", "chosen"]
    assert frame["chosen"].to_list() == [False, True, False]
    assert "lambda 0.5, one of 2 certified of 3 on 6 devices, counted" in repr(found)
    assert "with probability at least 0.9 over the calibration data, the risk is at most 0.2 for all 2 cert" in str(
        found
    )
    assert "lambda 0.5" in found._repr_html_()
    found.plot(path=tmp_path / "a.png")
    assert (tmp_path / "a.png").stat().st_size > 1000
    none = control([own + 0.5 for own in [np.zeros((9, 2))] * 3], "cycle", 0.2, grid=[(1, 2), (2, 1)], **ASKED)
    none.plot(path=tmp_path / "b.svg")
    assert "no lambda of 2 certified" in repr(none)
