"""What methods say that they reveal is what a device of a mesh hears."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from msgspec import structs
from scipy.special import expit

from conformesh import METHODS, TOPOLOGIES, Network, Result, adapt, calibrate, control
from conformesh.engines.simulator import Simulator
from conformesh.graph.network import subtree_weights
from conformesh.kernels import replies as written
from conformesh.kernels.keys import from_keys
from conformesh.kernels.ranks import LOSS_UNITS, Requirement
from conformesh.kernels.varints import decode_varints
from conformesh.kernels.weighted_scores import WeightedScores
from conformesh.methods import (
    device_protocol,
    exposure_of_method,
    exposure_of_result,
    make_options,
    method_variants,
    run_method,
)
from conformesh.peer import frames
from conformesh.peer.device import Device
from conformesh.peer.loopback import LinkFaults, run_loopback
from conformesh.privacy.exposure import (
    ALL,
    ExposureContext,
    components_without,
    learned_tree_sums,
)
from conformesh.privacy.gossip_attack import Eavesdropper, tree_attack_coefficients, with_neighbours
from conformesh.privacy.grids import grid_points
from conformesh.protocols import masks, method_exposure, top_k
from conformesh.protocols.aggregate import AGGREGATORS
from conformesh.protocols.block import Block, WindowRequest
from conformesh.protocols.histogram_reports import Report, encode_ends, encode_reports
from conformesh.protocols.p_dcp import GRID_POINTS, PDCP
from conformesh.protocols.waves import Waves
from conformesh.scores.adapt import Bag
from conformesh.scores.adapt.base import LARGEST_LOSS
from conformesh.scores.losses import sums_of_table
from tests.peer.devices import drawn_scores, starter

TORUS = Network.torus(5, 4)


def overheard(scores, network, rows, method, **options):
    ear = Eavesdropper(network, rows)
    calibrate(scores, network, 0.1, method, strict=False, observer=ear, **options)
    return ear


def said_by(ear, row, kind):
    """What a device says in messages of a kind, in order."""
    found = []
    for one in ear.heard:
        places = np.flatnonzero(one.senders == row)
        if one.kind == kind and len(places):
            found.append(one.values[int(places[0])])
    return found


def row_of(exposure, words, to):
    return next(row for row in exposure.rows if words in row.what and row.to == to)


# --- graphs -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", TOPOLOGIES)
def test_a_coalition_learns_sums_over_parts_of_the_tree_and_no_others(name):
    """What was really said spans the sums over these parts: by linear algebra on the messages of the aggregator."""
    network, rng = Network.of(name, 20, seed=1), np.random.default_rng(1)
    values = rng.integers(0, 100, size=(20, 3))
    parent, _ = subtree_weights(network, np.ones(20, dtype=np.int64))
    for coalition in ([0], [7], [3, 11]):
        ear = Eavesdropper(network, coalition)
        block = Block.everywhere(network, np.ones((20, 1), dtype=np.int64))

        def protocol(block=block):
            total = yield from AGGREGATORS["tree"].prepare(block)
            return (yield from total(values.copy()))  # which takes the memory that it is given

        totals, _ = Simulator(network, ear).run(protocol())
        near = with_neighbours(network, coalition)
        upward = [row for row in near.tolist() if parent[row] >= 0]
        first = {row: next(v for v in said_by(ear, row, "each") if v.shape == (3,)) for row in upward}
        heard = tree_attack_coefficients(parent, np.array(upward, dtype=np.int64))
        assert np.array_equal(heard @ values, np.array([first[row] for row in upward]).reshape(-1, 3))
        known = np.concatenate([heard, np.eye(20)[coalition], np.ones((1, 20))])  # and the total, which comes down
        assert np.array_equal(totals[0], values.sum(axis=0))
        parts = learned_tree_sums(network, coalition)
        marks = np.array([[row in part for row in range(20)] for part in [*parts, *([c] for c in coalition)]], float)
        assert np.linalg.matrix_rank(known) == np.linalg.matrix_rank(np.concatenate([known, marks])) == len(marks)


def test_a_device_says_its_sum_to_all_neighbours_not_to_its_parent_alone():
    """So the tree is cut above every neighbour of a coalition: without that, devices would seem safer than they are."""
    parent, _ = subtree_weights(TORUS, np.ones(20, dtype=np.int64))
    edges = [(row, above) for row, above in enumerate(parent.tolist()) if above >= 0]
    to_parents_alone = [part for part in components_without(20, edges, [10]) if len(part) == 1]
    assert len([part for part in learned_tree_sums(TORUS, [10]) if len(part) == 1]) > len(to_parents_alone)


def test_parts_of_a_graph_of_masks():
    complete = [(a, b) for a in range(6) for b in range(a)]
    assert components_without(6, complete, [0, 3]) == [[1, 2, 4, 5]]
    assert components_without(4, [(0, 1), (2, 3)], []) == [[0, 1], [2, 3]]
    assert components_without(3, [], [1]) == [[0], [2]]


# --- what is said, against what is heard ------------------------------------------------------------------------------


@pytest.mark.parametrize("name", METHODS)
def test_every_method_says_what_it_reveals(name):
    found = exposure_of_method(name, TORUS, coalition=1)
    assert (method_exposure.KNOWS_SIZE in found.rows) is not METHODS[name].private
    assert all(row.to in ("neighbours", "everybody", "a server", "the coalition") for row in found.rows)
    assert all(row.numbers is None or row.numbers > 0 for row in found.rows)


@pytest.mark.parametrize("method", [name for name, entry in METHODS.items() if not entry.private])
def test_sizes_are_flooded_before_any_method(method, twenty_devices):
    """The first frame of a device on a mesh says how many scores it holds, whatever it is going to run."""
    own = np.sort(twenty_devices[4])
    samples, options = WeightedScores.of([own], ["4"]), make_options(method, {})
    first = next(device_protocol(method, TORUS, 4, samples, (Fraction(1, 10),), options))
    assert decode_varints(first.packets.values).tolist() == [4, 1, len(own)]  # whose, how many bytes, and these


@pytest.mark.parametrize(("method", "options"), [("h-dcp", {"rounds": 2}), ("wfcp", {})])
@pytest.mark.filterwarnings("ignore:h-dcp")
def test_the_first_frame_of_a_maximum_has_the_ends_of_a_device(method, options, twenty_devices):
    ear = overheard(twenty_devices, TORUS, [0], method, bins=50, **options)
    words = "its smallest and its largest score, as they are"
    found = row_of(exposure_of_method(method, TORUS, coalition=["0"], bins=50, **options), words, "the coalition")
    assert found.devices == tuple(TORUS.neighbours(0).tolist())
    assert found.numbers == 2
    for row in found.devices:
        first = said_by(ear, row, "max")[0].ravel()
        assert first.tolist() == [-twenty_devices[row].min(), twenty_devices[row].max()]
    given = exposure_of_method(method, TORUS, coalition=["0"], bins=50, range=(0.0, 1.0), **options)
    assert not [row for row in given.rows if words in row.what]
    ear = overheard(twenty_devices, TORUS, [0], method, bins=50, range=(0.0, 1.0), **options)
    assert not said_by(ear, 1, "max")


def test_a_search_over_sums_sends_ends_counts_and_scores_next_to_the_answer(twenty_devices):
    """By flooding: everybody's counts are there by name; the last maximum has true scores."""
    ear = overheard(twenty_devices, TORUS, [0], "e-dcp", schedule="count", aggregate="flood")
    found = exposure_of_method("e-dcp", TORUS, coalition=["0"], schedule="count", aggregate="flood")
    assert len(row_of(found, "counts of its scores", "everybody").devices) == 20
    near = row_of(found, "the largest of its scores up to the answer", "the coalition").devices
    owner, length, *counts = said_by(ear, near[0], "tell")[0]  # in the first round of a sum, its own counts by name
    assert (owner, length) == (near[0], len(counts))
    assert max(counts) <= len(twenty_devices[near[0]]) < 128  # one byte each
    last = [abs(float(values.ravel()[0])) for row in near for values in said_by(ear, row, "max")[-1:]]
    assert {*last} <= {float(score) for scores in twenty_devices for score in scores}


