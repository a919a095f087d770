"""A mesh on hosts: a `conformesh node` on each, and a witness who notes every result that one of them ever had."""

import json
import sys
import threading
import time
from contextlib import ExitStack, suppress
from dataclasses import dataclass

from conformesh.mesh.config.folders import init_mesh
from conformesh.mesh.http.address import SOCKET_NAME
from conformesh.mesh.http.client import Client, NodeError
from conformesh.mesh.node.result_store import RESULT_FILE as RESULT
from tests.mesh.real import drawn_scores, simulated, write_scores

LOG = "node.log"
LOOK = 0.02  # seconds between two looks at the files of results, which are replaced less often
ASK = 0.5  # and between two questions to each node, which cost it time


@dataclass(frozen=True)
class Seen:
    """A final result that a device had: when it was made, in seconds since 1970, in which run, with whom."""

    device: int
    made: float
    number: int
    run: int
    roster: tuple[str, ...]
    threshold: float


class Hosted:
    """The nodes of a mesh, one on each of these hosts; `options` are those of `init_mesh`.

    Attributes
    ----------
    seen
        Every result so far, in the order in which it was seen, from the files of the devices, which keep only
        final ones.
    told
        Numbers of rosters and runs with thresholds that nodes have told as final.
    up
        When each node could first be asked, by device.
    """

    def __init__(self, root, network, hosts, *, scores=None, **options):
        self.root, self.network, self.hosts = root / "mesh", network, hosts
        self.scores = scores or drawn_scores(network.devices)
        where = root / "hosts.txt"
        where.write_text("".join(f"{k} {address}\n" for k, address in zip(network.ids, hosts.addresses, strict=False)))
        self.folders = init_mesh(self.root, network, hosts=where, **options)
        for folder, own in zip(self.folders, self.scores, strict=True):
            write_scores(folder, own)
        self.nodes, self.seen, self.told, self.up, self._known = {}, [], set(), {}, set()

    def __enter__(self):
        with ExitStack() as stack:
            stack.enter_context(self.hosts)
            over = threading.Event()
            for look, pause in ((self._read, LOOK), (self._ask, ASK)):
                witness = threading.Thread(target=self._keep, args=(over, look, pause))
                stack.callback(witness.join)
                witness.start()
            stack.callback(over.set)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *error):
        return self._stack.__exit__(*error)

    # --- what happens ------------------------------------------------------------------------------------------------

    def start(self, *chosen):
        """Start the nodes of these devices, all by default; return the moment."""
        began = self.now()
        for k in chosen or range(len(self.folders)):
            with (self.folders[k] / LOG).open("ab") as log:
                command = [sys.executable, "-m", "conformesh", "node", str(self.folders[k])]
                self.nodes[k] = self.hosts.start(k, command, stdout=log, stderr=log)
        return began

    def kill(self, k):
        """End a node with no time to say anything."""
        process = self.nodes.pop(k)
        process.kill()
        process.wait()

    @staticmethod
    def now():
        """Return the moment, on the clock that results are dated by."""
        return time.time()

    def wait(self, condition, seconds, what):
        """Wait until a condition holds, and return for how long; else fail with the last words of every node."""
        began = time.monotonic()
        while not condition():
            assert time.monotonic() < began + seconds, f"not within {seconds:g} s: {what}\n{self.logs()}"
            time.sleep(LOOK)
        return time.monotonic() - began

    # --- what was seen -----------------------------------------------------------------------------------------------

    def expected(self):
        """Return the simulator's threshold on the scores of all."""
        (threshold,) = {*simulated(self.folders[0], self.scores)}
        return threshold

    def since(self, moment):
        """Return the latest result that each device made after a moment, by device."""
        return {one.device: one for one in sorted(self.seen, key=lambda one: one.made) if one.made > moment}

    def agreed(self, moment, devices):
        """Whether these devices, and no others, have one result since a moment, which is about them."""
        latest, names = self.since(moment), {self.folders[k].name for k in devices}
        results = {(latest[k].run, latest[k].threshold) for k in devices if k in latest}
        return len(results) == 1 and all(k in latest and {*latest[k].roster} == names for k in devices)

    def hears(self, k, other):
        """Whether a node has heard something of another in the last second."""
        said = Client(self.folders[k]).status()["neighbours"][self.folders[other].name]["last_heard_seconds_ago"]
        return said is not None and said < 1.0

    def gathered(self, k):
        """Return the run of a node without rounds, and how many devices it has heard in it."""
        status = Client(self.folders[k]).status()
        return status["run"], len(status["gathering"]["reported"])

    def twice(self):
        """Return what must not be: the numbers of rosters and runs with more than one final threshold."""
        found = {}
        for number, run, threshold in {*self.told, *((one.number, one.run, one.threshold) for one in self.seen)}:
            found.setdefault((number, run), set()).add(threshold)
        return {run: thresholds for run, thresholds in found.items() if len(thresholds) > 1}

    def times(self, began):
        """Return the seconds until all nodes could be asked, and from then until the last one had its result."""
        up = max(self.up.values())
        return up - began, max(one.made for one in self.since(began).values()) - up

    def logs(self, lines=8):
        """Return the last words of every node, for who wants to know why."""
        texts = [(folder.name, folder / LOG) for folder in self.folders]
        last = [(name, path.read_text().splitlines()[-lines:]) for name, path in texts if path.exists()]
        return "\n".join(f"{name}: {line}" for name, said in last for line in said)

    # --- the witness --------------------------------------------------------------------------------------------------

    def _keep(self, over, look, pause):
        while not over.wait(pause):
            for k, folder in enumerate([*self.folders]):
                look(k, folder)

    def _read(self, k, folder):
        """Look at a device's file of the last result, which is replaced whole, and whether its node can be asked."""
        if k not in self.up and (folder / SOCKET_NAME).exists():
            self.up[k] = self.now()
        with suppress(FileNotFoundError):
            path = folder / RESULT
            state = path.stat()
            if (folder, state.st_ino, state.st_mtime_ns) in self._known:
                return
            file = json.loads(path.read_bytes())
            self._known.add((folder, state.st_ino, state.st_mtime_ns))
            (threshold,) = {*file["calibration"]["answers"][0]["thresholds"]}
            number, run, roster = file["roster_number"], file["run"], tuple(file["roster"])
            self.seen.append(Seen(k, file["made"], number, run, roster, float(threshold)))

    def _ask(self, k, folder):
        """Ask a node what it serves."""
        with suppress(NodeError):
            made = Client(folder, timeout=2.0).status()["certified"]
            if made is not None and made["final"]:
                self.told.add((made["roster_number"], made["run"], float(made["threshold"])))
