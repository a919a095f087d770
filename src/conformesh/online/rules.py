"""A rule: a learner, its coupling to the network, a local integrator and an own scale.

The *local* integrator bounds every single device's misses whatever the network does. The own running *scale* is what
each device's scores are divided by before anything else, so that unlike devices can share a level.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from conformesh.common.names import unknown
from conformesh.online import bounds
from conformesh.online.bounds import SMALLEST, Gap
from conformesh.online.couplings import COUPLINGS, Coupled, Past
from conformesh.online.integrators import Bools, Floats
from conformesh.online.links import Links


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
            raise ValueError(unknown("coupling", self.coupling, COUPLINGS))
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
