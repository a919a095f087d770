"""The folders of a mesh: made whole, changed whole, and checked from one device's view."""

import errno
import os
import shutil
import stat
from datetime import UTC, datetime, timedelta

import pytest

from conformesh import Network
from conformesh.mesh.config import roster
from conformesh.mesh.config.certificate_names import LONGEST_NAME, certificate_name
from conformesh.mesh.config.device_toml import device_text, read_device, write_device
from conformesh.mesh.config.folders import (
    add_device,
    check_folder,
    compare_agreements,
    device_folders,
    init_mesh,
    reissue_device,
    renew_device,
    revoke_device,
    scatter_scores,
)

pytest.importorskip("cryptography", reason="certificates need the extra `mesh`")
from conformesh.mesh.config.certificates import read_certificate
from conformesh.mesh.config.key_pair import check_key_pair
from tests.mesh.disks import unwritable

FILES = ["ca.pem", "device.key", "device.pem", "device.toml", "roster.json", "scores.csv"]


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    root = tmp_path_factory.mktemp("made") / "torus"
    init_mesh(root, Network.torus(3, 3), alpha="0.05", score="lac", options={"width": 2})
    return root


@pytest.fixture
def root(made, tmp_path):
    """A copy to change."""
    shutil.copytree(made, tmp_path / "mesh")
    return tmp_path / "mesh"


def test_every_device_gets_a_whole_folder(made):
    folders = device_folders(made)
    assert [folder.name for folder in folders] == [f"device-0{k}" for k in range(9)]
    network = Network.torus(3, 3)
    for row, folder in enumerate(folders):
        assert sorted(path.name for path in folder.iterdir()) == FILES
        config = read_device(folder)
        assert (config.row, config.listen) == (row, f"127.0.0.1:{7600 + row}")
        assert config.listen == config.endpoints[config.name]
        assert config.network.indices.tolist() == network.indices.tolist()
        assert check_key_pair(folder / "device.pem", folder / "device.key", folder / "ca.pem", folder.name) == []
        assert {problem.what for problem in check_folder(folder)} == {"scores"}  # there are none yet: a warning
    assert compare_agreements(folders) == {}
    assert not [*made.rglob("device-*/ca.key")]
    page = (made / "README.md").read_text()
    assert "ca/ca.key" in page
    assert "What never to copy" in page
    assert str(made) not in page


def test_a_chain_with_names_and_hosts(tmp_path):
    hosts = tmp_path / "hosts"
    hosts.write_text(
        "# where\nnorth pi.local:7000\nwest 10.0.0.7\nsouth 10.0.0.7  # the same machine\neast [::1]:7001\n"
    )
    network = Network.chain(4).relabelled(["north", "east", "south", "west"])
    folders = init_mesh(tmp_path / "m", network, hosts=hosts)
    read = [read_device(folder) for folder in folders]
    assert [one.endpoints[one.name] for one in read] == [
        "pi.local:7000",
        "[::1]:7001",
        "10.0.0.7:7601",
        "10.0.0.7:7600",
    ]
    assert [one.listen for one in read] == ["0.0.0.0:7000", "[::1]:7001", "10.0.0.7:7601", "10.0.0.7:7600"]
    assert read_certificate(folders[0] / "device.pem").hosts == ("pi.local",)
    assert all(problem.what == "scores" for folder in folders for problem in check_folder(folder))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("device-00 a\n", "no host for {device-01}; every device needs a line: device-01 HOST:PORT"),
        ("0 a\n00 b\n", "line 2: device 'device-00' already has a:7600"),
        ("0 a:1\n1 a:1\n", "line 2: a:1 belongs to 'device-00' already"),
        ("device-0O a\n", "line 1: unknown device 'device-0O', did you mean 'device-0"),
        ("0 a b\n", "line 1: needed a device and its host[:port], got '0 a b'"),
        ("0 a:0\n", "a port lies between 1 and 65535, got 0"),
        ("0 a:32767\n1 a\n", "no port below 32768 is left"),
        ("0 -a\n", "'-a' is neither an IP address nor a host name"),
    ],
)
def test_a_hosts_file_is_checked(tmp_path, text, words):
    (tmp_path / "hosts").write_text(text)
    with pytest.raises(ValueError) as caught:
        init_mesh(tmp_path / "m", Network.chain(2), hosts=tmp_path / "hosts")
    assert words in str(caught.value)
    assert not (tmp_path / "m").exists()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"base_port": 32767}, "2 devices from port 32767 on need ports up to 32768"),
        ({"alpha": "3"}, "alpha must lie strictly between 0 and 1"),
        ({"hosts": "nowhere"}, "cannot read the hosts file"),
    ],
)
def test_a_mesh_that_cannot_be_made_leaves_nothing(tmp_path, change, words):
    with pytest.raises(ValueError) as caught:
        init_mesh(tmp_path / "m", Network.chain(2), **change)
    assert words in str(caught.value)
    assert not (tmp_path / "m").exists()


