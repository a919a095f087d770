"""Requests for a new run: from whoever asks until a run has succeeded, also beyond the end of the process.

A request is on the disk before it is acknowledged. The file holds the number of a run: that run or any later one meets
the request. A node that was killed reads it when it starts, and asks again if its journal does not know such a run.
"""

from __future__ import annotations

import json
import threading
from contextlib import suppress
from pathlib import Path

from conformesh.files.atomic_writes import PRIVATE, remove_drafts, write_file

REQUEST_FILE = "recalibrate.json"


class RunRequests:
    """The requests of one device's folder, safe to use from any thread.

    Attributes
    ----------
    run
        The smallest run that meets all requests; 0 if there is none.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / REQUEST_FILE
        self._lock = threading.Lock()
        self._new = threading.Event()  # requested, and the device has not been asked yet
        self._asked_in = 0  # the run that was the device's last one when it was asked
        self.run = self._read()

    def remove_drafts(self) -> None:
        """Delete what a killed process has left of the file."""
        remove_drafts(self._path)

    def ask(self, run: int) -> None:
        """Store a request; when this returns it survives a power cut. OSError if it cannot be written."""
        with self._lock:
            if run > self.run:  # else an earlier request asks for the same run
                write_file(self._path, json.dumps({"run": run}) + "\n", PRIVATE)
                self.run = run

    def announce(self) -> None:
        """Have the device asked for the run that was stored."""
        self._new.set()

    @property
    def is_new(self) -> bool:
        """Whether there is a request that no device has been asked for."""
        return self._new.is_set()

    def is_passed_on(self, run: int) -> bool:
        """Whether the device, whose last run is this one, was asked for the next."""
        return self._asked_in == run

    def is_due(self, run: int) -> bool:
        """Whether a device whose last run is this one must be asked for another."""
        return self.is_new or (self.run > run and not self.is_passed_on(run))

    def pass_on(self, run: int, met_by: int) -> None:
        """Note that the device in this run was asked; `met_by` or any later run will meet the request.

        The file may hold a larger number: run numbers begin anew where a journal was lost.
        """
        self._asked_in = run
        self._new.clear()
        with self._lock:
            self.run = min(self.run, met_by)

    def renew(self) -> None:
        """Forget what the last device was asked for: another one begins."""
        self._asked_in = 0

    def meet(self, run: int) -> None:
        """Note that a run has succeeded."""
        with self._lock:
            if 0 < self.run <= run:
                with suppress(OSError):  # a file that stays costs one run too many after a restart
                    self._path.unlink(missing_ok=True)
                self.run = 0

    def withdraw(self) -> None:
        """Drop every request: the account of a private device refuses them."""
        self.meet(self.run)
        self._new.clear()

    def _read(self) -> int:
        try:
            return int(json.loads(self._path.read_bytes())["run"])
        except (OSError, ValueError, KeyError, TypeError):  # none, or not written by this program
            return 0
