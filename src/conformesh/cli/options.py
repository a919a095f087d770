"""The options of all commands, each declared once, in groups that mirror the stages of a calibration.

Table (files and columns), network, guarantee, score, run (method with its options, engine, faults, recording), output.
A group is a function, so that a command loads only the tables (`METHODS`, `SCORES`, ...) whose names its help lists.
The options of methods are the union over `METHODS`: a new entry brings its own.
"""

from __future__ import annotations

import os
import types
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, get_args, get_origin, get_type_hints

from conformesh.cli import console
from conformesh.cli.command import (
    FILES,
    GUARANTEE,
    PATH,
    RUNNING,
    SHARED,
    SOURCE,
    Argument,
    ListOption,
    Number,
    Option,
    OptionGroup,
    WholeNumber,
)
from conformesh.cli.recording import DEFAULT_ADDRESS, VIEW_FLAG, RecordingOptions

if TYPE_CHECKING:
    from dataclasses import Field

    from conformesh.files.tables import FileLayout
    from conformesh.graph.network import Network as Graph
    from conformesh.kernels.ranks import Requirement
    from conformesh.protocols.faults import Faults
    from conformesh.scores import Score
    from conformesh.scores.adapt import Adaptation
    from conformesh.scores.centres import Centres

_VIEW = "See it"

# --- table: files and columns -----------------------------------------------------------------------------------------

_ROLES = {
    "device": "The column that names each row's device; by default `device`.",
    "score": "The column of scores; by default `score`.",
    "label": "The column of true labels; by default `label`.",
    "group": "A column of groups, for group-conditional (Mondrian) coverage; several columns, or cells as a;b, make "
    "groups that overlap. Without it predict and evaluate take a result's groups for labels (class-conditional).",
    "weight": "The column of weights: how much likelier such an example is among new ones, up to a factor.",
    "input": "A column of features, for --centres; several as a,b, or repeated.",
    "share": "The column of each device's share of new examples, in SCORES or in the file that --mixture names.",
    "id": "The column that names each row; it passes through; by default `id`.",
    "time": "The column of times; by default `time`.",
}


def scores_argument(name: str = "scores", metavar: str = "SCORES", text: str | None = None) -> Argument:
    """Return the argument that names a file of scores."""
    usual = "CSV, Parquet or NPZ with device and score, or a folder; - reads CSV from stdin."
    return Argument(name, metavar, text or usual)


def table_options(*roles: str, outputs: bool = False, csv: bool = True) -> OptionGroup:
    """Options for reading tables: the columns of these roles and of model outputs, and the format of CSV."""
    found: list[Option] = []
    for role in roles:
        kind = ListOption if role in ("group", "input") else Option
        found.append(kind(f"--{role}-column COLUMN", _ROLES[role], panel=FILES))
    if outputs:
        found += [
            ListOption(
                "--output-columns A,B",
                "Of regression, the columns that the score reads, in its order; by default prediction, or "
                "prediction and scale, or lower and upper, or all that are left.",
                panel=FILES,
            ),
            ListOption("--keep A,B,...", "Other columns that are no classes; they pass through.", panel=FILES),
        ]
    form = [
        Option(
            "--separator CHARACTER",
            "Separator of CSV cells: comma, semicolon, tab, pipe, space or the character; by default detected "
            "from the first line.",
            panel=FILES,
        ),
        Option("--decimal .|,", "Decimal sign of CSV; by default detected.", panel=FILES),
    ]
    return OptionGroup("table", _layout, found + form if csv else found)


def _layout(
    *,
    group_column: tuple[str, ...] = (),
    input_column: tuple[str, ...] = (),
    output_columns: tuple[str, ...] = (),
    keep: tuple[str, ...] = (),
    **given: str | None,
) -> FileLayout:
    from conformesh.files.tables import FileLayout

    names: dict[str, Any] = {name.removesuffix("_column"): value for name, value in given.items()}
    return FileLayout(groups=group_column, inputs=input_column, outputs=output_columns, keep=keep, **names)


