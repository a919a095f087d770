"""What a number looks like between two devices: 16, 32 or 64 bits, rounded for real."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

# Bits of a number on the wire -> the type it is rounded to.
_FORMATS: dict[int, type[np.floating[Any]]] = {16: np.float16, 32: np.float32, 64: np.float64}


@dataclass(frozen=True)
class WireFormat:
    """Round values to the width that travels. 64 bits lose nothing, since devices compute in float64."""

    bits: int = 64

    def __post_init__(self) -> None:
        if self.bits not in _FORMATS:
            raise ValueError(f"wire must be 16, 32 or 64 bits a number, got {self.bits}")

    @property
    def dtype(self) -> type[np.floating[Any]]:
        """The format that travels."""
        return _FORMATS[self.bits]

    @property
    def roundoff(self) -> float:
        """Largest relative error of a rounded normal number; 0 where nothing is rounded."""
        return 0.0 if self.bits == 64 else float(np.finfo(self.dtype).eps) / 2

    @property
    def underflow(self) -> float:
        """Largest absolute error of a rounded subnormal number; 0 where nothing is rounded."""
        return 0.0 if self.bits == 64 else float(np.finfo(self.dtype).smallest_subnormal) / 2

    def __call__(self, x: NDArray[np.float64]) -> NDArray[Any]:
        """Round to nearest; a finite number that does not fit is an error, never an infinity."""
        if self.bits == 64:
            return x
        with np.errstate(over="ignore"):
            sent = x.astype(self.dtype)
        self._check_fits(x, sent)
        return sent

    def outward(self, x: NDArray[np.float64], direction: float) -> NDArray[Any]:
        """Round towards `direction` (+inf or -inf), so that a rounded maximum is never below the true one."""
        if self.bits == 64:
            return x
        sent = self(x)
        back = sent.astype(np.float64)
        short = back < x if direction > 0 else back > x
        moved = np.where(short, np.nextafter(sent, self.dtype(direction)), sent)
        self._check_fits(x, moved)
        return np.asarray(moved)

    def _check_fits(self, x: NDArray[np.float64], sent: NDArray[Any]) -> None:
        lost = np.isinf(sent) & np.isfinite(x)
        if lost.any():
            largest = float(np.abs(x[lost]).max())
            raise OverflowError(
                f"{largest:g} does not fit into {self.bits} bits on the wire (largest {np.finfo(self.dtype).max:g}); "
                "use a wider wire, or scale the scores"
            )
