r"""`Even`: the rank of a score among those of its own device, shrunken towards the training data.

.. math:: A = \frac{\#\{\text{other scores of the device below } s\} + \lambda F_0(s)}{n - 1 + \lambda}

:math:`F_0` is the distribution function of scores on the training data. Devices with larger scores then have larger
thresholds, which evens out their coverage: risk-curve shrinkage, with an exact guarantee.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike

from conformesh.common.array_types import Array, Floats, Ints
from conformesh.scores.adapt.base import Adaptation, Bag, Setting
from conformesh.scores.adapt.prior import Prior
from conformesh.scores.adapt.scale import Scale
from conformesh.scores.base import Task

_GRAIN = 2.0**-30  # of scores, as for `Prior`; ranks of a device are at least 1 / (n + strength) apart
_QUANTILES = 101  # of training scores that are kept: the distribution function between them is interpolated


@dataclass(frozen=True)
class Even(Adaptation):
    """Evens out coverage between devices: ranks among a device's own scores, on top of another adaptation.

    Parameters
    ----------
    base
        The adaptation whose scores are ranked: `Prior`, `Scale`, a name; "auto": the one for the task.
    strength
        How many examples the training data count for.
    training
        Scores of the base on training data, for their distribution function. None: uniform on [0, 1] for
        classification, that of absolute normal numbers for regression.
    window
        As for `Prior`.
    """

    base: Any = "auto"
    strength: float = 20.0
    training: Sequence[float] | None = None
    window: Any = 16

    name: ClassVar[str] = "even"
    summary: ClassVar[str] = "ranks scores within each device, so that coverage differs less between devices"
    bounds: ClassVar[tuple[float, float]] = (0.0, 1.0)
    predictions_reveal: ClassVar[str] = "the distribution of its own scores, and what its base has learned"

    def __post_init__(self) -> None:
        self.check_window()
        kinds: dict[Any, Any] = {"prior": Prior, "scale": Scale}
        if isinstance(self.base, str) and self.base != "auto":
            if self.base not in kinds:
                raise ValueError(f"base must be 'prior', 'scale' or 'auto', got {self.base!r}")
            object.__setattr__(self, "base", kinds[self.base]())
        if isinstance(self.base, Even):
            raise ValueError("base must not be ranks itself; give Prior or Scale")
        if not self.strength > 0:
            raise ValueError(f"strength must be above 0, got {self.strength}")
        if self.training is not None:
            scores = np.asarray(self.training, dtype=np.float64).ravel()
            if not len(scores) or not np.isfinite(scores).all():
                raise ValueError("training must be scores of training data, at least one, all finite")
            kept = np.quantile(scores, np.linspace(0, 1, _QUANTILES)) if len(scores) > _QUANTILES else np.sort(scores)
            object.__setattr__(self, "training", tuple(kept.tolist()))

    @property
    def task(self) -> Task:  # type: ignore[override]
        """The task of the base."""
        return "classification" if self.base == "auto" else self.base.task

    def for_task(self, task: Task) -> Even:
        """Return the adaptation with the base for a task where base is "auto"."""
        return replace(self, base=Prior() if task == "classification" else Scale()) if self.base == "auto" else self

    @property
    def needs_new_rows(self) -> bool:  # type: ignore[override]
        """Whether the scores of the base depend on the outputs of the candidate."""
        return bool(self.base.needs_new_rows)

    # Everything but scores comes from the base.

    def read(self, outputs: ArrayLike, labels: ArrayLike, who: str) -> Bag:
        """Return checked outputs and labels of the base."""
        bag: Bag = self.base.read(outputs, labels, who)
        return bag

    def read_new(self, outputs: ArrayLike) -> Array:
        """Return checked outputs of the base."""
        table: Array = self.base.read_new(outputs)
        return table

    def columns(self, outputs: Array) -> int:
        """Return the number of candidates of the base."""
        return int(self.base.columns(outputs))

    def summary_counts(self, bag: Bag) -> Ints:
        """Return the counts of the base."""
        counts: Ints = self.base.summary_counts(bag)
        return counts

    def settings(self, counts: Ints, columns: int) -> tuple[Setting, ...]:
        """Return the settings of the base."""
        found: tuple[Setting, ...] = self.base.settings(counts, columns)
        return found

    def reachable_settings(self, counts: Ints, columns: int) -> tuple[Setting, ...]:
        """Return the settings of the base that one replaced example can lead to."""
        found: tuple[Setting, ...] = self.base.reachable_settings(counts, columns)
        return found

    def describe_setting(self, setting: Setting) -> str:
        """Return a setting of the base."""
        return str(self.base.describe_setting(setting))

    def losses(self, bag: Bag, setting: Setting, level: float) -> Ints:
        """Return the losses of the base."""
        found: Ints = self.base.losses(bag, setting, level)
        return found

    def candidate_losses(self, rest: Bag, setting: Setting, columns: int, level: float, new: Array) -> Ints:
        """Return the losses of candidates of the base."""
        found: Ints = self.base.candidate_losses(rest, setting, columns, level, new)
        return found

    def pieces(self, settings: Sequence[Setting]) -> Floats:
        """Return the pieces of the real line of the base."""
        ends: Floats = self.base.pieces(settings)
        return ends

    # --- ranks --------------------------------------------------------------------------------------------------------

    def leave_one_out(self, bag: Bag, setting: Setting) -> Floats:
        """Return the shrunken rank of each score of the base among the others."""
        scores = self.base.leave_one_out(bag, setting)
        below = np.searchsorted(np.sort(scores), scores, side="left")
        return self._shrink(below, scores, len(bag) - 1)

    def other_scores(self, rest: Bag, setting: Setting, columns: int, new: Array) -> Floats:
        """Return numbers that lie below the score of a candidate exactly where the other's score of the base does.

        A candidate above the score b of the base has at least as many scores below it as lie at or below b, and
        :math:`F_0` at least at b; one that is not above b has one score less below it.
        """
        base = self.base.other_scores(rest, setting, columns, new)
        ordered = np.sort(base, axis=-1)
        # How many lie at or below each: the place of the last one of equal scores.
        is_last = np.append(ordered[..., 1:] != ordered[..., :-1], np.ones((*base.shape[:2], 1), bool), axis=-1)
        ends = np.where(is_last[..., : len(rest)], np.arange(1, len(rest) + 1), len(rest))
        last = np.minimum.accumulate(ends[..., ::-1], axis=-1)[..., ::-1]
        places = np.argsort(np.argsort(base, axis=-1, kind="stable"), axis=-1, kind="stable")
        limits = self._shrink(last, ordered, len(rest))
        return np.nextafter(np.take_along_axis(limits, places, axis=-1), -np.inf)

    def other_losses(self, rest: Bag, setting: Setting, columns: int, level: float, new: Array) -> Ints:
        """Return the losses of the base."""
        found: Ints = self.base.other_losses(rest, setting, columns, level, new)
        return found

    def candidate_scores(self, rest: Bag, setting: Setting, columns: int, new: Array) -> Floats:
        """Return the shrunken ranks of all candidates among the other scores."""
        scores: Floats = self.base.candidate_scores(rest, setting, columns, new)
        others = np.sort(self.base.other_scores(rest, setting, columns, new), axis=-1)
        below = np.empty(scores.shape, dtype=np.int64)
        for row, each in enumerate(others):
            rows = slice(None) if len(others) == 1 else slice(row, row + 1)
            for c, own in enumerate(each):
                below[rows, c] = np.searchsorted(own, scores[rows, c], side="left")
        return self._shrink(below, scores, len(rest))

    def residual_limits(self, rest: Bag, setting: Setting, new: Array, limits: Floats) -> tuple[Floats, Floats]:
        """Return for each piece the ends of the residuals with at most this score; see `Scale.residual_limits`."""
        others = np.sort(self.base.other_scores(rest, setting, 1, new)[0], axis=-1)
        reached = np.full(len(new), -np.inf)
        for piece, (own, limit) in enumerate(zip(others, limits, strict=True)):
            # Scores are whole grains: those at or below the limit are rounded from less than half a grain above it.
            most = (np.floor(limit / _GRAIN) + 0.5) * _GRAIN * (1 + 1e-15) * (len(rest) + self.strength)
            share = (most - np.arange(len(rest) + 1)) / self.strength  # of the training data, after so many below
            upto = np.minimum(np.append(own, np.inf), self._quantile(share))
            inside = upto >= np.append(-np.inf, own)
            reached[piece] = np.max(upto[inside], initial=-np.inf)
        found: tuple[Floats, Floats] = self.base.residual_limits(rest, setting, new, reached)
        return found

    def _shrink(self, below: Ints, scores: Floats, others: int) -> Floats:
        whole = (below + self.strength * self._share(scores)) / (others + self.strength)
        return np.asarray(np.rint(whole / _GRAIN) * _GRAIN)

    def _share(self, scores: Floats) -> Floats:
        """Return the distribution function of the training data."""
        if self.training is not None:
            return np.asarray(np.interp(scores, self.training, np.linspace(0, 1, len(self.training))))
        if self.task == "classification":
            return np.clip(scores, 0.0, 1.0)
        from scipy.special import erf

        return np.asarray(erf(scores / np.sqrt(2.0)))

    def _quantile(self, share: Floats) -> Floats:
        """Return the largest score with at most this share of the training data below it, or a little more."""
        inside = np.clip(share, 0.0, 1.0)
        if self.training is not None:
            found = np.interp(inside, np.linspace(0, 1, len(self.training)), self.training)
        elif self.task == "classification":
            found = inside
        else:
            from scipy.special import erfinv

            found = erfinv(inside) * np.sqrt(2.0) * (1 + 1e-9)
        return np.where(share >= 1, np.inf, np.where(share < 0, -np.inf, found))

    def options(self) -> dict[str, Any]:
        """Return the options as plain values."""
        base = self.base if isinstance(self.base, str) else {"name": self.base.name, **self.base.options()}
        return {**asdict(replace(self, base="auto")), "base": base}
