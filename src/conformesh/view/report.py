"""A report: one HTML file with the page, its style, its scripts and a trace, which needs no server and no network."""

from __future__ import annotations

import base64
import gzip
import os
from importlib.resources import files
from pathlib import Path

from conformesh.files.atomic_writes import write_file
from conformesh.view.trace import Trace

PAGE_FILE = "index.html"
# The parts of the page, in the order in which it loads them; index.html names exactly these.
STYLE_FILES = ("vendor.css", "view.css")
SCRIPT_FILES = (
    "vendor.js",
    "dom.js",
    "words.js",
    "state.js",
    "colours.js",
    "marks.js",
    "places.js",
    "flow.js",
    "drawing.js",
    "graph.js",
    "clock.js",
    "chart.js",
    "charts.js",
    "online.js",
    "panel.js",
    "device.js",
    "table.js",
    "log.js",
    "replay.js",
    "theme.js",
    "legend.js",
    "address.js",
    "live.js",
    "frames.js",
    "page.js",
    "view.js",
)


def read_page_file(name: str) -> str:
    """Return a file of the page."""
    return (files("conformesh.view") / "page" / name).read_text("utf-8")


def report_html(trace: Trace) -> str:
    """Return one HTML file with everything in it. The trace is compressed; current browsers decompress it."""
    page = read_page_file(PAGE_FILE)
    for name in STYLE_FILES:
        page = _replace_once(
            page, f'<link rel="stylesheet" href="page/{name}">', f"<style>\n{read_page_file(name)}</style>"
        )
    for name in SCRIPT_FILES:
        page = _replace_once(page, f'<script src="page/{name}" defer></script>', "")
    packed = base64.b64encode(gzip.compress(trace.to_json(), 6, mtime=0)).decode()
    inside = f'<script type="application/gzip" id="trace">{packed}</script>\n'
    inside += "".join(f"<script>\n{_escape_script(read_page_file(name))}</script>\n" for name in SCRIPT_FILES)
    return _replace_once(page, "</body>", f"{inside}</body>")


def _escape_script(script: str) -> str:
    return script.replace("</script", r"<\/script")


def _replace_once(page: str, mark: str, text: str) -> str:
    if page.count(mark) != 1:
        raise RuntimeError(f"{PAGE_FILE} must have {mark!r} once, and has it {page.count(mark)} times")
    return page.replace(mark, text)


def write_trace_report(trace: Trace, path: str | os.PathLike[str]) -> Path:
    """Write the report of a trace."""
    target = Path(path)
    write_file(target, report_html(trace))
    return target
