"""Adapted scores on a mesh: the configuration, the file of labelled outputs, a run, and what nodes predict."""

import json
import subprocess
import sys
from contextlib import ExitStack, contextmanager
from unittest import mock

import numpy as np
import pytest
from click.testing import CliRunner
from msgspec import structs

from conformesh import Network, Result, adapt, calibrate
from conformesh.cli import app
from conformesh.kernels.proportions import exact_intervals
from conformesh.mesh.config.checks import examine_folder
from conformesh.mesh.config.device_toml import read_device, write_device
from conformesh.mesh.config.folders import add_device, init_mesh
from conformesh.mesh.config.local_scores import NO_SCORES, LocalScores, read_local_scores, replace_scores
from conformesh.mesh.http.client import Client, NodeError
from conformesh.mesh.node.calibration_run import device_result
from conformesh.mesh.node.certified_result import CertifiedResult
from conformesh.mesh.node.heartbeat import share_status
from conformesh.mesh.node.result_store import ResultStore
from conformesh.mesh.node.state import NodeState
from conformesh.mesh.node.status import CoverageStatus
from conformesh.peer.loopback import LinkFaults
from conformesh.pipeline import adapted
from conformesh.results.adapted_facts import DeviceRows
from conformesh.scores import AbsoluteResidual
from conformesh.scores.adapt import Bag
from tests.mesh.meshes import config
from tests.mesh.nodes import JSON, ask, asked, calibration, numbers, serving, short_folder
from tests.mesh.private_mesh import Crashed, Mesh
from tests.mesh.real import free_ports, long_ago, wait_for
from tests.mesh.test_parts import ended
from tests.mesh.test_serving import after, staying_up

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


def written(folder, k, outputs=None, labels=None, file="scores.csv"):
    """Write the labelled outputs of a device, with groups and a column that nobody reads."""
    outputs, labels = OUTPUTS[k] if outputs is None else outputs, LABELS[k] if labels is None else labels
    rows = [
        ",".join([f"row {i}", CLASSES[label], *map(repr, row), group])
        for i, (label, row, group) in enumerate(zip(labels.tolist(), outputs.tolist(), GROUPS[k], strict=True))
    ]
    draft = folder / "scores.new"
    draft.write_text("\n".join(["note,label," + ",".join(CLASSES) + ",age", *rows]) + "\n")
    long_ago(draft)
    draft.replace(folder / file)


def made(root, **changes):
    folders = init_mesh(root, NETWORK, insecure=True, **{**PRIOR, **changes})
    for k, folder in enumerate(folders):
        written(folder, k)
    return folders


def simulated(folders, found, **given):
    """Return the simulator's result on the same rows, in which each device hides the row that it has hidden."""
    hidden = [int(one.adapted.hidden[name]) for one, name in zip(found, NAMES, strict=True)]
    data = {name: (OUTPUTS[k], LABELS[k]) for k, name in enumerate(NAMES)}
    with mock.patch.object(adapted, "draw_hidden_rows", return_value=hidden):
        return calibrate(data, read_device(folders[0]).network, classes=CLASSES, **given)


