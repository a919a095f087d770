"""``conformesh control``: from a file of losses to a certified lambda."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, BinaryIO, NamedTuple

import numpy as np
from numpy.typing import NDArray

from conformesh import api
from conformesh.cli import hosts, options
from conformesh.cli.command import GUARANTEE, ListOption, Number, Option, OptionGroup, command
from conformesh.cli.options import GuaranteeOptions, NetworkOptions, OutputOptions, RunOptions, read_key_values
from conformesh.cli.results import print_lambda_tests, print_result
from conformesh.common.names import natural_order
from conformesh.files.score_files import extra_columns, find_column
from conformesh.files.tables import FileColumns, FileLayout, check_equal_lengths, read_table
from conformesh.kernels.family_wise import TESTINGS
from conformesh.pipeline.lambda_tests import ASCENDING, DESCENDING
from conformesh.results.lambda_tests import LambdaTests
from conformesh.results.result import Result
from conformesh.scores.losses import LOSSES, Loss, StepLosses, get_loss
from conformesh.table import Table as Rows

_METHOD = "e-dcp"  # no other adds up losses; the default of `Run`
_LOSS = "loss"  # the column of the losses, where there is one risk


class _TestOptions(NamedTuple):
    """How a grid of lambdas is tested, where losses need not be monotone."""

    non_monotone: bool = False
    pac_confidence: str | None = None
    grid: tuple[str, ...] = ()
    testing: str | None = None

    def levels(self, risk: tuple[str, ...]) -> tuple[str, ...] | dict[str, str]:
        """Return the risks as given, or by the column of each."""
        pairs = [one.rpartition("=") for one in risk]
        if not any(equals for _, equals, _ in pairs):
            return risk
        if not self.non_monotone:
            raise ValueError(f"--risk {risk[0]} names a column, for several risks at once, which needs --non-monotone")
        if wrong := next((one for one, (name, _, _) in zip(risk, pairs, strict=True) if not name), None):
            raise ValueError(f"--risk must be COLUMN=RISK for each of several risks, got {wrong!r}")
        if len({name for name, _, _ in pairs}) < len(pairs):
            raise ValueError(f"--risk must name each column once, got {', '.join(risk)}")
        return {name: level for name, _, level in pairs}

    def keywords(self) -> dict[str, Any]:
        """Return what was asked for as keywords of `control`."""
        grid: Any = None
        if self.grid:
            word = len(self.grid) == 1 and self.grid[0] in (ASCENDING, DESCENDING)
            grid = self.grid[0] if word else [_number(one) for one in self.grid]
        given = {"pac_confidence": self.pac_confidence, "grid": grid, "testing": self.testing}
        chosen = {name: value for name, value in given.items() if value is not None}
        if chosen and not self.non_monotone:
            raise ValueError(f"--{next(iter(chosen)).replace('_', '-')} needs --non-monotone")
        if self.non_monotone and not self.grid:
            raise ValueError(
                "--non-monotone needs --grid: the lambdas in the order of testing, the one most likely to keep the "
                f"risk first, or {DESCENDING} or {ASCENDING} for all those of the file"
            )
        if self.non_monotone and self.pac_confidence is None:
            raise ValueError("--non-monotone needs --pac-confidence, such as 0.9")
        return {"monotone": not self.non_monotone, **chosen}


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ValueError(f"--grid must be numbers, or {ASCENDING} or {DESCENDING}, got {text!r}") from None


def _test_options() -> list[Option]:
    found: list[Option] = [
        Option(
            "--non-monotone", "Learn-then-Test: losses need not be monotone in lambda; each lambda of a grid is tested."
        ),
        Option(
            "--pac-confidence <float>",
            "With --non-monotone: the probability over the items that all certified lambdas keep the risk.",
        ),
        ListOption(
            f"--grid A,B,...|{DESCENDING}|{ASCENDING}",
            "With --non-monotone: the lambdas in the order of testing, beginning with the one that is most likely to "
            "keep the risk; or all lambdas of the file in descending or ascending order. Choose without these losses.",
        ),
        Option(
            f"--testing {'|'.join(TESTINGS)}",
            "With --non-monotone: fixed-sequence (default) tests in the order of the grid up to the first lambda that "
            "fails; holm does not depend on the order, but requires smaller p-values.",
        ),
    ]
    for option in found:
        option.panel = GUARANTEE
    return found


@command(
    options.scores_argument(
        "losses", "LOSSES", "CSV, Parquet or NPZ with device, item, lambda and loss; - reads CSV from stdin."
    ),
    ListOption(
        "--risk <float>",
        "The largest mean loss of new examples; several as 0.05,0.1 or repeated. With --non-monotone also "
        "COLUMN=RISK,... for several losses, whose risks are controlled at the same lambda.",
        default=["0.1"],
    ),
    Option("--bound <float>", "The largest loss possible.", type=Number(), default=1.0),
    options.network_options(),
    Option("--loss NAME", f"What the losses are, kept for predict: {', '.join(LOSSES)}."),
    Option("--loss-option KEY=VALUE", "An option of the loss, as score=logit; repeatable."),
    options.output_options(),
    options.guarantee_options(
        "mixture", "rank_rule", "group_rule", "weight_bound", "test_weights", "centres", "bandwidth", "strict"
    ),
    OptionGroup("tests", _TestOptions, _test_options()),
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
    tests: _TestOptions,
    table: FileLayout,
    run: RunOptions,
    output: OutputOptions,
) -> None:
    """Agree on a lambda whose sets lose on average at most the risk.

    LOSSES has a row for each item (calibration example) and lambda: from this lambda on, until the item's next one, its
    loss is so large. Below its first lambda an item is taken to lose all that it can, unless that lambda is -inf.
    Losses must not rise as lambda grows. Columns of groups, weights and inputs say the same in all rows of an item.

    With --non-monotone losses may rise and fall. Each lambda of --grid is tested, and with probability --pac-confidence
    over the items all certified lambdas keep the risk. LOSSES then needs a row for each item and each lambda.
    """
    with hosts.start_job(run.engine) as job:
        chosen = run.checked_options()
        kind = _loss(loss, loss_option)
        asked = guarantee.keywords(losses, table)
        levels = tests.levels(risk)
        columns = (*levels,) if isinstance(levels, dict) else (_LOSS,)
        read = partial(_read_losses, columns=columns)
        file, engine = job.load(losses, table, partial(network.connect, seed=run.seed or 0), read)
        each = [hosts.select_devices(one, engine.network.local_ids(engine.rows)) for one in file.tables]
        data = each[0]
        with hosts.show_progress(engine, _METHOD):
            result: Result | LambdaTests = api.control(
                dict(zip(levels, each, strict=True)) if isinstance(levels, dict) else data,
                engine.network,
                levels,
                _METHOD,
                loss=kind,
                bound=bound,
                weight=data.weight,
                inputs=data.inputs,
                engine=engine,
                **tests.keywords(),
                **asked,
                **chosen,
            )
        if job.first:
            output.show(result, print_lambda_tests if isinstance(result, LambdaTests) else print_result)


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
    tables
        For each risk: the items, grouped by device in natural order of names: losses, and the columns that were asked
        for.
    name
        Where they come from, for errors.
    """

    tables: tuple[Rows, ...]
    name: str

    @property
    def devices(self) -> tuple[str, ...]:
        """Device names in natural order."""
        return self.tables[0].names or ()


