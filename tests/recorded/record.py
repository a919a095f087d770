"""Write the answers of all recorded calls: ``python tests/recorded/record.py``.

Only for answers that are meant to change. It prints which answers differ from those recorded before, and in which
fields; say in the commit why.
"""

import gzip
import hashlib
import json
import platform
import sys
from pathlib import Path

import numpy as np
import scipy

FILE = Path(__file__).with_name("answers.json.gz")


def digest_of(call):
    """Return a digest of a call, so that an answer is never compared with that of another call."""
    return hashlib.sha256(json.dumps(call, sort_keys=True).encode()).hexdigest()[:16]


def read():
    """Return what was recorded."""
    return json.loads(gzip.decompress(FILE.read_bytes()))


def machine():
    """Return what the last bits of iterated floats depend on: the processor and the numerical libraries."""
    simd = np.show_config(mode="dicts")["SIMD Extensions"]
    return {
        "processor": platform.machine(),
        "simd": [*simd.get("baseline", []), *simd.get("found", [])],
        "numpy": np.__version__,
        "scipy": scipy.__version__,
    }


def main():
    """Replay every call and write the answers."""
    from tests.recorded.calls import CALLS
    from tests.recorded.comparison import differences
    from tests.recorded.over_mpi import mpi_answers
    from tests.recorded.refusals import REFUSALS, refusal
    from tests.recorded.replay import replay

    over_mpi = mpi_answers()
    answers = {call["id"]: over_mpi[call["id"]] if call["id"] in over_mpi else replay(call) for call in CALLS}
    refusals = {call["id"]: refusal(call) for call in REFUSALS}
    if open_calls := [name for name, words in refusals.items() if words is None]:
        raise SystemExit(f"these calls must be refused and are not: {open_calls}")
    found = {
        "machine": machine(),
        "calls": {call["id"]: digest_of(call) for call in CALLS},
        "answers": answers,
        "refusals": {call["id"]: call["reason"] for call in REFUSALS},
    }
    before = read()["answers"] if FILE.exists() else {}
    for name, answer in answers.items():
        lines = differences(before[name], json.loads(json.dumps(answer))) if name in before else ["is new"]
        if lines:
            print(name, *lines[:3], *([f"... {len(lines)} in all"] if lines[3:] else []), sep="\n  ")
    text = json.dumps(found, sort_keys=True, separators=(",", ":"))
    FILE.write_bytes(gzip.compress(text.encode(), mtime=0))
    print(f"{len(answers)} answers and {len(refusals)} refusals, {FILE.stat().st_size:,} bytes")


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[2]))  # run as a file, its folder is on the path and the root is not
    main()
