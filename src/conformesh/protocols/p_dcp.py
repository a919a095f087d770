"""P-DCP: a certified threshold from masked counts. Devices learn sums over all devices, nothing about single devices.

Without `epsilon` devices search on a public grid by exact masked sums (`masks`). In stage 0 they add up (1, n_k): the
first total must be K, or masks did not cancel; the second is n, from which the required rank follows. Each further
stage counts at `width` thresholds between two that are known to enclose the answer. The search ends at a threshold with
exactly the required rank, or with the first grid point that reaches it. No true score is ever sent.

A window (`Block.window`) has the first grid point that reaches each of some 16 ranks, with the exact count there: the
window of scores that were rounded up to the grid. Ranks share the thresholds that are asked for, as long as their
brackets are the same.

With `epsilon` there is one *release*: a noisy histogram over public cells, from which the thresholds of all levels
follow (`privacy.histogram`). The steps of an attempt:

1. Every device floods its key and the claim of its account. From all claims everybody computes the same epoch to
   release, or the same refusal.
2. Every device counts its scores of this epoch, adds its share of the noise, and the masked numbers are added up.
   Nothing is readable yet: if a device is lost before the reveal, the others start again, and nothing was spent.
3. Every device charges its account, then reveals its self-mask. Now the noisy totals are public.
4. Neighbours compare what they received.

What is sent with `epsilon`, its length and its order are the same for all scores; no error or note depends on scores,
except through the public release.

Assumes     devices follow the protocol but are curious; at least `honest` of K devices keep their noise secret
Guarantees  *counted*, at the resolution of the grid; with epsilon *counted with noise*
Message     the keys of `masks`; then 32-bit numbers up and down the tree: `width` + 2 a stage, for 16 ranks in all
            stages some 140, or with epsilon twice as many as there are cells and one; 8 bytes once
Departures  not from a paper; the masks are those of [Bonawitz2017] without secret sharing (`masks`)
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import pairwise
from typing import Any, Literal

import msgspec
import numpy as np

from conformesh.common.array_types import Floats, Ints
from conformesh.common.quantities import pluralize
from conformesh.kernels.ranks import AUTO, GIVEN, Demand, Requirement
from conformesh.kernels.weighted_scores import WeightedScores
from conformesh.privacy.grids import GridName, check_grid, grid_points
from conformesh.privacy.histogram import HistogramPlan, Mixture, NoisyThreshold, Release, choose_cells
from conformesh.protocols.aggregate import AGGREGATORS, get_aggregator
from conformesh.protocols.block import Answers, Block
from conformesh.protocols.masks import LARGEST_MASKED_SUM, MaskedSums, Secrets, agree_on_masks, refuse_too_many_devices
from conformesh.protocols.messages import GatheringProtocol, Protocol
from conformesh.protocols.options import check_option_choice, option
from conformesh.protocols.score_windows import WindowAim, window_aims
from conformesh.results.certificate import Certificate, Noise
from conformesh.results.window import Window
from conformesh.scores.base import Score

# Points of the grid that is searched without noise. The number of stages grows with their logarithm, so a fine grid is
# cheap; on the logit grid 2^14 points lie less than 0.1 % apart.
GRID_POINTS = 2**14
# A note is due if more than this share of all scores lies at or below the threshold beyond the required ones: coverage
# is higher than asked for by as much.
_COARSE_EXCESS = 0.005
_MOST_LISTED_TOTALS = 64  # totals that a result lists; of more it says only how many
# A note is due if this share of the noisy scores lies in the cell that ends at the threshold: coverage may be as much
# higher.
_WIDE_CELL = 0.1
# A note is due if noise takes more than one part in this many of the scores that may be missed.
_DEAR_NOISE = 2
_SIMULATED_NOTE = "none: one program simulated all devices and saw every score; only a run on a mesh protects anything"
_NOISE_OPTIONS = ("honest", "cells", "cap", "fill", "epoch_seconds")  # options that mean nothing without epsilon


_PROBABILITIES = (0.0, 1.0)  # bounds of scores that are probabilities


def _masked_aggregators() -> tuple[str, ...]:
    return tuple(name for name, way in AGGREGATORS.items() if way.masked)


@dataclass(frozen=True)
class PDCP:
    """Options of P-DCP."""

    grid: GridName = option(AUTO, "public thresholds; auto: logit for scores from 0 to 1, else powers")
    range: tuple[float, float] | None = option(None, "LO HI of the grid linear or powers, known without the scores")
    epsilon: float | None = option(None, "differential privacy: how much one score may change; by default no noise")
    cells: int | None = option(None, "cells of the histogram with epsilon; by default by expected scores and epsilon")
    expected_scores: int = option(100, "scores that a device is expected to hold, to choose cells and fill")
    width: int = option(7, "thresholds a stage, without epsilon")
    aggregate: str = option("tree", "how masked numbers are added up", _masked_aggregators)
    coalition: int = option(1, "devices that may share all they know; the others must be two or more")
    honest: int | None = option(None, "devices that keep their noise secret; by default all but the coalition")
    unit: Literal["score", "device"] = option("score", "what epsilon protects: each score, or a device with all scores")
    cap: int | None = option(None, "with unit device: the most scores of a device that count; a device weighs by these")
    fill: int | None = option(
        None, "targets equal and given: scores that a device counts for; default half of expected"
    )
    window: int = option(1, "epochs whose releases are added up, on a mesh")
    releases: int = option(1, "how often an epoch may be released, on a mesh; each release costs epsilon")
    epoch_seconds: int | None = option(None, "length of an epoch by the clock; by default the operator declares epochs")

    def __post_init__(self) -> None:
        check_option_choice("grid", self.grid, (AUTO, "logit", "linear", "powers"))
        check_option_choice("aggregate", self.aggregate, _masked_aggregators())
        check_option_choice("unit", self.unit, ("score", "device"))
        check_grid(self.grid, self.range)
        for name in ("expected_scores", "width", "window", "releases", *_NOISE_OPTIONS):
            if (value := getattr(self, name)) is not None and value < 1:
                raise ValueError(f"{name} must be at least 1, got {value}")
        if self.coalition < 0:
            raise ValueError(f"coalition must be at least 0 devices, got {self.coalition}")
        if self.epsilon is None:
            given = [name for name in _NOISE_OPTIONS if getattr(self, name) is not None]
            given += [name for name in ("unit", "window", "releases") if getattr(self, name) not in ("score", 1)]
            if given:
                raise ValueError(f"{' and '.join(given)} is about noise: give epsilon too")
        elif not 0 < self.epsilon < math.inf:
            raise ValueError(f"epsilon must be above 0 and finite, got {self.epsilon}")

    @property
    def chosen_grid(self) -> Literal["linear", "powers", "logit"]:
        """The grid; where the score is unknown, `powers`, which has points near any number."""
        return "powers" if self.grid == "auto" else self.grid

    def honest_of(self, devices: int) -> int:
        """Return H. The coalition knows its own noise, so the H honest devices must be others."""
        most = devices - self.coalition
        honest = most if self.honest is None else self.honest
        if not 0 < honest <= most:
            raise ValueError(
                f"{devices} devices without a coalition of {self.coalition} leave {max(most, 0)} that can keep their "
                f"noise secret, and honest asks for {honest}; use a smaller honest or coalition, or more devices"
            )
        return honest

    def fill_of(self, mixture: Mixture) -> int | None:
        """Return f, by default half of the expected scores: padding a device costs more than a small f."""
        if mixture == "sizes" or self.fill is not None:
            return self.fill
        return max(self.expected_scores // 2, 1)

    def chosen_cells(self, devices: int, mixture: Mixture = "sizes") -> int:
        """Return the number of cells, from public numbers alone.

        The rule is for n scores with noise of epsilon each. Items of *equal* and *given* have noise for two changes of
        each, a device counts at most `cap`, and a window of m epochs has m times the scores and sqrt(m) times as much
        noise.
        """
        assert self.epsilon is not None
        if self.cells is not None:
            return self.cells
        fill, whole = self.fill_of(mixture), self.unit == "device"
        if mixture == "sizes" or fill is None:
            held = min(self.expected_scores, self.cap or self.expected_scores)
            change = (self.cap or 1) if whole else 1
        else:
            held, change = fill, 2 * (fill if whole else 1)
        return choose_cells(devices * held * self.window, self.epsilon / change / math.sqrt(self.window))

    def plan(self, devices: int, requirement: Requirement, ids: Sequence[str] | None = None) -> HistogramPlan:
        """Return the public parameters of a release with epsilon, or refuse what cannot be had."""
        assert self.epsilon is not None
        mixture = _mixture(requirement)
        shares = None
        if requirement.shares is not None:
            given = [requirement.shares[name] for name in ids or requirement.shares]
            shares = tuple(Fraction(share) / sum(given) for share in given)
        return HistogramPlan(
            grid=self.chosen_grid,
            cells=self.chosen_cells(devices, mixture),
            epsilon=self.epsilon,
            devices=devices,
            honest=self.honest_of(devices),
            range=self.range,
            unit=self.unit,
            cap=self.cap,
            mixture=mixture,
            fill=self.fill_of(mixture),
            shares=shares,
        )


def _mixture(requirement: Requirement) -> Mixture:
    if requirement.mixture == "equal":
        return "equal"
    return "given" if requirement.mixture == GIVEN else "sizes"


def p_dcp_options_for(score: Score) -> dict[str, Any]:
    """Return the options that suit a score: a logit grid for scores that are probabilities."""
    return {"grid": "logit"} if score.bounds == _PROBABILITIES else {}


def grid_for_scores(options: PDCP, bounds: tuple[float, float]) -> PDCP:
    """Return the options with the grid that suits scores between these bounds, where none was chosen."""
    return replace(options, grid="logit") if options.grid == AUTO and bounds == _PROBABILITIES else options


def p_dcp(
    block: Block, samples: WeightedScores, alphas: tuple[Fraction, ...], options: PDCP
) -> GatheringProtocol[Answers]:
    """Agree on masks, then search by exact counts, or release one noisy histogram."""
    _check_device_count(block.devices, options)  # before anything is done for each device
    if options.epsilon is None:
        check_exact_sums(block, samples.sizes, "scores")
        sums = yield from begin_exact_sums(block, options, _scores_digest(samples))
        return (yield from search_by_exact_sums(block, samples, alphas, options, sums))
    check_requirement(block.requirement, options)
    secrets = block.secrets or Secrets.simulated(block)
    return _with_simulated_note(block, (yield from _release_histogram(block, samples, alphas, options, secrets)))


def _with_simulated_note(block: Block, outcome: Answers) -> Answers:
    if block.secrets is not None:
        return outcome
    return replace(outcome, facts={**outcome.facts, "privacy": _SIMULATED_NOTE})


def _check_device_count(devices: int, options: PDCP) -> None:
    """Raise `ValueError` for too few devices to hide one, and for more than masks support."""
    refuse_too_many_devices(devices)
    if 1 < devices < options.coalition + 2:  # a single device has nobody to hide from
        raise ValueError(
            f"p-dcp: {pluralize(devices, 'device')} cannot hide from {pluralize(options.coalition, 'curious device')}: "
            f"a sum hides a device only among others; at least {options.coalition + 2} devices are needed"
        )


def check_requirement(requirement: Requirement, options: PDCP) -> None:
    """Raise `ValueError` for a requirement that would reveal single devices, or that has no proof."""
    noisy = options.epsilon is not None
    refusals = [
        (
            requirement.loss_unit > 0 or {*requirement.largest_weights} != {1},
            "weights of scores and losses: one score would change a sum by its weight, which the masked counts of "
            "p-dcp do not bound; use e-dcp",
        ),
        (
            not noisy and requirement.mixture not in ("sizes", "paper"),
            f"mixture {requirement.mixture!r} by exact sums: it needs a weight for each device, which would reveal how "
            "many scores it holds; use mixture 'sizes', epsilon, or e-dcp",
        ),
        (
            noisy and requirement.mixture == "paper",
            "mixture 'paper' with epsilon: the proof for noisy counts exchanges one score, and the ghost rank imagines "
            "one for each device; use mixture 'sizes'",
        ),
        (
            requirement.rank_rule == "ghost" and requirement.mixture != "paper",
            f"the ghost rank with mixture {requirement.mixture!r}: it is proven for mixture 'paper' only; use "
            "rank_rule 'swap'",
        ),
        (
            requirement.mixture == "paper" and requirement.rank_rule == "swap",
            "the swap rank with mixture 'paper': it needs how many scores each device holds; use mixture 'sizes'",
        ),
        (
            requirement.mixture == "paper" and requirement.hides_example,
            "mixture 'paper' with adapted scores: it needs a weight for each device, which would reveal how many rows "
            "it holds; use mixture 'sizes', or e-dcp",
        ),
        (
            requirement.mixture == "paper" and (requirement.is_weighted or requirement.pac_confidence is not None),
            "mixture 'paper' with groups or pac_confidence: the ghost rank is proven for all scores, on average; use "
            "mixture 'sizes'",
        ),
        (
            noisy and requirement.is_weighted and requirement.mixture != "sizes",
            f"groups with mixture {requirement.mixture!r} and epsilon: how many scores of a group a device holds is "
            "itself random, so no fixed number of items represents it; use mixture 'sizes'",
        ),
        (
            noisy and requirement.is_weighted and options.unit == "device",
            "groups with unit 'device': a device may have scores in every group, so that its losses add up; use unit "
            "'score'",
        ),
        (
            noisy and requirement.pac_confidence is not None,
            "pac_confidence with epsilon: the proof bounds the mean over the noise, not its tail; leave one of them "
            "out",
        ),
    ]
    for refused, words in refusals:
        if refused:
            raise ValueError(f"p-dcp does not support {words}")


# --- with noise -------------------------------------------------------------------------------------------------------


def _release_histogram(
    block: Block, samples: WeightedScores, alphas: tuple[Fraction, ...], options: PDCP, secrets: Secrets
) -> GatheringProtocol[Answers]:
    """Release one noisy histogram for each trial (a group, or a draw of a simulation), and read all levels off it."""
    plan = options.plan(block.devices, block.requirement, block.network.ids)
    plan.check_devices(alphas)
    account = secrets.account
    masks, claims = yield from agree_on_masks(block, secrets, b"" if account is None else account.claim())
    epoch, past = (1, ()) if account is None else account.settle(claims, options.coalition)
    own = samples if secrets.scores_of is None else secrets.scores_of(epoch)
    counts = _local_counts(plan, block, own, secrets)
    # Counted and drawn before the next message: from then on messages are sent without work that depends on scores, so
    # their timing tells nothing.
    noise = np.array([_draw_noise(plan, own.trials, stream) for stream in secrets.streams(b"noise")])
    sums = yield from MaskedSums.over(block, masks, get_aggregator(options.aggregate))

    def charge() -> None:
        if account is not None:
            account.charge(epoch, block.network.ids, secrets.context)

    totals = yield from sums.release(counts, noise, charge)
    # Bounds within a last bit of a whole number might be rounded differently on another machine.
    sums.note(repr([plan.inflation(alpha) for alpha in alphas]).encode())
    yield from sums.compared()
    members = hashlib.sha256("\n".join(block.network.ids).encode()).hexdigest()[:16]
    releases = [plan.release(row, (epoch,), members) for row in totals.reshape(own.trials, plan.numbers)]
    if account is not None:
        account.store(epoch, releases[0])
    windows = [_sum_window(release, past) for release in releases]
    answers = [[window.answer(alpha) for alpha in alphas] for window in windows]
    certificates = [
        [_noisy_certificate(block, plan, options, window, answer) for answer in row]
        for window, row in zip(windows, answers, strict=True)
    ]
    facts: dict[str, Any] = {
        "grid": plan.grid,
        "cells": plan.cells,
        "revealed": "noisy counts of all scores in public cells, and the thresholds that follow from them",
    }
    if plan.fill is not None:
        facts["fill"] = plan.fill
    each = [{"release": msgspec.json.decode(msgspec.json.encode(window))} for window in windows]
    if len(each) == 1:
        facts |= each[0]
    return Answers(
        _on_every_device(block, np.array([[answer.threshold for answer in row] for row in answers])),
        certificates,
        notes=_noise_notes(windows, answers, alphas) if len(windows) == 1 or block.requirement.is_weighted else (),
        facts=facts,
        trial_facts=each if block.requirement.is_weighted else [],  # many draws of a simulation are not for the record
    )


def _local_counts(plan: HistogramPlan, block: Block, samples: WeightedScores, secrets: Secrets) -> Ints:
    """Return the counts of each local device, (devices, trials * numbers)."""
    table = np.empty((len(block.rows), samples.trials, plan.numbers), dtype=np.int64)
    for place, (row, stream) in enumerate(zip(block.rows.tolist(), secrets.streams(b"order"), strict=True)):
        for trial in range(samples.trials):
            table[place, trial] = plan.count(samples.segment(place, trial), row, stream)
    return table.reshape(len(table), -1)


def _draw_noise(plan: HistogramPlan, trials: int, stream: Any) -> Ints:
    """Return a device's shares of noise for all trials, (trials * numbers,); for one trial those of `draw_noise`."""
    cells, number = plan.noise
    parts = [] if number is None else [number.draw(stream, trials)[:, None]]
    parts.append(cells.draw(stream, trials * (plan.cells - 1)).reshape(trials, plan.cells - 1))
    return np.concatenate(parts, axis=1).ravel()


