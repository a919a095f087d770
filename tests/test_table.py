"""What users hand over: each works, or is refused in one sentence by the call that received it."""

import array
from decimal import Decimal

import networkx as nx
import numpy as np
import pandas as pd
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse

from conformesh import (
    CalibrationNote,
    Centres,
    Network,
    Result,
    calibrate,
    control,
    detect,
    p_values,
    quantiles,
    scores,
    update,
)
from conformesh.lab.comparison import compare, compared_ways
from conformesh.pipeline.solver import TooFewScores
from conformesh.scores import losses
from conformesh.table import Table

RNG = np.random.default_rng(0)
NAMES = ["b", "a", "d10", "d2"]  # the network sorts them: a, b, d2, d10
BY_NAME = {name: RNG.random(10 + i) + i for i, name in enumerate(NAMES)}
NETWORK = Network.cycle(4).relabelled(("a", "b", "d2", "d10"))
IN_ORDER = [BY_NAME[name] for name in NETWORK.ids]
LOCAL = calibrate(IN_ORDER, NETWORK, 0.2, "local").thresholds.tolist()


def local(devices, network=NETWORK):
    """Thresholds of each device alone: wrong as soon as scores go to the wrong device."""
    return calibrate(devices, network, 0.2, "local").thresholds.tolist()


def thresholds_by_part(result):
    return {(answer.part, float(answer.alpha)): answer.threshold for answer in result.answers}


def long_columns():
    owners = [name for name in NAMES for _ in BY_NAME[name]]
    values = np.concatenate([BY_NAME[name] for name in NAMES])
    order = np.random.default_rng(1).permutation(len(values))
    return np.array(owners)[order], values[order]


def flat_table(names=None):
    """A `Table` of one flat array; without names in the order of the network."""
    arrays = IN_ORDER if names is None else [BY_NAME[name] for name in names]
    return Table.from_flat(np.concatenate(arrays), [len(own) for own in arrays], names=names)


class Pandas:
    """The part of a pandas DataFrame that is used; iterating one gives the names of its columns."""

    def __init__(self, columns):
        self._held, self.columns = columns, list(columns)

    def __getitem__(self, name):
        return self._held[name]

    def __iter__(self):
        return iter(self.columns)


def frames():
    owners, values = long_columns()
    structured = np.zeros(len(values), dtype=[("device", "U4"), ("score", float)])
    structured["device"], structured["score"] = owners, values
    columns = {"device": owners, "score": values}
    return {"polars": pl.DataFrame(columns), "pandas": Pandas(columns), "structured": structured, "dict": BY_NAME}


@pytest.mark.parametrize("kind", ["polars", "pandas", "structured", "dict"])
def test_scores_by_name_find_their_device(kind):
    assert local(frames()[kind]) == LOCAL
    table = compare(frames()[kind], [NETWORK], 0.2, compared_ways(["local"]))
    assert table.networks[0].runs[0].thresholds == (min(LOCAL), max(LOCAL))


def test_groups_by_name_stand_beside_their_scores():
    owners, values = long_columns()
    sites = np.where(values % 1 > 0.5, "high", "low")
    frame = pl.DataFrame({"device": owners, "score": values, "site": sites})
    expected = calibrate(IN_ORDER, NETWORK, (0.3,), groups=[np.where(own % 1 > 0.5, "high", "low") for own in IN_ORDER])
    by_column = calibrate(frame, NETWORK, (0.3,), groups="site")
    by_dict = calibrate(
        BY_NAME, NETWORK, (0.3,), groups={k: np.where(v % 1 > 0.5, "high", "low") for k, v in BY_NAME.items()}
    )
    for found in (by_column, by_dict):
        assert thresholds_by_part(found) == thresholds_by_part(expected)
    with pytest.raises(TypeError, match="both go by device name or both by order"):
        calibrate(BY_NAME, NETWORK, groups=[["a"] * 10] * 4)


def test_a_dict_names_numbers_and_text_alike():
    held = {np.int64(1): [1.0] * 9, "0": [0.0] * 9, 2: [2.0] * 9}
    assert local(held, Network.cycle(3)) == [0.0, 1.0, 2.0]


@pytest.mark.parametrize(
    ("devices", "error", "words"),
    [
        (
            {**BY_NAME, "mars": [1.0]},
            ValueError,
            "given for device 'mars', which the network does not have: a, b, d2, d10",
        ),
        ({k: v for k, v in BY_NAME.items() if k != "d2"}, ValueError, "no scores are given for device 'd2'"),
        (
            pl.DataFrame({"device": ["a"], "value": [1.0]}),
            ValueError,
            "columns 'device' and 'score', .* got device, value",
        ),
        (pl.DataFrame({"device": ["a", None], "score": [1.0, 2.0]}), ValueError, "row 1 names no device"),
        (Pandas({"x": [1.0]}), ValueError, "a frame of scores must have the columns"),
        ("scores.csv", TypeError, "data must be one array of scores per device.* got str 'scores.csv'"),
        (3.0, TypeError, "data must be one array of scores per device"),
        ({1: [1.0], "1": [1.0]}, ValueError, "two devices of the dict have the same name"),
        (
            [np.ma.masked_array([1.0, 9.0], [False, True]), [], [], []],
            ValueError,
            r"device a: 1 of 2 values are masked; .*compressed\(\)",
        ),
        (
            np.ma.masked_array(np.ones((4, 3)), np.eye(4, 3, 0) * [0, 0, 1] == 1),
            ValueError,
            "device d2: 1 of 3 values are masked",
        ),
        ([[1.0], ["x"], [], []], TypeError, "device b: scores must be numbers"),
        ([[1.0], [None], [], []], ValueError, "device b: scores must be numbers, got NaN"),
        ([1.0, 2.0, 3.0, 4.0], ValueError, "one array of scores per device, got 4 numbers in a row"),
    ],
    ids=range(13),
)
def test_what_cannot_be_scores_is_refused(devices, error, words):
    with pytest.raises(error, match=words):
        calibrate(devices, NETWORK, 0.2, "local")


