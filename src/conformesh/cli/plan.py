"""``conformesh plan``: what each method costs on a network and a link, simulated on drawn scores."""

from __future__ import annotations

import csv
import sys
from pathlib import Path
from typing import Any

from conformesh.cli import console, hosts, options
from conformesh.cli.command import FILES, PATH, RUNNING, SOURCE, Number, Option, command, parse_whole_number
from conformesh.cli.options import GuaranteeOptions, NetworkOptions, options_of_methods
from conformesh.files.score_files import read_scores
from conformesh.files.tables import FileLayout
from conformesh.kernels.ranks import AUTO
from conformesh.kernels.weighted_scores import WeightedScores
from conformesh.lab.planning.link import Link
from conformesh.lab.planning.measurement import ANY_SHAPE, RUN_TIME_LIMIT, SCORE_SHAPES
from conformesh.lab.planning.networks import (
    MOST_SIMULATED_DEVICES,
    SimulatedNetwork,
    simulated_network,
    simulated_topology,
)
from conformesh.lab.planning.planner import GUARANTEE_ORDER, PLAN_COLUMNS, PLAN_NUMBER_COLUMNS, SORT_KEYS, Plan
from conformesh.lab.planning.planner import plan as simulate
from conformesh.methods import METHODS, get_method, make_options, method_variants
from conformesh.plots.pictures import picture_file
from conformesh.protocols.options import convert_option

_MOST_DEVICES = 10**12  # devices: a larger number is a typing mistake


@command(
    Option("--devices <int>", "How many devices, K; 1e6 is fine."),
    options.network_options(),
    options.guarantee_options("alpha", "mixture", "rank_rule", "pac_confidence"),
    options.methods_option(),
    Option(
        "--link LATENCY,BANDWIDTH", "Of a device's uplink: us, ms, s; kbit, Mbit, Gbit, kB, MB.", default="100ms,1Mbit"
    ),
    Option(
        f"--guarantee {'|'.join(GUARANTEE_ORDER)}",
        "Leave out methods with a weaker guarantee than this.",
        name="least",
        default="none",
    ),
    Option(f"--sort {'|'.join(SORT_KEYS)}", "What to minimise, among the best guarantees.", default="time"),
    Option("--plot FILE", "Draw time against latency and devices: .png, .pdf, .svg.", type=PATH),
    options.json_option("Print one JSON object instead of the table."),
    Option("--csv", "Print the table as CSV.", name="as_csv"),
    options.table_options("device", "score", "share"),
    options.scores_per_device_option(),
    Option("--scores SCORES", "Instead of drawn scores: the scores themselves.", type=SOURCE, panel=FILES),
    Option(
        f"--shape {'|'.join((ANY_SHAPE, *SCORE_SHAPES))}",
        "What drawn scores look like; any: one draw of each shape.",
        default=ANY_SHAPE,
        panel=FILES,
    ),
    Option(
        "--simulate-up-to <int>",
        "Devices up to which the network itself is simulated; of a larger one a smaller one of its kind.",
        default=str(MOST_SIMULATED_DEVICES),
        panel=RUNNING,
    ),
    Option(
        "--time-limit <float>",
        "Seconds that simulating one run may take; else it is stopped.",
        type=Number(),
        default=RUN_TIME_LIMIT,
        panel=RUNNING,
    ),
    options.seed_option(),
    options.method_options(),
)
@console.warnings_in_one_line()
def plan(
    devices: str | None,
    network: NetworkOptions,
    guarantee: GuaranteeOptions,
    method: tuple[str, ...],
    link: str,
    least: str,
    sort: str,
    plot: Path | None,
    as_json: bool,
    as_csv: bool,
    scores_per_device: int,
    scores: str | None,
    table: FileLayout,
    shape: str,
    simulate_up_to: str,
    time_limit: float,
    seed: int,
    options: dict[str, Any],
) -> None:
    """Simulate every method on drawn scores: rounds, numbers, bytes, time on a link, and which method to use.

    The figures are those of real runs on the network, or on a smaller one of the same kind where it has more than
    --simulate-up-to devices; the first line says which.
    """
    if as_json and as_csv:
        raise ValueError("--json and --csv are two ways to print one table; give one of them")
    plot = None if plot is None else picture_file(plot)
    names, most = [*method] or None, parse_whole_number(simulate_up_to, "simulate up to", 1)
    chosen = _options(names, options)
    known = None
    if scores is None:
        where = _simulated(devices, network, seed, most)
    else:
        where, known = _with_scores(scores, table, devices, network, seed, most)
    found = simulate(
        where,
        scores_per_device,
        guarantee.one_alpha,
        Link.parse(link),
        scores=known,
        mixture=guarantee.shares(scores, table),
        rank_rule=guarantee.rank_rule,
        pac_confidence=guarantee.pac_confidence,
        methods=names,
        options=chosen,
        sort=sort,  # type: ignore[arg-type]  # checked there
        guarantee=least,  # type: ignore[arg-type]
        shape=shape,
        time_limit=time_limit,
        progress=True,
    )
    if plot is not None:
        found.plot(plot, None if network.file or scores is not None else network.name or "torus", chosen)
    data = {**found.to_dict(), "picture": plot and str(plot)}
    console.show_result(data, as_json, lambda: _print_csv(found) if as_csv else _report(found, plot))


