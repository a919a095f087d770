"""Replies of a tree to its root, as bits: counts, short sketches of many scores, and lists of few, exact.

The root asks about a bracket (low, high] of scores, as keys (`kernels.keys`). Every device merges its own scores in it
with its children's replies, and replies to its parent in one of two forms:

exact    the scores themselves, as runs (key, how often), while they are at most `limit`, or where they are so often
         equal that a sketch would be as long
sketch   how much they weigh together, and a few points of their distribution function, rounded: enough to guess where
         a rank lies, and nothing more may be concluded from them

On request the weight of all scores at or below `low` comes first, and after it that of all scores above `high` where
nobody knows what all scores weigh; counts are exact in both forms. Asked for one side, the reply is exact, and holds
the smallest (or largest) scores until they weigh `limit` together.

A string of bits is written from the highest bit of its first byte on. Whole numbers below a known bound take as many
bits as that has; others are Elias's gamma code; ascending numbers are Rice codes of their differences. Keys drop the
zeros at their ends that all of them share: float32 scores have 29.

A neighbour may send anything. Beyond its end a string of bits reads as zeros, and a number that cannot be meant (more
keys than there is room for, a key outside of its bracket) moves the place to `NOWHERE`, where it stays: so every loop
ends, nothing is read or written outside of its buffer, and whoever has read compares the place with the string's end.

These loops are written once: as they stand they run in Python, where a device has a few packets to read, and
`kernels.compiled.replies` compiles the same source for many.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

LOWEST = -0x7FF0000000000001  # one below the key of -inf: nothing lies at or below it
HIGHEST = 0x7FF0000000000000  # the key of +inf
# Half the range in which differences of keys are computed. Differences are compared by halves, `(b >> 1) - (a >> 1)`,
# because the keys of -inf and +inf are almost 2^64 apart, which an int64 cannot hold.
HALF = 1 << 61
LARGEST_FLOAT = 1.7976931348623157e308  # what a point becomes that rounding moved beyond all floats
LEVEL_UNITS = 65536  # levels are multiples of 1 / LEVEL_UNITS
BOTH, LOW, HIGH = 0, 1, 2  # what is asked for: everything, or one side of the bracket
BELOW, OUTSIDE = 1, 2  # what of the scores outside of it is counted, if anything: those below it, or also those above
# Both are part of the format: sender and receiver compute levels and roundings from them, so devices with different
# values would misread each other.
WIDEST = 0.8  # part of the mass on either side of the level asked for that the points of a sketch span
FINER = 3  # bits by which a sketch's unit is finer than the distance of its innermost points
_FINEST = 8  # further bits that skewed scores may take, whose innermost points lie closer together than the others
_TIED = 4  # mean number of equal scores from which runs are listed instead of sketched, if they are as few as points
JUMP = -1.0  # in place of the slope at a knot where a distribution function jumps; true slopes are never negative
# A place beyond the end of every string of bits: adding the bits of any message to it does not overflow an int64.
NOWHERE = 1 << 60
# Sources whose distribution functions are added up at once. The work is knots times sources, so more sources are first
# reduced in groups.
MERGED_AT_ONCE = 64


class SourceKnots(NamedTuple):
    """Distribution functions of several sources, one after the other; no knots where all scores are listed.

    Attributes
    ----------
    x, c, slopes
        Where each knot lies, the mass up to it, and the slope there: `JUMP` where the function jumps.
    ends
        Source s has the knots from ``ends[s]`` to ``ends[s + 1]``.
    masses
        The mass of each source at finite scores.
    """

    x: Any
    c: Any
    slopes: Any
    ends: Any
    masses: Any


class MergedReply(NamedTuple):
    """What a device knows about a question: its own scores and the replies of its children, merged.

    Attributes
    ----------
    below, inside, above
        The weight at or below the bracket, in it, and above it.
    run_count
        Number of runs of equal scores; -1 where some child has sent a sketch, so that no complete list exists.
    keys, times
        The runs, ascending; only with `run_count` >= 0.
    sources
        Distribution functions of the device and its children; only with `run_count` -1.
    bottom
        The weight at -inf, which is in `inside` but in no distribution function.
    """

    below: int
    inside: int
    run_count: int
    keys: Any
    times: Any
    sources: SourceKnots
    bottom: int
    above: int


# --- bits -------------------------------------------------------------------------------------------------------------


def bits_in(value: int) -> int:
    """Return how many bits a number >= 0 takes."""
    bits = 0
    while value >= 65536:
        value >>= 16
        bits += 16
    while value > 0:
        value >>= 1
        bits += 1
    return bits


def put_bits(out: Any, at: int, value: int, bits: int) -> int:
    """Write a number >= 0 in `bits` bits, at most 62; return the place after it."""
    while bits > 0:
        free = 8 - (at & 7)
        take = min(free, bits)
        part = (value >> (bits - take)) & ((1 << take) - 1)
        out[at >> 3] |= part << (free - take)
        at += take
        bits -= take
    return at


def get_bits(data: Any, at: int, bits: int) -> tuple[int, int]:
    """Read a number of `bits` bits; return it, and the place after it."""
    value = 0
    while bits > 0:
        left = 8 - (at & 7)
        take = min(left, bits)
        byte = int(data[at >> 3]) if at >> 3 < len(data) else 0
        value = (value << take) | ((byte >> (left - take)) & ((1 << take) - 1))
        at += take
        bits -= take
    return value, at


def put_gamma(out: Any, at: int, value: int) -> int:
    """Write a number >= 0 that nothing bounds, in Elias's gamma code of the number after it."""
    bits = bits_in(value + 1)
    at = put_bits(out, at, 0, bits - 1)
    return put_bits(out, at, value + 1, bits)


