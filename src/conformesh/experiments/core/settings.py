"""From model outputs to repeated draws of calibration scores on devices, and the measures of a threshold.

A draw splits the rows of one file of model outputs into calibration and test rows, and the calibration rows go to the
device that holds their class. Draws of one seed are the same rows whatever the kind of score or the method, so that
lines of a figure differ by their method alone.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from conformesh.data.partition import partition
from conformesh.data.synthetic import synthetic_outputs
from conformesh.io.model_outputs import ModelOutputs, read_model_outputs
from conformesh.kernels.ranks import conformal_rank
from conformesh.kernels.weighted_scores import WeightedScores
from conformesh.streams import stream

Floats = NDArray[np.float64]
Pair = tuple[Floats, Floats]
Scores = Literal["logits", "confidences"]
CALIBRATION = 0.1  # the share of all rows that calibrates, as in the paper

DATA = {"cifar100": (10_000, 100), "pathmnist": (8_180, 9)}  # name -> rows and classes of its stand-in


@dataclass(frozen=True)
class Source:
    """Where the model outputs of a data set come from: a file, or a synthetic stand-in with as many classes."""

    data: str
    path: str | None = None
    labels: str | None = None

    def load(self) -> ModelOutputs:
        """Return the outputs; a process reads them once."""
        return _load(self)


@lru_cache(maxsize=4)
def _load(source: Source) -> ModelOutputs:
    rows, classes = DATA[source.data]
    if source.path is None:
        return synthetic_outputs(rows, classes)
    return read_model_outputs(source.path, source.labels)


def sources_from(files: Iterable[str]) -> dict[str, Source]:
    """Tell by the number of classes which data set each file stands for; a folder stands for the files in it.

    What no file stands for is synthetic.
    """
    found: dict[str, Source] = {}
    by_classes = {classes: name for name, (_, classes) in DATA.items()}
    for file in _expanded(files):
        classes = read_model_outputs(file).values.shape[1]
        if classes not in by_classes:
            needed = " or ".join(f"{n} ({name})" for n, name in by_classes.items())
            raise ValueError(f"{file}: the paper's experiments need outputs for {needed} classes, got {classes}")
        name = by_classes[classes]
        if name in found:
            raise ValueError(f"{file}: outputs for {classes} classes were given already by {found[name].path}")
        found[name] = Source(name, file)
    return {name: found.get(name, Source(name)) for name in DATA}


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
class Setting:
    """How calibration data comes to devices ([Wen2025] Section 6.1).

    Attributes
    ----------
    data
        A key of `DATA`.
    scores
        1 - logit of a label, or 1 - softmax confidence.
    devices
        K; device k holds a block of consecutive classes.
    shares
        "equal": as many rows on each device, as the text says; "random": a uniform draw of rows, as the code does, so
        that n_k varies.
    draws
        How many independent draws.
    seed
        Of the draws.
    """

    data: str
    scores: Scores
    devices: int
    shares: Literal["equal", "random"]
    draws: int = 10
    seed: int = 0


class Draws:
    """All draws of a setting: calibration scores ready for a run, and what thresholds do on the test rows."""

    def __init__(self, outputs: ModelOutputs, setting: Setting) -> None:
        self.setting = setting
        self.name = outputs.name
        self.classes = outputs.values.shape[1]
        self.rows = len(outputs.labels)
        table = _label_scores(outputs, setting.scores)
        true = table[np.arange(self.rows), outputs.labels]
        if not np.isfinite(true).all():
            row = int(np.argmin(np.isfinite(true)))
            raise ValueError(
                f"{outputs.name}, row {row}: the true label has probability 0, which has no logit; give logits, or run "
                "--scores confidences"
            )
        home = partition(outputs.labels, setting.devices, "class", classes=self.classes)
        self._at_home = [_sorted_pair(table, true, home == k) for k in range(setting.devices)]
        chosen = [self._choose(draw, home) for draw in range(setting.draws)]
        self._taken = [
            [_sorted_pair(table, true, rows[home[rows] == k]) for k in range(setting.devices)] for rows in chosen
        ]
        self._ranges = np.array([_finite_range(1 - table[rows]) for rows in chosen])

    def _choose(self, draw: int, home: NDArray[np.int64]) -> NDArray[np.int64]:
        order = stream(self.setting.seed, "calibration rows", draw).permutation(self.rows)
        n = round(CALIBRATION * self.rows)
        if self.setting.shares == "random":
            return order[:n]
        K = self.setting.devices
        shares = np.full(K, n // K) + (np.arange(K) < n % K)
        mine = [order[home[order] == k][:share] for k, share in enumerate(shares)]
        for k, (rows, share) in enumerate(zip(mine, shares, strict=True)):
            if len(rows) < share:
                raise ValueError(
                    f"{self.name}: device {k} needs {share} calibration rows of its classes, there are {len(rows)}"
                )
        return np.concatenate(mine)

    def samples(self, draws: tuple[int, ...] | None = None) -> WeightedScores:
        """Return the calibration scores, one trial per draw."""
        return WeightedScores.of_trials([[true for _, true in self._taken[draw]] for draw in self._which(draws)])

    def output_ranges(self, draws: tuple[int, ...] | None = None) -> Floats:
        """Return the smallest and the largest finite output of the calibration rows, (draws, 2)."""
        return self._ranges[[*self._which(draws)]]

    def measure(self, thresholds: Floats, draws: tuple[int, ...] | None = None) -> tuple[Floats, Floats]:
        """Return coverage and mean set size on the test rows, (draws, alphas), of thresholds (devices, draws, alphas).

        Each test row meets every device's threshold: the expectation over a device drawn at random for it. With equal
        shares rows count so that those of device k weigh n_k + 1, the mixture that the promise speaks of ([Wen2025]
        Eq. (3)); with random shares every row counts the same.
        """
        coverage, size = np.zeros((2, *thresholds.shape[1:]))
        for t, draw in enumerate(self._which(draws)):
            at = thresholds[:, t]
            left = np.array([len(all_) - len(mine) for (_, all_), (_, mine) in self._groups(draw)])
            held = np.array([len(mine) for _, mine in self._taken[draw]])
            weights = held + 1 if self.setting.shares == "equal" else left
            weights = np.where(left > 0, weights, 0)  # a device without test rows says nothing
            for (everything, taken), tests, weight in zip(
                self._groups(draw), left, weights / weights.sum(), strict=True
            ):
                labels, covered = (
                    (np.searchsorted(a, at, "right") - np.searchsorted(b, at, "right")).mean(axis=0)
                    for a, b in zip(everything, taken, strict=True)
                )
                coverage[t] += weight * covered / max(tests, 1)
                size[t] += weight * labels / max(tests, 1)
        return np.minimum(coverage, 1.0), np.minimum(size, self.classes)  # the weights sum to one but for round-off

    def _groups(self, draw: int) -> list[tuple[Pair, Pair]]:
        """Return, for each device, the sorted scores of all its rows, and of those that calibrate."""
        return [*zip(self._at_home, self._taken[draw], strict=True)]

    def rank_margin(
        self, thresholds: Floats, alphas: tuple[float, ...], draws: tuple[int, ...] | None = None
    ) -> NDArray[np.int64]:
        """Return by how much the rank of the lowest device's threshold exceeds the required one, (draws, alphas).

        Negative where fewer calibration scores lie at or below it than the promise needs.
        """
        margin = np.empty(thresholds.shape[1:], dtype=np.int64)
        for t, draw in enumerate(self._which(draws)):
            scores = np.sort(np.concatenate([true for _, true in self._taken[draw]]))
            needed = [conformal_rank(len(scores), alpha, self.setting.devices) for alpha in alphas]
            margin[t] = np.searchsorted(scores, thresholds[:, t].min(axis=0), "right") - needed
        return margin

    def _which(self, draws: tuple[int, ...] | None) -> Iterable[int]:
        return range(self.setting.draws) if draws is None else draws


@lru_cache(maxsize=8)
def draws_of(source: Source, setting: Setting) -> Draws:
    """Return the draws of a setting; a process prepares them once."""
    return Draws(source.load(), setting)


def _label_scores(outputs: ModelOutputs, scores: Scores) -> Floats:
    return 1 - (outputs.logits() if scores == "logits" else outputs.probabilities())


def _finite_range(outputs: Floats) -> tuple[float, float]:
    finite = outputs[np.isfinite(outputs)]
    return float(finite.min()), float(finite.max())


def _sorted_pair(table: Floats, true: Floats, rows: NDArray[Any]) -> Pair:
    """Return the scores of all labels of some rows, and those of their true labels, both ascending."""
    return np.sort(table[rows], axis=None), np.sort(true[rows])
