"""A noisy histogram on small tables without chance: every new example, every noise, weighed by its exact probability.

Which scores are hidden and which get one more copy is counted in fractions. Noise has its law in floats, of which less
than TAIL is cut off on either side; what is cut off counts as the worst outcome, so every risk is an upper bound.
"""

import itertools
import math
from fractions import Fraction
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from conformesh.privacy.noise import noise_law

TAIL = 1e-11


class Rule(NamedTuple):
    """When a pivot is accepted: alpha n~ - above~ >= need; the answer is +infinity unless n~ >= number_needed.

    `items` replaces n~ where the number of items is public.
    """

    alpha: Fraction
    need: Fraction
    number_needed: int = 0
    items: int | None = None


class Noise(NamedTuple):
    """Epsilon and shape of the noise of each cell above p_1 and of n; devices may leave out noise in some of them."""

    cell_epsilon: Fraction
    cell_shapes: tuple[Fraction, ...]
    number_epsilon: Fraction | None = None
    number_shape: Fraction = Fraction(1)


@lru_cache(maxsize=256)
def noise_table(epsilon, shape):
    """Return the values and chances of noise, but for the tails; shape 0 is no noise."""
    if epsilon is None or shape == 0:
        return np.array([0]), np.array([1.0])
    known = noise_law(epsilon, shape)
    tails = np.cumsum(known.chances[::-1])[::-1][known.reach :]
    reach = min(max(int(np.argmax(tails < TAIL)), 1), known.reach)
    side = np.arange(-reach, reach + 1)
    return side, known.chances[known.reach + side]


@lru_cache(maxsize=256)
def _steps(epsilon, shape, points):
    """Return the chances to get from each of so many points to each that noise leads to."""
    _, each = noise_table(epsilon, shape)
    found = np.zeros((points, points + len(each) - 1))
    for start in range(points):
        found[start, start : start + len(each)] = each
    return found


@lru_cache(maxsize=500_000)
def answers(above, n, rule, noise):
    """Return the chance of each answer, 0..w with w for +infinity, and the chance of what was cut off, at most.

    `above[j]` is the number of items above pivot j. A walk over the cells from the right: the state is the noise of
    above~, for each limit, the largest above~ that n~ lets pass.
    """
    w = len(above)
    found = np.zeros(w + 1)
    noises, chances = noise_table(noise.number_epsilon, noise.number_shape)
    number = n + noises if rule.items is None else np.full(len(noises), rule.items)
    is_enough = number >= rule.number_needed
    found[w] = chances[~is_enough].sum()
    # floor(alpha n~ - need) in whole numbers
    (a, q), (top, bottom) = rule.alpha.as_integer_ratio(), rule.need.as_integer_ratio()
    limits = (a * bottom * number[is_enough] - q * top) // (q * bottom)
    limit, which = np.unique(limits, return_inverse=True)
    weight = np.bincount(which, weights=chances[is_enough], minlength=len(limit))
    state, low = weight[:, None], 0  # (limit, noise of above~ from `low` on), of walks without a rejection
    for j in range(w - 1, -1, -1) if len(limit) else ():
        low -= len(noise_table(noise.cell_epsilon, noise.cell_shapes[j])[0]) // 2
        state = state @ _steps(noise.cell_epsilon, noise.cell_shapes[j], state.shape[1])
        rejected = above[j] + low + np.arange(state.shape[1])[None, :] > limit[:, None]
        found[j + 1] += float(state[rejected].sum())
        state = np.where(rejected, 0.0, state)
        keep = np.flatnonzero(state.max(axis=0) > 1e-17)  # what is dropped counts as cut off
        if len(keep):
            state, low = state[:, keep[0] : keep[-1] + 1], low + int(keep[0])
    found[0] += float(state.sum())
    return found, max(1 - float(found.sum()), 0.0)


def above_of(counts):
    """Return how many items lie above each pivot, from those in each cell; the last cell is above all pivots."""
    return tuple(itertools.accumulate(counts[:0:-1]))[::-1]


def expected_above(counts, rule, noise):
    """Return E above(answer) on fixed items, at most; nothing is above +infinity."""
    above = above_of(counts)
    chances, lost = answers(above, sum(counts), rule, noise)
    return float(chances[:-1] @ np.array(above)) + lost * sum(counts)


# --- tables: each device has one item more than scores, and each of them is as likely to be the new example -----------


class Contribution(NamedTuple):
    """What a device contributes: its scores (copies None), or copies * fill items."""

    copies: int | None = None
    fill: int | None = None


