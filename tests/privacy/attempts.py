"""Private devices on the loopback engine, and a checker that knows all their secrets.

`Mesh` plays a schedule: devices are killed when something happens (a key, a masked sum, a charge, a reveal), the
network falls into parts, and one device may be Byzantine. It writes down, for every attempt of every honest device, the
words that left it and the secrets behind them. `violations` says what must not be.

The adversary sees each word of each device alone, which is more than any neighbour hears, and knows all secrets of the
Byzantine device. Each word vector is own numbers + self-mask + signed pair masks. Unknown masks are independent and
uniform, so a linear combination of what was sent is readable if and only if all unknown masks cancel in it: readable
combinations are the left null space of the matrix of masks, over all attempts of the schedule together.
"""

import hashlib
from collections import defaultdict
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from fractions import Fraction
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np

from conformesh import Network
from conformesh.kernels.ranks import DEFAULT_REQUIREMENT, exact_alpha
from conformesh.kernels.weighted_scores import WeightedScores
from conformesh.methods import device_protocol, make_options
from conformesh.peer import frames
from conformesh.peer.device import Device
from conformesh.peer.frames import DATA, HELLO, WANT
from conformesh.peer.interface import PeerSetup
from conformesh.peer.json_bodies import Hello
from conformesh.peer.loopback import Cut, LinkFaults, Pause, _World
from conformesh.peer.settings import Settings
from conformesh.privacy.account import ACCOUNT_FILE, Account, read_account
from conformesh.protocols import masks, p_dcp
from conformesh.protocols.masks import KEY_BYTES, MaskedSums, Secrets
from tests.protocols.alone import genuine, signer

OPTIONS = {"epsilon": 1.0, "cells": 5, "grid": "linear", "range": (-3.0, 3.0)}
SETTINGS = Settings(patience=2.0, linger=1.0, on_lost="continue")
COALITION = 1  # the default of p-dcp
LIMIT = 20.0  # virtual seconds of a schedule
PRIME = 2**31 - 1  # ranks are computed modulo this; products of two remainders fit into 63 bits
SMALL = 2**16  # sums of counts and noise are below this in size
KINDS = ("key", "masked", "charge", "charged", "reveal", "total")  # what may happen to a device, in this order


class Killed(BaseException):
    """A process dies here: nothing that handles errors may see it."""


@dataclass(frozen=True)
class Trigger:
    """When something happens to `who` for the n-th time, `victim` is killed, or the network is cut.

    `inside` kills before anything of that step leaves the device; it is for a victim that kills itself. The others are
    killed `after` some seconds, and start again when they were `away` for so long.
    """

    kind: str
    who: int
    times: int
    victim: int | None = None
    part: frozenset[int] = frozenset()
    after: float = 0.0
    away: float = 0.3

    @property
    def inside(self):
        return self.victim == self.who and not self.after


@dataclass(eq=False)
class Entry:
    """An attempt as one device knows it: its secrets, what it counted, and what it sent."""

    device: int
    context: bytes
    ids: tuple[str, ...]  # V, all devices of the attempt
    place: int  # of this device among them
    seed: bytes
    claim: bytes
    happened: list[str] = field(default_factory=list)
    masks: Any = None
    numbers: Any = None  # counts and noise
    noise: Any = None
    words: dict[str, list[Any]] = field(default_factory=lambda: defaultdict(list))
    totals: Any = None


