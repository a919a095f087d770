"""What one curious device sees of private runs: the protocol itself, with many independent runs riding along.

The device is the hub of a star (row 0), so it hears every message of the others alone. It subtracts what it knows: its
own numbers and the masks that it shares with others. What is left is a word modulo 2^32 for each message and number.
Words that a mask hides are uniform; a small one is readable.
"""

from typing import Any, Literal, NamedTuple
from unittest import mock

import numpy as np

from conformesh import Network
from conformesh.kernels.ranks import DEFAULT_REQUIREMENT, exact_alpha
from conformesh.kernels.weighted_scores import WeightedScores
from conformesh.methods import device_protocol, make_options
from conformesh.privacy.account import ACCOUNT_FILE, Account
from conformesh.protocols.masks import MaskedSums, Masks
from tests.protocols.alone import Transcript, secrets_of, together

HUB = 0  # row of the device that listens
SMALL = 500  # words beyond +-SMALL are no counts here: only their first four bits are told apart
# The last round of a star in which anybody speaks. Rounds 1 and 2 tell keys, 3 and 4 grow the tree; in 5 and 7 leaves
# tell the hub their masked numbers and their self-masks. What follows (totals, a digest of them) the hub can work out.
LAST = {"masked": 5, "revealed": 7}


class Attempt(NamedTuple):
    """The rows that take part in an attempt, and how far it comes before a device is lost."""

    rows: tuple[int, ...]
    until: Literal["masked", "revealed"] = "revealed"


class Neighbour(NamedTuple):
    """A curious device that sees these attempts, one after the other, with these options of p-dcp."""

    attempts: tuple[Attempt, ...]
    options: dict[str, Any]
    requirement: Any = DEFAULT_REQUIREMENT

    def views(self, scores, runs, seed, folder):
        """Return what the device sees in so many runs over these scores (by row), whole numbers (runs, columns).

        Accounts are in the folder, and last from attempt to attempt. An error that ends an attempt is an event.
        """
        folder.mkdir()
        parts = [self._seen(number, scores, runs, seed, folder) for number in range(len(self.attempts))]
        return np.concatenate(parts, axis=1)

    def _seen(self, number, scores, runs, seed, folder):
        rows, until = self.attempts[number]
        network, said, heard = Network.star(len(rows)), Transcript(), []
        options, over = make_options("p-dcp", self.options), MaskedSums.over

        def part(place):
            row = rows[place]
            account = Account(folder / f"{row}-{ACCOUNT_FILE}", window=options.window, releases=options.releases)
            secrets = secrets_of(network, place, f"{seed} {number}", f"attempt {number}".encode(), account)
            samples = WeightedScores.of_trials([[np.sort(np.array(scores[row], dtype=float))]] * runs)
            levels = (exact_alpha(0.1),)
            return device_protocol("p-dcp", network, place, samples, levels, options, self.requirement, secrets=secrets)

        def noted(block, masks, way):
            if block.rows[0] == HUB:
                heard.append(masks)
            return over(block, masks, way)

        ended = b"no error"
        with mock.patch.object(MaskedSums, "over", noted):
            try:
                together(network, [part(place) for place in range(len(rows))], said=said, until=LAST[until])
            except ValueError as problem:
                ended = str(problem).encode()
        words = _words(said, len(rows), runs, heard[0] if heard else None)
        event = np.full((runs, 1), int.from_bytes(ended[:7], "big"))  # other words begin differently
        return np.concatenate([event, words], axis=1)


def _words(said, devices, runs, masks):
    """Return what the hub makes of all masked messages, (runs, columns); 0 where none came."""
    others, numbers = range(1, devices), 4  # as many as `OPTIONS` of the tests ask for
    hidden, revealed = np.zeros((2, devices - 1, runs * numbers), dtype=np.uint32)
    for row in others:
        told = [np.frombuffer(raw, "<u4") for _, sender, _, _, raw in said.masked if sender == row]
        if told:
            shared = Masks(1, (masks.pairs[row - 1],)).at(0, len(told[0]))[0]  # as the hub adds it
            hidden[row - 1] = (told[0] + shared)[1:]
        if len(told) > 1:
            revealed[row - 1] = told[1][1:]
    apart = [*hidden, *revealed, *(hidden - revealed)]
    sums = [array.sum(axis=0, dtype=np.uint32) for array in (hidden, revealed, hidden - revealed)]
    return np.concatenate([_readable(words.reshape(runs, numbers)) for words in [*apart, *sums]], axis=1)


def _readable(words):
    """Return small words as they are, and the first four bits of others, shifted out of their way."""
    signed = words.view(np.int32).astype(np.int64)
    return np.where(np.abs(signed) <= SMALL, signed, SMALL + 1 + (words >> 28).astype(np.int64))
