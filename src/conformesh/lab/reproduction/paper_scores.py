"""The paper's data as a source of scores for cells: model outputs, divided into calibration scores and test rows.

A draw splits the rows of one file of model outputs into calibration and test rows, and the calibration rows go to the
device that holds their class. Draws of one seed are the same rows whatever the kind of score or the method, so that
lines of a figure differ by their method alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from conformesh.common.array_types import Floats, Ints
from conformesh.common.random_streams import random_stream
from conformesh.files.model_outputs import ModelOutputs, read_model_outputs
from conformesh.lab.datasets.partition import partition
from conformesh.lab.datasets.synthetic import synthetic_outputs
from conformesh.lab.sweeps.sources import NetworkSpec

_Pair = tuple[Floats, Floats]
ScoreKind = Literal["logits", "confidences"]
_Shares = Literal["equal", "random"]
_CALIBRATION = 0.1  # share of all rows that calibrates, as in the paper

PAPER_DATA = {"cifar100": (10_000, 100), "pathmnist": (8_180, 9)}  # name -> rows and classes of its stand-in


@dataclass(frozen=True)
class OutputSource:
    """Where the model outputs of a data set come from: a file, or a synthetic stand-in with as many classes."""

    data: str
    path: str | None = None

    def load(self) -> ModelOutputs:
        """Return the outputs; a process reads them once."""
        return _load(self)


@lru_cache(maxsize=4)
def _load(source: OutputSource) -> ModelOutputs:
    rows, classes = PAPER_DATA[source.data]
    return synthetic_outputs(rows, classes) if source.path is None else read_model_outputs(source.path)


def paper_score_sources(files: Iterable[str]) -> dict[str, OutputSource]:
    """Assign each file to a data set by its number of classes; a folder stands for the files in it.

    Data sets without a file are synthetic.
    """
    found: dict[str, OutputSource] = {}
    by_classes = {classes: name for name, (_, classes) in PAPER_DATA.items()}
    for file in _expanded(files):
        classes = read_model_outputs(file).values.shape[1]
        if classes not in by_classes:
            needed = " or ".join(f"{n} ({name})" for n, name in by_classes.items())
            raise ValueError(f"{file}: the paper's experiments need outputs for {needed} classes, got {classes}")
        name = by_classes[classes]
        if name in found:
            raise ValueError(f"{file}: outputs for {classes} classes were given already by {found[name].path}")
        found[name] = OutputSource(name, file)
    return {name: found.get(name, OutputSource(name)) for name in PAPER_DATA}


def _expanded(files: Iterable[str]) -> list[str]:
    expanded: list[str] = []
    for file in files:
        if not Path(file).is_dir():
            expanded.append(file)
            continue
        inside = sorted(str(path) for path in Path(file).glob("*.npz"))
        if not inside:
            raise ValueError(f"{file}: needs at least one .npz with model outputs in this folder, found none")
        expanded.extend(inside)
    return expanded


@dataclass(frozen=True)
class PaperScores:
    """The paper's calibration scores ([Wen2025] Section 6.1): device k holds a block of consecutive classes.

    Attributes
    ----------
    source
        The model outputs.
    kind
        The score of a label: 1 - logit, or 1 - softmax confidence.
    shares
        "equal": as many rows on each device, as the text says; "random": a uniform draw of rows, as the code does, so
        that n_k varies.
    """

    source: OutputSource
    kind: ScoreKind
    shares: _Shares

    def identity(self) -> dict[str, Any]:
        """Return all that decides the scores, with the content of the outputs instead of their place."""
        return {"outputs": self.source.load().digest, "kind": self.kind, "shares": self.shares}

    def device_names(self) -> None:
        """Return None: the classes can be divided among any number of devices."""

    def draw(self, spec: NetworkSpec, devices: int, seed: int, number: int) -> PaperDraw:
        """Return a draw; a process prepares it once."""
        return _partitioned(self, devices).draw(seed, number)


@dataclass(frozen=True, eq=False)
class PaperDraw:
    """One draw: calibration scores, and what thresholds do on the test rows.

    Attributes
    ----------
    everything, taken
        For each device, the sorted scores of all labels and of the true labels: of all its rows, and of those that
        calibrate. The others test.
    output_range
        The smallest and the largest finite output of the calibration rows.
    shares
        As in `PaperScores`.
    classes
        How many labels there are.
    """

    everything: Sequence[_Pair]
    taken: Sequence[_Pair]
    output_range: tuple[float, float]
    shares: _Shares
    classes: int

    @property
    def values(self) -> Floats:
        """Calibration scores, device by device."""
        return np.concatenate([true for _, true in self.taken])

    @property
    def sizes(self) -> Ints:
        """How many calibration scores each device has, (devices,)."""
        return np.array([len(true) for _, true in self.taken])

    def measure(self, thresholds: Floats, size: bool) -> tuple[float, float]:
        """Return coverage and mean set size on the test rows, of thresholds (devices,).

        Each test row meets every device's threshold: the expectation over a device drawn at random for it. With equal
        shares rows count so that those of device k weigh n_k + 1, the mixture of the guarantee ([Wen2025]
        Eq. (3)); with random shares every row counts the same.
        """
        sizes = self.sizes
        tests = np.array([len(true) for _, true in self.everything]) - sizes
        weights = sizes + 1 if self.shares == "equal" else tests
        weights = np.where(tests > 0, weights, 0)  # a device without test rows has no coverage to average
        coverage = labels = 0.0
        for k, weight in enumerate(weights / weights.sum()):
            inside, covered = (
                (np.searchsorted(a, thresholds, "right") - np.searchsorted(b, thresholds, "right")).mean()
                for a, b in zip(self.everything[k], self.taken[k], strict=True)
            )
            coverage += weight * covered / max(tests[k], 1)
            labels += weight * inside / max(tests[k], 1)
        return min(float(coverage), 1.0), min(float(labels), float(self.classes))  # weights sum to 1 but for round-off


class _PartitionedOutputs:
    """The rows of model outputs, divided among devices; draws are kept for the other methods of a figure."""

    def __init__(self, outputs: ModelOutputs, scores: PaperScores, devices: int) -> None:
        self.name, self.shares, self.devices = outputs.name, scores.shares, devices
        self.rows, self.classes = outputs.values.shape
        self.table: Floats = 1 - (outputs.logits() if scores.kind == "logits" else outputs.probabilities())
        self.true = self.table[np.arange(self.rows), outputs.labels]
        if not np.isfinite(self.true).all():
            row = int(np.argmin(np.isfinite(self.true)))
            raise ValueError(
                f"{outputs.name}, row {row}: the true label has probability 0, which has no logit; give logits, or run "
                "--scores confidences"
            )
        self.home = partition(outputs.labels, devices, "class", classes=self.classes)
        self.everything = [self._sorted(self.home == k) for k in range(devices)]
        self._draws: dict[tuple[int, int], PaperDraw] = {}

    def draw(self, seed: int, number: int) -> PaperDraw:
        """Return a draw of a seed."""
        if (seed, number) not in self._draws:
            rows = self._choose(seed, number)
            taken = [self._sorted(rows[self.home[rows] == k]) for k in range(self.devices)]
            outputs = 1 - self.table[rows]
            finite = outputs[np.isfinite(outputs)]
            ends = float(finite.min()), float(finite.max())
            self._draws[seed, number] = PaperDraw(self.everything, taken, ends, self.shares, self.classes)
        return self._draws[seed, number]

    def _choose(self, seed: int, number: int) -> Ints:
        """Return the rows that calibrate."""
        order = random_stream(seed, "calibration rows", number).permutation(self.rows)
        n = round(_CALIBRATION * self.rows)
        if self.shares == "random":
            return order[:n]
        shares = np.full(self.devices, n // self.devices) + (np.arange(self.devices) < n % self.devices)
        by_device = [order[self.home[order] == k][:share] for k, share in enumerate(shares)]
        for k, (rows, share) in enumerate(zip(by_device, shares, strict=True)):
            if len(rows) < share:
                raise ValueError(
                    f"{self.name}: device {k} needs {share} calibration rows of its classes, there are {len(rows)}"
                )
        return np.concatenate(by_device)

    def _sorted(self, rows: NDArray[Any]) -> _Pair:
        """Return the scores of all labels of some rows, and those of their true labels, both ascending."""
        return np.sort(self.table[rows], axis=None), np.sort(self.true[rows])


@lru_cache(maxsize=8)
def _partitioned(scores: PaperScores, devices: int) -> _PartitionedOutputs:
    return _PartitionedOutputs(scores.source.load(), scores, devices)
