"""Verdicts: whether an experiment agrees with the published numbers, and which sentences of the paper hold.

A published point is a mean over ten draws, ours a mean over more. If both come from one process, their difference over
its standard error (from the spread of both samples together) follows Student's t. An item agrees where no difference,
of coverage or of size, is larger than chance would make *any* of all published points' in `JOINT_ERROR` of the
reproductions: the rate is divided among all comparisons (Bonferroni), which holds for dependent points too, such as the
levels of one figure, which share their draws. How many points are met, in a band or near, is counted beside
it and decides nothing: with ten draws on each side it depends on the seed.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from scipy.special import stdtrit

from conformesh.lab.reproduction.curves import (
    REFERENCES,
    Curves,
    DrawMeans,
    PublishedPoint,
    count_published_points,
    published_points,
)

if TYPE_CHECKING:
    from conformesh.lab.reproduction.experiments import Experiment

JOINT_ERROR = 0.01  # how often chance alone may call any of all comparisons a difference
COVERAGE_TOLERANCE, SIZE_TOLERANCE = 0.015, 0.12  # a point is called met within these, too; that decides nothing
_ROUNDOFF = 1e-9  # round-off when two equal numbers are compared
_COVERAGE_GRAIN, _SIZE_GRAIN = 5e-6, 5e-5  # half the last digit of what was read off the figures
_ROUNDED = 0.1 / math.sqrt(12)  # labels: the spread of rounding to a tenth, below which a spread of sizes says nothing
_MANY = 99.0  # standard errors; larger gaps are written as "over 99"


@dataclass(frozen=True)
class PointComparison:
    """A point of theirs beside ours; sizes are shares of all classes.

    Attributes
    ----------
    inside, near
        Whether ours lies in either band, or within the tolerances.
    errors, allowed
        The larger difference, of coverage or of size, in its standard errors, and how many are allowed.
    """

    theirs: PublishedPoint
    coverage: float
    size: float
    inside: bool
    near: bool
    errors: float
    allowed: float

    @property
    def met(self) -> bool:
        """Whether it lies within either band, or within the tolerances."""
        return self.inside or self.near

    @property
    def agrees(self) -> bool:
        """Whether chance explains the difference."""
        return self.errors <= self.allowed

    @property
    def size_gap(self) -> float:
        """The difference in size as a share of theirs."""
        return (self.size - self.theirs.size) / self.theirs.size if self.theirs.size else 0.0


@dataclass(frozen=True)
class JudgedFinding:
    """A sentence of the paper, whether it holds here, and by which figures."""

    says: str
    holds: bool
    figures: str


@dataclass(frozen=True)
class Verdict:
    """The verdict on one case of an experiment.

    Attributes
    ----------
    matches
        Points compared with the published ones; where none are known, as written with as released (`stand_in`).
    judged
        The paper's sentences.
    remark
        Why it differs.
    stand_in
        Whether the as-released curves stand in for published ones that only a picture shows.
    """

    matches: tuple[PointComparison, ...]
    judged: tuple[JudgedFinding, ...]
    remark: str = ""
    stand_in: bool = False

    @property
    def agrees(self) -> bool:
        """Whether chance explains every difference and, where no published point is known, every sentence holds."""
        by_numbers = all(match.agrees for match in self.matches)
        if self.matches and not self.stand_in:
            return by_numbers
        return by_numbers and all(judged.holds for judged in self.judged)

    @property
    def summary(self) -> str:
        """The verdict with its figures, without the reason."""
        parts = [self._largest_gap(), self._of_points()] if self.matches else []
        holding = sum(judged.holds for judged in self.judged)
        if self.judged:
            parts.append(f"{holding} of {len(self.judged)} findings hold")
        return ("agrees" if self.agrees else "differs") + (f" ({'; '.join(parts)})" if parts else "")

    def __str__(self) -> str:
        because = "" if self.agrees or not self.remark else f", because {self.remark}"
        return self.summary + because

    def _largest_gap(self) -> str:
        worst = max(self.matches, key=lambda match: match.errors - match.allowed)
        errors = f"over {_MANY:.0f}" if worst.errors > _MANY else f"{worst.errors:.1f}"
        whose = " from as released" if self.stand_in else ""
        return f"largest gap{whose} {errors} standard errors, {worst.allowed:.1f} allowed"

    def _of_points(self) -> str:
        if self.stand_in:
            worst = max(self.matches, key=lambda match: abs(match.size_gap))
            return f"size off by up to {abs(worst.size_gap):.0%} ({worst.theirs.line}, x = {worst.theirs.x:g})"
        inside, met = (sum(getattr(match, name) for match in self.matches) for name in ("inside", "met"))
        return f"{met} of {len(self.matches)} published points met, {inside} of them inside a band"


def judge_case(
    experiment: Experiment,
    variant: str,
    scores: str,
    curves: Curves,
    on_their_data: bool,
    released: Curves | None = None,
) -> Verdict:
    """Compare a case with the published points (logits on the paper's data alone) and with the paper's sentences.

    Where only a picture was printed, `released`, the curves of the conventions that give the known points, stands in
    for it: what is as written is compared with that.
    """
    points, comparisons, stand_in = published_points(experiment.name), 2 * count_published_points(), False
    if not points and released is not None and variant == "as-written":
        points, stand_in = _points_of(released), True
        comparisons = 2 * len(points)
    comparable = scores == "logits" and on_their_data
    matches = tuple(_matches(curves, points, comparisons)) if comparable else ()
    judged = []
    for finding in experiment.findings:
        found = finding.holds(curves)
        if found is not None:
            judged.append(JudgedFinding(finding.says, *found))
    remark = experiment.remarks.get(f"{variant}, {scores}", experiment.remarks.get(variant, ""))
    return Verdict(matches, tuple(judged), remark, stand_in and bool(matches))


def _points_of(curves: Curves) -> list[PublishedPoint]:
    """Return the paper's lines of some curves as if they had been published."""
    return [
        PublishedPoint(
            v.coverage, v.coverage_std, v.size / classes, v.size_std / classes, draws=v.draws, line=line, x=x
        )
        for line, x, v in curves
        if line not in REFERENCES
        for classes in [int(curves.row(line, x)["classes"])]
    ]


def _matches(curves: Curves, points: list[PublishedPoint], comparisons: int) -> list[PointComparison]:
    found = []
    for theirs in points:
        if theirs.line not in curves.lines() or theirs.x not in curves.xs(theirs.line):
            continue
        ours = curves.at(theirs.line, theirs.x)
        classes = int(curves.row(theirs.line, theirs.x)["classes"])
        found.append(_match(theirs, ours, classes, comparisons))
    return found


def _match(theirs: PublishedPoint, ours: DrawMeans, classes: int, comparisons: int) -> PointComparison:
    size, size_half, size_std = (value / classes for value in (ours.size, ours.size_half, ours.size_std))
    coverage_gap, size_gap = abs(ours.coverage - theirs.coverage), abs(size - theirs.size)
    inside = coverage_gap <= max(ours.coverage_half, theirs.coverage_half) + _ROUNDOFF and (
        size_gap <= max(size_half, theirs.size_half) + _ROUNDOFF
    )
    near = coverage_gap <= COVERAGE_TOLERANCE and (
        size_gap <= max(SIZE_TOLERANCE * theirs.size, theirs.size_half) + _ROUNDOFF
    )
    draws = (ours.draws, theirs.draws)
    errors = max(
        _errors(coverage_gap - _COVERAGE_GRAIN, (ours.coverage_std, theirs.coverage_std), draws),
        _errors(size_gap - _SIZE_GRAIN, (size_std, theirs.size_std), draws, least=_ROUNDED / classes),
    )
    allowed = -float(stdtrit(sum(draws) - 2, JOINT_ERROR / comparisons / 2))
    return PointComparison(theirs, ours.coverage, size, inside, near, errors, allowed)


def _errors(gap: float, stds: tuple[float, float], draws: tuple[int, int], least: float = 0.0) -> float:
    """Return a difference of two means over its standard error, from the spread of both samples together.

    The standard deviations divide by the number of draws, as the published ones do; `least` is the smallest spread.
    """
    if gap <= 0:
        return 0.0
    spread = math.sqrt(sum(n * std**2 for n, std in zip(draws, stds, strict=True)) / (sum(draws) - 2))
    error = max(spread, least) * math.sqrt(sum(1 / n for n in draws))
    return gap / error if error > 0 else math.inf
