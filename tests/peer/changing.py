"""Devices under rosters that change, on the loopback engine: known by name, because rows change with the roster."""

import hashlib
import itertools
import json
from contextlib import suppress
from dataclasses import dataclass

import numpy as np

from conformesh import Network
from conformesh.peer.async_device import AsyncDevice
from conformesh.peer.device import Device
from conformesh.peer.interface import PeerSetup
from conformesh.peer.loopback import RESTART_SECONDS, LinkFaults, _World
from conformesh.peer.rosters import Rosters, roster_words
from conformesh.peer.settings import Settings
from conformesh.protocols.messages import Gather, Max, Packets


@dataclass(frozen=True)
class List:
    """A roster as the loopback engine needs it: its number, its devices, its edges and the lists before it."""

    number: int
    devices: tuple
    edges: tuple
    settled: int = 1
    earlier: tuple = ()

    @property
    def body(self):
        return json.dumps([self.number, self.devices, self.edges, self.settled, self.earlier]).encode()

    @property
    def network(self):
        return Network.from_pairs(self.devices, self.edges)

    @classmethod
    def of(cls, body):
        number, devices, edges, settled, earlier = json.loads(body)
        return cls(number, tuple(devices), tuple(map(tuple, edges)), settled, tuple((n, tuple(d)) for n, d in earlier))

    def next(self, devices, edges):
        return List(self.number + 1, devices, edges, self.settled, (*self.earlier, (self.number, self.devices)))

    def agreement(self):
        return {"roster": roster_words(self.number, hashlib.sha256(self.body).hexdigest())}


class Member:
    """What of a device outlives its process: its roster and the floor, as a node keeps them on its disk."""

    def __init__(self, name, roster):
        self.name, self.roster, self.newer, self.floor = name, roster, None, 0

    def accept(self, body):
        offered = List.of(body)
        latest = self.newer or self.roster
        if offered.number < latest.number or (offered.number == latest.number and offered != latest):
            raise ValueError("not newer")
        if offered.number > latest.number:
            self.newer = offered
        return offered.number

    def keep_floor(self, floor):
        self.floor = floor

    def rosters(self):
        self.roster, self.newer = self.newer or self.roster, None
        one = self.roster
        floor = max(self.floor, one.settled)
        return Rosters(one.number, one.body, self.accept, one.earlier, floor, self.keep_floor)


class Changing(_World):
    """A fake network of devices under rosters that change; `everybody` ever is in `names`.

    `hand` says when which roster is given to whom. Where a member of the mesh is not in its roster any more it is gone.
    """

    def __init__(self, names, first, hand, faults, rng, settings, kind=Device, value=lambda member: 1):
        super().__init__(Network.complete(len(names)), None, faults, rng, stay=True)
        self.names, self.kind, self.settings, self.value = names, kind, settings, value
        self.members = [Member(name, first) for name in names]
        self.boots = [0] * len(names)
        for k, name in enumerate(names):
            if name not in first.devices:
                self.alive_from[k] = min((when for when, _, roster in hand if name in roster.devices), default=np.inf)
        self.hand = hand

    def run(self, limit, check):
        for when, name, roster in self.hand:
            self._at(when, lambda now, name=name, roster=roster: self._offer(name, roster, now))
        return super().run(limit, check)

    def _offer(self, name, roster, now):
        k = self.names.index(name)
        device = self.devices[k]
        with suppress(ValueError):  # a newer one is there already
            if device is None:  # copied into its folder
                self.members[k].accept(roster.body)
            else:
                device.offer(roster.body, now)
                self._flush(k, now)

    def _boot(self, k, now):
        member = self.members[k]
        if member.name not in (member.newer or member.roster).devices:
            newest = max(
                (roster for when, _, roster in self.hand if when <= now and member.name in roster.devices),
                key=lambda roster: roster.number,
                default=None,
            )
            if newest is None or newest.number <= (member.newer or member.roster).number:
                self.last[k], self.devices[k] = self.devices[k], None  # removed
                return
            member.accept(newest.body)
        rosters = member.rosters()
        roster = member.roster
        version, self.boots[k] = self.boots[k] // 2, self.boots[k] + 1
        at = {name: i for i, name in enumerate(self.names)}

        def make(net, row):
            if issubclass(self.kind, AsyncDevice):
                told = yield Gather(Packets.of([bytes([1 + version])]))
                said = {at[net.ids[j]]: told.packets[j][0] for j in np.flatnonzero(told.heard).tolist()}
                return tuple(said.get(i, 0) for i in range(len(self.names)))
            values = np.zeros((1, len(self.names)), dtype=np.int64)
            values[0, k] = 1 + version
            for _ in range(max(net.devices - 1, 0)):
                values = yield Max(values)
            return tuple(values[0].tolist())

        row = roster.devices.index(member.name)
        device = self.kind(
            PeerSetup(
                row,
                roster.network,
                roster.agreement(),
                make,
                self.journals[k],
                self.settings,
                f"{version}",
                rosters=rosters,
            ),
        )
        device.world, device.places = k, [at[name] for name in roster.devices]
        self.devices[k] = device
        device.start(now)
        self._flush(k, now)

    def _flush(self, k, now):
        """Put what a device says on the wire by place in the world, and make it anew when it has moved."""
        device = self.devices[k]
        for to, data in device.outbox():
            rows = device.network.neighbours(device.row).tolist() if to < 0 else (to,)
            for j in rows:
                self._wire(k, device.places[j], data, now)
        if device.handed:
            self._boot(k, now)
            return
        if device.phase == "failed" and device.over:
            self._at(now + RESTART_SECONDS, lambda then: self._restart(k, device, then))
        else:
            self.ticking[k] += 1
            ticket = self.ticking[k]
            self._at(max(device.wake, now + 1e-6), lambda then: self._tick(k, ticket, then))

    def _deliver(self, sender, to, data, now):
        later = self._frozen_until(to, now)
        if later > now:
            self._at(later, lambda then: self._deliver(sender, to, data, then))
            return
        device = self.devices[to]
        if device is None or sender not in device.places:
            return
        row = device.places.index(sender)
        if row not in device.network.neighbours(device.row).tolist():
            return  # no link
        self.delivered += 1
        device.receive(data, row, now)
        self._flush(to, now)


