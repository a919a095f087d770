"""The node's log: words or JSON lines, and never a private key."""

import io
import json
import logging
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conformesh.mesh.node import logs

INSIDE = "MC4CAQAwBQYDK2VwBCIEIHR0dHR0dHR0dHR0dHR0dHR0dHR0dHR0dHR0dHR0dHR0"
PEM = f"-----BEGIN PRIVATE KEY-----\n{INSIDE}\n-----END PRIVATE KEY-----\n"


@pytest.fixture
def log():
    """A function that sets the log up and returns the logger with its stream; afterwards all is as before."""
    logger = logging.getLogger(logs.LOGGER)
    before = [*logger.handlers], logger.level, logger.propagate

    def make(form="words", **options):
        stream = io.StringIO()
        return logs.set_up_log("device-07", form, stream=stream, **options), stream

    yield make
    logger.handlers[:], logger.propagate = before[0], before[2]
    logger.setLevel(before[1])


def test_words_have_time_device_and_round(log):
    logger, stream = log()
    logger.info("heard %d of %d neighbours", 2, 3, extra={"round": 12})
    logger.warning("two\nlines\x1b[31m")
    first, second = stream.getvalue().splitlines()
    assert re.fullmatch(r"\d\d:\d\d:\d\d device-07 round 12: heard 2 of 3 neighbours", first)
    assert re.fullmatch(r"\d\d:\d\d:\d\d device-07: warning: two lines\\x1b\[31m", second)


def test_json_has_a_line_for_each_record(log):
    logger, stream = log("json")
    logger.info("one\ntwo", extra={"run": 3, "round": 12, "neighbour": "b"})
    try:
        raise ValueError("bad")
    except ValueError:
        logger.exception("failed")
    first, second = map(json.loads, stream.getvalue().splitlines())
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", first.pop("time"))
    expected = {"level": "info", "device": "device-07", "message": "one\ntwo", "run": 3, "round": 12, "neighbour": "b"}
    assert first == expected
    assert second["level"] == "error"
    assert "ValueError: bad" in second["traceback"]


