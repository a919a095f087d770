"""Start devices of a mesh for the loopback engine, and say how a schedule should and did end."""

import hashlib

import numpy as np

from conformesh import Network
from conformesh.kernels.ranks import exact_alpha
from conformesh.kernels.weighted_scores import WeightedScores
from conformesh.methods import device_protocol, make_options
from conformesh.peer import frames
from conformesh.peer.device import Device
from conformesh.peer.interface import PeerSetup
from conformesh.peer.loopback import draw_link_faults, run_loopback
from conformesh.peer.settings import Settings
from conformesh.pipeline.solver import solve_draws

LIMIT = 300.0  # virtual seconds after which a schedule counts as hanging


def starter(network, scores, method="e-dcp", alpha=0.1, settings=None, device=Device, **options):
    """Return what starts a device of a row on a journal."""
    chosen, levels = make_options(method, options), (exact_alpha(alpha),)

    def start(k, journal):
        def make(net, row):
            return device_protocol(method, net, row, WeightedScores.of([scores[k]]), levels, chosen)

        digest = hashlib.sha256(np.asarray(scores[k], dtype=float).tobytes()).hexdigest()
        agreement = {"method": method, "alpha": str(alpha)}
        return device(PeerSetup(k, network, agreement, make, journal, settings or Settings(), scores=digest))

    return start


def drawn_scores(network, seed=0, low=5, high=40):
    """Unequal normal scores."""
    rng = np.random.default_rng(seed)
    return [rng.normal(k / 5, size=rng.integers(low, high)) for k in range(network.devices)]


def expected(network, scores, method="e-dcp", alpha=0.1, **options):
    """Return the simulator's threshold of every device, as bytes."""
    found = solve_draws(WeightedScores.of(scores), network, [alpha], method, **options).outcome.thresholds[:, 0, 0]
    return [x.tobytes() for x in found]


def thresholds(devices):
    """Return every device's threshold as bytes, None where it did not finish."""
    return [d.result.thresholds[0, 0, 0].tobytes() if d.phase == "finished" else None for d in devices]


def schedule(network, start, seed, key=7, limit=LIMIT):
    """Play the schedule of a seed."""
    rng = np.random.default_rng([key, seed])
    faults = draw_link_faults(network, rng)
    return run_loopback(network, start, faults, rng, limit=limit)


def without(network, lost):
    """Return the network that is left without some rows."""
    ids = network.ids
    kept = [k for k in range(network.devices) if k not in lost]
    pairs = [(ids[k], ids[j]) for k in kept for j in network.neighbours(k).tolist() if k < j and j not in lost]
    return Network.from_pairs([ids[k] for k in kept], pairs)


def in_device(part, kind=Device):
    """Return a decorator for a class of a part: it makes a kind of device whose part is of that class.

    So a safeguard is switched off, or something is watched, in one part of otherwise sound devices.
    """

    def decorate(changed):
        class Changed(kind):
            def __init__(self, *args, **named):
                super().__init__(*args, **named)
                getattr(self, part).__class__ = changed

        Changed.__name__ = changed.__name__
        return Changed

    return decorate


class Tapped(Device):
    """A device that keeps the frames it sends."""

    def outbox(self):
        out = super().outbox()
        self.said = [*getattr(self, "said", []), *(frames.decode_frame(data) for _, data in out)]
        return out
