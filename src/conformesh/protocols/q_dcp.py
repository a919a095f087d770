"""Q-DCP: devices solve one smoothed quantile regression together, by ADMM ([Wen2025] Algorithm 1).

Every device minimises its own smoothed pinball loss and is pulled towards the estimates of its neighbours.
The steps of `q_dcp`: agree on a start s0; run ADMM (`admm`); agree on the average of the estimates; then either
add error terms (`_with_error_terms`), or count the rank of the estimate and search upward from it (E-DCP).

Assumes     graph connected; K and every n_k known; |s0 - s*| <= epsilon0 ([Wen2025] Assumption 4.1), which no device
            can check
Guarantees  under that assumption, the threshold is at or above the required quantile. With `certify` no assumption is
            needed: the rank of the estimate is counted, and where it falls short the search of E-DCP goes on upward
Message     the current estimate, one number per round; then one per round of the final averaging
Departures  - no matrices: with zero duals ADMM needs only neighbour sums. For E undirected edges (A has 2E rows):
                  f_k'(s) + a_k + c d_k s - c/2 (d_k s_k + sum of neighbours' s) = 0,   a_k += c/2 (d_k s_k - sum)
            - the level is r / n, of which the printed (1-alpha)(1+K/n) is the real-valued form
            - the agreed estimate is the largest of the averaged ones: one number everywhere, never below the mean
            - `bound="sound"` replaces the unknown optimum in epsilon^(T) by what devices know; `bound="paper"` asks an
              oracle for it, for reproduction
            - a device uses its own value as it was sent, so that rounding keeps the sum of the duals at zero
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from conformesh.common.array_types import Floats, Ints
from conformesh.common.quantities import pluralize
from conformesh.graph.spectrum import Spectrum
from conformesh.graph.weights import constant_weights
from conformesh.kernels.compilation import expect_work
from conformesh.kernels.pinball import RootFinder, minimise_pinball
from conformesh.kernels.ranks import AUTO
from conformesh.kernels.weighted_scores import WeightedScores
from conformesh.protocols.aggregate import NetworkSum, aggregate_choices, get_aggregator
from conformesh.protocols.block import Answers, Block
from conformesh.protocols.bounds import quantile as bounds
from conformesh.protocols.consensus import agreed_maximum, agreed_mean
from conformesh.protocols.e_dcp import counted_answers, search_by_counts, with_exact_sums
from conformesh.protocols.loss_tolerant_count import LossTolerantCount, default_count_rounds
from conformesh.protocols.messages import Pool, Protocol, Sum
from conformesh.protocols.options import check_option_choice, option
from conformesh.protocols.quantile_average import (
    S0_RULES,
    agree_on_s0,
    averaging_rounds,
    local_quantiles,
    refuse_overflow,
)
from conformesh.protocols.relaxed_admm import relaxed_admm
from conformesh.protocols.spectrum_estimation import estimate_spectrum
from conformesh.protocols.wire_format import WireFormat
from conformesh.results.certificate import Certificate, CertificateKind, too_few_certificate

# Probability that a device warns of a threshold that is right, if scores are alike on all devices: a usual test level.
_FALSE_ALARM_RATE = 0.05
# The scale of the continuation shrinks by this factor from one run to the next. Slower needs more runs; faster starts a
# run farther from its optimum than its sharper loss can correct. The rank is counted afterwards in any case.
_SCALE_DECAY = 2.5


@dataclass(frozen=True)
class QDCP:
    """Options of Q-DCP; kappa, mu and epsilon0 default to the paper's."""

    rounds: int = option(1500, "rounds of ADMM T")
    kappa: float = option(2000.0, "sharpness of the smoothed pinball loss")
    mu: float = option(2000.0, "weight of the regulariser that pulls towards s0")
    s0: float | str = option(
        "average", "average or min of the local quantiles, average-rank (order statistics), or a number"
    )
    epsilon0: float = option(0.1, "assumed bound on |s0 - s*|; the guarantee rests on it")
    start: Literal["s0", "zeros"] = option("s0", "where ADMM starts: s0, or zeros as the paper prints")
    bound: Literal["sound", "paper"] = option("sound", "error terms: sound and computable, or paper (as printed)")
    c: float | None = option(None, "ADMM penalty; by default the best for the bound")
    b: float | None = option(None, "free parameter b > 1 of the bound; by default the best")
    averaging: int | None = option(None, "rounds of each averaging (s0, final); by default to a relative 1e-6")
    continuation: int = option(0, "share the rounds among so many runs, each re-centred, sharper and freer (5 is good)")
    certify: bool = option(
        False, "count the estimate's rank and search upward where it falls short; on with continuation"
    )
    aggregate: str = option(AUTO, "how --certify adds up", aggregate_choices)
    spectrum: Literal["map", "estimated"] = option("map", "eigenvalues from the map, or estimated by message passing")
    wire: int = option(64, "bits per number on the wire: 16, 32 or 64")
    asynchronous: bool = option(
        False, "bear lost messages: ADMM with a number for each neighbour, and a count that devices repeat"
    )
    counting: int | None = option(None, "rounds of that count; by default 60, and 10 for each level of the tree")

    def __post_init__(self) -> None:
        if self.asynchronous:
            self._check_asynchronous()
        elif self.counting is not None:
            raise ValueError("counting says how long the count of asynchronous=True goes on; leave it out")
        check_option_choice("start", self.start, ("s0", "zeros"))
        check_option_choice("bound", self.bound, ("sound", "paper"))
        check_option_choice("spectrum", self.spectrum, ("map", "estimated"))
        if self.rounds < 1:
            raise ValueError(f"rounds must be at least 1, got {self.rounds}")
        if self.continuation < 0:
            raise ValueError(f"continuation must be at least 0, got {self.continuation}")
        if self.aggregate != AUTO:
            get_aggregator(self.aggregate)
        for name in ("kappa", "mu"):
            if not (value := getattr(self, name)) > 0 or math.isinf(value):
                raise ValueError(f"{name} must be positive and finite, got {value}")
        if not self.epsilon0 >= 0:
            raise ValueError(f"epsilon0 must be at least 0, got {self.epsilon0}")
        if str(self.s0) not in S0_RULES and not _is_finite(self.s0):
            raise ValueError(f"s0 must be a finite number or one of {', '.join(S0_RULES)}, got {self.s0!r}")

    def _check_asynchronous(self) -> None:
        plain = QDCP()
        others = ("start", "bound", "b", "averaging", "continuation", "certify", "aggregate", "spectrum", "wire")
        given = [name for name in others if getattr(self, name) != getattr(plain, name)]
        if given or str(self.s0) not in (*S0_RULES[:1], str(self.s0) if _is_finite(self.s0) else ""):
            raise ValueError(
                "asynchronous=True needs no spectrum, no averaging and no exact sums, always counts, and begins at "
                f"each device's own quantile or at a number: leave {', '.join(given) or f's0={self.s0!r}'} out"
            )
        if self.counting is not None and self.counting < 0:
            raise ValueError(f"counting must be at least 0 rounds, got {self.counting}")


