"""Who gets a link and who is heard: every wrong identity ends in a clear error, or in silence."""

import datetime
import json
import threading

import pytest

from conformesh import Network
from conformesh.engines import frames
from conformesh.engines.frames import DATA, HELLO, LOST, Frame
from conformesh.engines.journal import MemoryJournal
from conformesh.mesh import certificates
from conformesh.mesh.config import read_device
from conformesh.mesh.folders import revoke_device
from conformesh.mesh.own_scores import read_own_scores
from conformesh.mesh.running import make_device
from tests.mesh.real import drawn_scores, finish, make_mesh, round_of, simulated, start

zenoh = pytest.importorskip("zenoh", reason="a mesh needs Eclipse Zenoh: pip install 'conformesh[mesh]'")
pytest.importorskip("cryptography", reason="a mesh needs certificates: pip install 'conformesh[mesh]'")
from conformesh.mesh.certificates import sign_device  # noqa: E402

FILES = ("ca.pem", "device.pem", "device.key")


def run_both(folders):
    return [finish(process, 60) for process in [start(folder) for folder in folders]]


@pytest.mark.parametrize("file", FILES)
def test_a_missing_file_is_named(tmp_path, file):
    folders, _ = make_mesh(tmp_path / "m", Network.chain(2), patience=4.0)
    (folders[0] / file).unlink()
    code, result, log = finish(start(folders[0]), 60)
    assert code != 0
    assert result is None
    assert file in log and "Traceback" not in log and "panicked" not in log, log  # noqa: PT018


def expire(authority, folder, monkeypatch):
    """Give a device a certificate that ran out four weeks ago."""

    class LongAgo(datetime.datetime):
        @classmethod
        def now(cls, tz=None):
            return datetime.datetime.now(tz) - datetime.timedelta(days=30)

    with monkeypatch.context() as then:
        then.setattr(certificates, "datetime", LongAgo)
        sign_device(authority, folder, folder.name, ["127.0.0.1", "localhost"], days=2, renew=True)


def test_an_expired_certificate_gets_no_link(tmp_path, monkeypatch):
    folders, _ = make_mesh(tmp_path / "m", Network.chain(2), patience=4.0)
    expire(tmp_path / "m" / "ca", folders[1], monkeypatch)
    found = run_both(folders)
    assert [result for _, result, _ in found] == [None, None]
    assert all(code != 0 for code, _, _ in found), found
    assert "device-01 has not said hello" in found[0][2]
    assert round_of(folders[0]) == round_of(folders[1]) == 0


def test_an_expired_certificate_is_said_to_be_expired(tmp_path, monkeypatch):
    folders, _ = make_mesh(tmp_path / "m", Network.chain(2), patience=1.0)
    expire(tmp_path / "m" / "ca", folders[1], monkeypatch)
    code, _, log = finish(start(folders[1]), 60)
    assert code != 0
    assert "device.pem expired on" in log


def test_a_plaintext_neighbour_gets_no_link(tmp_path):
    folders, _ = make_mesh(tmp_path / "m", Network.chain(2), patience=4.0)
    path = folders[1] / "device.toml"
    text = path.read_text()
    assert "insecure = false" in text
    path.write_text(text.replace("insecure = false", "insecure = true"))
    found = run_both(folders)
    assert [code for code, _, _ in found] == [1, 1], found
    assert "device-01 has not said hello" in found[0][2]
    assert "device-00 has not said hello" in found[1][2]
    assert round_of(folders[0]) == round_of(folders[1]) == 0


def forged(config):
    """What a liar says under the name of the other device: an end, a disagreement, a later run, wrong numbers."""
    other = 1 - config.row
    device = make_device(config, read_own_scores(config), MemoryJournal())
    words = {"agreement": device.agreement, "run": 1, "lost": []}
    bodies = [words | {"run": 77}, words | {"agreement": {"alpha": "a lie"}}]
    yield from (Frame(HELLO, 0, other, 0, 0, frames.pack_words(body)) for body in bodies)
    yield Frame(LOST, device.run, other, 1, 0, frames.pack_words({"lost": [config.row]}))
    yield Frame(DATA, device.run, other, 9, 1, b"")


