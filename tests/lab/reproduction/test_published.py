"""The published points, and how near the real model outputs come to them; ten draws with the default seed, which is 0.

Every comparison has a fixed seed, so that it is green or red for good. What its docstring says of chance is how often
another seed of the same code would be red.
"""

import math

import numpy as np
import polars as pl
import pytest

from conformesh.lab.reproduction.curves import TOPOLOGIES, published_points, select_curves, summarise_draws
from conformesh.lab.reproduction.experiments import get_experiment
from conformesh.lab.reproduction.paper_scores import paper_score_sources
from conformesh.lab.reproduction.reproduction import COMPARED_DRAWS, ReproductionRequest
from conformesh.lab.reproduction.verdicts import judge_case
from conformesh.lab.sweeps.sources import build_cell_network, stack_draws
from tests.lab.reproduction.handmade import rows_at
from tests.lab.reproduction.test_paper_methods import looped_epsilon, released_levels
from tests.reference import pooled_minimiser

pytestmark = pytest.mark.xdist_group("published")  # they share what is computed
LONG = pytest.mark.slow  # half of what this file takes
COMPARED = ("q-dcp-alpha", "h-dcp-alpha", "star-table")

# --- the table itself -------------------------------------------------------------------------------------------------


def test_two_figures_and_a_table_are_known():
    counts = {name: len(published_points(name)) for name in ("q-dcp-alpha", "h-dcp-alpha", "star-table", "ablation-mu")}
    assert counts == {"q-dcp-alpha": 54, "h-dcp-alpha": 54, "star-table": 4, "ablation-mu": 0}


@pytest.mark.parametrize("name", ["q-dcp-alpha", "h-dcp-alpha"])
def test_figures_have_nine_levels_of_six_lines(name):
    points = published_points(name)
    assert [(point.line, point.x) for point in points] == [
        (line, level / 10) for line in (*TOPOLOGIES, "CP") for level in range(1, 10)
    ]
    for point in points:
        assert 0 <= point.coverage <= 1
        assert 0 <= point.size <= 1
        assert 0 <= point.coverage_std < 0.05
        assert 0 <= point.size_std < 0.02
    for line in TOPOLOGIES:  # a higher level asks for no less
        coverage = [point.coverage for point in points if point.line == line]
        assert coverage == sorted(coverage)


@pytest.mark.parametrize(
    ("name", "line", "coverage", "size"),
    [
        ("q-dcp-alpha", "chain", 1.0, 0.981),
        ("q-dcp-alpha", "cycle", 0.957, 0.181),
        ("q-dcp-alpha", "star", 0.907, 0.109),
        ("q-dcp-alpha", "torus", 0.906, 0.109),
        ("q-dcp-alpha", "complete", 0.906, 0.109),
        ("q-dcp-alpha", "CP", 0.903, 0.105),
        ("h-dcp-alpha", "chain", 1.0, 1.0),
        ("h-dcp-alpha", "cycle", 1.0, 1.0),
        ("h-dcp-alpha", "star", 0.919, 0.121),
        ("h-dcp-alpha", "complete", 0.919, 0.121),
        ("star-table", "Q-DCP", 0.913, 0.1135),
        ("star-table", "H-DCP", 0.92, 0.1216),
        ("star-table", "FCP", 0.918, 0.1198),
        ("star-table", "FedCP-QQ", 0.996, 0.4532),
    ],
)
def test_points_at_level_nine_tenths(name, line, coverage, size):
    (point,) = [each for each in published_points(name) if (each.line, each.x) == (line, 0.9)]
    assert (point.coverage, point.size) == pytest.approx((coverage, size), abs=5.1e-4)


def test_bands_are_those_of_ten_draws():
    (point,) = [each for each in published_points("q-dcp-alpha") if (each.line, each.x) == ("cycle", 0.9)]
    assert point.coverage_half == pytest.approx(1.96 * 0.00498 / math.sqrt(10))
    assert point.size_half == pytest.approx(1.96 * 0.0106 / math.sqrt(10))


# --- on the real outputs ----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def real_sources(real_data, tmp_path_factory):
    folder = tmp_path_factory.mktemp("real")
    for name in ("cifar100_logits.npz", "pathmnist_logits.npz"):
        data = real_data(name)
        np.savez(folder / name, logits=data["logits"], labels=data["labels"])
    return paper_score_sources([str(folder)])


