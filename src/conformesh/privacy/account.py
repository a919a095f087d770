"""The account of a device: how often each epoch was released. It is public, and the same whatever the scores are.

A record belongs to the epoch in which its score first exists, and adjacent data differ by one record over the whole
lifetime of a device. Each epoch is released at most `releases` times. A device *charges* itself, on its disk, just
before it reveals its mask, whether or not it holds scores. It refuses a run if the public counts say so, and for no
other reason.

**Theorem B.** Every record loses at most `releases` times epsilon, whoever asks for runs, however adaptively. *Proof.*
Refusals and charges are functions of the public transcript alone: of the claims below. So they are equally likely on
adjacent data, and so is every release of another epoch. Nothing about an epoch can be read before every honest device
has revealed, hence charged. An honest device reveals an epoch at most `releases` times, and each of these releases is
within a factor exp(+-epsilon). QED. An exact run (without noise) costs infinity: the epoch is never released with noise
afterwards.

Claims      before a run every device tells everybody its epoch and, for that epoch and the `window` before it, how
            often each was released and a digest of the last release: as many bytes whatever happened. Everybody settles
            on the (t+1)-th largest epoch, t being the size of a coalition: some honest device says that it has closed.
Rollback    a device whose file was replaced by an older one, or deleted, has too small counts. It goes by the larger of
            its own count and the (t+1)-th largest that is claimed, of which at least one is honest, and writes that
            down. So t Byzantine devices cannot use up the budget of another one, and a rolled-back device releases an
            epoch again only if fewer than t + 1 devices of the run claim a release of it. Even then nothing can be
            read as long as one honest device of the run still knows of its own charge: it refuses and never reveals.
Unreadable  a device whose file cannot be read does not know what its records have lost. It takes part with no scores,
            so that they lose nothing more, and with the counts of an empty account, and only its operator is told.
Unit        with whole devices as unit, a device has records in many epochs, and their releases add up for it: over m
            epochs it loses up to m times as much.
Size        counts are kept of the last `EPOCHS_KEPT` epochs, releases of those of the window. Older epochs are used up.

Exact runs have rules of their own. A sum over everybody hides a device among the others. Two sums over different
devices, or over other scores, do not: their difference is about those who differ. So a device takes part in another
exact run only with the same scores, and only if every *atom* holds enough devices: every set of devices that were in
the same of all exact runs so far. (That two rosters differ by enough is not enough: sums over R, R less {a, b}, R less
{b, c} and R less {a, c} tell twice that of a.)
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Final, Literal, NamedTuple

import msgspec
from msgspec import Meta, Struct, to_builtins

from conformesh.common.arrays import LARGEST_EXACT
from conformesh.common.names import list_names
from conformesh.common.quantities import pluralize
from conformesh.files.atomic_writes import PRIVATE, write_file
from conformesh.files.json_numbers import dump_json, parse_json
from conformesh.files.schemas import validate
from conformesh.privacy.histogram import Release

ACCOUNT_FILE = "privacy.json"
_FORMAT: Final = "conformesh-privacy/2"
# Number of releases that stands for an exact run: larger than any budget, and the largest that fits into a claim.
EXACT_RUN = 2**16 - 1
_MOST_RELEASES = EXACT_RUN - 1  # releases of one epoch that fit into a claim
# Epochs of which counts are kept: 20 years of weeks, or 40 days of hours; 200 kB of JSON at most. Older ones count as
# used up, so forgetting them is safe.
EPOCHS_KEPT = 1000
# Different rosters of exact runs. All of them are compared in every run, and differences of many sums tell ever more: a
# mesh that changes more often needs epsilon.
MOST_ROSTERS = 100
_DIGEST_BYTES = 16  # of SHA-256: no two releases with the same name, nor one with a given name, can be found
_HEAD, _ENTRY = struct.Struct("<Q"), struct.Struct(f"<H{_DIGEST_BYTES}s")
_NO_RELEASE = bytes(_DIGEST_BYTES)  # the name of no release


_Count = Annotated[int, Meta(ge=0, le=EXACT_RUN)]
_Number = Annotated[int, Meta(ge=1, lt=LARGEST_EXACT)]


class PrivacyRefused(ValueError):  # noqa: N818 - reads as a sentence where it is raised
    """A device refuses a run that would reveal more of its scores than its budget allows."""

    code = "privacy"  # the kind of failure, as `peer.settings.FAILURES` names it


class _EpochRecord(Struct, forbid_unknown_fields=True):
    """What was released of one epoch.

    Attributes
    ----------
    releases
        How often; `EXACT_RUN` where others claim an exact run of which this account does not know.
    context, devices
        The digest that names the last attempt that was charged, and how many devices took part in it.
    plan, release
        The last release and the digest of the public plan that it belongs to; none where it is out of the window, or
        the attempt failed after the charge.
    """

    epoch: _Number
    releases: _Count = 0
    context: str = ""
    devices: int = 0
    plan: str = ""
    release: Release | None = None


class _ExactRun(Struct, forbid_unknown_fields=True):
    """A run without noise: its devices, and a digest of this device's scores in it, which stays on this disk."""

    devices: list[str]
    scores: str


