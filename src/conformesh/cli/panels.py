"""Help in panels: what everybody needs first, then the promise, files, running, and each method's own options.

An option says its panel with typer's `rich_help_panel`; one without is in the first. The others follow in the order of
their first options. On a terminal panels are boxes, in a pipe sections of plain text.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from typer.core import TyperCommand

PROMISE = "The promise"
FILES = "Files and columns"
RUNNING = "Running"
MESH = "Hosts and certificates"
SHARED = "Options of several methods"
FIRST = ("Arguments", "Options")

Line = tuple[str, str]  # how an option is written, and what it means


def panel_of(methods: Sequence[str]) -> str:
    """Return the panel of an option that these methods have.

    >>> panel_of(["h-dcp"]), panel_of(["h-dcp", "wfcp"])
    ('Options of h-dcp', 'Options of several methods')
    """
    return f"Options of {methods[0]}" if len(methods) == 1 else SHARED


class Panelled(TyperCommand):
    """A command whose help is in panels."""

    def panels(self, ctx: Any) -> dict[str, list[Line]]:
        """Return the lines of every panel: arguments, what has no panel of its own, and the others as they come."""
        found: dict[str, list[Line]] = {name: [] for name in FIRST}
        for parameter in self.get_params(ctx):
            line = parameter.get_help_record(ctx)
            if line is not None:
                usual = FIRST[parameter.param_type_name == "option"]
                found.setdefault(getattr(parameter, "rich_help_panel", None) or usual, []).append(line)
        shared = found.pop(SHARED, [])
        return {name: lines for name, lines in (*found.items(), (SHARED, shared)) if lines}

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write a section for every panel."""
        for name, lines in self.panels(ctx).items():
            with formatter.section(name):
                formatter.write_dl(lines)

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Write plain text, or draw boxes where somebody is looking."""
        if self.rich_markup_mode is None:
            super().format_help(ctx, formatter)
        else:
            self._draw(ctx)

    def _draw(self, ctx: Any) -> None:
        from rich.console import Console
        from rich.padding import Padding
        from rich.panel import Panel
        from rich.table import Table
        from rich.text import Text

        screen = Console()
        screen.print(Padding(Text(self.get_usage(ctx), style="bold"), (1, 1, 0, 1)))
        for paragraph in (self.help or "").strip().split("\n\n"):
            screen.print(Padding(Text(" ".join(paragraph.split())), (1, 1, 0, 1)))
        screen.print()
        panels = self.panels(ctx)
        most = 25 if screen.width < 100 else 40
        every = [[(broken(option, most), meaning) for option, meaning in lines] for lines in panels.values()]
        width = max(len(row) for lines in every for option, _ in lines for row in option.splitlines())
        for name, lines in zip(panels, every, strict=True):
            table = Table.grid(padding=(0, 2, 0, 0))
            table.add_column(style="bold cyan", no_wrap=True, width=width)
            table.add_column(ratio=1)
            for option, meaning in lines:
                table.add_row(Text(option), Text(meaning))
            table.expand = True
            screen.print(Panel(table, title=Text(name, style="bold"), title_align="left", border_style="dim"))


def broken(option: str, width: int) -> str:
    """Return how an option is written in lines that are not longer than this, where spaces and bars allow it.

    >>> print(broken("--bound sound|paper|cumulative|row", 25))
    --bound sound|paper|
      cumulative|row
    """
    words = option.replace("|", "|\0").replace(" ", " \0").split("\0")
    lines = [""]
    for word in words:
        if lines[-1].strip() and len((lines[-1] + word).rstrip()) > width:
            lines.append("  ")
        lines[-1] += word
    return "\n".join(line.rstrip() for line in lines)
