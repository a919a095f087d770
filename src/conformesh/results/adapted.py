r"""Predictions of one device with adapted scores: from its own rows and what all devices agreed on.

An adapted score depends on the examples of its device, so that there is no one threshold. All devices share a *window*:
pooled scores around the threshold with their exact counts. To decide on a label y for a new x, a device replaces one
example, hidden in advance, by (x, y), computes the scores of its other examples again, and counts: y is in the set if
the weight of the scores strictly below that of (x, y) is less than the required rank (docs/guarantees.md).

For the adaptations of the library the scores of the other examples depend on y and not on x. So each label has a limit
that is computed once, and a prediction compares scores with limits. Labels that a window leaves undecided are included.

With `mixture="own"` a device needs no window: it counts its own examples only, and hides none.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from msgspec import structs
from numpy.typing import ArrayLike, NDArray

from conformesh.common.array_types import Array, Bools, Floats, Ints
from conformesh.common.names import natural_order
from conformesh.common.notes import emit_note
from conformesh.files.memberships import EVERYONE, Memberships
from conformesh.kernels.ranks import OWN, RankRule, scores_needed
from conformesh.results.adapted_facts import DeviceRows
from conformesh.results.evaluation import DeviceCoverage, coverage_by_device
from conformesh.results.window import Window
from conformesh.scores.adapt import Adaptation, Bag
from conformesh.scores.adapt.base import LARGEST_LOSS, choice_level

if TYPE_CHECKING:
    from conformesh.results.result import Answer, Result

# Scores of candidates that are computed at once: bounds memory to some 10 MB.
_CELLS_AT_ONCE = 2**20
_UNSEEN = (
    "its adapted sets rarely contain them. Coverage holds on average over classes; evaluate(...) reports each class"
)


class _Choice(NamedTuple):
    """Which setting candidates select: sums of losses of all other examples, by setting and candidate."""

    base: NDArray[Any]  # (settings, 1 or rows, columns); beyond all others where a setting is not allowed
    possible: tuple[int, ...]


class DevicePredictor:
    """Prediction sets or intervals for new examples of one device; what `Result.on` returns."""

    def __init__(self, result: Result, device: str, rows: DeviceRows) -> None:
        adapt, facts = result.guarantee.adapt, result.adapted
        assert isinstance(adapt, Adaptation)
        assert facts is not None
        self.result, self.device, self.rows, self.facts, self.adapt = result, device, rows, facts, adapt
        self.is_own = result.guarantee.mixture.kind == OWN
        self._level = choice_level(result.guarantee.alphas)
        hidden = -1 if self.is_own else facts.hidden[device]
        if not self.is_own and hidden not in range(len(rows.bag)) and (len(rows.bag) or hidden >= 0):
            raise ValueError(
                f"device {device}: the hidden row must be one of its {len(rows.bag)} rows, got place {hidden}: without "
                "a hidden row nothing is guaranteed; the result was changed, calibrate again"
            )
        self._rest = rows.bag.without(hidden)
        self._hidden = hidden
        self._limits: dict[Any, Floats] = {}
        self._known_choice: _Choice | None = None
        self._known_intervals: dict[Any, tuple[float, float]] = {}
        self._seen = np.bincount(rows.bag.labels, minlength=facts.columns) if self._is_classifier else None
        self.is_quiet = False  # no note of unseen classes; also once it was shown

    def __repr__(self) -> str:
        return f"DevicePredictor({self.device}, {len(self.rows.bag):,} calibration rows, {self.adapt!r})"

    @property
    def _is_classifier(self) -> bool:
        return self.adapt.task == "classification"

    # --- public -------------------------------------------------------------------------------------------------------

    def predict(self, outputs: ArrayLike, *, alpha: Any = None, groups: Any = None, as_names: bool = False) -> Any:
        """Return prediction sets (rows x labels, boolean) or intervals (rows x 2) for new examples of this device.

        `alpha`, `groups` and `as_names` are as in `Result.predict`.
        """
        view = self.result.at(alpha)
        table = self.adapt.read_new(view.table_of(outputs))
        if self._is_classifier and len(table) and table.shape[1] != self.facts.columns:
            raise ValueError(
                f"outputs must have {self.facts.columns} columns, one for each class as in calibration, got "
                f"{table.shape[1]}"
            )
        if not self._is_classifier and table.ndim != self.rows.bag.outputs.ndim:
            wanted = "predictions beside scales, two columns," if table.ndim == 1 else "predictions without scales"
            raise ValueError(f"outputs must be {wanted} as in calibration, got shape {table.shape}")
        found = self._sets(view, table, groups) if self._is_classifier else self._intervals(view, table, groups)
        if not as_names:
            return found
        names = self.result.classes
        if names is None or not self._is_classifier:
            raise ValueError("as_names=True is for label sets whose classes are known: give classes= to calibrate")
        return [tuple(names[column] for column in np.flatnonzero(row)) for row in found]

    def evaluate(self, outputs: ArrayLike, labels: ArrayLike, **rows: Any) -> Any:
        """Measure coverage and size on labelled examples of this device; the arguments are those of `predict`."""
        count = len(np.asarray(labels))
        known = structs.replace(self.result, rows={self.device: self.rows})  # a loaded result has none
        return known.evaluate(outputs, labels, device=np.full(count, self.device), **rows)

    def calibration_coverage(self, view: Result) -> DeviceCoverage:
        """Return how many of the device's calibration rows have a leave-one-out score up to their threshold."""
        bag = self.rows.bag
        if not len(bag):
            return DeviceCoverage(0, 0, 0.0, 1.0)
        hits = self.calibration_hits(view)
        labels = bag.labels if self._is_classifier else None
        return coverage_by_device(hits, np.full(len(bag), self.device), labels)[self.device]

    def calibration_hits(self, view: Result) -> Bools:
        """Return which of the device's calibration rows have a leave-one-out score up to their threshold."""
        bag, place = self.rows.bag, self.facts.shared[0]  # thresholds are those of the first window
        hits = np.zeros(len(bag), dtype=np.bool_)
        if not len(bag):
            return hits
        own = self.adapt.leave_one_out(bag, self.facts.choices[place])
        for answer in view.answers:
            members = self._members(answer)
            inside = own <= answer.thresholds[view.place_of(self.device)]
            hits |= inside if members is None else inside & members
        return hits

    # --- sets ---------------------------------------------------------------------------------------------------------

    def _sets(self, view: Result, table: Array, groups: Any) -> Bools:
        """Return label sets, in chunks of rows."""
        columns = self.facts.columns
        self._note_unseen()
        sets = np.empty((len(table), columns), dtype=np.bool_)
        step = max(1, _CELLS_AT_ONCE // (columns * max(1, len(self._rest) if self.adapt.needs_new_rows else 1)))
        for codes, rows in self._rows_by_parts(view, groups, len(table)):
            for start in range(0, len(rows), step):
                chunk = rows[start : start + step]
                sets[chunk] = self._included(view, codes, table[chunk])
        return sets

    def _included(self, view: Result, parts: _Parts, new: Array) -> Bools:
        """Return which labels of new rows belong to their sets."""
        if parts.is_unknown or not len(self.rows.bag):
            return np.ones((len(new), self.facts.columns), dtype=np.bool_)
        selected = self._selected(new)
        included = np.zeros((len(new), self.facts.columns), dtype=np.bool_)
        for place in range(len(self.facts.choices)) if self.is_own else self.facts.shared:
            chosen = selected == place
            if not chosen.any():
                continue
            setting = self.facts.choices[place]
            scores = self.adapt.candidate_scores(self._rest, setting, self.facts.columns, new)
            limits = self._limits_of(view, parts, place, new)
            included |= chosen & ~(scores > limits)  # a score that is not a number decides nothing
        # Nothing is known of the scores of other settings, so that labels are kept.
        return included | ~self._is_known(selected)

    def _is_known(self, selected: Ints) -> Bools:
        """Return which settings have a window, or need none."""
        return selected >= 0 if self.is_own else np.isin(selected, self.facts.shared)

    def _note_unseen(self) -> None:
        """Note once that labels that the device never saw are covered badly."""
        missing = self.unseen_classes
        if self.is_quiet or not missing:
            return
        self.is_quiet = True
        more = ", ..." if len(missing) > 5 else ""
        emit_note(
            f"device {self.device} has no calibration row of {len(missing)} of {self.facts.columns} classes "
            f"({', '.join(missing[:5])}{more}): {_UNSEEN}"
        )

    @property
    def unseen_classes(self) -> tuple[str, ...]:
        """The classes without a calibration row on the device; empty where its sets are full for want of rows."""
        n = len(self.rows.bag)
        few = scores_needed(max(self.result.guarantee.alphas)) if self.is_own else 1
        if self._seen is None or n < few:
            return ()
        names = self.result.classes or range(self.facts.columns)
        return tuple(str(names[c]) for c in np.flatnonzero(self._seen == 0).tolist())

    # --- intervals ----------------------------------------------------------------------------------------------------

    def _intervals(self, view: Result, table: Array, groups: Any) -> Floats:
        """Return intervals: the residuals that belong to a set are the same for every row."""
        from conformesh.scores.adapt.scale import score_of

        found = np.empty((len(table), 2))
        for parts, rows in self._rows_by_parts(view, groups, len(table)):
            low, high = self._residual_interval(view, parts)
            if low > high:
                found[rows] = np.inf, -np.inf
            else:
                found[rows] = score_of(table).side_intervals(table[rows], -low, high)
        return found

    def _residual_interval(self, view: Result, parts: _Parts) -> tuple[float, float]:
        """Return the smallest interval that holds every residual in the set."""
        key = (view.alpha, parts.names)
        if key not in self._known_intervals:
            self._known_intervals[key] = self._residuals(view, parts)
        return self._known_intervals[key]

    def _residuals(self, view: Result, parts: _Parts) -> tuple[float, float]:
        if parts.is_unknown or not len(self.rows.bag):
            return -np.inf, np.inf
        adapt: Any = self.adapt
        ends = adapt.pieces(self.facts.choices)
        inside = _representatives(ends)
        selected = self._selected(inside)[0]
        known = self._is_known(selected)
        low, high = np.where(known, np.inf, ends[:-1]), np.where(known, -np.inf, ends[1:])
        for place in np.unique(selected[known]).tolist():
            limits = self._limits_of(view, parts, place, inside)[0]
            least, most = adapt.residual_limits(self._rest, self.facts.choices[place], inside, limits)
            chosen = selected == place
            low = np.where(chosen, np.maximum(least, ends[:-1]), low)
            high = np.where(chosen, np.minimum(most, ends[1:]), high)
        held = low <= high
        if not held.any():
            return np.inf, -np.inf
        first, last = float(low[held].min()), float(high[held].max())
        # Ends of pieces are computed, and a residual beside one may count for either piece.
        return first - 1e-12 * abs(first), last + 1e-12 * abs(last)

    # --- which setting ------------------------------------------------------------------------------------------------

    def _selected(self, new: Array) -> Ints:
        """Return the place of the setting that each candidate selects, (rows, columns); (1, pieces) for regression.

        -1 where it would select one that was not among the choices.
        """
        shape = (len(new), self.facts.columns) if self._is_classifier else (1, len(new))
        if len(self.facts.choices) == 1:
            allowed = self._allowed(new)
            only = np.True_ if allowed is None else allowed[0]
            return np.broadcast_to(np.where(only, 0, -1), shape)
        choice = self._choice(new)
        if not choice.possible:
            return np.full(shape, -1)
        # Small: whatever the losses of candidates are, other settings cannot have the smallest sum.
        totals = np.empty((len(choice.possible), *shape), dtype=np.int64)
        for i, place in enumerate(choice.possible):
            own = self.adapt.candidate_losses(
                self._rest, self.facts.choices[place], self.facts.columns, self._level, new
            )
            totals[i] = choice.base[place] + own
        return np.where(totals.min(axis=0) < _NEVER, np.array(choice.possible)[totals.argmin(axis=0)], -1)

    def _choice(self, new: Array) -> _Choice:
        """Return the sums of losses without those of the candidates."""
        if self._known_choice is not None:
            return self._known_choice
        adapt, facts = self.adapt, self.facts
        allowed = self._allowed(new)
        sums = []
        for place, setting in enumerate(facts.choices):
            before = int(adapt.losses(self.rows.bag, setting, self._level).sum()) if len(self.rows.bag) else 0
            others = adapt.other_losses(self._rest, setting, facts.columns, self._level, new)
            whole = facts.losses[place] - before + others
            sums.append(whole if allowed is None else np.where(allowed[place], whole, _NEVER))
        base = np.stack(sums)
        least = base.min(axis=0)
        possible = (base <= least + LARGEST_LOSS) & (base < _NEVER)
        found = _Choice(base, tuple(np.flatnonzero(possible.reshape(len(base), -1).any(axis=1)).tolist()))
        if not adapt.needs_new_rows:
            self._known_choice = found
        return found

    def _allowed(self, new: Array) -> Bools | None:
        """Return which settings there are for each candidate, (settings, 1 or rows, columns); None: all of them."""
        facts, adapt = self.facts, self.adapt
        if not facts.counts:
            return None
        base = np.array(facts.counts) - adapt.summary_counts(self.rows.bag) + adapt.summary_counts(self._rest)
        known: dict[bytes, Bools] = {}

        def allowed_settings(candidate: Bag) -> Bools:
            counted = adapt.summary_counts(candidate)
            if (key := counted.tobytes()) not in known:
                there = {*adapt.settings(base + counted, facts.columns)}
                # Where one of them was not foreseen, it might be the best one: nothing is known of its losses.
                is_foreseen = there <= {*facts.choices}
                known[key] = np.array([is_foreseen and setting in there for setting in facts.choices])
            return known[key]

        if self._is_classifier:
            rows = new if adapt.needs_new_rows else new[:1]
            labels = [np.array([column]) for column in range(facts.columns)]
            found = [[allowed_settings(Bag(row[None], label)) for label in labels] for row in rows]
        else:
            found = [[allowed_settings(Bag(np.zeros(1), residual[None])) for residual in new]]
        return np.moveaxis(np.array(found), -1, 0)

    # --- limits -------------------------------------------------------------------------------------------------------

    def _limits_of(self, view: Result, parts: _Parts, place: int, new: Array) -> Floats:
        """Return the largest score with which each candidate is in the set, (1 or rows, columns)."""
        key = (view.alpha, parts.names, place)
        if key in self._limits:
            return self._limits[key]
        columns = self.facts.columns
        setting = self.facts.choices[place]
        others = self.adapt.other_scores(self._rest, setting, columns, new)
        own = self.adapt.leave_one_out(self.rows.bag, setting)
        largest = np.full(others.shape[:2], -np.inf)
        if parts.by_label is not None:  # a class without calibration rows is always in the set
            largest[:, [answer is None for answer in parts.by_label]] = np.inf
        for answer, column in self._answers(view, parts, columns):
            some = slice(None) if column is None else slice(column, column + 1)
            members = self._members(answer)
            inside = others[:, some] if members is None else others[:, some, np.delete(members, self._hidden_place)]
            if self.is_own:
                limit = _own_limits(inside, answer.alpha)
            else:
                where = self.facts.shared.index(place)
                limit = self._pooled_limits(answer, answer.windows[where], own, members, inside)
            # In several groups a point is covered by the largest threshold of these.
            largest[:, some] = np.maximum(largest[:, some], limit)
        if not self.adapt.needs_new_rows:
            self._limits[key] = largest
        return largest

    @property
    def _hidden_place(self) -> Any:
        return [] if self._hidden < 0 else self._hidden

    def _answers(self, view: Result, parts: _Parts, columns: int) -> Sequence[tuple[Answer, int | None]]:
        """Return the answers that limits come from, and the column of each where groups are labels."""
        if parts.by_label is not None:
            return [(answer, column) for column, answer in enumerate(parts.by_label) if answer is not None]
        return [(answer, None) for answer in view.answers if not answer.part or answer.part[0] in parts.names]

    def _members(self, answer: Answer) -> Bools | None:
        """Return which rows of this device are in the group of an answer; None: all."""
        if not answer.part:
            return None
        groups = self.rows.groups
        assert groups is not None
        name, agreed = answer.part[0], self.result.guarantee.groups
        assert agreed is not None
        if agreed.has_threshold_per_atom:
            there = [natural_order({*atom}) == natural_order({*agreed.atoms[name]}) for atom in groups.atoms]
            return np.array(there, dtype=bool)[groups.codes]
        return np.ones(len(groups), dtype=bool) if name == EVERYONE and agreed.rule else groups.is_in(name)

    def _pooled_limits(
        self, answer: Answer, window: Window, own: Floats, members: Bools | None, others: Floats
    ) -> Floats:
        """Return the largest score whose candidates have less than the required rank strictly below them."""
        weight = self.facts.weights[self.device]
        required = window.required
        if members is not None:
            # Which group the hidden row is in changes what the group weighs: once the candidate is there instead.
            less = int(self._hidden >= 0 and members[self._hidden])
            mass = window.total + window.rounding_loss + (1 - less) * (weight + self.facts.rounded)
            required = RankRule(answer.alpha, Fraction(0), self.facts.missing).required(mass, mass)
            own = own[members]
        ordered = np.sort(own)
        # What the scores of other devices weigh at or below each value of the window; below the window at least 0.
        beside = window.counts - weight * np.searchsorted(ordered, window.values, side="right")
        beside = np.maximum.accumulate(np.maximum(beside, 0)) if len(beside) else beside
        there = np.sort(others, axis=-1)
        flat = there.reshape(int(np.prod(there.shape[:-1])), there.shape[-1])
        limits = np.full(len(flat), np.inf)
        steps = weight * np.arange(1, flat.shape[1] + 1)
        for i, scores in enumerate(flat):
            at_values = beside + weight * np.searchsorted(scores, window.values, side="right")
            first = np.flatnonzero(at_values >= required)
            if len(first):
                limits[i] = window.values[first[0]]
            # At a score of its own a device knows at least what lies up to the last value of the window below it.
            known = np.append(0, beside)[np.searchsorted(window.values, scores, side="right")]
            first = np.flatnonzero(known + steps >= required)
            if len(first):
                limits[i] = min(limits[i], scores[first[0]])
        if required <= 0:
            limits[:] = -np.inf
        return limits.reshape(there.shape[:-1])

    # --- groups -------------------------------------------------------------------------------------------------------

    def _rows_by_parts(self, view: Result, groups: Any, rows: int) -> Sequence[tuple[_Parts, Ints]]:
        """Return the parts of the result that rows belong to, and which rows these are."""
        agreed = view.guarantee.groups
        every = np.arange(rows)
        if agreed is None:
            if groups is not None:
                raise ValueError("groups= is for thresholds by group, which calibrate(groups=...) finds")
            return [(_Parts(()), every)]
        if view.is_settled(0):
            return [(_Parts((view.answers[0].part[0],)), every)]
        if groups is None:
            labels = [str(name) for name in self.result.classes or range(self.facts.columns)]
            if agreed.rule or not self._is_classifier or not {*agreed.names} <= {*labels}:
                raise ValueError("predict needs groups=, one per row: thresholds differ by group")
            by_name = {answer.part[0]: answer for answer in view.answers}
            return [(_Parts(("by label",), tuple(by_name.get(name) for name in labels)), every)]
        given = Memberships.of(groups, "groups")
        if len(given) != rows:
            raise ValueError(f"groups must be one for each of {rows} rows, got {len(given)}")
        found = []
        for code, atom in enumerate(given.atoms):
            names = natural_order({*map(str, atom)} - ({EVERYONE} if agreed.rule else set()))
            if strange := next((name for name in names if name not in agreed.names), None):
                raise ValueError(f"no threshold for group {strange!r}; known: {', '.join(agreed.names)}")
            if agreed.has_threshold_per_atom:
                atoms = {natural_order({*members}): name for name, members in agreed.atoms.items()}
                parts = _Parts((atoms[names],)) if names in atoms else _Parts((), is_unknown=True)
            else:
                parts = _Parts((*names, EVERYONE) if agreed.rule else tuple(names))
            found.append((parts, np.flatnonzero(given.codes == code)))
        return found


class _Parts(NamedTuple):
    """The groups that a new row belongs to.

    Attributes
    ----------
    names
        Their names; empty without groups.
    by_label
        Where groups are labels: the answer of each label, None where no device has calibration rows of it.
    is_unknown
        Whether it is a combination of groups that no calibration row had.
    """

    names: tuple[str, ...]
    by_label: tuple[Answer | None, ...] | None = None
    is_unknown: bool = False


_NEVER = 2**62  # a sum of losses beyond all others


def _representatives(ends: Floats) -> Floats:
    """Return a number inside each piece of the real line."""
    low, high = ends[:-1], ends[1:]
    with np.errstate(invalid="ignore"):
        middle = low / 2 + high / 2
    middle = np.where(np.isneginf(low), 2 * high - 1, middle)
    return np.where(np.isposinf(high), 2 * low + 1, middle)


def _own_limits(others: Floats, alpha: Fraction) -> Floats:
    """Return the largest score with which a candidate covers the device itself: of rank ceil((1 - alpha) (n + 1))."""
    n = others.shape[-1]
    rank = RankRule(alpha, Fraction(0), Fraction(0)).required(n + 1, n + 1)
    if rank > n:
        return np.full(others.shape[:-1], np.inf)
    return np.partition(others, rank - 1, axis=-1)[..., rank - 1]


def predict_on_devices(predictors: Mapping[str, DevicePredictor], rows: Mapping[str, tuple[Array, Any]]) -> list[Any]:
    """Return the sets of the rows of several devices, with one note for all; rows are outputs and groups."""
    lacking = {name: len(one.unseen_classes) for name, one in predictors.items() if one.unseen_classes}
    if len(lacking) > 1:
        worst = max(lacking, key=lambda name: lacking[name])
        columns = predictors[worst].facts.columns
        emit_note(
            f"{len(lacking):,} devices have no calibration row of some classes (device {worst} lacks {lacking[worst]} "
            f"of {columns}): {_UNSEEN}"
        )
        for one in predictors.values():
            one.is_quiet = True
    return [predictors[name].predict(outputs, groups=groups) for name, (outputs, groups) in rows.items()]