@pytest.fixture
def clock(monkeypatch):
    """The time, moved by hand."""
    now = [1000.0]
    monkeypatch.setattr(logging.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(logging.time, "time", lambda: now[0])
    monkeypatch.setattr(logging.time, "time_ns", lambda: int(now[0] * 1e9), raising=False)
    return now


def test_the_same_line_is_written_once_in_ten_seconds_with_a_count(log, clock):
    """A neighbour that repeats itself 32 times a second must not fill a disk."""
    words, in_words = log()
    for _ in range(640):
        words.info("refused", extra={"run": 1, "round": int(clock[0])})
        clock[0] += 1 / 32
    assert [line.split(": ")[1] for line in in_words.getvalue().splitlines()] == [
        "refused",
        "refused (319 more times)",
        "refused",
    ]
    clock[0] += 10
    logger, in_json = log("json")
    for text in (*["refused"] * 3, "something else"):
        logger.info(text)
    clock[0] += 10
    logger.info("the end")  # the count of a line that is not repeated any more comes with the next line
    said = [json.loads(line) for line in in_json.getvalue().splitlines()]
    assert [(one["message"], one.get("repeated")) for one in said] == [
        ("refused", None),
        ("something else", None),
        ("refused", 2),
        ("the end", None),
    ]


def test_lines_are_written_after_the_clock_was_set_back(log, clock, monkeypatch):
    logger, stream = log()
    monkeypatch.setattr(logging.time, "time", lambda: clock[0] + 3600)
    monkeypatch.setattr(logging.time, "time_ns", lambda: int((clock[0] + 3600) * 1e9), raising=False)
    logger.info("again")
    monkeypatch.setattr(logging.time, "time", lambda: clock[0])
    monkeypatch.setattr(logging.time, "time_ns", lambda: int(clock[0] * 1e9), raising=False)
    for _ in range(5):
        clock[0] += 60
        logger.info("again")
    assert stream.getvalue().count("again") == 6


def test_what_differs_is_written_at_once(log, clock):
    """Another text, level or run is another line; progress is for programs, which count on every record."""
    logger, stream = log("json", level=logging.DEBUG)
    for run in (1, 2):
        for text in ("one", "two"):
            logger.info(text, extra={"run": run})
            logger.warning(text, extra={"run": run})
    for _ in range(3):
        logger.debug("progress")
    assert len(stream.getvalue().splitlines()) == 8 + 3


def test_only_so_many_lines_are_remembered(log, clock):
    logger, stream = log()
    for number in range(3 * logs.MOST_LINES):
        logger.info("line %d", number)
        logger.info("line %d", number)
    (handler,) = (one for one in logger.handlers if isinstance(one, logs._NodeHandler))
    assert len(handler._recent_lines) <= logs.MOST_LINES
    logs.set_up_log("device-07", stream=io.StringIO())  # which closes the other
    assert stream.getvalue().count("(1 more times)") == 3 * logs.MOST_LINES


def test_children_are_heard_and_the_level_holds(log):
    _, stream = log(level=logging.WARNING)
    logging.getLogger("conformesh.node.links").info("quiet")
    logging.getLogger("conformesh.node.links").warning("loud")
    assert len(stream.getvalue().splitlines()) == 1


def test_setting_up_twice_writes_once(log):
    _, old = log()
    logger, new = log()
    logger.info("hello")
    assert old.getvalue() == ""
    assert len(new.getvalue().splitlines()) == 1


def test_an_unknown_form_is_refused():
    with pytest.raises(ValueError, match="words or json, got 'xml'"):
        logs.set_up_log("a", "xml")


@pytest.mark.parametrize("form", ["words", "json"])
@pytest.mark.parametrize("kind", ["", "RSA ", "EC ", "ENCRYPTED ", "OPENSSH "])
def test_no_private_key_is_written(log, form, kind):
    logger, stream = log(form)
    pem = PEM.replace("PRIVATE", f"{kind}PRIVATE")
    logger.info(pem)
    logger.info("read %s and %r", pem, pem.encode())
    logger.info("half a key: %s", pem[:60])
    logger.info("cut at the front: %s", pem[3:])
    logger.info("by line: %s", pem.splitlines())
    logger.info("heard", extra={"neighbour": pem, "round": pem})
    logger.info("%d", pem)  # a mistake in the call
    logger.info("%s %s", pem)  # noqa: PLE1206 - and another
    for line in pem.splitlines():
        logger.info(line)
    try:
        raise ValueError(pem)
    except ValueError:
        logger.exception("no", stack_info=True)
    text = stream.getvalue()
    assert INSIDE[:20] not in text
    assert "private key removed" in text
    if form == "json":
        assert all(json.loads(line) for line in text.splitlines())


def test_a_broken_stream_prints_nothing_else(log, capsys):
    logger, stream = log()
    stream.close()
    logger.info("secret %s", PEM)
    assert capsys.readouterr().err == ""


def test_fingerprints_and_certificates_names_stay():
    digest = "ab" * 32
    assert logs.redact_keys(f"fingerprint {digest}, CN=device-07") == f"fingerprint {digest}, CN=device-07"


@given(st.text(), st.text())
def test_whatever_stands_around_a_key_it_is_removed(before, after):
    assert INSIDE not in logs.redact_keys(before + PEM + after)


@pytest.mark.parametrize("form", ["words", "json"])
def test_a_message_of_any_length_is_one_line_of_bounded_length_without_the_beginning_of_a_key(log, form):
    """The cut goes through a line of the key: what is left of that line does not look like a key any more."""
    logger, stream = log(form)
    for at in range(logs.LONGEST_MESSAGE - 70, logs.LONGEST_MESSAGE, 7):
        stream.seek(0)
        stream.truncate()
        logger.info("%s %s %s", "x y " * (at // 4), INSIDE, "x" * 10**6)
        text = stream.getvalue()
        assert len(text) < logs.LONGEST_MESSAGE + 200
        assert "characters)" in text
        assert INSIDE[:20] not in text
