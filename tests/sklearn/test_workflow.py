"""As people work: frames, pipelines, searches, routing, clones, copies on disk."""

import pickle

import numpy as np
import polars as pl
import pytest
import sklearn
from scipy import sparse
from sklearn.base import clone
from sklearn.datasets import load_iris
from sklearn.linear_model import LinearRegression, LogisticRegression
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from conformesh import Network
from conformesh.scores import APS, RAPS
from conformesh.sklearn import MeshClassifier, MeshRegressor

DATA = load_iris()
X, Y = DATA.data + np.random.default_rng(1).normal(0, 0.8, DATA.data.shape), DATA.target
NAMES = ["a", "b", "c", "d"]
SITES = np.array(["north", "south", "west"])[np.arange(150) % 3]


def logistic(**options):
    return LogisticRegression(max_iter=1000, **options)


def frame_of(kind):
    if kind == "polars":
        return pl.DataFrame(X, schema=NAMES).with_columns(site=pl.Series(SITES))
    pandas = pytest.importorskip("pandas", reason="a pandas frame needs pandas")
    return pandas.DataFrame(X, columns=NAMES).assign(site=SITES)


@pytest.mark.parametrize("kind", ["pandas", "polars"])
def test_a_column_of_a_frame_names_the_devices(kind):
    frame = frame_of(kind)
    rows = frame[NAMES]
    model = logistic().fit(rows, Y)
    wanted = MeshClassifier(model).calibrate(rows, Y, devices=frame["site"])
    mesh = MeshClassifier(model).calibrate(frame, Y, devices="site")
    assert mesh.table_.names == ("north", "south", "west")
    assert mesh.result_.threshold == wanted.result_.threshold
    assert np.array_equal(mesh.predict_set(rows), wanted.predict_set(rows))
    found = mesh.evaluate(frame, Y, devices="site")
    assert {*found.per_device} == {*mesh.table_.names}
    assert {*found.sites().to_frame(by_class=True)["class"]} == {*map(str, mesh.classes_)}
    assert mesh.feature_names_in_.tolist() == NAMES
    fitted = MeshClassifier(logistic(), calibration_size=0.5).fit(frame, Y, devices="site")
    assert fitted.feature_names_in_.tolist() == NAMES
    assert fitted.table_.sizes.tolist() == [25, 25, 25]
    with pytest.raises(ValueError, match=r"unknown column 'sites', did you mean 'site'"):
        mesh.calibrate(frame, Y, devices="sites")


def test_a_column_that_is_a_feature_stays():
    frame = pl.DataFrame(X, schema=NAMES).with_columns(d=pl.Series(np.arange(150) % 3).cast(pl.Float64))
    model = logistic().fit(frame, Y)
    assert MeshClassifier(model).calibrate(frame, Y, devices="d").table_.names == ("0.0", "1.0", "2.0")


def test_labels_of_series_and_sparse_rows():
    model = logistic().fit(X, Y)
    wanted = MeshClassifier(model).calibrate(X, Y).result_.threshold
    assert MeshClassifier(model).calibrate(X, pl.Series(Y)).result_.threshold == wanted
    thin = MeshClassifier(model).calibrate(sparse.csr_array(X), Y).result_.threshold
    assert thin == pytest.approx(wanted)
    trained = MeshClassifier(logistic(), calibration_size=0.2).fit(sparse.coo_array(X), Y)
    assert trained.predict_set(sparse.csr_array(X)).shape == (150, 3)


def test_around_a_pipeline_and_inside_one():
    pipeline = make_pipeline(StandardScaler(), logistic()).fit(X[::2], Y[::2])
    mesh = MeshClassifier(pipeline).calibrate(X[1::2], Y[1::2], devices=SITES[1::2])
    assert mesh.evaluate(X[1::2], Y[1::2]).coverage.rate >= 0.9
    inside = make_pipeline(StandardScaler(), MeshClassifier(logistic(), calibration_size=0.5, random_state=0))
    inside.fit(X, Y, meshclassifier__devices=SITES)
    assert inside.predict_proba(X).shape == (150, 3)
    assert inside.score(X, Y) > 0.6
    assert {*inside[-1].table_.names} == {*SITES}
    assert inside[-1].predict_set(inside[:-1].transform(X)).shape == (150, 3)


def mean_size(mesh, rows, labels):
    return -mesh.evaluate(rows, labels).mean_size


def test_a_search_over_alpha_score_and_the_model():
    grid = {"alpha": [0.05, 0.3], "nonconformity": ["lac", APS(), RAPS], "estimator__C": [1.0, 10.0]}
    mesh = MeshClassifier(logistic(), calibration_size=0.4, random_state=0)
    search = GridSearchCV(mesh, grid, scoring=mean_size, cv=2).fit(X, Y, devices=SITES)
    assert search.best_params_["alpha"] == 0.3
    best = search.best_estimator_
    assert best.result_.alpha == 0.3
    assert {*best.table_.names} == {*SITES}
    assert cross_val_score(mesh, X, Y, cv=3).mean() > 0.6


