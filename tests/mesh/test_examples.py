"""The container file and the systemd unit: they install from a clone, and start what there is."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CONTAINER = ROOT / "examples" / "Containerfile"
UNIT = ROOT / "examples" / "conformesh-node@.service"


def test_both_install_from_the_sources():
    """No package index has the name: whoever asks one for it gets nothing, or somebody else's program."""
    for path in (CONTAINER, UNIT):
        installs = re.findall(r"pip install (?:--[\w-]+ )*'([^']+)'", path.read_text())
        assert installs, path
        for place in installs:
            assert place.startswith(("/", "./")), (path, place)
            assert place.endswith("[mesh]")


def test_the_image_is_built_from_files_that_are_there():
    copied = [word for line in re.findall(r"^COPY (.*)$", CONTAINER.read_text(), re.M) for word in line.split()[:-1]]
    assert {"pyproject.toml", "src"} <= {*copied}
    assert all((ROOT / word).exists() for word in copied)
    needed = re.search(r'^readme = "(.+)"$', (ROOT / "pyproject.toml").read_text(), re.M)[1]
    assert needed in copied  # without it the build fails


def test_the_health_check_runs():
    code = re.search(r'CMD \["python", "-c", "(.+)"\]', CONTAINER.read_text())[1]
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert result.returncode == 1
    assert "no node answers at" in result.stderr


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
