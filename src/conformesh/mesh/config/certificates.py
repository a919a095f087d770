"""Certificates: an authority signs one for each device of its mesh, and a device presents it to its neighbours.

Keys are on the curve P-256. No error message contains a key. A device's key is written to its folder and to the record
of the change that puts it there (`authority`), which is deleted afterwards. The authority keeps what it signed in
``issued/``, so that a name with its number is given only once.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from conformesh.files.atomic_writes import PRIVATE, make_folder, write_file
from conformesh.mesh.config.certificate_names import certificate_name, check_device_name, parse_certificate_name
from conformesh.mesh.config.endpoints import is_address

CA, CA_KEY, CERT, KEY, ISSUED = "ca.pem", "ca.key", "device.pem", "device.key", "issued"
# A new certificate is already valid on a device whose clock is late by up to this.
_BACKDATED = timedelta(days=1)


@dataclass(frozen=True)
class Identity:
    """What a certificate says: whose it is, for which hosts, from when to when, who signed it, and its SHA-256."""

    name: str
    serial: str
    not_before: datetime
    not_after: datetime
    issuer: str
    hosts: tuple[str, ...]
    fingerprint: str

    @property
    def number(self) -> int:
        """Which of its device's certificates this is, from 1 on; see `certificate_names`."""
        return parse_certificate_name(self.name)[1]


def require_x509() -> Any:
    """Return the module cryptography.x509, or say how to install it."""
    try:
        from cryptography import x509
    except ImportError as problem:
        raise ImportError(f"certificates need cryptography ({problem}): pip install 'conformesh[mesh]'") from problem
    return x509


def make_authority(folder: Path, mesh: str, days: int = 3650) -> Identity:
    """Make the authority of a mesh: ``ca.pem`` for every device, and ``ca.key``, which stays in this folder."""
    x509 = require_x509()
    for name in (CA, CA_KEY):
        if (folder / name).exists():
            raise ValueError(f"{folder / name} is there already: an authority is made once, in a new folder")
    make_folder(folder, 0o700)
    key = _new_key()
    builder = _builder(x509, f"conformesh mesh {mesh}", key.public_key(), days, None)
    builder = builder.issuer_name(_common_name(x509, f"conformesh mesh {mesh}"))
    # path_length 0: the authority signs devices and no further authorities.
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    builder = builder.add_extension(_usage(x509, authority=True), critical=True)
    certificate = builder.sign(key, _sha256())
    write_file(folder / CA_KEY, _key_pem(key), PRIVATE)
    write_file(folder / CA, _pem(certificate))
    return identity_of(x509, certificate)


def sign_device(
    authority: Path, name: str, hosts: Sequence[str], days: int = 365, *, renew: bool = False
) -> tuple[Identity, dict[str, str]]:
    """Make a key for a device and sign its certificate; return what it says and the texts of the device's files.

    The files are ``ca.pem``, ``device.pem`` and ``device.key``. Nothing is written: whoever does so must also keep the
    certificate in the authority's folder under `issued_path` of its name, where the next one is counted from.

    Parameters
    ----------
    authority
        Where `make_authority` made the authority.
    name, hosts
        Whom the certificate names, and the host names and addresses at which it may be met.
    days
        How long it is valid, but never longer than the authority.
    renew
        Whether a name that has a certificate may get another, with the next number.
    """
    x509 = require_x509()
    check_device_name(name)
    if not hosts:
        raise ValueError(f"a certificate for {name!r} needs the host its neighbours reach it at, got none")
    before = issued_certificates(authority, name)
    if before and not renew:
        serial = before[-1].serial
        raise ValueError(f"device name {name!r} has a certificate already (serial {serial}); names are given once")
    shown = certificate_name(name, before[-1].number + 1 if before else 1)
    ca = load_certificate(authority / CA)
    ca_key = load_key(authority / CA_KEY)
    if not ca.extensions.get_extension_for_class(x509.BasicConstraints).value.ca:
        raise ValueError(f"{authority / CA}: the certificate in there is no authority's; copy the right folder")
    if _public(ca_key) != _public(ca):
        raise ValueError(f"{authority}: {CA_KEY} does not belong to {CA}; copy both from the same authority")
    if ca.not_valid_after_utc <= datetime.now(UTC):
        raise ValueError(
            f"{authority / CA}: the authority expired on {ca.not_valid_after_utc:%Y-%m-%d}; make a new mesh"
        )
    key = _new_key()
    builder = _builder(x509, shown, key.public_key(), days, ca.not_valid_after_utc).issuer_name(ca.subject)
    builder = builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
    builder = builder.add_extension(_usage(x509, authority=False), critical=True)
    oid = x509.ExtendedKeyUsageOID  # both: on each link one device is the client and one the server
    builder = builder.add_extension(x509.ExtendedKeyUsage([oid.CLIENT_AUTH, oid.SERVER_AUTH]), critical=False)
    known = [
        x509.IPAddress(ipaddress.ip_address(host)) if is_address(host) else x509.DNSName(host)
        for host in dict.fromkeys(hosts)
    ]
    builder = builder.add_extension(x509.SubjectAlternativeName(known), critical=False)
    from_ca = x509.AuthorityKeyIdentifier.from_issuer_public_key(ca_key.public_key())
    certificate = builder.add_extension(from_ca, critical=False).sign(ca_key, _sha256())
    texts = {KEY: _key_pem(key), CERT: _pem(certificate), CA: _pem(ca)}
    return identity_of(x509, certificate), {name: text.decode("ascii") for name, text in texts.items()}


