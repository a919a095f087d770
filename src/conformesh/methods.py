"""METHODS: everything the library can run, one line each. CLI choices, docs rows, plans and tests follow this table."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass, field, fields, replace
from fractions import Fraction
from importlib import import_module
from inspect import signature
from typing import Any, Literal, NamedTuple, get_type_hints

import numpy as np
from numpy.typing import NDArray

from conformesh.common.names import closest, unknown
from conformesh.graph.network import Network
from conformesh.kernels.ranks import AUTO, DEFAULT, Alpha, Requirement, check_alpha, refuse_confidence
from conformesh.kernels.weighted_scores import WeightedScores
from conformesh.privacy.exposure import Edges, Exposure, Reveals, Where, measure_exposure
from conformesh.protocols import baselines, e_dcp, fedcp_qq, h_dcp, method_exposure, p_dcp, q_dcp, r_dcp, wfcp
from conformesh.protocols.block import Answers, Block, SearchProgress
from conformesh.protocols.faults import Faults
from conformesh.protocols.gather import flooded
from conformesh.protocols.masks import Secrets
from conformesh.protocols.messages import Gathering, Protocol
from conformesh.protocols.options import as_option, choices_of
from conformesh.protocols.size_agreement import joint, on_its_own
from conformesh.results.result import Result
from conformesh.scores.base import Score

_MethodProtocol = Callable[[Block, WeightedScores, tuple[Fraction, ...], Any], Gathering[Answers]]
_Needs = Literal["neighbours", "nothing", "server"]
_Weights = Literal["scores", "devices", "said", "none"]
REACH: tuple[_Needs, ...] = ("neighbours", "nothing", "server")  # the order of tables: first what needs no server
# The requirement of the paper's methods, and of the baselines that it compares them with.
PUBLISHED = Requirement("paper", "ghost")
# Fields of `Faults` under which messages or devices are missing for some rounds, but nobody lies.
_LOSSES = frozenset({"loss", "activation", "links"})


@dataclass(frozen=True)
class Description:
    """What tables and help texts say about a method.

    Attributes
    ----------
    guarantee
        What its certificate says, in a few words.
    needs
        Whom a device must be able to reach.
    sends
        What one device sends.
    paper
        The reference it comes from, a key of the bibliography; empty where it comes from none.
    summary
        One sentence.
    """

    guarantee: str
    needs: _Needs
    sends: str
    paper: str
    summary: str


@dataclass(frozen=True)
class _Execution:
    """How an engine, a plan and a comparison run a method.

    Attributes
    ----------
    variants
        The option whose choices comparisons and plans try one after the other.
    per_alpha
        True if each level alpha needs messages of its own; False if one run serves all levels.
    has_independent_draws
        Whether, with these options, draws that share a run of the simulator do not change each other's cost and
        certificate.
    kernels
        Those of `kernels.compilation.LOSS` that a device with many scores runs compiled, loaded before its run.
    """

    variants: str = ""
    per_alpha: bool = False
    has_independent_draws: Callable[[Any], bool] = lambda options: False
    kernels: tuple[str, ...] = ()


@dataclass(frozen=True)
class _FaultTolerance:
    """Which faults (fields of `Faults`) a method tolerates with given options, and the options to ask for then."""

    faults: Callable[[Any], frozenset[str]]
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class _AsyncMode:
    """How a method runs without rounds: `options` turns the options given into those that send only `Gather`.

    `is_signed` says whether each device must sign its entries, because others pass them on.
    """

    options: Callable[[Any], Any]
    is_signed: bool = False


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
        The requirement of the paper that it comes from, which it keeps whatever is asked for. None: the one asked for.
    weights
        Which weights it takes with these options: of `scores`, only of `devices` (each score of a device weighs alike),
        of devices by how many scores they `said` to hold, which it then works out and certifies itself, or `none`.
    tolerance
        The faults that it tolerates.
    async_mode
        How it runs without rounds; None where it needs rounds.
    private
        Whether nobody may see of a device what its neighbours could not compute: a view then shows no values, nobody is
        told how many scores a device holds, and on a mesh a device has secrets for each run.
    score_options
        The options that suit a score, where none were given.
    reveals
        What it tells whom, and what a coalition of devices learns (`privacy.exposure`). None where nobody has said.
    """

    protocol: _MethodProtocol
    options: type[Any]
    description: Description
    _: KW_ONLY
    execution: _Execution = _Execution()
    requirement: Requirement | None = None
    weights: Callable[[Any], _Weights] = lambda options: "none"
    tolerance: _FaultTolerance = _FaultTolerance(lambda options: frozenset())
    async_mode: _AsyncMode | None = None
    private: bool = False
    score_options: Callable[[Score], Mapping[str, Any]] = lambda score: {}
    reveals: Reveals | None = None

    def option_names(self) -> tuple[str, ...]:
        """Return the names a user may set."""
        return tuple(f.name for f in fields(self.options) if "help" in f.metadata)

    def choices(self, name: str) -> tuple[str, ...]:
        """Return the words that an option takes, where they can be listed."""
        hints = get_type_hints(self.options)
        return next((choices_of(f, hints[name]) for f in fields(self.options) if f.name == name), ())

    @property
    def signs_entries(self) -> bool:
        """Whether devices without rounds must sign what they say."""
        return self.async_mode is not None and self.async_mode.is_signed

    @property
    def starts_warm(self) -> bool:
        """Whether it can start from the bracket of an earlier result."""
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
        async_mode=_AsyncMode(lambda options: replace(options, entries=True)),
        weights=lambda options: "said" if options.entries else "scores",
        reveals=method_exposure.e_dcp,
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
            lambda options: _LOSSES if options.asynchronous else frozenset(), {"asynchronous": True}
        ),
        weights=lambda options: (
            "devices" if options.certify or options.continuation or options.asynchronous else "none"
        ),
        reveals=method_exposure.q_dcp,
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
            lambda options: _LOSSES if options.consensus == "projection" else frozenset(), {"consensus": "projection"}
        ),
        weights=lambda options: "devices",
        reveals=method_exposure.h_dcp,
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
        async_mode=_AsyncMode(r_dcp.without_agreement, is_signed=True),
        weights=lambda options: "said",
        reveals=method_exposure.r_dcp,
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
        weights=lambda options: "said",
        private=True,
        score_options=p_dcp.suited,
        reveals=method_exposure.p_dcp,
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
        reveals=method_exposure.pooled,
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
        requirement=PUBLISHED,
        reveals=method_exposure.pooled,
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
        reveals=method_exposure.fedcp_qq,
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
        requirement=PUBLISHED,
        reveals=method_exposure.wfcp,
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
        reveals=method_exposure.local,
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
        requirement=PUBLISHED,
        reveals=method_exposure.average,
    ),
}