class Mesh(_World):
    """Private devices; `byzantine` is a row or None, `tricks` what it does: see `_trick`.

    With `idle` a device that starts again waits until somebody asks for a run, as a node does that stays up. With
    `stay` one that has failed starts again.
    """

    device = Device  # planted bugs have another class

    def __init__(
        self,
        network,
        folder,
        seed,
        *,
        triggers=(),
        faults=None,
        byzantine=None,
        tricks=(),
        idle=True,
        stay=False,
        **options,
    ):
        self.seed, self.folder, self.triggers = seed, folder, [*triggers]
        self.byzantine, self.tricks, self.idle = byzantine, frozenset(tricks), idle
        self.options = make_options("p-dcp", OPTIONS | options)
        rng = np.random.default_rng([91, seed])
        self.scores = [np.sort(rng.normal(size=int(rng.integers(0, 30)))) for _ in range(network.devices)]
        super().__init__(network, self._start, faults or LinkFaults(), rng, stay)
        self.entries, self.log, self.counted, self.now = [], [], defaultdict(int), 0.0
        self.current, self.charges, self.frames = {}, defaultdict(list), defaultdict(set)
        folder.mkdir(parents=True, exist_ok=True)

    # --- devices ------------------------------------------------------------------------------------------------------

    def _start(self, k, journal):
        mesh, name = self, self.network.ids[k]

        def make(network, row, context):
            account = mesh.account(k)
            entry = Entry(k, context, tuple(network.ids), row, mesh.fresh_seed(k), account.claim())
            mesh.entries.append(entry)
            mesh.current[name] = entry
            secrets = Secrets((entry.seed,), context, signer(name), genuine, account)
            mesh.happens("key", k)
            samples = WeightedScores.of([mesh.scores[k]], (name,))
            return device_protocol(
                "p-dcp", network, row, samples, (exact_alpha(0.2),), mesh.options, DEFAULT_REQUIREMENT, secrets=secrets
            )

        class Tapped(self.device):
            def outbox(self):
                out = super().outbox()
                for frame in (frames.decode_frame(data) for _, data in out):
                    if frame.kind == DATA:
                        mesh.frames[k, frame.run, frame.round].add(frame._replace(flags=frame.flags & ~WANT))
                return out

        idle = self.idle and len(journal.data) > 0
        return Tapped(PeerSetup(k, self.network, {"method": "p-dcp"}, make, journal, SETTINGS, private=True, idle=idle))

    def fresh_seed(self, k):
        """Return secrets that are never drawn twice; planted bugs change this."""
        return hashlib.sha256(f"{self.seed} {k} {len(self.entries)}".encode()).digest()[:KEY_BYTES]

    def account(self, k):
        """Return the account of a device as it is on the disk, which notes what is charged."""
        found, charge = Account(self.path(k), releases=self.options.releases), None
        charge = found.charge

        def charging(epoch, devices, context):
            self.happens("charge", k)
            charge(epoch, devices, context)
            self.charges[k].append(context)
            self.happens("charged", k)

        found.charge = charging
        return found

    def path(self, k):
        return self.folder / f"{k}-{ACCOUNT_FILE}"

    # --- what happens -------------------------------------------------------------------------------------------------

    def happens(self, kind, k):
        """Note that something happens to a device, and do what was to be done then."""
        entry = self.current[self.network.ids[k]]
        entry.happened.append(kind)
        self.log.append((kind, k, entry.context))
        self.counted[kind, k] += 1
        inside = False
        for trigger in self.triggers:
            if (trigger.kind, trigger.who, trigger.times) != (kind, k, self.counted[kind, k]):
                continue
            if trigger.victim is None:
                cut = Cut(self.now, self.now + trigger.away, trigger.part)
                self.faults = replace(self.faults, cuts=(*self.faults.cuts, cut))
            elif trigger.inside:
                inside = True
                self._start_later(k, trigger.away)
            else:
                self._at(self.now + trigger.after, lambda then, trigger=trigger: self._kill(trigger, then))
        if inside:
            raise Killed

    def _kill(self, trigger, now):
        if self.devices[trigger.victim] is not None:
            self._crash(Pause(trigger.victim, now, now, crash=True))
            self._start_later(trigger.victim, trigger.away)

    def _start_later(self, k, away):
        if self.now + away < LIMIT:
            self._at(self.now + away, lambda then: self._boot(k, then))

    @contextmanager
    def _process(self, k, now):
        self.now = now
        try:
            yield
        except Killed:
            self._crash(Pause(k, now, now, crash=True))

    def _boot(self, k, now):
        if self.devices[k] is None:
            with self._process(k, now):
                super()._boot(k, now)

    def _restart(self, k, failed, now):
        if self.devices[k] is failed:
            self.devices[k] = None
            self._boot(k, now)

    def _deliver(self, sender, to, data, now):
        if to == self.byzantine:
            data = self._unnoticed(data)
        with self._process(to, now):
            super()._deliver(sender, to, data, now)

    def _tick(self, k, ticket, now):
        with self._process(k, now):
            super()._tick(k, ticket, now)

    def _flush(self, k, now):
        if self.devices[k] is not None:
            super()._flush(k, now)

    def play(self):
        """Play the schedule; return the devices as they were left, by row, None for one that is down."""
        with self._watched():
            self.run(LIMIT, lambda devices: None)
        return self.devices

    @contextmanager
    def _watched(self):
        """Note what devices mask, reveal and read."""
        mesh, release, add = self, MaskedSums.release, MaskedSums._sum

        def watched_release(sums, counts, noise, charge):
            entry = mesh.current[sums.block.network.ids[sums.block.rows[0]]]
            entry.masks, entry.numbers, entry.noise = sums.masks, (counts + noise)[0], noise[0]
            entry.totals = yield from release(sums, counts, noise, charge)
            mesh.happens("total", entry.device)
            return entry.totals

        def watched_sum(sums, words):
            entry = mesh.current[sums.block.network.ids[sums.block.rows[0]]]
            kind = "reveal" if entry.words["masked"] else "masked"
            entry.words[kind].append(words[0].copy())
            mesh.happens(kind, entry.device)
            return (yield from add(sums, words))

        with mock.patch.multiple(MaskedSums, release=watched_release, _sum=watched_sum):
            yield

    # --- a Byzantine device -------------------------------------------------------------------------------------------

    def _wire(self, sender, to, data, now):
        if sender == self.byzantine:
            data = self._trick(frames.decode_frame(data), to)
        if data is not None:
            super()._wire(sender, to, data, now)

    def _trick(self, frame, to):
        """Return what the Byzantine device really sends to one neighbour; None if nothing."""
        odd = to % 2 == 1
        if frame.kind == HELLO and "lost sets" in self.tricks and odd:
            hello = Hello.of(frame.body, self.network.devices)
            others = [k for k in range(self.network.devices) if k not in (to, self.byzantine)]
            lost = hello.lost | {others[(to + hello.run) % len(others)]}
            frame = frame._replace(body=hello._replace(lost=lost).pack())
        entry = self.current.get(self.network.ids[self.byzantine])
        if frame.kind == DATA and entry is not None:
            if "floods" in self.tricks and odd:
                frame = frame._replace(body=self._other_flood(frame.body, entry))
            if "relays" in self.tricks and odd:
                frame = frame._replace(body=self._spoilt_flood(frame.body, entry))
            if "silent" in self.tricks and odd and "reveal" in entry.happened:
                return None
        return frames.encode_frame(frame)

    def _other_flood(self, body, entry, back=False):
        """Put another key and another claim, signed as well, in the place of the device's own; or undo that."""
        other = hashlib.sha256(b"another " + entry.seed).digest()[:KEY_BYTES]
        claim = Account(self.path(entry.device), epoch=2).claim()
        strings = self.flooded(entry, entry.seed, entry.claim), self.flooded(entry, other, claim)
        return body.replace(*(strings[::-1] if back else strings))

    def _unnoticed(self, data):
        """Let the Byzantine device hear back what it has really said, or it would find itself out."""
        entry, frame = self.current.get(self.network.ids[self.byzantine]), frames.decode_frame(data)
        if frame.kind != DATA or entry is None or "floods" not in self.tricks:
            return data
        return frames.encode_frame(frame._replace(body=self._other_flood(frame.body, entry, back=True)))

    def _spoilt_flood(self, body, entry):
        """Change a bit of what another device floods."""
        for other in self.entries:
            if other.context == entry.context and other is not entry:
                string = self.flooded(other, other.seed, other.claim)
                body = body.replace(string, bytes([string[0] ^ 1]) + string[1:])
        return body

    @staticmethod
    def flooded(entry, seed, claim):
        """Return what the device of an entry tells everybody, with keys from this seed."""
        name = entry.ids[entry.place]
        context = masks.run_context(SimpleNamespace(network=SimpleNamespace(ids=entry.ids)), entry.context)
        public = masks._key_pair(seed, context).public
        return public + claim + signer(name)(masks._signed_part(context, entry.place, public, claim))