# --- network ----------------------------------------------------------------------------------------------------------


class NetworkOptions(NamedTuple):
    """The network that was asked for: a topology by name, or a file of edges; by default a torus."""

    name: str | None = None
    options: tuple[str, ...] = ()

    @property
    def file(self) -> str | None:
        """The file of edges, if it is one."""
        from conformesh.common.names import unknown_name
        from conformesh.graph.topologies import TOPOLOGIES

        if self.name is None or self.name in TOPOLOGIES:
            return None
        if not (Path(self.name).exists() or Path(self.name).suffix or Path(self.name).name != self.name):
            raise ValueError(
                f"{unknown_name('topology', self.name, TOPOLOGIES)}; nor is there a file {self.name} of edges"
            )
        if self.options:
            raise ValueError(
                f"--network-option {self.options[0]} is for a topology, and {self.name} is a file of edges"
            )
        return self.name

    def topology(self, devices: int) -> tuple[str, dict[str, Any]]:
        """Return the topology and its options; by default a torus, or a cycle where the number has no two factors."""
        from conformesh.graph.topologies import TOPOLOGIES, shorter_side

        name = self.name or "torus"
        if self.name is None and not self.options and shorter_side(devices) is None:
            name = "cycle"
            if devices > 1:
                console.print_note(f"{devices} devices form no torus, they talk around a cycle; choose with --network")
        if not self.options:
            return name, {}
        return name, read_key_values(self.options, "network option", get_type_hints(TOPOLOGIES[name].build))

    def build(self, devices: int | None, seed: int) -> Graph:
        """Return the network with so many devices, or the one in the file."""
        from conformesh.graph.network import Network as Graph

        if (file := self.file) is not None:
            if devices is not None:
                raise ValueError(
                    f"--devices {devices} counts devices that --network {file} names already; leave it out"
                )
            return Graph.from_edges(file)
        if devices is None:
            raise ValueError("give the number of devices with --devices, or a file of edges with --network")
        name, options = self.topology(devices)
        return Graph.of(name, devices, seed=seed, **options)

    def connect(self, devices: Sequence[str], where: str, seed: int) -> Graph:
        """Return the network of the devices that have scores in `where`; a file of edges must know them all."""
        from conformesh.graph.network import Network as Graph

        if (file := self.file) is None:
            name, options = self.topology(len(devices))
            return Graph.of(name, len(devices), seed=seed, **options).relabelled(devices)
        network = Graph.from_edges(file)
        known = {*network.ids}
        strange = [device for device in devices if device not in known]
        if strange:
            more = f" (and {len(strange) - 1} more)" if len(strange) > 1 else ""
            raise ValueError(
                f"unknown device {strange[0]!r}{more}: it has scores in {where} but no edge in {file}; "
                "add its edges or drop its rows"
            )
        return network


def _network(network: str | None, network_option: tuple[str, ...]) -> NetworkOptions:
    return NetworkOptions(network, network_option)


def network_options() -> OptionGroup:
    """The network: a topology with its options, or a file of edges."""
    from conformesh.graph.topologies import TOPOLOGIES

    return OptionGroup(
        "network",
        _network,
        [
            Option(
                "--network NAME|FILE",
                f"One of {', '.join(TOPOLOGIES)}, or a file of edges with two device names a line; by default a "
                "torus, or a cycle where the number of devices has no two factors.",
                type=SOURCE,
            ),
            Option("--network-option KEY=VALUE", "An option of the topology, as p=0.3; may be repeated."),
        ],
    )


def seed_option(text: str = "Seed of topologies that draw.", default: int | None = 0) -> Option:
    """Return the option for the seed; what it is the seed of differs between commands."""
    return Option("--seed <int>", text, type=WholeNumber(), default=default, panel=RUNNING)


# --- guarantee --------------------------------------------------------------------------------------------------------


