"""Bounds hold whatever the world does, a world that wants to comes within 5 % of them, and one-way links break them."""

from functools import partial

import numpy as np
import pytest

from conformesh import Network
from conformesh.online import ACI, PID, SFOGD, Decaying, QuantileTracker, Rule, bounds
from conformesh.online.couplings import NetworkLinks
from conformesh.online.learners import _DescentState
from tests.online.adversary import AnyMixing, World

NEARLY = 0.95


def drawn_rule(rng, devices):
    """Any rule whose bound somebody could break."""
    alpha = float(rng.choice([0.05, 0.1, 0.3, 0.5, 0.8]))
    high = float(rng.choice([0.5, 1, 4]))
    step = high * float(rng.choice([0.02, 0.1, 0.5, 1.5]))
    start = high * float(rng.choice([0, 0.3, 1]))
    tracker = QuantileTracker(alpha, step, high, start)
    decaying = Decaying(
        alpha, step, high, start, decay=float(rng.choice([0.3, 0.6])), floor=float(rng.choice([0, step / 8]))
    )
    aci = ACI(alpha, min(step / high, 1.0), window=int(rng.choice([3, 20])))
    linear = [tracker, decaying, aci]
    learner, coupling = [
        *((one, "alone") for one in (*linear, SFOGD(alpha, step, high, start), PID(alpha, saturation=0.5, window=4))),
        *((one, "mixed") for one in linear),
        *((one, "mixed") for one in linear),
        *((one, "counted") for one in (tracker, aci)),
    ][rng.integers(13)]
    local = float(rng.choice([0, 0, 0.05, 0.5])) * high if learner.is_integrator else 0.0
    return Rule(learner, coupling, local, float(rng.choice([0, 0.1])))


def attack(seed):
    """Play one random world to its end; return it."""
    rng = np.random.default_rng([16, seed])
    devices, steps = int(rng.integers(1, 6)), int(rng.integers(5, 80))
    rule = drawn_rule(rng, devices)
    network = Network.complete(devices)
    wild = rule.coupling == "mixed" and rng.random() < 0.5
    world = World(rule, devices, rng, network, AnyMixing(network, rng) if wild else None)
    stays = rng.random() < 0.5 or not rule.learner.is_integrator
    slowest, lost, turning = (
        int(rng.choice([0, 0, 1, 5])),
        float(rng.choice([0, 0.3])),
        float(rng.choice([0, 0.05, 0.4])),
    )
    wanted = np.full(devices, rng.random() < 0.7)
    for _ in range(steps):
        if not stays and rng.random() < 0.15:
            world.change(rng.random(devices) < 0.7)
        wanted = wanted ^ (rng.random(devices) < turning)
        delays = rng.integers(0, slowest + 1, devices)
        delays[rng.random(devices) < lost] = -1
        edges = world.there[world.links.receiver] & world.there[world.links.sender]
        world.predict(wanted, delays, edges & (rng.random(len(edges)) < rng.choice([0.3, 1.0])))
    return world


@pytest.mark.parametrize("block", range(3))
def test_no_world_breaks_a_bound(block):
    """100 worlds each: any doubly stochastic mixing, lost messages, joins, leaves, late and lost labels."""
    for seed in range(100 * block, 100 * (block + 1)):
        assert not attack(seed).broken(), seed


@pytest.mark.slow
@pytest.mark.parametrize("block", range(20))
def test_no_world_breaks_a_bound_in_ten_thousand(block):
    for seed in range(1000 + 500 * block, 1000 + 500 * (block + 1)):
        assert not attack(seed).broken(), seed


def test_worlds_are_of_all_kinds():
    """What is drawn above covers every coupling, options, late labels and devices that come again."""
    worlds = [attack(seed) for seed in range(60)]
    assert {w.rule.coupling for w in worlds} == {"alone", "mixed", "counted"}
    assert {bool(w.rule.local) for w in worlds} == {bool(w.rule.scale) for w in worlds} == {True, False}
    assert any(w.past().late > 0 for w in worlds)
    assert any((w.past().members > 1).any() for w in worlds)
    assert any(isinstance(w.links, AnyMixing) for w in worlds)