@lru_cache(maxsize=100_000)
def items_of(counts, contribution):
    """Return the chances of what a device with these scores contributes to each cell, as fractions."""
    if contribution.copies is None:
        return {counts: Fraction(1)}
    n, whole = sum(counts), contribution.copies * contribution.fill
    if n <= contribution.fill:
        padded = [contribution.copies * c for c in counts]
        padded[-1] += whole - sum(padded)
        return {tuple(padded): Fraction(1)}
    each, more = divmod(whole, n)
    found = {}
    for extra in itertools.product(*(range(min(c, more) + 1) for c in counts)):
        if sum(extra) == more:
            ways = math.prod(map(math.comb, counts, extra))
            found[tuple(each * c + e for c, e in zip(counts, extra, strict=True))] = Fraction(ways, math.comb(n, more))
    return found


def summed(first, second):
    """Return the law of a sum of independent vectors."""
    found = {}
    for (a, p), (b, q) in itertools.product(first.items(), second.items()):
        key = tuple(map(int.__add__, a, b))
        found[key] = found.get(key, 0) + p * q
    return found


def without(counts, cell):
    return tuple(c - (i == cell) for i, c in enumerate(counts))


def mixed(table, contributions):
    """Return for each device: new example's cell -> (its chance, what the device then contributes)."""
    return [
        {
            cell: (Fraction(counts[cell], sum(counts)), items_of(without(counts, cell), contribution))
            for cell in range(len(counts))
            if counts[cell]
        }
        for counts, contribution in zip(table, contributions, strict=True)
    ]


def histograms(table, shares, contributions):
    """Return (new example's cell, total in each cell) -> chance, the device of the new example drawn by its share."""
    devices = mixed(table, contributions)
    anyhow = [{} for _ in devices]
    for law_of, device in zip(anyhow, devices, strict=True):
        for chance, items in device.values():
            for key, p in items.items():
                law_of[key] = law_of.get(key, 0) + chance * p
    found = {}
    for k, device in enumerate(devices):
        others = {(0,) * len(table[0]): Fraction(1)}
        for j, law_of in enumerate(anyhow):
            others = summed(others, law_of) if j != k else others
        for cell, (chance, items) in device.items():
            for total, p in summed(others, items).items():
                key = cell, total
                found[key] = found.get(key, 0) + shares[k] * chance * p
    return found


def risk(table, shares, rule, noise, contributions=None):
    """Return the chance that the new example is not covered, at most.

    `table[k]` says how many of the n_k + 1 items of device k lie in each cell.
    """
    contributions = contributions or [Contribution()] * len(table)
    missed = 0.0
    for (cell, total), chance in histograms(table, shares, contributions).items():
        found, lost = answers(above_of(total), sum(total), rule, noise)
        missed += float(chance) * (float(found[:cell].sum()) + lost)
    return missed


def shares_by_size(table):
    """Return n_k/n: a new example comes from a device in proportion to its scores."""
    sizes = [sum(counts) - 1 for counts in table]
    return [Fraction(size, sum(sizes)) for size in sizes]


def group_risks(table, groups, rule, noise):
    """Return for each group: the chance of a miss in it, at most, and the chance of the group.

    `groups` are ranges of places in the counts of a device: the cells of each group, lowest first.
    """
    found = [[0.0, Fraction(0)] for _ in groups]
    for (place, total), chance in histograms(table, shares_by_size(table), [Contribution()] * len(table)).items():
        g = next(i for i, group in enumerate(groups) if place in group)
        part = tuple(total[i] for i in groups[g])
        chances, lost = answers(above_of(part), sum(part), rule, noise)
        found[g][0] += float(chance) * (float(chances[: place - groups[g][0]].sum()) + lost)
        found[g][1] += chance
    return found


def first_accepted(above, rule, noise):
    """Return the chance of each answer if it were the first accepted pivot, for a public number of items.

    The same walk from the right: whatever was the answer so far is replaced where a pivot is accepted.
    """
    w, limit = len(above), math.floor(rule.alpha * rule.items - rule.need)
    state, low = np.zeros((w + 1, 1)), 0  # (answer so far, noise of above~)
    state[w] = 1.0
    for j in range(w - 1, -1, -1):
        low -= len(noise_table(noise.cell_epsilon, noise.cell_shapes[j])[0]) // 2
        state = state @ _steps(noise.cell_epsilon, noise.cell_shapes[j], state.shape[1])
        accepted = above[j] + low + np.arange(state.shape[1]) <= limit
        moved = state.sum(axis=0) * accepted
        state = state * ~accepted
        state[j] += moved
        keep = np.flatnonzero(state.max(axis=0) > 1e-17)
        state, low = state[:, keep[0] : keep[-1] + 1], low + int(keep[0])
    return state.sum(axis=1)
