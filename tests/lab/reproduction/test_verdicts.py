"""Verdicts: whether chance explains the differences from published points, how many are met, and what is said."""

import math
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from conformesh.lab.reproduction.curves import PublishedPoint, count_published_points
from conformesh.lab.reproduction.experiments import get_experiment
from conformesh.lab.reproduction.findings import Finding
from conformesh.lab.reproduction.verdicts import (
    COVERAGE_TOLERANCE,
    JOINT_ERROR,
    SIZE_TOLERANCE,
    JudgedFinding,
    PointComparison,
    Verdict,
    judge_case,
)
from tests.lab.reproduction.handmade import curves, value
from tests.statistics import assert_coverage

THEIRS = PublishedPoint(coverage=0.91, coverage_std=0.01, size=0.11, size_std=0.01, line="chain", x=0.9)
HALF = 1.96 * 0.01 / math.sqrt(10)


def match(inside=False, near=False, errors=0.0, allowed=4.0, **more):
    return PointComparison(replace(THEIRS, **more), 0.9, 0.1, inside, near, errors, allowed)


@pytest.fixture
def experiment():
    return replace(get_experiment("q-dcp-alpha"), findings=(), remarks={})


@pytest.fixture
def judged(experiment, monkeypatch):
    """Judge one point of our own against THEIRS."""
    monkeypatch.setattr("conformesh.lab.reproduction.verdicts.published_points", lambda name: [THEIRS])

    def decide(coverage, size, scores="logits", on_their_data=True, x=0.9, **more):
        found = curves({"chain": {x: value(coverage, size, **more)}})
        return judge_case(experiment, "as-released", scores, found, on_their_data)

    return decide


# --- met: in a band, or near ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("coverage", "size", "more", "inside", "near"),
    [
        (0.91, 11.0, {}, True, True),
        (0.91 + 0.9 * HALF, 11 - 90 * HALF, {}, True, True),
        (0.91 + 1.1 * HALF, 11.0, {}, False, True),
        (0.91, 11 + 110 * HALF, {}, False, True),  # outside the band, within 12 %
        (0.91 + 0.99 * COVERAGE_TOLERANCE, 11 * (1 + 0.99 * SIZE_TOLERANCE), {}, False, True),
        (0.91 - 1.01 * COVERAGE_TOLERANCE, 11.0, {}, False, False),
        (0.91, 11 * (1 - 1.01 * SIZE_TOLERANCE), {}, False, False),
        # our own band counts for "inside", too: half as wide again as what is needed
        (0.93, 13.0, {"coverage_std": 0.05, "size_std": 5.0}, True, False),
        (0.93, 13.0, {"coverage_std": 0.05, "size_std": 0.1}, False, False),
    ],
)
def test_inside_near_and_far(judged, coverage, size, more, inside, near):
    (found,) = judged(coverage, size, **more).matches
    assert (found.inside, found.near, found.met) == (inside, near, inside or near)
    assert (found.theirs, found.coverage) == (THEIRS, coverage)
    assert found.size == pytest.approx(size / 100)


def test_a_wide_published_band_is_near_enough(judged, monkeypatch):
    wide = replace(THEIRS, size_std=0.05)
    monkeypatch.setattr("conformesh.lab.reproduction.verdicts.published_points", lambda name: [wide])
    half = 100 * wide.size_half
    assert half > SIZE_TOLERANCE * 11
    assert judged(0.92, 11 + 0.99 * half).matches[0].near
    assert not judged(0.92, 11 + 1.01 * half).matches[0].near


def test_met_points_decide_nothing():
    """Neither a point far off by a noisy mean, nor one close by that a precise mean tells apart."""
    assert Verdict((match(inside=False, near=False, errors=3.9),), ()).agrees
    assert not Verdict((match(inside=True, near=True, errors=4.1),), ()).agrees


# --- the statistic ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("draws", [2, 10, 40])
def test_errors_are_those_of_the_two_sample_t_test(judged, monkeypatch, draws):
    """Both samples drawn out in full, and SciPy's test on them."""
    rng = np.random.default_rng(draws)
    ours, theirs = rng.normal(0.9, 0.01, draws), rng.normal(0.91, 0.01, 10)
    point = replace(THEIRS, coverage=theirs.mean(), coverage_std=theirs.std())
    monkeypatch.setattr("conformesh.lab.reproduction.verdicts.published_points", lambda name: [point])
    (found,) = judged(ours.mean(), 11.0, coverage_std=ours.std(), size_std=0.5, draws=draws).matches
    said = stats.ttest_ind(ours, theirs)
    grain = 5e-6 / abs(ours.mean() - theirs.mean())  # the last digit read off the figure
    assert found.errors == pytest.approx(abs(said.statistic) * (1 - grain), rel=1e-9)
    level = JOINT_ERROR / (2 * count_published_points())
    assert found.allowed == pytest.approx(stats.t(draws + 8).isf(level / 2), rel=1e-6)