def test_a_leaf_of_the_tree_has_its_count_said_bare(twenty_devices):
    """q-dcp counts the rank of its estimate over the tree: a leaf's own count, to all its neighbours."""
    options = {"certify": True, "aggregate": "tree", "rounds": 300}
    result = calibrate(twenty_devices, TORUS, 0.1, "q-dcp", strict=False, **options)
    ear = overheard(twenty_devices, TORUS, [10], "q-dcp", **options)
    found = exposure_of_result(result, TORUS, coalition=["10"])
    alone = row_of(found, "counts of its scores at thresholds that are asked", "the coalition").devices
    parent, _ = subtree_weights(TORUS, np.ones(20, dtype=np.int64))
    leaves = [row for row in with_neighbours(TORUS, [10]).tolist() if row not in parent and row != 10]
    assert leaves
    assert {*leaves} <= {*alone}
    for row in leaves:
        counts = [value for value in said_by(ear, row, "each") if value.shape == (1, 1)]
        assert int(counts[0][0, 0]) == np.count_nonzero(twenty_devices[row] <= result.estimate)


def test_a_leaf_of_the_tree_sketches_its_own_scores_alone(twenty_devices, monkeypatch):
    """Its first reply depends on nobody else's scores, and lists in the window are true scores."""
    parent, _ = subtree_weights(TORUS, np.ones(20, dtype=np.int64))
    found = exposure_of_method("e-dcp", TORUS, coalition=["10"])
    leaf = row_of(found, "a sketch of its scores", "the coalition").devices[0]
    assert leaf not in parent
    listed = []
    plain = Waves.merge_replies

    def watched(self, *words):
        known = plain(self, *words)
        listed.extend(key for reply in known if reply.run_count > 0 for key in reply.keys[: reply.run_count].tolist())
        return known

    monkeypatch.setattr(Waves, "merge_replies", watched)
    others = [own if row == leaf else own[::-1] / 2 for row, own in enumerate(twenty_devices)]
    changed = [own / 2 if row == leaf else own for row, own in enumerate(twenty_devices)]
    first = said_by(overheard(twenty_devices, TORUS, [10], "e-dcp"), leaf, "tell")[0]
    scores = {float(score) for own in twenty_devices for score in own}
    assert listed
    assert {*from_keys(np.array(listed)).tolist()} <= scores
    assert said_by(overheard(others, TORUS, [10], "e-dcp"), leaf, "tell")[0] == first
    assert said_by(overheard(changed, TORUS, [10], "e-dcp"), leaf, "tell")[0] != first


