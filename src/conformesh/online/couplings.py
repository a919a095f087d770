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

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from conformesh.online import bounds
from conformesh.online.bounds import SMALLEST, Gap
from conformesh.online.integrators import Bools, Floats, QuantileTracker
from conformesh.online.learners import Learner
from conformesh.online.links import Links
from conformesh.online.single_stream import PID, SFOGD

if TYPE_CHECKING:
    from conformesh.online.rules import Rule

Ints = NDArray[np.int64]
YOUNG = 5  # scores that what neighbours have seen is worth, beside a device's own
OLD = 1000  # scores after which it is not asked for any more


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


class Uncoupled:
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


class Mixed(Uncoupled):
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
        if rule.scale == 0 or (state.taken > OLD).all():
            return state._replace(inner=inner)
        young = YOUNG / (YOUNG + state.taken)  # who has seen few scores leans on what neighbours have seen
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

        taken = np.where(many > 0, YOUNG, state.taken)  # a scale that neighbours gave is worth some scores
        inner = state.inner._replace(level=mean(state.inner.level))
        return state._replace(inner=inner, scale=mean(state.scale), taken=taken)

    def gap(self, learner: Any, past: Past) -> Gap | None:
        """Return how far misses of all devices together can get from `alpha`."""
        starts, members = float(past.starts.sum()), int(past.members.sum())
        return bounds.mixed(starts, members, learner.alpha, _steps(learner, past), learner.high, past.late)

    def own(self, learner: Any, past: Past, row: int) -> Gap | None:
        """Return nothing: a device can be sacrificed to the others, unless it has a local integrator."""
        return None


class Counted(Mixed):
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


COUPLINGS: dict[str, Uncoupled] = {"alone": Uncoupled(), "mixed": Mixed(), "counted": Counted()}


def _steps(learner: Any, past: Past) -> tuple[float, float]:
    return learner.step_at(0), learner.step_at(max(past.clock - 1, 0))


def _chosen(who: Bools, new: Any, old: Any) -> Any:
    """Return arrays, or named tuples of them, with the rows in `who` from the new one."""
    if new is None:
        return None
    if isinstance(new, tuple):
        return type(new)(*(_chosen(who, a, b) for a, b in zip(new, old, strict=True)))
    return np.where(who.reshape(-1, *[1] * (new.ndim - 1)), new, old)
