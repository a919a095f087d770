"""`Block`: the local devices and what they know before the first message. `Answers`: what a method returns at the end.

A block holds all devices in the simulator, some of them on an MPI rank, one on a mesh; a protocol is the same code for
all. Arrays have the local devices on their first axis, in the order of `Block.rows`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from msgspec import structs
from numpy.typing import NDArray

from conformesh.common.array_types import Ints
from conformesh.graph.network import Network
from conformesh.kernels.ranks import DEFAULT_REQUIREMENT, SHARE_BY_SIZE, BoundedMixtures, Demand, Requirement
from conformesh.kernels.weighted_scores import WeightedScores
from conformesh.results.certificate import CERTIFICATE_KINDS, Certificate, Cost
from conformesh.results.window import Window

if TYPE_CHECKING:
    from conformesh.protocols.masks import Secrets


def edge_positions(network: Network, rows: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the positions of the directed edges to some devices in the network's CSR order."""
    counts = network.degree[rows]
    within = np.arange(int(counts.sum())) - np.repeat(np.cumsum(counts) - counts, counts)
    return np.asarray(np.repeat(network.indptr[rows], counts) + within)


@dataclass(eq=False)
class SearchProgress:
    """What an observer sees of a protocol while it runs: the state of its first trial and level.

    A protocol writes here and never reads, an observer reads and never writes. So observing cannot change a run.

    Attributes
    ----------
    bracket
        The thresholds between which the answer lies, and the weight at or below each, where a local device knows it.
    estimates
        Reads the current threshold of every local device from the values of a message, where they contain it.
    heard
        In a flood: the number of devices (`heard`) or scores (`known`) whose entries each local device has by now.
    """

    bracket: tuple[float, float, int | None, int | None] | None = None
    estimates: Callable[[NDArray[Any]], NDArray[np.float64]] | None = None
    heard: tuple[str, Callable[[], NDArray[np.int64]]] | None = None

    def clear(self) -> None:
        """Forget the last run."""
        self.bracket = self.estimates = self.heard = None


class WindowRequest(NamedTuple):
    """Which scores around the required rank a run returns, besides the score of this rank: one of the two.

    Attributes
    ----------
    values
        About how many distinct scores: half of them at or below the rank, half above, by the average weight of a score.
        There are fewer where scores are tied or end.
    reach
        For each column: all scores whose counts differ from the rank by at most this weight, and one score beyond on
        each side.
    """

    values: int | None = 16
    reach: Ints | None = None


