"""Watches files that may change while a node is up: its scores, its roster and its certificate, and the clock.

Each file is looked at by its stamp, about once a second, and read once for each change: polling works on every file
system, network shares included, where change notifications do not. A problem is kept in words until it is mended;
nothing here raises.
"""

from __future__ import annotations

import math
import os
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

from conformesh.mesh.config.device_config import DeviceConfig
from conformesh.mesh.config.key_pair import Validity, examine_key_pair
from conformesh.mesh.config.local_scores import NO_SCORES, LocalScores, read_local_scores

FileStamp = tuple[int, int, int, int] | None  # modification, size, inode, change of permissions or owner
_Reading = tuple[FileStamp, LocalScores | None, str]  # of which file, its scores, or why there are none
UNKNOWN_STAMP: FileStamp = (-1, -1, -1, -1)  # differs from the stamp of every file, and from None for a missing one
SETTLED_SECONDS = 0.5  # without a change, after which a small file that is copied here counts as written
# Seconds without a change after which a file of scores counts as written. A writer that pauses for longer in the middle
# of a text file cannot be told from one that is done; docs/mesh.md says how to replace the file in one step.
QUIET_SECONDS = 2.0
LONGEST_CHANGING = 10.0  # seconds after which a file of scores that does not become quiet is reported
HALF_WRITTEN = "so it may be half written and is not used; replace it in one step, as `conformesh mesh put-scores` does"


def file_stamp(path: Path) -> FileStamp:
    """Return what tells two states of a file apart without reading it; None where there is no file."""
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size, status.st_ino, status.st_ctime_ns


def _is_cut(now: FileStamp, used: FileStamp) -> bool:
    """Whether a file is the one that was used, and shorter: a program empties it to write it anew, say.

    A file that replaced it has another number (inode) on its file system.
    """
    return now is not None and used is not None and now[2] == used[2] and now[1] < used[1]


def _read(stamp: FileStamp, config: DeviceConfig) -> _Reading:
    """Read the scores of a device, from a file with this stamp."""
    try:
        return stamp, read_local_scores(config), ""
    except (ValueError, OSError) as error:  # its last record is incomplete, say, or it is gone
        return stamp, None, str(error)


