"""Private devices: secrets in memory only, no attempt is resumed, one text for all local causes, and idle devices."""

import hashlib
from collections import Counter, defaultdict
from dataclasses import replace
from functools import cache
from itertools import count

import numpy as np
import pytest

from conformesh import Network
from conformesh.engines import Simulator
from conformesh.kernels.ranks import exact_alpha
from conformesh.kernels.weighted_scores import WeightedScores
from conformesh.methods import device_protocol, make_options, requirement_of, run_method
from conformesh.peer import frames
from conformesh.peer.device import Device
from conformesh.peer.frames import DATA, FAILED, READY, WANT, Frame
from conformesh.peer.interface import PeerSetup
from conformesh.peer.journal import MemoryJournal
from conformesh.peer.json_bodies import pack_rows
from conformesh.peer.loopback import Cut, LinkFaults, Pause, _World, draw_link_faults
from conformesh.peer.membership import Membership
from conformesh.peer.memory import RunJournal
from conformesh.peer.settings import LocalError, Settings
from conformesh.protocols.block import Block
from conformesh.protocols.masks import Secrets
from tests.peer.devices import LIMIT, drawn_scores, in_device, thresholds

NETWORK = Network.chain(3)
LEVELS = (exact_alpha(0.1),)
VARIANTS = {"exact": {"width": 127}, "with noise": {"epsilon": 4.0, "cells": 8}}
VICTIM = 1
AWAY = 0.3  # seconds from a crash to the next start
MOMENTS = ("heard", "said")  # the last thing that a device does: write down what it heard in a round, or speak in it


class Mesh:
    """Private devices for the loopback engine, with secrets that we know, and all that they ever said."""

    def __init__(self, options=None, network=NETWORK, kind=Device, faults=None, seed=0, dies=None, tear=0, **more):
        self.network, self.kind, self.faults = network, kind, faults or LinkFaults()
        self.dies, self.tear, self.more = dies, tear, more  # the victim's last moment and round, if it has any
        self.options, self.seed = make_options("p-dcp", VARIANTS["exact"] if options is None else options), seed
        self.scores = drawn_scores(network, low=20)
        self.secrets = [[] for _ in range(network.devices)]  # all that were ever drawn
        self.contexts = Counter()  # how often a device has drawn secrets for an attempt
        self.said = [defaultdict(list) for _ in range(network.devices)]  # by run and round, of each device
        self.boots = [0] * network.devices
        self.journals = {}

    def start(self, k, journal):
        self.boots[k] += 1
        self.journals[k] = journal
        said, dies = self.said[k], self.dies if k == VICTIM and self.boots[k] == 1 else None

        class Tapped(self.kind):
            dead = False

            def outbox(self):
                out = [] if self.dead else super().outbox()
                if dies and dies[0] == "said" and self.round >= dies[1]:
                    self.die()
                for _, data in out:
                    frame = frames.decode_frame(data)
                    if frame.kind == DATA:
                        said[frame.run, frame.round].append(
                            frames.encode_frame(frame._replace(flags=frame.flags & ~WANT))
                        )
                return out

            def die(self):
                if not self.dead:
                    self.dead = True  # nothing of what follows is ever written or sent
                    self.run_journal._journal = MemoryJournal()

        def make(net, row, context):
            secret = hashlib.sha256(f"{self.seed} {k} {len(self.secrets[k])}".encode()).digest()
            self.secrets[k].append(secret)
            self.contexts[k, context] += 1
            secrets = Secrets((secret,), context)
            samples = WeightedScores.of([self.scores[k]])
            return device_protocol("p-dcp", net, row, samples, LEVELS, self.options, secrets=secrets)

        settings = Settings(**self.more)
        device = Tapped(PeerSetup(k, self.network, {"method": "p-dcp"}, make, journal, settings, private=True))
        write_round = device.run_journal.write_round

        def dying(messages):
            write_round(messages)
            if dies == ("heard", device.round):
                device.die()

        device.run_journal.write_round = dying
        return device

    def play(self, check=lambda devices: None, limit=LIMIT, stay=False):
        return World(self, stay).run(limit, check).devices

    def expected(self, rows=None):
        """Return the simulator's exact thresholds, of some of the devices."""
        rows = [*range(self.network.devices)] if rows is None else rows
        samples = WeightedScores.of([self.scores[k] for k in rows])
        network = Network.chain(len(rows))
        block = Block(network, np.arange(len(rows)), samples.sizes, requirement_of("p-dcp"), alphas=LEVELS)
        outcome, _ = Simulator(network).run(run_method("p-dcp", block, samples, self.options))
        return [x.tobytes() for x in outcome.thresholds[:, 0, 0]]

    def takes_part_once(self):
        """Whether no device has taken part in one attempt twice: it drew secrets once, and said one thing a round."""
        frames_are_the_same = all(len({*told}) == 1 for said in self.said for told in said.values())
        return frames_are_the_same and {*self.contexts.values()} == {1}