CELLS = {
    "prior": ({}, {"adapt": "prior"}),
    "full window, two levels, equal mixture": (
        {"adapt_options": {"window": "full", "strength": [1, 8]}, "alphas": ("0.1", "0.2"), "mixture": "equal"},
        {"adapt": adapt.Prior(window="full", strength=(1, 8)), "alpha": ["0.1", "0.2"], "mixture": "equal"},
    ),
    "own": ({"mixture": "own"}, {"adapt": "prior", "mixture": "own"}),
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


def test_private_devices_end_as_the_simulator_does(tmp_path):
    """By p-dcp without epsilon: signed keys, an account, and nobody is told how many rows another device has."""
    rows = [DeviceRows(Bag(outputs, labels)) for outputs, labels in zip(OUTPUTS, LABELS, strict=True)]
    scores = [LocalScores(np.empty(0), rows=own) for own in rows]
    scores[1] = NO_SCORES  # its file cannot be read, which only its operator is told
    mesh = Mesh(tmp_path / "m", scores, network=NETWORK, **PRIOR)
    devices = mesh.play()
    assert [device.error for device in devices] == [None] * 4
    found = [device_result(each, one, 0.0) for each, one in zip(mesh.configs, devices, strict=True)]
    right = simulated(mesh.folders, found, method="p-dcp", adapt="prior", alpha="0.1")
    for k, own in enumerate(found):
        assert own.answers[0].windows == right.answers[0].windows
        assert own.answers[0].examples == right.answers[0].examples == sum(SIZES)
        assert own.adapted.losses == right.adapted.losses
        assert own.adapted.hidden == {NAMES[k]: right.adapted.hidden[NAMES[k]]}
        assert np.array_equal(own.on(NAMES[k]).predict(NEW), right.on(NAMES[k]).predict(NEW))
        assert mesh.account(k).exact_runs[0].devices == NAMES
    changed = Mesh(tmp_path / "m", scores, network=NETWORK)
    changed.scores = [*scores[:3], LocalScores(np.empty(0), rows=DeviceRows(rows[3].bag.take(slice(1, None))))]
    assert "the scores of this device have changed since an exact private run" in str(changed.play()[3].error)
    written(mesh.folders[0], 0)
    output = call("mesh", "put-scores", mesh.folders[0] / "scores.csv", mesh.folders[0])
    assert "put 60 labelled rows of device-00" in output
    assert "which is refused if the device has taken part with other rows" in output


def test_private_devices_end_alike_after_lost_frames_and_a_crash_and_not_without_a_device(tmp_path):
    """An attempt that a device was lost in is repeated with fresh masks and another hidden row: the same sums again."""
    scores = [LocalScores(np.empty(0), rows=DeviceRows(Bag(*own))) for own in zip(OUTPUTS, LABELS, strict=True)]
    crashed = []

    def crash(step, name, attempt):
        if (step, name) == ("exact", NAMES[2]) and not crashed:
            crashed.append(name)
            raise Crashed

    mesh = Mesh(tmp_path / "m", scores, LinkFaults(loss=0.2, duplication=0.2), NETWORK, **PRIOR)
    mesh.crash = crash
    devices = mesh.play()
    assert crashed
    assert [device.error for device in devices] == [None] * 4
    found = [device_result(each, one, 0.0) for each, one in zip(mesh.configs, devices, strict=True)]
    right = simulated(mesh.folders, found, method="p-dcp", adapt="prior", alpha="0.1")
    for k, own in enumerate(found):
        assert own.answers[0].windows == right.answers[0].windows
        assert np.array_equal(own.on(NAMES[k]).predict(NEW), right.on(NAMES[k]).predict(NEW))
    crashed.clear()
    gone = Mesh(tmp_path / "n", scores, network=NETWORK, **PRIOR)
    gone.crash, gone.away = crash, np.inf
    left = [device for k, device in enumerate(gone.play()) if k != 2]
    assert crashed
    assert {device.phase for device in left} == {"failed"}
    assert all(device.result is None for device in left)


def test_the_file_of_a_device_is_read_back(tmp_path):
    (folder, *_) = made(tmp_path / "m", adapt_options={"strength": [1.0, 5.0], "window": "full"})
    one = read_device(folder)
    write_device(folder, one)
    assert read_device(folder) == one
    assert one.adaptation == adapt.Prior(strength=(1.0, 5.0), window="full")
    assert any("scores adapted by prior" in finding.text for finding in examine_folder(folder))


def test_the_base_of_even_has_options_in_the_file_of_a_device(tmp_path):
    options = {"base": {"name": "prior", "strength": [1.0, float("inf")], "temperature": 1.5}, "strength": 5}
    folders = made(tmp_path / "m", adapt="even", adapt_options=options)
    one = read_device(folders[0])
    base = adapt.Prior(strength=(1.0, np.inf), temperature=1.5)
    assert one.adaptation == adapt.Even(base=base, strength=5)
    assert one.agreement()["adapt"] != config(adapt="even", output_columns=CLASSES).agreement()["adapt"]
    found = ended(folders)
    right = simulated(folders, found, adapt=adapt.Even(base=base, strength=5))
    assert np.array_equal(found[0].on(NAMES[0]).predict(NEW), right.on(NAMES[0]).predict(NEW))


# --- configuration ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"mode": "asynchronous"}, "asynchronous mode a result may be about the devices that have reported so far"),
        ({"method": "p-dcp", "alphas": ("0.1", "0.2")}, "counts every score of an epoch once, for one threshold"),
        (
            {"method": "p-dcp", "adapt_options": {"window": "full"}},
            "a full window is as wide as the number of rows of the largest",
        ),
        ({"method": "p-dcp", "options": {"epsilon": 1.0}}, "one record changes up to as many adapted scores"),
        ({"method": "p-dcp", "mixture": "equal"}, "p-dcp does not support mixture 'equal' by exact sums"),
        ({"online": {"learning": 0.1, "local": 0.1, "bound": 1.0}}, "online learning adjusts one threshold"),
        ({"method": "h-dcp"}, "use method 'e-dcp'"),
        ({"lower_share": "0.5"}, "leave adapt out, or the weights, centres or sides"),
        ({"weight_column": "w", "weight_bound": 2.0}, "leave adapt out, or the weights, centres or sides"),
        ({"pac_confidence": "0.9", "time_uniform": False}, "leave pac_confidence out, or adapt"),
        ({"rank_rule": "ghost"}, "adapted scores have their own required rank"),
        ({"score": "lac"}, "leave scores.score out"),
        ({"adapt": "prio"}, "unknown adaptation 'prio', did you mean 'prior'"),
        ({"adapt_options": {"strenth": 1}}, "guarantee.adapt_options: unknown option"),
        ({"adapt_options": {"window": 0}}, "window must be a number of pooled scores"),
        ({"output_columns": ("cat",)}, "must name the classes, at least two"),
        (
            {"output_columns": ()},
            "must name the classes, at least two, in the order of the columns of outputs, got none",
        ),
        ({"adapt": "even", "output_columns": ()}, "got none; for regression it must be 'prediction'"),
        ({"output_columns": ("cat", "cat")}, "different names"),
        ({"adapt": "scale"}, "is for regression: scores.output_columns must be 'prediction'"),
    ],
)
def test_what_does_not_go_together_is_refused_in_words(change, words):
    with pytest.raises(ValueError, match=words):
        config(**{**PRIOR, **change})


