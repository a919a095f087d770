"""`conformesh online`: streams from a file, a table, a picture and rows; the numbers are the library's."""

import json

import numpy as np
import polars as pl
import pytest

from conformesh import Network
from conformesh.online import LEARNERS, online

STEPS, DEVICES = 120, 6


@pytest.fixture
def table():
    return np.random.default_rng(0).random((DEVICES, STEPS))


@pytest.fixture
def stream(table, tmp_path):
    """In any order of rows, and under other names."""
    rows = [(t, f"d{k}", table[k, t]) for k in range(DEVICES) for t in range(STEPS)]
    order = np.random.default_rng(1).permutation(len(rows))
    path = tmp_path / "stream.csv"
    path.write_text("\n".join(["when,where,error", *(f"{t},{k},{float(s)!r}" for t, k, s in (rows[i] for i in order))]))
    return path


WORDS = ("--time", "when", "--device", "where", "--score", "error", "--topology", "cycle")


def test_json_has_the_librarys_numbers(run, stream, table):
    result = run("online", stream, *WORDS, "--no-picture", "--json")
    assert result.exit_code == 0, result.stderr
    said = json.loads(result.stdout)
    found = online(table, Network.cycle(DEVICES))
    assert (said["labels"], said["misses"]) == (found.account().labels, found.account().misses)
    assert said["words"] == str(found.account())
    assert [*said["device_misses"].values()] == found.rates.tolist()
    assert {*said["alone"]} == {*LEARNERS}
    alone = online(table, Network.cycle(DEVICES), learner="tracker", coupling="alone")
    assert said["alone"]["tracker"]["misses"] == alone.account().misses


def test_a_table_a_picture_and_rows(run, stream, table, tmp_path):
    words = ("--learner", "tracker", "--coupling", "counted", "--rows", "rows.parquet", "--out", "p.png")
    result = run("online", stream, *WORDS, *words)
    assert result.exit_code == 0, result.stderr
    assert "6 devices, 120 steps, 720 labels" in result.stdout
    assert "tracker, counted" in result.stdout
    assert "guaranteed within" in result.stdout
    assert (tmp_path / "p.png").stat().st_size > 10_000
    rows = pl.read_parquet(tmp_path / "rows.parquet")
    assert len(rows) == STEPS * DEVICES
    assert (rows["miss"] == (rows["score"] > rows["threshold"]).cast(pl.Int8)).all()


def test_a_shift_raises_the_alarm_and_a_quiet_stream_does_not(run, tmp_path):
    rng = np.random.default_rng(3)
    quiet, loud = rng.random(400), np.concatenate([rng.random(200), 1 + rng.random(200)])
    rows = [f"{t},{name},{float(s)!r}" for name, own in (("quiet", quiet), ("loud", loud)) for t, s in enumerate(own)]
    (tmp_path / "s.csv").write_text("\n".join(["time,device,score", *rows]))
    result = run("online", "s.csv", "--topology", "chain", "--no-picture", "--no-beside", "--json")
    drift = json.loads(result.stdout)["drift"]
    assert [*drift] == ["loud"]
    assert 200 < drift["loud"] < 260


def test_late_labels_and_lost_messages(run, stream):
    words = ("--delay", "3", "--fault", "loss=0.3", "--learner", "tracker", "--coupling", "mixed", "--no-beside")
    said = json.loads(run("online", stream, *WORDS, *words, "--no-picture", "--json").stdout)
    assert said["labels"] == DEVICES * (STEPS - 3)
    assert abs(said["rate"] - 0.1) <= said["bound"]


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("--learner", "trakcer"), "unknown learner 'trakcer', did you mean 'tracker'?"),
        (("--coupling", "mix"), "unknown coupling 'mix'"),
        (("--learner", "dtaci", "--coupling", "mixed"), "mixed"),
        (("--alpha", "1.5"), "alpha"),
        (("--out", "p.txt"), "the picture must end in"),
        (("--fault", "liars=1"), "liars and attack go together"),
    ],
)
def test_mistakes_in_words(run, stream, words, why):
    result = run("online", stream, *WORDS, *words)
    assert result.exit_code == 2
    assert why in result.stderr
    assert result.stderr.count("\n") <= 2
