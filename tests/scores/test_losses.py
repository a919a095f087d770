"""Losses: steps that never rise, in whole parts, and the sets that they are of."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from conformesh import scores
from conformesh.kernels.ranks import LOSS_UNITS
from conformesh.scores.losses import (
    LOSSES,
    ClassCost,
    ErrorAmongAnswered,
    FalseNegativeRate,
    GraphDistance,
    OrdinalDistance,
    StepLosses,
    WrongAndAnswered,
    as_loss,
    get_loss,
)

EXAMPLES = {
    "false-negative-rate": FalseNegativeRate(),
    "ordinal-distance": OrdinalDistance(score="margin"),
    "graph-distance": GraphDistance.of_edges([(0, 1), (1, 2), (2, 3), (1, 4)], classes=5),
    "class-cost": ClassCost(costs=[1, 2, 0, 0.5, 3]),
    "wrong-and-answered": WrongAndAnswered(),
    "error-among-answered": ErrorAmongAnswered(level=0.3),
}


def drawn(loss, rows=60, seed=0):
    rng = np.random.default_rng(seed)
    outputs = rng.dirichlet(np.ones(5), rows)
    if isinstance(loss, FalseNegativeRate):
        return outputs, rng.random((rows, 5)) < 0.4
    return outputs, rng.integers(0, 5, rows)


def by_hand(loss, chosen, label):
    """Return the loss of one set, as one would say it."""
    match loss:
        case FalseNegativeRate():
            return np.sum(label & ~chosen) / max(label.sum(), 1)
        case OrdinalDistance():
            return min((abs(label - y) for y in np.flatnonzero(chosen)), default=4)
        case GraphDistance():
            return min((loss.distances[label][y] for y in np.flatnonzero(chosen)), default=3)
        case ClassCost():
            return loss.costs[label] * (not chosen[label])
        case ErrorAmongAnswered():
            return float(not chosen[label]) if chosen.sum() == 1 else 0.3
        case _:
            return float(chosen.sum() == 1 and not chosen[label])


@pytest.mark.parametrize("name", LOSSES)
def test_steps_are_the_losses_of_the_sets(name):
    """At every breakpoint, just below it, and at both infinities."""
    loss = EXAMPLES[name]
    outputs, labels = drawn(loss)
    steps = loss(outputs, labels)
    steps = steps.checked("here") if loss.monotone else steps
    points = np.unique(steps.lambdas)[:: len(steps.lambdas) // 40 + 1]
    for lam in (-np.inf, *points, *np.nextafter(points, -np.inf), np.inf):
        sets = loss.sets(outputs, lam)
        expected = [by_hand(loss, chosen, label) for chosen, label in zip(sets, labels, strict=True)]
        np.testing.assert_allclose(steps.at(lam), expected, atol=1e-12)
    assert not (loss.monotone and steps.at(np.inf).any())
    assert steps.at(-np.inf).max() <= steps.bound


@pytest.mark.parametrize("name", LOSSES)
def test_options_rebuild_a_loss(name):
    loss = EXAMPLES[name]
    assert get_loss(name, **loss.options()) == loss
    assert as_loss(loss) is loss


def test_several_lambdas_one_for_each_row():
    loss = EXAMPLES["class-cost"]
    outputs, labels = drawn(loss, rows=3)
    lam = np.array([0.2, 0.9, np.inf])
    each = [loss(outputs[[i]], labels[[i]]).at(lam[i])[0] for i in range(3)]
    assert loss(outputs, labels).at(lam).tolist() == each
    assert loss.sets(outputs, lam)[2].all()


def test_images_are_labels_in_two_dimensions():
    rng, fnr = np.random.default_rng(1), FalseNegativeRate(score="logit")
    outputs, masks = rng.normal(size=(7, 4, 3)), rng.random((7, 4, 3)) < 0.3
    flat = fnr(outputs.reshape(7, 12), masks.reshape(7, 12))
    assert fnr(outputs, masks).at(0.8).tolist() == flat.at(0.8).tolist()
    assert fnr.sets(outputs, 0.8).shape == (7, 4, 3)


def test_an_example_without_a_true_label_loses_nothing():
    assert FalseNegativeRate()([[0.5, 0.5]], [[False, False]]).at(-np.inf).tolist() == [0.0]


# Whole parts.


@given(
    st.lists(st.lists(st.fractions(0, 1, max_denominator=40), min_size=1, max_size=6), min_size=1, max_size=5),
    st.sampled_from([1, 2, 3, 12, LOSS_UNITS]),
    st.sampled_from([1.0, 0.3, 7.0]),
)
def test_parts_are_never_below_the_loss_and_fall_with_it(items, scale, bound):
    """What has not fallen at lambda is the loss rounded up, for any scale: at least the loss, less than a part more."""
    sizes = [sorted(values, reverse=True) for values in items]
    pairs = [(range(len(values)), [float(v) * bound for v in values]) for values in sizes]
    steps = StepLosses.of(pairs, bound=bound).checked("here")
    points, falls, _ = steps.checked("here").drops(scale)
    assert (falls > 0).all()
    for lam in (-1, 0, 1, 2, 3, 9):
        left = int(falls[points > lam].sum())
        exact = sum(Fraction(x) for x in (steps.at(lam) / bound).tolist()) * scale
        assert exact - Fraction(1, 10**9) <= left < exact + len(items)


@given(st.integers(1, 16), st.integers(0, 16))
def test_small_fractions_are_whole(below, above):
    """Thirds, sixths and sevenths are not rounded, though no float is a third."""
    part = min(above, below) / below
    _, falls, _ = StepLosses.of([([0.0], [part])]).checked("here").drops(LOSS_UNITS)
    assert falls.tolist() == [each for each in (LOSS_UNITS - LOSS_UNITS * min(above, below) // below,) if each] + [
        each for each in (LOSS_UNITS * min(above, below) // below,) if each
    ]


def test_falls_that_are_rounded_each_for_itself_lose_losses():
    """An ablation: three falls by a third in parts of a half are 0 each, or 1 each; the loss is 1 and then 0."""
    steps = StepLosses.of([([-np.inf, 1, 2, 3], [1, 2 / 3, 1 / 3, 0])])
    points, falls, _ = steps.checked("here").drops(2)
    left = [int(falls[points > lam].sum()) for lam in (0, 1, 2, 3)]
    assert left == [2, 2, 1, 0]
    apart = np.floor(np.diff([0, 1 / 3, 2 / 3, 1]) * 2)
    assert apart.sum() == 0  # as if nothing were ever lost


def test_what_stays_falls_at_infinity():
    points, falls, _ = StepLosses.of([([0.0], [0.25]), ([], [])]).checked("here").drops(4)
    assert points.tolist() == [0.0, np.inf, np.inf]
    assert falls.tolist() == [3, 1, 4]  # what is not said to be at -inf starts at the bound


@pytest.mark.parametrize("name", LOSSES)
def test_rows_of_a_table_are_read_back(name):
    steps = EXAMPLES[name](*drawn(EXAMPLES[name]))
    again = StepLosses.of_table(*zip(*steps.rows(), strict=True), steps.bound)
    if EXAMPLES[name].monotone:
        again, steps = again.checked("here"), steps.checked("here")
    order = [int(item) for item in again.names]
    for lam in (-np.inf, 0.1, 0.5, 0.9):
        np.testing.assert_array_equal(again.at(lam), steps.at(lam)[order])


# What is refused.


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: FalseNegativeRate()([[0.5, 0.5]], [1]), "needs labels of true and false, one for each output"),
        (lambda: FalseNegativeRate()([[0.5, 0.5]], [[0, 2]]), "needs labels of true and false"),
        (lambda: OrdinalDistance()([[0.5, 0.5]], [2]), "labels between 0 and 1"),
        (lambda: GraphDistance([[0, 1]]), "a row and a column for each label, got shape"),
        (lambda: GraphDistance([[0, 1], [1, 0.5]]), "finite distances of at least 0, and 0 from a label to itself"),
        (lambda: GraphDistance.of_edges([(0, 1)], classes=3), "no path leads from label 0 to label 2; add an edge"),
        (lambda: EXAMPLES["graph-distance"]([[0.5, 0.5]], [0]), "knows 5 labels, got outputs with 2 columns"),
        (lambda: ClassCost(costs=[-1.0]), "needs a cost of at least 0 for each label"),
        (lambda: ClassCost(costs=[1.0])([[0.5, 0.5]], [1]), "has 1 costs, got label 1; give one more"),
        (lambda: WrongAndAnswered()([[0.5, np.nan]], [0]), "cannot use NaN"),
        (lambda: StepLosses.on_grid([0, 1], [[1.0]]), "losses on a grid must have shape .items, 2., got .1, 1."),
        (
            lambda: StepLosses.of_table([0], [0.5], [1.0, 0.0]),
            "an item, a lambda and a loss in each row, got 1, 1 and 2",
        ),
        (
            lambda: StepLosses.of([([0.0], [0.0])], bound=0).checked("x"),
            "bound of a loss must be a finite number above 0",
        ),
        (lambda: get_loss("regret"), "unknown loss 'regret'"),
    ],
)
def test_what_makes_no_loss_is_refused(make, words):
    with pytest.raises(ValueError, match=words):
        make()


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: OrdinalDistance(score="cqr"), "needs a score of labels that draws nothing"),
        (lambda: OrdinalDistance(score=scores.APS(randomised=True)), "needs a score of labels that draws nothing"),
        (lambda: get_loss("class-cost", price=1), "unknown option of loss 'class-cost' 'price'"),
        (lambda: as_loss(3), "loss must be a Loss or its name"),
    ],
)
def test_what_is_no_loss_is_refused_by_its_type(make, words):
    with pytest.raises(TypeError, match=words):
        make()
