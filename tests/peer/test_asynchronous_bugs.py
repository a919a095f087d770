"""Every safeguard of a device without rounds, switched off on purpose: some schedule must notice."""

import math
from dataclasses import replace

import numpy as np
import pytest

from conformesh import Network
from conformesh.peer.async_device import AsyncDevice
from conformesh.peer.entries import SLOTS, entry_key
from conformesh.peer.entry_exchange import EntryExchange
from conformesh.peer.json_bodies import Hello
from conformesh.peer.loopback import ChangingLinks, LinkFaults, Pause, run_loopback
from conformesh.peer.timers import NeighbourTimer
from conformesh.protocols import e_dcp_entries
from tests.peer.devices import in_device
from tests.peer.heard import Judge, drawn, starter, storm
from tests.peer.test_asynchronous import GRAPHS, with_other_scores

SEEDS = range(6)


class _Waits(AsyncDevice):
    """A device with another idea of when to say something again."""

    waiting = NeighbourTimer

    def __init__(self, *args, **how):
        super().__init__(*args, **how)
        retry, linger = self.setup.settings.retry, self.setup.settings.linger
        self.exchange.timers = {j: self.waiting(retry, linger) for j in self.neighbours}


class TakesSentForKnown(_Waits):
    """What was sent counts as known there: a lost frame is never repeated."""

    class waiting(NeighbourTimer):  # noqa: N801 - a part
        def note_sent(self, keys, now):
            super().note_sent(keys, now)
            self.has |= sum(1 << key for key in keys)
            return 0

        def note_received(self, keys, now):
            super().note_received(keys | self.has, now)


class NeverForgetsWhatOthersHad(_Waits):
    """What a neighbour once had counts as known there for ever, also after it has lost a part of its journal."""

    class waiting(NeighbourTimer):  # noqa: N801
        def note_received(self, keys, now):
            super().note_received(keys | self.has, now)


class NeverRepeats(_Waits):
    class waiting(NeighbourTimer):  # noqa: N801
        def _again(self, when):
            return math.inf


@in_device("exchange", AsyncDevice)
class DropsWhatComesEarly(EntryExchange):
    """A second entry before the first of the same device is thrown away, and not asked for again."""

    def _take_entry(self, key, data, sender):
        if key % SLOTS == 1 and not self.store.keys >> key - 1 & 1:
            self.store.unusable |= 1 << key
            return
        super()._take_entry(key, data, sender)


class IsDoneTooEarly(AsyncDevice):
    """The first entries of all are taken for everything."""

    def _evaluate(self):
        super()._evaluate()
        if self._has_stage or len(self.survivors) == self.network.devices:
            self._final, self.phase = True, "finished"


class KeepsNoHeading(AsyncDevice):
    """A journal is taken for that of these scores, whatever it was written with."""

    def _heading(self):
        return super()._heading()._replace(scores="")


@in_device("exchange", AsyncDevice)
class ComparesNoWords(EntryExchange):
    """The same entries are taken for the same words."""

    def _clash(self, sender):
        pass


class JoinsNoLaterRun(AsyncDevice):
    def _take_hello(self, frame):
        if Hello.of(frame.body, self.network.devices).run <= self.number:
            super()._take_hello(frame)


class ClaimsWhatItLacks(AsyncDevice):
    """The first entry of device 0 is said to be known, though it was not heard."""

    def _recall(self):
        super()._recall()
        self.store.unusable |= 1 << entry_key(0, 0) if self.row else 0


def false_or_hung(device, **how):
    """Return whether any of the storms ends in a false certificate, not at all, or in a run more than is needed."""
    for seed in SEEDS:
        network = GRAPHS[seed % len(GRAPHS)]
        scores = drawn(network, seed, low=10, high=40)
        try:
            start = starter(network, scores, device=device, **how)
            played = storm(network, start, seed, Judge(network, scores), limit=40.0)
        except (AssertionError, KeyError, ValueError):
            return True
        if not all(one.final and one.number == 1 for one in played.devices):
            return True
    return False


def test_the_storms_find_nothing_in_the_device_itself():
    assert not false_or_hung(AsyncDevice)
    assert not false_or_hung(_Waits)


@pytest.mark.parametrize(
    "bug", [TakesSentForKnown, NeverRepeats, DropsWhatComesEarly, IsDoneTooEarly, ClaimsWhatItLacks]
)
def test_storms_notice(bug):
    assert false_or_hung(bug)


