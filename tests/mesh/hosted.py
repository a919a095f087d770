"""A mesh on hosts: a `conformesh node` on each, and a witness who notes every result that one of them ever had."""

import json
import sys
import threading
import time
from contextlib import suppress
from dataclasses import dataclass

from conformesh.mesh.config.folders import init_mesh
from conformesh.mesh.http.client import Client, NodeError
from conformesh.mesh.node.store import NAME as RESULT
from tests.mesh.real import drawn_scores, simulated, write_scores

LOG = "node.log"
LOOK = 0.02  # seconds between two looks at the files of results, which are replaced less often
ASK = 0.5  # and between two questions to each node, which cost it time


@dataclass(frozen=True)
class Seen:
    """A result that a device had: when it was made, in seconds since 1970, in which run, with whom."""

    device: int
    made: float
    run: int
    roster: tuple[str, ...]
    threshold: float


class Hosted:
    """The nodes of a mesh, one on each of these hosts; `options` are those of `init_mesh`, `words` of the command.

    Attributes
    ----------
    seen
        Every result so far, in the order in which it was seen; from files and from what nodes say of themselves.
    """

    def __init__(self, hosts, root, network, *, scores=None, words=(), **options):
        self.hosts, self.words, self.network = hosts, words, network
        self.scores = scores or drawn_scores(network.devices)
        where = root / "hosts.txt"
        where.write_text("".join(f"{k} {address}\n" for k, address in zip(network.ids, hosts.addresses, strict=False)))
        self.folders = init_mesh(root / "mesh", network, hosts=where, **options)
        for folder, own in zip(self.folders, self.scores, strict=True):
            write_scores(folder, own)
        self.nodes, self.seen, self._known = {}, [], set()
        self._over = threading.Event()
        self._witnesses = [threading.Thread(target=self._keep, args=pair) for pair in ((self._read, LOOK), (self._ask, ASK))]

    def __enter__(self):
        for witness in self._witnesses:
            witness.start()
        return self

    def __exit__(self, *error):
        self._over.set()
        for witness in self._witnesses:
            witness.join()
        for k in [*self.nodes]:
            self.kill(k)

    def expected(self, method="e-dcp", **options):
        """Return the simulator's threshold on all of these scores."""
        (threshold,) = {*simulated(self.folders[0], self.scores, method, **options)}
        return threshold

    def start(self, *chosen):
        """Start the nodes of these devices, all by default; return the moment."""
        began = time.time()
        for k in chosen or range(self.network.devices):
            with (self.folders[k] / LOG).open("ab") as log:
                command = [sys.executable, "-m", "conformesh", "node", str(self.folders[k]), *self.words]
                self.nodes[k] = self.hosts.start(k, command, stdout=log, stderr=log)
        return began

    def kill(self, k):
        """End a node with no time to say anything."""
        process = self.nodes.pop(k)
        process.kill()
        process.wait()

    def since(self, moment):
        """Return the latest result that each device made after a moment, by device."""
        return {one.device: one for one in sorted(self.seen, key=lambda one: one.made) if one.made > moment}

    def wait(self, condition, seconds):
        """Wait until a condition holds; return whether it did, in that time."""
        until = time.monotonic() + seconds
        while not condition():
            if time.monotonic() > until:
                return False
            time.sleep(LOOK)
        return True

    def twice(self):
        """Return what must not be: the numbers of runs with more than one threshold."""
        found = {}
        for one in self.seen:
            found.setdefault(one.run, set()).add(one.threshold)
        return {run: thresholds for run, thresholds in found.items() if len(thresholds) > 1}

    def logs(self, lines=8):
        """Return the last words of every node, for who wants to know why."""
        texts = [(folder.name, folder / LOG) for folder in self.folders]
        last = [(name, path.read_text().splitlines()[-lines:]) for name, path in texts if path.exists()]
        return "\n".join(f"{name}: {line}" for name, said in last for line in said)

    # --- the witness --------------------------------------------------------------------------------------------------

    def _keep(self, look, pause):
        while not self._over.wait(pause):
            for k in range(self.network.devices):
                look(k)

    def _read(self, k):
        with suppress(FileNotFoundError):
            path = self.folders[k] / RESULT
            state = path.stat()
            if (k, state.st_ino, state.st_mtime_ns) in self._known:
                return
            file = json.loads(path.read_bytes())
            self._known.add((k, state.st_ino, state.st_mtime_ns))
            (threshold,) = {*file["calibration"]["thresholds"]}
            self.seen.append(Seen(k, file["made"], file["run"], tuple(file["roster"]), float(threshold)))

    def _ask(self, k):
        with suppress(NodeError):
            status = Client(self.folders[k], timeout=2.0).status()
            made = status["certified"]
            if made is not None and (k, made["run"], made["threshold"]) not in self._known:
                self._known.add((k, made["run"], made["threshold"]))
                self.seen.append(Seen(k, made["made_seconds"], made["run"], (), float(made["threshold"])))
