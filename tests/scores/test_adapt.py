"""Adaptations: what they compute at once equals refitting for every candidate; order, ties, edges, wrong options."""

import time
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from conformesh import adapt, calibrate
from conformesh.scores.adapt import ADAPTATIONS, Adaptation, as_adaptation, get_adaptation
from conformesh.scores.adapt import prior as priors
from conformesh.scores.adapt.base import LARGEST_LOSS, Bag, as_values
from conformesh.scores.adapt.even import Even

LEVEL = 0.1
CLASSIFIERS = [
    adapt.Prior(),
    adapt.Prior(strength=(0.01, 5, np.inf), temperature=(0.5, 2)),
    adapt.Prior(prior=[3, 1, 1]),
    adapt.Even(base=adapt.Prior(strength=(1, 20), temperature=1)),
    adapt.Even(base=adapt.Prior(strength=1, temperature=1), strength=1, training=np.linspace(0, 1, 300) ** 2),
]
REGRESSORS = [
    adapt.Scale(usual=1.5),
    adapt.Scale(bias=(0, 3, np.inf), scale=(0, 2), usual=1.0),
    adapt.Scale(),
    adapt.Even(base=adapt.Scale(bias=2, scale=(2, np.inf), usual=1.0)),
]


def bag_of(made, rng, rows, columns=3):
    """Return random rows, with ties."""
    if made.task == "classification":
        table = rng.integers(1, 5, (rows, columns)).astype(float)
        return Bag(table / table.sum(axis=1, keepdims=True), rng.integers(0, columns, rows))
    return Bag(np.zeros(rows), np.round(rng.normal(rng.normal(), 2, rows), int(rng.integers(0, 3))))


def counts_of(made, bag):
    return made.summary_counts(bag)


def settings_of(made, bag, columns=3):
    return made.settings(made.summary_counts(bag), columns)


# --- fast and slow ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("made", CLASSIFIERS, ids=str)
@pytest.mark.parametrize("rows", [0, 1, 2, 9])
def test_labels_are_scored_as_by_refitting_for_each_candidate(made, rows):
    """`Adaptation` itself refits: its methods are the slow version of those that a subclass has."""
    rng = np.random.default_rng(rows)
    rest, new = bag_of(made, rng, rows), bag_of(made, rng, 4).outputs
    for setting in settings_of(made, rest):
        fast = made.candidate_scores(rest, setting, 3, new)
        assert np.array_equal(fast, Adaptation.candidate_scores(made, rest, setting, 3, new))
        scores, slow = made.other_scores(rest, setting, 3, new), Adaptation.other_scores(made, rest, setting, 3, new)
        losses = made.candidate_losses(rest, setting, 3, LEVEL, new)
        assert np.array_equal(losses, Adaptation.candidate_losses(made, rest, setting, 3, LEVEL, new))
        lost = Adaptation.other_losses(made, rest, setting, 3, LEVEL, new)
        assert np.array_equal(np.broadcast_to(made.other_losses(rest, setting, 3, LEVEL, new), lost.shape), lost)
        own = np.broadcast_to(scores, slow.shape)
        if isinstance(made, Even):  # whose ranks of others matter only beside the candidate
            assert np.array_equal(own < fast[..., None], slow < fast[..., None])
        else:
            assert np.array_equal(own, slow)


@pytest.mark.parametrize("columns", [1, 2, 3, 7, 64, 130])
@pytest.mark.parametrize("order", ["C", "F"])
def test_probabilities_are_the_same_to_the_last_bit_however_they_are_computed(columns, order, monkeypatch):
    """A score in calibration is that of the same example as a candidate, and beside one: before any rounding."""
    monkeypatch.setattr(priors, "_as_scores", lambda q: q)
    monkeypatch.setattr(priors, "_CELLS_AT_ONCE", 5 * columns)
    rng = np.random.default_rng(columns)
    labels = rng.choice(columns, 12, p=rng.dirichlet(np.ones(columns)))
    whole = Bag(np.array(rng.dirichlet(np.full(columns, 0.3), 12), order=order), labels)
    for setting in adapt.Prior(strength=(0.01, 3, np.inf), temperature=(0.3, 1, 1.5)).settings(np.zeros(0), columns):
        made = adapt.Prior(prior=rng.dirichlet(np.full(columns, 5.0)) if columns > 1 else None)
        scores, losses = made.leave_one_out(whole, setting), made.losses(whole, setting, LEVEL)
        for i, label in enumerate(labels.tolist()):
            rest, new = whole.without(i), np.ascontiguousarray(whole.outputs[i : i + 1])
            assert made.candidate_scores(rest, setting, columns, new)[0, label] == scores[i]
            assert made.candidate_scores(rest, setting, columns, whole.outputs)[i, label] == scores[i]
            assert np.array_equal(made.other_scores(rest, setting, columns, new)[0, label], np.delete(scores, i))
            assert made.other_losses(rest, setting, columns, LEVEL, new)[0, label] == np.delete(losses, i).sum()