def forgetful(device):
    """Device 1 of a chain loses all of its journal but the heading, again and again, on links that lose half."""
    network = Network.chain(3)
    scores = drawn(network, 1, low=5)
    hung = 0
    for seed in range(6):
        pauses = tuple(Pause(1, 0.3 + 0.3 * i, 0.4 + 0.3 * i, crash=True, tear=10_000) for i in range(3))
        faults = LinkFaults(loss=0.5, pauses=pauses, late={0: 0.5})
        played = run_loopback(
            network, starter(network, scores, device=device), faults, np.random.default_rng(seed), limit=30.0
        )
        hung += not all(one.final for one in played.devices)
    return hung


def test_a_torn_journal_notices():
    assert forgetful(AsyncDevice) == 0
    assert forgetful(NeverForgetsWhatOthersHad) > 0


def mixed(device, keeps_journal):
    """Return in how many schedules a device that starts again with other scores leaves others with the old ones."""
    wrong = 0
    for seed in range(5):
        network = GRAPHS[seed % len(GRAPHS)]
        scores = drawn(network, seed, low=6)
        faults = LinkFaults(loss=0.2, pauses=(Pause(0, 0.1 * (1 + seed), 0.1 * (1 + seed) + 0.4, crash=True),))
        devices = with_other_scores(
            network, scores, scores[0] - 1.5, faults, seed, device=device, keeps_journal=keeps_journal
        )
        right = Judge(network, [scores[0] - 1.5, *scores[1:]]).right
        wrong += any(one.result is None or one.result.thresholds[0, 0, 0] != right for one in devices)
    return wrong


@pytest.mark.parametrize(
    ("bug", "keeps_journal"), [(KeepsNoHeading, True), (ComparesNoWords, False), (JoinsNoLaterRun, True)]
)
def test_other_scores_notice(bug, keeps_journal):
    assert mixed(AsyncDevice, keeps_journal) == 0
    assert mixed(bug, keeps_journal) > 0


# --- mistakes in what is certain --------------------------------------------------------------------------------------


def counts_too_much(monkeypatch):
    """A score known to be the i-th is taken for a proof of all scores up to the next known one."""
    known = e_dcp_entries._device_sketch

    def wrong(values, ranks, size):
        found = known(values, ranks, size)
        return found._replace(least=found.most)

    monkeypatch.setattr(e_dcp_entries, "_device_sketch", wrong)


def asks_for_one_less(monkeypatch):
    rank = e_dcp_entries._CertainCounts.rank
    monkeypatch.setattr(e_dcp_entries._CertainCounts, "rank", lambda self, t, level: rank(self, t, level) - 1)


def names_nobody(monkeypatch):
    """What is about the heard passes for a promise about everybody."""
    outcome = e_dcp_entries._CertainCounts.outcome

    def wrong(self, here, heard=(), exact=False):
        return outcome(self, here, (), exact)

    monkeypatch.setattr(e_dcp_entries._CertainCounts, "outcome", wrong)


def forgets_who_is_missing(monkeypatch):
    """About everybody, with the rank that is asked of those who were heard."""
    about = e_dcp_entries._answers_about_all

    def wrong(block, alphas, known, heard):
        return about(replace(block, caps=0 * block.caps) if block.caps is not None else block, alphas, known, heard)

    monkeypatch.setattr(e_dcp_entries, "_answers_about_all", wrong)


def misses_one_below_the_window(monkeypatch):
    read = e_dcp_entries._read_window

    def wrong(entry, windows, trials):
        return [
            [inside._replace(below=max(inside.below - 1, 0)) for inside in row] for row in read(entry, windows, trials)
        ]

    monkeypatch.setattr(e_dcp_entries, "_read_window", wrong)


def window_that_begins_too_late(monkeypatch):
    possible = e_dcp_entries._CertainCounts._possible
    monkeypatch.setattr(e_dcp_entries._CertainCounts, "_possible", lambda self, t: possible(self, t) // 2)


@pytest.mark.parametrize(
    "mistake",
    [
        counts_too_much,
        asks_for_one_less,
        names_nobody,
        forgets_who_is_missing,
        misses_one_below_the_window,
        window_that_begins_too_late,
    ],
)
def test_certificates_notice(mistake, monkeypatch):
    mistake(monkeypatch)
    e_dcp_entries._SketchFormat.read.cache_clear()
    try:
        assert false_or_hung(AsyncDevice)
    finally:
        e_dcp_entries._SketchFormat.read.cache_clear()


def test_links_that_are_never_up_leave_everybody_with_a_true_certificate_about_itself():
    network = Network.cycle(4)
    scores = drawn(network, 8, low=12)
    judge = Judge(network, scores)
    faults = LinkFaults(links=ChangingLinks(1e-12, 1.0))
    played = run_loopback(network, starter(network, scores), faults, np.random.default_rng(0), limit=20.0, check=judge)
    assert [device.survivors for device in played.devices] == [(0,), (1,), (2,), (3,)]
