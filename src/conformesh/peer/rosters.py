"""The roster of a device: what it does about a neighbour under another one, and how a newer one spreads.

A roster is a numbered list of devices (`run_membership` says why numbers keep two parts of a mesh apart). Here it is a
number, a digest and a document in bytes for neighbours; whoever makes this object knows the document's contents, checks
it and keeps it.

Hello     contains number and digest (in the agreement, as "3, 0f1e..."). A device that receives an older number sends
          its document; one that receives a newer number answers with its own hello, and is sent the document
ROSTER    a document, or nothing: then `round` is the number that the sender has now, as an answer to a document
Moving    a newer document that was accepted is for ever. From that moment a device sends nothing under the old roster.
          It hands the document to all its old neighbours, again and again until they have it or for `linger` seconds,
          and is then made anew by its engine: the new roster has other rows and other links
Floor     every roster with a lower number is dead: this device has a result of a run under roster `floor`, or the
          authority has signed that one is known. The word of a neighbour is not enough: a Byzantine one could declare
          a roster dead that is in use, and two parts of the mesh could both go on

No I/O, no clock, no rounds: devices in rounds and in asynchronous mode share it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Sequence
from typing import Any

from conformesh.common.names import list_names
from conformesh.peer.frames import HELLO, ROSTER, Frame, FrameError, unpack_words

FIELD = "roster"  # of the agreement
MOST_ROSTERS = 2**31  # no roster has a higher number: it must fit into the round of a frame, see `frames`
Earlier = Sequence[tuple[int, Collection[str]]]


def roster_words(number: int, digest: str) -> str:
    """Return the entry of an agreement that names a roster.

    >>> roster_words(3, "0f1e2d3c4b5a6978ffff")
    '3, 0f1e2d3c4b5a6978'
    """
    return f"{number}, {digest[:16]}"


def roster_number_in(words: Any) -> int | None:
    """Return the number in the entry of an agreement that names a roster; None if there is none."""
    found = re.fullmatch(r"([0-9]{1,10}), [0-9a-f]{0,16}", words) if isinstance(words, str) else None
    return int(found[1]) if found and int(found[1]) < MOST_ROSTERS else None


def refuse_every_roster(body: bytes) -> int:
    """Accept no roster: for a device that was started without any."""
    raise ValueError("this device was started without rosters")


class Rosters:
    """The roster of a device, and the newer one that it moves to.

    Parameters
    ----------
    number, body
        The roster's number, and its document, for neighbours that are behind; empty where there is none.
    accept
        Takes a document: returns its number once it is kept for ever, or the number in use if it is that very document;
        a ValueError says why it is refused.
    earlier
        Number and devices of the rosters before this one, back to the first that may not be dead.
    floor, keep_floor
        Rosters with a lower number are dead; and a function that is called when this device learns of a higher floor.
    """

    def __init__(
        self,
        number: int = 0,
        body: bytes = b"",
        accept: Callable[[bytes], int] = refuse_every_roster,
        earlier: Earlier = (),
        floor: int = 0,
        keep_floor: Callable[[int], None] = lambda floor: None,
    ) -> None:
        self.number = self.latest = number
        self.body, self.accept, self.keep_floor = body, accept, keep_floor
        self.earlier = tuple(earlier)
        self.floor = floor
        self._moved_at = 0.0
        self._have: set[int] = set()  # rows of neighbours that are known to have the latest

    @property
    def moving(self) -> bool:
        """Whether a newer roster was accepted: nothing may be sent under this one any more."""
        return self.latest > self.number

    def offer(self, body: bytes, now: float) -> bool:
        """Take a document from any source; return whether it is newer. A `FrameError` says why it is refused."""
        try:
            number = self.accept(body)
        except ValueError as problem:
            raise FrameError(f"a roster that is refused: {problem}") from None
        if number <= self.latest:
            return False
        # `accept` has it on the disk by now. A crash after that line: the next start is under the new roster.
        self.latest, self.body, self._moved_at, self._have = number, body, now, set()
        return True

    def replies_to(self, frame: Frame, sender: int, now: float, hello: Frame) -> list[Frame] | None:
        """Take a frame if it is about rosters, and return the replies; None if it is for another part of the device.

        While moving no other part takes anything. `sender` is the row that the transport knows: a neighbour under
        another roster has another row in its frames. `hello` is the greeting of this device.
        """
        if frame.kind == ROSTER:
            return self._on_document(frame, sender, now, hello.sender)
        theirs = _number_of(frame) if frame.kind == HELLO else None
        if theirs is not None and theirs < self.latest:
            return [self._document(hello.sender)] if self.body else []
        if theirs is not None and theirs > self.latest and not self.moving:
            return [hello]  # it shows that this device is behind, and the neighbour sends its document
        if theirs == self.latest:
            self._have.add(sender)
        return [] if self.moving else None

    def hand_on(self, row: int, linked: Collection[int]) -> list[tuple[int, Frame]]:
        """Return what to send to old neighbours that may not have the newer roster yet."""
        return [(j, self._document(row)) for j in linked if j not in self._have] if self.moving else []

    def handed(self, linked: Collection[int], now: float, linger: float) -> bool:
        """Whether a device may leave its old links: all neighbours have the newer roster, or had `linger` seconds."""
        return self.moving and (self._have.issuperset(linked) or now >= self._moved_at + linger)

    def raise_floor(self, floor: int) -> None:
        """Note that all rosters before this number are dead."""
        if self.floor < floor <= self.latest:
            self.floor = floor
            self.keep_floor(floor)

    def lacks(self, names: Collection[str]) -> str:
        """Return of which earlier roster less than half is among these devices, as a text; empty if there is none.

        >>> Rosters(2, earlier=[(1, "abc")]).lacks("ad"), Rosters(2, earlier=[(1, "abc")]).lacks("bc")
        ('of the 3 devices of roster 1 only {a} are in the run, and 2 are needed until it is out of use', '')
        """
        for number, devices in self.earlier:
            kept = [name for name in devices if name in names]
            needed = (len(devices) + 1) // 2
            if number >= self.floor and len(kept) < needed:
                some = f"of the {len(devices)} devices of roster {number} only {list_names(kept)} are in the run"
                return f"{some}, and {needed} are needed until it is out of use"
        return ""

    # --- pieces -------------------------------------------------------------------------------------------------------

    def _on_document(self, frame: Frame, sender: int, now: float, row: int) -> list[Frame]:
        if not frame.body:
            if frame.round == self.latest:
                self._have.add(sender)
            return []
        self.offer(frame.body, now)
        if frame.round == self.latest:
            self._have.add(sender)
        return [Frame(ROSTER, 0, row, self.latest)]

    def _document(self, row: int) -> Frame:
        return Frame(ROSTER, 0, row, self.latest, 0, self.body)


def _number_of(hello: Frame) -> int | None:
    """Return the number of a hello's roster; None if it names none."""
    agreement = unpack_words(hello.body).get("agreement")
    return roster_number_in(agreement.get(FIELD)) if isinstance(agreement, dict) else None
