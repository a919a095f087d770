"""Results in words and HTML: a heading, facts, a table, and what to say where thresholds are infinite."""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from typing import TYPE_CHECKING

import numpy as np

from conformesh.common.quantities import format_bits, format_count, pluralize
from conformesh.kernels.ranks import ANY, GROUP_RULES, OWN, kept_anyway, scores_needed
from conformesh.kernels.time_uniform import least_scores, scores_per_step
from conformesh.results.certificate import CERTIFICATE_KINDS, Certificate
from conformesh.results.encoding import align_columns
from conformesh.results.lookup import CENTRE, part_axes

if TYPE_CHECKING:
    from conformesh.results.result import Answer, Result

# What fits on a screen: parts in the printed table, answers with too few examples named in a warning, features of a
# centre. The result itself has all of them.
_MOST, _SHORT, _FEATURES = 20, 5, 6
# Facts of a certificate. They come first: whether a threshold may be trusted matters more than what it cost.
CERTIFICATE_FACTS = (
    "rank",
    "mean loss",
    "private",
    "about",
    "too few scores",
    "pac_confidence",
    "of",
    "byzantine",
    "weights",
    "epsilon",
    "assuming",
)
_RANK_FACTS = ("rank", "private", "about", "too few scores", "pac_confidence", "of", "byzantine")
_SHARED_FACTS = ("about", "pac_confidence", "of", "byzantine", "weights", "assuming")
_CERTIFIED_SIDES = ("lower side", "upper side", "both")
_Fact = tuple[str, str]


def part_name(part: Sequence[str]) -> str:
    """Return what a part is called; the empty one is for all.

    >>> part_name(("F", "lower")), part_name(())
    ('F, lower', 'all')
    """
    return ", ".join(part) or "all"


# --- infinite thresholds ----------------------------------------------------------------------------------------------


def shortage_warning(result: Result) -> str:
    """Return which answers have too few examples, so that their threshold is +inf; empty where none has."""
    short = [answer for answer in result.answers if answer.is_short]
    if not short:
        return ""
    if any(answer.certificate.short for answer in short):
        return _short_devices(result, short)
    if result.guarantee.loss is not None and len(result.answers) == len(result.alphas):
        return "; ".join(_short_risk(result, answer) for answer in short[:_SHORT])
    if len(result.answers) == 1 and not short[0].part and isinstance(short[0].certificate.required_rank, int):
        (one,), certificate = short, short[0].certificate
        if certificate.time_uniform:
            return _short_look(result, one)
        have = f"{one.examples} scores" if certificate.weight is None else f"scores that weigh {certificate.weight}"
        needed = f"rank {certificate.required_rank} but there are only {have}: the threshold is +inf and"
        if certificate.rule == "hidden" and certificate.weight is None:
            needed = f"{math.ceil(1 / one.alpha):,} examples in all but there are only {one.examples:,}:"
        return (
            f"alpha={float(one.alpha):g} needs {needed} every prediction set holds all labels; use more scores or a "
            "larger alpha"
        )
    named = [_short_name(result, answer) for answer in short[:_SHORT]]
    return f"too few scores, so that the {result.what} is +inf: {'; '.join(named)}{', ...' if short[_SHORT:] else ''}"


def _short_devices(result: Result, short: Sequence[Answer]) -> str:
    """Return which devices have too few scores to be covered by themselves, and what to do."""
    lists, is_single = [], len(result.answers) == 1
    for answer in short[:_SHORT]:
        level, few = result.rank_level(answer), answer.certificate.short
        names = ", ".join(f"device {name} has {n}" for name, n in [*few.items()][:_SHORT])
        more = ", ..." if len(few) > _SHORT else ""
        where = f"alpha={float(level):g}" if is_single else _short_name(result, answer)
        lists.append(f"{where} needs {scores_needed(level)}, and {names}{more}{_impossible(result, few, level)}")
    whose = "the threshold of all devices" if short[0].certificate.mixture == ANY else "the threshold of such a device"
    return (
        "to be covered by itself a device needs at least ceil(1 / alpha) - 1 scores: "
        f"{'; '.join(lists)}{', ...' if short[_SHORT:] else ''}; {whose} is +inf, where every prediction set holds all "
        "labels; use more scores, a larger alpha, or mixture='sizes', which covers new examples of all devices together"
    )


