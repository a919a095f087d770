"""Observable events: nothing that others see of a private device depends on its scores, but through the totals.

One test for each line of the table of events in docs/privacy.md. Each plays twin runs (`twins`): the same mesh and the
same randomness, totals made equal by the noise, and in one of the runs the node under test has other scores, or a file
that is broken, missing or large, at its start or later. The tests have no false alarms: runs are deterministic. Planted
leaks show what they notice.
"""

import json
import subprocess
import sys
import time
from contextlib import ExitStack
from functools import partial
from unittest import mock

import numpy as np
import pytest
from msgspec import structs

pytest.importorskip("cryptography", reason="certificates need the extra mesh")

from msgspec import to_builtins

from conformesh import Network
from conformesh.kernels.weighted_scores import WeightedScores
from conformesh.mesh.http.client import Client
from conformesh.mesh.node import file_watch as watching
from conformesh.mesh.node import node as node_module
from conformesh.mesh.node import node_files, run_driver
from conformesh.mesh.node.node import Node
from conformesh.mesh.node.node_files import NodeFiles
from conformesh.mesh.node.state import NodeState
from conformesh.peer.device import Device
from conformesh.peer.links import Links
from conformesh.peer.loopback import LinkFaults, Pause
from conformesh.peer.membership import Membership
from conformesh.pipeline.solver import solve_draws
from conformesh.privacy import histogram
from conformesh.privacy.account import ACCOUNT_FILE, Account, PrivacyRefused, read_account
from conformesh.protocols import p_dcp
from tests.engines.mpi import start
from tests.mesh.meshes import config
from tests.mesh.nodes import short_folder
from tests.mesh.real import free_ports, long_ago, make_mesh, wait_for
from tests.privacy.attempts import Mesh
from tests.privacy.neighbouring import NEIGHBOURING, OPTIONS, drawn_scores
from tests.privacy.twins import NAME, OWN, START, Hall, answers_of, copied, csv_of, new_mesh

SCORES = np.random.default_rng(0).random(30)
GOOD = csv_of(SCORES)
ROWS = b"".join(b"%r,%d\n" % (score, 1 + at % 3) for at, score in enumerate(SCORES.tolist()))
FILES = {  # what the score file of the node may hold
    "one score more": csv_of([*SCORES, 0.5]),
    "one score less": csv_of(SCORES[:-1]),
    "other values": csv_of(SCORES / 2),
    "beyond the grid": csv_of([np.inf, -np.inf, 1e300] * 9),
    "a NaN": GOOD + b"nan\n",
    "a row that is no number": GOOD + b"abc;\xff\n",
    "a heading alone": b"score\n",
    "no file": None,
    "no bytes": b"",
    "no heading": b"\x00\x01\xff\xfe garbage",
    "another heading": b"a,b\n1,2\n",
    "epochs": b"score,epoch\n" + ROWS,
    "epochs that are none": b"score,epoch\n0.1,x\n0.2,-1\n0.3,1e400\n0.4,\n",
    "scores of another device": b"device,score\ndevice-01,0.5\nnobody,0.1\n",
    "many scores": csv_of(np.random.default_rng(1).random(20_000)),
}
BROKEN = (
    "a NaN",
    "a row that is no number",
    "no file",
    "no bytes",
    "no heading",
    "another heading",
    "epochs that are none",
)
CHANGE, CLOSE, ASK = 3.0, 7.0, 15.0  # seconds: when a file is replaced, an epoch closes, an operator asks in vain
LIMIT = 18.0


@pytest.fixture(scope="module")
def played(tmp_path_factory):
    """Return a function that plays a hall: the mesh is made once, and each run has a copy of it in the same place."""
    root = tmp_path_factory.mktemp("twins")
    made = {}

    def play(data=GOOD, change=GOOD, mesh=(), faults=None, script=(), leak=None, limit=LIMIT):
        if mesh not in made:
            made[mesh] = new_mesh(root / f"template-{len(made)}", **dict(mesh))
        steps = [(CHANGE, lambda hall: hall.put(change))] if change is not GOOD else []
        hall = Hall(copied(made[mesh], root / "mesh"), data, [*steps, *script], faults, limit)
        seen = hall.play(leak)
        seen.hall = hall
        return seen

    return play


