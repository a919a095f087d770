"""From an engine's device to the node's state: what was counted since the last look, a few times a second at most."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass

from conformesh.files.json_numbers import as_json_value
from conformesh.mesh.node.state import NodeState
from conformesh.mesh.node.status import Gathering, Phase, SearchStatus
from conformesh.peer.async_device import AsyncDevice
from conformesh.peer.device import Device
from conformesh.peer.settings import Counts
from conformesh.protocols.block import SearchProgress
from conformesh.protocols.messages import Message, Sum

EVERY = 0.25  # seconds between two looks: the device's own loop must stay fast
LATELY = 2.0  # seconds: who misses something repeats itself five times a second, so a neighbour this silent is away
PHASES = {"greeting": Phase.WAITING, "running": Phase.CALIBRATING, "finishing": Phase.CALIBRATING}


@dataclass(frozen=True)
class ContactStatus:
    """How far a device is: neighbours heard lately of those expected, bytes in all that were sent and received."""

    phase: str
    run: int
    round: int
    heard: int
    expected: int
    sent: int
    received: int


class StatusFeed:
    """Tells a state what one device has counted.

    Parameters
    ----------
    state
        Whom to tell.
    device
        A device that has just been made; its counts start at nothing.
    shown
        Where it may be seen how far the protocol is; None where nobody may.
    """

    def __init__(self, state: NodeState, device: Device | AsyncDevice, shown: SearchProgress | None = None) -> None:
        self.state, self.device, self.shown = state, device, shown
        self._linked = {int(row): device.network.ids[row] for row in device.network.neighbours(device.row)}
        self._told = Counts()
        self._last: dict[int, float] = {}
        self._here: tuple[str, int] = ("", 0)
        self._due = 0.0

    def look(self, now: float) -> bool:
        """Tell the state what is new, if the phase has changed or enough time has passed; say whether it was done."""
        device = self.device
        if now < self._due and (device.idle or (device.phase, device.number) == self._here):
            return False
        self._due = now + EVERY
        if device.idle:  # no run is under way
            self._tell_counts(now)
            return True
        if device.number != self._here[1]:
            self.state.begin_run(device.number)
        self._here = (device.phase, device.number)
        if device.phase in PHASES:
            self.state.enter_phase(PHASES[device.phase])
        self.state.set_round(device.round)
        if isinstance(device, AsyncDevice):
            self.state.set_gathering(_gathering(device))
            self.state.note_progress(len(device.survivors))
        else:
            self.state.note_progress(device.round)
            if self.shown is not None:
                self.state.set_search(_search(self.shown, device.message) if device.phase == "running" else None)
        self._tell_counts(now)
        return True

    def look_at_counts(self, now: float) -> None:
        """Tell the state only what was counted, for a device that takes no part: phase and run stay as they are."""
        if now >= self._due:
            self._due = now + EVERY
            self._tell_counts(now)

    def progress(self, now: float) -> ContactStatus:
        """Return how far the device is, as of the last look."""
        device = self.device
        talking = [row for row in self._linked if row not in device.lost]
        heard = sum(now - self._last.get(row, -math.inf) <= LATELY for row in talking)
        received = sum(self._told.heard_bytes.values())
        sent = self._told.sent_bytes
        return ContactStatus(device.phase, device.number, device.round, heard, len(talking), sent, received)

    def _tell_counts(self, now: float) -> None:
        counts, told = self.device.counts, self._told
        # A round ends when all neighbours have spoken in it; the last one ends the protocol.
        ended = self.device.round - (self.device.phase == "running")
        for row, name in self._linked.items():
            frames = counts.heard[row] - told.heard[row]
            if frames:
                size = counts.heard_bytes[row] - told.heard_bytes[row]
                self.state.count_received(name, size=size, round=max(ended, 0), frames=frames)
                self._last[row] = now
        for reason, count in counts.refused.items():
            if count > told.refused[reason]:
                self.state.count_refused(None, reason, count - told.refused[reason])
        again = counts.resent - told.resent
        self.state.count_sent(size=counts.sent_bytes - told.sent_bytes, frames=counts.sent - told.sent, again=again)
        self._told = Counts(
            sent=counts.sent,
            sent_bytes=counts.sent_bytes,
            resent=counts.resent,
            heard=Counter(counts.heard),
            heard_bytes=Counter(counts.heard_bytes),
            refused=Counter(counts.refused),
        )


def _search(shown: SearchProgress, message: Message | None) -> SearchStatus | None:
    """Return the bracket that holds the threshold, or this device's estimate; None if there is neither."""
    if shown.bracket is not None:
        low, high, below, upto = shown.bracket
        return SearchStatus(low=as_json_value(low), high=as_json_value(high), below=below, upto=upto)
    if shown.estimates is None or not isinstance(message, Sum):
        return None
    estimate = float(shown.estimates(message.values)[0])
    return None if math.isnan(estimate) else SearchStatus(estimate=as_json_value(estimate))


def _gathering(device: AsyncDevice) -> Gathering:
    """Return what a device in asynchronous mode knows about the others, by name."""
    names = device.network.ids
    return Gathering(
        reported=[names[row] for row in device.survivors],
        devices=len(names),
        missing=[name for row, name in enumerate(names) if row not in device.survivors],
        reasons={names[row]: words for row, words in device.reasons.items()},
        not_agreeing={names[row]: words for row, words in device.disagreements.items()},
        byzantine=[names[row] for row in device.byzantine],
    )
