"""Several levels, groups, sides and weights on a mesh: the configuration, the score file, a run, and what nodes say."""

import json
import math

import numpy as np
import pytest

from conformesh import Network, calibrate
from conformesh.mesh.config.checks import examine_folder
from conformesh.mesh.config.device_toml import read_device, write_device
from conformesh.mesh.config.folders import init_mesh, scatter_scores
from conformesh.mesh.config.local_scores import LocalScores, read_local_scores, replace_scores
from conformesh.mesh.http.client import Client
from conformesh.mesh.node.calibration_run import device_result, make_device
from conformesh.mesh.node.certified_result import CertifiedResult
from conformesh.mesh.node.result_store import ResultStore
from conformesh.mesh.node.state import NodeState
from conformesh.peer.journal import MemoryJournal
from conformesh.scores import AbsoluteResidual
from tests.mesh.meshes import config
from tests.mesh.nodes import asked, serving

NETWORK = Network.cycle(4)
NAMES = [f"device-{k:02}" for k in range(4)]
RNG = np.random.default_rng(5)
SIZES = (120, 0, 180, 90)
LOWER, UPPER = ([RNG.normal(size=n) for n in SIZES] for _ in range(2))
GROUPS = [[("young", "old")[int(one)] for one in RNG.integers(2, size=n)] for n in SIZES]
WEIGHTS = [np.round(RNG.random(n) * 2, 3) for n in SIZES]
ASKED = {"alpha": "0.1", "alphas": ("0.1", "0.2")}
GROUPED = {"groups": ("old", "young"), "group_column": "age"}
SIDED = {"lower_share": "0.25"}
WEIGHTED = {"weight_column": "w", "weight_bound": 2.0}
CELLS = {
    "levels": ASKED,
    "groups": {**ASKED, **GROUPED},
    "sides": {**ASKED, **SIDED},
    "weights": {**ASKED, **WEIGHTED},
    "all": {**ASKED, **GROUPED, **SIDED, **WEIGHTED},
}


def written(folder, k, sided):
    """Write the score file of a device with every column."""
    head = ["lower,upper" if sided else "score", "age", "w"]
    rows = zip(LOWER[k].tolist(), UPPER[k].tolist(), GROUPS[k], WEIGHTS[k].tolist(), strict=True)
    lines = [f"{low!r},{up!r},{age},{w!r}" if sided else f"{low!r},{age},{w!r}" for low, up, age, w in rows]
    (folder / "scores.csv").write_text("\n".join([",".join(head), *lines]) + "\n")


def made(root, **changes):
    folders = init_mesh(root, NETWORK, insecure=True, **changes)
    for k, folder in enumerate(folders):
        written(folder, k, "lower_share" in changes)
    return folders


def ended(folders):
    """Run all devices in this process, without a network; return their results."""
    configs = [read_device(folder) for folder in folders]
    devices = [make_device(one, read_local_scores(one), MemoryJournal()) for one in configs]
    now = 0.0
    for one in devices:
        one.start(now)
    while not all(one.over for one in devices):
        now += 0.05
        for one in devices:
            for to, data in one.outbox():
                devices[to].receive(data, one.row, now)
            one.tick(now)
    assert [str(one.error) for one in devices if one.error is not None] == []
    return [device_result(each, one, 0.0) for each, one in zip(configs, devices, strict=True)]


def simulated(cell):
    """Return the simulator's result for the same rows."""
    given = {name: cell[name] for name in ("mixture", "mixture_bound") if name in cell}
    if "groups" in cell:
        given["groups"] = dict(zip(NAMES, GROUPS, strict=True))
    if "weight_bound" in cell:
        given |= {"weight": dict(zip(NAMES, WEIGHTS, strict=True)), "weight_bound": 2.0}
    data = LOWER
    if "lower_share" in cell:
        given |= {"symmetric": False, "lower_share": "0.25"}
        data = [np.column_stack(pair) for pair in zip(LOWER, UPPER, strict=True)]
    network = Network.from_pairs(NAMES, [(NAMES[k], NAMES[(k + 1) % 4]) for k in range(4)])
    return calibrate(dict(zip(NAMES, data, strict=True)), network, ["0.1", "0.2"], **given)


