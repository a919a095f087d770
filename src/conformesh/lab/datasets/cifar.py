"""CIFAR-10 and CIFAR-100 in their "python version": a folder of pickles, or the ``.tar.gz`` that holds it."""

from __future__ import annotations

import tarfile
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from conformesh.common.array_types import Ints
from conformesh.lab.datasets.images import ImageData, Pixels, check_labels
from conformesh.lab.datasets.pickles import read_pickled

_SIDE, _CHANNELS = 32, 3  # pixels, colours: fixed by the format


@dataclass(frozen=True)
class _ArchiveLayout:
    """The files of one kind of CIFAR, and what the labels are called in them."""

    train: tuple[str, ...]
    test: str
    labels: str
    classes: int


_LAYOUTS = {  # as https://www.cs.toronto.edu/~kriz/cifar.html describes the archives
    "cifar100": _ArchiveLayout(("train",), "test", "fine_labels", 100),
    "cifar10": _ArchiveLayout(tuple(f"data_batch_{i}" for i in range(1, 6)), "test_batch", "labels", 10),
}


def read_cifar(path: Path, kind: str) -> ImageData:
    """Read CIFAR of that kind, `cifar100` or `cifar10`, from its folder or its archive; the test set is held out."""
    layout = _LAYOUTS[kind]
    names = (*layout.train, layout.test)
    files = _from_folder(path, names) if path.is_dir() else _from_archive(path, names)
    parts = [_part(files[name], layout, f"{path}, {name}") for name in names]
    train, (held, held_labels) = parts[:-1], parts[-1]
    return ImageData(
        np.concatenate([images for images, _ in train]),
        np.concatenate([labels for _, labels in train]),
        held,
        held_labels,
        layout.classes,
        str(path),
    )


def _part(data: bytes, layout: _ArchiveLayout, name: str) -> tuple[Pixels, Ints]:
    found = read_pickled(data, name)
    for key in ("data", layout.labels):
        if key not in found:
            raise ValueError(f"{name}: needs {key!r}, found {', '.join(map(repr, found)) or 'nothing'}")
    return _images(found["data"], name), check_labels(found[layout.labels], name)


def _images(rows: Any, name: str) -> Pixels:
    """From rows with first all red, then all green, then all blue values to (images, height, width, channels)."""
    width = _CHANNELS * _SIDE * _SIDE
    if not isinstance(rows, np.ndarray) or rows.dtype != np.uint8 or rows.ndim != 2 or rows.shape[1] != width:
        got = f"{rows.dtype} of shape {rows.shape}" if isinstance(rows, np.ndarray) else type(rows).__name__
        raise ValueError(f"{name}: 'data' must be uint8 of shape (images, {width}), got {got}")
    return np.ascontiguousarray(rows.reshape(-1, _CHANNELS, _SIDE, _SIDE).transpose(0, 2, 3, 1))


def _from_folder(folder: Path, names: Sequence[str]) -> dict[str, bytes]:
    for name in names:
        if not (folder / name).is_file():
            raise ValueError(
                f"{folder}: needs the files {', '.join(names)}, {name} is missing; unpack the archive again"
            )
    return {name: (folder / name).read_bytes() for name in names}


def _from_archive(path: Path, names: Sequence[str]) -> dict[str, bytes]:
    """Read the files straight from the archive: nothing is unpacked, so no name in it can lead astray."""
    files: dict[str, bytes] = {}
    try:
        with tarfile.open(path) as archive:
            for member in archive:
                name = member.name.rpartition("/")[2]
                if name in names and member.isfile() and (opened := archive.extractfile(member)) is not None:
                    files[name] = opened.read()
    except (tarfile.TarError, EOFError, zlib.error) as problem:
        raise ValueError(f"{path}: cannot be read as .tar.gz: {problem}; download it again") from None
    missing = [name for name in names if name not in files]
    if missing:
        raise ValueError(f"{path}: needs {', '.join(names)} inside, {missing[0]} is missing; is it another data set?")
    return files
