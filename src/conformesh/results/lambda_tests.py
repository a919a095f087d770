"""LambdaTests: which lambdas of a grid are certified to keep a risk, where losses need not be monotone."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from fractions import Fraction
from typing import Annotated, Any, ClassVar

import numpy as np
from msgspec import Meta, Struct, field
from numpy.typing import ArrayLike, NDArray

from conformesh import __version__
from conformesh.common.array_types import Bools, Floats, Ints
from conformesh.common.names import unknown_name
from conformesh.common.quantities import pluralize
from conformesh.guarantee import Mixture
from conformesh.kernels.family_wise import TESTINGS
from conformesh.kernels.ranks import GIVEN, LOSS_UNITS, MIXTURES, POOLED_MIXTURES, exact_alpha
from conformesh.kernels.tail_bounds import hoeffding_bentkus
from conformesh.results.certificate import Amount, Count
from conformesh.results.encoding import SavedCost, SavedResult, align_columns
from conformesh.scores.losses import Loss, as_loss

_MOST_PRINTED = 12  # lambdas that are printed
Lambda = float | tuple[float, ...]


class ItemWeights(Struct, frozen=True, forbid_unknown_fields=True):
    """What the items of all devices weigh in the sums, as the mixture says.

    Attributes
    ----------
    items
        How many items there are.
    heaviest
        The largest weight of an item: a whole number, 1 where all weigh alike.
    mass
        What the items weigh together, before weights were rounded up; with devices that have no item.
    missing
        The part of `mass` that belongs to devices without items, which count as losing all that they can.
    """

    items: Count
    heaviest: Annotated[int, Meta(ge=1)]
    mass: Fraction
    missing: Fraction = Fraction(0)

    def p_value(self, total: int, part: Fraction) -> float:
        """Return the p-value of "the risk is at least this part of the bound" for a weighted sum of losses."""
        level = self.level(part)
        return hoeffding_bentkus(total, LOSS_UNITS * self.heaviest, self.items, level) if level > 0 else 1.0

    def level(self, part: Fraction) -> Fraction:
        """Return the smallest mean loss that items have, weighted and as a part of the heaviest, at this risk.

        Devices without items may lose everything, so that the others must lose less. At 0 and below nothing can be
        certified.
        """
        return (part * self.mass - self.missing) / (self.items * self.heaviest) if self.items else Fraction(0)

    def mean(self, total: int) -> float:
        """Return the mean loss, as a part of the bound."""
        return float((Fraction(total, LOSS_UNITS) + self.missing) / self.mass) if self.mass else math.nan


class RiskTest(Struct, frozen=True, eq=False, forbid_unknown_fields=True):
    """One risk, tested at every lambda.

    Attributes
    ----------
    level
        The largest mean loss allowed, in the units of the loss.
    bound
        The largest loss possible.
    totals
        The sum of the losses of all items at each lambda: each loss is rounded up to a whole number of parts of the
        bound (720720 of them) and multiplied by the weight of its device.
    p_values
        The Hoeffding-Bentkus p-value of "the risk is at least the level" at each lambda, rounded up.
    """

    level: Fraction
    bound: Annotated[float, Meta(gt=0)]
    totals: tuple[Count, ...]
    p_values: Floats

    @property
    def part(self) -> Fraction:
        """The level as a part of the bound."""
        return self.level / Fraction(str(self.bound))


class LambdaTests(SavedResult, frozen=True, eq=False, tag_field="format", tag="conformesh-lambda-tests/1"):
    """The result of `control(..., monotone=False)`: which lambdas of the grid are certified, and the chosen one.

    Attributes
    ----------
    lambdas
        The grid in the order given: numbers, or a row of parameters for each lambda.
    risks
        By name, what was tested; one risk without a name is called `risk`.
    pac_confidence
        With which probability over the calibration data the risks of **all** certified lambdas are kept.
    testing
        A name of `TESTINGS`.
    mixture
        Which devices new examples come from.
    weights
        How many items there were, and what they weigh.
    objective
        What was minimised over the certified lambdas, where it was given.
    loss
        The loss that was named, so that `predict` can build sets.
    cost
        Rounds, numbers and bits each device sent.
    notes
        Sentences for the user.
    """

    lambdas: Floats
    risks: dict[str, RiskTest]
    pac_confidence: Fraction
    testing: str
    mixture: Mixture
    weights: ItemWeights
    device_ids: Annotated[tuple[str, ...], Meta(min_length=1)]
    cost: SavedCost
    objective: Floats | None = None
    loss: Any = None
    method: str = "e-dcp"
    options: dict[str, Any] = field(default_factory=dict)
    network: str = ""
    notes: tuple[str, ...] = ()
    seconds: Amount = 0.0
    version: str = __version__

    noun: ClassVar[str] = "a result of `control(..., monotone=False)`"
    derived: ClassVar[tuple[str, ...]] = ("kind", "certificate", "certified", "chosen", "p_values")

    def __len__(self) -> int:
        return len(self.lambdas)

    @property
    def devices(self) -> int:
        """How many devices took part."""
        return len(self.device_ids)

    @property
    def examples(self) -> int:
        """How many items there were in all."""
        return self.weights.items

    # --- what is certified --------------------------------------------------------------------------------------------

    @property
    def p_values(self) -> Floats:
        """The p-value of each lambda: of several risks the largest one, since all of them must be kept."""
        return np.asarray(np.max([risk.p_values for risk in self.risks.values()], axis=0), dtype=np.float64)

    @property
    def mean_losses(self) -> dict[str, Floats]:
        """The mean loss of the calibration items at each lambda, by risk, in the units of the loss."""
        return {
            name: np.array([self.weights.mean(total) * risk.bound for total in risk.totals])
            for name, risk in self.risks.items()
        }

    @property
    def certified(self) -> Bools:
        """Which lambdas are certified. All of them together keep the risks, with probability `pac_confidence`."""
        return TESTINGS[self.testing].reject(self.p_values.tolist(), 1 - self.pac_confidence)

    @property
    def chosen(self) -> int | None:
        """The place of the chosen lambda in the grid; None where none is certified.

        It is the certified one with the smallest objective, the last of equals; without an objective the last certified
        one of the grid. Any other certified one could be chosen as well, by whatever data.
        """
        places = np.flatnonzero(self.certified)
        if not len(places):
            return None
        if self.objective is None:
            return int(places[-1])
        values = self.objective[places]
        return int(places[np.flatnonzero(values == values.min())[-1]])

    @property
    def threshold(self) -> Lambda | None:
        """The chosen lambda, of several parameters a tuple; None where none is certified."""
        return None if self.chosen is None else self.lambda_at(self.chosen)

    def lambda_at(self, place: int) -> Lambda:
        """Return a lambda of the grid as a number or a tuple."""
        given = self.lambdas[place]
        return float(given) if given.ndim == 0 else tuple(given.tolist())

    @property
    def kind(self) -> str:
        """`counted` where a lambda is certified, else `none`."""
        return "none" if self.chosen is None else "counted"

    @property
    def certificate(self) -> str:
        """What is guaranteed, in words."""
        if self.chosen is None:
            return f"none: {self.failure}"
        each = " and ".join(f"{self._what(name)} is at most {float(risk.level):g}" for name, risk in self.risks.items())
        many = int(self.certified.sum())
        about = MIXTURES[self.mixture.kind].replace("scores", "items")
        whole = f"all {many} certified lambdas at once" if many > 1 else "the one certified lambda"
        grid = f"a grid of {pluralize(len(self), 'lambda')} that was fixed in advance"
        return (
            f"counted: with probability at least {float(self.pac_confidence):g} over the calibration data, {each} for "
            f"{whole}; {about}, and items are independent; Hoeffding-Bentkus p-values of exact sums, {self.testing} "
            f"testing of {grid}"
        )

    @property
    def failure(self) -> str:
        """Why no lambda is certified, and what to do; empty where one is."""
        if self.chosen is not None:
            return ""
        p_values, delta = self.p_values, 1 - self.pac_confidence
        best = int(p_values.argmin())
        words = (
            f"no lambda of the grid is certified; the smallest p-value is {p_values[best]:.3g} at lambda "
            f"{self._in_words(best)}"
        )
        needed = TESTINGS[self.testing].first_level(delta, len(self))
        for risk in self.risks.values():
            if (level := self.weights.level(risk.part)) <= 0:
                return (
                    f"{words}; devices without items have {float(self.weights.missing / self.weights.mass):.3g} of the "
                    f"mixture and may lose everything, which is no less than the risk of {float(risk.level):g} allows; "
                    "give them items, or shares of 0"
                )
            if (least := self.weights.p_value(0, risk.part)) > needed:
                enough = math.ceil(math.log(needed) / math.log1p(-float(level)))
                return (
                    f"{words}; {pluralize(self.examples, 'item')} cannot certify a risk of {float(risk.level):g}: "
                    f"the p-value is {least:.3g} even without any loss; at least {enough:,} items are needed"
                )
        if self.testing == "fixed-sequence" and p_values[best] <= delta:
            return (
                f"{words}, but testing goes through the grid in the order given and stopped at its first lambda, "
                f"{self._in_words(0)}, whose p-value is {p_values[0]:.3g}; begin with the lambda most likely to "
                "keep the risk, or use testing='holm'; decide this without these losses"
            )
        return f"{words}, and at most {float(needed):.3g} is needed; use more items, a larger risk or another grid"

    def _what(self, name: str) -> str:
        return "the risk" if len(self.risks) == 1 else f"the risk {name!r}"

    def _in_words(self, place: int) -> str:
        found = self.lambda_at(place)
        return f"({', '.join(f'{x:g}' for x in found)})" if isinstance(found, tuple) else f"{found:g}"

    # --- new outputs --------------------------------------------------------------------------------------------------

    def predict(self, outputs: ArrayLike, *, loss: Loss | str | None = None) -> NDArray[Any]:
        """Return the sets of the chosen lambda, by the loss that was named."""
        kind = as_loss(loss) or self.loss
        if kind is None:
            raise ValueError("predict needs the loss that builds sets: name it with loss=, here or in control")
        lam = self.threshold
        if lam is None:
            raise ValueError(f"there is no lambda to predict with: {self.failure}")
        if isinstance(lam, tuple):
            raise ValueError(f"loss {kind.name!r} has one lambda, and this grid has {len(lam)} parameters")
        return np.asarray(kind.sets(outputs, lam))

    # --- tables, words, pictures --------------------------------------------------------------------------------------

    def columns(self) -> dict[str, NDArray[Any]]:
        """Return a table with a row for each lambda: mean losses, p-values, whether it is certified, and chosen."""
        if self.lambdas.ndim == 1:
            found: dict[str, NDArray[Any]] = {"lambda": self.lambdas}
        else:
            found = {f"lambda_{i}": self.lambdas[:, i] for i in range(self.lambdas.shape[1])}
        one, means = len(self.risks) == 1, self.mean_losses
        for name, risk in self.risks.items():
            found["mean_loss" if one else f"mean_loss_{name}"] = means[name]
            if not one:
                found[f"p_{name}"] = risk.p_values
        found["p"] = self.p_values
        if self.objective is not None:
            found["objective"] = self.objective
        return found | {"certified": self.certified, "chosen": self._is_chosen}

    @property
    def _is_chosen(self) -> Bools:
        return np.asarray(np.arange(len(self)) == (-1 if self.chosen is None else self.chosen))

    def plot(self, ax: Any = None, path: str | os.PathLike[str] | None = None) -> Any:
        """Draw mean losses and p-values over lambda, certified ones filled; with `ax` the p-values alone."""
        from conformesh.plots.results import draw_lambda_tests

        return draw_lambda_tests(self, ax, path)

    def title(self) -> str:
        """Say in a few words what was found, for a heading."""
        many = int(self.certified.sum())
        if self.chosen is None:
            return f"no lambda of {len(self)} certified"
        return f"lambda {self._in_words(self.chosen)}, one of {many} certified of {len(self)}"

    def facts(self) -> list[tuple[str, str]]:
        """Return names and words of what a person wants to know."""
        chosen = "none" if self.chosen is None else self._in_words(self.chosen)
        found = [("lambda", chosen), ("guarantee", self.certificate)]
        for name, risk in self.risks.items():
            what = "mean loss" if len(self.risks) == 1 else f"mean loss {name!r}"
            if self.chosen is not None:
                value = self.mean_losses[name][self.chosen]
                p = risk.p_values[self.chosen]
                found.append((what, f"{value:.4g} of the items at lambda, p-value {p:.3g}, risk {float(risk.level):g}"))
        found.append(("certified", f"{int(self.certified.sum())} of {pluralize(len(self), 'lambda')}"))
        found += [
            ("cost", str(self.cost)),
            ("devices", f"{self.devices:,} with {self.examples:,} items in all"),
            ("network", self.network),
            ("method", f"{self.method}, {self.testing} testing, pac_confidence {float(self.pac_confidence):g}"),
        ]
        return [(name, words) for name, words in found if words]

    def table_in_words(self, most: int | None = None) -> list[list[str]]:
        """Return the table in words, its heading first: all rows, or so many around the chosen lambda."""
        columns, most = self.columns(), most or len(self)
        middle = self.chosen if self.chosen is not None else int(self.p_values.argmin())
        first = min(max(middle - most // 2, 0), max(len(self) - most, 0))
        cut = slice(first, first + most)
        rows = zip(*(cells[cut].tolist() for cells in columns.values()), strict=True)
        return [[*columns]] + [
            [f"{cell:.4g}" if isinstance(cell, float) else "yes" if cell else "" for cell in row] for row in rows
        ]

    def __str__(self) -> str:
        return self.certificate if self.chosen is None else f"{self.title()}; {self.certificate}"

    def __repr__(self) -> str:
        head = f"LambdaTests({self.title()} on {pluralize(self.devices, 'device')}, {self.kind}; {self.cost})"
        left = len(self) - _MOST_PRINTED
        more = [f"... and {left:,} more lambdas"] if left > 0 else []
        return "\n".join([head, *align_columns(self.table_in_words(_MOST_PRINTED)), *more])

    def _repr_html_(self) -> str:
        from conformesh.plots import html

        head, *rows = self.table_in_words(_MOST_PRINTED)
        facts = [(name, words) for name, words in self.facts() if name not in ("lambda", "guarantee")]
        return html.html_card(
            self.title(),
            kind=self.kind,
            claim=self.certificate.partition(": ")[2],
            rows=facts,
            parts=[html.html_table(head, rows, right=head, more=max(len(self) - len(rows), 0))],
        )

    # --- files --------------------------------------------------------------------------------------------------------

    def contradictions(self) -> Iterator[str]:
        """Yield what cannot be so: p-values are computed again from the sums."""
        if not self.risks:
            yield "risks must name at least one risk"
        if self.lambdas.ndim not in (1, 2) or not len(self.lambdas) or not np.isfinite(self.lambdas).all():
            yield "lambdas must be at least one number, or rows of numbers"
        if self.testing not in TESTINGS:
            yield unknown_name("testing", self.testing, TESTINGS)
        if self.mixture.kind not in MIXTURES:
            yield unknown_name("mixture", self.mixture.kind, MIXTURES)
        if (self.mixture.shares is None) == (self.mixture.kind == GIVEN):
            yield f"mixture must have shares if it is {GIVEN!r}, and only then"
        elif self.mixture.shares is not None and {*self.mixture.shares} != {*self.device_ids}:
            yield "mixture.shares must name the devices of device_ids"
        if self.mixture.bound is not None or self.mixture.kind not in (*POOLED_MIXTURES, GIVEN):
            yield "mixture must be one mixture of all devices: lambdas are tested for no other"
        if not 0 < self.pac_confidence < 1:
            yield f"pac_confidence must lie strictly between 0 and 1, got {self.pac_confidence}"
        weights = self.weights
        if not 0 <= weights.missing <= weights.mass <= weights.items * weights.heaviest + weights.missing:
            yield "weights.mass must be from weights.missing to what all items can weigh"
        if self.objective is not None and self.objective.shape != (len(self),):
            yield f"objective must have one number for each of {len(self)} lambdas"
        level = getattr(self.loss, "level", None)
        if level is not None and exact_alpha(level, "level") not in [risk.level for risk in self.risks.values()]:
            yield f"loss.level must be the level of a risk, got {level}"
        for name, risk in self.risks.items():
            yield from self._of_risk(name, risk)

    def _of_risk(self, name: str, risk: RiskTest) -> Iterator[str]:
        if not len(risk.totals) == len(risk.p_values) == len(self) or risk.p_values.ndim != 1:
            yield f"risks.{name}: totals and p_values must have one number for each of {len(self)} lambdas"
            return
        if not 0 < risk.part < 1:
            yield f"risks.{name}: level must be more than 0 and less than the bound, got {risk.level}"
            return
        largest = LOSS_UNITS * self.weights.heaviest * self.weights.items
        if max(risk.totals) > largest:
            yield f"risks.{name}: totals must be at most {largest}, what all items can lose, got {max(risk.totals)}"
            return
        again = p_values_of_totals(self.weights, np.array(risk.totals, dtype=object), risk.part)
        if not np.array_equal(again, risk.p_values):
            at = int(np.flatnonzero(again != risk.p_values)[0])
            yield f"risks.{name}: p_values[{at}] must follow from totals[{at}], {again[at]}, got {risk.p_values[at]}"


def p_values_of_totals(weights: ItemWeights, totals: Ints | NDArray[Any], part: Fraction) -> Floats:
    """Return the p-value of each sum of losses."""
    each = {total: weights.p_value(total, part) for total in {*totals.tolist()}}
    return np.array([each[total] for total in totals.tolist()], dtype=np.float64)