class GuaranteeOptions(NamedTuple):
    """The guarantee that was asked for, as text."""

    alpha: tuple[str, ...] = ("0.1",)
    mixture: str | None = None
    mixture_bound: str | None = None
    rank_rule: str = "auto"
    pac_confidence: str | None = None
    time_uniform: bool | None = None
    group_rule: str | None = None
    group_order: tuple[str, ...] = ()
    weight_bound: float | None = None
    test_weights: tuple[str, ...] = ()
    class_weight: tuple[str, ...] = ()
    sides: bool = False
    lower_share: str | None = None
    centres: str | None = None
    bandwidth: float | None = None
    strict: bool = False

    def keywords(self, scores: str, layout: FileLayout) -> dict[str, Any]:
        """Return what was asked for as keywords of `calibrate` and `control`, besides the level."""
        given: dict[str, Any] = {
            "mixture_bound": self.mixture_bound,
            "pac_confidence": self.pac_confidence,
            "time_uniform": self.time_uniform,
            "group_rule": self.group_rule,
            "group_order": self.group_order,
            "weight_bound": self.weight_bound,
            "test_weights": self.test_weights,
            "class_weights": _ratios(self.class_weight) if self.class_weight else None,
            "lower_share": self.lower_share,
            "centres": None if self.centres is None else self._centres(self.centres, layout),
            "symmetric": False if self.sides else None,
        }
        chosen = {name: value for name, value in given.items() if value not in (None, ())}
        return {"mixture": self.shares(scores, layout), "rank_rule": self.rank_rule, "strict": self.strict, **chosen}

    def _centres(self, file: str, layout: FileLayout) -> Centres:
        """Read the centres; distances are in the units of the input columns."""
        from conformesh.files.tables import read_table
        from conformesh.scores.centres import Centres

        if not layout.inputs or self.bandwidth is None:
            missing = "--input-column, the columns of features" if not layout.inputs else "--bandwidth"
            raise ValueError(f"--centres {file} needs {missing}; the file has a row for each centre")
        table = read_table(file, f"a row for each centre with {', '.join(layout.inputs)}", layout=layout)
        return Centres.at(table.matrix(layout.inputs), self.bandwidth)

    @property
    def one_alpha(self) -> str:
        """The level, for a command that takes one."""
        from conformesh.kernels.ranks import exact_alpha

        if len(self.alpha) != 1:
            raise ValueError(f"this command takes one --alpha, got {', '.join(self.alpha)}")
        exact_alpha(self.alpha[0])
        return self.alpha[0]

    def shares(self, scores: str | None, layout: FileLayout | None = None) -> str | dict[str, Any]:
        """Return the mixture by name, or the shares that a file or a column of the scores holds."""
        from conformesh.kernels.ranks import CHOSEN_MIXTURES

        column = None if layout is None else layout.share
        if self.mixture is None and column is not None and scores is not None:
            return _read_shares(scores, column, layout)
        if self.mixture is None or self.mixture in CHOSEN_MIXTURES:
            if column is not None:
                wrong = f"--mixture {self.mixture} names no shares" if self.mixture else "there is no file of scores"
                raise ValueError(f"--share-column {column} needs a file of shares in --mixture, or scores; {wrong}")
            return self.mixture or CHOSEN_MIXTURES[0]
        if not Path(self.mixture).is_file():
            raise ValueError(
                f"--mixture must be {', '.join(CHOSEN_MIXTURES)} or a file with the columns device and share, got "
                f"{self.mixture!r}; --share-column names a column of the scores"
            )
        return _read_shares(self.mixture, column or "share", layout)

    def requirement(self, scores: str | None = None, layout: FileLayout | None = None) -> Requirement:
        """Return what the library calls the guarantee."""
        from conformesh.kernels.ranks import make_requirement

        shares = self.shares(scores, layout)
        return make_requirement(shares, self.rank_rule, self.pac_confidence, mixture_bound=self.mixture_bound)


def _ratios(pairs: Sequence[str]) -> dict[str, str]:
    """Return the weight of each class; a class may have any name, also one with "=" in it."""
    found = {}
    for pair in pairs:
        name, equals, ratio = pair.rpartition("=")
        if not (equals and name):
            raise ValueError(f"--class-weight must be CLASS=RATIO, got {pair!r}")
        found[name] = ratio
    return found


