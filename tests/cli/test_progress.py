"""The bar of long work: counts, what comes next, and the time that is left; in terminals and in notebooks."""

from __future__ import annotations

import io
import re
import sys
import time
import types

import pytest

from conformesh import Network, calibrate, sweep
from conformesh.cli import console
from conformesh.common import progress as bars
from conformesh.engines.observers import rounds_on_a_bar
from conformesh.lab.comparison import compare, compared_ways


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
        monkeypatch.setattr(bars, "BAR_DELAY", 0.0)
        return stream

    return make


def test_a_bar_with_a_total_says_how_much_time_is_left(terminal):
    screen = terminal()
    with bars.Progress("thinking", total=1_000_000_000, unit="steps") as progress:
        screen.wait_for("0 of 1,000,000,000 steps")
        progress.step("concluding")
        screen.wait_for(r"concluding .* 1 of 1,000,000,000 steps 0:\d\d:\d\d .*day.* left")


def test_a_bar_without_a_total_promises_nothing(terminal):
    screen = terminal()
    with bars.Progress("thinking", unit="rounds") as progress:
        progress.step()
        screen.wait_for("1 rounds")
    assert "left" not in screen.shown()
    assert " of " not in screen.shown()


def test_a_total_may_come_later_and_some_steps_may_be_done(terminal):
    screen = terminal()
    with bars.Progress("thinking") as progress:
        screen.wait_for("thinking")
        progress.begin(8, 4, "going on")
        assert progress.left() is None  # nothing was done at this pace yet
        time.sleep(0.05)
        progress.step()
        assert progress.left() >= 3 * 0.049
        screen.wait_for("going on .* 5 of 8 .* left")


def test_lines_can_be_said_while_the_bar_is_there(terminal):
    screen = terminal()
    with bars.Progress("thinking", total=5):
        screen.wait_for("thinking")
        console.print_status("one\nline")
        screen.wait_for("one line")


# --- notebooks --------------------------------------------------------------------------------------------------------


class Cell:
    """The output of a cell, as IPython's `display` makes it."""

    def __init__(self) -> None:
        self.shown: list[str] = []

    def HTML(self, text: str) -> str:  # noqa: N802 - as IPython calls it
        return text

    def display(self, text: str, display_id: bool) -> Cell:
        assert display_id
        self.shown.append(text)
        return self

    def update(self, text: str) -> None:
        self.shown.append(text)


@pytest.fixture
def cell(monkeypatch) -> Cell:
    """A kernel of IPython, which need not be installed."""
    made = Cell()
    kernel = types.SimpleNamespace(kernel=object())
    monkeypatch.setitem(sys.modules, "IPython", types.SimpleNamespace(get_ipython=lambda: kernel, display=made))
    monkeypatch.setitem(sys.modules, "IPython.display", types.SimpleNamespace(HTML=made.HTML, display=made.display))
    monkeypatch.setattr(bars, "BAR_DELAY", 0.0)
    return made


def wait_for(cell: Cell, pattern: str) -> None:
    end = time.monotonic() + 20
    while not any(re.search(pattern, text) for text in cell.shown):
        assert time.monotonic() < end, cell.shown
        time.sleep(0.02)


def test_a_notebook_has_a_bar_that_goes_when_the_work_is_done(cell):
    assert bars.progress_output() == "notebook"
    with bars.Progress("thinking <hard>", total=8, unit="steps") as progress:
        progress.step()
        wait_for(
            cell, r'thinking &lt;hard&gt; <progress max="8" value="1"></progress> 1 of 8 steps · 0:00:0\d · .* left'
        )
    assert cell.shown[-1] == ""


def test_python_callers_ask_for_a_bar(cell):
    rounds: list[int] = []
    held = [[0.1 * k, 0.5, 0.9] for k in range(4)]

    def slow(number: int, *_: object) -> None:
        rounds.append(number)
        wait_for(cell, "e-dcp on chain 4")  # which is shown while the work goes on

    result = calibrate(held, "chain", 0.4, progress=True, observer=slow)
    assert len(rounds) == result.cost.rounds
    shown = len(cell.shown)
    calibrate(held, "chain", 0.4)
    assert len(cell.shown) == shown


def test_in_a_pipe_nobody_counts(capsys):
    assert bars.progress_output() is None
    with rounds_on_a_bar("thinking") as observer:
        assert observer is None
    with bars.Progress("thinking") as progress:
        progress.on_point(0, 5, "")
        progress.on_point(1, 5, "one")
        assert (progress.steps, progress.total) == (1, 5)
    assert capsys.readouterr() == ("", "")


def test_comparisons_and_sweeps_tell_their_bar(monkeypatch):
    told: list[str] = []
    monkeypatch.setattr(bars.Progress, "step", lambda self, what=None: told.append(what))
    compare([[0.1, 0.2], [0.3, 0.4]], [Network.chain(2)], 0.4, compared_ways(["local"]), progress=True)
    assert told == ["local on chain 2"]
    grid = {
        "scores": {"source": "synthetic", "per_device": 50},
        "networks": [{"topology": "cycle", "devices": 3}],
        "methods": [{"name": "local"}],
    }
    sweep(grid, jobs=1, progress=True)
    assert len(told) == 2
