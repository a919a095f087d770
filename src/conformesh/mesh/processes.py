"""All devices of a mesh on this machine: one process each, watched until they agree."""

from __future__ import annotations

import json
import subprocess
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from conformesh.mesh.node.logs import PROGRESS_FIELDS
from conformesh.mesh.node.main import RESULT_CONTEXT
from conformesh.results.result import Result

MOST_LOG_LINES = 200  # lines of a log that are kept until a caller takes them


@dataclass
class DeviceProcess:
    """A device's process, and what its log said last; `lines` are level and words that nobody has taken yet."""

    name: str
    process: subprocess.Popen[str]
    phase: str = "starting"
    round: int = 0
    heard: int = 0
    expected: int = 0
    sent: int = 0
    received: int = 0
    result: dict[str, Any] | None = None
    error: str = ""
    threads: list[threading.Thread] = field(default_factory=list)
    lines: deque[tuple[str, str]] = field(default_factory=lambda: deque(maxlen=MOST_LOG_LINES))

    @property
    def calibration(self) -> Result:
        """Its result, where it has one."""
        assert self.result is not None
        own = {key: value for key, value in self.result.items() if key not in RESULT_CONTEXT}
        return Result.from_dict(own, self.name)

    @property
    def over(self) -> bool:
        """Whether its process has ended, and all that it said was read."""
        return self.process.poll() is not None and not any(thread.is_alive() for thread in self.threads)

    @property
    def state(self) -> str:
        """What to show: done, failed and why, or the phase."""
        if self.result is not None:
            return "done"
        if self.process.poll():
            return self.error or "failed"
        return self.error or self.phase


def launch_devices(commands: Mapping[str, Sequence[str]]) -> list[DeviceProcess]:
    """Start a process for each device, by name; their logs are read in the background.

    Each says now and then how far it is, which costs less than asking it.
    """
    watched = []
    for name, command in commands.items():
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        one = DeviceProcess(name, process)
        for read in (_read_log, _read_result):
            thread = threading.Thread(target=read, args=(one,), daemon=True)
            thread.start()
            one.threads.append(thread)
        watched.append(one)
    return watched


def join_devices(
    watched: Sequence[DeviceProcess], each: Callable[[], None] = lambda: None, every: float = 0.25
) -> None:
    """Wait until all processes have ended, telling `each` now and then; if interrupted, end those still running."""
    try:
        for one in watched:
            while True:
                try:
                    one.process.wait(timeout=every)
                    break
                except subprocess.TimeoutExpired:
                    each()
            for thread in one.threads:
                thread.join()
            each()
    finally:
        for one in watched:
            if one.process.poll() is None:
                one.process.terminate()
                one.process.wait()


def _read_log(one: DeviceProcess) -> None:
    assert one.process.stderr is not None
    with one.process.stderr as stream:
        for line in stream:
            try:
                said = json.loads(line)
            except ValueError:
                if line.startswith("error: "):
                    one.error = line.removeprefix("error: ").strip()
                continue
            if said.get("message") == "progress":
                for name in ("round", *PROGRESS_FIELDS):
                    setattr(one, name, said[name])
            elif "message" in said:
                one.lines.append((str(said.get("level", "info")), str(said["message"])))


def _read_result(one: DeviceProcess) -> None:
    assert one.process.stdout is not None
    with one.process.stdout as stream:
        text = stream.read()
    if text.strip():
        one.result = json.loads(text)
