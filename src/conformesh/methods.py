"""METHODS: everything the library can run, one line each. CLI choices, docs rows, plans and tests follow this table."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass, field, fields, replace
from fractions import Fraction
from importlib import import_module
from inspect import signature
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, get_type_hints

import numpy as np
from numpy.typing import NDArray

from conformesh.common.names import closest, unknown
from conformesh.graph.network import Network
from conformesh.kernels.ranks import AUTO, DEFAULT, Requirement, refuse_confidence
from conformesh.kernels.weighted_scores import WeightedScores
from conformesh.protocols.block import Answers, Block, SearchProgress
from conformesh.protocols.faults import Faults
from conformesh.protocols.gathering import flooded
from conformesh.protocols.messages import Gathering, Protocol
from conformesh.protocols.options import as_option, choices_of
from conformesh.protocols.size_agreement import joint, on_its_own
from conformesh.scores.base import Score

if TYPE_CHECKING:  # which a device of a mesh need not hold in memory
    from conformesh.privacy.exposure import Reveals
    from conformesh.protocols.masks import Secrets

MethodProtocol = Callable[[Block, WeightedScores, tuple[Fraction, ...], Any], Gathering[Answers]]
Needs = Literal["neighbours", "nothing", "server"]
Weights = Literal["scores", "devices", "said", "none"]
REACH: tuple[Needs, ...] = ("neighbours", "nothing", "server")  # the order of tables: first what needs no server


class Place(str):
    """Where a part of a method stands, "module.name" below `protocols`."""


at: Any = Place  # stands for what is there, of whatever type that is


PUBLISHED = Requirement("paper", "ghost")  # of the paper's methods, and of what it compares them with


LOSSES = frozenset({"loss", "activation", "links"})


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
    per_alpha
        True if each level alpha needs messages of its own; False if one run serves all levels.
    variants
        The option that says how it asks or averages: comparisons and plans try each of its choices.
    apart
        Whether, with these options, draws that share a run of the simulator leave each other's cost and certificate as
        they are.
    kernels
        Those of `kernels.compiling.LOSS` that a device with many scores runs compiled, loaded before its run.
    promise
        The promise that it keeps whatever is asked for: that of the paper it comes from. None: the one asked for.
    weights
        Which weights it takes with these options: of `scores`, only of `devices` (each score of a device weighs alike),
        of devices by how many scores they `said` to hold, which it then works out and certifies itself, or `none`.
    bears
        Which faults (fields of `Faults`) it bears with these options.
    bearing
        The options to ask for where faults are to be borne, besides the defaults.
    anytime
        The options with which it asks nothing but `Gather`, from those given, so that devices need no rounds; None
        where it has none.
    signed
        Whether devices without rounds must sign what they say.
    private
        Whether nobody may see of a device what its neighbours could not compute: a view then shows no values, nobody is
        told how many scores a device holds, and on a mesh a device has secrets for each run.
    suited
        The options that suit a score, where none were given.
    reveals
        What it tells whom, and what a coalition of devices learns (`privacy.exposure`). None where nobody has said.
    """

    protocol: MethodProtocol
    options: type[Any]
    _: KW_ONLY
    guarantee: str
    needs: Needs
    sends: str
    paper: str
    summary: str
    per_alpha: bool = False
    variants: str = ""
    apart: Callable[[Any], bool] = _never
    kernels: tuple[str, ...] = ()
    requirement: Requirement | None = None
    weights: Callable[[Any], Weights] = lambda options: "none"
    tolerates: Callable[[Any], frozenset[str]] = lambda options: frozenset()
    bearing: Mapping[str, Any] = field(default_factory=dict)
    asynchronous: Callable[[Any], Any] = lambda options: None
    signed: bool = False
    private: bool = False
    suited: Callable[[Score], Mapping[str, Any]] = lambda score: {}
    reveals: Reveals | None = None

    def __getattribute__(self, name: str) -> Any:
        """Return an attribute; what is named by its place is imported now.

        A device of a mesh runs one method, and the modules of the others would take a tenth of its memory.
        """
        value = super().__getattribute__(name)
        if isinstance(value, Place):
            module, part = value.split(".")
            value = getattr(import_module(f"conformesh.protocols.{module}"), part)
            object.__setattr__(self, name, value)
        return value

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
        at("e_dcp.e_dcp"),
        at("e_dcp.EDCP"),
        guarantee="counted",
        needs="neighbours",
        sends="a sketch, then the scores of a window",
        paper="",
        summary="exact pooled threshold by counting: no tuning, no approximation",
        variants="schedule",
        weights=lambda options: "said" if options.entries else "scores",
        asynchronous=lambda options: replace(options, entries=True),
        reveals=at("exposures.e_dcp"),
    ),
    "q-dcp": Method(
        at("q_dcp.q_dcp"),
        at("q_dcp.QDCP"),
        guarantee="assumed, or counted",
        needs="neighbours",
        sends="1 number a round",
        paper="Wen2025",
        summary="smoothed quantile regression by ADMM; right if s0 and epsilon0 are",
        per_alpha=True,
        kernels=("pinball",),
        weights=lambda options: (
            "devices" if options.certify or options.continuation or options.asynchronous else "none"
        ),
        tolerates=lambda options: LOSSES if options.asynchronous else frozenset(),
        bearing={"asynchronous": True},
        reveals=at("exposures.q_dcp"),
    ),
    "h-dcp": Method(
        at("h_dcp.h_dcp"),
        at("h_dcp.HDCP"),
        guarantee="bounded or counted",
        needs="neighbours",
        sends="M numbers a round",
        paper="Wen2025",
        summary="consensus on the histogram of quantised scores; no tuning",
        variants="consensus",
        apart=lambda options: (
            options.rounds is not None and options.range is not None
        ),  # else what is said depends on draws
        weights=lambda options: "devices",
        tolerates=lambda options: LOSSES if options.consensus == "projection" else frozenset(),
        bearing={"consensus": "projection"},
        reveals=at("exposures.h_dcp"),
    ),
    "r-dcp": Method(
        at("r_dcp.r_dcp"),
        at("r_dcp.RDCP"),
        guarantee="counted",
        needs="neighbours",
        sends="everybody's histogram, once",
        paper="",
        summary="holds whatever some devices say: histograms, trimmed",
        weights=lambda options: "said",
        tolerates=lambda options: frozenset({"byzantine"}),
        asynchronous=at("r_dcp.without_agreement"),
        signed=True,
        reveals=at("exposures.r_dcp"),
    ),
    "p-dcp": Method(
        at("p_dcp.p_dcp"),
        at("p_dcp.PDCP"),
        guarantee="counted, or counted with noise",
        needs="neighbours",
        sends="a key, then masked counts",
        paper="",
        summary="private: neighbours learn sums over all devices and nothing else; with epsilon differentially private",
        weights=lambda options: "said",
        private=True,
        suited=at("p_dcp.suited"),
        reveals=at("exposures.p_dcp"),
    ),
    "cp": Method(
        at("baselines.cp"),
        at("baselines.Pooled"),
        guarantee="counted",
        needs="server",
        sends="all scores",
        paper="Vovk2005",
        summary="split CP on the pooled scores",
        requirement=Requirement("exchangeable"),
        reveals=at("exposures.pooled"),
    ),
    "fcp": Method(
        at("baselines.fcp"),
        at("baselines.Pooled"),
        guarantee="counted",
        needs="server",
        sends="all scores",
        paper="Lu2023",
        summary="pooled scores, for a mixture of devices",
        requirement=PUBLISHED,
        reveals=at("exposures.pooled"),
    ),
    "fedcp-qq": Method(
        at("fedcp_qq.fedcp_qq"),
        at("fedcp_qq.FedCPQQ"),
        guarantee="assumed",
        needs="server",
        sends="1 number",
        paper="Humbert2023",
        summary="quantile of the devices' quantiles, ranks chosen in closed form",
        per_alpha=True,
        apart=_always,
        requirement=Requirement("exchangeable"),
        reveals=at("exposures.fedcp_qq"),
    ),
    "wfcp": Method(
        at("wfcp.wfcp"),
        at("wfcp.WFCP"),
        guarantee="counted",
        needs="server",
        sends="M numbers",
        paper="Zhu2024",
        summary="histograms added up on a shared channel, with or without noise",
        apart=lambda options: not options.noise and options.range is not None,
        requirement=PUBLISHED,
        reveals=at("exposures.wfcp"),
    ),
    "local": Method(
        at("baselines.local"),
        at("baselines.LocalOptions"),
        guarantee="counted, own data",
        needs="nothing",
        sends="nothing",
        paper="Vovk2005",
        summary="each device on its own",
        apart=_always,
        requirement=Requirement("own"),
        reveals=at("exposures.local"),
    ),
    "average": Method(
        at("baselines.average"),
        at("baselines.Averaged"),
        guarantee="none",
        needs="neighbours",
        sends="1 number a round",
        paper="",
        summary="mean of local quantiles",
        per_alpha=True,
        requirement=PUBLISHED,
        reveals=at("exposures.average"),
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
    """Return every way to run these methods, by default all; options that were given leave only what goes with them."""
    given, ways = options or {}, []
    for name in dict.fromkeys(METHODS if methods is None else methods):
        entry = get_method(name)
        values = entry.choices(entry.variants)
        if entry.variants in given:
            values = tuple(value for value in values if value == given[entry.variants])
        elif given:
            mine = {key: value for key, value in given.items() if key in entry.option_names()}
            values = tuple(v for v in values if _goes_with(name, {**mine, entry.variants: v})) or values
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


def make_options(name: str, given: Mapping[str, Any]) -> Any:
    """Build a method's options from keywords, in their types; an unknown one is an error that names who has it."""
    method = get_method(name)
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


FUNCTIONS = ("calibrate", "control", "p_values", "quantiles", "detect")  # that take options of a method
LEVELS = ("alpha", "alphas", "risk", "risks", "fdr")  # words for how often, or how much, a result may err


def check_keywords(function: str, method: str, given: Mapping[str, Any]) -> None:
    """Refuse keywords that are no option of any method, and say what to write instead."""
    refuse_confidence(given)
    known = {f.name for f in fields(get_method(method).options)} if given else set()
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
    arguments = {name: [*signature(getattr(package, name)).parameters] for name in FUNCTIONS}
    own = next((name for name in LEVELS if name in arguments[function]), None)
    if key in LEVELS and own is not None:
        return f"it takes {own}=, one number" + ("" if own == "fdr" else f" or a list such as {own}=[0.05, 0.1]")
    if key in LEVELS and function == "quantiles":
        return "it takes q=, the parts of the data, such as q=[0.25, 0.5]"
    if key == "alpha":
        return "p-values belong to every alpha: p_values(...).sets(alpha) returns the prediction sets of one"
    if owners := [name for name in FUNCTIONS if key in arguments[name]]:
        return f"use {' or '.join(f'{name}(..., {key}=...)' for name in owners)}"
    close = closest(key, [name for name in arguments[function] if name != "options"])
    return f"did you mean {close!r}?" if close else ""


def suited_options(name: str, given: Mapping[str, Any], score: Score | None) -> dict[str, Any]:
    """Return the options that were given and, where others suit a score better than the defaults, these."""
    return {**(get_method(name).suited(score) if score is not None else {}), **given}


def requirement_of(name: str, asked: Requirement = DEFAULT) -> Requirement:
    """Return the requirement that a method keeps: the one asked for, or its own, beside which it allows no other."""
    own = get_method(name).requirement
    if own is not None and asked not in (DEFAULT, own):
        raise ValueError(
            f"method {name!r} keeps the guarantee it was published with (mixture {own.mixture!r}, rank_rule "
            f"{own.rank_rule!r}), and no other; use e-dcp for mixture {asked.mixture!r}, rank_rule {asked.rank_rule!r}"
        )
    return own or asked


def refuse_faults(name: str, options: Any, faults: Faults | None) -> None:
    """Refuse faults that a method does not bear with these options, in a sentence."""
    entry = get_method(name)
    for fault in sorted(faults.names if faults is not None else ()):
        if fault not in entry.tolerates(options):
            others = [_bearing(other) for other in METHODS if fault in METHODS[other].tolerates(_borne(other))]
            instead = f"; use {' or '.join(others)}, which bear it" if others else ""
            raise ValueError(
                f"method {name!r} with these options needs every message, honest and in its round, and the faults have "
                f"{fault}={getattr(faults, fault)!r}{instead}"
            )


def _borne(name: str) -> Any:
    """Return the options with which a method bears the most."""
    return make_options(name, METHODS[name].bearing)


def _bearing(name: str) -> str:
    given = [f"{key}={value!r}" for key, value in METHODS[name].bearing.items()]
    return f"{name} with {', '.join(given)}" if given else name


def run_method(
    name: str, block: Block, samples: WeightedScores, options: Any, faults: Faults | None = None, *, sealed: bool = True
) -> Protocol[Answers]:
    """Run a method with the weights that the block's promise gives the scores; its certificates say about whom.

    `sealed` says whether nobody can change what it passes on for others.
    """
    return (yield from flooded(_weighted_method(name, block, samples, options), block, attack_of(faults), sealed))


def attack_of(faults: Faults | None) -> Any:
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
    chosen = get_method(name).asynchronous(options)
    if chosen is None:
        able = [other for other, entry in METHODS.items() if entry.asynchronous(make_options(other, {})) is not None]
        raise ValueError(f"method {name!r} needs rounds; use mode rounds, or without rounds {' or '.join(able)}")
    return chosen


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
