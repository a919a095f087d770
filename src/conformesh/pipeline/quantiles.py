r"""`quantiles`: order statistics of data that stays on its devices, exact or differentially private.

**Exact** quantiles come from E-DCP: the value of rank max(1, ceil(q n)) of all n values. For an example that is
exchangeable with all of them, E-DCP requires the rank ceil((1 - alpha) (n + 1)); alpha = 1 - r / (n + 1) asks for rank
r.

**Private** quantiles are read from one noisy histogram of P-DCP (`privacy.histogram`), on a grid that is fixed before
the data. Any number of them costs one epsilon. Let F(v) be the number of values at or below v, and
:math:`B_j = F(p_j) - q n = (1 - q) n - above_j` at pivot j. The release gives :math:`B_j` with noise,
:math:`\tilde B_j = B_j + Z_j`. The answer is the pivot next to the last crossing of 0 with the smaller
:math:`|\tilde B|`. Where :math:`|Z_j| \le e_j` at all pivots at once, :math:`|F(p_j) - q n| \le |\tilde B_j| + e_j`:
the *rank error*, of which the first part is the resolution of the grid and the second the noise (`noise_bound`). For
several quantiles each has an equal part of the risk (union bound), so all rank errors hold at once.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np
from msgspec import json, structs
from numpy.typing import ArrayLike

from conformesh.common.arrays import columns_of
from conformesh.common.names import unknown
from conformesh.common.notes import note
from conformesh.common.progress import rounds_on_a_bar
from conformesh.engines import Engine, fail_together
from conformesh.engines.base import Observer
from conformesh.files.schemas import checked
from conformesh.graph.network import Network
from conformesh.kernels.ranks import Alpha, Requirement, exact_alpha, exact_number
from conformesh.kernels.weighted_scores import WeightedScores
from conformesh.methods import check_keywords
from conformesh.pipeline.solver import running, samples_here, solve_draws
from conformesh.privacy.histogram import Release
from conformesh.privacy.noise import law, rounded_p
from conformesh.results.certificate import Noise
from conformesh.results.quantiles import Quantiles
from conformesh.table import ColumnNames, Table, as_frame, as_network, known_devices

QUARTILES = (0.25, 0.5, 0.75)
SAFE = 1 + 1e-9  # above the relative round-off of sums of 10^6 positive numbers
FOURIER = 1e-11  # absolute error of a tail of a law that was formed by the Fourier transform: 10^5 numbers of 1e-16
PRECISION = 1e-3  # relative, of a rank error: finer would not matter to anybody
LARGE = 0.1  # of n: a median with a larger rank error may be the .4 or the .6 quantile, which deserves a note


@fail_together
def quantiles(
    data: Iterable[ArrayLike] | Mapping[Any, ArrayLike] | Table | Any,
    network: Network | str | Any = None,
    q: Alpha | Sequence[Alpha] = QUARTILES,
    *,
    epsilon: float | None = None,
    range: tuple[float, float] | None = None,
    confidence: Alpha = 0.95,
    column: str = "score",
    columns: Mapping[str, str] | None = None,
    observer: Observer | None = None,
    progress: bool = False,
    engine: str | Engine = "simulator",
    **options: Any,
) -> Quantiles:
    """Return quantiles of the values of all devices together, without pooling them.

    Parameters
    ----------
    data
        One array of values per device, in the order of ``network.ids``; any of them may be empty. Or a dict by device
        name, a frame with the columns `device` and `column`, or a `Table`, as in `calibrate`.
    network
        Who talks to whom: a `Network`, a NetworkX graph, or the name of a topology.
    q
        Parts of the data, numbers from 0 to 1, taken as the decimals written; one number or several.
    epsilon
        Differential privacy: the quantiles then come from one noisy histogram, and one value more or less changes the
        probability of any output by a factor of at most exp(epsilon), however many quantiles are read. By default
        quantiles are exact and protect nothing. In a simulation one program sees all values, so it protects nothing
        either; only a run on a mesh does.
    range
        With epsilon: public bounds (LO, HI) of the values, such as (0, 120) for ages. They must be known without the
        data: the smallest and the largest value of the data would reveal two of them. The cells of the histogram are
        then equally wide. By default they are powers of two of both signs, which fit any data, coarsely.
    confidence
        With epsilon: the probability, over the noise, with which all rank errors hold together.
    column
        The column of values, where `data` is a frame.
    observer, progress, engine
        As in `calibrate`.
    **options
        Without epsilon those of the method `e-dcp` (`aggregate`, `prefer`, `schedule`, `width`), which change the cost
        and not the values. With epsilon those of `p-dcp`: `cells` or `expected_scores`, how many values a device is
        expected to hold, from which the number of cells follows; `grid`; `coalition` or `honest`; `unit`
        and `cap`.

    Returns
    -------
    Quantiles
        The values and, for each of them, its rank error. Without epsilon it is 0: each value is the smallest one with
        at least q n values at or below it. With epsilon, with probability `confidence`, for all quantiles at once, the
        number of values at or below the returned value differs from q n by at most the rank error. It contains the
        noise and the resolution of the grid.

    Examples
    --------
    >>> import numpy as np
    >>> from conformesh import Network, quantiles
    >>> rng = np.random.default_rng(0)
    >>> ages = [rng.integers(18, 90, 50) for _ in range(20)]
    >>> quantiles(ages, Network.torus(5, 4), q=[0.1, 0.5]).values.tolist()
    [25.0, 56.0]
    >>> private = quantiles(ages, Network.torus(5, 4), q=[0.1, 0.5], epsilon=1, range=(0, 120))
    >>> len(private), bool((private.rank_error > 0).all())
    (2, True)
    """
    started = time.perf_counter()
    method = "e-dcp" if epsilon is None else "p-dcp"
    check_keywords("quantiles", method, options)
    parts, sure = as_parts(q), exact_alpha(confidence, "confidence")
    if epsilon is None and range is not None:
        raise ValueError("range is for private quantiles, whose grid must not come from the data: give epsilon too")
    if epsilon is not None:
        refuse_ends(parts)
        options = {**_grid_of(range), **options, "epsilon": epsilon}
    names = ColumnNames({**(columns or {}), "score": column})
    named = _check_column(data, names)
    network, ids = known_devices(network, engine)
    table = Table.of(data, columns=names, what="values", ids=ids, once=True)
    network = as_network(network, table)
    with (
        rounds_on_a_bar(f"quantiles on {network.name}", observer, progress) as watching,
        running(engine, network, watching) as host,
    ):
        local = table.ordered(host.network, host.rows, "values")
        assert local.score is not None
        samples = WeightedScores.from_flat(
            local.score, local.sizes, names=host.network.local_ids(host.rows), copy=not local.in_place
        )
        if epsilon is None:
            found = _exact(host, samples, parts, options)
        else:
            found = _private(host, samples, parts, sure, options)
    for text in found.notes:
        note(text)
    return structs.replace(
        found.quantiles,
        column=column if named else "",
        network=network.name,
        seconds=time.perf_counter() - started,
    )


class _Found(NamedTuple):
    """Quantiles that do not yet know their column, and what deserves a warning."""

    quantiles: Quantiles
    notes: tuple[str, ...]


def _exact(host: Engine, samples: WeightedScores, parts: Sequence[Fraction], options: Mapping[str, Any]) -> _Found:
    """Ask E-DCP for the ranks of all parts in one run."""
    n = sum(host.share(int(samples_here(host, samples).sizes.sum())))
    if not n:
        raise ValueError("quantiles need at least one value, got none on any device")
    ranks = [rank_of(part, n) for part in parts]
    wanted = sorted({*ranks})  # quantiles that are close share a rank: ask for it once
    batch = solve_draws(
        samples,
        host.network,
        [1 - Fraction(rank, n + 1) for rank in wanted],
        "e-dcp",
        requirement=Requirement("exchangeable"),
        joint=True,
        engine=host,
        **options,
    )
    each = dict(zip(wanted, batch.outcome.thresholds[0, 0].tolist(), strict=True))
    found = Quantiles(
        q=tuple(map(float, parts)),
        values=np.array([each[rank] for rank in ranks]),
        n=n,
        rank_error=np.zeros(len(ranks)),
        confidence=1.0,
        epsilon=None,
        column="",
        devices=host.network.devices,
        cost=batch.cost,
        options={**batch.options, **batch.outcome.facts},
    )
    return _Found(found, batch.outcome.notes)


# --- with noise -------------------------------------------------------------------------------------------------------


def _grid_of(ends: tuple[float, float] | None) -> dict[str, Any]:
    return {"grid": "powers"} if ends is None else {"grid": "linear", "range": ends}


def _private(
    host: Engine, samples: WeightedScores, parts: Sequence[Fraction], confidence: Fraction, options: Mapping[str, Any]
) -> _Found:
    """Release one noisy histogram, and read all parts from it."""
    half = (Fraction(1, 2),)  # a level, which `solve_draws` needs and a release does not depend on
    batch = solve_draws(samples, host.network, half, "p-dcp", engine=host, **options)
    facts = {name: value for name, value in batch.outcome.facts.items() if name not in ("release", "privacy")}
    release = as_release(batch.outcome.facts["release"])
    noise = batch.outcome.certificates[0][0].noise
    assert noise is not None  # as epsilon was given
    found = quantiles_of(release, parts, confidence, noise)
    return _Found(
        structs.replace(found, cost=batch.cost, options={**found.options, **batch.options, **facts}), _notes(found)
    )


def as_release(raw: Any, where: str = "release") -> Release:
    """Return the release that a result holds as JSON; `where` names it in an error."""
    return checked(raw, Release, where)


def quantiles_of(release: Release, parts: Sequence[Fraction], confidence: Fraction, noise: Noise) -> Quantiles:
    """Read quantiles from a release, at no further cost; `noise` says what the release protects."""
    refuse_ends(parts)
    if release.items is not None:
        raise ValueError(
            f"quantiles need a release that counts every value once, mixture 'sizes', got {release.mixture!r}, which "
            "pads and copies values"
        )
    risk = float(1 - confidence) / len(parts)  # union bound
    read = [_read(release, part, risk) for part in parts]
    return Quantiles(
        q=tuple(map(float, parts)),
        values=np.array([value for value, _, _ in read]),
        n=release.number,
        rank_error=np.array([resolution + error for _, resolution, error in read]),
        confidence=float(confidence),
        epsilon=noise.epsilon,
        column="",
        devices=noise.devices,
        privacy=_protects(noise),
        release=json.decode(json.encode(release)),
        options={"resolution": [resolution for _, resolution, _ in read]},
    )


def reread(found: Quantiles, q: Any, confidence: Alpha) -> Quantiles:
    """Return other quantiles of the release of a result."""
    if found.release is None or found.epsilon is None:
        raise ValueError("these quantiles are exact and hold no release; ask for others with quantiles(data, ...)")
    noise = Noise(found.epsilon, "score", found.devices, found.devices, found.release["cells"], 0.0, 0.0)
    other = quantiles_of(as_release(found.release), as_parts(q), exact_alpha(confidence, "confidence"), noise)
    return structs.replace(other, column=found.column, network=found.network, privacy=found.privacy)


def _protects(noise: Noise) -> str:
    """Say what a release protects."""
    unit = "value" if noise.cap is None else f"device, of which at most {noise.cap:,} values count,"
    who = f"{noise.honest} of {noise.devices} devices keep their noise secret"
    words = f"epsilon {noise.epsilon:g} for each {unit} if {who}"
    if noise.simulated:
        return f"none: this was a simulation, and one program saw all values. A run on a mesh would have {words}"
    return words


def _read(release: Release, part: Fraction, risk: float) -> tuple[float, float, float]:
    """Return the value of one quantile, and the two parts of its rank error: resolution, and noise."""
    cells = np.array(release.totals[1:])
    above = np.append(np.cumsum(cells[::-1])[::-1], 0).tolist()  # beyond each pivot, and beyond +infinity
    wanted = (1 - part) * release.number
    crossing = max((j for j, noisy in enumerate(above) if noisy > wanted), default=-1)
    off = {j: abs(wanted - above[j]) for j in (crossing, crossing + 1) if 0 <= j < len(above)}
    at = min(off, key=lambda j: (off[j], j))
    error = noise_bound(release, 1 - part, len(cells) - at, risk)
    return float(np.append(release.pivots, math.inf)[at]), float(off[at]), error


def noise_bound(release: Release, factor: Fraction, cells: int, risk: float) -> float:
    """Return e for a pivot with so many cells above it: P(|Z_j| > e_j for some j) <= risk.

    Z_j = factor X' - X_1 - .. - X_j is a walk over the noise of the cells from the right. Its lengths are cut into
    stretches over which its variance doubles, each of which gets an equal part of the risk: few stretches leave each a
    large part, many fit each walk closely, and doubling is near the best.
    """
    cell, number = (_variance(Fraction(text or "1")) for text in (release.cell_epsilon, release.number_epsilon))
    ends = [1]
    while ends[-1] < release.cells - 1:
        ends.append(min(math.floor(2 * ends[-1] + float(factor) ** 2 * number / cell), release.cells - 1))
    return largest_walk(release, factor, min(end for end in ends if end >= cells), risk / len(ends))


def largest_walk(release: Release, factor: Fraction, cells: int, risk: float) -> float:
    """Return what |factor X' - X_1 - .. - X_j| exceeds for some j <= cells with a chance of at most `risk`.

    The steps are independent and symmetric, so by Levy's inequality the chance is at most twice that of the whole walk,
    |factor X' - S| > e. Let T(y) be P(S > k - 1) at whole numbers y = k >= 1 and linear between them: above P(S > y),
    and convex, since chances fall outwards. Given X', with x = |factor X'|, the chance is at most
    g(x) = min(1, T(e - x) + T(e + x)), and 1 for x > e - 1. T grows with the shape of the noise (the law is symmetric
    and unimodal), g grows with x (T is convex), and |X'| grows with the shape, so left-out noise does no harm.
    """
    shape = Fraction(release.shape)
    walk = law(Fraction(release.cell_epsilon), shape * cells)
    number = law(Fraction(release.number_epsilon or 1), shape)
    beyond = np.cumsum(walk.chances[::-1])[::-1][walk.reach + 1 :]  # P(S > k), k = 0, 1, ..
    beyond = np.append(beyond, 0.0) * SAFE + walk.cut + FOURIER
    whole = np.arange(1.0, len(beyond) + 1)
    x = float(factor) * np.abs(np.arange(-number.reach, number.reach + 1))

    def chance(e: float) -> float:
        both = np.interp(e - x, whole, beyond) + np.interp(e + x, whole, beyond)
        given = np.where(x > e - 1, 1.0, np.minimum(both, 1.0))
        return 2 * (float(number.chances @ given) + number.cut) * SAFE

    low, high = 0.0, 1.0
    while chance(high) > risk:
        low, high = high, 2 * high
    while high - low > PRECISION * high:
        middle = (low + high) / 2
        low, high = (middle, high) if chance(middle) > risk else (low, middle)
    return high


def _variance(epsilon: Fraction) -> float:
    """Return the variance of noise of shape 1."""
    p = rounded_p(epsilon)
    return 2 * p / (1 - p) ** 2


def refuse_ends(parts: Sequence[Fraction]) -> None:
    """Refuse the smallest and the largest value, which belong to one record each."""
    for part in parts:
        if not 0 < part < 1:
            raise ValueError(
                f"with epsilon q must lie strictly between 0 and 1, got {float(part):g}: the smallest and the largest "
                "value are those of one record, which noise hides"
            )


def _notes(found: Quantiles) -> tuple[str, ...]:
    """Say where the answer tells little, and what to do about it."""
    n, worst = max(found.n, 1), int(found.rank_error.argmax())
    error, coarse = found.rank_error[worst], found.options["resolution"][worst]
    if error <= LARGE * n:
        return ()
    why = f"q={found.q[worst]:g}: the rank error is {error:,.0f} of about {n:,} values"
    if coarse > error / 2:
        return (f"{why}, because many values lie in one cell of the grid; give range=, public bounds of the values",)
    return (f"{why}, because of the noise; use more values, a larger epsilon, or fewer cells",)


# --- arguments --------------------------------------------------------------------------------------------------------


def _check_column(data: Any, names: ColumnNames) -> bool:
    """Return whether the data are a frame; refuse one without the column of values."""
    frame = data if isinstance(data, Table) else as_frame(data, names, names.score, "data")
    columns = columns_of(frame)
    if columns is None and isinstance(data, Mapping) and names.device in data:
        columns = [*map(str, data)]  # a dict of columns: without the one asked for it would pass as a dict by device
    if columns is not None and names.score not in columns:
        raise ValueError(f"{unknown('column', names.score, columns)}; name the column of values with column=")
    return columns is not None


def as_parts(q: Any) -> tuple[Fraction, ...]:
    """Return the parts that a user asked for, exactly; one number or several.

    >>> as_parts([0.25, "0.5"])
    (Fraction(1, 4), Fraction(1, 2))
    """
    many = hasattr(q, "__iter__") and not isinstance(q, str) and not (isinstance(q, np.ndarray) and q.ndim == 0)
    found = tuple(_part(one) for one in (q if many else [q]))
    if not found:
        raise ValueError("q must name at least one quantile, such as q=[0.5], got none")
    return found


def _part(q: Any) -> Fraction:
    value = exact_number(q, f"q must be a number from 0 to 1, got {q!r}")
    if not 0 <= value <= 1:
        percent = f"; for the percentile {float(value):g} write {float(value) / 100:g}" if 1 < value <= 100 else ""
        raise ValueError(f"q must be a number from 0 to 1, got {q}{percent}")
    return value


def rank_of(q: Fraction, n: int) -> int:
    """Return the rank of a quantile among n values: ceil(q n), at least 1, in exact arithmetic.

    >>> rank_of(Fraction(1, 10), 30), rank_of(Fraction(0), 30)
    (3, 1)
    """
    return max(1, math.ceil(q * n))
