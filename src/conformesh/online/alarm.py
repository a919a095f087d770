r"""Drift alarm: test continuously whether a stream of scores has changed. The chance of ever a false alarm is `level`.

Every score is ranked among those that its device remembers, which gives a conformal p-value. While scores are
exchangeable these are independent and uniform ([Vovk2021]), whatever their distribution, ties included. The
alarm bets against that: it begins with a capital of 1, and every bet is fair. So the capital, the *evidence*, is a
martingale, and by Ville's inequality it ever reaches 1/level with chance at most level.

Memory    at most `window` scores of a device. Once they are full, one of them **and the new one**, drawn evenly, goes.
          Dropping the oldest, or keeping the first, would make p-values depend on each other (docs/online.md: proof).
Assumes   u is uniform, independent of the scores; whether and when a label arrives does not depend on its score
Departures from the simple jumper of [VovkPetej2021]: it moves capital between bets at a constant rate, and so loses
          a part of it in every step, forever. Here capital rests until it is staked, more and more slowly: after t
          steps without drift the evidence is still at least sqrt(49 / (t + 49)), and a late change is found as well.
          Two bets more, on the tail that misses and on powers of p, find a shift of scores sooner (docs/online.md).
"""

from __future__ import annotations

import math
import struct
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from conformesh.common.array_types import Bools, Floats, Ints
from conformesh.common.names import unknown_name

# Smaller p-values count as this one. u = 0 would give a p-value of 0 and infinite evidence; the chance of u < 2**-64 is
# negligible beside any level.
SMALLEST_P_VALUE = 2.0**-64
# Larger values stake capital more slowly: late changes cost less evidence, early ones are found later. About a third of
# the capital is staked within this many steps.
STAKE_STEPS = 50
_STATE_HEADER = struct.Struct("<4sIIII")  # mark, devices, window, accounts of capital, check sum of what follows
_MARK = b"cmA1"  # format and version of a stored state


def _tail(p: Floats, alpha: float) -> Floats:
    """Misses rise from alpha to 2 alpha / (1 + alpha), as they do when coverage falls from .9 to about .8."""
    more = 2 / (1 + alpha)
    return np.where(p <= alpha, math.log(more), math.log((1 - more * alpha) / (1 - alpha)))


def _power(p: Floats, alpha: float) -> Floats:
    """Scores spread out: the smaller a p-value, the likelier."""
    return math.log(0.7) - 0.3 * np.log(p)


def _ramp(p: Floats, alpha: float) -> Floats:
    """Scores move up."""
    return np.log1p(0.6 * (1 - 2 * p))


def _falling(p: Floats, alpha: float) -> Floats:
    """Scores move down: sets are larger than needed."""
    return np.log1p(-0.6 * (1 - 2 * p))


# Logarithm of the factor by which a bet multiplies its stake. Each factor is a density on (0, 1), so it is fair if p is
# uniform.
BETS: dict[str, Callable[[Floats, float], Floats]] = {
    "tail": _tail,
    "power": _power,
    "ramp": _ramp,
    "falling": _falling,
}


class AlarmState(NamedTuple):
    """State of the alarm of each device: everything that the next observation needs.

    Attributes
    ----------
    scores
        Scores to compare with, shape (devices, window): the first `held` of a row, then NaN.
    held, steps
        How many scores are remembered, and how many labels arrived since the start or the last restart.
    capital
        Logarithms, shape (devices, 1 + bets): capital that is not staked, and the stake on each of `BETS`.
    largest
        The largest logarithm of the evidence so far.
    raised_at
        The step at which the alarm was raised, counted from 1; 0 while it is not.
    """

    scores: Floats
    held: Ints
    steps: Ints
    capital: Floats
    largest: Floats
    raised_at: Ints