class Tensor:
    """The part of a torch tensor that is used: NumPy refuses one that needs gradients, and has no bfloat16."""

    def __init__(self, values, dtype="torch.float32", grad=True):
        self.values, self.dtype, self.grad = np.asarray(values), dtype, grad

    def detach(self):
        return Tensor(self.values, self.dtype, grad=False)

    def cpu(self):
        return self

    def float(self):
        return Tensor(self.values, "torch.float32", self.grad)

    def __array__(self, dtype=None, copy=None):
        if self.grad:
            raise RuntimeError("Can't call numpy() on Tensor that requires grad.")
        if self.dtype == "torch.bfloat16":
            raise TypeError("Got unsupported ScalarType BFloat16")
        return self.values.astype(dtype or np.float32)


@pytest.mark.parametrize("dtype", ["torch.float32", "torch.bfloat16"])
def test_tensors_are_arrays(dtype):
    whole = [(np.arange(9) + 0.5) / 16] * 4
    assert local([Tensor(own, dtype) for own in whole]) == local(whole)
    p = np.full((2, 4), 0.25)
    np.testing.assert_array_equal(scores.LAC()(Tensor(p, dtype), [0, 1]), [0.75, 0.75])
    result = calibrate(whole, NETWORK, 0.3, score="lac")
    np.testing.assert_array_equal(result.predict(Tensor(p, dtype)), result.predict(p))


def test_real_tensors_are_arrays():
    torch = pytest.importorskip("torch")
    held = [torch.tensor(own, requires_grad=True) for own in IN_ORDER]
    assert local(held) == LOCAL
    calibrate([own.bfloat16() for own in held], NETWORK)


def test_columns_of_frames_are_arrays():
    assert local([pl.Series(own) for own in IN_ORDER]) == LOCAL
    with pytest.raises(ValueError, match="device a: scores must be numbers, got NaN"):
        local([pl.Series([1.0, None]), [], [], []])


@pytest.mark.parametrize("missing", [None, np.nan])
def test_a_missing_group_is_refused(missing):
    labels = [["x"] * len(own) for own in IN_ORDER]
    labels[2][3] = missing
    with pytest.raises(ValueError, match="device d2: group label 3 is missing"):
        calibrate(IN_ORDER, NETWORK, groups=labels if missing is None else [np.array(own, object) for own in labels])


def test_networks_by_name_and_from_networkx():
    exact = calibrate(IN_ORDER, NETWORK).threshold
    for network in ("cycle", "chain", nx.relabel_nodes(nx.cycle_graph(4), dict(enumerate(NETWORK.ids)))):
        found = calibrate(BY_NAME, network)
        assert found.threshold == exact
        assert found.device_ids == NETWORK.ids
    assert local(BY_NAME, "star") == LOCAL
    assert calibrate(IN_ORDER, "torus").network == "torus 2x2"
    assert calibrate(flat_table(), "torus").network == "torus 2x2"
    path = nx.relabel_nodes(nx.path_graph(4), dict(enumerate(NAMES)))
    assert update(calibrate(IN_ORDER, NETWORK), BY_NAME, path).threshold == exact
    assert compare(BY_NAME, ["cycle"], 0.2, compared_ways(["fcp"])).devices == 4


@pytest.mark.parametrize(
    ("network", "error", "words"),
    [
        ("torsu", ValueError, "unknown topology 'torsu', did you mean 'torus'"),
        (
            3,
            TypeError,
            "network must be a Network, the name of a topology such as 'torus', pairs of devices, .* got int '3'",
        ),
        ([(0, 1)], ValueError, "the network is not connected: 3 components"),
        ([(0, 1, 2)], TypeError, "network must be a Network"),
        (nx.DiGraph([(0, 1)]), ValueError, "the graph is directed"),
        (nx.path_graph(3), ValueError, "has 3 devices but scores came for 4"),
    ],
)
def test_what_cannot_be_a_network_is_refused(network, error, words):
    with pytest.raises(error, match=words):
        calibrate(IN_ORDER, network)


@pytest.mark.parametrize("given", ["raps", scores.RAPS, scores.RAPS()])
def test_a_score_goes_by_name_class_or_object(given):
    assert calibrate(IN_ORDER, NETWORK, score=given).score == scores.RAPS()
    assert calibrate(IN_ORDER, NETWORK, score=given).score == scores.RAPS()
    p = np.full((3, 4), 0.25)
    np.testing.assert_array_equal(
        calibrate(IN_ORDER, NETWORK).predict(p, score=given),
        scores.RAPS().sets(p, calibrate(IN_ORDER, NETWORK).threshold),
    )


@pytest.mark.parametrize(
    ("given", "error", "words"),
    [
        ("lca", ValueError, "unknown score 'lca', did you mean 'lac'"),
        (3, TypeError, r"score must be a Score, its name \(lac, .* or a function of outputs and labels, got int 3"),
    ],
)
def test_what_cannot_be_a_score_is_refused(given, error, words):
    for call in (
        lambda: calibrate(IN_ORDER, NETWORK, score=given),
        lambda: calibrate(IN_ORDER, NETWORK, score=given),
        lambda: calibrate(IN_ORDER, NETWORK).predict([[0.5, 0.5]], score=given),
    ):
        with pytest.raises(error, match=words):
            call()


