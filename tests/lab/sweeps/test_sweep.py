"""Sweeps: the rows of single calibrations, bit for bit, whatever ran together, was stopped or was there before."""

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from polars.testing import assert_frame_equal

import conformesh
from conformesh import METHODS, Network, calibrate, scores, sweep
from conformesh.common.random_streams import random_stream
from conformesh.graph.weights import constant_weights
from conformesh.kernels.weighted_scores import WeightedScores
from conformesh.lab.datasets.partition import partition, split_calibration_rows
from conformesh.lab.datasets.synthetic import synthetic_outputs
from conformesh.lab.sweeps import cells, sources
from conformesh.lab.sweeps import cells as cached
from conformesh.lab.sweeps.cells import compute_cell
from conformesh.lab.sweeps.config import read_sweep_config
from conformesh.lab.sweeps.sweep import lay_out_cells
from conformesh.pipeline.solver import TooFewScores, count_at_or_below, solve_draws
from conformesh.protocols.aggregate import CannotAggregate

ALPHAS = [0.1, 0.3]
RUNS = [
    *({"name": name} for name in METHODS if name != "q-dcp"),
    {"name": "e-dcp", "options": {"aggregate": "flood"}},
    {"name": "h-dcp", "options": {"rounds": 30, "bins": 60}},
    {"name": "h-dcp", "options": {"bins": 50, "range": [-8.0, 8.0]}},
    {"name": "q-dcp", "options": {"rounds": 80}},
    {"name": "q-dcp", "options": {"rounds": 40, "certify": True}},
    {"name": "wfcp", "options": {"noise": 0.001, "bins": 100}},
]
CONFIG = {
    "scores": {"source": "synthetic", "per_device": 15, "test_per_device": 7, "spread": 0.3},
    "networks": [{"topology": "torus", "devices": 12}, {"topology": "erdos-renyi", "devices": 9, "redraw": True}],
    "methods": RUNS,
    "alphas": ALPHAS,
    "draws": 3,
    "seed": 5,
}
SMALL = {
    **CONFIG,
    "networks": [{"topology": "chain", "devices": [4, 6]}],
    "methods": [{"name": "e-dcp"}, {"name": "h-dcp", "options": {"rounds": 20}, "grid": {"bins": [20, 40]}}],
}
CHANGING = ("seconds", "worker", "made")  # what differs from run to run

pytestmark = pytest.mark.filterwarnings("ignore::conformesh.CalibrationNote", "ignore::conformesh.TooFewScores")


def by_hand(devices, seed, draw):
    """Scores of a draw: normal, around means that belong to the devices."""
    means = 0.3 * random_stream(seed, "sweep devices").standard_normal(devices)
    drawn = random_stream(seed + draw, "sweep scores").standard_normal((devices, 15 + 7)) + means[:, None]
    return drawn[:, :15], drawn[:, 15:]


def same(one, other):
    assert_frame_equal(one.drop(CHANGING), other.drop(CHANGING), check_exact=True)


@pytest.fixture(scope="module")
def rows():
    return sweep(CONFIG, jobs=1)


def test_rows_are_those_of_single_calibrations(rows):
    """Threshold, ranks, certificate, coverage and cost, bit for bit, of every method, one calibration after another."""
    assert len(rows) == 2 * len(RUNS) * len(ALPHAS) * 3
    for row in rows.iter_rows(named=True):
        torus = row["devices"] == 12
        network = Network.torus(4, 3) if torus else Network.of("erdos-renyi", 9, seed=5 + row["draw"])
        assert (row["network"], row["edges"]) == (network.name, network.edges)
        mine, tests = by_hand(network.devices, 5, row["draw"])
        options = {name: tuple(v) if isinstance(v, list) else v for name, v in json.loads(row["options"]).items()}
        if row["method"] == "wfcp":
            options["seed"] = 5 + row["draw"]
        single = calibrate([*mine], network, row["alpha"], row["method"], **options)
        counted = int(count_at_or_below(WeightedScores.of([*mine]), single.thresholds.min()))
        if single.certificate.weight is not None:  # of weights, or of the devices that fall short the most
            counted = single.certificate.counted_rank
        expected = {
            "threshold": single.threshold,
            "smallest_threshold": single.thresholds.min(),
            "counted_rank": counted,
            "certificate": single.certificate.kind,
            "covered": (tests <= single.thresholds[:, None]).mean(),
            "rounds": single.cost.rounds,
            "bits": single.cost.bits_per_device,
            "seed": 5 + row["draw"],
            "refused": None,
        }
        assert {name: row[name] for name in expected} == expected, row
        if isinstance(single.certificate.required_rank, int):
            assert row["required_rank"] == single.certificate.required_rank


