"""Quantities in words, for people: counts, amounts of data, times, thresholds."""

from __future__ import annotations

_PREFIXES = (("E", 1e18), ("P", 1e15), ("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3))


def pluralize(number: int, what: str) -> str:
    """Return a number of things.

    >>> pluralize(1, "round"), pluralize(12_000, "round")
    ('1 round', '12,000 rounds')
    """
    return f"{number:,} {what}{'s' * (number != 1)}"


def format_count(mean: float) -> str:
    """Return a mean of counts: three digits, or all of a whole number.

    >>> format_count(24.333333), format_count(24), format_count(4096.4), format_count(999.7)
    ('24.3', '24', '4,096', '1,000')
    """
    return f"{mean:.3g}" if abs(mean) < 99.95 else f"{mean:,.0f}"


def format_bits(bits: float) -> str:
    """Return an amount of data in bits.

    >>> format_bits(64), format_bits(9_600_000), format_bits(0)
    ('64 bit', '9.6 Mbit', '0')
    """
    return _scaled(bits, "bit")


def format_bytes(size: float) -> str:
    """Return an amount of data in bytes.

    >>> format_bytes(0), format_bytes(62.5), format_bytes(64_064), format_bytes(3.2e9)
    ('0', '62.5 B', '64.1 kB', '3.2 GB')
    """
    return _scaled(size, "B")


def format_time(seconds: float) -> str:
    """Return a time for people.

    >>> [format_time(seconds) for seconds in (0, 0.0123, 8.25, 300, 9000, 4e5, 1e9)]
    ['0', '12.3 ms', '8.25 s', '5 min', '2.5 h', '4.63 days', '31.7 years']
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


def _scaled(amount: float, unit: str) -> str:
    if amount == 0:
        return "0"
    for prefix, size in _PREFIXES:
        if amount >= 0.9995 * size:
            return f"{amount / size:.3g} {prefix}{unit}"
    return f"{amount:.3g} {unit}"
