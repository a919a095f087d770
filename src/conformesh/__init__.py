"""conformesh: conformal prediction for data that cannot be pooled.

Devices keep their calibration scores, talk only to their neighbours, and agree on one threshold whose prediction sets
hold the truth with probability at least 1 - alpha. Start with `calibrate`, `Network` and `scores`.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from conformesh._moved import keep_old_names
from conformesh._version import __version__

if TYPE_CHECKING:
    from conformesh import losses, scores
    from conformesh.calibrating import (
        Batch,
        TooFewScores,
        calibrate,
        calibrate_several,
        calibrate_shifted,
        solve_draws,
    )
    from conformesh.centres import Centres, choose_centres
    from conformesh.controlling import control, control_several
    from conformesh.detecting import detect
    from conformesh.faults import Faults
    from conformesh.graph.network import Network
    from conformesh.graph.topologies import TOPOLOGIES
    from conformesh.kernels.ranks import conformal_rank, conformal_threshold
    from conformesh.kernels.weighted_scores import WeightedScores
    from conformesh.localising import LocalCalibration, calibrate_local
    from conformesh.methods import METHODS
    from conformesh.notes import CalibrationNote
    from conformesh.pvalues import p_values
    from conformesh.quantile import quantiles
    from conformesh.result.calibration import Calibration
    from conformesh.result.certificate import Certificate, Cost
    from conformesh.result.control import Control
    from conformesh.result.detection import Detection
    from conformesh.result.evaluation import Evaluation
    from conformesh.result.pvalues import PValues
    from conformesh.result.quantiles import Quantiles
    from conformesh.result.several import Calibrations
    from conformesh.result.sides import Sides
    from conformesh.shifting import Ratios, estimate_ratios
    from conformesh.siding import calibrate_sides
    from conformesh.sweeping.running import sweep

__all__ = [
    "METHODS",
    "TOPOLOGIES",
    "Batch",
    "Calibration",
    "CalibrationNote",
    "Calibrations",
    "Centres",
    "Certificate",
    "Control",
    "Cost",
    "Detection",
    "Evaluation",
    "Faults",
    "LocalCalibration",
    "Network",
    "PValues",
    "Quantiles",
    "Ratios",
    "Sides",
    "TooFewScores",
    "WeightedScores",
    "__version__",
    "calibrate",
    "calibrate_local",
    "calibrate_several",
    "calibrate_shifted",
    "calibrate_sides",
    "choose_centres",
    "conformal_rank",
    "conformal_threshold",
    "control",
    "control_several",
    "detect",
    "estimate_ratios",
    "losses",
    "p_values",
    "quantiles",
    "scores",
    "solve_draws",
    "sweep",
]

# Names load when first used, so that `conformesh --help` need not wait for compilers and eigenvalues.
_HOMES = {
    "METHODS": "methods",
    "TOPOLOGIES": "graph.topologies",
    "Batch": "calibrating",
    "Calibration": "result.calibration",
    "CalibrationNote": "notes",
    "Calibrations": "result.several",
    "Centres": "centres",
    "Certificate": "result.certificate",
    "Control": "result.control",
    "Cost": "result.certificate",
    "Detection": "result.detection",
    "Evaluation": "result.evaluation",
    "Faults": "faults",
    "LocalCalibration": "localising",
    "Network": "graph.network",
    "PValues": "result.pvalues",
    "Quantiles": "result.quantiles",
    "Ratios": "shifting",
    "WeightedScores": "kernels.weighted_scores",
    "Sides": "result.sides",
    "TooFewScores": "calibrating",
    "calibrate": "calibrating",
    "solve_draws": "calibrating",
    "calibrate_local": "localising",
    "calibrate_several": "calibrating",
    "calibrate_shifted": "calibrating",
    "calibrate_sides": "siding",
    "choose_centres": "centres",
    "conformal_rank": "kernels.ranks",
    "conformal_threshold": "kernels.ranks",
    "control": "controlling",
    "control_several": "controlling",
    "detect": "detecting",
    "estimate_ratios": "shifting",
    "p_values": "pvalues",
    "quantiles": "quantile",
    "sweep": "sweeping.running",
}


keep_old_names()


def __getattr__(name: str) -> Any:
    if name in ("losses", "scores"):
        return import_module(f"conformesh.{name}")
    if name not in _HOMES:
        raise AttributeError(f"module 'conformesh' has no attribute {name!r}")
    value = getattr(import_module(f"conformesh.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
