"""Random batches: the order of the training images in an epoch, and how each image is shifted and mirrored."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from conformesh.common.array_types import Ints
from conformesh.common.random_streams import random_stream
from conformesh.lab.datasets.images import Pixels
from conformesh.lab.training.recipe import Recipe
from conformesh.lab.training.torch_extra import import_torch

if TYPE_CHECKING:
    from torch import Tensor


class TrainingBatches:
    """Training images on a device, handed out in random batches.

    An epoch's randomness comes from the seed and the number of the epoch alone, so a run that was interrupted has no
    generator to restore. The images too few for a last full batch sit out that epoch.

    Attributes
    ----------
    steps
        Batches in an epoch.
    """

    def __init__(self, images: Pixels, labels: Ints, recipe: Recipe, device: str) -> None:
        torch = import_torch()
        self.recipe, self.device = recipe, device
        self.side: tuple[int, int] = (images.shape[1], images.shape[2])
        edge = (recipe.crop, recipe.crop)
        padded = np.pad(images, ((0, 0), edge, edge, (0, 0)), mode="reflect") if recipe.crop else images
        self.images, self.labels = (
            torch.from_numpy(np.require(values, requirements=["C", "W"])).to(device) for values in (padded, labels)
        )
        self.size = min(recipe.batch, len(images))
        self.steps = len(images) // self.size

    def epoch(self, number: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield images, as values 0 to 255 of shape (batch, height, width, channels), and their labels."""
        rng, many = random_stream(self.recipe.seed, "batches", number), len(self.labels)
        order = self._on_device(rng.permutation(many))
        up, left = self._on_device(rng.integers(0, 2 * self.recipe.crop + 1, size=(2, many)))
        mirror = self._on_device(rng.random(many) < (0.5 if self.recipe.flip else 0.0))
        for step in range(self.steps):
            rows = slice(step * self.size, (step + 1) * self.size)
            yield self._crop_and_flip(order[rows], up[rows], left[rows], mirror[rows]), self.labels[order[rows]]

    def _crop_and_flip(self, which: Tensor, up: Tensor, left: Tensor, mirror: Tensor) -> Tensor:
        """Take a window of each image, its columns in reverse where it is mirrored."""
        height, width = (self._on_device(np.arange(side)) for side in self.side)
        columns = import_torch().where(mirror[:, None], width.flip(0), width) + left[:, None]
        rows = height + up[:, None]
        return self.images[which[:, None, None], rows[:, :, None], columns[:, None, :]]

    def _on_device(self, values: Any) -> Tensor:
        return import_torch().from_numpy(values).to(self.device)