def _impossible(result: Result, few: dict[str, int], level: Fraction) -> str:
    """Return that no rule has useful sets with so few examples; empty where the bound on rules says nothing."""
    kind = result.guarantee.adapt or result.score
    n = min((n for n in few.values() if n), default=0)
    chance = kept_anyway(n, level)
    if not n or not chance or kind is None or kind.task != "classification":
        return ""
    return (
        f" (after {pluralize(n, 'example')}, all with one label, every rule with this guarantee must keep each other "
        f"label with probability at least {float(chance):.3g})"
    )


def _short_look(result: Result, answer: Answer) -> str:
    """Return how many scores a look needs for a confidence at all looks."""
    guarantee = result.guarantee
    confidence = guarantee.pac_confidence or Fraction(0)
    shares = guarantee.mixture.shares
    step = sum(scores_per_step([*shares.values()])) if shares is not None else result.devices
    # Whole steps, in which every device contributes its share.
    needed = -(-least_scores(answer.alpha, 1 - confidence) // step) * step
    have = f"{answer.examples:,} of {answer.examples + result.options.get('unused_rows', 0):,} count"
    return (
        f"alpha={float(answer.alpha):g} with pac_confidence={float(confidence):g} and time_uniform needs at least "
        f"{needed:,} scores, from every device in proportion to its share, and {have}: the threshold is +inf and every "
        "prediction set holds all labels; wait for more scores, or use a larger alpha"
    )


def _short_name(result: Result, answer: Answer) -> str:
    kinds = [axis.kind for axis in part_axes(result.guarantee)]
    part = [name if name.startswith(kind) else f"{kind} {name}" for kind, name in zip(kinds, answer.part, strict=True)]
    level = answer.alpha if result.controlled else result.rank_level(answer)
    return ", ".join([*part, f"{'risk' if result.controlled else 'alpha'} {float(level):g}"])


def _short_risk(result: Result, answer: Answer) -> str:
    return (
        f"risk={float(answer.alpha):g} is too small for {answer.examples} items on {result.devices} devices: what the "
        "new example may lose is more than all that may be lost, so lambda is +inf and every set holds everything; use "
        "more items or a larger risk"
    )


def lambda_notes(result: Result) -> tuple[str, ...]:
    """Return what infinite lambdas mean, one sentence each; those of `shortage` are among them."""
    if not result.controlled:
        return ()
    found = []
    for answer in result.answers:
        risk, part = f"risk={float(answer.alpha):g}", f"{part_name(answer.part)}: " if answer.part else ""
        if answer.is_short:
            found.append(part + _short_risk(result, answer))
        elif np.isposinf(answer.threshold):
            found.append(
                f"{part}no lambda that was given brings the mean loss down to {risk}: lambda is +inf, where every set "
                "must hold everything and lose nothing"
            )
        elif np.isneginf(answer.threshold):
            found.append(
                f"{part}the mean loss is below {risk} with nothing in the sets: lambda is -inf, and no set is needed"
            )
    return tuple(found)


# --- facts ------------------------------------------------------------------------------------------------------------


def examples_in_words(result: Result) -> str:
    """Return what to say of the examples behind a number of devices: noise is there to hide how many they are."""
    if any(answer.certificate.noise is not None for answer in result.answers):
        return "; how many scores they hold is not told"
    counts = {answer.examples for answer in result.answers}
    many = f"{min(counts):,}" if len(counts) == 1 else f"{min(counts):,} to {max(counts):,}"
    what = "item" if result.controlled else "score"
    if unused := result.options.get("unused_rows"):
        what = f"counted {what}"
    each = "in all" if len(result.parts) == 1 or result.sides is not None else "for each part"
    more = f"; {unused:,} more wait until every device has its share of them" if unused else ""
    return f" with {many} {what}{'s' * (counts != {1})} {each}{more}"


def _kinds_of(result: Result) -> list[str]:
    """Return the kinds of the answers' certificates, the strongest first."""
    return sorted({answer.certificate.kind for answer in result.answers}, key=[*CERTIFICATE_KINDS].index)


def result_facts(result: Result) -> list[_Fact]:
    """Return names and words of what a person wants to know first."""
    cost, method = result.cost, f"{result.method}, {_asked(result)}"
    sent = f"{format_count(cost.numbers_per_device)} numbers, {format_bits(cost.bits_per_device)}"
    last = [
        ("cost", f"{cost.rounds:,} rounds, each device sent {sent}"),
        ("devices", f"{result.devices:,}{examples_in_words(result)}"),
        ("network", result.network),
        ("method", method),
        *_adapted_facts(result),
        ("seconds", f"{result.seconds:.3f}"),
    ]
    if result.sides is not None:
        below, above = (answer.threshold for answer in result.sides)
        first = [("thresholds", f"{below:.6g} below, {above:.6g} above")]
        first += result.certificate.facts(result.examples or None)
    elif len(result) == 1:
        first = _answer_facts(result)
    else:
        first = _shared_facts(result)
    return [*first, *last]


def _adapted_facts(result: Result) -> list[_Fact]:
    """Return how scores adapt; a device has then no threshold for all labels."""
    if result.guarantee.adapt is None:
        return []
    adapt, facts = result.guarantee.adapt, result.adapted
    chosen = ""
    if facts is not None and facts.losses:
        chosen = f"; chosen on the rows of all devices: {adapt.describe_setting(facts.choices[facts.shared[0]])}"
    return [("scores", f"adapted, {adapt!r}: a device predicts with its own calibration rows{chosen}")]


def _asked(result: Result) -> str:
    """Return the levels in words."""
    loss = result.guarantee.loss
    if loss is not None:
        return f"risk {_levels(result)} of a loss up to {loss.bound:g}"
    if result.sides is not None:
        below, above = (float(result.rank_level(answer)) for answer in result.sides)
        return f"alpha {below:g} below and {above:g} above"
    return f"alpha {_level(result):g}" if len(result.alphas) == 1 else f"alpha {_levels(result)}"


def _level(result: Result) -> float:
    """Return alpha; of a view of one side what this side may miss."""
    return float(result.rank_level(result.answer)) if len(result) == 1 and not result.controlled else result.alpha


def _levels(result: Result) -> str:
    return ", ".join(f"{alpha:g}" for alpha in result.alphas)


def _answer_facts(result: Result) -> list[_Fact]:
    """Return what is known of a single answer."""
    answer, certificate = result.answer, result.answer.certificate
    low, high = float(answer.thresholds.min()), answer.threshold
    same = "the same on every device" if low == high else f"valid on every device; the smallest is {low:.6g}"
    said = dict(certificate.facts(answer.examples))
    if _has_own_thresholds(result):
        lines = [(result.what, f"{low:.6g} to {high:.6g} (one for each device; the largest is valid on all)")]
    else:
        lines = [(result.what, f"{high:.6g} ({same})")]
    lines += [("part", part_name(answer.part))] if answer.part else []
    lines.append(("guarantee", f"{certificate.kind}: {CERTIFICATE_KINDS[certificate.kind]}"))
    if result.controlled:
        lines.append(("mean loss", _losses(result, answer)))
    if {"rank", "mean loss", "private"} & {*said}:
        lines += [(name, said[name]) for name in _RANK_FACTS if name in said]
    if result.guarantee.weighting is not None:
        bound = result.guarantee.weighting.bound
        lines.append(("weights", f"at most {bound:g}: how much likelier a new example is, up to a factor"))
    if certificate.epsilon is not None:
        lines.append(("epsilon", _epsilon(certificate)))
    if certificate.assumption:
        lines.append(("note" if certificate.kind == "none" else "assuming", certificate.assumption))
    return [*lines, *_recorded(result)]


def _recorded(result: Result) -> list[_Fact]:
    """Return what the method records and people want to know."""
    options, lines = result.recorded, []
    if "sums_by" in options:
        lines.append(("sums", f"by {options['sums_by']}, {options.get('sums_why', '')}".removesuffix(", ")))
    lines += [
        (name, str(options[key]))
        for key, name in (("privacy", "privacy"), ("revealed", "everybody knows"))
        if key in options
    ]
    return lines


def _shared_facts(result: Result) -> list[_Fact]:
    """Return what several answers have in common."""
    groups, said = result.guarantee.groups, dict(result.answers[0].certificate.facts())
    kinds = _kinds_of(result)
    claim = (
        f"{kinds[0]}: {CERTIFICATE_KINDS[kinds[0]]}"
        if len(kinds) == 1
        else f"{' or '.join(kinds)}, each answer says why"
    )
    lines = [(f"{result.what}s", pluralize(len(result), "answer")), ("guarantee", claim)]
    if groups is not None and groups.rule:
        lines.append(("rule", f"{groups.rule}: {GROUP_RULES[groups.rule]}"))
    lines += [(name, said[name]) for name in _SHARED_FACTS if name in said]
    return [*lines, *_recorded(result)]


def _losses(result: Result, answer: Answer) -> str:
    """Return the mean loss of the items at lambda, and the largest allowed, in words."""
    if not answer.certificate.losses:
        return "no device that is asked about has items"
    left, allowed = result.mean_losses
    if allowed < 0:
        return f"the new example alone may lose more than the risk of {float(answer.alpha):g} allows"
    return f"{left:.4g} of the items at lambda, allowed {allowed:.4g}"


def _epsilon(certificate: Certificate) -> str:
    if certificate.epsilon_T is None or certificate.epsilon_bias is None:
        return f"{certificate.epsilon:.3g} of the scores"
    parts = f"convergence {certificate.epsilon_T:.3g}, bias {certificate.epsilon_bias:.3g}"
    return f"{certificate.epsilon:.3g} added to the estimate ({parts})"


# --- headings, tables, HTML -------------------------------------------------------------------------------------------


def result_title(result: Result) -> str:
    """Say in a few words what was found, for a heading."""
    loss, centres = result.guarantee.loss, result.guarantee.centres
    if result.sides is not None:
        below, above = (answer.threshold for answer in result.sides)
        part = _chosen(result)
        return f"thresholds {below:.6g} below and {above:.6g} above{part}, {result.method} at alpha {result.alpha:g}"
    if len(result) == 1 and loss is not None:
        return f"lambda {result.threshold:.6g}{_chosen(result)}, {_loss_name(result)} at most {result.alpha:g}"
    if len(result) == 1:
        return f"{_thresholds(result)}{_chosen(result)}, {result.method} at alpha {_level(result):g}"
    if centres is not None and len(result) == len(centres):
        return f"{result.what}s near {pluralize(len(centres), 'centre')}, alpha {result.alpha:g}"
    return f"{pluralize(len(result), result.what)}{_chosen(result)}, {result.method}"


def _has_own_thresholds(result: Result) -> bool:
    """Return whether devices were asked to have a threshold each, and not by chance or by noise."""
    guarantee, values = result.guarantee, result.answer.thresholds
    return guarantee.mixture.kind == OWN and guarantee.adapt is None and bool(values.min() < values.max())


def _thresholds(result: Result) -> str:
    values = result.answer.thresholds
    if _has_own_thresholds(result):
        return f"thresholds {values.min():.6g} to {values.max():.6g}"
    # A threshold of adapted scores decides nothing about new rows by itself.
    scored = "" if result.guarantee.adapt is None else f" of adapted scores ({result.guarantee.adapt.name})"
    return f"{result.what} {result.threshold:.6g}{scored}"


def _chosen(result: Result) -> str:
    names = [name for name in result.selected if name is not None]
    return f" for {part_name(names)}" if names else ""


def _loss_name(result: Result) -> str:
    loss = result.guarantee.loss
    return "loss" if loss is None or loss.loss is None else str(loss.loss.name)


def threshold_table(result: Result, most: int = _MOST) -> list[list[str]]:
    """Return thresholds in words: a line for each of the first parts, a column for each level, and a heading."""
    word, groups, axes = "risk" if result.controlled else "alpha", result.guarantee.groups, part_axes(result.guarantee)
    what = "part" if len(axes) != 1 else axes[0].kind
    what = "groups" if groups is not None and groups.has_threshold_per_atom else what
    centres, levels = result.guarantee.centres, len(result.alphas)
    rows = [[what, *(f"{word} {alpha:g}" for alpha in result.alphas)]]
    at = next((i for i, axis in enumerate(axes) if axis.kind == CENTRE), -1)
    for start, part in list(enumerate(result.parts))[:most]:
        name = part_name(part)
        if centres is not None:
            name += f" at {_place(centres.points[axes[at].names.index(part[at])].tolist())}"
        answers = result.answers[start * levels : (start + 1) * levels]
        rows.append([name, *(f"{answer.threshold:.6g}" for answer in answers)])
    return rows


def _place(point: Sequence[float]) -> str:
    """Return where a centre is, in words; of many features the first."""
    few = ", ".join(f"{x:.6g}" for x in point[:_FEATURES])
    return f"({few}{', ...' if len(point) > _FEATURES else ''})"


def result_summary(result: Result) -> str:
    """Return one line for a single answer, a table of thresholds for several."""
    where = f"on {pluralize(result.devices, 'device')}"
    if result.sides is not None:
        each = [
            f"{name} threshold {side.threshold:.6g} for alpha {float(result.rank_level(side)):g}"
            for name, side in zip(("lower", "upper"), result.sides, strict=True)
        ]
        kind = result.certificate.kind
        head = f"{result.method}, alpha={result.alpha:g}{_chosen(result)}: {', '.join(each)} {where}, {kind}"
        return f"Result({head}; {result.cost})"
    if len(result) == 1:
        asked = f"{_loss_name(result)} at most {result.alpha:g}" if result.controlled else f"alpha={_level(result):g}"
        found = f"{_thresholds(result)} {where}, {result.answer.certificate.kind}"
        return f"Result({result.method}, {asked}{_chosen(result)}: {found}; {result.cost})"
    lines = align_columns(threshold_table(result), left=1)
    more = [f"... and {len(result.parts) - _MOST:,} more"] if len(result.parts) > _MOST else []
    groups = result.guarantee.groups
    rule = f", {groups.rule}: {GROUP_RULES[groups.rule]}" if groups is not None and groups.rule else ""
    head = f"Result({result.method} {where}{_chosen(result)}{rule}; {result.cost})"
    return "\n".join([head, *lines, *more])


def result_card(result: Result) -> str:
    """Return the HTML form: the certificate first, then the rest, then thresholds by device or by part."""
    from conformesh.plots import html

    kinds = _kinds_of(result)
    kind = result.certificate.kind if result.sides is not None else kinds[0] if len(kinds) == 1 else ""
    claim = CERTIFICATE_KINDS[kind] if kind else f"certificates are {' or '.join(kinds)}, each says why"
    rows = [
        (name, text) for name, text in result_facts(result) if text and name not in ("guarantee", f"{result.what}s")
    ]
    rows.sort(key=lambda row: row[0] not in (*CERTIFICATE_FACTS, *_CERTIFIED_SIDES))  # the rest stays as it is
    if result.score is not None:
        rows.insert(-1, ("score", repr(result.score)))
    rows += [("note", note) for note in result.notes]
    if len(result) == 1:
        pairs = zip(result.device_ids, result.thresholds.tolist(), strict=True)
        marks = {name: html.IntervalMark(value, value, value) for name, value in pairs}
        parts = [html.interval_chart(marks, result.what, "device")] if len({*marks.values()}) > 1 else []
    elif result.sides is not None:
        parts = []
    else:
        head, *lines = threshold_table(result)
        parts = [html.html_table(head, lines, right=head[1:], most=None, more=len(result.parts) - len(lines))]
    return html.html_card(result_title(result), kind=kind, claim=claim, rows=rows, parts=parts)
