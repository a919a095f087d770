"""Every benchmark runs at a tiny size, and what README.md shows is what results.json holds."""

import json
from pathlib import Path

import pytest

from conformesh.engines import Simulator

FOLDER = Path(__file__).parents[1] / "benchmarks"
# The others start commands of their own: tried as slow tests.
IN_PROCESS = ("peers", "growth", "bandwidth", "ranks", "detection", "lossy")
OTHERS = ("small", "exactness", "schedules", "methods", "limits", "byzantine", "risk", "asynchronous", "view")


def check(found):
    """Every row says what it is about, and either a number or why there is none."""
    assert found["rows"]
    for row in found["rows"]:
        assert row["what"]
        assert row["ours"] or row["note"]
        assert (row["met"] is not None) <= bool(row["target"])


@pytest.mark.filterwarnings("ignore")  # other libraries' warnings
@pytest.mark.parametrize("name", [*IN_PROCESS, *(pytest.param(name, marks=pytest.mark.slow) for name in OTHERS)])
def test_it_runs_at_a_tiny_size(bench, name):
    said = []
    found = bench("run").run_one(name, quick=True, say=said.append)
    check(found)
    assert len(said) == 1 + len(found["rows"])
    json.dumps(found)


def test_every_benchmark_is_tried_here(bench):
    assert {*IN_PROCESS, *OTHERS} == {*bench("run").BENCHMARKS}
    scripts = {path.stem for path in FOLDER.glob("*.py")}
    assert scripts == {*bench("run").BENCHMARKS, "harness", "networks", "plots", "run", "table"}


def test_the_readme_shows_what_was_kept(bench):
    """Freshness: `python benchmarks/run.py --draw` writes exactly this."""
    table = bench("table")
    text = (FOLDER / "README.md").read_text(encoding="utf-8")
    assert table.readme_of(table.read(), text) == text
    for name, kept in table.read()["benchmarks"].items():
        check(kept)
        assert (FOLDER / table.PICTURES.get(name, "README.md")).exists()
    assert [*table.read()["benchmarks"]] == [*bench("run").BENCHMARKS]


def test_a_changed_number_is_noticed(bench):
    table = bench("table")
    results = table.read()
    results["benchmarks"]["peers"]["rows"][-1]["ours"] = 123.0
    text = (FOLDER / "README.md").read_text(encoding="utf-8")
    assert table.readme_of(results, text) != text


def test_pictures_are_drawn_from_the_kept_numbers(bench, tmp_path):
    drawn = bench("plots").draw(bench("table").read(), tmp_path)
    assert {file.name for file in drawn} == {*bench("table").PICTURES.values()}
    assert all(file.stat().st_size > 5_000 for file in drawn)


def test_ratios_are_those_of_the_same_repeat(bench):
    """A minute in which everything takes ten times as long changes a ratio of medians, but not ours."""
    harness = bench("harness")
    assert harness.ratio([2.0, 20.0, 2.0], [1.0, 10.0, 1.0]) == 2.0
    row = harness.compared("x", [1.0, 10.0], [3.0, 30.0], "y", "at least 2", 2.0)
    assert (row.ratio, row.met) == (3.0, True)
    assert harness.compared("x", [1.0], [1.5], "y", "at least 2", 2.0).met is False


def test_exponents_are_those_of_the_power_law(bench):
    x = [10.0, 100.0, 1000.0, 10_000.0]
    found = bench("harness").Series.fitted("", "", x, [value**1.3 for value in x])
    assert found.exponent == pytest.approx(1.3)
    assert found.upper == pytest.approx(1.3)


def test_an_absent_engine_is_a_row_with_its_reason(bench, monkeypatch):
    ranks = bench("ranks")
    monkeypatch.setattr(ranks, "absent", lambda: "there is none")
    rows, series = ranks.bench(quick=True)
    assert [row.note for row in rows] == ["not measured: there is none"]
    assert not series


def test_a_process_that_fails_is_named_with_its_last_word(bench, tmp_path):
    script = tmp_path / "broken.py"
    script.write_text("raise SystemExit('out of ink')")
    with pytest.raises(RuntimeError, match=r"broken.py \[7\] ended with 1: out of ink"):
        bench("harness").in_own_process(str(script), [7])


def test_rounds_are_timed_one_by_one(bench):
    networks = bench("networks")
    seconds = networks.gossiping(Simulator(networks.network_of(networks.SPARSE, 100)), 3)(4)
    assert len(seconds) == 4
    assert min(seconds) > 0


def test_a_benchmark_run_alone_leaves_the_versions_of_the_peers(bench):
    kept = bench("run").kept({"ranks": {}, "peers": {}}, {"NumPy": "of then"})
    assert kept["peers"] == {"NumPy": "of then"}
    assert [*kept["benchmarks"]] == ["peers", "ranks"]


def test_a_peer_that_disagrees_is_not_timed(bench):
    peers = bench("peers")
    data = peers.data_of(200)
    peer = peers.numpy_(data)
    threshold = peers.ours(data).jobs["LAC calibrate"]()
    peers._check(threshold, peer, "LAC calibrate")
    with pytest.raises(AssertionError, match="NumPy, LAC calibrate: threshold"):
        peers._check(threshold + 0.01, peer, "LAC calibrate")
