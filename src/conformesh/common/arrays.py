"""Arrays from what users have in their hands: tensors of any device and width, columns of frames, masked arrays."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from decimal import Decimal
from itertools import repeat
from numbers import Integral, Real
from typing import Any

import numpy as np
from numpy.typing import NDArray

from conformesh.common.names import natural_order, similar_names
from conformesh.common.notes import emit_note

LARGEST_EXACT = 2**53  # up to here every integer is a float64, and a JSON number that every reader keeps
LARGEST_PROBABILITY = 1.0 + 1e-6  # a softmax in float32 may end a few roundings above one
SUM_SLACK = 1e-3  # how far a row of probabilities may sum from one; their scores exceed their bounds by as much


def as_array(values: Any, what: str) -> NDArray[Any]:
    """Return `values` as an array in its own dtype, or refuse it with a name for what it is.

    Tensors that need gradients are detached and those of 16 bits without a NumPy type widened; other arrays come by
    DLPack. Sparse matrices are filled up, iterators read to their end; missing entries of nullable columns become NaN.
    Masked entries are refused: who masks values does not want them used, and who counts scores must not guess. So are
    sets, which forget equal values.
    """
    # Most arrays are of the class itself, and are asked first: naming `np.ma` imports it.
    if isinstance(values, np.ndarray) and type(values) is not np.ndarray and isinstance(values, np.ma.MaskedArray):
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
    array = values if type(values) is np.ndarray else _by_protocol(values, what)
    return array.astype(np.float32) if array.dtype.name == "bfloat16" else array


def columns_in_order(outputs: Any, classes: Sequence[str], what: str) -> NDArray[Any]:
    """Return outputs as an array, the columns of a frame in the order of the classes; without classes as they are."""
    columns = frame_columns(outputs)
    if columns is None or not classes or columns == [*classes]:
        return as_array(outputs, what)
    if sorted(columns) != sorted(classes):
        wrong = natural_order({*columns} ^ {*classes})
        odd = f"; {wrong[0]!r} is {'missing' if wrong[0] in classes else 'none of them'}" if wrong else ""
        known, got = (", ".join(names[:8]) + ", ..." * (len(names) > 8) for names in (classes, columns))
        raise ValueError(
            f"{what} must have a column for each class, {known}, got {got}{odd}; rename the columns, or pass an array "
            "with the columns in this order"
        )
    return as_array(outputs, what)[:, [columns.index(name) for name in classes]]


def note_large_integers(array: NDArray[Any], what: str) -> None:
    """Say so where integers are too large for float64, in which they are counted, and neighbours become equal."""
    if array.dtype == np.dtype(object) and array.size and all(isinstance(each, Integral) for each in array.flat):
        large = max(map(abs, array.flat))
    else:
        large = max(int(array.max()), -int(array.min())) if array.dtype.kind in "iu" and array.size else 0
    if large > LARGEST_EXACT:
        emit_note(
            f"{what}: integers above 2^53 are rounded to the nearest float, got {large}; numbers that differ by less "
            "become equal: subtract a common offset first"
        )


def note_similar_names(names: Iterable[str], what: str) -> None:
    """Say so where two names are probably meant to be one."""
    if pair := similar_names(names):
        emit_note(
            f"{what} {pair[0]!r} and {pair[1]!r} differ only in white space, case or leading zeros, and are taken for "
            "two; rename one if they are the same"
        )


def note_duplicates(ids: Iterable[Any], where: str, devices: Iterable[Any] | None = None) -> None:
    """Say so where a device has an id twice: an example that is counted twice is no two examples.

    Every device may number its own rows, and rows may have no id: it is empty, None or NaN.
    """
    pairs = zip(repeat(None) if devices is None else devices, ids, strict=False)
    counts = Counter((device, each) for device, each in pairs if _is_id(each))
    (_, twice), times = next(iter(counts.most_common(1)), ((None, None), 0))
    if times > 1:
        emit_note(
            f"{where}: id {str(twice)!r} is there {times} times; if these rows are one example, drop all but one: "
            "coverage is proven for different examples"
        )


def _is_id(each: Any) -> bool:
    return str(each).strip().lower() not in ("", "none", "nan", "nat", "<na>")


def check_index(rows: Any, others: Any, what: str, of: str) -> None:
    """Compare the index of a pandas column with that of the rows that it belongs to; both are read by position.

    The same entries in another order are refused: nobody means that. Other entries get a note.
    """
    one: Any = getattr(rows, "index", None)
    other: Any = getattr(others, "index", None)
    if not hasattr(one, "equals") or not hasattr(other, "equals") or len(one) != len(other) or one.equals(other):
        return
    counted = any(type(each).__name__ == "RangeIndex" for each in (one, other))  # 0, 1, ...: of a column made anew
    if not counted and Counter(one.tolist()) == Counter(other.tolist()):  # labels of mixed types cannot be sorted
        raise ValueError(
            f"{what} have the index of {of} in another order, and are read by position; align them: "
            f"{what}.loc[{of}.index], or pass {what}.to_numpy() if they are in order"
        )
    emit_note(
        f"{what} have another index than {of}, and are read by position; check that row i of both is the same example, "
        f"and pass {what}.to_numpy() if so"
    )


def as_input_rows(inputs: Any, what: str) -> NDArray[np.float64]:
    """Return inputs as a table of numbers, one row each."""
    given = as_array(inputs, what)
    try:
        table = np.asarray(given, dtype=np.float64)
    except (TypeError, ValueError):
        raise TypeError(f"{what} must be numbers, a row for each example, got {str(inputs)[:40]!r}") from None
    if table.ndim not in (1, 2) or not np.isfinite(table).all():
        raise ValueError(f"{what} must be finite numbers, a row for each example, got shape {table.shape}")
    return table[:, None] if table.ndim == 1 else table


def objects_as_numbers(array: NDArray[Any]) -> NDArray[Any]:
    """Return an array of objects that are numbers as an array of numbers; any other as it is."""
    if array.dtype != np.dtype(object) or not all(isinstance(each, Real | Decimal) for each in array.flat):
        return array
    whole = array.size and all(isinstance(each, Integral) for each in array.flat)
    return array.astype(np.int64 if whole else np.float64)


def frame_columns(frame: Any) -> list[str] | None:
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