class World(_World):
    """The fake network, in which a device that dies starts again after a while."""

    def __init__(self, mesh, stay):
        super().__init__(mesh.network, mesh.start, mesh.faults, np.random.default_rng(3), stay)
        self.mesh = mesh

    def _flush(self, k, now):
        super()._flush(k, now)
        if self.devices[k].dead:
            self._crash(Pause(k, now, now + AWAY, crash=True, tear=self.mesh.tear))
            self._at(now + AWAY, lambda then: self._boot(k, then))


@cache
def rounds_of(variant):
    """How many rounds a run has, where nothing goes wrong."""
    mesh = Mesh(VARIANTS[variant])
    devices = mesh.play()
    assert variant != "exact" or thresholds(devices) == mesh.expected()
    return devices[VICTIM].round


# --- no attempt is resumed --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tear", [0, 10**6])
@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize("variant", VARIANTS)
def test_a_killed_device_asks_for_a_new_run_with_fresh_secrets(variant, moment, tear):
    """One schedule for every round; only the journal survives, whole or without what was not synced."""
    for round_ in range(1, rounds_of(variant) + 1):
        mesh = Mesh(VARIANTS[variant], dies=(moment, round_), tear=tear)
        devices = mesh.play()
        assert mesh.boots[VICTIM] == 2
        assert {device.phase for device in devices} == {"finished"}
        assert {device.number for device in devices} == {2}
        assert mesh.takes_part_once()
        assert [len(drawn) for drawn in mesh.secrets] == [2] * 3
        if variant == "exact":
            assert thresholds(devices) == mesh.expected()


@in_device("membership")
class _GoesOn(Membership):
    def recall(self):
        self._private, self._open_protocol = False, self._open_anew
        super().recall()
        self._private = True
        del self._open_protocol

    def _open_anew(self):
        self._private = True
        super()._open_protocol()
        self._private = False


@in_device("run_journal", _GoesOn)
class Resumes(RunJournal):
    """A planted bug: a device that starts again goes on with the same attempt, with other secrets."""

    def write_round(self, messages):
        self._private = False
        super().write_round(messages)


@pytest.mark.parametrize("variant", VARIANTS)
def test_an_attempt_that_is_resumed_is_noticed(variant):
    rounds = range(2, rounds_of(variant), 3)
    for round_ in rounds:
        mesh = Mesh(VARIANTS[variant], kind=Resumes, dies=("said", round_), patience=2.0)
        mesh.play()
        assert not mesh.takes_part_once()


@pytest.mark.parametrize("variant", VARIANTS)
def test_the_journal_never_holds_a_secret_and_is_the_same_for_all_scores(variant):
    kept = []
    for seed in (0, 1):
        mesh, seen = Mesh(VARIANTS[variant], seed=seed), defaultdict(set)
        if variant == "with noise":  # where not even the number of rounds depends on scores
            mesh.scores = [np.sort(np.random.default_rng([seed, k]).random(10 + 40 * seed)) for k in range(3)]

        def look(devices, mesh=mesh, seen=seen):
            for device in devices:
                data = bytes(mesh.journals[device.row].data)
                assert not any(s in data or s.hex().encode() in data for s in mesh.secrets[device.row])
                seen[device.row].add(data)

        mesh.play(check=look)
        kept.append(seen)
    assert kept[0] == kept[1]


def test_every_attempt_has_a_context_of_its_own():
    """Run number and lost devices are in it: keys that are signed for one are worth nothing in another."""
    mesh = Mesh(dies=("said", 3))
    mesh.play()
    contexts = {context for _, context in mesh.contexts}
    assert len(contexts) == 2
    assert {len(context) for context in contexts} == {32}


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize(
    ("network", "seeds"),
    [(NETWORK, 6), pytest.param(Network.cycle(4), 40, marks=pytest.mark.slow)],
    ids=["few", "many"],
)
def test_random_schedules_end_with_the_right_threshold_or_none(variant, network, seeds):
    """Loss, duplication, cuts, freezes, crashes with torn journals: nobody speaks twice in one attempt."""
    finished = 0
    for seed in range(seeds):
        faults = draw_link_faults(network, np.random.default_rng([17, seed]))
        mesh = Mesh(VARIANTS[variant], network, faults=faults, seed=seed)
        devices = mesh.play()
        assert mesh.takes_part_once()
        found = {one for one in thresholds(devices) if one is not None}
        finished += all(device.phase == "finished" for device in devices)
        assert len(found) <= 1
        if variant == "exact":
            assert found <= {*mesh.expected()}
    assert finished > seeds / 2


