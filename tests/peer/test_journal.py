import os
import stat
from pathlib import Path

import pytest

from conformesh.peer.journal import RECORD, FileJournal, MemoryJournal, pack_record, whole_records

RECORDS = [b"one", b"", b"three" * 40, bytes(range(256))]


@pytest.fixture(params=["memory", "file", "durable"])
def journal(request, tmp_path):
    if request.param == "memory":
        yield MemoryJournal()
        return
    found = FileJournal(tmp_path / "journal", durable=request.param == "durable")
    yield found
    found.close()


def test_records_come_back_in_order(journal):
    assert journal.records() == []
    for at, record in enumerate(RECORDS, start=1):
        journal.append(record)
        assert journal.records() == RECORDS[:at]
    assert journal.records() == RECORDS


def test_a_new_run_forgets_the_old_one_and_goes_on(journal):
    journal.append(b"old")
    journal.begin(b"heading")
    assert journal.records() == [b"heading"]
    journal.append(b"new")
    assert journal.records() == [b"heading", b"new"]


def test_a_new_run_is_there_whole_or_not_at_all(tmp_path, monkeypatch):
    """At no moment a crash leaves a device without any memory: it would take part twice in a run."""
    journal = FileJournal(tmp_path / "journal")
    journal.begin(b"first")
    journal.append(b"round")
    monkeypatch.setattr(Path, "replace", lambda *_: (_ for _ in ()).throw(OSError("cut")))
    with pytest.raises(OSError, match="cannot write the file"):
        journal.begin(b"second")
    assert journal.records() == [b"first", b"round"]
    journal.close()


def test_a_power_cut_takes_nothing_that_was_synced():
    journal = MemoryJournal()
    journal.begin(b"heading")
    journal.append(b"one")
    journal.sync()
    journal.append(b"two")
    journal.tear(5)
    assert journal.records() == [b"heading", b"one"]
    journal.tear(10**6)
    assert journal.records() == [b"heading", b"one"]


def test_what_must_survive_a_power_cut_is_flushed(tmp_path, monkeypatch):
    journal, flushed = FileJournal(tmp_path / "journal"), []
    monkeypatch.setattr(os, "fsync", lambda handle: flushed.append(os.fstat(handle).st_size))
    journal.begin(b"heading")
    assert len(pack_record(b"heading")) in flushed
    journal.append(b"one")
    flushed.clear()
    journal.sync()
    assert flushed == [len(pack_record(b"heading") + pack_record(b"one"))]
    journal.close()


def whole_before(cut):
    """Return how many records are whole within some bytes."""
    ends, end = [], 0
    for record in RECORDS:
        end += RECORD.size + len(record)
        ends.append(end)
    return sum(e <= cut for e in ends)


DATA = b"".join(map(pack_record, RECORDS))


def test_a_tail_torn_anywhere_loses_only_that_record():
    for cut in range(len(DATA) + 1):
        assert [*whole_records(DATA[:cut])] == RECORDS[: whole_before(cut)]


@pytest.mark.parametrize("kind", ["memory", "file"])
def test_one_can_write_behind_a_torn_tail(kind, tmp_path):
    for cut in range(0, len(DATA) + 1, 1 if kind == "memory" else 7):
        if kind == "memory":
            journal = MemoryJournal()
            journal.data[:] = DATA[:cut]
        else:
            path = tmp_path / f"{cut}"
            path.write_bytes(DATA[:cut])
            journal = FileJournal(path)
        kept = RECORDS[: whole_before(cut)]
        assert journal.records() == kept
        journal.append(b"next")
        assert journal.records() == [*kept, b"next"]
        if kind == "file":
            journal.close()


def test_every_flipped_byte_ends_the_reading_there():
    for at in range(len(DATA)):
        data = bytearray(DATA)
        data[at] ^= 0x41
        kept = whole_before(at)  # records that end at or before the flipped byte
        assert [*whole_records(bytes(data))] == RECORDS[:kept]


def test_a_corrupted_middle_is_cut_off_in_the_file_too(tmp_path):
    path = tmp_path / "journal"
    data = bytearray(DATA)
    data[len(pack_record(RECORDS[0])) + len(pack_record(RECORDS[1])) + RECORD.size] ^= 1
    path.write_bytes(data)
    journal = FileJournal(path)
    assert journal.records() == RECORDS[:2]
    assert path.read_bytes() == b"".join(map(pack_record, RECORDS[:2]))
    journal.close()


def test_a_file_outlives_its_journal(tmp_path):
    first = FileJournal(tmp_path / "journal")
    first.append(b"kept")
    first.close()
    second = FileJournal(tmp_path / "journal")
    second.append(b"more")
    assert second.records() == [b"kept", b"more"]
    second.close()


@pytest.mark.skipif(os.name == "nt", reason="no such modes there")
def test_only_the_owner_can_read_it(tmp_path):
    journal = FileJournal(tmp_path / "journal")
    assert stat.S_IMODE((tmp_path / "journal").stat().st_mode) == 0o600
    journal.close()
