"""Coverage: each trial draws a fresh calibration set and one test point, so the number of hits is exactly binomial."""

import numpy as np
import pytest

from conformesh import Network
from conformesh.kernels.weighted_scores import WeightedScores
from conformesh.pipeline.solver import solve_draws
from tests.statistics import assert_coverage, power_against

DEVICES, PER_DEVICE, ALPHA = 5, 3, 0.3
TRIALS = 5_000


def draw(trials, seed):
    """Five devices with different distributions; the test device has probability (n_k + 1) / (n + K), here equal."""
    rng = np.random.default_rng(seed)
    shift = np.arange(DEVICES)[None, :, None]
    scores = rng.normal(size=(trials, DEVICES, PER_DEVICE)) * (1 + shift / 3) + shift
    device = rng.integers(DEVICES, size=trials)
    test = rng.normal(size=trials) * (1 + device / 3) + device
    return scores, device, test


def hits(method, trials, seed, network=None, **options):
    scores, device, test = draw(trials, seed)
    batch = solve_draws(WeightedScores.of_trials(scores), network or Network.cycle(DEVICES), [ALPHA], method, **options)
    return int((test <= batch.outcome.thresholds[device, np.arange(trials), 0]).sum())


CASES = {
    "fcp": {},
    "h-dcp": {"bins": 50},
    "h-dcp, 16 bits": {"bins": 50, "wire": 16, "rounds": 12},
    "h-dcp, bounded": {"bins": 50, "rounds": 6},
    "wfcp": {"bins": 50},
    "wfcp, noise": {"bins": 20, "noise": 1e-3, "failure": 0.05},
    "local": {},
}


LONG = ("h-dcp, 16 bits", "wfcp, noise")


@pytest.mark.parametrize("case", [pytest.param(case, marks=[pytest.mark.slow] * (case in LONG)) for case in CASES])
def test_threshold_covers(case):
    """False alarm < 1e-6. Power above 0.9 against coverage 0.66; the long twin's is against 0.687."""
    assert power_against(TRIALS, 1 - ALPHA, 0.66) > 0.9
    assert_coverage(hits(case.split(",")[0], TRIALS, 651978631, **CASES[case]), TRIALS, 1 - ALPHA)


def test_q_dcp_covers_where_its_assumption_holds():
    """With epsilon0 large enough for every draw. False alarm < 1e-6, power > 0.9 against 0.66."""
    covered = hits("q-dcp", TRIALS, 12, epsilon0=20.0, rounds=200, kappa=50.0, mu=1.0)
    assert_coverage(covered, TRIALS, 1 - ALPHA)


def test_fedcp_qq_covers_where_its_assumption_holds():
    """All devices alike. False alarm < 1e-6, power > 0.9 against 0.66."""
    rng = np.random.default_rng(77)
    trials = TRIALS
    batch = solve_draws(
        WeightedScores.of_trials(rng.normal(size=(trials, DEVICES, PER_DEVICE))),
        Network.star(DEVICES),
        [ALPHA],
        "fedcp-qq",
    )
    assert_coverage(int((rng.normal(size=trials) <= batch.outcome.thresholds[0, :, 0]).sum()), trials, 1 - ALPHA)


def test_cp_covers_exchangeable_data():
    """False alarm < 1e-6, power > 0.9 against 0.66."""
    rng = np.random.default_rng(78)
    trials = TRIALS
    batch = solve_draws(
        WeightedScores.of_trials(rng.normal(size=(trials, DEVICES, PER_DEVICE))), Network.star(DEVICES), [ALPHA], "cp"
    )
    assert_coverage(int((rng.normal(size=trials) <= batch.outcome.thresholds[0, :, 0]).sum()), trials, 1 - ALPHA)


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_threshold_covers_for_long(case):
    """50,000 trials: false alarm < 1e-6, power above 0.9 against 0.687."""
    assert power_against(50_000, 1 - ALPHA, 0.687) > 0.9
    assert_coverage(hits(case.split(",")[0], 50_000, 3, **CASES[case]), 50_000, 1 - ALPHA)
