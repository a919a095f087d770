"""The authority is killed at every write of every command: no number is signed twice, and the next command recovers."""

import json
import os
import shutil
import subprocess
import sys

import pytest

from conformesh import Network

pytest.importorskip("cryptography", reason="a mesh needs certificates: pip install 'conformesh[mesh]'")
from conformesh.files import atomic_writes
from conformesh.files.atomic_writes import KILLED
from conformesh.mesh.config import authority, folders
from conformesh.mesh.config.certificates import issued_certificates
from conformesh.mesh.config.checks import check_folder, compare_maps, examine_authority
from conformesh.mesh.config.device_toml import read_device
from conformesh.mesh.config.folders import (
    add_device,
    compare_agreements,
    current_roster,
    device_folders,
    init_mesh,
    reissue_device,
    renew_device,
    revoke_device,
)
from conformesh.mesh.config.roster import read_roster_file
from conformesh.mesh.config.signing import verify_document
from tests.mesh.crashes import MOVE, WRITE, Signed, TwoRostersError, kill, kind_of, passed

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="kills forked processes")
COMMANDS = {
    "add": lambda root: add_device(root, "late", ["device-00", "device-02"]),
    "revoke": lambda root: revoke_device(root, "device-01"),
    "renew": lambda root: renew_device(root, "device-02"),
    "revoke --certificate": lambda root: reissue_device(root, "device-00"),
}
MAKES_ROSTER = ("add", "revoke", "revoke --certificate")
# What comes after a crash: the same command again, or another one
AFTER = {"add": "revoke", "revoke": "add", "renew": "revoke --certificate", "revoke --certificate": "add"}
WRITTEN = ("authority.json", "device.key", "device.pem", "ca.pem", "issued", "device.toml", "scores.csv", "roster.json")
POINTS = {f"{file}/{step}" for file in (*WRITTEN, "README.md") for step in WRITE} | {f"folder/{step}" for step in MOVE}


@pytest.fixture(autouse=True)
def _no_flush(monkeypatch):
    """A killed process leaves what it wrote to the system, flushed or not: flushing here only takes time."""
    monkeypatch.setattr(os, "fsync", lambda handle: None)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    root = tmp_path_factory.mktemp("crashes") / "m"
    init_mesh(root, Network.complete(4))
    return root


def copied(made, to):
    shutil.rmtree(to, ignore_errors=True)
    shutil.copytree(made, to)
    return to


def assert_in_order(root):
    """All folders are whole and agree, and nothing of a crash is left."""
    assert read_roster_file(root).roster.number == current_roster(root)
    roots = device_folders(root)
    assert compare_agreements(roots) == {}
    assert compare_maps(roots) == []
    problems = [one for folder in roots for one in check_folder(folder) if one.level == "error"]
    assert not problems + [one for one in examine_authority(root) if one.level == "error"]
    for folder in roots:
        verify_document(read_roster_file(folder), folder / "ca.pem")
    assert not [*root.rglob("*.key.*.tmp"), *root.glob(".authority.json.*.tmp")]
    assert authority.read_authority_record(root).change is None


def done(root):
    """Return which of the commands were carried out, whole or not at all, and how often."""
    devices = read_device(root / "device-00").devices
    assert (root / "late").exists() == ("late" in devices)
    assert (root / "revoked" / "device-01").exists() == ("device-01" not in devices)
    found = ["add"] * ("late" in devices) + ["revoke"] * ("device-01" not in devices)
    for command, name in (("renew", "device-02"), ("revoke --certificate", "device-00")):
        numbers = [one.number for one in issued_certificates(root / "ca", name)]
        assert numbers == [*range(1, 1 + len(numbers))]
        found += [command] * (len(numbers) - 1)
    assert current_roster(root) == 1 + sum(command in MAKES_ROSTER for command in found)
    return sorted(found)


def names_a_way(words):
    return any(way in words for way in ("run it again", "run this again"))


def is_recorded(root):
    """Whether a change waits to be finished; then whoever only reads is refused in words that say what to do."""
    recorded = authority.read_authority_record(root).change is not None
    problems = [one.text for one in examine_authority(root) if one.level == "error"]
    assert len(problems) == recorded
    assert all(map(names_a_way, problems))
    if recorded and (root / "device-00").exists():
        with pytest.raises(ValueError, match="run it again"):
            device_folders(root)
    return recorded


