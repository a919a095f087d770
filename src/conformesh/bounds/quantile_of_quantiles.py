r"""Expected coverage of a quantile of quantiles (FedCP-QQ), in closed form.

The l-th smallest of n_k i.i.d. scores covers a new point with a Beta(l, n_k - l + 1) probability X_k. Over m devices
the server takes the k-th smallest; it covers with the k-th smallest of the X_k, so the expected coverage is

.. math:: M = \int_0^1 P(\text{fewer than } k \text{ of the } X_j \text{ are} \le u) \, du.

With equal sizes the count is binomial and the integrand is ``1 - I(I(u; l, n-l+1); k, m-k+1)`` ([Humbert2023]); with
unequal sizes it is Poisson-binomial.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import betainc, betaincinv

NODES = 96  # Gauss-Legendre nodes on the stretch where the integrand moves
MAX_LEVELS = 512  # local levels tried; all of them where there are no more
_X, _W = np.polynomial.legendre.leggauss(NODES)


@dataclass(frozen=True)
class Ranks:
    """The choice: every device sends its own `local`-th smallest score, the server takes the `server`-th smallest."""

    local: tuple[int, ...]
    server: int
    coverage: float


def expected_coverage(local: NDArray[np.int64], sizes: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return M for every server rank 1..m, given each device's local rank and size.

    >>> expected_coverage(np.array([9]), np.array([9])).round(12).tolist()      # one device: l / (n + 1)
    [0.9]
    """
    m = len(sizes)
    a, b = local.astype(np.float64), (sizes - local + 1).astype(np.float64)
    low, high = betaincinv(a, b, 1e-18 / m).min(), betaincinv(a, b, 1 - 1e-16).max()
    u = 0.5 * (high - low) * (_X + 1) + low
    chance = betainc(a[:, None], b[:, None], u[None, :])  # P(X_j <= u), (m, nodes)
    # P(exactly i of the first j devices have X <= u), one device after the other
    exactly = np.zeros((m + 1, NODES))
    exactly[0] = 1.0
    for j in range(m):
        exactly[1 : j + 2] = exactly[1 : j + 2] * (1 - chance[j]) + exactly[: j + 1] * chance[j]
        exactly[0] *= 1 - chance[j]
    fewer = np.minimum(np.cumsum(exactly[:-1], axis=0), 1.0)  # fewer than k = 1..m
    return np.asarray(low + fewer @ _W * 0.5 * (high - low))


def best_ranks(sizes: NDArray[np.int64], coverage: float) -> Ranks | None:
    """Return the ranks whose expected coverage is the smallest at or above `coverage`, or None if there are none.

    One level serves all devices: a device with n_k scores sends its ``ceil(level (n_k + 1))``-th, at most its largest.
    """
    sizes = sizes[sizes > 0]
    if not len(sizes):
        return None
    levels = np.unique(np.concatenate([np.arange(1, n + 1) / (n + 1) for n in np.unique(sizes)]))
    if len(levels) > MAX_LEVELS:
        levels = levels[np.unique(np.linspace(0, len(levels) - 1, MAX_LEVELS).astype(int))]
    best: Ranks | None = None
    for level in levels:
        local = np.clip(np.ceil(np.round(level * (sizes + 1), 9)).astype(np.int64), 1, sizes)
        covered = expected_coverage(local, sizes)
        server = int(np.searchsorted(covered, coverage))  # M grows with the server's rank
        if server < len(covered) and (best is None or covered[server] < best.coverage):
            best = Ranks(tuple(local.tolist()), server + 1, float(covered[server]))
    return best
