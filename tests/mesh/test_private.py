"""Private calibration on folders with certificates: keys, releases, losses, the account, and what others observe."""

import json
import re
import subprocess
import sys
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from fractions import Fraction
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest

pytest.importorskip("cryptography", reason="certificates need the extra mesh")

from msgspec import to_builtins

from conformesh import Network
from conformesh.kernels.weighted_scores import WeightedScores
from conformesh.mesh.config import seal as seals
from conformesh.mesh.config.device_toml import read_device
from conformesh.mesh.config.epochs import declare_epoch
from conformesh.mesh.config.folders import init_mesh, reissue_device
from conformesh.mesh.config.local_scores import LocalScores
from conformesh.mesh.http.client import NodeError
from conformesh.mesh.node import calibration_run
from conformesh.mesh.node.heartbeat import share_status
from conformesh.mesh.node.state import NodeState
from conformesh.mesh.node.status import Trouble
from conformesh.mesh.node.status_updates import StatusFeed
from conformesh.peer.json_bodies import Hello
from conformesh.peer.loopback import LinkFaults, Pause, draw_link_faults
from conformesh.privacy.account import ACCOUNT_FILE, Account, read_account
from conformesh.privacy.histogram import Release
from conformesh.protocols import p_dcp
from conformesh.view.statuses import status_fields
from conformesh.view.watched_device import WatchedDevice
from tests.mesh.meshes import config
from tests.mesh.nodes import Clock, ask, serving, threshold_in
from tests.mesh.private_mesh import NETWORK, NOISY, Crashed, Mesh, known_secrets
from tests.mesh.real import make_mesh, simulated
from tests.peer.devices import thresholds
from tests.protocols.alone import made, secrets_of, together

AT = "device-01"
ALPHA = Fraction(1, 10)
SERVED = ("/status", "/mesh", "/metrics", "/health", "/threshold", "/certificate", "/calibration")


def answers(mesh, epochs=(1,), rows=range(5)):
    """What the releases in the account of each device answer, added up."""
    found = []
    for k in rows:
        account = mesh.account(k)
        found.append(Release.summed([account.record(epoch).release for epoch in epochs]).answer(ALPHA).threshold)
    return [np.float64(one).tobytes() for one in found]


def declare(mesh, number, rows=None):
    for k in range(len(mesh.folders)) if rows is None else rows:
        declare_epoch(mesh.configs[k], number)


# --- keys -------------------------------------------------------------------------------------------------------------


def test_exact_devices_end_with_the_simulators_threshold(tmp_path):
    mesh = Mesh(tmp_path / "m")
    right = simulated(mesh.folders[0], [own.values for own in mesh.scores], "p-dcp")
    assert thresholds(mesh.play()) == [np.float64(x).tobytes() for x in right]
    assert all(mesh.account(k).exact_runs[0].devices == [*mesh.configs[0].devices] for k in range(5))
    assert mesh.releases() == [2**16 - 1] * 5  # which is no epsilon any more


def forged(mesh, root, real, monkeypatch):
    """A key that another authority's device signed."""
    init_mesh(root / "other", NETWORK, method="p-dcp")
    return seals.CertificateSeal(read_device(root / "other" / AT)).sign


def of_another(mesh, root, real, monkeypatch):
    """A key that another device of the mesh signed."""
    return seals.CertificateSeal(mesh.configs[2]).sign


def of_an_earlier_attempt(mesh, root, real, monkeypatch):
    """A proof that the device itself has given, for its key of another attempt."""
    earlier = calibration_run.attempt_secrets(mesh.configs[1], mesh.scores[1], 1, bytes(32), lambda words: None)
    proof = earlier.prove(b"its key of that attempt")
    return lambda message: proof


def of_another_row(mesh, root, real, monkeypatch):
    """Its own key, signed for another device's row: the row stands before the key, after the context."""
    one, other, key = (number.to_bytes(8, "little") for number in (1, 2, 32))
    return lambda message: real(message.replace(one + key, other + key))


