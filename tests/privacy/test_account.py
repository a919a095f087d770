"""The account of a device: theorem B, what is refused, and that a charge is never forgotten."""

import itertools
import json
import math
import os
import stat
from fractions import Fraction
from functools import cache

import msgspec
import numpy as np
import pytest

from conformesh.privacy import account as module
from conformesh.privacy.account import (
    ACCOUNT_FILE,
    EPOCHS_KEPT,
    EXACT_RUN,
    MOST_ROSTERS,
    Account,
    AccountFields,
    PrivacyRefused,
    claim_size,
    read_account,
    roster_atoms,
)
from tests.privacy.releases import a_release

ROSTER = [*"abcdefghij"]
ALONE = 0  # size of a coalition where nobody lies


@pytest.fixture
def path(tmp_path):
    return tmp_path / ACCOUNT_FILE


@pytest.fixture
def unflushed(monkeypatch):
    """Thousands of small files are written here, and none must survive a power cut."""
    monkeypatch.setattr(os, "fsync", lambda handle: None)


def without(*names):
    return [name for name in ROSTER if name not in names]


def attempt(accounts, coalition=ALONE, context=b"an attempt", lies=None):
    """Settle and charge on every device, as a run does; `lies` replaces claims by row."""
    claims = [account.claim() for account in accounts]
    for row, claim in (lies or {}).items():
        claims[row] = claim
    settled = [account.settle(claims, coalition) for account in accounts]
    for account, one in zip(accounts, settled, strict=True):
        account.charge(one.epoch, ROSTER[: len(accounts)], context)
    return settled


# --- theorem B --------------------------------------------------------------------------------------------------------

HALF = Fraction(1, 2)  # exp(-epsilon): epsilon is log 2 here, and exp(epsilon) is 2
EDGE = 3  # totals from -EDGE to EDGE are told apart, larger and smaller ones are lumped together
MOMENTS = ("at once", "after one step", "never")  # when a device crashes: the two steps are the charge and the reveal
CRASHES = [(one, *[other] * 2) for one in MOMENTS for other in MOMENTS]  # by device
CLOCKS = ((1, 1, 1), (2, 2, 2), (2, 1, 1), (2, 2, 1))  # the last closed epoch, by device


def total_law(count):
    """The law of a count with discrete Laplace noise, totals beyond the edges in one piece each."""
    inside = {z: (1 - HALF) / (1 + HALF) * HALF ** abs(z - count) for z in range(-EDGE, EDGE + 1)}
    above = HALF ** (EDGE + 1 - count) / (1 + HALF)
    return inside | {"above": above, "below": 1 - above - sum(inside.values())}


