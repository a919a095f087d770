"""The drift alarm: fair bets on exact p-values, few false alarms whenever one looks, and how soon a change is found."""

from collections import Counter
from itertools import permutations, product
from math import exp, factorial, log, prod, sqrt

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import integrate, stats

from conformesh.online import alarm as module
from conformesh.online.alarm import BETS, SMALLEST_P_VALUE, STAKE_STEPS, Alarm
from tests.campaigns import LONG
from tests.statistics import assert_coverage, power_against

SHIFT = stats.norm.isf(0.1) - stats.norm.isf(0.2)  # of a normal score: coverage falls from .9 to .8


def uniform(rng, shape):
    return rng.random(shape)


def tied(rng, shape):
    """Five values: nearly all scores are ties."""
    return rng.binomial(4, 0.4, shape).astype(float)


def followed(alarm, scores, rng, **options):
    return alarm.follow(alarm.begin(scores.shape[1], **options), scores, rng.random(scores.shape))


def false_alarms(alarm, draw, streams, steps, seed, block=500):
    """How many of so many exchangeable streams ever raise the alarm."""
    rng, raised = np.random.default_rng(seed), 0
    for _ in range(streams // block):
        raised += np.count_nonzero(followed(alarm, draw(rng, (steps, block)), rng).raised_at)
    return raised


def median_delay(steps, change):
    """The median of the steps from a change to the alarm; false alarms count as none."""
    return np.median(np.where(steps > change, steps - change, 10**6))


# Bets and p-values


@pytest.mark.parametrize("name", BETS)
@pytest.mark.parametrize("alpha", [0.01, 0.1, 0.7])
def test_a_bet_is_fair(name, alpha):
    def gain(p):
        return exp(BETS[name](np.array(p), alpha))

    whole = integrate.quad(gain, 0, 1, points=[alpha], limit=200)[0]
    assert whole == pytest.approx(1, abs=1e-7)


def rank_sequences(steps, window):
    """How often each sequence of ranks comes, over all orders of different scores and all draws of what is lost."""
    alarm, held = Alarm(window=window), [min(t, window) for t in range(steps)]
    cases = [*product(permutations(range(steps)), product(*(range(n + 1) for n in held)))]  # each is a device
    scores, slots = (np.array(part, dtype=float).T for part in zip(*cases, strict=True))
    state, ranks = alarm.begin(len(cases)), []
    for t, n in enumerate(held):
        u = (slots[t] + 0.5) / (n + 1)
        p, _ = module._p_values(state, scores[t], u)
        ranks.append(np.rint(p * (n + 1) - 0.5))
        state = alarm.observe(state, scores[t], u)
    return Counter(map(tuple, np.transpose(ranks).tolist()))


def are_uniform(counts, steps, window):
    """Whether all sequences of ranks come equally often: p-values are then uniform, whatever came before."""
    possible = prod(min(t, window) + 1 for t in range(steps))
    return len(counts) == possible and set(counts.values()) == {factorial(steps)}


def test_p_values_are_independent_although_scores_are_forgotten():
    """Exact: all orders of five scores, all draws, memory of two."""
    assert are_uniform(rank_sequences(5, 2), 5, 2)


FORGETTING = {  # the two ways that come to mind first
    "the oldest": lambda state: state.steps % state.scores.shape[1],
    "the new one": lambda state: np.full_like(state.steps, state.scores.shape[1]),
}


@pytest.fixture(params=FORGETTING)
def forgetful(request, monkeypatch):
    """The alarm with a wrong rule of what a full memory forgets."""
    right = module._p_values

    def wrong(state, score, u):
        p, slot = right(state, score, u)
        return p, np.where(state.held == state.scores.shape[1], FORGETTING[request.param](state), slot)

    monkeypatch.setattr(module, "_p_values", wrong)
    return request.param


def test_another_rule_of_forgetting_makes_p_values_dependent(forgetful):
    assert not are_uniform(rank_sequences(5, 2), 5, 2)


# The state machine beside its definition


def evidence_by_definition(scores, u, alpha, window):
    """Capital that rests, and every stake from the step at which it was placed, in plain numbers."""
    memory, rest, stakes = [], 1.0, []
    for t, (score, draw) in enumerate(zip(scores, u, strict=True)):
        n = len(memory) + 1
        slot, part = int(draw * n), draw * n - int(draw * n)
        p = (sum(s > score for s in memory) + part * (1 + sum(s == score for s in memory))) / n
        memory = [*memory, score] if n <= window else [*memory[:slot], score, *memory[slot + 1 :]][:window]
        placed = rest / (2 * (t + STAKE_STEPS))
        rest -= placed
        stakes += [[name, placed / len(BETS)] for name in BETS]
        for stake in stakes:
            stake[1] *= exp(BETS[stake[0]](np.array(max(p, SMALLEST_P_VALUE)), alpha))
    return rest + sum(amount for _, amount in stakes)


@given(st.data())
def test_evidence_is_what_its_definition_says(data):
    steps, window = data.draw(st.integers(0, 12)), data.draw(st.integers(1, 6))
    scores = data.draw(st.lists(st.sampled_from([0.0, 1.0, 2.5, -np.inf, np.inf]), min_size=steps, max_size=steps))
    u = data.draw(st.lists(st.floats(0, 1, exclude_max=True), min_size=steps, max_size=steps))
    alarm = Alarm(alpha=0.2, window=window)
    state = alarm.follow(alarm.begin(1), np.reshape(scores, (-1, 1)), np.reshape(u, (-1, 1)))
    assert np.exp(alarm.log_evidence(state)[0]) == pytest.approx(evidence_by_definition(scores, u, 0.2, window))


def test_a_state_is_never_changed_and_steps_add_up():
    rng, alarm = np.random.default_rng(1), Alarm(window=7)
    scores, u, has_label = rng.random((30, 3)), rng.random((30, 3)), rng.random((30, 3)) < 0.7
    one = alarm.begin(3)
    for t in range(30):
        before = [array.copy() for array in one]
        following = alarm.observe(one, scores[t], u[t], has_label[t])
        assert_same(one, before)
        one = following
    assert_same(one, alarm.follow(alarm.begin(3), scores, u, has_label))
    assert one.steps.tolist() == has_label.sum(axis=0).tolist()


def assert_same(one, other):
    for a, b in zip(one, other, strict=True):
        np.testing.assert_array_equal(a, b)


def test_a_label_that_did_not_arrive_changes_nothing():
    rng, alarm = np.random.default_rng(2), Alarm(window=5)
    state = followed(alarm, rng.random((9, 2)), rng)
    after = alarm.observe(state, [np.nan, 3.0], [7.0, 0.5], [False, True])
    assert_same([array[:1] for array in after], [array[:1] for array in state])
    assert after.steps.tolist() == [9, 10]


def test_devices_do_not_know_each_other():
    rng, alarm = np.random.default_rng(3), Alarm(window=6)
    scores, u = rng.random((40, 4)), rng.random((40, 4))
    together = alarm.follow(alarm.begin(4), scores, u)
    for k in range(4):
        alone = alarm.follow(alarm.begin(1), scores[:, [k]], u[:, [k]])
        assert_same([array[k] for array in together], [array[0] for array in alone])


@given(st.integers(0, 40), st.integers(1, 3))
def test_a_state_survives_as_bytes(steps, devices):
    rng, alarm = np.random.default_rng(steps), Alarm(window=11)
    has_label = rng.random((steps, devices)) < 0.8
    state = alarm.follow(alarm.begin(devices), rng.random((steps, devices)), rng.random((steps, devices)), has_label)
    data = alarm.to_bytes(state)
    again = alarm.from_bytes(data)
    assert_same(again, state)
    more = rng.random((5, devices)), rng.random((5, devices))
    assert_same(alarm.follow(again, *more), alarm.follow(state, *more))
    for cut in (0, 3, 21, len(data) - 1):
        with pytest.raises(ValueError, match=r"begins with|damaged"):
            alarm.from_bytes(data[:cut])


def test_bytes_of_another_alarm_are_refused():
    with pytest.raises(ValueError, match="window 5 and 4 bets; this one has window 6"):
        Alarm(window=6).from_bytes(Alarm(window=5).to_bytes(Alarm(window=5).begin(2)))


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: Alarm(level=0), "level must lie strictly between 0 and 1, got 0"),
        (lambda: Alarm(alpha=1.2), "alpha must lie strictly between 0 and 1, got 1.2"),
        (lambda: Alarm(window=0), "window must be at least 1"),
        (lambda: Alarm().begin(2, [[1.0]]), "scores for 2 devices, got 1"),
        (lambda: Alarm().begin(1, [[1.0, np.nan]]), "device 0 has a NaN"),
        (lambda: Alarm().observe(Alarm().begin(2), [1.0, np.nan], [0.5, 0.5]), "device 1 has NaN in step 0"),
        (lambda: Alarm().observe(Alarm().begin(2), [1.0], [0.5, 0.5]), r"shape \(steps, 2 devices\), got \(1, 1\)"),
        (lambda: Alarm().observe(Alarm().begin(1), [1.0], [1.0]), "from 0 on and below 1"),
    ],
)
def test_mistakes_are_refused(call, words):
    with pytest.raises(ValueError, match=words):
        call()