def closing(hall):
    """An epoch closes on all devices, and runs begin."""
    hall.declare(2)


def asking(hall):
    """The operator of another device asks for a run that all accounts refuse."""
    hall.ask(OWN - 1)


SCRIPT = ((CLOSE, closing), (ASK, asking))


@pytest.fixture(scope="module")
def twins(played):
    """Return (name, what is seen with good scores, what is seen with this file at the start and another one later)."""
    good = played(script=SCRIPT)
    later = dict(zip(FILES, [*FILES.values()][3:] + [*FILES.values()][:3], strict=True))  # another than at the start
    return [(name, good, played(data, later[name], script=SCRIPT)) for name, data in FILES.items()]


def same(twins, *parts):
    """Assert that these parts of what others see are the same in all twins."""
    for name, one, other in twins:
        found = one.differences(other)
        assert not {part: found[part] for part in parts if part in found}, name


def sent_by(seen, row=OWN, kinds=("hello", "data", "ready", "finished", "failed")):
    """Return the frames that a device sends, without their receivers."""
    return [(at, kind, size) for at, sender, _, kind, size in seen.frames if sender == row and kind in kinds]


# --- the lines of the table -------------------------------------------------------------------------------------------


def test_who_starts_a_run_and_when(twins):
    """A public schedule or an operator; a changed file starts nothing."""
    for name, one, other in twins:
        greetings = [[entry for entry in seen.frames if entry[3] == "hello"] for seen in (one, other)]
        assert greetings[0] == greetings[1], name
        between = [at for at, _, _ in sent_by(other) if START + CHANGE <= at < START + CLOSE]
        assert not between, name  # the new file is read in this time, and nobody hears of it
        assert other.hall.node.files.scores.scores is None or len(other.operator), name
    _, good, _ = twins[0]
    runs = [json.loads(body)["run"] for _, sender, _, body in good.words if sender == OWN and b"agreement" in body]
    assert {1, 2} <= {*runs}  # and when the epoch closes there is another run
    assert min(at for at, _, _ in sent_by(good) if at > START + CHANGE) >= START + CLOSE


def test_rounds_stages_frame_sizes(twins):
    """Constant: the same kinds of frames of the same sizes in the same order."""
    for name, one, other in twins:
        sizes = [[entry[1:] for entry in seen.frames] for seen in (one, other)]
        assert sizes[0] == sizes[1], name
    assert len({size for _, kind, size in sent_by(twins[0][1]) if kind == "data"}) >= 4  # keys, tree, masked, digest


def test_send_times(twins):
    """After all local counting; compilation does not depend on the number of scores."""
    same(twins, "frames", "pulses", "prepared")


def test_retries_and_loss(played):
    """Timers only: with lost and repeated frames, and with a device that is lost, the trace is the same."""
    mesh = (("on_lost", "continue"),)
    for faults in (
        LinkFaults(loss=0.15, duplication=0.3, delay=(0.001, 0.05)),
        LinkFaults(pauses=(Pause(4, 0.01, 99, crash=True),)),
    ):
        one, other = (played(data, mesh=mesh, faults=faults) for data in (GOOD, FILES["no file"]))
        assert one.differences(other) == {}
        node = one.hall.node.state
        assert node.certified is not None
        assert node.certified.lost == (("device-04",) if faults.pauses else ())
        assert to_builtins(node.status())["sent"]["resent_frames"] > 0


