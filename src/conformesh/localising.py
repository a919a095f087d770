r"""Local coverage: a threshold for every public centre, of which a new example draws one by how near it is.

Every input x has integer weights H(x, c) for the centres c, which add up to 2^16. A new example draws a centre with
probability H(x, c) / 2^16; given the centre, it comes from the devices' mixture times H(., c), which is a covariate
shift with a known ratio. So the threshold of centre c is the weighted rank of `shifting` with w = H(., c), and coverage
holds given the centre, hence near it, and on average ([Hore2025], randomly localised conformal prediction, with centres
that are known beforehand; docs/guarantees.md). All thresholds come from one run, and a query sends nothing.

The bound on H(., c) that the rank needs is one by construction: what a kernel would give beyond a centre's cap goes to
the nearest centres that have room.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from msgspec import Struct
from numpy.typing import ArrayLike, NDArray

from conformesh.calibrating import Place, collected, running, solve_draws
from conformesh.centres import CENTRE, WHOLE, Centres
from conformesh.engines import Engine
from conformesh.engines.base import Observer, held_here, ids_here
from conformesh.graph.network import Network
from conformesh.inputs import as_held, as_network, as_target, check_rows, check_same_form, check_scores, in_rows_of
from conformesh.io.arrays import as_array, as_rows
from conformesh.io.files import write_file
from conformesh.io.json_numbers import from_json, to_json
from conformesh.io.schemas import checked
from conformesh.kernels.ranks import AUTO, Alpha, check_alpha, make_requirement
from conformesh.kernels.weighted_scores import WeightedScores
from conformesh.methods import check_keywords
from conformesh.quantities import several
from conformesh.result.calibration import Calibration
from conformesh.result.certificate import KINDS, Cost
from conformesh.result.evaluation import Coverage, Evaluation, evaluate_intervals, evaluate_sets
from conformesh.result.several import Calibrations
from conformesh.scores import Function, Score, as_score, result_score
from conformesh.scores.base import labels_of
from conformesh.scores.draws import Rng
from conformesh.shifting import inputs_of

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
FORMAT = "conformesh-local/1"


@dataclass(frozen=True)
class LocalEvaluation:
    """What sets are worth, and where: coverage near each centre.

    Attributes
    ----------
    overall
        Coverage and size of all rows.
    cells
        Coverage of the rows that are nearest to each centre, by its number.
    alpha
        The tolerated miscoverage.
    """

    overall: Evaluation
    cells: dict[int, Coverage]
    alpha: float

    @property
    def gap(self) -> float:
        """The mean of ``|local coverage - (1 - alpha)|`` over all rows."""
        rows = sum(cell.rows for cell in self.cells.values())
        return sum(cell.rows * abs(cell.rate - (1 - self.alpha)) for cell in self.cells.values()) / max(rows, 1)

    def _repr_html_(self) -> str:
        from conformesh import cards

        each = {
            str(cell): cards.Mark(c.rate, c.low, c.high, c.misses(1 - self.alpha)) for cell, c in self.cells.items()
        }
        rows = [*self.overall.facts(), (f"mean |local coverage - {1 - self.alpha:g}|", f"{self.gap:.4f}")]
        return cards.card(
            "LocalEvaluation", rows=rows, parts=[cards.marks(each, "coverage", "centre", 1 - self.alpha, top=1.0)]
        )

    def __repr__(self) -> str:
        return f"LocalEvaluation({self})"

    def __str__(self) -> str:
        return f"{self.overall}; mean |local coverage - {1 - self.alpha:g}| {self.gap:.4f}"


def local_coverage(covered: ArrayLike, inputs: ArrayLike, cells: Centres) -> dict[int, Coverage]:
    """Return the coverage of the rows nearest to each centre; of any sets, to compare."""
    hits, where = np.asarray(covered, dtype=bool), cells.nearest(inputs)
    if hits.shape != where.shape:
        raise ValueError(f"covered must say it for each of {len(where)} inputs, got shape {hits.shape}")
    return {int(cell): Coverage.of(hits[where == cell]) for cell in np.unique(where)}


@dataclass(frozen=True, eq=False, repr=False)
class LocalCalibration:
    """A threshold for every centre, each with its own rank and certificate; one shared cost.

    Attributes
    ----------
    centres
        Where they are, and how new examples draw one of them.
    by_centre
        The thresholds, as groups called "centre 0", "centre 1", ...
    """

    centres: Centres
    by_centre: Calibrations

    @property
    def alpha(self) -> float:
        """The tolerated miscoverage."""
        return self.by_centre.alphas[0]

    @property
    def thresholds(self) -> Floats:
        """The threshold of each centre."""
        return np.array([item.threshold for item in self.by_centre.items.values()])

    @property
    def cost(self) -> Cost:
        """What the one run cost that found them all."""
        return self.by_centre.cost

    def get(self, centre: int) -> Calibration:
        """Return the result of one centre."""
        return self.by_centre.get(group=_name(centre))

    def predict(
        self,
        outputs: ArrayLike,
        inputs: ArrayLike,
        *,
        score: Score | str | Function | None = None,
        rng: Rng | None = None,
        keys: Iterable[Any] | None = None,
    ) -> NDArray[Any]:
        """Return prediction sets or intervals, each row by the threshold of a centre that it draws by its inputs.

        Draws are new in every call; `rng` or `keys`, as in `Calibration.predict`, repeat them.
        """
        kind, table, thresholds, draws = self._drawn(outputs, inputs, score, rng, keys)
        return kind.intervals(table, thresholds) if kind.task == "regression" else kind.sets(table, thresholds, **draws)

    def evaluate(
        self,
        outputs: ArrayLike,
        labels: ArrayLike,
        inputs: ArrayLike,
        *,
        cells: Centres | None = None,
        score: Score | str | Function | None = None,
        rng: Rng | None = None,
        keys: Iterable[Any] | None = None,
    ) -> LocalEvaluation:
        """Measure coverage and size on labelled data, overall and by the nearest of `cells`, by default the centres."""
        kind, table, thresholds, draws = self._drawn(outputs, inputs, score, rng, keys)
        truth = as_array(labels, "labels")
        if kind.task == "regression":
            overall = evaluate_intervals(kind, table, truth, thresholds)
            hits = kind.covers(table, truth, thresholds)
        else:
            overall = evaluate_sets(kind, table, truth, thresholds, None, draws)
            sets = kind.sets(table, thresholds, **draws)
            hits = sets[np.arange(len(sets)), labels_of(kind.name, sets, truth)]
        return LocalEvaluation(overall, local_coverage(hits, inputs, cells or self.centres), self.alpha)

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON object: the centres, and the thresholds as those of groups."""
        return {
            "format": FORMAT,
            "points": self.centres.points.tolist(),
            "bandwidth": self.centres.bandwidth,
            "scales": self.centres.scales.tolist(),
            "caps": self.centres.caps.tolist(),
            "by_centre": self.by_centre.to_dict(),
        }

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the results as JSON, whole or not at all. They hold no score and no input but the centres."""
        write_file(path, to_json(self.to_dict(), indent=2))

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> LocalCalibration:
        """Read what `save` wrote, and check that it fits together."""
        return cls.from_dict(from_json(Path(path).read_bytes(), str(path)), str(path))

    @classmethod
    def from_dict(cls, raw: Any, where: str = "local calibration") -> LocalCalibration:
        """Rebuild the results from their JSON object."""
        got = raw.get("format") if isinstance(raw, Mapping) else type(raw).__name__
        if got != FORMAT:
            raise ValueError(f"{where}: needed a result of calibrate_local ({FORMAT}), got {got!r}")
        file = checked(raw, _Fields, where)
        try:
            points, scales = np.array(file.points, dtype=np.float64), np.array(file.scales, dtype=np.float64)
            centres = Centres(points, file.bandwidth, scales, np.array(file.caps, dtype=np.int64))
        except ValueError as problem:
            raise ValueError(f"{where}: {problem}; it was changed or damaged: calibrate again") from None
        found = Calibrations.from_dict(file.by_centre, f"{where}, by_centre")
        bounds = [item.certificate.bound for item in found.items.values()]
        if found.groups != tuple(map(_name, range(len(centres)))) or len(found.alphas) != 1:
            raise ValueError(f"{where}: by_centre must have one threshold for each of {len(centres)} centres")
        if bounds != [None if {*file.caps} == {1} else cap for cap in file.caps]:
            raise ValueError(f"{where}: caps must be the bounds of the certificates, {bounds[:5]}, got {file.caps[:5]}")
        return cls(centres, found)

    def _repr_html_(self) -> str:
        from conformesh import cards

        certificate = self.get(0).certificate
        rows = [
            [str(c), _place(point), f"{t:.6g}"]
            for c, (point, t) in enumerate(zip(self.centres.points, self.thresholds.tolist(), strict=True))
        ]
        said = dict(certificate.facts())
        facts = [*([("about", said["about"])] if "about" in said else []), ("cost", f"{self.cost}, in one run")]
        head = ("centre", "place", "threshold")
        title = f"thresholds near {several(len(self.centres), 'centre')}, alpha {self.alpha:g}"
        table = cards.table(head, rows, right=head)
        return cards.card(title, kind=certificate.kind, claim=KINDS[certificate.kind], rows=facts, parts=[table])

    def __repr__(self) -> str:
        """Return a table of thresholds: a line for each centre."""
        places = [*map(_place, self.centres.points[:20])]
        lines = [
            f"{place:>{max(map(len, places))}}  {threshold:.6g}"
            for place, threshold in zip(places, self.thresholds[:20], strict=True)
        ]
        more = ["..."] if len(self.centres) > 20 else []
        head = f"LocalCalibration(alpha={self.alpha:g}: {several(len(self.centres), 'centre')}; {self.cost})"
        return "\n".join([head, *lines, *more])

    def _drawn(
        self, outputs: Any, inputs: Any, score: Any, rng: Rng | None, keys: Iterable[Any] | None
    ) -> tuple[Score, NDArray[Any], Floats, Mapping[str, Floats]]:
        """Return the score, its outputs, the threshold of the centre that each row draws, and the score's own draws."""
        kind = result_score(self.by_centre.score, score)
        table, given = as_array(outputs, "outputs"), None if keys is None else [*keys]
        drawn = self.centres.draw(inputs, rng=rng, keys=given)
        if len(drawn) != len(table):
            raise ValueError(f"inputs must be a row for each of {len(table)} rows of outputs, got {len(drawn)}")
        draws = {} if kind.task == "regression" else kind.draws(table, rng=rng, keys=given)
        return kind, table, self.thresholds[drawn], draws


