"""Epochs of a private mesh: clock and declaration, the column of a score file, and bad rows that stay local."""

import gzip
import json

import numpy as np
import pytest
from click.testing import CliRunner

pytest.importorskip("cryptography", reason="certificates need the extra mesh")

from conformesh import Network
from conformesh.cli import app
from conformesh.mesh.config.checks import examine_folder
from conformesh.mesh.config.device_toml import read_device
from conformesh.mesh.config.epochs import EPOCH_FILE, EpochClock, declare_epoch, read_epoch
from conformesh.mesh.config.folders import init_mesh, scatter_scores
from conformesh.mesh.config.local_scores import read_local_scores
from conformesh.mesh.node.calibration_run import device_account
from conformesh.mesh.node.file_watch import ScoreWatch
from conformesh.mesh.node.privacy_watch import PrivacyWatch
from conformesh.privacy.account import ACCOUNT_FILE as ACCOUNT

NOISY = {"epsilon": 1.0, "cells": 8}


def made(root, options=NOISY, **more):
    init_mesh(root, Network.chain(3), method="p-dcp", options=options, **more)
    return [read_device(root / f"device-{k:02}") for k in range(3)]


@pytest.fixture
def configs(tmp_path):
    return made(tmp_path / "m")


def run(*words):
    return CliRunner().invoke(app, ["mesh", *map(str, words)])


# --- clock and declaration --------------------------------------------------------------------------------------------


def test_declared_epochs_never_fall(configs):
    config = configs[0]
    assert EpochClock(config).last_closed() == 1
    declare_epoch(config, 3)
    assert EpochClock(config).last_closed() == read_epoch(config.folder) == 3
    declare_epoch(config, 3)
    with pytest.raises(ValueError, match="epoch 3 has closed, and numbers never fall; got 2"):
        declare_epoch(config, 2)
    with pytest.raises(ValueError, match="an epoch must be a whole number from 1 to 999999999999999, got 0"):
        declare_epoch(config, 0)


@pytest.mark.parametrize("content", [b"", b"two", b"0", b"-1", b"1.5", b"9" * 16, b"\xff"])
def test_a_declaration_that_cannot_be_read_changes_nothing(configs, content):
    epochs = EpochClock(configs[0])
    declare_epoch(configs[0], 4)
    assert epochs.last_closed() == 4
    (configs[0].folder / EPOCH_FILE).write_bytes(content)
    assert epochs.last_closed() == 4
    assert "declare the epoch again" in epochs.problem
    declare_epoch(configs[0], 5)
    assert (epochs.last_closed(), epochs.problem) == (5, "")


def test_epochs_by_the_clock(tmp_path):
    config, now = made(tmp_path / "m", {**NOISY, "epoch_seconds": 100})[0], [0.0]
    epochs = EpochClock(config, lambda: now[0])
    seen = []
    for second in (0, 199, 200, 299, 300, 304.9, 305, 1e9):
        now[0] = second
        seen.append((epochs.last_closed(), epochs.last_due()))
    # A run of an epoch that has just closed is asked for when the clocks of all devices say so.
    assert seen == [(0, 0), (0, 0), (1, 0), (1, 1), (2, 1), (2, 1), (2, 2), (9_999_999, 9_999_998)]
    with pytest.raises(
        ValueError, match=r"epochs of this mesh close every 100 s by the clock \(option epoch_seconds\)"
    ):
        declare_epoch(config, 7)


def test_a_closed_epoch_asks_for_one_run(configs):
    """When it has stood for a while, so that scores that were put just before are read."""
    now = [0.0]
    watch = PrivacyWatch(configs[0], lambda: now[0])

    def looks(*seconds):
        found = []
        for now[0] in seconds:
            found.append(watch.look())
        return found

    assert looks(0, 1) == [False, False]
    declare_epoch(configs[0], 2)
    assert watch.epochs.last_closed() == 2  # others may ask for a run of it at once
    assert looks(2, 5, 6, 7) == [False, False, True, False]
    device_account(configs[0], 3).charge(3, ["a"], b"x")  # released before this device's operator declared it
    declare_epoch(configs[0], 3)
    assert looks(10, 16) == [False, False]
    assert "epoch 3 was released 1 time" in watch.refusal
    declare_epoch(configs[0], 4)
    assert looks(20, 26) == [False, True]
    assert watch.refusal == ""
    assert EpochClock(configs[0], lambda: now[0]).last_due() == 4  # of a node that starts


