"""Rows: what is there is not computed again, what was stopped goes on, and nothing depends on the order."""

from dataclasses import replace

import polars as pl
import pytest
from polars.testing import assert_frame_equal

from conformesh import __version__
from conformesh.lab.reproduction.cases import ExperimentRun
from conformesh.lab.reproduction.curves import VARIANTS
from conformesh.lab.reproduction.experiments import get_experiment
from conformesh.lab.reproduction.paper_scores import paper_score_sources
from conformesh.lab.reproduction.reproduction import (
    COMPARED_DRAWS,
    DEFAULT_SEED,
    PAPER_DRAWS,
    ReproductionRequest,
    compute_rows,
)
from conformesh.lab.sweeps import cells as cached
from conformesh.lab.sweeps.cells import compute_cell
from conformesh.lab.sweeps.provenance import describe_machine
from tests.lab.reproduction.handmade import rows_at

REQUEST = ReproductionRequest(quick=True, draws=2, seed=3, scores=("logits",))
PROVENANCE = ("version", "seed", "data", "data_digest", "synthetic", "machine", "made")


@pytest.fixture(scope="module")
def experiment():
    """Four cheap points of Figure 4 in each variant."""
    whole = get_experiment("h-dcp-alpha")
    return replace(whole, grid=lambda case: whole.grid(case)[4:])


class Watcher:
    """Hear of every point, and stop after some of them."""

    def __init__(self, stop_after=None):
        self.heard, self.stop_after = [], stop_after

    def __call__(self, done, total, name):
        self.heard.append((done, total, name))
        if self.stop_after is not None and self.computed == self.stop_after:
            raise KeyboardInterrupt

    @property
    def computed(self):
        return sum(bool(name) for _, _, name in self.heard)


def go(experiment, sources, folder, *, request=REQUEST, jobs=1, stop_after=None):
    watcher = Watcher(stop_after)
    return compute_rows([experiment], sources, request, folder, jobs, watcher), watcher


def in_order(frame):
    return frame.drop("made").sort("variant", "scores", "line", "x", "draw")


def test_parallel_rows_equal_those_of_one_process(experiment, small_sources, tmp_path):
    """Bit for bit and in the same order: which process computes a point, and when, changes nothing."""
    alone, _ = go(experiment, small_sources, tmp_path / "alone")
    together, watcher = go(experiment, small_sources, tmp_path / "together", jobs=2)
    assert_frame_equal(alone.drop("made"), together.drop("made"), check_exact=True)
    assert watcher.heard == [(0, 8, ""), *((i, 8, "h-dcp-alpha") for i in range(1, 9))]


def test_rows_are_what_the_points_compute(experiment, small_sources, tmp_path):
    frame, _ = go(experiment, small_sources, tmp_path)
    points = [point for case in REQUEST.cases(experiment, small_sources) for point in experiment.grid(case)]
    rows = [row for point in points for row in rows_at(point)]
    columns = [name for name in rows[0] if name not in ("version", "machine", "made")]
    assert frame.select(columns).to_dicts() == [{name: row[name] for name in columns} for row in rows]
    methods = [point.cell.method.name for point in points for _ in range(2 * 3)]
    assert frame["method"].to_list() == methods


def test_a_second_run_computes_nothing(experiment, small_sources, tmp_path, monkeypatch):
    first, _ = go(experiment, small_sources, tmp_path)
    monkeypatch.setattr(cached, "compute_cell", lambda *_: pytest.fail("this point was there"))
    again, watcher = go(experiment, small_sources, tmp_path)
    assert watcher.heard == [(8, 8, "")]
    assert_frame_equal(first, again, check_exact=True)  # "made" too: these are the same files


def test_only_a_deleted_point_is_computed_again(experiment, small_sources, tmp_path):
    first, _ = go(experiment, small_sources, tmp_path)
    files = sorted(tmp_path.rglob("*.parquet"))
    assert len(files) == 8
    kept = {file: file.stat().st_mtime_ns for file in files}
    files[3].unlink()
    again, watcher = go(experiment, small_sources, tmp_path, jobs=2)
    assert watcher.heard == [(7, 8, ""), (8, 8, "h-dcp-alpha")]
    assert [file for file in files if file.stat().st_mtime_ns != kept[file]] == [files[3]]
    assert_frame_equal(first.drop("made"), again.drop("made"), check_exact=True)


def test_a_stopped_run_keeps_what_is_done_and_goes_on(experiment, small_sources, tmp_path):
    with pytest.raises(KeyboardInterrupt):
        go(experiment, small_sources, tmp_path, stop_after=3)
    assert len([*tmp_path.rglob("*.parquet")]) == 3
    rows, watcher = go(experiment, small_sources, tmp_path)
    assert watcher.heard[0] == (3, 8, "")
    assert watcher.computed == 5
    whole, _ = go(experiment, small_sources, tmp_path / "other")
    assert_frame_equal(rows.drop("made"), whole.drop("made"), check_exact=True)


def test_an_error_keeps_what_is_done(experiment, small_sources, tmp_path, monkeypatch):
    left = [True] * 3

    def until_it_breaks(cell):
        if not left:
            raise RuntimeError("out of luck")
        left.pop()
        return compute_cell(cell)

    with monkeypatch.context() as patched:
        patched.setattr(cached, "compute_cell", until_it_breaks)
        with pytest.raises(RuntimeError, match="out of luck"):
            go(experiment, small_sources, tmp_path)
    _, watcher = go(experiment, small_sources, tmp_path)
    assert watcher.computed == 5