def crash_and_recover(root, command, number, caplog):
    """Kill a command at the failpoint of this number, then run it again, or another one, and look at what is left."""
    signed = Signed()
    signed.look(root)
    assert kill(lambda: COMMANDS[command](root), number)
    signed.look(root)
    recorded = is_recorded(root)
    if number % 3 == 0 and (recorded or not done(root)):  # whoever recovers is killed as well, somewhere
        kill(lambda: COMMANDS[command](root), 1 + number // 3)
        signed.look(root)
        recorded = is_recorded(root)
    before = [command] if recorded else done(root)
    caplog.clear()
    again = number % 2 == 1
    if again and before == [command] and not recorded and command in ("add", "revoke"):
        # The process died when all was done: the command is refused, in words that say that it was carried out
        with pytest.raises(ValueError, match=r"is taken|unknown device"):
            COMMANDS[command](root)
        expected = before
    elif again:
        COMMANDS[command](root)
        expected = [command] if recorded else [*before, command]
    else:
        COMMANDS[AFTER[command]](root)
        expected = [*before, AFTER[command]]
    signed.look(root)
    said = [one.getMessage() for one in caplog.records if "interrupted, and finished it" in one.getMessage()]
    assert len(said) == recorded
    assert done(root) == sorted(expected)
    assert_in_order(root)


@pytest.fixture(scope="module")
def points(made, tmp_path_factory):
    """The failpoints that each command passes."""
    root = tmp_path_factory.mktemp("points") / "m"
    return {name: passed(lambda c=command: c(copied(made, root))) for name, command in COMMANDS.items()}


def test_every_write_of_the_authority_is_a_failpoint(points, tmp_path):
    init = passed(lambda: init_mesh(tmp_path / "new", Network.chain(2)))
    assert {kind_of(name) for names in points.values() for name in names} == POINTS
    assert {f"ca.key/{step}" for step in WRITE} <= {*init}
    assert {kind_of(name) for name in init} <= POINTS | {f"ca.key/{step}" for step in WRITE}


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_that_is_killed_is_finished_or_never_was(made, points, tmp_path, caplog, command):
    """Every 17th failpoint, another choice for each command; the whole campaign is slow."""
    for number in range(1 + len(command) % 17, len(points[command]) + 1, 17):
        crash_and_recover(copied(made, tmp_path / "m"), command, number, caplog)


@pytest.mark.slow
def test_kills_at_every_failpoint_of_the_authority(made, points, tmp_path, caplog):
    """A third of the kills is followed by another one while the authority recovers."""
    kills = sum(map(len, points.values()))
    assert kills >= 200
    print(f"{kills} kills of the authority, one at each failpoint that a command passes, of {len(POINTS)} kinds")
    for command, names in points.items():
        for number in range(1, 1 + len(names)):
            crash_and_recover(copied(made, tmp_path / "m"), command, number, caplog)


# --- bugs on purpose: the campaign must notice each -------------------------------------------------------------------


def numbers_from_folders(patch):
    """As it was: nothing is written ahead, and the next number is that of the folders and one."""
    patch.setattr(authority.Authority, "commit", authority.Authority._apply)
    patch.setattr(folders, "_last_roster", lambda opened, config: folders._roster_of(config))


def record_after_files(patch):
    """The change is recorded when its files are there already."""
    made = authority.Authority.commit

    def make(self, change):
        self._apply(change)
        made(self, change)

    patch.setattr(authority.Authority, "commit", make)


def rolls_back_what_was_handed_out(patch):
    """A change that was interrupted is dropped, though its roster may be in a folder."""

    def finish_interrupted(self):
        if self._record.change is not None:
            self._write(authority.AuthorityRecord(roster=self._record.roster))

    patch.setattr(authority.Authority, "finish_interrupted", finish_interrupted)
    patch.setattr(folders, "_last_roster", lambda opened, config: opened.roster)


@pytest.mark.parametrize("bug", [None, numbers_from_folders, record_after_files, rolls_back_what_was_handed_out])
def test_kills_notice(made, tmp_path, monkeypatch, bug):
    """Killed when only the root has the new roster; another command then signs the number again, if it can."""
    if bug is not None:
        bug(monkeypatch)
    names = passed(lambda: COMMANDS["revoke"](copied(made, tmp_path / "m")))
    root, signed = copied(made, tmp_path / "m"), Signed()
    assert kill(lambda: COMMANDS["revoke"](root), 1 + names.index("roster.json/renamed"))
    signed.look(root)
    COMMANDS["add"](root)
    if bug is None:
        signed.look(root)
        return
    with pytest.raises(TwoRostersError):
        signed.look(root)


def test_a_crash_never_leads_to_a_second_roster_of_one_number(made, tmp_path, monkeypatch):
    """A write fails right after the new roster is in one folder; then another change is made.

    Whoever took the roster from that folder, as a device that runs there does, has the only one of its number.
    """
    root = copied(made, tmp_path / "m")
    with monkeypatch.context() as patch:
        replace = type(root).replace

        def fail_after_first(self, target):
            replace(self, target)
            if target == root / "roster.json":
                raise KeyboardInterrupt

        patch.setattr(type(root), "replace", fail_after_first)
        with pytest.raises(KeyboardInterrupt):
            add_device(root, "late", ["device-00"])
    first = read_roster_file(root).roster
    assert first.number == 2
    revoke_device(root, "device-01")
    rosters = [read_roster_file(folder).roster for folder in device_folders(root)]
    assert {roster.number for roster in rosters} == {3}
    assert first.devices in [one.devices for one in rosters[0].earlier]  # which still count


# --- init, locks, the command line ------------------------------------------------------------------------------------


def test_an_interrupted_init_is_finished_or_says_what_to_do(tmp_path, caplog):
    def make(root):
        return init_mesh(root, Network.chain(2))

    names = passed(lambda: make(tmp_path / "all"))
    for number in range(1, 1 + len(names), 11):
        root = tmp_path / f"m{number}"
        assert kill(lambda root=root: make(root), number)
        with pytest.raises(ValueError, match=r"run this again|has a mesh already; use that") as caught:
            make(root)
        words = str(caught.value)
        if "before it made any device" in words:
            shutil.rmtree(root)
            make(root)
        assert ("is whole now" in words) == ("interrupted, and finished it" in caplog.text)
        assert ("has a mesh already" in words) == (number > len(names) - 2)  # all was done
        assert_in_order(root)
        caplog.clear()


def test_one_command_of_the_authority_at_a_time(made, tmp_path):
    root = copied(made, tmp_path / "m")
    with (
        authority.open_authority(root),
        pytest.raises(ValueError, match=f"process {os.getpid()} changes this mesh now; wait"),
    ):
        add_device(root, "late", ["device-00"])
    add_device(root, "late", ["device-00"])


def test_an_authority_without_its_record_signs_nothing(made, tmp_path):
    root = copied(made, tmp_path / "m")
    record = (root / "authority.json").read_bytes()
    (root / "authority.json").unlink()
    with pytest.raises(ValueError, match=r"authority.json is missing.* Put it back"):
        add_device(root, "late", ["device-00"])
    (root / "authority.json").write_bytes(record)
    add_device(root, "late", ["device-00"])
    (root / "authority.json").write_bytes(record)  # an old copy: roster 2 was signed since
    with pytest.raises(ValueError, match=r"roster 1 .* was signed last.*folders have roster 2 .*put back the newest"):
        revoke_device(root, "device-01")


def test_scores_that_were_put_into_a_new_folder_outlast_the_recovery(made, points, tmp_path):
    root = copied(made, tmp_path / "m")
    assert kill(lambda: COMMANDS["add"](root), 1 + points["add"].index("scores.csv/done"))
    (root / "late" / "scores.csv").write_text("score\n0.5\n")
    COMMANDS["add"](root)
    assert (root / "late" / "scores.csv").read_text() == "score\n0.5\n"
    assert_in_order(root)


def conformesh(*words, failpoint=""):
    env = {**os.environ, atomic_writes.FAILPOINT: failpoint}
    command = [sys.executable, "-m", "conformesh", *map(str, words)]
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=120, check=False)