@pytest.mark.parametrize(
    ("method", "options", "words"),
    [
        ("q-dcp", {"rounds": "10"}, "rounds must be a whole number, got '10'"),
        ("h-dcp", {"bins": 10.5}, "bins must be a whole number, got 10.5"),
        ("h-dcp", {"range": 3}, "range must be 2 values"),
        ("h-dcp", {"eta": None}, "eta must be a number, got None"),
    ],
)
def test_options_of_the_wrong_type_are_refused(method, options, words):
    with pytest.raises((TypeError, ValueError), match=words):
        calibrate(IN_ORDER, NETWORK, 0.2, method, **options)


@pytest.mark.filterwarnings("ignore::conformesh.CalibrationNote")
def test_harmless_types_of_options_are_taken():
    for bins in (10, np.int64(10), 10.0):
        assert calibrate(IN_ORDER, NETWORK, 0.2, "h-dcp", bins=bins).options["bins"] == 10
    assert issubclass(CalibrationNote, UserWarning)


# --- data as people have it -------------------------------------------------------------------------------------------


def needs(name):
    return pytest.importorskip(name, reason=f"data of {name}: pip install {name}")


def long_frame(library):
    owners, values = long_columns()
    return needs(library).DataFrame({"device": owners, "score": values})


def arrow():
    owners, values = long_columns()
    return needs("pyarrow").table({"device": owners, "score": values})


def labelled_rows():
    xarray = needs("xarray")
    return xarray.DataArray(
        np.stack([BY_NAME[name][:10] for name in NAMES]), dims=("device", "i"), coords={"device": NAMES}
    )


class Dlpack:
    """An array that only speaks DLPack, as some libraries' do."""

    def __init__(self, values):
        self.values = np.array(values)

    def __dlpack__(self, **options):
        return self.values.__dlpack__(**options)

    def __dlpack_device__(self):
        return self.values.__dlpack_device__()


class Elsewhere:
    """An array on a graphics card: it has both protocols, and refuses both."""

    def __array__(self, dtype=None, copy=None):
        raise TypeError("Implicit conversion to a NumPy array is not allowed.")

    def __dlpack__(self, **options):
        raise BufferError("not on this device")

    def __len__(self):
        return 3

    def __getitem__(self, i):
        return [1.0]


def in_objects():
    held = np.empty(4, dtype=object)
    held[:] = IN_ORDER
    return held


WAYS = {
    "list of arrays": lambda: IN_ORDER,
    "tuple of lists": lambda: tuple(own.tolist() for own in IN_ORDER),
    "object array of arrays": in_objects,
    "generator of arrays": lambda: (own for own in IN_ORDER),
    "generators of numbers": lambda: [iter(own.tolist()) for own in IN_ORDER],
    "object arrays of numbers": lambda: [own.astype(object) for own in IN_ORDER],
    "decimals": lambda: [[Decimal(repr(x)) for x in own.tolist()] for own in IN_ORDER],
    "masked arrays, nothing masked": lambda: [np.ma.masked_array(own) for own in IN_ORDER],
    "memory of another type": lambda: [array.array("d", own.tolist()) for own in IN_ORDER],
    "read-only, reversed twice": lambda: [np.flip(np.flip(own)) for own in IN_ORDER],
    "big-endian": lambda: [own.astype(">f8") for own in IN_ORDER],
    "DLPack": lambda: [Dlpack(own) for own in IN_ORDER],
    "array API": lambda: [needs("array_api_strict").asarray(own) for own in IN_ORDER],
    "torch tensors": lambda: [needs("torch").tensor(own, requires_grad=True) for own in IN_ORDER],
    "flat table": flat_table,
    "flat table with names": lambda: flat_table(NAMES),
    "dict": lambda: BY_NAME,
    "dict of tensors": lambda: {name: needs("torch").tensor(own) for name, own in BY_NAME.items()},
    "dict of columns": lambda: dict(zip(("device", "score"), long_columns(), strict=True)),
    "list of records": lambda: [{"device": k, "score": s} for k, s in zip(*long_columns(), strict=True)],
    "structured array": lambda: frames()["structured"],
    "record array": lambda: frames()["structured"].view(np.recarray),
    "polars frame": lambda: frames()["polars"],
    "polars frame with an enumeration": lambda: frames()["polars"].with_columns(pl.col("device").cast(pl.Categorical)),
    "polars columns": lambda: {name: pl.Series(own) for name, own in BY_NAME.items()},
    "pandas frame": lambda: long_frame("pandas"),
    "pandas frame, categories and nullable numbers": lambda: long_frame("pandas").astype(
        {"device": "category", "score": "Float64"}
    ),
    "pandas frame, grouped": lambda: long_frame("pandas").groupby("device"),
    "pandas column, grouped": lambda: long_frame("pandas").groupby("device")["score"],
    "pandas column by device": lambda: long_frame("pandas").set_index("device")["score"],
    "pandas column of arrays": lambda: needs("pandas").Series(BY_NAME),
    "Arrow table": arrow,
    "Arrow columns": lambda: {name: needs("pyarrow").array(own) for name, own in BY_NAME.items()},
}
EQUALLY_MANY = {
    "table, a row for each device": lambda rows: rows,
    "nested lists": lambda rows: rows.tolist(),
    "masked table, nothing masked": np.ma.masked_array,
    "torch table": lambda rows: needs("torch").tensor(rows),
    "matrix in Fortran's order": np.asfortranarray,
    "labelled rows of xarray": lambda rows: labelled_rows(),
}
REFUSED = {
    "sparse matrix": (
        lambda: sparse.csr_array(np.eye(4)),
        TypeError,
        "does not say which of its zeros are scores.*toarray",
    ),
    "set of scores": (
        lambda: {"a": {1.0}, "b": [], "d2": [], "d10": []},
        TypeError,
        "device a: .*set forgets equal values",
    ),
    "set of devices": (lambda: {(1.0,), (2.0,)}, TypeError, "a set, which has no order; give a dict"),
    "dict of dicts": (
        lambda: {name: {"x": 1} for name in NAMES},
        TypeError,
        "device b: needed an array of values, got a dict",
    ),
    "lazy frame": (frames()["polars"].lazy, TypeError, r"lazy frame, .*pass frame.collect\(\)"),
    "flat array": (lambda: np.ones(4), ValueError, "got 4 numbers in a row, which do not say whose they are"),
    "flat pandas column": (
        lambda: needs("pandas").Series([1.0] * 4),
        TypeError,
        "index does not name their devices; give a frame",
    ),
    "columns of unequal length": (lambda: {"device": ["a"], "score": [1, 2]}, ValueError, "equally long, got 1 and 2"),
    "missing number in a frame": (
        lambda: pl.DataFrame({"device": NAMES, "score": [1.0, None, 2.0, 3.0]}),
        ValueError,
        "device a: scores must be numbers, got NaN",
    ),
    "array on a graphics card": (
        lambda: [Elsewhere()] * 4,
        TypeError,
        "device a: Elsewhere cannot be read from here .*copy it to the memory of the processor first",
    ),
    "complex numbers": (lambda: [[1j]] * 4, TypeError, "device a: scores must be numbers"),
    "text": (lambda: [["0.5"], ["x"], [], []], TypeError, "device b: scores must be numbers"),
}