@pytest.mark.parametrize("name", CELLS)
def test_a_mesh_ends_as_the_simulator_does(tmp_path, name):
    cell = CELLS[name]
    folders, right = made(tmp_path / "m", **cell), simulated(cell)
    for k, found in enumerate(ended(folders)):
        assert found.device_ids == (NAMES[k],)
        assert [(one.part, one.alpha, one.examples) for one in found.answers] == [
            (one.part, one.alpha, one.examples) for one in right.answers
        ]
        assert [one.threshold for one in found.answers] == [float(one.thresholds[k]) for one in right.answers]
        assert [one.certificate for one in found.answers] == [one.certificate for one in right.answers]
        assert found.cost.rounds == right.cost.rounds
        store = ResultStore(read_device(folders[k]))
        store.save(CertifiedResult(found, 1, tuple(NAMES), 0.0))
        assert store.load().calibration.to_dict() == found.to_dict(), store.problem


@pytest.mark.parametrize(
    "asked",
    [{"mixture": "own"}, {"mixture": "any"}, {"mixture_bound": "1.5"}, {"mixture": "equal", "mixture_bound": "2"}],
    ids=str,
)
@pytest.mark.parametrize("name", ["levels", "groups", "sides"])
@pytest.mark.filterwarnings("ignore::conformesh.TooFewScores")  # device-01 has no scores
def test_a_mesh_covers_mixtures_that_are_not_known_as_the_simulator_does(tmp_path, name, asked):
    cell = {**CELLS[name], **asked}
    folders, right = made(tmp_path / "m", **cell), simulated(cell)
    for k, found in enumerate(ended(folders)):
        for one, other in zip(found.answers, right.answers, strict=True):
            assert (one.part, one.alpha, one.threshold) == (other.part, other.alpha, float(other.thresholds[k]))
            assert one.certificate.mixture_bound == other.certificate.mixture_bound
            if asked.get("mixture") == "any":
                assert one.certificate.short == other.certificate.short
                assert "device-01" in one.certificate.short
                assert "device-01 has 0" in found.shortage
            if "mixture_bound" in asked:
                assert one.certificate == other.certificate
        assert found.cost.rounds == right.cost.rounds
        store = ResultStore(read_device(folders[k]))
        store.save(CertifiedResult(found, 1, tuple(NAMES), 0.0))
        assert store.load().calibration.to_dict() == found.to_dict(), store.problem


@pytest.mark.parametrize("asked", [{"mixture": "own"}, {"mixture": "any"}, {"mixture_bound": "1.5"}], ids=str)
def test_a_mesh_that_cannot_cover_unknown_mixtures_is_not_made(tmp_path, asked):
    with pytest.raises(ValueError, match="use mode 'rounds' without"):
        made(tmp_path / "m", mode="asynchronous", **asked)
    with pytest.raises(ValueError, match="counts the scores of all devices together"):
        made(tmp_path / "n", method="h-dcp", **asked)


def test_a_mesh_with_a_confidence_looks_at_the_first_scores_of_each_device(tmp_path):
    """By default it holds at all looks: a device with more scores, or with new ones, contributes as many as its share.

    Device 0 has the fewest for its share; it gets new scores at the end of its file, and then all contribute more.
    """
    shares = {"device-00": "1", "device-01": "0", "device-02": "1", "device-03": "0.5"}
    by_id = dict(zip(NETWORK.ids, shares.values(), strict=True))
    folders = made(tmp_path / "m", pac_confidence="0.95", mixture="given", shares=by_id)
    held = {name: LOWER[k] for k, name in enumerate(NAMES)}
    for steps in (60, 90):  # in a step devices contribute 2, 0, 2 and 1 scores, and device 0 has 120, then 180
        found = ended(folders)
        network = Network.from_pairs(NAMES, [(NAMES[k], NAMES[(k + 1) % 4]) for k in range(4)])
        wanted = calibrate(held, network, 0.1, mixture=shares, pac_confidence=0.95, time_uniform=True)
        assert wanted.examples == 5 * steps
        for one in found:
            assert (one.threshold, one.certificate, one.examples) == (wanted.threshold, wanted.certificate, 5 * steps)
            assert one.options["unused_rows"] == wanted.options["unused_rows"]
            store = ResultStore(read_device(folders[NAMES.index(one.device_ids[0])]))
            store.save(CertifiedResult(one, 1, tuple(NAMES), 0.0))
            assert store.load().calibration.to_dict() == one.to_dict(), store.problem
        more = RNG.normal(size=60)
        held["device-00"] = np.concatenate([held["device-00"], more])
        with (folders[0] / "scores.csv").open("a") as file:
            file.writelines(f"{score!r},old,1\n" for score in more.tolist())


