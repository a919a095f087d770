"""Imports point one way, and importing the library stays light."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src" / "conformesh"
BELOW = {  # a room may import itself and what stands here
    "kernels": set(),
    "scores": {"kernels"},
    "bounds": {"kernels", "protocols.wire"},
    "protocols": {"kernels", "bounds"},
    "engines": {"kernels", "protocols", "bounds"},
}


def imported(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("conformesh"):
            yield node.module.removeprefix("conformesh").lstrip(".")
        elif isinstance(node, ast.Import):
            yield from (a.name.removeprefix("conformesh.") for a in node.names if a.name.startswith("conformesh"))


@pytest.mark.parametrize("room", BELOW)
def test_imports_point_one_way(room):
    rooms = {
        "kernels",
        "scores",
        "bounds",
        "protocols",
        "engines",
        "methods",
        "calibrating",
        "calibration",
        "data",
        "cli",
    }
    for path in (SOURCE / room).rglob("*.py"):
        for module in imported(path):
            top = module.split(".")[0]
            if top in rooms and top != room:
                assert top in BELOW[room] or module in BELOW[room], f"{path.name} imports {module}"


def test_protocols_do_no_io():
    """No sockets, files, clocks or randomness of their own in a protocol."""
    banned = {"socket", "time", "random", "threading", "asyncio", "os", "pathlib", "subprocess"}
    for path in (SOURCE / "protocols").glob("*.py"):
        tree = ast.parse(path.read_text())
        names = {a.name.split(".")[0] for n in ast.walk(tree) if isinstance(n, ast.Import) for a in n.names}
        names |= {n.module.split(".")[0] for n in ast.walk(tree) if isinstance(n, ast.ImportFrom) and n.module}
        assert not names & banned, f"{path.name} imports {names & banned}"


def test_importing_the_library_loads_nothing_heavy():
    code = "import sys, conformesh; print(' '.join(m for m in sys.modules if '.' not in m))"
    loaded = set(
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    )
    assert not loaded & {"matplotlib", "sklearn", "polars", "pandas", "networkx", "typer", "rich", "mpi4py", "zenoh"}
