"""Which promise the command line means: a target, a rank rule and a confidence over the calibration draw."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from conformesh.cli.panels import PROMISE
from conformesh.io.score_files import column_named
from conformesh.io.tables import Layout, read_table
from conformesh.kernels.ranks import CHOSEN_MIXTURES, CHOSEN_RANK_RULES, Requirement, make_requirement
from conformesh.table import shares_in

Target = Annotated[
    str,
    typer.Option(
        metavar=f"{'|'.join(CHOSEN_MIXTURES)}|COLUMN|FILE",
        help="Where a new example comes from: a device in proportion to its scores, to its scores plus one, any device "
        "alike, or with the shares in a column of SCORES or in a file with the columns device and share.",
        rich_help_panel=PROMISE,
    ),
]
Rank = Annotated[
    str,
    typer.Option(
        metavar="|".join(CHOSEN_RANK_RULES),
        help="The rule for the required rank; auto is the proven one that asks for less.",
        rich_help_panel=PROMISE,
    ),
]
PacConfidence = Annotated[
    str | None,
    typer.Option(
        metavar="<float>",
        help="Coverage with this probability over the draw of the scores, not on average over it; it is not 1 - alpha.",
        rich_help_panel=PROMISE,
        show_default=False,
    ),
]
Weight = Annotated[
    str | None,
    typer.Option(
        metavar="COLUMN",
        help="How much each score weighs: how much likelier such an example is among new ones, up to a factor.",
        rich_help_panel=PROMISE,
        show_default=False,
    ),
]
WeightBound = Annotated[
    float | None,
    typer.Option(
        metavar="<float>",
        help="The largest weight that any example may have; needed with --weight.",
        rich_help_panel=PROMISE,
        show_default=False,
    ),
]


def chosen_target(target: str, scores: str | None, layout: Layout | None = None) -> str | dict[str, Any]:
    """Return a target by name, or the shares that a file or a column of the scores holds."""
    if target in CHOSEN_MIXTURES:
        return target
    if Path(target).is_file():
        return _shares(target, "share", layout)
    if scores is not None and Path(scores).is_file():
        return _shares(scores, target, layout)
    raise ValueError(
        f"--target must be {', '.join(CHOSEN_MIXTURES)}, a column of the file of scores or a file, got {target!r}"
    )


def chosen_promise(
    target: str, rank: str, pac_confidence: str | None, scores: str | None = None, layout: Layout | None = None
) -> Requirement:
    """Return the promise that was asked for."""
    return make_requirement(chosen_target(target, scores, layout), rank, pac_confidence)


def _shares(source: str, column: str, layout: Layout | None) -> dict[str, Any]:
    table = read_table(source, f"columns 'device' and {column!r}", layout=layout)
    names, index = table.names(column_named(table, "device", None if layout is None else layout.device))
    values = table.numbers(column)
    return shares_in({name: values[index == k] for k, name in enumerate(names)}, f"{source}: {column}")
