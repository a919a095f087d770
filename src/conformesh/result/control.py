"""Control: a lambda that keeps the mean loss of new examples at most at a risk, with its sets and how good they are."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from conformesh.graph.network import Network
from conformesh.io.arrays import as_array
from conformesh.io.json_numbers import in_json
from conformesh.losses import Loss, as_loss, get_loss
from conformesh.quantities import several
from conformesh.result.calibration import Calibration
from conformesh.result.evaluation import RiskEvaluation, risk_evaluation
from conformesh.result.files import RiskFields


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
        by_device = None if device is None or np.ndim(device) == 0 else np.asarray(device).astype(str)
        return risk_evaluation(losses, kind.sets(table, threshold), self.bound, self.risk, by_device)

    def update(self, devices: Iterable[Any], network: Network, **options: Any) -> Control:
        """Control the same risk again after devices gained or lost items, starting from this result."""
        from conformesh.api import control
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
