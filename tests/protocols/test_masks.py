"""Masks hide everything but the total over all devices, cancel, and belong to one attempt; forged keys are refused."""

import itertools
import time
from collections import Counter
from dataclasses import replace
from functools import cache
from typing import ClassVar

import numpy as np
import pytest
from scipy import stats

from conformesh import Network
from conformesh.engines import Simulator
from conformesh.kernels.weighted_scores import WeightedScores
from conformesh.pipeline.solver import solve_draws
from conformesh.protocols import masks
from conformesh.protocols.aggregate import get_aggregator
from conformesh.protocols.block import Block
from conformesh.protocols.masks import KEY_BYTES, KeyRefused, MaskedSums, Masks, Secrets, agree_on_masks, derive_secret
from conformesh.protocols.messages import GatheredStrings, Packets
from tests.protocols.alone import (
    Transcript,
    made,
    repeatable_secrets,
    secrets_of,
    signer,
    thresholds,
    together,
)

WHOLE = 2**32


def site_of(devices):
    return Block.everywhere(Network.complete(devices), np.ones((devices, 1), dtype=np.int64))


def agreed(block, secrets, everybody=None, claim=b""):
    """Run the agreement on masks; `everybody` are the strings of all devices, by default those of the local devices."""
    protocol = agree_on_masks(block, secrets, claim)
    asked = next(protocol)
    packets = asked.packets if everybody is None else Packets.of(everybody)
    known = np.ones(block.devices, dtype=bool)
    try:
        protocol.send(GatheredStrings(packets, known, ~known, sealed=True))
    except StopIteration as end:
        return end.value
    raise AssertionError("masks are agreed on by one question")


def agreed_apart(block, run=0):
    """The masks of every device as each computes them on its own, on a mesh."""
    everybody = strings(block, b"a run", run)
    return [
        agreed(replace(block, rows=np.array([row])), secrets_of(block.network, row, run), everybody).masks
        for row in range(block.devices)
    ]


# --- what masks hide --------------------------------------------------------------------------------------------------

GRAPHS = {  # edges of the mask graph, the coalition, and the components of the others
    "complete": ([(0, 1), (0, 2), (0, 3), (1, 2), (1, 3), (2, 3)], {3}, [{0, 1, 2}]),
    "complete, no coalition": ([(0, 1), (0, 2), (1, 2)], set(), [{0, 1, 2}]),
    "complete, two curious": ([*itertools.combinations(range(5), 2)], {0, 3}, [{1, 2, 4}]),
    "path, cut": ([(0, 1), (1, 2), (2, 3), (3, 4)], {2}, [{0, 1}, {3, 4}]),
    "star, its hub curious": ([(0, 1), (0, 2), (0, 3), (2, 3)], {0}, [{1}, {2, 3}]),
}
SMALL = 4  # masks are multiples of 2^32/4, a group of four: all of them can be tried
STEP = WHOLE // SMALL


class Chosen:
    """A keystream whose every word is the one chosen for its secret."""

    words_by_secret: ClassVar = {}

    def __init__(self, secret, number):
        self.word = self.words_by_secret[secret] * STEP

    def words(self, count):
        return np.full(count, self.word, dtype=np.uint32)


class Sent:
    """An aggregator that records what every device sends, and returns the sums."""

    def __init__(self):
        self.words = []

    def __call__(self, words, largest):
        yield from ()
        self.words.append(words[:, 1].copy())  # the first number is the one that is checked
        return np.repeat(words.sum(axis=0, dtype=np.uint32)[None], len(words), axis=0)


def finished(protocol):
    """Run a protocol that asks nothing."""
    try:
        next(protocol)
    except StopIteration as end:
        return end.value
    raise AssertionError("it asks something")


