"""Adapted scores: forms of rows, and wrong use, which is caught in words or does no harm."""

import warnings
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import polars as pl
import pytest
from msgspec import structs

from conformesh import CalibrationNote, Network, Result, TooFewScores, adapt, calibrate, update
from conformesh.files.memberships import Memberships
from conformesh.results.adapted_facts import DeviceRows
from conformesh.scores.adapt import ADAPTATIONS, Adaptation

quiet = pytest.mark.filterwarnings("ignore::conformesh.CalibrationNote", "ignore::conformesh.TooFewScores")
CLASSES = ("a", "b", "c", "d")
NEW = np.random.default_rng(1).dirichlet(np.ones(4), 5)


def clinic(rng, labels, rows=40):
    return rng.dirichlet(np.ones(4), rows), rng.choice(labels, rows)


def clinics(seed=0):
    rng = np.random.default_rng(seed)
    return {"north": clinic(rng, [0, 1]), "south": clinic(rng, [2, 3], 30)}


def frame_of(data):
    columns = {"device": [name for name, (_, labels) in data.items() for _ in labels]}
    outputs = np.concatenate([outputs for outputs, _ in data.values()])
    columns |= {name: outputs[:, i] for i, name in enumerate(CLASSES)}
    return pl.DataFrame(columns | {"label": [CLASSES[y] for _, labels in data.values() for y in labels]})


def same_sets(*results, devices=("north", "south")):
    return all(
        np.array_equal(results[0].on(name).predict(NEW), other.on(name).predict(NEW))
        for other in results[1:]
        for name in devices
    )


# --- forms ------------------------------------------------------------------------------------------------------------


@quiet
def test_every_form_of_rows_gives_the_same_sets():
    data = clinics()
    frame = frame_of(data)
    plain = calibrate(data, adapt="prior", rng=0)
    renamed = frame.rename({"device": "hospital", "label": "truth"})
    named = {name: (outputs, np.array(CLASSES)[labels]) for name, (outputs, labels) in data.items()}
    others = [
        calibrate(frame, adapt="prior", rng=0),
        calibrate(frame.to_dict(as_series=False), adapt="prior", rng=0),
        calibrate(renamed, adapt="prior", columns={"device": "hospital", "label": "truth"}, rng=0),
        calibrate(renamed, adapt="prior", columns={"device": "hospital"}, labels="truth", rng=0),
        calibrate(frame.with_columns(age=pl.lit(70)), adapt="prior", classes=CLASSES, rng=0),
        calibrate(
            {name: x for name, (x, _) in data.items()},
            adapt="prior",
            labels={k: y for k, (_, y) in data.items()},
            rng=0,
        ),
        calibrate(named, adapt=adapt.Prior, classes=CLASSES, rng=0),
    ]
    assert same_sets(plain, *others)
    assert others[0].classes == CLASSES
    assert "of adapted scores (prior)" in repr(plain)
    assert plain.title() in plain._repr_html_()
    assert "of adapted scores (prior)" in plain.title()
    shuffled = pl.DataFrame({name: NEW[:, CLASSES.index(name)] for name in "dcba"})
    assert others[0].on("north").predict(shuffled, as_names=True) == others[0].on("north").predict(NEW, as_names=True)
    turned = {  # the columns of one device in another order
        name: (pl.DataFrame({c: x[:, CLASSES.index(c)] for c in order}), labels)
        for (name, (x, labels)), order in zip(named.items(), ("abcd", "dbca"), strict=True)
    }
    for classes in (None, CLASSES):
        in_order = calibrate(turned, adapt="prior", classes=classes, rng=0)
        assert same_sets(plain, in_order)
        assert in_order.adapted == plain.adapted
    by_order = calibrate([*data.values()], "cycle", adapt="prior", rng=0)
    assert np.array_equal(by_order.on(1).predict(NEW), plain.on("south").predict(NEW))


