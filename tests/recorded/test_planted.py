"""Planted bugs: each of them changes the answer of a recorded call, so the recorded answers would notice it.

A bug is one function that patches the library, with the calls that must notice it. Where the library changes, only
the function needs another place to patch; ``python -m tests.recorded.test_planted`` lists what notices each bug.
"""

import math
import sys
from contextlib import suppress
from dataclasses import replace
from fractions import Fraction
from functools import cache

import numpy as np
import pytest
from msgspec import structs

from conformesh import api, methods
from conformesh.engines.faulty import MessageLoss
from conformesh.engines.simulator import Simulator
from conformesh.guarantee import LOWER, UPPER
from conformesh.kernels import ranks, weighted_scores
from conformesh.kernels.ranks import Demand
from conformesh.pipeline import detection as detecting
from conformesh.pipeline import p_values as pvalues
from conformesh.pipeline import problems, shift, solver
from conformesh.pipeline import quantiles as quantile
from conformesh.pipeline.shift import WeightUnit
from conformesh.protocols import averaging_schemes, block
from conformesh.protocols.groups import Grouping
from conformesh.protocols.ledger import Ledger
from conformesh.protocols.r_dcp import RDCP
from conformesh.scores import losses
from conformesh.scores.centres import Centres
from conformesh.table import Table
from tests.recorded.calls import CALLS
from tests.recorded.comparison import compared, is_exact
from tests.recorded.record import machine, read
from tests.recorded.replay import replay

BUGS = {}
BY_ID = {call["id"]: call for call in CALLS}
recorded = cache(read)


def bug(*calls):
    """Enter a planted bug in the table, with the calls that notice it."""

    def enter(plant):
        BUGS[plant.__name__] = (plant, calls)
        return plant

    return enter


def changed(patch, owner, name, change):
    """Let a function of the library return something else: what `change` makes of its value."""
    right = getattr(owner, name)
    patch.setattr(owner, name, lambda *args, **more: change(right(*args, **more)))


def changed_classmethod(patch, owner, name, change):
    """Do the same with a class method."""
    right = getattr(owner, name)
    patch.setattr(owner, name, staticmethod(lambda *args, **more: change(right(*args, **more))))


# --- ranks and weights ------------------------------------------------------------------------------------------------


@bug("form-01", "disjoint-06", "sides-01", "risks-02")
def rank_is_one_too_low(patch):
    changed(patch, Demand, "required", lambda rank: rank - 1)


@bug("form-02", "weighted-02", "draws-02", "loopback-15")
def rank_is_one_too_high(patch):
    changed(patch, Demand, "required", lambda rank: rank + 1)


@bug("form-01", "disjoint-11", "centres-09")
def swap_rule_forgets_the_exchanged_score(patch):
    changed(patch, ranks, "_swap", lambda demand: replace(demand, largest=Fraction(0)))


@bug("disjoint-02", "weighted-04", "centres-02", "risk-02")
def swap_rule_forgets_devices_without_scores(patch):
    changed(patch, ranks, "_swap", lambda demand: replace(demand, missing=Fraction(0)))


@bug("rank-01", "p-values-03", "detect-01")
def ghost_rule_forgets_the_ghosts(patch):
    changed(patch, ranks, "_ghost", lambda demand: demand and replace(demand, base=Fraction(demand.total)))


@bug("few-or-many-04", "p-values-05", "detect-01")
def ghost_rule_is_never_considered(patch):
    changed(patch, ranks, "_ghost", lambda demand: None)


@bug("mixture-06", "disjoint-04", "risk-10", "q-dcp-06")
def weights_of_devices_are_ignored(patch):
    changed(patch, ranks, "_swap", lambda demand: replace(demand, weights=None))


@bug("pac-01", "levels-06", "sides-13")
def binomial_rule_does_not_share_its_risk(patch):
    right = ranks._Binomial.of
    patch.setattr(
        ranks._Binomial,
        "of",
        staticmethod(lambda kinds, counts, risk: right(kinds, counts, min(2 * risk, Fraction(1)))),
    )


@bug("form-09", "disjoint-02", "overlapping-05", "weighted-06", "risk-02", "risks-03")
def mixture_is_ignored(patch):
    right = api.Mixture
    patch.setattr(api, "Mixture", lambda *given, **more: right("sizes"))


@bug("p-values-02", "p-values-12")
def mixture_of_p_values_is_ignored(patch):
    right = pvalues.make_requirement
    patch.setattr(pvalues, "make_requirement", lambda mixture, *more, **named: right("sizes", *more, **named))


# --- weights of scores ------------------------------------------------------------------------------------------------


@bug("weighted-02", "shifted-04")
def weights_are_rounded_up(patch):
    patch.setattr(WeightUnit, "round_down", lambda self, weights: np.ceil(self._scaled(weights)).astype(np.int64))