def test_a_folder_that_is_not_empty_is_left_alone(tmp_path):
    (tmp_path / "mine.txt").write_text("x")
    with pytest.raises(ValueError, match="needs a new or an empty folder"):
        init_mesh(tmp_path, Network.chain(2))
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]


# --- add, revoke, renew -----------------------------------------------------------------------------------------------


def test_a_new_device_is_known_to_everybody(root):
    folder = add_device(root, "late", ["device-00", "device-04"])
    new = read_device(folder)
    assert new.endpoints["late"] == "127.0.0.1:7609"
    assert [one.name for one in new.neighbours] == ["device-00", "device-04"]
    assert (new.guarantee.alpha, new.scores.score, new.run.options) == ("0.05", "lac", {"width": 2})
    assert check_key_pair(folder / "device.pem", folder / "device.key", folder / "ca.pem", "late") == []
    folders = device_folders(root)
    assert [one.name for one in folders][-1] == "late"
    assert compare_agreements(folders) == {}
    assert "`late` | 127.0.0.1:7609" in (root / "README.md").read_text()


@pytest.mark.parametrize(
    ("words", "name", "neighbours", "host"),
    [
        ("device name 'device-03' is taken", "device-03", ["device-00"], "127.0.0.1"),
        ("unknown neighbour 'device-O1', did you mean 'device-01'", "new", ["device-O1"], "127.0.0.1"),
        ("needs at least one neighbour", "new", [], "127.0.0.1"),
        ("127.0.0.1:7602 belongs to another device", "new", ["device-00"], "127.0.0.1:7602"),
        ("the name of another folder", "ca", ["device-00"], "127.0.0.1"),
        ("must be host:port", "new", ["device-00"], "a:b:c"),
    ],
)
def test_a_device_that_cannot_be_added_changes_nothing(root, words, name, neighbours, host):
    before = {path: path.read_bytes() for path in root.rglob("*") if path.is_file()}
    with pytest.raises(ValueError) as caught:
        add_device(root, name, neighbours, host)
    assert words in str(caught.value)
    assert {path: path.read_bytes() for path in root.rglob("*") if path.is_file()} == before


def test_a_revoked_device_is_out_for_good(root):
    identity = read_certificate(root / "device-04" / "device.pem")
    assert revoke_device(root, "device-04") == identity.serial
    folders = device_folders(root)
    assert len(folders) == 8
    for folder in folders:
        config = read_device(folder)
        assert "device-04" not in {
            *config.devices,
            *config.endpoints,
            *(name for edge in config.edges for name in edge),
        }
        assert {"device-04", identity.fingerprint} <= {*config.revoked}
    assert compare_agreements(folders) == {}
    assert (root / "revoked" / "device-04" / "device.key").exists()
    with pytest.raises(ValueError, match="was revoked, and its old certificate still bears it"):
        add_device(root, "device-04", ["device-00"])
    with pytest.raises(ValueError, match="unknown device 'device-04'"):
        revoke_device(root, "device-04")


def test_a_bridge_is_not_revoked(tmp_path):
    init_mesh(tmp_path / "m", Network.chain(4))
    with pytest.raises(ValueError) as caught:
        revoke_device(tmp_path / "m", "device-01")
    words = "falls into 2 components: {device-00} and {device-02, device-03}; add a device between them first"
    assert words in str(caught.value)
    assert len(device_folders(tmp_path / "m")) == 4
    revoke_device(tmp_path / "m", "device-00")
    assert len(device_folders(tmp_path / "m")) == 3


