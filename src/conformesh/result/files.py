"""Result files: what a saved calibration looks like, and what must fit together in it before anybody relies on it.

A file cannot be checked against the scores, which it does not hold. But whatever it says twice must agree, and what
follows from the number of scores, of devices and alpha must have followed.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from fractions import Fraction
from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from conformesh.io.json_numbers import number
from conformesh.io.memberships import EVERYONE
from conformesh.io.schemas import Number, checked
from conformesh.kernels.ranks import GROUP_RULES, LOSS_UNITS, MIXTURES, RANK_RULES, conformal_rank, exact_alpha
from conformesh.names import unknown
from conformesh.result.certificate import Kind

FORMAT = "conformesh-calibration/1"
SEVERAL = "conformesh-calibrations/1"
SIDES = "conformesh-sides/1"

Count = Annotated[int, Meta(ge=0)]
Amount = Annotated[float, Meta(ge=0)]
Rank = int | list[Count] | None


class _NoiseFields(Struct, forbid_unknown_fields=True):
    """A `Noise` as JSON."""

    epsilon: Annotated[float, Meta(gt=0)]
    unit: Literal["score", "device"]
    honest: Annotated[int, Meta(ge=1)]
    devices: Annotated[int, Meta(ge=1)]
    cells: Annotated[int, Meta(ge=2)]
    inflation: Amount
    spread: Amount
    epochs: Annotated[list[Annotated[int, Meta(ge=1)]], Meta(min_length=1)]
    cap: Annotated[int, Meta(ge=1)] | None
    simulated: bool


class _CertificateFields(Struct, forbid_unknown_fields=True):
    """A `Certificate` as JSON."""

    kind: Kind
    required_rank: Rank
    counted_rank: Rank
    epsilon: Number | None
    epsilon_T: Number | None  # noqa: N815 - the paper's symbol
    epsilon_bias: Number | None
    assumption: str
    mixture: str = ""
    rule: str = ""
    weight: Count | None = None
    pac_confidence: Annotated[float, Meta(gt=0, lt=1)] | None = None
    bound: Annotated[int, Meta(ge=1)] | None = None
    test: Count | None = None
    losses: Count | None = None
    heard: list[str] = []
    liars: Count | None = None
    noise: _NoiseFields | None = None


class CostFields(Struct, forbid_unknown_fields=True):
    """A `Cost` as JSON: means over the devices; of a mesh also of everything sent."""

    rounds: Count
    numbers_per_device: Amount
    bits_per_device: Amount
    sent: CostFields | None = None


class RiskFields(Struct, forbid_unknown_fields=True):
    """What a `Control` has beside a `Calibration`, as JSON."""

    level: Annotated[float, Meta(gt=0)]
    bound: Annotated[float, Meta(gt=0)]
    loss: dict[str, Any] | None


class _CalibrationFields(Struct, forbid_unknown_fields=True):
    """A `Calibration` as JSON."""

    format: Literal["conformesh-calibration/1"]
    version: str
    method: str
    alpha: Annotated[float, Meta(gt=0, lt=1)]
    devices: Annotated[int, Meta(ge=1)]
    scores: Count
    threshold: Number
    thresholds: list[Number]
    estimate: Number | None
    certificate: _CertificateFields
    cost: CostFields
    seconds: Amount
    network: str
    options: dict[str, Any]
    score: dict[str, Any] | None
    device_ids: Annotated[list[str], Meta(min_length=1)]
    notes: list[str]
    bracket: tuple[float, float] | None = None
    classes: list[str | bool | int | float] | None = None
    group: str | None = None
    weight_bound: Annotated[float, Meta(gt=0)] | None = None
    test_weight: Amount | None = None
    risk: RiskFields | None = None

    @property
    def level(self) -> Fraction:
        """Alpha as it was written, or the risk as a part of the largest possible loss."""
        if self.risk is None:
            return exact_alpha(str(self.alpha))
        return Fraction(str(self.risk.level)) / Fraction(str(self.risk.bound))


class _CalibrationsFields(Struct, forbid_unknown_fields=True):
    """`Calibrations` as JSON."""

    format: Literal["conformesh-calibrations/1"]
    method: str
    alphas: Annotated[list[float], Meta(min_length=1)]
    groups: Annotated[list[str | None], Meta(min_length=1)]
    cost: CostFields
    calibrations: list[dict[str, Any]]
    rule: str = ""
    members: dict[str, list[str]] = {}


class _SidesFields(Struct, forbid_unknown_fields=True):
    """`Sides` as JSON."""

    format: Literal["conformesh-sides/1"]
    lower: dict[str, Any]
    upper: dict[str, Any]


def checked_calibration(raw: Any, where: str) -> _CalibrationFields:
    """Return the fields of a result file, each of its type and all of them consistent, or say what is wrong."""
    _require_format(raw, FORMAT, "a result of `conformesh calibrate`", where)
    fields = checked(raw, _CalibrationFields, where)
    _require_method(fields, where)
    for problem in _contradictions(fields):
        raise ValueError(f"{where}: {problem}; it was changed or damaged since it was written: calibrate again")
    return fields


def checked_calibrations(raw: Any, where: str) -> _CalibrationsFields:
    """Return the fields of a file with several results, whose parts are still to be checked, or say what is wrong."""
    _require_format(raw, SEVERAL, "several calibrations (several alphas, or groups)", where)
    fields = checked(raw, _CalibrationsFields, where)
    wanted = [(group, alpha) for group in fields.groups for alpha in fields.alphas]
    got = [(item.get("group"), _level(item)) for item in fields.calibrations]
    if got != wanted:
        raise ValueError(
            f"{where}: it lists {len(fields.groups)} groups and {len(fields.alphas)} alphas, so calibrations must have "
            f"one entry for each pair of them, in this order, got {len(got)} others; it was changed or damaged"
        )
    for problem in _mismatched_groups(fields):
        raise ValueError(f"{where}: {problem}; it was changed or damaged since it was written: calibrate again")
    return fields


def checked_sides(raw: Any, where: str) -> _SidesFields:
    """Return the two results of a file with one for each side, which are still to be checked, or say what is wrong."""
    _require_format(raw, SIDES, "a result of `calibrate_sides`", where)
    fields = checked(raw, _SidesFields, where)
    for key in ("method", "devices", "device_ids", "scores", "score", "cost", "network"):
        if (one := fields.lower.get(key)) != (other := fields.upper.get(key)):
            raise ValueError(
                f"{where}: both sides come from one run, so {key} must agree, got {one!r:.40} and {other!r:.40}; it "
                "was changed or damaged since it was written: calibrate again"
            )
    return fields


def _level(raw: dict[str, Any]) -> Any:
    """Return the level of one of several results: its risk, or alpha."""
    risk = raw.get("risk")
    return risk.get("level") if isinstance(risk, dict) else raw.get("alpha")


def _mismatched_groups(file: _CalibrationsFields) -> Iterator[str]:
    """Yield what cannot be so in the groups of a file where they may overlap."""
    if not file.rule:
        if file.members:
            yield "members are for groups that overlap, whose rule must be named"
        return
    if file.rule not in GROUP_RULES:
        yield unknown("group rule", file.rule, GROUP_RULES)
    names = {name for atom in file.members.values() for name in atom}
    wanted = {*file.members} if file.rule in ("atoms", "regression") else {*names, EVERYONE}
    if {*file.groups} != wanted or len({tuple(atom) for atom in file.members.values()}) < len(file.members):
        yield f"its groups must be those that the rule {file.rule!r} and members call for, each once"
    if file.rule in ("atoms", "regression"):
        return
    for alpha in file.alphas:  # every score is in one atom, and in everyone
        scores = {item["group"]: number(item.get("scores")) for item in file.calibrations if item["alpha"] == alpha}
        if any(n > scores[EVERYONE] for n in scores.values()):
            yield f"no group may have more scores than {EVERYONE}"


def _require_format(raw: Any, wanted: str, what: str, where: str) -> None:
    got = raw.get("format") if isinstance(raw, dict) else type(raw).__name__
    if got != wanted:
        raise ValueError(f"{where}: needed {what} ({wanted}), got {got!r}")


def _require_method(file: _CalibrationFields, where: str) -> None:
    from conformesh.methods import METHODS

    if file.method not in METHODS:
        raise ValueError(f"{where}: {unknown('method', file.method, METHODS)}; written by version {file.version}")


def _contradictions(file: _CalibrationFields) -> Iterator[str]:
    """Yield what in a file cannot be so."""
    thresholds = [number(value, "thresholds") for value in file.thresholds]
    certificate, n = file.certificate, file.scores
    if file.test_weight is not None and not file.test_weight <= (file.weight_bound or 0):
        yield f"test_weight must be at most weight_bound, {file.weight_bound}, got {file.test_weight:g}"
    if file.weight_bound is not None and certificate.bound is None:
        yield f"a result with weights up to {file.weight_bound:g} must say the bound in its certificate, got nothing"
    if twice := [name for name, count in Counter(file.device_ids).items() if count > 1]:
        yield f"device_ids must differ, {twice[0]!r} is there more than once"
    if file.classes is not None and len({*file.classes}) < max(2, len(file.classes)):
        yield f"classes must be at least 2 different names, got {file.classes[:5]}"
    if not len(thresholds) == len(file.device_ids) == file.devices:
        yield (
            f"devices, device_ids and thresholds must be equally many, got {file.devices}, {len(file.device_ids)} and "
            f"{len(thresholds)}"
        )
    elif number(file.threshold, "threshold") != max(thresholds):
        yield f"threshold must be the largest of thresholds, {max(thresholds)}, got {file.threshold}"
    if file.bracket is not None and not file.bracket[0] <= max(thresholds) <= file.bracket[1]:
        yield f"bracket must be two numbers around the threshold, got {list(file.bracket)}"
    by_rank = certificate.rule != "regression"  # which counts its conditions of optimality instead
    if certificate.kind == "counted" and (
        certificate.counted_rank is None or (by_rank and certificate.required_rank is None)
    ):
        yield "a counted certificate must say counted_rank and required_rank, got nothing"
    yield from _of_noise(certificate)
    yield from _of_risk(file)
    yield from _of_whom(file)
    required, counted = certificate.required_rank, certificate.counted_rank
    if isinstance(required, list):
        yield from _each_for_itself(required, counted, thresholds, n)
    elif isinstance(counted, list):
        yield f"counted_rank must be of the kind of required_rank, a whole number, got {counted[:5]}"
    elif required is not None:
        yield from _for_all(file, required, counted, min(thresholds))


def _of_noise(certificate: _CertificateFields) -> Iterator[str]:
    """Check what only a noisy count says."""
    noise = certificate.noise
    if (certificate.kind == "counted with noise") != (noise is not None):
        yield "a certificate that was counted with noise, and no other, must say what noise"
    elif noise is None:
        return
    elif noise.honest > noise.devices:
        yield f"honest devices must be at most {noise.devices}, got {noise.honest}"
    elif noise.cap is not None and noise.unit == "score":
        yield f"noise for each score must have no cap, got {noise.cap}"
    elif noise.epochs != sorted({*noise.epochs}):
        yield f"epochs must ascend, got {noise.epochs[:5]}"


def _of_risk(file: _CalibrationFields) -> Iterator[str]:
    """Check what only risk control says."""
    if (file.risk is None) != (file.certificate.losses is None):
        yield "a result of risk control must say both risk and certificate.losses, and no other either"
    elif not math.isclose(file.level, file.alpha, rel_tol=1e-12):
        yield f"alpha must be the risk as a part of its bound, {float(file.level)}, got {file.alpha}"


def _of_whom(file: _CalibrationFields) -> Iterator[str]:
    """Check what only a promise about some of the devices says."""
    certificate, all_here = file.certificate, file.devices > 1  # a device of a mesh keeps its own result alone
    if all_here and (strange := sorted({*certificate.heard} - {*file.device_ids})):
        yield f"devices that were heard must be among device_ids, got {strange[0]!r}"
    if certificate.liars is None:
        return
    if all_here and certificate.liars >= file.devices:
        yield f"liars must be fewer than the devices, {file.devices}, got {certificate.liars}"
    if certificate.weight is None or certificate.kind not in ("counted", "assumed"):
        yield "a certificate that bears liars counts among the devices that fall short, and must say their weight"


def _for_all(file: _CalibrationFields, required: int, counted: int | None, smallest: float) -> Iterator[str]:
    """Check ranks among the scores of all devices, or among their weights."""
    certificate = file.certificate
    n = file.scores if certificate.weight is None else certificate.weight
    if certificate.bound is not None and (certificate.weight is None or (certificate.test or 0) > certificate.bound):
        yield f"a certificate with a bound must have a weight, and a test of at most {certificate.bound}"
    least = _least_rank(n, file.level, certificate)
    if certificate.losses is not None:
        least = n - _most_left(certificate.losses, file.scores, file.level, certificate.rule)
    if required < least:
        yield f"required_rank must be at least {least} for {n} {_unit(file)} and alpha {file.alpha:g}, got {required}"
    if counted is not None and counted > n:
        yield f"counted_rank must be at most the number of {_unit(file)}, {n}, got {counted}"
    if required > n and smallest < math.inf:
        yield f"the threshold must be inf where rank {required} of {n} {_unit(file)} is required, got {smallest}"
    if counted is not None and counted < required and smallest < math.inf:
        yield f"counted_rank must be at least required_rank, {required}, got {counted}"
    for name, known in (("mixture", MIXTURES), ("rule", RANK_RULES)):
        if (word := getattr(certificate, name)) and word not in known:
            yield unknown(name, word, known)


def _least_rank(n: int, alpha: Fraction, certificate: _CertificateFields) -> int:
    """Return the least rank that a rule can require of n scores, or of scores that weigh n together."""
    rule, bound = certificate.rule, certificate.bound
    if bound is not None:
        test = bound if certificate.test is None else certificate.test
        swapped = 0 if rule == "ordinary" else alpha * bound
        return math.ceil((1 - alpha) * (n + test) + swapped)
    if rule in ("", "ordinary", "ghost"):  # a device without scores may or may not have an imagined one
        return conformal_rank(n, alpha, 2 if rule == "ghost" else 1)
    return math.ceil((1 - alpha) * n + 1)


def _most_left(losses: int, items: int, alpha: Fraction, rule: str) -> int:
    """Return the most that a rule can leave of losses, `losses` being the largest possible of all items together."""
    alpha *= 1 + Fraction(1, 10**12)  # a risk such as 1/3 of a bound is written in 16 digits
    if rule in ("ordinary", "ghost"):  # K imagined items with the largest loss
        return math.floor(
            alpha * losses - (1 - alpha) * (2 if rule == "ghost" else 1) * Fraction(losses, max(items, 1))
        )
    return math.floor(alpha * losses) - LOSS_UNITS  # the swap keeps back the heaviest item, which weighs 1 or more


def _unit(file: _CalibrationFields) -> str:
    """Return what ranks count."""
    return "scores" if file.risk is None else "parts of losses"


def _each_for_itself(
    required: list[int], counted: int | list[int] | None, thresholds: list[float], n: int
) -> Iterator[str]:
    """Check ranks that every device has among its own scores."""
    if not isinstance(counted, list) or not len(required) == len(counted) == len(thresholds):
        yield f"required_rank and counted_rank must have one entry for each of {len(thresholds)} devices"
        return
    if sum(counted) > n:
        yield f"counted_rank must add up to at most the number of scores, {n}, got {sum(counted)}"
    for k, (need, have, threshold) in enumerate(zip(required, counted, thresholds, strict=True)):
        if have < need and threshold < math.inf:
            yield f"counted_rank[{k}] must be at least required_rank[{k}], {need}, got {have}"
