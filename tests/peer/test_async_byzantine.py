"""Signed entries without rounds: nobody speaks for another, and who signs two things is found out by everybody."""

import hashlib
import hmac

import numpy as np
import pytest

from conformesh import Network
from conformesh.peer import entry_store, frames
from conformesh.peer.async_device import AsyncDevice
from conformesh.peer.entries import (
    PROOF,
    SLOTS,
    attach_signature,
    entry_key,
    entry_key_set,
    pack_entries,
    split_signature,
)
from conformesh.peer.entry_exchange import MOST_CLASHES, EntryExchange
from conformesh.peer.entry_store import LONGEST_SIGNED
from conformesh.peer.frames import ENTRIES, HELLO, Frame
from conformesh.peer.journal import MemoryJournal
from conformesh.peer.json_bodies import Hello
from conformesh.peer.loopback import LinkFaults, run_loopback
from conformesh.peer.settings import Settings
from conformesh.protocols.histogram_reports import MOST_BINS, Report, encode_reports
from tests.peer.devices import in_device
from tests.peer.heard import drawn, starter


class Secret:
    """A seal for tests: every device has a secret of its own, which stands for its key."""

    def __init__(self, row):
        self.row = row

    @staticmethod
    def _of(row, data):
        return hmac.digest(f"secret of {row}".encode(), data, hashlib.sha256)

    def sign(self, data):
        return self._of(self.row, data)

    def genuine(self, owner, data, proof):
        return hmac.compare_digest(self._of(owner, data), proof)


@in_device("exchange", AsyncDevice)
class TwoFaced(EntryExchange):
    """Says other scores to neighbours with an odd row, signed as well."""

    def _due(self, timer):
        entries = super()._due(timer)
        j = next(row for row, one in self.timers.items() if one is timer)
        if j % 2 == 0:
            return entries
        own = entry_key(self._links.row, 0)
        return [(key, self._other(key) if key == own else data) for key, data in entries]

    def _other(self, key):
        text = split_signature(self.store.entries[key])[1]
        low = text[:-8] + np.float64(-9.0).tobytes() if len(text) > 8 else text + b"\0"
        return self.store.make_entry(key, low)


def robust(network, scores, kinds=None, byzantine=1):
    """Start devices of r-dcp, some of them of another kind."""
    options = {"options": {"byzantine": byzantine}, "method": "r-dcp", "caps": True, "settings": Settings(patience=8.0)}

    def start(k, journal):
        kind = (kinds or {}).get(k, AsyncDevice)
        return starter(network, scores, device=kind, seal=Secret(k), **options)(k, journal)

    return start


def honest_rank(scores, honest, threshold):
    """Return how many scores of the honest lie at or below a threshold, and how many coverage over them needs."""
    held = np.concatenate([scores[k] for k in honest])
    return int((held <= threshold).sum()), int(np.ceil(0.9 * len(held) - 1e-9)) + 1


@pytest.mark.parametrize("seed", range(4))
def test_honest_devices_end_with_a_threshold_that_bears_a_byzantine_device(seed):
    network = Network.complete(12)
    scores = drawn(network, seed, low=20, high=30)
    played = run_loopback(
        network, robust(network, scores), LinkFaults(loss=0.3), np.random.default_rng(seed), limit=60.0
    )
    for device in played.devices:
        outcome = device.result
        assert device.final
        assert outcome.certificates[0][0].byzantine == 1
        assert outcome.certificates[0][0].kind == "counted"
        for left_out in range(12):
            counted, needed = honest_rank(scores, [k for k in range(12) if k != left_out], outcome.thresholds[0, 0, 0])
            assert counted >= needed


