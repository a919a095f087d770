"""Walks over a graph in compressed rows: breadth-first levels, components and eccentricities.

A graph is `indptr` (devices + 1) and `indices` (directed edges): the neighbours of row k are
``indices[indptr[k]:indptr[k + 1]]``. Every compiled walk is linear in the edges it has to look at; without a compiler a
walk is an interpreted loop over the rows, and what looks at all edges or walks from everywhere is done in arrays.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from conformesh.common.array_types import Bools
from conformesh.kernels.compilation import has_compiled_twin

_Offsets = NDArray[np.int64]
_Rows = NDArray[np.int32]
_FEW_SENDERS = 4  # senders; up to this many are looked up one by one, which takes fewer NumPy calls
_VISITS = 10  # edges that a walk visits for each row, about: the unit of its work is one edge


def _walk_work(indptr: _Offsets, *_: Any) -> int:
    return _VISITS * (indptr.size - 1)


def _eccentricity_work(indptr: _Offsets, indices: _Rows) -> float:
    # In NumPy every hop combines one bit for each pair of rows, 64 of them in a word: 25 words in the time of an edge.
    return indices.size * ((indptr.size - 1) / 64) * int(_levels(indptr, indices).max()) / 25


@has_compiled_twin("graph", work=_walk_work)
def breadth_first(indptr: _Offsets, indices: _Rows, source: int, levels: _Offsets, queue: _Offsets) -> int:
    """Fill `levels` with hops from `source` (-1: out of reach) and `queue` with rows by distance; return how many.

    The walk stops at the last row found: on a dense graph that is long before the last edge.
    """
    hops = [-1] * levels.size
    hops[source] = 0
    order = _walk(indptr, indices, source, hops, 1)
    levels[:] = hops
    queue[: len(order)] = order
    return len(order)


def _levels(indptr: _Offsets, indices: _Rows) -> _Offsets:
    """Return the hops from row 0 to every row."""
    levels = np.empty(indptr.size - 1, np.int64)
    breadth_first(indptr, indices, 0, levels, np.empty_like(levels))
    return levels


def _walk(indptr: _Offsets, indices: _Rows, source: int, hops: list[int], step: int) -> list[int]:
    """Visit what `source` reaches and has no hops yet, counting by `step`; return the rows in the order of the walk."""
    order = [source]
    left = hops.count(-1)
    ends = indptr.tolist()
    for k in order:  # grows while it is walked
        if not left:
            break
        for j in indices[ends[k] : ends[k + 1]].tolist():
            if hops[j] < 0:
                hops[j] = hops[k] + step
                order.append(j)
                left -= 1
    return order


@has_compiled_twin("graph", work=_walk_work)
def components(indptr: _Offsets, indices: _Rows) -> _Offsets:
    """Return one label per row, equal within a connected component, numbered 0, 1, ... by their lowest row."""
    K = indptr.size - 1
    labels = [-1] * K
    count = 0
    for source in range(K):
        if labels[source] < 0:
            labels[source] = count
            _walk(indptr, indices, source, labels, 0)
            count += 1
    return np.array(labels, dtype=np.int64)


@has_compiled_twin("graph", work=_eccentricity_work)
def eccentricities(indptr: _Offsets, indices: _Rows) -> _Offsets:
    """Return, for every row of a connected graph, the hops to the row farthest from it; the largest is the diameter."""
    K = indptr.size - 1
    result = np.zeros(K, np.int64)
    reached = np.packbits(np.eye(K, dtype=bool), axis=1)  # who is within so many hops of whom, eight rows a byte
    reached = np.pad(reached, ((0, 0), (0, -reached.shape[1] % 8))).view(np.uint64)
    everybody = np.bitwise_or.reduce(reached, axis=0)
    hops = 0
    while (short := (reached != everybody).any(axis=1)).any():
        hops += 1
        result[short] = hops
        reached |= np.bitwise_or.reduceat(reached[indices], indptr[:-1], axis=0)
    return result


@has_compiled_twin("graph", work=_walk_work)
def is_bipartite(indptr: _Offsets, indices: _Rows) -> bool:
    """Say whether a connected graph has two sides with every edge between them: no edge inside an even or odd level."""
    levels = _levels(indptr, indices)
    return bool(((levels[_receivers(indptr)] - levels[indices]) % 2).all())


@has_compiled_twin("graph", work=_walk_work)
def two_core(indptr: _Offsets, indices: _Rows) -> Bools:
    """Mark the rows that stay when leaves are cut off again and again: those on cycles and on paths between cycles.

    Entries of a row that point at itself (a matrix's diagonal) are passed over.
    """
    K = indptr.size - 1
    inside = indices != _receivers(indptr)
    degree = np.bincount(_receivers(indptr)[inside], minlength=K).tolist()
    stays = [True] * K
    leaves = [k for k in range(K) if degree[k] <= 1]
    for k in leaves:  # grows while it is walked
        stays[k] = False
        for j in indices[indptr[k] : indptr[k + 1]].tolist():
            if stays[j] and j != k:
                degree[j] -= 1
                if degree[j] == 1:
                    leaves.append(j)
    return np.array(stays)


@has_compiled_twin("graph", work=_walk_work)
def rows_with_children(indptr: _Offsets, indices: _Rows, levels: _Offsets) -> Bools:
    """Mark the rows that have a child where every row takes its lowest neighbour one level up as its parent."""
    receivers = _receivers(indptr)
    upward = np.flatnonzero(levels[indices] == levels[receivers] - 1)
    _, first = np.unique(receivers[upward], return_index=True)
    has_child = np.zeros(levels.size, dtype=bool)
    has_child[indices[upward[first]]] = True
    return has_child


@has_compiled_twin("graph", work=lambda ends, links, device, _: _VISITS * (ends.size / 2 - links * (device - links)))
def attach_by_degree(ends: _Offsets, links: int, device: int, chances: NDArray[np.float64]) -> tuple[int, int]:
    """Join `device` and all after it to `links` earlier devices each, drawn with chances as their degrees.

    `ends` lists the ends of all edges, 2 `links` for each device from number `links` on: those it joins, then itself as
    often. One of them drawn at random is a device drawn by its degree; who was drawn before is drawn again. Each try
    takes the next of `chances`, from 0 to below 1. Return the first device for which they did not suffice, and how many
    the devices before it took.
    """
    devices = ends.size // (2 * links) + links
    found, draws = ends[: 2 * links * (device - links)].tolist(), chances.tolist()
    used = 0
    for new in range(device, devices):
        chosen: list[int] = []
        for tries in range(used, len(draws)):
            one = found[int(draws[tries] * len(found))]
            if one not in chosen:
                chosen.append(one)
                if len(chosen) == links:
                    used = tries + 1
                    break
        else:
            break
        found += chosen + [new] * links
    ends[: len(found)] = found
    return len(found) // (2 * links) + links, used


@has_compiled_twin("graph", work=lambda indptr, indices, *_: indices.size / 10)
def mean_memory_distance(indptr: _Offsets, indices: _Rows, place: _Offsets) -> float:
    """Return how far apart in memory two neighbours lie on average, with row k at ``place[k]``."""
    return float(np.abs(place[_receivers(indptr)] - place[indices]).sum()) / max(indices.size, 1)


@has_compiled_twin("graph", work=lambda indptr, indices, *_: indices.size / 10)
def reorder_neighbours(indptr: _Offsets, indices: _Rows, order: _Offsets, place: _Offsets, starts: _Offsets) -> _Rows:
    """Return the neighbours' places row by row in `order`, from ``starts[i]`` on; within a row the order stays."""
    edges, counts = edges_of_rows(indptr, order)
    out = np.empty_like(indices)
    out[np.arange(len(edges)) + np.repeat(starts[: len(order)] - (np.cumsum(counts) - counts), counts)] = place[
        indices[edges]
    ]
    return out


@has_compiled_twin("graph", work=lambda indptr, indices, speakers, *_: _VISITS * speakers.size)
def message_pairs(
    indptr: _Offsets, indices: _Rows, speakers: _Offsets, speaking: Bools, near: Bools
) -> tuple[_Offsets, _Offsets]:
    """Return (receiver, sender) of every message when `speakers` speak: by receiver, then in the receiver's order.

    Work follows the speakers and who hears them. `speaking` and `near` (rows,) are false before and after.
    """
    edges, counts = edges_of_rows(indptr, speakers)
    K = indptr.size - 1
    messages = np.sort(indices[edges].astype(np.int64) * K + np.repeat(speakers, counts))
    return np.divmod(messages, K)


@has_compiled_twin("graph", work=lambda indptr, indices, speakers, receivers, senders, *_: _VISITS * senders.size)
def match_senders(
    indptr: _Offsets, indices: _Rows, speakers: _Offsets, receivers: _Offsets, senders: _Offsets, numbers: _Offsets
) -> tuple[_Offsets, int]:
    """Return the place among `speakers` of each sender, and the first sender that its receiver cannot hear.

    That is one that does not speak or is no neighbour; -1 if there is none. Work follows the speakers and who is asked
    for. `numbers` (rows,) is zero before and after; a row's neighbours are ascending.
    """
    K = indptr.size - 1
    if senders.size <= _FEW_SENDERS:  # a chain has one a round: a handful of calls, not twenty
        which = np.zeros(senders.size, np.int64)
        for i, (j, k) in enumerate(zip(senders.tolist(), receivers.tolist(), strict=True)):
            at = np.flatnonzero(speakers == j)
            if not (at.size and 0 <= k < K and (indices[indptr[k] : indptr[k + 1]] == j).any()):
                return which, i
            which[i] = at[0]
        return which, -1
    numbers[speakers] = np.arange(1, speakers.size + 1)
    which = numbers.take(senders, mode="clip") - 1
    numbers[speakers] = 0
    known = (which >= 0) & (senders >= 0) & (senders < K) & (receivers >= 0) & (receivers < K)
    ends = np.where(known, np.stack([receivers, senders]), 0)
    ends = np.where(np.diff(indptr)[ends[0]] <= np.diff(indptr)[ends[1]], ends, ends[::-1])  # the shorter list first
    edges, counts = edges_of_rows(indptr, ends[0])
    asked = np.repeat(np.arange(senders.size), counts)
    known[np.bincount(asked[indices[edges] == ends[1][asked]], minlength=senders.size) == 0] = False
    return which, -1 if known.all() else int(np.argmin(known))


def edges_of_rows(indptr: _Offsets, rows: NDArray[Any]) -> tuple[_Offsets, _Offsets]:
    """Return where the edges of these rows stand in `indices`, row by row, and how many each row has."""
    starts = indptr[rows]
    counts = indptr[rows + 1] - starts
    within = np.arange(int(counts.sum())) - np.repeat(np.cumsum(counts) - counts, counts)
    return np.asarray(np.repeat(starts, counts) + within), counts


def _receivers(indptr: _Offsets) -> _Offsets:
    return np.repeat(np.arange(indptr.size - 1), np.diff(indptr))
