"""The command line: a thin layer over the library.

A command is a function with annotated parameters and a line in `COMMANDS`. Its module is imported when the command is
called, so that ``conformesh --help`` answers without loading what only one command needs. A command with commands of
its own has a table in `GROUPS`; its function runs first, and alone where none of them is named.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from keyword import iskeyword
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from conformesh._version import __version__
from conformesh.cli import console
from conformesh.cli.panels import Panelled
from conformesh.cli.viewing import spelled_out

Table = dict[
    str, tuple[str, str]
]  # name -> (module of the function of that name, one line of help); a keyword of Python has a _, - becomes _

COMMANDS: Table = {
    "demo": ("demo", "Every method on real images: a table and two pictures."),
    "calibrate": ("calibrate", "Agree on a threshold from a file of scores."),
    "control": ("control", "Agree on a lambda from a file of losses: risk control."),
    "predict": ("predict", "Turn model outputs into prediction sets."),
    "evaluate": ("evaluate", "Coverage and size of a result's sets on labelled outputs."),
    "detect": ("detect", "Flag anomalies among test points, with few false alarms."),
    "compare": ("compare", "Every method on every topology with your scores, and which to use."),
    "plan": ("plan", "What each method would cost on a network and a link, without running it."),
    "privacy": ("privacy", "Who learns what from a run: of a result, or before it is made."),
    "online": ("online", "Streams of scores: thresholds that follow them, with a bound on misses."),
    "sweep": ("sweep", "Many networks, methods, alphas and draws in one call."),
    "node": ("node", "Run one device of a mesh."),
    "mesh": ("mesh", "One process per device: make the folders of a mesh, change and check them."),
    "view": ("view", "See a mesh that runs, or runs that were recorded, in a browser."),
    "reproduce": ("reproduce", "Redo the paper's figures and tables, beside the published points."),
    "methods": ("listing", "The methods, what they promise and what they send."),
    "topologies": ("listing", "The graphs that have a name, and their options."),
    "scores": ("listing", "The nonconformity scores, and how to make some."),
    "weights": ("listing", "The consensus weights."),
    "aggregators": ("listing", "The ways to add up over all devices."),
    "engines": ("listing", "What can run the devices."),
}
GROUPS: dict[str, Table] = {
    "scores": {
        "make": ("scores", "Score a model's outputs, and spread the scores over devices."),
        "import": ("import_scores", "Scores that saved objects of MAPIE, TorchCP or crepes keep."),
        "synthetic": ("scores", "Outputs of a synthetic model, as hard as a real one's."),
        "train": ("train", "Train a small network on images, and save its outputs."),
    },
    "mesh": {
        "init": ("mesh", "Make the folders of a new mesh, one per device."),
        "add": ("mesh", "Add a device."),
        "revoke": ("mesh", "Take a device out, and its certificate with it."),
        "renew": ("mesh", "Make a new certificate for a device."),
        "hand": ("mesh", "Hand a newer roster to a device, which passes it on."),
        "put-scores": ("mesh", "Replace the scores of a device in one step."),
        "epoch": ("mesh_epoch", "Show or declare the last closed epoch of a private mesh."),
        "up": ("mesh_up", "Start all devices on this machine, and show how they agree."),
        "status": ("mesh_status", "How every device is, as seen from here."),
        "check": ("mesh", "Files, certificates, scores, agreement, and who answers."),
    },
}

# Boxes and colours are for people: in a pipe help is plain text.
SETTINGS: dict[str, Any] = {
    "rich_markup_mode": "rich" if sys.stdout.isatty() else None,
    "pretty_exceptions_enable": False,
}


class Commands(TyperGroup):
    """The commands, each loaded when called; every error is one line."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Put the real command in the place of its line in the help."""
        name, listed, rest = super().resolve_command(ctx, args)
        table = GROUPS.get(self.name or "", COMMANDS)
        return name, _load(table, name) if name in table else listed, rest

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        windows_expand_args: bool = True,
        **extra: Any,
    ) -> Any:
        """Run, and turn whatever happens into output, one line on stderr and an exit code."""
        given = spelled_out(sys.argv[1:] if args is None else args)
        debug = "--debug" in given  # may stand anywhere, also behind the command
        given = [word for word in given if word != "--debug"] or ["--help"]
        with console.errors_in_one_line(debug), console.notes_in_one_line():
            code = super().main(given, "conformesh", complete_var, False, windows_expand_args, **extra)
            sys.stdout.flush()
        sys.exit(code if isinstance(code, int) else 0)


def _load(table: Table, name: str) -> Any:
    module, line = table[name]
    own = f"{name}_" if iskeyword(name) else name.replace("-", "_")
    function: Callable[..., None] = getattr(import_module(f"conformesh.cli.{module}"), own)
    if table is COMMANDS and name in GROUPS:
        return typer.main.get_command(_group(name, function, invoke_without_command=True, add_completion=False))
    alone = typer.Typer(add_completion=False, **SETTINGS)
    alone.command(name, cls=Panelled, short_help=line)(function)
    return typer.main.get_command(alone)


def _group(name: str, function: Callable[..., None], **more: Any) -> typer.Typer:
    """Return a command with commands of its own, which are only lines of help until one is called."""
    group = typer.Typer(cls=Commands, name=name, **SETTINGS, **more)
    group.callback()(function)
    for command, (_, line) in GROUPS.get(name, COMMANDS).items():
        group.command(command, help=line)(lambda: None)
    return group


def _root(
    version: Annotated[bool, typer.Option("--version", help="Print the version and stop.")] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error; may stand anywhere.")] = False,
) -> None:
    """Conformal prediction for devices that cannot pool their data and talk only to their neighbours."""
    if version:
        print(f"conformesh {__version__}")
        raise typer.Exit


app = _group("conformesh", _root, invoke_without_command=True)
own_process = False  # whether the process is there for the command line alone, so that a command may become another


def main() -> None:
    """Run the command line."""
    global own_process  # noqa: PLW0603 - said once, by the entry point
    own_process = True
    app()
