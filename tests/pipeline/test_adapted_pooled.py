"""With the full window, sets of adapted scores are those of a pooled computation with all data in one place.

The reference (`adapted_reference`) is written from the theorem. That devices of a mesh and ranks of MPI predict as the
simulator does is in tests/peer/test_adapted.py and tests/engines/test_mpi.py.
"""

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest

from conformesh import Network, adapt, calibrate
from tests.peer.test_adapted import results_of_devices, simulated
from tests.pipeline.adapted_reference import CLIP, LEVELS, Rows, pooled_includes

pytestmark = pytest.mark.filterwarnings("ignore::conformesh.CalibrationNote", "ignore::conformesh.TooFewScores")
CASES, CHUNKS = 1000, 4
EVERYONE = "everyone"


def drawn_adaptation(rng, *, fixed=True):
    """Return an adaptation with the full window; `fixed`: without a choice."""
    strength = float(rng.choice([0.01, 1, 20, np.inf]))
    temperature = float(rng.choice([0.5, 1.0, 1.5]))
    prior = adapt.Prior(strength if fixed else "auto", temperature if fixed else "auto", window="full")
    if rng.random() < 0.3:
        prior = replace(prior, prior=tuple(rng.dirichlet(np.ones(3) * 5) + 0.01))
    one = lambda: float(rng.choice([2, 10, np.inf])) if fixed else "auto"  # noqa: E731
    scale = adapt.Scale(one(), one(), usual=float(rng.choice([0.5, 2.0])) if fixed else None, window="full")
    kind = rng.integers(4)
    if kind < 2:
        return (prior, scale)[kind]
    return adapt.Even(base=(prior, scale)[kind - 2], strength=float(rng.choice([1, 20])), window="full")


def drawn_rows(rng, task, sizes, classes=3):
    """Return the rows of devices, with ties."""
    found = []
    for n in sizes:
        if task == "classification":
            table = rng.integers(1, 6, (n, classes)).astype(float)
            found.append(
                (table / table.sum(axis=1, keepdims=True), rng.choice(classes, n, p=rng.dirichlet([0.5] * classes)))
            )
        else:
            residuals = rng.normal(rng.normal(), rng.choice([0.3, 1, 3]), n)
            found.append((np.zeros(n), np.round(residuals, 1 if rng.random() < 0.5 else 6)))
    return found


def drawn_groups(rng, data):
    """Return groups of all rows, those of a new row, and the rule; or None thrice."""
    kind = rng.choice(["none", "none", "disjoint", "max", "atoms", "labels"])
    if kind == "labels" and data[0][1].dtype.kind == "i":
        return [[(str(y),) for y in labels] for _, labels in data], "labels", None
    if kind in ("none", "labels"):
        return None, None, None
    subsets = [("a",), ("b",)] if kind == "disjoint" else [("a",), ("b",), ("a", "b")]
    each = [[subsets[i] for i in rng.integers(0, len(subsets), len(labels))] for _, labels in data]
    there = sorted({own for rows in each for own in rows})
    return each, there[rng.integers(len(there))], None if kind == "disjoint" else str(kind)


