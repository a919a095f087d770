"""Result: views, the one answer, thresholds of rows, sets, evaluations, words, and how it starts again."""

from fractions import Fraction
from itertools import product
from types import SimpleNamespace

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from conformesh import Centres, Network, api, scores, update
from conformesh.common.notes import CalibrationNote
from conformesh.files.memberships import EVERYONE
from conformesh.guarantee import Groups, Guarantee, LossBound, Mixture, Sides, Weighting
from conformesh.kernels.weighted_scores import WeightedScores
from conformesh.pipeline.assembly import add_answers_to_result
from conformesh.pipeline.solver import solve_draws
from conformesh.protocols.block import Answers
from conformesh.results.certificate import Certificate, Cost, SidesCertificate
from conformesh.results.evaluation import Evaluation, RiskEvaluation
from conformesh.results.lookup import part_axes
from conformesh.results.result import Answer, Result, UnknownPart
from conformesh.scores import losses
from conformesh.scores.centres import centre_name

IDS = ("a", "b", "d2", "d10")
RNG = np.random.default_rng(0)


def made(alphas=(0.1,), *, thresholds=None, ids=IDS, score=None, classes=None, examples=100, **parts):
    """A result with random thresholds of every part, level and device, or with what `thresholds(part, alpha)` says."""
    levels = tuple(Fraction(str(alpha)) for alpha in alphas)
    guarantee = Guarantee(alphas=levels, **parts)
    names = [axis.names for axis in part_axes(guarantee)]
    rng = np.random.default_rng(1)
    answers = tuple(
        Answer(
            part,
            alpha,
            rng.random(len(ids)) if thresholds is None else np.full(len(ids), float(thresholds(part, alpha))),
            Certificate("counted", 90, 95, mixture="sizes", rule="swap"),
            examples=examples,
        )
        for part in product(*names)
        for alpha in levels
    )
    cost = Cost(3, np.full(len(ids), 8.0), np.full(len(ids), 64.0))
    return Result(
        guarantee=guarantee,
        answers=answers,
        method="e-dcp",
        network="cycle",
        device_ids=ids,
        cost=cost,
        score=score,
        classes=classes,
    )


GROUPS = Groups(("F", "M"), column="sex")
CENTRES = Centres.at([0.0, 1.0], 0.5)
WEIGHTS = Weighting(4.0, test_weights=(1.0, 4.0))


# --- views ------------------------------------------------------------------------------------------------------------


def test_a_result_of_one_answer_has_its_threshold():
    result = made()
    assert (len(result), result.parts, result.alphas, result.devices) == (1, ((),), (0.1,), 4)
    assert result.threshold == result.thresholds.max() == result.answers[0].threshold
    assert result.threshold_of("d2") == result.thresholds[2]
    assert (result.alpha, result.level, result.examples) == (0.1, 0.1, 100)
    assert result.certificate.kind == "counted"
    assert (result.estimate, result.bracket) == (None, None)
    with pytest.raises(ValueError, match="unknown device 'mars'; known: a, b, d2, d10"):
        result.threshold_of("mars")
    with pytest.raises(UnknownPart, match=r"no parts to choose from, got 'F'; levels are chosen with at\(alpha"):
        result["F"]


def test_views_have_fewer_answers():
    result = made((0.1, 0.2), groups=GROUPS, sides=Sides(), centres=CENTRES, weighting=WEIGHTS)
    assert len(result) == 2 * 2 * 2 * 2 * 2
    assert [len(one) for one in result] == [1] * 32
    view = result["F", "lower"]
    assert {part[:2] for part in view.parts} == {("F", "lower")}
    assert view.groups == ("F",)
    assert len(view) == 8
    one = view[centre_name(1), "weight at most 1.0", 0.2]
    assert one.threshold == next(
        a.threshold
        for a in result.answers
        if a.part == ("F", "lower", "centre 1", "weight at most 1.0") and a.alpha == Fraction(1, 5)
    )
    assert result["sex=F", "upper", 1, "weight at most 4.0"].at("0.1").parts == (
        ("F", "upper", "centre 1", "weight at most 4.0"),
    )
    assert ("F" in result, "sex=M" in result, "X" in result, 0.1 in result, 0.3 in result) == (
        True,
        True,
        False,
        True,
        False,
    )
    assert one.device_ids is result.device_ids
    assert [each.threshold for each in view["centre 0", "weight at most 1.0"]] == [
        view.at(alpha)["centre 0", "weight at most 1.0"].threshold for alpha in (0.1, 0.2)
    ]