class Toy:
    """Three devices that hold records of two epochs; an adversary chooses clocks, crashes and rollbacks as it likes.

    The worst ratio of the chances of any transcript on adjacent data is found exactly, over all adaptive adversaries:
    of what comes next it always takes the action and the outcome with the largest ratio. `variant` plants a bug.
    """

    def __init__(self, monkeypatch, releases, variant=""):
        self.releases, self.variant, self.transcripts = releases, variant, 0
        self.disk = {}  # thousands of files, none of which must survive a power cut
        monkeypatch.setattr(module, "write_file", lambda path, text, mode: self.disk.update({path: text}))
        monkeypatch.setattr(module, "read_account", self._read)

    def _read(self, path):
        found = self.disk.get(path)
        return AccountFields() if found is None else msgspec.json.decode(found, type=AccountFields)

    def worst(self):
        """Return the largest of all ratios: P(transcript | one record more) over P(transcript), or its inverse."""
        nobody = (None,) * 3  # the files of all accounts
        self._go_on = cache(self._largest_ratio)
        return self._go_on(self.releases + 2, nobody, nobody)

    def _largest_ratio(self, left, more, fewer):
        if not left:
            self.transcripts += 1
            return Fraction(1)
        best = Fraction(0)
        for clocks, moments, rolled_back in itertools.product(CLOCKS, CRASHES, (False, True)):
            laws, files = [], []
            for world, extra in ((more, 1), (fewer, 0)):
                law, after = self._attempt(world, extra, clocks, moments, rolled_back, left)
                laws.append(law)
                files.append(after)
            for outcome in {**laws[0], **laws[1]}:
                one, other = (law.get(outcome, Fraction(0)) for law in laws)
                if not one or not other:
                    return math.inf
                best = max(best, max(one / other, other / one) * self._go_on(left - 1, *files))
        return best

    def _attempt(self, world, extra, clocks, moments, rolled_back, left):
        """Return the law of what everybody sees of an attempt, and the files afterwards.

        Device 0 holds `extra` records of epoch 1, and nobody any other.
        """
        self.disk = {k: text for k, text in enumerate(world) if text and not (rolled_back and k == 0)}
        accounts = [Account(k, epoch=epoch, releases=self.releases) for k, epoch in enumerate(clocks)]
        claims = [account.claim() for account in accounts]
        law, refused, epoch = {"nothing": Fraction(1)}, [], 0
        for k, account in enumerate(accounts):
            try:
                epoch = account.settle(claims, 1).epoch
            except PrivacyRefused:
                refused.append(k)
        held = [extra if epoch == 1 else 0, 0, 0]
        if self.variant == "a refusal that depends on data" and epoch == 1 and not held[0]:
            refused.append(0)
        if not refused:
            order = ("charge", "reveal") if self.variant != "charged after the reveal" else ("reveal", "charge")
            revealed = 0
            for account, moment, records in zip(accounts, moments, held, strict=True):
                for step in order[: MOMENTS.index(moment)]:
                    if step == "reveal":
                        revealed += 1
                    elif records or self.variant != "only with data":
                        account.charge(epoch, "abc", str(left).encode())
            if revealed == 3:  # the total can be read, whatever happens afterwards
                law = total_law(sum(held))
        return {("refused", *refused): Fraction(1)} if refused else law, tuple(map(self.disk.get, range(3)))


@pytest.mark.parametrize("releases", [1, 2])
def test_theorem_b(monkeypatch, releases):
    """Over all adaptive adversaries the ratio is at most exp(a epsilon), and attained."""
    toy = Toy(monkeypatch, releases)
    assert toy.worst() == Fraction(2) ** releases
    assert toy.transcripts > 10


@pytest.mark.parametrize("variant", ["charged after the reveal", "only with data", "a refusal that depends on data"])
def test_theorem_b_fails_with_a_planted_bug(monkeypatch, variant):
    assert Toy(monkeypatch, 1, variant).worst() > 2


# --- claims -----------------------------------------------------------------------------------------------------------


def accounts_of(folder, devices, **more):
    return [Account(folder / f"{k}.json", **more) for k in range(devices)]


@pytest.mark.parametrize("window", [1, 5])
def test_a_claim_has_as_many_bytes_whatever_happened(tmp_path, window):
    sizes = set()
    for number, epoch in enumerate((0, 1, 3, 2**40)):
        (account,) = [Account(tmp_path / str(number), epoch=epoch, window=window)]
        sizes.add(len(account.claim()))
        if epoch:
            attempt([account])
            sizes.add(len(account.claim()))
            account.store(epoch, a_release())
            sizes.add(len(account.claim()))
    assert sizes == {claim_size(window)}


def test_two_clocks_at_the_end_of_an_epoch_settle_on_one_epoch(tmp_path):
    """The (t+1)-th largest: one device that is early does not decide, and t + 1 of them do."""
    accounts = [Account(tmp_path / str(k), epoch=epoch) for k, epoch in enumerate((6, 5, 5, 5))]
    assert {one.epoch for one in attempt(accounts, coalition=1)} == {5}
    later = [Account(tmp_path / str(k), epoch=epoch) for k, epoch in enumerate((6, 6, 5, 5))]
    assert {one.epoch for one in attempt(later, coalition=1)} == {6}


def test_by_the_clock_an_epoch_far_ahead_is_refused(tmp_path):
    """One Byzantine device and one wrong clock must not use up all epochs; a clock one epoch behind is usual."""
    epochs = (2**50, 2000, 5, 5)
    accounts = [Account(tmp_path / str(k), epoch=epoch, most_ahead=1) for k, epoch in enumerate(epochs)]
    claims = [one.claim() for one in accounts]
    with pytest.raises(PrivacyRefused, match="set the clocks"):
        accounts[3].settle(claims, 1)
    near = [Account(tmp_path / f"near {k}", epoch=epoch, most_ahead=1) for k, epoch in enumerate((6, 6, 5))]
    assert near[2].settle([one.claim() for one in near], 1).epoch == 6