def get_gamma(data: Any, at: int) -> tuple[int, int]:
    """Read a number of `put_gamma`; more than 62 bits are an error, as no sender writes them."""
    bits = 1
    while bits < 63 and at >> 3 < len(data) and (int(data[at >> 3]) >> (7 - (at & 7))) & 1 == 0:
        bits += 1
        at += 1
    if bits == 63 or at >> 3 >= len(data):
        return 0, NOWHERE
    value, at = get_bits(data, at, bits)
    return value - 1, at


def put_rice(out: Any, at: int, value: int, low: int) -> int:
    """Write a number >= 0 as Rice code: the rest above the `low` lowest bits in ones and a zero, then these bits."""
    rest = value >> low
    while rest > 0:
        ones = min(rest, 32)  # `put_bits` writes at most 62 bits at once
        at = put_bits(out, at, (1 << ones) - 1, ones)
        rest -= ones
    at += 1  # the buffer holds zeros
    return put_bits(out, at, value & ((1 << low) - 1), low)


def get_rice(data: Any, at: int, low: int) -> tuple[int, int]:
    """Read a number of `put_rice`."""
    rest = 0
    while at >> 3 < len(data) and (int(data[at >> 3]) >> (7 - (at & 7))) & 1:
        rest += 1
        at += 1
    if rest > (2 * HALF) >> low:  # `rest << low` would exceed every difference of keys, and could overflow
        return 0, NOWHERE
    value, at = get_bits(data, at + 1, low)
    return (rest << low) | value, at


def put_count(out: Any, at: int, value: int, bits: int) -> int:
    """Write a number >= 0 that fits into `bits` bits; 0 where no bound is known."""
    return put_bits(out, at, value, bits) if bits else put_gamma(out, at, value)


def get_count(data: Any, at: int, bits: int) -> tuple[int, int]:
    """Read a number of `put_count`."""
    return get_bits(data, at, bits) if bits else get_gamma(data, at)


# --- keys, exact ------------------------------------------------------------------------------------------------------


def put_raw(out: Any, at: int, key: int) -> int:
    """Write a key in 64 bits."""
    # In halves, since `put_bits` takes numbers >= 0 of at most 62 bits; the upper half is made positive.
    at = put_bits(out, at, (key >> 32) + 0x80000000, 32)
    return put_bits(out, at, key & 0xFFFFFFFF, 32)


def get_raw(data: Any, at: int) -> tuple[int, int]:
    """Read a key of `put_raw`."""
    top, at = get_bits(data, at, 32)
    bottom, at = get_bits(data, at, 32)
    return (top - 0x80000000) * 0x100000000 + bottom, at


def put_keys(out: Any, at: int, keys: Any, count: int, low: int, high: int, apart: int) -> int:
    """Write `count` ascending keys, at least `apart` from each other, of the bracket (low, high]."""
    at = put_gamma(out, at, count)
    if count == 0:
        return at
    together = 0
    for i in range(count):
        together |= int(keys[i])  # its lowest one is the lowest of any key: below it all of them have zeros
    drop = 0
    while together & 1 == 0 and drop < 62:
        together >>= 1
        drop += 1
    at = put_bits(out, at, drop, 6)
    first = int(keys[0])
    if (high >> 1) - (low >> 1) < HALF:
        base = low >> drop
        at = put_bits(out, at, (first >> drop) - base, bits_in((high >> drop) - base))
    else:
        at = put_raw(out, at, first)
    if count == 1:
        return at
    last = int(keys[count - 1])
    if (last >> 1) - (first >> 1) >= HALF:  # differences may overflow: keys are written as they are
        at = put_bits(out, at, 63, 6)  # no number of low bits, of which Rice codes have 62 at most
        for i in range(1, count):
            at = put_raw(out, at, int(keys[i]))
        return at
    mean = ((last >> drop) - (first >> drop)) // (count - 1)
    short = max(bits_in(mean) - 1, 0)  # the usual choice for Rice codes: the power of two just below the mean
    at = put_bits(out, at, short, 6)
    before = first >> drop
    for i in range(1, count):
        now = int(keys[i]) >> drop
        at = put_rice(out, at, now - before - apart, short)
        before = now
    return at


def get_keys(data: Any, at: int, low: int, high: int, keys: Any, apart: int) -> tuple[int, int]:  # noqa: PLR0911
    """Read keys of `put_keys` into `keys`, if it has room; return how many, and the place."""
    count, at = get_gamma(data, at)
    if count == 0:
        return 0, at
    if count > len(keys):
        return 0, NOWHERE
    drop, at = get_bits(data, at, 6)
    if (high >> 1) - (low >> 1) < HALF:
        base = low >> drop
        first, at = get_bits(data, at, bits_in((high >> drop) - base))
        before = first + base
        first = before << drop
    else:
        first, at = get_raw(data, at)
        before = first >> drop
    if first <= low or first > high:
        return 0, NOWHERE
    keys[0] = first
    if count == 1:
        return 1, at
    short, at = get_bits(data, at, 6)
    for i in range(1, count):
        if short == 63:
            now, at = get_raw(data, at)
        else:
            gap, at = get_rice(data, at, short)
            if gap >> 1 > ((high >> drop) >> 1) - (before >> 1):  # by halves, whose difference cannot overflow
                return 0, NOWHERE
            before += gap + apart
            now = before << drop
        if now < keys[i - 1] + apart or now > high:
            return 0, NOWHERE
        keys[i] = now
    return count, at


