"""Replies of a tree: every number comes back from its bits, and no bytes break whoever reads them."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from conformesh.kernels import replies
from conformesh.kernels.keys import from_keys, to_keys
from conformesh.kernels.replies import (
    BEGIN,
    BELOW,
    BOTH,
    COUNTED,
    EACH,
    END,
    EVEN,
    HIGH,
    HIGHEST,
    LEVEL,
    LEVELS,
    LIMIT,
    LOW,
    LOWEST,
    NOWHERE,
    OUTSIDE,
    POINTS,
    SIDE,
    USUAL,
)
from tests.compiled import compile_replies

floats = st.floats(allow_nan=False)
some_floats = st.one_of(
    st.lists(floats, max_size=30),
    st.lists(st.floats(allow_nan=False, width=32), max_size=30),
    st.lists(
        st.sampled_from([0.0, -0.0, 1.0, math.inf, -math.inf, 5e-324, -5e-324, 1.7976931348623157e308]), max_size=9
    ),
    st.lists(st.floats(0.25, 0.75), max_size=30),
    st.lists(st.integers(-40, 40).map(lambda i: i * 5e-324), max_size=30),
)


def key(value):
    return int(to_keys([value])[0])


def buffer(count=40):
    return np.zeros(replies.room_for_keys(count) + 64, np.uint8)


def ask(low=LOWEST, high=HIGHEST, side=BOTH, limit=0, counted=0, level=LEVELS // 2, points=7, even=False):
    row = np.zeros(EACH + 1, np.int64)
    row[[BEGIN, END, SIDE, LIMIT, COUNTED, LEVEL]] = low, high, side, limit, counted, level
    row[POINTS], row[USUAL], row[EACH], row[EVEN] = points, 50, 1, even
    return row


def samples(devices):
    """Sorted scores of each device as their bits, and where each begins."""
    offsets = np.cumsum([0, *map(len, devices)])
    held = [np.sort(np.asarray(own, float) + 0.0) for own in devices]
    return np.concatenate([*held, np.empty(0)]).view(np.int64), offsets


def replied(asks, devices, children=(), loops=replies, weights=None, count_bits=0):
    """What each device replies to all questions, with the strings of its children."""
    bits, offsets = samples(devices)
    strings = [string for each in children for string in each]
    cuts = np.cumsum([0, *map(len, strings)])
    child_cuts = np.cumsum([0, *map(len, children)]) if children else np.zeros(len(devices) + 1, np.int64)
    data, ends, numbers, wrong = loops.replies(
        np.array(asks),
        bits,
        np.empty(0, np.int64) if weights is None else weights,
        offsets,
        1,
        np.arange(len(devices)),
        np.frombuffer(bytearray().join(strings), np.uint8),  # to be written to, as in a protocol: compiled once
        cuts,
        child_cuts,
        count_bits,
    )
    said = [data[a:b].tobytes() for a, b in itertools.pairwise(ends.tolist())]
    return said, numbers.tolist(), wrong


def root_hears(one, own, strings, loops=replies, count_bits=0):
    """What a root knows of one question, and where each child's string was read up to."""
    bits, _ = samples([own])
    cuts = np.cumsum([0, *map(len, strings)])
    data, places = np.frombuffer(bytearray().join(strings), np.uint8), 8 * cuts[:-1]
    nothing = np.empty(0, np.int64)
    found = loops.heard(one, bits, nothing, 0, len(own), data, places, len(own) + 8 * len(data), count_bits)
    return found, places, cuts


# --- bits -------------------------------------------------------------------------------------------------------------