class AccountFields(Struct, forbid_unknown_fields=True):
    """What is in the file.

    Attributes
    ----------
    epochs
        Ascending.
    used_up
        Epochs up to this one are no longer listed, and are never released again.
    exact_until
        Epochs up to this one were counted in an exact run.
    exact_runs
        One for each roster.
    """

    format: Literal["conformesh-privacy/2"] = _FORMAT
    epochs: list[_EpochRecord] = []
    used_up: Annotated[int, Meta(ge=0)] = 0
    exact_until: Annotated[int, Meta(ge=0)] = 0
    exact_runs: list[_ExactRun] = []

    def record(self, epoch: int) -> _EpochRecord | None:
        """Return what is known of an epoch."""
        return next((one for one in self.epochs if one.epoch == epoch), None)

    def releases(self, epoch: int) -> int:
        """Return how often an epoch was released."""
        if epoch <= self.exact_until:
            return EXACT_RUN
        record = self.record(epoch)
        return 0 if record is None else record.releases


class _Settled(NamedTuple):
    """What all devices of a run have settled on: the epoch to release, and past releases to add up with it."""

    epoch: int
    past: tuple[Release, ...]


class _Claim(NamedTuple):
    """What a device says of its account: its epoch, and (releases, name of the last release) by epoch."""

    epoch: int
    entries: dict[int, tuple[int, bytes]]

    @classmethod
    def of(cls, data: bytes, window: int) -> _Claim:
        """Read a claim; bytes that are none claim nothing, since who refused them could be made to refuse."""
        if len(data) != claim_size(window):
            return cls(0, {})
        (epoch,) = _HEAD.unpack_from(data)
        if epoch >= LARGEST_EXACT:
            return cls(0, {})
        found = [*_ENTRY.iter_unpack(data[_HEAD.size :])]
        return cls(epoch, {epoch - back: entry for back, entry in enumerate(found)})

    def releases(self, epoch: int) -> int:
        """Return how often an epoch was released, as far as this claim reaches."""
        return self.entries.get(epoch, (0, b""))[0]