def revoked(mesh, root, real, monkeypatch):
    """Signed by a key that was stolen, and whose certificate is out."""
    stolen = seals.CertificateSeal(mesh.configs[1])
    reissue_device(root / "m", AT)
    mesh.configs = [read_device(folder) for folder in mesh.folders]
    return stolen.sign


def expired(mesh, root, real, monkeypatch):
    late = datetime.now(UTC) + timedelta(days=366)
    monkeypatch.setattr(seals, "CertificateSeal", partial(seals.CertificateSeal, clock=lambda: late))
    return real


@pytest.mark.parametrize("wrong", [forged, of_another, of_an_earlier_attempt, of_another_row, revoked, expired])
def test_a_key_that_is_not_signed_for_this_attempt_ends_it_before_any_number(tmp_path, monkeypatch, wrong):
    mesh, honest = Mesh(tmp_path / "m", options=NOISY), calibration_run.attempt_secrets
    prove = wrong(mesh, tmp_path, seals.CertificateSeal(mesh.configs[1]).sign, monkeypatch)

    def secrets_of(config, *parts):
        found = honest(config, *parts)
        if config.name != AT:
            return found
        return type(found)(found.seeds, found.context, prove, found.genuine, found.account, found.scores_of)

    monkeypatch.setattr(calibration_run, "attempt_secrets", secrets_of)
    devices = mesh.play()
    assert {device.phase for device in devices} == {"failed"}
    named = "device-00" if wrong is expired else AT
    said = [str(device.error) for device in devices]
    assert any(
        f"the key received as that of device {named} was not signed by it for this attempt" in one for one in said
    )
    assert not mesh.steps
    assert not any((folder / ACCOUNT_FILE).exists() for folder in mesh.folders)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"insecure": True}, "by keys that devices sign with their certificates, and this mesh is insecure"),
        ({"on_lost": "continue"}, "the sum over those who are left would tell that of who is lost; use on_lost 'fail'"),
        (
            {"online": {"learning": 0.05, "local": 0.05, "bound": 1.0}},
            r"\[online\] tells everybody how many labels.*raises drift alarms that others hear",
        ),
        ({"mode": "asynchronous"}, "method 'p-dcp' needs rounds; use mode rounds"),
    ],
)
def test_what_would_tell_of_single_devices_is_refused_beside_a_private_method(changes, words):
    with pytest.raises(ValueError, match=words):
        config(method="p-dcp", **changes)
    assert config(method="p-dcp", on_lost="continue", options={"epsilon": 1.0}).run.method == "p-dcp"


# --- releases ---------------------------------------------------------------------------------------------------------


def test_a_threshold_is_what_the_stored_release_answers(tmp_path):
    mesh = Mesh(tmp_path / "m", options=NOISY)
    devices = mesh.play()
    assert thresholds(devices) == answers(mesh)
    assert mesh.releases() == [1] * 5
    assert len({(folder / ACCOUNT_FILE).read_bytes() for folder in mesh.folders}) == 1  # it is public
    assert mesh.account(0).record(1).devices == 5


def test_epochs_of_a_window_are_added_up(tmp_path):
    """Each run releases its own epoch; the threshold is of the sum of the releases of the window."""
    root, options = tmp_path / "m", {**NOISY, "window": 2}
    rng = np.random.default_rng(5)
    scores = [LocalScores(rng.random(120), np.repeat([1, 2, 3], 40)) for _ in range(5)]
    for epoch in (1, 2, 3):
        mesh = Mesh(root, options=options)
        mesh.scores = scores
        declare(mesh, epoch)
        devices = mesh.play()
        assert thresholds(devices) == answers(mesh, range(max(1, epoch - 1), epoch + 1))
        assert mesh.releases(epoch) == [1] * 5
        numbers = [mesh.account(0).record(one).release.totals[0] for one in range(1, epoch + 1)]
        assert numbers == pytest.approx([200] * epoch, abs=60)  # epsilon 4: 0.4 for the number, 10 standard deviations
    mesh = Mesh(root, options=options)
    mesh.account(4).record(3)
    (mesh.folders[4] / ACCOUNT_FILE).unlink()  # a device without the past releases: nobody uses them
    declare(mesh, 4)
    mesh.scores = [LocalScores(own.values, own.epochs + 1) for own in scores]
    assert thresholds(mesh.play()) == answers(mesh, [4])


