"""`plan`: simulate every way to calibrate on a network and a link; report costs and recommend one.

Where the network is too large to be simulated, a smaller one of the same kind stands for it (`planning.networks`). A
plan says which network its figures come from.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from conformesh.common.array_types import Ints
from conformesh.common.names import unknown_name
from conformesh.common.progress import Progress
from conformesh.common.quantities import format_bytes, format_count, format_time
from conformesh.graph.network import Network
from conformesh.kernels.ranks import (
    AUTO,
    POOLED_MIXTURES,
    Alpha,
    check_alpha,
    check_shares,
    explain_confidence,
    make_requirement,
)
from conformesh.kernels.weighted_scores import WeightedScores
from conformesh.lab.planning.link import Link
from conformesh.lab.planning.measurement import ANY_SHAPE, RUN_TIME_LIMIT, RunCost, draw_scores, measure_way
from conformesh.lab.planning.networks import MOST_SIMULATED_DEVICES, SimulatedNetwork, simulated_network
from conformesh.methods import MethodVariant, get_method, method_variants
from conformesh.protocols.block import Block
from conformesh.results.certificate import CertificateKind

_Sort = Literal["time", "bytes", "rounds"]
SORT_KEYS: tuple[_Sort, ...] = ("time", "bytes", "rounds")
# From the strongest to the weakest; a plan lists guarantees at least as strong as requested.
GUARANTEE_ORDER: tuple[CertificateKind, ...] = ("counted", "counted with noise", "bounded", "assumed", "none")

PLAN_COLUMNS = ("method", "guarantee", "server", "rounds", "numbers", "bytes", "largest", "time")
PLAN_NUMBER_COLUMNS = PLAN_COLUMNS[3:]  # columns of numbers


@dataclass(frozen=True)
class PlanRow:
    """One way to calibrate.

    Attributes
    ----------
    way
        Method, and how it asks or averages.
    guarantee, assumption
        The kind of its certificate, and what that rests on.
    cost
        Mean of its runs, as on the simulator's ledger.
    seconds
        How long a run takes on the link.
    rounds_between
        The fewest and the most rounds of a run.
    useful
        False if the threshold covers all calibration scores though fewer are required: the error bound is too loose.
    exact
        Whether the threshold is the very score of the required rank.
    notes, facts
        Notes of the method about its result, and choices it made.
    """

    way: MethodVariant
    guarantee: CertificateKind
    assumption: str
    cost: RunCost
    seconds: float
    rounds_between: tuple[int, int]
    useful: bool = True
    exact: bool = False
    notes: tuple[str, ...] = ()
    facts: dict[str, str] = field(default_factory=dict)

    @property
    def needs(self) -> str:
        """What a device must reach: `neighbours`, `server` or `nothing`."""
        return self.way.needs

    @property
    def tier(self) -> int:
        """How good its guarantee is: 0 counted, 1 bounded or with noise, 2 with a server, 3 assumed, 4 none."""
        if self.guarantee == "none":
            return 4
        if self.assumption or self.guarantee == "assumed" or not self.useful:
            return 3
        if self.needs == "server":
            return 2
        return 0 if self.guarantee == "counted" else 1

    def cells(self) -> list[str]:
        """Return a row of the table, in the order of `PLAN_COLUMNS`."""
        return [
            str(self.way) + (f" ({self.facts['schedule']})" if self.way.variant == AUTO else ""),
            self.guarantee + "*" * bool(self.assumption),
            "yes" if self.needs == "server" else "no",
            format_count(self.cost.rounds),
            format_count(self.cost.numbers),
            format_bytes(self.cost.bits / 8),
            format_bytes(self.cost.largest_bits / 8),
            format_time(self.seconds),
        ]

    def price(self, sort: _Sort) -> float:
        """Return what rows are sorted by."""
        return {"time": self.seconds, "bytes": self.cost.bits, "rounds": self.cost.rounds}[sort]

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON object."""
        return {
            "method": self.way.method,
            "variant": self.way.variant,
            "guarantee": self.guarantee,
            "assumption": self.assumption,
            "needs": self.needs,
            "rounds": _whole_or_float(self.cost.rounds),
            "rounds_between": [*self.rounds_between],
            "numbers_per_device": _whole_or_float(self.cost.numbers),
            "bits_per_device": _whole_or_float(self.cost.bits),
            "bytes_per_device": _whole_or_float(self.cost.bits / 8),
            "largest_bytes": _whole_or_float(self.cost.largest_bits / 8),
            "seconds": self.seconds,
            "notes": list(self.notes),
            "facts": self.facts,
        }


