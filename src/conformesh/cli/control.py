"""``conformesh control``: from a file of losses to a certified lambda."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from conformesh.api import control as agree
from conformesh.cli import console
from conformesh.cli.hosting import job
from conformesh.cli.loss_files import read_losses
from conformesh.cli.networks import Graph, Topology, TopologyOption, chosen_network
from conformesh.cli.options import checked_options, key_values, whole, with_flags
from conformesh.cli.panels import PROMISE, RUNNING
from conformesh.cli.promising import Rank, Target, chosen_target
from conformesh.cli.reading import Decimal, DeviceColumn, Separator
from conformesh.controlling import control_several
from conformesh.engines import ENGINES
from conformesh.engines.base import ids_here
from conformesh.io.tables import Layout
from conformesh.kernels.ranks import AUTO
from conformesh.losses import LOSSES, Loss, get_loss
from conformesh.progress import rounds_on_a_bar
from conformesh.quantities import in_bits, in_count, several
from conformesh.result.control import Control
from conformesh.result.several import Calibrations

METHOD = "e-dcp"  # no other adds up losses


@partial(with_flags, methods=(METHOD,))
def control(
    losses: Annotated[
        str,
        typer.Argument(
            metavar="LOSSES", help="CSV, Parquet or NPZ with device, item, lambda and loss; - reads CSV from stdin."
        ),
    ],
    risk: Annotated[
        str, typer.Option(metavar="<float>", help="The largest mean loss of new examples; several as 0.05,0.1.")
    ] = "0.1",
    bound: Annotated[str, typer.Option(metavar="<float>", help="The largest loss possible.")] = "1",
    topology: Topology = None,
    topology_option: TopologyOption = None,
    graph: Graph = None,
    loss: Annotated[
        str | None,
        typer.Option(help=f"What the losses are, kept for predict: {', '.join(LOSSES)}.", show_default=False),
    ] = None,
    loss_option: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY=VALUE", help="An option of the loss, as score=logit; may be repeated."),
    ] = None,
    out: Annotated[Path | None, typer.Option(metavar="FILE", help="Also save the result as JSON.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")] = False,
    target: Target = "sizes",
    rank: Rank = AUTO,
    strict: Annotated[
        bool,
        typer.Option("--strict", help="Too few items for the risk is an error, not +inf.", rich_help_panel=PROMISE),
    ] = False,
    device_column: DeviceColumn = None,
    separator: Separator = None,
    decimal: Decimal = None,
    seed: Annotated[str, typer.Option(metavar="<int>", help="Seed of the topology.", rich_help_panel=RUNNING)] = "0",
    engine: Annotated[
        str,
        typer.Option(metavar="|".join(ENGINES), help="Who runs the devices, as in calibrate.", rich_help_panel=RUNNING),
    ] = "simulator",
    **options: Any,
) -> None:
    """Agree on a lambda whose sets lose on average at most the risk.

    LOSSES has a row for each item (calibration example) and lambda: from this lambda on, until the item's next one, its
    loss is so large. Below its first lambda an item is taken to lose all that it can, unless that lambda is -inf.
    Losses must not rise as lambda grows.
    """
    with job(engine) as hosts:
        risks = [level.strip() for level in risk.split(",")]
        largest = _number(bound, "--bound")
        chosen = checked_options(METHOD, options)
        kind = named_loss(loss, loss_option or [])
        layout = Layout(device_column, separator=separator, decimal=decimal)
        whom = chosen_target(target, losses, layout)
        with console.warnings_in_one_line():
            held, host = hosts.load(
                losses,
                layout,
                lambda known: chosen_network(known, topology, topology_option or [], graph, whole(seed, "seed", 0)),
                read_losses,
            )
        network, own = host.network, held.for_devices(tuple(ids_here(host)))
        common: dict[str, Any] = {"loss": kind, "bound": largest, "target": whom, "rank": rank, "strict": strict}
        with rounds_on_a_bar(f"{METHOD} on {network.name}") as observer, console.warnings_in_one_line():
            host.observer = observer
            result: Control | Calibrations
            if len(risks) > 1:
                result = control_several(own, network, risks, METHOD, engine=host, **common, **chosen)
            else:
                result = agree(own, network, risks[0], METHOD, engine=host, **common, **chosen)
        if hosts.first:
            _show(result, out, as_json)


def named_loss(name: str | None, pairs: list[str]) -> Loss | None:
    """Build the loss that was named, with its options."""
    if name is None:
        if pairs:
            raise ValueError(f"--loss-option {pairs[0]} needs --loss to say whose option it is")
        return None
    return get_loss(name, **key_values(pairs, "loss option", {}))


def _number(text: str, what: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ValueError(f"{what} must be a number, got {text!r}") from None


def _show(result: Control | Calibrations, out: Path | None, as_json: bool) -> None:
    """Save and print what was found."""
    if out is not None:
        result.save(out)
    if as_json:
        print(result.to_json())
    elif isinstance(result, Control):
        console.print_facts("conformesh control", result.facts())
    else:
        _print_several(result)


def _print_several(results: Calibrations) -> None:
    rows = []
    for (_, risk), item in results.items.items():
        assert isinstance(item, Control)
        left, allowed = item.mean_losses
        shown = ("", "") if allowed < 0 else (f"{left:.4g}", f"{allowed:.4g}")
        rows.append((f"{risk:g}", f"{item.threshold:.6g}", item.certificate.kind, *shown, f"{item.scores:,}"))
    columns = ("risk", "lambda", "guarantee", "mean loss", "allowed", "items")
    console.print_table(columns, rows, right=("risk", "lambda", "mean loss", "allowed", "items"))
    cost = results.cost
    print(
        f"\none run for all: {several(cost.rounds, 'round')}, each device sent "
        f"{in_count(cost.numbers_per_device)} numbers, {in_bits(cost.bits_per_device)}"
    )
