"""`plan`: what every way to calibrate would cost on a network and a link, without running it, and which to use."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Any, Literal

from conformesh.graph.network import Network
from conformesh.graph.sketch import Sketch
from conformesh.kernels.ranks import (
    AUTO,
    DEFAULT,
    Alpha,
    check_alpha,
    exact_alpha,
    explain_confidence,
    make_requirement,
)
from conformesh.methods import Way, get_method, make_options, ways_of
from conformesh.names import unknown
from conformesh.planning.link import Link
from conformesh.planning.search import ANY, SHAPES
from conformesh.planning.sending import Sent, bytes_on_the_wire, fits_a_mesh, mesh_seconds_on, on_a_mesh, seconds_on
from conformesh.planning.simulation import Speed, simulated
from conformesh.planning.terrain import Terrain
from conformesh.protocols.predicting import Prediction, Stretch
from conformesh.quantities import in_bytes, in_time
from conformesh.result.certificate import Kind

Certainty = Literal["exact", "estimate"]
Sort = Literal["time", "bytes", "rounds"]
SORTS: tuple[Sort, ...] = ("time", "bytes", "rounds")
KIND_ORDER: tuple[Kind, ...] = ("counted", "bounded", "assumed", "none")

COLUMNS = (  # of the table
    *("method", "guarantee", "server", "rounds", "bytes", "largest", "time"),
    *("on the wire", "mesh time", "sim memory", "sim time", "is"),
)
NUMBERS = (
    "rounds",
    "bytes",
    "largest",
    "time",
    "on the wire",
    "mesh time",
    "sim memory",
    "sim time",
)  # which end at the right


@dataclass(frozen=True)
class Row:
    """One way to calibrate.

    Attributes
    ----------
    way
        Method, and how it asks or averages.
    certainty
        `exact`: a run costs this. `estimate`: a mean over draws of scores, or a law of growth stands behind it.
    guarantee, assumption
        The kind of its certificate, and what that rests on.
    needs
        Whom a device must reach: `neighbours`, `server` or `nothing`.
    rounds, numbers, bits, most_bits
        As on the simulator's ledger: sent by a device on average, and by the busiest.
    likely, at_most
        Rounds between which nine runs in ten end, and that no scores exceed; None where `rounds` is certain.
    seconds
        On the link, for the numbers alone.
    wire_bytes, mesh_seconds
        On a real mesh, with every copy, header and transport; infinite where a frame would be too large.
    memory, simulation
        Bytes and seconds that simulating it takes on this machine.
    useful
        False where the error bound would be too loose to say anything.
    exact
        Whether the threshold is the very score of the required rank.
    """

    way: Way
    certainty: Certainty
    guarantee: Kind
    assumption: str
    needs: str
    rounds: float
    numbers: float
    bits: float
    most_bits: float
    seconds: float
    wire_bytes: float
    mesh_seconds: float
    memory: float
    simulation: float
    likely: tuple[float, float] | None = None
    at_most: tuple[float, float] | None = None
    useful: bool = True
    exact: bool = False
    notes: tuple[str, ...] = ()
    facts: dict[str, str] = field(default_factory=dict)
    stretches: tuple[Stretch, ...] = ()

    @property
    def tier(self) -> int:
        """How good its guarantee is: 0 counted or 1 bounded without a server, 2 with one, 3 assumed, 4 none."""
        if self.guarantee == "none":
            return 4
        if self.assumption or self.guarantee == "assumed" or not self.useful:
            return 3
        return 2 if self.needs == "server" else KIND_ORDER.index(self.guarantee)

    def cells(self) -> list[str]:
        """Return a row of the table, in the order of `COLUMNS`."""
        return [
            str(self.way) + (f" ({self.facts['schedule']})" if self.way.variant == AUTO else ""),
            self.guarantee + "*" * bool(self.assumption),
            "yes" if self.needs == "server" else "no",
            f"{self.rounds:,.0f}",
            in_bytes(self.bits / 8),
            in_bytes(self.most_bits / 8),
            in_time(self.seconds),
            "too large" if math.isinf(self.wire_bytes) else in_bytes(self.wire_bytes),
            "" if math.isinf(self.mesh_seconds) else in_time(self.mesh_seconds),
            in_bytes(self.memory),
            in_time(self.simulation),
            self.certainty,
        ]

    def price(self, sort: Sort) -> float:
        """Return what rows are sorted by."""
        return {"time": self.seconds, "bytes": self.bits, "rounds": self.rounds}[sort]

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON object."""
        return {
            "method": self.way.method,
            "variant": self.way.variant,
            "certainty": self.certainty,
            "guarantee": self.guarantee,
            "assumption": self.assumption,
            "needs": self.needs,
            "rounds": _plain(self.rounds),
            "likely_rounds": None if self.likely is None else [*self.likely],
            "at_most": None
            if self.at_most is None
            else {"rounds": self.at_most[0], "bytes_per_device": self.at_most[1]},
            "numbers_per_device": _plain(self.numbers),
            "bits_per_device": _plain(self.bits),
            "bytes_per_device": _plain(self.bits / 8),
            "largest_bytes": _plain(self.most_bits / 8),
            "seconds": self.seconds,
            "wire_bytes_per_device": _finite(self.wire_bytes),
            "mesh_seconds": _finite(self.mesh_seconds),
            "simulation_bytes": round(self.memory),
            "simulation_seconds": self.simulation,
            "notes": list(self.notes),
            "facts": self.facts,
            "stretches": [
                {"what": one.what, "rounds": _plain(one.rounds), "numbers": _plain(one.numbers), "bits": one.bits}
                for one in self.stretches
            ],
        }