def _read_shares(source: str, column: str, layout: FileLayout | None) -> dict[str, Any]:
    from conformesh.files.input_forms import device_shares
    from conformesh.files.score_files import find_column
    from conformesh.files.tables import read_table

    table = read_table(source, f"columns 'device' and {column!r}", layout=layout)
    names, index = table.names(find_column(table, "device", None if layout is None else layout.device))
    values = table.numbers(column)
    return device_shares({name: values[index == k] for k, name in enumerate(names)}, f"{source}: {column}")


def guarantee_options(*wanted: str, levels: bool = False, recalibrates: bool = False) -> OptionGroup:
    """The guarantee: the `wanted` fields of `GuaranteeOptions`; `levels` if the command takes several alphas.

    `recalibrates` says that thresholds are computed again whenever scores arrive.
    """
    from conformesh.kernels.ranks import AUTO, CHOSEN_MIXTURES, CHOSEN_RANK_RULES, GROUP_RULES, POOLED_MIXTURES

    # Other commands are about one mixture.
    has_unknown = "mixture_bound" in wanted
    every = [
        ListOption(
            "--alpha <float>",
            f"Tolerated miscoverage between 0 and 1{'; several as 0.05,0.1, or repeated' * levels}.",
            default=["0.1"],
        ),
        Option(
            f"--mixture {'|'.join(CHOSEN_MIXTURES if has_unknown else POOLED_MIXTURES)}|FILE",
            "The mixture of devices that new examples come from: in proportion to their scores, to their scores "
            "plus one, all devices alike, or with the shares in a file with the columns device and share; by default "
            f"{CHOSEN_MIXTURES[0]}."
            + " With own every device is covered, with its own threshold; with any every mixture, with one threshold."
            * has_unknown,
        ),
        Option(
            "--mixture-bound <float>",
            "Cover every mixture in which each share is at most this many times its share in --mixture, such as 2.",
        ),
        Option(
            f"--rank-rule {'|'.join(CHOSEN_RANK_RULES)}",
            "The rule for the required rank; auto is the proven one that asks for less.",
            default=AUTO,
        ),
        Option(
            "--pac-confidence <float>",
            "Coverage with this probability over the draw of the scores, not on average over it; it is not 1 - alpha.",
        ),
        Option(
            "--time-uniform/--no-time-uniform",
            "Make --pac-confidence anytime-valid: it holds for all calibrations together while scores arrive. Needs "
            f"--mixture equal or FILE. {'On' if recalibrates else 'Off'} by default.",
            default=None,
        ),
        Option(
            f"--group-rule {'|'.join((AUTO, *GROUP_RULES))}",
            "The rule for a row that is in several groups; by default auto, which is seq.",
        ),
        ListOption("--group-order A,B,...", "The order of groups for seq; by default that of their names."),
        Option(
            "--weight-bound <float>",
            "The largest weight that any example may have; needed with --weight-column.",
            type=Number(),
        ),
        ListOption(
            "--test-weights A,B,...",
            "Weights of new examples that get a threshold of their own, beside --weight-bound.",
        ),
        Option(
            "--class-weight CLASS=RATIO",
            "How much likelier a class is among new examples (label shift), with --label-column; once for each class.",
            multiple=True,
        ),
        Option(
            "--sides", "One threshold below and one above, for intervals; scores are in the columns lower and upper."
        ),
        Option(
            "--lower-share <float>", "With --sides: the part of alpha that the lower side may miss; by default half."
        ),
        Option(
            "--centres FILE",
            "Coverage near each of these public points: a row each, in the columns of --input-column.",
            type=SOURCE,
        ),
        Option("--bandwidth <float>", "How far a centre reaches, in the units of the input columns.", type=Number()),
        Option("--strict", "Too few scores for the guarantee is an error, not +inf."),
    ]
    for option in every[1:]:  # alpha is the one that every command shows first
        option.panel = GUARANTEE
    return OptionGroup("guarantee", GuaranteeOptions, [option for option in every if option.name in wanted])