def test_byzantine_devices_neither_choose_an_epoch_nor_use_up_a_budget(tmp_path):
    byzantine = Account(tmp_path / "byzantine", epoch=2**50)
    attempt([byzantine])
    for lie in (byzantine.claim(), b"", b"no claim", bytes(claim_size(1)), b"\xff" * claim_size(1)):
        accounts = accounts_of(tmp_path / "m", 4, epoch=3)
        (tmp_path / "m").mkdir(exist_ok=True)
        assert {one.epoch for one in attempt(accounts, 1, lies={3: lie})} == {3}
        for account in accounts:
            account.path.unlink()


def test_a_rollback_is_answered_by_peers(tmp_path):
    """An old copy of the file, or none: the device goes by what t + 1 others claim, and writes it down."""
    attempt(accounts_of(tmp_path, 4), coalition=1)
    (tmp_path / "0.json").unlink()
    after = accounts_of(tmp_path, 4)
    claims = [account.claim() for account in after]
    assert after[0].refusal() == ""
    with pytest.raises(PrivacyRefused, match="epoch 1 was released 1 time, and the option releases allows 1"):
        after[0].settle(claims, 1)
    assert accounts_of(tmp_path, 1)[0].refusal()  # it knows again, also without them


def test_one_peer_alone_is_not_believed(tmp_path):
    (tmp_path / "one").mkdir()
    charged, *others = accounts_of(tmp_path / "one", 4)
    attempt([charged])
    claims = [account.claim() for account in [charged, *others]]
    assert all(account.settle(claims, 1).epoch == 1 for account in others)
    with pytest.raises(PrivacyRefused):
        charged.settle(claims, 1)  # it knows itself


def test_an_attempt_is_charged_once(tmp_path):
    account = Account(tmp_path / ACCOUNT_FILE, releases=5)
    account.charge(1, ROSTER, b"one")
    with pytest.raises(PrivacyRefused, match="this attempt was charged before, and a device reveals its mask once"):
        account.charge(1, ROSTER, b"one")
    account.charge(1, ROSTER, b"two")
    assert read_account(account.path).releases(1) == 2


def test_a_charge_beyond_the_budget_is_refused_again(tmp_path):
    account = Account(tmp_path / ACCOUNT_FILE)
    account.charge(1, ROSTER, b"one")
    with pytest.raises(PrivacyRefused):
        account.charge(1, ROSTER, b"two")


def test_no_epoch_has_closed_yet(tmp_path):
    with pytest.raises(PrivacyRefused, match="no epoch has closed yet; run again when the next epoch has closed"):
        attempt(accounts_of(tmp_path, 3, epoch=0))


# --- windows ----------------------------------------------------------------------------------------------------------


def test_past_releases_count_where_every_device_states_the_same(tmp_path):
    releases = {epoch: a_release(epoch) for epoch in range(1, 7)}
    for epoch, release in releases.items():
        accounts = accounts_of(tmp_path, 3, epoch=epoch, window=3)
        (settled, *others) = attempt(accounts, context=str(epoch).encode())
        assert all(one == settled for one in others)
        wanted = [releases[one] for one in range(max(1, epoch - 2), epoch) if one != 4]
        assert settled == (epoch, tuple(wanted))
        for row, account in enumerate(accounts):
            account.store(epoch, a_release(99) if (row, epoch) == (2, 4) else release)


def test_a_past_release_that_one_device_lacks_does_not_count(tmp_path):
    for epoch in (1, 2):
        accounts = accounts_of(tmp_path, 3, epoch=epoch, window=2)
        settled = attempt(accounts, context=str(epoch).encode())
        for account in accounts[:2]:
            account.store(epoch, a_release())
    assert {one.past for one in settled} == {()}


def test_a_release_survives_the_file(path):
    account, release = Account(path), a_release(5)
    account.charge(1, ROSTER, b"one")
    account.store(1, release)
    record = read_account(path).record(1)
    assert record.release == release
    assert record.plan == module.plan_digest(a_release(7))  # of the same plan
    assert (record.releases, record.devices, record.context) == (1, 10, b"one".hex())


