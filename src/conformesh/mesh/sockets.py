"""How the links' sockets behave on bad networks, where Zenoh leaves no choice: told to the sockets themselves.

Zenoh asks every TCP socket to wait in `close` for up to ten seconds until all has arrived (SO_LINGER). That is waited
for in the thread that serves all links of a device: one neighbour that was cut off took away the others, for ten
seconds at a time. Without that wish the system delivers what is left in the background, and nobody waits.

Where packets get lost TCP waits twice as long after each loss in a row, up to two minutes, while a device has its
neighbours' patience to keep. Linux knows a limit (6.15 and later), and equal waits for senders that say little. Where a
system knows no such thing, nothing changes.
"""

from __future__ import annotations

import os
import socket
import stat
import struct
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

HANDLES_FOLDER = Path("/proc/self/fd")
# Seconds between two looks for new sockets: less than a new link needs before it carries a frame.
SOCKET_LOOK_INTERVAL = 0.25
NO_LINGER = struct.pack(
    "ii", 0, 0
)  # `struct linger` with both fields 0: `close` returns at once and data is still sent
LONGEST_RESEND = 1000  # milliseconds between two sendings of a lost packet; the lowest limit that Linux accepts
TCP_THIN_LINEAR_TIMEOUTS, TCP_RTO_MAX_MS = 16, 44  # of <linux/tcp.h>, which Python does not name
# Level, option and value: no waiting in `close`, equal waits for senders that say little, and a limit on waits.
SOCKET_OPTIONS: tuple[tuple[int, int, bytes | int], ...] = (
    (socket.SOL_SOCKET, socket.SO_LINGER, NO_LINGER),
    (socket.IPPROTO_TCP, TCP_THIN_LINEAR_TIMEOUTS, 1),
    (socket.IPPROTO_TCP, TCP_RTO_MAX_MS, LONGEST_RESEND),
)


class LinkSockets:
    """The sockets of this process that are links: told once each, for as long as somebody looks.

    Parameters
    ----------
    own
        The port that this device listens at.
    others
        The ports at which its neighbours do.
    """

    def __init__(self, own: int, others: Iterable[int]) -> None:
        self._own, self._others = own, frozenset(others)
        self._known: set[tuple[int, int]] = set()  # handle and number of a socket: handles are used again
        self._due = 0.0

    def look(self, now: float) -> None:
        """Tell the links that are new, if it is time to look for them."""
        if now < self._due:
            return
        self._due = now + SOCKET_LOOK_INTERVAL
        here = {*_sockets()}
        self._known &= here
        self._known |= {one for one in here - self._known if self._meet(one[0])}

    def _meet(self, handle: int) -> bool:
        """Tell a socket what to do if it is a link; say whether it is known what it is."""
        with suppress(OSError), _borrowed(handle) as one:
            if one.type != socket.SOCK_STREAM or one.family not in (socket.AF_INET, socket.AF_INET6):
                return True
            there = one.getpeername()[1]  # fails where nobody is at the other end yet
            if one.getsockname()[1] == self._own or there in self._others:
                _tell(one)
            return True
        return False


def _sockets() -> Iterator[tuple[int, int]]:
    """Go through the handles of sockets; those of other threads come and go."""
    with suppress(OSError):  # not on this system
        for name in os.listdir(HANDLES_FOLDER):
            with suppress(OSError):
                state = os.fstat(int(name))
                if stat.S_ISSOCK(state.st_mode):
                    yield int(name), state.st_ino


def _tell(one: socket.socket) -> None:
    for level, option, value in SOCKET_OPTIONS:
        with suppress(OSError):  # an older system
            one.setsockopt(level, option, value)


@contextmanager
def _borrowed(handle: int) -> Iterator[socket.socket]:
    """Have a socket that is somebody else's, by a handle of one's own: to close that one closes nothing."""
    with socket.socket(fileno=os.dup(handle)) as one:
        yield one
