r"""The extreme eigenvalues of a graph: how fast linear consensus can be.

The Laplacian D - A has eigenvalues 0 = l_1 < l_2 <= ... <= l_K on a connected graph. Consensus steps and error bounds
need the smallest non-zero one, the largest, and the largest of the signless Laplacian D + A ([Wen2025] Section 4.3 has
the first and the last as squared singular values of the incidence matrices).

Up to `_DENSE_UP_TO` devices LAPACK gives all eigenvalues. Beyond, Lanczos gives the ends of the spectrum with a
residual r = ||L v - l v||, and there is an eigenvalue within r of l. On narrow graphs (chains, trees, grids, geometric
graphs) the ends crowd and plain Lanczos would need as many steps as devices; there a sparse factorisation is cheap and
Lanczos runs on the inverse. On expanders it is the other way round. Some topologies have closed forms.

Every number errs on the safe side: `smallest` is reduced, `largest` and `signless` raised by the residual and the
rounding error, so a bound built on them holds. What does not converge is an error, never a guess.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from scipy.sparse import csr_array

    from conformesh.graph.network import Network

_Vector = NDArray[np.float64]

_DENSE_UP_TO = 1500  # devices; the dense solver takes about a second here
_EPS = float(np.finfo(np.float64).eps)  # relative distance of neighbouring floats, for bounds of rounding errors


@dataclass(frozen=True)
class Spectrum:
    """Ends of the spectrum of a connected graph.

    Attributes
    ----------
    largest
        Largest eigenvalue of D - A, rounded up.
    smallest
        Smallest non-zero eigenvalue of D - A, rounded down; 0 for a single device.
    signless
        Largest eigenvalue of D + A, rounded up.
    source
        How they were found: "closed-form", "dense", "lanczos" or "estimated" (by the devices themselves).
    """

    largest: float
    smallest: float
    signless: float
    source: str


class _Extremes(NamedTuple):
    """Smallest non-zero and largest eigenvalue of a matrix whose rows sum to zero, and how they were found."""

    smallest: float
    largest: float
    source: str


def spectrum_of(network: Network) -> Spectrum:
    """Return the ends of the spectrum of `network`; see the module for how, and for which way they are rounded."""
    if network.devices == 1:
        return Spectrum(0.0, 0.0, 0.0, "closed-form")
    if network.known.eigenvalues is not None:
        ends = _Extremes(*network.known.eigenvalues, "closed-form")
    else:
        ends = extremes_of(network)
    return Spectrum(ends.largest, ends.smallest, _signless(network, ends), ends.source)


def extremes_of(network: Network, edge: _Vector | None = None) -> _Extremes:
    """Return the ends of the spectrum of the Laplacian, leaving out the constant vector.

    `edge` has a weight for each directed edge, the same in both directions; without, each counts as one.
    """
    if network.devices <= _DENSE_UP_TO:
        return dense_extremes(_dense_laplacian(network, edge))
    return lanczos_extremes(network.laplacian(edge))


def dense_extremes(matrix: NDArray[np.float64]) -> _Extremes:
    """Find the ends of the spectrum of a symmetric matrix whose rows sum to zero, among all its eigenvalues.

    The constant vector is moved above the rest, so zero need not be recognised.
    """
    rows, columns = np.nonzero(matrix)
    bound = _bound_by_entries(matrix.diagonal(), rows, columns, matrix[rows, columns])
    values = np.linalg.eigvalsh(matrix + 2 * bound / len(matrix))[:-1]
    slack = 8 * _EPS * float(np.abs(values).max())
    return _Extremes(float(values[0]) - slack, float(values[-1]) + slack, "dense")


def lanczos_extremes(matrix: csr_array[np.float64]) -> _Extremes:
    """Find them by Lanczos iteration, on the matrix or on its inverse, whichever suits the graph."""
    return _Extremes(_bottom(matrix), _top(matrix), "lanczos")


def _signless(network: Network, ends: _Extremes) -> float:
    from conformesh.kernels.graph import is_bipartite

    if network.degree.min() == network.degree.max():
        return 2.0 * int(network.degree[0])  # the eigenvector is constant
    if is_bipartite(network.indptr, network.indices):
        return ends.largest  # D + A is D - A with the signs of one side changed
    if network.devices <= _DENSE_UP_TO:
        return float(np.linalg.eigvalsh(np.abs(_dense_laplacian(network)))[-1]) * (1 + 8 * _EPS)
    return _top(abs(network.laplacian()))


def _dense_laplacian(network: Network, edge: _Vector | None = None) -> NDArray[np.float64]:
    """Return `Network.laplacian` without SciPy, which a small network need not load."""
    matrix = np.diag(network.strength(edge))
    matrix[network.receivers, network.indices] = -1.0 if edge is None else -edge
    return matrix


# --- the two ends -----------------------------------------------------------------------------------------------------


def _bottom(matrix: csr_array[np.float64]) -> float:
    """Smallest eigenvalue but for the constant vector's, rounded down."""
    bound = _bound(matrix)
    if _one_signed(matrix) and _is_narrow(matrix):
        vector = _inverse_iterated(matrix)
    else:
        vector, _ = _lanczos(lambda x: matrix @ x + bound * x.mean(), _start(matrix), -1)
    return _certified(matrix, vector - vector.mean(), bound, -1)