def q_dcp(block: Block, samples: WeightedScores, alphas: tuple[Fraction, ...], options: QDCP) -> Protocol[Answers]:
    """Run Algorithm 1; return the agreed estimate plus the two error terms, or a threshold whose rank was counted."""
    if options.asynchronous:
        return (yield from _q_dcp_over_lossy_links(block, samples, options))
    spectrum = block.network.spectrum if options.spectrum == "map" else (yield from estimate_spectrum(block))
    ranks, totals = block.ranks(), block.masses.sum(axis=0)
    gamma = np.minimum(ranks / np.maximum(totals, 1)[:, None], 1.0)  # (trials, alphas); 1 where r > n: +inf anyway
    wire = WireFormat(options.wire)
    block.progress.estimates = _first_estimate
    s0 = yield from agree_on_s0(block, samples, gamma, spectrum, options.s0, options.averaging, wire)
    if options.continuation:
        estimates = yield from _estimate_by_continuation(block, samples, gamma, s0, spectrum, options, wire)
    else:
        estimates, last = yield from _estimate_once(block, samples, gamma, s0, spectrum, options, wire)
        if not options.certify:
            return _with_error_terms(block, samples, ranks, estimates, last, spectrum, options)

    block.progress.estimates = None  # from here on messages hold counts, not estimates

    def attempt(total: NetworkSum) -> Protocol[Answers]:
        flat = estimates[0].reshape(-1, 1)
        brackets = yield from search_by_counts(block, samples, ranks, totals, total, 1, flat, settle=True)
        return replace(counted_answers(block, ranks, totals, brackets), estimates=estimates)

    return (yield from with_exact_sums(block, options.aggregate, "balanced", 1, attempt))