@pytest.mark.parametrize(("off", "agrees"), [(0.95, True), (1.05, False), (-0.95, True), (-1.05, False)])
@pytest.mark.parametrize("measure", ["coverage", "size"])
def test_either_measure_decides_in_either_direction(judged, measure, off, agrees):
    """Our forty draws have the published spread, so that the error of the difference is 0.01 sqrt(1/10 + 1/40)."""
    error = 0.01 * math.sqrt(50 / 48) * math.sqrt(1 / 10 + 1 / 40)
    gap = off * error * stats.t(48).isf(JOINT_ERROR / (2 * count_published_points()) / 2)
    shift = {"coverage": (0.91 + gap, 11.0), "size": (0.91, 11.0 + 100 * gap)}[measure]
    verdict = judged(*shift, coverage_std=0.01, size_std=1.0, draws=40)
    assert verdict.agrees == agrees
    grain = {"coverage": 5e-6, "size": 5e-5}[measure]
    assert verdict.matches[0].errors == pytest.approx((abs(gap) - grain) / error, rel=1e-9)


def test_without_any_spread_only_the_same_number_agrees(judged, monkeypatch):
    """The chain has full sets in every draw: 1 and 100 %, which another convention must not meet by chance."""
    full = PublishedPoint(coverage=1.0, coverage_std=0.0, size=1.0, size_std=0.0, line="chain", x=0.9)
    monkeypatch.setattr("conformesh.lab.reproduction.verdicts.published_points", lambda name: [full])
    assert judged(1.0, 100.0).agrees
    assert judged(1.0, 100.0).matches[0].errors == 0
    assert not judged(1.0, 99.9).agrees
    assert not judged(0.9999, 100.0).agrees
    assert "largest gap over 99 standard errors" in judged(0.9999, 100.0).summary


def test_sizes_are_not_known_better_than_they_were_rounded(judged, monkeypatch):
    """Tenths of a label that happen to be equal in all draws: a tenth apart differs, a twentieth does not."""
    rounded = PublishedPoint(coverage=0.91, coverage_std=0.01, size=0.002, size_std=0.0, line="chain", x=0.9)
    monkeypatch.setattr("conformesh.lab.reproduction.verdicts.published_points", lambda name: [rounded])
    near, far = (judged(0.91, size, draws=40) for size in (0.25, 0.3))
    error = 0.1 / math.sqrt(12) * math.sqrt(1 / 10 + 1 / 40)
    assert near.matches[0].errors == pytest.approx((0.05 - 0.005) / error)
    assert (near.agrees, far.agrees) == (True, False)


def test_the_joint_error_rate_is_kept(experiment, monkeypatch):
    """500 reproductions of 54 points by the process that was published: chance calls at most 1 % different.

    One draw serves all points, which hang together as levels of a figure do. False alarm of this test < 1e-6; with
    1.96 standard errors, or without dividing by the comparisons, most of the reproductions would differ.
    """
    rng = np.random.default_rng(20)
    levels = [round(0.1 + 0.015 * i, 4) for i in range(54)]
    agreeing = 0
    for _ in range(500):
        tilt, own = rng.normal(size=(50, 1)), rng.normal(size=(50, 54))
        draws = 0.5 + 0.01 * (0.7 * tilt + 0.7 * own)
        ours, theirs = draws[:40], draws[40:]
        points = [
            PublishedPoint(mean, std, 0.5, 0.0, line="chain", x=x)
            for x, mean, std in zip(levels, theirs.mean(axis=0), theirs.std(axis=0), strict=True)
        ]
        monkeypatch.setattr("conformesh.lab.reproduction.verdicts.published_points", lambda name, points=points: points)
        given = {
            x: value(mean, 50.0, coverage_std=std, draws=40)
            for x, mean, std in zip(levels, ours.mean(axis=0), ours.std(axis=0), strict=True)
        }
        agreeing += judge_case(experiment, "as-released", "logits", curves({"chain": given}), True).agrees
    assert_coverage(agreeing, 500, 1 - JOINT_ERROR)


# --- what is compared with what ---------------------------------------------------------------------------------------


def test_only_logits_on_their_data_are_compared(judged):
    assert judged(0.91, 11.0).matches
    assert not judged(0.91, 11.0, scores="confidences").matches
    assert not judged(0.91, 11.0, on_their_data=False).matches
    assert not judged(0.91, 11.0, x=0.8).matches  # nothing was published there


def test_known_points_of_lines_that_are_not_there_are_left_out(experiment):
    found = curves({"star": {0.9: value(0.907, 10.94), 0.35: value()}, "FCP": {0.9: value()}})
    verdict = judge_case(experiment, "as-released", "logits", found, True)
    assert [(each.theirs.line, each.theirs.x) for each in verdict.matches] == [("star", 0.9)]
    assert verdict.matches[0].inside