def test_outputs_are_scored_split_and_evaluated_as_by_hand():
    given = {"source": "outputs", "rows": 600, "classes": 10, "score": "aps", "score_options": {"randomised": True}}
    given |= {"partition": "dirichlet", "calibration": 0.4}
    config = {"scores": given, "networks": [{"topology": "cycle", "devices": 5}], "methods": [{"name": "e-dcp"}]}
    config |= {"draws": 2, "seed": 3}
    outputs = synthetic_outputs(600, 10)
    p = outputs.probabilities()
    for row in sweep(config, jobs=1).iter_rows(named=True):
        home = partition(outputs.labels, 5, "dirichlet", seed=3 + row["draw"], classes=10)
        chosen, others = split_calibration_rows(home, 240, seed=3 + row["draw"])
        score = scores.APS(randomised=True, seed=3 + row["draw"])
        own = score(p[chosen], outputs.labels[chosen])
        single = calibrate([own[home[chosen] == k] for k in range(5)], Network.cycle(5), 0.1, score=score)
        found = single.evaluate(p[others], outputs.labels[others], device=home[others])
        assert (row["threshold"], row["covered"], row["size"]) == (
            single.threshold,
            found.coverage.rate,
            found.mean_size,
        )


@pytest.mark.parametrize("record", [None, ["threshold", "rank", "covered"]])
def test_sharing_a_run_changes_no_row(record):
    """All methods where everything is recorded, and where nothing shows the company, so that more of them batch."""
    config = read_sweep_config({**CONFIG, "networks": CONFIG["networks"][:1], **({"record": record} if record else {})})
    batched = 0
    for cell in lay_out_cells(config):
        together, alone = compute_cell(cell), compute_cell(replace(cell, together=False))
        batched += len(cell.draws) > 1
        order = [(row["draw"], row["alpha"]) for row in together]
        assert order == [(draw, alpha) for draw in cell.draws for alpha in ALPHAS]
        for one, other in zip(together, alone, strict=True):
            assert {**one, "seconds": None} == {**other, "seconds": None}
    assert batched == (len(RUNS) - 2 if record else sum(m.can_share_run(config.record) for m in config.methods))
    assert batched >= (6 if record else 2)  # what maxima cost depends on the scores: fedcp-qq and local have none


def test_parallel_rows_equal_those_of_one_process(tmp_path):
    heard = []
    alone = sweep(SMALL, jobs=1)
    together = sweep(SMALL, tmp_path, jobs=2, on_point=lambda *words: heard.append(words))
    same(alone, together)
    assert heard[0] == (0, 18, "")
    assert [done for done, _, _ in heard] == [*range(19)]


def test_a_second_sweep_computes_nothing(tmp_path, monkeypatch):
    first = sweep(SMALL, tmp_path, jobs=1)
    monkeypatch.setattr(cached, "compute_cell", lambda *_: pytest.fail("this point was there"))
    assert_frame_equal(first, sweep(SMALL, tmp_path, jobs=1), check_exact=True)
    assert json.loads((tmp_path / "provenance.json").read_text())["computed"] == 0
    assert_frame_equal(pl.read_parquet(tmp_path / "rows.parquet"), first)