def test_a_choice_that_is_missing_is_named():
    result = made((0.1, 0.2), groups=GROUPS)
    for name in ("threshold", "thresholds", "certificate", "estimate", "bracket", "examples"):
        with pytest.raises(ValueError, match=r"has 4 thresholds; choose with at\(alpha.* 0\.1, 0\.2 and .* part F, M"):
            getattr(result, name)
    with pytest.raises(ValueError, match="choose with"):
        result.alpha  # noqa: B018
    with pytest.raises(ValueError, match=r"say which alpha: 0\.1, 0\.2, got None"):
        result.at()
    with pytest.raises(ValueError, match=r"say which alpha: 0\.1, 0\.2, got 0\.3"):
        result.at(0.3)
    with pytest.raises(KeyError, match="unknown part 'G'"):
        result["G"]
    with pytest.raises(ValueError, match="unknown part 'sex=G'"):
        result["sex=G"]
    assert result["F"].at(0.2).alpha == 0.2


def test_groups_named_by_numbers_are_chosen_by_numbers():
    result = made(groups=Groups(("0", "1")), thresholds=lambda part, alpha: int(part[0]))
    assert (result[0].threshold, result[1].threshold, result["1"].threshold) == (0, 1, 1)


def test_a_group_of_combinations_has_no_threshold_of_its_own():
    atoms = {"n": ("n",), "n & y": ("n", "y"), "only everyone": ()}
    result = made(groups=Groups(("n", "y", EVERYONE), "atoms", atoms))
    assert result["n & y"].parts == (("n & y",),)
    with pytest.raises(UnknownPart, match=r"a threshold for each combination.*certificate_of\('y'\)"):
        result["y"]
    union = result.certificate_of("n")
    assert (union.required_rank, union.counted_rank, union.weight) == (None, 190, None)
    assert result.certificate_of().counted_rank == 285
    with pytest.raises(ValueError, match="no threshold for group 'x'; known: n, y, everyone"):
        result.certificate_of("x")


def test_two_sides_have_one_certificate():
    result = made(sides=Sides(Fraction(1, 4)))
    assert isinstance(result.certificate, SidesCertificate)
    assert result.certificate.alphas == (0.025, 0.075)
    assert "missed at most 0.1, by the union bound" in dict(result.certificate.facts()).values()
    assert result["lower"].certificate == result.answers[0].certificate
    assert result.examples == 100
    with pytest.raises(ValueError, match="part lower, upper"):
        result.threshold  # noqa: B018
    grouped = made(sides=Sides(), groups=GROUPS)
    assert isinstance(grouped["F"].certificate, SidesCertificate)
    assert isinstance(grouped.certificate_of("M"), SidesCertificate)


# --- thresholds of rows -----------------------------------------------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_every_row_has_the_threshold_of_its_own_part(data):
    """All combinations of parts, against a loop over rows that looks every answer up by its name."""
    parts = {}
    if data.draw(st.booleans(), "groups"):
        parts["groups"] = GROUPS
    if data.draw(st.booleans(), "sides"):
        parts["sides"] = Sides()
    if data.draw(st.booleans(), "centres"):
        parts["centres"] = CENTRES
    if data.draw(st.booleans(), "weights"):
        parts["weighting"] = WEIGHTS
    rows, rng = data.draw(st.integers(1, 6)), np.random.default_rng(data.draw(st.integers(0, 99)))
    result = made((0.1, 0.2), **parts)
    chosen, inputs, weight = rng.choice(["F", "M"], rows), rng.random(rows), rng.random(rows) * 4
    device = data.draw(st.sampled_from([None, "b", rng.choice(IDS, rows)]))
    more = {}
    more |= {"groups": chosen} if "groups" in parts else {}
    more |= {"inputs": inputs, "rng": 5} if "centres" in parts else {}
    more |= {"weight": weight} if "weighting" in parts else {}
    found = result.thresholds_for(device, alpha=0.2, **more)
    drawn = CENTRES.draw(inputs, rng=5)
    table = {(answer.part, answer.alpha): answer.thresholds for answer in result.answers}
    expected = []
    for i in range(rows):
        before = (chosen[i],) if "groups" in parts else ()
        after = (centre_name(drawn[i]),) if "centres" in parts else ()
        after += (f"weight at most {1.0 if weight[i] <= 1 else 4.0}",) if "weighting" in parts else ()
        each = []
        for side in ("lower", "upper") if "sides" in parts else (None,):
            own = table[(*before, *([] if side is None else [side]), *after), Fraction(1, 5)]
            mine = device if device is None or isinstance(device, str) else device[i]
            each.append(own.max() if mine is None else own[IDS.index(mine)])
        expected.append(each if "sides" in parts else each[0])
    np.testing.assert_array_equal(np.broadcast_to(found, np.shape(expected)), expected)