@quiet
def test_the_order_of_levels_changes_no_interval():
    """`Scale` chooses by losses at one level, the smallest."""
    rng = np.random.default_rng(4)
    data = {name: (np.zeros(40), rng.normal(k, 1 + k, 40)) for k, name in enumerate("abc")}
    one, other = (calibrate(data, alpha=levels, adapt="scale", rng=0) for levels in ([0.1, 0.4], [0.4, 0.1]))
    assert sorted(one.adapted.losses) == sorted(other.adapted.losses)
    for level in (0.1, 0.4):
        assert np.array_equal(one.on("b").predict([0.0], alpha=level), other.on("b").predict([0.0], alpha=level))


@quiet
def test_frames_of_predictions():
    rng = np.random.default_rng(2)
    data = {"a": (rng.normal(size=30), rng.normal(1, 2, 30)), "b": (rng.normal(size=20), rng.normal(0, 1, 20))}
    frame = pl.DataFrame(
        {
            "device": ["a"] * 30 + ["b"] * 20,
            "prediction": np.concatenate([data["a"][0], data["b"][0]]),
            "label": np.concatenate([data["a"][1], data["b"][1]]),
        }
    )
    one, other = (calibrate(rows, adapt="scale", rng=0) for rows in (data, frame))
    new = rng.normal(size=4)
    assert np.array_equal(one.on("a").predict(new), other.on("a").predict(new))
    scaled = calibrate(frame.with_columns(scale=pl.lit(2.0)), adapt="scale", rng=0)
    assert scaled.on("a").predict(np.stack([new, np.full(4, 2.0)], axis=1)).shape == (4, 2)


# --- sorted files -----------------------------------------------------------------------------------------------------


def sorted_coverage(rng):
    """How often each of four rows is covered by the other three, sorted by label, for each place of the hidden row.

    Return also which places were drawn. Alpha is 1/3.
    """
    labels, outputs = rng.integers(0, 2, 4), rng.dirichlet([100, 100], 4)
    made, hits, drawn = adapt.Prior(strength=0.01, temperature=1, window="full"), np.zeros(3), set()
    for new in range(4):
        rows = np.delete(np.arange(4), new)
        rows = rows[np.argsort(labels[rows], kind="stable")]
        result = calibrate([(outputs[rows], labels[rows])], Network.complete(1), "1/3", adapt=made, rng=rng)
        drawn.add(result.adapted.hidden["0"])
        for place in range(3):
            moved = structs.replace(result, adapted=structs.replace(result.adapted, hidden={"0": place}))
            hits[place] += moved.on(0).predict(outputs[[new]])[0, labels[new]]
    return hits / 4, drawn


@quiet
def test_sorted_files_keep_the_guarantee():
    """On average over places at least two thirds are covered, as was asked for, exactly and for any four rows.

    With the first row hidden, which has the smallest label, about .57 are covered: this is what the draw is for.
    """
    rng = np.random.default_rng(3)
    rates, drawn = zip(*(sorted_coverage(rng) for _ in range(60)), strict=True)
    assert np.mean(rates, axis=1).min() >= 2 / 3 - 1e-9
    assert np.mean(rates, axis=0)[0] < 0.62
    assert set.union(*drawn) == {0, 1, 2}


# --- what does not fit ------------------------------------------------------------------------------------------------


@quiet
def test_a_file_has_no_rows_and_takes_only_the_same_rows(tmp_path):
    data = clinics()
    result = calibrate(data, adapt="prior", rng=0, classes=CLASSES)
    result.save(tmp_path / "result.json")
    text = (tmp_path / "result.json").read_text()
    loaded = Result.load(tmp_path / "result.json")
    assert loaded.rows == {}
    assert '"rows"' not in text
    assert loaded.adapted == result.adapted
    assert {*loaded.adapted.hidden} == {"north", "south"} == {*loaded.adapted.digests}
    assert all(0 <= place < len(data[name][1]) for name, place in loaded.adapted.hidden.items())
    assert loaded.to_json() == result.to_json()
    for name, rows in data.items():
        wanted = result.on(name).predict(NEW)
        frame = frame_of({name: rows})
        for given in (rows, [rows[0].tolist(), rows[1].tolist()], frame, frame_of(data)):
            assert np.array_equal(loaded.on(name, given).predict(NEW), wanted)
    with pytest.raises(ValueError, match=r"contains no rows of device north; .*, on\('north', \(outputs, labels\)\)"):
        loaded.on("north")
    with pytest.raises(ValueError, match="contains no rows of device north"):
        loaded.predict(NEW, device="north")
    measured = loaded.on("north", data["north"]).evaluate(NEW, ["a", "b", "a", "b", "c"])
    assert measured.coverage == result.on("north").evaluate(NEW, ["a", "b", "a", "b", "c"]).coverage
    outputs, labels = data["north"]
    order = np.random.default_rng(0).permutation(len(labels))
    changed = outputs.copy()
    changed[0, :2] = changed[0, 1::-1]
    for wrong in (
        (outputs[order], labels[order]),
        (outputs, 1 - labels),
        (changed, labels),
        data["south"],
        (outputs[:-1], labels[:-1]),
    ):
        with pytest.raises(ValueError, match="device north: these are not the rows that it calibrated with"):
            loaded.on("north", wrong)
    with pytest.raises(TypeError, match="takes a pair"):
        loaded.on("north", outputs)


