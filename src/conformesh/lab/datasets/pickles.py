"""Pickles that can only hold data: numbers, text, containers and arrays of numbers.

A pickle is a program, and loading one usually runs it. Here every name it asks for is looked up in `_KNOWN`, whose
entries only store their arguments; arrays are then built from their bytes. Any other name raises an error.
"""

from __future__ import annotations

import io
import pickle
import re
from typing import Any

import numpy as np
from numpy.typing import NDArray

# Codes of NumPy for booleans, integers and floats. Objects and structures are not data.
_NUMBER = re.compile(r"b1|[iu][1248]|f[248]")


class _Dtype:
    """What stands for `numpy.dtype` in a pickle: the code of a kind of number, and its byte order."""

    def __init__(self, code: Any, *_: Any) -> None:
        self.code, self.order = _text(code), "="

    def __setstate__(self, state: Any) -> None:
        self.order = _text(state[1])

    def get(self) -> np.dtype[Any]:
        if not _NUMBER.fullmatch(self.code) or self.order not in ("=", "|", "<", ">"):
            raise pickle.UnpicklingError(f"an array must hold numbers, got dtype {self.code!r}")
        return np.dtype(self.order + self.code)


class _Array:
    """What stands for `numpy.ndarray` in a pickle."""

    value: NDArray[Any]

    def __setstate__(self, state: Any) -> None:
        _, shape, dtype, fortran, raw = state
        self.fill(raw, dtype, shape, "F" if fortran else "C")

    def fill(self, raw: Any, dtype: Any, shape: Any, order: Any) -> None:
        if not isinstance(raw, bytes | bytearray) or not isinstance(dtype, _Dtype):
            raise pickle.UnpicklingError("an array must be given as the bytes of its numbers")
        self.value = np.frombuffer(raw, dtype.get()).reshape(shape, order="F" if _text(order) == "F" else "C")


def _blank(*_: Any) -> _Array:
    return _Array()


def _filled(raw: Any, dtype: Any, shape: Any, order: Any, *_: Any) -> _Array:
    array = _Array()
    array.fill(raw, dtype, shape, order)
    return array


def _bytes(text: str, *_: Any) -> bytes:
    """Bytes as Python 3 writes them for Python 2: text with one character for each byte."""
    return text.encode("latin1")


def _text(value: Any) -> str:
    return value.decode("latin1") if isinstance(value, bytes) else str(value)


_KNOWN: dict[tuple[str, str], Any] = {
    ("numpy", "ndarray"): _Array,
    ("numpy", "dtype"): _Dtype,
    ("_codecs", "encode"): _bytes,
    **{(f"numpy.{core}.multiarray", "_reconstruct"): _blank for core in ("core", "_core")},
    **{(f"numpy.{core}.numeric", "_frombuffer"): _filled for core in ("core", "_core")},
    **{
        (builtins, kind.__name__): kind
        for builtins in ("builtins", "__builtin__")  # Python 3, Python 2
        for kind in (dict, list, tuple, set, frozenset)
    },
}


class _RefusedError(Exception):
    """The pickle asks for something that is no data."""


class _DataOnly(pickle.Unpickler):
    def find_class(self, module: str, name: str, /) -> Any:
        if (module, name) not in _KNOWN:
            raise _RefusedError(f"{module}.{name}")
        return _KNOWN[module, name]


def read_pickled(data: bytes, name: str) -> dict[str, Any]:
    """Return the dictionary in a pickle, arrays among its values as arrays; `name` is the file, for errors.

    >>> read_pickled(pickle.dumps({b"data": np.arange(3)}), "batch")
    {'data': array([0, 1, 2])}
    """
    try:
        found = _DataOnly(io.BytesIO(data), encoding="bytes").load()
        if isinstance(found, dict):
            return {_text(key): value.value if isinstance(value, _Array) else value for key, value in found.items()}
    except _RefusedError as asked:
        raise ValueError(
            f"{name}: its pickle asks for {asked}, which is no data and was not loaded; needed a dictionary of arrays "
            "and lists, take the file from its official source"
        ) from None
    except Exception as problem:  # a damaged pickle can raise any exception
        why = str(problem) or type(problem).__name__
        raise ValueError(f"{name}: cannot be read as a pickled dictionary: {why}; is the file complete?") from None
    raise ValueError(f"{name}: needs a pickled dictionary, got {type(found).__name__}")
