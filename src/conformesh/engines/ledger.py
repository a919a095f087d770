"""The ledger: what each device sent. A broadcast to all neighbours counts once, as in the paper."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from conformesh.certificate import Cost
from conformesh.protocols.messages import Each, Max, Message, Min, Sum

REMEMBERED = 4096  # devices up to which a tally by who spoke is cheaper than charging every round


class Ledger:
    """Adds up rounds, numbers and bits of one of `runs` that ride along."""

    def __init__(self, devices: int, runs: int) -> None:
        self.rounds = 0
        self.runs = runs
        self.everyone = [0.0, 0.0]  # numbers and bits that every device sent alike: most rounds only touch these
        self.spoken: dict[bytes, tuple[float, float]] = {}  # the same for those who spoke, by who they were
        self.numbers = np.zeros(devices)
        self.bits = np.zeros(devices)

    def enter(self, message: Message) -> None:
        """Charge those who spoke in this round."""
        width = 8 * message.values.dtype.itemsize
        if isinstance(message, Sum | Max | Min):
            self.rounds += 1
            numbers = message.values[0].size / (1 if message.shared else self.runs)
            self.everyone[0] += numbers
            self.everyone[1] += numbers * width
            return
        if isinstance(message, Each):
            self.rounds += 1
            self._enter_speakers(message.places, message.values[0].size / self.runs, width)
        elif not message.oracle:
            self.rounds += 2  # up to the server, and back
            # the offsets may cut a device's values into trials: add them up per device
            per_device = np.diff(message.offsets).reshape(len(self.numbers), -1).sum(axis=1) / self.runs
            self.numbers += per_device
            self.bits += per_device * width

    def _enter_speakers(self, places: NDArray[np.int64], numbers: float, width: int) -> None:
        if len(self.numbers) > REMEMBERED:  # only the speakers are touched
            self.numbers[places] += numbers
            self.bits[places] += numbers * width
            return
        key = places.tobytes()
        tally = self.spoken.get(key) or (0.0, 0.0)
        self.spoken[key] = (tally[0] + numbers, tally[1] + numbers * width)

    def cost(self, order: NDArray[np.int64] | None = None) -> Cost:
        """Return what was spent, by row; `order` says which row each entry of the ledger is, if not the same."""
        for key, (spoken, width) in self.spoken.items():
            places = np.frombuffer(key, dtype=np.int64)
            self.numbers[places] += spoken
            self.bits[places] += width
        self.spoken.clear()
        numbers, bits = self.numbers + self.everyone[0], self.bits + self.everyone[1]
        if order is not None:
            numbers[order], bits[order] = numbers.copy(), bits.copy()
        return Cost(self.rounds, numbers, bits)
