"""What may change under a node while it is up: its file of scores, its roster, its certificate and the clock.

Each is looked at by its stamp, about once a second, and read once for each change. What is wrong is kept in words until
it is mended; nothing here raises.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

from conformesh.mesh.config.device_config import DeviceConfig
from conformesh.mesh.config.identity import Validity, examine_pair
from conformesh.mesh.config.own_scores import NO_SCORES, OwnScores, read_own_scores

Stamp = tuple[int, int, int] | None
SETTLED = 0.5  # seconds without a change after which a file counts as written


def stamp_of(path: Path) -> Stamp:
    """Return what tells two states of a file apart without reading it; None where there is no file."""
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size, status.st_ino


class FileWatch:
    """A file that somebody may copy over another: it is read once it has not changed for a little while."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._read = stamp_of(path)
        self._met: tuple[Stamp, float] = (self._read, -math.inf)

    def expect(self) -> None:
        """Take the file as it is now for read."""
        self._read = stamp_of(self.path)

    def changed(self, time: float) -> bool:
        """Whether there is another file than was read; it counts as read then."""
        now = stamp_of(self.path)
        if now != self._met[0]:
            self._met = now, time
        if now == self._read or time - self._met[1] < SETTLED:
            return False
        self._read = now
        return True


class ScoreWatch:
    """A device's file of scores.

    Attributes
    ----------
    scores
        The last ones that could be read; None before.
    problem
        Why the file as it is now cannot be read; empty while it can.
    failures
        How often it could not be read, as it was then.
    """

    def __init__(self, config: DeviceConfig) -> None:
        self.config = config
        self.scores: OwnScores | None = None
        self.problem = ""
        self.failures = 0
        self._path = config.path("scores")
        self._read: Stamp = None  # of what was read last, well or not
        self._met: tuple[Stamp, float] = (None, -math.inf)  # of the last look, and since when

    def look(self, time: float) -> bool:
        """Read the file if it has changed; say whether there are other scores than before.

        A change must last a little before it is read, except where nothing is known yet: a file that is being written
        may end after any number.
        """
        now, first = stamp_of(self._path), self.scores is None and not self.problem
        if now != self._met[0]:
            self._met = now, time
        if not first and (now == self._read or time - self._met[1] < SETTLED):
            return False
        before = None if self.scores is None else self.scores.digest
        try:
            scores = read_own_scores(self.config)
        except (ValueError, OSError) as error:  # half written, or gone for a moment: it is looked at again
            self._read, self.problem = now, " ".join(str(error).split())
            self.failures += 1
            return False
        if stamp_of(self._path) != now:  # written to meanwhile: what was read may be half of it
            self.problem = f"{self._path}: the file changes while it is read"
            return False
        self._read, self.problem, self.scores = now, "", scores
        return scores.digest != before

    @property
    def known(self) -> OwnScores:
        """The last scores that could be read, or none."""
        return self.scores or NO_SCORES


class CertificateWatch:
    """A device's certificate, key and authority, and the clock they are judged by.

    Attributes
    ----------
    problem
        Why neighbours would not let this device in now; empty where they would.
    late
        What of that is about time: the clock is wrong, or the certificate is no longer or not yet valid.
    """

    def __init__(self, config: DeviceConfig, clock: Callable[[], datetime] = lambda: datetime.now(UTC)) -> None:
        self.config, self.clock = config, clock
        self.problem = self.late = ""
        self._paths = () if config.insecure else (config.path("cert"), config.path("key"), config.path("ca"))
        self._read: tuple[Stamp, ...] = ()
        self._lasting: list[str] = []
        self._times: list[Validity] = []
        self._in_use: tuple[Stamp, ...] = ()

    def look(self) -> None:
        """Examine the files if they have changed, and the clock in any case."""
        if not self._paths:
            return
        now = tuple(map(stamp_of, self._paths))
        if now != self._read:
            self._read = now
            cert, key, ca = self._paths
            try:
                lowest = self.config.lowest(self.config.name)
                self._lasting, self._times = examine_pair(cert, key, ca, self.config.name, lowest)
            except (OSError, ValueError) as error:  # replaced while they were read: they are examined again
                self._lasting, self._times = [" ".join(str(error).split())], []
        moment = self.clock()
        self.late = "; ".join(words for one in self._times if (words := one.problem(moment)))
        self.problem = "; ".join([*self._lasting, *filter(None, [self.late])])

    @property
    def expires(self) -> float | None:
        """When the first of certificate and authority ends, in seconds since 1970; None where none can be read."""
        return min((one.last.timestamp() for one in self._times), default=None)

    def under(self, config: DeviceConfig) -> None:
        """Look again under another roster, which may let in other certificates."""
        self.config, self._read = config, ()
        self.look()

    def use(self) -> None:
        """Note that links are opened with the files as they were at the last look."""
        self._in_use = self._read

    @property
    def replaced(self) -> bool:
        """Whether the files are good, and others than those that the links were opened with."""
        return not self.problem and self._read != self._in_use
