"""The own scale and the drift alarm on a mesh: the same numbers as without one, whatever is killed, for all to see."""

import errno
import math
import random
from fractions import Fraction

import msgspec
import numpy as np
import pytest

from conformesh import Network
from conformesh.cli.mesh_status import _line
from conformesh.mesh.http.client import Client
from conformesh.mesh.node import online
from conformesh.mesh.node.drift_alarm import alarm_draw, fleet_alarm
from conformesh.mesh.node.health import judge_health
from conformesh.mesh.node.heartbeat import share_status
from conformesh.mesh.node.online import JOURNAL_FILE
from conformesh.mesh.node.online_records import Observations, encode_record
from conformesh.mesh.node.status import DeviceStatus
from conformesh.mesh.overview import FINE, _summarise
from conformesh.online.alarm import Alarm, FleetAlarm
from conformesh.online.counters import Counters, CountingLearner, CoverageCounts, Life
from conformesh.online.integrators import QuantileTracker
from conformesh.online.simulation import online as simulated
from conformesh.peer.journal import FileJournal

from .heartbeats import CALM, World
from .nodes import numbers, serving, short_folder, state
from .test_online import LEARNING, WHOLE, learnt, message, opened

RULE = CountingLearner(Fraction(1, 10), **LEARNING, alarm=0.05)


@pytest.fixture
def folder():
    with short_folder() as found:
        yield found


@pytest.fixture
def unflushed(monkeypatch):
    """A disk that is quick."""
    monkeypatch.setattr(online.os, "fsync", lambda handle: None)


def shifted(steps=120, at=60, seed=0):
    """Scores that move up for good: the evidence passes 20 some ten scores later."""
    rng = random.Random(seed)
    return [rng.random() * 0.5 + (0.5 if step >= at else 0.0) for step in range(steps)]


def told(known, score):
    known.apply(known.judge(score, None)[1])


def fed(seed, scores, alarm=None):
    """The state of the alarm itself after these scores, with what a device draws from this seed."""
    alarm = alarm or Alarm(0.05, 0.1)
    draws = [[alarm_draw(seed, step)] for step in range(len(scores))]
    return alarm.follow(alarm.begin(1), np.reshape(scores, (-1, 1)), draws)


def assert_is_alarm(known, scores):
    expected = fed(known._seed, scores)
    for mine, theirs in zip(known.drift.state, expected, strict=True):
        np.testing.assert_array_equal(mine, theirs)
    assert (known.own.evidence, known.own.alarms) == (float(expected.largest[0]), 1)


# --- the alarm --------------------------------------------------------------------------------------------------------


def test_the_alarm_of_a_device_is_the_alarm_in_the_order_of_labels():
    """So its false alarms are those of `Alarm`: same scores, same draws, same numbers. Repeated labels are none."""
    rng, known, came, waiting = random.Random(4), Observations("a", RULE, 5, seed=77), [], []
    for score in shifted():
        example, record = known.predict()
        known.apply(record)
        waiting.append((example.id, score))
        while len(waiting) > rng.choice([0, 3]):
            id, late = waiting.pop(rng.randrange(len(waiting)))
            known.apply(known.judge(late, id)[1])
            assert known.judge(0.9, id)[1] is None
            came.append(late)
    assert_is_alarm(known, came)
    assert 60 < known.drift.raised_at < 90


@pytest.mark.usefixtures("unflushed")
def test_a_device_that_is_killed_after_every_label_has_the_same_evidence(folder, monkeypatch):
    monkeypatch.setattr(online, "MOST_RECORDS", 7)
    scores, seeds = shifted(), set()
    for score in scores:
        node = opened(folder, online=LEARNING | {"alarm": 0.05})
        node.observe(score)
        seeds.add(node._observations._seed)
    assert len(seeds) == 1
    assert_is_alarm(node._observations, scores)
    again = opened(folder, online=LEARNING | {"alarm": 0.05})
    assert learnt(again) == learnt(node)
    alarm = learnt(again)["alarm"]
    assert (alarm["raised_at"], alarm["steps"]) == (node._observations.drift.raised_at, 120)
    assert alarm["raised_time"].startswith("20")
    assert alarm["evidence"]["device"] == pytest.approx(math.exp(node._observations.drift.largest))


