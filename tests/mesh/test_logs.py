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
    logger = logging.getLogger(logs.NAME)
    before = [*logger.handlers], logger.level, logger.propagate

    def make(form="words", **options):
        stream = io.StringIO()
        return logs.set_up("device-07", form, stream=stream, **options), stream

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
        logs.set_up("a", "xml")


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
    assert logs.redacted(f"fingerprint {digest}, CN=device-07") == f"fingerprint {digest}, CN=device-07"


@given(st.text(), st.text())
def test_whatever_stands_around_a_key_it_is_removed(before, after):
    assert INSIDE not in logs.redacted(before + PEM + after)
