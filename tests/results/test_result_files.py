"""Files of results: what was written comes back, and what was changed since is refused in words."""

import json
import math
import time

import numpy as np
import pytest

from conformesh import Centres, Network, PValues, TooFewScores, calibrate, control, p_values
from conformesh.results.certificate import Certificate, Cost
from conformesh.results.result import Answer, Result
from conformesh.scores import CQR, LAC, losses

RNG = np.random.default_rng(0)
HELD = [RNG.random(40) for _ in range(5)]
NETWORK = Network.cycle(5)
ONE, SEVERAL = ("answers", 0), ("answers", 1)


@pytest.fixture(scope="module")
def raw():
    return calibrate(HELD, NETWORK, 0.1, score=LAC()).to_dict()


def changed(raw, path, value):
    """A copy of the JSON object with another value at the end of a path."""
    copy = json.loads(json.dumps(raw))
    *way, last = path
    place = copy
    for step in way:
        place = place[step]
    place[last] = value
    return copy


TAMPERED = {
    "a threshold too many": ((*ONE, "thresholds"), [0.5] * 6, "equally many, got 5 and 6"),
    "a table of thresholds": ((*ONE, "thresholds"), [[0.5] * 5], r"equally many, got 5 and \(1, 5\)"),
    "tables of two widths": ((*ONE, "thresholds"), [[0.5], [0.5, 1.0]], r"answers\[0\].thresholds"),
    "no device": (("device_ids",), [], "device_ids must be a list of at least 1 entries"),
    "no answer": (("answers",), [], "answers must be a list of at least 1 entries"),
    "one name twice": (("device_ids",), ["a", "b", "a", "c", "d"], "'a' is there more than once"),
    "alpha 5": (("guarantee", "alphas", 0), 5, "alphas must be more than 0 and less than 1, got 5"),
    "alpha 0": (("guarantee", "alphas", 0), 0, "alphas must be more than 0 and less than 1, got 0"),
    "another alpha": (("guarantee", "alphas", 0), 0.01, "one entry for each pair of them"),
    "another level": ((*ONE, "alpha"), 0.01, "one entry for each pair of them"),
    "alpha as text": ((*ONE, "alpha"), "a tenth", r"answers\[0\].alpha must be a number or a fraction such as '1/3'"),
    "alpha of nothing": ((*ONE, "alpha"), "1/0", r"answers\[0\].alpha must be a number or a fraction"),
    "alpha without end": ((*ONE, "alpha"), "1/" + "9" * 10_000, r"answers\[0\].alpha must be a number or a fraction"),
    "an unknown kind": (
        (*ONE, "certificate", "kind"),
        "sworn",
        r"answers\[0\].certificate.kind must be 'counted' or 'counted with noise' or 'bounded' or",
    ),
    "more examples than there are": ((*ONE, "examples"), 1000, "required_rank must be at least 901"),
    "fewer examples": ((*ONE, "examples"), 150, "counted_rank must be at most the number of examples, 150, got 181"),
    "examples below zero": (
        (*ONE, "examples"),
        -1,
        r"answers\[0\].examples must be a whole number, at least 0, got -1",
    ),
    "half an example": ((*ONE, "examples"), 10.5, "examples must be a whole number, got 10.5"),
    "a rank not reached": ((*ONE, "certificate", "counted_rank"), 180, "must be at least required_rank, 181"),
    "a rule nobody knows": ((*ONE, "certificate", "rule"), "swop", "unknown rule 'swop', did you mean 'swap'"),
    "a mixture nobody knows": (
        (*ONE, "certificate", "mixture"),
        "size",
        "unknown mixture 'size', did you mean 'sizes'",
    ),
    "a mixture nobody asks for": (("guarantee", "mixture", "kind"), "size", "unknown mixture 'size'"),
    "a rank rule nobody knows": (("guarantee", "rank_rule"), "swop", "unknown rank rule 'swop', did you mean 'swap'"),
    "nothing counted": ((*ONE, "certificate", "counted_rank"), None, "must say counted_rank and required_rank"),
    "ranks of two kinds": ((*ONE, "certificate", "counted_rank"), [185], "of the kind of required_rank"),
    "a smaller rank": ((*ONE, "certificate", "required_rank"), 180, "required_rank must be at least 181"),
    "a rank without scores": ((*ONE, "certificate", "required_rank"), 201, "the threshold must be inf"),
    "a rank as text": ((*ONE, "certificate", "required_rank"), "185", "whole number or a list or nothing, got '185'"),
    "a bracket the wrong way": ((*ONE, "bracket"), [2.0, 1.0], "bracket must be two numbers around the threshold"),
    "a bracket elsewhere": ((*ONE, "bracket"), [5.0, 6.0], "bracket must be two numbers around the threshold"),
    "a bracket of one": ((*ONE, "bracket"), [0.5], "bracket must be a list of 2 entries"),
    "a threshold in words": (
        (*ONE, "thresholds", 0),
        "large",
        r"answers\[0\].thresholds\[0\] must be a number, 'inf' or '-inf', got 'large'",
    ),
    "no threshold": ((*ONE, "thresholds", 0), None, r"thresholds\[0\] must be a number, 'inf' or '-inf', got None"),
    "a truth value": ((*ONE, "thresholds", 0), True, r"thresholds\[0\] must be a number, 'inf' or '-inf', got True"),
    "an endless integer": ((*ONE, "thresholds", 0), 10**400, r"thresholds"),
    "thresholds as text": ((*ONE, "thresholds"), "0.5", r"answers\[0\].thresholds must be a list, got '0.5'"),
    "seconds below zero": (("seconds",), -1.0, "seconds must be a number, at least 0"),
    "bits below zero": (("cost", "bits_per_device"), -64, "cost.bits_per_device must be a number, at least 0"),
    "a score nobody knows": (("score",), {"name": "lca"}, "score: unknown score 'lca', did you mean 'lac'"),
    "a score without a name": (("score",), {}, "score: "),
    "a score as text": (("score",), "lac", "score must be an object or nothing, got 'lac'"),
    "an option nobody knows": (("score",), {"name": "lac", "x": 1}, "score: unknown option of score 'lac' 'x'"),
    "a field nobody knows": (("metod",), 1, "unknown field 'metod', did you mean 'method'"),
    "a field of an answer": ((*ONE, "treshold"), 1, r"answers\[0\]: unknown field 'treshold', did you mean"),
    "a field of the guarantee": (("guarantee", "group"), 1, "guarantee: unknown field 'group', did you mean 'groups'"),
    "a field of a certificate": ((*ONE, "certificate", "kinds"), 1, r"certificate: unknown field 'kinds'"),
    "a part from nowhere": ((*ONE, "part"), ["F"], "one entry for each pair of them"),
    "a view of nothing": (("selected",), ["F"], "selected must have one entry for each kind of part, 0, got 1"),
    "classes alike": (("classes",), ["a", "a"], "classes must be at least 2 different names"),
    "a newer format": (("format",), "conformesh-result/2", "got 'conformesh-result/2'; files of other versions"),
    "an old format": (("format",), "conformesh-calibration/1", "got 'conformesh-calibration/1'.* calibrate again"),
}


