"""Risk control: exact risks of small tables, the pooled oracle, what is refused, files, engines.

A table gives device k n_k + 1 items, each a loss that falls in steps. Which of them is the new example is uniform and
independent over the devices; the device that is asked is drawn by the target. So the risk of a table is a fraction that
can be summed, and the theorem says that it is at most the risk that was asked for, on every table.
"""

import itertools
import json
import math
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from conformesh import CalibrationNote, Network, Result, TooFewScores, calibrate, control, scores, update
from conformesh.kernels import ranks
from conformesh.kernels.ranks import LOSS_UNITS, Demand, make_requirement
from conformesh.kernels.weighted_scores import WeightedScores
from conformesh.pipeline.solver import solve_draws
from conformesh.scores.losses import ClassCost, FalseNegativeRate, OrdinalDistance, StepLosses, WrongAndAnswered
from tests.campaigns import LONG
from tests.statistics import assert_coverage, power_against

ALPHAS = (Fraction(1, 10), Fraction(1, 5), Fraction(1, 3), Fraction(3, 5))
SHARES = {"sizes": lambda n: n, "paper": lambda n: n + 1, "equal": lambda n: 1}
CUTS = (1, 2, 3, 4, 7, 17)  # of losses: 17 does not divide the parts, so that rounding happens
WHOLE = math.lcm(*CUTS)  # items have whole losses, of which the largest is this
POINTS = 6  # breakpoints lie on 0, 1, ...


