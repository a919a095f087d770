r"""One noisy histogram, and the thresholds, levels and windows that follow from it (quantiles: `pipeline.quantiles`).

Devices agree on public pivots :math:`p_1 < \dots < p_w` before they see data (`grids`). Each counts its scores in the
w cells above p_1, adds its share of noise, and only the totals over all devices are ever readable: a *release*.
Everything else is computed from a release and costs no further privacy.

**Guarantee.** A new example is covered with probability at least 1 - alpha, over calibration scores, new example and
noise, whatever the distributions of the devices are. `inflation` proves, for fixed items and slack 0, that
E above(answer) <= alpha n. The rest is the coupling of the swap rank. Larger D = alpha n - above at every pivot means
fewer rejections, so the last rejected pivot and the answer move left or stay.

*Mixture sizes* (the new example comes from a device in proportion to its scores; slack 1). Let t be the new score,
from device k, h one of its n_k scores drawn at random, and C~ = C - h + t. This moves D by at most 1, so the answer
q(C~) with slack 0 is at or below the answer of C with slack 1, and a missed t lies above q(C~). C~ is distributed as C
with t in a random place of device k, so P(miss) <= sum_k (n_k/n) E #{i of k: S_i > q(C~)} / n_k = E above(q(C~)) / n
<= alpha.

*Groups* (disjoint; one histogram each, all with full epsilon, because a score lies in one group). If t lies in group g,
then n_g(C~) >= n_g(C) and D_g falls by at most 1, so the same steps give P(miss and in g) <= E above_g(q_g(C~)) / n <=
alpha E n_g / n = alpha P(g). n_g is random here: `inflation` holds for every n_g >= 1, and t itself is in g.

*Mixtures equal and given* (device k with chance pi_k). Device k contributes exactly W_k = V_k f *items*. With n_k <= f
scores these are V_k copies of each and (f - n_k) V_k items at +infinity. With n_k > f the items are spread over the
scores: W_k // n_k copies of each, and one more of W_k mod n_k scores drawn at random. So multiplicities m_i <= V_k
depend on n_k and on a random order alone. Replace place i with chance m_i/W_k; with the remaining chance (padding)
replace nothing. One place holds at most V_k items, so slack = max V_k, and P(miss | k) <= E above_k(q)/W_k, where
padding counts as above every finite answer. With R = floor(min W_k/pi_k), P(miss) <= sum_k pi_k E above_k(q)/W_k <=
E above(q)/R <= alpha.

**Privacy.** One score more or less changes n by 1 and one cell by 1 (sizes): noise of epsilon/10 and 9 epsilon/10 makes
the release epsilon-differentially private. For *equal* and *given* the cells change by at most 2 V_k in L1: with one
score more no multiplicity of another score rises (`HistogramPlan.change`), and the number of items is fixed. For whole
devices as unit all its scores change at once, in one histogram: a device has scores in several groups and epochs, so
releases of groups and of epochs add up their epsilon for it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import Literal, NamedTuple

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from conformesh.common.array_types import Floats, Ints
from conformesh.kernels.ranks import exact_number
from conformesh.privacy.grids import GridName, check_grid, grid_points
from conformesh.privacy.inflation import Inflation, noise_inflation, omega
from conformesh.privacy.noise import ByteStream, NoiseShares, exact_epsilon, noise_variance

Mixture = Literal["sizes", "equal", "given"]
_Unit = Literal["score", "device"]

# Share of epsilon that is spent on the number n. It enters with the factor alpha, so it may have more noise than cells.
_NUMBER_PART = Fraction(1, 10)
_FEWEST_CELLS, _MOST_CELLS = 8, 4096  # limits of the choice; more cells cost more noise than they gain in resolution
# Copies of a score by mixture: enough to spread f items evenly over more scores, and to approximate given shares.
COPIES_PER_SCORE = {"equal": 8, "given": 32}
# With whole devices as unit, slack and inflation may take up to 1/4 of what may be missed; beyond, prediction sets say
# little.
_PRIVATE_DEVICE_ROOM = 4
# Largest sum of the counts of all devices: half of what 32 bits with a sign hold. The other half is for the noise.
LARGEST_ROW_SUM = 2**30


class NoisyThreshold(NamedTuple):
    """A threshold, what noise costs in it, and the standard deviation of coverage to expect."""

    threshold: float
    inflation: Inflation
    spread: float


def choose_cells(expected: int, epsilon: float) -> int:
    """Return the number of cells for so many expected scores, a power of two: public numbers decide, never data.

    More cells round thresholds less and spread coverage more. The rule is a fit to the best numbers of cells for 2,000
    and 10,000 scores and epsilon from .1 to 1.

    >>> choose_cells(2000, 1.0), choose_cells(2000, 0.1), choose_cells(10_000, 1.0)
    (128, 32, 512)
    """
    if expected < 1 or not epsilon > 0:
        raise ValueError(f"expected scores and epsilon must be positive, got {expected} and {epsilon}")
    power = round(0.71 * math.log2(expected * epsilon) - 0.42)
    return min(max(1 << max(power, 0), _FEWEST_CELLS), _MOST_CELLS)


@dataclass(frozen=True)
class HistogramPlan:
    """All public parameters of a release, known before the data.

    Attributes
    ----------
    grid, range, cells
        The pivots: `cells` - 1 points of this grid (`grids.grid_points`).
    epsilon
        Privacy loss of one release.
    devices, honest
        K devices take part; noise is private if H of them keep their share to themselves.
    unit
        What epsilon protects, by its presence or absence: one score, or all scores of a device. (Replacing a unit by
        another is one absence and one presence, so it loses up to 2 epsilon.)
    cap
        With unit *device* and mixture *sizes*: more scores than this are thinned at random.
    mixture
        Where the new example comes from: *sizes*, *equal* or *given*.
    copies
        V_k for each row; by default 8 each for *equal*, and ceil(32 pi_k / max pi) for *given*.
    fill
        f: a device with fewer scores is padded with +infinity to as many; for *equal* and *given*.
    shares
        pi_k for each row, for *given*.
    """

    grid: GridName
    cells: int
    epsilon: float
    devices: int
    honest: int
    range: tuple[float, float] | None = None
    unit: _Unit = "score"
    cap: int | None = None
    mixture: Mixture = "sizes"
    copies: tuple[int, ...] | None = None
    fill: int | None = None
    shares: tuple[Fraction, ...] | None = None

    def __post_init__(self) -> None:
        check_grid(self.grid, self.range)
        if self.grid == "auto":
            raise ValueError("a histogram needs a grid by name: linear, powers or logit, got 'auto'")
        if self.cells < 2:
            raise ValueError(f"a histogram needs at least 2 cells, got {self.cells}")
        if not 1 <= self.honest <= self.devices:
            raise ValueError(f"honest must be a number from 1 to the {self.devices} devices, got {self.honest}")
        if self.mixture == "sizes":
            self._check_sizes()
        else:
            self._check_items()
        _ = self.noise  # an epsilon out of range is refused now

    def _check_sizes(self) -> None:
        if (self.unit == "device") != (self.cap is not None):
            raise ValueError("unit 'device' needs cap, the most scores of a device that count; other units have no cap")
        if self.cap is not None and not 1 <= self.cap <= self.most:
            raise ValueError(f"cap must be a number from 1 to {self.most:,} scores, got {self.cap}")
        if self.copies is not None or self.fill is not None or self.shares is not None:
            raise ValueError("copies, fill and shares are for the mixtures 'equal' and 'given', got mixture 'sizes'")

    def _check_items(self) -> None:
        if self.fill is None or self.fill < 1:
            raise ValueError(f"mixture {self.mixture!r} needs fill, at least 1 score for each device, got {self.fill}")
        if self.cap is not None:
            raise ValueError(f"cap is for mixture 'sizes'; with {self.mixture!r} fill bounds what a device contributes")
        if (self.mixture == "given") != (self.shares is not None):
            raise ValueError("mixture 'given' needs shares, one for each device, and no other mixture has any")
        if self.shares is not None and (len(self.shares) != self.devices or sum(self.shares) != 1):
            raise ValueError(f"shares must be {self.devices} numbers that add up to 1")
        if self.copies is None:
            object.__setattr__(self, "copies", copies_per_device(self.pi, COPIES_PER_SCORE[self.mixture]))
        assert self.copies is not None
        if len(self.copies) != self.devices or any(
            (v < 1) != (pi <= 0) for v, pi in zip(self.copies, self.pi, strict=True)
        ):
            raise ValueError(f"copies must be {self.devices} numbers, at least 1 where the share is above 0, else 0")
        if max(self.copies) * self.fill > self.most:
            raise ValueError(
                f"{max(self.copies)} copies of {self.fill} scores are more than the {self.most:,} that one of "
                f"{self.devices:,} devices may count; use a smaller fill"
            )

    # --- public numbers -----------------------------------------------------------------------------------------------

    @cached_property
    def pivots(self) -> Floats:
        """p_1 < ... < p_w."""
        points = grid_points(self.grid, self.cells - 1, self.range)
        if len(points) < self.cells - 1:
            raise ValueError(f"the range {self.range} holds fewer than {self.cells - 1:,} floats; use a wider one")
        return points

    @property
    def numbers(self) -> int:
        """How many numbers are added up: n where the number of items is not public, and the w cells above p_1."""
        return self.cells - 1 + (self.mixture == "sizes")

    @property
    def pi(self) -> tuple[Fraction, ...]:
        """The chance of each device, for the mixtures *equal* and *given*."""
        return self.shares or (Fraction(1, self.devices),) * self.devices

    @property
    def slack(self) -> int:
        """How far replacing one score moves D: 1, or the most copies of a score."""
        return max(self.copies or (1,))

    @property
    def items(self) -> int | None:
        """R = floor(min W_k/pi_k); None where the number of scores is not public."""
        if self.copies is None or self.fill is None:
            return None
        return math.floor(min(v * self.fill / pi for v, pi in zip(self.copies, self.pi, strict=True) if pi))

    @property
    def change(self) -> int:
        """By how much one unit more or less changes the cells in L1, at most.

        *sizes*: 1, or `cap` for a device. *equal*, *given*: 2 V, or 2 V f for a device. Proof for one score more, from
        n to n + 1 of a device with W items: let q = W // n, q' = W // (n + 1). If q' < q, each other score has at most
        q' + 1 <= q copies now. If q' = q, the q' + 1 copies go to the first r' = W - q (n + 1) places of a random order
        instead of r = r' + q; take the order of n + 1 places and leave out the new one: what is left of the first r'
        lies in the first r. So no other score gains, and as W is fixed, what the new one gains (at most V) others or
        the padding lose. The orders with and without the new score are coupled, and each is uniform: outcomes of the
        release are within e^{epsilon} for each coupled pair, hence on average.
        """
        if self.mixture == "sizes":
            return self.cap or 1
        return 2 * self.slack * (self.fill or 1 if self.unit == "device" else 1)

    @property
    def shape(self) -> Fraction:
        """R = K/H of the noise, if all devices add their share."""
        return Fraction(self.devices, self.honest)

    @property
    def most(self) -> int:
        """How many scores a device counts in all and in each cell, at most; more saturate, and others do not notice.

        Saturated counts still move by at most one score, so privacy holds; coverage assumes that nobody has more.
        """
        return LARGEST_ROW_SUM // self.devices

    @cached_property
    def epsilons(self) -> tuple[Fraction, Fraction | None]:
        """Epsilon of each cell, and of n, for a change by one."""
        epsilon = exact_number(self.epsilon, f"epsilon must be a number, got {self.epsilon!r}") / self.change
        if self.mixture != "sizes":
            return exact_epsilon(epsilon), None
        return exact_epsilon((1 - _NUMBER_PART) * epsilon), exact_epsilon(_NUMBER_PART * epsilon)

    @cached_property
    def noise(self) -> tuple[NoiseShares, NoiseShares | None]:
        """The shares of noise that a device adds to each cell, and to n."""
        cell, number = self.epsilons
        return NoiseShares(cell, self.honest), None if number is None else NoiseShares(number, self.honest)

    # --- what a device does -------------------------------------------------------------------------------------------

    def count(self, scores: Floats, row: int, stream: ByteStream) -> Ints:
        """Return one device's own numbers, without noise: [n], then the cells above p_1.

        The same work is done for all values of the scores, and about log n steps for their number: the time until a
        device sends must not depend on its data.

        Parameters
        ----------
        scores
            Sorted, NaN last as `numpy.sort` has it: NaN counts as +infinity.
        row
            Which device.
        stream
            Fresh random bytes, for choices among the scores.
        """
        edges = _count_up_to(scores, self.pivots)
        bounds = np.concatenate([[0], edges, [len(scores)]])
        if self.copies is not None and self.fill is not None:
            return self._items(bounds, self.copies[row], self.fill, stream)
        if self.cap is not None:
            cells = _draw_places(min(len(scores), self.cap), self.cap, bounds, stream)
        else:
            cells = np.diff(bounds)
        return np.asarray(np.minimum(np.concatenate([[cells.sum()], cells[1:]]), self.most))

    def _items(self, bounds: Ints, copies: int, fill: int, stream: ByteStream) -> Ints:
        """Return the items of a device in each cell above p_1."""
        n, whole = int(bounds[-1]), copies * fill
        each = copies if n <= fill else whole // n
        more = 0 if n <= fill else whole % n  # places that get one more
        cells = each * np.diff(bounds) + _draw_places(more, whole, bounds, stream)
        cells[-1] += whole - each * n - more  # padding
        return np.asarray(cells[1:])

    def draw_noise(self, stream: ByteStream) -> Ints:
        """Return a device's share of noise for each number, from 32 bytes of `stream` each."""
        cells, number = self.noise
        if number is None:
            return cells.draw(stream, self.cells - 1)
        return np.concatenate([number.draw(stream, 1), cells.draw(stream, self.cells - 1)])

    # --- what everybody computes --------------------------------------------------------------------------------------

    def release(self, totals: Ints, epochs: tuple[int, ...] = (), members: str = "") -> Release:
        """Return what is public of a run with these totals; `members` names the set of devices, to sum windows."""
        cell, number = self.epsilons
        return Release(
            grid=self.grid,
            range=self.range,
            cells=self.cells,
            mixture=self.mixture,
            slack=self.slack,
            items=self.items,
            cell_epsilon=str(cell),
            number_epsilon=None if number is None else str(number),
            shape=str(self.shape),
            totals=tuple(np.asarray(totals).tolist()),
            epochs=tuple(epochs),
            members=members,
        )

    def inflation(self, alpha: Fraction) -> Inflation:
        """Return what noise costs at this level."""
        return noise_inflation(alpha, *self.epsilons, self.shape)

    def devices_needed(self, alpha: Fraction) -> int:
        """Return how many devices make slack and inflation at most a quarter of what may be missed.

        With as many devices outside `honest` as there are now; more of them mean less noise each.
        """
        others, one = (
            self.devices - self.honest,
            alpha * (self.cap or self.slack * (self.fill or 1)) / _PRIVATE_DEVICE_ROOM,
        )

        def needed_by(devices: int) -> int:
            shape = Fraction(devices, devices - others)
            return math.ceil((self.slack + omega(self.epsilons[0], shape)) / one)

        # more devices mean a smaller shape, so what is needed falls as their number grows: they cross once
        low, high = others, max(self.devices, needed_by(self.devices))
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if needed_by(middle) <= middle else (middle, high)
        return high

    def check_devices(self, alphas: Sequence[Fraction]) -> None:
        """Refuse to protect whole devices among so few that thresholds would say nothing."""
        for alpha in alphas if self.unit == "device" else ():
            needed = self.devices_needed(alpha)
            if self.devices < needed:
                raise ValueError(
                    f"protecting whole devices at epsilon {self.epsilon:g} and alpha {float(alpha):g} needs at least "
                    f"{needed:,} devices, got {self.devices:,}: with fewer, noise costs more than a quarter of alpha; "
                    "use unit 'score', a larger epsilon or alpha, or more devices"
                )