class Way(NamedTuple):
    """A method and, where it has `variants`, which of them: what a row of a comparison or of a plan is about."""

    method: str
    variant: str | None = None

    def __str__(self) -> str:
        return self.method if self.variant is None else f"{self.method} {self.variant}"

    @property
    def needs(self) -> _Needs:
        """Whom a device must be able to reach."""
        return METHODS[self.method].description.needs

    @property
    def options(self) -> dict[str, Any]:
        """The way as options of its method."""
        return {} if self.variant is None else {METHODS[self.method].execution.variants: self.variant}

    @property
    def flags(self) -> str:
        """The way as one would ask for it on the command line."""
        if self.variant in (None, AUTO):
            return self.method
        return f"{self.method} --{METHODS[self.method].execution.variants} {self.variant}"


def ways_of(methods: Iterable[str] | None = None, options: Mapping[str, Any] | None = None) -> list[Way]:
    """Return every way to run these methods, by default all; options that were given leave only what goes with them."""
    given, ways = options or {}, []
    for name in dict.fromkeys(METHODS if methods is None else methods):
        entry = get_method(name)
        variants = entry.execution.variants
        values = entry.choices(variants)
        if variants in given:
            values = tuple(value for value in values if value == given[variants])
        elif given:
            mine = {key: value for key, value in given.items() if key in entry.option_names()}
            values = tuple(v for v in values if _goes_with(name, {**mine, variants: v})) or values
        ways += [Way(name, value) for value in values] or [Way(name)]
    return ways


