"""``conformesh calibrate``: from a file of scores to a certified threshold."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer

from conformesh.api import calibrate as agree
from conformesh.calibrating import calibrate_several, calibrate_shifted
from conformesh.cli import console
from conformesh.cli.hosting import job
from conformesh.cli.networks import Graph, Topology, TopologyOption, chosen_network
from conformesh.cli.options import checked_options, chosen_faults, key_values, whole, with_flags
from conformesh.cli.panels import PROMISE, RUNNING
from conformesh.cli.promising import PacConfidence, Rank, Target, Weight, WeightBound, chosen_target
from conformesh.cli.reading import Decimal, DeviceColumn, ScoreColumn, Separator, named
from conformesh.cli.recording import recorded
from conformesh.cli.viewing import ReportFile, TraceFile, ViewAddress
from conformesh.engines import ENGINES
from conformesh.engines.base import ids_here
from conformesh.graph.network import Network
from conformesh.io.score_files import RecordedScore, one_score
from conformesh.io.tables import Layout
from conformesh.kernels.ranks import AUTO, GROUP_RULES, exact_alpha
from conformesh.methods import METHODS, get_method, make_options, refuse_faults
from conformesh.progress import rounds_on_a_bar
from conformesh.quantities import in_bits, in_count, several
from conformesh.result.calibration import Calibration
from conformesh.result.several import Calibrations
from conformesh.scores import SCORES, Score, get_score, settle_score

WARM = tuple(name for name, method in METHODS.items() if method.starts_warm)

RANKS = ("required rank", "counted", "of scores")


@with_flags
def calibrate(
    scores: Annotated[
        str,
        typer.Argument(
            metavar="SCORES", help="CSV, Parquet or NPZ with device and score, or a folder; - reads CSV from stdin."
        ),
    ],
    alpha: Annotated[
        str, typer.Option(metavar="<float>", help="Tolerated miscoverage between 0 and 1; several as 0.05,0.1,0.2.")
    ] = "0.1",
    method: Annotated[str, typer.Option(help=f"One of {', '.join(METHODS)}.")] = "e-dcp",
    topology: Topology = None,
    topology_option: TopologyOption = None,
    graph: Graph = None,
    score: Annotated[
        str | None,
        typer.Option(
            help=f"What the scores are, kept for predict; by default what SCORES records: {', '.join(SCORES)}.",
            show_default=False,
        ),
    ] = None,
    score_option: Annotated[
        list[str] | None, typer.Option(metavar="KEY=VALUE", help="An option of the score, as k_reg=2; may be repeated.")
    ] = None,
    out: Annotated[Path | None, typer.Option(metavar="FILE", help="Also save the result as JSON.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")] = False,
    target: Target = "sizes",
    rank: Rank = AUTO,
    pac_confidence: PacConfidence = None,
    group: Annotated[
        list[str] | None,
        typer.Option(
            metavar="COLUMN",
            help="Cover within each value of this column; several columns, or cells as a;b, make groups that overlap.",
            show_default=False,
            rich_help_panel=PROMISE,
        ),
    ] = None,
    group_rule: Annotated[
        str | None,
        typer.Option(
            metavar="|".join((AUTO, *GROUP_RULES)),
            help="What holds for a row that is in several groups; by default auto, which is seq.",
            show_default=False,
            rich_help_panel=PROMISE,
        ),
    ] = None,
    group_order: Annotated[
        str | None,
        typer.Option(
            metavar="A,B,...",
            help="The order of groups for seq; by default that of their names.",
            show_default=False,
            rich_help_panel=PROMISE,
        ),
    ] = None,
    weight: Weight = None,
    weight_bound: WeightBound = None,
    strict: Annotated[
        bool, typer.Option("--strict", help="Too few scores for alpha is an error, not +inf.", rich_help_panel=PROMISE)
    ] = False,
    device_column: DeviceColumn = None,
    score_column: ScoreColumn = None,
    separator: Separator = None,
    decimal: Decimal = None,
    seed: Annotated[
        str | None,
        typer.Option(
            metavar="<int>",
            help="Seed of the topology and, where it has one, of the method, both 0 by default; of the scores that "
            "--group-rule regression draws, by default fresh and recorded in the result.",
            show_default=False,
            rich_help_panel=RUNNING,
        ),
    ] = None,
    engine: Annotated[
        str,
        typer.Option(
            metavar="|".join(ENGINES),
            help=f"Who runs the devices: {'; '.join(f'{name}, {driver.summary}' for name, driver in ENGINES.items())}.",
            rich_help_panel=RUNNING,
        ),
    ] = "simulator",
    fault: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY=VALUE",
            help="What goes wrong in the simulated network, for methods that bear it: loss=0.3, activation=0.5 (who "
            "speaks in a round), links=0.2 (which are up in a round), liars=3;7 and attack=NAME, seed=7; repeatable.",
            show_default=False,
            rich_help_panel=RUNNING,
        ),
    ] = None,
    warm: Annotated[
        Path | None,
        typer.Option(
            metavar="RESULT",
            help=f"Start from an earlier result ({', '.join(WARM)}).",
            show_default=False,
            rich_help_panel=RUNNING,
        ),
    ] = None,
    view: ViewAddress = None,
    trace: TraceFile = None,
    report: ReportFile = None,
    **options: Any,
) -> None:
    """Agree on a threshold whose prediction sets hold the truth with probability at least 1 - alpha.

    SCORES has columns `device` and `score`, or others that are named, one row per calibration point. The devices
    talk over the topology, or over the graph whose edges are given. Methods: see `conformesh methods`.
    """
    with job(engine) as hosts, recorded(view, trace, report, sparing=True) as recorder:
        levels = [level.strip() for level in alpha.split(",")]
        for level in levels:
            exact_alpha(level)
        if weight is not None and (group or pac_confidence is not None):
            raise ValueError("--weight goes neither with --group nor with --pac-confidence; leave one of them out")
        if (weight is None) != (weight_bound is None):
            raise ValueError(
                "--weight and --weight-bound go together: a column of weights, and the largest that any example may "
                "have, which the largest one seen is not"
            )
        given = None if seed is None else whole(seed, "seed", 0)
        if given is not None and "seed" in get_method(method).option_names():
            options["seed"] = given
        chosen = checked_options(method, options)
        wrong = chosen_faults(fault or [])
        refuse_faults(method, make_options(method, chosen), wrong)
        named_kind = named_score(score, score_option or [])
        columns = _group_columns(group, group_rule, group_order)
        if warm is not None:
            chosen["warm"] = _bracket(warm, method, several=len(levels) > 1 or bool(columns))
        layout = Layout(
            device_column, score_column, groups=columns, separator=separator, decimal=decimal, weight=weight
        )
        whom = chosen_target(target, scores, layout)
        with console.warnings_in_one_line():
            held, host = hosts.load(
                scores,
                layout,
                lambda known: chosen_network(known, topology, topology_option or [], graph, given or 0),
            )
        kind = score_in_file(one_score(host.share(held.made_by), held.name), named_kind, held.name)
        network = host.network
        mine = tuple(ids_here(host))
        on_a_bar = rounds_on_a_bar(f"{method} on {network.name}", recorder)
        with on_a_bar as observer, console.warnings_in_one_line():
            host.observer = observer
            asked = {"target": whom, "rank": rank}
            if pac_confidence is not None:
                asked["pac_confidence"] = pac_confidence
            common = {"score": kind, "strict": strict, "engine": host, "faults": wrong, **asked, **chosen}
            own = held.for_devices(mine)
            if weight is not None:
                common |= {"weight": held.weights_for(mine), "weight_bound": weight_bound}
            if columns:
                order = named(group_order) or None
                common |= {"groups": held.groups_for(mine), "group_rule": group_rule, "group_order": order}
                common["rng"] = given
            result = _agreed(own, network, levels, method, common)
            if recorder is not None:
                recorder.finish(result)
        if hosts.first:
            _show(result if held.classes is None else _with_classes(result, held.classes), method, out, as_json)


def _agreed(
    own: Any, network: Network, levels: list[str], method: str, common: dict[str, Any]
) -> Calibration | Calibrations:
    """Calibrate by the function that fits what was asked for."""
    if "weight" in common and len(levels) > 1:
        return calibrate_shifted(own, network, levels, method, **common)
    if "groups" in common or len(levels) > 1:
        return calibrate_several(own, network, levels, method, **common)
    return agree(own, network, levels[0], method, **common)


def _group_columns(group: list[str] | None, rule: str | None, order: str | None) -> tuple[str, ...]:
    """Return the columns of groups; a rule or an order without them is a mistake."""
    columns = tuple(name for one in group or [] for name in named(one))
    if not columns and (rule or order):
        raise ValueError("--group-rule and --group-order need --group, the columns that name the groups")
    return columns


def _with_classes(result: Calibration | Calibrations, classes: tuple[str, ...]) -> Calibration | Calibrations:
    """Let the result know which classes its scores came from, so that `predict` can check them."""
    if isinstance(result, Calibration):
        return replace(result, classes=classes)
    return replace(result, items={key: replace(item, classes=classes) for key, item in result.items.items()})


def _show(result: Calibration | Calibrations, method: str, out: Path | None, as_json: bool) -> None:
    """Save and print what was found."""
    if out is not None:
        result.save(out)
    if as_json:
        print(result.to_json())
    elif isinstance(result, Calibrations):
        _print_several(result)
    else:
        console.print_facts(f"conformesh {method}", result.facts())


def _bracket(path: Path, method: str, several: bool) -> tuple[float, float] | None:
    if not get_method(method).starts_warm or several:
        raise ValueError(f"--warm goes with --method {' or '.join(WARM)}, one alpha and no groups")
    return Calibration.load(path).bracket


def _print_several(results: Calibrations) -> None:
    grouped = results.groups != (None,)
    weighed = any(item.certificate.weight is not None for item in results.items.values())
    names = (*RANKS[:2], "of weight") if weighed else RANKS
    columns = (*(("group",) if grouped else ()), "alpha", "threshold", "guarantee", *names)
    rows = []
    for (group, alpha), item in results.items.items():
        whole = item.scores if item.certificate.noise is None else None
        whole = whole if item.certificate.weight is None else item.certificate.weight
        ranks = (item.certificate.required_rank, item.certificate.counted_rank, whole)
        shown = (f"{rank:,}" if isinstance(rank, int) else "" for rank in ranks)
        row = (f"{alpha:g}", f"{item.threshold:.6g}", item.certificate.kind, *shown)
        rows.append((*((str(group),) if grouped else ()), *row))
    console.print_table(columns, rows, right=("alpha", "threshold", *names))
    cost = results.cost
    if results.rule:
        print(f"\n{results.rule}: {GROUP_RULES[results.rule]}")
    print(
        f"\none run for all: {several(cost.rounds, 'round')}, each device sent "
        f"{in_count(cost.numbers_per_device)} numbers, {in_bits(cost.bits_per_device)}"
    )


def score_in_file(made_by: RecordedScore | None, named: Score | None, where: str) -> Score | None:
    """Return the score that a file records, or the one that was named where it records none; they must not differ."""
    return named if made_by is None else settle_score(*made_by, named, where)


def named_score(name: str | None, pairs: list[str]) -> Score | None:
    """Build the score that was named, with its options."""
    if name is None:
        if pairs:
            raise ValueError(f"--score-option {pairs[0]} needs --score to say whose option it is")
        return None
    hints = get_type_hints(SCORES[name]) if name in SCORES else {}
    return get_score(name, **key_values(pairs, "score option", hints))
