"""Imports point one way through every room, and importing stays light."""

import ast
import subprocess
import sys
import warnings
from pathlib import Path

import pytest

import conformesh

SOURCE = Path(__file__).parents[1] / "src" / "conformesh"
FLOORS = (  # a room imports itself and rooms on lower floors; rooms of one floor do not know each other
    {"_version", "cards", "names", "notes", "progress", "quantities", "streams"},
    {"faults", "io"},
    {"kernels"},
    {"graph", "scores"},
    {"centres", "losses"},
    {"guarantee"},
    {"data", "privacy", "result", "shift", "table"},
    {"protocols"},
    {"methods", "peer"},
    {"engines"},
    {"problems"},
    {"solver"},
    {"api", "online", "pvalues", "quantile"},
    {"detecting"},
    {"comparing", "mesh", "planning", "sklearn", "sweeping", "training"},
    {"compared", "plots", "view"},
    {"experiments"},
    {"cli"},
    {"__main__"},
)
UPWARD = {  # what may look up, when first called or for a type alone, and why
    ("table.py", "engines"): "`Table.on` names the type of the engine whose devices it takes",
    ("result/result.py", "api"): "`Result.update` calibrates again",
    ("result/result.py", "methods"): "`Result.update` keeps the options of its method",
    ("result/result.py", "protocols"): "`Result.of` names the type of what a method hands back",
    ("result/result.py", "plots"): "`Result.plot` draws",
    ("result/evaluation.py", "plots"): "`Evaluation.plot` draws",
    ("result/quantiles.py", "plots"): "`Quantiles.plot` draws",
    ("result/quantiles.py", "quantile"): "`Quantiles.with_q` reads other quantiles from its release",
    ("result/consistency.py", "methods"): "a result file names a method that exists",
    ("comparing.py", "compared"): "a `Comparison` in a notebook says which to use",
    ("comparing.py", "plots"): "`Comparison.plot` draws",
    ("planning/planner.py", "plots"): "`Plan.plot` draws",
    ("privacy/exposure.py", "methods"): "`exposure_of` asks the method what it reveals",
    ("privacy/exposure.py", "result"): "`exposure_of_result` names the type of what it reads",
}
FLOOR = {room: number for number, rooms in enumerate(FLOORS) for room in rooms}


def room_of(path):
    place = path.relative_to(SOURCE)
    return place.parts[0] if len(place.parts) > 1 else place.stem


def imported(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "conformesh":
            inside = node.module.removeprefix("conformesh").lstrip(".")
            yield from [inside] if inside else (alias.name for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from (a.name.removeprefix("conformesh.") for a in node.names if a.name.startswith("conformesh."))


def looks_up(path):
    """Rooms that a file imports though they are not below its own."""
    mine = room_of(path)
    for module in imported(path):
        other = module.split(".")[0]
        if other != mine and FLOOR[other] >= FLOOR[mine] and (str(path.relative_to(SOURCE)), other) not in UPWARD:
            yield module


def test_every_room_has_a_floor():
    rooms = {room_of(path) for path in SOURCE.rglob("*.py")} - {"__init__"}
    assert rooms == set(FLOOR)


@pytest.mark.parametrize("room", sorted(FLOOR))
def test_imports_point_one_way(room):
    paths = [path for path in SOURCE.rglob("*.py") if room_of(path) == room]
    assert paths
    for path in paths:
        assert not [*looks_up(path)], f"{path.relative_to(SOURCE)} looks up"


def test_an_import_that_looks_up_is_found(tmp_path, monkeypatch):
    """The check itself: in a subfolder, inside a function, of a module below a package."""
    monkeypatch.setattr(f"{__name__}.SOURCE", tmp_path)
    planted = tmp_path / "protocols" / "aggregate" / "tree.py"
    planted.parent.mkdir(parents=True)
    planted.write_text("def total():\n    from conformesh.engines.mpi import Mpi\n")
    assert [*looks_up(planted)] == ["engines.mpi"]


@pytest.mark.parametrize("room", ["protocols", "peer", "kernels", "privacy", "guarantee", "problems", "online"])
def test_what_is_pure_does_no_io(room):
    """No sockets, files, clocks or randomness of their own: an engine has these, and a stream comes with its seed."""
    banned = {
        "socket",
        "time",
        "random",
        "threading",
        "asyncio",
        "subprocess",
        "os",
        "pathlib",
        "numpy.random",
        "secrets",
    }
    allowed = {  # a journal on disk, the cores of the machine, a file to save
        "peer/journal.py": {"os", "pathlib"},
        "peer/words.py": {"os"},  # os.strerror, which does no I/O
        "kernels/threads.py": {"os"},
        "privacy/account.py": {"pathlib"},  # how often epochs were released, on disk
        "online/result.py": {"pathlib"},  # where a user says to save rows
        "online/simulation.py": {"pathlib"},  # and a checkpoint
        "online/checkpoint.py": {"pathlib", "time"},  # which is saved every few seconds, not in every block
    }
    for path in (path for path in SOURCE.rglob("*.py") if room_of(path) == room):
        used = {name for name in names_used(path) for name in (name, name.split(".")[0])}
        assert used & banned <= allowed.get(path.relative_to(SOURCE).as_posix(), set()), path


def names_used(path):
    """Modules that a file imports, and NumPy's randomness where it calls that."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
        elif isinstance(node, ast.Call) and ast.unparse(node.func).startswith(("np.random.", "numpy.random.")):
            yield "numpy.random"


def test_every_public_name_is_found_without_a_warning():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for name in conformesh.__all__:
            assert getattr(conformesh, name) is not None
    assert {*conformesh.__all__} <= {*dir(conformesh)}


def test_importing_the_library_loads_nothing_heavy():
    code = "import sys, conformesh; print(' '.join(m for m in sys.modules if '.' not in m))"
    loaded = set(
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    )
    assert not loaded & {"matplotlib", "sklearn", "polars", "pandas", "networkx", "click", "rich", "mpi4py", "zenoh"}
