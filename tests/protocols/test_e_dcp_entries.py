"""Entries: the exact threshold of e-dcp without rounds, and what is certain after any of them."""

from dataclasses import replace
from functools import cached_property

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from conformesh import Network
from conformesh.kernels.keys import to_keys
from conformesh.kernels.ranks import exact_alpha, make_requirement
from conformesh.kernels.varints import encode_varints
from conformesh.kernels.weighted_scores import WeightedScores
from conformesh.pipeline.solver import solve_draws
from conformesh.protocols import e_dcp_entries
from conformesh.protocols.block import Block
from conformesh.protocols.e_dcp_entries import search_by_entries
from conformesh.protocols.messages import GatheredStrings, Packets
from tests.protocols.byzantine import has_rank
from tests.strategies import alphas, device_scores

MIXTURES = ("sizes", "paper", "equal", "given")
QUICK, MANY = settings(max_examples=30, deadline=None), settings(max_examples=2000, deadline=None)


def promise_for(target, devices, rank="auto"):
    """A promise by name; `given` are shares 1, 2, 3, 1, 2, 3, ..."""
    return make_requirement({str(k): 1 + k % 3 for k in range(devices)} if target == "given" else target, rank)


def told(packets, heard):
    """What was heard, of everybody's strings."""
    strings = [packets[row] if here else b"" for row, here in enumerate(heard)]
    return GatheredStrings(Packets.of(strings), np.array(heard), np.zeros(len(heard), dtype=bool))


class Mesh:
    """Devices that each run the protocol by hand; `trials` holds scores by trial and device."""

    def __init__(self, trials, levels, requirement, caps=None):
        self.trials, self.devices = trials, len(trials[0])
        self.levels, self.requirement = tuple(map(exact_alpha, levels)), requirement
        self.caps = caps
        self.first = [self.ask(row).packets[0] for row in range(self.devices)]
        self.everybody = [True] * self.devices

    def protocol(self, row):
        """What a device runs that knows nothing but the map."""
        samples = WeightedScores.of_trials([[one[row]] for one in self.trials])
        nobody = np.zeros((self.devices, len(self.trials)), dtype=np.int64)
        network = Network.complete(self.devices)
        block = Block(network, np.array([row]), nobody, self.requirement, None, self.levels, self.caps)
        return search_by_entries(block, samples, self.levels, None)

    def ask(self, row, *answers):
        """What a device asks, or hands back, after these answers."""
        protocol = self.protocol(row)
        found = next(protocol)
        for answer in answers:
            try:
                found = protocol.send(answer)
            except StopIteration as end:
                return end.value
        return found

    @cached_property
    def second(self):
        """Everybody's second entries."""
        answer = told(self.first, self.everybody)
        return [self.ask(row, answer).packets[0] for row in range(self.devices)]

    def outcome(self, row, heard, heard_then=None):
        """What a device holds after first entries of some, or after all of them and second entries of some."""
        if not all(heard):
            return self.ask(row, told(self.first, heard))
        return self.ask(row, told(self.first, heard), told(self.second, heard_then or self.everybody))


@st.composite
def meshes(draw, targets=MIXTURES, rank="auto", trials=2):
    devices = draw(st.integers(1, 6))
    tables = [draw(device_scores(devices, most=25)) for _ in range(draw(st.integers(1, trials)))]
    levels = draw(st.lists(alphas, min_size=1, max_size=3, unique=True))
    requirement = promise_for(draw(st.sampled_from(targets)), devices, rank)
    return Mesh(tables, levels, requirement)


def assert_as_in_rounds(mesh):
    """Bit by bit, on every device, certificates included."""
    network = Network.complete(mesh.devices)
    samples = WeightedScores.of_trials(mesh.trials)
    expected = solve_draws(samples, network, mesh.levels, "e-dcp", requirement=mesh.requirement).outcome
    for row in range(mesh.devices):
        found = mesh.outcome(row, mesh.everybody)
        assert found.thresholds.shape[1:] == expected.thresholds.shape[1:]
        assert found.thresholds[0].tobytes() == expected.thresholds[row].tobytes()
        assert found.certificates == expected.certificates


@QUICK
@given(meshes())
def test_all_entries_give_what_rounds_give(mesh):
    assert_as_in_rounds(mesh)


@pytest.mark.slow
@MANY
@given(meshes())
def test_all_entries_give_what_rounds_give_in_many_cases(mesh):
    assert_as_in_rounds(mesh)


