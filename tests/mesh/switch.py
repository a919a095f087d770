"""A switch between hosts, in user space: moves IP packets between TUN devices, late, not all of them, not everywhere.

``python switch.py ADDRESS=FD ...`` holds the devices that it was started with. Each line of JSON on its input sets what
it names, and each is answered by a line with the counts so far, once it holds:

    delay   seconds that a packet takes
    loss    the share of packets that vanish, drawn in the order of their arrival
    seed    begins the draws anew
    cut     pairs of addresses that do not hear each other; packets under way between them vanish too

It ends when its input does. Standard library only, so that it starts at once; it has a process of its own, since one
that waits for its turn behind a test would be late.
"""

import contextlib
import heapq
import json
import os
import random
import select
import sys
import time
from ipaddress import IPv4Address

LONGEST = 65_535  # bytes of a packet
AT_ONCE = 64  # packets of one host before the others have their turn
IN_TIME = -10  # how much more urgent than the hosts it is; without the right to be so it is as urgent as they are


class Switch:
    """Carries packets between hosts; `devices` are file descriptors by address."""

    def __init__(self, devices: dict[str, int]) -> None:
        self.devices = {IPv4Address(address).packed: handle for address, handle in devices.items()}
        self.delay, self.loss, self.cut = 0.0, 0.0, set()
        self.draws = random.Random(0)
        self.under_way: list[tuple[float, int, bytes, bytes, bytes]] = []
        self.counts = dict.fromkeys(("carried", "lost", "cut", "strange", "refused"), 0)

    def obey(self, line: str) -> None:
        """Take orders, and say that they hold."""
        orders = json.loads(line)
        self.delay, self.loss = orders.get("delay", self.delay), orders.get("loss", self.loss)
        if "seed" in orders:
            self.draws = random.Random(orders["seed"])
        if "cut" in orders:
            pairs = [[IPv4Address(end).packed for end in pair] for pair in orders["cut"]]
            self.cut = {pair for a, b in pairs for pair in ((a, b), (b, a))}
        print(json.dumps(self.counts), flush=True)

    def read(self, sender: bytes) -> None:
        """Take what a host sends: lost, or due after the delay."""
        for _ in range(AT_ONCE):
            try:
                packet = os.read(self.devices[sender], LONGEST)
            except BlockingIOError:
                return
            receiver = packet[16:20]
            if packet[0] >> 4 != 4 or packet[12:16] != sender or receiver not in self.devices:
                self.counts["strange"] += 1
            elif (sender, receiver) in self.cut:
                self.counts["cut"] += 1
            elif self.draws.random() < self.loss:
                self.counts["lost"] += 1
            else:
                due = time.monotonic() + self.delay
                heapq.heappush(self.under_way, (due, sum(self.counts.values()), sender, receiver, packet))
                self.counts["carried"] += 1

    def deliver(self) -> float | None:
        """Hand over what is due; return in how many seconds the next packet is."""
        while self.under_way:
            wait = self.under_way[0][0] - time.monotonic()
            if wait > 0:
                return wait
            _, _, sender, receiver, packet = heapq.heappop(self.under_way)
            if (sender, receiver) in self.cut:
                self.counts["cut"] += 1
                continue
            try:
                os.write(self.devices[receiver], packet)
            except OSError:  # its host takes no more, as a full queue would not
                self.counts["refused"] += 1
        return None

    def run(self) -> None:
        """Work until the input ends."""
        orders, poll = sys.stdin.buffer, select.epoll()
        senders = {handle: address for address, handle in self.devices.items()}
        for handle in (orders.fileno(), *senders):
            os.set_blocking(handle, handle not in senders)
            poll.register(handle, select.EPOLLIN)
        while True:
            wait = self.deliver()
            for handle, _ in poll.poll(wait):
                if handle in senders:
                    self.read(senders[handle])
                    continue
                line = orders.readline()
                if not line:
                    return
                self.obey(line.decode())


if __name__ == "__main__":
    with contextlib.suppress(OSError):
        os.nice(IN_TIME)
    Switch({address: int(handle) for address, handle in (word.split("=") for word in sys.argv[1:])}).run()
