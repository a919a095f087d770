"""Small tables for every combination of a guarantee: the calls, their pooled answers in fractions, and exact risks.

A table gives device k n_k + 1 items. Which of them is the new example is uniform and independent over the devices. The
risk of a combination on a table is a sum over all these choices, in fractions: no tolerance is involved.
"""

import itertools
import math
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import NamedTuple

import numpy as np

from conformesh import Centres, Network, calibrate, control
from conformesh.files.memberships import EVERYONE, atom_name
from conformesh.guarantee import LOWER, UPPER, weight_level_name
from conformesh.scores.centres import centre_name
from conformesh.scores.losses import StepLosses

GROUPS = ("", "disjoint", "atoms", "max", "seq", "regression")
WEIGHTS = ("", "bound", "tests", "classes")
ATOMS = ((), ("a",), ("b",), ("a", "b"))
LABELS = ("north", "south", "east", "west")  # of disjoint groups, by the number of the atom
CLASSES = {"cat": 0.5, "dog": 2.0, "eel": 0.0}
BOUND, TESTS = 2.0, (0.5, 1.0)  # of weights, and the weights of new examples that get a threshold of their own
CENTRES = Centres.at([0.0, 1.0], 0.6, caps=[45_000, 60_000])
COLUMNS = ("owner", "score", "atom", "weight", "label", "place", "loss")  # of items
LAMBDAS = (0.0, 1.0, 2.0)  # where losses fall
LOSS_BOUND, QUARTERS = 3.0, 4  # the largest loss, and into how many parts it falls


class Cell(NamedTuple):
    """A combination: one entry of the matrix of what can be asked for together."""

    groups: str = ""
    weights: str = ""
    sides: bool = False
    centres: bool = False
    losses: bool = False
    pac: bool = False
    method: str = "e-dcp"

    @property
    def has_parts(self):
        """Whether columns hold a part of the examples, or examples have weights."""
        return bool(self.groups or self.weights or self.centres)

    def __str__(self):
        words = [self.method, *(word for word in (self.groups, self.weights) if word)]
        return " ".join(words + [name for name in ("sides", "centres", "losses", "pac") if getattr(self, name)])


class Asked(NamedTuple):
    """What else is asked for: levels, a mixture with the shares of the devices, the rank rule, the part of a side."""

    alphas: tuple[Fraction, ...] = (Fraction(1, 3), Fraction(3, 5))
    mixture: str = "sizes"
    shares: tuple[int, ...] = ()
    rank_rule: str = "auto"
    lower_share: Fraction = Fraction(1, 2)
    options: tuple[tuple[str, object], ...] = ()

    def chances(self, sizes):
        """Return how likely a new example comes from each device, up to a common factor."""
        each = {"sizes": sizes, "paper": [n + 1 for n in sizes], "equal": [1] * len(sizes), "given": self.shares}
        return [Fraction(share) for share in each[self.mixture]]


@dataclass(frozen=True, eq=False)
class Items:
    """Examples of all devices, one entry each, in the order of the devices."""

    devices: int
    owner: np.ndarray
    score: np.ndarray  # (items, 2): those of both sides; without sides the first one
    atom: np.ndarray
    weight: np.ndarray
    label: np.ndarray
    place: np.ndarray  # the input
    loss: np.ndarray  # (items, lambdas + 1): quarters of the largest loss before and from each lambda on

    @property
    def sizes(self):
        """How many items each device has."""
        return np.bincount(self.owner, minlength=self.devices).tolist()

    def kept(self, mask):
        """Return some of the items."""
        return replace(self, **{name: getattr(self, name)[mask] for name in COLUMNS})

    def with_scores(self, score):
        """Return the same items with other scores."""
        return replace(self, score=score)

    def by_device(self, column):
        """Return a column as one array for each device."""
        return [column[self.owner == k] for k in range(self.devices)]


def random_items(rng, sizes, ties=True):
    """Draw items of unlike devices, groups and inputs."""
    owner = np.repeat(np.arange(len(sizes)), sizes)
    n = len(owner)
    atom, place = rng.integers(0, 4, n), rng.integers(0, 5, n) / 4
    shift = rng.integers(0, 8, len(sizes))[owner] + rng.integers(0, 2) * rng.integers(0, 8, 4)[atom]
    score = rng.integers(0, 8, (n, 2)) + shift[:, None] + rng.integers(0, 2) * np.floor(6 * place)[:, None]
    if not ties:
        score = score + rng.random((n, 2))
    falls = np.sort(rng.integers(0, QUARTERS + 1, (n, len(LAMBDAS) + 1)), axis=1)[:, ::-1]
    falls[:, 0] = QUARTERS
    return Items(
        len(sizes),
        owner,
        score.astype(float),
        atom,
        rng.choice([[0.0, 0.25, 0.5, 1.0, BOUND], [1.0, BOUND], [0.25, BOUND]][rng.integers(3)], n),
        rng.choice([*CLASSES], n),
        place,
        falls,
    )


