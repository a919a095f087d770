"""`conformesh compare`: the library's table in words, JSON and a picture, and a last sentence that follows from it."""

from __future__ import annotations

import itertools
import json
import math

import numpy as np
import pytest
from click.testing import CliRunner
from matplotlib.image import imread

from conformesh import TOPOLOGIES, Network, calibrate
from conformesh.cli import app
from conformesh.common.names import natural_order
from conformesh.common.quantities import format_bits
from conformesh.kernels.ranks import AUTO
from conformesh.lab.comparison import (
    CostFront,
    FrontPoint,
    build_networks,
    compare,
    compared_ways,
    cost_fronts,
    information_floor,
)
from conformesh.lab.comparison_plots import draw_comparison, draw_cost_fronts
from conformesh.lab.comparison_table import format_slack, recommendation
from conformesh.methods import MethodVariant
from conformesh.protocols.e_dcp import SCHEDULES
from conformesh.scores import LAC

pytestmark = pytest.mark.xdist_group("compare")  # they share what is computed
RESULT = {
    *("method", "variant", "needs", "guarantee", "assumption", "slack", "thresholds", "mean_size", "rounds"),
    *("numbers_per_device", "bits_per_device", "sound", "notes"),
}


@pytest.fixture(scope="module")
def data():
    """Scores of twelve devices without ties, and the probabilities of other rows."""
    rng = np.random.default_rng(7)
    probabilities = rng.dirichlet(np.full(6, 0.4), size=400)
    labels = np.array([rng.choice(6, p=row) for row in probabilities])
    scores, device = LAC()(probabilities, labels)[:300], rng.integers(0, 12, 300)
    return {f"d{k}": scores[device == k] for k in range(12)}, probabilities[300:]


@pytest.fixture(scope="module")
def report(data, tmp_path_factory):
    """Everything there is: all methods on all topologies, with sizes and the picture."""
    folder = tmp_path_factory.mktemp("compare")
    held, outputs = data
    write(folder / "scores.csv", held)
    np.savez(folder / "outputs.npz", probabilities=outputs)
    words = ["compare", folder / "scores.csv", "--outputs", folder / "outputs.npz", "--score", "lac", "--out", folder]
    result = CliRunner().invoke(app, [*map(str, words), "--json"])
    assert result.exit_code == 0, result.output
    assert result.stderr == ""
    assert result.stdout.count("\n") == 1
    return json.loads(result.stdout), folder


def write(path, held):
    rows = "".join(f"{name},{score!r}\n" for name, scores in held.items() for score in scores.tolist())
    path.write_text("device,score\n" + rows)
    return path


def picture_at(path):
    image = imread(path)[:, :, :3]
    assert min(image.shape[:2]) > 500
    assert image.std() > 0.05
    assert (image == 1).all(axis=2).mean() > 0.4  # on white
    return image


def test_json_has_everything(report):
    found, _ = report
    assert found.keys() == {
        *("alpha", "seed", "devices", "scores", "required_rank", "networks", "skipped", "answer", "picture", "front"),
    }
    assert (found["alpha"], found["devices"], found["scores"], found["skipped"]) == (0.1, 12, 300, [])
    assert [network["network"].split()[0] for network in found["networks"]] == [*TOPOLOGIES]
    everything = {(way.method, way.variant) for way in compared_ways()}
    for network in found["networks"]:
        ran = [(row["method"], row["variant"]) for row in network["results"]]
        refused = [(row["method"], row["variant"]) for row in network["refused"]]
        assert {*ran, *refused} == everything
        assert len(ran) + len(refused) == len(everything)
        assert all(row["reason"] for row in network["refused"])
        assert all(row.keys() == RESULT for row in network["results"])
    diameters = {network["network"]: network["diameter"] for network in found["networks"]}
    assert (diameters["chain 12"], diameters["torus 4x3"], diameters["complete 12"]) == (11, 3, 1)


def test_exact_methods_agree_without_slack(report):
    found, _ = report
    rows = [row for network in found["networks"] for row in network["results"]]
    exact = [row for row in rows if row["method"] == "e-dcp"]
    assert len({tuple(row["thresholds"]) for row in exact}) == 1
    assert {row["slack"] for row in exact} == {0}
    assert {row["slack"] for row in rows if row["method"] == "fcp"} == {281 - 271}  # the paper's rank beside ours