def copies_per_device(shares: Sequence[Fraction], most: int) -> tuple[int, ...]:
    """Return V_k = ceil(most pi_k / max pi): copies in proportion to shares, rounded up.

    >>> copies_per_device([Fraction(1, 2), Fraction(1, 3), Fraction(1, 6), Fraction(0)], 32)
    (32, 22, 11, 0)
    """
    largest = max(shares)
    return tuple(math.ceil(most * share / largest) for share in shares)


def _count_up_to(scores: Floats | Ints, pivots: Floats | Ints) -> Ints:
    """Return how many of the sorted scores are at or below each pivot, NaN being above all.

    A binary search for all pivots at once, in steps that depend on the number of scores alone. `numpy.searchsorted`
    starts from the answer to the pivot before, so that its time tells where the scores are.
    """
    found = np.zeros(len(pivots), dtype=np.int64)
    step = 1 << len(scores).bit_length() >> 1
    while step:
        at = np.minimum(found + step, len(scores))
        found += step * ((found + step == at) & (scores[at - 1] <= pivots))
        step >>= 1
    return found


def _draw_places(count: int, most: int, bounds: Ints, stream: ByteStream) -> Ints:
    """Draw `count` of the sorted scores without replacement; return how many lie in each cell.

    Cell i holds places bounds[i] to bounds[i + 1] - 1. The first steps of a shuffle, of which only moved places are
    kept. Always `most` steps, at least `count`, and 16 bytes of `stream` each: the time must not tell how many. A
    remainder of 128 bits is uniform to within 2^-90 for any number of scores.
    """
    words, among, places = stream(16 * most), int(bounds[-1]), []
    moved: dict[int, int] = {}
    for i in range(most):
        j = i + int.from_bytes(words[16 * i : 16 * i + 16], "big") % max(among - i, 1)
        places.append(moved.get(j, j))
        moved[j] = moved.get(i, i)
    cells = _count_up_to(bounds[1:-1], np.array(places, dtype=np.int64))
    is_drawn = np.arange(most) < count
    return np.bincount(cells, weights=is_drawn, minlength=len(bounds) - 1).astype(np.int64)


