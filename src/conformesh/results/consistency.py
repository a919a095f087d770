"""What must fit together in a result before anybody relies on a file of it.

A file cannot be checked against the scores, which it does not hold. But whatever it says twice must agree, and what
follows from the number of examples, of devices and alpha must have followed.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from fractions import Fraction
from itertools import product
from typing import TYPE_CHECKING

import numpy as np

from conformesh.common.names import unknown_name
from conformesh.files.memberships import EVERYONE
from conformesh.kernels.ranks import (
    ANY,
    CHOSEN_RANK_RULES,
    DEVICE_MIXTURES,
    GROUP_RULES,
    LOCAL_LOSS_UNITS,
    LOSS_UNITS,
    MIXTURES,
    RANK_RULES,
    conformal_rank,
)
from conformesh.kernels.time_uniform import time_uniform_rank
from conformesh.results.certificate import Certificate
from conformesh.results.lookup import GROUP, part_axes
from conformesh.scores.centres import centre_name
from conformesh.scores.losses import Loss

if TYPE_CHECKING:
    from conformesh.results.result import Answer, Result


def result_contradictions(result: Result) -> Iterator[str]:
    """Yield what in a result cannot be so."""
    if twice := [name for name, count in Counter(result.device_ids).items() if count > 1]:
        yield f"device_ids must differ, {twice[0]!r} is there more than once"
    if result.classes is not None and len({*result.classes}) < max(2, len(result.classes)):
        yield f"classes must be at least 2 different names, got {[*result.classes[:5]]}"
    yield from _of_guarantee(result)
    if problem := next(_of_parts(result), None):  # the rest relies on the parts
        yield problem
        return
    yield from _of_adapted(result)
    for i, answer in enumerate(result.answers):
        for problem in _of_answer(result, answer):
            yield f"answers[{i}]: {problem}"


def _of_guarantee(result: Result) -> Iterator[str]:
    guarantee, loss, weighting = result.guarantee, result.guarantee.loss, result.guarantee.weighting
    for name, word, known in (
        ("mixture", guarantee.mixture.kind, MIXTURES),
        ("rank rule", guarantee.rank_rule, (*CHOSEN_RANK_RULES, *RANK_RULES)),
    ):
        if word not in known:
            yield unknown_name(name, word, known)
    if (c := guarantee.mixture.bound) is not None and c < 1:
        yield f"guarantee.mixture.bound must be at least 1, got {c}"
    if loss is not None and not (0 < loss.bound < math.inf):
        yield f"guarantee.loss.bound must be a number above 0, got {loss.bound}"
    elif loss is not None and not isinstance(loss.loss, Loss | None):
        yield f"guarantee.loss.loss must be an object with the name of a loss, got {loss.loss!r:.40}"
    most = Fraction(1) if loss is None else Fraction(str(loss.bound))
    if wrong := [alpha for alpha in guarantee.alphas if not 0 < alpha < most]:
        yield f"alphas must be more than 0 and less than {most}, got {wrong[0]!s:.40}"
    if guarantee.sides is not None and not 0 < guarantee.sides.lower_share < 1:
        yield f"guarantee.sides.lower_share must be between 0 and 1, got {guarantee.sides.lower_share}"
    if weighting is not None:
        each = (*weighting.test_weights, *weighting.class_weights.values())
        if not (0 < weighting.bound < math.inf and all(0 <= weight <= weighting.bound for weight in each)):
            yield f"guarantee.weighting: weights must be from 0 to the bound, {weighting.bound}, which is above 0"
        elif [*weighting.test_weights] != sorted({*weighting.test_weights}):
            yield "guarantee.weighting.test_weights must ascend"
        elif weighting.test_weights and weighting.test_weights[-1] != weighting.bound:
            yield f"the largest of test_weights must be the bound, {weighting.bound}, got {weighting.test_weights[-1]}"
    yield from _of_groups(result)


def _of_adapted(result: Result) -> Iterator[str]:
    """Check what predictions with adapted scores rely on."""
    facts, adapt = result.adapted, result.guarantee.adapt
    if facts is None or adapt is None:
        if facts is not None or adapt is not None or any(answer.windows for answer in result.answers):
            yield "guarantee.adapt, adapted and windows belong together; a part of them is missing"
        return
    many = len(facts.choices)
    if not many or len(facts.losses) != (0 if many == 1 else many):
        yield f"adapted.losses must be one for each of several choices, got {len(facts.losses)} for {many}"
    if len({*facts.shared}) < max(len(facts.shared), 1) or not all(0 <= place < many for place in facts.shared):
        yield f"adapted.shared must be places among {many} choices, each once and at least one, got {facts.shared}"
    windows = 0 if result.guarantee.mixture.kind == "own" else len(facts.shared)
    if wrong := [answer for answer in result.answers if len(answer.windows) != windows]:
        yield f"every answer must have {windows} windows, one for each shared setting, got {len(wrong[0].windows)}"
    for name, known in (("hidden", facts.hidden), ("digests", facts.digests)):
        if {*known} != {*result.device_ids}:
            yield f"adapted.{name} must name the devices of the result, got {len(known)} of {result.devices}"
    if not {*result.device_ids} <= {*facts.weights} or any(weight < 0 for weight in facts.weights.values()):
        yield "adapted.weights must have a number from 0 on for every device"
    if any(place < -1 for place in facts.hidden.values()):
        yield "adapted.hidden must be places of rows, from 0 on, or -1 where a device has none"
    classes = result.classes if adapt.task == "classification" else None
    if facts.columns < 1 or (classes is not None and len(classes) != facts.columns):
        yield f"adapted.columns must be the number of classes, got {facts.columns}"


def _of_groups(result: Result) -> Iterator[str]:
    """Check the groups of a guarantee, and the numbers of examples of groups that overlap."""
    groups = result.guarantee.groups
    if groups is None:
        return
    if not groups.names or len({*groups.names}) < len(groups.names):
        yield "guarantee.groups.names must be at least one name, each once"
    if not groups.rule:
        if groups.atoms:
            yield "guarantee.groups.atoms are for groups that overlap, whose rule must be named"
        return
    if groups.rule not in GROUP_RULES:
        yield unknown_name("group rule", groups.rule, GROUP_RULES)
    named = {name for atom in groups.atoms.values() for name in atom} | {EVERYONE}
    if {*groups.names} != named or len({*groups.atoms.values()}) < len(groups.atoms):
        yield f"groups must be those that the rule {groups.rule!r} and its atoms call for, each once"
    elif not groups.has_threshold_per_atom:  # every example is in one atom, and in everyone
        most: dict[tuple[str, ...], int] = {}
        for answer in result.answers:
            if answer.part and answer.part[0] == EVERYONE:
                most[answer.part[1:]] = answer.examples
        if any(a.part and a.examples > most.get(a.part[1:], a.examples) for a in result.answers):
            yield f"no group may have more examples than {EVERYONE}"


def _of_parts(result: Result) -> Iterator[str]:
    """Check that there is an answer for every part and level, in order."""
    axes, levels = part_axes(result.guarantee), [*dict.fromkeys(answer.alpha for answer in result.answers)]
    chosen = result.selected or (None,) * len(axes)
    if len(chosen) != len(axes):
        yield f"selected must have one entry for each kind of part, {len(axes)}, got {len(chosen)}"
        return
    names = [axis.names if one is None else (one,) for axis, one in zip(axes, chosen, strict=True)]
    if strange := [one for axis, one in zip(axes, chosen, strict=True) if one is not None and one not in axis.names]:
        yield f"selected must name parts of the guarantee, got {strange[0]!r}"
    many = math.prod(map(len, names))
    # A small file may name very many combinations: they are listed only if there are as many answers.
    parts = product(*names) if many * len(levels) == len(result.answers) else ()
    wanted = [(part, alpha) for part in parts for alpha in levels]
    if [(answer.part, answer.alpha) for answer in result.answers] != wanted or not {*levels} <= {
        *result.guarantee.alphas
    }:
        what = "parts" if not axes or axes[0].kind != GROUP else "groups"
        yield (
            f"it has {many} {what} and the levels {', '.join(f'{float(a):g}' for a in result.guarantee.alphas)}, "
            f"so answers must have one entry for each pair of them, in this order, got {len(result.answers)} others"
        )


def _of_answer(result: Result, answer: Answer) -> Iterator[str]:
    thresholds, certificate = answer.thresholds, answer.certificate
    if thresholds.shape != (result.devices,):
        yield (
            f"device_ids and thresholds must be equally many, got {result.devices} and "
            f"{len(thresholds) if thresholds.ndim == 1 else thresholds.shape}"
        )
        return
    bracket = answer.bracket
    if bracket is not None and not bracket[0] <= answer.threshold <= bracket[1]:
        yield f"bracket must be two numbers around the threshold, got {list(bracket)}"
    yield from _of_bound(result, answer)
    by_rank = certificate.rule != "regression"  # which counts its conditions of optimality instead
    if certificate.kind == "counted" and (
        certificate.counted_rank is None or (by_rank and certificate.required_rank is None)
    ):
        yield "a counted certificate must say counted_rank and required_rank, got nothing"
    yield from _of_noise(certificate)
    yield from _of_whom(result, certificate)
    yield from _of_pac_confidence(result, answer)
    yield from _of_unknown_mixtures(result, answer)
    for name, known in (("mixture", MIXTURES), ("rule", RANK_RULES)):
        if (word := getattr(certificate, name)) and word not in known:
            yield unknown_name(name, word, known)
    if (result.guarantee.loss is None) != (certificate.losses is None):
        yield "a result of risk control must say both guarantee.loss and certificate.losses, and no other either"
        return
    required, counted = certificate.required_rank, certificate.counted_rank
    if isinstance(required, tuple):
        yield from _each_device(answer, required, counted)
    elif isinstance(counted, tuple):
        yield f"counted_rank must be of the kind of required_rank, a whole number, got {[*counted[:5]]}"
    elif required is not None:
        yield from _all_devices(result, answer, required, counted)


def _of_bound(result: Result, answer: Answer) -> Iterator[str]:
    """Check that a certificate has the largest weight of an example, and only where examples have weights."""
    bound, weighting, centres = answer.certificate.bound, result.guarantee.weighting, result.guarantee.centres
    if weighting is not None:
        if bound is None:
            yield f"a result with weights up to {weighting.bound:g} must say the bound in its certificate"
    elif centres is not None:
        cap = int(centres.caps[[centre_name(c) for c in range(len(centres))].index(answer.part[-1])])
        if bound != (None if {*centres.caps.tolist()} == {1} else cap):
            yield f"the cap of a centre must be the bound of its certificate, {bound}, got {cap}"
    elif bound is not None:
        yield f"only a guarantee with weights or centres has a bound in its certificate, got {bound}"


def _of_noise(certificate: Certificate) -> Iterator[str]:
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
    elif [*noise.epochs] != sorted({*noise.epochs}):
        yield f"epochs must ascend, got {[*noise.epochs[:5]]}"


def _of_whom(result: Result, certificate: Certificate) -> Iterator[str]:
    """Check what only a guarantee about some of the devices says."""
    whole = result.devices > 1  # a device of a mesh keeps its own result alone
    if whole and (strange := sorted({*certificate.heard} - {*result.device_ids})):
        yield f"devices that were heard must be among device_ids, got {strange[0]!r}"
    if certificate.byzantine is None:
        return
    if whole and certificate.byzantine >= result.devices:
        yield f"byzantine must be fewer than the devices, {result.devices}, got {certificate.byzantine}"
    if certificate.weight is None or certificate.kind not in ("counted", "assumed"):
        yield "a certificate with byzantine counts among the devices that fall short, and must say their weight"


def _of_pac_confidence(result: Result, answer: Answer) -> Iterator[str]:
    """Check that the certificate has the pac_confidence that was asked for, and a rank that is large enough for it."""
    certificate, sure = answer.certificate, result.guarantee.pac_confidence
    if sure is not None and not 0 < sure < 1:
        yield f"guarantee.pac_confidence must lie strictly between 0 and 1, got {sure}"
        return
    if result.guarantee.time_uniform and sure is None:
        yield "guarantee.time_uniform needs a pac_confidence"
    if certificate.required_rank is None:  # it guarantees nothing
        return
    if certificate.pac_confidence != (None if sure is None else float(sure)):
        yield f"a certificate must have the pac_confidence of its guarantee, {sure}, got {certificate.pac_confidence}"
    if not certificate.time_uniform == result.guarantee.time_uniform == (certificate.rule == "time-uniform"):
        yield "guarantee and certificate must agree whether pac_confidence holds at all looks"
    elif certificate.time_uniform and sure is not None and isinstance(certificate.required_rank, int):
        # Levels and sides share the probability of failure: each of them needs this rank or a larger one.
        least = time_uniform_rank(answer.examples, result.rank_level(answer), 1 - sure)
        if certificate.required_rank < least:
            yield (
                f"required_rank must be at least {least} for {answer.examples} examples at all looks, got "
                f"{certificate.required_rank}"
            )


def _of_unknown_mixtures(result: Result, answer: Answer) -> Iterator[str]:
    """Check what a guarantee for more mixtures than one must say."""
    certificate, mixture, bound = answer.certificate, result.guarantee.mixture, answer.certificate.mixture_bound
    if bound != mixture.bound:
        yield f"a certificate must have the mixture_bound of its guarantee, {mixture.bound}, got {bound}"
    if mixture.kind in DEVICE_MIXTURES and not isinstance(certificate.required_rank, tuple):
        yield f"with mixture {mixture.kind!r} required_rank must have one entry for each device"
    finite = np.isfinite(answer.thresholds)
    if (mixture.kind == ANY or bound is not None) and len(each := {*answer.thresholds.tolist()}) > 1:
        yield f"with mixture {ANY!r} or mixture_bound all devices must have one threshold, got {sorted(each)[:3]}"
    for name in certificate.short:
        if result.devices > 1 and name not in result.device_ids:  # a device of a mesh keeps its own result alone
            yield f"short must name devices of device_ids, got {name!r}"
        elif mixture.kind == ANY and finite.any():
            yield f"the threshold must be inf where device {name} has too few scores, got {answer.threshold}"
        elif name in result.device_ids and finite[result.device_ids.index(name)]:
            yield f"the threshold of device {name} must be inf, which has too few scores"
    ranks = certificate.required_rank
    if mixture.kind in DEVICE_MIXTURES and isinstance(ranks, tuple) and len(ranks) == result.devices > 1:
        yield from _of_own_ranks(result, answer, ranks)


def _of_own_ranks(result: Result, answer: Answer, ranks: tuple[int, ...]) -> Iterator[str]:
    """Check that devices can have these ranks, ceil((1 - alpha)(n_k + 1)), with as many examples in all."""
    alpha, short = result.rank_level(answer), answer.certificate.short
    least = most = 0
    for name, rank in zip(result.device_ids, ranks, strict=True):
        if name in short:
            if rank != conformal_rank(short[name], alpha):
                yield f"device {name} with {short[name]} examples must have another required_rank, got {rank}"
            least, most = least + short[name], most + short[name]
        else:  # all n_k with this rank
            least += math.floor((rank - 1) / (1 - alpha))
            most += math.floor(rank / (1 - alpha)) - 1
    if not least <= answer.examples <= most:
        yield f"devices with these required ranks have {least} to {most} examples, got {answer.examples}"


def _all_devices(result: Result, answer: Answer, required: int, counted: int | None) -> Iterator[str]:
    """Check ranks among the scores of all devices, or among their weights."""
    certificate, alpha, smallest = answer.certificate, result.rank_level(answer), float(answer.thresholds.min())
    unit = "examples" if certificate.losses is None else "parts of losses"
    n = answer.examples if certificate.weight is None else certificate.weight
    if certificate.bound is not None and (certificate.weight is None or (certificate.test or 0) > certificate.bound):
        yield f"a certificate with a bound must have a weight, and a test of at most {certificate.bound}"
    least = _least_rank(n, alpha, certificate)
    if result.guarantee.adapt is not None:  # a hidden example makes room for the new one
        least = math.ceil((1 - alpha) * n)
    elif certificate.losses is not None:
        loss_unit = LOSS_UNITS if result.guarantee.centres is None else LOCAL_LOSS_UNITS
        least = n - _most_left(certificate, answer.examples, alpha, loss_unit)
    if required < least:
        yield f"required_rank must be at least {least} for {n} {unit} and alpha {float(alpha):g}, got {required}"
    if counted is not None and counted > n:
        yield f"counted_rank must be at most the number of {unit}, {n}, got {counted}"
    if required > n and smallest < math.inf:
        yield f"the threshold must be inf where rank {required} of {n} {unit} is required, got {smallest}"
    if counted is not None and counted < required and smallest < math.inf:
        yield f"counted_rank must be at least required_rank, {required}, got {counted}"


def _least_rank(n: int, alpha: Fraction, certificate: Certificate) -> int:
    """Return the least rank that a rule can require of n scores, or of scores that weigh n together."""
    rule, bound = certificate.rule, certificate.bound
    if rule == "hidden":  # the new example is among those that are counted
        return math.ceil((1 - alpha) * n)
    if bound is not None:
        test = bound if certificate.test is None else certificate.test
        swapped = 0 if rule == "ordinary" else alpha * bound
        return math.ceil((1 - alpha) * (n + test) + swapped)
    if rule in ("", "ordinary", "ghost"):  # a device without scores may or may not have an imagined one
        return conformal_rank(n, alpha, 2 if rule == "ghost" else 1)
    return math.ceil((1 - alpha) * n + 1)


def _most_left(certificate: Certificate, items: int, alpha: Fraction, unit: int) -> int:
    """Return the most that a rule can leave of losses, of which one of 1 weighs `unit`."""
    losses, rule, bound = certificate.losses or 0, certificate.rule, certificate.bound
    swapped = 0 if rule == "ordinary" else alpha * (bound or 0)
    alpha *= 1 + Fraction(1, 10**12)  # a bound such as 1/3 is written in 16 digits
    if bound is not None:
        test = bound if certificate.test is None else certificate.test
        return math.floor(alpha * losses - unit * ((1 - alpha) * test + swapped))
    if rule in ("ordinary", "ghost"):  # K imagined items with the largest loss
        return math.floor(
            alpha * losses - (1 - alpha) * (2 if rule == "ghost" else 1) * Fraction(losses, max(items, 1))
        )
    return math.floor(alpha * losses) - unit  # the swap keeps back the heaviest item, which weighs 1 or more


def _each_device(answer: Answer, required: tuple[int, ...], counted: int | tuple[int, ...] | None) -> Iterator[str]:
    """Check ranks that every device has among its own scores."""
    if not isinstance(counted, tuple) or not len(required) == len(counted) == len(answer.thresholds):
        yield f"required_rank and counted_rank must have one entry for each of {len(answer.thresholds)} devices"
        return
    if sum(counted) > answer.examples:
        yield f"counted_rank must add up to at most the number of examples, {answer.examples}, got {sum(counted)}"
    short = np.flatnonzero((np.array(counted) < np.array(required)) & (answer.thresholds < np.inf))
    for k in short[:1].tolist():
        yield f"counted_rank[{k}] must be at least required_rank[{k}], {required[k]}, got {counted[k]}"
