"""Masks hide all but sums over components, cancel, and belong to one run; keys that are nobody's are refused."""

import itertools
import time
from collections import Counter
from dataclasses import replace
from functools import cache

import networkx as nx
import numpy as np
import pytest
from scipy import sparse, stats

from conformesh import Network, Samples, calibrate_batch
from conformesh.engines import Simulator
from conformesh.protocols import masks
from conformesh.protocols.aggregate import get_aggregator
from conformesh.protocols.masks import KEY, KeyRefused, MaskedSums, Masks, Secrets, agree_on_masks, derived, mask_edges
from conformesh.protocols.messages import Gathered, Packets
from conformesh.protocols.site import Site
from tests.protocols.alone import Transcript, made, repeatable_secrets, secrets_of, signer, thresholds, together

WHOLE = 2**32


def site_of(devices):
    return Site.everywhere(Network.complete(devices), np.ones((devices, 1), dtype=np.int64))


def agreed(site, secrets, everybody=None):
    """Run the agreement on masks; `everybody` are the strings of all devices, by default those of the devices here."""
    protocol = agree_on_masks(site, secrets)
    asked = next(protocol)
    packets = asked.packets if everybody is None else Packets.of(everybody)
    known = np.ones(site.devices, dtype=bool)
    try:
        protocol.send(Gathered(packets, known, ~known, sealed=True))
    except StopIteration as end:
        return end.value
    raise AssertionError("masks are agreed on by one question")


# --- what masks hide --------------------------------------------------------------------------------------------------

GRAPHS = {  # edges, the coalition, and into what it cuts the others
    "complete": ([(0, 1), (0, 2), (0, 3), (1, 2), (1, 3), (2, 3)], {3}, [{0, 1, 2}]),
    "complete, nobody curious": ([(0, 1), (0, 2), (1, 2)], set(), [{0, 1, 2}]),
    "path": ([(0, 1), (1, 2), (2, 3), (3, 4)], set(), [{0, 1, 2, 3, 4}]),
    "path, cut": ([(0, 1), (1, 2), (2, 3), (3, 4)], {2}, [{0, 1}, {3, 4}]),
    "cycle, cut twice": ([(0, 1), (1, 2), (2, 3), (3, 4), (4, 5), (0, 5)], {1, 4}, [{0, 5}, {2, 3}]),
    "star, its hub curious": ([(0, 1), (0, 2), (0, 3), (2, 3)], {0}, [{1}, {2, 3}]),
}
SMALL = 4  # masks are multiples of 2^32/4, a group of four: all of them can be tried


