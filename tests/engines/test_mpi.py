"""The MPI engine: the simulator's bits on any number of ranks, and an end with words where one of them fails."""

import json
import sys
import time

import numpy as np
import polars as pl
import pytest
from click.testing import CliRunner

from conformesh.cli import app
from conformesh.engines.mpi import job as mpi_job
from tests.engines.mpi import job, start
from tests.engines.mpi_cases import CASES, NETWORKS, PARTS, name_of

pytestmark = pytest.mark.xdist_group("mpi")


def test_what_is_shared_is_computed_by_one_worker(request, worker_id):
    """With some pairs of versions pytest-xdist forgets its groups without a word, and every worker starts every job."""
    assert worker_id == "master" or request.node.nodeid.endswith("@mpi")


NAMES = [name_of("", *case) for case in CASES]
JUDGED = ("p-values", "class-wise", "flags", "own flags", "one fresh seed", "fresh flags")


def on_ranks(*looked_at):
    """Run a test on each number of ranks on which one of these parts is looked at."""
    chosen = [(ranks, part) for ranks, parts in PARTS.items() for part in parts if part in looked_at]
    return pytest.mark.parametrize(
        ("ranks", "part"), [pytest.param(*each, marks=[pytest.mark.slow] * (each[0] not in (2, 3))) for each in chosen]
    )


def found_on(ranks, part):
    """Return what a job on so many ranks found; there is one job for all its parts."""
    return job(ranks, "everything", *PARTS[ranks])[part]


@on_ranks(*NETWORKS)
@pytest.mark.parametrize("name", NAMES)
def test_every_method_gives_the_simulators_bits(ranks, part, name):
    """Thresholds, certificates, estimates, notes, and the ledger of every device; on two ranks see test_equivalence."""
    assert found_on(ranks, part)[name] == []


@on_ranks(*NETWORKS)
def test_nothing_is_left_out(ranks, part):
    assert sorted(found_on(ranks, part)) == sorted(NAMES)


@on_ranks("messages")
def test_every_question_in_every_type_gives_the_simulators_answer(ranks, part):
    found = found_on(ranks, part)
    assert found["bad"] == []
    assert found["asked"] == 6 * 4 * 11 + 5 * 4 * 2 + 3 * 6 + 3 * 4 + 1


@on_ranks("results")
@pytest.mark.parametrize(
    "name",
    [
        "by name",
        "own scores",
        "observed",
        "groups",
        "losses",
        "tests of lambdas",
        *JUDGED,
        "at all looks",
        "overlapping groups",
        "unknown mixtures",
        "adapted",
    ],
)
def test_every_rank_has_the_whole_result(ranks, part, name):
    assert found_on(ranks, part)[name] is True


@on_ranks("error")
def test_an_error_that_all_ranks_meet_is_an_ordinary_one(ranks, part):
    assert "did you mean 'flood'" in found_on(ranks, part)["error"]


@pytest.mark.parametrize(
    ("where", "words"),
    [
        ("scores", "error: rank 1 of 2: device .*: scores must be numbers, got NaN"),
        ("protocol", "error: rank 1 of 2: the disk is full"),
    ],
)
def test_a_rank_that_fails_stops_the_job_with_its_words(where, words):
    began = time.monotonic()
    done = start(2, "tests.engines.mpi_jobs", "one_rank_fails", where)
    assert done.returncode == 1
    assert len([line for line in done.stderr.splitlines() if line.startswith("error: ")]) == 1
    assert pl.Series([done.stderr]).str.contains(words).all(), done.stderr
    assert done.stdout == ""
    assert (
        time.monotonic() - began < 60 + mpi_job.ERROR_SPREAD_SECONDS
    )  # most of it is starting three Pythons on a busy machine


@pytest.mark.parametrize("turn", ["_differs", "_ends_early"])
def test_ranks_that_take_different_turns_end_without_a_result(turn):
    assert "rank 0 and rank 1 ask different questions in round 2" in job(2, "different_turns")[turn]


