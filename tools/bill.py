"""The bill of materials of a release: what the wheel brings along, as CycloneDX; `make release` runs this.

    python tools/bill.py ENVIRONMENT FILE

The environment has the wheel and what it asks for. Where a package was installed from is left out, since that is this
machine's affair; the same environment gives the same file.
"""

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
TOOLS = ("pip", "setuptools", "wheel")  # of the environment, not of the package
KEPT = ("website", "vcs", "issue-tracker", "documentation")  # links that are the same whoever installs


def bill(environment):
    """Return the bill of an environment; its main component is this project."""
    python = Path(environment) / "bin" / "python"
    command = [sys.executable, "-m", "cyclonedx_py", "environment", str(python), "--output-reproducible"]
    project = ["--pyproject", str(ROOT / "pyproject.toml"), "--mc-type", "library"]
    made = subprocess.run([*command, *project], check=True, capture_output=True, text=True).stdout
    asked = [str(python), "-c", "import importlib.metadata; print(importlib.metadata.version('conformesh'))"]
    version = subprocess.run(asked, check=True, capture_output=True, text=True).stdout.strip()
    return cleaned(json.loads(made), version)


def cleaned(found, version):
    """Name the version, and leave out tools of the environment and where packages came from."""
    own = found["metadata"]["component"]
    own |= {"version": version, "purl": f"pkg:pypi/{own['name']}@{version}"}
    gone = {each["bom-ref"] for each in found["components"] if each["name"] in TOOLS}
    found["components"] = [each for each in found["components"] if each["bom-ref"] not in gone]
    found["dependencies"] = [each for each in found["dependencies"] if each["ref"] not in gone]
    for each in [own, *found["metadata"]["tools"]["components"], *found["components"]]:
        links = [link for link in each.pop("externalReferences", []) if link["type"] in KEPT]
        each.update({"externalReferences": links} if links else {})
    return found


def main(environment, file):
    """Write the bill of the environment into the file."""
    found = bill(environment)
    Path(file).write_text(json.dumps(found, indent=2, sort_keys=True) + "\n", encoding="utf-8")
    print(f"{file}: {len(found['components'])} components")


if __name__ == "__main__":
    if len(sys.argv) != 3:
        raise SystemExit(f"bill needs an environment and a file to write, got {sys.argv[1:]}; run it by `make release`")
    main(*sys.argv[1:])
