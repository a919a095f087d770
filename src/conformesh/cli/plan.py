"""``conformesh plan``: what each method would cost on a network and a link, without running any."""

from __future__ import annotations

import csv
import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from conformesh.cli import console, options
from conformesh.cli.command import FILES, PATH, RUNNING, SOURCE, Option, command
from conformesh.cli.options import Guarantee, Network, as_type, options_of_methods
from conformesh.io.score_files import read_scores
from conformesh.io.tables import Layout
from conformesh.kernels.ranks import AUTO
from conformesh.kernels.weighted_scores import WeightedScores
from conformesh.methods import METHODS, get_method, make_options, ways_of
from conformesh.planning.link import Link
from conformesh.planning.planner import COLUMNS, KIND_ORDER, NUMBERS, SORTS, Plan
from conformesh.planning.planner import plan as predict
from conformesh.planning.search import ANY, SHAPES
from conformesh.planning.terrain import Terrain, terrain_of
from conformesh.plots.pictures import picture_file
from conformesh.progress import Progress

MOST = 10**12  # devices: beyond, the laws of growth were never looked at


@command(
    Option("--devices <int>", "How many devices, K; 1e6 is fine."),
    options.network(),
    options.guarantee("alpha", "mixture", "rank_rule", "pac_confidence"),
    options.methods_list(),
    Option(
        "--link LATENCY,BANDWIDTH", "Of a device's uplink: us, ms, s; kbit, Mbit, Gbit, kB, MB.", default="100ms,1Mbit"
    ),
    Option(
        f"--guarantee {'|'.join(KIND_ORDER)}",
        "Leave out methods with a weaker guarantee than this.",
        name="least",
        default="none",
    ),
    Option(f"--sort {'|'.join(SORTS)}", "What to minimise, among the best guarantees.", default="time"),
    Option("--plot FILE", "Draw time against latency and devices: .png, .pdf, .svg.", type=PATH),
    options.as_json("Print one JSON object instead of the table."),
    Option("--csv", "Print the table as CSV.", name="as_csv"),
    options.table("device", "score", "share"),
    options.scores_per_device(),
    Option(
        "--scores SCORES",
        "Instead: the scores themselves, with which e-dcp's search is no estimate.",
        type=SOURCE,
        panel=FILES,
    ),
    Option(
        f"--shape {'|'.join((ANY, *SHAPES))}",
        "What scores look like, for the stages of e-dcp's search.",
        default=ANY,
        panel=FILES,
    ),
    Option(
        "--build/--sketch",
        "Build the network, up to a million devices; or go by laws of growth.",
        default=True,
        panel=RUNNING,
    ),
    options.seed(),
    options.method_options(),
)
@console.warnings_in_one_line()
def plan(
    devices: str | None,
    network: Network,
    guarantee: Guarantee,
    method: tuple[str, ...],
    link: str,
    least: str,
    sort: str,
    plot: Path | None,
    as_json: bool,
    as_csv: bool,
    scores_per_device: int,
    scores: str | None,
    table: Layout,
    shape: str,
    build: bool,
    seed: int,
    options: dict[str, Any],
) -> None:
    """Tell rounds, bytes, time on a link, and memory and time of a simulation, without running any method.

    Rounds and bytes are exact where the scores do not matter; e-dcp's search depends on them and is predicted as a mean
    over draws, unless --scores has them. A network of more than a million devices is not built: closed forms or laws of
    growth stand in for it.
    """
    if as_json and as_csv:
        raise ValueError("--json and --csv are two ways to print one table; give one of them")
    plot = None if plot is None else picture_file(plot)
    names = [*method] or None
    uplink = Link.parse(link)
    chosen = _options(names, options)
    with Progress("planning") as progress:
        if scores is None:
            terrain = _terrain(devices, network, scores_per_device, seed, build)
        else:
            terrain = _known_terrain(scores, table, devices, network, seed)
        progress.step()
        terrain = replace(terrain, requirement=guarantee.requirement(scores, table))
        found = predict(
            terrain,
            alpha=guarantee.one_alpha,
            link=uplink,
            methods=names,
            options=chosen,
            sort=sort,  # type: ignore[arg-type]  # checked there
            guarantee=least,  # type: ignore[arg-type]
            shape=shape,
        )
        if plot is not None:
            from conformesh.plots.plan import draw_plan

            draw_plan(plot, found, None if network.file else network.name or "torus", chosen)
    if as_json:
        print(json.dumps({**found.to_dict(), "picture": None if plot is None else str(plot)}, allow_nan=False))
    elif as_csv:
        _print_csv(found)
    else:
        _report(found, plot)


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
        chosen[name] = value if isinstance(value, bool) else as_type(value, flags[name].hints[owners[0]], name)
    for method in METHODS if names is None else names:
        known = get_method(method).option_names()
        make_options(method, {name: value for name, value in chosen.items() if name in known})
    ways_of(names, chosen)
    return chosen


def _terrain(devices: str | None, network: Network, held: int, seed: int, build: bool) -> Terrain:
    if network.file is not None:
        return Terrain.of(network.build(None if devices is None else _count(devices), seed), held)
    if devices is None:
        raise ValueError("give the number of devices with --devices, or a file of edges with --network")
    count = _count(devices)
    name, chosen = network.topology(count)
    return terrain_of(name, count, held, seed=seed, build=build, **chosen)


def _known_terrain(scores: str, table: Layout, devices: str | None, network: Network, seed: int) -> Terrain:
    """Return where the devices of a file of scores would calibrate."""
    if scores.isdecimal() and not Path(scores).exists():
        raise ValueError(
            f"--scores is a file of scores, got the number {scores}; for {scores} scores on each device write "
            f"--scores-per-device {scores}"
        )
    if devices is not None:
        raise ValueError(f"--devices {devices} counts devices that --scores names already; leave it out")
    held = read_scores(scores, layout=table)
    built = network.connect(held, seed)
    return Terrain.with_scores(built, WeightedScores.of(held.for_devices(built.ids), built.ids))


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
    where = found.terrain
    origin = "" if not where.laws else f" (by a law of growth: {', '.join(sorted(where.laws))})"
    print(
        f"{where.map.name}: {where.devices:,} devices, {where.map.edges:,} edges, diameter {where.map.diameter:,}, "
        f"largest degree {where.map.largest_degree:,}{origin}\n"
        f"{where.n:,} scores; alpha {found.alpha:g} requires rank {found.required_rank:,}; link {found.link}\n"
        "bytes, largest: what a device sends, mean and most, a broadcast once. time: latency + bits x degree /\n"
        "bandwidth a round. on the wire, mesh time: of a real mesh, every copy with its headers, the table of sizes\n"
        "first, and floods for a server. sim: simulating it here. estimate: a mean over draws, or by a law of growth.\n"
    )
    console.print_table(COLUMNS, [row.cells() for row in found.rows], right=NUMBERS)
    print()
    for row in found.rows:
        if row.likely is not None and row.way.variant != AUTO:
            low, high = row.likely
            most = "" if row.at_most is None else f", at most {row.at_most[0]:,.0f}"
            print(f"~ {row.way}: {low:,.0f} to {high:,.0f} rounds in nine runs of ten{most}")
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
    names = [name for name in (rows[0] if rows else {}) if name not in ("likely_rounds", "at_most")]
    writer = csv.DictWriter(sys.stdout, names, extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