def test_a_mesh_without_certificates_can_change_too(tmp_path):
    root = tmp_path / "m"
    init_mesh(root, Network.chain(2), insecure=True)
    assert not (root / "ca").exists()
    assert "anybody who reaches a port" in (root / "README.md").read_text()
    add_device(root, "third", ["device-01"])
    assert revoke_device(root, "device-00") == ""
    assert read_device(root / "third").revoked == ("device-00",)
    assert [p.what for p in check_folder(root / "third")] == ["roster.json", "certificate", "scores"]
    with pytest.raises(ValueError, match="have no certificates to renew"):
        renew_device(root, "third")
    with pytest.raises(ValueError, match=r"of the 3 devices of roster 2 only \{device-01\} are in the run"):
        revoke_device(root, "third")
    revoke_device(root, "third", forget=True)
    with pytest.raises(ValueError, match="is the only one of its mesh"):
        revoke_device(root, "device-01")


def test_a_renewed_certificate_is_another_one(root):
    before = read_certificate(root / "device-00" / "device.pem")
    after = renew_device(root, "device-00", days=500)
    assert after.serial != before.serial
    assert after.not_after > before.not_after
    assert [p.what for p in check_folder(root / "device-00")] == ["scores"]
    with pytest.raises(ValueError, match="did you mean 'device-0"):
        renew_device(root, "device-0O")


def test_the_longest_allowed_name_can_be_renewed(tmp_path):
    """The common name of a certificate has at most 64 characters, also with the number of a renewed one."""
    longest = "n" * LONGEST_NAME
    init_mesh(tmp_path / "mesh", Network.chain(2).relabelled([longest, "b"]))
    assert renew_device(tmp_path / "mesh", longest).name == f"{longest}~2"
    assert len(certificate_name(longest, 99_999)) == 64
    with pytest.raises(ValueError, match="has 59 characters; at most 58 are allowed"):
        init_mesh(tmp_path / "other", Network.chain(2).relabelled([f"{longest}n", "b"]))
    with pytest.raises(ValueError, match="has 64 characters; at most 58 are allowed"):
        add_device(tmp_path / "mesh", "n" * 64, ["b"])


def test_a_mesh_in_disorder_is_not_changed(root):
    text = (root / "device-03" / "device.toml").read_text()
    (root / "device-03" / "device.toml").write_text(text.replace('alpha = "0.05"', 'alpha = "0.2"'))
    with pytest.raises(ValueError, match=r"differ in alpha: 1/20 on device-00.*1/5 on device-03; mend"):
        add_device(root, "new", ["device-00"])
    shutil.rmtree(root / "device-03")
    with pytest.raises(ValueError, match="the folder of 'device-03' is missing"):
        revoke_device(root, "device-00")
    with pytest.raises(ValueError, match="no folder of a device is in there"):
        device_folders(root / "nowhere")


# --- checks -----------------------------------------------------------------------------------------------------------


def told(folder, now=None):
    return {(problem.what, problem.level): problem.text for problem in check_folder(folder, now)}


def rewrite(folder, old, new):
    text = (folder / "device.toml").read_text()
    assert old in text
    (folder / "device.toml").write_text(text.replace(old, new))


def test_nothing_is_wrong_with_a_good_folder(root):
    (root / "device-00" / "scores.csv").write_text("device,score\ndevice-00,0.5\n")
    assert check_folder(root / "device-00") == []


def test_what_is_wrong_is_told_in_words(root):
    folder = root / "device-00"
    (folder / "ca.key").write_text("x")
    assert "must never be in a device's folder" in told(folder)["certificate", "error"]
    (folder / "ca.key").unlink()
    soon = datetime.now(UTC) + timedelta(days=350)
    assert "in 14 days; renew it" in told(folder, soon)["certificate", "warning"]
    (folder / "scores.csv").write_text("device,score\ndevice-00,x\n")
    assert "line 2: score must be a number, got 'x'" in told(folder)["scores", "error"]
    (folder / "scores.csv").unlink()
    assert "needs a file with its scores" in told(folder)["scores", "error"]
    rewrite(folder, 'listen = "127.0.0.1:7600"', 'listen = "127.0.0.1:40000"')
    assert "ports above 32767 may be taken" in told(folder)["port", "warning"]
    rewrite(folder, 'listen = "127.0.0.1:40000"', 'listen = "127.0.0.1:7700"')
    assert "the ports differ" in told(folder)["port", "warning"]
    rewrite(folder, "\n[run.options]", '\n[map.endpoints]\n"device-00" = "10.0.0.1:7700"\n\n[run.options]')
    assert "is for 127.0.0.1, but neighbours reach this device at 10.0.0.1" in told(folder)["certificate", "error"]
    old = {name: (folder / name).read_bytes() for name in ("device.pem", "device.key")}
    reissue_device(root, "device-00")
    for name, content in old.items():
        (folder / name).write_bytes(content)
    words = " ".join(problem.text for problem in check_folder(folder))
    assert "device.pem is revoked" in words
    assert "certificates from number 2 on are let in; an older one was revoked" in words
    rewrite(folder, 'method = "e-dcp"', 'method = "cp"')
    rewrite(folder, '[run.options]\n"width" = 2', "")
    assert "needs a server" in told(folder)["device.toml", "warning"]
    rewrite(folder, "patience", "patiense")
    assert [*told(folder)] == [("device.toml", "error")]