@given(st.lists(st.tuples(st.integers(0, 2**61), st.integers(0, 40)), max_size=20))
def test_numbers_come_back(pairs):
    out, at = np.zeros(64 + 64 * len(pairs), np.uint8), 0
    for value, low in pairs:
        at = replies.put_gamma(out, at, value)
        at = replies.put_rice(out, at, value & ((64 << low) - 1), low)
        at = replies.put(out, at, value & ((1 << low) - 1), low)
        at = replies.put_count(out, at, value, 62)
    end, at = at, 0
    for value, low in pairs:
        read, at = replies.get_gamma(out, at)
        assert read == value
        read, at = replies.get_rice(out, at, low)
        assert read == value & ((64 << low) - 1)
        read, at = replies.get(out, at, low)
        assert read == value & ((1 << low) - 1)
        read, at = replies.get_count(out, at, 62)
        assert read == value
    assert at == end


@given(st.integers(0, 2**62))
def test_bits_in_a_number(value):
    assert replies.bits_in(value) == value.bit_length()


@given(some_floats, st.booleans(), st.data())
@example([-math.inf, math.inf], True, None)
@example([-1.7976931348623157e308, 0.0, 1.7976931348623157e308], True, None)
def test_keys_come_back(values, apart, data):
    """With ties and without, in a bracket that both sides know, from one neighbouring float to all of them."""
    keys = np.sort(to_keys(values))
    keys = np.unique(keys) if apart else keys
    low, high = LOWEST, HIGHEST
    if len(keys) and data is not None:
        low = data.draw(st.integers(LOWEST, int(keys[0]) - 1))
        high = data.draw(st.integers(int(keys[-1]), HIGHEST))
    out, read = buffer(), np.zeros(len(keys), np.int64)
    end = replies.put_keys(out, 0, keys, len(keys), low, high, int(apart))
    assert replies.get_keys(out, 0, low, high, read, int(apart)) == (len(keys), end)
    assert read.tolist() == keys.tolist()


@given(st.lists(st.integers(1, 2**50), max_size=20), st.booleans())
def test_how_often_comes_back(times, once):
    often = np.ones(len(times), np.int64) if once else np.array(times, np.int64)
    out, read = buffer(), np.zeros(len(times), np.int64)
    end = replies.put_times(out, 0, often, len(often))
    assert replies.get_times(out, 0, read, len(often)) == (0 if (often == 1).all() else len(often), end)
    assert read.tolist() == often.tolist()
    assert end == min(len(often), 1) or (often != 1).any()


@given(some_floats, st.integers(3, 30))
@example([1.7976931348623157e308, -1.7976931348623157e308], 5)
@example([1.797e308, 1.79e308], 3)
@example([5e-324, 1e-323], 9)
def test_points_come_back_within_their_rounding(values, fine):
    """Half a unit: a part of 2**fine of the distance of the finite ends; infinities as they are."""
    x = np.sort(np.asarray(values, float))
    out, read = np.zeros(64 + 10 * len(x), np.uint8), np.zeros(len(x))
    end = replies.put_points(out, 0, x, len(x), fine)
    assert end <= 8 * len(out)
    assert replies.get_points(out, 0, len(x), fine, read) == end
    finite = np.isfinite(x)
    assert (read[~finite] == x[~finite]).all()
    assert (read[finite][1:] >= read[finite][:-1]).all()
    if finite.any():
        unit = replies.unit_of(float(x[finite][0]), float(x[finite][-1]), fine)
        half = math.ldexp(1.0, min(unit - 1, 1020))
        assert (np.abs(read[finite] / 2 - x[finite] / 2) <= half / 2 + 5e-324).all()


@given(floats)
def test_a_key_is_the_float(value):
    both = (np.empty(1, np.int64), None)
    both = (both[0], both[0].view(np.float64))
    assert replies.key_of(value, both) == key(value)
    assert replies.value_of(key(value), both) == value


# --- replies ----------------------------------------------------------------------------------------------------------