WITHOUT = {  # what a bound, or a rule, leaves out, and a world that notices
    "tracker_gap": (14, lambda whole, *given: whole(*given[:4], 0)),
    "mixed_levels_gap": (37, lambda whole, *given: whole(*given[:5], 0)),
    "local_integrator_gap": (106, lambda whole, *given: whole(*given[:3], 0)),
    "counted_levels_gap": (143, lambda whole, *given: whole(*given[:4], 0)),
}


@pytest.mark.parametrize("name", sorted(WITHOUT))
def test_worlds_notice_a_bound_without_late_labels(name, monkeypatch):
    seed, less = WITHOUT[name]
    assert not attack(seed).broken()
    monkeypatch.setattr(bounds, name, partial(less, getattr(bounds, name)))
    assert attack(seed).broken()


def test_worlds_notice_members_that_are_not_counted(monkeypatch):
    whole = bounds.mixed_levels_gap
    monkeypatch.setattr(bounds, "mixed_levels_gap", lambda starts, members, *given: whole(0.0, min(members, 2), *given))
    assert attack(1).broken()


def test_worlds_notice_that_nothing_is_held_back(monkeypatch):
    whole = QuantileTracker.move_levels

    def forgetful(self, state, move=0.0):
        return whole(self, state, move)._replace(held=np.zeros(len(state.level)))

    monkeypatch.setattr(QuantileTracker, "move_levels", forgetful)
    assert attack(64).broken()


def pushed(rule, devices, steps, wanted, **how):
    """Return a world after so many steps of what is wanted: a mask, or a function of the world."""
    world = World(rule, devices, np.random.default_rng(0), **how)
    at_once = np.zeros(devices, dtype=int)
    for _ in range(steps):
        world.predict(np.broadcast_to(wanted(world) if callable(wanted) else wanted, devices), at_once)
    return world


@pytest.mark.parametrize("up", [True, False])
@pytest.mark.parametrize(("coupling", "devices"), [("alone", 1), ("mixed", 4), ("counted", 4)])
@pytest.mark.parametrize("learner", [QuantileTracker(0.3, 0.02), ACI(0.3, 0.02)])
def test_bounds_of_constant_steps_are_attained(learner, coupling, devices, up):
    """Miss whenever it is possible, from the lowest start; or never, from the highest."""
    rule = Rule(type(learner)(0.3, 0.02, start=0.0 if up else 1.0), coupling)
    world = pushed(rule, devices, 80 if up else 180, up)
    gap = rule.gap(world.past())
    assert not world.broken()
    assert world.excess() >= NEARLY * gap.up if up else -world.excess() >= NEARLY * gap.down


def test_bound_of_late_labels_is_attained():
    """Five labels are always on their way: all of them may still be misses when the threshold has arrived."""
    rule = Rule(QuantileTracker(0.1, 0.02))
    world = World(rule, 1, np.random.default_rng(0))
    for _ in range(72):
        world.predict(np.array([True]), np.array([5]))
    assert world.past().late == 5
    assert not world.broken()
    assert world.excess() >= NEARLY * rule.gap(world.past()).up
    assert world.excess() > bounds.tracker_gap(0, 0.1, 0.02, 1.0).up, "more than if labels came in time"


@pytest.mark.parametrize("coupling", ["alone", "mixed"])
def test_bound_of_decaying_steps_is_attained(coupling):
    """Wait below while steps are large, and come up late, where they are small."""
    rule = Rule(Decaying(0.5, step=0.02, start=0.0, decay=0.3), coupling)
    steps = 20_000
    rise = int(1 / (0.5 * rule.learner.step_at(steps))) + 2
    state, links, one = rule.begin(1), NetworkLinks(Network.complete(1)), np.ones(1, dtype=bool)
    excess = 0.0
    for t in range(steps):
        miss = one & ((state.inner.level < 0) | ((t >= steps - rise) & (state.inner.level < 1)))
        excess += miss[0] - 0.5
        state = rule.share(rule.observe(state, np.zeros(1), one, miss), links)
    gap = bounds.mixed_levels_gap(0.0, 1, 0.5, (rule.learner.step_at(0), rule.learner.step_at(steps - 1)), 1.0)
    assert NEARLY * gap.up <= excess <= gap.up


