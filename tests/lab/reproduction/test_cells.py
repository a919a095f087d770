"""Cells of experiments: named by all that decides their numbers, and computed to one row per draw and alpha."""

import os
import subprocess
import sys
from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pytest

import conformesh
from conformesh import METHODS
from conformesh.graph.weights import constant_weights
from conformesh.kernels.weighted_scores import WeightedScores
from conformesh.lab.reproduction.cases import RECORDED, Case, ExperimentRun
from conformesh.lab.reproduction.curves import VARIANTS
from conformesh.lab.reproduction.paper_methods import PAPER_METHODS, PaperMethodSpec
from conformesh.lab.reproduction.paper_scores import OutputSource, PaperScores
from conformesh.lab.sweeps.cells import CELL_SOURCES, MethodSpec, SweepCell, digest_cell_code
from conformesh.lab.sweeps.sources import NetworkSpec, build_cell_network
from tests.lab.reproduction.handmade import rows_at
from tests.strategies import exact_rank

PACKAGE = Path(conformesh.__file__).parent
CASE = Case("h-dcp-alpha", "as-written", "logits", OutputSource("pathmnist"), draws=2, seed=3)
PRINTED = {"rounds": 20, "bins": 50}


def point_of(source, method="h-dcp-printed", options=PRINTED, topology="torus", *, variant="as-written", **more):
    """A point over two draws, on 20 devices unless `more` says otherwise; its method is not translated."""
    case = replace(CASE, source=source, variant=variant)
    x, line = more.pop("x", None), more.pop("line", "torus")
    return case.point(line, ExperimentRun(method, options, topology=topology, **more), x, translate=False)


# --- names ------------------------------------------------------------------------------------------------------------

CELL = point_of(OutputSource("pathmnist"), devices=8).cell
OTHERWISE = {
    "network": [
        replace(CELL.network, **{name: value})
        for name, value in {
            "topology": "chain",
            "graph": __file__,
            "devices": 9,
            "seed": 1,
            "redraw": True,
            "options": (),
        }.items()
    ],
    "method": [
        PaperMethodSpec("h-dcp-printed", (("bins", 51), ("rounds", 20))),
        PaperMethodSpec("q-dcp-released", CELL.method.options),
        MethodSpec("h-dcp-printed", CELL.method.options),
    ],
    "scores": [
        replace(CELL.scores, source=OutputSource("cifar100")),
        replace(CELL.scores, kind="confidences"),
        replace(CELL.scores, shares="random"),
    ],
    "alphas": [(0.1, 0.2)],
    "draws": [(0,)],
    "seed": [4],
    "record": [RECORDED[1:]],
    "together": [False],
}


def test_every_field_and_the_data_change_the_key():
    assert {*OTHERWISE} == {field.name for field in fields(SweepCell)}
    assert len(OTHERWISE["network"]) == len(fields(NetworkSpec))
    assert len(OTHERWISE["scores"]) == len(fields(PaperScores))
    cells = [replace(CELL, **{name: value}) for name, values in OTHERWISE.items() for value in values]
    assert len({cell.key() for cell in [CELL, *cells]}) == len(cells) + 1


def test_the_order_of_options_and_the_place_of_the_data_do_not_change_the_key(cifar, tmp_path):
    copy = tmp_path / "elsewhere.npz"
    copy.write_bytes(Path(cifar.path).read_bytes())
    one = point_of(cifar).cell
    other = point_of(OutputSource("cifar100", str(copy)), options={"bins": 50, "rounds": 20}).cell
    assert one.key() == other.key()


