"""Devices on a fake network calibrate with adapted scores as the simulator does: windows, settings, hidden rows, sets.

Each device has its own rows, the map and the configuration. What others hide and the digests of their rows stay there.
"""

from fractions import Fraction
from unittest import mock

import numpy as np
import pytest

from conformesh import Network, adapt, api, calibrate
from conformesh.kernels.weighted_scores import WeightedScores
from conformesh.peer import frames
from conformesh.peer.device import Device
from conformesh.peer.interface import PeerSetup
from conformesh.peer.loopback import LinkFaults, Pause, run_loopback
from conformesh.peer.settings import PeerError
from conformesh.pipeline import adapted
from conformesh.pipeline.assembly import add_answers_to_result
from conformesh.pipeline.solver import solve, solve_on_device
from conformesh.protocols.block import Block
from conformesh.results.result import Result
from conformesh.results.window import Window
from tests.campaigns import campaign_seeds
from tests.peer.devices import LIMIT, without

NETWORKS = [Network.torus(3, 3), Network.star(6), Network.of("erdos-renyi", 7, seed=3, p=0.4)]
CLASSES = 5

pytestmark = pytest.mark.filterwarnings("ignore::conformesh.CalibrationNote", "ignore::conformesh.TooFewScores")


def shares(network):
    """Return a mixture by device."""
    return {name: 1 + k for k, name in enumerate(network.ids)}


MIXTURES = {"sizes": lambda _: "sizes", "equal": lambda _: "equal", "given": shares, "own": lambda _: "own"}


def rows_of(network, task, seed=0):
    """Return (outputs, labels) for every device, each with labels or a bias of its own; one device has no rows."""
    rng = np.random.default_rng(seed)
    sizes = rng.integers(3, 40, network.devices)
    sizes[rng.integers(network.devices)] = 0
    found = []
    for k, size in enumerate(sizes.tolist()):
        if task == "regression":
            found.append((rng.normal(size=size), rng.normal(k / 2, 1 + k / 3, size)))
        else:
            labels = rng.choice([k % CLASSES, (k + 1) % CLASSES], size)
            outputs = rng.dirichlet(np.ones(CLASSES), size)
            found.append((outputs, labels))
    return dict(zip(network.ids, found, strict=True))


def simulated(data, network, alpha, **given):
    """Return the simulator's result, and the table and the run that it comes from."""
    calls = []

    def note(*args, **more):
        calls.append(args)
        return solve(*args, **more)

    with mock.patch.object(api, "solve", note):
        result = calibrate(data, network, alpha, **given)
    ((table, _, _, run),) = calls
    return result, table, run


def results_of_devices(result, table, run, network, faults=None):
    """Play all devices of the network; return what each makes of its answers."""

    def start(k, journal):
        def make(net, row):
            return solve_on_device(net, row, table.take([k]), result.guarantee, run)

        return Device(PeerSetup(k, network, {}, make, journal, scores=str(k)))

    played = run_loopback(network, start, faults or LinkFaults(), np.random.default_rng(0), limit=LIMIT)
    found = []
    for k, device in enumerate(played.devices):
        if device.error is not None:
            raise device.error
        outcome = device.result
        blank = Result(
            guarantee=result.guarantee,
            answers=(),
            cost=outcome.cost,
            method=run.method,
            device_ids=(network.ids[k],),
            network=network.name,
            options={},
            adapted=outcome.adapted,
        )
        found.append(add_answers_to_result(blank, outcome, outcome.problems))
    return found


