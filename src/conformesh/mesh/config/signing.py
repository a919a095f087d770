"""The authority's signature of a roster: ECDSA on P-256 with SHA-256, as two numbers of 32 bytes.

Of the two signatures that this curve allows for one text only the one with the smaller second number is made and
accepted, so that there is one document for each roster that was signed. `cryptography` is imported by the functions
that need it: a mesh without certificates does without its 12 MB.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from conformesh.mesh.config.roster import Roster, RosterDocument

CURVE_ORDER = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551  # of the curve P-256 (FIPS 186)
_NUMBER_DIGITS = 64  # hexadecimal digits of each of the two numbers of a signature: 256 bits
WRONG_SIGNATURE = "its signature is not that of this mesh's authority"
NO_SIGNATURE = "it has no signature, and this mesh has an authority"


def sign_text(text: bytes, authority: Path) -> str:
    """Return the signature of a text by the authority in a folder."""
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature

    from conformesh.mesh.config.certificates import CA_KEY, load_key

    r, s = decode_dss_signature(load_key(authority / CA_KEY).sign(text, ec.ECDSA(_sha256())))
    return f"{r:0{_NUMBER_DIGITS}x}{min(s, CURVE_ORDER - s):0{_NUMBER_DIGITS}x}"


def is_signed(text: bytes, signature: str, ca: Path) -> bool:
    """Whether this is the signature of a text by the authority with this certificate."""
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.asymmetric.utils import encode_dss_signature

    from conformesh.mesh.config.certificates import load_certificate

    r, s = int(signature[:_NUMBER_DIGITS], 16), int(signature[_NUMBER_DIGITS:], 16)
    # The curve accepts n - s as well as s. Only the smaller counts, or one roster would have two documents.
    if s > CURVE_ORDER // 2:
        return False
    try:
        load_certificate(ca).public_key().verify(encode_dss_signature(r, s), text, ec.ECDSA(_sha256()))
    except InvalidSignature:
        return False
    return True


def signed_document(roster: Roster, root: Path, insecure: bool) -> RosterDocument:
    """Return a roster as a document to hand out: signed, if the mesh has an authority."""
    from conformesh.mesh.config.roster import RosterDocument

    return RosterDocument(roster, "" if insecure else sign_text(roster.text(), root / "ca"))


def verify_document(document: RosterDocument, ca: Path) -> None:
    """Raise a ValueError unless the authority has signed the document."""
    if not document.signature or not is_signed(document.roster.text(), document.signature, ca):
        raise ValueError(f"roster {document.roster.number}: {WRONG_SIGNATURE if document.signature else NO_SIGNATURE}")


def _sha256() -> Any:
    from cryptography.hazmat.primitives.hashes import SHA256

    return SHA256()
