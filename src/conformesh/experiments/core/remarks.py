"""Why a case differs from what was published, in words that several experiments share."""

from __future__ import annotations

WRITTEN_Q = (
    "the published curves come from other conventions than the text's: self-loops in the graph, half the best c, an "
    "error term from the last iterate; the text's own converge sooner"
)
WRITTEN_H = (
    "the error term grows with the largest n_k: with the text's n_k = 50 it is smaller than in the code, where n_k "
    "varies, and on the cycle that decides"
)
ANCHORED = (
    "the regulariser holds the estimate at s₀, the average of the local quantiles, which is not within ε₀ of the "
    "pooled quantile: Assumption 4.1 is false on this data"
)
FULL_SETS = (
    "confidences crowd at 1: the required quantile lies within 0.003 of the largest score, less than the error terms "
    "of Q-DCP, so that its sets hold every label"
)
COARSE = "confidences crowd at 1, where the levels of a uniform quantiser are coarse"


def for_confidences(why: str) -> dict[str, str]:
    """Return the same remark for both variants with confidences."""
    return {"as-written, confidences": why, "as-released, confidences": why}
