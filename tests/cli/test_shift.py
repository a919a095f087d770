"""`conformesh calibrate --weight-column`: scores with weights from files of every kind."""

from __future__ import annotations

import json

import numpy as np
import polars as pl
import pytest

from conformesh import Network, Result, calibrate
from conformesh.common.names import natural_order


@pytest.fixture
def weighted(tmp_path):
    """A CSV with a column of weights, scores and weights by device, and the answer of the library."""
    rng = np.random.default_rng(8)
    held = {f"s{k}": (rng.random(30 + k), rng.choice([0.5, 1.0, 3.0], 30 + k)) for k in range(12)}
    names = np.repeat([*held], [len(own) for own, _ in held.values()])
    frame = pl.DataFrame({"device": names, "score": np.concatenate([own for own, _ in held.values()])})
    frame = frame.with_columns(w=np.concatenate([own for _, own in held.values()]))
    frame.write_csv(tmp_path / "weighted.csv")
    order = natural_order(held)
    result = calibrate(
        [held[name][0] for name in order],
        Network.torus(4, 3).relabelled(order),
        0.1,
        weight=[held[name][1] for name in order],
        weight_bound=3,
    )
    return frame, result


def test_weights_come_from_a_column(run, weighted, tmp_path):
    frame, expected = weighted
    frame.write_parquet(tmp_path / "weighted.parquet")
    columns = {name: frame[name].to_numpy() for name in ("score", "w")}
    np.savez(tmp_path / "weighted.npz", **columns, device=[*frame["device"]])
    for k, part in enumerate(frame.partition_by("device")):
        folder = tmp_path / "folder" / f"device={part['device'][0]}"
        folder.mkdir(parents=True)
        part.drop("device").write_parquet(folder / f"{k}.parquet")
    for source in ("weighted.csv", "weighted.parquet", "weighted.npz", "folder"):
        answer = run("calibrate", source, "--weight-column", "w", "--weight-bound", "3", "--json")
        assert answer.exit_code == 0, answer.output
        found = json.loads(answer.stdout)
        assert found["answers"][0]["thresholds"] == expected.thresholds.tolist()
        assert found["guarantee"]["weighting"]["bound"] == 3
        assert found["answers"][0]["certificate"]["weight"] == expected.certificate.weight


def test_parts_of_an_npz_folder_keep_their_weights(run, weighted, tmp_path):
    frame, expected = weighted
    (tmp_path / "parts").mkdir()
    names = frame["device"].unique(maintain_order=True)
    for k in range(2):
        part = frame.filter(pl.col("device").is_in(names[k::2].implode()))
        np.savez(tmp_path / "parts" / f"{k}.npz", device=[*part["device"]], score=part["score"], w=part["w"])
    answer = run("calibrate", "parts", "--weight-column", "w", "--weight-bound", "3", "--out", "result.json")
    assert answer.exit_code == 0, answer.output
    assert Result.load(tmp_path / "result.json").threshold == expected.threshold
    assert "weights" in answer.stdout


def test_several_levels_share_the_weights(run, weighted):
    answer = run("calibrate", "weighted.csv", "--weight-column", "w", "--weight-bound", "3", "--alpha", "0.1,0.2")
    assert answer.exit_code == 0, answer.output
    assert "of weight" in answer.stdout


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (("--weight-column", "w"), "weight needs weight_bound="),
        (("--weight-bound", "3"), "weight_bound goes with weight="),
        (("--weight-column", "w", "--weight-bound", "2"), "a weight must be a number from 0 to weight_bound 2, got 3"),
        (("--weight-column", "v", "--weight-bound", "3"), "needs a column 'v'"),
        (
            ("--weight-column", "w", "--weight-bound", "3", "--pac-confidence", "0.9"),
            "pac_confidence (over the draw of the scores) is proven for scores that weigh alike",
        ),
    ],
)
def test_what_is_missing_is_named(run, weighted, words, complaint):
    answer = run("calibrate", "weighted.csv", *words)
    assert answer.exit_code != 0
    assert complaint in " ".join(answer.output.split())
