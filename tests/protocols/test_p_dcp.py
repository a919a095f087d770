"""P-DCP beside plain counting, what its frames show, and what it refuses."""

import base64
import json
import os
import warnings
from fractions import Fraction

import numpy as np
import pytest

from conformesh import CalibrationNote, Network, Result, TooFewScores, calibrate
from conformesh.kernels.ranks import make_requirement
from conformesh.kernels.weighted_scores import WeightedScores
from conformesh.methods import METHODS
from conformesh.pipeline.solver import solve_draws
from conformesh.privacy.grids import grid_points
from conformesh.protocols import masks
from conformesh.protocols.p_dcp import GRID_POINTS
from tests.campaigns import campaign_seeds
from tests.protocols.alone import Transcript, made, secrets_of, thresholds, together
from tests.protocols.test_e_dcp import random_case

pytestmark = pytest.mark.filterwarnings("ignore:p-dcp. .* more than required:conformesh.CalibrationNote")
GRIDS = [("logit", None), ("linear", (-3.0, 4.0)), ("powers", None), ("powers", (0.01, 100.0)), ("linear", None)]
ALPHAS = (0.05, 0.1, 0.25, 0.5, 0.9)


def required(target, n, devices, alpha):
    """The rank by the words of its rule, in fractions."""
    a = Fraction(str(alpha))
    need = (1 - a) * n + 1 if target == "sizes" else (1 - a) * (n + devices)
    return -(-need.numerator // need.denominator)


def assert_counts(pooled, rank, grid, threshold, certificate):
    """The first point of the grid with enough scores, or one with just as many; +inf where no point has enough."""
    counts = np.searchsorted(np.sort(pooled), grid, side="right")
    assert certificate.kind == "counted"
    assert certificate.required_rank == rank
    if rank > len(pooled) or counts[-1] < rank:
        assert threshold == np.inf
        assert certificate.counted_rank == len(pooled)
        return
    (at,) = np.flatnonzero(grid == threshold)
    assert certificate.counted_rank == counts[at] >= rank
    assert counts[at] == rank or at == np.argmax(counts >= rank)


def drawn_scores(rng, devices, kind):
    """Unequal, tied, infinite, far away, or none at all."""
    sizes = rng.integers(0, 12, devices) * (rng.random(devices) < 0.8)
    draw = {
        "normal": lambda n: rng.normal(size=n),
        "confident": lambda n: 1 / (1 + np.exp(rng.normal(3, 3, n))),
        "equal": lambda n: np.full(n, 0.25),
        "coarse": lambda n: rng.integers(0, 4, n) / 4,
        "infinite": lambda n: rng.choice([np.inf, -np.inf, 0.5, 1e308], n),
        "wide": lambda n: rng.standard_cauchy(n) * 10.0 ** rng.integers(-6, 6),
    }[kind]
    return [draw(int(n)) for n in sizes]


KINDS = ("normal", "confident", "equal", "coarse", "infinite", "wide")


def check_partitions(seeds, trials):
    """So many partitions for each seed, on a network of its own, by every grid in turn."""
    for seed in seeds:
        network, *_ = random_case(seed)
        if not 3 <= network.devices <= 20:
            network = Network.tree(3 + seed % 9)
        rng = np.random.default_rng([seed, 1])
        tables = [drawn_scores(rng, network.devices, KINDS[t % len(KINDS)]) for t in range(trials)]
        samples, target = WeightedScores.of_trials(tables), ("sizes", "paper")[seed % 2]
        (name, ends), width = GRIDS[seed % len(GRIDS)], int(rng.choice([1, 2, 7, 30]))
        requirement = make_requirement(target, "swap" if target == "sizes" else "ghost")
        way = ("tree", "flood")[seed // 2 % 2]
        own = {"grid": name, "range": ends, "width": width, "aggregate": way}
        found = solve_draws(samples, network, ALPHAS, "p-dcp", requirement=requirement, **own).outcome
        plain = solve_draws(samples, network, ALPHAS, "e-dcp", requirement=requirement).outcome
        grid = grid_points(name, GRID_POINTS, ends)
        for t, table in enumerate(tables):
            pooled = np.concatenate(table)
            for a, alpha in enumerate(ALPHAS):
                certificate, asked = found.certificates[t][a], plain.certificates[t][a]
                rank = required(target, len(pooled), network.devices, alpha)
                assert_counts(pooled, rank, grid, found.thresholds[0, t, a], certificate)
                assert (found.thresholds[:, t, a] == found.thresholds[0, t, a]).all()
                assert rank == asked.required_rank
                assert (certificate.mixture, certificate.rule) == (asked.mixture, asked.rule)
                assert found.thresholds[0, t, a] >= plain.thresholds[0, t, a] or certificate.counted_rank == rank
        assert found.sizes.tolist() == [[sum(map(len, table)) for table in tables]]


def test_random_partitions_equal_plain_counting():
    check_partitions(range(14), 12)


@pytest.mark.slow
def test_many_partitions_equal_plain_counting():
    check_partitions(campaign_seeds(40, 100), 50)


def test_tree_and_flood_find_the_same():
    rng = np.random.default_rng(5)
    table = [rng.random(int(n)) for n in rng.integers(0, 40, 9)]
    for network in (Network.chain(9), Network.complete(9), Network.star(9), Network.torus(3, 3)):
        tree, flood = (calibrate(table, network, 0.1, "p-dcp", aggregate=way) for way in ("tree", "flood"))
        assert tree.threshold == flood.threshold
        assert tree.certificate == flood.certificate
        assert tree.options["revealed_totals"] == flood.options["revealed_totals"]


def test_the_rank_of_all_scores_has_a_finite_threshold():
    """Where every score is needed +inf would do, but a point of the grid above all of them says more."""
    table = [[0.1, 0.7], [0.2, 0.3], [0.5, 0.4], [0.6, 0.65], [0.05, 0.66]]
    result = calibrate(table, Network.cycle(5), 0.1, "p-dcp", grid="linear")
    assert result.certificate.required_rank == result.certificate.counted_rank == 10
    assert 0.7 <= result.threshold <= 1


def test_too_few_scores_and_scores_above_the_grid_give_infinity():
    with pytest.warns(TooFewScores, match="needs rank 10 but there are only 9 scores"):
        assert calibrate([[0.1] * 3] * 3, Network.chain(3), 0.1, "p-dcp").threshold == np.inf
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        above = calibrate([[7.0] * 30] * 4, Network.chain(4), 0.1, "p-dcp", grid="linear")
    assert above.threshold == np.inf
    assert above.certificate.counted_rank == 120


def test_what_is_told_is_what_a_result_says_was_told():
    rng = np.random.default_rng(8)
    table = [rng.random(30) for _ in range(6)]
    result = calibrate(table, Network.cycle(6), 0.1, "p-dcp", score="lac")
    totals = dict(line.split(": ") for line in result.options["revealed_totals"].split(", "))
    pooled, grid = np.concatenate(table), grid_points("logit", GRID_POINTS)
    assert len(totals) >= 7
    for point, count in totals.items():
        near = grid[np.argmin(np.abs(grid - float(point)))]
        assert int(count) == (pooled <= near).sum()
    assert "180 scores in all" in result.options["revealed"]
    assert ("everybody knows", result.options["revealed"]) in result.facts()


def test_several_levels_and_groups_count_as_e_dcp_does():
    rng = np.random.default_rng(4)
    table = [rng.random(60) for _ in range(6)]
    labels = [rng.choice(["a", "b", "c"], 60) for _ in range(6)]
    grid = grid_points("logit", GRID_POINTS)
    private = calibrate(table, Network.cycle(6), (0.1, 0.2), "p-dcp", groups=labels, grid="logit")
    plain = calibrate(table, Network.cycle(6), (0.1, 0.2), "e-dcp", groups=labels, rank_rule="swap")
    for mine, item in zip(private.answers, plain.answers, strict=True):
        assert (mine.part, mine.alpha) == (item.part, item.alpha)
        (group,) = item.part
        pooled = np.concatenate([own[of == group] for own, of in zip(table, labels, strict=True)])
        assert_counts(pooled, item.certificate.required_rank, grid, mine.threshold, mine.certificate)
        assert mine.certificate.rule == item.certificate.rule
        assert mine.examples == item.examples == len(pooled)


def test_a_confidence_asks_for_the_rank_that_e_dcp_asks_for():
    rng = np.random.default_rng(4)
    table = [rng.random(60) for _ in range(6)]
    mine, plain = (
        calibrate(table, Network.cycle(6), 0.1, method, pac_confidence=0.9, rank_rule="swap", **options)
        for method, options in (("p-dcp", {"grid": "logit"}), ("e-dcp", {}))
    )
    assert mine.certificate.required_rank == plain.certificate.required_rank
    assert mine.certificate.pac_confidence == 0.9
    rank = plain.certificate.required_rank
    assert_counts(np.concatenate(table), rank, grid_points("logit", GRID_POINTS), mine.threshold, mine.certificate)


def test_equal_scores_beyond_the_rank_are_noted():
    with pytest.warns(CalibrationNote, match="p-dcp: 2 scores more than required lie at or below the threshold"):
        calibrate([[0.25] * 12] * 3, Network.cycle(3), 0.1, "p-dcp")


# --- what frames show -------------------------------------------------------------------------------------------------


def repartitioned(rng):
    """The same scores on other devices: as many at or below any threshold, but another number, least and most each."""
    pooled = np.sort(rng.random(150))
    first = np.split(pooled, [1, 4, 30, 100, 149])  # by size, from the smallest scores to the largest
    second = [*np.array_split(pooled[::-1], 6)]
    return first, second


@pytest.mark.parametrize("epsilon", [None, 2.0])
@pytest.mark.parametrize("shape", ["chain", "star", "complete"])
def test_no_frame_shows_sizes_or_extremes(shape, epsilon):
    """Other sizes, least and largest scores: the same frames but for masked numbers, as many and as long."""
    network, transcripts, found = Network.of(shape, 6), [], []
    options = {"grid": "logit"} | ({} if epsilon is None else {"epsilon": epsilon, "cells": 16})
    for table in repartitioned(np.random.default_rng(2)):
        said = Transcript()
        found.append(thresholds(together(network, made(network, table, **options), said=said)))
        transcripts.append(said)
    one, other = transcripts
    assert np.array_equal(*found)
    assert [(*said[:4], len(said[4])) for said in one] == [(*said[:4], len(said[4])) for said in other]
    rest = [[said for said in transcript if said[3] != "int32"] for transcript in transcripts]
    assert rest[0] == rest[1]
    assert {said[2:4] for said in rest[0]} >= {("tell", "bytes"), ("each", "uint64")}
    assert one.masked != other.masked


def test_frames_of_a_small_device_look_like_those_of_a_large_one():
    """Leaves of a star: in every round one frame each, of the same kind and length, whatever they hold."""
    table = [[0.5] * 3, [0.9], [0.1] * 5, np.random.default_rng(0).random(4000), [], [0.2, 0.3]]
    network, said = Network.star(6), Transcript()
    together(network, made(network, table, grid="logit"), said=said)
    leaves = [
        [(at, question, kind, len(raw)) for at, row, question, kind, raw in said if row == leaf] for leaf in range(1, 6)
    ]
    assert all(one == leaves[0] for one in leaves)


def test_masked_frames_of_other_runs_differ_as_uniform_numbers_do():
    """Their bits over 20 runs with fresh secrets: each of 32 is set half of the time, false alarm below 1e-6 in all."""
    network, table, words = Network.star(4), [[0.5] * 3, [0.9], [0.1] * 5, [0.4] * 70], []
    for run in range(20):
        said = Transcript()
        secrets = [secrets_of(network, row, run) for row in range(4)]
        protocols = made(network, table, grid="linear", width=127, secrets=lambda _, row, own=secrets: own[row])
        together(network, protocols, said=said)
        first = min(at for at, *_ in said.masked)
        words += [np.frombuffer(raw, "<u4") for at, *_, raw in said.masked if at == first]
    table = np.array(words)  # (leaves of all runs, numbers)
    assert table.shape == (60, 2)
    bits = (table[:, :, None] >> np.arange(32)) & 1
    far = np.abs(bits.sum(axis=0) - 30) / np.sqrt(15)
    assert far.max() < 5.7  # 64 sums, each beyond it with a chance of 1.2e-8
    assert len(np.unique(table)) == table.size


# --- refusals ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"coalition": 5}, "6 devices cannot hide from 5 curious devices: .* at least 7 devices are needed"),
        ({"mixture": "equal"}, "mixture 'equal' by exact sums: it needs a weight for each device, which would reveal"),
        ({"rank_rule": "ghost"}, "the ghost rank with mixture 'sizes': it is proven for mixture 'paper' only"),
        (
            {"mixture": "paper", "rank_rule": "swap"},
            "the swap rank with mixture 'paper': it needs how many scores each",
        ),
        ({"mixture": "paper", "pac_confidence": 0.9}, "the ghost rank is proven for all scores, on average"),
        (
            {"mixture": "paper", "epsilon": 1.0},
            "mixture 'paper' with epsilon: the proof for noisy counts exchanges one",
        ),
        (
            {"rank_rule": "ghost", "epsilon": 1.0},
            "the ghost rank with mixture 'sizes': it is proven for mixture 'paper' only",
        ),
        (
            {"pac_confidence": 0.9, "epsilon": 1.0},
            "pac_confidence with epsilon: the proof bounds the mean over the noise",
        ),
        ({"coalition": -1}, "coalition must be at least 0"),
        ({"width": 0}, "width must be at least 1"),
        ({"expected_scores": 0}, "expected_scores must be at least 1"),
        ({"aggregate": "gossip"}, "aggregate"),
        ({"honest": 3}, "honest is about noise: give epsilon too"),
        ({"unit": "device"}, "unit is about noise: give epsilon too"),
        ({"cells": 64, "window": 2}, "cells and window is about noise: give epsilon too"),
        ({"epsilon": 0.0}, "epsilon must be above 0 and finite"),
        ({"epsilon": np.inf}, "epsilon must be above 0 and finite"),
        ({"epsilon": np.nan}, "epsilon must be above 0 and finite"),
        ({"epsilon": 1e-9}, "epsilon"),
        ({"epsilon": 1.0, "cells": 1}, "at least 2 cells, got 1"),
        ({"epsilon": 1.0, "window": 0}, "window must be at least 1"),
        ({"epsilon": 1.0, "releases": 0}, "releases must be at least 1"),
        ({"epsilon": 1.0, "epoch_seconds": 0}, "epoch_seconds must be at least 1"),
        ({"epsilon": 1.0, "honest": 6}, "6 devices without a coalition of 1 leave 5 .* and honest asks for 6"),
        ({"epsilon": 1.0, "cap": 10}, "unit 'device' needs cap"),
        ({"epsilon": 1.0, "unit": "device"}, "unit 'device' needs cap"),
        ({"epsilon": 1.0, "unit": "device", "cap": 0}, "cap must be at least 1"),
        ({"epsilon": 1.0, "fill": 5}, "fill .* are for the mixtures 'equal' and 'given'"),
        (
            {"epsilon": 1.0, "unit": "device", "cap": 5},
            r"protecting whole devices at epsilon 1 .* needs at least \d+ devices, got 6",
        ),
        ({"epsilon": 1.0, "grid": "linear", "range": (1.0, 1.00000000000001), "cells": 256}, "fewer than 255 floats"),
    ],
)
def test_what_has_no_proof_or_no_sense_is_refused(given, words):
    with pytest.raises(ValueError, match=words):
        calibrate([[0.1, 0.5]] * 6, Network.cycle(6), 0.2, "p-dcp", **given)