def test_an_epoch_is_released_as_often_as_agreed(tmp_path):
    mesh = None
    for number in range(3):
        mesh = Mesh(tmp_path / "m", options={**NOISY, "releases": 2}, after=mesh)
        devices = mesh.play()
        if number < 2:
            assert thresholds(devices) == answers(mesh)
    assert {device.phase for device in devices} == {"failed"}
    assert {device.error.code for device in devices} <= {"privacy", "refused"}
    words = "epoch 1 was released 2 times, and the option releases allows 2; run again when the next epoch has closed"
    assert any(words in str(device.error) for device in devices)
    assert mesh.releases() == [2] * 5
    assert not mesh.steps


def test_an_exact_run_is_followed_by_none_with_epsilon(tmp_path):
    Mesh(tmp_path / "m").play()
    mesh = Mesh(tmp_path / "m")
    mesh.configs = [one.with_settings(options=NOISY) for one in mesh.configs]
    devices = mesh.play()
    assert any("epoch 1 was counted without noise" in str(device.error) for device in devices)
    assert {device.phase for device in devices} == {"failed"}


def test_changed_scores_are_refused_in_exact_runs(tmp_path):
    Mesh(tmp_path / "m").play()
    mesh = Mesh(tmp_path / "m")
    mesh.scores[1] = LocalScores(mesh.scores[1].values / 2)
    devices = mesh.play()
    assert devices[1].error.code == "privacy"
    assert "the scores of this device have changed since an exact private run" in str(devices[1].error)
    assert not any("scores of this device" in str(devices[k].error) for k in (0, 2, 3, 4))  # only its operator is told


# --- lost devices -----------------------------------------------------------------------------------------------------

STEPS = ("charge", "charged", "revealed", "stored")  # of one device: before and after its charge, and after the reveal


def crashing(mesh, step, name=AT):
    """Have a device crash once, at a step."""
    crashed = []

    def crash(at, who, attempt):
        if (at, who) == (step, name) and not crashed:
            crashed.append(at)
            raise Crashed

    mesh.crash = crash
    return crashed


@pytest.mark.parametrize("step", STEPS)
def test_a_kill_before_during_and_after_the_reveal_never_releases_twice(tmp_path, step):
    """The device starts again and asks for a new run: another release is refused by all that have paid."""
    mesh = Mesh(tmp_path / "m", options=NOISY, patience=3.0)
    crashed = crashing(mesh, step)
    devices = mesh.play(limit=60.0)
    assert crashed
    assert len(mesh.readable()) <= 1
    assert max(mesh.releases()) <= 1
    assert {device.phase for device in devices} <= {"failed", "finished"}
    done = [device for device in devices if device.phase == "finished"]
    assert not done or len(done) == 5


@pytest.mark.parametrize("step", STEPS)
def test_with_a_spare_release_a_killed_device_costs_one_epsilon_more(tmp_path, step):
    mesh = Mesh(tmp_path / "m", options={**NOISY, "releases": 2}, patience=3.0)
    crashing(mesh, step)
    devices = mesh.play(limit=60.0)
    assert thresholds(devices) == answers(mesh)
    assert len(mesh.readable()) <= 2
    assert max(mesh.releases()) <= 2


