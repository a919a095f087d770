"""What the devices hosted here know before the first message, and what a method hands back after the last."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from msgspec import structs
from numpy.typing import NDArray

from conformesh.graph.network import Network
from conformesh.kernels.ranks import DEFAULT, Demand, Requirement
from conformesh.kernels.weighted_scores import WeightedScores
from conformesh.results.certificate import CERTIFICATE_KINDS, Certificate, Cost

if TYPE_CHECKING:
    from conformesh.protocols.masks import Secrets


def edge_positions(network: Network, rows: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return where the directed edges to some devices stand in the network's CSR order."""
    counts = network.degree[rows]
    within = np.arange(int(counts.sum())) - np.repeat(np.cumsum(counts) - counts, counts)
    return np.asarray(np.repeat(network.indptr[rows], counts) + within)


@dataclass(eq=False)
class SearchProgress:
    """What somebody who looks on may see of a protocol at work: of its first trial and level, as it is at the moment.

    A protocol writes here and never reads, who looks on reads and never writes: what is shown cannot change a run.

    Attributes
    ----------
    bracket
        The thresholds between which the answer is looked for, and how much lies at or below each of them, where that is
        known here.
    estimates
        Reads the threshold so far of every device here off the values of a message, where these say so.
    heard
        Of how many devices (`heard`) or scores (`known`) each device here has heard by now, where they are passed on.
    """

    bracket: tuple[float, float, int | None, int | None] | None = None
    estimates: Callable[[NDArray[Any]], NDArray[np.float64]] | None = None
    heard: tuple[str, Callable[[], NDArray[np.int64]]] | None = None

    def clear(self) -> None:
        """Show nothing, before another run."""
        self.bracket = self.estimates = self.heard = None


