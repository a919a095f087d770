"""A recorder changes nothing, notes what was said and shown, and takes no more time than it was given."""

import threading
import warnings

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from conformesh import METHODS, Network, calibrate
from conformesh.engines.faulty import MessageLoss
from conformesh.engines.observers import ObserverGroup, RunObserver
from conformesh.engines.simulator import Simulator
from conformesh.methods import Method
from conformesh.protocols.faults import Faults
from conformesh.protocols.masks import Secrets
from conformesh.protocols.messages import Sum
from conformesh.view import Recorder
from conformesh.view.recording import MAX_STEPS, RecordedState, Recording
from conformesh.view.trace import Column, Step, TraceHeading
from tests.protocols.alone import repeatable_secrets

# Scores between 0 and 1, for which q-dcp's epsilon0 = 0.1 is much.
pytestmark = pytest.mark.filterwarnings("ignore:q-dcp. the error terms:conformesh.CalibrationNote")

WAYS = [
    ("e-dcp", {}),
    ("e-dcp", {"prefer": "rounds"}),
    ("e-dcp", {"schedule": "count", "aggregate": "flood"}),
    ("e-dcp", {"schedule": "count", "aggregate": "tree"}),
    ("q-dcp", {"rounds": 40}),
    ("q-dcp", {"rounds": 40, "continuation": 4}),
    ("q-dcp", {"rounds": 40, "asynchronous": True}),
    ("h-dcp", {"rounds": 30}),
    ("h-dcp", {"consensus": "projection", "bins": 20}),
    ("r-dcp", {"byzantine": 1}),
    ("p-dcp", {}),
    ("p-dcp", {"epsilon": 1.0}),
    *((name, {}) for name in ("cp", "fcp", "fedcp-qq", "wfcp", "local", "average")),
]


def held_by(devices, seed=0):
    rng = np.random.default_rng(seed)
    return [rng.random(int(n)) for n in rng.integers(5, 40, devices)]


def recorded(network, method="e-dcp", share=None, faults=None, **options):
    recorder = Recorder(share)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        result = calibrate(held_by(network.devices), network, 0.1, method, observer=recorder, faults=faults, **options)
    recorder.finish(result)
    return recorder, result


def plain(network, method="e-dcp", **options):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return calibrate(held_by(network.devices), network, 0.1, method, **options)


def thresholds_by_round(recorder):
    [run] = recorder.trace().runs
    known, shown = RecordedState(len(run.heading.devices)), {}
    for step in run.steps:
        known.take(step)
        shown[step.at] = [*known.fields.get("threshold", ())]
    return shown


# --- a view never changes a run ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(("method", "options"), WAYS, ids=str)
@pytest.mark.parametrize("network", [Network.chain(7), Network.torus(4, 3)], ids=lambda net: net.name)
def test_thresholds_certificates_and_ledgers_are_the_same_with_a_recorder(network, method, options, monkeypatch):
    monkeypatch.setattr(Secrets, "simulated", repeatable_secrets)  # a simulation draws fresh ones
    _, watched = recorded(network, method, **options)
    alone = plain(network, method, **options)
    assert watched.thresholds.tobytes() == alone.thresholds.tobytes()
    assert watched.certificate == alone.certificate
    assert watched.cost.rounds == alone.cost.rounds
    assert watched.cost.numbers.tobytes() == alone.cost.numbers.tobytes()
    assert watched.cost.bits.tobytes() == alone.cost.bits.tobytes()


def test_every_method_is_among_the_ways():
    assert {method for method, _ in WAYS} == set(METHODS)


def test_a_recorder_leaves_the_simulator_its_memory():
    """Nothing is kept for it: the simulator goes the way it goes when nobody watches, also in the order of memory."""
    network = Network.erdos_renyi(3000, seed=0, p=0.003)
    engine = Simulator.in_memory_order(network, Recorder())
    assert (engine.order is None) == (Simulator.in_memory_order(network).order is None)
    assert Simulator.in_memory_order(network, lambda *_: None).order is None


