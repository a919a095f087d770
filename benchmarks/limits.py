"""The largest runs, each in a process of its own, and the time a warm command line takes to answer.

Time is from flat scores to thresholds: sorting is in it, building the network and drawing the scores are not. Memory is
the peak of the whole process. What E-DCP finds is compared with the pooled order statistic on every device.

Q-DCP's own averaging asks for as many rounds as the spectral gap makes necessary, hundreds of thousands on a torus or a
geometric graph of 100,000 devices: there it is given `averaging`. A random regular graph needs none of that.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from harness import Row, Series, in_own_process, peak_gigabytes, times_of
from networks import SHUFFLED, network_of

from conformesh.engines.ordering import breadth_first_order
from conformesh.kernels.weighted_scores import WeightedScores
from conformesh.pipeline.solver import solve_draws

WARM = 5000  # devices; enough for the loops and the eigenvalues of large networks


@dataclass(frozen=True)
class Limit:
    """A calibration, and the seconds and gigabytes it must stay under; None where nothing was promised."""

    method: str
    topology: str
    devices: int
    seconds: float | None
    gigabytes: float | None = None
    scores: int = 50
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def target(self) -> str:
        """Return the promise in words."""
        parts = [
            f"{limit} {unit}" for limit, unit in ((self.seconds, "s"), (self.gigabytes, "GB")) if limit is not None
        ]
        return "under " + " and ".join(parts)


T50, T200 = {"rounds": 50, "bins": 100}, {"rounds": 200}
LIMITS = {
    "million, torus": Limit("e-dcp", "torus", 1_000_000, 60, 4),
    "million, geometric": Limit("e-dcp", "geometric", 1_000_000, 60, 4),
    "million, shuffled": Limit("e-dcp", SHUFFLED, 1_000_000, 60, 4),
    "e-dcp": Limit("e-dcp", "geometric", 100_000, 60, 2, scores=10),
    "h-dcp, torus": Limit("h-dcp", "torus", 100_000, 20, options=T50),
    "h-dcp, geometric": Limit("h-dcp", "geometric", 100_000, 20, options=T50),
    "h-dcp to the exact count": Limit("h-dcp", "random-regular", 100_000, None, 1, scores=10, options={"bins": 100}),
    "q-dcp, torus": Limit("q-dcp", "torus", 100_000, 30, options={**T200, "averaging": 200}),
    "q-dcp, geometric": Limit("q-dcp", "geometric", 100_000, 30, options={**T200, "averaging": 200}),
    "q-dcp, random-regular": Limit("q-dcp", "random-regular", 100_000, 30, options=T200),
}


def calibration(method: str, topology: str, devices: int, scores: int, options: dict[str, Any]) -> dict[str, Any]:
    """Calibrate once in this process, and return what it took."""
    rng = np.random.default_rng(0)
    small = network_of(topology, min(devices, WARM))  # compile, or load what was compiled
    breadth_first_order(small)  # only large networks ask for it
    samples = WeightedScores.from_flat(rng.normal(size=10 * small.devices), np.full(small.devices, 10))
    solve_draws(samples, small, [0.1], method, **options)
    start = time.perf_counter()
    network = network_of(topology, devices)
    built = time.perf_counter() - start
    values = rng.normal(size=scores * network.devices)
    start, busy = time.perf_counter(), time.process_time()
    samples = WeightedScores.from_flat(values, np.full(network.devices, scores))
    batch = solve_draws(samples, network, [0.1], method, **options)
    seconds, busy = time.perf_counter() - start, time.process_time() - busy
    found = {"seconds": seconds, "processor seconds": busy, "built": built, "peak GB": peak_gigabytes()}
    certificate = batch.outcome.certificates[0][0]
    if method == "e-dcp":
        rank = certificate.required_rank
        assert isinstance(rank, int)
        values.partition(rank - 1)
        if not (batch.outcome.thresholds == values[rank - 1]).all():
            raise AssertionError(f"E-DCP does not end at the pooled order statistic of rank {rank}")
    return {**found, "rounds": batch.cost.rounds, "certificate": certificate.kind}


def measured(limit: Limit) -> dict[str, Any]:
    """Return what a calibration took in a process of its own."""
    call = [limit.method, limit.topology, limit.devices, limit.scores, limit.options]
    found: dict[str, Any] = in_own_process(__file__, call)
    return found


def _row(limit: Limit) -> Row:
    found = measured(limit)
    options = "".join(f", {name}={value}" for name, value in limit.options.items())
    low = all(
        most is None or found[name] < most for name, most in (("seconds", limit.seconds), ("peak GB", limit.gigabytes))
    )
    note = f"{found['peak GB']:.2f} GB at its peak, {found['rounds']:,} rounds, {found['certificate']}"
    return Row(
        f"{limit.method.upper()}, {limit.topology}, K={limit.devices:,}, {limit.scores} scores each{options}",
        ours=found["seconds"],
        against="equal to the pooled sort" if limit.method == "e-dcp" else "",
        target=limit.target,
        met=low,
        note=f"{note}; network built in {found['built']:.2g} s",
    )


def _command_line(repeats: int) -> Row:
    """Time `conformesh calibrate` from the shell and back."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "scores.csv"
        rng = np.random.default_rng(0)
        lines = [f"{k},{s}" for k in range(20) for s in rng.random(50)]
        path.write_text("device,score\n" + "\n".join(lines) + "\n")
        command = [sys.executable, "-m", "conformesh.cli", "calibrate", str(path), "--json"]
        times = times_of({"": lambda: subprocess.run(command, capture_output=True, check=True)}, repeats)[""]
    answer = statistics.median(times)
    what, against = "`conformesh calibrate`, warm cache", "from the shell and back"
    return Row(what, ours=answer, against=against, target="within 2 s", met=answer <= 2)


def bench(quick: bool = False) -> tuple[list[Row], list[Series]]:
    """A million devices with E-DCP, 100,000 with the paper's methods, and the command line."""
    limits = [replace(limit, devices=1024) if quick else limit for limit in LIMITS.values()]
    return [*map(_row, limits), _command_line(1 if quick else 5)], []


if __name__ == "__main__":
    print(json.dumps(calibration(*json.loads(sys.argv[1]))))
