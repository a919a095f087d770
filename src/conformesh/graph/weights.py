r"""WEIGHTS: matrices of linear consensus.

Each round a device moves towards its neighbours, ``x_k <- x_k + sum over j in N_k of w_kj (x_j - x_k)``, which is
``x <- W x`` with a symmetric W whose rows sum to one. The mean is kept, and the disagreement shrinks each round by the
largest magnitude among the eigenvalues of W other than that of the constant vector ([XiaoBoyd2004]).

The eigenvalues come from those of ``I - W``, a weighted Laplacian, and are rounded so that `rate` is never too small.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from conformesh.graph.network import Network
from conformesh.graph.spectrum import Spectrum, extremes_of

if TYPE_CHECKING:
    from scipy.sparse import csr_array


@dataclass(frozen=True, eq=False)
class Weights:
    """A symmetric, doubly stochastic consensus matrix W on the edges of a network.

    Attributes
    ----------
    name
        A key of `WEIGHTS`, or "matrix" for one's own.
    edge
        One number for all edges, or one per directed edge in the order of `Network.indices`.
    strength
        Sum of each device's weights off the diagonal, shape (devices,); the diagonal of W is ``1 - strength``.
    second, smallest
        Second largest and smallest eigenvalue of W; both 0 for a single device.
    source
        How the eigenvalues were found, as in `Spectrum`.
    """

    name: str
    edge: float | NDArray[np.float64]
    strength: NDArray[np.float64]
    second: float
    smallest: float
    source: str

    @property
    def rate(self) -> float:
        """The factor by which disagreement shrinks each round at least, in the Euclidean norm."""
        return max(abs(self.second), abs(self.smallest))

    @property
    def gap(self) -> float:
        """``1 - rate``, the spectral gap."""
        return 1 - self.rate

    def reach(self, network: Network) -> float:
        """Return the largest sum of a device's weights in magnitude: how much one round may add up."""
        if isinstance(self.edge, float):
            return abs(self.edge) * float(network.largest_degree)
        return float(np.bincount(network.receivers, np.abs(self.edge), network.devices).max())

    def matrix(self, network: Network) -> csr_array[np.float64]:
        """Return W itself, sparse."""
        from scipy.sparse import csr_array, diags_array

        K = network.devices
        edge = np.broadcast_to(np.asarray(self.edge, dtype=np.float64), network.indices.shape)
        off = csr_array((edge, network.indices, network.indptr), shape=(K, K))
        return csr_array(off + diags_array(1 - self.strength))


def best_constant(network: Network) -> Weights:
    r"""Return the constant weight that mixes fastest: :math:`2 / (l_{max} + l_{min})`.

    Reference: [Wen2025] Section 6.3; [XiaoBoyd2004] Section 4.1.
    """
    return constant_weights(network, network.spectrum)


def constant_weights(network: Network, spectrum: Spectrum, name: str = "best-constant") -> Weights:
    """Return the best constant weight for a given spectrum, for instance one that the devices estimated."""
    if network.devices == 1:
        return _constant(network, 0.0, spectrum, name)
    return _constant(network, _best_step(spectrum), spectrum, name)


def constant_rate(spectrum: Spectrum) -> float:
    """Return the `rate` of the best constant weight: all that the number of rounds of an averaging depends on."""
    if spectrum.largest == 0:  # a single device
        return 0.0
    step = _best_step(spectrum)
    return max(abs(1 - step * spectrum.smallest), abs(1 - step * spectrum.largest))


def _best_step(spectrum: Spectrum) -> float:
    if not 0 < spectrum.smallest <= spectrum.largest:
        raise ValueError(
            f"constant weights need 0 < smallest <= largest eigenvalue, got {spectrum.smallest} and {spectrum.largest}"
        )
    return 2 / (spectrum.largest + spectrum.smallest)


def _max_degree(network: Network) -> Weights:
    """Return the constant weight ``1 / (largest degree + 1)``, for which the devices need to know one integer only."""
    return _constant(network, 1 / (network.largest_degree + 1), network.spectrum, "max-degree")


def metropolis(network: Network) -> Weights:
    """Return ``w_kj = 1 / (1 + max(d_k, d_j))``, which two neighbours settle between themselves ([XiaoBoyd2004])."""
    d = network.degree
    if d.min() == d.max():
        return _constant(network, 1 / (int(d[0]) + 1), network.spectrum, "metropolis")
    return _weighted(network, 1 / (1.0 + np.maximum(d[network.receivers], d[network.indices])), "metropolis")


