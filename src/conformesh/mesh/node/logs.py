"""A node's log on stderr: text for people, or one JSON object per line for programs. Private keys are removed.

Modules log to "conformesh.node" and pass the round as ``extra={"run": 3, "round": 12}``. The same line is written once
in `REPEAT_INTERVAL` seconds, with the number of repetitions: a neighbour that causes one error repeatedly must not fill
the disk.
"""

from __future__ import annotations

import json
import logging
import math
import re
import sys
import time
from collections import OrderedDict
from typing import Any, Literal, TextIO

from conformesh.mesh.node.certified_result import utc_text

LOGGER = "conformesh.node"
Form = Literal["words", "json"]

# From the first line of a key to its last line or the end of the text: half a key must not be written either. Newlines
# may be real, or escaped as in repr() and JSON; dashes may be missing on one side, as when a line was cut.
PRIVATE_KEY = re.compile(
    r"-*\s*BEGIN [A-Z0-9 ]*PRIVATE KEY.*?(?:END [A-Z0-9 ]*PRIVATE KEY(?:-+)?|\Z)", re.DOTALL | re.IGNORECASE
)
# A line inside a key: base64 of the length of a PEM line. Excludes hexadecimal digests of the same length.
BASE64_LINE = re.compile(r"(?<![A-Za-z0-9+/=])(?![0-9a-fA-F]+(?![A-Za-z0-9+/=]))[A-Za-z0-9+/]{64}(?![A-Za-z0-9+/])")
PROGRESS_FIELDS = (
    "phase",
    "heard",
    "expected",
    "sent",
    "received",
)  # neighbours heard of those expected; bytes
EXTRA_FIELDS = ("run", "round", "neighbour", "repeated", *PROGRESS_FIELDS)  # what a log call may name as extra
REPEAT_INTERVAL = 10.0  # seconds in which the same line of a run is written once
MOST_LINES = 256  # different lines that are remembered: programs that cause ever new lines must not fill the memory
REMOVED = "[private key removed]"
LONGEST_MESSAGE = 4000  # characters; neighbours and local programs can cause messages, and must not fill the disk
LONGEST_TRACEBACK = 20_000  # characters
KEY_START = re.compile(r"[A-Za-z0-9+/=]{1,63}\Z")  # a cut line: may be the beginning of a line of a key


def redact_keys(text: str) -> str:
    """Return the text without anything that looks like a PEM private key.

    >>> redact_keys("read -----BEGIN PRIVATE KEY-----")
    'read [private key removed]'
    """
    return BASE64_LINE.sub(REMOVED, PRIVATE_KEY.sub(REMOVED, text))


def _short(text: str, most: int = LONGEST_MESSAGE) -> str:
    """Return the text, or if it is longer than `most` its beginning and its length."""
    return text if len(text) <= most else f"{KEY_START.sub('', text[:most])}... ({len(text):,} characters)"


class _NoPrivateKeys(logging.Filter):
    """Removes private keys from each record before it is written: from its message, traceback and extra fields."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Remove the keys of a record, and let every record pass."""
        try:
            text = record.getMessage()
        except Exception as error:  # a wrong log call must neither stop the node nor print its arguments
            text = f"a log message could not be written ({type(error).__name__}): {record.msg!r}"
        record.msg, record.args = redact_keys(_short(text)), None
        for name in EXTRA_FIELDS:
            value = getattr(record, name, None)
            if value is not None and not isinstance(value, int):
                setattr(record, name, redact_keys(_short(str(value))))
        if record.exc_info:
            traceback = logging.Formatter().formatException(record.exc_info)
            record.exc_text = redact_keys(_short(traceback, LONGEST_TRACEBACK))
            record.exc_info = None
        if record.stack_info:
            record.stack_info = redact_keys(record.stack_info)
        return True


