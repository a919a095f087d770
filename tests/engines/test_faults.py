"""Faults: what they may be, who bears them, and that everybody else refuses them in words."""

import numpy as np
import pytest

from conformesh import Faults, Network, calibrate
from conformesh.engines.base import refuse_lost_messages
from conformesh.methods import METHODS, make_options
from conformesh.protocols.faults import make_faults

SCORES = [np.random.default_rng(k).random(30) for k in range(6)]
NETWORK = Network.cycle(6)


@pytest.mark.parametrize("fault", [{"loss": 0.1}, {"activation": 0.5}, {"links": 0.5}])
@pytest.mark.parametrize("method", METHODS)
def test_a_method_bears_a_fault_or_refuses_it(method, fault):
    entry, name = METHODS[method], next(iter(fault))
    if name in entry.tolerance.faults(make_options(method, {})):
        assert calibrate(SCORES, NETWORK, 0.2, method, faults=fault).certificate.kind in ("counted", "bounded")
        return
    with pytest.raises(ValueError, match=f"{name}=") as refused:
        calibrate(SCORES, NETWORK, 0.2, method, faults=fault)
    assert "q-dcp with asynchronous=True" in str(refused.value)
    assert "h-dcp with consensus='projection'" in str(refused.value)


@pytest.mark.parametrize("method", ["h-dcp", "q-dcp"])
def test_what_bears_faults_gives_a_valid_threshold_under_all_of_them(method):
    faults = {"loss": 0.2, "activation": 0.8, "links": 0.7, "seed": 4}
    result = calibrate(SCORES, NETWORK, 0.2, method, faults=faults, **METHODS[method].tolerance.options)
    pooled = np.concatenate(SCORES)
    for threshold in result.thresholds:
        assert (pooled <= threshold).sum() >= result.certificate.required_rank


@pytest.mark.parametrize("method", ["h-dcp", "q-dcp"])
def test_faults_of_zero_are_no_faults_and_one_seed_is_one_result(method):
    options = METHODS[method].tolerance.options

    def run(faults):
        result = calibrate(SCORES, NETWORK, 0.2, method, faults=faults, **options)
        return result.thresholds.tolist(), result.certificate, result.cost.numbers.tolist()

    assert run(None) == run(Faults()) == run(Faults(seed=9))
    lossy = {"loss": 0.4, "activation": 0.6, "seed": 1}
    assert run(lossy) == run(lossy)
    assert run(lossy)[2] != run({**lossy, "seed": 2})[2]


def test_several_levels_bear_faults_together():
    found = calibrate(
        SCORES, NETWORK, (0.2, 0.3), "q-dcp", asynchronous=True, rounds=50, faults={"loss": 0.3, "seed": 1}
    )
    pooled = np.concatenate(SCORES)
    for one in found:
        assert (pooled <= one.threshold).sum() >= one.certificate.required_rank


def test_overlapping_groups_refuse_faults():
    groups = [[["a", "b"]] * 30 for _ in range(6)]
    with pytest.raises(ValueError, match="needs every message"):
        calibrate(SCORES, NETWORK, groups=groups, faults={"loss": 0.1})


def test_an_engine_that_delivers_everything_says_so():
    with pytest.raises(ValueError, match="engine 'mpi' delivers every message, and the faults have links, loss"):
        refuse_lost_messages("mpi", Faults(loss=0.1, links=0.5))
    refuse_lost_messages("mpi", Faults(byzantine=(1,), attack="any"))
    refuse_lost_messages("mpi", None)


def test_faults_are_read_from_what_a_user_gives():
    assert make_faults(None) is None is make_faults({}) is make_faults(Faults(seed=3))
    assert make_faults({"loss": 0.5, "seed": 2}) == Faults(loss=0.5, seed=2)
    assert Faults(loss=0.1).loses
    assert not Faults(byzantine=(1,), attack="x").loses
    with pytest.raises(ValueError, match="did you mean 'loss'"):
        make_faults({"lose": 0.5})
    with pytest.raises(ValueError, match="loss must be at least 0 and below 1, got 1"):
        Faults(loss=1)
    with pytest.raises(ValueError, match="activation must be above 0"):
        Faults(activation=0)
