"""Secrets of a run: a device that crashes says the same again, byte by byte, and nobody finds an old secret."""

import hashlib
from collections import defaultdict
from functools import cache

import numpy as np
import pytest

from conformesh import Network
from conformesh.engines import Simulator
from conformesh.methods import make_options, promise_of, promised, promised_alone
from conformesh.peer import frames
from conformesh.peer.device import Device
from conformesh.peer.frames import DATA, WANT
from conformesh.peer.journal import MemoryJournal
from conformesh.peer.loopback import Faults, Pause, _World, drawn_faults
from conformesh.peer.memory import REPORTED, Heading
from conformesh.peer.settings import Settings
from conformesh.peer.vault import Vault
from conformesh.promises import exact_alpha
from conformesh.protocols.masks import Secrets
from conformesh.protocols.site import Site
from conformesh.samples import Samples
from tests.peer.devices import LIMIT, drawn_scores, thresholds

NETWORK = Network.chain(3)
LEVELS = (exact_alpha(0.1),)
VARIANTS = {"masked": {"width": 127}, "with noise": {"width": 7, "epsilon": 4.0, "stages": 2}}
TEARS = (0, 10**6)  # bytes of the journal that a crash loses, unless they were synced
VICTIM = 1
AWAY = 0.3  # seconds from a crash to the next start
MOMENTS = ("heard", "said")  # the last thing that a device does: write down what it heard in a round, or speak in it


class Mesh:
    """Private devices for the loopback engine, with secrets that we know, and all that they ever said."""

    def __init__(self, options, network=NETWORK, kind=Device, faults=None, seed=0, dies=None, tear=0, away=AWAY):
        self.network, self.kind, self.faults = network, kind, faults or Faults()
        self.dies, self.tear, self.away = dies, tear, away  # the victim's last moment and round, if it has any
        self.options, self.seed = make_options("p-dcp", options), seed
        self.scores = drawn_scores(network, low=20)
        self.vaults = [Vault(draw=lambda k=k: self._drawn(k)) for k in range(network.devices)]
        self.draws = [0] * network.devices
        self.said = [defaultdict(list) for _ in range(network.devices)]  # by run and round, of each device
        self.boots = [0] * network.devices
        self.journals = {}

    def _drawn(self, k):
        self.draws[k] += 1
        return hashlib.sha256(f"{self.seed} {k} {self.draws[k]}".encode()).digest()

    def start(self, k, journal):
        self.boots[k] += 1
        self.journals[k], vault, scores = journal, self.vaults[k], self.scores[k]
        said, dies = self.said[k], self.dies if k == VICTIM and self.boots[k] == 1 else None

        class Tapped(self.kind):
            dead = False

            def _remember(self):
                super()._remember()
                if dies == ("heard", self.round):
                    self.die()

            def outbox(self):
                out = [] if self.dead else super().outbox()
                if dies and dies[0] == "said" and self.round >= dies[1]:
                    self.die()
                for _, data in out:
                    frame = frames.decode(data)
                    if frame.kind == DATA:
                        said[frame.run, frame.round].append(frames.encode(frame._replace(flags=frame.flags & ~WANT)))
                return out

            def die(self):
                if not self.dead:
                    self.dead, self.journal = True, MemoryJournal()  # nothing of what follows is ever written or sent

        def make(net, row):
            secrets = Secrets((vault.secret,), vault.context)
            return promised_alone("p-dcp", net, row, Samples.of([scores]), LEVELS, self.options, secrets=secrets)

        digest = hashlib.sha256(scores.tobytes()).hexdigest()
        return Tapped(k, self.network, {"method": "p-dcp"}, make, journal, Settings(), scores=digest, vault=vault)

    def play(self, check=lambda devices: None):
        return World(self).run(LIMIT, check).devices

    def expected(self, device):
        """Return the simulator's thresholds with the secrets and the name of the run that a device was in."""
        seeds = tuple(vault.secret for vault in self.vaults)
        samples = Samples.of(self.scores)
        site = Site(
            self.network,
            np.arange(self.network.devices),
            samples.sizes,
            promise_of("p-dcp"),
            alphas=LEVELS,
            secrets=Secrets(seeds, device.vault.context),
        )
        outcome, _ = Simulator(self.network).run(promised("p-dcp", site, samples, self.options))
        return [x.tobytes() for x in outcome.thresholds[:, 0, 0]]

    def secret_in_journal(self, k):
        """Whether the journal of a device, wherever in its bytes, holds a secret that was ever drawn for it."""
        ever = [hashlib.sha256(f"{self.seed} {k} {n}".encode()).digest() for n in range(1, 1 + self.draws[k])]
        data = bytes(self.journals[k].data)
        return any(secret in data or secret.hex().encode() in data for secret in ever)


