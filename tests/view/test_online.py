"""Runs over streams, recorded: the numbers are the library's, a trace stays small, and no score is in it."""

import json
import math

import msgspec
import numpy as np
import pytest

from conformesh import Network
from conformesh.mesh.node.status import (
    AlarmEvidence,
    AlarmFlags,
    AlarmStatus,
    DeviceCounts,
    OnlineAccount,
    OnlineStatus,
)
from conformesh.online import online
from conformesh.online.result import RunningCounts
from conformesh.view import online as recording
from conformesh.view.events import visible_step
from conformesh.view.learning import LearningHistory, RecentCoverage, online_learning_details, reported_online_counts
from conformesh.view.online import OnlineRecorder, online_coverage_bounds
from conformesh.view.recording import RecordedState
from conformesh.view.trace import CoverageOfAll, Step, Trace, TraceHeading

DEVICES, STEPS, WINDOW = 5, 700, 50
RULES = [
    {},
    {"learner": "tracker", "coupling": "counted"},
    {"learner": "pid", "coupling": "alone"},
    {"learner": "dtaci", "coupling": "alone"},  # of which no bound is known
]


def streams(missing=0.2, seed=0):
    """Scores that grow, some of which are not there."""
    rng = np.random.default_rng(seed)
    scores = np.abs(rng.normal(size=(DEVICES, STEPS))) * (1 + np.arange(STEPS) / STEPS)
    return np.where(rng.random(scores.shape) < missing, np.nan, scores)


def recorded(scores, window=WINDOW, **rule):
    network = Network.cycle(len(scores))
    recorder = OnlineRecorder(network, window=window)
    found = online(scores, network, observer=recorder, **rule)
    recorder.finish([("misses", str(found))])
    [run] = recorder.trace().runs
    return found, run


def presence():
    """One device comes late, another leaves for a while."""
    there = np.ones((DEVICES, STEPS), dtype=bool)
    there[1, :300] = there[2, 200:400] = False
    return there


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("missing", [0.0, 0.2])
def test_a_step_says_what_the_library_says(rule, missing):
    found, run = recorded(streams(missing), **rule)
    rolling, own = found.rolling_coverage(WINDOW), [found.rolling_coverage(WINDOW, name) for name in found.ids]
    assert [step.at for step in run.steps] == [*range(STEPS + 1)]
    for step in run.steps[1::23]:
        at, everybody, account = int(step.at), step.everybody, found.account(after=int(step.at))
        assert (everybody.labels, everybody.misses) == (account.labels, account.misses)
        assert everybody.within == online_coverage_bounds(account)
        assert everybody.lately == pytest.approx(rolling[at - 1], abs=5e-5)
        lately = step.devices["lately"].values
        covered = [None if np.isnan(each[at - 1]) else each[at - 1] for each in own]  # None before the first label
        assert lately == pytest.approx(covered, abs=5e-5)
        known = [share for share in lately if share is not None]
        assert (everybody.spread[0], everybody.spread[4]) == (min(known), max(known))
        for row, name in enumerate(found.ids):
            one = found.account(name, at)
            assert [step.devices[field].values[row] for field in ("labels", "misses")] == [one.labels, one.misses]
            bound = step.devices["within"].values[row] if "within" in step.devices else None
            assert bound == (None if one.bound == 0.9 else math.ceil(1e4 * one.bound - 1e-9) / 1e4)
    assert (run.heading.unit, run.heading.devices) == ("steps", [*found.ids])
    assert run.result == [("misses", str(found))]


def test_thresholds_are_means_of_the_last_steps():
    found, run = recorded(streams())
    last = np.nanmean(found.thresholds[:, -WINDOW:], axis=1)
    assert run.steps[-1].devices["threshold"].values == pytest.approx(last.tolist(), rel=5e-4)
    infinite, run = recorded(streams(), learner="aci", coupling="alone")
    assert np.isinf(infinite.thresholds[:, 0]).all()
    assert run.steps[1].devices["threshold"].values == [None] * DEVICES
    piece = infinite.thresholds[0, :WINDOW]
    assert run.steps[WINDOW].devices["threshold"].values[0] == pytest.approx(piece[np.isfinite(piece)].mean(), rel=5e-4)


