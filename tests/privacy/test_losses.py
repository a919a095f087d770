"""Devices that are lost, killed, cut off or Byzantine: totals are right or there is none, and nothing else is readable.

A campaign has no false alarms. With n schedules it misses a fault that shows in a share p of them with probability
(1 - p)^n: a fault in one of 100 schedules with 55 % in the quick suite, and with 0.004 % in the long one.
"""

import hashlib
from collections import Counter

import pytest

pytest.importorskip("cryptography", reason="masks need the extra mesh")

from conformesh import Network
from conformesh.peer.membership import Membership
from conformesh.peer.memory import RunJournal, pack_round
from conformesh.privacy.account import read_account
from conformesh.protocols import masks
from conformesh.protocols.masks import KEY_BYTES, MaskedSums, Masks
from conformesh.protocols.p_dcp import PDCP
from tests.campaigns import campaign_seeds
from tests.peer.devices import in_device
from tests.privacy.attempts import FOREVER, Mesh, Trigger, drawn_schedule, violations

QUICK = 60  # schedules of the quick suite, in about 4 s
VICTIM = 2


def wrong(folder, seeds, kind=Mesh):
    """Play schedules; return what must not be, by seed, and how often what happened."""
    found, seen = {}, Counter()
    for seed in seeds:
        mesh = drawn_schedule(seed, folder / f"{seed}", kind)
        devices = [device for device in mesh.play() if device is not None]
        if words := violations(mesh):
            found[seed] = words
        revealed = Counter(entry.context for entry in mesh.entries if "reveal" in entry.happened)
        seen["certified"] += any(device.phase == "finished" for device in devices)
        seen["certified by survivors"] += any(device.phase == "finished" and device.lost for device in devices)
        seen["refused by the account"] += any(device.error and device.error.code == "privacy" for device in devices)
        sizes = {entry.context: len(entry.ids) for entry in mesh.entries}
        seen["revealed by some"] += any(count < sizes[context] for context, count in revealed.items())
        seen["released again"] += any(len(contexts) > 1 for contexts in mesh.charges.values())
        seen["Byzantine"] += mesh.byzantine is not None
    return found, seen


def test_losses_restarts_partitions_and_equivocation(tmp_path):
    found, seen = wrong(tmp_path, range(QUICK))
    assert found == {}
    assert min(seen.values()) >= QUICK / 20, seen  # else the schedules do not show much
    assert len(seen) == 6


@pytest.mark.slow
@pytest.mark.parametrize("part", range(4))
def test_a_thousand_schedules_with_losses(tmp_path, part):
    found, seen = wrong(tmp_path, campaign_seeds(1000, QUICK)[part::4])
    assert found == {}
    assert min(seen.values()) > 10, seen


# --- one loss at every step -------------------------------------------------------------------------------------------


def lost(folder, kind, network=None, releases=1, **trigger):
    """Play a run in which one device is killed for ever when something happens to it."""
    triggers = [Trigger(kind, VICTIM, 1, VICTIM, away=FOREVER, **trigger)]
    mesh = Mesh(network or Network.cycle(5), folder, 1, triggers=triggers, releases=releases)
    mesh.play()
    assert violations(mesh) == []
    return mesh


def counts(mesh):
    """Return how often the epoch was released by each account."""
    return [read_account(mesh.path(k)).releases(1) for k in range(mesh.network.devices)]


@pytest.mark.parametrize(("kind", "after"), [("key", 0.0), ("key", 1e-6), ("masked", 0.0)])
def test_a_loss_before_the_reveal_costs_nothing(tmp_path, kind, after):
    """It is killed before its key, or its masked numbers, are sent, or just after its key was."""
    mesh = lost(tmp_path, kind, after=after)
    assert [device and device.phase for device in mesh.devices] == [
        "finished",
        "finished",
        None,
        "finished",
        "finished",
    ]
    assert counts(mesh) == [1, 1, 0, 1, 1]
    assert {device.lost for device in mesh.devices if device} == {frozenset({VICTIM})}


def test_a_loss_after_the_reveal_costs_one_release(tmp_path):
    """All have revealed when one is lost: without a second release the others are refused, with one they go on."""
    for releases, phase in ((1, "failed"), (2, "finished")):
        mesh = lost(tmp_path / f"{releases}", "total", releases=releases)
        others = [device for device in mesh.devices if device is not None]
        assert {device.phase for device in others} == {phase}
        assert counts(mesh) == [releases, releases, 1, releases, releases]
        if releases == 1:
            assert {device.error.code for device in others} <= {"privacy", "refused"}
            assert any("epoch 1 was released 1 time" in str(device.error) for device in others)


def test_a_loss_between_masked_numbers_and_reveal_costs_the_others_one_release_and_tells_nothing(tmp_path):
    """They cannot know that it will not reveal: none of the sums of this attempt is readable, and all are charged."""
    mesh = lost(tmp_path, "masked", after=1e-6)
    assert counts(mesh) == [1, 1, 0, 1, 1]
    assert not any(device and device.phase == "finished" for device in mesh.devices)