@pytest.mark.parametrize("case", TAMPERED)
def test_a_changed_file_is_refused_in_words(raw, case, tmp_path):
    path, value, words = TAMPERED[case]
    file = tmp_path / "r.json"
    file.write_text(json.dumps(changed(raw, path, value)))
    with pytest.raises(ValueError, match=words) as error:
        Result.load(file)
    assert str(error.value).startswith(f"{file}: ")
    assert "`" not in str(error.value).replace("`conformesh calibrate` or `conformesh control`", "")
    assert "$" not in str(error.value)
    assert len(str(error.value)) < 400


def test_the_fields_that_have_no_default_are_needed(raw):
    for name in ("format", "guarantee", "answers", "method", "device_ids", "cost"):
        with pytest.raises(ValueError, match=f"lacks {name}|needed a result"):
            Result.from_dict({key: value for key, value in raw.items() if key != name}, "r.json")


@pytest.mark.parametrize("text", ["", "{", "NaN", '{"a": NaN}', "\xff", "[" * 100_000, "[]", "null", "3"])
def test_what_is_no_result_is_refused_in_one_line(text, tmp_path):
    file = tmp_path / "r.json"
    file.write_bytes(text.encode("latin-1"))
    with pytest.raises(ValueError, match=r"r\.json: needed") as error:
        Result.load(file)
    assert "\n" not in str(error.value)
    assert len(str(error.value)) < 300


