"""Detection: which test points are flagged, with how many false alarms at most, and what that took."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar, Literal

import numpy as np
from msgspec import field
from msgspec.structs import force_setattr
from numpy.typing import NDArray

from conformesh import __version__
from conformesh.common.names import unknown_name
from conformesh.common.quantities import pluralize
from conformesh.files.json_numbers import as_number
from conformesh.files.schemas import Number
from conformesh.kernels.ranks import MIXTURES
from conformesh.results.certificate import Amount, Count
from conformesh.results.encoding import ArrayResult, SavedCost, align_columns

_MOST_PRINTED = 10  # devices that are printed


class Detection(ArrayResult, frozen=True, eq=False, tag_field="format", tag="conformesh-detection/1"):
    """The result of `detect`.

    As an array it says of every test point, device by device, whether it is flagged.

    Attributes
    ----------
    fdr, level
        The tolerated false discovery rate, and the level at which the rule ran so that it is kept.
    rule
        `thinned`, which is proven, or `plain`, which is assumed.
    mixture
        Which devices ordinary test points come from: a name of `ranks.MIXTURES`.
    scores, flagged, p_values
        By device: its test scores, whether each is flagged, and its p-value (None where these were not asked for).
    threshold
        Test scores above it are flagged; +inf where none is.
    sample_size, chance, seed
        How many calibration scores were used; for the thinned rule the chance that a draw needs no redrawing, a lower
        bound, and the seed of the draw: ``rng=result.seed`` repeats the run.
    steps
        How often the devices counted how many are flagged.
    cost
        Rounds, numbers and bits each device sent.
    """

    fdr: float
    level: float
    rule: str
    mixture: str
    scores: dict[str, NDArray[np.float64]]
    flagged: dict[str, NDArray[np.bool_]]
    p_values: dict[str, NDArray[np.float64]] | None
    threshold: Number
    sample_size: Count
    chance: Amount
    steps: Count
    seed: Count
    cost: SavedCost
    network: str = ""
    seconds: Amount = 0.0
    options: dict[str, Any] = field(default_factory=dict)
    version: str = __version__

    noun: ClassVar[str] = "a result of `detect`"
    derived: ClassVar[tuple[str, ...]] = ("kind", "certificate", "tests", "flags")

    def __post_init__(self) -> None:
        threshold: Any = self.threshold
        if isinstance(threshold, str):  # a file has words for infinities
            force_setattr(self, "threshold", as_number(threshold, "threshold"))

    @property
    def array(self) -> NDArray[np.bool_]:
        """Whether each test point is flagged, device by device."""
        return np.concatenate([np.empty(0, dtype=bool), *self.flagged.values()])

    @property
    def devices(self) -> int:
        """How many devices took part."""
        return len(self.scores)

    @property
    def tests(self) -> int:
        """How many test points there were."""
        return sum(len(own) for own in self.scores.values())

    @property
    def flags(self) -> int:
        """How many are flagged."""
        return sum(int(own.sum()) for own in self.flagged.values())

    @property
    def kind(self) -> Literal["counted", "assumed"]:
        """Whether the rate is proven, from exact counts, or assumed."""
        return "counted" if self.rule == "thinned" else "assumed"

    @property
    def certificate(self) -> str:
        """Why the flags may be trusted, and how far, in words."""
        where = f"ordinary test points are independent, and {MIXTURES[self.mixture]}"
        rate = f"the false discovery rate is at most {self.fdr:g}"
        if self.rule == "thinned":
            return (
                f"counted: {rate}, where scores of a device are independent draws, {where}; it is an average over the "
                f"scores, the ordinary test points and the random choice of {self.sample_size:,} calibration scores, "
                f"here by seed {self.seed}; level {self.level:.6g}"
            )
        return (
            f"assumed: {rate}, where {where}, assuming that p-values of devices with fixed numbers of scores do not "
            "upset Benjamini and Hochberg's rule, which is not proved"
        )

    def columns(self) -> dict[str, NDArray[Any]]:
        """Return a table with a row for each test point: device, its row there, score, p-value where known, flag."""
        sizes = [len(own) for own in self.scores.values()]
        found: dict[str, NDArray[Any]] = {
            "device": np.repeat(np.array([*self.scores], dtype=str), sizes),
            "row": np.concatenate([np.empty(0, dtype=np.int64), *(np.arange(size) for size in sizes)]),
            "score": np.concatenate([np.empty(0), *self.scores.values()]),
        }
        if self.p_values is not None:
            found["p"] = np.concatenate([np.empty(0), *self.p_values.values()])
        return found | {"flagged": np.concatenate([np.empty(0, dtype=bool), *self.flagged.values()])}

    def contradictions(self) -> Iterator[str]:
        """Yield what cannot be so."""
        if self.mixture not in MIXTURES:
            yield unknown_name("mixture", self.mixture, MIXTURES)
        if self.rule not in ("thinned", "plain"):
            yield unknown_name("rule", self.rule, ("thinned", "plain"))
        if not 0 < self.level <= self.fdr < 1:
            yield f"level and fdr must be numbers between 0 and 1, level the smaller, got {self.level} and {self.fdr}"
        shapes = {name: own.shape for name, own in self.scores.items()}
        for what, given in (("flagged", self.flagged), ("p_values", self.p_values)):
            if given is not None and {name: own.shape for name, own in given.items()} != shapes:
                yield f"{what} must have one entry for each test score of each device"
        for name, own in self.scores.items():
            if not np.array_equal(self.flagged.get(name, own), own > self.threshold):
                yield f"device {name}: flagged must mark the test scores above the threshold, {self.threshold:g}"

    def __str__(self) -> str:
        return f"{self.flags:,} of {pluralize(self.tests, 'test point')} flagged; {self.certificate}"

    def _lines(self, most: int | None) -> list[list[str]]:
        """Return how many are flagged on each device, in words, and what the columns are."""
        return [["device", "tests", "flagged"]] + [
            [name, f"{len(own):,}", f"{int(self.flagged[name].sum()):,}"] for name, own in [*self.scores.items()][:most]
        ]

    def _repr_html_(self) -> str:
        from conformesh.plots import html

        head, *rows = self._lines(None)
        facts = [
            ("threshold", f"test scores above {self.threshold:.6g} are flagged"),
            ("cost", str(self.cost)),
            ("network", self.network),
        ]
        return html.html_card(
            f"{self.flags:,} of {pluralize(self.tests, 'test point')} flagged",
            kind=self.kind,
            claim=self.certificate.removeprefix(f"{self.kind}: "),
            rows=[fact for fact in facts if fact[1]],
            parts=[
                html.collapsible(
                    f"by device ({len(rows):,})",
                    html.html_table(head, rows, right=head[1:]),
                    len(rows) <= _MOST_PRINTED,
                )
            ],
        )

    def __repr__(self) -> str:
        """Return how many are flagged on each device."""
        head = f"Detection({self.flags:,} of {pluralize(self.tests, 'test point')} flagged, {self.kind}; {self.cost})"
        left = len(self.scores) - _MOST_PRINTED
        more = [f"... and {left:,} more devices"] if left > 0 else []
        return "\n".join([head, *align_columns(self._lines(_MOST_PRINTED), left=1), *more])