def test_a_small_temperature_leaves_probabilities():
    """Powers of all probabilities of a row would be 0."""
    made, bag = adapt.Prior(strength=1, temperature=1e-4), Bag(np.full((4, 3), 1 / 3), np.array([0, 1, 2, 0]))
    assert np.isfinite(made.leave_one_out(bag, (1.0, 1e-4))).all()


@pytest.mark.parametrize("made", REGRESSORS, ids=str)
@pytest.mark.parametrize("rows", [0, 1, 2, 9])
def test_residuals_are_scored_as_by_refitting_for_each_candidate(made, rows):
    rng = np.random.default_rng(rows)
    rest, new = bag_of(made, rng, rows), np.array([-7.0, -1.0, 0.0, 0.31, 2.0, 500.0])
    for setting in settings_of(made, rest):
        scores = made.candidate_scores(rest, setting, 1, new)[0] if not isinstance(made, Even) else None
        losses = made.candidate_losses(rest, setting, 1, LEVEL, new)[0]
        others, sums = made.other_scores(rest, setting, 1, new), made.other_losses(rest, setting, 1, LEVEL, new)
        for i, residual in enumerate(new.tolist()):
            whole = Bag(np.zeros(rows + 1), np.append(rest.labels, residual))
            slow = made.leave_one_out(whole, setting)
            lost = made.losses(whole, setting, LEVEL)
            assert losses[i] == lost[-1]
            assert sums[0, i] == lost[:-1].sum()
            if scores is None:
                assert np.array_equal(others[0, i] < slow[-1], slow[:-1] < slow[-1])
            else:
                assert scores[i] == slow[-1]
                assert np.array_equal(others[0, i], slow[:-1])


@pytest.mark.parametrize("made", REGRESSORS[:3], ids=str)
def test_nothing_but_its_own_distance_changes_while_a_candidate_stays_in_a_piece(made):
    rng = np.random.default_rng(3)
    rest = bag_of(made, rng, 7)
    choices = made.reachable_settings(made.summary_counts(rest), 1)
    ends = made.pieces(choices)
    assert ends[0] == -np.inf
    assert ends[-1] == np.inf
    for place in rng.integers(1, len(ends) - 2, 20):
        low, high = ends[place], ends[place + 1]
        inside = low + (high - low) * np.array([0.001, 0.5, 0.999])
        for setting in choices[:3]:
            others, sums = (
                made.other_scores(rest, setting, 1, inside),
                made.other_losses(rest, setting, 1, LEVEL, inside),
            )
            assert (others == others[:, :1]).all()
            assert (sums == sums[:, :1]).all()
            assert len({*made.candidate_losses(rest, setting, 1, LEVEL, inside)[0].tolist()}) == 1
        assert len({tuple(made.summary_counts(Bag(np.zeros(1), np.array([e])))) for e in inside.tolist()}) == 1


@pytest.mark.parametrize("made", REGRESSORS, ids=str)
def test_limits_of_residuals_enclose_all_with_at_most_this_score(made):
    rng = np.random.default_rng(4)
    rest = bag_of(made, rng, 8)
    for setting in settings_of(made, rest)[:4]:
        new = np.sort(np.round(rng.normal(0, 4, 300), 3))
        whole = [made.leave_one_out(Bag(np.zeros(9), np.append(rest.labels, e)), setting)[-1] for e in new.tolist()]
        for limit in (-1.0, 0.0, *np.quantile(whole, [0.1, 0.5, 0.9]), np.inf):
            low, high = made.residual_limits(rest, setting, new, np.full(len(new), limit))
            held = np.array(whole) <= limit
            assert ((low <= new) & (new <= high))[held].all()
            if not isinstance(made, Even):  # whose scores are not monotone in the distance at once
                outside = ~held & (np.abs(np.array(whole) - limit) > 1e-5)
                assert not ((low <= new) & (new <= high))[outside].any()