@pytest.mark.parametrize("place", [("guarantee",), (*ONE, "certificate"), ("cost",), ("options",), ONE])
@pytest.mark.parametrize("value", [None, [], 3, "x", {}, True])
def test_values_of_another_kind_are_refused_or_mean_nothing(raw, place, value):
    """Whatever stands in a file, it is an error in words or a result that can be used."""
    try:
        again = Result.from_dict(changed(raw, place, value), "r.json")
    except ValueError as error:
        assert str(error).startswith("r.json: ")  # noqa: PT017
        return
    assert (place, value) == (("options",), {})
    assert again.threshold == max(raw["answers"][0]["thresholds"])


def test_each_methods_result_survives_a_file(method, tmp_path):
    result = calibrate(HELD, NETWORK, 0.2, method)
    result.save(tmp_path / "r.json")
    again = Result.load(tmp_path / "r.json")
    assert again.to_dict() == result.to_dict()
    assert again.certificate == result.certificate
    assert again.facts() == result.facts()
    assert [*tmp_path.iterdir()] == [tmp_path / "r.json"]


def test_the_file_holds_no_score(method):
    """No calibration score appears in the JSON, but for the threshold itself where it is one of them."""
    found = calibrate(HELD, NETWORK, 0.2, method)

    def numbers(value):
        if isinstance(value, dict):
            return {x for v in value.values() for x in numbers(v)}
        if isinstance(value, list):
            return {x for v in value for x in numbers(v)}
        return {value} if isinstance(value, float) else set()

    shown = numbers(json.loads(found.to_json())) - set(found.thresholds.tolist())
    assert not shown & set(np.concatenate(HELD).tolist())


def test_a_device_may_be_named_inf(tmp_path):
    names = ["inf", "-inf", "nan"]
    network = Network.from_pairs(names, [("inf", "-inf"), ("-inf", "nan")], name="inf")
    with pytest.warns(TooFewScores):
        result = calibrate([[0.1]] * 3, network, 0.1)
    result.save(tmp_path / "r.json")
    assert json.loads(result.to_json())["answers"][0]["thresholds"] == ["inf"] * 3
    again = Result.load(tmp_path / "r.json")
    assert again.device_ids == network.ids
    assert again.network == "inf"
    assert again.threshold == again.threshold_of("inf") == math.inf


def test_a_group_may_be_named_inf(tmp_path):
    groups = [["inf"] * 20 + ["-inf"] * 20] * 5
    result = calibrate(HELD, NETWORK, (0.1, 0.2), groups=groups)
    result.save(tmp_path / "s.json")
    again = Result.load(tmp_path / "s.json")
    assert again.groups == result.groups
    assert again["inf", 0.1].threshold == result["inf", 0.1].threshold


def test_views_are_saved_as_views(tmp_path):
    result = calibrate(HELD, NETWORK, (0.1, 0.2), groups=[["a"] * 20 + ["b"] * 20] * 5, score="lac")
    result["b"].at(0.2).save(tmp_path / "b.json")
    again = Result.load(tmp_path / "b.json")
    assert (again.threshold, again.selected) == (result["b", 0.2].threshold, ("b",))
    p = RNG.dirichlet(np.ones(3), 9)
    np.testing.assert_array_equal(again.predict(p), result["b", 0.2].predict(p))
    with pytest.raises(ValueError, match="selected must name parts of the guarantee, got 'c'"):
        Result.from_dict(changed(again.to_dict(), ("selected", 0), "c"))


SEVERAL_TAMPERED = {
    "a group left out": (
        ("guarantee", "groups", "names"),
        ["a"],
        "it has 1 groups and the levels 0.1, 0.2, so answers",
    ),
    "a group twice": (("guarantee", "groups", "names"), ["a", "a"], "at least one name, each once"),
    "a group moved": ((*ONE, "part", 0), "b", "one entry for each pair"),
    "another alpha": (("guarantee", "alphas"), [0.1, 0.3], "one entry for each pair"),
    "no list": (("answers",), 3, "answers must be a list, got 3"),
    "a rank": ((*SEVERAL, "certificate", "required_rank"), 1, r"answers\[1\]: required_rank must be at least"),
    "atoms without a rule": (("guarantee", "groups", "atoms"), {"a": ["a"]}, "atoms are for groups that overlap"),
}