@given(st.lists(some_floats, min_size=1, max_size=6), st.data())
def test_theorem_merged_lists_are_the_pooled_sort(devices, data):
    """A parent of all others lists what all of them hold in the bracket, as runs, and counts what lies outside it."""
    pooled = np.sort(np.concatenate([np.asarray(own, float) for own in devices])) + 0.0
    ends = data.draw(st.tuples(floats, floats).map(sorted))
    low, high = map(key, ends)
    one = ask(low, high, limit=10_000, counted=data.draw(st.sampled_from([BELOW, OUTSIDE])))
    said, _, wrong = replied([one], devices[1:]) if len(devices) > 1 else ([], [], -1)
    assert wrong == -1
    found, places, cuts = root_hears(one, devices[0], said)
    assert ((places + 7) >> 3 == cuts[1:]).all()
    inside = pooled[(pooled > ends[0]) & (pooled <= ends[1])]
    keys, times = np.unique(to_keys(inside), return_counts=True)
    below, weight, count = found[:3]
    assert (below, weight, count) == ((pooled <= ends[0]).sum(), len(inside), len(keys))
    if one[COUNTED] == OUTSIDE:
        assert found[11] == (pooled > ends[1]).sum()
    assert found[3][:count].tolist() == keys.tolist()
    assert found[4][:count].tolist() == times.tolist()


@given(st.lists(some_floats, min_size=2, max_size=5), st.integers(1, 12), st.sampled_from([LOW, HIGH]))
def test_theorem_one_side_holds_the_smallest_or_largest(devices, k, side):
    """Each run at least until they weigh k: the k smallest (or largest) of all are among them."""
    one = ask(side=side, limit=k)
    said, _, _ = replied([one], devices[1:])
    found, _, _ = root_hears(one, devices[0], said)
    heard = np.repeat(from_keys(found[3][: found[2]]), found[4][: found[2]])
    pooled = np.sort(np.concatenate([np.asarray(own, float) for own in devices]))
    part = slice(None, k) if side == LOW else slice(-k, None)
    assert heard[part].tolist() == pooled[part].tolist()


@pytest.mark.parametrize("even", [False, True])
@pytest.mark.parametrize("shape", ["normal", "cauchy", "steps", "infinite", "huge", "tiny"])
def test_a_sketch_weighs_what_it_stands_for_and_its_points_are_quantiles(shape, even):
    """Of a single device, whose points are its own scores but for their rounding."""
    rng = np.random.default_rng(3)
    for n in (1, 2, 9, 50, 400):
        x = {
            "normal": rng.normal(size=n),
            "cauchy": rng.standard_cauchy(n),
            "steps": rng.integers(0, 60, n) * 1.0,
            "infinite": rng.choice([-math.inf, *np.arange(60) / 4, math.inf], n, p=[0.2, *[0.01] * 60, 0.2]),
            "huge": (rng.random(n) * 2 - 1) * 1.7976931348623157e308,
            "tiny": rng.integers(-99, 99, n) * 5e-324,
        }[shape]
        one = ask(level=int(0.9 * LEVELS), even=even)
        (string,), (numbers,), _ = replied([one], [x])
        listed, at = replies.get(np.frombuffer(string, np.uint8), 0, 1)
        mass, at = replies.get_gamma(np.frombuffer(string, np.uint8), at)
        assert (listed, mass, numbers) == (0, n, 8)
        points, levels = np.zeros(7), np.zeros(7)
        fine = replies.fineness(n, int(one[LEVEL]), even, 7)
        end = replies.get_points(np.frombuffer(string, np.uint8), at, 7, fine, points)
        assert (end + 7) >> 3 == len(string)
        replies.fill_levels(float(n), 1.0, one[LEVEL] / LEVELS, even, 7, levels)
        exact = np.sort(x)[np.clip(levels.astype(int), 0, n - 1)]
        finite = np.isfinite(exact)
        assert (points[~finite] == exact[~finite]).all()
        if finite.any():
            unit = replies.unit_of(float(exact[finite][0]), float(exact[finite][-1]), fine)
            half = math.ldexp(1.0, min(unit - 1, 1020))
            assert (np.abs(points[finite] / 2 - exact[finite] / 2) <= half / 2 + 5e-324).all()