# --- results ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [{}, {"epsilon": 2.0}, {"epsilon": 2.0, "mixture": "equal", "fill": 40}])
def test_a_saved_result_is_read_back_as_it_was(tmp_path, options):
    rng = np.random.default_rng(3)
    result = calibrate([rng.random(80) for _ in range(6)], Network.cycle(6), 0.1, "p-dcp", score="lac", **options)
    result.save(tmp_path / "result.json")
    again = Result.load(tmp_path / "result.json")
    assert again.certificate == result.certificate
    assert again.threshold == result.threshold
    assert again.options == result.options
    assert again.facts()[:6] == result.facts()[:6]


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("honest", 7, "honest devices must be at most 6, got 7"),
        ("honest", 0, "honest"),
        ("epsilon", 0.0, "epsilon"),
        ("epsilon", "inf", "epsilon"),
        ("unit", "person", "unit"),
        ("cells", 1, "cells"),
        ("inflation", -1.0, "inflation"),
        ("spread", -0.1, "spread"),
        ("epochs", [], "epochs"),
        ("epochs", [0], "epochs"),
        ("epochs", [3, 2], "epochs must ascend"),
        ("epochs", [2, 2], "epochs must ascend"),
        ("cap", 0, "cap"),
        ("cap", 20, "noise for each score must have no cap, got 20"),
        ("more", 1, "more"),
        (None, None, "must say what noise"),
    ],
)
def test_a_tampered_noise_certificate_is_refused(tmp_path, key, value, words):

    rng = np.random.default_rng(3)
    path = tmp_path / "result.json"
    calibrate([rng.random(80) for _ in range(6)], Network.cycle(6), 0.1, "p-dcp", grid="logit", epsilon=2.0).save(path)
    file = json.loads(path.read_text())
    certificate = file["answers"][0]["certificate"]
    if key is None:
        certificate["noise"] = None
    else:
        certificate["noise"][key] = value
    path.write_text(json.dumps(file))
    with pytest.raises(ValueError, match=words):
        Result.load(path)