def issued_path(shown: str) -> str:
    """Return where in its folder an authority keeps the certificate with this name."""
    return f"{ISSUED}/{shown}.pem"


def read_certificate(path: Path) -> Identity:
    """Read what a certificate says."""
    return identity_of(require_x509(), load_certificate(path))


def issued_certificates(authority: Path, name: str) -> list[Identity]:
    """Return what the authority has signed for a device, by number."""
    records = [authority / ISSUED / f"{name}.pem", *(authority / ISSUED).glob(f"{name}~*.pem")]
    return sorted((read_certificate(path) for path in records if path.is_file()), key=lambda one: one.number)


def _builder(x509: Any, name: str, public: Any, days: int, at_most: datetime | None) -> Any:
    if days < 1:
        raise ValueError(f"a certificate must be valid for at least 1 day, got {days}")
    now = datetime.now(UTC).replace(microsecond=0)
    last = now + timedelta(days=days)
    return (
        x509.CertificateBuilder()
        .subject_name(_common_name(x509, name))
        .public_key(public)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _BACKDATED)
        .not_valid_after(last if at_most is None else min(last, at_most))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
    )


def _usage(x509: Any, authority: bool) -> Any:
    never = ("content_commitment", "key_encipherment", "data_encipherment", "key_agreement", "encipher_only")
    uses = dict.fromkeys((*never, "decipher_only"), False)
    return x509.KeyUsage(digital_signature=not authority, key_cert_sign=authority, crl_sign=authority, **uses)


def _common_name(x509: Any, name: str) -> Any:
    return x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])


def identity_of(x509: Any, certificate: Any) -> Identity:
    """Return what a certificate says."""

    def of(subject: Any) -> str:
        return ", ".join(str(part.value) for part in subject.get_attributes_for_oid(x509.NameOID.COMMON_NAME))

    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        hosts = tuple(str(host.value) for host in names)
    except x509.ExtensionNotFound:
        hosts = ()
    first, last = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    name, serial = of(certificate.subject), f"{certificate.serial_number:x}"
    return Identity(name, serial, first, last, of(certificate.issuer), hosts, certificate.fingerprint(_sha256()).hex())


def load_certificate(path: Path) -> Any:
    """Read a certificate."""
    try:
        return require_x509().load_pem_x509_certificate(path.read_bytes())
    except OSError as problem:
        raise ValueError(f"{path}: cannot read the certificate: {problem.strerror}") from problem
    except ValueError:
        raise ValueError(f"{path}: needed a certificate in PEM form, got something else") from None


def load_key(path: Path) -> Any:
    """Read a private key."""
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    try:
        return load_pem_private_key(path.read_bytes(), password=None)
    except OSError as problem:
        raise ValueError(f"{path}: cannot read the private key: {problem.strerror}") from problem
    except Exception:  # any kind, and without its cause: the message must not contain a part of the key
        raise ValueError(f"{path}: needed a private key in PEM form without password, got something else") from None


def _new_key() -> Any:
    from cryptography.hazmat.primitives.asymmetric import ec

    return ec.generate_private_key(ec.SECP256R1())


def _sha256() -> Any:
    from cryptography.hazmat.primitives.hashes import SHA256

    return SHA256()


def _pem(certificate: Any) -> bytes:
    from cryptography.hazmat.primitives.serialization import Encoding

    return bytes(certificate.public_bytes(Encoding.PEM))


def _key_pem(key: Any) -> bytes:
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

    return bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))


def _public(holder: Any) -> bytes:
    """The public key of a private key or a certificate, as bytes that can be compared."""
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

    return bytes(holder.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo))
