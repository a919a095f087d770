"""``conformesh mesh``: thin over the library, and what neighbours answer."""

import json
import os
import shutil

import pytest
from click.testing import CliRunner

from conformesh import Network
from conformesh.cli import SUBCOMMANDS, app
from conformesh.files import atomic_writes
from conformesh.mesh.config.device_toml import read_device
from conformesh.mesh.config.folders import init_mesh, scatter_scores
from conformesh.mesh.config.local_scores import read_local_scores, replace_scores
from conformesh.mesh.config.reach import reach_neighbours
from tests.mesh.meshes import sign_device, tls_server
from tests.mesh.real import free_ports

pytest.importorskip("cryptography", reason="certificates need the extra `mesh`")
from conformesh.mesh.config.certificates import make_authority, read_certificate


def run(*words):
    return CliRunner().invoke(app, ["mesh", *map(str, words)])


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Two devices with scores, on ports that were free a moment ago."""
    root = tmp_path_factory.mktemp("pair") / "mesh"
    init_mesh(root, Network.chain(2), base_port=free_ports(2))
    scores = root.parent / "scores.csv"
    scores.write_text("device,score\n0,0.1\n1,0.2\n")
    scatter_scores(root, scores)
    return root


@pytest.fixture
def root(made, tmp_path):
    shutil.copytree(made, tmp_path / "mesh")
    return tmp_path / "mesh"


def port_of(root, name):
    return int(read_device(root / name).listen.split(":")[1])


def reached(root):
    (found,) = reach_neighbours(read_device(root / "device-00"))
    return found.level, found.text.split(": ", 1)[1]


def test_alone_it_says_what_there_is():
    result = run()
    assert result.exit_code == 0
    assert len(result.stdout.splitlines()) == 1
    assert all(name in result.stdout for name in SUBCOMMANDS["mesh"])


def test_scores_are_put_in_one_step(root, tmp_path):
    """They are checked, copied as they are and owned as before; a file that is refused changes nothing."""
    folder, given = root / "device-00", tmp_path / "given.csv"
    target = folder / "scores.csv"
    before = target.stat()
    given.write_text("device;score;label\r\n0;0.5;a\r\ndevice-00;0.25;b\r\n")
    result = run("put-scores", given, folder)
    assert result.exit_code == 0, result.output
    assert f"put 2 scores of device-00 into {target}" in result.stdout
    assert "uses them when it starts" in result.stdout
    assert target.read_bytes() == given.read_bytes()
    assert (target.stat().st_uid, target.stat().st_mode & 0o777) == (before.st_uid, 0o600)
    assert target.stat().st_ino != before.st_ino
    assert sorted(read_local_scores(read_device(folder)).values.tolist()) == [0.25, 0.5]

    piped = CliRunner().invoke(app, ["mesh", "put-scores", "-", str(folder), "--json"], input="score\n1\n2\n3")
    facts = json.loads(piped.stdout)
    assert (facts["device"], facts["scores"], facts["running"]) == ("device-00", 3, False)
    assert facts["digest"] == read_local_scores(read_device(folder)).digest

    given.write_text("device,score\n0,0.5\n1")
    (tmp_path / "given.npz").write_bytes(b"PK")
    (tmp_path / "other.csv").write_text("device,score\n1,0.5\n")
    for wrong, words in (
        ("given.csv", "line 3 has 1 fields, the header 2"),
        ("other.csv", "holds scores of {1} and belongs to 'device-00'"),
        ("given.npz", "a file that ends in .npz cannot take the place of"),
        ("none.csv", "cannot read the file"),
    ):
        result = run("put-scores", tmp_path / wrong, folder)
        assert (result.exit_code, words in result.stderr) == (2, True), result.stderr
    assert target.read_text() == "score\n1\n2\n3"


@pytest.mark.skipif(os.name != "posix", reason="owners and modes are POSIX")
def test_put_scores_gives_owner_and_mode_to_the_draft_and_to_nothing_else(tmp_path, monkeypatch):
    """Run as root, a chown by name after the rename would hand any file to the owner of the folder, through a link."""
    assert run("init", tmp_path / "mesh", "--devices", 2, "--insecure").exit_code == 0
    folder, victim = tmp_path / "mesh" / "device-00", tmp_path / "victim"
    target = folder / "scores.csv"
    target.chmod(0o640)
    victim.write_text("secret")
    victim.chmod(0o604)
    (tmp_path / "given.csv").write_text("score\n1\n2\n")
    before, changed = target.stat(), []

    def refuse(*_, **__):
        raise AssertionError("owner or mode changed by name")

    def link_at_once(name):
        if name == "scores.csv/renamed":
            changed.append((target.read_text(), target.stat().st_mode & 0o777))
            target.unlink()
            target.symlink_to(victim)

    monkeypatch.setattr(os, "chown", refuse)
    monkeypatch.setattr(os, "fchown", lambda handle, *owner: changed.append((os.fstat(handle).st_mode & 0o777, owner)))
    monkeypatch.setattr(atomic_writes, "on_failpoint", link_at_once)
    replace_scores(read_device(folder), str(tmp_path / "given.csv"))
    assert changed == [(0o600, (before.st_uid, before.st_gid)), ("score\n1\n2\n", 0o640)]
    assert (victim.read_text(), victim.stat().st_mode & 0o777) == ("secret", 0o604)

    monkeypatch.setattr(atomic_writes, "on_failpoint", None)
    with pytest.raises(ValueError, match=f"is a symbolic link to {victim}.*replace the file that it points to"):
        replace_scores(read_device(folder), str(tmp_path / "given.csv"))
    assert target.is_symlink()
    target.unlink()
    replace_scores(read_device(folder), str(tmp_path / "given.csv"))
    assert changed[-1] == (0o600, (folder.stat().st_uid, folder.stat().st_gid))
    assert target.stat().st_mode & 0o777 == 0o600


@pytest.mark.skipif(os.name != "posix", reason="owners and modes are POSIX")
def test_a_group_that_cannot_be_kept_gets_no_access(tmp_path, monkeypatch):
    def refuse(*_):
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "fchown", refuse)
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    atomic_writes.write_file(tmp_path / "a", "1", 0o640, (1000, 1000))
    assert (tmp_path / "a").stat().st_mode & 0o777 == 0o600
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    with pytest.raises(OSError, match="cannot write the file: Operation not permitted"):
        atomic_writes.write_file(tmp_path / "a", "2", 0o640, (1000, 1000))
    assert [path.name for path in tmp_path.iterdir()] == ["a"]
    assert (tmp_path / "a").read_text() == "1"


@pytest.mark.parametrize("name", SUBCOMMANDS["mesh"])
def test_every_command_has_help(name):
    assert "Usage: conformesh mesh" in run(name, "--help").stdout


def test_init_by_number_by_scores_and_by_graph(tmp_path):
    result = run("init", tmp_path / "a", "--devices", 4, "--network", "cycle", "--width", 3, "--insecure")
    assert result.exit_code == 0, result.stderr
    assert "devices: 4: device-00 to device-03, 4 edges (cycle" in result.stdout
    assert read_device(tmp_path / "a" / "device-02").run.options == {"width": 3}
    (tmp_path / "s.csv").write_text("device,score\nx,1\ny,2\ny,3\n")
    (tmp_path / "model").write_bytes(b"weights")
    words = ("--network", "chain", "--score", "raps", "--score-option", "k_reg=2", "--model", tmp_path / "model")
    result = run("init", tmp_path / "b", "--scores", tmp_path / "s.csv", *words, "--insecure", "--json")
    facts = json.loads(result.stdout)
    assert (facts["devices"], facts["scores"], facts["edges"]) == (["x", "y"], 3, 1)
    config = read_device(tmp_path / "b" / "y")
    assert config.scores.score_options["k_reg"] == 2
    assert len(config.scores.model) == 64
    assert (tmp_path / "b" / "y" / "scores.csv").read_text().splitlines()[1:] == ["y,2.0", "y,3.0"]
    (tmp_path / "g.txt").write_text("u v\nv w\n")
    assert run("init", tmp_path / "c", "--network", tmp_path / "g.txt", "--insecure").exit_code == 0
    assert read_device(tmp_path / "c" / "v").devices == ("u", "v", "w")


def test_a_method_that_floods_the_scores_says_so(tmp_path):
    result = run("init", tmp_path / "m", "--devices", "4", "--method", "fcp", "--insecure")
    assert result.exit_code == 0
    assert "floods the network" in " ".join(result.stdout.split())


@pytest.mark.parametrize(
    ("words", "error"),
    [
        ((), "a mesh needs --devices to count its devices"),
        (("--devices", "2", "--network", "g.txt"), "--devices 2 counts devices that --scores or a file of edges names"),
        (("--devices", "0"), "devices must be at least 1"),
        (("--devices", "4", "--on-lost", "x"), "on_lost must be 'fail' or 'continue', got 'x'"),
        (("--devices", "4", "--patience", "x"), "patience must be a number, got 'x'"),
        (("--devices", "4", "--bins", "5"), "method 'e-dcp' has no option 'bins'"),
    ],
)
def test_mistakes_are_one_line(tmp_path, words, error):
    result = run("init", tmp_path / "m", *words)
    assert result.exit_code == 2
    assert error in result.stderr
    assert len(result.stderr.splitlines()) == 1
    assert not (tmp_path / "m").exists()


def test_add_renew_revoke(root):
    assert "added third at 127.0.0.1:" in run("add", root, "third", "--neighbour", "device-01").stdout
    assert "renewed third until 20" in run("renew", root, "third", "--days", 20).stdout
    assert "expires on" in run("check", root / "third", "--offline").stdout
    assert run("revoke", root, "device-01").exit_code == 2
    assert "revoked third (certificate " in run("revoke", root, "third").stdout
    assert run("check", root, "--offline").exit_code == 0


def test_check_before_and_while_it_runs(root):
    """Before the start nobody listens, which is no mistake unless the mesh is said to be running."""
    result = run("check", root)
    assert result.exit_code == 0
    assert result.stdout.count("nobody listens") == 2
    result = run("check", root, "--running", "--json")
    assert result.exit_code == 1
    silent = [finding for finding in json.loads(result.stdout)["findings"] if finding["code"] == "silent"]
    assert [(finding["level"], finding["what"]) for finding in silent] == [
        ("error", "reach device-01"),
        ("error", "reach device-00"),
    ]
    one, other = (tls_server(port_of(root, name), root / name) for name in ("device-00", "device-01"))
    with one, other:
        result = run("check", root, "--running", "--json")
    answer = json.loads(result.stdout)
    assert result.exit_code == 0
    assert answer["ok"]
    assert {finding["level"] for finding in answer["findings"]} == {"fine"}


def test_check_tells_what_differs(root):
    path = root / "device-01" / "device.toml"
    path.write_text(path.read_text().replace('alpha = "0.1"', 'alpha = "0.2"'))
    result = run("check", root, "--offline", "--json")
    assert result.exit_code == 1
    assert json.loads(result.stdout)["differences"] == {"alpha": {"1/10": ["device-00"], "1/5": ["device-01"]}}
    path.write_text("what = 1")
    result = run("check", root, "--offline")
    assert result.exit_code == 1
    assert "unknown key 'what'" in result.stdout
    assert run("check", root / "nowhere", "--offline").exit_code == 1


def test_a_neighbour_with_another_name(root):
    with tls_server(port_of(root, "device-01"), root / "device-00"):
        assert reached(root) == ("error", "wrong name: 'device-00' answers there, not 'device-01'; check the endpoints")


def test_a_neighbour_signed_for_another_host(root, tmp_path):
    shutil.rmtree(root / "device-01")
    sign_device(root / "ca", root / "device-01", "device-01", ["10.0.0.1"], renew=True)
    port = int(read_device(root / "device-00").neighbours[0].endpoint.split(":")[1])
    with tls_server(port, root / "device-01"):
        level, words = reached(root)
    assert (level, words.split(";")[0]) == ("error", "wrong name: its certificate is not for 127.0.0.1")


def test_a_neighbour_that_refuses_us_and_one_that_we_refuse(root, tmp_path):
    make_authority(tmp_path / "other", "ee" * 8)
    sign_device(tmp_path / "other", tmp_path / "stranger", "device-01", ["127.0.0.1"])
    with tls_server(port_of(root, "device-01"), root / "device-01", ca=tmp_path / "other" / "ca.pem"):
        level, words = reached(root)
    assert level == "error"
    assert words.startswith("refused our certificate")
    with tls_server(port_of(root, "device-01"), tmp_path / "stranger"):
        level, words = reached(root)
    assert level == "error"
    assert words.startswith("its certificate is not good")


def test_a_neighbour_that_speaks_something_else(root):
    with tls_server(port_of(root, "device-01"), root / "device-01", plain=True):
        level, words = reached(root)
    assert (level, words.split(" (")[0]) == ("error", "speaks no TLS")


def test_without_certificates_it_is_enough_that_somebody_listens(root):
    with tls_server(port_of(root, "device-01"), root / "device-01", plain=True):
        path = root / "device-00" / "device.toml"
        path.write_text(path.read_text().replace("insecure = false", "insecure = true"))
        assert reached(root) == ("fine", "somebody listens")


def test_a_host_that_nobody_knows_and_a_key_that_cannot_be_used(root):
    path = root / "device-00" / "device.toml"
    path.write_text(path.read_text() + '[map.endpoints]\n"device-01" = "no-such-host.invalid:7601"\n')
    assert "is not known here" in reached(root)[1]
    (root / "device-00" / "device.key").write_text("x")
    assert reached(root)[1].startswith("not tried")


def test_a_neighbour_that_was_revoked(root):
    """Its certificate is still good to the authority; the folder here knows better, by name or by serial."""
    added = root / "third"
    run("add", root, "third", "--neighbour", "device-00", "--neighbour", "device-01")
    serial = read_certificate(added / "device.pem").serial
    run("revoke", root, "third")
    with tls_server(port_of(root, "device-01"), root / "revoked" / "third"):
        assert reached(root) == (
            "error",
            f"'third' answers there with a revoked certificate (serial {serial}); stop it",
        )


def test_a_revoked_name_is_never_used_again(root):
    """What neighbours know a device by is its name: with the name, the old certificate would be let in again."""
    words = ("add", root, "third", "--neighbour", "device-01")
    assert run(*words).exit_code == 0
    assert run("revoke", root, "third").exit_code == 0
    (root / "ca" / "issued" / "third.pem").unlink()  # also where the authority has forgotten
    before = (root / "device-01" / "device.toml").read_text()
    result = run(*words)
    assert result.exit_code == 2
    assert result.stderr.startswith("error: device name 'third' was revoked, and its old certificate still bears it;")
    assert not (root / "third").exists()
    assert (root / "device-01" / "device.toml").read_text() == before
    assert run("add", root, "third-2", "--neighbour", "device-01").exit_code == 0


def test_check_finds_folders_that_were_not_copied_again(root):
    """Addresses may differ for a reason; a list of revoked devices or an authority of one's own may not."""
    path = root / "device-01" / "device.toml"
    old = path.read_text()
    at = read_device(root / "device-01").endpoints["device-00"]
    path.write_text(old + '[map.endpoints]\n"device-00" = "127.0.0.1:9"\n')
    result = run("check", root, "--offline", "--json")
    assert result.exit_code == 0
    warned = [(f["device"], f["text"]) for f in json.loads(result.stdout)["findings"] if f["level"] == "warning"]
    assert warned == [("device-00", at), ("device-01", "127.0.0.1:9")]
    path.write_text(old)
    before = (root / "device-01" / "roster.json").read_bytes()
    assert run("add", root, "third", "--neighbour", "device-01").exit_code == 0
    (root / "device-01" / "roster.json").write_bytes(before)
    assert "agree on roster" in run("check", root, "--offline").stdout
    shutil.copy(root / "roster.json", root / "device-01")
    make_authority(root.parent / "other", "ee" * 8)
    sign_device(root.parent / "other", root / "device-01", "device-01", ["127.0.0.1"])
    result = run("check", root, "--offline")
    assert result.exit_code == 1
    assert "same authority" in result.stdout


def test_check_finds_keys_that_others_can_read(root):
    (root / "ca" / "ca.key").chmod(0o640)
    (root / "device-00" / "device.key").chmod(0o644)
    result = run("check", root, "--offline")
    assert result.exit_code == 1
    assert "ca.key can be read by others" in result.stdout
    assert "device.key can be read by others" in result.stdout
