"""Points: named by all that decides their numbers, and computed to one row per draw and alpha."""

import os
import subprocess
import sys
from dataclasses import asdict, fields, replace
from pathlib import Path

import numpy as np
import pytest

import conformesh
from conformesh import METHODS
from conformesh.experiments.core.conventions import CONVENTIONS
from conformesh.experiments.core.points import (
    DECIDING,
    VARIANTS,
    Point,
    code_digest,
    compute,
    network_of,
)
from conformesh.experiments.core.settings import Setting
from conformesh.graph.weights import constant_weights

SETTING = Setting("cifar100", "logits", 20, "equal", draws=2, seed=3)
POINT = Point("h-dcp-alpha", "as-written", SETTING, "torus", "h-dcp-printed", {"rounds": 20, "bins": 50})
PACKAGE = Path(conformesh.__file__).parent

OTHERWISE = {
    "experiment": "other",
    "variant": "as-released",
    "line": "chain",
    "method": "q-dcp",
    "options": {"rounds": 20, "bins": 51},
    "topology": "chain",
    "alphas": (0.1, 0.2),
    "x": 3.0,
    "draws": (0,),
    "graph_seed": 1,
}
OTHER_SETTING = {
    "data": "pathmnist",
    "scores": "confidences",
    "devices": 40,
    "shares": "random",
    "draws": 3,
    "seed": 4,
}


# --- names ------------------------------------------------------------------------------------------------------------


def test_every_field_and_the_data_change_the_key():
    assert {*OTHERWISE, "setting"} == {field.name for field in fields(Point)}
    assert OTHER_SETTING.keys() == asdict(SETTING).keys()
    points = [replace(POINT, **{name: value}) for name, value in OTHERWISE.items()]
    points += [replace(POINT, setting=replace(SETTING, **{name: value})) for name, value in OTHER_SETTING.items()]
    points += [replace(POINT, x="bits"), replace(POINT, options={})]
    keys = {point.key("abc") for point in [POINT, *points]} | {POINT.key("abd")}
    assert len(keys) == len(points) + 2


def test_the_order_of_options_does_not_change_the_key():
    assert replace(POINT, options={"bins": 50, "rounds": 20}).key("abc") == POINT.key("abc")