class _Words(logging.Formatter):
    """``12:03:04 device-07 round 12: ...``, one line for each record; a traceback follows, indented."""

    def __init__(self, device: str) -> None:
        super().__init__()
        self.device = device

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        clock = time.strftime("%H:%M:%S", time.localtime(record.created))
        number = getattr(record, "round", None)
        where = self.device if number is None else f"{self.device} round {number}"
        level = "" if record.levelno < logging.WARNING else f"{record.levelname.lower()}: "
        repeated = getattr(record, "repeated", 0)
        more = f" ({repeated} more times)" if repeated else ""
        line = f"{clock} {_one_line(where)}: {level}{_one_line(record.getMessage())}{more}"
        return line + "".join(f"\n    {text}" for text in (record.exc_text or "").splitlines())


class _JsonLines(logging.Formatter):
    """One JSON object for each record: time, level, device, message, and run and round where they are known."""

    def __init__(self, device: str) -> None:
        super().__init__()
        self.device = device

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        entry: dict[str, Any] = {
            "time": utc_text(record.created),
            "level": record.levelname.lower(),
            "device": self.device,
            "message": record.getMessage(),
        }
        for name in EXTRA_FIELDS:
            value = getattr(record, name, None)
            if value is not None:
                entry[name] = value
        if record.exc_text:
            entry["traceback"] = record.exc_text
        return json.dumps(entry)


LOG_FORMS: dict[str, type[_Words] | type[_JsonLines]] = {"words": _Words, "json": _JsonLines}


def set_up_log(
    device: str, form: Form = "words", *, level: int = logging.INFO, stream: TextIO | None = None
) -> logging.Logger:
    """Send the node's log to stderr in this form; calling it again replaces what it did before."""
    if form not in LOG_FORMS:
        raise ValueError(f"a log is written as words or json, got {form!r}")
    logger = logging.getLogger(LOGGER)
    for old in [handler for handler in logger.handlers if isinstance(handler, _NodeHandler)]:
        logger.removeHandler(old)
        old.close()
    handler = _NodeHandler(sys.stderr if stream is None else stream)
    handler.addFilter(_NoPrivateKeys())
    handler.setFormatter(LOG_FORMS[form](device))
    logger.addHandler(handler)
    logger.setLevel(level)
    logger.propagate = False
    return logger


class _NodeHandler(logging.StreamHandler[TextIO]):
    """The handler that `set_up_log` installs. Errors of the stream are ignored, as they must not stop a node.

    Lines below INFO are for programs that follow the progress; all of them are written, repeated or not.
    """

    def __init__(self, stream: TextIO) -> None:
        super().__init__(stream)
        # By level, run and text, oldest first: the last record, when the line was written, and how often it was not
        # written since.
        self._recent_lines: OrderedDict[tuple[Any, ...], tuple[logging.LogRecord, float, int]] = OrderedDict()

    def emit(self, record: logging.LogRecord) -> None:
        """Write a line unless the same one was written recently. `logging` holds the lock of the handler meanwhile."""
        if record.levelno < logging.INFO:
            super().emit(record)
            return
        now = time.monotonic()  # not the time of the record: the wall clock may be set back
        self._write_repeated(now - REPEAT_INTERVAL)
        key = record.levelno, getattr(record, "run", None), record.getMessage(), record.exc_text
        if key in self._recent_lines:
            _, written, count = self._recent_lines[key]
            self._recent_lines[key] = record, written, count + 1
            return
        self._recent_lines[key] = record, now, 0
        super().emit(record)
        if len(self._recent_lines) > MOST_LINES:
            self._write_first()

    def close(self) -> None:
        """Write how often the last lines were repeated, and close."""
        self._write_repeated(math.inf)
        super().close()

    def _write_repeated(self, before: float) -> None:
        """Forget lines that were written before this time; write how often each was repeated."""
        while self._recent_lines and next(iter(self._recent_lines.values()))[1] <= before:
            self._write_first()

    def _write_first(self) -> None:
        _, (record, _, count) = self._recent_lines.popitem(last=False)
        if count:
            record.repeated = count
            super().emit(record)

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 - logging's name
        """Drop the line: the error report of `logging` would print the arguments with any keys in them."""


def _one_line(text: str) -> str:
    return "".join(c if c.isprintable() else " " if c in "\r\n\t" else f"\\x{ord(c):02x}" for c in text)
