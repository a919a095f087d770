"""Run benchmarks, keep their numbers in results.json, and redraw README.md's table and pictures.

make bench                                  everything, about ten minutes on two quiet cores
python benchmarks/run.py peers growth       some of them; the others keep their numbers
python benchmarks/run.py --quick            tiny sizes, to see that everything runs; keeps nothing
python benchmarks/run.py --draw             table and pictures again, from what was kept
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import harness
import table

import plots

HERE = Path(__file__).parent
BENCHMARKS = tuple(table.TITLES)


def run_one(name: str, quick: bool = False, say: Callable[[str], None] = print) -> dict[str, Any]:
    """Run a benchmark, and return its rows and series as they are kept."""
    module = import_module(name)
    say(f"{name}: {module.bench.__doc__}")
    before = harness.load()
    rows, series = module.bench(quick)
    for row in rows:
        say("  " + " | ".join(cell for cell in table._cells(row.to_dict()) if cell))
    return {
        "load": f"{before}, {harness.load()}",
        "rows": [row.to_dict() for row in rows],
        "series": [one.to_dict() for one in series],
    }


def kept(benchmarks: dict[str, Any], peers: dict[str, str]) -> dict[str, Any]:
    """Return results with where they come from, benchmarks in the order of the table."""
    from conformesh import __version__

    ordered = {name: benchmarks[name] for name in BENCHMARKS if name in benchmarks}
    return {"version": __version__, "machine": harness.machine(), "peers": peers, "benchmarks": ordered}


def main(words: list[str] | None = None) -> None:
    """Run what was asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(BENCHMARKS)}; by default all")
    parser.add_argument("--quick", action="store_true", help="tiny sizes; keeps nothing")
    parser.add_argument("--draw", action="store_true", help="table and pictures again; measures nothing")
    given = parser.parse_args(words)
    strange = [name for name in given.names if name not in BENCHMARKS]
    if strange:
        parser.error(f"unknown benchmark {strange[0]!r}; known: {', '.join(BENCHMARKS)}")
    stored = table.read() if (HERE / "results.json").exists() else {"benchmarks": {}, "peers": {}}
    for name in () if given.draw else given.names or BENCHMARKS:
        stored["benchmarks"][name] = run_one(name, given.quick, lambda text: print(text, flush=True))
        if name == "peers":  # those of another run belong to its numbers
            stored["peers"] = import_module("peers").versions()
        if not given.quick:  # after each: an interrupted run keeps what it has
            table.write(stored := kept(stored["benchmarks"], stored["peers"]))
    if not given.quick:
        table.write(stored)
        plots.draw(stored, HERE)


if __name__ == "__main__":
    main()
