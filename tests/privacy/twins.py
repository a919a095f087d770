"""Twin runs: one node of a private mesh on a virtual clock, twice, on neighbouring data; all that others see is kept.

The node under test is the real one (`mesh.node.node.Node`): it reads its score file, watches it, keeps its account,
journal and result on the disk, and answers over HTTP. Its links lead to four devices on the loopback engine. Time is
virtual, and work on scores takes time: reading and sorting a file takes so many virtual seconds a byte, so a frame that
leaves later because of the scores is seen in the trace. Only the first look at the file is free: it comes before the
first frame, and nobody knows when the operator has started the node.

Randomness is the same in both runs. Noise is chosen so that every device adds the same numbers, whatever it counted:
given equal totals, nothing that others see may differ.
"""

import hashlib
import heapq
import itertools
import json
import shutil
import threading
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

from conformesh import Network
from conformesh.mesh import link
from conformesh.mesh.config.device_toml import read_device
from conformesh.mesh.config.epochs import EPOCH_FILE, EpochClock
from conformesh.mesh.config.folders import init_mesh
from conformesh.mesh.config.local_scores import LocalScores
from conformesh.mesh.http.replies import HttpReplies, NodeInterface, Refused
from conformesh.mesh.node import calibration_run, node_files, run_driver
from conformesh.mesh.node import file_watch as watching
from conformesh.mesh.node import heartbeat as heartbeat_module
from conformesh.mesh.node import node as node_module
from conformesh.mesh.node.heartbeat import Heartbeat
from conformesh.mesh.node.node import Node
from conformesh.mesh.node.privacy_watch import PrivacyWatch
from conformesh.mesh.node.state import NodeState
from conformesh.peer import frames
from conformesh.peer.frames import WORD_KINDS
from conformesh.peer.interface import EVERYBODY
from conformesh.peer.loopback import LinkFaults, _World
from conformesh.protocols import p_dcp
from tests.mesh.crashes import at_failpoints
from tests.mesh.real import long_ago

NETWORK, OWN = Network.cycle(5), 2  # the row of the node under test
NAME = f"device-{OWN:02}"
OPTIONS = {"epsilon": 1.0, "cells": 8, "grid": "linear", "range": (0.0, 1.0)}
START = 1000.0  # virtual seconds when everything begins
WALL = 1_700_000_000.0  # seconds since 1970 then
# Virtual seconds that work on scores takes: about as long as on a small computer, so that a million scores are minutes.
A_BYTE, A_SCORE = 1e-6, 1e-5
SHARED = ("/status", "/mesh", "/metrics", "/health", "/threshold", "/certificate", "/calibration")
EVERY = 0.5  # seconds between two looks at what the service shows
BEAT = 1.0  # seconds between two pulses


@dataclass
class Seen:
    """What others see of a node, and what its operator does.

    Attributes
    ----------
    frames
        (time, sender, receiver, kind, size) of every frame that is sent.
    words
        (time, sender, receiver, body) of frames that hold words: greetings, roll calls, failures.
    pulses
        (time, bytes) of the heartbeats of the node.
    shown
        (time, path, status, body) of what its service answers at a port.
    writes
        (time, failpoint) of all that it writes on its disk, and the size of its journal then.
    files
        Name and size of what is left in its folder, besides the score file.
    kept
        The bytes of its result and of its account.
    traces
        What it tells a collector of telemetry.
    prepared
        How much work it says that compiled loops are needed for.
    operator
        (time, path, body) of what its service answers at the owner's socket.
    logged
        Records of its log.
    """

    frames: list[Any] = field(default_factory=list)
    words: list[Any] = field(default_factory=list)
    pulses: list[Any] = field(default_factory=list)
    shown: list[Any] = field(default_factory=list)
    writes: list[Any] = field(default_factory=list)
    files: list[Any] = field(default_factory=list)
    kept: dict[str, Any] = field(default_factory=dict)
    traces: list[Any] = field(default_factory=list)
    prepared: list[Any] = field(default_factory=list)
    operator: list[Any] = field(default_factory=list)
    logged: list[str] = field(default_factory=list)

    SHARED = ("frames", "words", "pulses", "shown", "writes", "files", "kept", "traces", "prepared")

    def differences(self, other):
        """Return in words the first difference of each thing that others see."""
        found = {}
        for name in self.SHARED:
            mine, theirs = getattr(self, name), getattr(other, name)
            if mine != theirs:
                mine, theirs = ([*each.items()] if isinstance(each, dict) else each for each in (mine, theirs))
                pairs = itertools.zip_longest(mine, theirs)
                found[name] = next(f"{str(a)[:300]} / {str(b)[:300]}" for a, b in pairs if a != b)
        return found


