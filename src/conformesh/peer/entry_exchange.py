"""How a device in asynchronous mode exchanges entries with its neighbours: send, repeat, keep, and compare.

`AsyncDevice` decides what follows from the entries, and which run it is in. Every frame says which entries its sender
has; what a neighbour last said counts, and a neighbour is sent what it does not have.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from conformesh.peer.entries import (
    PROOF,
    SLOTS,
    STAGES,
    Entries,
    Seal,
    ascending_keys,
    entry_key,
    entry_key_set,
    pack_entries,
)
from conformesh.peer.entry_store import EntryStore
from conformesh.peer.frames import ENTRIES, WANT, Frame, FrameError, pack_number
from conformesh.peer.journal import Journal
from conformesh.peer.links import Links
from conformesh.peer.timers import NeighbourTimer
from conformesh.results.certificate import Cost

MOST_CLASHES = 8  # runs that a device asks for because neighbours have different texts of the same entries
FRAME_ENTRY_BYTES = 1 << 18  # bytes of entries per frame: a slow link should not carry what is known by then


class EntryExchange:
    """Sends entries to the neighbours of one device, and keeps those that they send.

    Parameters
    ----------
    links, journal
        The links of the device, and what survives a crash of it.
    seal
        See `EntryStore`.
    request_run
        Called where the entries of two devices contradict each other and no signature tells who is wrong: it begins a
        new run.

    Attributes
    ----------
    store
        The entries that are there.
    waits
        By neighbour, what it has and when it is sent something again.
    has_news, news_at
        Whether there is more than the last result knows of, and when something new came last.
    """

    def __init__(self, links: Links, journal: Journal, seal: Seal | None, request_run: Callable[[], None]) -> None:
        self._links, self._clock, self._journal, self._request_run = links, links.clock, journal, request_run
        self._devices = links.network.devices
        self.store = EntryStore(self._devices, seal)
        self.waits = {j: NeighbourTimer(links.settings.retry, links.settings.linger) for j in links.neighbours}
        self._clashes = 0
        self._numbers = self._bits = 0  # sent in entries, once for all neighbours as everywhere
        self._compared = entry_key_set(self._devices, [*range(STAGES), PROOF])
        self.begin(0, b"")

    def begin(self, run: int, context: bytes) -> None:
        """Forget all of an earlier run; `run` and `context` name the new one in frames and in signatures."""
        self.run = run
        self.store.clear(context)
        self._sent = 0  # keys that were sent to anybody
        self.has_news = True
        self.news_at = self._clock.now
        for wait in self.waits.values():
            wait.clear()

    @property
    def cost(self) -> Cost:
        """What this device has sent in entries, each counted once, to however many neighbours it went."""
        return Cost(0, np.array([float(self._numbers)]), np.array([float(self._bits)]))

    # --- sending ------------------------------------------------------------------------------------------------------

    def speak(self, *, complete: bool) -> None:
        """Send every neighbour what it is to be sent now; `complete` if this device lacks nothing."""
        for j, wait in self.waits.items():
            if not wait.may_speak(self._clock.now):
                continue
            entries = self._due(wait)
            if entries or wait.answer or wait.pokes(self._clock.now, complete):
                self._send(j, wait, entries)

    def _due(self, wait: NeighbourTimer) -> Entries:
        """Return what a neighbour lacks and was not sent lately: up to `FRAME_ENTRY_BYTES`, or one larger entry."""
        entries: Entries = []
        size = 0
        for key in ascending_keys(self.store.keys & ~wait.has):
            length = len(self.store.entries[key])
            if wait.is_due(key, self._clock.now) and (not entries or size + length <= FRAME_ENTRY_BYTES):
                entries.append((key, self.store.entries[key]))
                size += length
        return entries

    def _send(self, j: int, wait: NeighbourTimer, entries: Entries) -> None:
        wants = 0 if entries or wait.answer else WANT  # entries are answered anyway, and an answer never is
        body = pack_entries(self._devices, self.store.keys | self.store.unusable, self.store.digest, entries)
        for key, data in entries:
            if not self._sent >> key & 1:
                self._sent |= 1 << key
                self._numbers += -(-len(data) // 8)  # in numbers of 8 bytes, rounded up
                self._bits += 8 * len(data)
        self._links.send(j, Frame(ENTRIES, self.run, self._links.row, 0, wants, body))
        self._links.counts.resent += wait.sent([key for key, _ in entries], self._clock.now)

    def wake_times(self, *, complete: bool) -> list[float]:
        """Return when there is something to do about each neighbour."""
        return [wait.next(self.store.keys & ~wait.has, complete) for wait in self.waits.values()]

    def answer_all(self) -> None:
        """Send every neighbour a frame, so that it hears that this device is there."""
        for wait in self.waits.values():
            wait.answer = True

    def all_have(self, keys: int) -> bool:
        """Return whether all neighbours have said that they have these entries."""
        return all(wait.has & keys == keys for wait in self.waits.values())

    @property
    def rest(self) -> float:
        """Until when a device that is done stays to answer."""
        return max((wait.rest for wait in self.waits.values()), default=0.0)

    # --- receiving ----------------------------------------------------------------------------------------------------

    def take(self, frame: Frame, keys: int, digest: int, entries: Entries) -> None:
        """Take the entries of a neighbour's frame, which says that it has `keys`, whose texts have this digest."""
        self.waits[frame.sender].answer |= frame.wants or bool(entries)
        for key, data in entries:
            self._learn(key, data, frame.sender)
            if frame.run != self.run:  # what was learnt has begun another run
                return
        known = self.store.keys | self.store.unusable
        if (keys ^ known) & self._compared == 0 and digest != self.store.digest:
            self._clash(frame.sender)

    def _learn(self, key: int, data: bytes, sender: int) -> None:
        """Keep an entry that is new, and find out which device has signed two."""
        if (self.store.keys | self.store.unusable) >> key & 1:
            if key % SLOTS < STAGES and self.store.entries.get(key, data) != data:
                self._compare(key, data, sender)
            return
        self.store.check(key, data)
        self._keep(key, data)

    def _keep(self, key: int, data: bytes) -> None:
        """Add an entry; it is in the journal before anybody is told that this device has it."""
        self._journal.append(pack_number(key) + data)
        self.store.put(key, data)
        self.has_news, self.news_at = True, self._clock.now
        for wait in self.waits.values():
            wait.news()

    def add_own(self, key: int, text: bytes) -> None:
        """Add an entry of this device, unless it is there."""
        if self.store.keys >> key & 1:
            return
        entry = self.store.make_entry(key, text)
        if len(entry) > (most := self.store.longest(key % SLOTS)):
            raise ValueError(
                f"the entry of this device would have {len(entry):,} bytes, and the others accept at most {most:,}; "
                "use fewer scores or fewer bins"
            )
        self._keep(key, entry)

    def _compare(self, key: int, data: bytes, sender: int) -> None:
        """Note that there are two entries where one can be: a proof, where they are signed."""
        if not self.store.differs(key, data):
            return
        owner = key // SLOTS
        if self.store.seal is None or owner == self._links.row:
            self._clash(sender)
        elif entry_key(owner, PROOF) not in self.store.entries:
            self._keep(entry_key(owner, PROOF), self.store.make_proof(key, data))
            self._links.log(f"{self._links.name(owner)} has signed two different entries: it is proven to lie")

    def _clash(self, sender: int) -> None:
        """Note that a neighbour has other texts in the same entries: ask for a new run, or find out who lies."""
        if self.store.seal is not None:
            self.waits[sender].forget(self._clock.now)  # all is sent again, and who signed two entries is found
            return
        self._clashes += 1
        if self._clashes > MOST_CLASHES:
            raise FrameError("entries that say something else than was heard before, in run after run")
        name = self._links.name(sender)
        self._links.log(f"{name} has heard other words in the same entries: asking for a new run")
        self._request_run()
