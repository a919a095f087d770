import contextlib
import struct
import zlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from conformesh.peer import frames
from conformesh.peer.frames import (
    CHECK,
    EMPTY_FRAME_SIZE,
    FRAME_KINDS,
    MARK,
    OPENING,
    QUESTIONS,
    RUN,
    WIRE_TYPES,
    WIRE_VERSION,
    Frame,
    FrameError,
    decode_frame,
    encode_frame,
    pack_array,
    pack_words,
    unpack_array,
    unpack_question,
    unpack_words,
)

MANY = settings(max_examples=max(500, settings.default.max_examples))  # 2000 by the nightly profile
FIELDS = ("kind", "run", "sender", "round", "flags", "body", "quiet")
some_frames = st.builds(
    Frame,
    kind=st.sampled_from(list(FRAME_KINDS)),
    run=st.integers(0, 2**64 - 1),
    sender=st.integers(0, 2**32 - 1),
    round=st.integers(0, 2**32 - 1),
    flags=st.integers(0, frames.WANT | frames.SILENT),
    body=st.binary(max_size=60),
)
some_arrays = st.sampled_from(WIRE_TYPES).flatmap(
    lambda name: hnp.arrays(np.dtype(name), hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4))
)
EXAMPLE = Frame(2, 0x0123456789ABCDEF, 3, 7, 1, pack_array("sum", np.arange(3.0)))


def fields(frame):
    return tuple(getattr(frame, name) for name in FIELDS)


def made(first=MARK, what=2, numbers=b"\2\3", body=b"", tail=b""):
    """Bytes with a right checksum, whatever else is wrong."""
    said = first + bytes([what]) + RUN.pack(1) + numbers + body
    return said + CHECK.pack(zlib.crc32(said)) + tail


def size_of(frame):
    """Bytes of a frame, counted by hand."""
    numbers = sum(next(size for size in range(1, 6) if x < 128**size) for x in (frame.sender, frame.round))
    quiet = next(size for size in range(4) if frame.quiet < 128**size)
    return (5 if frame.kind == frames.HELLO else 1) + 1 + 8 + numbers + quiet + len(frame.body) + 4


@given(some_frames, st.integers(0, frames.MOST_QUIET))
def test_a_frame_comes_back(frame, quiet):
    frame = frame._replace(quiet=quiet if frame.kind == frames.DATA else 0)
    data = encode_frame(frame)
    assert len(data) == size_of(frame)
    assert fields(decode_frame(data)) == fields(frame)
    assert (frame.wants, frame.silent) == (bool(frame.flags & 1), bool(frame.flags & 2))


@given(st.sampled_from([*QUESTIONS]), some_arrays)
def test_the_numbers_of_an_array_come_back_with_their_bits_and_type(question, values):
    body = pack_array(question, values)
    found = unpack_array(body)
    assert unpack_question(body) == question
    assert (found.dtype, found.shape) == (values.dtype, (values.size,))
    assert found.tobytes() == values.tobytes()
    assert found.flags.writeable
    assert body == frames.array_head(question, values.dtype, values.shape) + values.tobytes()


@pytest.mark.parametrize("name", WIRE_TYPES)
@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 0), (2, 3), (2, 1, 3)])
def test_every_type_and_shape(name, shape):
    values = np.arange(np.prod(shape, dtype=int)).reshape(shape).astype(name)
    for given_values in (values, values.astype(values.dtype.newbyteorder(">")), np.asfortranarray(values)):
        if given_values.shape != shape:
            continue  # asfortranarray makes a row of a single number
        body = pack_array("max", given_values)
        found = unpack_array(body)
        assert (len(body), found.dtype) == (4 + values.nbytes, values.dtype)
        assert np.array_equal(found, values.ravel())


def test_arrays_of_as_many_numbers_in_another_shape_begin_otherwise():
    shapes = [(), (1,), (1, 1), (1, 1, 1), (6,), (1, 6), (6, 1), (2, 3), (3, 2), (1, 2, 3), (0,), (0, 2), (2, 0)]
    heads = {frames.array_head("sum", np.dtype(np.int64), shape) for shape in shapes}
    assert len(heads) == len(shapes)
    assert {len(head) for head in heads} == {4}


