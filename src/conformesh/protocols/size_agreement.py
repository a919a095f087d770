"""One device's part in a calibration from beginning to end: who has how many scores, then the method.

Assumes     graph connected, its map known; the method's own assumptions
Guarantees  the method's own
Message     everybody's number of scores, which each device passes on once; then the method's
Departures  a mesh has no server: what a method asks of one (`Pool`) floods the network, everybody's values to
            everybody. Each device passes on all values once, and that hides nothing; such methods are there to compare
            with. What the method costs is counted by what it asks, as everywhere: without the table of sizes, and a
            question to a server as an upload. Who moves the messages counts all of them
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from conformesh.graph.network import Network
from conformesh.kernels.ranks import DEFAULT, Requirement
from conformesh.kernels.weighted_scores import WeightedScores
from conformesh.protocols.block import Answers, Block, SearchProgress
from conformesh.protocols.flood import flood_numbers, flood_strings
from conformesh.protocols.gather import answer_locally
from conformesh.protocols.ledger import Ledger
from conformesh.protocols.messages import Packets, Pool, Protocol

_MOST_EXAMPLES = 2**40  # scores or examples of one device; sums over all of them stay far below 2^63
MethodProtocol = Callable[[Block, WeightedScores], Protocol[Answers]]


def run_with_shared_sizes(
    network: Network,
    row: int,
    samples: WeightedScores,
    method: MethodProtocol,
    requirement: Requirement = DEFAULT,
    alphas: tuple[Fraction, ...] = (),
    items: NDArray[np.int64] | None = None,
    shown: SearchProgress | None = None,
) -> Protocol[Answers]:
    """Run a method on one device, which knows nothing of the others but the map.

    `items` (1, trials) says how many examples it holds, where these are not its scores; `shown` is where it may be seen
    how far it is.
    """
    here = np.array([row])
    nobody = np.zeros((network.devices, samples.trials), dtype=np.int64)
    blank = Block(network, here, nobody, progress=shown or SearchProgress())
    mine = samples.sizes if items is None else np.stack([samples.sizes, items], axis=1)
    table = yield from exchange_counts(blank, mine)
    sizes, held = (table, None) if items is None else (table[:, 0], table[:, 1])
    block = replace(blank, sizes=sizes, requirement=requirement, items=held, alphas=alphas)
    return replace((yield from run_without_server(block, method(block, samples))), sizes=sizes)


def exchange_counts(block: Block, mine: NDArray[np.int64]) -> Protocol[NDArray[np.int64]]:
    """Return how many scores or examples everybody has, by row; refuse a number that no device can have."""
    table = yield from flood_numbers(block, mine)
    if table.max(initial=0) > _MOST_EXAMPLES:
        raise ValueError(
            f"device {block.network.ids[int(np.argmax(table.reshape(len(table), -1).max(axis=1)))]} says that it holds "
            f"{table.max():,} scores, which nobody does; look whether it can be trusted"
        )
    return table


def run_without_server(block: Block, method: Protocol[Answers]) -> Protocol[Answers]:
    """Run a method on one device, and say what it cost."""
    ledger = Ledger(len(block.rows))
    outcome = yield from _without_server(method, block, ledger)
    return replace(outcome, cost=ledger.cost())


def _without_server(protocol: Protocol[Answers], block: Block, ledger: Ledger) -> Protocol[Answers]:
    """Drive a protocol, charge what it asks, and answer what it asks of a server by flooding."""

    def own(message: Any) -> Protocol[Pool] | None:
        ledger.enter(message)
        if not isinstance(message, Pool):
            return None
        if message.oracle:
            raise ValueError(
                "an oracle sees all scores, which only a simulator can grant; choose bound='sound' for q-dcp"
            )
        return _flood_pool(message, block)

    return (yield from answer_locally(protocol, own))


def _flood_pool(message: Pool, block: Block) -> Protocol[Pool]:
    """Return everybody's values: first how many everybody has in each of its pieces, then the values, as bytes."""
    pieces = (len(message.offsets) - 1) // len(block.rows)
    counts = np.diff(message.offsets).reshape(len(block.rows), pieces)
    everyone = yield from flood_numbers(block, counts)
    raw = Packets.of([np.ascontiguousarray(message.values).tobytes()])  # of one device, which a mesh is made of
    found = yield from flood_strings(block, raw, everyone.sum(axis=1))
    offsets = np.concatenate([[0], np.cumsum(everyone.ravel())])
    return Pool(found.values.view(message.values.dtype), offsets)
