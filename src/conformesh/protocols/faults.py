"""What goes wrong in a simulated network, round by round, from one seed.

The paper's network is fixed, honest and loses nothing. A real one is not, and some methods bear that: each says which
of these faults (`Method.bears`), and refuses the others with a sentence.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from conformesh.common.names import unknown


@dataclass(frozen=True)
class Faults:
    """What goes wrong, drawn anew in every round.

    Attributes
    ----------
    loss
        The probability that a message gets lost on its way to one neighbour, apart for each of them.
    activation
        The probability that a device speaks at all in a round; who does not says nothing to anybody.
    links
        The probability that a link is up in a round, both ways: the graph that changes under the devices.
    byzantine
        Rows of devices that say something else than is so, in the way of `attack`.
    attack
        A name of `protocols.attacks.ATTACKS`.
    seed
        All draws follow from it.
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
        """Which faults there are."""
        plain = Faults()
        changed = {f.name for f in fields(self) if getattr(self, f.name) != getattr(plain, f.name)}
        return frozenset(changed - {"attack", "seed"})

    @property
    def loses(self) -> bool:
        """Whether messages get lost, so that who moves them must know."""
        return bool(self.names & {"loss", "activation", "links"})


def make_faults(given: Faults | Mapping[str, Any] | None) -> Faults | None:
    """Return faults from what a user gives: an object, a dict of its fields, or None; None where nothing goes wrong."""
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
                raise ValueError(unknown("fault", name, known))
        made = Faults(**{**given, "byzantine": tuple(given.get("byzantine", ()))})
    return made if made is not None and made.names else None
