"""Every combination that can be asked for works and is right by enumeration, or is refused with its reason.

One walk goes over the whole matrix: groups, weights, sides, centres, losses, pac_confidence, methods; two levels each.
What works is compared with the pooled rule in fractions, and its risk is summed over all choices of hidden items.
"""

import itertools
import math
import re
from collections import Counter
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

from conformesh import Network, Result, calibrate, control, p_values
from conformesh.guarantee import LOWER, UPPER, Guarantee, LossBound, Mixture, Sides
from conformesh.kernels import ranks
from conformesh.kernels.weighted_scores import WeightedScores
from conformesh.methods import METHODS
from conformesh.pipeline import problems, shift, solver
from conformesh.pipeline.solver import REFUSALS, MethodRun, refuse_unproven, solve
from conformesh.scores.adapt import Prior
from conformesh.scores.centres import centre_name
from conformesh.scores.losses import StepLosses
from conformesh.table import Table
from tests.campaigns import LONG
from tests.pipeline.combinations import (
    BOUND,
    CENTRES,
    COLUMNS,
    GROUPS,
    LAMBDAS,
    QUARTERS,
    WEIGHTS,
    Asked,
    Cell,
    Items,
    atoms_in,
    hidden_choices,
    pooled_thresholds,
    random_items,
    ratios,
    run,
    thresholds_in,
    weights_of,
)

pytestmark = pytest.mark.filterwarnings("ignore::conformesh.TooFewScores", "ignore::conformesh.CalibrationNote")
BY_STRATEGY = ("seq", "regression")  # group rules that are more than a rank for each group
PUBLISHED = {
    "cp": "exchangeable",
    "fcp": "paper",
    "fedcp-qq": "exchangeable",
    "wfcp": "paper",
    "local": "own",
    "average": "paper",
}
METHOD = "the method"  # refuses by itself, in a sentence that names what it does not do


def matrix(methods=("e-dcp",)):
    """Return every cell; no function takes a loss together with sides, classes or pac_confidence."""
    flags = [(False, True)] * 4
    cells = (Cell(*cell) for cell in itertools.product(GROUPS, WEIGHTS, *flags, methods))
    return [cell for cell in cells if not (cell.losses and (cell.sides or cell.pac or cell.weights == "classes"))]


def refusals_of(cell, devices):
    """Return why a cell is refused, all reasons; empty where it must work. This is the matrix, said independently."""
    other = cell.method != "e-dcp"
    found = {
        "pac_confidence x groups": cell.pac and cell.groups and devices > 1,
        "pac_confidence x seq or regression": cell.pac and cell.groups in BY_STRATEGY,
        "pac_confidence x weights": cell.pac and cell.weights,
        "pac_confidence x centres": cell.pac and cell.centres,
        "seq or regression x weights": cell.groups in BY_STRATEGY and cell.weights,
        "seq or regression x centres": cell.groups in BY_STRATEGY and cell.centres,
        "seq or regression x losses": cell.groups in BY_STRATEGY and cell.losses,
        "seq or regression x methods": cell.groups in BY_STRATEGY and other,
        "weights x methods": cell.weights and other,
        "centres x methods": cell.centres and other,
        "losses x methods": cell.losses and other,
        METHOD: cell.pac and (cell.method == "r-dcp" or cell.method in PUBLISHED),
    }
    return {name for name, applies in found.items() if applies}


def refusal_of(cell, items, asked):
    """Return the name of the refusal with which a cell is refused, or the message where it is none of these."""
    try:
        run(cell, items, asked)
    except ValueError as error:
        text = str(error)
    else:
        return "not refused"
    for refusal in REFUSALS:
        if text == f"{refusal.reason} (method {cell.method!r}); {refusal.remedy}":
            return refusal.name
    return METHOD if cell.method in text or "unknown devices" in text else text