@dataclass(frozen=True, eq=False)
class Block:
    """A block of devices: all of them in the simulator, one on a real device.

    The paper takes the graph, K and every n_k as known to all devices; so does this library, and nothing else.

    Attributes
    ----------
    network
        The map. Methods that must do without it estimate what they need by message passing.
    rows
        Rows of the local devices: ascending or, where all devices are local, in the order of their data in memory.
    sizes
        Number of scores of every device of the network, shape (devices, trials).
    requirement
        The mixture of devices that thresholds must cover, and the rank rule.
    items
        Number of calibration examples of every device, shape of `sizes`, where these are not its scores: a group has a
        part of them, a loss has several scores for each. By default the sizes.
    alphas
        The levels of the run.
    caps
        Maximum number of scores of every device, (devices,), where a roster states it.
    asked
        The levels that are needed of each column, (columns, levels); None: all of them.
    window
        Which scores around every required rank are needed too; None: none.
    progress
        The state that observers see while the run goes on.
    secrets
        Secrets of the local devices on a mesh; None in a simulation, which draws fresh ones.
    """

    network: Network
    rows: NDArray[np.int64]
    sizes: NDArray[np.int64]
    requirement: Requirement = DEFAULT_REQUIREMENT
    items: NDArray[np.int64] | None = None
    alphas: tuple[Fraction, ...] = ()
    caps: NDArray[np.int64] | None = None
    asked: NDArray[np.bool_] | None = None
    window: WindowRequest | None = None
    progress: SearchProgress = field(default_factory=SearchProgress)
    secrets: Secrets | None = None

    @classmethod
    def everywhere(cls, network: Network, sizes: NDArray[np.int64]) -> Block:
        """Return the block that hosts every device."""
        return cls(network, np.arange(network.devices), sizes)

    @property
    def devices(self) -> int:
        """K, the number of devices in the whole network."""
        return self.network.devices

    @property
    def trials(self) -> int:
        """Number of independent draws (or columns) that share the messages of a run."""
        return int(self.sizes.shape[1])

    @property
    def totals(self) -> NDArray[np.int64]:
        """n, the number of scores in the whole network, shape (trials,)."""
        return np.asarray(self.sizes.sum(axis=0), dtype=np.int64)

    @property
    def degree(self) -> NDArray[np.float64]:
        """Number of neighbours of each local device."""
        return self.network.degree[self.rows].astype(np.float64)

    def local(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the positions of local devices in `rows`; raise `ValueError` for others."""
        if len(self.rows) < self.devices:
            places = np.asarray(np.searchsorted(self.rows, rows), dtype=np.int64)
            if len(rows) and not np.array_equal(self.rows[np.minimum(places, len(self.rows) - 1)], rows):
                raise ValueError(f"devices {rows[:5].tolist()} are not all hosted here: a block knows only its own")
            return places
        place: NDArray[np.int64] | None = self._place
        if place is None:
            return rows
        found: NDArray[np.int64] = place[rows]
        return found

    @cached_property
    def _place(self) -> NDArray[np.int64] | None:
        """Position of every row, None if they are in order; for a block that holds all devices."""
        if (self.rows == np.arange(self.devices)).all():
            return None
        place = np.empty(self.devices, dtype=np.int64)
        place[self.rows] = np.arange(self.devices)
        return place

    @property
    def edge_rows(self) -> NDArray[np.int64]:
        """Positions of the directed edges of the local devices in the network's CSR order."""
        return edge_positions(self.network, self.rows)

    @cached_property
    def demands(self) -> list[Demand]:
        """Return the rank rule that the requirement gives in every trial."""
        held = self.sizes if self.items is None else self.items
        given, ids = self.requirement.shares, self.network.ids
        shares = None if given is None else tuple(given[name] for name in ids)
        known: dict[bytes, Demand] = {}  # draws of one experiment often have the same sizes
        for sizes in held.T:
            if (key := sizes.tobytes()) not in known:
                known[key] = self.requirement.demand(sizes, self.alphas, shares=shares)
        return [known[sizes.tobytes()] for sizes in held.T]

    def bounded_mixtures(self, trial: int, alpha: Fraction) -> BoundedMixtures:
        """Return the mixtures that a trial must cover at a level, where their shares have a bound."""
        requirement = self.requirement
        assert requirement.mixture_bound is not None
        items = (self.sizes if self.items is None else self.items)[:, trial].tolist()
        shares = requirement.shares
        if shares is None:
            each = [Fraction(SHARE_BY_SIZE[requirement.mixture](n)) for n in items]
        else:
            each = [shares[name] for name in self.network.ids]
        return BoundedMixtures(requirement.mixture_bound, each, self.sizes[:, trial].tolist(), items, alpha)

    def weighed(self, samples: WeightedScores) -> WeightedScores:
        """Return the local scores with the weights that the requirement gives them, whole numbers."""
        demands = self.demands
        if all(demand.weights is None for demand in demands):
            return samples
        ones = np.ones(self.devices, dtype=np.int64)
        each = np.stack([ones if demand.weights is None else demand.weights for demand in demands], axis=1)[self.rows]
        own = np.ones(len(samples.values), np.int64) if samples.weights is None else samples.weights
        lost = np.zeros(len(samples.offsets) - 1, np.int64) if samples.rounding_loss is None else samples.rounding_loss
        mass = samples.example_mass
        if not self.requirement.loss_unit or mass is not None:
            # Each weight is rounded down by less than one unit, besides what was lost before. Ranks are raised by
            # this sum, so rounding never lowers a threshold.
            rounded = np.array([demand.rounded for demand in demands], dtype=np.int64)
            examples = samples.masses.ravel() if mass is None else mass
            lost = each.ravel() * lost + np.tile(rounded, len(self.rows)) * (examples + lost)
        rounding_loss = lost if lost.any() else None
        weights = own * np.repeat(each.ravel(), samples.sizes.ravel())
        return samples.with_weights(weights, rounding_loss, None if mass is None else mass * each.ravel())

    @property
    def most(self) -> int:
        """Upper bound of all sums of weights of a trial."""
        return max((demand.total for demand in self.demands), default=0) * self.requirement.largest_factor

    @property
    def masses(self) -> NDArray[np.int64]:
        """Total weight of the scores of every device, (devices, trials), where all of them weigh the same."""
        each = [demand.weights for demand in self.demands]
        if all(weights is None for weights in each):
            return self.sizes
        return np.stack([n if w is None else w * n for w, n in zip(each, self.sizes.T, strict=True)], axis=1)

    @property
    def rounding_loss(self) -> NDArray[np.int64]:
        """What rounding took from the weights of each trial at most, where all scores of a device weigh the same."""
        # Each score loses less than one unit.
        return np.asarray(self.totals * [demand.rounded for demand in self.demands])

    def ranks(
        self,
        totals: NDArray[np.int64] | None = None,
        rounding_loss: NDArray[np.int64] | None = None,
        masses: NDArray[np.int64] | None = None,
    ) -> NDArray[np.int64]:
        """Return the required rank of every (column, level); one that is not asked for gets an unreachable rank.

        `totals` has the total weight of each column where it does not follow from the sizes, `rounding_loss` the weight
        lost to rounding, and `masses` the weight of the examples where scores are drops of losses.
        """
        if totals is None:
            totals = self.masses.sum(axis=0)
            rounding_loss = self.rounding_loss
        weigh = totals.tolist()
        more = [0] * len(weigh) if rounding_loss is None else rounding_loss.tolist()
        mass = [0] * len(weigh) if masses is None else masses.tolist()
        known: dict[tuple[int, ...], list[int]] = {}  # most draws of one experiment ask for the same
        rows = []
        for t, demand in enumerate(self.demands):
            key = (id(demand), t % self._distinct_weights, weigh[t], more[t], mass[t])
            if key not in known:
                known[key] = [
                    demand.required(self.requirement, a, t, level, weigh[t], more[t], mass[t])
                    for level, a in enumerate(self.alphas)
                ]
            rows.append(known[key])
        ranks = np.array(rows, dtype=np.int64)
        return ranks if self.asked is None else np.where(self.asked, ranks, totals[:, None] + 1)

    @property
    def _distinct_weights(self) -> int:
        """Period after which the largest weights and test weights of columns repeat."""
        return max(len(self.requirement.largest_weights), len(self.requirement.test_weights or ()))

    @property
    def knows_totals(self) -> bool:
        """Whether the total weight follows from the sizes: no score has a weight of its own."""
        return self.requirement.has_equal_weights

    @property
    def rounds_weights(self) -> bool:
        """Whether ranks depend on more than the total weight: on what rounding lost, or on the weight of examples."""
        rounded = any(demand.rounded for demand in self.demands)
        return self.requirement.is_weighted and (rounded or not self.requirement.has_equal_weights)

    def alike(self, trial: int) -> bool:
        """Return whether every score of a trial weighs 1, so that ranks count scores."""
        return self.demands[trial].weights is None and self.requirement.has_equal_weights

    def signed(self, certificate: Certificate, trial: int, level: int) -> Certificate:
        """Return the certificate completed by mixture, rank rule and weights of the requirement."""
        return with_guarantee(certificate, self.demands[trial], self.requirement, trial, level, self.alphas[level])


# What a confidence at all looks needs besides independent scores: one mixture, and that which scores a look has, and
# their order, do not depend on their values.
_ARRIVAL = "all calibrations have the same devices, and scores arrive in an order that does not depend on their values"


def with_guarantee(
    certificate: Certificate, demand: Demand, requirement: Requirement, trial: int, level: int, alpha: Fraction
) -> Certificate:
    """Return the certificate completed by mixture, rank rule and weights of the requirement."""
    if certificate.required_rank is None:
        return certificate
    shown = requirement.is_weighted and {*requirement.largest_weights} != {1}
    alike = demand.weights is None and requirement.has_equal_weights
    return structs.replace(
        certificate,
        bound=requirement.largest_weight(trial) if shown else None,
        test=requirement.test_weight(trial, level) if shown else None,
        mixture=requirement.mixture,
        rule=demand.rule_at(alpha),
        weight=certificate.weight if certificate.weight is not None or alike else demand.total,
        mixture_bound=requirement.mixture_bound,
        pac_confidence=None if requirement.pac_confidence is None else float(requirement.pac_confidence),
        time_uniform=requirement.time_uniform,
        assumption=" and ".join(filter(None, [certificate.assumption, _ARRIVAL * requirement.time_uniform])),
        losses=_largest_loss(certificate, demand, requirement),
    )


def _largest_loss(certificate: Certificate, demand: Demand, requirement: Requirement) -> int | None:
    """Return the largest possible loss of all examples; of a part of them only the protocol knows it."""
    if not requirement.loss_unit or certificate.losses is not None:
        return certificate.losses
    return requirement.loss_unit * demand.total


@dataclass(frozen=True, eq=False)
class Answers:
    """What a method returns: thresholds with their certificates, for every trial and alpha.

    Attributes
    ----------
    thresholds
        Shape (devices here, trials, alphas).
    certificates
        ``certificates[trial][alpha]``.
    estimates
        The method's estimate before any correction, shape of `thresholds`, where it has one.
    notes
        Warnings for the user, with what to change; one list for the run.
    facts
        What was chosen during the run, by name; all of it can be written as JSON.
    trial_facts
        The same for each trial, where trials are groups; may be empty.
    brackets
        Lower and upper threshold between which a search ended, (2, trials, alphas): the start of a later one.
    windows
        ``windows[trial][alpha]``: the scores around each required rank, where `Block.window` asked for them; the same
        on every device.
    sizes, cost
        Number of scores of every device, (devices, trials), or of all in one row, and the cost of the local devices,
        where only the protocol knows them: on a mesh, see `size_agreement`.
    problems
        The problem that each threshold answers (`pipeline.problems.Problem`), where only the protocol knows it.
    adapted
        With adapted scores: what predictions need besides windows (`results.adapted.AdaptedFacts`).
    device_rows
        With adapted scores on a mesh: the rows of the device itself (`results.adapted.DeviceRows`), by its name. They
        stay in its process.
    about_all
        Where thresholds cover only the devices that have reported so far: thresholds that cover all devices, which may
        be +inf.
    """

    thresholds: NDArray[np.float64]
    certificates: list[list[Certificate]]
    estimates: NDArray[np.float64] | None = None
    notes: tuple[str, ...] = ()
    facts: dict[str, Any] = field(default_factory=dict)
    brackets: NDArray[np.float64] | None = None
    windows: list[list[Window]] | None = None
    sizes: NDArray[np.int64] | None = None
    cost: Cost | None = None
    about_all: Answers | None = None
    problems: tuple[Any, ...] = ()
    adapted: Any = None
    device_rows: dict[str, Any] = field(default_factory=dict)
    trial_facts: list[dict[str, Any]] = field(default_factory=list)

    @classmethod
    def concatenate(cls, blocks: Sequence[NDArray[np.int64]], parts: Sequence[Answers]) -> Answers:
        """Return the answers of all devices from those of several blocks; `blocks` has the rows of each."""
        first = parts[0]
        if len(parts) == 1 and np.array_equal(blocks[0], np.arange(len(blocks[0]))):
            return first
        estimates = [part.estimates for part in parts if part.estimates is not None]
        return replace(
            first,
            thresholds=merge_rows(blocks, [part.thresholds for part in parts]),
            estimates=merge_rows(blocks, estimates) if estimates else None,
            certificates=[
                [_merge_certificates(blocks, [part.certificates[t][a] for part in parts]) for a in range(len(row))]
                for t, row in enumerate(first.certificates)
            ],
            notes=tuple(dict.fromkeys(note for part in parts for note in part.notes)),
        )


def merge_rows(blocks: Sequence[NDArray[np.int64]], parts: Sequence[NDArray[Any]]) -> NDArray[Any]:
    """Return one array for all devices from the rows that each block has."""
    whole = np.empty((sum(map(len, blocks)), *parts[0].shape[1:]), dtype=parts[0].dtype)
    for rows, part in zip(blocks, parts, strict=True):
        whole[rows] = part
    return whole


def _merge_certificates(blocks: Sequence[NDArray[np.int64]], parts: Sequence[Certificate]) -> Certificate:
    """Return one certificate for all blocks; they differ only in ranks that each device counts for itself.

    After lost messages some blocks know less: the weakest certificate and the smallest count are true for all.
    """

    def whole(name: str) -> Any:
        ranks = [getattr(part, name) for part in parts]
        if isinstance(ranks[0], tuple):
            return tuple(merge_rows(blocks, [*map(np.array, ranks)]).tolist())
        return None if None in ranks else min(ranks)

    short = {name: n for part in parts for name, n in part.short.items()}
    least = max(parts, key=lambda part: ([*CERTIFICATE_KINDS].index(part.kind), part.epsilon or 0.0))
    return structs.replace(least, required_rank=whole("required_rank"), counted_rank=whole("counted_rank"), short=short)