def weights_from_matrix(network: Network, matrix: Any) -> Weights:
    """Return one's own W, dense or sparse, after checking that consensus with it converges to the mean.

    W must be symmetric with rows that sum to 1, zero between devices that are not neighbours, and all its eigenvalues
    but that of the constant vector must lie strictly between -1 and 1. Negative weights are allowed.
    """
    from scipy.sparse import coo_array

    K = network.devices
    given = coo_array(matrix)
    if given.shape != (K, K):
        raise ValueError(f"weights for {K} devices must be a {K} x {K} matrix, got shape {given.shape}")
    given.sum_duplicates()
    i, j, w = given.row.astype(np.int64), given.col.astype(np.int64), given.data.astype(np.float64)
    if not np.isfinite(w).all():
        raise ValueError("weights must be finite numbers")
    _require_stochastic(network, i, w)
    edges = network.receivers * K + network.indices
    place = np.searchsorted(edges, i * K + j)
    on_edge = (place < len(edges)) & (np.append(edges, -1)[place] == i * K + j)
    astray = np.flatnonzero(~on_edge & (i != j) & (w != 0))
    if len(astray):
        a, b = network.ids[i[astray[0]]], network.ids[j[astray[0]]]
        raise ValueError(f"weights must be zero off the edges: {a} and {b} are not neighbours, got {w[astray[0]]:g}")
    edge = np.zeros(len(edges))
    edge[place[on_edge]] = w[on_edge]
    return _weighted(network, _symmetric(network, edge, edges), "matrix")


WEIGHTS: dict[str, Callable[[Network], Weights]] = {
    "best-constant": best_constant,
    "metropolis": metropolis,
    "max-degree": _max_degree,
}


def _constant(network: Network, a: float, spectrum: Spectrum, name: str) -> Weights:
    """Eigenvalues of I - a L are 1 - a l."""
    strength = a * network.degree.astype(np.float64)
    if network.devices == 1:
        return Weights(name, a, strength, 0.0, 0.0, spectrum.source)
    return Weights(name, a, strength, 1 - a * spectrum.smallest, 1 - a * spectrum.largest, spectrum.source)


def _weighted(network: Network, edge: NDArray[np.float64], name: str) -> Weights:
    if network.devices == 1:
        return Weights(name, edge, np.zeros(1), 0.0, 0.0, "closed-form")
    strength = network.strength(edge)
    _require_mixing(network, edge)
    ends = extremes_of(network, edge)
    second, smallest = 1 - ends.smallest, 1 - ends.largest
    if max(abs(second), abs(smallest)) >= 1:
        raise ValueError(
            "weights must have eigenvalues strictly between -1 and 1, but for the constant vector's; "
            f"got {smallest:.6g} to {second:.6g}"
        )
    edge.setflags(write=False)
    return Weights(name, edge, strength, second, smallest, ends.source)


def _require_stochastic(network: Network, rows: NDArray[np.int64], w: NDArray[np.float64]) -> None:
    sums = np.bincount(rows, weights=w, minlength=network.devices)
    wrong = np.flatnonzero(np.abs(sums - 1) > 1e-9)
    if len(wrong):
        raise ValueError(
            f"weights must be doubly stochastic: row {wrong[0]} (device {network.ids[wrong[0]]}) sums to "
            f"{sums[wrong[0]]:.6g}; build them with WEIGHTS['metropolis'](network)"
        )


def _symmetric(network: Network, edge: NDArray[np.float64], edges: NDArray[np.int64]) -> NDArray[np.float64]:
    """The weights with rounding differences between the two directions of an edge evened out."""
    back = edge[np.searchsorted(edges, network.indices.astype(np.int64) * network.devices + network.receivers)]
    wrong = np.flatnonzero(np.abs(edge - back) > 1e-9)
    if len(wrong):
        a, b = network.ids[network.receivers[wrong[0]]], network.ids[network.indices[wrong[0]]]
        raise ValueError(
            f"weights must be symmetric: {a} gives {b} the weight {edge[wrong[0]]:g} and gets {back[wrong[0]]:g}"
        )
    return (edge + back) / 2


def _require_mixing(network: Network, edge: NDArray[np.float64]) -> None:
    """Raise if edges of weight zero, which carry nothing, disconnect the network."""
    from conformesh.kernels.graph import components

    kept = np.concatenate([[0], np.cumsum(edge != 0)])[network.indptr]
    parts = int(components(kept, network.indices[edge != 0]).max()) + 1
    if parts > 1:
        raise ValueError(f"weights must let everybody mix: zero weights cut the network into {parts} parts")
