"""Networks and scores of cells: one `ScoreDraw` per network and draw number. A process loads each file once.

Draw d of a sweep with seed s uses the seed s + d for everything random in it, as ``conformesh scores make --seed`` and
``conformesh calibrate --seed`` would: any row can be made again by hand. A cell takes any `ScoreSource`; `ScoreSpec` is
the one that the file of a sweep describes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from conformesh.common.array_types import Floats, Ints
from conformesh.common.names import natural_order
from conformesh.common.random_streams import random_stream
from conformesh.files.model_outputs import ModelOutputs, read_model_outputs
from conformesh.files.score_files import read_scores
from conformesh.graph.network import Network
from conformesh.kernels.weighted_scores import WeightedScores
from conformesh.lab.datasets.partition import partition, split_calibration_rows
from conformesh.lab.datasets.synthetic import synthetic_outputs
from conformesh.scores import Score, get_score

Options = tuple[tuple[str, Any], ...]  # sorted pairs of name and value, hashable for caches


@cache
def digest_source_file(path: str) -> str:
    """Return the digest of a file's content."""
    return hashlib.sha256(Path(path).read_bytes()).hexdigest()[:16]


@dataclass(frozen=True)
class NetworkSpec:
    """A network to build; equal ones are the same graph."""

    topology: str | None
    graph: str | None
    devices: int | None
    seed: int
    redraw: bool
    options: Options

    def identity(self) -> dict[str, Any]:
        """Return everything that decides the graph; a graph file counts by content, not by path."""
        return {**asdict(self), "graph": None if self.graph is None else digest_source_file(self.graph)}


class ScoreDraw(Protocol):
    """One draw of a network's scores."""

    @property
    def values(self) -> Floats:
        """Calibration scores, device by device."""

    @property
    def sizes(self) -> Ints:
        """How many scores each device has, (devices,)."""

    def measure(self, thresholds: Floats, size: bool) -> tuple[float | None, float | None]:
        """Return coverage and, if asked for, mean set size on the test rows, of thresholds (devices,)."""


class ScoreSource(Protocol):
    """A source of scores: a frozen dataclass, so that it can be sent to any process."""

    def __hash__(self) -> int:
        """Return the same hash for equal sources, which share caches."""

    def identity(self) -> dict[str, Any]:
        """Return everything that decides the scores; files count by content, not by path."""

    def device_names(self) -> tuple[str, ...] | None:
        """Return the devices that the source names; None where any number of devices will do."""

    def draw(self, spec: NetworkSpec, devices: int, seed: int, number: int) -> ScoreDraw:
        """Return a draw for a network of so many devices."""


@dataclass(frozen=True)
class ScoreSpec:
    """The source of scores that a sweep's file describes, with its settings."""

    source: str
    settings: Options

    def __getitem__(self, name: str) -> Any:
        return dict(self.settings)[name]

    def files(self) -> dict[str, str]:
        """Return the files to read, by setting."""
        return {name: value for name, value in self.settings if name in ("file", "labels") and value is not None}

    def identity(self) -> dict[str, Any]:
        """Return source and settings; files count by content, not by path."""
        contents = {name: digest_source_file(path) for name, path in self.files().items()}
        return {"source": self.source, "settings": {**dict(self.settings), **contents}}

    def device_names(self) -> tuple[str, ...] | None:
        """Return the devices that a score file or a file of outputs names; None where there is no such file."""
        return _names_in(self)

    def draw(self, spec: NetworkSpec, devices: int, seed: int, number: int) -> ScoreDraw:
        """Return a draw; a process keeps the last few."""
        return _draw_of(self, spec, devices, seed, number)


@dataclass(frozen=True, eq=False)
class _SplitDraw:
    """A draw whose rows were split into those that calibrate and those that test.

    Attributes
    ----------
    values, sizes
        Calibration scores, device by device, and how many each has, (devices,).
    test_home
        The device of every test row.
    test_scores
        The scores of test rows, where there are no outputs to form sets from.
    score, outputs, labels, test_rows
        What sets are formed from: all outputs, which draws share, and which of their rows test.
    """

    values: Floats
    sizes: Ints
    test_home: Ints
    test_scores: Floats | None = None
    score: Score | None = None
    outputs: NDArray[Any] | None = None
    labels: Ints | None = None
    test_rows: Ints | None = None

    def measure(self, thresholds: Floats, size: bool) -> tuple[float | None, float | None]:
        """Return coverage and, if asked for, mean set size on the test rows, each by its own device's threshold."""
        if not len(self.test_home):
            return None, None
        at = thresholds[self.test_home]
        if self.test_scores is not None:
            return float((self.test_scores <= at).mean()), None
        assert self.score is not None
        assert self.outputs is not None
        assert self.labels is not None
        outputs, labels = self.outputs[self.test_rows], self.labels[self.test_rows]
        if not size:
            return float(self.score.covers(outputs, labels, at).mean()), None
        sets = self.score.sets(outputs, at)
        return float(sets[np.arange(len(at)), labels].mean()), float(sets.sum(axis=1).mean())


