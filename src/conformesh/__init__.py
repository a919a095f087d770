"""conformesh: conformal prediction for data that cannot be pooled.

Devices keep their calibration scores, talk only to their neighbours, and agree on one threshold whose prediction sets
hold the truth with probability at least 1 - alpha. Start with `calibrate`, `Network` and `scores`.
"""

from conformesh import scores
from conformesh._version import __version__
from conformesh.calibrating import Batch, CalibrationNote, TooFewScores, calibrate, calibrate_batch
from conformesh.calibration import Calibration
from conformesh.certificate import Certificate, Cost
from conformesh.evaluation import Evaluation
from conformesh.methods import METHODS
from conformesh.network import Network
from conformesh.ranks import conformal_rank
from conformesh.samples import Samples
from conformesh.topologies import TOPOLOGIES

__all__ = [
    "METHODS",
    "TOPOLOGIES",
    "Batch",
    "Calibration",
    "CalibrationNote",
    "Certificate",
    "Cost",
    "Evaluation",
    "Network",
    "Samples",
    "TooFewScores",
    "__version__",
    "calibrate",
    "calibrate_batch",
    "conformal_rank",
    "scores",
]
