"""Declare commands: options that know their panel of the help, groups of options, and the help itself.

A command is a function under `command(...)`, which lists its arguments, options and groups of options. A group reaches
the function as one object under the group's name, so that shared options are declared once, in `options`. Help shows
options in panels: those without a panel first, then those of the guarantee, of files and of the run, then others. On a
terminal panels are boxes, in a pipe sections of plain text.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

if TYPE_CHECKING:
    ParamType = click.ParamType[Any]
else:  # older versions of click have no type parameter
    ParamType = click.ParamType

GUARANTEE = "Guarantee"
FILES = "Files and columns"
RUNNING = "Running"
MESH = "Hosts and certificates"
SHARED = "Options of several methods"  # always the last panel
_FIRST = ("Arguments", "Options")

_Line = tuple[str, str]  # how an option is written, and what it means


class _File(ParamType):
    """A file or folder, which shells complete; it is checked where it is read, with better errors than here."""

    name = "path"

    def __init__(self, kind: type[Path] | type[str]) -> None:
        self.kind = kind

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Path | str:
        """Return the path, or the text."""
        if "\0" in str(value):
            raise ValueError(f"{_spelling(param)}: {value!r} cannot be the name of a file: it has a null byte")
        return self.kind(value)

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[Any]:
        """Let the shell complete the name of a file."""
        from click.shell_completion import CompletionItem

        return [CompletionItem(incomplete, type="file")]


PATH = _File(Path)
SOURCE = _File(str)  # text, since "-" is standard input


class Option(click.Option):
    """An option, spelled as in the help: ``--alpha <float>``, ``--quantile,-q <float>``, ``--picture/--no-picture``.

    One without a placeholder is a flag. KEY=VALUE may be repeated. The default is shown unless there is none.
    """

    def __init__(
        self, spelling: str, text: str = "", *, name: str | None = None, panel: str | None = None, **more: Any
    ) -> None:
        words, _, metavar = spelling.partition(" ")
        if metavar:
            more["metavar"] = metavar
        elif "/" not in words and "type" not in more:
            more["is_flag"] = True
        if metavar == "KEY=VALUE":
            more["multiple"] = True
        more.setdefault("show_default", True)
        super().__init__([*words.split(","), *([name] if name else [])], help=text, **more)
        self.panel = panel
        self.shown_with: tuple[str, ...] = ()  # methods beside which the help shows it; none: always


class Argument(click.Argument):
    """An argument with a line of help."""

    def __init__(self, name: str, metavar: str, text: str, **more: Any) -> None:
        more.setdefault("type", SOURCE)
        super().__init__([name], metavar=metavar, **more)
        self.help_text = text

    def get_help_record(self, ctx: click.Context) -> _Line:
        """Return how it is written and what it means."""
        aside = "  [required]" if self.required else f"  [default: {self.default}]" if self._has_default else ""
        return str(self.metavar), self.help_text + aside

    @property
    def _has_default(self) -> bool:
        return isinstance(self.default, str)


class OptionGroup(NamedTuple):
    """Options that belong together: a command gets what `gather` makes of their values, under `name`.

    Options behind a function are declared only when the command line has an option that is not among the others, or
    asks for help. Options of methods are: reading them loads all methods.
    """

    name: str
    gather: Callable[..., Any]
    options: Sequence[click.Parameter | OptionGroup] | Callable[[], Sequence[click.Parameter | OptionGroup]]


class WholeNumber(ParamType):
    """An integer that is not too small."""

    name = "integer"

    def __init__(self, least: int = 0) -> None:
        self.least = least

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Read the integer."""
        return parse_whole_number(value, _spelling(param), self.least)