@quiet
def test_groups_of_rows_are_in_the_digest(tmp_path):
    data, rng = clinics(), np.random.default_rng(4)
    groups = {name: rng.choice(["F", "M"], len(labels)).tolist() for name, (_, labels) in data.items()}
    calibrate(data, adapt="prior", rng=0, groups=groups).save(tmp_path / "result.json")
    loaded = Result.load(tmp_path / "result.json")
    assert loaded.on("north", data["north"], groups=groups["north"]).predict(NEW, groups=["F"] * 5).shape == (5, 4)
    for wrong in (None, groups["north"][::-1]):
        with pytest.raises(ValueError, match="the same outputs, labels and groups"):
            loaded.on("north", data["north"], groups=wrong)


def test_the_digest_tells_two_groups_from_one_whose_name_has_a_comma():
    bag = adapt.Bag(np.eye(2), np.arange(2))
    one, two = (Memberships.of(groups, "groups") for groups in ([["a, b"], ["c"]], [["a", "b"], ["c"]]))
    assert DeviceRows(bag, one).digest != DeviceRows(bag, two).digest


@quiet
def test_files_that_were_changed_are_refused():
    whole = calibrate(clinics(), adapt="prior", rng=0).to_dict()
    assert Result.from_dict(whole).adapted is not None

    def broken(**changes):
        raw = {**whole, "adapted": {**whole["adapted"], **changes}}
        return lambda: Result.from_dict(raw)

    wrong = [
        broken(shared=[99]),
        broken(shared=[]),
        broken(losses=[1]),
        broken(columns=0),
        broken(hidden={"north": 0}),
        broken(hidden={"north": -2, "south": 0}),
        broken(digests={}),
        broken(weights={}),
        broken(choices=[["many", 1]]),
        lambda: Result.from_dict({**whole, "adapted": None}),
        lambda: Result.from_dict({**whole, "rows": {}}),
        lambda: Result.from_dict({**whole, "answers": [{**whole["answers"][0], "windows": []}]}),
    ]
    for read in wrong:
        with pytest.raises(ValueError, match=r"adapted|windows|rows|choices"):
            read()


@quiet
@pytest.mark.parametrize("place", [-1, 1000])
def test_a_hidden_place_that_is_none_of_the_rows_is_refused(place):
    """Without a hidden row the sets would be those of a refuted variant."""
    result = calibrate(clinics(), adapt="prior", rng=0)
    hidden = {**result.adapted.hidden, "north": place}
    changed = structs.replace(result, adapted=structs.replace(result.adapted, hidden=hidden))
    with pytest.raises(ValueError, match=f"device north: the hidden row must be one of its .* rows, got place {place}"):
        changed.on("north")
    assert changed.on("south").predict(NEW).shape == result.on("south").predict(NEW).shape


@quiet
def test_devices_that_took_no_part_and_rows_without_a_device_are_refused():
    result = calibrate(clinics(), adapt="prior", rng=0)
    with pytest.raises(ValueError, match=r"device 'east' took no part.*include its rows in the next calibration"):
        result.on("east")
    with pytest.raises(ValueError, match="device 'east' took no part"):
        result.predict(NEW, device=["north", "south", "east", "north", "north"])
    with pytest.raises(ValueError, match="need the device of each row; give device="):
        result.predict(NEW)
    with pytest.raises(ValueError, match="one for each of 5 rows"):
        result.predict(NEW, device=["north"])
    assert np.array_equal(result.predict(NEW, device="north"), result.on("north").predict(NEW))
    assert result.predict(NEW[:0], device=[]).shape == (0, 4)