@dataclass(frozen=True)
class Alarm:
    """A drift alarm for each of many devices.

    Attributes
    ----------
    level
        The largest chance that a device without drift ever raises the alarm.
    alpha
        The target share of misses; the alarm is most sensitive to a rise above it.
    window
        How many scores a device remembers. The more, the longer a change stays unusual: d steps after it, a share
        1 - exp(-d / window) of a full memory is new.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> alarm = Alarm(level=0.05)
    >>> state = alarm.follow(alarm.begin(1), rng.normal(size=(500, 1)), rng.random((500, 1)))
    >>> state.raised_at.tolist()
    [0]
    >>> state = alarm.follow(state, rng.normal(size=(500, 1)) + 1, rng.random((500, 1)))
    >>> bool(500 < state.raised_at[0] < 550)
    True
    """

    level: float = 0.05
    alpha: float = 0.1
    window: int = 2000

    def __post_init__(self) -> None:
        for name in ("level", "alpha"):
            if not 0 < getattr(self, name) < 1:
                raise ValueError(f"{name} must lie strictly between 0 and 1, got {getattr(self, name)!r}")
        if not 1 <= self.window < 2**31:
            raise ValueError(f"window must be at least 1 score and below 2**31, got {self.window!r}")

    def begin(self, devices: int, reference: Sequence[ArrayLike] | None = None) -> AlarmState:
        """Return the state before the first score.

        Parameters
        ----------
        devices
            How many streams there are.
        reference
            For each device, scores that are exchangeable with its stream while nothing drifts, such as those it was
            calibrated with: then a change is has_label from the first step on. The last `window` of them are kept.
        """
        scores, held = np.full((devices, self.window), np.nan), np.zeros(devices, dtype=np.int64)
        if reference is not None:
            if len(reference) != devices:
                raise ValueError(f"reference must have scores for {devices} devices, got {len(reference)}")
            for k, given in enumerate(reference):
                last = np.asarray(given, dtype=np.float64).ravel()[-self.window :]
                if np.isnan(last).any():
                    raise ValueError(f"reference scores must be numbers, device {k} has a NaN")
                scores[k, : len(last)], held[k] = last, len(last)
        capital = np.full((devices, 1 + len(BETS)), -np.inf)
        capital[:, 0] = 0.0
        zeros = np.zeros(devices, dtype=np.int64)
        return AlarmState(scores, held, zeros, capital, np.zeros(devices), zeros.copy())

    def observe(
        self, state: AlarmState, score: ArrayLike, u: ArrayLike, has_label: ArrayLike | None = None
    ) -> AlarmState:
        """Return the state after one score of each device; see `follow`, of which this is a single step."""
        return self.follow(state, _row(score), _row(u), None if has_label is None else _row(has_label))

    def follow(
        self, state: AlarmState, scores: ArrayLike, u: ArrayLike, has_label: ArrayLike | None = None
    ) -> AlarmState:
        """Return the state after several steps.

        Parameters
        ----------
        state
            The state before; it is not modified.
        scores
            Shape (steps, devices).
        u
            Uniform numbers in [0, 1) of the same shape, independent of the scores. They break ties and choose which
            score to forget. A device that replays its journal must use the same numbers.
        has_label
            Which labels arrived, of the same shape, by default all; scores and u of the others are ignored.
        """
        values, draws, arrived = _check_observations(state, scores, u, has_label)
        after = state._replace(scores=state.scores.copy())  # the only array that a step writes to
        for row in range(len(values)):
            after, _ = _advance(self, after, values[row], draws[row], arrived[row])
        return after

    def log_evidence(self, state: AlarmState) -> Floats:
        """Return the logarithm of the evidence against exchangeability now, of every device."""
        return _log_total_capital(state.capital)

    def restart(self, state: AlarmState, which: ArrayLike | None = None) -> AlarmState:
        """Start again where the alarm was raised, or at the devices of the mask: no scores, and a capital of 1.

        Only scores from then on are compared. After each restart the chance of a false alarm is `level` again.
        """
        mask = state.raised_at > 0 if which is None else np.asarray(which, dtype=bool)
        fresh = self.begin(len(state.steps))
        return AlarmState(
            *(
                np.where(mask.reshape(-1, *[1] * (old.ndim - 1)), new, old)
                for old, new in zip(state, fresh, strict=True)
            )
        )

    def to_bytes(self, state: AlarmState) -> bytes:
        """Return the state as bytes, for a journal."""
        parts = [state.held, state.steps, state.raised_at, state.largest, state.capital]
        parts.append(state.scores[np.arange(self.window) < state.held[:, None]])
        body = b"".join(part.astype(part.dtype.newbyteorder("<")).tobytes() for part in parts)
        return _STATE_HEADER.pack(_MARK, *state.scores.shape, state.capital.shape[1], zlib.crc32(body)) + body

    def from_bytes(self, data: bytes) -> AlarmState:
        """Return a stored state; raise an error if it is damaged or has another window."""
        if len(data) < _STATE_HEADER.size or data[:4] != _MARK:
            raise ValueError(f"the state of an alarm begins with {_MARK!r}, got {bytes(data[:4])!r}")
        _, devices, window, accounts, check = _STATE_HEADER.unpack_from(data)
        body = data[_STATE_HEADER.size :]
        if zlib.crc32(body) != check:
            raise ValueError(f"the state of an alarm is damaged: its {len(body)} bytes do not have their check sum")
        if (window, accounts) != (self.window, 1 + len(BETS)):
            raise ValueError(
                f"the state is of an alarm with window {window} and {accounts - 1} bets; "
                f"this one has window {self.window} and {len(BETS)}: begin a new state"
            )
        words = np.frombuffer(body, "<i8")
        held, steps, raised = words[: 3 * devices].astype(np.int64).reshape(3, devices)
        numbers = np.frombuffer(body, "<f8")[3 * devices :].astype(np.float64)
        largest, rest = numbers[:devices], numbers[devices:]
        capital, kept = rest[: devices * accounts].reshape(devices, accounts), rest[devices * accounts :]
        scores = np.full((devices, window), np.nan)
        scores[np.arange(window) < held[:, None]] = kept
        return AlarmState(scores, held, steps, capital, largest, raised)