class Liar:
    """A zenoh session with links to both devices that publishes under their keys; made by hand, with no rules."""

    def __init__(self, folders, identity=None):
        configs = [read_device(folder) for folder in folders]
        kind = "tcp" if identity is None else "tls"
        settings = {
            "mode": "peer",
            "listen/endpoints": [],
            "connect/endpoints": [f"{kind}/{config.endpoints[config.name]}" for config in configs],
            "connect/timeout_ms": -1,
            "connect/exit_on_failure": False,
            "connect/retry": {"period_init_ms": 50, "period_max_ms": 100, "period_increase_factor": 1},
            "scouting/multicast/enabled": False,
            "scouting/gossip/enabled": False,
        }
        if identity is not None:
            settings["transport/link/tls"] = {
                "root_ca_certificate": str(identity / "ca.pem"),
                "enable_mtls": True,
                "connect_private_key": str(identity / "device.key"),
                "connect_certificate": str(identity / "device.pem"),
            }
        self.config = zenoh.Config()
        for key, value in settings.items():
            self.config.insert_json5(key, json.dumps(value))
        self.lies = [
            (f"conformesh/{config.mesh}/{config.devices[1 - config.row]}/{config.name}", frames.encode(frame))
            for config in configs
            for frame in forged(config)
        ]
        self.done, self.links = threading.Event(), 0
        self.thread = threading.Thread(target=self._lie)

    def _lie(self):
        with zenoh.open(self.config) as session:
            while not self.done.is_set():
                for key, data in self.lies:
                    session.put(key, data)
                self.links = max(self.links, len([*session.info.peers_zid()]))
                self.done.wait(0.01)

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *reason):
        self.done.set()
        self.thread.join()


def lied_to(root, identity_of, **more):
    """Run two devices on a mesh beside a liar; return what they found, what they should, and the liar."""
    scores = drawn_scores(2, low=20)
    folders, expected = make_mesh(root, Network.chain(2), "q-dcp", scores, options={"rounds": 300}, **more)
    with Liar(folders, identity_of(folders)) as liar:
        return run_both(folders), expected, liar


def test_a_stranger_with_a_certificate_of_the_mesh_is_not_heard(tmp_path):
    """The authority signed it, so it gets a link, but it may say nothing there."""

    def stranger(folders):
        sign_device(tmp_path / "m" / "ca", tmp_path / "stranger", "stranger", ["127.0.0.1"])
        return tmp_path / "stranger"

    found, expected, liar = lied_to(tmp_path / "m", stranger, patience=20.0)
    assert [code for code, _, _ in found] == [0, 0], found
    assert [(result["threshold"], result["run"]) for _, result, _ in found] == [(x, 1) for x in expected]
    assert liar.links > 0  # it did reach somebody
    assert not any("refused" in log for _, _, log in found)


@pytest.mark.slow
def test_a_revoked_device_is_not_heard(tmp_path):
    """Its certificate is signed and in time; the map of the others no longer has its name."""
    root = tmp_path / "m"
    scores = drawn_scores(3, low=20)
    folders, _ = make_mesh(root, Network.chain(3), "q-dcp", scores, options={"rounds": 300}, patience=20.0)
    revoke_device(root, "device-02")
    expected = simulated(folders[0], scores[:2], "q-dcp", rounds=300)
    with Liar(folders[:2], root / "revoked" / "device-02") as liar:
        found = run_both(folders[:2])
    assert [code for code, _, _ in found] == [0, 0], found
    assert [(result["threshold"], result["run"]) for _, result, _ in found] == [(x, 1) for x in expected]
    assert liar.links > 0  # it did reach somebody
    assert not any("refused" in log for _, _, log in found)


def test_without_certificates_a_liar_is_heard(tmp_path):
    """What the others rest on: the same lies do harm where nobody has to show a certificate."""
    found, expected, _ = lied_to(tmp_path / "m", lambda folders: None, insecure=True, patience=4.0)
    right = [(0, x, 1) for x in expected]
    assert [(code, result and result["threshold"], result and result["run"]) for code, result, _ in found] != right
