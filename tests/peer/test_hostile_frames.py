"""A device in mid-run hears hostile frames: it refuses or ignores them, and ends with the right threshold."""

import json

import numpy as np
import pytest

from conformesh import Network
from conformesh.peer import frames
from conformesh.peer.frames import DATA, FAILED, FINISHED, HELLO, READY, SILENT, WANT, Frame, FrameError
from conformesh.peer.interface import EVERYBODY
from conformesh.peer.journal import MemoryJournal
from conformesh.peer.json_bodies import MOST_RUNS, News, pack_rows
from conformesh.protocols.messages import Tell, kind_of, may_be_silent
from tests.peer.devices import drawn_scores, expected, starter, thresholds

MIDDLE, LEFT, RIGHT = 1, 0, 2
CHAIN = Network.chain(3)
SCORES = drawn_scores(CHAIN)


class World:
    """Three devices on a chain, moved by hand; the middle one has heard its left neighbour, and not its right one."""

    def __init__(self, method="e-dcp", **options):
        make = starter(CHAIN, SCORES, method, **options)
        self.expected = expected(CHAIN, SCORES, method, **options)
        self.devices = [make(k, MemoryJournal()) for k in range(3)]
        self.target = self.devices[MIDDLE]
        self.now, self.wire, self.tape = 0.0, [], []
        for device in self.devices:
            device.start(0.0)

    def step(self):
        """Deliver the oldest frame, or let time pass."""
        for k, device in enumerate(self.devices):
            for to, data in device.outbox():
                self.wire += [(k, j, data) for j in (device.neighbours if to == EVERYBODY else (to,))]
                self.tape.append((k, data))
        if self.wire:
            sender, to, data = self.wire.pop(0)
            self.devices[to].receive(data, sender, self.now)
            return
        self.now += 0.25
        for device in self.devices:
            device.tick(self.now)

    def until(self, condition, most=20_000):
        for _ in range(most):
            if condition():
                return self
            self.step()
        raise AssertionError("waited in vain")

    def mid_run(self, rounds):
        """Go on to a round of which the middle one has heard one neighbour."""
        return self.until(lambda: self.target.round >= rounds and len(self.target.rounds.received) == 1)

    def ends_well(self):
        self.target.outbox()  # its answers to strangers are lost, which is allowed
        self.until(lambda: all(device.phase == "finished" for device in self.devices))
        assert thresholds(self.devices) == self.expected
        assert {device.number for device in self.devices} == {1}


def state(device):
    result = None if device.result is None else device.result.thresholds.tobytes()
    heard = frozenset(device.rounds.received)
    written = len(device.setup.journal.data)
    return device.phase, device.round, device.number, device.lost, device.run, heard, result, device.error, written


def refusals(device):
    return sum(device.counts.refused.values())


def harmless(world, data, sender, refused=True):
    """Hand over bytes: nothing changes, and they are refused unless they may also be ignored."""
    before, count, heard = state(world.target), refusals(world.target), sum(world.target.counts.received.values())
    world.target.receive(data, sender, world.now)
    assert state(world.target) == before, data
    if refused:
        assert refusals(world.target) == count + 1, data
    else:
        assert refusals(world.target) + sum(world.target.counts.received.values()) == count + heard + 1


def missing(world):
    """The neighbour of the middle one that it waits for."""
    (k,) = {LEFT, RIGHT} - {*world.target.rounds.received}
    return k


def real_frame(world, sender=None):
    """What the neighbour says that the middle one waits for."""
    sender = missing(world) if sender is None else sender
    target = world.target
    if isinstance(target.message, Tell):
        return Frame(DATA, target.run, sender, target.round, SILENT, bytes([frames.QUESTIONS["tell"]]))
    body = frames.pack_array(question(world), target.message.values[0])
    return Frame(DATA, target.run, sender, target.round, 0, body)


def with_(frame, **changes):
    return frames.encode_frame(frame._replace(**changes))


@pytest.fixture
def world():
    return World().mid_run(4)


@pytest.fixture
def adding_up():
    """In a round that sums over neighbours: e-dcp has none, so a method that averages."""
    world = World("average").mid_run(4)
    world.until(lambda: question(world) == "sum" and len(world.target.rounds.received) == 1)
    return world


# --- by hand ----------------------------------------------------------------------------------------------------------