@pytest.mark.parametrize("hash_seed", ["0", "4711"])
def test_the_key_is_the_same_in_every_process(hash_seed):
    script = (
        "from conformesh.experiments.core.points import Point\n"
        "from conformesh.experiments.core.settings import Setting\n"
        f"print({POINT!r}.key('abc'))\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(PACKAGE.parent), "PYTHONHASHSEED": hash_seed}
    done = subprocess.run(
        [sys.executable, "-c", script], env=environment, capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.strip() == POINT.key("abc")


def test_changed_code_changes_the_key(monkeypatch):
    before = POINT.key("abc")
    monkeypatch.setattr("conformesh.experiments.core.points.code_digest", lambda: "changed")
    assert POINT.key("abc") != before


HAVE_NO_SAY = {  # modules that computing loads, too: packages, words, and the experiments themselves
    *(
        "__init__.py",
        "_moved.py",
        "_version.py",
        "names.py",
        "notes.py",
        "progress.py",
        "quantities.py",
        "data/__init__.py",
    ),
    *("experiments/__init__.py", "experiments/core/__init__.py"),
    *("sweeping/__init__.py", "sweeping/provenance.py"),
    *("experiments/core/experiment.py", "experiments/core/results.py"),
}
ROOMS_WITHOUT_SAY = ("result/", "scores/")  # results are made afterwards, and the scores here are in settings.py


def loaded_modules():
    """The files that a process loads to compute points, relative to the package."""
    script = (
        "import sys, conformesh.experiments.core.points, conformesh.graph.topologies\n"
        "print(*(m.__file__ for n, m in sys.modules.items() if n.startswith('conformesh')), sep='\\n')\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(PACKAGE.parent)}
    done = subprocess.run(
        [sys.executable, "-c", script], env=environment, capture_output=True, text=True, timeout=60, check=True
    )
    return {Path(line).relative_to(PACKAGE).as_posix() for line in done.stdout.split()}


def test_every_module_that_computing_loads_is_in_the_digest():
    deciding = {path.relative_to(PACKAGE).as_posix() for pattern in DECIDING for path in PACKAGE.glob(pattern)}
    assert len(deciding) > 30
    others = {name for name in loaded_modules() - deciding if not name.startswith(ROOMS_WITHOUT_SAY)}
    assert others <= HAVE_NO_SAY


def test_every_pattern_of_the_digest_finds_a_file():
    assert all([*PACKAGE.glob(pattern)] for pattern in DECIDING)


def test_a_changed_file_changes_the_digest_if_it_decides(tmp_path, monkeypatch):
    for path in PACKAGE.rglob("*.py"):
        copy = tmp_path / path.relative_to(PACKAGE)
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_bytes(path.read_bytes())
    monkeypatch.setattr(conformesh, "__file__", str(tmp_path / "__init__.py"))
    digest = code_digest.__wrapped__
    before = digest()
    assert before == code_digest()  # wherever it is installed
    for path, matters in (("ranks.py", True), ("protocols/q_dcp.py", True), ("experiments/core/figures.py", False)):
        (tmp_path / path).write_bytes((PACKAGE / path).read_bytes() + b"# changed\n")
        assert (digest() != before) == matters, path
        (tmp_path / path).write_bytes((PACKAGE / path).read_bytes())


# --- rows -------------------------------------------------------------------------------------------------------------

RUNS = {
    "q-dcp": {"rounds": 30, "start": "zeros", "bound": "paper"},
    "q-dcp-released": {"rounds": 30},
    "h-dcp-printed": {"rounds": 40, "bins": 50},
    "wfcp": {"bins": 50},
    **{name: {} for name in ("cp", "fcp", "e-dcp", "fedcp-qq")},
    **{name: {} for name, convention in CONVENTIONS.items() if not convention.talks},
}


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("method", RUNS)
def test_a_row_for_each_draw_and_alpha(cifar, method, variant):
    alphas = (0.3, 0.5, 0.8)
    point = replace(
        POINT, variant=variant, method=method, options=RUNS[method], topology="complete", alphas=alphas, line="L"
    )
    rows = compute(point, cifar)
    assert [(row["draw"], row["alpha"]) for row in rows] == [(draw, alpha) for draw in range(2) for alpha in alphas]
    assert {row["line"] for row in rows} == {"L"}
    assert [row["x"] for row in rows] == [0.7, 0.5, 0.2] * 2
    for row in rows:
        assert 0 <= row["coverage"] <= 1
        assert 0 <= row["size"] <= row["classes"] == 100
        assert row["certificate"] == "none" or method in METHODS
        assert (row["epsilon"] is None) == (method not in {"q-dcp", "q-dcp-released", "h-dcp-printed"}), row["epsilon"]
        assert all(type(row[name]) is int for name in ("draw", "classes", "rank_margin", "rounds"))
    if method == "q-dcp" or (method in CONVENTIONS and CONVENTIONS[method].talks):
        assert rows[0]["rounds"] >= RUNS[method]["rounds"]
    tenths = np.array([row["size"] for row in rows]) * 10
    whole = np.abs(tenths - np.round(tenths)).max() < 1e-9
    assert whole == (variant == "as-released" and method in CONVENTIONS)


def test_released_sizes_are_rounded_to_a_tenth_of_a_label_whatever_the_classes(small_sources):
    """With nine classes a thousandth of them is 0.009 labels: tenths of that are no tenths of a label."""
    nine = replace(SETTING, data="pathmnist", devices=8, shares="random")
    point = replace(POINT, variant="as-released", setting=nine, topology="cycle", alphas=(0.2, 0.5, 0.8))
    rows = compute(point, small_sources["pathmnist"])
    plain = compute(replace(point, variant="as-written"), small_sources["pathmnist"])
    assert [row["size"] for row in rows] == [round(row["size"], 1) for row in plain]
    assert [row["size"] for row in rows] != [row["size"] for row in plain]


def test_the_exact_methods_agree_and_have_their_rank(cifar):
    found = {
        name: compute(replace(POINT, method=name, options={}, alphas=(0.2, 0.6)), cifar) for name in ("fcp", "e-dcp")
    }
    keep = ("coverage", "size", "threshold", "rank_margin", "x")
    for one, other in zip(found["fcp"], found["e-dcp"], strict=True):
        assert [one[name] for name in keep] == [other[name] for name in keep]
        assert one["rank_margin"] == 0  # no two scores are equal: the threshold is the one required
    assert found["e-dcp"][0]["certificate"] == "counted"


def test_some_draws_alone_give_the_rows_they_have_among_all(cifar):
    everything = compute(POINT, cifar)
    assert compute(replace(POINT, draws=(1,)), cifar) == [row for row in everything if row["draw"] == 1]


def test_x_is_the_level_a_value_or_bits(cifar):
    def places(**more):
        return [row["x"] for row in compute(replace(POINT, **more), cifar)]

    assert places() == [0.9, 0.9]
    assert places(x=7) == [7.0, 7.0]
    rounds, bins = 20, 50
    assert places(x="bits") == [64 * rounds * bins] * 2
    assert places(x="bits", options={"rounds": rounds, "bins": bins, "wire": 16}) == [16 * rounds * bins] * 2
    assert places(x="bits", method="q-dcp-released", options={"rounds": 9}) == [64 * 9] * 2


def test_bits_are_those_of_one_run_however_many_ride_along(cifar):
    one, many = (replace(POINT, method=name, options={"rounds": 9}) for name in ("q-dcp-released",) * 2)
    one = replace(one, draws=(0,))
    many = replace(many, alphas=(0.1, 0.2, 0.3))
    assert {row["bits"] for row in compute(one, cifar)} == {row["bits"] for row in compute(many, cifar)}


def test_an_unknown_method_says_so(cifar):
    with pytest.raises(ValueError, match="unknown method 'h-dpc', did you mean 'h-dcp'"):
        compute(replace(POINT, method="h-dpc"), cifar)


# --- graphs -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("devices", [8, 20, 100])
def test_the_torus_has_rows_of_four(devices):
    network = network_of(replace(POINT, setting=replace(SETTING, devices=devices)))
    assert str(network.name).startswith("torus")
    assert network.devices == devices
    expected = conformesh.Network.torus(devices // 4, 4)
    assert {tuple(network.neighbours(k)) for k in range(devices)} == {
        tuple(expected.neighbours(k)) for k in range(devices)
    }


def test_a_torus_of_another_size_says_what_it_needs():
    with pytest.raises(ValueError, match=r"torus has \(K/4\) x 4 devices, got K = 30"):
        network_of(replace(POINT, setting=replace(SETTING, devices=30)))


def test_random_graphs_follow_their_own_seed(cifar):
    point = replace(POINT, topology="erdos-renyi", method="fcp", options={})
    graphs = [network_of(replace(point, graph_seed=seed)).indices.tobytes() for seed in (0, 0, 1, 2)]
    assert graphs[0] == graphs[1]
    assert len({*graphs}) == 3
    network = network_of(point)
    assert compute(point, cifar)[0]["gap"] == constant_weights(network, network.spectrum).gap


def test_every_convention_is_reached_here():
    assert RUNS.keys() - METHODS.keys() == CONVENTIONS.keys()
