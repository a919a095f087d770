from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from conformesh import Network
from conformesh.engines import Simulator
from conformesh.kernels import varints
from conformesh.peer.device import Device
from conformesh.peer.frames import DATA
from conformesh.peer.interface import PeerSetup
from conformesh.peer.journal import MemoryJournal
from conformesh.peer.loopback import LinkFaults, Pause, run_loopback
from conformesh.peer.run_membership import reachable_rows
from conformesh.peer.settings import Settings
from conformesh.protocols.messages import MESSAGE_KINDS, Each, Max, Min, Packets, Sum, Tell
from tests.campaigns import campaign_seeds
from tests.kernels.test_replies import hostile
from tests.peer.devices import (
    LIMIT,
    Tapped,
    drawn_scores,
    expected,
    schedule,
    starter,
    thresholds,
    without,
)
from tests.strategies import networks

FOREVER = 1e9
GRAPHS = [Network.complete(4), Network.chain(6), Network.star(5), Network.torus(3, 3)]


def wrong(network, seeds, method="e-dcp", **options):
    """Return the seeds whose schedule ends otherwise than in the simulator."""
    scores = drawn_scores(network)
    start, right = starter(network, scores, method, **options), expected(network, scores, method, **options)
    bad = {}
    for seed in seeds:
        played = schedule(network, start, seed)
        if thresholds(played.devices) != right:
            bad[seed] = [(d.phase, d.round, str(d.error)) for d in played.devices]
    return bad


@pytest.mark.parametrize("graph", range(4))
def test_sixteen_schedules_end_with_the_simulators_thresholds(graph):
    assert wrong(GRAPHS[graph], range(16)) == {}


@pytest.mark.parametrize("method", ["h-dcp", "q-dcp"])
@pytest.mark.parametrize("graph", range(3))
@pytest.mark.parametrize("seeds", [range(2), pytest.param(range(2, 20), marks=pytest.mark.slow)])
def test_schedules_of_the_iterative_methods(method, graph, seeds):
    assert wrong(GRAPHS[graph], seeds, method, rounds=20) == {}


@pytest.mark.slow
@pytest.mark.parametrize("graph", range(4))
def test_many_schedules(graph):
    assert wrong(GRAPHS[graph], campaign_seeds(250, 16)) == {}


SCHEDULES = [
    {"schedule": "top-k", "aggregate": "flood"},
    {"schedule": "top-k", "aggregate": "tree"},
    {"schedule": "window"},
    {"schedule": "count"},
]
STAGES = {"schedule": "count", "aggregate": "flood"}


@pytest.mark.parametrize("options", SCHEDULES, ids=lambda options: "-".join(options.values()))
@pytest.mark.parametrize("graph", range(4))
@pytest.mark.parametrize("seeds", [range(2), pytest.param(range(2, 66), marks=pytest.mark.slow)], ids=["few", "many"])
def test_schedules_of_e_dcp_end_with_the_simulators_thresholds(options, graph, seeds):
    """Over lost, late and repeated frames and devices that start again: a thousand with the long tests."""
    assert wrong(GRAPHS[graph], seeds, **options) == {}


def lying(protocol, rng):
    """Say something else than the protocol does, now and then, where no frame is refused for it: any bytes."""
    try:
        message = next(protocol)
        while True:
            if isinstance(message, Tell) and message.check is None and len(message.places) and rng.random() < 0.5:
                packets = Packets.of([hostile(rng, message.packets[i]) for i in range(len(message.packets))])
                message = replace(message, packets=packets)
            message = protocol.send((yield message))
    except StopIteration as end:
        return end.value


@pytest.mark.parametrize("options", SCHEDULES, ids=lambda options: "-".join(options.values()))
@pytest.mark.parametrize("seeds", [range(6), pytest.param(range(6, 200), marks=pytest.mark.slow)], ids=["few", "many"])
def test_what_a_byzantine_device_says_ends_in_words(options, seeds):
    """Every device ends, with a threshold or with an error that says who cannot be understood; none hangs or breaks."""
    network, said = Network.chain(5), []
    for seed in seeds:
        rng, scores = np.random.default_rng([8, seed]), drawn_scores(network, seed)
        byzantine, honest = int(rng.integers(5)), starter(network, scores, **options)

        def start(k, journal, byzantine=byzantine, honest=honest, rng=rng):
            device = honest(k, journal)
            if k == byzantine:
                make = device.membership.make
                device.membership.make = lambda net, row: lying(make(net, row), rng)
            return device

        played = run_loopback(network, start, LinkFaults(), rng, limit=LIMIT)
        assert {device.phase for device in played.devices} <= {"finished", "failed"}
        said += [str(device.error) for device in played.devices if device.phase == "failed"]
    assert said
    for words in said:
        assert "could not go on: ValueError" in words
        assert "conformesh" in words or "contradict" in words or "were needed" in words or "asks what device" in words


