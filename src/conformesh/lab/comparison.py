"""`compare`: run every method on every network with the same scores; report guarantee, slack and cost of each.

A comparison is a simulation, so it may count what no device sees: the rank of every threshold among all scores. How far
that is above the required rank is the *slack*: zero is exact, more means larger sets than needed, less means that too
few scores lie at or below the threshold.
"""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from conformesh.common.array_types import Floats
from conformesh.common.progress import Progress
from conformesh.common.quantities import format_bits, pluralize
from conformesh.common.random_streams import Rng, resolve_seed
from conformesh.engines import get_driver
from conformesh.engines.observers import Observer
from conformesh.graph.network import Network
from conformesh.graph.topologies import TOPOLOGIES
from conformesh.kernels.ranks import (
    AUTO,
    POOLED_MIXTURES,
    Alpha,
    Requirement,
    check_alpha,
    check_shares,
    exact_alpha,
    explain_confidence,
    make_requirement,
)
from conformesh.kernels.weighted_scores import WeightedScores
from conformesh.methods import CONNECTIONS, METHODS, MethodVariant
from conformesh.methods import method_variants as every_way_of
from conformesh.pipeline.networks import as_network
from conformesh.pipeline.solver import CalibrationBatch, solve_draws
from conformesh.protocols.aggregate import PREFERENCES
from conformesh.protocols.block import Block
from conformesh.protocols.e_dcp import SCHEDULES, aggregators_for
from conformesh.results.certificate import CertificateKind
from conformesh.scores import Score, as_score
from conformesh.table import Table

CostUnit = Literal["bits", "rounds"]
_PAPER = "Wen2025"  # the paper whose methods a front compares with E-DCP


@dataclass(frozen=True)
class ComparisonRow:
    """One way on one network.

    Attributes
    ----------
    way
        What was run.
    guarantee, assumption
        The kind of its certificate, and what that rests on.
    thresholds
        The smallest and the largest threshold of a device.
    slack
        Rank of the smallest threshold among all scores, minus the required rank; inf where that threshold is +inf.
    size
        Mean size of the prediction sets (width of intervals), where there are outputs to form them from.
    rounds, numbers, bits
        What it cost; numbers and bits sent by each device, mean over the devices.
    notes
        What the method has to say about its result.
    """

    way: MethodVariant
    guarantee: CertificateKind
    assumption: str
    thresholds: tuple[float, float]
    slack: float
    size: float | None
    rounds: int
    numbers: float
    bits: float
    notes: tuple[str, ...] = ()

    @property
    def is_sound(self) -> bool:
        """Whether it may be recommended: a finite threshold, its rank counted, nothing assumed, no server."""
        certified = self.guarantee == "counted" and not self.assumption and 0 <= self.slack < math.inf
        return certified and self.way.needs != "server"


@dataclass(frozen=True)
class NetworkComparison:
    """All runs on one network.

    Attributes
    ----------
    network
        Its name.
    diameter, diameter_is_exact
        The lower bound for rounds: two devices this far apart cannot learn of each other sooner. If it is not exact,
        it is an upper bound of the diameter.
    runs
        One row per way, in the order of the request.
    refused
        Ways that cannot run on this network, each with the reason.
    """

    network: str
    diameter: int
    diameter_is_exact: bool
    runs: tuple[ComparisonRow, ...]
    refused: dict[MethodVariant, str]

    def fewest(self, by: CostUnit) -> list[MethodVariant]:
        """Return the cheapest sound ways; several if they cost the same."""
        price = {run.way: getattr(run, by) for run in self.runs if run.is_sound}
        return [way for way in price if price[way] == min(price.values())]