class World(_World):
    """The fake network, in which a device that dies starts again after a while."""

    def __init__(self, mesh):
        super().__init__(mesh.network, mesh.start, mesh.faults, np.random.default_rng(3))
        self.mesh = mesh

    def _flush(self, k, now):
        super()._flush(k, now)
        if self.devices[k].dead:
            self._crash(Pause(k, now, now + self.mesh.away, crash=True, tear=self.mesh.tear))
            self._at(now + self.mesh.away, lambda then: self._boot(k, then))


@cache
def rounds_of(variant):
    """How many rounds a run has, where nothing goes wrong."""
    mesh = Mesh(VARIANTS[variant])
    devices = mesh.play()
    assert thresholds(devices) == mesh.expected(devices[0])
    return devices[VICTIM].round


def frames_are_the_same(mesh):
    return all(len({*told}) == 1 for said in mesh.said for told in said.values())


@pytest.mark.parametrize("tear", TEARS)
@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize("variant", VARIANTS)
def test_a_killed_device_repeats_its_frames_byte_by_byte(variant, moment, tear):
    """One schedule for every round; only the journal survives, whole or without what was not synced."""
    again = 0
    for round_ in range(1, rounds_of(variant) + 1):
        mesh = Mesh(VARIANTS[variant], dies=(moment, round_), tear=tear)
        devices = mesh.play()
        assert mesh.boots[VICTIM] == 2
        assert thresholds(devices) == mesh.expected(devices[0])
        assert frames_are_the_same(mesh)
        again += any(len(told) > 1 for told in mesh.said[VICTIM].values())
        if not tear:
            assert {device.number for device in devices} == {1}
            assert mesh.draws == [1] * NETWORK.devices
    assert again > rounds_of(variant) / 2  # frames were repeated, or nothing was looked at


class RedrawsItsSecret(Device):
    """A planted bug: the journal knows nothing of the secret, and the next start draws another for the same run."""

    def _begin_journal(self):
        super()._begin_journal()
        self.journal.begin(self._heading()._replace(secret="").pack())

    def _recall(self):
        vault, self.vault = self.vault, None  # for which a heading without a secret is no end of a run
        draw, self._open_protocol = vault.draw, self._open_anew
        self._redrawn = vault, draw
        super()._recall()
        self.vault = vault
        self._open_protocol = super()._open_protocol

    def _open_anew(self):
        self.vault, draw = self._redrawn
        self._secret = draw().hex()
        super()._open_protocol()


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_secret_that_is_drawn_again_is_noticed(variant):
    noticed = 0
    for round_ in range(2, rounds_of(variant), 4):
        mesh = Mesh(VARIANTS[variant], kind=RedrawsItsSecret, dies=("said", round_))
        devices = mesh.play()
        noticed += not frames_are_the_same(mesh) or thresholds(devices) != mesh.expected(devices[0])
    assert noticed == len(range(2, rounds_of(variant), 4))


