"""Several thresholds from one run: a list of levels, one threshold per group, or both.

The stages and messages are shared, so the cost is that of one longer vector, not of separate runs.
"""

from __future__ import annotations

import json
import os
import time
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from conformesh.calibrating import CalibrationNote, TooFewScores, calibrate_batch, one_result, running
from conformesh.calibration import Calibration, write_whole
from conformesh.certificate import Cost
from conformesh.engines import Engine
from conformesh.engines.base import Observer, held_here, ids_here
from conformesh.names import natural_order
from conformesh.network import Network
from conformesh.ranks import Alpha, exact_alpha
from conformesh.samples import Samples
from conformesh.scores import Score

FORMAT = "conformesh-calibrations/1"


@dataclass(frozen=True, eq=False)
class Calibrations:
    """Thresholds by group and level, each with its own rank and certificate; one shared cost.

    Attributes
    ----------
    items
        ``items[group, alpha]``; the group is None where there are none.
    cost
        What the whole run cost.
    """

    items: dict[tuple[str | None, float], Calibration]
    cost: Cost

    @property
    def groups(self) -> tuple[str | None, ...]:
        """The groups, in natural order."""
        return tuple(dict.fromkeys(group for group, _ in self.items))

    @property
    def alphas(self) -> tuple[float, ...]:
        """The levels, as given."""
        return tuple(dict.fromkeys(alpha for _, alpha in self.items))

    def get(self, alpha: float | None = None, group: object = None) -> Calibration:
        """Return one of the results; alpha may be left out if there is one only."""
        level = self._alpha(alpha)
        key = (None if group is None else str(group), level)
        if key not in self.items:
            raise ValueError(f"no threshold for group {group!r}; known: {', '.join(map(str, self.groups))}")
        return self.items[key]

    def predict(
        self,
        outputs: ArrayLike,
        *,
        groups: ArrayLike | None = None,
        alpha: float | None = None,
        score: Score | None = None,
        labels: Sequence[object] | None = None,
    ) -> NDArray[Any]:
        """Return prediction sets or intervals, each row by the threshold of its group.

        Without `groups` the groups must be labels (0, 1, ..., or the names in `labels`, one per column): then label y
        is in a set exactly if its own score is at most the threshold of class y (class-conditional sets). A class
        without calibration scores is always in.
        """
        table = np.asarray(outputs)
        kind = self.score if score is None else score
        if kind is None:
            raise ValueError("this calibration was not told its score: pass score=..., for instance scores.LAC()")
        level = self._alpha(alpha)
        if groups is not None:
            names = [str(name) for name in np.asarray(groups).tolist()]
            thresholds = np.array([self.get(level, name).threshold for name in names])
            return kind.intervals(table, thresholds) if kind.task == "regression" else kind.sets(table, thresholds)
        if kind.task == "regression" or None in self.groups:
            raise ValueError("predict needs groups=, one per row: thresholds differ by group")
        known = {group: self.items[group, level].threshold for group in self.groups}
        columns = [str(label) for label in (range(table.shape[1]) if labels is None else labels)]
        strange = [group for group in known if group not in columns]
        if strange:
            raise ValueError(
                f"class-conditional sets need groups named by label, {columns[0]} to {columns[-1]}, got "
                f"{strange[0]!r}; or pass groups=, one per row"
            )
        by_label = np.array([known.get(label, np.inf) for label in columns])
        return np.asarray(kind.of_all_labels(table) <= by_label)  # type: ignore[attr-defined]

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON object: shared facts, and one calibration per group and level."""
        first = next(iter(self.items.values()))
        return {
            "format": FORMAT,
            "method": first.method,
            "alphas": list(self.alphas),
            "groups": list(self.groups),
            "cost": self.cost.to_dict(),
            "calibrations": [{"group": group, **item.to_dict()} for (group, _), item in self.items.items()],
        }

    def to_json(self) -> str:
        """Return the JSON object on one line."""
        return json.dumps(self.to_dict(), allow_nan=False)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the results as JSON, whole or not at all. They hold no score."""
        write_whole(path, json.dumps(self.to_dict(), allow_nan=False, indent=2) + "\n")

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Calibrations:
        """Read what `save` wrote."""
        return cls.from_dict(json.loads(Path(path).read_text(encoding="utf-8")), str(path))

    @classmethod
    def from_dict(cls, raw: Any, where: str = "calibrations") -> Calibrations:
        """Rebuild the results from their JSON object."""
        if not isinstance(raw, dict) or raw.get("format") != FORMAT:
            raise ValueError(f"{where}: needed several calibrations ({FORMAT})")
        entries = raw["calibrations"]
        items = {(entry["group"], entry["alpha"]): Calibration.from_dict(entry, where) for entry in entries}
        return cls(items, next(iter(items.values())).cost)

    @property
    def score(self) -> Score | None:
        """The score the thresholds belong to, where it was named."""
        return next(iter(self.items.values())).score

    def _alpha(self, alpha: float | None) -> float:
        if alpha is None and len(self.alphas) == 1:
            return self.alphas[0]
        if alpha is None or float(exact_alpha(alpha)) not in self.alphas:
            raise ValueError(f"say which alpha: {', '.join(f'{a:g}' for a in self.alphas)}, got {alpha}")
        return float(exact_alpha(alpha))