def _read_losses(
    source: str, stdin: BinaryIO | None = None, layout: FileLayout | None = None, columns: Sequence[str] = (_LOSS,)
) -> _LossFile:
    """Read losses from CSV, Parquet or NPZ; "-" reads CSV from standard input. Whether they fit comes later."""
    layout = layout or FileLayout()
    needed = ", ".join(map(repr, ("device", "item", "lambda", *columns[:-1])))
    words = f"columns {needed} and {columns[-1]!r}, one row per item and lambda"
    table = read_table(source, words, stdin, layout)
    return _LossFile(tuple(_losses_in(table, layout, column) for column in columns), table.name)


def _losses_in(table: FileColumns, layout: FileLayout, column: str) -> Rows:
    """Sort the rows of a table by device and item."""
    device = find_column(table, "device", layout.device)
    check_equal_lengths(table, (device, "item", "lambda", column, *layout.beside))
    names, index = table.names(device)
    items, which = table.names("item")
    lambdas, losses = table.numbers("lambda"), table.numbers(column)
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
    return replace(found, **extra_columns(table, layout, np.concatenate(rows)))


def _check_items(table: FileColumns, layout: FileLayout, first_row: NDArray[np.int64]) -> None:
    """Refuse a column beside the losses that differs between the rows of an item."""
    for column in layout.beside:
        cells = np.asarray(table.column(column))
        if len(wrong := np.flatnonzero(cells != cells[first_row])):
            raise ValueError(f"{table.where(int(wrong[0]))}: {column} must be the same in all rows of an item")
