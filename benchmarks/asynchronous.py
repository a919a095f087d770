"""Networks that wait, lose and change: time to the exact threshold, without rounds beside rounds.

Twenty devices on the loopback engine, whose network draws how long each frame takes, on virtual time: nothing here
depends on the machine. Time is counted in mean link delays, from the first frame of a cold start, greetings included,
to the moment at which the last device holds the final threshold. Every draw has scores, sizes and delays of its own,
the same for all that are compared; every threshold is compared with the pooled sort. All settings are the defaults.

python benchmarks/asynchronous.py [FIRST]    everything, of draws from the number FIRST on: constants are tuned
                                             on others than those that are kept
run.py takes the folder of CIFAR-100 logits from CONFORMESH_DATA, for the sizes of sets while some were not heard.
"""

from __future__ import annotations

import hashlib
import math
import os
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from byzantine import Draw, drawn, outputs
from harness import Row, Series
from numpy.typing import NDArray

from conformesh import Network
from conformesh.kernels.ranks import exact_alpha, make_requirement
from conformesh.kernels.weighted_scores import WeightedScores
from conformesh.methods import async_protocol, device_protocol, make_options
from conformesh.peer.async_device import AsyncDevice
from conformesh.peer.device import Device
from conformesh.peer.interface import Peer, PeerSetup
from conformesh.peer.journal import Journal
from conformesh.peer.loopback import ChangingLinks, Delay, LinkFaults, Start, run_loopback
from conformesh.peer.settings import Settings
from conformesh.protocols.messages import GatheredStrings, Packets

Floats = NDArray[np.float64]
DEVICES, DRAWS, SETS = 20, 10, 60
MEAN = 0.05  # seconds that a frame takes
ALPHAS = (exact_alpha(0.1),)
SIZES = make_requirement("sizes")
LIMIT = 600.0  # virtual seconds: 12,000 mean delays
NETWORKS = ("chain", "cycle", "torus", "complete")
SHAPE = 1.5  # of the Pareto distribution: its mean is finite, its variance is not
SHARE, LOSS = 0.2, 0.3  # of the links that are up, drawn anew every mean delay, and of what gets lost on them
ROUNDS: dict[str, dict[str, str]] = {"in rounds": {}, "in few rounds": {"prefer": "rounds"}}
MIXTURES = {  # at most so many mean delays, network by network
    "exponential delays": (46, 30, 7, 2),
    "Pareto delays": (95, 33, 5.6, 2.1),
    "one device 10 times as slow": (61, 34, 15, 11),
    "one device 100 times as slow": (217, 126, 105, 101),
}
LOSSY, CHANGES = 3, 91  # times the time without loss, on the torus; mean delays


# --- delays -----------------------------------------------------------------------------------------------------------


def exponential(rng: np.random.Generator, sender: int, to: int) -> float:
    """Draw how long a frame takes."""
    return MEAN * float(rng.exponential())


def pareto(rng: np.random.Generator, sender: int, to: int) -> float:
    """Draw how long a frame takes, a few of them very long."""
    return MEAN * (SHAPE - 1) / SHAPE * (1 + float(rng.pareto(SHAPE)))


def slow(device: int, times: float) -> Delay:
    """Return delays of which those from and to one device are so many times as long."""
    return lambda rng, sender, to: exponential(rng, sender, to) * (times if device in (sender, to) else 1)


DELAYS: dict[str, Callable[[int], Delay]] = {  # by draw
    "exponential delays": lambda draw: exponential,
    "Pareto delays": lambda draw: pareto,
    "one device 10 times as slow": lambda draw: slow(_any_device(draw), 10),
    "one device 100 times as slow": lambda draw: slow(_any_device(draw), 100),
}


def _any_device(draw: int) -> int:
    return int(np.random.default_rng([11, draw]).integers(DEVICES))


# --- devices ----------------------------------------------------------------------------------------------------------


def network_of(name: str) -> Network:
    """Return a network of twenty devices."""
    return Network.torus(5, 4) if name == "torus" else Network.of(name, DEVICES)


def scores_of(draw: int) -> list[Floats]:
    """Return scores of devices that are not quite alike."""
    rng = np.random.default_rng([13, draw])
    return [rng.normal(rng.normal(scale=0.5), size=int(rng.integers(35, 69))) for _ in range(DEVICES)]


def _digest(own: Floats) -> str:
    return hashlib.sha256(own.tobytes()).hexdigest()