class FileWatch:
    """A file that somebody may copy over another: it is read once it has not changed for a little while."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._read = file_stamp(path)
        self._met: tuple[FileStamp, float] = (self._read, -math.inf)

    def expect(self) -> None:
        """Take the file as it is now for read."""
        self._read = file_stamp(self.path)

    def read_again(self) -> None:
        """Take the file for unread: the next look finds it changed."""
        self._read = None

    def changed(self, time: float) -> bool:
        """Whether there is another file than was read; it counts as read then."""
        now = file_stamp(self.path)
        if now != self._met[0]:
            self._met = now, time
        if now == self._read or time - self._met[1] < SETTLED_SECONDS:
            return False
        self._read = now
        return True


class ScoreWatch:
    """A device's file of scores, which is used only once it seems to be complete.

    Nothing in a text file says where it ends, so a file that was cut between two scores, or inside the last number,
    reads well. Three signs tell that a writer may not be done: the file changed within the last seconds, it became
    shorter without being replaced by another file, or its last record is incomplete.

    Attributes
    ----------
    scores
        The last ones that could be read; None before.
    problem
        Why the file as it is now is not used; empty while it is, or while it is only waited for.
    waiting
        Why the file is not read yet, where it has just changed; empty otherwise.
    failures
        How often the file was refused, counted once for each of its states.

    Parameters
    ----------
    in_background
        Whether a changed file is read in a thread of its own. A node whose neighbours may not learn how many scores it
        has must answer them meanwhile: reading a million takes seconds. The first look reads at once in any case, since
        a node that starts waits for its scores before it says anything.
    """

    def __init__(
        self, config: DeviceConfig, wall: Callable[[], float] = time.time, in_background: bool = False
    ) -> None:
        self.config = config
        self.scores: LocalScores | None = None
        self.problem = self.waiting = ""
        self.failures = 0
        self._path = config.path("scores")
        self._wall = wall
        self._used: FileStamp = None  # of the file that `scores` come from
        self._judged: FileStamp = None  # of what was read or refused last
        self._looked = False  # before the first look there is nothing to compare with
        self._met: tuple[FileStamp, float] = (None, -math.inf)  # of the last look, and since when it has been so
        self._since: float | None = None  # when this series of changes began
        self._in_background = in_background
        self._started = False  # whether the first look is over
        self._reader: threading.Thread | None = None
        self._reading: _Reading = (None, None, "")  # what the reader has found

    def set_config(self, config: DeviceConfig) -> None:
        """Go on with another configuration, which may name another file; it is read at the next look in any case."""
        if config.path("scores") != self._path:
            self._used = None
        self.config, self._path = config, config.path("scores")
        self._judged, self._looked = None, False

    def look(self, now: float) -> bool:
        """Read the file if it has changed and seems to be complete; return whether there are other scores than before.

        `now` is on the monotonic clock.
        """
        reading = self._next(now) if self._reader is None else self._finished()
        return reading is not None and self._take(reading, now)

    def _finished(self) -> _Reading | None:
        """Return what the thread that reads has found; None while it is at work."""
        if self._reader is None or self._reader.is_alive():
            return None
        self._reader = None
        return self._reading

    def _next(self, now: float) -> _Reading | None:
        """Read the file if it has changed and seems to be complete, or let a thread do so; None if nothing is read."""
        stamp, first = file_stamp(self._path), not self._looked
        self._looked = True
        if stamp != self._met[0]:
            self._met = stamp, now
        if stamp is None or (self._used is not None and stamp[2] != self._used[2]):
            self._used = None  # another file: a later one may get the same inode again
        if not first and stamp == self._judged:
            self._since, self.waiting = None, ""
            return None
        if not self._is_quiet(stamp, now, first):
            self._wait(now)
            return None
        self._since, self.waiting = None, ""
        # With epsilon one record more or less must not decide on the whole file, which it would if it made the file
        # shorter than before. What is half written changes again, and is read again.
        if _is_cut(stamp, self._used) and not self.config.has_epsilon:
            self._refuse(stamp, f"{self._path}: it became shorter without being replaced, {HALF_WRITTEN}")
            return None
        if self._in_background and self._started:
            self._reader = threading.Thread(target=self._read_in_thread, args=(stamp, self.config), daemon=True)
            self._reader.start()
            return None
        self._started = True
        return _read(stamp, self.config)

    def _read_in_thread(self, stamp: FileStamp, config: DeviceConfig) -> None:
        self._reading = _read(stamp, config)

    def _take(self, reading: _Reading, now: float) -> bool:
        """Use what was read, unless the file was written to meanwhile; return whether there are other scores."""
        stamp, scores, problem = reading
        if scores is None:
            self._refuse(stamp, problem)
            return False
        if file_stamp(self._path) != stamp:  # what was read may be half of it
            self._wait(now)
            return False
        before = None if self.scores is None else self.scores.digest
        self._judged = self._used = stamp
        self.problem, self.scores = scores.problem, scores
        return scores.digest != before

    def _is_quiet(self, stamp: FileStamp, now: float, first: bool) -> bool:
        """Whether nothing has been written to the file for a while.

        By its stamps at several looks. The time of modification counts at the first look only: the clock of a file
        server may be behind, so that a file that is being written seems old. A file that is missing at the first look
        is reported at once.
        """
        if now - self._met[1] >= QUIET_SECONDS or (stamp is None and first):
            return True
        return first and stamp is not None and self._wall() - stamp[0] / 1e9 >= QUIET_SECONDS

    def _wait(self, now: float) -> None:
        """Wait for the file, but not for ever: a file that something appends to all the time is a problem."""
        self._since = now if self._since is None else self._since
        quiet = f"{QUIET_SECONDS:g} s"
        self.waiting = f"{self._path}: it has just changed, and is read once nothing was written to it for {quiet}"
        if now - self._since >= LONGEST_CHANGING:
            words = f"{self._path}: it has been changing for more than {LONGEST_CHANGING:g} s, {HALF_WRITTEN}"
            self.failures += words != self.problem
            self.problem, self._judged = words, UNKNOWN_STAMP  # the old file may come back, and is judged again

    def _refuse(self, stamp: FileStamp, words: str) -> None:
        self._judged, self.problem = stamp, " ".join(words.split())
        self.failures += 1

    @property
    def known(self) -> LocalScores:
        """The last scores that could be read, or none."""
        return self.scores or NO_SCORES


def _contents(stamps: tuple[FileStamp, ...]) -> list[tuple[int, ...] | None]:
    """Return the parts of stamps that change with the content: a chmod, or a link to a file, replaces nothing."""
    return [None if stamp is None else stamp[:3] for stamp in stamps]


def _identity_files(config: DeviceConfig) -> tuple[Path, ...]:
    return () if config.security.insecure else (config.path("cert"), config.path("key"), config.path("ca"))


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
        self._paths = _identity_files(config)
        self._read: tuple[FileStamp, ...] = ()
        self._lasting: list[str] = []
        self._times: list[Validity] = []
        self._in_use: tuple[FileStamp, ...] = ()

    def look(self) -> None:
        """Examine the files if they have changed, and the clock in any case."""
        if not self._paths:
            return
        now = tuple(map(file_stamp, self._paths))
        if now != self._read:
            self._read = now
            cert, key, ca = self._paths
            try:
                lowest = self.config.lowest_certificate(self.config.name)
                self._lasting, self._times = examine_key_pair(cert, key, ca, self.config.name, lowest)
            except (OSError, ValueError) as error:  # replaced while they were read: they are examined again
                self._lasting, self._times = [" ".join(str(error).split())], []
        moment = self.clock()
        self.late = "; ".join(words for one in self._times if (words := one.problem(moment)))
        self.problem = "; ".join([*self._lasting, *filter(None, [self.late])])

    @property
    def expires(self) -> float | None:
        """When the first of certificate and authority ends, in seconds since 1970; None where none can be read."""
        return min((one.last.timestamp() for one in self._times), default=None)

    def set_config(self, config: DeviceConfig) -> None:
        """Look again under another roster, which may let in other certificates, or at other files."""
        self.config, self._read, self._paths = config, (), _identity_files(config)
        self.look()

    def use(self) -> None:
        """Note that links are opened with the files as they were at the last look."""
        self._in_use = () if self._lasting else self._read  # links may lack a file that could not be read

    @property
    def replaced(self) -> bool:
        """Whether the files are good, and others than those that the links were opened with."""
        return not self.problem and _contents(self._read) != _contents(self._in_use)