# Numbers that stay numbers


@pytest.mark.parametrize("size", [-1e6, 1e6])
def test_evidence_of_any_size_stays_a_number(size):
    alarm = Alarm(window=3)
    start = alarm.begin(2)
    state = start._replace(capital=np.full_like(start.capital, size), steps=start.steps + 10**6)
    after = alarm.follow(state, [[9.0, 0.0]] * 50, [[0.0, 1 - 2**-53]] * 50)
    assert np.isfinite(alarm.log_evidence(after)).all()


def test_the_alarm_does_not_tire():
    """However badly bets go, what rests is left: at least sqrt(49 / (t + 49))."""
    rng, alarm = np.random.default_rng(4), Alarm(window=50)
    scores = np.concatenate([np.sin(np.arange(400.0)), -np.arange(400.0), np.tile([0.0, 5.0], 200)])[:, None]
    state = alarm.begin(1)
    for t, score in enumerate(scores, start=1):
        state = alarm.observe(state, score, rng.random(1))
        assert alarm.log_evidence(state)[0] >= log(sqrt(49 / (t + 49)))


@pytest.mark.slow
def test_a_million_steps_end_with_a_number_and_find_a_late_change():
    rng, alarm = np.random.default_rng(5), Alarm(window=1000)
    state = alarm.begin(1)
    for _ in range(100):
        state = alarm.follow(state, rng.normal(size=(10_000, 1)), rng.random((10_000, 1)))
    assert state.raised_at[0] == 0
    assert alarm.log_evidence(state)[0] >= 0.5 * log(49 / (1e6 + 49))
    state = alarm.follow(state, rng.normal(size=(400, 1)) + 1.0, rng.random((400, 1)))
    assert 10**6 < state.raised_at[0] < 10**6 + 200