def test_all_devices_must_adapt_alike():
    def differing(**change):
        one, other = config(**PRIOR).agreement(), config(**{**PRIOR, **change}).agreement()
        return {name for name in {*one, *other} if one.get(name) != other.get(name)}

    assert differing(adapt_options={"window": 16}) == set()  # the default
    assert differing(adapt_options={"window": 20}) == {"adapt"}
    assert differing(adapt="even") == {"adapt"}
    assert differing(output_columns=("dog", "cat", "fish")) == {"outputs"}
    assert differing(label_column="truth") == set()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("device,score\ndevice-00,0.5\n", "it lacks 'label', 'cat', 'dog', 'fish', and has 'device', 'score'"),
        ("cat,dog,fish\n1,0,0\n", "adapt = 'prior' needs labelled outputs, .* it lacks 'label'"),
        ("label,cat,dog\ncat,1,0\n", "it lacks 'fish'"),
        ("label,cat,dog,fish\nbird,1,0,0\n", "unknown label 'bird'"),
        ("label,cat,dog,fish\n3,1,0,0\n", "label must lie between 0 and 2"),
        ("label,cat,dog,fish\ncat,1,0,\n", "fish"),
        ("label,cat,dog,fish\ncat,1,1,1\n", "sum"),
        ("site,label,cat,dog,fish\ndevice-01,cat,1,0,0\n", "holds rows of {device-01} and belongs to 'device-00'"),
    ],
)
def test_a_file_that_does_not_fit_is_refused_in_words(tmp_path, text, words):
    (folder, *_) = made(tmp_path / "m")
    (folder / "scores.csv").write_text(text)
    with pytest.raises(ValueError, match=words):
        read_local_scores(read_device(folder))
    (finding,) = [one for one in examine_folder(folder) if one.what == "scores"]
    assert finding.level == "error"
    source = tmp_path / "new.csv"
    source.write_text(text)
    with pytest.raises(ValueError, match=words):
        replace_scores(read_device(folder), str(source))


def test_labels_are_names_or_numbers_and_columns_in_any_order_of_any_format(tmp_path):
    (folder, *_) = made(tmp_path / "m")
    one, same = read_device(folder), []
    rows = read_local_scores(one)
    label, outputs = LABELS[0], OUTPUTS[0]
    (tmp_path / "a.csv").write_text(
        "fish,label,dog,cat\n"
        + "".join(f"{f!r},{y},{d!r},{c!r}\n" for y, (c, d, f) in zip(label, outputs.tolist(), strict=True))
    )
    np.savez(tmp_path / "a.npz", probabilities=outputs, labels=label)
    for source in ("a.csv", "a.npz"):
        changed = one.with_settings(file=str(tmp_path / source))
        same.append(read_local_scores(changed).digest == rows.digest)
    assert same == [True, True]
    written(folder, 0, outputs[::-1], label[::-1])  # their order is that of the hidden row
    assert read_local_scores(one).digest != rows.digest