class Release(Struct, frozen=True, forbid_unknown_fields=True):
    """A noisy histogram and all public numbers that answers need; nothing of it is secret.

    Attributes
    ----------
    grid, range, cells
        The pivots.
    mixture, slack, items
        See `HistogramPlan`; of a window `items` is the sum.
    cell_epsilon, number_epsilon, shape
        The noise of each cell and of n, as fractions; shapes of a window add up.
    totals
        [n~], then the noisy cells above p_1.
    epochs
        Which epochs it counts.
    members
        A name of the set of devices.
    """

    grid: GridName
    range: tuple[float, float] | None
    cells: int
    mixture: Mixture
    slack: int
    items: int | None
    cell_epsilon: str
    number_epsilon: str | None
    shape: str
    totals: tuple[int, ...]
    epochs: tuple[int, ...] = ()
    members: str = ""

    def __post_init__(self) -> None:
        needed = self.cells - 1 + (self.number_epsilon is not None)
        if len(self.totals) != needed:
            raise ValueError(f"a release with {self.cells} cells has {needed} totals, got {len(self.totals)}")

    @property
    def pivots(self) -> Floats:
        """p_1 < ... < p_w."""
        return grid_points(self.grid, self.cells - 1, self.range)

    @property
    def number(self) -> int:
        """The noisy number of scores, or the public number of items."""
        return self.totals[0] if self.items is None else self.items

    def inflation(self, alpha: Fraction) -> Inflation:
        """Return what noise costs at this level."""
        number = None if self.number_epsilon is None else Fraction(self.number_epsilon)
        return noise_inflation(alpha, Fraction(self.cell_epsilon), number, Fraction(self.shape))

    def answer(self, alpha: Fraction) -> NoisyThreshold:
        """Return the threshold that covers with probability at least 1 - alpha; any number of levels may be asked.

        Larger alpha, smaller or equal threshold: alpha n~ grows and n_0 falls.
        """
        cost = self.inflation(alpha)
        is_enough = alpha * self.number >= cost.value if self.items is not None else self.number >= cost.number_needed
        if not is_enough:
            return NoisyThreshold(math.inf, cost, 0.0)
        # above~ is a whole number, so comparing it with the floor is exact
        at = self._last_crossing(math.floor(alpha * self.number - self.slack - cost.value))
        return NoisyThreshold(float(np.append(self.pivots, math.inf)[at]), cost, self._spread(alpha, at))

    def _last_crossing(self, limit: int) -> int:
        """Return the place of the pivot after the last one with above~ > limit, from 0; w stands for +infinity."""
        above = np.cumsum(self.totals[::-1][: self.cells - 1])[::-1]
        rejected = np.flatnonzero(above > limit)
        return int(rejected[-1]) + 1 if len(rejected) else 0

    def _spread(self, alpha: Fraction, at: int) -> float:
        """Return the standard deviation of coverage to expect at this pivot.

        Three independent parts: sampling, noise of n~ and of the cells above the threshold, and the width of the cell
        that ends at the threshold.
        """
        if at == self.cells - 1:
            return 0.0  # everything is covered
        n, shape, a = max(self.number, 1), float(Fraction(self.shape)), float(alpha)
        cells = shape * (self.cells - 1 - at) * noise_variance(Fraction(self.cell_epsilon))
        number = 0.0 if self.number_epsilon is None else shape * a * a * noise_variance(Fraction(self.number_epsilon))
        counts = self.totals[-(self.cells - 1) :]
        width = max(counts[at - 1] if at else 0, 0)
        sampling = a * (1 - a) / (n / self.slack + 2)
        # no number between 0 and 1 has a larger deviation than 1/2
        return min(math.sqrt(sampling + (cells + number + width * width / 12) / n**2), 0.5)

    @staticmethod
    def summed(releases: Sequence[Release]) -> Release:
        """Return the release of a window: totals, items and shapes add up.

        The scores of the window must be exchangeable. For mixtures *equal* and *given* all releases must be of the same
        devices: R of the window is min_k sum_e W_k(e)/pi_k, the sum of the R(e) only if pi is the same.
        """
        if not releases:
            raise ValueError("a window needs at least one release")
        first = releases[0]
        for other in releases[1:]:
            if _window_key(other) != _window_key(first):
                raise ValueError("releases of a window must have the same grid, cells, mixture and epsilon")
        return replace(
            first,
            items=None if first.items is None else sum(one.items or 0 for one in releases),
            shape=str(sum(Fraction(one.shape) for one in releases)),
            totals=tuple(np.sum([one.totals for one in releases], axis=0).tolist()),
            epochs=tuple(epoch for one in releases for epoch in one.epochs),
            members=first.members if len({one.members for one in releases}) == 1 else "",
        )


def _window_key(release: Release) -> Release:
    """Return what releases of a window must share."""
    members = "" if release.items is None else release.members
    items = None if release.items is None else 0
    return replace(release, totals=(0,) * len(release.totals), epochs=(), items=items, members=members, shape="1")
