r"""`quantiles`: order statistics of data that stays on its devices, exact or differentially private.

**Exact** quantiles come from E-DCP: the value of rank max(1, ceil(q n)) of all n values. For an example that is
exchangeable with all of them, E-DCP requires the rank ceil((1 - alpha) (n + 1)); alpha = 1 - r / (n + 1) asks for rank
r.

**Private** quantiles are read from one noisy histogram of P-DCP (`privacy.histogram`), on a grid that is fixed before
the data (`privacy.rank_errors`). Any number of them costs one epsilon. For
several quantiles each has an equal part of the risk (union bound), so all rank errors hold at once.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np
from msgspec import structs
from numpy.typing import ArrayLike

from conformesh.common.arrays import frame_columns
from conformesh.common.names import unknown_name
from conformesh.common.notes import emit_note
from conformesh.engines import Engine, engine_on, fail_together
from conformesh.engines.observers import Observer, rounds_on_a_bar
from conformesh.files.input_forms import ColumnRoles, as_frame
from conformesh.graph.network import Network
from conformesh.kernels.ranks import Alpha, Requirement, exact_alpha
from conformesh.kernels.weighted_scores import WeightedScores
from conformesh.methods import check_keywords
from conformesh.pipeline.networks import as_network, read_network
from conformesh.pipeline.solver import solve_draws
from conformesh.results.quantiles import Quantiles, exact_parts, parse_release, quantiles_from_release, refuse_extremes
from conformesh.table import Table

QUARTILES = (0.25, 0.5, 0.75)  # the levels by default: lower quartile, median, upper quartile
_LARGE = 0.1  # share of n: a median with a larger rank error may be the .4 or the .6 quantile, which deserves a note


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
    parts, sure = exact_parts(q), exact_alpha(confidence, "confidence")
    if epsilon is None and range is not None:
        raise ValueError("range is for private quantiles, whose grid must not come from the data: give epsilon too")
    if epsilon is not None:
        refuse_extremes(parts)
        options = {**_grid_of(range), **options, "epsilon": epsilon}
    roles = ColumnRoles({**(columns or {}), "score": column})
    named = _check_column(data, roles)
    network, ids = read_network(network, engine)
    table = Table.of(data, columns=roles, what="values", ids=ids, once=True)
    network = as_network(network, table)
    with (
        rounds_on_a_bar(f"quantiles on {network.name}", observer, progress) as watching,
        engine_on(network, engine, watching) as host,
    ):
        # `solve_draws` puts the values of all devices into the order of the engine.
        rows = np.arange(network.devices) if len(host.rows) == network.devices else host.rows
        local = table.ordered(network, rows, "values")
        assert local.score is not None
        samples = WeightedScores.from_flat(
            local.score, local.sizes, names=network.local_ids(rows), copy=not local.in_place
        )
        if epsilon is None:
            found = _exact(host, samples, parts, options)
        else:
            found = _private(host, samples, parts, sure, options)
    for text in found.notes:
        emit_note(text)
    return structs.replace(
        found.quantiles,
        column=column if named else "",
        network=network.name,
        seconds=time.perf_counter() - started,
    )


class _QuantilesWithNotes(NamedTuple):
    """Quantiles that do not yet know their column, and what deserves a warning."""

    quantiles: Quantiles
    notes: tuple[str, ...]


def _exact(
    host: Engine, samples: WeightedScores, parts: Sequence[Fraction], options: Mapping[str, Any]
) -> _QuantilesWithNotes:
    """Ask E-DCP for the ranks of all parts in one run."""
    n = sum(host.share(int(samples.sizes.sum())))
    if not n:
        raise ValueError("quantiles need at least one value, got none on any device")
    ranks = [quantile_rank(part, n) for part in parts]
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
    return _QuantilesWithNotes(found, batch.outcome.notes)


# --- with noise -------------------------------------------------------------------------------------------------------


def _grid_of(ends: tuple[float, float] | None) -> dict[str, Any]:
    return {"grid": "powers"} if ends is None else {"grid": "linear", "range": ends}


def _private(
    host: Engine, samples: WeightedScores, parts: Sequence[Fraction], confidence: Fraction, options: Mapping[str, Any]
) -> _QuantilesWithNotes:
    """Release one noisy histogram, and read all parts from it."""
    half = (Fraction(1, 2),)  # a level, which `solve_draws` needs and a release does not depend on
    batch = solve_draws(samples, host.network, half, "p-dcp", engine=host, **options)
    facts = {name: value for name, value in batch.outcome.facts.items() if name not in ("release", "privacy")}
    release = parse_release(batch.outcome.facts["release"])
    noise = batch.outcome.certificates[0][0].noise
    assert noise is not None  # as epsilon was given
    found = quantiles_from_release(release, parts, confidence, noise)
    return _QuantilesWithNotes(
        structs.replace(found, cost=batch.cost, options={**found.options, **batch.options, **facts}), _notes(found)
    )


def _notes(found: Quantiles) -> tuple[str, ...]:
    """Say where the answer tells little, and what to do about it."""
    n, worst = max(found.n, 1), int(found.rank_error.argmax())
    error, coarse = found.rank_error[worst], found.options["resolution"][worst]
    if error <= _LARGE * n:
        return ()
    why = f"q={found.q[worst]:g}: the rank error is {error:,.0f} of about {n:,} values"
    if coarse > error / 2:
        return (f"{why}, because many values lie in one cell of the grid; give range=, public bounds of the values",)
    return (f"{why}, because of the noise; use more values, a larger epsilon, or fewer cells",)


# --- arguments --------------------------------------------------------------------------------------------------------


def _check_column(data: Any, roles: ColumnRoles) -> bool:
    """Return whether the data are a frame; refuse one without the column of values."""
    frame = data if isinstance(data, Table) else as_frame(data, roles, roles.score, "data")
    columns = frame_columns(frame)
    if columns is None and isinstance(data, Mapping) and roles.device in data:
        columns = [*map(str, data)]  # a dict of columns: without the one asked for it would pass as a dict by device
    if columns is not None and roles.score not in columns:
        raise ValueError(f"{unknown_name('column', roles.score, columns)}; name the column of values with column=")
    return columns is not None


def quantile_rank(q: Fraction, n: int) -> int:
    """Return the rank of a quantile among n values: ceil(q n), at least 1, in exact arithmetic.

    >>> quantile_rank(Fraction(1, 10), 30), quantile_rank(Fraction(0), 30)
    (3, 1)
    """
    return max(1, math.ceil(q * n))