def test_thresholds_of_a_million_rows_need_no_loop():
    result = made(groups=Groups(tuple(map(str, range(100)))), ids=tuple(map(str, range(1000))))
    rows = 10**6
    groups, device = RNG.integers(0, 100, rows), RNG.integers(0, 1000, rows)
    found = result.thresholds_for(device, groups=groups)
    table = np.stack([answer.thresholds for answer in result.answers])
    np.testing.assert_array_equal(found, table[groups, device])


def test_labels_have_thresholds_of_their_own():
    result = made(groups=Groups(("0", "2")), thresholds=lambda part, alpha: int(part[0]) / 10, score=scores.LAC())
    p = np.array([[0.95, 0.03, 0.02], [0.5, 0.1, 0.4]])
    np.testing.assert_array_equal(result.thresholds_for(labels=range(3)), [0.0, np.inf, 0.2])
    np.testing.assert_array_equal(result.predict(p), [[False, True, False], [False, True, False]])
    np.testing.assert_array_equal(result.predict(p, labels=("2", "1", "0"))[:, 0], [True, False])
    shifted = made(weighting=Weighting(2.0, class_weights={"0": 1.0, "1": 2.0, "2": 1.0}), score=scores.LAC())
    np.testing.assert_array_equal(
        shifted.predict(p), (1 - p) <= np.array([answer.threshold for answer in shifted.answers])
    )


def test_groups_as_labels_and_label_shift_go_together():
    names = {"0": 1.0, "1": 2.0}
    result = made(groups=Groups(("0", "1")), weighting=Weighting(2.0, class_weights=names), score=scores.LAC())
    table = np.array([answer.threshold for answer in result.answers]).reshape(2, 2)
    np.testing.assert_array_equal(result.thresholds_for(labels=("0", "1")), np.diag(table))


@pytest.mark.parametrize(
    ("parts", "rows", "words"),
    [
        ({"groups": GROUPS}, {}, "groups named by label, 0 to 2, got 'F'; or pass groups="),
        ({"groups": GROUPS}, {"groups": ["F", "X"]}, "no threshold for group 'X'; known: F, M"),
        ({"groups": GROUPS}, {"groups": [["F", "M"], ["F"]]}, r"one of the groups F, M, got \['F', 'M'\]"),
        ({"groups": GROUPS}, {"groups": ["F"]}, "groups must be one for each of 2 rows, got 1"),
        ({"groups": Groups(("F", EVERYONE), "max", {"F": ("F",)})}, {}, "predict needs groups="),
        ({"weighting": WEIGHTS}, {}, "predict needs weight=, one per row"),
        ({"weighting": WEIGHTS}, {"weight": [1.0, 4.5]}, "weight: row 1 must be from 0 to weight_bound 4, got 4.5"),
        ({"weighting": WEIGHTS}, {"weight": [1.0, np.nan]}, "weight: row 1 must be"),
        ({"weighting": WEIGHTS}, {"weight": [1.0]}, r"weight must be one for each of 2 rows, got shape \(1,\)"),
        ({"centres": CENTRES}, {}, "predict needs inputs="),
        ({"centres": CENTRES}, {"inputs": [0.5]}, "inputs must be one for each of 2 rows, got 1"),
        ({}, {"groups": ["F", "M"]}, r"groups= is for thresholds by group, which calibrate\(groups="),
        ({}, {"weight": 1.0}, "weight= is for thresholds by test weight"),
        ({}, {"inputs": [0.1, 0.2]}, "inputs= is for thresholds by centre"),
        ({}, {"device": ["a", "mars"]}, "unknown device 'mars' among the rows' devices"),
        ({}, {"device": "mars"}, "unknown device 'mars'"),
        ({}, {"device": ["a"]}, "device must be one for each of 2 rows, got 1"),
        ({}, {"device": [["a"], ["b"]]}, r"device must be one name, or one for each row, got shape \(2, 1\)"),
    ],
)
def test_what_rows_lack_is_named(parts, rows, words):
    result = made(score=scores.LAC(), **parts)
    with pytest.raises(ValueError, match=words):
        result.predict(np.full((2, 3), 1 / 3), **rows)