# --- one text for all local causes ------------------------------------------------------------------------------------


def failing(error):
    """A protocol that fails on its own."""
    raise error
    yield


ERRORS = [
    ValueError("device holds 17 scores"),
    OSError(28, "No space left on device"),
    ArithmeticError("3 devices add up to 4"),
    LocalError("the budget of 3 is used up", "privacy"),
    RuntimeError(),
    None,  # it cannot take part, as its operator says
]


def told_by(error, private):
    """Return what a device of a chain tells its neighbours when something goes wrong there, and its own error."""
    device = Device(
        PeerSetup(
            1, NETWORK, {}, lambda *parts: failing(error), MemoryJournal(), Settings(), scores="x", private=private
        )
    )
    if error is None:
        device.refuse("its file of scores cannot be read", 0.0)
    else:
        device.start(0.0)
        device.membership._greeted = {0, 2}
        device.membership.call_ready()
        device.receive(frames.encode_frame(Frame(READY, device.run, 0, body=pack_rows({0, 2}))), 0, 0.0)
    out = [frames.decode_frame(data) for _, data in device.outbox()]
    return [(one.run, one.body) for one in out if one.kind == FAILED], device.error


def test_neighbours_hear_the_same_of_every_local_cause():
    found = [told_by(error, private=True) for error in ERRORS]
    assert len({str(said) for said, _ in found}) == 1
    assert b"could not go on, for a reason that only its operator is told" in found[0][0][0][1]
    words = [str(error) for _, error in found]
    assert "17 scores" in words[0]
    assert "No space left" in words[1]
    assert [error.code for _, error in found] == ["protocol", "journal", "protocol", "privacy", "protocol", "other"]


def test_other_devices_say_why():
    """The check itself can fail: what a device without secrets says differs by cause."""
    assert len({str(told_by(error, private=False)[0]) for error in ERRORS}) == len(ERRORS)


# --- who asks for a run -----------------------------------------------------------------------------------------------


class Idle(Device):
    """A device that starts idle."""

    def __init__(self, setup):
        super().__init__(replace(setup, idle=True))


def test_idle_devices_are_silent_until_one_of_them_asks():
    mesh = Mesh(kind=Idle, patience=2.0)
    world = World(mesh, stay=True)
    devices = world.run(20.0, lambda devices: None).devices
    assert {(device.phase, device.idle) for device in devices} == {("greeting", True)}
    assert world.delivered == 0
    mesh = Mesh(kind=Idle, patience=2.0, faults=LinkFaults(requests=((2, 10.0),)))
    devices = mesh.play(limit=20.0, stay=True)
    assert {(device.phase, device.idle) for device in devices} == {("finished", False)}
    assert thresholds(devices) == mesh.expected()


def test_an_idle_device_joins_who_starts():
    mesh, kinds = Mesh(patience=2.0, faults=LinkFaults(late={2: 8.0})), iter([Idle, Idle, Device])
    base = mesh.start

    def start(k, journal):
        mesh.kind = next(kinds)
        return base(k, journal)

    mesh.start = start
    assert thresholds(mesh.play(limit=30.0)) == mesh.expected()


@pytest.mark.parametrize("private", [True, False])
def test_a_device_that_was_lost_and_is_back_starts_no_private_run(private):
    """It may cost epsilon, so that only operators and clocks ask for one; other methods let it in at once."""
    network, runs = Network.cycle(4), []
    cut = Cut(0.02, 12.0, frozenset({3}))

    @in_device("membership")
    class Counted(Membership):
        def _open_protocol(self):
            runs.append(sorted(self.members))
            super()._open_protocol()

    mesh = Mesh(
        {"epsilon": 4.0, "cells": 8}, network, Counted, LinkFaults(cuts=(cut,)), patience=2.0, on_lost="continue"
    )
    base = mesh.start

    def start(k, journal):
        device = base(k, journal)
        make, device.membership._private = device.membership.make, private
        device.run_journal._private = private
        contexts = count()
        device.membership.make = lambda net, row, context=b"": make(net, row, context or b"%d" % next(contexts))
        return device

    mesh.start = start
    devices = mesh.play(limit=60.0, stay=True)
    assert [0, 1, 2] in runs
    assert runs[-1] == ([0, 1, 2] if private else [0, 1, 2, 3])
    assert {devices[k].phase for k in range(3)} == {"finished"}
    mesh.faults = LinkFaults(cuts=(cut,), requests=((0, 40.0),))
    if private:  # it takes part in the next run
        assert [*mesh.play(limit=60.0, stay=True)[0].survivors] == [0, 1, 2, 3]
