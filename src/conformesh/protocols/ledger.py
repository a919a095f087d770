"""The ledger: what each device sent. A broadcast to all neighbours counts once, as in the paper."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from conformesh.protocols.messages import Each, Max, Message, Min, Pool, Tell, kind_of
from conformesh.results.certificate import Cost

MOST_REMEMBERED_DEVICES = 4096  # devices up to which a tally by who spoke is cheaper than charging every round


@dataclass(eq=False)
class Ledger:
    """Adds up rounds, numbers and bits of one of `runs` that ride along, for each device of a block.

    It counts in whole numbers and divides by the runs that share a message at the end, so that the order of rounds, and
    who else is in the block, change nothing.
    """

    devices: int
    runs: int = 1
    rounds: int = 0
    shared: list[int] = field(default_factory=lambda: [0, 0])  # numbers and bits of all, which every run pays in full
    everyone: list[int] = field(
        default_factory=lambda: [0, 0]
    )  # paid by all runs together: most rounds touch only these
    spoken: dict[tuple[int, bytes], int] = field(default_factory=dict)  # numbers of those who spoke, by width and whom
    sent: dict[int, NDArray[np.int64]] = field(default_factory=dict)  # numbers of each device, by how many bits one has
    told: NDArray[np.int64] | None = None  # numbers and bits of each device in strings of bytes

    def enter(self, message: Message) -> None:
        """Charge the devices that sent in this round."""
        kind = kind_of(message)
        if isinstance(message, Pool) and message.oracle:
            return
        if kind.payers not in CHARGES:
            raise TypeError(f"the ledger cannot charge {kind.payers!r} for {kind.name!r}; add it to its charges")
        self.rounds += kind.rounds
        CHARGES[kind.payers](self, message, 8 * message.values.dtype.itemsize)

    def _charge(self, message: Each | Max | Min, width: int) -> None:
        (self._charge_everyone if message.speakers is None else self._charge_speakers)(message, width)

    def _charge_everyone(self, message: Any, width: int) -> None:
        numbers = message.values[0].size
        payer = self.shared if message.shared else self.everyone
        payer[0] += numbers
        payer[1] += numbers * width

    def _charge_speakers(self, message: Each | Max | Min, width: int) -> None:
        numbers, places = message.values[0].size, message.places
        if not isinstance(message, Each) and message.shared:
            numbers *= self.runs
        if self.devices > MOST_REMEMBERED_DEVICES or not isinstance(message, Each):
            billed = None if isinstance(message, Each) else message.billed
            self._sent(width)[places] += numbers if billed is None else billed
            return  # the same set of speakers seldom comes twice here, so remembering it would save nothing
        key = (width, places.tobytes())
        self.spoken[key] = self.spoken.get(key, 0) + numbers

    def _charge_tellers(self, message: Tell, width: int) -> None:
        if self.told is None:
            self.told = np.zeros((2, self.devices), dtype=np.int64)
        self.told[0, message.speakers] += message.numbers
        self.told[1, message.speakers] += width * np.diff(message.packets.offsets)

    def _charge_uploaders(self, message: Pool, width: int) -> None:
        # the offsets may cut a device's values into trials: add them up per device
        self._sent(width)[:] += np.diff(message.offsets).reshape(self.devices, -1).sum(axis=1)

    def _sent(self, width: int) -> NDArray[np.int64]:
        if width not in self.sent:
            self.sent[width] = np.zeros(self.devices, dtype=np.int64)
        return self.sent[width]

    def cost(self, order: NDArray[np.int64] | None = None) -> Cost:
        """Return what one of the runs cost each device; `order` says which row each entry is, if not the same."""
        for (width, key), spoken in self.spoken.items():
            self._sent(width)[np.frombuffer(key, dtype=np.int64)] += spoken
        self.spoken.clear()
        numbers, bits = (np.full(self.devices, paid) for paid in self.everyone)
        for width, sent in self.sent.items():
            numbers, bits = numbers + sent, bits + width * sent
        if self.told is not None:
            numbers, bits = numbers + self.told[0], bits + self.told[1]
        numbers = numbers / self.runs + self.shared[0]
        bits = bits / self.runs + self.shared[1]
        if order is not None:
            numbers[order], bits[order] = numbers.copy(), bits.copy()
        return Cost(self.rounds, numbers, bits)


CHARGES: dict[str, Callable[[Ledger, Any, int], None]] = {
    "everyone": Ledger._charge_everyone,
    "speakers": Ledger._charge,
    "tellers": Ledger._charge_tellers,
    "uploaders": Ledger._charge_uploaders,
}