@dataclass(frozen=True)
class Comparison:
    """All networks of a comparison, and which way is cheapest.

    Attributes
    ----------
    alpha, devices, scores
        The setting: miscoverage level, number of devices, number of scores in all.
    required_rank
        How many of the scores must lie at or below a threshold.
    networks
        The comparison on each network.
    skipped
        Topologies that cannot be built with so many devices, each with its reason.
    """

    alpha: float
    devices: int
    scores: int
    required_rank: int
    networks: tuple[NetworkComparison, ...]
    skipped: dict[str, str] = field(default_factory=dict)

    def _repr_html_(self) -> str:
        from conformesh.lab.comparison_table import COMPARISON_NUMBER_COLUMNS, recommendation, table_columns, table_row
        from conformesh.plots import html as cards

        columns, parts = table_columns(self), []
        for entry in self.networks:
            floor = f"{entry.diameter:,}" if entry.diameter_is_exact else f"at most {entry.diameter:,}"
            body = cards.html_table(
                columns, [table_row(run, entry) for run in entry.runs], right=COMPARISON_NUMBER_COLUMNS, most=None
            )
            refused = [(str(way), reason) for way, reason in entry.refused.items()]
            body += cards.html_table(("not here", "because"), refused) if refused else ""
            parts.append(cards.collapsible(f"{entry.network}, diameter {floor}", body, shown=entry is self.networks[0]))
        facts = [("required", f"rank {self.required_rank:,} of {self.scores:,} scores, alpha {self.alpha:g}")]
        facts += [("left out", reason) for reason in self.skipped.values()]
        ways, networks = pluralize(len(self.ways()), "way"), pluralize(len(self.networks), "network")
        title = f"{ways} on {networks} of {self.devices:,} devices"
        return cards.html_card(title, claim=recommendation(self), rows=facts, parts=parts)

    def __repr__(self) -> str:
        networks = ", ".join(entry.network for entry in self.networks)
        return (
            f"Comparison({pluralize(len(self.ways()), 'way')} on {networks}; alpha={self.alpha:g}, rank "
            f"{self.required_rank:,} of {self.scores:,} scores on {pluralize(self.devices, 'device')})"
        )

    def plot(self, path: str | os.PathLike[str] | None = None) -> Any:
        """Draw bits against rounds on every network, and slack; returns the figure."""
        from conformesh.lab.comparison_plots import draw_comparison

        return draw_comparison(path, self)

    def runs_of(self, way: MethodVariant) -> list[ComparisonRow]:
        """Return the runs of one way, over the networks on which it works."""
        return [run for entry in self.networks for run in entry.runs if run.way == way]

    def ways(self) -> list[MethodVariant]:
        """Return every way that worked on some network, in the order of the table."""
        return _in_order({run.way for entry in self.networks for run in entry.runs})

    def winner(self, by: CostUnit) -> tuple[MethodVariant, int] | None:
        """Return the way that is cheapest on most networks, and on how many; of two such, the cheaper in all."""
        wins = Counter(way for entry in self.networks for way in entry.fewest(by))

        def price(way: MethodVariant) -> tuple[float, ...]:
            runs = self.runs_of(way)
            costs = sum(run.bits for run in runs), sum(run.rounds for run in runs)
            return -wins[way], *(costs if by == "bits" else costs[::-1])

        return (way, wins[way]) if (way := min(wins, key=price, default=None)) is not None else None


@dataclass(frozen=True)
class FrontPoint:
    """What one way of a method costs on one network: rounds, and bits sent by each device, mean over the devices."""

    name: str
    method: str
    guarantee: CertificateKind
    assumption: str
    rounds: int
    bits: float