def _goes_with(name: str, given: Mapping[str, Any]) -> bool:
    """Say whether a method has these options together."""
    with suppress(ValueError):
        make_options(name, given)
        return True
    return False


def get_method(name: str) -> Method:
    """Look a method up, or say what there is."""
    if name not in METHODS:
        raise ValueError(unknown("method", name, METHODS))
    return METHODS[name]


def make_options(name: str, given: Mapping[str, Any], score: Score | None = None) -> Any:
    """Build a method's options from keywords, in their types; an unknown one is an error that names who has it.

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
            mine = ", ".join(method.option_names()) or "none"
            raise ValueError(f"method {name!r} has no option {key!r}: {belongs}; options of {name}: {mine}")
    hints = get_type_hints(method.options)
    return method.options(**{key: as_option(value, hints[key], key) for key, value in given.items()})


_FUNCTIONS = ("calibrate", "control", "p_values", "quantiles", "detect")  # that take options of a method
_LEVELS = ("alpha", "alphas", "risk", "risks", "fdr")  # words for how often, or how much, a result may err


def check_keywords(function: str, method: str, given: Mapping[str, Any]) -> None:
    """Refuse keywords that are no option of any method, and say what to write instead."""
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
    """Return what to write instead of a keyword that a function does not have; nothing where that is not clear."""
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
    close = closest(key, [name for name in arguments[function] if name != "options"])
    return f"did you mean {close!r}?" if close else ""


def requirement_of(name: str, asked: Requirement = DEFAULT) -> Requirement:
    """Return the requirement that a method keeps: the one asked for, or its own, beside which it allows no other."""
    own = get_method(name).requirement
    if own is not None and asked not in (DEFAULT, own):
        raise ValueError(
            f"method {name!r} keeps the guarantee it was published with (mixture {own.mixture!r}, rank_rule "
            f"{own.rank_rule!r}), and no other; use e-dcp for mixture {asked.mixture!r}, rank_rule {asked.rank_rule!r}"
        )
    return own or asked


def refuse_faults(name: str, options: Any, faults: Faults) -> None:
    """Refuse faults that a method does not tolerate with these options, in a sentence."""
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
    """Run a method with the weights that the block's promise gives the scores; its certificates say about whom.

    `sealed` says whether nobody can change what it passes on for others.
    """
    return (yield from flooded(_weighted_method(name, block, samples, options), block, _attack_of(faults), sealed))


def _attack_of(faults: Faults | None) -> Any:
    """Return what Byzantine devices do to what they say, where there are any."""
    if faults is None or not faults.byzantine:
        return None
    from conformesh.protocols.attacks import make_attack  # a device of a mesh attacks nobody

    return make_attack(faults)


def _weighted_method(name: str, block: Block, samples: WeightedScores, options: Any) -> Gathering[Answers]:
    entry = get_method(name)
    takes = entry.weights(options)
    if takes == "none" and block.requirement.rank_rule == AUTO and any(d.weights is not None for d in block.demands):
        with suppress(ValueError):  # where counting scores alike is proven too, by the ghost rule
            counting = replace(block, requirement=replace(block.requirement, rank_rule="ghost"))
            counting.demands  # noqa: B018
            block = counting
    if takes == "said":  # whoever lies may lie about sizes, too: nothing here rests on what the block has of them
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


def without_rounds(name: str, options: Any) -> Any:
    """Return the options with which a method asks nothing but `Gather`; a method that needs rounds is refused."""
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
    requirement: Requirement = DEFAULT,
    caps: NDArray[np.int64] | None = None,
) -> Gathering[Answers]:
    """Run a method on one device that has no rounds: it asks nothing but `Gather`, and knows nothing but the map.

    `caps` says how many scores each device may hold at most, where that is known.
    """
    chosen = without_rounds(name, options)
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
    requirement: Requirement = DEFAULT,
    items: NDArray[np.int64] | None = None,
    shown: SearchProgress | None = None,
    secrets: Secrets | None = None,
) -> Protocol[Answers]:
    """Run a method on one device, which knows nothing of the others but the map: its part of a run on a mesh.

    A private method is not told how many scores the others hold; `secrets` are what it keeps to itself.
    """

    def method(block: Block, mine: WeightedScores) -> Protocol[Answers]:
        return run_method(name, block, mine, options, sealed=False)  # frames in rounds are not signed

    if not get_method(name).private:
        return joint(network, row, samples, method, requirement_of(name, requirement), alphas, items, shown)
    nobody = np.zeros((network.devices, samples.trials), dtype=np.int64)
    here, kept = np.array([row]), requirement_of(name, requirement)
    block = Block(network, here, nobody, kept, items, alphas, progress=shown or SearchProgress(), secrets=secrets)
    return on_its_own(block, method(block, samples))


def exposure_of_method(
    method: str,
    network: Network,
    *,
    coalition: int | Sequence[Any] = 1,
    scores: int = 50,
    alpha: Alpha = 0.1,
    masks: Edges | None = None,
    **options: Any,
) -> Exposure:
    """Say who would learn what from a run of a method on a mesh.

    Parameters
    ----------
    method, options
        What is to run, with its own options.
    network
        Who may talk to whom.
    coalition
        Names of devices that tell each other all they hear; or how many, and then those of that number that learn most.
    scores, alpha
        How many scores each device has, and the level, where the method chooses by these what to send.
    masks
        For masked sums, which pairs of devices share a mask, as rows; by default all.

    Examples
    --------
    >>> from conformesh import Network
    >>> print(exposure_of_method("h-dcp", Network.cycle(20), coalition=1).summary().partition(" has ")[2])
    19 of 19 other devices' own numbers
    """
    where = Where(network.devices, network, scores=scores, alpha=check_alpha(alpha), masks=masks)
    return _exposure(method, where, options, coalition)


def exposure_of_result(
    result: Result,
    network: Network | None = None,
    *,
    coalition: int | Sequence[Any] = 1,
    devices: int | None = None,
    masks: Edges | None = None,
) -> Exposure:
    """Say what a run has revealed; with its `network` also what a coalition of devices has learned.

    `devices` says how many took part, where the result is of one of them, as on a mesh. Facts of the result whose names
    begin with "revealed" are handed on as they are.
    """
    K = result.devices if devices is None else devices
    if network is not None and network.devices != K:
        raise ValueError(
            f"the result is of {K} devices, and the network has {network.devices}; give the map of the run"
        )
    options: dict[str, Any] = {}
    for name in get_method(result.method).option_names():
        with suppress(ValueError):  # of what is no option: a fact that took its place, or one's own matrix by its name
            make_options(result.method, {**options, name: result.options.get(name)})
            options[name] = result.options.get(name)
    where = Where(K, network, (), result.answers[0].examples // K, result.answers[0].alpha, result.options, masks)
    found = _exposure(result.method, where, options, coalition)
    said = {name: value for name, value in result.options.items() if name.startswith("revealed")}
    return replace(found, network=result.network or found.network, facts=said)


def _exposure(method: str, where: Where, given: Mapping[str, Any], coalition: int | Sequence[Any]) -> Exposure:
    reveals = get_method(method).reveals
    if reveals is None:
        raise ValueError(f"nobody has said what method {method!r} reveals; add `reveals` to its line in METHODS")
    return measure_exposure(method, reveals, where, make_options(method, given), coalition)
