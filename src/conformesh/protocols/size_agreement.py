"""One device's part in a run on a mesh: exchange the sizes, then run the method without a server.

Assumes     graph connected, its map known; the method's own assumptions
Guarantees  the method's own
Message     the number of scores of every device, relayed once by each; then the method's
Departures  a mesh has no server: a question to a server (`Pool`) is answered by flooding all values to all devices.
            This hides nothing; methods with a server are baselines. The cost of the method is counted by its messages,
            as on every engine: without the exchange of sizes, and a question to a server as an upload. The peer counts
            what was really sent
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from conformesh.graph.network import Network
from conformesh.kernels.ranks import DEFAULT_REQUIREMENT, Requirement
from conformesh.kernels.weighted_scores import WeightedScores
from conformesh.protocols.block import Answers, Block, SearchProgress
from conformesh.protocols.flood import flood_numbers, flood_strings
from conformesh.protocols.gather import answer_locally
from conformesh.protocols.ledger import Ledger
from conformesh.protocols.messages import Packets, Pool, Protocol

# Maximum number of scores or examples per device: sums over a million devices stay far below 2^63, the limit of int64.
# Larger claims are rejected as errors or as Byzantine.
MOST_CLAIMED_SCORES = 2**40
MethodProtocol = Callable[[Block, WeightedScores], Protocol[Answers]]


def run_with_shared_sizes(
    network: Network,
    row: int,
    samples: WeightedScores,
    method: MethodProtocol,
    requirement: Requirement = DEFAULT_REQUIREMENT,
    alphas: tuple[Fraction, ...] = (),
    items: NDArray[np.int64] | None = None,
    shown: SearchProgress | None = None,
) -> Protocol[Answers]:
    """Run a method on one device that knows only the map: exchange sizes, then run the method.

    `items` (1, trials) has its number of examples, where these are not its scores; observers read `shown`.
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
    """Return the number of scores or examples of every device, by row; raise `ValueError` for an impossible one."""
    table = yield from flood_numbers(block, mine)
    if table.max(initial=0) > MOST_CLAIMED_SCORES:
        raise ValueError(
            f"device {block.network.ids[int(np.argmax(table.reshape(len(table), -1).max(axis=1)))]} says that it holds "
            f"{table.max():,} scores, which nobody does; look whether it can be trusted"
        )
    return table


def run_without_server(block: Block, method: Protocol[Answers]) -> Protocol[Answers]:
    """Run a method on one device, and add its cost to the answers."""
    ledger = Ledger(len(block.rows))
    outcome = yield from _without_server(method, block, ledger)
    return replace(outcome, cost=ledger.cost())


def _without_server(protocol: Protocol[Answers], block: Block, ledger: Ledger) -> Protocol[Answers]:
    """Run a protocol, charge its messages, and answer questions to a server by flooding."""

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
    """Flood the values of all devices: first the lengths of their pieces, then the values as bytes."""
    pieces = (len(message.offsets) - 1) // len(block.rows)
    counts = np.diff(message.offsets).reshape(len(block.rows), pieces)
    everyone = yield from flood_numbers(block, counts)
    raw = Packets.of([np.ascontiguousarray(message.values).tobytes()])  # of one device, which a mesh is made of
    found = yield from flood_strings(block, raw, everyone.sum(axis=1))
    offsets = np.concatenate([[0], np.cumsum(everyone.ravel())])
    return Pool(found.values.view(message.values.dtype), offsets)
