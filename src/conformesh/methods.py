"""METHODS: everything the library can run, one line each. CLI choices, docs rows, plans and tests follow this table."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields
from fractions import Fraction
from typing import Any, Literal, NamedTuple, get_type_hints

from conformesh.names import unknown
from conformesh.protocols.baselines import (
    Alone,
    Averaged,
    Pooled,
    average,
    cp,
    fcp,
    local,
    predict_average,
    predict_cp,
    predict_fcp,
    predict_local,
)
from conformesh.protocols.e_dcp import EDCP, e_dcp, predict_e_dcp
from conformesh.protocols.fedcp_qq import FedCPQQ, fedcp_qq, predict_fedcp_qq
from conformesh.protocols.h_dcp import HDCP, h_dcp, predict_h_dcp
from conformesh.protocols.messages import Protocol
from conformesh.protocols.options import AUTO, as_option, choices_of
from conformesh.protocols.predicting import Prediction, Terrain
from conformesh.protocols.q_dcp import QDCP, predict_q_dcp, q_dcp
from conformesh.protocols.site import Outcome, Site
from conformesh.protocols.wfcp import WFCP, predict_wfcp, wfcp
from conformesh.samples import Samples

MethodProtocol = Callable[[Site, Samples, tuple[Fraction, ...], Any], Protocol[Outcome]]
Predict = Callable[[Terrain, Fraction, Any], Prediction]
Needs = Literal["neighbours", "nothing", "server"]
REACH: tuple[Needs, ...] = ("neighbours", "nothing", "server")  # the order of tables: first what needs no server


def _never(options: Any) -> bool:
    return False


def _always(options: Any) -> bool:
    return True


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
        Whom a device must be able to reach.
    sends
        What one device sends, in words.
    paper
        The reference it comes from.
    summary
        One sentence.
    predict
        What it would send, without running it: its rows of a plan. None where nobody has said.
    per_alpha
        True if each level alpha needs messages of its own; False if one run serves all levels.
    variants
        The option that says how it adds up or averages: comparisons and plans try each of its choices.
    apart
        Whether, with these options, draws that share a run of the simulator leave each other's cost and certificate as
        they are.
    kernels
        Those of `kernels.compiling.LOSS` that a device with many scores runs compiled, loaded before its run.
    mixture
        Whether it promises for a mixture of the K devices, so that its rank is ceil((1 - alpha)(n + K)) or larger.
    """

    protocol: MethodProtocol
    options: type[Any]
    guarantee: str
    needs: Needs
    sends: str
    paper: str
    summary: str
    predict: Predict | None = None
    per_alpha: bool = False
    variants: str = ""
    apart: Callable[[Any], bool] = _never
    kernels: tuple[str, ...] = ()
    mixture: bool = True

    def option_names(self) -> tuple[str, ...]:
        """Return the names a user may set."""
        return tuple(f.name for f in fields(self.options) if "help" in f.metadata)

    def choices(self, name: str) -> tuple[str, ...]:
        """Return the words that an option takes, where they can be listed."""
        hints = get_type_hints(self.options)
        return next((choices_of(f, hints[name]) for f in fields(self.options) if f.name == name), ())

    @property
    def starts_warm(self) -> bool:
        """Whether it can start from the bracket of an earlier result."""
        return "warm" in {f.name for f in fields(self.options)}


METHODS: dict[str, Method] = {
    "e-dcp": Method(
        e_dcp,
        EDCP,
        "counted",
        "neighbours",
        "a few integers a stage",
        "",
        "exact pooled threshold by counting: no tuning, no approximation",
        predict_e_dcp,
        variants="aggregate",
    ),
    "q-dcp": Method(
        q_dcp,
        QDCP,
        "assumed, or counted",
        "neighbours",
        "1 number a round",
        "Wen2025",
        "smoothed quantile regression by ADMM; right if s0 and epsilon0 are",
        predict_q_dcp,
        per_alpha=True,
        apart=lambda options: not (options.certify or options.continuation),
        kernels=("pinball",),
    ),
    "h-dcp": Method(
        h_dcp,
        HDCP,
        "bounded or counted",
        "neighbours",
        "M numbers a round",
        "Wen2025",
        "consensus on the histogram of quantised scores; no tuning",
        predict_h_dcp,
        variants="consensus",
        apart=lambda options: options.rounds is not None,  # else as many as the largest draw needs
    ),
    "cp": Method(
        cp,
        Pooled,
        "counted",
        "server",
        "all scores",
        "Vovk2005",
        "split CP on the pooled scores",
        predict_cp,
        mixture=False,
    ),
    "fcp": Method(
        fcp, Pooled, "counted", "server", "all scores", "Lu2023", "pooled scores, for a mixture of devices", predict_fcp
    ),
    "fedcp-qq": Method(
        fedcp_qq,
        FedCPQQ,
        "assumed",
        "server",
        "1 number",
        "Humbert2023",
        "quantile of the devices' quantiles, ranks chosen in closed form",
        predict_fedcp_qq,
        per_alpha=True,
        apart=_always,
        mixture=False,
    ),
    "wfcp": Method(
        wfcp,
        WFCP,
        "counted",
        "server",
        "M numbers",
        "Zhu2024",
        "histograms added up on a shared channel, with or without noise",
        predict_wfcp,
        apart=lambda options: not options.noise,
    ),
    "local": Method(
        local,
        Alone,
        "counted, own data",
        "nothing",
        "nothing",
        "Vovk2005",
        "each device on its own",
        predict_local,
        apart=_always,
    ),
    "average": Method(
        average,
        Averaged,
        "none",
        "neighbours",
        "1 number a round",
        "",
        "mean of local quantiles",
        predict_average,
        per_alpha=True,
        apart=_always,
    ),
}


class Way(NamedTuple):
    """A method and, where it has `variants`, which of them: what a row of a comparison or of a plan is about."""

    method: str
    variant: str | None = None

    def __str__(self) -> str:
        return self.method if self.variant is None else f"{self.method} {self.variant}"

    @property
    def needs(self) -> Needs:
        """Whom a device must be able to reach."""
        return METHODS[self.method].needs

    @property
    def options(self) -> dict[str, Any]:
        """The way as options of its method."""
        return {} if self.variant is None else {METHODS[self.method].variants: self.variant}

    @property
    def flags(self) -> str:
        """The way as one would ask for it on the command line."""
        if self.variant in (None, AUTO):
            return self.method
        return f"{self.method} --{METHODS[self.method].variants} {self.variant}"


def ways_of(methods: Iterable[str] | None = None, options: Mapping[str, Any] | None = None) -> list[Way]:
    """Return every way to run these methods, by default all; an option that was given leaves only its own."""
    given, ways = options or {}, []
    for name in dict.fromkeys(METHODS if methods is None else methods):
        entry = get_method(name)
        values = entry.choices(entry.variants)
        if entry.variants in given:
            values = tuple(value for value in values if value == given[entry.variants])
        ways += [Way(name, value) for value in values] or [Way(name)]
    return ways


def get_method(name: str) -> Method:
    """Look a method up, or say what there is."""
    if name not in METHODS:
        raise ValueError(unknown("method", name, METHODS))
    return METHODS[name]


def make_options(name: str, given: Mapping[str, Any]) -> Any:
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
