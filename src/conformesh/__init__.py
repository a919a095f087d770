"""conformesh: conformal prediction for data that cannot be pooled.

Devices keep their calibration scores, talk only to their neighbours, and agree on one threshold whose prediction sets
cover the true label with probability at least 1 - alpha. Start with `calibrate`, `Network` and `scores`.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from conformesh import scores
    from conformesh.api import calibrate, control, update
    from conformesh.common.notes import CalibrationNote
    from conformesh.graph.network import Network
    from conformesh.graph.topologies import TOPOLOGIES
    from conformesh.kernels.ranks import conformal_rank, conformal_threshold
    from conformesh.lab.comparison import compare
    from conformesh.lab.planning.planner import plan
    from conformesh.lab.sweeps.sweep import sweep
    from conformesh.methods import METHODS
    from conformesh.pipeline.detection import detect
    from conformesh.pipeline.p_values import p_values
    from conformesh.pipeline.quantiles import quantiles
    from conformesh.pipeline.shift import estimate_ratios
    from conformesh.pipeline.solver import TooFewScores
    from conformesh.protocols.faults import Faults
    from conformesh.results.certificate import Certificate, Cost
    from conformesh.results.detection import Detection
    from conformesh.results.evaluation import Evaluation
    from conformesh.results.p_values import PValues
    from conformesh.results.quantiles import Quantiles
    from conformesh.results.result import Result
    from conformesh.scores import losses
    from conformesh.scores.centres import Centres, choose_centres
    from conformesh.table import Table

__version__ = "0.1.0"  # the one place where the version is written: the build and the documentation read it here

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
    "update",
]

# Names load when first used, so that `conformesh --help` need not wait for compilers and eigenvalues.
_HOMES = {
    "METHODS": "methods",
    "TOPOLOGIES": "graph.topologies",
    "CalibrationNote": "common.notes",
    "Centres": "scores.centres",
    "Certificate": "results.certificate",
    "Cost": "results.certificate",
    "Detection": "results.detection",
    "Evaluation": "results.evaluation",
    "Faults": "protocols.faults",
    "Network": "graph.network",
    "PValues": "results.p_values",
    "Quantiles": "results.quantiles",
    "Result": "results.result",
    "Table": "table",
    "TooFewScores": "pipeline.solver",
    "calibrate": "api",
    "choose_centres": "scores.centres",
    "compare": "lab.comparison",
    "conformal_rank": "kernels.ranks",
    "conformal_threshold": "kernels.ranks",
    "control": "api",
    "detect": "pipeline.detection",
    "estimate_ratios": "pipeline.shift",
    "p_values": "pipeline.p_values",
    "plan": "lab.planning.planner",
    "quantiles": "pipeline.quantiles",
    "sweep": "lab.sweeps.sweep",
    "update": "api",
}

_MODULES = {"losses": "scores.losses", "scores": "scores"}


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return import_module(f"conformesh.{_MODULES[name]}")
    if name not in _HOMES:
        raise AttributeError(f"module 'conformesh' has no attribute {name!r}")
    value = getattr(import_module(f"conformesh.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
