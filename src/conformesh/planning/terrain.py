"""Where a method is to run: a network, built or only sketched, and how many scores its devices hold."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property, lru_cache
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from conformesh.engines.simulator import Simulator
from conformesh.graph.network import Network
from conformesh.graph.sketch import Growth, Sketch, Tree
from conformesh.graph.spectrum import Spectrum
from conformesh.graph.topologies import TOPOLOGIES, sketch
from conformesh.kernels.ranks import DEFAULT, Requirement
from conformesh.kernels.weighted_scores import WeightedScores
from conformesh.planning.search import ANY, SHAPES, stages_in, stages_of_any
from conformesh.planning.trials import LIKELY, MANY, run_on, runs_on_draws
from conformesh.protocols.aggregate.finite_time import LARGEST_DENSE
from conformesh.protocols.e_dcp import EDCP, chosen
from conformesh.protocols.predicting import Look, Run, Searches, Stretch
from conformesh.protocols.schedule_prices import ENOUGH_EACH
from conformesh.protocols.site import Site
from conformesh.protocols.spectral import estimate_spectrum
from conformesh.protocols.top_k import wanted_lists
from conformesh.result.certificate import Cost
from conformesh.streams import Rng

BUILD_UP_TO = 1_000_000  # devices: beyond, a network is sketched
BUILD_EDGES = 30_000_000
SPECTRUM_UP_TO = 30_000  # devices: beyond, eigenvalues come from a law where the topology has one
ESTIMATED_UP_TO = 3000  # devices: estimating the spectrum does not depend on scores, so it is run; beyond, that is long
# Devices, scores, and scores heard in a flood up to which schedules are run: on scores that are known, a few seconds;
# and on draws, of which several are needed.
RUN_KNOWN, RUN_DRAWN = (100_000, 5_000_000, 2_000_000), (10_000, 500_000, 20_000)
OWN_SPECTRUM_UP_TO = 100_000  # the same for a network of one's own, which has no law; a quarter of a minute


@dataclass(frozen=True, eq=False)
class SketchedSite:
    """What the prices of aggregators read of a `Site`, for a network that is not there."""

    network: Sketch
    most: int

    @property
    def devices(self) -> int:
        """K, the number of devices."""
        return self.network.devices

    @property
    def totals(self) -> NDArray[np.int64]:
        """n, the number of scores, of the only trial."""
        return np.array([self.most])


@dataclass(frozen=True, eq=False)
class Terrain:
    """All that a prediction may depend on.

    Attributes
    ----------
    map
        The network, or a sketch of it.
    built
        The network itself, where it was built.
    scores
        Scores of every device where they differ, else of each.
    seconds
        What building it took.
    pooled
        All scores, where they are at hand: then the stages of a search are no estimate.
    shape
        What scores look like where they are not: a name of `SHAPES`, or `any`.
    promise
        Whom the thresholds are to be about, and by which rule.
    """

    map: Network | Sketch
    built: Network | None
    scores: int | NDArray[np.int64]
    seconds: float = 0.0
    pooled: NDArray[np.float64] | None = None
    shape: str = ANY
    requirement: Requirement = DEFAULT

    @classmethod
    def with_scores(cls, network: Network, scores: WeightedScores) -> Terrain:
        """Prepare predictions for scores that are at hand, one trial of them."""
        return replace(cls.of(network, scores.sizes[:, 0]), pooled=scores.pooled(0))

    @classmethod
    def of(
        cls,
        where: Network | Sketch,
        scores: int | Sequence[int] | NDArray[np.int64],
        law: Callable[[], Sketch] | None = None,
    ) -> Terrain:
        """Prepare predictions; `law` gives the eigenvalues where computing them would take long."""
        given = np.asarray(scores)
        if given.dtype.kind not in "iu" or given.ndim > 1:
            raise TypeError(
                "scores_per_device must be a whole number, or one per device, got "
                f"{scores if given.ndim == 0 else f'an array of shape {given.shape} and type {given.dtype}'}"
            )
        given = given.astype(np.int64)
        held: int | NDArray[np.int64] = int(given) if given.ndim == 0 else given
        least = held if isinstance(held, int) else int(held.min(initial=0))
        if least < 0 or (isinstance(held, int) and held < 1):
            raise ValueError(f"a plan needs at least 1 score per device, got {least}")
        if not isinstance(held, int) and held.shape != (where.devices,):
            raise ValueError(f"a plan needs one number of scores, or one per device, got {held.shape}")
        if isinstance(where, Sketch):
            if where.devices <= LARGEST_DENSE:
                raise ValueError(
                    f"a sketch is for more than {LARGEST_DENSE:,} devices, got {where.devices:,}; plan with the network"
                )
            return cls(where, None, held)
        return cls(_with_quick_spectrum(where, law), where, held)

    @property
    def devices(self) -> int:
        """K."""
        return self.map.devices

    @property
    def n(self) -> int:
        """Scores in all."""
        return self.devices * self.scores if isinstance(self.scores, int) else int(self.scores.sum())

    @property
    def most(self) -> int:
        """Scores of the device that has the most."""
        return self.scores if isinstance(self.scores, int) else int(self.scores.max())

    @property
    def mean_degree(self) -> float:
        """Neighbours of an average device."""
        return 2 * self.map.edges / self.devices

    @cached_property
    def sizes(self) -> NDArray[np.int64] | None:
        """Scores of every device, where there is a network."""
        if self.built is None:
            return None
        return np.full(self.devices, self.scores) if isinstance(self.scores, int) else self.scores

    @property
    def own(self) -> NDArray[np.int64]:
        """Scores of every device, or of a sketch one entry for all."""
        return np.array([self.n // self.devices]) if self.sizes is None else self.sizes

    @property
    def looks(self) -> Sequence[tuple[Look, float]]:
        """The quantile function of every shape that scores may have, and how likely it is."""
        names = LIKELY if self.shape == ANY else [self.shape]
        return [(SHAPES[name]()[1], names.count(name) / len(names)) for name in dict.fromkeys(names)]

    @cached_property
    def site(self) -> Site:
        """What prices and round numbers are computed from; a sketch has all that they read."""
        if isinstance(self.map, Network) and self.sizes is not None:
            return replace(Site.everywhere(self.map, self.sizes[:, None]), requirement=self.requirement)
        return cast(Site, SketchedSite(cast(Sketch, self.map), self.n))

    @cached_property
    def tree(self) -> Tree:
        """The spanning tree."""
        return self.map.tree if isinstance(self.map, Sketch) else Tree.of(self.map)

    def rank(self, alpha: Fraction) -> int:
        """Return how many scores must be covered; of scores with weights, as large a part of them."""
        held, copies = np.unique(self.scores, return_counts=True)
        if isinstance(self.scores, int):
            copies = np.array([self.devices])
        if self.requirement.shares is None:
            demand = self.requirement.demand(held, (alpha,), copies=copies)
        else:
            demand = self.site.demands[0]
        required = demand.required(self.requirement, alpha, 0, 0, demand.total, 0)
        return required if demand.weights is None else math.ceil(Fraction(required * self.n, max(demand.total, 1)))

    def searches(self, rank: int, width: int) -> Searches:
        """Return the stages for the scores themselves where they are known, else for draws of their shape."""
        if self.pooled is not None:
            return stages_in(self.pooled, rank, width)
        return stages_of_any(self.n, rank, width, self.shape)

    def runs(self, alpha: Fraction, options: EDCP) -> tuple[Sequence[Run], bool] | None:
        """Return runs of E-DCP's schedule on the scores, or on draws of their shape; None where they take long."""
        network, sizes = self.built, self.sizes
        if network is None or sizes is None:
            return None
        known = self.pooled is not None
        limits = RUN_KNOWN if known else RUN_DRAWN
        if self.devices > limits[0] or self.n > limits[1] or self._heard(network, sizes, alpha, options) > limits[2]:
            return None
        if not known and self.n > MANY and self.n >= ENOUGH_EACH * self.devices:
            return None  # a law comes as close, and at once; a few runs may hold one with a window ten times as wide
        if self.pooled is not None:
            samples = WeightedScores.from_flat(self.pooled, sizes)
            return [run_on(network, samples, self.requirement, alpha, options)], True
        return runs_on_draws(network, sizes, self.shape, self.requirement, alpha, options), False

    def _heard(self, network: Network, sizes: NDArray[np.int64], alpha: Fraction, options: EDCP) -> float:
        """Return how many scores are heard in a flood; none over a tree."""
        site = replace(Site.everywhere(network, sizes[:, None]), requirement=self.requirement, alphas=(alpha,))
        ranks, n = site.ranks(), site.masses.sum(axis=0)
        if chosen(site, options, ranks, n).over != "flood":
            return 0.0
        return float(sum(wanted.k for wanted in wanted_lists(ranks, n)[0]) * 2 * self.map.edges)

    def spectrum(self, source: str) -> tuple[list[Stretch], Spectrum]:
        """Return the spectrum as the devices would know it, and what they would send for it."""
        if source == "map":
            return [], self.site.network.spectrum
        if self.built is None or self.devices > ESTIMATED_UP_TO:
            raise ValueError(
                "what estimating the spectrum sends is known by running it, up to "
                f"{ESTIMATED_UP_TO:,} devices; use the map"
            )
        spectrum, cost = _estimated(self.built)
        numbers = cost.numbers_per_device / cost.rounds if cost.rounds else 0.0
        return [Stretch("estimate the spectrum", cost.rounds, numbers, 64)], spectrum

    @property
    def knows_diameter(self) -> bool:
        """Whether the topology has its diameter in closed form, so that a run need not look for it."""
        return self._has_closed_form or (self.built is not None and self.built.known.diameter is not None)

    @property
    def knows_spectrum(self) -> bool:
        """The same for the eigenvalues."""
        return self._has_closed_form or (self.built is not None and self.built.known.eigenvalues is not None)

    @property
    def _has_closed_form(self) -> bool:
        return self.built is None and isinstance(self.map, Sketch) and "hops" not in self.map.laws

    @property
    def laws(self) -> frozenset[str]:
        """What is an estimate: `hops`, `degree`, `spectrum`, `tree`."""
        return self.map.laws if isinstance(self.map, Sketch) else frozenset()


