"""When a loop runs compiled: decided here, by what NumPy would lose.

Numba takes most of a second to load, more than a usual calibration takes from start to end. So every kernel exists
twice, with the same bits: in NumPy, and as a loop for Numba in `kernels.compiled`. Loading is put off until it pays:
each call that NumPy answers books what it loses against the compiled loop (`LOSS`, times the work of the call), and
once a kernel has lost what loading costs, its loops are loaded and answer from then on. So a single large call is
compiled at once, many small ones after a while, and nobody waits for longer than about twice the best of both ways.

A device must not stop to compile while its neighbours wait for it. `prepared` is for nodes: what a run needs is loaded
before it begins, and nothing is loaded before it has ended.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from importlib import import_module
from typing import Any

LOADING = 1.0  # seconds to load Numba and the first loops, those of the kernels loaded later take a tenth
CALL = 1e-5  # seconds that NumPy loses by a call, however small: several small steps in place of one
LOSS = {  # seconds that it loses besides for each unit of work, by kernel, as measured on two busy cores
    "drift": 1.5e-9,  # a number moved
    "graph": 5e-8,  # an edge looked at
    "label_scores": 1e-8,  # an entry of the table
    "neighbours": 1e-9,  # a number added or compared
    "pinball": 2e-5,  # a root
    "poisson_binomial": 6e-10,  # a product
    # A score or a bit read. From whole runs of e-dcp in both ways, 100 to 5,000 devices with 20 to 10,000 scores each:
    # 3e-7 to 1e-6. A larger figure loads Numba for a run of 1,000 devices, which NumPy ends in a third of a second.
    "replies": 5e-7,
    "segments": 3e-8,  # a count
}

_loaded: dict[str, Any] = {}
_lost = dict.fromkeys(LOSS, 0.0)
_in_a_run = ContextVar("in_a_run", default=False)


def compiled(kernel: str, work: float) -> Any:
    """Return the compiled loops of a kernel if they are to do so much work, or None: then NumPy is to do it.

    The work is counted in additions, comparisons or whatever the kernel repeats, as its entry in `LOSS` has it.
    """
    loops = _loaded.get(kernel)
    if loops is None and not _in_a_run.get():
        _lost[kernel] += CALL + LOSS[kernel] * work
        if _lost[kernel] >= (LOADING / 10 if "numba" in sys.modules else LOADING):
            loops = load(kernel)
    return loops


def expect(kernel: str, work: float) -> None:
    """Load a kernel's loops at once if so much work is to come that this pays, before any of it is lost."""
    if LOSS[kernel] * work >= (LOADING / 10 if "numba" in sys.modules else LOADING) and not _in_a_run.get():
        load(kernel)


def load(kernel: str) -> Any:
    """Load the compiled loops of a kernel, to be used from now on in this process."""
    if kernel not in _loaded:
        _loaded[kernel] = import_module(f"conformesh.kernels.compiled.{kernel}")
    return _loaded[kernel]


@contextmanager
def prepared(kernels: Iterable[str], work: float) -> Iterator[None]:
    """Have everything compiled before a run, and nothing compiled within it.

    Small work needs no compiler and none is loaded: the run is then NumPy's, whatever it comes to. Enter before the
    roll call; the setting belongs to the calling thread.

    Parameters
    ----------
    kernels
        Those whose loops a long run would use, `Method.kernels`.
    work
        What a device has to do in the run, about: its scores, or the devices on its map where they are more.
    """
    for kernel in kernels:
        if LOSS[kernel] * work >= LOADING / 10:
            compile_now(kernel)
    token = _in_a_run.set(True)
    try:
        yield
    finally:
        _in_a_run.reset(token)


def compile_now(kernel: str) -> None:
    """Load a kernel's loops and compile them for the types that a device uses, or fetch them from the disk."""
    loops = load(kernel)
    if hasattr(loops, "compile_all"):
        loops.compile_all()