def random_item(rng, shift=0, cuts=CUTS):
    """Return an item's whole losses below 0 and at 0, 1, ..., which never rise; a shift makes it harder."""
    cut = int(rng.choice(cuts))
    losses = np.sort(rng.integers(0, cut + 1, POINTS + 1))[::-1] * (WHOLE // cut) * (rng.random() < 0.9)
    return np.concatenate([np.full(shift, losses[0]), losses])[: POINTS + 1]


def random_table(rng, devices, limit):
    """Return n_k + 1 items for each device, some without any but the new one, with at most `limit` choices."""
    sizes = rng.integers(0, 6, devices)
    if rng.random() < 0.5:  # one large device among small ones
        sizes = np.array([rng.integers(5, 12), *rng.integers(0, 3, devices - 1)])
    while math.prod(int(n) + 1 for n in sizes) > limit:
        sizes = np.maximum(sizes - (rng.random(devices) < 0.4), 0)
    shifts = rng.integers(0, POINTS, devices) * (rng.random() < 0.7)
    return [[random_item(rng, shift) for _ in range(n + 1)] for n, shift in zip(sizes, shifts, strict=True)]


def place_of(threshold):
    """Return where an item's loss at a threshold stands; +inf stands behind."""
    return np.clip(np.nan_to_num(threshold, posinf=POINTS, neginf=-1.0), -1, POINTS).astype(int) + 1


def as_steps(items, scale=1.0):
    """Return items as steps on a grid, whose loss below the grid is given at -inf."""
    table = np.array(items).reshape(len(items), POINTS + 1) / WHOLE * scale
    return StepLosses.on_grid([-np.inf, *range(POINTS)], table, bound=scale)


def thresholds_of(tables, requirement):
    """Return lambda for each choice of hidden items of every table, through the calibration itself."""
    pieces, weights, items = [], [], []
    for table in tables:
        without = [
            [as_steps(own[:i] + own[i + 1 :]).checked("device").drops(LOSS_UNITS) for i in range(len(own))]
            for own in table
        ]
        for choice in choices_of(table):
            pieces.append([without[k][i][0] for k, i in enumerate(choice)])
            weights.append([without[k][i][1] for k, i in enumerate(choice)])
            items.append([len(device) - 1 for device in table])
    network = Network.complete(len(tables[0]))
    batch = solve_draws(
        WeightedScores.weighted(pieces, weights),
        network,
        ALPHAS,
        "e-dcp",
        requirement=requirement,
        items=np.array(items).T,
    )
    return batch.outcome.thresholds[0]


def choices_of(table):
    return itertools.product(*(range(len(device)) for device in table))


def risks_of(tables, target, rank, shares):
    """Return the exact risk of each table at each alpha."""
    asked = target if shares is None else {str(k): share for k, share in enumerate(shares)}
    thresholds = thresholds_of(tables, replace(make_requirement(asked, rank), loss_unit=LOSS_UNITS))
    found, start = [], 0
    for table in tables:
        ways = math.prod(map(len, table))
        each = [SHARES[target](len(d) - 1) for d in table] if shares is None else [*shares]
        where, which = place_of(thresholds[start : start + ways]), np.array([*choices_of(table)])
        total = np.zeros(len(ALPHAS), dtype=np.int64)
        for k, (share, own) in enumerate(zip(each, table, strict=True)):
            losses = np.column_stack([np.array(own), np.zeros(len(own), dtype=int)])
            total += share * losses[which[:, k, None], where].sum(axis=0)
        found.append([Fraction(int(risk), WHOLE * ways * max(sum(each), 1)) for risk in total])
        start += ways
    return found


def worst_ratio(rng, target, rank, batches, tables, limit):
    """Return the largest risk / alpha of random tables of 1 to 6 devices."""
    worst = Fraction(0)
    for devices, _ in itertools.product(range(1, 7), range(batches)):
        drawn = [random_table(rng, devices, limit) for _ in range(tables)]
        shares = None
        if target == "given":
            shares = (int(rng.integers(1, 6)), *rng.integers(0, 6, devices - 1).tolist())
        for row in risks_of(drawn, target, rank, shares):
            worst = max(worst, *(risk / alpha for risk, alpha in zip(row, ALPHAS, strict=True)))
    return worst


CASES = [(target, rank) for target in ("sizes", "paper", "equal", "given") for rank in ("auto", "swap")]
CASES.append(("paper", "ghost"))


@pytest.mark.parametrize(("target", "rank"), CASES)
def test_theorem_no_table_has_a_larger_risk(target, rank):
    worst = worst_ratio(np.random.default_rng([5, CASES.index((target, rank))]), target, rank, 1, 4, 40)
    assert Fraction(1, 4) < worst <= 1, float(worst)  # tables that say something


@pytest.mark.slow
@pytest.mark.parametrize(("target", "rank"), CASES)
def test_theorem_no_table_of_thousands_has_a_larger_risk(target, rank):
    """Nine cases of 6 x 3 x 12 tables, 1,944 in all (times CONFORMESH_LONG), each with every choice of hidden items."""
    worst = worst_ratio(np.random.default_rng([6, CASES.index((target, rank))]), target, rank, 3 * LONG, 12, 100)
    assert Fraction(1, 2) < worst <= 1, float(worst)


def lost_coins(seed, alpha, trials, devices=4, items=2):
    """Return how often a coin that falls with the probability of a new example's loss falls, one draw a trial."""
    rng, fnr, drawn, pieces = np.random.default_rng(seed), FalseNegativeRate(), [], []
    for _ in range(trials):
        shape = (devices, items + 1, 3)
        p = rng.random(shape)
        made = [fnr(own, rng.random(own.shape) < own ** (1 + k)) for k, own in enumerate(p)]
        pieces.append([own_part(steps, items).drops(LOSS_UNITS) for steps in made])
        drawn.append(made[rng.integers(devices)])
    batch = solve_draws(
        WeightedScores.weighted([[w[0] for w in own] for own in pieces], [[w[1] for w in own] for own in pieces]),
        Network.complete(devices),
        [alpha],
        "e-dcp",
        requirement=replace(make_requirement(), loss_unit=LOSS_UNITS),
        items=np.full((devices, trials), items),
    )
    found = zip(drawn, batch.outcome.thresholds[0, :, 0], rng.random(trials), strict=True)
    return sum(bool(coin < steps.at(lam)[-1]) for steps, lam, coin in found)


@pytest.mark.slow
def test_new_examples_lose_at_most_the_risk():
    """A coin with the loss as its chance makes losses binomial. False alarm < 1e-6; power 0.97 against risk 0.35."""
    assert power_against(4000, 0.7, 0.65) > 0.97
    assert_coverage(4000 - lost_coins(651978631, 0.3, 4000), 4000, target=0.7)


# Ablations: one load-bearing piece gone, and a table whose risk shows it.

NEVER, ALWAYS = np.zeros(POINTS + 1, dtype=int), np.array([WHOLE] * POINTS + [0])  # lost nowhere, and up to the end


def _without_slack(demand, requirement, alpha, column, level, total, lost, mass=0):
    return total - math.floor(requirement.loss_unit * (alpha * demand.base - demand.missing))


def _without_missing(demand, requirement, alpha, column, level, total, lost, mass=0):
    return total - math.floor(requirement.loss_unit * (alpha * demand.base - demand.largest))


def _lightest(demand, requirement, alpha, column, level, total, lost, mass=0):
    least = min(demand.weights[demand.weights > 0])
    return total - math.floor(requirement.loss_unit * (alpha * demand.base - demand.missing - int(least)))


ABLATIONS = {
    "without the swapped item": ("sizes", _without_slack, [[NEVER, ALWAYS]]),
    "without devices that have no items": ("equal", _without_missing, [[NEVER] * 12, [ALWAYS]]),
    "with the lightest item for the heaviest": ("equal", _lightest, [[NEVER] * 12, [NEVER, ALWAYS], [NEVER, ALWAYS]]),
}


@pytest.mark.parametrize("case", ABLATIONS)
def test_without_a_piece_this_table_has_a_larger_risk(case, monkeypatch):
    target, wrong, table = ABLATIONS[case]
    assert all(risk <= alpha for risk, alpha in zip(risks_of([table], target, "swap", None)[0], ALPHAS, strict=True))
    monkeypatch.setattr(Demand, "required", wrong)
    assert any(risk > alpha for risk, alpha in zip(risks_of([table], target, "swap", None)[0], ALPHAS, strict=True))


def test_weights_of_another_target_have_a_larger_risk(monkeypatch):
    """Items that count alike serve `sizes`; asked for all devices alike, they miss."""
    table = [[NEVER] * 22, [NEVER, ALWAYS]]
    assert risks_of([table], "equal", "auto", None)[0][0] <= ALPHAS[0]
    true = make_requirement
    monkeypatch.setattr(f"{__name__}.make_requirement", lambda target, rank: true("sizes", rank))
    assert risks_of([table], "equal", "auto", None)[0][0] > ALPHAS[0]


def coarse(monkeypatch, most, up=True):
    """Let weights of devices add up to so little that they are rounded; ablated, down."""
    true = ranks._swap
    monkeypatch.setattr(ranks, "LARGEST_SUM", most * LOSS_UNITS)
    monkeypatch.setattr(ranks, "_swap", lambda kinds, places, counts, most, _: true(kinds, places, counts, most, up))


def test_weights_that_are_rounded_up_keep_the_risk(monkeypatch):
    coarse(monkeypatch, 40)
    assert replace(make_requirement("equal"), loss_unit=LOSS_UNITS).demand(np.array([11, 7]), ALPHAS).rounded
    assert Fraction(1, 4) < worst_ratio(np.random.default_rng(9), "equal", "swap", 1, 6, 40) <= 1


def test_weights_that_are_rounded_down_lose_a_device(monkeypatch):
    """An ablation: light items that are always lost weigh nothing once they are rounded down."""
    table = [[ALWAYS] * 9, [ALWAYS] * 9, [NEVER] * 2]
    with monkeypatch.context() as patch:
        coarse(patch, 4)
        assert risks_of([table], "equal", "swap", None)[0][-1] <= ALPHAS[-1]
    coarse(monkeypatch, 4, up=False)
    assert risks_of([table], "equal", "swap", None)[0][-1] > ALPHAS[-1]


# The pooled oracle: the rule of the theorem, in fractions, on all items at once.


def oracle(devices, alpha, shares):
    """Return the smallest lambda with sum of u_k L_i(lambda) <= alpha - missing - max u_k, losses as parts of B."""
    parts = [Fraction(share, sum(shares)) for share in shares]
    u = [part / len(items) if items else Fraction(0) for part, items in zip(parts, devices, strict=True)]
    room = alpha - sum(part for part, items in zip(parts, devices, strict=True) if not items) - max(u)
    for at, threshold in enumerate((-math.inf, *range(POINTS))):
        lost = (uk * int(item[at]) for uk, own in zip(u, devices, strict=True) for item in own)
        if sum(lost) <= room * WHOLE:
            return threshold
    return math.inf


@pytest.mark.filterwarnings("ignore::conformesh.TooFewScores", "ignore::conformesh.CalibrationNote")
@given(st.integers(0, 2**32), st.sampled_from(["sizes", "paper", "equal", "given"]), st.sampled_from([1.0, 3.0, 0.25]))
@settings(max_examples=40)
def test_lambda_is_that_of_the_pooled_rule(seed, target, scale):
    """Losses in parts that divide ours, so that nothing is rounded: equal for any sizes, shares and bound."""
    rng = np.random.default_rng(seed)
    sizes = rng.integers(0, 30, rng.integers(2, 7))
    devices = [[random_item(rng, cuts=CUTS[:-1]) for _ in range(n)] for n in sizes]
    shares = [SHARES[target](n) if target in SHARES else k % 3 + 1 for k, n in enumerate(sizes.tolist())]
    assume(any(devices))
    alpha = Fraction(int(rng.integers(1, 60)), 100)
    asked = target if target in SHARES else {str(k): share for k, share in enumerate(shares)}
    steps = [as_steps(own, scale) for own in devices]
    result = control(steps, "complete", alpha * Fraction(scale), bound=scale, mixture=asked, rank_rule="swap")
    assert result.threshold == oracle(devices, alpha, shares)


def test_rounding_costs_next_to_nothing():
    """With sevenths of seventeenths what is allowed shrinks by less than two parts in a million."""
    rng = np.random.default_rng(3)
    steps = [StepLosses.on_grid([0, 1], rng.integers(0, 120, (40, 1)) / 119 * [1, 0]) for _ in range(5)]
    result = control(steps, Network.cycle(5), 0.3)
    left, allowed = result.certificate.mean_losses
    exact = np.concatenate([own.at(result.threshold) for own in steps]).mean()
    assert exact <= left <= exact + 2 / LOSS_UNITS
    assert 0.3 - 1 / 200 - 2 / LOSS_UNITS <= allowed <= 0.3 - 1 / 200


@pytest.mark.filterwarnings("ignore::conformesh.TooFewScores", "ignore::conformesh.CalibrationNote")
def test_one_device_is_ordinary_risk_control():
    """The smallest lambda with (sum of losses + B) / (n + 1) <= alpha, as in [Angelopoulos2024]."""
    rng = np.random.default_rng(4)
    for _ in range(20):
        items = [random_item(rng, cuts=CUTS[:-1]) for _ in range(int(rng.integers(3, 60)))]
        result = control([as_steps(items)], Network.chain(1), 0.3)
        lost = np.array(items).sum(axis=0) <= (Fraction(3, 10) * (len(items) + 1) - 1) * WHOLE
        wanted = (-math.inf, *range(POINTS))[lost.argmax()] if lost.any() else math.inf
        assert result.threshold == wanted
        assert result.certificate.rule == "ordinary"


@pytest.mark.parametrize("risk", [0.05, 0.1, 0.3])
def test_one_device_ends_where_mapie_does(risk):
    """On MAPIE's own grid and losses the same lambda; between the points of its grid ours is nearer."""
    controllers = pytest.importorskip("mapie.risk_control", reason="compares with MAPIE: pip install mapie")
    rng, fnr = np.random.default_rng(5), FalseNegativeRate()
    p = rng.random((400, 8))
    y = rng.random(p.shape) < p
    y[:, 0] |= ~y.any(axis=1)
    theirs = controllers.MultiLabelClassificationController(lambda table: table, risk="recall", target_level=1 - risk)
    theirs.calibrate(p, y.astype(int))
    (cut,) = theirs.best_predict_param  # labels above it are in the set
    grid = 1 - theirs.predict_params[::-1]
    lost = np.array(
        [[(truth & (row <= 1 - lam)).sum() / truth.sum() for lam in grid] for row, truth in zip(p, y, strict=True)]
    )
    on_grid = control([StepLosses.on_grid(grid, lost)], Network.chain(1), risk)
    assert on_grid.threshold == pytest.approx(1 - cut, abs=1e-12)
    ours = control([fnr(p, y)], Network.chain(1), risk).threshold
    assert 1 - cut - 0.01 <= ours <= 1 - cut


# Losses that are miscoverage are coverage.


@pytest.mark.parametrize("target", ["sizes", "paper", "equal"])
def test_miscoverage_is_what_calibrate_controls(target):
    rng, lac, cost = np.random.default_rng(2), scores.LAC(), ClassCost()
    network = Network.torus(4, 3)
    devices = [(rng.dirichlet(np.ones(5), n := int(rng.integers(3, 40))), rng.integers(0, 5, n)) for _ in range(12)]
    covered = calibrate([lac(p, y) for p, y in devices], network, 0.1, mixture=target)
    controlled = control([cost(p, y) for p, y in devices], network, 0.1, loss=cost, mixture=target)
    assert controlled.threshold == covered.threshold
    outputs = devices[0][0]
    np.testing.assert_array_equal(controlled.predict(outputs), lac.sets(outputs, covered.threshold))
    one_each = [FalseNegativeRate()(p, np.eye(5, dtype=bool)[y]) for p, y in devices]
    assert control(one_each, network, 0.1, mixture=target).threshold == covered.threshold


# What lambda may be, in words.


def some_steps(n=40, devices=4, seed=0):
    rng = np.random.default_rng(seed)
    table = np.sort(rng.random((devices, n, 8)))[:, :, ::-1] * (np.arange(8) < 7)
    return [StepLosses.on_grid(np.linspace(0, 1, 8), own) for own in table]


def test_too_few_items_are_said_and_every_set_is_full():
    with pytest.warns(TooFewScores, match=r"risk=0.1 is too small for 4 items on 4 devices.*lambda is \+inf"):
        result = control([own_part(own, 1) for own in some_steps()], Network.cycle(4), 0.1)
    assert result.threshold == math.inf
    assert "lambda is +inf" in result.notes[-1]
    with pytest.raises(TooFewScores, match="use more items or a larger risk"):
        control([own_part(own, 1) for own in some_steps()], Network.cycle(4), 0.1, strict=True)


def own_part(steps, n):
    ends = steps.offsets[n]
    part = StepLosses(steps.lambdas[:ends], steps.values[:ends], steps.offsets[: n + 1], steps.starts[:n])
    return part.checked("here")


def test_losses_that_stay_are_said():
    stay = [StepLosses.on_grid([0, 1], np.tile([1.0, 0.5], (30, 1))) for _ in range(3)]
    with pytest.warns(CalibrationNote, match=r"no lambda that was given brings the mean loss down to risk=0.1"):
        result = control(stay, Network.cycle(3), 0.1)
    assert result.threshold == math.inf
    assert result.certificate.counted_rank >= result.certificate.required_rank


def test_where_nothing_is_needed_it_is_said(tmp_path):
    small = [StepLosses.on_grid([-np.inf, 1], np.tile([0.01, 0.0], (30, 1))) for _ in range(3)]
    with pytest.warns(CalibrationNote, match=r"below risk=0.1 with nothing in the sets: lambda is -inf"):
        result = control(small, Network.cycle(3), 0.1, loss=FalseNegativeRate())
    assert result.threshold == -math.inf
    assert result.certificate.counted_rank == 0 >= result.certificate.required_rank
    assert not result.predict([[0.9, 0.99]]).any()
    result.save(tmp_path / "r.json")
    assert Result.load(tmp_path / "r.json").threshold == -math.inf


# What is refused.


REFUSED = {
    "rises": (
        StepLosses.of([([0, 1], [0.5, 0.0]), ([0.0, 0.5, 1.0], [0.2, 0.3, 0.0])]),
        r"device 2, item 1: the loss rises from 0.2 to 0.3 at lambda 0.5; risk control needs losses that never rise "
        r"as lambda grows. A price for the size of the set, and an error rate among answered examples only, do rise",
    ),
    "rises from its start": (StepLosses.of([([-np.inf, 1.0], [0.1, 0.2])]), "device 2, item 0: the loss rises"),
    "too large": (
        StepLosses.of([([0, 1], [1.5, 0.0])]),
        "item 0, lambda 0: losses must lie between 0 and 1, got 1.5; .* bound=",
    ),
    "negative": (StepLosses.of([([0, 1], [0.5, -0.1])]), "item 0, lambda 1: losses must lie between 0 and 1, got -0.1"),
    "no number": (
        StepLosses.of([([0, 1], [0.5, np.nan])]),
        "item 0, lambda 1: losses must lie between 0 and 1, got nan",
    ),
    "no lambda": (StepLosses.of([([0, np.nan], [0.5, 0.1])]), "item 0: lambda must be a number, got NaN"),
    "not in order": (StepLosses.of([([1, 0], [0.5, 0.1])]), "item 0: breakpoints must ascend, got 1 before 0"),
    "no steps": ([0.1, 0.2], "device 2: losses must be StepLosses, or .breakpoints, values. for each item, got list"),
    "unequal": ([([0, 1], [0.5])], "device 2: .*item 0: needs one value for each breakpoint, got 1 for 2"),
    "another bound": (
        StepLosses.of([([0, 1], [0.5, 0])], bound=2),
        "got 1 on device 0 and 2 on device 2; say it with bound=",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_controlled_is_refused(case):
    steps, words = REFUSED[case]
    with pytest.raises(ValueError, match=words):
        control([*some_steps(devices=2), steps], Network.chain(3), 0.1)


def test_wishes_that_are_not_monotone_are_refused_by_their_losses():
    """Miscoverage plus a price for size, and the error among answered: both show themselves."""
    rng, lambdas = np.random.default_rng(0), np.linspace(0, 1, 11)
    p = rng.dirichlet(np.ones(6), 30)
    y = rng.integers(0, 6, 30)
    inside = 1 - p[:, :, None] <= lambdas
    priced = ~inside[np.arange(30), y] * 0.5 + inside.sum(axis=1) / 12
    with pytest.raises(ValueError, match=r"device 0, item \d+: the loss rises .*\. A price for the size"):
        control([StepLosses.on_grid(lambdas, priced)], Network.chain(1), 0.2)
    sure, right = p.max(axis=1), p.argmax(axis=1) == y
    answered = sure[:, None] > lambdas
    among = np.where(answered, ~right[:, None], False) / np.maximum(answered.mean(axis=0), 1 / 30) / 30
    with pytest.raises(ValueError, match="among answered examples only"):
        control([StepLosses.on_grid(lambdas, among)], Network.chain(1), 0.2)


def test_round_off_is_no_rise():
    noisy = StepLosses.on_grid([0, 1, 2], [[0.3, 0.3 + 1e-16 * 3, -1e-17]] * 60)
    assert control([noisy], Network.chain(1), 0.2).threshold == 2


@pytest.mark.parametrize("method", ["q-dcp", "h-dcp", "cp", "fcp", "local", "average", "wfcp", "fedcp-qq"])
def test_methods_that_count_scores_say_so(method):
    with pytest.raises(
        ValueError, match=f"this method counts scores and cannot add up losses .method '{method}'.; .*e-dcp"
    ):
        control(some_steps(), Network.cycle(4), 0.1, method)


@pytest.mark.parametrize(("risk", "bound"), [(0, None), (1, None), ("x", None), (3, 2.0), (float("nan"), None)])
def test_risks_outside_are_refused(risk, bound):
    with pytest.raises(ValueError, match="risk must be a number strictly between 0 and the largest possible loss"):
        control(some_steps(), Network.cycle(4), risk, bound=bound)


# Inputs.


def long_table(steps, names="abcd"):
    rows = [(name, *row) for name, own in zip(names, steps, strict=True) for row in own.rows()]
    return dict(zip(("device", "item", "lambda", "loss"), map(list, zip(*rows, strict=True)), strict=True))


def test_every_form_of_losses_gives_the_same():
    steps, network = some_steps(), Network.cycle(4).relabelled(tuple("abcd"))
    wanted = control(steps, network, 0.3).threshold
    by_name = dict(zip("dcba", steps[::-1], strict=True))
    pairs = [
        [
            (own.lambdas[own.offsets[i] : own.offsets[i + 1]], own.values[own.offsets[i] : own.offsets[i + 1]])
            for i in range(len(own))
        ]
        for own in steps
    ]
    table = long_table(steps)
    shuffled = np.random.default_rng(1).permutation(len(table["loss"]))
    frame = pytest.importorskip("polars").DataFrame
    assert control(frame(table), network, 0.3).threshold == wanted
    mixed = frame({name: [column[i] for i in shuffled] for name, column in table.items()})
    assert control(mixed, network, 0.3).threshold == wanted
    assert control(by_name, network, 0.3).threshold == wanted
    assert control(pairs, network, 0.3).threshold == wanted


def test_a_frame_that_lacks_a_column_or_says_two_things_is_refused():
    polars, table = pytest.importorskip("polars"), long_table(some_steps())
    with pytest.raises(ValueError, match=r"columns 'device', 'item', 'lambda' and 'loss'.* got device, item, x, loss"):
        control(polars.DataFrame(table).rename({"lambda": "x"}), "cycle", 0.1)
    table["lambda"][1] = table["lambda"][0]
    with pytest.raises(ValueError, match="device a, item 0 has two losses at lambda 0"):
        control(polars.DataFrame(table), "cycle", 0.1)


def test_devices_without_items():
    """With `sizes` such a device is not asked; with `equal` it counts as lost, which only a larger risk affords."""
    steps = [*some_steps(60, 3), StepLosses.none()]
    assert control(steps, Network.cycle(4), 0.4).threshold < 1
    with pytest.warns(TooFewScores):
        assert control(steps, Network.cycle(4), 0.2, mixture="equal").threshold == math.inf
    assert control(steps, Network.cycle(4), 0.4, mixture="equal").threshold == 1


# Results.


def test_several_risks_are_those_of_single_runs(tmp_path):
    risks = (0.2, 0.3, 0.5)
    several = control(some_steps(), Network.cycle(4), risks)
    for risk in risks:
        alone = control(some_steps(), Network.cycle(4), risk)
        assert several.at(risk).threshold == alone.threshold
        assert several.at(risk).certificate == alone.certificate
    several.save(tmp_path / "s.json")
    again = Result.load(tmp_path / "s.json")
    assert again.to_dict() == several.to_dict()
    assert again.controlled
    assert again.alphas == risks
    assert repr(again).splitlines()[1].split() == ["part", "risk", "0.2", "risk", "0.3", "risk", "0.5"]


def test_several_results_build_sets():
    rng, fnr = np.random.default_rng(0), FalseNegativeRate()
    p = rng.random((90, 4))
    y = rng.random(p.shape) < p
    several = control([fnr(p[i::3], y[i::3]) for i in range(3)], "cycle", (0.2, 0.4), loss=fnr)
    np.testing.assert_array_equal(several.predict(p, alpha=0.4), several.at(0.4).predict(p))


def test_a_result_survives_its_file(tmp_path):
    rng, loss = np.random.default_rng(0), OrdinalDistance(score="lac")
    devices = [(rng.dirichlet(np.ones(6), 30), rng.integers(0, 6, 30)) for _ in range(5)]
    result = control([loss(p, y) for p, y in devices], "cycle", 1.5, loss=loss)
    assert (result.level, result.guarantee.loss.bound) == (1.5, 5.0)
    assert result.rank_level(result.answer) == Fraction(3, 10)
    result.save(tmp_path / "r.json")
    again = Result.load(tmp_path / "r.json")
    assert again.to_dict() == result.to_dict()
    assert again.guarantee.loss.loss == loss
    np.testing.assert_array_equal(again.predict(devices[0][0]), result.predict(devices[0][0]))
    shown = repr(result)
    assert "ordinal-distance at most 1.5" in shown
    assert "mean loss" in str(result.certificate)


TAMPERED = {
    "a smaller rank": (
        ("answers", 0, "certificate", "required_rank"),
        lambda r: r - 1,
        "required_rank must be at least",
    ),
    "more than there is": (
        ("answers", 0, "certificate", "counted_rank"),
        lambda r: 10**9,
        "at most the number of parts of losses",
    ),
    "another risk": (
        ("answers", 0, "alpha"),
        lambda r: "2/5",
        "answers must have one entry for each pair of them, in this order",
    ),
    "another risk throughout": (
        ("guarantee", "alphas"),
        lambda r: ["2/5"],
        "answers must have one entry for each pair of them, in this order",
    ),
    "another bound": (("guarantee", "loss", "bound"), lambda r: 2.0, "required_rank must be"),
    "a bound below the risk": (
        ("guarantee", "loss", "bound"),
        lambda r: 0.25,
        r"r\.json: alphas must be more than 0 and less than 1/4",
    ),
    "no loss": (("guarantee", "loss"), lambda r: None, "loss"),
    "no losses in the certificate": (("answers", 0, "certificate", "losses"), lambda r: None, "losses"),
    "an unknown loss": (("guarantee", "loss", "loss"), lambda r: {"name": "regret"}, "unknown loss 'regret'"),
}


@pytest.mark.parametrize("case", TAMPERED)
@pytest.mark.parametrize("devices", [1, 4])
def test_a_changed_file_is_refused(case, devices, tmp_path):
    (*path, last), change, words = TAMPERED[case]
    raw = control(some_steps(60, devices), Network.chain(devices), 0.3).to_dict()
    place = raw
    for key in path:
        place = place[key]
    place[last] = change(place[last])
    (tmp_path / "r.json").write_text(json.dumps(raw))
    with pytest.raises(ValueError, match=words):
        Result.load(tmp_path / "r.json")


def test_a_result_that_covers_has_no_losses():
    covers = calibrate([np.arange(50.0)], Network.chain(1), 0.1)
    assert not covers.controlled
    assert all(math.isnan(loss) for loss in covers.mean_losses)
    with pytest.raises(ValueError, match="was not told its score"):
        covers.predict([[0.5, 0.5]], loss=FalseNegativeRate())


@pytest.mark.parametrize("target", ["sizes", "equal"])
def test_update_starts_from_the_old_lambda(target):
    steps, network = some_steps(200, 9, seed=1), Network.torus(3, 3)
    old = control(steps, network, 0.3, mixture=target)
    more = [*steps[:-1], some_steps(210, 1, seed=2)[0]]
    new = update(old, more, network)
    cold = control(more, network, 0.3, mixture=target)
    assert (new.threshold, new.level, new.certificate) == (cold.threshold, cold.level, cold.certificate)
    assert new.cost.rounds < cold.cost.rounds
    assert new.cost.bits_per_device < cold.cost.bits_per_device


@pytest.mark.parametrize(
    "options",
    [
        {"schedule": "window"},
        {"schedule": "count"},
        {"schedule": "count", "aggregate": "flood"},
        {"schedule": "top-k"},
        {"schedule": "top-k", "aggregate": "tree"},
        {"prefer": "rounds"},
    ],
    ids=lambda options: "-".join(options.values()),
)
def test_a_warm_start_ends_where_a_cold_one_does(options):
    """From anywhere: where the old lambda was, beside all steps, around all of them, on one of them."""
    network = Network.torus(3, 3)
    steps, others = some_steps(60, 9, seed=1), some_steps(30, 9, seed=2)
    moved = [replace(own, lambdas=own.lambdas + 1e6) for own in others]
    starts = [control(steps, network, 0.3).bracket, (-3.0, -2.0), (7.0, 8.0), (-9.0, 9.0), (3 / 7, 3 / 7)]
    for held in (steps, others, moved):
        cold = control(held, network, 0.3, **options)
        for warm in starts:
            new = control(held, network, 0.3, **options, warm=warm)
            assert (new.threshold, new.certificate) == (cold.threshold, cold.certificate)


def test_floods_of_losses_are_as_large_as_they_have_steps():
    """What they weigh is more than any device could know; how many there are is little."""
    network, steps = Network.chain(6), some_steps(50, 6)
    fast = control(steps, network, 0.3, prefer="rounds")
    assert fast.threshold == control(steps, network, 0.3).threshold
    assert fast.cost.rounds == 2 * network.diameter  # what all of them weigh, and then the largest


def test_evaluate_measures_the_loss_of_the_sets():
    rng, fnr = np.random.default_rng(0), FalseNegativeRate()
    p = rng.random((300, 4, 5))
    y = rng.random(p.shape) < p
    result = control([fnr(p[i::3], y[i::3]) for i in range(3)], Network.cycle(3), 0.2, loss="false-negative-rate")
    names = np.array(["0", "1", "2"])[np.arange(300) % 3]
    found = result.evaluate(p, y, device=names)
    sets = result.predict(p)
    missed = (y & ~sets).sum(axis=(1, 2)) / np.maximum(y.sum(axis=(1, 2)), 1)
    assert found.loss.mean == pytest.approx(missed.mean(), abs=1e-12)
    assert found.loss.low < found.loss.mean < found.loss.high
    assert found.mean_size == pytest.approx(sets.sum(axis=(1, 2)).mean())
    assert found.per_device["1"].mean == pytest.approx(missed[1::3].mean(), abs=1e-12)
    assert "mean loss 0." in str(found)
    with pytest.raises(ValueError, match="was not told its loss"):
        control([fnr(p, y)], Network.chain(1), 0.2).predict(p)


def test_wrong_and_answered_is_answered_or_everything():
    rng, wrong = np.random.default_rng(1), WrongAndAnswered()
    p = rng.dirichlet(np.full(4, 0.4), 2000)
    y = np.array([rng.choice(4, p=row) for row in p])
    result = control([wrong(p[i:1000:5], y[i:1000:5]) for i in range(5)], "cycle", 0.05, loss=wrong)
    sets = result.predict(p[1000:])
    assert {*sets.sum(axis=1).tolist()} == {1, 4}
    assert result.evaluate(p[1000:], y[1000:]).loss.mean == (~sets[np.arange(1000), y[1000:]]).mean()
