"""Lost devices that come back, and requests for new runs: nothing is interrupted, and at most one run waits."""

import numpy as np
import pytest

from conformesh import Network
from conformesh.peer import frames
from conformesh.peer.device import Device
from conformesh.peer.frames import HELLO
from conformesh.peer.journal import MemoryJournal
from conformesh.peer.json_bodies import Hello
from conformesh.peer.loopback import Cut, LinkFaults, Pause, run_loopback
from conformesh.protocols.messages import Max
from tests.campaigns import campaign_seeds
from tests.peer.test_partitions import NETWORKS, PATIENCE, OneResult, one_schedule, starter

FOUR = Network.complete(4)
ALL, THREE = (0, 1, 2, 3), (0, 1, 2)


class Story(OneResult):
    """What was certified, and where every device was at some moments."""

    def __init__(self):
        super().__init__()
        self.moments, self.numbers = [], set()

    def __call__(self, devices):
        super().__call__(devices)
        states = {device.row: (device.phase, device.number, device.survivors) for device in devices}
        if not self.moments or states != self.moments[-1][1]:
            self.moments.append((max(device.clock.now for device in devices), states))
            self.numbers |= {device.number for device in devices}

    def at(self, when):
        return [states for now, states in self.moments if now <= when][-1]

    def rosters(self):
        return {number: names for number, (names, _) in self.certified.items()}


def told(faults, limit=15.0, network=FOUR, seed=0, start=None, **options):
    story = Story()
    start = start or starter(network, renewed=False, **options)
    played = run_loopback(network, start, faults, np.random.default_rng(seed), limit, stay=True, check=story)
    return played.devices, story


@pytest.mark.parametrize("graph", range(len(NETWORKS)), ids=lambda graph: NETWORKS[graph].name)
def test_when_all_is_well_again_everybody_is_in_the_last_run(graph):
    network = NETWORKS[graph]
    for seed in range(2):
        played, check = one_schedule(network, seed, heal=True, limit=25 * PATIENCE)
        ends = {(device.phase, device.number, device.survivors) for device in played.devices}
        assert ends == {("finished", max(check.certified), tuple(range(network.devices)))}


@pytest.mark.slow
@pytest.mark.parametrize("graph", range(len(NETWORKS)), ids=lambda graph: NETWORKS[graph].name)
def test_many_times_everybody_is_in_the_last_run(graph):
    network = NETWORKS[graph]
    for seed in campaign_seeds(10, 2):
        played, check = one_schedule(network, seed, heal=True, limit=40 * PATIENCE)
        ends = {(device.phase, device.number, device.survivors) for device in played.devices}
        assert ends == {("finished", max(check.certified), tuple(range(network.devices)))}, seed


@pytest.mark.parametrize("seed", [67, 79, 81])
def test_groups_that_left_out_one_of_the_other_do_not_greet_each_other_for_ever(seed):
    """Schedules that hung: in one run each group had left out a device of the other, and none was a quorum."""
    network = Network.random_regular(8, degree=3)
    played, check = one_schedule(network, seed, heal=True, limit=40 * PATIENCE)
    ends = {(device.phase, device.number, device.survivors) for device in played.devices}
    assert ends == {("finished", max(check.certified), tuple(range(network.devices)))}


@pytest.mark.parametrize("seed", range(5))
def test_a_device_that_crashed_and_comes_back_is_in_the_next_run_and_costs_one(seed):
    """It was never let in again, and each of its tries forced all others through a new run."""
    devices, story = told(LinkFaults(pauses=(Pause(3, 0.004, 5.0, crash=True),)), seed=seed)
    assert story.rosters() == {1: THREE, 2: ALL}
    assert story.numbers == {1, 2}
    assert {(device.phase, device.number) for device in devices} == {("finished", 2)}
    assert {states for row, states in story.at(5.0).items() if row < 3} == {("finished", 1, THREE)}


def test_tries_that_come_to_nothing_cost_nobody_anything():
    """It starts again and again, and is gone before a run with it could begin."""
    tries = [Pause(3, start, start + 1.2, crash=True) for start in np.arange(2.8, 12.0, 1.5)]
    _, story = told(LinkFaults(pauses=(Pause(3, 0.004, 2.5, crash=True), *tries)), limit=12.0)
    assert story.rosters() == {1: THREE}
    states = {row: state for row, state in story.at(12.0).items() if row < 3}
    assert states == dict.fromkeys(THREE, ("finished", 1, THREE))


def test_a_run_under_way_is_not_interrupted_by_who_comes_back():
    """The run without it goes on for seconds after its return; only when that has ended there is another."""
    devices, story = told(LinkFaults(pauses=(Pause(3, 0.004, 1.5, crash=True),)), rounds=1000, limit=30.0)
    assert {states for row, states in story.at(2.5).items() if row < 3} == {("running", 1, THREE)}
    assert story.rosters() == {1: THREE, 2: ALL}
    assert {(device.phase, device.number) for device in devices} == {("finished", 2)}


def test_a_device_that_was_cut_off_keeps_its_result_and_comes_back():
    """Nobody starts again: it is heard because the others say hello to it now and then."""
    cut = Cut(0.5, 5.0, frozenset({3}))
    devices, story = told(LinkFaults(cuts=(cut,), requests=((0, 1.0),)))
    assert story.at(4.9) == {3: ("finished", 1, ALL)} | dict.fromkeys(THREE, ("finished", 2, THREE))
    assert story.rosters() == {1: ALL, 2: THREE, 3: ALL}
    assert {(device.phase, device.number) for device in devices} == {("finished", 3)}


