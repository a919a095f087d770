"""A link between two devices: latency and bandwidth, read from text such as ``100ms,1Mbit``."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

_TIMES = {  # seconds
    "us": 1e-6,
    "µs": 1e-6,
    "ms": 1e-3,
    "s": 1.0,
    "min": 60.0,
}
_RATES = {  # bits a second; a byte has eight
    **{f"{prefix}bit": size for prefix, size in (("", 1.0), ("k", 1e3), ("M", 1e6), ("G", 1e9))},
    **{f"{prefix}B": 8 * size for prefix, size in (("", 1.0), ("k", 1e3), ("M", 1e6), ("G", 1e9))},
}
# A number, with an exponent if there is one, and a unit, with "/s" or "ps" for rates.
_WORD = re.compile(r"\s*([0-9.]+(?:[eE][+-]?[0-9]+)?)\s*([A-Za-zµ]+)(?:/s|ps)?\s*")


@dataclass(frozen=True)
class Link:
    """Latency in seconds, one way; bandwidth of a device's uplink in bits a second, shared by its neighbours.

    >>> Link.parse("100ms,1Mbit")
    Link(latency=0.1, bandwidth=1000000.0)
    """

    latency: float
    bandwidth: float

    def __post_init__(self) -> None:
        if not 0 <= self.latency < math.inf:
            raise ValueError(f"a link needs a latency of at least 0 seconds, got {self.latency}")
        if not self.bandwidth > 0:
            raise ValueError(f"a link needs a bandwidth above 0 bits a second, got {self.bandwidth}")

    @classmethod
    def parse(cls, text: str) -> Link:
        """Read LATENCY,BANDWIDTH in either order; ``100ms``, ``50us``, ``1Mbit``, ``20kB/s``."""
        words = [word for word in text.split(",") if word.strip()]
        if len(words) != 2:
            raise ValueError(f"a link is LATENCY,BANDWIDTH, as in 100ms,1Mbit, got {text!r}")
        latency = bandwidth = None
        for word in words:
            number, unit = _parse_quantity(word, text)
            if unit in _TIMES:
                latency = number * _TIMES[unit]
            else:
                bandwidth = number * _RATES[unit]
        if latency is None or bandwidth is None:
            missing = "latency" if latency is None else "bandwidth"
            raise ValueError(f"a link needs a latency and a bandwidth, as in 100ms,1Mbit, got no {missing} in {text!r}")
        return cls(latency, bandwidth)

    def __str__(self) -> str:
        for unit in ("us", "ms", "s"):
            if self.latency < 1000 * _TIMES[unit] or unit == "s":
                latency = f"{self.latency / _TIMES[unit]:g}{unit}"
                break
        for unit in ("Gbit", "Mbit", "kbit", "bit"):
            if self.bandwidth >= _RATES[unit] or unit == "bit":
                return f"{latency},{self.bandwidth / _RATES[unit]:g}{unit}"
        raise AssertionError("unreachable")


def _parse_quantity(word: str, text: str) -> tuple[float, str]:
    found = _WORD.fullmatch(word)
    if found is None:
        raise ValueError(f"a link is LATENCY,BANDWIDTH, as in 100ms,1Mbit, got {word.strip()!r} in {text!r}")
    unit = found[2]
    for suffix in ("", "ps"):  # the pattern may have taken the s of Mbps for a part of the unit
        if (plain := unit.removesuffix(suffix)) in _TIMES or plain in _RATES:
            return _number(found[1], text), plain
    close = next((known for known in (*_TIMES, *_RATES) if known.lower() == unit.lower()), None)
    meant = f", did you mean {close!r}?" if close else ";"
    raise ValueError(f"unknown unit {unit!r} in the link {text!r}{meant} known: {', '.join((*_TIMES, *_RATES))}")


def _number(digits: str, text: str) -> float:
    try:
        return float(digits)
    except ValueError:
        raise ValueError(f"{digits!r} is no number, in the link {text!r}") from None