@dataclass(frozen=True)
class CostFront:
    """How rounds and bits are traded against each other on one network.

    Attributes
    ----------
    network, diameter
        Its name, and the lower bound for rounds.
    floor
        Bits that every exact method needs, see `information_floor`; zero if no bound is known.
    points
        Every schedule and every preference of E-DCP, and the paper's methods.
    """

    network: str
    diameter: int
    floor: float
    points: tuple[FrontPoint, ...]

    def _repr_html_(self) -> str:
        from conformesh.plots import html as cards

        best = self.best()
        rows = [
            [point.name, point.guarantee, f"{point.rounds:,}", format_bits(point.bits), "yes" if point in best else ""]
            for point in sorted(self.points, key=lambda point: (point.rounds, point.bits))
        ]
        columns = ("way", "guarantee", "rounds", "bits", "on the front")
        floor = [("floor", f"{self.floor:.3g} bits by a device, for every exact method")] if self.floor else []
        facts = [("diameter", f"{self.diameter:,} rounds at least"), *floor]
        table = cards.html_table(columns, rows, right=columns[2:4], most=None)
        return cards.html_card(f"rounds against bits on {self.network}", rows=facts, parts=[table])

    def __repr__(self) -> str:
        best = ", ".join(f"{point.name} ({point.rounds:,} rounds, {format_bits(point.bits)})" for point in self.best())
        return f"CostFront({self.network}, diameter {self.diameter:,}; best: {best})"

    def plot(self, path: str | os.PathLike[str] | None = None) -> Any:
        """Draw bits against rounds, with the front and both floors; returns the figure."""
        from conformesh.lab.comparison_plots import draw_cost_fronts

        return draw_cost_fronts(path, [self])

    def best(self) -> list[FrontPoint]:
        """Return the points on the front, fewest rounds first.

        These have a counted rank, rest on no assumption, and no other such point is cheaper in both costs.
        """
        found: list[FrontPoint] = []
        for point in sorted(self.points, key=lambda point: (point.rounds, point.bits)):
            counts = point.guarantee == "counted" and not point.assumption
            if counts and (not found or point.bits < found[-1].bits):
                found.append(point)
        return found


@explain_confidence
def cost_fronts(
    devices: Iterable[ArrayLike] | Mapping[Any, ArrayLike] | Table | Any,
    networks: Sequence[Network],
    alpha: Alpha = 0.1,
    *,
    mixture: str | Mapping[Any, Any] = "sizes",
    rank_rule: str = AUTO,
    pac_confidence: Alpha | None = None,
    seed: int = 0,
    rng: Rng | None = None,
    progress: bool = False,
) -> list[CostFront]:
    """Run E-DCP by every schedule and preference, and the paper's methods, on every network; arguments of `compare`.

    >>> rng = np.random.default_rng(0)
    >>> [found] = cost_fronts([rng.random(50) for _ in range(4)], [Network.chain(4)])
    >>> found.best()[0].rounds == found.diameter
    True
    """
    seed = resolve_seed(rng, seed)
    networks, samples, requirement, block = _setting(devices, networks, alpha, mixture, rank_rule, pac_confidence)
    plain = block.weighed(samples).weights is None
    floor = information_floor(samples.sizes[:, 0].tolist(), int(block.ranks()[0, 0])) if plain else 0.0
    found, front_runs = [], _front_runs(seed)
    with Progress("trading rounds for bits", len(networks) * len(front_runs), shown=progress) as bar:
        for network in networks:
            points = []
            for name, method, options in front_runs:
                bar.step(f"{name} on {network.name}")
                try:
                    batch = solve_draws(samples, network, (alpha,), method, requirement=requirement, **options)
                except (ValueError, ArithmeticError):  # cannot run on this network; `compare` reports the reason
                    continue
                certificate, cost = batch.outcome.certificates[0][0], batch.cost
                kind, assumed = certificate.kind, certificate.assumption
                points.append(FrontPoint(name, method, kind, assumed, cost.rounds, cost.bits_per_device))
            found.append(CostFront(network.name, network.diameter, floor, tuple(points)))
    return found


def _front_runs(seed: int) -> list[tuple[str, str, dict[str, Any]]]:
    """Return the runs that make up a front: name, method and options."""
    found: list[tuple[str, str, dict[str, Any]]] = [
        (f"prefer {prefer}", "e-dcp", {"prefer": prefer}) for prefer in PREFERENCES
    ]
    for schedule in SCHEDULES:
        for over in aggregators_for(schedule) if schedule != AUTO else ():
            found.append((f"{schedule} {over}", "e-dcp", {"schedule": schedule, "aggregate": over}))
    for way in compared_ways(name for name, entry in METHODS.items() if entry.description.paper == _PAPER):
        seeded = {"seed": seed} if "seed" in METHODS[way.method].option_names() else {}
        found.append((str(way), way.method, {**way.options, **seeded}))
    return found


