"""Imports point one way through the layers of packages, and importing stays light."""

import ast
import subprocess
import sys
import warnings
from pathlib import Path

import pytest

import conformesh

SOURCE = Path(__file__).parents[1] / "src" / "conformesh"
# A package imports itself and packages of the layers before its own; packages of one layer do not import each other.
LAYERS = (
    {"common"},
    {"kernels"},
    {"files", "scores"},
    {"graph", "guarantee"},
    {"privacy"},
    {"results", "table"},
    {"protocols"},
    {"methods"},
    {"engines", "peer"},
    {"pipeline"},
    {"api"},
    {"online"},
    {"plots", "sklearn"},
    {"mesh"},
    {"view"},
    {"lab"},
    {"cli"},
    {"__main__"},
)
LAYER = {package: number for number, packages in enumerate(LAYERS) for package in packages}
TOP_LEVEL = {"__init__.py", "__main__.py", "api.py", "guarantee.py", "methods.py", "table.py"}


def package_of(path):
    place = path.relative_to(SOURCE)
    return place.parts[0] if len(place.parts) > 1 else place.stem


def imports_of(node, called=False):
    """Modules of the library that a file imports anywhere, and whether inside a function."""
    for child in ast.iter_child_nodes(node):
        inside = called or isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef)
        if isinstance(child, ast.ImportFrom) and child.module and child.module.split(".")[0] == "conformesh":
            module = child.module.removeprefix("conformesh").lstrip(".")
            names = [module] if module else [alias.name for alias in child.names if alias.name != "__version__"]
            yield from ((name, inside) for name in names)
        elif isinstance(child, ast.Import):
            names = [alias.name for alias in child.names if alias.name.startswith("conformesh.")]
            yield from ((name.removeprefix("conformesh."), inside) for name in names)
        yield from imports_of(child, inside)


def upward_imports(path):
    """Imports that do not point to a lower layer. `plots` may be loaded inside a function: results draw themselves."""
    importer = package_of(path)
    for module, called in imports_of(ast.parse(path.read_text())):
        package = module.split(".")[0]
        if package != importer and LAYER[package] >= LAYER[importer] and not (package == "plots" and called):
            yield module


def test_every_package_has_a_layer():
    packages = {package_of(path) for path in SOURCE.rglob("*.py")} - {"__init__"}
    assert packages == set(LAYER)
    assert sum(map(len, LAYERS)) == len(LAYER)


@pytest.mark.parametrize("package", sorted(LAYER))
def test_imports_point_one_way(package):
    paths = [path for path in SOURCE.rglob("*.py") if package_of(path) == package]
    assert paths
    for path in paths:
        assert not [*upward_imports(path)], f"{path.relative_to(SOURCE)} imports a package that is not below its own"


@pytest.mark.parametrize(
    ("place", "text", "module"),
    [
        ("protocols/aggregate/tree.py", "def total():\n    from conformesh.engines.mpi import Mpi\n", "engines.mpi"),
        ("table.py", "if TYPE_CHECKING:\n    from conformesh import api\n", "api"),
        ("peer/device.py", "import conformesh.engines.base\n", "engines.base"),
        ("results/result.py", "from conformesh.plots import html\n", "plots"),
    ],
)
def test_an_upward_import_is_found(place, text, module, tmp_path, monkeypatch):
    """The check itself: in a subfolder, inside a function, for a type alone, in the same layer, plots too early."""
    monkeypatch.setattr(f"{__name__}.SOURCE", tmp_path)
    planted = tmp_path / place
    planted.parent.mkdir(parents=True, exist_ok=True)
    planted.write_text(text)
    assert [*upward_imports(planted)] == [module]


def test_the_top_level_has_six_files():
    assert {path.name for path in SOURCE.glob("*.py")} == TOP_LEVEL


@pytest.mark.parametrize("package", ["protocols", "peer", "kernels", "privacy", "guarantee", "pipeline", "online"])
def test_what_is_pure_does_no_io(package):
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
        "peer/json_bodies.py": {"os"},  # os.strerror, which does no I/O
        "kernels/threads.py": {"os"},
        "privacy/account.py": {"pathlib"},  # how often epochs were released, on disk
        "pipeline": {"time"},  # a result says how long it took
        "online/result.py": {"pathlib"},  # where a user says to save rows
        "online/simulation.py": {"pathlib"},  # and a checkpoint
        "online/checkpoint.py": {"pathlib", "time"},  # which is saved every few seconds, not in every block
    }
    for path in (path for path in SOURCE.rglob("*.py") if package_of(path) == package):
        used = {name for name in names_used(path) for name in (name, name.split(".")[0])}
        assert used & banned <= allowed.get(path.relative_to(SOURCE).as_posix(), set()) | allowed.get(package, set()), (
            path
        )


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


def test_type_checkers_see_the_names_that_are_loaded():
    """The two lists of public names are the same: what is loaded when used, and what type checkers import."""
    typed = {}
    for node in ast.walk(ast.parse((SOURCE / "__init__.py").read_text())):
        if isinstance(node, ast.ImportFrom) and node.module.startswith("conformesh"):
            typed |= {alias.name: node.module for alias in node.names if alias.name == alias.asname}
    loaded = {name: f"conformesh.{home}" for name, home in conformesh._HOMES.items()}
    loaded |= {name: f"conformesh.{home}".rpartition(".")[0] for name, home in conformesh._MODULES.items()}
    assert typed == loaded
    assert sorted(conformesh.__all__) == sorted([*typed, "__version__"])