# --- score ------------------------------------------------------------------------------------------------------------


def score_options(default: str | None = None) -> OptionGroup:
    """The nonconformity score, with its options; the command gets the score itself, or None."""
    from conformesh.scores import SCORES

    usual = "" if default else "; by default what the file of scores or the result records"
    return OptionGroup(
        "score",
        _score,
        [
            Option("--score NAME", f"The nonconformity score: {', '.join(SCORES)}{usual}.", default=default),
            Option("--score-option KEY=VALUE", "An option of the score, as k_reg=2; may be repeated."),
        ],
    )


def _score(score: str | None, score_option: tuple[str, ...]) -> Score | None:
    from conformesh.scores import SCORES, get_score

    if score is None:
        if score_option:
            raise ValueError(f"--score-option {score_option[0]} needs --score to say whose option it is")
        return None
    hints = get_type_hints(SCORES[score]) if score in SCORES else {}
    return get_score(score, **read_key_values(score_option, "score option", hints))


class AdaptOptions(NamedTuple):
    """How scores adapt to the labelled outputs of a device: a name of `ADAPTATIONS`, if any, and its options."""

    name: str | None = None
    options: Mapping[str, Any] = types.MappingProxyType({})

    @property
    def chosen(self) -> Adaptation | None:
        """The adaptation itself."""
        from conformesh.scores.adapt import get_adaptation

        try:
            return None if self.name is None else get_adaptation(self.name, **self.options)
        except TypeError as problem:
            raise ValueError(str(problem)) from None


def adapt_options() -> OptionGroup:
    """Scores that adapt to the labelled outputs of a device."""
    from conformesh.scores.adapt import ADAPTATIONS

    return OptionGroup(
        "adapt",
        _adapt,
        [
            Option(
                f"--adapt {'|'.join(ADAPTATIONS)}",
                "Adapt scores to the labelled outputs of each device, for devices that differ.",
                panel=GUARANTEE,
            ),
            Option(
                "--adapt-option KEY=VALUE",
                "An option of --adapt, such as window=full; may be repeated.",
                panel=GUARANTEE,
            ),
        ],
    )


def _adapt(adapt: str | None, adapt_option: tuple[str, ...]) -> AdaptOptions:
    if adapt is None and adapt_option:
        raise ValueError(f"--adapt-option {adapt_option[0]} needs --adapt")
    texts = read_key_values(adapt_option, "--adapt-option", {})
    return AdaptOptions(adapt, {name: _as_number_or_text(text) for name, text in texts.items()})


def _as_number_or_text(text: str) -> Any:
    """Return what an option of an adaptation may be: a whole number, a number, several of them, true, false or a word.

    >>> _as_number_or_text("16"), _as_number_or_text("1,inf"), _as_number_or_text("full"), _as_number_or_text("true")
    (16, (1, inf), 'full', True)
    """
    if "," in text:
        return tuple(_as_number_or_text(one.strip()) for one in text.split(",") if one.strip())
    if text in ("true", "false"):
        return text == "true"
    for kind in (int, float):
        with suppress(ValueError):
            return kind(text)
    return text


# --- run --------------------------------------------------------------------------------------------------------------


class RunOptions(NamedTuple):
    """How devices run: the method with its options as text, the engine, faults, seed, and where a recording goes."""

    method: str = "e-dcp"
    options: Mapping[str, Any] = types.MappingProxyType({})
    seed: int | None = None
    engine: str = "simulator"
    fault: tuple[str, ...] = ()
    warm: Path | None = None
    recording: RecordingOptions = RecordingOptions()

    def checked_options(self) -> dict[str, Any]:
        """Return the options of the method, in its types; the seed is among them where the method has one."""
        from conformesh.methods import get_method

        seeded = self.seed is not None and "seed" in get_method(self.method).option_names()
        return read_method_options(self.method, {**self.options, **({"seed": self.seed} if seeded else {})})


