"""conformesh: conformal prediction for data that cannot be pooled.

Devices keep their calibration scores, talk only to their neighbours, and agree on one threshold whose prediction sets
cover the true label with probability at least 1 - alpha. Start with `calibrate`, `Network` and `scores`.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

# Type checkers follow imports and no table of names, so that the public names stand here a second time; a test compares
# the two. A stub that is parsed at import would be the only list, but is missing in zip files and frozen programs.
if TYPE_CHECKING:
    from conformesh import scores as scores
    from conformesh.api import calibrate as calibrate
    from conformesh.api import control as control
    from conformesh.api import update as update
    from conformesh.common.notes import CalibrationNote as CalibrationNote
    from conformesh.graph.network import Network as Network
    from conformesh.graph.topologies import TOPOLOGIES as TOPOLOGIES
    from conformesh.kernels.ranks import conformal_rank as conformal_rank
    from conformesh.kernels.ranks import conformal_threshold as conformal_threshold
    from conformesh.lab.comparison import compare as compare
    from conformesh.lab.planning.planner import plan as plan
    from conformesh.lab.sweeps.sweep import sweep as sweep
    from conformesh.methods import METHODS as METHODS
    from conformesh.pipeline.detection import detect as detect
    from conformesh.pipeline.p_values import p_values as p_values
    from conformesh.pipeline.quantiles import quantiles as quantiles
    from conformesh.pipeline.shift import estimate_ratios as estimate_ratios
    from conformesh.pipeline.solver import TooFewScores as TooFewScores
    from conformesh.protocols.faults import Faults as Faults
    from conformesh.results.certificate import Certificate as Certificate
    from conformesh.results.certificate import Cost as Cost
    from conformesh.results.detection import Detection as Detection
    from conformesh.results.evaluation import Evaluation as Evaluation
    from conformesh.results.lambda_tests import LambdaTests as LambdaTests
    from conformesh.results.p_values import PValues as PValues
    from conformesh.results.quantiles import Quantiles as Quantiles
    from conformesh.results.result import Result as Result
    from conformesh.scores import adapt as adapt
    from conformesh.scores import losses as losses
    from conformesh.scores.centres import Centres as Centres
    from conformesh.scores.centres import choose_centres as choose_centres
    from conformesh.table import Table as Table

__version__ = "0.1.0"  # the one place where the version is written: the build and the documentation read it here

# Where each public name is defined. It is loaded when first used, so that `conformesh --help` need not wait for
# compilers and eigenvalues.
_HOMES = {
    "CalibrationNote": "common.notes",
    "Centres": "scores.centres",
    "Certificate": "results.certificate",
    "Cost": "results.certificate",
    "Detection": "results.detection",
    "Evaluation": "results.evaluation",
    "Faults": "protocols.faults",
    "LambdaTests": "results.lambda_tests",
    "METHODS": "methods",
    "Network": "graph.network",
    "PValues": "results.p_values",
    "Quantiles": "results.quantiles",
    "Result": "results.result",
    "TOPOLOGIES": "graph.topologies",
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
_MODULES = {"adapt": "scores.adapt", "losses": "scores.losses", "scores": "scores"}

__all__ = ["__version__", *_HOMES, *_MODULES]  # noqa: PLE0604 - names of a table are text


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