def test_a_heading_alone_means_no_rows(tmp_path):
    for name, changes in (("m", {}), ("s", {"adapt": "scale", "output_columns": ("prediction", "scale")})):
        (folder, *_) = init_mesh(tmp_path / name, NETWORK, insecure=True, **{**PRIOR, **changes})
        assert len(read_local_scores(read_device(folder))) == 0
        assert [one.level for one in examine_folder(folder) if one.what == "scores"] == ["warning"]


def call(*words):
    done = CliRunner().invoke(app, [*map(str, words)])
    assert done.exit_code == 0, done.output
    return done.output


@pytest.mark.parametrize("kind", ["prior", "scale"])
def test_init_spreads_a_file_of_labelled_outputs(tmp_path, kind):
    rng = np.random.default_rng(3)
    names = [f"clinic-{k}" for k in range(3)]
    owners = rng.choice(names, 40)
    if kind == "prior":
        head = "device,label,cat,dog"
        cells = [(("cat", "dog")[int(rng.integers(2))], p, 1 - p) for p in rng.random(40).tolist()]
    else:
        head = "device,label,prediction,scale"
        cells = [(a, b, c) for a, b, c in rng.random((40, 3)).tolist()]
    source = tmp_path / "rows.csv"
    lines = [",".join(map(str, (owner, *row))) for owner, row in zip(owners, cells, strict=True)]
    source.write_text("\n".join([head, *lines]) + "\n")
    root = tmp_path / "mesh"
    output = call(
        "mesh", "init", root, "--adapt", kind, "--adapt-option", "window=8", "--scores", source, "--insecure",
        "--network", "complete", "--base-port", free_ports(3),
    )  # fmt: skip
    assert "rows: 40 spread over the folders" in output
    assert ("outputs: cat, dog" if kind == "prior" else "outputs: prediction, scale") in output
    for name in names:
        one = read_device(root / name)
        assert one.adaptation.window == 8
        assert one.scores.file == "outputs.csv"
        assert one.path("scores").stat().st_mode & 0o777 == 0o600
        rows = read_local_scores(one).rows
        own = [row for owner, row in zip(owners, cells, strict=True) if owner == name]
        assert np.array_equal(rows.bag.outputs, np.array([row[1:] for row in own], dtype=float))
        if kind == "prior":
            assert [one.classes[label] for label in rows.bag.labels] == [row[0] for row in own]
    found = json.loads(call("mesh", "check", root, "--offline", "--json"))
    assert found["differences"] == {}
    assert {one["level"] for one in found["findings"] if one["what"] == "scores"} == {"fine"}
    mine = tmp_path / "mine.csv"
    mine.write_text(head.removeprefix("device,") + "\n" + ",".join(map(str, cells[0])) + "\n")
    assert json.loads(call("mesh", "put-scores", mine, root / names[0], "--json"))["scores"] == 1


@pytest.mark.parametrize(
    ("rows", "more", "words"),
    [
        (
            "device,label,cat,dog,age\na,cat,0.5,0.5,young\nb,dog,0.5,0.5,old\n",
            (),
            "taken to be cat, dog, age; name them",
        ),
        ("device,label,cat,dog,age\na,cat,0.5,0.5,30\nb,dog,0.5,0.5,40\n", (), "taken to be cat, dog, age; name them"),
        ("clinic,label,cat,dog\na,cat,0.5,0.5\n", (), "needs a column 'device' with the device of each row"),
        ("device,label,cat,dog\na,cat,0.5,0.5\nb,cow,0.5,0.5\n", (), "unknown label 'cow'"),
        ("device,label,cat,dog\na,cat,1,0\nb,dog,1,0\n", ("scores.label_column=truth",), "it lacks 'truth'"),
        (
            "device,label,cat,dog,age\na,cat,1,0,old\nb,dog,1,0,teen\n",
            ("guarantee.groups=old,young", "scores.group_column=age"),
            "column 'age': unknown group 'teen'; known: old, young",
        ),
    ],
)
def test_init_with_a_file_that_does_not_fit_makes_no_folder(tmp_path, rows, more, words):
    source = tmp_path / "rows.csv"
    source.write_text(rows)
    given = ["mesh", "init", tmp_path / "m", "--adapt", "prior", "--scores", source, "--insecure", "--network", "chain"]
    done = CliRunner().invoke(app, [*map(str, given), *(f"--set={one}" for one in more)])
    assert done.exit_code == 2
    assert words in done.output
    assert not (tmp_path / "m").exists()


