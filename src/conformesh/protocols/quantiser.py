"""The quantiser: common bins for everybody's scores ([Wen2025] Eq. (19)), over a given range or one the devices agree on.

Bin m holds the scores in (edge m-1, edge m]; the first also everything below, and what lies above the last edge
overflows: its threshold is +inf, never silently the last edge.

Message     nothing for a given range; else two numbers per round, for as many rounds as the diameter
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from conformesh.protocols.consensus import EXACT, largest
from conformesh.protocols.messages import Protocol
from conformesh.protocols.site import Site
from conformesh.protocols.wire import Wire
from conformesh.samples import Samples


def check_quantiser(bins: int, range_: tuple[float, float] | None) -> None:
    """Refuse a quantiser without bins, or with an empty range."""
    if bins < 1:
        raise ValueError(f"bins must be at least 1, got {bins}")
    if range_ is not None and not (np.isfinite(range_).all() and range_[0] < range_[1]):
        raise ValueError(f"range must be two finite numbers LO < HI, got {range_[0]} {range_[1]}")


def agree_on_edges(
    site: Site, samples: Samples, bins: int, range_: tuple[float, float] | None, wire: Wire = EXACT
) -> Protocol[NDArray[np.float64]]:
    """Return the upper edges of the bins, (trials, bins), the same bits on every device."""
    if range_ is not None:
        low, high = np.full(site.trials, float(range_[0])), np.full(site.trials, float(range_[1]))
    else:
        least, most = samples.extremes()
        ends = np.stack([wire.outward(-least, np.inf), wire.outward(most, np.inf)], axis=1)
        ends = (yield from largest(ends, site))[0].astype(np.float64)  # one maximum serves both ends
        ends = np.where(np.isfinite(ends), ends, 0.0)  # no finite score anywhere: any range will do
        low, high = -ends[0], ends[1]
    share = np.arange(1, bins + 1) / bins
    edges = low[:, None] * (1 - share) + high[:, None] * share  # cannot overflow, and ends exactly at `high`
    return np.asarray(np.maximum.accumulate(np.minimum(edges, high[:, None]), axis=1))