def test_a_view_of_a_part_needs_nothing_of_the_rows():
    result = made(groups=GROUPS, centres=CENTRES, weighting=WEIGHTS, score=scores.LAC())
    one = result["F", 1, "weight at most 1.0"]
    p = RNG.dirichlet(np.ones(3), 20)
    np.testing.assert_array_equal(one.predict(p), scores.LAC().sets(p, one.threshold))
    lonely = made(groups=Groups(("F",)), score=scores.LAC())  # one group is still a group
    with pytest.raises(ValueError, match="groups named by label"):
        lonely.predict(p)
    np.testing.assert_array_equal(lonely["F"].predict(p), scores.LAC().sets(p, lonely["F"].threshold))


def test_the_threshold_of_a_point():
    result = made((0.1, 0.2), groups=GROUPS)
    assert result.threshold_for(["F"], 0.2) == result["F", 0.2].threshold
    assert result.threshold_for(["F"], 0.2, device="b") == result["F", 0.2].threshold_of("b")
    assert made().threshold_for() == made().threshold
    with pytest.raises(ValueError, match="one of the groups"):
        result.threshold_for(alpha=0.1)
    with pytest.raises(ValueError, match=r"choose result\['lower'\]"):
        made(sides=Sides()).threshold_for()


# --- sets, intervals, evaluations -------------------------------------------------------------------------------------


def test_names_instead_of_a_mask():
    p = np.array([[0.8, 0.15, 0.05], [0.1, 0.45, 0.45]])
    result = made(thresholds=lambda *_: 0.6, score=scores.LAC(), classes=("ant", "bee", "cat"))
    assert result.predict(p, as_names=True) == [("ant",), ("bee", "cat")]
    plain = made(thresholds=lambda *_: 0.6, score=scores.LAC())
    with pytest.raises(ValueError, match="as_names=True is for label sets whose classes are known"):
        plain.predict(p, as_names=True)
    frame = pl.DataFrame(p, schema=["x", "y", "z"])
    assert plain.predict(frame, as_names=True) == [("x",), ("y", "z")]
    numbers = made(thresholds=lambda *_: 0.6, score=scores.LAC(), classes=(3, 5, 7))
    assert numbers.predict(p, as_names=True) == [(3,), (5, 7)]


def test_columns_of_frames_come_in_the_order_of_the_classes():
    p = RNG.dirichlet(np.ones(3), 8)
    result = made(thresholds=lambda *_: 0.6, score=scores.LAC(), classes=("ant", "bee", "cat"))
    frame = pl.DataFrame(p[:, [2, 0, 1]], schema=["cat", "ant", "bee"])
    np.testing.assert_array_equal(result.predict(frame), result.predict(p))
    names = np.array(["ant", "bee", "cat"])[[0, 1, 2, 0, 1, 2, 0, 1]]
    assert result.evaluate(frame, names) == result.evaluate(p, [0, 1, 2, 0, 1, 2, 0, 1])
    with pytest.raises(ValueError, match=r"must have a column for each class, ant, bee, cat.*'dog' is none of them"):
        result.predict(frame.rename({"cat": "dog"}).with_columns(cat=0.1))


def test_intervals_are_for_regression():
    result = made(sides=Sides(), score=scores.CQR(), thresholds=lambda part, _: 1.0 if part == ("lower",) else 2.0)
    np.testing.assert_allclose(result.interval([[0.0, 1.0]]), [[-1.0, 3.0]])
    with pytest.raises(TypeError, match="'lac' is for classification and has no intervals"):
        made(score=scores.LAC()).interval(np.full((1, 2), 0.5))
    with pytest.raises(TypeError, match="two sides are for regression, got score 'lac'"):
        made(sides=Sides()).predict(np.full((1, 2), 0.5), score="lac")
    with pytest.raises(ValueError, match=r"was not told its score: pass score=..., for instance scores.CQR\(\)"):
        made(sides=Sides()).predict(np.full((1, 2), 0.5))


