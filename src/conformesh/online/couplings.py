"""COUPLINGS: how devices combine their levels or counts with those of neighbours, on top of a learner.

========  =========================================================================  ==============================
alone     nothing                                                                    any learner
mixed     levels are averaged over the links that worked in both directions          integrators
counted   devices exchange their counts of labels and misses; levels follow from     integrators with constant steps
          all counts received
========  =========================================================================  ==============================

Each coupling says which learners it supports and what is guaranteed.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from conformesh.common.array_types import Bools, Floats, Ints
from conformesh.common.names import unknown_name
from conformesh.graph.network import Network
from conformesh.graph.weights import metropolis
from conformesh.online import bounds
from conformesh.online.bounds import SMALLEST_SCALE, MissGap
from conformesh.online.integrators import QuantileTracker
from conformesh.online.learners import PID, SFOGD, Learner


class NetworkLinks:
    """The links of a network, and averages over those that work in a step.

    Parameters
    ----------
    network
        The graph.
    """

    def __init__(self, network: Network) -> None:
        self.network = network
        self.receiver, self.sender = network.receivers, network.indices.astype(np.int64)

    @cached_property
    def _reverse(self) -> Ints:
        """The index of the reverse of every directed edge."""
        K = self.network.devices
        return np.searchsorted(self.receiver * K + self.sender, self.sender * K + self.receiver)

    @cached_property
    def _all_weights(self) -> Any:
        return metropolis(self.network).matrix(self.network)

    def working_both_ways(self, arrives: Bools) -> Bools:
        """Return the edges on which messages arrived in both directions."""
        return arrives & arrives[self._reverse]

    def average(self, x: Floats, arrives: Bools | None) -> Floats:
        """Return x averaged over these edges with Metropolis weights, which are doubly stochastic; None means all."""
        if arrives is None:
            return np.asarray(self._all_weights @ x)
        to, of = self.receiver[arrives], self.sender[arrives]
        degree = np.bincount(to, minlength=len(x))
        move = (x[of] - x[to]) / (1 + np.maximum(degree[to], degree[of]))
        return x + np.bincount(to, move, minlength=len(x))


# The neighbours' scale weighs as much as this many local scores. A choice, small so that local scores soon dominate.
_NEIGHBOUR_WEIGHT = 5
# Local scores after which the neighbours' scale is ignored: its weight is then below 5 / 1005, half a percent.
_ENOUGH_SCORES = 1000


class CoupledState(NamedTuple):
    """State of all devices.

    Attributes
    ----------
    inner
        The learner's state.
    local
        The local integrators, (devices,).
    scale, taken
        Running scale of the scores, and of how many, (devices,).
    counts
        Counts that each device knows: labels and misses of every device, (devices, devices) twice; empty without
        counting.
    """

    inner: Any
    local: Floats
    scale: Floats
    taken: Ints
    counts: tuple[Ints, ...] = ()


class BoundInputs(NamedTuple):
    """Everything that bounds depend on.

    Attributes
    ----------
    starts, members
        Levels at which each device started, summed over the times it joined, and how often it joined, (devices,).
    labels
        How many labels of each device have arrived, (devices,).
    late, unheard
        The most examples of the device itself, and of the whole network, that were predicted earlier than some example,
        have had their label since, and were not known there.
    clock
        How often the common clock has advanced.
    """

    starts: Floats
    members: Ints
    labels: Ints
    late: int
    unheard: int
    clock: int


class _Uncoupled:
    """Devices do not exchange anything."""

    def why_unsupported(self, learner: Learner) -> str:
        """Return why this learner cannot use the coupling, or an empty string."""
        return ""

    def begin(self, state: CoupledState) -> CoupledState:
        """Return the state before the first example."""
        return state

    def observe(self, state: CoupledState, miss: Bools, has_label: Bools) -> CoupledState:
        """Return the state after labels were taken in by the learner."""
        return state

    def share(self, rule: Rule, state: CoupledState, links: NetworkLinks, arrives: Bools | None) -> CoupledState:
        """Return the state after one round of messages, of which those along `arrives` got through; None means all."""
        return state

    def admit(self, rule: Rule, state: CoupledState, links: NetworkLinks, joining: Bools, hosts: Bools) -> CoupledState:
        """Return the state in which the devices in `joining` have joined, next to those in `hosts`."""
        fresh = rule.begin(len(joining))
        inner = _replace_rows(joining, fresh.inner, state.inner)
        if rule.learner.is_integrator:  # all devices share the clock
            inner = inner._replace(clock=state.inner.clock)
        return state._replace(
            inner=inner,
            local=np.where(joining, 0.0, state.local),
            scale=np.where(joining, fresh.scale, state.scale),
            taken=np.where(joining, 0, state.taken),
        )

    def gap(self, learner: Any, past: BoundInputs) -> MissGap | None:
        """Return the bound on the misses of all devices together; None if none is known."""
        gaps = [self.device_gap(learner, past, row) for row in range(len(past.members))]
        return None if any(gap is None for gap in gaps) else sum((g for g in gaps if g is not None), MissGap(0.0, 0.0))

    def device_gap(self, learner: Any, past: BoundInputs, row: int) -> MissGap | None:
        """Return the bound on the misses of one device; None if none is known."""
        if past.members[row] == 0:
            return MissGap(0.0, 0.0)
        start, members, labels = float(past.starts[row]), int(past.members[row]), int(past.labels[row])
        once = members == 1  # bounds of the other learners hold for one start only
        if isinstance(learner, QuantileTracker):
            if learner.has_constant_step and once:
                return bounds.tracker_gap(start, learner.alpha, learner.step, learner.high, past.late)
            return bounds.mixed_levels_gap(
                start, members, learner.alpha, _steps(learner, past), learner.high, past.late
            )
        if isinstance(learner, SFOGD) and once:
            return bounds.sf_ogd_gap(labels, learner.alpha, learner.scale, learner.high, past.late)
        if isinstance(learner, PID) and once and learner.gain > 0:
            return bounds.pid_gap(labels, learner.alpha, learner.saturation, past.late)
        return None


class _Mixed(_Uncoupled):
    """Levels are averaged: each device sends one number per step to each neighbour."""

    def why_unsupported(self, learner: Learner) -> str:
        """Return why this learner cannot use the coupling, or an empty string."""
        if learner.is_integrator:
            return ""
        return (
            f"{type(learner).__name__} cannot be mixed: it is no integrator, so an average of two states keeps no sum "
            "of misses and nothing would be guaranteed; run it alone, or mix 'tracker', 'decaying' or 'aci'"
        )

    def share(self, rule: Rule, state: CoupledState, links: NetworkLinks, arrives: Bools | None) -> CoupledState:
        """Return the state after one round of messages, of which those along `arrives` got through; None means all."""
        working = None if arrives is None else links.working_both_ways(arrives)
        inner = rule.learner.move_levels(state.inner._replace(level=links.average(state.inner.level, working)))
        if rule.scale == 0 or (state.taken > _ENOUGH_SCORES).all():
            return state._replace(inner=inner)
        weight = _NEIGHBOUR_WEIGHT / (_NEIGHBOUR_WEIGHT + state.taken)  # large on a device with few scores
        scale = state.scale + weight * (links.average(state.scale, working) - state.scale)
        return state._replace(inner=inner, scale=np.maximum(scale, SMALLEST_SCALE))

    def admit(self, rule: Rule, state: CoupledState, links: NetworkLinks, joining: Bools, hosts: Bools) -> CoupledState:
        """Return the state in which the devices in `joining` have joined at the mean of their neighbours in `hosts`."""
        state = super().admit(rule, state, links, joining, hosts)
        welcoming = joining[links.receiver] & hosts[links.sender]
        to, of = links.receiver[welcoming], links.sender[welcoming]
        many = np.bincount(to, minlength=len(joining))

        def mean(x: Floats) -> Floats:
            return np.where(many > 0, np.bincount(to, x[of], minlength=len(x)) / np.maximum(many, 1), x)

        taken = np.where(many > 0, _NEIGHBOUR_WEIGHT, state.taken)  # a scale from neighbours counts as some scores
        inner = state.inner._replace(level=mean(state.inner.level))
        return state._replace(inner=inner, scale=mean(state.scale), taken=taken)

    def gap(self, learner: Any, past: BoundInputs) -> MissGap | None:
        """Return the bound on the misses of all devices together."""
        starts, members = float(past.starts.sum()), int(past.members.sum())
        return bounds.mixed_levels_gap(starts, members, learner.alpha, _steps(learner, past), learner.high, past.late)

    def device_gap(self, learner: Any, past: BoundInputs, row: int) -> MissGap | None:
        """Return None: without a local integrator averaging may keep one device far from alpha."""
        return None


class _Counted(_Mixed):
    """Devices exchange counts of labels and misses; each level follows from all counts its device knows."""

    def why_unsupported(self, learner: Learner) -> str:
        """Return why this learner cannot use the coupling, or an empty string."""
        if learner.is_integrator and getattr(learner, "has_constant_step", False):
            return ""
        return (
            f"{type(learner).__name__} cannot be counted: counts of misses determine a level only where every miss "
            "moves it by the same step; run it alone, or count with 'tracker' or 'aci'"
        )

    def begin(self, state: CoupledState) -> CoupledState:
        """Return the state before the first example."""
        K = len(state.local)
        return state._replace(counts=(np.zeros((K, K), dtype=np.int64), np.zeros((K, K), dtype=np.int64)))

    def observe(self, state: CoupledState, miss: Bools, has_label: Bools) -> CoupledState:
        """Return the state after labels, which every device counts for itself."""
        labels, misses = (table.copy() for table in state.counts)
        diagonal = np.arange(len(miss))  # a device's count of itself
        labels[diagonal, diagonal] += has_label
        misses[diagonal, diagonal] += has_label & miss
        return state._replace(counts=(labels, misses))

    def share(self, rule: Rule, state: CoupledState, links: NetworkLinks, arrives: Bools | None) -> CoupledState:
        """Return the state after one round of messages. Counts only grow, so the larger of two is the newer one."""
        to, of = (links.receiver, links.sender) if arrives is None else (links.receiver[arrives], links.sender[arrives])
        tables = []
        for table in state.counts:
            merged = table.copy()
            np.maximum.at(merged, to, table[of])
            tables.append(merged)
        return self._with_levels(rule, state._replace(counts=tuple(tables)))

    def admit(self, rule: Rule, state: CoupledState, links: NetworkLinks, joining: Bools, hosts: Bools) -> CoupledState:
        """Return the state in which the devices in `joining` have joined and have received their neighbours' counts."""
        state = super().admit(rule, state, links, joining, hosts)
        welcoming = joining[links.receiver] & hosts[links.sender]
        return self.share(rule, state, links, welcoming)

    def gap(self, learner: Any, past: BoundInputs) -> MissGap | None:
        """Return the bound on the misses of all devices together."""
        each = learner.step / len(past.members)
        return bounds.counted_levels_gap(learner.start, learner.alpha, each, learner.high, past.unheard)

    def _with_levels(self, rule: Rule, state: CoupledState) -> CoupledState:
        labels, misses = state.counts[:2]
        learner = rule.learner
        excess = misses.sum(axis=1) - learner.alpha * labels.sum(axis=1)
        level = learner.start + learner.step / len(excess) * excess
        return state._replace(inner=state.inner._replace(level=level, held=np.zeros(len(level))))


