"""Epochs of a private mesh: which one has closed last, by a public clock or by the operator's declaration.

With the option `epoch_seconds` the clock decides, and epochs are numbered from 1970 on. Without it the operator does,
by a number in the file `epoch` of the device's folder (`conformesh mesh epoch`), 1 if there is none. Either way the
number never falls, and does not depend on the scores.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable
from pathlib import Path

from conformesh.files.atomic_writes import write_file
from conformesh.mesh.config.device_config import DeviceConfig
from conformesh.methods import make_options

EPOCH_FILE = "epoch"
FIRST_EPOCH = 1  # the epoch of scores that name none, and the last closed one where nobody has declared any
MOST_EPOCHS_AHEAD = 100  # epochs that one declaration closes: a typing error must not use up years of epochs
MOST_DIGITS = 15  # decimal digits of an epoch's number: it stays below 2^53, which JSON readers hold exactly
# Seconds that a device waits before it asks for a run of an epoch that has just closed. Clocks that are set over a
# network differ by less, and a score file that was replaced just before is read by then (`file_watch.QUIET_SECONDS`,
# and a look a second): an epoch that is released without its last scores is not released again. For epochs by the clock
# at most a tenth of an epoch.
SETTLING_SECONDS = 5.0


def read_epoch(folder: Path) -> int:
    """Return the last closed epoch that the operator has declared; a ValueError says what is wrong with the file."""
    path = folder / EPOCH_FILE
    try:
        text = path.read_text(encoding="utf-8").strip()
    except FileNotFoundError:
        return FIRST_EPOCH
    except (OSError, UnicodeDecodeError) as problem:
        raise ValueError(f"{path}: cannot be read: {problem}; declare the epoch again") from None
    if not re.fullmatch(rf"[1-9][0-9]{{0,{MOST_DIGITS - 1}}}", text):
        raise ValueError(f"{path}: must be a whole number, at least 1, got {text[:40]!r}; declare the epoch again")
    return int(text)


def declare_epoch(config: DeviceConfig, number: int) -> None:
    """Declare that an epoch has closed. Numbers never fall: records of a closed epoch are released, and not again."""
    if seconds := epoch_seconds(config):
        raise ValueError(
            f"{config.folder}: epochs of this mesh close every {seconds:g} s by the clock (option epoch_seconds), and "
            "are not declared"
        )
    if not FIRST_EPOCH <= number < 10**MOST_DIGITS:
        raise ValueError(f"an epoch must be a whole number from 1 to {10**MOST_DIGITS - 1}, got {number}")
    try:
        before = read_epoch(config.folder)
    except ValueError:  # it is being repaired
        before = FIRST_EPOCH
    if number < before:
        raise ValueError(f"{config.folder}: epoch {before} has closed, and numbers never fall; got {number}")
    if number > before + MOST_EPOCHS_AHEAD:
        raise ValueError(
            f"{config.folder}: epoch {before} has closed last, and {number} would use up all epochs between, for good; "
            f"declare at most {before + MOST_EPOCHS_AHEAD} at a time"
        )
    write_file(config.folder / EPOCH_FILE, f"{number}\n")


def epoch_seconds(config: DeviceConfig) -> float | None:
    """Return how long an epoch lasts; None where the operator closes it."""
    seconds: float | None = getattr(make_options(config.run.method, config.run.options), "epoch_seconds", None)
    return seconds


class EpochClock:
    """The last closed epoch of one device, as time goes on.

    Attributes
    ----------
    problem
        What is wrong with the operator's declaration, in words; the last good one counts meanwhile.
    """

    def __init__(self, config: DeviceConfig, wall: Callable[[], float] = time.time) -> None:
        self._folder, self._wall, self._seconds = config.folder, wall, epoch_seconds(config)
        self._declared: int | None = None  # nothing was read so far
        self._before, self._risen_at = FIRST_EPOCH, -math.inf  # what was declared before, and when that changed
        self.problem = ""

    def last_closed(self, ago: float = 0.0) -> int:
        """Return the last closed epoch, by the clock as it was so many seconds `ago`; 0 if none has closed."""
        if self._seconds is not None:
            # The epoch that the clock is in is still open: the last closed one is the one before.
            return max(int((self._wall() - ago) // self._seconds) - 1, 0)
        known = self._declared or FIRST_EPOCH
        try:
            number, self.problem = max(known, read_epoch(self._folder)), ""
        except ValueError as problem:
            number, self.problem = known, str(problem)
        if self._declared is not None and number > known:
            self._before, self._risen_at = known, self._wall()
        self._declared = number
        return number

    def last_due(self) -> int:
        """Return the last epoch that a run may be asked for: its end is long enough ago, see `SETTLING_SECONDS`.

        What was declared before the first look is due at once.
        """
        if self._seconds is not None:
            return self.last_closed(min(SETTLING_SECONDS, self._seconds / 10))
        last = self.last_closed()
        return last if self._wall() - self._risen_at >= SETTLING_SECONDS else self._before