def test_new_scores_that_are_not_at_the_end_are_noted(tmp_path):
    """A confidence at all looks is about the first rows; other meshes may replace their scores as they like."""
    always, once = (
        made(tmp_path / f"m{looks}", pac_confidence="0.9", mixture="equal", **more)[0]
        for looks, more in ((True, {}), (False, {"time_uniform": False}))
    )
    old = (always / "scores.csv").read_text()
    head, first, *rest = old.splitlines()
    source = tmp_path / "given.csv"
    for lines, folder, noted in (
        ([head, first, *rest, "3.5,old,1"], always, False),
        ([head, "3.5,old,1", first, *rest], once, False),
        ([head, "3.5,old,1", first, *rest], always, True),
    ):
        source.write_text("\n".join(lines) + "\n")
        found = replace_scores(read_device(folder), str(source))
        assert len(found) == len(rest) + 2
        assert ("given.csv: the file does not begin with the rows of the old one" in found.problem) == noted
    (always / "scores.csv").write_text("score,age,w\n")
    assert replace_scores(read_device(always), str(source)).problem == ""


def test_the_file_of_a_device_is_read_back(tmp_path):
    (folder, *_) = made(tmp_path / "m", **CELLS["all"])
    one = read_device(folder)
    write_device(folder, one)
    assert read_device(folder) == one
    assert one.guarantee.alphas == ("0.1", "0.2")
    assert (one.guarantee.groups, one.guarantee.weight_bound) == (("old", "young"), 2.0)
    assert one.scores.group_column == "age"
    words = [problem.text for problem in examine_folder(folder) if problem.level == "fine"]
    assert any("alpha 0.1, 0.2, 2 groups, two sides, weights of at most 2" in text for text in words)


@pytest.mark.parametrize(
    ("change", "fields"),
    [
        ({"alphas": ("0.1",)}, set()),
        ({"alphas": ("0.1", "0.2")}, {"alpha"}),
        ({"groups": ("a", "b")}, {"groups"}),
        ({"lower_share": "0.5"}, {"sides"}),
        ({"weight_column": "w", "weight_bound": 2.0}, {"weights"}),
    ],
)
def test_all_devices_must_be_configured_alike(change, fields):
    one, other = config().agreement(), config(**change).agreement()
    assert {name for name in {*one, *other} if one.get(name) != other.get(name)} == fields


def test_the_order_of_groups_and_their_column_are_a_devices_own_affair():
    one, other = (config(groups=names, group_column=names[0]).agreement() for names in (("a", "b"), ("b", "a")))
    assert one == other


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"alphas": ("0.2", "0.3")}, "must have alpha among them, 0.1"),
        ({"groups": ("a", "a")}, "different names"),
        ({"weight_column": "w"}, "weight_column and weight_bound go together"),
        ({"weight_bound": 2.0}, "weight_column and weight_bound go together"),
        ({"weight_column": "w", "weight_bound": math.inf}, "a number above 0"),
        ({"groups": ("a", "b"), "mode": "asynchronous"}, "need mode 'rounds'"),
        ({"alphas": ("0.1", "0.2"), "mode": "asynchronous"}, "need mode 'rounds'"),
        ({"groups": ("a", "b"), "method": "p-dcp"}, "for one threshold"),
        ({"lower_share": "0.5", "online": {"learning": 0.1, "local": 0.1, "bound": 1.0}}, "moves one threshold"),
        ({"weight_column": "w", "weight_bound": 2.0, "method": "h-dcp"}, "use method 'e-dcp'"),
        (
            {"groups": ("a", "b"), "pac_confidence": "0.9", "mixture": "equal"},
            "confidence and groups do not go together",
        ),
        (
            {"groups": ("a", "b"), "pac_confidence": "0.9", "time_uniform": False},
            "pac_confidence and groups do not go together",
        ),
    ],
)
def test_what_does_not_go_together_is_refused_in_words(change, words):
    with pytest.raises(ValueError, match=words):
        config(**change)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("score,age,w\n1,young,1\n2,infant,1\n", "unknown group 'infant'"),
        ("score,age,w\n1,young,1\n2,old,3\n", "weight_bound 2, got 3"),
        ("score,w\n1,1\n", "age"),
        ("score,age\n1,young\n", "w"),
        ("score,age,w\n1,young;old,1\n", "must name one group in each row"),
    ],
)
def test_a_score_file_that_does_not_fit_is_refused_in_words(tmp_path, text, words):
    (folder, *_) = made(tmp_path / "m", **ASKED, **GROUPED, **WEIGHTED)
    (folder / "scores.csv").write_text(text)
    with pytest.raises(ValueError, match=words):
        read_local_scores(read_device(folder))
    source = tmp_path / "new.csv"
    source.write_text(text)
    with pytest.raises(ValueError, match=words):
        replace_scores(read_device(folder), str(source))


