"""Private calibration on folders with certificates: whose keys count, what the account forbids, what others see."""

import hashlib
import json
import re
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from functools import partial

import numpy as np
import pytest

pytest.importorskip("cryptography", reason="certificates need the extra mesh")

from conformesh import Network
from conformesh.mesh.config import seal as seals
from conformesh.mesh.config.device_toml import read_device
from conformesh.mesh.config.folders import init_mesh, reissue_device
from conformesh.mesh.config.own_scores import OwnScores
from conformesh.mesh.node import running
from conformesh.mesh.node.beating import vitals_of
from conformesh.mesh.node.feeding import Feed
from conformesh.peer import frames
from conformesh.peer.frames import DATA, WANT
from conformesh.peer.loopback import Faults, Pause, _World
from conformesh.peer.vault import Vault
from conformesh.privacy.spent import FILE, Spent
from tests.mesh.meshes import config
from tests.mesh.nodes import Clock, ask, serving, state
from tests.mesh.real import drawn_scores, make_mesh, simulated
from tests.peer.devices import thresholds

NETWORK = Network.cycle(4)
KEYS = 2  # rounds in which everybody hears all keys: the diameter
NOISY = {"epsilon": 4.0, "width": 7}
AT = "device-01"
SERVED = ("/status", "/mesh", "/metrics", "/health", "/threshold", "/certificate", "/calibration")


class Crashed(BaseException):
    """What ends a process at once."""


class Mesh(_World):
    """Devices of folders on the loopback engine, with secrets that we know, and what happened on them in order.

    `happened` holds, by name, ("secret", run), ("charged", run) and ("said", run, round, bytes).
    """

    def __init__(self, root, scores=None, faults=None, seed=3, secrets="", **more):
        self.folders = [root / f"device-{k:02}" for k in range(NETWORK.devices)]
        if not root.exists():
            init_mesh(root, NETWORK, method="p-dcp", **more)
        self.configs = [read_device(folder) for folder in self.folders]
        self.scores = [*map(OwnScores, scores or drawn_scores(NETWORK.devices, low=20, high=40))]
        super().__init__(self.configs[0].network, self.start, faults or Faults(), np.random.default_rng(seed))
        self.happened = {folder.name: [] for folder in self.folders}
        self.secrets = secrets

    def start(self, k, journal):
        device = running.make_device(self.configs[k], self.scores[k], journal)
        told, begin, outbox, draws = self.happened[self.folders[k].name], journal.begin, device.outbox, []

        def drawn():
            draws.append(k)
            return hashlib.sha256(f"{self.secrets} {k} {len(draws)} {len(told)}".encode()).digest()

        def begun(record):
            begin(record)
            told.append(("secret" if device._secret else "forgotten", device.number))

        def tapped():
            out = outbox()
            for frame in (frames.decode(data) for _, data in out):
                if frame.kind == DATA:
                    said = frames.encode(frame._replace(flags=frame.flags & ~WANT))
                    told.append(("said", device.number, frame.round, said))
            return out

        device.vault.draw, journal.begin, device.outbox = drawn, begun, tapped
        return device

    def _deliver(self, sender, to, data, now):
        try:
            super()._deliver(sender, to, data, now)
        except Crashed:
            self._crash(Pause(to, now, now + 0.3, crash=True))
            self._at(now + 0.3, lambda then: self._boot(to, then))

    def play(self, limit=300.0):
        return self.run(limit, lambda devices: None).devices

    def account(self, k):
        return Spent(self.folders[k] / FILE).read()

    def right(self, **options):
        return [
            np.float64(x).tobytes()
            for x in simulated(self.folders[0], [s.values for s in self.scores], "p-dcp", **options)
        ]


# --- keys -------------------------------------------------------------------------------------------------------------


def test_devices_with_certificates_end_with_the_simulators_threshold(tmp_path):
    mesh = Mesh(tmp_path / "m")
    assert thresholds(mesh.play()) == mesh.right()
    assert all(mesh.account(k).runs[0].devices == [*mesh.configs[0].devices] for k in range(4))


def test_a_crash_while_keys_are_told_changes_no_byte(tmp_path):
    """The signature too is the same again, or neighbours would take the device for a liar."""
    mesh = Mesh(tmp_path / "m")
    base = mesh.start

    def start(k, journal):
        device = base(k, journal)
        if k == 1 and len(journal.data) == 0:
            heard = device._remember

            def remember():
                heard()
                raise Crashed

            device._remember = remember
        return device

    mesh.make = start
    devices = mesh.play()
    assert thresholds(devices) == mesh.right()
    assert {device.number for device in devices} == {1}
    said = {}
    for what, *rest in mesh.happened[AT]:
        if what == "said":
            said.setdefault((rest[0], rest[1]), set()).add(rest[2])
    assert all(len(told) == 1 for told in said.values())