def test_an_attempt_that_fails_before_the_reveal_costs_nothing(tmp_path):
    """A device is lost in every round in which nobody has revealed, and comes back: one release is paid for.

    Who is d links away is at most d - 1 rounds further.
    """
    base, charged = Mesh(tmp_path / "m", options=NOISY), {}

    def noted(step, name, attempt):
        row = base.configs[0].devices.index(name)
        charged.setdefault(row, base.devices[row].round)

    base.crash = noted
    base.play()
    away = {0: 1, 1: 1, 2: 1, 3: 2, 4: 2}  # links from device 1
    last = min(charged[row] - away[row] for row in range(5))
    assert last > 4
    for round_ in range(1, last + 1):
        for folder in base.folders:
            (folder / ACCOUNT_FILE).unlink()
        mesh = Mesh(tmp_path / "m")
        start = mesh.make

        def dying(k, journal, start=start, round_=round_):
            device = start(k, journal)
            if k == 1 and not journal.data:
                write_round = device.run_journal.write_round

                def dying(messages, write_round=write_round, device=device):
                    write_round(messages)
                    if device.round == round_:
                        raise Crashed

                device.run_journal.write_round = dying
            return device

        mesh.make = dying
        devices = mesh.play(limit=60.0)
        assert {device.number for device in devices} == {2}
        assert thresholds(devices) == answers(mesh)
        assert mesh.releases() == [1] * 5


@pytest.mark.parametrize("step", ["at once", *STEPS])
@pytest.mark.parametrize("releases", [1, 2])
def test_survivors_go_on_without_a_device_that_is_killed_for_good(tmp_path, step, releases):
    """Before the reveal that costs nothing, afterwards one more epsilon: certified or refused in words."""
    mesh = Mesh(tmp_path / "m", options={**NOISY, "releases": releases}, on_lost="continue", patience=3.0)
    crashing(mesh, step)
    mesh.away = np.inf
    if step == "at once":
        mesh.faults = LinkFaults(pauses=(Pause(1, 0.002, np.inf, crash=True),))
    devices = [device for device in mesh.play(limit=120.0) if device.row != 1]
    survivors = [0, 2, 3, 4]
    assert max(mesh.releases()) <= releases
    paid = {name for step, name, attempt in mesh.steps if (step, attempt) == ("charged", mesh.steps[0][2])}
    if step == "at once":
        assert {device.survivors for device in devices} == {(0, 2, 3, 4)}
        assert [mesh.releases()[k] for k in survivors] == [1] * 4
    if step == "at once" or releases == 2:
        assert {device.phase for device in devices} == {"finished"}
        assert thresholds(devices) == answers(mesh, rows=survivors)
    else:  # some have paid for the first attempt, and refuse another one
        assert paid
        failed = [device for device in devices if device.phase == "failed"]
        said = " ".join(str(device.error) for device in failed)
        assert not failed or "epoch 1 was released 1 time" in said


@pytest.mark.parametrize(
    ("options", "lost", "words"),
    [
        (NOISY, 3, "2 of 5 devices are left, and 3 are needed to go on"),
        ({**NOISY, "honest": 3}, 2, "3 of 5 devices are left, and 4 are needed to go on"),
        ({**NOISY, "coalition": 2}, 2, "3 of 5 devices are left, and 4 are needed to go on"),
    ],
)
def test_a_run_needs_a_quorum_and_enough_honest_devices(tmp_path, options, lost, words):
    gone = [4, 3, 0][:lost]
    faults = LinkFaults(pauses=tuple(Pause(k, 0.002, np.inf, crash=True) for k in gone))
    mesh = Mesh(tmp_path / "m", options=options, on_lost="continue", patience=2.0, faults=faults)
    devices = [device for device in mesh.play(limit=60.0) if device.row not in gone]
    assert {device.phase for device in devices} == {"failed"}
    assert any(words in str(device.error) for device in devices)
    assert not mesh.steps


