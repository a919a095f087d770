"""The authority's signature of a roster: ECDSA on P-256 with SHA-256, as two numbers of 32 bytes.

Of the two signatures that this curve allows for one text only the one with the smaller second number is made and
accepted, so that there is one document for each roster that was signed. A node verifies in a process of its own
(`verify_apart`), which ends with the answer: `cryptography` would stay in its memory for as long as it is up.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from conformesh.mesh.config.roster import Document, Roster

ORDER = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551  # of the curve P-256
DIGITS = 64  # hexadecimal, of each of the two numbers
NOT_SIGNED = 3  # what the process apart ends with, where Python itself never does
WRONG = "its signature is not that of this mesh's authority"
UNSIGNED = "it has no signature, and this mesh has an authority"


def sign(text: bytes, authority: Path) -> str:
    """Return the signature of a text by the authority in a folder."""
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature

    from conformesh.mesh.config.certificates import CA_KEY, load_key

    r, s = decode_dss_signature(load_key(authority / CA_KEY).sign(text, ec.ECDSA(_sha256())))
    return f"{r:0{DIGITS}x}{min(s, ORDER - s):0{DIGITS}x}"


def is_signed(text: bytes, signature: str, ca: Path) -> bool:
    """Whether this is the signature of a text by the authority with this certificate."""
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.asymmetric.utils import encode_dss_signature

    from conformesh.mesh.config.certificates import load_certificate

    r, s = int(signature[:DIGITS], 16), int(signature[DIGITS:], 16)
    if s > ORDER // 2:
        return False
    try:
        load_certificate(ca).public_key().verify(encode_dss_signature(r, s), text, ec.ECDSA(_sha256()))
    except InvalidSignature:
        return False
    return True


def document_of(roster: Roster, root: Path, insecure: bool) -> Document:
    """Return a roster as whoever keeps a mesh's folder gives it out: signed, if the mesh has an authority."""
    from conformesh.mesh.config.roster import Document

    return Document(roster, "" if insecure else sign(roster.text(), root / "ca"))


def verify(document: Document, ca: Path) -> None:
    """Refuse a document that the authority has not signed."""
    _judge(document, document.signature != "" and is_signed(document.roster.text(), document.signature, ca))


def verify_apart(document: Document, ca: Path) -> None:
    """Do what `verify` does in a process of its own."""
    import subprocess

    if not document.signature:
        _judge(document, False)
    command = [sys.executable, "-m", "conformesh.mesh.config.signing", str(ca), document.signature]
    done = subprocess.run(command, input=document.roster.text(), capture_output=True, check=False)
    if done.returncode not in (0, NOT_SIGNED):
        raise ValueError(f"{ca}: cannot verify roster {document.roster.number}: {done.stderr.decode()[-500:]}")
    _judge(document, done.returncode == 0)


def _judge(document: Document, good: bool) -> None:
    if not good:
        raise ValueError(f"roster {document.roster.number}: {WRONG if document.signature else UNSIGNED}")


def _sha256() -> Any:
    from cryptography.hazmat.primitives.hashes import SHA256

    return SHA256()


def _main(ca: str, signature: str) -> int:
    try:
        return 0 if is_signed(sys.stdin.buffer.read(), signature, Path(ca)) else NOT_SIGNED
    except ValueError as problem:
        print(problem, file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(_main(*sys.argv[1:]))