def test_init_without_a_file_says_what_one_has(tmp_path):
    output = call(
        "mesh", "init", tmp_path / "m", "--adapt", "prior", "--devices", 2, "--set", "scores.output_columns=cat,dog",
        "--insecure", "--network", "complete",
    )  # fmt: skip
    assert "none yet: device,label,cat,dog" in output
    refused = CliRunner().invoke(app, ["mesh", "init", str(tmp_path / "n"), "--adapt", "prior", "--devices", "2"])
    assert "scores.output_columns must name the classes" in refused.output


# --- predictions of a node --------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """The results of all devices of a mesh, and their folders."""
    folders = made(tmp_path_factory.mktemp("adapted") / "m")
    return ended(folders), folders


def node_with(result):
    node = NodeState(NAMES[0], NAMES[1:])
    if result is not None:
        node.certify(result, run=3)
    return node


OUTPUTS_OF = '{"outputs": %s}'
BAD_BODIES = [
    ("", "does not parse"),
    ("[]", "got list"),
    ("{}", "got neither"),
    ('{"outputs": [[1, 0, 0]], "as_name": true}', "unknown field 'as_name', did you mean 'as_names'?"),
    ('{"outputs": [[1, 0, 0]], "as_names": "yes"}', "'as_names' must be true or false, got 'yes'"),
    ('{"outputs": [[1, 0, 0]], "score": "lac"}', "'score' does not go with adapted scores"),
    ('{"outputs": [[1, 0, 0]], "weight": 1}', "'weight' does not go with adapted scores"),
    ('{"outputs": [[1, 0, 0]], "groups": ["old"]}', "groups= is for thresholds by group"),
    ('{"outputs": [[1, 0, 0]], "alpha": 0.2}', "0.2"),
    (OUTPUTS_OF % "[[0.5, 0.5]]", "outputs must have 3 columns, one for each class as in calibration, got 2"),
    (OUTPUTS_OF % "[[0.5, 0.25, 0.25, 0]]", "outputs must have 3 columns"),
    (OUTPUTS_OF % "[0.5, 0.25, 0.25]", "row"),
    (OUTPUTS_OF % "[[0.5, 0.5, 0.5]]", "these look like logits or unnormalised weights: apply softmax"),
    (OUTPUTS_OF % "[[5, 1, 1]]", "these look like logits: apply softmax"),
    (OUTPUTS_OF % "[[0.5, null, 0.5]]", "numbers only"),
    (OUTPUTS_OF % "[[0.5, 0.5], [1]]", "rows of equal length"),
    (OUTPUTS_OF % "[[NaN, 1, 0]]", "JSON has no NaN"),
    (b"\xff\xfe", "does not parse"),
]


def test_a_node_predicts_for_itself(results):
    found, _ = results
    body = json.dumps({"outputs": NEW.tolist(), "as_names": True})
    sets = found[0].on(NAMES[0]).predict(NEW)
    with serving(node_with(found[0]), read_rows=lambda: None) as service:
        status, answer = asked(service, "POST", "/predict", body, JSON)
        assert status == 200
        assert answer["sets"] == [np.flatnonzero(row).tolist() for row in sets]
        assert answer["names"] == [[CLASSES[c] for c in np.flatnonzero(row)] for row in sets]
        assert answer["sizes"] == sets.sum(axis=1).tolist()
        assert answer["unseen"] == ["fish"]
        assert (answer["run"], "threshold" in answer) == (3, False)
        client = Client(str(service.address.path))
        assert np.array_equal(client.predict(NEW), sets)
        assert client.predict(NEW, as_names=True) == [tuple(names) for names in answer["names"]]
        for wrong, words in BAD_BODIES:
            status, refused = asked(service, "POST", "/predict", wrong, JSON)
            assert status == 400, wrong
            assert words in refused["error"], (wrong, refused)
        assert asked(service, "POST", "/predict", body, JSON) == (200, answer)