@dataclass(frozen=True, eq=False)
class Block:
    """A block of devices: all of them in the simulator, one on a real device.

    The paper takes the graph, K and every n_k as known to all devices; so does this library, and nothing else.

    Attributes
    ----------
    network
        The map. Methods that must do without it estimate what they need by message passing.
    here
        Rows of the devices hosted here: ascending or, where all of them are, in the order in which they lie in memory.
        What is "here" below stands in this order.
    sizes
        How many scores every device of the network holds, shape (devices, trials).
    promise
        Whom the thresholds are to be about, and by which rule.
    items
        How many calibration examples every device holds, shape of `sizes`, where these are not its scores: trials that
        are groups have a part of them, losses have several steps each. By default the sizes.
    alphas
        The levels of the run.
    caps
        The most scores that every device may hold, (devices,), where that was said beforehand: in a roster.
    asked
        Which levels of each column were asked for, (columns, levels); None: all of them.
    shown
        What may be seen of the run while it goes on.
    secrets
        What the devices here keep to themselves, where they are real ones; a simulation draws fresh ones.
    """

    network: Network
    rows: NDArray[np.int64]
    sizes: NDArray[np.int64]
    requirement: Requirement = DEFAULT
    items: NDArray[np.int64] | None = None
    alphas: tuple[Fraction, ...] = ()
    caps: NDArray[np.int64] | None = None
    asked: NDArray[np.bool_] | None = None
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
        """How many independent draws ride along."""
        return int(self.sizes.shape[1])

    @property
    def totals(self) -> NDArray[np.int64]:
        """n, the number of scores in the whole network, shape (trials,)."""
        return np.asarray(self.sizes.sum(axis=0), dtype=np.int64)

    @property
    def degree(self) -> NDArray[np.float64]:
        """Number of neighbours of each device here."""
        return self.network.degree[self.rows].astype(np.float64)

    def local(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return where devices hosted here stand in `here`; others have no place."""
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
        """Where every row stands, if not in its own place; for a block that hosts everybody."""
        if (self.rows == np.arange(self.devices)).all():
            return None
        place = np.empty(self.devices, dtype=np.int64)
        place[self.rows] = np.arange(self.devices)
        return place

    @property
    def edge_rows(self) -> NDArray[np.int64]:
        """Where the directed edges of the devices here stand in the network's CSR order."""
        return edge_positions(self.network, self.rows)

    @cached_property
    def demands(self) -> list[Demand]:
        """Return what the promise asks for in every trial."""
        held = self.sizes if self.items is None else self.items
        given, ids = self.requirement.shares, self.network.ids
        shares = None if given is None else tuple(given[name] for name in ids)
        known: dict[bytes, Demand] = {}  # draws of one experiment often have the same sizes
        for sizes in held.T:
            if (key := sizes.tobytes()) not in known:
                known[key] = self.requirement.demand(sizes, self.alphas, shares=shares)
        return [known[sizes.tobytes()] for sizes in held.T]

    def weighed(self, samples: WeightedScores) -> WeightedScores:
        """Return the scores of the devices here with the weights that the promise gives them, whole numbers."""
        demands = self.demands
        if all(demand.weights is None for demand in demands):
            return samples
        ones = np.ones(self.devices, dtype=np.int64)
        each = np.stack([ones if demand.weights is None else demand.weights for demand in demands], axis=1)[self.rows]
        own = np.ones(len(samples.values), np.int64) if samples.weights is None else samples.weights
        lost = np.zeros(len(samples.offsets) - 1, np.int64) if samples.spares is None else samples.spares
        mass = samples.example_mass
        if not self.requirement.loss_unit or mass is not None:
            # rounded down by less than one part each, on top of what was lost before
            rounded = np.array([demand.rounded for demand in demands], dtype=np.int64)
            examples = samples.masses.ravel() if mass is None else mass
            lost = each.ravel() * lost + np.tile(rounded, len(self.rows)) * (examples + lost)
        spares = lost if lost.any() else None
        weights = own * np.repeat(each.ravel(), samples.sizes.ravel())
        return samples.weighing(weights, spares, None if mass is None else mass * each.ravel())

    @property
    def most(self) -> int:
        """No sum of weights of a trial is larger."""
        return max((demand.total for demand in self.demands), default=0) * self.requirement.largest_factor

    @property
    def masses(self) -> NDArray[np.int64]:
        """How much the scores of every device weigh together, (devices, trials), where each of them weighs alike."""
        each = [demand.weights for demand in self.demands]
        if all(weights is None for weights in each):
            return self.sizes
        return np.stack([n if w is None else w * n for w, n in zip(each, self.sizes.T, strict=True)], axis=1)

    def ranks(
        self,
        totals: NDArray[np.int64] | None = None,
        spares: NDArray[np.int64] | None = None,
        masses: NDArray[np.int64] | None = None,
    ) -> NDArray[np.int64]:
        """Return the required rank of every (column, level); of one that nobody asked for, more than all scores weigh.

        `totals` says what all scores of each column weigh, where that does not follow from how many there are,
        `spares` how much more they might have weighed before rounding, and `masses` what the examples weigh where
        scores are drops of losses.
        """
        if totals is None:
            totals = self.masses.sum(axis=0)
            spares = self.totals * [demand.rounded for demand in self.demands]  # each by less than one part
        weigh = totals.tolist()
        more = [0] * len(weigh) if spares is None else spares.tolist()
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
        """After how many columns the largest weights and test weights repeat."""
        return max(len(self.requirement.largest_weights), len(self.requirement.test_weights or ()))

    @property
    def knows_totals(self) -> bool:
        """Whether what all scores weigh follows from how many there are: no score has a weight of its own."""
        return self.requirement.has_equal_weights

    @property
    def rounds_weights(self) -> bool:
        """Whether more than the weight of all scores decides on a rank: what rounding lost, what examples weigh."""
        rounded = any(demand.rounded for demand in self.demands)
        return self.requirement.is_weighted and (rounded or not self.requirement.has_equal_weights)

    def alike(self, trial: int) -> bool:
        """Return whether every score weighs 1, so that ranks count scores."""
        return self.demands[trial].weights is None and self.requirement.has_equal_weights

    def signed(self, certificate: Certificate, trial: int, level: int) -> Certificate:
        """Return a certificate that says whom its rank is about, by which rule, and of which weight."""
        return with_guarantee(certificate, self.demands[trial], self.requirement, trial, level, self.alphas[level])


def with_guarantee(
    certificate: Certificate, demand: Demand, requirement: Requirement, trial: int, level: int, alpha: Fraction
) -> Certificate:
    """Return a certificate that says whom its rank is about, by which rule, and of which weight."""
    if certificate.required_rank is None:
        return certificate
    shown = requirement.is_weighted and {*requirement.largest_weights} != {1}
    alike = demand.weights is None and requirement.has_equal_weights
    return structs.replace(
        certificate,
        bound=requirement.largest_weight(trial) if shown else None,
        test=requirement.test_weight(trial, level) if shown else None,
        mixture=requirement.mixture,
        rule=demand.name(alpha),
        weight=certificate.weight if certificate.weight is not None or alike else demand.total,
        pac_confidence=None if requirement.pac_confidence is None else float(requirement.pac_confidence),
        losses=_largest_loss(certificate, demand, requirement),
    )


def _largest_loss(certificate: Certificate, demand: Demand, requirement: Requirement) -> int | None:
    """Return the largest possible loss of all examples; of a part of them only the protocol knows it."""
    if not requirement.loss_unit or certificate.losses is not None:
        return certificate.losses
    return requirement.loss_unit * demand.total


@dataclass(frozen=True, eq=False)
class Answers:
    """What a method hands back: thresholds with their reasons, for every trial and alpha at once.

    Attributes
    ----------
    thresholds
        Shape (devices here, trials, alphas).
    certificates
        ``certificates[trial][alpha]``.
    estimates
        The method's estimate before any correction, shape of `thresholds`, where it has one.
    notes
        Sentences for the user that deserve a warning: what to change. One list for the run.
    facts
        What was chosen on the way, for the record, by name; all of it can be written as JSON.
    trial_facts
        The same of each trial, where these are groups; empty where there is nothing to add.
    brackets
        Lower and upper threshold between which a search ended, (2, trials, alphas): where a later one may start.
    sizes, cost
        How many scores every device holds, (devices, trials), or in one row how many all do, and what the method cost
        the devices here, where nobody but the protocol knows: on a mesh, see `size_agreement`.
    problems
        Which problem each threshold answers (`pipeline.problems.Problem`), where nobody but the protocol knows.
    about_all
        Where thresholds are about those who were heard so far: what is certain about everybody, +inf if nothing is.
    """

    thresholds: NDArray[np.float64]
    certificates: list[list[Certificate]]
    estimates: NDArray[np.float64] | None = None
    notes: tuple[str, ...] = ()
    facts: dict[str, Any] = field(default_factory=dict)
    brackets: NDArray[np.float64] | None = None
    sizes: NDArray[np.int64] | None = None
    cost: Cost | None = None
    about_all: Answers | None = None
    problems: tuple[Any, ...] = ()
    trial_facts: list[dict[str, Any]] = field(default_factory=list)

    @classmethod
    def joined(cls, blocks: Sequence[NDArray[np.int64]], parts: Sequence[Answers]) -> Answers:
        """Return the outcome of all devices from those of blocks of them, `blocks` naming the rows of each."""
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
    """Return one table for all devices from each block's rows of it."""
    whole = np.empty((sum(map(len, blocks)), *parts[0].shape[1:]), dtype=parts[0].dtype)
    for rows, part in zip(blocks, parts, strict=True):
        whole[rows] = part
    return whole


def _merge_certificates(blocks: Sequence[NDArray[np.int64]], parts: Sequence[Certificate]) -> Certificate:
    """Return the certificate of all: the same everywhere, but for ranks that each device counts for itself.

    Where parts know more and less, as after lost messages, that of who knows least, and the smallest count.
    """

    def whole(name: str) -> Any:
        ranks = [getattr(part, name) for part in parts]
        if isinstance(ranks[0], tuple):
            return tuple(merge_rows(blocks, [*map(np.array, ranks)]).tolist())
        return None if None in ranks else min(ranks)

    least = max(parts, key=lambda part: ([*CERTIFICATE_KINDS].index(part.kind), part.epsilon or 0.0))
    return structs.replace(least, required_rank=whole("required_rank"), counted_rank=whole("counted_rank"))
