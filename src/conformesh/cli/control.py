"""``conformesh control``: from a file of losses to a certified lambda."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, BinaryIO

import numpy as np

from conformesh.cli import console, options, pipeline
from conformesh.cli.command import ListOption, Number, Option, command
from conformesh.cli.options import Guarantee, Network, Output, Run, key_values
from conformesh.io.score_files import column_named
from conformesh.io.tables import Layout, Table, read_table, same_length
from conformesh.losses import LOSSES, Loss, Steps, get_loss
from conformesh.names import natural_order
from conformesh.quantities import in_bits, in_count, several
from conformesh.result.control import Control
from conformesh.result.several import Calibrations

METHOD = "e-dcp"  # no other adds up losses; the default of `Run`
COLUMNS = ("item", "lambda", "loss")
NEEDED = "columns 'device', 'item', 'lambda' and 'loss', one row per item and lambda"


@command(
    options.scores_file(
        "losses", "LOSSES", "CSV, Parquet or NPZ with device, item, lambda and loss; - reads CSV from stdin."
    ),
    ListOption(
        "--risk <float>", "The largest mean loss of new examples; several as 0.05,0.1 or repeated.", default=["0.1"]
    ),
    Option("--bound <float>", "The largest loss possible.", type=Number(), default=1.0),
    options.network(),
    Option("--loss NAME", f"What the losses are, kept for predict: {', '.join(LOSSES)}."),
    Option("--loss-option KEY=VALUE", "An option of the loss, as score=logit; repeatable."),
    options.output(),
    options.guarantee("mixture", "rank_rule", "strict"),
    options.table("device", "share"),
    options.run(options.seed(), options.engine(), options.method_options(METHOD)),
)
def control(
    losses: str,
    risk: tuple[str, ...],
    bound: float,
    network: Network,
    loss: str | None,
    loss_option: tuple[str, ...],
    guarantee: Guarantee,
    table: Layout,
    run: Run,
    output: Output,
) -> None:
    """Agree on a lambda whose sets lose on average at most the risk.

    LOSSES has a row for each item (calibration example) and lambda: from this lambda on, until the item's next one, its
    loss is so large. Below its first lambda an item is taken to lose all that it can, unless that lambda is -inf.
    Losses must not rise as lambda grows.
    """
    with pipeline.job(run.engine) as hosts:
        chosen = run.checked_options()
        kind = _loss(loss, loss_option)
        mixture = guarantee.shares(losses, table)
        held, host, ids = pipeline.load(
            hosts, losses, table, lambda known: network.connect(known, run.seed or 0), read_losses
        )
        asked: dict[str, Any] = {"loss": kind, "bound": bound, "target": mixture, "rank": guarantee.rank_rule}
        with pipeline.observed(host, METHOD):
            own = held.for_devices(ids)
            result = pipeline.control_losses(own, host, risk, METHOD, strict=guarantee.strict, **asked, **chosen)
        if hosts.first:
            output.show(result, _print)


def _loss(name: str | None, pairs: tuple[str, ...]) -> Loss | None:
    """Build the loss that was named, with its options."""
    if name is None:
        if pairs:
            raise ValueError(f"--loss-option {pairs[0]} needs --loss to say whose option it is")
        return None
    return get_loss(name, **key_values(pairs, "loss option", {}))


def _print(result: Control | Calibrations) -> None:
    if isinstance(result, Control):
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


# --- losses from files: a row for each item and lambda -------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class LossFile:
    """The losses of every device that has some.

    Attributes
    ----------
    devices
        Device names in natural order.
    steps
        The losses of each device, in that order.
    name
        Where they come from, for errors.
    """

    devices: tuple[str, ...]
    steps: tuple[Steps, ...]
    name: str

    def for_devices(self, ids: tuple[str, ...]) -> list[Steps]:
        """Return the losses of each of `ids`, none where a device has no items."""
        held = dict(zip(self.devices, self.steps, strict=True))
        return [held.get(device, Steps.none()) for device in ids]


def read_losses(source: str, stdin: BinaryIO | None = None, layout: Layout | None = None) -> LossFile:
    """Read losses from CSV, Parquet or NPZ; "-" reads CSV from standard input. Whether they fit comes later."""
    layout = layout or Layout()
    return losses_in(read_table(source, NEEDED, stdin, layout), layout)


def losses_in(table: Table, layout: Layout) -> LossFile:
    """Sort the rows of a table by device and item."""
    device = column_named(table, "device", layout.device)
    same_length(table, (device, *COLUMNS))
    names, index = table.names(device)
    items, which = table.names("item")
    lambdas, losses = table.numbers("lambda"), table.numbers("loss")
    held = {}
    for k, name in enumerate(names):
        mine = index == k
        try:
            held[name] = Steps.of_table(np.array(items)[which[mine]], lambdas[mine], losses[mine])
        except ValueError as problem:
            raise ValueError(f"{table.name}: device {name}, {problem}") from None
    devices = natural_order(names)
    return LossFile(devices, tuple(held[name] for name in devices), table.name)