@quiet
@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda x, y: x, "must have a pair .outputs, labels.*add the labels"),
        (lambda x, y: (x, y[:-1]), "device north has 40 rows of outputs but 39 labels"),
        (lambda x, y: (x, [None, *y[1:]]), "device north: label 0 is missing"),
        (lambda x, y: (x, np.full(40, np.nan)), "device north: label 0 is missing"),
        (lambda x, y: (x, y + 3), "labels between 0 and 3"),
        (lambda x, y: (x, np.array(CLASSES)[y]), "labels are names, such as '[ab]', .* give classes="),
        (lambda x, y: (x[:, 0], y), "a row of probabilities for each example.* for regression use 'scale'"),
        (lambda x, y: (x * np.nan, y), "cannot use NaN"),
        (lambda x, y: (x / 2, y), "sum|add up"),
        (lambda x, y: (np.log(x), y), "probabilities between 0 and 1"),
        (lambda x, y: (np.full((40, 5), 0.2), y), "as many columns as on other devices"),
    ],
)
def test_rows_that_are_no_labelled_probabilities_are_refused(change, words):
    data = clinics()
    with pytest.raises(ValueError, match=words):
        calibrate({**data, "north": change(*data["north"])}, adapt="prior")


@quiet
def test_arguments_that_do_not_go_together_are_refused():
    data = clinics()
    frame = frame_of(data)
    with pytest.raises(ValueError, match="must have the column 'label'"):
        calibrate(frame.drop("label"), adapt="prior")
    with pytest.raises(ValueError, match="must have the column 'device' with the device of each row"):
        calibrate(frame.rename({"device": "hospital"}), adapt="prior")
    with pytest.raises(ValueError, match=r"adaptation 'scale' is for regression.* for classes use 'prior'"):
        calibrate(clinics(), adapt="scale")
    with pytest.raises(ValueError, match="device north: label 3 is missing"):
        calibrate(
            frame.with_columns(label=pl.when(pl.arange(0, 70) == 3).then(None).otherwise(pl.col("label"))),
            adapt="prior",
        )
    with pytest.raises(ValueError, match="score='aps' do not go together"):
        calibrate(data, adapt="prior", score="aps")
    with pytest.raises(ValueError, match="did you mean 'prior'"):
        calibrate(data, adapt="priors")
    with pytest.raises(TypeError, match="adapt must be a name"):
        calibrate(data, adapt=5)
    with pytest.raises(ValueError, match="from 2 on, or 'full', got 1"):
        adapt.Prior(window=1)
    result = calibrate(data, adapt="prior")
    for ask in (lambda: result.thresholds_for("north"), result.threshold_for):
        with pytest.raises(ValueError, match=r"use on\(device\).predict\(outputs\)"):
            ask()
    with pytest.raises(ValueError, match="4 columns, one for each class as in calibration, got 5"):
        result.on("north").predict(np.full((2, 5), 0.2))
    with pytest.raises(ValueError, match=r"say which alpha: 0\.1"):
        result.on("north").predict(NEW, alpha=0.2)
    with pytest.raises(ValueError, match="groups= is for thresholds by group"):
        result.on("north").predict(NEW, groups=["a"] * 5)
    with pytest.raises(ValueError, match=r"on\(\) is for adapted scores"):
        calibrate({"a": np.arange(30.0)}).on("a")


def test_a_class_that_a_device_never_saw_is_noted_once():
    result = calibrate(clinics(), adapt="prior", rng=0, classes=CLASSES)
    predictor = result.on("north")
    with pytest.warns(CalibrationNote, match=r"north has no calibration row of 2 of 4 classes \(c, d\)"):
        predictor.predict(NEW)
    predictor.predict(NEW)  # a note would be an error


