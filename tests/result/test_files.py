"""Result files: what was written comes back, and what was changed since is refused in words."""

import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from conformesh import Network, Result, calibrate
from conformesh.io.json_numbers import from_json, in_json, number, to_json
from conformesh.result.certificate import Certificate, Cost
from conformesh.scores import LAC

RNG = np.random.default_rng(0)
HELD = [RNG.random(40) for _ in range(5)]


@pytest.fixture(scope="module")
def raw():
    return calibrate(HELD, Network.cycle(5), 0.1, score=LAC()).to_dict()


def changed(raw, path, value):
    """A copy of the JSON object with another value at "a.b[0]"-like steps."""
    copy = json.loads(json.dumps(raw))
    *way, last = path
    place = copy
    for step in way:
        place = place[step]
    place[last] = value
    return copy


TAMPERED = {
    "another threshold": (("threshold",), 0.5, "threshold must be the largest of thresholds"),
    "one device's threshold": (("thresholds", 3), 2.0, "threshold must be the largest of thresholds"),
    "a threshold too many": (("thresholds",), [0.5] * 6, "equally many, got 5, 5 and 6"),
    "a device too many": (("devices",), 6, "equally many, got 6, 5 and 5"),
    "no device": (("device_ids",), [], "device_ids must be a list of at least 1 entries"),
    "one name twice": (("device_ids",), ["a", "b", "a", "c", "d"], "'a' is there more than once"),
    "alpha 5": (("alpha",), 5, "alpha must be a number, less than 1, got 5"),
    "alpha 0": (("alpha",), 0, "alpha must be a number, more than 0, got 0"),
    "another alpha": (("alpha",), 0.01, "required_rank must be at least 199 for 200 scores and alpha 0.01, got 181"),
    "alpha as text": (("alpha",), "0.1", "alpha must be a number, got '0.1'"),
    "an unknown method": (("method",), "x-dcp", "unknown method 'x-dcp'.*written by version"),
    "an unknown kind": (
        ("certificate", "kind"),
        "sworn",
        "certificate.kind must be 'counted' or 'counted with noise' or 'bounded' or",
    ),
    "more scores than there are": (("scores",), 1000, "required_rank must be at least 901"),
    "fewer scores": (("scores",), 150, "counted_rank must be at most the number of scores, 150, got 181"),
    "scores below zero": (("scores",), -1, "scores must be a whole number, at least 0, got -1"),
    "half a score": (("scores",), 10.5, "scores must be a whole number, got 10.5"),
    "a rank not reached": (("certificate", "counted_rank"), 180, "counted_rank must be at least required_rank, 181"),
    "a rule nobody knows": (("certificate", "rule"), "swop", "unknown rule 'swop', did you mean 'swap'"),
    "a mixture nobody knows": (("certificate", "mixture"), "size", "unknown mixture 'size', did you mean 'sizes'"),
    "nothing counted": (("certificate", "counted_rank"), None, "must say counted_rank and required_rank"),
    "ranks of two kinds": (("certificate", "counted_rank"), [185], "of the kind of required_rank"),
    "a smaller rank": (("certificate", "required_rank"), 180, "required_rank must be at least 181"),
    "a rank without scores": (("certificate", "required_rank"), 201, "the threshold must be inf"),
    "a rank as text": (("certificate", "required_rank"), "185", "whole number or a list or nothing, got '185'"),
    "a bracket the wrong way": (("bracket",), [2.0, 1.0], "bracket must be two numbers around the threshold"),
    "a bracket elsewhere": (("bracket",), [5.0, 6.0], "bracket must be two numbers around the threshold"),
    "a bracket of one": (("bracket",), [0.5], "bracket must be a list of 2 entries"),
    "a threshold in words": (
        ("thresholds", 0),
        "large",
        r"thresholds\[0\] must be a number, 'inf' or '-inf', got 'large'",
    ),
    "no threshold": (("thresholds", 0), None, r"thresholds\[0\] must be a number, 'inf' or '-inf', got None"),
    "seconds below zero": (("seconds",), -1.0, "seconds must be a number, at least 0"),
    "bits below zero": (("cost", "bits_per_device"), -64, "cost.bits_per_device must be a number, at least 0"),
    "a score nobody knows": (("score",), {"name": "lca"}, "score: unknown score 'lca', did you mean 'lac'"),
    "a score without a name": (("score",), {}, "score: "),
    "an option nobody knows": (("score",), {"name": "lac", "x": 1}, "score: unknown option of score 'lac' 'x'"),
    "a field nobody knows": (("treshold",), 1, "unknown field 'treshold', did you mean 'threshold'"),
    "a newer format": (("format",), "conformesh-calibration/2", "got 'conformesh-calibration/2'"),
}


@pytest.mark.parametrize("case", TAMPERED)
def test_a_changed_file_is_refused_in_words(raw, case, tmp_path):
    path, value, words = TAMPERED[case]
    file = tmp_path / "r.json"
    file.write_text(json.dumps(changed(raw, path, value)))
    with pytest.raises(ValueError, match=words) as error:
        Result.load(file)
    assert str(error.value).startswith(f"{file}: ")
    assert "`" not in str(error.value).replace("`conformesh calibrate`", "")
    assert "$" not in str(error.value)


def test_every_field_is_needed(raw):
    for name in raw.keys() - {"bracket", "classes", "weight_bound", "test_weight"}:
        with pytest.raises(ValueError, match=f"lacks {name}|needed a result"):
            Calibration.from_dict({key: value for key, value in raw.items() if key != name}, "r.json")


