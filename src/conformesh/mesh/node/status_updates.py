"""Carries the counts of a running device over to the status of its node, a few times a second at most."""

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

UPDATE_INTERVAL = 0.25  # seconds between two updates: the loop that moves frames must stay fast
# Seconds after which a silent neighbour counts as away: a device that misses one repeats its own five times a second.
CONTACT_SECONDS = 2.0
DEVICE_PHASES = {"greeting": Phase.WAITING, "running": Phase.CALIBRATING, "finishing": Phase.CALIBRATING}


@dataclass(frozen=True)
class RunProgress:
    """How far a device is: neighbours heard lately of those expected, and all bytes sent and received."""

    phase: str
    run: int
    round: int
    heard: int
    expected: int
    sent: int
    received: int


class StatusFeed:
    """Updates a state from one device.

    Parameters
    ----------
    state
        The state to update.
    device
        A device that has just been made; its counts start at nothing.
    search
        Where the protocol reports how far its search is; None if nobody may see that.
    """

    def __init__(self, state: NodeState, device: Device | AsyncDevice, search: SearchProgress | None = None) -> None:
        self.state, self.device, self.search = state, device, search
        self._linked = {int(row): device.network.ids[row] for row in device.network.neighbours(device.row)}
        self._counted = Counts()
        self._last: dict[int, float] = {}
        self._at: tuple[str, int] = ("", 0)
        self._due = 0.0

    def update(self, now: float) -> bool:
        """Tell the state what is new, if the phase has changed or enough time has passed; say whether it was done."""
        device = self.device
        if now < self._due and (device.idle or (device.phase, device.number) == self._at):
            return False
        self._due = now + UPDATE_INTERVAL
        if device.idle:  # no run is under way
            self._update_counts(now)
            return True
        if device.number != self._at[1]:
            self.state.begin_run(device.number)
        self._at = (device.phase, device.number)
        if device.phase in DEVICE_PHASES:
            self.state.enter_phase(DEVICE_PHASES[device.phase])
        self.state.set_round(device.round)
        if isinstance(device, AsyncDevice):
            self.state.set_gathering(_gathering_status(device))
            self.state.note_progress(len(device.survivors))
        else:
            self.state.note_progress(device.round)
            if self.search is not None:
                self.state.set_search(
                    _search_status(self.search, device.message) if device.phase == "running" else None
                )
        self._update_counts(now)
        return True

    def update_counts(self, now: float) -> None:
        """Tell the state only what was counted, for a device that takes no part: phase and run stay as they are."""
        if now >= self._due:
            self._due = now + UPDATE_INTERVAL
            self._update_counts(now)

    def progress(self, now: float) -> RunProgress:
        """Return how far the device is, as of the last look."""
        device = self.device
        talking = [row for row in self._linked if row not in device.lost]
        heard = sum(now - self._last.get(row, -math.inf) <= CONTACT_SECONDS for row in talking)
        received = sum(self._counted.received_bytes.values())
        sent = self._counted.sent_bytes
        return RunProgress(device.phase, device.number, device.round, heard, len(talking), sent, received)

    def _update_counts(self, now: float) -> None:
        counts, before = self.device.counts, self._counted
        # A round ends when all neighbours have spoken in it; the last one ends the protocol.
        ended = self.device.round - (self.device.phase == "running")
        for row, name in self._linked.items():
            frames = counts.received[row] - before.received[row]
            if frames:
                size = counts.received_bytes[row] - before.received_bytes[row]
                self.state.count_received(name, size=size, round=max(ended, 0), frames=frames)
                self._last[row] = now
        for reason, count in counts.refused.items():
            if count > before.refused[reason]:
                self.state.count_refused(None, reason, count - before.refused[reason])
        again = counts.resent - before.resent
        self.state.count_sent(size=counts.sent_bytes - before.sent_bytes, frames=counts.sent - before.sent, again=again)
        self._counted = Counts(
            sent=counts.sent,
            sent_bytes=counts.sent_bytes,
            resent=counts.resent,
            received=Counter(counts.received),
            received_bytes=Counter(counts.received_bytes),
            refused=Counter(counts.refused),
        )


def _search_status(search: SearchProgress, message: Message | None) -> SearchStatus | None:
    """Return the bracket that holds the threshold, or this device's estimate; None if there is neither."""
    if search.bracket is not None:
        low, high, below, upto = search.bracket
        return SearchStatus(low=as_json_value(low), high=as_json_value(high), below=below, upto=upto)
    if search.estimates is None or not isinstance(message, Sum):
        return None
    estimate = float(search.estimates(message.values)[0])
    return None if math.isnan(estimate) else SearchStatus(estimate=as_json_value(estimate))


def _gathering_status(device: AsyncDevice) -> Gathering:
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