@pytest.mark.parametrize("delays", [None, 7, "any"])
@pytest.mark.parametrize("present", [None, presence()])
def test_counts_along_a_run_are_those_of_its_accounts(delays, present):
    scores, rng = streams(), np.random.default_rng(3)
    late = rng.integers(-1, 40, scores.shape) if delays == "any" else delays
    found = online(scores, Network.cycle(DEVICES), delays=late, present=present)
    along, points = RunningCounts(found), [3, 4, 90, 333, 334, STEPS]
    for piece in (points[:2], points[2:5], points[5:]):
        for at, labels, misses in zip(piece, *(each.T for each in along.advance(np.array(piece))), strict=True):
            assert along.account(at, labels, misses) == found.account(after=at)
            assert along.account(at, labels, misses, 2) == found.account(found.ids[2], at)
    with pytest.raises(ValueError, match=f"points must rise from {STEPS + 1} on"):
        along.advance(np.array([STEPS]))


def test_who_is_watched_does_the_same():
    watched, _ = recorded(streams())
    plain = online(streams(), Network.cycle(DEVICES))
    assert np.array_equal(watched.thresholds, plain.thresholds, equal_nan=True)
    assert np.array_equal(watched.misses, plain.misses)


@pytest.mark.parametrize(
    ("steps", "window", "expected"),
    [(700, 200, (1, 200)), (100_000, 200, (100, 200)), (37_000, 200, (40, 200)), (10**6, 200, (834, 834))],
)
def test_points_fit_the_window_where_they_can(steps, window, expected):
    stride, averaged = recording._strides(steps, window)
    assert (stride, averaged) == expected
    assert steps / stride <= recording.MAX_POINTS


def test_curves_have_few_points_and_devices_fewer(monkeypatch):
    monkeypatch.setattr(recording, "MAX_POINTS", 100)
    monkeypatch.setattr(recording, "MAX_NUMBERS", 5 * DEVICES * 20)
    found, run = recorded(streams())
    told = [step for step in run.steps if step.everybody]
    own = [step for step in told if "lately" in step.devices]
    assert (len(told), len(own)) == (70, 18)
    assert told[0].everybody.window == WINDOW
    assert told[0].everybody.own == 80  # as many steps as lie between two points, or more
    assert own[-1].at == STEPS
    known = RecordedState(DEVICES)
    for step in run.steps:
        known.take(step)
    assert known.fields["misses"] == [found.account(name).misses for name in found.ids]
    at = int(own[-2].at)
    assert own[-2].devices["lately"].values == pytest.approx(
        [found.rolling_coverage(80, name)[at - 1] for name in found.ids], abs=5e-5
    )


@pytest.mark.parametrize("rule", [{}, {"learner": "aci", "coupling": "alone"}])
def test_no_score_is_in_a_trace(rule):
    """Also where thresholds are past scores, and nothing is averaged."""
    scores = streams()
    _, run = recorded(scores, window=1, **rule)
    numbers = set()
    json.loads(Trace.of([run]).to_json(), parse_float=lambda text: numbers.add(float(text)))
    assert numbers.isdisjoint(scores[~np.isnan(scores)].tolist())


def test_an_alarm_stands_where_it_was_raised(monkeypatch):
    monkeypatch.setattr(recording, "MAX_POINTS", 100)
    network = Network.cycle(DEVICES)
    recorder = OnlineRecorder(network, window=WINDOW)
    recorder.alarm(3, 123, "at its label 123")
    online(streams(), network, observer=recorder)
    recorder.fail("the disk is full")
    [run] = recorder.trace().runs
    [step] = [step for step in run.steps if step.log]
    assert (step.at, step.log) == (130, [(3, "warning", "drift alarm at its label 123")])
    assert (step.devices["alarm"].values, step.devices["alarm"].rows) == (["at its label 123"], [3])
    assert run.result == [("failed", "the disk is full")]


def test_a_trace_is_the_same_once_more_and_can_be_read(tmp_path):
    _, run = recorded(streams())
    trace = Trace.of([run])
    trace.save(tmp_path / "t.json.gz")
    assert Trace.load(tmp_path / "t.json.gz").runs == [run]
    again = recorded(streams())[1]
    assert again.steps == run.steps


def test_nothing_of_it_is_shown_of_a_private_run():
    _, run = recorded(streams())
    private = msgspec.structs.replace(run.heading, private=True)
    seen = [visible_step(step, private) for step in run.steps]
    assert {name for step in seen for name in step.devices} == {"phase"}
    assert all(step.everybody is None for step in seen)


