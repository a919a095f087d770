"""Exact risks of adapted scores on small bags: every choice of the new example and of the hidden one, as fractions.

Each device has a *full bag* of n_k + 1 labelled items in random order: n_k of them calibrate, one of these at a fixed
place is hidden, and the remaining item is the new example. So every pair of items is equally likely to be new and
hidden, independently over devices, and the risk is a sum of fractions. Calibrations and predictions are those of the
public functions; only the recorded place of the hidden row is moved over all rows, in place of as many random draws.
"""

import itertools
import math
import warnings
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, ClassVar, NamedTuple

import numpy as np
from msgspec import structs

from conformesh import CalibrationNote, Network, calibrate
from conformesh.results.result import Result
from conformesh.scores.adapt import Adaptation

SHARES: dict[str, Any] = {"sizes": lambda n: n, "paper": lambda n: n + 1, "equal": lambda n: 1}
EVERYONE = "everyone"


@dataclass(frozen=True, eq=False)
class ArbitraryScores(Adaptation):
    """Any score that is symmetric in the examples of its device: a table by device, missing item, setting and item.

    Outputs are (number of the device, number of the item), so that a bag is known by the item of the full bag that it
    does not have. Losses, by which settings are chosen, are as arbitrary.
    """

    scores: Any = field(default=None, repr=False)  # of each device: (items, settings, items)
    lost: Any = field(default=None, repr=False)  # likewise; None: one setting
    window: Any = "full"

    name: ClassVar[str] = "arbitrary"
    summary: ClassVar[str] = "a table of scores"

    def settings(self, counts, columns):
        return tuple((float(s),) for s in range(self.scores[0].shape[1]))

    def _of(self, tables, bag, setting):
        if not len(bag):
            return np.zeros(0)
        device, items = int(bag.outputs[0, 0]), bag.outputs[:, 1].astype(int)
        table = tables[device]
        missing = len(table) * (len(table) - 1) // 2 - int(items.sum())
        return table[missing, int(setting[0])][items]

    def leave_one_out(self, bag, setting):
        return self._of(self.scores, bag, setting).astype(float)

    def losses(self, bag, setting, level):
        return self._of(self.lost, bag, setting).astype(np.int64)


class FullBags(NamedTuple):
    """Full bags, and what is asked about them.

    Attributes
    ----------
    outputs, labels
        Of each device, n_k + 1 rows.
    groups
        Groups of each row, a list of names each; None: no groups. "labels": the labels are the groups.
    adapt
        How scores adapt.
    alphas
        The levels of one calibration.
    mixture
        "sizes", "paper", "equal", "own", or whole numbers, the shares of the devices.
    group_rule
        As in `calibrate`.
    """

    outputs: list[Any]
    labels: list[Any]
    groups: Any
    adapt: Adaptation
    alphas: tuple[Fraction, ...]
    mixture: Any = "sizes"
    group_rule: str | None = None

    @property
    def chances(self):
        """How likely a new example comes from each device; None where that is not defined."""
        sizes = [len(own) - 1 for own in self.labels]
        if self.mixture == "own":
            return None
        each = [SHARES[self.mixture](n) for n in sizes] if isinstance(self.mixture, str) else [*self.mixture]
        return [Fraction(share, sum(each)) for share in each]


def groups_of_rows(full, device):
    if full.groups is None:
        return None
    return [str(label) for label in full.labels[device]] if full.groups == "labels" else full.groups[device]


