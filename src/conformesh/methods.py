"""METHODS: everything the library can run, one line each. CLI choices, docs rows and tests follow this table."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from fractions import Fraction
from typing import Any, get_type_hints

from conformesh.names import unknown
from conformesh.protocols.baselines import Alone, Averaged, Pooled, average, cp, fcp, local
from conformesh.protocols.e_dcp import EDCP, e_dcp
from conformesh.protocols.fedcp_qq import FedCPQQ, fedcp_qq
from conformesh.protocols.h_dcp import HDCP, h_dcp
from conformesh.protocols.messages import Protocol
from conformesh.protocols.options import as_option
from conformesh.protocols.q_dcp import QDCP, q_dcp
from conformesh.protocols.site import Outcome, Site
from conformesh.protocols.wfcp import WFCP, wfcp
from conformesh.samples import Samples

MethodProtocol = Callable[[Site, Samples, tuple[Fraction, ...], Any], Protocol[Outcome]]


@dataclass(frozen=True)
class Method:
    """One way to find a threshold.

    Attributes
    ----------
    protocol
        The generator that runs it on any engine.
    options
        The dataclass of its options; each field carries its help.
    guarantee
        What its certificate says, in a few words.
    needs
        `neighbours`, `server` or `nothing`: whom a device must be able to reach.
    sends
        What one device sends, in words.
    paper
        The reference it comes from.
    summary
        One sentence.
    per_alpha
        True if each level alpha needs messages of its own; False if one run serves all levels.
    kernels
        Those of `kernels.compiling.LOSS` that a device with many scores runs compiled, loaded before its run.
    """

    protocol: MethodProtocol
    options: type[Any]
    guarantee: str
    needs: str
    sends: str
    paper: str
    summary: str
    per_alpha: bool = False
    kernels: tuple[str, ...] = ()

    def option_names(self) -> tuple[str, ...]:
        """Return the names a user may set."""
        return tuple(f.name for f in fields(self.options) if "help" in f.metadata)


_Q = "smoothed quantile regression by ADMM; right if s0 and epsilon0 are"
_H = "consensus on the histogram of quantised scores; no tuning"
_WFCP = "histograms added up on a shared channel, with or without noise"
_QQ = "quantile of the devices' quantiles, ranks chosen in closed form"

_E = "exact pooled threshold by counting: no tuning, no approximation"

METHODS: dict[str, Method] = {
    "e-dcp": Method(e_dcp, EDCP, "counted", "neighbours", "a few integers a stage", "", _E),
    "q-dcp": Method(
        q_dcp, QDCP, "assumed, or counted", "neighbours", "1 number a round", "Wen2025", _Q, True, ("pinball",)
    ),
    "h-dcp": Method(h_dcp, HDCP, "bounded or counted", "neighbours", "M numbers a round", "Wen2025", _H),
    "cp": Method(cp, Pooled, "counted", "server", "all scores", "Vovk2005", "split CP on the pooled scores"),
    "fcp": Method(fcp, Pooled, "counted", "server", "all scores", "Lu2023", "pooled scores, for a mixture of devices"),
    "fedcp-qq": Method(fedcp_qq, FedCPQQ, "assumed", "server", "1 number", "Humbert2023", _QQ, True),
    "wfcp": Method(wfcp, WFCP, "counted", "server", "M numbers", "Zhu2024", _WFCP),
    "local": Method(local, Alone, "counted, own data", "nothing", "nothing", "Vovk2005", "each device on its own"),
    "average": Method(average, Averaged, "none", "neighbours", "1 number a round", "", "mean of local quantiles", True),
}


def get_method(name: str) -> Method:
    """Look a method up, or say what there is."""
    if name not in METHODS:
        raise ValueError(unknown("method", name, METHODS))
    return METHODS[name]


def make_options(name: str, given: dict[str, Any]) -> Any:
    """Build a method's options from keywords, in their types; an unknown one is an error that names who has it."""
    method = get_method(name)
    known = {f.name for f in fields(method.options)}
    for key in given:
        if key not in known:
            owners = [other for other, entry in METHODS.items() if key in {f.name for f in fields(entry.options)}]
            belongs = f"it belongs to {', '.join(owners)}" if owners else "no method has it"
            mine = ", ".join(method.option_names()) or "none"
            raise ValueError(f"method {name!r} has no option {key!r}: {belongs}; options of {name}: {mine}")
    hints = get_type_hints(method.options)
    return method.options(**{key: as_option(value, hints[key], key) for key, value in given.items()})
