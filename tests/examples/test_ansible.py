"""The Ansible example: what the linter asks, folders that arrive as they must, a second run that changes nothing."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from conformesh import Network
from conformesh.mesh.config.folders import init_mesh

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "examples" / "ansible"
TASKS = FOLDER / "roles" / "conformesh" / "tasks"

needs_ansible = pytest.mark.skipif(shutil.which("ansible-playbook") is None, reason="needs ansible-playbook")


def play(*words, inventory=FOLDER / "inventory.yml"):
    command = ["ansible-playbook", "-i", str(inventory), "site.yml", *words]
    done = subprocess.run(command, cwd=FOLDER, capture_output=True, text=True, check=False, timeout=300)
    return done.returncode, done.stdout + done.stderr


def tasks(name):
    return yaml.safe_load((TASKS / name).read_text())


def copies(name):
    return {task["name"]: task for task in tasks(name) if "ansible.builtin.copy" in task}


def test_keys_are_for_the_device_alone_and_newer_files_stay():
    identity, first = copies("devices.yml").values()
    for task in (identity, first):
        assert task["ansible.builtin.copy"]["mode"] == "0600"
        assert task["diff"] is False
    assert "device.key" in identity["loop"]
    assert first["ansible.builtin.copy"]["force"] is False
    assert "roster.json" in first["loop"]
    assert "scores.csv" in first["loop"]
    assert "ca.key" not in (TASKS / "devices.yml").read_text()


def test_the_program_comes_from_the_clone():
    """No package index has the name: whoever asks one for it gets nothing, or somebody else's program."""
    (installed,) = re.findall(r"ansible.builtin.pip:\n +name: (.*)", (TASKS / "program.yml").read_text())
    assert installed.startswith('"{{ conformesh_program }}/source-')
    assert tasks("program.yml")[0]["ansible.builtin.command"]["argv"][:3] == ["git", "-C", "{{ conformesh_clone }}"]


@needs_ansible
def test_the_playbook_is_one():
    status, words = play("--syntax-check")
    assert status == 0, words
    status, words = play("--list-hosts")
    assert {*re.findall(r"^ +(pi-\d|server)$", words, re.M)} == {"pi-0", "pi-1", "server"}


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("ansible-lint") is None, reason="needs ansible-lint")
def test_the_linter_has_nothing_to_say():
    command = ["ansible-lint", "--offline", "--nocolor", "--profile", "production", "site.yml"]
    done = subprocess.run(command, cwd=FOLDER, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
@needs_ansible
def test_folders_arrive_and_a_second_run_changes_nothing(tmp_path):
    """On this machine, in a scratch folder and as this user; the program is the one under test."""
    init_mesh(tmp_path / "mesh", Network.chain(2))
    program = tmp_path / "program" / "bin" / "conformesh"
    program.parent.mkdir(parents=True)
    program.write_text(f'#!/bin/sh\nPYTHONPATH={ROOT / "src"} exec {sys.executable} -m conformesh "$@"\n')
    program.chmod(0o755)
    facts = {
        "ansible_connection": "local",
        "ansible_become": False,
        "ansible_python_interpreter": sys.executable,
        "conformesh_devices": [{"name": "device-00"}, {"name": "device-01"}],
        "conformesh_folders": str(tmp_path / "mesh"),
        "conformesh_program": str(tmp_path / "program"),
        "conformesh_state": str(tmp_path / "state"),
        "conformesh_user": Path.home().owner(),
        "conformesh_group": Path.home().group(),
    }
    inventory = tmp_path / "inventory.yml"
    inventory.write_text(yaml.safe_dump({"mesh": {"hosts": {"here": facts}}}))

    status, words = play("--tags", "devices", "--skip-tags", "user,service", inventory=inventory)
    assert status == 0, words
    folder = tmp_path / "state" / "device-01"
    assert {one.name for one in folder.iterdir()} == {one.name for one in (tmp_path / "mesh" / "device-01").iterdir()}
    assert all(one.stat().st_mode & 0o077 == 0 for one in folder.iterdir())

    (folder / "scores.csv").write_text("device,score\ndevice-01,0.5\n")
    status, words = play("--tags", "devices", "--skip-tags", "user,service", inventory=inventory)
    assert status == 0, words
    assert " changed=0 " in words
    assert (folder / "scores.csv").read_text().endswith("0.5\n")

    (folder / "device.toml").write_text("broken")
    (tmp_path / "mesh" / "device-01" / "device.toml").write_text("broken")
    status, words = play("--tags", "devices", "--skip-tags", "user,service", inventory=inventory)
    assert status != 0, "a folder that is wrong is found before anything is started"
