"""What the schedules of E-DCP send, by running them: on the scores themselves where they are at hand, else on draws.

A run in one process costs little on a network of some thousand devices, and nothing is assumed but what scores look
like. Stretches are added up from the very messages, so that a plan for known scores is what a run will cost.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from functools import lru_cache
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from conformesh.engines.simulator import Simulator
from conformesh.graph.network import Network
from conformesh.kernels.ranks import Requirement
from conformesh.kernels.weighted_scores import WeightedScores
from conformesh.planning.search import ANY, SHAPES
from conformesh.protocols.e_dcp import EDCP, in_rounds
from conformesh.protocols.messages import Protocol, Tell
from conformesh.protocols.predicting import Run, Stretch
from conformesh.protocols.site import Site

T = TypeVar("T")
Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
LIKELY = [*SHAPES, "uniform", "normal"]  # where nobody has said what scores look like: even ones twice as likely
DRAWS, FEWER = 12, 4  # runs on drawn scores, and of many, which take longer and differ little
MANY = 20_000
EXPLORE, REPLY, WORD, NEWS = "explore the tree", "replies", "the root's word", "pass on scores"
REPLY_NS, NEWS_NS, SPOKEN_NS = 300.0, 60.0, 3000.0  # of a simulation: a number in a reply, in news; and a string


class Log:
    """Adds up the messages of a run by what they are for."""

    def __init__(self, network: Network) -> None:
        self.network, self.told = network, 0
        self.sums: dict[str, list[float]] = {}  # rounds, messages, and bits of the slowest, of each part
        self.sent: dict[str, NDArray[np.float64]] = {}  # numbers and bits of each device

    def enter(self, message: Any) -> None:
        """Note one round."""
        places, width = message.places, 8 * message.values.dtype.itemsize
        if isinstance(message, Tell):
            what = self._part(message)
            numbers, bits = message.numbers, width * np.diff(message.packets.offsets)
        else:
            what, numbers = EXPLORE, np.full(len(places), message.values[0].size)
            bits = width * numbers
        sums = self.sums.setdefault(what, [0.0, 0.0, 0.0])
        sums[0] += 1
        sums[1] += len(places)
        sums[2] += float((bits * self.network.degree[places]).max(initial=0))
        sent = self.sent.setdefault(what, np.zeros((2, self.network.devices)))
        sent[0, places] += numbers
        sent[1, places] += bits

    def _part(self, message: Tell) -> str:
        """Say what a string is for: over a tree replies rise, then the root's word falls, level by level."""
        self.told += 1
        if EXPLORE not in self.sums:
            return NEWS
        return (REPLY, WORD)[(self.told - 1) // self.network.centre_depth % 2]

    def watched(self, protocol: Protocol[T]) -> Protocol[T]:
        """Run a protocol, and look at what it says."""
        answer: Any = None
        while True:
            try:
                message = protocol.send(answer)
            except StopIteration as end:
                return end.value  # type: ignore[no-any-return]
            self.enter(message)
            answer = yield message

    def stretches(self) -> tuple[Stretch, ...]:
        """Return what was sent."""
        K = self.network.devices
        busiest = int(sum(sent[1] for sent in self.sent.values()).argmax()) if self.sent else 0
        found = []
        for what, (rounds, messages, slowest) in self.sums.items():
            numbers, bits = self.sent[what].sum(axis=1)
            each = bits / messages if bits else 1.0  # bits of a message
            found.append(
                Stretch(
                    what,
                    rounds,
                    numbers / messages if messages else 0.0,
                    bits / numbers if numbers else 0.0,
                    spoken=messages / K,
                    most=float(self.sent[what][1, busiest]) / each,
                    copies=slowest / each,
                    told=what != EXPLORE,
                    number_ns=NEWS_NS if what == NEWS else REPLY_NS if what == REPLY else 1.0,
                    device_ns=SPOKEN_NS if what in (NEWS, REPLY) else 20.0,
                )
            )
        return tuple(found)


def run_on(network: Network, samples: WeightedScores, requirement: Requirement, alpha: Fraction, options: EDCP) -> Run:
    """Run the schedule on these scores."""
    site = replace(Site.everywhere(network, samples.sizes), requirement=requirement, alphas=(alpha,))
    log = Log(network)
    outcome, _ = Simulator(network).run(log.watched(in_rounds(site, site.weighed(samples), options)))
    return Run(log.stretches(), outcome.facts)


def runs_on_draws(
    network: Network, sizes: Ints, shape: str, requirement: Requirement, alpha: Fraction, options: EDCP
) -> Sequence[Run]:
    """Run it on drawn scores of that shape, each time on others; the same draws for every schedule."""
    key = network, sizes.tobytes(), shape, requirement, alpha, options
    try:
        hash(key)
    except TypeError:  # a promise with shares by name
        return _drawn(*key)
    return _remembered(*key)


def _drawn(
    network: Network, held: bytes, shape: str, requirement: Requirement, alpha: Fraction, options: EDCP
) -> list[Run]:
    sizes = np.frombuffer(held, dtype=np.int64)
    names = LIKELY if shape == ANY else [shape]
    rng, many = np.random.default_rng(0), int(sizes.sum())
    runs = []
    for i in range(DRAWS if many <= MANY else FEWER):
        inverse = SHAPES[names[i % len(names)]]()[1]
        samples = WeightedScores.from_flat(inverse(rng.random(many)), sizes, copy=False)
        runs.append(replace(run_on(network, samples, requirement, alpha, options), look=names[i % len(names)]))
    return runs


_remembered = lru_cache(maxsize=64)(_drawn)
