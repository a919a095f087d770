"""Masks: numbers that hide what each device adds to a sum, and cancel in the sum itself.

Every device has a fresh key pair for every run. Devices i < j of the mask graph agree on a secret s_ij; in stage t

    y_i = x_i + sum over j > i of m_ij(t) - sum over j < i of m_ji(t)   mod 2^32,   m_ij(t) = ChaCha20(s_ij(t), nonce t)

where s_ij(t) follows from s_ij and all totals that were heard before stage t: devices that were told different totals,
so that they would count at different thresholds, have masks that do not cancel, and who told them learns nothing.

Added up over everybody the masks cancel. Whoever sees all y_i, and knows the secrets of a coalition, learns the sum
over each component of the mask graph without the coalition, and nothing else (docs/privacy-proofs.md).

Assumes     X25519, HKDF and ChaCha20 as in `cryptography`; who passes keys on may change them only where nobody signs
Guarantees  sums of whole numbers below 2^31 are exact; what differs from its own words is found out
Message     everybody's public key, 32 bytes and what proves whose it is, to everybody, once
Departures  from [Bonawitz2017]: no shares of the secrets, so that a lost device ends the run: who would hand such
            shares out knows who is there, and a mesh without a server does not
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from conformesh.protocols.aggregate import Aggregator, Total
from conformesh.protocols.messages import Each, Gather, Gathered, Gathering, Packets, Protocol
from conformesh.protocols.site import Site
from conformesh.samples import Samples
from conformesh.streams import fresh_bytes

if TYPE_CHECKING:
    from conformesh.privacy.account import Account

Words = NDArray[np.int32]
Ints = NDArray[np.int64]
LABEL = b"conformesh masks 1"
BITS = 32
LARGEST = 2**31 - 1  # of any sum: above it a number and a negative one look alike
KEY = 32  # bytes of a public key, of a secret, and of a seed
COMPLETE = 200  # devices up to which each shares a secret with each
DEGREE = 64  # of the mask graph beyond: 70 % of all devices together cut off another less than once in 10^6 draws
MOST = 10_000  # devices: each hears everybody's key, and agrees on DEGREE secrets


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
    scores_of: Callable[[int], Samples] | None = None

    @classmethod
    def simulated(cls, site: Site) -> Secrets:
        """Return fresh secrets for a simulation. Nothing keeps them: noise cannot be recomputed from a saved result."""
        context = hashlib.sha256(f"simulated {site.devices}".encode()).digest()
        return cls(tuple(fresh_bytes(KEY) for _ in site.here), context)


class KeyRefused(ValueError):  # noqa: N818 - reads as a sentence where it is raised
    """A device's key is missing, or was not signed by it for this run: nothing that depends on scores was sent."""


class Keystream:
    """Bytes that follow from a secret and a number: never the same for two numbers."""

    def __init__(self, secret: bytes, number: int) -> None:
        from cryptography.hazmat.primitives.ciphers import Cipher
        from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20

        nonce = struct.pack("<IQI", 0, number, 0)  # the first word counts blocks
        self._cipher = Cipher(ChaCha20(secret, nonce), mode=None).encryptor()

    def __call__(self, size: int) -> bytes:
        """Return the next bytes."""
        return bytes(self._cipher.update(bytes(size)))