COUPLINGS: dict[str, _Uncoupled] = {"alone": _Uncoupled(), "mixed": _Mixed(), "counted": _Counted()}


def _steps(learner: Any, past: BoundInputs) -> tuple[float, float]:
    return learner.step_at(0), learner.step_at(max(past.clock - 1, 0))


def _replace_rows(joining: Bools, new: Any, old: Any) -> Any:
    """Return arrays, or named tuples of them, with the rows in `who` from the new one."""
    if new is None:
        return None
    if isinstance(new, tuple):
        return type(new)(*(_replace_rows(joining, a, b) for a, b in zip(new, old, strict=True)))
    return np.where(joining.reshape(-1, *[1] * (new.ndim - 1)), new, old)


@dataclass(frozen=True)
class Rule:
    """A learner, its coupling to the network, and two options.

    Attributes
    ----------
    learner
        An entry of `LEARNERS` with its options.
    coupling
        A name of `COUPLINGS`.
    local
        The step of the local integrator that each device adds; 0 for none.
    scale
        How much the newest score weighs in the device's running scale, by which scores are divided; 0 for no scale.
        Options of the learner are then in units of that scale, about a mean score.
    """

    learner: Any
    coupling: str = "alone"
    local: float = 0.0
    scale: float = 0.0

    def __post_init__(self) -> None:
        if self.coupling not in COUPLINGS:
            raise ValueError(unknown_name("coupling", self.coupling, COUPLINGS))
        if reason := COUPLINGS[self.coupling].why_unsupported(self.learner):
            raise ValueError(reason)
        if not all(isinstance(value, int | float | np.number) for value in (self.local, self.scale)):
            raise TypeError(f"local and scale must be numbers, got {self.local!r} and {self.scale!r}")
        if self.local < 0 or not 0 <= self.scale <= 1:
            raise ValueError(f"local must be at least 0 and scale in [0, 1], got {self.local!r} and {self.scale!r}")
        if self.local and not self.learner.is_integrator:
            raise ValueError(
                f"a local integrator needs levels with a high end, and {type(self.learner).__name__} has none; "
                "take 'tracker', 'decaying' or 'aci', or local=0"
            )

    def begin(self, devices: int) -> CoupledState:
        """Return the state of so many devices before the first example."""
        taken = np.zeros(devices, dtype=np.int64)
        state = CoupledState(self.learner.begin(devices), np.zeros(devices), np.ones(devices), taken)
        return COUPLINGS[self.coupling].begin(state)

    def threshold(self, state: CoupledState) -> Floats:
        """Return the thresholds for the next examples, (devices,)."""
        if self.local == 0:
            found: Floats = self.learner.threshold(state.inner)
        else:
            level = np.clip(state.inner.level, 0.0, self.learner.high) + state.local
            found = self.learner.thresholds_at(state.inner, level)
        return found if self.scale == 0 else found * state.scale

    def observe(self, state: CoupledState, score: Floats, has_label: Bools, miss: Bools | None = None) -> CoupledState:
        """Return the state after labels of the devices in `has_label`, as in `QuantileTracker.observe`."""
        if miss is None:
            miss = score > self.threshold(state)
        scaled = score if self.scale == 0 else score / state.scale
        inner = self.learner.observe(state.inner, scaled, has_label, miss)
        if self.local:
            local = state.local + self.local * np.where(has_label, miss - self.learner.alpha, 0.0)
            state = state._replace(local=local)
            inner = inner._replace(held=np.zeros(len(local)))  # the local integrator compensates for it
        if self.scale:
            state = self._scaled(state, score, has_label)
        return COUPLINGS[self.coupling].observe(state._replace(inner=inner), miss, has_label)

    def _scaled(self, state: CoupledState, score: Floats, has_label: Bools) -> CoupledState:
        weight = np.where(has_label, np.maximum(self.scale, 1 / (state.taken + 1)), 0.0)
        scale = state.scale + weight * (np.where(has_label, score, 0.0) - state.scale)
        return state._replace(scale=np.maximum(scale, SMALLEST_SCALE), taken=state.taken + has_label)

    def share(self, state: CoupledState, links: NetworkLinks, arrives: Bools | None = None) -> CoupledState:
        """Return the state after one round of messages, of which those along `arrives` got through; None means all."""
        return COUPLINGS[self.coupling].share(self, state, links, arrives)

    def admit(self, state: CoupledState, links: NetworkLinks, joining: Bools, hosts: Bools) -> CoupledState:
        """Return the state in which the devices in `joining` have joined, next to those in `hosts`."""
        return COUPLINGS[self.coupling].admit(self, state, links, joining, hosts)

    def gap(self, past: BoundInputs) -> MissGap | None:
        """Return the bound on the misses of all devices together; None if none is known."""
        if self.local:
            one = bounds.local_integrator_gap(self.learner.alpha, self.local, self.learner.high, past.late)
            members = int(past.members.sum())
            return MissGap(members * one.down, members * one.up)
        return COUPLINGS[self.coupling].gap(self.learner, past)

    def device_gap(self, past: BoundInputs, row: int) -> MissGap | None:
        """Return the bound on the misses of one device, over all the times that it was present."""
        if self.local:
            one = bounds.local_integrator_gap(self.learner.alpha, self.local, self.learner.high, past.late)
            return MissGap(one.down * int(past.members[row]), one.up * int(past.members[row]))
        return COUPLINGS[self.coupling].device_gap(self.learner, past, row)

    def why_no_bound(self) -> str:
        """Return why no bound is known."""
        if self.coupling != "alone":
            return "of one device nothing is guaranteed without a local integrator"
        return f"no bound is known for {type(self.learner).__name__}"
