"""The settings of a device: the sections of ``device.toml``, each value with its help, default and range in one place.

The comments of the file, its validation, `conformesh mesh settings` and the options of `conformesh mesh init` are
derived from the fields below. Names are unique across the sections, so `patience` means ``timing.patience``.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import MISSING, Field, dataclass, field, fields, replace
from typing import Any, Literal, NamedTuple, get_args, get_origin, get_type_hints

from conformesh.common.names import unknown_name
from conformesh.kernels.ranks import AUTO
from conformesh.mesh.config import MODES, ON_LOST
from conformesh.protocols.options import convert_option

# Seconds. Below 0.1 a heartbeat costs more than it tells; above an hour a lost device would go unnoticed for too long.
# Both are choices.
SHORTEST_HEARTBEAT, LONGEST_HEARTBEAT = 0.1, 3600.0

_Range = tuple[str, Callable[[Any], bool]]  # what is allowed, in words, and whether a value is


def _declare(default: Any, text: str, check: _Range | None = None) -> Any:
    """Declare a setting with its default, one line of help and the values that are allowed."""
    about = {"help": text, "check": check}
    return field(default_factory=dict, metadata=about) if default == {} else field(default=default, metadata=about)


# Values that settings may have, each in words and as a test.
_POSITIVE_SECONDS: _Range = ("a positive number of seconds", lambda value: value > 0 and math.isfinite(value))
# Seconds.
_HEARTBEAT: _Range = (
    f"0 for none, or from {SHORTEST_HEARTBEAT:g} to {LONGEST_HEARTBEAT:g} seconds",
    lambda value: value == 0 or SHORTEST_HEARTBEAT <= value <= LONGEST_HEARTBEAT,
)
_FILE_NAME: _Range = ("the name of a file", lambda value: bool(str(value).strip()))
# 128 characters hold a SHA-512 in hexadecimal, the longest digest in use.
_DIGEST: _Range = (
    "the digest of a model, 1 to 128 letters and digits",
    lambda value: value is None or re.fullmatch(r"[\w:.+/=-]{1,128}", value) is not None,
)
# `type(...) is int`: a bool is an int to Python, and 2.0 is no number of devices.
_COUNT: _Range = ("a whole number of devices", lambda value: value is None or type(value) is int)
# A weight, without unit.
_BOUND: _Range = ("a number above 0", lambda value: value is None or 0 < value < math.inf)
_NAMES: _Range = (
    "different names",
    lambda value: len({*value}) == len(value) and all(name.strip() for name in value),
)


@dataclass(frozen=True)
class RunSettings:
    """What the devices run together: the same on every device."""

    mode: Literal["rounds", "asynchronous"] = _declare(
        MODES[0], "Run in rounds, each device waiting for its neighbours, or in asynchronous mode, none waiting."
    )
    method: str = _declare("e-dcp", "The method.")
    options: dict[str, Any] = _declare({}, "Options of the method that differ from their defaults.")  # noqa: RUF009
    on_lost: Literal["fail", "continue"] = _declare(
        ON_LOST[0], "What a lost neighbour means: the run fails, or continues without it."
    )
    quorum: int | None = _declare(
        None, "With on_lost continue, the devices that must be left; by default the fewest above half.", _COUNT
    )


@dataclass(frozen=True)
class GuaranteeSettings:
    """The guarantee: the same on every device. Levels are texts, so that 0.1 is exactly a tenth."""

    alpha: str = _declare("0.1", "Tolerated miscoverage between 0 and 1.")
    alphas: tuple[str, ...] = _declare((), "All levels of a run, alpha among them; empty: alpha alone.")
    mixture: str = _declare("sizes", "The mixture of devices that new examples come from.")
    shares: dict[str, str] = _declare({}, "Shares of new examples by device, with mixture given.")  # noqa: RUF009
    mixture_bound: str | None = _declare(
        None, "Cover every mixture whose shares are at most this many times those of mixture, such as 2."
    )
    rank_rule: str = _declare(AUTO, "The rule for the required rank; auto is the proven one that asks for less.")
    pac_confidence: str | None = _declare(
        None, "Coverage with this probability over the draw of the scores, not on average over it."
    )
    time_uniform: bool | None = _declare(
        None,
        "Whether pac_confidence holds at all looks together; by default it does, since new scores mean a new run. "
        "False for one calibration that was chosen in advance.",
    )
    groups: tuple[str, ...] = _declare(
        (), "Groups with thresholds of their own (group-conditional, Mondrian); each row is in one.", _NAMES
    )
    lower_share: str | None = _declare(
        None, "The part of alpha that the lower side of intervals may miss; scores are in columns lower and upper."
    )
    weight_bound: float | None = _declare(None, "The largest weight that any example may have.", _BOUND)
    adapt: str | None = _declare(
        None,
        "Scores that learn from a device's own labelled outputs: prior (classification), scale (regression), even.",
    )
    adapt_options: dict[str, Any] = _declare({}, "Options of adapt that differ from their defaults.")  # noqa: RUF009


OUTPUTS_FILE = "outputs.csv"  # the file of labelled outputs in new folders, where scores adapt to them


@dataclass(frozen=True)
class ScoreSettings:
    """The local scores: a file beside this one, which never leaves the device. Score and model: the same everywhere."""

    file: str = _declare(
        "scores.csv",
        "The file of scores, or with adapt of labelled outputs, relative to the device's folder.",
        _FILE_NAME,
    )
    label_column: str = _declare("label", "With adapt, the column of true labels.")
    output_columns: tuple[str, ...] = _declare(
        (),
        "With adapt, the columns of outputs: the classes, or for regression prediction, or prediction and scale.",
        _NAMES,
    )
    group_column: str = _declare("group", "The column that names each row's group.")
    weight_column: str | None = _declare(
        None, "The column of weights: how much likelier such an example is among new ones."
    )
    score: str | None = _declare(None, "The nonconformity score that the numbers are.")
    score_options: dict[str, Any] = _declare({}, "Options of the score.")  # noqa: RUF009
    model: str | None = _declare(None, "Digest of the model that the scores come from.", _DIGEST)


@dataclass(frozen=True)
class TimingSettings:
    """Seconds. Patience and retry may differ between devices."""

    # 30 s outlast the restart of a neighbour; a shorter patience takes a slow device for a lost one.
    patience: float = _declare(30.0, "Seconds to wait for a neighbour before giving up.", _POSITIVE_SECONDS)
    # 0.2 s is short against a run and long against one connection attempt on a local network.
    retry: float = _declare(0.2, "Seconds between two attempts to reach a neighbour.", _POSITIVE_SECONDS)
    heartbeat: float = _declare(
        1.0, "Seconds between two heartbeats, by which devices tell each other their status; 0 for none.", _HEARTBEAT
    )


@dataclass(frozen=True)
class SecuritySettings:
    """Certificate and private key of this device, and the certificate of the authority. The key stays here."""

    insecure: bool = _declare(False, "True for links without certificates, for experiments on one machine.")
    ca: str = _declare("ca.pem", "The file of the authority's certificate.", _FILE_NAME)
    cert: str = _declare("device.pem", "The file of this device's certificate.", _FILE_NAME)
    key: str = _declare("device.key", "The file of this device's private key.", _FILE_NAME)


@dataclass(frozen=True)
class OnlineSettings:
    """Learning from labels that arrive later; leave the section out for none. With scale, values are in its units."""

    learning: float = _declare(MISSING, "How far one miss moves the threshold of all devices.")
    local: float = _declare(MISSING, "How far one miss moves the threshold of its own device.")
    bound: float = _declare(MISSING, "Scores lie between 0 and this.")
    scale: float = _declare(0.0, "How much the newest score weighs in the device's running scale; 0 for none.")
    alarm: float = _declare(0.0, "Bounds the chance of a false drift alarm; 0 for no alarm.")


SECTIONS: dict[str, type] = {
    "run": RunSettings,
    "guarantee": GuaranteeSettings,
    "scores": ScoreSettings,
    "timing": TimingSettings,
    "security": SecuritySettings,
    "online": OnlineSettings,
}


class Setting(NamedTuple):
    """One setting: its section, its field and its type."""

    section: str
    field: Field[Any]
    hint: Any

    @property
    def path(self) -> str:
        """Its name in ``--set`` and errors, as ``timing.patience``."""
        return f"{self.section}.{self.field.name}"

    @property
    def help(self) -> str:
        """What it means, in one line."""
        return str(self.field.metadata["help"])

    @property
    def default(self) -> Any:
        """Its default; None where there is none."""
        if self.field.default_factory is not MISSING:
            return self.field.default_factory()
        return None if self.field.default is MISSING else self.field.default

    @property
    def choices(self) -> tuple[str, ...]:
        """The words it takes, where they can be listed."""
        return get_args(self.hint) if get_origin(self.hint) is Literal else ()

    def read(self, text: str) -> Any:
        """Return the value that a word of the command line stands for; lists are separated by commas."""
        if get_origin(self.hint) is tuple:
            return tuple(word.strip() for word in text.split(",") if word.strip())
        return convert_option(text.strip(), self.hint, self.path, is_text=True)

    def check(self, value: Any) -> None:
        """Refuse a value that is out of range."""
        if self.choices:
            allowed, good = " or ".join(map(repr, self.choices)), value in self.choices
        else:
            allowed, accepts = self.field.metadata["check"] or ("", lambda _: True)
            good = accepts(value)
        if not good:
            raise ValueError(f"{self.path} must be {allowed}, got {value!r}")


def _read_sections() -> dict[str, Setting]:
    found: dict[str, Setting] = {}
    for section, kind in SECTIONS.items():
        hints = get_type_hints(kind)
        found |= {one.name: Setting(section, one, hints[one.name]) for one in fields(kind)}
    return found


SETTINGS = _read_sections()  # by the name of the field


def find_setting(path: str) -> Setting:
    """Return a setting by its path, as ``timing.patience``."""
    section, _, name = path.partition(".")
    found = SETTINGS.get(name)
    if found is None or found.section != section:
        raise ValueError(unknown_name("setting", path, [one.path for one in SETTINGS.values()]))
    return found


def check_section(section: Any) -> None:
    """Refuse the first value of a section that is out of range."""
    for one in fields(section):
        SETTINGS[one.name].check(getattr(section, one.name))


def change_sections(given: Mapping[str, Any], sections: Mapping[str, Any]) -> dict[str, Any]:
    """Return the sections with these settings changed, by field name; sections that none of them is in are left out."""
    by_section: dict[str, dict[str, Any]] = {}
    for name, value in given.items():
        if name not in SETTINGS:
            raise ValueError(unknown_name("setting", name, SETTINGS))
        by_section.setdefault(SETTINGS[name].section, {})[name] = value
    return {name: _change(name, sections.get(name), values) for name, values in by_section.items()}


def _change(name: str, section: Any, values: dict[str, Any]) -> Any:
    if section is not None:
        return replace(section, **values)
    kind = SECTIONS[name]
    needed = [one.name for one in fields(kind) if one.default is MISSING and one.default_factory is MISSING]
    missing = [one for one in needed if one not in values]
    if missing:
        raise ValueError(f"[{name}] needs {', '.join(needed)}, and lacks {', '.join(missing)}")
    return kind(**values)