@pytest.mark.parametrize("values", [np.array(["a"]), np.array([1j]), np.array([None]), np.zeros(2, "M8[s]")])
def test_only_numbers_travel(values):
    with pytest.raises(TypeError):
        pack_array("sum", values)


def test_the_layout_is_as_written():
    data = encode_frame(EXAMPLE)
    assert data[:2] == bytes([0xC5, 2 + 8])
    assert struct.unpack("<Q", data[2:10]) == (0x0123456789ABCDEF,)
    assert data[10:12] == bytes([3, 7])
    assert data[12:14] == bytes([1, 3])
    assert struct.unpack("<H", data[14:16]) == (zlib.crc32(bytes([3, 0, 0, 0])) % 65536,)
    assert data[16:-4] == np.arange(3.0).astype("<f8").tobytes()
    assert struct.unpack("<I", data[-4:]) == (zlib.crc32(data[:-4]),)
    assert encode_frame(Frame(2, 0, 0, 0, 2))[:2] == bytes([0xC5, 2 + 16])
    assert encode_frame(Frame(2, 0, 3, 7, 2, b"", 300))[1:-4] == bytes([2 + 16 + 32, *[0] * 8, 3, 7, 0xAC, 2])
    assert len(encode_frame(Frame(2, 2**64 - 1, 127, 127))) == EMPTY_FRAME_SIZE == 16


@pytest.mark.parametrize(
    ("number", "written"),
    [(0, "00"), (127, "7f"), (128, "8001"), (300, "ac02"), (2**14, "808001"), (2**32 - 1, "ffffffff0f")],
)
def test_rows_and_rounds_take_as_few_bytes_as_hold_them(number, written):
    data = encode_frame(EXAMPLE._replace(sender=number, round=number))
    assert data[10:].startswith(2 * bytes.fromhex(written) + EXAMPLE.body)
    assert decode_frame(data) == EXAMPLE._replace(sender=number, round=number)


@pytest.mark.parametrize("number", [-1, 2**32])
def test_rows_and_rounds_that_no_frame_holds_are_not_sent(number):
    with pytest.raises(FrameError, match=f"from 0 to 4294967295, got {number}"):
        encode_frame(EXAMPLE._replace(round=number))


def test_a_hello_begins_as_it_always_has():
    """Devices of versions 1 and 2 read magic, version and 32 bytes at least before they refuse it by its version."""
    hello = encode_frame(Frame(frames.HELLO, 7, 1, 0, 1, pack_words({"agreement": {}, "run": 1, "lost": "0"})))
    magic, version = struct.unpack_from("<4sB", hello)
    assert (magic, version) == (b"cfmh", WIRE_VERSION)
    assert len(hello) >= 32
    assert decode_frame(hello).kind == frames.HELLO


def test_every_truncation_is_refused():
    data = encode_frame(EXAMPLE)
    for cut in range(len(data)):
        with pytest.raises(FrameError):
            decode_frame(data[:cut])


def test_every_changed_byte_is_refused():
    data = encode_frame(EXAMPLE)
    for at in range(len(data)):
        for value in set(range(256)) - {data[at]}:
            changed = data[:at] + bytes([value]) + data[at + 1 :]
            with pytest.raises(FrameError):
                decode_frame(changed)


@given(some_frames, st.binary(min_size=1, max_size=40))
def test_bytes_behind_a_frame_are_refused(frame, tail):
    with pytest.raises(FrameError):
        decode_frame(encode_frame(frame) + tail)


@pytest.mark.parametrize(
    "frame", [EXAMPLE._replace(flags=0), EXAMPLE._replace(flags=frames.SILENT, run=0, round=0, quiet=9)]
)
def test_plain_data_can_wait(frame):
    assert frames.frame_can_wait(encode_frame(frame))
    assert frames.frame_can_wait(encode_frame(frame)[: EMPTY_FRAME_SIZE + 1])