def test_a_node_with_several_levels_asks_for_one(tmp_path):
    folders = made(tmp_path / "m", alphas=("0.1", "0.2"))
    (found, *_) = ended(folders)
    with serving(node_with(found), read_rows=lambda: None) as service:
        status, answer = asked(service, "POST", "/predict", json.dumps({"outputs": NEW.tolist()}), JSON)
        assert (status, answer["error"]) == (400, "'alpha' must say which level: 0.1, 0.2")
        body = json.dumps({"outputs": NEW.tolist(), "alpha": 0.2})
        status, answer = asked(service, "POST", "/predict", body, JSON)
        sets = found.on(NAMES[0]).predict(NEW, alpha=0.2)
        assert answer["sets"] == [np.flatnonzero(row).tolist() for row in sets]


def test_before_the_first_run_a_device_waits_for_it(results):
    """A device that joins has the result of no run; and one of a run without it, by mistake, does not help it."""
    found, _ = results
    body = json.dumps({"outputs": NEW.tolist()})
    for node in (node_with(None), node_with(found[1])):
        with serving(node, read_rows=lambda: None) as service:
            status, answer = asked(service, "POST", "/predict", body, JSON)
            assert status == 503
            assert "its rows are not among the shared ones: wait for its first run" in answer["error"]


def test_after_a_start_the_rows_are_read_again_and_must_be_the_same(results):
    found, folders = results
    restored = structs.replace(found[0], rows={})
    held = [None]
    body = json.dumps({"outputs": NEW.tolist()})
    with serving(node_with(restored), read_rows=lambda: held[0]) as service:
        status, answer = asked(service, "POST", "/predict", body, JSON)
        assert status == 503
        assert "the labelled outputs of this device cannot be read" in answer["error"]
        held[0] = read_local_scores(read_device(folders[1])).rows
        status, answer = asked(service, "POST", "/predict", body, JSON)
        assert status == 503
        assert "are not those that it calibrated with in run 3" in answer["error"]
        held[0] = read_local_scores(read_device(folders[0])).rows
        status, answer = asked(service, "POST", "/predict", body, JSON)
        assert status == 200
        assert answer["sets"] == [np.flatnonzero(row).tolist() for row in found[0].on(NAMES[0]).predict(NEW)]


# --- its own coverage -------------------------------------------------------------------------------------------------


def coverage_by_hand(sets, labels):
    return int(sets[np.arange(len(labels)), labels].sum())


@pytest.mark.parametrize("kind", ["adapted", "plain"])
def test_a_node_reports_its_own_coverage_of_labelled_examples(results, kind):
    """In its status and metrics, with the exact interval; a new result begins anew."""
    found, _ = results
    if kind == "adapted":
        node, sets = node_with(found[0]), found[0].on(NAMES[0]).predict(NEW)
    else:
        plain = calibration(0.7, device_ids=(NAMES[0],))
        node, sets = node_with(plain), plain.predict(NEW)
    truth = np.random.default_rng(1).integers(3, size=len(NEW))
    named = [CLASSES[y] if kind == "adapted" and i % 2 else int(y) for i, y in enumerate(truth)]
    body = json.dumps({"outputs": NEW.tolist(), "labels": named})
    covered, rows = coverage_by_hand(sets, truth), len(NEW)
    with serving(node, read_rows=lambda: None) as service:
        assert "coverage" not in asked(service, "GET", "/status")[1]
        assert "conformesh_coverage" not in ask(service, "GET", "/metrics")[2]
        before = share_status(node.status(), 1.0)
        status, answer = asked(service, "POST", "/evaluate", body, JSON)
        assert status == 200
        assert answer["batch"] == answer["coverage"]
        status, answer = asked(service, "POST", "/evaluate", body, JSON)
        low, high = exact_intervals([2 * covered], [2 * rows])
        expected = {
            "alpha": 0.1,
            "run": 3,
            "rows": 2 * rows,
            "covered": 2 * covered,
            "coverage": covered / rows,
            "low": float(low[0]),
            "high": float(high[0]),
            "mean_size": float(sets.sum(axis=1).mean()),
            "empty": 2 * int((sets.sum(axis=1) == 0).sum()),
        }
        assert answer["coverage"] == expected
        assert answer["batch"]["rows"] == rows
        assert asked(service, "GET", "/status")[1]["coverage"] == [expected]
        metrics = numbers(ask(service, "GET", "/metrics")[2])
        assert metrics['conformesh_coverage{alpha="0.1"}'] == covered / rows
        assert metrics['conformesh_coverage_low{alpha="0.1"}'] == pytest.approx(expected["low"])
        assert metrics['conformesh_coverage_rows{alpha="0.1"}'] == 2 * rows
        # Neighbours hear nothing of it.
        assert share_status(node.status(), 1.0) == before
        client = Client(str(service.address.path)).evaluate(NEW, truth, alpha=0.1)
        assert client["batch"] == answer["batch"]
        expected = asked(service, "GET", "/status")[1]["coverage"][0]
        assert expected["rows"] == 3 * rows
        for wrong, words in (
            ({}, "'labels' must be a list"),
            ({"labels": []}, "at least one"),
            ({"labels": [0]}, "needed one of 'probabilities' and 'outputs'"),
            ({"labels": [0], "outputs": [[1, 0, 0], [0, 1, 0]]}, "one label for each of 2 rows"),
            ({"labels": [3], "outputs": [[1, 0, 0]]}, "from 0 to 2"),
            ({"labels": [0.5], "outputs": [[1, 0, 0]]}, "from 0 to 2"),
            ({"labels": [1e400], "outputs": [[1, 0, 0]]}, "from 0 to 2"),
            ({"labels": [True], "outputs": [[1, 0, 0]]}, "from 0 to 2"),
            ({"labels": ["bird"], "outputs": [[1, 0, 0]]}, "label"),
            ({"labels": [0], "outputs": [[1, 0, 0]], "as_names": True}, "unknown field 'as_names'"),
        ):
            sent = json.dumps(wrong).replace("Infinity", "1e400")
            status, refused = asked(service, "POST", "/evaluate", sent, JSON)
            assert (status, words in refused["error"]) == (400, True), (wrong, refused)
        assert asked(service, "GET", "/status")[1]["coverage"] == [expected]
        node.certify(found[0] if kind == "adapted" else plain, run=4)
        assert "coverage" not in asked(service, "GET", "/status")[1]