@pytest.mark.parametrize("seed", range(4))
def test_who_signs_two_things_is_known_to_all_and_counts_as_not_heard(seed):
    network = Network.complete(12)
    scores = drawn(network, seed, low=20, high=30)
    played = run_loopback(
        network, robust(network, scores, {3: TwoFaced}), LinkFaults(loss=0.2), np.random.default_rng(seed), limit=60.0
    )
    honest = [k for k in range(12) if k != 3]
    for device in played.devices:
        if device.row == 3:
            continue
        assert device.byzantine == (3,)
        threshold = device.result.thresholds[0, 0, 0]
        counted, needed = honest_rank(scores, honest, threshold)
        assert counted >= needed
        assert 3 not in device.survivors


def one(row=0, method="r-dcp", **options):
    network = Network.complete(3)
    device = robust(network, drawn(network, 5, low=8), byzantine=0)(row, MemoryJournal())
    device.start(0.0)
    device.outbox()
    return device


def said(device, key, entry):
    body = pack_entries(3, 1 << key, 0, [(key, entry)])
    device.receive(frames.encode_frame(Frame(ENTRIES, device.run, 1, 0, 0, body)), 1, 1.0)


def test_an_entry_in_anothers_name_is_refused():
    device, key = one(), entry_key(2, 0)
    text = b"words"
    said(device, key, attach_signature(Secret(1).sign(device.store.signed_text(key, text)), text))
    assert device.counts.refused == {"an entry that its owner has not signed": 1}
    assert key not in device.store.entries


def test_an_entry_of_another_run_or_place_is_refused():
    """A signature is of one run and one slot: what was said elsewhere cannot be said again here."""
    device = one()
    text, key, other = b"words", entry_key(1, 0), entry_key(1, 1)
    said(device, other, attach_signature(Secret(1).sign(device.store.signed_text(key, text)), text))
    context = device.store.context
    device.store.context = device.greeting._replace(run=device.number + 1).context()
    old = device.store.signed_text(key, text)
    device.store.context = context
    said(device, key, attach_signature(Secret(1).sign(old), text))
    assert device.counts.refused == {"an entry that its owner has not signed": 2}


@pytest.mark.parametrize("proof", [b"", b"\7", b"\0", b"\0\3abc"])
def test_a_proof_that_proves_nothing_is_refused(proof):
    device = one()
    said(device, entry_key(2, PROOF), proof)
    assert device.byzantine == ()
    assert sum(device.counts.refused.values()) == 1


def test_two_times_the_same_words_prove_nothing_whatever_their_signatures():
    device = one()
    key, text = entry_key(2, 0), b"words"
    entry = attach_signature(Secret(2).sign(device.store.signed_text(key, text)), text)
    said(device, entry_key(2, PROOF), b"\0" + attach_signature(entry, entry))
    assert device.byzantine == ()
    assert device.counts.refused == {"a proof of two entries that are the same": 1}


def test_nobody_can_accuse_a_device_of_what_it_did_not_sign():
    device = one()
    key = entry_key(2, 0)
    pair = [attach_signature(Secret(1).sign(device.store.signed_text(key, text)), text) for text in (b"a", b"b")]
    said(device, entry_key(2, PROOF), b"\0" + attach_signature(*pair))
    assert device.byzantine == ()


def test_without_a_seal_a_method_that_needs_signatures_says_so():
    network = Network.complete(3)
    start = starter(network, drawn(network, 5, low=8), method="r-dcp", options={"byzantine": 0})
    device = start(0, MemoryJournal())
    device.start(0.0)
    assert "needs entries that are signed" in str(device.error)


def test_keys_of_all_slots():
    assert entry_key_set(3, [0, PROOF]) == sum(1 << entry_key(k, slot) for k in range(3) for slot in (0, PROOF))


