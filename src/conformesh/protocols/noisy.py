"""Search with noise: a differentially private threshold that covers all the same.

Each of S stages adds up how many scores lie in each of w + 1 cells, to which every device adds its share of the noise.
With D(p) = alpha below(p) - (1 - alpha) above(p), the first of the w thresholds with

    D(p) + Z(p) >= slack + I        slack: 1 by the swap rank, (1 - alpha) K by the ghost rank

is accepted, Z being the noise of D and I what noise costs (`privacy.inflation`), and the next stage cuts the cell that
ends there; if none of its thresholds is accepted, that end stays. Coverage is at least 1 - alpha, on average over
scores and noise, whatever the scores are (docs/privacy-proofs.md). One score more or less changes one cell of each
stage by one, so that a stage with noise of exp(-epsilon/S) spends epsilon/S.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from conformesh.privacy.inflation import Inflation, inflation
from conformesh.privacy.noise import Shares
from conformesh.promises import Promise, exact_number
from conformesh.privacy.grids import grid_points
from conformesh.protocols.masks import Keystream, MaskedSums, Secrets, derived
from conformesh.protocols.messages import Protocol
from conformesh.result.certificate import Noise
from conformesh.samples import Samples

if TYPE_CHECKING:
    from conformesh.protocols.p_dcp import PDCP

Floats = NDArray[np.float64]
# How finely each grid is cut, 8 cells at a time: of nine ways that were tried, 3 stages of 7 thresholds lose the least
# coverage to noise and resolution together, on drawn scores and CIFAR-100 with 1,000 to 10,000 scores.
STAGES = {"logit": 3, "linear": 3, "powers": 4}
ROOM = 4  # of alpha, the part that privacy of whole devices may cost: beyond, sets say nothing any more
FINEST = 2**20  # points of a grid


@dataclass(frozen=True)
class Plan:
    """How a search with noise goes: all of it is public, and known before the first message.

    Attributes
    ----------
    alphas
        The levels.
    cells, stages
        Into how many cells a stage cuts, and how many stages there are.
    grid
        The thresholds, one less than cells to the power of stages.
    shares
        The noise that each device adds to a cell.
    slack
        What the promise asks beyond its share of the scores, by level.
    costs
        What the noise costs, by level.
    """

    alphas: tuple[Fraction, ...]
    cells: int
    stages: int
    grid: Floats
    shares: Shares
    slack: tuple[Fraction, ...]
    costs: tuple[Inflation, ...]

    @classmethod
    def of(cls, devices: int, promise: Promise, alphas: tuple[Fraction, ...], options: PDCP) -> Plan:
        """Return the plan, or refuse what cannot be had."""
        honest, stages = options.honest_of(devices), options.stages or STAGES[options.chosen_grid]
        cells = options.width + 1
        epsilon = exact_number(options.epsilon, "") / (options.cap or 1)  # all scores of a device may change at once
        ghosts = int(promise.target == "paper")

        def cost(alpha: Fraction, many: int) -> Inflation:
            fewest = max(many * (options.floor + ghosts), 1)
            ratio = Fraction(many, options.honest_of(many))
            return inflation(alpha, cells, stages, epsilon, ratio, alpha * fewest)

        if options.cap is not None:
            _refuse_few_devices(devices, alphas, cost, options)
        costs = tuple(cost(alpha, devices) for alpha in alphas)
        slack = tuple((1 - alpha) * devices if ghosts else Fraction(1) for alpha in alphas)
        grid = _grid(cells, stages, options)
        return cls(alphas, cells, stages, grid, Shares(epsilon / stages, honest), slack, costs)

    def places(self, low: NDArray[np.int64], stage: int) -> NDArray[np.int64]:
        """Return between which thresholds a stage tells cells apart, (problems, cells - 1), from 1 on."""
        return np.asarray(low[:, None] + self.step(stage) * np.arange(1, self.cells))

    def step(self, stage: int) -> int:
        """Return how many points of the grid a cell of a stage holds."""
        return int(self.cells ** (self.stages - 1 - stage))

    def accepted(self, level: int, cells: Sequence[int]) -> int:
        """Return the first of the thresholds between noisy cells that is accepted; as many as there are if none is."""
        whole, needed, below = sum(cells), self.slack[level] + self.costs[level].value, 0
        for at, cell in enumerate(cells[:-1]):
            below += cell
            if below - (1 - self.alphas[level]) * whole >= needed:  # which is D, of all cells
                return at
        return len(cells) - 1

    def noise(self, devices: int, level: int, options: PDCP, simulated: bool) -> Noise:
        """Return what a certificate says of the noise."""
        assert options.epsilon is not None
        cost = float(self.costs[level].value)
        honest = self.shares.honest
        bounds = options.floor, options.cap
        return Noise(options.epsilon, options.unit, honest, devices, self.stages, cost, *bounds, simulated=simulated)


def _refuse_few_devices(
    devices: int, alphas: tuple[Fraction, ...], cost: Callable[[Fraction, int], Inflation], options: PDCP
) -> None:
    """Refuse to hide whole devices among so few that nothing useful is left."""
    assert options.cap is not None
    for alpha in alphas:
        room = alpha * options.cap / ROOM  # that a device makes
        if devices * room < cost(alpha, devices).value:
            needed = _enough(devices, lambda many, a=alpha, one=room: math.ceil(cost(a, many).value / one))  # type: ignore[misc]
            raise ValueError(
                f"p-dcp: to hide whole devices at epsilon {options.epsilon:g} and alpha {float(alpha):g} takes "
                f"at least {needed:,} devices, got {devices:,}: with fewer, noise costs more than a quarter of alpha; "
                "use unit 'score', a larger epsilon, more devices, or a floor of scores that each surely holds"
            )


def _enough(devices: int, needed_by: Callable[[int], int]) -> int:
    """Return how many devices are enough, where so many as there are would have to be so many."""
    needed = needed_by(devices)
    for _ in range(8):  # what noise costs depends on their number, a little
        fewer = needed_by(needed)
        better = max(fewer, needed_by(fewer))
        if better == needed:
            break
        needed = better
    return needed


def _grid(cells: int, stages: int, options: PDCP) -> Floats:
    points = cells**stages - 1
    if points > FINEST:
        raise ValueError(f"{cells} cells in {stages} stages make a grid of {points:,} points; use fewer of either")
    grid = grid_points(options.chosen_grid, points, options.range)
    if len(grid) < points:
        raise ValueError(f"the range {options.range} holds fewer than {points:,} floats; use a wider one")
    return grid


def search(
    samples: Samples, plan: Plan, sums: MaskedSums, secrets: Secrets
) -> Protocol[tuple[Floats, list[list[int]]]]:
    """Return the threshold of every (trial, level), and what was told of the first, stage by stage."""
    levels = len(plan.alphas)
    problems = samples.trials * levels
    trial_of = np.repeat(np.arange(samples.trials), levels)
    noise = [derived(seed, secrets.context, b"noise") for seed in secrets.seeds]
    low, told = np.zeros(problems, dtype=np.int64), []
    for stage in range(plan.stages):
        counts = samples.counts_of(
            trial_of, plan.grid[plan.places(low, stage) - 1]
        )  # (devices here, cells - 1, problems)
        cells = np.diff(counts, axis=1, prepend=0, append=samples.sizes[:, None, trial_of])
        drawn = [plan.shares.draw(Keystream(secret, stage), plan.cells * problems) for secret in noise]
        totals = yield from sums(cells.reshape(len(cells), -1) + np.array(drawn))
        table = totals.reshape(plan.cells, problems).T.tolist()
        told.append(table[0])
        low += plan.step(stage) * np.array([plan.accepted(at % levels, row) for at, row in enumerate(table)])
    answers = np.append(plan.grid, math.inf)[low]  # the end of the cell that is left: a point of the grid, or +inf
    return answers.reshape(samples.trials, levels), told