def test_half_written_files_are_ignored(experiment, small_sources, tmp_path):
    """A process that dies while writing leaves a .part, never a half point."""
    whole, _ = go(experiment, small_sources, tmp_path)
    file = min(tmp_path.rglob("*.parquet"))
    part = file.with_suffix(".123.part")
    part.write_bytes(file.read_bytes()[:100])
    file.unlink()
    rows, watcher = go(experiment, small_sources, tmp_path)
    assert watcher.computed == 1
    assert_frame_equal(whole.drop("made"), rows.drop("made"), check_exact=True)
    assert [*tmp_path.rglob("*.part")] == [part]  # and this run left none


def test_a_write_that_fails_leaves_no_point(experiment, small_sources, tmp_path, monkeypatch):
    def fails(self, path):
        path.write_bytes(b"half of it")
        raise OSError("disk full")

    with monkeypatch.context() as patched:
        patched.setattr(pl.DataFrame, "write_parquet", fails)
        with pytest.raises(OSError, match="disk full"):
            go(experiment, small_sources, tmp_path)
    assert not [*tmp_path.rglob("*.parquet")]
    assert go(experiment, small_sources, tmp_path)[1].computed == 8


def test_rows_say_where_they_come_from(experiment, small_sources, tmp_path):
    frame, _ = go(experiment, small_sources, tmp_path)
    outputs = small_sources["cifar100"].load()
    assert {*PROVENANCE} <= {*frame.columns}
    expected = {
        "version": __version__,
        "seed": 3,
        "data": "hundred.npz",
        "data_digest": outputs.digest,
        "synthetic": False,
        "machine": describe_machine(),
        "experiment": "h-dcp-alpha",
        "scores": "logits",
        "devices": 20,
    }
    for name, value in expected.items():
        assert frame[name].unique().to_list() == [value], name
    assert {*frame["variant"]} == {*VARIANTS}
    assert all(made.endswith("+00:00") for made in frame["made"])
    assert "cores, Python" in describe_machine()


def test_results_do_not_depend_on_the_order(experiment, small_sources, tmp_path):
    backwards = replace(experiment, grid=lambda case: experiment.grid(case)[::-1])
    forth, _ = go(experiment, small_sources, tmp_path / "forth")
    back, _ = go(backwards, small_sources, tmp_path / "back")
    assert forth["line"].to_list() != back["line"].to_list()
    assert_frame_equal(in_order(forth), in_order(back), check_exact=True)
    assert go(backwards, small_sources, tmp_path / "forth")[1].computed == 0


def test_other_seeds_draws_and_data_are_other_points(experiment, small_sources, tmp_path):
    go(experiment, small_sources, tmp_path)
    for other in (replace(REQUEST, seed=4), replace(REQUEST, draws=3), replace(REQUEST, scores=("confidences",))):
        assert go(experiment, small_sources, tmp_path, request=other)[1].computed == 8
    sources = {**small_sources, "cifar100": paper_score_sources([])["cifar100"]}
    rows, watcher = go(experiment, sources, tmp_path)
    assert watcher.computed == 8
    assert rows["synthetic"].all()


def test_several_experiments_share_a_run(experiment, small_sources, tmp_path):
    table = get_experiment("star-table")
    watcher = Watcher()
    rows = compute_rows(
        [experiment, table], small_sources, replace(REQUEST, scores=("confidences",)), tmp_path, 1, watcher
    )
    assert watcher.computed == 8 + 14
    assert rows["experiment"].unique(maintain_order=True).to_list() == ["h-dcp-alpha", "star-table"]
    assert len([*tmp_path.iterdir()]) == 8 + 14


def test_a_cell_of_two_figures_runs_once(small_sources, tmp_path):
    """The reference lines of Figures 2 and 4 are the same runs."""
    figures = [get_experiment(name) for name in ("figure-2", "figure-4")]
    references = [replace(each, grid=lambda case, grid=each.grid: grid(case)[5:]) for each in figures]
    watcher = Watcher()
    rows = compute_rows(references, small_sources, REQUEST, tmp_path, 1, watcher)
    assert watcher.heard == [(0, 6, ""), *((i, 6, "q-dcp-alpha") for i in range(1, 7))]
    first, second = (rows.filter(experiment=each.name).drop("experiment") for each in figures)
    assert {*first["line"]} == {"CP", "FCP", "E-DCP"}
    assert_frame_equal(first, second, check_exact=True)


def test_a_method_that_refuses_is_an_error_that_names_the_line(experiment, small_sources, tmp_path):
    """A sweep has a row without numbers for it; a figure cannot leave a point out."""

    def broken(case):
        return [case.point("torus", ExperimentRun("h-dcp", {"rounds": 20, "bins": 50, "wire": 17}))]

    with pytest.raises(ValueError, match=r"h-dcp-alpha, line torus: .*17"):
        go(replace(experiment, grid=broken), small_sources, tmp_path)


def test_requests_lay_out_both_variants_of_both_scores():
    experiment = get_experiment("figure-4")
    cases = ReproductionRequest().cases(experiment, paper_score_sources([]))
    assert [(case.scores, case.variant) for case in cases] == [
        (scores, variant) for scores in ("logits", "confidences") for variant in VARIANTS
    ]
    assert {(case.experiment, case.draws, case.seed, case.quick) for case in cases} == {
        ("h-dcp-alpha", COMPARED_DRAWS, DEFAULT_SEED, False)
    }
    assert {
        case.draws for case in ReproductionRequest().cases(get_experiment("figure-6"), paper_score_sources([]))
    } == {PAPER_DRAWS}  # nothing to compare with
    assert {case.draws for case in ReproductionRequest(quick=True).cases(experiment, paper_score_sources([]))} == {2}
    assert {
        case.draws for case in ReproductionRequest(quick=True, draws=5).cases(experiment, paper_score_sources([]))
    } == {5}