@dataclass(frozen=True, eq=False)
class Plan:
    """The whole table, cheapest first within each kind of guarantee, and the recommendation.

    Attributes
    ----------
    where
        The network that was asked for, and the one that was simulated.
    sizes
        How many scores each device of the simulated network holds.
    draws
        How many sets of scores each way ran on; 0 where the scores were given.
    alpha, link, sort
        The request.
    required_rank
        How many of the scores of the simulated network must lie at or below a threshold.
    rows
        The ways that can run.
    refused
        The ways that cannot run here or take too long to simulate, each with the reason.
    """

    where: SimulatedNetwork
    sizes: Ints
    draws: int
    alpha: float
    link: Link
    sort: _Sort
    required_rank: int
    rows: tuple[PlanRow, ...]
    refused: dict[MethodVariant, str]

    @property
    def scores(self) -> int:
        """Scores of the simulated network in all."""
        return int(self.sizes.sum())

    @property
    def recommended(self) -> PlanRow | None:
        """The cheapest of those with the best guarantee."""
        return min(self.rows, key=lambda row: (row.tier, row.price(self.sort), row.price("bytes")), default=None)

    def describe(self) -> str:
        """Say where the figures come from: on which network and which scores the methods ran."""
        scores = {0: "with the scores given", 1: "scores drawn once"}
        return f"{self.where.describe()}; {scores.get(self.draws, f'mean over {self.draws} draws of the scores')}"

    def _repr_html_(self) -> str:
        from conformesh.plots import html as cards

        facts = [
            ("figures", self.describe()),
            ("required", f"rank {self.required_rank:,} of {self.scores:,} scores, alpha {self.alpha:g}"),
            ("link", str(self.link)),
        ]
        assumed = [(f"* {row.way}", row.assumption) for row in self.rows if row.assumption]
        refused = [(f"not here: {way}", reason) for way, reason in self.refused.items()]
        parts = [
            cards.html_table(PLAN_COLUMNS, [row.cells() for row in self.rows], right=PLAN_NUMBER_COLUMNS, most=None)
        ]
        parts += [
            cards.collapsible("assumptions, and what cannot run here", cards.html_table(("", ""), [*assumed, *refused]))
        ]
        best = self.recommended
        title = "a plan" if best is None else f"plan: {best.way.flags}"
        return cards.html_card(
            title, kind="" if best is None else best.guarantee, claim=self.reason(), rows=facts, parts=parts
        )

    def __repr__(self) -> str:
        smaller = f" (simulated: {self.where.network.name})" if self.where.is_smaller else ""
        return f"Plan({self.where.asked}{smaller}, alpha={self.alpha:g}, {self.link}: {self.reason()})"

    def plot(
        self,
        path: str | os.PathLike[str] | None = None,
        topology: str | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> Any:
        """Draw time against latency, and with a topology against the number of devices; returns the figure."""
        from conformesh.lab.planning.plots import draw_plan

        return draw_plan(path, self, topology, options or {})

    def reason(self) -> str:
        """Say which to use and why, in a sentence or two."""
        best = self.recommended
        if best is None:
            return "Nothing can be recommended: none of these methods can run here."
        if self.required_rank > self.scores:
            return (
                f"None yet: alpha {self.alpha:g} requires rank {self.required_rank:,} of only {self.scores:,} "
                "scores, so every threshold is +inf; collect more scores or raise alpha."
            )
        twin = (
            best.facts.get("schedule") if best.way.variant == AUTO else AUTO
        )  # the way that `auto` chose, or `auto` itself: the same run under another name
        rivals = [row for row in self.rows if row.tier == best.tier and (row is best or row.way.variant != twin)]
        claims = {
            0: "whose rank is counted, without a server or an assumption,",
            1: "with a bound and neither a server nor an assumption",
            2: "that counts its rank, though it needs a server,",
            3: "with any guarantee, under an assumption",
            4: "without any guarantee",
        }
        costs = {
            "time": "takes the least time on this link",
            "bytes": "sends the fewest bytes",
            "rounds": "needs the fewest rounds",
        }
        among = f"of {len(rivals)} ways here {claims[best.tier]} it {costs[self.sort]}"
        if len(rivals) == 1:
            among = f"it is the only way here {claims[best.tier].rstrip(',')}"
        words = f"Use {best.way.flags}: {among} ({_cost_text(best)})."
        if best.assumption:
            words += f" It assumes that {best.assumption}."
        exact = [row for row in rivals if row.exact]
        if not best.exact and best.tier == 0 and exact:
            other = min(exact, key=lambda row: row.price(self.sort))
            words += (
                f" Its threshold is rounded up to a bin; {other.way.flags} gives the exact one ({_cost_text(other)})."
            )
        if self.where.is_smaller:
            words += (
                f" That is on {self.where.network.name}; on {self.where.asked} costs, and perhaps the choice, differ."
            )
        return words

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON object."""
        one, best = self.where.network, self.recommended
        return {
            "network": self.where.asked,
            "devices": self.where.asked_devices,
            "simulated": {
                "network": one.name,
                "devices": one.devices,
                "edges": one.edges,
                "diameter": one.diameter,
                "largest_degree": one.largest_degree,
                "scores": self.scores,
                "draws": self.draws,
                "is_smaller": self.where.is_smaller,
                "words": self.describe(),
            },
            "alpha": self.alpha,
            "required_rank": self.required_rank,
            "link": {"latency": self.link.latency, "bandwidth": self.link.bandwidth},
            "sort": self.sort,
            "rows": [row.to_dict() for row in self.rows],
            "refused": [
                {"method": way.method, "variant": way.variant, "reason": reason} for way, reason in self.refused.items()
            ],
            "recommended": {
                "method": None if best is None else best.way.method,
                "variant": None if best is None else best.way.variant,
                "reason": self.reason(),
            },
        }


@explain_confidence
def plan(
    where: Network | SimulatedNetwork,
    scores_per_device: int | Sequence[int] | Ints = 50,
    alpha: Alpha = 0.1,
    link: Link | str = "100ms,1Mbit",
    *,
    scores: WeightedScores | None = None,
    mixture: str | Mapping[Any, Any] = "sizes",
    rank_rule: str = AUTO,
    pac_confidence: Alpha | None = None,
    methods: Iterable[str] | None = None,
    options: Mapping[str, Any] | None = None,
    sort: _Sort = "time",
    guarantee: CertificateKind = "none",
    shape: str = ANY_SHAPE,
    time_limit: float = RUN_TIME_LIMIT,
    progress: bool = False,
) -> Plan:
    """Simulate every method, and every schedule of E-DCP, and say what each costs.

    Parameters
    ----------
    where
        The network. Of one with more than `MOST_SIMULATED_DEVICES` devices a part is simulated. `simulated_topology`
        makes a smaller network of a topology of any size, and `simulated_network` takes another limit.
    scores_per_device
        How many scores a device holds; a number, or one per device of the network asked for.
    alpha
        Tolerated miscoverage.
    link
        Latency and bandwidth of a device's uplink, as ``100ms,1Mbit``.
    scores
        The scores of all devices of the network asked for, if they are known; else scores are drawn.
    mixture, rank_rule, pac_confidence
        The promise, as in `calibrate`.
    methods, options
        Names of `METHODS`, by default all; options go to the methods that have them.
    sort
        What the recommendation saves, among those with the best guarantee: `time`, `bytes` or `rounds`.
    guarantee
        Leave out whatever promises less than this.
    shape
        What drawn scores look like, a name of `SCORE_SHAPES`, or `any`: one draw of each.
    time_limit
        Seconds that simulating one run may take. A way that takes longer is refused, with this reason.
    progress
        Show a bar, in a terminal or a notebook.

    Examples
    --------
    >>> from conformesh import Network
    >>> found = plan(Network.torus(5, 4), 50, 0.1, "100ms,1Mbit", methods=["fcp", "local"])
    >>> [(str(row.way), row.cost.rounds, row.cost.bits) for row in found.rows]
    [('fcp', 2.0, 3200.0), ('local', 0.0, 0.0)]
    """
    if sort not in SORT_KEYS:
        raise ValueError(f"sort must be one of {', '.join(SORT_KEYS)}, got {sort!r}")
    if guarantee not in GUARANTEE_ORDER:
        raise ValueError(unknown_name("guarantee", guarantee, GUARANTEE_ORDER))
    if not time_limit > 0:
        raise ValueError(f"time_limit must be more than 0 seconds, got {time_limit}")
    _check_plan(where, link, methods, options)
    level, uplink = check_alpha(alpha), Link.parse(link) if isinstance(link, str) else link
    place = simulated_network(where, MOST_SIMULATED_DEVICES) if isinstance(where, Network) else where
    samples = _draw_for(place, scores_per_device, shape) if scores is None else [_check_scores(place, scores)]
    requirement = make_requirement(mixture, rank_rule, pac_confidence, POOLED_MIXTURES)
    check_shares(requirement, place.network.ids)
    block = replace(Block.everywhere(place.network, samples[0].sizes), requirement=requirement, alphas=(level,))
    given, rows, refused = dict(options or {}), [], {}
    ways = method_variants(methods, given)
    with Progress("planning", len(ways), shown=progress) as bar:
        for way in ways:
            bar.step(str(way))
            try:
                rows.append(_row(way, block, samples, uplink, given, time_limit))
            except (ValueError, ArithmeticError) as reason:
                refused[way] = str(reason)
    kept = [row for row in rows if GUARANTEE_ORDER.index(row.guarantee) <= GUARANTEE_ORDER.index(guarantee)]
    kept.sort(key=lambda row: (row.tier, row.price(sort), row.price("bytes")))
    sizes = samples[0].sizes[:, 0]
    drawn = len(samples) if scores is None else 0
    return Plan(place, sizes, drawn, float(level), uplink, sort, _required_rank(block), tuple(kept), refused)


def _check_plan(where: Any, link: Any, methods: Any, options: Any) -> None:
    """Refuse arguments of `plan` that are of the wrong kind."""
    if not isinstance(where, Network | SimulatedNetwork):
        instead = "Network.of('torus', 20)"
        if hasattr(where, "adj"):
            instead = "Network.from_networkx(graph)"
        elif isinstance(where, str | int):
            instead = f"Network.of({where!r}, 20)" if isinstance(where, str) else f"Network.of('torus', {where})"
        raise TypeError(
            f"where must be a Network, or what simulated_topology returns, got {type(where).__name__} "
            f"{str(where)[:40]!r}; {instead} makes a Network"
        )
    if not isinstance(link, str | Link):
        raise TypeError(f"link must be a Link or a text such as '100ms,1Mbit', got {type(link).__name__} {link!r:.40}")
    if isinstance(methods, str):
        raise TypeError(f"methods must be a list of names, got {methods!r}; for one of them write [{methods!r}]")
    if not isinstance(options, Mapping | None):
        raise TypeError(
            f"options must be a dict of options of the methods, got {type(options).__name__} {options!r:.40}"
        )
    known = {name for way in method_variants(methods) for name in get_method(way.method).option_names()}
    if strange := next((name for name in options or () if name not in known), None):
        raise ValueError(
            f"options: none of the methods has {strange!r}; they have {', '.join(sorted(known)) or 'none'}"
        )


def _draw_for(place: SimulatedNetwork, per_device: Any, shape: str) -> list[WeightedScores]:
    """Draw scores for the devices of the simulated network."""
    given = np.asarray(per_device)
    if given.dtype.kind not in "iu" or given.ndim > 1:
        raise TypeError(
            "scores_per_device must be a whole number, or one per device, got "
            f"{per_device if given.ndim == 0 else f'an array of shape {given.shape} and type {given.dtype}'}"
        )
    if int(given.min(initial=0)) < 0 or (given.ndim == 0 and given < 1):
        raise ValueError(f"a plan needs at least 1 score per device, got {int(given.min())}")
    if given.ndim and given.shape != (place.asked_devices,):
        raise ValueError(
            f"a plan needs one number of scores, or one for each of {place.asked_devices:,} devices, got {given.shape}"
        )
    sizes = (
        np.broadcast_to(given, (place.asked_devices,))[place.rows] if given.ndim else np.full(len(place.rows), given)
    )
    return draw_scores(sizes.astype(np.int64), shape)


def _check_scores(place: SimulatedNetwork, scores: WeightedScores) -> WeightedScores:
    """Return the scores of the simulated devices."""
    if not isinstance(scores, WeightedScores):
        raise TypeError(
            f"scores must be WeightedScores, such as WeightedScores.of(arrays), got {type(scores).__name__}"
        )
    if scores.devices != place.asked_devices or scores.trials != 1:
        raise ValueError(
            f"a plan needs one trial of scores of {place.asked_devices:,} devices, got {scores.trials} of "
            f"{scores.devices:,}"
        )
    return scores.take(place.rows) if place.is_smaller else scores


def _required_rank(block: Block) -> int:
    """Return how many scores must be covered; with weights, the number with the same share of the total weight."""
    required, total, n = int(block.ranks()[0, 0]), int(block.masses.sum()), int(block.totals[0])
    return required if block.alike(0) else math.ceil(Fraction(required * n, max(total, 1)))


def _row(
    way: MethodVariant,
    block: Block,
    samples: Sequence[WeightedScores],
    link: Link,
    options: Mapping[str, Any],
    time_limit: float,
) -> PlanRow:
    runs = [
        measure_way(way, block.network, drawn, block.alphas[0], block.requirement, options, time_limit)
        for drawn in samples
    ]
    certificates = [batch.outcome.certificates[0][0] for batch, _ in runs]
    worst = max(certificates, key=lambda one: GUARANTEE_ORDER.index(one.kind))
    quality = [
        _quality(block, drawn, batch.outcome.thresholds) for drawn, (batch, _) in zip(samples, runs, strict=True)
    ]
    costs = [cost for _, cost in runs]
    cost, first = RunCost.mean(costs), runs[0][0].outcome
    rounds_range = round(min(one.rounds for one in costs)), round(max(one.rounds for one in costs))
    return PlanRow(
        way,
        worst.kind,
        worst.assumption,
        cost,
        cost.seconds(link),
        rounds_range,
        useful=all(useful for useful, _ in quality),
        exact=all(exact for _, exact in quality),
        notes=first.notes,
        facts=first.facts,
    )


def _quality(block: Block, drawn: WeightedScores, thresholds: NDArray[np.float64]) -> tuple[bool, bool]:
    """Return whether thresholds exclude any score, where that is allowed, and whether they equal the required score."""
    scores, required = block.weighed(drawn), int(block.ranks()[0, 0])
    total, smallest, largest = int(scores.masses.sum()), float(thresholds.min()), float(thresholds.max())
    if required > total:
        return True, True  # every threshold must be +inf

    def count(threshold: float) -> int:
        return int(scores.counts(np.array([[threshold]])).sum())

    reached, before = count(smallest), count(float(np.nextafter(smallest, -np.inf)))
    exact = smallest == largest and before < required <= reached
    return exact or count(largest) < total, exact


def _cost_text(row: PlanRow) -> str:
    rounds, size = format_count(row.cost.rounds), format_bytes(row.cost.bits / 8)
    return f"{rounds} rounds, {size} a device, {format_time(row.seconds)}"


def _whole_or_float(number: float) -> float:
    return int(number) if float(number).is_integer() else float(number)