def _first_estimate(values: Floats) -> Floats:
    """Return the estimate of the first trial and level from a message, for observers; NaN for other messages."""
    return values[:, 0, 0] if values.ndim == 3 else np.full(len(values), np.nan)


def _q_dcp_over_lossy_links(block: Block, samples: WeightedScores, options: QDCP) -> Protocol[Answers]:
    """Run relaxed ADMM over links that may lose messages, and count the rank of its estimate."""
    ranks, totals = block.ranks(), block.masses.sum(axis=0)
    gamma = np.minimum(ranks / np.maximum(totals, 1)[:, None], 1.0)
    s0 = float(options.s0) if _is_finite(options.s0) else None
    counting = LossTolerantCount(block, samples, local_quantiles(samples, gamma), ranks)
    knobs = options.kappa, options.mu, options.c
    x = yield from relaxed_admm(block, samples, gamma, s0, *knobs, options.rounds, counting)
    rounds = default_count_rounds(block.network) if options.counting is None else options.counting
    yield from counting.run(x, rounds)
    return _counted_where_heard(block, ranks, totals, counting, x.reshape(len(x), *ranks.shape), rounds)


def _counted_where_heard(
    block: Block, ranks: Ints, totals: Ints, counting: LossTolerantCount, estimates: Floats, rounds: int
) -> Answers:
    """Return the counted threshold on every device that received it, +inf on the others."""
    thresholds = np.full_like(estimates, np.inf)
    counts = np.repeat(totals[:, None], ranks.shape[1], axis=1)  # all scores lie at or below +inf
    heard = counting.answered
    if counting.answer is not None and heard.any():
        tau, counted = counting.answer.reshape(2, *ranks.shape)
        thresholds[heard], counts = tau, counted.astype(np.int64)
    thresholds[:, ranks > totals[:, None]] = np.inf
    certificates = [
        [
            too_few_certificate(rank, n) if rank > n else Certificate("counted", rank, int(counts[t, a]))
            for a, rank in enumerate(ranks[t].tolist())
        ]
        for t, n in enumerate(totals.tolist())
    ]
    notes: tuple[str, ...] = ()
    if not heard.all():
        notes = (
            f"q-dcp: {pluralize(int((~heard).sum()), 'device')} of {len(heard):,} here did not hear the count within "
            f"{rounds:,} rounds and hold +inf; set more rounds with counting",
        )
    return Answers(thresholds, certificates, estimates, notes)


@dataclass(frozen=True, eq=False)
class _AdmmRun:
    """The start of a run of ADMM, for its error terms: s0 and start (trials, alphas), rates by trial."""

    s0: Floats
    start: Floats
    gamma: Floats
    rates: list[bounds.AdmmRate]
    distance: Floats


def _estimate_once(
    block: Block,
    samples: WeightedScores,
    gamma: Floats,
    s0: Floats,
    spectrum: Spectrum,
    options: QDCP,
    wire: WireFormat,
) -> Protocol[tuple[Floats, _AdmmRun]]:
    """Run ADMM once and agree on the average of the final estimates."""
    rates = [_rate(block.sizes[:, trial], spectrum, block.devices, options) for trial in range(block.trials)]
    start = s0 if options.start == "s0" else np.zeros_like(s0)
    c = np.array([[rate.c] for rate in rates]) * np.ones_like(gamma)
    knobs = AdmmParameters(c, np.full_like(gamma, options.kappa), np.full_like(gamma, options.mu))
    s = yield from admm(block, samples, gamma, s0, start, knobs, options.rounds, wire)
    rounds = averaging_rounds(block, spectrum, options.averaging)
    estimates = yield from agreed_mean(s, block, constant_weights(block.network, spectrum), rounds, wire)
    refuse_overflow(estimates)
    distance = np.zeros_like(gamma)
    if options.bound == "paper" and not options.certify:
        distance = yield from _oracle_distance(block, samples, gamma, s0[0], start[0], rates, options)
    return estimates, _AdmmRun(s0[0], start[0], gamma, rates, distance)