class Shy(Device):
    """Says hello while it is left out, and nothing any more once it is let in."""

    def receive(self, data, sender, now):
        frame = frames.decode_frame(data)
        if frame.kind == HELLO:
            self.let_in = self.row not in Hello.of(frame.body, self.network.devices).lost
        super().receive(data, sender, now)

    def outbox(self):
        out = super().outbox()
        return [] if getattr(self, "let_in", True) else out


def test_a_device_that_is_lost_again_and_again_waits_longer_each_time():
    """Otherwise there would be a run in vain every 2 seconds or so, here about 40."""
    kinds = [starter(FOUR, kind, renewed=False) for kind in (Device, Shy)]
    _, story = told(LinkFaults(), limit=60.0, start=lambda k, journal: kinds[k == 3](k, journal))
    assert {*story.rosters().values()} == {THREE}
    assert 3 <= max(story.numbers) <= 9


def test_hundreds_of_requests_are_a_run_every_few_seconds():
    """852 requests in 12 s raised the number of the run 434 times."""
    requests = tuple((k % 4, 1.0 + 12 * k / 852) for k in range(852))
    devices, story = told(LinkFaults(requests=requests), limit=20.0, linger=2.0)
    assert story.numbers == {*range(1, max(story.numbers) + 1)} == {*story.certified}
    assert 4 <= max(story.numbers) <= 8
    assert {(device.phase, device.number) for device in devices} == {("finished", max(story.numbers))}
    begins = min(now for now, states in story.moments if states[0][1] == max(story.numbers))
    assert begins > 13.0  # the last request too is followed by a run


def pair(**options):
    """Return two devices that only hear each other."""
    device = starter(Network.from_pairs(2, [(0, 1)]), renewed=False, linger=2.0, on_lost="fail", **options)
    return [device(k, MemoryJournal()) for k in range(2)]


def talk(devices, now, until=lambda: False):
    """Deliver until nothing is left to say."""
    for _ in range(1000):
        if until():
            return
        said = [(device, to, data) for device in devices for to, data in device.outbox()]
        if not said:
            return
        for device, _, data in said:
            devices[1 - device.row].receive(data, device.row, now)


def test_requests_during_a_run_are_one_run_after_it():
    devices = pair(rounds=5)
    for device in devices:
        device.start(0.0)
    talk(devices, 0.1, until=lambda: devices[0].phase == "running")
    for device in devices * 50:
        device.recalibrate(0.1)
    assert {device.number for device in devices} == {1}
    talk(devices, 0.2)
    assert {(device.phase, device.number) for device in devices} == {("finished", 1)}
    assert not any(device.over for device in devices)  # a run waits
    for now in (0.4, 1.0, 2.1):
        for device in devices * 50:
            device.recalibrate(now)
            device.tick(now)
        talk(devices, now)
        assert {(device.phase, device.number) for device in devices} == {("finished", 1)}
    for now in (2.3, 2.5, 9.0):
        for device in devices:
            device.tick(now)
        talk(devices, now)
        assert {(device.phase, device.number) for device in devices} == {("finished", 2)}
    assert all(device.over for device in devices)


def test_a_request_while_devices_greet_each_other_is_met_by_that_run():
    devices = pair()
    for device in devices:
        device.start(0.0)
        device.recalibrate(0.0)
    for now in (0.1, 2.2, 5.0):
        talk(devices, now)
        for device in devices:
            device.tick(now)
    assert {(device.phase, device.number) for device in devices} == {("finished", 1)}


@pytest.mark.parametrize("when", ["greeting", "running", "finished"])
def test_a_request_may_bring_other_scores(when):
    def make(net, row):
        values = yield Max(np.array([[9, 0]]))
        return tuple(values[0].tolist())

    devices = pair(rounds=5)
    for device in devices:
        device.start(0.0)
    if when != "greeting":
        talk(devices, 0.1, until=lambda: devices[0].phase == when)
    devices[0].recalibrate(0.1, make, "other scores")
    before = devices[0].membership.scores
    talk(devices, 0.2)
    for now in (2.5, 2.8):
        for device in devices:
            device.tick(now)
        talk(devices, now)
    assert (devices[0].membership.make, devices[0].membership.scores) == (make, "other scores")
    assert before == ("other scores" if when == "greeting" else "0")


def test_who_comes_back_with_other_settings_is_told_and_ends_nobody():
    """Neither a run under way nor a result."""
    make = starter(FOUR, renewed=False, rounds=600)

    def start(k, journal):
        device = make(k, journal)
        if k == 3 and journal.records():
            device.agreement["alpha"] = "0.2"
            device.membership.enter_greeting()
        return device

    devices, story = told(LinkFaults(pauses=(Pause(3, 0.05, 1.5, crash=True),)), start=start, limit=12.0)
    assert {states for row, states in story.at(2.0).items() if row < 3} == {("running", 1, THREE)}
    assert {(device.phase, device.survivors) for device in devices if device.row < 3} == {("finished", THREE)}
    assert "do not agree" in str(devices[3].error)
