r"""How far Q-DCP's estimate can be from the quantile: the paper's two terms, as printed and as devices compute them.

Notation: gamma = r / n; kappa the sharpness and mu the weight of the regulariser ``mu/2 (s - s0)^2``; per device
``L = max_k n_k kappa / 4 + mu``. The graph has E undirected edges, M+ and M- are its unsigned and signed incidence
matrices, so ``sigma_max(M+)^2`` is the largest eigenvalue of D+A and ``sigma_min(M-)^2`` the smallest non-zero one of
D-A.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from conformesh.graph.spectrum import Spectrum


@dataclass(frozen=True)
class AdmmRate:
    """ADMM's penalty c, the free parameter b > 1 and the rate delta they give ([Wen2025] Eq. (18))."""

    c: float
    b: float
    delta: float


def admm_rate(
    spectrum: Spectrum, smoothness: float, mu: float, c: float | None = None, b: float | None = None
) -> AdmmRate:
    r"""Choose c and b to make delta as large as it gets, or take what the user gives.

    .. math:: \delta = \min\left\{ \frac{(b-1)\,\sigma_{\min}^2}{b\,\sigma_{\max}^2},\;
              \frac{\mu}{\frac c4 \sigma_{\max}^2 + \frac bc L^2 \sigma_{\min}^{-2}} \right\}

    For any b the second term is largest at ``c = 2 sqrt(b) L / (sigma_max sigma_min)``; the first grows with b and the
    second falls, so they meet at the best b: with ``q = kG / kf``, ``kG = sigma_max / sigma_min`` and ``kf = L / mu``,
    ``1/sqrt(b) = (sqrt(q^2 + 4) - q) / 2``.
    """
    for name, value, least in (("c", c, 0.0), ("b", b, 1.0)):
        if value is not None and not value > least:
            raise ValueError(f"{name} must be larger than {least:g}, got {value}")
    top, bottom = math.sqrt(spectrum.signless), math.sqrt(spectrum.smallest)
    q = (top / bottom) / (smoothness / mu)
    b = (2 / (math.sqrt(q * q + 4) - q)) ** 2 if b is None else b
    c = 2 * math.sqrt(b) * smoothness / (top * bottom) if c is None else c
    slow = mu / (c / 4 * top**2 + b / c * smoothness**2 / bottom**2)
    return AdmmRate(c, b, min((b - 1) * bottom**2 / (b * top**2), slow))


def convergence_epsilon(rate: AdmmRate, devices: int, mu: float, rounds: int, distance: float) -> float:
    r"""Return epsilon^(T), the unfinished convergence ([Wen2025] Proposition 4.3, Eq. (17)).

    .. math:: \epsilon^{(T)} = \sqrt{\frac{1}{K\mu} (1+\delta)^{-(T-1)}} \; \|u^{(0)} - u^*\|_G

    `distance` is the squared norm ``||u0 - u*||_G^2``, exact (`optimal_distance`) or bounded (`largest_distance`).
    """
    if rounds < 1:
        return math.inf
    return math.sqrt(distance / (devices * mu)) * math.exp(-0.5 * (rounds - 1) * math.log1p(rate.delta))


def optimal_distance(c: float, edges: int, shift: float, energy: float) -> float:
    r"""Return ``||u0 - u*||_G^2`` as printed: it needs the optimum, which no device knows.

    ``z* = s_hat`` on every edge gives ``c E (s_hat - z0)^2``; the dual solves ``grad + M- lambda* = 0``, whose smallest
    solution has the squared norm ``grad' (D-A)^+ grad``, here `energy`.
    """
    return c * edges * shift**2 + energy / c


def largest_distance(
    c: float, edges: int, spectrum: Spectrum, sizes: NDArray[np.int64], gamma: float, mu: float, offset: float
) -> float:
    r"""Bound ``||u0 - u*||_G^2`` by what every device knows.

    The regulariser keeps ``|s_hat - s0| <= B = n max(gamma, 1-gamma) / (K mu)``, so
    ``|s_hat - z0| <= |s0 - z0| + B`` with `offset` = |s0 - z0|, and ``|grad_k| <= n_k max(gamma, 1-gamma) + mu B``.
    """
    reach = regulariser_reach(sizes, gamma, mu)
    gradient = sizes * max(gamma, 1 - gamma) + mu * reach
    return c * edges * (offset + reach) ** 2 + float(gradient @ gradient) / (c * spectrum.smallest)


def regulariser_reach(sizes: NDArray[np.int64], gamma: float, mu: float) -> float:
    """Return how far the regulariser lets the estimate leave s0, whatever the scores say."""
    return float(sizes.sum()) * max(gamma, 1 - gamma) / (len(sizes) * mu)


def bias_epsilon(n: int, mu: float, kappa: float, epsilon0: float, copies: int = 1) -> float:
    r"""Return the bias of smoothing and regularising ([Wen2025] Proposition 4.2, Eq. (16)).

    .. math:: \tilde\epsilon_0 = \sqrt{\frac{2 n \log 2}{\text{copies} \cdot \mu \kappa} + \epsilon_0^2}

    Printed with one copy of the regulariser; the sum over K devices has K of them, which makes the bound tighter.
    """
    return math.sqrt(2 * n * math.log(2) / (copies * mu * kappa) + epsilon0**2)