def without_rounds(network: Network, scores: Sequence[Floats]) -> Start:
    """Return what starts a device without rounds; everybody's size is known from the roster."""
    chosen, caps = make_options("e-dcp", {}), np.array([len(own) for own in scores])

    def start(k: int, journal: Journal) -> Peer:
        samples = WeightedScores.of([scores[k]])

        def make(net: Network, row: int) -> Any:
            return async_protocol("e-dcp", net, row, samples, ALPHAS, chosen, SIZES, caps)

        return AsyncDevice(PeerSetup(k, network, {"method": "e-dcp"}, make, journal, Settings(), _digest(scores[k])))

    return start


def in_rounds(network: Network, scores: Sequence[Floats], **options: Any) -> Start:
    """Return what starts a device in rounds."""
    chosen = make_options("e-dcp", options)

    def start(k: int, journal: Journal) -> Peer:
        samples = WeightedScores.of([scores[k]])

        def make(net: Network, row: int) -> Any:
            return device_protocol("e-dcp", net, row, samples, ALPHAS, chosen, SIZES)

        return Device(PeerSetup(k, network, {"method": "e-dcp"}, make, journal, Settings(), _digest(scores[k])))

    return start


# --- one run ----------------------------------------------------------------------------------------------------------


class _EndedError(Exception):
    """Everybody has its threshold."""


