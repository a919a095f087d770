"""Devices on a fake network solve every guarantee as the simulator does: thresholds, certificates and cost."""

from unittest import mock

import numpy as np
import pytest
from msgspec import structs

from conformesh import Centres, Network, api, calibrate, control
from conformesh.guarantee import Groups, Guarantee
from conformesh.kernels.ranks import GROUP_RULES
from conformesh.peer.device import Device
from conformesh.peer.interface import PeerSetup
from conformesh.peer.loopback import LinkFaults, run_loopback
from conformesh.pipeline.solver import solve, solve_on_device
from conformesh.scores.losses import StepLosses
from tests.peer.devices import LIMIT, without

NETWORK = Network.torus(3, 3)
SIZES = [31, 12, 0, 25, 40, 7, 18, 22, 35]
LEVELS = ["0.1", "0.25"]
MIXTURES = {"sizes": "sizes", "equal": "equal", "given": {str(k): 1 + k for k in range(9)}}
RNG = np.random.default_rng(11)
SCORES = [RNG.normal(k / 6, size=n) for k, n in enumerate(SIZES)]
PAIRS = [RNG.normal(size=(n, 2)) for n in SIZES]
CROWDED = [[[name for name in "abcdefg" if RNG.random() < 0.5] for _ in range(n)] for n in SIZES]
NAMES = [[("young", "old")[int(own)] for own in RNG.integers(2, size=n)] for n in SIZES]
OVERLAPPING = [[[name for name in "ab" if RNG.random() < 0.5] for _ in range(n)] for n in SIZES]
INPUTS = [RNG.random((n, 2)) for n in SIZES]
WEIGHTS = [RNG.random(n) * 2 for n in SIZES]
LABELS = [[str(own) for own in RNG.integers(3, size=n)] for n in SIZES]
CENTRES = Centres.at(np.array([[0.2, 0.3], [0.7, 0.6], [0.5, 0.9]]), 0.5)
STEPS = [StepLosses.on_grid(np.linspace(0, 1, 6), -np.sort(-RNG.random((n, 6)), axis=1)) for n in SIZES]

SIDED = {"symmetric": False, "lower_share": "0.3"}
GROUPED = {"groups": NAMES}
OVERLAP = {"groups": OVERLAPPING}
SHIFTED = {"weight": WEIGHTS, "weight_bound": 2.0}
LOCAL = {"centres": CENTRES, "inputs": INPUTS}
# A cell of the matrix of combinations, by name: what is calibrated, and with which arguments.
CELLS = {
    "levels": (SCORES, {}),
    "groups": (SCORES, GROUPED),
    "sides": (PAIRS, SIDED),
    "weights": (SCORES, SHIFTED),
    "test weights": (SCORES, {**SHIFTED, "test_weights": [0.5, 2.0]}),
    "class weights": (SCORES, {"class_weights": {"0": 1.0, "1": 0.5, "2": 2.0}, "labels": LABELS}),
    "centres": (SCORES, LOCAL),
    "groups x sides": (PAIRS, {**GROUPED, **SIDED}),
    "groups x weights": (SCORES, {**GROUPED, **SHIFTED}),
    "groups x centres": (SCORES, {**GROUPED, **LOCAL}),
    "sides x weights": (PAIRS, {**SIDED, **SHIFTED}),
    "sides x centres": (PAIRS, {**SIDED, **LOCAL}),
    "weights x centres": (SCORES, {**SHIFTED, **LOCAL}),
    "groups x sides x weights x centres": (PAIRS, {**GROUPED, **SIDED, **SHIFTED, **LOCAL}),
    **{rule: (SCORES, {**OVERLAP, "group_rule": rule}) for rule in GROUP_RULES},
    **{f"{rule} x sides": (PAIRS, {**OVERLAP, "group_rule": rule, **SIDED}) for rule in GROUP_RULES},
    "regression with a drawn score": (SCORES, {"groups": CROWDED, "group_rule": "regression"}),
    "max x weights x centres": (SCORES, {**OVERLAP, "group_rule": "max", **SHIFTED, **LOCAL}),
    "losses": (STEPS, {}),
    "losses x groups": (STEPS, GROUPED),
    "losses x weights": (STEPS, SHIFTED),
    "losses x centres": (STEPS, LOCAL),
    "losses x groups x weights": (STEPS, {**GROUPED, **SHIFTED}),
}
METHODS = {  # of methods that count every score of a device alike
    "h-dcp": {"rounds": 20},
    "q-dcp": {"rounds": 20},
    "r-dcp": {},
    "p-dcp": {},
    "cp": {},
    "fcp": {},
    "local": {},
}

