"""A world that sees everything and wants bounds to fail: scores, links, delays, who comes and who goes are its choice.

It keeps its own books, slowly and obviously, apart from those of `conformesh.online.simulation`.
"""

from dataclasses import dataclass

import numpy as np

from conformesh import Network
from conformesh.online.couplings import BoundInputs, NetworkLinks


class AnyMixing(NetworkLinks):
    """Links whose averages use any doubly stochastic matrix among those who are there: a mean of permutations."""

    def __init__(self, network, rng):
        super().__init__(network)
        self.rng, self.there = rng, np.ones(network.devices, dtype=bool)

    def average(self, x, arrives):
        rows = np.flatnonzero(self.there)
        many = int(self.rng.integers(1, 4))
        weights = self.rng.dirichlet(np.ones(many))
        mixed = x.copy()
        mixed[rows] = sum(w * x[self.rng.permutation(rows)] for w in weights)
        return mixed


@dataclass
class Example:
    device: int
    step: int
    miss: bool
    score: float
    due: int
    heard: int
    came: bool = False


class World:
    """One run of a rule against an adversary."""

    def __init__(self, rule, devices, rng, network=None, links=None):
        self.rule, self.rng = rule, rng
        self.network = network or Network.complete(devices)
        self.links = links or NetworkLinks(self.network)
        self.state = rule.begin(devices)
        self.there = np.ones(devices, dtype=bool)
        self.examples, self.joins = [], [(k, self._level(k)) for k in range(devices)]
        self.step = self.clock = 0

    def _level(self, k):
        return float(self.state.inner.level[k]) if self.rule.learner.is_integrator else 0.0

    def change(self, there):
        """Let others be there from now on."""
        who, hosts = there & ~self.there, there & self.there
        for e in self.examples:
            if not there[e.device] and not e.came:
                e.due = -1  # whoever leaves loses what has not come
        self.there = there
        if who.any():
            self.state = self.rule.admit(self.state, self.links, who, hosts)
            self.joins += [(int(k), self._level(k)) for k in np.flatnonzero(who)]

    def predict(self, wanted, delays, arrives=None):
        """One step: who is wanted to miss, when labels come, which messages get through."""
        q = self.rule.threshold(self.state)
        for k in np.flatnonzero(self.there):
            score = self._score(q[k], wanted[k])
            due = self.step + int(delays[k]) if delays[k] >= 0 else -1
            heard = int(self.state.counts[0][k].sum()) if self.state.counts else 0
            self.examples.append(Example(int(k), self.step, bool(score > q[k]), score, due, heard))
        self._take()
        if isinstance(self.links, AnyMixing):
            self.links.there = self.there
        self.state = self.rule.share(self.state, self.links, arrives)
        self.step += 1

    def _score(self, q, wanted):
        if wanted and q < 1e6:  # a score that follows its own scale would leave all numbers behind
            return max(q, 0.0) + float(self.rng.choice([1e-9, 0.1, 3.0]))
        return 0.0 if self.rng.random() < 0.5 else max(min(q, 5.0), 0.0)

    def _take(self):
        coming = [e for e in self.examples if e.due == self.step]
        turns = 0
        while coming or turns == 0:
            has_label = np.zeros(len(self.there), dtype=bool)
            miss, score = has_label.copy(), np.zeros(len(has_label))
            for e in list(coming):
                if not has_label[e.device]:
                    has_label[e.device], miss[e.device], score[e.device], e.came = True, e.miss, e.score, True
                    coming.remove(e)
            self.state = self.rule.observe(self.state, score, has_label, miss)
            turns += 1
        self.clock += turns

    def past(self):
        """What the bounds depend on, counted one by one."""
        K = len(self.there)
        starts, members = np.zeros(K), np.zeros(K, dtype=int)
        for k, level in self.joins:
            starts[k] += level
            members[k] += 1
        came = [e for e in self.examples if e.came]
        labels = np.bincount([e.device for e in came], minlength=K)
        late = max((self._awaited(e, came) for e in came), default=0)
        unheard = max((self._unheard(e, came) for e in came), default=0) if self.state.counts else 0
        return BoundInputs(starts, members, labels, late, unheard, self.clock)

    @staticmethod
    def _awaited(e, came):
        return sum(o.device == e.device and o.step < e.step <= o.due for o in came)

    @staticmethod
    def _unheard(e, came):
        return sum(o is not e and o.step <= e.step for o in came) - e.heard

    def excess(self, device=None):
        """E - alpha N so far."""
        came = [e for e in self.examples if e.came and device in (None, e.device)]
        return sum(e.miss for e in came) - self.rule.learner.alpha * len(came)

    def broken(self):
        """Which guarantees do not hold; names of them."""
        past = self.past()
        gaps = [("all", self.rule.gap(past), self.excess())]
        gaps += [(k, self.rule.device_gap(past, k), self.excess(k)) for k in range(len(self.there))]
        slack = 1e-7
        return [
            (who, gap, excess)
            for who, gap, excess in gaps
            if gap is not None and not -gap.down - slack <= excess <= gap.up + slack
        ]