def test_groups_and_sides_together_cover_as_the_score_says():
    result = made(groups=GROUPS, sides=Sides(), score=scores.CQR())
    band, y = np.sort(RNG.normal(size=(40, 2)), axis=1), RNG.normal(size=40)
    groups, device = RNG.choice(["F", "M"], 40), RNG.choice(IDS, 40)
    made_of = result.evaluate(band, y, groups=groups, device=device)
    intervals = result.interval(band, groups=groups, device=device)
    inside = (intervals[:, 0] <= y) & (y <= intervals[:, 1])
    assert made_of.coverage.covered == inside.sum()
    assert {name: part.rows for name, part in made_of.per_group.items()} == {
        name: int((groups == name).sum()) for name in ("F", "M")
    }
    assert made_of.per_device["a"].covered == inside[device == "a"].sum()
    assert made_of.nominal == 0.9
    with pytest.raises(ValueError, match="groups must be one for each of 40 rows, got 2"):
        result["F"].evaluate(band, y, groups=["F", "M"])
    for group in ("F", "M"):
        np.testing.assert_array_equal(
            result[group].interval(band, device=device)[groups == group], intervals[groups == group]
        )


def test_an_evaluation_is_told_by_centre_also_where_thresholds_are_not():
    p, y, x = RNG.dirichlet(np.ones(3), 50), RNG.integers(0, 3, 50), RNG.random(50)
    found = made(score=scores.LAC()).evaluate(p, y, inputs=x, cells=CENTRES)
    assert sum(part.rows for part in found.per_centre.values()) == 50
    assert "centre" in found.parts
    assert found.gap > 0
    again = Evaluation.from_dict(found.to_dict())
    assert again == found
    assert again.per_centre == found.per_centre
    assert again.by_size() == found.by_size()
    assert (len(again), [*again]) == (50, np.asarray(found).tolist())
    assert found.to_frame()["by"].to_list()[0] == "all"
    with pytest.raises(ValueError, match="row_hits must have"):
        Evaluation.from_dict({**found.to_dict(), "row_hits": [False] * 50}, "e.json")


def test_risk_control_has_sets_and_losses():
    fnr = losses.FalseNegativeRate()
    result = made(loss=LossBound(1.0, fnr), groups=GROUPS, thresholds=lambda part, _: 0.3 if part == ("F",) else 0.6)
    table = RNG.random((30, 5))
    truth, groups = RNG.random((30, 5)) < table, RNG.choice(["F", "M"], 30)
    each = np.where(groups == "F", 0.3, 0.6)
    np.testing.assert_array_equal(result.predict(table, groups=groups), fnr.sets(table, each))
    found = result.evaluate(table, truth, groups=groups)
    assert isinstance(found, RiskEvaluation)
    assert found.loss.mean == pytest.approx(fnr(table, truth).at(each).mean())
    assert {*found.per_group} == {"F", "M"}
    assert found.nominal == 0.1
    assert RiskEvaluation.from_dict(found.to_dict()).to_dict() == found.to_dict()
    assert result["F"].what == "lambda"
    assert result["F"].title() == f"lambda 0.3 for F, {fnr.name} at most 0.1"
    with pytest.raises(ValueError, match="was not told its loss"):
        made(loss=LossBound()).predict(table)
    with pytest.raises(TypeError, match="a loss has sets and no intervals"):
        result.interval(table, groups=groups)
    with pytest.raises(ValueError, match="predict needs groups="):
        result.predict(table)


# --- from a method's outcome ------------------------------------------------------------------------------------------


def problems(guarantee, columns):
    """Problems in an order of their own: `add_answers_to_result` brings them into that of the guarantee."""
    parts = [*product(*(axis.names for axis in part_axes(guarantee)))]
    found = [
        SimpleNamespace(part=part, alpha=alpha, column=t % columns, level=level, examples=40 + t)
        for t, part in enumerate(parts)
        for level, alpha in enumerate(guarantee.alphas)
    ]
    return found[::-1]