def test_the_clock_asks_for_one_run_an_epoch(tmp_path):
    config, now = made(tmp_path / "m", {**NOISY, "epoch_seconds": 100})[0], [1000.0]
    watch, asked = PrivacyWatch(config, lambda: now[0]), []
    for second in range(1000, 1400, 2):
        now[0] = float(second)
        if watch.look():
            asked.append((second, watch.epochs.last_closed()))
    assert asked == [(1006, 9), (1106, 10), (1206, 11), (1306, 12)]


def test_what_is_wrong_with_the_account_is_told_to_the_operator(configs):
    watch = PrivacyWatch(configs[0])
    watch.look()
    assert watch.problem == ""
    (configs[0].folder / ACCOUNT).write_text("{")
    (configs[0].folder / EPOCH_FILE).write_text("x")
    watch.look()
    assert ACCOUNT in watch.problem
    assert "declare the epoch again" in watch.problem
    (configs[0].folder / ACCOUNT).unlink()
    (configs[0].folder / EPOCH_FILE).unlink()
    watch.look()
    assert watch.problem == ""


# --- the command line -------------------------------------------------------------------------------------------------


def test_the_command_shows_and_declares(configs, tmp_path):
    root = tmp_path / "m"
    shown = run("epoch", root)
    assert shown.exit_code == 0, shown.output
    assert shown.stdout.count("a run may release it") == 3
    assert run("epoch", root, 2).exit_code == 0
    assert [read_epoch(config.folder) for config in configs] == [2, 2, 2]
    assert run("epoch", root / "device-01", 5).exit_code == 0
    refused = run("epoch", root, 4)
    assert refused.exit_code == 2
    assert "epoch 5 has closed, and numbers never fall; got 4" in refused.stderr
    assert [read_epoch(config.folder) for config in configs] == [2, 5, 2]  # nothing was changed
    device_account(configs[0], 2).charge(2, ["a"], b"x")
    found = json.loads(run("epoch", root, "--json").stdout)["devices"]
    assert [(one["device"], one["epoch"], one["releases"]) for one in found] == [
        ("device-00", 2, 1),
        ("device-01", 5, 0),
        ("device-02", 2, 0),
    ]
    assert "epoch 2 was released 1 time" in found[0]["refusal"]


def test_the_command_is_for_private_methods(tmp_path):
    init_mesh(tmp_path / "m", Network.chain(2))
    refused = run("epoch", tmp_path / "m")
    assert refused.exit_code == 2
    assert "method 'e-dcp' has no epochs; they are for private methods" in refused.stderr


def test_put_scores_warns_where_a_file_has_no_epochs(configs, tmp_path):
    given, folder = tmp_path / "given.csv", configs[0].folder
    given.write_text("score\n0.5\n")
    first = run("put-scores", given, folder)
    assert "they count from the next run on" in first.stdout
    assert "column 'epoch'" not in first.output
    declare_epoch(configs[0], 2)
    warned = run("put-scores", given, folder)
    assert warned.exit_code == 0
    assert "has no column 'epoch', so that all its scores are of epoch 1. Epoch 2 has closed" in warned.stderr
    given.write_text("score,epoch\n0.5,2\n")
    assert "column 'epoch'" not in run("put-scores", given, folder).output
    given.write_text("score,epoch\n0.5,now\n")
    one_bad_row = run("put-scores", given, folder)
    assert one_bad_row.exit_code == 0
    assert "1 have no epoch, which is a whole number above 0" in one_bad_row.stderr