@pytest.mark.parametrize("case", SEVERAL_TAMPERED)
def test_changed_files_of_several_answers_are_refused(case):
    path, value, words = SEVERAL_TAMPERED[case]
    several = calibrate(HELD, NETWORK, (0.1, 0.2), groups=[["a"] * 20 + ["b"] * 20] * 5)
    with pytest.raises(ValueError, match=words):
        Result.from_dict(changed(several.to_dict(), path, value), "s.json")


@pytest.mark.parametrize("rule", ["atoms", "max", "seq", "regression"])
def test_changed_groups_that_overlap_are_refused(rule):
    groups = [[["a"]] * 15 + [["a", "b"]] * 15 + [[]] * 10] * 5
    result = calibrate(HELD, NETWORK, (0.2,), groups=groups, group_rule=rule)
    raw = result.to_dict()
    assert Result.from_dict(raw).to_dict() == raw
    cases = [
        (("guarantee", "groups", "rule"), "atom", "unknown group rule 'atom', did you mean 'atoms'|one entry for each"),
        (("guarantee", "groups", "atoms", "a"), ["c"], "those that the rule"),
        (("guarantee", "groups", "names"), ["a", "b"], "those that the rule"),
    ]
    if rule in ("max", "seq"):
        cases.append(((*ONE, "examples"), 10**6, "no group may have more examples than everyone"))
    for path, value, words in cases:
        with pytest.raises(ValueError, match=words):
            Result.from_dict(changed(raw, path, value))


def test_ranks_of_single_devices_are_checked_device_by_device():
    raw = calibrate(HELD, NETWORK, 0.2, "local").to_dict()
    for path, value, words in (
        (
            (*ONE, "certificate", "counted_rank", 2),
            3,
            r"counted_rank\[2\] must be at least required_rank\[2\], 33, got 3",
        ),
        ((*ONE, "certificate", "counted_rank"), [33] * 4, "one entry for each of 5 devices"),
        ((*ONE, "certificate", "counted_rank", 0), 1000, "add up to at most the number of examples, 200"),
    ):
        with pytest.raises(ValueError, match=words):
            Result.from_dict(changed(raw, path, value))


def test_sides_are_checked_at_their_own_levels():
    cqr = CQR()
    band, y = np.sort(RNG.normal(size=(200, 2)), axis=1), RNG.normal(size=200)
    held = np.split(cqr.sides(band, y), 5)
    raw = calibrate(held, NETWORK, 0.2, score=cqr, symmetric=False, lower_share="0.25").to_dict()
    assert Result.from_dict(raw).certificate.alphas == (0.05, 0.15)
    for path, value, words in (
        (("guarantee", "sides", "lower_share"), 0.75, r"answers\[1\]: required_rank must be at least 191"),
        (("guarantee", "sides", "lower_share"), 2, "lower_share must be between 0 and 1"),
        (("guarantee", "sides", "lower_share"), "x", "guarantee.sides.lower_share must be a number or a fraction"),
    ):
        with pytest.raises(ValueError, match=words):
            Result.from_dict(changed(raw, path, value))


@pytest.mark.parametrize(
    ("path", "value", "words"),
    [
        ((*ONE, "certificate", "required_rank"), 1, "required_rank must be at least"),
        ((*ONE, "certificate", "bound"), None, "must say the bound"),
        ((*ONE, "certificate", "test"), 2**40, "a test of at most"),
        ((*ONE, "certificate", "weight"), None, "must have a weight"),
        (("guarantee", "weighting", "bound"), 0.5, "weights must be from 0 to the bound, 0.5"),
        (("guarantee", "weighting", "test_weights"), [4.0, 1.0], "test_weights must ascend"),
        (("guarantee", "weighting", "test_weights"), [1.0, 2.0], "the largest of test_weights must be the bound"),
    ],
)
def test_a_damaged_result_with_weights_is_refused(path, value, words):
    weights = [3 * own for own in HELD]
    found = calibrate(HELD, NETWORK, (0.2,), weight=weights, weight_bound=4, test_weights=[1.0])
    raw = found.to_dict()
    assert Result.from_dict(raw).guarantee.weighting.test_weights == (1.0, 4.0)
    with pytest.raises(ValueError, match=words):
        Result.from_dict(changed(raw, path, value))


