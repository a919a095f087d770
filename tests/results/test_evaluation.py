"""What `evaluate` takes for labels, and what it refuses."""

import numpy as np
import pytest
from msgspec.structs import replace

from conformesh import Network, Result, calibrate, scores

P = np.random.default_rng(0).dirichlet(np.ones(3), size=60)
LABELS = np.random.default_rng(1).integers(0, 3, 60)


@pytest.fixture(scope="module")
def result():
    lac = scores.LAC()
    return calibrate([lac(P, LABELS)], Network.chain(1), 0.2, score=lac)


@pytest.mark.parametrize(
    ("wrong", "error", "words"),
    [
        (-1, ValueError, "labels between 0 and 2, one for each column of outputs, got -1"),
        (3, ValueError, "labels between 0 and 2, one for each column of outputs, got 3"),
        (np.nan, ValueError, "a label for each row, got NaN in row 7; drop these rows"),
        (0.5, TypeError, "integer labels, got dtype float64"),
        ("cat", TypeError, "labels as column numbers from 0, got '"),
    ],
)
def test_labels_that_are_no_column_are_refused(result, wrong, error, words):
    labels = LABELS.astype(type(wrong) if not isinstance(wrong, str) else "U9")
    labels[7] = wrong
    with pytest.raises(error, match=words):
        result.evaluate(P, labels)


def test_truth_values_are_no_labels(result):
    with pytest.raises(TypeError, match="integer labels, got dtype bool"):
        result.evaluate(P, LABELS > 0)


def test_masked_labels_are_refused(result):
    with pytest.raises(ValueError, match="labels: 1 of 60 values are masked"):
        result.evaluate(P, np.ma.masked_array(LABELS, np.arange(60) == 7))


def test_names_of_classes_are_labels_where_they_are_known(result, tmp_path):
    named = replace(result, classes=("ant", "bee", "cat"))
    named.save(tmp_path / "r.json")
    named = Result.load(tmp_path / "r.json")
    names = np.array(named.classes)[LABELS]
    assert named.evaluate(P, names) == result.evaluate(P, LABELS).named(named.classes)
    assert named.evaluate(P, names.tolist()) == named.evaluate(P, LABELS)
    names[3] = "bea"
    with pytest.raises(ValueError, match="unknown class 'bea', did you mean 'bee'"):
        named.evaluate(P, names)
