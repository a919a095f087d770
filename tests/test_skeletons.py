"""One file and one line: a method, aggregator, engine, score or topology from docs/skeletons is then everywhere."""

import doctest
import importlib
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import conformesh
from conformesh import METHODS, TOPOLOGIES, Network, calibrate
from conformesh.engines import ENGINES
from conformesh.peer.loopback import LinkFaults, run_loopback
from conformesh.protocols.aggregate import CannotAggregate, rank_aggregators
from conformesh.protocols.block import Block
from conformesh.scores import SCORES, get_score
from conformesh.scores.adapt import ADAPTATIONS, Bag, get_adaptation
from tests.engines.mpi import start
from tests.engines.strictness import once, rows_said, saying
from tests.peer.devices import drawn_scores, expected, starter, thresholds
from tests.with_skeletons import FOLDER, TABLES, add_all, skeleton

ROOT = Path(__file__).parents[1]


@pytest.fixture
def skeletons():
    """Add every skeleton for one test."""
    before = {kind: dict(table) for kind, table in TABLES.items()}
    add_all()
    yield
    for kind, table in TABLES.items():
        table.clear()
        table.update(before[kind])


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Unequal scores on six devices, in a file."""
    folder = tmp_path_factory.mktemp("skeletons")
    rng = np.random.default_rng(1)
    held = [rng.random(int(rng.integers(20, 40))) for _ in range(6)]
    lines = [f"{k},{x!r}" for k, own in enumerate(held) for x in own.tolist()]
    (folder / "scores.csv").write_text("device,score\n" + "\n".join(lines) + "\n")
    p = rng.dirichlet(np.ones(3), 120)
    rows = [f"{k % 6},{k % 3}," + ",".join(map(repr, p[k].tolist())) for k in range(120)]
    (folder / "outputs.csv").write_text("device,label,0,1,2\n" + "\n".join(rows) + "\n")
    return folder


COMMANDS = {
    "calibrate help": "calibrate --help",
    "plan help": "plan --help",
    "compare help": "compare --help",
    **{f"{kind}s": f"{kind}s" for kind in TABLES if kind != "topology"},
    "topologies": "topologies",
    "loops": "calibrate scores.csv --network wheel --engine loops --json",
    "simulator": "calibrate scores.csv --network wheel --engine simulator --json",
    "hub": "calibrate scores.csv --network wheel --aggregate hub --score shortfall --json",
    "largest": "calibrate scores.csv --network wheel --method largest --json",
    "confusion": "calibrate outputs.csv --network wheel --adapt confusion --adapt-option strength=5 --json",
    "compare": "compare scores.csv --network wheel --method e-dcp,largest --no-picture --json",
    "plan": "plan --scores scores.csv --network wheel --method e-dcp,largest --json",
}


@pytest.fixture(scope="module")
def typed(folder):
    """What commands print in a process where the skeletons are in their tables."""
    words = [
        [str(folder / word) if word.endswith(".csv") else word for word in command.split()]
        for command in COMMANDS.values()
    ]
    paths = [str(Path(conformesh.__file__).parents[1]), str(ROOT)]
    plain = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "COLUMNS": "200", "TERM": "dumb", "NO_COLOR": "1"}
    command = [sys.executable, "-m", "tests.with_skeletons", json.dumps(words)]
    done = subprocess.run(command, env=plain, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    return {
        name: text if "--json" not in COMMANDS[name] else json.loads(text)
        for name, text in zip(COMMANDS, said, strict=True)
    }


def test_every_skeleton_is_tried_here():
    assert {path.stem for path in FOLDER.glob("*.py")} == {*TABLES}


def test_examples_of_skeletons_hold():
    for kind in TABLES:
        assert doctest.testmod(skeleton(kind)).failed == 0


# --- a method, a score, a topology ------------------------------------------------------------------------------------


def test_the_method_runs(skeletons, topology, twenty_devices):
    for wire in (16, 32, 64):
        result = calibrate(twenty_devices, topology, 0.1, "largest", wire=wire)
        pooled = np.concatenate(twenty_devices)
        assert result.threshold >= pooled.max()
        assert len(set(result.thresholds.tolist())) == 1
        assert result.certificate.counted_rank == len(pooled)
        assert result.cost.rounds == topology.diameter
        assert (result.cost.bits == wire * result.cost.numbers).all()
        assert (result.cost.numbers >= 1).all()  # in the first round, and then whenever something larger was heard
        assert (result.cost.numbers <= topology.diameter).all()


def test_the_score_runs(skeletons):
    score = get_score("shortfall")
    p = np.random.default_rng(0).dirichlet(np.ones(5), size=200)
    labels = np.arange(200) % 5
    own = score(p, labels)
    np.testing.assert_array_equal(own, score.of_all_labels(p)[np.arange(200), labels])
    for threshold in (-1.0, 0.0, 2.0, 4.0, np.inf):
        sets = score.sets(p, threshold)
        np.testing.assert_array_equal(sets[np.arange(200), labels], own <= threshold)
        np.testing.assert_array_equal(score.covers(p, labels, threshold), own <= threshold)
    result = calibrate(np.split(own, 4), Network.cycle(4), 0.2, score=score)
    assert result.evaluate(p, labels).coverage.rate >= 0.8


def test_the_adaptation_runs(skeletons):
    """Loaded by its name; sets are those of the definition, with every candidate in the place of the hidden row."""
    rng, kind = np.random.default_rng(3), get_adaptation("confusion", strength=4, window="full")
    data = {
        f"d{k}": (rng.dirichlet(np.ones(3), 12), np.concatenate([[0, 1, 2], rng.integers(3, size=9)])) for k in "abc"
    }
    result = calibrate(data, "cycle", 0.2, adapt=kind, rng=1)
    again = type(result).from_dict(result.to_dict()).with_rows(data)
    assert again.guarantee.adapt == kind
    new, pooled = rng.dirichlet(np.ones(3), 20), {name: kind.leave_one_out(Bag(*own), ()) for name, own in data.items()}
    for name, (outputs, labels) in data.items():
        others = np.concatenate([scores for other, scores in pooled.items() if other != name])
        h = result.adapted.hidden[name]
        expected = np.zeros((20, 3), dtype=bool)
        for row, y in np.ndindex(20, 3):
            bag = Bag(outputs.copy(), labels.copy())
            bag.outputs[h], bag.labels[h] = new[row], y
            own = kind.leave_one_out(bag, ())
            at_least = np.sum(own >= own[h]) + np.sum(others >= own[h])
            expected[row, y] = at_least > 0.2 * 36
        np.testing.assert_array_equal(again.predict(new, device=name), expected)


def test_the_topology_runs(skeletons):
    network = Network.of("wheel", 20, spokes=3)
    assert network.devices == 20
    assert network.degree[0] == 7
    assert Network.wheel(20).diameter == 2
    assert not TOPOLOGIES["wheel"].random
    with pytest.raises(ValueError, match="wheel needs at least 4 devices"):
        Network.of("wheel", 3)


# --- an engine --------------------------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("network", [Network.torus(3, 4), Network.star(5)], ids=str)
def test_the_engine_runs_every_method_as_the_simulator_does(skeletons, network, method):
    rng = np.random.default_rng(0)
    scores = [rng.normal(size=rng.integers(5, 40)) for _ in range(network.devices)]
    options = {"rounds": 20} if method == "q-dcp" else {"bins": 20} if method == "h-dcp" else {}
    mine, theirs = (calibrate(scores, network, 0.2, method, engine=name, **options) for name in ("loops", "simulator"))
    assert mine.thresholds.tobytes() == theirs.thresholds.tobytes()
    assert mine.certificate == theirs.certificate
    assert mine.cost.rounds == theirs.cost.rounds
    np.testing.assert_array_equal(mine.cost.bits, theirs.cost.bits)


@pytest.mark.parametrize("question", ["each", "tell"])
@pytest.mark.parametrize("speakers", [[], [0, 2], [*range(5)]])
def test_the_engine_hears_what_the_simulator_hears(skeletons, question, speakers):
    network, here = Network.star(5), np.arange(5)
    (mine, paid), (right, cost) = (
        ENGINES[name].make(network).run(once(saying(question, here, speakers))) for name in ("loops", "simulator")
    )
    pairs = mine.receiver, mine.sender
    assert [rows.tolist() for rows in pairs] == [right.receiver.tolist(), right.sender.tolist()]
    assert rows_said(mine, *pairs) == rows_said(right, *pairs) == mine.sender.tolist()
    assert (paid.numbers.tolist(), paid.bits.tolist()) == (cost.numbers.tolist(), cost.bits.tolist())


def test_the_engine_that_was_chosen_runs(skeletons, folder, monkeypatch, capsys):
    """Before, any engine but mpi was accepted by `--engine`, and the simulator ran."""
    from conformesh.cli import app

    ran = []
    engine = ENGINES["loops"].make
    monkeypatch.setattr(engine, "run", lambda self, *given, run=engine.run: ran.append(self) or run(self, *given))
    with pytest.raises(SystemExit) as end:
        app(["calibrate", str(folder / "scores.csv"), "--engine", "loops", "--json"])
    assert end.value.code == 0
    assert len(ran) == 1
    assert json.loads(capsys.readouterr().out)["answers"][0]["certificate"]["kind"] == "counted"


# --- an aggregator ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("network", [Network.star(9), Network.star(30)], ids=str)
def test_the_aggregator_has_its_place_in_auto(skeletons, network):
    """It is exact and the cheapest way to add up here; on a torus it cannot serve, and the others go on as before."""
    rng = np.random.default_rng(2)
    scores = [rng.normal(size=rng.integers(10, 40)) for _ in range(network.devices)]
    chosen, tree = calibrate(scores, network, 0.1, aggregate="hub"), calibrate(scores, network, 0.1, aggregate="tree")
    block = Block.everywhere(network, np.array([[len(own)] for own in scores]))
    assert rank_aggregators(block, "balanced", 1)[0][0] == "hub"
    assert chosen.options["sums_by"] == "hub"
    assert chosen.thresholds.tobytes() == tree.thresholds.tobytes()
    assert chosen.certificate == tree.certificate
    torus = Block.everywhere(Network.torus(2, 3), np.array([[len(own)] for own in scores[:6]]))
    assert "hub" not in dict(rank_aggregators(torus, "balanced", 1))
    with pytest.raises(CannotAggregate, match="no device is a neighbour of all others"):
        calibrate(scores[:6], Network.torus(2, 3), 0.1, aggregate="hub")


# --- everywhere -------------------------------------------------------------------------------------------------------


def test_help_names_all_of_them(typed):
    calibrating, planning, comparing = (
        "".join(typed[f"{name} help"].split())
        for name in ("calibrate", "plan", "compare")  # lines break anywhere
    )
    assert "--enginesimulator|mpi|loops" in calibrating
    assert "loops,oneprocessforalldevices,inplainloops" in calibrating
    for words in (calibrating, planning):
        assert "auto|tree|flood|hub" in words
        assert f"Oneof{','.join(TOPOLOGIES)},wheel,orafile" in words
    assert f"Oneof{','.join(METHODS)},largest." in calibrating
    assert f"Someof{','.join(METHODS)},largest;bydefaultall." in planning
    assert f"Someof{','.join(METHODS)},largest;bydefaultall." in comparing
    assert f"{','.join(SCORES)},shortfall" in calibrating
    assert f"--adapt{'|'.join(ADAPTATIONS)}|confusion" in calibrating


@pytest.mark.parametrize(
    ("listing", "name", "summary"),
    [
        ("methods", "largest", "the largest score"),
        ("aggregators", "hub", "everybody's neighbour"),
        ("engines", "loops", "in plain loops"),
        ("scores", "shortfall", "by how much the most probable label beats it"),
        ("adaptations", "confusion", "where the model said the same"),
        ("topologies", "wheel", "a ring around a hub"),
    ],
)
def test_listings_have_a_line_for_each(typed, listing, name, summary):
    (line,) = [line for line in typed[listing].splitlines() if line.startswith(f"{name} ")]
    assert summary in line


def test_the_command_line_runs_them(typed):
    assert typed["loops"]["answers"][0]["thresholds"] == typed["simulator"]["answers"][0]["thresholds"]
    assert typed["hub"]["answers"][0]["thresholds"] == typed["simulator"]["answers"][0]["thresholds"]
    assert typed["hub"]["options"]["sums_by"] == "hub"
    assert typed["hub"]["score"]["name"] == "shortfall"
    assert typed["largest"]["answers"][0]["certificate"]["kind"] == "counted"
    assert typed["loops"]["network"] == "wheel 6"
    assert typed["confusion"]["guarantee"]["adapt"] == {"name": "confusion", "strength": 5, "window": 16}


def test_plans_and_comparisons_have_their_rows(typed):
    """With the scores at hand rounds and bits of a plan are those of the runs that were compared."""
    ran = {(row["method"], row["variant"]): row for row in typed["compare"]["networks"][0]["results"]}
    planned = {(row["method"], row["variant"]): row for row in typed["plan"]["rows"]}
    assert {("e-dcp", "window"), ("largest", None)} <= ran.keys() <= planned.keys()
    for way, row in ran.items():
        assert planned[way]["rounds"] == row["rounds"]
        assert planned[way]["bits_per_device"] == pytest.approx(row["bits_per_device"], rel=1e-12)
    assert typed["plan"]["refused"] == []


def test_tables_of_the_documentation_have_their_rows(skeletons, monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "docs"))
    pages = importlib.import_module("generate")
    pages.example.cache_clear()
    for part, name in (
        ("methods", "largest"),
        ("certificates", "largest"),
        ("aggregators", "hub"),
        ("engines", "loops"),
        ("scores", "shortfall"),
        ("adaptations", "confusion"),
        ("topologies", "wheel"),
    ):
        assert f"\n| `{name}` |" in pages.PARTS[part](), part
    assert "## largest\n" in pages.other_methods()
    assert "`hub`" in pages.options("e-dcp")


WHEEL = {"method": ("largest", {}), "aggregator": ("e-dcp", {"aggregate": "hub"})}


@pytest.mark.parametrize("kind", WHEEL)
def test_devices_of_a_mesh_agree_as_the_simulator_does(skeletons, kind):
    """On loopback: the state machines of real devices, on a network of the new topology."""
    method, options = WHEEL[kind]
    network = Network.of("wheel", 7)
    scores = drawn_scores(network)
    played = run_loopback(network, starter(network, scores, method, **options), LinkFaults(), np.random.default_rng(1))
    assert thresholds(played.devices) == expected(network, scores, method, **options)


@pytest.mark.parametrize("kind", WHEEL)
def test_ranks_agree_as_the_simulator_does(folder, typed, kind):
    method, options = WHEEL[kind]
    flags = [word for name, value in options.items() for word in (f"--{name}", value)]
    words = [
        "calibrate",
        folder / "scores.csv",
        "--network",
        "wheel",
        "--method",
        method,
        *flags,
        "--score",
        "shortfall",
    ]
    done = start(2, "tests.with_skeletons", *words, "--engine", "mpi", "--json")
    assert done.returncode == 0, done.stderr
    alike = {"method": "largest", "aggregator": "hub"}[kind]
    found = json.loads(done.stdout)
    [mine], [other] = found["answers"], typed[alike]["answers"]
    assert mine["thresholds"] == other["thresholds"]
    assert mine["certificate"] == other["certificate"]
