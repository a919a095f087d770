"""The ledger: what each device sent, as the paper counts it."""

from __future__ import annotations

import numpy as np

from conformesh.certificate import Cost
from conformesh.protocols.messages import Each, Max, Message, Min, Sum

REMEMBERED = 4096  # devices up to which it is remembered who spoke together: a tree speaks in the same order each time


class Ledger:
    """Adds up what each device of a block sent: a broadcast to all neighbours counts once, as in the paper.

    It counts in whole numbers and divides by the runs that share a message at the end, so that the order of rounds, and
    who else is in the block, change nothing.
    """

    def __init__(self, devices: int, runs: int) -> None:
        self.rounds = 0
        self.runs = runs
        self.shared = [0, 0]  # numbers and bits that every device sent and every run pays in full
        self.everyone = [0, 0]  # the same, paid for by all runs together: most rounds only touch these
        self.spoken: dict[bytes, tuple[int, int]] = {}  # the same for those who spoke, by who they were
        self.numbers = np.zeros(devices, dtype=np.int64)
        self.bits = np.zeros(devices, dtype=np.int64)

    def enter(self, message: Message) -> None:
        """Charge for one message."""
        width = 8 * message.values.dtype.itemsize
        if isinstance(message, Sum | Max | Min):
            self.rounds += 1
            numbers = message.values[0].size
            payer = self.shared if message.shared else self.everyone
            payer[0] += numbers
            payer[1] += numbers * width
        elif isinstance(message, Each):
            self.rounds += 1
            numbers = message.values[0].size
            key = message.speakers.tobytes()
            tally = self.spoken.get(key) or (0, 0)
            self.spoken[key] = (tally[0] + numbers, tally[1] + numbers * width)
            if len(key) > REMEMBERED:
                self._settle()
        elif not message.oracle:
            self.rounds += 2  # up to the server, and back
            # the offsets may cut a device's values into trials: add them up per device
            per_device = np.diff(message.offsets).reshape(len(self.numbers), -1).sum(axis=1)
            self.numbers += per_device
            self.bits += per_device * width

    def _settle(self) -> None:
        """Charge those who spoke."""
        for key, (numbers, bits) in self.spoken.items():
            speakers = np.flatnonzero(np.frombuffer(key, dtype=bool))
            self.numbers[speakers] += numbers
            self.bits[speakers] += bits
        self.spoken.clear()

    def cost(self) -> Cost:
        """Return what one of the runs cost each device of the block."""
        self._settle()
        numbers = (self.numbers + self.everyone[0]) / self.runs + self.shared[0]
        bits = (self.bits + self.everyone[1]) / self.runs + self.shared[1]
        return Cost(self.rounds, numbers, bits)
