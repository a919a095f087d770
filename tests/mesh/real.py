"""Real meshes on this machine for the tests: folders with scores, processes, conditions with deadlines."""

import itertools
import json
import os
import socket
import subprocess
import sys
import time

import numpy as np

from conformesh.kernels.weighted_scores import WeightedScores
from conformesh.mesh.config.device_toml import read_device
from conformesh.mesh.http.client import Client
from conformesh.peer.journal import whole_records
from conformesh.peer.memory import ENDED, REPORTED
from conformesh.pipeline.solver import solve_draws


def _ports_of_this_worker():
    """Yield ports that no other worker of the tests uses, below those that systems give out, over and over."""
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    first = 20_000 + 1500 * (worker % 8)
    ports = [*range(first, first + 1500)]
    at = 97 * os.getpid() % len(ports)  # another run of the tests on this machine begins elsewhere
    yield from itertools.cycle(ports[at:] + ports[:at])


PORTS = _ports_of_this_worker()


def free_ports(count):
    """Return the first of so many consecutive ports that are free now; the next call looks further on."""
    for _ in range(100):
        ports = list(itertools.islice(PORTS, count))
        sockets = []
        try:
            if ports[-1] - ports[0] != count - 1:
                continue  # around the end
            for port in ports:
                sockets.append(socket.create_server(("127.0.0.1", port)))
            return ports[0]
        except OSError:
            continue
        finally:
            for one in sockets:
                one.close()
    raise RuntimeError("no free ports")


def start(folder, *more, within=()):
    """Start a device that calibrates once, within another command if one is given."""
    command = [*within, sys.executable, "-m", "conformesh", "node", str(folder), "--once", "--json", *more]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def finish(process, timeout=90):
    """Wait for a device: its code, its result and its log."""
    try:
        out, log = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        raise
    return process.returncode, json.loads(out) if out.strip() else None, log


def write_scores(folder, scores):
    """Replace a device's scores in one step, by a file that seems old: no node that starts waits for its writer."""
    draft = folder / "scores.new"
    draft.write_text("score\n" + "".join(f"{x!r}\n" for x in np.asarray(scores, dtype=float).tolist()))
    long_ago(draft)
    draft.replace(folder / "scores.csv")


def long_ago(path):
    """Have a file been written a minute ago."""
    then = time.time() - 60
    os.utime(path, (then, then))


def simulated(folder, held, method="e-dcp", **options):
    """Return the simulator's threshold of every device, on the network of a folder."""
    batch = solve_draws(WeightedScores.of(held), read_device(folder).network, [0.1], method, **options)
    return batch.outcome.thresholds[:, 0, 0].tolist()


def drawn_scores(devices, seed=11, low=3, high=30):
    """Return unequal normal scores."""
    rng = np.random.default_rng(seed)
    return [rng.normal(size=int(rng.integers(low, high))) for _ in range(devices)]


def make_mesh(root, network, method="e-dcp", scores=None, **more):
    """Make a mesh with scores; return its folders and the simulator's thresholds."""
    from conformesh.mesh.config.folders import init_mesh

    held = scores or drawn_scores(network.devices)
    folders = init_mesh(root, network, base_port=free_ports(network.devices), method=method, **more)
    for folder, own in zip(folders, held, strict=True):
        write_scores(folder, own)
    return folders, simulated(folders[0], held, method, **more.get("options", {}))


def round_of(folder):
    """How many rounds a device has heard in this run, from what it has written down."""
    path = folder / "journal.bin"
    records = [*whole_records(path.read_bytes())] if path.exists() else []
    return sum(record not in (ENDED, REPORTED) for record in records[1:])


def missed_for(folder, neighbour):
    """For how many seconds a running device has heard nothing of a neighbour; by its own account."""
    return Client(folder).status()["neighbours"][neighbour]["last_heard_seconds_ago"]


def wait_for(condition, seconds=40):
    """Wait until a condition holds."""
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until, "waited in vain"
        time.sleep(0.01)