def test_other_settings_and_files_are_other_cells(tmp_path):
    """A changed score file must never meet the rows of the old one, even under the same name."""
    file = tmp_path / "scores.csv"
    config = {"scores": {"source": "file", "file": str(file)}, "networks": [{"topology": "chain"}]}
    config |= {"methods": [{"name": "fcp"}], "alphas": [0.5]}

    def threshold_of(**changes):
        sources.digest_source_file.cache_clear()  # a new process would read the file anew
        sources._rows_of_file.cache_clear()
        sources.build_cell_network.cache_clear()
        sources._draw_of.cache_clear()
        return sweep({**config, **changes}, tmp_path / "out", jobs=1)["threshold"].to_list()

    file.write_text("device,score\na,1\na,2\nb,3\nb,4\n")
    assert threshold_of() == [3.0]
    assert threshold_of(alphas=[0.5, 0.4]) == [3.0, 4.0]
    file.write_text("device,score\na,1\na,2\nb,30\nb,4\n")
    assert threshold_of() == [4.0]


def test_a_killed_sweep_keeps_what_is_done_and_goes_on(tmp_path):
    """SIGKILL in the middle: only cells in hand are lost, and the rows are those of a sweep that was left alone."""
    config = {**SMALL, "draws": 40, "methods": [{"name": "e-dcp"}]}
    (tmp_path / "config.json").write_text(json.dumps(config))
    script = "import json, sys, conformesh\nconformesh.sweep(json.load(open(sys.argv[1])), sys.argv[2], jobs=1)"
    environment = {**os.environ, "PYTHONPATH": str(Path(conformesh.__file__).parents[1])}
    words = [sys.executable, "-c", script, str(tmp_path / "config.json"), str(tmp_path / "out")]
    with subprocess.Popen(words, env=environment) as process:
        end = time.monotonic() + 60
        while len([*tmp_path.rglob("*.parquet")]) < 5 and process.poll() is None and time.monotonic() < end:
            time.sleep(0.001)
        process.send_signal(signal.SIGKILL)
    done = len([*tmp_path.glob("out/cells/*.parquet")])
    assert 5 <= done < 80
    heard = []
    resumed = sweep(config, tmp_path / "out", jobs=1, on_point=lambda *words: heard.append(words))
    assert heard[0] == (done, 80, "")
    same(resumed, sweep(config, jobs=1))


def test_a_method_that_cannot_work_says_so_in_its_row(tmp_path, monkeypatch):
    """Others go on, and what did not work has no number."""

    def only_four(samples, network, *words, **options):
        if network.devices != 4:
            raise CannotAggregate(f"not on {network.name}")
        return solve_draws(samples, network, *words, **options)

    monkeypatch.setattr(cells, "solve_draws", only_four)
    rows = sweep({**SMALL, "methods": [{"name": "e-dcp"}]}, tmp_path, jobs=1)
    refused = rows.filter(pl.col("devices") == 6)
    assert {*refused["refused"]} == {"not on chain 6"}
    assert refused["threshold"].null_count() == refused["rounds"].null_count() == len(refused)
    assert rows.filter(pl.col("devices") == 4)["refused"].null_count() == 6
    assert pl.read_csv(tmp_path / "summary.csv")["refused"].to_list() == [0, 0, 3, 3]


def test_record_decides_the_columns_and_the_folder_has_everything(tmp_path):
    rows = sweep({**SMALL, "record": ["threshold", "bits"]}, tmp_path / "new" / "out", jobs=1)
    assert rows["threshold"].null_count() == rows["bits"].null_count() == 0
    for column in ("required_rank", "counted_rank", "covered", "rounds", "seconds", "certificate"):
        assert rows[column].null_count() == len(rows), column
    found = pl.read_csv(tmp_path / "new" / "out" / "summary.csv")
    assert found["draws"].to_list() == [3] * len(found)
    first = rows.filter((pl.col("devices") == 4) & (pl.col("method") == "e-dcp") & (pl.col("alpha") == 0.1))
    assert found["threshold"][0] == pytest.approx(first["threshold"].mean(), rel=1e-5)
    said = json.loads((tmp_path / "new" / "out" / "provenance.json").read_text())
    assert (said["cells"], said["config"]["seed"]) == (len({*found["method"]}) and said["computed"], 5)