def test_a_flood_of_the_largest_scores_has_owners(twenty_devices):
    ear = overheard(twenty_devices, TORUS, [0], "e-dcp", prefer="rounds")
    found = exposure_of_method("e-dcp", TORUS, coalition=["0"], prefer="rounds")
    assert len(found.bare) == 19
    block, heard = Block.everywhere(TORUS, np.ones((20, 1), dtype=np.int64)), set()
    for one in ear.heard:
        for sender, packet in zip(one.senders.tolist(), one.values, strict=True):
            (said,) = top_k._read_lists(written.get_entries, packet, sender, 1, block)
            for owner, key in zip(said.owners.tolist(), said.keys.tolist(), strict=True):
                heard.add((owner, float(from_keys(np.array([key]))[0])))
    result = calibrate(twenty_devices, TORUS, 0.1, "e-dcp", prefer="rounds")
    assert heard <= {(row, float(score)) for row, own in enumerate(twenty_devices) for score in own}
    assert heard >= {
        (row, float(score)) for row, own in enumerate(twenty_devices) for score in own if score >= result.threshold
    }


def test_reports_and_entries_go_to_everybody(twenty_devices):
    ear = overheard(twenty_devices, TORUS, [0], "r-dcp", range=(0.0, 1.0), bins=64)
    heard = b"".join(packet for one in ear.heard for packet in one.values)
    for own in twenty_devices:
        assert encode_reports([Report.of(np.sort(own), 0.0, 1.0, 64)]) in heard
    assert len(exposure_of_method("r-dcp", TORUS, coalition=["0"]).bare) == 19
    ear = overheard(twenty_devices, TORUS, [0], "r-dcp", bins=64)
    heard = b"".join(packet for one in ear.heard for packet in one.values)
    for own in twenty_devices:
        assert encode_ends(np.array([own.min()]), np.array([own.max()])) in heard
    ear = overheard(twenty_devices, TORUS, [0], "e-dcp", entries=True)
    heard = b"".join(packet for one in ear.heard for packet in one.values)
    for own in twenty_devices:
        assert np.float64(own.max()).tobytes() in heard  # the last of the order statistics that a device tells


@pytest.mark.parametrize("method", ["average", "q-dcp"])
def test_the_first_average_has_the_quantile_of_a_device(method, twenty_devices):
    options = {"rounds": 20} if method == "q-dcp" else {}
    ear = overheard(twenty_devices, TORUS, [0], method, **options)
    result = calibrate(twenty_devices, TORUS, 0.1, method, strict=False, **options)
    found = exposure_of_result(result, TORUS, coalition=["0"])
    assert len(row_of(found, "quantile of its own scores", "the coalition").devices) == 11
    n = sum(map(len, twenty_devices))
    gamma = np.ceil(Fraction(9, 10) * (n + 20)) / n if method == "average" else None
    row = int(TORUS.neighbours(0)[0])
    said = float(said_by(ear, row, "sum")[0].ravel()[0])
    if gamma is None:
        gamma = result.certificate.required_rank / n
    assert said == pytest.approx(np.quantile(twenty_devices[row], float(gamma)), abs=1e-12)


@pytest.mark.filterwarnings("ignore:q-dcp. the error terms:conformesh.CalibrationNote")  # 30 rounds are few
def test_who_hears_a_device_and_all_its_neighbours_works_out_smoothed_counts(twenty_devices):
    """From estimates alone: the optimality condition of ADMM, with duals that follow from what was said before."""
    network, knobs = Network.chain(20), {"kappa": 50.0, "mu": 1.0, "c": 3.0, "s0": 0.5, "rounds": 30}
    ear = overheard(twenty_devices, network, [1], "q-dcp", averaging=0, **knobs)
    found = exposure_of_method("q-dcp", network, coalition=["1"], averaging=0, **knobs)
    assert row_of(found, "smoothed counts", "the coalition").devices == (0,)  # the end of the chain
    s = [float(value.ravel()[0]) for value in said_by(ear, 0, "sum")][:30]
    t = [float(value.ravel()[0]) for value in said_by(ear, 1, "sum")][:30]
    own, n, c = twenty_devices[0], sum(map(len, twenty_devices)), knobs["c"]
    rank = calibrate(twenty_devices, network, 0.1, "e-dcp").certificate.required_rank
    dual, mine, theirs = 0.0, 0.5, 0.5
    for now, next_to in zip(s, t, strict=True):
        dual += c / 2 * (mine - theirs)
        smoothed = rank / n * len(own) - knobs["mu"] * (now - 0.5) - dual - c * now + c / 2 * (mine + theirs)
        assert smoothed == pytest.approx(expit(knobs["kappa"] * (now - own)).sum(), abs=1e-6)
        mine, theirs = now, next_to


