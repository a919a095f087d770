"""The counters of a fleet: merged in any order they are the same, and no sequence of scores escapes the bound."""

import math
import random
from fractions import Fraction
from functools import reduce

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from conformesh.online.bounds import MissAccount, MissGap
from conformesh.online.counters import MAX_LIVES, MAX_MESSAGE_BYTES, Counters, CountingLearner, CoverageCounts, Life

RULE = CountingLearner(Fraction(1, 10), learning=0.5, local=0.05, bound=1.0)
NOTHING = Counters({})

tallies = st.builds(
    lambda steps, share, *rest: CoverageCounts(steps, int(steps * share), *rest),
    st.integers(0, 50),
    st.floats(0, 1),
    st.integers(0, 3),
    st.integers(1, 2),
    st.integers(0, 2),
    st.floats(0, 9),
)
lives = st.builds(Life, st.sampled_from("abc"), st.integers(0, 25))
counters = st.builds(
    lambda rows, origin: NOTHING.merge(Counters(rows, origin)),
    st.dictionaries(lives, tallies, max_size=40),
    st.none() | st.floats(0, 1),
)


@given(counters, counters, counters)
def test_merging_is_the_same_in_any_order_and_however_often(a, b, c):
    assert a.merge(b) == b.merge(a)
    assert a.merge(b).merge(c) == a.merge(b.merge(c))
    assert a.merge(a) == a
    assert a.merge(b).merge(a) == a.merge(b)


@given(counters)
def test_bytes_say_the_same(one):
    assert Counters.decode(one.encode(RULE), RULE) == one
    backwards = Counters(dict(reversed(one.tallies.items())), one.origin)
    assert backwards.encode(RULE) == one.encode(RULE)


@given(st.binary(max_size=60))
def test_any_bytes_are_counters_or_refused(data):
    try:
        found = Counters.decode(data, RULE)
    except ValueError as problem:
        assert str(problem) in ("malformed", "another rule")  # noqa: PT017
    else:
        assert isinstance(found, Counters)


def test_what_is_refused_and_why():
    good = Counters({Life("a", 1): CoverageCounts(3, 1)}, 0.5)
    other = CountingLearner(Fraction(1, 10), 0.5, 0.05, 2.0)
    with pytest.raises(ValueError, match="another rule"):
        Counters.decode(good.encode(other), RULE)
    for bad in (
        Counters({Life("a", 1): CoverageCounts(3, 4)}),
        Counters({}, math.nan),
        Counters({}, math.inf),
        Counters({}, 1.5),
        Counters({Life("a", -1): CoverageCounts(3, 1)}),
        Counters({Life("a", 1): CoverageCounts(2**53, 1)}),
        *(Counters({Life("a", 1): CoverageCounts(3, 1, evidence=wrong)}) for wrong in (math.nan, math.inf, -0.1)),
    ):
        with pytest.raises(ValueError, match="malformed"):
            Counters.decode(bad.encode(RULE), RULE)
    raw = msgspec.msgpack.decode(good.encode(RULE))
    raw[3] *= 2  # one life twice
    with pytest.raises(ValueError, match="malformed"):
        Counters.decode(msgspec.msgpack.encode(raw), RULE)
    with pytest.raises(ValueError, match="too large"):
        Counters.decode(bytes(MAX_MESSAGE_BYTES + 1), RULE)


def test_a_device_has_few_lives_and_those_with_most_steps_are_kept():
    many = Counters({Life("a", number): CoverageCounts(number, 0) for number in range(3 * MAX_LIVES)})
    merged = NOTHING.merge(many)
    assert {life.number for life in merged.tallies} == {*range(2 * MAX_LIVES, 3 * MAX_LIVES)}


@pytest.mark.parametrize(("name", "value"), [("local", 0.0), ("bound", -1.0), ("local", math.nan), ("learning", -0.1)])
def test_a_rule_without_a_bound_is_refused(name, value):
    with pytest.raises(ValueError, match=f"online {name} must be .* got"):
        CountingLearner(**{"alpha": Fraction(1, 10), "learning": 0.5, "local": 0.05, "bound": 1.0} | {name: value})


def test_words():
    assert str(RULE.account()) == "no labels so far"
    assert str(MissAccount(0.1, 1000, 103, MissGap(20.4, 20.4))) == "so far 0.103, guaranteed within 0.021 of 0.1"
    assert RULE.account(CoverageCounts(1, 1)).bound == pytest.approx(0.9)  # a share is never further away
    assert RULE.account(CoverageCounts(1000, 0), CoverageCounts(1000, 0, 4)).bound == pytest.approx(
        (20.9 + 24.5) / 2000
    )


