"""P-DCP: a certified threshold from masked counts, of whose numbers neighbours learn only sums over all devices.

Devices add up masked numbers (`masks`) over a spanning tree, or by flooding. In stage 0 everybody adds (1, n_k): the
first total must be K, or masks did not cancel; the second is n, from which the promise follows. Then a search on a
public grid (`grids`): each stage counts at `width` thresholds between two of which the answer is known to lie. It ends
at a threshold at or below which just as many scores lie as the promise asks for, or with the first point of the grid
that has enough of them; no true score is ever told. Who tells two devices different totals is found out: masks of the
next stage do not cancel then and, at the end, neighbours compare what they heard.

With `epsilon` totals have noise, and the threshold is differentially private: adding or taking away one score changes
the chance of anything that is ever told by a factor of at most exp(epsilon). There is no stage 0, for n is not told,
and as many stages whatever the scores are (`noisy`).

Assumes     everybody follows the protocol, curious as they may be; of K devices at least `honest` keep their noise to
            themselves
Guarantees  *counted*, at the resolution of the grid; with epsilon *counted with noise*
Message     the keys of `masks`; then at most `width` + 2 numbers of 32 bits a stage, up and down the tree; 8 bytes once
Departures  none
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import pairwise
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from conformesh.promises import AUTO, Demand
from conformesh.protocols import noisy
from conformesh.protocols.aggregate import AGGREGATORS, get_aggregator
from conformesh.protocols.flood import flood_of
from conformesh.privacy.grids import GridName, check_grid, grid_points
from conformesh.protocols.masks import COMPLETE, DEGREE, KEY, LARGEST, MaskedSums, Secrets, agree_on_masks, refuse_many
from conformesh.protocols.messages import Gathering, Protocol
from conformesh.protocols.options import check_choice, option
from conformesh.protocols.predicting import Prediction, Stretch, Terrain
from conformesh.protocols.site import Outcome, Site
from conformesh.quantities import several
from conformesh.result.certificate import Certificate
from conformesh.samples import Samples
from conformesh.scores.base import Score

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
POINTS = 2**14  # of a grid that is searched without noise
COARSE = 0.005  # more scores than this part of all at or below the threshold, beyond those required, deserve a note
MOST_TOLD = 64  # totals that a result lists
SIMULATED = "none: one program simulated all devices and saw every score; only a run on a mesh protects anything"


def _ways() -> tuple[str, ...]:
    return tuple(name for name, way in AGGREGATORS.items() if way.masked is not None)


@dataclass(frozen=True)
class PDCP:
    """Options of P-DCP."""

    grid: GridName = option(AUTO, "thresholds that may be asked at; auto: logit for scores from 0 to 1, else powers")
    range: tuple[float, float] | None = option(None, "LO HI of the grid linear or powers, known without the scores")
    width: int = option(7, "thresholds a stage")
    aggregate: str = option("tree", "how masked numbers are added up", _ways)
    coalition: int = option(1, "devices that may put together all they know; more must be left to hide among")
    epsilon: float | None = option(None, "differential privacy: how much one score may change; by default none")
    honest: int | None = option(None, "devices whose noise nobody else knows; by default all but the coalition")
    stages: int | None = option(None, "stages of a search with epsilon; by default 3, for the grid powers 4")
    unit: Literal["score", "device"] = option("score", "what epsilon protects: each score, or all of a device together")
    floor: int = option(1, "the least scores that a device holds; who holds fewer takes no part")
    cap: int | None = option(None, "with unit device: the most scores that a device holds")
    budget: float | None = option(None, "epsilon that a score may spend in all runs on a mesh; by default one run's")

    def __post_init__(self) -> None:
        check_choice("grid", self.grid, (AUTO, *noisy.STAGES))
        check_choice("aggregate", self.aggregate, _ways())
        check_choice("unit", self.unit, ("score", "device"))
        check_grid(self.grid, self.range)
        if self.width < 1:
            raise ValueError(f"width must be at least 1, got {self.width}")
        if self.coalition < 0:
            raise ValueError(f"coalition must be at least 0 devices, got {self.coalition}")
        if self.floor < 0:
            raise ValueError(f"floor must be at least 0 scores, got {self.floor}")
        if self.epsilon is None:
            given = [name for name in ("honest", "stages", "cap", "budget") if getattr(self, name) is not None]
            if given or self.unit == "device":
                raise ValueError(f"{' and '.join(given or ['unit'])} is about noise: give epsilon too")
            return
        if not 0 < self.epsilon < math.inf:
            raise ValueError(f"epsilon must be above 0 and finite, got {self.epsilon}")
        if self.stages is not None and self.stages < 1:
            raise ValueError(f"stages must be at least 1, got {self.stages}")
        if self.budget is not None and self.budget < self.epsilon:
            raise ValueError(f"budget must be at least the epsilon of one run, {self.epsilon:g}, got {self.budget:g}")
        if (self.unit == "device") != (self.cap is not None):
            raise ValueError("unit 'device' needs cap, the most scores that a device holds, and no other unit has one")
        if self.cap is not None and self.cap < 1:
            raise ValueError(f"cap must be at least 1 score, got {self.cap}")

    @property
    def chosen_grid(self) -> Literal["linear", "powers", "logit"]:
        """The grid, where nobody has said what scores are like: one that has a point near any number."""
        return "powers" if self.grid == "auto" else self.grid

    def honest_of(self, devices: int) -> int:
        """Return H, of so many devices."""
        honest = devices - self.coalition if self.honest is None else self.honest
        if not 0 < honest <= devices:
            raise ValueError(f"honest must be a number from 1 to the {devices} devices, got {honest}")
        return honest


def suited(score: Score) -> dict[str, Any]:
    """Return the options that suit a score, where none were given."""
    return {"grid": "logit"} if score.bounds == (0.0, 1.0) else {}


def p_dcp(site: Site, samples: Samples, alphas: tuple[Fraction, ...], options: PDCP) -> Gathering[Outcome]:
    """Agree on masks, then search on the grid, with or without noise."""
    _check(site, samples, options)
    plan = None if options.epsilon is None else noisy.Plan.of(site.devices, site.promise, alphas, options)
    secrets = site.secrets or Secrets.simulated(site)
    masks = yield from agree_on_masks(site, secrets)
    sums = yield from MaskedSums.over(site, masks, get_aggregator(options.aggregate))
    secrets.permit(options.epsilon)
    if plan is None:
        outcome = yield from _exact(site, samples, alphas, options, sums)
    else:
        outcome = yield from _noisy(site, samples, plan, options, sums, secrets)
    yield from sums.compared()
    return outcome if site.secrets is not None else replace(outcome, facts={**outcome.facts, "privacy": SIMULATED})


def _refuse_number(devices: int, options: PDCP) -> None:
    """Refuse so few devices that one is not hidden, and more than masks are for."""
    refuse_many(devices)
    if 1 < devices < options.coalition + 2:  # alone there is nobody to hide from
        raise ValueError(
            f"p-dcp: {several(devices, 'device')} cannot hide from {several(options.coalition, 'curious device')}: "
            f"what a sum hides, others must hold; at least {options.coalition + 2} are needed"
        )


def _check(site: Site, samples: Samples, options: PDCP) -> None:
    """Refuse what would reveal a device, or has no proof."""
    promise = site.promise
    _refuse_number(site.devices, options)
    if promise.target not in ("sizes", "paper") or promise.losses or {*promise.bounds} != {1}:
        raise ValueError(
            f"p-dcp counts every score alike, for target 'sizes' or 'paper', got target {promise.target!r}; weights of "
            "devices, scores or losses would reveal them; use e-dcp"
        )
    wrong = promise.rule == "ghost" or (promise.part and options.epsilon is not None)
    if promise.target == "paper":
        wrong = promise.rule == "swap" or promise.part or promise.pac_confidence is not None
    if wrong:
        raise ValueError(
            "p-dcp keeps target 'sizes' by the swap rank, with epsilon without groups, and target 'paper' by the ghost "
            "rank, without groups and pac_confidence: all that follows from how many scores there are in all; use e-dcp"
        )
    if promise.pac_confidence is not None and options.epsilon is not None:
        raise ValueError("p-dcp has no proof for pac_confidence with epsilon; leave one of them out")
    if len(site.alphas) > 1 and options.epsilon is not None:
        raise ValueError(
            f"p-dcp spends epsilon on every level, got {len(site.alphas)} levels; calibrate one at a time, and "
            "share it out among them"
        )
    most = LARGEST // (2 * site.devices) if options.cap is None else options.cap
    least = 0 if options.epsilon is None else options.floor
    for place, held in enumerate(samples.sizes.tolist()):
        if not least <= min(held) <= max(held) <= most:
            raise ValueError(
                f"device {site.network.ids[site.here[place]]} holds fewer or more scores than the {least} to {most:,} "
                "that p-dcp takes here; change floor or cap, or leave it out"  # everybody hears this
            )


# --- without noise ----------------------------------------------------------------------------------------------------


def _exact(
    site: Site, samples: Samples, alphas: tuple[Fraction, ...], options: PDCP, sums: MaskedSums
) -> Protocol[Outcome]:
    """Count on the grid until the threshold is known."""
    n = yield from sums(samples.sizes)
    demands = [_demand(site, int(total), alphas) for total in n]
    ranks = np.array(
        [
            [demand.required(site.promise, alpha, t, level, int(n[t]), 0) for level, alpha in enumerate(alphas)]
            for t, demand in enumerate(demands)
        ]
    )
    search = _Search(grid_points(options.chosen_grid, POINTS, options.range), ranks.ravel(), np.repeat(n, len(alphas)))
    trial_of = np.repeat(np.arange(site.trials), len(alphas))
    while len(which := search.open):
        places = search.pivots(which, options.width)
        counts = samples.counts_of(trial_of[which], search.grid[places - 1])  # (devices here, width, problems)
        totals = yield from sums(counts.reshape(len(counts), -1))
        search.narrow(which, places, totals.reshape(counts.shape[1:]).T)
    certificates = [
        Certificate(
            "counted",
            int(rank),
            int(search.counted[at]),
            target=site.promise.target,
            rule=demands[at // len(alphas)].rule,
            pac_confidence=None if site.promise.pac_confidence is None else float(site.promise.pac_confidence),
        )
        for at, rank in enumerate(ranks.ravel().tolist())
    ]
    coarse = (search.counted - ranks.ravel() > np.maximum(COARSE * search.n, 1)) & np.isfinite(search.thresholds)
    return Outcome(
        _everywhere(site, search.thresholds.reshape(ranks.shape)),
        _rows(certificates, len(alphas)),
        notes=(_coarse(search, int(np.argmax(coarse))),) if coarse.any() else (),
        facts={**_facts(options, len(search.grid)), **search.revealed()},
        sizes=n[None],
    )


def _demand(site: Site, n: int, alphas: tuple[Fraction, ...]) -> Demand:
    """Return what the promise asks where only n and K are known: for these targets nothing else matters."""
    rule = "swap" if site.promise.target == "sizes" else "ghost"
    one = np.array([n, *[0] * (site.devices - 1)])  # as if one device held them all; the others have no say, or a ghost
    return replace(site.promise, rule=rule).demand(one, alphas)


class _Search:
    """Brackets on the grid, one for each problem: `low` has too few scores, `high` enough; the last place is +inf."""

    def __init__(self, grid: Floats, ranks: Ints, n: Ints) -> None:
        self.grid, self.ranks, self.n = grid, ranks, n
        self.low, self.below = np.zeros_like(n), np.zeros_like(n)
        self.high, self.counted = np.full_like(n, len(grid) + 1), n.copy()
        self.low[ranks > n] = len(grid)  # only +inf will do
        self.told: dict[int, int] = {}

    @property
    def open(self) -> Ints:
        """Problems whose answer is not known yet."""
        exact = (self.counted == self.ranks) & (self.high <= len(self.grid))  # +inf only where no point will do
        return np.flatnonzero((self.high - self.low > 1) & ~exact)

    def pivots(self, which: Ints, width: int) -> Ints:
        """Return at which places to count next, (problems, width or fewer), ascending."""
        gap = self.high[which] - self.low[which]
        many = min(width, int(gap.max()) - 1)
        steps = (gap[:, None] * np.arange(1, many + 1) + many) // (many + 1)
        return np.asarray(self.low[which, None] + np.minimum(steps, gap[:, None] - 1))

    def narrow(self, which: Ints, places: Ints, totals: Ints) -> None:
        """Take in how many scores lie at or below these places."""
        for at, place, total in zip(which.tolist(), places.tolist(), totals.tolist(), strict=True):
            known = [self.below[at], *total, self.counted[at]]
            if any(a > b for a, b in pairwise(known)):
                raise ArithmeticError(
                    f"p-dcp: totals {total} at ascending thresholds do not ascend: somebody has changed a sum; no "
                    "threshold can be certified from it"
                )
            for one, count in zip(place, total, strict=True):
                self.told[one] = count
                if count >= self.ranks[at]:
                    self.high[at], self.counted[at] = one, count
                    break
                self.low[at], self.below[at] = one, count

    @property
    def thresholds(self) -> Floats:
        """The answers."""
        return np.asarray(np.append(self.grid, math.inf)[self.high - 1])

    def revealed(self) -> dict[str, str]:
        """Return what everybody has learnt, for the record; of several problems only how much."""
        if len(self.n) > 1 or len(self.told) > MOST_TOLD:
            return {"revealed": "how many scores there are in all and at or below asked thresholds, and thresholds"}
        totals = ", ".join(f"{self.grid[place - 1]:.6g}: {count}" for place, count in sorted(self.told.items()))
        words = f"{self.n[0]:,} scores in all, totals at {several(len(self.told), 'threshold')}, and the threshold"
        return {"revealed": words, "revealed_totals": totals}


def _coarse(search: _Search, at: int) -> str:
    return (
        f"p-dcp: {search.counted[at] - search.ranks[at]} scores more than required lie at or below the threshold, "
        "where they are equal or the grid is coarse; name the score, or give a grid and its range"
    )


def _noisy(
    site: Site, samples: Samples, plan: noisy.Plan, options: PDCP, sums: MaskedSums, secrets: Secrets
) -> Protocol[Outcome]:
    """Search with noise; what it costs was worked out in floats, and is compared with the totals."""
    sums.note(repr([str(cost.value) for cost in plan.costs]).encode())
    answers, told = yield from noisy.search(samples, plan, sums, secrets)
    rule = "swap" if site.promise.target == "sizes" else "ghost"
    certificates = [
        Certificate(
            "counted with noise",
            target=site.promise.target,
            rule=rule,
            noise=plan.noise(site.devices, level, options, simulated=site.secrets is None),
        )
        for _ in range(site.trials)
        for level in range(len(plan.alphas))
    ]
    facts = {**_facts(options, len(plan.grid)), "inflation": plan.costs[0].how}
    if len(certificates) == 1:
        facts |= {"revealed": "noisy counts, and the threshold", "revealed_cells": str(told)}
    notes = _dear(plan, sum(told[0]))
    return Outcome(_everywhere(site, answers), _rows(certificates, len(plan.alphas)), notes=notes, facts=facts)


def _dear(plan: noisy.Plan, whole: int) -> tuple[str, ...]:
    """Say where noise takes most of what may be missed, by the noisy number of all scores, which everybody knows."""
    alpha, cost = plan.alphas[0], plan.slack[0] + plan.costs[0].value
    if 2 * cost <= alpha * whole:
        return ()
    return (
        f"p-dcp: noise asks for {float(cost):.3g} scores more where {float(alpha * max(whole, 0)):.3g} of about "
        f"{max(whole, 0):,} may be missed, so that sets are much larger than they had to be; use more scores, a larger "
        "epsilon or alpha, or fewer stages on a grid whose range you know",
    )


# --- pieces -----------------------------------------------------------------------------------------------------------


def _everywhere(site: Site, thresholds: Floats) -> Floats:
    return np.broadcast_to(thresholds, (len(site.here), *thresholds.shape)).copy()


def _rows(certificates: list[Certificate], levels: int) -> list[list[Certificate]]:
    return [certificates[at : at + levels] for at in range(0, len(certificates), levels)]


def _facts(options: PDCP, points: int) -> dict[str, str]:
    return {"grid": options.chosen_grid, "points": str(points)}


# --- what it would send -----------------------------------------------------------------------------------------------


def predict_p_dcp(terrain: Terrain, alpha: Fraction, options: PDCP) -> Prediction:
    """Predict `p_dcp`: without noise a search may end early, with noise it never does."""
    K, way = terrain.devices, get_aggregator(options.aggregate)
    _refuse_number(K, options)
    keys = np.full(K, KEY)
    before = [flood_of(terrain, "keys", keys // 8, keys), *way.sent_before(terrain)]  # in a simulation nobody signs

    def stage(what: str, numbers: int) -> list[Stretch]:
        return way.sent_for(terrain, what, numbers + 1, LARGEST)

    last = Stretch("compare totals", 1, 1, 64)
    shared = (K - 1 if K <= COMPLETE else DEGREE) * K / 2
    work = shared * 110_000.0  # nanoseconds of a secret
    if options.epsilon is not None:
        plan = noisy.Plan.of(K, terrain.promise, (alpha,), options)
        sums = [part for _ in range(plan.stages) for part in stage("sum noisy cells", plan.cells)]
        return Prediction((*before, *sums, last), "counted with noise", uses=way.uses, nanoseconds=work)
    width = options.width
    most = math.ceil(math.log(POINTS + 1, width + 1))
    usual = math.log(max(terrain.n, 2), width + 1)  # until as few scores as one are between two thresholds
    first = stage("count devices and scores", 1)
    counts = stage("count at thresholds", width)
    few = [replace(part.times(min(usual, most)), expected=True) for part in counts]
    return Prediction(
        (*before, *first, *few, last),
        "counted",
        uses=way.uses,
        varies=True,
        most=(*before, *first, *[part for _ in range(most) for part in counts], last),
        notes=(f"thresholds are rounded up to one of {POINTS:,} points",),
        nanoseconds=work,
    )
