"""A requested run that outlasts the process: on disk before the request is acknowledged, until such a run succeeds.

The file says which run meets the request: any with this number or a greater one. A node that was killed reads it when
it starts, and asks again if its journal does not know of such a run.
"""

from __future__ import annotations

import json
import threading
from contextlib import suppress
from pathlib import Path

from conformesh.files.files import PRIVATE, remove_drafts, write_file

FILE = "recalibrate.json"


class PendingRun:
    """The request of one device's folder, safe to use from any thread.

    Attributes
    ----------
    run
        The smallest run that meets the request; 0 where there is no request.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / FILE
        self._lock = threading.Lock()
        self.run = self._read()

    def remove_drafts(self) -> None:
        """Delete what a killed process has left of the file."""
        remove_drafts(self._path)

    def ask(self, run: int) -> None:
        """Note a request; when this returns it survives a power cut. OSError where it cannot be written."""
        with self._lock:
            if run > self.run:  # else an earlier request asks for the same run
                write_file(self._path, json.dumps({"run": run}) + "\n", PRIVATE)
                self.run = run

    def asked_in(self, run: int) -> None:
        """Note that this run or any later one will meet the request, though the file may say a later one.

        Run numbers begin anew where a journal was lost.
        """
        with self._lock:
            self.run = min(self.run, run)

    def done(self, run: int) -> None:
        """Note that a run has succeeded."""
        with self._lock:
            if 0 < self.run <= run:
                with suppress(OSError):  # a file that stays costs one run too many after a restart
                    self._path.unlink(missing_ok=True)
                self.run = 0

    def _read(self) -> int:
        try:
            return int(json.loads(self._path.read_bytes())["run"])
        except (OSError, ValueError, KeyError, TypeError):  # none, or not written by this program
            return 0