def laws(monkeypatch, edges, coalition, x, wrong=lambda masks: masks):
    """Return how often each (y_i) of the others comes up, over all masks between them; those of the coalition fixed."""
    devices = 1 + max(map(max, edges))
    secrets = {edge: bytes([at + 1]) * KEY for at, edge in enumerate(edges)}
    by_key = {derived(secret, b"", b"stage"): edge for edge, secret in secrets.items()}
    drawn = {}

    class Chosen:
        def __init__(self, secret, number):
            self.word = drawn[by_key[secret]] * (WHOLE // SMALL)

        def __call__(self, size):
            return np.full(size // 4, self.word, dtype="<u4").tobytes()

    monkeypatch.setattr(masks, "Keystream", Chosen)
    between = [edge for edge in edges if not coalition & {*edge}]
    drawn |= {edge: at % SMALL for at, edge in enumerate(edges)}
    pairs = wrong(Masks(devices, tuple((i, j, secrets[i, j]) for i, j in edges)))
    own = np.array(x, dtype=np.int64) * (WHOLE // SMALL)
    others = [k for k in range(devices) if k not in coalition]
    seen = Counter()
    for words in itertools.product(range(SMALL), repeat=len(between)):
        drawn.update(zip(between, words, strict=True))
        y = (own + pairs.at(0, 1)[:, 0]) % WHOLE
        known = {  # what the coalition can take away, as it knows these secrets
            k: sum((1 if k == i else -1) * drawn[i, j] for i, j in edges if k in (i, j) and coalition & {i, j})
            for k in others
        }
        seen[tuple(int(y[k] // (WHOLE // SMALL) - known[k]) % SMALL for k in others)] += 1
    return others, seen


def assert_hides(others, seen, parts, x):
    """Uniform on all values with the sums of the parts, and no others."""
    sums = [sum(x[k] for k in part) % SMALL for part in parts]
    for y in seen:
        assert [sum(y[others.index(k)] for k in part) % SMALL for part in parts] == sums
    assert len(seen) == SMALL ** sum(len(part) - 1 for part in parts)
    assert len({*seen.values()}) == 1


@pytest.mark.parametrize("name", GRAPHS)
def test_masks_hide_all_but_component_sums(monkeypatch, name):
    """Exact, over all masks of a group of four: given component sums, what is seen is uniform, whatever the numbers."""
    edges, coalition, parts = GRAPHS[name]
    x = [1, 3, 2, 0, 2, 1][: 1 + max(map(max, edges))]
    others, seen = laws(monkeypatch, edges, coalition, x)
    assert_hides(others, seen, parts, x)
    moved = [*x]  # the same sums, other numbers: the same law, so that nobody can tell them apart
    for part in parts:
        first, *rest = sorted(part)
        if rest:
            moved[first], moved[rest[-1]] = moved[first] + 1, moved[rest[-1]] - 1
    assert laws(monkeypatch, edges, coalition, moved)[1] == seen


class OneSign(Masks):
    """Adds every mask on both sides."""

    def at(self, stage, numbers, heard=b""):
        both = [(place, -1, secret) for plus, minus, secret in self.pairs for place in (plus, minus)]
        return Masks(self.devices, tuple(both)).at(stage, numbers, heard)


class Half(Masks):
    """Masks of 31 bits."""

    def at(self, stage, numbers, heard=b""):
        total = np.zeros((self.devices, numbers), dtype=np.int64)
        for plus, minus, secret in self.pairs:
            mask = Masks(1, ((0, -1, secret),)).at(stage, numbers, heard)[0] & (2**31 - 1)
            total[plus] += mask
            total[minus] -= mask
        return (total % WHOLE).astype(np.uint32).view(np.int32)


class Again(Masks):
    """The masks of the first stage in every stage."""

    def at(self, stage, numbers, heard=b""):
        return super().at(0, numbers, b"")


PLANTED = {"a sign": OneSign, "a bit": Half, "stages": Again}


def test_an_enumeration_notices_a_wrong_sign(monkeypatch):
    edges, coalition, parts = GRAPHS["path, cut"]
    x = [1, 3, 2, 0, 2]
    others, seen = laws(monkeypatch, edges, coalition, x, lambda right: OneSign(right.devices, right.pairs))
    with pytest.raises(AssertionError):
        assert_hides(others, seen, parts, x)


CUT = np.array([(0, 1), (1, 2), (2, 3), (3, 4), (0, 2), (2, 4)])  # device 2 is curious, and cuts {0, 1} from {3, 4}
STAGES = [np.array([[3], [40], [0], [7], [120]]), np.array([[9], [2], [5], [70], [1]])]
RUNS = 400


@cache
def agreements():
    """The masks of many runs on this graph, each with fresh keys."""
    site = site_of(5)
    return [agreed(site, repeatable_secrets(site, run)) for run in range(RUNS)]


def views(monkeypatch, wrong=None):
    """What device 2 can make of all y_i in two stages, in many runs with fresh keys: (runs, stages, others)."""
    monkeypatch.setattr(masks, "mask_edges", lambda devices, context: CUT)
    found = []
    for right in agreements():
        used = right if wrong is None else wrong(right.devices, right.pairs)
        known = Masks(5, tuple(pair for pair in right.pairs if 2 in pair[:2]))
        if wrong is not None:
            known = wrong(5, known.pairs)
        seen = [(x + used.at(t, 1).astype(np.int64) - known.at(t, 1)) % WHOLE for t, x in enumerate(STAGES)]
        found.append(np.array(seen)[:, [0, 1, 3, 4], 0])
    return np.array(found)


def imagined(seed):
    """The same from nothing but the sums of {0, 1} and {3, 4}: uniform numbers that add up to them."""
    rng = np.random.default_rng(seed)
    free = rng.integers(0, WHOLE, (RUNS, 2, 2))
    sums = np.array([[x[0, 0] + x[1, 0], x[3, 0] + x[4, 0]] for x in STAGES])
    rest = (sums - free) % WHOLE
    return np.stack([free[:, :, 0], rest[:, :, 0], free[:, :, 1], rest[:, :, 1]], axis=2)


def features(view):
    """Columns of 16 kinds each: first and last four bits of every number, sums of parts, and differences of stages."""
    sums = np.stack([view[:, :, 0] + view[:, :, 1], view[:, :, 2] + view[:, :, 3]], axis=2) % WHOLE
    words = np.concatenate(
        [
            view.reshape(RUNS, -1),
            sums.reshape(RUNS, -1),
            (view[:, 1] - view[:, 0]) % WHOLE,
            (view[:, 0, :2] - view[:, 0, 2:]) % WHOLE,
        ],
        axis=1,
    )
    return np.concatenate([words >> 28, words & 15], axis=1)


def chance_of(one, other):
    """The p-value of two samples being alike: the smallest of chi-square tests of all columns, times their number."""
    chances = []
    for column in zip(one.T, other.T, strict=True):
        a, b = (np.bincount(kinds, minlength=16) for kinds in column)
        some = a + b > 0
        statistic = float(((a - b)[some] ** 2 / (a + b)[some]).sum())  # of equally large samples
        chances.append(stats.chi2.sf(statistic, max(int(some.sum()) - 1, 1)))
    return min(chances) * len(chances)


def test_a_view_from_component_sums_alone_is_like_the_real_one(monkeypatch):
    """Two samples of 400 runs, 36 chi-square tests: false alarm below 1e-6 in all; seeds are fixed."""
    assert chance_of(features(views(monkeypatch)), features(imagined(1))) > 1e-6


@pytest.mark.parametrize("mistake", PLANTED)
def test_such_a_test_notices_a_planted_mistake(monkeypatch, mistake):
    """A sign, 31 of 32 bits, or the masks of another stage: each is far beyond any false alarm."""
    assert chance_of(features(views(monkeypatch, PLANTED[mistake])), features(imagined(1))) < 1e-12


# --- the mask graph ---------------------------------------------------------------------------------------------------


def splits(edges, devices, draws, rng):
    """How often 70 % of the devices together cut the others apart."""
    found = 0
    for _ in range(draws):
        left = np.ones(devices, dtype=bool)
        left[rng.choice(devices, int(0.7 * devices), replace=False)] = False
        place = np.cumsum(left) - 1
        kept = place[edges[left[edges].all(axis=1)]]
        graph = sparse.coo_array((np.ones(len(kept)), (kept[:, 0], kept[:, 1])), shape=(left.sum(), left.sum()))
        found += sparse.csgraph.connected_components(graph, directed=False)[0] > 1
    return found


def test_a_random_mask_graph_holds_together_where_a_pattern_is_split(monkeypatch):
    """1200 devices, 70 % curious, 200 draws: degree 64 as shipped never, half of it rarely, a pattern of that often."""
    devices, draws, rng = 1200, 200, np.random.default_rng(7)
    shipped = mask_edges(devices, b"a run")
    assert (np.bincount(shipped.ravel()) == masks.DEGREE).all()
    assert (shipped[:, 0] < shipped[:, 1]).all()
    assert len(np.unique(shipped, axis=0)) == len(shipped) == devices * masks.DEGREE // 2
    assert splits(shipped, devices, draws, rng) == 0
    monkeypatch.setattr(masks, "DEGREE", 32)
    random = mask_edges(devices, b"a run")
    k = np.arange(devices)
    pattern = np.concatenate([np.stack([k, (k + step) % devices], axis=1) for step in range(1, 17)])  # Harary's graph
    assert splits(random, devices, draws, rng) <= 10
    assert splits(pattern, devices, draws, rng) >= 40


def test_a_device_is_cut_off_less_than_once_in_a_million_draws():
    """As the source says, by the chance that all neighbours of one device are among 70 %, times the devices left."""
    for devices in (masks.COMPLETE + 1, masks.MOST):
        curious = int(0.7 * devices)
        alone = stats.hypergeom.pmf(masks.DEGREE, devices - 1, curious, masks.DEGREE)
        assert (devices - curious) * alone < 1e-6


def test_mask_graphs_are_complete_up_to_a_limit_and_drawn_anew_for_every_run():
    assert mask_edges(5, b"x").tolist() == [[*pair] for pair in itertools.combinations(range(5), 2)]
    one, again, other = (mask_edges(1002, run) for run in (b"one", b"one", b"other"))
    assert np.array_equal(one, again)
    assert not np.array_equal(one, other)
    assert nx.is_connected(nx.Graph(one.tolist()))


# --- sums -------------------------------------------------------------------------------------------------------------

SCORES = [np.random.default_rng(k).random(20 + 3 * k) for k in range(6)]


def test_masks_cancel_on_every_mask_graph(monkeypatch):
    site = site_of(8)
    for complete in (1000, 4):
        monkeypatch.setattr(masks, "COMPLETE", complete)
        monkeypatch.setattr(masks, "DEGREE", 4)
        found = agreed(site, repeatable_secrets(site, 3))
        assert len(found.pairs) == (28 if complete == 1000 else 16)
        for stage in range(3):
            one = found.at(stage, 50).astype(np.int64)
            assert (one.sum(axis=0) % WHOLE == 0).all()
            assert len(np.unique(one)) > 390  # no mask is 0, none comes twice
        assert not np.array_equal(found.at(0, 50), found.at(1, 50))
        assert not np.array_equal(found.at(1, 50, b"a total"), found.at(1, 50, b"another"))


@pytest.mark.parametrize("aggregate", ["tree", "flood"])
def test_devices_alone_say_and_find_what_a_simulation_does(aggregate):
    network = Network.chain(6)
    outcomes = together(network, made(network, SCORES, aggregate=aggregate, grid="logit"))
    whole = calibrate_batch(Samples.of(SCORES), network, [0.1], "p-dcp", aggregate=aggregate, grid="logit").outcome
    assert (thresholds(outcomes) == whole.thresholds[0, 0, 0]).all()
    assert {str(outcome.certificates[0][0]) for outcome in outcomes} == {str(whole.certificates[0][0])}
    assert outcomes[0].sizes.tolist() == [[sum(map(len, SCORES))]]


def test_sums_may_be_negative_and_as_large_as_31_bits():
    site = site_of(4)
    values = np.array([[2**29, -5, 0], [2**29, -7, 0], [2**29, 3, 0], [2**29 - 1, -(2**30), 0]])

    def added():
        sums = yield from MaskedSums.over(site, agreed(site, repeatable_secrets(site, 0)), get_aggregator("flood"))
        return (yield from sums(values))

    assert Simulator(site.network).run(added())[0].tolist() == [2**31 - 1, -(2**30) - 9, 0]


def test_a_wrong_mask_is_found_out_by_everybody(monkeypatch):
    """One device has another secret with one other: the devices do not add up to their number."""
    network, right, made_so_far = Network.cycle(6), masks._shared, []

    def wrong(private, other, context, i, j, keys):
        made_so_far.append((i, j))
        found = right(private, other, context, i, j, keys)
        return bytes(KEY) if (i, j) == (1, 4) and made_so_far.count((1, 4)) == 1 else found

    monkeypatch.setattr(masks, "_shared", wrong)
    said = Transcript()
    with pytest.raises(ArithmeticError, match=r"6 devices add up to .* in stage 0: masks have not cancelled"):
        together(network, made(network, SCORES), said=said)
    assert {raw for *_, raw in said.masked}  # it was found in what was heard, not before


def stages_of(said):
    """The rounds in which a root speaks of totals, in their order: on a complete graph one a stage."""
    return sorted({round_ for round_, row, *_ in said.masked if row == 0})


@pytest.fixture
def complete():
    """A complete graph, whose root 0 tells everybody the totals, and what it says when nobody changes anything."""
    network, said = Network.complete(6), Transcript()
    outcomes = together(network, made(network, SCORES, grid="logit"), said=said)
    assert len({*thresholds(outcomes)}) == 1
    return network, said


def test_who_tells_two_devices_different_totals_is_found_by_its_neighbours():
    """In the last stage, and the root tells each the digest that it wants to see: the two have a link of their own."""
    network, said, heard = Network.complete(6), Transcript(), Transcript()
    noisy = {"grid": "logit", "epsilon": 2.0, "width": 3}  # which asks as often whatever the totals are
    together(network, made(network, SCORES, **noisy), said=said)
    last, end = stages_of(said)[-1], said[-1][0]

    def change(round_, sender, receiver, value):
        if (round_, sender, receiver) == (last, 0, 3):
            value[1] += 1
        if round_ == end and sender == 0:
            (raw,) = [raw for at, row, *_, raw in heard if (at, row) == (end, receiver)]
            return np.frombuffer(raw, value.dtype)
        return value

    with pytest.raises(ValueError, match="has heard other totals than its neighbour: somebody tells different devices"):
        together(network, made(network, SCORES, **noisy), change, heard)


def test_who_tells_different_totals_earlier_learns_nothing_from_the_next_stage():
    """The hub of a star, with nobody else to ask: device 3 would count at thresholds of its own. Masks then differ."""
    network, said = Network.star(6), Transcript()
    together(network, made(network, SCORES, grid="logit"), said=said)
    second = stages_of(said)[1]

    def change(round_, sender, receiver, value):
        if round_ == second and sender == 0 and receiver == 3:
            value[1:] = np.linspace(0, value[-1], len(value) - 1).astype(value.dtype)
        return value

    heard = Transcript()
    with pytest.raises(ArithmeticError, match="in stage 2: masks have not cancelled"):
        together(network, made(network, SCORES, grid="logit"), change, heard)
    words = {row: np.frombuffer(raw, "<i4") for round_, row, *_, raw in heard.masked if round_ == second + 1}
    assert len(words) == 5  # the leaves' masked counts of stage 2 are all that the hub has
    assert min(np.abs(one.astype(np.int64)).max() for one in words.values()) > 2**20


def test_totals_that_do_not_ascend_are_an_error(complete):
    network, said = complete
    second = stages_of(said)[1]

    def change(round_, sender, receiver, value):
        if round_ == second and sender == 0:
            value[1:] = value[1:][::-1]
        return value

    with pytest.raises(ArithmeticError, match="at ascending thresholds do not ascend: somebody has changed a sum"):
        together(network, made(network, SCORES, grid="logit"), change)


# --- keys -------------------------------------------------------------------------------------------------------------


def strings(site, context, run=0):
    """What every device says of its key, signed."""
    alone = [replace(site, here=np.array([row])) for row in range(site.devices)]
    asked = [agree_on_masks(one, secrets_of(site.network, row, run, context)) for row, one in enumerate(alone)]
    return [next(protocol).packets[0] for protocol in asked]


LOW = (bytes(KEY), bytes([1]) + bytes(KEY - 1))  # points whose secret everybody knows

REFUSED = {
    "forged": (lambda own, site, row: own[:KEY][::-1] + own[KEY:], "device 2 was not signed by it for this run"),
    "another signer": (
        lambda own, site, row: own[:KEY] + signer("a stranger")(b""),
        "device 2 was not signed by it for this run",
    ),
    "replayed": (
        lambda own, site, row: strings(site, b"another run")[row],
        "device 2 was not signed .* of another run",
    ),
    "of another row": (lambda own, site, row: strings(site, b"a run")[3], "device 2 was not signed by it"),
    "missing": (lambda own, site, row: b"", "device 2 has told no key of 32 bytes, got 0"),
    "short": (lambda own, site, row: own[:31], "device 2 has told no key of 32 bytes, got 31"),
    "unsigned": (lambda own, site, row: own[:KEY], "device 2 was not signed by it"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_keys_forged_replayed_or_of_another_run_are_refused(case):
    """By every device, by name, and before anything that depends on scores is said."""
    site = site_of(5)
    replaced, words = REFUSED[case]
    everybody = strings(site, b"a run")
    everybody[2] = replaced(everybody[2], site, 2)
    for row in (0, 1, 4):
        with pytest.raises(KeyRefused, match=words):
            agreed(replace(site, here=np.array([row])), secrets_of(site.network, row), everybody)


def test_a_relay_that_changes_a_key_ends_the_run_before_any_masked_number():
    network, said = Network.chain(5), Transcript()
    own = strings(Site.everywhere(network, np.ones((5, 1), dtype=np.int64)), b"a run")[2]

    def change(round_, sender, receiver, value):
        other = own[:KEY][::-1]
        if isinstance(value, bytes) and (sender, receiver) == (3, 4):
            return value.replace(own[:KEY], other)
        if isinstance(value, bytes) and (sender, receiver) == (4, 3):  # it knows what device 4 will say, and ignores it
            return value.replace(other, own[:KEY])
        return value

    with pytest.raises(KeyRefused, match="the key that came as that of device 2 was not signed by it"):
        together(network, made(network, SCORES[:5]), change, said)
    assert said
    assert not said.masked


def test_a_key_that_two_devices_tell_is_refused_where_nobody_signs():
    site = site_of(5)
    secrets = repeatable_secrets(site, 0)
    everybody = [next(agree_on_masks(site, secrets)).packets[row] for row in range(5)]
    with pytest.raises(KeyRefused, match="two devices have told the same key"):
        agreed(site, secrets, [*everybody[:4], everybody[0]])


@pytest.mark.parametrize("point", LOW)
def test_a_point_of_low_order_is_refused(point):
    """Also if it is signed: the secret would be known to everybody."""
    site = site_of(5)
    everybody = strings(site, b"a run")
    context = masks.run_context(site, b"a run")
    everybody[2] = point + signer(site.network.ids[2])(masks._signed_part(context, 2, point))
    with pytest.raises(KeyRefused, match=r"the key of one of devices 0 and 2 is none"):
        agreed(replace(site, here=np.array([0])), secrets_of(site.network, 0), everybody)


def test_the_context_of_a_run_is_of_its_devices_and_its_name():
    def context(names, name=b"a run"):
        network = Network.from_pairs(names, [*itertools.pairwise(names)])
        return masks.run_context(Site.everywhere(network, np.ones((len(names), 1), dtype=np.int64)), name)

    assert context(["a", "b", "c"]) == context(["a", "b", "c"])
    found = {
        context(["a", "b", "c"]),
        context(["a", "b", "d"]),
        context(["a", "bc"]),
        context(["ab", "c"]),
        context(["a", "b", "c"], b"another"),
    }
    assert len(found) == 5


# --- size -------------------------------------------------------------------------------------------------------------


def test_a_million_devices_are_refused_at_once_with_the_reason():
    devices = 1_000_000
    network, samples = Network.chain(devices), Samples.from_flat(np.zeros(devices), np.ones(devices, dtype=np.int64))
    words = rf"up to {masks.MOST:,} devices, got 1,000,000: each hears everybody's key, megabytes"
    started = time.perf_counter()
    with pytest.raises(ValueError, match=words):
        calibrate_batch(samples, network, [0.1], "p-dcp")
    assert time.perf_counter() - started < 5  # keys of all would take hours


@pytest.mark.slow
def test_a_device_among_a_thousand_agrees_on_all_secrets_within_a_second(monkeypatch):
    """Each with each, which is more than the mask graph of so many asks for."""
    monkeypatch.setattr(masks, "COMPLETE", 1000)
    site = Site.everywhere(Network.star(1000), np.ones((1000, 1), dtype=np.int64))
    secrets = repeatable_secrets(site, 0)
    everybody = [*map(next(agree_on_masks(site, secrets)).packets.__getitem__, range(1000))]
    one = Site(site.network, np.array([500]), site.sizes)
    started = time.perf_counter()
    found = agreed(one, Secrets(secrets.seeds[500:501], secrets.context), everybody)
    agreeing = time.perf_counter() - started
    found.at(0, 9)
    print(f"{agreeing:.3f} s for keys, {time.perf_counter() - started - agreeing:.4f} s a stage")
    assert len(found.pairs) == 999
    assert agreeing < 1
