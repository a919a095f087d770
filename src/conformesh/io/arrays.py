"""Arrays from what users have in their hands: tensors of any device and width, columns of frames, masked arrays."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Set
from decimal import Decimal
from numbers import Integral, Real
from typing import Any

import numpy as np
from numpy.typing import NDArray


def as_array(values: Any, what: str) -> NDArray[Any]:
    """Return `values` as an array in its own dtype, or refuse it with a name for what it is.

    Tensors that need gradients are detached and those of 16 bits without a NumPy type widened; other arrays come by
    DLPack. Sparse matrices are filled up, iterators read to their end; missing entries of nullable columns become NaN.
    Masked entries are refused: who masks values does not want them used, and who counts scores must not guess. So are
    sets, which forget equal values.
    """
    if isinstance(values, np.ma.MaskedArray):
        return _unmasked(values, what)
    if isinstance(values, Set | Mapping):
        hint = "a set forgets equal values; give a list" if isinstance(values, Set) else "give its values as a list"
        raise TypeError(f"{what}: needed an array of values, got a {type(values).__name__}; {hint}")
    if isinstance(values, Iterator):
        return np.asarray([*values])
    if hasattr(values, "detach") and hasattr(values, "cpu"):  # a torch tensor, without importing torch
        tensor = values.detach().cpu()
        return np.asarray(tensor.float() if "bfloat16" in str(tensor.dtype) else tensor)
    if hasattr(values, "toarray") and hasattr(values, "nnz"):  # a sparse matrix
        return np.asarray(values.toarray())
    if hasattr(values, "to_numpy"):
        return _of_pandas(values)
    array = _by_protocol(values, what)
    return array.astype(np.float32) if array.dtype.name == "bfloat16" else array


def as_numbers(array: NDArray[Any]) -> NDArray[Any]:
    """Return an array of objects that are numbers as an array of numbers; any other as it is."""
    if array.dtype != np.dtype(object) or not all(isinstance(each, Real | Decimal) for each in array.flat):
        return array
    whole = array.size and all(isinstance(each, Integral) for each in array.flat)
    return array.astype(np.int64 if whole else np.float64)


def columns_of(frame: Any) -> list[str] | None:
    """Return the names of the columns of a frame, a table of Arrow or a structured array; None for anything else."""
    if isinstance(frame, np.ndarray):
        return None if frame.dtype.names is None else [*frame.dtype.names]
    columns = getattr(frame, "column_names", None)  # Arrow's, whose `columns` are the data
    if columns is None:
        columns = getattr(frame, "columns", None)
    return None if columns is None or isinstance(frame, Mapping) or callable(columns) else [str(c) for c in columns]


def _of_pandas(values: Any) -> NDArray[Any]:
    """Return a column or a frame whose missing entries, if it is nullable, are NaN."""
    own = getattr(values, "dtype", None)  # of a column; a frame has one for each of its own
    each = [*getattr(values, "dtypes", ())] if own is None else [own]
    nullable = any(hasattr(kind, "na_value") for kind in each)
    if nullable and all(getattr(kind, "kind", "O") in "fiu" for kind in each):
        return np.asarray(values.to_numpy(dtype=np.float64, na_value=np.nan))
    return np.asarray(values.to_numpy() if nullable else values)


def _by_protocol(values: Any, what: str) -> NDArray[Any]:
    """Return an array by whichever protocol its library has; one on another processor must be copied by its owner."""
    try:
        if hasattr(values, "__dlpack__") and not hasattr(values, "__array__"):
            return np.from_dlpack(values)
        return np.asarray(values)
    except ValueError:
        if not isinstance(values, list | tuple):
            raise
        raise ValueError(
            f"{what}: needed numbers in rows of equal length, got rows of different lengths; give one array for each"
        ) from None
    except (TypeError, BufferError, RuntimeError) as error:
        if not hasattr(values, "__dlpack__"):
            raise
        raise TypeError(
            f"{what}: {type(values).__name__} cannot be read from here ({error}); copy it to the memory of the "
            "processor first, as values.get() or jax.device_get(values) do"
        ) from None


def _unmasked(values: Any, what: str) -> NDArray[Any]:
    masked = int(np.ma.getmaskarray(values).sum())
    if masked:
        raise ValueError(
            f"{what}: {masked:,} of {values.size:,} values are masked; pass values.compressed() to leave them out, or "
            "values.filled(...) to say what they are"
        )
    return np.asarray(np.ma.getdata(values))
