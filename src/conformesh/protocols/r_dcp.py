r"""R-DCP: a threshold that is right for the honest devices whatever up to f Byzantine devices send.

Every device signs and floods a histogram of its scores. The threshold is the smallest one at which the K - f devices
with the largest shortfall together still reach the rank: then so do the honest devices, whichever they are
(`trimming`). A device's threshold is right even if others have a different one, so Byzantine devices gain nothing by
sending different things to different devices.

Assumes     graph connected, K known; at most f devices are Byzantine, honest ones are connected; signatures cannot be
            forged
Guarantees  the rank condition over every set of at least K - f devices, counted from their reports: so over the honest
            ones, in every run. Byzantine devices may know all scores, send each device something else, or nonsense.
            They can make the threshold too large; beyond f (1 + alpha) = alpha K that of any valid rule infinite
Message     two strings of each device, relayed once: the ends of its scores, and a histogram (`histogram_reports`)
Departures  not from a paper

A device that is proven Byzantine (it signed two strings, or an impossible one, or claims more scores than the roster
allows) is left out and subtracted from f: with p proven devices the honest are at least K - f of the K - p others.

A device without a report counts 0 of as many scores as it may hold. Where that maximum is not known, the guarantee
covers the devices that have reported, and assumes that Byzantine devices did not choose by the scores which reports to
withhold.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import partial
from typing import Literal

import numpy as np

from conformesh.common.array_types import Floats
from conformesh.common.names import list_names
from conformesh.common.quantities import pluralize
from conformesh.kernels.ranks import LARGEST_SUM, DeviceRanks
from conformesh.kernels.weighted_scores import WeightedScores
from conformesh.protocols.block import Answers, Block
from conformesh.protocols.histogram_reports import (
    MOST_BINS,
    Report,
    decode_ends,
    decode_reports,
    encode_ends,
    encode_reports,
)
from conformesh.protocols.messages import Gather, GatheredStrings, GatheringProtocol, Packets
from conformesh.protocols.options import check_option_choice, option
from conformesh.protocols.quantiser import check_quantiser
from conformesh.protocols.trimming import TrimmedCount, TrimmedSearch
from conformesh.results.certificate import Certificate

HEARD_ASSUMPTION = "who was heard so far does not depend on the scores, which nobody checked"
UNSIGNED_ASSUMPTION = "no device changes what it passes on for others, which nobody checked"


@dataclass(frozen=True)
class RDCP:
    """Options of R-DCP."""

    byzantine: int | None = option(None, "devices f that may say anything; by default 1, if there are others")
    bins: int = option(4096, "bins of a histogram")
    range: tuple[float, float] | None = option(None, "score range LO HI of the histograms; by default agreed on")
    grid: Literal["agreed", "own"] = option(
        "agreed", "ends of the bins: agreed on, or each device's own, which takes one flood and bears outliers less"
    )
    cap: int | None = option(None, "maximum number of scores per device; larger claims are rejected as Byzantine")
    caps: tuple[int, ...] | None = None  # by row of the network, as in a roster

    def __post_init__(self) -> None:
        check_quantiser(self.bins, self.range)
        check_option_choice("grid", self.grid, ("agreed", "own"))
        if self.bins > MOST_BINS:
            raise ValueError(f"bins must be at most {MOST_BINS}, got {self.bins}")
        if self.byzantine is not None and self.byzantine < 0:
            raise ValueError(f"byzantine must be at least 0, got {self.byzantine}")
        for cap in (self.cap, *(self.caps or ())):
            if cap is not None and cap < 0:
                raise ValueError(f"a cap must be at least 0 scores, got {cap}")

    def byzantine_of(self, devices: int) -> int:
        """Return f, of so many devices."""
        f = min(1, devices - 1) if self.byzantine is None else self.byzantine
        if f >= devices:
            raise ValueError(
                f"byzantine must be fewer than the devices, {devices}, got {f}: if all may lie, no report helps"
            )
        return f

    def caps_of(self, block: Block) -> list[int | None]:
        """Return how many scores every device holds at most, by row; None where nobody knows."""
        if self.caps is not None and len(self.caps) != block.devices:
            raise ValueError(f"caps must have one entry for each of {block.devices} devices, got {len(self.caps)}")
        said = None if block.caps is None else block.caps.tolist()
        own: Sequence[int | None] = self.caps or said or [None] * block.devices
        return [min((one for one in (self.cap, mine) if one is not None), default=None) for mine in own]


def r_dcp(
    block: Block, samples: WeightedScores, alphas: tuple[Fraction, ...], options: RDCP
) -> GatheringProtocol[Answers]:
    """Agree on a grid, collect the histograms of all devices, and find the trimmed thresholds."""
    f, caps = options.byzantine_of(block.devices), options.caps_of(block)
    low, high = samples.extremes(finite=True)  # (devices here, trials), infinite where there are none
    if options.range is not None:
        low, high = (np.full_like(low, end) for end in options.range)
    elif options.grid == "own":
        low, high = (np.where(np.isfinite(end), end, 0.0) for end in (low, high))
    else:
        mine = [encode_ends(*ends) for ends in zip(low, high, strict=True)]
        check = partial(_check_ends, trials=block.trials)
        ends: GatheredStrings = yield Gather(Packets.of(mine), check, sealed=True)
        if ends.heard.sum() + ends.disputed.sum() < block.devices - f:  # f devices may stay silent for ever
            return _waiting_answers(block, alphas, f, ends)
        low, high = (np.broadcast_to(end, low.shape) for end in _grid_from_ends(ends, block.trials, f))
    said = [
        encode_reports(
            [
                Report.of(samples.segment(k, t), float(low[k, t]), float(high[k, t]), options.bins)
                for t in range(block.trials)
            ]
        )
        for k in range(len(block.rows))
    ]
    most = LARGEST_SUM // block.devices
    heard: GatheredStrings = yield Gather(
        Packets.of(said), partial(_check_reports, trials=block.trials, most=most), sealed=True
    )
    words = [
        decode_reports(heard.packets[row], block.trials, most) if here else None for row, here in enumerate(heard.heard)
    ]
    known: dict[bytes, DeviceRanks] = {}
    trials = [
        _TrialReports.of(block, [None if one is None else one[t] for one in words], heard, caps, f, known)
        for t in range(block.trials)
    ]
    found = [[trial.trimming.at(alpha) if trial.enough else None for alpha in alphas] for trial in trials]
    thresholds = np.array([[math.inf if one is None else one.threshold for one in row] for row in found])
    return Answers(
        np.broadcast_to(thresholds, (len(block.rows), *thresholds.shape)).copy(),
        [[trial.certificate(one) for one in row] for trial, row in zip(trials, found, strict=True)],
        notes=tuple(dict.fromkeys(_notes(block, trials, found, alphas, f))),
        facts={"byzantine": str(f)},
        sizes=np.array([[0 if one is None else one[t].size for t in range(block.trials)] for one in words]),
    )


def without_agreed_grid(options: RDCP) -> RDCP:
    """Return options with which a report does not depend on other reports: a device must never sign two strings."""
    return options if options.range is not None else replace(options, grid="own")


def _check_ends(said: bytes, row: int, trials: int) -> None:
    decode_ends(said, trials)


def _check_reports(said: bytes, row: int, trials: int, most: int) -> None:
    decode_reports(said, trials, most)


def _grid_from_ends(ends: GatheredStrings, trials: int, f: int) -> tuple[Floats, Floats]:
    """Return grid ends that f devices cannot stretch: the (f + 1)-th smallest low, and the (f + 1)-th largest high.

    Among f + 1 devices one is honest, so that the grid ends within what honest devices hold; scores beyond it are said
    with the largest of them. Any grid would be right: it only decides how finely scores are told apart.
    """
    said = [decode_ends(ends.packets[row], trials) for row in np.flatnonzero(ends.heard).tolist()]
    found = np.zeros((2, trials))
    for t in range(trials):
        pairs = [(low[t], high[t]) for low, high in said if np.isfinite(low[t]) and np.isfinite(high[t])]
        if pairs:
            lows, highs = np.sort(np.array(pairs), axis=0).T
            place = min(f, (len(pairs) - 1) // 2)
            found[:, t] = sorted((lows[place], highs[-1 - place]))
    return found[0], found[1]


@dataclass(frozen=True, eq=False)
class _TrialReports:
    """The reports of one trial from the devices that may be honest.

    `about` names the devices that the guarantee covers, where these are not all.
    """

    trimming: TrimmedSearch
    rows: tuple[int, ...]
    byzantine: int
    target: str
    about: tuple[str, ...] = ()
    assumption: str = ""
    proven: tuple[str, ...] = field(default=())

    @classmethod
    def of(
        cls,
        block: Block,
        words: Sequence[Report | None],
        heard: GatheredStrings,
        caps: Sequence[int | None],
        f: int,
        known: dict[bytes, DeviceRanks],
    ) -> _TrialReports:
        ids, requirement = block.network.ids, block.requirement
        over = [one is not None and cap is not None and one.size > cap for one, cap in zip(words, caps, strict=True)]
        proven = heard.disputed | np.array(over)
        if proven.sum() > f:
            names = list_names([ids[row] for row in np.flatnonzero(proven).tolist()])
            raise ValueError(
                f"r-dcp: devices {names} are proven to lie and byzantine={f}, so that nothing holds; ask for at least "
                f"{int(proven.sum())} Byzantine devices, or leave these devices out"
            )
        by_size = requirement.mixture in ("sizes", "paper")  # else what a device weighs does not depend on its size
        unknown = ~heard.heard & ~proven & np.array([cap is None and by_size for cap in caps])
        asked = ~proven & (heard.heard if unknown.any() else True)
        rows = np.flatnonzero(asked)
        reports = [words[row] for row in rows.tolist()]
        sizes = np.array(
            [caps[row] or 0 if one is None else one.size for row, one in zip(rows.tolist(), reports, strict=True)],
            dtype=np.int64,
        )
        shares = None if requirement.shares is None else [requirement.shares[ids[row]] for row in rows.tolist()]
        key = rows.tobytes() + sizes.tobytes()
        if key not in known:  # draws of one experiment often have the same sizes
            known[key] = requirement.device_ranks(sizes, shares, ~heard.heard[rows])
        return cls(
            TrimmedSearch(reports, sizes, known[key], f - int(proven.sum())),
            tuple(rows.tolist()),
            f,
            requirement.mixture,
            tuple(ids[row] for row in rows.tolist()) if unknown.any() else (),
            " and ".join([HEARD_ASSUMPTION] * bool(unknown.any()) + [UNSIGNED_ASSUMPTION] * (not heard.sealed)),
            tuple(ids[row] for row in np.flatnonzero(proven).tolist()),
        )

    @property
    def enough(self) -> bool:
        """Whether more devices remain than may be Byzantine."""
        return len(self.rows) > self.trimming.byzantine

    def certificate(self, found: TrimmedCount | None) -> Certificate:
        """Return the certificate with the counts of the worst devices, which bound those of the honest ones."""
        required, counted, weight = (1, 0, 0) if found is None else (found.required, found.counted, found.weight)
        return Certificate(
            "assumed" if self.assumption else "counted",
            required,
            counted,
            assumption=self.assumption,
            mixture=self.target,
            rule=self.trimming.parts.rule,
            weight=weight,
            heard=self.about,
            byzantine=self.byzantine,
        )


def _waiting_answers(block: Block, alphas: tuple[Fraction, ...], f: int, ends: GatheredStrings) -> Answers:
    """Return +inf, which is always right: too few devices have reported for a grid."""
    nothing = Certificate("counted", 1, 0, mixture=block.requirement.mixture, rule="swap", weight=0, byzantine=f)
    return Answers(
        np.full((len(block.rows), block.trials, len(alphas)), math.inf),
        [[nothing] * len(alphas) for _ in range(block.trials)],
        notes=(
            f"r-dcp: {int(ends.heard.sum())} of {block.devices} devices were heard; with byzantine={f} a grid needs "
            f"the words of {block.devices - f}",
        ),
        facts={"byzantine": str(f)},
    )


def most_tolerable(devices: int, alpha: Fraction) -> int:
    """Return the largest number of Byzantine devices beyond which every valid rule can be made infinite.

    If all devices have n scores, so many are tolerated if they are fewer than alpha K / (1 + alpha) by a margin of
    1 / n (docs/guarantees.md).

    >>> most_tolerable(20, Fraction(1, 10)), most_tolerable(100, Fraction(1, 10))
    (1, 9)
    """
    return math.floor(alpha * devices / (1 + alpha))


def _notes(
    block: Block,
    trials: Sequence[_TrialReports],
    found: Sequence[Sequence[TrimmedCount | None]],
    alphas: tuple[Fraction, ...],
    f: int,
) -> Iterator[str]:
    """Yield notes on proven Byzantine devices, and on the devices whose reports make a threshold +inf."""
    ids = block.network.ids
    for trial, row in zip(trials, found, strict=True):
        if trial.proven:
            yield (
                f"r-dcp: devices {list_names(trial.proven)} are proven to lie, by two strings that they signed, one "
                "that nobody could say or more scores than they may hold; they are left out and count as Byzantine"
            )
        for alpha, one in zip(alphas, row, strict=True):
            if one is None or one.threshold < math.inf or one.required > one.weight:
                continue
            counts = trial.trimming.counts(math.inf)
            few = [k for k in one.worst if counts[k] < (1 - alpha) * int(trial.trimming.sizes[k])]
            names = list_names([ids[trial.rows[k]] for k in few])
            yield (
                f"r-dcp: no finite threshold is right for every {block.devices - f} of {block.devices} devices, since "
                f"{pluralize(len(few), 'device')} {names} say that too few of their scores are finite, or were not "
                f"heard of, and may be honest; {_remedy(block.devices, alpha, f)}"
            )


def _remedy(devices: int, alpha: Fraction, f: int) -> str:
    most = most_tolerable(devices, alpha)
    if f > most:
        return (
            f"with alpha={float(alpha):g} no rule that holds for all honest devices bears more than "
            f"{pluralize(most, 'Byzantine device')} of {devices} if these want it infinite; use fewer, more devices or "
            "a larger alpha, or leave out whom you do not trust"
        )
    return (
        "give a cap on how many scores a device holds, hear those that are missing, or leave out whom you do not trust"
    )
