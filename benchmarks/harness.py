"""How everything here is timed: jobs in turn after a warm-up, so that a noisy minute hits all of them alike.

What counts is the ratio within one run. It is the median over the repeats of (other's time / our time) in the same
repeat, which a change of the machine's load between repeats does not touch.
"""

from __future__ import annotations

import os
import platform
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(1, str(Path(__file__).parents[1]))  # for tests.reference; other packages have `tests`, too
Job = Callable[[], object]
REPEATS = 5
PEAK = """
import pathlib, resource
def peak():
    status = pathlib.Path("/proc/self/status")  # getrusage hands down the peak of who started us
    if status.exists():
        return int(status.read_text().split("VmHWM:")[1].split()[0]) / 1e6
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
"""  # for scripts that are measured in a process of their own, in GB


@dataclass(frozen=True)
class Row:
    """One line of the table; seconds are medians, and a ratio above one means that we are faster.

    `met` is None where nothing is judged, and a row that could not be measured has only a `note`.
    """

    what: str
    ours: float | None = None
    other: float | None = None
    against: str = ""
    ratio: float | None = None
    target: str = ""
    met: bool | None = None
    note: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Return what is kept."""
        return asdict(self)


@dataclass(frozen=True)
class Series:
    """Seconds against what grows, with the exponents of the fitted power law: of all points, and of the upper half."""

    what: str
    grows: str
    x: list[float]
    seconds: list[float]
    exponent: float = field(default=0.0)
    upper: float = field(default=0.0)

    @classmethod
    def fitted(cls, what: str, grows: str, x: Sequence[float], seconds: Sequence[float]) -> Series:
        """Fit both exponents."""
        half = len(x) // 2
        return cls(what, grows, [*map(float, x)], [*seconds], _slope(x, seconds), _slope(x[half:], seconds[half:]))

    def to_dict(self) -> dict[str, Any]:
        """Return what is kept."""
        return asdict(self)


def _slope(x: Sequence[float], y: Sequence[float]) -> float:
    return float(np.polyfit(np.log(x), np.log(y), 1)[0]) if len(x) > 1 else float("nan")


def times_of(jobs: Mapping[str, Job], repeats: int = REPEATS, warm: bool = False) -> dict[str, list[float]]:
    """Run the jobs in turn, `repeats` times after a warm-up unless they are `warm`, and return the seconds of each."""
    for job in () if warm else jobs.values():
        job()
    times: dict[str, list[float]] = {name: [] for name in jobs}
    for _ in range(repeats):
        for name, job in jobs.items():
            start = time.perf_counter()
            job()
            times[name].append(time.perf_counter() - start)
    return times


def medians(jobs: Mapping[str, Job], repeats: int = REPEATS) -> dict[str, float]:
    """Return the median seconds of each job."""
    return {name: statistics.median(seconds) for name, seconds in times_of(jobs, repeats).items()}


def ratio(other: Sequence[float], ours: Sequence[float]) -> float:
    """Return the median, over repeats, of how many times longer the other took."""
    return statistics.median(b / a for a, b in zip(ours, other, strict=True))


def often(job: Job, times: int = 5) -> Job:
    """Run a short job several times in a row: a long one in between would leave it with cold caches."""

    def several() -> None:
        for _ in range(times):
            job()

    return several


def compared(
    what: str,
    ours: Sequence[float],
    other: Sequence[float],
    against: str,
    target: str = "",
    least: float | None = None,
    note: str = "",
) -> Row:
    """Return the row of a comparison; `least` is the ratio that meets the target."""
    found = ratio(other, ours)
    met = None if least is None else found >= least
    return Row(what, statistics.median(ours), statistics.median(other), against, found, target, met, note)


def machine() -> str:
    """Return processor, cores and versions."""
    cpu = platform.processor() or platform.machine()
    for line in Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []:
        if line.startswith("model name"):
            cpu = line.split(":", 1)[1].strip()
            break
    return f"{os.cpu_count()} cores, {cpu}, Python {platform.python_version()}, NumPy {np.__version__}"


def load() -> str:
    """Return how busy the machine was in the last minute: ratios of a busy one deserve a second look."""
    return f"{os.getloadavg()[0]:.1f}" if hasattr(os, "getloadavg") else "unknown"
