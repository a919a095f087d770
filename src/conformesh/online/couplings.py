"""COUPLINGS: what devices make of each other's misses, on top of a learner.

========  =========================================================================  ==============================
alone     nothing                                                                    any learner
mixed     levels are averaged over the links that worked in both directions          integrators
counted   every device spreads how many labels and misses it had; levels follow      integrators with constant steps
          from all that was heard
========  =========================================================================  ==============================

Which learner goes with which coupling, and what is then guaranteed, each coupling says.
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
from conformesh.online.bounds import SMALLEST, Gap
from conformesh.online.integrators import QuantileTracker
from conformesh.online.learners import PID, SFOGD, Learner


class Links:
    """Who may talk to whom, and whose messages got through.

    Parameters
    ----------
    network
        The graph.
    """

    def __init__(self, network: Network) -> None:
        self.network = network
        self.receiver, self.sender = network.receivers, network.indices.astype(np.int64)

    @cached_property
    def _back(self) -> Ints:
        """Where the other direction of every edge stands."""
        K = self.network.devices
        return np.searchsorted(self.receiver * K + self.sender, self.sender * K + self.receiver)

    @cached_property
    def _whole(self) -> Any:
        return metropolis(self.network).matrix(self.network)

    def both(self, arrives: Bools) -> Bools:
        """Return along which edges something got through both ways."""
        return arrives & arrives[self._back]

    def averaged(self, x: Floats, arrives: Bools | None) -> Floats:
        """Return x averaged over these edges with Metropolis weights, which are doubly stochastic; None means all."""
        if arrives is None:
            return np.asarray(self._whole @ x)
        to, of = self.receiver[arrives], self.sender[arrives]
        degree = np.bincount(to, minlength=len(x))
        move = (x[of] - x[to]) / (1 + np.maximum(degree[to], degree[of]))
        return x + np.bincount(to, move, minlength=len(x))


_YOUNG = 5  # scores that what neighbours have seen is worth, beside a device's own
_OLD = 1000  # scores after which it is not asked for any more


class Coupled(NamedTuple):
    """Where all devices stand.

    Attributes
    ----------
    inner
        The learner's state.
    local
        The local integrators, (devices,).
    scale, taken
        Running scale of the scores, and of how many, (devices,).
    heard
        What every device has heard: labels and misses of each, (devices, devices) twice; empty if nothing is counted.
    """

    inner: Any
    local: Floats
    scale: Floats
    taken: Ints
    heard: tuple[Ints, ...] = ()


class Past(NamedTuple):
    """What bounds depend on.

    Attributes
    ----------
    starts, members
        Levels at which each device began, added up over all the times that it came, and how often it came, (devices,).
    labels
        How many labels of each device have come, (devices,).
    late, unheard
        The most examples of the device itself, and of the whole network, that were predicted earlier than some example,
        have had their label since, and were not known there.
    clock
        How often labels were awaited.
    """

    starts: Floats
    members: Ints
    labels: Ints
    late: int
    unheard: int
    clock: int


class _Uncoupled:
    """Every device for itself."""

    def refusal(self, learner: Learner) -> str:
        """Return why this learner cannot be coupled so, or nothing."""
        return ""

    def begin(self, state: Coupled) -> Coupled:
        """Return the state before the first example."""
        return state

    def observe(self, state: Coupled, miss: Bools, seen: Bools) -> Coupled:
        """Return the state after labels were taken in by the learner."""
        return state

    def share(self, rule: Rule, state: Coupled, links: Links, arrives: Bools | None) -> Coupled:
        """Return the state after one round of messages, of which those along `arrives` got through; None means all."""
        return state

    def welcome(self, rule: Rule, state: Coupled, links: Links, who: Bools, hosts: Bools) -> Coupled:
        """Return the state in which the devices in `who` have joined, next to those in `hosts`."""
        fresh = rule.begin(len(who))
        inner = _chosen(who, fresh.inner, state.inner)
        if rule.learner.linear:  # time is common
            inner = inner._replace(clock=state.inner.clock)
        return state._replace(
            inner=inner,
            local=np.where(who, 0.0, state.local),
            scale=np.where(who, fresh.scale, state.scale),
            taken=np.where(who, 0, state.taken),
        )

    def gap(self, learner: Any, past: Past) -> Gap | None:
        """Return how far misses of all devices together can get from `alpha`; None where nobody knows."""
        gaps = [self.own(learner, past, row) for row in range(len(past.members))]
        return None if any(gap is None for gap in gaps) else sum((g for g in gaps if g is not None), Gap(0.0, 0.0))

    def own(self, learner: Any, past: Past, row: int) -> Gap | None:
        """Return the same of one device."""
        if past.members[row] == 0:
            return Gap(0.0, 0.0)
        start, members, labels = float(past.starts[row]), int(past.members[row]), int(past.labels[row])
        once = members == 1  # the others are not known to begin anew
        if isinstance(learner, QuantileTracker):
            if learner.constant and once:
                return bounds.tracked(start, learner.alpha, learner.step, learner.high, past.late)
            return bounds.mixed(start, members, learner.alpha, _steps(learner, past), learner.high, past.late)
        if isinstance(learner, SFOGD) and once:
            return bounds.scale_free(labels, learner.alpha, learner.scale, learner.high, past.late)
        if isinstance(learner, PID) and once and learner.gain > 0:
            return bounds.saturated(labels, learner.alpha, learner.saturation, past.late)
        return None


class _Mixed(_Uncoupled):
    """Levels are averaged: one number a step to each neighbour."""

    def refusal(self, learner: Learner) -> str:
        """Return why this learner cannot be coupled so, or nothing."""
        if learner.linear:
            return ""
        return (
            f"{type(learner).__name__} cannot be mixed: it is no integrator, so an average of two states keeps no sum "
            "of misses and nothing would be guaranteed; run it alone, or mix 'tracker', 'decaying' or 'aci'"
        )

    def share(self, rule: Rule, state: Coupled, links: Links, arrives: Bools | None) -> Coupled:
        """Return the state after one round of messages, of which those along `arrives` got through; None means all."""
        working = None if arrives is None else links.both(arrives)
        inner = rule.learner.moved(state.inner._replace(level=links.averaged(state.inner.level, working)))
        if rule.scale == 0 or (state.taken > _OLD).all():
            return state._replace(inner=inner)
        young = _YOUNG / (_YOUNG + state.taken)  # who has seen few scores leans on what neighbours have seen
        scale = state.scale + young * (links.averaged(state.scale, working) - state.scale)
        return state._replace(inner=inner, scale=np.maximum(scale, SMALLEST))

    def welcome(self, rule: Rule, state: Coupled, links: Links, who: Bools, hosts: Bools) -> Coupled:
        """Return the state in which the devices in `who` have joined at the mean of their neighbours in `hosts`."""
        state = super().welcome(rule, state, links, who, hosts)
        told = who[links.receiver] & hosts[links.sender]
        to, of = links.receiver[told], links.sender[told]
        many = np.bincount(to, minlength=len(who))

        def mean(x: Floats) -> Floats:
            return np.where(many > 0, np.bincount(to, x[of], minlength=len(x)) / np.maximum(many, 1), x)

        taken = np.where(many > 0, _YOUNG, state.taken)  # a scale that neighbours gave is worth some scores
        inner = state.inner._replace(level=mean(state.inner.level))
        return state._replace(inner=inner, scale=mean(state.scale), taken=taken)

    def gap(self, learner: Any, past: Past) -> Gap | None:
        """Return how far misses of all devices together can get from `alpha`."""
        starts, members = float(past.starts.sum()), int(past.members.sum())
        return bounds.mixed(starts, members, learner.alpha, _steps(learner, past), learner.high, past.late)

    def own(self, learner: Any, past: Past, row: int) -> Gap | None:
        """Return nothing: a device can be sacrificed to the others, unless it has a local integrator."""
        return None


class _Counted(_Mixed):
    """Counts of labels and misses are spread; every level follows from all that its device has heard."""

    def refusal(self, learner: Learner) -> str:
        """Return why this learner cannot be coupled so, or nothing."""
        if learner.linear and getattr(learner, "constant", False):
            return ""
        return (
            f"{type(learner).__name__} cannot be counted: counts of misses determine a level only where every miss "
            "moves it by the same step; run it alone, or count with 'tracker' or 'aci'"
        )

    def begin(self, state: Coupled) -> Coupled:
        """Return the state before the first example."""
        K = len(state.local)
        return state._replace(heard=(np.zeros((K, K), dtype=np.int64), np.zeros((K, K), dtype=np.int64)))

    def observe(self, state: Coupled, miss: Bools, seen: Bools) -> Coupled:
        """Return the state after labels: every device counts its own."""
        labels, misses = (table.copy() for table in state.heard)
        own = np.arange(len(miss))
        labels[own, own] += seen
        misses[own, own] += seen & miss
        return state._replace(heard=(labels, misses))

    def share(self, rule: Rule, state: Coupled, links: Links, arrives: Bools | None) -> Coupled:
        """Return the state after one round of messages: of every count the larger is right, so nothing counts twice."""
        to, of = (links.receiver, links.sender) if arrives is None else (links.receiver[arrives], links.sender[arrives])
        tables = []
        for table in state.heard:
            merged = table.copy()
            np.maximum.at(merged, to, table[of])
            tables.append(merged)
        return self._levelled(rule, state._replace(heard=tuple(tables)))

    def welcome(self, rule: Rule, state: Coupled, links: Links, who: Bools, hosts: Bools) -> Coupled:
        """Return the state in which the devices in `who` have joined, and were told all that their neighbours know."""
        state = super().welcome(rule, state, links, who, hosts)
        told = who[links.receiver] & hosts[links.sender]
        return self.share(rule, state, links, told)

    def gap(self, learner: Any, past: Past) -> Gap | None:
        """Return how far misses of all devices together can get from `alpha`."""
        each = learner.step / len(past.members)
        return bounds.counted(learner.start, learner.alpha, each, learner.high, past.unheard)

    def _levelled(self, rule: Rule, state: Coupled) -> Coupled:
        labels, misses = state.heard[:2]
        learner = rule.learner
        excess = misses.sum(axis=1) - learner.alpha * labels.sum(axis=1)
        level = learner.start + learner.step / len(excess) * excess
        return state._replace(inner=state.inner._replace(level=level, held=np.zeros(len(level))))


COUPLINGS: dict[str, _Uncoupled] = {"alone": _Uncoupled(), "mixed": _Mixed(), "counted": _Counted()}


def _steps(learner: Any, past: Past) -> tuple[float, float]:
    return learner.step_at(0), learner.step_at(max(past.clock - 1, 0))


def _chosen(who: Bools, new: Any, old: Any) -> Any:
    """Return arrays, or named tuples of them, with the rows in `who` from the new one."""
    if new is None:
        return None
    if isinstance(new, tuple):
        return type(new)(*(_chosen(who, a, b) for a, b in zip(new, old, strict=True)))
    return np.where(who.reshape(-1, *[1] * (new.ndim - 1)), new, old)


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
        if refusal := COUPLINGS[self.coupling].refusal(self.learner):
            raise ValueError(refusal)
        if not all(isinstance(value, int | float | np.number) for value in (self.local, self.scale)):
            raise TypeError(f"local and scale must be numbers, got {self.local!r} and {self.scale!r}")
        if self.local < 0 or not 0 <= self.scale <= 1:
            raise ValueError(f"local must be at least 0 and scale in [0, 1], got {self.local!r} and {self.scale!r}")
        if self.local and not self.learner.linear:
            raise ValueError(
                f"a local integrator needs levels with a high end, and {type(self.learner).__name__} has none; "
                "take 'tracker', 'decaying' or 'aci', or local=0"
            )

    def begin(self, devices: int) -> Coupled:
        """Return the state of so many devices before the first example."""
        taken = np.zeros(devices, dtype=np.int64)
        state = Coupled(self.learner.begin(devices), np.zeros(devices), np.ones(devices), taken)
        return COUPLINGS[self.coupling].begin(state)

    def threshold(self, state: Coupled) -> Floats:
        """Return the thresholds for the next examples, (devices,)."""
        if self.local == 0:
            found: Floats = self.learner.threshold(state.inner)
        else:
            level = np.clip(state.inner.level, 0.0, self.learner.high) + state.local
            found = self.learner.read(state.inner, level)
        return found if self.scale == 0 else found * state.scale

    def observe(self, state: Coupled, score: Floats, seen: Bools, miss: Bools | None = None) -> Coupled:
        """Return the state after labels of the devices in `seen`, as in `QuantileTracker.observe`."""
        if miss is None:
            miss = score > self.threshold(state)
        own = score if self.scale == 0 else score / state.scale
        inner = self.learner.observe(state.inner, own, seen, miss)
        if self.local:
            local = state.local + self.local * np.where(seen, miss - self.learner.alpha, 0.0)
            state = state._replace(local=local)
            inner = inner._replace(held=np.zeros(len(local)))  # the local integrator makes up for it
        if self.scale:
            state = self._scaled(state, score, seen)
        return COUPLINGS[self.coupling].observe(state._replace(inner=inner), miss, seen)

    def _scaled(self, state: Coupled, score: Floats, seen: Bools) -> Coupled:
        weight = np.where(seen, np.maximum(self.scale, 1 / (state.taken + 1)), 0.0)
        scale = state.scale + weight * (np.where(seen, score, 0.0) - state.scale)
        return state._replace(scale=np.maximum(scale, SMALLEST), taken=state.taken + seen)

    def share(self, state: Coupled, links: Links, arrives: Bools | None = None) -> Coupled:
        """Return the state after one round of messages, of which those along `arrives` got through; None means all."""
        return COUPLINGS[self.coupling].share(self, state, links, arrives)

    def welcome(self, state: Coupled, links: Links, who: Bools, hosts: Bools) -> Coupled:
        """Return the state in which the devices in `who` have joined, next to those in `hosts`."""
        return COUPLINGS[self.coupling].welcome(self, state, links, who, hosts)

    def gap(self, past: Past) -> Gap | None:
        """Return how far misses of all devices together can get from `alpha`; None where nobody knows."""
        if self.local:
            one = bounds.local(self.learner.alpha, self.local, self.learner.high, past.late)
            members = int(past.members.sum())
            return Gap(members * one.down, members * one.up)
        return COUPLINGS[self.coupling].gap(self.learner, past)

    def own(self, past: Past, row: int) -> Gap | None:
        """Return the same of one device, from every time that it was there."""
        if self.local:
            one = bounds.local(self.learner.alpha, self.local, self.learner.high, past.late)
            return Gap(one.down * int(past.members[row]), one.up * int(past.members[row]))
        return COUPLINGS[self.coupling].own(self.learner, past, row)

    def why_no_bound(self) -> str:
        """Return why there is no bound where there is none."""
        if self.coupling != "alone":
            return "of one device nothing is guaranteed without a local integrator"
        return f"no bound is known for {type(self.learner).__name__}"