def put_times(out: Any, at: int, times: Any, count: int) -> int:
    """Write how often each of `count` keys occurs; a single bit where all occur once."""
    once = True
    for i in range(count):
        once = once and times[i] == 1
    if count == 0:
        return at
    at = put_bits(out, at, 0 if once else 1, 1)
    if not once:
        for i in range(count):
            at = put_gamma(out, at, int(times[i]) - 1)
    return at


def get_times(data: Any, at: int, times: Any, count: int) -> tuple[int, int]:
    """Read numbers of `put_times` into `times`; return how many were written, and the place."""
    if count == 0:
        return 0, at
    several, at = get_bits(data, at, 1)
    for i in range(count):
        times[i] = 1
        if several:
            more, at = get_gamma(data, at)
            times[i] = more + 1
    return count if several else 0, at


def get_entries(data: Any, at: int, keys: Any, owners: Any, times: Any, owner_bits: int) -> tuple[int, int]:
    """Read ascending keys, some of them equal, each with its owner and how often that one has it; see `items`.

    Return how many they are, and the place.
    """
    count, at = get_keys(data, at, LOWEST, HIGHEST, keys, 0)
    for i in range(count):
        owners[i], at = get_bits(data, at, owner_bits)
    _, at = get_times(data, at, times, count)
    return count, at


def room_for_keys(count: int) -> int:
    """Return the largest number of bytes that `count` keys with their numbers take."""
    return 64 + 32 * count


# --- points, rounded --------------------------------------------------------------------------------------------------


def float_of_key(key: int, both: Any) -> float:
    """Return the float of a key; `both` is an array of one int64, and the same memory as float64."""
    # Keys of negative floats count down from -1 (`kernels.keys`), while their bits count up from the sign bit.
    both[0][0] = key if key >= 0 else -0x8000000000000000 - key
    return float(both[1][0])


def key_of_float(value: float, both: Any) -> int:
    """Return the key of a float."""
    both[1][0] = value + 0.0  # makes -0.0 a 0.0: they are equal, so they must have the same key
    bits = int(both[0][0])
    return bits if bits >= 0 else -0x8000000000000000 - bits


def put_points(out: Any, at: int, x: Any, count: int, fine: int) -> int:
    """Write `count` ascending numbers, rounded to a common power of two: about 2**fine units from end to end.

    The unit is finer where the innermost numbers lie closer together than others: near the end of confidences all that
    matters happens within a hundredth of their span. The number of low bits is the one with the shortest code, and is
    sent as its difference from the usual one.
    """
    below, above = 0, 0
    for i in range(count):
        below += x[i] == -math.inf
        above += x[i] == math.inf
    at = put_gamma(out, at, below)
    at = put_gamma(out, at, above)
    finite = count - below - above
    if finite == 0:
        return at
    first, last = x[below], x[below + finite - 1]
    unit = unit_of(first, last, fine)
    if finite > 2:
        middle = below + (finite - 1) // 2
        inner, finest = x[middle + 1] / 2 - x[middle - 1] / 2, unit_of(first, last, fine + _FINEST)
        while unit > finest and 0 < math.ldexp(inner, -unit) < 1 << (FINER - 1):  # skewed for sure
            unit -= 1
    # Signed numbers are interleaved (0, -1, 1, -2, ...): the gamma code is then short for small ones of either sign.
    at = put_gamma(out, at, 2 * unit if unit >= 0 else -2 * unit - 1)
    before = int(round_to(first, unit))
    gaps, last_one = np.empty(finite, np.int64), before
    for i in range(1, finite):
        now = int(round_to(x[below + i], unit))
        gaps[i] = now - last_one
        last_one = now
    short = best_low_bits(gaps, finite)
    change = short - usual_low_bits(finite, fine)
    at = put_gamma(out, at, 2 * change if change >= 0 else -2 * change - 1)
    size = before if before >= 0 else -before
    bits = bits_in(size)
    at = put_bits(out, at, bits, 6)
    at = put_bits(out, at, size, bits)
    at = put_bits(out, at, 1 if before < 0 else 0, 1)
    for i in range(1, finite):
        at = put_rice(out, at, int(gaps[i]), short)
    return at


def get_points(data: Any, at: int, count: int, fine: int, x: Any) -> int:
    """Read numbers of `put_points`; return the place."""
    below, at = get_gamma(data, at)
    above, at = get_gamma(data, at)
    if below > count or above > count - below:
        below, above, at = count, 0, NOWHERE
    finite = count - below - above
    for i in range(below):
        x[i] = -math.inf
    for i in range(below + finite, count):
        x[i] = math.inf
    if finite == 0:
        return at
    code, at = get_gamma(data, at)
    unit = code >> 1 if code & 1 == 0 else -((code + 1) >> 1)
    code, at = get_gamma(data, at)
    short = usual_low_bits(finite, fine) + (code >> 1 if code & 1 == 0 else -((code + 1) >> 1))
    bits, at = get_bits(data, at, 6)
    size, at = get_bits(data, at, min(bits, 54))
    # No honest sender writes this: `unit_of` returns exponents of floats, and leaves numbers of at most 51 bits.
    if unit < -1100 or unit > 1024 or bits > 54 or short < 0 or short > 61:
        unit, short, at = 0, 0, NOWHERE
    negative, at = get_bits(data, at, 1)
    before = -size if negative else size
    x[below] = scale_units(before, unit)
    for i in range(below + 1, below + finite):
        gap, at = get_rice(data, at, short)
        before += min(gap, HALF - before)  # no number beyond HALF, however large the gaps that were sent: no overflow
        x[i] = scale_units(before, unit)
    return at