def _inverse_iterated(matrix: csr_array[np.float64]) -> _Vector:
    """Lanczos on the pseudo-inverse: ground one device, solve, subtract the mean."""
    from scipy.sparse import csc_array

    solve = _factored(csc_array(matrix)[:-1, :-1]).solve

    def pseudo_inverse(b: _Vector) -> _Vector:
        y = np.append(solve((b - b.mean())[:-1]), 0.0)
        return np.asarray(y - y.mean(), dtype=np.float64)

    vector, _ = _lanczos(pseudo_inverse, _start(matrix), +1, most=1000)
    for _ in range(3):  # the small eigenvalue asks for a vector clean of large ones, which inversion shrinks
        vector = pseudo_inverse(vector)
        vector /= np.linalg.norm(vector)
    return vector


def _top(matrix: csr_array[np.float64]) -> float:
    """Largest eigenvalue, rounded up."""
    bound = _bound(matrix)
    vector, converged = _lanczos(lambda x: matrix @ x, _start(matrix), +1, most=1000)
    if not converged:
        if _is_narrow(matrix):
            vector = _closed_in_from_above(matrix, vector, bound)
        else:
            vector, _ = _lanczos(lambda x: matrix @ x, vector, +1)
    return _certified(matrix, vector, bound, +1)


def _closed_in_from_above(matrix: csr_array[np.float64], vector: _Vector, bound: float) -> _Vector:
    """Lanczos on (s I - M)^-1 with shifts s that fall towards the largest eigenvalue, each proved to lie above it.

    Positive pivots of s I - M are the proof. A shift that fails is too low and is raised half way to the last good one.
    """
    from scipy.sparse import csc_array, eye_array

    identity = eye_array(matrix.shape[0], format="csr")
    above, shift = math.inf, bound * (1 + 1e-9)
    for _ in range(40):
        factor = _factored(csc_array(shift * identity - matrix))
        if (factor.U.diagonal() <= 0).any():
            shift = (shift + above) / 2
            continue
        above = shift
        vector, _ = _lanczos(factor.solve, vector, +1, most=60)
        value, residual = _rayleigh(matrix, vector)
        if residual <= 1e-10 * value:
            break
        shift = min(value + max(2 * residual, 1e-10 * value), (value + above) / 2)
    return vector


# --- pieces -----------------------------------------------------------------------------------------------------------


def _start(matrix: csr_array[np.float64]) -> _Vector:
    """The same random vector every time, so that a run repeats; its mean is zero."""
    x = np.random.default_rng(0).standard_normal(matrix.shape[0])
    return np.asarray(x - x.mean(), dtype=np.float64)


