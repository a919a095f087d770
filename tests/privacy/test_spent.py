"""The account of what a device has told: what it forbids, what it charges, and that it is never forgotten."""

import json
import os
import stat

import numpy as np
import pytest

from conformesh import Network
from conformesh.privacy.spent import FILE, PrivacyRefused, Run, Spent, atoms
from tests.protocols.alone import Transcript, made, secrets_of, together

ROSTER = [*"abcdefghij"]
SCORES = np.array([0.1, 0.2, 0.2, 0.7])


@pytest.fixture
def account(tmp_path):
    return Spent(tmp_path / FILE)


def without(*names):
    return [name for name in ROSTER if name not in names]


def entered(account, number, devices=ROSTER, scores="one", epsilon=None, values=SCORES, **limits):
    account.enter(Run(f"run {number}", [*devices], scores, epsilon), values, **limits)


def test_four_rosters_are_refused(account):
    """Any two of them differ by two devices or more, and together they tell twice the sum of one."""
    rosters = [ROSTER, without("a", "b"), without("b", "c"), without("a", "c")]
    whole, ab, bc, ac = ({*roster} for roster in rosters)
    told = {k: (k in whole) * 1 - (k in ab) - (k in bc) + (k in ac) for k in ROSTER}
    assert told == {k: 2 * (k == "b") for k in ROSTER}  # what two of the sums, less the others, are about
    entered(account, 0, rosters[0], hidden=2)
    entered(account, 1, rosters[1], hidden=2)  # {a, b} are two, and hide in each other
    with pytest.raises(PrivacyRefused, match=r"would together tell that of \{a\}: 1 device, at least 2 are needed"):
        entered(account, 2, rosters[2], hidden=2)
    with pytest.raises(PrivacyRefused):
        entered(account, 3, rosters[3], hidden=2)
    assert len(account.read().runs) == 2  # what was refused is not entered


def test_a_roster_with_one_device_less_is_refused_and_the_same_one_is_not(account):
    entered(account, 0)
    entered(account, 1)
    with pytest.raises(PrivacyRefused, match=r"that of \{j\}: 1 device, at least 3 are needed; run with the same"):
        entered(account, 2, without("j"))
    entered(account, 3, without("h", "i", "j"))
    with pytest.raises(PrivacyRefused, match=r"that of \{f, g\}: 2 devices"):
        entered(account, 4, without("f", "g", "h", "i", "j"))


def test_atoms_are_the_sets_that_sums_can_tell_apart():
    rng = np.random.default_rng(0)
    for _ in range(30):
        rosters = [[name for name in ROSTER if rng.random() < 0.6] for _ in range(rng.integers(1, 5))]
        found = atoms(rosters)
        known = sorted({name for roster in rosters for name in roster})
        assert sorted(name for atom in found for name in atom) == known
        for a in known:
            for b in known:
                together = any({a, b} <= {*atom} for atom in found)
                assert together == all((a in roster) == (b in roster) for roster in rosters)


def test_changed_scores_are_refused_without_noise(account):
    entered(account, 0)
    with pytest.raises(PrivacyRefused, match=r"its scores have changed since a private run without noise.*use epsilon"):
        entered(account, 1, scores="two")
    entered(account, 2, scores="two", epsilon=1.0)  # noise hides the difference


def test_the_same_run_again_costs_nothing(account):
    for _ in range(3):
        entered(account, 0, epsilon=1.0)
    assert {*account.read().spent.values()} == {1.0}
    assert len(account.read().runs) == 1
    entered(account, 1, without("j"), epsilon=None, hidden=1)
    entered(account, 1, without("j"), epsilon=None, hidden=9)  # said again, byte by byte, whatever would be refused now


def test_a_spent_budget_is_refused_with_words(account):
    entered(account, 0, epsilon=1.0)
    words = (
        "some of its scores would spend more than their budget: 1 of 1 is spent, and this run needs 1; take new scores"
    )
    with pytest.raises(PrivacyRefused, match=words):
        entered(account, 1, epsilon=1.0)
    entered(account, 2, epsilon=1.0, budget=2.5)
    with pytest.raises(PrivacyRefused, match=r"2 of 2\.5 is spent, and this run needs 1"):
        entered(account, 3, epsilon=1.0, budget=2.5)
    entered(account, 4, epsilon=0.5, budget=2.5)
    assert {*account.read().spent.values()} == {2.5}


def test_tenths_add_up_to_a_budget(account):
    for number in range(10):
        entered(account, number, epsilon=0.1, budget=1.0)
    with pytest.raises(PrivacyRefused):
        entered(account, 10, epsilon=0.1, budget=1.0)