class VirtualTime:
    """The module `time` for a node: moves when its hall does, and when it works."""

    def __init__(self, hall):
        self._hall = hall

    def monotonic(self):
        return self._hall.now

    perf_counter = monotonic

    def time(self):
        return WALL + self._hall.now - START


class Stopping(threading.Event):
    """Whether the node is to stop; who waits lets virtual time pass."""

    def __init__(self, hall):
        super().__init__()
        self._hall = hall

    def wait(self, timeout=None):
        self._hall.pass_time(self._hall.now + (timeout or 0.0))
        return self.is_set()


class Links:
    """The transport of the node: its frames go to the devices in the hall."""

    def __init__(self, hall):
        self._hall = hall

    def send(self, to, data):
        for j in NETWORK.neighbours(OWN).tolist() if to == EVERYBODY else (to,):
            self._hall._wire(OWN, j, data, self._hall.now)

    def receive(self, timeout, enough=1):
        yield from self._hall.arrivals(self._hall.now + max(timeout, 0.0))

    def send_side_message(self, what, data):
        self._hall.seen.pulses.append((round(self._hall.now, 9), data))

    def receive_side_messages(self, what):
        return []

    def wake(self):
        pass


class Traced:
    """Telemetry that keeps what it is told."""

    def __init__(self, hall):
        self._hall = hall

    def __getattr__(self, name):
        return lambda *parts, **named: self._hall.seen.traces.append((round(self._hall.now, 6), name, parts, named))


