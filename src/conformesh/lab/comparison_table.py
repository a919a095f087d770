"""A comparison as text: the rows of its table, and which way to use."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from conformesh.common.quantities import format_bits, format_count, pluralize
from conformesh.lab.comparison import Comparison, ComparisonRow, CostUnit, NetworkComparison
from conformesh.methods import MethodVariant

_COMPARISON_COLUMNS = (
    "method",
    "server",
    "guarantee",
    "slack",
    "threshold",
    "mean size",
    "rounds",
    "numbers",
    "bits",
    "fewest",
)
COMPARISON_NUMBER_COLUMNS = ("slack", "threshold", "mean size", "rounds", "numbers", "bits")  # columns of numbers
SIZE_COLUMN = "mean size"


def table_columns(found: Comparison) -> list[str]:
    """Return the columns of the table: sizes only where they were measured."""
    sized = any(run.size is not None for entry in found.networks for run in entry.runs)
    return [column for column in _COMPARISON_COLUMNS if sized or column != SIZE_COLUMN]


def rests_on_assumption(run: ComparisonRow) -> bool:
    """Whether the rank was counted, but the guarantee rests on an assumption."""
    return run.guarantee == "counted" and bool(run.assumption)


def table_row(run: ComparisonRow, entry: NetworkComparison) -> list[str]:
    """Return a row of the table."""
    low, high = run.thresholds
    costs: tuple[CostUnit, ...] = ("bits", "rounds")
    fewest = [by for by in costs if run.way in entry.fewest(by)]
    return [
        str(run.way),
        "yes" if run.way.needs == "server" else "no",
        run.guarantee + "*" * rests_on_assumption(run),
        format_slack(run.slack),
        f"{low:.6g}" if low == high else f"{low:.2g}..{high:.2g}",
        *([] if run.size is None else [f"{run.size:.3f}"]),
        f"{run.rounds:,}",
        format_count(run.numbers),
        format_bits(run.bits),
        "both" if len(fewest) == 2 else "".join(fewest),
    ]


def recommendation(found: Comparison) -> str:
    """Say in one sentence which way to use, derived from the table.

    The winner sends the fewest bits on most networks among the sound ways: rank counted and reached, nothing assumed,
    no server. The way with the fewest rounds and the other methods without a server are listed with their cost.
    """
    cheapest, fastest = found.winner("bits"), found.winner("rounds")
    if cheapest is None or fastest is None:
        return _no_recommendation(found)
    clauses = [_winner_clause(found, *cheapest)]
    if fastest[0] != cheapest[0]:
        runs = _sound(found, fastest[0])
        where = _of_all(fastest[1], found)
        clauses.append(f"{fastest[0]} needs the fewest rounds on {where} ({_rounds(runs)}, {_bits(runs)})")
    others = [
        f"{way} is {_kinds(runs)} ({_bits(runs)}, {_rounds(runs)}, slack {_slack(runs)})"
        for way in found.ways()
        if way.needs == "neighbours" and way.method not in (cheapest[0].method, fastest[0].method)
        if (runs := found.runs_of(way)) and {run.guarantee for run in runs} != {"none"}
    ]
    if others:
        clauses.append(", ".join(others))
    return "; ".join(clauses) + "."


def _no_recommendation(found: Comparison) -> str:
    if any(run.guarantee == "counted" and run.slack == math.inf for entry in found.networks for run in entry.runs):
        return (
            f"None yet: rank {found.required_rank:,} of {found.scores:,} scores is required, for which the threshold "
            "is +inf and every set full; collect more scores or raise alpha."
        )
    return (
        "None of these: nothing here reaches the required rank by a count of its own, without a server and without an "
        "assumption; leave --method out to compare all."
    )


def _winner_clause(found: Comparison, way: MethodVariant, won: int) -> str:
    runs = _sound(found, way)
    sound = {run.way for entry in found.networks for run in entry.runs if run.is_sound}
    why = f"of {len(sound)} here that count their rank and need no server it sends the fewest bits on"
    if len(sound) == 1:
        why = "alone here it counts its rank and needs no server, on"
    cost = f"{_bits(runs)} a device, {_rounds(runs)}, slack {_slack(runs)}"
    return f"Use {way.flags}: {why} {_of_all(won, found)} ({cost})"


def _sound(found: Comparison, way: MethodVariant) -> list[ComparisonRow]:
    return [run for run in found.runs_of(way) if run.is_sound]


def _of_all(won: int, found: Comparison) -> str:
    every = len(found.networks)
    if won < every:
        return f"{won} of {every} networks"
    return found.networks[0].network if every == 1 else "both networks" if every == 2 else f"all {every} networks"


def _bits(runs: Sequence[ComparisonRow]) -> str:
    return _range((run.bits for run in runs), format_bits)


def _rounds(runs: Sequence[ComparisonRow]) -> str:
    return _range((run.rounds for run in runs), lambda rounds: pluralize(rounds, "round"))


def _slack(runs: Sequence[ComparisonRow]) -> str:
    return _range((run.slack for run in runs), format_slack)


def _kinds(runs: Sequence[ComparisonRow]) -> str:
    return " or ".join(dict.fromkeys(run.guarantee for run in runs))


def _range(values: Iterable[float], show: Callable[[Any], str]) -> str:
    """Return the smallest and the largest value as text; a common unit is written once."""
    ordered = sorted(values)
    low, high = show(ordered[0]), show(ordered[-1])
    if low == high:
        return low
    number, _, unit = low.partition(" ")
    return f"{number if unit and high.endswith(f' {unit}') else low} to {high}"


def format_slack(slack: float) -> str:
    """Return a slack with its sign; infinity is "inf".

    >>> format_slack(4.0), format_slack(0.0), format_slack(-31.0), format_slack(math.inf)
    ('+4', '0', '-31', 'inf')
    """
    return "inf" if slack == math.inf else f"{int(slack):+,}" if slack else "0"
