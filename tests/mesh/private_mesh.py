"""Private devices of folders on the loopback engine, on virtual time, and a record of what happens on them."""

import hashlib
from collections import defaultdict
from contextlib import contextmanager
from itertools import count

import numpy as np

from conformesh import Network
from conformesh.mesh.config.device_toml import read_device
from conformesh.mesh.config.epochs import EpochClock
from conformesh.mesh.config.folders import init_mesh
from conformesh.mesh.config.local_scores import LocalScores
from conformesh.mesh.node import calibration_run
from conformesh.peer import frames
from conformesh.peer.loopback import LinkFaults, Pause, _World
from conformesh.privacy.account import ACCOUNT_FILE, Account, read_account

NETWORK = Network.cycle(5)
NOISY = {"epsilon": 4.0, "cells": 8, "grid": "logit"}
AWAY = 0.3  # seconds from a crash to the next start


class Crashed(BaseException):
    """What ends a process at once."""


class Mesh(_World):
    """Devices of folders, which stay up or not, and what happened on them.

    Attributes
    ----------
    steps
        In order: (step, name of the device, attempt or epoch), where step is "charge", "charged" (on the disk),
        "revealed" (it knows the total) or "stored".
    trace_of_frames
        (virtual time, sender, receiver, kind, size) of every frame that arrived.
    crash
        Called with a step and a device before it counts; may raise `Crashed`.
    """

    def __init__(
        self, root, scores=None, faults=None, network=NETWORK, seed=3, stay=False, start_at=0.0, after=None, **more
    ):
        self.folders = [root / f"device-{k:02}" for k in range(network.devices)]
        if not root.exists():
            init_mesh(root, network, method="p-dcp", **more)
        self.configs = [read_device(folder) for folder in self.folders]
        drawn = np.random.default_rng(11)
        given = scores or [drawn.random(60 + 10 * k) for k in range(network.devices)]
        self.scores = [own if isinstance(own, LocalScores) else LocalScores(own) for own in given]
        super().__init__(self.configs[0].network, self.start, faults or LinkFaults(), np.random.default_rng(seed), stay)
        if after is not None:  # the same devices, started again
            self.journals = after.journals
        self.clocks = [0.0] * network.devices  # by how much the clock of a device is ahead
        self.start_at, self.now = start_at, 0.0
        self.steps, self.trace_of_frames, self.log = [], [], defaultdict(list)
        self.members = {}  # the devices of each attempt that anybody was charged for
        self.crash = lambda step, name, attempt: None
        self.away = AWAY

    def start(self, k, journal):
        config = self.configs[k]
        wall = lambda: self.start_at + self.now + self.clocks[k]  # noqa: E731
        part = calibration_run.PrivatePart(lambda: self.scores[k], EpochClock(config, wall))
        options = calibration_run.RunContext(log=self.log[config.name].append)
        return calibration_run.make_device(config, self.scores[k], journal, options, part)

    def _deliver(self, sender, to, data, now):
        self.now = now
        frame = frames.decode_frame(data)
        if self.devices[to] is not None:
            self.trace_of_frames.append((round(now, 9), sender, to, frames.FRAME_KINDS[frame.kind], len(data)))
        self._living(to, now, lambda: super(Mesh, self)._deliver(sender, to, data, now))

    def _tick(self, k, ticket, now):
        self.now = now
        self._living(k, now, lambda: super(Mesh, self)._tick(k, ticket, now))

    def _living(self, k, now, act):
        try:
            act()
        except Crashed:
            self._crash(Pause(k, now, now + self.away, crash=True))
            if self.away < np.inf:
                self._at(now + self.away, lambda then: self._boot(k, then))

    def play(self, limit=300.0, check=lambda devices: None):
        """Run until all devices are done, or time is up; return them."""
        with self._recorded():
            return self.run(limit, check).devices

    @contextmanager
    def _recorded(self):
        charge, store, charge_exact = Account.charge, Account.store, Account.charge_exact

        def note(step, account, attempt):
            name = account.path.parent.name
            self.crash(step, name, attempt)
            self.steps.append((step, name, attempt))

        def charging(account, epoch, devices, context):
            assert self.members.setdefault(context, [*devices]) == [*devices]
            note("charge", account, context)
            charge(account, epoch, devices, context)
            note("charged", account, context)

        def storing(account, epoch, release):
            note("revealed", account, epoch)  # all devices have revealed: this one knows the total
            store(account, epoch, release)
            note("stored", account, epoch)

        def charging_exact(account, *parts):
            charge_exact(account, *parts)
            note("exact", account, parts[0])

        Account.charge, Account.store, Account.charge_exact = charging, storing, charging_exact
        try:
            yield
        finally:
            Account.charge, Account.store, Account.charge_exact = charge, store, charge_exact

    def agreement_of(self, device):
        """What a device tells its neighbours of itself in a greeting."""
        return device.agreement

    def account(self, k):
        return read_account(self.folders[k] / ACCOUNT_FILE)

    def releases(self, epoch=1):
        """How often an epoch was released, by the account of each device."""
        return [self.account(k).releases(epoch) for k in range(len(self.folders))]

    def readable(self):
        """The attempts whose total could be read: every device of the attempt was charged, hence may have revealed."""
        charged = defaultdict(list)
        for step, name, attempt in self.steps:
            if step == "charged":
                charged[attempt].append(name)
        assert all(len({*names}) == len(names) for names in charged.values())  # nobody reveals twice
        return [attempt for attempt, names in charged.items() if {*names} == {*self.members[attempt]}]


@contextmanager
def known_secrets(monkeypatch):
    """Have devices draw secrets that are the same in every call: two runs then have the same masks and noise."""
    numbers = count()
    with monkeypatch.context() as patch:
        patch.setattr(
            calibration_run, "token_bytes", lambda size: hashlib.sha256(b"%d" % next(numbers)).digest()[:size]
        )
        yield