pytestmark = pytest.mark.filterwarnings("ignore::conformesh.CalibrationNote", "ignore::conformesh.TooFewScores")


def simulated(data, levels=LEVELS, **given):
    """Return the simulator's result, and the table and the run that it comes from."""
    calls = []

    def note(*args, **more):
        calls.append(args)
        return solve(*args, **more)

    with mock.patch.object(api, "solve", note):
        result = (control if data is STEPS else calibrate)(data, NETWORK, levels, **given)
    ((table, _, _, run),) = calls
    return result, table, run


def devices_of(table, guarantee, run, faults=None, seed=0):
    """Play all devices of the network; each has its own rows, the map and the configuration."""

    def start(k, journal):
        def make(net, row):
            return solve_on_device(net, row, table.take([k]), guarantee, run)

        return Device(PeerSetup(k, NETWORK, {}, make, journal, scores=str(k)))

    played = run_loopback(NETWORK, start, faults or LinkFaults(), np.random.default_rng(seed), limit=LIMIT)
    for device in played.devices:
        if device.error is not None:
            raise device.error
    return played.devices


def answers(outcomes, result):
    """Return what devices have found, in the order of the answers of a result."""
    place = {(problem.part, problem.alpha): problem for problem in outcomes[0].problems}
    found = []
    for answer in result.answers:
        problem = place[answer.part, answer.alpha]
        cells = [(outcome.thresholds[0], outcome.certificates) for outcome in outcomes]
        found.append(
            (
                [float(thresholds[problem.column, problem.level]) for thresholds, _ in cells],
                [certificates[problem.column][problem.level] for _, certificates in cells],
                problem.examples,
            )
        )
    return found


def expected(result):
    """Return the same of the simulator; a rank that each device counts for itself is its own."""
    found = []
    for answer in result.answers:
        one = answer.certificate
        ranks = {
            name: [rank[k : k + 1] if isinstance(rank, tuple) else rank for k in range(9)]
            for name, rank in (("required_rank", one.required_rank), ("counted_rank", one.counted_rank))
        }
        each = [structs.replace(one, **{name: rank[k] for name, rank in ranks.items()}) for k in range(9)]
        if one.mixture == "own":  # a device speaks of itself
            each = [
                structs.replace(own, short={name: n for name, n in one.short.items() if name == NETWORK.ids[k]})
                for k, own in enumerate(each)
            ]
        found.append((answer.thresholds.tolist(), each, answer.examples))
    return found


def _without_kind(found):
    return [
        (thresholds, [structs.replace(one, kind="assumed", assumption="") for one in certificates], examples)
        for thresholds, certificates, examples in found
    ]


def same(data, faults=None, **given):
    """Check that devices end as the simulator does, and that the method costs them the same."""
    result, table, run = simulated(data, **given)
    outcomes = [device.result for device in devices_of(table, result.guarantee, run, faults)]
    found, right = answers(outcomes, result), expected(result)
    if result.method == "r-dcp":  # frames in rounds are not signed, and its certificate says so
        assert {one.kind for _, certificates, _ in found for one in certificates} == {"assumed"}
        found, right = _without_kind(found), _without_kind(right)
    assert found == right
    assert {outcome.cost.rounds for outcome in outcomes} == {result.cost.rounds}
    assert [float(outcome.cost.numbers[0]) for outcome in outcomes] == result.cost.numbers.tolist()
    assert [float(outcome.cost.bits[0]) for outcome in outcomes] == result.cost.bits.tolist()
    return result


@pytest.mark.parametrize("cell", CELLS)
def test_every_cell_is_solved_as_in_the_simulator(cell):
    data, given = CELLS[cell]
    result = same(data, **given)
    assert len(result.answers) % len(LEVELS) == 0
    assert len(result.answers) > 1
    assert ("group_seed" in result.options) == (cell == "regression with a drawn score")


@pytest.mark.parametrize("mixture", MIXTURES)
@pytest.mark.parametrize("cell", ["groups x sides x weights x centres", "seq x sides", "losses x groups x weights"])
def test_other_mixtures(cell, mixture):
    data, given = CELLS[cell]
    same(data, mixture=MIXTURES[mixture], **given)


@pytest.mark.parametrize("cell", ["levels", "groups", "sides", "groups x sides", "atoms", "max"])
@pytest.mark.parametrize(
    "asked",
    [{"mixture": "own"}, {"mixture": "any"}, {"mixture_bound": 2}, {"mixture": "equal", "mixture_bound": "1.5"}],
    ids=str,
)
def test_unknown_mixtures(asked, cell):
    data, given = CELLS[cell]
    same(data, **asked, **given)


