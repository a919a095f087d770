"""A node that stays up: calibrates again when its scores change or when anybody asks, and answers local programs."""

from __future__ import annotations

import logging
import threading
import time
from pathlib import Path
from typing import Literal

from conformesh.mesh.config.device_config import DeviceConfig
from conformesh.mesh.config.identity import check_pair
from conformesh.mesh.config.own_scores import read_own_scores
from conformesh.mesh.http.server import Service
from conformesh.mesh.link import Transport, drive, opened
from conformesh.mesh.node.feeding import Feed
from conformesh.mesh.node.running import JOURNAL, calibration_of, make_device
from conformesh.mesh.node.state import NodeState
from conformesh.mesh.node.store import ResultStore
from conformesh.peer.device import Device
from conformesh.peer.journal import FileJournal
from conformesh.peer.settings import PeerError

log = logging.getLogger("conformesh.node")
FILES: tuple[Literal["ca", "cert", "key"], ...] = ("ca", "cert", "key")
LOOK = 1.0  # seconds between two looks at the file of scores
SHORTEST, LONGEST = 0.5, 30.0  # seconds between a failure and the next attempt: twice as long each time
TELL = 0.5  # seconds between two records of progress


class Node:
    """One device with its links, its local service and its last certified threshold."""

    def __init__(self, config: DeviceConfig, address: str | Path | None = None) -> None:
        self.config = config
        self.state = NodeState(config.name, [neighbour.name for neighbour in config.neighbours])
        self.store = ResultStore(config.folder)
        self.address = config.folder if address is None else address
        self.stopping = threading.Event()
        self._asked = threading.Event()
        self._seen: tuple[float, int] | None = None
        self._looked = 0.0
        self._certified_run = 0
        self._started = time.perf_counter()
        self._device: Device | None = None
        self._told = ("", 0.0)  # phase and time of the last record of progress

    def run(self, once: bool = False) -> None:
        """Calibrate, and unless `once` stay up until `stopping` is set. Raises what ended a single calibration."""
        if not self.config.insecure:
            _check_identity(self.config)
        old = self.store.load()
        if old is not None:
            self.state.restore(old)
        elif self.store.problem:
            log.warning(self.store.problem)
        with Service(self.state, self.address, recalibrate=self._asked.set), opened(self.config) as transport:
            pause = SHORTEST
            while not self.stopping.is_set():
                error = self._live(transport, once)
                if error is not None:
                    self.state.fail(str(error))
                    if once:
                        raise error
                    self.stopping.wait(pause)
                if once:
                    return
                pause = SHORTEST if error is None else min(2 * pause, LONGEST)

    def _live(self, transport: Transport, once: bool) -> PeerError | None:
        """Run a device until it has failed, or its scores have changed, or nothing is left to do."""
        journal = FileJournal(self.config.folder / JOURNAL)
        try:
            device = self._fresh_device(journal)
            feed = Feed(self.state, device)
            drive(device, transport, lambda: self._enough(device, once), lambda: self._look(device, feed))
            return device.error
        finally:
            journal.close()

    def _fresh_device(self, journal: FileJournal) -> Device:
        scores = read_own_scores(self.config)
        self._seen = self._stamp()
        self._started = time.perf_counter()
        self._device = make_device(self.config, scores, journal, self._log)
        return self._device

    def _log(self, words: str) -> None:
        device = self._device
        log.info(words, extra={} if device is None else {"run": device.number, "round": device.round})

    def _enough(self, device: Device, once: bool) -> bool:
        if self.stopping.is_set():
            return True
        if device.phase == "failed" or once:
            return device.over
        return self._changed()

    def _changed(self) -> bool:
        """Whether the scores are others than the ones in use: then a new device starts, and asks for a new run."""
        now = time.monotonic()
        if now - self._looked < LOOK:
            return False
        self._looked = now
        if self._stamp() == self._seen:
            return False
        try:
            read_own_scores(self.config)
        except (ValueError, OSError) as problem:  # half written, or gone for a moment: look again
            self.state.note_error(f"the scores have changed and cannot be read: {problem}")
            return False
        return True

    def _stamp(self) -> tuple[float, int] | None:
        try:
            found = self.config.path("scores").stat()
        except OSError:
            return None
        return found.st_mtime, found.st_size

    def _look(self, device: Device, feed: Feed) -> None:
        """Tell the state where the device is, and keep a result that has just become certain."""
        if self._asked.is_set():
            self._asked.clear()
            device.recalibrate(time.monotonic())
        now = time.monotonic()
        if not feed.look(now):
            return
        if device.phase != self._told[0] or now - self._told[1] >= TELL:
            self._told = (device.phase, now)
            log.debug("progress", extra=vars(feed.progress(now)))
        if device.phase == "finished" and self._certified_run != device.number:
            self._certified_run = device.number
            found = calibration_of(self.config, device, time.perf_counter() - self._started)
            roster = tuple(self.config.devices[k] for k in device.survivors)
            made = self.state.certify(found, roster=roster, run=device.number)
            try:
                self.store.save(found, run=device.number, roster=roster, made=made.made)
            except OSError as problem:
                self.state.note_error(f"the threshold could not be written: {problem}")
            log.info("threshold %r, %s", found.threshold, found.certificate, extra={"run": device.number})


def _check_identity(config: DeviceConfig) -> None:
    """Refuse to start with files that the neighbours would refuse, and say which."""
    for what in FILES:
        if not config.path(what).is_file():
            raise ValueError(
                f"{config.path(what)}: {config.name} needs this file; copy it from where mesh init made it"
            )
    problems = check_pair(config.path("cert"), config.path("key"), config.path("ca"), config.name)
    if problems:
        raise ValueError("; ".join(problems))
