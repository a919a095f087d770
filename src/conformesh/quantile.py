"""`quantiles`: order statistics of data that stays on its devices, exact or differentially private.

Exact quantiles come from E-DCP: the value of rank max(1, ceil(q n)) of all n values. For a target that is exchangeable
with all of them, E-DCP requires the rank ceil((1 - alpha) (n + 1)); alpha = 1 - r / (n + 1) asks for rank r.
"""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from conformesh.calibrating import calibrate_batch, running, samples_here
from conformesh.engines import Engine
from conformesh.engines.base import Observer, held_here, ids_here
from conformesh.graph.network import Network
from conformesh.inputs import DEVICE, SCORE, as_frame, as_held, as_network, in_rows_of
from conformesh.io.arrays import columns_of
from conformesh.methods import check_keywords
from conformesh.names import unknown
from conformesh.notes import CalibrationNote
from conformesh.progress import rounds_on_a_bar
from conformesh.promises import Alpha, Promise, exact_number
from conformesh.result.quantiles import Quantiles
from conformesh.samples import Samples

QUARTILES = (0.25, 0.5, 0.75)


def quantiles(
    data: Iterable[ArrayLike] | Mapping[Any, ArrayLike] | Samples,
    network: Network | str | Any,
    q: Alpha | Sequence[Alpha] = QUARTILES,
    *,
    column: str = SCORE,
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
        name, a frame with the columns `device` and `column`, or `Samples`, as in `calibrate`.
    network
        Who talks to whom: a `Network`, a NetworkX graph, or the name of a topology.
    q
        Parts of the data, numbers from 0 to 1, taken as the decimals written; one number or several.
    column
        The column of values, where `data` is a frame.
    observer, progress, engine
        As in `calibrate`.
    **options
        Those of the method `e-dcp` (`aggregate`, `prefer`, `schedule`, `width`), which change the cost and not the
        values.

    Examples
    --------
    >>> import numpy as np
    >>> from conformesh import Network, quantiles
    >>> rng = np.random.default_rng(0)
    >>> ages = [rng.integers(18, 90, 50) for _ in range(20)]
    >>> quantiles(ages, Network.torus(5, 4), q=[0.1, 0.5]).values.tolist()
    [25.0, 56.0]
    """
    started = time.perf_counter()
    method = "e-dcp"
    check_keywords("quantiles", method, options)
    parts = as_parts(q)
    named = _check_column(data, column)
    held = as_held(data, column, "data")
    network = as_network(network, held)
    with (
        rounds_on_a_bar(f"quantiles on {network.name}", observer, progress) as watching,
        running(engine, network, watching) as host,
    ):
        mine = ids_here(host)
        rows = in_rows_of(held, network, mine, "data")
        samples = rows if isinstance(rows, Samples) else Samples.of(held_here(host, rows, "data"), mine)
        if samples.trials > 1 or samples.weights is not None:
            raise ValueError(f"quantiles takes the values of one trial without weights, got {samples!r}")
        n = int(sum(host.share(int(samples_here(host, samples).sizes.sum()))))
        if not n:
            raise ValueError("quantiles need at least one value, got none on any device")
        ranks = [rank_of(part, n) for part in parts]
        wanted = sorted({*ranks})  # quantiles that are close share a rank: ask for it once
        batch = calibrate_batch(
            samples,
            network,
            [1 - Fraction(rank, n + 1) for rank in wanted],
            method,
            promise=Promise("exchangeable"),
            joint=True,
            engine=host,
            **options,
        )
    for note in batch.outcome.notes:
        warnings.warn(note, CalibrationNote, stacklevel=2)
    each = dict(zip(wanted, batch.outcome.thresholds[0, 0].tolist(), strict=True))
    return Quantiles(
        q=tuple(map(float, parts)),
        values=np.array([each[rank] for rank in ranks]),
        n=n,
        rank_error=np.zeros(len(ranks)),
        confidence=1.0,
        epsilon=None,
        column=column if named else "",
        devices=network.devices,
        cost=batch.cost,
        network=network.name,
        seconds=time.perf_counter() - started,
        options={**batch.options, **batch.outcome.facts},
    )


def _check_column(data: Any, column: str) -> bool:
    """Return whether the data are a frame; refuse one without the column of values."""
    frame = data if isinstance(data, Samples) else as_frame(data, column)
    columns = columns_of(frame)
    if columns is None and isinstance(data, Mapping) and DEVICE in data:
        columns = [*map(str, data)]  # a dict of columns: without the one asked for it would pass as a dict by device
    if columns is not None and column not in columns:
        raise ValueError(f"{unknown('column', column, columns)}; name the column of values with column=")
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
