"""Faults of a simulated network, drawn in every round from one seed.

The paper's network is fixed, honest and loses nothing. Some methods tolerate more (`Method.tolerance`); the others
raise an error.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from conformesh.common.names import unknown_name


@dataclass(frozen=True)
class Faults:
    """Faults, drawn anew in every round.

    Attributes
    ----------
    loss
        The probability that a message to one neighbour is lost, independently for each neighbour.
    activation
        The probability that a device sends in a round.
    links
        The probability that a link is up in a round, in both directions.
    byzantine
        Rows of Byzantine devices.
    attack
        What they send: a name of `protocols.attacks.ATTACKS`.
    seed
        Seed of all draws.
    """

    loss: float = 0.0
    activation: float = 1.0
    links: float = 1.0
    byzantine: tuple[int, ...] = ()
    attack: str = ""
    seed: int = 0

    def __post_init__(self) -> None:
        for name, low, high in (("loss", 0, 1), ("activation", 1, 0), ("links", 1, 0)):
            value = getattr(self, name)
            if not (isinstance(value, float | int) and min(low, high) <= value <= 1 and value != high):
                bounds = "at least 0 and below 1" if name == "loss" else "above 0 and at most 1"
                raise ValueError(f"{name} must be {bounds}, got {value!r}")
        if bool(self.byzantine) != bool(self.attack):
            raise ValueError(
                "Byzantine devices and attack go together: which devices lie, and how, "
                f"got {len(self.byzantine)} Byzantine devices and attack {self.attack!r}"
            )

    @property
    def names(self) -> frozenset[str]:
        """Names of the faults that can occur."""
        plain = Faults()
        changed = {f.name for f in fields(self) if getattr(self, f.name) != getattr(plain, f.name)}
        return frozenset(changed - {"attack", "seed"})

    @property
    def loses(self) -> bool:
        """Whether messages can be lost, which the engine must simulate."""
        return bool(self.names & {"loss", "activation", "links"})


def make_faults(given: Faults | Mapping[str, Any] | None) -> Faults | None:
    """Return faults from a `Faults`, a dict of its fields or None; None if no fault can occur."""
    if given is None or isinstance(given, Faults):
        made = given
    elif not isinstance(given, Mapping):
        raise TypeError(
            f"faults must be a Faults or a dict of its fields, such as {{'loss': 0.3}}, got {type(given).__name__} "
            f"{given!r:.40}"
        )
    else:
        known = [f.name for f in fields(Faults)]
        for name in given:
            if name not in known:
                raise ValueError(unknown_name("fault", name, known))
        made = Faults(**{**given, "byzantine": tuple(given.get("byzantine", ()))})
    return made if made is not None and made.names else None