def test_other_journals_draw_other_numbers():
    """The check itself, and what keeps draws from whoever chooses scores: they do not follow from public numbers."""
    one, other = (Observations("a", RULE, 5, seed=seed) for seed in (1, 2))
    for score in shifted():
        told(one, score)
        told(other, score)
    assert one.own.evidence != other.own.evidence


def test_that_it_was_raised_is_kept_where_the_moment_could_not_be_written(folder, monkeypatch):
    node = opened(folder, online=LEARNING | {"alarm": 0.05})
    for score in shifted():
        with monkeypatch.context() as broken:
            if node._observations.drift.raised_at == 0:
                broken.setattr(online, "AlarmRecord", lambda when: 1 / 0)  # killed here
            try:
                node.observe(score)
            except ZeroDivisionError:
                break
    assert node._observations.lacks_alarm_time
    again = opened(folder, online=LEARNING | {"alarm": 0.05})
    assert learnt(again)["alarm"]["raised_at"] == node._observations.drift.raised_at
    assert learnt(again)["alarm"]["raised_time"] is not None


@pytest.mark.usefixtures("unflushed")
def test_a_journal_that_cannot_be_made_shorter_now_and_then_loses_nothing(folder, monkeypatch):
    """Also where one request writes several records: what scale and level begin with, and when it was raised."""
    monkeypatch.setattr(online, "MOST_RECORDS", 1)
    real, calls, scores = FileJournal.begin, [], shifted()

    def broken(journal, record):
        calls.append(1)
        if len(calls) % 2 == 0:
            raise OSError(errno.EIO, "not now")
        real(journal, record)

    monkeypatch.setattr(FileJournal, "begin", broken)
    (folder / "scores.csv").write_text("score\n0.2\n0.3\n")
    node = opened(folder, state(), online=WHOLE)
    for score in scores:
        node.observe(score)
    assert len(calls) > 120
    assert_is_alarm(node._observations, scores)
    assert learnt(node)["alarm"]["raised_time"] is not None
    assert learnt(node)["scale"]["scores"] == 122


@pytest.mark.usefixtures("unflushed")
def test_another_level_judges_the_same_evidence(folder):
    node = opened(folder, online=LEARNING | {"alarm": 0.05})
    for score in shifted():
        node.observe(score)
    evidence = learnt(node)["alarm"]["evidence"]["device"]
    assert evidence > 20
    stricter = learnt(opened(folder, online=LEARNING | {"alarm": 0.5 / evidence}))["alarm"]
    assert (stricter["evidence"]["device"], stricter["steps"]) == (evidence, 120)
    assert (stricter["raised"]["device"], stricter["raised_at"], stricter["raised_time"]) == (False, None, None)
    assert learnt(opened(folder, online=LEARNING | {"alarm": 0.2}))["alarm"]["raised_at"] == 120


@pytest.mark.usefixtures("unflushed")
def test_an_alarm_that_was_switched_off_begins_anew_and_counts_again(folder):
    node, other = opened(folder, online=LEARNING | {"alarm": 0.05}), Observations("device-00", RULE, 9)
    for score in shifted():
        node.observe(score)
    other.merge_counters(node._observations.counters, 1)
    assert math.exp(fleet_alarm(other.tallies, ["device-00", "device-01", "device-02"])[0]) > 20
    off = learnt(opened(folder))
    assert (off["alarm"], off["device"]["steps"]) == (None, 120)
    anew = opened(folder, online=LEARNING | {"alarm": 0.05})
    assert learnt(anew)["device"]["steps"] == 120
    alarm = learnt(anew)["alarm"]
    assert (alarm["steps"], alarm["counted"], alarm["raised_time"]) == (0, 4, None)
    assert alarm["evidence"] == {"device": 1.0, "fleet": pytest.approx(1 / 4)}
    other.merge_counters(anew._observations.counters, 1)  # at once, without another label
    assert fleet_alarm(other.tallies, ["device-00", "device-01", "device-02"]) == (pytest.approx(-math.log(4)), 4)
    assert anew._observations._seed != node._observations._seed


