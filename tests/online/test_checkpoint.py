"""Runs that are stopped, at a block or within one, go on to the same bits; files of other runs are refused."""

import numpy as np
import pytest

from conformesh import Network
from conformesh.online import LEARNERS, PID, Smoothing, checkpoint, online
from conformesh.online import simulation as simulating

DEVICES, STEPS, BLOCK = 5, 90, 16
RING = Network.cycle(DEVICES)


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    monkeypatch.setattr(simulating, "_BLOCK_STEPS", BLOCK)


@pytest.fixture
def each_block_saved(monkeypatch):
    monkeypatch.setattr(checkpoint, "SAVE_INTERVAL", 0.0)
    monkeypatch.setattr(checkpoint, "SAVE_SHARE", 0)


def scores():
    table = np.random.default_rng(5).random((DEVICES, STEPS))
    table[2, 7:11] = np.nan
    return table


def coming_and_going():
    present = np.ones((DEVICES, STEPS), dtype=bool)
    present[1, :20] = present[3, 40:60] = False
    return present


WORLDS = {
    "recommended, faults": {"faults": {"loss": 0.3, "activation": 0.8, "seed": 4}},
    "counted, late labels": {
        "learner": "tracker",
        "coupling": "counted",
        "delays": np.random.default_rng(6).integers(-1, 30, (DEVICES, STEPS)),
        "present": coming_and_going(),
    },
    "mixed, coming and going": {"learner": "aci", "coupling": "mixed", "local": 0.01, "present": coming_and_going()},
    "scorecaster": {"learner": PID(scorecaster=Smoothing()), "coupling": "alone", "largest": 1.0},
    **{name: {"learner": name, "coupling": "alone", "delays": 3} for name in LEARNERS},
}


class Stop:
    """Counts steps, and stops after some."""

    def __init__(self, after, how=KeyboardInterrupt):
        self.after, self.how, self.seen = after, how, []

    def __call__(self, done):
        self.seen.append(done)
        if done >= self.after:
            raise self.how


def assert_same_bits(one, other):
    for name in ("scores", "thresholds", "misses"):
        np.testing.assert_array_equal(getattr(one, name), getattr(other, name))
    for name in ("clock", "late", "unheard"):
        np.testing.assert_array_equal(getattr(one.trail, name), getattr(other.trail, name))
    assert one.trail.joined == other.trail.joined
    for after in (20, STEPS):
        assert one.account(after=after) == other.account(after=after)


@pytest.mark.parametrize("world", sorted(WORLDS))
def test_an_interrupted_run_goes_on_to_the_same_bits(world, tmp_path):
    """Interrupted after the first, the third and the last but one block, each time in what went on from before."""
    how, file = WORLDS[world], tmp_path / "c"
    straight = online(scores(), RING, **how)
    for blocks in (1, 3, 5):
        with pytest.raises(KeyboardInterrupt):
            online(scores(), RING, observer=Stop(blocks * BLOCK), checkpoint=file, **how)
    watch = Stop(after=STEPS + 1)
    assert_same_bits(online(scores(), RING, observer=watch, checkpoint=file, **how), straight)
    assert watch.seen == [80, STEPS]
    assert_same_bits(online(scores(), RING, observer=watch, checkpoint=file, **how), straight)
    assert watch.seen == [80, STEPS, STEPS], "a finished run is there at once"


@pytest.mark.parametrize("at", [3, 16, 41, 42, 89])
def test_an_interruption_within_a_block(at, tmp_path, monkeypatch):
    """What the block has written down so far is not kept; who joined in it has not joined."""
    how, file = WORLDS["mixed, coming and going"], tmp_path / "c"
    straight = online(scores(), RING, **how)
    share, calls = simulating.Rule.share, iter(range(STEPS))

    def stopping(*asked):
        if next(calls) == at:
            raise KeyboardInterrupt
        return share(*asked)

    with monkeypatch.context() as patched:
        patched.setattr(simulating.Rule, "share", stopping)
        with pytest.raises(KeyboardInterrupt):
            online(scores(), RING, checkpoint=file, **how)
    assert file.exists() == (at >= BLOCK), "before the first block there is nothing to keep"
    assert_same_bits(online(scores(), RING, checkpoint=file, **how), straight)


