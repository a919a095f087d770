"""The bar of long work: counts, what comes next, and the time that is left."""

from __future__ import annotations

import io
import re
import sys
import time

import pytest

from conformesh.cli import console


class Terminal(io.StringIO):
    """A terminal that remembers what it showed."""

    def isatty(self) -> bool:
        return True

    def shown(self) -> str:
        return re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", self.getvalue())

    def wait_for(self, pattern: str) -> None:
        """Wait until a pattern was shown: a busy machine may draw late."""
        end = time.monotonic() + 20
        while not re.search(pattern, self.shown()):
            assert time.monotonic() < end, f"{pattern!r} was not shown: {self.shown()!r}"
            time.sleep(0.02)


@pytest.fixture
def terminal(monkeypatch):
    """A function that makes stderr a terminal; pytest puts its own in place between a fixture and its test."""

    def make() -> Terminal:
        stream = Terminal()
        monkeypatch.setenv("TERM", "xterm")
        monkeypatch.setenv("COLUMNS", "150")
        monkeypatch.setattr(sys, "stderr", stream)
        monkeypatch.setattr(console, "PATIENCE", 0.0)
        return stream

    return make


def test_a_bar_with_a_total_says_how_much_time_is_left(terminal):
    screen = terminal()
    with console.Progress("thinking", total=1_000_000_000, unit="steps") as progress:
        screen.wait_for("0 of 1,000,000,000 steps")
        progress.step("concluding")
        screen.wait_for(r"concluding .* 1 of 1,000,000,000 steps 0:\d\d:\d\d .*day.* left")


def test_a_bar_without_a_total_promises_nothing(terminal):
    screen = terminal()
    with console.Progress("thinking", unit="rounds") as progress:
        progress.step()
        screen.wait_for("1 rounds")
    assert "left" not in screen.shown()
    assert " of " not in screen.shown()


def test_a_total_may_come_later_and_some_steps_may_be_done(terminal):
    screen = terminal()
    with console.Progress("thinking") as progress:
        screen.wait_for("thinking")
        progress.begin(8, 4, "going on")
        assert progress.left() is None  # nothing was done at this pace yet
        time.sleep(0.05)
        progress.step()
        assert progress.left() >= 3 * 0.049
        screen.wait_for("going on .* 5 of 8 .* left")


def test_lines_can_be_said_while_the_bar_is_there(terminal):
    screen = terminal()
    with console.Progress("thinking", total=5):
        screen.wait_for("thinking")
        console.say("one\nline")
        screen.wait_for("one line")