def test_what_goes_to_a_server_is_what_is_said(twenty_devices):
    pools = []
    for method in ("cp", "fedcp-qq"):
        calibrate(twenty_devices, TORUS, 0.1, method, observer=lambda round_, message, answer: pools.append(message))
        assert [row for row in exposure_of_method(method, TORUS).rows if row.to == "a server"]
    assert len(pools[0].values) == sum(map(len, twenty_devices))
    for own, value in zip(twenty_devices, pools[1].values, strict=True):
        assert value in own


@pytest.mark.parametrize(("method", "options"), [("e-dcp", {}), ("h-dcp", {"rounds": 6, "bins": 20})])
@pytest.mark.filterwarnings("ignore:h-dcp")
def test_a_neighbour_on_a_mesh_hears_what_the_ear_hears(method, options):
    """Frames of devices that run apart: the same words to all neighbours, parents or not, as the simulator's."""
    network, heard = Network.torus(3, 3), {}

    class Listening(Device):
        def receive(self, data, sender, now):
            frame = frames.decode_frame(data)
            if frame.kind == frames.DATA and not frame.silent and not frame.wants:
                heard.setdefault((frame.round, sender), {})[self.network.ids[self.row]] = frame.body
            super().receive(data, sender, now)

    scores = drawn_scores(network)
    start = starter(network, scores, method, device=Listening, **options)
    run_loopback(network, start, LinkFaults(), np.random.default_rng(1))
    for (_, sender), bodies in heard.items():
        assert {*bodies} == {network.ids[row] for row in network.neighbours(sender).tolist()}
        assert len({*bodies.values()}) == 1
    ear = overheard(scores, network, range(9), method, **options)
    sizes = network.diameter  # rounds in which a mesh floods them first
    for one in ear.heard:
        for sender, said in zip(one.senders.tolist(), one.values, strict=True):
            words = said if isinstance(said, bytes) else np.ascontiguousarray(said).tobytes()
            assert words in next(iter(heard[one.round + sizes, sender].values()))


# --- tests of lambdas -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("aggregate", ["auto", "flood"])
def test_tests_of_lambdas_say_sums_of_losses_and_nothing_else(aggregate):
    """Every number that is said is a sum of losses over a part of the tree; a leaf says its own."""
    rng = np.random.default_rng(6)
    losses = [rng.random((rng.integers(5, 20), 3)) for _ in range(20)]
    ear = Eavesdropper(TORUS, range(20))
    asked = {"monotone": False, "pac_confidence": 0.9, "grid": [3, 2, 1], "aggregate": aggregate}
    result = control(losses, TORUS, 0.7, observer=ear, **asked)
    own = [sums_of_table(each, 1.0, LOSS_UNITS, "a device") for each in losses]
    assert [*result.risks["risk"].totals] == sum(own).tolist()
    found = exposure_of_result(result, TORUS, coalition=["10"])
    alone = (
        row_of(found, "the sum of the losses of its items, for each lambda", "the coalition")
        if (aggregate == "auto")
        else row_of(found, "the sum of the losses of its items", "everybody")
    )
    assert alone.numbers == 3
    if aggregate == "flood":
        assert len(alone.devices) == 20
        return
    parent, _ = subtree_weights(TORUS, np.ones(20, dtype=np.int64))
    below = np.array(own)
    order = sorted(range(20), key=lambda row: -_depth(parent, row))
    for row in order:
        if parent[row] >= 0:
            below[parent[row]] += below[row]
    said = {tuple(np.ravel(v).tolist()) for one in ear.heard for v in one.values if np.size(v) == 3}
    assert said <= {tuple(row) for row in below.tolist()}
    leaves = [row for row in with_neighbours(TORUS, [10]).tolist() if row not in parent and row != 10]
    assert leaves
    assert {*leaves} <= {*alone.devices}
    assert {tuple(own[row].tolist()) for row in leaves} <= said


def _depth(parent, row):
    return 0 if parent[row] < 0 else 1 + _depth(parent, parent[row])


# --- adapted scores ---------------------------------------------------------------------------------------------------


FIXED = adapt.Prior(strength=16, temperature=1)


def drawn_rows(name, rng, devices=20):
    """Rows of devices that differ: each sees 3 of 10 classes, or has a bias of its own."""
    bags = []
    for _ in range(devices):
        n = int(rng.integers(5, 40))
        if name == "scale":
            mean = rng.normal(size=n)
            bags.append(Bag(mean, mean + rng.normal(rng.normal(), rng.uniform(0.5, 2), n)))
            continue
        labels = rng.choice(rng.permutation(10)[:3], n)
        outputs = rng.dirichlet(np.ones(10), n) + 0.5 * np.eye(10)[labels]
        bags.append(Bag(outputs / outputs.sum(axis=1, keepdims=True), labels))
    return bags