def test_put_scores_reads_as_the_device_will_so_that_one_bad_row_is_one_count(configs, tmp_path):
    """If one NaN made the whole file unusable, one record would change every count, and no epsilon would hold."""
    given, rows = tmp_path / "given.csv", "score,epoch\n" + "0.5,1\n" * 100
    given.write_text(rows + "nan,1\n")
    assert "have no usable score and count as +infinity" in run("put-scores", given, configs[0].folder).stderr
    assert np.isfinite(read_local_scores(configs[0]).in_epoch(1)).sum() == 100


def test_a_file_that_became_shorter_in_place_is_used_with_epsilon(configs):
    """One record more or less must not decide whether a file is shorter than before, and so whether it is used."""
    path, watch = configs[0].path("scores"), ScoreWatch(configs[0])
    for count, now in ((100, 0.0), (99, 10.0)):
        with path.open("w") as file:  # in place: the same inode
            file.write("score\n" + "0.5\n" * count)
        watch.look(now)
        watch.look(now + 3.0)
        assert len(watch.known) == count
        assert watch.problem == ""


def test_an_epoch_that_was_released_meanwhile_is_not_released_again_by_itself(tmp_path):
    """Of three allowed releases: devices learn of an epoch at different times, and each release costs epsilon."""
    config, now = made(tmp_path / "m", {**NOISY, "releases": 3})[0], [0.0]
    watch = PrivacyWatch(config, lambda: now[0])
    assert not watch.look()
    device_account(config, 2).charge(2, ["a"], b"x")  # others knew of it before this device
    declare_epoch(config, 2)
    for now[0] in (1.0, 8.0, 9.0):
        assert not watch.look()
    assert watch.refusal == ""  # an operator may ask for another release


def test_a_declaration_cannot_use_up_years_of_epochs(configs):
    declare_epoch(configs[0], 101)
    with pytest.raises(ValueError, match="declare at most 201 at a time"):
        declare_epoch(configs[0], 202)


def test_epochs_travel_when_a_file_is_spread_over_the_folders(configs, tmp_path):
    given = tmp_path / "all.csv"
    given.write_text("device,score,epoch\n0,0.1,1\n1,0.2,2\n0,0.3,2\n")
    scatter_scores(tmp_path / "m", given)
    own = read_local_scores(configs[0])
    assert (own.in_epoch(1).tolist(), own.in_epoch(2).tolist()) == ([0.1], [0.3])
    assert read_local_scores(configs[1]).in_epoch(2).tolist() == [0.2]
    assert not len(read_local_scores(configs[2]))
    given.write_text("device,score,epoch\n0,0.1,1\n1,0.2,\n")
    with pytest.raises(ValueError, match="the column 'epoch' must hold whole numbers"):
        scatter_scores(tmp_path / "m", given)


def test_a_column_of_that_name_means_nothing_to_other_methods(tmp_path):
    init_mesh(tmp_path / "m", Network.chain(2))
    config = read_device(tmp_path / "m" / "device-00")
    config.path("scores").write_text("score,epoch\n0.5,last\n0.6,\n")
    assert sorted(read_local_scores(config).values.tolist()) == [0.5, 0.6]


# --- bad rows stay local ----------------------------------------------------------------------------------------------

GOOD = ["device-00,0.25,1,lac", "0,0.5,1,lac", "device-00,0.75,2,lac", "device-00,0.125,2,"]
ROWS = [
    "device-00,0.3,1,lac",
    "device-00,nan,1,lac",
    "device-00,,1,lac",
    "device-00,abc,2,lac",
    'device-00,"0.3,1,lac',
    "device-00,1e999,1,lac",
    "device-00,-7,1,lac",
    "device-00,0.3,0,lac",
    "device-00,0.3,1.5,lac",
    "device-00,0.3,,lac",
    "device-00,0.3,99999999999999999999,lac",
    "device-00,0.3,1,aps",
    "device-00,0.3,1,nonsense {",
    "device-01,0.3,1,lac",
    "somebody,0.3,1,lac",
    "device-00;0.3;1;lac",
    "0.3",
    ",,,",
    "device-00,0.3,1,lac,more",
    '"',
    "device-00,0.3,1,lac\0",
    "\ufffd,1,1,1",
]


