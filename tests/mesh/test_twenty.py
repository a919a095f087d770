"""Twenty devices, twenty processes, mutual TLS, and what happens to real ones. Long: run by `make test-all`."""

import json
import signal

import numpy as np
import pytest

from conformesh import METHODS, Network
from conformesh.kernels.weighted_scores import WeightedScores
from conformesh.pipeline.solver import solve_draws
from tests.campaigns import campaign_seeds
from tests.mesh.nodes import threshold_in
from tests.mesh.real import drawn_scores, finish, make_mesh, missed_for, round_of, start, wait_for

pytest.importorskip("zenoh", reason="a mesh needs Eclipse Zenoh: pip install 'conformesh[mesh]'")
pytest.importorskip("cryptography", reason="a mesh needs certificates: pip install 'conformesh[mesh]'")
from conformesh.mesh.config.device_toml import read_device

pytestmark = [pytest.mark.slow, pytest.mark.meshes]

OPTIONS = {"q-dcp": {"rounds": 100}, "h-dcp": {"rounds": 60}}
TORUS, CHAIN = Network.torus(5, 4), Network.chain(20)
PATIENCE = 10.0


@pytest.mark.parametrize(
    ("method", "network"),
    [*((method, TORUS) for method in METHODS), ("e-dcp", CHAIN), ("q-dcp", CHAIN)],
    ids=lambda value: getattr(value, "name", value),
)
def test_every_method_ends_with_the_simulators_threshold(tmp_path, method, network):
    folders, expected = make_mesh(tmp_path / "m", network, method, options=OPTIONS.get(method, {}), patience=60.0)
    found = [finish(process) for process in [start(folder) for folder in folders]]
    assert [code for code, _, _ in found] == [0] * 20, found
    assert [float(threshold_in(result)) for _, result, _ in found] == expected


def rounds_of_run(folder, method):
    """Return how many rounds the devices of a mesh need, by the simulator."""
    network, options = read_device(folder).network, OPTIONS.get(method, {})
    return solve_draws(WeightedScores.of(drawn_scores(20)), network, [0.1], method, **options).cost.rounds


@pytest.mark.parametrize("seed", campaign_seeds(6))
def test_three_killed_at_random_rounds_change_nothing(tmp_path, seed):
    """Each while the run is under way or just after it; a device that has ended by itself has reported its result."""
    rng = np.random.default_rng([50, seed])
    network, method = (TORUS, CHAIN)[seed % 2], ("e-dcp", "e-dcp", "q-dcp")[seed % 3]
    folders, expected = make_mesh(tmp_path / "m", network, method, options=OPTIONS.get(method, {}), patience=60.0)
    rounds = sorted(rng.integers(0, rounds_of_run(folders[0], method), 3).tolist())
    processes, ended, killed = [start(folder) for folder in folders], {}, 0
    for k, at in zip(rng.choice(20, 3, replace=False).tolist(), rounds, strict=True):
        wait_for(lambda k=k, at=at: round_of(folders[k]) >= at or processes[k].poll() is not None)
        processes[k].kill()
        out, log = processes[k].communicate()
        if processes[k].returncode == -signal.SIGKILL:
            processes[k], killed = start(folders[k]), killed + 1
        else:
            ended[k] = processes[k].returncode, json.loads(out), log
    found = [ended[k] if k in ended else finish(process) for k, process in enumerate(processes)]
    assert killed > 0  # the run cannot end before the first of them is back
    assert [code for code, _, _ in found] == [0] * 20, found
    assert [float(threshold_in(result)) for _, result, _ in found] == expected


def frozen(processes, folders, k, at):
    wait_for(lambda: round_of(folders[k]) >= at)
    processes[k].send_signal(signal.SIGSTOP)


@pytest.mark.parametrize("network", [TORUS, CHAIN], ids=lambda network: network.name)
def test_one_frozen_for_longer_than_a_link_lasts_changes_nothing(tmp_path, network):
    folders, expected = make_mesh(tmp_path / "m", network, "q-dcp", options={"rounds": 600}, patience=60.0)
    processes = [start(folder) for folder in folders]
    frozen(processes, folders, 7, 30)
    try:
        others = [folders[j] for j in network.neighbours(7)]
        wait_for(lambda: min(missed_for(folder, "device-07") for folder in others) > 12)  # Zenoh's links end after 10
        assert [process.poll() for process in processes] == [None] * 20
    finally:
        processes[7].send_signal(signal.SIGCONT)
    found = [finish(process) for process in processes]
    assert [code for code, _, _ in found] == [0] * 20, found
    assert [float(threshold_in(result)) for _, result, _ in found] == expected


def killed_for_good(folders, k=7, at=20):
    """Kill a device in mid-run; return the processes of the others."""
    processes = [start(folder) for folder in folders]
    wait_for(lambda: round_of(folders[k]) >= at)
    processes[k].kill()
    processes[k].communicate()
    return [process for j, process in enumerate(processes) if j != k]


@pytest.mark.parametrize("network", [TORUS, CHAIN], ids=lambda network: network.name)
def test_one_killed_for_good_is_named_by_all(tmp_path, network):
    """How long that takes is tested on virtual time; here it is the patience that everybody names."""
    folders, _ = make_mesh(tmp_path / "m", network, "q-dcp", options={"rounds": 2000}, patience=PATIENCE)
    found = [finish(process) for process in killed_for_good(folders)]
    assert [(code, result) for code, result, _ in found] == [(1, None)] * 19
    assert all("error: device-07 has not " in log and f"within {PATIENCE:g} s" in log for _, _, log in found), found


def test_the_others_go_on_without_one_killed_for_good(tmp_path):
    scores = drawn_scores(20)
    folders, _ = make_mesh(
        tmp_path / "m", TORUS, "q-dcp", scores, options={"rounds": 400}, patience=PATIENCE, on_lost="continue"
    )
    found = [finish(process) for process in killed_for_good(folders)]
    left = [k for k in range(20) if k != 7]
    smaller = Network.from_networkx(TORUS.to_networkx().subgraph([TORUS.ids[k] for k in left]))
    right = solve_draws(WeightedScores.of([scores[k] for k in left]), smaller, [0.1], "q-dcp", rounds=400)
    assert [code for code, _, _ in found] == [0] * 19, found
    assert [float(threshold_in(result)) for _, result, _ in found] == right.outcome.thresholds[:, 0, 0].tolist()
    assert {tuple(result["roster"]) for _, result, _ in found} == {tuple(folders[k].name for k in left)}
