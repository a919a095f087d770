"""Quantiles: values at given parts of the pooled data, how far their ranks may be off, and what they cost."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from fractions import Fraction
from typing import Annotated, Any, ClassVar

import numpy as np
from msgspec import Meta, field, json, structs
from numpy.typing import NDArray

from conformesh import __version__
from conformesh.common.array_types import Floats
from conformesh.common.quantities import pluralize
from conformesh.files.schemas import validate
from conformesh.kernels.ranks import exact_alpha, exact_number
from conformesh.privacy.histogram import Release
from conformesh.privacy.rank_errors import read_quantile
from conformesh.results.certificate import CERTIFICATE_KINDS, Devices, Noise
from conformesh.results.encoding import ArrayResult, SavedCost, align_columns

QUANTILES_FORMAT = "conformesh-quantiles/1"


class Quantiles(ArrayResult, frozen=True, eq=False, tag_field="format", tag=QUANTILES_FORMAT):
    """The result of `quantiles`: behaves like the array of its values.

    Attributes
    ----------
    q
        Which parts of the data were asked for, as given.
    values
        One value for each q, the same on every device.
    n
        How many values all devices hold together; with epsilon the released number, which has noise.
    rank_error
        For each q: with probability `confidence`, for all q at once, the number of values at or below the returned one
        differs from q n by at most this. Zeros without epsilon, where each value is exactly the one of rank
        ceil(q n), at least 1.
    confidence
        The probability over the noise with which all rank errors hold; 1 without epsilon.
    epsilon
        The privacy loss of the release; None where quantiles are exact.
    column, devices, network
        The name of the column where the data were a frame, how many devices there are, and who talks to whom.
    cost
        Rounds, numbers and bits that each device sent; None where the quantiles were read from a stored release, which
        costs nothing.
    privacy
        What the run protects, and under which condition, in words; empty where quantiles are exact.
    release
        The noisy histogram as JSON, from which `with_q` reads other quantiles; None where quantiles are exact.
    options
        What was chosen on the way.
    """

    q: Annotated[tuple[Annotated[float, Meta(ge=0, le=1)], ...], Meta(min_length=1)]
    values: Floats
    n: int
    rank_error: Floats
    confidence: Annotated[float, Meta(gt=0, le=1)]
    epsilon: Annotated[float, Meta(gt=0)] | None
    column: str
    devices: Devices
    cost: SavedCost | None = None
    network: str = ""
    seconds: float = 0.0
    privacy: str = ""
    release: dict[str, Any] | None = None
    options: dict[str, Any] = field(default_factory=dict)
    version: str = __version__

    noun: ClassVar[str] = "a result of `conformesh quantiles`"
    derived: ClassVar[tuple[str, ...]] = ("kind", "guarantee")

    @property
    def array(self) -> Floats:
        """The values."""
        return self.values

    @property
    def kind(self) -> str:
        """How the ranks are known: a name of `CERTIFICATE_KINDS`."""
        return "counted" if self.epsilon is None else "counted with noise"

    @property
    def guarantee(self) -> str:
        """What holds for the values, in words."""
        if self.epsilon is None:
            return (
                f"each value is the smallest with at least the part q of all {self.n:,} values at or below it, exactly "
                "as if the data were pooled"
            )
        together = "" if len(self) == 1 else f", for all {len(self)} quantiles at once"
        return (
            f"with probability {self.confidence:g} over the noise{together}, the number of values at or below the "
            "returned value differs from q times the number of all values by at most the rank error"
        )

    def with_q(self, q: Any, confidence: Any = None) -> Quantiles:
        """Return other quantiles of the same release, with their own rank errors; no further epsilon is spent."""
        if self.release is None or self.epsilon is None:
            raise ValueError("these quantiles are exact and hold no release; ask for others with quantiles(data, ...)")
        noise = Noise(self.epsilon, "score", self.devices, self.devices, self.release["cells"], 0.0, 0.0)
        level = exact_alpha(self.confidence if confidence is None else confidence, "confidence")
        other = quantiles_from_release(parse_release(self.release), exact_parts(q), level, noise)
        return structs.replace(other, column=self.column, network=self.network, privacy=self.privacy)

    def columns(self) -> dict[str, NDArray[Any]]:
        """Return a table with a row for each quantile: q, value and rank error."""
        return {"q": np.array(self.q, dtype=np.float64), "value": self.values, "rank_error": self.rank_error}

    def contradictions(self) -> Iterator[str]:
        """Yield what cannot be so."""
        if not len(self.q) == len(self.values) == len(self.rank_error):
            yield (
                f"q, values and rank_error must have one number for each quantile, got {len(self.q)}, "
                f"{len(self.values)} and {len(self.rank_error)}"
            )

    def plot(self, ax: Any = None, path: str | os.PathLike[str] | None = None) -> Any:
        """Draw the values over q, with the rank errors as parts of n; returns the figure."""
        from conformesh.plots.results import draw_quantiles

        return draw_quantiles(self, ax, path)

    def lines(self) -> list[list[str]]:
        """Return the table in words, its heading first; rank errors only where there can be some."""
        noisy = self.epsilon is not None
        parts = 100 * self.rank_error / max(self.n, 1)
        errors = [f"{e:,.0f} ({part:.2g} %)" for e, part in zip(np.ceil(self.rank_error), parts, strict=True)]
        rows = [[f"{q:g}", f"{value:.6g}", error] for q, value, error in zip(self.q, self.values, errors, strict=True)]
        table = [["q", "value", "rank error"], *rows]
        return table if noisy else [row[:2] for row in table]

    def facts(self) -> list[tuple[str, str]]:
        """Return names and words of what a person wants to know besides the table."""
        found = [("guarantee", f"{self.kind}: {self.guarantee}"), ("data", self._data_in_words)]
        if self.privacy:
            found.append(("privacy", self.privacy))
        stored = "none: read from a stored release, which spends no further epsilon"
        found.append(("cost", stored if self.cost is None else str(self.cost)))
        return [*found, ("network", self.network)] if self.network else found

    @property
    def _data_in_words(self) -> str:
        about, named = "" if self.epsilon is None else "about ", f" of {self.column}" if self.column else ""
        return f"{about}{pluralize(self.n, 'value')}{named} on {pluralize(self.devices, 'device')}"

    def __str__(self) -> str:
        return f"{self._summary}; {self.kind}: {self.guarantee}"

    @property
    def _summary(self) -> str:
        return ", ".join(f"{q:g}: {value:.6g}" for q, value in zip(self.q, self.values, strict=True))

    def __repr__(self) -> str:
        cost = "no cost" if self.cost is None else str(self.cost)
        epsilon = "" if self.epsilon is None else f", epsilon {self.epsilon:g}"
        head = f"Quantiles({self._data_in_words}, {self.kind}{epsilon}; {cost})"
        return "\n".join([head, *align_columns(self.lines())])

    def _repr_html_(self) -> str:
        from conformesh.plots import html

        head, *rows = self.lines()
        facts = [(name, words) for name, words in self.facts() if name != "guarantee"]
        return html.html_card(
            pluralize(len(self), "quantile") + (f" of {self.column}" if self.column else ""),
            kind=self.kind,
            claim=f"{CERTIFICATE_KINDS[self.kind].capitalize()}: {self.guarantee}."
            if self.epsilon is None
            else self.guarantee,
            rows=facts,
            parts=[html.html_table(head, rows, right=head)],
        )


def parse_release(raw: Any, where: str = "release") -> Release:
    """Return the release that a result holds as JSON; `where` names it in an error."""
    return validate(raw, Release, where)


def quantiles_from_release(
    release: Release, parts: Sequence[Fraction], confidence: Fraction, noise: Noise
) -> Quantiles:
    """Read quantiles from a release, at no further cost; `noise` says what the release protects."""
    refuse_extremes(parts)
    if release.items is not None:
        raise ValueError(
            f"quantiles need a release that counts every value once, mixture 'sizes', got {release.mixture!r}, which "
            "pads and copies values"
        )
    risk = float(1 - confidence) / len(parts)  # union bound
    read = [read_quantile(release, part, risk) for part in parts]
    return Quantiles(
        q=tuple(map(float, parts)),
        values=np.array([value for value, _, _ in read]),
        n=release.number,
        rank_error=np.array([resolution + error for _, resolution, error in read]),
        confidence=float(confidence),
        epsilon=noise.epsilon,
        column="",
        devices=noise.devices,
        privacy=_protects(noise),
        release=json.decode(json.encode(release)),
        options={"resolution": [resolution for _, resolution, _ in read]},
    )


def _protects(noise: Noise) -> str:
    """Say what a release protects."""
    unit = "value" if noise.cap is None else f"device, of which at most {noise.cap:,} values count,"
    who = f"{noise.honest} of {noise.devices} devices keep their noise secret"
    words = f"epsilon {noise.epsilon:g} for each {unit} if {who}"
    if noise.simulated:
        return f"none: this was a simulation, and one program saw all values. A run on a mesh would have {words}"
    return words


def refuse_extremes(parts: Sequence[Fraction]) -> None:
    """Refuse the smallest and the largest value, which belong to one record each."""
    for part in parts:
        if not 0 < part < 1:
            raise ValueError(
                f"with epsilon q must lie strictly between 0 and 1, got {float(part):g}: the smallest and the largest "
                "value are those of one record, which noise hides"
            )


def exact_parts(q: Any) -> tuple[Fraction, ...]:
    """Return the parts that a user asked for, exactly; one number or several.

    >>> exact_parts([0.25, "0.5"])
    (Fraction(1, 4), Fraction(1, 2))
    """
    many = hasattr(q, "__iter__") and not isinstance(q, str) and not (isinstance(q, np.ndarray) and q.ndim == 0)
    found = tuple(_part(one) for one in (q if many else [q]))
    if not found:
        raise ValueError("q must name at least one quantile, such as q=[0.5], got none")
    return found


def _part(q: Any) -> Fraction:
    value = exact_number(q, f"q must be a number from 0 to 1, got {q!r}")
    if not 0 <= value <= 1:
        percent = f"; for the percentile {float(value):g} write {float(value) / 100:g}" if 1 < value <= 100 else ""
        raise ValueError(f"q must be a number from 0 to 1, got {q}{percent}")
    return value
