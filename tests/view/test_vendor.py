"""The libraries of the page are what the documented build gives, and no more than that."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TOOLS = ROOT / "tools" / "page"
PAGE = ROOT / "src" / "conformesh" / "view" / "page"
BUILT = ("vendor.js", "vendor.css", "LICENSES.txt")


def test_no_registry_is_named():
    """Any mirror serves: versions are pinned by hash, not by where they come from."""
    lock = (TOOLS / "package-lock.json").read_text()
    assert "resolved" not in lock
    assert "http" not in lock
    assert lock.count('"integrity": "sha512-') == lock.count('"node_modules/')


def test_the_page_asks_the_network_for_nothing():
    """No address but those of namespaces, which nobody opens."""
    for file in sorted(PAGE.iterdir()):
        found = set(re.findall(r"https?://[\w./-]+", file.read_text()))
        if file.name != "LICENSES.txt":
            assert {url for url in found if not url.startswith("http://www.w3.org/")} == set(), file.name


def test_what_a_trace_says_never_becomes_markup():
    """Our own scripts make elements and text; none writes markup or runs text."""
    for file in sorted(PAGE.glob("*.js")):
        if file.name != "vendor.js":
            assert not re.search(
                r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\b|new Function", file.read_text()
            ), file.name


@pytest.mark.slow
def test_the_build_gives_what_is_committed(tmp_path):
    for command in ("node", "npm"):
        if shutil.which(command) is None:
            pytest.skip(f"the build of the page needs {command}")
    work = tmp_path / "page"
    shutil.copytree(TOOLS, work, ignore=shutil.ignore_patterns("node_modules"))
    got = subprocess.run(
        ["npm", "ci", "--ignore-scripts"], cwd=work, capture_output=True, text=True, timeout=300, check=False
    )
    if got.returncode:
        pytest.skip(f"npm could not fetch the libraries: {got.stderr.strip()[-200:]}")
    subprocess.run(["node", "build.mjs", "built"], cwd=work, check=True, capture_output=True, timeout=120)
    for name in BUILT:
        assert (work / "built" / name).read_bytes() == (PAGE / name).read_bytes(), f"{name}: run make page"
