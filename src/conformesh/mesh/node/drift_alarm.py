"""The drift alarm of a device that learns online, and what all devices' alarms say together. No clock, no file.

It is `conformesh.online.alarm.Alarm`, fed with the scores in the order in which their labels come. What it draws
follows from a seed and from how many scores it has seen, both in the journal: a device that was killed goes on with the
very same numbers. The seed is secret, since who chooses scores must not know what is drawn.

Fleet     the largest evidence of any device over the number of alarms: a union bound, whatever the dependence
Counted   every device of the roster, heard of or not; one that begins anew counts again, and who has left still counts
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
        With a level of the alarm.
    seed
        What is drawn follows from it.
    state
        Where to go on.
    """

    def __init__(self, rule: CountingLearner, seed: int, state: AlarmState | None = None) -> None:
        self.alarm, self.seed = Alarm(rule.alarm, float(rule.alpha)), seed
        self.state = self.alarm.begin(1) if state is None else state

    @classmethod
    def restored(cls, rule: CountingLearner, seed: int, data: bytes) -> DriftAlarm | None:
        """Return the alarm that was written down, at today's level; None where there is none that can be read."""
        found = cls(rule, seed)
        try:
            state = found.alarm.from_bytes(data)
        except ValueError as problem:
            if data:
                LOG.warning("the drift alarm begins anew: %s", problem)
            return None
        reached = state.largest >= -math.log(rule.alarm)  # evidence knows no level, which may have been another one
        since = np.where(state.raised_at > 0, state.raised_at, state.steps)
        found.state = state._replace(raised_at=np.where(reached, since, 0))
        return found

    def take(self, score: float) -> None:
        """Go on with a score whose label has come."""
        self.state = self.alarm.observe(self.state, [score], [alarm_draw(self.seed, self.steps)])

    def kept(self) -> bytes:
        """Return the state for the journal, all but the seed."""
        return self.alarm.to_bytes(self.state)

    @property
    def steps(self) -> int:
        """Scores that it has seen."""
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
    """Return the uniform number of a step."""
    return float(random_stream(seed, "drift alarm", step).random())


def fleet_alarm(tallies: Mapping[Life, CoverageCounts], devices: Iterable[str]) -> tuple[float, int]:
    """Return the logarithm of the fleet's evidence, and over how many alarms the union bound is."""
    unheard = {*devices} - {life.device for life in tallies}
    counted = len(unheard) + sum(max(1, tally.alarms) for tally in tallies.values())
    return fleet_evidence([tally.evidence for tally in tallies.values()], counted), counted
