"""Build the site of this version into a folder of its own, beside those of other releases; `make docs` runs this.

site/0.1.0/        the pages of that version, in which a switch leads to the others
site/versions.json what there is, newest first, in the form that the theme reads
site/index.html    leads to the newest

A folder that is there already is built anew; the others stay. A host serves `site` as it is, and so does
``python -m http.server --directory site``. Pages can be read without a server too, but then without the switch.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
VERSION = re.compile(r"\d+(\.\d+)*([.\-]?(a|b|rc|dev)\d*)?")
HOME = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<title>conformesh</title>
<meta http-equiv="refresh" content="0; url={newest}/index.html">
<a href="{newest}/index.html">conformesh {newest}</a>
</html>
"""


def order_of(version: str) -> tuple[list[int], bool, str]:
    """Sort versions by their numbers; what comes before a release is older than it."""
    number = re.match(r"[\d.]*\d", version)
    assert number is not None
    rest = version[number.end() :]
    return [int(part) for part in number[0].split(".")], not rest, rest


def listed(site: Path) -> list[str]:
    """Return the versions that a site has, newest first."""
    found = [path.name for path in site.iterdir() if (path / "index.html").exists() and VERSION.fullmatch(path.name)]
    return sorted(found, key=order_of, reverse=True)


def write_list(site: Path) -> list[str]:
    """Write which versions there are, and lead to the newest release, or to the newest of all if none is out."""
    versions = listed(site)
    if not versions:
        raise ValueError(f"{site} needs a folder named by a version with pages in it, got none; run `make docs` first")
    newest = next((version for version in versions if order_of(version)[1]), versions[0])
    entries = [
        {"version": version, "title": version, "aliases": ["latest"] if version == newest else []}
        for version in versions
    ]
    (site / "versions.json").write_text(json.dumps(entries, indent=2) + "\n", encoding="utf-8")
    (site / "index.html").write_text(HOME.format(newest=newest), encoding="utf-8")
    return versions


def build(site: Path, version: str) -> None:
    """Build the pages of the version, strictly, in the place of older ones of it."""
    if not VERSION.fullmatch(version):
        raise ValueError(f"version must be like 0.1.0 or 0.2.0rc1, got {version!r}; mend src/conformesh/__init__.py")
    folder = site / version
    if folder.exists():
        shutil.rmtree(folder)
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder.resolve())]
    subprocess.run(command, cwd=ROOT, check=True)


def main() -> None:
    """Build, list, and say where."""
    from conformesh import __version__

    parser = argparse.ArgumentParser(description="Build the site of this version.")
    parser.add_argument("--site", type=Path, default=ROOT / "site", help="the folder of all versions")
    asked = parser.parse_args()
    build(asked.site, __version__)
    print(f"{asked.site.name}/ has {', '.join(write_list(asked.site))}")


if __name__ == "__main__":
    try:
        main()
    except subprocess.CalledProcessError as failed:
        raise SystemExit(failed.returncode) from None
    except ValueError as problem:
        raise SystemExit(f"error: {problem}") from None