def test_answers_come_from_the_cells_of_an_outcome():
    network, held = Network.cycle(4), RNG.random((2, 4, 30))
    alphas = (Fraction(1, 10), Fraction(1, 5))
    batch = solve_draws(WeightedScores.of_trials(held), network, alphas, "e-dcp")
    guarantee = Guarantee(alphas=alphas, groups=GROUPS)
    common = {"guarantee": guarantee, "answers": (), "cost": batch.cost, "method": "e-dcp", "device_ids": network.ids}
    result = add_answers_to_result(
        Result(**common, options=batch.options, notes=("one",)), batch.outcome, problems(guarantee, 2)
    )
    assert [(answer.part, float(answer.alpha)) for answer in result.answers] == [
        (("F",), 0.1),
        (("F",), 0.2),
        (("M",), 0.1),
        (("M",), 0.2),
    ]
    for t, group in enumerate(("F", "M")):
        for level, alpha in enumerate((0.1, 0.2)):
            one = result[group, alpha]
            np.testing.assert_array_equal(one.thresholds, batch.outcome.thresholds[:, t, level])
            assert one.certificate == batch.outcome.certificates[t][level]
            assert one.bracket[0] < one.threshold < one.bracket[1]
            assert one.examples == 40 + t
    assert result.notes == ("one",)
    strange = [SimpleNamespace(part=("F",), alpha=Fraction(1, 20), column=0, level=0, examples=1)]
    with pytest.raises(ValueError, match=r"must be a level of the guarantee, of both sides together .* got 1/20"):
        add_answers_to_result(Result(**common), batch.outcome, strange)
    assert {**batch.options, **batch.outcome.facts} == result.options


def test_what_noise_hides_and_what_is_no_number():
    network = Network.cycle(4)
    batch = solve_draws(
        WeightedScores.of(RNG.random((4, 300))), network, (Fraction(1, 10),), "p-dcp", epsilon=4, grid="logit"
    )
    guarantee = Guarantee(alphas=(Fraction(1, 10),))
    common = {"guarantee": guarantee, "answers": (), "cost": batch.cost, "device_ids": network.ids}
    result = add_answers_to_result(Result(**common, method="p-dcp"), batch.outcome, problems(guarantee, 1))
    assert result.examples == 0
    assert dict(result.facts())["devices"] == "4; how many scores they hold is not told"
    assert {"private", "everybody knows", "privacy"} <= {*dict(result.facts())}
    assert Result.from_dict(result.to_dict()).to_dict() == result.to_dict()
    broken = Answers(np.full((4, 1, 1), np.nan), batch.outcome.certificates)
    with pytest.raises(OverflowError, match="'q-dcp' ended without a number"):
        add_answers_to_result(Result(**common, method="q-dcp"), broken, problems(guarantee, 1))


# --- words ------------------------------------------------------------------------------------------------------------


def short(answer_of, n=10, **more):
    """A result whose rank exceeds its examples."""
    base = made(examples=n, thresholds=lambda *_: np.inf, **more)
    answers = tuple(Answer(a.part, a.alpha, a.thresholds, answer_of(a), examples=a.examples) for a in base.answers)
    return Result(**{name: getattr(base, name) for name in base.__struct_fields__} | {"answers": answers})


def test_too_few_examples_are_said_in_one_sentence():
    few = Certificate("counted", 12, 10, mixture="sizes", rule="swap")
    one = short(lambda _: few)
    assert one.answers[0].is_short
    assert one.shortage == (
        "alpha=0.1 needs rank 12 but there are only 10 scores: the threshold is +inf and every prediction set holds "
        "all labels; use more scores or a larger alpha"
    )
    weighed = short(lambda _: Certificate("counted", 60, 50, weight=50))
    assert "there are only scores that weigh 50" in weighed.shortage
    many = short(lambda _: few, alphas=(0.1, 0.2), groups=Groups(tuple("abcd")), sides=Sides())
    assert many.shortage.startswith(
        "too few scores, so that the threshold is +inf: group a, side lower, alpha 0.05; group a, side lower, alpha 0.1"
    )
    assert many.shortage.endswith(", ...")
    regression = short(lambda _: Certificate("counted", None, 5, rule="regression"), groups=GROUPS)
    assert "group F, alpha 0.1; group M, alpha 0.1" in regression.shortage
    assert made().shortage == ""
    risk = short(lambda _: Certificate("counted", 12, 10, losses=100, weight=10), loss=LossBound())
    assert risk.shortage.startswith("risk=0.1 is too small for 10 items on 4 devices: what the new example may lose")


@pytest.mark.parametrize(
    ("value", "words"), [(np.inf, "no lambda that was given brings"), (-np.inf, "no set is needed")]
)
def test_infinite_lambdas_are_explained(value, words):
    outcome = Answers(np.full((4, 1, 1), value), [[Certificate("counted", 5, 5, losses=10, weight=10)]])
    guarantee = Guarantee(alphas=(Fraction(1, 10),), loss=LossBound())
    cost = Cost(0, np.zeros(4), np.zeros(4))
    blank = Result(guarantee=guarantee, answers=(), cost=cost, method="e-dcp", device_ids=IDS)
    result = add_answers_to_result(blank, outcome, problems(guarantee, 1))
    assert words in result.notes[0]
    assert words in result._repr_html_()


