"""Downloads of published files: checked against their MD5, and moved into place only when complete."""

from __future__ import annotations

import hashlib
import http.client
import os
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from conformesh import __version__

DownloadObserver = Callable[[int, int | None], None]  # bytes so far, bytes in all where the server says

DOWNLOAD_CHUNK = 1 << 20  # bytes read at a time, and between two reports of progress
_TIMEOUT = 30.0  # seconds without a byte, after which the download fails


@dataclass(frozen=True)
class PublishedFile:
    """A published file: what it is called, where it is, and its MD5 (None: not known, not checked)."""

    file: str
    url: str
    md5: str | None


def download_folder() -> Path:
    """Return where downloads go: ``conformesh`` in XDG_CACHE_HOME, which is ``~/.cache`` unless set."""
    home = os.environ.get("XDG_CACHE_HOME")
    return (Path(home) if home else Path.home() / ".cache") / "conformesh"


def download_file(source: PublishedFile, folder: Path, observer: DownloadObserver | None = None) -> Path:
    """Download a file into a folder and return its path; after an error the folder is as it was before."""
    target = folder / source.file
    by_hand = f"try again, or get {source.url} some other way and put it there as {target}"
    folder.mkdir(parents=True, exist_ok=True)
    part = folder / f".{source.file}.{os.getpid()}.part"
    try:
        with part.open("wb") as out:
            digest = _receive(source.url, out, observer)
        if source.md5 in (None, digest):
            return part.replace(target)
    except (OSError, http.client.HTTPException, EOFError) as problem:
        why = getattr(problem, "reason", None) or problem
        if isinstance(problem, urllib.error.HTTPError):
            problem.close()
        raise ConnectionError(f"{source.file} could not be downloaded ({why}); {by_hand}") from problem
    finally:
        part.unlink(missing_ok=True)
    raise ConnectionError(f"{source.file}: needed MD5 {source.md5}, what arrived has {digest}; {by_hand}")


def _receive(url: str, out: BinaryIO, observer: DownloadObserver | None) -> str:
    """Copy what a URL sends, and return its MD5."""
    digest, done = hashlib.md5(usedforsecurity=False), 0
    request = urllib.request.Request(url, headers={"User-Agent": f"conformesh/{__version__}"})
    answer: Any
    with urllib.request.urlopen(request, timeout=_TIMEOUT) as answer:
        length = answer.headers.get("Content-Length")
        total = int(length) if length else None
        while chunk := answer.read(DOWNLOAD_CHUNK):
            out.write(chunk)
            digest.update(chunk)
            done += len(chunk)
            if observer is not None:
                observer(done, total)
    if total is not None and done != total:
        raise EOFError(f"the connection ended after {done:,} of {total:,} bytes")
    return digest.hexdigest()