# --- size -------------------------------------------------------------------------------------------------------------


def test_the_file_stays_bounded_and_old_epochs_are_used_up(path, unflushed):
    for epoch in (*range(1, 8), EPOCHS_KEPT + 1, EPOCHS_KEPT + 3):
        account = Account(path, epoch=epoch, window=2)
        account.charge(epoch, ROSTER, str(epoch).encode())
        account.store(epoch, a_release(epoch))
    fields = read_account(path)
    assert [one.epoch for one in fields.epochs] == [4, 5, 6, 7, EPOCHS_KEPT + 1, EPOCHS_KEPT + 3]
    assert [one.epoch for one in fields.epochs if one.release] == [EPOCHS_KEPT + 1, EPOCHS_KEPT + 3]
    with pytest.raises(
        PrivacyRefused, match=f"epoch 3 is {EPOCHS_KEPT} epochs old or older, and is never released again"
    ):
        Account(path, epoch=3).charge(3, ROSTER, b"again")
    with pytest.raises(PrivacyRefused, match="epoch 4 was released 1 time"):
        Account(path, epoch=4).charge(4, ROSTER, b"again")
    lies = Account(path.with_name("other"), epoch=3)
    lies.charge(3, ROSTER, b"x")
    with pytest.raises(PrivacyRefused):
        Account(path, epoch=3).settle([lies.claim()] * 3, 1)
    assert read_account(path).used_up == 3  # and nothing came back


# --- exact runs -------------------------------------------------------------------------------------------------------


def exact(path, devices=ROSTER, scores="one", hidden=3, **more):
    Account(path, **more).charge_exact(devices, scores, hidden)


def test_an_exact_run_costs_infinity(tmp_path):
    accounts = accounts_of(tmp_path, 3, epoch=2, releases=100)
    for account in accounts:
        exact(account.path, ROSTER[:3], epoch=2)
    accounts = accounts_of(tmp_path, 3, epoch=2, releases=100)
    with pytest.raises(PrivacyRefused, match="epoch 2 was counted without noise, after which no epsilon protects it"):
        attempt(accounts)
    (tmp_path / "0.json").unlink()  # nor after a rollback
    with pytest.raises(PrivacyRefused, match="epoch 2 was counted without noise"):
        accounts_of(tmp_path, 1, epoch=2, releases=100)[0].settle([one.claim() for one in accounts], 1)
    assert read_account(tmp_path / "0.json").releases(2) == EXACT_RUN
    assert {one.epoch for one in attempt(accounts_of(tmp_path, 3, epoch=3))} == {3}


def test_four_rosters_are_refused(path):
    """Any two of them differ by two devices or more, and together they tell twice the sum of one."""
    rosters = [ROSTER, without("a", "b"), without("b", "c"), without("a", "c")]
    whole, ab, bc, ac = ({*roster} for roster in rosters)
    told = {k: (k in whole) * 1 - (k in ab) - (k in bc) + (k in ac) for k in ROSTER}
    assert told == {k: 2 * (k == "b") for k in ROSTER}  # what two of the sums, less the others, are about
    exact(path, rosters[0], hidden=2)
    exact(path, rosters[1], hidden=2)  # {a, b} are two, and hide in each other
    with pytest.raises(PrivacyRefused, match=r"would together tell that of \{a\}: 1 device, at least 2 are needed"):
        exact(path, rosters[2], hidden=2)
    with pytest.raises(PrivacyRefused):
        exact(path, rosters[3], hidden=2)
    assert len(read_account(path).exact_runs) == 2  # what was refused is not entered


def test_a_roster_with_one_device_less_is_refused_and_the_same_one_is_not(path):
    exact(path)
    before = path.stat().st_mtime_ns
    exact(path)
    assert path.stat().st_mtime_ns == before  # the same sums again leave the account as it is
    with pytest.raises(PrivacyRefused, match=r"that of \{j\}: 1 device, at least 3 are needed; run with the same"):
        exact(path, without("j"))
    exact(path, without("h", "i", "j"))
    with pytest.raises(PrivacyRefused, match=r"that of \{f, g\}: 2 devices"):
        exact(path, without("f", "g", "h", "i", "j"))