def test_a_result_prints_as_a_line_or_as_a_table():
    assert repr(made(thresholds=lambda *_: 0.5)).startswith(
        "Result(e-dcp, alpha=0.1: threshold 0.5 on 4 devices, counted; "
    )
    table = repr(made((0.1, 0.2), groups=GROUPS, sides=Sides(), thresholds=lambda *_: 0.5)).split("\n")
    assert table[1].split() == ["part", "alpha", "0.1", "alpha", "0.2"]
    assert [line.split() for line in table[2:]] == [
        [f"{group},", side, "0.5", "0.5"] for group in "FM" for side in ("lower", "upper")
    ]
    many = repr(made(groups=Groups(tuple(map(str, range(25))))))
    assert many.endswith("... and 5 more")
    assert "centre 0 at (0)" in repr(made(centres=CENTRES))
    pair = repr(made(sides=Sides(), thresholds=lambda *_: 0.5))
    assert "lower threshold 0.5 for alpha 0.05, upper threshold 0.5 for alpha 0.05 on 4 devices, counted" in pair
    assert "for F" in repr(made(groups=GROUPS)["F"])
    assert repr(made().answers[0]).startswith("Answer(threshold 0.")


def test_a_view_of_one_side_has_intervals_without_another_end():
    result = made(sides=Sides(Fraction(1, 4)), score=scores.CQR(), thresholds=lambda part, _: 1 + (part == ("upper",)))
    np.testing.assert_allclose(result["lower"].interval([[0.0, 1.0]]), [[-1.0, np.inf]])
    np.testing.assert_allclose(result["upper"].interval([[0.0, 1.0]]), [[-np.inf, 3.0]])
    band, y = np.sort(RNG.normal(size=(50, 2)), axis=1), 3 * RNG.normal(size=50)
    lower, upper, both = (one.evaluate(band, y) for one in (result["lower"], result["upper"], result))
    assert (lower.nominal, upper.nominal, both.nominal) == (0.975, 0.925, 0.9)
    np.testing.assert_array_equal(lower.row_hits & upper.row_hits, both.row_hits)
    np.testing.assert_array_equal(lower.row_hits, y >= band[:, 0] - 1)
    assert result["lower"].title() == "threshold 1 for lower, e-dcp at alpha 0.025"
    assert repr(result["upper"]).startswith("Result(e-dcp, alpha=0.075 for upper: ")


def test_what_a_view_has_settled_is_not_asked_again():
    result = made(groups=GROUPS, centres=CENTRES, weighting=WEIGHTS, score=scores.LAC())
    p, y = RNG.dirichlet(np.ones(3), 4), [0, 1, 2, 0]
    one = result["F", 1, "weight at most 1.0"]
    for name, value, kind in (
        ("groups", ["F"] * 4, "group"),
        ("inputs", [0.1] * 4, "centre"),
        ("weight", 1.0, "weight"),
    ):
        with pytest.raises(
            ValueError, match=f"a view of one {kind}, whose threshold serves all rows; leave {name}= out"
        ):
            one.predict(p, **{name: value})
    with pytest.raises(ValueError, match="leave groups= out"):
        one.threshold_for(["M"])
    assert one.threshold_for() == one.threshold
    found = one.evaluate(p, y, groups=["F", "M", "F", "M"], inputs=[0.0, 0.1, 0.9, 1.0])  # to tell coverage apart
    assert {name: part.rows for name, part in found.per_group.items()} == {"F": 2, "M": 2}
    assert {cell: part.rows for cell, part in found.per_centre.items()} == {0: 2, 1: 2}


def test_a_union_of_combinations_counts_each_side_once():
    atoms = {"n": ("n",), "n & y": ("n", "y")}
    groups = Groups(("n", "y", EVERYONE), "atoms", atoms)
    both = made(groups=groups, sides=Sides()).certificate_of("n")
    assert (both.lower.counted_rank, both.upper.counted_rank, both.alphas) == (190, 190, (0.05, 0.05))
    with pytest.raises(ValueError, match=r"choose a part first, as in result\['centre 0'\].certificate_of\('n'\)"):
        made(groups=groups, centres=CENTRES).certificate_of("n")
    assert made(groups=groups, centres=CENTRES)["centre 1"].certificate_of("n").counted_rank == 190
    with pytest.raises(ValueError, match="says nothing about all of 'n'"):
        made(groups=groups)["n & y"].certificate_of("n")


