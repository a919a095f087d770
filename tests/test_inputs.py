"""What users hand over: each works, or is refused in one sentence by the call that received it."""

import networkx as nx
import numpy as np
import polars as pl
import pytest

from conformesh import CalibrationNote, Network, Samples, calibrate, calibrate_several, scores
from conformesh.comparing import compare, ways_of

RNG = np.random.default_rng(0)
NAMES = ["b", "a", "d10", "d2"]  # the network sorts them: a, b, d2, d10
BY_NAME = {name: RNG.random(10 + i) + i for i, name in enumerate(NAMES)}
NETWORK = Network.cycle(4).relabelled(("a", "b", "d2", "d10"))
IN_ORDER = [BY_NAME[name] for name in NETWORK.ids]
LOCAL = calibrate(IN_ORDER, NETWORK, 0.2, "local").thresholds.tolist()


def local(devices, network=NETWORK):
    """Thresholds of each device alone: wrong as soon as scores go to the wrong device."""
    return calibrate(devices, network, 0.2, "local").thresholds.tolist()


def long_columns():
    owners = [name for name in NAMES for _ in BY_NAME[name]]
    values = np.concatenate([BY_NAME[name] for name in NAMES])
    order = np.random.default_rng(1).permutation(len(values))
    return np.array(owners)[order], values[order]


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
    table = compare(frames()[kind], [NETWORK], 0.2, ways_of(["local"]))
    assert table.groups[0].runs[0].thresholds == (min(LOCAL), max(LOCAL))


def test_groups_by_name_stand_beside_their_scores():
    owners, values = long_columns()
    sites = np.where(values % 1 > 0.5, "high", "low")
    frame = pl.DataFrame({"device": owners, "score": values, "site": sites})
    expected = calibrate_several(
        IN_ORDER, NETWORK, (0.3,), groups=[np.where(own % 1 > 0.5, "high", "low") for own in IN_ORDER]
    )
    by_column = calibrate_several(frame, NETWORK, (0.3,), groups="site")
    by_dict = calibrate_several(
        BY_NAME, NETWORK, (0.3,), groups={k: np.where(v % 1 > 0.5, "high", "low") for k, v in BY_NAME.items()}
    )
    for found in (by_column, by_dict):
        assert {key: item.threshold for key, item in found.items.items()} == {
            key: item.threshold for key, item in expected.items.items()
        }
    with pytest.raises(TypeError, match="both go by device name or both by order"):
        calibrate_several(BY_NAME, NETWORK, groups=[["a"] * 10] * 4)


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
        ("scores.csv", TypeError, "devices must be one array of scores per device.* got str 'scores.csv'"),
        (3.0, TypeError, "devices must be one array of scores per device"),
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
        ([1.0, 2.0, 3.0, 4.0], ValueError, "device a: scores must be one-dimensional"),
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
    whole = [np.arange(9) + 0.5] * 4
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
        calibrate_several(
            IN_ORDER, NETWORK, groups=labels if missing is None else [np.array(own, object) for own in labels]
        )


def test_networks_by_name_and_from_networkx():
    exact = calibrate(IN_ORDER, NETWORK).threshold
    for network in ("cycle", "chain", nx.relabel_nodes(nx.cycle_graph(4), dict(enumerate(NETWORK.ids)))):
        found = calibrate(BY_NAME, network)
        assert found.threshold == exact
        assert found.device_ids == NETWORK.ids
    assert local(BY_NAME, "star") == LOCAL
    assert calibrate(IN_ORDER, "torus").network == "torus 2x2"
    assert calibrate(Samples.of(IN_ORDER), "torus").network == "torus 2x2"
    assert (
        calibrate(IN_ORDER, NETWORK)
        .update(BY_NAME, nx.relabel_nodes(nx.path_graph(4), dict(enumerate(NAMES))))
        .threshold
        == exact
    )
    assert compare(BY_NAME, ["cycle"], 0.2, ways_of(["fcp"])).devices == 4


@pytest.mark.parametrize(
    ("network", "error", "words"),
    [
        ("torsu", ValueError, "unknown topology 'torsu', did you mean 'torus'"),
        ([(0, 1)], TypeError, "network must be a Network, the name of a topology such as 'torus', or a NetworkX graph"),
        (None, TypeError, "got NoneType"),
        (nx.DiGraph([(0, 1)]), ValueError, "the graph is directed"),
        (nx.path_graph(3), ValueError, "has 3 devices but scores came for 4"),
    ],
)
def test_what_cannot_be_a_network_is_refused(network, error, words):
    with pytest.raises(error, match=words):
        calibrate(IN_ORDER, network)


@pytest.mark.parametrize("given", ["aps", scores.APS, scores.APS()])
def test_a_score_goes_by_name_class_or_object(given):
    assert calibrate(IN_ORDER, NETWORK, score=given).score == scores.APS()
    assert calibrate_several(IN_ORDER, NETWORK, score=given).score == scores.APS()
    p = np.full((3, 4), 0.25)
    np.testing.assert_array_equal(
        calibrate(IN_ORDER, NETWORK).predict(p, score=given),
        scores.APS().sets(p, calibrate(IN_ORDER, NETWORK).threshold),
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
        lambda: calibrate_several(IN_ORDER, NETWORK, score=given),
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
