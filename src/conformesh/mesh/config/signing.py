"""The authority's signature of a roster: ECDSA on P-256 with SHA-256, as two numbers of 32 bytes.

Of the two signatures that this curve allows for one text only the one with the smaller second number is made and
accepted, so that there is one document for each roster that was signed. A node verifies in a process of its own
(`verify_apart`), which ends with the answer: `cryptography` would stay in its memory for as long as it is up.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from conformesh.mesh.config.certificates import CA, CA_KEY, load_certificate, load_key
from conformesh.mesh.config.roster import Document, Roster, read_document

ORDER = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551  # of the curve P-256
WRONG = "its signature is not that of this mesh's authority"
UNSIGNED = "it has no signature, and this mesh has an authority"


def sign(roster: Roster, authority: Path) -> Document:
    """Sign a roster with the key of a mesh's authority."""
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature

    r, s = decode_dss_signature(load_key(authority / CA_KEY).sign(roster.text(), ec.ECDSA(_sha256())))
    return Document(roster, b"".join(x.to_bytes(32, "big") for x in (r, min(s, ORDER - s))).hex())


def verify(document: Document, ca: Path) -> None:
    """Refuse a document that the authority has not signed."""
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.asymmetric.utils import encode_dss_signature

    if not document.signature:
        raise ValueError(f"roster {document.roster.number}: {UNSIGNED}")
    signature = bytes.fromhex(document.signature)
    r, s = int.from_bytes(signature[:32], "big"), int.from_bytes(signature[32:], "big")
    try:
        if s > ORDER // 2:
            raise InvalidSignature
        key = load_certificate(ca).public_key()
        key.verify(encode_dss_signature(r, s), document.roster.text(), ec.ECDSA(_sha256()))
    except InvalidSignature:
        raise ValueError(f"roster {document.roster.number}: {WRONG}") from None


def verify_apart(document: Document, ca: Path) -> None:
    """Do what `verify` does in a process of its own."""
    import subprocess

    command = [sys.executable, "-m", "conformesh.mesh.config.signing", str(ca)]
    done = subprocess.run(command, input=document.bytes(), capture_output=True, check=False)
    if done.returncode:
        words = done.stderr.decode(errors="replace").strip().rpartition("\n")[2].removeprefix("ValueError: ")
        raise ValueError(words or f"roster {document.roster.number}: its signature cannot be verified")


def document_of(roster: Roster, root: Path, insecure: bool) -> Document:
    """Return a roster as the authority in a mesh's folder gives it out."""
    return Document(roster) if insecure else sign(roster, root / "ca")


def _sha256() -> Any:
    from cryptography.hazmat.primitives.hashes import SHA256

    return SHA256()


if __name__ == "__main__":
    try:
        verify(read_document(sys.stdin.buffer.read()), Path(sys.argv[1]))
    except ValueError as problem:
        sys.exit(f"ValueError: {problem}")

__all__ = ["CA", "document_of", "sign", "verify", "verify_apart"]
