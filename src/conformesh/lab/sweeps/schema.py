"""The file of a sweep: every key with its type, meaning and default. The reference page is generated from it."""

from __future__ import annotations

from typing import Annotated, Any, get_args

from msgspec import Meta, Struct, field, structs

_Whole = Annotated[int, Meta(ge=1)]
_Seed = Annotated[int, Meta(ge=0)]
_Share = Annotated[float, Meta(gt=0, le=1)]
_Text = Annotated[str, Meta(min_length=1)]
_Grid = dict[str, Annotated[list[Any], Meta(min_length=1)]]


class FileScores(Struct, tag_field="source", tag="file", forbid_unknown_fields=True, kw_only=True):
    """Scores from a file."""

    file: Annotated[_Text, Meta(description="a score file: CSV, Parquet or NPZ with device and score")]
    calibration: Annotated[
        _Share, Meta(description="the share of its rows that each draw calibrates with; the others test")
    ] = 1.0


class SyntheticScores(Struct, tag_field="source", tag="synthetic", forbid_unknown_fields=True, kw_only=True):
    """Normal scores."""

    per_device: Annotated[_Seed, Meta(description="calibration scores of each device")] = 50
    test_per_device: Annotated[_Seed, Meta(description="test scores of each device")] = 0
    spread: Annotated[Annotated[float, Meta(ge=0)], Meta(description="standard deviation of the devices' means")] = 0.0


class OutputScores(Struct, tag_field="source", tag="outputs", forbid_unknown_fields=True, kw_only=True):
    """Scores of a model's outputs."""

    file: Annotated[
        _Text | None,
        Meta(description="model outputs with labels (NPZ, CSV, Parquet); without, those of a synthetic model"),
    ] = None
    labels: Annotated[_Text | None, Meta(description="a file of labels, where they are not beside the outputs")] = None
    rows: Annotated[
        _Whole | None, Meta(description="examples of the synthetic model; 10,000 unless said otherwise")
    ] = None
    classes: Annotated[
        Annotated[int, Meta(ge=2)] | None, Meta(description="its classes; 100 unless said otherwise")
    ] = None
    score: Annotated[_Text, Meta(description="a classification score")] = "lac"
    score_options: Annotated[dict[str, Any], Meta(description="its options")] = {}
    partition: Annotated[
        _Text, Meta(description="who holds which rows, a name of PARTITIONS; device: what the file says")
    ] = "class"
    concentration: Annotated[Annotated[float, Meta(gt=0)], Meta(description="of the partition dirichlet")] = 0.5
    calibration: Annotated[
        _Share, Meta(description="the share of rows that each draw calibrates with; the others test")
    ] = 0.1


class NetworkTable(Struct, forbid_unknown_fields=True, kw_only=True):
    """One kind of network, or several that differ in a list or a grid."""

    topology: Annotated[_Text | None, Meta(description="a name of TOPOLOGIES")] = None
    graph: Annotated[_Text | None, Meta(description="instead: a file with two device names a line")] = None
    devices: Annotated[
        _Whole | list[_Whole] | None,
        Meta(description="how many devices; a list is a network for each; by default those of the score file"),
    ] = None
    seeds: Annotated[
        _Seed | list[_Seed] | None,
        Meta(description="seeds of a random topology; a list is a network for each; by default the sweep's seed"),
    ] = None
    redraw: Annotated[bool, Meta(description="a new random graph for every draw, of seed + d")] = False
    options: Annotated[dict[str, Any], Meta(description="options of the topology")] = {}
    grid: Annotated[_Grid, Meta(description="options with a list of values each: a network for every combination")] = {}


class MethodTable(Struct, forbid_unknown_fields=True, kw_only=True):
    """One method, or several that differ in a grid."""

    name: Annotated[_Text, Meta(description="a name of METHODS")]
    options: Annotated[dict[str, Any], Meta(description="its options, and its mixture and rank_rule")] = {}
    grid: Annotated[_Grid, Meta(description="options with a list of values each: a method for every combination")] = {}


class SweepFile(Struct, forbid_unknown_fields=True, kw_only=True):
    """A whole sweep."""

    scores: Annotated[
        FileScores | SyntheticScores | OutputScores,
        Meta(description='a table that says where scores come from: source = "file", "synthetic" or "outputs"'),
    ]
    networks: Annotated[
        Annotated[list[NetworkTable], Meta(min_length=1)],
        Meta(description="a list of tables, one for every kind of network"),
    ]
    methods: Annotated[
        Annotated[list[MethodTable], Meta(min_length=1)], Meta(description="a list of tables, one for every method")
    ]
    alphas: Annotated[Annotated[list[float | str], Meta(min_length=1)], Meta(description="the levels")] = field(
        default_factory=lambda: [0.1]
    )
    draws: Annotated[_Whole, Meta(description="how many draws of calibration scores")] = 1
    seed: Annotated[_Seed, Meta(description="draw d uses seed + d for all that is random in it")] = 0
    record: Annotated[
        list[str] | None, Meta(description="what to record; by default everything but count, epsilon and gap")
    ] = None
    batch: Annotated[_Whole, Meta(description="the most draws that share one run of the simulator")] = 32


SCORE_SOURCES = {str(kind.__struct_config__.tag): kind for kind in (FileScores, SyntheticScores, OutputScores)}


def describe_keys(table: type[Struct]) -> list[tuple[str, str, Any]]:
    """Return every key with its meaning and its default, `NODEFAULT` if the key is required."""
    return [
        (key.name, _meaning(key.type), key.default_factory() if callable(key.default_factory) else key.default)
        for key in structs.fields(table)
    ]


def _meaning(kind: Any) -> str:
    return next(meta.description for meta in get_args(kind) if isinstance(meta, Meta) and meta.description)
