"""METHODS: the table of all methods, and the functions that run one of them by name.

An entry says how to run a method, what it guarantees, which faults and weights it supports, and what it reveals. The
command line, the tables of the documentation, plans, comparisons and parametrised tests are all derived from the
table: a new method is one file in `protocols` and one entry here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass, field, fields, replace
from fractions import Fraction
from importlib import import_module
from inspect import signature
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, get_type_hints

import numpy as np
from numpy.typing import NDArray

from conformesh.common.names import closest_name, unknown_name
from conformesh.graph.network import Network
from conformesh.kernels.ranks import (
    AUTO,
    DEFAULT_REQUIREMENT,
    MIXTURES,
    Alpha,
    Requirement,
    check_alpha,
    check_mixture_bound,
    refuse_confidence,
)
from conformesh.kernels.weighted_scores import WeightedScores
from conformesh.privacy.exposure import Disclosure, Edges, Exposure, ExposureContext, Reveals, measure_exposure
from conformesh.protocols import baselines, e_dcp, fedcp_qq, h_dcp, method_exposure, p_dcp, q_dcp, r_dcp, wfcp
from conformesh.protocols.block import Answers, Block, SearchProgress
from conformesh.protocols.faults import Faults
from conformesh.protocols.gather import gather_by_flooding
from conformesh.protocols.masks import Secrets
from conformesh.protocols.messages import GatheringProtocol, Protocol
from conformesh.protocols.options import convert_option, option_choices
from conformesh.protocols.size_agreement import run_with_shared_sizes, run_without_server
from conformesh.results.result import Result
from conformesh.scores.base import Score

if TYPE_CHECKING:  # a device of a mesh need not hold what it does not use in memory
    from conformesh.results.lambda_tests import LambdaTests

_MethodProtocol = Callable[[Block, WeightedScores, tuple[Fraction, ...], Any], GatheringProtocol[Answers]]
_Connection = Literal["neighbours", "nothing", "server"]
_Weights = Literal["scores", "devices", "reported", "none"]
# In the order of tables and figures: methods that work without a server come first.
CONNECTIONS: tuple[_Connection, ...] = ("neighbours", "nothing", "server")
# The requirement of the paper's methods, and of the baselines that it compares them with.
PAPER_REQUIREMENT = Requirement("paper", "ghost")
# Fields of `Faults` under which messages or devices are missing in some rounds, but all that arrives is honest.
_LINK_FAULTS = frozenset({"loss", "activation", "links"})


@dataclass(frozen=True)
class Description:
    """What tables and help texts say about a method.

    Attributes
    ----------
    guarantee
        What its certificate says, in a few words.
    needs
        What a device must be connected to: its neighbours, a server, or nothing.
    sends
        What one device sends.
    paper
        Key of its publication in the bibliography; empty if it was not published before.
    summary
        One sentence.
    """

    guarantee: str
    needs: _Connection
    sends: str
    paper: str
    summary: str


@dataclass(frozen=True)
class _Execution:
    """How an engine, a plan and a comparison run a method.

    Attributes
    ----------
    variants
        The option whose values comparisons and plans try one after the other; empty if there is none.
    per_alpha
        True if each level alpha needs messages of its own; False if one run serves all levels.
    has_independent_draws
        Whether, with these options, draws that share a run of the simulator have the cost and the certificate that
        each would have in a run of its own.
    kernels
        Entries of `kernels.compilation.LOSS` that a device with many scores runs compiled. They are loaded before the
        run, so that compiling does not delay a round.
    """

    variants: str = ""
    per_alpha: bool = False
    has_independent_draws: Callable[[Any], bool] = lambda options: False
    kernels: tuple[str, ...] = ()


@dataclass(frozen=True)
class _FaultTolerance:
    """Fields of `Faults` that a method tolerates with given options, and the options that tolerate the most."""

    faults: Callable[[Any], frozenset[str]]
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class _AsyncMode:
    """How a method runs in asynchronous mode: `options` turns the given options into those that send only `Gather`.

    `is_signed` says whether each device must sign its entries, because other devices relay them.
    """

    options: Callable[[Any], Any]
    is_signed: bool = False


@dataclass(frozen=True)
class _Scope:
    """What a method finds besides the scores of a rank.

    Attributes
    ----------
    windows
        Pooled scores around a rank with exact counts, for adapted scores.
    device_ranks
        Ranks among the scores of each device, for mixtures that are not known.
    loss_sums
        Exact sums of losses over all devices, for losses that are not monotone.
    """

    windows: bool = False
    device_ranks: bool = False
    loss_sums: bool = False


@dataclass(frozen=True)
class Method:
    """One way to find a threshold.

    Attributes
    ----------
    protocol
        The generator that runs it on any engine.
    options
        The dataclass of its options; each field carries its help.
    description, execution
        What help texts say about it, and how it is run.
    requirement
        The fixed requirement of the publication it comes from; None if it supports the requirement of the call.
    weights
        The weights that it supports with given options: `scores` (every score may have its own weight), `devices` (all
        scores of a device weigh the same), `reported` (it derives the weights of devices from the sizes that they
        report during the run, and completes the certificates itself), or `none`.
    scope
        What it finds besides the scores of a rank.
    tolerance
        The faults that it tolerates.
    async_mode
        How it runs in asynchronous mode; None if it needs rounds.
    private
        Whether a device must be hidden from the others. Then a view shows no values, sizes are not exchanged, and on a
        mesh each device has fresh secrets for every run.
    score_options
        Option values that suit a score, used where the caller gives none.
    reveals
        What each participant, or a coalition of devices, learns (`privacy.exposure`); None if that is not known.
    """

    protocol: _MethodProtocol
    options: type[Any]
    description: Description
    _: KW_ONLY
    execution: _Execution = _Execution()
    requirement: Requirement | None = None
    weights: Callable[[Any], _Weights] = lambda options: "none"
    scope: _Scope = _Scope()
    tolerance: _FaultTolerance = _FaultTolerance(lambda options: frozenset())
    async_mode: _AsyncMode | None = None
    private: bool = False
    score_options: Callable[[Score], Mapping[str, Any]] = lambda score: {}
    reveals: Reveals | None = None

    def option_names(self) -> tuple[str, ...]:
        """Return the names of the options that a user may set."""
        return tuple(f.name for f in fields(self.options) if "help" in f.metadata)

    def choices(self, name: str) -> tuple[str, ...]:
        """Return the values of an option that has a fixed list of them, else nothing."""
        hints = get_type_hints(self.options)
        return next((option_choices(f, hints[name]) for f in fields(self.options) if f.name == name), ())

    @property
    def signs_entries(self) -> bool:
        """Whether devices must sign their entries in asynchronous mode."""
        return self.async_mode is not None and self.async_mode.is_signed

    @property
    def starts_warm(self) -> bool:
        """Whether a run can start from the bracket of an earlier result."""
        return "warm" in {f.name for f in fields(self.options)}


METHODS: dict[str, Method] = {
    "e-dcp": Method(
        e_dcp.e_dcp,
        e_dcp.EDCP,
        Description(
            guarantee="counted",
            needs="neighbours",
            sends="a sketch, then the scores of a window",
            paper="",
            summary="exact pooled threshold by counting: no tuning, no approximation",
        ),
        execution=_Execution(variants="schedule"),
        scope=_Scope(windows=True, device_ranks=True, loss_sums=True),
        async_mode=_AsyncMode(lambda options: replace(options, entries=True)),
        weights=lambda options: "reported" if options.entries else "scores",
        reveals=method_exposure.exposure_of_e_dcp,
    ),
    "q-dcp": Method(
        q_dcp.q_dcp,
        q_dcp.QDCP,
        Description(
            guarantee="assumed, or counted",
            needs="neighbours",
            sends="1 number a round",
            paper="Wen2025",
            summary="smoothed quantile regression by ADMM; right if s0 and epsilon0 are",
        ),
        execution=_Execution(per_alpha=True, kernels=("pinball",)),
        tolerance=_FaultTolerance(
            lambda options: _LINK_FAULTS if options.asynchronous else frozenset(), {"asynchronous": True}
        ),
        weights=lambda options: (
            "devices" if options.certify or options.continuation or options.asynchronous else "none"
        ),
        reveals=method_exposure.exposure_of_q_dcp,
    ),
    "h-dcp": Method(
        h_dcp.h_dcp,
        h_dcp.HDCP,
        Description(
            guarantee="bounded or counted",
            needs="neighbours",
            sends="M numbers a round",
            paper="Wen2025",
            summary="consensus on the histogram of quantised scores; no tuning",
        ),
        execution=_Execution(
            variants="consensus",
            has_independent_draws=lambda options: options.rounds is not None and options.range is not None,
        ),
        tolerance=_FaultTolerance(
            lambda options: _LINK_FAULTS if options.consensus == "projection" else frozenset(),
            {"consensus": "projection"},
        ),
        weights=lambda options: "devices",
        reveals=method_exposure.exposure_of_h_dcp,
    ),
    "r-dcp": Method(
        r_dcp.r_dcp,
        r_dcp.RDCP,
        Description(
            guarantee="counted",
            needs="neighbours",
            sends="everybody's histogram, once",
            paper="",
            summary="holds whatever some devices say: histograms, trimmed",
        ),
        tolerance=_FaultTolerance(lambda options: frozenset({"byzantine"})),
        async_mode=_AsyncMode(r_dcp.without_agreed_grid, is_signed=True),
        weights=lambda options: "reported",
        reveals=method_exposure.exposure_of_r_dcp,
    ),
    "p-dcp": Method(
        p_dcp.p_dcp,
        p_dcp.PDCP,
        Description(
            guarantee="counted, or counted with noise",
            needs="neighbours",
            sends="a key, then masked counts",
            paper="",
            summary=(
                "private: neighbours learn sums over all devices and nothing else; with epsilon differentially private"
            ),
        ),
        weights=lambda options: "reported",
        private=True,
        scope=_Scope(windows=True),
        score_options=p_dcp.p_dcp_options_for,
        reveals=method_exposure.exposure_of_p_dcp,
    ),
    "cp": Method(
        baselines.cp,
        baselines.Pooled,
        Description(
            guarantee="counted",
            needs="server",
            sends="all scores",
            paper="Vovk2005",
            summary="split CP on the pooled scores",
        ),
        requirement=Requirement("exchangeable"),
        reveals=method_exposure.exposure_of_pooled,
    ),
    "fcp": Method(
        baselines.fcp,
        baselines.Pooled,
        Description(
            guarantee="counted",
            needs="server",
            sends="all scores",
            paper="Lu2023",
            summary="pooled scores, for a mixture of devices",
        ),
        requirement=PAPER_REQUIREMENT,
        reveals=method_exposure.exposure_of_pooled,
    ),
    "fedcp-qq": Method(
        fedcp_qq.fedcp_qq,
        fedcp_qq.FedCPQQ,
        Description(
            guarantee="assumed",
            needs="server",
            sends="1 number",
            paper="Humbert2023",
            summary="quantile of the devices' quantiles, ranks chosen in closed form",
        ),
        execution=_Execution(per_alpha=True, has_independent_draws=lambda options: True),
        requirement=Requirement("exchangeable"),
        reveals=method_exposure.exposure_of_fedcp_qq,
    ),
    "wfcp": Method(
        wfcp.wfcp,
        wfcp.WFCP,
        Description(
            guarantee="counted",
            needs="server",
            sends="M numbers",
            paper="Zhu2024",
            summary="histograms added up on a shared channel, with or without noise",
        ),
        execution=_Execution(has_independent_draws=lambda options: not options.noise and options.range is not None),
        requirement=PAPER_REQUIREMENT,
        reveals=method_exposure.exposure_of_wfcp,
    ),
    "local": Method(
        baselines.local,
        baselines.LocalOptions,
        Description(
            guarantee="counted, own data",
            needs="nothing",
            sends="nothing",
            paper="Vovk2005",
            summary="each device on its own",
        ),
        execution=_Execution(has_independent_draws=lambda options: True),
        requirement=Requirement("own"),
        scope=_Scope(device_ranks=True),
        reveals=method_exposure.exposure_of_local,
    ),
    "average": Method(
        baselines.average,
        baselines.Averaged,
        Description(
            guarantee="none",
            needs="neighbours",
            sends="1 number a round",
            paper="",
            summary="mean of local quantiles",
        ),
        execution=_Execution(per_alpha=True),
        requirement=PAPER_REQUIREMENT,
        reveals=method_exposure.exposure_of_average,
    ),
}


class MethodVariant(NamedTuple):
    """A method, and a value of its option `variants` if it has one: the subject of one row of a comparison or plan."""

    method: str
    variant: str | None = None

    def __str__(self) -> str:
        return self.method if self.variant is None else f"{self.method} {self.variant}"

    @property
    def needs(self) -> _Connection:
        """What a device must be connected to."""
        return METHODS[self.method].description.needs

    @property
    def options(self) -> dict[str, Any]:
        """The variant as options of its method."""
        return {} if self.variant is None else {METHODS[self.method].execution.variants: self.variant}

    @property
    def flags(self) -> str:
        """The variant as written on the command line."""
        if self.variant in (None, AUTO):
            return self.method
        return f"{self.method} --{METHODS[self.method].execution.variants} {self.variant}"


def method_variants(
    methods: Iterable[str] | None = None, options: Mapping[str, Any] | None = None
) -> list[MethodVariant]:
    """Return the variants of these methods (by default of all methods) that are compatible with the given options."""
    given, variants_found = options or {}, []
    for name in dict.fromkeys(METHODS if methods is None else methods):
        entry = get_method(name)
        variants = entry.execution.variants
        values = entry.choices(variants)
        if variants in given:
            values = tuple(value for value in values if value == given[variants])
        elif given:
            known = {key: value for key, value in given.items() if key in entry.option_names()}
            # No compatible value: keep all, so that running them says which of the given options is wrong.
            values = tuple(v for v in values if _are_compatible(name, {**known, variants: v})) or values
        variants_found += [MethodVariant(name, value) for value in values] or [MethodVariant(name)]
    return variants_found


def _are_compatible(name: str, given: Mapping[str, Any]) -> bool:
    """Return whether a method accepts these options together."""
    with suppress(ValueError):
        make_options(name, given)
        return True
    return False


def get_method(name: str) -> Method:
    """Return the entry of a method; an unknown name raises an error that lists the known ones."""
    if name not in METHODS:
        raise ValueError(unknown_name("method", name, METHODS))
    return METHODS[name]


def make_options(name: str, given: Mapping[str, Any], score: Score | None = None) -> Any:
    """Return a method's options from keywords, converted to their types; an unknown one is an error.

    Options that were not given are the defaults or, where others suit the score better, these.
    """
    method = get_method(name)
    if score is not None:
        given = {**method.score_options(score), **given}
    if not given:
        return method.options()
    refuse_confidence(given)
    known = {f.name for f in fields(method.options)}
    for key in given:
        if key == "seed" and name == "p-dcp":
            raise ValueError(
                "method 'p-dcp' has no seed: masks and noise that can be repeated hide nothing; leave it out"
            )
        if key not in known:
            owners = [other for other, entry in METHODS.items() if key in {f.name for f in fields(entry.options)}]
            belongs = f"it belongs to {', '.join(owners)}" if owners else "no method has it"
            names = ", ".join(method.option_names()) or "none"
            raise ValueError(f"method {name!r} has no option {key!r}: {belongs}; options of {name}: {names}")
    hints = get_type_hints(method.options)
    return method.options(**{key: convert_option(value, hints[key], key) for key, value in given.items()})


# Public functions whose keyword arguments may be options of a method.
_FUNCTIONS = ("calibrate", "control", "p_values", "quantiles", "detect")
# Names for the error level of a result. A function has one of them; a user may try another.
_LEVELS = ("alpha", "alphas", "risk", "risks", "fdr")


def check_keywords(function: str, method: str, given: Mapping[str, Any]) -> None:
    """Raise `TypeError` for a keyword that is no option of any method, with what to write instead if that is clear."""
    if not given:
        return
    refuse_confidence(given)
    known = {f.name for f in fields(get_method(method).options)}
    strange = [key for key in given if key not in known]
    if strange:
        known = {f.name for entry in METHODS.values() for f in fields(entry.options)}
    for key in strange:
        if key == "seed" and function == "detect":
            raise TypeError("detect has no argument 'seed'; detect takes rng=, a whole number or a generator")
        if key not in known and (instead := _instead(function, key)):
            raise TypeError(f"{function} has no argument {key!r}; {instead}")


def _instead(function: str, key: str) -> str:
    """Return what to write instead of a keyword that a function does not have; empty where that is not clear."""
    package = import_module("conformesh")
    arguments = {name: [*signature(getattr(package, name)).parameters] for name in _FUNCTIONS}
    own = next((name for name in _LEVELS if name in arguments[function]), None)
    if key in _LEVELS and own is not None:
        return f"it takes {own}=, one number" + ("" if own == "fdr" else f" or a list such as {own}=[0.05, 0.1]")
    if key in _LEVELS and function == "quantiles":
        return "it takes q=, the parts of the data, such as q=[0.25, 0.5]"
    if key == "alpha":
        return "p-values belong to every alpha: p_values(...).sets(alpha) returns the prediction sets of one"
    if owners := [name for name in _FUNCTIONS if key in arguments[name]]:
        return f"use {' or '.join(f'{name}(..., {key}=...)' for name in owners)}"
    close = closest_name(key, [name for name in arguments[function] if name != "options"])
    return f"did you mean {close!r}?" if close else ""


def requirement_of(name: str, asked: Requirement = DEFAULT_REQUIREMENT) -> Requirement:
    """Return the requirement of a run: the one asked for, or the fixed one of the method, which allows no other."""
    own = get_method(name).requirement
    if own is not None and asked not in (DEFAULT_REQUIREMENT, own):
        raise ValueError(
            f"method {name!r} keeps the guarantee it was published with (mixture {own.mixture!r}, rank_rule "
            f"{own.rank_rule!r}), and no other; use e-dcp for mixture {asked.mixture!r}, rank_rule {asked.rank_rule!r}"
        )
    if own is None and name != "e-dcp" and asked.is_for_unknown_mixtures:
        raise ValueError(f"method {name!r} counts the scores of all devices together; for {asked} use e-dcp")
    return own or asked


def refuse_faults(name: str, options: Any, faults: Faults) -> None:
    """Raise `ValueError` for a fault that a method does not tolerate with these options."""
    entry = get_method(name)
    for fault in sorted(faults.names):
        if fault not in entry.tolerance.faults(options):
            others = [
                _tolerant_call(other)
                for other in METHODS
                if fault in METHODS[other].tolerance.faults(_most_tolerant(other))
            ]
            instead = f"; use {' or '.join(others)}, which tolerate it" if others else ""
            raise ValueError(
                f"method {name!r} with these options needs every message, honest and in its round, and the faults have "
                f"{fault}={getattr(faults, fault)!r}{instead}"
            )


def _most_tolerant(name: str) -> Any:
    """Return the options with which a method tolerates the most faults."""
    return make_options(name, METHODS[name].tolerance.options)


def _tolerant_call(name: str) -> str:
    given = [f"{key}={value!r}" for key, value in METHODS[name].tolerance.options.items()]
    return f"{name} with {', '.join(given)}" if given else name


def run_method(
    name: str, block: Block, samples: WeightedScores, options: Any, faults: Faults | None = None, *, sealed: bool = True
) -> Protocol[Answers]:
    """Run a method with the weights that the block's requirement gives the scores, and complete its certificates.

    `sealed` says that no device can change what it relays for others, as in a simulation.
    """
    return (
        yield from gather_by_flooding(
            _weighted_method(name, block, samples, options), block, _attack_of(faults), sealed
        )
    )


def _attack_of(faults: Faults | None) -> Any:
    """Return what the Byzantine devices of these faults send, or None if there are none."""
    if faults is None or not faults.byzantine:
        return None
    from conformesh.protocols.attacks import make_attack  # a mesh never needs it

    return make_attack(faults)


def _weighted_method(name: str, block: Block, samples: WeightedScores, options: Any) -> GatheringProtocol[Answers]:
    entry = get_method(name)
    takes = entry.weights(options)
    if takes == "none" and block.requirement.rank_rule == AUTO and any(d.weights is not None for d in block.demands):
        # The rank rule is free and the best one would weigh scores, which this method cannot. The ghost rule is proven
        # for counting all scores alike; where it does not apply either, the error below says what to use.
        with suppress(ValueError):
            counting = replace(block, requirement=replace(block.requirement, rank_rule="ghost"))
            counting.demands  # noqa: B018
            block = counting
    if takes == "reported":
        # A Byzantine device may lie about its size too, so nothing here may rest on the sizes that the block has.
        return (yield from entry.protocol(block, samples, block.alphas, options))
    weighed = samples if entry.requirement is not None else block.weighed(samples)
    uneven = not block.requirement.has_equal_weights
    if (uneven and takes != "scores") or (takes == "none" and weighed.weights is not None):
        raise ValueError(
            f"method {name!r} with these options counts every score alike, and the mixture "
            f"{block.requirement.mixture!r} gives them weights; use e-dcp"
        )
    outcome = yield from entry.protocol(block, weighed, block.alphas, options)
    return replace(
        outcome,
        certificates=[
            [block.signed(certificate, t, a) for a, certificate in enumerate(row)]
            for t, row in enumerate(outcome.certificates)
        ],
    )


def method_options_for_async_mode(name: str, options: Any) -> Any:
    """Return the options with which a method sends only `Gather`; raise `ValueError` for a method that needs rounds."""
    mode = get_method(name).async_mode
    if mode is None:
        able = [other for other, entry in METHODS.items() if entry.async_mode is not None]
        raise ValueError(f"method {name!r} needs rounds; use mode rounds, or without rounds {' or '.join(able)}")
    return mode.options(options)


def async_protocol(
    name: str,
    network: Network,
    row: int,
    samples: WeightedScores,
    alphas: tuple[Fraction, ...],
    options: Any,
    requirement: Requirement = DEFAULT_REQUIREMENT,
    caps: NDArray[np.int64] | None = None,
) -> GatheringProtocol[Answers]:
    """Run a method on one device in asynchronous mode: it sends only `Gather`, and knows only the map beforehand.

    `caps` has the maximum number of scores of every device, where the roster states it.
    """
    chosen = method_options_for_async_mode(name, options)
    nobody = np.zeros((network.devices, samples.trials), dtype=np.int64)
    block = Block(network, np.array([row]), nobody, requirement_of(name, requirement), None, alphas, caps)
    return _weighted_method(name, block, samples, chosen)


def device_protocol(
    name: str,
    network: Network,
    row: int,
    samples: WeightedScores,
    alphas: tuple[Fraction, ...],
    options: Any,
    requirement: Requirement = DEFAULT_REQUIREMENT,
    items: NDArray[np.int64] | None = None,
    shown: SearchProgress | None = None,
    secrets: Secrets | None = None,
) -> Protocol[Answers]:
    """Run a method on one device that knows only the map of the network: its part of a run on a mesh.

    A private method does not exchange sizes; `secrets` are the device's secrets for this run.
    """

    def method(block: Block, mine: WeightedScores) -> Protocol[Answers]:
        return run_method(name, block, mine, options, sealed=False)  # frames in rounds are not signed

    if not get_method(name).private:
        return run_with_shared_sizes(
            network, row, samples, method, requirement_of(name, requirement), alphas, items, shown
        )
    nobody = np.zeros((network.devices, samples.trials), dtype=np.int64)
    here, kept = np.array([row]), requirement_of(name, requirement)
    block = Block(network, here, nobody, kept, items, alphas, progress=shown or SearchProgress(), secrets=secrets)
    return run_without_server(block, method(block, samples))


def exposure_of_method(
    method: str,
    network: Network,
    *,
    coalition: int | Sequence[Any] = 1,
    scores: int = 50,
    alpha: Alpha = 0.1,
    masks: Edges | None = None,
    adapt: Any = None,
    mixture: str = "sizes",
    mixture_bound: Alpha | None = None,
    **options: Any,
) -> Exposure:
    """Return who would learn what from a run of a method on a mesh.

    Parameters
    ----------
    method, options
        The method and its options.
    network
        The links between devices.
    coalition
        Names of devices that share all they receive, or a number: then the coalition of that size that learns most.
    scores, alpha
        Number of scores of each device, and the level; some methods choose by these what to send.
    masks
        For masked sums: the pairs of devices that share a mask, as rows; by default all pairs.
    adapt, mixture, mixture_bound
        As in `calibrate`: scores that adapt reveal more; with mixture `own` no score is searched for; with a bound
        devices tell all others some of their scores.

    Examples
    --------
    >>> from conformesh import Network
    >>> print(exposure_of_method("h-dcp", Network.cycle(20), coalition=1).summary().partition(" has ")[2])
    19 of 19 other devices' own numbers
    """
    from conformesh.scores.adapt import Even, as_adaptation

    adaptation = as_adaptation(adapt)
    if mixture not in MIXTURES:
        raise ValueError(unknown_name("mixture", mixture, MIXTURES))
    bound = None if mixture_bound is None else check_mixture_bound(mixture_bound)
    if (asked := Requirement(mixture, mixture_bound=bound)).is_for_unknown_mixtures:
        requirement_of(method, asked)  # refuses methods that cannot keep it
    where = ExposureContext(
        network.devices,
        network,
        scores=scores,
        alpha=check_alpha(alpha),
        masks=masks,
        adapt=adaptation.for_task("classification") if isinstance(adaptation, Even) else adaptation,
        mixture=mixture,
        mixture_bound=bound,
    )
    return _exposure(method, where, options, coalition)


def exposure_of_result(
    result: Result | LambdaTests,
    network: Network | None = None,
    *,
    coalition: int | Sequence[Any] = 1,
    devices: int | None = None,
    masks: Edges | None = None,
) -> Exposure:
    """Return what a run has revealed; with its `network` also what a coalition of devices has learned.

    `devices` is the number of devices of the run, needed where the result is that of one device of a mesh. Facts of the
    result whose names begin with "revealed" are passed on unchanged.
    """
    K = result.devices if devices is None else devices
    if network is not None and network.devices != K:
        raise ValueError(
            f"the result is of {K} devices, and the network has {network.devices}; give the map of the run"
        )
    from conformesh.results.lambda_tests import LambdaTests

    if isinstance(result, LambdaTests):
        context, aggregate = ExposureContext(K, network), str(result.options.get("aggregate", AUTO))
        numbers = len(result) * len(result.risks)

        def sums(at: ExposureContext, options: Any) -> list[Disclosure]:
            return method_exposure.exposure_of_sums(at, aggregate, numbers)

        shown = measure_exposure(result.method, sums, context, None, coalition)
        return replace(shown, network=result.network or shown.network)
    options: dict[str, Any] = {}
    for name in get_method(result.method).option_names():
        # A result may hold a fact in place of an option, or the name of a user's own matrix: neither is a value.
        with suppress(ValueError):
            make_options(result.method, {**options, name: result.options.get(name)})
            options[name] = result.options.get(name)
    where = ExposureContext(
        K,
        network,
        (),
        result.answers[0].examples // K,
        result.answers[0].alpha,
        result.options,
        masks,
        result.guarantee.adapt,
        result.guarantee.mixture.kind,
        result.guarantee.mixture.bound,
    )
    found = _exposure(result.method, where, options, coalition)
    facts = {name: value for name, value in result.options.items() if name.startswith("revealed")}
    return replace(found, network=result.network or found.network, facts=facts)


def _exposure(
    method: str, where: ExposureContext, given: Mapping[str, Any], coalition: int | Sequence[Any]
) -> Exposure:
    entry = get_method(method)
    if (reveals := entry.reveals) is None:
        raise ValueError(f"what method {method!r} reveals is not known; add `reveals` to its line in METHODS")

    def of_run(at: ExposureContext, options: Any) -> list[Disclosure]:
        return method_exposure.exposure_of_run(at, options, reveals, entry.private)

    return measure_exposure(method, of_run, where, make_options(method, given), coalition)
