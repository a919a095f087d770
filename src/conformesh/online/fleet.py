"""One drift alarm for a fleet of devices, with what it assumes about how their streams depend on each other.

Each device's evidence is a martingale only as seen by that device. Seen by the fleet it is none: what one device sees
now may tell what another sees next. So the *average* of the devices' evidence has no promise without an assumption
([ChoeRamdas2024]): four equally likely cases make it double with chance 3/4, where 1/2 is allowed (docs/online.md).
What has one is the largest evidence that any device ever had, divided by the number of devices: Ville's inequality for
each device, and the union of their false alarms. It is hardly less, as the luckiest device dominates an average anyway.

A mesh needs no sum for it: the largest of one number per device, which neighbours pass on.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from conformesh.common.names import unknown
from conformesh.online.alarm import BETS, Alarm, AlarmState, Floats, advance, checked, played, total

FLEETS = {  # how devices' evidence is put together, and what that assumes of their streams
    "largest": "nothing: streams may depend on each other in any way",
    "product": "streams that are independent of each other",
}


class FleetState(NamedTuple):
    """What the fleet's alarm knows.

    Attributes
    ----------
    devices
        The state of every device's own alarm.
    steps
        Steps in which a label arrived anywhere.
    capital
        Logarithms, shape (1 + bets,): for `product`, what rests and what is staked on each bet.
    largest
        The largest logarithm of the fleet's evidence so far.
    raised_at
        The step at which the alarm was raised, counted from 1; 0 while it is not.
    """

    devices: AlarmState
    steps: int
    capital: Floats
    largest: float
    raised_at: int


@dataclass(frozen=True)
class FleetAlarm:
    """A drift alarm for all devices together, beside each device's own.

    Attributes
    ----------
    alarm
        The alarm of a device; the fleet's has the same level, for all devices together.
    rule
        A name of `FLEETS`, which says what it assumes.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> fleet = FleetAlarm()
    >>> state = fleet.begin(20)
    >>> state = fleet.follow(state, rng.normal(size=(300, 20)), rng.random((300, 20)))
    >>> state = fleet.follow(state, rng.normal(size=(60, 20)) + 1, rng.random((60, 20)))
    >>> 300 < state.raised_at < 330
    True
    """

    alarm: Alarm = field(default_factory=Alarm)
    rule: str = "largest"

    def __post_init__(self) -> None:
        if self.rule not in FLEETS:
            raise ValueError(unknown("rule of a fleet", self.rule, FLEETS))

    def begin(self, devices: int, reference: list[ArrayLike] | None = None) -> FleetState:
        """Return the state before the first score; see `Alarm.begin`."""
        capital = np.full(1 + len(BETS), -np.inf)
        capital[0] = 0.0
        return FleetState(self.alarm.begin(devices, reference), 0, capital, 0.0, 0)

    def follow(self, state: FleetState, scores: ArrayLike, u: ArrayLike, seen: ArrayLike | None = None) -> FleetState:
        """Return the state after several steps; see `Alarm.follow`."""
        values, draws, arrived = checked(state.devices, scores, u, seen)
        after = state._replace(devices=state.devices._replace(scores=state.devices.scores.copy()))
        for row in range(len(values)):
            devices, gains = advance(self.alarm, after.devices, values[row], draws[row], arrived[row])
            after = self._after(after, devices, gains) if arrived[row].any() else after
        return after

    def _after(self, state: FleetState, devices: AlarmState, gains: Floats) -> FleetState:
        capital = played(state.capital, np.asarray(state.steps), gains.sum(axis=0))  # a change of all: staked on once
        after = state._replace(devices=devices, steps=state.steps + 1, capital=capital)
        largest = max(state.largest, self.log_evidence(after))
        raised = after.steps if state.raised_at == 0 and largest >= -math.log(self.alarm.level) else state.raised_at
        return after._replace(largest=largest, raised_at=raised)

    def log_evidence(self, state: FleetState) -> float:
        """Return the logarithm of the fleet's evidence now."""
        if self.rule == "product":
            return float(total(state.capital))
        return fleet_evidence(state.devices.largest, len(state.devices.steps))


def fleet_evidence(largest: ArrayLike, devices: int) -> float:
    """Return the logarithm of a fleet's evidence under any dependence, from the devices' largest that were heard of.

    Parameters
    ----------
    largest
        `AlarmState.largest` of the devices heard of: the others can only add to it.
    devices
        How many devices the fleet has, heard of or not. Those that may join later count from the start, and one that
        begins anew without its old state counts again.
    """
    heard = np.asarray(largest, dtype=np.float64)
    if heard.size > devices:
        raise ValueError(f"a fleet of {devices} devices has no evidence of {heard.size}; count all that may join")
    return float(heard.max(initial=0.0)) - math.log(devices)
