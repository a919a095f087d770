"""Nodes on the loopback engine with their real folders, killed at failpoints: all that outlives them is on the disk."""

import shutil
from contextlib import contextmanager, suppress
from dataclasses import dataclass

import numpy as np

from conformesh import Network, calibrate
from conformesh.mesh.config.device_toml import read_device
from conformesh.mesh.config.folders import add_device, init_mesh, revoke_device
from conformesh.mesh.config.local_scores import LocalScores
from conformesh.mesh.config.roster import read_roster_document
from conformesh.mesh.node.calibration_run import JOURNAL, RunContext, device_result, make_device
from conformesh.mesh.node.certified_result import CertifiedResult
from conformesh.mesh.node.membership import NodeRoster, put_roster_into_folder
from conformesh.mesh.node.result_store import ResultStore
from conformesh.peer.async_device import AsyncDevice
from conformesh.peer.journal import FileJournal
from conformesh.peer.loopback import LinkFaults
from tests.mesh.crashes import at_failpoints
from tests.peer.changing import Changing, TwoResultsError

KILLING = 12.0  # virtual seconds in which nodes are killed
LIMIT = 60.0  # and after which all must have agreed


class Killed(BaseException):
    """A process dies here: nothing that handles errors may see it."""


@dataclass(frozen=True)
class Handed:
    """A roster as the authority has signed it."""

    body: bytes

    @property
    def devices(self):
        return read_roster_document(self.body).roster.devices


class Template:
    """A mesh of four that is changed twice: late joins, and device-03 leaves; folders as they are before that."""

    def __init__(self, root, **more):
        self.root = root
        authority = root / "authority"
        init_mesh(authority, Network.complete(4), insecure=True, **more)
        shutil.copytree(authority, root / "folders")
        self.first = Handed((authority / "roster.json").read_bytes())
        add_device(authority, "late", ["device-00", "device-01"])
        shutil.copytree(authority / "late", root / "folders" / "late")
        self.second = Handed((authority / "roster.json").read_bytes())
        revoke_device(authority, "device-03")
        self.third = Handed((authority / "roster.json").read_bytes())
        self.names = ("device-00", "device-01", "device-02", "device-03", "late")


class Process:
    """What a node holds in memory: gone when it is killed."""

    def __init__(self, folder):
        self.folder = folder
        self.journal = None
        self.members = NodeRoster(read_device(folder))
        self.members.verify()
        self.use()
        self.restored = self.store.load()
        assert not self.store.problem, self.store.problem

    def use(self):
        """Go on under the roster that is in force."""
        self.store, self.certified_run = ResultStore(self.members.config), 0

    def open_journal(self):
        self.close()
        self.journal = FileJournal(self.folder / JOURNAL)
        return self.journal

    def close(self):
        if self.journal is not None:
            self.journal.close()
            self.journal = None