def test_refusals(twins, played, monkeypatch):
    """Theorem B only: no floor, no cap, no overflow. What is refused is refused to all, at the same moment."""
    same(twins, "frames", "words", "traces")
    good = twins[0][1]
    refused = [at for at, _, _ in sent_by(good, kinds=("failed",))]
    assert refused
    assert min(refused) > START + ASK
    monkeypatch.setattr(histogram, "LARGEST_ROW_SUM", 40)  # 8 scores a device: all but the empty ones have more
    for name in ("a heading alone", "many scores"):
        assert played(script=SCRIPT).differences(played(FILES[name], script=SCRIPT)) == {}, name


def test_nan_unreadable_or_missing_file(twins):
    """Take part with +infinity or zero counts; only the operator is told."""
    for name, one, other in twins:
        if name not in BROKEN:
            continue
        assert one.differences(other) == {}, name
        troubles = [answer["troubles"] for answer in answers_of(other, "/status", "operator")]
        assert any("scores" in trouble for trouble in troubles), name
        assert not any("scores" in answer["troubles"] for answer in answers_of(other, "/status")), name
        assert answers_of(other, "/health")[-1]["healthy"], name


def test_failure_messages(played):
    """One code for all data causes: whatever goes wrong while scores are counted, neighbours hear the same."""

    def failing(problem):
        count = p_dcp._local_counts

        def counts(plan, block, samples, secrets):
            if block.rows[0] == OWN:
                raise problem
            return count(plan, block, samples, secrets)

        with mock.patch.object(p_dcp, "_local_counts", counts):
            return played(limit=4.0)

    causes = [ValueError("17 scores are above 0.9"), MemoryError(), OSError(5, "Input/output error", "scores.csv")]
    first, *others = [failing(cause) for cause in causes]
    said = [json.loads(body)["why"] for _, sender, _, body in first.words if sender == OWN and b'"why"' in body]
    assert {*said} == {f"{NAME} could not go on, for a reason that only its operator is told"}
    for other in others:
        assert first.differences(other) == {}


def test_greeting_and_agreement(twins):
    """No digest of scores, no size, no grid from data."""
    same(twins, "words")
    for name, _, other in twins:
        scores = other.hall.node.files.scores.known
        for _, sender, _, body in other.words:
            if sender == OWN and b"agreement" in body:
                agreed = json.loads(body)["agreement"]
                assert not len(scores) or scores.digest not in body.decode(), name
                assert {key for key in agreed if "size" in key or "digest" in key} == set()


def test_health_metrics_logs_and_http(twins):
    """Data-derived fields on the owner's socket only: at a port, in heartbeats and in telemetry there are none."""
    same(twins, "shown", "pulses", "traces")
    shown = {path for _, path, status, _ in twins[0][1].shown if status == 200}
    assert shown == {"/status", "/mesh", "/metrics", "/health", "/threshold", "/certificate", "/calibration"}
    owned = [b for name, _, other in twins if name in BROKEN for _, path, _, b in other.operator if path == "/status"]
    assert any(b"scores.csv" in body for body in owned)  # which the operator does see


def test_result_file_and_view(twins):
    """Totals, threshold, roster, epsilon; the view shows what a port shows."""
    same(twins, "kept", "shown")
    kept = json.loads(twins[0][1].kept["result.json"])
    assert kept["roster"] == [f"device-{k:02}" for k in range(5)]
    calibration = kept["calibration"]
    assert calibration["answers"][0]["certificate"]["noise"]["epsilon"] == 1.0
    assert len(calibration["options"]["release"]["totals"]) == 8
    assert calibration["answers"][0]["examples"] == 0  # it knows no number of scores


def test_journal_size_times_of_files_and_account(twins):
    """The same writes for every data set, in the same order, also by a device without scores."""
    same(twins, "writes", "files", "kept")
    written = {name for _, name, _ in twins[0][1].writes}
    assert {"privacy.json/renamed", "journal.bin/appended", "result.json/renamed"} <= written
    account = json.loads(twins[0][1].kept["privacy.json"])
    assert [record["releases"] for record in account["epochs"]] == [1, 1]


