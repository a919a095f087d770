"""Devices one by one, in lock step, with a test's hands on every link: what a mesh does, without frames and waiting."""

import hashlib
import hmac

import numpy as np

from conformesh.common.random_streams import random_stream
from conformesh.kernels.ranks import DEFAULT_REQUIREMENT, exact_alpha
from conformesh.kernels.weighted_scores import WeightedScores
from conformesh.methods import device_protocol, make_options
from conformesh.peer.combine import combine_neighbour_messages, question_name
from conformesh.protocols.masks import KEY_BYTES, Secrets
from conformesh.protocols.messages import Tell


class Transcript(list):
    """All that was said: (round, sender, question, type, bytes), of who spoke."""

    @property
    def masked(self):
        """What depends on scores: whole numbers of 32 bits."""
        return [said for said in self if said[3] == "int32"]


def seed_of(row, run=0):
    """The secret of a device, which tests know."""
    return hashlib.sha256(f"device {row} in run {run}".encode()).digest()[:KEY_BYTES]


def repeatable_secrets(block, run=0):
    """Return the secrets of simulated devices from a seed, where a simulation draws fresh ones."""
    context = hashlib.sha256(f"simulated {run} {block.devices}".encode()).digest()
    return Secrets(tuple(random_stream(run, "secrets", row).bytes(KEY_BYTES) for row in block.rows.tolist()), context)


def signer(name):
    """Sign as the device of that name: who does not know its key cannot."""
    return lambda said: hmac.digest(f"certificate of {name}".encode(), said, "sha256")


def genuine(name, said, proof):
    """Check a signature."""
    return hmac.compare_digest(signer(name)(said), proof)


def secrets_of(network, row, run=0, context=b"a run", account=None, scores_of=None):
    """Secrets of a device whose key is signed."""
    return Secrets((seed_of(row, run),), context, signer(network.ids[row]), genuine, account, scores_of)


class Ledger:
    """An account that records what is asked of it, and when: `moment()` says how far the run is."""

    def __init__(self, claim=b"no claims", settled=None, moment=lambda: None):
        self.own, self.settled, self.moment = claim, settled, moment
        self.calls, self.stored = [], []

    def claim(self):
        return self.own

    def settle(self, claims, coalition):
        self.calls.append(("settle", tuple(claims), coalition))
        if isinstance(self.settled, Exception):
            raise self.settled
        return (1, ()) if self.settled is None else self.settled

    def charge(self, epoch, devices, context):
        self.calls.append(("charge", epoch, tuple(devices), context, self.moment()))

    def store(self, epoch, release):
        self.stored.append((epoch, release))

    def charge_exact(self, devices, scores, hidden):
        self.calls.append(("charge_exact", tuple(devices), scores, hidden, self.moment()))

    @property
    def charges(self):
        """Charges of releases with epsilon."""
        return [call for call in self.calls if call[0] == "charge"]


def made(network, scores, alpha=0.1, *, secrets=secrets_of, requirement=DEFAULT_REQUIREMENT, **options):
    """Return every device's part of a run of p-dcp; `secrets` makes those of a row."""
    chosen, levels = make_options("p-dcp", options), (exact_alpha(alpha),)
    return [
        device_protocol(
            "p-dcp", network, row, WeightedScores.of([own]), levels, chosen, requirement, secrets=secrets(network, row)
        )
        for row, own in enumerate(scores)
    ]


def together(network, protocols, change=None, said=None, until=None):
    """Run all devices in rounds; return their outcomes. `change(round, sender, receiver, value)` is what arrives.

    After the round `until` a device is lost: the others wait for it in vain, and None is returned.
    """
    said, answers, round_ = Transcript() if said is None else said, [None] * len(protocols), 0
    while True:
        messages, outcomes = [], []
        for protocol, given in zip(protocols, answers, strict=True):
            try:
                messages.append(protocol.send(given))
            except StopIteration as end:
                outcomes.append(end.value)
        if outcomes:
            assert not messages, "some devices are done, and others still ask"
            return outcomes
        if round_ == until:
            return None
        round_ += 1
        words = []
        for row, message in enumerate(messages):
            speaks = bool(len(message.places)) if hasattr(message, "places") else True
            value = None
            if speaks:
                value = message.packets[0] if isinstance(message, Tell) else message.values[0].copy()
                kind = "bytes" if isinstance(message, Tell) else value.dtype.name
                raw = value if isinstance(message, Tell) else value.tobytes()
                said.append((round_, row, question_name(message), kind, raw))
            words.append(value)
        answers = []
        for row, message in enumerate(messages):
            heard = {}
            for j in network.neighbours(row).tolist():
                value = words[j]
                if change is not None and value is not None:
                    value = change(round_, j, row, value if isinstance(value, bytes) else value.copy())
                heard[j] = value
            answers.append(combine_neighbour_messages(message, row, heard, round_))


def thresholds(outcomes):
    """The threshold of every device."""
    return np.array([outcome.thresholds[0, 0, 0] for outcome in outcomes])
