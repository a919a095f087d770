"""Our scores, thresholds and sets beside NumPy and four conformal libraries, on the same arrays in the same run.

Each peer is called where it does the least besides the task: score classes or functions on probabilities that are there
already, not a whole estimator. `calibrate` is from probabilities and labels to a threshold, `sets` from probabilities
and a threshold to the labels of each row. Results are compared with ours before anything is timed.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import sys
import types
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from harness import Row, Series, compared, times_of

from conformesh import __version__, conformal_rank, conformal_threshold, scores

ALPHA = 0.1
TASKS = ("LAC calibrate", "LAC sets", "APS calibrate", "APS sets")
LEAST = {"LAC calibrate": 1.0, "LAC sets": 1.0, "APS calibrate": 5.0, "APS sets": 5.0}  # times as fast as the fastest
FEW = 1000  # rows up to which sets by p-values are measured: these take time in rows x classes x calibration scores
CLOSE = 1e-6  # thresholds of one definition agree to this


@dataclass(frozen=True)
class Data:
    """Probabilities, labels and the two thresholds that sets are made with."""

    p: Any
    y: Any
    thresholds: dict[str, float]


@dataclass
class Peer:
    """What a library does for each task, and for which tasks its results should equal ours."""

    name: str
    version: str
    jobs: dict[str, Callable[[], Any]] = field(default_factory=dict)
    same: tuple[str, ...] = ()


def ours(data: Data) -> Peer:
    lac, aps = scores.LAC(), scores.APS()
    p, y = data.p, data.y
    return Peer(
        "conformesh",
        __version__,
        {
            "LAC calibrate": lambda: conformal_threshold(lac(p, y), ALPHA),
            "LAC sets": lambda: lac.sets(p, data.thresholds["LAC"]),
            "APS calibrate": lambda: conformal_threshold(aps(p, y), ALPHA),
            "APS sets": lambda: aps.sets(p, data.thresholds["APS"]),
        },
    )


def numpy_(data: Data) -> Peer:
    """What one writes by hand, with a full sort for APS."""
    p, y = data.p, data.y
    rows, rank = np.arange(len(y)), conformal_rank(len(y), ALPHA)

    def aps_calibrate() -> float:
        order = np.argsort(-p, axis=1, kind="stable")
        place = np.argmax(order == y[:, None], axis=1)
        sums = np.take_along_axis(p, order, axis=1).cumsum(axis=1)[rows, place]
        return float(np.partition(sums, rank - 1)[rank - 1])

    def aps_sets() -> Any:
        order = np.argsort(-p, axis=1, kind="stable")
        inside = np.take_along_axis(p, order, axis=1).cumsum(axis=1) <= data.thresholds["APS"]
        sets = np.empty_like(inside)
        np.put_along_axis(sets, order, inside, axis=1)
        return sets

    jobs = {
        "LAC calibrate": lambda: float(np.partition(1 - p[rows, y], rank - 1)[rank - 1]),
        "LAC sets": lambda: (1 - p) <= data.thresholds["LAC"],
        "APS calibrate": aps_calibrate,
        "APS sets": aps_sets,
    }
    return Peer("NumPy", np.__version__, jobs, TASKS)


def mapie(data: Data) -> Peer:
    from mapie.conformity_scores import APSConformityScore, LACConformityScore

    alphas, classes = np.array([ALPHA]), np.arange(data.p.shape[1])
    common: dict[str, Any] = {"cv": "prefit"}

    def calibrate(score: Any) -> Callable[[], float]:
        score.classes, score.random_state = classes, 0

        def run() -> float:
            found = score.get_conformity_scores(data.y, data.p, y_enc=data.y)
            return float(score.get_conformity_score_quantiles(found, alphas, **common)[0])

        return run

    def sets(score: Any, threshold: float, **more: Any) -> Callable[[], Any]:
        score.classes, score.random_state, score.quantiles_ = classes, 0, np.array([threshold])
        few = np.zeros((1, 1))

        def run() -> Any:
            table = score.get_predictions(None, alphas, data.p, **common)
            return score.get_prediction_sets(table, few, alphas, **common, **more)[:, :, 0]

        return run

    jobs = {
        "LAC calibrate": calibrate(LACConformityScore()),
        "LAC sets": sets(LACConformityScore(), data.thresholds["LAC"]),
        "APS calibrate": calibrate(APSConformityScore()),  # always randomised: a threshold of its own
        "APS sets": sets(APSConformityScore(), data.thresholds["APS"], include_last_label=False),
    }
    return Peer("MAPIE", importlib.metadata.version("mapie"), jobs, ("LAC calibrate", "LAC sets"))


def torchcp(data: Data) -> Peer:
    if "torchsort" not in sys.modules and importlib.util.find_spec("torchsort") is None:
        stand_in = types.ModuleType("torchsort")  # for a training loss only, and it needs a compiler to install
        stand_in.soft_rank = stand_in.soft_sort = None  # type: ignore[attr-defined]
        sys.modules["torchsort"] = stand_in
    import torch
    from torchcp.classification.predictor import SplitPredictor
    from torchcp.classification.score import APS, LAC

    p, y = torch.from_numpy(data.p), torch.from_numpy(data.y)
    lac = SplitPredictor(LAC(score_type="identity"), alpha=ALPHA)
    aps = SplitPredictor(APS(score_type="identity", randomized=False), alpha=ALPHA)

    def calibrate(predictor: Any) -> Callable[[], float]:
        def run() -> float:
            predictor.calculate_threshold(p, y)
            return float(predictor.q_hat)

        return run

    def sets(predictor: Any, threshold: float) -> Callable[[], Any]:
        limit = torch.tensor(threshold, dtype=p.dtype)
        return lambda: predictor.predict_with_logits(p, limit).numpy().astype(bool)

    jobs = {
        "LAC calibrate": calibrate(lac),
        "LAC sets": sets(lac, data.thresholds["LAC"]),
        "APS calibrate": calibrate(aps),
        "APS sets": sets(aps, data.thresholds["APS"]),
    }
    return Peer("TorchCP", importlib.metadata.version("torchcp"), jobs, TASKS)


def puncc(data: Data) -> Peer:
    from deel.puncc.api.nonconformity_scores import lac_score, raps_score
    from deel.puncc.api.prediction_sets import lac_set, raps_set
    from deel.puncc.api.utils import quantile

    level = conformal_rank(len(data.y), ALPHA) / len(data.y)
    jobs: dict[str, Callable[[], Any]] = {
        "LAC calibrate": lambda: float(np.ravel(quantile(lac_score(data.p, data.y), level))[0]),
        "LAC sets": lambda: lac_set(data.p, data.thresholds["LAC"])[0],
        "APS calibrate": lambda: float(np.ravel(quantile(raps_score(data.p, data.y, 0, 1, False), level))[0]),
        "APS sets": lambda: raps_set(data.p, data.thresholds["APS"], 0, 1, False)[0],
    }
    return Peer("puncc", importlib.metadata.version("puncc"), jobs, ("LAC calibrate", "LAC sets"))


def crepes(data: Data) -> Peer:
    from crepes import ConformalClassifier
    from crepes.extras import hinge

    classes = np.arange(data.p.shape[1])
    fitted = ConformalClassifier().fit(hinge(data.p, classes, data.y))
    jobs: dict[str, Callable[[], Any]] = {
        "LAC calibrate": lambda: ConformalClassifier().fit(hinge(data.p, classes, data.y))
    }
    if len(data.y) <= FEW:
        jobs["LAC sets"] = lambda: fitted.predict_set(hinge(data.p), confidence=1 - ALPHA, smoothing=False)
    return Peer("crepes", importlib.metadata.version("crepes"), jobs)


PEERS: dict[str, Callable[[Data], Peer]] = {
    "NumPy": numpy_,
    "MAPIE": mapie,
    "TorchCP": torchcp,
    "puncc": puncc,
    "crepes": crepes,
}


def _table(sets: Any, shape: tuple[int, ...]) -> Any:
    """Return sets as a table of booleans, from lists of labels where a peer gives these."""
    if isinstance(sets, np.ndarray):
        return sets.astype(bool)
    table = np.zeros(shape, bool)
    for i, labels in enumerate(sets):
        table[i, labels] = True
    return table


def _check(mine: Any, peer: Peer, task: str) -> None:
    """Refuse to compare what does not do the same job; rounding may decide about the label at the very threshold."""
    found = peer.jobs[task]()
    if task.endswith("calibrate"):
        if abs(found - mine) > CLOSE:
            raise AssertionError(f"{peer.name}, {task}: threshold {found}, ours {mine}")
    elif (_table(found, mine.shape) != mine).sum() > max(2, 1e-5 * mine.size):
        raise AssertionError(f"{peer.name}, {task}: other sets than ours")


def data_of(rows: int, classes: int = 100) -> Data:
    """Return probabilities of a confident model, labels drawn from them, and the thresholds at ALPHA."""
    rng = np.random.default_rng(0)
    p = rng.dirichlet(np.full(classes, 0.1), size=rows)
    y = np.minimum((p.cumsum(axis=1) < rng.random(rows)[:, None]).sum(axis=1), classes - 1)
    limits = {
        "LAC": conformal_threshold(scores.LAC()(p, y), ALPHA),
        "APS": conformal_threshold(scores.APS()(p, y), ALPHA),
    }
    return Data(p, y, limits)


def bench(quick: bool = False) -> tuple[list[Row], list[Series]]:
    """Scores and sets on 100,000 rows of 100 classes, against the fastest of the peers."""
    data = data_of(500 if quick else 100_000)
    mine = ours(data)
    expected = {task: job() for task, job in mine.jobs.items()}
    rows, present = [], []
    for name, build in PEERS.items():
        try:
            peer = build(data)
            for task in peer.same:
                _check(expected[task], peer, task)
            present.append(peer)
        except ImportError as problem:
            rows.append(Row(f"{name}", note=f"not measured: {problem}"))
    if any(peer.name == "crepes" and "LAC sets" not in peer.jobs for peer in present):
        why = f"its p-values compare every label of every row with every calibration score; measured up to {FEW} rows"
        rows.append(Row("LAC sets by crepes", note=f"not measured: {why}"))
    size = f"{len(data.y):.0e} x {data.p.shape[1]}".replace("e+0", "e")
    for task in TASKS:
        jobs = {peer.name: peer.jobs[task] for peer in (mine, *present) if task in peer.jobs}
        times = times_of(jobs, 2 if quick else 5)
        own = times.pop("conformesh")
        fastest = min(times, key=lambda name: float(np.median(times[name])))
        least = LEAST[task]
        for name, seconds in times.items():
            best = name == fastest
            target = f"at least {least:g} times as fast as the fastest" if best else ""
            rows.append(compared(f"{task}, {size}", own, seconds, name, target, least if best else None))
    return rows, []


def versions() -> dict[str, str]:
    """Return the versions of the peers that are installed."""
    found = {}
    for name in PEERS:
        try:
            found[name] = importlib.metadata.version(name.lower())
        except importlib.metadata.PackageNotFoundError:
            found[name] = "not installed"
    return found