def run_options(*parts: Option | OptionGroup) -> OptionGroup:
    """How devices run: options and groups whose names are fields of `RunOptions`."""
    return OptionGroup("run", RunOptions, parts)


def method_option() -> Option:
    """Return the option that names one method."""
    from conformesh.methods import METHODS

    return Option("--method NAME", f"One of {', '.join(METHODS)}.", default="e-dcp")


def methods_option() -> ListOption:
    """Return the option that names several methods."""
    from conformesh.methods import METHODS

    return ListOption("--method NAME,...", f"Some of {', '.join(METHODS)}; by default all.")


def devices_option(text: str = "Number of devices.") -> Option:
    """Return the option for the number of devices."""
    return Option("--devices <int>", text, type=WholeNumber(1))


def scores_per_device_option(text: str = "Calibration scores on each device.") -> Option:
    """Return the option for the scores of a device, in runs that are only planned."""
    return Option("--scores-per-device <int>", text, type=WholeNumber(1), default=50, panel=FILES)


def engine_option() -> Option:
    """Return the option for the engine."""
    from conformesh.engines import ENGINES

    words = "; ".join(f"{name}, {driver.summary}" for name, driver in ENGINES.items())
    return Option(
        f"--engine {'|'.join(ENGINES)}", f"What runs the devices: {words}.", default="simulator", panel=RUNNING
    )


def aggregate_option(default: str | None = "auto", more: str = "") -> Option:
    """Return the option for the way sums over all devices are formed."""
    from conformesh.protocols.aggregate import aggregate_choices

    words = f"How sums are formed{more}."
    return Option(f"--aggregate {'|'.join(aggregate_choices())}", words, default=default, panel=RUNNING)


def fault_option() -> Option:
    """Return the option for faults of the simulated network."""
    return Option(
        "--fault KEY=VALUE",
        "A fault of the simulated network, for methods that tolerate it: loss=0.3 (of messages), activation=0.5 "
        "(devices that send in a round), links=0.2 (links that are up in a round), byzantine=3;7 and attack=NAME "
        "(Byzantine devices), seed=7; may be repeated.",
        panel=RUNNING,
    )


def view_option() -> Option:
    """Return the option that shows a run on a page."""
    return Option(
        f"{VIEW_FLAG} [HOST:PORT]", f"Show it in a browser meanwhile, by default at {DEFAULT_ADDRESS}.", panel=_VIEW
    )


def recording_options(*, view: bool = True) -> OptionGroup:
    """Ways to see a run: a page, a trace, a report."""
    found = [
        view_option(),
        Option("--trace FILE", "Record the run for conformesh view; .gz compresses.", type=PATH, panel=_VIEW),
        Option("--report FILE", "Write the run as one HTML page that needs no server.", type=PATH, panel=_VIEW),
    ]
    return OptionGroup("recording", RecordingOptions, found if view else found[1:])


def checkpoint_options(text: str) -> list[Option]:
    """Return options for long work that is saved and resumed."""
    return [
        Option("--checkpoint FILE", text, type=PATH, panel=RUNNING),
        Option("--resume/--no-resume", "Go on from the checkpoint.", default=True, panel=RUNNING),
    ]


def jobs_option() -> Option:
    """Return the option for the number of points that run at once."""
    return Option(
        "--jobs <int>", "Points that run at once.", type=WholeNumber(1), default=os.cpu_count() or 1, panel=RUNNING
    )


def setting_option(name: str) -> Option:
    """Return one setting of ``device.toml`` as an option: its help, default and choices are those of `SETTINGS`."""
    from conformesh.mesh.config.settings import SETTINGS
    from conformesh.protocols.options import without_none

    one = SETTINGS[name]
    kind = without_none(one.hint)
    readers: dict[Any, Any] = {int: WholeNumber(1), float: Number()}
    metavar = "|".join(one.choices) or f"<{kind.__name__}>"
    word = f"--{name.replace('_', '-')} {metavar}"
    return Option(word, one.help, type=readers.get(kind, str), default=one.default, panel=RUNNING)


