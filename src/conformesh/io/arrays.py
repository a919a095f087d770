"""Arrays from what users have in their hands: tensors of any device and width, columns of frames, masked arrays."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray


def as_array(values: Any, what: str) -> NDArray[Any]:
    """Return `values` as an array in its own dtype, or refuse it with a name for what it is.

    Tensors that need gradients are detached and those of 16 bits without a NumPy type widened; missing entries of
    nullable columns become NaN. Masked entries are refused: who masks values does not want them used, and who counts
    scores must not guess.
    """
    if isinstance(values, np.ma.MaskedArray):
        return _unmasked(values, what)
    if hasattr(values, "detach") and hasattr(values, "cpu"):  # a torch tensor, without importing torch
        tensor = values.detach().cpu()
        return np.asarray(tensor.float() if "bfloat16" in str(tensor.dtype) else tensor)
    if hasattr(values, "to_numpy") and hasattr(getattr(values, "dtype", None), "na_value"):  # a nullable pandas column
        kind = getattr(values.dtype, "kind", "O")
        return np.asarray(values.to_numpy(dtype=np.float64, na_value=np.nan) if kind in "fiu" else values.to_numpy())
    array = np.asarray(values)
    return array.astype(np.float32) if array.dtype.name == "bfloat16" else array


def _unmasked(values: Any, what: str) -> NDArray[Any]:
    masked = int(np.ma.getmaskarray(values).sum())
    if masked:
        raise ValueError(
            f"{what}: {masked:,} of {values.size:,} values are masked; pass values.compressed() to leave them out, or "
            "values.filled(...) to say what they are"
        )
    return np.asarray(np.ma.getdata(values))
