import numpy as np
import polars as pl
import pytest

from conformesh.files.score_files import read_scores
from conformesh.files.score_folders import ScoreFolder

FRAME = pl.DataFrame(
    {"device": [7, 10, 7, 2, 10], "score": [0.5, 0.1, 0.4, 0.9, 0.2], "site": ["a", "b", "a", "a", "b"]}
)
HELD = {"2": [0.9], "7": [0.5, 0.4], "10": [0.1, 0.2]}


def held(file):
    return {name: own.tolist() for name, own in zip(file.devices, file.scores, strict=True)}


@pytest.fixture
def parts(tmp_path):
    FRAME[:2].write_parquet(tmp_path / "part-1.parquet")
    FRAME[2:].write_parquet(tmp_path / "part-2.parquet")
    return tmp_path


@pytest.fixture
def hive(tmp_path):
    for name, own in HELD.items():
        folder = tmp_path / f"device={name.zfill(3)}" / "more"
        folder.mkdir(parents=True)
        pl.DataFrame({"score": own}).write_parquet(folder / "x.parquet")
    return tmp_path


def test_parquet_files_are_one_file(parts):
    assert held(read_scores(str(parts))) == HELD
    assert read_scores(str(parts), group="site").rows.groups.is_in("a").tolist()[1:3] == [True, True]


def test_a_part_is_read_alone(parts):
    folder = ScoreFolder.open(parts)
    roster = folder.roster()
    assert roster.devices == ("2", "7", "10")
    assert held(folder.read_for(roster, ["10", "2"])) == {"2": [0.9], "10": [0.1, 0.2]}
    assert folder.read_for(roster, []).devices == ()


def test_folder_names_say_whose_scores_they_hold_and_no_other_file_is_opened(hive):
    folder = ScoreFolder.open(hive)
    (hive / "device=007" / "more" / "x.parquet").write_bytes(b"broken")
    assert folder.roster().devices == ("002", "007", "010")  # a name is text: 007 stays 007
    assert held(folder.read(["010", "002"])) == {"002": [0.9], "010": [0.1, 0.2]}
    with pytest.raises(ValueError, match="cannot be read as Parquet"):
        folder.read()


def test_arrays_are_one_file_and_a_device_belongs_to_one(tmp_path):
    np.savez(tmp_path / "rank-0.npz", device=["a", "b"], score=[0.1, 0.2])
    np.savez(tmp_path / "rank-1.npz", device=["c"], score=[0.3])
    assert held(read_scores(str(tmp_path))) == {"a": [0.1], "b": [0.2], "c": [0.3]}
    np.savez(tmp_path / "rank-2.npz", device=["b"], score=[0.4])
    with pytest.raises(ValueError, match=r"device 'b' has scores in .*rank-0.npz and in .*rank-2.npz"):
        read_scores(str(tmp_path))


def test_ten_comes_after_two(tmp_path):
    for k in (10, 2, 1):
        np.savez(tmp_path / f"rank-{k}.npz", device=["a"], score=[0.1])
    assert [file.stem for file in ScoreFolder.open(tmp_path).files] == ["rank-1", "rank-2", "rank-10"]


def test_a_folder_holds_one_kind_of_file(parts):
    np.savez(parts / "rank-0.npz", device=["a"], score=[0.1])
    with pytest.raises(ValueError, match="Parquet files or NPZ files, this one has both"):
        ScoreFolder.open(parts)


def test_an_empty_folder_and_missing_columns_say_so(tmp_path):
    with pytest.raises(ValueError, match="this one has neither"):
        read_scores(str(tmp_path))
    pl.DataFrame({"device": [1], "scores": [0.1]}).write_parquet(tmp_path / "x.parquet")
    with pytest.raises(ValueError, match="needed columns 'device' and 'score'"):
        read_scores(str(tmp_path))
