"""What no engine may answer, and what a protocol may not ask: in the simulator, on a mesh and on MPI ranks alike."""

import inspect
from dataclasses import replace

import numpy as np

from conformesh import Network
from conformesh.protocols import tree
from conformesh.protocols.messages import Each, Max, Min, Packets, Pool, Sum, Tell

NETWORK = Network.star(6)
MOST = np.iinfo(np.int64).max


def ones(here, *shape, dtype=np.float64):
    """One for every number of every device here."""
    return np.ones((len(here), *shape), dtype=dtype)


def telling(here, speakers, strings):
    """What those of the speakers tell that are here: a string for each of all speakers, which are rows, ascending."""
    said = dict(zip(np.asarray(speakers).tolist(), strings, strict=True))
    places = np.flatnonzero(np.isin(here, speakers))
    mine = [said[row] for row in here[places].tolist()]
    return Tell(Packets.of(mine), places, np.array([len(each) for each in mine], dtype=np.int64))


def told(values=b"ab", speakers=(0,), offsets=(0, 2), numbers=(1,), dtype=np.uint8):
    """Tell two bytes of the first device here, or something that is wrong about that."""
    said = Packets(np.frombuffer(values, dtype), np.array(offsets))
    return lambda here: Tell(said, np.array(speakers), np.array(numbers))


def edges(here):
    """How many directed edges the devices here have."""
    return int(NETWORK.degree[here].sum())


