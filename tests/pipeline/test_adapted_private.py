"""Adapted scores by masked sums: p-dcp without epsilon has windows of grid points, and its sets are as good as proven.

With counts at grid points a device bounds the score of the required rank from above: its sets contain those of exact
scores, and lie within those of scores that are rounded up to the grid. Both are compared with e-dcp and a full window.
"""

from unittest import mock

import numpy as np
import pytest

from conformesh import Network, adapt, calibrate
from conformesh.privacy.grids import grid_points
from conformesh.protocols.p_dcp import GRID_POINTS
from conformesh.scores.adapt import prior, scale
from tests.campaigns import campaign_seeds

pytestmark = pytest.mark.filterwarnings("ignore::conformesh.CalibrationNote", "ignore::conformesh.TooFewScores")
CLASSES, MOST = 4, 12  # classes; rows of a device
WIDE = 2 * MOST + 8  # a window that decides as much as a full one
GRIDS = {
    name: np.append(grid_points(name, GRID_POINTS, ends), np.inf)
    for name, ends in (("logit", None), ("powers", None), ("linear", (0.0, 1.0)))
}
COARSE = {"grid": "linear", "range": (0.0, 1.0)}  # where scores of a grid of few points are wanted


def drawn_case(seed, regression):
    """A network, rows of each device (some without any), and new rows."""
    rng = np.random.default_rng([31, seed])
    network = [Network.chain(3), Network.cycle(4), Network.star(5)][seed % 3]
    sizes = rng.integers(0, MOST + 1, network.devices)
    sizes[0] = max(sizes[0], 2)
    data = {}
    for k, (name, size) in enumerate(zip(network.ids, sizes.tolist(), strict=True)):
        if regression:
            mean = rng.normal(size=size).round(2)
            data[name] = (mean, mean + rng.normal(k / 2, 1 + k, size).round(2))
        else:
            outputs = rng.integers(1, 6, (size, CLASSES))  # small numbers: many ties
            outputs[:, k % CLASSES] += 4
            data[name] = (outputs / outputs.sum(axis=1, keepdims=True), rng.integers(0, 1 + k % CLASSES, size))
    new = rng.normal(size=7) if regression else rng.dirichlet(np.ones(CLASSES), 7)
    return network, data, new, rng


def rounded_up(grid):
    """Scores rounded up to a grid, in the place of the scores of Prior and Scale."""

    def up(scores):
        return GRIDS[grid][np.searchsorted(GRIDS[grid][:-1], scores)]

    plain = prior._as_scores, scale._as_scores
    return mock.patch.multiple(prior, _as_scores=lambda q: up(plain[0](q))), mock.patch.multiple(
        scale, _as_scores=lambda *given: up(plain[1](*given))
    )


def sets_of(result, new, **rows):
    return {
        (name, alpha): result.on(name).predict(new, alpha=alpha, **rows)
        for name in result.device_ids
        for alpha in result.alphas
    }


def is_within(one, other, regression):
    """Whether every set is part of another one, or equal."""
    if not regression:
        return bool((one <= other).all())
    empty = one[:, 0] > one[:, 1]
    return bool((empty | ((other[:, 0] <= one[:, 0]) & (one[:, 1] <= other[:, 1]))).all())


def options_of(seed, regression, window):
    """Adaptations to choose settings from and fixed ones, by turns."""
    if regression:
        fixed = {"bias": 10, "scale": 10, "usual": 2.0} if seed % 2 else {"bias": (2, np.inf), "scale": 10}
        return adapt.Scale(**fixed, window=window)
    return adapt.Prior(**({"strength": 4, "temperature": 1} if seed % 2 else {}), window=window)


def check_case(seed, regression):
    """Sets by masked counts contain the exact ones, lie within the rounded ones, and equal these where scores are."""
    network, data, new, _ = drawn_case(seed, regression)
    alphas, grid = [0.1, 0.3], "powers" if regression else "logit"
    full, wide, narrow = (options_of(seed, regression, window) for window in ("full", WIDE, 4))
    exact = sets_of(calibrate(data, network, alphas, adapt=full, rng=seed), new)
    masked = sets_of(calibrate(data, network, alphas, "p-dcp", adapt=wide, rng=seed), new)
    few = sets_of(calibrate(data, network, alphas, "p-dcp", adapt=narrow, rng=seed), new)
    first, second = rounded_up(grid)
    with first, second:
        coarse = sets_of(calibrate(data, network, alphas, adapt=full, rng=seed), new)
        again = sets_of(calibrate(data, network, alphas, "p-dcp", adapt=wide, rng=seed), new)
    for key in exact:
        assert is_within(exact[key], masked[key], regression)
        assert is_within(masked[key], few[key], regression)
        assert np.array_equal(coarse[key], again[key])
        if not regression:  # intervals of rounded scores are not the level sets that ends are computed from
            assert is_within(masked[key], coarse[key], regression)
    return masked, exact


@pytest.mark.parametrize("regression", [False, True])
def test_theorem_windows_of_points_contain_the_exact_sets(regression):
    for seed in range(4 if regression else 10):  # of intervals each takes a second
        check_case(seed, regression)


