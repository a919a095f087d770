"""The configuration of a device: its name, the map of the mesh, and its settings. Every value is checked.

What all devices must configure alike is the `agreement`, which neighbours compare before the first message.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

from conformesh.common.names import device_names, list_names, natural_order
from conformesh.graph.network import Network
from conformesh.guarantee import Groups, Guarantee, Mixture, Sides, Weighting
from conformesh.kernels.ranks import GIVEN, Requirement, check_shares, exact_alpha, make_requirement
from conformesh.mesh.config.certificate_names import check_device_name
from conformesh.mesh.config.endpoints import parse_endpoint
from conformesh.mesh.config.roster import Roster
from conformesh.mesh.config.settings import (
    SECTIONS,
    GuaranteeSettings,
    OnlineSettings,
    RunSettings,
    ScoreSettings,
    SecuritySettings,
    TimingSettings,
    change_sections,
    check_section,
)
from conformesh.methods import get_method, make_options, method_options_for_async_mode, requirement_of
from conformesh.online.counters import CountingLearner
from conformesh.peer.rosters import FIELD, roster_words
from conformesh.peer.settings import Settings
from conformesh.scores import Score, get_score

_NUMBER_OUTPUTS = (("prediction",), ("prediction", "scale"))  # columns of outputs for regression


@dataclass(frozen=True)
class Neighbour:
    """A device at the other end of an edge, and its ``host:port``."""

    name: str
    endpoint: str


@dataclass(frozen=True)
class MeshMap:
    """Who is in the mesh and how to reach them. Every device knows the whole map; it usually comes from the roster."""

    devices: tuple[str, ...]
    edges: tuple[tuple[str, str], ...]
    endpoints: dict[str, str]
    revoked: tuple[str, ...] = ()

    @classmethod
    def of_roster(cls, roster: Roster, endpoints: Mapping[str, str] = MappingProxyType({})) -> MeshMap:
        """Return the map of a roster; `endpoints` are those that this device reaches elsewhere."""
        local = {name: at for name, at in endpoints.items() if name in roster.devices}
        return cls(roster.devices, roster.edges, {**roster.endpoints, **local}, roster.revoked_names)

    def sort_edges(self) -> MeshMap:
        """Return the map with every edge once, in the order of rows: two files that list them differently agree."""
        row = {name: k for k, name in enumerate(self.devices)}
        pairs = {(a, b) if row[a] < row[b] else (b, a) for a, b in self.edges}
        return replace(self, edges=tuple(sorted(pairs, key=lambda edge: (row[edge[0]], row[edge[1]]))))


@dataclass(frozen=True)
class DeviceConfig:
    """The content of ``device.toml`` and of the roster beside it; every value is checked when one is made.

    Attributes
    ----------
    mesh
        Id of the mesh, random and the same in every folder.
    name, listen
        This device, and the ``host:port`` it listens on.
    map
        Devices, edges, endpoints and revoked certificates.
    run, guarantee, scores, timing, security, online
        The sections of ``device.toml``, as in `settings`; `online` is None where devices do not learn from labels.
    folder
        Where it was read from; not written.
    roster
        Where the map comes from; None in a folder without one, whose map is in ``device.toml`` and has number 0.
    """

    mesh: str
    name: str
    listen: str
    map: MeshMap
    run: RunSettings = field(default_factory=RunSettings)
    guarantee: GuaranteeSettings = field(default_factory=GuaranteeSettings)
    scores: ScoreSettings = field(default_factory=ScoreSettings)
    timing: TimingSettings = field(default_factory=TimingSettings)
    security: SecuritySettings = field(default_factory=SecuritySettings)
    online: OnlineSettings | None = None
    folder: Path = field(default=Path(), compare=False)
    roster: Roster | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        _check_map(self.name, self.map)
        _check_values(self)
        exact_alpha(self.guarantee.alpha)
        object.__setattr__(self, "map", self.map.sort_edges())
        chosen = make_options(self.run.method, self.run.options)
        # In the types of the method: 10 and 10.0 are the same option, here and in the agreement.
        options = {name: getattr(chosen, name) for name in self.run.options}
        object.__setattr__(self, "run", replace(self.run, options=options))
        if self.run.mode == "asynchronous":
            method_options_for_async_mode(self.run.method, chosen)
            if self.security.insecure and get_method(self.run.method).signs_entries:
                raise ValueError(
                    f"method {self.run.method!r} without rounds signs what devices say, with their certificates, and "
                    "this mesh is insecure; make one with certificates"
                )
        if self.is_private:
            _check_privacy(self, chosen)
        _check_time_uniform(self)
        if self.is_private:
            from conformesh.protocols.p_dcp import check_requirement  # which devices with other methods do not need

            check_requirement(replace(self.requirement, hides_example=self.guarantee.adapt is not None), chosen)
        _check_parts(self)
        if self.scores.score is None and self.scores.score_options:
            raise ValueError(f"score_options {', '.join(self.scores.score_options)} need a score that they belong to")
        # Evaluated now: what is wrong with them is an error when the file is read, not in the middle of a run.
        _ = (self.network, self.chosen_score, self.requirement, self.learner)

    @property
    def devices(self) -> tuple[str, ...]:
        """All devices of the mesh, in row order."""
        return self.map.devices

    @property
    def edges(self) -> tuple[tuple[str, str], ...]:
        """The whole graph, each edge once."""
        return self.map.edges

    @property
    def endpoints(self) -> dict[str, str]:
        """The ``host:port`` at which each device is reached."""
        return self.map.endpoints

    @property
    def revoked(self) -> tuple[str, ...]:
        """Names and serials of certificates that are no longer trusted."""
        return self.map.revoked

    def with_settings(self, **settings: Any) -> DeviceConfig:
        """Return the configuration with other settings, by the names of `SETTINGS`."""
        return replace(self, **change_sections(settings, {name: getattr(self, name) for name in SECTIONS}))

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
            return None if self.scores.score is None else get_score(self.scores.score, **self.scores.score_options)
        except TypeError as problem:
            raise ValueError(str(problem)) from None

    @property
    def requirement(self) -> Requirement:
        """What the method requires of ranks: what was asked for, or the requirement of the method's paper."""
        return requirement_of(self.run.method, self._requested_ranks)

    @property
    def chosen_guarantee(self) -> Guarantee:
        """What was asked for, as the result says it."""
        given, asked = self.guarantee, self._requested_ranks
        groups, lower, bound = given.groups, given.lower_share, given.weight_bound
        return Guarantee(
            alphas=tuple(dict.fromkeys(map(exact_alpha, (given.alpha, *given.alphas)))),
            groups=Groups(natural_order(groups), column=self.scores.group_column) if groups else None,
            sides=None if lower is None else Sides(exact_alpha(lower, "lower_share")),
            weighting=None if bound is None else Weighting(float(bound)),
            mixture=Mixture(asked.mixture, None if asked.shares is None else {**asked.shares}, asked.mixture_bound),
            rank_rule=asked.rank_rule,
            pac_confidence=asked.pac_confidence,
            time_uniform=asked.time_uniform,
            adapt=self.adaptation,
        )

    @property
    def adaptation(self) -> Any:
        """How scores adapt to the rows of a device (`scores.adapt`); None where they do not."""
        given = self.guarantee
        if given.adapt is None:
            return None
        from conformesh.scores.adapt import Even, get_adaptation  # which other devices need not hold in memory

        try:
            found = get_adaptation(given.adapt, **given.adapt_options)
        except TypeError as problem:
            raise ValueError(f"guarantee.adapt_options: {problem}") from None
        if isinstance(found, Even):
            is_number = self.scores.output_columns in _NUMBER_OUTPUTS
            return found.for_task("regression" if is_number else "classification")
        return found

    @property
    def classes(self) -> tuple[str, ...] | None:
        """The classes, where scores adapt: the columns of outputs are called like them."""
        adapt = self.adaptation
        return None if adapt is None or adapt.task != "classification" else self.scores.output_columns

    @property
    def _requested_ranks(self) -> Requirement:
        given = self.guarantee
        if bool(given.shares) != (given.mixture == GIVEN):
            raise ValueError(f"shares by device go with mixture = {GIVEN!r}, and with no other, got {given.mixture!r}")
        # A mesh computes thresholds again whenever scores change, so a confidence holds at all looks unless the
        # operator says that there is one.
        always = given.pac_confidence is not None if given.time_uniform is None else given.time_uniform
        asked = make_requirement(
            given.shares or given.mixture,
            given.rank_rule,
            given.pac_confidence,
            time_uniform=always,
            mixture_bound=given.mixture_bound,
        )
        check_shares(asked, self.devices)
        return asked

    @property
    def learner(self) -> CountingLearner | None:
        """How devices learn online, where they do."""
        if self.online is None:
            return None
        return CountingLearner(exact_alpha(self.guarantee.alpha), **asdict(self.online))

    @property
    def peer_settings(self) -> Settings:
        """How the device behaves towards its neighbours."""
        quorum = self.run.quorum
        if quorum is None and self.run.on_lost == "continue" and self.is_private:
            quorum = min(max(len(self.devices) // 2 + 1, self._least_devices), len(self.devices))
        return Settings(retry=self.timing.retry, patience=self.timing.patience, on_lost=self.run.on_lost, quorum=quorum)

    @property
    def has_parts(self) -> bool:
        """Whether there is more than one threshold, or rows have more than a score."""
        return self.has_several_thresholds or self.chosen_guarantee.adapt is not None

    @property
    def has_several_thresholds(self) -> bool:
        """Whether there are several levels, groups, sides or weights."""
        guarantee = self.chosen_guarantee
        parts = (guarantee.groups, guarantee.sides, guarantee.weighting)
        return len(guarantee.alphas) > 1 or any(part is not None for part in parts)

    @property
    def is_private(self) -> bool:
        """Whether devices learn sums over all of them and nothing else."""
        return get_method(self.run.method).private

    @property
    def has_epsilon(self) -> bool:
        """Whether these sums have noise besides."""
        return self.is_private and self.run.options.get("epsilon") is not None

    @property
    def _least_devices(self) -> int:
        """How many devices a private run must have: a device is hidden by the honest ones beside the coalition."""
        options = make_options(self.run.method, self.run.options)
        return int((options.honest or 2) + options.coalition)

    @property
    def roster_number(self) -> int:
        """The number of the roster; 0 where the map is in ``device.toml``."""
        return 0 if self.roster is None else self.roster.number

    def lowest_certificate(self, name: str) -> int:
        """Return the lowest number of a device's certificates that is let in."""
        return 1 if self.roster is None else self.roster.lowest.get(name, 1)

    def with_roster(self, roster: Roster) -> DeviceConfig:
        """Return the configuration under another roster of this mesh, which must have this device."""
        if roster.mesh != self.mesh:
            raise ValueError(f"roster {roster.number} is of mesh {roster.mesh}, and this device is of {self.mesh}")
        if self.name not in roster.devices:
            raise ValueError(f"{self.name} was removed: roster {roster.number} has {list_names(roster.devices)}")
        return replace(self, map=MeshMap.of_roster(roster, self.endpoint_overrides()), roster=roster)

    def endpoint_overrides(self) -> dict[str, str]:
        """Return where this device reaches others that the roster has elsewhere; all where there is no roster."""
        told = {} if self.roster is None else self.roster.endpoints
        return {name: at for name, at in self.endpoints.items() if told.get(name) != at}

    def path(self, what: Literal["scores", "ca", "cert", "key"]) -> Path:
        """Return where one of this device's files is."""
        return self.folder / (self.scores.file if what == "scores" else getattr(self.security, what))

    def agreement(self) -> dict[str, str]:
        """Return everything that must be the same on every device before the first message, as short texts."""
        chosen, requirement = make_options(self.run.method, self.run.options), self.requirement
        return {
            **self.peer_settings.agreement(len(self.devices)),
            "mesh": self.mesh,
            FIELD: roster_words(self.roster_number, self._map_digest()),
            "mode": self.run.mode,
            "method": self.run.method,
            "alpha": _levels_in_words(self.chosen_guarantee),
            **_parts_in_words(self.chosen_guarantee),
            **_outputs_in_words(self),
            "requirement": str(requirement),
            "shares": _digest(f"{name} {share}" for name, share in sorted((requirement.shares or {}).items())),
            **{f"option {f.name}": _value_in_words(getattr(chosen, f.name)) for f in fields(chosen)},
            "score": score_in_words(self.chosen_score),
            "model": "not said" if self.scores.model is None else self.scores.model[:16],
            "links": "insecure" if self.security.insecure else "certificates",
            **({} if self.learner is None else {"online": str(self.learner)}),
        }

    def _map_digest(self) -> str:
        if self.roster is not None:
            return self.roster.digest
        return _digest([*self.devices, *(f"{a} {b}" for a, b in self.edges)])


def _check_map(name: str, map: MeshMap) -> None:
    device_names(map.devices)
    for device in map.devices:
        check_device_name(device)
    by_folder = {one.lower(): one for one in map.devices}  # some file systems ignore case
    alike = [one for one in map.devices if by_folder[one.lower()] != one]
    if alike:
        raise ValueError(
            f"devices {alike[0]!r} and {by_folder[alike[0].lower()]!r} differ only in upper and lower case"
        )
    if name not in map.devices:
        raise ValueError(f"name {name!r} is none of the devices {list_names(map.devices)}")
    known = {*map.devices}
    for edge in map.edges:
        for end in edge:
            if end not in known:
                raise ValueError(f"an edge names {end!r}, which is none of the devices {list_names(map.devices)}")
    for device, endpoint in map.endpoints.items():
        if device not in known:
            raise ValueError(f"endpoints names {device!r}, which is none of the devices {list_names(map.devices)}")
        parse_endpoint(endpoint, f"endpoint of {device}")
    missing = [one for one in map.devices if one not in map.endpoints]
    if missing:
        raise ValueError(f"endpoints lacks {list_names(missing)}; every device needs its host:port")
    gone = [one for one in map.revoked if one in known]
    if gone:
        raise ValueError(f"device {gone[0]!r} is revoked and still one of the devices; take it out of one of the two")


def _check_values(config: DeviceConfig) -> None:
    if not re.fullmatch(r"[0-9a-f]{8,64}", config.mesh):
        raise ValueError(
            f"mesh must be 8 to 64 hexadecimal digits, as `conformesh mesh init` makes, got {config.mesh!r}"
        )
    parse_endpoint(config.listen, "listen")
    for section in SECTIONS:
        if (values := getattr(config, section)) is not None:
            check_section(values)
    config.peer_settings.needed(len(config.devices))  # refuses a quorum that is too small or too large


def _check_privacy(config: DeviceConfig, options: Any) -> None:
    """Refuse what would tell of single devices beside a method that does not."""
    method = f"method {config.run.method!r} tells sums over all devices and nothing else"
    if config.security.insecure:
        raise ValueError(
            f"{method}, by keys that devices sign with their certificates, and this mesh is insecure; make one with "
            "certificates"
        )
    if config.run.on_lost == "continue" and options.epsilon is None:
        raise ValueError(
            f"{method}, and the sum over those who are left would tell that of who is lost; use on_lost 'fail', or "
            "epsilon"
        )
    if config.online:
        raise ValueError(
            f"{method}, and [online] tells everybody how many labels each device has missed, and raises drift alarms "
            "that others hear; leave it out"
        )
    if config.run.on_lost == "continue" and config.run.quorum is not None and config.run.quorum < config._least_devices:
        raise ValueError(
            f"{method}, which takes {config._least_devices} devices: {options.honest or 2} honest ones beside a "
            f"coalition of {options.coalition}; use a quorum of as many or more, got {config.run.quorum}"
        )


def _check_time_uniform(config: DeviceConfig) -> None:
    """Refuse a confidence at all looks where the devices that thresholds are about, or their shares, may change."""
    guarantee = config.chosen_guarantee
    if not guarantee.time_uniform:
        return
    if guarantee.mixture.kind in ("sizes", "paper") and len(config.devices) > 1:
        raise ValueError(
            "pac_confidence on a mesh holds for all runs together (time_uniform), because devices calibrate again "
            "whenever scores change. It needs shares that are fixed in advance, and those of mixture "
            f"{guarantee.mixture.kind!r} follow the numbers of scores: choose mixture 'equal' (--mixture equal) or "
            "shares by device (--mixture FILE), or guarantee.time_uniform = false (--no-time-uniform) for one "
            "calibration at a time that is chosen before its scores are seen"
        )
    try:
        if config.run.on_lost == "continue":
            raise ValueError(
                "time_uniform needs a mixture that is fixed in advance, and with on_lost 'continue' a lost device "
                "changes it; use on_lost 'fail'"
            )
        _refuse_unproven(config)
    except ValueError as problem:
        if not str(problem).startswith("time_uniform"):
            raise
        raise ValueError(
            f"{problem}. A mesh with pac_confidence has time_uniform by default, because devices calibrate again "
            "whenever scores change; guarantee.time_uniform = false (--no-time-uniform) leaves it out"
        ) from None


def _refuse_unproven(config: DeviceConfig) -> None:
    """Refuse combinations without a proof."""
    from conformesh.pipeline.solver import (  # which a program that only asks nodes need not hold in memory
        MethodRun,
        refuse_unproven,
    )

    run = MethodRun(config.run.method, config.run.options, mesh_mode=config.run.mode, online=config.online is not None)
    refuse_unproven(config.chosen_guarantee, run, len(config.devices))


def _check_parts(config: DeviceConfig) -> None:
    """Refuse levels, groups, sides and weights that do not fit together, or that the mode or the method cannot have."""
    if config.guarantee.alphas and exact_alpha(config.guarantee.alpha) not in map(exact_alpha, config.guarantee.alphas):
        raise ValueError(f"alphas are all levels of a run, and must have alpha among them, {config.guarantee.alpha}")
    if (config.scores.weight_column is None) != (config.guarantee.weight_bound is None):
        raise ValueError("weight_column and weight_bound go together: the largest weight must be known to all devices")
    if not (config.has_parts or config.requirement.is_for_unknown_mixtures):
        return
    if config.adaptation is not None:
        _check_outputs(config)
        _refuse_unproven(config)
    if not config.has_parts:
        _refuse_unproven(config)
        return
    if config.run.mode == "asynchronous":
        raise ValueError(
            "several levels, groups, sides and weights need mode 'rounds': without rounds the thresholds of every "
            "report would have to add up over whichever devices have reported, which is proven for one threshold only"
        )
    if config.is_private and config.has_several_thresholds:
        raise ValueError(
            f"method {config.run.method!r} on a mesh counts every score of an epoch once, for one threshold; leave out "
            "alphas, groups, lower_share and weight_column"
        )
    if config.online:
        raise ValueError("[online] moves one threshold; leave out alphas, groups, lower_share and weight_column")
    _refuse_unproven(config)


def _check_outputs(config: DeviceConfig) -> None:
    """Refuse columns of outputs that do not fit the adaptation."""
    adapt, columns = config.adaptation, config.scores.output_columns
    name = f"guarantee.adapt = {config.guarantee.adapt!r}"
    if config.scores.score is not None:
        raise ValueError(f"{name} makes the scores of a device from its labelled outputs; leave scores.score out")
    if adapt.task == "regression":
        if columns not in _NUMBER_OUTPUTS:
            raise ValueError(
                f"{name} is for regression: scores.output_columns must be 'prediction', or 'prediction' and 'scale', "
                f"got {list_names(columns) if columns else 'none'}"
            )
    elif len(columns) < 2:
        raise ValueError(
            f"{name} is for classification: scores.output_columns must name the classes, at least two, in the order of "
            f"the columns of outputs, got {list_names(columns) if columns else 'none'}"
            + ("; for regression it must be 'prediction'" if config.guarantee.adapt == "even" else "")
        )


# 64 bits of a hash suffice in the agreement: it finds mistakes. Against forgery rosters and entries are signed.
def _digest(words: Iterable[str]) -> str:
    return hashlib.sha256("\n".join(words).encode()).hexdigest()[:16]


def _levels_in_words(guarantee: Guarantee) -> str:
    levels = ", ".join(map(str, guarantee.alphas))  # short texts are readable in errors, long ones are only compared
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


def _outputs_in_words(config: DeviceConfig) -> dict[str, str]:
    """Return how scores adapt, and to which columns of outputs, which all devices must be configured with alike."""
    adapt, columns = config.adaptation, config.scores.output_columns
    if adapt is None:
        return {}
    options = _value_in_words(adapt.options())
    return {
        "adapt": f"{adapt.name} {options if len(options) < 120 else _digest([options])}",
        "outputs": f"{len(columns)} columns, {_digest(columns)}",
    }


def score_in_words(score: Score | None) -> str:
    """Return a score with its options as one short text."""
    return "not said" if score is None else f"{score.name} {_value_in_words(score.options())}".strip()


def _value_in_words(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key}={_value_in_words(item)}" for key, item in sorted(value.items()))
    if isinstance(value, tuple):
        return " ".join(map(_value_in_words, value))
    return "none" if value is None else value if isinstance(value, str) else repr(value)