class _Fields(Struct, forbid_unknown_fields=True):
    """A `LocalCalibration` as JSON."""

    format: Literal["conformesh-local/1"]
    points: list[list[float]]
    bandwidth: float
    scales: list[float]
    caps: list[int]
    by_centre: dict[str, Any]


def calibrate_local(
    devices: Iterable[ArrayLike] | Mapping[Any, ArrayLike],
    network: Network | str | Any,
    alpha: Alpha = 0.1,
    *,
    inputs: Any,
    centres: Centres,
    target: str | Mapping[Any, Any] = "sizes",
    rank: str = AUTO,
    score: Score | str | Function | None = None,
    strict: bool = False,
    observer: Observer | None = None,
    engine: str | Engine = "simulator",
    method: str = "e-dcp",
    **options: Any,
) -> LocalCalibration:
    """Agree on a threshold for every centre, in one run, so that coverage holds near each of them.

    Parameters
    ----------
    devices
        One array of scores per device, a dict by device name, or a frame, as in `calibrate`.
    inputs
        The inputs of these scores in the same form, a row each; of a frame the name of a column or a list of them.
    centres
        From `choose_centres` or `Centres.at`: the same on all devices, and not chosen by calibration inputs.
    network, alpha, target, rank, score, strict, observer, engine, method, **options
        As in `calibrate`.

    Examples
    --------
    >>> import numpy as np
    >>> from conformesh import Network, calibrate_local, choose_centres
    >>> rng = np.random.default_rng(0)
    >>> x = [rng.random(100) for _ in range(4)]
    >>> scores = [np.abs(rng.normal(size=100)) * (0.1 + own) for own in x]
    >>> centres = choose_centres(rng.random(1000), 3)  # from public inputs
    >>> found = calibrate_local(scores, Network.cycle(4), inputs=x, centres=centres)
    >>> bool(found.thresholds[0] < found.thresholds[2])
    True
    """
    started = time.perf_counter()
    check_keywords("calibrate_local", method, options)
    if not isinstance(centres, Centres):
        raise TypeError(
            "centres must come from choose_centres(inputs, number) or Centres.at(points, bandwidth), got "
            f"{type(centres).__name__} {str(centres)[:40]!r}"
        )
    check_alpha(alpha)
    kind, held = as_score(score), as_held(devices)
    if isinstance(held, WeightedScores):
        raise TypeError("calibrate_local takes one array of scores per device, a dict or a frame, got WeightedScores")
    network = as_network(network, held)
    given = inputs_of(devices, inputs)
    check_same_form(held, given, "inputs")
    requirement = replace(
        make_requirement(as_target(devices, target), rank), part=True, bounds=tuple(centres.caps.tolist())
    )
    with running(engine, network, observer) as host:
        names = ids_here(host)
        raw = held_here(host, in_rows_of(held, network, names))
        where = held_here(host, in_rows_of(given, network, names, "inputs"), "inputs")
        check_rows(raw, where, names, "inputs")
        own = [as_array(values, "scores") for values in raw]
        weights = [_weights_of(centres, values, x, name) for values, x, name in zip(own, where, names, strict=True)]
        trials = range(len(centres))
        samples = WeightedScores.weighted(
            [own] * len(centres), [[each[:, t] for each in weights] for t in trials], names
        )
        check_scores(kind, samples, own, names)
        items = np.repeat(np.array([[len(values)] for values in own]), len(centres), axis=1)
        batch = solve_draws(
            samples, network, (alpha,), method, requirement=requirement, items=items, joint=True, engine=host, **options
        )
    n = batch.items[:, 0].sum()
    places = [Place(_name(t), alpha, int(n), t, 0, float(centres.caps[t]) / WHOLE) for t in trials]
    return LocalCalibration(centres, collected(batch, places, network, method, kind, strict, started))


def _weights_of(centres: Centres, scores: NDArray[Any], inputs: Any, name: str) -> Ints:
    """Return the weights of a device's scores at the centres, (scores, centres)."""
    try:
        rows = as_rows(inputs, "inputs") if len(scores) or np.size(inputs) else np.empty((0, centres.points.shape[1]))
        if len(rows) != len(scores):
            raise ValueError(f"has {len(scores)} scores but {len(rows)} inputs; one row each is needed")
        return centres.weights(rows)
    except ValueError as problem:
        raise ValueError(f"device {name}: {problem}") from None


def _name(centre: int) -> str:
    return f"{CENTRE} {centre}"


def _place(point: Floats) -> str:
    """Return where a centre is, in words; of many features the first."""
    few = ", ".join(f"{x:.6g}" for x in point[:6])
    return f"({few}{', ...' if len(point) > 6 else ''})"