def terrain_of(
    topology: str,
    devices: int,
    scores: int,
    *,
    seed: int = 0,
    rng: Rng | None = None,
    build: bool = True,
    **options: Any,
) -> Terrain:
    """Build the topology, or sketch it where it is too large (or `build` is False)."""
    if _is_sketched(topology, devices, build, options):
        return Terrain.of(sketch(topology, devices, **options), scores)
    began = time.perf_counter()
    network = Network.of(topology, devices, seed=seed, rng=rng, **options)
    took = time.perf_counter() - began
    return replace(Terrain.of(network, scores, lambda: sketch(topology, devices, **options)), seconds=took)


def _is_sketched(topology: str, devices: int, build: bool, options: dict[str, Any]) -> bool:
    if topology not in TOPOLOGIES or devices <= LARGEST_DENSE:
        return False  # an error that lists the known names; or small, and finite-time asks for all eigenvalues
    if not build or devices > BUILD_UP_TO:
        return True
    known = TOPOLOGIES[topology].sketch
    return known is not None and not isinstance(known, Growth) and known(devices, **options).edges > BUILD_EDGES


@lru_cache(maxsize=8)
def _estimated(network: Network) -> tuple[Spectrum, Cost]:
    site = Site.everywhere(network, np.zeros((network.devices, 1), dtype=np.int64))
    return cast(tuple[Spectrum, Cost], Simulator(network).run(estimate_spectrum(site)))


def _with_quick_spectrum(network: Network, law: Callable[[], Sketch] | None) -> Network | Sketch:
    """Return the network, or a sketch of it whose eigenvalues follow a law, where computing them would take long."""
    K = network.devices
    limit = OWN_SPECTRUM_UP_TO if law is None else SPECTRUM_UP_TO
    if limit >= K or network.known.eigenvalues is not None:
        return network
    ends = None
    if law is not None:
        with suppress(ValueError):  # an option with which no law says how the network grows: then without eigenvalues
            ends = law().eigenvalues
    tree, laws = Tree.of(network), frozenset({"spectrum"})
    return Sketch(network.name, K, network.edges, network.largest_degree, network.diameter, tree, ends, laws)
