"""Tiny data sets in the formats in which the real ones are published."""

from __future__ import annotations

import io
import pickle
import struct
import tarfile
from pathlib import Path

import numpy as np


def images_and_labels(many: int, classes: int, seed: int, side: int = 32, channels: int = 3):
    """Noise around a colour of each class: easy to learn."""
    rng = np.random.default_rng(seed)
    labels = np.arange(many) % classes
    colours = np.random.default_rng(99).integers(40, 216, (classes, channels))
    noise = rng.normal(0, 12, (many, side, side, channels))
    return np.clip(colours[labels][:, None, None] + noise, 0, 255).astype(np.uint8), labels


def cifar_rows(images):
    return np.ascontiguousarray(images.transpose(0, 3, 1, 2).reshape(len(images), -1))


def write_cifar100(folder: Path, train=60, test=20, classes=4) -> dict[str, tuple]:
    """The folder cifar-100-python, with pickles of protocol 2 that have bytes as keys."""
    folder = folder / "cifar-100-python"
    folder.mkdir(parents=True)
    parts = {"train": images_and_labels(train, classes, 1), "test": images_and_labels(test, classes, 2)}
    for name, (images, labels) in parts.items():
        content = {
            b"filenames": [b"a.png"] * len(labels),
            b"batch_label": b"training batch 1 of 1",
            b"fine_labels": labels.tolist(),
            b"coarse_labels": [0] * len(labels),
            b"data": cifar_rows(images),
        }
        (folder / name).write_bytes(pickle.dumps(content, protocol=2))
    (folder / "meta").write_bytes(pickle.dumps({b"fine_label_names": [b"apple"]}, protocol=2))
    return parts


def write_cifar10(folder: Path) -> dict[str, tuple]:
    folder = folder / "cifar-10-batches-py"
    folder.mkdir(parents=True)
    names = [*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"]
    parts = {name: images_and_labels(6, 3, seed) for seed, name in enumerate(names)}
    for name, (images, labels) in parts.items():
        content = {b"labels": labels.tolist(), b"data": cifar_rows(images)}
        (folder / name).write_bytes(pickle.dumps(content, protocol=2))
    return parts


def packed(folder: Path, archive: Path) -> Path:
    """Put a folder into a .tar.gz."""
    with tarfile.open(archive, "w:gz") as tar:
        tar.add(folder, arcname=folder.name)
    return archive


def write_medmnist(path: Path, grey: bool = False) -> dict[str, tuple]:
    sizes = {"train": 60, "val": 8, "test": 12}
    parts = {
        name: images_and_labels(many, 3, seed, side=28, channels=1 if grey else 3)
        for seed, (name, many) in enumerate(sizes.items())
    }
    arrays = {}
    for name, (images, labels) in parts.items():
        arrays[f"{name}_images"] = images[..., 0] if grey else images
        arrays[f"{name}_labels"] = labels[:, None].astype(np.uint8)
    np.savez(path, **arrays)
    return parts


def pickled_by_python_2(rows, labels) -> bytes:
    """A CIFAR part as Python 2 wrote it, opcode by opcode: texts are byte strings, NumPy is an old one."""
    out = io.BytesIO()

    def text(value: bytes) -> bytes:
        return b"U" + bytes([len(value)]) + value

    def number(value: int) -> bytes:
        return b"J" + struct.pack("<i", value)

    dtype = b"cnumpy\ndtype\n" + text(b"u1") + b"K\x00K\x01\x87R"
    dtype += b"(K\x03" + text(b"|") + b"NNN" + number(-1) * 2 + b"K\x00tb"
    out.write(b"\x80\x02}(")
    out.write(
        text(b"data") + b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85" + text(b"b") + b"\x87R"
    )
    out.write(b"(K\x01" + number(rows.shape[0]) + number(rows.shape[1]) + b"\x86" + dtype + b"\x89")
    out.write(b"T" + struct.pack("<i", rows.size) + rows.tobytes() + b"tb")
    out.write(text(b"fine_labels") + b"](" + b"".join(number(int(label)) for label in labels) + b"eu.")
    return out.getvalue()
