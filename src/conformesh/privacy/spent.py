"""What a device has told of its scores in all its private runs: an account on its own disk, and what it forbids.

A sum over everybody hides a device among the others. Two sums over different devices, or over other scores, do not:
their difference is about those who differ. So without noise a device takes part in another run only with the same
scores, and only if every *atom* holds enough devices: every set of devices that were in the same of all runs so far.
(That two rosters differ by enough is not enough: sums over R, R less {a, b}, R less {b, c} and R less {a, c} tell twice
that of a.)

With noise every run spends its epsilon of each score that it counts, and a score has a budget. Where epsilon protects a
device with all its scores, the device has one besides, for other scores are its own as well. All is charged before the
first frame that depends on it leaves, also where the run fails later; a run that is repeated after a crash says the
same again, byte by byte, and costs nothing.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
from msgspec import Meta, Struct, to_builtins
from numpy.typing import NDArray

from conformesh.io.files import PRIVATE, write_file
from conformesh.io.json_numbers import from_json, to_json
from conformesh.io.schemas import checked
from conformesh.names import listed
from conformesh.quantities import several

FILE = "privacy.json"
WHOLE = "device"  # by what the device with all its scores is known in the account
ROUNDING = 1e-9  # of sums of epsilons


class Run(Struct, forbid_unknown_fields=True):
    """A run that this device took part in: which, with whom, over which scores, and what it spent."""

    run: str
    devices: list[str]
    scores: str
    epsilon: Annotated[float, Meta(gt=0)] | None = None


class _Fields(Struct, forbid_unknown_fields=True):
    format: Literal["conformesh-privacy/1"]
    runs: list[Run]
    spent: dict[str, Annotated[float, Meta(ge=0)]]


class PrivacyRefused(ValueError):  # noqa: N818 - reads as a sentence where it is raised
    """A device does not take part, because the run would tell more of its scores than it may."""


class Spent:
    """The account of one device.

    Parameters
    ----------
    path
        Its file; none yet means that nothing was told so far.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def read(self) -> _Fields:
        """Return what is written there; a file that cannot be read is an error, never an empty account."""
        try:
            content = self.path.read_bytes()
        except FileNotFoundError:
            return _Fields("conformesh-privacy/1", [], {})
        return checked(from_json(content, str(self.path)), _Fields, str(self.path))

    def enter(
        self,
        run: Run,
        values: NDArray[np.float64],
        *,
        hidden: int = 3,
        budget: float | None = None,
        unit: str = "score",
    ) -> None:
        """Charge a run over these scores, or refuse it; when this returns the charge survives a power cut.

        `hidden` is how many devices every atom must hold, `budget` what a score, or the device as well where it is the
        `unit` that epsilon protects, may spend in all.
        """
        account = self.charged(run, values, hidden=hidden, budget=budget, unit=unit)
        if account is not None:
            write_file(self.path, to_json(to_builtins(account), indent=1), PRIVATE)

    def charged(
        self,
        run: Run,
        values: NDArray[np.float64],
        *,
        hidden: int = 3,
        budget: float | None = None,
        unit: str = "score",
    ) -> _Fields | None:
        """Return the account as `enter` would leave it, None where that is as it is; what is refused is refused now."""
        account = self.read()
        if any(one.run == run.run for one in account.runs):
            return None  # it says again what it has said
        if run.epsilon is None:
            self._refuse_differences(account, run, hidden)
            if any({*one.devices} == {*run.devices} for one in account.runs if one.epsilon is None):
                return None  # the same sums again: an account that grows with every one would tell nothing more
        else:
            whole = [WHOLE] if unit == "device" else []
            self._spend(account, run.epsilon, values, run.epsilon if budget is None else budget, whole)
        account.runs.append(run)
        return account

    def _refuse_differences(self, account: _Fields, run: Run, hidden: int) -> None:
        before = [one for one in account.runs if one.epsilon is None]
        instead = f"use epsilon or, if what was told before was not about these scores, remove {self.path.name}"
        if any(one.scores != run.scores for one in before):
            raise PrivacyRefused(
                "its scores have changed since a private run without noise, and the difference of two sums would tell "
                f"how; {instead}"
            )
        for atom in atoms([*(one.devices for one in before), run.devices]):
            if len(atom) < hidden:
                raise PrivacyRefused(
                    f"sums over the devices of this run and earlier ones would together tell that of {listed(atom)}: "
                    f"{several(len(atom), 'device')}, at least {hidden} are needed; run with the same as before, or "
                    f"{instead}"
                )

    def _spend(
        self, account: _Fields, epsilon: float, values: NDArray[np.float64], budget: float, whole: list[str]
    ) -> None:
        if whole and account.spent.get(WHOLE, 0.0) + epsilon > budget * (1 + ROUNDING):
            raise PrivacyRefused(
                f"the device would spend more than its budget: {account.spent[WHOLE]:g} of {budget:g} is spent, and "
                f"this run needs {epsilon:g}, for all its scores together, old or new; agree on a larger budget"
            )
        charged = [*map(_name, np.sort(values))]
        worst = max((account.spent.get(name, 0.0) for name in charged), default=0.0)
        if worst + epsilon > budget * (1 + ROUNDING):  # how many are so is not said: everybody hears this
            raise PrivacyRefused(
                f"some of its scores would spend more than their budget: {worst:g} of {budget:g} is spent, and this "
                f"run needs {epsilon:g}; take new scores, or agree on a larger budget"
            )
        for name in {*charged, *whole}:
            account.spent[name] = account.spent.get(name, 0.0) + epsilon


def atoms(rosters: Iterable[Sequence[str]]) -> list[tuple[str, ...]]:
    """Return the sets of devices that were in the same of these rosters.

    >>> atoms([["a", "b", "c"], ["a", "b"]])
    [('a', 'b'), ('c',)]
    """
    members = [*map(frozenset, rosters)]
    parts: dict[tuple[bool, ...], list[str]] = {}
    for name in sorted(frozenset().union(*members)):
        parts.setdefault(tuple(name in one for one in members), []).append(name)
    return [*map(tuple, parts.values())]


def _name(score: float) -> str:
    """Return by what a score is known in the account; equal ones are one, which is charged for all of them."""
    return hashlib.blake2b(np.float64(score).tobytes(), digest_size=12).hexdigest()