@dataclass(frozen=True, eq=False)
class Plan:
    """The whole table, cheapest first within each kind of guarantee, and the recommendation.

    Attributes
    ----------
    terrain, alpha, link, sort
        What was asked.
    rows
        What can run.
    refused
        What cannot run here or cannot be predicted, each with its reason.
    """

    terrain: Terrain
    alpha: float
    link: Link
    sort: Sort
    rows: tuple[Row, ...]
    refused: dict[Way, str]

    @property
    def required_rank(self) -> int:
        """How many of the scores must lie at or below a threshold."""
        return self.terrain.rank(exact_alpha(self.alpha))

    @property
    def recommended(self) -> Row | None:
        """The cheapest of those with the best guarantee."""
        return min(self.rows, key=lambda row: (row.tier, row.price(self.sort), row.price("bytes")), default=None)

    def _repr_html_(self) -> str:
        from conformesh import cards

        where = self.terrain
        facts = [
            ("network", f"{where.map.name}: {where.devices:,} devices, diameter {where.map.diameter:,}"),
            ("required", f"rank {self.required_rank:,} of {where.n:,} scores, alpha {self.alpha:g}"),
            ("link", str(self.link)),
        ]
        assumed = [(f"* {row.way}", row.assumption) for row in self.rows if row.assumption]
        refused = [(f"not here: {way}", reason) for way, reason in self.refused.items()]
        parts = [cards.table(COLUMNS, [row.cells() for row in self.rows], right=NUMBERS, most=None)]
        parts += [cards.fold("assumptions, and what cannot run here", cards.table(("", ""), [*assumed, *refused]))]
        best = self.recommended
        title = "a plan" if best is None else f"plan: {best.way.flags}"
        return cards.card(
            title, kind="" if best is None else best.guarantee, claim=self.reason(), rows=facts, parts=parts
        )

    def __repr__(self) -> str:
        where = self.terrain
        return f"Plan({where.map.name}, {where.devices:,} devices, alpha={self.alpha:g}, {self.link}: {self.reason()})"

    def plot(
        self,
        path: str | os.PathLike[str] | None = None,
        topology: str | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> Any:
        """Draw time against latency, and with a topology against the number of devices; returns the figure."""
        from conformesh.plots.plan import draw_plan

        return draw_plan(path, self, topology, options or {})

    def reason(self) -> str:
        """Say which to use and why, in a sentence or two."""
        best = self.recommended
        if best is None:
            return "Nothing can be recommended: none of these methods can run here."
        if self.required_rank > self.terrain.n:
            return (
                f"None yet: alpha {self.alpha:g} requires rank {self.required_rank:,} of only {self.terrain.n:,} "
                "scores, so every threshold is +inf; collect more scores or raise alpha."
            )
        twin = best.facts.get("schedule") if best.way.variant == AUTO else AUTO  # the same under another name
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
        words = f"Use {best.way.flags}: {among} ({_short(best)})."
        if best.assumption:
            words += f" It assumes that {best.assumption}."
        exact = [row for row in rivals if row.exact]
        if not best.exact and best.tier == 0 and exact:
            other = min(exact, key=lambda row: row.price(self.sort))
            words += f" Its threshold is rounded up to a bin; {other.way.flags} gives the exact one ({_short(other)})."
        return words

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON object."""
        where, best = self.terrain, self.recommended
        return {
            "network": where.map.name,
            "built": where.built is not None,
            "laws": sorted(where.laws),
            "devices": where.devices,
            "edges": where.map.edges,
            "diameter": where.map.diameter,
            "largest_degree": where.map.largest_degree,
            "tree_depth": where.tree.depth,
            "scores": where.n,
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
    where: Network | Sketch | Terrain,
    scores_per_device: int | Sequence[int] = 50,
    alpha: Alpha = 0.1,
    link: Link | str = "100ms,1Mbit",
    *,
    target: str | Mapping[Any, Any] = "sizes",
    rank: str = AUTO,
    pac_confidence: Alpha | None = None,
    methods: Iterable[str] | None = None,
    options: Mapping[str, Any] | None = None,
    sort: Sort = "time",
    guarantee: Kind = "none",
    shape: str = ANY,
    speed: Speed | None = None,
) -> Plan:
    """Predict what every method, and every schedule of E-DCP, would cost.

    Parameters
    ----------
    where
        A network, a `sketch` of one that is too large to build, or a `Terrain`; `Terrain.with_scores` knows the scores,
        and then E-DCP's rounds and bytes are exact too.
    scores_per_device
        How many scores a device holds; a number, or one per device.
    alpha
        Tolerated miscoverage.
    link
        Latency and bandwidth of a device's uplink, as ``100ms,1Mbit``.
    target, rank, pac_confidence
        The promise, as in `calibrate`; a `Terrain` may have another.
    methods, options
        Names of `METHODS`, by default all; options go to the methods that have them.
    sort
        What the recommendation saves, among those with the best guarantee: `time`, `bytes` or `rounds`.
    guarantee
        Leave out whatever promises less than this.
    shape
        What the scores look like, a name of `SHAPES` or `any`: E-DCP's search depends on it, a little.
    speed
        How fast this machine simulates, see `planning.simulation`; measured when left out.

    Examples
    --------
    >>> from conformesh import Network
    >>> found = plan(Network.torus(5, 4), 50, 0.1, "100ms,1Mbit", methods=["h-dcp"])
    >>> [(str(row.way), row.rounds, round(row.bits), row.certainty) for row in found.rows[:2]]
    [('h-dcp finite-time', 12, 512428, 'estimate'), ('h-dcp chebyshev', 15, 704428, 'estimate')]
    """
    if sort not in SORTS:
        raise ValueError(f"sort must be one of {', '.join(SORTS)}, got {sort!r}")
    if guarantee not in KIND_ORDER:
        raise ValueError(unknown("guarantee", guarantee, KIND_ORDER))
    if shape != ANY and shape not in SHAPES:
        raise ValueError(unknown("shape", shape, (ANY, *SHAPES)))
    _check_plan(where, link, methods, options)
    level, found_link = check_alpha(alpha), Link.parse(link) if isinstance(link, str) else link
    terrain = replace(where if isinstance(where, Terrain) else Terrain.of(where, scores_per_device), shape=shape)
    if (asked := make_requirement(target, rank, pac_confidence)) != DEFAULT:
        terrain = replace(terrain, requirement=asked)
    given = dict(options or {})
    rows, refused = [], {}
    for way in ways_of(methods, given):
        try:
            found = predict(way, terrain, level, given)
        except (ValueError, ArithmeticError) as reason:
            refused[way] = str(reason)
            continue
        rows.append(_row(way, found, terrain, found_link, speed or Speed.here()))
    kept = [row for row in rows if KIND_ORDER.index(row.guarantee) <= KIND_ORDER.index(guarantee)]
    kept.sort(key=lambda row: (row.tier, row.price(sort), row.price("bytes")))
    return Plan(terrain, float(level), found_link, sort, tuple(kept), refused)


def _check_plan(where: Any, link: Any, methods: Any, options: Any) -> None:
    """Refuse arguments of `plan` that are of the wrong kind."""
    if not isinstance(where, Network | Sketch | Terrain):
        instead = "Network.of('torus', 20)"
        if hasattr(where, "adj"):
            instead = "Network.from_networkx(graph)"
        elif isinstance(where, str | int):
            instead = f"Network.of({where!r}, 20)" if isinstance(where, str) else f"Network.of('torus', {where})"
        raise TypeError(
            f"where must be a Network, a sketch of one or a Terrain, got {type(where).__name__} {str(where)[:40]!r}; "
            f"{instead} makes a Network"
        )
    if not isinstance(link, str | Link):
        raise TypeError(f"link must be a Link or a text such as '100ms,1Mbit', got {type(link).__name__} {link!r:.40}")
    if isinstance(methods, str):
        raise TypeError(f"methods must be a list of names, got {methods!r}; for one of them write [{methods!r}]")
    if not isinstance(options, Mapping | None):
        raise TypeError(
            f"options must be a dict of options of the methods, got {type(options).__name__} {options!r:.40}"
        )
    known = {name for way in ways_of(methods) for name in get_method(way.method).option_names()}
    if strange := next((name for name in options or () if name not in known), None):
        raise ValueError(
            f"options: none of the methods has {strange!r}; they have {', '.join(sorted(known)) or 'none'}"
        )


def predict(way: Way, terrain: Terrain, alpha: Fraction, options: Mapping[str, Any]) -> Prediction:
    """Predict one way; raises `ValueError` with the reason where it cannot run, or cannot be predicted."""
    entry = get_method(way.method)
    if entry.predict is None:
        raise ValueError("nobody has said what it sends; give its line in METHODS a `predict`")
    mine = {name: value for name, value in options.items() if name in entry.option_names()}
    return entry.predict(terrain, alpha, make_options(way.method, {**mine, **way.options}))


def certainty_of(found: Prediction, terrain: Terrain) -> Certainty:
    """Say whether a run would cost exactly this."""
    depends = found.varies or any(one.expected for one in found.stretches)
    return "estimate" if depends or found.uses & terrain.laws else "exact"


def _row(way: Way, found: Prediction, terrain: Terrain, link: Link, speed: Speed) -> Row:
    sent, degree = Sent.of(found.stretches), terrain.map.largest_degree
    worst = None if found.most is None else Sent.of(found.most)
    memory, simulation = simulated(found, terrain, speed)
    meshed = on_a_mesh(found.stretches, terrain)
    fits = fits_a_mesh(meshed)
    return Row(
        way=way,
        certainty=certainty_of(found, terrain),
        guarantee=found.guarantee,
        assumption=found.assumption,
        needs=way.needs,
        rounds=_plain(sent.rounds),
        numbers=_plain(sent.numbers),
        bits=_plain(sent.bits),
        most_bits=_plain(sent.most_bits),
        seconds=seconds_on(link, found.stretches, degree),
        wire_bytes=bytes_on_the_wire(meshed, terrain.mean_degree, terrain.devices) if fits else math.inf,
        mesh_seconds=mesh_seconds_on(link, meshed, degree, terrain.devices) if fits else math.inf,
        memory=memory,
        simulation=simulation,
        likely=found.rounds,
        at_most=None if worst is None else (worst.rounds, worst.bits / 8),
        useful=found.useful,
        exact=found.exact,
        notes=found.notes,
        facts=found.facts,
        stretches=found.stretches,
    )


def _short(row: Row) -> str:
    about = "" if row.certainty == "exact" else "about "
    return f"{about}{row.rounds:,.0f} rounds, {in_bytes(row.bits / 8)} a device, {in_time(row.seconds)}"


def _finite(number: float) -> float | None:
    return None if math.isinf(number) else _plain(number)


def _plain(number: float) -> float:
    return int(number) if float(number).is_integer() else float(number)