def _estimate_by_continuation(
    block: Block,
    samples: WeightedScores,
    gamma: Floats,
    s0: Floats,
    spectrum: Spectrum,
    options: QDCP,
    wire: WireFormat,
) -> Protocol[Floats]:
    """Run ADMM several times, each centred at the last estimate, with a sharper loss and a weaker regulariser.

    The local quantiles spread over a width w, and the pooled quantile lies among them. On that scale the loss of a
    device has a curvature of about h = (n / K)(1 - gamma) / w, so kappa = 4 / w smooths what is finer, c = h / mean
    degree moves all devices alike, and mu = h / (10 K) hardly biases; then w shrinks. All runs share `rounds`.
    """
    mine = local_quantiles(samples, gamma)
    holder = samples.sizes[:, :, None] > 0
    ends = np.stack([np.where(holder, -mine, -np.inf), np.where(holder, mine, -np.inf)], axis=1)
    ends = (yield from agreed_maximum(wire.outward(ends, np.inf), block))[0].astype(np.float64)
    # Below this width float64 would not resolve the smoothed loss around s0.
    floor = 1e-9 * np.maximum(1.0, np.abs(s0[0]))
    spread = np.maximum(np.where(np.isfinite(ends).all(axis=0), ends[0] + ends[1], 0.0), floor)
    weights = constant_weights(block.network, spectrum)
    rounds = averaging_rounds(block, spectrum, options.averaging)
    degree = max(float(block.network.degree.mean()), 1.0)
    for stage in range(options.continuation):
        w = np.maximum(spread / _SCALE_DECAY**stage, floor)
        curvature = (np.maximum(block.totals, 1) / block.devices)[:, None] * np.maximum(1 - gamma, 1e-3) / w
        knobs = AdmmParameters(curvature / degree, 4 / w, 0.1 * curvature / block.devices)
        s = yield from admm(block, samples, gamma, s0, s0, knobs, rounds_per_run(options), wire)
        s0 = refuse_overflow((yield from agreed_mean(s, block, weights, rounds, wire)))
    return s0


