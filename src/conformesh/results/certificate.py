"""Certificates and costs: what a result may claim, and what it took to get there."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Annotated, Any, Literal

import numpy as np
from msgspec import Meta, Struct
from msgspec.structs import force_setattr
from numpy.typing import NDArray

from conformesh.common.names import list_names
from conformesh.common.quantities import format_bits, format_count, pluralize
from conformesh.files.json_numbers import as_number
from conformesh.files.schemas import Number
from conformesh.kernels.ranks import ANY, MIXTURES, RANK_RULES

CertificateKind = Literal["counted", "counted with noise", "bounded", "assumed", "none"]
Count = Annotated[int, Meta(ge=0)]
_Positive = Annotated[int, Meta(ge=1)]
Amount = Annotated[float, Meta(ge=0)]
_MOST_SHORT = 5  # devices with too few scores that are named in words; `short` has all of them
Devices = Annotated[int, Meta(ge=1, le=10**9)]  # of a file, whose word for it nothing else bounds

CERTIFICATE_KINDS: dict[str, str] = {
    "counted": "the rank was counted exactly",
    "counted with noise": "scores were counted with noise, and the threshold leaves room for this noise",
    "bounded": "an error bound that every device can compute implies the rank",
    "assumed": "valid only under an assumption that nobody checked, named in words",
    "none": "no guarantee",
}


class Noise(Struct, frozen=True, forbid_unknown_fields=True):
    """The noise of a private count, what it protects, and what it costs.

    Coverage of at least 1 - alpha holds on average over calibration scores, new example and noise. One release fixes
    its noise: coverage given the release varies around its mean by about `spread`.

    Attributes
    ----------
    epsilon, unit
        Differential privacy: one `unit` more or less, a score or a device with all its scores, changes the probability
        of everything that others observe by a factor of at most exp(epsilon).
    honest, devices
        It holds if at least `honest` of the devices keep their noise secret.
    cells
        How many cells the released histogram has: the threshold is the end of one of them.
    inflation
        How many scores more than without noise must lie at or below the threshold.
    spread
        The standard deviation of coverage to expect, over calibration scores and noise.
    epochs
        The epochs whose scores were counted.
    cap
        With the unit `device`: the most scores that count of one device.
    simulated
        Whether one program simulated all devices, so that nothing was protected from anybody.
    """

    epsilon: Annotated[float, Meta(gt=0)]
    unit: Literal["score", "device"]
    honest: _Positive
    devices: _Positive
    cells: Annotated[int, Meta(ge=2)]
    inflation: Amount
    spread: Amount
    epochs: Annotated[tuple[_Positive, ...], Meta(min_length=1)] = (1,)
    cap: _Positive | None = None
    simulated: bool = False

    def __str__(self) -> str:
        where = "simulated, which protects nothing; a run on a mesh would have " if self.simulated else ""
        unit = self.unit if self.cap is None else f"{self.unit} with up to {self.cap:,} scores"
        epochs = "" if len(self.epochs) < 2 else f" of epochs {', '.join(map(str, self.epochs))}"
        return (
            f"{where}epsilon {self.epsilon:g} for each {unit}, if {self.honest} of {self.devices} devices keep their "
            f"noise secret; {self.cells:,} cells{epochs}, {self.inflation:.3g} scores more than without noise; "
            "coverage is an average over calibration scores, new example and noise, with a standard deviation of about "
            f"{self.spread:.2g}"
        )


class Certificate(Struct, frozen=True, forbid_unknown_fields=True):
    """Why a threshold may be trusted, and how far.

    Attributes
    ----------
    kind
        `counted`, `bounded`, `assumed` or `none`; see `CERTIFICATE_KINDS`.
    required_rank
        How many of all scores must lie at or below the threshold. A tuple, one per device, where each device answers
        for itself; None where the method's guarantee is not about a rank.
    counted_rank
        How many do, where that was counted; None where nobody counted.
    epsilon
        The method's whole correction: in score units for Q-DCP, as a fraction of the scores for H-DCP.
    epsilon_T, epsilon_bias
        Q-DCP's two parts of it: unfinished convergence, and smoothing with regularisation.
    assumption
        What must hold for the guarantee, in words; empty where nothing but exchangeability is needed.
    mixture, rule
        Which devices new examples come from and by which rule the rank was required: names of `ranks.MIXTURES` and
        `ranks.RANK_RULES`; empty where there is no guarantee.
    weight
        What all scores weigh together, where ranks add up weights and not scores.
    bound, test
        Where scores weigh by a shift: the largest weight that one may have, and that of the new example for which the
        threshold is, in the units of `weight` before those of a device.
    pac_confidence
        With which probability over the draw of the scores the coverage holds; None: on average over these draws.
    time_uniform
        Whether this is the probability that it holds at all looks together, while scores arrive.
    losses
        What the largest possible loss of every item would weigh together, where the guarantee is about a risk and ranks
        add up by how much losses fall: `weight` is what is lost without any set, and `weight` minus the counted rank
        what is still lost at the threshold.
    heard
        The devices that the guarantee is about, where these are not all: those that have reported so far. A new example
        then comes from one of them.
    byzantine
        Up to how many devices may be Byzantine: the guarantee is then about the others.
    noise
        Where totals had noise: how much, whom it hides, and what it costs.
    mixture_bound
        Where the guarantee holds for many mixtures: their shares are at most this many times those of `mixture`.
    short
        Where every device is covered by itself: the devices that have too few scores for that, and how many they have.
    """

    kind: CertificateKind
    required_rank: int | tuple[Count, ...] | None = None
    counted_rank: int | tuple[Count, ...] | None = None
    epsilon: Number | None = None
    epsilon_T: Number | None = None  # noqa: N815 - the paper's symbol, and the JSON key
    epsilon_bias: Number | None = None
    assumption: str = ""
    mixture: str = ""
    rule: str = ""
    weight: Count | None = None
    pac_confidence: Annotated[float, Meta(gt=0, lt=1)] | None = None
    time_uniform: bool = False
    bound: _Positive | None = None
    test: Count | None = None
    losses: Count | None = None
    heard: tuple[str, ...] = ()
    byzantine: Count | None = None
    noise: Noise | None = None
    mixture_bound: Fraction | None = None
    short: dict[str, Count] = {}

    def __post_init__(self) -> None:
        for name in ("epsilon", "epsilon_T", "epsilon_bias"):
            if isinstance(value := getattr(self, name), str):  # a file has words for infinities
                force_setattr(self, name, as_number(value, name))

    def is_short(self, n: int) -> bool:
        """Return whether n scores are too few for the required rank, so that all sets are full."""
        if self.short:
            return True
        have = n if self.weight is None else self.weight
        # With a hidden example the new one is among the n: one less can lie below it. What it weighs is not known here.
        have -= int(self.rule == "hidden" and self.weight is None)
        return isinstance(self.required_rank, int) and self.required_rank > have

    @property
    def mean_losses(self) -> tuple[float, float] | None:
        """The mean loss of the items at the threshold and the largest allowed, as parts of the largest possible loss.

        Rounded up as losses are; items weigh as the mixture says. None where the guarantee is about no risk.
        """
        if not (self.losses and isinstance(self.counted_rank, int) and isinstance(self.required_rank, int)):
            return None
        whole = self.weight or 0
        return (whole - self.counted_rank) / self.losses, (whole - self.required_rank) / self.losses

    def facts(self, n: int | None = None) -> list[tuple[str, str]]:
        """Return names and words of what a person wants to know, the ranks out of n scores where these are known."""
        lines = []
        if self.mean_losses is not None:
            left, allowed = self.mean_losses
            lines.append(("mean loss", f"{left:.4g} of the largest possible at the threshold, allowed {allowed:.4g}"))
        elif isinstance(self.required_rank, int):
            counted = "" if self.counted_rank is None else f", counted {self.counted_rank:,}"
            of = "" if n is None else f" of {n:,} scores"
            of = of if self.weight is None else f" of weight {self.weight:,}"
            lines.append(("rank", f"required {self.required_rank:,}{counted}{of}"))
        elif self.required_rank is not None:
            lines.append(("rank", "required and counted by each device for itself"))
        if self.noise is not None:
            lines.append(("private", str(self.noise)))
        if self.rule:
            lines.append(("about", f"{self._mixture_in_words}; by {RANK_RULES[self.rule]}"))
        lines += [("too few scores", self._short_in_words)] * bool(self.short)
        if self.heard:
            lines.append(("of", f"the {pluralize(len(self.heard), 'device')} heard so far: {list_names(self.heard)}"))
        if self.byzantine is not None:
            lines.append(("byzantine", self._whatever))
        if self.bound is not None:
            lines.append(("weights", "for new examples that are as likely as there, times their weight"))
        if self.pac_confidence is not None:
            lines.append(("pac_confidence", self._probability))
        if self.epsilon is not None:
            parts = ""
            if self.epsilon_T is not None and self.epsilon_bias is not None:
                parts = f" (convergence {self.epsilon_T:.3g}, bias {self.epsilon_bias:.3g})"
            lines.append(("epsilon", f"{self.epsilon:.3g}{parts}"))
        if self.assumption:
            lines.append(("assuming" if self.kind != "none" else "note", self.assumption))
        return lines

    @property
    def _mixture_in_words(self) -> str:
        """Whom the guarantee is about. Scores beyond a cap do not count, so a device weighs by those that do."""
        capped = self.noise is not None and self.noise.cap is not None and self.mixture == "sizes"
        bound = (
            "" if self.mixture_bound is None else f", or with shares up to {float(self.mixture_bound):g} times these"
        )
        return MIXTURES[self.mixture] + (
            f", of which at most {self.noise.cap:,} count" if capped and self.noise else bound
        )

    @property
    def _probability(self) -> str:
        looks = " for all calibrations together," if self.time_uniform else ""
        return f"with probability {self.pac_confidence or 0:g}{looks} over the draw of the scores"

    @property
    def _short_in_words(self) -> str:
        """Which devices have too few scores to be covered by themselves, and what follows."""
        few = [f"device {name} has {n:,}" for name, n in [*self.short.items()][:_MOST_SHORT]]
        more = ", ..." * (len(self.short) > _MOST_SHORT)
        whose = "the threshold of all devices" if self.mixture == ANY else "the threshold of such a device"
        return f"{', '.join(few)}{more}, so that {whose} is +inf"

    @property
    def _whatever(self) -> str:
        return f"about the others, whatever up to {pluralize(self.byzantine or 0, 'device')} may have said"

    def _repr_html_(self) -> str:
        from conformesh.plots import html

        return html.html_card("Certificate", kind=self.kind, claim=CERTIFICATE_KINDS[self.kind], rows=self.facts())

    def __repr__(self) -> str:
        return f"Certificate({self})"

    def __str__(self) -> str:
        parts = [f"{self.kind}: {CERTIFICATE_KINDS[self.kind]}"]
        if self.mean_losses is not None:
            left, allowed = self.mean_losses
            parts.append(f"mean loss {left:.4g} of the largest possible, allowed {allowed:.4g}")
        elif isinstance(self.required_rank, int):
            counted = f", counted rank {self.counted_rank}" if self.counted_rank is not None else ""
            of = "" if self.weight is None else f" of weight {self.weight}"
            parts.append(f"required rank {self.required_rank}{counted}{of}")
        if self.noise is not None:
            parts.append(str(self.noise))
        if self.rule:
            parts.append(f"by {RANK_RULES[self.rule]}, where {self._mixture_in_words}")
        if self.short:
            parts.append(f"too few scores: {self._short_in_words}")
        if self.heard:
            parts.append(f"about the {pluralize(len(self.heard), 'device')} heard so far, {list_names(self.heard)}")
        if self.byzantine is not None:
            parts.append(self._whatever)
        if self.bound is not None:
            parts.append("for new examples that are as likely as there, times their weight")
        if self.pac_confidence is not None:
            parts.append(self._probability)
        if self.epsilon is not None:
            parts.append(f"epsilon {self.epsilon:.3g}")
        if self.assumption:
            parts.append(self.assumption if self.kind == "none" else f"assuming {self.assumption}")
        return "; ".join(parts)


@dataclass(frozen=True, repr=False)
class SidesCertificate:
    """Why intervals with a threshold per side may be trusted: a certificate for each side, and a union bound.

    A label is missed only if it lies below the lower end or above the upper one; so the probability of a miss is at
    most the sum of both, however the sides depend on each other. `alphas` are the levels of the two sides.
    """

    lower: Certificate
    upper: Certificate
    alphas: tuple[float, float]

    @property
    def kind(self) -> CertificateKind:
        """The weaker of both: `counted`, `bounded`, `assumed`, `none`."""
        return max(self.lower.kind, self.upper.kind, key=[*CERTIFICATE_KINDS].index)

    @property
    def _sum(self) -> float:
        return float(sum(Fraction(str(alpha)) for alpha in self.alphas))

    def facts(self, n: int | None = None) -> list[tuple[str, str]]:
        """Return names and words of what a person wants to know: of each side, of both by the union bound, the rest."""
        each = [side.facts(n) for side in (self.lower, self.upper)]
        both = [fact for fact in each[0] if fact in each[1] and fact[0] != "rank"]
        sides = [
            (
                f"{name} side",
                "; ".join([f"missed at most {alpha:g}", *(" ".join(fact) for fact in own if fact not in both)]),
            )
            for name, own, alpha in zip(("lower", "upper"), each, self.alphas, strict=True)
        ]
        return [*sides, ("both", f"missed at most {self._sum:g}, by the union bound"), *both]

    def _repr_html_(self) -> str:
        from conformesh.plots import html

        return html.html_card(
            "Certificate of two sides", kind=self.kind, claim=CERTIFICATE_KINDS[self.kind], rows=self.facts()
        )

    def __repr__(self) -> str:
        return f"SidesCertificate({self})"

    def __str__(self) -> str:
        each = [str(side).split("; ") for side in (self.lower, self.upper)]
        both = [part for part in each[0][1:] if part in each[1] and not part.startswith("required rank")]
        sides = [
            f"{name} side missed at most {alpha:g}: {', '.join(part for part in own[1:] if part not in both) or own[0]}"
            for name, own, alpha in zip(("lower", "upper"), each, self.alphas, strict=True)
        ]
        union = f"one of them at most {self._sum:g}, by the union bound"
        return "; ".join([f"{self.kind}: {CERTIFICATE_KINDS[self.kind]}", *sides, union, *both])


def too_few_certificate(rank: int, n: int) -> Certificate:
    """Certify +inf: with fewer scores than the rank, only the full label set keeps the guarantee."""
    return Certificate("counted", rank, n)


@dataclass(frozen=True, eq=False)
class Cost:
    """What each device sent, as the paper counts it: a broadcast to all neighbours counts once.

    Attributes
    ----------
    rounds
        Synchronous rounds of communication.
    numbers, bits
        Sent by each device, shape (devices,).
    sent
        On a mesh, everything that was sent: also the table of sizes, which a simulator is given, and floods in place of
        a server, which the figures above charge as an upload. None where the figures above are everything.
    """

    rounds: int
    numbers: NDArray[np.float64]
    bits: NDArray[np.float64]
    sent: Cost | None = None

    @property
    def numbers_per_device(self) -> float:
        """Numbers sent, mean over the devices."""
        return _plain(self.numbers)

    @property
    def bits_per_device(self) -> float:
        """Bits sent, mean over the devices."""
        return _plain(self.bits)

    def to_dict(self) -> dict[str, Any]:
        """Return the three figures of the JSON result; on a mesh the same three of everything sent besides."""
        figures = {
            "rounds": self.rounds,
            "numbers_per_device": self.numbers_per_device,
            "bits_per_device": self.bits_per_device,
        }
        return figures if self.sent is None else {**figures, "sent": self.sent.to_dict()}

    def facts(self) -> list[tuple[str, str]]:
        """Return names and words of what a person wants to know."""
        lines = [("rounds", f"{self.rounds:,}")]
        for what, each, show in (("numbers", self.numbers, format_count), ("bits", self.bits, format_bits)):
            if len(each):
                spread = "" if each.min() == each.max() else f", {show(float(each.min()))} to {show(float(each.max()))}"
                lines.append((what, f"{show(float(each.mean()))} sent by each device{spread}"))
        if self.sent is not None:
            lines.append(("on the mesh", str(self.sent)))
        return lines

    def _repr_html_(self) -> str:
        from conformesh.plots import html

        return html.html_card("Cost", rows=self.facts())

    def __repr__(self) -> str:
        return f"Cost({self})"

    def __str__(self) -> str:
        numbers, bits = format_count(self.numbers_per_device), format_count(self.bits_per_device)
        mesh = "" if self.sent is None else f"; with what only a mesh must send {self.sent}"
        return f"{pluralize(self.rounds, 'round')}, {numbers} numbers and {bits} bits per device{mesh}"


def _plain(per_device: NDArray[np.float64]) -> float:
    mean = float(per_device.mean()) if len(per_device) else 0.0
    return int(mean) if mean.is_integer() else mean
