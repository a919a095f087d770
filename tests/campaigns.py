"""How many random cases a campaign draws, and which: one setting for all of them.

A campaign looks for a rare fault among random schedules or tables; it has no false alarms, and with n cases it misses a
fault that shows in a share p of them with probability (1 - p)^n. `make test-all` draws a part of what a release is
tested with: CONFORMESH_LONG=10 draws ten times as many, and CONFORMESH_SEED another set.
"""

import os

LONG = int(os.environ.get("CONFORMESH_LONG", "1"))
SEED = int(os.environ.get("CONFORMESH_SEED", "0"))


def campaign_seeds(count, first=0):
    """Return so many seeds, times CONFORMESH_LONG; `first` keeps them apart from those of the quick tests."""
    start = first + SEED
    return range(start, start + LONG * count)
