"""Recorded calls over two MPI ranks: one job replays them all."""

import json
from functools import cache

from tests.compiled import compile_replies
from tests.engines.mpi import start

RANKS = 2


@cache
def mpi_answers():
    """Return the answers of the calls whose engine is MPI, by id; skips a test where there is no MPI."""
    compile_replies()  # once, and not by both ranks at the same time
    done = start(RANKS, "tests.recorded.replay")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)
