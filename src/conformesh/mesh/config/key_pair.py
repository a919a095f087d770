"""Check that neighbours will accept a device's certificate, key and authority, with the standard library alone.

The check does what neighbours will do: a TLS handshake, of the device with itself and in memory. A node checks at its
start and when a file has changed. Functions import `ssl`, not the module: a mesh without certificates saves its 2 MB.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from conformesh.files.atomic_writes import readable_by_others
from conformesh.mesh.config.certificate_names import why_not_accepted

if TYPE_CHECKING:
    import ssl

_NO_CHECK_TIME = 0x200000  # OpenSSL's X509_V_FLAG_NO_CHECK_TIME: times are judged here, by a clock that may be given


@dataclass(frozen=True)
class Validity:
    """From when to when a certificate is valid, and the name of its file."""

    file: str
    first: datetime
    last: datetime

    def problem(self, now: datetime) -> str:
        """Return what is wrong with it at a moment, in words; nothing if it is in time."""
        if now < self.first:
            first, clock = f"{self.first:%Y-%m-%d %H:%M}", f"{now:%Y-%m-%d %H:%M}"
            return f"{self.file} is not valid before {first} UTC, now is {clock}; set the clock"
        if now > self.last:
            return f"{self.file} expired on {self.last:%Y-%m-%d %H:%M} UTC; have it signed again"
        return ""


def check_key_pair(
    cert: Path, key: Path, ca: Path, name: str | None = None, now: datetime | None = None, lowest: int = 1
) -> list[str]:
    """Return what is wrong with a device's certificate, key and authority, in words; nothing if all is well."""
    problems, times = examine_key_pair(cert, key, ca, name, lowest)
    now = now or datetime.now(UTC)
    return [*problems, *(words for one in times if (words := one.problem(now)))]


def examine_key_pair(
    cert: Path, key: Path, ca: Path, name: str | None = None, lowest: int = 1
) -> tuple[list[str], list[Validity]]:
    """Return what is wrong at any time, and from when to when the certificates are valid that could be read.

    `lowest` is the number of the first certificate of that name that neighbours let in.
    """
    missing = [path for path in (cert, key, ca) if not path.is_file()]
    if missing:
        return [f"{path.name} is missing; copy it from the folder that the authority made" for path in missing], []
    problems = [f"{key.name} can be read by others; run: chmod 600 {key}"] if readable_by_others(key) else []
    times = []
    try:
        times += [_validity(ca, root) for root in _certificates_in(ca)[:1]]  # none: the handshake will not accept it
        own = _accepted_certificate(_server_context(cert, key), ca)
        if own is None:
            raise ValueError(f"{cert.name} was signed by another authority than {ca.name}; both come from one mesh")
    except ValueError as problem:
        return [*problems, str(problem)], times
    times.insert(0, _validity(cert, own))
    return [*problems, *name_problems(cert, common_name(own), name, lowest)], times


def name_problems(cert: Path, shown: str, name: str | None, lowest: int = 1) -> list[str]:
    """Return the words for a certificate under which this device is not let in; nothing if it is."""
    problem = "" if name is None else why_not_accepted(shown, name, lowest)
    return [f"{cert.name} {problem}; copy the right folder"] if problem else []


def common_name(certificate: Mapping[str, Any] | None) -> str:
    """Return whom a certificate names, as `ssl.SSLSocket.getpeercert` describes it."""
    names = [value for part in (certificate or {}).get("subject", ()) for key, value in part if key == "commonName"]
    return str(names[0]) if names else ""


def _no_password() -> str:
    raise ValueError("a key of a mesh has no password")


def _server_context(cert: Path, key: Path) -> ssl.SSLContext:
    """Return who holds this certificate and its key."""
    import ssl

    _certificates_in(cert)
    holder = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        holder.load_cert_chain(cert, key, password=_no_password)
    except ssl.SSLError as problem:
        if problem.reason == "KEY_VALUES_MISMATCH":
            raise ValueError(f"{key.name} does not match {cert.name}; copy both from the same folder") from None
        raise ValueError(f"{key}: needed a private key in PEM form without password, got something else") from None
    except OSError as problem:
        raise ValueError(f"{key}: cannot read the private key: {problem.strerror}") from None
    return holder


def _certificates_in(path: Path) -> Sequence[Any]:
    """Return the certificates of authorities in a file of certificates; a device's own is none of them."""
    import ssl

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    try:
        context.load_verify_locations(path)
    except ssl.SSLError:
        raise ValueError(f"{path}: needed a certificate in PEM form, got something else") from None
    except OSError as problem:
        raise ValueError(f"{path}: cannot read the certificate: {problem.strerror}") from None
    return context.get_ca_certs()


def _validity(path: Path, shown: Mapping[str, Any]) -> Validity:
    import ssl

    first, last = (ssl.cert_time_to_seconds(shown[key]) for key in ("notBefore", "notAfter"))
    return Validity(path.name, datetime.fromtimestamp(first, UTC), datetime.fromtimestamp(last, UTC))


def _accepted_certificate(server: ssl.SSLContext, ca: Path) -> Mapping[str, Any] | None:
    """Return the certificate that a neighbour with this authority accepts from the device; None if it refuses."""
    import ssl

    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.check_hostname = False
    client.verify_flags |= _NO_CHECK_TIME
    client.load_verify_locations(ca)
    there, back = ssl.MemoryBIO(), ssl.MemoryBIO()
    asking, answering = client.wrap_bio(back, there), server.wrap_bio(there, back, server_side=True)
    waiting = [asking, answering]
    while waiting:
        for end in [*waiting]:
            try:
                end.do_handshake()
                waiting.remove(end)
            except ssl.SSLWantReadError:
                continue
            except ssl.SSLError:
                return None
    return asking.getpeercert()