def test_count_error_term_and_gap_are_recorded_on_request():
    record = ["rank", "count", "epsilon", "gap"]
    rows = sweep({**SMALL, "methods": RUNS[-6:-1], "record": record}, jobs=1)
    for row in rows.iter_rows(named=True):
        network = Network.chain(row["devices"])
        mine, _ = by_hand(network.devices, 5, row["draw"])
        options = {name: tuple(v) if isinstance(v, list) else v for name, v in json.loads(row["options"]).items()}
        single = calibrate([*mine], network, row["alpha"], row["method"], **options)
        assert row["epsilon"] == single.certificate.epsilon
        assert row["count"] == (mine <= single.thresholds.min()).sum()
        assert row["gap"] == constant_weights(network, network.spectrum).gap
    assert rows["epsilon"].null_count() not in (0, len(rows))  # some of these methods have one
    assert sweep(SMALL, jobs=1).select("count", "epsilon", "gap").null_count().row(0) == (36, 36, 36)


def test_a_score_file_on_a_graph_file_with_test_rows(tmp_path):
    """Devices by name, whatever the order of the two files; a device of the graph without scores passes messages on."""
    rng = np.random.default_rng(0)
    lines = [f"{name},{score!r}" for name in "ab" for score in rng.random(30).tolist()]
    (tmp_path / "scores.csv").write_text("device,score\n" + "\n".join(lines) + "\n")
    (tmp_path / "graph.txt").write_text("c b\nc a\n")
    text = """
        draws = 2
        scores = { source = "file", file = "scores.csv", calibration = 0.5 }
        networks = [{ graph = "graph.txt" }]
        methods = [{ name = "local" }, { name = "e-dcp" }]
    """
    (tmp_path / "sweep.toml").write_text(text)
    rows = sweep(tmp_path / "sweep.toml", jobs=1)
    values = np.array([float(line.split(",")[1]) for line in lines])
    home = np.repeat(np.array([1, 2]), 30) - 1
    for row in rows.filter(pl.col("method") == "e-dcp").iter_rows(named=True):
        chosen, others = split_calibration_rows(home + 0, 30, seed=row["draw"])
        own = [values[chosen][home[chosen] == 0], values[chosen][home[chosen] == 1], []]
        with pytest.warns(TooFewScores) if row["threshold"] == np.inf else _nothing():
            single = calibrate(own, Network.from_edges(tmp_path / "graph.txt"), 0.1)
        assert row["threshold"] == single.threshold
        assert row["covered"] == (values[others] <= single.threshold).mean()
        assert row["size"] is None


def _nothing():
    from contextlib import nullcontext

    return nullcontext()


def test_the_promise_is_swept_like_an_option():
    """The published rank beside the swap rank, for one target; methods that keep their own promise refuse another."""
    scores = {"source": "synthetic", "per_device": 50}
    networks = [{"topology": "torus", "devices": 20}]
    methods = [
        {"name": "e-dcp", "options": {"mixture": "paper"}, "grid": {"rank_rule": ["swap", "ghost"]}},
        {"name": "fcp"},
    ]
    rows = sweep({"scores": scores, "networks": networks, "methods": methods}, jobs=1)
    assert rows["required_rank"].to_list() == [901, 918, 918]
    assert rows["counted_rank"].to_list() == [901, 918, 918]
    with pytest.raises(ValueError, match="'fcp' keeps the guarantee it was published with"):
        sweep({"scores": scores, "networks": networks, "methods": [{"name": "fcp", "options": {"mixture": "equal"}}]})