def _sum_window(release: Release, past: Sequence[Release]) -> Release:
    """Return the sum of a release and those earlier ones that have the same public plan."""
    alike = []
    for earlier in past:
        with suppress(ValueError):  # another grid, epsilon or mixture, which was public when it was released
            Release.summed([earlier, release])
            alike.append(earlier)
    return Release.summed([*alike, release])


def _noisy_certificate(
    block: Block, plan: HistogramPlan, options: PDCP, window: Release, answer: NoisyThreshold
) -> Certificate:
    epochs = tuple(sorted({*window.epochs}))
    assumption = ""
    if len(epochs) > 1:
        assumption = f"the scores of epochs {', '.join(map(str, epochs))} are exchangeable with new ones"
    assert options.epsilon is not None
    noise = Noise(
        epsilon=options.epsilon,
        unit=plan.unit,
        honest=plan.honest,
        devices=plan.devices,
        cells=plan.cells,
        inflation=float(answer.inflation.value / plan.slack),  # in scores: items are copies of them
        spread=answer.spread,
        epochs=epochs,
        cap=plan.cap,
        simulated=block.secrets is None,
    )
    return Certificate(
        "counted with noise", mixture=block.requirement.mixture, rule="swap", assumption=assumption, noise=noise
    )


def _noise_notes(
    windows: list[Release], answers: list[list[NoisyThreshold]], alphas: tuple[Fraction, ...]
) -> tuple[str, ...]:
    """Return notes on levels at which noise costs too much. They depend on the public release alone."""
    hardest = min(range(len(alphas)), key=alphas.__getitem__)
    instead = "use more scores, a larger epsilon or alpha, or fewer cells"
    endless = [window for window, row in zip(windows, answers, strict=True) if row[hardest].threshold == math.inf]
    if endless:
        groups = f" for {len(endless)} of {pluralize(len(windows), 'group')}" if len(windows) > 1 else ""
        scores = max(endless[0].number, 0) // endless[0].slack
        return (
            f"p-dcp: at alpha {float(alphas[hardest]):g} the threshold is +inf{groups}, and prediction sets hold all "
            f"labels: about {scores:,} scores are too few for this noise, or too many of them lie above the grid; "
            f"{instead}, or a grid with a range that holds the scores",
        )
    if len(windows) > 1:
        return ()
    release, answer = windows[0], answers[0][hardest]
    cost, missed = release.slack + answer.inflation.value, alphas[hardest] * release.number
    if _DEAR_NOISE * cost <= missed:
        return _wide_cell_note(release, answer)
    return (
        f"p-dcp: noise costs {float(cost / release.slack):.3g} scores where {float(missed / release.slack):.3g} of "
        f"about {release.number // release.slack:,} may be missed, so prediction sets are much larger than without "
        f"noise; {instead}",
    )


