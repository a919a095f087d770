"""The synthetic model is as hard as the real ones it stands for: the targets were measured on their outputs."""

from __future__ import annotations

import time

import numpy as np
import pytest

from conformesh.files.model_outputs import ModelOutputs
from conformesh.lab.datasets.partition import partition
from conformesh.lab.datasets.synthetic import _DIFFICULTIES, interpolate_difficulty, synthetic_outputs
from conformesh.scores import LAC, Logit

# Measured on the held-out outputs of a small residual network, as (target, tolerance). The first: CIFAR-100, 10,000
# rows, 20 devices with 5 classes each; the second: PathMNIST, 8,180 rows, 8 devices, the last with two classes.
LIKE = {
    (10_000, 100, 20): {
        "accuracy": (0.603, 0.02),
        "true logit, mean": (17.09, 0.5),
        "true logit, deviation": (7.60, 0.5),
        "smallest logit": (-35.7, 13.0),
        "largest logit": (52.2, 8.0),
        "logit score, 0.9 quantile": (-6.77, 0.6),
        "labels in a set, logits": (10.24, 1.2),
        "labels in a set, softmax": (4.90, 0.6),
        "most probable label": (0.776, 0.03),
        "devices' quantiles, deviation": (0.75, 0.35),
    },
    (8_180, 9, 8): {
        "accuracy": (0.816, 0.02),
        "true logit, mean": (20.09, 0.5),
        "true logit, deviation": (8.30, 0.5),
        "smallest logit": (-45.0, 20.0),
        "largest logit": (51.9, 8.0),
        "logit score, 0.9 quantile": (-8.56, 0.7),
        "labels in a set, logits": (1.63, 0.2),
        "labels in a set, softmax": (1.26, 0.1),
        "most probable label": (0.964, 0.03),
        "devices' quantiles, deviation": (3.48, 0.8),
    },
}


def measured(outputs, devices):
    """What the targets speak of; sets are those of the threshold that covers 0.9 of these very rows."""
    logit, softmax = Logit(), LAC()
    scores = logit(outputs.values, outputs.labels)
    threshold = np.quantile(scores, 0.9)
    p = outputs.probabilities()
    home = partition(outputs.labels, devices)
    own = np.take_along_axis(outputs.values, outputs.labels[:, None], axis=1)
    return {
        "accuracy": outputs.accuracy,
        "true logit, mean": own.mean(),
        "true logit, deviation": own.std(),
        "smallest logit": outputs.values.min(),
        "largest logit": outputs.values.max(),
        "logit score, 0.9 quantile": threshold,
        "labels in a set, logits": logit.sets(outputs.values, threshold).sum(axis=1).mean(),
        "labels in a set, softmax": softmax.sets(p, np.quantile(softmax(p, outputs.labels), 0.9)).sum(axis=1).mean(),
        "most probable label": p.max(axis=1).mean(),
        "devices' quantiles, deviation": np.std([np.quantile(scores[home == k], 0.9) for k in range(devices)]),
    }


@pytest.mark.parametrize("like", LIKE, ids=["cifar-100", "pathmnist"])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_it_is_as_hard_as_the_real_model(like, seed):
    rows, classes, devices = like
    found = measured(synthetic_outputs(rows, classes, seed), devices)
    far = {
        what: (round(float(found[what]), 3), target)
        for what, (target, tolerance) in LIKE[like].items()
        if not abs(found[what] - target) <= tolerance
    }
    assert not far, f"(found, target): {far}"


@pytest.mark.shared_data
@pytest.mark.parametrize(("name", "like"), [*zip(["cifar100", "pathmnist"], LIKE, strict=True)])
def test_the_targets_are_those_of_real_outputs(real_data, name, like):
    data = real_data(f"{name}_logits.npz")
    names = tuple(map(str, range(like[1])))
    found = measured(ModelOutputs(data["logits"], data["labels"], "logits", name, names), like[2])
    for what, (target, _) in LIKE[like].items():
        assert found[what] == pytest.approx(target, rel=2e-3, abs=5e-3), what


def test_it_repeats_and_says_what_it_is():
    """A committed digest of few rows, whose rounding to the grid hides how machines differ in the last bit."""
    found = synthetic_outputs()
    assert found.values.shape == (10_000, 100)
    assert (found.name, found.kind, found.synthetic) == ("synthetic (100 classes)", "logits", True)
    assert found.digest == synthetic_outputs().digest
    assert synthetic_outputs(200, 9).digest == "344d177394ce016e"
    assert found.digest != synthetic_outputs(seed=1).digest
    assert (np.bincount(found.labels) == 100).all()
    assert np.array_equal(found.values, np.rint(found.values * 2**20) / 2**20)


def test_every_seed_draws_from_the_same_model():
    """Classes differ in difficulty, and in the same way whatever the seed: their mean scores correlate."""

    def by_class(seed):
        outputs = synthetic_outputs(seed=seed)
        scores = Logit()(outputs.values, outputs.labels)
        return [scores[outputs.labels == k].mean() for k in range(100)]

    assert np.corrcoef(by_class(0), by_class(1))[0, 1] > 0.8


def test_between_the_ends_the_constants_are_between_theirs():
    low, high = _DIFFICULTIES.values()
    assert (interpolate_difficulty(9), interpolate_difficulty(100)) == (low, high)
    assert (interpolate_difficulty(2), interpolate_difficulty(1000)) == (low, high)
    assert all(min(a, b) <= x <= max(a, b) for a, x, b in zip(low, interpolate_difficulty(30), high, strict=True))
    assert 0.5 < synthetic_outputs(3000, 30).accuracy < 0.9


@pytest.mark.parametrize(("rows", "classes"), [(1, 2), (5, 40), (3000, 1000)])
def test_any_size(rows, classes):
    assert synthetic_outputs(rows, classes).values.shape == (rows, classes)


def test_it_takes_less_than_a_second():
    start = time.process_time()
    synthetic_outputs()
    assert time.process_time() - start < 1.0


def test_too_little():
    with pytest.raises(ValueError, match="at least 2 classes, got 1"):
        synthetic_outputs(classes=1)
    with pytest.raises(ValueError, match="at least 1 rows, got 0"):
        synthetic_outputs(rows=0)
