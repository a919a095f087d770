"""Findings: sentences of the paper, each with a check whether our numbers confirm it.

Each function returns a check: from the curves of a case to (holds, the figures behind it), or None if the case cannot
tell. Means of few draws are noisy: *below* means by more than three standard errors and .001.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import pairwise

from conformesh.lab.reproduction.curves import TOPOLOGIES, Curves, DrawMeans

Check = Callable[[Curves], tuple[bool, str] | None]


@dataclass(frozen=True)
class Finding:
    """A sentence of the paper about an item, with the check whether it holds."""

    says: str
    holds: Check


# Coverage counts as below its level beyond three standard errors of its mean over draws, a usual safety margin, and
# beyond .001: with few draws the standard error itself may be 0.
ERRORS, GRAIN = 3.0, 1e-3


def curve_covers(*lines: str) -> Check:
    """Coverage of these lines (by default of all graphs) is nowhere below 1 - alpha."""

    def check(curves: Curves) -> tuple[bool, str]:
        worst = _worst(curves, lines)
        return not worst.below, str(worst)

    return check


def curve_undercovers(*lines: str) -> Check:
    """Coverage of each of these lines is somewhere below 1 - alpha."""

    def check(curves: Curves) -> tuple[bool, str]:
        worst = [_worst(curves, [line]) for line in _present(curves, lines)]
        return all(each.below for each in worst), "; ".join(map(str, worst))

    return check


def curve_covers_at_first_only(line: str) -> Check:
    """A line covers at its first x and misses at its last."""

    def check(curves: Curves) -> tuple[bool, str]:
        first, last = curves.xs(line)[0], curves.xs(line)[-1]
        good, poor = _CoverageGap(curves, line, first), _CoverageGap(curves, line, last)
        return not good.below and poor.below, f"{good}; {poor}"

    return check


def paper_ranks_suffice(*lines: str) -> Check:
    """No threshold lies below the rank that its guarantee requires, in any draw."""

    def check(curves: Curves) -> tuple[bool, str]:
        worst, where, x = _shortest(curves, lines)
        if worst == 0:
            return True, "none falls short"
        return False, f"up to {worst:.0%} of the draws fall short ({where}, x = {x:g})"

    return check


def paper_ranks_fall_short(*lines: str) -> Check:
    """Some threshold lies below the rank that its guarantee requires."""

    def check(curves: Curves) -> tuple[bool, str]:
        holds, words = paper_ranks_suffice(*lines)(curves) or (True, "")
        return not holds, words

    return check


def denser_graphs_are_smaller() -> Check:
    """Mean set size, over the levels, does not grow from chain to cycle, star, torus and complete graph."""

    def check(curves: Curves) -> tuple[bool, str]:
        means = {line: _mean(v.size for v in curves.values(line)) for line in _present(curves, ())}
        sizes = list(means.values())
        falls = all(a >= b - 0.01 * b for a, b in pairwise(sizes))
        return falls, "mean size " + ", ".join(f"{line} {size:.1f}" for line, size in means.items())

    return check


def denser_graphs_converge_sooner() -> Check:
    """The first x from which a line stays within a tenth of the smallest end comes no later on a denser graph."""

    def check(curves: Curves) -> tuple[bool, str]:
        lines = _present(curves, ())
        goal = 1.1 * min(curves.at(line).size for line in lines)
        when = {line: _settles_at(curves, line, goal) for line in lines}
        order = list(when.values())
        shown = ", ".join(f"{line} {'later' if math.isinf(x) else f'{x:g}'}" for line, x in when.items())
        return all(a >= b for a, b in pairwise(order)), f"settled at {shown}"

    return check


def curve_is_close_to(line: str, other: str, within: float) -> Check:
    """The line's last set size is within a share of another line's."""

    def check(curves: Curves) -> tuple[bool, str]:
        a, b = curves.at(line).size, curves.at(other).size
        return abs(a - b) <= within * b, f"{line} {a:.2f}, {other} {b:.2f} labels"

    return check


def curve_is_smaller(line: str, other: str) -> Check:
    """The line's last set size is smaller than another line's."""

    def check(curves: Curves) -> tuple[bool, str]:
        a, b = curves.at(line).size, curves.at(other).size
        return a < b, f"{line} {a:.2f}, {other} {b:.2f} labels"

    return check


def curve_is_u_shaped(line: str) -> Check:
    """The set size is larger at both ends than at its smallest in between, by a twentieth at least."""

    def check(curves: Curves) -> tuple[bool, str]:
        sizes = [value.size for value in curves.values(line)]
        least = min(sizes)
        words = f"{sizes[0]:.2f} at the left end, {least:.2f} at best, {sizes[-1]:.2f} at the right end"
        return min(sizes[0], sizes[-1]) > 1.05 * least, words

    return check


def set_size_falls(line: str) -> Check:
    """The set size at the last x is smaller than at the first."""

    def check(curves: Curves) -> tuple[bool, str]:
        values = curves.values(line)
        return values[-1].size < values[0].size, f"{values[0].size:.2f} labels at first, {values[-1].size:.2f} at last"

    return check


def spectral_gap_rises(first: float, last: float, within: float = 0.04) -> Check:
    """The mean spectral gap of the Q-DCP runs goes from `first` to `last`."""

    def check(curves: Curves) -> tuple[bool, str]:
        xs = curves.xs("Q-DCP")
        ends = [float(curves.row("Q-DCP", x)["gap"]) for x in (xs[0], xs[-1])]
        return all(
            abs(ours - theirs) <= within for ours, theirs in zip(ends, (first, last), strict=True)
        ), f"{ends[0]:.3f} to {ends[1]:.3f}"

    return check


def more_bins_help_where_connected() -> Check:
    """From the coarsest to the finest quantiser sets shrink on the complete graph and grow on the chain or cycle."""

    def check(curves: Curves) -> tuple[bool, str]:
        ends = {line: [v.size for v in curves.values(line)] for line in ("complete", "cycle", "chain")}
        shrinks = ends["complete"][-1] < ends["complete"][0]
        grows = any(ends[line][-1] > min(ends[line]) for line in ("cycle", "chain"))
        words = ", ".join(f"{line} {sizes[0]:.1f} to {sizes[-1]:.1f}" for line, sizes in ends.items())
        return shrinks and grows, f"labels: {words}"

    return check


# --- pieces -----------------------------------------------------------------------------------------------------------


class _CoverageGap:
    """The distance of a point's coverage from its level."""

    def __init__(self, curves: Curves, line: str, x: float) -> None:
        self.line, self.x = line, x
        self.value: DrawMeans = curves.at(line, x)
        self.level = 1 - float(curves.row(line, x)["alpha"])

    @property
    def slack(self) -> float:
        """How much the coverage exceeds the level, with noise counted in favour of the method."""
        noise = ERRORS * self.value.coverage_std / math.sqrt(self.value.draws) + GRAIN
        return self.value.coverage + noise - self.level

    @property
    def below(self) -> bool:
        """Whether coverage is below its level by more than noise."""
        return self.slack < 0

    def __str__(self) -> str:
        relation = "below" if self.below else "for"
        return f"{self.line}: {self.value.coverage:.3f} {relation} {self.level:.2g} (x = {self.x:g})"


def _worst(curves: Curves, lines: Iterable[str]) -> _CoverageGap:
    every = [_CoverageGap(curves, line, x) for line in _present(curves, lines) for x in curves.xs(line)]
    return min(every, key=lambda gap: gap.slack)


def _shortest(curves: Curves, lines: Iterable[str]) -> tuple[float, str, float]:
    every = [
        (float(curves.row(line, x)["rank_short"]), line, x) for line in _present(curves, lines) for x in curves.xs(line)
    ]
    return max(every, key=lambda each: each[0])


def _present(curves: Curves, lines: Iterable[str]) -> list[str]:
    wanted = [*lines] or [*TOPOLOGIES]
    return [line for line in wanted if line in curves.lines()]


def _settles_at(curves: Curves, line: str, goal: float) -> float:
    when = math.inf
    for x in reversed(curves.xs(line)):
        if curves.at(line, x).size > goal:
            break
        when = x
    return when


def _mean(values: Iterable[float]) -> float:
    numbers = [*values]
    return sum(numbers) / len(numbers)
