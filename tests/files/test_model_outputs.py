"""A model's outputs and labels: every source gives the same, and what no score could use is refused with its place."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from conformesh.files.model_outputs import ModelOutputs, read_model_outputs
from conformesh.files.table_writers import write_columns, write_model_outputs, write_scores
from conformesh.files.tables import FileLayout

LOGITS = np.array([[2.0, -1.0, 0.5], [0.0, 3.0, -2.0], [1.0, 1.5, 4.0], [0.25, 0.0, 0.0]])
LABELS = np.array([0, 1, 2, 1])
NAMES = ["cat", "dog", "owl"]


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def made(values=LOGITS, labels=LABELS, kind="logits", **more) -> ModelOutputs:
    names = tuple(map(str, range(np.shape(values)[1])))
    return ModelOutputs(values, labels, kind, "here", names, **more)


def frame(labels=("cat", "dog", "owl", "dog"), **more) -> pl.DataFrame:
    columns = dict(zip(NAMES, LOGITS.T, strict=True))
    return pl.DataFrame({**more, **columns, **({} if labels is None else {"label": labels})})


# --- what they are ----------------------------------------------------------------------------------------------------


@given(arrays(np.float64, (3, 4), elements=st.floats(-800, 800)))
def test_softmax_is_the_obvious_one(values):
    found = made(values, [0, 1, 2])
    exact = np.exp(values - values.max(axis=1, keepdims=True))
    np.testing.assert_allclose(found.probabilities(), exact / exact.sum(axis=1, keepdims=True), atol=1e-15)
    again = made(found.probabilities(), [0, 1, 2], "probabilities")
    assert again.probabilities() is again.values
    np.testing.assert_allclose(made(again.logits(), [0, 1, 2]).probabilities(), again.values, atol=1e-12)


def test_zero_has_a_logarithm():
    found = made([[1.0, 0.0], [0.5, 0.5]], [0, 1], "probabilities")
    assert found.logits().tolist() == [[0.0, -np.inf], [np.log(0.5), np.log(0.5)]]
    assert made(found.logits(), [0, 1]).probabilities().tolist() == [[1.0, 0.0], [0.5, 0.5]]


def test_accuracy_counts_the_largest():
    assert made().accuracy == 0.75
    assert made(labels=[0, 1, 2, 0]).accuracy == 1.0


def test_the_digest_names_the_contents():
    """One committed value, so that it is the same tomorrow and on another machine."""
    parts = (b"logits (4, 3)", LOGITS.astype("<f8").tobytes(), LABELS.astype("<i8").tobytes())
    assert made().digest == hashlib.sha256(b"".join(parts)).hexdigest()[:16] == "19a1ab6efb9bf0ec"
    assert made(LOGITS.astype(np.float32), LABELS.astype(np.int16)).digest == made().digest  # exact in float32
    assert made(np.asfortranarray(LOGITS)).digest == made().digest
    others = (made(LOGITS + 1e-9), made(labels=[0, 1, 2, 2]), made(LOGITS.T[:, :3], [0, 1, 2]))
    assert len({found.digest for found in (made(), *others)}) == 4


def test_rows_can_be_taken():
    found = made(devices=["a", "b", "c", "d"], synthetic=True).take(np.array([3, 1]))
    assert found.values.tolist() == LOGITS[[3, 1]].tolist()
    assert (found.labels.tolist(), found.devices, found.synthetic, len(found)) == ([1, 1], ["d", "b"], True, 2)


# --- where they come from ---------------------------------------------------------------------------------------------


def test_every_source_gives_the_same():
    np.savez("a.npz", logits=LOGITS, labels=LABELS)
    np.savez("b.npz", outputs=LOGITS.astype(np.float32), y=LABELS[:, None].astype(np.uint8))
    np.savez("c.npz", logits=LOGITS, probabilities=made().probabilities(), label=LABELS.astype(float))
    np.save("d.npy", LOGITS)
    np.save("labels.npy", LABELS[:, None])
    Path("labels.csv").write_text("truth\n" + "\n".join(map(str, LABELS)) + "\n")
    frame().write_csv("e.csv")
    frame().write_parquet("e.parquet")
    frame(labels=LABELS).write_csv("f.csv")
    frame(labels=None).write_csv("g.csv")
    found = [read_model_outputs(name) for name in ("a.npz", "b.npz", "c.npz", "e.csv", "e.parquet", "f.csv")]
    found += [read_model_outputs("d.npy", "labels.npy"), read_model_outputs("g.csv", "labels.csv")]
    assert {one.digest for one in found} == {made().digest}
    assert [one.classes for one in found[:4]] == [("0", "1", "2")] * 3 + [tuple(NAMES)]
    assert found[0].name == "a.npz"
    assert read_model_outputs(str(Path("a.npz").resolve())).name == "a.npz"
    assert not any(one.synthetic or one.devices for one in found)


def test_kinds_are_told_by_name_then_by_sums():
    p = made().probabilities()
    np.savez("p.npz", probabilities=p, labels=LABELS)
    np.savez("o.npz", outputs=p, labels=LABELS)
    np.savez("l.npz", logits=p, labels=LABELS)
    np.savez("both.npz", logits=LOGITS, probabilities=p, labels=LABELS)
    kinds = {name: read_model_outputs(f"{name}.npz").kind for name in ("p", "o", "l", "both")}
    assert kinds == {"p": "probabilities", "o": "probabilities", "l": "logits", "both": "logits"}
    assert read_model_outputs("both.npz", kind="probabilities").values.tolist() == p.tolist()
    assert read_model_outputs("o.npz", kind="logits").kind == "logits"
    with pytest.raises(ValueError, match=r"p\.npz: was asked for logits, but holds 'probabilities'"):
        read_model_outputs("p.npz", kind="logits")


def test_devices_come_along():
    at = ["k2", "k1", "k2", "k1"]
    for name in ("device", "devices", "site"):
        np.savez(f"{name}.npz", logits=LOGITS, labels=LABELS, **{name: np.array(at)})
        frame(**{name: at}).write_csv(f"{name}.csv")
        column = name if name == "site" else None
        found = [read_model_outputs(f"{name}.{end}", layout=FileLayout(device=column)) for end in ("npz", "csv")]
        assert [one.devices for one in found] == [at, at]
        assert {one.digest for one in found} == {made().digest}


def test_names_come_before_numbers():
    """Columns 3, 2, 1 are classes by name; where a label is no name, all labels are numbers from 0."""
    head = "3,2,1,label\n"
    named, counted = Path("named.csv"), Path("counted.csv")
    named.write_text(head + "5,0,0,3\n0,5,0,2\n0,0,5,1\n")
    counted.write_text(head + "5,0,0,0\n0,5,0,1\n0,0,5,2\n")
    assert [read_model_outputs(str(path)).labels.tolist() for path in (named, counted)] == [[0, 1, 2]] * 2


def test_labels_may_have_another_column():
    frame().rename({"label": "truth"}).write_csv("a.csv")
    assert read_model_outputs("a.csv", layout=FileLayout(label="truth")).labels.tolist() == LABELS.tolist()
    np.savez("a.npz", logits=LOGITS, truth=np.array(["1", "0", "2", "0"]), labels=LABELS)
    assert read_model_outputs("a.npz", layout=FileLayout(label="truth")).labels.tolist() == [1, 0, 2, 0]


def test_what_is_written_is_read():
    found = ModelOutputs(LOGITS, LABELS, "logits", "x", tuple(NAMES), ["b", "a", "a", "b"], synthetic=True)
    write_model_outputs(Path("x.npz"), found, also="probabilities")
    again = read_model_outputs("x.npz")
    assert (again.digest, again.classes, again.devices) == (found.digest, found.classes, found.devices)
    assert again.synthetic
    probabilities = read_model_outputs("x.npz", kind="probabilities")
    assert probabilities.values.tobytes() == found.probabilities().tobytes()
    assert [path.name for path in Path().iterdir()] == ["x.npz"]


# --- what is refused --------------------------------------------------------------------------------------------------

BAD = {
    "nan": ("cat,dog,label\n1,2,0\n1,nan,0\n", r"x\.csv, line 3: outputs must be numbers, got NaN"),
    "infinite": ("cat,dog,label\n1,2,0\n1,inf,0\n", "line 3: logits need a finite maximum, got inf"),
    "text": ("cat,dog,label\n1,two,0\n", "line 2: dog must be a number, got 'two'"),
    "one class": ("cat,label\n1,0\n", "needs at least 2 classes, got 1"),
    "no class": ("label\n1\n", "no column but 'label'"),
    "no label": ("cat,dog,lable\n1,2,0\n", "needs a column 'label', found 'cat', 'dog', 'lable'; did you mean 'lable'"),
    "too large": ("cat,dog,label\n1,2,0\n1,2,2\n", "line 3: label must lie between 0 and 1.*got 2"),
    "negative": ("cat,dog,label\n1,2,-1\n", "line 2: label must lie between 0 and 1.*got -1"),
    "half": ("cat,dog,label\n1,2,0\n1,2,0.5\n", "line 3: label must be a whole number or the name of a class, got 0.5"),
    "unknown": ("cat,dog,label\n1,2,cat\n1,2,dgo\n", "line 3: unknown label 'dgo', did you mean 'dog'"),
    "empty label": ("cat,dog,label\n1,2,\n", "line 2: the label is empty"),
    "no rows": ("cat,dog,label\n", r"x\.csv has no rows"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_tables(case):
    text, problem = BAD[case]
    Path("x.csv").write_text(text)
    with pytest.raises(ValueError, match=problem):
        read_model_outputs("x.csv")


ARRAYS = {
    "no outputs": ({"values": LOGITS, "labels": LABELS}, "needs an array 'probabilities', 'logits' or 'outputs'"),
    "no labels": ({"logits": LOGITS}, "needs an array 'label' or 'labels' or 'y'.*a file of their own"),
    "lengths": ({"logits": LOGITS, "labels": LABELS[:3]}, r"'labels': needs a label for each of the 4 rows.*got 3"),
    "one-hot": ({"logits": LOGITS, "labels": np.eye(3)[LABELS]}, "one-hot labels give labels.argmax"),
    "cube": ({"logits": LOGITS[None], "labels": LABELS}, r"must have shape \(rows, classes\)"),
    "one column": ({"logits": LOGITS[:, 0], "labels": LABELS * 0}, "needs at least 2 classes"),
    "no sum": ({"probabilities": LOGITS, "labels": LABELS}, "row 0: probabilities must lie between 0 and 1 and sum to"),
    "nan label": ({"logits": LOGITS, "labels": [0, np.nan, 0, 0]}, "row 1: labels must be a whole number"),
    "class names": ({"logits": LOGITS, "labels": LABELS, "classes": ["a"]}, "'classes' must name the 3 columns"),
    "devices": ({"logits": LOGITS, "labels": LABELS, "device": ["a"]}, "lengths device 1, logits 4"),
    "all lost": ({"logits": LOGITS * 0 - np.inf, "labels": LABELS}, "row 0: logits need a finite maximum, got -inf"),
    "no rows": ({"logits": LOGITS[:0], "labels": LABELS[:0]}, "has no rows"),
}


@pytest.mark.parametrize("case", ARRAYS)
def test_bad_arrays(case):
    content, problem = ARRAYS[case]
    np.savez("x.npz", **content)
    with pytest.raises(ValueError, match=problem):
        read_model_outputs("x.npz")


def test_bad_files_and_names():
    np.savez("x.npz", logits=LOGITS, labels=LABELS)
    with pytest.raises(ValueError, match="needs a column 'site'"):
        read_model_outputs("x.npz", layout=FileLayout(device="site"))
    with pytest.raises(ValueError, match=r"nowhere\.npz: cannot read the file"):
        read_model_outputs("x.npz", "nowhere.npz")
    with pytest.raises(ValueError, match="here: needs a name for each of 3 classes, got 1"):
        ModelOutputs(LOGITS, LABELS, "logits", "here", ("a",))
    with pytest.raises(ValueError, match="here: needs a device for each of 4 rows, got 1"):
        made(devices=["a"])
    with pytest.raises(ValueError, match=r"got \(4, 3\) and \(2,\)"):
        made(labels=[0, 1])
    with pytest.raises(ValueError, match="outputs are logits or probabilities, got 'odds'"):
        made(kind="odds")


# --- writing ----------------------------------------------------------------------------------------------------------


@given(st.lists(st.floats(allow_nan=False), min_size=1, max_size=20))
def test_written_scores_survive_to_the_last_bit(scores):
    from conformesh.files.score_files import read_scores

    for end in ("csv", "parquet", "npz"):
        write_scores(Path(f"s.{end}"), ["a"] * len(scores), np.array(scores), ["x"] * len(scores))
        found = read_scores(f"s.{end}", group="label")
        assert found.scores[0].tobytes() == np.array(scores).tobytes()
        assert found.rows.groups is not None


def test_what_cannot_be_written():
    with pytest.raises(ValueError, match=r"x\.txt: the name must end in \.csv or \.parquet or \.npz"):
        write_columns(Path("x.txt"), {"a": np.zeros(2)})
    with pytest.raises(ValueError, match=r"x\.csv: the name must end in \.npz"):
        write_model_outputs(Path("x.csv"), made())
    with pytest.raises(OSError, match=r"no/x\.npz: cannot write the file: No such file"):
        write_columns(Path("no/x.npz"), {"a": np.zeros(2)})