def signed_by(device, key, text):
    return attach_signature(Secret(key // SLOTS).sign(device.store.signed_text(key, text)), text)


def test_the_largest_proof_fits_a_frame_and_larger_entries_are_refused():
    """A device that kept a proof of two entries of 9 MiB could not send it, and failed for the whole run."""
    network, key = Network.complete(4), entry_key(2, 1)
    device = robust(network, drawn(network, 5, low=20, high=30))(0, MemoryJournal())
    device.start(0.0)

    def sign(text):
        entry = signed_by(device, key, text)
        frame = Frame(ENTRIES, device.run, 1, 0, 0, pack_entries(4, 1 << key, 0, [(key, entry)]))
        device.receive(frames.encode_frame(frame), 1, 1.0)

    for letter in (b"a", b"b"):
        sign(letter * (9 << 20))
    assert (sum(device.counts.refused.values()), device.byzantine) == (2, ())
    room = LONGEST_SIGNED - len(signed_by(device, key, b""))
    for letter in (b"a", b"b"):
        sign(letter * room)
    assert device.byzantine == (2,)
    device.tick(5.0)
    device.outbox()
    known = device.store.keys & ~(1 << entry_key(2, PROOF))  # what neighbour 1 has then
    device.receive(frames.encode_frame(Frame(ENTRIES, device.run, 1, 0, 0, pack_entries(4, known, 0, []))), 1, 6.0)
    device.tick(9.0)
    assert any(len(data) > 2 * room for _, data in device.outbox())
    assert device.error is None


def test_a_proof_for_which_there_is_no_room_is_not_kept(monkeypatch):
    device, key = one(), entry_key(2, 1)
    said(device, key, signed_by(device, key, b"a" * 100))
    monkeypatch.setattr(entry_store, "MOST_KEPT", device.store.size + 200)
    said(device, key, signed_by(device, key, b"b" * 100))
    assert device.byzantine == ()
    assert "no room" in next(iter(device.counts.refused))


def test_an_entry_of_its_own_that_nobody_would_take_is_refused_in_words(monkeypatch):
    monkeypatch.setattr(entry_store, "LONGEST_SIGNED", 40)
    device = one()
    device.tick(5.0)
    assert device.phase == "failed"
    assert "accept at most 40; use fewer scores" in str(device.error)


def test_every_report_of_r_dcp_can_be_signed():
    places = np.arange(MOST_BINS)
    report = Report(2**62, 0.0, 1.0, MOST_BINS, places, np.full(MOST_BINS, 2**46), 2**46, 2.0)
    assert len(encode_reports([report])) < LONGEST_SIGNED // 4


def greeted(device, sender, run, now):
    hello = Hello(device.agreement, run, frozenset()).pack()
    device.receive(frames.encode_frame(Frame(HELLO, 0, sender, 0, 0, hello)), sender, now)


def claimed(device, sender, keys, now):
    device.receive(
        frames.encode_frame(Frame(ENTRIES, device.run, sender, 0, 0, pack_entries(3, keys, 0, []))), sender, now
    )


def test_a_device_that_forgot_one_run_doubts_the_next_one_too():
    """Neighbours may be one run apart, and it may have signed other scores in both runs."""
    device, own = one(), entry_key(0, 0)
    greeted(device, 1, 7, 0.1)
    claimed(device, 1, 1 << own, 0.2)
    assert (device.number, own in device.store.entries) == (8, False)
    for sender in (1, 2):
        claimed(device, sender, 0, 0.3)
    assert own in device.store.entries


def test_a_request_for_a_run_does_not_end_the_doubt():
    device = one()
    linger = device.setup.settings.linger
    device.recalibrate(0.9 * linger)
    device.tick(linger)
    assert (device.number, entry_key(0, 0) in device.store.entries) == (2, False)
    device.tick(2 * linger)
    assert entry_key(0, 0) in device.store.entries


def test_a_neighbour_that_always_claims_to_know_more_is_not_believed_for_ever():
    device = one()
    for step in range(3 * MOST_CLASHES):
        claimed(device, 1, 1 << entry_key(0, 0), 0.1 + 0.01 * step)
    assert device.number == 1 + MOST_CLASHES
    claimed(device, 2, 0, 0.9)
    assert entry_key(0, 0) in device.store.entries
