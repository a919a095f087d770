"""How long work goes on: one bar for terminals and notebooks, which says nothing in a pipe.

A terminal has a bar of rich on stderr, a notebook one in the output of its cell, which needs no widgets. It comes after
a second and goes when the work is done.
"""

from __future__ import annotations

import sys
import threading
import time
from datetime import timedelta
from html import escape
from typing import Any, Literal

BAR_DELAY = 1.0  # seconds before a bar appears


def progress_output() -> Literal["terminal", "notebook"] | None:
    """Return where a bar can be seen; None in a pipe, a file or a log."""
    shell = sys.modules.get("IPython")
    running = shell.get_ipython() if shell is not None else None
    if getattr(running, "kernel", None) is not None:
        return "notebook"
    return "terminal" if sys.stderr.isatty() else None


class Progress:
    """Count steps; from the first second on a bar shows them, where somebody can see it.

    A thread draws the bar, so that work which never reports, such as a first compilation, has its clock too. Where the
    total is known, which may be later than the start, the bar also says how much time is left at the pace so far.
    """

    def __init__(self, what: str, total: int | None = None, unit: str = "", shown: bool = True) -> None:
        self.what = what
        self.total = total
        self.unit = unit
        self.steps = 0
        self._start = time.monotonic()
        self._from = (0, self._start)  # steps and time where the pace is measured from
        self._done = threading.Event()
        where = progress_output() if shown else None
        draw = {"terminal": self._draw, "notebook": self._draw_in_notebook}
        self._thread = None if where is None else threading.Thread(target=draw[where], daemon=True)

    def step(self, what: str | None = None) -> None:
        """Finish one step, and say what comes next."""
        self.steps += 1
        self.what = what or self.what

    def begin(self, total: int | None, done: int = 0, what: str | None = None) -> None:
        """Start counting, again or later than the clock: so many steps in all, some of which were done before."""
        self.total, self.steps, self.what = total, done, what or self.what
        self._from = (done, time.monotonic())

    def on_point(self, done: int, total: int, name: str) -> None:
        """Hear how many points are done, of how many, and the last one's name; without one, where counting starts."""
        if name:
            self.step(name)
        else:
            self.begin(total, done, "running")

    def left(self) -> float | None:
        """Return the seconds left at the pace so far; None where nothing can be said."""
        done, passed = self.steps - self._from[0], time.monotonic() - self._from[1]
        return None if self.total is None or done <= 0 else max(0.0, (self.total - self.steps) * passed / done)

    def __enter__(self) -> Progress:
        if self._thread is not None:
            self._thread.start()
        return self

    def __exit__(self, *reason: object) -> None:
        self._done.set()
        if self._thread is not None:
            self._thread.join()

    def _draw(self) -> None:
        if self._done.wait(BAR_DELAY):
            return
        from rich.console import Console
        from rich.progress import BarColumn, TextColumn, TimeElapsedColumn
        from rich.progress import Progress as Bar

        count, left = TextColumn("{task.fields[count]}"), TextColumn("{task.fields[left]}")
        columns = (TextColumn("{task.description}"), BarColumn(), count, TimeElapsedColumn(), left)
        with Bar(*columns, console=Console(stderr=True), transient=True) as bar:
            task = bar.add_task(self.what, total=self.total, **self._words())
            while not self._done.wait(0.1):
                bar.update(task, completed=self.steps, total=self.total, description=self.what, **self._words())

    def _draw_in_notebook(self) -> None:
        if self._done.wait(BAR_DELAY):
            return
        from IPython.display import HTML, display

        shown = display(HTML(self.html()), display_id=True)
        while not self._done.wait(0.25):
            shown.update(HTML(self.html()))
        shown.update(HTML(""))

    def html(self) -> str:
        """Return the bar of a notebook as it is now."""
        words, passed = self._words(), timedelta(seconds=round(time.monotonic() - self._start))
        known = "" if self.total is None else f' max="{self.total}" value="{min(self.steps, self.total)}"'
        text = " · ".join(part for part in (words["count"], str(passed), words["left"]) if part)
        return f"<div>{escape(self.what)} <progress{known}></progress> {escape(text)}</div>"

    def _words(self) -> dict[str, Any]:
        of = "" if self.total is None else f" of {self.total:,}"
        left = self.left()
        return {
            "count": f"{self.steps:,}{of}" + (f" {self.unit}" if self.unit else ""),
            "left": "" if left is None else f"{timedelta(seconds=round(left))} left",
        }