def test_what_is_known_has_everybody():
    """For a page that could not follow every step, and for the oldest steps of a run that never ends."""
    known, told = RecordedState(1), CoverageOfAll(alpha=0.1, labels=3, misses=1, window=2, own=2)
    known.take(Step(at=1, everybody=told))
    known.take(Step(at=2))
    assert known.as_step().everybody == told


def test_old_traces_are_read(tmp_path):
    """Written before anybody learnt online."""
    heading = TraceHeading.of("old", Network.chain(2))
    (tmp_path / "t.json").write_bytes(
        Trace([msgspec.convert({"heading": heading, "steps": [{"at": 0}]}, dict)]).to_json()
    )
    [run] = Trace.load(tmp_path / "t.json").runs
    assert run.steps[0].everybody is None


# --- what nodes say ---------------------------------------------------------------------------------------------------


def test_recent_coverage_is_taken_over_enough_labels():
    recent = RecentCoverage(100)
    assert [recent.update(*counts) for counts in [(0, 0), (60, 6), (60, 6), (120, 6), (180, 18)]] == [
        None,
        0.9,
        0.9,
        0.95,
        0.9,
    ]
    assert recent.update(10, 5) == 0.5  # the node has begun anew
    assert RecentCoverage(100).update(5000, 700) is None  # of what was before it began to look nothing is known
    late = RecentCoverage(100)
    assert [late.update(*counts) for counts in [(5000, 700), (5010, 701)]] == [None, 0.9]


def answer(steps, misses, within, everybody=None, **more):
    account = OnlineAccount(0.1, steps, misses, None, within, "")
    rule = {
        "alpha": 0.1,
        "learning": 0.05,
        "local": 0.05,
        "bound": 1.0,
        "scale": None,
        "origin": None,
        "threshold": 0.5,
    }
    counts = {"late": 0, "pending": 0, "reported": {}, "alarm": None, "refused": {}}
    return OnlineStatus(**rule | counts | {"device": account, "everybody": everybody or account} | more)


def alarm(device, fleet):
    evidence = AlarmEvidence(30.0, 2.0)
    return AlarmStatus(0.05, evidence, AlarmFlags(device, fleet), 1.0, 50, 40 if device else None, None, 3)


def test_history_of_a_mesh():
    history = LearningHistory()
    one = answer(100, 20, 0.04321, OnlineAccount(0.1, 300, 30, None, 0.3, ""))
    two = answer(50, 0, 0.9, OnlineAccount(0.1, 290, 29, None, 0.2, ""), alarm=alarm(True, False))
    fields = {"labels": 100, "misses": 20, "lately": 0.8, "threshold": 0.5, "within": 0.0433, "alarm": None}
    assert history.fields("one", one) == fields
    assert history.fields("two", two)["within"] is None  # any share of misses is within .9 of .1
    assert history.fields("two", two)["alarm"] == "raised"
    assert history.fields("three", None) == {}
    assert history.fields("three", None, DeviceCounts(10, 1, 1)) == {"labels": 10, "misses": 1, "lately": 0.9}
    found = history.of_all([one, two], [0.8, 1.0, 0.9])
    assert (found.labels, found.misses, found.window, found.own) == (300, 30, 600, 200)  # who has heard most
    assert found.within == pytest.approx((0.6, 1.0))
    assert (found.lately, found.spread) == (0.9, (0.8, 0.8, 0.9, 1.0, 1.0))
    assert history.of_all([], []) is None


def test_of_who_does_not_answer_the_most_that_was_heard_counts():
    heard = [answer(0, 0, 0.9, reported={"c": DeviceCounts(many, 1, 1)}) for many in (5, 9, 7)]
    assert reported_online_counts("c", heard) == DeviceCounts(9, 1, 1)
    assert reported_online_counts("d", heard) is None


def test_an_alarm_is_shown_only_where_it_is_raised():
    """Both flags are always there: that there are flags says nothing."""
    quiet, raised = answer(50, 0, 0.9, alarm=alarm(False, False)), answer(50, 0, 0.9, alarm=alarm(False, True))
    assert LearningHistory().fields("a", quiet)["alarm"] is None
    assert dict(online_learning_details(quiet))["drift alarm"].startswith("not raised, evidence 30.0 of the device")
    assert LearningHistory().fields("a", raised)["alarm"] == "raised"
    assert dict(online_learning_details(raised))["drift alarm"].startswith("raised for the fleet, ")
