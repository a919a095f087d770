"""Results made from those of the functions that `conformesh.api` replaces; deleted together with them."""

from fractions import Fraction

from conformesh import Result
from conformesh.guarantee import Groups, Guarantee, LossBound, Mixture, Weighting
from conformesh.guarantee import Sides as TwoSides
from conformesh.result.result import Answer, Result


def converted(old, *, column="", rank_rule="auto", shares=None):
    """Return an old result as a `Result`."""
    more = {}
    if isinstance(old, LocalCalibration):
        items = {(name,): one for (name, _), one in old.by_centre.items.items()}
        answers, first = [_answer(part, one) for part, one in items.items()], old.get(0)
        more["centres"] = old.centres
    elif isinstance(old, Sides):
        levels = [Fraction(str(alpha)) for alpha in old.alphas]
        answers, first = [_answer(("lower",), old.lower), _answer(("upper",), old.upper)], old.lower
        answers = [_at(answer, sum(levels)) for answer in answers]
        more["sides"] = TwoSides(levels[0] / sum(levels))
    elif isinstance(old, Calibrations):
        answers = [_answer(() if name is None else (name,), one) for (name, _), one in old.items.items()]
        first = next(iter(old.items.values()))
        tests = {name: one.test_weight for (name, _), one in old.items.items()}
        if None in old.parts:
            pass
        elif old.weights is not None:
            more["weighting"] = Weighting(first.weight_bound, test_weights=old.weights)
        elif None not in tests.values():
            more["weighting"] = Weighting(first.weight_bound, class_weights=tests)
        else:
            more["groups"] = Groups(old.groups, old.rule, old.members, column)
    else:
        answers, first = [_answer((), old)], old
    if isinstance(first, Control):
        more["loss"] = LossBound(first.bound, first.loss)
    if first.weight_bound is not None and "weighting" not in more and "centres" not in more:
        more["weighting"] = Weighting(first.weight_bound)
    alphas = tuple(dict.fromkeys(answer.alpha for answer in answers))
    guarantee = Guarantee(
        alphas=alphas, mixture=Mixture(first.certificate.mixture or "sizes", shares), rank_rule=rank_rule, **more
    )
    names = ("method", "options", "network", "device_ids", "cost", "score", "classes", "notes", "seconds")
    return Result(guarantee=guarantee, answers=tuple(answers), **{name: getattr(first, name) for name in names})


def _answer(part, one):
    alpha = Fraction(str(one.level))
    return Answer(part, alpha, one.thresholds, one.certificate, one.estimate, one.bracket, one.scores)


def _at(answer, alpha):
    return Answer(answer.part, alpha, answer.thresholds, answer.certificate, None, answer.bracket, answer.examples)