@pytest.mark.filterwarnings("ignore:q-dcp. the error terms:conformesh.CalibrationNote")
def test_sizes_are_those_of_the_library(report, data):
    found, _ = report
    held, outputs = data
    names = natural_order(held)
    network = Network.chain(12).relabelled(names)
    scores = [held[name] for name in names]
    for row in found["networks"][0]["results"]:
        result = calibrate(scores, network, 0.1, row["method"], **MethodVariant(row["method"], row["variant"]).options)
        assert row["mean_size"] == result.predict(outputs, score=LAC()).sum(axis=1).mean()


def test_picture_is_drawn(report):
    found, folder = report
    assert found["picture"] == str(folder / "conformesh-compare.png")
    picture_at(found["picture"])


def test_the_sentence_follows_from_the_table(report):
    """Recompute the winner from the JSON rows: fewest bits among what is counted, assumes nothing, needs no server."""
    found, _ = report
    tables = [
        {
            (row["method"], row["variant"]): row
            for row in network["results"]
            if row["guarantee"] == "counted" and not row["assumption"] and row["needs"] != "server"
            if row["slack"] != "inf" and row["slack"] >= 0
        }
        for network in found["networks"]
    ]
    for network, sound in zip(found["networks"], tables, strict=True):
        assert [*sound] == [(r["method"], r["variant"]) for r in network["results"] if r["sound"]]
    wins = [
        key
        for sound in tables
        for key in sound
        if sound[key]["bits_per_device"] == min(row["bits_per_device"] for row in sound.values())
    ]
    totals = {key: sum(sound[key]["bits_per_device"] for sound in tables) for key in wins}
    winner = min(wins, key=lambda key: (-wins.count(key), totals[key]))
    said = found["answer"]
    assert (said["method"], said["variant"]) == winner
    bits = [sound[winner]["bits_per_device"] for sound in tables if winner in sound]
    assert said["sentence"].startswith(f"Use {MethodVariant(*winner).flags}: ")
    assert format_bits(min(bits)).split()[0] in said["sentence"]
    assert format_bits(max(bits)) in said["sentence"]
    count = wins.count(winner)
    assert (f"all {len(tables)} networks" if count == len(tables) else f"{count} of {len(tables)}") in said["sentence"]
    assert said["sentence"].count(". ") == 0
    assert said["sentence"].endswith(".")


def test_plain_tables_in_a_pipe(run, data, tmp_path):
    scores = write(tmp_path / "s.csv", data[0])
    result = run("compare", scores, "--network", "chain,star", "--method", "e-dcp,fcp,local")
    assert result.exit_code == 0, result.output
    assert result.stderr == ""
    lines = result.stdout.splitlines()
    assert lines[0] == "300 scores on 12 devices; alpha 0.1 requires a threshold of rank 271 or more."
    assert "chain 12: diameter 11, the floor for rounds without a server" in lines
    assert "star 12: diameter 2, the floor for rounds without a server" in lines
    head = next(line for line in lines if line.startswith("method"))
    assert " ".join(head.split()) == "method server guarantee slack threshold rounds numbers bits fewest"
    assert sum(line == head for line in lines) == 2  # the columns of all groups are aligned
    for name in (name for name in SCHEDULES if name != AUTO):
        assert sum(line.startswith(f"e-dcp {name} ") for line in lines) == 2
    assert sum(line.startswith("local ") and " counted* " in line for line in lines) == 2
    assert any(line.startswith("* local: ") for line in lines)
    assert any("--outputs FILE" in line for line in lines)
    assert lines[-1].startswith("Which should I use? Use ")
    picture_at(tmp_path / "conformesh-compare.png")


def test_the_same_seed_tells_the_same_story(run, data, tmp_path):
    scores = write(tmp_path / "s.csv", data[0])
    words = ("compare", scores, "--network", "geometric", "--method", "e-dcp", "--no-picture", "--json", "--seed")
    one, again, other = (json.loads(run(*words, seed).stdout) for seed in (1, 1, 2))
    assert one == again
    assert one["networks"] != other["networks"]
    assert one["picture"] is None
    assert "mean_size" not in one["networks"][0]["results"][0]