def test_full_sets_come_with_no_note_of_unseen_classes():
    """With mixture "own" and few rows every class is in the sets."""
    data = {**clinics(), "tiny": clinic(np.random.default_rng(3), [0], 3)}
    with pytest.warns(TooFewScores, match="device tiny has 3"):
        result = calibrate(data, adapt="prior", mixture="own", rng=0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert result.on("tiny").predict(NEW).all()


def test_too_few_examples_for_alpha_are_noted():
    data = clinics()  # 70 examples
    with pytest.warns(TooFewScores, match="alpha=0.01 needs 100 examples in all but there are only 70: every"):
        result = calibrate(data, alpha=0.01, adapt="prior", rng=0, classes=CLASSES)
    with pytest.warns(CalibrationNote, match="no calibration row"):
        assert result.on("north").predict(NEW).all()
    with pytest.raises(TooFewScores):
        calibrate(data, alpha=0.01, adapt="prior", strict=True)
    enough = calibrate(data, alpha="1/70", adapt="prior", rng=0)  # no warning
    assert enough.certificate.required_rank == 69


@quiet
def test_update_keeps_the_adaptation(tmp_path):
    made = adapt.Prior(strength=(1, 4), window=20)
    result = calibrate(clinics(), alpha=0.2, adapt=made, classes=CLASSES)
    result.save(tmp_path / "result.json")
    for before in (result, Result.load(tmp_path / "result.json")):
        after = update(before, clinics(5), "cycle", rng=1)
        assert after.guarantee.adapt == made
        assert after.classes == CLASSES
        assert same_sets(after, calibrate(clinics(5), alpha=0.2, adapt=made, rng=1))
        assert after.adapted.digests != result.adapted.digests


@dataclass(frozen=True)
class OwnScore(Adaptation):
    """A score of a user's own: 1 - p, less what the device has had of the label."""

    weight: float = 0.1
    window: object = 16
    name = "own-score"
    summary = "1 - p with a bonus for frequent labels"

    def leave_one_out(self, bag, setting):
        rows = np.arange(len(bag))
        others = np.bincount(bag.labels, minlength=bag.outputs.shape[1])[bag.labels] - 1
        return 1 - bag.outputs[rows, bag.labels] - self.weight * others / max(len(bag) - 1, 1)


@quiet
def test_an_adaptation_of_ones_own_predicts_and_is_read_from_files_once_it_is_known(tmp_path, monkeypatch):
    data = clinics()
    result = calibrate(data, adapt=OwnScore(0.5), rng=0)
    result.save(tmp_path / "result.json")
    with pytest.raises(ValueError, match=r"unknown adaptation 'own-score'.*ADAPTATIONS\['own-score'\]"):
        Result.load(tmp_path / "result.json")
    monkeypatch.setitem(ADAPTATIONS, "own-score", OwnScore)
    loaded = Result.load(tmp_path / "result.json")
    assert loaded.guarantee.adapt == OwnScore(0.5)
    assert np.array_equal(loaded.on("north", data["north"]).predict(NEW), result.on("north").predict(NEW))


@dataclass(frozen=True)
class First(Adaptation):
    """The first output, or what a mistake makes of it."""

    wrong: str = ""
    window: object = 16
    name: ClassVar[str] = "first"

    def leave_one_out(self, bag, setting):
        scores = bag.outputs[:, 0]
        if self.wrong == "candidates":  # the class "d" has no calibration row in the north
            return np.where((bag.labels == 3) & (bag.labels < 2).any(), np.nan, scores)
        return {"": scores, "shape": bag.outputs, "short": scores[:-1], "nan": scores * np.nan}[self.wrong]


@pytest.mark.parametrize(
    ("wrong", "words"), [("shape", r"shape \(40, 4\)"), ("short", r"shape \(39,\)"), ("nan", "NaN")]
)
def test_scores_that_are_not_one_number_for_each_example_are_refused(wrong, words):
    with pytest.raises(ValueError, match=f"device north: leave_one_out of adaptation 'first' must .* got {words}"):
        calibrate(clinics(), adapt=First(wrong))


@quiet
def test_a_candidate_whose_score_is_no_number_is_kept():
    assert calibrate(clinics(), adapt=First("candidates"), rng=0).on("north").predict(NEW)[:, 3].all()
    assert not calibrate(clinics(), alpha=0.9, adapt=First(), rng=0).on("north").predict(NEW).all()
