"""The last result on disk: the old one or the new one, never half, never a wrong number."""

import json
import math
import os

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from conformesh import Network, calibrate
from conformesh.mesh.node.certified_result import CertifiedResult
from conformesh.mesh.node.result_store import ResultStore
from conformesh.scores import APS

from .meshes import config
from .nodes import DEVICES, calibration


def own(folder, **changes):
    """The device a of a chain of three, whose scores are LAC's."""
    facts = {
        "folder": folder,
        "name": "a",
        "devices": DEVICES,
        "edges": (("a", "b"), ("b", "c")),
        "endpoints": {name: f"127.0.0.1:{7600 + k}" for k, name in enumerate(DEVICES)},
        "score": "lac",
    }
    return config(**{**facts, **changes})


def certified(threshold=0.75, run=3, roster=("a", "b"), **changes):
    return CertifiedResult(calibration(threshold, **changes), run, roster, 12.5)


def saved(folder, threshold=0.75, run=3, **changes):
    store = ResultStore(own(folder))
    store.save(certified(threshold, run, **changes))
    return store


@pytest.mark.parametrize("threshold", [0.1 + 0.2, math.inf, -1.5])
def test_what_was_saved_is_loaded(tmp_path, threshold):
    found = saved(tmp_path, threshold).load()
    assert found.calibration.to_dict() == calibration(threshold).to_dict()
    assert (found.run, found.roster, found.made, found.restored) == (3, ("a", "b"), 12.5, True)


def test_no_file_is_no_problem(tmp_path):
    store = ResultStore(own(tmp_path))
    assert store.load() is None
    assert store.problem == ""


@pytest.mark.skipif(os.name != "posix", reason="modes are POSIX's")
def test_only_the_owner_reads_it_and_no_draft_stays(tmp_path):
    store = saved(tmp_path)
    assert store.path.stat().st_mode & 0o777 == 0o600
    assert [*tmp_path.iterdir()] == [store.path]


def test_every_truncation_is_ignored_in_words(tmp_path, caplog):
    store = saved(tmp_path)
    whole = store.path.read_bytes()
    for length in [*range(0, len(whole) - 1, 5), len(whole) - 2]:  # the last byte is the newline
        store.path.write_bytes(whole[:length])
        assert store.load() is None, length
        assert "cannot be used" in store.problem
        assert "\n" not in store.problem
    assert "cannot be used" in caplog.text
    store.path.write_bytes(whole)
    assert store.load() is not None
    assert store.problem == ""


def test_no_changed_byte_gives_a_wrong_number(tmp_path):
    """Whatever one byte becomes, the file is ignored or says what it said: white space may change, numbers not."""
    store = saved(tmp_path)
    whole, meant = store.path.read_bytes(), calibration().to_dict()

    @settings(max_examples=300)
    @given(where=st.integers(0, len(whole) - 1), byte=st.integers(0, 255))
    def change(where, byte):
        store.path.write_bytes(whole[:where] + bytes([byte]) + whole[where + 1 :])
        found = store.load()
        assert found is None or found.calibration.to_dict() == meant

    change()


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("", "ends too early"),
        ("[]", "got 'list'"),
        ("null", "got 'NoneType'"),
        ('{"format": "conformesh-node-result/9"}', "got 'conformesh-node-result/9'"),
        ('{"format": "conformesh-node-result/1"}', "needed format conformesh-node-result/4"),
        ('{"format": "conformesh-node-result/4"}', "it lacks bound"),
        ("[" * 100_000, "cannot be used"),
        (b"\xff\xfe", "cannot be used"),
    ],
)
def test_other_files_are_ignored_in_words(tmp_path, content, words):
    store = ResultStore(own(tmp_path))
    store.path.write_bytes(content if isinstance(content, bytes) else content.encode())
    assert store.load() is None
    assert words in store.problem


