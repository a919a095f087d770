"""What a calibration with adapted scores records for predictions, besides windows, and the calibration rows.

A module of its own, so that results without adapted scores do not import `results.adapted`, which predicts.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from fractions import Fraction
from hashlib import sha256
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np
from msgspec import Struct, structs

from conformesh.files.json_numbers import as_number

if TYPE_CHECKING:
    from conformesh.files.memberships import Memberships
    from conformesh.scores.adapt import Bag

    _Number = float
else:
    _Number = float | Literal["inf", "-inf"]  # in a file; see `AdaptedFacts.__post_init__`


class AdaptedFacts(Struct, frozen=True, forbid_unknown_fields=True):
    """What a calibration with adapted scores records for predictions, besides windows. It holds no row.

    Attributes
    ----------
    columns
        How many classes there are; 1 for regression.
    choices
        The settings of the adaptation to choose from, and
    losses
        the sum of the leave-one-out losses of all devices for each of them; empty where there is nothing to choose.
    counts
        The sums of `Adaptation.summary_counts`.
    shared
        The settings that have a window, in the order of `Answer.windows`, by their places among the choices.
    hidden
        The place of the row that each device hides, counted from 0 in its order; -1 where it has none. Drawn before
        scores are computed.
    digests
        A hash of the rows of each device, so that it predicts with the same rows in the same order.
    weights
        What a row of each device weighs in the counts of windows.
    missing
        The weight that devices without rows would have.
    rounded
        Whether weights were rounded down.
    """

    columns: int
    choices: tuple[tuple[_Number, ...], ...]
    losses: tuple[int, ...]
    counts: tuple[int, ...]
    shared: tuple[int, ...]
    hidden: dict[str, int]
    digests: dict[str, str]
    weights: dict[str, int]
    missing: Fraction = Fraction(0)
    rounded: bool = False

    def __post_init__(self) -> None:
        # A strength may be infinite, which JSON has as a word.
        choices = tuple(tuple(as_number(value) for value in setting) for setting in self.choices)
        structs.force_setattr(self, "choices", choices)


class DeviceRows(NamedTuple):
    """The calibration rows of one device, in its order, with their groups where it has some."""

    bag: Bag
    groups: Memberships | None = None

    @property
    def digest(self) -> str:
        """A SHA-256 over shapes, values and groups: the same on every machine."""
        table = np.ascontiguousarray(self.bag.outputs, dtype="<f8")
        digest = sha256(f"{table.shape}".encode())
        digest.update(table.tobytes())
        kind = "<f8" if self.bag.labels.dtype.kind == "f" else "<i8"
        digest.update(np.ascontiguousarray(self.bag.labels, dtype=kind).tobytes())
        if self.groups is not None:
            # As JSON: a group may have commas in its name.
            names = [[*self.groups.atoms[code]] for code in self.groups.codes.tolist()]
            digest.update(json.dumps(names).encode())
        return digest.hexdigest()


def check_digest(facts: AdaptedFacts, device: str, rows: DeviceRows) -> None:
    """Refuse rows that are not those of the calibration."""
    if rows.digest != facts.digests.get(device):
        raise ValueError(
            f"device {device}: these are not the rows that it calibrated with, or they are in another order (their "
            f"hash differs from the recorded one, {facts.digests.get(device, '')[:12]}...); give the same outputs, "
            "labels and groups, or calibrate again"
        )


def unknown_device_error(device: object, facts: AdaptedFacts) -> ValueError:
    """Return the error for a device that took no part in the calibration."""
    known: Mapping[str, int] = facts.hidden
    names = ", ".join([*known][:8]) + (", ..." if len(known) > 8 else "")
    return ValueError(
        f"device {device!r} took no part in this calibration ({names} did), so there is no guarantee for it; include "
        "its rows in the next calibration"
    )