def _advance(alarm: Alarm, state: AlarmState, score: Floats, u: Floats, has_label: Bools) -> tuple[AlarmState, Floats]:
    """Return the state after a step, made in the memory of the old one, and what each bet gained.

    The gains are logarithms, shape (devices, bets), and 0 where no label arrived.
    """
    p, slot = _p_values(state, score, u)
    rows = np.flatnonzero(has_label & (slot < alarm.window))
    state.scores[rows, slot[rows]] = score[rows]
    held = np.minimum(state.held + has_label, alarm.window)
    gains = np.where(has_label[:, None], np.stack([bet(p, alarm.alpha) for bet in BETS.values()], axis=-1), 0.0)
    capital = np.where(has_label[:, None], _bet(state.capital, state.steps, gains), state.capital)
    steps, largest = state.steps + has_label, np.maximum(state.largest, _log_total_capital(capital))
    raised = np.where((state.raised_at == 0) & (largest >= -math.log(alarm.level)), steps, state.raised_at)
    return AlarmState(state.scores, held, steps, capital, largest, raised), gains


def _log_total_capital(capital: Floats) -> Floats:
    """Return the logarithm of all capital of each row."""
    return np.asarray(np.logaddexp.reduce(capital, axis=-1))


def _bet(capital: Floats, steps: Ints, gains: Floats) -> Floats:
    """Stake a part 1 / (2 (steps + STAKE_STEPS)) of the rest, evenly on all bets, and add the gains of the bets.

    The rest falls only like 1 / sqrt(steps), so that some is left for a late change.
    """
    part = 0.5 / (np.asarray(steps)[..., None] + STAKE_STEPS)
    rest, bets = capital[..., :1], capital[..., 1:]
    staked = np.logaddexp(bets, rest + np.log(part / len(BETS)))
    return np.concatenate([rest + np.log1p(-part), staked + gains], axis=-1)


def _check_observations(
    state: AlarmState, scores: ArrayLike, u: ArrayLike, has_label: ArrayLike | None
) -> tuple[Floats, Floats, Bools]:
    """Return what was observed as arrays of shape (steps, devices), 0 where no label arrived."""
    values, draws = np.asarray(scores, dtype=np.float64), np.asarray(u, dtype=np.float64)
    arrived = np.ones(values.shape, dtype=bool) if has_label is None else np.asarray(has_label, dtype=bool)
    for name, array in (("scores", values), ("u", draws), ("has_label", arrived)):
        if array.shape != (*values.shape[:1], len(state.steps)):
            raise ValueError(f"{name} must have shape (steps, {len(state.steps)} devices), got {array.shape}")
    values, draws = np.where(arrived, values, 0.0), np.where(arrived, draws, 0.0)
    if np.isnan(values).any():
        row, device = np.argwhere(np.isnan(values))[0].tolist()
        raise ValueError(
            f"scores must be numbers, device {device} has NaN in step {row}; pass has_label=False without label"
        )
    if not ((draws >= 0) & (draws < 1)).all():
        raise ValueError(f"u must be uniform numbers from 0 on and below 1, got {draws.min()} to {draws.max()}")
    return values, draws, arrived


