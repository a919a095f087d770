"""Times in text: from dates as people and programs write them to numbers that can be ordered.

A time that could be read in two ways is refused: sorted as text, ``t10`` comes before ``t2`` and 01.02.2024 before
31.01.2024, and a stream in the wrong order looks like any other.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta, timezone

_UNDERSTOOD = (
    "numbers (0, 1, 10), 2024-01-31, 2024/01/31, 31.01.2024, 31 Jan 2024, Jan 31 2024, and 31/01/2024 or 01/31/2024 "
    "where some day above 12 shows which is the day; each with or without a time of day and a zone, as 08:00:30.5, "
    "02:30 PM, 08:00Z or 08:00+01:00"
)
_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_BASIC = re.compile(r"(\d{4})(\d{2})(\d{2})T(\d{2})(\d{2})(\d{2})?(?=\D|$)")  # 20240131T080030, as ISO 8601 allows
_DATE = re.compile(r"(\d{1,4})([-/.])(\d{1,2})\2(\d{1,4})")
_DAY_MONTH = re.compile(r"(\d{1,2})[- ]([A-Za-z]{3,9})\.?,?[- ](\d{4})")
_MONTH_DAY = re.compile(r"([A-Za-z]{3,9})\.? (\d{1,2}),? (\d{4})")
_CLOCK = re.compile(
    r"(?:[Tt]|,? +)(\d{1,2}):(\d{2})(?::(\d{2})(?:[.,](\d{1,9}))?)? ?([AaPp][Mm])? ?(Z|z|UTC|[+-]\d{2}(?::?\d{2})?)?"
)
# Times are counted in integers from here: `datetime.timestamp` is a float, which is too coarse for nanoseconds.
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class TimeError(ValueError):
    """A time that cannot be read: its place among the texts, and why."""

    def __init__(self, place: int, why: str) -> None:
        super().__init__(why)
        self.place = place


def parse_times(texts: Sequence[str]) -> list[int]:
    """Return each time in nanoseconds since 1970, of UTC where zones are given; all or none of them must have one.

    >>> parse_times(["31.01.2024", "01.02.2024 00:00:01"])
    [1706659200000000000, 1706745601000000000]
    """
    parsed = [_split(place, text.strip()) for place, text in enumerate(texts)]
    day_first = _day_first([date for date, _ in parsed], texts)
    zoned = [clock is not None and clock[6] is not None for _, clock in parsed]
    if any(zoned) and not all(zoned):
        raise TimeError(zoned.index(False), "has no zone, and others have one; give a zone to all times or to none")
    return [
        _instant(place, texts[place], _calendar(date, day_first), clock) for place, (date, clock) in enumerate(parsed)
    ]


def _split(place: int, text: str) -> tuple[re.Match[str], re.Match[str] | None]:
    """Return the parts of a date, and of a time of day where there is one."""
    text = _BASIC.sub(lambda m: f"{m[1]}-{m[2]}-{m[3]}T{m[4]}:{m[5]}:{m[6] or '00'}", text, count=1)
    for pattern in (_DATE, _DAY_MONTH, _MONTH_DAY):
        date = pattern.match(text)
        if date is None:
            continue
        clock = _CLOCK.fullmatch(text, date.end())
        if clock is not None or date.end() == len(text):
            return date, clock
    raise TimeError(place, f"got {text!r}, which is no time that can be read; understood are {_UNDERSTOOD}")


def _day_first(dates: Sequence[re.Match[str]], texts: Sequence[str]) -> bool:
    """Return whether the day comes first in dates as 03/04/2024, from all of them; raise if that remains open."""
    open_ones = [
        (place, int(date[1]), int(date[3]))
        for place, date in enumerate(dates)
        if date.re is _DATE and date[2] != "." and len(date[1]) < 3
    ]
    first = [place for place, one, _ in open_ones if one > 12]
    second = [place for place, _, other in open_ones if other > 12]
    if first and second:
        raise TimeError(
            second[0],
            f"got {texts[second[0]]!r} beside {texts[first[0]]!r}: in one the day comes second, in the other first",
        )
    # 05/05/2024 is the same either way
    if open_ones and not first and not second and any(one != other for _, one, other in open_ones):
        place = next(place for place, one, other in open_ones if one != other)
        raise TimeError(
            place, f"got {texts[place]!r}, where the day may come first or second; write 2024-01-31, the year first"
        )
    return bool(first)


def _calendar(date: re.Match[str], day_first: bool) -> tuple[int, int, int]:
    """Return year, month and day; 0, 0, 0 if no number has four digits: then which is the year is unknown."""
    if date.re is _DAY_MONTH:
        return int(date[3]), _month(date[2]), int(date[1])
    if date.re is _MONTH_DAY:
        return int(date[3]), _month(date[1]), int(date[2])
    if len(date[1]) == 4 and len(date[4]) <= 2:
        return int(date[1]), int(date[3]), int(date[4])
    if len(date[4]) != 4 or len(date[1]) > 2:
        return 0, 0, 0
    one, other = int(date[1]), int(date[3])
    return (int(date[4]), other, one) if day_first or date[2] == "." else (int(date[4]), one, other)


def _month(name: str) -> int:
    """Return the number of a month, 0 for another word."""
    short = name[:3].lower()
    return _MONTHS.index(short) + 1 if short in _MONTHS else 0


def _instant(place: int, text: str, calendar: tuple[int, int, int], clock: re.Match[str] | None) -> int:
    hour, minute, second, fraction, half, zone = (None,) * 6 if clock is None else clock.groups()
    try:
        hours = int(hour or 0)
        if half is not None:
            if not 1 <= hours <= 12:
                raise ValueError("an hour with AM or PM is 1 to 12")
            # 12 AM is midnight and 12 PM is noon.
            hours = hours % 12 + 12 * (half.lower() == "pm")
        when = datetime(*calendar, hours, int(minute or 0), int(second or 0), tzinfo=_zone(zone))
    except ValueError as problem:
        raise TimeError(place, f"got {text!r}, which is no date: {problem}; understood are {_UNDERSTOOD}") from None
    since = when - _EPOCH
    return (since.days * 86_400 + since.seconds) * 10**9 + int((fraction or "0").ljust(9, "0"))


def _zone(text: str | None) -> timezone:
    """Return the zone; times without one are compared as they are."""
    if text is None or not text.startswith(("+", "-")):
        return UTC
    digits = text[1:].replace(":", "").ljust(4, "0")
    offset = timedelta(hours=int(digits[:2]), minutes=int(digits[2:]))
    return timezone(-offset if text[0] == "-" else offset)