def twin_rows(name, bags, rng):
    """Other rows with the same scores and losses: the classes of each device renamed, or residuals negated."""
    if name == "scale":
        return [Bag(bag.outputs, 2 * bag.outputs - bag.labels) for bag in bags]
    twins = []
    for bag in bags:
        names = rng.permutation(10)
        outputs = np.empty_like(bag.outputs)
        outputs[:, names] = bag.outputs
        twins.append(Bag(outputs, names[bag.labels]))
    return twins


def said(ear):
    """All that was said: round, kind, who, and the bytes."""
    return [
        (one.round, one.kind, tuple(one.senders), [np.asarray(value).tobytes() for value in one.values])
        for one in ear.heard
    ]


def adapted_ear(bags, adaptation, rows=range(20), method="e-dcp", **options):
    ear = Eavesdropper(TORUS, rows)
    given = [(bag.outputs, bag.labels) for bag in bags]
    return ear, calibrate(given, TORUS, 0.1, method, adapt=adaptation, observer=ear, rng=0, **options)


@pytest.mark.parametrize("name", ["prior", "scale", "even", "fixed"])
def test_an_adapted_run_says_sums_of_losses_and_the_search_among_scores(name):
    """Every byte that is said follows from sizes, counts, sums of losses and adapted scores: nothing else is said."""
    bags = drawn_rows(name, np.random.default_rng(5))
    ear, result = adapted_ear(bags, FIXED if name == "fixed" else name)
    adaptation, facts = result.guarantee.adapt, result.adapted
    sizes = np.array([[len(bag)] for bag in bags])
    checked = [adaptation.read(bag.outputs, bag.labels, "") for bag in bags]

    def claimed():
        block = Block.everywhere(TORUS, sizes)
        held = np.array([adaptation.summary_counts(bag) for bag in checked])
        if len(facts.choices) > 1:  # with which the tree is grown
            total, n = (yield from AGGREGATORS["tree"].prepare(block)), int(sizes.sum())
            if held.shape[1]:
                assert (yield from total(held, n))[0].tolist() == [*facts.counts]
            own = [[int(adaptation.losses(bag, s, 0.1).sum()) for s in facts.choices] for bag in checked]
            assert (yield from total(np.array(own), n * LARGEST_LOSS))[0].tolist() == [*facts.losses]
        scores = [[adaptation.leave_one_out(bag, facts.choices[at]) for bag in checked] for at in facts.shared]
        samples = WeightedScores.of_trials(scores)
        asked = replace(
            block,
            sizes=samples.sizes,
            alphas=(Fraction(1, 10),),
            window=WindowRequest(16),
            requirement=Requirement(hides_example=True),
        )
        return (yield from run_method("e-dcp", asked, samples, make_options("e-dcp", {})))

    expected = Eavesdropper(TORUS, range(20))
    outcome, _ = Simulator(TORUS, expected).run(claimed())
    assert said(ear) == said(expected)
    assert tuple(row[0] for row in outcome.windows) == tuple(result.answers[0].windows)


@pytest.mark.parametrize("name", ["prior", "even"])
def test_labels_of_a_device_do_not_travel(name):
    """Classes that are renamed on each device change no message and no result, apart from digests of rows."""
    rng = np.random.default_rng(6)
    bags = drawn_rows(name, rng)
    first, one = adapted_ear(bags, name)
    second, other = adapted_ear(twin_rows(name, bags, rng), name)
    assert said(first) == said(second)
    assert_results_differ_in_digests(one, other)


def test_the_sign_of_a_bias_does_not_travel():
    """Residuals that are negated change no message: how many there are of each size is what is counted."""
    bags = [Bag(np.zeros(len(bag)), bag.labels) for bag in drawn_rows("scale", np.random.default_rng(7))]
    first, one = adapted_ear(bags, "scale")
    second, other = adapted_ear(twin_rows("scale", bags, None), "scale")
    assert said(first) == said(second)
    assert_results_differ_in_digests(one, other)


def assert_results_differ_in_digests(one, other):
    """What a file would hold: the same, but for a digest for each device."""
    one, other = structs.replace(one, seconds=0.0).to_dict(), structs.replace(other, seconds=0.0).to_dict()
    digests = [given["adapted"].pop("digests") for given in (one, other)]
    assert one == other
    assert all(digests[0][name] != digests[1][name] for name in TORUS.ids)


