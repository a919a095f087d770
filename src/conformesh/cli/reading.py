"""Options of every command that reads a table: how it is laid out, where the reader should not find out by itself."""

from __future__ import annotations

from typing import Annotated

import typer

PANEL = "How tables are laid out"

DeviceColumn = Annotated[
    str | None,
    typer.Option(
        metavar="COLUMN",
        help="The column that names each row's device; by default `device`, where there is one.",
        show_default=False,
        rich_help_panel=PANEL,
    ),
]
ScoreColumn = Annotated[
    str | None,
    typer.Option(
        metavar="COLUMN", help="The column of scores; by default `score`.", show_default=False, rich_help_panel=PANEL
    ),
]
IdColumn = Annotated[
    str | None,
    typer.Option(
        "--id",
        metavar="COLUMN",
        help="The column that names each row, which passes through; by default `id`, where there is one.",
        show_default=False,
        rich_help_panel=PANEL,
    ),
]
LabelColumn = Annotated[
    str | None,
    typer.Option(
        metavar="COLUMN",
        help="The column of true labels; by default `label`, where there is one.",
        show_default=False,
        rich_help_panel=PANEL,
    ),
]
Keep = Annotated[
    str | None,
    typer.Option(
        metavar="A,B,...",
        help="Other columns that are no classes; they pass through.",
        show_default=False,
        rich_help_panel=PANEL,
    ),
]
Separator = Annotated[
    str | None,
    typer.Option(
        metavar="CHARACTER",
        help="What separates cells of CSV: comma, semicolon, tab, pipe, space or the character; by default what the "
        "first line shows.",
        show_default=False,
        rich_help_panel=PANEL,
    ),
]
Decimal = Annotated[
    str | None,
    typer.Option(
        metavar=".|,",
        help="The decimal sign of CSV; by default what the numbers show.",
        show_default=False,
        rich_help_panel=PANEL,
    ),
]


def named(columns: str | None) -> tuple[str, ...]:
    """Return the columns of a list with commas."""
    return tuple(name.strip() for name in (columns or "").split(",") if name.strip())
