"""Sign entries with the key of a device's certificate and check them: Byzantine devices cannot forge them.

A signature travels with the certificate that it is to be checked with, so that nobody must know certificates before.
That one counts if this mesh's authority has signed it, it is in time, it names the owner, and the roster lets it in:
not revoked by its fingerprint, and of a number that neighbours accept. Keys stay in their file; only `cryptography`
signs.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, NamedTuple

from conformesh.mesh.config.certificate_names import why_not_accepted
from conformesh.mesh.config.certificates import Identity, identity_of, load_certificate, load_key, require_x509
from conformesh.mesh.config.device_config import DeviceConfig
from conformesh.peer.entries import attach_signature, split_signature
from conformesh.peer.frames import FrameError

# Certificates that are remembered, since reading one costs a signature check. At this number all are forgotten, so that
# a stranger who sends new ones cannot fill the memory.
_MOST_KNOWN = 1024


class _Holder(NamedTuple):
    """What a certificate of this mesh says, and its public key."""

    identity: Identity
    key: Any


class CertificateSeal:
    """Signs this device's entries, and tells whether others were signed by their owners.

    Parameters
    ----------
    config
        The device, under the roster that says whose certificates count.
    clock
        The time by which certificates are judged.
    """

    def __init__(self, config: DeviceConfig, clock: Callable[[], datetime] = lambda: datetime.now(UTC)) -> None:
        if config.security.insecure:
            raise ValueError("entries are signed with certificates, and this mesh has none: it is insecure")
        from cryptography.hazmat.primitives.serialization import Encoding

        self.config, self.clock = config, clock
        self._key = load_key(config.path("key"))
        self._certificate = bytes(load_certificate(config.path("cert")).public_bytes(Encoding.DER))
        self._authority = load_certificate(config.path("ca"))
        self._revoked = {*config.revoked}
        self._known: dict[bytes, _Holder | None] = {}

    def sign(self, data: bytes) -> bytes:
        """Return this device's certificate and its signature."""
        return attach_signature(self._certificate, bytes(self._key.sign(data, _signing())))

    def genuine(self, owner: int, data: bytes, proof: bytes) -> bool:
        """Return whether the device of this row has signed these bytes."""
        from cryptography.exceptions import InvalidSignature

        try:
            certificate, signature = split_signature(proof)
        except FrameError:
            return False
        holder = self._known_holder(certificate)
        if holder is None or not self._is_trusted(holder, self.config.devices[owner]):
            return False
        try:
            holder.key.verify(signature, data, _algorithm())
        except InvalidSignature:
            return False
        return True

    def _is_trusted(self, holder: _Holder, name: str) -> bool:
        """Whether a certificate is let in as that of a device, now."""
        identity = holder.identity
        in_time = identity.not_before <= self.clock() <= identity.not_after
        return (
            in_time
            and not why_not_accepted(identity.name, name, self.config.lowest_certificate(name))
            and not self._is_revoked(identity)
        )

    def _is_revoked(self, identity: Identity) -> bool:
        return bool({identity.fingerprint, identity.serial} & self._revoked)

    def _known_holder(self, certificate: bytes) -> _Holder | None:
        if certificate not in self._known:
            if len(self._known) >= _MOST_KNOWN:
                self._known.clear()
            self._known[certificate] = self._read_holder(certificate)
        return self._known[certificate]

    def _read_holder(self, certificate: bytes) -> _Holder | None:
        """Read a certificate, which may be anything; None unless this mesh's authority has signed it."""
        from cryptography.exceptions import InvalidSignature

        try:
            found = require_x509().load_der_x509_certificate(certificate)
            found.verify_directly_issued_by(self._authority)
            return _Holder(identity_of(require_x509(), found), found.public_key())
        except (ValueError, TypeError, InvalidSignature):
            return None


def _algorithm() -> Any:
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.hashes import SHA256

    return ec.ECDSA(SHA256())


def _signing() -> Any:
    """Return how to sign: the same bytes the same way each time, so that a device that crashes says the same again.

    Before OpenSSL 3.2 a signature has chance in it; then a run with keys ends where a device crashes in it.
    """
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.hashes import SHA256

    try:
        return ec.ECDSA(SHA256(), deterministic_signing=True)
    except UnsupportedAlgorithm:
        return _algorithm()