# --- what must not be -------------------------------------------------------------------------------------------------


def violations(mesh):
    """Return in words what must not be after a schedule; an empty list if all is well."""
    honest = [entry for entry in mesh.entries if entry.device != mesh.byzantine]
    found = [words for entry in honest for words in _wrong_order(entry)]
    found += _early_reveals(mesh)
    found += _wrong_totals(mesh, honest)
    found += _readable(mesh, honest)
    found += _small_sums(mesh, honest)
    found += _wrong_accounts(mesh, honest)
    seen = [(entry.device, entry.context) for entry in honest]
    found += [f"device {k} has resumed an attempt" for k, context in {*seen} if seen.count((k, context)) > 1]
    for (k, _, round_), said in mesh.frames.items():
        if k != mesh.byzantine and len(said) > 1:
            found.append(f"device {k} has sent {len(said)} different frames in round {round_} of one attempt")
    return found


def _wrong_order(entry):
    """Check that a device charges before it reveals, and reveals once, after the masked sum has come back."""
    happened = [kind for kind in entry.happened if kind != "key"]
    if happened != [*KINDS[1:]][: len(happened)]:
        yield f"device {entry.device}: {', '.join(happened)}, in this order"


def _early_reveals(mesh):
    """Check that nobody is charged before all devices have sent their masked numbers, if all are honest."""
    masked = defaultdict(set)
    for kind, k, context in mesh.log:
        if kind == "masked":
            masked[context].add(mesh.network.ids[k])
        elif kind == "charge":
            ids = next(entry.ids for entry in mesh.entries if entry.context == context)
            others = {*ids} - masked[context]
            if others and (mesh.byzantine is None or mesh.network.ids[mesh.byzantine] not in ids):
                yield f"device {k} was charged before {', '.join(sorted(others))} had sent masked numbers"


