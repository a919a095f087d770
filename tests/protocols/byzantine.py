"""Byzantine devices under a test's control: r-dcp driven with any strings, and the truth to check."""

from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from conformesh import Network
from conformesh.kernels.ranks import make_requirement
from conformesh.kernels.weighted_scores import WeightedScores
from conformesh.methods import make_options
from conformesh.protocols.block import Block
from conformesh.protocols.messages import GatheredStrings, Packets
from conformesh.protocols.r_dcp import r_dcp


@dataclass
class Hearing:
    """Answers what r-dcp asks: `says(stage, row, own)` is the string of a row, None where it is not heard."""

    says: object
    disputed: np.ndarray
    sealed: bool = True

    def answer(self, message, stage):
        found = [self.says(stage, row, own) for row, own in enumerate(map(message.packets.__getitem__, self.rows))]
        for row, said in enumerate(found):
            if said is not None and not self.disputed[row]:
                try:
                    message.check(said, row)
                except ValueError:
                    self.disputed[row] = True  # as an engine does with what nobody could say
        heard = np.array([said is not None for said in found]) & ~self.disputed
        strings = [said if here else b"" for said, here in zip(found, heard, strict=True)]
        return GatheredStrings(Packets.of(strings), heard, self.disputed.copy(), self.sealed)

    @property
    def rows(self):
        return range(len(self.disputed))


def driven(scores, alpha, hearing, target="sizes", rank="auto", **options):
    """Run r-dcp on all devices at once, and return its outcome."""
    network = Network.complete(len(scores))
    samples = WeightedScores.of(scores)
    block = Block(
        network, np.arange(len(scores)), samples.sizes, make_requirement(target, rank), None, (Fraction(alpha),)
    )
    protocol, answer, stage = r_dcp(block, samples, block.alphas, make_options("r-dcp", options)), None, 0
    while True:
        try:
            message = protocol.send(answer)
        except StopIteration as end:
            return end.value
        stage += 1
        answer = hearing.answer(message, stage)


def honestly(devices, sealed=True):
    """Everybody is heard, and says what is so."""
    return Hearing(lambda stage, row, own: own, np.zeros(devices, dtype=bool), sealed)


SHARES = {"sizes": lambda n: n, "paper": lambda n: n + 1, "equal": lambda n: 1}


def has_rank(scores, devices, threshold, alpha, target="sizes", rank="auto"):
    """Whether these devices have the rank at a threshold: from their true scores, in fractions, by the rules' words."""
    if threshold == np.inf:
        return True
    below = {k: int((np.asarray(scores[k]) <= threshold).sum()) for k in devices}
    sizes = {k: len(scores[k]) for k in devices}
    if rank == "ghost":
        return sum(below.values()) >= (1 - alpha) * sum(n + 1 for n in sizes.values())
    share = {
        k: Fraction(SHARES[target](n)) if isinstance(target, str) else Fraction(target[str(k)])
        for k, n in sizes.items()
    }
    each = {k: share[k] / n for k, n in sizes.items() if n}
    if not any(each.values()):
        return False
    covered = sum((each[k] * below[k] for k in each), Fraction(0))
    return covered >= (1 - alpha) * sum(share.values()) + max(each.values())