def test_the_same_words_are_signed_the_same_way_each_time(tmp_path):
    init_mesh(tmp_path / "m", NETWORK, method="p-dcp")
    one, other = (seals.CertificateSeal(read_device(tmp_path / "m" / AT)) for _ in range(2))
    assert one.sign(b"words") == other.sign(b"words") != one.sign(b"other words")


def forged(mesh, root, real, monkeypatch):
    """A key that another authority's device signed."""
    init_mesh(root / "other", NETWORK, method="p-dcp")
    strange = seals.CertificateSeal(read_device(root / "other" / AT))
    return strange.sign


def of_another(mesh, root, real, monkeypatch):
    """A key that another device of the mesh signed."""
    return seals.CertificateSeal(mesh.configs[2]).sign


def of_an_earlier_run(mesh, root, real, monkeypatch):
    """A proof that the device itself has given, for its key of another run."""
    earlier = running.secrets_of(
        mesh.configs[1], mesh.scores[1], Vault(bytes, secret=bytes(32), context=bytes(32)), NETWORK.ids
    )
    proof = earlier.prove(b"its key of that run")
    return lambda said: proof


def of_another_row(mesh, root, real, monkeypatch):
    """Its own key, signed for another device's row: the row stands before the key, after the context."""
    return lambda said: real(
        said.replace(
            (1).to_bytes(8, "little") + (32).to_bytes(8, "little"),
            (2).to_bytes(8, "little") + (32).to_bytes(8, "little"),
        )
    )


def revoked(mesh, root, real, monkeypatch):
    """Signed by a key that was stolen, and whose certificate is out."""
    stolen = seals.CertificateSeal(mesh.configs[1])
    reissue_device(root / "m", AT)
    mesh.configs = [read_device(folder) for folder in mesh.folders]
    return stolen.sign


def expired(mesh, root, real, monkeypatch):
    late = datetime.now(UTC) + timedelta(days=366)
    monkeypatch.setattr(seals, "CertificateSeal", partial(seals.CertificateSeal, clock=lambda: late))
    return real


@pytest.mark.parametrize("wrong", [forged, of_another, of_an_earlier_run, of_another_row, revoked, expired])
def test_a_key_that_is_not_signed_for_this_run_ends_it_before_any_number(tmp_path, monkeypatch, wrong):
    mesh, honest = Mesh(tmp_path / "m"), running.secrets_of
    prove = wrong(mesh, tmp_path, seals.CertificateSeal(mesh.configs[1]).sign, monkeypatch)

    def secrets_of(config, scores, vault, names):
        found = honest(config, scores, vault, names)
        return (
            found if config.name != AT else type(found)(found.seeds, found.context, prove, found.genuine, found.permit)
        )

    monkeypatch.setattr(running, "secrets_of", secrets_of)
    devices = mesh.play()
    assert {device.phase for device in devices} == {"failed"}
    named = "device-00" if wrong is expired else AT
    said = [str(device.error) for device in devices]
    assert all(f"the key that came as that of device {named} was not signed by it for this run" in one for one in said)
    assert all("nothing was sent" in one for one in said)
    assert max(rest[1] for told in mesh.happened.values() for what, *rest in told if what == "said") <= KEYS
    assert not any((folder / FILE).exists() for folder in mesh.folders)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"insecure": True}, "by keys that devices sign with their certificates, and this mesh is insecure"),
        ({"on_lost": "continue"}, "the sum over those who are left would tell that of who is lost; use on_lost 'fail'"),
        ({"online": {"step": 0.05}}, r"\[online\] tells everybody how many labels each device has missed"),
        ({"mode": "anytime"}, "method 'p-dcp' needs rounds; use mode rounds"),
    ],
)
def test_what_would_tell_of_single_devices_is_refused_beside_a_private_method(changes, words):
    with pytest.raises(ValueError, match=words):
        config(method="p-dcp", **changes)
    assert config(method="p-dcp", on_lost="continue", options={"epsilon": 1.0}).method == "p-dcp"


# --- the account ------------------------------------------------------------------------------------------------------


