"""What the methods that need a server, or nobody, would send."""

from __future__ import annotations

from fractions import Fraction

from conformesh.planning.phases import Phase
from conformesh.planning.prediction import Prediction, hops
from conformesh.planning.terrain import Terrain
from conformesh.promises import conformal_rank
from conformesh.protocols.baselines import Alone, Pooled
from conformesh.protocols.fedcp_qq import FedCPQQ
from conformesh.protocols.wfcp import WFCP

NOTHING = frozenset[str]()


def _upload(what: str, numbers: float, most: float, bits: int) -> Phase:
    """Return one message to the server, whose answer is not counted: sizes may differ from device to device."""
    return Phase(what, 2, numbers, bits, 1, most / numbers if numbers else 1, server=True)


def predict_pooled(terrain: Terrain, alpha: Fraction, options: Pooled, shape: str = "any") -> Prediction:
    """All scores go up."""
    upload = _upload("all scores", terrain.n / terrain.devices, terrain.most, 64)
    return Prediction((upload,), "counted", uses=NOTHING)


def predict_cp(terrain: Terrain, alpha: Fraction, options: Pooled, shape: str = "any") -> Prediction:
    """All scores go up; the guarantee asks for more."""
    upload = _upload("all scores", terrain.n / terrain.devices, terrain.most, 64)
    words = "all scores are exchangeable with the test point, whichever device they come from"
    return Prediction((upload,), "counted", words, NOTHING)


def predict_fedcp_qq(terrain: Terrain, alpha: Fraction, options: FedCPQQ, shape: str = "any") -> Prediction:
    """One quantile goes up."""
    words = "all devices draw from one distribution, which nobody checks"
    return Prediction((_upload("a quantile", 1, 1, options.wire),), "assumed", words, NOTHING)


def predict_wfcp(terrain: Terrain, alpha: Fraction, options: WFCP, shape: str = "any") -> Prediction:
    """Agree on a range, then the histogram goes up."""
    phases = [] if options.range is not None else [hops(terrain, "agree on a range", 2, 64, 2)]
    phases.append(_upload("the histogram", options.bins, options.bins, 64))
    if options.noise:
        return Prediction(tuple(phases), "assumed", "the channel noise is Gaussian, which nobody checks")
    return Prediction(tuple(phases), "counted", notes=(f"thresholds are rounded up to one of {options.bins:,} bins",))


def predict_local(terrain: Terrain, alpha: Fraction, options: Alone, shape: str = "any") -> Prediction:
    """Nothing is sent."""
    words = "each device covers test points from its own distribution only"
    rank = conformal_rank(terrain.most, alpha)
    notes = ("with so few scores of its own every device ends at +inf",) if rank > terrain.most else ()
    return Prediction((), "counted", words, NOTHING, notes=notes)
