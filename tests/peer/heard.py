"""Start devices without rounds, and judge every certificate that any of them holds, against all scores."""

import hashlib
import math
from fractions import Fraction

import numpy as np

from conformesh.kernels.ranks import exact_alpha, make_requirement
from conformesh.kernels.weighted_scores import WeightedScores
from conformesh.methods import async_protocol, make_options
from conformesh.peer.async_device import AsyncDevice
from conformesh.peer.interface import PeerSetup
from conformesh.peer.loopback import draw_link_faults, run_loopback
from conformesh.peer.settings import Settings

LIMIT = 300.0  # virtual seconds after which a schedule counts as hanging
ALPHA = Fraction(1, 10)


def starter(
    network, scores, device=AsyncDevice, settings=None, caps=True, alpha=ALPHA, target="sizes", method="e-dcp", **how
):
    """Return what starts a device of a row on a journal; `scores` may change from one start to the next."""
    levels, chosen = (exact_alpha(alpha),), make_options(method, how.pop("options", {}))
    most = np.array([len(own) for own in scores]) if caps else None

    def start(k, journal):
        samples = WeightedScores.of([scores[k]])

        def make(net, row):
            return async_protocol(method, net, row, samples, levels, chosen, make_requirement(target), most)

        digest = hashlib.sha256(np.asarray(scores[k], dtype=float).tobytes()).hexdigest()
        return device(
            PeerSetup(k, network, {"method": method}, make, journal, settings or Settings(), scores=digest), **how
        )

    return start


def needed(sizes, alpha=ALPHA):
    """Return the rank that coverage over devices with so many scores needs, by the formulas of the theorems."""
    n = sum(sizes)
    if sum(size > 0 for size in sizes) == 1:
        return math.ceil((1 - alpha) * (n + 1))
    return math.ceil((1 - alpha) * n) + 1


class Judge:
    """Looks at every device whenever it knows more, and raises at the first certificate that is false.

    True thresholds about everybody only fall within a run; the final one is that of the pooled scores.
    """

    def __init__(self, network, scores):
        self.ids, self.scores = network.ids, [np.sort(own) for own in scores]
        self.rows = {name: row for row, name in enumerate(network.ids)}
        self.pooled = np.sort(np.concatenate(scores))
        self.rank = needed([len(own) for own in scores])
        self.right = self.pooled[self.rank - 1] if self.rank <= len(self.pooled) else np.inf
        self.seen, self.lowest, self.looks = {}, {}, 0

    def __call__(self, devices):
        for device in devices:
            state = id(device), device.number, device.store.keys, device.phase
            if self.seen.get(device.row) != state:
                self.look(device)
                self.seen[device.row] = id(device), device.number, device.store.keys, device.phase

    def look(self, device):
        outcome = device.result
        if outcome is None:
            assert device.phase == "failed", device.phase
            return
        self.looks += 1
        threshold, certificate = outcome.thresholds[0, 0, 0], outcome.certificates[0][0]
        if certificate.heard:
            heard = [self.rows[name] for name in certificate.heard]
            assert device.row in heard
            assert tuple(heard) == device.survivors
        else:
            heard = range(len(self.scores))
            self.falls(device, threshold)
        self.holds(threshold, certificate, heard)
        if outcome.about_all is not None:
            assert certificate.heard
            whole = outcome.about_all.thresholds[0, 0, 0]
            self.holds(whole, outcome.about_all.certificates[0][0], range(len(self.scores)))
            self.falls(device, whole)
        if device.final:
            assert threshold == self.right, (threshold, self.right)

    def holds(self, threshold, certificate, heard):
        counted = sum(int(np.searchsorted(self.scores[row], threshold, side="right")) for row in heard)
        assert certificate.kind == "counted"
        assert certificate.required_rank == needed([len(self.scores[row]) for row in heard])
        if np.isfinite(threshold):
            assert certificate.required_rank <= certificate.counted_rank <= counted

    def falls(self, device, threshold):
        key = id(device), device.number  # a device that starts again may have lost the end of its journal
        assert threshold <= self.lowest.get(key, np.inf)
        self.lowest[key] = threshold


def drawn(network, seed, low=0, high=14):
    """Unequal scores, some of them tied, of devices that are not alike."""
    rng = np.random.default_rng([41, seed])
    shift = rng.normal(size=network.devices) * rng.choice([0.0, 1.0, 3.0])
    found = []
    for k in range(network.devices):
        size = int(rng.integers(low, high))
        own = rng.normal(shift[k], size=size)
        found.append(np.round(own, 1) if rng.random() < 0.3 else own)
    return found


def storm(network, start, seed, check=lambda devices: None, limit=LIMIT):
    """Play the schedule of a seed: loss to 50 %, duplication, reordering, cuts, crashes, links that come and go."""
    rng = np.random.default_rng([43, seed])
    return run_loopback(
        network, start, draw_link_faults(network, rng, loss=0.5, changing=True), rng, limit=limit, check=check
    )