def test_a_table_has_a_row_for_each_answer_and_device():
    result = made((0.1, 0.2), groups=GROUPS)
    frame = result.to_frame()
    assert frame.columns == [
        *("part", "alpha", "device", "threshold", "kind", "required_rank", "counted_rank", "examples")
    ]
    one = frame.filter((pl.col("part") == "M") & (pl.col("alpha") == 0.2))
    np.testing.assert_array_equal(one["threshold"], result["M", 0.2].thresholds)
    assert one["device"].to_list() == [*IDS]


# --- again ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def called(monkeypatch):
    """What `update` asks of the entry points."""
    calls = []
    monkeypatch.setattr(api, "calibrate", lambda *args, **options: calls.append(("calibrate", args, options)))
    monkeypatch.setattr(api, "control", lambda *args, **options: calls.append(("control", args, options)))
    return calls


def test_an_update_asks_for_the_same_again(called):
    base = made(score=scores.LAC(), mixture=Mixture("given", {"a": Fraction(1, 3)}), rank_rule="swap")
    warm = Answer((), Fraction(1, 10), np.full(4, 0.5), base.certificate, bracket=(0.4, 0.6))
    fields = {name: getattr(base, name) for name in base.__struct_fields__}
    earlier = Result(**fields | {"answers": (warm,), "options": {"width": 8, "sums_by": "tree"}})
    update(earlier, "data", "cycle", width=9)
    assert called.pop() == (
        "calibrate",
        ("data", "cycle", 0.1, "e-dcp"),
        {
            "mixture": {"a": Fraction(1, 3)},
            "rank_rule": "swap",
            "warm": (0.4, 0.6),
            "score": scores.LAC(),
            "classes": None,
            "width": 9,
        },
    )
    sided = made((0.1, 0.2), sides=Sides(Fraction(1, 4)), pac_confidence=Fraction(9, 10))
    with pytest.warns(CalibrationNote, match="holds for one calibration; with updates"):
        update(sided, "data", "cycle")
    name, args, options = called.pop()
    assert args[2] == [0.1, 0.2]
    assert (options["symmetric"], options["lower_share"]) == (False, Fraction(1, 4))
    assert options["pac_confidence"] == Fraction(9, 10)
    assert "warm" not in options
    third = made(groups=GROUPS)["F"]
    fields = {name: getattr(third, name) for name in third.__struct_fields__}
    answer = Answer(("F",), Fraction(1, 3), np.zeros(4), third.certificate)
    update(Result(**fields | {"answers": (answer,)}), "data", "cycle", groups="sex")
    assert called.pop()[1][2] == Fraction(1, 3)
    update(made(loss=LossBound(2.0, losses.FalseNegativeRate())), "losses", "cycle")
    name, args, options = called.pop()
    assert (name, args) == ("control", ("losses", "cycle", 0.1, "e-dcp"))
    assert (options["bound"], options["loss"]) == (2.0, losses.FalseNegativeRate())


def test_an_update_refuses_a_method_that_does_not_exist(called):
    base = made()
    fields = {name: getattr(base, name) for name in base.__struct_fields__}
    with pytest.raises(ValueError, match=r"unknown method 'x-dcp'.*written by version"):
        update(Result(**fields | {"method": "x-dcp"}), "data", "cycle")
    assert not called


@pytest.mark.parametrize(
    ("parts", "words", "enough"),
    [
        (
            {"weighting": Weighting(4.0)},
            "had weights of at most 4: give weight= and weight_bound= again",
            {"weight": 1},
        ),
        ({"groups": GROUPS}, "had groups: give groups= again", {"groups": 1}),
        ({"centres": CENTRES}, "had centres: give inputs= again", {"inputs": 1}),
        (
            {"weighting": Weighting(2.0, class_weights={"0": 2.0})},
            "had weights of classes: give class_weights= and labels= again",
            {"class_weights": 1, "labels": 1},
        ),
    ],
)
def test_what_belongs_to_rows_must_be_given_again(called, parts, words, enough):
    with pytest.raises(ValueError, match=words):
        update(made(**parts), "data", "cycle")
    assert not called
    update(made(**parts), "data", "cycle", **enough)
    assert called