def test_a_fleet_is_judged_by_the_largest_over_all_devices():
    """The numbers of `FleetAlarm`, whoever heard them and when; who was not heard of counts all the same."""
    names, alarm = ("a", "b", "c"), Alarm(0.05, 0.1)
    known = [Observations(name, RULE, k, seed=k) for k, name in enumerate(names)]
    fleet = FleetAlarm(alarm)
    after = fleet.begin(3)
    rng = random.Random(1)
    for step, score in enumerate(shifted(100)):
        scores = [rng.random(), score, rng.random()]
        after = fleet.follow(after, [scores], [[alarm_draw(one._seed, step) for one in known]])
        for one, mine in zip(known, scores, strict=True):
            told(one, mine)
        known[2].merge_counters(known[1].counters, 9)
    evidence, counted = fleet_alarm(known[2].tallies, names)
    assert (evidence, counted) == (after.largest, 3)
    assert after.raised_at > 0
    assert fleet_alarm(known[2].tallies, (*names, "d")) == (pytest.approx(evidence - math.log(4 / 3)), 4)
    assert fleet_alarm(known[0].tallies, names)[0] < evidence  # it has heard of nobody


def test_a_lost_journal_counts_twice_and_a_lie_about_a_device_is_not_believed_by_it(folder):
    first = opened(folder, online=LEARNING | {"alarm": 0.05})
    for score in shifted():
        first.observe(score)
    said = message(first)
    (folder / JOURNAL_FILE).unlink()
    second = opened(folder, online=LEARNING | {"alarm": 0.05})
    second.observe(0.5)
    second.merge_counters(said)
    alarm = learnt(second)["alarm"]
    assert (alarm["counted"], alarm["steps"], alarm["raised"]) == (4, 1, {"device": False, "fleet": True})
    life = second._observations._life
    lie = Counters({life: msgspec.structs.replace(second._observations.own, evidence=700.0)})
    second.merge_counters(lie.encode(second.rule))
    assert second._observations._life == life  # no new life for it
    assert learnt(second)["alarm"] == alarm


def test_an_old_journal_goes_on_and_its_alarm_begins():
    """Of the version before: nothing of a scale or an alarm in it, and a tally of four numbers."""
    plain = Observations("a", CountingLearner(Fraction(1, 10), **LEARNING), 5)
    before = plain.to_record()
    for score in (0.2, 0.9, 0.4):
        told(plain, score)
    raw = msgspec.msgpack.decode(encode_record(plain.to_record()))
    raw[3] = raw[3][:4]
    rows = msgspec.msgpack.decode(raw[8])
    rows[3] = [[*row[:2], row[2][:4]] for row in rows[3]]
    old = msgspec.msgpack.encode([*raw[:8], msgspec.msgpack.encode(rows)])
    assert len(raw) > 9
    for rule in (plain.rule, RULE):
        again = Observations("a", rule, 6, seed=3)
        again.read([old])
        assert again.own.counted == plain.own.counted
        assert (again.pending, again.labelled, again.threshold) == (plain.pending, plain.labelled, plain.threshold)
    assert (again.own.alarms, again.drift.steps) == (1, 0)
    assert before.alarm == b""


def test_an_alarm_that_cannot_be_read_begins_anew_and_nothing_else_is_lost(caplog):
    known = Observations("a", RULE, 5, seed=1)
    for score in shifted(30):
        told(known, score)
    other = Observations("a", RULE, 6)
    other.read([encode_record(msgspec.structs.replace(known.to_record(), alarm=b"cmA1 and no more"))])
    assert "the drift alarm starts again" in caplog.text
    assert (other.own.steps, other.own.alarms, other.drift.steps) == (30, 2, 0)