BAD = {  # what a block of devices says, and in which words it is refused
    "no message": (ones, TypeError, "yields messages, of the kinds Sum, Max, Min, Each, Tell, Pool"),
    "no array": (lambda here: Sum([1.0] * len(here)), TypeError, "must be an array of float16.*got list"),
    "masked": (lambda here: Sum(np.ma.masked_array(ones(here))), TypeError, "must be an array of float16"),
    "long floats": (lambda here: Sum(ones(here, dtype=np.longdouble)), TypeError, "got (float128|longdouble)"),
    "complex": (lambda here: Max(ones(here, dtype=complex)), TypeError, "got complex128"),
    "objects": (lambda here: Min(ones(here, dtype=object)), TypeError, "got object"),
    "texts": (lambda here: Each(ones(here).astype(str), ones(here) > 0), TypeError, "got <U"),
    "foreign bytes": (lambda here: Sum(ones(here, dtype=">f8")), TypeError, "got >f8"),
    "sum of booleans": (lambda here: Sum(ones(here, dtype=bool)), TypeError, "booleans cannot be added up.*int8"),
    "no rows": (lambda here: Sum(np.array(1.0)), ValueError, r"one row for each of the \d devices here, got \(\)"),
    "a row too many": (lambda here: Max(np.ones(len(here) + 1)), ValueError, "one row for each"),
    "a row too few": (lambda here: Each(ones(here)[1:], ones(here) > 0), ValueError, "one row for each"),
    "nine dimensions": (lambda here: Sum(ones(here, *[1] * 9)), ValueError, "may have 8 dimensions, got 9"),
    "too few weights": (lambda here: Sum(ones(here), np.ones(edges(here) - 1)), ValueError, "one float64 per directed"),
    "too many weights": (
        lambda here: Sum(ones(here), np.ones(edges(here) + 1)),
        ValueError,
        "one float64 per directed",
    ),
    "short weights": (lambda here: Sum(ones(here), np.ones(edges(here), np.float32)), ValueError, "got float32"),
    "listed weights": (lambda here: Sum(ones(here), [1.0] * edges(here)), ValueError, "got list"),
    "a sum beyond int64": (lambda here: Sum(ones(here, dtype=np.int64) * (MOST // 5 + 1)), ValueError, "within 1,8"),
    "a sum below int64": (lambda here: Sum(-ones(here, dtype=np.int64) * (MOST // 5 + 1)), ValueError, "got -1,8"),
    "a large uint64": (lambda here: Max(ones(here, dtype=np.uint64) << np.uint64(63)), ValueError, "got 9,223,372"),
    "places that fall": (lambda here: Each(ones(here), np.array([1, 0])), ValueError, "ascending, each once"),
    "a place twice": (lambda here: Each(ones(here), np.array([0, 0])), ValueError, "ascending, each once"),
    "a place beyond": (lambda here: Each(ones(here), np.array([len(here)])), ValueError, "ascending, each once"),
    "a place before": (lambda here: Each(ones(here), np.array([-1])), ValueError, "ascending, each once"),
    "a short mask": (lambda here: Each(ones(here), ones(here)[1:] > 0), ValueError, "mask of speakers needs"),
    "fractions of places": (lambda here: Each(ones(here), np.array([0.0])), TypeError, "mask or a list of places"),
    "told in words": (told(dtype=np.int16, offsets=(0, 1)), TypeError, "flat array of uint8, got int16"),
    "told in a list": (lambda here: replace(told()(here), packets=Packets([1], [0, 1])), TypeError, "got list"),
    "told in a table": (
        lambda here: replace(told()(here), packets=Packets(np.ones((2, 1), np.uint8), np.array([0, 2]))),
        TypeError,
        "flat array of uint8",
    ),
    "told by a mask": (
        lambda here: replace(told()(here), speakers=np.arange(len(here)) == 0),
        TypeError,
        "places in int64, got bool",
    ),
    "told by short places": (
        lambda here: replace(told()(here), speakers=np.zeros(1, np.int32)),
        TypeError,
        "places in int64, got int32",
    ),
    "told by nobody here": (lambda here: told(speakers=[len(here)])(here), ValueError, "ascending, each once"),
    "told by one twice": (told(speakers=(0, 0), offsets=(0, 1, 2), numbers=(1, 1)), ValueError, "ascending, each once"),
    "a string too few": (told(offsets=(2,)), ValueError, r"offsets for 1 speakers must be int64 of shape \(2,\)"),
    "a string too many": (told(offsets=(0, 1, 2)), ValueError, r"offsets for 1 speakers must be int64 of shape \(2,\)"),
    "bytes before": (told(offsets=(1, 2)), ValueError, "offsets must lead from 0 to 2, the number of bytes"),
    "bytes left over": (told(offsets=(0, 1)), ValueError, "offsets must lead from 0 to 2"),
    "fractions of offsets": (told(offsets=(0.0, 2.0)), ValueError, "offsets for 1 speakers must be int64"),
    "listed offsets": (
        lambda here: replace(told()(here), packets=Packets(np.ones(2, np.uint8), [0, 2])),
        ValueError,
        "offsets for 1 speakers must be int64.*got list",
    ),
    "a number too few": (told(numbers=np.empty(0, np.int64)), ValueError, r"numbers for 1 .* shape \(1,\)"),
    "a number too many": (told(numbers=(1, 1)), ValueError, r"numbers for 1 speakers must be int64 of shape \(1,\)"),
    "half a number": (told(numbers=(0.5,)), ValueError, "numbers for 1 speakers must be int64"),
}
MORE = {  # what takes two devices
    "strings that fall": (told(b"ab", (0, 1), (0, 3, 2), (1, 1)), ValueError, "must not fall"),
    "places told downwards": (told(b"ab", (1, 0), (0, 1, 2), (1, 1)), ValueError, "ascending, each once"),
}
POOLS = {  # a mesh has no server, so only engines that do can refuse these
    "offsets from one": (lambda here: Pool(np.ones(9), np.arange(len(here) + 1) + 1), ValueError, "from 0 to their"),
    "a device too few": (
        lambda here: Pool(np.ones(len(here) - 1), np.arange(len(here))),
        ValueError,
        "from 0 to their",
    ),
    "values left over": (lambda here: Pool(np.ones(len(here) + 1), np.arange(len(here) + 1)), ValueError, "from 0 to"),
    "a table": (lambda here: Pool(ones(here, 1), np.arange(len(here) + 1)), ValueError, "cut flat values"),
    "offsets that fall": (
        lambda here: Pool(np.ones(1), np.array([0, 3, *[1] * (len(here) - 1)])),
        ValueError,
        "must not fall",
    ),
}


def once(message):
    """Ask one question."""
    return (yield message)


def childless_tree():
    """Plant a bug: parents never learn that they have children, so that nobody passes a total on."""
    source = inspect.getsource(tree)
    planted = source.replace("self.has_child[parents] = True", "pass")
    assert planted != source
    scope = {"__name__": tree.__name__}
    exec(planted, scope)
    return scope["explore_tree"]


def saying(question, here, speakers):
    """Let some speak: each of them says its row."""
    if question == "tell":
        return telling(here, speakers, [str(row).encode() for row in speakers])
    return Each(here.astype(np.float64), np.isin(here, speakers))


def rows_said(answer, receivers, senders):
    """Return the rows that some said to some others."""
    said = answer.said_by(receivers, senders)
    return [float(said[i]) for i in range(len(said))]


def asks(question, speakers, receivers, senders):
    """Make a protocol in which some speak, and which then asks what some of them said to some others.

    Every block asks for its own receivers only.
    """

    def protocol(here):
        answer = yield saying(question, here, speakers)
        asked = np.isin(receivers, here)
        return rows_said(answer, np.array(receivers)[asked], np.array(senders)[asked])

    return protocol


STRANGE = {  # speakers, receivers, senders on a star with hub 0: who cannot have been heard
    "silent": ([1, 2], [0, 0], [1, 3], "device 0 asks what device 3 said"),
    "no neighbour": ([1, 2], [0, 3], [1, 2], "device 3 asks what device 2 said"),
    "oneself": ([0], [0], [0], "device 0 asks what device 0 said"),
    "out of range": ([1], [0], [6], "device 0 asks what device 6 said"),
    "negative": ([1, 5], [0], [-1], "device 0 asks what device -1 said"),
    "nobody speaks": ([], [0], [1], "device 0 asks what device 1 said"),
}
