"""The table of named data sets: where each is published, where it is stored, and which function reads it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from conformesh.common.names import unknown_name
from conformesh.lab.datasets.cifar import read_cifar
from conformesh.lab.datasets.downloads import DownloadObserver, PublishedFile, download_file, download_folder
from conformesh.lab.datasets.images import ImageData
from conformesh.lab.datasets.medmnist import read_medmnist

HELD_OUT_PARTS = ("test", "val", "val+test")  # parts that may be held out; CIFAR has only the first


@dataclass(frozen=True)
class _Dataset:
    """A data set that has a name here.

    Attributes
    ----------
    source
        The file as it is published.
    read
        From a path and the part that is held out to the images.
    unpacked
        The folder inside the published file, if it is an archive; such a folder is read as well.
    """

    source: PublishedFile
    read: Callable[[Path, str], ImageData]
    unpacked: str | None = None

    def find(self, where: Path) -> Path | None:
        """Return the file or folder to read, which is `where` or in it; None if neither is there."""
        if where.is_file() or where.name == self.unpacked:
            return where if where.exists() else None
        inside = [where / name for name in (self.unpacked, self.source.file) if name is not None]
        return next((path for path in inside if path.exists()), None)


def _cifar(kind: str) -> Callable[[Path, str], ImageData]:
    def read(path: Path, held: str) -> ImageData:
        if held != "test":
            raise ValueError(f"{kind} has no validation part: held must be test, got {held!r}")
        return read_cifar(path, kind)

    return read


_CIFAR = "https://www.cs.toronto.edu/~kriz"
DATASETS: dict[str, _Dataset] = {
    "cifar100": _Dataset(
        PublishedFile(
            "cifar-100-python.tar.gz", f"{_CIFAR}/cifar-100-python.tar.gz", "eb9058c3a382ffc7106e4002c42a8d85"
        ),
        _cifar("cifar100"),
        "cifar-100-python",
    ),
    "cifar10": _Dataset(
        PublishedFile("cifar-10-python.tar.gz", f"{_CIFAR}/cifar-10-python.tar.gz", "c58f30108f718f92721af3b95e74349a"),
        _cifar("cifar10"),
        "cifar-10-batches-py",
    ),
    "pathmnist": _Dataset(
        PublishedFile(
            "pathmnist.npz",
            "https://zenodo.org/records/10519652/files/pathmnist.npz?download=1",
            "a8b06965200029087d5bd730944a56c1",
        ),
        read_medmnist,
    ),
}


def load_images(
    dataset: str,
    data: Path | None = None,
    *,
    held: str = "test",
    download: bool = True,
    observer: DownloadObserver | None = None,
) -> ImageData:
    """Load a data set by name, or any MedMNIST file by its path.

    Parameters
    ----------
    dataset
        A key of `DATASETS`, or the path of an ``.npz`` file in the format of MedMNIST.
    data
        The file, or the folder that holds it or will after the download; by default `downloads.download_folder()`.
    held
        Which part is held out, one of `HELD_OUT_PARTS`.
    download
        Whether to fetch the published file if it is not there.
    observer
        Told the bytes that have arrived, and of how many, while a file is fetched.
    """
    if held not in HELD_OUT_PARTS:
        raise ValueError(f"held must be {', '.join(HELD_OUT_PARTS[:-1])} or {HELD_OUT_PARTS[-1]}, got {held!r}")
    if dataset.lower().endswith(".npz"):
        if data is not None:
            raise ValueError(f"{dataset} is a file already, so no other place for the data can be given, got {data}")
        return read_medmnist(Path(dataset), held)
    if dataset not in DATASETS:
        raise ValueError(unknown_name("data set", dataset, DATASETS) + ", or the path of a MedMNIST .npz file")
    entry, where = DATASETS[dataset], download_folder() if data is None else data.expanduser()
    found = entry.find(where)
    if found is None:
        if where.suffix in (".npz", ".gz", ".tgz"):
            raise ValueError(f"{where}: no such file; name the file of {dataset}, or the folder that holds it")
        if not download:
            either = "" if entry.unpacked is None else f" or its folder {entry.unpacked}"
            raise ValueError(
                f"{dataset} is not in {where}: needed {entry.source.file}{either}; get it from {entry.source.url} and "
                "put it there, or allow the download"
            )
        found = download_file(entry.source, where, observer)
    return entry.read(found, held)