@bug("weighted-03", "shifted-08")
def rounding_loss_is_forgotten(patch):
    patch.setattr(WeightUnit, "rounding_loss", lambda self, weights: np.zeros(len(weights), dtype=np.int64))


@bug("weighted-01", "weighted-06", "shifted-05")
def unit_of_weights_is_twice_as_large(patch):
    changed_classmethod(patch, WeightUnit, "of", lambda unit: unit._replace(exponent=unit.exponent - 1))


@bug("weighted-07", "shifted-02")
def weight_of_the_new_example_is_too_small(patch):
    changed(patch, WeightUnit, "round_up", lambda weight: weight - 1)


@bug("shifted-02", "shifted-03")
def weight_levels_are_descending(patch):
    changed(patch, shift, "weight_levels", lambda levels: levels[::-1])


@bug("shifted-06", "shifted-08")
def ratios_of_classes_are_swapped(patch):
    changed(patch, shift, "class_ratios", lambda ratios: dict(zip(ratios, [*ratios.values()][::-1], strict=True)))


@bug("weighted-11", "shifted-10")
def estimated_weights_count_as_known(patch):
    patch.setattr(solver, "_with_assumption", lambda outcome, words: outcome)


@bug("weighted-01", "shifted-03")
def examples_of_weight_zero_are_not_counted(patch):
    def without(columns):
        sizes = columns.scores[0].sizes  # of what weighs anything
        asked = [one._replace(examples=int(sizes[:, one.column].sum())) for one in columns.problems]
        return replace(columns, examples=sizes, problems=asked)

    changed(patch, solver, "problem_columns", without)


@bug("centres-01", "centres-04")
def centres_weigh_one_part_less(patch):
    changed(patch, Centres, "weights", lambda weights: np.maximum(weights - 1, 0))


# --- parts ------------------------------------------------------------------------------------------------------------


@bug("sides-01", "sides-10")
def sides_are_swapped(patch):
    patch.setattr(problems, "LOWER", UPPER)
    patch.setattr(problems, "UPPER", LOWER)


@bug("sides-10", "sides-14")
def alphas_of_sides_are_swapped(patch):
    right, other = problems._levels, {LOWER: UPPER, UPPER: LOWER}

    def levels(guarantee):
        found, places = right(guarantee)
        return found, {(alpha, other[side], test): place for (alpha, side, test), place in places.items()}

    patch.setattr(problems, "_levels", levels)


@bug("sides-02", "sides-12")
def columns_of_sides_are_swapped(patch):
    changed(patch, Table, "ordered", lambda table: replace(table, score=np.ascontiguousarray(table.score[:, ::-1])))


@bug("overlapping-04", "overlapping-08")
def group_order_is_ignored(patch):
    right = Grouping.of
    patch.setattr(Grouping, "of", staticmethod(lambda atoms, rule, order, expected: right(atoms, rule, None, expected)))


@bug("overlapping-02", "overlapping-13")
def group_rule_max_runs_as_seq(patch):
    right = Grouping.of
    patch.setattr(
        Grouping,
        "of",
        staticmethod(lambda atoms, rule, *more: right(atoms, "seq" if rule == "max" else rule, *more)),
    )


@bug("disjoint-02", "overlapping-05", "p-values-12")
def groups_need_no_room_for_what_they_lack(patch):
    patch.setattr(
        ranks.Requirement, "is_weighted", property(lambda self: False, lambda self, value: None), raising=False
    )


@bug("levels-02", "disjoint-03", "shifted-03")
def levels_are_shuffled(patch):
    changed(patch, api, "_levels", lambda alphas: alphas[::-1])


# --- losses -----------------------------------------------------------------------------------------------------------


@bug("risk-05", "risks-03")
def losses_are_rounded_down(patch):
    patch.setattr(losses, "_rounded_up", lambda parts, scale: np.floor(parts * scale).astype(np.int64))


@bug("risk-05", "risks-03")
def losses_have_another_bound(patch):
    changed(patch, problems, "_agreed_bound", lambda bound: 2 * bound)


# --- p-values, detection, quantiles -----------------------------------------------------------------------------------


@bug("p-values-01", "p-values-08")
def p_values_are_rounded_down(patch):
    patch.setattr(pvalues, "round_up_to_float", lambda p: math.nextafter(float(p), -math.inf))


@bug("p-values-02", "detect-04")
def p_values_forget_the_new_score(patch):
    changed(patch, Demand, "p_values", lambda found: [p * Fraction(99, 100) for p in found])


@bug("detect-01", "detect-08")
def redrawing_is_forgotten(patch):
    changed(patch, detecting, "_sampled_scores", lambda used: (*used[:3], Fraction(1)))


@bug("detect-02", "detect-07")
def thinning_uses_another_seed(patch):
    right = detecting.draw_sample
    patch.setattr(detecting, "draw_sample", lambda own, here, counts, seed: right(own, here, counts, seed + 1))


