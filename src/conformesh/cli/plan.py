"""``conformesh plan``: what each method costs on a network and a link, simulated on drawn scores."""

from __future__ import annotations

import csv
import json
import sys
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer

from conformesh.cli import console
from conformesh.cli.networks import Graph, Topology, TopologyOption, chosen_network
from conformesh.cli.options import as_type, flags_of_methods, key_values, whole, with_flags
from conformesh.cli.panels import FILES, RUNNING
from conformesh.cli.promising import PacConfidence, Rank, Target, chosen_promise
from conformesh.graph.network import Network
from conformesh.graph.topologies import TOPOLOGIES
from conformesh.io.score_files import read_scores
from conformesh.kernels.ranks import AUTO
from conformesh.kernels.weighted_scores import WeightedScores
from conformesh.methods import METHODS, get_method, make_options, ways_of
from conformesh.names import unknown
from conformesh.planning.link import Link
from conformesh.planning.measuring import ANY, SHAPES, TIME_LIMIT
from conformesh.planning.networks import SIMULATED_UP_TO, SimulatedNetwork, network_itself, network_of_topology
from conformesh.planning.planner import COLUMNS, KIND_ORDER, NUMBERS, SORTS, Plan
from conformesh.planning.planner import plan as simulate
from conformesh.plots.pictures import picture_file

MOST = 10**12  # devices: a larger number is a typing mistake


@with_flags
@console.warnings_in_one_line()
def plan(
    devices: Annotated[
        str | None, typer.Option(metavar="<int>", help="How many devices, K; 1e6 is fine.", show_default=False)
    ] = None,
    topology: Topology = None,
    topology_option: TopologyOption = None,
    graph: Graph = None,
    alpha: Annotated[str, typer.Option(metavar="<float>", help="Tolerated miscoverage between 0 and 1.")] = "0.1",
    method: Annotated[
        str | None,
        typer.Option(metavar="NAME,...", help=f"By default all: {', '.join(METHODS)}.", show_default=False),
    ] = None,
    link: Annotated[
        str,
        typer.Option(metavar="LATENCY,BANDWIDTH", help="Of a device's uplink: us, ms, s; kbit, Mbit, Gbit, kB, MB."),
    ] = "100ms,1Mbit",
    guarantee: Annotated[
        str, typer.Option(metavar="|".join(KIND_ORDER), help="Leave out what promises less than this.")
    ] = "none",
    sort: Annotated[
        str, typer.Option(metavar="|".join(SORTS), help="What to save, among the best guarantees.")
    ] = "time",
    plot: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Draw time against latency and against devices: .png, .pdf, .svg."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of the table.")] = False,
    as_csv: Annotated[bool, typer.Option("--csv", help="Print the table as CSV.")] = False,
    target: Target = "sizes",
    rank: Rank = AUTO,
    pac_confidence: PacConfidence = None,
    scores_per_device: Annotated[
        str, typer.Option(metavar="<int>", help="Calibration scores that a device holds.", rich_help_panel=FILES)
    ] = "50",
    scores: Annotated[
        str | None,
        typer.Option(
            metavar="SCORES",
            help="Instead of drawn scores: the scores themselves.",
            show_default=False,
            rich_help_panel=FILES,
        ),
    ] = None,
    shape: Annotated[
        str,
        typer.Option(
            metavar="|".join((ANY, *SHAPES)),
            help="What drawn scores look like; any: one draw of each shape.",
            rich_help_panel=FILES,
        ),
    ] = ANY,
    simulate_up_to: Annotated[
        str,
        typer.Option(
            metavar="<int>",
            help="Devices up to which the network itself is simulated; of a larger one a smaller one of its kind.",
            rich_help_panel=RUNNING,
        ),
    ] = str(SIMULATED_UP_TO),
    time_limit: Annotated[
        float,
        typer.Option(
            metavar="<float>",
            help="Seconds that simulating one run may take; else it is stopped.",
            rich_help_panel=RUNNING,
        ),
    ] = TIME_LIMIT,
    seed: Annotated[
        str, typer.Option(metavar="<int>", help="Seed of topologies that draw.", rich_help_panel=RUNNING)
    ] = "0",
    **options: Any,
) -> None:
    """Simulate every method on drawn scores: rounds, numbers, bytes, time on a link, and which method to use.

    The figures are those of real runs on the network, or on a smaller one of the same kind where it has more than
    --simulate-up-to devices; the first line says which.
    """
    if as_json and as_csv:
        raise ValueError("--json and --csv are two ways to print one table; give one of them")
    plot = None if plot is None else picture_file(plot)
    names = None if method is None else [name.strip() for name in method.split(",") if name.strip()]
    uplink, held = Link.parse(link), whole(scores_per_device, "scores per device", 1)
    chosen = _options(names, options)
    most = whole(simulate_up_to, "simulate up to", 1)
    known = None
    if scores is None:
        where = _network(devices, topology, topology_option or [], graph, whole(seed, "seed", 0), most)
    else:
        where, known = _with_scores(
            scores, devices, topology, topology_option or [], graph, whole(seed, "seed", 0), most
        )
    shares = chosen_promise(target, rank, pac_confidence, scores).shares
    found = simulate(
        where,
        held,
        alpha,
        uplink,
        scores=known,
        target=target if shares is None else shares,
        rank=rank,
        pac_confidence=pac_confidence,
        methods=names,
        options=chosen,
        sort=sort,  # type: ignore[arg-type]  # checked there
        guarantee=guarantee,  # type: ignore[arg-type]
        shape=shape,
        time_limit=time_limit,
        progress=True,
    )
    if plot is not None:
        found.plot(plot, None if graph is not None or scores is not None else topology or "torus", chosen)
    if as_json:
        print(json.dumps({**found.to_dict(), "picture": None if plot is None else str(plot)}, allow_nan=False))
    elif as_csv:
        _print_csv(found)
    else:
        _report(found, plot)