# --- the own scale ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("latest", [0, 5])
@pytest.mark.parametrize("alpha", [Fraction(1, 8), Fraction(1, 10)])
def test_the_numbers_are_those_of_the_simulator(alpha, latest):
    """Four unlike devices that hear each other after every step, with labels that are late or never come. With an alpha
    of few bits every sum of the simulator is exact, and so are the thresholds the same; else they differ by its
    rounding, 400 times 2 ** -53 or so.
    """
    rng = np.random.default_rng(2)
    scores = rng.gamma(2.0, size=(4, 400)) * np.array([[0.01], [1.0], [30.0], [500.0]])
    tracker = QuantileTracker(alpha=float(alpha), step=0.25, high=8.0, start=2.0)
    delays = rng.integers(-1 if latest else 0, latest, scores.shape, endpoint=True)  # -1 is never
    options = {"local": 1 / 16, "scale": 1 / 32, "delays": delays}
    expected = simulated(scores, Network.complete(4), float(alpha), tracker, "counted", **options)
    rule = CountingLearner(alpha, learning=0.25 / 4, local=1 / 16, bound=8.0, scale=1 / 32)
    known = [Observations(name, rule, k) for k, name in enumerate("abcd")]
    found, ids = np.empty(scores.shape), {}
    for one in known:
        one.apply(online.OriginRecord(2.0))
    for step in range(400):
        for row, one in enumerate(known):
            (ids[row, step], found[row, step]), record = one.predict()
            one.apply(record)
            for earlier in range(max(0, step - latest), step + 1):
                if delays[row, earlier] == step - earlier:
                    one.apply(one.judge(scores[row, earlier], ids[row, earlier])[1])
        for one in known:
            for other in known:
                one.merge_counters(other.counters, 9)
    if alpha.denominator == 8:
        np.testing.assert_array_equal(found, expected.thresholds)
    np.testing.assert_allclose(found, expected.thresholds, rtol=1e-12)
    for row, one in enumerate(known):
        assert one.own.misses == np.count_nonzero(expected.misses[row] == 1) > 0


def test_it_begins_with_the_calibration_scores_and_at_the_certified_threshold(folder):
    """The origin is the device's own then: told, it would say how large its scores are."""
    (folder / "scores.csv").write_text("score\n60\n100\n140\n")
    node = opened(folder, state(threshold=250.0), online=WHOLE | {"bound": 8.0})
    assert node.predict().threshold == 250.0
    shown = learnt(node)
    assert shown["origin"] == 2.5
    assert shown["scale"] == {"weight": 0.05, "now": 100.0, "scores": 3}
    node.observe(300.0)
    assert learnt(node)["scale"] == {"weight": 0.05, "now": 100.0 + 200.0 / 4, "scores": 4}
    again = opened(folder, online=WHOLE | {"bound": 8.0})
    assert learnt(again) == learnt(node)
    assert Counters.decode(message(node), node.rule).origin is None
    said = msgspec.msgpack.decode(message(node))
    said[2] = 7.0  # and what others say of theirs is not heard
    again.merge_counters(msgspec.msgpack.encode(said))
    assert (learnt(again)["origin"], learnt(again)["refused"]) == (2.5, {})


def test_without_a_scale_of_its_own_it_begins_with_its_first_label(folder):
    node = opened(folder, state(threshold=250.0), online=WHOLE | {"bound": 8.0})
    assert math.isinf(node.predict().threshold)  # nothing is known: all are covered
    node.observe(100.0)
    assert node.predict().threshold == pytest.approx((2.5 - 0.15 * 0.1) * 100.0)
    with pytest.raises(ValueError, match="finite number from 0 on"):
        node.observe(math.inf)
    for score in (-1.0, math.nan):
        with pytest.raises(ValueError, match="nothing is counted"):
            node.observe(score)


