"""What private calibration is measured by: rivals do what their papers say, and drawn releases are P-DCP's."""

import math
import sys
from importlib import import_module
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from scipy import integrate, stats

from conformesh import Network
from conformesh.kernels.ranks import make_requirement
from conformesh.kernels.weighted_scores import WeightedScores
from conformesh.pipeline.solver import solve_draws

FOLDER = Path(__file__).parents[1] / "benchmarks" / "promises"
ALPHA = 0.1


@pytest.fixture(scope="module")
def scripts():
    """A function that imports a script of benchmarks/promises, which import each other by plain names."""
    sys.path.insert(0, str(FOLDER))
    yield import_module
    sys.path.remove(str(FOLDER))


@pytest.fixture(scope="module")
def rivals(scripts):
    """The mechanisms of trusted curators."""
    return scripts("rivals")


@pytest.fixture(scope="module")
def private(scripts):
    """The measurements."""
    return scripts("private")


def neighbours(n):
    """Yield sorted scores, and the same with one of them replaced: at both ends, and in the middle."""
    scores = np.sort(np.random.default_rng(3).random(n))
    for place, value in ((0, 0.999), (n - 1, 0.001), (n // 2, 0.97), (n - 2, 0.5)):
        yield scores, np.sort(np.append(np.delete(scores, place), value))


def test_p_coqs_without_noise_finds_the_conformal_quantile(rivals):
    scores = np.sort(np.random.default_rng(0).random(99))
    steps = rivals.search_steps()
    assert steps == 34  # halvings from 1 to 1e-10
    found = rivals.p_coqs(scores, ALPHA, np.zeros(steps))
    assert found == pytest.approx(scores[89], abs=40 * rivals.WIDTH)  # rank 90 = .9 (99 + 1)
    assert rivals.p_coqs(scores, ALPHA, np.full(steps, 1000.0)) < 1e-9
    assert rivals.p_coqs(scores, ALPHA, np.full(steps, -1000.0)) > 1 - 1e-9
    assert rivals.p_coqs(scores, ALPHA, np.full(steps, 0.99)) == found  # counts are rounded down


def test_p_coqs_spends_its_budget_on_all_steps_together(rivals):
    """rho-zCDP is 1/(2 sigma^2) for a count, pure epsilon 1/scale, and both add up over the steps."""
    ours, plain = (np.random.default_rng(5) for _ in range(2))
    np.testing.assert_allclose(rivals.gaussian_counts(0.02, 34, ours), plain.normal(size=34) * math.sqrt(34 / 0.04))
    np.testing.assert_allclose(rivals.laplace_counts(0.5, 34, ours), plain.laplace(size=34) * 68)


@pytest.mark.parametrize("epsilon", [1.0, 0.5, 0.1])
def test_rho_implies_epsilon_and_delta_and_no_larger_one_does(rivals, epsilon):
    """The privacy loss of a Gaussian mechanism is N(rho, 2 rho); delta is the mean of (1 - exp(epsilon - loss))^+."""

    def delta(rho):
        loss = stats.norm(rho, math.sqrt(2 * rho))
        return integrate.quad(lambda x: -math.expm1(epsilon - x) * loss.pdf(x), epsilon, epsilon + 10, epsabs=1e-12)[0]

    rho = rivals.rho_of(epsilon, 1e-6)
    assert delta(rho) == pytest.approx(1e-6, rel=1e-4)
    assert delta(1.01 * rho) > 1e-6
    assert rho + 2 * math.sqrt(rho * math.log(1e6)) > epsilon  # more than the usual bound would grant


@pytest.mark.parametrize("epsilon", [1.0, 0.1])
def test_the_quantile_of_dpcp_is_private(rivals, epsilon):
    """Densities of neighbours differ by a factor of at most exp(epsilon), wherever one looks, and by more than half."""
    points = np.linspace(0.0005, 0.9995, 1000)
    largest = 0.0
    for pair in neighbours(20):
        densities = []
        for scores in pair:
            edges, chances = rivals.gap_chances(scores, ALPHA, epsilon)
            densities.append((chances / np.diff(edges))[np.searchsorted(edges, points) - 1])
        largest = max(largest, float(np.abs(np.log(densities[0] / densities[1])).max()))
    assert epsilon / 2 < largest <= epsilon * (1 + 1e-9)


def test_dpcp_draws_from_its_gaps(rivals):
    """2,000 draws from 11 gaps: false alarm 1e-6; chances that ignore the lengths of gaps are found out."""
    scores = np.sort(np.random.default_rng(1).random(10))
    edges, chances = rivals.gap_chances(scores, ALPHA, 0.3)
    rng = np.random.default_rng(2)
    answers = [rivals.dpcp(scores, ALPHA, 0.3, rng) for _ in range(2000)]
    counted, _ = np.histogram(answers, edges)
    assert stats.chisquare(counted, 2000 * chances).pvalue > 1e-6
    wrong = chances / np.diff(edges)
    assert stats.chisquare(counted, 2000 * wrong / wrong.sum()).pvalue < 1e-6


@pytest.mark.parametrize("epsilon", [1.0, 0.1])
@pytest.mark.parametrize("bins", [10, 200])
def test_the_quantile_of_exponq_is_private(rivals, epsilon, bins):
    for pair in neighbours(60):
        chances = [rivals.bin_chances(scores, ALPHA, epsilon, bins)[1] for scores in pair]
        assert np.abs(np.log(chances[0] / chances[1])).max() <= epsilon * (1 + 1e-9)


def test_the_level_of_exponq_is_the_lowest_that_its_formula_gives(rivals):
    n, epsilon, bins = 1000, 0.5, 50
    gamma = np.linspace(1e-4, 0.9, 200_000)
    levels = (n + 1) * 0.9 / (n * (1 - gamma * ALPHA)) + 2 / (epsilon * n) * np.log(bins / (gamma * ALPHA))
    assert rivals.raised_level(n, ALPHA, epsilon, bins) == pytest.approx(levels.min(), rel=1e-9)


def test_exponq_covers_and_p_coqs_need_not(rivals):
    """Uniform scores, whose coverage is the threshold itself; EXPONQ's mean is exact but for 200 draws of scores.

    With n = 500 EXPONQ lies 6 standard errors (of .001) above .9 or more: false alarm below 1e-8. P-COQS at pure
    epsilon .1 is far below.
    """
    rng = np.random.default_rng(4)
    draws = [np.sort(rng.random(500)) for _ in range(200)]
    bins = rivals.chosen_bins(500, ALPHA, 1.0)
    means = [ends @ chances for ends, chances in (rivals.bin_chances(own, ALPHA, 1.0, bins) for own in draws)]
    assert np.mean(means) > 0.9 + 6 * np.std(means) / math.sqrt(200)
    searched = [rivals.p_coqs(own, ALPHA, rivals.laplace_counts(0.1, 34, rng)) for own in draws]
    assert np.mean(searched) < 0.8


# --- the measurements -------------------------------------------------------------------------------------------------


def likeness(first, second):
    """Return the p-value that two samples of thresholds, of which there are few values, have one law."""
    values, counted = np.unique(np.concatenate([first, second]), return_counts=True)
    common = values[counted >= 20]  # others are counted together
    table = [[*((own == v).sum() for v in common), (~np.isin(own, common)).sum()] for own in (first, second)]
    return stats.chi2_contingency(np.array(table)[:, np.sum(table, axis=0) > 0]).pvalue


@pytest.mark.parametrize("target", ["sizes", pytest.param("equal", marks=pytest.mark.slow)])
def test_drawn_releases_have_the_law_of_the_method(private, target):
    """500 thresholds each of one data set. False alarm 1e-6; twice the epsilon is found out with p about 1e-25."""
    trials, rng = 500, np.random.default_rng(0)
    held = private.digits().draw(1000, rng)
    result = solve_draws(
        WeightedScores.of_trials([held] * trials),
        Network.torus(5, 4),
        [ALPHA],
        "p-dcp",
        requirement=make_requirement(target),
        epsilon=1.0,
        grid="logit",
        expected_scores=50,
    )
    thresholds = result.outcome.thresholds[0, :, 0]
    cells = private.make_plan(1000, 1.0, target=target).cells

    def drawn(epsilon):
        plan = private.make_plan(1000, epsilon, target=target, cells=cells)
        return np.array([private.release_of(plan, held, rng).answer(private.ALPHA).threshold for _ in range(trials)])

    assert likeness(thresholds, drawn(1.0)) > 1e-6
    assert likeness(thresholds, drawn(2.0)) < 1e-6


def test_every_measurement_runs_at_a_tiny_size(private):
    """With the columns of the table that is kept, and its cases."""
    population = private.digits()
    lines = [line for measure in private.MEASUREMENTS for line in measure(population, 2)]
    kept = pl.read_csv(private.TABLE).filter(pl.col("data") == "digits")
    assert [*lines[0]] == kept.columns
    names = ("what", "n", "epsilon", "detail", "level", "way", "cells")
    for line, row in zip(lines, kept.to_dicts(), strict=True):
        assert [line[name] for name in names] == [row[name] for name in names]
        assert line["inflation"] == pytest.approx(row["inflation"], rel=0.01)  # bounds may be made a little sharper
        assert line["draws"] <= row["draws"]


def test_the_readme_shows_what_private_csv_holds(private, tmp_path):
    """Freshness: `python benchmarks/promises/private.py --draw` writes exactly this."""
    table = pl.read_csv(private.TABLE)
    text = private.README.read_text(encoding="utf-8")
    assert private.readme_of(table, text) == text
    changed = table.with_columns(labels=pl.col("labels") + 1)
    assert private.readme_of(changed, text) != text
    private.draw_picture(table, tmp_path / "private.png")
    assert private.PICTURE.exists()
    assert (tmp_path / "private.png").stat().st_size > 5_000


def test_p_dcp_covers_and_its_spread_is_what_it_expects(private):
    """Of the table that is kept: no mean of P-DCP is below its level by more than 3.5 standard errors.

    About 60 lines, so a false alarm in 1.4 % of tables at worst, if all lay exactly at their level; they lie above.
    """
    ours = pl.read_csv(private.TABLE).filter(pl.col("way").str.starts_with("P-DCP"))
    assert (ours["coverage"] >= ours["level"] - 3.5 * ours["error"]).all()
    main = ours.filter((pl.col("what") == "compared") & (pl.col("epsilon") >= 0.5))
    assert ((main["expected_spread"] / main["spread"]).is_between(0.75, 1.35)).all()
