"""Rosters change while the network loses, splits and heals: no two results of one number, and it all ends well."""

import itertools
from dataclasses import replace

import numpy as np
import pytest

from conformesh.peer.async_device import AsyncDevice
from conformesh.peer.device import Device
from conformesh.peer.frames import FrameError
from conformesh.peer.loopback import Cut, LinkFaults, Pause, draw_partitions
from conformesh.peer.rosters import Rosters
from tests.campaigns import campaign_seeds
from tests.peer.changing import Changing, List, OneResult, TwoResultsError, drawn_edges, drawn_rosters, settings

NAMES = tuple("abcdefgh")
PATIENCE = 1.0
FOREVER = np.inf


def everybody(devices):
    """Edges between all."""
    return tuple(itertools.combinations(devices, 2))


def drawn(seed, *, heal=False, kind=Device):
    """Return a world of a seed: a first roster of 2 to 5 devices, up to 4 more, handed to anybody at any time."""
    rng = np.random.default_rng([23, seed])
    devices = NAMES[: int(rng.integers(2, 6))]
    first = List(1, devices, drawn_edges(rng, devices))
    rosters = drawn_rosters(rng, first, int(rng.integers(1, 5)), NAMES)
    hand, known = [], first
    for roster in rosters:
        when = float(rng.uniform(0, 4 * PATIENCE))
        hand.append((when, known.devices[int(rng.integers(len(known.devices)))], roster))
        known = roster
    if heal and rosters:
        hand += [(9 * PATIENCE, name, rosters[-1]) for name in NAMES]  # by hand, also to who was cut off when removed
    world = Changing(NAMES, first, hand, LinkFaults(), rng, settings(), kind)
    world.faults = draw_partitions(world.network, rng, PATIENCE, heal=heal)
    for k, name in enumerate(NAMES):
        if name in first.devices:
            world.alive_from[k] = world.faults.late.get(k, 0.0)
    return world, known


def no_two_results(seeds, kind=Device):
    """Return how many results were certified in all, and under how many rosters in one schedule at most."""
    found = []
    for seed in seeds:
        check = OneResult()
        drawn(seed, kind=kind)[0].run(10 * PATIENCE, check)
        found.append(check.certified)
    return sum(map(len, found)), max(len({number for number, _, _ in one.values()}) for one in found)


@pytest.mark.parametrize("kind", [Device, AsyncDevice])
def test_no_schedule_certifies_two_results_while_rosters_change(kind):
    """Devices come and go, the network falls into parts, rosters reach some devices late, twice or not at all."""
    results, rosters = no_two_results(range(20), kind)
    assert results > 20
    assert rosters > 1


@pytest.mark.slow
@pytest.mark.parametrize("kind", [Device, AsyncDevice])
def test_many_schedules_certify_no_two_results_while_rosters_change(kind):
    no_two_results(campaign_seeds(300, 20), kind)


def ends_well(seeds, kind=Device):
    """Once the network is whole and the last roster was handed to everybody, all its devices agree under it."""
    for seed in seeds:
        world, last = drawn(seed, heal=True, kind=kind)
        check = OneResult()
        world.run(30 * PATIENCE, check)
        up = {device.network.ids[device.row]: device for device in world.devices if device is not None}
        assert {*up} == {*last.devices}, seed
        for name, device in up.items():
            assert device.rosters.number == last.number, (seed, name)
            assert device.phase == "finished", (seed, name, device.error)
            assert {device.network.ids[k] for k in device.survivors} == {*last.devices}, (seed, name)
        assert len({(device.number, device.result) for device in up.values()}) == 1, seed


@pytest.mark.parametrize("kind", [Device, AsyncDevice])
def test_when_all_is_well_again_everybody_agrees_under_the_last_roster(kind):
    ends_well(range(12), kind)


def test_groups_that_left_out_one_of_the_other_do_not_wait_for_each_other_for_ever():
    """A schedule that hung: two groups, each waiting for a device that has left one of it out of the very same run."""
    ends_well([298])