@pytest.mark.parametrize(
    "changes",
    [{"flags": frames.WANT}, {"flags": frames.WANT | frames.SILENT}, {"body": b""}]
    + [{"kind": kind} for kind in FRAME_KINDS if kind != frames.DATA],
)
def test_what_asks_for_something_or_ends_something_cannot_wait(changes):
    """A device must be woken for it at once, though it may wait for the other neighbours' data."""
    assert not frames.frame_can_wait(encode_frame(EXAMPLE._replace(flags=0)._replace(**changes)))


def test_bytes_that_are_no_whole_frame_of_this_version_cannot_wait():
    data = encode_frame(EXAMPLE._replace(flags=0))
    assert not [cut for cut in range(EMPTY_FRAME_SIZE + 1) if frames.frame_can_wait(data[:cut])]
    assert not frames.frame_can_wait(bytes([data[0] + 1]) + data[1:])
    assert not frames.frame_can_wait(OPENING + data[1:])


def test_too_much_is_refused_on_both_sides(monkeypatch):
    data = encode_frame(EXAMPLE)
    monkeypatch.setattr(frames, "LARGEST_FRAME_BODY", len(EXAMPLE.body))
    assert decode_frame(encode_frame(EXAMPLE)) == EXAMPLE
    monkeypatch.setattr(frames, "LARGEST_FRAME_BODY", len(EXAMPLE.body) - 1)
    with pytest.raises(FrameError, match="fewer"):
        encode_frame(EXAMPLE)
    with pytest.raises(FrameError, match=f"may have {len(EXAMPLE.body) - 1} bytes, got {len(EXAMPLE.body)}"):
        decode_frame(data)


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"first": b""}, "no frame: they begin with 02010000"),
        ({"first": b"cfmi\3"}, "no frame: they begin with 63666d69"),
        ({"first": b"\xd3"}, "no frame"),
        ({"first": b"cfmh\0"}, "version 0"),
        ({"first": b"cfmh\2"}, "version 2, this device speaks 5; update the older one"),
        ({"first": b"cfmh\6"}, "version 6, this device speaks 5; update the older one"),
        ({"first": b"\xc2"}, "version 2, this device speaks 5; update the older one"),
        ({"first": b"\xc6"}, "version 6, this device speaks 5; update the older one"),
        ({"first": b"cfmh\5"}, "a data frame that begins like a hello"),
        ({"what": 1}, "a hello frame that begins like another"),
        ({"what": 0}, "kind of frame 0"),
        ({"what": 2 + 64}, "unknown flags 8"),
        ({"what": 2 + 128 + 8}, "unknown flags 16"),
        ({"what": 2 + 32, "numbers": b"\2\3\0"}, "a data frame that announces 0 quiet rounds"),
        ({"what": 2 + 32, "numbers": b"\2\3\x80\x80\4"}, "a data frame that announces 65536 quiet rounds"),
        ({"what": 2 + 32, "numbers": b"\2\3"}, "ends inside a number"),
        ({"what": 2 + 32, "numbers": b"\2\3\x85\0"}, "more bytes than it needs"),
        ({"what": 4 + 32, "numbers": b"\2\3\5"}, "a finished frame that announces 5 quiet rounds"),
        ({"tail": b"x"}, "checksum"),
        ({"numbers": b"\2"}, "at least 16 bytes, got 15"),
        ({"numbers": b"\2\x83"}, "ends inside a number"),
        ({"numbers": b"\x82\x83"}, "ends inside a number"),
        ({"numbers": b"\x80\0\1"}, "more bytes than it needs"),
        ({"numbers": b"\1\x81\x80\0"}, "more bytes than it needs"),
        ({"numbers": b"\1\xff\xff\xff\xff\x10"}, "beyond 4294967295"),
        ({"numbers": b"\x80\x80\x80\x80\x80\1\1"}, "more than 5 bytes"),
        ({"numbers": b"\1" + 1000 * b"\xff"}, "more than 5 bytes"),
    ],
)
def test_what_is_wrong_with_a_header_is_said(wrong, words):
    assert fields(decode_frame(made())) == (2, 1, 2, 3, 0, b"", 0)
    with pytest.raises(FrameError, match=words):
        decode_frame(made(**wrong))