def run(cell, items, asked, network=None):
    """Ask for a cell through the public functions."""
    by_device, more = items.by_device, {"rank_rule": asked.rank_rule, "method": cell.method, **dict(asked.options)}
    more["mixture"] = asked.mixture if asked.mixture != "given" else {str(k): s for k, s in enumerate(asked.shares)}
    if cell.groups == "disjoint":
        more["groups"] = by_device(np.array(LABELS)[items.atom])
    elif cell.groups:
        masks = np.array([["a" in atom, "b" in atom] for atom in ATOMS])[items.atom]
        names = [{"a": own[:, 0], "b": own[:, 1]} for own in by_device(masks)]
        more |= {"groups": [_lists(own) for own in names], "group_rule": cell.groups}
    if cell.weights == "classes":
        more |= {"class_weights": CLASSES, "labels": by_device(items.label)}
    elif cell.weights:
        more |= {"weight": by_device(items.weight), "weight_bound": BOUND}
        more |= {"test_weights": TESTS} if cell.weights == "tests" else {}
    if cell.centres:
        more |= {"centres": CENTRES, "inputs": by_device(items.place)}
    if cell.sides:
        more |= {"symmetric": False, "lower_share": asked.lower_share}
    if cell.pac:
        more["pac_confidence"] = Fraction(9, 10)
    network = network or Network.complete(items.devices)
    if cell.losses:
        losses = [
            StepLosses.on_grid(LAMBDAS, own[:, 1:] * (LOSS_BOUND / QUARTERS), LOSS_BOUND)
            for own in by_device(items.loss)
        ]
        return control(losses, network, [alpha * Fraction(LOSS_BOUND) for alpha in asked.alphas], **more)
    scores = by_device(items.score if cell.sides else items.score[:, 0])
    return calibrate(scores, network, list(asked.alphas), **more)


def _lists(masks):
    """Return the names of the groups of each row."""
    return [[name for name in masks if masks[name][row]] for row in range(len(masks["a"]))]


# --- the parts of a cell ----------------------------------------------------------------------------------------------


def groups_of(cell, atom):
    """Return the names of the group parts whose thresholds a point of this atom takes; of several the largest."""
    if not cell.groups:
        return [()]
    if cell.groups == "disjoint":
        return [(LABELS[atom],)]
    if cell.groups in ("atoms", "regression"):
        return [(atom_name(ATOMS[atom]),)]
    return [(name,) for name in (*ATOMS[atom], EVERYONE)]


def conditions_of(cell, atom):
    """Return within which groups a guarantee about a point of this atom holds."""
    if not cell.groups:
        return [""]
    if cell.groups == "disjoint":
        return [LABELS[atom]]
    each = [*ATOMS[atom], EVERYONE]
    return [*each, f"only {atom_name(ATOMS[atom])}"] if cell.groups == "atoms" else each


def atoms_in(cell, group):
    """Return which atoms a group part holds."""
    return [atom for atom in range(4) if not group or group in groups_of(cell, atom)]


def levels_of(cell):
    """Return the names and the weights of new examples that have a threshold of their own."""
    if cell.weights == "classes":
        return {(name,): weight for name, weight in CLASSES.items()}
    if cell.weights == "tests":
        return {(weight_level_name(weight),): weight for weight in (*TESTS, BOUND)}
    return {(): BOUND}


def level_of(cell, items, row):
    """Return which of these a new example takes."""
    if cell.weights == "classes":
        return (str(items.label[row]),)
    return next(name for name, weight in levels_of(cell).items() if weight >= items.weight[row])


def weights_of(cell, items):
    """Return what items weigh, without the weights of their devices, exactly."""
    if cell.weights == "classes":
        return [Fraction(CLASSES[label]) for label in items.label.tolist()]
    return [Fraction(weight) for weight in items.weight.tolist()] if cell.weights else [1] * len(items.owner)


def parts_of(cell):
    """Return group, side, centre and weight of every part."""
    groups = {group for atom in range(4) for group in groups_of(cell, atom)}
    sides = (LOWER, UPPER) if cell.sides else ("",)
    centres = range(len(CENTRES)) if cell.centres else (None,)
    return itertools.product(sorted(groups), sides, centres, levels_of(cell))


def key_of(group, side, centre, level):
    """Return the name of a part as results have it."""
    return (*group, *([side] if side else []), *([] if centre is None else [centre_name(centre)]), *level)


# --- the pooled answer ------------------------------------------------------------------------------------------------