def test_a_device_that_was_charged_and_did_not_reveal_refuses_alone(tmp_path):
    """It is killed between its charge and its reveal, and starts again: the others have charged, too."""
    triggers = [Trigger("charged", VICTIM, 1, VICTIM, away=0.3)]
    mesh = Mesh(Network.cycle(5), tmp_path, 1, triggers=triggers, idle=False)
    mesh.play()
    assert violations(mesh) == []
    assert counts(mesh)[VICTIM] == 1
    first = next(entry for entry in mesh.entries if entry.device == VICTIM)
    assert first.happened == ["key", "masked", "charge", "charged"]


# --- equivocation -----------------------------------------------------------------------------------------------------


def equivocated(folder, seed=1):
    """Play a run in which the hub of a star tells half of the leaves another key and another claim of its own."""
    mesh = Mesh(Network.star(5), folder, seed, byzantine=0, tricks=["floods"])
    mesh.play()
    assert violations(mesh) == []
    return mesh


def test_devices_that_were_told_different_floods_have_masks_that_do_not_cancel(tmp_path):
    """The hub knows both keys, passes on everything, and reads nothing: leaves that differ share no masks."""
    mesh = equivocated(tmp_path)
    leaves = [entry for entry in mesh.entries if entry.device and entry.masks is not None]
    assert {entry.device for entry in leaves} == {1, 2, 3, 4}
    assert all("reveal" in entry.happened for entry in leaves)  # all that it could ask for
    secrets = {entry.device: {secret for _, _, secret in entry.masks.pairs} for entry in leaves}
    assert secrets[1] & secrets[3]
    assert secrets[2] & secrets[4]
    assert not (secrets[1] | secrets[3]) & (secrets[2] | secrets[4])
    assert not any(device and device.phase == "finished" for device in mesh.devices)


# --- planted bugs -----------------------------------------------------------------------------------------------------


def find(folder, kind=Mesh, seeds=range(QUICK)):
    """Return the first words that schedules find to complain about."""
    for seed in seeds:
        mesh = drawn_schedule(seed, folder / f"{seed}", kind)
        mesh.play()
        if words := violations(mesh):
            return " ".join(words)
    return ""


def test_schedules_notice_a_reveal_before_all_masked_numbers_have_arrived(tmp_path, monkeypatch):
    def early(self, counts, noise, charge):
        own = masks._with_ones(counts + noise)
        selves = self.masks.self_masks(own.shape[1])
        charge()
        revealed = yield from self._sum(selves)
        hidden = yield from self._sum(own + self.masks.at(0, own.shape[1]) + selves)
        return self._checked(hidden - revealed)

    monkeypatch.setattr(MaskedSums, "release", early)
    assert "charge, charged, masked, in this order" in find(tmp_path)


@in_device("membership")
class _GoesOn(Membership):
    def recall(self):
        make, self._private = self.make, False
        self.make = lambda network, row: make(network, row, self.greeting.context())
        super().recall()
        self.make, self._private = make, True


@in_device("run_journal", _GoesOn)
class Resumes(RunJournal):
    """Keeps all of an attempt in its journal, and goes on with it after a restart."""

    def write_round(self, messages):
        self._journal.append(pack_round(messages))


class Remembered(Mesh):
    """Secrets that a device has again after a restart."""

    device = Resumes

    def fresh_seed(self, k):
        return hashlib.sha256(f"{self.seed} {k}".encode()).digest()[:KEY_BYTES]


def test_schedules_notice_an_attempt_that_is_resumed_after_a_restart(tmp_path):
    assert "has resumed an attempt" in find(tmp_path, Remembered)


class Repeated(Mesh):
    """The same secrets in every attempt."""

    def fresh_seed(self, k):
        return hashlib.sha256(f"{self.seed} {k}".encode()).digest()[:KEY_BYTES]


def test_schedules_notice_secrets_that_are_used_again(tmp_path, monkeypatch):
    """A seed alone does no harm, since all that follows from it is bound to its attempt; here it is not."""
    assert find(tmp_path / "bound", Repeated, range(15)) == ""
    derived = masks.derive_secret
    monkeypatch.setattr(masks, "derive_secret", lambda secret, context, purpose: derived(secret, b"", purpose))
    assert "independent sums can be read" in find(tmp_path / "free", Repeated)


class ChargesOnce(Mesh):
    """Skips the charge of an attempt if an earlier one was charged."""

    def account(self, k):
        account, before = super().account(k), [*self.charges[k]]
        charge = account.charge
        account.charge = lambda *release: None if before else charge(*release)
        return account


def test_schedules_notice_a_charge_that_is_skipped_in_a_second_attempt(tmp_path):
    assert "has revealed what it has not charged" in find(tmp_path, ChargesOnce)


def test_schedules_notice_a_missing_self_mask(tmp_path, monkeypatch):
    words = Masks.self_masks
    monkeypatch.setattr(Masks, "self_masks", lambda self, numbers: 0 * words(self, numbers))
    assert "a sum of masked numbers over" in find(tmp_path)


def test_schedules_notice_noise_that_counts_on_a_byzantine_device(tmp_path, monkeypatch):
    """Shares as if all devices kept theirs to themselves."""
    monkeypatch.setattr(PDCP, "honest_of", lambda self, devices: devices)
    assert "of its noise" in find(tmp_path)
