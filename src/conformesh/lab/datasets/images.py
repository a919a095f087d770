"""Labelled images: some to train a shared model on, some held out.

The held-out images are those whose outputs calibrate and test, so no model may have been trained on them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from conformesh.common.array_types import Ints

Pixels = NDArray[np.uint8]


@dataclass(frozen=True, eq=False)
class ImageData:
    """Images to train on and images that are held out.

    Attributes
    ----------
    train_images, held_images
        Shape (images, height, width, channels), values 0 to 255.
    train_labels, held_labels
        The class of each image, 0 to `classes` - 1.
    classes
        How many classes there are.
    name
        Where the images come from.
    """

    train_images: Pixels
    train_labels: Ints
    held_images: Pixels
    held_labels: Ints
    classes: int
    name: str

    def __post_init__(self) -> None:
        for part, images, labels in (
            ("training", self.train_images, self.train_labels),
            ("held-out", self.held_images, self.held_labels),
        ):
            _check(f"{self.name}, {part} images", images, labels, self.classes)
        if self.train_images.shape[1:] != self.held_images.shape[1:]:
            sizes = f"{self.train_images.shape[1:]} and {self.held_images.shape[1:]}"
            raise ValueError(f"{self.name}: training and held-out images must have one size, got {sizes}")


def _check(name: str, images: Pixels, labels: Ints, classes: int) -> None:
    if images.dtype != np.uint8 or images.ndim != 4 or not 1 <= images.shape[3] <= 3:
        need = "uint8 of shape (images, height, width, 1 to 3 channels)"
        raise ValueError(f"{name} must be {need}, got {images.dtype} of shape {images.shape}")
    if labels.shape != images.shape[:1]:
        raise ValueError(f"{name}: each needs one label, got {len(images)} images and labels of shape {labels.shape}")
    if not len(images):
        raise ValueError(f"{name}: at least 1 is needed, the file has none")
    if not 0 <= labels.min() <= labels.max() < classes:
        raise ValueError(
            f"{name}: labels must lie between 0 and {classes - 1}, got {labels.min()} to {labels.max()}; "
            "is this the file of another data set?"
        )


def check_labels(values: Any, name: str) -> Ints:
    """Return class labels as integers of shape (images,); MedMNIST has them as one column."""
    labels = np.asarray(values)
    if labels.ndim == 2 and labels.shape[1] == 1:
        labels = labels[:, 0]
    if labels.ndim != 1 or labels.dtype.kind not in "iu":
        raise ValueError(
            f"{name}: needs one class per image, an integer; got {labels.dtype} of shape {labels.shape} (sets with "
            "several labels for an image cannot be used)"
        )
    return labels.astype(np.int64)