def test_drift_alarm_online_and_automatic_recalibration_are_off(twins):
    for changes in ({"online": {"learning": 0.05, "local": 0.02, "bound": 1.0}}, {"mode": "asynchronous"}):
        with pytest.raises(ValueError, match="p-dcp"):
            config(method="p-dcp", options={"epsilon": 1.0}, **changes)
    _, good, _ = twins[0]
    assert good.hall.node.online is None
    assert "alarm" not in answers_of(good, "/status", "operator")[-1]


# --- other engines ----------------------------------------------------------------------------------------------------


def messages(scores, network):
    """Return kind, speakers, type and size of every message of a simulated run."""
    seen = []

    def observe(round_, message, answer):
        packets = getattr(message, "packets", None)
        size = message.values.shape if packets is None else tuple(np.diff(packets.offsets).tolist())
        speakers = getattr(message, "speakers", None)
        who = None if speakers is None else tuple(np.flatnonzero(np.asarray(speakers)).tolist())
        seen.append((round_, type(message).__name__, who, str(message.values.dtype), size))

    found = solve_draws(WeightedScores.of(scores), network, [0.1], "p-dcp", observer=observe, **OPTIONS)
    return seen, found.cost.rounds, found.cost.bits.tolist(), found.cost.numbers.tolist()


@pytest.mark.parametrize("network", [Network.torus(5, 4), Network.star(5)], ids=lambda network: network.name)
def test_rounds_stages_frame_sizes_in_the_simulator(network):
    scores = drawn_scores(network)
    base = messages(scores, network)
    for name, change in NEIGHBOURING.items():
        assert messages(change(scores), network) == base, name


@pytest.mark.slow
def test_rounds_stages_frame_sizes_over_mpi():
    done = start(2, "tests.privacy.mpi_twins")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert {*found} == {"base", *NEIGHBOURING}
    assert all(cost == found["base"] for cost in found.values())


class Traced(Mesh):
    """Loopback devices that keep time, link, kind and size of all frames."""

    def _wire(self, sender, to, data, now):
        self.__dict__.setdefault("sent", []).append((round(now, 9), sender, to, data[1] & 7, len(data)))
        super()._wire(sender, to, data, now)


@pytest.mark.parametrize("aggregate", ["tree", "flood"])
def test_rounds_stages_frame_sizes_on_the_loopback_engine(tmp_path, aggregate):
    """All devices in one process, some of them killed in the middle: the whole trace is the same."""

    def trace(name, change):
        faults = LinkFaults(loss=0.1, duplication=0.2, pauses=(Pause(3, 0.03, 0.4, crash=True),))
        mesh = Traced(Network.torus(2, 3), tmp_path / name, 4, faults=faults, aggregate=aggregate, releases=3)
        mesh.scores = [np.sort(np.array(own, dtype=float)) for own in change(mesh.scores)]
        mesh.play()
        return mesh.sent, [entry.happened for entry in mesh.entries]

    base = trace("base", lambda scores: scores)
    assert any("reveal" in happened for happened in base[1])
    for name, change in NEIGHBOURING.items():
        assert trace(name, change) == base, name


# --- real nodes -------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_million_scores(played):
    """At the start and later, with and without a run under way."""
    many = csv_of(np.random.default_rng(1).random(1_000_000))
    assert played(script=SCRIPT).differences(played(many, many + b"nan\n", script=SCRIPT)) == {}


def have_results(folders):
    return all((folder / "result.json").exists() for folder in folders)


