"""`make mutants`: change the code in small ways, one at a time, and see whether a test notices.

mutmut makes the mutants and runs, for each, the tests that reach the changed function. This script draws a sample that
is the same for the same code, counts who was killed, and compares the survivors with those that are known, each with
the reason why it may live (`mutants.toml`): a survivor without a reason, or fewer killed than asked for, ends with
exit code 1.

    python tests/mutants.py                    # 300 mutants of all modules
    python tests/mutants.py --sample 0         # every mutant: hours
    python tests/mutants.py --only "conformesh.kernels.ranks*" --sample 0
"""

from __future__ import annotations

import argparse
import fnmatch
import hashlib
import os
import re
import subprocess
import sys
import tomllib
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).parents[1]
KNOWN = Path(__file__).with_suffix(".toml")
KILLED = ("killed", "timeout", "suspicious", "segfault")
LEAST = 0.90
AT_ONCE = 500  # names of mutants on one command line


def mutmut(*words: str, check: bool = True) -> str:
    """Run mutmut in the project's folder and return what it printed."""
    command = [sys.executable, "-m", "mutmut", *words]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, check=False, env={**os.environ, "CONFORMESH_MUTANTS": "1"}
    )
    if check and done.returncode:
        raise SystemExit(f"{' '.join(words[:2])} failed:\n{(done.stdout + done.stderr)[-4000:]}")
    return done.stdout


def statuses() -> dict[str, str]:
    """Return what is known of every mutant, by name."""
    lines = (line.strip().rsplit(": ", 1) for line in mutmut("results", "--all", "true").splitlines())
    return {pair[0]: pair[1] for pair in lines if len(pair) == 2}


def drawn(names: list[str], sample: int) -> list[str]:
    """Return so many of the names, by a digest of each: the same ones again, whatever else there is."""
    order = sorted(names, key=lambda name: hashlib.sha256(name.encode()).digest())
    return sorted(order[:sample] if sample else order)


def change(name: str) -> tuple[str, str]:
    """Return what a mutant changed: the line or lines before, and after."""
    lines = [line for line in mutmut("show", name).splitlines() if not line.startswith(("---", "+++"))]
    before, after = ([line[1:].strip() for line in lines if line.startswith(sign)] for sign in "-+")
    return " ".join(before), " ".join(after)


def function_of(name: str) -> str:
    """Return the function that a mutant is of, as people write it."""
    plain = re.sub(r"__mutmut_\d+$", "", name)
    return re.sub(r"\.x_?ǁ?", ".", plain).replace("ǁ", ".")


def reason(known: dict[str, list[dict[str, str]]], function: str, after: str) -> str | None:
    """Return why a survivor may live: one that is listed by its line, or of a kind that is listed by a pattern."""
    for entry in known["survivor"]:
        if (entry["function"], entry["after"]) == (function, after):
            return entry["why"]
    for kind in known["kind"]:
        if re.search(kind["pattern"], after) and re.search(kind.get("function", ""), function):
            return kind["why"]
    return None


def report(judged: dict[str, str]) -> bool:
    """Print the table and the survivors; return whether all is well."""
    modules: dict[str, list[str]] = defaultdict(list)
    for name, status in judged.items():
        modules[function_of(name).split(".x")[0].rsplit(".", 1)[0].removeprefix("conformesh.")].append(status)
    print(f"{'module':44} mutants killed  share")
    for module, found in [*sorted(modules.items()), ("all", [*judged.values()])]:
        killed = sum(status in KILLED for status in found)
        print(f"{module:44} {len(found):7} {killed:6} {killed / len(found):6.1%}")
    known, unexplained = tomllib.loads(KNOWN.read_text(encoding="utf-8")), 0
    for name in sorted(name for name, status in judged.items() if status not in KILLED):
        before, after = change(name)
        why = reason(known, function_of(name), after)
        unexplained += why is None
        print(f"\n{function_of(name)} ({judged[name]}, number {name.rsplit('_', 1)[-1]})\n  - {before}\n  + {after}")
        print(f"  {why or 'NO REASON YET'}")
    share = sum(status in KILLED for status in judged.values()) / len(judged)
    print(
        f"\n{share:.1%} of {len(judged)} mutants killed, {LEAST:.0%} needed; {unexplained} survivors without a reason"
    )
    return share >= LEAST and not unexplained


def main() -> int:
    """Make mutants, run a sample, report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sample", type=int, default=300, help="how many mutants; 0 for every one")
    parser.add_argument("--only", default="*", help="names of mutants, with wildcards: conformesh.kernels.ranks*")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="mutants tested at a time")
    asked = parser.parse_args()
    mutmut("run", "no-such-mutant", check=False)  # makes the mutants and finds out which tests reach what
    names = [name for name in statuses() if fnmatch.fnmatch(name, asked.only)]
    if not names:
        raise SystemExit(f"no mutant is called {asked.only!r}; see `mutmut results --all true`")
    chosen = drawn(names, asked.sample)
    for start in range(0, len(chosen), AT_ONCE):
        mutmut("run", "--max-children", str(asked.jobs), *chosen[start : start + AT_ONCE])
    after = statuses()
    return 0 if report({name: after[name] for name in chosen}) else 1


if __name__ == "__main__":
    raise SystemExit(main())
