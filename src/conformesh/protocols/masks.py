"""Masks: random numbers that hide what each device adds to a sum, and cancel in the sum itself.

All secrets of an attempt are fresh. Devices i < j agree on a secret s_ij, each with each (a complete mask graph). A
device hides the numbers x_i of a stage behind the masks m_ij of all pairs that it belongs to, modulo 2^32:

    y_i = x_i + sum over j > i of m_ij - sum over j < i of m_ji

Added up over all devices V of the attempt, the masks cancel. A coalition that sees all y_i and knows its own secrets
learns the sum over the other devices, and nothing else (docs/privacy-proofs.md). A sparse mask graph would be cheaper,
but a device whose mask neighbours all belong to the coalition would stand bare.

There are two uses:

- *Stages* (`MaskedSums.__call__`), for exact counts. The masks of a stage depend on all totals before it: devices that
  were told different totals would count at different thresholds, and their masks do not cancel.
- One *release* (`MaskedSums.release`), for noisy counts. Each device also adds a self-mask b_i, so that not even the
  total is readable: a device that is lost before the reveal costs nothing. Then every device charges its account and
  reveals b_i, once. total = sum of y_i - sum of b_i. If one honest device does not reveal, nothing is readable.

Assumes     X25519, HKDF-SHA256 and ChaCha20 as in `cryptography`; keys are signed, or nobody changes them on the way
Guarantees  sums of whole numbers below 2^31 are exact; a total that was changed on the way is detected
Message     everybody's public key (32 bytes), account claim and signature, to everybody, once; then 32-bit numbers
Departures  from [Bonawitz2017]: no shares of secrets. A lost device ends the attempt, and the others start a new one
            with fresh secrets. Secret sharing needs a server that knows who is present, which a mesh does not have.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from conformesh.common.array_types import Ints
from conformesh.common.random_streams import fresh_bytes
from conformesh.kernels.weighted_scores import WeightedScores
from conformesh.protocols.aggregate import Aggregator, NetworkSum
from conformesh.protocols.block import Block
from conformesh.protocols.messages import Each, Gather, GatheredStrings, GatheringProtocol, Packets, Protocol

if TYPE_CHECKING:
    from conformesh.privacy.account import Account

_Words = NDArray[np.uint32]
_LABEL = b"conformesh masks 2"  # separates these keys and signatures from all others made with the same certificates
_MASKED_BITS = 32  # bits of a masked number: sums are taken modulo 2^32
LARGEST_MASKED_SUM = 2**31 - 1  # largest sum: beyond it positive and negative numbers cannot be told apart
KEY_BYTES = 32  # bytes of a public key, of a secret, and of a seed
# Devices. Each exchanges a secret with each: at 2,000 a device computes 2,000 X25519 exchanges (25 us each, measured)
# and relays 1.2 MB of keys, certificates and signatures over every link. Sparse mask graphs are unsafe, see above.
MOST_MASKED_DEVICES = 2000


@dataclass(frozen=True, eq=False)
class Secrets:
    """What the local devices keep to themselves in one attempt, and how they verify the keys of others.

    An attempt is one execution of the protocol by the devices of one view. Secrets live in memory only: a device that
    restarts takes part in a new attempt with new secrets, because repeating an old one would reveal twice.

    Attributes
    ----------
    seeds
        A secret of 32 bytes for each local device, fresh for every attempt: its key pair, its self-mask and its noise
        follow from it.
    context
        Names the attempt, the same on all devices: the run, its number, and the devices that take part.
    prove
        Signs bytes for a local device; empty where one process hosts all devices.
    genuine
        Verifies such a signature: (name of the device, bytes, signature).
    account
        What this device has revealed so far. It refuses or charges releases; None in a simulation.
    scores_of
        Returns the scores of the local devices of one epoch; None if all scores are of the released epoch.
    """

    seeds: tuple[bytes, ...] = field(repr=False)
    context: bytes
    prove: Callable[[bytes], bytes] = field(default=lambda message: b"")
    genuine: Callable[[str, bytes, bytes], bool] = field(default=lambda name, message, proof: not proof)
    account: Account | None = None
    scores_of: Callable[[int], WeightedScores] | None = None

    @classmethod
    def simulated(cls, block: Block) -> Secrets:
        """Return fresh secrets for a simulation. They are stored nowhere: a saved result cannot repeat the noise."""
        context = hashlib.sha256(f"simulated {block.devices}".encode()).digest()
        return cls(tuple(fresh_bytes(KEY_BYTES) for _ in block.rows), context)

    def streams(self, purpose: bytes) -> list[Keystream]:
        """Return a stream of random bytes for each local device, one for each purpose."""
        return [Keystream(derive_secret(seed, self.context, purpose), 0) for seed in self.seeds]


class KeyRefused(ValueError):  # noqa: N818 - reads as a sentence where it is raised
    """A device's key is missing, or was not signed by it for this attempt. Nothing about scores was sent."""