@pytest.mark.parametrize(
    ("path", "value", "words"),
    [
        (("guarantee", "centres", "caps"), [2**16, 1], "the cap of a centre must be the bound of its certificate"),
        (("guarantee", "centres", "caps"), [1.5, 2**16], "guarantee.centres.caps must be whole numbers"),
        (("guarantee", "centres", "bandwidth"), -1.0, "guarantee.centres: bandwidth must be a number above 0"),
        (("guarantee", "centres", "points"), [[0.0], ["x"]], r"guarantee.centres.points\[0\] must be a number"),
        (("guarantee", "centres", "points"), [[0.0]], "guarantee.centres: caps must be 1 whole numbers"),
        ((*ONE, "part", 0), "centre 1", "one entry for each pair"),
    ],
)
def test_damaged_centres_are_refused(path, value, words):
    centres = Centres.at([0.0, 1.0], 0.3)
    found = calibrate(HELD, NETWORK, 0.2, inputs=[RNG.random(40) for _ in HELD], centres=centres)
    raw = found.to_dict()
    again = Result.from_dict(raw)
    assert again.to_dict() == raw
    np.testing.assert_array_equal(again.guarantee.centres.weights([0.3]), centres.weights([0.3]))
    with pytest.raises(ValueError, match=words):
        Result.from_dict(changed(raw, path, value))


@pytest.mark.parametrize(
    ("path", "value", "words"),
    [
        (("guarantee", "loss"), None, "risk control must say both guarantee.loss and certificate.losses"),
        ((*ONE, "certificate", "losses"), None, "risk control must say both guarantee.loss and certificate.losses"),
        (("guarantee", "loss", "bound"), 0, "guarantee.loss.bound must be a number above 0"),
        (("guarantee", "loss", "bound"), 4.0, "required_rank must be at least"),
        (("guarantee", "loss", "loss"), {"name": "fnr"}, "loss: unknown loss 'fnr'"),
        (("guarantee", "loss", "loss"), 3, "guarantee.loss.loss must be an object with the name of a loss"),
        ((*ONE, "certificate", "required_rank"), 1, "required_rank must be at least .* parts of losses"),
    ],
)
def test_a_damaged_result_of_risk_control_is_refused(path, value, words):
    fnr, table = losses.FalseNegativeRate(), RNG.random((100, 5))
    truth = RNG.random((100, 5)) < table
    steps = [fnr(table[k::5], truth[k::5]) for k in range(5)]
    raw = control(steps, NETWORK, 0.2, loss=fnr).to_dict()
    again = Result.from_dict(raw)
    assert again.guarantee.loss.loss == fnr
    assert again.to_dict() == raw
    with pytest.raises(ValueError, match=words):
        Result.from_dict(changed(raw, path, value))


@pytest.mark.parametrize(
    ("path", "value", "words"),
    [
        (("kind",), "assumed", "counted with noise, and no other, must say what noise"),
        (("noise",), None, "counted with noise, and no other, must say what noise"),
        (("noise", "honest"), 9, "honest devices must be at most 5, got 9"),
        (("noise", "cap"), 7, "noise for each score must have no cap"),
        (("noise", "epochs"), [2, 1], "epochs must ascend"),
        (("noise", "epochs"), [], "noise.epochs must be a list of at least 1 entries"),
        (("noise", "epsilon"), 0, "noise.epsilon must be a number, more than 0"),
        (("noise", "unit"), "scores", "noise.unit must be 'score' or 'device', got 'scores'"),
        (("heard",), ["mars"], "devices that were heard must be among device_ids, got 'mars'"),
        (("byzantine",), 5, "byzantine must be fewer than the devices, 5, got 5"),
    ],
)
def test_damaged_noise_and_devices_are_refused(path, value, words):
    held = [RNG.random(200) for _ in range(5)]
    raw = calibrate(held, NETWORK, 0.2, "p-dcp", epsilon=4, grid="logit").to_dict()
    assert Result.from_dict(raw).certificate.noise.devices == 5
    with pytest.raises(ValueError, match=words):
        Result.from_dict(changed(raw, (*ONE, "certificate", *path), value))