@pytest.mark.usefixtures("each_block_saved")
def test_a_run_that_dies_goes_on_from_the_last_save(tmp_path):
    """Who is killed saves nothing more: what counts is the file of the last time."""
    file, watch = tmp_path / "c", Stop(after=STEPS + 1)
    with pytest.raises(RuntimeError):
        online(scores(), RING, observer=Stop(48, RuntimeError), checkpoint=file)
    assert_same_bits(online(scores(), RING, observer=watch, checkpoint=file), online(scores(), RING))
    assert watch.seen[0] == 48


def test_files_are_not_written_all_the_time(tmp_path, monkeypatch):
    written = []
    monkeypatch.setattr(checkpoint, "write_file", lambda path, content: written.append(path))
    online(scores(), RING, checkpoint=tmp_path / "c")
    assert len(written) == 1, "a run of less than some seconds is saved at its end"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"streams": scores() / 2}, r"with streams 5 devices, 90 steps \(.{12}\), now it is 5 devices, 90 steps \("),
        ({"network": Network.chain(DEVICES)}, "with network cycle.*, now it is chain"),
        ({"alpha": 0.2}, "with rule .*alpha=0.1.*, now it is .*alpha=0.2"),
        ({"learner": "tracker"}, "with rule .*Decaying.*, now it is .*QuantileTracker"),
        ({"coupling": "alone"}, "with rule .*'mixed'.*, now it is .*'alone'"),
        ({"faults": {"loss": 0.1}}, r"with faults none, now it is Faults\(loss=0.1"),
        ({"delays": 2}, "with labels .*, now it is"),
        ({"largest": 3.0}, "with largest inf, now it is 3.0"),
    ],
)
def test_a_checkpoint_of_another_run_is_refused(change, words, tmp_path):
    asked = {"streams": scores(), "network": RING, "checkpoint": tmp_path / "c"}
    online(**asked)
    with pytest.raises(ValueError, match=rf"c: is a checkpoint of a run {words}.*--no-resume"):
        online(**asked | change)
    online(**asked | change, resume=False)
    online(**asked | change)


def test_files_that_are_no_checkpoint(tmp_path):
    file = tmp_path / "c"
    online(scores(), RING, checkpoint=file)
    whole = file.read_bytes()
    damaged = bytearray(whole)
    damaged[len(whole) // 3 : len(whole) // 2] = bytes(len(whole) // 2 - len(whole) // 3)
    for content in (whole[:-100], whole[: len(whole) // 2], bytes(damaged), b"", b"no checkpoint"):
        file.write_bytes(content)
        with pytest.raises(ValueError, match=r"c: cannot be read as a checkpoint: .*--no-resume"):
            online(scores(), RING, checkpoint=file)
    with file.open("wb") as other:
        np.savez(other, a=np.zeros(3))
    with pytest.raises(ValueError, match="c: cannot be read as a checkpoint"):
        online(scores(), RING, checkpoint=file)


class Counting:
    """A scorecaster whose memory is no array."""

    def begin(self, devices):
        return 0

    def cast(self, memory):
        return np.zeros(1)

    def learn(self, memory, score, has_label):
        return memory + 1


def test_a_memory_that_cannot_be_kept_is_refused(tmp_path):
    """At once, and not when hours of work are to be saved."""
    learner, watch = PID(scorecaster=Counting()), Stop(after=STEPS + 1)
    asked = {"learner": learner, "coupling": "alone", "observer": watch}
    with pytest.raises(TypeError, match="a checkpoint keeps states of arrays, got int; run without a checkpoint"):
        online(scores()[:1], Network.complete(1), checkpoint=tmp_path / "c", **asked)
    assert not watch.seen
    online(scores()[:1], Network.complete(1), **asked)
    assert watch.seen[-1] == STEPS