@dataclass(frozen=True, eq=False)
class Masks:
    """The secrets that the devices here share with others: `pairs` are (place here or -1, the other's, secret)."""

    devices: int
    pairs: tuple[tuple[int, int, bytes], ...]

    def at(self, stage: int, numbers: int, heard: bytes = b"") -> Words:
        """Return what each device here adds to its numbers in a stage, (devices here, numbers).

        `heard` is a digest of all totals so far: who has heard others has other masks.
        """
        masks = np.zeros((self.devices, numbers), dtype=np.uint32)
        for plus, minus, shared in self.pairs:
            secret = derived(shared, heard, b"stage")
            mask = np.frombuffer(Keystream(secret, stage)(numbers * BITS // 8), dtype="<u4")
            if plus >= 0:
                masks[plus] += mask
            if minus >= 0:
                masks[minus] -= mask
        return masks.view(np.int32)


class _Pair(NamedTuple):
    public: bytes
    private: Any


def agree_on_masks(site: Site, secrets: Secrets) -> Gathering[Masks]:
    """Tell everybody the public keys, check whose they are, and agree on secrets along the mask graph."""
    context = run_context(site, secrets.context)
    own = [_key_pair(seed, context) for seed in secrets.seeds]
    said = [_signed_part(context, row, pair.public) for row, pair in zip(site.here.tolist(), own, strict=True)]
    strings = [pair.public + secrets.prove(words) for pair, words in zip(own, said, strict=True)]
    heard: Gathered = yield Gather(Packets.of(strings))
    keys = [_key_of(site, secrets, context, row, heard.packets[row]) for row in range(site.devices)]
    if len({*keys}) < len(keys):
        raise KeyRefused("two devices have told the same key, so that one repeats the other's; nothing was sent")
    edges, place = mask_edges(site.devices, context), np.full(site.devices, -1, dtype=np.int64)
    place[site.here] = np.arange(len(site.here))
    mine = (place[edges] >= 0).any(axis=1)
    pairs = []
    for i, j in edges[mine].tolist():
        here, other = (i, j) if place[i] >= 0 else (j, i)
        secret = _shared(own[int(place[here])].private, keys[other], context, i, j, keys)
        pairs.append((int(place[i]), int(place[j]), secret))
    return Masks(len(site.here), tuple(pairs))


def refuse_many(devices: int) -> None:
    """Refuse so many devices that keys alone would be too much."""
    if devices > MOST:
        raise ValueError(
            f"masks are for up to {MOST:,} devices, got {devices:,}: each hears everybody's key, megabytes over every "
            f"link, and agrees on {DEGREE} secrets, hours of one machine; use e-dcp, or fewer devices"
        )


def mask_edges(devices: int, context: bytes) -> Ints:
    """Return the mask graph, (edges, 2), i < j: who shares a secret with whom. It is public, and drawn for each run.

    It has nothing to do with who talks to whom. A regular graph drawn at random holds together where one by a pattern
    falls apart: see the tests.
    """
    if devices <= COMPLETE:
        return np.stack(np.triu_indices(devices, 1), axis=1).astype(np.int64)
    import networkx as nx

    graph = nx.random_regular_graph(DEGREE, devices, seed=int.from_bytes(hashlib.sha256(context).digest()[:4], "big"))
    return np.sort(np.array(graph.edges, dtype=np.int64), axis=1)


def run_context(site: Site, context: bytes) -> bytes:
    """Return what binds keys and masks to one run: another run, roster or way to mask has another."""
    graph = "complete" if site.devices <= COMPLETE else f"regular {DEGREE}"
    parts = [LABEL, context, *(name.encode() for name in site.network.ids), graph.encode(), bytes([BITS])]
    return hashlib.sha256(_joined(parts)).digest()


def _joined(parts: list[bytes]) -> bytes:
    """Return strings as one, each behind its length: no two lists give the same."""
    return b"".join(len(part).to_bytes(8, "little") + part for part in parts)


def _signed_part(context: bytes, row: int, public: bytes) -> bytes:
    return _joined([LABEL, b"key", context, row.to_bytes(8, "little"), public])


def _key_pair(seed: bytes, context: bytes) -> _Pair:
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

    private = X25519PrivateKey.from_private_bytes(derived(seed, context, b"key pair"))
    return _Pair(private.public_key().public_bytes_raw(), private)


def derived(secret: bytes, context: bytes, purpose: bytes) -> bytes:
    """Return a secret of its own for a purpose of this run."""
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF

    return bytes(HKDF(SHA256(), KEY, salt=context, info=_joined([LABEL, purpose])).derive(secret))


def _key_of(site: Site, secrets: Secrets, context: bytes, row: int, string: bytes) -> bytes:
    name = site.network.ids[row]
    if len(string) < KEY:
        raise KeyRefused(f"device {name} has told no key of {KEY} bytes, got {len(string)}; nothing was sent")
    public, proof = string[:KEY], string[KEY:]
    if not secrets.genuine(name, _signed_part(context, row, public), proof):
        raise KeyRefused(
            f"the key that came as that of device {name} was not signed by it for this run: it is forged, or of "
            "another run; nothing was sent; look whether the devices between can be trusted"
        )
    return public


def _shared(private: Any, other: bytes, context: bytes, i: int, j: int, keys: list[bytes]) -> bytes:
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PublicKey

    try:
        point = private.exchange(X25519PublicKey.from_public_bytes(other))
    except ValueError:  # a point of low order, whose secret everybody knows
        raise KeyRefused(f"the key of one of devices {i} and {j} is none; nothing was sent") from None
    rows = struct.pack("<QQ", i, j)
    return derived(point, context, b"pair" + rows + keys[i] + keys[j])


class MaskedSums:
    """Sums over all devices of masked numbers, stage by stage, and a digest of all that was heard."""

    def __init__(self, site: Site, masks: Masks, total: Total, kind: Any) -> None:
        self.site, self.masks, self.total, self.kind = site, masks, total, kind
        self.stage, self.digest = 0, hashlib.sha256()

    @classmethod
    def over(cls, site: Site, masks: Masks, way: Aggregator) -> Protocol[MaskedSums]:
        """Have an aggregator ready, and add up over it."""
        return cls(site, masks, (yield from way.prepare(site)), way.masked)

    def __call__(self, values: Ints) -> Protocol[Ints]:
        """Add up whole numbers, (devices here, numbers), which may be negative; return the totals, (numbers,)."""
        ones = np.ones((len(values), 1), dtype=np.int64)  # whose sum shows that masks have cancelled
        own = np.concatenate([ones, values], axis=1).astype(np.int32)
        masks = self.masks.at(self.stage, own.shape[1], self.digest.digest())
        masked = own + masks  # arrays wrap around, without a word
        sums = yield from self.total(masked.view(np.uint32).astype(self.kind), LARGEST)
        found = sums.astype(np.int64).astype(np.uint32).view(np.int32)
        if (found[:, 0] != self.site.devices).any():
            raise ArithmeticError(
                f"{self.site.devices} devices add up to {found[:, 0].min()} in stage {self.stage}: masks have not "
                "cancelled: devices have heard or worked out different numbers before, or somebody has changed a sum; "
                "no threshold can be certified from it"
            )
        if len(others := np.flatnonzero((found != found[0]).any(axis=1))):
            raise self._two_totals(int(self.site.here[others[0]]))
        self.stage += 1
        self.digest.update(found[0].astype("<i4").tobytes())
        return np.asarray(found[0, 1:], dtype=np.int64)

    def note(self, words: bytes) -> None:
        """Compare also this with what neighbours have."""
        self.digest.update(words)

    def compared(self) -> Protocol[None]:
        """Compare with all neighbours what was heard: totals that differ somewhere differ along some link."""
        digest = np.frombuffer(self.digest.digest()[:8], dtype="<u8")
        mine = np.repeat(digest[None], len(self.site.here), axis=0)
        heard = yield Each(mine, np.ones(len(mine), dtype=np.bool_))
        others = np.flatnonzero((heard.values != digest).any(axis=1))
        if len(others):
            raise self._two_totals(int(heard.sender[others[0]]))

    def _two_totals(self, row: int) -> ValueError:
        return ValueError(
            f"device {self.site.network.ids[row]} has heard other totals than its neighbour: somebody tells different "
            "devices different sums; no threshold counts"
        )