class Account:
    """The account of one device, as it is on the disk now.

    Parameters
    ----------
    path
        Its file; none yet means that nothing was released so far.
    epoch
        The last epoch that has closed, as this device knows; 0 if none has.
    window
        How many epochs are added up for one threshold.
    releases
        How often an epoch may be released.
    most_ahead
        By how many epochs others may be ahead of this device: 1 by the clock, None where operators declare epochs.

    Attributes
    ----------
    problem
        Why the file cannot be read, for the operator; empty where it can.
    """

    def __init__(
        self, path: Path, *, epoch: int = 1, window: int = 1, releases: int = 1, most_ahead: int | None = None
    ) -> None:
        self.path, self.epoch, self.window, self.allowed = path, epoch, window, min(releases, _MOST_RELEASES)
        self.most_ahead = most_ahead
        self.problem = ""
        try:
            self._fields = read_account(path)
        except (OSError, ValueError) as problem:
            self._fields, self.problem = AccountFields(), " ".join(str(problem).split())

    def claim(self) -> bytes:
        """Return what this device tells everybody before a run: `claim_size` bytes, all of them public."""
        parts = [_HEAD.pack(self.epoch)]
        for epoch in range(self.epoch, self.epoch - self.window - 1, -1):
            record = self._fields.record(epoch)
            name = _NO_RELEASE if record is None or record.release is None else _release_name(record.release)
            parts.append(_ENTRY.pack(self._fields.releases(epoch), name) if epoch > 0 else bytes(_ENTRY.size))
        return b"".join(parts)

    def settle(self, claims: Sequence[bytes], coalition: int) -> _Settled:
        """Return what follows from everybody's claims, or refuse; `coalition` is t.

        A past release counts if every device of the run states the same one.
        """
        heard = [_Claim.of(one, self.window) for one in claims]
        epoch = _largest_honest((one.epoch for one in heard), coalition)
        if self.most_ahead is not None and epoch > self.epoch + self.most_ahead:
            # An epoch far ahead would use up all before it (`EPOCHS_KEPT`). The clock does not depend on the scores.
            raise PrivacyRefused(
                f"the others release epoch {epoch}, and by the clock of this device {self.epoch} has closed last; set "
                "the clocks"
            )
        claimed = _largest_honest((one.releases(epoch) for one in heard), coalition)
        if claimed > self._fields.releases(epoch) and epoch > self._fields.used_up:
            self._change(epoch, releases=claimed)  # after a rollback, say
        self._refuse(epoch)
        past = []
        for earlier in range(max(1, epoch - self.window + 1), epoch):
            record = self._fields.record(earlier)
            if record is not None and record.release is not None:
                name = _release_name(record.release)
                if all(one.entries.get(earlier, (0, _NO_RELEASE))[1] == name for one in heard):
                    past.append(record.release)
        return _Settled(epoch, tuple(past))

    def charge(self, epoch: int, devices: Sequence[str], context: bytes) -> None:
        """Charge one release of an epoch; when this returns the charge survives a power cut.

        `context` names the attempt: one that was charged before is refused, because a device reveals once.
        """
        self._refuse(epoch)
        record = self._fields.record(epoch)
        if record is not None and record.context == context.hex():
            raise PrivacyRefused("this attempt was charged before, and a device reveals its mask once; run again")
        count = self._fields.releases(epoch) + 1
        self._change(epoch, releases=count, context=context.hex(), devices=len(devices), plan="", release=None)

    def store(self, epoch: int, release: Release) -> None:
        """Keep the last release of an epoch, for windows of later runs.

        A disk that is full does not end the run: this device then states no release of this epoch, and no window
        counts it.
        """
        with suppress(OSError):
            self._change(epoch, plan=plan_digest(release), release=release)

    def charge_exact(self, devices: Sequence[str], scores: str, hidden: int) -> None:
        """Charge an exact run over these devices, or refuse it; when this returns the charge survives a power cut.

        `scores` is a digest of this device's scores, `hidden` is how many devices every atom must hold.
        """
        if self.problem:
            raise ValueError(self.problem)
        fields, run = self._fields, _ExactRun([*devices], scores)
        self._refuse_differences(run, hidden)
        known = any({*one.devices} == {*devices} for one in fields.exact_runs)
        if known and fields.exact_until >= self.epoch:
            return  # the same sums again
        if not known:
            fields.exact_runs.append(run)
        fields.exact_until = max(fields.exact_until, self.epoch)
        self._write()

    def released(self, epoch: int) -> int | None:
        """Return how often an epoch was released; None if it was counted without noise."""
        count = self._fields.releases(epoch)
        return None if count == EXACT_RUN else count

    def refusal(self) -> str:
        """Return why this device would refuse a run with noise now, by its own account; empty where it would not."""
        try:
            self._refuse(self.epoch)
        except PrivacyRefused as refused:
            return str(refused)
        return ""

    def _refuse(self, epoch: int) -> None:
        fields, later = self._fields, "run again when the next epoch has closed"
        if epoch < 1:
            raise PrivacyRefused(f"no epoch has closed yet; {later}")
        if fields.releases(epoch) == EXACT_RUN:
            raise PrivacyRefused(
                f"epoch {epoch} was counted without noise, after which no epsilon protects it; {later}"
            )
        if epoch <= fields.used_up:
            raise PrivacyRefused(
                f"epoch {epoch} is {EPOCHS_KEPT} epochs old or older, and is never released again; {later}"
            )
        if (count := fields.releases(epoch)) >= self.allowed:
            raise PrivacyRefused(
                f"epoch {epoch} was released {pluralize(count, 'time')}, and the option releases allows "
                f"{self.allowed}; {later}"
            )

    def _refuse_differences(self, run: _ExactRun, hidden: int) -> None:
        before = self._fields.exact_runs
        instead = (
            "use epsilon (not possible with adapted scores) or, if earlier runs were not about these scores, remove "
            f"{self.path.name}"
        )
        if any(one.scores != run.scores for one in before):
            raise PrivacyRefused(
                "the scores of this device have changed since an exact private run, and the difference of two sums "
                f"would tell how; {instead}"
            )
        for atom in roster_atoms([*(one.devices for one in before), run.devices]):
            if len(atom) < hidden:
                raise PrivacyRefused(
                    f"sums over the devices of this run and of earlier ones would together tell that of "
                    f"{list_names(atom)}: {pluralize(len(atom), 'device')}, at least {hidden} are needed; run with the "
                    f"same devices as before, or {instead}"
                )
        if len(before) >= MOST_ROSTERS and not any({*one.devices} == {*run.devices} for one in before):
            raise PrivacyRefused(f"exact private runs had {MOST_ROSTERS} rosters before, which is the most; {instead}")

    def _change(self, epoch: int, **changes: object) -> None:
        """Change what is known of an epoch, forget what is too old, and write the file."""
        fields = self._fields
        record = fields.record(epoch)
        if record is None:
            record = _EpochRecord(epoch)
            fields.epochs = sorted([*fields.epochs, record], key=lambda one: one.epoch)
        for name, value in changes.items():
            setattr(record, name, value)
        newest = fields.epochs[-1].epoch
        fields.used_up = max(fields.used_up, newest - EPOCHS_KEPT)
        fields.epochs = [one for one in fields.epochs if one.epoch > fields.used_up]
        for one in fields.epochs:
            if one.epoch < newest - self.window:  # by one epoch more than a window: the next run may be one behind
                one.plan, one.release = "", None
        self._write()

    def _write(self) -> None:
        if not self.problem:  # a file that cannot be read is left for its operator; this device adds no scores
            write_file(self.path, dump_json(to_builtins(self._fields), indent=1), PRIVATE)