def overrides(*, heartbeat: bool = False) -> OptionGroup:
    """Settings for one start only, instead of those of device.toml; the command gets their texts by name."""
    from conformesh.mesh.config import MODES, ON_LOST

    found = [
        Option("--patience <float>", "Seconds to wait for a neighbour, this time."),
        Option(f"--on-lost {'|'.join(ON_LOST)}", "What a lost neighbour means, this time, on all devices."),
        Option(
            "--quorum <int>", "How many devices must be left to continue, more than half, this time, on all devices."
        ),
        Option(
            f"--mode {'|'.join(MODES)}",
            "Run in rounds, or in asynchronous mode without waiting; this start only, and the same on all devices.",
        ),
    ]
    if heartbeat:
        found.append(Option("--heartbeat <float>", "Seconds between two heartbeats, this time; 0 for none."))
    return OptionGroup("overrides", _given, found)


def _given(**texts: str | None) -> dict[str, str]:
    return {name: text for name, text in texts.items() if text is not None}


def read_settings(pairs: Sequence[str]) -> dict[str, Any]:
    """Read ``--set section.name=value`` words, by the name of the setting."""
    from conformesh.mesh.config.settings import find_setting

    found: dict[str, Any] = {}
    for pair in pairs:
        path, equals, text = pair.partition("=")
        one = find_setting(path.strip())
        if not (equals and text.strip()):
            raise ValueError(f"--set must be section.name=value, got {pair!r}")
        if get_origin(one.hint) is dict:
            raise ValueError(
                f"--set {one.path}: give the method's options as --NAME, those of the score by --score-option, those "
                "of adapt by --adapt-option, and shares by --mixture FILE"
            )
        found[one.field.name] = one.read(text)
    return found


# --- output -----------------------------------------------------------------------------------------------------------


class OutputOptions(NamedTuple):
    """Where a result goes: to a file, and as JSON or in words to standard output."""

    out: Path | None = None
    as_json: bool = False

    def show(self, result: Any, show_words: Callable[[Any], None]) -> None:
        """Save and print a result."""
        if self.out is not None:
            result.save(self.out)
        if self.as_json:
            print(result.to_json())
        else:
            show_words(result)


def output_options(text: str = "Also save the result as JSON.") -> OptionGroup:
    """Where a result goes."""
    return OptionGroup("output", OutputOptions, [out_option(text), json_option()])


def out_option(text: str = "Also save the result as JSON.", metavar: str = "FILE", **more: Any) -> Option:
    """Return the option for the file of the result."""
    return Option(f"--out {metavar}", text, type=PATH, **more)


def json_option(text: str = "Print one JSON object and nothing else.") -> Option:
    """Return the flag that asks for JSON."""
    return Option("--json", text, name="as_json")


def picture_option(text: str = "Draw the picture.") -> Option:
    """Return the flag that asks for a picture, or for none."""
    return Option("--picture/--no-picture", text, default=True)


# --- options of methods -----------------------------------------------------------------------------------------------


class _MethodOption(NamedTuple):
    """One option, and what it means to each method that has it."""

    name: str
    hints: dict[str, Any]
    fields: dict[str, Field[Any]]

    @property
    def help(self) -> str:
        """The meaning, with the methods where several have the option; the same meaning is given once."""
        from dataclasses import MISSING

        meanings: dict[tuple[str, str], list[str]] = {}
        for method, field in self.fields.items():
            value: Any = field.default
            if isinstance(value, bool | float):
                value = f"{value:g}" if isinstance(value, float) else "yes" if value else "no"
            default = "" if value in (None, MISSING) else f"default {value}"
            meanings.setdefault((field.metadata["help"], default), []).append(method)
        lines = []
        for (text, default), who in meanings.items():
            facts = [", ".join(who) if len(self.fields) > 1 else "", default]
            aside = "; ".join(fact for fact in facts if fact)
            lines.append(f"{text[:1].upper()}{text[1:]}" + (f" ({aside})." if aside else "."))
        return " ".join(lines)

    @property
    def option(self) -> Option:
        """The option of the command line; None stands for "not given", so that the method's own default holds."""
        from conformesh.protocols.options import option_choices

        word, kinds = f"--{self.name.replace('_', '-')}", [*self.hints.values()]
        panel = SHARED if len(self.fields) > 1 else f"Options of {next(iter(self.fields))}"
        common: dict[str, Any] = {"panel": panel, "default": None, "show_default": False}
        if bool in kinds:
            return Option(f"{word}/--no-{word[2:]}", self.help, **common)
        if get_origin(kinds[0]) is tuple:
            return Option(f"{word} LO HI", self.help, nargs=len(get_args(kinds[0])), **common)
        words = [word for method, field in self.fields.items() for word in option_choices(field, self.hints[method])]
        metavar = "|".join(dict.fromkeys(words or (f"<{getattr(hint, '__name__', 'str')}>" for hint in kinds)))
        # Text: each method turns it into what it needs, with one kind of error.
        return Option(f"{word} {metavar}", self.help, type=str, **common)