def scale_units(size: int, unit: int) -> float:
    """Return ``size * 2**unit``, or the largest float of its sign where rounding went beyond all floats."""
    bits = bits_in(size if size >= 0 else -size)
    if bits > 60 or bits + unit > 1024:
        return LARGEST_FLOAT if size > 0 else -LARGEST_FLOAT
    return math.ldexp(float(size), unit)


def unit_of(first: float, last: float, fine: int) -> int:
    """Return the power of two to which points between these are rounded."""
    largest = max(abs(first), abs(last))
    span = last / 2 - first / 2  # which cannot overflow
    own = math.frexp(largest)[1] if largest > 0 else -1000
    unit = math.frexp(span)[1] + 1 - fine if span > 0 else own - 50  # equal points: as exactly as possible
    # At most 50 bits, less than the 53 of a float, so that multiples of the unit are exact; 2^-1074 is the least float.
    return max(unit, own - 50, -1074)


def usual_low_bits(count: int, fine: int) -> int:
    """Return how many low bits of a difference are usually written as they are."""
    return max(fine - 1 - bits_in(count), 0)


def best_low_bits(gaps: Any, count: int) -> int:
    """Return the number of low bits with which the Rice codes of ``gaps[1:]`` are shortest; ``gaps[0]`` is unused."""
    best, short = -1, 0
    while True:
        total = 0
        for i in range(1, count):
            total += (gaps[i] >> short) + short
        if best >= 0 and total >= best:  # the length falls and then rises: the first rise is behind the minimum
            return max(short - 1, 0)
        best = total
        short += 1


def round_to(value: float, unit: int) -> float:
    """Return how many units of 2**unit a number is, to the nearest."""
    half = unit // 2  # in two steps: the power itself may be too large or too small for a float
    return float(np.rint(math.ldexp(math.ldexp(value, -half), half - unit)))


# --- distribution functions -------------------------------------------------------------------------------------------


def point_count(mass: int, points: int, growth: int, usual: int) -> int:
    """Return how many points a sketch of so much mass has: `growth` more for each doubling beyond a usual device's."""
    return points + growth * max(bits_in(mass) - bits_in(usual), 0)