def test_a_leaf_says_the_sums_of_its_losses_bare():
    """What a coalition learns by the table is what its members hear, to the last number."""
    bags = drawn_rows("prior", np.random.default_rng(8))
    ear, result = adapted_ear(bags, "prior", rows=[10])
    found = exposure_of_result(result, TORUS, coalition=["10"])
    alone = row_of(found, "the sum of the losses of its rows, for each setting", "the coalition")
    settings = len(result.adapted.losses)
    assert alone.numbers == settings > 1
    parent, _ = subtree_weights(TORUS, np.ones(20, dtype=np.int64))
    leaves = [row for row in with_neighbours(TORUS, [10]).tolist() if row not in parent and row != 10]
    assert leaves
    assert {*leaves} <= {*alone.devices}
    adaptation = result.guarantee.adapt
    for row in leaves:
        heard = next(value for value in said_by(ear, row, "each") if value.shape == (settings,))
        assert heard.tolist() == [
            int(adaptation.losses(bags[row], setting, 0.1).sum()) for setting in result.adapted.choices
        ]


def test_with_fixed_settings_no_loss_is_said():
    """What is said instead is in the test of all bytes above."""
    assert not [row for row in exposure_of_method("e-dcp", TORUS, adapt=FIXED).rows if "losses" in row.what]
    _, result = adapted_ear(drawn_rows("prior", np.random.default_rng(9)), FIXED)
    assert result.adapted.losses == ()
    assert not [row for row in exposure_of_result(result).rows if "losses" in row.what]


def test_for_any_mixture_neighbours_hear_the_threshold_that_a_device_has_by_itself(twenty_devices):
    ear = overheard(twenty_devices, TORUS, [0], "e-dcp", mixture="any")
    found = row_of(
        exposure_of_method("e-dcp", TORUS, coalition=["0"], mixture="any"), "the threshold that it has", "the coalition"
    )
    alone = calibrate(twenty_devices, TORUS, 0.1, mixture="own")
    assert found.devices == tuple(TORUS.neighbours(0).tolist())
    for row in found.devices:
        assert said_by(ear, row, "max")[0].ravel().tolist() == [alone.thresholds[row]]
        assert alone.thresholds[row] in twenty_devices[row]
    assert {one.kind for one in ear.heard} == {"max"}
    assert not overheard(twenty_devices, TORUS, [0], "e-dcp", mixture="own").heard


def test_with_a_bound_everybody_hears_scores_of_each_device_by_name(twenty_devices):
    ear = overheard(twenty_devices, TORUS, [0], "e-dcp", mixture_bound=2)
    heard = b"".join(packet for one in ear.heard for packet in one.values)
    for own in twenty_devices:
        assert np.float64(own.max()).tobytes() in heard  # the first and the last score of the first window
        assert np.float64(own.min()).tobytes() in heard
    found = exposure_of_method("e-dcp", TORUS, coalition=["0"], mixture_bound=2)
    assert len(found.bare) == 19
    assert row_of(found, "how many of its scores lie at or below each", "everybody").devices == (*range(20),)


@pytest.mark.parametrize("asked", [{"mixture": "own"}, {"mixture": "any"}, {"mixture_bound": "1.5"}], ids=str)
def test_a_plan_that_no_run_can_follow_is_refused(asked):
    with pytest.raises(ValueError, match="counts the scores of all devices together"):
        exposure_of_method("p-dcp", TORUS, **asked)


@pytest.mark.parametrize("asked", [{"mixture": "own"}, {"mixture": "any"}, {"mixture_bound": "1.5"}], ids=str)
def test_a_plan_for_unknown_mixtures_says_what_its_result_says(asked, twenty_devices):
    made = calibrate(twenty_devices, TORUS, 0.1, **asked)
    planned = exposure_of_method("e-dcp", TORUS, coalition=["10"], **asked)
    assert exposure_of_result(made, TORUS, coalition=["10"]).rows == planned.rows


@pytest.mark.parametrize("name", ["prior", "scale"])
@pytest.mark.filterwarnings("ignore::conformesh.TooFewScores")  # a device has 8 rows
def test_with_mixture_own_only_sums_are_said(name):
    ear, result = adapted_ear(drawn_rows(name, np.random.default_rng(10)), name, mixture="own")
    numbers = [value.size for one in ear.heard for value in one.values if one.kind == "each"]
    assert {one.kind for one in ear.heard} <= {"each", "hello"}
    assert {*numbers} <= {1, 160, len(result.adapted.losses)}
    found = exposure_of_result(result)
    assert {row.what for row in found.rows if row.to == "everybody"} == {
        row.what for row in exposure_of_method("e-dcp", TORUS, adapt=name, mixture="own").rows if row.to == "everybody"
    }
    assert not [row for row in found.rows if "window" in row.what or "threshold" in row.what]


def words_said_twice(bags, name):
    """What is the same in two runs with p-dcp over the same rows, with fresh masks: who said it, and all its words."""
    ears, results = zip(*(adapted_ear(bags, name, method="p-dcp") for _ in range(2)), strict=True)
    assert [(one.round, one.kind, tuple(one.senders)) for one in ears[0].heard] == [
        (one.round, one.kind, tuple(one.senders)) for one in ears[1].heard
    ]
    found = []
    for one, other in zip(*(ear.heard for ear in ears), strict=True):
        for sender, value, again in zip(one.senders.tolist(), one.values, other.values, strict=True):
            if isinstance(value, bytes):  # keys, before anything is added up
                assert value != again
            elif value.dtype == np.int32:
                assert value.shape == again.shape
                if (value == again).any():
                    found.append((sender, value[value == again].tolist(), value.tolist()))
            else:  # the parent in the tree, which the graph tells; at the end the digest of all totals
                assert value.dtype in (np.int8, np.uint64)
    return found, results[0]