def entries(said):
    """What a flood passes on: owners, and their strings."""
    data, at, found = np.frombuffer(said, np.uint8), 0, []
    while at < len(data):
        head = []
        for _ in range(2):
            (number,), (at,) = varints.decode_varints_at(data, np.array([at]), np.array([len(data)]))
            head.append(int(number))
        found.append((head[0], data[at : at + head[1]].tobytes()))
        at += head[1]
    return found


def false_sizes(rng, said, devices):
    """A flood's entries with another size, another owner, one more or one less; no frame is refused for it."""
    found, size = entries(said), varints.encode_varints(rng.choice([0, 1, 30, 200, 2**31, 2**62], 1)).tobytes()
    which, owner = int(rng.integers(len(found))), int(rng.integers(devices))
    lies = {
        "size": (found[which][0], size),
        "sizes": (found[which][0], size + size),
        "owner": (owner, found[which][1]),
        "one less": None,
        "one more": (owner, size),
    }
    how = str(rng.choice([*lies]))
    told = [one for i, one in enumerate(found) if i != which or how == "one more"] + [lies[how]] * (how != "one less")
    return b"".join(varints.encode_varints(np.array([k, len(own)])).tobytes() + own for k, own in told)


def lying_about_sizes(protocol, rng, devices):
    """Say other sizes than the protocol does, now and then; they are the only thing that is checked on arrival."""
    try:
        message = next(protocol)
        while True:
            if isinstance(message, Tell) and message.check is not None and len(message.places) and rng.random() < 0.5:
                said = Packets.of([false_sizes(rng, message.packets[0], devices)])
                message.check(said[0])
                message = replace(message, packets=said)
            message = protocol.send((yield message))
    except StopIteration as end:
        return end.value


@pytest.mark.parametrize("options", [*SCHEDULES, STAGES], ids=lambda options: "-".join(options.values()))
@pytest.mark.parametrize("seeds", [range(6), pytest.param(range(6, 100), marks=pytest.mark.slow)], ids=["few", "many"])
def test_false_sizes_end_in_words_or_do_no_harm(options, seeds):
    """Every device ends within its patience; the honest ones with one threshold, or with words."""
    said = []
    for seed in seeds:
        network = [Network.chain(5), Network.cycle(6), Network.star(5), Network.complete(4), Network.chain(2)][seed % 5]
        rng, scores = np.random.default_rng([9, seed]), drawn_scores(network, seed)
        byzantine, honest = int(rng.integers(network.devices)), starter(network, scores, **options)

        def start(k, journal, byzantine=byzantine, honest=honest, rng=rng, devices=network.devices):
            device = honest(k, journal)
            if k == byzantine:
                make = device.membership.make
                device.membership.make = lambda net, row: lying_about_sizes(make(net, row), rng, devices)
            return device

        played = run_loopback(network, start, LinkFaults(), rng, limit=LIMIT)
        assert {device.phase for device in played.devices} in ({"finished"}, {"failed"})
        assert max(device.membership.closed_at for device in played.devices) < Settings().patience + 5
        assert len({*thresholds([device for device in played.devices if device.row != byzantine])}) == 1
        said += [str(device.error) for device in played.devices if device.phase == "failed"]
    assert said
    reasons = ("trusted", "contradict", "has heard nothing of", "over flood", "says cannot be used")
    assert all(any(reason in words for reason in reasons) for words in said)


ASKED = sorted(kind.name for kind in MESSAGE_KINDS.values() if kind.code is not None)
conversations = st.lists(
    st.tuples(st.sampled_from(ASKED), st.sampled_from([0.0, 0.3, 1.0]), st.integers(0, 3), st.integers(0, 2**32 - 1)),
    min_size=1,
    max_size=6,
)


def asked(kind, share, most, seed, network, here):
    """Return a question of the devices here: of so many numbers or bytes at most, of which a share has some to say."""
    rng = np.random.default_rng(seed)
    values = rng.integers(-9, 9, (network.devices, most)).astype(rng.choice(["i2", "i8", "f4", "f8"]))
    strings = [rng.bytes(rng.integers(most, endpoint=True)) for _ in range(network.devices)]
    places = np.flatnonzero((rng.random(network.devices) < share)[here])
    if kind == "tell":
        return Tell(Packets.of([strings[k] for k in here[places]]), places, here[places])
    return Each(values[here], places) if kind == "each" else {"sum": Sum, "max": Max, "min": Min}[kind](values[here])


def heard_by(answer, here):
    """Return what each device here heard, by row."""
    if isinstance(answer, np.ndarray):
        return {k: (str(row.dtype), row.tolist()) for k, row in zip(here.tolist(), answer, strict=True)}
    said = answer.packets if hasattr(answer, "packets") else answer.values.tolist()
    each = [*zip(answer.receiver.tolist(), answer.sender.tolist(), [said[i] for i in range(len(said))], strict=True)]
    return {k: [(sender, words) for receiver, sender, words in each if receiver == k] for k in here.tolist()}


