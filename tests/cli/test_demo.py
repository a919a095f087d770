"""`conformesh demo`, end to end on a small scale."""

from __future__ import annotations

import json

import numpy as np
import pytest
from matplotlib.image import imread

from conformesh import METHODS
from conformesh.cli.demo import CONNECTIONS, _interval

pytestmark = pytest.mark.xdist_group("demo")  # they share what is computed


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    from click.testing import CliRunner

    from conformesh.cli import app

    out = tmp_path_factory.mktemp("demo")
    result = CliRunner().invoke(app, ["demo", "--out", str(out), "--devices", "6", "--splits", "3", "--json"])
    assert result.exit_code == 0, result.output
    assert result.stderr == ""
    return json.loads(result.stdout), out


def test_every_method_on_both_networks(report):
    found, _ = report
    rows = {(row["network"], row["method"]): row for row in found["results"]}
    assert {*rows} == {(network, method) for network in ("torus 3x2", "chain 6") for method in METHODS}
    needs = [METHODS[row["method"]].description.needs for row in found["results"][: len(METHODS)]]
    assert needs == sorted(needs, key=CONNECTIONS.index)  # what needs no server comes first
    for row in found["results"]:
        assert 0.75 < row["low"] <= row["coverage"] <= row["high"] <= 1
        assert 0.5 < row["size"] <= 10
    for method in ("cp", "fcp", "fedcp-qq", "local"):  # no network, no difference
        assert rows["torus 3x2", method]["coverage"] == rows["chain 6", method]["coverage"]
    assert rows["torus 3x2", "h-dcp"]["guarantee"] == "counted"
    assert rows["torus 3x2", "h-dcp"]["rounds"] < rows["chain 6", "h-dcp"]["rounds"]


def test_pictures_are_drawn(report):
    _, out = report
    assert sorted(path.name for path in out.iterdir()) == ["methods.png", "network.png"]
    for path in out.iterdir():
        image = imread(path)[:, :, :3]
        assert min(image.shape[:2]) > 600
        assert image.std() > 0.05
        assert (image == 1).all(axis=2).mean() > 0.4  # on white


def test_table_without_pictures(run, tmp_path):
    result = run("demo", "--no-picture", "--devices", "4", "--splits", "1", "--seed", "1")
    assert result.exit_code == 0, result.output
    assert result.stderr == ""
    assert [*tmp_path.iterdir()] == []
    assert result.stdout.startswith("4 devices hold ")
    for word in ("needs", "guarantee", "threshold", "coverage", "mean size", "rounds", "bits/device", "1 random split"):
        assert word in result.stdout
    assert result.stdout.count("h-dcp  ") == 2


def test_the_same_seed_tells_the_same_story(run, report):
    found, _ = report
    again = json.loads(run("demo", "--no-picture", "--devices", "6", "--splits", "3", "--json").stdout)
    assert again["results"] == found["results"]


@pytest.mark.parametrize(
    ("flags", "problem"),
    [
        ("--devices 7", "torus needs a number of devices that is rows x columns"),
        ("--devices 900", "the demo needs 1 to 572 devices"),
        ("--devices x", "devices must be a whole number, got 'x'"),
        ("--splits 0", "splits must be at least 1, got 0"),
        ("--alpha 2", "alpha must lie strictly between 0 and 1, got 2"),
    ],
)
def test_bad_settings(run, flags, problem):
    result = run("demo", "--no-picture", *flags.split())
    assert result.exit_code == 2
    assert problem in result.stderr


def test_interval_allows_for_rows_that_share_a_threshold():
    """Splits that differ more than independent rows would get a wider interval; no difference, that of one split."""
    calm, wild = np.full(40, 0.9), np.tile([0.8, 1.0], 20)
    low, high = _interval(wild, 500)
    assert (low, high) == pytest.approx((0.9 - 1.96 * 0.1013 / 40**0.5, 0.9 + 1.96 * 0.1013 / 40**0.5), abs=0.01)
    assert _interval(calm, 500)[0] == pytest.approx(0.9 - 1.96 * (0.09 / 500) ** 0.5, abs=0.005)
    assert _interval(np.ones(3), 100)[1] == 1.0