def test_cards_and_facts_say_what_is_private():
    rng = np.random.default_rng(3)
    result = calibrate([rng.random(80) for _ in range(6)], Network.cycle(6), 0.1, "p-dcp", grid="logit", epsilon=2.0)
    said = dict(result.facts())
    assert "epsilon 2 for each score, if 5 of 6 devices keep their noise secret" in said["private"]
    assert "coverage is an average over calibration scores, new example and noise" in said["private"]
    assert "how many scores they hold is not told" in said["devices"]
    assert result.examples == 0
    page = result._repr_html_() + result.certificate._repr_html_()
    assert "counted with noise" in page
    assert "epsilon 2 for each score" in page
    assert "480" not in page


@pytest.mark.parametrize("options", [{}, {"epsilon": 2.0}])
def test_a_simulated_run_says_that_it_protects_nothing(options):
    rng = np.random.default_rng(3)
    result = calibrate([rng.random(80) for _ in range(6)], Network.cycle(6), 0.1, "p-dcp", grid="logit", **options)
    assert dict(result.facts())["privacy"].startswith("none: one program simulated all devices")
    assert "only a run on a mesh protects anything" in result._repr_html_()
    if options:
        assert "simulated, which protects nothing" in str(result.certificate)
        assert Result.from_dict(result.to_dict()).certificate.noise.simulated


def test_noise_cannot_be_recomputed_from_a_simulated_result(monkeypatch):
    """Two runs on the same scores have other noise, and nothing that is saved holds a seed. False alarm 1e-12.

    The release has 31 noisy cells of epsilon 1.8: that two runs agree in all has a chance of about .35^31.
    """
    rng = np.random.default_rng(3)
    held = [rng.random(80) for _ in range(6)]
    drawn = []
    monkeypatch.setattr(masks, "fresh_bytes", lambda count: drawn.append(os.urandom(count)) or drawn[-1])
    runs = [calibrate(held, Network.cycle(6), 0.1, "p-dcp", grid="logit", epsilon=2.0, cells=32) for _ in range(2)]
    assert runs[0].options["release"]["totals"] != runs[1].options["release"]["totals"]
    assert "seed" not in METHODS["p-dcp"].option_names()
    assert len(drawn) == 12
    for run in runs:
        saved = run.to_json()
        assert "seed" not in saved
        for secret in drawn:
            number = str(int.from_bytes(secret, "little")), str(int.from_bytes(secret, "big"))
            for written in (secret.hex(), base64.b64encode(secret).decode(), *number):
                assert written[:16] not in saved