def test_rows_are_those_of_the_network_in_any_order_of_memory():
    network = Network.chain(6)
    order = np.array([5, 3, 1, 0, 2, 4])
    rows = {}
    for name, chosen in (("own", None), ("other", order)):
        recorder = Recorder()
        engine = Simulator(network, recorder, chosen)
        result = calibrate(held_by(6), network, 0.1, "q-dcp", engine=engine, rounds=5)
        recorder.finish(result)
        [run] = recorder.trace().runs
        rows[name] = [(step.at, step.devices.get("threshold")) for step in run.steps]
    assert rows["own"] == rows["other"]


# --- what is noted ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("method", "options"), WAYS, ids=str)
def test_bits_of_all_steps_are_the_ledgers(method, options, monkeypatch):
    """Where no round is left out; what an oracle sees costs nothing and is not said."""
    monkeypatch.setattr("conformesh.view.recording.DENSE_ROUNDS", 10**6)
    network = Network.star(6)
    recorder, result = recorded(network, method, **options)
    [run] = recorder.trace().runs
    said = np.zeros(network.devices)
    for step in run.steps:
        if step.said is not None:
            rows = slice(None) if step.said.rows is None else step.said.rows
            said[rows] += step.said.bits if len(step.said.bits) > 1 else step.said.bits[0]
    assert said.tolist() == result.cost.bits.tolist()


def test_the_bracket_closes_on_the_threshold():
    recorder, result = recorded(Network.chain(12))
    brackets = [step.bracket for step in recorder.trace().runs[0].steps if step.bracket is not None]
    assert brackets[0] == ("-inf", "inf", None, None)
    assert len(brackets) > 2
    rank = result.certificate.counted_rank
    assert brackets[-1] == (result.threshold, result.threshold, rank, rank)


def test_the_bracket_of_stages_holds_the_rank_between_its_counts():
    recorder, result = recorded(Network.cycle(8), schedule="count", aggregate="flood", width=1)
    brackets = [step.bracket for step in recorder.trace().runs[0].steps if step.bracket is not None]
    assert len(brackets) > 3
    for low, high, below, upto in brackets[:-1]:
        assert below < result.certificate.required_rank <= upto
        assert float(low) < float(high)
    rank = result.certificate.counted_rank
    assert brackets[-1] == (result.threshold, result.threshold, rank, rank)


def test_estimates_of_q_dcp_are_what_devices_say():
    network, seen = Network.torus(3, 3), []
    recorder = Recorder()

    def look(round_, message, answer):
        if isinstance(message, Sum):
            seen.append((round_, message.values[:, 0, 0].tolist()))

    calibrate(held_by(9), network, 0.1, "q-dcp", observer=ObserverGroup(recorder, look), rounds=6)
    shown = thresholds_by_round(recorder)
    assert seen
    assert all(shown[round_] == values for round_, values in seen)


def test_estimates_of_h_dcp_are_quantiles_of_the_views():
    network, bins, seen = Network.torus(3, 3), 37, []
    recorder = Recorder()
    held = held_by(9)
    n = sum(map(len, held))

    def look(round_, message, answer):
        if isinstance(message, Sum) and message.values.shape[1] == bins:
            seen.append((round_, message.values[:, :, 0].copy()))

    result = calibrate(
        held, network, 0.1, "h-dcp", observer=ObserverGroup(recorder, look), rounds=9, bins=bins, range=(0.0, 1.0)
    )
    shown = thresholds_by_round(recorder)
    assert len(seen) == 9
    for round_, views in seen:
        reached = views >= (result.certificate.required_rank - 0.5) / n
        expected = [(row.argmax() + 1) / bins if row.any() else "inf" for row in reached]
        assert [v if v == "inf" else pytest.approx(v) for v in expected] == shown[round_]


