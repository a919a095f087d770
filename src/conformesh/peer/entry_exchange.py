"""How a device in asynchronous mode exchanges entries with its neighbours: send, repeat, keep, and compare.

`AsyncDevice` decides what follows from the entries, and which run it is in. Every frame names the entries that its
sender has. The last frame of a neighbour counts, and a neighbour is sent what it does not have: so a device that has
lost entries gets them again, and no frame needs a number or an acknowledgement of its own.
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

# Runs that a device asks for because neighbours have other texts in the same entries. One device that has lost its
# journal explains one of them, and a few at once some more; after that a neighbour is Byzantine and could ask for ever.
MOST_CLASHES = 8
# Bytes of entries in one frame. A slow link must not be filled with entries that arrive on another way meanwhile; a
# single larger entry goes in one frame all the same.
AT_ONCE = 1 << 18


class EntryExchange:
    """Sends entries to the neighbours of one device, and keeps those that they send.

    Parameters
    ----------
    links, journal
        The links of the device, and what survives a crash of it.
    seal
        See `EntryStore`.
    request_run
        Called where the entries of two devices contradict each other and no signature shows which one is wrong; begins
        a new run.

    Attributes
    ----------
    store
        The entries that are there.
    timers
        By neighbour, what it has and when it is sent something again.
    has_news, news_at
        Whether there are entries that the last result does not use, and when something new came last.
    """

    def __init__(self, links: Links, journal: Journal, seal: Seal | None, request_run: Callable[[], None]) -> None:
        self._links, self._clock, self._journal, self._request_run = links, links.clock, journal, request_run
        self._devices = links.network.devices
        self.store = EntryStore(self._devices, seal)
        self.timers = {j: NeighbourTimer(links.settings.retry, links.settings.linger) for j in links.neighbours}
        self._clashes = 0
        self._numbers = self._bits = 0  # sent in entries, once for all neighbours as everywhere
        # Devices whose keys agree in these slots must have the same digest. Reasons are not compared: a device may well
        # fail twice in a run, for two reasons.
        self._compared = entry_key_set(self._devices, [*range(STAGES), PROOF])
        self.begin(0, b"")

    def begin(self, run: int, context: bytes) -> None:
        """Forget all of an earlier run; `run` and `context` name the new one in frames and in signatures."""
        self.run = run
        self.store.clear(context)
        self._sent = 0  # keys that were sent to anybody
        self.has_news = True
        self.news_at = self._clock.now
        for timer in self.timers.values():
            timer.clear()

    @property
    def cost(self) -> Cost:
        """What this device has sent in entries, each counted once, to however many neighbours it went."""
        return Cost(0, np.array([float(self._numbers)]), np.array([float(self._bits)]))

    # --- sending ------------------------------------------------------------------------------------------------------

    def send_due(self, *, complete: bool) -> None:
        """Send every neighbour what is due now; `complete` if this device lacks no entry."""
        for j, timer in self.timers.items():
            if not timer.may_send(self._clock.now):
                continue
            entries = self._due(timer)
            if entries or timer.owes_answer or timer.is_request_due(self._clock.now, complete):
                self._send(j, timer, entries)

    def _due(self, timer: NeighbourTimer) -> Entries:
        """Return what a neighbour lacks and was not sent lately: up to `AT_ONCE` bytes, or one larger entry."""
        entries: Entries = []
        size = 0
        for key in ascending_keys(self.store.keys & ~timer.has):
            length = len(self.store.entries[key])
            if timer.is_due(key, self._clock.now) and (not entries or size + length <= AT_ONCE):
                entries.append((key, self.store.entries[key]))
                size += length
        return entries

    def _send(self, j: int, timer: NeighbourTimer, entries: Entries) -> None:
        # Entries are answered anyway. An answer must not ask for one: two devices would answer each other for ever.
        wants = 0 if entries or timer.owes_answer else WANT
        # Unusable entries count as known, or neighbours that accept them would send them again and again.
        body = pack_entries(self._devices, self.store.keys | self.store.unusable, self.store.digest, entries)
        for key, data in entries:
            if not self._sent >> key & 1:
                self._sent |= 1 << key
                self._numbers += -(-len(data) // 8)  # in numbers of 8 bytes, rounded up
                self._bits += 8 * len(data)
        self._links.send(j, Frame(ENTRIES, self.run, self._links.row, 0, wants, body))
        self._links.counts.resent += timer.note_sent([key for key, _ in entries], self._clock.now)

    def wake_times(self, *, complete: bool) -> list[float]:
        """Return when there is something to do about each neighbour."""
        return [timer.wake_time(self.store.keys & ~timer.has, complete) for timer in self.timers.values()]

    def answer_all(self) -> None:
        """Send every neighbour a frame, so that it knows that this device is there."""
        for timer in self.timers.values():
            timer.owes_answer = True

    def all_have(self, keys: int) -> bool:
        """Return whether all neighbours have these entries, as their last frames say."""
        return all(timer.has & keys == keys for timer in self.timers.values())

    @property
    def quiet_from(self) -> float:
        """When a device that is done may stop answering."""
        return max((timer.quiet_from for timer in self.timers.values()), default=0.0)

    # --- receiving ----------------------------------------------------------------------------------------------------

    def take(self, frame: Frame, keys: int, digest: int, entries: Entries) -> None:
        """Take the entries of a neighbour's frame; the neighbour has `keys`, and their texts have this digest."""
        # Before the entries: one that is refused ends this function, and the neighbour must be answered all the same.
        self.timers[frame.sender].owes_answer |= frame.wants or bool(entries)
        for key, data in entries:
            self._take_entry(key, data, frame.sender)
            if frame.run != self.run:  # the entry has caused another run
                return
        # The digests can be compared only where both have the same entries, so after the new ones were added.
        known = self.store.keys | self.store.unusable
        if (keys ^ known) & self._compared == 0 and digest != self.store.digest:
            self._clash(frame.sender)

    def _take_entry(self, key: int, data: bytes, sender: int) -> None:
        """Keep an entry that is new, and find out which device has signed two."""
        if (self.store.keys | self.store.unusable) >> key & 1:
            if key % SLOTS < STAGES and self.store.entries.get(key, data) != data:
                self._compare(key, data, sender)
            return
        self.store.check(key, data)
        self._keep(key, data)

    def _keep(self, key: int, data: bytes) -> None:
        """Add an entry."""
        # The journal first. Neighbours stop sending an entry that this device has named, and its own entries must stay
        # the same: a device that crashed without the record might sign another one, which proves it Byzantine. A crash
        # between the two lines is harmless, because the record is read at the next start.
        self._journal.append(pack_number(key) + data)
        self.store.put(key, data)
        self.has_news, self.news_at = True, self._clock.now
        for timer in self.timers.values():
            timer.note_news()

    def add_local(self, key: int, text: bytes) -> None:
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
        """Note that there are two entries where only one can be: a proof, where they are signed."""
        if not self.store.differs(key, data):
            return
        owner = key // SLOTS
        # Of its own entries a device makes no proof: it may have lost its journal, and a new run settles that.
        if self.store.seal is None or owner == self._links.row:
            self._clash(sender)
        elif entry_key(owner, PROOF) not in self.store.entries:
            self._keep(entry_key(owner, PROOF), self.store.make_proof(key, data))
            self._links.log(f"{self._links.name(owner)} has signed two different entries: it is proven to lie")

    def _clash(self, sender: int) -> None:
        """Note that a neighbour has other texts in the same entries: ask for a new run, or find who signed both."""
        # Where entries are signed all are sent again: the neighbour then finds the two that differ, and has the proof.
        if self.store.seal is not None:
            self.timers[sender].forget(self._clock.now)
            return
        self._clashes += 1
        if self._clashes > MOST_CLASHES:
            raise FrameError("entries that say something else than was heard before, in run after run")
        name = self._links.name(sender)
        self._links.log(f"{name} has heard other words in the same entries: asking for a new run")
        self._request_run()
