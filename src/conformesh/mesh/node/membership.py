"""A node's roster: the one in force, a newer one that replaces it, and their files.

A newer roster comes from a neighbour, from a local program, or as a file that somebody copies over ``roster.json``. The
node checks it (form, mesh, number, signature, whether this device can be in it), writes it, and never goes back to an
older one: ``roster.state`` has its number, so that an older file in its place is noticed even after a restart. A
refused roster leaves the file as it was; a refused file that was copied here is moved to ``roster.refused.json``.
"""

from __future__ import annotations

import json
import logging
import threading
from collections import deque
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from conformesh.files.atomic_writes import PRIVATE, remove_drafts, write_file
from conformesh.mesh.config.device_config import DeviceConfig, MeshMap
from conformesh.mesh.config.roster import ROSTER_FILE, RosterDocument, read_roster_document
from conformesh.mesh.config.signing import verify_document
from conformesh.mesh.node.file_watch import FileWatch
from conformesh.peer.rosters import Rosters

LOG = logging.getLogger("conformesh.node")
STATE_FILE = "roster.state"
REFUSED_FILE = "roster.refused.json"


class NodeRoster:
    """The roster of one node.

    Attributes
    ----------
    config
        Configuration of the device under the roster in force.
    removed
        Message that this device was removed from the mesh; empty while it belongs to it.
    problem
        Why the last roster that this node was given was refused.
    """

    def __init__(self, config: DeviceConfig) -> None:
        self.config = config
        self.removed = self.problem = ""
        self._path, self._state = config.folder / ROSTER_FILE, config.folder / STATE_FILE
        # Held while `accept` compares numbers and writes, so that of two rosters at once the newer remains.
        self._lock = threading.Lock()
        self._is_state_saved = True  # whether `roster.state` names the roster in force
        # Checked rosters for the thread that runs devices. A deque, because threads of the service append to it.
        self._submitted: deque[bytes] = deque()
        self._checked: set[str] = set()  # digests of documents that need not be verified again
        self._last_unsigned = ("", "")  # the last document without a valid signature, and why it is refused
        self._document = self._read()
        self._next: RosterDocument | None = None
        self._watch = FileWatch(self._path)
        self._replace_problem = ""  # why a refused file could not be replaced by the roster in force
        self._floor = self._load_floor()
        self.rosters = self._rosters()

    # --- called by the node -------------------------------------------------------------------------------------------

    @property
    def has_newer_roster(self) -> bool:
        """Whether a newer roster is in force than that of `config`."""
        return self._next is not None

    def adopt_newer_roster(self) -> None:
        """Continue under the newer roster, if there is one: replace `config` and `rosters`."""
        if self._next is None:
            return
        self._document, self._next = self._next, None
        roster = self._document.roster
        self.removed = ""
        try:
            self.config = self.config.with_roster(roster)
        except ValueError as problem:  # this device is not in it; all other errors were found by `accept`
            self.removed = str(problem)
        self.rosters = self._rosters()

    def remove_drafts(self, min_age: float) -> None:
        """Delete drafts that a killed process left; the authority may be writing a roster younger than `min_age`."""
        for path in (self._state, self._path.with_name(REFUSED_FILE)):
            remove_drafts(path)
        remove_drafts(self._path, min_age)

    def verify(self) -> None:
        """Raise if the authority has not signed the roster in force; save which one that is."""
        if self._document is not None:
            self._verify(self._document)
        try:
            self._save_state()
        except OSError as problem:  # a full or read-only disk: the node serves its last threshold and retries
            LOG.warning("%s", problem)

    def submit(self, body: bytes) -> str:
        """Accept a roster from a local program; return what the node does with it. A ValueError says why it is refused.

        Runs in a thread of the service, so it only stores the roster for the thread that runs devices.
        """
        number = self._check(body).roster.number
        if number == self._latest_number:
            return f"roster {number} is in force here already"
        self._submitted.append(body)
        return f"roster {number} is handed to the neighbours, and in force from now on"

    def look(self, time: float) -> None:
        """Read a roster that was copied over the file; if it is refused, move it aside and restore the old one."""
        if not self._is_state_saved:
            with suppress(OSError):
                self._save_state()
        if not self._watch.changed(time):
            return
        try:
            body = self._path.read_bytes()
        except OSError:  # deleted, which harms nothing now; the next start reports the missing file
            return
        if self._latest is not None and body == self._latest.bytes():
            self._replace_problem = ""
            return
        try:
            self._submitted.append(self._check(body).bytes())
            self.problem = self._replace_problem = ""
        except ValueError as problem:
            self._move_aside(body, str(problem))

    def next_submitted(self) -> bytes | None:
        """Remove and return a submitted roster that the device has not handled yet; None if there is none."""
        return self._submitted.popleft() if self._submitted else None

    def accept(self, body: bytes) -> int:
        """Put a newer roster in force, permanently, and return its number; see `Rosters`."""
        document = self._check(body)
        with self._lock:
            if document.roster.number > self._latest_number:
                try:
                    self._write(document)
                except OSError as problem:
                    raise ValueError(f"roster {document.roster.number} cannot be kept: {problem}") from None
                self._next = document
                with suppress(OSError):  # retried with every look
                    self._save_state()
        return document.roster.number

    # --- internal -----------------------------------------------------------------------------------------------------

    @property
    def _latest(self) -> RosterDocument | None:
        return self._next or self._document

    @property
    def _latest_number(self) -> int:
        return 0 if self._latest is None else self._latest.roster.number

    def _rosters(self) -> Rosters:
        roster = None if self._document is None else self._document.roster
        if roster is None or self._document is None:
            return Rosters(accept=self.accept)
        return Rosters(
            roster.number,
            self._document.bytes(),
            self.accept,
            [(one.number, one.devices) for one in roster.earlier],
            max(self._floor, roster.settled),
            self._save_floor,
        )

    def _check(self, body: bytes) -> RosterDocument:
        """Return the document if it may be put in force or already is; a ValueError says why not."""
        document = read_roster_document(body)
        roster, latest = document.roster, self._latest
        number, mesh, current = roster.number, self.config.mesh, self._latest_number
        if roster.mesh != mesh:
            raise ValueError(f"roster {number} is of mesh {roster.mesh}, and this device is of {mesh}")
        if latest is not None and document == latest:
            return document
        if number < current:
            raise ValueError(f"roster {number} is older than roster {current}, which is in force here")
        if number == current:
            current_digest = "" if latest is None else latest.roster.digest[:16]
            raise ValueError(
                f"roster {number} ({roster.digest[:16]}) differs from the roster {number} in force here "
                f"({current_digest}); have the authority sign a newer one, and give it to the devices"
            )
        self._verify(document)
        name = self.config.name if self.config.name in roster.devices else roster.devices[0]
        replace(self.config, map=MeshMap.of_roster(roster), name=name)  # raises if its map is not valid
        return document

    def _verify(self, document: RosterDocument) -> None:
        """Raise if the authority has not signed a document.

        Verifies each document once: neighbours offer the same one repeatedly, and a signature takes time.
        """
        key = document.roster.digest + document.signature
        if self.config.security.insecure or key in self._checked:
            return
        if key == self._last_unsigned[0]:
            raise ValueError(self._last_unsigned[1])
        try:
            verify_document(document, self.config.path("ca"))
        except ValueError as problem:
            self._last_unsigned = key, str(problem)
            raise
        self._checked = {key}

    def _read(self) -> RosterDocument | None:
        return None if self.config.roster is None else read_roster_document(self._path.read_bytes(), str(self._path))

    def _move_aside(self, body: bytes, why: str) -> None:
        """Replace a refused file by the roster in force; if the disk cannot be written, every look retries."""
        try:
            # The copy first, then the good roster over the file in one step: a crash in between must not leave a folder
            # without a roster, which could not start.
            write_file(self._path.with_name(REFUSED_FILE), body)
            if self._latest is None:
                self._path.unlink()
            else:
                self._write(self._latest)
        except OSError as problem:
            words = f"{why}; {self._path} cannot be replaced by the roster in force: {problem}"
            if words != self._replace_problem:  # reported once, not with every look
                self.problem = self._replace_problem = words
            self._watch.read_again()
            return
        if not self._replace_problem:
            self.problem = why
        self._replace_problem = ""

    def _write(self, document: RosterDocument) -> None:
        write_file(self._path, document.bytes())
        self._watch.expect()

    def _load_floor(self) -> int:
        """Return the floor in ``roster.state``; raise if the file of the roster is older than the one it names."""
        try:
            saved = json.loads(self._state.read_bytes())
            number, digest, floor = int(saved["number"]), str(saved["digest"]), int(saved["floor"])
        except FileNotFoundError:
            return 0
        except (OSError, ValueError, KeyError, TypeError):
            raise ValueError(
                f"{self._state}: cannot be read; it says which roster was in force here. Delete it only if "
                f"{ROSTER_FILE} is the newest of this mesh"
            ) from None
        current = "" if self._document is None else self._document.roster.digest
        if self._latest_number < number or (self._latest_number == number and digest != current):
            raise ValueError(
                f"{self._path}: this device was under roster {number} ({digest[:16]}) before and cannot go back to "
                f"{self._latest_number} ({current[:16] or 'none'}); copy the newest roster of the mesh there"
            )
        return floor

    def _save_state(self) -> None:
        digest = "" if self._latest is None else self._latest.roster.digest
        content = {"number": self._latest_number, "digest": digest, "floor": self._floor}
        self._is_state_saved = False
        write_file(self._state, json.dumps(content) + "\n", PRIVATE)
        self._is_state_saved = True

    def _save_floor(self, floor: int) -> None:
        """Save a floor. If that fails the node continues: with a lower floor it asks for more devices, never fewer."""
        self._floor = floor
        try:
            self._save_state()
        except OSError as problem:
            self.problem = f"{self._state}: cannot be written: {problem}"


def put_roster_into_folder(body: bytes, folder: Path, config: DeviceConfig) -> str:
    """Put a roster into the folder of a device that is not running; return what was done."""
    members = NodeRoster(config)
    before = config.roster_number
    number = members.accept(body)
    return f"roster {number} is in force there already" if number == before else f"roster {number} is in {folder} now"