@pytest.mark.skipif(os.name != "posix", reason="file modes are those of POSIX")
def test_a_careless_copy_is_noticed(root):
    (root / "device-00" / "device.key").chmod(0o644)
    assert "chmod 600" in told(root / "device-00")["certificate", "error"]
    shutil.copy(root / "device-01" / "device.pem", root / "device-02" / "device.pem")
    words = [problem.text for problem in check_folder(root / "device-02")]
    assert any("does not match" in text for text in words)
    assert any("names 'device-01', but this device is 'device-02'" in text for text in words)


def test_folders_that_disagree_are_told_apart(root):
    rewrite(root / "device-01", '"width" = 2', '"width" = 3')
    one = read_device(root / "device-02")
    (root / "device-02" / "device.toml").write_text(
        device_text(one).replace('method = "e-dcp"', 'method = "local"').replace('[run.options]\n"width" = 2', "")
    )
    found = compare_agreements([root / f"device-0{k}" for k in range(3)])
    assert found["method"] == {"e-dcp": ["device-00", "device-01"], "local": ["device-02"]}
    assert found["option width"] == {"2": ["device-00"], "3": ["device-01"], "no such option": ["device-02"]}
    assert "mesh" not in found
    write_device(root / "device-02", one)
    assert [*compare_agreements([root / f"device-0{k}" for k in range(3)])] == ["option width"]


@pytest.mark.skipif(os.name != "posix", reason="file modes are those of POSIX")
def test_scores_are_for_their_owner_alone(root, tmp_path):
    """Also the ones that are there before any scores are; whatever the umask."""
    path = root / "device-00" / "scores.csv"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    (tmp_path / "s.csv").write_text("device,score\n0,0.5\n")
    before = os.umask(0)
    try:
        scatter_scores(root, tmp_path / "s.csv")
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_roster_that_is_too_large_is_refused_before_anything_is_changed(tmp_path, monkeypatch):
    """It was written ahead, and then no command could finish it, nor do anything else."""
    root = tmp_path / "mesh"
    init_mesh(root, Network.cycle(3), insecure=True)
    for name in ("one", "two", "three"):
        add_device(root, name, ["device-00"])
    record = (root / "authority.json").read_bytes()
    monkeypatch.setattr(roster, "LARGEST_DOCUMENT", len((root / "roster.json").read_bytes()) + 40)
    with pytest.raises(ValueError, match=r"roster 5 would have [0-9,]+ bytes, and devices read at most .*--settled"):
        add_device(root, "four", ["device-00"])
    assert (root / "authority.json").read_bytes() == record
    assert add_device(root, "four", ["device-00"], settled=4).is_dir()


@pytest.mark.parametrize("taken", ["revoked/device-04/notes.txt", "revoked"])
def test_a_device_whose_folder_cannot_move_is_not_revoked(root, taken):
    """The roster was written ahead, and then no command could move the folder, nor do anything else."""
    record, path = (root / "authority.json").read_bytes(), root / taken
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("kept")
    with pytest.raises(ValueError, match=r"move (that|it) away first"):
        revoke_device(root, "device-04")
    assert (root / "authority.json").read_bytes() == record
    path.rename(root / "kept.txt")
    if path.parent != root:
        path.parent.rmdir()
    assert revoke_device(root, "device-04")
    assert (root / "revoked" / "device-04" / "device.toml").is_file()


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EROFS])
def test_a_mesh_is_not_changed_without_a_lock(root, code):
    """Two commands at once could sign two rosters of one number."""
    (root / "authority.lock").unlink()
    with unwritable(root / "authority.lock", code), pytest.raises(OSError, match=r"authority\.lock: cannot be written"):
        renew_device(root, "device-04")