@pytest.mark.parametrize("made", [*CLASSIFIERS, *REGRESSORS], ids=str)
def test_one_replaced_example_leads_to_a_reachable_setting(made):
    """Settings depend on counts over all devices: whichever example is replaced, the settings were foreseen.

    Not where the usual scale jumps over a wide gap: then the new example is between, and is kept.
    """
    rng = np.random.default_rng(5)
    for _ in range(30):
        bag = bag_of(made, rng, int(rng.integers(3, 9)))
        foreseen = {*made.reachable_settings(made.summary_counts(bag), 3)}
        assert {*settings_of(made, bag)} <= foreseen
        labels, place = bag.labels.copy(), int(rng.integers(len(bag)))
        labels[place] = (
            rng.choice([0, 1, 2]) if made.task == "classification" else rng.normal() * 10.0 ** rng.integers(3)
        )
        found = settings_of(made, Bag(bag.outputs, labels))
        if not {*found} <= foreseen:
            octave = made.summary_counts(Bag(np.zeros(1), labels[place : place + 1])).argmax()
            assert 2.0 ** ((octave - 79) / 2) == found[0][2]  # that of the new example itself


def test_a_residual_far_away_leads_to_a_scale_that_was_foreseen():
    """Two devices whose residuals are octaves apart: one example less of the smaller ones moves the usual scale far."""
    made = adapt.Scale()
    bag = Bag(np.zeros(6), np.array([1.0, 1.0, 1.0, 300.0, 300.0, 300.0]))
    moved = Bag(bag.outputs, np.array([1.0, 1.0, 1e6, 300.0, 300.0, 300.0]))
    assert {*settings_of(made, moved)} <= {*made.reachable_settings(made.summary_counts(bag), 1)}
    assert {*settings_of(made, moved)} != {*settings_of(made, bag)}


# --- order ------------------------------------------------------------------------------------------------------------


@given(st.integers(0, 10**6), st.integers(1, 12), st.sampled_from([*CLASSIFIERS, *REGRESSORS]))
@settings(max_examples=150, deadline=None)
def test_scores_and_losses_do_not_depend_on_order(seed, rows, made):
    rng = np.random.default_rng(seed)
    bag, order = bag_of(made, rng, rows), rng.permutation(rows)
    turned = bag.take(order)
    assert np.array_equal(counts_of(made, bag), counts_of(made, turned))
    for setting in settings_of(made, bag)[:4]:
        assert np.array_equal(made.leave_one_out(bag, setting)[order], made.leave_one_out(turned, setting))
        assert np.array_equal(made.losses(bag, setting, LEVEL)[order], made.losses(turned, setting, LEVEL))


@given(st.integers(0, 10**6), st.sampled_from([*CLASSIFIERS, *REGRESSORS]))
@settings(max_examples=60, deadline=None)
def test_scores_and_losses_of_an_example_do_not_change_with_itself_in_the_counts(seed, made):
    """An example scores in calibration as it does where it is new: nothing of it is counted for its own score."""
    rng = np.random.default_rng(seed)
    bag = bag_of(made, rng, 5)
    rest = bag.without(4)
    setting = settings_of(made, bag)[0]
    label = int(bag.labels[4]) if made.task == "classification" else 0
    new = bag.outputs[4:] if made.task == "classification" else bag.labels[4:]
    losses = made.candidate_losses(rest, setting, 3, LEVEL, new)
    assert made.losses(bag, setting, LEVEL)[4] == losses[0, label]
    if not isinstance(made, Even) or made.task == "classification":
        assert made.leave_one_out(bag, setting)[4] == made.candidate_scores(rest, setting, 3, new)[0, label]


@dataclass(frozen=True)
class Distance(Adaptation):
    """How far away the nearest other example with this label is: that of the others depends on the new outputs."""

    window: object = "full"
    name: ClassVar[str] = "distance"

    def leave_one_out(self, bag, setting):
        apart = np.abs(bag.outputs[:, None] - bag.outputs[None]).sum(axis=2)
        usable = (bag.labels[:, None] == bag.labels[None]) & ~np.eye(len(bag), dtype=bool)
        return np.where(usable, apart, 9.0).min(axis=1, initial=9.0)