def rounds_per_run(options: QDCP) -> int:
    """Return the rounds of one run of ADMM: all rounds, or its share with continuation."""
    return max(options.rounds // options.continuation, 1) if options.continuation else options.rounds


def _with_error_terms(
    block: Block,
    samples: WeightedScores,
    ranks: Ints,
    estimates: Floats,
    run: _AdmmRun,
    spectrum: Spectrum,
    options: QDCP,
) -> Answers:
    """Add the two error terms, right if the assumption is ([Wen2025] Eq. (13), Eq. (14), Eq. (15), Theorem 4.4)."""
    certificates: list[list[Certificate]] = []
    thresholds = np.full_like(estimates, np.inf)
    # For rounded messages ADMM has no error bound, so their thresholds have no guarantee.
    kind: CertificateKind = "assumed" if options.wire == 64 else "none"
    notes: set[str] = set()
    for trial in range(block.trials):
        sizes, n, row = block.sizes[:, trial], int(block.totals[trial]), []
        for a, rank in enumerate(ranks[trial].tolist()):
            if rank > n:
                row.append(too_few_certificate(rank, n))
                continue
            unfinished, bias = _error_terms(block, spectrum, run, trial, a, options)
            thresholds[:, trial, a] = estimates[:, trial, a] + unfinished + bias
            notes |= _note_if_vacuous(samples, thresholds[:, trial, a], trial, rank / n, unfinished, bias, options)
            words = _assumption_text(
                options, bounds.regulariser_reach(sizes, float(run.gamma[trial, a]), options.mu), spectrum
            )
            row.append(Certificate(kind, rank, None, unfinished + bias, unfinished, bias, words))
        certificates.append(row)
    return Answers(thresholds, certificates, estimates, tuple(sorted(notes)))


def _note_if_vacuous(
    samples: WeightedScores, thresholds: Floats, trial: int, gamma: float, unfinished: float, bias: float, options: QDCP
) -> set[str]:
    """Return a note if hardly any local score lies above the threshold: prediction sets hold nearly every label then.

    This happens where the error terms, or the distance of s0 from the required quantile, exceed the distance between
    that quantile and the largest scores: epsilon0 is in the units of the scores, and 0.1 is much for probabilities. A
    device needs nothing but its own scores to see it: it compares how many lie above the threshold with how many lie
    above its own quantile of the required level. Where scores are alike on all devices, none of n lies above the right
    threshold with probability gamma^n; a device says nothing if that is above 5 %.
    """
    scores = [samples.segment(k, trial) for k in range(samples.devices)]
    pooled = np.sort(np.concatenate(scores))
    n = len(pooled)
    if not n or gamma**n > _FALSE_ALARM_RATE:
        return set()
    above = sum(int((own > threshold).sum()) for own, threshold in zip(scores, thresholds.tolist(), strict=True))
    quantile = pooled[min(math.ceil(gamma * n), n) - 1]
    needed = int((pooled > quantile).sum())  # none where the largest scores are equal: then no threshold leaves any
    # A tenth of the expected number: fewer are no accident, and a warning at less would often be wrong.
    if 10 * above >= needed:
        return set()
    more = "set more rounds" if unfinished > bias else f"epsilon0={options.epsilon0:g} is large for such scores"
    return {
        f"q-dcp: the error terms raise the threshold by {unfinished + bias:.3g}, so that {above or 'none'} of {n:,} "
        f"scores here lie above it, where {needed:,} lie above their quantile: prediction sets hold nearly every label"
        f"; {more}; e-dcp needs no error terms"
    }


@dataclass(frozen=True, eq=False)
class AdmmParameters:
    """Penalty c, sharpness kappa and regulariser weight mu of every (trial, alpha)."""

    c: Floats
    kappa: Floats
    mu: Floats


def admm(
    block: Block,
    samples: WeightedScores,
    gamma: Floats,
    s0: Floats,
    start: Floats,
    knobs: AdmmParameters,
    rounds: int,
    wire: WireFormat,
    loops: int = 0,
) -> Protocol[Floats]:
    """Iterate [Wen2025] Algorithm 1, Eq. (10), Eq. (11), Eq. (12), in neighbour sums: one number per round.

    With `loops` a device counts itself as that many further neighbours, as the code of the published figures does.
    """
    shape = s0.shape
    problems = s0.size

    def per_problem(values: Floats) -> Floats:
        return np.ascontiguousarray(np.broadcast_to(values, shape)).reshape(-1)

    degree, half_c, mu = (
        per_problem(block.degree[:, None, None] + loops),
        per_problem(knobs.c / 2),
        per_problem(knobs.mu),
    )
    kappa, mu = per_problem(knobs.kappa), per_problem(knobs.mu)
    slope = mu + 2 * half_c * degree
    with np.errstate(over="ignore"):
        pull = refuse_overflow(mu * s0.reshape(-1))
    fixed = (gamma * samples.sizes[:, :, None]).reshape(-1) + pull
    s, duals = start.ravel().copy(), np.zeros(problems)
    finder = RootFinder(samples.values, samples.offsets, shape[2], kappa, s)
    expect_work("pinball", float(rounds) * problems)
    # All devices start at the same number and know it, so the first step needs no message.
    own, neighbours = s.copy(), degree * s
    for _ in range(rounds):
        with np.errstate(over="ignore", invalid="ignore"):  # overflow is refused after the last round
            local = degree * own
            duals += half_c * (local - neighbours)
            finder.solve(slope, fixed - duals + half_c * (local + neighbours))
        sent = wire(s.reshape(shape))
        # The value as sent, also at 64 bits a copy: `s` changes in place, and a device must use the same value as its
        # neighbours or the duals no longer sum to zero.
        own = sent.astype(np.float64).reshape(-1)
        neighbours = (yield Sum(sent, brief=True)).reshape(-1)
        if loops:
            neighbours = neighbours + loops * own
    return s.reshape(shape)


def _rate(sizes: NDArray[np.int64], spectrum: Spectrum, devices: int, options: QDCP) -> bounds.AdmmRate:
    if devices == 1:  # no edge, no penalty: one local solve is the answer
        return bounds.AdmmRate(0.0, 1.0, math.inf)
    smoothness = float(sizes.max()) * options.kappa / 4 + options.mu
    return bounds.admm_rate(spectrum, smoothness, options.mu, options.c, options.b)


def _error_terms(
    block: Block, spectrum: Spectrum, run: _AdmmRun, trial: int, level: int, options: QDCP
) -> tuple[float, float]:
    """Return epsilon^(T) and the bias term, as printed or with the sound bound."""
    sizes, rate = block.sizes[:, trial], run.rates[trial]
    copies = 1 if options.bound == "paper" else block.devices
    bias = bounds.bias_epsilon(int(sizes.sum()), options.mu, options.kappa, options.epsilon0, copies)
    if block.devices == 1:
        return 0.0, bias
    distance = float(run.distance[trial, level])
    if options.bound == "sound":
        offset = abs(float(run.s0[trial, level] - run.start[trial, level]))
        gamma = float(run.gamma[trial, level])
        distance = bounds.largest_distance(rate.c, block.network.edges, spectrum, sizes, gamma, options.mu, offset)
    return bounds.convergence_epsilon(rate, block.devices, options.mu, options.rounds, distance), bias


def _oracle_distance(
    block: Block,
    samples: WeightedScores,
    gamma: Floats,
    s0: Floats,
    start: Floats,
    rates: list[bounds.AdmmRate],
    options: QDCP,
) -> Protocol[Floats]:
    """Return ||u0 - u*||_G^2 for every (trial, alpha) from all scores, which the printed epsilon^(T) needs."""
    from scipy.special import expit

    everyone = yield Pool(samples.values, samples.offsets, oracle=True)
    pooled = WeightedScores(everyone.values, everyone.offsets, block.trials)
    distance = np.zeros_like(gamma)
    for trial in range(block.trials):
        scores = np.sort(pooled.pooled(trial))
        for a in range(gamma.shape[1]):
            g, anchor_, rate = float(gamma[trial, a]), float(s0[trial, a]), rates[trial]
            s_hat = minimise_pinball(scores, options.kappa, g * len(scores), block.devices * options.mu, anchor_)
            if block.devices == 1:
                continue
            gradient = np.array(
                [
                    expit(options.kappa * (s_hat - pooled.segment(k, trial))).sum() - g * pooled.sizes[k, trial]
                    for k in range(block.devices)
                ]
            ) + options.mu * (s_hat - anchor_)
            energy = _energy(block, gradient - gradient.mean())
            distance[trial, a] = bounds.optimal_distance(
                rate.c, block.network.edges, s_hat - float(start[trial, a]), energy
            )
    return distance


def _energy(block: Block, gradient: Floats) -> float:
    """Return g' (D-A)^+ g for a gradient that sums to zero, by grounding the first device."""
    from scipy.sparse.linalg import spsolve

    laplacian = block.network.laplacian().tocsc()[1:, 1:]
    return float(gradient[1:] @ spsolve(laplacian, gradient[1:]))


def _assumption_text(options: QDCP, reach: float, spectrum: Spectrum) -> str:
    words = [
        f"|s0 - s*| <= epsilon0 = {options.epsilon0:g} (s0 is within {options.epsilon0:g} of the required quantile), "
        f"which nobody checked; the regulariser keeps the estimate within {reach:.3g} of s0 whatever the scores are"
    ]
    if options.bound == "paper":
        words.append("epsilon_T uses the optimum, which no device knows")
    if spectrum.source == "estimated":
        words.append("the eigenvalues estimated by message passing are right")
    if options.wire < 64:
        words.append(f"rounding messages to {options.wire} bits does no harm, for which there is no bound")
    return "; ".join(words)


def _is_finite(text: str | float) -> bool:
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False