@settings(max_examples=60)
@given(st.lists(st.lists(floats, min_size=8, max_size=40), min_size=2, max_size=5))
def test_theorem_mass_is_exact_in_sketches_too(devices):
    one = ask(counted=0)
    said, _, _ = replied([one], devices[1:])
    found, places, cuts = root_hears(one, devices[0], said)
    assert found[1] == sum(map(len, devices))
    assert (found[2] == -1) == any(not is_tied(own) for own in devices[1:])
    assert ((places + 7) >> 3 == cuts[1:]).all()


def is_tied(own):
    """Whether so many of these scores are equal that a sketch of seven points would be no shorter than their runs."""
    return len({*own}) <= 7 and 4 * len({*own}) <= len(own)


def test_scores_that_are_mostly_equal_are_listed_instead_of_sketched():
    """Seven runs of 28 scores, by which a threshold on a grid is found at once; eight, or 27 scores, are sketched."""
    for runs, each, listed in ((7, 4, 1), (8, 4, 0), (7, 3, 0), (1, 50, 1)):
        own = np.repeat(np.arange(runs) / 8, each)
        (string,), (numbers,), _ = replied([ask()], [own])
        assert replies.get(np.frombuffer(string, np.uint8), 0, 1)[0] == listed
        assert numbers == (2 * runs if listed else 8)
        found, _, _ = root_hears(ask(), own[:1], [string])
        assert found[2] == (runs if listed else -1)


# --- what a liar says -------------------------------------------------------------------------------------------------

QUESTIONS = [
    ask(),
    ask(even=True),
    ask(limit=100, counted=BELOW, low=key(-1.0), high=key(1.0)),
    ask(limit=5, counted=OUTSIDE, low=key(-1.0), high=key(1.0)),
    ask(side=HIGH, limit=20),
    ask(side=LOW, limit=20, low=key(0.5), high=key(0.5000001)),
]


def hostile(rng, good):
    """Bytes that are no reply: random, cut, longer, changed, all alike."""
    how = int(rng.integers(6))
    if how == 0:
        return rng.bytes(int(rng.integers(0, 60)))
    if how == 1:
        return good[: int(rng.integers(len(good) + 1))]
    if how == 2:
        return good + rng.bytes(int(rng.integers(1, 9)))
    if how == 3:
        return bytes([int(rng.choice([0, 255, 170, 1, 128]))]) * int(rng.integers(0, 200))
    torn = np.frombuffer(good, np.uint8).copy()
    if len(torn):
        torn[rng.integers(len(torn), size=int(rng.integers(1, 4)))] ^= np.uint8(1 << int(rng.integers(8)))
    return torn.tobytes()


def hostile_strings(seed, count):
    """A question, scores, and what the children say to it, some of which is broken."""
    rng = np.random.default_rng([5, seed])
    for _ in range(count):
        one = QUESTIONS[int(rng.integers(len(QUESTIONS)))]
        devices = [rng.normal(size=int(rng.integers(0, 30))) for _ in range(4)]
        said, _, _ = replied([one, one], devices[1:], count_bits=9 * bool(one[COUNTED]))
        strings = [hostile(rng, said[0]), said[1], hostile(rng, said[2]) if rng.random() < 0.5 else said[2]]
        yield one, devices[0], said, strings


def test_any_bytes_are_read_to_an_end_inside_of_their_buffer():
    """Wherever reading stops, it is told whether the string was a reply: what is broken ends elsewhere."""
    noticed = 0
    for one, own, said, strings in hostile_strings(0, 600):
        count_bits = 9 * bool(one[COUNTED])
        _, _, wrong = replied([one, one], [own], [strings], count_bits=count_bits)
        assert wrong == -1 or strings[wrong] != said[wrong]
        noticed += wrong >= 0
        if any(len(a) != len(b) for a, b in zip(strings, said, strict=True)) and len(strings[0]) < len(said[0]):
            assert wrong >= 0 or strings[0] != said[0][: len(strings[0])]
    assert noticed > 300