@pytest.mark.parametrize("name", ["prior", "scale", "even"])
def test_only_masked_numbers_and_totals_travel(name):
    """Numbers that depend on rows would be the same in two runs over these rows: only totals over all devices are.

    False alarm: some 10,000 masked words of 32 bits, of which one is the same twice by chance in 2 of a million tests.
    Power: a sum of losses or a count that travels as it is, of one device or of a part of the tree, is always seen; the
    next test plants one.
    """
    bags = drawn_rows(name, np.random.default_rng(12))
    same, result = words_said_twice(bags, name)
    assert same
    totals = {tuple(whole) for _, _, whole in same}
    assert all(again == whole and whole[0] == 20 for _, again, whole in same)  # 20 ones were added up
    facts, window = result.adapted, result.answers[0].windows[0]
    assert (20, *facts.losses) in totals
    if facts.counts:
        assert (20, *facts.counts) in totals
    n = sum(map(len, bags))
    assert (20, *[n] * len(facts.shared)) in totals
    counted = {number for whole in totals for number in whole}
    assert {*window.counts.tolist(), window.below} <= counted


def test_sums_without_masks_are_seen(monkeypatch):
    """The planted leak: each device's own sums of losses are then among the words that are the same twice."""
    plain = masks.Masks.at
    monkeypatch.setattr(masks.Masks, "at", lambda self, *words: plain(self, *words) * np.uint32(0))
    bags = drawn_rows("prior", np.random.default_rng(12))
    same, result = words_said_twice(bags, "prior")
    parent, _ = subtree_weights(TORUS, np.ones(20, dtype=np.int64))
    leaf = next(row for row in range(20) if row not in parent)
    own = [int(result.guarantee.adapt.losses(bags[leaf], s, 0.1).sum()) for s in result.adapted.choices]
    assert any(sender == leaf and whole == [1, *own] for sender, _, whole in same)


def test_masked_windows_are_of_grid_points_and_tell_no_true_score():
    bags = drawn_rows("prior", np.random.default_rng(13))
    _, result = adapted_ear(bags, "prior", method="p-dcp")
    found = exposure_of_result(result, TORUS, coalition=["10"])
    assert found.bare == ()
    assert {row.to for row in found.rows} == {"everybody", "readers of results", "readers of predictions"}
    assert all(row.about == ALL for row in found.rows if row.to == "everybody")
    assert row_of(found, "points of the grid, no true scores", "everybody").numbers is None
    assert row_of(found, "the sum of the losses of all rows", "everybody").numbers == len(result.adapted.losses)
    grid = {*grid_points("logit", GRID_POINTS).tolist()}
    assert {value for window in result.answers[0].windows for value in window.values.tolist()} <= grid


@pytest.mark.parametrize("name", ["prior", "scale", "even"])
@pytest.mark.parametrize("method", ["e-dcp", "p-dcp"])
def test_a_plan_of_an_adapted_run_says_what_its_result_says(name, method):
    _, made = adapted_ear(drawn_rows(name, np.random.default_rng(11)), name, method=method)
    base = {} if name != "even" else {"adapt": made.guarantee.adapt}
    planned = exposure_of_method(method, TORUS, coalition=["10"], **{"adapt": name, **base})
    assert exposure_of_result(made, TORUS, coalition=["10"]).rows == planned.rows
    assert {row.to for row in planned.rows} >= {"readers of results", "readers of predictions"}


# --- the command's questions ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("epsilon", [None, 1.0])
def test_masked_sums_leave_nobody_alone_unless_the_masks_do(epsilon):
    where, plain = ExposureContext(20, TORUS, (0, 1, 2)), PDCP(epsilon=epsilon)
    assert not [row for row in method_exposure.exposure_of_p_dcp(where, plain) if row.devices]
    about = {row.about for row in method_exposure.exposure_of_p_dcp(where, plain) if "account" not in row.what}
    assert about == {ALL}
    chain = [(row, row + 1) for row in range(19)]
    cut = method_exposure.exposure_of_p_dcp(replace(where, coalition=(1, 5), masks=chain), plain)
    assert [row.devices for row in cut if row.devices] == [(0,)]
    assert "3 parts" in cut[-2].what