def conversation(questions, network, here):
    """Ask question after question; return what was heard, round by round."""
    heard = []
    for each in questions:
        heard.append(heard_by((yield asked(*each, network, here)), here))
    return heard


@given(networks(least=2, most=6), conversations, st.integers(0, 2**32 - 1))
def test_devices_hear_and_pay_what_the_simulator_says(network, questions, seed):
    """All kinds of questions in any order, over lost, late and repeated frames and devices that start again."""
    here = np.arange(network.devices)
    right, paid = Simulator(network).run(conversation(questions, network, here))

    def start(row, journal):
        return Device(PeerSetup(row, network, {}, lambda net, k: conversation(questions, net, np.array([k])), journal))

    played = schedule(network, start, seed)
    assert [device.phase for device in played.devices] == ["finished"] * network.devices
    for k, device in enumerate(played.devices):
        assert device.result == [{k: heard[k]} for heard in right]
        cost = device.ledger.cost()
        assert (cost.rounds, cost.numbers[0], cost.bits[0]) == (paid.rounds, paid.numbers[k], paid.bits[k])


def test_a_seed_is_a_schedule():
    network = Network.chain(4)
    start = starter(network, drawn_scores(network))
    traces = [schedule(network, start, seed).trace for seed in (3, 3, 4)]
    assert traces[0] == traces[1] != traces[2]


def test_everybody_waits_for_a_late_starter():
    network = Network.star(5)
    scores = drawn_scores(network)
    played = run_loopback(network, starter(network, scores), LinkFaults(late={3: 20.0}), np.random.default_rng(0))
    assert thresholds(played.devices) == expected(network, scores)
    assert played.seconds > 20


def killed(network, rows, settings, at=0.04, loss=0.0, seed=0):
    faults = LinkFaults(loss=loss, pauses=tuple(Pause(k, at, FOREVER, crash=True) for k in rows))
    scores = drawn_scores(network)
    start = starter(network, scores, settings=settings)
    return run_loopback(network, start, faults, np.random.default_rng(seed), limit=LIMIT), scores


@pytest.mark.parametrize("at", [0.0005, 0.02, 0.04])
@pytest.mark.parametrize(("network", "row"), [(Network.torus(3, 3), 4), (Network.chain(6), 0), (Network.star(5), 0)])
def test_a_device_killed_for_good_is_named_by_all_others(network, row, at):
    settings = Settings(patience=4.0)
    played, _ = killed(network, [row], settings, at=at)
    for k, device in enumerate(played.devices):
        if k != row:
            assert device.phase == "failed"
            assert str(device.error).startswith(f"{network.ids[row]} has not ")
            assert device.result is None
            assert device.membership.closed_at <= at + settings.patience + 5
    assert played.seconds <= at + settings.patience + settings.linger + 5


@pytest.mark.parametrize("seed", [*range(3), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(3, 10))])
def test_the_news_of_a_loss_survives_lost_frames(seed):
    network = Network.torus(3, 3)
    played, _ = killed(network, [4], Settings(patience=6.0), loss=0.2, seed=seed)
    for k, device in enumerate(played.devices):
        if k != 4:
            assert device.phase == "failed"
            assert str(device.error).startswith(f"{network.ids[4]} has not ")


@pytest.mark.parametrize("at", [0.0005, 0.02, 0.04])
@pytest.mark.parametrize(
    ("network", "rows"),
    [
        (Network.torus(3, 3), [4]),
        (Network.torus(3, 3), [0, 8]),
        (Network.chain(6), [5]),
        (Network.complete(5), [1, 2]),
        (Network.chain(6), [1]),  # 0 is cut off and left out, though it lives
        (Network.star(5), [4]),
    ],
)
def test_survivors_go_on_with_the_threshold_of_the_smaller_network(network, rows, at):
    played, scores = killed(network, rows, Settings(patience=3.0, on_lost="continue"), at=at)
    kept = sorted(reachable_rows(network, network.devices - 1 - (network.devices - 1 in rows), frozenset(rows)))
    left = [played.devices[k] for k in kept]
    outside = [k for k in range(network.devices) if k not in kept]
    assert thresholds(left) == expected(without(network, outside), [scores[k] for k in kept])
    assert {device.survivors for device in left} == {tuple(kept)}
    assert all(played.devices[k].phase == "failed" for k in outside if k not in rows)