def test_a_folder_in_its_place_is_ignored_in_words(tmp_path):
    store = ResultStore(own(tmp_path))
    store.path.mkdir()
    assert store.load() is None
    assert "irectory" in store.problem


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"mesh": "f" * 16}, f"mesh is '0123456789abcdef' there and '{'f' * 16}' here"),
        ({"name": "b"}, "device is 'a' there and 'b' here"),
        ({"alpha": "0.2"}, "alpha is '1/10' there and '1/5' here"),
        ({"method": "cp"}, "method is 'e-dcp' there and 'cp' here"),
        ({"options": {"width": 3}}, "option width is 'none' there and '3' here"),
        ({"score": "aps"}, "score is 'lac' there and 'aps"),
        ({"model": "abc"}, "model is 'not said' there and 'abc' here"),
        ({"devices": ("a", "c"), "edges": (("a", "c"),), "endpoints": {"a": "h:1", "c": "h:2"}}, "its roster a, b..."),
    ],
)
def test_a_result_of_another_device_mesh_or_setting_is_not_used(tmp_path, change, words):
    saved(tmp_path)
    other = ResultStore(own(tmp_path, **change))
    assert other.load() is None
    assert words in other.problem
    assert ResultStore(own(tmp_path)).load() is not None


@pytest.mark.parametrize("change", [{"patience": 5.0}, {"on_lost": "continue"}, {"insecure": True}, {"listen": "h:1"}])
def test_how_devices_talk_makes_no_other_result(tmp_path, change):
    saved(tmp_path)
    assert ResultStore(own(tmp_path, **change)).load().calibration.threshold == 0.75


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"alpha": "0.2"}, "found by e-dcp at alpha 0.2"),
        ({"method": "cp", "bracket": None}, "found by cp at alpha 0.1"),
        ({"device_ids": ("b", "c", "d")}, "is that of b, c, d, not of a"),
        ({"score": APS()}, "its score is aps"),
        ({"roster": ("b", "c")}, "its roster b, c"),
        ({"roster": ("a", "x")}, "its roster a, x"),
    ],
)
def test_a_result_that_contradicts_what_it_is_bound_to_is_not_used(tmp_path, change, words):
    """Whole, and with a checksum that is right: as somebody would write it who copies a result by hand."""
    store = saved(tmp_path, **change)
    assert store.load() is None
    assert words in store.problem


@pytest.mark.parametrize("step", ["fsync", "replace"])
def test_a_crash_while_writing_leaves_the_old_one(tmp_path, monkeypatch, step):
    store = saved(tmp_path, 0.25, run=1)

    def crash(*_):
        raise KeyboardInterrupt  # no handler of the store sees it: the nearest thing to a power cut

    with monkeypatch.context() as patch:
        if step == "fsync":
            patch.setattr(os, "fsync", crash)
        else:
            patch.setattr("pathlib.Path.replace", crash)
        with pytest.raises(KeyboardInterrupt):
            saved(tmp_path, 0.5, run=2)
    assert store.load().calibration.threshold == 0.25
    assert saved(tmp_path, 0.5, run=2).load().calibration.threshold == 0.5  # over the draft that was left
    assert [*tmp_path.iterdir()] == [store.path]


def test_a_full_disk_is_said_in_words_and_leaves_the_old_one(tmp_path, monkeypatch):
    store = saved(tmp_path, 0.25)

    def full(_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match=r"cannot write the file: No space left"):
        saved(tmp_path, 0.5)
    assert store.load().calibration.threshold == 0.25
    assert [*tmp_path.iterdir()] == [store.path]


def test_it_holds_no_score(tmp_path):
    """Of 60 scores only those that the result itself shows, the threshold and the ends of its bracket, are there."""
    scores = np.random.default_rng(3).random((3, 20))
    result = calibrate(scores, Network.of("cycle", 3), 0.1)
    store = ResultStore(own(tmp_path))
    store.save(CertifiedResult(result, 1, result.device_ids, 0.0))
    text = store.path.read_text()
    shown = {*result.thresholds.tolist(), *(result.bracket or ())}
    assert [x for x in scores.ravel().tolist() if x not in shown and repr(x) in text] == []
    assert json.loads(text)["calibration"]["answers"][0]["examples"] == 60