def calibrated(full, left_out, order=None, seed=0):
    """Return the result of the calibration without one item of each device; `order` permutes the rows of each."""
    keep = [np.delete(np.arange(len(own)), item) for own, item in zip(full.labels, left_out, strict=True)]
    if order is not None:
        keep = [rows[own] for rows, own in zip(keep, order, strict=True)]
    data = [(full.outputs[k][rows], full.labels[k][rows]) for k, rows in enumerate(keep)]
    mixture = full.mixture
    if not isinstance(mixture, str):
        mixture = {str(k): share for k, share in enumerate(mixture)}
        data = {str(k): own for k, own in enumerate(data)}
    options: dict[str, Any] = {"adapt": full.adapt, "mixture": mixture, "rng": seed}
    if full.groups is not None:
        each = [[groups_of_rows(full, k)[row] for row in rows] for k, rows in enumerate(keep)]
        options["groups"] = dict(zip(data, each, strict=True)) if isinstance(data, dict) else each
        options["group_rule"] = full.group_rule
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CalibrationNote)
        warnings.simplefilter("ignore", UserWarning)  # that only +inf keeps the guarantee
        return calibrate(data, Network.complete(len(data)), [*full.alphas], **options), keep


def is_missed(full, predictor, device, item, alpha):
    """Whether the set of a new example does not hold its label."""
    groups = None
    if full.groups is not None and full.groups != "labels":
        groups = [groups_of_rows(full, device)[item]]
    row = full.outputs[device][item : item + 1]
    label = full.labels[device][item]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CalibrationNote)
        try:
            found = predictor.predict(row, alpha=float(alpha), groups=groups)
        except ValueError as refused:
            if "no threshold for group" in str(refused):  # no calibration row is in it: nothing is predicted
                return False
            raise
    if full.adapt.task == "classification":
        return not found[0, label]
    return not found[0, 0] <= label <= found[0, 1]


def with_hidden(result: Result, device, place) -> Result:
    """Return the result as if this row of a device had been hidden."""
    facts = structs.replace(result.adapted, hidden={**result.adapted.hidden, str(device): place})
    return structs.replace(result, adapted=facts)


def exact_ratios(full, *, publicly=False):
    """Return risk / alpha for every level and group (`EVERYONE` without), or with mixture "own" every device.

    With `publicly` hidden rows are not moved in the record: the rows of each device are turned until each has stood at
    the place that the calibration drew.
    """
    sizes = [len(own) - 1 for own in full.labels]
    missed: dict[Any, Fraction] = {}
    asked: dict[Any, Fraction] = {}
    combinations = [*itertools.product(*(range(n + 1) for n in sizes))]
    turns = max([1, *sizes]) if publicly else 1
    chances = full.chances
    for left_out, turn in itertools.product(combinations, range(turns)):
        result, _ = calibrated(full, left_out, [np.roll(np.arange(n), turn) for n in sizes])
        for k, (n, item) in enumerate(zip(sizes, left_out, strict=True)):
            if turn >= max(n, 1):
                continue
            places = [None] if publicly or not n else range(n)
            share = Fraction(1, len(combinations) * (max(n, 1) if publicly else len(places)))
            share *= Fraction(1) if chances is None else chances[k]
            predictors = [(result if place is None else with_hidden(result, k, place)).on(str(k)) for place in places]
            for predictor, alpha in itertools.product(predictors, full.alphas):
                miss = is_missed(full, predictor, k, item, alpha)
                for part in _parts(full, k, item):
                    asked[part, alpha] = asked.get((part, alpha), Fraction(0)) + share
                    missed[part, alpha] = missed.get((part, alpha), Fraction(0)) + share * miss
    return {(part, alpha): missed[part, alpha] / whole / alpha for (part, alpha), whole in asked.items() if whole}


def _parts(full, device, item):
    """Return what is covered that an item belongs to: groups, or the device."""
    if full.mixture == "own" and full.groups is None:
        return [f"device {device}"]
    if full.groups is None:
        return [EVERYONE]
    own = groups_of_rows(full, device)[item]
    names = [own] if isinstance(own, str) else [*own, EVERYONE]
    return [(device, name) for name in names] if full.mixture == "own" else names


# --- random cases -----------------------------------------------------------------------------------------------------