def test_topologies_left_out_are_named(run, csv):
    rows = "".join(f"{k},{(7 * k + 3 * i) % 31}\n" for k in range(5) for i in range(20))
    scores = csv("device,score\n" + rows)
    words = ("compare", scores, "--network", "torus,cycle", "--method", "e-dcp", "--no-picture")
    assert "\nleft out: torus needs a number of devices that is rows x columns" in run(*words).stdout
    found = json.loads(run(*words, "--json").stdout)
    assert [one["topology"] for one in found["skipped"]] == ["torus"]
    assert [network["network"] for network in found["networks"]] == ["cycle 5"]


def test_ones_own_graph(run, data, tmp_path):
    """Alone, or beside topologies over the same devices, of which one may have no scores."""
    scores = write(tmp_path / "s.csv", data[0])
    Network.cycle(13).relabelled([f"d{k}" for k in range(13)]).to_edges(tmp_path / "g.txt")
    words = ("compare", scores, "--network", "g.txt", "--method", "fcp", "--no-picture", "--json")
    alone, both = (json.loads(run(*words, *more).stdout) for more in ((), ("--network", "star")))
    assert [network["network"] for network in alone["networks"]] == ["g.txt"]
    assert [network["network"] for network in both["networks"]] == ["g.txt", "star 13"]
    assert alone["required_rank"] == math.ceil(0.9 * 300) + 1


def test_rows_with_a_device_use_its_own_threshold(run, data, tmp_path):
    held, outputs = data
    scores = write(tmp_path / "s.csv", held)
    scores.write_text(scores.read_text().replace("device", "site"))
    at = [f"d{k % 12}" for k in range(len(outputs))]
    np.savez("o.npz", probabilities=outputs, site=np.array(at))
    words = ("compare", scores, "--method", "local", "--network", "star", "--no-picture", "--json")
    found = run(*words, "--outputs", "o.npz", "--device-column", "site")
    assert found.stderr == "note: taking the scores for 'lac'; name them with --score\n"
    names = natural_order(held)
    result = calibrate([held[name] for name in names], Network.star(12).relabelled(names), 0.1, "local")
    (row,) = json.loads(found.stdout)["networks"][0]["results"]
    assert row["mean_size"] == result.predict(outputs, score=LAC(), device=at).sum(axis=1).mean()


def test_too_few_scores_for_any_answer(run, csv):
    result = run("compare", csv("device,score\na,1\nb,2\n"), "--out", "p.svg")
    assert result.exit_code == 0, result.output
    assert result.stderr == ""
    assert "Which should I use? None yet: rank 3 of 2 scores is required" in result.stdout
    found = json.loads(run("compare", "small.csv", "--no-picture", "--json").stdout)
    assert found["answer"]["method"] is None
    assert {row["slack"] for row in found["networks"][0]["results"]} == {"inf"}


def test_only_servers_are_no_answer(data):
    held, _ = data
    found = compare([*held.values()], [Network.star(12)], 0.1, compared_ways(["cp", "fcp"]))
    assert recommendation(found).startswith("None of these: ")
    assert "the only" not in recommendation(found)


@pytest.mark.parametrize("devices", [1, pytest.param(2, marks=pytest.mark.slow), 6])
def test_any_comparison_can_be_drawn(tmp_path, devices):
    """Costs of zero, infinite slack, empty panels: no warning, and something to see."""
    ids = [str(k) for k in range(devices)]
    networks, _ = build_networks(["chain", "star", "cycle", "tree"], ids)
    rng = np.random.default_rng(devices)
    for scores in (40, 1):
        found = compare(
            [rng.random(scores) for _ in ids], networks, 0.1, compared_ways(["e-dcp", "h-dcp", "local", "cp"])
        )
        draw_comparison(tmp_path / "c.png", found)
        picture_at(tmp_path / "c.png")


def test_the_front_is_drawn(data, tmp_path):
    held, _ = data
    write(tmp_path / "scores.csv", held)
    words = ["compare", tmp_path / "scores.csv", "--network", "torus,chain", "--method", "e-dcp", "--no-picture"]
    result = CliRunner().invoke(app, [*map(str, words), "--front", str(tmp_path)])
    assert result.exit_code == 0, result.output
    assert f"rounds against bits: {tmp_path / 'conformesh-front.png'}\n" in result.stdout
    picture_at(tmp_path / "conformesh-front.png")