@bug("quantiles-01", "quantiles-04")
def quantiles_round_the_rank_down(patch):
    patch.setattr(quantile, "quantile_rank", lambda q, n: max(1, math.floor(q * n)))


# --- scores and devices -----------------------------------------------------------------------------------------------


@bug("h-dcp-01", "r-dcp-02", "baseline-04")  # not e-dcp, whose compiled loops read outside of unsorted scores
def scores_are_not_sorted(patch):
    patch.setattr(weighted_scores, "sort_segments", lambda values, offsets: None)


@bug("form-02", "mixture-09", "overlapping-10")
def names_of_devices_are_ignored(patch):
    right = Table.ordered
    patch.setattr(Table, "ordered", lambda self, *more: right(replace(self, names=None), *more))


@bug("form-01", "sides-06", "loopback-18")
def threshold_is_the_next_float(patch):
    changed_classmethod(
        patch,
        block.Answers,
        "concatenate",
        lambda found: replace(found, thresholds=np.nextafter(found.thresholds, np.inf)),
    )


@bug("baseline-04", "draws-10", "loopback-16")
def thresholds_of_devices_are_rotated(patch):
    changed_classmethod(
        patch,
        block.Answers,
        "concatenate",
        lambda found: replace(found, thresholds=np.roll(found.thresholds, 1, axis=0)),
    )


@bug("form-01", "shifted-04", "loopback-05")
def certificate_names_another_rule(patch):
    changed(patch, block, "with_guarantee", lambda certificate: structs.replace(certificate, rule="ghost"))


@bug("values-02", "risk-03")
def certificate_names_another_mixture(patch):
    changed(patch, block, "with_guarantee", lambda certificate: structs.replace(certificate, mixture="paper"))


# --- methods, faults, cost --------------------------------------------------------------------------------------------


@bug("h-dcp-02")
def consensus_error_is_halved(patch):
    changed(patch, averaging_schemes, "h_dcp_cumulative_epsilon", lambda epsilon: epsilon / 2)


@bug("r-dcp-01", "r-dcp-03", "sides-08")
def one_byzantine_device_less(patch):
    changed(patch, RDCP, "byzantine_of", lambda f: max(f - 1, 0))


@bug("q-dcp-09", "h-dcp-10")
def faults_follow_another_seed(patch):
    right = MessageLoss.__init__
    patch.setattr(
        MessageLoss,
        "__init__",
        lambda self, network, faults: right(self, network, replace(faults, seed=faults.seed + 1)),
    )


@bug("loopback-02", "loopback-04")
def guarantee_is_lost_on_a_device(patch):
    right = methods.run_with_shared_sizes
    patch.setattr(
        methods,
        "run_with_shared_sizes",
        lambda net, row, own, run, requirement, *more: right(net, row, own, run, ranks.DEFAULT_REQUIREMENT, *more),
    )


@bug("form-01", "levels-04", "loopback-11")
def cost_is_counted_twice(patch):
    right = Ledger.enter
    patch.setattr(Ledger, "enter", lambda self, message: (right(self, message), right(self, message))[0])


@bug("mixture-01", "detect-07", "baseline-02")
def one_round_too_many(patch):
    changed(patch, Ledger, "cost", lambda cost: replace(cost, rounds=cost.rounds + 1))


@bug("values-10", "overlapping-09", "p-dcp-07")
def bits_are_counted_as_bytes(patch):
    changed(patch, Ledger, "cost", lambda cost: replace(cost, bits=cost.bits / 8))


@bug("draws-01", "draws-06")
def cost_of_draws_is_not_divided(patch):
    right = Simulator.run
    patch.setattr(Simulator, "run", lambda self, protocol, runs=1, faults=None: right(self, protocol, 1, faults))


# --- the test ---------------------------------------------------------------------------------------------------------


def notices(name):
    """Return whether a recorded call has another answer now. An error would say that the bug is badly planted."""
    call = BY_ID[name]
    exact = is_exact(call, recorded()["machine"] == machine())
    return bool(compared(recorded()["answers"][name], replay(call), call, exact))


@pytest.mark.parametrize("name", BUGS)
def test_planted_bug_is_noticed(name, monkeypatch):
    plant, calls = BUGS[name]
    assert not any(map(notices, calls)), "these calls must give the recorded answer without the bug"
    plant(monkeypatch)
    assert calls
    assert [call for call in calls if not notices(call)] == []


def main():
    """List the calls that notice each bug."""
    here = [call["id"] for call in CALLS if call.get("engine", {}).get("name") != "mpi"]
    for name in sys.argv[1:] or BUGS:
        plant = BUGS[name][0]
        with pytest.MonkeyPatch.context() as patch:
            plant(patch)
            found = []
            for call in here:
                with suppress(Exception):  # an answer that this bug makes impossible
                    found += [call] if notices(call) else []
        print(name, len(found), *found[:: max(1, len(found) // 12)], flush=True)


if __name__ == "__main__":
    main()