@pytest.mark.parametrize("hash_seed", ["0", "4711"])
def test_the_key_is_the_same_in_every_process(hash_seed):
    script = "from tests.lab.reproduction.test_cells import CELL\nprint(CELL.key())\n"
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(PACKAGE.parent), str(Path(__file__).parents[3])]),
        "PYTHONHASHSEED": hash_seed,
    }
    done = subprocess.run(
        [sys.executable, "-c", script], env=environment, capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.strip() == CELL.key()


def test_changed_code_changes_the_key(monkeypatch):
    before = CELL.key()
    monkeypatch.setattr("conformesh.lab.sweeps.cells.digest_cell_code", lambda *_: "changed")
    assert CELL.key() != before


# Computing also loads modules that decide no number: packages, and what becomes of rows.
REPRODUCTION = ("__init__", "cases", "curves", "experiments", "findings")
DECIDE_NOTHING = {"__init__.py", "lab/__init__.py", *(f"lab/reproduction/{name}.py" for name in REPRODUCTION)}
PARTS = {"lab/reproduction/paper_methods.py", "lab/reproduction/paper_scores.py"}  # this cell's solver and scores
MADE_AFTERWARDS = ("results/",)


def loaded_modules():
    """The files that a process loads to compute cells, relative to the package."""
    script = (
        "import sys, conformesh.lab.sweeps.cells, conformesh.lab.reproduction.paper_methods\n"
        "import conformesh.graph.topologies\n"
        "print(*(m.__file__ for n, m in sys.modules.items() if n.startswith('conformesh')), sep='\\n')\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(PACKAGE.parent)}
    done = subprocess.run(
        [sys.executable, "-c", script], env=environment, capture_output=True, text=True, timeout=60, check=True
    )
    return {Path(line).relative_to(PACKAGE).as_posix() for line in done.stdout.split()}


def test_every_module_that_computing_loads_is_in_the_digest():
    deciding = {path.relative_to(PACKAGE).as_posix() for pattern in CELL_SOURCES for path in PACKAGE.glob(pattern)}
    assert len(deciding) > 30
    others = {name for name in loaded_modules() - deciding - PARTS if not name.startswith(MADE_AFTERWARDS)}
    assert others <= DECIDE_NOTHING


def test_every_pattern_of_the_digest_finds_a_file():
    assert all([*PACKAGE.glob(pattern)] for pattern in CELL_SOURCES)


def test_a_changed_file_changes_the_key_if_it_decides(tmp_path, monkeypatch):
    for path in PACKAGE.rglob("*.py"):
        copy = tmp_path / path.relative_to(PACKAGE)
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_bytes(path.read_bytes())
    before = CELL.key()
    monkeypatch.setattr(conformesh, "__file__", str(tmp_path / "__init__.py"))
    monkeypatch.setattr("conformesh.lab.sweeps.cells.digest_cell_code", digest_cell_code.__wrapped__)
    assert CELL.key() == before  # wherever it is installed
    for path, matters in (
        ("kernels/ranks.py", True),
        ("protocols/q_dcp.py", True),
        ("lab/reproduction/paper_methods.py", True),
        ("lab/reproduction/paper_scores.py", True),
        ("lab/reproduction/figures.py", False),
        ("lab/reproduction/experiments.py", False),
    ):
        (tmp_path / path).write_bytes((PACKAGE / path).read_bytes() + b"# changed\n")
        assert (CELL.key() != before) == matters, path
        (tmp_path / path).write_bytes((PACKAGE / path).read_bytes())


# --- rows -------------------------------------------------------------------------------------------------------------

RUNS = {
    "q-dcp": {"rounds": 30, "start": "zeros", "bound": "paper"},
    "q-dcp-released": {"rounds": 30},
    "h-dcp-printed": {"rounds": 40, "bins": 50},
    "wfcp": {"bins": 50},
    **{name: {} for name in ("cp", "fcp", "e-dcp", "fedcp-qq")},
    **{name: {} for name, convention in PAPER_METHODS.items() if not convention.talks},
}


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("method", RUNS)
def test_a_row_for_each_draw_and_alpha(cifar, method, variant):
    alphas = (0.3, 0.5, 0.8)
    rows = rows_at(point_of(cifar, method, RUNS[method], "complete", alphas=alphas, line="L", variant=variant))
    assert [(row["draw"], row["alpha"]) for row in rows] == [(draw, alpha) for draw in range(2) for alpha in alphas]
    assert {row["line"] for row in rows} == {"L"}
    assert [row["x"] for row in rows] == [0.7, 0.5, 0.2] * 2
    for row in rows:
        assert 0 <= row["coverage"] <= 1
        assert 0 <= row["size"] <= row["classes"] == 100
        assert row["certificate"] == "none" or method in METHODS
        assert (row["epsilon"] is None) == (method not in {"q-dcp", "q-dcp-released", "h-dcp-printed"}), row["epsilon"]
        assert all(type(row[name]) is int for name in ("draw", "classes", "rank_margin", "rounds"))
    if method == "q-dcp" or (method in PAPER_METHODS and PAPER_METHODS[method].talks):
        assert rows[0]["rounds"] >= RUNS[method]["rounds"]
    tenths = np.array([row["size"] for row in rows]) * 10
    whole = np.abs(tenths - np.round(tenths)).max() < 1e-9
    assert whole == (variant == "as-released" and method in PAPER_METHODS)


def test_released_sizes_are_rounded_to_a_tenth_of_a_label_whatever_the_classes(small_sources):
    """With nine classes a thousandth of them is 0.009 labels: tenths of that are no tenths of a label."""
    alphas = (0.2, 0.5, 0.8)
    point = point_of(small_sources["pathmnist"], topology="cycle", devices=8, alphas=alphas, variant="as-released")
    rows, plain = rows_at(point), rows_at(replace(point, case=replace(point.case, variant="as-written")))
    assert [row["size"] for row in rows] == [round(row["size"], 1) for row in plain]
    assert [row["size"] for row in rows] != [row["size"] for row in plain]


def test_the_exact_methods_agree_and_have_their_rank(cifar):
    found = {name: rows_at(point_of(cifar, name, {}, alphas=(0.2, 0.6))) for name in ("fcp", "e-dcp")}
    keep = ("coverage", "size", "threshold", "rank_margin", "x")
    for one, other in zip(found["fcp"], found["e-dcp"], strict=True):
        assert [one[name] for name in keep] == [other[name] for name in keep]
        assert one["rank_margin"] == 0  # no two scores are equal: the threshold is the one required
    assert found["e-dcp"][0]["certificate"] == "counted"


def test_the_margin_counts_scores_whatever_they_weigh(cifar):
    """By the swap rank scores weigh by device; the margin is that of the published rank, as on the other lines."""
    swap = rows_at(point_of(cifar, "e-dcp", {"mixture": "paper", "rank_rule": "swap"}))
    for row in swap:
        draw = PaperScores(cifar, "logits", "equal").draw(CELL.network, 20, 3, row["draw"])
        assert row["rank_margin"] == (draw.values <= row["threshold"]).sum() - exact_rank(200, 0.1, 20)
        assert row["rank_margin"] < 0


def test_some_draws_alone_give_the_rows_they_have_among_all(cifar):
    everything = rows_at(point_of(cifar))
    assert rows_at(point_of(cifar, draw=1)) == [row for row in everything if row["draw"] == 1]


def test_x_is_the_level_a_value_or_bits(cifar):
    def places(*words, **more):
        return [row["x"] for row in rows_at(point_of(cifar, *words, **more))]

    assert places() == [0.9, 0.9]
    assert places(x=7) == [7.0, 7.0]
    rounds, bins = 20, 50
    assert places(x="bits") == [64 * rounds * bins] * 2
    assert places(x="bits", options={**PRINTED, "wire": 16}) == [16 * rounds * bins] * 2
    assert places("q-dcp-released", {"rounds": 9}, x="bits") == [64 * 9] * 2


def test_bits_are_those_of_one_run_however_many_ride_along(cifar):
    run = ("q-dcp-released", {"rounds": 9})
    one, many = point_of(cifar, *run, draw=0), point_of(cifar, *run, alphas=(0.1, 0.2, 0.3))
    assert {row["bits"] for row in rows_at(one)} == {row["bits"] for row in rows_at(many)}


def test_an_unknown_method_says_so(cifar):
    with pytest.raises(ValueError, match="unknown method 'h-dpc', did you mean 'h-dcp'"):
        point_of(cifar, "h-dpc")


def test_a_convention_needs_the_outputs_of_the_paper(cifar):
    """Another source of scores has no range of outputs."""
    cell = point_of(cifar).cell
    with pytest.raises(TypeError, match="a convention needs the draws of PaperScores, got int"):
        cell.method.solve(WeightedScores.of([[0.5]] * 4), [3], conformesh.Network.chain(4), (0.1,), 0)


# --- graphs -----------------------------------------------------------------------------------------------------------


def graph_of(cell, seed=0):
    return build_cell_network(cell.network, cell.scores, seed)


@pytest.mark.parametrize("devices", [8, 20, 100])
def test_the_torus_has_rows_of_four(cifar, devices):
    network = graph_of(point_of(cifar, devices=devices).cell)
    assert network.name == f"torus {devices // 4}x4"
    expected = conformesh.Network.torus(devices // 4, 4)
    assert {tuple(network.neighbours(k)) for k in range(devices)} == {
        tuple(expected.neighbours(k)) for k in range(devices)
    }


def test_a_torus_of_another_size_says_what_it_needs(cifar):
    with pytest.raises(ValueError, match=r"30"):
        graph_of(point_of(cifar, devices=30).cell)


def test_random_graphs_are_those_of_their_draw(cifar):
    points = [point_of(cifar, "fcp", {}, "erdos-renyi", draw=draw) for draw in (0, 1)]
    networks = [conformesh.Network.of("erdos-renyi", 20, seed=seed, p=0.5) for seed in (0, 1)]
    assert networks[0].indices.tobytes() != networks[1].indices.tobytes()
    gaps = [constant_weights(network, network.spectrum).gap for network in networks]
    assert [row["gap"] for point in points for row in rows_at(point)] == gaps


def test_every_convention_is_reached_here():
    assert RUNS.keys() - METHODS.keys() == PAPER_METHODS.keys()