def test_bytes_that_are_no_frame_are_refused(world):
    k = missing(world)
    good = with_(real_frame(world))
    for size in range(len(good)):
        harmless(world, good[:size], k)
    for at in range(8 * len(good)):
        flipped = bytearray(good)
        flipped[at // 8] ^= 1 << at % 8
        harmless(world, bytes(flipped), k)
    harmless(world, good + b"\0", k)
    harmless(world, b"", k)
    world.ends_well()


@pytest.mark.parametrize("numbers", ["8100", "818080808000", "ffffffff1f", "8180808080", "81", "", 1000 * "ff"])
def test_rows_and_rounds_that_are_badly_written_are_refused(world, numbers):
    """With a right checksum, before the round and instead of it."""
    target, sender = world.target, missing(world)
    head = frames.MARK + bytes([DATA]) + frames.RUN.pack(target.run)
    for said in (head + bytes.fromhex(numbers), head + bytes([sender]) + bytes.fromhex(numbers)):
        harmless(world, said + frames.CHECK.pack(frames.zlib.crc32(said)), sender)
    world.ends_well()


def test_frames_of_others_are_refused(world):
    k, frame = missing(world), real_frame(world)
    other = LEFT + RIGHT - k
    harmless(world, with_(frame, run=frame.run ^ 1), k)
    harmless(world, with_(frame, run=0, flags=WANT), k)
    for named in (other, MIDDLE, 3, 2**32 - 1):
        harmless(world, with_(frame, sender=named), k)
    for came_from in (-1, MIDDLE, 3, 10**9):
        harmless(world, with_(frame), came_from)
        harmless(world, with_(frame, sender=max(came_from, 0)), came_from)
    world.ends_well()


def arrays(values):
    """Values of the wrong type, shape or question for a device that sums these."""
    yield from (frames.pack_array(name, values) for name in ("max", "min", "each", "tell"))
    other = np.float32 if values.dtype != np.float32 else np.float64
    yield frames.pack_array("sum", values.astype(other))
    yield frames.pack_array("sum", np.concatenate([values.reshape(-1), values.reshape(-1)[:1]]))
    yield frames.pack_array("sum", values.reshape(1, *values.shape))
    yield frames.pack_array("sum", values.reshape(-1)[:0])


def shapes(values):
    """As many numbers, or as many bytes, in another shape or type; none, in shapes that no memory holds."""
    for kind in map(np.dtype, frames.WIRE_TYPES):
        for shape in [(1, *values.shape), (*values.shape, 1), (2**32 - 1,), (0, *[2**32 - 1] * 7), (2**31, 2**31, 0)]:
            head = frames.array_head("sum", kind, shape)
            yield from (head, head + values.tobytes(), head + bytes(values.size * kind.itemsize))


def question(world):
    from conformesh.peer.combine import question_name

    return question_name(world.target.message)


def test_wrong_arrays_are_refused(adding_up):
    world = adding_up
    k, frame = missing(world), real_frame(world)
    for body in arrays(np.asarray(world.target.message.values[0])):
        harmless(world, with_(frame, body=body), k)
    harmless(world, with_(frame, flags=SILENT), k)
    harmless(world, with_(frame, body=b"\1", flags=SILENT), k)
    for body in (b"", b"\1", b"\0\0\0\0", b"\xff" * 4, b"\1\1\x09\0", b"\1\1\1\0\1"):
        harmless(world, with_(frame, body=body), k)
    world.ends_well()


def test_other_shapes_and_those_that_no_memory_holds_are_refused(adding_up):
    world = adding_up
    for body in shapes(np.asarray(world.target.message.values[0])):
        harmless(world, with_(real_frame(world), body=body), missing(world))
    world.ends_well()


def test_repeated_frames_are_ignored(world):
    for sender, data in [*world.tape]:
        frame = frames.decode_frame(data)
        if sender != MIDDLE and not (frame.kind == DATA and frame.round >= world.target.round):
            harmless(world, data, sender, refused=False)
    world.ends_well()


def hellos(agreement):
    """Hellos with a field that no device says."""
    good = {"agreement": agreement, "run": 1, "lost": "0"}
    runs = [0, -1, MOST_RUNS, 2**64, 10**4000, 1.0, 1.5, True, None, "1", [1], {}, float("nan"), float("inf")]
    losts = [
        None,
        1,
        "",
        {},
        [0],
        "8",
        "-1",
        "+1",
        "1_0",
        "0x1",
        " 1",
        "1",
        "2",
        "7",
        "F",
        "f" * 9999,
        "0" * 9999,
        True,
    ]
    yield from (good | {"run": run} for run in runs)
    yield from (good | {"lost": lost} for lost in losts)
    yield from (good | {"agreement": strange} for strange in (None, 1, "x", [], [agreement], True, {"alpha": 1}))
    yield from ({k: v for k, v in good.items() if k != name} for name in good)


def test_absurd_hellos_are_refused(world):
    k = missing(world)
    for words in hellos(world.target.agreement):
        harmless(world, with_(Frame(HELLO, 0, k), body=frames.pack_words(words)), k)
    agreement = json.dumps(world.target.agreement)
    deep = "[" * 10_000 + "]" * 10_000
    texts = ["", "[]", "1", "null", '"x"', "{", "{}", deep, deep[:10_000], '{"a":' * 10_000 + "1" + "}" * 10_000]
    texts += [f'{{"agreement":{agreement},"run":{"9" * 5000},"lost":"0"}}']
    texts += [
        f'{{"agreement":{agreement},"run":{deep},"lost":"0"}}',
        f'{{"agreement":{agreement},"run":1,"lost":{deep}}}',
    ]
    for kind in (HELLO, READY, FINISHED, FAILED):
        for body in [*(text.encode() for text in texts), b"\xff\xfe\0", b"\xef\xbb\xbf{}", b"\0" * 64]:
            harmless(world, with_(Frame(kind, world.target.run, k), body=body), k)
    world.ends_well()


@pytest.mark.parametrize("kind", [READY, FINISHED])
def test_roll_calls_of_strangers_are_refused(world, kind):
    k, run = missing(world), world.target.run
    for rows in ("8", "f", "-1", "0x1", "", " 1", "z", 1, True, None, [0], {"0": 1}, "0" * 99):
        harmless(world, with_(Frame(kind, run, k), body=frames.pack_words({"rows": rows})), k)
    harmless(world, with_(Frame(kind, run ^ 1, k), body=pack_rows({0})), k)
    world.ends_well()


def test_absurd_reasons_to_fail_are_refused(world):
    k, run = missing(world), world.target.run
    good = {"from": k, "why": "it rains", "ends": False}
    origins = [{"from": origin} for origin in (None, -1, 3, 2**70, "0", True, 0.0, [0])]
    reasons = [{"why": why} for why in (None, "", 1, [], "two\nlines", "\x1b[31mred", "x" * 1001)]
    ends = [{"ends": whom} for whom in (None, 0, 1, "true", [])]
    for words in origins + reasons + ends:
        harmless(world, with_(Frame(FAILED, run, k), body=frames.pack_words(good | words)), k)
    harmless(world, with_(Frame(FAILED, run ^ 1, k), body=News(k, "it rains").pack()), k)
    world.ends_well()


HUGE = frames.array_head("sum", np.dtype(np.float64), (0, 2**31, 2**31))
EARLY = [b"", b"\1", frames.pack_array("sum", np.zeros(77)), HUGE]


@pytest.mark.parametrize("body", EARLY, ids=["empty", "short", "long", "huge"])
def test_bad_frames_of_the_next_round_are_refused_when_it_comes(adding_up, body):
    world = adding_up
    k, target = missing(world), world.target
    here, refused = target.round, refusals(target)
    early = with_(real_frame(world), round=here + 1, body=body)
    (real,) = [data for sender, to, data in world.wire if sender == k and to == MIDDLE][:1] or [None]
    assert real is not None
    assert frames.decode_frame(real).round == here
    harmless(world, early, k, refused=False)
    target.receive(real, k, world.now)
    assert (target.phase, target.round, target.rounds.received) == ("running", here + 1, {})
    assert refusals(target) == refused + 1
    world.ends_well()


@pytest.mark.parametrize("depth", [10, 400, 900, 5000, 50_000])
def test_a_deep_disagreement_never_raises(world, depth):
    deep = "[" * depth + "]" * depth
    body = f'{{"agreement":{{"alpha":{deep}}},"run":1,"lost":"0"}}'.encode()
    world.target.receive(with_(Frame(HELLO, 0, LEFT), body=body), LEFT, world.now)
    assert world.target.phase in ("running", "failed")


def test_what_is_counted_stays_small(world):
    """Somebody who lies in ever new ways cannot fill the memory."""
    for number in range(5000):
        world.target.receive(number.to_bytes(4, "big") + bytes(16), LEFT, 0.0)  # reasons quote how bytes begin
    assert len(world.target.counts.refused) <= 1000


# --- at random --------------------------------------------------------------------------------------------------------


def fits(frame, message):
    """Whether a frame answers a message: with silence where that is allowed, entries, or an array like its own."""
    kind = kind_of(message)
    if frame.silent:
        return may_be_silent(message) and frame.body == bytes([kind.code])
    if isinstance(message, Tell):
        if message.check is not None:
            message.check(frame.body[1:])  # a ValueError says no
        return frame.body[:1] == bytes([kind.code])
    row = message.values[0]
    head = frames.array_head(kind.name, row.dtype, row.shape)
    return frame.body[: len(head)] == head and len(frame.body) == len(head) + row.nbytes


def means_something(device, data, sender):  # noqa: PLR0911
    """Whether a frame is a neighbour's right: its word in this round, a new run, an end, a disagreement."""
    try:
        frame = frames.decode_frame(data)
        if sender not in (LEFT, RIGHT) or frame.sender != sender:
            return False
        if frame.kind == DATA:
            if frame.run != device.run or frame.round < device.round:
                return False
            if frame.round > device.round:
                return True
            return frame.sender not in device.rounds.received and fits(frame, device.message)
        words = frames.unpack_words(frame.body)
        if frame.kind == HELLO:
            theirs, run = words.get("agreement"), words.get("run")
            return isinstance(theirs, dict) and (theirs != device.agreement or (type(run) is int and run > 1))
        return frame.run == device.run and (frame.kind == FAILED or frame.round > device.round + 1)
    except (FrameError, ValueError):
        return False


SMALL = np.array([0, 1, 2, 3, 4, 255, 2**16 - 1, 2**31, 2**32 - 1])


def sealed(head, body):
    """A frame with these words in its header and a checksum that is right."""
    kind, flags, run, sender, round_ = (int(x) for x in head)
    first = frames.OPENING if kind == HELLO else frames.MARK
    numbers = frames.pack_number(sender % 2**32) + frames.pack_number(round_ % 2**32)
    said = first + bytes([(kind & 7) | (flags & 31) << 3]) + frames.RUN.pack(run) + numbers + body
    return said + frames.CHECK.pack(frames.zlib.crc32(said))


def mutated(rng, tape, device):
    """A real frame, or none at all, with something wrong: below the checksum or above it."""
    how = int(rng.integers(6))
    if how == 0:
        return rng.bytes(int(rng.integers(0, 120)))
    data = tape[int(rng.integers(len(tape)))][1]
    if how == 1:
        return data[: int(rng.integers(len(data) + 1))] + rng.bytes(int(rng.integers(0, 3)))
    if how == 2:
        torn = np.frombuffer(data, np.uint8).copy()
        torn[rng.integers(len(torn), size=int(rng.integers(1, 4)))] ^= np.uint8(1 << int(rng.integers(8)))
        return torn.tobytes()
    frame = frames.decode_frame(data)
    body = bytearray(frame.body)
    for _ in range(int(rng.integers(0, 4))):
        if body:
            at = int(rng.integers(min(len(body), 24) if rng.random() < 0.5 else len(body)))
            body[at] = int(rng.integers(256)) if rng.random() < 0.5 else int(rng.choice([0, 1, 2, 8, 45, 57, 91, 255]))
    if rng.random() < 0.2:
        body = body[: int(rng.integers(len(body) + 1))]
    head = [frame.kind, frame.flags, frame.run, frame.sender, frame.round]
    if how == 3:
        head[int(rng.integers(5))] = int(rng.choice(SMALL))
    if how == 4:
        head[2], head[4] = device.run, device.round
    if how == 5:
        head[0], head[1], head[2] = int(rng.integers(1, 6)), int(rng.integers(4)), device.run
    return sealed(head, bytes(body))


def bombard(method, count, seed, **options):
    """Hostile frames at several rounds of one run."""
    rng, world = np.random.default_rng([99, seed]), World(method, **options)
    stops = (2, 3, 4, 6) if method == "e-dcp" else (2, 4, 6, 9)  # of 7 rounds, and of more
    refused = 0
    for stop in stops:
        world.mid_run(stop)
        tape, device = world.tape[-400:], world.target
        before, count_before = state(device), refusals(device)
        for _ in range(count // len(stops)):
            data = mutated(rng, tape, device)
            sender = int(rng.choice([LEFT, RIGHT, LEFT, RIGHT, LEFT, RIGHT, MIDDLE, 3, -1]))
            if rng.random() < 0.5 and len(data) >= frames.EMPTY_FRAME_SIZE:
                sender = min(data[14 if data[:4] == frames.MAGIC else 10], 3)
            if means_something(device, data, sender):
                continue
            device.receive(data, sender, world.now)
            if state(device) != before:
                raise AssertionError(f"{data.hex()} from {sender} changed {before} to {state(device)}")
        refused += refusals(device) - count_before
        device.outbox()
    assert refused > count // 3
    world.ends_well()


METHODS = [("e-dcp", {}), ("q-dcp", {"rounds": 20}), ("h-dcp", {"rounds": 20})]


@pytest.mark.parametrize(("method", "options"), METHODS, ids=str)
def test_hostile_frames_change_nothing(method, options):
    bombard(method, 20_000 // 3 + 1, 0, **options)


@pytest.mark.slow
@pytest.mark.parametrize(("method", "options"), METHODS, ids=str)
def test_many_hostile_frames_change_nothing(method, options):
    bombard(method, 100_000 // 3 + 1, 1, **options)