def charging(monkeypatch, mesh, after=lambda path: None):
    """Have the mesh know when a device is charged; `after` happens when the charge is on the disk."""
    enter = Spent.enter

    def entered(self, *parts, **named):
        before = self.path.read_bytes() if self.path.exists() else b""
        enter(self, *parts, **named)
        if self.path.read_bytes() != before:
            mesh.happened[self.path.parent.name].append(("charged", 0))
        after(self.path)

    monkeypatch.setattr(Spent, "enter", entered)


@pytest.mark.parametrize("options", [{}, NOISY], ids=["masked", "noise"])
def test_a_run_is_charged_before_anything_is_said_that_depends_on_scores(tmp_path, monkeypatch, options):
    """Two runs with the same secrets and other scores: what a device says before its charge is the same in both."""
    found = []
    for change in (0.0, 1.5):
        mesh = Mesh(tmp_path / "m", options=options)
        for folder in mesh.folders:
            (folder / FILE).unlink(missing_ok=True)
        mesh.scores = [OwnScores(own.values + change) for own in mesh.scores]
        with monkeypatch.context() as patch:
            charging(patch, mesh)
            assert {device.phase for device in mesh.play()} == {"finished"}
        found.append(mesh.happened)
    for name in found[0]:
        one, other = (happened[name] for happened in found)
        assert one[0] == other[0] == ("secret", 1)
        charged = one.index(("charged", 0))
        assert one[: charged + 1] == other[: charged + 1]
        assert sum(what == "charged" for what, *_ in one) == 1
        first = next(at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b)
        assert one[first][0] == "said"  # and it does differ later
        assert charged < first


def test_a_crash_between_the_charge_and_the_first_number_is_charged_once(tmp_path, monkeypatch):
    mesh, crashes = Mesh(tmp_path / "m", options=NOISY), []

    def crash(path):
        if path.parent.name == AT and not crashes:
            crashes.append(path)
            raise Crashed

    charging(monkeypatch, mesh, crash)
    devices = mesh.play()
    assert {device.phase for device in devices} == {"finished"}
    assert crashes
    assert [len(mesh.account(k).runs) for k in range(4)] == [1] * 4
    assert {*mesh.account(1).spent.values()} == {NOISY["epsilon"]}
    assert len(mesh.account(1).spent) == len(mesh.scores[1])


def test_a_run_that_fails_after_its_charge_has_been_spent_and_the_next_is_refused_before_anybody_pays(
    tmp_path, monkeypatch
):
    mesh = Mesh(tmp_path / "m", options=NOISY, patience=2.0)
    lost = []

    def die(path):
        if path.parent.name == AT and not lost:
            lost.append(path)
            mesh.faults = Faults(loss=1.0)  # nobody hears anybody any more

    charging(monkeypatch, mesh, die)
    assert {device.phase for device in mesh.play()} == {"failed"}
    monkeypatch.undo()
    paid = [k for k in range(4) if mesh.account(k).runs]
    assert 1 in paid
    again = Mesh(tmp_path / "m", secrets="others")
    devices = again.play()
    assert {device.phase for device in devices} == {"failed"}
    codes = [device.error.code for device in devices]
    assert {*codes} <= {"privacy", "refused"}
    assert all(code == "refused" for k, code in enumerate(codes) if k not in paid)
    assert any("would spend more than their budget: 4 of 4 is spent" in str(device.error) for device in devices)
    assert [len(again.account(k).runs) for k in range(4)] == [int(k in paid) for k in range(4)]


def again_with(mesh, *changes):
    """Have device 1 ask for one more run, with other scores each time."""
    base = mesh.start

    def start(k, journal):
        device = base(k, journal)
        if k == 1:
            ask, left = device.recalibrate, [*changes]

            def recalibrate(now):
                other = OwnScores(mesh.scores[1].values + left.pop(0))
                ask(now, running.protocol_of(mesh.configs[1], other, None, device.vault), other.digest)

            device.recalibrate = recalibrate
        return device

    mesh.make = start
    mesh.faults = Faults(requests=tuple((1, 1.0 + 5 * at) for at in range(len(changes))))
    return mesh


def test_other_scores_without_noise_are_refused_and_everybody_is_told(tmp_path):
    mesh = again_with(Mesh(tmp_path / "m"), 0.5)
    devices = mesh.play()
    assert [device.error.code for device in devices] == ["refused", "privacy", "refused", "refused"]
    assert all("its scores have changed since a private run without noise" in str(device.error) for device in devices)
    assert {device.number for device in devices} == {2}
    assert not [rest for rest in mesh.happened[AT] if rest[:2] == ("said", 2)]  # not even a key
    held = len(mesh.scores[1])
    assert not any(str(held) in str(device.error).replace(AT, "") for device in devices)


