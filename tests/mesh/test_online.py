"""A device that learns online: what it writes down is what it knows, however and whenever it ends."""

import errno
import json
import math
import os
import random
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from msgspec import to_builtins

from conformesh.mesh.http.client import Client, NodeError
from conformesh.mesh.http.metrics import METRICS
from conformesh.mesh.node import online, online_records
from conformesh.mesh.node.online import EARLIER_JOURNAL_FILE, JOURNAL_FILE, OnlineLearning
from conformesh.mesh.node.online_records import LABEL_WINDOW, Observations, encode_record
from conformesh.online.counters import Counters, CountingLearner, CoverageCounts, Life
from conformesh.peer.journal import FileJournal, whole_records
from conformesh.scores import APS, LAC, AbsoluteResidual

from .meshes import config
from .nodes import asked, numbers, serving, short_folder, state

LEARNING = {"learning": 0.1, "local": 0.05, "bound": 1.0}
RULE = CountingLearner(Fraction(1, 10), **LEARNING)
WHOLE = LEARNING | {"scale": 0.05, "alarm": 0.05}  # with an own scale and a drift alarm


@pytest.fixture
def folder():
    with short_folder() as found:
        yield found


@pytest.fixture
def unflushed(monkeypatch):
    """A disk that is quick, for what would flush it a thousand times."""
    monkeypatch.setattr(os, "fsync", lambda handle: None)


def opened(folder, node=None, **changes):
    """The online part of the middle one of three devices, as after a start."""
    found = OnlineLearning(config(folder=folder, **{"online": LEARNING, **changes}), node or state(certified=False))
    found.open()
    return found


def learnt(node):
    """What a node has learnt online, as JSON has it."""
    return to_builtins(node.status())


def message(node):
    """What neighbours are told."""
    return node._observations.counters.encode(node.rule)


def heard(*tallies, origin=None):
    return Counters(dict(tallies), origin)


