r"""Expected coverage of a quantile of quantiles (FedCP-QQ), in closed form.

The l-th smallest of n_k i.i.d. scores covers a new point with a Beta(l, n_k - l + 1) probability X_k. Over m devices
the server takes the k-th smallest; it covers with the k-th smallest of the X_k, so the expected coverage is

.. math:: M = \int_0^1 P(\text{fewer than } k \text{ of the } X_j \text{ are} \le u) \, du.

With equal sizes the count is binomial and the integrand is ``1 - I(I(u; l, n-l+1); k, m-k+1)`` ([Humbert2023]); with
unequal sizes it is Poisson-binomial.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

from conformesh.kernels.compilation import expect_work
from conformesh.kernels.poisson_binomial import poisson_binomial_cdf

_QUADRATURE_NODES = 96  # Gauss-Legendre nodes on the stretch where the integrand moves
_MAX_LEVELS = 512  # local levels tried, those nearest to the target; all of them where there are no more
_WORK = 4e9  # multiplications spent on the choice: with many devices fewer levels are tried, and fewer are needed


@cache
def _nodes() -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return Gauss-Legendre nodes and weights; when first needed, since they take a library to find."""
    return np.polynomial.legendre.leggauss(_QUADRATURE_NODES)


@dataclass(frozen=True)
class _Ranks:
    """The choice: every device sends its own `local`-th smallest score, the server takes the `server`-th smallest."""

    local: tuple[int, ...]
    server: int
    coverage: float


def expected_coverage(local: NDArray[np.int64], sizes: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return M for every server rank 1..m, given each device's local rank and size.

    >>> expected_coverage(np.array([9]), np.array([9])).round(12).tolist()      # one device: l / (n + 1)
    [0.9]
    """
    from scipy.special import betainc, betaincinv

    m = len(sizes)
    a, b = local.astype(np.float64), (sizes - local + 1).astype(np.float64)
    low, high = betaincinv(a, b, 1e-18 / m).min(), betaincinv(a, b, 1 - 1e-16).max()
    x, w = _nodes()
    u = 0.5 * (high - low) * (x + 1) + low
    chance = betainc(a[:, None], b[:, None], u[None, :])  # P(X_j <= u), (m, nodes)
    return np.asarray(low + poisson_binomial_cdf(chance) @ w * 0.5 * (high - low))


def best_ranks(sizes: NDArray[np.int64], coverage: float) -> _Ranks | None:
    """Return the ranks whose expected coverage is the smallest at or above `coverage`, or None if there are none.

    One level serves all devices: a device with n_k scores sends its ``ceil(level (n_k + 1))``-th, at most its largest.
    """
    sizes = sizes[sizes > 0]
    if not len(sizes):
        return None
    levels = np.unique(np.concatenate([np.arange(1, n + 1) / (n + 1) for n in np.unique(sizes)]))
    most = min(_MAX_LEVELS, max(4, int(_WORK / (_QUADRATURE_NODES * len(sizes) ** 2))))
    levels = np.sort(levels[np.argsort(np.abs(levels - coverage), kind="stable")[:most]])
    expect_work("poisson_binomial", float(len(levels)) * _QUADRATURE_NODES * len(sizes) ** 2)
    best: _Ranks | None = None
    for level in levels:
        local = np.clip(np.ceil(np.round(level * (sizes + 1), 9)).astype(np.int64), 1, sizes)
        covered = expected_coverage(local, sizes)
        server = int(np.searchsorted(covered, coverage))  # M grows with the server's rank
        if server < len(covered) and (best is None or covered[server] < best.coverage):
            best = _Ranks(tuple(local.tolist()), server + 1, float(covered[server]))
    return best
