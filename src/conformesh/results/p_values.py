"""PValues: how unusual test scores are, and what that says of predictions: credibility and confidence."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from typing import Any, ClassVar

import numpy as np
from msgspec import field
from numpy.typing import NDArray

from conformesh import __version__
from conformesh.common.names import unknown_name
from conformesh.common.quantities import pluralize
from conformesh.kernels.ranks import AUTO, MIXTURES, RANK_RULES, Alpha, check_alpha
from conformesh.results.certificate import Amount, Count, Devices
from conformesh.results.encoding import ArrayResult, SavedCost, align_columns

_MOST_PRINTED = 10  # rows that are printed


class PValues(ArrayResult, frozen=True, eq=False, tag_field="format", tag="conformesh-p-values/1"):
    """The result of `p_values`: behaves like the array of its values.

    Attributes
    ----------
    values
        A p-value for every test score, (tests,), or for every row and class, (rows, classes); rounded up to floats.
    mixture, rule
        Which devices new examples come from and by which rule: names of `ranks.MIXTURES` and `ranks.RANK_RULES`, or
        `auto` where each is the smaller of two.
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
    mixture: str
    rule: str
    scores: Count
    devices: Devices
    cost: SavedCost
    classwise: bool = False
    classes: tuple[str, ...] | None = None
    exact: dict[float, Fraction] = field(default_factory=dict)
    network: str = ""
    seconds: Amount = 0.0
    options: dict[str, Any] = field(default_factory=dict)
    version: str = __version__

    noun: ClassVar[str] = "a result of `p_values`"

    @property
    def array(self) -> NDArray[np.float64]:
        """The p-values."""
        return self.values

    def contradictions(self) -> Iterator[str]:
        """Yield what cannot be so."""
        if self.values.ndim > 2 or not ((self.values >= 0) & (self.values <= 1)).all():
            yield "values must be numbers from 0 to 1, one per row or one per row and class"
        elif self.values.ndim == 2 and len(self.classes or ()) != self.values.shape[1]:
            yield f"classes must be one for each of {self.values.shape[1]} columns, got {len(self.classes or ())}"
        for name, word, known in (("mixture", self.mixture, MIXTURES), ("rule", self.rule, {AUTO: "", **RANK_RULES})):
            if word not in known:
                yield unknown_name(name, word, known)

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

    def __str__(self) -> str:
        """Say whom the p-values are about, and by which rule."""
        rule = "the smaller of two proven rules" if self.rule == AUTO else RANK_RULES[self.rule]
        given = ", valid given the class" if self.classwise else ""
        return f"p-values{given}: {MIXTURES[self.mixture]}; {rule}"

    def _lines(self) -> list[list[str]]:
        """Return the first rows in words, and the names of their columns."""
        columns = {name: cells for name, cells in self.columns().items() if not name.startswith("p_")}
        return [[*columns]] + [
            [f"{cell:.4g}" if isinstance(cell, float) else str(cell) for cell in row]
            for row in zip(*(cells[:_MOST_PRINTED].tolist() for cells in columns.values()), strict=True)
        ]

    @property
    def _what(self) -> str:
        many = pluralize(len(self.values), "test score" if self.values.ndim == 1 else "row")
        return f"{many} beside {self.scores:,} scores of {pluralize(self.devices, 'device')}"

    def _repr_html_(self) -> str:
        from conformesh.plots import html

        head, *rows = self._lines()
        right = [name for name in head if name != "predicted"]
        parts = [html.html_table(head, rows, right=right, more=len(self.values) - len(rows))]
        facts = [("tests", self._what), ("cost", str(self.cost)), ("network", self.network)]
        title, _, claim = str(self).partition(": ")
        return html.html_card(title, claim=claim, rows=[fact for fact in facts if fact[1]], parts=parts)

    def __repr__(self) -> str:
        """Return a table of the first rows."""
        head = f"PValues({self._what}; {self.cost})"
        more = [f"... and {len(self.values) - _MOST_PRINTED:,} more"] if len(self.values) > _MOST_PRINTED else []
        return "\n".join([head, *align_columns(self._lines()), *more])

    def _table(self) -> NDArray[np.float64]:
        if self.values.ndim != 2:
            raise ValueError(
                "a prediction needs the p-value of every class; pass a table of test scores, or outputs with score="
            )
        return self.values