def assert_same(result, found, data, groups=None):
    """Windows, settings, hidden rows, digests and cost are those of the simulator, and so is every set."""
    rng = np.random.default_rng(9)
    for k, own in enumerate(found):
        (name,) = own.device_ids
        facts = own.adapted
        assert facts.hidden == {name: result.adapted.hidden[name]}
        assert facts.digests == {name: result.adapted.digests[name]}
        for field in ("columns", "choices", "losses", "counts", "shared", "weights", "missing", "rounded"):
            assert getattr(facts, field) == getattr(result.adapted, field), field
        for mine, theirs in zip(own.answers, result.answers, strict=True):
            assert (mine.part, mine.alpha, mine.windows, mine.examples) == (
                theirs.part,
                theirs.alpha,
                theirs.windows,
                theirs.examples,
            )
            assert mine.thresholds.tolist() == theirs.thresholds[[k]].tolist()
        assert own.cost.rounds == result.cost.rounds
        assert own.cost.bits.tolist() == result.cost.bits[[k]].tolist()
        new = (
            rng.dirichlet(np.ones(CLASSES), 6)
            if result.guarantee.adapt.task == "classification"
            else rng.normal(size=6)
        )
        more = {} if groups is None else {"groups": ["a", "b"] * 3}
        own_groups = None if groups is None else groups[name]
        for alpha in result.alphas:
            here = own.on(name, data[name], groups=own_groups).predict(new, alpha=alpha, **more)
            assert np.array_equal(here, result.on(name).predict(new, alpha=alpha, **more))


@pytest.mark.parametrize("mixture", MIXTURES)
@pytest.mark.parametrize("kind", ["prior", "scale", "even"])
def test_devices_end_as_the_simulator_does(kind, mixture):
    # With `scale` there are many settings to choose from, and every device computes each of them.
    for seed, network in enumerate(NETWORKS[:2] if kind == "scale" else NETWORKS):
        data = rows_of(network, "regression" if kind == "scale" else "classification", seed)
        for window in ("full",) if seed else (16,):
            given = {"scale": adapt.Scale, "prior": adapt.Prior, "even": adapt.Even}[kind](window=window)
            result, table, run = simulated(
                data, network, [0.1, 0.3], adapt=given, mixture=MIXTURES[mixture](network), rng=seed
            )
            assert_same(result, results_of_devices(result, table, run, network), data)


@pytest.mark.parametrize("rule", [None, "atoms", "max"])
def test_with_groups_devices_end_as_the_simulator_does(rule):
    network = NETWORKS[0]
    data = rows_of(network, "classification", 4)
    rng = np.random.default_rng(4)
    groups = {name: [*rng.choice(["a", "b"], len(labels))] for name, (_, labels) in data.items()}
    if rule is not None:
        groups = {name: [[one] if rng.random() < 0.5 else ["a", "b"] for one in own] for name, own in groups.items()}
    given = {} if rule is None else {"group_rule": rule}
    for mixture in ("sizes", "equal"):
        result, table, run = simulated(
            data, network, [0.1, 0.25], adapt="prior", groups=groups, mixture=mixture, rng=1, **given
        )
        assert_same(result, results_of_devices(result, table, run, network), data, groups)


def test_masked_devices_end_as_the_simulator_does():
    """By p-dcp without epsilon: no device is told how many rows another one has."""
    for seed, network in enumerate(NETWORKS):
        for kind in ("prior", "scale") if seed else ("even",):
            data = rows_of(network, "regression" if kind == "scale" else "classification", seed)
            given = {"scale": adapt.Scale(bias=2, scale=(2, 10)), "prior": adapt.Prior(), "even": adapt.Even()}[kind]
            result, table, run = simulated(data, network, [0.1, 0.3], method="p-dcp", adapt=given, rng=seed)
            assert_same(result, results_of_devices(result, table, run, network), data)


def test_lost_and_repeated_frames_and_a_crash_change_nothing():
    network = NETWORKS[0]
    data = rows_of(network, "classification", 5)
    result, table, run = simulated(data, network, [0.1, 0.3], adapt="prior", rng=5)
    faults = LinkFaults(loss=0.2, duplication=0.2, pauses=(Pause(2, 0.05, 1.0, crash=True),))
    assert_same(result, results_of_devices(result, table, run, network, faults), data)