class FolderWorld(Changing):
    """A fake network of nodes with folders, which are killed at failpoints, time and again.

    Each node passes a number of failpoints, drawn from `between`, and is killed at the next one; `only` those count
    whose names begin so. Scores are others after every second start.

    Attributes
    ----------
    kills
        The failpoints at which nodes were killed, in order.
    certified
        What was certified: by run and number of the roster, the roster's digest, who took part and the threshold.
    """

    def __init__(self, template, root, rng, hand, faults, *, between=(1, 60), only="", device=None):
        super().__init__(template.names, template.first, hand, faults, rng, None)
        self.root, self.between, self.only, self.device = root, between, only, device
        self.processes = [None] * len(self.names)
        self.running, self.clock = None, 0.0
        self.left = [self._draw() for _ in self.names]
        self.kills, self.certified = [], {}
        self.versions = {}  # of the scores with which a device has spoken in a run

    def run(self, limit=LIMIT, check=lambda devices: None):
        try:
            with at_failpoints(self._visit):
                return super().run(limit, check)
        finally:
            for process in self.processes:
                if process is not None:
                    process.close()

    def agreed(self):
        """Return what all devices of the newest roster have certified in the end; None where they have not."""
        newest = max((process.members.config.roster for process in self.processes if process), key=lambda r: r.number)
        found = set()
        for name in newest.devices:
            device = self.devices[self.names.index(name)]
            if device is None or device.phase != "finished":
                return None
            found.add((device.rosters.number, device.number))
        return found.pop() if len(found) == 1 else None

    # --- kills --------------------------------------------------------------------------------------------------------

    def _draw(self):
        return int(self.rng.integers(*self.between))

    def _visit(self, name):
        k = self.running
        if k is None or self.clock > KILLING or not name.startswith(self.only):
            return
        self.left[k] -= 1
        if self.left[k] <= 0:
            self.left[k] = self._draw()
            self.kills.append(name)
            raise Killed

    @contextmanager
    def _process(self, k, now):
        """Whatever happens inside happens in the process of a device, which may be killed there."""
        if self.running is not None:  # within the same process
            yield
            return
        self.running, self.clock = k, now
        try:
            yield
        except Killed:
            if self.processes[k] is not None:
                self.processes[k].close()  # as the system does
            self.processes[k] = self.devices[k] = None
            self._at(now + float(self.rng.choice([0.05, 0.5, 3.0])), lambda then: self._boot(k, then))
        finally:
            self.running = None

    def _tick(self, k, ticket, now):
        with self._process(k, now):
            super()._tick(k, ticket, now)

    def _deliver(self, sender, to, data, now):
        with self._process(to, now):
            super()._deliver(sender, to, data, now)

    def _request(self, k, now):
        with self._process(k, now):
            super()._request(k, now)

    # --- a node -------------------------------------------------------------------------------------------------------

    def _offer(self, name, roster, now):
        k = self.names.index(name)
        with self._process(k, now), suppress(ValueError):  # a newer one is there already
            process, device = self.processes[k], self.devices[k]
            if process is None or device is None:
                put_roster_into_folder(roster.body, self.root / name, read_device(self.root / name))
                return
            process.members.submit(roster.body)
            body = process.members.next_submitted()
            if body is not None:  # else it is in force already
                device.offer(body, now)
                self._flush(k, now)

    def _boot(self, k, now):
        if now > LIMIT:  # a device that is in no roster of this schedule
            return
        with self._process(k, now):
            self._start(k, now)

    def _start(self, k, now):
        folder = self.root / self.names[k]
        self.devices[k] = None
        try:
            process = self.processes[k] = self.processes[k] or Process(folder)
        except ValueError as problem:
            if "was removed by roster" in str(problem):
                return
            raise
        if process.restored is not None:
            self._compare(process.restored)
        if process.members.has_newer_roster:
            process.members.adopt_newer_roster()
            if process.members.removed:
                return
            process.use()
        version, self.boots[k] = self.boots[k] // 2, self.boots[k] + 1
        kwargs = {} if self.device is None else {"kind": self.device}
        journal, config = process.open_journal(), process.members.config
        device = make(config, LocalScores(scores_of(k, version)), journal, process.members.rosters, **kwargs)
        device.version = version
        at = {name: i for i, name in enumerate(self.names)}
        device.world, device.places = k, [at[name] for name in config.devices]
        self.devices[k] = device
        device.start(now)
        self._flush(k, now)

    def _flush(self, k, now):
        super()._flush(k, now)
        device, process = self.devices[k], self.processes[k]
        if device is not None and device.phase in ("running", "finishing", "finished"):
            run = k, device.number, device.rosters.number
            if self.versions.setdefault(run, device.version) != device.version:
                raise TwoResultsError(f"{self.names[k]} has spoken with two versions of its scores in run {run[1:]}")
        if device is not None and device.phase == "finished" and process.certified_run != device.number:
            process.certified_run = device.number
            config = process.members.config
            made = CertifiedResult(
                device_result(config, device, 0.0),
                device.number,
                tuple(config.devices[j] for j in device.survivors),
                0.0,
                roster_number=device.rosters.number,
            )
            self._compare(made, config.roster.digest)
            process.store.save(made)

    def _compare(self, made, digest=None):
        """One run under one number of a roster has one threshold; in rounds a run has one roster, too."""
        key = made.run, made.roster_number
        told = made.roster, made.calibration.threshold
        if key not in self.certified:
            rows = [self.names.index(name) for name in made.roster]
            held = [scores_of(k, self.versions[k, *key]) for k in rows]
            right = calibrate(held, Network.complete(len(rows))).threshold
            if made.calibration.threshold != right:
                raise TwoResultsError(f"{key}: the threshold is {made.calibration.threshold}, and {right} is right")
        known = self.certified.setdefault(key, (digest, *told))
        if known[1:] != told or (digest is not None and known[0] != digest):
            raise TwoResultsError(f"run {made.run} under roster {made.roster_number}: {known} and {(digest, *told)}")


def scores_of(k, version):
    """Return what a device holds; how many there are differs, too, because a run may begin with that."""
    return np.random.default_rng([k, version]).normal(version, size=8 + 5 * version)


def make(config, scores, journal, rosters, kind=None):
    """Return the device of a folder, or one of another kind in its place."""
    device = make_device(config, scores, journal, RunContext(rosters=rosters))
    if kind is not None and not isinstance(device, AsyncDevice):
        return kind(device.setup)
    return device


def copy_folders(template, root):
    shutil.rmtree(root, ignore_errors=True)
    shutil.copytree(template.root / "folders", root)
    return root


def play_kills(template, root, seed, **more):
    """Play a schedule in which nodes are killed; return the world as it was left."""
    rng = np.random.default_rng([26, seed])
    hand = []
    if seed % 2:  # the mesh changes meanwhile
        hand = [(float(rng.uniform(1, 5)), "device-00", template.second)]
        hand += [(float(rng.uniform(6, 11)), str(rng.choice(["device-01", "late"])), template.third)]
        hand += [(KILLING + 1, "device-00", template.third)]  # again: whoever was given it may have been killed
    requests = tuple((int(rng.integers(4)), float(when)) for when in rng.uniform(0, KILLING, 6))
    faults = LinkFaults(loss=float(rng.choice([0.0, 0.1])), delay=(0.001, 0.02), requests=requests)
    world = FolderWorld(template, copy_folders(template, root), rng, hand, faults, **more)
    world.run()
    return world