@pytest.mark.slow
@pytest.mark.parametrize("kind", [Device, AsyncDevice])
def test_many_schedules_end_well(kind):
    ends_well(campaign_seeds(100, 12), kind)


# --- what keeps two parts apart ---------------------------------------------------------------------------------------


class AsksNoEarlierRoster(Device):
    """Counts a run whatever it has of earlier rosters."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.rosters.lacks = lambda names: ""


ONE = List(1, tuple("abc"), everybody("abc"))
TWO = ONE.next(tuple("bcd"), everybody("bcd"))
THREE = TWO.next(tuple("cde"), everybody("cde"))


def skipped(kind):
    """The newest roster reaches c alone, which is cut off from a and b: these go on under the first one."""
    faults = LinkFaults(cuts=(Cut(0.0, FOREVER, frozenset({0, 1})),))
    world = Changing(NAMES, ONE, [(0.0, "c", THREE)], faults, np.random.default_rng(0), settings(), kind)
    check = OneResult()
    world.run(10.0, check)
    return check.certified


def test_two_parts_never_both_certify_while_one_skips_a_roster():
    with pytest.raises(TwoResultsError):
        skipped(AsksNoEarlierRoster)
    assert {number for number, _, _ in skipped(Device).values()} == {1}


def test_who_did_not_see_a_result_does_not_take_a_neighbours_word_for_it():
    """c, d and e are one of the three devices of the first roster. c and d have seen the result under the second one.

    e is new, and stays out until the authority says so (below), whatever c and d tell it.
    """
    hand = [(2.0, "a", TWO), (5.0, "b", THREE)]
    world = Changing(NAMES, ONE, hand, LinkFaults(), np.random.default_rng(0), settings())
    check = OneResult()
    world.run(12.0, check)
    assert {names for number, names, _ in check.certified.values() if number == 3} == {("c", "d")}
    assert world.members[4].floor == 0


def test_a_roster_is_dead_once_a_later_one_has_a_result():
    """c, d and e are one of the three devices of the first roster: they may go on because the second had a result.

    The authority has said so to e, which is new, as it must to sign such a roster at all.
    """
    hand = [(2.0, "a", TWO), (5.0, "b", replace(THREE, settled=2, earlier=((2, TWO.devices),)))]
    world = Changing(NAMES, ONE, hand, LinkFaults(), np.random.default_rng(0), settings())
    check = OneResult()
    world.run(12.0, check)
    assert [(number, names) for number, names, _ in check.certified.values()] == [
        (1, ONE.devices),
        (2, TWO.devices),
        (3, THREE.devices),
    ]
    assert {device.rosters.floor for device in world.devices if device is not None} == {3}
    assert [device is None for device in world.devices[:5]] == [True, True, False, False, False]  # removed, and told


def test_a_roster_that_arrives_in_the_middle_of_a_run_ends_it():
    """The first run is slow; its devices move in the middle of it, and it has no result."""
    faults = LinkFaults(delay=(0.2, 0.3))
    world = Changing(NAMES, ONE, [(0.7, "a", TWO)], faults, np.random.default_rng(0), settings(patience=5.0))
    check = OneResult()
    world.run(20.0, check)
    assert {(number, names) for number, names, _ in check.certified.values()} == {(2, TWO.devices)}


def test_a_device_that_was_down_is_handed_the_roster_by_a_neighbour_that_stays():
    hand = [(1.0, "b", TWO)]
    faults = LinkFaults(pauses=(Pause(2, 0.5, 6.0, crash=True),))
    world = Changing(NAMES, ONE, hand, faults, np.random.default_rng(0), settings())
    check = OneResult()
    world.run(15.0, check)
    assert world.devices[2].rosters.number == 2
    assert world.devices[2].phase == "finished"
    assert check.certified[max(check.certified)][1] == TWO.devices


# --- the theorem, over all orders of events ---------------------------------------------------------------------------


class Run:
    """A run under a roster: its number, and who is in it."""

    def __init__(self, roster, number, part):
        self.roster, self.number, self.part = roster, number, part


def certifiable(rosters, runs, earlier_rule=True, forward_only=True):
    """Return every set of runs that can be certified together, over all orders in which devices say they are done.

    A device says so in runs of rising rosters and rising numbers. It may do so once a run has enough of every roster
    before its own that is not dead; rosters are dead as soon as anybody could know it, which lets in the most.
    """
    votes = [(name, i) for i, run in enumerate(runs) for name in run.part]  # what may be said, each a bit
    whole = [sum(1 << at for at, (_, j) in enumerate(votes) if j == i) for i in range(len(runs))]
    enough = [
        [not earlier_rule or not _lacks(rosters, run, floor) for floor in range(len(rosters) + 1)] for run in runs
    ]

    def bars(before, after):
        return before.number >= after.number or (forward_only and before.roster > after.roster)

    barred = [
        sum(1 << b for b, (who, j) in enumerate(votes) if who == name and bars(runs[j], runs[i])) for name, i in votes
    ]
    seen, todo, found = {0}, [0], set()
    while todo:
        said = todo.pop()
        done = frozenset(i for i, bits in enumerate(whole) if said & bits == bits)
        found.add(done)
        for at, (_, i) in enumerate(votes):
            more = said | 1 << at
            floor = max((runs[j].roster for j in done if runs[j].roster <= runs[i].roster), default=0)
            if more not in seen and not said & barred[at] and enough[i][floor]:
                seen.add(more)
                todo.append(more)
    return found


def _lacks(rosters, run, floor):
    earlier = [(m, rosters[m]) for m in range(run.roster)]
    return Rosters(run.roster, earlier=earlier, floor=floor).lacks(run.part)


def broken(runs, together):
    """Whether runs that are certified together share a number, or stand in another order than their rosters."""
    return any(
        a.number == b.number or ((a.roster < b.roster) != (a.number < b.number) and a.roster != b.roster)
        for a, b in itertools.combinations([runs[i] for i in together], 2)
    )


def drawn_case(rng, names="abcd"):
    """Three rosters, and four runs of any quorum of any of them, with any numbers."""
    rosters = [
        tuple(name for name in names if rng.random() < 0.6) or (names[int(rng.integers(len(names)))],) for _ in range(3)
    ]
    runs = []
    for _ in range(4):
        m = int(rng.integers(3))
        size = int(rng.integers(len(rosters[m]) // 2 + 1, len(rosters[m]) + 1))
        part = tuple(rosters[m][int(k)] for k in rng.permutation(len(rosters[m]))[:size])
        runs.append(Run(m, int(rng.integers(1, 4)), part))
    return rosters, runs


def cases_broken(cases, seed, **rules):
    rng, count = np.random.default_rng(seed), 0
    for _ in range(cases):
        rosters, runs = drawn_case(rng)
        count += any(broken(runs, together) for together in certifiable(rosters, runs, **rules))
    return count


def test_quorum_across_rosters():
    """All orders of events of 80 small cases; without either half of the rule many of them break."""
    assert cases_broken(80, 0) == 0
    assert cases_broken(80, 0, earlier_rule=False) > 8
    assert cases_broken(80, 0, forward_only=False) > 8


@pytest.mark.slow
def test_quorum_across_rosters_in_many_cases():
    assert sum(cases_broken(200, seed) for seed in campaign_seeds(10, 1)) == 0


# --- one device -------------------------------------------------------------------------------------------------------


def test_what_is_no_newer_roster_is_refused_and_counted():
    world = Changing(NAMES, TWO, [], LinkFaults(), np.random.default_rng(0), settings())
    world.run(1.0, lambda devices: None)
    device = world.devices[1]
    with pytest.raises(FrameError, match="a roster that is refused: not newer"):
        device.offer(ONE.body, 1.0)
    assert not device.rosters.moving
    assert device.phase == "finished"