def drawn_case(seed):
    """A network, rows and what is asked, drawn at random: ties, devices without rows, fixed and chosen strengths."""
    rng = np.random.default_rng([31, seed])
    network = Network.of(str(rng.choice(["chain", "cycle", "star", "complete"])), int(rng.integers(3, 8)))
    kind = str(rng.choice(["prior", "scale", "even"]))
    sizes = rng.integers(0, 12, network.devices)
    sizes[rng.integers(network.devices)] += 3
    data = {}
    for k, (name, size) in enumerate(zip(network.ids, sizes.tolist(), strict=True)):
        if kind == "scale":
            data[name] = (np.round(rng.normal(size=size), 1), np.round(rng.normal(k / 3, 1 + k / 4, size), 1))
        else:
            outputs = rng.integers(1, 9, (size, CLASSES)).astype(float)
            data[name] = (outputs / outputs.sum(axis=1, keepdims=True), rng.integers(CLASSES, size=size))
    window = [16, "full", int(rng.integers(2, 9))][rng.integers(3)]
    fixed = {"prior": {"strength": 4.0, "temperature": 1.0}, "scale": {"bias": 10.0, "scale": 2.0, "usual": 1.0}}
    options = fixed.get(kind, {}) if rng.random() < 0.6 else {}
    made = {"scale": adapt.Scale, "prior": adapt.Prior, "even": adapt.Even}[kind](window=window, **options)
    mixture = MIXTURES[str(rng.choice([*MIXTURES]))](network)
    return data, network, {"adapt": made, "mixture": mixture, "rng": int(rng.integers(1000))}


def assert_drawn_case_is_the_same(seed):
    data, network, given = drawn_case(seed)
    result, table, run = simulated(data, network, [0.1, 0.3], **given)
    assert_same(result, results_of_devices(result, table, run, network), data)


def test_random_cases_end_as_in_the_simulator():
    for seed in range(12):
        assert_drawn_case_is_the_same(seed)


@pytest.mark.slow
@pytest.mark.parametrize("part", range(10))
def test_a_thousand_random_cases_end_as_in_the_simulator(part):
    for seed in [*campaign_seeds(1000, first=1000)][part::10]:
        assert_drawn_case_is_the_same(seed)


def test_survivors_share_windows_of_their_own():
    """Devices that go on without a lost one calibrate as if it had never been there."""
    network = NETWORKS[0]
    data = rows_of(network, "classification", 6)
    result, table, run = simulated(data, network, [0.1, 0.3], adapt="prior", mixture=shares(network), rng=6)
    rest = without(network, [8])
    left = {name: data[name] for name in rest.ids}
    mixture = {name: share for name, share in shares(network).items() if name in left}
    right, _, _ = simulated(left, rest, [0.1, 0.3], adapt="prior", mixture=mixture, rng=6)
    # The configuration of the devices names the shares of all, and their rows are those of before.
    found = results_of_devices(result, table, run, rest)
    assert_same(right, found, left)


def changed(rng, body):
    """Return another body of the same length: one bit, or all from some byte on."""
    found = bytearray(body)
    at = int(rng.integers(len(found)))
    if rng.random() < 0.5:
        found[at] ^= 1 << int(rng.integers(8))
    else:
        found[at:] = bytes([int(rng.integers(256))]) * (len(found) - at)
    return bytes(found)


def run_with_a_changed_frame(seed):
    """Play devices of which one sends changed frames in some round; return the others, and the simulator's result."""
    rng = np.random.default_rng([33, seed])
    network = NETWORKS[seed % 3]
    fixed = adapt.Prior(strength=4, temperature=1, window="full")
    made, method = ((adapt.Prior(), "e-dcp"), (fixed, "e-dcp"), (adapt.Even(), "p-dcp"))[seed % 3]
    data = rows_of(network, "classification", seed)
    result, table, run = simulated(data, network, [0.1, 0.3], method=method, adapt=made, rng=seed)
    bad, when, sent = int(rng.choice([network.centre, 0])), int(rng.integers(result.cost.rounds + 2)), {}

    class Receiver(Device):
        def receive(self, body, sender, now):
            frame = frames.decode_frame(body)
            if sender == bad and frame.kind == frames.DATA and frame.round == when and len(frame.body) > 1:
                known = sent.setdefault(frame.round, changed(rng, frame.body))  # repeated frames are the same
                body = frames.encode_frame(frame._replace(body=known))
            super().receive(body, sender, now)

    def start(k, journal):
        make = lambda net, row: solve_on_device(net, row, table.take([k]), result.guarantee, run)  # noqa: E731
        return Receiver(PeerSetup(k, network, {}, make, journal, scores=str(k)))

    played = run_loopback(network, start, LinkFaults(), rng, limit=LIMIT)
    return [device for k, device in enumerate(played.devices) if k != bad], result, method


