"""Results draw themselves: a figure comes back, a path is written, axes are used, and nothing is said twice."""

from __future__ import annotations

import numpy as np
import pytest
from matplotlib.figure import Figure

from conformesh import Network, TooFewScores, calibrate, quantiles, scores
from conformesh.lab.comparison import compare, compared_ways, cost_fronts
from conformesh.lab.planning.planner import plan
from conformesh.results.evaluation import Coverage, Evaluation

NETWORK = Network.torus(3, 2)


@pytest.fixture(scope="module")
def held():
    rng = np.random.default_rng(0)
    return [rng.random(40) for _ in range(6)]


@pytest.fixture
def evaluation():
    hits = np.random.default_rng(1).random((6, 50)) < 0.9
    few = np.zeros(50, dtype=bool)
    devices = {f"d{k}": Coverage.of(row) for k, row in enumerate(hits)} | {"d6": Coverage.of(few)}
    classes = {0: Coverage.of(hits[0]), 1: Coverage.of(hits[1])}
    return Evaluation(
        Coverage.of(hits.ravel()), 1.2, 0.0, 0.8, classes, devices, {}, {1: 240, 2: 60}, 0.9, ("cat", "dog")
    )


def texts(figure):
    return [text.get_text() for axes in figure.axes for text in (axes.title, *axes.get_xticklabels())]


def test_an_evaluation_has_a_panel_for_each_thing_it_knows(evaluation, tmp_path):
    figure = evaluation.plot(path=tmp_path / "new" / "e.png")
    assert [axes.get_xlabel() for axes in figure.axes] == ["device", "class", "labels in a set"]
    assert (tmp_path / "new" / "e.png").read_bytes().startswith(b"\x89PNG")
    for axes in figure.axes[:2]:
        assert any(list(line.get_ydata()) == [0.9, 0.9] for line in axes.lines)  # the target
    assert {"cat", "dog", "d6"} <= {*texts(figure)}
    assert "1 of 7 below" in figure.axes[0].get_title(loc="left") + figure.axes[0].get_title()
    assert figure._repr_png_().startswith(b"\x89PNG")


def test_axes_of_ones_own(evaluation):
    figure = Figure()
    axes = figure.add_subplot()
    assert evaluation.plot(ax=axes, by="class") is figure
    assert axes.get_xlabel() == "class"
    assert len(evaluation.plot(by="size").axes) == 1
    with pytest.raises(ValueError, match=r"by must be 'device' or 'class' or 'size', .* got 'group'"):
        evaluation.plot(by="group")


def test_many_devices_are_a_band():
    hits = np.random.default_rng(1).random((300, 30)) < 0.9
    many = {f"device {k}": Coverage.of(row) for k, row in enumerate(hits)}
    figure = Evaluation(Coverage.of(hits.ravel()), 1.0, 0.0, None, {}, many, nominal=0.9).plot()
    [axes] = figure.axes
    assert axes.get_xlabel() == "300 devices, in ascending order"
    assert len(axes.collections) == 1
    nothing = Evaluation(Coverage.of(hits[0]), 1.0, 0.0).plot()
    assert nothing.axes[0].get_xticklabels()[0].get_text() == "all rows"


def test_a_calibration_shows_thresholds_costs_and_its_certificate(held, tmp_path):
    result = calibrate(held, NETWORK, 0.1, score=scores.LAC())
    figure = result.plot(path=tmp_path / "c.svg")
    assert "required rank" in figure.get_suptitle()
    assert len(figure.axes) == 2
    assert "<svg" in (tmp_path / "c.svg").read_text()
    assert [axes.get_title(loc="left") for axes in result.plot(NETWORK).axes[:1]] == ["torus 3x2"]
    local = calibrate(held, NETWORK, 0.2, "local")
    assert len(local.plot().axes) == 1  # nobody sent anything
    assert len(local.plot(NETWORK).axes) == 2  # the map and what its colours mean
    with pytest.raises(ValueError, match="has other devices than this result"):
        result.plot(Network.chain(6).relabelled([*"abcdef"]))
    with pytest.raises(ValueError, match=r"the picture must end in .png, .pdf, .svg, got '.gif'"):
        result.plot(path=tmp_path / "c.gif")


def test_an_infinite_threshold_can_be_drawn():
    with pytest.warns(TooFewScores):
        result = calibrate([[0.1], [0.2]], "chain", 0.1)
    assert result.threshold == np.inf
    assert result.plot().axes[0].get_title(loc="left") == "threshold is infinite"


def test_a_private_result_draws_its_noisy_histogram_and_the_last_crossing():
    """The threshold is the grid point after the last one whose noisy part lies above the line."""
    held = [np.random.default_rng(k).random(200) for k in range(6)]
    result = calibrate(held, NETWORK, 0.1, "p-dcp", epsilon=1, grid="logit")
    axes = result.plot().axes[0]
    assert axes.get_title(loc="left").startswith("noisy histogram")
    points, line, threshold = (artist.get_xydata() for artist in axes.lines)
    after = points[points[:, 1] > line[0, 1], 0].max()
    assert threshold[0, 0] == result.threshold == points[points[:, 0] > after, 0].min()


def test_groups_and_levels_side_by_side(held):
    groups = [np.array(["a", "b"])[np.arange(40) % 2] for _ in held]
    several = calibrate(held, NETWORK, [0.1, 0.2], groups=groups)
    [axes] = several.plot().axes
    assert [label.get_text() for label in axes.get_xticklabels()] == ["a", "b"]
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["0.1", "0.2"]
    assert axes.get_xlabel() == "group"
    assert len(several["a", 0.1].plot(NETWORK).axes) >= 2
    with pytest.raises(ValueError, match="a map shows the threshold of one answer, and this result has 4"):
        several.plot(NETWORK)


def test_comparisons_fronts_and_plans_draw_themselves(held, tmp_path):
    compare(held, [NETWORK], 0.1, compared_ways(["e-dcp"])).plot(tmp_path / "comparison.png")
    cost_fronts(held, [NETWORK])[0].plot(tmp_path / "front.png")
    plan(NETWORK, 40, methods=["e-dcp"]).plot(tmp_path / "plan.png")
    assert {path.name for path in tmp_path.iterdir()} == {"comparison.png", "front.png", "plan.png"}


def test_quantiles_are_drawn_over_their_parts(held, tmp_path):
    found = quantiles(held, NETWORK, [0.1, 0.5])
    figure = found.plot(path=tmp_path / "q.svg")
    (points,) = figure.axes[0].lines
    assert (list(points.get_xdata()), list(points.get_ydata())) == ([0.1, 0.5], found.values.tolist())
    assert (tmp_path / "q.svg").exists()
    axes = Figure().add_subplot()
    assert found.plot(ax=axes) is axes.figure
