"""The members of a run: its number, and the lost devices. One number has at most one result, whatever the network does.

A result of the view (n, L) counts at a device once every device outside L has sent, in that view, that it is done.

1. More than half of the roster is outside L (`Settings.needed`, the same at all devices by agreement), so two views of
   one number share a device.
2. A device's number never falls, and within a number its L only grows (`RunMembership.joined`). Once it has sent
   that it is done it leaves the view for a greater number only (`Membership.move`); a restart does not make it forget,
   because the journal is on the disk before it sends, and a journal that has ended leads to a greater number.

So if (n, L) and (n, L') both had a result, the shared device would have been done in both, and L = L'. Devices of one
view run one protocol on the same answers: they agree on one result. Parts that do not hear each other cannot both go
on, and a device that missed the end of run n can only join a run with another number. Results of different runs are
told apart by their numbers, and each names its devices. A device that lost its journal, or was given an old one, may
be done twice in a number; a quorum of q of K devices bears 2q - K - 1 of these.

All this is under one roster. Rosters are numbered too, and devices learn of a newer one at different times, or skip
some. Let R(m) be the devices of roster m.

3. A device's roster never falls: it is on the disk before the device speaks under it (`rosters`). A device that moves
   to another roster goes on with a greater number of a run than any in which it has said that it is done.
4. Before it opens a run of the devices P under roster r, a device checks that P has at least half of R(m), for every
   m < r that is not dead to its knowledge (`Rosters.lacks`). Roster m is dead once a run under a later one had a
   result: then at least half of R(m) is under a later roster for ever, and no more than half is left.

If runs under m < r are both certified, the one under r has the greater number. *Proof*, by induction on r - m. Let B be
the run under r with the smallest number that is ever certified, and f the lowest floor that any of its devices checked
with: all rosters before f were dead to it. First, f < r. Else each device x of B knew, when it checked, of a certified
run C(x) under r, and B has the smallest number: a device y that is in both, of which 1. makes sure, was done in B
before it was done in C(x), hence checked for B before x did. So every device of B was preceded by another one.
If f <= m, B has at least half of R(m) and A, the run under m, more than half: a device is in both. It was done in A
first, by 3., and the number of B is the greater one. If m < f < r, some run under f was certified, which has a greater
number than A and a smaller one than B. QED. With 1. and 2.: one number of a run has one result, under any roster, and
disjoint parts of the mesh never both have the latest one.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from conformesh.graph.network import Network
from conformesh.peer.json_bodies import MOST_AHEAD


class RunMembership(NamedTuple):
    """A run as one device sees it: its number, and the rows that were left out."""

    number: int
    lost: frozenset[int] = frozenset()

    def joined(self, other: RunMembership) -> RunMembership:
        """Return the view that two devices agree on: the later run, or the same one without who either has lost.

        >>> RunMembership(2, frozenset({1})).joined(RunMembership(2, frozenset({0}))).lost == {0, 1}
        True
        >>> RunMembership(2, frozenset({1})).joined(RunMembership(3))
        RunMembership(number=3, lost=frozenset())
        """
        if self.number != other.number:
            return max(self, other, key=lambda view: view.number)
        return RunMembership(self.number, self.lost | other.lost)


class RunLimit:
    """How far and how often greetings of neighbours may move a device to later runs.

    How far: a Byzantine neighbour could use up the numbers of runs, see `json_bodies.MOST_AHEAD`. How often: each move
    costs frames, log lines and, in asynchronous mode, a new journal, and such a neighbour could ask for thousands.
    `pause` is the shortest time between two moves, in seconds.
    """

    def __init__(self, neighbours: int, pause: float) -> None:
        self._neighbours, self._pause = neighbours, pause
        self._runs: dict[int, int] = {}  # the run in the last greeting of each neighbour
        self._moved_at = -math.inf

    def may_move(self, now: float) -> bool:
        """Return whether a greeting may move the device now."""
        return now >= self._moved_at + self._pause

    def note_move(self, now: float) -> None:
        """Note that a greeting has moved the device."""
        self._moved_at = now

    def bound(self, sender: int, run: int, number: int) -> int:
        """Return the highest run to which a neighbour's greeting with run `run` may move a device in run `number`.

        One neighbour alone moves it by `MOST_AHEAD`. With two or more neighbours it may go at once to the smallest run
        that all of them name: otherwise a device that was away while the others moved far ahead would hold them up.
        """
        self._runs[sender] = run
        most = number + MOST_AHEAD
        if 1 < self._neighbours == len(self._runs):
            most = max(most, min(self._runs.values()))
        return min(run, most)


def reachable_rows(network: Network, row: int, lost: frozenset[int]) -> frozenset[int]:
    """Return the rows that a device reaches on paths without lost devices, its own among them.

    >>> sorted(reachable_rows(Network.chain(5), 0, frozenset({3})))
    [0, 1, 2]
    """
    reached, edge = {row}, [row]
    while edge:
        new = {j for j in network.neighbours(edge.pop()).tolist() if j not in lost} - reached
        reached |= new
        edge += new
    return frozenset(reached)