def counted(config, rows):
    """Return how often each (epoch, score) counts, as a dictionary."""
    config.path("scores").write_text("device,score,epoch,score_function\n" + "".join(f"{row}\n" for row in rows))
    found = read_local_scores(config)
    pairs, times = np.unique(np.stack([found.epochs.astype(float), found.values]), axis=1, return_counts=True)
    return {tuple(pair): int(n) for pair, n in zip(pairs.T.tolist(), times.tolist(), strict=True)}, found.problem


def test_one_row_more_changes_one_count_by_one(tmp_path):
    """Whatever is in the row: no neighbouring data sets differ by more, or no epsilon would hold."""
    config = made(tmp_path / "m", score="lac")[0]
    before, problem = counted(config, GOOD)
    assert before == {(1, 0.25): 1, (1, 0.5): 1, (2, 0.75): 1, (2, 0.125): 1}
    assert problem == ""
    for row in ROWS:
        for rows in ([row, *GOOD], [*GOOD, row], [row] * 3 + GOOD):
            after, problem = counted(config, rows)
            change = {key: after.get(key, 0) - before.get(key, 0) for key in {*before, *after}}
            assert sum(map(abs, change.values())) <= len(rows) - len(GOOD), row
            assert bool(problem) == (row.replace('"', "") != ROWS[0]), row


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ("device-00,nan,1,lac", "of 5 rows 1 have no usable score and count as +infinity; repair or drop them"),
        ("device-00,7,1,lac", "1 have no usable score and count as +infinity"),
        ("device-00,0.3,1,aps", "1 have no usable score and count as +infinity"),
        ("device-00,0.3,0,lac", "1 have no epoch, which is a whole number above 0"),
        ("device-02,0.3,1,lac", "1 belong to other devices"),
        ("0.3,1", "1 cannot be read"),
    ],
)
def test_the_operator_is_told_of_bad_rows(tmp_path, row, words):
    config = made(tmp_path / "m", score="lac")[0]
    after, problem = counted(config, [*GOOD, row])
    assert words in problem
    assert ((1, np.inf) in after) == ("infinity" in words)
    (found,) = [one for one in examine_folder(config.folder) if one.what == "scores"]
    assert (found.level, words in found.text) == ("warning", True)


def test_other_forms_are_read_row_by_row_too(configs):
    config = configs[0]
    arrays = {"score": np.array([0.5, np.nan]), "epoch": np.array([1, 2])}
    path = config.path("scores")
    path.write_bytes(gzip.compress(b"score;epoch\r\n0,5;1\r\nx;2\r\n"))
    packed = read_local_scores(config)
    for found in (packed, _as_npz(config, arrays)):
        assert found.in_epoch(1).tolist() == [0.5]
        assert found.in_epoch(2).tolist() == [np.inf]
    path.write_text("device,score\n")
    assert not len(read_local_scores(config))


def _as_npz(config, arrays):
    other = config.with_settings(file="scores.npz")
    np.savez(other.path("scores"), **arrays)
    return read_local_scores(other)


@pytest.mark.parametrize("content", [b"", b"device,value\n1,2\n", b"\x1f\x8bnothing"])
def test_a_file_that_is_no_table_is_an_error_of_the_whole_file(configs, content):
    configs[0].path("scores").write_bytes(content)
    with pytest.raises(ValueError, match=r"scores\.csv"):
        read_local_scores(configs[0])


def test_exact_runs_read_as_strictly_as_other_methods(tmp_path):
    config = made(tmp_path / "m", {})[0]
    config.path("scores").write_text("score,epoch\n0.5,1\n0.25,3\n")
    own = read_local_scores(config)
    assert own.up_to_epoch(2).tolist() == [0.5]
    config.path("scores").write_text("score,epoch\n0.5,1\nnan,3\n")
    with pytest.raises(ValueError, match="score must be a number, got NaN"):
        read_local_scores(config)
    config.path("scores").write_text("score,epoch\n0.5,0\n")
    with pytest.raises(ValueError, match="the column 'epoch' must hold whole numbers"):
        read_local_scores(config)