class Case:
    """A random case: data, result, reference."""

    def __init__(
        self, seed, *, fixed=True, window="full", fine=False, mixtures=("sizes", "equal", "paper", "given", "own")
    ):
        self.rng = rng = np.random.default_rng([44, seed])
        self.made = drawn_adaptation(rng, fixed=fixed)
        task = self.made.task
        sizes = rng.integers(0, 9, rng.integers(1, 4))
        sizes[rng.integers(len(sizes))] += 2
        self.sizes = sizes.tolist()
        self.data = drawn_rows(rng, task, self.sizes)
        self.groups, self.new_groups, self.rule = drawn_groups(rng, self.data)
        self.alphas = sorted({Fraction(int(rng.integers(1, 10)), 10), Fraction(int(rng.integers(1, 7)), 7)})
        self.mixture = str(rng.choice(mixtures))
        given = {"adapt": replace(self.made, window=window), "rng": seed}
        shares = {str(k): int(share) for k, share in enumerate(rng.integers(1, 5, len(sizes)))}
        if fine:  # too fine for a common factor: weights are rounded
            shares = {name: Fraction(str(share + rng.random())) for name, share in shares.items()}
        given["mixture"] = shares if self.mixture == "given" else self.mixture
        if self.groups is not None:
            given |= {"groups": {str(k): [[*own] for own in rows] for k, rows in enumerate(self.groups)}}
            if self.rule is None:
                given["groups"] = {name: [own[0] for own in rows] for name, rows in given["groups"].items()}
            given["group_rule"] = self.rule
        self.named = {str(k): own for k, own in enumerate(self.data)}
        self.network, self.given = Network.complete(len(sizes)), given
        self.result = calibrate(self.named, self.network, self.alphas, **given)
        self.shares = {
            "own": None, "sizes": self.sizes, "equal": [1] * len(sizes), "given": [*shares.values()],
            "paper": [n + 1 for n in self.sizes],
        }[self.mixture]  # fmt: skip
        groups = self.groups or [None] * len(sizes)
        self.devices = [Rows(outputs, labels, own) for (outputs, labels), own in zip(self.data, groups, strict=True)]
        if self.rule == "atoms":  # each combination is a group
            self.devices = [Rows(d.outputs, d.labels, [(own,) for own in d.groups]) for d in self.devices]

    def hidden(self, device):
        return -1 if self.mixture == "own" else self.result.adapted.hidden[str(device)]

    def includes(self, device, alpha, output, label):
        """Whether the reference includes a candidate: any of the groups that it is in is enough."""
        own, covered = (), [None]
        if self.new_groups == "labels":
            own = covered = (str(label),)
            if not any(own == groups for rows in self.groups for groups in rows):
                return True
        elif self.rule == "atoms":
            own = covered = (self.new_groups,)
        elif self.groups is not None:
            own = self.new_groups
            covered = own if self.rule is None else (*own, None)
        level = float(self.alphas[0])
        return any(
            pooled_includes(
                self.devices,
                device,
                self.hidden(device),
                self.made,
                alpha,
                level,
                (output, label, own, group),
                self.shares,
            )
            for group in covered
        )

    def predict(self, device, alpha, new):
        groups = None
        if self.groups is not None and self.new_groups != "labels":
            groups = [[*self.new_groups] if self.rule else self.new_groups[0]] * len(new)
        return self.result.on(str(device)).predict(new, alpha=float(alpha), groups=groups)

    def label_sets(self, queries=2):
        """Yield predicted sets and those of the reference."""
        for device, alpha in ((k, alpha) for k in range(len(self.sizes)) for alpha in self.alphas):
            new = drawn_rows(self.rng, "classification", [queries])[0][0]
            found = self.predict(device, alpha, new)
            for row, output in zip(found, new, strict=True):
                yield row.tolist(), [self.includes(device, alpha, output, label) for label in range(len(output))]

    def is_between_levels(self, end):
        """Whether residuals are rounded up or down at this one: it may be in the set alone, or touch it."""
        scale = self.made.base if isinstance(self.made, adapt.Even) else self.made
        steps = 0.5 + end / (CLIP * scale.usual / LEVELS) if scale.usual else 0.0
        return abs(steps - round(steps)) < 1e-4

    def intervals(self):
        """Yield predicted intervals, and what the reference says just inside and outside of their ends."""
        for device, alpha in ((k, alpha) for k in range(len(self.sizes)) for alpha in self.alphas):
            low, high = self.predict(device, alpha, np.zeros(1))[0]
            step = 1e-5 * max(1.0, abs(low) if np.isfinite(low) else 1.0, abs(high) if np.isfinite(high) else 1.0)
            far = [e for e in (low - step, high + step) if np.isfinite(e)]
            near = [(low, low + step), (high, high - step)] if high - low > 4 * step else []
            inside = self.rng.normal(0, 3, 3)
            ask = lambda e: self.includes(device, alpha, 0.0, float(e))  # noqa: B023, E731
            is_reached = [
                ask(e) or self.is_between_levels(end) if np.isfinite(e) else ask(np.sign(e) * 1e6) for end, e in near
            ]
            yield (low, high), [ask(e) for e in far], is_reached, [(e, ask(e)) for e in inside]


def check_pooled(seeds):
    """Compare every set of these cases with the reference; return how many were compared."""
    compared = 0
    for seed in seeds:
        case = Case(seed)
        assert not case.result.adapted.rounded
        if case.made.task == "classification":
            for found, expected in case.label_sets():
                assert found == expected, seed
                compared += 1
            continue
        for ends, far, near, some in case.intervals():
            # An interval is the smallest one around all candidates in the set.
            assert not any(far), (seed, ends, far)
            assert all(near), (seed, ends, near)
            assert all(ends[0] <= e <= ends[1] for e, is_in in some if is_in), (seed, ends, some)
            compared += 1
    return compared


def test_full_window_equals_the_pooled_computation():
    """100 cases: fixed strengths, all mixtures, groups and levels; every set is the same."""
    assert check_pooled(range(100)) > 400