def test_the_command_line_says_what_was_found_and_done(made, tmp_path):
    """A real process, killed by the variable that operators never set."""
    root = copied(made, tmp_path / "m")
    add = ("mesh", "add", root, "late", "--neighbour", "device-00")
    ended = conformesh(*add, failpoint="device.toml/renamed:2")
    assert (ended.returncode, ended.stderr) == (
        KILLED,
        "killed at failpoint device.toml/renamed, as CONFORMESH_FAILPOINT says\n",
    )
    checked = conformesh("mesh", "check", root, "--offline", "--json")
    assert checked.returncode == 1
    assert any("conformesh mesh add late" in one["text"] for one in json.loads(checked.stdout)["findings"])
    again = conformesh(*add)
    assert again.returncode == 0
    assert "found `conformesh mesh add late` interrupted, and finished it; hand roster 2" in again.stderr
    assert again.stdout.startswith("added late")
    assert_in_order(root)


def test_a_failpoint_needs_a_name_and_a_count():
    for text in ("journal.bin/torn", "journal.bin/torn:0", ":3", "yes"):
        with pytest.raises(ValueError, match="must be FILE/STEP:COUNT"):
            atomic_writes.kill_at_failpoint(text)
    visit = atomic_writes.kill_at_failpoint("a/torn:2")
    visit("a/torn")
    visit("b/torn")
    assert atomic_writes.on_failpoint is None


def test_a_change_is_on_the_disk_before_any_of_its_files(points):
    """`authority.json/done` is passed when the record, and the name of its file, were flushed."""
    for names in points.values():
        assert names[: len(WRITE)] == [f"authority.json/{step}" for step in WRITE]
        assert names[-len(WRITE) :] == [f"authority.json/{step}" for step in WRITE]