def _wide_cell_note(release: Release, answer: NoisyThreshold) -> tuple[str, ...]:
    """Return a note if the grid is too coarse for the scores, from the public release alone."""
    below = int(np.searchsorted(release.pivots, answer.threshold))  # pivots below the threshold
    held = release.totals[1 - release.cells :][below - 1] if below else 0
    if held <= _WIDE_CELL * release.number:
        return ()
    return (
        f"p-dcp: about {held / release.number:.0%} of the scores lie between the threshold {answer.threshold:.6g} and "
        f"the grid point below it, and coverage may be as much higher; name the score, or give a grid and its range",
    )


# --- without noise ----------------------------------------------------------------------------------------------------


def begin_exact_sums(block: Block, options: PDCP, digest: str) -> GatheringProtocol[MaskedSums]:
    """Agree on masks and charge the account, before the first exact sum of a run.

    `digest` is of what the local device adds up: two exact sums over changed data tell the change.
    """
    _check_device_count(block.devices, options)
    check_requirement(block.requirement, options)
    secrets = block.secrets or Secrets.simulated(block)
    masks, _ = yield from agree_on_masks(block, secrets)
    sums = yield from MaskedSums.over(block, masks, get_aggregator(options.aggregate))
    if secrets.account is not None:
        secrets.account.charge_exact(block.network.ids, digest, options.coalition + 2)
    return sums


