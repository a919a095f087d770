"""A node's roster: the one in force, the newer one it moves to, and what of it is on the disk.

A newer roster comes from a neighbour, from a local program, or as a file that somebody copies over ``roster.json``. It
is checked (form, mesh, number, signature, whether this device can be in it), written, and from then on in force for
ever: ``roster.state`` remembers its number, so that an older file in its place is noticed also after a restart. What is
refused leaves the file as it was; a file that was copied here and is refused is put aside as ``roster.refused.json``.
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
from conformesh.mesh.config.roster import ROSTER_FILE, RosterDocument, read_document
from conformesh.mesh.config.signing import verify_document
from conformesh.mesh.node.file_watch import FileWatch
from conformesh.peer.rosters import Rosters

LOG = logging.getLogger("conformesh.node")
STATE_FILE = "roster.state"
REFUSED_FILE = "roster.refused.json"


class Membership:
    """The roster of one node.

    Attributes
    ----------
    config
        What the device knows under the roster in force.
    removed
        In words, that this device is none of the mesh any more; empty while it is.
    problem
        Why the last roster that was handed to this node was refused.
    """

    def __init__(self, config: DeviceConfig) -> None:
        self.config = config
        self.removed = self.problem = ""
        self._path, self._state = config.folder / ROSTER_FILE, config.folder / STATE_FILE
        self._lock = threading.Lock()  # programs hand over rosters in threads of their own
        self._state_kept = True  # whether `roster.state` says what is in force
        self._offered: deque[bytes] = deque()  # checked, and for the node's own thread to take
        self._checked: set[str] = set()  # digests of documents that need not be verified again
        self._unsigned = ("", "")  # the last document that the authority has not signed, and why it is refused
        self._document = self._read()
        self._next: RosterDocument | None = None
        self._watch = FileWatch(self._path)
        self._unmended = ""  # why a refused file is still in the place of the roster
        self._floor = self._recall()
        self.rosters = self._rosters()

    # --- what a node asks ---------------------------------------------------------------------------------------------

    @property
    def moving(self) -> bool:
        """Whether a newer roster is in force than the one that `config` is of."""
        return self._next is not None

    def move(self) -> None:
        """Go on under the newer roster: `config` and `rosters` are others from now on."""
        if self._next is None:
            return
        self._document, self._next = self._next, None
        roster = self._document.roster
        self.removed = ""
        try:
            self.config = self.config.with_roster(roster)
        except ValueError as problem:  # all else was found out when it was accepted
            self.removed = str(problem)
        self.rosters = self._rosters()

    def remove_drafts(self, min_age: float) -> None:
        """Delete what a killed process has left of this node's rosters; the authority may be writing a young draft."""
        for path in (self._state, self._path.with_name(REFUSED_FILE)):
            remove_drafts(path)
        remove_drafts(self._path, min_age)

    def verify(self) -> None:
        """Refuse to start under a roster that is not the authority's, or older than one in force here before."""
        if self._document is not None:
            self._verify(self._document)
        try:
            self._keep_state()
        except OSError as problem:  # a full or read-only disk: the node serves its last threshold, and tries again
            LOG.warning("%s", problem)

    def hand(self, body: bytes) -> str:
        """Take a roster from a local program, in its thread; say what becomes of it. A ValueError says why not."""
        number = self._check(body).roster.number
        if number == self._latest_number:
            return f"roster {number} is in force here already"
        self._offered.append(body)
        return f"roster {number} is handed to the neighbours, and in force from now on"

    def look(self, time: float) -> None:
        """Take a roster that was copied over the file; put aside what is refused, and write the old one back."""
        if not self._state_kept:
            with suppress(OSError):
                self._keep_state()
        if not self._watch.changed(time):
            return
        try:
            body = self._path.read_bytes()
        except OSError:  # gone: whoever did that may know why, and the next start will say what is missing
            return
        if self._latest is not None and body == self._latest.bytes():
            self._unmended = ""
            return
        try:
            self._offered.append(self._check(body).bytes())
            self.problem = self._unmended = ""
        except ValueError as problem:
            self._put_aside(body, str(problem))

    def offered(self) -> bytes | None:
        """Return a roster that was handed to this node and is for its device to take; None if there is none."""
        return self._offered.popleft() if self._offered else None

    def accept(self, body: bytes) -> int:
        """Put a newer roster in force for ever, and return its number; see `Rosters`."""
        document = self._check(body)
        with self._lock:
            if document.roster.number > self._latest_number:
                try:
                    self._write(document)
                except OSError as problem:
                    raise ValueError(f"roster {document.roster.number} cannot be kept: {problem}") from None
                self._next = document
                with suppress(OSError):  # tried again with every look
                    self._keep_state()
        return document.roster.number

    # --- pieces -------------------------------------------------------------------------------------------------------

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
            self._keep_floor,
        )

    def _check(self, body: bytes) -> RosterDocument:
        """Return a document that may be put in force, or is; a ValueError says why not."""
        document = read_document(body)
        roster, latest = document.roster, self._latest
        number, mesh, current = roster.number, self.config.mesh, self._latest_number
        if roster.mesh != mesh:
            raise ValueError(f"roster {number} is of mesh {roster.mesh}, and this device is of {mesh}")
        if latest is not None and document == latest:
            return document
        if number < current:
            raise ValueError(f"roster {number} is older than roster {current}, which is in force here")
        if number == current:
            mine = "" if latest is None else latest.roster.digest[:16]
            raise ValueError(
                f"roster {number} ({roster.digest[:16]}) is another than the roster {number} in force here ({mine}); "
                "have the authority sign a newer one, and hand that out"
            )
        self._verify(document)
        name = self.config.name if self.config.name in roster.devices else roster.devices[0]
        replace(self.config, map=MeshMap.of_roster(roster), name=name)  # raises in words if it is no map
        return document

    def _verify(self, document: RosterDocument) -> None:
        """Refuse a document without the authority's signature; the same one is examined once, not on every offer."""
        key = document.roster.digest + document.signature
        if self.config.security.insecure or key in self._checked:
            return
        if key == self._unsigned[0]:
            raise ValueError(self._unsigned[1])
        try:
            verify_document(document, self.config.path("ca"))
        except ValueError as problem:
            self._unsigned = key, str(problem)
            raise
        self._checked = {key}

    def _read(self) -> RosterDocument | None:
        return None if self.config.roster is None else read_document(self._path.read_bytes(), str(self._path))

    def _put_aside(self, body: bytes, why: str) -> None:
        """Replace a refused file by the roster in force; if the disk takes nothing, every look tries again."""
        try:
            # The copy first, then the good roster over it in one step: at no moment is there none, or a crash here
            # would leave a folder that cannot start.
            write_file(self._path.with_name(REFUSED_FILE), body)
            if self._latest is None:
                self._path.unlink()
            else:
                self._write(self._latest)
        except OSError as problem:
            words = f"{why}; {self._path} cannot be replaced by the roster in force: {problem}"
            if words != self._unmended:  # said once, not with every look
                self.problem = self._unmended = words
            self._watch.read_again()
            return
        if not self._unmended:
            self.problem = why
        self._unmended = ""

    def _write(self, document: RosterDocument) -> None:
        write_file(self._path, document.bytes())
        self._watch.expect()

    def _recall(self) -> int:
        """Return the floor that this device knows of; refuse a roster that it cannot go back to."""
        try:
            known = json.loads(self._state.read_bytes())
            number, digest, floor = int(known["number"]), str(known["digest"]), int(known["floor"])
        except FileNotFoundError:
            return 0
        except (OSError, ValueError, KeyError, TypeError):
            raise ValueError(
                f"{self._state}: cannot be read; it says which roster was in force here. Delete it only if "
                f"{ROSTER_FILE} is the newest of this mesh"
            ) from None
        mine = "" if self._document is None else self._document.roster.digest
        if self._latest_number < number or (self._latest_number == number and digest != mine):
            raise ValueError(
                f"{self._path}: this device was under roster {number} ({digest[:16]}) before and cannot go back to "
                f"{self._latest_number} ({mine[:16] or 'none'}); copy the newest roster of the mesh there"
            )
        return floor

    def _keep_state(self) -> None:
        digest = "" if self._latest is None else self._latest.roster.digest
        known = {"number": self._latest_number, "digest": digest, "floor": self._floor}
        self._state_kept = False
        write_file(self._state, json.dumps(known) + "\n", PRIVATE)
        self._state_kept = True

    def _keep_floor(self, floor: int) -> None:
        """Remember a floor; that it is forgotten makes a device ask for more, and never for less."""
        self._floor = floor
        try:
            self._keep_state()
        except OSError as problem:
            self.problem = f"{self._state}: cannot be written: {problem}"


def put_roster_into_folder(body: bytes, folder: Path, config: DeviceConfig) -> str:
    """Put a roster into the folder of a device that does not run; say what became of it."""
    members = Membership(config)
    before = config.roster_number
    number = members.accept(body)
    return f"roster {number} is in force there already" if number == before else f"roster {number} is in {folder} now"
