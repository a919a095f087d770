"""MedMNIST: small medical images with one class each, in an ``.npz`` of training, validation and test parts."""

from __future__ import annotations

import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from conformesh.common.array_types import Ints
from conformesh.lab.datasets.images import ImageData, Pixels, check_labels


def read_medmnist(path: Path, held: str = "test") -> ImageData:
    """Read ``pathmnist.npz`` or another one-class set; `held` is `test`, `val` or both as `val+test`.

    The model is trained on the training part only, whichever part is held out.
    """
    arrays = _arrays(path, ("train", *held.split("+")))
    train_images, train_labels = arrays["train"]
    parts = [arrays[part] for part in held.split("+")]
    return ImageData(
        train_images,
        train_labels,
        np.concatenate([images for images, _ in parts]),
        np.concatenate([labels for _, labels in parts]),
        int(train_labels.max(initial=0)) + 1,
        str(path),
    )


def _arrays(path: Path, parts: tuple[str, ...]) -> dict[str, tuple[Pixels, Ints]]:
    needed = [f"{part}_{what}" for part in parts for what in ("images", "labels")]
    found: dict[str, NDArray[Any]] = {}
    try:
        with path.open("rb") as file:
            archive = np.load(file, allow_pickle=False)
            files = getattr(archive, "files", [])  # a plain array has none
            found = {name: archive[name] for name in needed if name in files}
    except FileNotFoundError:
        raise ValueError(f"{path}: no such file; check the path") from None
    except (ValueError, EOFError, zipfile.BadZipFile, zlib.error, AttributeError, TypeError) as problem:
        raise ValueError(
            f"{path}: cannot be read as NPZ without Python objects: {problem}; download it again"
        ) from None
    missing = [name for name in needed if name not in found]
    if missing:
        listed = ", ".join(files) or "none"
        raise ValueError(f"{path}: needs the arrays {', '.join(needed)}, {missing[0]} is missing; found {listed}")
    return {
        part: (
            _images(found[f"{part}_images"], f"{path}, {part}_images"),
            check_labels(found[f"{part}_labels"], f"{path}, {part}_labels"),
        )
        for part in parts
    }


def _images(images: NDArray[Any], name: str) -> Pixels:
    """Give grey images their one channel; volumes look almost like images, so say what they are."""
    if images.ndim == 3:
        images = images[..., None]
    if images.dtype != np.uint8 or images.ndim != 4 or images.shape[3] not in (1, 3):
        need = "(images, height, width) or (images, height, width, 3)"
        raise ValueError(f"{name} must be uint8 of shape {need}, got {images.dtype} of shape {images.shape}")
    return images
