"""A table is never shadowed: no list of its names, and no comparison with one of them, stands anywhere else."""

import ast
import re
from pathlib import Path

import pytest

from conformesh import METHODS, TOPOLOGIES
from conformesh.engines import ENGINES
from conformesh.graph.weights import WEIGHTS
from conformesh.protocols.aggregate import AGGREGATORS
from conformesh.protocols.averaging_schemes import AVERAGING_SCHEMES
from conformesh.scores import SCORES

SOURCE = Path(__file__).parents[2] / "src" / "conformesh"
HOMES = {
    "methods.py": METHODS,
    "protocols/aggregate.py": AGGREGATORS,
    "protocols/averaging_schemes.py": AVERAGING_SCHEMES,
    "engines/__init__.py": ENGINES,
    "graph/topologies.py": TOPOLOGIES,
    "graph/weights.py": WEIGHTS,
    "scores/__init__.py": SCORES,
}
CONCRETE = {  # what is about these entries and no others, and why
    "cli/demo.py": "two networks of the demonstration",
    "graph/topologies.py": "what to choose where a number of devices has no two factors",
}


def shadows(path):
    """Lists of names and comparisons with a name, with the line where they stand; plain words may mean anything."""
    place = path.relative_to(SOURCE).as_posix()
    tree = ast.parse(path.read_text(encoding="utf-8"))
    documented = {
        node.body[0].value
        for node in ast.walk(tree)
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and ast.get_docstring(node) is not None
    }
    for home, table in HOMES.items():
        if home == place:
            continue
        for node in ast.walk(tree):
            if isinstance(node, ast.Tuple | ast.List | ast.Set | ast.Dict):
                inside = node.keys if isinstance(node, ast.Dict) else node.elts
                named = {one.value for one in inside if isinstance(one, ast.Constant)} & {*table}
                if len(named) > 1 and not named <= {*HOMES.get(place, ())}:
                    yield f"line {node.lineno} lists {sorted(named)}"
            elif isinstance(node, ast.Constant) and isinstance(node.value, str) and node not in documented:
                if len({*re.findall(r"[a-z]+(?:-[a-z]+)*", node.value)} & {*table}) > 2:
                    yield f"line {node.lineno} lists names in {node.value!r}"
            elif isinstance(node, ast.Compare) and table is not TOPOLOGIES:
                for one in (node.left, *node.comparators):
                    if isinstance(one, ast.Constant) and one.value in table and (table is ENGINES or "-" in one.value):
                        yield f"line {node.lineno} compares with {one.value!r}"


@pytest.mark.parametrize("path", sorted(SOURCE.rglob("*.py")), ids=lambda path: path.relative_to(SOURCE).as_posix())
def test_no_table_is_shadowed(path):
    place = path.relative_to(SOURCE).as_posix()
    if place in CONCRETE or place.startswith(
        "lab/reproduction/"
    ):  # figures of a paper name the methods and graphs it has
        return
    assert not [*shadows(path)]


def test_a_shadow_is_found(tmp_path, monkeypatch):
    """The check itself: a tuple, the keys of a dictionary, a help text, a comparison."""
    monkeypatch.setattr(f"{__name__}.SOURCE", tmp_path)
    for line in (
        'EXACT = ("tree", "flood")',
        'COPIES = {"wfcp": 3.0, "fcp": 1.0}',
        'HELP = "which network: chain, cycle, star or torus"',
        'name != "e-dcp"',
        'if name != "mpi": pass',
    ):
        (tmp_path / "planted.py").write_text(f'"""tree, flood, gossip."""\n{line}\n')
        assert [*shadows(tmp_path / "planted.py")], line
    (tmp_path / "planted.py").write_text('"""tree, flood, gossip."""\nname = "e-dcp"\n')
    assert not [*shadows(tmp_path / "planted.py")]