def test_a_quorum_below_the_honest_devices_is_refused():
    with pytest.raises(
        ValueError, match="takes 5 devices: 4 honest ones beside a coalition of 1; use a quorum of as m"
    ):
        config(
            method="p-dcp",
            on_lost="continue",
            quorum=4,
            options={"epsilon": 1.0, "honest": 4},
            devices=tuple("abcdef"),
            edges=tuple(zip("abcde", "bcdef", strict=True)),
            endpoints={name: f"127.0.0.1:{7600 + k}" for k, name in enumerate("abcdef")},
            name="a",
        )


@pytest.mark.parametrize("seeds", [40, pytest.param(1000, marks=pytest.mark.slow)], ids=["few", "many"])
@pytest.mark.parametrize("on_lost", ["fail", "continue"])
def test_random_schedules_give_the_right_totals_or_none(tmp_path, monkeypatch, on_lost, seeds):
    """Loss, cuts, freezes, crashes at any moment, some devices gone for good; noise is left out to compare totals.

    A total is that of the devices of its attempt, nobody reveals twice in one, and accounts are never overdrawn.
    """
    monkeypatch.setattr(p_dcp, "_draw_noise", lambda plan, trials, stream: np.zeros(plan.numbers, dtype=np.int64))
    finished = 0
    for seed in range(seeds):
        rng = np.random.default_rng([31, seed])
        faults = draw_link_faults(NETWORK, rng)
        if rng.random() < 0.4:
            gone = Pause(int(rng.integers(5)), float(rng.uniform(0, 0.3)), np.inf, crash=True)
            faults = replace(faults, pauses=(*faults.pauses, gone))
        root = tmp_path / on_lost
        mesh = Mesh(root, faults=faults, options={**NOISY, "releases": 3}, on_lost=on_lost, patience=3.0)
        for folder in mesh.folders:
            (folder / ACCOUNT_FILE).unlink(missing_ok=True)
        step, name = rng.choice([*STEPS, "never"]), f"device-{rng.integers(5):02}"
        crashing(mesh, step, name)
        devices = mesh.play(limit=200.0)
        paid = mesh.releases()
        assert max(paid) <= 3
        assert len(mesh.readable()) <= 3
        for device in devices:
            if device.phase != "finished":
                continue
            finished += 1
            survivors = [mesh.scores[k].values for k in device.survivors]
            release = mesh.account(device.row).record(1).release
            counts = np.histogram(np.concatenate(survivors), [-np.inf, *release.pivots, np.inf])[0]
            assert release.totals == (sum(map(len, survivors)), *counts[1:].tolist())
            assert device.result.thresholds[0, 0, 0] == release.answer(ALPHA).threshold
            assert paid[device.row] >= 1
    assert finished > 1.5 * seeds  # of five devices each, some of which are gone


def test_equivocated_lost_sets_never_give_two_totals(tmp_path):
    """A device tells one neighbour that another one is lost, and the other neighbour nothing of it.

    Keys are signed for a context that has the lost devices in it, so that honest devices agree on who is in an attempt,
    or have none.
    """
    mesh = Mesh(tmp_path / "m", options=NOISY, on_lost="continue", patience=3.0)
    base = mesh.make

    def start(k, journal):
        device = base(k, journal)
        if k == 1:
            send = device.links.send

            def lying(to, frame):
                if frame.kind == 1 and to == 0:
                    hello = Hello.of(frame.body, 5)
                    frame = frame._replace(body=hello._replace(lost=hello.lost | {3}).pack())
                send(to, frame)

            device.links.send = lying
        return device

    mesh.make = start
    devices = mesh.play(limit=120.0)
    assert len(mesh.readable()) <= 1
    assert max(mesh.releases()) <= 1
    assert len({one for one in thresholds(devices) if one is not None}) <= 1


# --- the account on a mesh --------------------------------------------------------------------------------------------


