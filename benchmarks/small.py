"""Small work: what one calibration takes from the start of its process, without a compiler and with one.

Times are processor time of whole processes, in turn: small work is what busy machines do beside other things.
*Compiled* is the same calibration with every loop compiled from the start, its loops on disk already, as all were
before NumPy took the small ones over. Both must end at the same thresholds.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
from harness import Row, Series, compared, in_own_process

from conformesh import Network, calibrate
from conformesh.kernels import compilation as compiling

SIZES = {"torus": (20, 1000)}  # devices and scores
TRIED = {"torus": ("e-dcp", "h-dcp")}
AGAIN = 3


def calibration(method: str, topology: str, devices: int, scores: int, compiler: bool) -> dict[str, Any]:
    """Calibrate in this process; return the processor time since it was started, and that of later calibrations."""
    if compiler:
        compiling.LOADING = -1.0
    warnings.simplefilter("ignore")
    rng = np.random.default_rng(0)
    network = Network.of(topology, devices)
    held = rng.random((devices, scores // devices))
    result = calibrate(held, network, method=method)
    once, again = time.process_time(), []
    for _ in range(AGAIN):
        start = time.process_time()
        calibrate(held, network, method=method)
        again.append(time.process_time() - start)
    return {"once": once, "again": statistics.median(again), "thresholds": result.thresholds.tolist()}


def _rows(method: str, topology: str, devices: int, scores: int, repeats: int) -> list[Row]:
    plain, loops = [], []
    in_own_process(__file__, [method, topology, devices, scores, True])  # compiles, or finds it on disk
    for _ in range(repeats):
        plain.append(in_own_process(__file__, [method, topology, devices, scores, False]))
        loops.append(in_own_process(__file__, [method, topology, devices, scores, True]))
    if {str(found["thresholds"]) for found in plain + loops} != {str(plain[0]["thresholds"])}:
        raise AssertionError(f"{method} on {topology}: NumPy and compiled loops end at different thresholds")
    what = f"{method}, {topology}, K={devices:,}, n={scores:,}"
    times = {key: ([p[key] for p in plain], [c[key] for c in loops]) for key in ("once", "again")}
    return [
        compared(f"{what}, a process", *times["once"], "compiled", "at least as fast", 1.0),
        compared(f"{what}, again in it", *times["again"], "compiled"),
    ]


def _of_a_process(words: list[str]) -> float:
    """Return the processor time of a command."""
    before = os.times()
    subprocess.run(words, capture_output=True, check=True)
    after = os.times()
    return after.children_user + after.children_system - before.children_user - before.children_system


def _command_line(repeats: int) -> Row:
    """Time `conformesh calibrate` beside the imports that reading a table takes at least."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "scores.csv"
        lines = [f"{k},{s}" for k in range(20) for s in np.random.default_rng(0).random(50)]
        path.write_text("device,score\n" + "\n".join(lines) + "\n")
        command = [sys.executable, "-m", "conformesh", "calibrate", str(path)]
        imports = [sys.executable, "-c", "import numpy, polars"]
        _of_a_process(command), _of_a_process(imports)
        times = [(_of_a_process(command), _of_a_process(imports)) for _ in range(repeats)]
    ours, other = ([pair[i] for pair in times] for i in (0, 1))
    what, target = "`conformesh calibrate`, 20 devices, 1000 scores", "at most twice as long"
    return compared(what, ours, other, '`python -c "import numpy, polars"`', target, 0.5)


def bench(quick: bool = False) -> tuple[list[Row], list[Series]]:
    """One calibration from the start of its process, and the command line."""
    repeats = 1 if quick else 3
    rows = [_command_line(repeats)]
    for topology, (devices, scores) in SIZES.items():
        for method in TRIED[topology]:
            rows += _rows(method, topology, *((20, 1000) if quick else (devices, scores)), repeats)
    return rows, []


if __name__ == "__main__":
    print(json.dumps(calibration(*json.loads(sys.argv[1]))))