def test_other_scores_with_noise_are_welcome_and_the_same_until_their_budget_is_spent(tmp_path):
    mesh = again_with(Mesh(tmp_path / "m", options=NOISY | {"budget": 12.0}), 0.5, 1.0, 1.5)
    mesh.stay = True
    devices = mesh.play(limit=24.0)
    assert mesh.account(1).runs[-1].epsilon == 4.0
    assert max(mesh.account(0).spent.values()) == 12.0  # its own have not changed
    assert [len(mesh.account(k).runs) for k in range(4)] == [3] * 4
    assert {device.number >= 4 for device in devices} == {True}
    assert not any(max(mesh.account(k).spent.values()) > 12.0 for k in range(4))


def test_the_same_sums_again_leave_the_account_as_it_is(tmp_path):
    mesh = again_with(Mesh(tmp_path / "m"), 0.0)
    assert {device.number for device in mesh.play()} == {2}
    assert [len(mesh.account(k).runs) for k in range(4)] == [1] * 4


# --- what is seen -----------------------------------------------------------------------------------------------------


def shown(mesh, devices, k):
    """Return all that the local service of a node says after its run, by path, on a clock that stands still."""
    clock = Clock()
    node = state(certified=False, clock=clock)
    node.device, node._neighbours = mesh.configs[k].name, {}
    feed = Feed(node, devices[k])
    feed.look(devices[k].now)
    names = mesh.configs[k].devices
    result = running.calibration_of(mesh.configs[k], devices[k], 1.0)
    node.certify(result, roster=names, run=devices[k].number, roster_number=1)
    feed.look(devices[k].now + 1)
    with serving(node) as service:
        said = {path: ask(service, "GET", path)[2] for path in SERVED}
    said["/metrics"] = re.sub(r"(?m)^conformesh_process_.*$", "", said["/metrics"])  # memory and time of this program
    return said | {"pulse": repr(vitals_of(node.snapshot(), 1.0)), "words": str(result), "file": result.to_json()}


@pytest.mark.parametrize("options", [{}, NOISY], ids=["masked", "noise"])
def test_what_a_node_shows_does_not_depend_on_which_device_holds_how_many_scores(tmp_path, options):
    """The same scores and secrets, spread over the devices in two ways: every byte of every answer is the same."""
    scores, found = np.random.default_rng(7).normal(size=400), []
    for ends in ((137, 200, 263), (61, 190, 347)):
        mesh = Mesh(tmp_path / "m", np.split(scores, ends), options=options)
        for folder in mesh.folders:
            (folder / FILE).unlink(missing_ok=True)
        devices = mesh.play()
        found.append([shown(mesh, devices, k) for k in range(4)])
    assert found[0] == found[1]
    status, metrics = json.loads(found[0][0]["/status"]), found[0][0]["/metrics"]
    assert status["certified"]["scores"] == (None if options else 400)
    assert bool(re.search(r"(?m)^conformesh_scores ", metrics)) == (not options)
    assert "search" not in status
    assert not re.search(r"(?<!\d)0 scores", " ".join(found[0][0].values()))


@pytest.mark.parametrize("options", [{}, pytest.param(NOISY, marks=pytest.mark.slow)], ids=["masked", "noise"])
def test_five_processes_agree_on_one_threshold(tmp_path, options):
    pytest.importorskip("zenoh", reason="a mesh needs Eclipse Zenoh: pip install 'conformesh[mesh]'")
    folders, expected = make_mesh(tmp_path / "m", Network.cycle(5), "p-dcp", options=options)
    command = [sys.executable, "-m", "conformesh", "mesh", "up", str(tmp_path / "m"), "--json"]
    found = subprocess.run(command, capture_output=True, text=True, timeout=90, check=False)
    assert found.returncode == 0, found.stderr
    results = json.loads(found.stdout)
    assert len({*(result["threshold"] for result in results)}) == 1
    if not options:  # with noise the threshold follows from secrets that nobody knows
        assert [result["threshold"] for result in results] == expected
    for folder in folders:
        account = Spent(folder / FILE).read()
        assert [(run.devices, run.epsilon) for run in account.runs] == [
            ([one.name for one in folders], options.get("epsilon"))
        ]
        assert b"secret" not in (folder / "journal.bin").read_bytes()