@pytest.mark.slow
@pytest.mark.parametrize("regression", [False, True])
def test_theorem_windows_of_points_contain_the_exact_sets_on_many_cases(regression):
    for seed in campaign_seeds(50 if regression else 250, first=10):
        check_case(seed, regression)


def test_masked_sets_are_seldom_larger_than_exact_ones():
    """On the logit grid of 16,384 points: equal for 99 % of labels, or the grid would be too coarse."""
    differ, labels = 0, 0
    for seed in range(8):
        masked, exact = check_case(seed, False)
        differ += sum(int((masked[key] != exact[key]).sum()) for key in exact)
        labels += sum(one.size for one in exact.values())
    assert labels > 1500
    assert differ <= 0.01 * labels


@pytest.mark.parametrize("rule", [None, "atoms", "max"])
def test_groups_are_counted_by_masked_sums_as_by_e_dcp(rule):
    network, data, new, rng = drawn_case(5, False)
    groups = {name: [*rng.choice(["a", "b"], len(labels))] for name, (_, labels) in data.items()}
    if rule is not None:
        groups = {name: [[one] if rng.random() < 0.5 else ["a", "b"] for one in own] for name, own in groups.items()}
    given = {"groups": groups, "rng": 5, **({} if rule is None else {"group_rule": rule})}
    first, second = rounded_up("logit")
    with first, second:
        coarse = calibrate(data, network, [0.1, 0.3], adapt=adapt.Prior(window="full"), **given)
        masked = calibrate(data, network, [0.1, 0.3], "p-dcp", adapt=adapt.Prior(window=WIDE), **given)
    rows = {"groups": ["a", "b", "a", "b", "a", "b", "a"]}
    for key, one in sets_of(coarse, new, **rows).items():
        assert np.array_equal(one, sets_of(masked, new, **rows)[key])
    assert [answer.examples for answer in coarse.answers] == [answer.examples for answer in masked.answers]


def test_windows_have_the_first_grid_point_that_reaches_each_rank():
    """By a pooled sort of rounded scores, ties and scores above the grid among them."""
    rng = np.random.default_rng(8)
    network, fixed = Network.cycle(4), adapt.Prior(strength=4, temperature=1, window=10)
    for _ in range(10):
        outputs = rng.integers(1, 4, (4, 9, 3)).astype(float)
        outputs /= outputs.sum(axis=2, keepdims=True)
        data = {name: (outputs[k], rng.integers(0, 3, 9)) for k, name in enumerate(network.ids)}
        result = calibrate(data, network, 0.2, "p-dcp", adapt=fixed, **COARSE)
        window = result.answers[0].windows[0]
        scores = np.concatenate([fixed.leave_one_out(fixed.read(*data[name], name), (4.0, 1.0)) for name in data])
        ordered = np.sort(GRIDS["linear"][np.searchsorted(GRIDS["linear"][:-1], scores)])
        rank = window.required
        reached = np.unique(ordered[max(rank - 5, 0) : rank + 5])  # ranks from rank - 4 to rank + 5, counted from 0
        assert window.values.tolist() == reached.tolist()
        assert window.counts.tolist() == [int((ordered <= value).sum()) for value in reached]
        assert window.below == int((ordered < reached[0]).sum())
        assert (window.total, rank) == (36, 29)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"epsilon": 1.0}, "noise for one score does not hide it"),
        ({"mixture": "equal"}, "mixture 'equal' by exact sums"),
        ({"mixture": "paper"}, "mixture 'paper' with adapted scores"),
        ({"mixture": "own"}, "ranks among the scores of each device"),
        ({"adapt": adapt.Prior(window="full")}, "a full window is as wide as the number of rows"),
    ],
)
def test_what_masked_sums_cannot_do_is_refused(given, words):
    network, data, _, _ = drawn_case(1, False)
    with pytest.raises(ValueError, match=words):
        calibrate(data, network, 0.1, "p-dcp", **{"adapt": "prior", **given})


def test_losses_that_masked_sums_cannot_hold_are_refused():
    network, data, _, _ = drawn_case(1, False)
    with (
        mock.patch("conformesh.protocols.p_dcp.LARGEST_MASKED_SUM", 10_000),
        pytest.raises(ValueError, match=r"holds more than 1,250 / 256 in losses, the most that p-dcp adds up"),
    ):
        calibrate(data, network, 0.1, "p-dcp", adapt="prior")


@pytest.mark.parametrize(("window", "rounds", "bits"), [(16, 60, 10_500), (4, 60, 8000)])
def test_a_masked_window_on_the_torus_takes_60_rounds_and_10_kbit(window, rounds, bits):
    """20 devices of 50 rows and one setting: five stages of eight rounds, the tree, and 20 keys. Means of 5 draws."""
    network, found = Network.torus(5, 4), []
    for seed in range(5):
        rng = np.random.default_rng(seed)
        outputs = rng.dirichlet(np.ones(10), (20, 50))
        data = {name: (outputs[k], rng.integers(0, 10, 50)) for k, name in enumerate(network.ids)}
        fixed = adapt.Prior(strength=16, temperature=1, window=window)
        found.append(calibrate(data, network, 0.1, "p-dcp", adapt=fixed).cost)
    assert np.mean([cost.rounds for cost in found]) <= rounds
    assert np.mean([np.mean(cost.bits) for cost in found]) <= bits