# False alarms, whenever one looks


@pytest.mark.parametrize("draw", [uniform, tied])
def test_false_alarms_are_rare_at_any_time(draw):
    """False alarm < 1e-6. Power 0.92 against a chance of 0.1; comparing with the same scores forever is caught."""
    assert power_against(1000, 0.95, 0.9) > 0.92
    raised = false_alarms(Alarm(level=0.05, window=60), draw, 1000, 600, seed=6)
    assert_coverage(1000 - raised, 1000, target=0.95)


@pytest.mark.slow
@pytest.mark.parametrize(("draw", "window"), [(uniform, 2000), (tied, 2000), (uniform, 300)])
def test_false_alarms_are_rare_in_thousands_of_streams(draw, window):
    """False alarm < 1e-6. Power above 0.99 against a chance of 0.08; with CONFORMESH_LONG=2 against 0.07."""
    streams = 4000 * LONG
    assert power_against(streams, 0.95, 0.92) > 0.99
    raised = false_alarms(Alarm(level=0.05, window=window), draw, streams, 2000, seed=8)
    assert_coverage(streams - raised, streams, target=0.95)


@pytest.mark.parametrize("forgetful", ["the new one"], indirect=True)
def test_comparing_with_the_same_scores_forever_raises_false_alarms(forgetful):
    """The scores of the first steps are never quite those of the others: in the end that is found."""
    raised = false_alarms(Alarm(level=0.05, window=60), uniform, 1000, 600, seed=6)
    with pytest.raises(AssertionError, match="chance"):
        assert_coverage(1000 - raised, 1000, target=0.95)


