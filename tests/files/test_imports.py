"""Scores that other libraries keep, from their objects and from files that are trusted."""

import pickle
import types

import numpy as np
import pytest

from conformesh import Network, calibrate, scores
from conformesh.files.imports import import_scores, read_calibrated
from tests import libraries
from tests.scores.test_libraries import BAND, MIDDLE, NEW, VALUES, P, Y, prefit, sets_of_mapie


def made_by(library, kind="Predictor", **held):
    """An object as one of that library would be, for rules about what it keeps."""
    made = type(kind, (), {"__module__": f"{library}.somewhere"})()
    for name, value in held.items():
        setattr(made, name, value)
    return made


@pytest.mark.parametrize(("theirs", "ours"), [("lac", scores.LAC()), ("top_k", scores.Rank())])
def test_sets_from_scores_that_mapie_kept(theirs, ours):
    conformal, sets = sets_of_mapie(theirs)
    kept = import_scores(conformal)
    assert scores.get_score(kept.score, **kept.options) == ours
    np.testing.assert_array_equal(kept.values, ours(P, Y))
    np.testing.assert_array_equal(calibrate([kept.values], Network.chain(1), 0.1, score=kept.score).predict(NEW), sets)


def test_draws_and_penalties_of_mapie_are_named():
    kept = import_scores(sets_of_mapie("aps")[0])
    assert (kept.score, kept.options) == ("aps", {"randomised": True})
    assert "randomised by the library's own draws" in kept.notes[0]
    with pytest.raises(ValueError, match="MAPIE keeps RAPS scores without their penalty"):
        import_scores(sets_of_mapie("raps")[0])


def test_regression_scores_that_mapie_kept():
    regression, column = libraries.mapie("regression"), prefit()[1]
    split = regression.SplitConformalRegressor(column(), confidence_level=0.9, prefit=True)
    with pytest.raises(ValueError, match=r"keeps no scores yet .*; call conformalize first"):
        import_scores(split)
    kept = import_scores(split.conformalize(MIDDLE[:, None], VALUES))
    assert kept.score == "absolute-residual"
    np.testing.assert_array_equal(kept.values, scores.AbsoluteResidual()(MIDDLE, VALUES))
    cross = regression.CrossConformalRegressor(column(), confidence_level=0.9, cv=3)
    assert "several models" in import_scores(cross.fit_conformalize(MIDDLE[:, None], VALUES)).notes[0]
    models = [column(0), column(1), column(2)]
    cqr = regression.ConformalizedQuantileRegressor(models, confidence_level=0.9, prefit=True)
    kept = import_scores(cqr.conformalize(np.column_stack([BAND, MIDDLE]), VALUES))
    assert kept.score == "cqr"
    np.testing.assert_array_equal(kept.sides, scores.CQR().sides(BAND, VALUES))
    assert calibrate([kept.sides], Network.chain(1), score=kept.score, symmetric=False).alpha == 0.1


@pytest.mark.filterwarnings("ignore:The 'temperature' parameter:DeprecationWarning")
@pytest.mark.parametrize(("name", "ours"), [("LAC", "lac"), ("Margin", "margin"), ("APS", "aps")])
def test_scores_that_torchcp_kept(name, ours):
    kinds = libraries.torchcp("classification.score")
    predictor = libraries.torchcp("classification.predictor").SplitPredictor(
        getattr(kinds, name)(score_type="identity"), alpha=0.1
    )
    import torch

    with pytest.raises(ValueError, match="keeps no scores in 'scores'; call calibrate first"):
        import_scores(predictor)
    predictor.calculate_threshold(torch.from_numpy(P.copy()), torch.from_numpy(Y))
    kept = import_scores(predictor)
    assert kept.score == ours
    assert kept.options == ({"randomised": True} if name == "APS" else {})
    assert len(kept.values) == len(Y)
    if name != "APS":
        np.testing.assert_array_equal(kept.values, scores.get_score(ours)(P, Y))


def test_scores_that_crepes_kept():
    base = libraries.crepes("base")
    kept = import_scores(base.ConformalRegressor().fit(residuals=VALUES - MIDDLE))
    assert kept.score == "absolute-residual"
    assert sorted(kept.values) == sorted(scores.AbsoluteResidual()(MIDDLE, VALUES))


@pytest.mark.parametrize(
    ("kept", "error", "words"),
    [
        (types.SimpleNamespace(), TypeError, "objects of mapie, torchcp, crepes, got types.SimpleNamespace"),
        (made_by("torchcp", cal_scores=np.array([1.0, np.inf])), ValueError, "an infinite score for new examples"),
        (made_by("torchcp", scores=np.ones((3, 2))), ValueError, r"one score per row, got an array of shape \(3, 2\)"),
        (made_by("crepes", alphas={"bin": [1.0]}), ValueError, "keeps scores by bin"),
        (made_by("crepes"), ValueError, "keeps no scores in 'alphas'; call fit first"),
    ],
    ids=range(5),
)
def test_what_keeps_no_scores_is_refused(kept, error, words):
    with pytest.raises(error, match=words):
        import_scores(kept)


def test_an_unknown_score_still_has_numbers():
    class NorABS:
        pass

    kept = import_scores(made_by("torchcp", scores=np.ones((3, 1)), score_function=NorABS()))
    assert kept.score is None
    assert kept.values.tolist() == [1.0, 1.0, 1.0]
    assert "NorABS is none of ours" in kept.notes[0]
    saps = import_scores(made_by("torchcp", cal_scores=np.ones(3), score_function=type("SAPS", (), {})()))
    assert "score=scores.SAPS(penalty=...)" in saps.notes[0]
    hinge = import_scores(made_by("crepes", "ConformalClassifier", alphas=np.ones(2)))
    assert "hinge is 'lac'" in hinge.notes[0]


class Bomb:
    """What a pickle may hold."""

    def __reduce__(self):
        return (pytest.fail, ("the file was read, and its program ran",))


def test_a_file_is_read_only_if_it_is_trusted(tmp_path):
    path = tmp_path / "site.pkl"
    path.write_bytes(pickle.dumps(Bomb()))
    with pytest.raises(ValueError, match=r"runs whatever program is in the file; .* pass trust=True"):
        read_calibrated(path)
    with pytest.raises(ValueError, match=r"needed a saved object, .pkl, .* got '.csv'"):
        read_calibrated(tmp_path / "site.csv", trust=True)
    path.write_bytes(pickle.dumps({"a": 1}))
    assert read_calibrated(path, trust=True) == {"a": 1}