@pytest.mark.parametrize("text", ["", "{", "NaN", '{"a": NaN}', "\xff", "[" * 100_000, "[]", "null", "3"])
def test_what_is_no_result_is_refused_in_one_line(text, tmp_path):
    file = tmp_path / "r.json"
    file.write_bytes(text.encode("latin-1"))
    for kind in (Calibration, Calibrations):
        with pytest.raises(ValueError, match=r"r\.json: needed") as error:
            kind.load(file)
        assert "\n" not in str(error.value)
        assert len(str(error.value)) < 300


def test_each_methods_result_survives_a_file(method, tmp_path):
    result = calibrate(HELD, Network.cycle(5), 0.2, method)
    result.save(tmp_path / "r.json")
    again = Result.load(tmp_path / "r.json")
    assert again.to_dict() == result.to_dict()
    assert again.certificate == result.certificate


def test_a_device_may_be_named_inf(tmp_path):
    names = ["inf", "-inf", "nan"]
    network = Network.from_pairs(names, [("inf", "-inf"), ("-inf", "nan")], name="inf")
    with pytest.warns(UserWarning, match="needs rank"):
        result = calibrate([[0.1]] * 3, network, 0.1)
    result.save(tmp_path / "r.json")
    again = Result.load(tmp_path / "r.json")
    assert again.device_ids == network.ids
    assert again.network == "inf"
    assert again.threshold == math.inf
    assert again.threshold_of("inf") == math.inf


def test_a_group_may_be_named_inf(tmp_path):
    several = calibrate(HELD, Network.cycle(5), (0.1, 0.2), groups=[["inf"] * 20 + ["-inf"] * 20] * 5)
    several.save(tmp_path / "s.json")
    assert Result.load(tmp_path / "s.json").groups == several.groups


SEVERAL = {
    "a group left out": (("groups",), ["a"], "one entry for each pair"),
    "a group moved": (("calibrations", 0, "group"), "b", "one entry for each pair"),
    "another alpha": (("alphas",), [0.1, 0.3], "one entry for each pair"),
    "no list": (("calibrations",), 3, "calibrations must be a list, got 3"),
    "a threshold": (("calibrations", 1, "threshold"), 9.0, r"calibrations\[1\]: threshold must be the largest"),
    "a format": (("format",), "conformesh-calibration/1", "needed several calibrations"),
}


@pytest.mark.parametrize("case", SEVERAL)
def test_changed_files_of_several_are_refused(case):
    path, value, words = SEVERAL[case]
    several = calibrate(HELD, Network.cycle(5), (0.1, 0.2), groups=[["a"] * 20 + ["b"] * 20] * 5)
    with pytest.raises(ValueError, match=words):
        Calibrations.from_dict(changed(several.to_dict(), path, value), "s.json")


def test_local_ranks_are_checked_device_by_device():
    raw = calibrate(HELD, Network.cycle(5), 0.2, "local").to_dict()
    for path, value, words in (
        (("certificate", "counted_rank", 2), 3, r"counted_rank\[2\] must be at least required_rank\[2\], 33, got 3"),
        (("certificate", "counted_rank"), [33] * 4, "one entry for each of 5 devices"),
        (("certificate", "counted_rank", 0), 1000, "add up to at most the number of scores, 200"),
    ):
        with pytest.raises(ValueError, match=words):
            Calibration.from_dict(changed(raw, path, value))


@given(st.recursive(st.floats(allow_nan=False) | st.text() | st.none() | st.booleans(), st.lists, max_leaves=8))
def test_numbers_and_words_survive_json(value):
    """Every number comes back as itself, and text stays text but where a number is expected."""

    def back(read, wrote):
        if isinstance(wrote, list):
            return len(read) == len(wrote) and all(map(back, read, wrote))
        return number(read) == wrote if isinstance(wrote, float) else read == wrote

    assert back(from_json(to_json(value), "x"), value)


def test_nan_is_never_written():
    result = Calibration(
        "e-dcp", 0.1, np.array([math.nan]), ("a",), 1, Certificate("none"), Cost(0, np.zeros(1), np.zeros(1))
    )
    with pytest.raises(ValueError, match="NaN"):
        result.to_json()
    with pytest.raises(ValueError, match="NaN"):
        in_json({"x": [math.nan]})
    with pytest.raises(ValueError, match="must be a number"):
        number(math.nan)


def test_a_result_prints_as_a_line_and_several_as_a_table():
    cost = Cost(1, np.array([24.0, 24.0, 25.0]), np.array([1536.0, 1536.0, 1600.0]))
    assert str(cost) == "1 round, 24.3 numbers and 1,557 bits per device"
    several = calibrate(HELD, Network.cycle(5), (0.1, 0.2), groups=[["cat"] * 20 + ["kangaroo"] * 20] * 5)
    head, columns, *rows = repr(several).split("\n")
    assert head.startswith("Calibrations(e-dcp on 5 devices; ")
    assert columns.split() == ["group", "alpha", "0.1", "alpha", "0.2"]
    assert [row.split() for row in rows] == [
        [group, *(f"{several.get(alpha, group).threshold:.6g}" for alpha in (0.1, 0.2))] for group in several.groups
    ]
    many = calibrate([np.arange(250.0)], "chain", (0.6,), groups=[np.arange(250) // 10])
    assert repr(many).endswith("... and 5 more groups")
    assert "array" not in repr(many)
