"""The command line: a thin layer over the library.

A command is a function under `command.command` and a line in `COMMANDS`. Its module is imported when the command is
called, so that ``conformesh --help`` answers without loading what only one command needs. A command with commands of
its own has a table in `SUBCOMMANDS`; its function runs first, and alone where none of them is named.

The function of a command has the name of the command, also where the library has a function of that name: `calibrate`
here reads files and prints, and calls `conformesh.calibrate`. Options are declared in `options`, printing is in
`console` and `results`. Commands may import every package; nothing imports them.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Any

import click

from conformesh import __version__
from conformesh.cli import command, console
from conformesh.cli.recording import with_default_address

# name -> (module with the function of that name, one line of help); a keyword of Python has a _ behind it, - becomes _
_CommandTable = dict[str, tuple[str, str]]

COMMANDS: _CommandTable = {
    "demo": ("demo", "Every method on real images: a table and two pictures."),
    "calibrate": ("calibrate", "Agree on a threshold from a file of scores."),
    "control": ("control", "Agree on a lambda from a file of losses: risk control."),
    "predict": ("predict", "Turn model outputs into prediction sets."),
    "evaluate": ("evaluate", "Coverage and size of a result's sets on labelled outputs."),
    "detect": ("detect", "Flag anomalies among test points, with a bound on the false discovery rate."),
    "quantiles": ("quantiles", "Quantiles of any column over all devices, exact or private."),
    "compare": ("compare", "Every method on every topology with your scores, and which to use."),
    "plan": ("plan", "What each method would cost on a network and a link, without running it."),
    "privacy": ("privacy", "Who learns what from a run, what noise protects and costs, and what is left to spend."),
    "online": ("online", "Streams of scores: thresholds that follow them, with a bound on misses."),
    "sweep": ("sweep", "Many networks, methods, alphas and draws in one call."),
    "node": ("node", "Run one device of a mesh."),
    "mesh": ("mesh", "One process per device: make the folders of a mesh, change and check them."),
    "view": ("view", "See a mesh that runs, or runs that were recorded, in a browser."),
    "reproduce": ("reproduce", "Redo the paper's figures and tables, beside the published points."),
    "methods": ("listing", "The methods, what they guarantee and what they send."),
    "topologies": ("listing", "The graphs that have a name, and their options."),
    "scores": ("listing", "The nonconformity scores, and how to make some."),
    "adaptations": ("listing", "The ways to adapt scores to each device, for devices that differ."),
    "weights": ("listing", "The consensus weights."),
    "aggregators": ("listing", "The ways to add up over all devices."),
    "engines": ("listing", "What can run the devices."),
}
SUBCOMMANDS: dict[str, _CommandTable] = {
    "scores": {
        "make": ("scores", "Score a model's outputs, and spread the scores over devices."),
        "import": ("scores", "Scores that saved objects of MAPIE, TorchCP or crepes keep."),
        "synthetic": ("scores", "Outputs of a synthetic model, as hard as a real one's."),
        "train": ("train", "Train a small network on images, and save its outputs."),
    },
    "mesh": {
        "init": ("mesh", "Make the folders of a new mesh, one per device."),
        "settings": ("mesh", "List the settings of a device, with their defaults."),
        "add": ("mesh", "Add a device."),
        "revoke": ("mesh", "Take a device out, and its certificate with it."),
        "renew": ("mesh", "Make a new certificate for a device."),
        "hand": ("mesh", "Hand a newer roster to a device, which passes it on."),
        "put-scores": ("mesh", "Replace the scores or labelled outputs of a device in one step."),
        "epoch": ("mesh", "Show or declare the last closed epoch of a private mesh."),
        "up": ("mesh_up", "Start all devices on this machine, and show how they agree."),
        "status": ("mesh_status", "How every device is, as seen from here."),
        "check": ("mesh", "Files, certificates, scores, agreement, and who answers."),
    },
}


class _CommandGroup(click.Group):
    """A command with commands of its own, each loaded when called."""

    def __init__(self, name: str, table: _CommandTable, **more: Any) -> None:
        super().__init__(name, invoke_without_command=True, subcommand_metavar="COMMAND [ARGS]...", **more)
        self.table = table
        self.commands = dict.fromkeys(table, self)  # names only, from which click suggests; `get_command` loads

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Load a command."""
        return load_command(self.table, cmd_name) if cmd_name in self.table else None

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[Any]:
        """Complete the name of a command from the table, without loading any."""
        from click.shell_completion import CompletionItem

        found = [
            CompletionItem(name, help=line) for name, (_, line) in self.table.items() if name.startswith(incomplete)
        ]
        return found + click.Command.shell_complete(self, ctx, incomplete)

    def format_help(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write options and commands, each command as its line of the table."""
        lines = [(name, line) for name, (_, line) in self.table.items()]
        command.write_help(self, ctx, formatter, {"Commands": lines})


class _MainCommand(_CommandGroup):
    """The whole command line; every error is one line."""

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; an interrupt ends it without the empty line that click would print."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            raise click.Abort from None

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        **extra: Any,
    ) -> Any:
        """Run, and turn whatever happens into output, one line on stderr and an exit code."""
        given = with_default_address(sys.argv[1:] if args is None else args)
        debug = "--debug" in given  # may stand anywhere, also behind the command
        given = [word for word in given if word != "--debug"] or ["--help"]
        with console.errors_in_one_line(debug), console.notes_in_one_line():
            code = super().main(given, "conformesh", complete_var, standalone_mode=False, **extra)
            sys.stdout.flush()
        sys.exit(code if isinstance(code, int) else 0)


def load_command(table: _CommandTable, name: str) -> click.Command:
    """Import a command, with its commands where it has some."""
    module = import_module(f"conformesh.cli.{table[name][0]}")
    own = name.replace("-", "_")
    found: click.Command = getattr(module, f"{own}_" if own == "import" else own)
    if table is COMMANDS and name in SUBCOMMANDS:
        return _CommandGroup(name, SUBCOMMANDS[name], callback=found.callback, params=found.params, help=found.help)
    return found


def _completion(ctx: click.Context, param: click.Parameter, value: bool) -> None:
    if value:
        from conformesh.cli.completion import add_completion

        add_completion(ctx, param, value)


def _root(version: bool, **_: bool) -> None:
    if version:
        print(f"conformesh {__version__}")
        click.get_current_context().exit()


app = _MainCommand(
    "conformesh",
    COMMANDS,
    callback=_root,
    help="Conformal prediction for devices that cannot pool their data and talk only to their neighbours.",
    params=[
        command.Option("--version", "Print the version and stop."),
        command.Option("--debug", "Show the traceback of an error; may stand anywhere."),
        *(
            command.Option(f"--{what}-completion", text, expose_value=False, callback=_completion)
            for what, text in (
                ("install", "Install completion for the current shell."),
                ("show", "Show completion for the current shell, to copy it or customize the installation."),
            )
        ),
    ],
)
# Whether this process exists for the command line alone, so that a command may replace it by another program.
is_own_process = False


def main() -> None:
    """Run the command line."""
    global is_own_process  # noqa: PLW0603 - set once, by the entry point
    is_own_process = True
    app()