def read_account(path: Path) -> AccountFields:
    """Read the file of an account; one that cannot be read is an error, never an empty account."""
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return AccountFields()
    return validate(parse_json(content, str(path)), AccountFields, str(path))


def claim_size(window: int) -> int:
    """Return how many bytes a claim has."""
    return _HEAD.size + (window + 1) * _ENTRY.size


def plan_digest(release: Release) -> str:
    """Return what names the public plan of a release: two of the same plan may be added up."""
    raw = to_builtins(release)
    return hashlib.sha256(
        dump_json({key: raw[key] for key in raw if key not in ("totals", "epochs")}).encode()
    ).hexdigest()


def _release_name(release: Release) -> bytes:
    return hashlib.sha256(msgspec.json.encode(release)).digest()[:_DIGEST_BYTES]


def _largest_honest(numbers: Iterable[int], coalition: int) -> int:
    """Return the (t+1)-th largest number, 0 if there are not so many: some honest device says so or more.

    >>> _largest_honest([3, 9, 5], 1)
    5
    """
    ordered = sorted(numbers, reverse=True)
    return ordered[coalition] if coalition < len(ordered) else 0


def roster_atoms(rosters: Iterable[Sequence[str]]) -> list[tuple[str, ...]]:
    """Return the sets of devices that were in the same of these rosters.

    >>> roster_atoms([["a", "b", "c"], ["a", "b"]])
    [('a', 'b'), ('c',)]
    """
    members = [*map(frozenset, rosters)]
    parts: dict[tuple[bool, ...], list[str]] = {}
    for name in sorted(frozenset().union(*members)):
        parts.setdefault(tuple(name in one for one in members), []).append(name)
    return [*map(tuple, parts.values())]
