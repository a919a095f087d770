"""The links of one device: decode and hand on received frames, collect frames to send, and count both.

Frames that are malformed or not from a neighbour are refused and counted; they change nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

from conformesh.peer import frames
from conformesh.peer.frames import Frame, FrameError
from conformesh.peer.interface import EVERYBODY, PeerSetup
from conformesh.peer.json_bodies import error_text, error_text_for_neighbours, one_line_text
from conformesh.peer.settings import Counts


class Clock:
    """The latest time that the engine has passed in, in seconds; all parts of a device share it."""

    def __init__(self) -> None:
        self.now = 0.0
        self.wake = 0.0  # when the device acts again by itself
        self.waiting_since = 0.0  # since when it waits for its neighbours

    def advance(self, now: float) -> None:
        """Take the engine's time, which must not fall."""
        self.now = max(self.now, now)

    def wait(self, seconds: float) -> None:
        """Wait for the neighbours from now on, and act again after so many seconds."""
        self.waiting_since, self.wake = self.now, self.now + seconds


class Links:
    """Sends and receives the frames of one device, and counts them."""

    def __init__(self, setup: PeerSetup, clock: Clock) -> None:
        self.row, self.network, self.settings, self.log = setup.row, setup.network, setup.settings, setup.log
        self.clock = clock
        self.neighbours = tuple(int(j) for j in setup.network.neighbours(setup.row))
        self._neighbour_set = frozenset(self.neighbours)
        self.counts = Counts()
        self.unreadable: dict[int, str] = {}  # why the bytes of a neighbour were no frame
        self._outbox: list[tuple[int, bytes]] = []

    def name(self, row: int) -> str:
        """Return the name of a device."""
        return self.network.ids[row]

    def send(self, to: int, frame: Frame) -> None:
        """Send a frame to a neighbour."""
        data = frames.encode_frame(frame)
        self.counts.sent += 1
        self.counts.sent_bytes += len(data)
        self._outbox.append((to, data))

    def send_to_all(self, rows: Collection[int], frame: Frame) -> None:
        """Send a frame to these neighbours; in one piece where these are all neighbours."""
        if len(rows) < len(self.neighbours):
            for j in rows:
                self.send(j, frame)
            return
        data = frames.encode_frame(frame)
        self.counts.sent += len(rows)
        self.counts.sent_bytes += len(rows) * len(data)
        self._outbox.append((EVERYBODY, data))

    def take_outbox(self) -> list[tuple[int, bytes]]:
        """Return what is to be sent, and forget it."""
        out, self._outbox = self._outbox, []
        return out

    def receive(
        self, data: bytes, sender: int, take: Callable[[Frame, int], None], fail: Callable[[Exception], None]
    ) -> None:
        """Hand the frame in these bytes to `take`; `fail` gets every error but the refusal of the frame.

        Refusals are the neighbour's fault and must not end this device; any other error is its own.
        """
        frame = None
        try:
            if sender not in self._neighbour_set:
                raise FrameError("a frame of a device that is no neighbour")
            frame = frames.decode_frame(data)
            take(frame, sender)
        except FrameError as problem:
            # For the error that will name a lost neighbour: one of another version sends, and is not just silent.
            if frame is None and sender in self._neighbour_set:
                self.unreadable[sender] = one_line_text(str(problem))
            self.refuse(sender, problem)
            return
        except Exception as error:
            fail(error)
        self.counts.received[sender] += 1
        self.counts.received_bytes[sender] += len(data)

    def refuse(self, sender: int, problem: FrameError) -> None:
        """Count and log a frame that is refused."""
        words = one_line_text(str(problem))  # it may quote bytes of the neighbour, and must not break lines of the log
        self.counts.refuse(words)
        self.log(f"refused from row {sender}: {words}")

    def failure_text(self, error: Exception, *, for_neighbours: bool = False) -> str:
        """Return why this device has ended, in one line, for any error.

        A text for neighbours contains no path of this machine; the local log and status do.
        """
        text = error_text_for_neighbours(error) if for_neighbours else error_text(error)
        return one_line_text(f"{self.name(self.row)} could not go on: {type(error).__name__}: {text}".rstrip(": "))