def test_a_rollback_is_answered_by_peers_and_the_epoch_is_not_released_again(tmp_path):
    """An old copy of privacy.json is restored on one device, then on all but one of them."""
    mesh = Mesh(tmp_path / "m", options=NOISY)
    mesh.play()
    for rolled_back in ([1], [0, 1, 2, 3]):
        mesh = Mesh(tmp_path / "m", after=mesh)
        for k in rolled_back:
            (mesh.folders[k] / ACCOUNT_FILE).unlink(missing_ok=True)
        devices = mesh.play(limit=60.0)
        assert {device.phase for device in devices} == {"failed"}
        assert not mesh.readable()
        assert not any(step == "revealed" for step, *_ in mesh.steps)


def test_a_device_without_a_readable_account_adds_no_scores(tmp_path):
    """Others see nothing of it; its operator does."""
    mesh = Mesh(tmp_path / "m", [np.full(300, 0.5) if k == 1 else np.empty(0) for k in range(5)], options=NOISY)
    (mesh.folders[1] / ACCOUNT_FILE).write_text("{")
    devices = mesh.play()
    assert {device.phase for device in devices} == {"finished"}
    assert abs(mesh.account(0).record(1).release.totals[0]) < 100  # epsilon 0.4: 28 standard deviations
    assert any("this device takes part without its scores until" in words for words in mesh.log[AT])
    assert (mesh.folders[1] / ACCOUNT_FILE).read_text() == "{"
    others = [words for name, told in mesh.log.items() if name != AT for words in told]
    assert not any("account" in words or ACCOUNT_FILE in words for words in others)


@pytest.mark.parametrize(("ahead", "epoch"), [([0], 5), ([0, 3], 6)])
def test_two_clocks_at_the_end_of_an_epoch(tmp_path, ahead, epoch):
    """One clock that is early does not decide, two do (t + 1): all devices release the same epoch."""
    rng = np.random.default_rng(5)
    mesh = Mesh(tmp_path / "m", options={**NOISY, "epoch_seconds": 100}, start_at=690.0)
    mesh.scores = [LocalScores(rng.random(200), np.repeat([5, 6], 100)) for _ in range(5)]
    for k in ahead:
        mesh.clocks[k] = 15.0
    assert thresholds(mesh.play()) == answers(mesh, [epoch])
    assert mesh.releases(epoch) == [1] * 5
    assert mesh.account(0).record(epoch).release.epochs == (epoch,)


def test_a_device_that_claims_two_epochs_is_found_out(tmp_path):
    """At the end of an epoch a Byzantine device could tell devices different epochs: flooding notices."""
    network, table = Network.cycle(5), [np.linspace(0.1, 0.9, 60)] * 5

    def secrets(claimed):
        def of(net, row):
            epoch = claimed if row == 1 else (6 if row == 0 else 5)
            account = Account(tmp_path / f"{claimed}-{row}.json", epoch=epoch)
            return secrets_of(net, row, account=account, scores_of=lambda _: WeightedScores.of(table[:1]))

        return of

    other = next(made(network, table, secrets=secrets(6), **NOISY)[1]).packets[0]

    def change(round_, sender, receiver, value):
        return other if (round_, sender, receiver) == (1, 1, 2) else value

    with pytest.raises(ValueError, match="says something else of device 1 than was heard before"):
        together(network, made(network, table, secrets=secrets(5), **NOISY), change=change)
    assert not [*tmp_path.iterdir()]  # nobody has paid


# --- what can be observed ---------------------------------------------------------------------------------------------


