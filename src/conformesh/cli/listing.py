"""``conformesh methods``, ``topologies``, ``scores`` and others: what there is, as tables or JSON."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import fields
from typing import Any

import click

from conformesh.cli import console, options
from conformesh.cli.command import command

_JSON_OPTION = options.json_option("Print a JSON list instead of a table.")


@command(_JSON_OPTION)
def methods(as_json: bool) -> None:
    """List the methods: what they guarantee, which devices a device must reach and what it sends."""
    from conformesh.methods import METHODS

    rows = [
        {
            "method": name,
            "guarantee": method.description.guarantee,
            "needs": method.description.needs,
            "sends": method.description.sends,
            "paper": method.description.paper,
            "summary": method.description.summary,
            "options": _options(method.options),
        }
        for name, method in METHODS.items()
    ]
    _show(rows, ("method", "guarantee", "needs", "sends", "summary"), as_json)


@command(_JSON_OPTION)
def topologies(as_json: bool) -> None:
    """List the topologies; their options go to calibrate as --network-option key=value."""
    from conformesh.graph.topologies import TOPOLOGIES

    rows = [
        {
            "topology": name,
            "summary": topology.summary,
            "random": topology.random,
            "options": [{"name": option, "help": text} for option, text in topology.options.items()],
        }
        for name, topology in TOPOLOGIES.items()
    ]
    _show(rows, ("topology", "summary", "random", "options"), as_json)


@command(_JSON_OPTION)
def scores(as_json: bool) -> None:
    """List the nonconformity scores, or make some; their options go to commands as --score-option key=value."""
    if (subcommand := click.get_current_context().invoked_subcommand) is not None:
        if as_json:
            raise click.BadParameter(f"--json belongs behind {subcommand}")
        return
    from conformesh.scores import SCORES

    rows = [
        {"score": name, "task": score.task, "summary": score.summary, "options": _options(score)}
        for name, score in SCORES.items()
    ]
    _show(rows, ("score", "task", "summary", "options"), as_json)


@command(_JSON_OPTION)
def adaptations(as_json: bool) -> None:
    """List how scores adapt to devices that differ; calibrate takes them as --adapt, options as --adapt-option."""
    from conformesh.scores.adapt import ADAPTATIONS

    rows = [
        {
            "adaptation": name,
            "task": kind.task if isinstance(kind.task, str) else "both",  # one on top of others has their task
            "summary": kind.summary,
            "options": _options(kind),
        }
        for name, kind in ADAPTATIONS.items()
    ]
    _show(rows, ("adaptation", "task", "summary", "options"), as_json)


@command(_JSON_OPTION)
def weights(as_json: bool) -> None:
    """List the consensus weights that h-dcp can use."""
    from conformesh.graph.weights import WEIGHTS

    rows = [{"weights": name, "summary": _summary(build)} for name, build in WEIGHTS.items()]
    _show(rows, ("weights", "summary"), as_json)


@command(_JSON_OPTION)
def aggregators(as_json: bool) -> None:
    """List the ways to add up over all devices, which --aggregate chooses from."""
    from conformesh.protocols.aggregate import AGGREGATORS

    rows = [{"aggregator": name, "summary": aggregator.summary} for name, aggregator in AGGREGATORS.items()]
    _show(rows, ("aggregator", "summary"), as_json)


@command(_JSON_OPTION)
def engines(as_json: bool) -> None:
    """List the engines, which --engine of calibrate chooses from."""
    from conformesh.engines import ENGINES

    rows = [
        {"engine": name, "summary": driver.summary, "start": driver.start, "extra": driver.extra}
        for name, driver in ENGINES.items()
    ]
    _show(rows, ("engine", "summary", "start", "extra"), as_json)


def _summary(function: Callable[..., Any]) -> str:
    """What a function returns, from the first line of its docstring, without markup."""
    line = (function.__doc__ or "").strip().split("\n")[0].removeprefix("Return ").rstrip(".")
    return re.sub(r":math:|`|_\{(\w+)\}", lambda found: f"_{found[1]}" if found[1] else "", line)


def _options(kind: type[Any]) -> list[dict[str, Any]]:
    """Name, default and meaning of a dataclass's options; of a method only those that a user may set."""
    of_method = any("help" in field.metadata for field in fields(kind))
    chosen = [field for field in fields(kind) if "help" in field.metadata or not of_method]
    return [
        {"name": f.name, "default": f.default, **({"help": f.metadata["help"]} if f.metadata else {})} for f in chosen
    ]


def _show(rows: list[dict[str, Any]], columns: Sequence[str], as_json: bool) -> None:
    cells = [[_cell(row[column]) for column in columns] for row in rows]
    console.show_result(rows, as_json, lambda: console.print_table(columns, cells))


def _cell(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(option["name"] for option in value)
    return ("yes" if value else "no") if isinstance(value, bool) else str(value)