def search_by_exact_sums(
    block: Block, samples: WeightedScores, alphas: tuple[Fraction, ...], options: PDCP, sums: MaskedSums
) -> Protocol[Answers]:
    """Search the grid by exact masked sums, which may have added up other numbers before."""
    outcome = yield from _search_grid(block, samples, alphas, options, sums)
    yield from sums.compared()
    return _with_simulated_note(block, outcome)


def check_exact_sums(block: Block, numbers: Ints, what: str) -> None:
    """Refuse numbers of a local device, (devices, numbers), with which a sum over all devices may be too large."""
    # Sums of all devices must stay below 2^31, with a factor of 2 to spare as for noisy counts.
    most = LARGEST_MASKED_SUM // (2 * block.devices)
    for place, own in enumerate(numbers.tolist()):
        if max(own, default=0) > most:
            raise ValueError(
                f"device {block.network.ids[block.rows[place]]} holds more than {most:,} {what}, the most that p-dcp "
                f"adds up on {pluralize(block.devices, 'device')}; use fewer"
            )


def _scores_digest(samples: WeightedScores) -> str:
    """Return a digest of the local scores for the account: two exact sums over changed scores tell the change."""
    return hashlib.sha256(samples.offsets.tobytes() + samples.values.tobytes()).hexdigest()