@pytest.mark.parametrize("scores", [(), (1,), (40, 40, 1)])
def test_any_front_can_be_drawn(tmp_path, scores):
    """Nobody to talk to, no finite threshold, equal points: no warning, and something to see."""
    rng = np.random.default_rng(3)
    found = cost_fronts([rng.random(many) for many in (*scores, 5)], [Network.chain(len(scores) + 1)], 0.1)
    draw_cost_fronts(tmp_path / "f.png", found)
    picture_at(tmp_path / "f.png")


def test_the_front_has_every_way_and_ends_at_both_floors(data):
    held, _ = data
    [found] = cost_fronts([*held.values()], [Network.torus(12)], 0.1)
    names = {point.name for point in found.points}
    assert {"prefer rounds", "prefer bits", "top-k flood", "window tree", "count flood", "q-dcp"} <= names
    best = found.best()
    assert best[0].rounds == found.diameter == 3
    assert best[-1].bits == min(point.bits for point in found.points if point.guarantee == "counted") > found.floor
    assert all(a.rounds < b.rounds and a.bits > b.bits for a, b in itertools.pairwise(best))


def test_what_is_beaten_or_assumed_is_not_on_the_front():
    counted = [FrontPoint("a", "m", "counted", "", 4, 90.0), FrontPoint("b", "m", "counted", "", 9, 20.0)]
    beaten = [FrontPoint("c", "m", "counted", "", 9, 30.0), FrontPoint("d", "m", "counted", "", 10, 20.0)]
    others = [
        FrontPoint("e", "m", "assumed", "luck", 1, 1.0),
        FrontPoint("f", "m", "counted", "luck", 1, 1.0),
    ]
    assert CostFront("x", 2, 1.0, (*others, *beaten, *counted)).best() == counted


def test_the_floor_by_trying_everything():
    """Every way to place the movable scores gives another answer, for each device, whatever the others have."""
    sizes, rank = [3, 2, 4], 4
    movable = [1, 1, 1]  # at most min(rank - 1, n - rank) = 3 together, as even as can be
    assert information_floor(sizes, rank) == pytest.approx(sum(math.log2(m + 1) for m in movable) / 3)
    fixed = [-50.0] * (rank - 1 - sum(movable)) + [0.0, 1.0, 2.0, 3.0] + [50.0] * (9 - rank - sum(movable))
    answers = {}
    for low in itertools.product(*(range(m + 1) for m in movable)):
        scores = fixed + [-99.0] * sum(low) + [99.0] * (sum(movable) - sum(low))
        assert len(scores) == sum(sizes)
        answers[low] = sorted(scores)[rank - 1]
    for one, other in itertools.combinations(answers, 2):
        if sum(a != b for a, b in zip(one, other, strict=True)) == 1:
            assert answers[one] != answers[other]


def test_no_floor_where_nothing_is_searched():
    assert information_floor([5, 5], 11) == information_floor([5, 5], 10) == information_floor([1], 1) == 0.0


def test_slack_in_words():
    assert [format_slack(x) for x in (0.0, 4.0, -31.0, 12345.0, math.inf)] == ["0", "+4", "-31", "+12,345", "inf"]


@pytest.mark.parametrize(
    ("flags", "problem"),
    [
        ("--method edcp", "unknown method 'edcp', did you mean 'e-dcp'?"),
        ("--method ,", "--method needs a value, or several with commas between them"),
        ("--network torsu", "unknown topology 'torsu', did you mean 'torus'?"),
        ("--network torus", "torus needs a number of devices that is rows x columns"),
        ("--alpha 2", "alpha must lie strictly between 0 and 1, got 2"),
        ("--seed -1", "seed must be at least 0, got -1"),
        ("--score lac", "--score is about model outputs: give them with --outputs FILE"),
        ("--device-column x", "needs a column 'x'"),
        ("--outputs nowhere.csv", "nowhere.csv: cannot read the file"),
        ("--network nowhere.txt", "nowhere.txt: cannot read the edge list"),
        ("--out c.txt", "the picture must end in .png, .pdf, .svg"),
    ],
)
def test_bad_settings(run, csv, flags, problem):
    rows = "".join(f"{k},{i}\n" for k in range(3) for i in range(20))
    result = run("compare", csv("device,score\n" + rows), *flags.split())
    assert result.exit_code == 2
    assert result.stdout == ""
    assert problem in result.stderr
    assert result.stderr.splitlines()[-1].startswith("error: ")