def _wrong_totals(mesh, honest):
    """Check that who has a result has the sum of the counts and the noise of all devices of its attempt."""
    by_context = defaultdict(list)
    for entry in mesh.entries:
        by_context[entry.context].append(entry)
    for entry in honest:
        device = mesh.devices[entry.device]
        result = device is not None and device.phase == "finished" and device.result
        if not result or device.membership.greeting.context() != entry.context:
            continue
        everybody = by_context[entry.context]
        if sorted(mesh.network.ids[one.device] for one in everybody) != sorted(entry.ids):
            yield f"device {entry.device} has a result of an attempt that not all of {entry.ids} took part in"
        right = np.sum([one.numbers for one in everybody], axis=0)
        if not np.array_equal(result.facts["release"]["totals"], right):
            yield f"device {entry.device} has totals {result.facts['release']['totals']}, and {right} is right"


def _readable(mesh, honest):
    """Check that nothing can be read but sums over all honest devices of an attempt, each with all its noise."""
    rows, names = [], []
    for entry in honest:
        if entry.masks is None:
            continue
        secrets = _secrets_of(entry, mesh)
        for words in entry.words["masked"]:
            hidden = entry.masks.at(0, len(words))[0] + entry.masks.self_masks(len(words))[0]
            if not np.array_equal((words - hidden).view(np.int32), [1, *entry.numbers]):
                yield f"device {entry.device} has sent other words than its masks and numbers add up to"
        for kind, each in (("masked", secrets), ("reveal", {entry.masks.selves[0]: 1})):
            for words in entry.words[kind]:
                rows.append(each)
                names.append((entry, kind, words))
    columns = {secret: at for at, secret in enumerate({secret for row in rows for secret in row})}
    table = np.zeros((len(rows), len(columns)), dtype=np.int64)
    for at, row in enumerate(rows):
        for secret, sign in row.items():
            table[at, columns[secret]] = sign
    expected = _complete_attempts(mesh, honest)
    free = len(table) - _rank(table)
    if free != len(expected):
        yield f"{free} independent sums can be read, and {len(expected)} attempts were revealed by all honest devices"
    for context in expected:
        chosen = [name for name in names if name[0].context == context]
        signs = np.array(
            [{"masked": 1, "reveal": -1}[kind] if entry.context == context else 0 for entry, kind, _ in names]
        )
        if (signs @ table).any():
            yield "masks of an attempt that was revealed by all do not cancel"
        entries = {id(entry): entry for entry, _, _ in chosen}.values()
        shares = sum(Fraction(1, mesh.options.honest_of(len(entry.ids))) for entry in entries)
        if shares < 1:
            yield f"a sum over {len(entries)} devices can be read with {shares} of its noise"
        for entry in entries:
            if not np.array_equal(entry.noise, _noise_of(mesh, entry)):
                yield f"device {entry.device} has added other noise than its secret says"
            if context not in mesh.charges[entry.device]:
                yield f"a sum with device {entry.device} can be read that its account does not know of"