def shown(mesh, devices, k, where):
    """Return all that the local service of a node says after its run, by path, on a clock that stands still."""
    clock = Clock()
    node = NodeState(
        mesh.configs[k].name, clock=lambda: clock.now, wall=lambda: clock.wall, private=True
    )  # as serving.Node makes it
    node.begin_run(1)
    feed = StatusFeed(node, devices[k])
    feed.update(devices[k].clock.now)
    result = calibration_run.device_result(mesh.configs[k], devices[k], 1.0)
    node.certify(result, roster=mesh.configs[k].devices, run=devices[k].number, roster_number=1)
    node.set_trouble(Trouble.SCORES, mesh.scores[k].problem)
    node.set_file_status(None, len(mesh.scores[k]), f"{len(mesh.scores[k])} scores")
    feed.update(devices[k].clock.now + 1)
    with serving(node, where) as service:
        said = {path: ask(service, "GET", path)[2] for path in SERVED}

    def not_learning():
        raise NodeError("this node does not learn", 404)

    seen = WatchedDevice("a", None, 1.0, private=True)
    seen.client = SimpleNamespace(
        status=lambda: to_builtins(node.status()), online=not_learning
    )  # of the owner, unshared
    status, _ = seen.ask()
    return said | {
        "view": repr(status_fields(status)),
        "heartbeat": repr(share_status(node.shared_status(), 1.0)),
        "words": str(result),
        "file": result.to_json(),
    }


def observed(mesh, where="tcp"):
    """All that others than the owner can see of a run."""
    devices = mesh.play()
    assert {device.phase for device in devices} == {"finished"}
    return {
        "trace": mesh.trace_of_frames,
        "steps": [(step, name) for step, name, _ in mesh.steps],
        "journals": [bytes(journal.data) for journal in mesh.journals],
        "accounts": [(folder / ACCOUNT_FILE).read_bytes() for folder in mesh.folders],
        "agreement": [mesh.agreement_of(device) for device in devices],
        "shown": [shown(mesh, devices, k, where) for k in range(5)],
    }


def unusable(problem):
    """Scores as `_read_row_by_row` returns them for a file that its operator should look at."""
    return LocalScores(np.empty(0), np.empty(0, dtype=np.int64), problem)


def spread_twice(root, monkeypatch):
    """Return what others observe of the same scores and secrets, spread over the devices in two ways.

    In one of them a device has no usable file at all.
    """
    scores, found = np.random.default_rng(7).random(400), []
    for ends in ((137, 200, 263, 263), (61, 190, 300, 347)):
        mesh = Mesh(root, np.split(scores, ends), options=NOISY)
        for folder in mesh.folders:
            (folder / ACCOUNT_FILE).unlink(missing_ok=True)
        if not len(mesh.scores[3]):
            mesh.scores[3] = unusable("scores.csv: of 8 rows 8 cannot be read")
        with known_secrets(monkeypatch):
            found.append(observed(mesh))
    return found


def test_what_others_observe_does_not_depend_on_who_holds_which_scores(tmp_path, monkeypatch):
    """Frames with their times and sizes, journals, accounts, agreement, answers at a port, heartbeats, results."""
    one, other = spread_twice(tmp_path / "m", monkeypatch)
    for what in one:
        assert one[what] == other[what], what
    status, metrics = json.loads(one["shown"][0]["/status"]), one["shown"][0]["/metrics"]
    assert status["certified"]["scores"] is None
    assert not re.search(r"(?m)^conformesh_(scores|process_\w+) ", metrics)
    assert "search" not in status


def digest_in_greeting(monkeypatch, make=calibration_run.make_device):
    """A planted leak: the agreement holds a digest of the scores, as a hello would tell everybody."""

    def leaking(config, scores, *parts, **named):
        device = make(config, scores, *parts, **named)
        device.digest = scores.digest
        return device

    monkeypatch.setattr(calibration_run, "make_device", leaking)
    monkeypatch.setattr(Mesh, "agreement_of", lambda mesh, device: {**device.agreement, "scores": device.digest})


def troubles_at_the_port(monkeypatch):
    """A planted leak: the port tells what the owner's socket does."""
    monkeypatch.setattr(NodeState, "shared_status", NodeState.status)


def size_in_the_journal(monkeypatch, make=calibration_run.make_device):
    """A planted leak: a record whose length depends on the number of scores."""

    def leaking(config, scores, journal, *parts, **named):
        device = make(config, scores, journal, *parts, **named)
        write_round = device.run_journal.write_round
        device.run_journal.write_round = lambda messages: (
            write_round(messages),
            journal.append(bytes(len(scores))),
        )
        return device

    monkeypatch.setattr(calibration_run, "make_device", leaking)