def _search_grid(
    block: Block, samples: WeightedScores, alphas: tuple[Fraction, ...], options: PDCP, sums: MaskedSums
) -> Protocol[Answers]:
    """Count on the grid until the threshold is known, and the window where one was asked for."""
    n = yield from sums(samples.sizes)
    demands = [_rank_demand(block, int(total), alphas) for total in n]
    ranks = np.array(
        [
            [demand.required(block.requirement, alpha, t, level, int(n[t]), 0) for level, alpha in enumerate(alphas)]
            for t, demand in enumerate(demands)
        ]
    )
    wanted = [[rank] for rank in ranks.ravel().tolist()]
    if block.window is not None:
        aims = window_aims(block.window, ranks, n, n)
        wanted = [[aim.rank, *_window_ranks(aim)] for aim in aims]
    first = np.cumsum([0, *map(len, wanted)])
    trial_of = np.repeat(np.repeat(np.arange(block.trials), len(alphas)), np.diff(first))
    search = _GridSearch(
        grid_points(options.chosen_grid, GRID_POINTS, options.range),
        np.concatenate(wanted).astype(np.int64),
        n[trial_of],
        is_smallest=block.window is not None,
    )
    while len(which := search.open):
        places = search.pivots(which, options.width)
        # Problems of one trial ask for the same places as long as their brackets are the same.
        asked, where = np.unique(trial_of[which, None] * len(search.grid) + places - 1, return_inverse=True)
        trials, points = np.divmod(asked, len(search.grid))
        counts = samples.counts_of(trials, search.grid[points][:, None])  # (devices here, 1, places)
        totals = yield from sums(counts.reshape(len(counts), -1))
        search.narrow(which, places, totals[where].reshape(places.shape))
    answers = first[:-1]  # the problem of each threshold; the others are of its window
    certificates = [
        Certificate(
            "counted",
            int(rank),
            int(search.counted[answers[at]]),
            mixture=block.requirement.mixture,
            rule=demands[at // len(alphas)].rule,
            pac_confidence=None
            if block.requirement.pac_confidence is None
            else float(block.requirement.pac_confidence),
        )
        for at, rank in enumerate(ranks.ravel().tolist())
    ]
    excess = (search.counted - search.ranks)[answers]
    coarse = (excess > np.maximum(_COARSE_EXCESS * search.n[answers], 1)) & np.isfinite(search.thresholds[answers])
    windows = None
    if block.window is not None:
        each = [search.window(slice(*ends)) for ends in pairwise(first.tolist())]
        windows = [each[at : at + len(alphas)] for at in range(0, len(each), len(alphas))]
    return Answers(
        _on_every_device(block, search.thresholds[answers].reshape(ranks.shape)),
        _by_trial(certificates, len(alphas)),
        notes=(_coarse_note(int(excess[np.argmax(coarse)])),) if coarse.any() else (),
        facts={"grid": options.chosen_grid, "points": str(len(search.grid)), **search.revealed()},
        windows=windows,
        sizes=n[None],
    )


def _window_ranks(aim: WindowAim) -> list[int]:
    """Return the ranks of a window; none where no score has the required rank."""
    return [*range(max(aim.bottom, 1), aim.top + 1)] if 0 < aim.rank <= aim.total else []


def _rank_demand(block: Block, n: int, alphas: tuple[Fraction, ...]) -> Demand:
    """Return the required ranks where only n and K are known; for mixtures sizes and paper they suffice."""
    rule = "swap" if block.requirement.mixture == "sizes" else "ghost"
    # As if one device held all scores: the rank depends on the sum of the sizes and on K only.
    one = np.array([n, *[0] * (block.devices - 1)])
    return replace(block.requirement, rank_rule=rule).demand(one, alphas)


class _GridSearch:
    """Brackets on the grid, one for each problem: too few scores at `low`, enough at `high`; the last place is +inf."""

    def __init__(self, grid: Floats, ranks: Ints, n: Ints, is_smallest: bool = False) -> None:
        self.grid, self.ranks, self.n = grid, ranks, n
        self.is_smallest = is_smallest  # whether the first place that reaches a rank is needed, or any with that count
        self.low, self.below = np.zeros_like(n), np.zeros_like(n)
        self.high, self.counted = np.full_like(n, len(grid) + 1), n.copy()
        self.low[ranks > n] = len(grid)  # only +inf will do
        self.told: dict[int, int] = {}

    @property
    def open(self) -> Ints:
        """Problems whose answer is not known yet."""
        # A count that equals the rank cannot be improved, except at +inf: a finite point may have it too.
        exact = (self.counted == self.ranks) & (self.high <= len(self.grid)) & (not self.is_smallest)
        return np.flatnonzero((self.high - self.low > 1) & ~exact)

    def pivots(self, which: Ints, width: int) -> Ints:
        """Return the places to count at next, (problems, width or fewer), ascending, evenly inside each bracket."""
        gap = self.high[which] - self.low[which]
        many = min(width, int(gap.max()) - 1)
        steps = (gap[:, None] * np.arange(1, many + 1) + many) // (many + 1)
        return np.asarray(self.low[which, None] + np.minimum(steps, gap[:, None] - 1))

    def narrow(self, which: Ints, places: Ints, totals: Ints) -> None:
        """Shrink brackets by the totals at these places."""
        for at, place, total in zip(which.tolist(), places.tolist(), totals.tolist(), strict=True):
            known = [self.below[at], *total, self.counted[at]]
            if any(a > b for a, b in pairwise(known)):
                raise ArithmeticError(
                    f"p-dcp: totals {total} at ascending thresholds do not ascend: a sum was changed on the way; no "
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
        """The threshold of every problem."""
        return np.asarray(np.append(self.grid, math.inf)[self.high - 1])

    def window(self, which: slice) -> Window:
        """Return the window that some problems of one trial make: the required rank first, then those around it."""
        rank, total = int(self.ranks[which][0]), int(self.n[which][0])
        places, first = np.unique(self.high[which][1:], return_index=True)
        if not len(places):
            return Window(np.empty(0), np.empty(0, np.int64), 0, total, rank)
        counts, below = self.counted[which][1:][first], int(self.below[which][1:][first[0]])
        return Window(np.append(self.grid, math.inf)[places - 1], counts, below, total, rank)

    def revealed(self) -> dict[str, str]:
        """Return what all devices have learnt, for the record; for several problems only in words."""
        if len(self.n) > 1 or len(self.told) > _MOST_LISTED_TOTALS:
            return {"revealed": "how many scores there are in all and at or below asked thresholds, and thresholds"}
        totals = ", ".join(f"{self.grid[place - 1]:.6g}: {count}" for place, count in sorted(self.told.items()))
        words = f"{self.n[0]:,} scores in all, totals at {pluralize(len(self.told), 'threshold')}, and the threshold"
        return {"revealed": words, "revealed_totals": totals}


def _coarse_note(excess: int) -> str:
    return (
        f"p-dcp: {excess} scores more than required lie at or below the threshold, "
        "where they are equal or the grid is coarse; name the score, or give a grid and its range"
    )


# --- pieces -----------------------------------------------------------------------------------------------------------


def _on_every_device(block: Block, thresholds: Floats) -> Floats:
    return np.broadcast_to(thresholds, (len(block.rows), *thresholds.shape)).copy()


def _by_trial(certificates: list[Certificate], levels: int) -> list[list[Certificate]]:
    return [certificates[at : at + levels] for at in range(0, len(certificates), levels)]