class Number(ParamType):
    """A floating-point number."""

    name = "number"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Read the number."""
        try:
            return float(value)
        except ValueError:
            raise ValueError(f"{_spelling(param)} must be a number, got {value!r}") from None


def parse_whole_number(text: str | int, what: str, least: int) -> int:
    """Return an integer that is not too small."""
    try:
        number = int(text)
    except ValueError:
        raise ValueError(f"{what} must be a whole number, got {text!r}") from None
    if number < least:
        raise ValueError(f"{what} must be at least {least}, got {number}")
    return number


def _spelling(param: click.Parameter | None) -> str:
    """Return how an option is written, or the name of an argument."""
    return "value" if param is None else str(param.opts[0])


class ListOption(Option):
    """An option that may be repeated, and that takes several values with commas; the command gets a tuple."""

    def __init__(self, spelling: str, text: str, **more: Any) -> None:
        super().__init__(spelling, text, multiple=True, callback=_words, **more)


def _words(ctx: click.Context, param: click.Parameter, texts: Sequence[str] | None) -> tuple[str, ...]:
    words = split_commas(*texts or ())
    if texts and not words:
        raise ValueError(f"{_spelling(param)} needs a value, or several with commas between them, got {texts[0]!r}")
    return words


def split_commas(*texts: str) -> tuple[str, ...]:
    """Return the words of texts with commas.

    >>> split_commas("a, b", "c")
    ('a', 'b', 'c')
    """
    return tuple(word.strip() for text in texts for word in text.split(",") if word.strip())


def command(*parts: click.Parameter | OptionGroup) -> Callable[[Callable[..., None]], _Command]:
    """Make a command of a function; an option of a group is left out where an earlier part has its name."""

    def make(function: Callable[..., None]) -> _Command:
        name = function.__name__.rstrip("_").replace("_", "-")
        return _Command(name, parts, function)

    return make


class _Command(click.Command):
    """A command made of arguments, options and groups of options, whose help is in panels."""

    def __init__(
        self, name: str, parts: Sequence[click.Parameter | OptionGroup], function: Callable[..., None]
    ) -> None:
        super().__init__(name, callback=self._run, help=inspect.cleandoc(function.__doc__ or ""))
        self.function, self.parts = function, parts
        self._all = False
        self.declared = self._declare(parts)

    def _declare(self, parts: Sequence[click.Parameter | OptionGroup]) -> list[click.Parameter | OptionGroup]:
        """Add the options of these parts to the command; return the parts without what an earlier one has declared."""
        declared: list[click.Parameter | OptionGroup] = []
        for part in parts:
            if isinstance(part, OptionGroup):
                options = part.options
                if callable(options):
                    options = options() if self._all else ()
                declared.append(part._replace(options=self._declare(options)))
            elif all(part.name != known.name for known in self.params):
                self.params.append(part)
                declared.append(part)
        return declared

    def declare_all(self) -> None:
        """Declare also the options that are behind functions."""
        if not self._all:
            self._all, self.params = True, []
            self.declared = self._declare(self.parts)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the command line, with all options only where that is needed."""
        if not self._all and not ctx.resilient_parsing and "--help" not in args:
            try:
                return super().parse_args(ctx, [*args])  # a list of its own: click takes words out of it
            except click.UsageError:
                pass  # perhaps the option of a method
        self.declare_all()
        method = _word_after("--method", args)
        for option in self.params:
            if isinstance(option, Option) and option.shown_with:
                option.hidden = method not in option.shown_with
        return super().parse_args(ctx, args)

    def _run(self, **given: Any) -> None:
        self.function(**_gather(self.declared, given))

    def format_help(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the panels."""
        write_help(self, ctx, formatter, {})


def _word_after(option: str, words: Sequence[str]) -> str | None:
    """Return the value of an option on a command line that is not parsed yet, as before ``--help``."""
    for word, following in zip_longest(words, words[1:]):
        if word == option:
            return following
        if word.startswith(f"{option}="):
            return word.removeprefix(f"{option}=")
    return None


# --- help -------------------------------------------------------------------------------------------------------------


def _gather(parts: Any, given: Mapping[str, Any]) -> dict[str, Any]:
    return {
        part.name: part.gather(**_gather(part.options, given)) if isinstance(part, OptionGroup) else given[part.name]
        for part in parts
    }


def _panels_of(command: click.Command, ctx: click.Context) -> dict[str, list[_Line]]:
    """Return the lines of every panel: those that many commands have first, the others as they come."""
    panels: dict[str, list[_Line]] = {name: [] for name in (*_FIRST, GUARANTEE, FILES, RUNNING)}
    for parameter in command.get_params(ctx):
        line = parameter.get_help_record(ctx)
        if line is not None:
            usual = _FIRST[parameter.param_type_name == "option"]
            panels.setdefault(getattr(parameter, "panel", None) or usual, []).append(line)
    shared = panels.pop(SHARED, [])
    return {name: lines for name, lines in (*panels.items(), (SHARED, shared)) if lines}


def write_help(
    command: click.Command, ctx: click.Context, formatter: click.HelpFormatter, more: Mapping[str, Sequence[_Line]]
) -> None:
    """Write the panels of a command, and more of them behind: boxes on a terminal, else sections of plain text."""
    panels = {**_panels_of(command, ctx), **more}
    if is_terminal():
        formatter.write(_in_boxes(command.get_usage(ctx), command.help or "", panels))
        return
    command.format_usage(ctx, formatter)
    command.format_help_text(ctx, formatter)
    for name, lines in panels.items():
        with formatter.section(name):
            formatter.write_dl(lines)


def is_terminal() -> bool:
    """Boxes and colours are for people: in a pipe help is plain text."""
    return sys.stdout.isatty()


def _in_boxes(usage: str, text: str, panels: Mapping[str, Sequence[_Line]]) -> str:
    """Return help for a terminal: usage, description, and a box for every panel."""
    import shutil
    from textwrap import TextWrapper

    width = max(shutil.get_terminal_size().columns, 40)
    prose = TextWrapper(width - 2, initial_indent=" ", subsequent_indent=" ")
    rows = ["", click.style(prose.fill(usage), bold=True)]
    for paragraph in text.strip().split("\n\n"):
        rows += ["", prose.fill(" ".join(paragraph.split()))]
    rows.append("")
    longest = 25 if width < 100 else 40
    split = {name: [(_break_option(one, longest), text) for one, text in lines] for name, lines in panels.items()}
    left = max(len(row) for lines in split.values() for option, _ in lines for row in option)
    right = width - left - 6  # two borders, three spaces beside them and between the columns, and one after
    meaning = TextWrapper(right, break_long_words=False, break_on_hyphens=False)
    for name, lines in split.items():
        rows.append(f"{_dim('╭─')} {click.style(name, bold=True)} {_dim('─' * (width - len(name) - 5) + '╮')}")
        for option, words in lines:
            for one, other in zip_longest(option, meaning.wrap(words), fillvalue=""):
                colour = click.style(one.ljust(left), fg="cyan", bold=True)
                rows.append(f"{_dim('│')} {colour}  {other.ljust(right)} {_dim('│')}")
        rows.append(_dim(f"╰{'─' * (width - 2)}╯"))
    return "\n".join(rows) + "\n"


def _dim(text: str) -> str:
    return click.style(text, dim=True)


def _break_option(option: str, width: int) -> list[str]:
    """Return how an option is written in lines that are not longer than this, where spaces and bars allow it.

    >>> _break_option("--bound sound|paper|cumulative|row", 25)
    ['--bound sound|paper|', '  cumulative|row']
    """
    words = option.replace("|", "|\0").replace(" ", " \0").split("\0")
    lines = [""]
    for word in words:
        if lines[-1].strip() and len((lines[-1] + word).rstrip()) > width:
            lines.append("  ")
        lines[-1] += word
    return [line.rstrip() for line in lines]