def stack_draws(draws: Sequence[ScoreDraw]) -> WeightedScores:
    """Return the calibration scores of several draws, one trial each."""
    if len(draws) == 1:
        return WeightedScores.from_flat(draws[0].values, draws[0].sizes)
    sizes = np.stack([draw.sizes for draw in draws], axis=1).ravel()  # device by device, its draws side by side
    place = np.concatenate([np.repeat(np.arange(len(d.sizes)) * len(draws) + t, d.sizes) for t, d in enumerate(draws)])
    values = np.concatenate([draw.values for draw in draws])[np.argsort(place, kind="stable")]
    return WeightedScores.from_flat(values, sizes, len(draws))


@lru_cache(maxsize=4)
def build_cell_network(spec: NetworkSpec, scores: ScoreSource, draw_seed: int) -> Network:
    """Build a network, over the devices that the scores name where they do; a process keeps the last few.

    `draw_seed` is the seed of a random topology; equal arguments return the same network.
    """
    names = scores.device_names()
    if spec.graph is not None:
        network = Network.from_edges(spec.graph)
        strange = [name for name in names or () if name not in {*network.ids}]
        if strange:
            raise ValueError(f"device {strange[0]!r} has scores but no edge in {spec.graph}; add its edges")
        return network
    devices = spec.devices if spec.devices is not None else len(names or ())
    if names is not None and devices != len(names):
        raise ValueError(f"the scores name {len(names)} devices, got devices = {devices}; leave devices out")
    assert spec.topology is not None
    network = Network.of(spec.topology, devices, seed=draw_seed, **dict(spec.options))
    return network if names is None else network.relabelled(names)


def _names_in(scores: ScoreSpec) -> tuple[str, ...] | None:
    if scores.source == "file":
        return _rows_of_file(scores["file"])[0]
    if scores.source == "outputs" and scores["partition"] == "device":
        found = _outputs(scores).devices
        if found is None:
            raise ValueError(f'partition = "device" needs a column of devices in {scores["file"]}; there is none')
        return natural_order({*found})
    return None


@lru_cache(maxsize=8)
def _draw_of(scores: ScoreSpec, spec: NetworkSpec, devices: int, seed: int, draw: int) -> _SplitDraw:
    number = seed + draw
    if scores.source == "synthetic":
        return _synthetic(scores, devices, seed, number)
    if scores.source == "file":
        names, home, values = _rows_of_file(scores["file"])
        home = _rows_in_network(names, home, scores, spec)
        chosen, others = split_calibration_rows(home, max(1, round(scores["calibration"] * len(home))), seed=number)
        flat, sizes = _by_device(values[chosen], home[chosen], devices)
        return _SplitDraw(flat, sizes, home[others], values[others])
    return _of_outputs(scores, spec, devices, number)


def _synthetic(scores: ScoreSpec, devices: int, seed: int, number: int) -> _SplitDraw:
    means = scores["spread"] * random_stream(seed, "sweep devices").standard_normal(devices)
    n, tests = scores["per_device"], scores["test_per_device"]
    drawn = random_stream(number, "sweep scores").standard_normal((devices, n + tests)) + means[:, None]
    home = np.repeat(np.arange(devices), tests)
    return _SplitDraw(drawn[:, :n].ravel(), np.full(devices, n), home, drawn[:, n:].ravel())


def _of_outputs(scores: ScoreSpec, spec: NetworkSpec, devices: int, number: int) -> _SplitDraw:
    found = _outputs(scores)
    score = get_score(scores["score"], **dict(scores["score_options"])).seeded(number)
    table = _table(scores, score.reads)
    if scores["partition"] == "device":
        names = _names_in(scores) or ()
        index = {name: k for k, name in enumerate(names)}
        home = np.array([index[name] for name in found.devices or ()], np.int64)
        home = _rows_in_network(names, home, scores, spec)
    else:
        even, classes = scores["concentration"], len(found.classes)
        home = partition(found.labels, devices, scores["partition"], seed=number, concentration=even, classes=classes)
    chosen, others = split_calibration_rows(home, max(1, round(scores["calibration"] * len(home))), seed=number)
    values = score(table[chosen], found.labels[chosen])
    flat, sizes = _by_device(values, home[chosen], devices)
    return _SplitDraw(flat, sizes, home[others], None, score, table, found.labels, others)


def _by_device(values: Floats, home: Ints, devices: int) -> tuple[Floats, Ints]:
    return values[np.argsort(home, kind="stable")], np.bincount(home, minlength=devices)


def _rows_in_network(names: Sequence[str], home: Ints, scores: ScoreSpec, spec: NetworkSpec) -> Ints:
    """Turn the index of a name into the row of that device in the network: a graph file has an order of its own."""
    if spec.graph is None:
        return home
    row = {name: k for k, name in enumerate(build_cell_network(spec, scores, spec.seed).ids)}
    return np.array([row[name] for name in names], np.int64)[home]


@lru_cache(maxsize=4)
def _rows_of_file(file: str) -> tuple[tuple[str, ...], Ints, Floats]:
    table = read_scores(file)
    sizes = [len(local) for local in table.scores]
    return table.devices, np.repeat(np.arange(len(sizes)), sizes), np.concatenate(table.scores)


@lru_cache(maxsize=4)
def _outputs(scores: ScoreSpec) -> ModelOutputs:
    if scores["file"] is None:
        return synthetic_outputs(scores["rows"], scores["classes"])
    return read_model_outputs(scores["file"], scores["labels"])


@lru_cache(maxsize=4)
def _table(scores: ScoreSpec, reads: str) -> Floats:
    found = _outputs(scores)
    return found.probabilities() if reads == "probabilities" else found.logits()