def test_heard_grows_to_everybody():
    recorder, _ = recorded(Network.chain(9), "r-dcp", byzantine=1)
    assert recorder.recordings[0].heading.rank is None  # nobody knows it before all is heard
    known, heard = RecordedState(9), []
    for step in recorder.trace().runs[0].steps:
        known.take(step)
        if "heard" in step.devices:
            heard.append([*known.fields["heard"]])
    assert heard[0] == [1] * 9
    assert len(heard) > 4


def test_what_was_lost_is_what_the_run_lost():
    """The draws are made once more, after the run: they are the ones it had."""
    network, faults = Network.cycle(6), Faults(loss=0.4, seed=3)
    arrived = {}
    recorder = Recorder()

    class Arrivals(RunObserver):
        keeps_messages = False

        def __call__(self, round_, message, answer):
            arrived[round_] = {*zip(answer.sender.tolist(), answer.receiver.tolist(), strict=True)}

    calibrate(
        held_by(6),
        network,
        0.1,
        "q-dcp",
        observer=ObserverGroup(recorder, Arrivals()),
        faults=faults,
        asynchronous=True,
        rounds=20,
    )
    [run] = recorder.trace().runs
    lost = 0
    for step in run.steps:
        if step.said is None:
            continue
        gone = set()
        for link in step.lost:
            a, b = run.heading.edges[link // 2]
            gone.add((b, a) if link % 2 else (a, b))
        all_said = {(int(s), int(r)) for r, s in zip(network.receivers, network.indices, strict=True)}
        speakers = range(6) if step.said.rows is None else step.said.rows
        assert arrived[int(step.at)] == {(s, r) for s, r in all_said if s in speakers} - gone
        lost += len(gone)
    assert lost
    assert MessageLoss(network, faults).arriving(1).size == 12


def test_byzantine_devices_are_marked():
    faults = {"byzantine": (2, 5), "attack": "all-low"}
    recorder, _ = recorded(Network.complete(12), "r-dcp", faults=faults, byzantine=2)
    first = recorder.trace().runs[0].steps[0]
    assert first.devices["byzantine"] == Column(["all-low", "all-low"], [2, 5])


def test_several_results_of_one_run_show_the_first():
    recorder = Recorder()
    found = calibrate(held_by(6), Network.chain(6), [0.2, 0.1], observer=recorder)
    recorder.finish(found)
    [run] = recorder.trace().runs
    assert run.result[0] == ("shown", "the first of 2 results")
    assert run.steps[-1].devices["threshold"].values == [found.at(0.2).threshold] * 6


def test_infinite_thresholds_are_words():
    recorder = Recorder()
    with pytest.warns(UserWarning, match="inf"):
        result = calibrate([[0.5], [0.25]], Network.chain(2), 0.01, observer=recorder)
    recorder.finish(result)
    assert recorder.trace().runs[0].steps[-1].devices["threshold"].values == ["inf", "inf"]


def test_what_is_assumed_is_not_called_certified():
    phases = {}
    for method, options in (("e-dcp", {}), ("q-dcp", {"rounds": 5}), ("average", {})):
        recorder, result = recorded(Network.chain(4), method, **options)
        phases[result.certificate.kind] = recorder.trace().runs[0].steps[-1].devices["phase"].values[0]
    assert phases == {"counted": "certified", "assumed": "not certified", "none": "not certified"}


def test_a_run_that_fails_says_why():
    recorder = Recorder()
    with pytest.raises(OverflowError) as error:
        calibrate([[1e308], [1.7e308]], Network.chain(2), 0.5, "q-dcp", observer=recorder)
    recorder.fail(str(error.value))
    [run] = recorder.trace().runs
    assert run.result == [("failed", str(error.value))]
    assert run.steps[-1].devices["phase"].values == ["failed"] * 2


def test_a_private_run_shows_nothing_of_single_devices(monkeypatch):
    entry = METHODS["q-dcp"]
    private = Method.__new__(Method)
    private.__dict__.update(entry.__dict__, private=True)
    monkeypatch.setitem(METHODS, "q-dcp", private)
    recorder = Recorder()
    calibrate(held_by(5), Network.chain(5), 0.1, "q-dcp", observer=recorder, rounds=10, certify=True)
    [run] = recorder.trace().runs
    assert run.heading.private
    assert {name for step in run.steps for name in step.devices} == {"phase"}
    assert not any(step.bracket for step in run.steps)


# --- how much it takes ------------------------------------------------------------------------------------------------


def test_long_runs_have_some_hundreds_of_steps():
    recorder, result = recorded(Network.chain(3), "q-dcp", rounds=5000)
    [run] = recorder.trace().runs
    ats = [step.at for step in run.steps]
    assert ats[:128] == [*range(128)]
    assert 300 < len(ats) < 700
    assert ats[-1] == result.cost.rounds


@given(share=st.sampled_from([0.01, 0.1, 0.5]), round_time=st.sampled_from([1.0, 5.0, 30.0]))
def test_a_recorder_takes_its_share_of_the_time_and_no_more(share, round_time):
    """On a clock of its own: a round takes `round_time`, to note one takes 4."""
    clock = [0.0]
    recorder = Recorder(share, clock=lambda: clock[0])
    note = recorder._record

    def slow(round_, message):
        note(round_, message)
        clock[0] += 4.0

    recorder._record = slow

    def pass_time(*round_):
        clock[0] += round_time

    calibrate(held_by(4), Network.chain(4), 0.1, "q-dcp", observer=ObserverGroup(pass_time, recorder), rounds=150)
    spent = 4.0 * sum(step.said is not None for step in recorder.trace().runs[0].steps)
    assert 0 < spent <= share * clock[0] + 4.0


def test_too_many_devices_are_refused_in_words():
    with pytest.raises(ValueError, match="at most 20,000 devices, and chain 20001 has 20,001"):
        calibrate([[0.5]] * 20_001, Network.chain(20_001), 0.1, "local", observer=Recorder())


# --- recordings -------------------------------------------------------------------------------------------------------


def heading(devices=3, **more):
    return TraceHeading.of("a run", Network.chain(devices), **more)


def test_who_reads_while_another_adds_gets_every_step_once():
    recording, got = Recording(heading()), []

    def add():
        for at in range(500):
            recording.add(Step(at=at))

    writer = threading.Thread(target=add)
    writer.start()
    place = 0
    while len(got) < 500:
        steps, place = recording.since(place)
        got += [step.at for step in steps]
    writer.join()
    assert got == [*range(500)]


def test_a_recording_without_end_keeps_what_is_known(monkeypatch):
    monkeypatch.setattr("conformesh.view.recording.MAX_STEPS", 10)
    recording = Recording(heading())
    for at in range(25):
        recording.add(Step(at=at, devices={"round": Column([at], [at % 3])}))
    steps, place = recording.since(0)
    assert len(steps) == 10
    assert place == 25
    assert recording.since(24)[0] == steps[-1:]
    assert recording.since(3)[0] == steps
    known = RecordedState(3)
    for step in steps:
        known.take(step)
    assert known.fields == recording.known.fields == {"round": [24, 22, 23]}
    assert MAX_STEPS > 1000


@given(
    st.lists(st.dictionaries(st.sampled_from("ab"), st.lists(st.integers(0, 3), min_size=4, max_size=4)), max_size=8)
)
def test_changes_folded_are_the_values(tables):
    """What is known follows from the changes, whatever they are."""
    known, expected = RecordedState(4), {}
    for at, table in enumerate(tables):
        step = Step(at=at, devices=known.changes(table))
        known.take(step)
        expected |= table
        assert known.fields == expected
    again = RecordedState(4)
    again.take(known.as_step())
    assert again.fields == known.fields