@pytest.mark.filterwarnings("ignore::conformesh.CalibrationNote")
@pytest.mark.parametrize(
    "made", [Distance(), adapt.Even(base=Distance(), strength=1, window="full")], ids=["base", "even"]
)
def test_sets_do_not_depend_on_what_was_predicted_before(made):
    for seed in range(20):
        rng = np.random.default_rng([9, seed])
        data = [(rng.random((6, 2)), rng.integers(0, 2, 6)) for _ in range(2)]
        result, new = calibrate(data, "cycle", 0.5, adapt=made, rng=0), rng.random((10, 2))
        predictor, together = result.on(0), result.on(0).predict(new)
        assert [predictor.predict(row[None])[0].tolist() for row in new] == together.tolist()


# --- edges ------------------------------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore::conformesh.CalibrationNote", "ignore::conformesh.TooFewScores")
@pytest.mark.parametrize("made", [adapt.Prior(), adapt.Even()], ids=str)
def test_devices_with_no_or_one_row_have_full_sets_only_where_they_must(made):
    rng = np.random.default_rng(6)
    data = {
        "none": (np.zeros((0, 3)), []),
        "one": (rng.dirichlet([1, 1, 1], 1), [1]),
        "many": (rng.dirichlet([1, 1, 1], 60), rng.integers(0, 3, 60)),
    }
    new = rng.dirichlet([0.2] * 3, 20)
    result = calibrate(data, adapt=made, rng=0)
    assert result.on("none").predict(new).all()
    assert not result.on("one").predict(new).all()
    assert not result.on("many").predict(new).all()
    own = calibrate(data, adapt=made, mixture="own", rng=0)
    assert own.on("one").predict(new).all()  # one example cannot cover nine of ten
    assert not own.on("many").predict(new).all()
    equal = calibrate(data, adapt=made, mixture="equal", rng=0)  # one device of three has no row, and full sets
    assert not equal.on("many").predict(new).all()


@pytest.mark.filterwarnings("ignore::conformesh.CalibrationNote", "ignore::conformesh.TooFewScores")
def test_identical_residuals_have_short_intervals_that_hold_them():
    data = {name: (np.zeros(40), np.full(40, bias)) for name, bias in (("a", 3.0), ("b", -1.0))}
    for made in (adapt.Scale(), adapt.Scale(usual=1.0), adapt.Even(base=adapt.Scale())):
        result = calibrate(data, adapt=made, rng=0)
        for name, bias in (("a", 3.0), ("b", -1.0)):
            low, high = result.on(name).predict(np.array([10.0]))[0]
            assert low <= 10 + bias <= high
            assert high - low < 1.5
    zero = calibrate({"a": (np.ones(40), np.ones(40))}, adapt="scale", rng=0)
    low, high = zero.on("a").predict(np.ones(1))[0]
    assert low <= 1 <= high
    assert high - low < 1e-3


@pytest.mark.filterwarnings("ignore::conformesh.CalibrationNote")
def test_ties_keep_all_that_score_alike():
    """Outputs that say nothing: labels with the same count on a device have the same score, and are kept together."""
    outputs, labels = np.full((30, 3), 1 / 3), np.repeat([0, 1, 2], 10)
    result = calibrate({"a": (outputs, labels), "b": (outputs, labels)}, adapt=adapt.Prior(1, 1), rng=0)
    assert result.on("a").predict(outputs[:1]).sum() == 3


def test_outputs_that_are_no_numbers_are_refused():
    for made in (adapt.Prior(), adapt.Even(base="prior")):
        for wrong, words in (
            ([[np.nan, 1.0]], "NaN"),
            ([[np.inf, 0.0]], "probabilities between 0 and 1"),
            ([[0.6, 0.6]], r"add up to 1|sum"),
            ([[-0.1, 1.1]], "probabilities between 0 and 1"),
        ):
            with pytest.raises(ValueError, match=words):
                made.read_new(np.array(wrong))
    for wrong in (np.nan, np.inf):
        with pytest.raises(ValueError, match="finite"):
            adapt.Scale().read_new(np.array([wrong]))
        with pytest.raises(ValueError, match="finite"):
            adapt.Scale().read(np.zeros(1), np.array([wrong]), "device a")
    with pytest.raises(ValueError, match="prior has 3 classes, but outputs have 2 columns"):
        adapt.Prior(prior=[1, 1, 1]).read_new(np.array([[0.5, 0.5]]))


def test_one_class_is_always_in_the_set():
    result = calibrate({"a": (np.ones((20, 1)), np.zeros(20, int))}, adapt="prior", rng=0)
    assert result.on("a").predict(np.ones((3, 1))).all()