def shown_by(folders, ports):
    """Return what nodes show at their ports, without times, counts of frames and what follows from the noise."""
    found = []
    for port in ports:
        client = Client(f"127.0.0.1:{port}")
        status, health = client.status(), client.health()
        metrics = sorted({line.split(" ")[0] for line in client.metrics().splitlines() if not line.startswith("#")})
        mesh = [(row["name"], row["health"], row.get("phase")) for row in client.mesh()["devices"]]
        kept = {key: status[key] for key in ("phase", "run", "request", "troubles", "last_error", "failure")}
        found.append((kept, sorted(status), health["healthy"], health["reasons"], metrics, mesh))
    accounts = [read_account(folder / ACCOUNT_FILE) for folder in folders]
    return found, [[(record.epoch, record.releases, record.devices) for record in one.epochs] for one in accounts]


@pytest.mark.slow
def test_real_nodes_show_the_same_with_and_without_scores():
    """Four processes, whose ports others may ask: one of them has good scores, a broken file, or none."""
    pytest.importorskip("zenoh", reason="a mesh needs Eclipse Zenoh: pip install 'conformesh[mesh]'")
    seen = []
    for data in (GOOD, FILES["no file"], FILES["no heading"], FILES["many scores"]):
        with short_folder() as root, ExitStack() as stack:
            scores = [np.random.default_rng(k).random(60) for k in range(4)]
            options = {"epsilon": 1.0, "cells": 8, "grid": "linear", "range": (0.0, 1.0)}
            folders, _ = make_mesh(root / "m", Network.cycle(4), "p-dcp", scores=scores, options=options)
            if data is None:
                (folders[2] / "scores.csv").unlink()
            else:
                (folders[2] / "scores.csv").write_bytes(data)
                long_ago(folders[2] / "scores.csv")
            first = free_ports(4)
            for k, folder in enumerate(folders):
                command = [sys.executable, "-m", "conformesh", "node", str(folder), "--http", f"127.0.0.1:{first + k}"]
                node = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
                stack.callback(node.wait)
                stack.callback(node.kill)
            ports = range(first, first + 4)
            wait_for(partial(have_results, folders), seconds=90)
            time.sleep(3.0)  # heartbeats have gone through the mesh
            seen.append(shown_by(folders, ports))
    assert all(one == seen[0] for one in seen)


# --- planted leaks ----------------------------------------------------------------------------------------------------


def scores_in(hall):
    """Return how many scores the node has, as leaks know it."""
    return len(hall.node.files.scores.known)


def leak_frame_size(hall, patch):
    """Roll calls of the node are longer the more scores it has."""
    roll = Membership._roll

    def longer(self, kind, rows, flags=0):
        frame = roll(self, kind, rows, flags)
        return frame._replace(body=frame.body + b" " * scores_in(hall)) if self.row == OWN else frame

    patch(Membership, "_roll", longer)


def leak_flag(hall, patch):
    """The node sends a frame twice if it has no scores."""
    send = Links.send_to_all

    def again(self, rows, frame):
        send(self, rows, frame)
        if self.row == OWN and not scores_in(hall):
            send(self, rows, frame)

    patch(Links, "send_to_all", again)


def leak_refusal(hall, patch):
    """The node refuses to take part with few scores."""
    settle = Account.settle

    def refusing(self, claims, coalition):
        if self.path.parent.name == NAME and scores_in(hall) < 10:
            raise PrivacyRefused("fewer scores than the floor")
        return settle(self, claims, coalition)

    patch(Account, "settle", refusing)


def leak_digest(hall, patch):
    """The greeting holds a digest of the scores."""
    hello = Membership.hello

    def telling(self, flags=0):
        frame = hello(self, flags)
        digest = hall.node.files.scores.known.digest.encode()
        return frame._replace(body=frame.body[:-1] + b',"scores":"' + digest + b'"}') if self.row == OWN else frame

    patch(Membership, "hello", telling)


def leak_retry_time(hall, patch):
    """The node waits longer before it repeats itself, the more scores it has."""
    repeat = Device._repeat

    def later(self):
        repeat(self)
        if self.row == OWN:
            self.clock.wake += 1e-3 * scores_in(hall)

    patch(Device, "_repeat", later)


