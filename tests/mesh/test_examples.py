"""The container file and the systemd unit: they install from a clone, and start what there is."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from conformesh.mesh.http import server

ROOT = Path(__file__).parents[2]
CONTAINER = ROOT / "examples" / "Containerfile"
UNIT = ROOT / "examples" / "conformesh-node@.service"


def test_both_install_from_the_sources():
    """No package index has the name: whoever asks one for it gets nothing, or somebody else's program."""
    for path in (CONTAINER, UNIT):
        installs = re.findall(r"""pip install (?:--[\w-]+ )*['"]([^'"]+)['"]""", path.read_text())
        assert installs, path
        for place in installs:
            assert place.startswith(("/", "./")), (path, place)
            assert place.endswith(("[mesh]", "[${EXTRAS}]"))
    assert argument("EXTRAS") == "mesh"


def argument(name):
    """What an argument of the container file is unless it is given."""
    return re.search(rf"^ARG {name}=(\S+)$", CONTAINER.read_text(), re.M)[1]


def copied():
    return [word for line in re.findall(r"^COPY (.*)$", CONTAINER.read_text(), re.M) for word in line.split()[:-1]]


def test_the_image_is_built_from_files_that_are_there():
    assert {"pyproject.toml", "src"} <= {*copied()}
    assert all((ROOT / word).exists() for word in copied())
    needed = re.search(r'^readme = "(.+)"$', (ROOT / "pyproject.toml").read_text(), re.M)[1]
    assert needed in copied()  # without it the build fails


def test_nothing_else_goes_to_the_builder():
    """All is left out but what is copied: no folder of a device, no key, no gigabytes of results."""
    lines = [line for line in (ROOT / ".dockerignore").read_text().splitlines() if not line.startswith("#")]
    assert lines[0] == "*"
    assert {line[1:] for line in lines if line.startswith("!")} == {*copied()}


# How each builder says whether it has an image, and what it builds with; none of them is asked to fetch anything.
BUILDERS = {
    "podman": (["image", "exists"], ["build", "--pull=never"]),
    "buildah": (["inspect", "--type=image"], ["bud", "--pull-never"]),
    "docker": (["image", "inspect"], ["build"]),
}


@pytest.mark.slow
def test_the_image_is_built_and_has_the_program(tmp_path):
    """CONFORMESH_BASE names another base than the container file's, CONFORMESH_BUILD has more words for the builder."""
    base = os.environ.get("CONFORMESH_BASE", argument("BASE"))
    there = [name for name in BUILDERS if shutil.which(name)]
    able = [name for name in there if run_quietly(name, *BUILDERS[name][0], base).returncode == 0]
    if not able:
        pytest.skip(f"needs a builder that has {base}; there are: {', '.join(there) or 'none'}")
    build = [able[0], *BUILDERS[able[0]][1], *os.environ.get("CONFORMESH_BUILD", "").split()]
    name = "localhost/conformesh-node:test"
    done = run_quietly(*build, "--build-arg", f"BASE={base}", "-t", name, "-f", CONTAINER, ROOT)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    trial = tmp_path / "Containerfile"  # every builder can run something by building on it
    trial.write_text(
        f"FROM {name}\nRUN conformesh --version && id -u && conformesh node --help && python -c 'import zenoh'\n"
    )
    done = run_quietly(*build, "--no-cache", "-f", trial, tmp_path)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    said = done.stdout + done.stderr  # builders differ in where they show it
    assert re.search(r"conformesh \d", said)
    assert re.search(r"\b10001\b", said)


def run_quietly(*words):
    return subprocess.run([*map(str, words)], capture_output=True, text=True, check=False, timeout=1800)


def test_the_health_check_runs():
    code = re.search(r'CMD \["python", "-c", "(.+)"\]', CONTAINER.read_text())[1]
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert result.returncode == 1
    assert "no node answers at" in result.stderr


def test_the_service_can_be_reloaded_and_its_limits_leave_room():
    """For all connections of local programs, and for 60 neighbours; the unit and the docs state the same figures."""
    unit = dict(line.split("=", 1) for line in UNIT.read_text().splitlines() if re.match(r"\w+=", line))
    assert unit["ExecReload"] == "/bin/kill -HUP $MAINPID"
    connections = server.ServiceLimits().connections + server.MONITORING_RESERVE + server.MOST_CLOSING
    assert f"at most {connections}." in UNIT.read_text()
    assert f"at most {connections} |" in (ROOT / "docs" / "operations.md").read_text()
    neighbours = 60
    assert int(unit["LimitNOFILE"]) >= 14 + 2 * neighbours + connections
    assert int(unit["TasksMax"]) >= 6 + 4 * neighbours + server.WORKERS
    assert unit["MemoryMax"] == "1G"
    run = f"--memory=1g --pids-limit={unit['TasksMax']} --ulimit nofile={unit['LimitNOFILE']}"
    for path in (CONTAINER, ROOT / "docs" / "mesh.md"):
        assert run in path.read_text(), path


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd-analyze")
def test_the_unit_is_one(tmp_path):
    """With a program that is there; everything else as it stands."""
    program = tmp_path / "conformesh"
    program.write_text("#!/bin/sh\n")
    os.chmod(program, 0o755)
    unit = tmp_path / UNIT.name
    unit.write_text(UNIT.read_text().replace("/opt/conformesh/bin/conformesh ", f"{program} "))
    told = subprocess.run(["systemd-analyze", "verify", unit], capture_output=True, text=True, check=False)
    assert (told.returncode, told.stderr) == (0, ""), told
