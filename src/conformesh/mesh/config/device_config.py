"""What a device of a mesh knows: who it is, who the others are, how to reach them and what was agreed on."""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Iterable
from dataclasses import MISSING, dataclass, field, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from conformesh.common.names import device_names, listed, natural_order, unknown
from conformesh.graph.network import Network
from conformesh.guarantee import Groups, Guarantee, Mixture, Sides, Weighting
from conformesh.kernels.ranks import AUTO, GIVEN, Requirement, check_shares, exact_alpha, make_requirement
from conformesh.mesh.config import MODES, ON_LOST
from conformesh.mesh.config.certificate_names import check_device_name
from conformesh.mesh.config.endpoints import parse_endpoint
from conformesh.mesh.config.roster import Roster
from conformesh.methods import get_method, make_options, requirement_of, without_rounds
from conformesh.online.counters import CountingLearner
from conformesh.peer.rosters import FIELD, roster_words
from conformesh.peer.settings import Settings
from conformesh.scores import Score, get_score

SHORTEST_PULSE, LONGEST_PULSE = 0.1, 3600.0  # seconds


@dataclass(frozen=True)
class Neighbour:
    """A device at the other end of an edge, and its ``host:port``."""

    name: str
    endpoint: str


@dataclass(frozen=True)
class DeviceConfig:
    """The content of ``device.toml`` and of the roster beside it; every value is checked when one is made.

    Attributes
    ----------
    mesh
        Id of the mesh, random and the same in every folder.
    name, listen
        This device, and the ``host:port`` it listens on.
    devices, edges
        The roster in row order and the whole graph: everybody knows the map.
    endpoints
        The ``host:port`` at which each device is reached.
    mode
        Whether devices talk in `rounds`, each waiting for its neighbours, or at any time (`anytime`), nobody waiting.
    method, alpha, options
        What is run, alpha as the user wrote it, and the options that differ from the defaults.
    alphas
        All levels of a run, alpha among them, where there are several; empty: alpha alone.
    groups, group_column
        The groups that have thresholds of their own, each row being in one, and the column of the score file that names
        them. Names of other devices do not count.
    lower_share
        Which part of alpha the lower side of intervals may miss, where the two sides have thresholds of their own; the
        score file then has the columns `lower` and `upper`. None: one score.
    weight_column, weight_bound
        The column of the score file with how much likelier a row is among new examples, and the most that this can be.
    mixture, rank_rule, pac_confidence, shares
        The mixture of devices that the guarantee is for and the rule for the rank, as in `calibrate`; shares by device
        where the mixture is `given`.
    score, score_options, model
        Which score the numbers are, and the digest of the model they come from, where these were said.
    scores
        The file of this device's own scores, relative to the folder.
    patience, retry
        Seconds a device waits for a neighbour before it gives up, and between two attempts to reach one.
    pulse
        Seconds between two pulses, by which devices tell each other how they are; 0 for none.
    online
        How devices learn from labels that come later: `learning`, `local` and `bound`, and perhaps `scale` and `alarm`,
        as in `Counting`; empty where they do not.
    on_lost
        What a lost neighbour means: `fail`, or `continue` without it.
    quorum
        With `continue`, how many devices must be left; None is the smallest number above half of them.
    insecure
        True for links without certificates, for experiments on one machine.
    ca, cert, key
        The files of the authority's certificate, this device's certificate and its private key.
    revoked
        Names and serials of certificates that are no longer trusted.
    folder
        Where it was read from; not written.
    roster
        Where devices, edges, endpoints and revoked come from; None in a folder without one, whose map is in
        ``device.toml`` and has number 0.
    """

    mesh: str
    name: str
    listen: str
    devices: tuple[str, ...]
    edges: tuple[tuple[str, str], ...]
    endpoints: dict[str, str]
    mode: Literal["rounds", "anytime"] = "rounds"
    method: str = "e-dcp"
    alpha: str = "0.1"
    alphas: tuple[str, ...] = ()
    groups: tuple[str, ...] = ()
    group_column: str = "group"
    lower_share: str | None = None
    weight_column: str | None = None
    weight_bound: float | None = None
    mixture: str = "sizes"
    rank_rule: str = AUTO
    pac_confidence: str | None = None
    shares: dict[str, str] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)
    score: str | None = None
    score_options: dict[str, Any] = field(default_factory=dict)
    model: str | None = None
    scores: str = "scores.csv"
    patience: float = 30.0
    retry: float = 0.2
    pulse: float = 1.0
    online: dict[str, float] = field(default_factory=dict)
    on_lost: Literal["fail", "continue"] = "fail"
    quorum: int | None = None
    insecure: bool = False
    ca: str = "ca.pem"
    cert: str = "device.pem"
    key: str = "device.key"
    revoked: tuple[str, ...] = ()
    folder: Path = field(default=Path(), compare=False)
    roster: Roster | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        _check_roster(self)
        _check_values(self)
        exact_alpha(self.alpha)
        row = {name: k for k, name in enumerate(self.devices)}
        pairs = {(a, b) if row[a] < row[b] else (b, a) for a, b in self.edges}
        object.__setattr__(self, "edges", tuple(sorted(pairs, key=lambda edge: (row[edge[0]], row[edge[1]]))))
        chosen = make_options(self.method, self.options)
        object.__setattr__(self, "options", {name: getattr(chosen, name) for name in self.options})
        if self.mode == "anytime":
            without_rounds(self.method, chosen)
            if self.insecure and get_method(self.method).signs_entries:
                raise ValueError(
                    f"method {self.method!r} without rounds signs what devices say, with their certificates, and this "
                    "mesh is insecure; make one with certificates"
                )
        if self.is_private:
            _check_private(self, chosen)
        _check_parts(self)
        if self.score is None and self.score_options:
            raise ValueError(f"score_options {', '.join(self.score_options)} need a score that they belong to")
        _ = (
            self.network,
            self.chosen_score,
            self.requirement,
            self.rule,
        )  # what is wrong with them is an error now, not later

    @cached_property
    def network(self) -> Network:
        """The graph, rows in the order of `devices`."""
        return Network.from_pairs(self.devices, self.edges, name=f"mesh {self.mesh[:8]}")

    @property
    def row(self) -> int:
        """The row of this device."""
        return self.devices.index(self.name)

    @property
    def neighbours(self) -> tuple[Neighbour, ...]:
        """The devices this one talks to, in ascending row."""
        names = [self.devices[k] for k in self.network.neighbours(self.row).tolist()]
        return tuple(Neighbour(name, self.endpoints[name]) for name in names)

    @property
    def chosen_score(self) -> Score | None:
        """The nonconformity score the numbers are, where it was said."""
        try:
            return None if self.score is None else get_score(self.score, **self.score_options)
        except TypeError as problem:
            raise ValueError(str(problem)) from None

    @property
    def requirement(self) -> Requirement:
        """What the method requires of ranks: what was asked for, or the requirement of the method's paper."""
        return requirement_of(self.method, self._asked)

    @property
    def guarantee(self) -> Guarantee:
        """What was asked for, as the result says it."""
        asked = self._asked
        shares = None if asked.shares is None else {**asked.shares}
        bound = self.weight_bound
        return Guarantee(
            alphas=tuple(dict.fromkeys(map(exact_alpha, (self.alpha, *self.alphas)))),
            groups=Groups(natural_order(self.groups), column=self.group_column) if self.groups else None,
            sides=None if self.lower_share is None else Sides(exact_alpha(self.lower_share, "lower_share")),
            weighting=None if bound is None else Weighting(float(bound)),
            mixture=Mixture(asked.mixture, shares),
            rank_rule=asked.rank_rule,
            pac_confidence=asked.pac_confidence,
        )

    @property
    def _asked(self) -> Requirement:
        if bool(self.shares) != (self.mixture == GIVEN):
            raise ValueError(f"shares by device go with mixture = {GIVEN!r}, and with no other, got {self.mixture!r}")
        asked = make_requirement(self.shares or self.mixture, self.rank_rule, self.pac_confidence)
        check_shares(asked, self.devices)
        return asked

    @property
    def rule(self) -> CountingLearner | None:
        """How devices learn online, where they do."""
        if not self.online:
            return None
        known = {one.name: one.default is MISSING for one in fields(CountingLearner) if one.name != "alpha"}
        needed = [name for name, must in known.items() if must]
        for name in self.online:
            if name not in known:
                raise ValueError(unknown("key in [online]", name, known))
        missing = [name for name in needed if name not in self.online]
        if missing:
            raise ValueError(f"[online] needs {', '.join(needed)}, and lacks {', '.join(missing)}")
        return CountingLearner(exact_alpha(self.alpha), **{name: float(value) for name, value in self.online.items()})

    @property
    def settings(self) -> Settings:
        """How the device behaves towards its neighbours."""
        quorum = self.quorum
        if quorum is None and self.on_lost == "continue" and self.is_private:
            quorum = min(max(len(self.devices) // 2 + 1, self._fewest_private), len(self.devices))
        return Settings(retry=self.retry, patience=self.patience, on_lost=self.on_lost, quorum=quorum)

    @property
    def has_parts(self) -> bool:
        """Whether there is more than one threshold, or rows have more than a score."""
        guarantee = self.guarantee
        parts = (guarantee.groups, guarantee.sides, guarantee.weighting)
        return len(guarantee.alphas) > 1 or any(part is not None for part in parts)

    @property
    def is_private(self) -> bool:
        """Whether devices learn sums over all of them and nothing else."""
        return get_method(self.method).private

    @property
    def has_epsilon(self) -> bool:
        """Whether these sums have noise besides."""
        return self.is_private and self.options.get("epsilon") is not None

    @property
    def _fewest_private(self) -> int:
        """How many devices a private run must have: a device is hidden by the honest ones beside the coalition."""
        options = make_options(self.method, self.options)
        return int((options.honest or 2) + options.coalition)

    @property
    def roster_number(self) -> int:
        """The number of the roster; 0 where the map is in ``device.toml``."""
        return 0 if self.roster is None else self.roster.number

    def lowest(self, name: str) -> int:
        """Return the lowest number of a device's certificates that is let in."""
        return 1 if self.roster is None else self.roster.lowest.get(name, 1)

    def under(self, roster: Roster) -> DeviceConfig:
        """Return the configuration under another roster of this mesh, which must have this device."""
        if roster.mesh != self.mesh:
            raise ValueError(f"roster {roster.number} is of mesh {roster.mesh}, and this device is of {self.mesh}")
        if self.name not in roster.devices:
            raise ValueError(f"{self.name} was removed: roster {roster.number} has {listed(roster.devices)}")
        own = {name: at for name, at in self.own_endpoints().items() if name in roster.devices}
        return replace(self, **{**map_of(roster), "endpoints": {**roster.endpoints, **own}}, roster=roster)

    def own_endpoints(self) -> dict[str, str]:
        """Return where this device reaches others that the roster has elsewhere; all where there is no roster."""
        told = {} if self.roster is None else self.roster.endpoints
        return {name: at for name, at in self.endpoints.items() if told.get(name) != at}

    def path(self, what: Literal["scores", "ca", "cert", "key"]) -> Path:
        """Return where one of this device's files is."""
        return self.folder / str(getattr(self, what))

    def agreement(self) -> dict[str, str]:
        """Return everything that must be the same on every device before the first message, as short texts."""
        chosen, requirement = make_options(self.method, self.options), self.requirement
        return {
            **self.settings.agreement(len(self.devices)),
            "mesh": self.mesh,
            FIELD: roster_words(self.roster_number, self._map_digest()),
            "mode": self.mode,
            "method": self.method,
            "alpha": _levels_in_words(self.guarantee),
            **_parts_in_words(self.guarantee),
            "requirement": str(requirement),
            "shares": _digest(f"{name} {share}" for name, share in sorted((requirement.shares or {}).items())),
            **{f"option {f.name}": _in_words(getattr(chosen, f.name)) for f in fields(chosen)},
            "score": score_in_words(self.chosen_score),
            "model": "not said" if self.model is None else self.model[:16],
            "links": "insecure" if self.insecure else "certificates",
            **({} if self.rule is None else {"online": str(self.rule)}),
        }

    def _map_digest(self) -> str:
        if self.roster is not None:
            return self.roster.digest
        return _digest([*self.devices, *(f"{a} {b}" for a, b in self.edges)])


def map_of(roster: Roster) -> dict[str, Any]:
    """Return what a roster says instead of ``device.toml``."""
    return {
        "devices": roster.devices,
        "edges": roster.edges,
        "endpoints": roster.endpoints,
        "revoked": roster.distrusted,
    }


def _check_roster(config: DeviceConfig) -> None:
    device_names(config.devices)
    for name in config.devices:
        check_device_name(name)
    by_folder = {name.lower(): name for name in config.devices}
    alike = [name for name in config.devices if by_folder[name.lower()] != name]
    if alike:
        raise ValueError(
            f"devices {alike[0]!r} and {by_folder[alike[0].lower()]!r} differ only in upper and lower case"
        )
    if config.name not in config.devices:
        raise ValueError(f"name {config.name!r} is none of the devices {listed(config.devices)}")
    known = {*config.devices}
    for edge in config.edges:
        for end in edge:
            if end not in known:
                raise ValueError(f"an edge names {end!r}, which is none of the devices {listed(config.devices)}")
    for name, endpoint in config.endpoints.items():
        if name not in known:
            raise ValueError(f"endpoints names {name!r}, which is none of the devices {listed(config.devices)}")
        parse_endpoint(endpoint, f"endpoint of {name}")
    missing = [name for name in config.devices if name not in config.endpoints]
    if missing:
        raise ValueError(f"endpoints lacks {listed(missing)}; every device needs its host:port")
    gone = [name for name in config.revoked if name in known]
    if gone:
        raise ValueError(f"device {gone[0]!r} is revoked and still one of the devices; take it out of one of the two")


def _check_values(config: DeviceConfig) -> None:
    if not re.fullmatch(r"[0-9a-f]{8,64}", config.mesh):
        raise ValueError(
            f"mesh must be 8 to 64 hexadecimal digits, as `conformesh mesh init` makes, got {config.mesh!r}"
        )
    parse_endpoint(config.listen, "listen")
    for what in ("patience", "retry"):
        value = getattr(config, what)
        if not (value > 0 and math.isfinite(value)):
            raise ValueError(f"{what} must be a positive number of seconds, got {value}")
    if not (config.pulse == 0 or SHORTEST_PULSE <= config.pulse <= LONGEST_PULSE):
        raise ValueError(
            f"pulse must be 0 for none, or from {SHORTEST_PULSE:g} to {LONGEST_PULSE:g} seconds, got {config.pulse}"
        )
    if config.mode not in MODES:
        raise ValueError(f"mode must be {' or '.join(map(repr, MODES))}, got {config.mode!r}")
    if config.on_lost not in ON_LOST:
        raise ValueError(f"on_lost must be {' or '.join(map(repr, ON_LOST))}, got {config.on_lost!r}")
    if config.quorum is not None and type(config.quorum) is not int:
        raise ValueError(f"quorum must be a whole number of devices, got {config.quorum!r}")
    config.settings.needed(len(config.devices))  # refuses a quorum that is too small or too large
    for what in ("scores", "ca", "cert", "key"):
        if not str(getattr(config, what)).strip():
            raise ValueError(f"{what} must name a file, got an empty text")
    if config.model is not None and not re.fullmatch(r"[\w:.+/=-]{1,128}", config.model):
        raise ValueError(f"model must be the digest of a model, 1 to 128 letters and digits, got {config.model!r}")


def _check_private(config: DeviceConfig, options: Any) -> None:
    """Refuse what would tell of single devices beside a method that does not."""
    method = f"method {config.method!r} tells sums over all devices and nothing else"
    if config.insecure:
        raise ValueError(
            f"{method}, by keys that devices sign with their certificates, and this mesh is insecure; make one with "
            "certificates"
        )
    if config.on_lost == "continue" and options.epsilon is None:
        raise ValueError(
            f"{method}, and the sum over those who are left would tell that of who is lost; use on_lost 'fail', or "
            "epsilon"
        )
    if config.online:
        raise ValueError(
            f"{method}, and [online] tells everybody how many labels each device has missed, and raises drift alarms "
            "that others hear; leave it out"
        )
    if config.on_lost == "continue" and config.quorum is not None and config.quorum < config._fewest_private:
        raise ValueError(
            f"{method}, which takes {config._fewest_private} devices: {options.honest or 2} honest ones beside a "
            f"coalition of {options.coalition}; use a quorum of as many or more, got {config.quorum}"
        )


def _check_parts(config: DeviceConfig) -> None:
    """Refuse levels, groups, sides and weights that do not fit together, or that the mode or the method cannot have."""
    if config.alphas and exact_alpha(config.alpha) not in map(exact_alpha, config.alphas):
        raise ValueError(f"alphas are all levels of a run, and must have alpha among them, {config.alpha}")
    if len({*config.groups}) < len(config.groups) or not all(name.strip() for name in config.groups):
        raise ValueError(f"groups must be different names, got {', '.join(map(repr, config.groups))}")
    if (config.weight_column is None) != (config.weight_bound is None):
        raise ValueError("weight_column and weight_bound go together: the largest weight must be known to all devices")
    if config.weight_bound is not None and not 0 < config.weight_bound < math.inf:
        raise ValueError(f"weight_bound must be a number above 0, got {config.weight_bound}")
    if not config.has_parts:
        return
    if config.mode == "anytime":
        raise ValueError(
            "several levels, groups, sides and weights need mode 'rounds': without rounds the thresholds of every "
            "report would have to add up over whichever devices have reported, which is proven for one threshold only"
        )
    if config.is_private:
        raise ValueError(
            f"method {config.method!r} on a mesh counts every score of an epoch once, for one threshold; leave out "
            "alphas, groups, lower_share and weight_column"
        )
    if config.online:
        raise ValueError("[online] moves one threshold; leave out alphas, groups, lower_share and weight_column")
    from conformesh.pipeline.solver import (  # which a program that only asks nodes need not hold in memory
        MethodRun,
        refuse,
    )

    refuse(config.guarantee, MethodRun(config.method, config.options), len(config.devices))


def _levels_in_words(guarantee: Guarantee) -> str:
    levels = ", ".join(map(str, guarantee.alphas))
    return levels if len(levels) < 60 else f"{len(guarantee.alphas)} levels, {_digest(map(str, guarantee.alphas))}"


def _parts_in_words(guarantee: Guarantee) -> dict[str, str]:
    """Return what all devices must be configured with alike, where there is more than one column."""
    found = {}
    if guarantee.groups is not None:
        found["groups"] = f"{len(guarantee.groups.names)} groups, {_digest(guarantee.groups.names)}"
    if guarantee.sides is not None:
        found["sides"] = f"lower side {guarantee.sides.lower_share}"
    if guarantee.weighting is not None:
        found["weights"] = f"at most {guarantee.weighting.bound!r}"
    return found


def score_in_words(score: Score | None) -> str:
    """Return a score with its options as one short text."""
    return "not said" if score is None else f"{score.name} {_in_words(score.options())}".strip()


def _digest(words: Iterable[str]) -> str:
    return hashlib.sha256("\n".join(words).encode()).hexdigest()[:16]


def _in_words(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key}={_in_words(item)}" for key, item in sorted(value.items()))
    if isinstance(value, tuple):
        return " ".join(map(_in_words, value))
    return "none" if value is None else value if isinstance(value, str) else repr(value)
