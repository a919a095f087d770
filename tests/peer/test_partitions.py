"""Devices that go on without others, over networks that fall into parts: one number of a run has one result."""

import re

import numpy as np
import pytest

from conformesh import Network
from conformesh.peer.device import Device
from conformesh.peer.interface import PeerSetup
from conformesh.peer.loopback import Cut, LinkFaults, draw_partitions, run_loopback
from conformesh.peer.membership import Membership
from conformesh.peer.settings import Settings
from conformesh.protocols.messages import Max
from tests.campaigns import campaign_seeds
from tests.peer.devices import in_device

PATIENCE = 1.0
FOREVER = np.inf
NETWORKS = [
    *map(Network.complete, range(2, 9)),
    Network.torus(2, 4),
    Network.random_regular(8, degree=3),
    Network.chain(5),
    Network.star(6),
]


def starter(network, kind=Device, renewed=True, rounds=0, **settings):
    """Devices whose result names everybody that is in it, and with which scores: others with every second start."""
    boots = [0] * network.devices
    defaults = {"retry": 0.1, "patience": PATIENCE, "linger": 0.4, "on_lost": "continue"}
    chosen = Settings(**(defaults | settings))

    def start(k, journal):
        version = boots[k] // 2 if renewed else 0
        boots[k] += 1

        def make(net, row):
            values = np.zeros((1, network.devices), dtype=np.int64)
            values[0, k] = 1 + version
            for _ in range(net.devices - 1 + rounds):
                values = yield Max(values)
            return tuple(values[0].tolist())

        return kind(PeerSetup(k, network, {}, make, journal, chosen, scores=f"{version}"))

    return start


class TwoResultsError(AssertionError):
    """One number of a run has two results."""


class OneResult:
    """Sees all devices after every event: who certifies a number of a run certifies the same, of the same devices."""

    def __init__(self):
        self.certified, self._seen = {}, set()

    def __call__(self, devices):
        for device in devices:
            if device.phase != "finished" or (device, device.number) in self._seen:
                continue
            self._seen.add((device, device.number))
            mine = device.survivors, device.result
            first = self.certified.setdefault(device.number, mine)
            if first != mine:
                raise TwoResultsError(f"run {device.number}: {first} and {mine}")
            assert len(device.survivors) >= device.membership.needed
            assert {k for k, value in enumerate(device.result) if value} == {*device.survivors}


def one_schedule(network, seed, kind=Device, heal=False, limit=10 * PATIENCE):
    rng = np.random.default_rng([17, network.devices, seed])
    least = network.devices // 2 + 1
    quorum = None if rng.random() < 0.5 else int(rng.integers(least, network.devices + 1))
    check = OneResult()
    faults = draw_partitions(network, rng, PATIENCE, heal=heal)
    played = run_loopback(network, starter(network, kind, quorum=quorum), faults, rng, limit, stay=True, check=check)
    return played, check


@pytest.mark.parametrize("graph", range(len(NETWORKS)), ids=lambda graph: NETWORKS[graph].name)
def test_no_schedule_certifies_two_results_of_one_run(graph):
    certified = [one_schedule(NETWORKS[graph], seed)[1].certified for seed in range(6)]
    assert sum(map(len, certified)) > 0


@pytest.mark.slow
@pytest.mark.parametrize("graph", range(len(NETWORKS)), ids=lambda graph: NETWORKS[graph].name)
def test_many_schedules_certify_no_two_results_of_one_run(graph):
    for seed in campaign_seeds(100, 6):
        one_schedule(NETWORKS[graph], seed)


class GoesOnWithAnybody(Device):
    """As before there was a quorum."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.membership.needed = 1


@in_device("membership")
class IsDoneTwice(Membership):
    """Forgets, when it loses somebody, that it has said it is done."""

    def move(self, view, *args):
        if self.phase == "finishing" and view != (self.number, self.lost):
            self._rounds.has_ended, self._rounds.is_running = False, True
        super().move(view, *args)


def noticed(kind, networks, seeds):
    found = []
    for network in networks:
        for seed in seeds:
            try:
                one_schedule(network, seed, kind)
            except TwoResultsError:
                found.append((network.name, seed))
    return found


def test_without_a_quorum_two_results_are_found():
    assert noticed(GoesOnWithAnybody, [Network.complete(2), Network.complete(4)], range(12))


HALVES = [(Network.complete(4), {0, 1}), (Network.complete(2), {0}), (Network.torus(2, 4), {0, 1, 4, 5})]


@pytest.mark.parametrize(("network", "part"), HALVES, ids=str)
@pytest.mark.parametrize("start", [0.0, 0.003])
def test_two_halves_certify_nothing_and_say_why(network, part, start):
    """Both halves certified a threshold of their own."""
    K = network.devices
    faults = LinkFaults(cuts=(Cut(start, FOREVER, frozenset(part)),))

    def run(kind, check):
        return run_loopback(network, starter(network, kind), faults, np.random.default_rng(0), 30.0, check=check)

    with pytest.raises(TwoResultsError):
        run(GoesOnWithAnybody, OneResult())
    check = OneResult()
    for k, device in enumerate(run(Device, check).devices):
        assert (device.phase, device.result) == ("failed", None)
        left, needed = re.search(
            rf"(\d) of {K} devices (?:is|are) left, and (\d) are needed", str(device.error)
        ).groups()
        assert (int(left) <= K // 2, int(needed)) == (True, K // 2 + 1)  # fewer where one of this half ended first
        others = {*range(K)} - part if k in part else part
        assert all(network.ids[j] in str(device.error) for j in others)
    assert check.certified == {}


def test_the_larger_part_goes_on_and_the_smaller_one_says_what_is_missing():
    network = Network.complete(5)
    faults = LinkFaults(cuts=(Cut(0.0, FOREVER, frozenset({0, 3})),))
    for quorum, going_on in ((None, {1, 2, 4}), (4, set())):
        devices = run_loopback(network, starter(network, quorum=quorum), faults, np.random.default_rng(0), 30.0).devices
        assert {device.row for device in devices if device.phase == "finished"} == going_on
        for device in devices:
            if device.row in going_on:
                assert device.survivors == (1, 2, 4)
            else:
                assert f"and {quorum or 3} are needed to go on" in str(device.error)


def cut_at_the_end(kind, seed):
    """Device 0 is cut off when the others have said that they are done: it certifies the run, and they cannot."""
    faults, check = LinkFaults(delay=(0.001, 0.008)), OneResult()

    def watch(devices):
        check(devices)
        if [device.phase for device in devices] == ["running", "finishing", "finishing"] and devices[0].number == 1:
            object.__setattr__(faults, "cuts", (Cut(0.0, FOREVER, frozenset({0})),))

    network = Network.complete(3)
    run_loopback(network, starter(network, kind), faults, np.random.default_rng(seed), 5.0, stay=True, check=watch)
    return check.certified


def test_without_one_vote_a_number_two_results_are_found():
    """A device that has said it is done in a run goes on in another one only: two results have two numbers."""
    runs = {seed: cut_at_the_end(Device, seed) for seed in range(30)}
    split = [seed for seed, certified in runs.items() if len(certified) > 1]
    assert split
    assert all({names for names, _ in runs[seed].values()} == {(0, 1, 2), (1, 2)} for seed in split)
    for seed in split:
        with pytest.raises(TwoResultsError):
            cut_at_the_end(IsDoneTwice, seed)
