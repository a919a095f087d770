"""Flags from options: what a method, topology or score can be told, as command line flags with their help.

The flags of `calibrate` are the union of the options of all methods, so that a new line in `METHODS` brings its own.
"""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, fields
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import typer

from conformesh.cli.panels import panel_of
from conformesh.faults import Faults, as_faults
from conformesh.methods import METHODS, make_options
from conformesh.protocols.options import choices_of


@dataclass(frozen=True)
class Flag:
    """One option, and what it means to each method that has it."""

    name: str
    hints: dict[str, Any]
    fields: dict[str, Field[Any]]

    @property
    def help(self) -> str:
        """What it means, and to whom where several have it; the same meaning is said once."""
        meanings: dict[tuple[str, str], list[str]] = {}
        for method, field in self.fields.items():
            value: Any = field.default
            if isinstance(value, bool | float):
                value = f"{value:g}" if isinstance(value, float) else "yes" if value else "no"
            default = "" if value in (None, MISSING) else f"default {value}"
            meanings.setdefault((field.metadata["help"], default), []).append(method)
        lines = []
        for (text, default), who in meanings.items():
            facts = [", ".join(who) if len(self.fields) > 1 else "", default]
            aside = "; ".join(fact for fact in facts if fact)
            lines.append(f"{text[:1].upper()}{text[1:]}" + (f" ({aside})." if aside else "."))
        return " ".join(lines)

    def parameter(self) -> inspect.Parameter:
        """Return the parameter of the command."""
        dashed, kinds = self.name.replace("_", "-"), [*self.hints.values()]
        word = f"--{dashed}"
        kind: Any = str  # text: each method turns it into what it needs, with one kind of error
        words = [word for method, field in self.fields.items() for word in choices_of(field, self.hints[method])]
        metavar = "|".join(dict.fromkeys(words)) or "|".join(
            dict.fromkeys(f"<{getattr(hint, '__name__', 'str')}>" for hint in kinds)
        )
        if bool in kinds:
            word, kind, metavar = f"{word}/--no-{dashed}", bool, ""
        elif get_origin(kinds[0]) is tuple:
            kind, metavar = types.GenericAlias(tuple, (str,) * len(get_args(kinds[0]))), "LO HI"
        panel = panel_of([*self.fields])
        given = typer.Option(None, word, help=self.help, metavar=metavar, rich_help_panel=panel, show_default=False)
        hint = kind | None  # None: not given, the method's own default holds
        return inspect.Parameter(self.name, inspect.Parameter.KEYWORD_ONLY, default=given, annotation=hint)


def flags_of_methods(methods: Iterable[str] = METHODS) -> dict[str, Flag]:
    """Return every option of these methods, by default of all, in the order of `METHODS`."""
    flags: dict[str, Flag] = {}
    for method, entry in ((name, METHODS[name]) for name in methods):
        hints = get_type_hints(entry.options)
        for field in fields(entry.options):
            if "help" in field.metadata:
                flag = flags.setdefault(field.name, Flag(field.name, {}, {}))
                flag.hints[method] = _without_none(hints[field.name])
                flag.fields[method] = field
    return flags


def with_flags(command: Callable[..., None], methods: Iterable[str] = METHODS) -> Callable[..., None]:
    """Give a command ``(..., **options)`` one parameter for each option of a method that it does not have itself."""
    own = [*inspect.signature(command, eval_str=True).parameters.values()]
    names = {parameter.name for parameter in own}
    extra = [flag.parameter() for name, flag in flags_of_methods(methods).items() if name not in names]
    known = [parameter for parameter in own if parameter.kind is not inspect.Parameter.VAR_KEYWORD] + extra
    command.__signature__ = inspect.Signature(known)  # type: ignore[attr-defined]
    command.__annotations__ = {parameter.name: parameter.annotation for parameter in known}
    return command


def checked_options(method: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options that were given, in the types of the method and after it has accepted them."""
    flags = flags_of_methods()
    chosen = {
        name: value if isinstance(value, bool | int) else as_type(value, flags[name].hints.get(method), name)
        for name, value in given.items()
        if value is not None
    }
    make_options(method, chosen)
    return chosen


def key_values(pairs: Sequence[str], what: str, hints: Mapping[str, Any]) -> dict[str, Any]:
    """Read ``key=value`` words; each value takes the type that `hints` gives its key (unknown keys stay text)."""
    found: dict[str, Any] = {}
    for pair in pairs:
        key, equals, text = pair.partition("=")
        key = key.strip().replace("-", "_")
        if not (equals and key and text.strip()):
            raise ValueError(f"{what} must be key=value, got {pair!r}")
        found[key] = as_type(text.strip(), _without_none(hints.get(key, str)), f"{what} {key}")
    return found


def chosen_faults(pairs: Sequence[str]) -> Faults | None:
    """Read ``--fault key=value`` words; liars are rows apart by semicolons."""
    found = key_values(pairs, "fault", {**get_type_hints(Faults), "liars": str})
    if "liars" in found:
        found["liars"] = tuple(whole(row, "fault liars", 0) for row in found["liars"].split(";"))
    return as_faults(found)


def as_type(text: Any, kind: Any, what: str) -> Any:
    """Turn text into what an option holds: a bool, an int, a float, one of several words, a tuple of these, or text."""
    if get_origin(kind) is tuple:
        return tuple(as_type(one, wanted, what) for one, wanted in zip(text, get_args(kind), strict=True))
    if get_origin(kind) is Literal and text not in (allowed := get_args(kind)):
        raise ValueError(f"{what} must be {' or '.join(map(str, allowed))}, got {text!r}")
    if kind is bool:
        if text.lower() in ("true", "yes", "1", "false", "no", "0"):
            return text.lower() in ("true", "yes", "1")
        raise ValueError(f"{what} must be true or false, got {text!r}")
    if kind not in (int, float):
        return text
    try:
        return kind(text)
    except ValueError:
        needed = "an integer" if kind is int else "a number"
        raise ValueError(f"{what} must be {needed}, got {text!r}") from None


def _without_none(hint: Any) -> Any:
    """Return the type that an optional value has when it is there."""
    if get_origin(hint) in (Union, types.UnionType):
        left = [kind for kind in get_args(hint) if kind is not type(None)]
        return left[0] if len(left) == 1 else str
    return hint


def whole(text: str, what: str, least: int) -> int:
    """Return an integer that is not too small."""
    number: int = as_type(text, int, what)
    if number < least:
        raise ValueError(f"{what} must be at least {least}, got {number}")
    return number
