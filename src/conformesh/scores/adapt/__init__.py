"""Adapted scores: nonconformity scores that learn from a device's own calibration examples.

Where devices differ (hospitals with other diseases, sensors with a bias), a score that knows its device gives smaller
sets for the same guarantee. `Prior` learns which labels a device has, `Scale` the bias and the scale of its residuals,
`Even` evens out coverage between devices. The table is `ADAPTATIONS`; a custom adaptation is a subclass of `Adaptation`
with one method, `leave_one_out`. `calibrate(..., adapt="prior")` uses them, and `Result.on(device)` predicts.
"""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from conformesh.common.names import unknown_name
from conformesh.scores.adapt.base import Adaptation, Bag
from conformesh.scores.adapt.even import Even
from conformesh.scores.adapt.prior import Prior
from conformesh.scores.adapt.scale import Scale

__all__ = ["ADAPTATIONS", "Adaptation", "Bag", "Even", "Prior", "Scale", "as_adaptation", "get_adaptation"]

ADAPTATIONS: dict[str, type[Adaptation]] = {kind.name: kind for kind in (Prior, Scale, Even)}


def get_adaptation(name: str, **options: Any) -> Adaptation:
    """Return the adaptation called `name` with these options.

    >>> get_adaptation("prior", strength=10)
    Prior(strength=10, temperature='auto', prior=None, window=16)
    """
    if name not in ADAPTATIONS:
        raise ValueError(unknown_name("adaptation", name, ADAPTATIONS))
    known = [field.name for field in fields(ADAPTATIONS[name])]  # type: ignore[arg-type] # all are dataclasses
    for option in options:
        if option not in known:
            raise TypeError(unknown_name(f"option of adaptation '{name}'", option, known))
    if isinstance(options.get("base"), dict):  # read from a file
        base = {**options["base"]}
        options["base"] = get_adaptation(str(base.pop("name", None)), **base)
    return ADAPTATIONS[name](**options)


def as_adaptation(given: Any) -> Adaptation | None:
    """Return an adaptation from an object, a class or a name; None stays None."""
    if given is None or isinstance(given, Adaptation):
        return given
    if isinstance(given, str):
        return get_adaptation(given)
    if isinstance(given, type) and issubclass(given, Adaptation):
        return given()
    raise TypeError(
        f"adapt must be a name ({', '.join(ADAPTATIONS)}) or an object such as adapt.Prior(strength=10), got "
        f"{type(given).__name__} {given!r:.40}"
    )