def calibrate_several(
    devices: Iterable[ArrayLike],
    network: Network,
    alphas: Sequence[Alpha] = (0.1,),
    method: str = "e-dcp",
    *,
    groups: Iterable[ArrayLike] | None = None,
    score: Score | None = None,
    strict: bool = False,
    observer: Observer | None = None,
    engine: str | Engine = "simulator",
    **options: Any,
) -> Calibrations:
    """Agree on a threshold for every level and every group, in one run.

    Parameters
    ----------
    devices
        One array of scores per device.
    groups
        One array of group labels per device, beside its scores: classes, sites, anything (Mondrian conformal
        prediction). Each group has its own rank, of its own scores; coverage then holds within each group.
    alphas, network, method, score, strict, observer, engine, **options
        As in `calibrate`.

    Examples
    --------
    >>> import numpy as np
    >>> from conformesh import Network, calibrate_several
    >>> rng = np.random.default_rng(0)
    >>> several = calibrate_several([rng.random(50) for _ in range(8)], Network.cycle(8), alphas=(0.1, 0.2))
    >>> [several.get(a).certificate.required_rank for a in several.alphas]
    [368, 327]
    """
    started = time.perf_counter()
    with running(engine, network, observer) as host:
        names, table = _by_group(host, [*devices], None if groups is None else [*groups])
        samples = Samples.of_trials(table, ids_here(host))
        batch = calibrate_batch(samples, network, alphas, method, joint=True, engine=host, **options)
    totals = batch.sizes.sum(axis=0).tolist()
    for note in batch.outcome.notes:
        warnings.warn(note, CalibrationNote, stacklevel=2)
    items: dict[tuple[str | None, float], Calibration] = {}
    short = []
    for t, name in enumerate(names):
        for a, alpha in enumerate(alphas):
            item = one_result(batch, totals[t], network, method, alpha, t, a, score, time.perf_counter() - started)
            items[name, item.alpha] = item
            if np.isinf(item.threshold) and isinstance(item.certificate.required_rank, int):
                short.append(f"{'' if name is None else f'group {name}, '}alpha {item.alpha:g}")
    if short:
        words = f"too few scores, so that the threshold is +inf: {'; '.join(short[:5])}" + (
            ", ..." if short[5:] else ""
        )
        if strict:
            raise TooFewScores(words)
        warnings.warn(words, TooFewScores, stacklevel=2)
    return Calibrations(items, batch.cost)


def _by_group(
    engine: Engine, devices: list[ArrayLike], groups: list[ArrayLike] | None
) -> tuple[tuple[str | None, ...], list[list[NDArray[Any]]]]:
    """Return the groups that any device has, and for each of them what every device here holds of it."""
    held = [np.asarray(own) for own in held_here(engine, devices)]
    if groups is None:
        return (None,), [held]
    labels = [np.asarray(own).astype(str) for own in held_here(engine, groups)]
    for row, own, label in zip(engine.here, held, labels, strict=True):
        if len(own) != len(label):
            raise ValueError(f"device {row} has {len(own)} scores but {len(label)} group labels; one each is needed")
    mine = {name for label in labels for name in label.tolist()}
    names = natural_order(set().union(*engine.share(mine)))
    if not names:
        raise ValueError("groups were asked for, but no device has a score")
    return names, [[own[label == name] for own, label in zip(held, labels, strict=True)] for name in names]