def fineness(mass: int, level: int, even: int, count: int) -> int:
    """Return in how many steps, a power of two, a sketch of `mass` scores is rounded; whole, as its reader asks too."""
    if even:
        return bits_in(count) + FINER
    spread = level * (LEVEL_UNITS - level)
    # Half the bits of mass / (level (1 - level)): the root of that is one by the distance of the innermost points, see
    # `fill_levels`; 32 is for LEVEL_UNITS^2. In integers, because the reader must compute the same on another machine.
    return min((bits_in(mass) + 32 - bits_in(spread)) // 2 + FINER, 30)


def fill_levels(mass: float, each: float, level: float, even: int, count: int, levels: Any) -> None:
    """Say at which masses a sketch has its points: close around the level asked for, and out to `WIDEST` of both sides.

    m scores that are like all of them have their own quantile within about sqrt(level (1 - level) / m) of theirs: so
    near are the innermost points, and those after them go out geometrically; m follows from what a score weighs. Or
    they are `even`. Each is half a score beyond a whole number of them, if these weigh 1: there the score itself is the
    point, and nothing is interpolated.
    """
    if even or count < 3:
        for i in range(count):
            levels[i] = math.floor(mass * (i + 0.5) / count) + 0.5
        return
    down = (count - 1) // 2
    near = math.sqrt(max(level * (1 - level), 1e-9) / max(mass / each, 1.0))
    levels[down] = math.floor(mass * level) + 0.5
    for side in range(2):
        many = down if side == 0 else count - 1 - down
        reach = level if side == 0 else 1 - level
        outer = reach * WIDEST
        inner = max(min(near, outer / 2), 1e-12)
        away = outer if many == 1 else inner
        wider = (outer / inner) ** (1.0 / (many - 1)) if many > 1 else 1.0
        for i in range(many):
            if side == 0:
                levels[down - 1 - i] = math.floor(mass * (level - away)) + 0.5
            else:
                levels[down + 1 + i] = math.floor(mass * (level + away)) + 0.5
            away = min(away * wider, outer)


def add_exact(
    x: Any, c: Any, slopes: Any, at: int, keys: Any, times: Any, count: int, both: Any
) -> tuple[int, float, float]:
    """Append the knots of exact scores, a step at each; return the end, the mass below +inf, and that at -inf."""
    mass, bottom = 0.0, 0.0
    for i in range(count):
        value, weight = float_of_key(int(keys[i]), both), float(times[i])
        if value < math.inf:
            mass += weight
        if value == -math.inf:
            bottom += weight
        elif value < math.inf:
            x[at], c[at], slopes[at] = value, mass - bottom, JUMP
            at += 1
    return at, mass, bottom


def add_sketch(x: Any, c: Any, at: int, points: Any, levels: Any, count: int, mass: float) -> tuple[int, float, float]:
    """Append the knots of a sketch, its tails as steep as the next piece; return as `add_exact` does."""
    first = 0
    while first < count and points[first] == -math.inf:
        first += 1
    last = count - 1
    while last >= first and points[last] == math.inf:
        last -= 1
    bottom = levels[first - 1] if first > 0 else 0.0
    if last < count - 1:
        mass = levels[last + 1]  # up to the first point at +inf
    if first > last:
        return at, bottom, bottom
    begin, left = float(points[first]), levels[first] - bottom
    if last > first and first == 0 and levels[1] > levels[0]:
        begin -= (float(points[1]) - float(points[0])) * float(left / (levels[1] - levels[0]))
    if begin > -math.inf and begin < points[first]:
        x[at], c[at] = begin, 0.0
        at += 1
    for i in range(first, last + 1):
        x[at], c[at] = points[i], levels[i] - bottom
        at += 1
    if last > first and last == count - 1 and levels[last] > levels[last - 1]:
        end = float(points[last]) + (float(points[last]) - float(points[last - 1])) * float(
            (mass - levels[last]) / (levels[last] - levels[last - 1])
        )
        if points[last] < end < math.inf:
            x[at], c[at] = end, mass - bottom
            at += 1
    return at, mass, bottom


def fill_slopes(x: Any, c: Any, begin: int, end: int, slopes: Any) -> None:
    """Give a sketch's knots the slopes of a monotone cubic through them ([FritschCarlson1980]).

    Straight lines between few points are biased wherever the function bends.
    """
    for i in range(begin, end):
        slopes[i] = 0.0
        if i == begin or i == end - 1:
            continue
        # Here and below differences are halved first: the difference of two floats can overflow.
        before, after = float(x[i] / 2 - x[i - 1] / 2), float(x[i + 1] / 2 - x[i] / 2)
        if before > 0 and after > 0 and c[i] > c[i - 1] and c[i + 1] > c[i]:
            down, up = float(c[i] - c[i - 1]) / before, float(c[i + 1] - c[i]) / after
            share = before / (before + after)
            inverse = (2 - share) / down + (1 + share) / up if down < math.inf and up < math.inf else 0.0
            slopes[i] = 3 / inverse if inverse > 0 else 0.0
    if end - begin >= 3:
        for i, j in ((begin, begin + 1), (end - 1, end - 2)):
            span = float(abs(x[j] / 2 - x[i] / 2))
            slope = float(abs(c[j] - c[i])) / span if span > 0 else 0.0
            slopes[i] = slope if slope < math.inf else 0.0


def add_distributions(
    x: Any, c: Any, slopes: Any, ends: Any, masses: Any, sources: int, knots: Any, left: Any, right: Any
) -> int:
    """Add up the distribution functions of all sources, (knots, value just below, value at); return how many knots.

    Source s has its knots in ``x[ends[s]:ends[s + 1]]``, ascending, and goes from 0 to ``masses[s]``, its finite mass.
    """
    total = ends[sources] - ends[0]
    sort_knots(x, ends, sources, knots)
    left[:total] = 0.0
    right[:total] = 0.0
    add_sources(x, c, slopes, ends, masses, sources, knots[:total], left, right)
    return int(total)


def sort_knots(x: Any, ends: Any, sources: int, knots: Any) -> None:
    """Put the knots of all sources in order; the compiled twin merges them."""
    knots[: ends[sources] - ends[0]] = np.sort(x[ends[0] : ends[sources]])


def add_sources(
    x: Any, c: Any, slopes: Any, ends: Any, masses: Any, sources: int, knots: Any, left: Any, right: Any
) -> None:
    """Add every source's value just below and at each knot; the compiled twin walks instead of searching."""
    for s in range(sources):
        a, b = int(ends[s]), int(ends[s + 1])
        if a == b:
            continue
        for side, total in (("left", left), ("right", right)):
            after = a + np.searchsorted(x[a:b], knots, side)  # type: ignore[call-overload]
            inner = (after > a) & (after < b)
            total[after == b] += masses[s]
            total[inner] += interpolate_all(x, c, slopes, after[inner], knots[inner])


def interpolate_all(x: Any, c: Any, slopes: Any, after: Any, v: Any) -> Any:
    """Return `interpolate` for many values, with the same bits."""
    x0, x1, c0, c1 = x[after - 1], x[after], c[after - 1], c[after]
    span = x1 / 2 - x0 / 2
    rise = c1 - c0
    with np.errstate(all="ignore"):
        t = (v / 2 - x0 / 2) / span
        first, last = np.minimum(slopes[after - 1] * span, 3 * rise), np.minimum(slopes[after] * span, 3 * rise)
        inner = first * (1 - t) * (1 - t) * t - last * t * t * (1 - t)
        curved = c0 + rise * t * t * (3 - 2 * t) + inner
        straight = (slopes[after - 1] == 0.0) | (slopes[after] == 0.0) | (rise <= 0)
        found = np.where(straight, c0 + rise * t, curved)
    return np.where(slopes[after] == JUMP, c0, np.where(span <= 0, c1, found))


def interpolate(x: Any, c: Any, slopes: Any, after: int, v: float) -> float:
    """Return the value at v, between the knot `after` and the one before it: on a cubic where they have slopes."""
    if slopes[after] == JUMP:
        return float(c[after - 1])
    span = x[after] / 2 - x[after - 1] / 2
    if span <= 0:
        return float(c[after])
    rise = c[after] - c[after - 1]
    t = (v / 2 - x[after - 1] / 2) / span
    if slopes[after - 1] == 0.0 or slopes[after] == 0.0 or rise <= 0:
        return float(c[after - 1] + rise * t)
    first, last = min(slopes[after - 1] * span, 3 * rise), min(slopes[after] * span, 3 * rise)
    inner = first * (1 - t) * (1 - t) * t - last * t * t * (1 - t)
    return float(c[after - 1] + rise * t * t * (3 - 2 * t) + inner)


def quantile_at(target: float, knots: Any, left: Any, right: Any, total: int) -> float:
    """Return where the mixed distribution function reaches a mass."""
    lo, hi = 0, total
    while lo < hi:
        middle = (lo + hi) // 2
        if right[middle] >= target:
            hi = middle
        else:
            lo = middle + 1
    if lo == total:
        return math.inf
    if lo == 0 or target > left[lo] or left[lo] <= right[lo - 1]:
        return float(knots[lo])
    share = (target - right[lo - 1]) / (left[lo] - right[lo - 1])
    return float(knots[lo - 1] * (1 - share) + knots[lo] * share)


# --- replies ----------------------------------------------------------------------------------------------------------

# columns of a question; what a device usually weighs, and a score
TRIAL, BEGIN, END, SIDE, LIMIT, COUNTED, LEVEL, POINTS, GROWTH, USUAL, EVEN, EACH = range(12)


def first_above(bits: Any, first: int, last: int, key: int) -> int:
    """Return the first place in [first, last) whose score has a key above this one; scores are given as their bits."""
    while first < last:
        middle = (first + last) // 2
        own = int(bits[middle])
        if (own if own >= 0 else -0x8000000000000000 - own) <= key:
            first = middle + 1
        else:
            last = middle
    return first


def append_local_runs(bits: Any, weights: Any, first: int, last: int, keys: Any, times: Any, at: int) -> int:
    """Append the runs of equal scores in [first, last); return the end."""
    begin = at
    for i in range(first, last):
        own = int(bits[i])
        key = own if own >= 0 else -0x8000000000000000 - own
        weight = int(weights[i]) if len(weights) else 1
        if at > begin and keys[at - 1] == key:
            times[at - 1] += weight
        else:
            keys[at], times[at] = key, weight
            at += 1
    return at


def merge_runs(keys: Any, times: Any, ends: Any, sources: int, into: Any, often: Any) -> int:
    """Merge ascending runs of several sources; equal keys become one. Return how many runs there are."""
    # For speed only, the result is the same: few sources are merged one by one, the keys of more are sorted.
    filled = 0
    for s in range(sources):
        filled += ends[s] < ends[s + 1]
    count = 0
    if filled > 4:
        order = np.argsort(keys[: ends[sources]], kind="mergesort")
        for i in order:
            if count and into[count - 1] == keys[i]:
                often[count - 1] += times[i]
            else:
                into[count], often[count] = keys[i], times[i]
                count += 1
        return count
    at = ends[:sources].copy()
    for _ in range(ends[sources]):
        best = -1
        for s in range(sources):
            if at[s] < ends[s + 1] and (best < 0 or keys[at[s]] < keys[at[best]]):
                best = s
        key, weight = keys[at[best]], times[at[best]]
        at[best] += 1
        if count and into[count - 1] == key:
            often[count - 1] += weight
        else:
            into[count], often[count] = key, weight
            count += 1
    return count


def runs_of_one_side(keys: Any, times: Any, count: int, side: int, limit: int) -> tuple[int, int]:
    """Return the first and the last of the runs that are kept: from one end, until they weigh `limit` together."""
    weight, kept = 0, 0
    while kept < count and weight < limit:
        weight += int(times[kept if side == 1 else count - 1 - kept])
        kept += 1
    return (0, kept) if side == 1 else (count - kept, count)


def sketch_fineness(ask: Any, mass: int, count: int) -> int:
    """Return the `fineness` of a sketch of so much mass, in reply to this question."""
    return fineness(mass // int(ask[EACH]), int(ask[LEVEL]), int(ask[EVEN]), count)


def read_replies(
    ask: Any, data: Any, places: Any, keys: Any, times: Any, ends: Any, count_bits: int
) -> tuple[int, int, Any, Any, Any]:
    """Read the replies of children to a question: the weight outside the bracket, and points and masses of sketches.

    Child j's reply begins at bit ``places[j]`` of `data`, which becomes where its next one does; its runs go to the
    keys and times from ``ends[j + 1]`` to ``ends[j + 2]``. Returned are the weights below and above, all sketches'
    points, and how many points (0: an exact list) and what mass each child has.
    """
    low, high = int(ask[BEGIN]), int(ask[END])
    below, above, used = 0, 0, 0
    points = np.empty(0, np.float64)
    sketched, masses = np.zeros(len(places), np.int64), np.zeros(len(places), np.int64)
    for j in range(len(places)):
        at = int(places[j])
        if ask[COUNTED]:
            more, at = get_count(data, at, count_bits)
            below += more
        if ask[COUNTED] == OUTSIDE:
            more, at = get_count(data, at, count_bits)
            above += more
        listed = 1
        if ask[SIDE] == BOTH:
            listed, at = get_bits(data, at, 1)
        ends[j + 2] = ends[j + 1]
        if listed:
            count, at = get_keys(data, at, low, high, keys[ends[j + 1] :], 1)
            _, at = get_times(data, at, times[ends[j + 1] :], count)
            ends[j + 2] += count
        else:
            mass, at = get_count(data, at, count_bits)
            count = point_count(mass, int(ask[POINTS]), int(ask[GROWTH]), int(ask[USUAL]))
            if used + count > len(points):
                longer = np.empty(2 * (used + count), np.float64)  # doubled: copies stay linear in the points
                longer[:used] = points[:used]
                points = longer
            at = get_points(data, at, count, sketch_fineness(ask, mass, count), points[used:])
            sketched[j], masses[j] = count, mass
            used += count
        places[j] = at
    return below, above, points, sketched, masses


def combine_reports(
    ask: Any, bits: Any, weights: Any, first: int, last: int, data: Any, places: Any, room: int, count_bits: int
) -> MergedReply:
    """Merge what one device knows about a question: its scores in [first, last), and its children's replies.

    `places` as in `read_replies`; no reply holds more runs than `room`.
    """
    children = len(places)
    begin, end = first_above(bits, first, last, int(ask[BEGIN])), first_above(bits, first, last, int(ask[END]))
    keys, times = np.empty(room, np.int64), np.empty(room, np.int64)
    ends = np.zeros(children + 2, np.int64)
    ends[1] = append_local_runs(bits, weights, begin, end, keys, times, 0)
    below, above, points, sketched, mass_of = read_replies(ask, data, places, keys, times, ends, count_bits)
    if len(weights):
        below += int(weights[first:begin].sum())
        above += int(weights[end:last].sum())
    else:
        below += begin - first
        above += last - end
    inside = 0
    for i in range(ends[children + 1]):
        inside += int(times[i])
    if sketched.sum() == 0:
        runs, often = np.empty(ends[children + 1], np.int64), np.empty(ends[children + 1], np.int64)
        count = merge_runs(keys, times, ends, children + 1, runs, often)
        nothing = np.empty(0, np.float64)
        no_knots = SourceKnots(nothing, nothing, nothing, np.zeros(1, np.int64), nothing)
        return MergedReply(below, inside, count, runs, often, no_knots, 0, above)
    both_ints = np.empty(1, np.int64)
    both = (both_ints, both_ints.view(np.float64))
    most = ends[children + 1] + sketched.sum() + 2 * children  # `add_sketch` may add a knot at either end
    x, c, slopes = np.empty(most, np.float64), np.empty(most, np.float64), np.zeros(most, np.float64)
    knot_ends, masses = np.zeros(children + 2, np.int64), np.zeros(children + 1, np.float64)
    bottom, used = 0.0, 0
    levels = np.empty(int(sketched.max()), np.float64)
    for s in range(children + 1):
        at = knot_ends[s]
        if s > 0 and sketched[s - 1] > 0:
            many, mass = int(sketched[s - 1]), float(mass_of[s - 1])
            fill_levels(mass, float(ask[EACH]), ask[LEVEL] / LEVEL_UNITS, int(ask[EVEN]), many, levels)
            at, mass, lost = add_sketch(x, c, at, points[used:], levels, many, mass)
            fill_slopes(x, c, knot_ends[s], at, slopes)
            used += many
            inside += int(mass_of[s - 1])
        else:
            many = int(ends[s + 1] - ends[s])
            at, mass, lost = add_exact(x, c, slopes, at, keys[ends[s] :], times[ends[s] :], many, both)
        knot_ends[s + 1] = at
        masses[s] = mass - lost
        bottom += lost
    sources = SourceKnots(x, c, slopes, knot_ends, masses)
    return MergedReply(below, inside, -1, keys, times, sources, int(bottom), above)


def distribution_function(x: Any, c: Any, slopes: Any, ends: Any, masses: Any) -> tuple[Any, Any, Any]:
    """Return the distribution function of all sources together: knots, and the values just below and at them.

    More than `MERGED_AT_ONCE` sources are first reduced in groups to as many knots each: the work would otherwise grow
    with the square of their number.
    """
    sources = len(ends) - 1
    while sources > MERGED_AT_ONCE:
        groups = (sources + MERGED_AT_ONCE - 1) // MERGED_AT_ONCE
        new_x, new_c = np.empty(groups * MERGED_AT_ONCE, np.float64), np.empty(groups * MERGED_AT_ONCE, np.float64)
        new_ends, new_masses = np.zeros(groups + 1, np.int64), np.zeros(groups, np.float64)
        for g in range(groups):
            a, b = g * MERGED_AT_ONCE, min((g + 1) * MERGED_AT_ONCE, sources)
            total = ends[b] - ends[a]
            knots, left, right = np.empty(total, np.float64), np.empty(total, np.float64), np.empty(total, np.float64)
            add_distributions(x, c, slopes, ends[a : b + 1], masses[a:b], b - a, knots, left, right)
            mass = masses[a:b].sum()
            at = new_ends[g]
            for i in range(MERGED_AT_ONCE if total else 0):
                value = quantile_at(mass * (i + 0.5) / MERGED_AT_ONCE, knots, left, right, total)
                if value < math.inf:
                    new_x[at], new_c[at] = value, mass * (i + 0.5) / MERGED_AT_ONCE
                    at += 1
            new_ends[g + 1], new_masses[g] = at, mass
        x, c, slopes, ends, masses, sources = new_x, new_c, np.zeros_like(new_x), new_ends, new_masses, groups
    total = ends[sources] - ends[0]
    knots, left, right = np.empty(total, np.float64), np.empty(total, np.float64), np.empty(total, np.float64)
    add_distributions(x, c, slopes, ends, masses, sources, knots, left, right)
    return knots, left, right


def sketch_points(ask: Any, reply: MergedReply, many: int) -> Any:
    """Return `many` points of the distribution function of a `MergedReply`."""
    count, keys, times = reply.run_count, reply.keys, reply.times
    points = np.empty(many, np.float64)
    fill_levels(float(reply.inside), float(ask[EACH]), ask[LEVEL] / LEVEL_UNITS, int(ask[EVEN]), many, points)
    if count >= 0:  # more runs than may be listed: the points are some of them
        both_ints = np.empty(1, np.int64)
        both = (both_ints, both_ints.view(np.float64))
        at, upto = 0, float(times[0])
        for j in range(many):
            while upto < points[j] and at < count - 1:
                at += 1
                upto += times[at]
            points[j] = float_of_key(int(keys[at]), both)
        return points
    bottom = reply.bottom
    knots, left, right = distribution_function(*reply.sources)
    for j in range(many):
        target = points[j] - bottom
        points[j] = -math.inf if target < 0 and bottom else quantile_at(target, knots, left, right, len(knots))
    return points


def grow_buffer(out: Any, at: int, more: int) -> Any:
    """Return a buffer with `more` bytes of zeros from bit `at` on: this one, or a longer copy."""
    needed = (at >> 3) + 1 + more  # 1: the byte that bit `at` is in may be begun
    if needed <= len(out):
        return out
    longer = np.zeros(2 * needed, np.uint8)
    longer[: (at >> 3) + 1] = out[: (at >> 3) + 1]
    return longer


def encode_replies(
    asks: Any,
    bits: Any,
    weights: Any,
    segments: Any,
    trials: int,
    members: Any,
    data: Any,
    cuts: Any,
    child_cuts: Any,
    count_bits: int,
) -> tuple[Any, Any, Any, int]:
    """Return the replies of some devices to all questions: bytes, where each ends, and how many numbers each holds.

    The last value is the index of the first of the children's strings that is no reply to the questions, or -1.

    The scores of member i are the segments of ``members[i]``, one for each trial; its children's replies are the
    strings ``child_cuts[i]:child_cuts[i + 1]`` of `data`, cut at `cuts`.
    """
    out = np.zeros(64 + 32 * len(members) * len(asks), np.uint8)
    ends, numbers = np.zeros(len(members) + 1, np.int64), np.zeros(len(members), np.int64)
    at, wrong = 0, -1
    for i in range(len(members)):
        places = 8 * cuts[child_cuts[i] : child_cuts[i + 1]]
        most_runs = 8 * (cuts[child_cuts[i + 1]] - cuts[child_cuts[i]])  # in children's replies: a run takes a bit
        for p in range(len(asks)):
            ask = asks[p]
            segment = members[i] * trials + ask[TRIAL]
            first, last = int(segments[segment]), int(segments[segment + 1])
            room = last - first + most_runs
            reply = combine_reports(ask, bits, weights, first, last, data, places, room, count_bits)
            inside, count, keys, times = reply.inside, reply.run_count, reply.keys, reply.times
            if ask[COUNTED]:
                out = grow_buffer(out, at, 32)
                at = put_count(out, at, reply.below, count_bits)
                numbers[i] += 1
                if ask[COUNTED] == OUTSIDE:
                    at = put_count(out, at, reply.above, count_bits)
                    numbers[i] += 1
            tied = count <= ask[POINTS] and count * _TIED <= inside // ask[EACH]
            if count >= 0 and (ask[SIDE] or count <= ask[LIMIT] or tied):
                a, b = 0, count
                if ask[SIDE]:
                    a, b = runs_of_one_side(keys, times, count, int(ask[SIDE]), int(ask[LIMIT]))
                out = grow_buffer(out, at, room_for_keys(b - a))
                if ask[SIDE] == 0:
                    at = put_bits(out, at, 1, 1)
                at = put_keys(out, at, keys[a:], b - a, int(ask[BEGIN]), int(ask[END]), 1)
                at = put_times(out, at, times[a:], b - a)
                numbers[i] += b - a
                for j in range(a, b):
                    if times[j] != 1:
                        numbers[i] += b - a
                        break
                continue
            many = point_count(inside, int(ask[POINTS]), int(ask[GROWTH]), int(ask[USUAL]))
            out = grow_buffer(out, at, 64 + 10 * many)
            at = put_bits(out, at, 0, 1)
            at = put_count(out, at, inside, count_bits)
            at = put_points(out, at, sketch_points(ask, reply, many), many, sketch_fineness(ask, inside, many))
            numbers[i] += 1 + many
        at = (at + 7) & -8
        ends[i + 1] = at >> 3
        for j in range(len(places)):
            if (places[j] + 7) >> 3 != cuts[child_cuts[i] + j + 1] and wrong < 0:
                wrong = child_cuts[i] + j
    return out[: at >> 3], ends, numbers, int(wrong)