@pytest.mark.slow
def test_engines_give_back_what_they_took():
    assert job(2, "many_engines") == {"made": 3000}


# --- files and the command line ---------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The same scores as one file, as Parquet files, as a folder per device, and as three NPZ files."""
    path = tmp_path_factory.mktemp("scores")
    rng = np.random.default_rng(1)
    device = np.repeat([f"d {k:02}" for k in range(9)], rng.integers(3, 15, 9))
    n = len(device)
    frame = pl.DataFrame({"device": device, "score": rng.random(n), "site": rng.choice(["a", "b"], n)})
    frame = frame.sample(fraction=1, shuffle=True, seed=2)
    frame.write_csv(path / "scores.csv")
    for name in ("parts", "arrays"):
        (path / name).mkdir()
    for part in range(4):
        frame[part::4].write_parquet(path / "parts" / f"part-{part}.parquet")
    for (name,), own in frame.group_by("device"):
        (path / "hive" / f"device={name}".replace(" ", "%20")).mkdir(parents=True)
        own.drop("device").write_parquet(path / "hive" / f"device={name}".replace(" ", "%20") / "part.parquet")
    for rank in range(3):
        own = frame.filter(pl.col("device").str.slice(2).cast(pl.Int64) % 3 == rank)
        texts = {name: own[name].to_numpy().astype(str) for name in ("device", "site")}
        np.savez(path / "arrays" / f"rank-{rank}.npz", score=own["score"].to_numpy(), **texts)
    return path


@pytest.mark.parametrize("source", ["scores.csv", "parts", "hive", "arrays"])
def test_a_rank_reads_the_scores_that_it_hosts(folder, source):
    frame = pl.read_csv(folder / "scores.csv")
    expected = {name: sorted(own["score"].to_list()) for (name,), own in frame.group_by("device")}
    found = job(3, "loading", folder)[source]
    assert found["scores"] == expected
    assert found["only own"]
    assert found["groups"]


def calibrated(source, *words, ranks=None):
    """Return the JSON of `conformesh calibrate`, by the simulator or over MPI, without what no two runs share."""
    command = ["calibrate", str(source), "--json", *words]
    if ranks is None:
        done = CliRunner().invoke(app, command)
        assert done.exit_code == 0
    else:
        done = start(ranks, "conformesh.cli", *command, "--engine", "mpi")
        assert done.returncode == 0, done.stderr
    assert done.stdout.count("\n") == 1
    assert done.stderr == ""
    found = json.loads(done.stdout)
    for each in (found, *found.get("calibrations", [])):
        each.pop("seconds", None)
    return found


@pytest.mark.parametrize(
    ("source", "words"),
    [("hive", ["--method", "h-dcp", "--alpha", "0.3"]), ("arrays", ["--alpha", "0.3,0.4", "--group-column", "site"])],
)
def test_the_command_over_mpi_prints_the_simulators_result(folder, source, words):
    assert calibrated(folder / source, *words, ranks=3) == calibrated(folder / "scores.csv", *words)


def test_an_option_that_does_not_exist_is_one_line_and_code_2(folder):
    done = start(2, "conformesh.cli", "calibrate", folder / "scores.csv", "--engine", "mpi", "--aggregate", "flod")
    assert done.returncode == 2
    assert done.stderr.count("did you mean 'flood'?") == 1


def test_arrays_go_with_as_many_ranks(folder):
    done = start(2, "conformesh.cli", "calibrate", folder / "arrays", "--engine", "mpi")
    assert done.returncode == 2
    assert "3 NPZ files for 2 ranks" in done.stderr


def test_the_missing_extra_explains_itself(monkeypatch):
    monkeypatch.setitem(sys.modules, "mpi4py", None)
    with pytest.raises(ValueError, match=r"engine 'mpi' needs mpi4py and MPI: pip install 'conformesh\[mpi\]'"):
        mpi_job.load_mpi()