def views(monkeypatch, edges, coalition, x, masks_of=Masks, revealed=True):
    """What a coalition sees of the others in a release: how often each view comes up, over all masks of the others.

    A view is y_i less the pair masks that the coalition knows and, with `revealed`, the self-mask b_i of each other
    device. The masks of the coalition are fixed. All of it comes out of `MaskedSums.release`.
    """
    devices = 1 + max(map(max, edges))
    secrets = {edge: bytes([at + 1]) * KEY_BYTES for at, edge in enumerate(edges)}
    selves = [bytes([100 + k]) * KEY_BYTES for k in range(devices)]
    others = [k for k in range(devices) if k not in coalition]
    between = [edge for edge in edges if not coalition & {*edge}]
    chosen = {derive_secret(secret, b"", b"stage"): at % SMALL for at, secret in enumerate(secrets.values())}
    chosen |= dict.fromkeys(selves, 1)
    free = [derive_secret(secrets[edge], b"", b"stage") for edge in between] + [selves[k] for k in others]
    monkeypatch.setattr(masks, "Keystream", Chosen)
    monkeypatch.setattr(Chosen, "words_by_secret", chosen)
    made_masks = masks_of(devices, tuple((i, j, secrets[i, j]) for i, j in edges), tuple(selves))
    known = {  # pair masks that the coalition can subtract
        k: sum(
            (1 if k == i else -1) * chosen[derive_secret(secrets[i, j], b"", b"stage")]
            for i, j in edges
            if k in (i, j) and coalition & {i, j}
        )
        for k in others
    }
    counts, block = np.array(x, dtype=np.int64)[:, None] * STEP, site_of(devices)
    seen = Counter()
    monkeypatch.setattr(masks, "LARGEST_MASKED_SUM", 2**40)  # so that no number of this group saturates
    for words in itertools.product(range(SMALL), repeat=len(free)):
        chosen.update(zip(free, words, strict=True))
        sent = Sent()
        sums = MaskedSums(block, made_masks, sent)
        monkeypatch.setattr(sums, "_check_totals", lambda totals: totals)
        finished(sums.release(counts, np.zeros_like(counts), lambda: None))
        y, b = (words.astype(np.int64) // STEP for words in sent.words)
        view = [tuple(int(y[k] - known[k]) % SMALL for k in others)]
        seen[tuple(view + [tuple(int(b[k]) % SMALL for k in others)] * revealed)] += 1
    return others, seen


def assert_hides(others, seen, parts, x):
    """The view is uniform among those with the right sum over each of the parts, and no other view occurs."""
    differences = Counter()
    for (y, b), often in seen.items():
        differences[tuple((one - other) % SMALL for one, other in zip(y, b, strict=True))] += often
    sums = [sum(x[k] for k in part) % SMALL for part in parts]
    for difference in differences:
        assert [sum(difference[others.index(k)] for k in part) % SMALL for part in parts] == sums
    assert len(differences) == SMALL ** sum(len(part) - 1 for part in parts)
    assert len({*seen.values()}) == 1
    assert len(seen) == len(differences) * SMALL ** len(others)  # the self-masks are uniform, whatever the differences


X = [1, 3, 2, 0, 2]


@pytest.mark.parametrize("name", ["complete", "complete, no coalition"])
def test_masks_hide_everything_but_the_total_over_all_devices(monkeypatch, name):
    """Exact, over all masks of a group of four: given the total of the others, a coalition's view is uniform."""
    edges, coalition, parts = GRAPHS[name]
    x = X[: 1 + max(map(max, edges))]
    others, seen = views(monkeypatch, edges, coalition, x)
    assert_hides(others, seen, parts, x)
    moved = [*x]  # the same total, other numbers: the same law, so nobody can tell them apart
    moved[others[0]], moved[others[1]] = moved[others[0]] + 1, moved[others[1]] - 1
    assert views(monkeypatch, edges, coalition, moved)[1] == seen


@pytest.mark.parametrize("name", ["complete", "complete, no coalition"])
def test_nothing_is_readable_before_the_reveal(monkeypatch, name):
    """Exact: y_i alone are uniform and independent, whatever the numbers, so that a loss before the reveal is free."""
    edges, coalition, _ = GRAPHS[name]
    x = X[: 1 + max(map(max, edges))]
    others, seen = views(monkeypatch, edges, coalition, x, revealed=False)
    assert len(seen) == SMALL ** len(others)
    assert len({*seen.values()}) == 1
    assert views(monkeypatch, edges, coalition, [0] * len(x), revealed=False)[1] == seen


class NoSelfMask(Masks):
    """Planted: no self-masks."""

    def self_masks(self, numbers):
        return 0 * super().self_masks(numbers)


class OneSign(Masks):
    """Planted: adds every mask on both sides."""

    def at(self, stage, numbers, heard=b""):
        both = [(place, -1, secret) for plus, minus, secret in self.pairs for place in (plus, minus)]
        return Masks(self.devices, tuple(both)).at(stage, numbers, heard)


def test_without_self_masks_the_total_is_readable_before_any_reveal_and_charge(monkeypatch):
    """The planted variant fails the test above: every view before the reveal adds up to the total."""
    edges, coalition, _ = GRAPHS["complete"]
    x = X[:4]
    others, seen = views(monkeypatch, edges, coalition, x, NoSelfMask, revealed=False)
    assert len(seen) < SMALL ** len(others)
    assert {sum(y) % SMALL for (y,) in seen} == {sum(x[k] for k in others) % SMALL}


def test_in_a_sparse_mask_graph_a_device_among_curious_neighbours_stands_bare(monkeypatch):
    """The planted variant fails the test above: the number of device 1, all of whose mask neighbours are curious."""
    edges, coalition, parts = GRAPHS["star, its hub curious"]
    others, seen = views(monkeypatch, edges, coalition, X[:4])
    with pytest.raises(AssertionError):
        assert_hides(others, seen, [{*others}], X[:4])
    assert_hides(others, seen, parts, X[:4])  # what is readable: each component of the mask graph
    assert {(y[0] - b[0]) % SMALL for y, b in seen} == {X[1]}


def test_an_enumeration_notices_a_wrong_sign(monkeypatch):
    edges, coalition, parts = GRAPHS["complete"]
    others, seen = views(monkeypatch, edges, coalition, X[:4], OneSign)
    with pytest.raises(AssertionError):
        assert_hides(others, seen, parts, X[:4])


class Narrow(Masks):
    """Planted: masks of 28 bits."""

    def at(self, stage, numbers, heard=b""):
        total = np.zeros((self.devices, numbers), dtype=np.int64)
        for plus, minus, secret in self.pairs:
            mask = Masks(1, ((0, -1, secret),)).at(stage, numbers, heard)[0] & np.uint32(2**28 - 1)
            if plus >= 0:
                total[plus] += mask
            if minus >= 0:
                total[minus] -= mask
        return (total % WHOLE).astype(np.uint32)


class Again(Masks):
    """Planted: the masks of the first stage in every stage."""

    def at(self, stage, numbers, heard=b""):
        return super().at(0, numbers, b"")


PLANTED = {"a sign": OneSign, "four bits": Narrow, "stages": Again}
STAGES = [np.array([[3], [40], [0], [7], [120]]), np.array([[9], [2], [5], [70], [1]])]
RUNS = 400


@cache
def agreements():
    """The masks of five devices in many attempts, each with fresh keys."""
    block = site_of(5)
    return [agreed_apart(block, run) for run in range(RUNS)]


def stage_views(wrong=Masks):
    """What device 2 can make of all y_i in two stages, in many attempts: (attempts, stages, others)."""
    found = []
    for devices in agreements():
        seen = np.zeros((2, 5), dtype=np.int64)
        for row, right in enumerate(devices):
            own = wrong(1, right.pairs, right.selves)
            # Device 2 knows the secrets that it shares: those of its own masks.
            known = wrong(1, tuple(pair for pair in right.pairs if pair[2] in {p[2] for p in devices[2].pairs}))
            for stage, x in enumerate(STAGES):
                seen[stage, row] = x[row, 0] + int(own.at(stage, 1)[0, 0]) - int(known.at(stage, 1)[0, 0])
        found.append(seen[:, [0, 1, 3, 4]] % WHOLE)
    return np.array(found)


def imagined(seed):
    """The same from nothing but the total of the others: uniform numbers that add up to it."""
    rng = np.random.default_rng(seed)
    free = rng.integers(0, WHOLE, (RUNS, 2, 3))
    totals = np.array([x[[0, 1, 3, 4], 0].sum() for x in STAGES])
    return np.concatenate([free, ((totals - free.sum(axis=2)) % WHOLE)[:, :, None]], axis=2)


def features(view):
    """Columns of 16 kinds each: first and last four bits of every number, of all sums, and of differences of stages."""
    sums = [
        view[:, :, [*which]].sum(axis=2) % WHOLE for n in (2, 3, 4) for which in itertools.combinations(range(4), n)
    ]
    words = np.concatenate([view.reshape(RUNS, -1), *sums, (view[:, 1] - view[:, 0]) % WHOLE], axis=1)
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


def test_a_view_simulated_from_the_total_alone_is_like_the_real_one():
    """Two samples of 400 attempts, 68 chi-square tests: false alarm below 1e-6 in all; seeds are fixed."""
    assert chance_of(features(stage_views()), features(imagined(1))) > 1e-6


@pytest.mark.parametrize("mistake", PLANTED)
def test_such_a_test_notices_a_planted_mistake(mistake):
    """A sign, 28 of 32 bits, or the masks of another stage: each is far beyond any false alarm."""
    assert chance_of(features(stage_views(PLANTED[mistake])), features(imagined(1))) < 1e-12


# --- sums -------------------------------------------------------------------------------------------------------------

SCORES = [np.random.default_rng(k).random(20 + 3 * k) for k in range(6)]


@pytest.mark.parametrize("apart", [True, False])
def test_masks_cancel_over_all_devices_and_over_no_part_of_them(apart):
    """Of devices that compute their masks apart, as on a mesh, and in one process, as in a simulation."""
    block = site_of(8)
    if apart:
        devices = agreed_apart(block, 3)
        assert {len(one.pairs) for one in devices} == {7}  # each shares a secret with each
    else:
        one = agreed(block, repeatable_secrets(block, 3)).masks
        assert (one.pairs, one.local is None) == ((), False)
        devices = [one]

    def at(*given):
        return np.concatenate([one.at(*given) for one in devices])

    for stage in range(3):
        words = at(stage, 50)
        assert (words.sum(axis=0, dtype=np.uint32) == 0).all()
        assert len(np.unique(words)) > 390  # no mask is 0, none occurs twice
        for n in range(1, 8):
            for part in itertools.combinations(range(8), n):
                assert (words[[*part]].sum(axis=0, dtype=np.uint32) != 0).sum() > 45
    assert not np.array_equal(at(0, 50), at(1, 50))
    assert not np.array_equal(at(1, 50, b"a total"), at(1, 50, b"another"))
    selves = np.concatenate([one.self_masks(50) for one in devices])
    assert len(np.unique(selves)) == 400


def test_a_block_of_devices_and_devices_alone_have_masks_that_cancel():
    """As in a simulation over several processes: pairs within a process follow from its seeds, others from keys."""
    block = site_of(6)
    secrets = repeatable_secrets(block, 3)
    everybody = [next(agree_on_masks(block, secrets)).packets[row] for row in range(6)]
    blocks = [
        agreed(
            replace(block, rows=np.array(rows)),
            Secrets(tuple(secrets.seeds[r] for r in rows), secrets.context),
            everybody,
        )
        for rows in ([0, 3, 4], [1], [2, 5])
    ]
    words = np.concatenate([block.masks.at(0, 50) for block in blocks])
    assert (words.sum(axis=0, dtype=np.uint32) == 0).all()
    assert len(np.unique(words)) == 300


@pytest.mark.parametrize("aggregate", ["tree", "flood"])
def test_devices_alone_say_and_find_what_a_simulation_does(aggregate):
    network = Network.chain(6)
    outcomes = together(network, made(network, SCORES, aggregate=aggregate, grid="logit"))
    whole = solve_draws(WeightedScores.of(SCORES), network, [0.1], "p-dcp", aggregate=aggregate, grid="logit").outcome
    assert (thresholds(outcomes) == whole.thresholds[0, 0, 0]).all()
    assert {str(outcome.certificates[0][0]) for outcome in outcomes} == {str(whole.certificates[0][0])}
    assert outcomes[0].sizes.tolist() == [[sum(map(len, SCORES))]]


def test_sums_may_be_negative_and_as_large_as_31_bits():
    block = site_of(4)
    values = np.array([[2**29, -5, 0], [2**29, -7, 0], [2**29, 3, 0], [2**29 - 1, -(2**30), 0]])

    for way in ("flood", "tree"):

        def added(way=way):
            masks = agreed(block, repeatable_secrets(block, 0)).masks
            sums = yield from MaskedSums.over(block, masks, get_aggregator(way))
            return (yield from sums(values))

        assert Simulator(block.network).run(added())[0].tolist() == [2**31 - 1, -(2**30) - 9, 0]


@pytest.mark.parametrize("way", ["tree", "flood"])
def test_counts_of_a_release_saturate_instead_of_raising(way):
    """A device with more scores than fit adds as many as fit: the sum stays below 2^31, noise included."""
    block = site_of(4)
    most = masks.LARGEST_MASKED_SUM // 8
    counts = np.array([[2**40, 5], [most, 6], [most + 1, 7], [3, 8]])
    noise = np.array([[10, -1], [-3, 0], [0, -30], [1, 2]])

    def added():
        sums = yield from MaskedSums.over(block, agreed(block, repeatable_secrets(block, 0)).masks, get_aggregator(way))
        return (yield from sums.release(counts, noise, lambda: None))

    assert Simulator(block.network).run(added())[0].tolist() == [3 * most + 3 + 8, 26 - 29]


def test_an_attempt_releases_once():
    """A second reveal would need other self-masks; the same ones would show the difference of two sums."""
    block, sent = site_of(3), Sent()
    sums = MaskedSums(block, agreed(block, repeatable_secrets(block, 0)).masks, sent)
    zeros = np.zeros((3, 1), dtype=np.int64)
    finished(sums.release(zeros, zeros, lambda: None))
    with pytest.raises(RuntimeError, match="an attempt reveals once"):
        finished(sums.release(zeros, zeros, lambda: None))
    assert len(sent.words) == 2


def test_a_wrong_mask_is_found_out_by_everybody(monkeypatch):
    """One device has another secret with one other: the devices do not add up to their number."""
    network, right, made_so_far = Network.cycle(6), masks._pair_secret, []

    def wrong(private, other, flooded, i, j):
        made_so_far.append((i, j))
        found = right(private, other, flooded, i, j)
        return bytes(KEY_BYTES) if (i, j) == (1, 4) and made_so_far.count((1, 4)) == 1 else found

    monkeypatch.setattr(masks, "_pair_secret", wrong)
    said = Transcript()
    with pytest.raises(ArithmeticError, match=r"6 devices add up to .* in stage 0: masks have not cancelled"):
        together(network, made(network, SCORES), said=said)
    assert {raw for *_, raw in said.masked}  # it was found in what was heard, not before


def test_devices_that_received_different_claims_have_masks_that_do_not_cancel():
    """Device 3 signs two claims with one key, and sends one to device 0 and the other to devices 1 and 2.

    Were the masks the same, device 0 would release another epoch in the same sum. So its masks with 1 and 2 must
    differ, while those between 1 and 2, which received the same, cancel.
    """
    block = site_of(4)

    def string(row, claim):
        alone = replace(block, rows=np.array([row]))
        return next(agree_on_masks(alone, secrets_of(block.network, row), claim)).packets[0]

    same = [string(row, b"epoch 1") for row in range(3)]
    honest = [*same, string(3, b"epoch 1")]
    floods = {0: [*same, string(3, b"epoch 2")], 1: honest, 2: honest}
    pairs = {}
    for row, everybody in floods.items():
        alone = replace(block, rows=np.array([row]))
        masks_of = agreed(alone, secrets_of(block.network, row), everybody, b"epoch 1").masks
        others = [other for other in range(4) if other != row]
        pairs |= {(row, other): secret for other, (*_, secret) in zip(others, masks_of.pairs, strict=True)}
    assert pairs[1, 2] == pairs[2, 1]
    assert pairs[0, 1] != pairs[1, 0]
    assert pairs[0, 2] != pairs[2, 0]


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
    """In the reveal, and the root sends each the digest that it expects: the two have a link of their own."""
    network, said, heard = Network.complete(6), Transcript(), Transcript()
    noisy = {"grid": "logit", "epsilon": 2.0, "cells": 8}
    together(network, made(network, SCORES, **noisy), said=said)
    last, end = stages_of(said)[-1], said[-1][0]

    def change(round_, sender, receiver, value):
        if (round_, sender, receiver) == (last, 0, 3):
            value[1] += 1
        if round_ == end and sender == 0:
            (raw,) = [raw for at, row, *_, raw in heard if (at, row) == (end, receiver)]
            return np.frombuffer(raw, value.dtype)
        return value

    with pytest.raises(
        ValueError, match="received other totals than its neighbour: a device sends different sums to different"
    ):
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

    with pytest.raises(ArithmeticError, match="at ascending thresholds do not ascend: a sum was changed on the way"):
        together(network, made(network, SCORES, grid="logit"), change)


# --- keys -------------------------------------------------------------------------------------------------------------


CLAIM = b"epoch 7, no release"


def strings(block, context, run=0, claim=b""):
    """What every device sends of its key and its claim, signed."""
    alone = [replace(block, rows=np.array([row])) for row in range(block.devices)]
    asked = [agree_on_masks(one, secrets_of(block.network, row, run, context), claim) for row, one in enumerate(alone)]
    return [next(protocol).packets[0] for protocol in asked]


LOW = (bytes(KEY_BYTES), bytes([1]) + bytes(KEY_BYTES - 1))  # points whose secret everybody knows

REFUSED = {
    "forged": (
        lambda own, block, row: own[:KEY_BYTES][::-1] + own[KEY_BYTES:],
        "device 2 was not signed by it for this attempt",
    ),
    "another claim": (
        lambda own, block, row: own[:KEY_BYTES] + CLAIM[::-1] + own[KEY_BYTES + len(CLAIM) :],
        "device 2 was not signed by it for this attempt",
    ),
    "another signer": (
        lambda own, block, row: own[: KEY_BYTES + len(CLAIM)] + signer("a stranger")(b""),
        "device 2 was not signed by it for this attempt",
    ),
    "replayed": (
        lambda own, block, row: strings(block, b"another run", claim=CLAIM)[row],
        "device 2 was not signed .* of another attempt",
    ),
    "of other devices": (
        lambda own, block, row: strings(site_of(4), b"a run", claim=CLAIM)[row],
        "device 2 was not signed .* of another attempt",
    ),
    "of another row": (
        lambda own, block, row: strings(block, b"a run", claim=CLAIM)[3],
        "device 2 was not signed by it",
    ),
    "missing": (lambda own, block, row: b"", "device 2 sent 0 bytes instead of a key and a claim of 51"),
    "short": (lambda own, block, row: own[:50], "device 2 sent 50 bytes instead of a key and a claim of 51"),
    "unsigned": (lambda own, block, row: own[: KEY_BYTES + len(CLAIM)], "device 2 was not signed by it"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_keys_and_claims_forged_replayed_or_of_another_attempt_are_refused(case):
    """By every device, by name, and before anything that depends on scores is sent."""
    block = site_of(5)
    replaced, words = REFUSED[case]
    everybody = strings(block, b"a run", claim=CLAIM)
    everybody[2] = replaced(everybody[2], block, 2)
    for row in (0, 1, 4):
        with pytest.raises(KeyRefused, match=words):
            agreed(replace(block, rows=np.array([row])), secrets_of(block.network, row), everybody, CLAIM)


def test_claims_of_all_devices_arrive_with_their_keys():
    block = site_of(5)
    said = [strings(block, b"a run", claim=bytes([row]) * 6)[row] for row in range(5)]
    for row in (0, 3):
        found = agreed(replace(block, rows=np.array([row])), secrets_of(block.network, row), said, bytes([row]) * 6)
        assert found.claims == tuple(bytes([k]) * 6 for k in range(5))


def test_a_relay_that_changes_a_key_ends_the_run_before_any_masked_number():
    network, said = Network.chain(5), Transcript()
    own = strings(Block.everywhere(network, np.ones((5, 1), dtype=np.int64)), b"a run")[2]

    def change(round_, sender, receiver, value):
        other = own[:KEY_BYTES][::-1]
        if isinstance(value, bytes) and (sender, receiver) == (3, 4):
            return value.replace(own[:KEY_BYTES], other)
        if isinstance(value, bytes) and (sender, receiver) == (4, 3):  # it knows what device 4 will say, and ignores it
            return value.replace(other, own[:KEY_BYTES])
        return value

    with pytest.raises(KeyRefused, match="the key received as that of device 2 was not signed by it"):
        together(network, made(network, SCORES[:5]), change, said)
    assert said
    assert not said.masked


def test_a_key_that_two_devices_tell_is_refused_where_nobody_signs():
    block = site_of(5)
    secrets = repeatable_secrets(block, 0)
    everybody = [next(agree_on_masks(block, secrets)).packets[row] for row in range(5)]
    with pytest.raises(KeyRefused, match="two devices sent the same key"):
        agreed(block, secrets, [*everybody[:4], everybody[0]])


@pytest.mark.parametrize("point", LOW)
def test_a_point_of_low_order_is_refused(point):
    """Also if it is signed: the secret would be known to everybody."""
    block = site_of(5)
    everybody = strings(block, b"a run")
    context = masks.run_context(block, b"a run")
    everybody[2] = point + signer(block.network.ids[2])(masks._signed_part(context, 2, point, b""))
    with pytest.raises(KeyRefused, match=r"the key of device 0 or 2 is invalid"):
        agreed(replace(block, rows=np.array([0])), secrets_of(block.network, 0), everybody)


def test_the_context_of_a_run_is_of_its_devices_and_its_name():
    def context(names, name=b"a run"):
        network = Network.from_pairs(names, [*itertools.pairwise(names)])
        return masks.run_context(Block.everywhere(network, np.ones((len(names), 1), dtype=np.int64)), name)

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


@pytest.mark.parametrize("options", [{}, {"epsilon": 1.0}])
def test_a_million_devices_are_refused_at_once_with_the_reason(options):
    devices = 1_000_000
    network, samples = (
        Network.chain(devices),
        WeightedScores.from_flat(np.zeros(devices), np.ones(devices, dtype=np.int64)),
    )
    words = rf"up to {masks.MOST_MASKED_DEVICES:,} devices, got 1,000,000: every device must share a secret with every"
    started = time.perf_counter()
    with pytest.raises(ValueError, match=words):
        solve_draws(samples, network, [0.1], "p-dcp", **options)
    assert time.perf_counter() - started < 5  # keys of all would take hours


def test_a_device_among_a_thousand_computes_all_its_masks_within_a_second():
    """999 key exchanges, and masks for 130 numbers; measured 0.04 s on one quiet core."""
    block = Block.everywhere(Network.star(1000), np.ones((1000, 1), dtype=np.int64))
    secrets = repeatable_secrets(block, 0)
    everybody = [*map(next(agree_on_masks(block, secrets)).packets.__getitem__, range(1000))]
    one = Block(block.network, np.array([500]), block.sizes)
    started = time.perf_counter()
    found = agreed(one, Secrets(secrets.seeds[500:501], secrets.context), everybody).masks
    agreeing = time.perf_counter() - started
    found.at(0, 130)
    found.self_masks(130)
    print(f"{agreeing:.3f} s for keys, {time.perf_counter() - started - agreeing:.4f} s for masks")
    assert len(found.pairs) == 999
    assert time.perf_counter() - started < 1
