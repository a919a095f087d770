"""Realistic mistakes with data: each gives the right answer, an error or a note that names it; none passes silently.

`MISTAKES` is the table: what was done, what must come of it, and words that the error or the note must have.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np
import pandas as pd
import polars as pl
import pytest
from click.testing import CliRunner
from sklearn.linear_model import LinearRegression, LogisticRegression

from conformesh import (
    CalibrationNote,
    Network,
    Result,
    TooFewScores,
    calibrate,
    choose_centres,
    control,
    detect,
    p_values,
    scores,
)
from conformesh.cli import app
from conformesh.lab.comparison import compare, compared_ways
from conformesh.online import online
from conformesh.scores.losses import StepLosses
from conformesh.sklearn import MeshClassifier, MeshRegressor

RNG = np.random.default_rng(26)
CITIES = ("Paris", "Lyon", "Berlin", "Rome")  # not sorted, as in life
HELD = {name: RNG.random(30) * (k + 1) / 4 for k, name in enumerate(CITIES)}
IN_ORDER = [*HELD.values()]
NAMED = Network.cycle(4).relabelled(CITIES)
CYCLE = Network.cycle(4)
GRAPH = nx.relabel_nodes(nx.cycle_graph(4), dict(enumerate(CITIES)))
FLAT = np.concatenate(IN_ORDER)
OWNERS = np.repeat(CITIES, 30)
FRAME = pd.DataFrame({"device": OWNERS, "score": FLAT})

LABELS = RNG.integers(0, 5, 400)  # of a model that is right nine times of ten
LOGITS = RNG.normal(size=(400, 5))
LOGITS[np.arange(400), np.where(RNG.random(400) < 0.9, LABELS, (LABELS + 1) % 5)] += 6
PROBABILITIES = np.exp(LOGITS) / np.exp(LOGITS).sum(axis=1, keepdims=True)
LAC, APS, CQR, RESIDUAL = scores.LAC(), scores.APS(), scores.CQR(), scores.AbsoluteResidual()
Y = RNG.normal(size=200)
BAND = np.stack([Y + RNG.normal(size=200) - 2, Y + RNG.normal(size=200) + 2], axis=1)

ROWS = RNG.normal(size=(200, 3))
CLASSES = (ROWS[:, 0] + 0.3 * RNG.normal(size=200) > 0).astype(int)
TABLE = pd.DataFrame(ROWS, columns=["a", "b", "c"], index=RNG.permutation(1000)[:200])
TRUTH = pd.Series(CLASSES, index=TABLE.index)
MODEL = LogisticRegression().fit(ROWS, CLASSES)


@dataclass(frozen=True)
class Mistake:
    """What was done; `outcome` is "right", "error" or "note", whose text has these words."""

    name: str
    outcome: str
    words: str
    act: Callable[[], Any]


MISTAKES: list[Mistake] = []


def mistake(outcome: str, words: str = "") -> Callable[[Callable[[], Any]], Callable[[], Any]]:
    """Put a function into the table; its name says what was done."""

    def enter(act: Callable[[], Any]) -> Callable[[], Any]:
        MISTAKES.append(Mistake(act.__name__, outcome, words, act))
        return act

    return enter


def command(*words: object) -> str:
    """Run the command line; what it refuses is an error here, and its warnings are notes."""
    done = CliRunner().invoke(app, [str(word) for word in words])
    if done.exit_code == 2:
        raise ValueError(done.stderr)
    assert done.exit_code == 0, done.stderr
    for line in done.stderr.splitlines():
        if line.startswith("warning: "):
            warnings.warn(line, CalibrationNote, stacklevel=2)
    return done.stdout


def written(text: str | bytes, name: str = "s.csv") -> str:
    Path(name).write_bytes(text if isinstance(text, bytes) else text.encode())
    return name


def score_rows(*rows: str) -> str:
    """A file of scores: some good ones, and these rows."""
    good = [f"Paris,{value!r}" for value in IN_ORDER[0].tolist()]
    return written("\n".join(["device,score", *good, *rows]) + "\n")


def model_file(**changed: Any) -> str:
    """Outputs and labels of the model, as an NPZ."""
    np.savez("o.npz", **{"probabilities": PROBABILITIES, "labels": LABELS, **changed})
    return "o.npz"


# --- scores -----------------------------------------------------------------------------------------------------------


@mistake("error", "device Lyon, row 3: scores of 'lac' are between 0 and 1, got 70")
def lac_scores_in_percent():
    held = {**HELD, "Lyon": np.array([0.2, 0.3, 0.1, 70.0, 40.0])}
    calibrate(held, NAMED, score="lac")


@mistake("error", "device Paris, row 0: scores of 'absolute-residual' are at least 0, got -0")
def residuals_with_their_sign():
    calibrate({name: own - 0.5 for name, own in HELD.items()}, NAMED, score="absolute-residual")


@mistake("error", "are between 0 and 1, got 1.5")
def out_of_range_with_groups():
    held = {**HELD, "Rome": np.full(30, 1.5)}
    calibrate(held, NAMED, groups={name: ["x"] * 30 for name in CITIES}, score="aps")


@mistake("error", "are between 0 and 1, got 1.5")
def out_of_range_near_centres():
    inputs = {name: RNG.random(30) for name in CITIES}
    centres = choose_centres(RNG.random(100), 2)
    calibrate({**HELD, "Rome": np.full(30, 1.5)}, NAMED, inputs=inputs, centres=centres, score="lac")


@mistake("error", "are between 0 and 1, got 1.5")
def out_of_range_with_weights():
    held = {**HELD, "Rome": np.full(30, 1.5)}
    calibrate(held, NAMED, weight={name: np.ones(30) for name in CITIES}, weight_bound=1, score="lac")


@mistake("error", "are between 0 and 1, got 1.5")
def out_of_range_for_p_values():
    p_values({**HELD, "Rome": np.full(30, 1.5)}, NAMED, PROBABILITIES[:5], score="lac")


@mistake("error", "device Lyon: scores must be numbers, got NaN")
def a_score_is_missing():
    calibrate({**HELD, "Lyon": [0.1, np.nan]}, NAMED)


@mistake("error", "device Lyon: scores must be numbers, got NaN")
def a_score_is_none():
    calibrate({**HELD, "Lyon": [0.1, None]}, NAMED)


@mistake("error", "device Lyon: scores must be numbers, not booleans")
def whether_the_model_was_right_as_scores():
    calibrate({**HELD, "Lyon": np.array([True, False, True])}, NAMED)


@mistake("right")
def numbers_as_text():
    text = {name: [repr(value) for value in own.tolist()] for name, own in HELD.items()}
    assert calibrate(text, NAMED).threshold == calibrate(HELD, NAMED).threshold


@mistake("right")
def decimals_in_an_array_of_objects():
    exact = {name: np.array([Decimal(value) for value in own.tolist()], dtype=object) for name, own in HELD.items()}
    assert calibrate(exact, NAMED).threshold == calibrate(HELD, NAMED).threshold


@mistake("error", "device Lyon: scores must be numbers, got list")
def text_with_a_decimal_comma():
    calibrate({**HELD, "Lyon": ["0,5", "0,7"]}, NAMED)


@mistake("error", "device Lyon: 1 of 3 values are masked")
def masked_scores():
    calibrate({**HELD, "Lyon": np.ma.array([0.1, 0.2, 0.3], mask=[0, 1, 0])}, NAMED)


@mistake("error", "device Lyon: scores must be numbers")
def complex_scores():
    calibrate({**HELD, "Lyon": np.array([0.1 + 0j])}, NAMED)


@mistake("note", "device Lyon: integers above 2^53 are rounded to the nearest float, got 9007199254740993")
def scores_above_2_to_the_53():
    calibrate({**HELD, "Lyon": np.array([2**53 + 1, 2**53])}, NAMED)


@mistake("error", "got 30 numbers in a row, which do not say whose they are")
def one_flat_array():
    calibrate(IN_ORDER[0], "cycle")


@mistake("note", "a table of shape (30, 4) is read as 30 devices with 4 scores each")
def a_table_with_a_column_per_device():
    calibrate(np.stack(IN_ORDER, axis=1), "cycle")


@mistake("error", "its columns seem to be the devices: pass table.T")
def a_table_with_a_column_per_device_and_a_network():
    calibrate(np.stack(IN_ORDER, axis=1), NAMED)


@mistake("error", "device Lyon: scores must be one-dimensional, got shape (30, 1)")
def a_column_vector():
    calibrate({**HELD, "Lyon": HELD["Lyon"][:, None]}, NAMED)


@mistake("right")
def a_device_without_scores():
    found = calibrate({**HELD, "Lyon": []}, NAMED)
    assert found.threshold in np.concatenate([HELD[name] for name in ("Paris", "Berlin", "Rome")])


@mistake("note", "the threshold is +inf")
def no_device_has_scores():
    calibrate({name: [] for name in CITIES}, NAMED)


# --- labels and outputs -----------------------------------------------------------------------------------------------


@mistake("error", "labels between 0 and 4, one for each column of outputs, got 5")
def labels_from_1():
    LAC(PROBABILITIES, LABELS + 1)


@mistake("note", "the largest output is that of the true label in")
def labels_numbered_in_another_order():
    LAC(PROBABILITIES, (LABELS + 2) % 5)


@mistake("note", "the largest output is that of the true label in")
def two_classes_exchanged():
    p = np.stack([1 - LABELS.clip(0, 1) * 0.8, LABELS.clip(0, 1) * 0.8], axis=1)
    LAC(p, 1 - LABELS.clip(0, 1))


@mistake("note", "though the probabilities claim")
def labels_sorted_apart_from_the_rows():
    APS(PROBABILITIES, np.sort(LABELS))


@mistake("error", "one label for each row of outputs: got 400 rows and labels of shape (400, 5)")
def one_hot_labels():
    LAC(PROBABILITIES, np.eye(5)[LABELS])


@mistake("error", "needs integer labels, got dtype float64")
def labels_as_floats():
    LAC(PROBABILITIES, LABELS.astype(float))


@mistake("error", "needs labels as column numbers from 0, got 'cat'")
def labels_as_names():
    LAC(PROBABILITIES, np.array(["cat", "dog", "cow", "hen", "pig"])[LABELS * 0])


@mistake("error", "labels between 0 and 4, one for each column of outputs, got -1")
def unknown_labels_as_minus_one():
    LAC(PROBABILITIES, np.where(LABELS == 3, -1, LABELS))


@mistake("error", "got NaN in row 7")
def a_label_is_missing():
    LAC(PROBABILITIES, np.where(np.arange(400) == 7, np.nan, LABELS))


@mistake("error", "one label for each row of outputs: got 5 rows")
def probabilities_transposed():
    LAC(PROBABILITIES.T, LABELS)


@mistake("error", "needs probabilities between 0 and 1")
def logits_for_probabilities():
    LAC(LOGITS, LABELS)


@mistake("error", "needs probabilities between 0 and 1, got -")
def logarithms_of_probabilities():
    LAC(np.log(PROBABILITIES), LABELS)


@mistake("error", "needs probabilities between 0 and 1")
def percentages():
    APS(PROBABILITIES * 100, LABELS)


@mistake("error", "needs probabilities that sum to 1")
def softmax_over_the_wrong_axis():
    APS(np.exp(LOGITS) / np.exp(LOGITS).sum(axis=0), LABELS)


@mistake("error", "needs outputs of shape (rows, classes), got shape (400,)")
def the_probability_of_yes_alone():
    LAC(PROBABILITIES[:, 0], LABELS.clip(0, 1))


@mistake("error", "found in row 3 of outputs")
def a_row_of_outputs_is_missing():
    p = PROBABILITIES.copy()
    p[3] = np.nan
    APS(p, LABELS)


@mistake("error", "labels have the index of outputs in another order")
def labels_of_a_shuffled_column():
    frame = pd.DataFrame(PROBABILITIES, index=RNG.permutation(400) + 10)
    LAC(frame, pd.Series(LABELS, index=frame.index).sort_index())


# --- regression -------------------------------------------------------------------------------------------------------


@mistake("note", "the lower quantile is above the upper one in")
def quantiles_swapped():
    CQR(BAND[:, ::-1], Y)


@mistake("note", "the lower quantile is above the upper one in")
def quantiles_swapped_in_prediction():
    CQR.intervals(BAND[:, ::-1], 0.5)


@mistake("note", "the lower quantile is above the upper one in")
def quantile_models_swapped():
    wide = [LinearRegression().fit(ROWS, Y + shift) for shift in (3, -3)]
    MeshRegressor(wide, nonconformity="cqr", prefit=True, symmetric=False).calibrate(ROWS, Y)


@mistake("error", "needs outputs of shape (rows,), one prediction each, got shape (200, 1)")
def predictions_in_a_column():
    RESIDUAL(BAND[:, :1], Y)


@mistake("error", "one label for each row of outputs")
def true_values_in_a_column():
    RESIDUAL(BAND[:, 0], Y[:, None])


@mistake("error", "needs scales above 0")
def a_scale_of_zero():
    scores.NormalisedResidual()(np.stack([Y, np.zeros(200)], axis=1), Y)


@mistake("note", "score 'absolute-residual', labels: integers above 2^53")
def labels_above_2_to_the_53():
    RESIDUAL(np.zeros(2), np.array([2**60, 2**60 + 1]))


# --- devices and networks ---------------------------------------------------------------------------------------------


@mistake("error", "scores are a list, and the order of devices is ambiguous: the graph lists its nodes as {Paris, Lyon")
def a_list_and_a_graph_with_names():
    calibrate(IN_ORDER, GRAPH)


@mistake("error", "the order of devices is ambiguous")
def a_list_and_a_network_of_such_a_graph():
    calibrate(IN_ORDER, Network.from_networkx(GRAPH))


@mistake("error", "the order of devices is ambiguous")
def groups_in_a_list_and_a_graph_with_names():
    calibrate(IN_ORDER, GRAPH, groups=[["x"] * 30] * 4)


@mistake("error", "the order of devices is ambiguous")
def weights_in_a_list_and_a_graph_with_names():
    calibrate(IN_ORDER, GRAPH, weight=[np.ones(30)] * 4, weight_bound=1)


@mistake("error", "the order of devices is ambiguous")
def sides_in_a_list_and_a_graph_with_names():
    calibrate([CQR.sides(BAND, Y)] * 4, GRAPH, symmetric=False)


@mistake("error", "the order of devices is ambiguous")
def losses_in_a_list_and_a_graph_with_names():
    control([StepLosses.none()] * 4, GRAPH, 0.1)


@mistake("error", "the order of devices is ambiguous")
def new_scores_in_a_list_and_a_graph_with_names():
    detect(IN_ORDER, GRAPH, IN_ORDER)


@mistake("error", "the order of devices is ambiguous")
def p_values_of_a_list_and_a_graph_with_names():
    p_values(IN_ORDER, GRAPH, [0.5])


@mistake("error", "the order of devices is ambiguous")
def a_comparison_of_a_list_and_a_graph_with_names():
    compare(IN_ORDER, [GRAPH], 0.1, compared_ways(["fcp"]))


@mistake("error", "the order of devices is ambiguous")
def streams_in_a_table_and_a_graph_with_names():
    online(np.stack(IN_ORDER), Network.from_networkx(GRAPH))


@mistake("error", "or a dict with a share for every device, got list")
def shares_in_a_list():
    calibrate(HELD, GRAPH, mixture=[0.1, 0.2, 0.3, 0.4])


@mistake("note", "the graph lists its nodes in another order, {2, 0, 1, 3}")
def a_list_and_a_graph_with_numbers_in_another_order():
    calibrate(IN_ORDER, nx.Graph([(2, 0), (0, 1), (1, 3)]))


@mistake("right")
def a_dict_and_a_graph_with_names():
    found = calibrate(HELD, GRAPH, 0.2, "local")
    alone = {name: calibrate([own], Network.chain(1), 0.2, "local").threshold for name, own in HELD.items()}
    assert dict(zip(found.device_ids, found.thresholds.tolist(), strict=True)) == alone


@mistake("right")
def a_list_and_a_graph_with_names_in_order():
    ordered = nx.path_graph(["Berlin", "Lyon", "Paris", "Rome"])
    found = calibrate(IN_ORDER, ordered, 0.2, "local")
    assert found.thresholds[1] == calibrate([IN_ORDER[1]], Network.chain(1), 0.2, "local").threshold


@mistake("error", "scores and test scores must both go by device name or both by order")
def scores_by_name_and_tests_by_order():
    detect(HELD, "cycle", IN_ORDER)


@mistake("error", "scores and labels must both go by device name or both by order")
def scores_by_name_and_labels_by_order():
    p_values(HELD, "cycle", PROBABILITIES[:3], labels=[LABELS[:30]] * 4)


@mistake("note", "devices 'Lyon' and 'Lyon ' differ only in white space, case or leading zeros")
def a_space_behind_the_name_of_a_device():
    frame = FRAME.copy()
    frame.loc[30:40, "device"] = "Lyon "
    calibrate(frame, "cycle")


@mistake("note", "devices '01' and '1' differ only in white space, case or leading zeros")
def zeros_before_the_number_of_a_device():
    calibrate({"01": IN_ORDER[0], "1": IN_ORDER[1], "2": IN_ORDER[2]}, "cycle")


@mistake("note", "devices '1' and '1.0' differ only in")
def a_device_as_integer_and_as_float():
    calibrate(pd.DataFrame({"device": pd.Series([1, 1.0, 2, 3], dtype=object), "score": FLAT[:4]}), "cycle", 0.5)


@mistake("error", "two devices of the dict have the same name once written as text")
def a_device_as_integer_and_as_text():
    calibrate({1: IN_ORDER[0], "1": IN_ORDER[1]}, "cycle")


@mistake("error", "column 'device': row 5 names no device")
def a_device_is_missing():
    calibrate(FRAME.assign(device=[None if i == 5 else name for i, name in enumerate(OWNERS)]), "cycle")


@mistake("error", "scores are given for device 'Madrid', which the network does not have")
def a_device_that_the_network_lacks():
    calibrate({**HELD, "Madrid": [0.5]}, NAMED)


@mistake("error", "no scores are given for device 'Rome' of the network")
def a_device_of_the_network_is_forgotten():
    calibrate({name: HELD[name] for name in CITIES[:3]}, NAMED)


@mistake("error", "has 4 devices but scores came for 3")
def one_array_too_few():
    calibrate(IN_ORDER[:3], CYCLE)


@mistake("error", "the network is not connected: 2 components")
def a_graph_in_two_parts():
    calibrate(HELD, nx.Graph([("Paris", "Lyon"), ("Berlin", "Rome")]))


@mistake("error", "the graph is directed")
def a_directed_graph():
    calibrate(HELD, nx.DiGraph(GRAPH))


@mistake("note", "the frame: id 'p7' is there 2 times")
def a_row_is_there_twice():
    frame = FRAME.assign(id=[f"p{i}" for i in range(len(FRAME))])
    calibrate(pd.concat([frame, frame.iloc[[7]]]), "cycle")


# --- groups, weights, shares ------------------------------------------------------------------------------------------


@mistake("note", "groups 'North' and 'north ' differ only in white space, case or leading zeros")
def a_group_is_written_in_two_ways():
    groups = {name: ["north " if name == "Rome" else "North"] * 30 for name in CITIES}
    calibrate(HELD, NAMED, (0.3,), groups=groups)


@mistake("error", "device Lyon: group label 2 is missing (nan)")
def a_group_is_missing():
    groups = {name: ["x"] * 30 for name in CITIES}
    groups["Lyon"] = ["x", "x", np.nan, *["x"] * 27]
    calibrate(HELD, NAMED, groups={k: np.array(v, dtype=object) for k, v in groups.items()})


@mistake("error", "device Lyon has 30 scores but 29 group labels")
def a_group_label_too_few():
    calibrate(HELD, NAMED, groups={name: ["x"] * (29 if name == "Lyon" else 30) for name in CITIES})


@mistake("error", "device Lyon, item 0: a weight must be a number from 0 to weight_bound 2, got -1")
def a_negative_weight():
    weight = {name: np.full(30, -1.0 if name == "Lyon" else 1.0) for name in CITIES}
    calibrate(HELD, NAMED, weight=weight, weight_bound=2)


@mistake("error", "raise weight_bound, or clip the weights")
def a_weight_above_its_bound():
    calibrate(HELD, NAMED, weight={name: np.full(30, 5.0) for name in CITIES}, weight_bound=2)


@mistake("error", "no share is given for device 'Rome'")
def a_share_is_forgotten():
    calibrate(HELD, NAMED, mixture={"Paris": 0.5, "Lyon": 0.3, "Berlin": 0.2})


@mistake("right")
def shares_in_percent():
    percent = dict(zip(CITIES, (40, 30, 20, 10), strict=True))
    parts = {name: share / 100 for name, share in percent.items()}
    assert calibrate(HELD, NAMED, mixture=percent).threshold == calibrate(HELD, NAMED, mixture=parts).threshold


# --- files and the command line ---------------------------------------------------------------------------------------


@mistake("error", "s.csv: holds scores of LAC(), but APS(randomised=False, seed=None) was named")
def lac_scores_called_aps():
    command("scores", "make", model_file(), "--out", "s.csv", "--devices", 4)
    command("calibrate", "s.csv", "--score", "aps")


@mistake("right")
def the_score_of_a_file_is_not_named():
    command("scores", "make", model_file(), "--out", "s.csv", "--devices", 4, "--score", "margin")
    command("calibrate", "s.csv", "--out", "r.json")
    assert Result.load("r.json").score == scores.Margin()


@mistake("error", "device Rome, row 0: scores of 'lac' are between 0 and 1, got 2.5")
def scores_of_a_file_out_of_range():
    command("calibrate", score_rows("Rome,2.5"), "--score", "lac")


@mistake("note", "the largest output is that of the true label in")
def labels_of_a_file_numbered_in_another_order():
    command("scores", "make", model_file(labels=(LABELS + 2) % 5), "--out", "s.csv", "--devices", 4)


@mistake("error", "time: got 't0', which is no time that can be read")
def steps_called_t0_t1_t10():
    rows = "".join(f"t{step},{name},0.5\n" for step in range(12) for name in ("a", "b"))
    command("online", written("time,device,score\n" + rows))


@mistake("error", "where the day may come first or second")
def dates_of_which_nobody_knows_the_month():
    rows = "".join(f"0{day}/02/2024,{name},0.5\n" for day in range(1, 9) for name in ("a", "b"))
    command("online", written("time,device,score\n" + rows))


@mistake("right")
def dates_with_the_day_first():
    days = [f"{day:02}.{month:02}.2024" for month in (1, 2) for day in range(1, 29)]
    rows = "".join(f"{day},{name},{step}\n" for step, day in enumerate(days) for name in ("a", "b"))
    numbers = "".join(f"{step},{name},{step}\n" for step in range(len(days)) for name in ("a", "b"))
    told = [command("online", written("time,device,score\n" + each), "--json") for each in (rows, numbers)]
    assert told[0] == told[1]


@mistake("note", "devices 'Lyon' and 'lyon' differ only in white space, case or leading zeros")
def a_device_of_a_file_in_two_ways():
    command("calibrate", score_rows("lyon,0.5", "Lyon,0.25"))


@mistake("note", "s.csv, score: integers above 2^53 are rounded to the nearest float, got 9007199254740993")
def scores_of_a_file_above_2_to_the_53():
    command("calibrate", score_rows("Rome,9007199254740993"))


@mistake("error", "column 'device' holds floats above 2^53")
def long_numbers_of_devices_that_became_floats():
    np.savez("s.npz", device=np.array([2.0**60, 2.0**60 + 512]), score=np.array([0.5, 0.25]))
    command("calibrate", "s.npz")


@mistake("note", "o.csv: id 'x3' is there 2 times")
def a_row_of_outputs_is_there_twice():
    table = pl.DataFrame(PROBABILITIES, schema=[f"c{j}" for j in range(5)])
    ids = pl.Series("id", [f"x{3 if i == 9 else i}" for i in range(400)])
    label = pl.Series("label", [f"c{label}" for label in LABELS])
    table.with_columns(ids, label).write_csv("o.csv")
    command("scores", "make", "o.csv", "--out", "s.csv", "--devices", 4)


@mistake("right")
def decimal_commas():
    rows = "".join(f"Rome;{str(value).replace('.', ',')}\n" for value in IN_ORDER[3].tolist())
    plain = "".join(f"Rome,{value!r}\n" for value in IN_ORDER[3].tolist())
    files = ("device;score\n" + rows, "device,score\n" + plain)
    told = [command("calibrate", written(each), "--json") for each in files]
    assert _thresholds(told[0]) == _thresholds(told[1])


@mistake("right")
def a_byte_order_mark():
    rows = "device,score\n" + "".join(f"Rome,{value!r}\n" for value in IN_ORDER[3].tolist())
    told = [command("calibrate", written(each), "--json") for each in (b"\xef\xbb\xbf" + rows.encode(), rows)]
    assert _thresholds(told[0]) == _thresholds(told[1])


@mistake("error", "1234 or 1.234")
def thousands_separators():
    command("calibrate", written('device,score\nRome,"1,234"\nRome,"5,678"\n'))


@mistake("error", "has two columns 'score'")
def two_columns_of_one_name():
    command("calibrate", written("device,score,score\nRome,0.5,0.25\n"))


@mistake("error", "the first line must name the columns")
def a_file_without_a_heading():
    command("calibrate", written("Rome,0.5\nRome,0.25\nRome,0.75\n"))


@mistake("error", "line 32: score must be a number, the cell is empty")
def an_empty_cell():
    command("calibrate", score_rows("Rome,"))


@mistake("error", "line 32 has 1 fields, the header 2")
def a_row_that_was_cut():
    command("calibrate", score_rows("Rome"))


@mistake("error", "save the sheet as CSV")
def a_spreadsheet():
    command("calibrate", written(b"PK\x03\x04" + bytes(100), "s.xlsx"))


@mistake("right")
def outputs_with_classes_in_another_order():
    names = [f"c{j}" for j in range(5)]
    table = pl.DataFrame(PROBABILITIES, schema=names).with_columns(pl.Series("label", [f"c{y}" for y in LABELS]))
    table.write_csv("o.csv")
    table.select(*names[::-1]).write_csv("turned.csv")
    table.select(*names).write_csv("plain.csv")
    command("scores", "make", "o.csv", "--out", "s.csv", "--devices", 4)
    command("calibrate", "s.csv", "--out", "r.json")
    told = [command("predict", "r.json", file) for file in ("plain.csv", "turned.csv")]
    assert told[0] == told[1]


@mistake("error", "seems to be no class: without it every row sums to 1")
def a_column_beside_the_classes():
    table = pl.DataFrame(PROBABILITIES, schema=[f"c{j}" for j in range(5)])
    table.with_columns(age=pl.Series(np.arange(400.0)), label=pl.Series([f"c{y}" for y in LABELS])).write_csv("o.csv")
    command("scores", "make", "o.csv", "--out", "s.csv")


@mistake("error", "needs a label for each of the 400 rows of outputs in o.npz, got 399")
def labels_of_another_length():
    command("scores", "make", model_file(labels=LABELS[1:]), "--out", "s.csv")


@mistake("error", "column 'c4' is none of the classes")
def outputs_of_another_model():
    four = PROBABILITIES[:, :4] / PROBABILITIES[:, :4].sum(axis=1, keepdims=True)
    names = [f"c{j}" for j in range(5)]
    np.savez("four.npz", probabilities=four, labels=LABELS.clip(0, 3), classes=np.array(names[:4]))
    command("scores", "make", "four.npz", "--out", "s.csv", "--devices", 4)
    command("calibrate", "s.csv", "--out", "r.json")
    pl.DataFrame(PROBABILITIES, schema=names).write_csv("p.csv")
    command("predict", "r.json", "p.csv")


# --- scikit-learn -----------------------------------------------------------------------------------------------------


@mistake("error", "y have the index of X in another order")
def y_of_a_shuffled_frame():
    MeshClassifier(MODEL, prefit=True).calibrate(TABLE.set_axis(TABLE.index), TRUTH.sort_index())


@mistake("note", "y have another index than X")
def y_of_other_rows():
    MeshClassifier(LogisticRegression(), calibration_size=0.5).fit(TABLE, pd.Series(CLASSES, index=TABLE.index + 1))


@mistake("error", "devices have the index of X in another order")
def devices_of_a_shuffled_frame():
    devices = pd.Series(np.repeat(["a", "b"], 100), index=TABLE.index).sort_index()
    MeshClassifier(MODEL, prefit=True, network="chain").calibrate(TABLE, TRUTH, devices=devices)


@mistake("error", "one label for each row, got 200 rows and 199 labels")
def a_label_too_few():
    MeshClassifier(MODEL, prefit=True).calibrate(ROWS, CLASSES[1:])


@mistake("error", "the model was not trained with it")
def a_class_that_the_model_never_saw():
    MeshClassifier(MODEL, prefit=True).calibrate(ROWS, np.where(np.arange(200) == 5, 2, CLASSES))


@mistake("note", "the model was trained with these very rows")
def calibrated_with_the_training_rows():
    MeshClassifier(LogisticRegression()).fit(ROWS, CLASSES).calibrate(ROWS, CLASSES)


@mistake("note", "the largest output is that of the true label in")
def classes_exchanged_between_training_and_calibration():
    MeshClassifier(MODEL, prefit=True).calibrate(ROWS, 1 - CLASSES)


# ----------------------------------------------------------------------------------------------------------------------


def _thresholds(answer: str) -> list[list[float]]:
    return [one["thresholds"] for one in json.loads(answer)["answers"]]


def outcome_of(act: Callable[[], Any]) -> tuple[str, str]:
    """Return what came of it, "error", "note" or "right", and what was said."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            act()
        except (ValueError, TypeError) as problem:
            return "error", str(problem)
    said = [str(one.message) for one in caught if issubclass(one.category, CalibrationNote | TooFewScores)]
    return ("note", "\n".join(said)) if said else ("right", "")


@pytest.mark.parametrize("case", [pytest.param(case, id=case.name) for case in MISTAKES])
def test_no_mistake_is_silent(case, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    outcome, said = outcome_of(case.act)
    assert outcome == case.outcome, said
    assert case.words in said


def test_the_table_is_long_enough():
    assert len(MISTAKES) >= 40
    assert len({case.name for case in MISTAKES}) == len(MISTAKES)
