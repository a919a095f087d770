"""Decides for each call of a kernel whether NumPy or the compiled twin answers.

Numba takes most of a second to load, more than a usual calibration takes from start to end. So a kernel whose loop
NumPy cannot run quickly exists twice, with the same bits: in NumPy, and as a loop for Numba in `kernels.compiled`. A
function with such a twin is marked by `has_compiled_twin` and its twin has the same name with ``_compiled`` at its end;
`TWINS` lists all of them, and one test compares all of them. Where Numba can compile the Python source as it is, there
is only that source (`kernels.replies`, the root finder of `kernels.pinball`).

Loading is put off until it pays: each call that NumPy answers adds what it loses against the compiled loop (`LOSS`
times the work of the call) to an account, and once a kernel has lost what loading costs, its loops are loaded and
answer from then on. So a single large call is compiled at once, many small ones after a while, and nobody waits for
longer than about twice the best of both ways.

A device must not stop to compile while its neighbours wait for it. `compiled_beforehand` is for nodes: what a run needs
is loaded before it begins, and nothing is loaded before it has ended.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import wraps
from importlib import import_module
from typing import Any, ParamSpec, TypeVar

LOADING = 1.0  # seconds to import Numba and load the first loops from its cache on disk
_LOADING_MORE = 0.1  # share of `LOADING` that the loops of another kernel take once Numba is imported
CALL = 1e-5  # seconds that NumPy loses by a call, however small: several NumPy calls in place of one loop
LOSS = {  # seconds that NumPy loses besides per unit of work, by kernel, as measured on two busy cores
    "gossip": 1.5e-9,  # a number moved
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

_Parameters = ParamSpec("_Parameters")
_Returned = TypeVar("_Returned")


class Twin:
    """A function in NumPy that has a compiled twin."""

    def __init__(self, kernel: str, numpy: Callable[..., Any]) -> None:
        self.kernel, self.numpy = kernel, numpy
        self._name = f"{numpy.__name__}_compiled"

    @property
    def compiled(self) -> Callable[..., Any]:
        """The compiled twin; loads Numba."""
        twin: Callable[..., Any] = getattr(load_loops(self.kernel), self._name)
        return twin


TWINS: dict[str, Twin] = {}  # by the name of the function, filled as the modules of kernels are imported
_loaded: dict[str, Any] = {}
_lost = dict.fromkeys(LOSS, 0.0)  # seconds, by kernel
# Of the thread that runs a node's calibration: it must not load anything, other threads of the process may.
_in_a_run = ContextVar("in_a_run", default=False)


def has_compiled_twin(
    kernel: str, work: Callable[..., float]
) -> Callable[[Callable[_Parameters, _Returned]], Callable[_Parameters, _Returned]]:
    """Mark a NumPy function that has a twin in `kernels.compiled`, which answers where that pays.

    Parameters
    ----------
    kernel
        The module in `kernels.compiled`, an entry of `LOSS`.
    work
        Called with the function's arguments: the work of the call, in the unit of `LOSS`. The twin takes the same
        arguments and returns and writes the same bits.
    """

    def decorate(function: Callable[_Parameters, _Returned]) -> Callable[_Parameters, _Returned]:
        twin = TWINS[function.__name__] = Twin(kernel, function)

        @wraps(function)
        def dispatch(*args: _Parameters.args, **kwargs: _Parameters.kwargs) -> _Returned:
            # Once loaded the work need not be counted: a protocol calls small kernels thousands of times.
            if kernel not in _loaded and compiled_loops(kernel, work(*args, **kwargs)) is None:
                return function(*args, **kwargs)
            answer: _Returned = twin.compiled(*args, **kwargs)
            return answer

        return dispatch

    return decorate


def compiled_loops(kernel: str, work: float) -> Any:
    """Return the compiled loops of a kernel if they are to do so much work, or None: then NumPy is to do it.

    The work is counted in additions, comparisons or whatever the kernel repeats, as its entry in `LOSS` has it.
    """
    loops = _loaded.get(kernel)
    if loops is None and not _in_a_run.get():
        _lost[kernel] += CALL + LOSS[kernel] * work
        if _lost[kernel] >= _loading_time():
            loops = load_loops(kernel)
    return loops


def _loading_time() -> float:
    return LOADING * _LOADING_MORE if "numba" in sys.modules else LOADING


def expect_work(kernel: str, work: float) -> None:
    """Load a kernel's loops at once if so much work is to come that this pays, before any of it is lost."""
    if LOSS[kernel] * work >= _loading_time() and not _in_a_run.get():
        load_loops(kernel)


def load_loops(kernel: str) -> Any:
    """Load the compiled loops of a kernel, to be used from now on in this process."""
    if kernel not in _loaded:
        _loaded[kernel] = import_module(f"conformesh.kernels.compiled.{kernel}")
    return _loaded[kernel]


@contextmanager
def compiled_beforehand(kernels: Iterable[str], work: float) -> Iterator[None]:
    """Compile everything before a run that pays, and nothing within it.

    Small work needs no compiler and none is loaded: NumPy then does the whole run, whatever it comes to. Enter before
    the roll call; the setting belongs to the calling thread.

    Parameters
    ----------
    kernels
        Those whose loops a long run would use, `Method.kernels`.
    work
        What a device has to do in the run, about: its scores, or the devices on its map where they are more.
    """
    for kernel in kernels:
        # Already at a tenth of the loading time: within the run nothing is loaded any more, however much it loses.
        if LOSS[kernel] * work >= LOADING / 10:
            compile_kernel(kernel)
    token = _in_a_run.set(True)
    try:
        yield
    finally:
        _in_a_run.reset(token)


def compile_kernel(kernel: str) -> None:
    """Load a kernel's loops and compile them for the types that a device uses, or fetch them from the disk."""
    loops = load_loops(kernel)
    if hasattr(loops, "compile_all"):
        loops.compile_all()