class Hostile(NetworkLinks):
    """A network that says 0 to everybody, whatever it heard."""

    def average(self, x, arrives):
        return np.zeros(len(x))


def test_bound_of_the_local_integrator_is_attained():
    """Even a network that lies leaves a device its own bound."""
    rule = Rule(QuantileTracker(0.1, 0.1), "mixed", local=0.01)
    world = pushed(rule, 2, 120, np.array([True, False]), links=Hostile(Network.complete(2)))
    assert not world.broken()
    assert world.excess(0) >= NEARLY * rule.device_gap(world.past(), 0).up


@pytest.mark.slow
def test_bound_of_scale_free_steps_is_attained():
    """Wait below while steps shrink, and come up late. Gradients are all alike if alpha is one half."""
    learner, steps = SFOGD(0.5, scale=0.02, start=0.0), 2_000_000
    rise = int(np.sqrt(3 * steps) / 0.02)
    state = _DescentState(np.zeros(1), np.array([0.25 * (steps - rise)]))  # where misses and covers in turn have led
    excess, one = 0.0, np.ones(1, dtype=bool)
    for _ in range(rise):
        miss = one & (state.level < 1)
        excess += miss[0] - 0.5
        state = learner.observe(state, np.zeros(1), one, miss)
    gap = bounds.sf_ogd_gap(steps, 0.5, 0.02, 1.0)
    assert NEARLY * gap.up <= excess <= gap.up


def test_bound_of_conformal_pid_is_attained():
    """Miss whenever the threshold is finite: it is not as soon as the integrator is full."""
    learner, one = PID(0.1, saturation=4.0), np.ones(1, dtype=bool)
    state, excess, shares = learner.begin(1), 0.0, []
    for n in range(1, 1101):
        miss = np.isfinite(learner.threshold(state))
        excess += miss[0] - 0.1
        shares.append(excess / bounds.pid_gap(n, 0.1, 4.0).up)
        state = learner.observe(state, np.zeros(1), one, miss)
    assert NEARLY <= max(shares[100:]) <= 1


def one_way(devices, steps, scores):
    """Return a mixed rule's world whose messages only go along a chain, from each to the next."""
    rule = Rule(QuantileTracker(0.3, 0.1), "mixed")
    network = Network.chain(devices)
    world = World(rule, devices, np.random.default_rng(0), network)
    arrives = world.links.receiver > world.links.sender
    for _ in range(steps):
        world.predict(scores, np.zeros(devices, dtype=int), arrives)
    return world


def test_one_way_links_would_break_the_bound(monkeypatch):
    """The planted mistake: averaging over links that worked in one direction only.

    The first device misses whatever it can, and the others have its high level handed down, so that they never miss.
    Sums are not kept, and the share of misses stays far below alpha for good.
    """
    scores = np.array([True, False, False, False, False])
    assert not one_way(5, 600, scores).broken()
    monkeypatch.setattr(NetworkLinks, "working_both_ways", lambda self, arrives: arrives)
    broken = one_way(5, 600, scores).broken()
    assert broken
    assert abs(broken[0][2]) > 5 * max(broken[0][1].up, broken[0][1].down)


def test_one_way_links_are_no_harm_to_counts():
    """Counts are heard along the chain only, and of the others' misses nothing comes back; the bound says so."""
    rule = Rule(QuantileTracker(0.3, 0.1), "counted")
    world = World(rule, 5, np.random.default_rng(0), Network.chain(5))
    arrives = world.links.receiver > world.links.sender
    for _ in range(300):
        world.predict(np.array([True, False, False, False, False]), np.zeros(5, dtype=int), arrives)
    assert not world.broken()


def test_who_is_held_back_gets_it_later():
    """Three late misses come at once to a threshold that has arrived: what does not fit is added when there is room."""
    learner = QuantileTracker(0.5, 1.0, 1.0, start=1.0)
    state, one = learner.begin(1), np.ones(1, dtype=bool)
    for _ in range(3):
        state = learner.observe(state, np.zeros(1), one, one)
    assert state.level[0] == 1.5
    assert state.held[0] == 1.0
    state = learner.move_levels(state, -2.0)
    assert (state.level[0], state.held[0]) == (0.5, 0.0)
