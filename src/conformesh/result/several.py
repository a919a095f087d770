"""Calibrations: thresholds by group and level from one run, each with its own rank and certificate."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from msgspec import structs
from numpy.typing import ArrayLike, NDArray

from conformesh.io.arrays import as_array, check_index, columns_of
from conformesh.io.files import write_file
from conformesh.io.json_numbers import from_json, to_json
from conformesh.io.memberships import EVERYONE, Atom, Memberships
from conformesh.kernels.ranks import GROUP_RULES, exact_number
from conformesh.names import natural_order
from conformesh.quantities import several
from conformesh.result.calibration import Calibration
from conformesh.result.certificate import KINDS, Certificate, Cost
from conformesh.result.evaluation import Evaluation, evaluate_intervals, evaluate_sets, evaluation_of
from conformesh.result.files import SEVERAL, checked_calibrations
from conformesh.scores import Function, Score, result_score
from conformesh.scores.draws import Rng

MOST = 20  # groups that the printed table shows
BY_ATOM = ("atoms", "regression")  # rules with a threshold for every combination of groups


def at_most(weight: float) -> str:
    """Return what a threshold for new examples of at most this weight is called."""
    return f"weight at most {weight!r}"


@dataclass(frozen=True, eq=False, repr=False)
class Calibrations:
    """Thresholds by group and level, each with its own rank and certificate; one shared cost.

    Attributes
    ----------
    items
        ``items[group, alpha]``; the group is None where there are none. Where groups overlap the rule says what has an
        item: every atom, that is every combination of groups that occurs (`atoms`, `regression`), or every group.
    cost
        What the whole run cost.
    rule
        A name of `GROUP_RULES` where groups may overlap, otherwise empty.
    members
        The groups of every atom, by its name, where groups may overlap.
    """

    items: dict[tuple[str | None, float], Calibration]
    cost: Cost
    rule: str = ""
    members: dict[str, Atom] = field(default_factory=dict)

    @property
    def parts(self) -> tuple[str | None, ...]:
        """What has a threshold of its own: groups or atoms."""
        return tuple(dict.fromkeys(part for part, _ in self.items))

    @property
    def groups(self) -> tuple[str | None, ...]:
        """The groups, in natural order; where they may overlap, everyone is the last."""
        if not self.rule:
            return self.parts
        return (*natural_order({name for atom in self.members.values() for name in atom}), EVERYONE)

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

    def threshold(self, groups: Iterable[object] = (), alpha: float | None = None) -> float:
        """Return the threshold of a point that lies in these groups, however many.

        Where groups may overlap, a combination that no calibration score had is always covered by `max` and `seq`, and
        has the threshold +inf with `atoms` and `regression`.
        """
        level = self._alpha(alpha)
        names = natural_order({str(name) for name in groups} - ({EVERYONE} if self.rule else set()))
        known = self.groups
        if strange := next((name for name in names if name not in known), None):
            raise ValueError(f"no threshold for group {strange!r}; known: {', '.join(map(str, known))}")
        if not self.rule:
            if len(names) != 1:
                raise ValueError(f"a point lies in one of the groups {', '.join(map(str, known))}, got {list(names)}")
            return self.items[names[0], level].threshold
        if self.rule in BY_ATOM:
            name = next((name for name, atom in self.members.items() if atom == names), None)
            return np.inf if name is None else self.items[name, level].threshold
        return max(self.items[name, level].threshold for name in (*names, EVERYONE))

    def thresholds(self, groups: Any, alpha: float | None = None) -> NDArray[np.float64]:
        """Return the threshold of every row, whose groups are given in any form that `calibrate_several` takes."""
        given = Memberships.of(groups, "groups")
        each = np.array([self.threshold(atom, alpha) for atom in given.atoms])
        return each[given.codes] if len(each) else np.zeros(0)

    def certificate(self, group: object = EVERYONE, alpha: float | None = None) -> Certificate:
        """Return why a group is covered; a union of atoms is, because each of them is.

        Of such a union it says how many of its calibration scores lie at or below their thresholds, and no rank.
        """
        level, name = self._alpha(alpha), str(group)
        if self.rule not in BY_ATOM:
            return self.get(level, name if self.rule or group != EVERYONE else None).certificate
        if name not in self.groups:
            raise ValueError(f"no threshold for group {group!r}; known: {', '.join(map(str, self.groups))}")
        parts = [
            self.items[part, level].certificate
            for part, atom in self.members.items()
            if name == EVERYONE or name in atom
        ]
        counted = [part.counted_rank for part in parts]
        whole = sum(count for count in counted if isinstance(count, int))
        return structs.replace(parts[0], required_rank=None, counted_rank=whole, weight=None)

    def predict(
        self,
        outputs: ArrayLike,
        *,
        groups: Any = None,
        weight: ArrayLike | None = None,
        alpha: float | None = None,
        score: Score | str | Function | None = None,
        labels: Sequence[object] | None = None,
        rng: Rng | None = None,
        keys: Iterable[Any] | None = None,
    ) -> NDArray[Any]:
        """Return prediction sets or intervals, each row by the threshold of its group or groups.

        Without `groups` the groups must be labels (0, 1, ..., or the names in `labels`, one per column): then label y
        is in a set exactly if its own score is at most the threshold of class y (class-conditional sets). A class
        without calibration scores is always in. Where thresholds are for weights of new examples, `weight` says that of
        every row: the smallest computed one at or above it counts. `rng` and `keys` are for randomised scores, as in
        `Calibration.predict`.
        """
        table = self._first.table_of(outputs)
        if self.controlled:
            return self.get(alpha).predict(table)
        kind = self._score(score)
        level = self._alpha(alpha)
        if weight is not None:
            groups = self._by_weight(as_array(weight, "weight"), len(table))
        if groups is not None:
            thresholds = self.thresholds(groups, level)
            if kind.task == "regression":
                return kind.intervals(table, thresholds)
            return kind.sets(table, thresholds, **kind.draws(table, rng=rng, keys=keys))
        if self.weights is not None:
            raise ValueError("predict needs weight=, one per row: thresholds are for weights of new examples")
        if kind.task == "regression" or None in self.groups or self.rule:
            raise ValueError("predict needs groups=, one per row: thresholds differ by group")
        known = {group: self.items[group, level].threshold for group in self.groups}
        names = self.classes or range(table.shape[1])
        columns = [str(label) for label in (names if labels is None else labels)]
        strange = [group for group in known if group not in columns]
        if strange:
            raise ValueError(
                f"class-conditional sets need groups named by label, {columns[0]} to {columns[-1]}, got "
                f"{strange[0]!r}; or pass groups=, one per row"
            )
        by_label = np.array([known.get(label, np.inf) for label in columns])
        scores = kind.of_all_labels(table, **kind.draws(table, rng=rng, keys=keys))  # type: ignore[attr-defined]
        return np.asarray(scores <= by_label)

    def evaluate(
        self,
        outputs: ArrayLike,
        labels: ArrayLike,
        *,
        groups: Any = None,
        alpha: float | None = None,
        score: Score | str | Function | None = None,
        classes: Sequence[object] | None = None,
        rng: Rng | None = None,
        keys: Iterable[Any] | None = None,
    ) -> Evaluation:
        """Measure coverage and size on labelled data, overall, by class and by group; the rest is as in `predict`.

        Without `groups` these are the labels, as there, called 0, 1, ... or as `classes` says: class-conditional sets
        are measured.
        """
        kind, level = self._score(score), self._alpha(alpha)
        check_index(outputs, labels, "labels", "outputs")
        table, truth = self._first.table_of(outputs), as_array(labels, "labels")
        columns = truth if kind.task == "regression" else self._first.columns_of(truth, outputs)
        if groups is None:
            sets = self.predict(table, alpha=level, score=kind, labels=classes or self.classes, rng=rng, keys=keys)
            found = evaluation_of(sets, columns, kind.name)
        else:
            given = Memberships.of(groups, "groups")
            thresholds = self.thresholds(given, alpha)
            within = {str(name): given.is_in(str(name)) for name in self.groups if name != EVERYONE}
            if kind.task == "regression":
                found = evaluate_intervals(kind, table, truth, thresholds, groups=within)
            else:
                draws = kind.draws(table, rng=rng, keys=keys)
                found = evaluate_sets(kind, table, columns, thresholds, draws=draws, groups=within)
        names = None if kind.task == "regression" else self.classes or columns_of(outputs)
        return structs.replace(found.named(names), nominal=1 - level)

    def plot(self, ax: Any = None, path: str | os.PathLike[str] | None = None) -> Any:
        """Draw the threshold of every group at every level; returns the figure."""
        from conformesh.plots.results import draw_calibrations

        return draw_calibrations(self, ax, path)

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON object: shared facts, and one calibration per group and level."""
        first = self._first
        return {
            "format": SEVERAL,
            "method": first.method,
            "alphas": list(self.alphas),
            "groups": list(self.parts),
            "cost": self.cost.to_dict(),
            "calibrations": [{"group": group, **item.to_dict()} for (group, _), item in self.items.items()],
            **({"rule": self.rule, "members": {k: [*atom] for k, atom in self.members.items()}} if self.rule else {}),
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
        members = {name: tuple(atom) for name, atom in file.members.items()}
        return cls(items, next(iter(items.values())).cost, file.rule, members)

    @property
    def weights(self) -> tuple[float, ...] | None:
        """The weights of new examples that thresholds are for, ascending; None where they are by group."""
        tests = {group: item.test_weight for (group, _), item in self.items.items()}
        levels = [test for group, test in tests.items() if test is not None and group == at_most(test)]
        return tuple(sorted(levels)) if len(levels) == len(tests) else None

    @property
    def _first(self) -> Calibration:
        """Any of the results: for what they have in common."""
        return next(iter(self.items.values()))

    @property
    def score(self) -> Score | None:
        """The score the thresholds belong to, where it was named."""
        return self._first.score

    @property
    def classes(self) -> tuple[Any, ...] | None:
        """The classes, where they are known."""
        return self._first.classes

    def _table(self) -> list[list[str]]:
        """Return thresholds in words: a line for each group or atom, a column for each level."""
        word, what = "risk" if self.controlled else "alpha", "groups" if self.rule in BY_ATOM else "group"
        rows = [[what, *(f"{word} {alpha:g}" for alpha in self.alphas)]]
        for part in self.parts[:MOST]:
            rows.append([str(part or "all"), *(f"{self.items[part, a].threshold:.6g}" for a in self.alphas)])
        return rows

    def _repr_html_(self) -> str:
        from conformesh import cards

        first = self._first
        kinds = {*(item.certificate.kind for item in self.items.values())}
        kind = first.certificate.kind if len(kinds) == 1 else ""
        said = dict(first.certificate.facts())
        head, *rows = self._table()
        facts = [
            *([("rule", f"{self.rule}: {GROUP_RULES[self.rule]}")] if self.rule else []),
            *([("about", said["about"])] if "about" in said else []),
            ("cost", f"{self.cost}, in one run"),
            ("devices", f"{first.devices:,} with scores on {first.network}" if first.network else f"{first.devices:,}"),
        ]
        title = f"{several(len(self.items), first.what)}, {first.method}"
        claim = KINDS[kind] if kind else f"certificates are {' or '.join(sorted(kinds))}, each says why"
        table = cards.table(head, rows, right=head[1:], most=None, more=len(self.parts) - len(rows))
        return cards.card(title, kind=kind, claim=claim, rows=facts, parts=[table])

    def __repr__(self) -> str:
        """Return a table of thresholds: a line for each group or atom, a column for each alpha."""
        first, rows = self._first, self._table()
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = ["  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]).rstrip() for row in rows]
        more = [f"... and {len(self.parts) - MOST:,} more groups"] if len(self.parts) > MOST else []
        rule = f", {self.rule}: {GROUP_RULES[self.rule]}" if self.rule else ""
        head = f"Calibrations({first.method} on {several(first.devices, 'device')}{rule}; {self.cost})"
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
    def controlled(self) -> bool:
        """Whether the results are of risk control."""
        return self._first.certificate.losses is not None

    def _score(self, score: Score | str | Function | None) -> Score:
        return result_score(self.score, score)

    def _alpha(self, alpha: float | None) -> float:
        if alpha is None and len(self.alphas) == 1:
            return self.alphas[0]
        words = f"say which alpha: {', '.join(f'{a:g}' for a in self.alphas)}, got {alpha}"
        level = float(exact_number(alpha, words))
        if level not in self.alphas:
            raise ValueError(words)
        return level