def _small_sums(mesh, honest):
    """Check the same without knowing secrets: no sum of words over some devices of an attempt looks like counts.

    Masked words are below SMALL in size with a chance of 2^-15 each, and each sum has five of them or more.
    """
    expected = _complete_attempts(mesh, honest)
    for context in {entry.context for entry in honest}:
        entries = [entry for entry in honest if entry.context == context and entry.masks is not None]
        masked = [entry.words["masked"][0] - _known_masks(entry, mesh) for entry in entries if entry.words["masked"]]
        apart = [
            entry.words["masked"][0] - _known_masks(entry, mesh) - entry.words["reveal"][0]
            for entry in entries
            if entry.words["masked"] and entry.words["reveal"]
        ]
        for name, words in (("masked", masked), ("revealed", apart)):
            for chosen in range(1, 2 ** len(words)):
                several = [word for at, word in enumerate(words) if chosen >> at & 1]
                is_small = (np.abs(np.sum(several, axis=0, dtype=np.uint32).view(np.int32)) < SMALL).all()
                complete = name == "revealed" and context in expected and len(several) == len(words)
                if is_small and not complete:
                    yield f"a sum of {name} numbers over {len(several)} of {len(words)} devices is readable"


def _known_masks(entry, mesh):
    """Return what a device adds for the masks that it shares with the Byzantine device."""
    size = len(entry.words["masked"][0])
    others = [name for at, name in enumerate(entry.ids) if at != entry.place]
    for name, pair in zip(others, entry.masks.pairs, strict=True):
        if mesh.byzantine is not None and name == mesh.network.ids[mesh.byzantine]:
            return masks.Masks(1, (pair,)).at(0, size)[0]
    return np.zeros(size, dtype=np.uint32)


def _secrets_of(entry, mesh):
    """Return the unknown masks in a device's masked numbers: signs by secret."""
    found = {entry.masks.selves[0]: 1}
    others = [name for at, name in enumerate(entry.ids) if at != entry.place]
    for name, (plus, _, secret) in zip(others, entry.masks.pairs, strict=True):
        if mesh.byzantine is None or name != mesh.network.ids[mesh.byzantine]:
            found[secret] = 1 if plus >= 0 else -1
    return found


def _complete_attempts(mesh, honest):
    """Return the attempts that all honest devices have revealed with masks that belong together."""
    found = []
    for context in {entry.context for entry in honest}:
        entries = [entry for entry in honest if entry.context == context and entry.masks is not None]
        ids = {
            name
            for entry in entries
            for name in entry.ids
            if mesh.byzantine is None or name != mesh.network.ids[mesh.byzantine]
        }
        if {mesh.network.ids[entry.device] for entry in entries if entry.words["reveal"]} != ids or not ids:
            continue
        signs = defaultdict(int)
        for entry in entries:
            for secret, sign in _secrets_of(entry, mesh).items():
                signs[secret] += sign * (secret != entry.masks.selves[0])
        if not any(signs.values()):
            found.append(context)
    return found