def slow_with_many_scores(monkeypatch, make=calibration_run.make_device):
    """A planted leak: the frames of a device with many scores come later."""
    delay = Mesh._delay
    monkeypatch.setattr(Mesh, "_delay", lambda mesh, k, to: delay(mesh, k, to) + len(mesh.scores[k]) * 1e-6)


@pytest.mark.parametrize(
    ("leak", "seen"),
    [
        (digest_in_greeting, "agreement"),
        (troubles_at_the_port, "shown"),
        (size_in_the_journal, "journals"),
        (slow_with_many_scores, "trace"),
    ],
)
def test_a_planted_leak_is_observed(tmp_path, monkeypatch, leak, seen):
    leak(monkeypatch)
    one, other = spread_twice(tmp_path / "m", monkeypatch)
    assert one[seen] != other[seen]


def test_the_owner_sees_what_others_do_not(tmp_path):
    """The check itself: on the socket of the owner the trouble with the file is seen, and the process."""
    mesh = Mesh(tmp_path / "m", options=NOISY)
    mesh.scores[1] = unusable("scores.csv: of 8 rows 8 cannot be read")
    own = observed(mesh, "unix")["shown"][1]
    assert "8 cannot be read" in own["/status"]
    assert "8 cannot be read" in own["/health"]
    assert re.search(r"(?m)^conformesh_process_", own["/metrics"])
    assert "cannot be read" not in own["heartbeat"]
    assert "scores" not in own["heartbeat"].replace("codes=0", "")


def test_failures_look_alike_to_others():
    """A private node that failed for any local cause, as its port and its heartbeats show it."""
    found, own = set(), set()
    for code in ("scores", "journal", "protocol", "privacy", "other", "links", "certificate"):
        clock = Clock()
        node = NodeState("a", ("b",), clock=lambda c=clock: c.now, wall=lambda c=clock: c.wall, private=True)
        node.fail(f"device holds {len(code)} scores", code)
        with serving(node, "tcp") as service:
            said = {path: ask(service, "GET", path)[2] for path in ("/status", "/health", "/metrics", "/threshold")}
        found.add(repr((said, share_status(node.shared_status(), 1.0))))
        own.add(repr(to_builtins(node.status())))
    assert len(found) == 1
    assert len(own) == 7
    assert "device holds" not in found.pop()


@pytest.mark.parametrize("options", [{}, pytest.param(NOISY, marks=pytest.mark.slow)], ids=["exact", "noise"])
def test_five_processes_agree_on_one_threshold(tmp_path, options):
    pytest.importorskip("zenoh", reason="a mesh needs Eclipse Zenoh: pip install 'conformesh[mesh]'")
    folders, expected = make_mesh(tmp_path / "m", Network.cycle(5), "p-dcp", options=options)
    command = [sys.executable, "-m", "conformesh", "mesh", "up", str(tmp_path / "m"), "--json"]
    found = subprocess.run(command, capture_output=True, text=True, timeout=90, check=False)
    assert found.returncode == 0, found.stderr
    results = json.loads(found.stdout)
    assert len({*(threshold_in(result) for result in results)}) == 1
    if not options:  # with noise the threshold follows from secrets that nobody knows
        assert [threshold_in(result) for result in results] == expected
        return
    for folder in folders:
        account = read_account(folder / ACCOUNT_FILE)
        assert account.releases(1) == 1
        answer = account.record(1).release.answer(ALPHA).threshold
        assert [float(threshold_in(result)) for result in results] == [answer] * 5
    again = subprocess.run(command, capture_output=True, text=True, timeout=90, check=False)
    assert again.returncode != 0
    assert "epoch 1 was released 1 time" in again.stdout
    assert Account(folders[0] / ACCOUNT_FILE).refusal()