class Keystream:
    """Bytes that follow from a secret and a number; those of two numbers have nothing in common."""

    def __init__(self, secret: bytes, number: int) -> None:
        from cryptography.hazmat.primitives.ciphers import Cipher
        from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20

        nonce = struct.pack("<IQI", 0, number, 0)  # the first word is the block counter of ChaCha20
        self._cipher = Cipher(ChaCha20(secret, nonce), mode=None).encryptor()

    def __call__(self, size: int) -> bytes:
        """Return the next bytes."""
        return bytes(self._cipher.update(bytes(size)))

    def words(self, count: int) -> _Words:
        """Return the next bytes as numbers of 32 bits."""
        return np.frombuffer(self(count * _MASKED_BITS // 8), dtype="<u4")


@dataclass(frozen=True, eq=False)
class Masks:
    """The masks of the local devices in one attempt.

    Attributes
    ----------
    devices
        How many devices are local.
    pairs
        Secrets shared by two devices: (place of the one that adds the mask, place of the one that subtracts it,
        secret). Places count the local devices; -1 stands for a remote one.
    selves
        The secret of each local device's self-mask.
    local
        In a simulation the secret from which the masks of all pairs of local devices follow.
    """

    devices: int
    pairs: tuple[tuple[int, int, bytes], ...]
    selves: tuple[bytes, ...] = ()
    local: bytes | None = None

    def at(self, stage: int, numbers: int, heard: bytes = b"") -> _Words:
        """Return what each local device adds to its numbers in a stage, (devices, numbers).

        `heard` is a digest of all totals so far: devices that were told different totals have different masks.
        """
        masks = np.zeros((self.devices, numbers), dtype=np.uint32)
        for plus, minus, shared in self.pairs:
            mask = Keystream(derive_secret(shared, heard, b"stage"), stage).words(numbers)
            if plus >= 0:
                masks[plus] += mask
            if minus >= 0:
                masks[minus] -= mask
        if self.local is not None:
            secret = derive_secret(self.local, heard, b"stage")
            for place in range(self.devices - 1):
                later = self.devices - 1 - place  # one keystream for the pairs of a device with all later ones
                drawn = Keystream(secret, stage << 32 | place).words(later * numbers).reshape(later, numbers)
                masks[place] += drawn.sum(axis=0, dtype=np.uint32)
                masks[place + 1 :] -= drawn
        return masks

    def self_masks(self, numbers: int) -> _Words:
        """Return the self-mask b_i of each local device, (devices, numbers)."""
        return np.array([Keystream(secret, 0).words(numbers) for secret in self.selves], dtype=np.uint32)


class _AgreedMasks(NamedTuple):
    """What the devices of an attempt agree on: their masks, and the account claim of every device, by row."""

    masks: Masks
    claims: tuple[bytes, ...]


class _Pair(NamedTuple):
    public: bytes
    private: Any


def agree_on_masks(block: Block, secrets: Secrets, claim: bytes = b"") -> GatheringProtocol[_AgreedMasks]:
    """Flood the public keys and the account claims, verify both, and compute the secrets shared with all others.

    Parameters
    ----------
    block, secrets
        The local devices, and what they keep to themselves.
    claim
        What the local account claims; of the same length on every device. It is signed together with the key, for the
        context of this attempt, so that claims cannot be replayed or combined with other keys.
    """
    context = run_context(block, secrets.context)
    own = [_key_pair(seed, context) for seed in secrets.seeds]
    signed = [
        _signed_part(context, row, pair.public, claim) for row, pair in zip(block.rows.tolist(), own, strict=True)
    ]
    strings = [pair.public + claim + secrets.prove(part) for pair, part in zip(own, signed, strict=True)]
    heard: GatheredStrings = yield Gather(Packets.of(strings))
    told = [_verified(block, secrets, context, row, heard.packets[row], len(claim)) for row in range(block.devices)]
    keys, claims = [key for key, _ in told], tuple(other for _, other in told)
    if len({*keys}) < len(keys):
        raise KeyRefused(
            "two devices sent the same key: one repeats the key of the other; nothing about scores was sent"
        )
    # Devices that received different keys or claims, from a relay or a member that equivocates, have masks that do not
    # cancel: their numbers stay unreadable, and the check of ones fails.
    flooded = hashlib.sha256(_joined([context, *keys, *claims])).digest()
    here = {*block.rows.tolist()}
    pairs = []
    for place, row in enumerate(block.rows.tolist()):
        for other in range(block.devices):
            if other not in here:
                i, j = min(row, other), max(row, other)
                shared = _pair_secret(own[place].private, keys[other], flooded, i, j)
                pairs.append((place, -1, shared) if row == i else (-1, place, shared))
    return _AgreedMasks(
        Masks(
            len(here),
            tuple(pairs),
            tuple(derive_secret(seed, context, b"self-mask") for seed in secrets.seeds),
            _local_secret(secrets.seeds, context),
        ),
        claims,
    )


def _local_secret(seeds: tuple[bytes, ...], context: bytes) -> bytes | None:
    """Return the secret for masks between local devices, None for a single device, as on a mesh.

    In a simulation one process hosts both ends of a pair and knows both seeds. A key exchange between them would
    compute what a hash of the seeds gives at once: for 1,000 devices it would be 500,000 exchanges.
    """
    return None if len(seeds) < 2 else hashlib.sha256(_joined([_LABEL, b"local", context, *seeds])).digest()


def refuse_too_many_devices(devices: int) -> None:
    """Refuse more devices than can all share a secret with each other."""
    if devices > MOST_MASKED_DEVICES:
        raise ValueError(
            f"masks are for up to {MOST_MASKED_DEVICES:,} devices, got {devices:,}: every device must share a secret "
            "with every other, since with fewer secrets a device is not hidden from those that it shares them with; "
            "use e-dcp, or fewer devices"
        )


def run_context(block: Block, context: bytes) -> bytes:
    """Return what keys, masks and signatures are bound to: the attempt, and the devices that take part in it."""
    return hashlib.sha256(_joined([_LABEL, context, *(name.encode() for name in block.network.ids)])).digest()


def _joined(parts: list[bytes]) -> bytes:
    """Return strings as one, each behind its length: no two lists give the same."""
    return b"".join(len(part).to_bytes(8, "little") + part for part in parts)


def _signed_part(context: bytes, row: int, public: bytes, claim: bytes) -> bytes:
    return _joined([_LABEL, b"key", context, row.to_bytes(8, "little"), public, claim])


def _key_pair(seed: bytes, context: bytes) -> _Pair:
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

    private = X25519PrivateKey.from_private_bytes(derive_secret(seed, context, b"key pair"))
    return _Pair(private.public_key().public_bytes_raw(), private)


def derive_secret(secret: bytes, context: bytes, purpose: bytes) -> bytes:
    """Return a secret for one purpose of this attempt (HKDF)."""
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF

    return bytes(HKDF(SHA256(), KEY_BYTES, salt=context, info=_joined([_LABEL, purpose])).derive(secret))


def _verified(
    block: Block, secrets: Secrets, context: bytes, row: int, string: bytes, claim_size: int
) -> tuple[bytes, bytes]:
    """Return the key and the claim of a device, if it signed both for this attempt."""
    name, size = block.network.ids[row], KEY_BYTES + claim_size
    if len(string) < size:
        raise KeyRefused(
            f"device {name} sent {len(string)} bytes instead of a key and a claim of {size}; nothing about scores was "
            "sent"
        )
    public, claim, proof = string[:KEY_BYTES], string[KEY_BYTES:size], string[size:]
    if not secrets.genuine(name, _signed_part(context, row, public, claim), proof):
        raise KeyRefused(
            f"the key received as that of device {name} was not signed by it for this attempt: it is forged, or of "
            "another attempt; nothing about scores was sent; check the devices that relayed it"
        )
    return public, claim


def _pair_secret(private: Any, other: bytes, flooded: bytes, i: int, j: int) -> bytes:
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PublicKey

    try:
        point = private.exchange(X25519PublicKey.from_public_bytes(other))
    except ValueError:  # a point of low order, whose secret everybody knows
        raise KeyRefused(
            f"the key of device {i} or {j} is invalid (a point of low order); nothing about scores was sent"
        ) from None
    return derive_secret(point, flooded, b"pair" + struct.pack("<QQ", i, j))


class MaskedSums:
    """Sums over all devices of masked numbers, and a digest of all totals that were received."""

    def __init__(self, block: Block, masks: Masks, total: NetworkSum) -> None:
        self.block, self.masks, self._total = block, masks, total
        self.stage, self.digest = 0, hashlib.sha256()

    @classmethod
    def over(cls, block: Block, masks: Masks, way: Aggregator) -> Protocol[MaskedSums]:
        """Prepare an aggregator, and add up over it."""
        return cls(block, masks, (yield from way.prepare(block)))

    def __call__(self, values: Ints) -> Protocol[Ints]:
        """Add up whole numbers, (local devices, numbers), which may be negative; return the totals, (numbers,)."""
        own = _with_ones(values)
        sums = yield from self._sum(own + self.masks.at(self.stage, own.shape[1], self.digest.digest()))
        return self._check_totals(sums)

    def release(self, counts: Ints, noise: Ints, charge: Callable[[], None]) -> Protocol[Ints]:
        """Add up noisy counts, (local devices, numbers), that are readable only after every account was charged.

        Parameters
        ----------
        counts, noise
            What each local device counted, and its share of the noise. Counts saturate at `LARGEST_MASKED_SUM` // 2K:
            large data must not cause an error that others can observe. Saturation does not increase the effect of one
            score.
        charge
            Called exactly once, after the masked sum and before the first message of the reveal.
        """
        if self.stage:
            raise RuntimeError("an attempt reveals once; a second release needs a new attempt with fresh secrets")
        most = LARGEST_MASKED_SUM // (2 * self.block.devices)  # the noise has the other half
        own = _with_ones(np.clip(counts, -most, most) + noise)
        selves = self.masks.self_masks(own.shape[1])
        hidden = yield from self._sum(own + self.masks.at(0, own.shape[1]) + selves)
        charge()
        revealed = yield from self._sum(selves)
        return self._check_totals(hidden - revealed)

    def _sum(self, words: _Words) -> Protocol[_Words]:
        sums = yield from self._total(words, LARGEST_MASKED_SUM)  # type: ignore[arg-type]
        return np.asarray(sums).astype(np.int64).astype(np.uint32)

    def _check_totals(self, sums: _Words) -> Ints:
        """Return the totals, if the masks have cancelled and all local devices have received the same."""
        totals = sums.view(np.int32)
        if (totals[:, 0] != self.block.devices).any():
            raise ArithmeticError(
                f"{self.block.devices} devices add up to {totals[:, 0].min()} in stage {self.stage}: masks have not "
                "cancelled, because devices received different totals before, or a sum was changed on the way; no "
                "threshold can be certified from it"
            )
        if len(others := np.flatnonzero((totals != totals[0]).any(axis=1))):
            raise self._different(int(self.block.rows[others[0]]))
        self.stage += 1
        self.digest.update(totals[0].astype("<i4").tobytes())
        return np.asarray(totals[0, 1:], dtype=np.int64)

    def note(self, words: bytes) -> None:
        """Include these bytes in the comparison with neighbours."""
        self.digest.update(words)

    def compared(self) -> Protocol[None]:
        """Compare all totals with the neighbours: totals that differ somewhere differ along some link."""
        digest = np.frombuffer(self.digest.digest()[:8], dtype="<u8")
        local = np.repeat(digest[None], len(self.block.rows), axis=0)
        heard = yield Each(local, np.ones(len(local), dtype=np.bool_))
        others = np.flatnonzero((heard.values != digest).any(axis=1))
        if len(others):
            raise self._different(int(heard.sender[others[0]]))

    def _different(self, row: int) -> ValueError:
        return ValueError(
            f"device {self.block.network.ids[row]} received other totals than its neighbour: a device sends different "
            "sums to different devices; no threshold can be certified"
        )


def _with_ones(values: Ints) -> _Words:
    """Return numbers modulo 2^32 behind a one: the ones add up to the number of devices if masks have cancelled."""
    ones = np.ones((len(values), 1), dtype=np.int64)
    return np.concatenate([ones, values], axis=1).astype(np.uint32)
