"""Start an MPI job, and read what its first rank printed."""

import json
import os
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

import conformesh
from tests.compiled import compile_replies

ROOT = Path(__file__).parents[2]
PATIENCE = 300  # seconds; a job that hangs is a failure


def mpiexec():
    """Return the command that starts ranks, or skip."""
    pytest.importorskip("mpi4py", reason="MPI tests need the extra: pip install 'conformesh[mpi]'")
    found = shutil.which("mpiexec", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}")
    if found is None:
        pytest.skip("MPI tests need mpiexec: pip install 'conformesh[mpi]'")
    return found


def start(ranks, *words, **extra):
    """Run a Python module on some ranks."""
    paths = [str(Path(conformesh.__file__).parents[1]), str(ROOT)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "NUMBA_NUM_THREADS": "1"}
    command = [mpiexec(), "-n", str(ranks), sys.executable, "-m", *map(str, words)]
    return subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=PATIENCE, check=False, **extra
    )


@cache
def job(ranks, *words):
    """Run a job of `tests.engines.mpi_jobs` once, and return its JSON; its ranks find on disk what is compiled."""
    compile_replies()
    done = start(ranks, "tests.engines.mpi_jobs", *words)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)