def test_intervals_are_evaluated_too():
    plain = calibration(1.0, AbsoluteResidual(), device_ids=(NAMES[0],))
    with serving(node_with(plain)) as service:
        body = json.dumps({"outputs": [[0.0], [5.0], [2.0]], "labels": [0.5, 7, 1.0]})
        status, answer = asked(service, "POST", "/evaluate", body, JSON)
        assert status == 200
        counts = [answer["coverage"][name] for name in ("rows", "covered", "mean_size", "empty")]
        assert counts == [3, 2, 2.0, 0]


def test_a_private_node_does_not_measure_itself(results):
    found, _ = results
    node = NodeState(NAMES[0], NAMES[1:], private=True)
    node.certify(found[0], run=3)
    with serving(node, read_rows=lambda: None) as service:
        body = json.dumps({"outputs": NEW.tolist(), "labels": [0] * len(NEW)})
        status, answer = asked(service, "POST", "/evaluate", body, JSON)
        assert (status, "private node" in answer["error"]) == (501, True)
    node.count_coverage(node.certified, CoverageStatus.of(0.1, 3, 10, 9, 10.0, 0))
    assert (len(node.status().coverage), node.shared_status().coverage) == (1, [])


def test_at_a_port_a_private_node_tells_nothing_of_its_rows(results):
    """Sets, the hidden place and the digest of rows depend on them; its owner gets all of it at the socket."""
    found, _ = results
    body = json.dumps({"outputs": NEW.tolist()})
    for where, status in (("tcp", 501), ("unix", 200)):
        node = NodeState(NAMES[0], NAMES[1:], private=True)
        node.certify(found[0], run=3)
        with serving(node, where=where, read_rows=lambda: None) as service:
            assert asked(service, "POST", "/predict", body, JSON)[0] == status
            text = ask(service, "GET", "/calibration")[2]
            assert (found[0].adapted.digests[NAMES[0]] in text) == (where == "unix")
            assert Result.from_dict(json.loads(text)["calibration"]).adapted.losses == found[0].adapted.losses


# --- real nodes -------------------------------------------------------------------------------------------------------


