"""One gossip update, fused: no temporary of the size of the message."""

from __future__ import annotations

from typing import Any

from conformesh.kernels.compiled import loop


@loop
def drift(x: Any, neighbours: Any, sent: Any, strength: Any, step: float) -> None:
    """Move every row of x towards what it heard, away from what it sent."""
    for k in range(x.shape[0]):
        for m in range(x.shape[1]):
            x[k, m] += step * (neighbours[k, m] - strength[k] * sent[k, m])


@loop
def drift_own(x: Any, neighbours: Any, strength: Any, step: float) -> None:
    """Move every row of x, which was sent as it is."""
    for k in range(x.shape[0]):
        for m in range(x.shape[1]):
            x[k, m] += step * (neighbours[k, m] - strength[k] * x[k, m])