def test_devices_are_routed_where_they_are_asked_for():
    weights = np.linspace(1, 2, 150)
    with sklearn.config_context(enable_metadata_routing=True):
        inner = logistic().set_fit_request(sample_weight=True)
        mesh = MeshClassifier(inner, calibration_size=0.4, random_state=0)
        mesh.set_fit_request(devices=True).set_score_request(sample_weight=False)
        search = GridSearchCV(mesh, {"alpha": [0.1, 0.2]}, cv=2).fit(X, Y, devices=SITES, sample_weight=weights)
        assert {*search.best_estimator_.table_.names} == {*SITES}
        inside = make_pipeline(StandardScaler(), mesh).fit(X, Y, devices=SITES)
        assert {*inside[-1].table_.names} == {*SITES}
        asking = clone(mesh).set_fit_request(devices=True, groups=True)
        grouped = make_pipeline(StandardScaler(), asking).fit(X, Y, devices=SITES, groups=np.arange(150) % 2)
        assert grouped[-1].result_.groups == ("0", "1")
        with pytest.raises(ValueError, match="sample_weight"):
            clone(mesh).set_params(estimator=logistic()).fit(X, Y, sample_weight=weights)
    plain = MeshClassifier(logistic(), calibration_size=0.4, random_state=0)
    heavy = clone(plain).fit(X, Y, sample_weight=np.where(Y == 0, 9.0, 1.0))
    assert not np.array_equal(heavy.predict_proba(X), plain.fit(X, Y).predict_proba(X))


def test_clones_parameters_and_copies():
    network = Network.star(3).relabelled(["north", "south", "west"])
    mesh = MeshClassifier(logistic(), alpha=0.2, network=network, nonconformity=APS, options={"prefer": "bits"})
    again = clone(mesh)
    assert again.get_params()["estimator__max_iter"] == 1000
    assert again.set_params(estimator__C=3.0).estimator.C == 3.0
    again.fit(X[::2], Y[::2]).calibrate(X[1::2], Y[1::2], devices=SITES[1::2])
    assert again.result_.network == "star 3"
    assert again.result_.options["prefer"] == "bits"
    copy = pickle.loads(pickle.dumps(again))
    assert np.array_equal(copy.predict_set(X), again.predict_set(X))
    assert np.array_equal(copy.predict_p(X), again.predict_p(X))
    assert "nonconformity=" in repr(mesh)
    assert "sk-" in mesh._repr_html_()


def test_sets_with_confidence_ask_for_more():
    model = logistic().fit(X[::2], Y[::2])
    plain = MeshClassifier(model, alpha=0.2).calibrate(X[1::2], Y[1::2], devices=SITES[1::2])
    sure = MeshClassifier(model, alpha=0.2, pac_confidence=0.95)
    sure.calibrate(X[1::2], Y[1::2], devices=SITES[1::2])
    assert sure.result_.certificate.pac_confidence == 0.95
    assert sure.result_.threshold > plain.result_.threshold


def test_notebooks_show_the_diagram_and_the_certificate():
    """scikit-learn's own form, and below it what was found, once there is something."""
    bare = MeshClassifier(logistic())
    fitted = MeshClassifier(logistic().fit(X, Y)).calibrate(X, Y, devices=SITES)
    assert "sk-top-container" in bare._repr_html_()
    assert 'class="cfm"' not in bare._repr_html_()
    for html in (fitted._repr_html_(), fitted._repr_mimebundle_()["text/html"]):
        assert "sk-top-container" in html
        assert fitted.result_.title() in html
        assert html.count("● counted") == 1
    with sklearn.config_context(display="text"):
        assert [*fitted._repr_mimebundle_()] == ["text/plain"]
        assert not hasattr(fitted, "_repr_html_")
    intervals = MeshRegressor(LinearRegression().fit(X, Y), symmetric=False).calibrate(X, Y)
    assert "above, e-dcp at alpha 0.1" in intervals._repr_html_()


class Unpicklable:
    """Rows that scikit-learn reads as an array and that cannot be pickled."""

    def __init__(self, rows):
        self.rows, self.shape = rows, rows.shape

    def __len__(self):
        return len(self.rows)

    def __array__(self, dtype=None, copy=None):
        return np.array(self.rows, dtype=dtype)

    def __reduce_ex__(self, protocol):
        raise pickle.PicklingError("rows of a database")


def test_rows_that_cannot_be_pickled_are_taken():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(80, 2))
    y = (x[:, 0] + rng.normal(size=80) > 0).astype(int)
    model = MeshClassifier(LogisticRegression()).fit(Unpicklable(x[:40]), y[:40])
    assert model.calibrate(Unpicklable(x[40:]), y[40:]).result_.examples == 40
