"""Adapted scores on a mesh: the configuration, the file of labelled outputs, a run, and what nodes predict."""

import json
from unittest import mock

import numpy as np
import pytest

from conformesh import Network, adapt, calibrate
from conformesh.mesh.config.device_toml import read_device, write_device
from conformesh.mesh.config.folders import init_mesh
from conformesh.mesh.node.certified_result import CertifiedResult
from conformesh.mesh.node.result_store import ResultStore
from conformesh.pipeline import solver
from tests.mesh.test_parts import ended

NETWORK = Network.cycle(4)
NAMES = [f"device-{k:02}" for k in range(4)]
CLASSES = ("cat", "dog", "fish")
RNG = np.random.default_rng(8)
SIZES = (60, 0, 45, 30)
OUTPUTS = [RNG.dirichlet(np.ones(3), n) for n in SIZES]
LABELS = [RNG.choice([k % 3, (k + 1) % 3], n) for k, n in enumerate(SIZES)]
GROUPS = [[("young", "old")[int(one)] for one in RNG.integers(2, size=n)] for n in SIZES]
NEW = RNG.dirichlet(np.ones(3), 20)
pytestmark = pytest.mark.filterwarnings("ignore::conformesh.CalibrationNote", "ignore::conformesh.TooFewScores")
PRIOR = {"adapt": "prior", "output_columns": CLASSES}


def written(folder, k, outputs=None, labels=None):
    """Write the labelled outputs of a device, with groups and a column that nobody reads."""
    outputs, labels = OUTPUTS[k] if outputs is None else outputs, LABELS[k] if labels is None else labels
    rows = [
        ",".join([f"row {i}", CLASSES[label], *map(repr, row), group])
        for i, (label, row, group) in enumerate(zip(labels.tolist(), outputs.tolist(), GROUPS[k], strict=True))
    ]
    (folder / "scores.csv").write_text("\n".join(["note,label," + ",".join(CLASSES) + ",age", *rows]) + "\n")


def made(root, **changes):
    folders = init_mesh(root, NETWORK, insecure=True, **{**PRIOR, **changes})
    for k, folder in enumerate(folders):
        written(folder, k)
    return folders


def simulated(folders, found, **given):
    """Return the simulator's result on the same rows, in which each device hides the row that it has hidden."""
    hidden = [int(one.adapted.hidden[name]) for one, name in zip(found, NAMES, strict=True)]
    data = {name: (OUTPUTS[k], LABELS[k]) for k, name in enumerate(NAMES)}
    with mock.patch.object(solver, "draw_hidden_rows", return_value=hidden):
        return calibrate(data, read_device(folders[0]).network, classes=CLASSES, **given)


CELLS = {
    "prior": ({}, {"adapt": "prior"}),
    "full window, two levels, equal mixture": (
        {"adapt_options": {"window": "full", "strength": [1, 8]}, "alphas": ("0.1", "0.2"), "mixture": "equal"},
        {"adapt": adapt.Prior(window="full", strength=(1, 8)), "alpha": ["0.1", "0.2"], "mixture": "equal"},
    ),
    "even, groups": (
        {"adapt": "even", "groups": ("old", "young"), "group_column": "age"},
        {"adapt": "even", "groups": dict(zip(NAMES, GROUPS, strict=True))},
    ),
}


@pytest.mark.parametrize("name", CELLS)
def test_a_mesh_ends_as_the_simulator_does(tmp_path, name):
    changes, given = CELLS[name]
    folders = made(tmp_path / "m", **changes)
    found = ended(folders)
    right = simulated(folders, found, **given)
    groups = {"groups": ["old", "young"] * 10} if "groups" in given else {}
    for k, own in enumerate(found):
        assert (own.guarantee.adapt, own.classes) == (right.guarantee.adapt, CLASSES)
        for mine, theirs in zip(own.answers, right.answers, strict=True):
            assert (mine.part, mine.alpha, mine.windows, mine.examples) == (
                theirs.part,
                theirs.alpha,
                theirs.windows,
                theirs.examples,
            )
        assert own.adapted.hidden == {NAMES[k]: right.adapted.hidden[NAMES[k]]}
        assert own.adapted.digests == {NAMES[k]: right.adapted.digests[NAMES[k]]}
        for alpha in right.alphas:
            sets = own.on(NAMES[k]).predict(NEW, alpha=alpha, **groups)
            assert np.array_equal(sets, right.on(NAMES[k]).predict(NEW, alpha=alpha, **groups))
        store = ResultStore(read_device(folders[k]))
        store.save(CertifiedResult(own, 1, tuple(NAMES), 0.0))
        loaded = store.load()
        assert loaded is not None, store.problem
        assert loaded.calibration.to_dict() == own.to_dict()
        assert store.path.stat().st_mode & 0o777 == 0o600
        text = json.dumps(json.loads(store.path.read_text()))
        assert not any(repr(value) in text for value in OUTPUTS[k][:3].ravel().tolist())
    again = ended(folders)
    assert [one.adapted.digests for one in again] == [one.adapted.digests for one in found]


def test_the_file_of_a_device_is_read_back(tmp_path):
    (folder, *_) = made(tmp_path / "m", adapt_options={"strength": [1.0, 5.0], "window": "full"})
    one = read_device(folder)
    write_device(folder, one)
    assert read_device(folder) == one
    assert one.adaptation == adapt.Prior(strength=(1.0, 5.0), window="full")