@dataclass
class Watch:
    """Ends a run when everybody has the final threshold, which is that of the pooled sort, and notes when that was.

    With `reaches`, also when everybody first had a threshold about all devices whose rank is at most so much too high,
    in shares of all scores.
    """

    scores: Sequence[Floats]
    reaches: Sequence[float] = ()
    delays: float = math.nan
    messages: float = math.nan
    bytes: float = math.nan
    reached: dict[float, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.pooled = np.sort(np.concatenate(self.scores))
        self.rank = math.ceil((1 - ALPHAS[0]) * len(self.pooled)) + 1  # over several devices: the swap rank
        self.excess: dict[int, tuple[Any, float]] = {}

    def __call__(self, devices: Sequence[Peer]) -> None:
        """Look at all devices after an event."""
        if self.reaches and len(devices) == DEVICES:
            worst = max(map(self._excess, devices))
            for reach in self.reaches:
                if worst <= reach:
                    self.reached.setdefault(reach, self._now(devices) / MEAN)
        if len(devices) == DEVICES and all(device.phase == "finished" for device in devices):
            self._end(devices)

    def _now(self, devices: Sequence[Peer]) -> float:
        return max(device.clock.now for device in devices)

    def _excess(self, device: Peer) -> float:
        """Return by which share of all scores a device's threshold about everybody is too high."""
        assert isinstance(device, AsyncDevice)
        state = device.store.keys, device.final
        if device.row not in self.excess or self.excess[device.row][0] != state:
            outcome = device.result
            whole = outcome if outcome.about_all is None else outcome.about_all
            tau = whole.thresholds[0, 0, 0]
            counted = np.searchsorted(self.pooled, tau, side="right") if np.isfinite(tau) else math.inf
            self.excess[device.row] = state, (counted - self.rank) / len(self.pooled)
        return self.excess[device.row][1]

    def _end(self, devices: Sequence[Peer]) -> None:
        for device in devices:
            assert device.result.thresholds[0, 0, 0] == self.pooled[self.rank - 1]
        self.delays = self._now(devices) / MEAN
        self.messages = float(np.mean([device.counts.sent for device in devices]))
        self.bytes = float(np.mean([device.counts.sent_bytes for device in devices]))
        raise _EndedError


def timed(network: Network, start: Start, scores: Sequence[Floats], faults: LinkFaults, draw: int, **how: Any) -> Watch:
    """Return what a run of a draw took; a run that has not ended within `LIMIT` took for ever."""
    watch = Watch(scores, **how)
    try:
        run_loopback(network, start, faults, np.random.default_rng([17, draw]), LIMIT, stay=True, check=watch)
    except _EndedError:
        return watch
    watch.delays = math.inf
    return watch


def of_draws(
    name: str, faults: Callable[[int], LinkFaults], draws: Sequence[int], how: str = "", **more: Any
) -> list[Watch]:
    """Return what all draws took on a network, without rounds or `how` in rounds."""
    network, found = network_of(name), []
    for draw in draws:
        scores = scores_of(draw)
        start = in_rounds(network, scores, **ROUNDS[how]) if how else without_rounds(network, scores)
        found.append(timed(network, start, scores, faults(draw), draw, **more))
    return found


def median(found: Sequence[Watch]) -> float:
    """Return the median of the times."""
    return float(np.median([watch.delays for watch in found]))


# --- rows -------------------------------------------------------------------------------------------------------------


def _said(found: Sequence[Watch]) -> str:
    times = [watch.delays for watch in found]
    messages, size = (np.mean([getattr(watch, what) for watch in found]) for what in ("messages", "bytes"))
    if math.isinf(max(times)):
        return f"{sum(map(math.isinf, times))} of {len(times)} not within {LIMIT / MEAN:,.0f}"
    return f"{median(found):.3g} (at most {max(times):.3g}; {messages:.0f} frames, {size / 1e3:.3g} kB a device)"


def _beside(name: str, faults: Callable[[int], LinkFaults], draws: Sequence[int]) -> str:
    return "; ".join(f"{how} {_said(of_draws(name, faults, draws, how))}" for how in ROUNDS)


def waiting(name: str, kind: str, draws: Sequence[int]) -> Row:
    """Return the row of a network and a kind of delays."""

    def faults(draw: int) -> LinkFaults:
        return LinkFaults(delay=DELAYS[kind](draw))

    found, target = of_draws(name, faults, draws), MIXTURES[kind][NETWORKS.index(name)]
    return Row(
        f"{name}, {kind}",
        target=f"at most {target:g} mean delays",
        met=median(found) <= target,
        note=f"mean delays: without rounds {_said(found)}; {_beside(name, faults, draws)}",
    )


def losing(name: str, loss: float, draws: Sequence[int]) -> Row:
    """Return the row of a network that loses so many frames; judged on the torus."""

    def faults(draw: int) -> LinkFaults:
        return LinkFaults(loss=loss, delay=exponential)

    found, whole = of_draws(name, faults, draws), of_draws(name, lambda draw: LinkFaults(delay=exponential), draws)
    times, judged = median(found) / median(whole), name == "torus"
    return Row(
        f"{name}, {loss:.0%} lost",
        target=f"at most {LOSSY} times as long as without loss" if judged else "",
        met=times <= LOSSY if judged else None,
        note=f"mean delays: without rounds {_said(found)}, {times:.2f} times as long as without loss; "
        f"{_beside(name, faults, draws)}",
    )


def changing(draws: Sequence[int]) -> Row:
    """Return the row of a torus whose links come and go."""

    def faults(draw: int) -> LinkFaults:
        return LinkFaults(loss=LOSS, delay=exponential, links=ChangingLinks(SHARE, MEAN, draw))

    found = of_draws("torus", faults, draws)
    return Row(
        f"torus, {SHARE:.0%} of the links up at a time, {LOSS:.0%} lost",
        target=f"at most {CHANGES} mean delays",
        met=median(found) <= CHANGES,
        note=f"mean delays: without rounds {_said(found)}; {_beside('torus', faults, draws)}",
    )


def meanwhile(draws: Sequence[int]) -> Row:
    """Return the row of what a device has on the torus before the exact threshold."""
    reaches = {sys.float_info.max: "finite", 0.05: "5 %", 0.01: "1 %"}
    found = of_draws("torus", lambda draw: LinkFaults(delay=exponential), draws, reaches=tuple(reaches))
    times = {reach: np.median([watch.reached[reach] for watch in found]) for reach in reaches}
    words = ", ".join(f"{said} {times[reach]:.3g}" for reach, said in reaches.items())
    return Row(
        "torus, thresholds about everybody before the exact one",
        note=f"mean delays until the worst device's threshold is finite, and until its rank is too high by at most so "
        f"much of all scores: {words}, exact {median(found):.3g}",
    )


# --- sets while some were not heard -----------------------------------------------------------------------------------


def thresholds_heard(scores: Sequence[Floats], order: Sequence[int]) -> Floats:
    """Return the thresholds of the first device of an order, as it hears the first entries of one more each time.

    The last one is exact: that of everybody's scores.
    """
    network, chosen = Network.complete(len(scores)), make_options("e-dcp", {})

    def protocol(row: int) -> Any:
        return async_protocol("e-dcp", network, row, WeightedScores.of([scores[row]]), ALPHAS, chosen, SIZES)

    said, found = [next(protocol(row)).packets[0] for row in range(len(scores))], []
    for count in range(1, len(scores)):
        heard = np.isin(np.arange(len(scores)), order[:count])
        strings = [text if here else b"" for text, here in zip(said, heard, strict=True)]
        found.append(_answer(protocol(order[0]), GatheredStrings(Packets.of(strings), heard, 0 * heard > 0)))
    pooled = np.sort(np.concatenate(scores))
    return np.array([*found, pooled[math.ceil((1 - ALPHAS[0]) * len(pooled))]])


def _answer(protocol: Any, heard: GatheredStrings) -> float:
    next(protocol)
    try:
        protocol.send(heard)
    except StopIteration as end:
        return float(end.value.thresholds[0, 0, 0])
    raise AssertionError("who has not heard everybody has nothing to ask")


def sizes_heard(what: str, table: Floats, labels: NDArray[np.int64], draws: int) -> Row:
    """Return how large sets are while some were not heard, in shares of the exact ones, by how many were heard."""
    ratios, coverage = [], []
    for seed in range(draws):
        draw = drawn(table, labels, DEVICES, seed)
        order = np.random.default_rng([19, seed]).permutation(DEVICES).tolist()
        taus = thresholds_heard(draw.held, order)
        every = np.sort(np.concatenate(draw.every))
        sizes = np.searchsorted(every, taus, side="right") / len(every)
        ratios.append(sizes / sizes[-1])
        coverage.append([_covered(draw, order[:count], tau) for count, tau in enumerate(taus, 1)])
    mean, covered = np.mean(ratios, axis=0), np.mean(coverage, axis=0)
    error = np.std(ratios, axis=0, ddof=1).max() / math.sqrt(draws)
    each = ", ".join(f"{count}: {mean[count - 1]:.3f}" for count in (1, 2, 3, 5, 8, 10, 12, 15, 17, 18, 19))
    return Row(
        f"sets while some of {DEVICES} devices were not heard, {what}, {draws} draws",
        note="labels in a set for each of the exact threshold's, by number of devices heard, from "
        f"{mean[:-1].min():.3f} to {mean[:-1].max():.3f} (standard errors at most {error:.3f}): {each}; "
        f"coverage of the heard {covered[:-1].min():.3f} to {covered[:-1].max():.3f}, exact {covered[-1]:.3f}",
    )


def _covered(draw: Draw, heard: Sequence[int], tau: float) -> float:
    """Return the share of new examples of the heard that is covered, each device in proportion to its scores."""
    there = [k for k in heard if len(draw.true[k])]
    shares = np.array([len(draw.held[k]) for k in there], dtype=np.float64)
    return float(np.array([(draw.true[k] <= tau).mean() for k in there]) @ shares / shares.sum())


def sets(quick: bool) -> list[Row]:
    """Return the rows of CIFAR-100 logits and confidences, or of made outputs at a tiny size."""
    named = os.environ.get("CONFORMESH_DATA")
    folder = Path(named) if named and (Path(named) / "cifar100_logits.npz").exists() else None
    data, logits, labels = outputs(None if quick else folder)
    confidences = np.exp(logits - logits.max(axis=1, keepdims=True))
    confidences /= confidences.sum(axis=1, keepdims=True)
    tables = {f"{data} logits": 1 - logits, f"{data} confidences": 1 - confidences}
    return [sizes_heard(what, table, labels, 2 if quick else SETS) for what, table in tables.items()]


def bench(quick: bool = False, first: int = 0) -> tuple[list[Row], list[Series]]:
    """Mean link delays to the exact threshold, without rounds and in rounds."""
    draws = range(first, first + (2 if quick else DRAWS))
    if quick:
        return [waiting("complete", "exponential delays", draws), meanwhile(draws), *sets(quick)], []
    jobs: list[tuple[Any, ...]] = [(waiting, name, kind, draws) for kind in MIXTURES for name in reversed(NETWORKS)]
    jobs += [(losing, name, 0.5, draws) for name in ("torus", "cycle")]
    jobs += [(changing, draws), (meanwhile, draws)]
    with ProcessPoolExecutor() as pool:  # time is virtual: a busy machine changes no figure
        rows = [pool.submit(*job) for job in jobs]
        return [*(row.result() for row in rows), *sets(quick)], []


if __name__ == "__main__":
    for row in bench(first=int(sys.argv[1]) if sys.argv[1:] else 0)[0]:
        print(row.what, row.target, row.met, row.note, sep=" | ", flush=True)
