"""Memory of a large run, and the time a warm command line takes to answer."""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
from harness import PEAK, Row, Series, times_of

MEMORY = (
    PEAK
    + """
import sys, numpy as np
from conformesh import Network, Samples, calibrate_batch
K = int(sys.argv[1])
network = Network.of("random-regular", K, seed=0)
samples = Samples.from_flat(np.random.default_rng(0).random(10 * K), np.full(K, 10))
batch = calibrate_batch(samples, network, [0.1], "h-dcp", bins=100)
assert batch.outcome.certificates[0][0].kind == "counted"
print(peak())
"""
)


def bench(quick: bool = False) -> tuple[list[Row], list[Series]]:
    """Memory of H-DCP with 100,000 devices, and `conformesh calibrate` from the shell and back."""
    K = 1000 if quick else 100_000
    out = subprocess.run([sys.executable, "-c", MEMORY, str(K)], capture_output=True, text=True, check=True).stdout
    gigabytes = float(out)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "scores.csv"
        rng = np.random.default_rng(0)
        lines = [f"{k},{s}" for k in range(20) for s in rng.random(50)]
        path.write_text("device,score\n" + "\n".join(lines) + "\n")
        command = [sys.executable, "-m", "conformesh.cli", "calibrate", str(path), "--json"]
        seconds = times_of({"": lambda: subprocess.run(command, capture_output=True, check=True)}, 1 if quick else 5)[
            ""
        ]
    answer = statistics.median(seconds)
    memory = Row(
        f"H-DCP to the exact count, K={K:,}, M=100",
        against="the whole process at its peak",
        target="under 1 GB",
        met=gigabytes < 1,
        note=f"{gigabytes:.2f} GB",
    )
    warm = Row(
        "`conformesh calibrate`, warm cache", answer, None, "from the shell and back", None, "within 2 s", answer <= 2
    )
    return [memory, warm], []