# --- what is written down ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("learning", [LEARNING, WHOLE])
@pytest.mark.usefixtures("unflushed")
def test_a_device_that_was_killed_goes_on_with_the_very_same_numbers(folder, learning):
    """Closed in no way at all: the next one finds what was said, whatever was heard and whoever waits for a label."""
    rng, first = random.Random(7), opened(folder, state(), online=learning)
    rule = first.rule
    waiting, said = [], {}
    for step in range(300):
        if rng.random() < 0.5:
            waiting.append(first.predict().id)
        if waiting and rng.random() < 0.6:
            id = waiting.pop(rng.randrange(len(waiting)))
            said[id] = first.observe(rng.random(), id)
        if rng.random() < 0.2:
            judged = first.observe(rng.random())
            said[judged.id] = judged
        first.merge_counters(heard((Life("device-00", 4), CoverageCounts(step, step // 9))).encode(rule))
        first.store_reported(100.0 * step)
    second = opened(folder, online=learning)
    assert learnt(second) == learnt(first)
    assert second._observations.to_record() == first._observations.to_record()
    assert message(second) == message(first)
    assert learnt(second)["device"]["steps"] == len(said) > 150
    for id, judged in said.items():
        again = second.observe(0.123, id)  # another score than before changes nothing
        assert again == judged._replace(repeated=True)
    assert learnt(second) == learnt(first)
    assert [second.observe(0.5, id).repeated for id in waiting] == [False] * len(waiting)


@pytest.mark.parametrize("learning", [LEARNING, WHOLE])
@pytest.mark.usefixtures("unflushed")
def test_a_journal_cut_anywhere_is_one_that_ended_earlier(folder, learning):
    node = opened(folder, online=learning)
    stages = [learnt(node)]
    for score in (0.3, 0.9):
        node.observe(score, node.predict().id)
        stages.append(learnt(node))
    node.close()
    data = (folder / JOURNAL_FILE).read_bytes()
    counted = []
    for size in range(0, len(data) + 1, 1 if learning is LEARNING else 5):
        (folder / JOURNAL_FILE).write_bytes(data[:size])
        again = opened(folder, online=learning)
        counted.append(learnt(again)["device"]["steps"])
        for what in ("scale", "alarm"):
            assert learnt(again)[what] == stages[counted[-1]][what]
        if size % 15 == 0:  # and it can be written to
            again.observe(0.5)
            assert learnt(opened(folder, online=learning)) == learnt(again)
        again.close()
    assert counted == sorted(counted)
    assert {*counted} == {0, 1, 2}


def test_without_a_journal_the_numbers_are_lost(folder, monkeypatch):
    """The check itself: what is acknowledged before it is written down is not there after a start."""
    monkeypatch.setattr(FileJournal, "append", lambda self, record: None)
    first = opened(folder)
    judged = first.observe(0.5)
    second = opened(folder)
    assert learnt(second) != learnt(first)
    with pytest.raises(LookupError):
        second.observe(0.5, judged.id)


def test_a_lie_about_a_device_changes_nothing_that_it_says_of_itself(folder):
    node = opened(folder)
    for _ in range(30):
        node.observe(0.5)
    before = learnt(node)["device"]
    (mine,) = node._observations.counters.tallies
    node.merge_counters(
        heard((mine, CoverageCounts(10**9, 10**9)), (Life("device-01", 1), CoverageCounts(10**9, 0))).encode(RULE)
    )
    assert learnt(node)["device"] == before
    node.observe(0.5)
    assert learnt(opened(folder))["device"] == learnt(node)["device"]


def test_the_journal_stays_short(folder, monkeypatch):
    monkeypatch.setattr(online, "MOST_RECORDS", 10)
    node = opened(folder)
    sizes = []
    for _ in range(95):
        node.observe(0.5)
        sizes.append(len([*whole_records((folder / JOURNAL_FILE).read_bytes())]))
    assert max(sizes) == 10
    assert learnt(opened(folder)) == learnt(node)
    assert learnt(node)["device"]["steps"] == 95


def test_what_cannot_be_written_is_not_counted(folder, monkeypatch):
    node = opened(folder)
    example = node.predict()
    node.observe(0.5)
    before, real = learnt(node), os.write

    def full(handle, data):
        real(handle, data[: len(data) // 2])
        raise OSError(errno.ENOSPC, "no space left")

    with monkeypatch.context() as broken:
        broken.setattr(os, "write", full)
        with pytest.raises(OSError, match=r"cannot be written.*nothing is counted"):
            node.observe(0.7, example.id)
        with pytest.raises(OSError, match="no space"):
            node.observe(0.7)
    assert learnt(node) == before
    assert not node.observe(0.7, example.id).repeated
    assert learnt(node)["device"]["steps"] == 2
    assert learnt(opened(folder)) == learnt(node)


def test_a_journal_that_cannot_be_flushed_is_not_counted_either(folder, monkeypatch):
    node = opened(folder)

    def broken(handle):
        raise OSError(errno.EIO, "the disk is gone")

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", broken)
        with pytest.raises(OSError, match="nothing is counted"):
            node.observe(0.7)
    assert node.observe(0.7).repeated is False
    assert learnt(opened(folder))["device"]["steps"] == 1


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.usefixtures("unflushed")
def test_a_kill_while_the_journal_is_made_shorter_loses_nothing(folder, monkeypatch, when):
    """Before the new file has the name, or after it, and before anything else."""

    class Killed(BaseException):
        pass

    def killed(draft, target):
        if when == "after":
            os.replace(draft, target)
        raise Killed

    monkeypatch.setattr(online, "MOST_RECORDS", 10)
    node = opened(folder)
    examples = [node.predict() for _ in range(9)]
    with monkeypatch.context() as broken:
        broken.setattr(Path, "replace", killed)
        with pytest.raises(Killed):
            node.observe(0.5, examples[0].id)
    again = opened(folder)
    assert learnt(again)["device"]["steps"] == 1
    assert [again.observe(0.5, example.id).repeated for example in examples] == [True] + [False] * 8


def test_another_rule_counts_anew_and_keeps_the_old_journal(folder, caplog):
    opened(folder).observe(0.5)
    node = opened(folder, alpha="0.2")
    assert learnt(node)["device"]["steps"] == 0
    assert (folder / EARLIER_JOURNAL_FILE).exists()
    assert "it was made under alpha 1/10" in caplog.text
    assert message(opened(folder, alpha="0.2")) == message(node)


# --- labels -----------------------------------------------------------------------------------------------------------


def test_a_label_is_judged_by_the_threshold_of_its_prediction():
    known = Observations("a", RULE, 5)
    example, record = known.predict()
    known.apply(record)
    for _ in range(12):
        _, record = known.judge(0.0, None)  # thresholds fall
        known.apply(record)
    assert known.threshold < example.threshold
    judged, record = known.judge(example.threshold, example.id)
    assert not judged.missed
    known.apply(record)
    assert known.own == CoverageCounts(13, 0, 1)  # twelve were predicted without one label


@pytest.mark.parametrize("late", [0, 1, 7])
def test_late_labels_are_counted_where_they_came(late):
    """Every label comes after so many more predictions: each was made without as many."""
    known, waiting = Observations("a", RULE, 5), []
    for _ in range(60):
        example, record = known.predict()
        known.apply(record)
        waiting.append(example.id)
        if len(waiting) > late:
            known.apply(known.judge(0.5, waiting.pop(0))[1])
    assert known.own.late == late
    missing = known.own
    for id in waiting[1:]:  # the first of them never comes
        known.apply(known.judge(0.5, id)[1])
    assert (known.own.steps, known.own.late) == (missing.steps + max(late - 1, 0), max(late, 0))


def test_what_never_comes_is_forgotten_after_a_while():
    known = Observations("a", RULE, 5)
    example, record = known.predict()
    known.apply(record)
    judged, record = known.judge(0.5, None)
    known.apply(record)
    for _ in range(LABEL_WINDOW):
        known.apply(online_records.ObservationRecord(0.5, 0.4))
    for id in (example.id, judged.id):
        with pytest.raises(LookupError, match=f"more than {LABEL_WINDOW} predictions ago"):
            known.judge(0.5, id)
    assert max(map(len, (known.pending, known.labelled, known._without))) == LABEL_WINDOW


@pytest.mark.parametrize("id", ["", "-", "-1", "0-0", "0000000000000005-1", "0000000000000005-00", "5-0", "x" * 300])
def test_ids_of_nobody_are_refused(id):
    known = Observations("a", RULE, 5)
    known.apply(known.predict()[1])
    with pytest.raises(LookupError, match="none that this device predicted"):
        known.judge(0.5, id)


@pytest.mark.parametrize("score", [-0.1, 1.1, math.inf, math.nan])
def test_scores_out_of_range_are_refused(score):
    with pytest.raises(ValueError, match=r"must lie from 0 to bound = 1 .* nothing is counted"):
        Observations("a", RULE, 5).judge(score, None)


# --- others -----------------------------------------------------------------------------------------------------------


def test_who_joins_starts_from_the_network(folder):
    node = opened(folder)
    assert learnt(node)["threshold"] == 1.0  # nothing is known: all are covered
    node.merge_counters(heard((Life("device-00", 1), CoverageCounts(100, 12)), origin=0.5).encode(RULE))
    assert node.predict().threshold == pytest.approx(0.5 + 0.1 * 2)
    assert learnt(node)["reported"]["device-00"] == {"steps": 100, "misses": 12, "lives": 1}


def test_all_begin_with_the_certified_threshold(folder):
    node = opened(folder, state(threshold=0.75))
    assert node.predict().threshold == 0.75
    assert learnt(opened(folder))["origin"] == 0.75
    for threshold, origin in ((math.inf, 1.0), (-3.0, 0.0)):
        with short_folder() as other:
            node = opened(other, state(threshold=threshold))
            node.predict()
            assert learnt(node)["origin"] == origin


def test_who_is_in_no_roster_is_not_heard_of_and_who_left_stays(folder):
    node = opened(folder)
    node.merge_counters(
        heard((Life("device-02", 1), CoverageCounts(50, 5)), (Life("stranger", 1), CoverageCounts(9, 9))).encode(RULE)
    )
    assert {*learnt(node)["reported"]} == {"device-02"}
    names = ("device-00", "device-01")
    smaller = config(
        folder=folder,
        online=LEARNING,
        devices=names,
        edges=(names,),
        endpoints={name: f"127.0.0.1:{7600 + k}" for k, name in enumerate(names)},
    )
    node.set_roster(smaller)
    node.merge_counters(heard((Life("device-02", 1), CoverageCounts(60, 6))).encode(RULE))
    node.store_reported(0.0)
    everybody = learnt(node)["everybody"]
    assert (everybody["steps"], everybody["misses"]) == (60, 6)
    assert everybody["within"] == pytest.approx(20.9 / 60)  # who has made no step owes nothing
    assert learnt(opened(folder))["everybody"] == everybody  # also after a start, when nobody may tell of it


@pytest.mark.parametrize("data", [b"", b"\x00", b"nothing", bytes(2**20 + 1)])
def test_what_is_malformed_changes_nothing(folder, data):
    node = opened(folder)
    before = message(node)
    node.merge_counters(data)
    assert message(node) == before
    assert sum(learnt(node)["refused"].values()) == 1


def test_a_lost_journal_is_another_life(folder):
    first = opened(folder)
    for _ in range(5):
        first.observe(0.5)
    told = message(first)
    (folder / JOURNAL_FILE).unlink()
    second = opened(folder)
    second.observe(0.5)
    second.merge_counters(told)
    for _ in range(94):
        second.observe(0.5)
    shown = learnt(second)
    assert shown["reported"]["device-01"] == {"steps": 100, "misses": shown["everybody"]["misses"], "lives": 2}
    assert (shown["device"]["steps"], shown["everybody"]["within"]) == (95, pytest.approx(2 * 20.9 / 100))


def test_an_old_journal_counts_as_another_life_from_where_it_was_read(folder):
    """A folder that was put back: others know ten steps, its journal four, and three more were made since."""
    first = opened(folder)
    for step in range(10):
        if step == 4:
            old = (folder / JOURNAL_FILE).read_bytes()
        first.observe(1.0 if step % 2 else 0.0)
    told, misses = message(first), learnt(first)["device"]["misses"]
    first.close()
    (folder / JOURNAL_FILE).write_bytes(old)
    second = opened(folder)
    waiting = second.predict()
    since = [second.observe(0.5) for _ in range(3)]
    second.merge_counters(told)
    everybody = learnt(second)["everybody"]
    assert (everybody["steps"], everybody["misses"]) == (13, misses + sum(one.missed for one in since))
    with pytest.raises(LookupError):  # its number may have been that of another example
        second.observe(0.5, waiting.id)
    second.observe(0.5)
    second.merge_counters(told)
    third = opened(folder)
    assert learnt(third) == learnt(second)
    assert (learnt(third)["everybody"]["steps"], learnt(third)["device"]["steps"]) == (14, 4)
    assert third._observations.own.parts == 2  # twice the bound


def test_states_that_meet_in_any_order_agree():
    """Three devices say what they know to whoever hears it; in the end all know the same, and nothing twice."""
    rng = random.Random(3)
    known = [Observations(name, RULE, k) for k, name in enumerate("abc")]
    said = []
    for _ in range(400):
        one = rng.choice(known)
        one.apply(one.judge(rng.random(), None)[1])
        said.append(one.counters)
        rng.choice(known).merge_counters(rng.choice(said), 99)  # old, repeated, from anybody
    for one in known:
        for other in known:
            one.merge_counters(other.counters, 99)
    assert known[0].counters == known[1].counters == known[2].counters
    assert known[0].counters.steps == 400


# --- over HTTP --------------------------------------------------------------------------------------------------------


@pytest.fixture
def learning(folder):
    """A service that learns online, with probabilities of three labels."""
    node = state(threshold=0.75)
    found = opened(folder, node, score="lac")
    with serving(node, online=found) as service:
        yield service, found


def test_programs_predict_and_tell_labels(learning):
    service, node = learning
    client = Client(service.address.path)
    first = client.predict_next([0.7, 0.2, 0.1])
    assert (first["set"], first["size"], first["threshold"]) == ([0], 1, 0.75)
    answer = client.observe(outputs=[0.7, 0.2, 0.1], label=1, example=first["example"], then=[0.5, 0.3, 0.2])
    assert (answer["score"], answer["missed"], answer["repeated"]) == (pytest.approx(0.8), True, False)
    assert answer["next"]["threshold"] == answer["threshold_now"] == pytest.approx(0.75 + 0.15 * 0.9)
    assert answer["next"]["set"] == [0, 1, 2]
    again = client.observe(0.8, example=first["example"])
    assert again["repeated"]
    assert again["device"]["steps"] == 1
    assert client.observe(0.1, example=answer["next"]["example"])["device"]["steps"] == 2
    assert client.observe(0.1)["device"]["words"].startswith("so far 0.333, guaranteed within ")
    shown = client.online()
    assert (shown["device"]["steps"], shown["device"]["misses"], shown["pending"]) == (3, 1, 0)
    assert {*client.predict_next()} == {"example", "threshold"}
    metrics = numbers(client.metrics())
    names = [metric.exposed for metric in METRICS if metric.name.startswith("online_")]
    assert names == [
        "conformesh_online_steps_total",
        "conformesh_online_misses_total",
        "conformesh_online_threshold",
        "conformesh_online_bound",
        "conformesh_online_evidence",
        "conformesh_online_alarm",
    ]
    assert [metrics[name] for name in names[:4]] == [3, 1, learnt(node)["threshold"], learnt(node)["device"]["within"]]
    assert not any(name.startswith((*names[4:],)) for name in metrics)  # there is no alarm


def test_intervals(folder):
    node = state(threshold=0.5)
    found = opened(folder, node, score="absolute-residual")
    assert isinstance(found.score, AbsoluteResidual)
    with serving(node, online=found) as service:
        client = Client(service.address.path)
        first = client.predict_next(2.0)
        assert first["interval"] == pytest.approx([1.5, 2.5])
        answer = client.observe(outputs=2.0, label=2.25, example=first["example"], then=[3.0])
        assert (answer["score"], answer["missed"]) == (0.25, False)
        assert answer["next"]["interval"][1] < 3.5


REFUSED = {
    "{}": (400, "needed 'score'"),
    "[]": (400, "must be a JSON object"),
    '{"score": 0.5, "label": 1}': (400, "needed 'score'"),
    '{"score": 0.5, "outputs": [1, 0, 0], "label": 1}': (400, "needed 'score'"),
    '{"outputs": [1, 0, 0]}': (400, "needed 'score'"),
    '{"score": "x"}': (400, "'score' must be a number"),
    '{"score": true}': (400, "'score' must be a number"),
    '{"score": 2}': (400, "from 0 to bound = 1"),
    '{"score": "inf"}': (400, "from 0 to bound = 1"),
    '{"score": 0.5, "example": 5}': (400, "'example' must be the id"),
    '{"score": 0.5, "example": "5"}': (409, "none that this device predicted"),
    '{"score": 0.5, "exmaple": "5"}': (400, "did you mean 'example'"),
    '{"score": 0.5, "next": 5}': (400, "'next' must be an object"),
    '{"score": 0.5, "next": {"outputs": [0.5, 0.7, "x"]}}': (400, "'outputs' must hold numbers only"),
    '{"score": 0.5, "next": {"outputs": [[0.5, 0.5]]}}': (400, "those of one example"),
    '{"score": 0.5, "next": {"outputs": [5, -4]}}': (400, "probabilities"),
    '{"outputs": [1, 0, 0], "label": 0.5}': (400, "number of a class"),
    '{"outputs": [1, 0, 0], "label": 3}': (400, "label"),
}


@pytest.mark.parametrize("body", REFUSED)
def test_what_is_refused_counts_nothing(learning, body):
    service, node = learning
    status, words = REFUSED[body]
    found, answer = asked(service, "POST", "/observe", body)
    assert (found, words in answer["error"]) == (status, True), answer
    shown = learnt(node)
    assert (shown["device"]["steps"], shown["pending"]) == (0, 0)


def test_without_it_a_node_says_so():
    with serving() as service:
        for verb, path in (("GET", "/online"), ("POST", "/observe"), ("POST", "/predict_next")):
            status, answer = asked(service, verb, path, None if verb == "GET" else "{}")
            assert (status, "device.toml has no [online]" in answer["error"]) == (501, True)
        assert not any("online" in name for name in numbers(Client(service.address.path).metrics()))


def test_many_programs_that_insist_at_once_are_counted_once(learning):
    service, node = learning
    client = Client(service.address.path)
    ids = [client.predict_next()["example"] for _ in range(20)]
    with ThreadPoolExecutor(8) as pool:
        answers = [*pool.map(lambda id: client.observe(0.5, example=id), ids * 4)]
    assert learnt(node)["device"]["steps"] == 20
    assert sum(not answer["repeated"] for answer in answers) == 20


def test_a_full_disk_is_an_answer(learning, monkeypatch):
    service, _ = learning

    def full(handle, data):
        raise OSError(errno.ENOSPC, "no space left")

    with monkeypatch.context() as broken:
        broken.setattr(os, "write", full)
        status, answer = asked(service, "POST", "/observe", '{"score": 0.5}')
    assert (status, "nothing is counted" in answer["error"]) == (503, True)
    assert asked(service, "POST", "/observe", '{"score": 0.5}')[1]["device"]["steps"] == 1


def test_a_score_that_draws_anew_is_refused(folder):
    found = opened(folder, score="aps", score_options={"randomised": True})
    assert found.score == APS(randomised=True)
    with serving(online=found) as service:
        answer = asked(service, "POST", "/predict_next", json.dumps({"outputs": [0.5, 0.5]}))
        assert answer[0] == 400
        assert "draws anew" in answer[1]["error"]
    with serving(online=opened(folder)) as service, pytest.raises(NodeError, match="names no score"):
        Client(service.address.path).predict_next([0.5, 0.5])


def test_sets_have_the_label_exactly_where_it_is_no_miss(learning):
    service, _ = learning
    client, rng = Client(service.address.path), np.random.default_rng(5)
    for _ in range(40):
        row, label = rng.dirichlet(np.ones(3)), int(rng.integers(3))
        example = client.predict_next(row)
        answer = client.observe(outputs=row, label=label, example=example["example"])
        assert answer["missed"] == (label not in example["set"])
        assert answer["score"] == LAC()(row[None], [label])[0]


def test_records_are_read_as_they_were_written():
    known = Observations("a", RULE, 5)
    records = [known.to_record()]
    for score in (0.2, 0.9):
        example, record = known.predict()
        records.append(record)
        known.apply(record)
        _, record = known.judge(score, example.id)
        records.append(record)
        known.apply(record)
    again = Observations("a", RULE, 77)
    again.read([encode_record(record) for record in records])
    assert again.to_record() == known.to_record()
    with pytest.raises(ValueError, match="not what a device writes"):
        again.read([b"\x93\xa5other"])