def test_changed_frames_end_a_run_in_words_or_change_nothing():
    """What a device sends is checked against the rows of the others: no window contradicts scores of a device."""
    refused = equal = 0
    for seed in range(24):
        devices, result, method = run_with_a_changed_frame(seed)
        right = [window for answer in result.answers for window in answer.windows]
        for device in devices:
            if device.error is not None:
                assert isinstance(device.error, PeerError), seed
                refused += "do not fit" in str(device.error)
                continue
            windows = [window for row in device.result.windows for window in row]
            equal += sorted(map(repr, windows)) == sorted(map(repr, right))
            assert method == "p-dcp" or {w.total for w in windows} == {w.total for w in right}, seed
    assert refused > 3
    assert equal > 30


def test_a_window_is_checked_against_the_scores_of_a_device():
    """Less than it has up to a value, between two values or beyond the last, and a score between two values."""
    network, scores = Network.chain(2), [0.1, 0.3, 0.3, 0.5, 0.9]
    block = Block(network, np.array([1]), np.array([[20], [5]]), alphas=(Fraction(1, 10),))
    samples = WeightedScores.from_flat(np.array(scores), [5], names=("1",))

    def check(values, counts, total=25, exact=True):
        below = counts[0] - 1 if len(counts) else 0
        window = Window(np.array(values), np.array(counts, dtype=np.int64), below, total, 20)
        adapted._check_windows(block, samples, [[window]], exact)

    check([0.3, 0.4, 0.5, 0.6], [15, 16, 18, 19])
    check([], [])
    check([0.35, 0.7], [10, 12], exact=False)  # points of a grid
    for wrong in (
        ([0.3, 0.4, 0.5], [2, 16, 18]),
        ([0.3, 0.4, 0.6], [15, 16, 18]),
        ([0.1, 0.3, 0.5], [15, 16, 18]),
        ([0.3, 0.4, 0.5], [15, 16, 18], 18),
        ([0.2, 0.4], [3, 4], 25, False),
    ):
        with pytest.raises(ValueError, match="scores around the threshold do not fit the scores of device 1"):
            check(*wrong)


@pytest.mark.parametrize("masked", [False, True])
def test_sums_over_devices_are_checked_against_those_of_a_device(masked):
    def total(found):
        def add_up(values, largest=None):
            yield from ()
            return np.array(found) if masked else np.repeat([found], len(values), axis=0)

        return add_up

    block = Block(Network.chain(2), np.array([1]), np.array([[20], [5]]))
    own, bags = np.array([[7, 9]]), [adapt.Bag(np.zeros(5), np.zeros(5))]

    def add_up(found):
        sums = adapted._NetworkSums(block, "prior", 25, total(found) if masked else None)
        sums._total = total(found)
        steps = sums.add_up("losses", own, bags, 10)
        with pytest.raises(StopIteration) as end:
            next(steps)
        return end.value.value.tolist()

    assert add_up([7, 209]) == [7, 209]
    for wrong in ([6, 20], [20, -5], *([] if masked else [[208, 20]])):  # 20 rows of others lose at most 200
        with pytest.raises(ValueError, match="sums of losses over all devices do not fit those of"):
            add_up(wrong)


def test_a_planted_bug_in_one_device_is_noticed():
    """A device that counts its candidate scores against another window than the pooled one fails the comparison."""
    network = NETWORKS[1]
    data = rows_of(network, "classification", 7)
    result, table, run = simulated(data, network, [0.1, 0.3], adapt="prior", rng=7)
    other = {**data, network.ids[0]: (data[network.ids[0]][0][::-1], data[network.ids[0]][1])}
    wrong, _, _ = simulated(other, network, [0.1, 0.3], adapt="prior", rng=7)
    with pytest.raises(AssertionError):
        assert_same(wrong, results_of_devices(result, table, run, network), data)
