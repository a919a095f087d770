"""The configuration of a sweep, from a TOML file or a dictionary: which networks, methods, alphas, draws and scores."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

from msgspec import structs

from conformesh.common.names import unknown_name
from conformesh.files.schemas import validate
from conformesh.graph.topologies import TOPOLOGIES
from conformesh.kernels.ranks import check_alpha, split_requirement
from conformesh.lab.datasets.partition import PARTITIONS
from conformesh.lab.sweeps.cells import MethodSpec
from conformesh.lab.sweeps.schema import FileScores, MethodTable, NetworkTable, OutputScores, SweepFile, SyntheticScores
from conformesh.lab.sweeps.sources import NetworkSpec, Options, ScoreSpec
from conformesh.methods import get_method, make_options, requirement_of
from conformesh.scores import ClassificationScore, get_score

RECORDABLE = {
    "threshold": "the largest threshold of a device, and the smallest",
    "rank": "how many scores must lie at or below the smallest threshold, and how many do",
    "certificate": "the kind of guarantee",
    "covered": "the share of test rows inside their sets, where there is test data",
    "size": "the mean size of these sets",
    "rounds": "rounds of communication",
    "bits": "bits sent by a device, mean over devices",
    "seconds": "the time of the run; draws that ran together share it equally",
    "count": "how many calibration scores lie at or below the smallest threshold, whatever they weigh; only on request",
    "epsilon": "the method's error term, where it has one; only on request",
    "gap": "the network's spectral gap with the best constant weights, which needs eigenvalues; only on request",
}
RECORDED_ON_REQUEST = ("count", "epsilon", "gap")  # recorded only if `record` names them
_ROWS, _CLASSES = 10_000, 100  # of the synthetic model, as the outputs of CIFAR-100's test set


@dataclass(frozen=True)
class SweepConfig:
    """A sweep whose values have been checked."""

    scores: ScoreSpec
    networks: tuple[NetworkSpec, ...]
    methods: tuple[MethodSpec, ...]
    alphas: tuple[float, ...]
    draws: int
    seed: int
    record: tuple[str, ...]
    batch: int


def read_sweep_config(config: str | os.PathLike[str] | Mapping[str, Any]) -> SweepConfig:
    """Read and check a configuration; file names in a TOML file are relative to it."""
    if isinstance(config, Mapping):
        return _checked(config, "sweep", Path())
    path = Path(config)
    try:
        raw = tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except OSError as problem:
        raise ValueError(f"{path}: cannot read the sweep: {problem.strerror}; check the path") from problem
    except tomllib.TOMLDecodeError as problem:
        raise ValueError(f"{path}: must be TOML: {problem}") from problem
    except UnicodeDecodeError as problem:
        raise ValueError(f"{path}: must be TOML in UTF-8, byte {problem.start} is not; save it as UTF-8") from None
    except RecursionError:
        raise ValueError(f"{path}: must be TOML, but its lists are too deep to read") from None
    return _checked(raw, str(path), path.parent)


def _checked(raw: Mapping[str, Any], where: str, folder: Path) -> SweepConfig:
    file = validate({**raw}, SweepFile, where)
    scores = _scores(file.scores, f"{where}: scores", folder)
    networks = [
        spec
        for i, entry in enumerate(file.networks)
        for spec in _networks(entry, f"{where}: networks[{i}]", folder, scores, file.seed)
    ]
    methods = [spec for i, entry in enumerate(file.methods) for spec in _methods(entry, f"{where}: methods[{i}]")]
    if scores.source == "file" and scores["calibration"] == 1 and file.draws > 1:
        raise ValueError(
            f"{where}: draws = {file.draws} needs scores.calibration below 1: every draw of a whole score file is "
            "the same; set calibration = 0.5, or draws = 1"
        )
    return SweepConfig(
        scores,
        tuple(dict.fromkeys(networks)),
        tuple(dict.fromkeys(methods)),
        _alphas(file.alphas, where),
        file.draws,
        file.seed,
        _records(file.record, where),
        file.batch,
    )


def _alphas(given: Sequence[float | str], where: str) -> tuple[float, ...]:
    try:
        levels = tuple(float(check_alpha(alpha)) for alpha in given)
    except ValueError as problem:
        raise ValueError(f"{where}: alphas: {problem}") from None
    if len({*levels}) < len(levels):
        raise ValueError(f"{where}: alphas must differ, got {given!r}")
    return levels


def _records(given: Sequence[str] | None, where: str) -> tuple[str, ...]:
    if given is None:
        return tuple(word for word in RECORDABLE if word not in RECORDED_ON_REQUEST)
    if not given:
        raise ValueError(f"{where}: record must name some of {', '.join(RECORDABLE)}, got []")
    for word in given:
        if word not in RECORDABLE:
            raise ValueError(f"{where}: record: {unknown_name('word', word, RECORDABLE)}")
    return tuple(word for word in RECORDABLE if word in given)


def _scores(entry: FileScores | SyntheticScores | OutputScores, where: str, folder: Path) -> ScoreSpec:
    settings = {name: _frozen(value) for name, value in structs.asdict(entry).items()}
    for name in ("file", "labels"):
        if settings.get(name) is not None:
            settings[name] = _existing(settings[name], f"{where}.{name}", folder)
    if isinstance(entry, OutputScores):
        _check_outputs(entry, where)
        settings |= {"rows": entry.rows or _ROWS, "classes": entry.classes or _CLASSES}
        settings["score_options"] = _sorted(settings["score_options"])
    return ScoreSpec(str(entry.__struct_config__.tag), _sorted(settings))


def _check_outputs(entry: OutputScores, where: str) -> None:
    try:
        score = get_score(entry.score, **entry.score_options)
    except (ValueError, TypeError) as problem:
        raise ValueError(f"{where}: {problem}") from None
    if not isinstance(score, ClassificationScore):
        raise ValueError(f"{where}: score '{entry.score}' is for regression, model outputs here have labels")
    if entry.partition not in (*PARTITIONS, "device"):
        raise ValueError(f"{where}: {unknown_name('partition', entry.partition, (*PARTITIONS, 'device'))}")
    synthetic = [name for name in ("rows", "classes") if getattr(entry, name) is not None]
    if entry.file is not None and synthetic:
        raise ValueError(f"{where}: {synthetic[0]} belongs to the synthetic model, but a file was given; leave one out")
    if entry.file is None and (entry.labels is not None or entry.partition == "device"):
        raise ValueError(f'{where}: labels and partition = "device" need a file of outputs, got none')


def _networks(entry: NetworkTable, where: str, folder: Path, scores: ScoreSpec, seed: int) -> list[NetworkSpec]:
    if (entry.topology is None) == (entry.graph is None):
        got = "neither" if entry.graph is None else "both"
        raise ValueError(f"{where}: needs either a topology or a graph file, got {got}")
    if entry.graph is not None:
        extra = [name for name in ("devices", "seeds", "redraw", "options", "grid") if getattr(entry, name)]
        if extra:
            raise ValueError(f"{where}: {extra[0]} has no meaning beside a graph file; leave it out")
        return [NetworkSpec(None, _existing(entry.graph, f"{where}.graph", folder), None, seed, False, ())]
    assert entry.topology is not None
    named = scores.source == "file" or (scores.source == "outputs" and scores["partition"] == "device")
    if entry.devices is None and not named:
        raise ValueError(f"{where}: lacks devices, how many there are; only a score file would name them")
    if entry.redraw and entry.seeds is not None:
        raise ValueError(f"{where}: give seeds, or redraw = true for a new graph in every draw, not both")
    if entry.topology not in TOPOLOGIES:
        raise ValueError(f"{where}: {unknown_name('topology', entry.topology, TOPOLOGIES)}")
    random = TOPOLOGIES[entry.topology].random
    if not random and (entry.seeds is not None or entry.redraw):
        raise ValueError(f"{where}: topology '{entry.topology}' is not random; leave seeds and redraw out")
    return [
        NetworkSpec(entry.topology, None, devices, graph_seed, entry.redraw, options)
        for options in _combined(entry, where)
        for devices in _several(entry.devices, f"{where}.devices") or (None,)
        for graph_seed in _several(entry.seeds, f"{where}.seeds") or (seed if random else 0,)
    ]


def _several(given: int | Sequence[int] | None, where: str) -> tuple[int, ...]:
    """Return one number or a list of different ones as a tuple; nothing as an empty one."""
    if given is None:
        return ()
    numbers = (given,) if isinstance(given, int) else tuple(given)
    if not numbers or len({*numbers}) < len(numbers):
        raise ValueError(f"{where} must be a whole number or a list of different ones, got {given!r}")
    return numbers


def _methods(entry: MethodTable, where: str) -> list[MethodSpec]:
    specs = []
    for options in _combined(entry, where):
        try:
            get_method(entry.name)
            if "seed" in dict(options):
                raise ValueError("the seed of a method follows the draw; set the sweep's seed instead")
            requirement, own = split_requirement(dict(options))
            requirement_of(entry.name, requirement)
            make_options(entry.name, own)
        except (ValueError, TypeError) as problem:
            raise ValueError(f"{where}: {problem}") from None
        specs.append(MethodSpec(entry.name, options))
    return specs


def _combined(entry: NetworkTable | MethodTable, where: str) -> list[Options]:
    """Return the options of every combination of a grid."""
    both = {*entry.options} & {*entry.grid}
    if both:
        raise ValueError(f"{where}: {min(both)!r} stands in options and in grid; leave one out")
    fixed = {name: _frozen(value) for name, value in entry.options.items()}
    return [
        _sorted({**fixed, **dict(zip(entry.grid, map(_frozen, values), strict=True))})
        for values in product(*entry.grid.values())
    ]


def _frozen(value: Any) -> Any:
    """Return a value with tuples for lists, as options hold them."""
    if isinstance(value, Mapping):
        return {name: _frozen(inner) for name, inner in value.items()}
    return tuple(map(_frozen, value)) if isinstance(value, list | tuple) else value


def _sorted(options: Mapping[str, Any]) -> Options:
    return tuple(sorted(options.items()))


def _existing(name: str, where: str, folder: Path) -> str:
    path = folder / name
    if not path.is_file():
        raise ValueError(f"{where}: there is no file {path}; check the path, which is relative to the sweep's file")
    return str(path)
