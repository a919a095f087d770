"""The configuration of a sweep, from a TOML file or a dictionary: which networks, methods, alphas, draws and scores."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

from conformesh.data.partition import PARTITIONS
from conformesh.graph.topologies import TOPOLOGIES
from conformesh.methods import get_method, make_options
from conformesh.names import unknown
from conformesh.promises import exact_alpha
from conformesh.scores import ClassificationScore, get_score
from conformesh.sweeping.schema import (
    FLAG,
    GRID,
    TABLE,
    TABLES,
    TEXT,
    Key,
    Kind,
    choice,
    number,
    read_keys,
    whole,
    wholes,
)

Options = tuple[tuple[str, Any], ...]  # names and values, sorted: what can be a key of a cache
RECORDS = {
    "threshold": "the largest threshold of a device, and the smallest",
    "rank": "how many scores must lie at or below the smallest threshold, and how many do",
    "certificate": "the kind of guarantee",
    "covered": "the share of test rows inside their sets, where there is test data",
    "size": "the mean size of these sets",
    "rounds": "rounds of communication",
    "bits": "bits sent by a device, mean over devices",
    "seconds": "the time of the run; draws that ran together share it equally",
}


def _alphas(value: Any) -> tuple[float, ...]:
    if not isinstance(value, list | tuple) or not value or any(isinstance(a, bool) for a in value):
        raise ValueError(f"must be a list of numbers strictly between 0 and 1, got {value!r}")
    levels = tuple(float(exact_alpha(alpha)) for alpha in value)
    if len({*levels}) < len(levels):
        raise ValueError(f"names a level twice, got {value!r}")
    return levels


def _records(value: Any) -> tuple[str, ...]:
    if not isinstance(value, list | tuple) or not value:
        raise ValueError(f"must be a list of some of {', '.join(RECORDS)}, got {value!r}")
    for word in value:
        choice(*RECORDS).read(word)
    return tuple(word for word in RECORDS if word in value)


WHOLE = {
    "scores": Key(
        TABLE, 'a table that says where scores come from: source = "file", "synthetic" or "outputs"', needed=True
    ),
    "networks": Key(TABLES, "a list of tables, one for every kind of network", needed=True),
    "methods": Key(TABLES, "a list of tables, one for every method", needed=True),
    "alphas": Key(Kind("a list of levels", _alphas), "the levels", (0.1,)),
    "draws": Key(whole(1), "how many draws of calibration scores", 1),
    "seed": Key(whole(0), "draw d uses seed + d for all that is random in it", 0),
    "record": Key(Kind("a list of what to record", _records), "what to record", (*RECORDS,)),
    "batch": Key(whole(1), "the most draws that ride along in one run of the simulator", 32),
}
NETWORK = {
    "topology": Key(TEXT, "a name of TOPOLOGIES"),
    "graph": Key(TEXT, "instead: a file with two device names a line"),
    "devices": Key(wholes(1), "how many devices; a list is a network for each; by default those of the score file"),
    "seeds": Key(wholes(0), "seeds of a random topology; a list is a network for each; by default the sweep's seed"),
    "redraw": Key(FLAG, "a new random graph for every draw, of seed + d", False),
    "options": Key(TABLE, "options of the topology", {}),
    "grid": Key(GRID, "options with a list of values each: a network for every combination", {}),
}
METHOD = {
    "name": Key(TEXT, "a name of METHODS", needed=True),
    "options": Key(TABLE, "its options", {}),
    "grid": Key(GRID, "options with a list of values each: a method for every combination", {}),
}
_SHARE = number("a fraction above 0 and up to 1", lambda x: 0 < x <= 1)
_POSITIVE = number("a positive number", lambda x: 0 < x < float("inf"))
_AT_LEAST_0 = number("a number of at least 0", lambda x: 0 <= x < float("inf"))
_MODEL = "model outputs with labels (NPZ, CSV, Parquet); without, those of a synthetic model"
SOURCES = {
    "file": {
        "source": Key(TEXT, "scores from a file"),
        "file": Key(TEXT, "a score file: CSV, Parquet or NPZ with device and score", needed=True),
        "calibration": Key(_SHARE, "the share of its rows that each draw calibrates with; the others test", 1.0),
    },
    "synthetic": {
        "source": Key(TEXT, "normal scores"),
        "per_device": Key(whole(0), "calibration scores of each device", 50),
        "test_per_device": Key(whole(0), "test scores of each device", 0),
        "spread": Key(_AT_LEAST_0, "standard deviation of the devices' means", 0.0),
    },
    "outputs": {
        "source": Key(TEXT, "scores of a model's outputs"),
        "file": Key(TEXT, _MODEL),
        "labels": Key(TEXT, "a file of labels, where they are not beside the outputs"),
        "rows": Key(whole(1), "examples of the synthetic model", 10_000),
        "classes": Key(whole(2), "classes of the synthetic model", 100),
        "score": Key(TEXT, "a classification score", "lac"),
        "score_options": Key(TABLE, "its options", {}),
        "partition": Key(choice(*PARTITIONS, "device"), "who holds which rows; device: what the file says", "class"),
        "concentration": Key(_POSITIVE, "of the partition dirichlet", 0.5),
        "calibration": Key(_SHARE, "the share of rows that each draw calibrates with; the others test", 0.1),
    },
}


@dataclass(frozen=True)
class NetworkSpec:
    """A network to build; equal ones are the same graph."""

    topology: str | None
    graph: str | None
    devices: int | None
    seed: int
    redraw: bool
    options: Options


@dataclass(frozen=True)
class MethodSpec:
    """A method with its options."""

    name: str
    options: Options


@dataclass(frozen=True)
class ScoreSpec:
    """Where scores come from: a source and its settings."""

    source: str
    settings: Options

    def __getitem__(self, name: str) -> Any:
        return dict(self.settings)[name]


@dataclass(frozen=True)
class Config:
    """A whole sweep, checked."""

    scores: ScoreSpec
    networks: tuple[NetworkSpec, ...]
    methods: tuple[MethodSpec, ...]
    alphas: tuple[float, ...]
    draws: int
    seed: int
    record: tuple[str, ...]
    batch: int


def read_config(config: str | os.PathLike[str] | Mapping[str, Any]) -> Config:
    """Read and check a configuration; file names in a TOML file are relative to it."""
    if isinstance(config, Mapping):
        return _checked(config, "sweep", Path())
    path = Path(config)
    try:
        raw = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as problem:
        raise ValueError(f"{path}: cannot read the sweep: {problem.strerror}; check the path") from problem
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as problem:
        raise ValueError(f"{path}: must be TOML in UTF-8: {problem}") from problem
    return _checked(raw, str(path), path.parent)


def _checked(raw: Mapping[str, Any], where: str, folder: Path) -> Config:
    top = read_keys(raw, WHOLE, where)
    scores = _scores(top["scores"], f"{where}: [scores]", folder)
    networks = [
        spec
        for i, entry in enumerate(top["networks"], 1)
        for spec in _networks(entry, f"{where}: [[networks]] {i}", folder, scores, top["seed"])
    ]
    methods = [
        spec for i, entry in enumerate(top["methods"], 1) for spec in _methods(entry, f"{where}: [[methods]] {i}")
    ]
    if scores.source == "file" and scores["calibration"] == 1 and top["draws"] > 1:
        raise ValueError(
            f"{where}: draws = {top['draws']} needs [scores] calibration below 1: every draw of a whole score file is "
            "the same; set calibration = 0.5, or draws = 1"
        )
    kept = {name: top[name] for name in ("alphas", "draws", "seed", "record", "batch")}
    return Config(scores, tuple(dict.fromkeys(networks)), tuple(dict.fromkeys(methods)), **kept)


def _scores(entry: Mapping[str, Any], where: str, folder: Path) -> ScoreSpec:
    source = entry.get("source")
    if source not in SOURCES:
        needed = " or ".join(f'"{name}"' for name in SOURCES)
        raise ValueError(f"{where}: source must be {needed}, got {source!r}")
    settings = read_keys(entry, SOURCES[source], where)
    for name in ("file", "labels"):
        if settings.get(name) is not None:
            settings[name] = _found(settings[name], f"{where}: {name}", folder)
    if source == "outputs":
        _check_outputs(entry, settings, where)
        settings["score_options"] = _sorted(settings["score_options"])
    return ScoreSpec(source, _sorted({name: value for name, value in settings.items() if name != "source"}))


def _check_outputs(entry: Mapping[str, Any], settings: dict[str, Any], where: str) -> None:
    try:
        score = get_score(settings["score"], **settings["score_options"])
    except (ValueError, TypeError) as problem:
        raise ValueError(f"{where}: {problem}") from None
    if not isinstance(score, ClassificationScore):
        raise ValueError(f"{where}: score '{settings['score']}' is for regression, model outputs here have labels")
    synthetic = [name for name in ("rows", "classes") if name in entry]
    if settings["file"] is not None and synthetic:
        raise ValueError(f"{where}: {synthetic[0]} belongs to the synthetic model, but a file was given; leave one out")
    if settings["file"] is None and (settings["labels"] is not None or settings["partition"] == "device"):
        raise ValueError(f'{where}: labels and partition = "device" need a file of outputs, got none')


def _networks(entry: Any, where: str, folder: Path, scores: ScoreSpec, seed: int) -> list[NetworkSpec]:
    given = read_keys(entry, NETWORK, where)
    if (given["topology"] is None) == (given["graph"] is None):
        raise ValueError(
            f"{where}: needs either a topology or a graph file, got {'neither' if given['graph'] is None else 'both'}"
        )
    if given["graph"] is not None:
        extra = [name for name in ("devices", "seeds", "redraw", "options", "grid") if name in entry]
        if extra:
            raise ValueError(f"{where}: {extra[0]} has no meaning beside a graph file; leave it out")
        return [NetworkSpec(None, _found(given["graph"], f"{where}: graph", folder), None, seed, False, ())]
    named = scores.source == "file" or (scores.source == "outputs" and scores["partition"] == "device")
    if given["devices"] is None and not named:
        raise ValueError(f"{where}: lacks 'devices', {NETWORK['devices'].help.split(';')[0]}")
    if given["redraw"] and given["seeds"] is not None:
        raise ValueError(f"{where}: give seeds, or redraw = true for a new graph in every draw, not both")
    if given["topology"] not in TOPOLOGIES:
        raise ValueError(f"{where}: {unknown('topology', given['topology'], TOPOLOGIES)}")
    random = TOPOLOGIES[given["topology"]].random
    if not random and (given["seeds"] is not None or given["redraw"]):
        raise ValueError(f"{where}: topology '{given['topology']}' is not random; leave seeds and redraw out")
    return [
        NetworkSpec(given["topology"], None, devices, graph_seed, given["redraw"], options)
        for options in _combined(given, where)
        for devices in given["devices"] or (None,)
        for graph_seed in given["seeds"] or (seed if random else 0,)
    ]


def _methods(entry: Any, where: str) -> list[MethodSpec]:
    given = read_keys(entry, METHOD, where)
    found = []
    for options in _combined(given, where):
        try:
            get_method(given["name"])
            if "seed" in dict(options):
                raise ValueError("the seed of a method follows the draw; set the sweep's seed instead")
            make_options(given["name"], dict(options))
        except (ValueError, TypeError) as problem:
            raise ValueError(f"{where}: {problem}") from None
        found.append(MethodSpec(given["name"], options))
    return found


def _combined(given: Mapping[str, Any], where: str) -> list[Options]:
    """Return the options of every combination of a grid."""
    both = {*given["options"]} & {*given["grid"]}
    if both:
        raise ValueError(f"{where}: {min(both)!r} stands in options and in grid; leave one out")
    names = [*given["grid"]]
    return [
        _sorted({**given["options"], **dict(zip(names, values, strict=True))})
        for values in product(*given["grid"].values())
    ]


def _sorted(options: Mapping[str, Any]) -> Options:
    return tuple(sorted(options.items()))


def _found(name: str, where: str, folder: Path) -> str:
    path = folder / name
    if not path.is_file():
        raise ValueError(f"{where}: there is no file {path}; check the path, which is relative to the sweep's file")
    return str(path)
