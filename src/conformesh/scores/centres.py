r"""Centres: public points near which coverage holds, and how near an input is to each of them.

Every input x has integer weights H(x, c) for the centres c, which add up to 2^16. A new example draws a centre with
probability H(x, c) / 2^16; given the centre, it comes from the devices' mixture times H(., c), which is a covariate
shift with a known ratio. So the threshold of centre c is a weighted rank with w = H(., c), and coverage holds given the
centre, hence near it, and on average ([Hore2025], randomly localised conformal prediction, with centres that are known
beforehand; docs/guarantees.md). All thresholds come from one run, and a query sends nothing.

The rank needs a bound on H(., c). It is one by construction: what a kernel would give beyond a centre's cap goes to the
nearest centres that have room.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from conformesh.common.array_types import Floats, Ints
from conformesh.common.arrays import as_input_rows
from conformesh.common.random_streams import resolve_seed
from conformesh.scores.draws import Rng, draw_uniforms, uniforms_by_key

WEIGHT_UNITS = 2**16  # sum of the weights of an input at all centres: 16 bits leave 36 of the 52 exact ones for scores
_LARGEST_DISTANCE = 1e150  # in bandwidths; larger distances are cut here so that their squares stay finite
CHUNK_ROWS = 1 << 14  # rows whose weights are computed together: bounds memory, any value gives the same weights
_CENTRE = "centre"  # prefix of the part names, and the purpose of the draws of centres


@dataclass(frozen=True, eq=False)
class Centres:
    """Public points, near which coverage is to hold, and how near an input is to each.

    Attributes
    ----------
    points
        Shape (centres, features).
    bandwidth
        How far a centre reaches, in units of `scales`: the standard deviation of a Gaussian kernel.
    scales
        By how much each feature is divided before distances are taken.
    caps
        The most that any input weighs at each centre, of 2^16.
    """

    points: Floats
    bandwidth: float
    scales: Floats
    caps: Ints

    def __post_init__(self) -> None:
        many, features = self.points.shape if self.points.ndim == 2 else (0, 0)
        if not many or not np.isfinite(self.points).all():
            raise ValueError(f"centres must be finite numbers, a row each, got shape {self.points.shape}")
        if not 0 < self.bandwidth < math.inf:
            raise ValueError(f"bandwidth must be a number above 0, got {self.bandwidth}")
        if self.scales.shape != (features,) or not ((self.scales > 0) & np.isfinite(self.scales)).all():
            raise ValueError(f"scales must be {features} numbers above 0, one for each feature, got {self.scales}")
        if self.caps.shape != (many,) or (self.caps < 1).any() or self.caps.sum() < WEIGHT_UNITS:
            raise ValueError(
                f"caps must be {many} whole numbers above 0 that add up to at least {WEIGHT_UNITS}, got {self.caps}"
            )

    @classmethod
    def at(cls, points: ArrayLike, bandwidth: float, *, scales: ArrayLike | None = None, caps: Any = None) -> Centres:
        """Return centres at given points; features count as they are, and caps are none, unless given.

        >>> Centres.at([0.0, 1.0], bandwidth=0.5).weights([0.0, 0.5]).tolist()
        [[57724, 7812], [32768, 32768]]
        """
        table = as_input_rows(points, "centres")
        each = np.ones(table.shape[1]) if scales is None else np.asarray(scales, dtype=np.float64)
        most = np.full(len(table), WEIGHT_UNITS) if caps is None else np.asarray(caps, dtype=np.int64)
        return cls(table, float(bandwidth), each, most)

    def __len__(self) -> int:
        return len(self.points)

    def weights(self, inputs: ArrayLike) -> Ints:
        """Return the weights of inputs at the centres, (rows, centres): each row adds up to 2^16."""
        rows = self._rows(inputs)
        found = np.empty((len(rows), len(self)), dtype=np.int64)
        for start in range(0, len(rows), CHUNK_ROWS):
            found[start : start + CHUNK_ROWS] = self._weights(rows[start : start + CHUNK_ROWS])
        return found

    def nearest(self, inputs: ArrayLike) -> Ints:
        """Return the centre that each input is nearest to."""
        rows = self._rows(inputs)
        parts = [self._distances(rows[start : start + CHUNK_ROWS]) for start in range(0, len(rows), CHUNK_ROWS)]
        return np.concatenate([np.empty(0, np.int64), *(part.argmin(axis=1) for part in parts)]).astype(np.int64)

    def draw(self, inputs: ArrayLike, *, rng: Rng | None = None, keys: Iterable[Any] | None = None) -> Ints:
        """Draw a centre for each input by its weights; `rng` and `keys` are as in `Result.predict`."""
        rows = self._rows(inputs)
        if keys is not None and rng is not None:
            raise ValueError("give rng or keys, not both: either says how centres are drawn")
        uniforms = draw_uniforms(rng, _CENTRE, rows) if keys is None else uniforms_by_key(0, _CENTRE, keys, len(rows))
        ends = np.cumsum(self.weights(rows), axis=1)
        below = ends <= np.floor(uniforms * WEIGHT_UNITS)[:, None]  # a whole number below 2^16
        return np.asarray(below.sum(axis=1))

    def _rows(self, inputs: Any) -> Floats:
        rows = as_input_rows(inputs, "inputs")
        if len(rows) and rows.shape[1] != self.points.shape[1]:
            raise ValueError(f"inputs must have {self.points.shape[1]} features, as the centres, got {rows.shape[1]}")
        return rows.reshape(-1, self.points.shape[1])

    def _distances(self, rows: Floats) -> Floats:
        """Return squared distances in bandwidths, (rows, centres)."""
        with np.errstate(over="ignore"):
            apart = (rows[:, None, :] - self.points[None]) / (self.scales * self.bandwidth)
        return np.asarray((np.clip(apart, -_LARGEST_DISTANCE, _LARGEST_DISTANCE) ** 2).sum(axis=2))

    def _weights(self, rows: Floats) -> Ints:
        distances = self._distances(rows)
        kernel = np.exp(-0.5 * (distances - distances.min(axis=1, keepdims=True)))
        sums = np.cumsum(kernel, axis=1)
        ends = np.floor(sums / sums[:, -1:] * WEIGHT_UNITS + 0.5).astype(np.int64)  # rounded together: they end at 2^16
        weights: Ints = np.diff(ends, axis=1, prepend=0)
        over = np.flatnonzero((weights > self.caps).any(axis=1))
        if len(over):
            weights[over] = self._capped(weights[over], distances[over])
        return weights

    def _capped(self, weights: Ints, distances: Floats) -> Ints:
        """Give what is beyond the caps to the nearest centres with room."""
        weights = np.minimum(weights, self.caps)
        left, rows = WEIGHT_UNITS - weights.sum(axis=1), np.arange(len(weights))
        for place in np.argsort(distances, axis=1, kind="stable").T:
            more = np.minimum(left, self.caps[place] - weights[rows, place])
            weights[rows, place] += more
            left = left - more
        return weights


def choose_centres(
    inputs: ArrayLike,
    number: int = 10,
    *,
    bandwidth: float | None = None,
    seed: int = 0,
    rng: Rng | None = None,
) -> Centres:
    """Choose centres and a bandwidth from public or training inputs, never from those of the calibration scores.

    Parameters
    ----------
    inputs
        A row for each example; features are divided by their standard deviations.
    number
        How many centres: about as many as there are calibration scores divided by fifty, since each needs some around.
    bandwidth
        In standard deviations; by default half the median distance from a centre to the nearest other one.
    seed, rng
        Of k-means, whose means the centres are: a seed, or a generator to draw it from.

    Examples
    --------
    >>> import numpy as np
    >>> centres = choose_centres(np.random.default_rng(0).random(500), 5)
    >>> len(centres), int(centres.weights([0.3]).sum())
    (5, 65536)
    """
    try:
        from sklearn.cluster import KMeans
    except ImportError:
        raise ImportError(
            "choosing centres needs scikit-learn: pip install scikit-learn, or place them with Centres.at"
        ) from None
    rows = as_input_rows(inputs, "inputs")
    many = len(np.unique(rows, axis=0))
    if not isinstance(number, int | np.integer):
        raise TypeError(f"number of centres must be a whole number, got {number!r}")
    if not 1 <= number <= many:
        raise ValueError(f"number of centres must be from 1 to {many}, the number of different inputs, got {number}")
    spread = rows.std(axis=0)
    scales = np.where(spread > 0, spread, 1.0)
    points = KMeans(number, n_init=4, random_state=resolve_seed(rng, seed)).fit(rows / scales).cluster_centers_ * scales
    points = points[np.lexsort(points.T[::-1])]
    if bandwidth is None:
        apart = np.sqrt((((points[:, None] - points[None]) / scales) ** 2).sum(axis=2)) + np.diag(
            np.full(number, np.inf)
        )
        bandwidth = float(np.median(apart.min(axis=1))) / 2 if number > 1 else 1.0
    loose = Centres.at(points, bandwidth, scales=scales)
    return replace(loose, caps=np.maximum(loose.weights(rows).max(axis=0), 1))


def centre_name(centre: int) -> str:
    """Return the name of the part of one centre."""
    return f"{_CENTRE} {centre}"
