"""One gossip update: every device moves towards its neighbours."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from conformesh.common.array_types import Floats
from conformesh.kernels.compilation import has_compiled_twin
from conformesh.kernels.threads import run_in_blocks

_BLOCK_NUMBERS = 8192  # float64 numbers: 64 KB of temporaries stay in a core's own cache and need no new memory pages


def gossip_step(x: Floats, neighbours: NDArray[Any], sent: NDArray[Any], strength: Floats, step: float) -> None:
    """Move x in place: ``x_k += step * (neighbours_k - strength_k * sent_k)`` for every device k.

    Parameters
    ----------
    x
        Shape (devices, ...), C-ordered; the same strength holds for all numbers of a device.
    neighbours
        The weighted sum of what each device received, in any float type.
    sent
        What each device sent: `x` itself, or `x` as rounded for the message.
    strength
        The sum of the weights of a device's neighbours, shape (devices,).
    step
        1, or less for relaxed averaging.
    """
    table = x.reshape(len(x), -1)
    received = np.ascontiguousarray(neighbours, dtype=np.float64).reshape(table.shape)
    as_sent = table if sent is x else np.ascontiguousarray(sent, dtype=np.float64).reshape(table.shape)
    move_rows(table, received, as_sent, strength, step)


@has_compiled_twin("gossip", work=lambda x, *_: x.size)
def move_rows(x: Floats, neighbours: Floats, sent: Floats, strength: Floats, step: float) -> None:
    """Take a gossip step with tables (devices, numbers); `sent` may be `x` itself."""

    def block(first: int, last: int) -> None:
        many = max(1, _BLOCK_NUMBERS // max(x.shape[1], 1))  # rows
        for a in range(first, last, many):
            b = min(a + many, last)
            move = strength[a:b, None] * sent[a:b]
            np.subtract(neighbours[a:b], move, out=move)
            move *= step
            x[a:b] += move

    run_in_blocks(block, len(x), 2 * x.size)