def test_the_digest_of_scores_tells_groups_and_weights_and_not_their_order(tmp_path):
    (folder, *_) = made(tmp_path / "m", **ASKED, **GROUPED, **WEIGHTED)
    here = read_device(folder)

    def digest(*rows):
        (folder / "scores.csv").write_text("\n".join(["score,age,w", *rows]) + "\n")
        return read_local_scores(here).digest

    first = digest("1,young,1", "2,old,2")
    assert digest("2,old,2", "1,young,1") == first
    assert len({first, digest("1,old,1", "2,young,2"), digest("1,young,2", "2,old,1"), digest("1,young,1")}) == 4
    plain = np.array([1.0, 2.0])
    assert LocalScores(plain).digest == LocalScores(plain[::-1]).digest


def test_a_file_of_all_devices_is_split_with_its_groups_and_weights(tmp_path):
    folders = init_mesh(tmp_path / "m", NETWORK, insecure=True, **ASKED, **GROUPED, **WEIGHTED)
    rows = ["device,score,age,w", "0,1.5,young,1", "2,2.5,old,2", "0,0.5,old,0.5"]
    (tmp_path / "all.csv").write_text("\n".join(rows) + "\n")
    assert scatter_scores(tmp_path / "m", tmp_path / "all.csv") == dict(zip(NAMES, (2, 0, 1, 0), strict=True))
    first = read_local_scores(read_device(folders[0]))
    assert sorted(zip(first.values.tolist(), first.weights.tolist(), strict=True)) == [(0.5, 0.5), (1.5, 1.0)]
    assert {*first.groups.atoms} == {("young",), ("old",)}
    assert len(read_local_scores(read_device(folders[1])).groups) == 0


def test_a_file_with_two_sides_is_not_split(tmp_path):
    init_mesh(tmp_path / "m", NETWORK, insecure=True, **SIDED)
    (tmp_path / "all.csv").write_text("device,lower,upper\n0,1,2\n")
    with pytest.raises(ValueError, match="give each device its own"):
        scatter_scores(tmp_path / "m", tmp_path / "all.csv")


def node_of(result):
    state = NodeState(NAMES[0], (NAMES[1],))
    state.begin_run(1)
    state.certify(replace_score(result), roster=NAMES)
    return state


def replace_score(result):
    from msgspec import structs

    return structs.replace(result, score=AbsoluteResidual())


def test_what_a_node_says_of_several_answers(tmp_path):
    result = ended(made(tmp_path / "m", **CELLS["groups"]))[0]
    with serving(node_of(result)) as service:
        status, told = asked(service, "GET", "/threshold")
        assert status == 200
        assert "threshold" not in told  # nobody is to take the first by mistake
        assert [(*one["part"], one["alpha"]) for one in told["answers"]] == [
            ("old", 0.1), ("old", 0.2), ("young", 0.1), ("young", 0.2),
        ]  # fmt: skip
        assert [float(one["threshold"]) for one in told["answers"]] == [one.threshold for one in result.answers]
        assert told["scores"] == sum(SIZES)
        certificates = asked(service, "GET", "/certificate")[1]["answers"]
        assert all(one["words"].startswith("counted") for one in certificates)
        shown = asked(service, "GET", "/status")[1]["certified"]
        assert (shown["part"], shown["alpha"], shown["answers"]) == (["old"], 0.1, 4)
        client = Client(service.address.path)
        with pytest.raises(ValueError, match="choose with"):
            client.threshold()
        assert client.calibration()["young", 0.2].threshold == result["young", 0.2].threshold
        with pytest.raises(Exception, match="say which alpha"):
            client.predict([1.0, 2.0], groups=["old", "young"])
        found = client.predict([1.0, 2.0], alpha=0.2, groups=["old", "young"])
        assert found.tolist() == replace_score(result).predict([1.0, 2.0], alpha=0.2, groups=["old", "young"]).tolist()


@pytest.mark.parametrize("rows", [{"alpha": "x"}, {"alpha": True}, {"groups": None}, {"groups": [1]}, {"weight": "1"}])
def test_a_request_with_wrong_types_is_refused(rows):
    with serving() as service:
        status, told = asked(service, "POST", "/predict", json.dumps({"outputs": [[0.5, 0.5]], **rows}))
    assert status == 400
    assert next(iter(rows)) in told["error"]