def random_sizes(rng, limit, devices=None):
    """Return numbers of calibration rows, some of them 0, with at most `limit` combinations of new items."""
    sizes = rng.integers(0, 6, int(rng.integers(1, 4)) if devices is None else devices)
    while math.prod(int(n) + 1 for n in sizes) > limit or not sizes.any():
        sizes = np.maximum(sizes - (rng.random(len(sizes)) < 0.5), 0) if sizes.any() else sizes + 1
    return sizes.tolist()


def random_tables(rng, sizes, settings):
    """Return random scores, often tied: of the missing item, of the item alone, or of both."""
    kind, spread, found = rng.integers(3), int(rng.integers(2, 30)), []
    for n in sizes:
        shape = (n + 1, settings, n + 1)
        both = rng.integers(0, spread, shape)
        alone = np.broadcast_to(rng.integers(0, spread, (1, settings, n + 1)), shape)
        shift = int(rng.integers(0, 2 * spread)) * (rng.random() < 0.3)
        found.append(np.array([both, alone, alone + both // 4][kind]) + shift)
    return found


def random_mixture(rng, sizes, kinds=("sizes", "sizes", "equal", "paper", "given")):
    """Return a mixture; given shares are whole numbers, not 0 for every device with rows."""
    kind = kinds[rng.integers(len(kinds))]
    if kind != "given":
        return kind
    shares = rng.integers(0, 5, len(sizes))
    shares[int(np.argmax(sizes))] += 1
    return tuple(shares.tolist())


def random_levels(rng, sizes, count=3):
    """Return levels: one at which the rank has no room where devices count alike, and others."""
    n = max(sum(sizes), 2)
    found = {Fraction(int(rng.integers(1, n)), n), *(Fraction(int(rng.integers(1, 12)), 12) for _ in range(count - 1))}
    return tuple(alpha for alpha in sorted(found) if float(alpha) != 1)


def arbitrary_case(rng, limit, *, with_groups=True, kinds=("sizes", "sizes", "equal", "paper", "given")):
    """Return full bags with arbitrary scores."""
    sizes = random_sizes(rng, limit)
    settings = int(rng.choice([1, 1, 2, 3]))
    lost = random_tables(rng, sizes, settings) if settings > 1 else None
    window = 3 if rng.random() < 0.1 else "full"  # which leaves labels undecided, and includes them
    adapt = ArbitraryScores(random_tables(rng, sizes, settings), lost, window)
    outputs = [np.stack([np.full(n + 1, k), np.arange(n + 1)], axis=1).astype(float) for k, n in enumerate(sizes)]
    labels = [rng.integers(0, 2, n + 1) for n in sizes]
    groups, rule = None, None
    if with_groups and rng.random() < 0.4:
        kind = rng.integers(3)
        if kind == 0:
            groups = "labels"
        elif kind == 1:
            groups = [rng.choice(["a", "b"], n + 1).tolist() for n in sizes]
        else:
            rule = str(rng.choice(["atoms", "max"]))
            subsets = [["a"], ["b"], ["a", "b"]]
            groups = [[subsets[i] for i in rng.integers(0, 3, n + 1)] for n in sizes]
    alphas = random_levels(rng, sizes)
    return FullBags(outputs, labels, groups, adapt, alphas, random_mixture(rng, sizes, kinds), rule)


def climbed(full, rng, steps, ratio=None):
    """Change entries of the score table at random, keep what does not lower the worst ratio; return the worst ratio."""
    worst = lambda case: max(exact_ratios(case).values())  # noqa: E731
    ratio, best = worst, worst(full)
    for _ in range(steps):
        tables = [table.copy() for table in full.adapt.scores]
        for _ in range(rng.integers(1, 4)):
            table = tables[rng.integers(len(tables))]
            table[tuple(rng.integers(0, size) for size in table.shape)] = rng.integers(0, 60)
        moved = full._replace(adapt=ArbitraryScores(tables, full.adapt.lost, full.adapt.window))
        if (found := ratio(moved)) >= best:
            full, best = moved, found
    return best, full
