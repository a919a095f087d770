"""Heartbeats of many devices on virtual time, for tests: links that can be cut, devices that can stop and start."""

import numpy as np
from msgspec import to_builtins

from conformesh.mesh.node.heartbeat_table import SharedStatus, StatusTable

CALM = SharedStatus(
    phase=3, healthy=True, codes=0, run=4, round=12, roster=1, interval=10, certified=4, threshold=0.5, about=3
)


def statuses(table, own, now):
    """The rows of a table, as JSON has them."""
    return to_builtins(table.snapshot(own, now))


class World:
    """Devices that beat at moments of their own, over links that deliver at once."""

    def __init__(self, network, interval=1.0, seed=0):
        self.network, self.now = network, 1000.0
        names = network.ids
        rng = np.random.default_rng(seed)
        self.devices = {name: self._made(name, 7, interval) for name in names}
        self.vitals = dict.fromkeys(names, CALM)
        self.window = self.devices[names[0]].window
        self.next = {name: self.now + float(rng.uniform(0, self.window)) for name in names}
        self.down, self.cut = set(), set()
        self.sent = dict.fromkeys(names, 0)  # bytes to each neighbour

    def _made(self, name, start, interval=1.0):
        made = StatusTable(name, interval, start)
        row = self.network.ids.index(name)
        neighbours = [self.network.ids[k] for k in self.network.neighbours(row).tolist()]
        made.set_roster(self.network.ids, neighbours, 1)
        return made

    def restart(self, name, start):
        self.devices[name] = self._made(name, start, self.devices[name].interval)
        self.down.discard(name)

    def pass_by(self, seconds):
        end = self.now + seconds
        while True:
            name = min(self.next, key=self.next.get)
            if self.next[name] > end:
                self.now = end
                return
            self.now = self.next[name]
            self.next[name] += self.window
            if name not in self.down:
                self._speak(name)

    def _speak(self, name):
        data = self.devices[name].encode_if_due(self.vitals[name], self.now)
        if data is None:
            return
        self.sent[name] += len(data)
        for other in self.devices[name].neighbours:
            if other not in self.down and frozenset((name, other)) not in self.cut:
                self.devices[other].update(name, data, self.now)

    def shown(self, name):
        return {row["name"]: row for row in statuses(self.devices[name], self.vitals[name], self.now)}

    def health(self, name, of):
        return self.shown(name)[of]["health"]
