"""One body serves all engines: every method and aggregator gives the same bits, certificates and ledgers on each.

The simulator hosts all devices at once, two MPI ranks a block each, and the loopback network devices of their own that
know nothing but the map and their scores.
"""

from dataclasses import replace

import numpy as np
import pytest

from conformesh import METHODS, control
from conformesh.kernels.ranks import LOSS_UNITS as WHOLE
from conformesh.kernels.ranks import exact_alpha, make_requirement
from conformesh.kernels.weighted_scores import WeightedScores
from conformesh.methods import device_protocol, make_options
from conformesh.peer.device import Device
from conformesh.peer.interface import PeerSetup
from conformesh.peer.loopback import LinkFaults, run_loopback
from conformesh.peer.settings import PeerError
from conformesh.pipeline.solver import solve_draws
from conformesh.protocols.aggregate import AGGREGATORS
from conformesh.protocols.block import Answers
from conformesh.protocols.masks import Secrets
from conformesh.protocols.r_dcp import UNSIGNED_ASSUMPTION
from conformesh.results.certificate import Cost
from tests.engines.mpi import job
from tests.engines.mpi_cases import ALPHAS, CASES, EVERYWHERE, PARTS, losses_of, name_of, record, scores_of
from tests.protocols.alone import repeatable_secrets


@pytest.fixture(autouse=True)
def secrets_from_a_seed(monkeypatch):
    """Bits of masked numbers are compared, which fresh secrets change."""
    monkeypatch.setattr(Secrets, "simulated", repeatable_secrets)


def simulated(network, method, options):
    """The whole run in the simulator, both levels together."""
    samples = WeightedScores.of(scores_of(network)[0])
    batch = solve_draws(samples, network, ALPHAS, method, joint=True, **options)
    return record(batch.outcome, batch.cost)


def over_loopback(network, method, options):
    """The same by devices on a fake network; what they find is put together by row."""
    (scores,) = scores_of(network)
    chosen, levels = make_options(method, options), tuple(map(exact_alpha, ALPHAS))

    def start(k, journal):
        def make(net, row):
            return device_protocol(method, net, row, WeightedScores.of([scores[k]]), levels, chosen)

        return Device(PeerSetup(k, network, {}, make, journal))

    devices = run_loopback(network, start, LinkFaults(), np.random.default_rng(0)).devices
    for device in devices:
        if device.error is not None:
            raise device.error
    outcomes = [device.result for device in devices]
    whole = Answers.concatenate([np.array([k]) for k in range(network.devices)], outcomes)
    (rounds,) = {outcome.cost.rounds for outcome in outcomes}
    numbers, bits = (np.concatenate([getattr(each.cost, name) for each in outcomes]) for name in ("numbers", "bits"))
    return record(whole, Cost(rounds, numbers, bits))


def over_mpi(network, method, options):
    """The same by two ranks, in one job for all cases."""
    return job(2, "everything", *PARTS[2])["records"][name_of(network.name, method, options)]


ENGINES = [
    pytest.param(over_loopback, id="loopback"),
    pytest.param(over_mpi, id="mpi", marks=pytest.mark.xdist_group("mpi")),
]
ORACLE = {"bound": "paper"}


@pytest.mark.parametrize("run", ENGINES)
@pytest.mark.parametrize(("method", "options"), CASES, ids=[name_of("", *case)[1:] for case in CASES])
@pytest.mark.parametrize("network", EVERYWHERE, ids=lambda network: network.name)
def test_every_engine_gives_the_simulators_bits_certificates_and_ledgers(run, network, method, options):
    if run is over_loopback and options.items() >= ORACLE.items():
        with pytest.raises(PeerError, match="only a simulator can grant"):
            run(network, method, options)
        return
    expected = simulated(network, method, options)
    if run is over_loopback:  # frames in rounds are not signed, which a promise despite Byzantine devices must say
        for certificate in (each for row in expected["certificates"] for each in row if each["byzantine"] is not None):
            certificate.update(kind="assumed", assumption=UNSIGNED_ASSUMPTION)
    assert run(network, method, options) == expected


@pytest.mark.parametrize(("target", "warm"), [("sizes", False), ("equal", False), ("equal", True)])
@pytest.mark.parametrize("network", EVERYWHERE, ids=lambda network: network.name)
def test_losses_weigh_the_same_between_devices_of_their_own(network, target, warm):
    """Devices on a fake network, which know how many items the others have, end at the simulator's lambda."""
    levels, requirement = (exact_alpha(0.4),), replace(make_requirement(target), loss_unit=WHOLE)
    steps = losses_of(network)
    options = {"warm": (0.2, 0.6)} if warm else {}

    def start(k, journal):
        points, falls, _ = steps[k].checked("here").drops(WHOLE)
        samples, items = WeightedScores.weighted([[points]], [[falls]]), np.array([[len(steps[k])]])

        def make(net, row):
            return device_protocol(
                "e-dcp", net, row, samples, levels, make_options("e-dcp", options), requirement, items
            )

        return Device(PeerSetup(k, network, {}, make, journal))

    outcomes = [
        device.result for device in run_loopback(network, start, LinkFaults(), np.random.default_rng(0)).devices
    ]
    whole = control(steps, network, 0.4, mixture=target, **options)
    assert {outcome.cost.rounds for outcome in outcomes} == {whole.cost.rounds}
    assert {float(outcome.thresholds[0, 0, 0]) for outcome in outcomes} == {whole.threshold}
    assert [outcome.certificates[0][0] for outcome in outcomes] == [whole.certificate] * network.devices


def test_nothing_is_left_out():
    assert {method for method, _ in CASES} == {*METHODS}
    for method, entry in METHODS.items():
        if "aggregate" in entry.option_names():
            usual = entry.options().aggregate  # of a case that names none
            named = {options.get("aggregate", usual) for other, options in CASES if other == method}
            choices = {*entry.choices("aggregate")} & {*AGGREGATORS}
            assert named >= choices, f"{method} is not tried with every aggregator"


def test_a_record_tells_ledgers_apart():
    """The comparison itself: one bit more on one device is a difference."""
    network = EVERYWHERE[0]
    batch = solve_draws(WeightedScores.of(scores_of(network)[0]), network, ALPHAS, "e-dcp", joint=True)
    before = record(batch.outcome, batch.cost)
    batch.cost.bits[3] += 1
    assert record(batch.outcome, batch.cost) != before