# --- the bound --------------------------------------------------------------------------------------------------------

ADVERSARIES = {  # a score in [0, 1], from the threshold it is to miss or not to miss
    "always misses": lambda q, rng, owed: 1.0,
    "never misses": lambda q, rng, owed: 0.0,
    "at random": lambda q, rng, owed: rng.random(),
    "just above or below": lambda q, rng, owed: min(max(math.nextafter(q, rng.choice([-1, 2])), 0.0), 1.0),
    "pushes on": lambda q, rng, owed: 1.0 if owed >= 0 else 0.0,
}


def played(adversary, rng, rule, steps, lie=False):
    """One device with late labels, and others that say anything; return its tally at every step."""
    own, heard, pending, later, found = CoverageCounts(), Counters({}, rng.random()), {}, {}, []
    for number in range(steps):
        heard = heard.merge(
            Counters({Life("b", 0): CoverageCounts(n := rng.randrange(9 * number + 1), rng.randrange(n + 1))})
        )
        if lie:
            heard = Counters(
                {Life("b", 0): CoverageCounts(n := rng.randrange(10**6), rng.choice([0, n]))}, rng.random()
            )
        pending[number] = rule.threshold(heard.merge(Counters({Life("a", 0): own})), own)
        later[number] = 0
        for which in rng.sample(sorted(pending), rng.choice([0, 1, 1, 2]) if len(pending) > 1 else 1):
            q = pending.pop(which)
            owed = own.misses - rule.alpha * own.steps
            missed = ADVERSARIES[adversary](q, rng, owed) > q
            for after in range(which + 1, number + 1):
                later[after] += 1
            late = max(later[n] for n in later if n not in pending)
            own = CoverageCounts(own.steps + 1, own.misses + missed, late)
            found.append(own)
    return found


@pytest.mark.parametrize("adversary", ADVERSARIES)
@pytest.mark.parametrize("lie", [False, True])
def test_no_sequence_escapes_the_bound(adversary, lie):
    for seed in range(20):
        rng = random.Random(f"{adversary} {seed}")
        rule = CountingLearner(
            Fraction(rng.randint(1, 19), 20), rng.choice([0.0, 0.1, 1.0]), rng.choice([0.02, 0.2, 1.0]), 1.0
        )
        for own in played(adversary, rng, rule, 200, lie):
            account = rule.account(own)
            assert abs(account.rate - account.alpha) <= account.bound + 1e-12


def test_the_bound_is_attained():
    """All that is heard pulls down, so that the device must climb to B on its own: the bound within 5 %."""
    rule = CountingLearner(Fraction(1, 10), 1.0, 0.01, 1.0)
    own, down = CoverageCounts(), Counters({Life("b", 0): CoverageCounts(10**6, 0)}, 0.0)
    most = 0.0
    while own.steps < 2000:
        missed = rule.threshold(down, own) < 1.0
        own = CoverageCounts(own.steps + 1, own.misses + missed)
        account = rule.account(own)
        if account.bound < 0.9:
            most = max(most, abs(account.rate - account.alpha) / account.bound)
    assert 0.95 < most <= 1.0


def test_without_the_local_part_the_bound_is_broken():
    """The check itself: a threshold from the counters of others alone is carried away by a lie."""
    rule = CountingLearner(Fraction(1, 10), 1.0, 0.5, 1.0)
    down, own = Counters({Life("b", 0): CoverageCounts(10**6, 0)}, 0.0), CoverageCounts()
    for _ in range(200):
        missed = rule.threshold(down, CoverageCounts()) < 0.5
        own = CoverageCounts(own.steps + 1, own.misses + missed)
    account = rule.account(own)
    assert abs(account.rate - account.alpha) > account.bound


def test_everybody_together():
    parts = [Counters({Life(name, 0): CoverageCounts(100, k)}) for k, name in enumerate("abcdef")]
    fleet = reduce(Counters.merge, parts)
    account = RULE.account(*fleet.tallies.values())
    assert (account.labels, account.misses) == (fleet.steps, fleet.misses) == (600, 15)
    assert account.bound == pytest.approx(20.9 / 100)
    assert fleet.of_devices(["a"]).steps == 100
