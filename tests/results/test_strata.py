"""Coverage of parts, against slow and obvious versions."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from conformesh import Network, calibrate, scores
from conformesh.results.strata import _lowest, coverage_by_stratum, worst_slab

RNG = np.random.default_rng(2)
P = np.array([RNG.dirichlet(np.full(30, RNG.choice([0.02, 0.2, 1.0]))) for _ in range(400)])
Y = np.array([RNG.choice(30, p=p) for p in P])
LAC = scores.LAC()
RESULT = calibrate(np.split(LAC(P, Y), 4), Network.cycle(4), 0.1, score=LAC)
TOLD = RESULT.evaluate(P, Y)


def rates(strata):
    return {name: (part.covered, part.rows) for name, part in strata.items()}


def test_size_stratified_coverage_of_sets():
    """The strata of [Angelopoulos2021]: 0 to 1, 2 to 3, 4 to 10, 11 to 100 labels."""
    sets = RESULT.predict(P)
    hits, sizes = sets[np.arange(400), Y], sets.sum(axis=1)
    slow = {}
    for name, low, high in (("at most 1", 0, 1), ("2 to 3", 2, 3), ("4 to 10", 4, 10), ("11 to 100", 11, 100)):
        rows = [i for i in range(400) if low <= sizes[i] <= high]
        if rows:
            slow[name] = (sum(int(hits[i]) for i in rows), len(rows))
    assert len(slow) >= 2
    assert rates(TOLD.by_size()) == slow
    one = rates(TOLD.by_size([2, 3]))
    assert [*one] == ["at most 2", "3", "4 or more"]
    assert one["3"] == (int(hits[sizes == 3].sum()), int((sizes == 3).sum()))


def test_size_stratified_coverage_of_intervals():
    x = RNG.normal(size=200)
    outputs = np.column_stack([x, 0.5 + np.abs(x)])
    y = x + RNG.normal(size=200)
    residual = scores.NormalisedResidual()
    told = calibrate([residual(outputs, y)], Network.chain(1), 0.2, score=residual).evaluate(outputs, y)
    parts = told.by_size()
    assert [part.rows for part in parts.values()] == [40] * 5
    assert sum(part.covered for part in parts.values()) == told.coverage.covered
    assert [part.rows for part in told.by_size(bins=2).values()] == [100, 100]
    widths = told.row_sizes
    ((name, first), *_) = told.by_size(bins=4).items()
    edge = np.sort(widths)[49]
    assert name == f"at most {edge:.6g}"
    assert first.covered == told.row_hits[widths <= edge].sum()


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 6), st.booleans()), min_size=1, max_size=40),
    st.one_of(st.integers(1, 6), st.lists(st.integers(-1, 7), min_size=1, max_size=4, unique=True).map(sorted)),
)
def test_every_row_is_in_one_stratum(rows, bins):
    values, hits = np.array([v for v, _ in rows]), np.array([h for _, h in rows])
    parts = coverage_by_stratum(hits, values, "values", bins)
    assert sum(part.rows for part in parts.values()) == len(rows)
    assert sum(part.covered for part in parts.values()) == hits.sum()
    places = [np.searchsorted(bins, values[i]) for i in range(len(rows))] if isinstance(bins, list) else None
    if places is not None:
        assert sorted(part.rows for part in parts.values()) == sorted(places.count(k) for k in set(places))


def test_feature_stratified_coverage():
    sites = np.array(["north", "south"])[RNG.integers(0, 2, 400)]
    slow = {site: (int(TOLD.row_hits[sites == site].sum()), int((sites == site).sum())) for site in ("north", "south")}
    assert rates(TOLD.by_feature(sites)) == rates(TOLD.by_feature(sites.tolist())) == slow
    age = RNG.random(400)
    assert [part.rows for part in TOLD.by_feature(age).values()] == [80] * 5
    assert [*TOLD.by_feature(age, [0.5])] == ["at most 0.5", "above 0.5"]
    assert [*TOLD.by_feature(RNG.integers(0, 3, 400))] == ["0", "1", "2"]


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda: TOLD.by_feature([1, 2]), ValueError, r"values must be one for each of 400 rows, got shape \(2,\)"),
        (lambda: TOLD.by_feature([None] * 400), ValueError, "values: row 0 has no value"),
        (lambda: TOLD.by_feature(["a"] * 400, bins=2), TypeError, "must be numbers to be put into bins"),
        (lambda: TOLD.by_feature(np.full(400, np.nan), bins=2), ValueError, "values: row 0 is NaN"),
        (lambda: TOLD.by_size(bins=[3, 1]), ValueError, "in ascending order"),
        (lambda: TOLD.by_size(bins=-1), ValueError, "bins must be at least 1"),
        (lambda: TOLD.worst_slab(np.ones((3, 2))), ValueError, "one row for each of 400 rows"),
        (lambda: TOLD.worst_slab([["a"]] * 400), TypeError, "encode categories first"),
        (lambda: TOLD.worst_slab(np.full(400, np.inf)), ValueError, "features must be finite, row 0 is not"),
        (lambda: TOLD.worst_slab(np.ones(400), mass=0), ValueError, "mass in"),
        (lambda: worst_slab(np.ones(1, bool), [1.0]), ValueError, "got 1 rows"),
        (lambda: TOLD.worst_slab(np.ones(400), rng="x"), TypeError, "rng must be a numpy.random.Generator"),
    ],
    ids=range(12),
)
def test_errors_say_what_to_do(call, error, words):
    with pytest.raises(error, match=words):
        call()


def slow_lowest(hits, table, vectors, least):
    """Every slab that some rows bound, one at a time, in fractions."""
    worst = Fraction(1)
    for v in vectors:
        along = table @ v
        for low in along:
            for high in along:
                inside = (along >= low) & (along <= high)
                if inside.sum() >= least:
                    worst = min(worst, Fraction(int(hits[inside].sum()), int(inside.sum())))
    return worst


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 14), st.integers(1, 3), st.booleans())
def test_the_worst_slab_is_the_worst(seed, rows, width, coarse):
    """Ties among projections included: rows on a grid, which are in or out together."""
    rng = np.random.default_rng(seed)
    table = rng.integers(0, 3, (rows, width)).astype(float) if coarse else rng.normal(size=(rows, width))
    hits, least = rng.random(rows) < 0.6, int(rng.integers(1, rows + 1))
    vectors = rng.integers(-1, 2, (3, width)).astype(float) if coarse else rng.normal(size=(3, width))
    v, low, high = _lowest(hits, table, vectors, least)
    along = table @ v
    inside = (along >= low) & (along <= high)
    assert inside.sum() >= least
    assert Fraction(int(hits[inside].sum()), int(inside.sum())) == slow_lowest(hits, table, vectors, least)


def test_a_planted_slab_is_found():
    """Coverage 0.5 where the first feature is above 1, a sixth of the rows, and 1 elsewhere."""
    rng = np.random.default_rng(5)
    x = rng.normal(size=(4000, 3))
    hits = (x[:, 0] < 1) | (rng.random(4000) < 0.5)
    slab = worst_slab(hits, x * [1.0, 100.0, 0.01], rng=7)
    assert slab.coverage.rate < 0.7
    assert 0.05 < slab.mass < 0.3
    assert slab.found.rate <= slab.coverage.rate + 0.1
    assert slab == worst_slab(hits, x * [1.0, 100.0, 0.01], rng=7)
    assert slab != worst_slab(hits, x * [1.0, 100.0, 0.01], rng=8)
    assert str(slab).startswith("worst slab: coverage 0.")
    only = worst_slab(hits, x[:, 0], mass=0.15, rng=1)
    assert only.coverage.low < 0.55 < only.coverage.high or only.coverage.rate < 0.6


def test_where_coverage_is_even_nothing_bad_is_claimed():
    """The slab it finds is chance, and rows held out say so: the reason for holding out."""
    rng = np.random.default_rng(6)
    x, hits = rng.normal(size=(2000, 4)), rng.random(2000) < 0.9
    slab = worst_slab(hits, x, rng=3)
    assert slab.found.rate < 0.8
    assert slab.coverage.low < 0.9 < slab.coverage.high + 0.02
