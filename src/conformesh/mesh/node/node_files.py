"""The files of a running node: scores, certificate, roster, account and result, looked at about once a second.

Whatever is wrong with a file makes the node unhealthy and never ends it: its status has the reason until it is mended.
The watches themselves are in `file_watch`, `disk_watch`, `privacy_watch` and `membership`; this module looks at all of
them and tells `NodeState`.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Any

from conformesh.files.atomic_writes import remove_drafts
from conformesh.mesh.config.device_config import DeviceConfig
from conformesh.mesh.config.device_toml import reload_config
from conformesh.mesh.node.certified_result import CertifiedResult
from conformesh.mesh.node.disk_watch import DiskWatch
from conformesh.mesh.node.file_watch import CertificateWatch, ScoreWatch
from conformesh.mesh.node.membership import NodeRoster
from conformesh.mesh.node.privacy_watch import PrivacyWatch
from conformesh.mesh.node.result_store import ResultStore
from conformesh.mesh.node.state import NodeState
from conformesh.mesh.node.status import Trouble

log = logging.getLogger("conformesh.node")
# Seconds between two looks at a node's files: docs/operations.md says that a change is noticed within three seconds.
FILE_LOOK_INTERVAL = 1.0
# Seconds after which a draft of scores or of a roster counts as left by a crash: programs that do not hold the lock of
# the folder write these files too, and take far less.
_DRAFT_AGE = 60.0


class NodeFiles:
    """The files of one device, and what has changed in them.

    Attributes
    ----------
    config
        The configuration in force.
    scores, certificate, disk, privacy, members
        What watches them; `privacy` is None for a device that is not private.
    store
        The last result on the disk.
    scores_changed, epoch_closed
        Whether that has happened since a run was last asked for because of it.
    is_reloaded
        Whether a reload has changed something that needs other links.
    """

    def __init__(self, config: DeviceConfig, state: NodeState, read_config: Callable[[], DeviceConfig]) -> None:
        self.config, self._state, self._read_config = config, state, read_config
        self.members = NodeRoster(config)
        self.store = ResultStore(config)
        # With epsilon neighbours may not learn how many scores there are: reading them must delay no answer.
        self.scores = ScoreWatch(config, in_background=config.has_epsilon)
        self.certificate = CertificateWatch(config)
        self.disk = DiskWatch(config.folder)
        self.privacy = PrivacyWatch(config) if config.is_private else None
        self.scores_changed = self.epoch_closed = self.is_reloaded = False
        self._reload_requested = threading.Event()
        self._unsaved: CertifiedResult | None = None  # a result that could not be written yet
        self._due = 0.0  # when to look again
        self._compared: tuple[Any, Any, str] = None, None, ""  # a result, the rows of this device, and how they differ

    def remove_drafts(self) -> None:
        """Delete what killed processes have left."""
        remove_drafts(self.store.path)
        self.members.remove_drafts(_DRAFT_AGE)
        remove_drafts(self.config.path("scores"), _DRAFT_AGE)

    def request_reload(self) -> None:
        """Read the configuration again at the next look, which is due at once; also from a handler of signals."""
        self._due = 0.0
        self._reload_requested.set()

    @property
    def needs_links(self) -> bool:
        """Whether other links must be opened: with another certificate, or to other neighbours."""
        return self.certificate.replaced or self.members.has_newer_roster or self.is_reloaded

    @property
    def refusal(self) -> str:
        """Why a private device would refuse a run now, by its own account; empty if it would not."""
        return "" if self.privacy is None else self.privacy.refusal

    def look(self, at_once: bool = False) -> None:
        """Look at every file, if it is time to."""
        now = time.monotonic()
        if now < self._due and not at_once:
            return
        self._due = now + FILE_LOOK_INTERVAL
        if self._reload_requested.is_set():
            self._reload()
        was_waiting = self.scores.waiting
        if self.scores.look(now) and not self.config.is_private:  # a private node tells nobody when its scores change
            self.scores_changed = True
        self.look_at_privacy()
        if self.scores.waiting and not was_waiting:
            log.info("%s", self.scores.waiting)
        self.certificate.look()
        self.disk.look(now)
        if self._unsaved is not None and not self.disk.problem:
            self.save(self._unsaved)
        self.members.look(now)
        if self.members.problem:
            self.note_refused_roster(self.members.problem)
            self.members.problem = ""
        self._report()

    def look_at_privacy(self) -> None:
        """Look at account and epochs only."""
        if self.privacy is not None:
            self.epoch_closed |= self.privacy.look()

    def save(self, result: CertifiedResult) -> None:
        """Write a result to the disk; if that fails it is tried again with every look."""
        try:
            self.store.save(result)
            self._unsaved = None
        except OSError as problem:
            self._unsaved = result
            self.disk.fail(problem)
            self._state.set_trouble(Trouble.DISK, self.disk.problem)

    def note_refused_roster(self, words: str) -> None:
        """Count and log a roster that was refused."""
        self._state.count_refused(None, "a roster that is refused")
        self._state.note_error(words)
        log.warning("%s", words)

    def adopt_roster(self) -> None:
        """Take over the configuration of the roster that `members` has moved to."""
        self.config = self.members.config
        self.scores.config = self.config
        self.certificate.set_config(self.config)
        self.store = ResultStore(self.config)

    def _report(self) -> None:
        privacy = "" if self.privacy is None else self.privacy.problem
        problems = self.scores.problem, privacy, self._other_rows()
        self._state.set_trouble(Trouble.SCORES, "; ".join(filter(None, problems)))
        self._state.set_trouble(Trouble.CERTIFICATE, self.certificate.problem)
        self._state.set_trouble(Trouble.DISK, self.disk.problem)
        self._state.set_file_status(self.certificate.expires, self.scores.failures, self.scores.waiting)

    def _other_rows(self) -> str:
        """Return why a node with adapted scores cannot predict after a start, if its rows were changed meanwhile."""
        found, rows = self._state.certified, self.scores.known.rows
        if found is None or rows is None or found.calibration.rows:  # a result of this process has its rows
            return ""
        if self._compared[0] is not found or self._compared[1] is not rows:  # hashing takes time: not every second
            self._compared = found, rows, found.explain_other_rows(self.config.name, rows)
        return self._compared[2]

    def _reload(self) -> None:
        """Read device.toml, the scores and the certificate again, and log what takes effect.

        What all devices have agreed on stays as it is until a restart: a device that changes it alone would disagree
        with its neighbours. So does a file that cannot be read. The links are opened again if something of this device
        has changed, and a run that is under way continues from the journal.
        """
        self._reload_requested.clear()
        try:
            config, later = reload_config(self.config, self._read_config())
        except ValueError as problem:
            self._state.note_error(f"not reloaded: {problem}")
            log.warning("not reloaded: %s", problem)
            return
        self.is_reloaded |= config != self.config
        self.config = self.members.config = config
        self._state.set_patience(total_patience(config))
        self.scores.set_config(config)
        self.certificate.set_config(config)
        wait = f"; {', '.join(later)} of device.toml count from the next start on" if later else ""
        log.info("reloaded: device.toml, scores, certificate%s", wait)


def total_patience(config: DeviceConfig) -> float:
    """Return how long a requested run may take to advance: it begins when the last result is `linger` seconds old."""
    return config.timing.patience + config.peer_settings.linger