def pooled_thresholds(cell, items, asked):
    """Return the thresholds of all parts and levels by the rule of the theorem, in fractions, from pooled items.

    Not for the group rules `seq` and `regression`, nor with pac_confidence. Parts without any item are left out.
    """
    sizes, whole = items.sizes, weights_of(cell, items)
    chances = asked.chances(sizes)
    v = [share / n if n else Fraction(0) for share, n in zip(chances, sizes, strict=True)]
    missing = sum((share for share, n in zip(chances, sizes, strict=True) if not n), Fraction(0))
    alone = cell.has_parts and asked.rank_rule == "auto" and sum(map(bool, chances)) == 1
    near = CENTRES.weights(items.place) if cell.centres and len(items.owner) else None
    found = {}
    for group, side, centre, level in parts_of(cell):
        inside = np.flatnonzero(np.isin(items.atom, atoms_in(cell, group)))
        if cell.groups and not len(inside):
            continue
        cap = 1 if centre is None else int(CENTRES.caps[centre])
        largest = cap * (Fraction(BOUND) if cell.weights else 1)
        test = cap * Fraction(levels_of(cell)[level]) if cell.weights else largest
        mass = [v[items.owner[i]] * whole[i] * (1 if near is None else int(near[i, centre])) for i in inside.tolist()]
        for alpha in asked.alphas:
            share = {LOWER: asked.lower_share, UPPER: 1 - asked.lower_share, "": 1}[side]
            a = alpha * share
            slack = max(v) * ((1 - a) * test + (0 if alone else a * largest)) + (1 - a) * missing * largest
            if not max(v):
                slack = Fraction(1)  # whoever is asked about holds nothing
            found[key_of(group, side, centre, level), alpha] = (
                _smallest_lambda(items.loss[inside], mass, a, slack)
                if cell.losses
                else _smallest_score(items.score[inside, int(side == UPPER)], mass, a, slack)
            )
    return found


def _smallest_score(scores, mass, alpha, slack):
    """Return the smallest score at which the mass of scores at or below it is enough."""
    needed, below = (1 - alpha) * sum(mass, Fraction(0)) + slack, Fraction(0)
    if not needed:
        return -math.inf  # neither these examples nor the new one weigh anything
    for score, own in sorted(zip(scores.tolist(), mass, strict=True)):
        below += own
        if below >= needed:
            return score
    return math.inf


def _smallest_lambda(losses, mass, alpha, slack):
    """Return the smallest lambda at which the losses are small enough."""
    for place, threshold in enumerate((-math.inf, *LAMBDAS)):
        lost = sum(
            (m * (Fraction(int(own[place]), QUARTERS) - alpha) for own, m in zip(losses, mass, strict=True)),
            Fraction(0),
        )
        if lost <= -slack:
            return threshold
    return math.inf


# --- exact risks ------------------------------------------------------------------------------------------------------


def thresholds_in(result, device=None):
    """Return the thresholds of a result by part and level."""
    scale = Fraction(LOSS_BOUND) if result.controlled else 1
    return {
        (answer.part, answer.alpha / scale): answer.threshold if device is None else float(answer.thresholds[device])
        for answer in result.answers
    }


def hidden_choices(items):
    """Yield every choice of one item of each device, as its row."""
    starts = np.concatenate([[0], np.cumsum(items.sizes)])
    return itertools.product(*(range(a, b) for a, b in itertools.pairwise(starts.tolist())))


def lost_by(cell, items, row, found, alpha, centre):
    """Return what a new example loses at the thresholds that were found: 1 where it is not covered."""
    level = level_of(cell, items, row) if cell.weights else ()

    def limit(side):
        return max(
            found.get((key_of(group, side, centre, level), alpha), math.inf)
            for group in groups_of(cell, int(items.atom[row]))
        )

    if cell.losses:
        at = limit("")
        place = 0 if at == -math.inf else len(LAMBDAS) + 1 if at == math.inf else LAMBDAS.index(at) + 1
        return Fraction(int([*items.loss[row], 0][place]), QUARTERS)
    sides = (LOWER, UPPER) if cell.sides else ("",)
    return Fraction(any(items.score[row, s] > limit(side) for s, side in enumerate(sides)))


def ratios(cell, items, asked, answer):
    """Return risk / alpha within every condition and at every level: all choices of hidden items, summed exactly.

    `answer(left)` gives the thresholds from the items that are left, by device of the new example.
    """
    chances, whole = asked.chances([n - 1 for n in items.sizes]), weights_of(cell, items)
    near = CENTRES.weights(items.place) if cell.centres else None
    there, lost = {}, {}
    for way in hidden_choices(items):
        left = np.ones(len(items.owner), dtype=bool)
        left[list(way)] = False
        found = answer(items.kept(left))
        for k, row in enumerate(way):
            for centre in range(len(CENTRES)) if cell.centres else (None,):
                mass = chances[k] * whole[row] * (1 if near is None else int(near[row, centre]))
                if not mass:
                    continue
                for alpha in asked.alphas:
                    own = mass * lost_by(cell, items, row, found(k), alpha, centre)
                    for condition in conditions_of(cell, int(items.atom[row])):
                        key = condition, centre, alpha
                        there[key] = there.get(key, 0) + mass
                        lost[key] = lost.get(key, 0) + own
    return {key: lost[key] / there[key] / key[2] for key in there}