def test_devices_on_a_network_equal_the_pooled_computation():
    """Cases on a fake network, where each device has its own rows and frames alone."""
    compared = 0
    for seed in range(8000, 8100):
        case = Case(seed)
        if case.made.task != "classification" or len(case.sizes) < 2 or case.groups is not None:
            continue
        result, table, run = simulated(case.named, case.network, case.alphas, **case.given)
        devices = results_of_devices(result, table, run, case.network)
        for device, own in enumerate(devices):
            case.result = own.with_rows({str(device): case.named[str(device)]})
            for alpha in case.alphas:
                new = drawn_rows(case.rng, "classification", [1])[0][0]
                expected = [case.includes(device, alpha, new[0], label) for label in range(3)]
                assert case.predict(device, alpha, new)[0].tolist() == expected
                compared += 1
    assert compared > 20


@pytest.mark.slow
def test_full_window_equals_the_pooled_computation_in_a_thousand_cases():
    assert check_pooled(range(1000, 2000)) > 4000


def check_chosen(seeds):
    """Compare cases in which settings are chosen; return how many sets there were, and how many were equal."""
    compared = equal = 0
    for seed in seeds:
        case = Case(seed, fixed=False)
        if case.made.task == "classification":
            for found, expected in case.label_sets(1):
                assert all(is_in or not wanted for is_in, wanted in zip(found, expected, strict=True)), seed
                compared, equal = compared + 1, equal + (found == expected)
            continue
        for ends, _, near, some in case.intervals():
            assert all(ends[0] <= e <= ends[1] for e, is_in in some if is_in), (seed, ends, some)
            compared, equal = compared + 1, equal + all(near)
    return compared, equal


def test_chosen_settings_contain_the_pooled_computation():
    """With choices made again for every candidate, sets contain the reference's: they keep what has no window.

    With so few rows many settings are nearly as good as the best one, and only some of them have a window.
    """
    compared, equal = check_chosen(range(5000, 5015))
    assert equal >= 0.5 * compared


@pytest.mark.parametrize("window", [2, 5, 16])
def test_any_window_contains_the_pooled_computation(window):
    """Few and tied scores, of which a short window leaves many labels undecided: these are included."""
    for seed in range(6000, 6030):
        case = Case(seed, window=window)
        if case.made.task == "classification":
            for found, expected in case.label_sets():
                assert all(is_in or not wanted for is_in, wanted in zip(found, expected, strict=True)), seed
        else:
            for ends, _, _, some in case.intervals():
                assert all(ends[0] <= e <= ends[1] for e, is_in in some if is_in), (seed, ends, some)


def test_rounded_weights_contain_the_pooled_computation():
    """Shares with 16 digits: weights are rounded, to the safe side; sets are those of exact weights all the same."""
    rounded = equal = compared = 0
    for seed in range(7000, 7040):
        case = Case(seed, fine=True, mixtures=("given",))
        rounded += case.result.adapted.rounded
        if case.made.task == "classification":
            for found, expected in case.label_sets():
                assert all(is_in or not wanted for is_in, wanted in zip(found, expected, strict=True)), seed
                compared, equal = compared + 1, equal + (found == expected)
    assert rounded > 10
    assert equal >= 0.99 * compared > 50


@pytest.mark.parametrize("kind", ["prior", "scale", "even"])
def test_sixteen_values_contain_the_full_window_and_nearly_equal_it(kind):
    """20 devices with 50 rows, 800 queries of each kind; of 2,000 queries of each kind, 6,000 in all, none differed."""
    classes, equal, asked = 10, 0, 0
    for seed in range(2):
        rng, data = np.random.default_rng([45, seed]), {}
        for k in range(20):
            if kind == "scale":
                data[str(k)] = rng.normal(size=50), rng.normal(rng.normal(), np.exp(rng.normal(0, 0.5)), 50)
            else:
                labels = rng.choice(classes, 50, p=rng.dirichlet(np.full(classes, 0.3)))
                logits = rng.normal(size=(50, classes)) + 2 * np.eye(classes)[labels]
                data[str(k)] = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True), labels
        made = {"prior": adapt.Prior, "scale": adapt.Scale, "even": adapt.Even}[kind]
        results = [
            calibrate(data, Network.torus(5, 4), 0.1, adapt=made(window=window), rng=seed) for window in (16, "full")
        ]
        for name in data:
            new = rng.normal(size=20) if kind == "scale" else rng.dirichlet(np.full(classes, 0.3), 20)
            some, full = (result.on(name).predict(new) for result in results)
            if kind == "scale":
                assert (some[:, 0] <= full[:, 0]).all()
                assert (some[:, 1] >= full[:, 1]).all()
            else:
                assert (some >= full).all()
            asked, equal = asked + len(new), equal + int((some == full).all(axis=1).sum())
    assert equal >= 0.99 * asked