def test_what_a_mesh_has_sent_besides_is_kept():
    result = calibrate([[0.1, 0.2], [0.3, 0.4, 0.5]], Network.chain(2), 0.5)
    sent = Cost(9, np.full(2, 20.0), np.full(2, 1280.0))
    cost = Cost(result.cost.rounds, result.cost.numbers, result.cost.bits, sent)
    fields = {name: getattr(result, name) for name in result.__struct_fields__}
    back = Result.from_dict(Result(**fields | {"cost": cost}).to_dict()).cost
    assert back.to_dict() == cost.to_dict() == {**result.cost.to_dict(), "sent": sent.to_dict()}
    assert str(back).endswith("; with what only a mesh must send 9 rounds, 20 numbers and 1,280 bits per device")
    assert len(back.bits) == 2
    assert Result.from_dict(result.to_dict()).cost.sent is None


def test_infinite_options_and_estimates_come_back():
    result = calibrate(HELD, NETWORK, 0.2, "h-dcp", range=(0.0, 1.0))
    fields = {name: getattr(result, name) for name in result.__struct_fields__}
    answer = result.answers[0]
    certificate = Certificate("bounded", answer.certificate.required_rank, epsilon=math.inf)
    endless = Answer((), answer.alpha, answer.thresholds, certificate, -math.inf, None, 200)
    options = {"range": (0.0, math.inf), "grid": "inf"}
    again = Result.from_dict(json.loads(Result(**fields | {"answers": (endless,), "options": options}).to_json()))
    assert again.estimate == -math.inf
    assert again.certificate.epsilon == math.inf
    assert again.options["range"] == [0.0, math.inf]


def test_nan_is_never_written():
    result = calibrate(HELD, NETWORK, 0.2)
    fields = {name: getattr(result, name) for name in result.__struct_fields__}
    broken = Answer((), result.answers[0].alpha, np.full(5, math.nan), Certificate("none"))
    with pytest.raises(ValueError, match="NaN"):
        Result(**fields | {"answers": (broken,)}).to_json()


def test_a_table_can_be_saved_too(tmp_path):
    result = calibrate(HELD, NETWORK, (0.1, 0.2), groups=[["a"] * 20 + ["b"] * 20] * 5)
    for ending in ("csv", "parquet", "npz"):
        result.save(tmp_path / f"r.{ending}")
    assert len((tmp_path / "r.csv").read_text().splitlines()) == 1 + 2 * 2 * 5
    with pytest.raises(ValueError, match=r"must end in \.json or \.csv"):
        result.save(tmp_path / "r.txt")
    result.save(tmp_path / "result")  # without an ending it is JSON
    assert Result.load(tmp_path / "result").to_dict() == result.to_dict()


def test_a_small_file_cannot_ask_for_much(raw):
    """Products of names, numbers without end and lists without bottom are refused before they take room or time."""
    names = [f"g{k}" for k in range(20_000)]
    centres = {"points": [[0.0]] * 20_000, "bandwidth": 1.0, "scales": [1.0], "caps": [4] * 20_000}
    many = changed(raw, ("guarantee", "groups"), {"names": names})
    many["guarantee"]["centres"] = centres
    with pytest.raises(ValueError, match="it has 400000000 groups"):
        Result.from_dict(many)
    with pytest.raises(ValueError, match=r"alphas must be more than 0 and less than 1, got 1000"):
        Result.from_dict(changed(raw, ("guarantee", "alphas", 0), 10**300))
    found = p_values(HELD, NETWORK, [0.5]).to_dict()
    with pytest.raises(ValueError, match="devices must be a whole number, at most 1e\\+09"):
        PValues.from_dict({**found, "devices": 10**15})


@pytest.mark.slow
def test_a_million_thresholds_are_saved_and_loaded_in_seconds(tmp_path):
    ids = tuple(f"device-{k:07}" for k in range(10**6))
    one = calibrate(HELD, NETWORK, 0.2)
    fields = {name: getattr(one, name) for name in one.__struct_fields__}
    answer = Answer((), one.answers[0].alpha, RNG.random(10**6), Certificate("none"))
    cost = Cost(1, np.ones(10**6), np.ones(10**6))
    result = Result(**fields | {"answers": (answer,), "device_ids": ids, "cost": cost})
    started = time.perf_counter()
    result.save(tmp_path / "r.json")
    again = Result.load(tmp_path / "r.json")
    assert time.perf_counter() - started < 10
    np.testing.assert_array_equal(again.thresholds, result.thresholds)
    assert again.device_ids == ids