def leak_counting_time(hall, patch):
    """Scores are sorted while neighbours wait."""
    count = p_dcp._local_counts

    def sorting(plan, block, samples, secrets):
        if block.rows[0] == OWN:
            hall.work(1e-6 * len(samples.values))
        return count(plan, block, samples, secrets)

    patch(p_dcp, "_local_counts", sorting)


def leak_reading_time(hall, patch):
    """A changed file is read in the thread that answers neighbours."""
    patch(node_files, "ScoreWatch", lambda config, in_background=False: watching.ScoreWatch(config))


def leak_failure(hall, patch):
    """A failure is told with a number."""

    def counted(self):
        return f"{self.links.name(self.row)} could not go on with {scores_in(hall) if self.row == OWN else 0} scores"

    patch(Device, "_private_reason", property(counted))
    leak_refusal(hall, patch)


def leak_account(hall, patch):
    """Only devices with scores are charged."""
    charge = Account.charge

    def skipping(self, epoch, devices, context):
        if self.path.parent.name != NAME or scores_in(hall):
            charge(self, epoch, devices, context)

    patch(Account, "charge", skipping)


def leak_changed_file(hall, patch):
    """A changed file asks for a run."""
    look = NodeFiles.look

    def asking(self, at_once=False):
        before = self.scores.known.digest
        look(self, at_once)
        device = hall.node.driver.device
        if before != self.scores.known.digest and device is not None and device.phase == "finished":
            device.recalibrate(hall.now)

    patch(NodeFiles, "look", asking)


def leak_status(hall, patch):
    """A port shows what the owner sees."""
    patch(NodeState, "shared_status", NodeState.status)


def leak_result(hall, patch):
    """The result says how many scores the device has."""
    made = run_driver.device_result

    def telling(*parts, **named):
        found = made(*parts, **named)
        return structs.replace(found, answers=(structs.replace(found.answer, examples=scores_in(hall)),))

    patch(run_driver, "device_result", telling)


def leak_compiling(hall, patch):
    """More loops are compiled for more scores."""
    patch(Node, "_compiled", lambda self: node_module.compiled_beforehand((), len(self.files.scores.known)))


def leak_journal(hall, patch):
    """The journal names the scores of a run."""
    heading = Membership.heading

    def telling(self):
        digest = hall.node.files.scores.known.digest if self.row == OWN and scores_in(hall) else ""
        return heading(self)._replace(scores=digest)

    patch(Membership, "heading", telling)


PLANTED = {  # leak: where it must show, the file, and whether it is there from the start or later
    leak_frame_size: ("frames", "one score more", "start"),
    leak_flag: ("frames", "a heading alone", "start"),
    leak_refusal: ("frames", "a heading alone", "start"),
    leak_digest: ("words", "other values", "start"),
    leak_retry_time: ("frames", "one score less", "start"),
    leak_counting_time: ("frames", "one score more", "start"),
    leak_reading_time: ("frames", "many scores", "later"),
    leak_failure: ("words", "no file", "start"),
    leak_account: ("writes", "no file", "start"),
    leak_changed_file: ("frames", "other values", "later"),
    leak_status: ("shown", "a NaN", "start"),
    leak_result: ("kept", "one score more", "start"),
    leak_compiling: ("prepared", "one score less", "start"),
    leak_journal: ("files", "a heading alone", "start"),
}


@pytest.mark.parametrize("leak", PLANTED)
def test_twin_runs_notice(played, leak):
    where, name, when = PLANTED[leak]
    faults = LinkFaults(loss=0.4, delay=(0.001, 0.05)) if leak is leak_retry_time else None
    # An epoch is due when the new file is read, so that a run waits for who reads it.
    script = ((0.3, closing),) if leak is leak_reading_time else ()
    files = ((GOOD, GOOD), (FILES[name], GOOD) if when == "start" else (GOOD, FILES[name]))
    one, other = (played(*both, faults=faults, script=script, leak=leak, limit=9.0) for both in files)
    assert where in one.differences(other)
