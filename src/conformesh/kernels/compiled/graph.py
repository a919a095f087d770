"""Walks over a graph in compressed rows, each linear in the edges it has to look at."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from conformesh.common.array_types import Bools, Floats, Ints
from conformesh.kernels.compiled import loop

Rows = NDArray[np.int32]


@loop
def breadth_first_compiled(indptr: Ints, indices: Rows, source: int, levels: Ints, queue: Ints) -> int:
    """Fill `levels` with hops from `source` (-1: out of reach) and `queue` with rows by distance; return how many.

    The walk stops at the last row found: on a dense graph that is long before the last edge.
    """
    levels[:] = -1
    levels[source] = 0
    queue[0] = source
    reached = 1
    head = 0
    while head < reached < levels.size:
        k = queue[head]
        head += 1
        for p in range(indptr[k], indptr[k + 1]):
            j = indices[p]
            if levels[j] < 0:
                levels[j] = levels[k] + 1
                queue[reached] = j
                reached += 1
    return reached


@loop
def components_compiled(indptr: Ints, indices: Rows) -> Ints:
    """Return one label per row, equal within a connected component, numbered 0, 1, ... by their lowest row."""
    K = indptr.size - 1
    labels = np.full(K, -1, np.int64)
    queue = np.empty(K, np.int64)
    count = 0
    for source in range(K):
        if labels[source] >= 0:
            continue
        labels[source] = count
        queue[0] = source
        head, reached = 0, 1
        while head < reached:
            k = queue[head]
            head += 1
            for p in range(indptr[k], indptr[k + 1]):
                j = indices[p]
                if labels[j] < 0:
                    labels[j] = count
                    queue[reached] = j
                    reached += 1
        count += 1
    return labels


@loop
def eccentricities_compiled(indptr: Ints, indices: Rows) -> Ints:
    """Return, for every row of a connected graph, the hops to the row farthest from it; the largest is the diameter."""
    K = indptr.size - 1
    levels = np.empty(K, np.int64)
    queue = np.empty(K, np.int64)
    result = np.empty(K, np.int64)
    for source in range(K):
        reached = breadth_first_compiled(indptr, indices, source, levels, queue)
        result[source] = levels[queue[reached - 1]]
    return result


@loop
def is_bipartite_compiled(indptr: Ints, indices: Rows) -> bool:
    """Say whether a connected graph has two sides with every edge between them: no edge inside an even or odd level."""
    K = indptr.size - 1
    levels = np.empty(K, np.int64)
    breadth_first_compiled(indptr, indices, 0, levels, np.empty(K, np.int64))
    for k in range(K):
        for p in range(indptr[k], indptr[k + 1]):
            if (levels[k] - levels[indices[p]]) % 2 == 0:
                return False
    return True


@loop
def two_core_compiled(indptr: Ints, indices: Rows) -> Bools:
    """Mark the rows that stay when leaves are cut off again and again: those on cycles and on paths between cycles.

    Entries of a row that point at itself (a matrix's diagonal) are passed over.
    """
    K = indptr.size - 1
    stays = np.ones(K, np.bool_)
    degree = np.zeros(K, np.int64)
    leaves = np.empty(K, np.int64)
    count = 0
    for k in range(K):
        for p in range(indptr[k], indptr[k + 1]):
            degree[k] += indices[p] != k
        if degree[k] <= 1:
            leaves[count] = k
            count += 1
    head = 0
    while head < count:
        k = leaves[head]
        head += 1
        stays[k] = False
        for p in range(indptr[k], indptr[k + 1]):
            j = indices[p]
            if stays[j] and j != k:
                degree[j] -= 1
                if degree[j] == 1:
                    leaves[count] = j
                    count += 1
    return stays


@loop
def rows_with_children_compiled(indptr: Ints, indices: Rows, levels: Ints) -> Bools:
    """Mark the rows that have a child where every row takes its lowest neighbour one level up as its parent."""
    K = indptr.size - 1
    has_child = np.zeros(K, np.bool_)
    for k in range(K):
        for p in range(indptr[k], indptr[k + 1]):
            if levels[indices[p]] == levels[k] - 1:
                has_child[indices[p]] = True
                break
    return has_child


@loop
def attach_by_degree_compiled(ends: Ints, links: int, device: int, chances: Floats) -> tuple[int, int]:
    """Join `device` and all after it to `links` earlier ends each, drawn from `ends`."""
    devices = ends.size // (2 * links) + links
    used = 0
    while device < devices:
        start = 2 * links * (device - links)
        drawn, tries = 0, used
        while drawn < links and tries < chances.size:
            chosen = ends[int(chances[tries] * start)]
            tries += 1
            fresh = True
            for i in range(start, start + drawn):
                fresh = fresh and ends[i] != chosen
            if fresh:
                ends[start + drawn] = chosen
                drawn += 1
        if drawn < links:
            break
        ends[start + links : start + 2 * links] = device
        device, used = device + 1, tries
    return device, used


@loop
def mean_memory_distance_compiled(indptr: Ints, indices: Rows, place: Ints) -> float:
    """Return how far apart in memory two neighbours lie on average, with row k at ``place[k]``."""
    total = 0.0
    for k in range(indptr.size - 1):
        for p in range(indptr[k], indptr[k + 1]):
            total += abs(place[k] - place[indices[p]])
    return total / max(indices.size, 1)


@loop
def reorder_neighbours_compiled(indptr: Ints, indices: Rows, order: Ints, place: Ints, starts: Ints) -> Rows:
    """Return the neighbours' places row by row in `order`, from ``starts[i]`` on; within a row the order stays."""
    out = np.empty_like(indices)
    for i in range(order.size):
        at = starts[i]
        for p in range(indptr[order[i]], indptr[order[i] + 1]):
            out[at] = place[indices[p]]
            at += 1
    return out


@loop
def message_pairs_compiled(
    indptr: Ints, indices: Rows, speakers: Ints, speaking: Bools, near: Bools
) -> tuple[Ints, Ints]:
    """Return (receiver, sender) of every message when `speakers` speak: by receiver, then in the receiver's order.

    Work follows the speakers and who hears them. `speaking` and `near` (rows,) are false before and after.
    """
    count = 0
    for k in speakers:
        speaking[k] = True
        count += indptr[k + 1] - indptr[k]
    listeners = np.empty(count, np.int64)
    found = 0
    for k in speakers:
        for p in range(indptr[k], indptr[k + 1]):
            j = indices[p]
            if not near[j]:
                near[j] = True
                listeners[found] = j
                found += 1
    listeners = np.sort(listeners[:found])
    receiver, sender = np.empty(count, np.int64), np.empty(count, np.int64)
    at = 0
    for j in listeners:
        near[j] = False
        for p in range(indptr[j], indptr[j + 1]):
            if speaking[indices[p]]:
                receiver[at] = j
                sender[at] = indices[p]
                at += 1
    for k in speakers:
        speaking[k] = False
    return receiver, sender


@loop
def match_senders_compiled(
    indptr: Ints,
    indices: Rows,
    speakers: Ints,
    receivers: Ints,
    senders: Ints,
    numbers: Ints,
) -> tuple[Ints, int]:
    """Return the place among `speakers` of each sender, and the first that its receiver cannot hear.

    That is one that does not speak or is no neighbour; -1 if there is none. Work follows the speakers and who is asked
    for. `numbers` (rows,) is zero before and after; a row's neighbours are ascending.
    """
    K = indptr.size - 1
    which = np.empty(senders.size, np.int64)
    for i in range(speakers.size):
        numbers[speakers[i]] = i + 1
    strange = -1
    for i in range(senders.size):
        j, k = senders[i], receivers[i]
        near = 0 <= j < K and 0 <= k < K and numbers[j] > 0
        if near:
            if indptr[j + 1] - indptr[j] < indptr[k + 1] - indptr[k]:  # the shorter list says it too
                j, k = k, j
            low, high = indptr[k], indptr[k + 1]
            while low < high:
                middle = (low + high) // 2
                if indices[middle] < j:
                    low = middle + 1
                else:
                    high = middle
            near = low < indptr[k + 1] and indices[low] == j
        if not near:
            strange = i
            break
        which[i] = numbers[senders[i]] - 1
    for i in range(speakers.size):
        numbers[speakers[i]] = 0
    return which, strange
