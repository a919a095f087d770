"""One gossip update, fused: no temporary of the size of the message."""

from __future__ import annotations

from typing import Any

from conformesh.common.array_types import Floats
from conformesh.kernels.compiled import loop
from conformesh.kernels.threads import run_in_blocks


def move_rows_compiled(x: Floats, neighbours: Floats, sent: Floats, strength: Floats, step: float) -> None:
    """Take a gossip step in blocks of rows, see `kernels.gossip.move_rows`."""

    def block(a: int, b: int) -> None:
        if sent is x:
            _move_unrounded(x[a:b], neighbours[a:b], strength[a:b], step)
        else:
            _move(x[a:b], neighbours[a:b], sent[a:b], strength[a:b], step)

    run_in_blocks(block, len(x), 2 * x.size)


@loop
def _move(x: Any, neighbours: Any, sent: Any, strength: Any, step: float) -> None:
    for k in range(x.shape[0]):
        for m in range(x.shape[1]):
            x[k, m] += step * (neighbours[k, m] - strength[k] * sent[k, m])


# The same with `sent` and `x` in one array: a compiler that knows this can vectorise the loop.
@loop
def _move_unrounded(x: Any, neighbours: Any, strength: Any, step: float) -> None:
    for k in range(x.shape[0]):
        for m in range(x.shape[1]):
            x[k, m] += step * (neighbours[k, m] - strength[k] * x[k, m])