@pytest.mark.parametrize("way", WAYS)
def test_data_as_people_have_it(way):
    assert local(WAYS[way]()) == LOCAL


@pytest.mark.parametrize("way", EQUALLY_MANY)
def test_tables_as_people_have_them(way):
    rows = np.stack([own[:10] for own in IN_ORDER])
    assert local(EQUALLY_MANY[way](rows)) == local([*rows])


@pytest.mark.parametrize("way", REFUSED)
def test_what_cannot_be_meant_is_refused_in_one_sentence(way):
    make, error, words = REFUSED[way]
    with pytest.raises(error, match=words) as refused:
        calibrate(make(), NETWORK, 0.2, "local")
    assert "\n" not in str(refused.value)


CLASSES = ["ant", "bee", "cat"]
P = RNG.dirichlet(np.ones(3), size=60)
TRUTH = RNG.integers(0, 3, 60)
TABLES = {
    "pandas": lambda p, names: needs("pandas").DataFrame(p, columns=names),
    "polars": lambda p, names: pl.DataFrame(dict(zip(names, p.T, strict=True))),
    "arrow": lambda p, names: needs("pyarrow").table(dict(zip(names, p.T, strict=True))),
}


@pytest.mark.parametrize("library", TABLES)
@pytest.mark.parametrize("score", ["lac", "margin", "aps", "saps", "ordinal-aps"])
def test_columns_of_probabilities_are_classes(library, score, tmp_path):
    """Names go with their columns, wherever these stand; other names are refused."""
    frame, kind = TABLES[library], scores.get_score(score)
    named, names = frame(P, CLASSES), np.array(CLASSES)[TRUTH]
    held = kind(named, names)
    np.testing.assert_array_equal(held, kind(P, TRUTH))
    np.testing.assert_array_equal(kind(named, TRUTH), held)
    result = calibrate([held], Network.chain(1), 0.2, score=kind, classes=named)
    assert result.classes == tuple(CLASSES)
    turned = frame(P[:, [2, 0, 1]], ["cat", "ant", "bee"])
    for outputs in (named, turned):
        np.testing.assert_array_equal(result.predict(outputs), result.predict(P))
        assert result.evaluate(outputs, names) == result.evaluate(P, TRUTH)
    unnamed = calibrate([held], Network.chain(1), 0.2, score=kind)
    assert unnamed.evaluate(named, names) == result.evaluate(P, TRUTH)
    for wrong, words in (
        (
            frame(P, ["ant", "bee", "dog"]),
            "a column for each class, ant, bee, cat, got ant, bee, dog; 'cat' is missing",
        ),
        (frame(P[:, :2], ["ant", "bee"]), "got ant, bee; 'cat' is missing; rename the columns"),
    ):
        with pytest.raises(ValueError, match=words):
            result.predict(wrong)
    with pytest.raises(ValueError, match="labels: unknown class 'bea', did you mean 'bee'"):
        kind(named, np.where(names == "bee", "bea", names))


def test_columns_named_by_numbers_are_names():
    """Classes 3, 5, 8 of a model: labels are these numbers, not places."""
    frame = pl.DataFrame(dict(zip(["3", "5", "8"], P.T, strict=True)))
    labels = np.array([3, 5, 8])[TRUTH]
    lac = scores.LAC()
    np.testing.assert_array_equal(lac(frame, labels), lac(P, TRUTH))
    result = calibrate([lac(frame, labels)], Network.chain(1), 0.2, score=lac, classes=frame)
    assert result.evaluate(frame, labels) == result.evaluate(P, TRUTH)


