"""Options of every command that reads a table: how it is laid out, where the reader should not find out by itself."""

from __future__ import annotations

from typing import Annotated

import typer

from conformesh.cli.panels import FILES

DeviceColumn = Annotated[
    str | None,
    typer.Option(
        metavar="COLUMN",
        help="The column that names each row's device; by default `device`, where there is one.",
        show_default=False,
        rich_help_panel=FILES,
    ),
]
ScoreColumn = Annotated[
    str | None,
    typer.Option(
        metavar="COLUMN", help="The column of scores; by default `score`.", show_default=False, rich_help_panel=FILES
    ),
]
IdColumn = Annotated[
    str | None,
    typer.Option(
        "--id",
        metavar="COLUMN",
        help="The column that names each row, which passes through; by default `id`, where there is one.",
        show_default=False,
        rich_help_panel=FILES,
    ),
]
LabelColumn = Annotated[
    str | None,
    typer.Option(
        metavar="COLUMN",
        help="The column of true labels; by default `label`, where there is one.",
        show_default=False,
        rich_help_panel=FILES,
    ),
]
OutputColumns = Annotated[
    str | None,
    typer.Option(
        metavar="A,B",
        help="Of regression, the columns that the score reads, in its order; by default prediction, or prediction and "
        "scale, or lower and upper, or all that are left.",
        show_default=False,
        rich_help_panel=FILES,
    ),
]
Keep = Annotated[
    str | None,
    typer.Option(
        metavar="A,B,...",
        help="Other columns that are no classes; they pass through.",
        show_default=False,
        rich_help_panel=FILES,
    ),
]
Separator = Annotated[
    str | None,
    typer.Option(
        metavar="CHARACTER",
        help="What separates cells of CSV: comma, semicolon, tab, pipe, space or the character; by default what the "
        "first line shows.",
        show_default=False,
        rich_help_panel=FILES,
    ),
]
Decimal = Annotated[
    str | None,
    typer.Option(
        metavar=".|,",
        help="The decimal sign of CSV; by default what the numbers show.",
        show_default=False,
        rich_help_panel=FILES,
    ),
]


def named(columns: str | None) -> tuple[str, ...]:
    """Return the columns of a list with commas."""
    return tuple(name.strip() for name in (columns or "").split(",") if name.strip())