@pytest.mark.parametrize("push", ["up", "down", "either", "at random"])
def test_no_sequence_escapes_the_bound_with_a_scale(push):
    """Scores of any size, chosen by who sees the threshold; the bound is that of levels."""
    for seed in range(20):
        rng = random.Random(f"{push} {seed}")
        rule = CountingLearner(
            Fraction(rng.randint(1, 19), 20),
            rng.choice([0.0, 0.3]),
            rng.choice([0.05, 0.5]),
            4.0,
            rng.choice([0.01, 1]),
        )
        known = Observations("a", rule, 5)
        known.apply(online.OriginRecord(rng.uniform(0, 4)))
        for _ in range(200):
            known.merge_counters(
                Counters({Life("b", 0): CoverageCounts(n := rng.randrange(10**6), rng.choice([0, n]))}), 9
            )
            q = known.threshold
            owed = known.own.misses - rule.alpha * known.own.steps
            high = push == "up" or (push == "either" and owed >= 0) or (push == "at random" and rng.random() < 0.5)
            told(known, min(2 * max(q, 0.0) + rng.random(), 1e300) if high and q < math.inf else 0.0)
            account = known.accounts()[0]
            assert abs(account.rate - account.alpha) <= account.bound + 1e-12


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [("scale", -0.1, "weight of a score"), ("scale", 1.1, "weight of a score"), ("alarm", 1.0, "false alarm below 1")],
)
def test_options_out_of_range_are_refused(name, value, words):
    with pytest.raises(ValueError, match=f"online {name} must be .*{words}"):
        CountingLearner(Fraction(1, 10), **(LEARNING | {name: value}))


# --- what is shown ----------------------------------------------------------------------------------------------------


def test_everybody_can_see_it_and_the_device_stays_healthy(folder, caplog):
    node = state()
    found = opened(folder, node, online=WHOLE)
    with serving(node, online=found) as service:
        client = Client(service.address.path)
        assert client.health()["alarm"] == {"device": False, "fleet": False}
        for score in shifted():
            client.observe(score)
        shown, health, metrics = client.online()["alarm"], client.health(), numbers(client.metrics())
        assert client.status()["alarm"] == shown
    assert shown["raised"] == {"device": True, "fleet": True}
    assert shown["evidence"]["fleet"] == pytest.approx(shown["evidence"]["device"] / 3)
    assert (health["healthy"], health["alarm"]) == (True, shown["raised"])
    assert health["reasons"] == ["drift alarm of the device", "drift alarm of the fleet"]
    for of, evidence in shown["evidence"].items():
        assert metrics[f'conformesh_online_evidence{{of="{of}"}}'] == evidence
        assert metrics[f'conformesh_online_alarm{{of="{of}"}}'] == 1
    assert caplog.text.count("drift alarm of the fleet") == 1
    vitals = share_status(node.status(), 1.0)
    assert (vitals.healthy, vitals.codes, vitals.alarms) == (True, 0, 3)
    assert judge_health(node.status()).codes == []


def test_a_heartbeat_tells_it_from_device_to_device():
    world = World(Network.chain(3))
    world.pass_by(2.0)
    first, _, last = world.network.ids
    assert world.shown(last)[first]["alarms"] == []
    world.vitals[first] = msgspec.structs.replace(CALM, alarms=1)
    world.pass_by(0.9)  # it is news: before the next beat, over two links
    row = world.shown(last)[first]
    assert (row["health"], row["alarms"], _line(msgspec.convert(row, DeviceStatus))[-1]) == (
        "healthy",
        ["device"],
        "drift",
    )


def test_a_status_says_where_there_is_drift_and_is_fine():
    devices = [DeviceStatus.unknown(name, 3) for name in "abc"]
    for device in devices:
        device.health = "healthy"
    devices[0].alarms = ["device"]
    assert _summarise(devices) == (FINE, "3 devices, all healthy; drift alarm of {a}")
    devices[1].alarms = ["fleet"]
    assert _summarise(devices)[1] == "3 devices, all healthy; drift alarm of the fleet and of {a}"
