"""How a device takes part in spreading rosters: it answers frames about them, and hands a newer one to its neighbours.

`Rosters` decides which rosters are accepted and which replies are due; this part sends them, repeated every
`Settings.retry` seconds. Devices in rounds and in asynchronous mode have the same one.
"""

from __future__ import annotations

from collections.abc import Callable

from conformesh.peer.frames import HELLO, ROSTER, Frame, FrameError
from conformesh.peer.links import Links
from conformesh.peer.rosters import Rosters


class RosterExchange:
    """Sends what `Rosters` answers over the links of a device; `hello` returns the device's greeting."""

    def __init__(self, rosters: Rosters, links: Links, hello: Callable[[], Frame]) -> None:
        self.rosters, self._links, self._hello = rosters, links, hello

    @property
    def handed(self) -> bool:
        """Whether this device moves to a newer roster and has handed it on: another one must be made in its place."""
        links = self._links
        return self.rosters.handed(links.neighbours, links.clock.now, links.settings.linger)

    def offer(self, roster: bytes) -> None:
        """Take a roster that came by another way than from a neighbour; a newer one is handed to all of them.

        A `FrameError` says why one is refused.
        """
        if self.rosters.offer(roster, self._links.clock.now):
            self.hand_on()

    def take(self, frame: Frame, sender: int) -> bool:
        """Take a frame if it is about rosters, or if it comes while this device moves to another one.

        Return whether it was taken. Else it must name the sender that its link belongs to.
        """
        # Rosters before the sender's row: under another roster the neighbour has another row, so its frame would be
        # refused below, and neither would ever learn of the other's roster.
        if (frame.kind in (HELLO, ROSTER) or self.rosters.moving) and self._is_answered(frame, sender):
            return True
        if frame.sender != sender:
            if frame.wants and frame.kind != HELLO:  # a hello was looked at above already
                self._links.send(sender, self._hello())
            raise FrameError("a frame that names another sender than its connection")
        return False

    def _is_answered(self, frame: Frame, sender: int) -> bool:
        before = self.rosters.latest
        replies = self.rosters.replies_to(frame, sender, self._links.clock.now, self._hello())
        for reply in replies or ():
            self._links.send(sender, reply)
        if self.rosters.latest > before:
            self.hand_on()
        return replies is not None

    def hand_on(self) -> None:
        """Send the newer roster to every neighbour that may not have it yet."""
        clock = self._links.clock
        clock.wake = clock.now + self._links.settings.retry
        for to, frame in self.rosters.hand_on(self._links.row, self._links.neighbours):
            self._links.send(to, frame)