class OneResult:
    """Sees all devices after every event: a number of a run has one result, and later rosters have higher numbers.

    Without rounds a run is one of a roster: its number and that of the roster together have one result.
    """

    def __init__(self):
        self.certified, self._seen = {}, set()

    def __call__(self, devices):
        for device in devices:
            key = device, device.number
            if device.phase != "finished" or key in self._seen:
                continue
            self._seen.add(key)
            who = tuple(device.network.ids[k] for k in device.survivors)
            mine = device.rosters.number, who, device.result
            alone = isinstance(device, AsyncDevice)
            first = self.certified.setdefault((device.rosters.number, device.number) if alone else device.number, mine)
            if first != mine:
                raise TwoResultsError(f"run {device.number}: {first} and {mine}")
            if not alone:
                self.in_order()

    def in_order(self):
        """Whether the numbers of runs rise with those of rosters."""
        numbers = [self.certified[run][0] for run in sorted(self.certified)]
        if numbers != sorted(numbers):
            raise TwoResultsError(
                f"rosters by run: {[(run, self.certified[run][:2]) for run in sorted(self.certified)]}"
            )


class TwoResultsError(AssertionError):
    """Two parts have certified what only one of them may."""


def drawn_rosters(rng, first, count, names):
    """Return some rosters after the first: devices come and go, links change; edges are those of a random graph."""
    found, latest, fresh = [], first, [name for name in names if name not in first.devices]
    for _ in range(count):
        devices = [*latest.devices]
        for _ in range(int(rng.integers(1, 3))):
            if fresh and (len(devices) < 3 or rng.random() < 0.5):
                devices.append(fresh.pop(0))
            elif len(devices) > 2:
                devices.pop(int(rng.integers(len(devices))))
        following = latest.next(tuple(devices), drawn_edges(rng, devices))
        floor = Rosters(following.number, earlier=following.earlier, floor=following.settled)
        if floor.lacks(following.devices):
            continue
        found.append(following)
        latest = following
    return found


def drawn_edges(rng, devices):
    """A path through all devices in random order, and some more edges."""
    order = [devices[int(k)] for k in rng.permutation(len(devices))]
    edges = {tuple(sorted(pair)) for pair in itertools.pairwise(order)}
    edges |= {(a, b) for a in devices for b in devices if a < b and rng.random() < 0.4}
    return tuple(sorted(edges))


def settings(**changes):
    return Settings(**({"retry": 0.1, "patience": 1.0, "linger": 0.4, "on_lost": "continue"} | changes))


__all__ = ["Changing", "LinkFaults", "List", "Member", "OneResult", "TwoResultsError", "drawn_rosters"]
