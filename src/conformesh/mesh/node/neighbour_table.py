"""What has arrived from each neighbour of a node, and whether its link is up; `NodeState` has the clock and the lock.

A link counts as up by how long the neighbour was silent. How long it may be silent depends on the heartbeats that it
sends; a neighbour without heartbeats has nothing to send while no run is requested.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from conformesh.mesh.node.status import OTHER, NeighbourStatus

MOST_REASONS = 32  # reasons counted separately; further ones count as OTHER, so that senders cannot fill the memory


@dataclass
class _Neighbour:
    """What arrived from one neighbour; times are on the monotonic clock."""

    last_heard: float | None = None  # a frame
    alive: float | None = None  # a frame or a heartbeat
    last_heartbeat: float = 0.0
    interval: float | None = None  # seconds between two heartbeats, as the neighbour reports; None while it sends none
    round: int | None = None
    frames: int = 0
    bytes: int = 0
    refused: Counter[str] = field(default_factory=Counter)


class NeighbourTable:
    """The neighbours of one node.

    Parameters
    ----------
    names
        The names of the neighbours; other senders are added with their first frame.
    heartbeat
        Seconds between two heartbeats of this node; 0 if it neither sends nor reads them.
    now
        Since when the neighbours are expected to send, on the monotonic clock.

    Attributes
    ----------
    entries
        By name.
    refused
        Refused frames, by reason, without a sender or of an unknown one.
    """

    def __init__(self, names: Iterable[str], heartbeat: float, now: float) -> None:
        self.entries: dict[str, _Neighbour] = {}
        self.refused: Counter[str] = Counter()
        self._heartbeat = heartbeat
        self.set_names(names, now)

    def set_names(self, names: Iterable[str], now: float) -> None:
        """Replace the neighbours; those that stay keep their counts."""
        self.entries = {name: self.entries.get(name, _Neighbour()) for name in names}
        self._expected_since = now

    def forget_rounds(self) -> None:
        """Forget the rounds of the neighbours, because a new run begins."""
        for neighbour in self.entries.values():
            neighbour.round = None

    def note_heartbeat(self, name: str, interval: float | None, now: float) -> None:
        """Note that a neighbour's heartbeat has arrived, and the seconds between two of them, if that is known."""
        sender = self.entries.get(name)
        if sender is not None:
            sender.alive = sender.last_heartbeat = now
            sender.interval = interval

    def note_alive(self, name: str, now: float) -> None:
        """Note that a neighbour has sent something that this node does not read, and so does not count."""
        if name in self.entries:
            self.entries[name].alive = now

    def count_received(self, name: str, size: int, frames: int, round: int | None, now: float, patience: float) -> None:
        """Count `size` bytes that arrived from a neighbour in so many frames, the last of them of this round."""
        sender = self.entries.setdefault(name, _Neighbour())
        sender.last_heard = sender.alive = now
        if sender.interval is not None and now - sender.last_heartbeat > _longest_silence(sender.interval, patience):
            sender.interval = None  # it is up but its heartbeats have stopped: it was restarted without them
        sender.frames += frames
        sender.bytes += size
        if round is not None:
            sender.round = round

    def count_refused(self, name: str | None, reason: str, frames: int) -> None:
        """Count refused frames, by neighbour; those without a sender or of an unknown one are counted together."""
        sender = None if name is None else self.entries.get(name)
        reasons = self.refused if sender is None else sender.refused
        reasons[reason if reason in reasons or len(reasons) < MOST_REASONS else OTHER] += frames

    def status(self, now: float, patience: float, requested_at: float | None) -> dict[str, NeighbourStatus]:
        """Return the status of every neighbour; `requested_at` is when a run was requested, None without a request."""
        return {
            name: NeighbourStatus(
                last_heard_seconds_ago=None if one.last_heard is None else now - one.last_heard,
                round=one.round,
                frames_received=one.frames,
                bytes_received=one.bytes,
                refused=dict(one.refused),
                up=self._is_up(one, now, patience, requested_at),
            )
            for name, one in self.entries.items()
        }

    def _is_up(self, neighbour: _Neighbour, now: float, patience: float, requested_at: float | None) -> bool:
        """Return whether the link to a neighbour is up, judged by how long the neighbour was silent."""
        since = max(self._expected_since, neighbour.alive or 0.0)
        if neighbour.interval is not None:
            return now - since <= _longest_silence(neighbour.interval, patience)
        if neighbour.alive is not None or not self._heartbeat:
            # Without heartbeats a neighbour sends nothing while no run is requested.
            return requested_at is None or now - max(since, requested_at) <= patience
        return now - since <= _longest_silence(self._heartbeat, patience)


def _longest_silence(interval: float, patience: float) -> float:
    """Return the seconds that a neighbour with heartbeats may be silent: one may be late, or two may be lost."""
    return max(patience, 3 * interval)