def _noise_of(mesh, entry):
    plan = mesh.options.plan(len(entry.ids), DEFAULT_REQUIREMENT)
    return p_dcp._draw_noise(plan, 1, Secrets((entry.seed,), entry.context).streams(b"noise")[0])


def _rank(table):
    """Return the rank of a matrix of whole numbers, modulo a large prime: never above the true one."""
    left, rank = table % PRIME, 0
    for column in range(left.shape[1]):
        below = np.flatnonzero(left[rank:, column])
        if not len(below):
            continue
        left[[rank, rank + below[0]]] = left[[rank + below[0], rank]]
        left[rank] = left[rank] * pow(int(left[rank, column]), -1, PRIME) % PRIME
        others = np.flatnonzero(left[:, column])
        others = others[others != rank]
        left[others] = (left[others] - left[others, column][:, None] * left[rank]) % PRIME
        rank += 1
    return rank


def _wrong_accounts(mesh, honest):
    """Check that every reveal is on the account, and nothing that never was charged, here or elsewhere."""
    most = max((len(contexts) for contexts in mesh.charges.values()), default=0)
    for k in range(mesh.network.devices):
        if k == mesh.byzantine:
            continue
        releases = read_account(mesh.path(k)).releases(1)
        revealed = [entry.context for entry in honest if entry.device == k and entry.words["reveal"]]
        if not {*revealed} <= {*mesh.charges[k]}:
            yield f"device {k} has revealed what it has not charged"
        if not len(mesh.charges[k]) <= releases <= most:
            yield f"device {k} has charged {len(mesh.charges[k])} releases, and its account says {releases}"
        if releases > mesh.options.releases:
            yield f"device {k} has charged {releases} releases, and {mesh.options.releases} are allowed"


# --- schedules --------------------------------------------------------------------------------------------------------

NETWORKS = (Network.cycle(4), Network.complete(5), Network.chain(5), Network.star(5), Network.torus(2, 3))
TRICKS = ("lost sets", "floods", "relays", "silent")
FOREVER = 1e9  # seconds, longer than any schedule


def drawn_schedule(seed, folder, kind=Mesh):
    """Draw a schedule: up to three triggers, a lossy network, requests for runs, a Byzantine device in a third."""
    rng = np.random.default_rng([92, seed])
    network = NETWORKS[rng.integers(len(NETWORKS))]
    K = network.devices
    faults = LinkFaults(
        loss=float(rng.choice([0.0, 0.0, 0.1])),
        duplication=float(rng.choice([0.0, 0.3])),
        delay=(0.0005, float(rng.choice([0.005, 0.05]))),
        requests=tuple((int(rng.integers(K)), float(rng.uniform(2, 15))) for _ in range(rng.integers(3))),
    )
    byzantine = int(rng.integers(K)) if rng.random() < 1 / 3 else None
    tricks = [] if byzantine is None else [one for one in TRICKS if rng.random() < 0.5]
    return kind(
        network,
        folder,
        seed,
        triggers=[_drawn_trigger(rng, K) for _ in range(rng.integers(4))],
        faults=faults,
        byzantine=byzantine,
        tricks=tricks,
        idle=bool(rng.random() < 0.5),
        stay=bool(rng.random() < 0.25),
        releases=int(rng.choice([1, 1, 2, 4])),
        aggregate=str(rng.choice(["tree", "tree", "tree", "flood"])),
    )


def _drawn_trigger(rng, K):
    who, away = int(rng.integers(K)), float(rng.choice([0.3, 1.0, 3.0, FOREVER]))
    event = str(rng.choice(KINDS)), who, int(rng.choice([1, 1, 1, 2]))
    if rng.random() < 0.25:
        return Trigger(*event, part=frozenset(np.flatnonzero(rng.random(K) < 0.5).tolist()), away=away)
    victim = who if rng.random() < 0.5 else int(rng.integers(K))
    after = 0.0 if victim == who and rng.random() < 0.5 else float(rng.choice([1e-6, 0.002, 0.02]))
    return Trigger(*event, victim=victim, after=after, away=away)
