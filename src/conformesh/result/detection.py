"""Detection: which test points are flagged, with how many false alarms at most, and what that took."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from conformesh._version import __version__
from conformesh.io.files import write_file
from conformesh.io.json_numbers import in_json, to_json
from conformesh.io.writing import ENDINGS, check_ending, write_columns
from conformesh.kernels.ranks import MIXTURES
from conformesh.quantities import several
from conformesh.result.certificate import Cost

FORMAT = "conformesh/detection"
SHOWN = 10  # devices that are printed


@dataclass(frozen=True, eq=False, repr=False)
class Detection:
    """The result of `detect`.

    Attributes
    ----------
    fdr, level
        The tolerated false discovery rate, and the level at which the rule ran so that it is kept.
    rule
        `thinned`, which is proven, or `plain`, which is assumed.
    target
        Where ordinary test points come from: a name of `ranks.MIXTURES`.
    scores, flagged, p_values
        By device: its test scores, whether each is flagged, and its p-value (None where these were not asked for).
    threshold
        Test scores above it are flagged; +inf where none is.
    draws, chance, seed
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
    target: str
    scores: Mapping[str, NDArray[np.float64]]
    flagged: Mapping[str, NDArray[np.bool_]]
    p_values: Mapping[str, NDArray[np.float64]] | None
    threshold: float
    draws: int
    chance: float
    steps: int
    seed: int
    cost: Cost
    network: str = ""
    seconds: float = 0.0
    options: dict[str, str] = field(default_factory=dict)

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
        where = f"ordinary test points are independent, and {MIXTURES[self.target]}"
        rate = f"the false discovery rate is at most {self.fdr:g}"
        if self.rule == "thinned":
            return (
                f"counted: {rate}, where scores of a device are independent draws, {where}; it is an average over the "
                f"scores, the ordinary test points and the random choice of {self.draws:,} calibration scores, here by "
                f"seed {self.seed}; level {self.level:.6g}"
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

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON object; infinity is the string "inf"."""
        devices = {
            name: {
                "scores": own.tolist(),
                "p_values": None if self.p_values is None else self.p_values[name].tolist(),
                "flagged": np.flatnonzero(self.flagged[name]).tolist(),
            }
            for name, own in self.scores.items()
        }
        clean: dict[str, Any] = in_json(
            {
                "format": FORMAT,
                "version": __version__,
                "fdr": self.fdr,
                "rule": self.rule,
                "certificate": self.certificate,
                "kind": self.kind,
                "target": self.target,
                "tests": self.tests,
                "flagged": self.flags,
                "threshold": self.threshold,
                "level": self.level,
                "draws": self.draws,
                "chance": self.chance,
                "seed": self.seed,
                "steps": self.steps,
                "cost": self.cost.to_dict(),
                "seconds": self.seconds,
                "network": self.network,
                "options": self.options,
                "devices": devices,
            }
        )
        return clean

    def to_json(self) -> str:
        """Return the JSON object on one line."""
        return to_json(self.to_dict())

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the result as JSON, or its table as CSV, Parquet or NPZ, by the ending of the name; whole or not."""
        path = Path(path)
        check_ending(path, (".json", *ENDINGS))
        if path.suffix.lower() == ".json":
            write_file(path, to_json(self.to_dict(), indent=2))
        else:
            write_columns(path, self.columns())

    def __str__(self) -> str:
        return f"{self.flags:,} of {several(self.tests, 'test point')} flagged; {self.certificate}"

    def _lines(self, most: int | None) -> list[list[str]]:
        """Return how many are flagged on each device, in words, and what the columns are."""
        return [["device", "tests", "flagged"]] + [
            [name, f"{len(own):,}", f"{int(self.flagged[name].sum()):,}"] for name, own in [*self.scores.items()][:most]
        ]

    def _repr_html_(self) -> str:
        from conformesh import cards

        head, *rows = self._lines(None)
        facts = [
            ("threshold", f"test scores above {self.threshold:.6g} are flagged"),
            ("cost", str(self.cost)),
            ("network", self.network),
        ]
        return cards.card(
            f"{self.flags:,} of {several(self.tests, 'test point')} flagged",
            kind=self.kind,
            claim=self.certificate.removeprefix(f"{self.kind}: "),
            rows=[fact for fact in facts if fact[1]],
            parts=[
                cards.fold(f"by device ({len(rows):,})", cards.table(head, rows, right=head[1:]), len(rows) <= SHOWN)
            ],
        )

    def __repr__(self) -> str:
        """Return how many are flagged on each device."""
        head = f"Detection({self.flags:,} of {several(self.tests, 'test point')} flagged, {self.kind}; {self.cost})"
        lines = self._lines(SHOWN)
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        shown = ["  ".join([line[0].ljust(widths[0]), *map(str.rjust, line[1:], widths[1:])]) for line in lines]
        more = [f"... and {len(self.scores) - SHOWN:,} more devices"] if len(self.scores) > SHOWN else []
        return "\n".join([head, *shown, *more])
