"""The account and the epochs of a private device while its node is up: what is wrong, and when a run is due.

Everything here is public but `problem`, which is for the operator. Nothing depends on the scores.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from conformesh.mesh.config.device_config import DeviceConfig
from conformesh.mesh.config.epochs import EpochClock
from conformesh.mesh.node.calibration_run import device_account
from conformesh.mesh.node.file_watch import FileStamp, file_stamp


class PrivacyWatch:
    """Looks at the account and at the epochs of one device.

    Attributes
    ----------
    epochs
        Which epoch has closed last.
    problem
        Why the account or the declared epoch cannot be read, for the operator; empty where they can.
    refusal
        Why this device would refuse a run with epsilon, by its own account at the last look; empty where it would not.
    """

    def __init__(self, config: DeviceConfig, wall: Callable[[], float] = time.time) -> None:
        self.config, self.epochs = config, EpochClock(config, wall)
        self.problem = self.refusal = self._account_problem = ""
        self._due: int | None = None  # the last epoch that a run could be asked for at the last look
        self._read: tuple[FileStamp, int] | None = None  # the account, and the epoch that it was read for

    def look(self) -> bool:
        """Look again; return whether an epoch has closed since the last look that may be released."""
        from conformesh.privacy.account import (
            ACCOUNT_FILE,  # which a device that is not private need not hold in memory
        )

        last, due, stamp = (
            self.epochs.last_closed(),
            self.epochs.last_due(),
            file_stamp(self.config.folder / ACCOUNT_FILE),
        )
        if self._read != (stamp, last):
            self._read = stamp, last
            self._account_problem = device_account(self.config, last).problem
            self.refusal = self.refusal_now()
        self.problem = "; ".join(filter(None, [self._account_problem, self.epochs.problem]))
        rose = self._due is not None and due > self._due
        self._due = due if self._due is None else max(due, self._due)
        if not (rose and self.config.has_epsilon) or self.refusal:
            return False
        # Devices learn of an epoch at different times. One that another has released meanwhile is not released again
        # without being asked for: each release costs epsilon.
        return device_account(self.config, last).released(last) == 0

    def refusal_now(self) -> str:
        """Return `refusal` as it is at this moment; from any thread."""
        return device_account(self.config, self.epochs.last_closed()).refusal() if self.config.has_epsilon else ""
