"""What the authority of a mesh has signed last, and the change that it is making: ``ROOT/authority.json``.

Numbers of rosters come from this record, never from the folders of devices: a number that was signed once is never
signed again with another content, whatever happens in between. So a change is written ahead, in three steps:

1. The whole change, with the signed roster and the new keys, goes into the record in one step. Before that nothing has
   happened: the signature has not left the memory of this process. After that the number is used up.
2. The files are written into the folders. Each of these writes may be repeated.
3. The record is written again, without the change.

A command that finds a change in the record finishes it first (steps 2 and 3), and says so. One command at a time has
the record: others are refused while it works.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

from msgspec import Struct, field, to_builtins
from msgspec.structs import replace

from conformesh.files.atomic_writes import PRIVATE, PUBLIC, make_folder, move_path, remove_drafts, write_file
from conformesh.files.json_numbers import dump_json, parse_json
from conformesh.files.schemas import validate
from conformesh.mesh.config.certificates import KEY
from conformesh.mesh.config.device_toml import DEVICE_FILE, read_device, write_device
from conformesh.mesh.config.local_scores import EMPTY_SCORE_FILE
from conformesh.mesh.config.readme import mesh_readme
from conformesh.mesh.config.roster import ROSTER_FILE, Roster, read_roster_document
from conformesh.mesh.folder_lock import hold_folder

AUTHORITY_FILE = "authority.json"
AUTHORITY_LOCK = "authority.lock"  # the system releases it when the command ends or is killed
REVOKED_FOLDER = "revoked"
BUSY_MESSAGE = "changes this mesh now; wait until it has ended, then run this again"
_LOG = logging.getLogger("conformesh.mesh")


class Change(Struct, forbid_unknown_fields=True):
    """One change of a mesh, with all that is needed to make it again.

    Attributes
    ----------
    request
        What was asked for: the command, the device and the other arguments.
    roster
        The document of the next roster, signed; empty where the roster stays.
    files
        The texts of new files, by path inside the root.
    scores
        Files of scores that are made empty, unless they are there.
    heading
        What an empty file of scores has.
    removed
        The device whose folder moves to ``revoked/``.
    """

    request: dict[str, Any]
    roster: str = ""
    files: dict[str, str] = field(default_factory=dict)
    scores: list[str] = field(default_factory=list)
    heading: str = EMPTY_SCORE_FILE
    removed: str = ""

    @property
    def command(self) -> str:
        """The command that makes this change, as far as it names it."""
        words = ("mesh", self.request.get("command"), self.request.get("device"))
        return f"conformesh {' '.join(str(word) for word in words if word)}"


class AuthorityRecord(Struct, forbid_unknown_fields=True):
    """Content of the file: the roster in force, as it was signed, and the change that is under way, if any."""

    format: Literal["conformesh-authority/1"] = "conformesh-authority/1"
    roster: str = ""
    change: Change | None = None

    @property
    def latest(self) -> Roster | None:
        """The roster with the highest number that was signed; None before the first."""
        text = (self.change.roster if self.change is not None else "") or self.roster
        return read_roster_document(text.encode(), AUTHORITY_FILE).roster if text else None


def read_authority_record(root: Path) -> AuthorityRecord | None:
    """Read the record of a mesh; None where there is none."""
    path = root / AUTHORITY_FILE
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as problem:
        raise ValueError(f"{path}: cannot read the record of the authority: {problem.strerror}") from problem
    return validate(parse_json(content, str(path)), AuthorityRecord, str(path))


def describe_interruption(root: Path) -> str:
    """Return which change of a mesh is not finished and what to do, or an empty string."""
    record = read_authority_record(root)
    if record is None or record.change is None:
        return ""
    return (
        f"{root}: `{record.change.command}` is at work, or was interrupted; if it no longer runs, run it again, or any "
        "other mesh add, revoke or renew: what was interrupted is finished first"
    )


class Authority:
    """The authority of a mesh, while one command holds its lock.

    Attributes
    ----------
    finished_request
        The request of an interrupted change that was finished just now; empty if there was none. A command that is
        repeated after a crash compares it with its own request, and does not make its change twice.
    """

    def __init__(self, root: Path, record: AuthorityRecord) -> None:
        self.root, self._record = root, record
        self.finished_request: dict[str, Any] = {}

    @property
    def roster(self) -> Roster | None:
        """The last roster that was signed; None before the first."""
        return self._record.latest

    def commit(self, change: Change) -> None:
        """Make a change: completely now or, after a crash, by the next command."""
        # First the record: from here on the number of the roster is used up, and the change can be made again.
        self._write(replace(self._record, change=change))
        try:
            self._apply(change)
        except OSError as problem:
            words = f"{problem.strerror}; then run this again, which finishes what it has begun"
            raise OSError(problem.errno, words) from problem

    def finish_interrupted(self) -> None:
        """Finish a change that was interrupted, if there is one."""
        change = self._record.change
        if change is None:
            return
        for path in change.files:
            remove_drafts(self.root / path)
        self._apply(change)
        self.finished_request = change.request
        words = f"{self.root}: found `{change.command}` interrupted, and finished it"
        if change.roster:
            number = read_roster_document(change.roster.encode()).roster.number
            words += (
                f"; hand roster {number} to any device that runs: conformesh mesh hand {self.root / ROSTER_FILE} FOLDER"
            )
        _LOG.warning("%s", words)

    def _apply(self, change: Change) -> None:
        """Write what a change says into the folders; every step may be repeated after a crash."""
        for path, text in change.files.items():
            make_folder((self.root / path).parent, 0o700)
            write_file(self.root / path, text, PRIVATE if Path(path).name == KEY else PUBLIC)
        for path in change.scores:
            if not (self.root / path).exists():  # scores that were put there since the crash are kept
                write_file(self.root / path, change.heading, PRIVATE)
        if change.roster:
            self._hand_to_folders(change.roster)
        if change.removed and (self.root / change.removed).exists():
            make_folder(self.root / REVOKED_FOLDER, 0o700)
            move_path(self.root / change.removed, self.root / REVOKED_FOLDER / change.removed)
        self._write(AuthorityRecord(roster=change.roster or self._record.roster))

    def _hand_to_folders(self, document: str) -> None:
        """Write a new roster into all folders; a device that runs in its folder here notices it."""
        roster = read_roster_document(document.encode()).roster
        missing = [name for name in roster.devices if not (self.root / name / DEVICE_FILE).is_file()]
        if missing:
            raise ValueError(
                f"{self.root}: the folder of {missing[0]!r} is missing, with its {DEVICE_FILE}; put it back"
            )
        write_file(self.root / ROSTER_FILE, document)
        for name in roster.devices:
            write_file(self.root / name / ROSTER_FILE, document)
            write_device(self.root / name, read_device(self.root / name))
        write_file(self.root / "README.md", mesh_readme(read_device(self.root / roster.devices[0])))

    def _write(self, record: AuthorityRecord) -> None:
        write_file(self.root / AUTHORITY_FILE, dump_json(to_builtins(record), indent=1), PRIVATE)
        self._record = record


@contextmanager
def open_authority(root: Path, new: bool = False) -> Iterator[Authority]:
    """Lock the authority of a mesh, finish an interrupted change, and yield it; `new` allows a missing record."""
    record = read_authority_record(root)
    if record is None and not new:
        folders = sorted(path.parent for path in root.glob(f"*/{DEVICE_FILE}")) if root.is_dir() else []
        if not folders:
            raise ValueError(
                f"{root}: no folder of a device is in there; make a mesh with `conformesh mesh init {root}`"
            )
        if any((folder / ROSTER_FILE).exists() for folder in (root, *folders)):
            raise ValueError(
                f"{root}: {AUTHORITY_FILE} is missing, which says how many rosters were signed; without it a second "
                "roster with the same number might be signed. Put it back from the place where this mesh was made or "
                "from a backup; if there is none, make a new mesh"
            )
    with hold_folder(root, AUTHORITY_LOCK, BUSY_MESSAGE, needed=True):
        remove_drafts(root / AUTHORITY_FILE)
        # Read again: another command may have changed the record before the lock was taken.
        authority = Authority(root, read_authority_record(root) or AuthorityRecord())
        authority.finish_interrupted()
        yield authority
