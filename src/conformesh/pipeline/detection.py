r"""`detect`: which test points, spread over the devices, are unlike what the devices know, with few false alarms.

A test point is judged by its score: ordinary ones score like the calibration scores, others higher. Benjamini and
Hochberg's rule keeps the false discovery rate at or below q if the p-values depend on each other in the right way. With
fixed numbers of scores per device nobody has proved that they do. *Thinning* makes it so: a public seed draws how many
scores each device uses, :math:`(N_k) \sim \text{Mult}(n', \pi)`, again until all :math:`N_k \le n_k`, and each device
picks so many of its own at random. But for the redrawing these are n' independent draws of the mixture
:math:`\sum_k \pi_k P_k`, and so are ordinary test points: ordinary p-values :math:`(1 + \#)/(n' + 1)` and the ordinary
proof. Redrawing can raise a rate by the factor 1/P(no redrawing) at most, so the rule runs at the level q P; see
docs/guarantees.md.

The false discovery rate is an average over the scores, the test points *and* this draw, so the seed is fresh entropy by
default, shared by all devices. A fixed seed fixes the numbers :math:`N_k`; which scores a device picks then still
differs from data set to data set, because its draw is keyed by a hash of its scores.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from conformesh.common.array_types import Floats, Ints
from conformesh.common.notes import emit_note
from conformesh.common.random_streams import Rng, hash_numbers, random_stream, recorded_seed
from conformesh.engines import Engine, engine_on, fail_together
from conformesh.engines.observers import Observer
from conformesh.graph.network import Network
from conformesh.kernels.ranks import (
    POOLED_MIXTURES,
    SHARE_BY_SIZE,
    Alpha,
    Requirement,
    check_shares,
    exact_alpha,
    make_requirement,
)
from conformesh.kernels.weighted_scores import WeightedScores
from conformesh.methods import check_keywords, make_options
from conformesh.pipeline.networks import as_network, read_network
from conformesh.pipeline.p_values import exact_p_values, round_up_to_float
from conformesh.protocols.block import Block, merge_rows
from conformesh.protocols.e_dcp import EDCP
from conformesh.protocols.messages import Protocol
from conformesh.protocols.rank_counts import (
    CountQuestion,
    FlaggedCounts,
    RankCounts,
    benjamini_hochberg,
    count_below,
    flood_test_scores,
)
from conformesh.results.detection import Detection
from conformesh.table import Table

THINNED, _ALL_SCORES = "thinned", "plain"
FDR_RULES = {
    THINNED: "proven: a random part of the scores, as if drawn from all devices together",
    _ALL_SCORES: "assumed: all scores, though nobody has proved the rate for fixed numbers of scores per device",
}
# Multiplications and additions up to which the chance of no redrawing is computed exactly; above, it is bounded.
_EXACT = 5 * 10**7
# Safety margin: the chance is made smaller by this factor, far more than float64 arithmetic on positive terms can err.
_CHANCE_FACTOR = 1 - 1e-6
_RARE = 1e-3  # least chance that is accepted: with a smaller one drawing takes thousands of attempts


@fail_together
def detect(
    data: Iterable[ArrayLike] | Mapping[Any, ArrayLike] | Table | Any,
    network: Network | str | Any = None,
    test_scores: Iterable[ArrayLike] | Mapping[Any, ArrayLike] | Any = None,
    fdr: Alpha = 0.1,
    *,
    columns: Mapping[str, str] | None = None,
    mixture: str | Mapping[Any, Any] = "sizes",
    rule: str = THINNED,
    sample_size: int | None = None,
    rng: Rng | None = None,
    p_values: bool = True,
    observer: Observer | None = None,
    engine: str | Engine = "simulator",
    **options: Any,
) -> Detection:
    """Detect anomalies: flag test points that score high, with a false discovery rate of at most `fdr`.

    Parameters
    ----------
    data
        One array of calibration scores of ordinary examples per device, a dict by device name, or a frame, as in
        `calibrate`.
    network, columns
        As in `calibrate`; `columns` also names the columns of a frame of test scores.
    test_scores
        The scores of the test points that each device has, in the form of `data`; a high score is suspicious.
    fdr
        The tolerated false discovery rate: the mean part of wrong ones among those that are flagged.
    mixture
        Where an ordinary test point comes from, as in `calibrate`: from a device in proportion to its scores (`sizes`),
        `paper`, `equal`, or with the shares that a dict gives.
    rule
        `thinned`, which is proven, or `plain`, which uses all scores and is only *assumed* to keep the rate.
    sample_size
        How many scores the thinned rule uses; by default what `default_sample_size` says, from the numbers of scores
        alone.
    rng
        Randomness of the thinned rule. By default fresh entropy, which all devices share; the result records it, and
        ``rng=result.seed`` repeats the run. The false discovery rate is also an average over this draw: a seed that is
        fixed once and used for many data sets has no guarantee, nor has the best of several seeds. A generator is
        asked for one seed.
    p_values
        Whether to count every test score's p-value as well, which tells all devices the test scores. False: no test
        score leaves its device.
    observer, engine
        As in `calibrate`.
    **options
        Those of the method `e-dcp`: `aggregate`, `prefer`, `width`.

    Examples
    --------
    >>> import numpy as np
    >>> from conformesh import Network, detect
    >>> rng = np.random.default_rng(0)
    >>> ordinary = [rng.normal(size=100) for _ in range(10)]
    >>> tests = [np.append(rng.normal(size=20), [6.0, 7.0]) for _ in range(10)]
    >>> found = detect(ordinary, Network.cycle(10), tests, fdr=0.1)
    >>> found.flagged["0"].nonzero()[0].tolist()
    [20, 21]
    """
    check_keywords("detect", "e-dcp", options)
    if test_scores is None:
        raise TypeError("detect needs test_scores=, the scores to be judged")
    started, seed = time.perf_counter(), recorded_seed(rng)
    level, chosen = exact_alpha(fdr, "fdr"), make_options("e-dcp", options)
    if level > Fraction(1, 2):
        right = float(1 - level)
        emit_note(
            f"fdr={fdr} lets {100 * float(level):g} % of the flagged points be wrong; did you mean fdr={right:g}?"
        )
    if rule not in FDR_RULES:
        raise ValueError(f"rule must be {' or '.join(FDR_RULES)}, got {rule!r}")
    network, ids = read_network(network, engine)
    table = Table.of(data, columns=columns, mixture=mixture, ids=ids)
    tested = Table.of(test_scores, columns=columns, what="test_scores", ids=ids)
    if (table.names is None) != (tested.names is None):
        raise TypeError("scores and test scores must both go by device name or both by order, got one of each")
    network = as_network(network, table)
    asked = make_requirement(mixture if table.shares is None else table.shares, known=POOLED_MIXTURES)
    check_shares(asked, network.ids)
    with engine_on(network, engine, observer) as host:
        seed = host.share(seed)[0]  # every rank has drawn its own
        mine = host.network.local_ids(host.rows)
        tests_here = tested.ordered(host.network, host.rows, "test scores")
        local = table.ordered(host.network, host.rows)
        assert local.score is not None
        assert tests_here.score is not None
        samples = WeightedScores.from_flat(local.score, local.sizes, names=mine)
        arrays = [tests_here.score[tests_here.rows(k)] for k in range(tests_here.devices)]
        tests = WeightedScores.from_flat(tests_here.score, tests_here.sizes)
        samples, sizes, requirement, chance = _sampled_scores(host, samples, asked, rule, sample_size, seed)
        block = Block(network, host.rows, sizes[:, None], requirement)
        counts = merge_rows(host.blocks, host.share(tests.sizes))[:, 0] if p_values else None
        (found, counted, told), cost = host.run(
            detection_protocol(block, samples, tests, level * chance, chosen, counts)
        )
        threshold = float(found.thresholds[0]) if found.flagged[0] else math.inf
        whole = _merge_devices(host, arrays)
        judged = None if counted is None or told is None else _p_values_of(block, counted, told, whole)
    for words in found.notes:
        emit_note(words)
    if p_values and judged is None:  # nobody has a test point
        judged = [np.empty(0) for _ in whole]
    return Detection(
        fdr=float(level),
        level=float(level * chance),
        rule=rule,
        mixture=asked.mixture,
        scores=dict(zip(network.ids, whole, strict=True)),
        flagged={name: own > threshold for name, own in zip(network.ids, whole, strict=True)},
        p_values=None if judged is None else dict(zip(network.ids, judged, strict=True)),
        threshold=threshold,
        sample_size=int(sizes.sum()),
        chance=float(chance),
        steps=int(found.steps[0]),
        seed=seed,
        cost=cost,
        network=network.name,
        seconds=time.perf_counter() - started,
        options=found.facts,
    )


def _sampled_scores(
    host: Engine, samples: WeightedScores, asked: Requirement, rule: str, sample_size: int | None, seed: int
) -> tuple[WeightedScores, Ints, Requirement, Fraction]:
    """Return the scores that the rule uses of the devices here, how many of all, their promise, and P(no redrawing)."""
    sizes = merge_rows(host.blocks, host.share(samples.sizes))[:, 0]
    if rule == _ALL_SCORES:
        if sample_size is not None:
            raise ValueError("sample_size says how many scores the thinned rule uses; rule='plain' uses all of them")
        return samples, sizes, asked, Fraction(1)
    shares = mixture_shares(asked, sizes, host.network.ids)
    n = _checked_sample_size(sample_size, sizes, shares)
    kept = draw_sample_sizes(sizes, shares, n, seed)
    chance = Fraction(no_redraw_chance(sizes, shares, n))
    return draw_sample(samples, host.rows, kept, seed), kept, Requirement("exchangeable"), chance


def detection_protocol(
    block: Block, samples: WeightedScores, tests: WeightedScores, level: Fraction, options: EDCP, counts: Ints | None
) -> Protocol[tuple[FlaggedCounts, RankCounts | None, CountQuestion | None]]:
    """Run the step-up rule; with `counts`, how many test scores every device has, also count their p-values."""
    flagged = yield from benjamini_hochberg(block, samples, tests, level, options)
    if counts is None or not counts.sum():
        return flagged, None, None
    told = yield from flood_test_scores(block, tests, counts)
    asked, _ = CountQuestion.of(np.zeros(len(told), dtype=np.int64), told)
    counted = yield from count_below(block, samples, asked, options)
    return flagged, counted, asked


def _p_values_of(block: Block, counted: RankCounts, asked: CountQuestion, tests: Sequence[Floats]) -> list[Floats]:
    """Return the p-values of test scores, in their order."""
    found, runs = exact_p_values(block, asked, counted)
    floats = np.array([round_up_to_float(p) for p in found])[runs]
    return [floats[np.searchsorted(asked.thresholds, own)] for own in tests]


def _merge_devices(host: Engine, mine: list[Floats]) -> list[Floats]:
    """Return what every device has, by row, from what those here have."""
    # Blocks list their rows in the order of the engine, which need not be that of the network.
    each = (own for part in host.share(mine) for own in part)
    whole = dict(zip(np.concatenate(host.blocks).tolist(), each, strict=True))
    return [whole[row] for row in range(len(whole))]


def mixture_shares(requirement: Requirement, sizes: Ints, ids: Sequence[str]) -> list[Fraction]:
    """Return how likely an ordinary test point comes from each device."""
    given = requirement.shares
    if given is not None:
        shares = [given[name] for name in ids]
    else:
        shares = [Fraction(SHARE_BY_SIZE[requirement.mixture](n)) for n in sizes.tolist()]
    total = sum(shares, Fraction(0))
    if not total:
        raise ValueError("detection needs calibration scores, got none on any device")
    return [share / total for share in shares]


def default_sample_size(sizes: Ints, shares: Sequence[Fraction]) -> int:
    """Return how many scores to draw: n' with the largest (n' + 1) P(no redrawing), from the numbers of scores alone.

    A test point can be flagged as one of R if 1/(n' + 1) is at most q P R / m: this n' lets the fewest be enough.
    """
    n = int(sizes.sum())

    def worth(draws: int) -> float:
        return (draws + 1) * no_redraw_chance(sizes, shares, draws, exact=n <= 2000)

    low, high, best = 1, max(n, 1), 1
    while high > low:
        tried = sorted({*np.linspace(low, high, 17).astype(int).tolist()})
        best = max(tried, key=worth)
        place = tried.index(best)
        low, high = tried[max(place - 1, 0)], tried[min(place + 1, len(tried) - 1)]
        if high - low <= 2:
            return max(range(low, high + 1), key=worth)
    return best


def no_redraw_chance(sizes: Ints, shares: Sequence[Fraction], draws: int, exact: bool = True) -> float:
    r"""Return a lower bound of the chance that no device is to use more scores than it has.

    Independent Poisson numbers with means :math:`n' \pi_k`, given that they add up to n', are multinomial: the chance
    is the coefficient of :math:`x^{n'}` in the product of the devices' truncated series over that of a Poisson number
    with mean n'. All terms are positive, so that arithmetic errs by less than `_CHANCE_FACTOR` allows. Where that
    product is too long, one minus the sum of the devices' chances to be asked for too much.
    """
    from scipy.special import betainc, gammaln

    kinds: dict[tuple[int, Fraction], int] = {}
    for n, share in zip(sizes.tolist(), shares, strict=True):
        if share:
            kinds[n, share] = kinds.get((n, share), 0) + 1
    held = sum(n * count for (n, _), count in kinds.items())
    if held < draws:
        return 0.0
    if not exact or held * draws > _EXACT:
        # The incomplete beta function is the chance of more than n; SciPy's bdtrc is less exact for millions of scores.
        tails = sum(
            count * float(betainc(n + 1, draws - n, float(share))) for (n, share), count in kinds.items() if n < draws
        )
        return max(0.0, (1.0 - tails * (1 + 1e-6)) * _CHANCE_FACTOR)
    series = np.ones(1)
    for (n, share), count in kinds.items():
        mean, j = draws * float(share), np.arange(min(n, draws) + 1)
        terms = np.exp(j * math.log(mean) - mean - gammaln(j + 1))
        for _ in range(count):
            series = np.convolve(series, terms)[: draws + 1]
    whole = math.exp(draws * math.log(draws) - draws - float(gammaln(draws + 1))) if draws else 1.0
    return min(1.0, float(series[draws]) / whole) * _CHANCE_FACTOR if len(series) > draws else 0.0


def _checked_sample_size(sample_size: int | None, sizes: Ints, shares: Sequence[Fraction]) -> int:
    if sample_size is not None and not isinstance(sample_size, int | np.integer):
        raise TypeError(
            f"sample_size must be a whole number, how many scores the thinned rule uses, got {sample_size!r}"
        )
    if sample_size is not None and sample_size < 1:
        raise ValueError(f"sample_size must be at least 1, got {sample_size}")
    best = default_sample_size(sizes, shares)
    if (chance := no_redraw_chance(sizes, shares, best)) < _RARE:
        raise ValueError(
            f"the {int(sizes.sum())} calibration scores are not where ordinary test points come from: of draws by the "
            f"mixture's shares only {chance:.1g} ask no device for more than it has; give other shares or more scores"
        )
    if sample_size is not None and (chance := no_redraw_chance(sizes, shares, sample_size)) < _RARE:
        raise ValueError(
            f"sample_size={sample_size} of {int(sizes.sum())} scores is too many: only {chance:.1g} of such draws ask "
            f"no device for more than it has; the default is {best}"
        )
    return best if sample_size is None else sample_size


def draw_sample_sizes(sizes: Ints, shares: Sequence[Fraction], draws: int, seed: int) -> Ints:
    """Draw from the public seed how many scores each device uses, again until all have enough: (devices,)."""
    rng, chances = random_stream(seed, "thinning"), np.array([float(share) for share in shares])
    while True:  # ends: `_checked_sample_size` has refused chances below _RARE
        counts = rng.multinomial(draws, chances / chances.sum())
        if (counts <= sizes).all():
            return np.asarray(counts, dtype=np.int64)


def draw_sample(samples: WeightedScores, here: Ints, counts: Ints, seed: int) -> WeightedScores:
    """Return so many scores of each device here, picked at random.

    The scores are sorted, so a seed alone would always pick the same ranks. The hash of the device's scores makes the
    pick differ between data sets also where the seed is fixed, and it does not depend on the order they came in.
    """
    picked = []
    for k, row in enumerate(here.tolist()):
        own = samples.segment(k)
        picked.append(
            random_stream(seed, "thinning", row, hash_numbers(own)).choice(own, int(counts[row]), replace=False)
        )
    return WeightedScores.of(picked)