@given(st.binary(max_size=40), st.integers(0, 63), st.integers(-5, 5), st.integers(0, 12))
def test_any_bytes_are_read_by_every_reader(data, at, shift, room):
    """Written loops raise where they would leave their buffer: none does."""
    bits = np.frombuffer(data, np.uint8)
    keys, owners, times, x = (
        np.zeros(room, np.int64),
        np.zeros(room, np.int64),
        np.zeros(room, np.int64),
        np.zeros(room),
    )
    for low, high in ((LOWEST, HIGHEST), (key(0.5), key(0.5) + 2**shift if shift >= 0 else HIGHEST)):
        for apart in (0, 1):
            count, end = replies.get_keys(bits, at, low, high, keys, apart)
            assert 0 <= count <= room
            assert (np.diff(keys[:count]) >= apart).all()
            assert (keys[:count] > low).all()
            assert (keys[:count] <= high).all()
            assert end > 8 * len(bits) or end >= at
    count, _ = replies.get_items(bits, at, keys, owners, times, 3)
    assert (times[:count] >= 1).all()
    assert replies.get_points(bits, at, room, 9, x) >= at
    assert not np.isnan(x).any()
    assert replies.get_gamma(bits, 8 * len(bits)) == (0, NOWHERE)


# --- compiled ---------------------------------------------------------------------------------------------------------


def assert_same(one, other):
    """Equal numbers, with equal bits."""
    assert len(one) == len(other)
    for a, b in zip(one, other, strict=True):
        assert np.asarray(a).tobytes() == np.asarray(b).tobytes()


@pytest.mark.parametrize(("trees", "broken_ones"), [(20, 300), pytest.param(60, 1500, marks=pytest.mark.slow)])
def test_written_and_compiled_say_the_same(trees, broken_ones):
    """Byte for byte, over two levels of a tree; and the compiled loops read hostile bytes to an end.

    Of the types that protocols use: nothing is compiled twice.
    """
    compiled = compile_replies()
    rng = np.random.default_rng(6)
    shapes = (
        lambda n: rng.normal(size=n),
        lambda n: rng.normal(size=n).astype(np.float32),
        lambda n: rng.choice([-math.inf, 0.5, 0.5, math.inf], n),
        lambda n: (rng.random(n) * 2 - 1) * 1.7976931348623157e308,
        lambda n: rng.integers(-99, 99, n) * 5e-324,
    )
    for case in range(trees):
        shape = shapes[case % len(shapes)]
        leaves = [shape(int(rng.integers(0, 90))) for _ in range(int(rng.integers(2, 80)))]
        inner = [shape(int(rng.integers(0, 30))) for _ in range(2)]
        asks = [QUESTIONS[int(rng.integers(len(QUESTIONS)))] for _ in range(2)]
        weights = rng.integers(1, 999, sum(map(len, leaves))) if case % 3 == 0 else None
        said = [replied(asks, leaves, loops=loops, weights=weights) for loops in (replies, compiled)]
        assert said[0] == said[1]
        strings, cut = said[0][0], int(rng.integers(len(leaves)))
        above = [replied(asks, inner, [strings[:cut], strings[cut:]], loops) for loops in (replies, compiled)]
        assert above[0] == above[1]
        assert above[0][2] == -1
        found = [root_hears(asks[0], inner[0], above[0][0], loops)[0] for loops in (replies, compiled)]
        count = max(found[0][2], 0)
        assert (*found[0][:3], found[0][11]) == (*found[1][:3], found[1][11])
        assert_same([part[:count] for part in found[0][3:5]], [part[:count] for part in found[1][3:5]])
        if found[0][2] < 0:
            assert_same(replies.curve(*found[0][5:10]), compiled.curve(*found[1][5:10]))
    for one, own, _, strings in hostile_strings(1, broken_ones):
        count_bits = 9 * bool(one[COUNTED])
        broken = [
            replied([one, one], [own], [strings], loops, None, count_bits)[2] >= 0 for loops in (replies, compiled)
        ]
        assert broken[0] == broken[1]
