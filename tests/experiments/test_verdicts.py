"""Verdicts: which published points are met, inside a band or near, and what is said about the rest."""

import math
from dataclasses import replace

import pytest

from conformesh.experiments import get_experiment
from conformesh.experiments.core.experiment import Finding
from conformesh.experiments.core.published import Published
from conformesh.experiments.core.verdicts import COVERAGE_TOLERANCE, SIZE_TOLERANCE, Judged, Match, Verdict, judge
from tests.experiments.handmade import curves, value

THEIRS = Published("chain", 0.9, coverage=0.91, coverage_std=0.01, size=0.11, size_std=0.01)
HALF = 1.96 * 0.01 / math.sqrt(10)


@pytest.fixture
def experiment():
    return replace(get_experiment("q-dcp-alpha"), findings=(), remarks={})


@pytest.fixture
def judged(experiment, monkeypatch):
    """Judge one point of our own against THEIRS."""
    monkeypatch.setattr("conformesh.experiments.core.verdicts.published", lambda name: [THEIRS])

    def decide(coverage, size, scores="logits", on_their_data=True, x=0.9, **more):
        found = curves({"chain": {x: value(coverage, size, **more)}})
        return judge(experiment, "as-released", scores, found, on_their_data)

    return decide


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
    verdict = judged(coverage, size, **more)
    (match,) = verdict.matches
    assert (match.inside, match.near, match.agrees) == (inside, near, inside or near)
    assert verdict.agrees == match.agrees
    assert (match.theirs, match.coverage) == (THEIRS, coverage)
    assert match.size == pytest.approx(size / 100)


def test_a_wide_published_band_is_near_enough(judged, monkeypatch):
    wide = replace(THEIRS, size_std=0.05)
    monkeypatch.setattr("conformesh.experiments.core.verdicts.published", lambda name: [wide])
    half = 100 * wide.size_half
    assert half > SIZE_TOLERANCE * 11
    assert judged(0.92, 11 + 0.99 * half).matches[0].near
    assert not judged(0.92, 11 + 1.01 * half).matches[0].near


def test_only_logits_on_their_data_are_compared(judged):
    assert judged(0.91, 11.0).matches
    assert not judged(0.91, 11.0, scores="confidences").matches
    assert not judged(0.91, 11.0, on_their_data=False).matches
    assert not judged(0.91, 11.0, x=0.8).matches  # nothing was published there


def test_known_points_of_lines_that_are_not_there_are_left_out(experiment):
    found = curves({"star": {0.9: value(0.907, 10.94), 0.35: value()}, "FCP": {0.9: value()}})
    verdict = judge(experiment, "as-released", "logits", found, True)
    assert [(match.theirs.line, match.theirs.x) for match in verdict.matches] == [("star", 0.9)]
    assert verdict.matches[0].inside


def test_sentences_are_judged_in_every_case(experiment):
    good, poor = Finding("It holds.", lambda _: (True, "1 > 0")), Finding("It fails.", lambda _: (False, "0 < 1"))
    silent = Finding("Nobody knows.", lambda _: None)
    given = replace(experiment, findings=(good, silent, poor))
    verdict = judge(given, "as-written", "confidences", curves({"chain": {0.9: value()}}), False)
    assert verdict.judged == (Judged("It holds.", True, "1 > 0"), Judged("It fails.", False, "0 < 1"))
    assert not verdict.agrees
    assert judge(replace(given, findings=(good, silent)), "as-written", "logits", curves({}), False).agrees


def test_remarks_are_looked_up_by_variant_and_scores(experiment):
    given = replace(experiment, remarks={"as-written": "of text", "as-written, confidences": "of the unit interval"})

    def remark(variant, scores):
        return judge(given, variant, scores, curves({"chain": {0.9: value()}}), False).remark

    assert remark("as-written", "logits") == "of text"
    assert remark("as-written", "confidences") == "of the unit interval"
    assert remark("as-released", "logits") == ""


def test_published_points_decide_before_sentences():
    near, far = Match(THEIRS, 0.9, 0.1, inside=False, near=True), Match(THEIRS, 0.5, 0.1, inside=False, near=False)
    inside = Match(THEIRS, 0.91, 0.11, inside=True, near=True)
    holds, fails = Judged("a", True, ""), Judged("b", False, "")
    assert Verdict((near, inside), (fails,)).agrees
    assert not Verdict((near, far), (holds,)).agrees
    assert Verdict((), (holds,)).agrees
    assert not Verdict((), (holds, fails)).agrees


def test_verdicts_in_words():
    near, far = Match(THEIRS, 0.9, 0.1, inside=False, near=True), Match(THEIRS, 0.5, 0.1, inside=False, near=False)
    inside = Match(THEIRS, 0.91, 0.11, inside=True, near=True)
    holds, fails = Judged("a", True, ""), Judged("b", False, "")
    assert str(Verdict((inside, near), (holds, fails), "of this")) == (
        "agrees (2 of 2 published points met, 1 of them inside a band; 1 of 2 findings hold)"
    )
    assert str(Verdict((inside, far), (), "of that")) == (
        "differs (1 of 2 published points met, 1 of them inside a band), because of that"
    )
    assert Verdict((inside, far), (), "of that").summary == (
        "differs (1 of 2 published points met, 1 of them inside a band)"
    )
    assert str(Verdict((), (holds, fails))) == "differs (1 of 2 findings hold)"
    assert str(Verdict((), ())) == "agrees"