def options_of_methods(methods: Iterable[str] | None = None) -> dict[str, _MethodOption]:
    """Return every option of these methods, by default of all, in the order of `METHODS`."""
    from dataclasses import fields

    from conformesh.methods import METHODS
    from conformesh.protocols.options import without_none

    found: dict[str, _MethodOption] = {}
    for name in METHODS if methods is None else methods:
        hints = get_type_hints(METHODS[name].options)
        for field in fields(METHODS[name].options):
            if "help" in field.metadata:
                option = found.setdefault(field.name, _MethodOption(field.name, {}, {}))
                option.hints[name] = without_none(hints[field.name])
                option.fields[name] = field
    return found


def method_options(*methods: str, chosen: bool = False) -> OptionGroup:
    """The options of these methods, by default of all; the command gets a dictionary of text.

    With `chosen` the help shows only those of the method that stands beside ``--help``: a screen, not five.
    """

    def declare() -> list[Option]:
        known = options_of_methods(methods or None)
        found = {name: one.option for name, one in known.items()}
        for name, option in found.items():
            option.shown_with = tuple(known[name].fields) if chosen else ()
        return [*found.values()]

    return OptionGroup("options", dict, declare)


def read_method_options(method: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options that were given, in the types of the method and after it has accepted them."""
    from conformesh.methods import get_method, make_options
    from conformesh.protocols.options import convert_option

    get_method(method)  # an unknown name is said first
    chosen = {name: value for name, value in given.items() if value is not None}
    if not chosen:
        return {}
    known = options_of_methods([method])
    for name, value in chosen.items():
        if name in known:
            chosen[name] = convert_option(value, known[name].hints[method], name, is_text=True)
    make_options(method, chosen)
    return chosen


def read_faults(pairs: Sequence[str]) -> Faults | None:
    """Read ``--fault key=value`` words; rows of Byzantine devices are separated by semicolons."""
    if not pairs:
        return None
    from conformesh.cli.command import parse_whole_number
    from conformesh.protocols.faults import Faults, make_faults

    found = read_key_values(pairs, "fault", {**get_type_hints(Faults), "byzantine": str})
    if "byzantine" in found:
        found["byzantine"] = tuple(
            parse_whole_number(row, "fault byzantine", 0) for row in found["byzantine"].split(";")
        )
    return make_faults(found)


# --- values -----------------------------------------------------------------------------------------------------------


def read_key_values(pairs: Sequence[str], what: str, hints: Mapping[str, Any]) -> dict[str, Any]:
    """Read ``key=value`` words; each value takes the type that `hints` gives its key (unknown keys stay text)."""
    from conformesh.protocols.options import convert_option

    found: dict[str, Any] = {}
    for pair in pairs:
        key, equals, text = pair.partition("=")
        key = key.strip().replace("-", "_")
        if not (equals and key and text.strip()):
            raise ValueError(f"{what} must be key=value, got {pair!r}")
        found[key] = convert_option(text.strip(), hints.get(key, str), f"{what} {key}", is_text=True)
    return found
