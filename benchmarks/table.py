"""README.md's table from results.json: the numbers are kept once, and shown."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
START, END = "<!-- results -->", "<!-- end of results -->"
COLUMNS = ("what", "ours", "compared with", "ratio", "target", "met", "notes")
TITLES = {
    "peers": "Scores and sets beside other libraries",
    "small": "Small work",
    "exactness": "The exact threshold",
    "schedules": "What the schedules of E-DCP send",
    "growth": "Growth",
    "bandwidth": "Gossip rounds and memory bandwidth",
    "ranks": "MPI ranks",
    "methods": "The paper's methods beside slow twins",
    "detection": "Detection with a false discovery rate",
    "limits": "Limits",
    "byzantine": "Byzantine devices: coverage of the honest, and labels in a set",
    "lossy": "Networks that lose messages",
    "asynchronous": "Networks that wait, lose and change: without rounds and in rounds",
    "view": "The view in a browser",
    "risk": "Risk control: what new examples lose, and how large sets are",
}
PICTURES = {"peers": "peers.png", "growth": "growth.png", "bandwidth": "bandwidth.png"}


def seconds(value: float | None) -> str:
    """Return a time for people."""
    if value is None:
        return ""
    return f"{value * 1e6:.3g} µs" if value < 1e-3 else f"{value * 1e3:.3g} ms" if value < 1 else f"{value:.3g} s"


def _cells(row: dict[str, Any]) -> list[str]:
    against = ": ".join(part for part in (row["against"], seconds(row["other"])) if part)
    met = {True: "yes", False: "**no**", None: ""}[row["met"]]
    ratio = "" if row["ratio"] is None else f"{row['ratio']:.3g}"
    return [row["what"], seconds(row["ours"]), against, ratio, row["target"], met, row["note"]]


def text_of(results: dict[str, Any]) -> str:
    """Return what stands between the marks of README.md."""
    peers = ", ".join(f"{name} {version}" for name, version in results["peers"].items())
    parts = [
        f"Measured with conformesh {results['version']} on {results['machine']}. Peers: {peers}. "
        "A ratio above one means that we are faster."
    ]
    for name, bench in results["benchmarks"].items():
        lines = [_line(COLUMNS), "|" + " --- |" * len(COLUMNS)]
        lines += [_line(_cells(row)) for row in bench["rows"]]
        busy = f"Load of the machine before and after: {bench['load']}."
        picture = [f"![{TITLES[name]}]({PICTURES[name]})"] if name in PICTURES else []
        parts += [f"### {TITLES[name]}", busy, "\n".join(lines), *picture]
    return "\n\n".join(parts)


def _line(cells: Any) -> str:
    return "| " + " | ".join(cells) + " |"


def readme_of(results: dict[str, Any], text: str) -> str:
    """Return README.md with its table made anew."""
    before, rest = text.split(START)
    return before + START + "\n\n" + text_of(results) + "\n\n" + END + rest.split(END)[1]


def read() -> dict[str, Any]:
    """Return the numbers that were kept."""
    found: dict[str, Any] = json.loads((HERE / "results.json").read_text(encoding="utf-8"))
    return found


def write(results: dict[str, Any]) -> None:
    """Keep the numbers, and show them."""
    (HERE / "results.json").write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    readme = HERE / "README.md"
    readme.write_text(readme_of(results, readme.read_text(encoding="utf-8")), encoding="utf-8")