def test_classes_may_be_numbers(tmp_path):
    """Then labels are these numbers, also beside an array; saved and loaded they are still."""
    lac, labels = scores.LAC(), np.array([3, 5, 8])[TRUTH]
    result = calibrate([lac(P, TRUTH)], Network.chain(1), 0.2, score=lac, classes=np.array([3, 5, 8]))
    assert result.classes == (3, 5, 8)
    result.save(tmp_path / "r.json")
    for one in (result, Result.load(tmp_path / "r.json")):
        report = one.evaluate(P, labels)
        assert report.coverage == calibrate([lac(P, TRUTH)], "chain", 0.2, score=lac).evaluate(P, TRUTH).coverage
        assert [*report.parts["class"]] == ["3", "5", "8"]


def test_class_conditional_sets_go_by_class_names():
    lac, names = scores.LAC(), np.array(CLASSES)[TRUTH]
    by_name = calibrate([lac(P, TRUTH)], Network.chain(1), (0.3,), groups=[names], score=lac, classes=CLASSES)
    by_place = calibrate([lac(P, TRUTH)], Network.chain(1), (0.3,), groups=[TRUTH], score=lac)
    np.testing.assert_array_equal(by_name.predict(TABLES["polars"](P, CLASSES)), by_place.predict(P))


@pytest.mark.parametrize(
    ("classes", "error", "words"),
    [
        ("cat", TypeError, "classes must be the names of the columns of outputs, got str 'cat'"),
        (3, TypeError, "got int 3"),
        (["a", "a"], ValueError, "at least 2 different names, got a, a"),
    ],
)
def test_what_cannot_be_classes_is_refused(classes, error, words):
    with pytest.raises(error, match=words):
        calibrate(IN_ORDER, NETWORK, classes=classes)


@pytest.mark.parametrize(
    "kind", ["sparse", "nested lists", "torch", "array API", "nullable pandas", "xarray", "objects"]
)
def test_outputs_as_people_have_them(kind):
    p = P[:20]
    given = {
        "sparse": lambda: sparse.csr_matrix(p),
        "nested lists": p.tolist,
        "torch": lambda: needs("torch").tensor(p),
        "array API": lambda: needs("array_api_strict").asarray(p),
        "nullable pandas": lambda: needs("pandas").DataFrame(p).astype("Float64"),
        "xarray": lambda: needs("xarray").DataArray(p),
        "objects": lambda: p.astype(object),
    }[kind]()
    np.testing.assert_array_equal(scores.APS()(given, TRUTH[:20]), scores.APS()(p, TRUTH[:20]))
    np.testing.assert_array_equal(scores.LAC().sets(given, 0.5), scores.LAC().sets(p, 0.5))


# --- the score of a result --------------------------------------------------------------------------------------------


def test_results_refuse_another_score_than_their_own():
    p = [[0.7, 0.3], [0.4, 0.6]]
    held = [[0.1, 0.2, 0.3, 0.4]] * 3
    aps = scores.APS(randomised=True, seed=3)
    one = calibrate(held, "chain", 0.3, score="lac")
    by_group = calibrate(held, "chain", [0.3], groups=[["a", "b", "a", "b"]] * 3, score="lac")
    for answer in (
        lambda given: one.predict(p, score=given),
        lambda given: one.evaluate(p, [0, 1], score=given),
        lambda given: by_group.predict(p, groups=["a", "b"], score=given),
    ):
        with pytest.raises(ValueError, match=r"was calibrated with LAC\(\), got APS\(.*\); leave score out"):
            answer("aps")
        answer(scores.LAC())
    drawn = calibrate(held, "chain", 0.3, score=aps)
    np.testing.assert_array_equal(drawn.predict(p, score="aps"), drawn.predict(p))  # a name alone: options as recorded
    drawn.predict(p, score=scores.APS(randomised=True, seed=4))
    with pytest.raises(ValueError, match=r"got APS\(randomised=False"):
        drawn.predict(p, score=scores.APS())


@pytest.mark.parametrize(
    "run",
    [
        lambda held, other: calibrate(held, "chain", [0.3], groups=other),
        lambda held, other: calibrate(held, "chain", 0.3, inputs=other, centres=Centres.at([0.0, 1.0], 0.5)),
        lambda held, other: calibrate(held, "chain", [0.3], weight=other, weight_bound=2),
    ],
    ids=["groups", "inputs", "weights"],
)
def test_pandas_columns_in_another_order_than_the_scores_are_refused(run):
    rows = [10, 11, 12, 13]
    held = {name: pd.Series([0.1, 0.2, 0.3, 0.4], index=rows) for name in "abc"}
    other = pd.Series([1.0, 0.5, 1.0, 0.5], index=rows)
    run(held, dict.fromkeys("abc", other))
    with pytest.raises(ValueError, match=r"\['b'\] have the index of scores\['b'\] in another order"):
        run(held, {"a": other, "b": other.iloc[::-1], "c": other})


def test_scores_out_of_range_name_device_and_row():
    """Also where only a part of the devices is here, as on a rank, and in either side of an interval."""
    lac = scores.LAC()
    whole = Table.from_flat([0.1, 0.2, 0.3, 0.4, 1.5, 0.1], [1, 2, 3])
    with pytest.raises(ValueError, match=r"device c, row 1: scores of 'lac' are between 0 and 1, got 1\.5"):
        whole.check_range(lac, ["a", "b", "c"])
    with pytest.raises(ValueError, match=r"device c, row 1: scores of 'lac' are between 0 and 1, got 1\.5"):
        whole.take([2]).check_range(lac, ["c"])
    whole.take([0, 1]).check_range(lac, ["a", "b"])
    whole.check_range(None, ["a", "b", "c"])


