"""What came out of an experiment: whether it agrees with what was published, and which sentences hold."""

from __future__ import annotations

from dataclasses import dataclass

from conformesh.experiments.core.experiment import Experiment
from conformesh.experiments.core.published import Published, published
from conformesh.experiments.core.results import Curves, Value

COVERAGE_TOLERANCE, SIZE_TOLERANCE = 0.015, 0.12  # what ten draws on each side leave to chance, roughly
SLACK = 1e-9


@dataclass(frozen=True)
class Match:
    """A published point beside ours; sizes are shares of all classes."""

    theirs: Published
    coverage: float
    size: float
    inside: bool
    near: bool

    @property
    def agrees(self) -> bool:
        """Whether they agree within either band, or within the tolerance."""
        return self.inside or self.near


@dataclass(frozen=True)
class Judged:
    """A sentence of the paper, whether it holds here, and by which figures."""

    says: str
    holds: bool
    figures: str


@dataclass(frozen=True)
class Verdict:
    """The verdict on one case of an experiment."""

    matches: tuple[Match, ...]
    judged: tuple[Judged, ...]
    remark: str = ""

    @property
    def agrees(self) -> bool:
        """Whether every published point agrees and, where none is known, every sentence holds."""
        return all(match.agrees for match in self.matches) if self.matches else all(j.holds for j in self.judged)

    @property
    def summary(self) -> str:
        """The verdict with its counts, without the reason."""
        parts = [self._of_points()] if self.matches else []
        holding = sum(judged.holds for judged in self.judged)
        if self.judged:
            parts.append(f"{holding} of {len(self.judged)} findings hold")
        return ("agrees" if self.agrees else "differs") + (f" ({'; '.join(parts)})" if parts else "")

    def __str__(self) -> str:
        because = "" if self.agrees or not self.remark else f", because {self.remark}"
        return self.summary + because

    def _of_points(self) -> str:
        inside = sum(match.inside for match in self.matches)
        agreeing = sum(match.agrees for match in self.matches)
        return f"{agreeing} of {len(self.matches)} published points met, {inside} of them inside a band"


def judge(experiment: Experiment, variant: str, scores: str, curves: Curves, on_their_data: bool) -> Verdict:
    """Compare a case with the published points (logits on the paper's data alone) and with the paper's sentences."""
    comparable = scores == "logits" and on_their_data
    matches = tuple(_matches(curves, published(experiment.name))) if comparable else ()
    judged = []
    for finding in experiment.findings:
        found = finding.holds(curves)
        if found is not None:
            judged.append(Judged(finding.says, *found))
    return Verdict(
        matches, tuple(judged), experiment.remarks.get(f"{variant}, {scores}", experiment.remarks.get(variant, ""))
    )


def _matches(curves: Curves, points: list[Published]) -> list[Match]:
    found = []
    for theirs in points:
        if theirs.line not in curves.lines() or theirs.x not in curves.xs(theirs.line):
            continue
        ours = curves.at(theirs.line, theirs.x)
        classes = int(curves.row(theirs.line, theirs.x)["classes"])
        found.append(_match(theirs, ours, classes))
    return found


def _match(theirs: Published, ours: Value, classes: int) -> Match:
    size, size_half = ours.size / classes, ours.size_half / classes
    coverage_gap, size_gap = abs(ours.coverage - theirs.coverage), abs(size - theirs.size)
    inside = coverage_gap <= max(ours.coverage_half, theirs.coverage_half) + SLACK and (
        size_gap <= max(size_half, theirs.size_half) + SLACK
    )
    near = coverage_gap <= COVERAGE_TOLERANCE and (
        size_gap <= max(SIZE_TOLERANCE * theirs.size, theirs.size_half) + SLACK
    )
    return Match(theirs, ours.coverage, size, inside, near)