def _options(names: list[str] | None, given: dict[str, Any]) -> dict[str, Any]:
    """Return the options that were given, in the types of the methods that have them."""
    flags, chosen = flags_of_methods(), {}
    for name, value in given.items():
        if value is None:
            continue
        owners = [method for method in flags[name].fields if names is None or method in names]
        if not owners:
            raise ValueError(
                f"none of {', '.join(names or [])} has the option {name!r}; it belongs to "
                f"{', '.join(flags[name].fields)}"
            )
        chosen[name] = value if isinstance(value, bool) else as_type(value, flags[name].hints[owners[0]], name)
    for method in METHODS if names is None else names:
        known = get_method(method).option_names()
        make_options(method, {name: value for name, value in chosen.items() if name in known})
    ways_of(names, chosen)
    return chosen


def _network(
    devices: str | None, topology: str | None, pairs: list[str], graph: Path | None, seed: int, most: int
) -> SimulatedNetwork:
    if graph is not None:
        if topology is not None or pairs or devices is not None:
            raise ValueError(f"give --devices and a topology, or --graph, not both: got --graph {graph} and more")
        return network_itself(Network.from_edges(graph), most)
    if devices is None:
        raise ValueError("say how many devices there are with --devices, or give a network with --graph")
    name = "torus" if topology is None else topology
    if name not in TOPOLOGIES:
        raise ValueError(unknown("topology", name, TOPOLOGIES))
    hints = get_type_hints(TOPOLOGIES[name].build)
    return network_of_topology(name, _count(devices), most, seed, key_values(pairs, "topology option", hints))


def _with_scores(
    scores: str, devices: str | None, topology: str | None, pairs: list[str], graph: Path | None, seed: int, most: int
) -> tuple[SimulatedNetwork, WeightedScores]:
    """Return where the devices of a file of scores would calibrate, and their scores."""
    if scores.isdecimal() and not Path(scores).exists():
        raise ValueError(
            f"--scores is a file of scores, got the number {scores}; for {scores} scores on each device write "
            f"--scores-per-device {scores}"
        )
    if devices is not None:
        raise ValueError(f"--devices {devices} counts devices that --scores names already; leave it out")
    held = read_scores(scores)
    network = chosen_network(held, topology, pairs, graph, seed)
    return network_itself(network, most), WeightedScores.of(held.for_devices(network.ids), network.ids)


def _count(text: str) -> int:
    """Read a number of devices, also as 1e9 or 1_000_000."""
    try:
        number = float(text.replace(",", "").replace("_", ""))
    except ValueError:
        number = -1.0
    if not 1 <= number <= MOST or not number.is_integer():
        raise ValueError(f"devices must be a whole number of at least 1 and at most {MOST:g}, got {text!r}")
    return int(number)


# --- what is shown ----------------------------------------------------------------------------------------------------


def _report(found: Plan, picture: Path | None) -> None:
    print(
        f"{found.describe()}\n"
        f"{found.scores:,} scores; alpha {found.alpha:g} requires rank {found.required_rank:,}; link {found.link}\n"
        "numbers, bytes, largest: what a device sends, mean and most; a message to all neighbours counts once.\n"
        "time: of all rounds, each latency + bits x degree / bandwidth of the slowest device.\n"
    )
    console.print_table(COLUMNS, [row.cells() for row in found.rows], right=NUMBERS)
    print()
    for row in found.rows:
        low, high = row.rounds_between
        if low < high and row.way.variant != AUTO:
            print(f"~ {row.way}: {low:,} to {high:,} rounds, depending on the scores")
    for row in found.rows:
        for words in row.notes:
            print(f"note: {words} ({row.way})")
    for way, reason in found.refused.items():
        print(f"not here: {way}, {reason}")
    for row in found.rows:
        if row.assumption:
            print(f"* {row.way}: {row.assumption}")
    if picture is not None:
        print(f"picture: {picture}")
    print(f"\nWhich should I use? {found.reason()}")


def _print_csv(found: Plan) -> None:
    rows = [
        {name: value for name, value in row.to_dict().items() if not isinstance(value, list | dict | tuple)}
        for row in found.rows
    ]
    writer = csv.DictWriter(sys.stdout, [*(rows[0] if rows else {})], lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