# --- columns by role --------------------------------------------------------------------------------------------------

ROLES = {
    "device": "hospital",
    "score": "s",
    "label": "truth",
    "group": "sex",
    "weight": "w",
    "share": "part",
    "id": "patient",
    "time": "when",
}


def hospital_frame(seed=3):
    """A long frame whose columns have names of their own, one for each role."""
    rng = np.random.default_rng(seed)
    rows = 60
    hospital = rng.permutation(np.repeat([*"abcd"], rows // 4))
    return pl.DataFrame(
        {
            "hospital": hospital,
            "s": rng.random(rows),
            "truth": rng.choice(["cat", "dog"], rows),
            "sex": rng.choice(["F", "M"], rows),
            "w": rng.random(rows),
            "part": [{"a": 1, "b": 2, "c": 3, "d": 0}[name] for name in hospital],
            "patient": [f"p{i}" for i in range(rows)],
            "when": np.arange(rows),
            "x": rng.random(rows),
        }
    )


def split(frame, column):
    return {name: frame.filter(pl.col("hospital") == name)[column].to_numpy() for name in "abcd"}


def test_every_role_of_a_column_has_its_effect():
    """`columns` names what an argument would name; what both read is the same."""
    frame = hospital_frame()
    base = {"device": "hospital", "score": "s"}
    by_name = split(frame, "s")
    assert calibrate(frame, "cycle", 0.2, columns=base).threshold == calibrate(by_name, "cycle", 0.2).threshold
    grouped = calibrate(frame, "cycle", 0.2, columns={**base, "group": "sex"})
    assert thresholds_by_part(grouped) == thresholds_by_part(
        calibrate(by_name, "cycle", 0.2, groups=split(frame, "sex"))
    )
    assert grouped["sex=F"].threshold == grouped["F"].threshold
    weighed = calibrate(frame, "cycle", 0.2, columns={**base, "weight": "w"}, weight_bound=1)
    assert weighed.threshold == calibrate(by_name, "cycle", 0.2, weight=split(frame, "w"), weight_bound=1).threshold
    assert weighed.guarantee.weighting.bound == 1
    ratios = {"cat": 1, "dog": 2}
    shifted = calibrate(frame, "cycle", 0.2, columns={**base, "label": "truth"}, class_weights=ratios)
    assert thresholds_by_part(shifted) == thresholds_by_part(
        calibrate(by_name, "cycle", 0.2, class_weights=ratios, labels=split(frame, "truth"))
    )
    shared = calibrate(frame, "cycle", 0.2, columns={**base, "share": "part"})
    assert shared.threshold == calibrate(by_name, "cycle", 0.2, mixture={"a": 1, "b": 2, "c": 3, "d": 0}).threshold
    assert shared.certificate.mixture == "given"
    twice = frame.with_columns(patient=pl.lit("p"))
    with pytest.warns(CalibrationNote, match="id 'p' is there"):
        calibrate(twice, "cycle", 0.2, columns={**base, "id": "patient"})
    assert (
        calibrate(frame, "cycle", 0.2, columns={**base, "time": "when"}).threshold
        == calibrate(by_name, "cycle", 0.2).threshold
    )
    judged = p_values(frame, "cycle", [0.3], columns={**base, "label": "truth"}, test_labels=["cat"])
    assert judged.classwise
    alone = p_values(by_name, "cycle", [0.3], labels=split(frame, "truth"), test_labels=["cat"])
    assert judged.values == alone.values


def test_a_weight_that_is_named_needs_its_bound():
    with pytest.raises(ValueError, match="weight needs weight_bound="):
        calibrate(hospital_frame(), "cycle", columns={"device": "hospital", "score": "s", "weight": "w"})


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        ({"hospital": "device"}, "columns: unknown role 'hospital'"),
        ({"scores": "s"}, "columns: unknown role 'scores', did you mean 'score'"),
        ({**ROLES, "group": "gender"}, "groups: unknown column 'gender'"),
        ({**ROLES, "device": "clinic"}, "must have the columns 'clinic' and 's'.* such as columns={'device': "),
        ({"device": "hospital"}, "must have the columns 'hospital' and 'score'.* such as columns={'score': 's'}"),
    ],
)
def test_roles_and_columns_that_are_unknown_are_named(columns, words):
    with pytest.raises(ValueError, match=words):
        calibrate(hospital_frame(), "cycle", 0.2, columns=columns, weight_bound=1 if "weight" in columns else None)


# --- every form is the same table -------------------------------------------------------------------------------------


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(1, 6), st.booleans())
def test_every_form_gives_the_same_table(seed, devices, sides):
    """Arrays, dict, frame in any order of rows, records and a flat table: names, offsets and rows agree."""
    rng = np.random.default_rng(seed)
    names = [f"d{k}" for k in rng.permutation(20)[:devices]]
    shape = (2,) if sides else ()
    held = {name: np.round(rng.random((rng.integers(1, 6), *shape)), 2) for name in names}
    groups = {name: rng.choice(["x", "y"], len(own)) for name, own in held.items()}
    rows = [
        {
            "device": name,
            "g": group,
            **(dict(zip(("lower", "upper"), value, strict=True)) if sides else {"score": value}),
        }
        for name, own in held.items()
        for value, group in zip(own.tolist(), groups[name], strict=True)
    ]
    queues = {name: [row for row in rows if row["device"] == name][::-1] for name in names}
    owners = rng.permutation([row["device"] for row in rows]).tolist()
    mixed = [queues[owner].pop() for owner in owners]  # devices in any order, rows of each in their own
    flat = Table.from_flat(np.concatenate([*held.values()]), [len(own) for own in held.values()], names=names)
    ids = sorted(names)
    tables = [
        Table.of(held, sides=sides, groups=groups),
        Table.of(mixed, sides=sides, groups="g"),
        Table.of(pl.DataFrame(rows), sides=sides, groups="g"),
        Table.of(flat, sides=sides, groups=groups),
    ]
    for table in tables:
        chosen = table.take([table.names.index(name) for name in ids])
        np.testing.assert_array_equal(chosen.score, np.concatenate([held[name] for name in ids]))
        assert chosen.sizes.tolist() == [len(held[name]) for name in ids]
        wanted = np.concatenate([groups[name] for name in ids]).tolist()
        assert [chosen.groups.atoms[code][0] for code in chosen.groups.codes] == wanted
    in_order = Table.of([*held.values()], sides=sides, groups=[*groups.values()])
    assert in_order.names is None
    np.testing.assert_array_equal(in_order.score, tables[0].score)


