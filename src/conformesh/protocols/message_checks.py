"""Checks of every message before it is answered, the same on all engines: a protocol that runs on one runs on all.

A simulator has the data of all devices and could answer what no device on a mesh could know or send. Therefore the
simulator, MPI ranks and devices of a mesh apply the same checks. They cost a few comparisons a round; only integers
that could overflow are searched for their largest value.

NaN and infinities may travel, and so may rows of no numbers; they mean the same everywhere, but for the bits of a NaN
that comes of adding up.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from conformesh.common.array_types import Array
from conformesh.graph.network import Network
from conformesh.protocols.messages import (
    MOST_DIMENSIONS,
    WIRE_TYPES,
    Each,
    Message,
    MessageKind,
    Pool,
    Silence,
    Sum,
    Tell,
    kind_of,
    may_be_silent,
)

_TYPES = frozenset(map(np.dtype, WIRE_TYPES))
_WIDE = frozenset(map(np.dtype, ("<i8", "<u8")))  # types whose sums could overflow int64; sums of narrower ones cannot
_LARGEST_INT64 = int(np.iinfo(np.int64).max)


class MessageChecks:
    """Checks the messages of a block of devices.

    Parameters
    ----------
    network
        The links between devices.
    here
        Rows of the local devices.
    """

    def __init__(self, network: Network, here: NDArray[np.int64]) -> None:
        self.devices = len(here)
        self.edges = int(network.degree[here].sum())
        self.addends = int(network.degree.max(initial=1))
        self.begin()

    def begin(self) -> None:
        """Forget announced silences: a protocol begins."""
        self._until: NDArray[np.int64] | None = None  # by device, the last round of its announced silence
        self._latest = 0

    def check(self, message: Message, round_: int) -> MessageKind:
        """Return the kind of a valid message; raise an error with the round and the reason for any other."""
        kind, values = kind_of(message), message.values
        try:
            if type(values) is not np.ndarray or values.dtype not in _TYPES:
                raise TypeError(f"values must be an array of {_type_names()}, got {_describe(values)}")
            self._check_values(message)
            if round_ <= self._latest:
                self._check_silence(message, round_)
            if isinstance(message, Each | Tell) and message.quiet is not None:
                self._announce(message.quiet, round_)
        except (TypeError, ValueError) as problem:
            raise type(problem)(f"round {round_}, {kind.name}: {problem}") from None
        return kind

    def _check_values(self, message: Message) -> None:
        values = message.values
        if isinstance(message, Pool):
            self._check_pool(message)
            return
        if isinstance(message, Tell):
            self._check_tell(message)
            return
        if values.ndim == 0 or len(values) != self.devices:
            raise ValueError(f"values need one row for each of the {self.devices} devices here, got {values.shape}")
        if values.ndim > 1 + MOST_DIMENSIONS:
            raise ValueError(f"a row may have {MOST_DIMENSIONS} dimensions, got {values.ndim - 1}")
        if isinstance(message, Sum):
            self._check_sum(message)
            return
        if message.speakers is not None:
            self._check_speakers(message.speakers)
        if not isinstance(message, Each) and values.dtype == np.uint64:
            _check_size(values, 1)

    def _announce(self, quiet: Silence, round_: int) -> None:
        """Record announced silences."""
        places, rounds = quiet.places, quiet.rounds
        self._check_speakers(places)
        for name, array in (("places", places), ("rounds", rounds)):
            if type(array) is not np.ndarray or array.dtype != np.int64 or array.shape != places.shape:
                raise ValueError(
                    f"{name} of {len(places)} quiet devices must be int64 of that shape, got {_describe(array)}"
                )
        if rounds.min(initial=0) < 0:
            raise ValueError(f"nobody can be quiet for {int(rounds.min())} rounds")
        if self._until is None:
            self._until = np.zeros(self.devices, dtype=np.int64)
        self._until[places] = np.maximum(self._until[places], round_ + rounds)
        self._latest = max(self._latest, round_ + int(rounds.max(initial=0)))

    def _check_silence(self, message: Message, round_: int) -> None:
        """Raise `ValueError` if a device sends that has announced to be silent."""
        assert self._until is not None
        places = message.places if may_be_silent(message) else np.arange(self.devices)  # type: ignore[union-attr]
        broken = places[self._until[places] >= round_]
        if len(broken):
            until = self._until[broken[0]]
            raise ValueError(
                f"device {broken[0]} here has announced to say nothing up to round {until}, and speaks; "
                "announce fewer rounds (Quiet.rounds), or let it be silent"
            )

    def _check_sum(self, message: Sum) -> None:
        if message.values.dtype == np.bool_:
            raise TypeError("booleans cannot be added up; send them as integers, for instance int8")
        if message.weights is None:
            if message.values.dtype in _WIDE:
                _check_size(message.values, self.addends)
        elif getattr(message.weights, "shape", None) != (self.edges,) or message.weights.dtype != np.float64:
            raise ValueError(
                f"weights must be one float64 per directed edge of the devices here, shape {(self.edges,)}, got "
                f"{_describe(message.weights)}"
            )

    def _check_speakers(self, speakers: Array) -> None:
        if type(speakers) is not np.ndarray or speakers.ndim != 1 or speakers.dtype.kind not in "bi":
            raise TypeError(f"speakers must be a mask or a list of places, got {_describe(speakers)}")
        if speakers.dtype == np.bool_:
            if len(speakers) != self.devices:
                raise ValueError(f"the mask of speakers needs {self.devices} entries, got {len(speakers)}")
        elif len(speakers) and (
            speakers[0] < 0
            or speakers[-1] >= self.devices
            or (len(speakers) > 1 and np.count_nonzero(speakers[1:] <= speakers[:-1]))
        ):
            raise ValueError(f"speakers must be places from 0 to {self.devices - 1}, ascending, each once")

    def _check_tell(self, message: Tell) -> None:
        self._check_speakers(message.speakers)
        values, offsets, speakers = message.values, message.packets.offsets, message.speakers
        if speakers.dtype != np.int64:
            raise TypeError(f"speakers of bytes must be their places in int64, got {_describe(speakers)}")
        if values.dtype != np.uint8 or values.ndim != 1:
            raise TypeError(f"bytes must stand in a flat array of uint8, got {_describe(values)}")
        needed = {"offsets": (offsets, len(speakers) + 1), "numbers": (message.numbers, len(speakers))}
        for name, (array, length) in needed.items():
            if type(array) is not np.ndarray or array.dtype != np.int64 or array.shape != (length,):
                raise ValueError(
                    f"{name} for {len(speakers)} speakers must be int64 of shape {(length,)}, got {_describe(array)}"
                )
        if offsets[0] != 0 or offsets[-1] != len(values) or (offsets[1:] < offsets[:-1]).any():
            raise ValueError(f"offsets must lead from 0 to {len(values)}, the number of bytes, and must not fall")

    def _check_pool(self, message: Pool) -> None:
        offsets, n = message.offsets, len(message.values) if message.values.ndim == 1 else -1
        pieces, left = divmod(len(offsets) - 1, self.devices)
        if offsets.dtype != np.int64 or left or not pieces or offsets[0] != 0 or offsets[-1] != n:
            raise ValueError(
                f"offsets must be int64 and cut flat values into as many pieces for each of the {self.devices} devices "
                f"here, from 0 to their number; got {_describe(offsets)} for values of shape {message.values.shape}"
            )
        if (offsets[1:] < offsets[:-1]).any():
            raise ValueError("offsets must not fall")


def _check_size(values: Array, addends: int) -> None:
    """Refuse integers so large that `addends` of them could leave int64, in which all engines work."""
    most = _LARGEST_INT64 // addends
    low, high = int(values.min(initial=0)), int(values.max(initial=0))
    if low < -most or high > most:
        raise ValueError(
            f"integers must lie within {most:,}: every engine adds up and compares in int64, what up to {addends} "
            f"neighbours say; got {low if low < -most else high:,}"
        )


def _describe(values: object) -> str:
    return f"{values.dtype} of shape {values.shape}" if isinstance(values, np.ndarray) else type(values).__name__


def _type_names() -> str:
    return ", ".join(np.dtype(name).name for name in WIRE_TYPES)
