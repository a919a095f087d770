"""An adaptation: what the label was, among the device's own examples, where the model said the same."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from conformesh.common.array_types import Floats
from conformesh.scores.adapt import Adaptation, Bag
from conformesh.scores.adapt.base import Setting


@dataclass(frozen=True)
class Confusion(Adaptation):
    r"""One minus the share of a label among the other examples with the same most probable class.

    .. math:: A = 1 - \frac{\#\{\text{others with the same top class and this label}\} + a \hat p_y(x)}
                           {\#\{\text{others with the same top class}\} + a}

    Parameters
    ----------
    strength
        a, how many examples the model's own probability counts for.
    window
        How many pooled scores around the threshold are shared, or "full".

    Examples
    --------
    >>> bag = Bag(np.array([[0.75, 0.25], [0.75, 0.25], [0.75, 0.25]]), np.array([1, 1, 0]))
    >>> Confusion(strength=2).leave_one_out(bag, ()).tolist()
    [0.625, 0.625, 0.625]
    """

    strength: float = 10.0
    window: Any = 16

    name: ClassVar[str] = "confusion"
    summary: ClassVar[str] = "what labels a device has had where the model said the same"

    def __post_init__(self) -> None:
        self.check_window()
        if not self.strength > 0:
            raise ValueError(f"strength must be above 0, got {self.strength}")

    def leave_one_out(self, bag: Bag, setting: Setting) -> Floats:
        """Return the score of each example, computed from the other examples of the bag."""
        rows, top = np.arange(len(bag)), bag.outputs.argmax(axis=1)
        seen = np.zeros((bag.outputs.shape[1],) * 2)
        np.add.at(seen, (top, bag.labels), 1)  # counts do not depend on the order of examples, to the last bit
        same, others = seen[top, bag.labels] - 1, seen.sum(axis=1)[top] - 1  # without the example itself
        return 1 - (same + self.strength * bag.outputs[rows, bag.labels]) / (others + self.strength)


# The entry for ADAPTATIONS in scores/adapt/__init__.py: add the class to its list. The key is the class's own name.
LINE = {Confusion.name: Confusion}
