"""With the scores at hand what is predicted of E-DCP is what a run costs."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from conformesh import Network, calibrate
from conformesh.cli import app
from conformesh.kernels.weighted_scores import WeightedScores
from conformesh.planning.planner import plan
from conformesh.planning.sending import Sent
from conformesh.planning.terrain import Terrain
from tests.planning.test_exact import Maxima
from tests.planning.test_planner import SAME


def assert_as_predicted(network, scores, alpha, **options):
    found = plan(
        Terrain.with_scores(network, WeightedScores.of(scores)),
        alpha=alpha,
        methods=["e-dcp"],
        options=options,
        speed=SAME,
    )
    assert found.rows
    for row in found.rows:
        sure = Sent.of([one for one in row.stretches if not one.expected])
        assert row.certainty == ("exact" if sure.rounds == row.rounds else "estimate")
        maxima = Maxima(network.devices)
        chosen = {**options, **row.way.options, "observer": maxima}
        cost = calibrate(scores, network, alpha, "e-dcp", **chosen).cost
        assert row.rounds == cost.rounds
        if sure.rounds == row.rounds:
            maxima.numbers[:] = maxima.bits[:] = 0
        spent = (cost.numbers_per_device - maxima.numbers.mean(), cost.bits_per_device - maxima.bits.mean())
        # means over the devices, which the planner adds up in another order: equal but for the last bit of a float
        assert (sure.numbers, sure.bits) == pytest.approx(spent, rel=1e-12)


@pytest.mark.filterwarnings("ignore")
@given(st.lists(st.lists(st.integers(0, 9), max_size=6), min_size=20, max_size=20), st.sampled_from([0.05, 0.1, 0.4]))
def test_ties_and_empty_devices(held, alpha):
    assert_as_predicted(Network.torus(5, 4), [np.array(own, dtype=float) for own in held], alpha, aggregate="tree")


@pytest.mark.filterwarnings("ignore:alpha=0.01 needs rank")
@pytest.mark.parametrize("alpha", [0.01, 0.1, 0.5])
@pytest.mark.parametrize("width", [None, 1, 7])
@pytest.mark.parametrize("network", [Network.torus(5, 4), Network.chain(6), Network.star(5)], ids=str)
def test_every_way_to_add_up(network, width, alpha):
    rng = np.random.default_rng(3)
    scores = [rng.normal(k, size=rng.integers(20, 60)) for k in range(network.devices)]
    assert_as_predicted(network, scores, alpha, **({} if width is None else {"width": width}))


def test_the_command_reads_scores(tmp_path):
    rng = np.random.default_rng(0)
    lines = [f"{k},{x!r}" for k in range(20) for x in rng.random(50).tolist()]
    (tmp_path / "scores.csv").write_text("device,score\n" + "\n".join(lines) + "\n")
    words = ["plan", "--scores", str(tmp_path / "scores.csv"), "--topology", "torus", "--method", "e-dcp", "--json"]
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 0, result.output
    assert {row["certainty"] for row in json.loads(result.stdout)["rows"]} == {"exact"}
