"""ATTACKS: what Byzantine devices send in the simulator, one function each.

Byzantine devices know the reports of all others before they send theirs. An attack turns the honest report of a device
into a false one (`histogram_reports`); before that, all of them claim scores that reach as far as numbers do,
to spoil the grid. The first line of an attack's docstring is its help.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from conformesh.common.names import unknown_name
from conformesh.common.random_streams import random_stream
from conformesh.protocols.block import Block
from conformesh.protocols.faults import Faults
from conformesh.protocols.gather import ClaimedStrings, Claims
from conformesh.protocols.histogram_reports import (
    ENDS_CODE,
    Report,
    decode_ends,
    decode_reports,
    encode_ends,
    encode_reports,
    grid_edges,
)
from conformesh.protocols.messages import Gather, Packets

FARTHEST_SCORE = 1e300  # claimed ends of the scores: a grid that followed them would have one useful bin
_SIZE_FACTOR = 1000  # factor by which a Byzantine device exaggerates its size: more than all honest devices together
_NOISE_WIDTH = 0.5  # standard deviation of noise, as a share of the grid


@dataclass(frozen=True, eq=False)
class AttackerView:
    """What a Byzantine device knows when it sends: the honest reports of this trial, and a random generator."""

    honest: Sequence[Report]
    chance: np.random.Generator


_AttackFunction = Callable[[Report, AttackerView], Report]


def scores_from_report(report: Report) -> NDArray[np.float64]:
    """Return scores that would have this report: each as large as its bin allows, the others +inf."""
    where, more = report.points
    rest = report.size - int(more.sum())
    return np.concatenate([np.repeat(where, more), np.full(rest, np.inf)])


def _false_report(mine: Report, places: NDArray[np.int64], counts: NDArray[np.int64], size: int) -> Report:
    """Return a report with these bins, on the grid of the honest report."""
    kept = counts > 0
    return replace(mine, size=size, places=places[kept], counts=counts[kept], above=0, top=mine.high)


def _all_low(mine: Report, scene: AttackerView) -> Report:
    """All scores are very low, so that thresholds fall and honest examples are missed."""
    return _false_report(mine, np.zeros(1, np.int64), np.array([mine.size]), mine.size)


def _all_high(mine: Report, scene: AttackerView) -> Report:
    """All scores are very high, so that sets grow."""
    return _false_report(mine, np.empty(0, np.int64), np.empty(0, np.int64), mine.size)


def _two_faced(mine: Report, scene: AttackerView) -> Report:
    """One report to some devices and another to the others, which both come round."""
    return mine


def mimicry_attack(mine: Report, scene: AttackerView) -> Report:
    """As low as honest devices go: at every threshold the share of the one that has most of its scores there."""
    edges, shares = grid_edges(mine.low, mine.high, mine.bins), np.zeros(mine.bins)
    for one in scene.honest:
        where, more = one.points
        below = np.concatenate([[0], np.cumsum(more)])[np.searchsorted(where, edges, side="right")]
        shares = np.maximum(shares, below / max(one.size, 1))
    counts = np.diff(np.floor(shares * mine.size + 1e-9), prepend=0.0).astype(np.int64)
    return _false_report(mine, np.arange(mine.bins), counts, mine.size)


def _size_lie(mine: Report, scene: AttackerView) -> Report:
    """A thousand times as many scores, all very low, so that nobody else counts."""
    return _all_low(replace(mine, size=_SIZE_FACTOR * mine.size), scene)


def _size_high(mine: Report, scene: AttackerView) -> Report:
    """A thousand times as many scores, all very high, which without a cap makes thresholds infinite."""
    return _all_high(replace(mine, size=_SIZE_FACTOR * mine.size), scene)


def noise_attack(mine: Report, scene: AttackerView) -> Report:
    """Scores with Gaussian noise, half as wide as the grid."""
    scores = scores_from_report(mine)
    shifted = scores + scene.chance.normal(scale=_NOISE_WIDTH * (mine.high - mine.low), size=len(scores))
    return Report.of(np.sort(shifted), mine.low, mine.high, mine.bins)


def copy_attack(mine: Report, scene: AttackerView) -> Report:
    """What an honest device says, again."""
    return scene.honest[int(scene.chance.integers(len(scene.honest)))] if scene.honest else mine


ATTACKS: dict[str, _AttackFunction] = {
    "all-low": _all_low,
    "all-high": _all_high,
    "two-faced": _two_faced,
    "mimicry": mimicry_attack,
    "size-lie": _size_lie,
    "size-high": _size_high,
    "noise": noise_attack,
    "copy": copy_attack,
}


def make_attack(faults: Faults) -> ClaimedStrings:
    """Return the attack of these faults."""
    if faults.attack not in ATTACKS:
        raise ValueError(unknown_name("attack", faults.attack, ATTACKS))
    lie = ATTACKS[faults.attack]

    def attack(message: Gather, block: Block) -> Claims:
        return Claims(*_attacked_strings(message, block, faults, lie))

    return attack


def _attacked_strings(
    message: Gather, block: Block, faults: Faults, lie: _AttackFunction
) -> tuple[Packets, NDArray[np.bool_]]:
    """Return the strings of all devices, and which of them send two different ones."""
    if len(block.rows) < block.devices:
        raise ValueError(
            "Byzantine devices know all reports, which only the simulator does; leave engine at its default"
        )
    for row in faults.byzantine:
        if not 0 <= row < block.devices:
            raise ValueError(f"Byzantine devices are rows of the network, from 0 to {block.devices - 1}, got {row}")
    said = [message.packets[place] for place in block.local(np.arange(block.devices)).tolist()]  # by row
    byzantine = sorted({*faults.byzantine})
    if said[0][:1] == bytes([ENDS_CODE]):
        told = {row: _false_ends(said[row]) if lie is not _two_faced else said[row] for row in byzantine}
    else:
        told = _false_reports(said, block, byzantine, faults.seed, lie)
    mine = [told.get(row, said[row]) for row in block.rows.tolist()]
    return Packets.of(mine), np.isin(block.rows, byzantine) if lie is _two_faced else np.zeros(
        len(mine), dtype=np.bool_
    )


def _false_ends(said: bytes) -> bytes:
    low, high = decode_ends(said, (len(said) - 1) // 16)
    return encode_ends(np.full_like(low, -FARTHEST_SCORE), np.full_like(high, FARTHEST_SCORE))


def _false_reports(
    said: Sequence[bytes], block: Block, byzantine: Sequence[int], seed: int, lie: _AttackFunction
) -> dict[int, bytes]:
    """Return the false string of each Byzantine device."""
    known = [decode_reports(one, block.trials, np.iinfo(np.int64).max) for one in said]
    honest = [own for row, own in enumerate(known) if row not in byzantine]
    told = {}
    for row in byzantine:
        scenes = [
            AttackerView([own[t] for own in honest], random_stream(seed, "lies", row, t)) for t in range(block.trials)
        ]
        told[row] = encode_reports([lie(known[row][t], scene) for t, scene in enumerate(scenes)])
    return told
