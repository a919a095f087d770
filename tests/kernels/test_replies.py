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
    LEVEL_UNITS,
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


def ask(low=LOWEST, high=HIGHEST, side=BOTH, limit=0, counted=0, level=LEVEL_UNITS // 2, points=7, even=False):
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
    data, ends, numbers, wrong = loops.encode_replies(
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
    found = loops.combine_reports(one, bits, nothing, 0, len(own), data, places, len(own) + 8 * len(data), count_bits)
    return found, places, cuts


# --- bits -------------------------------------------------------------------------------------------------------------


@given(st.lists(st.tuples(st.integers(0, 2**61), st.integers(0, 40)), max_size=20))
def test_numbers_come_back(pairs):
    out, at = np.zeros(64 + 64 * len(pairs), np.uint8), 0
    for value, low in pairs:
        at = replies.put_gamma(out, at, value)
        at = replies.put_rice(out, at, value & ((64 << low) - 1), low)
        at = replies.put_bits(out, at, value & ((1 << low) - 1), low)
        at = replies.put_count(out, at, value, 62)
    end, at = at, 0
    for value, low in pairs:
        read, at = replies.get_gamma(out, at)
        assert read == value
        read, at = replies.get_rice(out, at, low)
        assert read == value & ((64 << low) - 1)
        read, at = replies.get_bits(out, at, low)
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
    assert replies.key_of_float(value, both) == key(value)
    assert replies.float_of_key(key(value), both) == value


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
        assert found.above == (pooled > ends[1]).sum()
    assert found.keys[:count].tolist() == keys.tolist()
    assert found.times[:count].tolist() == times.tolist()


@given(st.lists(some_floats, min_size=2, max_size=5), st.integers(1, 12), st.sampled_from([LOW, HIGH]))
def test_theorem_one_side_holds_the_smallest_or_largest(devices, k, side):
    """Each run at least until they weigh k: the k smallest (or largest) of all are among them."""
    one = ask(side=side, limit=k)
    said, _, _ = replied([one], devices[1:])
    found, _, _ = root_hears(one, devices[0], said)
    heard = np.repeat(from_keys(found.keys[: found.run_count]), found.times[: found.run_count])
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
        one = ask(level=int(0.9 * LEVEL_UNITS), even=even)
        (string,), (numbers,), _ = replied([one], [x])
        listed, at = replies.get_bits(np.frombuffer(string, np.uint8), 0, 1)
        mass, at = replies.get_gamma(np.frombuffer(string, np.uint8), at)
        assert (listed, mass, numbers) == (0, n, 8)
        points, levels = np.zeros(7), np.zeros(7)
        fine = replies.fineness(n, int(one[LEVEL]), even, 7)
        end = replies.get_points(np.frombuffer(string, np.uint8), at, 7, fine, points)
        assert (end + 7) >> 3 == len(string)
        replies.fill_levels(float(n), 1.0, one[LEVEL] / LEVEL_UNITS, even, 7, levels)
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
    assert found.inside == sum(map(len, devices))
    assert (found.run_count == -1) == any(not is_tied(own) for own in devices[1:])
    assert ((places + 7) >> 3 == cuts[1:]).all()


def is_tied(own):
    """Whether so many of these scores are equal that a sketch of seven points would be no shorter than their runs."""
    return len({*own}) <= 7 and 4 * len({*own}) <= len(own)


def test_scores_that_are_mostly_equal_are_listed_instead_of_sketched():
    """Seven runs of 28 scores, by which a threshold on a grid is found at once; eight, or 27 scores, are sketched."""
    for runs, each, listed in ((7, 4, 1), (8, 4, 0), (7, 3, 0), (1, 50, 1)):
        own = np.repeat(np.arange(runs) / 8, each)
        (string,), (numbers,), _ = replied([ask()], [own])
        assert replies.get_bits(np.frombuffer(string, np.uint8), 0, 1)[0] == listed
        assert numbers == (2 * runs if listed else 8)
        found, _, _ = root_hears(ask(), own[:1], [string])
        assert found.run_count == (runs if listed else -1)


# --- what a Byzantine device says -------------------------------------------------------------------------------------

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
    count, _ = replies.get_entries(bits, at, keys, owners, times, 3)
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
        count = max(found[0].run_count, 0)
        assert (*found[0][:3], found[0].above) == (*found[1][:3], found[1].above)
        assert_same([part[:count] for part in found[0][3:5]], [part[:count] for part in found[1][3:5]])
        if found[0].run_count < 0:
            assert_same(
                replies.distribution_function(*found[0].sources), compiled.distribution_function(*found[1].sources)
            )
    for one, own, _, strings in hostile_strings(1, broken_ones):
        count_bits = 9 * bool(one[COUNTED])
        broken = [
            replied([one, one], [own], [strings], loops, None, count_bits)[2] >= 0 for loops in (replies, compiled)
        ]
        assert broken[0] == broken[1]


# --- what sketches say ------------------------------------------------------------------------------------------------


def curves(rng):
    """Knots, masses and slopes of a sketch, some of them equal, flat, steep or steps."""
    n = int(rng.integers(2, 9))
    x = np.sort(rng.choice([rng.normal(size=n), rng.integers(0, 3, n) * 1.0, rng.uniform(-1, 1, n) * 1.7e308]))
    c = np.cumsum(rng.integers(0, 3, n) * 0.5)
    slopes = np.full(n, replies.JUMP) if rng.random() < 0.2 else rng.choice([0.0, 0.3, 1.0, 50.0], n)
    if rng.random() < 0.5:
        replies.fill_slopes(x, c, 0, n, slopes)
    return x, c, slopes


def test_theorem_one_value_and_many_have_the_same_bits_and_never_fall():
    """Between its knots a distribution function stays between their masses, however steep its ends."""
    rng = np.random.default_rng(11)
    for _ in range(300):
        x, c, slopes = curves(rng)
        after = int(rng.integers(1, len(x)))
        v = np.sort(x[after - 1] * (1 - (t := rng.random(6))) + x[after] * t)
        many = replies.interpolate_all(x, c, slopes, np.full(6, after), v)
        with np.errstate(over="ignore"):  # which numbers do when they are compiled
            assert many.tolist() == [replies.interpolate(x, c, slopes, after, one) for one in v.tolist()]
        assert (many >= c[after - 1] - 1e-12).all()
        assert (many <= c[after] + 1e-12).all()
        assert (np.diff(many) >= -1e-12).all()


def test_slopes_are_those_of_a_monotone_cubic():
    """As SciPy has them inside; at the ends those of the pieces there. Distances are halves, so that none overflows."""
    from scipy.interpolate import PchipInterpolator

    rng = np.random.default_rng(12)
    for n in (2, 3, 4, 9):
        x, c = np.cumsum(rng.random(n + 4) + 0.01), np.cumsum(rng.random(n + 4) + 0.01)
        slopes = np.full(n + 4, 7.0)
        replies.fill_slopes(x, c, 2, n + 2, slopes)
        assert slopes[[0, 1, -2, -1]].tolist() == [7.0] * 4
        own, upto = x[2 : n + 2], c[2 : n + 2]
        right = 2 * PchipInterpolator(own, upto).derivative()(own) if n > 2 else np.zeros(2)
        if n > 2:
            right[[0, -1]] = 2 * (np.diff(upto) / np.diff(own))[[0, -1]]
        np.testing.assert_allclose(slopes[2 : n + 2], right, rtol=1e-9)
    flat = np.full(4, 7.0)
    replies.fill_slopes(np.array([0.0, 1.0, 2.0, 2.0]), np.array([0.0, 1.0, 1.0, 2.0]), 0, 4, flat)
    assert flat.tolist() == [2.0, 0.0, 0.0, 0.0]  # level on one side, and no distance at the end
    steep = np.full(3, 7.0)
    for x in ([0.0, 1e-323, 1.0], [-1.0, -1e-323, 0.0]):
        replies.fill_slopes(np.array(x), np.array([0.0, 1.0, 2.0]), 0, 3, steep)
        assert steep[1] == 0.0  # steeper than any float


@pytest.mark.parametrize(
    ("target", "value"),
    [(0.0, 1.0), (1.0, 1.0), (1.5, 1.5), (2.0, 2.0), (2.5, 2.0), (3.0, 2.0), (3.5, 4.0), (4.5, math.inf)],
)
def test_where_a_distribution_function_reaches_a_mass(target, value):
    """A jump to 1, a rise to 2, a jump to 3, nothing, and a jump to 4."""
    knots, left, right = np.array([1.0, 2.0, 4.0]), np.array([0.0, 2.0, 3.0]), np.array([1.0, 3.0, 4.0])
    assert replies.quantile_at(target, knots, left, right, 3) == value


def test_zeros_at_their_ends_that_all_keys_share_are_not_said():
    """Of float32 scores 29 each."""
    keys = np.sort(to_keys(np.random.default_rng(15).random(8).astype(np.float32).astype(float)))
    short, long = (replies.put_keys(buffer(), 0, those, 8, LOWEST, HIGHEST, 1) for those in (keys, keys | 1))
    assert long - short >= 7 * 28


def test_how_often_is_a_number_where_it_is_said():
    """A score is one number, and its multiplicity another, of all in a list where one is there more than once."""
    for own, numbers in (([1.0, 2.0, 3.0], 3), ([1.0, 2.0, 2.0], 4), ([2.0, 2.0], 2), ([], 0)):
        assert replied([ask(limit=9)], [own])[1] == [numbers]
    assert replied([ask(limit=9, low=key(1.0), counted=BELOW)], [[1.0, 2.0]])[1] == [2]
    assert replied([ask(limit=9, low=key(1.0), counted=OUTSIDE)], [[1.0, 2.0]])[1] == [3]


def test_sketches_of_several_children_stay_apart():
    """Each has its own knots and its own mass, also one that lists; together they are a guess of all scores."""
    rng = np.random.default_rng(13)
    own, children = rng.random(5) - 10, [rng.random([6, 54, 50, 70][j]) + 10 * j for j in range(4)]
    one = ask(limit=6)
    found, _, _ = root_hears(one, own, replied([one], children)[0])
    x, _, _, ends, masses = found.sources
    assert (*found[:3], found.bottom, found.above) == (0, 185, -1, 0, 0)
    assert masses.tolist() == [5.0, 6.0, 54.0, 50.0, 70.0]
    for s, scores in enumerate([own, *children]):
        knots = x[ends[s] : ends[s + 1]]
        assert len(knots) >= 5
        assert (np.abs(knots - scores.mean()) < 1.5).all()
    knots, left, right = replies.distribution_function(*found.sources)
    for part in (0.01, 0.1, 0.3, 0.6, 0.9):
        right_one = np.quantile(np.concatenate([own, *children]), part)
        assert abs(replies.quantile_at(185 * part, knots, left, right, len(knots)) - right_one) < 0.6


@pytest.mark.parametrize("sources", [1, replies.MERGED_AT_ONCE, replies.MERGED_AT_ONCE + 1, 3 * replies.MERGED_AT_ONCE])
def test_many_sources_are_put_together_in_groups(sources):
    """The guess is as good: within a few scores of the pooled sort."""
    rng = np.random.default_rng(14)
    children = [np.sort(rng.normal(size=9)) for _ in range(sources)]
    x, ends = np.concatenate(children), 9 * np.arange(sources + 1)
    c, slopes = np.tile(np.arange(1.0, 10.0), sources), np.full(9 * sources, replies.JUMP)
    knots, left, right = replies.distribution_function(x, c, slopes, ends, np.full(sources, 9.0))
    ranks = np.arange(1, 9 * sources, max(sources // 2, 1))
    found = [replies.quantile_at(rank - 0.5, knots, left, right, len(knots)) for rank in ranks.tolist()]
    off = np.searchsorted(np.sort(x), found, side="right") - ranks
    assert np.abs(off).max() <= (0 if sources <= replies.MERGED_AT_ONCE else 0.01 * 9 * sources + 2)


@pytest.mark.parametrize(
    ("last", "fine"),
    [(key(1.75), True), (key(2.0), True), (key(2.0) + 1, False), (key(1.5) - 1, False), (key(1.5), False)],
)
def test_a_list_that_leaves_its_bracket_or_falls_is_none(last, fine):
    out, low, high = buffer(), key(1.0), key(2.0)
    at = replies.put_gamma(out, 0, 2)
    at = replies.put_bits(out, at, 0, 6)
    at = replies.put_bits(out, at, key(1.5) - low, replies.bits_in(high - low))
    at = replies.put_bits(out, at, 63, 6)  # each key by itself
    end = replies.put_raw(out, at, last)
    assert replies.get_keys(out, 0, low, high, np.zeros(4, np.int64), 1) == ((2, end) if fine else (0, NOWHERE))


@pytest.mark.parametrize(
    ("points", "levels", "knots", "masses", "ends"),
    [
        ([1.0, 2.0, 4.0], [0.5, 1.5, 2.5], [0.5, 1.0, 2.0, 4.0, 5.0], [0.0, 0.5, 1.5, 2.5, 3.0], (3.0, 0.0)),
        ([1.0, 1.0, 1.0], [0.5, 1.5, 2.5], [1.0, 1.0, 1.0], [0.5, 1.5, 2.5], (3.0, 0.0)),
        ([-math.inf, 2.0, 4.0], [0.5, 1.5, 2.5], [2.0, 4.0, 5.0], [1.0, 2.0, 2.5], (3.0, 0.5)),
        ([1.0, 2.0, math.inf], [0.5, 1.5, 2.5], [0.5, 1.0, 2.0], [0.0, 0.5, 1.5], (2.5, 0.0)),
        ([-math.inf, 2.0, math.inf], [0.5, 1.5, 2.5], [2.0], [1.0], (2.5, 0.5)),
        ([-math.inf, -math.inf, math.inf], [0.5, 1.5, 2.5], [], [], (1.5, 1.5)),
        ([2.0], [0.5], [2.0], [0.5], (3.0, 0.0)),
        ([1.0, 2.0, 3.0], [0.5, 0.5, 1.5], [1.0, 2.0, 3.0, 4.5], [0.5, 0.5, 1.5, 3.0], (3.0, 0.0)),
    ],
)
def test_tails_of_a_sketch_are_as_steep_as_the_next_piece(points, levels, knots, masses, ends):
    x, c = np.full(9, -7.0), np.full(9, -7.0)
    at, mass, bottom = replies.add_sketch(x, c, 1, np.array(points), np.array(levels), len(points), 3.0)
    assert (x[1:at].tolist(), c[1:at].tolist(), (mass, bottom)) == (knots, masses, ends)
    assert x[at] == x[0] == -7.0


def test_exact_scores_are_steps():
    x, c, slopes = np.zeros(5), np.zeros(5), np.zeros(5)
    both_ints = np.empty(1, np.int64)
    keys = to_keys([-math.inf, -1.0, 2.5, math.inf])
    times = np.array([3, 2, 1, 5])
    found = replies.add_exact(x, c, slopes, 1, keys, times, 4, (both_ints, both_ints.view(np.float64)))
    assert found == (3, 6.0, 3.0)
    assert (x.tolist(), c.tolist()) == ([0.0, -1.0, 2.5, 0.0, 0.0], [0.0, 2.0, 3.0, 0.0, 0.0])
    assert slopes.tolist() == [0.0, replies.JUMP, replies.JUMP, 0.0, 0.0]


@given(st.integers(1, 4000), st.integers(1, LEVEL_UNITS - 1), st.integers(1, 40), st.booleans())
def test_levels_of_a_sketch_ascend_and_lie_half_a_score_beyond_whole_numbers(mass, level, count, even):
    levels = np.full(count + 1, -1.0)
    replies.fill_levels(float(mass), 1.0, level / LEVEL_UNITS, int(even), count, levels)
    assert levels[count] == -1.0
    inside = levels[:count]
    assert (inside % 1 == 0.5).all()
    assert (np.diff(inside) >= 0).all()
    assert inside[0] > 0
    assert inside[-1] < mass + 1
    if even or count < 3:
        assert inside.tolist() == [mass * (2 * i + 1) // (2 * count) + 0.5 for i in range(count)]
        return
    share, down = level / LEVEL_UNITS, (count - 1) // 2
    assert inside[down] == math.floor(mass * share) + 0.5
    reach = replies.WIDEST * share
    assert inside[0] == math.floor(mass * (share - reach)) + 0.5
    assert inside[-1] == math.floor(mass * (share + replies.WIDEST * (1 - share))) + 0.5
    near = min(math.sqrt(share * (1 - share) / mass), reach / 2)
    if down > 1:
        assert inside[down - 1] == math.floor(mass * (share - near)) + 0.5


@pytest.mark.parametrize(
    ("mass", "points", "growth", "usual", "many"),
    [(50, 7, 1, 50, 7), (9, 7, 1, 50, 7), (200, 7, 1, 50, 9), (200, 7, 0, 50, 7)],
)
def test_large_subtrees_have_more_points(mass, points, growth, usual, many):
    assert replies.point_count(mass, points, growth, usual) == many


def test_points_are_as_fine_as_the_innermost_are_apart():
    """Even ones by how many there are; others by the standard deviation of a rank, at most in 30 bits."""
    assert [replies.fineness(9, 1, 1, count) - replies.FINER for count in (1, 7, 8)] == [1, 3, 4]
    half = LEVEL_UNITS // 2  # half of the mass: half a square root of it, in steps from end to end
    assert [replies.fineness(mass, half, 0, 7) - replies.FINER for mass in (1, 100, 10_000)] == [1, 4, 7]
    assert replies.fineness(1, 1, 0, 7) - replies.FINER == 8  # far out they are closer
    assert replies.fineness(2**61, 1, 0, 7) == 30
