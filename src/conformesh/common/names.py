"""Names: of devices, in an order that people expect and listed in one line; and of table entries, nearly right."""

from __future__ import annotations

import operator
import re
from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from numbers import Integral


def natural_order(names: Iterable[str]) -> tuple[str, ...]:
    """Sort names as people do: as numbers if all are integers, else with the numbers inside compared as numbers.

    >>> natural_order(["device-10", "device-2"])
    ('device-2', 'device-10')
    """
    found = [*names]
    if all(re.fullmatch(r"[+-]?[0-9]+", name) for name in found):
        return tuple(sorted(found, key=lambda name: (int(name), name)))
    parts = {
        name: [int(p) if p.isdecimal() and p.isascii() else p for p in re.split(r"([0-9]+)", name)] for name in found
    }
    return tuple(sorted(found, key=lambda name: (parts[name], name)))


def device_name(device: Hashable) -> str:
    """Return the name of a device as text; 3, np.int64(3) and "3" are the same device."""
    given: object = device
    return str(operator.index(given)) if isinstance(given, Integral) else str(given)


def device_names(devices: Iterable[Hashable]) -> tuple[str, ...]:
    """Return the names of several devices, which must differ."""
    if isinstance(devices, str):
        raise TypeError(f"device names must be a sequence of names, got the single text {devices!r}")
    names = tuple(device_name(device) for device in devices)
    if not names:
        raise ValueError("a network needs at least 1 device, got no names")
    if len({*names}) < len(names):
        twice, count = Counter(names).most_common(1)[0]
        raise ValueError(f"device names must differ, {twice!r} is there {count} times")
    return names


def similar_names(names: Iterable[str]) -> tuple[str, str] | None:
    """Return two names that differ only in white space, case or leading zeros, None where there are no such names.

    >>> similar_names(["Lyon", "Paris", "Lyon "]), similar_names(["site-01", "site-1"]), similar_names(["a1", "a10"])
    (('Lyon', 'Lyon '), ('site-01', 'site-1'), None)
    """
    seen: dict[str, str] = {}
    for name in sorted({*names}):  # the same two, whatever the order of a set
        plain = re.sub(r"(?<![0-9.])0+(?=[0-9])", "", " ".join(name.split()).casefold())
        plain = re.sub(r"^([0-9]+)\.0+$", r"\1", plain)  # what 7 becomes in a column of numbers with gaps
        if seen.setdefault(plain, name) != name:
            return seen[plain], name
    return None


def list_names(names: Sequence[str], most: int = 6) -> str:
    """Return names in braces, shortened in the middle where there are many."""
    if len(names) <= most:
        return "{" + ", ".join(names) + "}"
    return "{" + ", ".join(names[: most - 1]) + f", ... {names[-1]}}} ({len(names)} devices)"


def unknown_name(what: str, word: object, known: Iterable[str]) -> str:
    """Return the words for a name that a table does not have, with the nearest it has.

    >>> unknown_name("topology", "torsu", ["chain", "torus"])
    "unknown topology 'torsu', did you mean 'torus'? known: chain, torus"
    """
    table = [*known]
    close = closest_name(str(word).lower(), table)
    hint = f", did you mean {close!r}?" if close else ";"
    return f"unknown {what} {word!r}{hint} known: {', '.join(table) or 'none'}"


def closest_name(word: str, known: Sequence[str]) -> str | None:
    """Return the name that is nearly the word, if there is one.

    >>> closest_name("torsu", ["chain", "torus"])
    'torus'
    """
    from difflib import get_close_matches  # what runs well never asks

    return next(iter(get_close_matches(word, known, n=1)), None)