class Hall(_World):
    """The devices around a node, and the node; `script` is (seconds, what to do with the hall).

    A `Pause` of the faults is a crash for ever, that many seconds after the start.
    """

    def __init__(self, root, data, script=(), faults=None, limit=20.0):
        self.root, self.folder, self.limit = root, root / NAME, START + limit
        self.configs = [read_device(root / f"device-{k:02}") for k in range(NETWORK.devices)]
        rng = np.random.default_rng(5)
        self.scores = [LocalScores(rng.random(40 + 5 * k)) for k in range(NETWORK.devices)]
        super().__init__(
            self.configs[0].network, self._start, faults or LinkFaults(), np.random.default_rng(3), stay=True
        )
        self.now, self.seen, self.inbox, self.script, self.node = START, Seen(), [], script, None
        self.put(data)

    def put(self, data):
        """Replace the score file of the node: bytes, or None for none."""
        path = self.folder / "scores.csv"
        if data is None:
            path.unlink(missing_ok=True)
            return
        draft = self.folder / "scores.new"
        draft.write_bytes(data)
        long_ago(draft)
        draft.replace(path)

    def declare(self, number):
        """Close an epoch on every device."""
        for config in self.configs:
            (config.folder / EPOCH_FILE).write_text(f"{number}\n")

    def ask(self, k):
        """Have the operator of a device ask for a run."""
        if k == OWN:
            self.node.recalibrate()
        else:
            self._request(k, self.now)

    def work(self, seconds):
        """Let the node work: nothing of it happens meanwhile. What it does in other threads delays nothing."""
        if threading.current_thread() is threading.main_thread():
            self.now += seconds

    # --- the other devices --------------------------------------------------------------------------------------------

    def _start(self, k, journal):
        config = self.configs[k]
        epochs = EpochClock(config, lambda: WALL + self.now - START)
        part = calibration_run.PrivatePart(lambda: self.scores[k], epochs)
        return calibration_run.make_device(config, self.scores[k], journal, private=part)

    def _boot(self, k, now):
        if k != OWN:
            super()._boot(k, now)

    def _wire(self, sender, to, data, now):
        frame = frames.decode_frame(data)
        at = round(now, 9)
        self.seen.frames.append((at, sender, to, frames.FRAME_KINDS[frame.kind], len(data)))
        if frame.kind in WORD_KINDS:
            self.seen.words.append((at, sender, to, frame.body))
        super()._wire(sender, to, data, now)

    def _deliver(self, sender, to, data, now):
        if to == OWN:
            self.inbox.append((sender, data))
        else:
            super()._deliver(sender, to, data, now)

    # --- time ---------------------------------------------------------------------------------------------------------

    def pass_time(self, until, stop=lambda: False):
        """Let things happen until a moment, or until `stop` says so; the node may be behind after work."""
        while self.queue and self.queue[0][0] <= max(until, self.now) and not stop():
            when, _, happen = heapq.heappop(self.queue)
            self.now = max(self.now, when)
            happen(when)
        if not stop():
            self.now = max(self.now, until)

    def arrivals(self, until):
        """Return what arrives for the node until a moment; at once if something has."""
        if (reader := self.node.files.scores._reader) is not None:
            reader.join()  # it takes no virtual time, and is done before the next look
        self.pass_time(min(until, self.limit), lambda: bool(self.inbox))
        if self.now >= self.limit:
            self.node.stopping.set()
        found, self.inbox = self.inbox, []
        return found

    def _each(self, every, do):
        """Do something again and again."""

        def happen(now):
            do(now)
            if now + every < self.limit:
                self._at(now + every, happen)

        self._at(self.now + every, happen)

    # --- a run --------------------------------------------------------------------------------------------------------

    def play(self, leak=None):
        """Start everything at once, let the node run until the limit, and return what was seen.

        `leak(hall, patch)` may plant a leak; `patch` is as `mock.patch.object`, until the end of the run.
        """
        with ExitStack() as stack:
            self._patch(stack)
            if leak is not None:
                leak(self, lambda *parts: stack.enter_context(mock.patch.object(*parts)))
            self.node = Node(self.configs[OWN], traces=Traced(self))
            self.node.stopping = self.node.driver.stopping = Stopping(self)
            for k in range(NETWORK.devices):
                self._at(START, lambda now, k=k: self._boot(k, now))
            for pause in self.faults.pauses:
                self._at(START + pause.start, lambda now, pause=pause: self._crash(pause))
            for when, do in self.script:
                self._at(START + when, lambda now, do=do: do(self))
            self._each(EVERY, self._look)
            self._each(BEAT, lambda now: self.node.heartbeat._exchange(Links(self)))
            stack.enter_context(at_failpoints(self._note_write))
            self.node.run()
        skipped = ("scores.csv",)
        self.seen.files = [(path.name, path.stat().st_size) for path in sorted(self.folder.iterdir()) if path.is_file()]
        self.seen.files = [entry for entry in self.seen.files if entry[0] not in skipped]
        for name in ("privacy.json", "result.json", "certified.json"):
            if (self.folder / name).exists():
                self.seen.kept[name] = (self.folder / name).read_bytes()
        return self.seen

    def _look(self, now):
        """Ask the service of the node for all that it shows, at a port and at the owner's socket."""
        at = round(now, 9)
        for shared, seen in ((True, self.seen.shown), (False, self.seen.operator)):
            answers = HttpReplies(NodeInterface(self.node.state, heartbeat=self.node.heartbeat), shared=shared)
            for path in SHARED:
                try:
                    answer = answers.route("GET", path)(b"")
                    said = (int(answer.status), answer.body)
                except Refused as refused:
                    said = (int(refused.status), str(refused).encode())
                seen.append((at, path, *said))

    def _note_write(self, name):
        journal = self.folder / calibration_run.JOURNAL
        size = journal.stat().st_size if journal.exists() else 0
        if not name.startswith("scores"):
            self.seen.writes.append((round(self.now, 9), name, size))

    def _patch(self, stack):
        """Give the node virtual time, fake links, known secrets, and counts whose noisy values are always the same."""
        clock, draws = VirtualTime(self), itertools.count()
        patch = lambda *parts: stack.enter_context(mock.patch.object(*parts))  # noqa: E731

        @contextmanager
        def opened(config):
            yield Links(self)

        @contextmanager
        def prepared(kernels, work):
            self.seen.prepared.append((round(self.now, 9), tuple(kernels), work))
            yield

        @contextmanager
        def silent(*parts, **named):
            yield

        patch(node_files, "time", clock)
        patch(run_driver, "time", clock)
        patch(heartbeat_module, "time", clock)
        patch(node_module, "open_links", opened)
        patch(node_module, "compiled_beforehand", prepared)
        patch(node_module, "Service", silent)
        patch(Heartbeat, "running", silent)
        patch(run_driver, "drive_device", partial(link.drive_device, clock=clock.monotonic))
        patch(node_module, "NodeState", partial(NodeState, clock=clock.monotonic, wall=clock.time))
        patch(node_files, "PrivacyWatch", partial(PrivacyWatch, wall=clock.time))
        patch(calibration_run, "token_bytes", lambda size: hashlib.sha256(b"%d" % next(draws)).digest()[:size])
        self._patch_work(patch)
        self._patch_noise(patch)

    def _patch_work(self, patch):
        """Let work on scores take time."""
        read, in_epoch, samples_of = watching.read_local_scores, LocalScores.in_epoch, calibration_run.WeightedScores.of

        def reading(config):
            path = config.path("scores")
            if self.seen.frames and path.exists():
                self.work(A_BYTE * path.stat().st_size)
            return read(config)

        def sorting(scores, epoch):
            if self.is_own(scores) and "_by_epoch" not in vars(scores):
                self.work(A_SCORE * len(scores))
            return in_epoch(scores, epoch)

        class Counted(calibration_run.WeightedScores):
            @classmethod
            def of(cls, devices, names=None):
                if names == (NAME,):
                    self.work(A_SCORE * sum(map(len, devices)))
                return samples_of(devices, names)

        patch(watching, "read_local_scores", reading)
        patch(LocalScores, "in_epoch", sorting)
        patch(calibration_run, "WeightedScores", Counted)

    def is_own(self, scores):
        return self.node is not None and scores is self.node.files.scores.scores

    def _patch_noise(self, patch):
        """Let every device add the same numbers, whatever it has counted."""
        count, draw, counted = p_dcp._local_counts, p_dcp._draw_noise, []

        def counts(plan, block, samples, secrets):
            counted[:] = [int(block.rows[0]), count(plan, block, samples, secrets)]
            return counted[1]

        def noise(plan, trials, stream):
            drawn = draw(plan, trials, stream)
            row, own = counted
            wanted = np.random.default_rng([7, row]).integers(20, 60, drawn.shape)
            return wanted - own[0]

        patch(p_dcp, "_local_counts", counts)
        patch(p_dcp, "_draw_noise", noise)


def new_mesh(root, **more):
    """Make the folders of a mesh that halls copy."""
    init_mesh(root, NETWORK, method="p-dcp", options=OPTIONS | more.pop("options", {}), patience=3.0, **more)
    return root


def copied(template, root):
    """Put a fresh copy of a mesh where the last one was: paths are the same in both runs."""
    shutil.rmtree(root, ignore_errors=True)
    shutil.copytree(template, root)
    return Path(root)


def csv_of(scores):
    """Return scores as a file."""
    return ("score\n" + "".join(f"{score!r}\n" for score in np.asarray(scores, dtype=float).tolist())).encode()


def answers_of(seen, path, among="shown"):
    """Return what the service answered at a path, as JSON, in order."""
    return [json.loads(body) for _, where, status, body in getattr(seen, among) if where == path and status == 200]
