"""Control: a lambda that keeps the mean loss of new examples at most at a risk, with its sets and how good they are."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from conformesh.graph.network import Network
from conformesh.io.arrays import as_array
from conformesh.io.json_numbers import in_json
from conformesh.losses import Loss, as_loss, get_loss
from conformesh.quantities import several
from conformesh.result.calibration import Calibration
from conformesh.result.files import RiskFields


@dataclass(frozen=True)
class MeanLoss:
    """The mean of some losses, with a 95 % interval.

    The interval is that of a normal mean, for which an imagined loss of 0 and one of the bound widen the spread: so
    it says something also where all losses are equal.
    """

    mean: float
    rows: int
    low: float
    high: float

    @classmethod
    def of(cls, losses: NDArray[np.float64], bound: float) -> MeanLoss:
        """Return the mean of losses between 0 and `bound`."""
        n = len(losses)
        if not n:
            return cls(float("nan"), 0, 0.0, bound)
        from statistics import NormalDist

        mean = float(losses.mean())
        spread = float(((losses - mean) ** 2).sum()) + mean**2 + (bound - mean) ** 2
        half = NormalDist().inv_cdf(0.975) * (spread / (n + 1) / n) ** 0.5
        return cls(mean, n, max(0.0, mean - half), min(bound, mean + half))


@dataclass(frozen=True)
class RiskEvaluation:
    """What sets lose on labelled data.

    Attributes
    ----------
    loss
        Mean over all rows, with a 95 % interval.
    mean_size
        Labels, or pixels, in a set.
    empty
        Fraction of sets with nothing in them.
    per_device
        Mean loss by device, where rows named theirs.
    """

    loss: MeanLoss
    mean_size: float
    empty: float
    per_device: dict[str, MeanLoss] = field(default_factory=dict)

    def _repr_html_(self) -> str:
        from conformesh import cards

        one = self.loss
        rows = [
            ("mean loss", f"{one.mean:.4f} [{one.low:.4f}, {one.high:.4f}] on {one.rows:,} rows"),
            ("mean size", f"{self.mean_size:.4g}; empty {self.empty:.1%}"),
        ]
        each = {name: cards.Mark(part.mean, part.low, part.high) for name, part in self.per_device.items()}
        parts = [cards.marks(each, "mean loss", "device", one.mean)] if each else []
        return cards.card("RiskEvaluation", rows=rows, parts=parts)

    def __repr__(self) -> str:
        return f"RiskEvaluation({self})"

    def __str__(self) -> str:
        one = self.loss
        return (
            f"mean loss {one.mean:.4f} [{one.low:.4f}, {one.high:.4f}] on {one.rows:,} rows, mean size "
            f"{self.mean_size:.4g}, empty {self.empty:.1%}"
        )


@dataclass(frozen=True, eq=False, repr=False)
class Control(Calibration):
    """The result of `control`: a `Calibration` whose threshold is lambda and whose promise is about a mean loss.

    Attributes
    ----------
    risk, bound
        The mean loss that new examples have at most, and the largest loss possible; `alpha` is risk / bound.
    loss
        The loss that was controlled, where it was named: then `predict` and `evaluate` need no more.
    """

    risk: float = 0.1
    bound: float = 1.0
    loss: Loss | None = None

    what = "lambda"

    def title(self) -> str:
        """Say in a few words what was found, for a heading."""
        loss = "loss" if self.loss is None else self.loss.name
        return f"lambda {self.threshold:.6g}, {loss} at most {self.risk:g}"

    def facts(self) -> list[tuple[str, str]]:
        """Return names and words of what a person wants to know first."""
        lines = dict(super().facts())
        words: dict[str, str] = {
            "lambda": lines["threshold"],
            "guarantee": lines["guarantee"],
            "mean loss": self._losses(),
            "about": lines["about"],
            **{name: lines[name] for name in ("sums", "cost") if name in lines},
            "devices": f"{self.devices:,} with {several(self.scores, 'item')} in all",
            "network": self.network,
            "method": f"{self.method}, risk {self.risk:g} of a loss up to {self.bound:g}",
            "seconds": lines["seconds"],
        }
        return [*words.items()]

    def _losses(self) -> str:
        """Return the mean loss of the items at lambda, and the largest allowed, in words."""
        if not self.certificate.losses:
            return "no device that is asked about has items"
        left, allowed = self.mean_losses
        if allowed < 0:
            return f"the new example alone may lose more than the risk of {self.risk:g} allows"
        return f"{left:.4g} of the items at lambda, allowed {allowed:.4g}"

    @property
    def level(self) -> float:
        """The risk that was asked for."""
        return self.risk

    @property
    def mean_losses(self) -> tuple[float, float]:
        """The mean loss of the calibration items at lambda, and the largest allowed, in the units of the loss.

        What is allowed is less than the risk by what the new example might change.
        """
        left, allowed = self.certificate.mean_losses or (float("nan"), float("nan"))
        return left * self.bound, allowed * self.bound

    def predict(  # type: ignore[override]
        self, outputs: ArrayLike, *, loss: Loss | str | None = None, device: str | int | ArrayLike | None = None
    ) -> NDArray[Any]:
        """Return the sets of a loss at lambda, boolean, of the shape of the outputs.

        Parameters
        ----------
        outputs
            What the loss expects: probabilities or logits of labels or pixels.
        loss
            The loss or its name; by default the one that was controlled.
        device
            As in `Calibration.predict`; every device has the same lambda.
        """
        return self._loss(loss).sets(as_array(outputs, "outputs"), self.thresholds_for(device))

    def evaluate(  # type: ignore[override]
        self,
        outputs: ArrayLike,
        labels: ArrayLike,
        *,
        loss: Loss | str | None = None,
        device: str | int | ArrayLike | None = None,
    ) -> RiskEvaluation:
        """Measure the mean loss and the size of sets on labelled data, overall and per device."""
        kind, threshold = self._loss(loss), self.thresholds_for(device)
        table = as_array(outputs, "outputs")
        losses = kind(table, labels).at(threshold)
        sizes = kind.sets(table, threshold).reshape(len(table), -1).sum(axis=1)
        per_device = {}
        if device is not None and np.ndim(device) == 1:
            names = np.asarray(device).astype(str)
            per_device = {
                name: MeanLoss.of(losses[names == name], self.bound) for name in dict.fromkeys(names.tolist())
            }
        empty = float((sizes == 0).mean()) if len(sizes) else float("nan")
        size = float(sizes.mean()) if len(sizes) else float("nan")
        return RiskEvaluation(MeanLoss.of(losses, self.bound), size, empty, per_device)

    def update(self, devices: Iterable[Any], network: Network, **options: Any) -> Control:
        """Control the same risk again after devices gained or lost items, starting from this result."""
        from conformesh.controlling import control
        from conformesh.methods import METHODS

        mine = {name: self.options[name] for name in METHODS[self.method].option_names() if name in self.options}
        if self.bracket is not None:
            mine["warm"] = self.bracket
        asked = {"target": self._asked["target"], "rank": self._asked["rank"]}
        same = {"loss": self.loss, "bound": self.bound, **asked, **mine}
        return control(devices, network, self.risk, **{**same, **options})

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON object of a calibration, and what the risk is."""
        loss = None if self.loss is None else {"name": self.loss.name, **self.loss.options()}
        mine: dict[str, Any] = in_json({"risk": {"level": self.risk, "bound": self.bound, "loss": loss}})
        return {**super().to_dict(), **mine}

    def __repr__(self) -> str:
        what = "loss" if self.loss is None else self.loss.name
        return (
            f"Control({self.method}, {what} at most {self.risk:g}: lambda {self.threshold:.6g} on {self.devices} "
            f"devices, {self.certificate.kind}; {self.cost})"
        )

    def _loss(self, loss: Loss | str | None) -> Loss:
        found = self.loss if loss is None else as_loss(loss)
        if found is None:
            raise ValueError("this result was not told its loss: pass loss=..., for instance FalseNegativeRate()")
        return found


def risk_of(fields: RiskFields, where: str) -> dict[str, Any]:
    """Return what a `Control` has beside a `Calibration`, from its JSON."""
    options = {**(fields.loss or {})}
    try:
        loss = get_loss(options.pop("name", ""), **options) if fields.loss is not None else None
    except (TypeError, ValueError) as error:
        raise ValueError(f"{where}: loss: {error}") from None
    return {"risk": fields.level, "bound": fields.bound, "loss": loss}