@pytest.mark.parametrize("what", range(256))
@pytest.mark.parametrize("first", [MARK, OPENING])
def test_only_known_kinds_and_flags_are_read(first, what):
    """Both beginnings with every second byte: what is read says the same when it is written again."""
    data = made(first=first, what=what, numbers=b"\2\x83\1\5", body=b"{}")
    known = (what & 7 == 1) if first == OPENING else (what & 7 not in (0, 1))
    known &= not what & 32 or what & 7 == 2
    if known and what >> 3 <= frames.FLAGS:
        assert encode_frame(decode_frame(data)) == data
        return
    with pytest.raises(FrameError):
        decode_frame(data)


@MANY
@given(st.sampled_from([MARK, OPENING]), st.integers(0, 31), st.binary(max_size=24))
def test_there_is_one_way_to_write_a_frame(first, what, rest):
    data = made(first=first, what=what, numbers=rest)
    try:
        frame = decode_frame(data)
    except FrameError:
        return
    assert encode_frame(frame) == data


@MANY
@given(st.binary(max_size=80), st.booleans())
def test_random_bytes_raise_nothing_else(data, disguised):
    for read in (decode_frame, unpack_question, unpack_array, unpack_words):
        with contextlib.suppress(FrameError):
            read(made(body=data) if disguised and read is decode_frame else data)


@MANY
@given(st.binary(min_size=4, max_size=4), st.binary(max_size=32))
def test_random_arrays_raise_nothing_else(head, rest):
    try:
        values = unpack_array(bytes([head[0] % 7, head[1] % 14]) + head[2:] + rest)
    except FrameError:
        return
    assert values.tobytes() == rest


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"", "at least 4 bytes, got 0"),
        (bytes([1, 3, 1]), "at least 4 bytes, got 3"),
        (bytes([1, 0, 0, 0]) + bytes(8), "unknown type 0"),
        (bytes([1, 13, 0, 0]) + bytes(8), "unknown type 13"),
        (bytes([1, 255, 0, 0]) + bytes(8), "unknown type 255"),
        (bytes([1, 3, 0, 0]) + bytes(7), "float64 ends inside a number, after 11 bytes"),
        (bytes([1, 3, 0, 0]) + bytes(9), "float64 ends inside a number, after 13 bytes"),
        (bytes([1, 1, 0, 0]) + bytes(1), "float16 ends inside a number"),
    ],
)
def test_an_array_that_lies_about_itself_is_refused(body, words):
    with pytest.raises(FrameError, match=words):
        unpack_array(body)


@pytest.mark.parametrize(("body", "first"), [(b"", "nothing"), (b"\0", "00"), (b"\6abc", "06"), (b"\xff", "ff")])
def test_what_is_no_question_is_refused(body, first):
    with pytest.raises(FrameError, match=f"begins with {first}, which is no question"):
        unpack_question(body)


def test_every_question_is_told_by_its_first_byte():
    found = {code: unpack_question(bytes([code]) + b"anything") for code in (1, 2, 3, 4, 5)}
    assert found == {1: "sum", 2: "max", 3: "min", 4: "each", 5: "tell"}


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"1", b"null", b"\xff\xfe", b"[" * 100_000, b'{"a": 1}x'])
def test_words_that_are_no_object_are_refused(body):
    with pytest.raises(FrameError):
        unpack_words(body)


def test_words_come_back_and_do_not_depend_on_their_order():
    words = {"b": [1, 2], "a": "ä"}
    assert unpack_words(pack_words(words)) == words
    assert pack_words(words) == pack_words(dict(reversed(words.items()))) == b'{"a":"\\u00e4","b":[1,2]}'


def test_a_frame_reads_as_a_line():
    assert str(Frame(frames.DATA, 0xAB, 3, 7)) == "data of row 3, run 00000000000000ab, round 7"
    assert str(Frame(9, 1, 0)) == "9 of row 0, run 0000000000000001, round 0"