def _lanczos(
    apply: Callable[[_Vector], _Vector], start: _Vector, end: int, most: int = 20_000, tol: float = 1e-10
) -> tuple[_Vector, bool]:
    """Eigenvector at the upper (`end` = +1) or lower (-1) end of the spectrum of a symmetric operator, and success.

    Only the three-term recurrence is kept, and run a second time to add up the vector. Lost orthogonality repeats
    eigenvalues already found, which at the end of a spectrum does no harm ([Paige1980]); memory stays a few vectors.
    """
    from scipy.linalg import eigh_tridiagonal

    diagonal: list[float] = []
    off: list[float] = []
    mix, converged, check, scale = np.ones(1), False, 16, 0.0
    for steps, (_, a, b) in enumerate(_krylov(apply, start), start=1):
        scale = max(scale, abs(a) + 2 * (off[-1] if off else 0.0))
        diagonal.append(a)
        off.append(b)
        exhausted = b <= 8 * _EPS * scale  # few distinct eigenvalues, as on a star: all have been found
        if not exhausted and steps < min(check, most):
            continue
        pick = steps - 1 if end > 0 else 0
        if steps > 1:
            (value,), vectors = eigh_tridiagonal(diagonal, off[:-1], select="i", select_range=(pick, pick))
            mix = vectors[:, 0]
            converged = b * abs(mix[-1]) <= max(tol * abs(value), _EPS * scale)
        if converged or exhausted or steps >= most:
            break
        check = steps + max(8, steps // 8)
    vector = np.zeros_like(start)
    for weight, (q, _, _) in zip(mix, _krylov(apply, start), strict=False):
        vector += weight * q
    return vector / np.linalg.norm(vector), bool(converged or exhausted)


def _krylov(apply: Callable[[_Vector], _Vector], start: _Vector) -> Iterator[tuple[_Vector, float, float]]:
    """Lanczos vectors q_j with the entries a_j = T_jj and b_j = T_j,j+1 of the tridiagonal matrix T."""
    before, b = np.zeros_like(start), 0.0
    q = start / np.linalg.norm(start)
    while True:
        z = apply(q)
        a = float(np.einsum("i,i->", q, z))  # not BLAS, whose bits depend on the number of threads
        z = z - a * q - b * before
        b = math.sqrt(np.einsum("i,i->", z, z))
        yield q, a, b
        before, q = q, z / b


def _advice(K: int) -> str:
    return (
        f"the extreme eigenvalues of this network of {K} devices did not converge; give your own estimate with "
        "weights.constant_weights(network, Spectrum(...)), or add up over a tree or by flooding, which need none"
    )


def _rayleigh(matrix: csr_array[np.float64], vector: _Vector) -> tuple[float, float]:
    """Eigenvalue estimate of a vector and the distance within which an eigenvalue must lie."""
    vector = vector / np.linalg.norm(vector)
    image = matrix @ vector
    value = float(vector @ image)
    return value, float(np.linalg.norm(image - value * vector))


def _certified(matrix: csr_array[np.float64], vector: _Vector, scale: float, side: int) -> float:
    """The eigenvalue of `vector` moved by its residual to the safe side, or an error if that is a long way.

    1e-8 of the value is asked for, or what rounding leaves of a value that is tiny beside `scale`.
    """
    value, residual = _rayleigh(matrix, vector)
    if not residual <= max(1e-8 * abs(value), min(64 * _EPS * scale, 1e-2 * abs(value))):
        raise RuntimeError(f"{_advice(len(vector))} (value {value:.6e}, residual {residual:.1e})")
    size = abs(matrix) @ np.abs(vector / np.linalg.norm(vector))
    rounding = _EPS / 2 * float(np.linalg.norm(np.diff(matrix.indptr) * size))  # of a row's sum, term by term
    return value + side * (residual + rounding)


def _factored(matrix: Any) -> Any:
    """Sparse LU without pivoting, as a positive definite matrix allows; all pivots are positive only if it is one."""
    from scipy.sparse.linalg import splu

    return splu(matrix, permc_spec="MMD_AT_PLUS_A", diag_pivot_thresh=0.0, options={"SymmetricMode": True})


def _bound(matrix: csr_array[np.float64]) -> float:
    return _bound_by_entries(matrix.diagonal(), _rows_of(matrix), matrix.indices, matrix.data)


def _bound_by_entries(diagonal: _Vector, rows: NDArray[Any], columns: NDArray[Any], entries: _Vector) -> float:
    """An upper bound of the largest eigenvalue: the largest sum of two neighbours' diagonals ([AndersonMorley1985]).

    It holds for D - A and D + A with any non-negative weights; otherwise Gershgorin's discs bound it.
    """
    off = rows != columns
    if _same_sign(entries[off]):
        return float((diagonal[rows] + diagonal[columns])[off].max())
    return float((diagonal + np.bincount(rows, np.abs(entries), len(diagonal)) - np.abs(diagonal)).max())


def _one_signed(matrix: csr_array[np.float64]) -> bool:
    """Whether the entries off the diagonal all have the same sign."""
    return _same_sign(matrix.data[_rows_of(matrix) != matrix.indices])


def _same_sign(entries: _Vector) -> bool:
    return bool((entries <= 0).all() or (entries >= 0).all())


def _rows_of(matrix: csr_array[np.float64]) -> NDArray[np.int64]:
    """Return the row of every entry."""
    return np.repeat(np.arange(matrix.shape[0]), np.diff(matrix.indptr))


def _is_narrow(matrix: csr_array[np.float64]) -> bool:
    """Whether a factorisation stays sparse: rows can be ordered so that edges are short, about as on a square mesh.

    Branches that end in leaves do not count; they are eliminated from the tips without any fill.
    """
    from scipy.sparse import csr_matrix
    from scipy.sparse.csgraph import reverse_cuthill_mckee

    from conformesh.kernels.graph import two_core

    K = matrix.shape[0]
    core = np.flatnonzero(two_core(matrix.indptr.astype(np.int64), matrix.indices.astype(np.int32)))
    if len(core) <= 2:
        return True
    inner = csr_matrix(matrix[core][:, core])
    place = np.empty(len(core), np.int64)
    place[reverse_cuthill_mckee(inner, symmetric_mode=True)] = np.arange(len(core))
    rows = np.repeat(np.arange(len(core)), np.diff(inner.indptr))
    reach = np.maximum.reduceat(place[rows] - place[inner.indices], inner.indptr[:-1])
    return float(reach.mean()) <= 4 * math.sqrt(K)
