"""How a model is trained: the numbers that fix the result, and the learning rate they give each step."""

from __future__ import annotations

import math
from dataclasses import dataclass

RATE_SCHEDULES = ("one-cycle", "cosine")  # of the learning rate
_WARM_UP = 0.3  # share of a one-cycle run in which the rate rises; the default of PyTorch's OneCycleLR
_START, _END = 1 / 25, 1e-4  # the rate of a one-cycle run at both ends, relative to its peak


@dataclass(frozen=True)
class Recipe:
    """Stochastic gradient descent with momentum, and what it starts from.

    Attributes
    ----------
    epochs, batch
        Passes over the training images, and images in a step.
    lr, schedule
        The largest learning rate; `one-cycle` rises to it and falls again, `cosine` starts with it and falls.
    momentum, nesterov, weight_decay
        Of the descent.
    smoothing
        Probability that the target spreads over all classes. It makes outputs less sure of themselves, which changes
        the scores.
    crop
        Pixels by which training images are shifted at random; 0 for none.
    flip
        Whether training images are mirrored at random, left to right.
    width
        Factor of the 16, 32 and 64 channels.
    seed
        Of the first weights, the order and the shifts.
    """

    epochs: int = 60
    batch: int = 128
    lr: float = 0.1
    schedule: str = "one-cycle"
    momentum: float = 0.9
    nesterov: bool = True
    weight_decay: float = 5e-4
    smoothing: float = 0.0
    crop: int = 4
    flip: bool = True
    width: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        for name, least in (("epochs", 1), ("batch", 2), ("crop", 0), ("seed", 0)):
            value = getattr(self, name)
            if value < least:
                raise ValueError(f"{name} must be at least {least}, got {value}")
        for name in ("lr", "width"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value > 0):
                raise ValueError(f"{name} must be a positive number, got {value}")
        for name in ("momentum", "smoothing"):
            value = getattr(self, name)
            if not 0 <= value < 1:
                raise ValueError(f"{name} must be at least 0 and below 1, got {value}")
        if not (math.isfinite(self.weight_decay) and self.weight_decay >= 0):
            raise ValueError(f"weight_decay must be 0 or more, got {self.weight_decay}")
        if self.nesterov and not self.momentum:
            raise ValueError("nesterov needs momentum above 0, got 0; set nesterov to False")
        if self.schedule not in RATE_SCHEDULES:
            raise ValueError(f"schedule must be {' or '.join(RATE_SCHEDULES)}, got {self.schedule!r}")


def learning_rate(recipe: Recipe, step: int, steps: int) -> float:
    """Return the learning rate of a step, of 0 to `steps` - 1.

    It depends on nothing but the number of the step, so a run that was interrupted has no schedule to restore.

    Examples
    --------
    >>> recipe = Recipe(lr=0.1, schedule="cosine")
    >>> [round(learning_rate(recipe, step, 4), 4) for step in range(4)]
    [0.1, 0.0854, 0.05, 0.0146]
    """
    done = step / steps
    if recipe.schedule == "cosine":
        return recipe.lr * _along_cosine(1.0, 0.0, done)
    if done < _WARM_UP:
        return recipe.lr * _along_cosine(_START, 1.0, done / _WARM_UP)
    return recipe.lr * _along_cosine(1.0, _END, (done - _WARM_UP) / (1 - _WARM_UP))


def _along_cosine(first: float, last: float, part: float) -> float:
    """Return the value at a part of the way from first to last, along half a cosine."""
    return last + (first - last) * (1 + math.cos(math.pi * part)) / 2