@pytest.mark.parametrize("target", MIXTURES)
def test_many_scores_of_unlike_devices(target):
    """More scores than a sketch holds, so that windows matter: shifted devices, ties, infinities, an empty device."""
    rng = np.random.default_rng(5)
    trials = [[np.round(rng.normal(k, size=n), 1) for k, n in enumerate((120, 0, 80, 333, 1))] for _ in range(3)]
    trials[1][0][:30] = np.inf
    trials[2][3][:200] = -np.inf
    assert_as_in_rounds(Mesh(trials, (0.05, 0.1, 0.5), promise_for(target, 5)))


# --- what is certain before the end -----------------------------------------------------------------------------------


def assert_true(mesh, row, heard, heard_then):
    """Every certificate of a device is true of those whom it names, counted again from all scores."""
    outcome = mesh.outcome(row, heard, heard_then)
    names = tuple(str(k) for k in np.flatnonzero(heard))
    for answer, about in ((outcome, np.flatnonzero(heard)), (outcome.about_all, np.arange(mesh.devices))):
        for t, certificates in enumerate(answer.certificates if answer is not None else ()):
            for level, certificate in enumerate(certificates):
                tau, scores = answer.thresholds[0, t, level], mesh.trials[t]
                assert certificate.heard == (() if all(heard) or answer is not outcome else names)
                assert_rank(mesh, scores, about.tolist(), tau, mesh.levels[level], certificate)


def assert_rank(mesh, scores, about, tau, alpha, certificate):
    target = mesh.requirement.mixture if mesh.requirement.shares is None else dict(mesh.requirement.shares)
    assert certificate.kind == "counted"
    if tau == np.inf:
        return  # everything is covered
    assert certificate.counted_rank >= certificate.required_rank
    assert has_rank(scores, about, tau, alpha, target)
    if certificate.weight is None:
        assert certificate.counted_rank <= sum(int((scores[k] <= tau).sum()) for k in about)


@st.composite
def moments(draw, **how):
    """A mesh, a device, and whose first or second entries it has heard: always its own."""
    mesh = draw(meshes(rank="swap", **how))
    row = draw(st.integers(0, mesh.devices - 1))
    complete = draw(st.booleans())
    some = [k == row or draw(st.booleans()) for k in range(mesh.devices)]
    return mesh, row, mesh.everybody if complete else some, some


@QUICK
@given(moments())
def test_theorem_certificates_without_rounds(moment):
    """Whatever was heard: the rank of the swap, over exactly those that are named, in fractions from their scores."""
    assert_true(*moment)


@pytest.mark.slow
@MANY
@given(moments())
def test_theorem_certificates_without_rounds_in_many_cases(moment):
    assert_true(*moment)


@QUICK
@given(moments(targets=("sizes",)), st.integers(0, 20))
def test_theorem_about_everybody_while_some_were_not_heard(moment, spare):
    """With caps, of sizes or more, about all devices, unheard ones included; without them nothing is said."""
    mesh, *rest = moment
    assert all(rest[1]) or mesh.outcome(*rest).about_all is None
    mesh.caps = np.array([max(len(one[k]) for one in mesh.trials) + spare for k in range(mesh.devices)])
    assert_true(mesh, *rest)


@QUICK
@given(meshes(targets=("sizes",), trials=1), st.randoms(use_true_random=False))
def test_thresholds_about_everybody_only_fall_and_end_exact(mesh, random):
    mesh.caps = np.array([len(own) for own in mesh.trials[0]])
    order = random.sample(range(mesh.devices), mesh.devices)
    row, before = order[0], np.inf
    steps = [({*order[:count]}, None) for count in range(1, mesh.devices)]
    steps += [({*order}, {*order[:count]}) for count in range(1, mesh.devices + 1)]
    for heard, then in steps:
        flags = [[k in some for k in range(mesh.devices)] if some else None for some in (heard, then)]
        outcome = mesh.outcome(row, *flags)
        now = (outcome if outcome.about_all is None else outcome.about_all).thresholds[0, 0]
        assert (now <= before).all()
        before = now


def test_a_device_alone_has_its_own_split_conformal_threshold():
    own = np.arange(1.0, 20.0)
    mesh = Mesh([[own, np.zeros(5)]], (0.1,), make_requirement("sizes"))
    outcome = mesh.outcome(0, [True, False])
    assert outcome.thresholds[0, 0, 0] == 18  # ceil(0.9 * 20)
    assert outcome.certificates[0][0].heard == ("0",)