def test_nodes_predict_after_a_run_after_a_start_and_not_with_other_rows():
    network = Network.chain(2)
    with short_folder() as root:
        folders = init_mesh(root / "m", network, base_port=free_ports(2), insecure=True, **PRIOR)
        written(folders[0], 0)
        written(folders[1], 2)
        clients = [Client(folder) for folder in folders]
        with ExitStack() as stack:
            for folder in folders:
                stack.enter_context(staying_up(folder))
            run, _ = after(clients, 0)
            results = [client.calibration() for client in clients]
            rows = [(OUTPUTS[0], LABELS[0]), (OUTPUTS[2], LABELS[2])]
            expected = [
                result.on(NAMES[k], own).predict(NEW) for k, (result, own) in enumerate(zip(results, rows, strict=True))
            ]
            assert results[0].answers[0].windows == results[1].answers[0].windows
            assert not np.array_equal(*expected)
            assert [np.array_equal(client.predict(NEW), sets) for client, sets in zip(clients, expected, strict=True)]
            for client, result, name, own in zip(clients, results, NAMES, rows, strict=False):
                status = client.status()
                assert (status["certified"]["run"], status["certified"]["adapt"]) == (run, "prior")
                # Which of its own rows are covered, by their leave-one-out scores: computed from all rows here.
                strength = result.adapted.choices[result.adapted.shared[0]]
                scores = result.guarantee.adapt.leave_one_out(adapt.Bag(*own), strength)
                covered = int((scores <= result.threshold).sum())
                figure = {"alpha": 0.1, "run": run, "rows": len(scores), "covered": covered}
                assert status["calibration_coverage"] == [{**figure, "coverage": covered / len(scores)}]
                metric = numbers(client.metrics())['conformesh_calibration_coverage{alpha="0.1"}']
                assert metric == pytest.approx(covered / len(scores))
                assert name == status["device"]
        with staying_up(folders[0]):  # alone: its own rows, and the window that it has
            wait_for((folders[0] / "node.sock").exists)
            wait_for(lambda: predicted(clients[0]) is not None)
            assert np.array_equal(predicted(clients[0]), expected[0])
        written(folders[0], 0, OUTPUTS[0][::-1], LABELS[0][::-1])
        with ExitStack() as stack:
            stack.enter_context(staying_up(folders[0]))
            wait_for((folders[0] / "node.sock").exists)
            wait_for(lambda: "are not those that it calibrated with" in refused(clients[0]))
            wait_for(lambda: "are not those that it calibrated with" in str(clients[0].health()["reasons"]))
            assert not clients[0].health()["healthy"]
            stack.enter_context(staying_up(folders[1]))
            after(clients, run)
            again = clients[0].calibration().on(NAMES[0], (OUTPUTS[0][::-1], LABELS[0][::-1]))
            assert np.array_equal(clients[0].predict(NEW), again.predict(NEW))


def test_a_device_that_joins_waits_for_the_next_run():
    """Processes: it gets a folder with a heading, says that it waits, and predicts after the run that it joins."""
    with short_folder() as root, ExitStack() as stack:
        folders = init_mesh(root / "m", Network.chain(2), base_port=free_ports(3), insecure=True, **PRIOR)
        for folder, k in zip(folders, (0, 2), strict=True):
            written(folder, k)
        clients = [Client(folder) for folder in folders]
        for folder in folders:
            stack.enter_context(process(folder))
        run, _ = after(clients, 0)
        before = clients[0].predict(NEW)
        joiner = add_device(root / "m", "joiner", [NAMES[0]], settled=1)
        assert (joiner / "outputs.csv").read_text() == "device,label,cat,dog,fish\n"
        written(joiner, 3, file="outputs.csv")
        stack.enter_context(process(joiner))
        new = Client(joiner)
        wait_for((joiner / "node.sock").exists)
        with pytest.raises(NodeError, match="wait for its first run") as refused:
            new.predict(NEW)
        assert refused.value.status == 503
        assert np.array_equal(clients[0].predict(NEW), before)
        clients[0].submit_roster((root / "m" / "roster.json").read_bytes())
        after([*clients, new], run)
        for client, k, name in zip([*clients, new], (0, 2, 3), (*NAMES[:2], "joiner"), strict=True):
            result = client.calibration()
            assert {*result.adapted.weights} == {*NAMES[:2], "joiner"}
            assert np.array_equal(client.predict(NEW), result.on(name, (OUTPUTS[k], LABELS[k])).predict(NEW))


@contextmanager
def process(folder):
    """A node in a process of its own."""
    with (folder / "node.log").open("wb") as log:
        running = subprocess.Popen([sys.executable, "-m", "conformesh", "node", str(folder)], stdout=log, stderr=log)
        try:
            yield
        finally:
            running.terminate()
            running.wait(20)


def refused(client):
    """Why a node does not predict."""
    try:
        client.predict(NEW)
    except NodeError as error:
        return str(error)
    return "it does"


def predicted(client):
    """What a node predicts; None while it does not."""
    try:
        return client.predict(NEW)
    except NodeError:
        return None
