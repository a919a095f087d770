"""Provenance of rows: a digest of the code that decides numbers, and a description of the machine."""

from __future__ import annotations

import hashlib
import os
import platform
from collections.abc import Iterable
from functools import cache
from pathlib import Path

import conformesh

# The files of the package on which every calibration depends. Whole packages, so that a file that is added, moved or
# split inside one of them still counts. A changed comment computes rows again, which costs only time.
CALIBRATION_SOURCES = (
    "common/*.py",
    "kernels/**/*.py",
    "files/*.py",
    "scores/**/*.py",
    "graph/*.py",
    "privacy/*.py",
    "protocols/**/*.py",
    "engines/**/*.py",
    "pipeline/*.py",
    "results/certificate.py",
    "lab/datasets/*.py",
    "guarantee.py",
    "methods.py",
    "table.py",
)


def digest_package_files(patterns: Iterable[str]) -> str:
    """Return a digest of the package's files that match, so that results of older code are not reused."""
    root = Path(conformesh.__file__).parent
    digest = hashlib.sha256()
    files = {pattern: [*root.glob(pattern)] for pattern in patterns}
    gone = [pattern for pattern, matches in files.items() if not matches]
    if gone:  # a moved file would silently drop out of the digest
        raise LookupError(f"no file of the package matches {gone[0]!r}")
    for file in sorted({file for matches in files.values() for file in matches}):
        digest.update(file.relative_to(root).as_posix().encode() + file.read_bytes())
    return digest.hexdigest()[:16]


@cache
def describe_machine() -> str:
    """Return system, processor, cores and Python version."""
    return (
        f"{platform.system()} {platform.machine()}, {_processor()}, {os.cpu_count()} cores, "
        f"Python {platform.python_version()}"
    )


def _processor() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or "unknown processor"