def test_only_scores_that_were_counted_are_charged_and_equal_ones_are_one(account):
    entered(account, 0, epsilon=1.0)
    entered(account, 1, scores="two", epsilon=1.0, values=np.array([0.3, 0.4]))
    assert len(account.read().spent) == 5
    with pytest.raises(PrivacyRefused, match="some of its scores"):  # those that are equal to an old one
        entered(account, 2, scores="three", epsilon=1.0, values=np.array([0.9, 0.2, 0.2]))
    assert not any("0.2" in name for name in account.read().spent)  # no score is written down


def test_where_devices_are_protected_new_scores_do_not_help(account):
    """Whatever it holds, a device is the same: its runs add up."""
    entered(account, 0, epsilon=1.0, budget=2.0, unit="device")
    entered(account, 1, scores="two", epsilon=1.0, values=SCORES + 1, budget=2.0, unit="device")
    with pytest.raises(PrivacyRefused, match=r"the device would spend more than its budget: 2 of 2 is spent"):
        entered(account, 2, scores="three", epsilon=1.0, values=SCORES + 2, budget=2.0, unit="device")
    with pytest.raises(PrivacyRefused, match="the device would spend more"):
        entered(account, 3, scores="none", epsilon=1.0, values=np.array([]), budget=2.0, unit="device")


def test_a_charge_survives_and_only_its_owner_can_read_it(account, monkeypatch):
    """On the disk before `enter` returns, whole or not at all."""
    synced, real = [], os.fsync
    monkeypatch.setattr(os, "fsync", lambda handle: synced.append(handle) or real(handle))
    entered(account, 0, epsilon=1.0)
    assert len(synced) == 2  # the file and its folder
    again = Spent(account.path).read()
    assert again.runs[0] == Run("run 0", ROSTER, "one", 1.0)
    if os.name == "posix":
        assert stat.S_IMODE(account.path.stat().st_mode) == 0o600
    monkeypatch.setattr(os, "fsync", _full)
    with pytest.raises(OSError, match="cannot write the file"):
        entered(account, 1, epsilon=1.0, budget=2.0)
    assert Spent(account.path).read() == again


def _full(handle):
    raise OSError(28, "No space left on device")


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[]",
        b'{"format": "conformesh-privacy/2", "runs": [], "spent": {}}',
        b'{"format": "conformesh-privacy/1", "runs": []}',
        b'{"format": "conformesh-privacy/1", "runs": [], "spent": {"x": -1}}',
        b'{"format": "conformesh-privacy/1", "runs": [{"run": "x"}], "spent": {}}',
        b'{"format": "conformesh-privacy/1", "runs": [], "spent": {}, "more": 1}',
    ],
)
def test_an_unreadable_account_is_an_error_and_not_an_empty_one(account, content):
    account.path.write_bytes(content)
    with pytest.raises(ValueError, match=FILE) as refused:
        entered(account, 0)
    assert not isinstance(refused.value, PrivacyRefused)
    assert account.path.read_bytes() == content


def test_what_is_no_file_is_no_empty_account_either(account):
    account.path.mkdir()
    with pytest.raises(OSError, match=FILE):
        entered(account, 0)


def test_an_account_is_plain_json(account):
    entered(account, 0, epsilon=0.25)
    file = json.loads(account.path.read_text())
    assert file["format"] == "conformesh-privacy/1"
    assert file["runs"] == [{"run": "run 0", "devices": ROSTER, "scores": "one", "epsilon": 0.25}]


# --- in a run ---------------------------------------------------------------------------------------------------------

TABLE = [np.linspace(0.1, 0.9, 30)] * 5


@pytest.mark.parametrize("epsilon", [None, 2.0])
def test_epsilon_is_charged_before_the_first_noisy_frame(epsilon):
    """Once on every device, after keys are known and before any number that depends on scores is said."""
    network, said, charged = Network.chain(5), Transcript(), []
    options = {"grid": "logit"} | ({} if epsilon is None else {"epsilon": epsilon, "width": 3})

    def secrets(net, row):
        def permit(cost):
            assert not said.masked
            charged.append((row, cost))

        return secrets_of(net, row, permit=permit)

    together(network, made(network, TABLE, secrets=secrets, **options), said=said)
    assert sorted(charged) == [(row, epsilon) for row in range(5)]
    assert said.masked


@pytest.mark.parametrize("epsilon", [None, 2.0])
def test_a_device_that_is_not_permitted_says_nothing_of_its_scores(epsilon):
    network, said = Network.chain(5), Transcript()
    options = {"grid": "logit"} | ({} if epsilon is None else {"epsilon": epsilon, "width": 3})

    def permit(cost):
        raise PrivacyRefused("no")

    def secrets(net, row):
        return secrets_of(net, row, **{"permit": permit} if row == 4 else {})

    with pytest.raises(PrivacyRefused):
        together(network, made(network, TABLE, secrets=secrets, **options), said=said)
    assert said
    assert not [one for one in said.masked if one[1] == 4]