def test_a_test_repeated_at_every_step_raises_false_alarms():
    """What is done without an alarm: at each step, test at level .05 whether more than one in ten missed so far."""
    misses = np.cumsum(np.random.default_rng(7).random((1000, 500)) < 0.1, axis=0)
    p = stats.binom.sf(misses - 1, np.arange(1, 1001)[:, None], 0.1)
    raised = np.count_nonzero((p <= 0.05).any(axis=0))
    assert raised > 0.2 * 500
    with pytest.raises(AssertionError, match="chance"):
        assert_coverage(500 - raised, 500, target=0.95)


# Changes


def test_a_change_is_found_in_both_directions_and_from_calibration_scores_at_once():
    rng, alarm = np.random.default_rng(9), Alarm()
    known = [*rng.normal(size=(200, 500))]
    for shift, latest in ((SHIFT, 120), (-SHIFT, 250)):
        state = followed(alarm, rng.normal(size=(400, 200)) + shift, rng, reference=known)
        assert median_delay(state.raised_at, 0) < latest


def test_after_a_restart_the_new_scores_are_usual():
    rng, alarm = np.random.default_rng(10), Alarm(window=200)
    state = followed(alarm, rng.normal(size=(300, 2)), rng)
    state = alarm.follow(state, rng.normal(size=(100, 2)) + np.array([3, 0]), rng.random((100, 2)))
    assert (state.raised_at > 0).tolist() == [True, False]
    again = alarm.restart(state)
    assert_same([array[0] for array in again], [array[0] for array in alarm.begin(1)])
    assert_same([array[1] for array in again], [array[1] for array in state])
    again = alarm.follow(again, rng.normal(size=(500, 2)) + np.array([3, 0]), rng.random((500, 2)))
    assert again.raised_at.tolist() == [0, 0]
    assert alarm.restart(again, [False, True]).steps.tolist() == [500, 0]


def jumper_evidence(p, rate=0.01):
    """The simple jumper, in logarithms: capital on slopes -1, 0 and 1, of which a part changes places at each step."""
    slopes, shares, size = np.array([-1, 0, 1])[:, None], np.full((3, p.shape[1]), 1 / 3), np.zeros(p.shape[1])
    for now in p:
        shares = ((1 - rate) * shares + rate / 3) * (1 + slopes * (now - 0.5))
        size = size + np.log(shares.sum(axis=0))
        shares = shares / shares.sum(axis=0)
        yield size


def test_a_late_change_is_found_sooner_than_by_the_simple_jumper(monkeypatch):
    """Scores are stretched after 1,500 steps, so that coverage falls from .9 to .8; both see the same p-values."""
    rng, change, alarm, recorded = np.random.default_rng(18), 1500, Alarm(), []
    right = module._p_values
    monkeypatch.setattr(module, "_p_values", lambda *given: recorded.append(right(*given)) or recorded[-1])
    scores = rng.exponential(size=(change + 500, 60))
    scores[change:] *= log(0.1) / log(0.2)
    ours = followed(alarm, scores, rng).raised_at
    theirs = np.array([*jumper_evidence(np.array([p for p, _ in recorded]))]) >= log(20)
    steps = np.where(theirs.any(axis=0), theirs.argmax(axis=0) + 1, 0)
    assert median_delay(ours, change) < 0.7 * median_delay(steps, change) < 500
