"""A roster: who is in a mesh, numbered and signed by its authority, in a file that devices hand to each other.

The document is one line of JSON in exactly one form (sorted keys, no spaces, plain ASCII, a newline at its end), with
the roster and the authority's signature over it: any other bytes are refused, also those that mean the same. A mesh
without certificates has rosters without a signature, and anybody who reaches a device can hand it one.

A roster carries the devices of the rosters before it, back to the one that is settled: see `peer.run_membership`.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from conformesh.common.names import list_names
from conformesh.files.schemas import validate
from conformesh.peer.rosters import LARGEST_ROSTER_NUMBER, Rosters

ROSTER_FILE = "roster.json"
# Bytes of a document: about 10,000 devices, fewer if it lists earlier rosters. It is parsed before its signature is
# checked, which may take 20 times as much memory.
LARGEST_DOCUMENT = 2 * 2**20
ROSTER_FORMAT = "conformesh-roster/1"
_DIGEST = re.compile("[0-9a-f]{64}")
_SIGNATURE = re.compile("[0-9a-f]{128}")  # two numbers of 32 bytes, as `signing` writes them


@dataclass(frozen=True)
class Revoked:
    """A certificate that is no longer trusted: its device, its number (0 if not known) and its SHA-256 fingerprint."""

    name: str
    number: int = 0
    fingerprint: str = ""


@dataclass(frozen=True)
class EarlierRoster:
    """The devices of a roster before this one."""

    number: int
    devices: tuple[str, ...]


@dataclass(frozen=True)
class Roster:
    """Who is in a mesh from some number on; `DeviceConfig` checks the map itself.

    Attributes
    ----------
    number, mesh
        Rosters of one mesh are counted from 1; 0 is what stood in ``device.toml`` before there were any.
    devices, edges, endpoints
        The devices in row order, the graph, and the ``host:port`` of each device.
    revoked
        Certificates that are no longer trusted, and devices that were taken out.
    lowest
        The lowest number of a certificate that is let in, of devices for which that is not 1.
    sizes
        The most scores that a device may claim to hold, of devices for which that is limited.
    settled, earlier
        No run under a roster before `settled` can have a result any more; the devices of those from `settled` on, up to
        the one before this.
    """

    number: int
    mesh: str
    devices: tuple[str, ...]
    edges: tuple[tuple[str, str], ...]
    endpoints: dict[str, str]
    revoked: tuple[Revoked, ...] = ()
    lowest: dict[str, int] = field(default_factory=dict)
    sizes: dict[str, int] = field(default_factory=dict)
    settled: int = 1
    earlier: tuple[EarlierRoster, ...] = ()

    def __post_init__(self) -> None:
        if not 0 <= self.number < LARGEST_ROSTER_NUMBER:
            raise ValueError(
                f"the number of a roster lies between 0 and {LARGEST_ROSTER_NUMBER - 1}, got {self.number}"
            )
        numbers = [one.number for one in self.earlier]
        if not 0 <= self.settled <= self.number or numbers != [*range(self.settled, self.number)]:
            raise ValueError(
                f"roster {self.number} with settled {self.settled} needs the devices of every roster in between, got "
                f"those of {numbers}"
            )
        for what, table, least in (("lowest", self.lowest, 2), ("sizes", self.sizes, 0)):
            strange = [name for name in table if name not in self.devices]
            low = [name for name, number in table.items() if number < least]
            if strange or low:
                raise ValueError(f"roster {self.number}: {what} of {list_names([*strange, *low])} cannot be")
        bad = [one.name for one in self.revoked if one.fingerprint and not _DIGEST.fullmatch(one.fingerprint)]
        if bad:
            raise ValueError(f"roster {self.number}: the fingerprint of a certificate of {bad[0]} is none")

    def text(self) -> bytes:
        """Return the roster alone, in its one form: what is signed."""
        facts = {f.name: getattr(self, f.name) for f in fields(self)}
        facts |= {"revoked": [asdict(one) for one in self.revoked], "earlier": [asdict(one) for one in self.earlier]}
        return canonical_json({"format": ROSTER_FORMAT, **facts})

    @property
    def digest(self) -> str:
        """SHA-256 of the signed text: it differs between two rosters with the same number."""
        return hashlib.sha256(self.text()).hexdigest()

    @property
    def revoked_names(self) -> tuple[str, ...]:
        """Names of devices that were taken out, and fingerprints of certificates."""
        gone = (one.name for one in self.revoked if one.name not in self.devices)
        return tuple(dict.fromkeys([*gone, *(one.fingerprint for one in self.revoked if one.fingerprint)]))

    def lacks(self, devices: Iterable[str]) -> str:
        """Return why devices could not be in a run under this roster, or an empty string."""
        earlier = [(one.number, one.devices) for one in self.earlier]
        return Rosters(self.number, earlier=earlier, floor=self.settled).lacks({*devices})


@dataclass(frozen=True)
class RosterDocument:
    """A roster as it travels: with its signature, which is empty in a mesh without certificates."""

    roster: Roster
    signature: str = ""

    def bytes(self) -> bytes:
        """Return what `read_roster_document` reads."""
        return canonical_json({"roster": json.loads(self.roster.text()), "signature": self.signature})


def read_roster_document(data: bytes, where: str = "the roster") -> RosterDocument:
    """Read a document that may come from anybody; `signing` verifies its signature."""
    if len(data) > LARGEST_DOCUMENT:
        raise ValueError(f"{where}: a roster has at most {LARGEST_DOCUMENT:,} bytes, got {len(data):,}")
    try:
        raw: Any = json.loads(data)
    except (ValueError, RecursionError):
        raise ValueError(f"{where}: a roster is JSON, as `conformesh mesh` writes it, and this is not") from None
    if not isinstance(raw, dict) or not isinstance(raw.get("roster"), dict):
        raise ValueError(f"{where}: a roster is a JSON object with 'roster' and 'signature', and this is not")
    facts = dict(raw["roster"])
    if facts.pop("format", None) != ROSTER_FORMAT:
        raise ValueError(f"{where}: needed a roster of format {ROSTER_FORMAT}; update what made it, or this")
    signature = raw.get("signature")
    if not isinstance(signature, str) or (signature and not _SIGNATURE.fullmatch(signature)):
        raise ValueError(f"{where}: the signature of a roster is 128 hexadecimal digits, or empty")
    found = RosterDocument(validate(facts, Roster, where), signature)
    if found.bytes() != data:
        raise ValueError(f"{where}: a roster has one form, byte by byte, and this is another; copy the file as it is")
    return found


def check_roster_size(document: RosterDocument) -> None:
    """Refuse a new roster that no device would read, before anything is changed."""
    roster, size = document.roster, len(document.bytes())
    if size <= LARGEST_DOCUMENT:
        return
    words = f"roster {roster.number} would have {size:,} bytes, and devices read at most {LARGEST_DOCUMENT:,}"
    if roster.earlier:
        words += (
            f"; it lists the devices of all rosters from {roster.settled} to {roster.number - 1}. If a later one "
            "has a certified result (its number is in /status), say --settled NUMBER, which leaves out those before it"
        )
    raise ValueError(f"{words}; nothing was changed")


def read_roster_file(folder: Path) -> RosterDocument | None:
    """Read the roster of a folder; None where there is none."""
    path = folder / ROSTER_FILE
    try:
        return read_roster_document(path.read_bytes(), str(path))
    except FileNotFoundError:
        return None
    except OSError as problem:
        raise ValueError(f"{path}: cannot read the roster: {problem.strerror}") from problem


def canonical_json(words: dict[str, Any]) -> bytes:
    """Return JSON in the one form that is signed and compared."""
    return json.dumps(words, sort_keys=True, separators=(",", ":")).encode() + b"\n"