def asked_of(rng, cell, items):
    """Draw levels, mixture, rank rule and the part of a side; one level is where a rank of all scores just suffices."""
    devices, n = items.devices, max(len(items.owner) - items.devices, 2)
    mixture = PUBLISHED.get(cell.method, "sizes")
    if cell.method in ("e-dcp", "h-dcp") and cell.groups != "regression":
        mixture = str(rng.choice(["sizes", "paper", "equal", "given"]))
    shares = rng.integers(0, 4, devices)
    shares[rng.integers(devices)] += 1
    levels = sorted({Fraction(int(rng.integers((n + 1) // 2, n)), n), Fraction(int(rng.integers(1, 9)), 11)})
    rule = str(rng.choice(["auto", "swap"])) if cell.method == "e-dcp" else "auto"
    return Asked(tuple(levels), mixture, tuple(shares.tolist()), rule, Fraction(int(rng.integers(1, 4)), 4))


def small_items(rng, most, least_devices=1):
    """Draw items with at most so many choices of hidden ones; n_k from 0 to 5."""
    while True:
        sizes = rng.integers(0, 6, int(rng.integers(least_devices, 5)))
        if sizes.any() and most / 3 <= math.prod((sizes + 1).tolist()) <= most:
            break
    items = random_items(rng, sizes + 1)
    items.atom[:] = rng.choice(4, 2)[items.atom % 2]  # few atoms: otherwise nearly all thresholds are infinite
    return items


def check(cell, items, asked, network=None):
    """Return the largest risk / alpha of a table, at most 1; each run must have the thresholds of the pooled rule."""

    def answer(left):
        found = thresholds_in(run(cell, left, asked, network))
        if cell.groups not in BY_STRATEGY and (cell.has_parts or asked.rank_rule == "swap"):
            assert found == pooled_thresholds(cell, left, asked), f"{cell}, {asked}: not the pooled rule; {left}"
        return lambda device: found

    worst = max(ratios(cell, items, asked, answer).items(), key=lambda pair: pair[1], default=("", Fraction(0)))
    assert worst[1] <= 1, f"{cell}, {asked}: the risk is {float(worst[1]):.3f} alpha within {worst[0]}; {items}"
    return worst[1]


SCHEDULES = (  # ways of E-DCP, all with the same answer
    (),
    (("prefer", "rounds"),),
    (("prefer", "numbers"),),
    (("schedule", "top-k"), ("aggregate", "flood")),
    (("schedule", "top-k"), ("aggregate", "tree")),
    (("schedule", "window"),),
    (("schedule", "count"), ("aggregate", "tree")),
    (("schedule", "count"), ("aggregate", "flood")),
)


def check_larger(cell, rng):
    """Compare a larger table on another network with the pooled rule."""
    devices = int(rng.integers(2, 8))
    items = random_items(rng, rng.integers(0, 12, devices) + np.eye(devices, dtype=int)[0], ties=bool(rng.integers(2)))
    asked = asked_of(rng, cell, items)
    if not cell.has_parts:
        asked = asked._replace(rank_rule="swap")
    asked = asked._replace(options=SCHEDULES[rng.integers(len(SCHEDULES))])
    found = thresholds_in(run(cell, items, asked, Network.chain(devices)))
    assert found == pooled_thresholds(cell, items, asked), f"{cell}, {asked}: not the pooled rule; {items}"


def walk(seed, tables, most, climbs=0):
    """Check or have refused every cell of E-DCP; return how many of each, and the worst risk / alpha by cell."""
    rng, counts, worst = np.random.default_rng(seed), Counter(), {}
    several, alone = random_items(rng, [5, 3, 4]), random_items(rng, [9])
    for cell in matrix():
        for items in (several, alone):
            reasons = refusals_of(cell, items.devices)
            if reasons:
                assert refusal_of(cell, items, Asked()) in reasons, cell
                counts["refused" if items is several else "refused on one device"] += 1
            elif cell.pac:
                check_binomial(cell, items)
                counts["works with pac_confidence"] += 1
        if refusals_of(cell, 3) or cell.pac:
            continue
        counts["works"] += 1
        worst[cell] = Fraction(0)
        for _ in range(tables):
            items = small_items(rng, most)
            asked = asked_of(rng, cell, items)
            worst[cell] = max(worst[cell], climbed(cell, items, asked, rng, climbs))
            counts["tables"] += 1 + climbs
            if cell.groups not in BY_STRATEGY:
                check_larger(cell, rng)
                counts["larger tables"] += 1
    return counts, worst


def climbed(cell, items, asked, rng, steps):
    """Return the worst risk / alpha on a climb: single items move, and stay where that was no step down."""
    worst = check(cell, items, asked)
    for _ in range(steps):
        row = int(rng.integers(len(items.owner)))
        other = items.kept(np.arange(len(items.owner)))
        fresh = random_items(rng, [1])
        for name in ("score", "weight", "label", "place", "loss"):
            getattr(other, name)[row] = getattr(fresh, name)[0]
        if (ratio := check(cell, other, asked)) >= worst:
            items, worst = other, ratio
    return worst


def check_binomial(cell, items):
    """Compare the required ranks of pac_confidence with exact binomial tails, which all thresholds share."""
    asked = Asked(lower_share=Fraction(1, 4))
    result = run(cell, items, asked)
    for answer in result.answers:
        share = {LOWER: asked.lower_share, UPPER: 1 - asked.lower_share}.get(answer.part[-1] if cell.sides else "", 1)
        inside = np.isin(items.atom, atoms_in(cell, answer.part[:1] if cell.groups else ()))
        n, level, failure = int(inside.sum()), 1 - answer.alpha * share, Fraction(1, 10) / len(result.answers)
        rank, tail = n + 1, Fraction(0)
        while rank > math.ceil(level * n) + 1:  # the comparison with a binomial tail begins one above the mean
            tail += math.comb(n, rank - 1) * level ** (rank - 1) * (1 - level) ** (n - rank + 1)
            if tail > failure:
                break
            rank -= 1
        assert (answer.certificate.required_rank, answer.certificate.rule) == (rank, "binomial"), (cell, answer)
        assert answer.examples == n


def test_every_combination_works_and_is_right_or_is_refused():
    """E-DCP: 92 cells work, 134 are refused. Two tables of up to 12 choices each, and two larger ones."""
    counts, worst = walk(20260101, 2, 12)
    assert (counts["works"], counts["refused"], counts["works with pac_confidence"]) == (92, 134, 10)
    assert max(worst.values()) > Fraction(9, 10)


@pytest.mark.slow
def test_every_combination_is_right_on_many_climbed_tables():
    """6 x 13 tables of each of the 92 cells that work, 7,176 in all (times CONFORMESH_LONG)."""
    counts, worst = walk(5, 6 * LONG, 24, climbs=12)
    assert counts["tables"] == 92 * 6 * 13 * LONG
    assert min(worst.values()) > 0, "a cell whose thresholds are all infinite proves nothing"
    assert max(worst.values()) > Fraction(9, 10)


# --- results ----------------------------------------------------------------------------------------------------------


def mean_loss(cell, items, asked, answer):
    """Return the mean loss of the examples of a part at its threshold, as a part of the largest loss."""
    v = [share / max(n, 1) for share, n in zip(asked.chances(items.sizes), items.sizes, strict=True)]
    group = answer.part[:1] if cell.groups else ()
    near = np.ones((len(items.owner), 1), dtype=int)
    if cell.centres:
        centre = next(c for c in range(len(CENTRES)) if centre_name(c) in answer.part)
        near = CENTRES.weights(items.place)[:, centre, None]
    place = [-math.inf, *LAMBDAS, math.inf].index(answer.threshold)
    lost = mass = Fraction(0)
    for i in np.flatnonzero(np.isin(items.atom, atoms_in(cell, group))).tolist():
        own = v[items.owner[i]] * weights_of(cell, items)[i] * int(near[i, 0])
        mass += own
        lost += own * Fraction(int([*items.loss[i], 0][place]), QUARTERS)
    return float(lost / mass) if mass else None


def test_results_of_every_combination_are_saved_and_say_their_mean_loss(tmp_path):
    """On several devices and on one: what is loaded passes its checks and is the same."""
    rng = np.random.default_rng(14)
    for cell, sizes in itertools.product(matrix(), ([8, 9, 7], [12])):
        if refusals_of(cell, len(sizes)):
            continue
        items = random_items(rng, sizes)
        asked = asked_of(rng, cell, items)._replace(rank_rule="auto")
        if cell.pac:
            asked = asked._replace(mixture="sizes")
        result = run(cell, items, asked)
        result.save(tmp_path / "result.json")
        again = Result.load(tmp_path / "result.json")
        assert thresholds_in(again) == thresholds_in(result)
        assert [one.certificate for one in again.answers] == [one.certificate for one in result.answers]
        for answer in result.answers if cell.losses else ():
            exact = mean_loss(cell, items, asked, answer)
            if exact is not None and not (cell.weights and cell.centres):  # where weights may be rounded
                assert answer.certificate.mean_losses[0] == pytest.approx(exact, abs=1e-12), cell


# --- other methods ----------------------------------------------------------------------------------------------------

OPTIONS = {  # without certify the guarantee of q-dcp is assumed; with one Byzantine device few scores are not enough
    "q-dcp": (("certify", True),),
    "r-dcp": (("byzantine", 0),),
}
GUARANTEED = ("h-dcp", "q-dcp", "r-dcp", "p-dcp", "cp", "fcp", "wfcp", "local")
OTHERS = [name for name in METHODS if name != "e-dcp"]


def cells_of(method):
    """Return the cells that a method other than E-DCP has."""
    return [cell for cell in matrix([method]) if not refusals_of(cell, 3) and not cell.pac]


def by_device(result):
    """Return the thresholds of a result as `ratios` reads them: those of the device of the new example."""
    found = [thresholds_in(result, k) for k in range(result.devices)]
    return lambda device: found[device]


def check_method(cell, rng, most):
    """Return the worst risk / alpha of a method on a table, for new examples of the mixture that it is for."""
    mixture, few = PUBLISHED.get(cell.method, ""), 3 if cell.method in ("p-dcp", "r-dcp") else 1
    items = small_items(rng, most, few)
    asked = asked_of(rng, cell, items)._replace(options=OPTIONS.get(cell.method, ()))
    default = asked._replace(mixture="sizes") if mixture else asked
    if mixture == "exchangeable":  # any item may be the new one, wherever it is
        pooled = Items(1, np.zeros_like(items.owner), *(getattr(items, name) for name in COLUMNS[1:]))
        asked = asked._replace(mixture="sizes")

        def spread(left):
            owner = np.sort(np.arange(len(left.owner)) % 3)
            found = thresholds_in(run(cell, Items(3, owner, *(getattr(left, name) for name in COLUMNS[1:])), default))
            return lambda device: found

        each = [ratios(cell, pooled, asked, spread)]
    else:
        shares = np.eye(items.devices, dtype=int).tolist() if mixture == "own" else [asked.shares]
        asks = [asked._replace(mixture="given", shares=tuple(own)) if mixture == "own" else asked for own in shares]
        each = [ratios(cell, items, one, lambda left: by_device(run(cell, left, default))) for one in asks]
    worst = max((ratio for found in each for ratio in found.values()), default=Fraction(0))
    assert worst <= 1, f"{cell}, {asked}: the risk is {float(worst):.3f} alpha; {items}"
    return worst


@pytest.mark.parametrize("method", GUARANTEED)
def test_every_combination_of_other_methods_is_right(method):
    """Groups by every rule but `seq` and `regression`, sides, two levels: 8 cells of each method."""
    rng, cells = np.random.default_rng(4), cells_of(method)
    assert len(cells) == 8
    if method == "q-dcp":  # takes long
        cells = cells[::3]
    assert max(check_method(cell, rng, 9 if method == "q-dcp" else 12) for cell in cells) > 0


@pytest.mark.slow
@pytest.mark.parametrize("method", GUARANTEED)
def test_every_combination_of_other_methods_is_right_on_many_tables(method):
    rng, tables = np.random.default_rng(5), (2 if method == "q-dcp" else 12) * LONG
    worst = [check_method(cell, rng, 16) for cell in cells_of(method) for _ in range(tables)]
    assert max(worst) > Fraction(1, 2)


@pytest.mark.parametrize("method", OTHERS)
def test_what_other_methods_do_not_have_is_refused(method):
    """The whole matrix of the method, on several devices and on one."""
    rng = np.random.default_rng(6)
    for items in (random_items(rng, [4, 3, 4, 3]), random_items(rng, [9])):
        for cell in matrix([method]):
            if (reasons := refusals_of(cell, items.devices)) and cell.weights in ("", "bound"):
                assert refusal_of(cell, items, Asked()) in reasons, cell


@pytest.mark.parametrize("method", PUBLISHED)
@pytest.mark.parametrize("groups", ["disjoint", "atoms", "max"])
def test_published_methods_treat_each_group_as_if_it_were_alone(method, groups):
    rng = np.random.default_rng(7)
    items, cell, asked = random_items(rng, [9, 14, 11, 8]), Cell(groups, method=method), Asked()
    together = run(cell, items, asked)
    for part in together.parts:
        alone = run(Cell(method=method), items.kept(np.isin(items.atom, atoms_in(cell, part))), asked)
        for one, other in zip(together[part].answers, alone.answers, strict=True):
            np.testing.assert_array_equal(one.thresholds, other.thresholds)
            assert one.certificate == other.certificate


@pytest.mark.parametrize("groups", BY_STRATEGY)
def test_sides_of_group_rules_are_those_of_each_side_by_itself(groups):
    rng = np.random.default_rng(8)
    items, asked = random_items(rng, [9, 14, 11]), Asked(lower_share=Fraction(1, 4))
    both = thresholds_in(run(Cell(groups, sides=True), items, asked))
    for place, (side, share) in enumerate(((LOWER, Fraction(1, 4)), (UPPER, Fraction(3, 4)))):
        flipped = items if place == 0 else items.with_scores(items.score[:, ::-1])
        levels = tuple(share * alpha for alpha in asked.alphas)
        alone = thresholds_in(run(Cell(groups), flipped, asked._replace(alphas=levels)))
        assert {((*part, side), alpha / share): found for (part, alpha), found in alone.items()}.items() <= both.items()


# --- p-values with weights --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mixture", ["sizes", "paper", "equal", "given"])
def test_theorem_p_values_with_weights(mixture):
    """P(p <= t) is at most t, new examples as likely as they weigh: all choices; and p is the threshold's inverse."""
    rng, worst = np.random.default_rng(9), Fraction(0)
    for _ in range(3):
        items = small_items(rng, 16)
        asked = asked_of(rng, Cell(), items)._replace(mixture=mixture, rank_rule="auto")
        chances, mass, seen = asked.chances([n - 1 for n in items.sizes]), Fraction(0), []
        shares = mixture if mixture != "given" else {str(k): share for k, share in enumerate(asked.shares)}
        for way in hidden_choices(items):
            left = items.kept(np.setdiff1d(np.arange(len(items.owner)), way))
            more = {"weight": left.by_device(left.weight), "weight_bound": BOUND, "mixture": shares}
            data, network, tests = left.by_device(left.score[:, 0]), Network.complete(items.devices), items.score[:, 0]
            found = p_values(data, network, tests, **more)
            exact = [found.exact[value] for value in found.values.tolist()]
            thresholds = calibrate(data, network, list(asked.alphas), **more)
            for alpha in asked.alphas:
                missed = tests > thresholds.at(alpha).threshold
                assert [p <= alpha for p in exact] == missed.tolist()
            for k, row in enumerate(way):
                own = chances[k] * Fraction(float(items.weight[row]))
                mass += own
                seen.append((exact[row], own))
        for t in {p for p, _ in seen} - {1}:
            risk = sum((own for p, own in seen if p <= t), Fraction(0))
            worst = max(worst, risk / mass / t if mass else Fraction(0))
    assert 0 < worst <= 1


# --- rounding ---------------------------------------------------------------------------------------------------------

ROUNDED = [cell for cell in matrix() if cell.weights in ("bound", "tests") and not refusals_of(cell, 3)]


def coarse(patch, examples=True, devices=True):
    """Let weights of examples have 3 bits, and those of devices 2, so that rounding shows."""
    if examples:
        patch.setattr(shift, "WEIGHT_BITS", 3)
    if devices:
        patch.setattr(ranks, "_factor", lambda some, exact, held, most: (Fraction(2**2) / max(some), True))


def check_rounding(cells, seed):
    """Pass if no threshold is below the one in fractions; return how many are above, and how many were compared."""
    rng, above, number = np.random.default_rng(seed), 0, 0
    for cell in cells:
        items = random_items(rng, [3, 5, 2, 7], ties=False)
        items.weight[:] = np.minimum(BOUND * rng.random(len(items.owner)) * 1.5, BOUND)
        asked = asked_of(rng, cell, items)
        found, exact = thresholds_in(run(cell, items, asked)), pooled_thresholds(cell, items, asked)
        assert found.keys() == exact.keys()
        below = {key: (found[key], exact[key]) for key in exact if found[key] < exact[key]}
        assert not below, f"{cell}, {asked}: rounding made a threshold smaller: {below}"
        above, number = above + sum(found[key] > exact[key] for key in exact), number + len(exact)
    return above, number


def test_weights_of_many_digits_change_no_threshold():
    """Rounding costs 2^-12 of one score, and more where centres and losses leave fewer bits: it seldom moves one."""
    above, number = check_rounding(ROUNDED, 10)
    assert above <= number / 100


def test_coarse_weights_never_make_a_threshold_smaller(monkeypatch):
    coarse(monkeypatch)
    above, number = check_rounding(ROUNDED, 11)
    assert number / 50 < above < number


def rounded_up(right):
    """Round weights of devices up, and add nothing for it."""
    return lambda kinds, places, counts, most, up: replace(right(kinds, places, counts, most, True), rounded=False)


@pytest.mark.parametrize("whose", ["examples", "devices"])
def test_coarse_weights_rounded_to_the_wrong_side_are_noticed(whose, monkeypatch):
    coarse(monkeypatch, whose == "examples", whose == "devices")
    check_rounding(ROUNDED, 11)
    plants = {
        "examples": [
            (shift.WeightUnit, "round_down", lambda unit, weights: np.ceil(unit._scaled(weights)).astype(int)),
            (shift.WeightUnit, "rounding_loss", lambda unit, weights: np.zeros(len(weights), dtype=int)),
        ],
        "devices": [
            (ranks, "_swap", rounded_up(ranks._swap)),
            (ranks, "_swap", lambda *given, right=ranks._swap: replace(right(*given), rounded=False)),
        ],
    }
    for owner, name, wrong in plants[whose]:
        with monkeypatch.context() as patch:
            patch.setattr(owner, name, wrong)
            with pytest.raises(AssertionError, match="rounding made a threshold smaller"):
                check_rounding(ROUNDED, 11)


# --- planted bugs -----------------------------------------------------------------------------------------------------


def test_losses_of_groups_whose_weights_are_rounded_up_exceed_the_risk(monkeypatch):
    """60 items that never lose and weigh little, one that always loses: rounded up, the many hide the one."""
    never, always = np.zeros(len(LAMBDAS) + 1, dtype=int), np.full(len(LAMBDAS) + 1, QUARTERS)
    items = random_items(np.random.default_rng(0), [61, 2])
    items.atom[:], items.loss[:61], items.loss[61:] = 1, never, always
    cell, asked = Cell("disjoint", losses=True), Asked((Fraction(2, 5),), "equal", rank_rule="swap")

    def worst():
        found = {}  # what is left is one of two tables, whichever items are hidden

        def answer(left):
            key = tuple(left.sizes)
            found[key] = found.get(key) or thresholds_in(run(cell, left, asked))
            return lambda device: found[key]

        return max(ratios(cell, items, asked, answer).values())

    coarse(monkeypatch)
    assert worst() <= 1
    monkeypatch.setattr(ranks, "_swap", rounded_up(ranks._swap))
    assert worst() > 1


def plant_test_weight_without_cap(patch):
    """The new example weighs at a centre what it weighs without one."""
    right = problems._test_weights
    patch.setattr(
        problems, "_test_weights", lambda w, rows, levels, largest: right(w, rows, levels, (rows.unit.round_up(BOUND),))
    )


def plant_cap_ignored(patch):
    """The largest weight at a centre is that of the whole."""
    right = problems._largest_weights
    patch.setattr(
        problems, "_largest_weights", lambda rows, *more: (max(right(rows, *more)),) * len(right(rows, *more))
    )


def plant_sizes_of_groups(patch):
    """Weights of devices come from how many examples of the group they hold."""
    right = solver.problem_columns
    patch.setattr(solver, "problem_columns", lambda *given: replace(right(*given), examples=None))


def plant_shares_of_sides_swapped(patch):
    right = Sides.levels
    patch.setattr(
        Sides, "levels", lambda self, alpha: dict(zip((UPPER, LOWER), right(self, alpha).values(), strict=True))
    )


def plant_one_side_has_all_of_alpha(patch):
    patch.setattr(Sides, "levels", lambda self, alpha: dict.fromkeys((LOWER, UPPER), alpha))


def plant_weights_forgotten_at_centres(patch):
    right = problems._Weights.factor
    patch.setattr(problems._Weights, "factor", lambda rows, c: right(rows, c) if c is None else rows.near[:, c])


def plant_mass_of_examples_without_centres(patch):
    """Losses count every example as if it were at the centre."""
    right = WeightedScores.with_weights

    def with_weights(self, weights, rounding_loss=None, example_mass=None):
        heavier = None if example_mass is None else 2 * example_mass
        return right(self, weights, rounding_loss, heavier)

    patch.setattr(WeightedScores, "with_weights", with_weights)


def plant_groups_are_atoms(patch):
    """With `max`, a group holds its own atom only."""
    patch.setattr(
        "conformesh.protocols.groups.Grouping.members",
        property(
            lambda self: np.array(
                [[atom == (name,) or name == "everyone" for atom in self.atoms] for name in self.order]
            )
        ),
    )


def plant_levels_of_tests_in_reverse(patch):
    right = problems._levels

    def levels(guarantee):
        found, places = right(guarantee)
        return found, dict(zip(places, [*places.values()][::-1], strict=True))

    patch.setattr(problems, "_levels", levels)


def plant_one_device_exchanges_nothing(patch):
    """The rule of one device for several."""
    right = ranks.Requirement.demand
    patch.setattr(
        ranks.Requirement,
        "demand",
        lambda self, *given, **more: (
            replace(right(self, *given, **more), rule="ordinary") if self.is_weighted else right(self, *given, **more)
        ),
    )


PLANTED = {
    plant_test_weight_without_cap: Cell("", "tests", centres=True),
    plant_cap_ignored: Cell("disjoint", centres=True),
    plant_sizes_of_groups: Cell("disjoint"),
    plant_shares_of_sides_swapped: Cell("max", sides=True),
    plant_one_side_has_all_of_alpha: Cell("", "bound", sides=True),
    plant_weights_forgotten_at_centres: Cell("", "bound", centres=True),
    plant_mass_of_examples_without_centres: Cell("", centres=True, losses=True),
    plant_groups_are_atoms: Cell("max"),
    plant_levels_of_tests_in_reverse: Cell("atoms", "tests"),
    plant_one_device_exchanges_nothing: Cell("disjoint", "bound", losses=True),
}


@pytest.mark.parametrize("plant", PLANTED, ids=lambda plant: plant.__name__.removeprefix("plant_"))
def test_a_planted_bug_is_noticed(plant, monkeypatch):
    cell = PLANTED[plant]

    def checked():
        rng = np.random.default_rng(12)
        for _ in range(6):
            items = small_items(rng, 8)
            check(cell, items, asked_of(rng, cell, items))
            check_larger(cell, rng)

    checked()
    plant(monkeypatch)
    with pytest.raises(AssertionError, match="not the pooled rule"):
        checked()


# --- refusals ---------------------------------------------------------------------------------------------------------

SOME = random_items(np.random.default_rng(13), [5, 6, 4])
EPSILON = (("epsilon", 1.0),)


def asked_for(cell, **more):
    """Return a call for a cell."""
    return lambda: run(cell, SOME, Asked(**more))


def solved(table, **more):
    """Return a call below the public functions, which have no argument for this combination."""
    guarantee = Guarantee(alphas=(Fraction(1, 5),), **more)
    return lambda: solve(table, guarantee, Network.complete(table.devices), MethodRun())


def on_a_mesh(mode, method="e-dcp", online=False, **more):
    """Return a check of the configuration of a node."""
    guarantee = Guarantee(alphas=(Fraction(1, 5),), **more)
    return lambda: refuse_unproven(guarantee, MethodRun(method, mesh_mode=mode, online=online), 3)


def on_a_grid(**more):
    """Return a call that tests a grid of lambdas."""
    losses = [np.zeros((2, 1))] * 3
    return lambda: control(losses, Network.complete(3), monotone=False, pac_confidence=0.9, grid=[1.0], **more)


LOSSES = Table.of_losses([StepLosses.on_grid(LAMBDAS, [[1.0, 0.5, 0.0]])] * 3)
AT_ALL_LOOKS = {"pac_confidence": Fraction(9, 10), "time_uniform": True}


def plain(**given):
    return lambda: calibrate([[1.0], [2.0]], "chain", 0.1, **given)


def adapted(**given):
    rows = [([[0.5, 0.5]], [0]), ([[0.9, 0.1]], [1])]
    return lambda: calibrate(rows, "chain", 0.1, **{"adapt": "prior", **given})


TRIGGERS = {
    "non-monotone losses x groups": on_a_grid(groups=[["a", "b"]] * 3),
    "non-monotone losses x weights or centres": on_a_grid(weight=[[1.0, 2.0]] * 3, weight_bound=2),
    "non-monotone losses x unknown mixtures": on_a_grid(mixture="any"),
    "non-monotone losses x ghost": on_a_grid(rank_rule="ghost"),
    "non-monotone losses x methods": on_a_grid(method="p-dcp"),
    "non-monotone losses x faults": on_a_grid(faults={"loss": 0.1}),
    "pac_confidence x groups": asked_for(Cell("disjoint", pac=True)),
    "pac_confidence x seq or regression": lambda: run(
        Cell("seq", pac=True), random_items(np.random.default_rng(0), [9]), Asked()
    ),
    "pac_confidence x weights": asked_for(Cell("", "classes", pac=True)),
    "pac_confidence x centres": asked_for(Cell(centres=True, pac=True)),
    "pac_confidence x losses": solved(LOSSES, loss=LossBound(), pac_confidence=Fraction(9, 10)),
    "time_uniform x sizes or paper": plain(**AT_ALL_LOOKS),
    "time_uniform x groups": lambda: calibrate([[1.0]], "complete", 0.1, groups=[["a"]], **AT_ALL_LOOKS),
    "time_uniform x asynchronous mode": on_a_mesh("asynchronous", mixture=Mixture("equal"), **AT_ALL_LOOKS),
    "time_uniform x private methods": plain(method="p-dcp", mixture="equal", **AT_ALL_LOOKS),
    "sides x losses": solved(LOSSES, loss=LossBound(), sides=Sides()),
    "seq or regression x weights": asked_for(Cell("regression", "bound")),
    "seq or regression x centres": asked_for(Cell("seq", centres=True)),
    "seq or regression x losses": asked_for(Cell("regression", losses=True)),
    "seq or regression x methods": asked_for(Cell("seq", method="h-dcp")),
    "losses x methods": asked_for(Cell(losses=True, method="r-dcp")),
    "sides x epsilon": asked_for(Cell(sides=True, method="p-dcp"), options=EPSILON),
    "max x epsilon": asked_for(Cell("max", method="p-dcp"), options=EPSILON),
    "ghost x groups": asked_for(Cell("disjoint"), rank_rule="ghost"),
    "ghost x weights, centres, pac_confidence or overlapping groups": asked_for(Cell(centres=True), rank_rule="ghost"),
    "adapt x seq or regression": adapted(groups=[["a"], [["a", "b"]]], group_rule="seq"),
    "adapt x weights, centres or sides": adapted(weight=[[1.0], [2.0]], weight_bound=2.0),
    "adapt x pac_confidence": adapted(pac_confidence=0.9),
    "adapt x losses": solved(LOSSES, loss=LossBound(), adapt=Prior()),
    "adapt x ghost": adapted(rank_rule="ghost"),
    "adapt x epsilon": adapted(method="p-dcp", epsilon=1.0),
    "adapt x methods": adapted(method="h-dcp"),
    "adapt with a full window x p-dcp": adapted(method="p-dcp", adapt=Prior(window="full")),
    "adapt x faults": adapted(faults={"loss": 0.1}),
    "adapt x asynchronous mode": on_a_mesh("asynchronous", adapt=Prior()),
    "adapt x online": on_a_mesh("rounds", online=True, adapt=Prior()),
    "unknown mixtures x methods": plain(method="r-dcp", mixture="own"),
    "unknown mixtures x rank_rule": plain(mixture="own", rank_rule="swap"),
    "unknown mixtures x pac_confidence": plain(mixture_bound=2, pac_confidence=0.9),
    "unknown mixtures x weights, centres or losses": plain(mixture="any", weight=[[1.0], [2.0]], weight_bound=2.0),
    "unknown mixtures x seq or regression": plain(mixture="own", groups=[["a"], [["a", "b"]]], group_rule="seq"),
    "unknown mixtures x asynchronous mode or online": on_a_mesh("asynchronous", mixture=Mixture("any")),
    "mixture_bound x own or any": plain(mixture="any", mixture_bound=2),
    "adapt x any or mixture_bound": adapted(mixture_bound=2),
    "weights x methods": asked_for(Cell("", "tests", method="q-dcp")),
    "centres x methods": asked_for(Cell(centres=True, method="fcp")),
}


@pytest.mark.parametrize("name", TRIGGERS)
def test_a_refusal_says_its_reason_and_what_to_do(name):
    refusal = next(one for one in REFUSALS if one.name == name)
    with pytest.raises(
        ValueError, match=rf"^{re.escape(refusal.reason)} \(method '.*'\); {re.escape(refusal.remedy)}$"
    ):
        TRIGGERS[name]()


def test_every_refusal_has_a_trigger_and_a_reason_of_its_own():
    assert [*TRIGGERS] == [refusal.name for refusal in REFUSALS]
    assert len({refusal.reason for refusal in REFUSALS}) == len(REFUSALS)


def test_documentation_lists_the_refusals():
    page = (Path(__file__).parents[2] / "docs" / "guarantees.md").read_text(encoding="utf-8")
    part = page.split("<!-- generated: refused-combinations -->")[1].split("<!-- end -->")[0]
    rows = [tuple(cell.strip() for cell in line.strip("|").split("|")) for line in part.strip().splitlines()[2:]]
    assert rows == [(one.name.replace(" x ", " × "), one.reason, one.remedy) for one in REFUSALS]


def test_ghosts_of_groups_and_groups_with_noise_still_work_where_they_are_proven():
    """The refusals are no wider than their reasons."""
    run(Cell("disjoint"), SOME, Asked(rank_rule="ghost", mixture="paper"))
    run(Cell("disjoint"), random_items(np.random.default_rng(0), [9]), Asked(rank_rule="ghost"))
    run(Cell("atoms", method="p-dcp"), SOME, Asked(options=EPSILON))
    assert set(BY_STRATEGY) < set(ranks.GROUP_RULES)
