"""The drift alarm of a device that learns online, and the alarm of all devices together. No clock, no file.

It is `conformesh.online.alarm.Alarm`, which gets the scores in the order in which their labels arrive. Its draws follow
from a seed and the number of scores, both in the journal: a device that was killed continues with the same numbers. The
seed is secret, because the alarm is valid only if the scores do not depend on the draws.

Fleet     largest evidence of any device, divided by the number of alarms: a union bound, valid under any dependence
Counted   every device of the roster, whether it has reported or not; each restart of an alarm, and devices that left
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Mapping

import numpy as np

from conformesh.common.random_streams import random_stream
from conformesh.online.alarm import Alarm, AlarmState, fleet_evidence
from conformesh.online.counters import CountingLearner, CoverageCounts, Life

LOG = logging.getLogger("conformesh.node")


class DriftAlarm:
    """The alarm of one device.

    Parameters
    ----------
    rule
        The rule of the device, with a level of the alarm.
    seed
        Seed of its draws.
    state
        State to continue from; None to start.
    """

    def __init__(self, rule: CountingLearner, seed: int, state: AlarmState | None = None) -> None:
        self.alarm, self.seed = Alarm(rule.alarm, float(rule.alpha)), seed
        self.state = self.alarm.begin(1) if state is None else state

    @classmethod
    def restore(cls, rule: CountingLearner, seed: int, data: bytes) -> DriftAlarm | None:
        """Return a stored alarm with the current level; None if the data cannot be read."""
        restored = cls(rule, seed)
        try:
            state = restored.alarm.from_bytes(data)
        except ValueError as problem:
            if data:
                LOG.warning("the drift alarm starts again: %s", problem)
            return None
        # Evidence does not depend on the level, which may have changed since: judge it again.
        reached = state.largest >= -math.log(rule.alarm)
        since = np.where(state.raised_at > 0, state.raised_at, state.steps)
        restored.state = state._replace(raised_at=np.where(reached, since, 0))
        return restored

    def observe(self, score: float) -> None:
        """Continue with the score of a label that has arrived."""
        self.state = self.alarm.observe(self.state, [score], [alarm_draw(self.seed, self.steps)])

    def to_bytes(self) -> bytes:
        """Return the state for the journal, without the seed."""
        return self.alarm.to_bytes(self.state)

    @property
    def steps(self) -> int:
        """Number of scores so far."""
        return int(self.state.steps[0])

    @property
    def raised_at(self) -> int:
        """The score at which it was raised, counted from 1; 0 while it is not."""
        return int(self.state.raised_at[0])

    @property
    def largest(self) -> float:
        """The largest logarithm of its evidence so far."""
        return float(self.state.largest[0])

    @property
    def now(self) -> float:
        """The logarithm of its evidence now."""
        return float(self.alarm.log_evidence(self.state)[0])


def alarm_draw(seed: int, step: int) -> float:
    """Return the uniform random number of a step."""
    return float(random_stream(seed, "drift alarm", step).random())


def fleet_alarm(tallies: Mapping[Life, CoverageCounts], devices: Iterable[str]) -> tuple[float, int]:
    """Return the logarithm of the fleet's evidence, and the number of alarms in its union bound."""
    unheard = {*devices} - {life.device for life in tallies}
    counted = len(unheard) + sum(max(1, tally.alarms) for tally in tallies.values())
    return fleet_evidence([tally.evidence for tally in tallies.values()], counted), counted
