"""How everything here is timed: jobs in turn after a warm-up, so that a noisy minute hits all of them alike.

What counts is the ratio within one run. It is the median over the repeats of (other's time / our time) in the same
repeat, which a change of the machine's load between repeats does not touch.
"""

from __future__ import annotations

import json
import os
import platform
import resource
import statistics
import subprocess
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
SPAN, MANY = 0.2, 200  # seconds that a job should last with its loops, and the most loops
PATIENCE = 900  # seconds after which a process of its own is given up
LONG = 5.0  # seconds from which a job is not repeated five times


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


def times_of(jobs: Mapping[str, Job], repeats: int = REPEATS) -> dict[str, list[float]]:
    """Run the jobs in turn, `repeats` times after a warm-up, and return the seconds of each.

    Short jobs run several times in a row, so that each lasts about as long as the longest or as `SPAN`: a busy machine
    interrupts long jobs and spares short ones, which would flatter whoever is faster.
    """
    first = {}
    for name, job in jobs.items():
        job()
        start = time.perf_counter()
        job()
        first[name] = time.perf_counter() - start
    span = min(SPAN, max(first.values()))
    loops = {name: max(1, min(MANY, round(span / seconds))) for name, seconds in first.items()}
    times: dict[str, list[float]] = {name: [] for name in jobs}
    for _ in range(repeats):
        for name, job in jobs.items():
            start = time.perf_counter()
            for _ in range(loops[name]):
                job()
            times[name].append((time.perf_counter() - start) / loops[name])
    return times


def processor_seconds(job: Job, repeats: int = REPEATS) -> float:
    """Return the median processor time of a job after a warm-up; long ones run once more only, short ones often."""
    start = time.process_time()
    job()
    first = time.process_time() - start
    found = []
    for _ in range(repeats if first < LONG else 1):
        loops, start = max(1, min(MANY, round(0.02 / max(first, 1e-6)))), time.process_time()
        for _ in range(loops):
            job()
        found.append((time.process_time() - start) / loops)
    return statistics.median(found)


def ratio(other: Sequence[float], ours: Sequence[float]) -> float:
    """Return the median, over repeats, of how many times longer the other took."""
    return statistics.median(b / a for a, b in zip(ours, other, strict=True))


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


def in_own_process(script: str, call: Sequence[Any], before: Sequence[str] = ()) -> Any:
    """Run a script with `call` as its argument, and return what it prints last; `before` is a launcher with options."""
    words = [*before, sys.executable, script, json.dumps(call)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=PATIENCE, check=False)
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no word why"])[-1]
        raise RuntimeError(f"{' '.join([*before, Path(script).name])} {call} ended with {done.returncode}: {last}")
    return json.loads(done.stdout.splitlines()[-1])


def peak_gigabytes() -> float:
    """Return the most memory that this process has held; `getrusage` would count in that of who started it."""
    status = Path("/proc/self/status")
    if status.exists():
        return int(status.read_text().split("VmHWM:")[1].split()[0]) / 1e6
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1e9 if sys.platform == "darwin" else 1e6)


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
