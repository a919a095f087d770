"""Every combination that can be asked for works and is right by enumeration, or is refused with its reason.

One walk goes over the whole matrix: groups, weights, sides, centres, losses, pac_confidence, methods; two levels each.
What works is compared with the pooled rule in fractions, and its risk is summed over all choices of hidden items.
"""

import itertools
import math
from collections import Counter
from fractions import Fraction

import numpy as np
import pytest

from conformesh import Network, calibrate, p_values, problems, solver
from conformesh.guarantee import LOWER, UPPER, Guarantee, LossBound, Sides
from conformesh.kernels import ranks
from conformesh.losses import Steps
from conformesh.methods import METHODS
from conformesh.solver import REFUSALS, Run, solve
from conformesh.table import Table, loss_table
from tests.campaigns import LONG
from tests.combinations import (
    BOUND,
    COLUMNS,
    GROUPS,
    LAMBDAS,
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
)

pytestmark = pytest.mark.filterwarnings("ignore::conformesh.TooFewScores", "ignore::conformesh.CalibrationNote")
BY_STRATEGY = ("seq", "regression")  # group rules that are more than a rank for each group
PUBLISHED = {"cp": "exchangeable", "fcp": "paper", "fedcp-qq": "exchangeable", "wfcp": "paper", "local": "own", "average": "paper"}
BY_NAME = {refusal.name: refusal for refusal in REFUSALS}
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
    """Return the largest risk / alpha of a table, which must be at most 1; each run is compared with the pooled rule."""

    def answer(left):
        found = thresholds_in(run(cell, left, asked, network))
        if cell.groups not in BY_STRATEGY and (cell.has_parts or asked.rank_rule == "swap"):
            assert found == pooled_thresholds(cell, left, asked), f"{cell}, {asked}: not the pooled rule; {left}"
        return lambda device: found

    worst = max(ratios(cell, items, asked, answer).items(), key=lambda pair: pair[1], default=("", Fraction(0)))
    assert worst[1] <= 1, f"{cell}, {asked}: the risk is {float(worst[1]):.3f} alpha within {worst[0]}; {items}"
    return worst[1]


def check_larger(cell, rng):
    """Compare a larger table on another network with the pooled rule."""
    devices = int(rng.integers(2, 8))
    items = random_items(rng, rng.integers(0, 12, devices) + np.eye(devices, dtype=int)[0], ties=bool(rng.integers(2)))
    asked = asked_of(rng, cell, items)
    if not cell.has_parts:
        asked = asked._replace(rank_rule="swap")
    asked = asked._replace(options=(("prefer", str(rng.choice(["rounds", "numbers", "bits", "balanced"]))),))
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


# --- other methods ----------------------------------------------------------------------------------------------------

OPTIONS = {  # without certify the guarantee of q-dcp is assumed; with one Byzantine device few scores are not enough
    "q-dcp": (("certify", True),),
    "r-dcp": (("liars", 0),),
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
    """P(p <= t), each new example as likely as it weighs, is at most t: all choices, and p is the threshold's inverse."""
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