@pytest.mark.parametrize("cell", ["levels", "groups", "sides", "groups x sides", "atoms", "max"])
@pytest.mark.parametrize("method", METHODS)
def test_other_methods(method, cell):
    data, given = CELLS[cell]
    same(data, method=method, **METHODS[method], **given)


@pytest.mark.parametrize("cell", ["groups x sides x weights x centres", "seq", "losses x groups"])
def test_lost_and_repeated_frames_change_nothing(cell):
    data, given = CELLS[cell]
    same(data, LinkFaults(loss=0.2, duplication=0.2), **given)


def test_the_exchange_before_the_method_says_numbers_of_rows_and_no_names():
    """With groups each device floods one number per configured group, whatever its rows are called."""
    result, table, run = simulated(SCORES, **GROUPED)
    for device in devices_of(table, result.guarantee, run):
        assert device.ledger.cost().rounds == device.result.cost.rounds + NETWORK.diameter
        assert device.result.sizes.shape == (9, 2)
        assert device.result.sizes.sum(axis=1).tolist() == SIZES


@pytest.mark.parametrize(
    ("groups", "words"),
    [
        (Groups(("young",)), "device 0, row .*: unknown group 'old'"),
        (None, "the configuration names no groups"),
    ],
)
def test_only_configured_names_count(groups, words):
    """A device whose rows have another group does not add it to the run of the others: it refuses to take part."""
    _, table, run = simulated(SCORES, **GROUPED)
    guarantee = Guarantee(alphas=simulated(SCORES)[0].guarantee.alphas, groups=groups)
    with pytest.raises(ValueError, match=words):
        next(solve_on_device(NETWORK, 0, table.take([0]), guarantee, run))


def test_groups_that_are_configured_need_groups_of_the_rows():
    _, table, run = simulated(SCORES)
    guarantee = Guarantee(alphas=simulated(SCORES)[0].guarantee.alphas, groups=Groups(("young", "old")))
    with pytest.raises(ValueError, match="its rows have no groups"):
        next(solve_on_device(NETWORK, 0, table.take([0]), guarantee, run))


def test_a_group_that_no_device_has_is_never_covered_by_a_number():
    """It is configured, so that everybody has a column for it; without scores only +inf keeps the guarantee."""
    result, table, run = simulated(SCORES, **GROUPED)
    groups = Groups(("old", "unknown", "young"))
    outcomes = [d.result for d in devices_of(table, structs.replace(result.guarantee, groups=groups), run)]
    by_group = {(p.part[0], p.alpha): outcomes[0].thresholds[0, p.column, p.level] for p in outcomes[0].problems}
    assert {value for (group, _), value in by_group.items() if group == "unknown"} == {np.inf}
    for answer in result.answers:
        assert by_group[answer.part[0], answer.alpha] == answer.threshold


def test_a_bound_that_is_not_the_configured_one_is_refused():
    result, table, run = simulated(STEPS)
    loss = structs.replace(result.guarantee.loss, bound=2.0)
    with pytest.raises(ValueError, match="must have the bound of the configuration, 2"):
        next(solve_on_device(NETWORK, 0, table.take([0]), structs.replace(result.guarantee, loss=loss), run))


def test_survivors_share_the_mixture_without_the_lost_devices():
    """The shares that are configured are those of everybody; the devices that are left go on with their own."""
    shares = MIXTURES["given"]
    result, table, run = simulated(SCORES, mixture=shares)
    rest = without(NETWORK, [8])
    outcomes = [None] * 8

    def start(k, journal):
        def make(net, row):
            return solve_on_device(net, row, table.take([k]), result.guarantee, run)

        return Device(PeerSetup(k, rest, {}, make, journal, scores=str(k)))

    for k, device in enumerate(run_loopback(rest, start, LinkFaults(), np.random.default_rng(0), limit=LIMIT).devices):
        assert device.error is None
        outcomes[k] = device.result
    left = {name: share for name, share in shares.items() if name in rest.ids}
    right = calibrate(dict(zip(rest.ids, SCORES, strict=False)), rest, LEVELS, mixture=left)
    assert [float(one.thresholds[0, 0, 0]) for one in outcomes] == right.at(0.1).thresholds.tolist()
    assert outcomes[0].certificates[0] == [answer.certificate for answer in right.answers]