def information_floor(sizes: Sequence[int], rank: int) -> float:
    r"""Return bits that each device must send, on average, for all to know the score of a rank: in the worst case.

    Let device k hold m_k scores of which any number c_k may be far below the others, and the rest far above; all other
    scores are fixed and known. With :math:`\sum m_k \le \min(r - 1, n - r)` these fixed ones can be such that each sum
    of the c_k gives another answer. Draw every c_k alike from 0..m_k: who knows all scores but those of k learns c_k
    from the answer, so what k sends tells m_k + 1 cases apart, which takes :math:`\log_2(m_k + 1)` bits, on average
    over the draws and for every k at once; so there are scores for which the total is at least that. The m_k are as
    even as the sizes allow. The time and length of a message are not counted as information.

    >>> round(information_floor([50] * 20, 901), 2)
    2.57
    """
    left, bits = max(min(rank - 1, sum(sizes) - rank), 0), 0.0
    for place, size in enumerate(sorted(sizes)):
        most = min(size, left // (len(sizes) - place))
        left, bits = left - most, bits + math.log2(most + 1)
    return bits / len(sizes)


@explain_confidence
def compare(
    devices: Iterable[ArrayLike] | Mapping[Any, ArrayLike] | Table | Any,
    networks: Sequence[Network],
    alpha: Alpha = 0.1,
    ways: Sequence[MethodVariant] | None = None,
    *,
    mixture: str | Mapping[Any, Any] = "sizes",
    rank_rule: str = AUTO,
    pac_confidence: Alpha | None = None,
    score: Score | None = None,
    outputs: ArrayLike | None = None,
    rows_at: Sequence[str] | None = None,
    seed: int = 0,
    rng: Rng | None = None,
    begin: Callable[[MethodVariant, Network], None] = lambda way, network: None,
    ended: Callable[[MethodVariant, Network, CalibrationBatch | str], None] = lambda way, network, found: None,
    observer: Observer | None = None,
    progress: bool = False,
) -> Comparison:
    """Run every way on every network and measure slack, set size and cost.

    Parameters
    ----------
    devices
        One array of calibration scores per device, in the order of the networks' `ids`, which they share.
    networks
        The networks to compare, one after the other.
    alpha
        Tolerated miscoverage, strictly between 0 and 1.
    ways
        The ways to run; by default all of `compared_ways()`.
    mixture, rank_rule, pac_confidence
        The guarantee, as in `calibrate`; a published method keeps the guarantee it was published with.
    score, outputs
        A score and model outputs to form prediction sets from, so that their mean size is measured.
    rows_at
        The device of every row of outputs, whose threshold is then used; by default the threshold valid on every
        device.
    seed, rng
        For methods that draw: a seed, or a generator to draw it from.
    begin, ended
        Called before every run, and after it with the result, or with the reason why there is none.
    observer
        Called after every round of every run, as in `calibrate`.
    progress
        Show a bar, in a terminal or a notebook.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> found = compare([rng.random(50) for _ in range(4)], [Network.chain(4)], 0.1, compared_ways(["e-dcp", "fcp"]))
    >>> [(str(run.way), run.slack) for run in found.networks[0].runs][-2:]
    [('e-dcp count', 0.0), ('fcp', 3.0)]
    """
    score, seed = as_score(score), resolve_seed(rng, seed)
    if (score is None) != (outputs is None):
        raise ValueError("mean set sizes need both a score and model outputs, got only one of them")
    networks, samples, requirement, block = _setting(devices, networks, alpha, mixture, rank_rule, pac_confidence)
    ids, n = networks[0].ids, int(samples.sizes.sum())
    measure = _Measure(block, samples, score, outputs, _rows(ids, rows_at), seed)
    measure(np.full(len(ids), np.inf))  # report outputs that do not fit the score before the runs, not after them
    if strange := next((way for way in ways or () if not isinstance(way, MethodVariant)), None):
        names = f"[{ways!r}]" if isinstance(ways, str) else f"[{strange!r}]"
        raise TypeError(
            f"ways must be a list of MethodVariant, which compared_ways({names}) makes of names, got {strange!r}"
        )
    chosen = [*(compared_ways() if ways is None else ways)]
    with Progress("comparing", len(networks) * len(chosen), shown=progress) as bar:

        def started(way: MethodVariant, network: Network) -> None:
            bar.step(f"{way} on {network.name}")
            begin(way, network)

        setting = _RunSetting(samples, alpha, requirement, seed, observer, started, ended)
        compared = tuple(_compare_on(network, chosen, measure, setting) for network in networks)
    return Comparison(float(exact_alpha(alpha)), len(ids), n, measure.rank, compared)


def _setting(
    devices: Iterable[ArrayLike] | Mapping[Any, ArrayLike] | Table | Any,
    networks: Sequence[Network],
    alpha: Alpha,
    mixture: str | Mapping[Any, Any],
    rank_rule: str,
    pac_confidence: Alpha | None,
) -> tuple[list[Network], WeightedScores, Requirement, Block]:
    """Check the arguments; return the networks, the scores in their order, the requirement and the block."""
    check_alpha(alpha)
    table = Table.of(devices, mixture=mixture)
    if not isinstance(networks, list | tuple):
        given: Any = networks
        name = repr(given) if isinstance(given, str) else "network"
        raise TypeError(
            f"networks must be a list of networks, got {type(networks).__name__}; for one of them write [{name}]"
        )
    networks = [as_network(network, table) for network in networks]
    if not networks:
        raise ValueError("a comparison needs at least one network, got none")
    ids = networks[0].ids
    for network in networks:
        if network.ids != ids:
            raise ValueError(f"the networks must have the same devices: {networks[0].name} and {network.name} differ")
        local = table.ordered(network, get_driver("simulator").make(network).rows)  # the same for all
    assert local.score is not None
    samples = WeightedScores.from_flat(local.score, local.sizes, names=ids)
    requirement = make_requirement(
        mixture if table.shares is None else table.shares, rank_rule, pac_confidence, POOLED_MIXTURES
    )
    check_shares(requirement, ids)
    block = replace(Block.everywhere(networks[0], samples.sizes), requirement=requirement, alphas=(exact_alpha(alpha),))
    return networks, samples, requirement, block


def compared_ways(methods: Iterable[str] | None = None) -> list[MethodVariant]:
    """Return every way to run these methods, by default all; ways without a server come first.

    Variant `auto` selects one of the other ways of its method, so it is left out rather than run twice.
    """
    return _in_order(way for way in every_way_of(methods) if way.variant != AUTO)


def build_networks(
    topologies: Iterable[str], ids: Sequence[str], *, seed: int = 0, rng: Rng | None = None
) -> tuple[list[Network], dict[str, str]]:
    """Build each topology over these devices; those that cannot be built are returned with the reason.

    >>> build_networks(["torus", "cycle"], [*"abcde"])[1].keys()
    dict_keys(['torus'])
    """
    built, skipped, seed = [], {}, resolve_seed(rng, seed)
    for name in dict.fromkeys(topologies):
        try:
            built.append(Network.of(name, len(ids), seed=seed).relabelled(ids))
        except ValueError as reason:
            if name not in TOPOLOGIES:
                raise
            skipped[name] = str(reason)
    return built, skipped


class _Measure:
    """Slack and mean set size of thresholds. Most ways find the same thresholds, so results are kept."""

    def __init__(
        self,
        block: Block,
        samples: WeightedScores,
        score: Score | None,
        outputs: ArrayLike | None,
        rows: NDArray[np.int64] | None,
        seed: int,
    ) -> None:
        self.samples, self.rank = block.weighed(samples), int(block.ranks()[0, 0])
        self.score, self.rows = score, rows
        self.outputs = None if outputs is None else np.asarray(outputs)
        self.draws = (
            {} if score is None or outputs is None else score.draws(outputs, rng=seed)
        )  # drawn once, so that all thresholds use the same
        self._results: dict[bytes, tuple[float, float | None]] = {}

    def __call__(self, thresholds: Floats) -> tuple[float, float | None]:
        """Return slack and size for the thresholds of all devices, shape (devices,)."""
        key = thresholds.tobytes()
        if key not in self._results:
            self._results[key] = self._slack(float(thresholds.min())), self._size(thresholds)
        return self._results[key]

    def _slack(self, smallest: float) -> float:
        if smallest == math.inf:
            return math.inf
        return float(self.samples.counts(np.array([[smallest]])).sum() - self.rank)

    def _size(self, thresholds: Floats) -> float | None:
        if self.score is None or self.outputs is None:
            return None
        used: Any = thresholds.max() if self.rows is None else thresholds[self.rows]
        if self.score.task == "regression":
            lower, upper = self.score.intervals(self.outputs, used).T
            return float(np.maximum(upper - lower, 0.0).mean())
        return float(self.score.sets(self.outputs, used, **self.draws).sum(axis=1).mean())


def _rows(ids: tuple[str, ...], rows_at: Sequence[str] | None) -> NDArray[np.int64] | None:
    if rows_at is None:
        return None
    row_of = {name: row for row, name in enumerate(ids)}
    strange = next((name for name in rows_at if name not in row_of), None)
    if strange is not None:
        raise ValueError(f"unknown device {strange!r} among the rows of outputs: it is not in the networks")
    return np.array([row_of[name] for name in rows_at], dtype=np.int64)


class _RunSetting(NamedTuple):
    """What all runs of a comparison share."""

    samples: WeightedScores
    alpha: Alpha
    requirement: Requirement
    seed: int
    observer: Observer | None
    begin: Callable[[MethodVariant, Network], None]
    ended: Callable[[MethodVariant, Network, CalibrationBatch | str], None]


def _compare_on(
    network: Network, ways: Sequence[MethodVariant], measure: _Measure, setting: _RunSetting
) -> NetworkComparison:
    runs, refused = [], {}
    for way in ways:
        setting.begin(way, network)
        try:
            batch = _run_way(way, network, setting)
        except (ValueError, ArithmeticError) as reason:  # CannotAggregate, or unsuitable scores
            refused[way] = str(reason)
            setting.ended(way, network, str(reason))
        else:
            runs.append(_comparison_row(way, batch, measure))
            setting.ended(way, network, batch)
    return NetworkComparison(network.name, network.diameter, network.diameter_is_exact, tuple(runs), refused)


def _run_way(way: MethodVariant, network: Network, setting: _RunSetting) -> CalibrationBatch:
    options = way.options
    if "seed" in METHODS[way.method].option_names():
        options["seed"] = setting.seed
    requirement = METHODS[way.method].requirement or setting.requirement  # a published method keeps its own
    return solve_draws(
        setting.samples,
        network,
        (setting.alpha,),
        way.method,
        requirement=requirement,
        observer=setting.observer,
        **options,
    )


def _comparison_row(way: MethodVariant, batch: CalibrationBatch, measure: _Measure) -> ComparisonRow:
    thresholds, certificate = batch.outcome.thresholds[:, 0, 0], batch.outcome.certificates[0][0]
    slack, size = measure(thresholds)
    return ComparisonRow(
        way=way,
        guarantee=certificate.kind,
        assumption=certificate.assumption,
        thresholds=(float(thresholds.min()), float(thresholds.max())),
        slack=slack,
        size=size,
        rounds=batch.cost.rounds,
        numbers=batch.cost.numbers_per_device,
        bits=batch.cost.bits_per_device,
        notes=batch.outcome.notes,
    )


def _in_order(ways: Iterable[MethodVariant]) -> list[MethodVariant]:
    places = {way: place for place, way in enumerate(every_way_of())}
    return sorted(
        ways, key=lambda way: (CONNECTIONS.index(way.needs), [*METHODS].index(way.method), places.get(way, -1))
    )