def _p_values(state: AlarmState, score: Floats, u: Floats) -> tuple[Floats, Ints]:
    """Return the smoothed p-value of each score, and its slot in memory; a slot beyond the last means none.

    u serves twice: the integer part of u (held + 1) chooses which score to forget, the fractional part, which is
    independent of it, breaks ties.
    """
    known = state.scores[:, : int(state.held.max(initial=0))]
    above = np.count_nonzero(known > score[:, None], axis=1)
    equal = np.count_nonzero(known == score[:, None], axis=1) + 1  # with itself
    spread = u * (state.held + 1)
    drawn = np.floor(spread)
    p = np.maximum((above + (spread - drawn) * equal) / (state.held + 1), SMALLEST_P_VALUE)
    full = state.held == state.scores.shape[1]
    return p, np.where(full, drawn.astype(np.int64), state.held)


def _row(values: ArrayLike) -> NDArray[np.generic]:
    """Return values of the devices as a table of one step."""
    return np.asarray(values)[None]


FLEET_RULES = {  # how the evidence of devices is combined, and what that assumes about their streams
    "largest": "nothing: streams may depend on each other in any way",
    "product": "streams that are independent of each other",
}


class _FleetState(NamedTuple):
    """State of the fleet's alarm.

    Attributes
    ----------
    devices
        The state of every device's own alarm.
    steps
        Steps in which a label arrived anywhere.
    capital
        Logarithms, shape (1 + bets,): for `product`, capital that is not staked, and the stake on each bet.
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
    """A drift alarm for all devices together, besides those of single devices.

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
        if self.rule not in FLEET_RULES:
            raise ValueError(unknown_name("rule of a fleet", self.rule, FLEET_RULES))

    def begin(self, devices: int, reference: list[ArrayLike] | None = None) -> _FleetState:
        """Return the state before the first score; see `Alarm.begin`."""
        capital = np.full(1 + len(BETS), -np.inf)
        capital[0] = 0.0
        return _FleetState(self.alarm.begin(devices, reference), 0, capital, 0.0, 0)

    def follow(
        self, state: _FleetState, scores: ArrayLike, u: ArrayLike, has_label: ArrayLike | None = None
    ) -> _FleetState:
        """Return the state after several steps; see `Alarm.follow`."""
        values, draws, arrived = _check_observations(state.devices, scores, u, has_label)
        after = state._replace(devices=state.devices._replace(scores=state.devices.scores.copy()))
        for row in range(len(values)):
            devices, gains = _advance(self.alarm, after.devices, values[row], draws[row], arrived[row])
            after = self._after(after, devices, gains) if arrived[row].any() else after
        return after

    def _after(self, state: _FleetState, devices: AlarmState, gains: Floats) -> _FleetState:
        capital = _bet(
            state.capital, np.asarray(state.steps), gains.sum(axis=0)
        )  # gains of all devices add up: one capital bets on a common change
        after = state._replace(devices=devices, steps=state.steps + 1, capital=capital)
        largest = max(state.largest, self.log_evidence(after))
        raised = after.steps if state.raised_at == 0 and largest >= -math.log(self.alarm.level) else state.raised_at
        return after._replace(largest=largest, raised_at=raised)

    def log_evidence(self, state: _FleetState) -> float:
        """Return the logarithm of the fleet's evidence now."""
        if self.rule == "product":
            return float(_log_total_capital(state.capital))
        return fleet_evidence(state.devices.largest, len(state.devices.steps))


def fleet_evidence(largest: ArrayLike, devices: int) -> float:
    """Return the logarithm of a fleet's evidence, valid under any dependence between devices.

    Parameters
    ----------
    largest
        `AlarmState.largest` of the devices that have reported; others can only add evidence.
    devices
        How many devices the fleet has, whether they have reported or not. Those that may join later count from the
        start, and one that starts again without its old state counts again.
    """
    reported = np.asarray(largest, dtype=np.float64)
    if reported.size > devices:
        raise ValueError(f"a fleet of {devices} devices has no evidence of {reported.size}; count all that may join")
    return float(reported.max(initial=0.0)) - math.log(devices)
