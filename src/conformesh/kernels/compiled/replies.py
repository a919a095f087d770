"""The loops of `kernels.replies`, compiled from the same source: a packet has the same bits in both.

Numba compiles the entry points below. Where they call a function of `kernels.replies`, it compiles that function too,
because `register_jitable` says that it may; Python goes on to run these functions as they are written. Two of them are
searches in NumPy, and compiled code uses the walks of this module instead (`overload`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numba.extending import overload, register_jitable

from conformesh.kernels import replies as written
from conformesh.kernels.compiled import loop

FEW_SOURCES = 6  # sources: sorting the knots of more is quicker than merging them, a choice that changes no bit

_SHARED = (  # every function of `kernels.replies` that an entry point calls, directly or not
    written.bits_in,
    written.put_bits,
    written.get_bits,
    written.put_gamma,
    written.get_gamma,
    written.put_rice,
    written.get_rice,
    written.put_count,
    written.get_count,
    written.put_raw,
    written.get_raw,
    written.put_keys,
    written.get_keys,
    written.put_times,
    written.get_times,
    written.room_for_keys,
    written.float_of_key,
    written.put_points,
    written.get_points,
    written.scale_units,
    written.unit_of,
    written.usual_low_bits,
    written.best_low_bits,
    written.round_to,
    written.point_count,
    written.fineness,
    written.fill_levels,
    written.add_exact,
    written.add_sketch,
    written.fill_slopes,
    written.add_distributions,
    written.interpolate,
    written.quantile_at,
    written.first_above,
    written.append_local_runs,
    written.merge_runs,
    written.runs_of_one_side,
    written.sketch_fineness,
    written.read_replies,
    written.combine_reports,
    written.distribution_function,
    written.sketch_points,
    written.grow_buffer,
)
for _function in _SHARED:
    register_jitable(_function)

# The entry points: what protocols call.
encode_replies = loop(written.encode_replies)
combine_reports = loop(written.combine_reports)
distribution_function = loop(written.distribution_function)
get_entries = loop(written.get_entries)


@overload(written.add_sources)
def _add_sources(
    x: Any, c: Any, slopes: Any, ends: Any, masses: Any, sources: Any, knots: Any, left: Any, right: Any
) -> Callable[..., None]:
    """Add every source's value just below and at each knot, in one walk for each source."""

    def walk(
        x: Any, c: Any, slopes: Any, ends: Any, masses: Any, sources: Any, knots: Any, left: Any, right: Any
    ) -> None:
        for s in range(sources):
            a, b = ends[s], ends[s + 1]
            if a == b:
                continue
            upto, below = a, a  # the first knot above, and the first at or above
            for i in range(len(knots)):
                v = knots[i]
                while upto < b and x[upto] <= v:
                    upto += 1
                while below < b and x[below] < v:
                    below += 1
                if upto == b:
                    right[i] += masses[s]
                elif upto > a:
                    at = written.interpolate(x, c, slopes, upto, v)
                    right[i] += at
                    if below == upto:  # this source has no knot here: the same value on both sides
                        left[i] += at
                        continue
                if below == b:
                    left[i] += masses[s]
                elif below > a:
                    left[i] += written.interpolate(x, c, slopes, below, v)

    return walk


@overload(written.sort_knots)
def _ascending(x: Any, ends: Any, sources: Any, knots: Any) -> Callable[..., None]:
    """Merge the knots of all sources, each of which ascend already: of few, by looking at the next one of each."""

    def merge(x: Any, ends: Any, sources: Any, knots: Any) -> None:
        total = ends[sources] - ends[0]
        if sources > FEW_SOURCES:
            knots[:total] = np.sort(x[ends[0] : ends[sources]])
            return
        at = ends[:sources].copy()
        for i in range(total):
            best = -1
            for s in range(sources):
                if at[s] < ends[s + 1] and (best < 0 or x[at[s]] < x[at[best]]):
                    best = s
            knots[i] = x[at[best]]
            at[best] += 1

    return merge
