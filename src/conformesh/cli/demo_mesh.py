"""``conformesh demo --mesh``: a real mesh from nothing, on this machine, beside what the simulator finds."""

from __future__ import annotations

import json
import random
import shutil
import socket
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module
from pathlib import Path

import click
import numpy as np
from numpy.typing import NDArray

from conformesh.api import calibrate
from conformesh.cli.mesh_up import print_agreement, start_devices, wait_for_devices
from conformesh.files.atomic_writes import PRIVATE
from conformesh.files.table_writers import write_scores
from conformesh.graph.network import Network
from conformesh.kernels.ranks import exact_alpha
from conformesh.mesh.config.device_toml import read_device
from conformesh.mesh.config.endpoints import HIGHEST_PORT, LOCALHOST
from conformesh.mesh.config.folders import init_mesh
from conformesh.mesh.processes import DeviceProcess

_METHOD = "e-dcp"
_LOWEST_PORT = 20000  # first port that is tried; the last one is `HIGHEST_PORT`


def require_mesh_extra() -> None:
    """Say at once, and how to mend it, if what a mesh needs is not installed."""
    for module in ("zenoh", "cryptography"):
        try:
            import_module(module)
        except ImportError:
            raise ValueError(f"demo --mesh needs {module}: pip install 'conformesh[mesh]'") from None


def run_demo_mesh(
    out: Path,
    network: Network,
    scores: Sequence[NDArray[np.float64]],
    alpha: str,
    score: str,
    *,
    keep: bool = False,
    as_json: bool = False,
) -> None:
    """Run one process per device in a new folder inside `out`, and compare with the simulator.

    The folder is deleted at the end, whatever happens, with the private keys in it; `keep` keeps it. Ends with 1 if a
    device has failed or a threshold differs.
    """
    new = not out.exists()
    out.mkdir(parents=True, exist_ok=True)
    root = Path(tempfile.mkdtemp(prefix="mesh-", dir=out))
    try:
        folders = init_mesh(
            root, network, base_port=find_free_ports(network.devices), method=_METHOD, alpha=alpha, score=score, days=1
        )
        for folder, own in zip(folders, scores, strict=True):
            write_scores(read_device(folder).path("scores"), [folder.name] * len(own), own, mode=PRIVATE)
        if not as_json:
            print(
                f"{network.devices} devices hold {sum(map(len, scores)):,} scores of handwritten digits, each its own. "
                f"Each is a process\nwith a certificate; they talk over encrypted links along a {network.name}, and "
                "to nobody else.\n"
            )
        started = time.perf_counter()
        watched = start_devices(folders, http=f"{LOCALHOST}:0")  # a socket's path may be too long
        wait_for_devices(watched)
        seconds = time.perf_counter() - started
    finally:
        if not keep:
            shutil.rmtree(root)
            if new:
                with suppress(OSError):
                    out.rmdir()
    simulated = calibrate(scores, network, exact_alpha(alpha), _METHOD)
    same = [_same(one, float(value)) for one, value in zip(watched, simulated.thresholds, strict=True)]
    if as_json:
        results = [one.result or {"device": one.name, "error": one.error} for one in watched]
        facts = {"simulated": simulated.to_dict(), "equal": all(same), "folder": str(root) if keep else None}
        print(json.dumps({**facts, "results": results}))
    else:
        print_agreement(watched, seconds)
        how = "bit for bit" if all(same) else f"on {sum(same)} of {len(same)} devices only"
        print(f"\nThe simulator, which sees all scores at once, finds {simulated.threshold!r}: the same {how}.")
        print(f"kept: {root}, with private keys" if keep else "The mesh's folder and its private keys are deleted.")
    if not all(same):
        click.get_current_context().exit(1)


def _same(one: DeviceProcess, value: float) -> bool:
    return one.result is not None and one.calibration.threshold.hex() == value.hex()


def find_free_ports(count: int) -> int:
    """Return the first of so many consecutive ports that nobody on this machine listens on now."""
    starts = [*range(_LOWEST_PORT, HIGHEST_PORT - count, count)]
    random.shuffle(starts)  # two demos at a time should not look in the same place
    for first in starts:
        if all(map(_is_free, range(first, first + count))):
            return int(first)
    raise ValueError(f"no {count} consecutive ports are free between {_LOWEST_PORT} and {HIGHEST_PORT}")


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind((LOCALHOST, port))
        except OSError:
            return False
    return True
