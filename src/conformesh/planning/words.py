"""Amounts of data and times, for people."""

from __future__ import annotations


def in_bytes(size: float) -> str:
    """Return an amount of data for people.

    >>> in_bytes(0), in_bytes(62.5), in_bytes(64_064), in_bytes(3.2e9)
    ('0', '62.5 B', '64.1 kB', '3.2 GB')
    """
    if size == 0:
        return "0"
    for unit, one in (("EB", 1e18), ("PB", 1e15), ("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if size >= 0.9995 * one:
            return f"{size / one:.3g} {unit}"
    return f"{size:.3g} B"


def in_time(seconds: float) -> str:
    """Return a time for people.

    >>> in_time(0), in_time(0.0123), in_time(8.25), in_time(300), in_time(9000), in_time(4e5), in_time(1e9)
    ('0', '12.3 ms', '8.25 s', '5 min', '2.5 h', '4.63 days', '31.7 years')
    """
    if seconds == 0:
        return "0"
    for unit, one, least in (
        ("years", 31_557_600.0, 1.0),
        ("days", 86_400.0, 2.0),
        ("h", 3600.0, 2.0),
        ("min", 60.0, 2.0),
        ("s", 1.0, 1.0),
    ):
        if seconds >= 0.9995 * one * least:
            return f"{seconds / one:.3g} {unit}"
    return f"{1000 * seconds:.3g} ms"