def test_a_table_may_be_used_again():
    """No call may reorder its rows, which groups of a later call belong to; nor those of the user's own array."""
    rows = np.random.default_rng(1).random((4, 30))
    labels = [np.arange(30) % 2] * 4
    before = rows.copy()
    wanted = thresholds_by_part(calibrate([*rows], NETWORK, 0.3, groups=labels))
    for table in (Table.from_flat(rows.ravel(), [30] * 4), Table.of([*rows]), Table.of(rows), Table.of(rows[:3:2])):
        if table.devices < 4:
            calibrate(table, "chain", 0.3)
            continue
        calibrate(table, NETWORK, 0.3)
        assert thresholds_by_part(calibrate(table, NETWORK, 0.3, groups=labels)) == wanted
    calibrate(rows, NETWORK, 0.3)
    calibrate(np.vstack([rows, rows])[:4], NETWORK, 0.3)
    np.testing.assert_array_equal(rows, before)
    view = np.vstack([rows, rows])
    calibrate(view[:4], NETWORK, 0.3)  # a part of another array, whose base is not itself
    np.testing.assert_array_equal(view[:4], before)


def test_a_flat_table_that_may_be_sorted_refuses_what_belongs_to_rows():
    table = Table.from_flat(np.concatenate(IN_ORDER), [*map(len, IN_ORDER)], copy=False)
    assert calibrate(table, NETWORK).threshold == calibrate(IN_ORDER, NETWORK).threshold
    with pytest.raises(ValueError, match=r"groups belong to rows.*leave copy=False out"):
        calibrate(table, NETWORK, groups=[["x"] * len(own) for own in IN_ORDER])


def test_a_flat_table_has_names():
    """In any order: each device has its own scores."""
    for names in (NAMES, NAMES[::-1]):
        assert local(flat_table(names)) == LOCAL
    by_number = Table.from_flat([2.0, 1.0], [1, 1], names=[np.int64(1), 0])
    assert by_number.names == ("1", "0")
    with pytest.warns(TooFewScores, match="device 0 has 1, device 1 has 1"):
        assert local(by_number, Network.chain(2)) == [np.inf, np.inf]


@pytest.mark.parametrize(
    ("sizes", "names", "words"),
    [
        ([1, 1], None, "as many scores as `sizes` add up to, 2, got shape"),
        ([4, -1], None, "one number from 0 on each"),
        ([2, 1], ["a"], "names must be 2 different names"),
        ([2, 1], ["a", "a"], "names must be 2 different names"),
        ([2, 1], [1, "1"], "names must be 2 different names"),
    ],
)
def test_what_cannot_be_a_flat_table_is_refused(sizes, names, words):
    with pytest.raises(ValueError, match=words):
        Table.from_flat([1.0, 2.0, 3.0], sizes, names=names)


def test_a_table_brings_its_columns():
    frame = hospital_frame()
    base = {"device": "hospital", "score": "s"}
    table = Table.of(frame, columns=base, groups="sex", inputs="x")
    found = calibrate(table, "cycle", 0.2)
    assert thresholds_by_part(found) == thresholds_by_part(calibrate(frame, "cycle", 0.2, columns=base, groups="sex"))
    centres = Centres.at([0.2, 0.8], 0.3)
    near = calibrate(Table.of(frame, columns=base, inputs="x"), "cycle", 0.3, centres=centres)
    assert thresholds_by_part(near) == thresholds_by_part(
        calibrate(frame, "cycle", 0.3, columns=base, inputs="x", centres=centres)
    )
    weighed = Table.of(frame, columns=base, weight="w")
    with pytest.raises(ValueError, match="weight needs weight_bound="):  # and are not silently left out
        calibrate(weighed, "cycle", 0.2)
    assert (
        calibrate(weighed, "cycle", 0.2, weight_bound=1).threshold
        == calibrate(frame, "cycle", 0.2, columns=base, weight="w", weight_bound=1).threshold
    )
    with pytest.raises(ValueError, match="this Table has one column of scores; use symmetric=True"):
        calibrate(table, "cycle", 0.2, symmetric=False)
    two = Table.from_flat(np.zeros((4, 2)), [2, 2])
    with pytest.raises(ValueError, match=r"this Table has two columns of scores, .*; use symmetric=False"):
        calibrate(two, "chain", 0.2)


