"""conformesh: conformal prediction for data that cannot be pooled.

Devices keep their calibration scores, talk only to their neighbours, and agree on one threshold whose prediction sets
cover the true label with probability at least 1 - alpha. Start with `calibrate`, `Network` and `scores`.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from conformesh._version import __version__

if TYPE_CHECKING:
    from conformesh import losses, scores
    from conformesh.api import calibrate, control
    from conformesh.centres import Centres, choose_centres
    from conformesh.comparing import compare
    from conformesh.detecting import detect
    from conformesh.faults import Faults
    from conformesh.graph.network import Network
    from conformesh.graph.topologies import TOPOLOGIES
    from conformesh.kernels.ranks import conformal_rank, conformal_threshold
    from conformesh.methods import METHODS
    from conformesh.notes import CalibrationNote
    from conformesh.planning.planner import plan
    from conformesh.pvalues import p_values
    from conformesh.quantile import quantiles
    from conformesh.result.certificate import Certificate, Cost
    from conformesh.result.detection import Detection
    from conformesh.result.evaluation import Evaluation
    from conformesh.result.pvalues import PValues
    from conformesh.result.quantiles import Quantiles
    from conformesh.result.result import Result
    from conformesh.shift import estimate_ratios
    from conformesh.solver import TooFewScores
    from conformesh.sweeping.running import sweep
    from conformesh.table import Table

__all__ = [
    "METHODS",
    "TOPOLOGIES",
    "CalibrationNote",
    "Centres",
    "Certificate",
    "Cost",
    "Detection",
    "Evaluation",
    "Faults",
    "Network",
    "PValues",
    "Quantiles",
    "Result",
    "Table",
    "TooFewScores",
    "__version__",
    "calibrate",
    "choose_centres",
    "compare",
    "conformal_rank",
    "conformal_threshold",
    "control",
    "detect",
    "estimate_ratios",
    "losses",
    "p_values",
    "plan",
    "quantiles",
    "scores",
    "sweep",
]

# Names load when first used, so that `conformesh --help` need not wait for compilers and eigenvalues.
_HOMES = {
    "METHODS": "methods",
    "TOPOLOGIES": "graph.topologies",
    "CalibrationNote": "notes",
    "Centres": "centres",
    "Certificate": "result.certificate",
    "Cost": "result.certificate",
    "Detection": "result.detection",
    "Evaluation": "result.evaluation",
    "Faults": "faults",
    "Network": "graph.network",
    "PValues": "result.pvalues",
    "Quantiles": "result.quantiles",
    "Result": "result.result",
    "Table": "table",
    "TooFewScores": "solver",
    "calibrate": "api",
    "choose_centres": "centres",
    "compare": "comparing",
    "conformal_rank": "kernels.ranks",
    "conformal_threshold": "kernels.ranks",
    "control": "api",
    "detect": "detecting",
    "estimate_ratios": "shift",
    "p_values": "pvalues",
    "plan": "planning.planner",
    "quantiles": "quantile",
    "sweep": "sweeping.running",
}


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