@pytest.fixture(scope="module")
def ran(real_sources):
    """Run lines of an experiment as a full request does; rows by line and x."""
    kept = {}

    def rows_of(name, variant, scores="logits", lines=None, x=None, **request):
        experiment = get_experiment(name)
        request = {"draws": 10, **request}
        cases = ReproductionRequest(**request).cases(experiment, real_sources)
        (case,) = [case for case in cases if (case.variant, case.scores) == (variant, scores)]
        found = {}
        for point in experiment.grid(case):
            if (lines is None or point.line in lines) and (x is None or point.x == x):
                if point not in kept:
                    kept[point] = rows_at(point)
                for row in kept[point]:
                    found.setdefault((point.line, row["x"]), []).append(row)
        return found

    return rows_of


def mean(rows, column):
    return float(np.mean([row[column] for row in rows]))


def error(rows, column):
    """The standard error of a mean over draws."""
    return float(np.std([row[column] for row in rows], ddof=1) / math.sqrt(len(rows)))


@pytest.fixture
def judged(ran):
    """The verdict on an item, from as many draws of a seed."""

    def verdict(name, variant, **request):
        found = ran(name, variant, **request)
        frame = pl.DataFrame([row for rows in found.values() for row in rows], schema_overrides={"epsilon": pl.Float64})
        case = {"experiment": name, "variant": variant, "scores": "logits"}
        summary = summarise_draws(frame.with_columns(**{column: pl.lit(word) for column, word in case.items()}))
        return judge_case(get_experiment(name), variant, "logits", select_curves(summary, *case.values()), True)

    return verdict


@pytest.mark.shared_data
@pytest.mark.parametrize("name", [pytest.param(name, marks=LONG if name == "q-dcp-alpha" else ()) for name in COMPARED])
def test_as_released_agrees_with_what_was_published(judged, name):
    """[Wen2025] Figure 2, Figure 4, Table 1, from ten draws of seed 0, as few as were published.

    Of the seeds 0 to 24 one or two would be red with so few; with the draws of a full run, below, none.
    """
    verdict = judged(name, "as-released")
    assert len(verdict.matches) == len(published_points(name))
    assert verdict.agrees, verdict


@pytest.mark.slow
@pytest.mark.shared_data
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("name", COMPARED)
def test_the_verdict_does_not_hang_on_the_seed(judged, name, seed):
    """As many draws as a full run has, of unchosen seeds; docs/reproduction.md has 25 of them."""
    verdict = judged(name, "as-released", draws=COMPARED_DRAWS, seed=seed)
    assert verdict.agrees, verdict
    assert max(match.errors for match in verdict.matches) < 0.9 * min(match.allowed for match in verdict.matches)


@pytest.mark.slow
@pytest.mark.shared_data
@pytest.mark.parametrize(("name", "far"), [("q-dcp-alpha", 3), ("h-dcp-alpha", 1), ("star-table", 3)])
def test_as_written_differs_from_what_was_published(judged, name, far):
    """Chain and cycle of Figure 2 and FedCP-QQ of the table by far, the cycle of Figure 4 by less."""
    verdict = judged(name, "as-written")
    assert not verdict.agrees
    assert max(match.errors for match in verdict.matches) > far * max(match.allowed for match in verdict.matches)


@pytest.mark.shared_data
@pytest.mark.parametrize(("rounds", "off"), [(700, 0.7), (2000, 0.75)])
def test_figure_6_as_written_is_far_from_as_released_at_middle_rounds(ran, rounds, off):
    """[Wen2025] Figure 6: on chain or cycle the text's sets are smaller than the code's by more than so much."""
    lines = ("chain", "cycle")
    written, released = (
        ran("q-dcp-convergence", variant, lines=lines, x=rounds) for variant in ("as-written", "as-released")
    )
    shares = [1 - mean(written[line, rounds], "size") / mean(released[line, rounds], "size") for line in lines]
    assert max(shares) > off, shares


@pytest.mark.shared_data
@pytest.mark.parametrize(
    ("line", "size"),
    [
        pytest.param("chain", 29.92, marks=LONG),
        ("cycle", 10.66),
        ("star", 10.53),
        ("torus", 10.53),
        ("complete", 10.53),
    ],
)
def test_the_text_gives_other_sizes_than_the_figure(ran, line, size):
    """Figure 2 by the letter, at 0.9: within three standard errors of a difference of two means over ten draws.

    The spread is estimated from our own ten, so that chance exceeds it for 1.5 % of the seeds (t with 9 degrees of
    freedom). The published 98.1 and 18.1 labels of chain and cycle are 500 and 30 standard errors away.
    """
    rows = ran("q-dcp-alpha", "as-written", lines=TOPOLOGIES)[line, 0.9]
    tolerance = 3 * math.sqrt(2) * error(rows, "size")
    assert tolerance < 1.5
    assert abs(mean(rows, "size") - size) <= tolerance
    (theirs,) = [each for each in published_points("q-dcp-alpha") if (each.line, each.x) == (line, 0.9)]
    if line in {"chain", "cycle"}:
        assert 100 * theirs.size - mean(rows, "size") > 20 * error(rows, "size")