def test_p_values_of_a_table_take_labels():
    frame = hospital_frame()
    scores_by, labels = split(frame, "s"), split(frame, "truth")
    arrays = [*scores_by.values()]
    table = Table.from_flat(np.concatenate(arrays), [*map(len, arrays)], names=[*scores_by])
    asked = {"test_labels": ["cat", "dog"]}
    found = p_values(table, "cycle", [0.3, 0.3], labels=labels, **asked)
    np.testing.assert_array_equal(found.values, p_values(scores_by, "cycle", [0.3, 0.3], labels=labels, **asked).values)
    unnamed = Table.from_flat(np.concatenate(arrays), [*map(len, arrays)])
    again = p_values(unnamed, "cycle", [0.3, 0.3], labels=[*labels.values()], **asked)
    np.testing.assert_array_equal(again.values, found.values)
    with pytest.raises(TypeError, match="both go by device name or both by order"):
        p_values(table, "cycle", [0.3, 0.3], labels=[*labels.values()], **asked)


def test_losses_may_be_a_dict_of_columns():
    steps = {name: losses.StepLosses.on_grid([0.0, 0.5, 1.0], RNG.random((20, 1)) * [1.0, 0.5, 0.0]) for name in "abc"}
    rows = [(name, *row) for name, own in steps.items() for row in own.rows()]
    columns = dict(zip(("device", "item", "lambda", "loss"), map(list, zip(*rows, strict=True)), strict=True))
    wanted = control(steps, "chain", 0.3)
    for data in (columns, pl.DataFrame(columns), [dict(zip(columns, row, strict=True)) for row in rows]):
        found = control(data, "chain", 0.3)
        assert (found.threshold, found.certificate) == (wanted.threshold, wanted.certificate)


# --- networks ---------------------------------------------------------------------------------------------------------

PAIRS = [("a", "b"), ("b", "d2"), ("d2", "d10"), ("d10", "a")]
MATRIX = np.array([[0, 1, 0, 1], [1, 0, 1, 0], [0, 1, 0, 1], [1, 0, 1, 0]])  # in the order a, b, d2, d10


@pytest.mark.parametrize(
    "network",
    [
        PAIRS,
        tuple(PAIRS),
        np.array(PAIRS),
        MATRIX,
        MATRIX * 2.5,
        sparse.csr_array(MATRIX),
        pd.DataFrame(MATRIX),
        nx.Graph(PAIRS),
        NETWORK,
    ],
    ids=["pairs", "tuple", "array of pairs", "matrix", "weights", "sparse", "frame", "NetworkX", "Network"],
)
@pytest.mark.filterwarnings("ignore:an adjacency matrix does not name:conformesh.CalibrationNote")
def test_every_form_of_a_network_is_the_same_network(network):
    found = calibrate(BY_NAME, network, 0.2, aggregate="flood")
    assert found.device_ids == NETWORK.ids
    assert found.cost.to_dict() == calibrate(BY_NAME, NETWORK, 0.2, aggregate="flood").cost.to_dict()
    assert local(BY_NAME, network) == LOCAL


def test_pairs_of_numbers_link_devices_in_order():
    found = calibrate(IN_ORDER, [(0, 1), (1, 2), (2, 3), (3, 0)], 0.2)
    assert found.device_ids == ("0", "1", "2", "3")
    assert found.cost.to_dict() == calibrate(IN_ORDER, "cycle", 0.2).cost.to_dict()
    assert calibrate(IN_ORDER[:2], [(0, 1)], 0.3).devices == 2


def test_a_matrix_says_in_which_order_it_reads_named_devices():
    with pytest.warns(CalibrationNote, match="its rows are read in the order of their names, a, b, d2, d10"):
        calibrate(BY_NAME, MATRIX)


@pytest.mark.parametrize(
    ("network", "error", "words"),
    [
        (MATRIX[:3, :3], ValueError, "the adjacency matrix has 3 rows but scores came for 4 devices"),
        (np.triu(MATRIX), ValueError, "the adjacency matrix must be symmetric"),
        ([("a", "nowhere")], ValueError, "nowhere"),
        (PAIRS[:2], ValueError, "the network is not connected"),
        (["ab", "cd"], TypeError, "network must be a Network"),
    ],
)
@pytest.mark.filterwarnings("ignore:an adjacency matrix does not name:conformesh.CalibrationNote")
def test_what_cannot_be_links_is_refused(network, error, words):
    with pytest.raises(error, match=words):
        calibrate(BY_NAME, network)


@pytest.mark.parametrize(("devices", "name"), [(12, "torus 4x3"), (7, "cycle 7"), (2, "cycle 2"), (1, "cycle 1")])
def test_without_a_network_there_is_a_torus_or_a_cycle(devices, name):
    held = [np.arange(20.0)] * devices
    found = calibrate(held, alpha=0.3)
    assert found.network == name
    assert found.threshold == calibrate(held, "complete" if devices > 1 else "chain", 0.3).threshold
    assert p_values(held, test_scores=[1.0]).network == name
    assert detect(held, test_scores=held).network == name
    assert quantiles(held).network == name


# --- faults -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"symmetric": False},
        {"centres": Centres.at([0.0, 1.0], 0.5), "inputs": [own % 1 for own in IN_ORDER]},
        {"groups": [["x"] * len(own) for own in IN_ORDER]},
        {"weight": [np.ones(len(own)) for own in IN_ORDER], "weight_bound": 1},
    ],
    ids=["plain", "sides", "centres", "groups", "weights"],
)
def test_faults_that_a_method_does_not_bear_are_refused_everywhere(more):
    held = [np.stack([own, own], axis=1) for own in IN_ORDER] if "symmetric" in more else IN_ORDER
    with pytest.raises(ValueError, match=r"method 'e-dcp' .* needs every message, .* the faults have loss=0\.1"):
        calibrate(held, NETWORK, 0.2, faults={"loss": 0.1}, **more)