def test_with_epsilon_everybody_learns_one_noisy_histogram_and_the_account(twenty_devices):
    """As many numbers as the release of a run has, all of them about all devices together."""
    rows = method_exposure.exposure_of_p_dcp(ExposureContext(20, TORUS, (0,)), PDCP(epsilon=1.0, cells=64))
    numbers = {row.numbers for row in rows if "with noise" in row.what}
    assert numbers == {1, 63}
    assert all("with noise" in row.what for row in rows if "all scores" in row.what)
    result = calibrate(twenty_devices, TORUS, 0.1, "p-dcp", grid="logit", epsilon=1.0, cells=64)
    assert len(result.options["release"]["totals"]) == sum(numbers)
    assert exposure_of_result(result, TORUS, coalition=["0"]).rows == tuple(rows)
    (account,) = [row for row in rows if "account" in row.what]
    assert (account.to, account.devices) == ("everybody", ())


def test_the_worst_coalition_of_a_size_is_found():
    star = Network.star(6)
    found = exposure_of_method("h-dcp", star, coalition=1, range=(0.0, 1.0))
    assert (found.coalition, len(found.bare), found.worst) == (("0",), 5, True)
    assert len(exposure_of_method("h-dcp", star, coalition=["3"], range=(0.0, 1.0)).bare) == 1
    many = exposure_of_method("e-dcp", TORUS, coalition=4)
    assert len(many.coalition) == 4
    assert len(many.bare) >= len(exposure_of_method("e-dcp", TORUS, coalition=1).bare)
    with pytest.raises(ValueError, match="leave somebody out"):
        exposure_of_method("e-dcp", star, coalition=6)
    large = row_of(exposure_of_method("h-dcp", Network.star(500), coalition=1), "its exact histogram", "the coalition")
    assert len(large.devices) == 499  # its neighbours; what it can work out of others is not looked at
    assert "up to 400 devices" in large.what
    assert not [row for row in exposure_of_method("h-dcp", star, rounds=0).rows if "its exact histogram" in row.what]


def test_a_saved_result_says_what_its_run_revealed(tmp_path, twenty_devices):
    calibrate(twenty_devices, TORUS, 0.1, "e-dcp", schedule="top-k").save(tmp_path / "result.json")
    result = Result.load(tmp_path / "result.json")
    found = exposure_of_result(result)
    assert found.coalition == found.bare == ()
    assert row_of(found, "among the k largest", "everybody").numbers is None
    assert found.network == TORUS.name
    told = structs.replace(result, options={**result.options, "revealed_epsilon": "1"})
    assert exposure_of_result(told, TORUS).to_dict()["revealed_epsilon"] == "1"
    with pytest.raises(ValueError, match="20 devices, and the network has 6"):
        exposure_of_result(result, Network.star(6))


OTHERWISE = [
    ("e-dcp", {"schedule": "count", "aggregate": "flood"}),
    ("e-dcp", {"schedule": "count", "aggregate": "flood"}),
    ("e-dcp", {"schedule": "top-k", "aggregate": "tree"}),
    ("e-dcp", {"prefer": "rounds"}),
    ("e-dcp", {"entries": True}),
    ("q-dcp", {"s0": "min", "certify": True, "rounds": 60}),
    ("q-dcp", {"s0": 0.5, "continuation": 2, "rounds": 60}),
    ("q-dcp", {"asynchronous": True, "rounds": 20}),
    ("h-dcp", {"wire": 32, "bins": 20}),
    ("r-dcp", {"grid": "own"}),
    ("p-dcp", {"epsilon": 1.0}),
]


@pytest.mark.parametrize(("method", "options"), [*((way.method, way.options) for way in method_variants()), *OTHERWISE])
@pytest.mark.filterwarnings("ignore:.*")
def test_a_plan_says_what_the_result_of_the_run_says(method, options):
    """For every way to run a method, and some more: what is chosen on the way is chosen alike."""
    rng = np.random.default_rng(3)
    scores = [rng.random(50) for _ in range(20)]
    options = {"bins": 20, **options} if "bins" in METHODS[method].option_names() else options  # which takes less time
    planned = exposure_of_method(method, TORUS, coalition=["10"], scores=50, **options)
    made = calibrate(scores, TORUS, 0.1, method, strict=False, **options)
    assert exposure_of_result(made, TORUS, coalition=["10"]).rows == planned.rows
    assert {row.to for row in exposure_of_result(made).rows} <= {"neighbours", "everybody", "a server"}


@pytest.mark.parametrize("weights", ["metropolis", "matrix"])
@pytest.mark.filterwarnings("ignore:h-dcp")
def test_options_of_a_result_are_read_back(weights, twenty_devices):
    given = weights if weights == "metropolis" else np.full((20, 20), 1 / 20)
    network = Network.complete(20)
    result = calibrate(twenty_devices, network, 0.1, "h-dcp", range=(0.0, 1.0), bins=30, weights=given, strict=False)
    again = Result.from_dict(result.to_dict(), "result")
    assert row_of(exposure_of_result(again, network), "its exact histogram", "the coalition").numbers == 30


def test_a_method_that_says_nothing_is_refused(monkeypatch):
    monkeypatch.setitem(METHODS, "silent", replace(METHODS["local"], reveals=None))
    with pytest.raises(ValueError, match="what method 'silent' reveals is not known"):
        exposure_of_method("silent", TORUS)