def _options(names: list[str] | None, given: dict[str, Any]) -> dict[str, Any]:
    """Return the options that were given, in the types of the methods that have them."""
    flags, chosen = options_of_methods(), {}
    for name, value in given.items():
        if value is None:
            continue
        owners = [method for method in flags[name].fields if names is None or method in names]
        if not owners:
            raise ValueError(
                f"none of {', '.join(names or [])} has the option {name!r}; it belongs to "
                f"{', '.join(flags[name].fields)}"
            )
        chosen[name] = convert_option(value, flags[name].hints[owners[0]], name, is_text=True)
    for method in METHODS if names is None else names:
        known = get_method(method).option_names()
        make_options(method, {name: value for name, value in chosen.items() if name in known})
    method_variants(names, chosen)
    return chosen


def _simulated(devices: str | None, network: NetworkOptions, seed: int, most: int) -> SimulatedNetwork:
    """Return the network in the file, or one of a topology, or a smaller one that stands for it."""
    if network.file is not None:
        return simulated_network(network.build(None if devices is None else _count(devices), seed), most)
    if devices is None:
        raise ValueError("give the number of devices with --devices, or a file of edges with --network")
    count = _count(devices)
    name, chosen = network.topology(count)
    return simulated_topology(name, count, most, seed, chosen)


def _with_scores(
    scores: str, table: FileLayout, devices: str | None, network: NetworkOptions, seed: int, most: int
) -> tuple[SimulatedNetwork, WeightedScores]:
    """Return where the devices of a file of scores would calibrate, and their scores."""
    if scores.isdecimal() and not Path(scores).exists():
        raise ValueError(
            f"--scores is a file of scores, got the number {scores}; for {scores} scores on each device write "
            f"--scores-per-device {scores}"
        )
    if devices is not None:
        raise ValueError(f"--devices {devices} counts devices that --scores names already; leave it out")
    file = read_scores(scores, layout=table)
    built = network.connect(file.devices, file.name, seed)
    rows = hosts.table_of_devices(file, built.ids)
    assert rows.score is not None
    return simulated_network(built, most), WeightedScores.from_flat(rows.score, rows.sizes, names=built.ids)


def _count(text: str) -> int:
    """Read a number of devices, also as 1e9 or 1_000_000."""
    try:
        number = float(text.replace(",", "").replace("_", ""))
    except ValueError:
        number = -1.0
    if not 1 <= number <= _MOST_DEVICES or not number.is_integer():
        raise ValueError(f"devices must be a whole number of at least 1 and at most {_MOST_DEVICES:g}, got {text!r}")
    return int(number)


# --- what is shown ----------------------------------------------------------------------------------------------------


def _report(found: Plan, picture: Path | None) -> None:
    print(
        f"{found.describe()}\n"
        f"{found.scores:,} scores; alpha {found.alpha:g} requires rank {found.required_rank:,}; link {found.link}\n"
        "numbers, bytes, largest: what a device sends, mean and most; a message to all neighbours counts once.\n"
        "time: of all rounds, each latency + bits x degree / bandwidth of the slowest device.\n"
    )
    console.print_table(PLAN_COLUMNS, [row.cells() for row in found.rows], right=PLAN_NUMBER_COLUMNS)
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