def test_one_rank_less_is_caught(monkeypatch):
    """The assertions above have teeth: a certificate about the heard that asks for one score less is false."""
    rng = np.random.default_rng(3)
    mesh = Mesh([[rng.normal(size=8) for _ in range(4)]], (0.1,), promise_for("sizes", 4, "swap"))
    moment = mesh, 0, [True, False, True, True], None
    assert_true(*moment)
    asked = e_dcp_entries._CertainCounts.rank
    monkeypatch.setattr(e_dcp_entries._CertainCounts, "rank", lambda self, t, level: asked(self, t, level) - 1)
    with pytest.raises(AssertionError):
        assert_true(*moment)


# --- windows ----------------------------------------------------------------------------------------------------------


@QUICK
@given(meshes())
def test_windows_hold_the_answer(mesh):
    """Every window has the exact threshold in it, and problems without one have none in reach."""
    final = mesh.outcome(0, mesh.everybody).thresholds[0]
    sketch = e_dcp_entries._SketchFormat(mesh.levels, e_dcp_entries.ENTRY_POINTS, len(mesh.trials))
    nobody = np.zeros((mesh.devices, len(mesh.trials)), dtype=np.int64)
    block = Block(Network.complete(mesh.devices), np.array([0]), nobody, mesh.requirement, None, mesh.levels)
    table = e_dcp_entries._CertainCounts(block, mesh.levels, [sketch.read(entry) for entry in mesh.first])
    answered = [
        (t, level)
        for t in range(len(mesh.trials))
        for level in range(len(mesh.levels))
        if 0 < table.rank(t, level) <= table.total(t)
    ]
    for (t, level), window in zip(answered, table.windows(), strict=True):
        assert window.trial == t
        assert window.low < to_keys(final[t, level : level + 1])[0] <= window.high


# --- what is no entry -------------------------------------------------------------------------------------------------


def floats(*values):
    return np.array(values, dtype="<f8").tobytes()


def numbers(*values):
    return encode_varints(np.array(values, dtype=np.int64)).tobytes()


@pytest.fixture
def small():
    """Two devices with three scores each, one trial and one level: an entry is a size and up to eight scores."""
    return Mesh([[np.array([1.0, 2.0, 3.0]), np.array([2.0, 4.0, 6.0])]], (0.5,), make_requirement("sizes"))


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        (b"", None),
        (b"\xff", None),
        (numbers(2) + floats(1.0), "2 scores take 16 bytes, got 8"),
        (numbers(1) + floats(1.0) + b"x", "1 scores take 8 bytes, got 9"),
        (numbers(2) + floats(2.0, 1.0), "do not ascend"),
        (numbers(2) + floats(1.0, np.nan), "no number"),
        (numbers(2**41), "which nobody holds"),
    ],
)
def test_what_is_no_first_entry_is_refused(small, entry, words):
    check = small.ask(0).check
    check(small.first[1], 1)
    with pytest.raises(ValueError, match=words):
        check(entry, 1)


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        (b"", None),
        (numbers(0), None),
        (numbers(1, 1) + floats(np.nan), "no number"),
        (numbers(0, 2) + floats(2.0), "2 scores take 16 bytes, got 8"),
        (numbers(0, 1) + floats(1e300), "inside their window"),
        (numbers(0, 1) + floats(-1e300), "inside their window"),
        (numbers(4, 0), "4 scores up to a window, of 3"),
        (numbers(2**41, 0), "which nobody holds"),
    ],
)
def test_what_is_no_second_entry_is_refused(small, entry, words):
    check = small.ask(0, told(small.first, small.everybody)).check
    check(small.second[1], 1)
    with pytest.raises(ValueError, match=words):
        check(entry, 1)


@QUICK
@given(st.binary(max_size=60), st.booleans())
def test_any_bytes_are_read_or_refused_and_nothing_else(entry, later):
    """What passes the check never stops the protocol."""
    mesh = Mesh([[np.array([1.0, 2.0, 3.0]), np.array([2.0, 4.0, 6.0])]], (0.5,), make_requirement("sizes"))
    message = mesh.ask(0, told(mesh.first, mesh.everybody)) if later else mesh.ask(0)
    try:
        message.check(entry, 1)
    except ValueError:
        return
    if later:
        first, second = told(mesh.first, mesh.everybody), told([mesh.second[0], entry], mesh.everybody)
        assert mesh.ask(0, first, second) is not None
    else:
        assert mesh.ask(0, told([mesh.first[0], entry], mesh.everybody)) is not None


def test_weights_of_their_own_are_refused_in_words(small):
    small.requirement = replace(small.requirement, loss_unit=1)
    with pytest.raises(ValueError, match="weights of their own"):
        small.ask(0)