@pytest.mark.shared_data
def test_the_last_iterate_stands_in_for_the_optimum(ran, real_sources):
    """After 100 rounds on the chain the code's error term is a quarter of what the optimum would give: 16.5, not 66.

    Over draws the term varies by 5 %, so that 15 % are ten standard errors; the ratio varies as little.
    """
    experiment = get_experiment("q-dcp-convergence")
    rows = ran(experiment.name, "as-released", lines=("chain",), x=100)["chain", 100.0]
    assert mean(rows, "epsilon") == pytest.approx(16.5, rel=0.15)
    cases = ReproductionRequest(draws=10).cases(experiment, real_sources)
    (case,) = [case for case in cases if (case.variant, case.scores) == ("as-released", "logits")]
    (cell,) = [point.cell for point in experiment.grid(case) if (point.line, point.x) == ("chain", 100)]
    network = build_cell_network(cell.network, cell.scores, 0)
    samples = stack_draws([cell.scores.draw(cell.network, 20, cell.seed, number) for number in range(3)])
    ratios = []
    for draw in range(3):
        scores = [samples.segment(k, draw) for k in range(20)]
        gamma = released_levels(scores, network, 0.1)
        s0 = float(np.mean([np.quantile(mine, gamma) for mine in scores]))
        optimum = np.full(20, pooled_minimiser(scores, gamma, 2000.0, 2000.0, s0))
        epsilon = looped_epsilon(scores, network, gamma, 2000.0, 2000.0, s0, 100, optimum, 0.1)
        ratios.append(rows[draw]["epsilon"] / epsilon)
    assert np.mean(ratios) == pytest.approx(0.24, abs=0.03)


@pytest.mark.shared_data
def test_fedcp_qq_with_its_own_ranks_and_with_the_published_ones(ran):
    """Table 1: .90 / 10.3 labels with the ranks it chooses, .996 / 45 with the largest scores and rank 17.

    15 % are six standard errors of the first size and five of the second.
    """
    own, theirs = (ran("star-table", variant)["FedCP-QQ", 0.9] for variant in ("as-written", "as-released"))
    assert mean(own, "coverage") == pytest.approx(0.90, abs=0.01)
    assert mean(own, "size") == pytest.approx(10.3, rel=0.15)
    assert mean(theirs, "coverage") == pytest.approx(0.996, abs=0.002)
    assert mean(theirs, "size") == pytest.approx(45, rel=0.15)


@LONG
@pytest.mark.shared_data
def test_q_dcp_misses_on_pathmnist_where_e_dcp_covers(ran):
    """[Wen2025] Figure 16, at level 0.9 and on the complete graph, where nothing but s0 can be wrong.

    E-DCP is exact in the same draws. Its coverage is at least 0.9 on average: three standard errors below it for 0.7 %
    of the seeds (t, 9 degrees).
    """
    found = {v: ran("pathmnist-q-dcp", v, lines=("complete", "E-DCP")) for v in ("as-written", "as-released")}
    assert mean(found["as-released"]["complete", 0.9], "coverage") < 0.88
    for rows in found.values():
        q_dcp, e_dcp = rows["complete", 0.9], rows["E-DCP", 0.9]
        assert mean(q_dcp, "coverage") < 0.9 - 5 * error(q_dcp, "coverage")
        assert all(row["rank_margin"] < 0 for row in q_dcp)
        assert mean(e_dcp, "coverage") >= 0.9 - 3 * error(e_dcp, "coverage")
        assert all(row["rank_margin"] >= 0 for row in e_dcp)


@pytest.mark.slow
@pytest.mark.shared_data
def test_with_confidences_q_dcp_by_the_letter_gives_full_sets(ran):
    """At level 0.9 s0 is near 1, and epsilon0 = 0.1 on top is more than any score: every label, in every draw."""
    found = ran("q-dcp-alpha", "as-written", "confidences", lines=(*TOPOLOGIES, "E-DCP"))
    for line in TOPOLOGIES:
        for row in found[line, 0.9]:
            assert row["threshold"] > 1
            assert row["size"] == pytest.approx(100)
    assert mean(found["E-DCP", 0.9], "size") < 10


@pytest.mark.shared_data
def test_e_dcp_is_fcp_in_every_draw_of_every_level(ran):
    for name in ("q-dcp-alpha", "pathmnist-q-dcp"):
        for variant in ("as-written", "as-released"):
            found = ran(name, variant, lines=("FCP", "E-DCP"))
            for level in range(1, 10):
                one, other = (found[line, level / 10] for line in ("FCP", "E-DCP"))
                assert [row["threshold"] for row in one] == [row["threshold"] for row in other]
