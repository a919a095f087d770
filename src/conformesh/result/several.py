"""Calibrations: thresholds by group and level from one run, each with its own rank and certificate."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from conformesh.io.arrays import as_array
from conformesh.io.files import write_file
from conformesh.io.json_numbers import from_json, to_json
from conformesh.promises import exact_number
from conformesh.quantities import several
from conformesh.result.calibration import Calibration
from conformesh.result.certificate import Cost
from conformesh.result.files import SEVERAL, checked_calibrations
from conformesh.scores import Score, as_score
from conformesh.scores.draws import Rng

MOST = 20  # groups that the printed table shows


def at_most(weight: float) -> str:
    """Return what a threshold for new examples of at most this weight is called."""
    return f"weight at most {weight!r}"


@dataclass(frozen=True, eq=False, repr=False)
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
        weight: ArrayLike | None = None,
        alpha: float | None = None,
        score: Score | str | None = None,
        labels: Sequence[object] | None = None,
        rng: Rng | None = None,
        keys: Iterable[Any] | None = None,
    ) -> NDArray[Any]:
        """Return prediction sets or intervals, each row by the threshold of its group.

        Without `groups` the groups must be labels (0, 1, ..., or the names in `labels`, one per column): then label y
        is in a set exactly if its own score is at most the threshold of class y (class-conditional sets). A class
        without calibration scores is always in. Where thresholds are for weights of new examples, `weight` says that of
        every row: the smallest computed one at or above it counts. `rng` and `keys` are for randomised scores, as in
        `Calibration.predict`.
        """
        table = as_array(outputs, "outputs")
        if self._controlled:
            return self.get(alpha).predict(table)
        kind = self.score if score is None else as_score(score)
        if kind is None:
            raise ValueError("this calibration was not told its score: pass score=..., for instance scores.LAC()")
        level = self._alpha(alpha)
        if weight is not None:
            groups = self._by_weight(as_array(weight, "weight"), len(table))
        if groups is not None:
            names = [str(name) for name in np.asarray(groups).tolist()]
            thresholds = np.array([self.get(level, name).threshold for name in names])
            if kind.task == "regression":
                return kind.intervals(table, thresholds)
            return kind.sets(table, thresholds, **kind.draws(table, rng=rng, keys=keys))
        if self.weights is not None:
            raise ValueError("predict needs weight=, one per row: thresholds are for weights of new examples")
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
        scores = kind.of_all_labels(table, **kind.draws(table, rng=rng, keys=keys))  # type: ignore[attr-defined]
        return np.asarray(scores <= by_label)

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON object: shared facts, and one calibration per group and level."""
        first = next(iter(self.items.values()))
        return {
            "format": SEVERAL,
            "method": first.method,
            "alphas": list(self.alphas),
            "groups": list(self.groups),
            "cost": self.cost.to_dict(),
            "calibrations": [{"group": group, **item.to_dict()} for (group, _), item in self.items.items()],
        }

    def to_json(self) -> str:
        """Return the JSON object on one line."""
        return to_json(self.to_dict())

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the results as JSON, whole or not at all. They hold no score."""
        write_file(path, to_json(self.to_dict(), indent=2))

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Calibrations:
        """Read what `save` wrote."""
        return cls.from_dict(from_json(Path(path).read_bytes(), str(path)), str(path))

    @classmethod
    def from_dict(cls, raw: Any, where: str = "calibrations") -> Calibrations:
        """Rebuild the results from their JSON object."""
        file = checked_calibrations(raw, where)
        parts = [Calibration.from_dict(raw, f"{where}, calibrations[{i}]") for i, raw in enumerate(file.calibrations)]
        items = {(raw["group"], item.level): item for raw, item in zip(file.calibrations, parts, strict=True)}
        return cls(items, next(iter(items.values())).cost)

    @property
    def weights(self) -> tuple[float, ...] | None:
        """The weights of new examples that thresholds are for, ascending; None where they are by group."""
        tests = {group: item.test_weight for (group, _), item in self.items.items()}
        levels = [test for group, test in tests.items() if test is not None and group == at_most(test)]
        return tuple(sorted(levels)) if len(levels) == len(tests) else None

    @property
    def score(self) -> Score | None:
        """The score the thresholds belong to, where it was named."""
        return next(iter(self.items.values())).score

    @property
    def classes(self) -> tuple[str, ...] | None:
        """The names of the classes, where they are known."""
        return next(iter(self.items.values())).classes

    def __repr__(self) -> str:
        """Return a table of thresholds: a line for each group, a column for each alpha."""
        first = next(iter(self.items.values()))
        word = "risk" if self._controlled else "alpha"
        rows = [["group", *(f"{word} {alpha:g}" for alpha in self.alphas)]]
        for group in self.groups[:MOST]:
            rows.append([str(group or "all"), *(f"{self.items[group, a].threshold:.6g}" for a in self.alphas)])
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = ["  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]).rstrip() for row in rows]
        more = [f"... and {len(self.groups) - MOST:,} more groups"] if len(self.groups) > MOST else []
        head = f"Calibrations({first.method} on {several(first.devices, 'device')}; {self.cost})"
        return "\n".join([head, *lines, *more])

    def _by_weight(self, weight: NDArray[Any], rows: int) -> list[str]:
        """Return the group of each row: the smallest computed weight that is at least its own."""
        levels = self.weights
        if levels is None:
            raise ValueError("weight= is for thresholds by test weight, which calibrate_shifted(test_weights=) finds")
        each = np.broadcast_to(np.asarray(weight, dtype=np.float64), (rows,)) if weight.ndim == 0 else weight
        if each.shape != (rows,):
            raise ValueError(f"weight must be one for each of {rows} rows, got shape {each.shape}")
        wrong = np.flatnonzero(~((each >= 0) & (each <= levels[-1])))
        if len(wrong):
            raise ValueError(
                f"weight: row {wrong[0]} must be from 0 to weight_bound {levels[-1]:g}, got {each[wrong[0]]}"
            )
        return [at_most(levels[place]) for place in np.searchsorted(levels, each)]

    @property
    def _controlled(self) -> bool:
        """Whether the results are of risk control."""
        return next(iter(self.items.values())).certificate.losses is not None

    def _alpha(self, alpha: float | None) -> float:
        if alpha is None and len(self.alphas) == 1:
            return self.alphas[0]
        words = f"say which alpha: {', '.join(f'{a:g}' for a in self.alphas)}, got {alpha}"
        level = float(exact_number(alpha, words))
        if level not in self.alphas:
            raise ValueError(words)
        return level