@pytest.mark.parametrize("seed", [*range(3), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(3, 10))])
def test_survivors_go_on_over_a_bad_network(seed):
    network, rows = Network.torus(3, 3), [2]
    settings = Settings(patience=6.0, on_lost="continue")
    played, scores = killed(network, rows, settings, loss=0.2, seed=seed)
    kept = [k for k in range(network.devices) if k not in rows]
    left = [played.devices[k] for k in kept]
    assert thresholds(left) == expected(without(network, rows), [scores[k] for k in kept])


@pytest.mark.parametrize("loss", [0.0, 0.2])
def test_a_loss_that_leaves_no_quorum_ends_it_for_everybody(loss):
    network = Network.chain(5)
    settings = Settings(patience=4.0, on_lost="continue")
    played, _ = killed(network, [2], settings, loss=loss)
    for k in (0, 1, 3, 4):
        assert played.devices[k].phase == "failed"
        words = str(played.devices[k].error)
        assert words.startswith(f"{network.ids[2]} has not ")
        assert f"without {{{'2, 3, 4' if k < 2 else '0, 1, 2'}}} 2 of 5 devices are left, and 3 are needed" in words
        assert played.devices[k].membership.closed_at <= 0.04 + settings.patience + 5


def disagreeing(network, odd, seed=0, settings=None, **faults):
    scores = drawn_scores(network)
    starts = [starter(network, scores, alpha=alpha, device=Tapped, settings=settings) for alpha in (0.1, 0.2)]
    rng = np.random.default_rng(seed)
    return run_loopback(network, lambda k, j: starts[k == odd](k, j), LinkFaults(**faults), rng, limit=LIMIT)


@pytest.mark.parametrize("on_lost", ["fail", "continue"])
@pytest.mark.parametrize("loss", [0.0, 0.3])
@pytest.mark.parametrize("network", [Network.chain(2), Network.chain(6), Network.star(5), Network.complete(4)])
def test_one_that_does_not_agree_ends_everybody_before_any_number_is_sent(network, loss, on_lost):
    """Also the devices far from it, and also where a single hello is lost."""
    for seed in range(6 if loss else 1):
        settings = Settings(patience=8.0, on_lost=on_lost)
        played = disagreeing(network, odd=0, seed=seed, settings=settings, loss=loss)
        for device in played.devices:
            assert device.phase == "failed"
            assert device.error.code == "disagreement"
            for word in ("do not agree", "alpha", f"'0.2' at {network.ids[0]}", "'0.1' at"):
                assert word in str(device.error)
            assert not [frame for frame in device.said if frame.kind == DATA]


def test_devices_that_have_failed_do_not_answer_each_other_for_ever():
    network = Network.complete(4)
    played = disagreeing(network, odd=0, duplication=0.5, delay=(0.0001, 0.001))
    assert played.frames < 2000


def test_a_device_that_failed_asks_for_the_next_run():
    """News of an old failure must not end the next attempt."""
    network, journals = Network.chain(3), [MemoryJournal() for _ in range(3)]
    scores, rng = drawn_scores(network), np.random.default_rng(0)
    starts = [starter(network, scores, alpha=alpha) for alpha in (0.1, 0.2)]
    first = run_loopback(network, lambda k, _: starts[k == 0](k, journals[k]), LinkFaults(), rng)
    assert {device.phase for device in first.devices} == {"failed"}
    again = run_loopback(network, lambda k, _: starts[0](k, journals[k]), LinkFaults(), rng)
    assert thresholds(again.devices) == expected(network, scores)
    assert {device.number for device in again.devices} == {2}


def test_a_journal_of_other_scores_leads_to_a_new_run():
    network = Network.chain(4)
    old, rng = drawn_scores(network), np.random.default_rng(0)
    journals = [MemoryJournal() for _ in range(4)]
    first = starter(network, old)
    half = run_loopback(network, lambda k, _: first(k, journals[k]), LinkFaults(), rng, limit=0.05)
    assert {d.phase for d in half.devices} == {"running"}
    new = [scores + 1 if k == 2 else scores for k, scores in enumerate(old)]
    second = starter(network, new)
    played = run_loopback(network, lambda k, _: second(k, journals[k]), LinkFaults(), rng)
    assert thresholds(played.devices) == expected(network, new) != expected(network, old)
    assert {d.number for d in played.devices} == {2}


def test_a_journal_of_the_same_scores_goes_on_in_the_same_run():
    network = Network.chain(4)
    scores, rng = drawn_scores(network), np.random.default_rng(0)
    journals = [MemoryJournal() for _ in range(4)]
    start = starter(network, scores)
    half = run_loopback(network, lambda k, _: start(k, journals[k]), LinkFaults(), rng, limit=0.05)
    assert {d.phase for d in half.devices} == {"running"}
    played = run_loopback(network, lambda k, _: start(k, journals[k]), LinkFaults(), rng)
    assert thresholds(played.devices) == expected(network, scores)
    assert {d.number for d in played.devices} == {1}
