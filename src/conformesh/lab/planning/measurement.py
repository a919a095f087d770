"""Run a method on the simulator and measure what it costs: rounds, numbers, bits, and time on any link.

The figures are those of the ledger of a run (`Cost`): they equal those of `calibrate` on the same network and scores.
Time on a link follows from the messages: every round waits for the latency and for the slowest device. A device sends
one copy to each neighbour over its own uplink, so a round takes ``latency + bits x degree / bandwidth`` of the device
for which that is longest; to a server it sends one copy, and the answer takes another latency.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from conformesh.common.array_types import Floats
from conformesh.common.names import unknown_name
from conformesh.engines.observers import RunObserver
from conformesh.graph.network import Network
from conformesh.kernels.ranks import Alpha, Requirement
from conformesh.kernels.weighted_scores import WeightedScores
from conformesh.lab.planning.link import Link
from conformesh.methods import MethodVariant, get_method
from conformesh.pipeline.solver import CalibrationBatch, solve_draws
from conformesh.protocols.block import Block
from conformesh.protocols.faults import Faults
from conformesh.protocols.messages import Message, Pool, Tell

ANY_SHAPE = "any"  # the shape of the scores is unknown, so each draw has another shape
# Seconds that one run may take. On a network of a thousand devices most methods take less than one; projection gossip
# and averaging over a long chain take minutes, and their cost would not make them the method to use.
RUN_TIME_LIMIT = 5.0
PLAN_DRAWS = 4  # runs of a way, one for each of `SCORE_SHAPES`; a plan reports their mean
# Up to this many scores there are `PLAN_DRAWS` runs. With more, runs differ by a few percent only, and one is made.
FEW_DRAWN_SCORES = 20_000
_MOST_DRAWN_SCORES = 5_000_000  # scores that a plan draws: 40 MB, sorted in about half a second


def _normal(u: Floats) -> Floats:
    from scipy.special import ndtri

    return np.asarray(ndtri(u))


SCORE_SHAPES: dict[str, Callable[[Floats], Floats]] = {  # quantile functions: from uniform numbers to scores
    "uniform": lambda u: u,
    "normal": _normal,
    "exponential": lambda u: -np.log1p(-u),
    "skewed": lambda u: u**3,  # most scores near 0, few near 1: errors 1 - p of a good classifier
}


def draw_scores(sizes: NDArray[np.int64], shape: str = ANY_SHAPE, seed: int = 0) -> list[WeightedScores]:
    """Draw scores of that shape for devices that hold so many, several times; always the same for the same seed."""
    if shape != ANY_SHAPE and shape not in SCORE_SHAPES:
        raise ValueError(unknown_name("shape", shape, (ANY_SHAPE, *SCORE_SHAPES)))
    many = int(sizes.sum())
    if many > _MOST_DRAWN_SCORES:
        raise ValueError(
            f"a plan draws at most {_MOST_DRAWN_SCORES:,} scores, got {many:,} on {len(sizes):,} devices; give fewer "
            "scores per device, or simulate fewer devices"
        )
    rng, names = np.random.default_rng(seed), [*SCORE_SHAPES] if shape == ANY_SHAPE else [shape]
    return [
        WeightedScores.from_flat(SCORE_SHAPES[names[draw % len(names)]](rng.random(many)), sizes, copy=False)
        for draw in range(PLAN_DRAWS if many <= FEW_DRAWN_SCORES else 1)
    ]


@dataclass(frozen=True)
class RunCost:
    """What a run costs; means where it stands for several runs.

    Attributes
    ----------
    rounds
        Rounds of messages; one exchange with a server counts as two.
    numbers, bits, largest_bits
        Numbers and bits that a device sends, on average, and bits of the device that sends most. A message to all
        neighbours counts once.
    slowest_bits
        Bits that the slowest device of each round sends, with a copy for each neighbour, added up over the rounds.
    """

    rounds: float
    numbers: float
    bits: float
    largest_bits: float
    slowest_bits: float

    @classmethod
    def mean(cls, runs: Sequence[RunCost]) -> RunCost:
        """Return the mean of several runs, field by field."""
        return cls(*(sum(getattr(run, one.name) for run in runs) / len(runs) for one in fields(cls)))

    def seconds(self, link: Link) -> float:
        """Return how long the run takes on a link."""
        return self.rounds * link.latency + self.slowest_bits / link.bandwidth


class RunTooLong(ValueError):  # noqa: N818 - reads as a sentence where it is raised
    """A run was stopped because simulating it takes longer than a plan may take."""


class _RoundWatch(RunObserver):
    """An observer that adds up what the slowest device sends in each round, and ends runs that take too long."""

    keeps_messages = False

    def __init__(self, limit: float) -> None:
        self.slowest_bits = 0.0
        self._limit, self._began = limit, time.perf_counter()
        self._degree = np.zeros(0)

    def begin(self, block: Block, method: str, faults: Faults | None) -> None:
        """Store the number of neighbours of each device, in the simulator's order."""
        self._degree = block.degree

    def __call__(self, round_: int, message: Message, answer: Any) -> None:
        """Add the messages of a round."""
        if time.perf_counter() - self._began > self._limit:
            raise RunTooLong(
                f"stopped in round {round_:,}: simulating it takes longer than the limit of {self._limit:g} s a run"
            )
        width = 8 * message.values.dtype.itemsize
        if isinstance(message, Pool):
            sent = 0 if message.oracle else np.diff(message.offsets).reshape(len(self._degree), -1).sum(axis=1).max()
            self.slowest_bits += float(width * sent)
            return
        if isinstance(message, Tell):
            bits: Any = width * np.diff(message.packets.offsets)
        else:
            bits = width * message.values[0].size
        speakers = getattr(message, "speakers", None)
        degree = self._degree if speakers is None else self._degree[message.places]  # type: ignore[union-attr]
        self.slowest_bits += float((bits * degree).max(initial=0.0))


def measure_way(
    way: MethodVariant,
    network: Network,
    scores: WeightedScores,
    alpha: Alpha,
    requirement: Requirement,
    options: Mapping[str, Any] | None = None,
    time_limit: float = RUN_TIME_LIMIT,
) -> tuple[CalibrationBatch, RunCost]:
    """Calibrate this way on the simulator; return the result and its cost. Options of other methods are ignored.

    Raises `ValueError` or `ArithmeticError`, with the reason, where the way cannot run on this network, or takes longer
    than `time_limit` seconds.
    """
    known = get_method(way.method).option_names()
    given = {name: value for name, value in (options or {}).items() if name in known}
    watch = _RoundWatch(time_limit)
    batch = solve_draws(
        scores, network, (alpha,), way.method, requirement=requirement, observer=watch, **{**given, **way.options}
    )
    cost, bits = batch.cost, batch.cost.bits
    most = float(bits.max(initial=0.0))
    return batch, RunCost(cost.rounds, cost.numbers_per_device, cost.bits_per_device, most, watch.slowest_bits)