def test_residuals_far_apart_are_finite():
    bag = Bag(np.zeros(4), np.array([1e300, -1e300, 1e-300, 0.0]))
    for made in (adapt.Scale(usual=1.0), adapt.Scale()):
        for setting in settings_of(made, bag):
            scores, losses = made.leave_one_out(bag, setting), made.losses(bag, setting, LEVEL)
            assert not np.isnan(scores).any()
            assert (losses >= 0).all()
            assert (losses <= LARGEST_LOSS).all()


# --- options ----------------------------------------------------------------------------------------------------------


def test_options_make_the_same_adaptation():
    for made in (*CLASSIFIERS, *REGRESSORS):
        assert get_adaptation(made.name, **made.options()) == made
    assert [*ADAPTATIONS] == ["prior", "scale", "even"]
    assert as_adaptation("prior") == as_adaptation(adapt.Prior) == as_adaptation(adapt.Prior()) == adapt.Prior()
    assert as_adaptation(None) is None
    assert as_values("auto", "x", (1.0,), 0.0) == (1.0,)
    assert adapt.Prior(strength=[1, 4]).strength == (1, 4)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: adapt.Prior(strength=0), "strength must be 'auto', a number above 0"),
        (lambda: adapt.Prior(temperature="hot"), "temperature must be"),
        (lambda: adapt.Prior(prior=[1, 0]), "add 1 to counts that are 0"),
        (lambda: adapt.Prior(window="all"), "window must be"),
        (lambda: adapt.Prior(window=True), "window must be"),
        (lambda: adapt.Scale(bias=-2), "bias must be"),
        (lambda: adapt.Scale(usual=0), "usual must be a number above 0"),
        (lambda: adapt.Scale(usual=[np.nan]), "usual must be"),
        (lambda: adapt.Even(base="lac"), "base must be 'prior', 'scale' or 'auto'"),
        (lambda: adapt.Even(base=adapt.Even()), "base must not be ranks itself"),
        (lambda: adapt.Even(strength=0), "strength must be above 0"),
        (lambda: adapt.Even(training=[]), "at least one"),
    ],
)
def test_options_that_mean_nothing_are_refused(make, words):
    with pytest.raises(ValueError, match=words):
        make()


def test_the_order_of_a_prior_is_that_of_the_columns():
    with pytest.raises(TypeError, match=r"in the order of the columns of outputs, got a dict; give \[prior\[name\]"):
        adapt.Prior(prior={"cat": 0.2, "dog": 0.8})


def test_a_sequence_adapts_no_bias_and_says_what_drift_does():
    made = adapt.Scale(sequence=True)
    assert {setting[0] for setting in made.settings(np.eye(1, 160, 80, dtype=np.int64)[0], 1)} == {np.inf}
    with pytest.warns(UserWarning, match="with drift they cover less"):
        made.read(np.zeros(3), np.zeros(3), "device a")


# --- speed ------------------------------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore::conformesh.CalibrationNote")
@pytest.mark.parametrize("made", [adapt.Prior(), adapt.Prior(strength=1, temperature=1), adapt.Even()], ids=str)
def test_ten_thousand_rows_of_a_hundred_classes_take_less_than_a_second(made):
    """Processor time of a device with 500 rows: .11 s for `Prior()`, .03 s for fixed strengths, .21 s for `Even()`."""
    rng = np.random.default_rng(7)
    data = [(rng.dirichlet(np.full(100, 0.1), 500), rng.integers(0, 100, 500)) for _ in range(4)]
    new = rng.dirichlet(np.full(100, 0.1), 10_000)
    result = calibrate(data, "cycle", adapt=made, rng=0)
    started = time.process_time()
    assert result.on(0).predict(new).shape == (10_000, 100)
    assert time.process_time() - started < 1


@pytest.mark.filterwarnings("ignore::conformesh.CalibrationNote")
def test_a_thousand_classes_take_seconds_on_a_device_with_many_rows():
    """Processor time with 500 rows: .3 s; where sums over classes are repeated for every class, a minute."""
    rng = np.random.default_rng(8)
    data = [(rng.dirichlet(np.full(1000, 0.1), 500), rng.integers(0, 1000, 500)) for _ in range(2)]
    result = calibrate(data, adapt="prior", rng=0)
    started = time.process_time()
    assert result.on(0).predict(data[1][0]).shape == (500, 1000)
    assert time.process_time() - started < 10
