"""A release is what it says: its support window, its pins, its bill of materials and the site of every version."""

import importlib.util
import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

import conformesh

ROOT = Path(__file__).parents[1]
SETTINGS = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
PROJECT = SETTINGS["project"]
LOCK = (ROOT / "requirements" / "dev.lock").read_text(encoding="utf-8")
LOCKED = ("test", "docs", "release")  # the extras whose versions are pinned


def load(path):
    found = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module


# --- what is supported ------------------------------------------------------------------------------------------------


def test_classifiers_and_words_name_the_same_interpreters():
    named = [word.rpartition(" ")[2] for word in PROJECT["classifiers"] if re.search(r"Python :: 3\.\d+$", word)]
    assert PROJECT["requires-python"] == f">={named[0]}"
    said = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8").partition("## Supported versions")[2]
    assert f"Python {', '.join(named[:-1])} and {named[-1]}" in said


def test_the_security_policy_names_this_release():
    said = (ROOT / "SECURITY.md").read_text(encoding="utf-8")
    assert f"it is {'.'.join(conformesh.__version__.split('.')[:2])}," in said


# --- the lock file ----------------------------------------------------------------------------------------------------


def pins():
    """Versions by name: several where they differ between interpreters or systems."""
    found = {}
    for name, version in re.findall(r"^([A-Za-z0-9._-]+)==(\S+)", LOCK, re.MULTILINE):
        found.setdefault(canonicalize_name(name), []).append(Version(version))
    return found


@pytest.mark.parametrize("extra", ["", *LOCKED])
def test_the_lock_has_a_version_in_every_range(extra):
    asked = PROJECT["optional-dependencies"][extra] if extra else PROJECT["dependencies"]
    pinned = pins()
    for requirement in map(Requirement, asked):
        versions = pinned.get(canonicalize_name(requirement.name), [])
        assert versions, f"{requirement} is not in requirements/dev.lock: run `make lock`"
        assert all(version in requirement.specifier for version in versions), f"{requirement}: run `make lock`"


def test_every_pin_has_a_hash_and_no_pin_names_a_place():
    blocks = re.split(r"\n(?=[A-Za-z0-9])", LOCK.strip())
    assert len(blocks) >= len(pins()) > 50
    for block in blocks:
        assert re.search(r"--hash=sha256:[0-9a-f]{64}", block), block.splitlines()[0]
    assert not re.search(r"https?:|file:|--index|--find-links|/", re.sub(r"# via.*|\bpython_.*|\bsys_.*", "", LOCK))


# --- the bill of materials --------------------------------------------------------------------------------------------


def test_a_bill_says_what_is_in_a_wheel_and_nothing_of_this_machine():
    def entry(name, **more):
        return {"name": name, "bom-ref": f"{name}==1", **more}

    links = [{"type": "distribution", "url": "file:///home/me"}, {"type": "website", "url": "https://numpy.org"}]
    made = {
        "metadata": {"component": entry("conformesh"), "tools": {"components": [entry("maker")]}},
        "components": [entry("numpy", externalReferences=links), entry("pip", externalReferences=links)],
        "dependencies": [{"ref": "numpy==1"}, {"ref": "pip==1"}],
    }
    found = load(ROOT / "tools" / "bill.py").cleaned(made, "0.1.0")
    assert found["metadata"]["component"]["purl"] == "pkg:pypi/conformesh@0.1.0"
    assert [each["name"] for each in found["components"]] == ["numpy"]
    assert found["dependencies"] == [{"ref": "numpy==1"}]
    assert found["components"][0]["externalReferences"] == links[1:]
    assert "file:" not in json.dumps(found)


def test_the_smoke_test_refuses_the_source_tree():
    done = subprocess.run([sys.executable, ROOT / "tools" / "smoke.py"], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "run it by `make smoke`" in done.stderr


# --- the site of every version ----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def versions():
    return load(ROOT / "docs" / "versions.py")


def site_of(folder, *names):
    for name in names:
        (folder / name).mkdir()
        (folder / name / "index.html").write_text("")
    return folder


def test_versions_are_listed_newest_first_and_home_is_the_newest_release(versions, tmp_path):
    site = site_of(tmp_path, "0.9.0", "0.10.0", "0.10.0rc1", "1.0.0.dev0", "assets")
    assert versions.write_list(site) == ["1.0.0.dev0", "0.10.0", "0.10.0rc1", "0.9.0"]
    listed = json.loads((site / "versions.json").read_text())
    assert [each["version"] for each in listed if each["aliases"]] == ["0.10.0"]
    assert "url=0.10.0/index.html" in (site / "index.html").read_text()


def test_before_the_first_release_home_is_what_there_is(versions, tmp_path):
    versions.write_list(site_of(tmp_path, "0.1.0rc1"))
    assert "url=0.1.0rc1/index.html" in (tmp_path / "index.html").read_text()


def test_a_site_without_versions_and_a_strange_version_are_refused(versions, tmp_path):
    with pytest.raises(
        ValueError, match="needs a folder named by a version with pages in it, got none; run `make docs`"
    ):
        versions.write_list(tmp_path)
    with pytest.raises(ValueError, match=r"version must be like 0.1.0 or 0.2.0rc1, got '\.\./x'"):
        versions.build(tmp_path, "../x")


# --- mutants ----------------------------------------------------------------------------------------------------------


def test_every_module_to_mutate_exists():
    """A pattern without a file would leave a module untested by mutants, and nothing else would notice."""
    for pattern in SETTINGS["tool"]["mutmut"]["only_mutate"]:
        assert [*ROOT.glob(pattern)], f"pyproject.toml: nothing matches {pattern}"
