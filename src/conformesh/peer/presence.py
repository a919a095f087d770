"""Which neighbours are there: since when each is silent, and which lost ones are back.

A device loses neighbours that are silent for `Settings.patience`, and lets them in again when they are back. This part
measures; `Membership` decides. Silence counts only while a device waits for a neighbour, which answers each repetition
while it lives: so a device behind a lost one, which waits itself, is never taken for lost.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection

from conformesh.peer.links import Links
from conformesh.peer.round_exchange import RoundExchange

# A device that is lost again and again waits at most 2 to the power of this times `linger` until it may cause a run:
# 34 minutes with the default of 2 s. There is a limit because a device that was repaired must come back by itself.
MOST_DOUBLINGS = 10


class Presence:
    """Remembers when each neighbour was last received, and since when a lost one is back.

    Attributes
    ----------
    highest_run
        The highest run that a returning neighbour has named; the run that lets it in must have a higher number.
    """

    def __init__(self, links: Links, rounds: RoundExchange) -> None:
        self._links, self._clock, self._settings = links, links.clock, links.settings
        self._rounds = rounds
        self._received_at: dict[int, float] = dict.fromkeys(links.neighbours, 0.0)
        self._back_since: dict[int, float] = {}
        self._losses: Counter[int] = Counter()  # of each device, since it last was in a run that ended with a result
        self._probe_at = 0.0  # when to greet lost neighbours again
        self.highest_run = 0

    # --- silence ------------------------------------------------------------------------------------------------------

    def restart_silence(self) -> None:
        """Count the silence of all neighbours from now on."""
        self._received_at = dict.fromkeys(self._links.neighbours, self._clock.now)

    def note_frame(self, j: int) -> float:
        """Note that a neighbour has sent a frame; return the seconds since its last one."""
        before, self._received_at[j] = self._received_at[j], self._clock.now
        return self._clock.now - before

    def silence_of(self, j: int) -> float:
        """Return for how long a neighbour has sent nothing though this device waits for it."""
        if self._rounds.is_running and j in self._rounds.received:
            return 0.0
        # A neighbour whose message cannot be used repeats it, and would seem alive for ever: it counts as silent.
        if j in self._rounds.unusable:
            return self._clock.now - self._rounds.unusable[j][0]
        return self._clock.now - max(self._received_at[j], self._clock.waiting_since)

    # --- lost devices -------------------------------------------------------------------------------------------------

    def note_losses(self, new: Collection[int], lost: Collection[int]) -> None:
        """Note that the devices `new` were lost just now, and that all of `lost` are left out of the next run."""
        self._losses.update(new)
        self._back_since = {j: since for j, since in self._back_since.items() if j in lost}

    def note_result(self, lost: Collection[int]) -> None:
        """Note that a run without `lost` has a result: the devices that were in it need not wait for earlier losses."""
        self._losses = Counter({j: count for j, count in self._losses.items() if j in lost})

    def note_return(self, j: int, run: int, silence: float) -> None:
        """Note a greeting of a lost neighbour that is in run `run`, the first one for so many seconds."""
        if j not in self._back_since or silence > self._settings.patience:
            self._back_since[j] = self._clock.now
            self._links.log(f"{self._links.name(j)} is back: it takes part in the next run")
        self.highest_run = max(self.highest_run, run)

    def forget_return(self, j: int) -> None:
        """Note that a lost neighbour that was back has failed."""
        self._back_since.pop(j, None)

    def may_cause_run(self, j: int) -> bool:
        """Return whether a neighbour is back for so long that a run may begin for its sake.

        The wait doubles with every further loss: a run that loses a device costs everybody its patience and a new
        greeting, so a link that breaks every minute would keep all devices busy.
        """
        wait = self._settings.linger * 2.0 ** min(max(self._losses[j] - 1, 0), MOST_DOUBLINGS)
        return self._clock.now >= self._back_since[j] + wait

    def returned_rows(self) -> set[int]:
        """Return the rows of the lost neighbours that are back and have not fallen silent since."""
        now, patience = self._clock.now, self._settings.patience
        return {j for j in self._back_since if now - self._received_at[j] <= patience}

    def is_probe_due(self) -> bool:
        """Return whether to greet lost neighbours again, and note that it is done.

        Two devices that have lost each other send each other nothing else, so neither would learn that the link works
        again. Once in `linger` seconds is enough: no run waits for it.
        """
        if self._clock.now < self._probe_at:
            return False
        self._probe_at = self._clock.now + self._settings.linger
        return True
