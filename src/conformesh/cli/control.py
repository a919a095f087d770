"""``conformesh control``: from a file of losses to a certified lambda."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

from conformesh import api
from conformesh.cli import hosts, options
from conformesh.cli.command import ListOption, Number, Option, command
from conformesh.cli.options import GuaranteeOptions, NetworkOptions, OutputOptions, RunOptions, read_key_values
from conformesh.cli.results import print_result
from conformesh.common.names import natural_order
from conformesh.files.score_files import extra_columns, find_column
from conformesh.files.tables import FileColumns, FileLayout, check_equal_lengths, read_table
from conformesh.scores.losses import LOSSES, Loss, StepLosses, get_loss
from conformesh.table import Table as Rows

_METHOD = "e-dcp"  # no other adds up losses; the default of `Run`
_COLUMNS = ("item", "lambda", "loss")
_NEEDED = "columns 'device', 'item', 'lambda' and 'loss', one row per item and lambda"


@command(
    options.scores_argument(
        "losses", "LOSSES", "CSV, Parquet or NPZ with device, item, lambda and loss; - reads CSV from stdin."
    ),
    ListOption(
        "--risk <float>", "The largest mean loss of new examples; several as 0.05,0.1 or repeated.", default=["0.1"]
    ),
    Option("--bound <float>", "The largest loss possible.", type=Number(), default=1.0),
    options.network_options(),
    Option("--loss NAME", f"What the losses are, kept for predict: {', '.join(LOSSES)}."),
    Option("--loss-option KEY=VALUE", "An option of the loss, as score=logit; repeatable."),
    options.output_options(),
    options.guarantee_options(
        "mixture", "rank_rule", "group_rule", "weight_bound", "test_weights", "centres", "bandwidth", "strict"
    ),
    options.table_options("device", "group", "weight", "input", "share"),
    options.run_options(options.seed_option(), options.engine_option(), options.method_options(_METHOD)),
)
def control(
    losses: str,
    risk: tuple[str, ...],
    bound: float,
    network: NetworkOptions,
    loss: str | None,
    loss_option: tuple[str, ...],
    guarantee: GuaranteeOptions,
    table: FileLayout,
    run: RunOptions,
    output: OutputOptions,
) -> None:
    """Agree on a lambda whose sets lose on average at most the risk.

    LOSSES has a row for each item (calibration example) and lambda: from this lambda on, until the item's next one, its
    loss is so large. Below its first lambda an item is taken to lose all that it can, unless that lambda is -inf.
    Losses must not rise as lambda grows. Columns of groups, weights and inputs say the same in all rows of an item.
    """
    with hosts.start_job(run.engine) as job:
        chosen = run.checked_options()
        kind = _loss(loss, loss_option)
        asked = guarantee.keywords(losses, table)
        file, engine = job.load(losses, table, partial(network.connect, seed=run.seed or 0), _read_losses)
        data = hosts.select_devices(file.table, engine.network.local_ids(engine.rows))
        with hosts.show_progress(engine, _METHOD):
            result = api.control(
                data,
                engine.network,
                risk,
                _METHOD,
                loss=kind,
                bound=bound,
                weight=data.weight,
                inputs=data.inputs,
                engine=engine,
                **asked,
                **chosen,
            )
        if job.first:
            output.show(result, print_result)


def _loss(name: str | None, pairs: tuple[str, ...]) -> Loss | None:
    """Build the loss that was named, with its options."""
    if name is None:
        if pairs:
            raise ValueError(f"--loss-option {pairs[0]} needs --loss to say whose option it is")
        return None
    return get_loss(name, **read_key_values(pairs, "loss option", {}))


# --- losses from files: a row for each item and lambda -------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class _LossFile:
    """The losses of every device that has some.

    Attributes
    ----------
    table
        The items, grouped by device in natural order of names: losses, and the columns that were asked for.
    name
        Where they come from, for errors.
    """

    table: Rows
    name: str

    @property
    def devices(self) -> tuple[str, ...]:
        """Device names in natural order."""
        return self.table.names or ()


def _read_losses(source: str, stdin: BinaryIO | None = None, layout: FileLayout | None = None) -> _LossFile:
    """Read losses from CSV, Parquet or NPZ; "-" reads CSV from standard input. Whether they fit comes later."""
    layout = layout or FileLayout()
    return _losses_in(read_table(source, _NEEDED, stdin, layout), layout)


def _losses_in(table: FileColumns, layout: FileLayout) -> _LossFile:
    """Sort the rows of a table by device and item."""
    device = find_column(table, "device", layout.device)
    check_equal_lengths(table, (device, *_COLUMNS, *layout.beside))
    names, index = table.names(device)
    items, which = table.names("item")
    lambdas, losses = table.numbers("lambda"), table.numbers("loss")
    devices, steps, rows = natural_order(names), [], [np.empty(0, dtype=np.int64)]
    first_row = np.arange(len(index))
    for name in devices:
        local = np.flatnonzero(index == names.index(name))
        own = np.array(items)[which[local]]
        try:
            steps.append(StepLosses.of_table(own, lambdas[local], losses[local]))
        except ValueError as problem:
            raise ValueError(f"{table.name}: device {name}, {problem}") from None
        _, first, item = np.unique(
            own, return_index=True, return_inverse=True
        )  # the order of the items of `StepLosses`
        rows.append(local[first])
        first_row[local] = local[first][item]
    _check_items(table, layout, first_row)
    offsets = np.cumsum([0, *map(len, steps)])
    found = Rows(devices, offsets, losses=tuple(steps))
    return _LossFile(replace(found, **extra_columns(table, layout, np.concatenate(rows))), table.name)


def _check_items(table: FileColumns, layout: FileLayout, first_row: NDArray[np.int64]) -> None:
    """Refuse a column beside the losses that differs between the rows of an item."""
    for column in layout.beside:
        cells = np.asarray(table.column(column))
        if len(wrong := np.flatnonzero(cells != cells[first_row])):
            raise ValueError(f"{table.where(int(wrong[0]))}: {column} must be the same in all rows of an item")
