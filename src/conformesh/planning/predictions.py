"""PREDICTIONS: what each method would send, one line each; and the ways in which each can be run."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from fractions import Fraction
from typing import Any, NamedTuple

from conformesh.methods import METHODS, get_method, make_options
from conformesh.planning.averaged import predict_average, predict_h_dcp, predict_q_dcp
from conformesh.planning.e_dcp import predict_e_dcp
from conformesh.planning.prediction import Prediction
from conformesh.planning.served import predict_cp, predict_fedcp_qq, predict_local, predict_pooled, predict_wfcp
from conformesh.planning.terrain import Terrain
from conformesh.protocols.aggregate import AGGREGATORS
from conformesh.protocols.averages import WAYS

Predict = Callable[[Terrain, Fraction, Any, str], Prediction]

PREDICTIONS: dict[str, Predict] = {
    "e-dcp": predict_e_dcp,
    "q-dcp": predict_q_dcp,
    "h-dcp": predict_h_dcp,
    "cp": predict_cp,
    "fcp": predict_pooled,
    "fedcp-qq": predict_fedcp_qq,
    "wfcp": predict_wfcp,
    "local": predict_local,
    "average": predict_average,
}
VARIANTS: dict[str, tuple[str, tuple[str, ...]]] = {  # the option that says how to add up or average, and its values
    "e-dcp": ("aggregate", ("auto", *AGGREGATORS)),
    "h-dcp": ("consensus", tuple(WAYS)),
}


class Way(NamedTuple):
    """A method, and for methods that add up or average, how."""

    method: str
    variant: str | None = None

    def __str__(self) -> str:
        return self.method if self.variant is None else f"{self.method} {self.variant}"

    @property
    def flags(self) -> str:
        """The way as one would ask for it on the command line."""
        if self.variant in (None, "auto"):  # auto is what the method does by itself
            return self.method
        return f"{self.method} --{VARIANTS[self.method][0]} {self.variant}"


def ways_of(methods: Iterable[str] | None, options: Mapping[str, Any]) -> list[Way]:
    """Return every way to run these methods, by default all; an option that was given leaves only its own."""
    ways = []
    for name in dict.fromkeys(METHODS if methods is None else methods):
        get_method(name)
        option, values = VARIANTS.get(name, ("", ()))
        if option in options:
            values = (options[option],) if options[option] in values else ()
        ways += [Way(name, value) for value in values] or [Way(name)]
    return ways


def predict(way: Way, terrain: Terrain, alpha: Fraction, options: Mapping[str, Any], shape: str) -> Prediction:
    """Predict one way; raises `ValueError` with the reason where it cannot run, or cannot be predicted."""
    if way.method not in PREDICTIONS:
        raise ValueError("nobody has said what it sends; add a line to PREDICTIONS")
    known = {*make_options(way.method, {}).__dataclass_fields__}
    chosen = {name: value for name, value in options.items() if name in known}
    if way.variant is not None:
        chosen[VARIANTS[way.method][0]] = way.variant
    return PREDICTIONS[way.method](terrain, alpha, make_options(way.method, chosen), shape)
