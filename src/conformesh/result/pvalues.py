"""PValues: how unusual test scores are, and what that says of predictions: credibility and confidence."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from conformesh._version import __version__
from conformesh.io.files import write_file
from conformesh.io.json_numbers import in_json, to_json
from conformesh.io.writing import ENDINGS, check_ending, write_columns
from conformesh.kernels.ranks import AUTO, MIXTURES, RANK_RULES, Alpha, check_alpha
from conformesh.quantities import several
from conformesh.result.certificate import Cost

FORMAT = "conformesh/p-values"
SHOWN = 10  # rows that are printed


@dataclass(frozen=True, eq=False, repr=False)
class PValues:
    """The result of `p_values`.

    Attributes
    ----------
    values
        A p-value for every test score, (tests,), or for every row and class, (rows, classes); rounded up to floats.
    target, rule
        Whom they are about and by which rule: names of `ranks.MIXTURES` and `ranks.RANK_RULES`, or `auto` where each is
        the smaller of two.
    scores, devices
        How many calibration scores there were in all, on how many devices.
    cost
        Rounds, numbers and bits each device sent.
    classwise
        Whether they are valid given the class, each compared with scores of its class alone.
    classes
        The names of the columns of a table.
    exact
        The fraction that each float stands for.
    """

    values: NDArray[np.float64]
    target: str
    rule: str
    scores: int
    devices: int
    cost: Cost
    classwise: bool = False
    classes: tuple[str, ...] | None = None
    exact: dict[float, Fraction] = field(default_factory=dict)
    network: str = ""
    seconds: float = 0.0
    options: dict[str, str] = field(default_factory=dict)

    @property
    def predicted(self) -> NDArray[np.int64]:
        """The column with the largest p-value of every row, the first of equals."""
        return np.asarray(self._table().argmax(axis=1), dtype=np.int64)

    @property
    def credibility(self) -> NDArray[np.float64]:
        """The largest p-value of every row: small where no class fits."""
        return np.asarray(self._table().max(axis=1))

    @property
    def confidence(self) -> NDArray[np.float64]:
        """One minus the second largest p-value of every row: near 1 where no other class fits."""
        table = self._table()
        if table.shape[1] < 2:
            return np.ones(len(table))
        return np.asarray(1.0 - np.partition(table, -2, axis=1)[:, -2])

    def sets(self, alpha: Alpha) -> NDArray[np.bool_]:
        """Return which classes have a p-value above alpha: the prediction sets of this level, in exact arithmetic."""
        level = check_alpha(alpha)
        each, places = np.unique(self.values, return_inverse=True)
        inside = np.array([self.exact.get(p, Fraction(p)) > level for p in each.tolist()], dtype=bool)
        return np.asarray(inside[places.reshape(self.values.shape)])

    def columns(self) -> dict[str, NDArray[Any]]:
        """Return a table: a row for each test score, or the prediction of each row with the p-value of every class."""
        rows = np.arange(len(self.values))
        if self.values.ndim == 1:
            return {"row": rows, "p": self.values}
        names = np.array(self.classes, dtype=str)
        found = {"row": rows, "predicted": names[self.predicted] if len(names) else np.empty(len(rows), dtype=str)}
        found |= {"credibility": self.credibility, "confidence": self.confidence}
        return found | {f"p_{name}": self.values[:, i] for i, name in enumerate(names.tolist())}

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON object."""
        clean: dict[str, Any] = in_json(
            {
                "format": FORMAT,
                "version": __version__,
                "target": self.target,
                "rule": self.rule,
                "classwise": self.classwise,
                "devices": self.devices,
                "scores": self.scores,
                "cost": self.cost.to_dict(),
                "seconds": self.seconds,
                "network": self.network,
                "options": self.options,
                "classes": self.classes,
                "p_values": self.values.tolist(),
            }
        )
        return clean

    def to_json(self) -> str:
        """Return the JSON object on one line."""
        return to_json(self.to_dict())

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the result as JSON, or its table as CSV, Parquet or NPZ, by the ending of the name; whole or not."""
        path = Path(path)
        check_ending(path, (".json", *ENDINGS))
        if path.suffix.lower() == ".json":
            write_file(path, to_json(self.to_dict(), indent=2))
        else:
            write_columns(path, self.columns())

    def __str__(self) -> str:
        """Say whom the p-values are about, and by which rule."""
        rule = "the smaller of two proven rules" if self.rule == AUTO else RANK_RULES[self.rule]
        given = ", valid given the class" if self.classwise else ""
        return f"p-values{given}: {MIXTURES[self.target]}; {rule}"

    def _lines(self) -> list[list[str]]:
        """Return the first rows in words, and the names of their columns."""
        columns = {name: cells for name, cells in self.columns().items() if not name.startswith("p_")}
        return [[*columns]] + [
            [f"{cell:.4g}" if isinstance(cell, float) else str(cell) for cell in row]
            for row in zip(*(cells[:SHOWN].tolist() for cells in columns.values()), strict=True)
        ]

    @property
    def _what(self) -> str:
        many = several(len(self.values), "test score" if self.values.ndim == 1 else "row")
        return f"{many} beside {self.scores:,} scores of {several(self.devices, 'device')}"

    def _repr_html_(self) -> str:
        from conformesh import cards

        head, *rows = self._lines()
        right = [name for name in head if name != "predicted"]
        parts = [cards.table(head, rows, right=right, more=len(self.values) - len(rows))]
        facts = [("tests", self._what), ("cost", str(self.cost)), ("network", self.network)]
        title, _, claim = str(self).partition(": ")
        return cards.card(title, claim=claim, rows=[fact for fact in facts if fact[1]], parts=parts)

    def __repr__(self) -> str:
        """Return a table of the first rows."""
        head, lines = f"PValues({self._what}; {self.cost})", self._lines()
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        more = [f"... and {len(self.values) - SHOWN:,} more"] if len(self.values) > SHOWN else []
        return "\n".join([head, *("  ".join(map(str.rjust, line, widths)) for line in lines), *more])

    def _table(self) -> NDArray[np.float64]:
        if self.values.ndim != 2:
            raise ValueError(
                "a prediction needs the p-value of every class; pass a table of test scores, or outputs with score="
            )
        return self.values