@pytest.mark.parametrize("change", ["wiped", "scores"])
def test_a_wiped_journal_or_other_scores_mean_fresh_keys(change):
    mesh = Mesh(VARIANTS["masked"], dies=("said", 4))
    begin = mesh.start

    def start(k, journal):
        if k == VICTIM and mesh.boots[k]:
            if change == "wiped":
                journal.data.clear()
            else:
                mesh.scores[k] = mesh.scores[k] + 1
        return begin(k, journal)

    mesh.start = start
    devices = mesh.play()
    assert thresholds(devices) == mesh.expected(devices[0])
    keys = {frames.decode(data).body for (_, at), told in mesh.said[VICTIM].items() for data in told if at == 1}
    # Without its journal it tries the first run once more, until it hears that others are ahead.
    assert len(keys) == mesh.draws[VICTIM] == {"wiped": 3, "scores": 2}[change]
    assert devices[VICTIM].number == 2
    assert frames_are_the_same(mesh) == (change == "scores")


@pytest.mark.parametrize("variant", VARIANTS)
def test_the_journal_holds_the_secret_for_as_long_as_the_run_lasts(variant):
    mesh, seen = Mesh(VARIANTS[variant]), {True: set(), False: set()}

    def look(devices):
        for device in devices:
            seen[mesh.secret_in_journal(device.row)].add(device.phase)

    mesh.play(check=look)
    assert seen == {True: {"running", "finishing"}, False: {"greeting", "finished"}}


def test_a_run_that_fails_forgets_its_secret():
    mesh, seen = Mesh(VARIANTS["masked"], dies=("said", 5), away=np.inf), set()

    def look(devices):
        seen.update((device.phase, mesh.secret_in_journal(device.row)) for device in devices)

    devices = [device for device in mesh.play(check=look) if device.row != VICTIM]
    assert {device.phase for device in devices} == {"failed"}
    assert {phase for phase, there in seen if there} == {"running"}
    assert all(mesh.journals[device.row].records()[-1] == REPORTED for device in devices)
    assert mesh.secret_in_journal(VICTIM)  # it may still come back, and would say the same again


def test_a_run_that_is_left_for_another_forgets_its_secret():
    """Other scores make the journal useless: the secret goes when the device starts, not when the next run begins."""
    mesh = Mesh(VARIANTS["masked"], dies=("said", 5), away=np.inf)
    mesh.play()
    assert mesh.secret_in_journal(VICTIM)
    mesh.scores[VICTIM] = mesh.scores[VICTIM] + 1
    device = mesh.start(VICTIM, mesh.journals[VICTIM])
    device.start(0.0)
    assert (device.phase, device.number) == ("greeting", 2)
    assert not mesh.secret_in_journal(VICTIM)


def test_a_heading_that_has_lost_its_secret_ends_its_run():
    mesh = Mesh(VARIANTS["masked"], dies=("said", 5), away=np.inf)
    mesh.play()
    journal = mesh.journals[VICTIM]
    records = journal.records()
    heading = Heading.of(records[0])
    assert len(bytes.fromhex(heading.secret)) == 32
    for kept in (records[1:], []):
        journal.begin(heading._replace(secret="").pack())
        for record in kept:
            journal.append(record)
        device = mesh.start(VICTIM, journal)
        device.start(0.0)
        assert (device.phase, device.number, device.round) == ("greeting", 2, 0)


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize(
    ("network", "seeds"),
    [(NETWORK, 6), pytest.param(Network.cycle(4), 40, marks=pytest.mark.slow)],
    ids=["few", "many"],
)
def test_random_schedules_end_with_the_right_threshold_or_none(variant, network, seeds):
    """Loss, duplication, cuts, freezes, crashes with torn journals: frames of a run and round are the same for ever."""
    finished = 0
    for seed in range(seeds):
        faults = drawn_faults(network, np.random.default_rng([17, seed]))
        mesh = Mesh(VARIANTS[variant], network, faults=faults, seed=seed)
        devices = mesh.play()
        assert frames_are_the_same(mesh)
        found = thresholds(devices)
        done = [device for device in devices if device.phase == "finished"]
        finished += len(done) == len(devices)
        right = mesh.expected(done[0]) if done else found
        assert all(one in (None, true) for one, true in zip(found, right, strict=True))
    assert finished > seeds / 2


def test_nothing_shows_a_secret_in_words():
    vault = Vault(draw=bytes, secret=b"do not show this to anybody!!!!!")
    secrets = Secrets((vault.secret,), b"")
    assert "show this" not in f"{vault!r} {secrets!r}"