def test_atoms_are_the_sets_that_sums_can_tell_apart():
    rng = np.random.default_rng(0)
    for _ in range(30):
        rosters = [[name for name in ROSTER if rng.random() < 0.6] for _ in range(rng.integers(1, 5))]
        found = roster_atoms(rosters)
        known = sorted({name for roster in rosters for name in roster})
        assert sorted(name for atom in found for name in atom) == known
        for a in known:
            for b in known:
                together = any({a, b} <= {*atom} for atom in found)
                assert together == all((a in roster) == (b in roster) for roster in rosters)


def test_changed_scores_are_refused_in_exact_runs_and_not_with_noise(path):
    exact(path)
    with pytest.raises(PrivacyRefused, match=r"the scores of this device have changed since an exact private run"):
        exact(path, scores="two")
    assert Account(path, epoch=2).refusal() == ""


def test_rosters_of_exact_runs_are_bounded(path, unflushed):
    names = [f"d{k:03}" for k in range(3 * MOST_ROSTERS + 6)]
    for number in range(MOST_ROSTERS):
        exact(path, names[: 3 * number + 6])
    with pytest.raises(PrivacyRefused, match=f"exact private runs had {MOST_ROSTERS} rosters before"):
        exact(path, names)
    exact(path, names[:6])  # one of those


# --- the file ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("what", ["charge", "exact"])
def test_a_charge_survives_and_only_its_owner_can_read_it(path, monkeypatch, what):
    """On the disk before the charge returns, whole or not at all."""

    def charged(number):
        if what == "charge":
            Account(path, releases=9).charge(1, ROSTER, str(number).encode())
        else:
            exact(path, ROSTER[number:], hidden=0)

    synced, real = [], os.fsync
    monkeypatch.setattr(os, "fsync", lambda handle: synced.append(handle) or real(handle))
    charged(0)
    assert len(synced) == 2  # the file and its folder
    again = path.read_bytes()
    if os.name == "posix":
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    monkeypatch.setattr(os, "fsync", _full)
    with pytest.raises(OSError, match="cannot write the file"):
        charged(1)
    assert path.read_bytes() == again


def _full(handle):
    raise OSError(28, "No space left on device")


UNREADABLE = [
    b"",
    b"{",
    b"[]",
    b'{"format": "conformesh-privacy/1", "epochs": []}',
    b'{"format": "conformesh-privacy/2", "epochs": [{"epoch": 0}]}',
    b'{"format": "conformesh-privacy/2", "epochs": [{"epoch": 1, "releases": -1}]}',
    b'{"format": "conformesh-privacy/2", "exact_runs": [{"devices": []}]}',
    b'{"format": "conformesh-privacy/2", "more": 1}',
    None,  # a folder
]


@pytest.mark.parametrize("content", UNREADABLE)
def test_an_unreadable_account_is_told_to_the_operator_only(path, tmp_path, content):
    """It claims what an empty one claims, goes by its peers, and leaves the file alone; no exact run is made."""
    path.mkdir() if content is None else path.write_bytes(content)
    account = Account(path)
    assert ACCOUNT_FILE in account.problem
    assert account.claim() == Account(tmp_path / "none").claim()
    assert {one.epoch for one in attempt([account, *accounts_of(tmp_path, 2)], 1)} == {1}
    account.store(1, a_release())
    if content is not None:
        assert path.read_bytes() == content
    with pytest.raises(ValueError, match=ACCOUNT_FILE) as refused:
        exact(path)
    assert not isinstance(refused.value, PrivacyRefused)
    again = Account(path)
    with pytest.raises(PrivacyRefused, match="epoch 1 was released 1 time"):
        again.settle([again.claim(), *(one.claim() for one in accounts_of(tmp_path, 2))], 1)


def test_an_account_is_plain_json(path):
    Account(path).charge(1, ROSTER, b"\1")
    found = json.loads(path.read_text())
    record = {"epoch": 1, "releases": 1, "context": "01", "devices": 10, "plan": "", "release": None}
    assert found == {
        "format": "conformesh-privacy/2",
        "epochs": [record],
        "used_up": 0,
        "exact_until": 0,
        "exact_runs": [],
    }