@pytest.fixture
def unknown():
    """An item of which only the picture was printed."""
    return replace(get_experiment("q-dcp-convergence"), findings=(), remarks={})


def test_as_written_is_compared_with_as_released_where_only_a_picture_was_printed(unknown):
    spread = {"coverage_std": 0.01, "size_std": 1.0}
    released = curves(
        {"cycle": {100: value(0.95, 80.0, **spread), 1000: value(0.95, 18.0, **spread)}, "CP": {0.9: value()}}
    )
    written = curves(
        {"cycle": {100: value(0.95, 80.5, **spread), 1000: value(0.91, 10.8, **spread)}, "CP": {0.9: value()}}
    )
    verdict = judge_case(unknown, "as-written", "logits", written, True, released=released)
    assert verdict.stand_in
    assert not verdict.agrees
    assert [(each.theirs.line, each.theirs.x, each.agrees) for each in verdict.matches] == [
        ("cycle", 100, True),
        ("cycle", 1000, False),
    ]
    assert "size off by up to 40% (cycle, x = 1000)" in verdict.summary
    assert "from as released" in verdict.summary
    assert judge_case(unknown, "as-written", "logits", released, True, released=released).agrees


@pytest.mark.parametrize(
    ("variant", "scores", "real"),
    [("as-released", "logits", True), ("as-written", "confidences", True), ("as-written", "logits", False)],
)
def test_nothing_else_is_compared_with_as_released(unknown, variant, scores, real):
    found = curves({"cycle": {100: value()}})
    verdict = judge_case(unknown, variant, scores, found, real, released=curves({"cycle": {100: value(0.5, 5.0)}}))
    assert (verdict.matches, verdict.stand_in) == ((), False)


def test_published_points_go_before_as_released(experiment):
    found = curves({"chain": {0.9: value(0.91, 11.0)}})
    other = curves({"chain": {0.9: value(0.5, 1.0)}})
    verdict = judge_case(experiment, "as-written", "logits", found, True, released=other)
    assert verdict.matches
    assert not verdict.stand_in
    assert verdict.matches[0].theirs.coverage == 1.0  # the published chain


# --- sentences and words ----------------------------------------------------------------------------------------------


def test_sentences_are_judged_in_every_case(experiment):
    good, poor = Finding("It holds.", lambda _: (True, "1 > 0")), Finding("It fails.", lambda _: (False, "0 < 1"))
    silent = Finding("Nobody knows.", lambda _: None)
    given = replace(experiment, findings=(good, silent, poor))
    verdict = judge_case(given, "as-written", "confidences", curves({"chain": {0.9: value()}}), False)
    assert verdict.judged == (JudgedFinding("It holds.", True, "1 > 0"), JudgedFinding("It fails.", False, "0 < 1"))
    assert not verdict.agrees
    assert judge_case(replace(given, findings=(good, silent)), "as-written", "logits", curves({}), False).agrees


def test_remarks_are_looked_up_by_variant_and_scores(experiment):
    given = replace(experiment, remarks={"as-written": "of text", "as-written, confidences": "of the unit interval"})

    def remark(variant, scores):
        return judge_case(given, variant, scores, curves({"chain": {0.9: value()}}), False).remark

    assert remark("as-written", "logits") == "of text"
    assert remark("as-written", "confidences") == "of the unit interval"
    assert remark("as-released", "logits") == ""


def test_published_points_decide_before_sentences_and_stand_ins_beside_them():
    good, poor = match(errors=1.0), match(errors=5.0)
    holds, fails = JudgedFinding("a", True, ""), JudgedFinding("b", False, "")
    assert Verdict((good, good), (fails,)).agrees
    assert not Verdict((good, poor), (holds,)).agrees
    assert Verdict((good,), (holds,), stand_in=True).agrees
    assert not Verdict((good,), (holds, fails), stand_in=True).agrees
    assert not Verdict((poor,), (holds,), stand_in=True).agrees
    assert Verdict((), (holds,)).agrees
    assert not Verdict((), (holds, fails)).agrees


def test_verdicts_in_words():
    inside, near, far = match(inside=True, near=True, errors=1.2), match(near=True), match(errors=7.25)
    holds, fails = JudgedFinding("a", True, ""), JudgedFinding("b", False, "")
    assert str(Verdict((inside, near), (holds, fails), "of this")) == (
        "agrees (largest gap 1.2 standard errors, 4.0 allowed; 2 of 2 published points met, 1 of them inside a band; "
        "1 of 2 findings hold)"
    )
    words = (
        "differs (largest gap 7.2 standard errors, 4.0 allowed; 1 of 2 published points met, 1 of them inside a band)"
    )
    assert str(Verdict((inside, far), (), "of that")) == f"{words}, because of that"
    assert Verdict((inside, far), (), "of that").summary == words
    assert str(Verdict((), (holds, fails))) == "differs (1 of 2 findings hold)"
    assert str(Verdict((), ())) == "agrees"
